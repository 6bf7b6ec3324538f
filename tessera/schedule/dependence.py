"""On which axes and dims the scalars of a nest depend, and on each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, substitute, sym, symbols
from tessera.ir.walk import walk
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


def inputs(op: Op) -> Iterator[Value]:
    """What an op needs, its regions included."""
    yield from op.operands
    for region in op.regions:
        yield from region.outputs
        for inner in region.ops:
            yield from inputs(inner)


def behind(code: Sequence[Op], values: Iterable[Value]) -> list[Op]:
    """The ops of some code that compute some values, in order."""
    needed, found = set(values), list[Op]()
    for op in reversed(code):
        if not needed.isdisjoint(op.results):
            found.append(op)
            needed.update(inputs(op))
    return found[::-1]


def only_loop(nest: ops.Nest) -> Op | None:
    """The op of a nest that has a region, a reduction or the like, if there is just one."""
    found = [op for op in nest.body.ops if op.regions]
    return found[0] if len(found) == 1 else None


def needs(value: Value, op: Op) -> bool:
    """Whether a value of the nest is computed from an op's result."""
    stack, seen = [value], set[Value]()
    while stack:
        one = stack.pop()
        if one in seen or one.op is None:
            continue
        seen.add(one)
        if one.op is op:
            return True
        stack.extend(inputs(one.op))
    return False


def is_same(x: Value, y: Value, a: str, b: str) -> bool:
    """Whether two scalars are computed alike, one along axis a and one along axis b."""
    if x is y:
        return True
    p, q = x.op, y.op
    if p is None or q is None or type(p) is not type(q) or p.regions or q.regions:
        return False
    if len(p.operands) != len(q.operands):
        return False
    return _attrs(p, a) == _attrs(q, b) and all(
        is_same(v, w, a, b) for v, w in zip(p.operands, q.operands, strict=True)
    )


def _attrs(op: Op, axis: str) -> dict[str, object]:
    """The attributes of an op, the axis under another name."""
    found = dict(op.attrs)
    for key in ("index", "where"):
        if isinstance(op, ops.Load):
            found[key] = tuple([substitute(e, {axis: sym("$r")}) for e in found[key]])
    return found


def reads_own(nest: ops.Nest, kept: Collection[Value] = ()) -> bool:
    """Whether a nest reads what it writes, other than the element that it writes at a point, which
    the innermost axis tells, and what it has kept itself (`schedule/keeping.py`)."""
    memory = [op for op in walk(nest.body) if isinstance(op, (ops.Load, ops.Store, ops.Scan))]
    written = {op.buf: op.index for op in memory if not isinstance(op, ops.Load)}
    last = nest.axes[-1].name
    return any(
        op.index != written[op.buf] or not any(last in symbols(e) for e in op.index)
        for op in memory
        if isinstance(op, ops.Load) and op.buf in written and op.buf not in kept
    )
