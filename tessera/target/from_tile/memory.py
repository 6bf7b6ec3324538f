"""The CPU lowering of memory access: addresses, masks, loads, stores, gathers, scatters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tessera.dtypes import int32, int64
from tessera.ir.core import Value
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.from_tile.boxes import Box
from tessera.target.from_tile.lowering import (
    Lowering,
    Rows,
    View,
    constant_of,
    is_power,
    row_type,
)
from tessera.target.from_tile.parting import Part, halved, joined, parted
from tessera.target.prefetch_ops import Prefetch
from tessera.target.types import VecType
from tessera.tile import ops as tile
from tessera.tile import prefetch_ops
from tessera.tile.types import MemType

CLOSE = 16
"""Elements so far apart are picked from vectors of their neighbours; a gather takes a cycle or two
for each. Every 8th float32 of rows of 1024 takes 0.6 of a gather's time (Zen 5), int8 a fifth."""

CLOSE_SOME = 64
"""Bits of what is picked so under a mask, but for every second element: parts of complex64 take an
eighth of a gather's time, every 4th or 8th byte a quarter or half of it. Every 4th float64 takes
three to five times as long (Zen 4), as vectors lie where nothing is read."""

CLOSE_BYTES = 96
"""The same in bytes: vectors read all lines, also where elements lie in every second one. For every
12th float64 they take as long as gathers in the second cache, half as long in memory; for every
16th, 1.2 to 1.5 times as long."""

LEAST_SIDE = 4
"""Blocks with fewer rows or columns are stored as they are, element by element."""

LEAST_LOADED = 3
"""The same of loads."""

GROUP_BITS = 32
"""What a product of groups takes as it lies in memory: four bytes, or two numbers of 16 bits."""


def view(s: Lowering, op: tile.View) -> None:
    """A window: only its parts are kept."""
    assert isinstance(op.mem.type, MemType)
    s.env[op.result] = View(
        s.ptr(op.mem),
        op.mem.type.dtype,
        s.scalar(op.offset),
        tuple([s.scalar(v) for v in op.sizes]),
        tuple([s.scalar(v) for v in op.strides]),
    )


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape[:-1])))


def _runs_along_columns(view: View) -> bool:
    """Whether neighbours in memory, in either direction, are of one column."""
    return constant_of(view.strides[0]) in (1, -1) and constant_of(view.strides[1]) not in (1, -1)


def _turned_side(view: View, shape: tuple[int, ...]) -> int:
    """The side of the squares in which a block is turned as it is stored, since memory runs along
    its columns; 0 where it is not."""
    if len(shape) != 2 or not is_power(shape[1]) or min(shape) < LEAST_SIDE:
        return 0
    if not _runs_along_columns(view):
        return 0
    return min(1 << (shape[0] - 1).bit_length(), shape[1])


def _store_turned(s: Lowering, op: tile.Store, view: View, value: Rows, side: int) -> None:
    """Stores a block by squares, of which the last ones may lack rows."""
    rows, columns = value.shape
    for row in range(0, rows, side):
        count = min(side, rows - row)
        present = _first_lanes(s, count, side)
        for column in range(0, columns, side):
            picks = range(column, column + side)
            square = [s.pick(x, picks) for x in value.values[row : row + count]]
            square += square[-1:] * (side - count)
            box = _turned(s, view, op.coords, (side, side), op.check, (row, column))
            for k, line in enumerate(s.turn(square)):
                _store_row(s, box, (k,), line, present, op.streaming)


def _turned(
    s: Lowering,
    view: View,
    coords: Sequence[Value],
    shape: tuple[int, ...],
    check: Sequence[int],
    start: Sequence[int] = (),
) -> Box:
    """The box with its two dims exchanged; it begins at `start` behind the coordinates."""
    other = View(view.ptr, view.dtype, view.offset, view.sizes[::-1], view.strides[::-1])
    return Box(s, other, coords[::-1], shape, [1 - k for k in check], start[::-1])


def _is_mixed(view: View, shape: tuple[int, ...]) -> bool:
    """Whether rows lie mixed, one element of each after the other: the parts of complex numbers."""
    if len(shape) < 2 or shape[-1] == 1:
        return False
    if not is_power(shape[0]) and (len(shape) > 2 or not 1 < shape[0] <= shape[1]):
        return False
    return (constant_of(view.strides[0]), constant_of(view.strides[-1])) == (1, shape[0])


