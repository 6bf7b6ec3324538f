"""Values of a row that are kept, where each of several passes over the row needs them.

    s = sum over r of exp(x[i, r] - m)              s = sum over r of y[i, r] := exp(x[i, r] - m)
    y[i, j] = exp(x[i, j] - m) / s           ==>    y[i, j] = y[i, j] / s

The row of the result has room for them until the last pass writes it: it is in the first cache, so
what is there costs far less than an exponential. A store of a nest whose buffer is used so is
marked with `keeps`; `expanded` writes down what that means, for the lowering. A row of a result
that goes past the caches has none, so what is kept has a row of scratch memory, the same one for
row after row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, linear_in, substitute, sym, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops, streaming
from tessera.schedule.access import accesses
from tessera.schedule.dependence import Dependence, inputs, is_same, reads_own
from tessera.schedule.emit import without_dead
from tessera.schedule.machines import Cpu
from tessera.schedule.types import Axis, BufType

LEAST_COST = 12
"""Additions that a value costs which is worth the room."""

SCRATCH = 1 << 13
"""Bytes of a row of scratch memory: rows of what is read need the rest of the first cache."""

LONGEST_ROW = 1 << 17
"""A row of more elements leaves the second cache between two passes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of rows that is kept.

    Attributes:
        first: the reduction whose pass computes it.
        inside: the value there.
        store: the store whose buffer holds it, unless that goes past the caches.
        axis: the axis of the nest along which rows run.
    """

    first: ops.Reduce
    inside: Value
    store: ops.Store
    axis: Axis


@dataclass(frozen=True, slots=True)
class Room:
    """Where a value is kept.

    Attributes:
        buf: the memory.
        index: the element for a point of the nest.
    """

    buf: Value
    index: tuple[Dim, ...]


def find(nest: ops.Nest, stores: Iterable[ops.Store] | None = None) -> Kept | None:
    """A value that the pass of a reduction along rows computes, and so does what comes after it.

    Args:
        nest: a nest over rows.
        stores: the stores whose buffers may hold it; all that fit where nothing is said.
    """
    body = nest.body
    reductions = [op for op in body.ops if isinstance(op, ops.Reduce)]
    if not nest.axes or not reductions or not _is_flat(body):
        return None
    axis = nest.axes[-1]
    if nest.ordered and (axis.name in nest.ordered or reads_own(nest)):
        return None
    if isinstance(axis.extent, int) and axis.extent > LONGEST_ROW:
        return None
    dependence = Dependence(body)
    if any(axis.name in dependence.ops[op] for op in reductions):
        return None
    elements = [op for op in body.ops if axis.name in dependence.ops[op]]
    rooms = list(_rooms(nest, elements) if stores is None else stores)
    for op in reductions:
        if len(op.axes) != 1 or op.axes[0].extent != axis.extent:
            continue
        best, most = None, LEAST_COST - 1
        for inside in op.body.ops:
            cost = _cost(inside, dependence, op.axes[0].name)
            if not isinstance(inside, ops.Map) or cost <= most:
                continue
            at = _again(inside.result, elements, op.axes[0].name, axis.name)
            room = next((s for s in rooms if _fits(s, inside.result, at, elements)), None)
            if room is not None:
                best, most = Kept(op, inside.result, room, axis), cost
        if best is not None:
            return best
    return None


def _is_flat(body: Block) -> bool:
    """Whether the only loops in a body are reductions, with none inside them."""
    loops = [op for op in body.ops if op.regions]
    inner = [one for op in loops for region in op.regions for one in region.ops]
    return all(isinstance(op, ops.Reduce) for op in loops) and not any(x.regions for x in inner)


def _rooms(nest: ops.Nest, elements: Sequence[Op]) -> Iterator[ops.Store]:
    """Stores of whole rows to buffers that nothing else in the nest touches."""
    counts: dict[Value, int] = {}
    for op in walk(nest.body):
        if isinstance(op, (ops.Load, ops.Store, ops.Scan)):
            counts[op.buf] = counts.get(op.buf, 0) + 1
    for op in elements:
        if not isinstance(op, ops.Store) or op.where or op.dyn or op.combine is not None:
            continue
        if counts[op.buf] == 1 and _is_of_points(op, nest):
            yield op


def _is_of_points(store: ops.Store, nest: ops.Nest) -> bool:
    """Whether elements of different points are different: each axis moves an index of its own, or
    goes further in memory than all that go by smaller steps."""
    own = {axis.name for axis in nest.axes}
    moved: list[str] = []
    for e in store.index:
        names = symbols(e) & own
        if not names:
            continue
        affine = linear_in(e, tuple(names))
        if len(names) != 1 or affine is None or set(affine[0].values()) != {1}:
            return _goes_further(store, nest)
        moved += names
    return sorted(moved) == sorted(own)


def _goes_further(store: ops.Store, nest: ops.Nest) -> bool:
    """Whether each axis goes by as many elements as those of smaller steps reach, and more."""
    (access,) = [one for one in accesses(nest) if one.op is store]
    steps = [(access.stride(axis.name), axis.extent) for axis in nest.axes]
    known = [(step, n) for step, n in steps if isinstance(step, int) and isinstance(n, int)]
    reach = 0
    for step, extent in sorted(known):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return len(known) == len(steps)


def _fits(store: ops.Store, value: Value, at: int, elements: Sequence[Op]) -> bool:
    """Whether a value that an op computes again may wait for it where a store will write."""
    return 0 <= at < elements.index(store) and store.value.type == value.type


def _again(value: Value, elements: Sequence[Op], inner: str, outer: str) -> int:
    """The place of the op that computes the same for an element of the row; -1 without one."""
    for k, op in enumerate(elements):
        if op.results and is_same(value, op.results[0], inner, outer):
            return k
    return -1


def _cost(op: Op, dependence: Dependence, axis: str) -> int:
    """Additions that an element of a row costs."""
    seen: set[Op] = set()
    stack, total = [op], 0
    while stack:
        one = stack.pop()
        if one in seen or axis not in dependence.ops.get(one, ()):
            continue
        seen.add(one)
        total += one.fn.cost if isinstance(one, ops.Map) else 1
        stack += [v.op for v in one.operands if v.op is not None]
    return total


def marked(nest: ops.Nest, machine: Cpu, down: bool = False) -> ops.Nest:
    """The nest with `keeps` on the store whose buffer is of use; as it is where none is. The last
    pass computes little then, so that memory bounds it.

    Args:
        nest: the nest.
        machine: the CPU.
        down: whether threads go down rows, far apart, of which each has some columns.
    """
    kept = find(nest)
    if kept is None:
        return nest
    code = list(nest.body.ops)
    at = code.index(kept.store)
    past = streaming.marked(nest, machine, down)[at]
    assert isinstance(past, ops.Store)
    part = past.streaming if _has_scratch(nest, kept) else 0
    code[at] = past.rebuild(keeps=True, streaming=part)
    new = nest.rebuild(regions=[Block((), code, ())])
    assert isinstance(new, ops.Nest)
    return new


def _has_scratch(nest: ops.Nest, kept: Kept) -> bool:
    """Whether a row of what is kept may be scratch memory: rows go one by one."""
    assert isinstance(kept.store.buf.type, BufType)
    length, size = kept.axis.extent, kept.store.buf.type.dtype.itemsize
    return isinstance(length, int) and length * size <= SCRATCH and set(nest.tile[:-1]) <= {1}


def expanded(nest: ops.Nest) -> tuple[ops.Nest, Value | None]:
    """The nest with the stores and loads that `keeps` stands for, and scratch memory that it uses,
    one row."""
    stores = [op for op in nest.body.ops if isinstance(op, ops.Store) and op.keeps]
    kept = find(nest, stores) if stores else None
    if kept is None:
        return nest, None
    scratch = _scratch(kept) if kept.store.streaming else None
    room = (
        Room(scratch, (sym(kept.axis.name),)) if scratch else Room(kept.store.buf, kept.store.index)
    )
    levels = _levels(nest.body)
    at = nest.body.ops.index(kept.first)
    dependence = Dependence(nest.body)
    # No reduction needs what belongs to an element: the last pass computes it, wherever it stands.
    late = [op for op in nest.body.ops[:at] if kept.axis.name in dependence.ops[op]]
    code = [op for op in nest.body.ops[:at] if kept.axis.name not in dependence.ops[op]]
    code.append(_storing(kept, room))
    env = {kept.first.result: code[-1].results[0]}
    for op in (*late, *nest.body.ops[at + 1 :]):
        code.append(_loading(op, kept, room, levels, env))
        env.update(zip(op.results, code[-1].results, strict=True))
    new = nest.rebuild(regions=[Block((), without_dead(code), ())])
    assert isinstance(new, ops.Nest)
    return new, scratch


def _scratch(kept: Kept) -> Value:
    """Memory of one row."""
    assert isinstance(kept.store.buf.type, BufType)
    return Value(BufType((kept.axis.extent,), kept.store.buf.type.dtype))


def _place(kept: Kept, room: Room, axis: str) -> tuple[Dim, ...]:
    """Where an element is kept."""
    return tuple([substitute(e, {kept.axis.name: sym(axis)}) for e in room.index])


def _storing(kept: Kept, room: Room) -> Op:
    """The reduction whose pass computes the value, which it stores."""
    (body,) = kept.first.regions
    index = _place(kept, room, kept.first.axes[0].name)
    store = ops.Store(room.buf, kept.inside, (), index, keeps=True, loc=kept.store.loc)
    at = 1 + next(k for k, op in enumerate(body.ops) if op is kept.inside.op)
    code = [*body.ops[:at], store, *body.ops[at:]]
    return kept.first.rebuild(regions=[Block((), code, body.outputs)])


def _levels(body: Block) -> dict[Op, int]:
    """By op, how many passes over the row must have ended before it can run."""
    levels: dict[Op, int] = {}
    ready: dict[Value, int] = {}
    for op in body.ops:
        levels[op] = max([ready.get(v, 0) for v in inputs(op)], default=0)
        own = isinstance(op, ops.Reduce) and len(op.axes) == 1
        ready.update(dict.fromkeys(op.results, levels[op] + own))
    return levels


def _loading(
    op: Op, kept: Kept, room: Room, levels: Mapping[Op, int], env: Mapping[Value, Value]
) -> Op:
    """An op behind that reduction, which takes the value from where it is kept."""
    operands = [env.get(v, v) for v in op.operands]
    if isinstance(op, ops.Reduce):
        axis = op.axes[0]
        # One that is ready as early shares the pass of the first, and what it computes.
        reads = len(op.axes) == 1 and levels[op] > levels[kept.first]
        inner = dict(env)
        code: list[Op] = []
        for one in op.body.ops:
            found = _replaced(one, kept, room, axis.name) if reads else None
            code.append(found or one.rebuild([inner.get(v, v) for v in one.operands]))
            inner.update(zip(one.results, code[-1].results, strict=True))
        outputs = [inner.get(v, v) for v in op.body.outputs]
        return op.rebuild(operands, [Block((), code, outputs)])
    return _replaced(op, kept, room, kept.axis.name) or op.rebuild(operands, op.regions)


def _replaced(op: Op, kept: Kept, room: Room, axis: str) -> Op | None:
    """The load that stands for an op."""
    inner = kept.first.axes[0].name
    if not isinstance(op, ops.Map) or not is_same(kept.inside, op.result, inner, axis):
        return None
    return ops.Load(room.buf, (), _place(kept, room, axis), loc=op.loc)
