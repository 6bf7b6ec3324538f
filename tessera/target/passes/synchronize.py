"""Puts barriers into a GPU kernel: between what one thread writes and another one reads or writes.

A kernel's lowering stores to shared memory and loads from it as if all threads moved together. Here
every access that may touch what another thread has written (or that writes what another may still
read) since the last barrier gets one in front of it. Objects are told apart by their bytes, memory
arguments by their names; loops are followed around. Objects with slots (`ring`) belong to a
pipeline, which orders them itself. That the result is free of races is proved independently, by
`target/check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tessera.ir.core import Block, Func, Op, Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.uniform import BLOCK, uniformity
from tessera.target.types import AddressSpace, PtrType


@dataclass(frozen=True, slots=True)
class _Touch:
    """One access: of shared bytes `[start, end)` of an object, or of a memory argument."""

    root: Value | None
    object: Value | None
    start: int
    end: int
    writes: bool
    atomic: bool
    op: Op

    def needs_barrier(self, other: _Touch) -> bool:
        """Whether this access must be seen to have happened before the other one."""
        if not (self.writes or other.writes) or (self.atomic and other.atomic):
            return False
        if self.root is not other.root:
            return False
        fills = isinstance(self.op, _WRITES) and isinstance(other.op, _WRITES)
        if fills and self.object is not None and self.object is other.object:
            return False
        if fills and self.root is not None and self.op.loc is other.op.loc:
            # The registers of one tile are other elements, too.
            return False
        if self.root is not None:
            # An op of a loop writes other elements each time.
            return self.op is not other.op
        return self.start < other.end and other.start < self.end


_State = frozenset[_Touch]

_READS = (t.Load, t.Gather, g.LoadCached, g.LoadMatrix)
_WRITES = (t.Store, t.Scatter, g.StoreCached, g.StoreMatrix)
_ATOMICS = (g.Atomic, g.AtomicReduce, g.CompareExchange)


def synchronize(func: Func) -> Func:
    """The kernel with the barriers that it needs."""
    return _Pass(func).run()


class _Pass:
    def __init__(self, func: Func) -> None:
        self.func = func
        self.uniform = uniformity(func)
        self.root: dict[Value, Value] = {}
        self.barriers: set[Op] = set()

    def run(self) -> Func:
        """The rewritten kernel."""
        self.block(self.func.body, frozenset())
        if not self.barriers:
            return self.func
        return self.func.with_body(self.rebuilt(self.func.body))

    # --- analysis ---------------------------------------------------------------------------------

    def block(self, block: Block, state: _State) -> _State:
        """What is pending after a block, given what is before it; notes where barriers go."""
        for op in block.ops:
            if isinstance(op, (t.PtrAdd, g.MapShared)):
                self.root[op.result] = self.root.get(op.ptr, op.ptr)
            state = self.step(op, state)
        return state

    def step(self, op: Op, state: _State) -> _State:
        """One op."""
        if isinstance(op, g.ClusterBarrier) or (isinstance(op, g.Barrier) and not op.threads):
            return frozenset()
        if op.regions and not self.divergent(op):
            return self.regions(op, state)
        touches = list(self.inside(op))
        if any(old.needs_barrier(new) for new in touches for old in state):
            self.barriers.add(op)
            state = frozenset()
        return state | frozenset(touches)

    def divergent(self, op: Op) -> bool:
        """Whether threads may go different ways at an op, so that no barrier may stand inside."""
        if isinstance(op, t.If):
            return self.uniform[op.pred] != BLOCK
        if isinstance(op, t.For):
            return any(self.uniform[v] != BLOCK for v in (op.lo, op.hi, op.step))
        if isinstance(op, t.While):
            return any(self.uniform[v] != BLOCK for v in op.cond.outputs)
        return False

    def regions(self, op: Op, state: _State) -> _State:
        """Branches start alike; a loop's body also follows itself."""
        if isinstance(op, t.If):
            return self.block(op.then, state) | self.block(op.otherwise, state)
        entry = state
        while True:
            after = entry
            for region in op.regions:
                after = self.block(region, after)
            # A loop may run no time at all; a condition runs once more than the body.
            after |= state
            if after <= entry:
                return after
            entry |= after

    def inside(self, op: Op) -> Iterable[_Touch]:
        """The accesses of an op, regions included."""
        for region in op.regions:
            for inner in region.ops:
                if isinstance(inner, (t.PtrAdd, g.MapShared)):
                    self.root[inner.result] = self.root.get(inner.ptr, inner.ptr)
                yield from self.inside(inner)
        if isinstance(op, g.LoadCached) and op.hint == "nc":
            return  # nobody writes what is read so
        if isinstance(op, _READS):
            yield from self.touch(op, op.ptr, False, False)
        elif isinstance(op, _WRITES):
            yield from self.touch(op, op.ptr, True, False)
        elif isinstance(op, _ATOMICS):
            yield from self.touch(op, op.ptr, True, True)
        elif isinstance(op, g.AsyncCopy):
            yield from self.touch(op, op.dst, True, False)
            yield from self.touch(op, op.src, False, False)

    def touch(self, op: Op, ptr: Value, writes: bool, atomic: bool) -> Iterable[_Touch]:
        """The access through one pointer."""
        root = self.root.get(ptr, ptr)
        assert isinstance(root.type, PtrType)
        if isinstance(root.op, g.Shared):
            if not root.op.ring:
                start = root.op.offset
                yield _Touch(None, root, start, start + root.op.bytes, writes, atomic, op)
        elif root.type.space is AddressSpace.GLOBAL:
            yield _Touch(root, None, 0, 0, writes, atomic, op)

    # --- rewriting --------------------------------------------------------------------------------

    def rebuilt(self, block: Block) -> Block:
        """The block with barriers. Results of rebuilt ops take the place of the old ones."""
        return self._rebuilt(block, {})

    def _rebuilt(self, block: Block, env: dict[Value, Value]) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            if op in self.barriers:
                ops.append(g.Barrier(loc=op.loc))
            operands = [env.get(v, v) for v in op.operands]
            if not op.regions and operands == list(op.operands):
                ops.append(op)
                continue
            new = op.rebuild(operands, [self._rebuilt(r, env) for r in op.regions])
            env.update(zip(op.results, new.results, strict=True))
            ops.append(new)
        return Block(block.args, ops, [env.get(v, v) for v in block.outputs])
