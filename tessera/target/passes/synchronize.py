"""Puts barriers and waits into a GPU kernel: between what one thread writes and another one reads
or writes, and between what is copied asynchronously and whoever reads it.

A kernel's lowering stores to shared memory and loads from it as if all threads moved together, and
reads what an `async_copy` brings as if it were there. Here every access that may touch what another
thread has written (or that writes what another may still read) since the last barrier gets one in
front of it. What is still under way is waited for: in front of the barrier that stands before the
access anyway, if the group was committed by then, else in front of the access. Objects are told
apart by their bytes, memory arguments by their names; loops are followed around. Slots of a `ring`
are told apart, too: their loops are followed, round by round, with the values that slots are chosen
by, until nothing new happens. That the result is free of races is proved independently, by
`target/check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.uniform import BLOCK, base_of, threads_of, uniformity
from tessera.target.ops import element, lanes
from tessera.target.passes.pending import ATOMICS, READS, WRITES, Pending, Touch
from tessera.target.types import AddressSpace, PtrType

MAX_ROUNDS = 64
"""Rounds of a loop that are followed with its values; a pipeline has come around by then."""

MATRIX_ROW = 16
"""Bytes that each lane's offset of `load_matrix` stands for."""

_ORDERING = (t.For, t.While, g.AsyncCommit, g.AsyncWait, g.Barrier, g.ClusterBarrier)

_COMPUTING = (t.Map, t.Const, t.Cast)
"""What most ops are, which touch no memory."""

Known = dict[Value, NDArray[np.generic]]
"""Values in all threads of a block, or the one value that they all have."""


def synchronize(func: Func) -> Func:
    """The kernel with the barriers and waits that it needs."""
    return _Pass(func).run()


