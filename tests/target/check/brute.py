"""Races by brute force: every thread is run alone, and all pairs of its accesses are compared."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tessera.ir.core import Block, Func, Op, Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t


@dataclass
class Thread:
    """One thread's run: `(interval, epoch of the warp, byte, writes)` for each byte it touches."""

    number: int
    sizes: int
    values: dict[Value, Any] = field(default_factory=dict)
    interval: int = 0
    epoch: int = 0
    touched: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def run(self, func: Func) -> None:
        for arg in func.args:
            self.values[arg] = self.sizes
        self.block(func.body)

    def block(self, block: Block) -> list[Any]:
        for op in block.ops:
            self.op(op)
        return [self.values[v] for v in block.outputs]

    def op(self, op: Op) -> None:
        if isinstance(op, (t.For, t.If)):
            self.control(op)
        elif isinstance(op, (t.Load, t.Store)):
            self.touch(op)
        elif isinstance(op, g.Barrier):
            self.interval += 1
        elif isinstance(op, g.WarpBarrier):
            self.epoch += 1
        elif op.results:
            self.values[op.result] = self.compute(op)

    def control(self, op: t.For | t.If) -> None:
        values = self.values
        if isinstance(op, t.If):
            found = self.block(op.then if values[op.pred] else op.otherwise)
        else:
            found = [values[v] for v in op.init]
            for k in range(values[op.lo], values[op.hi], values[op.step]):
                values.update(zip(op.body.args, [k, *found], strict=True))
                found = self.block(op.body)
        values.update(zip(op.results, found, strict=True))

    def touch(self, op: t.Load | t.Store) -> None:
        start = 4 * self.values[op.offset]
        for byte in range(start, start + 4):
            self.touched.append((self.interval, self.epoch, byte, isinstance(op, t.Store)))
        for result in op.results:
            self.values[result] = 0

    def compute(self, op: Op) -> Any:
        if isinstance(op, t.Const):
            return op.value
        if isinstance(op, t.Cast):
            return self.values[op.x]
        if isinstance(op, t.Map):
            return FUNCTIONS[op.fn.name](*(self.values[a] for a in op.args))
        return self.number if isinstance(op, g.ThreadId) else 0


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
    "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift, "mod": operator.mod,
    "floordiv": operator.floordiv, "min": min, "lt": operator.lt, "ge": operator.ge,
    "eq": operator.eq,
}  # fmt: skip


def has_race(func: Func, threads: int, size: int) -> bool:
    """Whether two threads touch one byte between the same barriers, one of them writing."""
    places: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for number in range(threads):
        thread = Thread(number, size)
        thread.run(func)
        for interval, epoch, byte, writes in thread.touched:
            places[interval, byte].append((number, epoch, writes))
    return any(_clash(found) for found in places.values())


def _clash(found: list[tuple[int, int, bool]]) -> bool:
    for a, epoch, writes in found:
        if writes:
            for b, other, _ in found:
                if a != b and (a // 32 != b // 32 or epoch == other):
                    return True
    return False
