"""What is open at a point of a kernel: accesses that no barrier has closed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tessera.target.check.access import Access, Agent, Kind
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


@dataclass(frozen=True, slots=True)
class Sync:
    """A barrier of some threads.

    Attributes:
        warps: the warps that take part.
        among_warps: whether warps wait for each other, or each for its own lanes.
    """

    warps: Flags
    among_warps: bool


@dataclass(slots=True)
class State:
    """The open accesses.

    Attributes:
        open: the accesses.
        syncs: the partial barriers since the last full one.
        mixed: whether paths that came together had passed different partial barriers.
    """

    open: list[Open] = field(default_factory=list[Open])
    syncs: list[Sync] = field(default_factory=list[Sync])
    mixed: bool = False

    def copy(self) -> State:
        """A state of its own."""
        return State(list(self.open), list(self.syncs), self.mixed)

    def add(self, access: Access) -> None:
        """Opens an access."""
        moving = access.agent in (Agent.ASYNC, Agent.ENGINE)
        # What an engine reads or writes is in flight until somebody waits for it.
        landed = not moving or (access.agent is Agent.ASYNC and access.kind is Kind.READ)
        self.open.append(Open(access, len(self.syncs), landed=landed))

    def commit(self) -> None:
        """All async copies so far are a group."""
        self.open = [
            replace(o, age=0 if o.age is None else o.age + 1)
            if o.in_flight and o.access.agent is Agent.ASYNC
            else o
            for o in self.open
        ]

    def wait(self, pending: int) -> None:
        """All but the newest groups have landed."""
        self.open = [
            replace(o, landed=True) if o.in_flight and o.age is not None and o.age >= pending else o
            for o in self.open
        ]

    def land_engine(self, bases: Iterable[object] | None = None) -> None:
        """Copies of the engine have ended: all, or those into certain objects."""
        self.open = [
            replace(o, landed=True)
            if o.in_flight
            and o.access.agent is Agent.ENGINE
            and (bases is None or o.access.base in bases)
            else o
            for o in self.open
        ]

    def barrier(self) -> None:
        """All threads have met."""
        self.open = [replace(o, segment=0) for o in self.open if o.in_flight]
        self.syncs = []
        self.mixed = False

    def partial(self, sync: Sync) -> None:
        """Some threads have met."""
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
    return any(x.among_warps != y.among_warps or (x.warps != y.warps).any() for x, y in pairs)
