"""On which axes and dims the scalars of a nest depend."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, symbols
from tessera.schedule import loop_ops, ops
from tessera.schedule.types import Axis


class Dependence:
    """The symbols that values and ops of a block mention, directly or through their operands.

    Attributes:
        values: by value.
        ops: by op, those of the regions included; axes that the op binds itself are not counted.
    """

    def __init__(self, block: Block) -> None:
        self.values: dict[Value, frozenset[str]] = {}
        self.ops: dict[Op, frozenset[str]] = {}
        self._find(block)

    def _find(self, block: Block) -> None:
        for op in block.ops:
            found: set[str] = set()
            for inner in op.regions:
                if isinstance(op, loop_ops.LOOPS):
                    self._carry(op)
                self._find(inner)
                found.update(*[self.values[v] for v in inner.outputs])
                if isinstance(op, loop_ops.LOOPS):
                    found.update(*[self.ops[one] for one in inner.ops])
            for value in op.operands:
                found.update(self.values.get(value, ()))
            for e in expressions(op):
                found |= symbols(e)
            found -= set(ops.bound_axes(op))
            self.ops[op] = frozenset(found)
            for result in op.results:
                self.values[result] = self.ops[op]

    def _carry(self, op: loop_ops.Recur | loop_ops.Repeat) -> None:
        """What is carried depends on all that any of it begins with or becomes, and on how many
        steps there are."""
        found = frozenset[str]().union(*[self.values.get(v, frozenset()) for v in op.init])
        for region in op.regions:
            self.values.update(dict.fromkeys(region.args, found))
            self._find(region)
            found = found.union(*[self.values.get(v, frozenset()) for v in region.outputs])
        found -= set(ops.bound_axes(op))
        for region in op.regions:
            self.values.update(dict.fromkeys(region.args, found))


def inner_axes(op: Op) -> tuple[Axis, ...]:
    """The axes that an op inside a nest binds."""
    if isinstance(op, (ops.Reduce, ops.Contract)):
        return op.axes
    if isinstance(op, (ops.ArgReduce, ops.Scan, loop_ops.Recur)):
        return (op.axis,)
    return ()


def expressions(op: Op) -> Iterable[Dim]:
    """The index expressions of an op."""
    if isinstance(op, ops.Index):
        yield op.expr
    if isinstance(op, (ops.Load, ops.Store, ops.Scan)):
        yield from op.index
    if isinstance(op, (ops.Load, ops.Store, ops.Holds, ops.ScanFrom)):
        yield from op.where
    for axis in inner_axes(op):
        yield axis.extent
