"""Barriers in memory: a search through all orders in which threads and the copy engine may move.

The kernel is run for a few small sizes. Threads that do the same to barriers move together, as one
role; what a role does is a list of steps. A state is where each role stands, each barrier's phase,
and the copies under way. Found are states in which nobody can move on (a wrong count or parity, or
bytes that never come), more arrivals than a barrier counts, and reads of what a copy has not
brought yet or has already replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tessera.ir.core import Func, Op, Value
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.access import Access, Agent, Kind
from tessera.target.check.index import Coef, Form, bounds
from tessera.target.check.report import Outcome, Verdict, Witness
from tessera.target.check.trace import Trace, Untraceable
from tessera.target.check.truth import Flags

SIZES = (1, 2, 3, 5, 9)
MAX_STATES = 20_000
MAX_ROLES = 6
OPS = (g.MbarrierInit, g.MbarrierArrive, g.MbarrierWait, g.BulkLoad, g.TensorLoad)

Place = tuple[int, int]
"""An object, by number, and a byte in it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What threads do to a barrier or to memory that the engine fills.

    Attributes:
        kind: `init`, `arrive`, `wait`, `load`, `sync` or `read`.
        op: the op.
        place: the barrier; of a read, what is read.
        amount: arrivals to wait for, bytes, or the parity.
        target: of a load, the first byte and the one after the last.
        mask: the threads.
    """

    kind: str
    op: Op
    place: Place
    amount: int
    target: tuple[int, int, int]
    mask: Flags


@dataclass(frozen=True, slots=True)
class Barrier:
    """The state of a barrier.

    Attributes:
        count: arrivals of a phase.
        done: phases completed.
        pending: arrivals to come.
        bytes: bytes to come.
    """

    count: int
    done: int
    pending: int
    bytes: int

    def settled(self) -> Barrier:
        """The next phase, if this one is complete."""
        if self.pending or self.bytes:
            return self
        return Barrier(self.count, self.done + 1, self.count, 0)


@dataclass(frozen=True, slots=True)
class Moment:
    """A state: positions of roles, barriers, copies under way, and loads so far of each target."""

    at: tuple[int, ...]
    barriers: tuple[tuple[Place, Barrier], ...]
    flying: tuple[tuple[Place, int, int], ...]
    loads: tuple[tuple[int, int], ...]


def check_phases(func: Func, names: dict[Value, str]) -> list[Verdict]:
    """The verdict on all barriers in memory of a kernel; none where there are none."""
    inits = [op for op in walk(func.body) if isinstance(op, g.MbarrierInit)]
    if not inits:
        return []
    subject = ", ".join(sorted({names.get(op.ptr, "barriers in memory") for op in inits}))
    why = "how often barriers are used depends on data"
    longest = 0
    loops = [
        op
        for op in walk(func.body)
        if isinstance(op, (t.For, t.While))
        and any(isinstance(o, OPS) for r in op.regions for o in walk(r))
    ]
    for size in SIZES:
        try:
            steps = _record(func, size)
            found = _Search(steps, func, size).run(subject)
        except Untraceable as problem:
            why = str(problem)
            break
        if found is not None:
            return [found]
        longest = max(longest, sum(s.kind == "wait" for s in steps))
    if longest >= 3 or (longest and not loops):
        return [Verdict("mbarrier", subject, Outcome.PROVED, f"up to {longest} phases")]
    return [Verdict("mbarrier", subject, Outcome.UNDECIDED, why)]


def _record(func: Func, size: int) -> list[Step]:
    """The steps of all threads, in program order, with every size being the same number."""
    steps: list[Step] = []
    numbers: dict[Value | None, int] = {}

    def see(op: Op, trace: Trace) -> None:
        steps.extend(_steps(op, trace, numbers))

    trace = Trace(func, lambda state: None, see)
    trace.only_exact = OPS
    for arg in func.args:
        if isinstance(arg.type, ScalarType):
            trace.values.env[arg] = Form(size)
    trace.values.in_block_zero = True
    trace.run()
    filled = [s.target for s in steps if s.kind == "load"]
    return [s for s in steps if s.kind != "read" or any(_overlap(s.target, f) for f in filled)]


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _steps(op: Op, trace: Trace, numbers: dict[Value | None, int]) -> Iterator[Step]:
    mask = trace.reader.mask
    interesting = isinstance(op, (*OPS, g.Barrier, g.ClusterBarrier))
    if interesting and not mask.is_known:
        raise Untraceable(f"it depends on data which threads run {op.name}")
    who = mask.must

    def number(value: Value | None) -> int:
        return numbers.setdefault(value, len(numbers))

    def place(ptr: Value, offset: Value) -> Place:
        base, form = trace.reader.signal(ptr, offset)
        return number(base), _exact(form, who, op)

    none = (0, 0, 0)
    if isinstance(op, g.MbarrierInit):
        yield Step("init", op, place(op.ptr, op.offset), op.count, none, who)
    elif isinstance(op, g.MbarrierArrive):
        expected = _exact(trace.values.form(op.expect[0]), who, op) if op.expect else 0
        yield Step("arrive", op, place(op.ptr, op.offset), expected, none, who)
    elif isinstance(op, g.MbarrierWait):
        parity = _exact(trace.values.form(op.parity), who, op)
        yield Step("wait", op, place(op.ptr, op.offset), parity, none, who)
    elif isinstance(op, (g.Barrier, g.ClusterBarrier)):
        yield Step("sync", op, (-1, op.id if isinstance(op, g.Barrier) else -1), 0, none, who)
    else:
        for access in trace.reader.accesses(op):
            target = _target(access, number(access.base))
            if target is None:
                continue
            if access.agent is Agent.ENGINE and access.kind is Kind.WRITE and access.signal:
                at = number(access.signal[0]), _exact(access.signal[1], who, op)
                yield Step("load", op, at, access.width or 0, target, who)
            elif access.kind is Kind.READ and access.guard.may.any():
                yield Step("read", op, (target[0], target[1]), 0, target, access.guard.may)


def _target(access: Access, base: int) -> tuple[int, int, int] | None:
    if access.base is None or not isinstance(access.base.op, g.Shared) or access.width is None:
        return None
    low, high = bounds(access.form)
    flags = access.guard.may
    if low is None or high is None or not flags.any():
        return None
    least = int(np.broadcast_to(np.asarray(low), flags.shape)[flags].min())
    most = int(np.broadcast_to(np.asarray(high), flags.shape)[flags].max())
    return base, least, most + access.width


def _exact(form: Form, mask: Flags, op: Op) -> int:
    if not form.is_const:
        raise Untraceable(f"an operand of {op.name} depends on data")
    base: Coef = form.base
    if isinstance(base, int):
        return base
    values = np.unique(base[mask])
    if len(values) > 1:
        raise Untraceable(f"threads differ in an operand of {op.name}")
    return int(values[0]) if len(values) else 0


class _Search:
    def __init__(self, steps: list[Step], func: Func, size: int) -> None:
        self.func = func
        self.size = size
        self.steps = [s for s in steps if s.mask.any()]
        self.roles: list[list[Step]] = []
        self.members: list[int] = []
        self.first: list[int] = []
        if not self.steps:
            return
        table = np.stack([s.mask for s in self.steps])
        columns, first, counts = np.unique(table, axis=1, return_index=True, return_counts=True)
        if columns.shape[1] > MAX_ROLES:
            raise Untraceable(f"threads have {columns.shape[1]} roles")
        for role in range(columns.shape[1]):
            mine = [s for s, runs in zip(self.steps, columns[:, role], strict=True) if runs]
            self.roles.append(mine)
            self.members.append(int(counts[role]))
            self.first.append(int(first[role]))

    def run(self, subject: str) -> Verdict | None:
        """A verdict if something goes wrong in some order."""
        start = Moment((0,) * len(self.roles), (), (), ())
        seen = {start}
        pending = [start]
        while pending:
            moment = pending.pop()
            moved = False
            for found in self._moves(moment):
                if isinstance(found, tuple):
                    return self._refuted(subject, *found)
                moved = True
                if found not in seen:
                    seen.add(found)
                    pending.append(found)
                    if len(seen) > MAX_STATES:
                        raise Untraceable("too many orders of events")
            left = [k for k, r in enumerate(self.roles) if moment.at[k] < len(r)]
            if not left and moment.flying:
                step = next(s for s in self.steps if s.kind == "load")
                return self._refuted(subject, 0, step, "it may still be writing at the end")
            if not moved and left:
                step = self.roles[left[0]][moment.at[left[0]]]
                return self._refuted(subject, left[0], step, "nobody can go on: it waits forever")
        return None

    def _refuted(self, subject: str, role: int, step: Step, why: str) -> Verdict:
        values = f"for sizes of {self.size}"
        witness = Witness((self.first[role],), step.place[1], (step.op,), values)
        return Verdict("mbarrier", subject, Outcome.REFUTED, f"{step.op.name}: {why}", witness)

    def _moves(self, now: Moment) -> Iterator[Moment | tuple[int, Step, str]]:
        barriers = dict(now.barriers)
        for index, (place, size, _) in enumerate(now.flying):
            barrier = barriers[place]
            after = replace(barrier, bytes=barrier.bytes - size).settled()
            rest = now.flying[:index] + now.flying[index + 1 :]
            yield replace(now, barriers=_with(barriers, place, after), flying=rest)
        yield from self._syncs(now)
        for role, steps in enumerate(self.roles):
            if now.at[role] < len(steps):
                step = steps[now.at[role]]
                if step.kind == "sync":
                    continue
                found = self._step(now, role, step, barriers)
                if found is not None:
                    yield found

    def _syncs(self, now: Moment) -> Iterator[Moment]:
        """All roles that come to a barrier of the block at all are there."""
        waiting: dict[Place, list[int]] = {}
        for role, steps in enumerate(self.roles):
            if now.at[role] < len(steps) and steps[now.at[role]].kind == "sync":
                waiting.setdefault(steps[now.at[role]].place, []).append(role)
        for place, roles in waiting.items():
            op = self.roles[roles[0]][now.at[roles[0]]].op
            needed = (op.threads if isinstance(op, g.Barrier) else 0) or sum(self.members)
            if place[1] >= 0 and sum(self.members[r] for r in roles) < needed:
                continue
            if place[1] < 0 and len(roles) < len(self.roles):
                continue
            at = tuple(p + (role in roles) for role, p in enumerate(now.at))
            yield replace(now, at=at)

    def _step(
        self, now: Moment, role: int, step: Step, barriers: dict[Place, Barrier]
    ) -> Moment | tuple[int, Step, str] | None:
        at = tuple(p + (k == role) for k, p in enumerate(now.at))
        barrier = barriers.get(step.place)
        if step.kind == "read":
            problem = self._read(now, role, step)
            return (role, step, problem) if problem else replace(now, at=at)
        if step.kind == "init":
            fresh = Barrier(step.amount, 0, step.amount, 0)
            return replace(now, at=at, barriers=_with(barriers, step.place, fresh))
        if barrier is None:
            return role, step, "the barrier has not been made"
        if step.kind == "wait":
            return replace(now, at=at) if barrier.done & 1 != step.amount & 1 else None
        if step.kind == "arrive":
            members = self.members[role]
            if members > barrier.pending:
                return role, step, f"more arrivals than the {barrier.count} that are counted"
            expected = barrier.bytes + step.amount * members
            after = replace(barrier, pending=barrier.pending - members, bytes=expected).settled()
            return replace(now, at=at, barriers=_with(barriers, step.place, after))
        return self._load(now, at, role, step)

    def _load(
        self, now: Moment, at: tuple[int, ...], role: int, step: Step
    ) -> Moment | tuple[int, Step, str]:
        loads = dict(now.loads)
        start = step.target[1]
        loads[start] = loads.get(start, 0) + 1
        flying = tuple(sorted([*now.flying, (step.place, step.amount, start)]))
        if any(f[2] == start for f in now.flying):
            return role, step, "another copy to the same place is under way"
        return Moment(at, now.barriers, flying, tuple(sorted(loads.items())))

    def _read(self, now: Moment, role: int, step: Step) -> str:
        """What is wrong with a read now, if the role itself waits for what it reads."""
        loads = dict(now.loads)
        before = self.roles[role][: now.at[role]]
        for other in {(s.place, s.target) for r in self.roles for s in r if s.kind == "load"}:
            place, target = other
            if not _overlap(step.target, target):
                continue
            waits = sum(s.kind == "wait" and s.place == place for s in before)
            if not waits:
                continue
            if any(f[2] == target[1] for f in now.flying):
                return "it reads what a copy is still bringing"
            if loads.get(target[1], 0) < waits:
                return "it reads before the copy that it waited for has begun"
            if loads.get(target[1], 0) > waits:
                return "it reads what a later copy has replaced"
        return ""


def _with(
    barriers: dict[Place, Barrier], place: Place, barrier: Barrier
) -> tuple[tuple[Place, Barrier], ...]:
    return tuple(sorted({**barriers, place: barrier}.items(), key=lambda item: item[0]))