def _rows_inside(s: Lowering, view: View, op: tile.Load | tile.Store, rows: int) -> int:
    """How many rows of a box are inside the view; 0 where code has to find out."""
    if 0 not in op.check:
        return rows
    left = constant_of(s.map("sub", view.sizes[0], s.scalar(op.coords[0])))
    return 0 if left is None else max(min(left, rows), 0)


def _load_mixed(s: Lowering, op: tile.Load, view: View, count: int) -> None:
    """Rows that lie mixed, the first `count` of a box: one vector, whose elements are picked."""
    rows, lanes = op.shape
    start = Box(s, view, op.coords, op.shape, ()).base
    if not is_power(count) or count < rows:
        found = parted(s, view, start, count, lanes)
        assert not isinstance(op.fill, complex)
        outside = s.const(op.fill, VecType(lanes, view.dtype))
        s.define(op.result, [*found, *[outside] * (rows - count)])
        return
    if count * view.dtype.bits > GROUP_BITS and count > 2:
        s.define(op.result, halved(s, view, start, count, lanes))
        return
    type = VecType(count * lanes, view.dtype)
    mixed = s.emit(t.Load(view.ptr, start, (), type, loc=s.loc))
    if count > 2:
        values = halved(s, view, start, count, lanes)
    else:
        picks = [tuple(range(k, count * lanes, count)) for k in range(count)]
        values = [s.emit(t.Shuffle(mixed, mixed, pick, loc=s.loc)) for pick in picks]
    s.env[op.result] = Rows(op.shape, view.dtype, tuple(values), mixed)


