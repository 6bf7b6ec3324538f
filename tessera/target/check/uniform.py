"""What the threads of a block agree on.

A value is block-uniform if all threads that compute it get the same, warp-uniform if those of each
warp do, and divergent otherwise. The answer is an upper bound: "divergent" means "not known to be
uniform". Values that depend on nothing but the thread's number are computed for all threads, so
`thread_id >> 5` is found to be warp-uniform whatever it is written as.

Kernel parameters, block numbers and constants are block-uniform. So is what is read from memory at
a uniform address, unless the kernel changes that memory atomically. A loop that threads leave at
different times makes divergent what it carries out. Inside regions "all threads" are those that run
the region together: the control around an op is a question of its own (`control`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tessera.dtypes import Kind
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.types import AddressSpace, PtrType

INTEGRAL = (Kind.BOOL, Kind.INT, Kind.UINT)


class Uniformity(IntEnum):
    """How far threads agree; `max` joins."""

    BLOCK = 0
    WARP = 1
    DIVERGENT = 2

    def __str__(self) -> str:
        return ("block-uniform", "warp-uniform", "divergent")[self]


BLOCK, WARP, DIVERGENT = Uniformity


def uniformity(func: Func) -> Mapping[Value, Uniformity]:
    """How uniform each value of a kernel is."""
    return Analysis(func).values


def control(func: Func) -> Mapping[Op, Uniformity]:
    """How uniform the decision to run each op is: the join of the branches and loops around it."""
    analysis = Analysis(func)
    found: dict[Op, Uniformity] = {}
    _control(func.body, BLOCK, analysis, found)
    return found


def _control(
    block: Block, outer: Uniformity, analysis: Analysis, found: dict[Op, Uniformity]
) -> None:
    for op in block.ops:
        found[op] = outer
        inner = max(outer, analysis.decision(op))
        for region in op.regions:
            _control(region, inner, analysis, found)


def threads_of(func: Func) -> int:
    """Threads of a block, as the kernel's first op says."""
    for op in func.ops:
        if isinstance(op, g.BlockInfo):
            return op.threads
    return g.WARP


class Analysis:
    """The analysis of one kernel.

    Attributes:
        values: the result.
        tables: for values that are functions of the thread's number, the value in each thread.
    """

    def __init__(self, func: Func) -> None:
        self.values: dict[Value, Uniformity] = {}
        self.tables: dict[Value, NDArray[np.generic]] = {}
        self.threads = threads_of(func)
        self.atomics = _atomic_bases(func)
        for arg in func.args:
            self.values[arg] = BLOCK
        self._block(func.body)

    def decision(self, op: Op) -> Uniformity:
        """How uniform the control that an op puts around its regions is."""
        if isinstance(op, t.If):
            return self.values[op.pred]
        if isinstance(op, t.For):
            return self._join((op.lo, op.hi, op.step))
        if isinstance(op, t.While):
            return self.values[op.cond.outputs[0]]
        return BLOCK

    def _join(self, values: Iterable[Value]) -> Uniformity:
        return max((self.values[v] for v in values), default=BLOCK)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, t.For):
                self._loop(op, (op.body,), {op.body.args[0]: self._join((op.lo, op.step))})
            elif isinstance(op, t.While):
                self._loop(op, (op.cond, op.body), {})
            elif isinstance(op, t.If):
                self._branch(op)
            else:
                found = self._result(op)
                for value in op.results:
                    self.values[value] = found

    def _branch(self, op: t.If) -> None:
        self._block(op.then)
        self._block(op.otherwise)
        for result, a, b in zip(op.results, op.then.outputs, op.otherwise.outputs, strict=True):
            same = a is b
            self.values[result] = self._join((a,) if same else (op.pred, a, b))

    def _loop(self, op: t.For | t.While, regions: tuple[Block, ...], known: dict[Value, Uniformity]
              ) -> None:  # fmt: skip
        body = regions[-1]
        carried = [self.values[v] for v in op.init]
        while True:
            for region in regions:
                self.values.update(known)
                args = region.args[len(region.args) - len(carried) :]
                self.values.update(zip(args, carried, strict=True))
                self._forget(region)
                self._block(region)
            after = [max(c, self.values[v]) for c, v in zip(carried, body.outputs, strict=True)]
            if after == carried:
                break
            carried = after
        leaving = self.decision(op)
        for result, found in zip(op.results, carried, strict=True):
            self.values[result] = max(found, leaving)

    def _forget(self, region: Block) -> None:
        for op in walk(region):
            for value in op.results:
                self.tables.pop(value, None)

    def _result(self, op: Op) -> Uniformity:
        if not op.results:
            return BLOCK
        if isinstance(op, g.ThreadId):
            self.tables[op.result] = np.arange(self.threads, dtype=np.int32)
            return DIVERGENT
        if isinstance(op, (t.Map, t.Cast)):
            return self._computed(op)
        if isinstance(op, (t.Load, g.LoadCached)):
            return self._loaded(op.ptr, op.operands)
        if isinstance(op, (g.LoadMatrix, g.Mma, g.Atomic, g.CompareExchange, g.Clock, t.Alloca)):
            return DIVERGENT
        if isinstance(op, (g.Uniform, g.ReduceWarp)):
            return min(WARP, self._join(op.operands))
        if isinstance(op, g.Vote):
            return min(WARP, self.values[op.pred])
        if isinstance(op, g.ShuffleLanes):
            return self._shuffled(op)
        return self._join(op.operands)

    def _loaded(self, ptr: Value, operands: tuple[Value, ...]) -> Uniformity:
        if isinstance(ptr.type, PtrType) and ptr.type.space is AddressSpace.LOCAL:
            return DIVERGENT
        return DIVERGENT if base_of(ptr) in self.atomics else self._join(operands)

    def _shuffled(self, op: g.ShuffleLanes) -> Uniformity:
        given = self.values[op.x]
        if given <= WARP:
            return given
        whole = op.kind == "index" and op.width == g.WARP
        return WARP if whole and self.values[op.by] <= WARP else DIVERGENT

    def _computed(self, op: t.Map | t.Cast) -> Uniformity:
        joined = self._join(op.operands)
        if joined is BLOCK:
            return BLOCK
        table = self._table(op)
        if table is None:
            return joined
        self.tables[op.result] = table
        warps = table.reshape(-1, g.WARP)
        if not (warps == warps[:, :1]).all():
            return DIVERGENT
        return BLOCK if (table == table[0]).all() else WARP

    def _table(self, op: t.Map | t.Cast) -> NDArray[np.generic] | None:
        """The value in each thread, where it follows from the thread's number alone."""
        type = op.result.type
        if not isinstance(type, ScalarType) or type.dtype.kind not in INTEGRAL:
            return None
        given: list[NDArray[np.generic]] = []
        for value in op.operands:
            table = self.tables.get(value)
            if (
                table is None
                and isinstance(value.op, t.Const)
                and isinstance(value.type, ScalarType)
            ):
                table = np.full(self.threads, value.op.value, value.type.dtype.np)
            if table is None:
                return None
            given.append(table)
        if isinstance(op, t.Cast):
            return given[0].astype(type.dtype.np)
        return op.fn.evaluate(*given)


def base_of(ptr: Value) -> Value:
    """The pointer that `target.ptr_add` started from."""
    while isinstance(ptr.op, t.PtrAdd):
        ptr = ptr.op.ptr
    return ptr


def _atomic_bases(func: Func) -> set[Value]:
    ops = (g.Atomic, g.AtomicReduce, g.CompareExchange)
    return {base_of(op.ptr) for op in walk(func.body) if isinstance(op, ops)}
