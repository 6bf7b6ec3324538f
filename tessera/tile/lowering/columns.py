"""Loads and stores of columns: as one tile on a CPU (`schedule/column_access.py`).

    nest i: store y[i, 0] = f(x[i, 1]); store y[i, 1] = g(x[i, 0]); store y[i, 2] = h(x[i, 0])

A tile of `i` is a vector of each column. Rows are read and written as whole vectors, whose lanes
are put in order, instead of every third element of a line at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Value
from tessera.schedule import ops as s
from tessera.schedule.column_access import count_of
from tessera.tile import ops as t
from tessera.tile.lane_ops import Row, Stack
from tessera.tile.lowering import access
from tessera.tile.lowering.state import Point, State, Val


def load(low: State, op: s.Load, point: Point) -> Val:
    """A load; that of a column picks it from rows."""
    is_column = op in low.columns.loads and op.buf not in low.written
    view = _rows_at(low, op, point) if is_column else None
    if view is None or point.dims[0].checked:
        return access.load(low, op, point)
    (dim,), column = point.dims, op.index[-1]
    assert isinstance(column, int)
    coords, shape = (low.em.index(0), dim.start), (count_of(op.buf), dim.size)
    rows = access.read(low, op, view, coords, (), shape, (), 0)
    return Val((low.em.pure(Row, rows, column),), point.names)


def store(low: State, op: s.Store, point: Point) -> None:
    """A store; those of all columns together, at the last one of them."""
    stores = low.columns.stores.get(op)
    if stores is None:
        access.store(low, op, point)
    elif op is stores[-1] and not _write_rows(low, stores, point):
        for one in stores:
            access.store(low, one, point)


def _rows_at(low: State, op: s.Load | s.Store, point: Point) -> Value | None:
    """A view of an array's columns and rows, if rows follow each other along the only dim of the
    point, and a tile has more of them than there are columns."""
    em, count = low.em, count_of(op.buf)
    if len(point.dims) != 1:
        return None
    (dim,) = point.dims
    if dim.size < count or dim.count is not None:
        return None
    address = access.address_of(low, op.buf, (*op.index[:-1], 0), (), point)
    if address.coefs is None or address.coefs[dim.name] != count:
        return None
    offset = em.index(address.rest, low.leaf(point, ()))
    sizes, strides = (em.index(count), em.index(dim.extent)), (em.index(1), em.index(count))
    return em.pure(t.View, low.memory[op.buf], offset, sizes, strides)


def _write_rows(low: State, stores: Sequence[s.Store], point: Point) -> bool:
    """Writes the columns as one tile, if it can be done."""
    em, first = low.em, stores[0]
    view = _rows_at(low, first, point)
    if view is None:
        return False
    (dim,) = point.dims
    full = (dim.size,)

    def action(streaming: int) -> tuple[Value, ...]:
        em.add(t.Store(view, value, coords, (), check, streaming, loc=em.loc))
        return ()

    values = [low.get(one.value, point) for one in stores]
    rows = [em.reshape(low.spread(value, full, 1)[0], (1, *full)) for value in values]
    value = em.pure(Stack, tuple(rows), (len(stores), *full))
    coords, check = (em.index(0), dim.start), (1,) if dim.checked else ()
    access.past_caches(low, first, point, action)
    return True