def _store_parted(s: Lowering, op: tile.Store, view: View, value: Rows, count: int) -> None:
    """The reverse of `parted`."""
    lanes = value.lanes
    start = Box(s, view, op.coords, value.shape, ()).base
    for k in range(count):
        numbers = range(k * lanes, (k + 1) * lanes)
        parts: list[Part] = []
        for row, vector in enumerate(value.values[:count]):
            own = {at % lanes: at // count for at in numbers if at % count == row}
            parts.append((vector, own))
        mixed = joined(s, parts, lanes)
        at = s.map("add", start, s.index(k * lanes))
        s.emit(t.Store(view.ptr, at, mixed, (), 0, op.streaming, loc=s.loc))


def _store_mixed(s: Lowering, op: tile.Store, view: View, value: Rows) -> None:
    """Rows that lie mixed: vectors of elements of all of them."""
    box = Box(s, view, op.coords, value.shape, op.check)
    count = value.shape[0]
    inner = _indices(value.shape[1:])
    for k, index in enumerate(inner):
        mixed = s.mix([value.values[part * len(inner) + k] for part in range(count)])
        mask = box.mask((0, *index), None)
        masks = () if mask is None else (s.mix([mask] * count),)
        streaming = 0 if masks else op.streaming
        at = box.offset((0, *index))
        s.emit(t.Store(view.ptr, at, mixed, masks, 0, streaming, loc=s.loc))


def _has_groups(view: View, op: tile.Load) -> bool:
    """Whether a box is a square that runs along its columns, whose rows are in order by their
    places in groups."""
    if len(op.shape) != 3 or op.mask or op.check:
        return False
    size, count, lanes = op.shape
    if size * count != lanes or not is_power(lanes):
        return False
    first, second, last = [constant_of(stride) for stride in view.strides]
    return (first, second) == (1, size) and last != 1


def _load_groups(s: Lowering, op: tile.Load, view: View) -> None:
    """Such a square is turned in registers."""
    size, count, lanes = op.shape
    start, type = Box(s, view, op.coords, op.shape, ()).base, VecType(lanes, view.dtype)
    steps = [s.map("mul", s.index(k), view.strides[-1]) for k in range(lanes)]
    places = [s.map("add", start, step) for step in steps]
    rows = s.turn([s.emit(t.Load(view.ptr, at, (), type, loc=s.loc)) for at in places])
    s.define(op.result, [rows[k * size + g] for g in range(size) for k in range(count)])


def load(s: Lowering, op: tile.Load) -> None:
    """A box of elements."""
    view = s.env[op.view]
    assert isinstance(view, View) and not isinstance(op.fill, complex)
    if _has_groups(view, op):
        _load_groups(s, op, view)
        return
    if len(op.shape) == 2 and not op.mask and 1 not in op.check:
        count = _rows_inside(s, view, op, op.shape[0])
        if _is_mixed(view, (count, op.shape[1])):
            _load_mixed(s, op, view, count)
            return
    side = _loaded_side(s, view, op)
    if side:
        s.define(op.result, _load_turned(s, op, view, side))
        return
    extra = s.rows(op.mask[0]).values if op.mask else None
    box = Box(s, view, op.coords, op.shape, op.check)
    fill = s.const(op.fill, row_type(op.shape, view.dtype))
    values = [
        _load_row(s, box, index, extra[k] if extra else None, fill)
        for k, index in enumerate(_indices(op.shape))
    ]
    s.define(op.result, values)


def _loaded_side(s: Lowering, view: View, op: tile.Load) -> int:
    """The side of the squares in which a block is turned as it is loaded, since memory runs along
    its columns; 0 where it is not."""
    if len(op.shape) != 2 or not is_power(op.shape[1]) or not _runs_along_columns(view):
        return 0
    rows, lanes = op.shape
    if rows == lanes:
        return lanes
    if min(rows, lanes) < LEAST_LOADED or (op.mask and not _is_one(s.rows(op.mask[0]).values)):
        return 0
    side = min(1 << (rows - 1).bit_length(), lanes)
    return side if rows % side == 0 or s.machine.masks(view.dtype.bits) else 0


def _is_one(rows: Sequence[Value]) -> bool:
    """Whether conditions say the same in every row."""
    return all(row is rows[0] for row in rows)


def _load_turned(s: Lowering, op: tile.Load, view: View, side: int) -> list[Value]:
    """Loads a block by squares, of which the last ones may lack rows."""
    rows, lanes = op.shape
    assert not isinstance(op.fill, complex)
    fill = s.const(op.fill, VecType(side, view.dtype))
    masks: Sequence[Value | None] = [None] * lanes  # of what lies one behind the other
    if op.mask:
        given = s.rows(op.mask[0]).values
        one = [s.splat(s.extract(given[0], k), side) for k in range(lanes)]
        masks = one if _is_one(given) else s.turn(given)
    values: list[Value] = []
    for row in range(0, rows, side):
        count = min(side, rows - row)
        present = _first_lanes(s, count, side)
        squares: list[list[Value]] = []
        for column in range(0, lanes, side):
            box = _turned(s, view, op.coords, (side, side), op.check, (row, column))
            wanted = [box.every([present, masks[column + k]]) for k in range(side)]
            lines = [_load_row(s, box, (k,), mask, fill) for k, mask in enumerate(wanted)]
            squares.append(s.turn(lines))
        values += [s.chain([square[k] for square in squares]) for k in range(count)]
    return values


def _first_lanes(s: Lowering, count: int, lanes: int) -> Value | None:
    """A mask of the first lanes; None if these are all."""
    if count == lanes:
        return None
    numbers = s.emit(t.Lanes(lanes, int32, loc=s.loc))
    return s.map("lt", numbers, s.const(count, VecType(lanes, int32)))


def _load_row(
    s: Lowering, box: Box, index: tuple[int, ...], extra: Value | None, fill: Value
) -> Value:
    if extra is not None and isinstance(extra.op, t.Const):
        if not extra.op.value:
            return fill
        extra = None
    mask = box.mask(index, extra)
    ptr, offset = box.view.ptr, box.place(index, extra)
    scalar_type = ScalarType(box.view.dtype)
    if box.lanes == 1:
        return _guarded(
            s, mask, lambda: s.emit(t.Load(ptr, offset, (), scalar_type, loc=s.loc)), fill
        )
    stride = box.view.strides[-1]
    pair = () if mask is None else (mask, fill)
    if constant_of(stride) == 1:
        return s.emit(t.Load(ptr, offset, pair, VecType(box.lanes, box.view.dtype), loc=s.loc))
    if constant_of(stride) == -1:
        first = s.map("sub", offset, s.index(box.lanes - 1))
        pair = () if mask is None else (_reversed(s, mask), fill)
        row = s.emit(t.Load(ptr, first, pair, VecType(box.lanes, box.view.dtype), loc=s.loc))
        return _reversed(s, row)
    step = constant_of(stride)
    if step == 0:
        return _repeated(s, box, offset, mask, fill)
    if step is not None and _is_close(step, box) and (mask is None or _masks_some(s, box, step)):
        return _picked(s, box, offset, step, mask, fill)
    lanes = s.emit(t.Lanes(box.lanes, int64, loc=s.loc))
    offsets = s.map(
        "add", s.splat(offset, box.lanes), s.map("mul", lanes, s.splat(stride, box.lanes))
    )
    return s.emit(t.Gather(ptr, offsets, pair, box.view.dtype, loc=s.loc))


def _is_close(step: int, box: Box) -> bool:
    """Whether elements so far apart are picked from vectors of their neighbours."""
    is_near = step * box.view.dtype.itemsize <= CLOSE_BYTES
    return 1 < step <= min(CLOSE, box.lanes) and is_near


def _repeated(s: Lowering, box: Box, offset: Value, mask: Value | None, fill: Value) -> Value:
    """One element in all lanes, read if any of them wants it."""
    some = None if mask is None else s.emit(t.ReduceLanes(mask, scalar("or"), loc=s.loc))
    type = ScalarType(box.view.dtype)
    one = _guarded(
        s,
        some,
        lambda: s.emit(t.Load(box.view.ptr, offset, (), type, loc=s.loc)),
        s.extract(fill, 0),
    )
    row = s.splat(one, box.lanes)
    return row if mask is None else s.map("select", mask, row, fill)


def _masks_some(s: Lowering, box: Box, step: int) -> bool:
    """Whether elements so far apart are picked from vectors of neighbours of which some are read,
    sooner than each is gathered."""
    bits = box.view.dtype.bits
    return (step == 2 or step * bits <= CLOSE_SOME) and s.machine.masks(bits)


def _picked(
    s: Lowering, box: Box, offset: Value, step: int, mask: Value | None, fill: Value
) -> Value:
    """Every `step`-th element, out of as many vectors of neighbours; nothing behind the last one
    is read, and under a mask no other element."""
    lanes, type = box.lanes, VecType(box.lanes, box.view.dtype)
    # The last vector ends with the last element.
    starts = [min(k * lanes, (lanes - 1) * step + 1 - lanes) for k in range(step)]
    parts: list[Part] = []
    for k, start in enumerate(starts):
        at = s.map("add", offset, s.index(start))
        held = {i: i * step - start for i in range(lanes) if k == i * step // lanes}
        some: tuple[Value, ...] = ()
        if mask is not None:
            none = s.const(False, mask.type)
            wanted = {place: i for i, place in held.items()}
            picks = tuple([wanted.get(place, lanes) for place in range(lanes)])
            some = (s.emit(t.Shuffle(mask, none, picks, loc=s.loc)), fill)
        row = s.emit(t.Load(box.view.ptr, at, some, type, loc=s.loc))
        parts.append((row, held))
    return joined(s, parts, lanes)


def _reversed(s: Lowering, row: Value) -> Value:
    """The lanes of a vector in the other direction: memory that is read downwards."""
    picks = tuple(range(t.lanes(row.type) - 1, -1, -1))
    return s.emit(t.Shuffle(row, row, picks, loc=s.loc))


def _guarded(s: Lowering, mask: Value | None, load: Callable[[], Value], fill: Value) -> Value:
    if mask is None:
        return load()
    return s.branch(mask, lambda: [load()], lambda: [fill])[0]


def store(s: Lowering, op: tile.Store) -> None:
    """A box of elements."""
    view = s.env[op.view]
    assert isinstance(view, View)
    value = s.rows(op.value)
    if not op.mask and value.shape:
        count = _rows_inside(s, view, op, value.shape[0])
        if _is_mixed(view, (count, *value.shape[1:])):
            if is_power(count) and count == value.shape[0]:
                _store_mixed(s, op, view, value)
                return
            if len(value.shape) - 1 not in op.check:
                _store_parted(s, op, view, value, count)
                return
    side = 0 if op.mask else _turned_side(view, value.shape)
    if side:
        _store_turned(s, op, view, value, side)
        return
    box = Box(s, view, op.coords, value.shape, op.check)
    extra = s.rows(op.mask[0]).values if op.mask else None

    def rows() -> tuple[()]:
        for k, index in enumerate(_indices(value.shape)):
            _store_row(s, box, index, value.values[k], extra[k] if extra else None, op.streaming)
        return ()

    left, mask = box.left, box.lane_mask
    is_known = left is None or constant_of(left) is not None
    if left is None or is_known or len(value.values) == 1 or s.machine.has_masks:
        rows()
        return

    def all_lanes() -> tuple[()]:
        box.lane_mask = None
        rows()
        box.lane_mask = mask
        return ()

    s.branch(s.map("ge", left, s.index(box.lanes)), all_lanes, rows)


def _store_row(
    s: Lowering,
    box: Box,
    index: tuple[int, ...],
    value: Value,
    extra: Value | None,
    streaming: int,
) -> None:
    if box.lanes == 1 or not s.machine.has_masks:
        # Where a mask costs more than a branch, a row that is stored or not has none.
        guard, mask = box.condition(index, extra)
        _when(s, guard, lambda: _store_lanes(s, box, box.offset(index), value, mask, streaming))
        return
    mask = box.mask(index, extra)
    _store_lanes(s, box, box.place(index, extra), value, mask, streaming)


def _store_lanes(
    s: Lowering, box: Box, offset: Value, value: Value, mask: Value | None, streaming: int
) -> None:
    ptr, stride = box.view.ptr, box.view.strides[-1] if box.view.strides else s.index(1)
    masks = () if mask is None else (mask,)
    if box.lanes == 1 or constant_of(stride) == 1:
        streaming = streaming if not masks and box.lanes > 1 else 0
        s.emit(t.Store(ptr, offset, value, masks, 0, streaming, loc=s.loc))
        return
    if constant_of(stride) == -1:
        first = s.map("sub", offset, s.index(box.lanes - 1))
        masks = () if mask is None else (_reversed(s, mask),)
        s.emit(t.Store(ptr, first, _reversed(s, value), masks, loc=s.loc))
        return
    lanes = s.emit(t.Lanes(box.lanes, int64, loc=s.loc))
    offsets = s.map(
        "add", s.splat(offset, box.lanes), s.map("mul", lanes, s.splat(stride, box.lanes))
    )
    s.emit(t.Scatter(ptr, offsets, value, masks, loc=s.loc))


def _when(s: Lowering, mask: Value | None, action: Callable[[], object]) -> None:
    if mask is None:
        action()
        return

    def then() -> Sequence[Value]:
        action()
        return ()

    s.branch(mask, then, lambda: ())


def gather(s: Lowering, op: tile.Gather) -> None:
    """Elements at computed offsets."""
    assert isinstance(op.mem.type, MemType) and not isinstance(op.fill, complex)
    ptr, dtype = s.ptr(op.mem), op.mem.type.dtype
    offsets = s.rows(op.offsets)
    masks = s.rows(op.mask[0]).values if op.mask else None
    fill = s.const(op.fill, row_type(offsets.shape, dtype))
    values: list[Value] = []
    for k, offset in enumerate(offsets.values):
        mask = masks[k] if masks else None
        if offsets.lanes == 1:

            def load(offset: Value = offset) -> Value:
                return s.emit(t.Load(ptr, offset, (), ScalarType(dtype), loc=s.loc))

            values.append(_guarded(s, mask, load, fill))
        else:
            pair = () if mask is None else (mask, fill)
            values.append(s.emit(t.Gather(ptr, offset, pair, dtype, loc=s.loc)))
    s.define(op.result, values)


def prefetch(s: Lowering, op: prefetch_ops.Prefetch) -> None:
    """In bytes."""
    assert isinstance(op.mem.type, MemType)
    size = op.mem.type.dtype.itemsize
    (offset,) = s.rows(op.offset).values
    at = s.map("mul", offset, s.index(size))
    s.emit(Prefetch(s.ptr(op.mem), at, size * op.count, is_many=op.is_many, loc=s.loc))


def scatter(s: Lowering, op: tile.Scatter) -> None:
    """Elements at computed offsets; combined ones one by one."""
    ptr = s.ptr(op.mem)
    offsets, value = s.rows(op.offsets), s.rows(op.value)
    masks = s.rows(op.mask[0]).values if op.mask else None
    for k, offset in enumerate(offsets.values):
        mask = masks[k] if masks else None
        if offsets.lanes > 1 and op.combine is None:
            s.emit(
                t.Scatter(ptr, offset, value.values[k], () if mask is None else (mask,), loc=s.loc)
            )
            continue
        for lane in range(offsets.lanes):
            at, x = s.extract(offset, lane), s.extract(value.values[k], lane)
            _when(
                s,
                None if mask is None else s.extract(mask, lane),
                lambda at=at, x=x: _update(s, ptr, at, x, op.combine),
            )


def _update(s: Lowering, ptr: Value, at: Value, x: Value, combine: ScalarFn | None) -> None:
    if combine is not None:
        x = s.map(combine, s.emit(t.Load(ptr, at, (), x.type, loc=s.loc)), x)
    s.emit(t.Store(ptr, at, x, (), loc=s.loc))