class _Pass:
    def __init__(self, func: Func) -> None:
        self.func = func
        self.threads = threads_of(func)
        self.uniform = uniformity(func)
        self.choosing = _choosing(func)
        self.known: Known = {}
        self.barriers: set[Op] = set()
        self.waits: dict[Op, int] = {}
        self.copies = False
        self.changed = False

    def run(self) -> Func:
        """The rewritten kernel."""
        # What is written over is the reason for most barriers; waits then find them.
        self.settle()
        drain = False
        if any(isinstance(op, g.AsyncCopy) for op in walk(self.func.body)):
            self.copies = True
            drain = any(self.settle().groups)
        if not self.barriers and not self.waits and not drain:
            return self.func
        body = self.rebuilt(self.func.body, {})
        if drain:
            wait = g.AsyncWait(0, loc=body.ops[-1].loc)
            body = Block(body.args, [*body.ops, wait], body.outputs)
        return self.func.with_body(body)

    # --- analysis ---------------------------------------------------------------------------------

    def settle(self) -> Pending:
        """Adds barriers and waits until no access asks for more; what is pending at the end."""
        while True:
            self.changed = False
            found = self.block(self.func.body, Pending())
            if not self.changed:
                return found

    def block(self, block: Block, state: Pending) -> Pending:
        """What is pending after a block, given what is before it; notes what is missing."""
        for op in block.ops:
            state = self.step(op, state)
        return state

    def step(self, op: Op, state: Pending) -> Pending:
        """One op."""
        self.follow(op)
        if isinstance(op, _COMPUTING):
            return state
        if op in self.waits:
            state = state.waited(self.waits[op])
        if op in self.barriers:
            state = state.met(op)
        if isinstance(op, g.ClusterBarrier) or (isinstance(op, g.Barrier) and not op.threads):
            return state.met(op)
        if isinstance(op, g.AsyncCommit):
            return state.committed() if self.copies else state
        if isinstance(op, g.AsyncWait):
            return state.waited(op.pending)
        if op.regions and not self.is_one(op):
            return self.regions(op, state)
        touches = list(self.inside(op))
        if not touches:
            return state
        if self.copies:
            state = self.wait(op, state, touches)
        if state.conflict(touches):
            self.barriers.add(op)
            self.changed = True
            state = state.met(op)
        if not self.copies:
            touches = [x for x in touches if not (isinstance(x.op, g.AsyncCopy) and x.writes)]
        return state.with_touches(touches)

    def wait(self, op: Op, state: Pending, touches: list[Touch]) -> Pending:
        """Waits for the copies that an op's accesses need."""
        if any(old.needs_barrier(new) for new in touches for old in state.open):
            raise CompileError(
                f"{op.name} needs what has been copied since the last commit: commit it first",
                loc=op.loc,
            )
        under_way = state.waiting(touches)
        if under_way is None:
            return state
        at, pending = op, under_way
        if state.barrier is not None and under_way >= state.since:
            # A wait that is there already is for older copies: it must not wait for newer ones.
            earlier = under_way - state.since
            if self.waits.get(state.barrier, earlier) <= earlier:
                at, pending = state.barrier, earlier
        self.waits[at] = min(pending, self.waits.get(at, pending))
        self.changed = True
        if at is op:
            self.barriers.add(op)
            return state.waited(under_way).met(op)
        return replace(state, groups=state.groups[len(state.groups) - under_way :])

    def is_one(self, op: Op) -> bool:
        """Whether an op with regions counts as one access: threads may go different ways at it, so
        that no barrier may stand inside; or none of its accesses minds another one."""
        if self.divergent(op):
            return True
        within = [x for region in op.regions for x in walk(region)]
        if not isinstance(op, t.If) or any(isinstance(x, _ORDERING) for x in within):
            return False
        if not any(isinstance(x, g.AsyncCopy) for x in within):
            return False
        touches = list(self.inside(op))
        return not any(a.needs_barrier(b) for a in touches for b in touches)

    def divergent(self, op: Op) -> bool:
        """Whether threads may go different ways at an op."""
        if isinstance(op, t.If):
            return self.uniform[op.pred] != BLOCK
        if isinstance(op, t.For):
            return any(self.uniform[v] != BLOCK for v in (op.lo, op.hi, op.step))
        if isinstance(op, t.While):
            return any(self.uniform[v] != BLOCK for v in op.cond.outputs)
        return False

    def regions(self, op: Op, state: Pending) -> Pending:
        """Branches start alike; a loop's body also follows itself."""
        if isinstance(op, t.If):
            return self.block(op.then, state) | self.block(op.otherwise, state)
        assert isinstance(op, (t.For, t.While))
        carried = [self.known.get(v) for v in op.init]
        state = state.entered()
        # A loop may run no time at all; a condition runs once more than the body.
        after = state
        seen: set[tuple[Pending, tuple[bytes | None, ...]]] = set()
        rounds = 0
        while True:
            here = (state, tuple([None if v is None else v.tobytes() for v in carried]))
            if here in seen:
                return after.entered()
            seen.add(here)
            rounds += 1
            if rounds > MAX_ROUNDS:
                carried, state = [None] * len(carried), state | after
            for region in op.regions:
                args = region.args[len(region.args) - len(carried) :]
                for arg, value in zip(args, carried, strict=True):
                    self.know(arg, value)
                state = self.block(region, state)
                after |= state
            state = state.entered()
            carried = [self.known.get(v) for v in op.regions[-1].outputs]

    def inside(self, op: Op) -> Iterator[Touch]:
        """The accesses of an op, regions included."""
        for region in op.regions:
            for inner in region.ops:
                self.follow(inner)
                if not isinstance(inner, _COMPUTING):
                    yield from self.inside(inner)
        if isinstance(op, g.LoadCached) and op.hint == "nc":
            return  # nobody writes what is read so
        if isinstance(op, (t.Load, t.Store, g.LoadCached, g.StoreCached)):
            writes = isinstance(op, WRITES)
            yield from self.touch(op, op.ptr, writes, False, self.bytes(op, op.offset))
        elif isinstance(op, g.LoadMatrix):
            yield from self.touch(op, op.ptr, False, False, self.bytes(op, op.offset))
        elif isinstance(op, READS):
            yield from self.touch(op, op.ptr, False, False, None)
        elif isinstance(op, WRITES):
            yield from self.touch(op, op.ptr, True, False, None)
        elif isinstance(op, ATOMICS):
            yield from self.touch(op, op.ptr, True, True, None)
        elif isinstance(op, g.AsyncCopy):
            yield from self.touch(op, op.dst, True, False, self.bytes(op, op.dst_offset))
            yield from self.touch(op, op.src, False, False, None)

    def touch(
        self, op: Op, ptr: Value, writes: bool, atomic: bool, span: tuple[int, int] | None
    ) -> Iterator[Touch]:
        """The access through one pointer, of some bytes if they are known."""
        root = base_of(ptr)
        while isinstance(root.op, g.MapShared):
            root = base_of(root.op.ptr)
        assert isinstance(root.type, PtrType)
        if isinstance(root.op, g.Shared):
            start, end = span or (0, root.op.bytes)
            start, end = start + root.op.offset, end + root.op.offset
            yield Touch(None, root, start, end, writes, atomic, op)
        elif root.type.space is AddressSpace.GLOBAL:
            yield Touch(root, None, 0, 0, writes, atomic, op)

    # --- values -----------------------------------------------------------------------------------

    def follow(self, op: Op) -> None:
        """Computes what an op says about slots."""
        for value in op.results:
            if value in self.choosing:
                self.know(value, self.computed(op))

    def know(self, value: Value, found: NDArray[np.generic] | None) -> None:
        """Notes a value, or that nobody knows it."""
        if found is None:
            self.known.pop(value, None)
        else:
            self.known[value] = found

    def computed(self, op: Op) -> NDArray[np.generic] | None:
        """The result of an op in all threads."""
        if isinstance(op, t.Const):
            assert isinstance(op.result.type, ScalarType)
            return np.asarray(op.value, op.result.type.dtype.np)
        if isinstance(op, g.ThreadId):
            return np.arange(self.threads, dtype=np.int32)
        given = [self.known.get(v) for v in op.operands]
        found = [x for x in given if x is not None]
        if len(found) < len(given):
            return None
        if isinstance(op, t.Map):
            return np.asarray(op.fn.evaluate(*found))
        if isinstance(op, t.Cast):
            assert isinstance(op.result.type, ScalarType)
            return found[0].astype(op.result.type.dtype.np)
        return found[0] if isinstance(op, g.Uniform) else None

    def bytes(self, op: Op, offset: Value) -> tuple[int, int] | None:
        """The bytes from the start of an object that all threads together touch."""
        found = self.known.get(offset)
        if found is None:
            return None
        if isinstance(op, g.LoadMatrix):
            unit, size = 1, MATRIX_ROW
        elif isinstance(op, g.AsyncCopy):
            unit, size = op.dtype.itemsize, op.bytes
        else:
            assert isinstance(op, (t.Load, t.Store, g.LoadCached, g.StoreCached))
            type = op.value.type if isinstance(op, (t.Store, g.StoreCached)) else op.type
            unit = element(type).itemsize
            size = unit * lanes(type)
        return int(found.min()) * unit, int(found.max()) * unit + size

    # --- rewriting --------------------------------------------------------------------------------

    def rebuilt(self, block: Block, env: dict[Value, Value]) -> Block:
        """The block with barriers and waits. Results of rebuilt ops take the place of the old."""
        ops: list[Op] = []
        for op in block.ops:
            if op in self.waits:
                ops.append(g.AsyncWait(self.waits[op], loc=op.loc))
            if op in self.barriers:
                ops.append(g.Barrier(loc=op.loc))
            operands = [env.get(v, v) for v in op.operands]
            if not op.regions and operands == list(op.operands):
                ops.append(op)
                continue
            new = op.rebuild(operands, [self.rebuilt(r, env) for r in op.regions])
            env.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


def _choosing(func: Func) -> set[Value]:
    """The values that say which bytes of a ring's slots are touched."""
    feeds: dict[Value, tuple[Value, ...]] = {}
    pending: list[Value] = []
    for op in walk(func.body):
        if isinstance(op, (t.For, t.While)):
            for region in op.regions:
                args = region.args[len(region.args) - len(op.init) :]
                for arg, start, end in zip(args, op.init, op.regions[-1].outputs, strict=True):
                    feeds[arg] = (start, end)
        elif isinstance(op, (t.Load, t.Store, g.LoadCached, g.StoreCached, g.LoadMatrix)):
            pending += _chosen(op.ptr, op.offset)
        elif isinstance(op, g.AsyncCopy):
            pending += _chosen(op.dst, op.dst_offset)
    found: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        if isinstance(value.op, (t.Map, t.Cast, g.Uniform)):
            pending += value.op.operands
        pending += feeds.get(value, ())
    return found


def _chosen(ptr: Value, offset: Value) -> tuple[Value, ...]:
    return (offset,) if isinstance(ptr.op, g.Shared) and ptr.op.ring else ()
