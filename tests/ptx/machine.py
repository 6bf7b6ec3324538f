"""The threads of some blocks as NumPy lanes: registers, control flow, barriers.

Lanes that stand at one place of the code run together, the lowest place first, so that branches
come together again. What needs other lanes (a barrier, a shuffle) waits until they are there; when
nothing can run, that is an error which says who waits where.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.memory import Array, Fault, Memories
from tests.ptx.parser import Instruction, Kernel, PtxError
from tests.ptx.races import Clocks

Run = Callable[[Array, bool], None]

PLAIN, BRANCH, EXIT, BARRIER, ARRIVE, COLLECTIVE = range(6)
CLUSTER = 16
"""The barrier of a cluster, which has one block here."""
_BITS = np.left_shift(np.uint32(1), np.arange(32, dtype="u4"))
# After so many instructions without a rest, lanes let others run: they may wait for them.
_TURN = 20_000


@dataclass(slots=True)
class Step:
    """A decoded instruction.

    Attributes:
        kind: what the machine has to do itself.
        run: what it does in the lanes of a mask; the flag says that these are all there are.
        ins: where it comes from.
        reads: numbers of registers whose values are used.
        writes: numbers of registers that it sets.
        guard: the predicate, or None; `guard_index` is its register.
        target: of a branch.
        members: of a collective, the mask operand; None: its whole warp.
        barrier: its number and its count of threads (0: all), for each lane.
        aligned: whether whole warps must come.
        uniform: of a branch, whether all lanes take the same way.
        simple: of a barrier, whether all threads of a block meet at one that the text numbers.
    """

    kind: int
    run: Run
    ins: Instruction
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    guard: Array | None = None
    negated: bool = False
    guard_index: int = -1
    target: int = -1
    members: Array | None = None
    barrier: tuple[Array, Array | None] | None = None
    aligned: bool = True
    uniform: bool = False
    simple: bool = False


@dataclass(slots=True)
class Async:
    """A copy that was started: what is left to do, and each lane's group."""

    todo: Array
    group: Array
    run: Callable[[Array], None]


class Queue:
    """Copies that threads start and wait for in groups.

    Without `lazy` they are done when they are started.
    """

    def __init__(self, lanes: int, lazy: bool) -> None:
        self.lazy = lazy
        self.copies: list[Async] = []
        self.committed = np.zeros(lanes, "i8")

    def reset(self) -> None:
        """New blocks begin."""
        self.copies.clear()
        self.committed[:] = 0

    def start(self, mask: Array, run: Callable[[Array], None]) -> None:
        """Copies of some lanes begin."""
        if not self.lazy:
            run(mask)
            return
        self.copies.append(Async(mask.copy(), self.committed.copy(), run))

    def commit(self, mask: Array) -> None:
        """What the lanes have started since the last time becomes a group."""
        self.committed += mask

    def wait(self, mask: Array, pending: int | None) -> None:
        """All groups of the lanes but the last `pending` are complete; None: everything is."""
        for copy in self.copies:
            due = mask & copy.todo
            if pending is not None:
                due &= copy.group < self.committed - pending
            if due.any():
                copy.run(due)
                copy.todo &= ~due
        self.copies = [copy for copy in self.copies if copy.todo.any()]

    def finish(self) -> None:
        """What was started and never awaited still happens, after the last thread has ended."""
        for copy in self.copies:
            copy.run(copy.todo)
        self.copies.clear()


