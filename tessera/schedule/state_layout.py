"""How the states that a loop keeps for another one lie in memory.

A loop whose steps are work on single elements carries a few scalars at each point of its nest
(`schedule/recurrence.py`): the state of [batch, channels, 16] is sixteen registers of lanes along
the channels. What is kept of it for the gradient's loop has the components innermost, as the
program says, so each register would be scattered, and gathered again. Where nobody but kernels
touches such a buffer, its components come before what the nest goes over:

    buf<f32[T, B, D, 16]>  ==>  buf<f32[T, B, D, 16], strides [16*B*D, D, 1, B*D]>

A program goes over all steps with some lanes. Where these are whole vectors, all that it keeps lies
together, and it goes through memory from one end to the other:

    buf<f32[T, B, D, 16]>  ==>  buf<f32[B, D // lanes, T + 1, 16, lanes]>

The step that nobody uses keeps blocks from lying at distances of a power of two, where a cache has
room for few lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, Mod, Sym, prod, sym, symbols
from tessera.ir.walk import free_values, walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.axes import split
from tessera.schedule.copying import Copy
from tessera.schedule.machines import Cpu
from tessera.schedule.types import Axis, BufType, buffer_type


def lay_out_states(func: Func, machine: Cpu) -> Func:
    """The program with buffers of states that have their lanes innermost."""
    if not any(isinstance(op, loop_ops.Recur) for op in walk(func.body)):
        return func
    return func.with_body(_block(func.body, {}, machine))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a buffer lies.

    Attributes:
        type: of the buffer before.
        first: the first dim along which lanes run.
        count: how many dims, the last ones, are components.
        lanes: of a vector, if what belongs to one lies together; else 0.
    """

    type: BufType
    first: int
    count: int
    lanes: int

    @property
    def lane(self) -> int:
        """The dim of lanes."""
        return len(self.type.shape) - self.count - 1

    def laid_out(self) -> BufType:
        """The buffer."""
        shape, first, lane = self.type.shape, self.first, self.lane
        if self.lanes:
            steps = [n + 1 if k == 0 else n for k, n in enumerate(shape[:first])]
            vectors = shape[lane] // self.lanes
            found = (*shape[first:lane], vectors, *steps, *shape[lane + 1 :], self.lanes)
            return BufType(found, self.type.dtype)
        order = (*range(first), *range(lane + 1, len(shape)), *range(first, lane + 1))
        strides: list[Dim] = [0] * len(shape)
        step: Dim = 1
        for k in reversed(order):
            strides[k] = step
            step = step * shape[k]
        return BufType(shape, self.type.dtype, tuple(strides))

    def index(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Where an element lies."""
        if not self.lanes:
            return index
        first, lane = self.first, self.lane
        at = index[lane]
        return (
            *index[first:lane], at // self.lanes, *index[:first], *index[lane + 1 :],
            at % self.lanes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Touch:
    """An op that touches a buffer.

    Attributes:
        op: the op.
        axis: of the loop that it is part of.
        scope: the axes of the nest and of its reductions around it; None where tiles have been
            chosen, or others than sums are around it.
    """

    op: Op
    axis: Axis | None
    scope: tuple[Axis, ...] | None


def _block(block: Block, env: dict[Value, Value], machine: Cpu) -> Block:
    """A block of the program."""
    others = [op for op in block.ops if not isinstance(op, ops.Kernel)]
    fixed = {*block.outputs, *free_values(Block([], others, ()))}
    seen: dict[Value, list[Value]] = {}
    touching: dict[Value, list[_Touch]] = {}
    for op in block.ops:
        if isinstance(op, ops.Kernel):
            for value, arg in zip((*op.inputs, *op.results), op.body.args, strict=True):
                seen.setdefault(value, []).append(arg)
            for touch in _touches(op.body, None, ()):
                for value in touch.op.operands:
                    if isinstance(value.type, BufType):
                        touching.setdefault(value, []).append(touch)
    layouts: dict[Value, _Layout] = {}
    for value, args in seen.items():
        if isinstance(value.op, ops.Kernel) and value in value.op.results and value not in fixed:
            found = [one for arg in args for one in touching.get(arg, ())]
            layout = _layout(buffer_type(value), found, machine)
            if layout is not None:
                layouts[value] = layout
    code: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        if isinstance(op, ops.Kernel):
            new = _kernel(op, operands, layouts)
        else:
            new = op.rebuild(operands, [_block(region, env, machine) for region in op.regions])
        env.update(zip(op.results, new.results, strict=True))
        code.append(new)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _touches(
    block: Block, axis: Axis | None, scope: tuple[Axis, ...] | None
) -> Iterator[_Touch]:
    """The ops of a kernel, with what is around them."""
    for op in block.ops:
        yield _Touch(op, axis, scope)
        inner = scope
        if isinstance(op, ops.Nest):
            inner = None if op.tile or scope is None else op.axes
        elif isinstance(op, ops.Reduce):
            inner = None if scope is None or op.order is not None else (*scope, *op.axes)
        elif op.regions and not isinstance(op, loop_ops.Recur):
            inner = None
        for region in op.regions:
            yield from _touches(region, op.axis if isinstance(op, loop_ops.Recur) else axis, inner)


def _layout(type: BufType, touching: list[_Touch], machine: Cpu) -> _Layout | None:
    """How a buffer should lie; None where it should stay as it is."""
    found: dict[tuple[int, int], set[tuple[Dim, ...]]] = {}
    for touch in touching:
        op, axis = touch.op, touch.axis
        if not isinstance(op, (ops.Load, ops.Store, ops.Scan)):
            return None
        rank, index = len(op.index), op.index
        count = next((k for k, e in enumerate(reversed(index)) if not isinstance(e, int)), rank)
        if axis is None or not 0 < count < rank:
            continue
        first = rank - count
        while first and symbols(index[first - 1]) and axis.name not in symbols(index[first - 1]):
            first -= 1
        found.setdefault((first, count), set()).add(index[-count:])
    if len(found) != 1:
        return None
    (((first, count), components),) = found.items()
    lane = len(type.shape) - count - 1
    if len(components) != prod(type.shape[-count:]) or first > lane:
        return None
    lanes, width = machine.vector_bits // type.dtype.bits, type.shape[lane]
    whole = isinstance(width, int) and lanes > 1 and width % lanes == 0 and width > lanes
    whole = whole and first > 0 and isinstance(type.shape[0], int)
    if whole and all(_has_lanes(touch, lane, width) for touch in touching):
        return _Layout(type, first, count, lanes)
    return _Layout(type, first, count, 0)


def _has_lanes(touch: _Touch, lane: int, width: Dim) -> bool:
    """Whether lanes of a tile are neighbours along a dim: its index is an axis that can be split,
    or the last digit of one."""
    op = touch.op
    if not isinstance(op, (ops.Load, ops.Store)) or touch.scope is None or op.dyn:
        return False
    at = op.index[lane]
    if isinstance(at, Sym):
        return any(axis.name == at.name and axis.extent == width for axis in touch.scope)
    return isinstance(at, Mod) and isinstance(at.num, Sym) and at.den == width


def _kernel(
    op: ops.Kernel, operands: list[Value], layouts: Mapping[Value, _Layout]
) -> Op:
    """A kernel on buffers that lie in other ways."""
    values = (*op.inputs, *op.results)
    if layouts.keys().isdisjoint(values):
        return op.rebuild(operands, op.regions)
    inner: dict[Value, Value] = {}
    moved: dict[Value, _Layout] = {}
    for value, arg in zip(values, op.body.args, strict=True):
        layout = layouts.get(value)
        inner[arg] = Value(layout.laid_out() if layout else arg.type, arg.name)
        if layout is not None:
            moved[arg] = layout
    types = [layouts[v].laid_out() if v in layouts else buffer_type(v) for v in op.results]
    args = list(inner.values())
    body = Block(args, [_moved(one, inner, moved) for one in op.body.ops], ())
    return op.rebuild(operands, [body], types=tuple(types))


def _moved(op: Op, env: dict[Value, Value], layouts: Mapping[Value, _Layout]) -> Op:
    """An op on the buffers."""
    regions: list[Block] = []
    for region in op.regions:
        args = [Value(arg.type, arg.name) for arg in region.args]
        env.update(zip(region.args, args, strict=True))
        code = [_moved(one, env, layouts) for one in region.ops]
        regions.append(Block(args, code, [env.get(v, v) for v in region.outputs]))
    changes: dict[str, object] = {}
    if isinstance(op, (ops.Load, ops.Store)) and op.buf in layouts:
        changes["index"] = layouts[op.buf].index(op.index)
    new = op.rebuild([env.get(v, v) for v in op.operands], regions, **changes)
    touched = [one for one in walk(Block((), [op], ())) if isinstance(one, (ops.Load, ops.Store))]
    blocked = [(one, layouts[one.buf]) for one in touched if one.buf in layouts]
    if isinstance(op, ops.Reduce):
        new = _split_sum(new, {_lane_name(one, of): of.lanes for one, of in blocked if of.lanes})
    if isinstance(new, ops.Nest) and any(of.lanes for _, of in blocked):
        new = split(new, Facts())
    env.update(zip(op.results, new.results, strict=True))
    return new


def _lane_name(op: ops.Load | ops.Store, layout: _Layout) -> str:
    """The axis along which lanes run."""
    return next(iter(symbols(op.index[layout.lane])), "")


def _split_sum(op: Op, lanes: Mapping[str, int]) -> Op:
    """A reduction whose axes are split into vectors and lanes."""
    assert isinstance(op, ops.Reduce)
    axes: list[Axis] = []
    mapping: dict[str, Dim] = {}
    for axis in op.axes:
        size = lanes.get(axis.name)
        if size is None:
            axes.append(axis)
            continue
        first, second = Axis(f"{axis.name}a", axis.extent // size), Axis(f"{axis.name}b", size)
        axes += [first, second]
        mapping[axis.name] = sym(first.name) * size + sym(second.name)
    if not mapping:
        return op
    copy = Copy(mapping)
    return op.rebuild(op.operands, [copy.block(op.body)], axes=tuple(axes))
