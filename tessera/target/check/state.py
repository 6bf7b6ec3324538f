"""What is open at a point of a kernel: accesses that no barrier has closed yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target.check.access import Access, Agent, Kind, Signal
from tessera.target.check.truth import Flags


@dataclass(frozen=True, slots=True)
class Open:
    """An access that may still meet others.

    Attributes:
        access: it.
        segment: how many partial barriers the block had passed.
        age: of an asynchronous copy, the groups committed after its own; None before its commit.
        landed: whether its own thread has waited for it.
    """

    access: Access
    segment: int = 0
    age: int | None = None
    landed: bool = True

    @property
    def in_flight(self) -> bool:
        """Whether hardware may still be at it."""
        return not self.landed


Chooser = Callable[[Access], bool]


def is_async(access: Access) -> bool:
    """Whether it is one of `target.async_copy`."""
    return access.agent is Agent.ASYNC


def is_bulk(access: Access) -> bool:
    """Whether it is one of a store by the copy engine."""
    return isinstance(access.op, (g.BulkStore, g.TensorStore))


def is_bulk_read(access: Access) -> bool:
    """Whether it is what a store by the copy engine reads."""
    return is_bulk(access) and access.kind is Kind.READ


def _is_meant(signal: Signal | None, by: Signal) -> bool:
    if signal is None or signal[0] is not by[0]:
        return False
    exact = signal[1].is_const and by[1].is_const
    return not exact or signal[1].key == by[1].key


@dataclass(frozen=True, slots=True)
class Sync:
    """Some threads come to a barrier.

    Attributes:
        warps: the warps that come.
        id: the barrier; -1 for one of each warp for itself.
        threads: how many it waits for.
        waits: whether those who come wait.
    """

    warps: Flags
    id: int
    threads: int
    waits: bool = True


@dataclass(slots=True)
class State:
    """The open accesses.

    Attributes:
        open: the accesses.
        syncs: the partial barriers since the last full one.
        mixed: whether paths that came together had passed different partial barriers.
        arrived: for barriers in memory, the accesses of those who arrived, from before they did.
    """

    open: list[Open] = field(default_factory=list[Open])
    syncs: list[Sync] = field(default_factory=list[Sync])
    mixed: bool = False
    arrived: dict[Value | None, frozenset[int]] = field(
        default_factory=dict["Value | None", "frozenset[int]"]
    )

    def copy(self) -> State:
        """A state of its own."""
        return State(list(self.open), list(self.syncs), self.mixed, dict(self.arrived))

    def add(self, access: Access) -> None:
        """Opens an access."""
        moving = access.agent in (Agent.ASYNC, Agent.ENGINE)
        # What an engine reads or writes is in flight until somebody waits for it.
        landed = not moving or (access.agent is Agent.ASYNC and access.kind is Kind.READ)
        self.open.append(Open(access, len(self.syncs), landed=landed))

    def commit(self, chosen: Chooser) -> None:
        """All copies of a kind so far are a group."""
        self.open = [
            replace(o, age=0 if o.age is None else o.age + 1)
            if o.in_flight and chosen(o.access)
            else o
            for o in self.open
        ]

    def wait(self, pending: int, chosen: Chooser) -> None:
        """All but the newest groups of a kind have landed."""
        self.open = [
            replace(o, landed=True)
            if o.in_flight and o.age is not None and o.age >= pending and chosen(o.access)
            else o
            for o in self.open
        ]

    def arrive(self, base: Value | None, mask: Flags) -> None:
        """Threads arrive at a barrier in memory: what they did is done for who waits there."""
        own = {
            id(o.access) for o in self.open if o.landed and not (o.access.guard.may & ~mask).any()
        }
        self.arrived[base] = self.arrived.get(base, frozenset()) | own

    def signalled(self, signal: Signal, everyone: bool) -> None:
        """A barrier in memory says that copies have ended, to all threads or to some."""
        found: list[Open] = []
        done = self.arrived.get(signal[0], frozenset()) if everyone else frozenset[int]()
        for o in self.open:
            meant = o.in_flight and _is_meant(o.access.signal, signal)
            if meant and not everyone:
                # Who has not waited must still not touch it: that is not followed.
                access = replace(o.access, certain=False)
                found.append(replace(o, access=access, landed=True))
            elif not meant and id(o.access) not in done:
                found.append(o)
        self.open = found

    def barrier(self) -> None:
        """All threads have met."""
        self.open = [replace(o, segment=0) for o in self.open if o.in_flight]
        self.syncs = []
        self.mixed = False
        self.arrived = {}

    def partial(self, sync: Sync) -> None:
        """Some threads come to a barrier."""
        self.syncs.append(sync)

    def uncertain(self) -> State:
        """The same, on a path that may not be taken."""
        found = self.copy()
        found.open = [
            replace(o, access=replace(o.access, certain=False)) if o.access.certain else o
            for o in found.open
        ]
        return found


def join(states: list[State], label: int = 0) -> State:
    """What is open where paths come together.

    Args:
        states: the state at the end of each path.
        label: if not 0, names the choice between the paths, so that what is open on different ones
            is known to exclude each other.
    """
    first = states[0]
    if len(states) == 1:
        return first
    found = State([], list(first.syncs), any(s.mixed or _differ(s, first) for s in states))
    paths: dict[tuple[object, ...], list[int]] = {}
    opened: dict[tuple[object, ...], Open] = {}
    for number, state in enumerate(states):
        for o in state.open:
            key = (id(o.access), o.segment, o.age, o.landed)
            opened[key] = o
            paths.setdefault(key, []).append(number)
    for key, o in opened.items():
        if not label or len(paths[key]) == len(states):
            found.open.append(o)
            continue
        for number in paths[key]:
            path = o.access.path | {(label, number)}
            found.open.append(replace(o, access=replace(o.access, path=path)))
    if found.mixed:
        found.open = [replace(o, segment=0) for o in found.open]
        found.syncs = []
    return found


def _differ(a: State, b: State) -> bool:
    if len(a.syncs) != len(b.syncs):
        return True
    pairs = zip(a.syncs, b.syncs, strict=True)
    return any(x.id != y.id or (x.warps != y.warps).any() for x, y in pairs)