@dataclass
class Machine:
    """Resident blocks of one kernel.

    Attributes:
        kernel: what runs.
        blocks: how many are resident.
        threads: of a block.
        padded: threads in whole warps; the lanes of a block.
        memory: the memories.
        lazy: whether asynchronous work is done as late as allowed.
        limit: instructions after which a kernel counts as hung.
    """

    kernel: Kernel
    blocks: int
    threads: int
    memory: Memories
    lazy: bool = False
    limit: int = 20_000_000
    steps: list[Step] = field(default_factory=list)
    executed: int = 0

    def __post_init__(self) -> None:
        self.padded = -(-self.threads // 32) * 32
        self.lanes = n = self.blocks * self.padded
        self.lane = np.arange(n)
        self.thread = self.lane % self.padded
        self.names = list(self.kernel.registers)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.whole = bytearray(len(self.names))
        self.part: dict[int, Array] = {}
        self.block_ids = np.zeros(n, "u4")
        self.live = np.zeros(n, bool)
        self.alive = self.begun = 0
        self.groups: dict[int, Array] = {}
        self.stalled: set[int] = set()
        self.tired: set[int] = set()
        self.parked: dict[int, Array] = {}
        self.arrived: dict[int, Array] = {}
        self.resume = np.zeros(n, "i8")
        self.parked_at = np.zeros(n, "i8")
        self.wanted = np.zeros(n, "i8")
        self.give_way = False
        self.idle = 0
        self.ticks = 0
        self.races: Clocks | None = None
        self.maps: dict[int, Any] = {}  # tensor maps, by the offset of their parameters
        self.copies = Queue(n, self.lazy)
        self.bulk = Queue(n, self.lazy)
        self.on_start: list[Callable[[], None]] = []
        self.waiters: list[Callable[[], bool]] = []

    def accesses(self, mode: str) -> AbstractContextManager[None]:
        """Within this, accesses are `atomic`, or the copy `engine`'s."""
        return nullcontext() if self.races is None else self.races.accesses(mode)

    # --- one wave of blocks ---

    def run(self, first: int, count: int) -> None:
        """Run `count` blocks, the first with the given number."""
        self.whole[:] = bytes(len(self.whole))
        self.part.clear()
        self.block_ids[:] = first + self.lane // self.padded
        self.live[:] = (self.thread < self.threads) & (self.lane < count * self.padded)
        self.alive = int(self.live.sum())
        self.begun = self.alive
        self.groups = {0: self.live.copy()}
        self.stalled.clear()
        self.tired.clear()
        self.parked.clear()
        self.arrived.clear()
        self.memory.shared.reset()
        if self.races is not None:
            self.races.reset()
        self.copies.reset()
        self.bulk.reset()
        for start in self.on_start:
            start()
        while self.groups or self.parked:
            ready = [pc for pc in self.groups if pc not in self.stalled]
            fresh = [pc for pc in ready if pc not in self.tired]
            if not ready:
                self._deadlock()
            if not fresh:
                self.tired.clear()
                fresh = ready
            pc = min(fresh)
            self.executed += 1
            self._advance(pc, self.groups.pop(pc))
        self._finish()

    def _advance(self, pc: int, mask: Array) -> None:
        """Run lanes until they meet others, wait, or end."""
        steps, groups = self.steps, self.groups
        end = len(steps)
        budget = _TURN
        full = int(np.count_nonzero(mask)) == self.alive
        while pc not in groups:
            if pc >= end:
                self._exit(mask)
                return
            budget -= 1
            if budget < 0 or self.give_way:
                budget = _TURN
                if self._rest(pc, mask):
                    return
            step = steps[pc]
            if step.kind:
                result = self._control(step, pc, mask, full)
                if result is None:
                    return
                pc, mask = result
                full = int(np.count_nonzero(mask)) == self.alive
                continue
            if step.guard is None:
                self._execute(step, mask, full)
            else:
                active, every = self._guarded(step, mask)
                if active is not None:
                    self._execute(step, active, every)
            pc += 1
        self._join(pc, mask)

    def _execute(self, step: Step, mask: Array, full: bool) -> None:
        whole = self.whole
        for r in step.reads:
            if not whole[r]:
                self._check(r, mask, step)
        try:
            step.run(mask, full)
        except Fault as fault:
            raise self.error(step, str(fault), fault.lane) from None
        for r in step.writes:
            if not whole[r]:
                self._written(r, mask, full)

    def _rest(self, pc: int, mask: Array) -> bool:
        self.executed += _TURN if not self.give_way else 1
        waiting, self.give_way = self.give_way, False
        self.idle = self.idle + 1 if waiting else 0
        if self.executed > self.limit or self.idle > 20_000:
            raise self.error(self.steps[pc], "the kernel does not end", int(np.argmax(mask)))
        if waiting:
            try:
                moved = [waiter() for waiter in self.waiters]
            except Fault as fault:
                raise self.error(self.steps[pc], str(fault), fault.lane) from None
            if any(moved):
                self.idle = 0
        if not self.groups:
            return False
        self.groups[pc] = mask
        self.tired.add(pc)
        return True

    def _guarded(self, step: Step, mask: Array) -> tuple[Array | None, bool]:
        if not self.whole[step.guard_index]:
            self._check(step.guard_index, mask, step)
        guard = step.guard
        assert guard is not None
        active = mask & ~guard if step.negated else mask & guard
        count = int(np.count_nonzero(active))
        return (active if count else None), count == self.alive

    # --- registers ---

    def _check(self, r: int, mask: Array, step: Step) -> None:
        known = self.part.get(r)
        bad = mask if known is None else mask & ~known
        if bad.any():
            lane = int(np.argmax(bad))
            raise self.error(step, f"{self.names[r]} is read before it was written", lane)

    def _written(self, r: int, mask: Array, full: bool) -> None:
        if full:
            self.whole[r] = 1
        elif r in self.part:
            self.part[r] |= mask
        else:
            self.part[r] = mask.copy()

    def picked(self, mask: Array, full: bool) -> Array:
        """The numbers of the lanes of a mask."""
        return self.lane if full and self.alive == self.lanes else np.flatnonzero(mask)

    def note_write(self, r: int, mask: Array) -> None:
        """Lanes of a mask have a register from now on."""
        if not self.whole[r]:
            self._written(r, mask, False)

    # --- control flow ---

    def _control(self, step: Step, pc: int, mask: Array, full: bool) -> tuple[int, Array] | None:
        """What the machine itself does; where the lanes go on, or None if they do not."""
        active = mask
        if step.guard is not None:
            guarded, _ = self._guarded(step, mask)
            if guarded is None:
                return pc + 1, mask
            active = guarded
            rest = mask & ~active
            if rest.any():
                if step.kind == BRANCH:
                    return self._part(step, pc, active, rest)
                self._join(pc + 1, rest)
                full = False
        if step.kind == BRANCH:
            return step.target, active
        if step.kind == EXIT:
            self._exit(active)
            return None
        return self._collective(step, pc, active, full)

    def _part(self, step: Step, pc: int, taken: Array, rest: Array) -> tuple[int, Array] | None:
        """Some lanes branch and some do not."""
        if step.uniform:
            both = taken.reshape(-1, 32).any(axis=1) & rest.reshape(-1, 32).any(axis=1)
            if both.any():
                lane = 32 * int(np.argmax(both))
                raise self.error(step, "the lanes of a warp part at a uniform branch", lane)
        self._join(step.target, taken)
        if step.target > pc:
            return pc + 1, rest
        self._join(pc + 1, rest)  # the others of a loop go on first
        return None

    def _collective(self, step: Step, pc: int, mask: Array, full: bool) -> tuple[int, Array] | None:
        for r in step.reads:
            if not self.whole[r]:
                self._check(r, mask, step)
        ready = self._together(step, pc, mask, full)
        if ready is None:
            return None
        if step.kind == BARRIER:
            if full and step.simple and self.alive == self.begun and not self.parked:
                if self.races is not None:
                    self.races.meet_all()
                return pc + 1, ready  # everybody is here
            self._park(step, pc, ready)
            return None
        if step.kind == ARRIVE:
            self._arrive(step, ready)
            return pc + 1, ready
        self._execute(step, ready, full and ready is mask)
        return pc + 1, ready

    def _join(self, pc: int, mask: Array) -> None:
        """Lanes stand at a place, beside those that are there."""
        if pc in self.groups:
            self.groups[pc] |= mask
            self.stalled.discard(pc)
        else:
            self.groups[pc] = mask.copy()
        self.tired.discard(pc)

    def _together(self, step: Step, pc: int, mask: Array, full: bool) -> Array | None:
        """The lanes whose partners are all here; the others stay."""
        if full or not step.aligned:
            return mask
        active = mask.reshape(-1, 32)
        wanted = self.live.reshape(-1, 32)
        if step.members is not None:
            members = np.where(mask, step.members, np.uint32(0)).reshape(-1, 32).max(axis=1)
            wanted = wanted & ((members[:, None] & _BITS) != 0)
        complete = ~((wanted & ~active).any(axis=1) & active.any(axis=1))
        if complete.all():
            return mask
        ready = (active & complete[:, None]).reshape(-1)
        self._join(pc, mask & ~ready)
        self.stalled.add(pc)
        return ready if ready.any() else None

    def _exit(self, mask: Array) -> None:
        self.live &= ~mask
        self.alive = int(np.count_nonzero(self.live))
        self.stalled.clear()
        for barrier in list(self.parked):
            self._release(barrier)

    # --- barriers ---

    def _park(self, step: Step, pc: int, mask: Array) -> None:
        self.resume[mask] = pc + 1
        self.parked_at[mask] = pc
        for barrier in self._numbers(step, mask):
            numbers, counts = step.barrier or (None, None)
            assert numbers is not None
            here = mask & (numbers == barrier)
            self.wanted[here] = 0 if counts is None else counts[here]
            parked = self.parked.get(barrier)
            self.parked[barrier] = here.copy() if parked is None else parked | here
            self._release(barrier)

    def _arrive(self, step: Step, mask: Array) -> None:
        numbers, counts = step.barrier or (None, None)
        assert numbers is not None
        assert counts is not None
        for barrier in self._numbers(step, mask):
            here = mask & (numbers == barrier)
            self.wanted[here] = counts[here]
            arrived = self.arrived.setdefault(barrier, np.zeros(self.lanes, "i8"))
            arrived += here
            if self.races is not None:
                for block, warps in self._warps(here):
                    self.races.leave(block, warps, barrier)
            self._release(barrier)

    def _numbers(self, step: Step, mask: Array) -> list[int]:
        assert step.barrier is not None
        numbers = step.barrier[0][mask]
        if (numbers > CLUSTER).any():
            raise self.error(step, "a block has 16 barriers", int(np.argmax(mask)))
        first = int(numbers[0])
        return [first] if (numbers == first).all() else [int(i) for i in np.unique(numbers)]

    def _release(self, barrier: int) -> None:
        """Let the blocks go on in which everybody has come."""
        parked = self.parked.get(barrier)
        shape = (self.blocks, self.padded)
        here = np.zeros(shape, bool) if parked is None else parked.reshape(shape)
        arrived = self.arrived.get(barrier)
        involved = here if arrived is None else here | (arrived.reshape(shape) > 0)
        wanted = np.where(involved, self.wanted.reshape(shape), 0).max(axis=1)
        # A barrier counts whole warps.
        counts = here.reshape(self.blocks, -1, 32).any(axis=2).sum(axis=1) * 32
        if arrived is not None:
            counts = counts + arrived.reshape(self.blocks, -1, 32).max(axis=2).sum(axis=1) * 32
        everybody = here.any(axis=1) & ~(self.live.reshape(shape) & ~here).any(axis=1)
        complete = np.where(wanted > 0, counts >= wanted, everybody)
        complete &= involved.any(axis=1)
        if not complete.any():
            return
        freed = (here & complete[:, None]).reshape(-1)
        ended = ~self.live & (self.thread < self.threads)
        gone = complete & (wanted == 0) & ended.reshape(shape).any(axis=1)
        if gone.any():
            lane = int(np.argmax((here & gone[:, None]).reshape(-1)))
            text = f"not all threads come here: {self._who(ended)} have ended"
            raise self.error(self.steps[int(self.parked_at[lane])], text, lane)
        if self.races is not None:
            for block, warps in self._warps(freed):
                self.races.meet(block, warps, barrier)
        if arrived is not None:
            arrived.reshape(shape)[complete] = 0
        if parked is not None:
            parked &= ~freed
            if not parked.any():
                del self.parked[barrier]
        for pc in np.unique(self.resume[freed]):
            self._join(int(pc), freed & (self.resume == pc))

    def _warps(self, mask: Array) -> list[tuple[int, Array]]:
        """The warps with lanes in a mask, by block."""
        some = mask.reshape(self.blocks, -1, 32).any(axis=2)
        return [(int(b), np.flatnonzero(some[b])) for b in np.flatnonzero(some.any(axis=1))]

    def _deadlock(self) -> None:
        lines: list[str] = []
        first: tuple[int, int] | None = None
        for pc in sorted(self.groups):
            lane = int(np.argmax(self.groups[pc]))
            first = first or (pc, lane)
            lines.append(f"{self._who(self.groups[pc])} wait at {self._where(pc)}")
        for parked in self.parked.values():
            for pc in np.unique(self.parked_at[parked]):
                mask = parked & (self.parked_at == pc)
                first = first or (int(pc), int(np.argmax(mask)))
                lines.append(f"{self._who(mask)} wait at {self._where(int(pc))}")
        ended = ~self.live & (self.thread < self.threads)
        if ended.any():
            lines.append(f"{self._who(ended)} have ended")
        assert first is not None
        text = "not all threads come here: " + "; ".join(lines)
        raise self.error(self.steps[first[0]], text, first[1])

    def _finish(self) -> None:
        if any(arrived.any() for arrived in self.arrived.values()):
            raise PtxError(f"{self.kernel.name}: a barrier was arrived at, and nobody waits for it")
        try:
            with self.accesses("engine"):
                self.copies.finish()
                self.bulk.finish()
        except Fault as fault:
            raise self.error(self.steps[-1], str(fault), fault.lane) from None

    # --- messages ---

    def _where(self, pc: int) -> str:
        ins = self.steps[pc].ins
        return f"{ins.name} in line {ins.line}"

    def _who(self, mask: Array) -> str:
        lanes = np.flatnonzero(mask)
        block = int(self.block_ids[lanes[0]])
        threads = self.thread[lanes[self.block_ids[lanes] == block]]
        shown = ", ".join(map(str, threads[:4])) + (", ..." if len(threads) > 4 else "")
        return f"threads {shown} of block {block}"

    def error(self, step: Step, text: str, lane: int) -> PtxError:
        """An error at an instruction, of a lane."""
        ins = step.ins
        place = f" ({ins.place[0]}:{ins.place[1]})" if ins.place else ""
        return PtxError(
            f"{self.kernel.name}, line {ins.line}: {ins.name}: {text} "
            f"[thread {int(self.thread[lane])} of block {int(self.block_ids[lane])}]{place}"
        )


def no_op(mask: Array, full: bool) -> None:
    """Nothing."""
    del mask, full
