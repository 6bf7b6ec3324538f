"""What follows a product, row by row.

A tile of a product takes up most registers. What follows it keeps values of its own, and written
out for all rows at once it waits for memory at every step, in code that is as many times as long.
Long code is written down once, in a loop over rows that reads them from scratch memory, where
registers for matrices leave them anyway.

    c[6, 64] = sums of products             c[6, 64] = sums of products
    store gelu(c[6, 64] + b[64])    ==>     for r in 0 .. 6:
                                                store gelu(c[r, 64] + b[64])

Where results run along the rows, what registers for matrices leave is turned before that.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, int64
from tessera.ir.core import Op, Value, scalar_dtype
from tessera.schedule import lengths
from tessera.schedule import ops as s
from tessera.schedule.copying import POINTWISE
from tessera.schedule.dependence import behind
from tessera.schedule.panel_ops import ContractPanels
from tessera.tile import ops as t
from tessera.tile.lowering import panels
from tessera.tile.lowering.state import Point, State, TileDim, Val
from tessera.tile.ops import tile_type
from tessera.tile.scratch_ops import Scratch

LONG = 20
"""Instructions for a vector that are too many for all rows at once. Of 20 to 50, as `exp` and
`tanh` have, a Zen 4 takes 0.95 to 1.0 of the time row by row, 16 threads of a Xeon (Emerald Rapids)
0.9 to 1.0, a Zen 5 up to 1.03, and the first call of a product 24 to 28 ms rather than 36 to 56."""

LONG_ROUNDED = 52
"""The same where values of fewer bits are computed, which are rounded at each step: of the 36 of
`max(x @ y + b, 0)` in bfloat16 a Zen 4 takes 1.02 to 1.12 of the time row by row."""

SQUARE = 16
"""Sums along the sides of what is turned."""


def product_of(ops: Sequence[Op]) -> int | None:
    """The place of a product whose tiles are gone through row by row; None if there is none."""
    found = [k for k, op in enumerate(ops) if isinstance(op, s.Contract)]
    if len(found) != 1 or scalar_dtype(ops[found[0]].result).is_complex:
        return None
    rest = ops[found[0] + 1 :]
    if not all(isinstance(op, POINTWISE) for op in (*ops[: found[0]], *rest)):
        return None
    is_rounded = any(isinstance(op, s.Cast) and op.dtype.bits < 32 for op in rest)
    most = LONG_ROUNDED if is_rounded else LONG
    is_there = isinstance(ops[found[0]], ContractPanels)
    return found[0] if is_there or lengths.of(rest) >= most else None


def run(low: State, ops: Sequence[Op], at: int, point: Point) -> None:
    """Evaluates ops at a tile of rows and columns.

    Args:
        low: the lowering.
        ops: the ops.
        at: the place of the product among them.
        point: the tile.
    """
    product, (rows, cols) = ops[at], point.dims
    low.run(ops[:at], point)
    rest = ops[at + 1 :]
    rest = [*behind(ops[:at], [v for op in rest for v in op.operands]), *rest]
    before = dict(low.env)

    def follow(view: Value, cols: TileDim) -> None:
        _run_rows(low, rest, product.result, view, (rows, cols))

    def follow_turned(view: Value, cols: TileDim) -> None:
        turned = _turned(low, view, scalar_dtype(product.result), (rows, cols))
        _run_rows(low, rest, product.result, turned, (cols, rows))

    if isinstance(product, ContractPanels):
        store = panels.into_result(product, rest, point)
        is_turned = store is None and panels.goes_along_rows(rest, point)
        panels.run(low, product, point, store, follow_turned if is_turned else follow)
    else:
        low.run([product], point)
        value = low.env[product.result]
        if value.shape != point.shape or value.names != point.names:
            low.run(ops[at + 1 :], point)
            return
        follow(_stored(low, value.parts[0], point), cols)
    low.env = before


def _run_rows(
    low: State, code: Sequence[Op], sums: Value, view: Value, dims: tuple[TileDim, TileDim]
) -> None:
    """Runs what follows sums for one row of them after the other.

    Args:
        low: the lowering.
        code: what follows.
        sums: the scalar that they are there.
        view: of them.
        dims: their rows and columns.
    """
    em, (rows, cols) = low.em, dims
    zero, one, height = [em.const(k, int64) for k in (0, 1, rows.size)]

    def row(k: Value, _: list[Value]) -> tuple[Value, ...]:
        line = em.pure(t.Load, view, (k, zero), (), (1, cols.size))
        low.env[sums] = Val((em.reshape(line, (cols.size,)),), (cols.name,))
        with em.bound({rows.name: em.map("add", rows.start, k)}):
            low.run(code, Point((cols,)))
        return ()

    em.loop((zero, height, one), (), row)


def _turned(low: State, view: Value, dtype: DType, dims: tuple[TileDim, TileDim]) -> Value:
    """A view of sums in other memory, where their columns are rows; squares are turned in
    registers."""
    em, (rows, cols) = low.em, dims
    zero, one, side, height = [em.const(k, int64) for k in (0, 1, SQUARE, rows.size)]
    (room,) = em.add(Scratch(dtype, rows.size * cols.size, loc=em.loc))
    whole = em.const(rows.size // SQUARE * SQUARE, int64)
    to = em.pure(t.View, room, zero, (height, em.const(cols.size, int64)), (one, height))

    def strip(first: Value, count: int) -> tuple[Value, ...]:
        for at in range(0, cols.size, SQUARE):
            place = first, em.const(at, int64)
            square = em.pure(t.Load, view, place, (), (count, min(SQUARE, cols.size - at)))
            em.add(t.Store(to, square, place, (), loc=em.loc))
        return ()

    em.loop((zero, whole, side), (), lambda k, _: strip(k, SQUARE))
    if rows.size % SQUARE:
        strip(whole, rows.size % SQUARE)
    return em.pure(t.View, room, zero, (em.const(cols.size, int64), height), (height, one))


def _stored(low: State, tile: Value, point: Point) -> Value:
    """A view of a tile that is put into scratch memory."""
    em, (rows, cols) = low.em, point.dims
    zero, one, height, width = [em.const(k, int64) for k in (0, 1, rows.size, cols.size)]
    (room,) = em.add(Scratch(tile_type(tile).dtype, rows.size * cols.size, loc=em.loc))
    view = em.pure(t.View, room, zero, (height, width), (width, one))
    em.add(t.Store(view, tile, (zero, zero), (), loc=em.loc))
    return view
