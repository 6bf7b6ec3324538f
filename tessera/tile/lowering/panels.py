"""Products of packed panels: sums go to scratch memory, from where what follows them reads rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tessera.dtypes import int64
from tessera.errors import CompileError
from tessera.ir.core import Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, linear_in, substitute
from tessera.schedule import ops as s
from tessera.schedule.access import offset
from tessera.schedule.grains import even
from tessera.schedule.panel_ops import ContractPanels
from tessera.tile import ops as t
from tessera.tile.lowering.state import Point, State, TileDim, Val
from tessera.tile.panel_ops import GROUP_BYTES, DotPanels
from tessera.tile.scratch_ops import Scratch

PART = 16
"""Steps along the depth that all panels go over, before they go on: what they read of the rows is
two thirds of a first cache."""

Follow = Callable[[Value, TileDim], None]
"""What is done with the sums of rows and a panel, once they are there: it gets a view of them, and
the panel's columns."""


def run(
    low: State, op: ContractPanels, point: Point, store: s.Store | None, follow: Follow
) -> None:
    """Multiplies the rows of a tile with one panel after the other.

    Of several panels all go over a part of the depth, before they go on, so that this part of the
    rows is in the first cache. What follows a panel runs while the next one is multiplied: its
    stores wait for memory, which nothing else needs then. 512 x 3072 x 768 of bytes take a core of
    a Xeon (Emerald Rapids) 2.16 ms by hand, where all that 256 rows have is stored together, 1.63
    after each block of 32, and 1.37 where registers go into the result at once.

    Args:
        low: the lowering.
        op: the product.
        point: rows and columns of the tile.
        store: what alone follows, if it puts the sums where they are wanted.
        follow: what is done with a panel otherwise.
    """
    em = low.em
    rows, cols = point.dims
    em.loc = op.loc
    left, right = [v.op for v in op.body.outputs]
    assert isinstance(left, s.Load) and isinstance(right, s.Load)
    *outer, groups, group = op.axes
    assert isinstance(groups.extent, int) and isinstance(group.extent, int)
    assert group.extent * scalar_dtype(left.result).itemsize == GROUP_BYTES
    names = (rows.name, cols.name, *[axis.name for axis in op.axes])
    first = low.memory[left.buf], em.index(_place(left, names))
    second, second_at = low.memory[right.buf], em.index(_place(right, names))
    width, sums = op.columns, rows.size * op.columns
    panel = prod([axis.extent for axis in op.axes]) * width
    steps = prod([axis.extent for axis in outer])
    zero, one, end = em.const(0, int64), em.const(1, int64), em.index(steps)
    most = cols.size // width
    (room,) = em.add(Scratch(op.dtype, most * sums, loc=em.loc))
    sizes = rows.size, width, groups.extent * group.extent, op.step, op.row
    out, out_at, out_row = room, zero, width
    if store is not None:
        out, out_at = low.memory[store.buf], em.index(_place(store, names))
        out_row = _step(store, rows.name)

    def dot(k: Value, begin: Value, end: Value, is_last: bool) -> Value:
        at = em.map("add", second_at, em.map("mul", k, em.index(panel)))
        waits = em.map("mul", k, em.const(sums, int64))
        to: tuple[Value, Value] = (room, waits)
        if is_last and store is not None:
            to = (out, em.map("add", out_at, em.map("mul", k, em.const(width, int64))))
        places = (*first, second, at, begin, end, room, waits, *to)
        em.add(DotPanels(*places, *sizes, out_row if is_last else width, loc=op.loc))
        return waits

    def last_part(k: Value, begin: Value) -> None:
        at = dot(k, begin, end, True)
        if store is None:
            size = (em.const(rows.size, int64), em.const(width, int64))
            start = em.map("add", cols.start, em.map("mul", k, size[1]))
            view = em.pure(t.View, room, at, size, (size[1], one))
            follow(view, TileDim(cols.name, width, start, cols.extent, cols.checked))

    if most == 1:
        last_part(zero, zero)
        return
    # The last tile may have fewer than others.
    rest = op.panels - _panel_of(right, cols, width)
    count = em.map("min", em.const(most, int64), em.index(rest))
    last = zero
    part = em.const(even(steps, PART, 1) if isinstance(steps, int) and steps else PART, int64)

    def before(begin: Value, _: list[Value]) -> tuple[Value, ...]:
        def each(k: Value, _: list[Value]) -> tuple[Value, ...]:
            dot(k, begin, em.map("add", begin, part), False)
            return ()

        em.loop((zero, count, one), (), each)
        return ()

    def block(k: Value, _: list[Value]) -> tuple[Value, ...]:
        last_part(k, last)
        return ()

    if not isinstance(steps, int) or steps > PART:
        back = em.map("max", em.map("sub", end, one), zero)
        last = em.map("sub", back, em.map("rem", back, part))
        em.loop((zero, last, part), (), before)
    em.loop((zero, count, one), (), block)


def _panel_of(right: s.Load, cols: TileDim, width: int) -> Dim:
    """The first panel of a tile: the place that is another one a panel further on."""
    places = [[substitute(e, {cols.name: n}) for e in right.index] for n in (0, width)]
    (first,) = [a for a, b in zip(*places, strict=True) if a != b]
    return first


def into_result(op: ContractPanels, rest: Sequence[Op], point: Point) -> s.Store | None:
    """What stores a tile as it is, and is all that follows: registers can go there at once."""
    if len(rest) != 1 or not isinstance(rest[0], s.Store):
        return None
    store, (rows, cols) = rest[0], point.dims
    is_plain = not (store.where or store.dyn or store.combine or store.streaming or store.ahead)
    if not is_plain or store.keeps or store.value is not op.result:
        return None
    found = [_step(store, dim.name) for dim in (rows, cols)]
    return store if found[0] > 0 and found[1] == 1 else None


def goes_along_rows(rest: Sequence[Op], point: Point) -> bool:
    """Whether all results run along the rows of a tile, and not along its columns."""
    stores = [op for op in rest if isinstance(op, s.Store)]
    found = [[_step(op, dim.name) for dim in point.dims] for op in stores]
    return bool(found) and all(row == 1 != col for row, col in found)


def _place(op: s.Load | s.Store, names: Sequence[str]) -> Dim:
    """Where what a tile accesses begins, whose axes have some names, in elements."""
    begin: Mapping[str, Dim] = dict.fromkeys(names, 0)
    return substitute(offset(op), begin)


def _step(op: s.Store, name: str) -> int:
    """Elements from one place along an axis to the next; 0 if no number says that."""
    found = linear_in(offset(op), (name,))
    step = found[0][name] if found else 0
    return step if isinstance(step, int) else 0


def contract(low: State, op: ContractPanels, point: Point) -> Val:
    """No value of a tile: what follows its sums reads them row by row."""
    raise CompileError("a product of panels, and no rows of what follows it", loc=op.loc)
