"""Stores of a nest over rows that write all columns of an array: as one tile on a CPU.

    nest i: store y[i, 0] = f; store y[i, 1] = g; store y[i, 2] = h

A tile of `i` is a vector of each column. Their lanes are put in the order of memory, and written as
whole vectors, instead of every third element of a line at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.ir.core import Block, Op, Value
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.schedule.types import BufType
from tessera.tile import ops as t
from tessera.tile.lane_ops import Stack
from tessera.tile.lowering import access

if TYPE_CHECKING:
    from tessera.tile.lowering.state import Point, State


def columns_of(body: Block) -> dict[Op, Sequence[s.Store]]:
    """For each store of a body that writes a column, the stores of all columns in order, whose last
    one in the body writes them."""
    read = {op.buf for op in walk(body) if isinstance(op, s.Load)}
    rows: dict[tuple[Value, tuple[object, ...]], list[s.Store]] = {}
    for op in body.ops:
        if isinstance(op, s.Store) and _is_plain(op) and op.buf not in read:
            rows.setdefault((op.buf, op.index[:-1]), []).append(op)
    found: dict[Op, Sequence[s.Store]] = {}
    for (buf, _), stores in rows.items():
        assert isinstance(buf.type, BufType)
        if len(stores) > 1 and [op.index[-1] for op in stores] == list(range(buf.type.shape[-1])):
            found.update(dict.fromkeys(stores, stores))
    return found


def _is_plain(op: s.Store) -> bool:
    """Whether a store writes all elements of its tile, of a real dtype, without conditions."""
    assert isinstance(op.buf.type, BufType)
    if op.where or op.dyn or op.combine is not None or op.keeps or op.buf.type.dtype.is_complex:
        return False
    is_known = isinstance(op.least, int) and op.buf.type.element_strides()[-1:] == (1,)
    return is_known and isinstance(op.index[-1], int)


def store(low: State, op: s.Store, point: Point) -> None:
    """A store; those of all columns together, at the last one of them."""
    stores = low.columns.get(op)
    if stores is None:
        access.store(low, op, point)
    elif op is stores[-1] and not _write_rows(low, stores, point):
        for one in stores:
            access.store(low, one, point)


def _write_rows(low: State, stores: Sequence[s.Store], point: Point) -> bool:
    """Writes the columns as one tile, if rows follow each other along the only dim of the point."""
    em, first, count = low.em, stores[0], len(stores)
    address = access.address_of(low, first.buf, first.index, (), point)
    if low.is_block or len(point.dims) != 1 or address.coefs is None:
        return False
    (dim,) = point.dims
    if dim.size < count or dim.count is not None or address.coefs[dim.name] != count:
        return False
    full = (dim.size,)
    values = [low.get(one.value, point) for one in stores]
    rows = [em.reshape(low.spread(value, full, 1)[0], (1, *full)) for value in values]
    value = em.pure(Stack, tuple(rows), (count, *full))
    offset = em.index(address.rest, low.leaf(point, ()))
    sizes, strides = (em.index(count), em.index(dim.extent)), (em.index(1), em.index(count))
    view = em.pure(t.View, low.memory[first.buf], offset, sizes, strides)
    check = (1,) if dim.checked else ()
    em.add(t.Store(view, value, (em.index(0), dim.start), (), check, first.streaming, loc=em.loc))
    return True
