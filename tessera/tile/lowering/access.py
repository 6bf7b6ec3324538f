"""Loads and stores: by views where affine in the tiled axes, else by gather and scatter.

A complex buffer is memory of its real dtype: element k is at 2k and 2k + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import int64, real_of
from tessera.errors import CompileError
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, is_nonneg, linear_in, simplify, symbols
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.schedule import ops as s
from tessera.schedule import prefetch_ops
from tessera.schedule.access import is_affine
from tessera.schedule.types import buffer_type
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Shape, common_shape
from tessera.tile.lowering.state import Point, State, TileDim, Val
from tessera.tile.ops import Number, tile_type
from tessera.tile.prefetch_ops import Prefetch

MOST_FETCHED = 2048
"""Bytes of a row that are fetched ahead: by then a prefetcher knows where it goes on."""

MANY_FETCHED = 1024
"""Bytes whose lines are many at once. A gather whose rows come to the second cache of a Zen 4 takes
0.83 to 0.92 of the time if they have so many, and 1.2 times as long if they have 256."""

_Ends = Mapping[str, Sequence[Dim]]
"""Places before which dims of a box end."""


@dataclass(frozen=True, slots=True)
class Address:
    """The place of an element in its buffer, over a tile.

    Attributes:
        buf: the buffer.
        offset: element offset.
        dyn: values of its dynamic names.
        coefs: step along each tiled axis, if the offset is affine in them.
        rest: the offset without these terms.
    """

    buf: Value
    offset: Dim
    dyn: Sequence[Value]
    coefs: dict[str, Dim] | None
    rest: Dim


def address_of(
    low: State, buf: Value, index: Iterable[Dim], dyn: Sequence[Value], point: Point
) -> Address:
    """The place of an element at a point."""
    offset: Dim = 0
    for e, stride in zip(index, buffer_type(buf).element_strides(), strict=True):
        offset = offset + e * stride
    varying = [f"${k}" for k, value in enumerate(dyn) if tile_type(value).shape]
    if not is_affine(offset):
        offset = simplify(offset, low.facts)
    affine = linear_in(offset, [*point.names, *varying])
    if affine is None or any(affine[0][name] != 0 for name in varying):
        return Address(buf, offset, dyn, None, offset)
    return Address(buf, offset, dyn, affine[0], affine[1])


def _varies(value: Value, k: int) -> bool:
    """Whether a tile changes along a dim of the point."""
    shape = tile_type(value).shape
    return bool(shape) and shape[k] > 1


def _view(
    low: State,
    address: Address,
    point: Point,
    dims: Sequence[int],
    part: int,
    ends: _Ends | None = None,
) -> tuple[Value, tuple[Value, ...]]:
    """A view on one part of the elements along some dims, and the coordinates of the tile.

    Args:
        low: the lowering.
        address: of an element.
        point: the tile.
        dims: those that elements differ along.
        part: of a complex number.
        ends: where dims end before their extents.
    """
    em = low.em
    scale = 2 if buffer_type(address.buf).dtype.is_complex else 1
    leaf = low.leaf(point, address.dyn)
    along = [point.dims[k] for k in dims]
    coefs = address.coefs
    assert coefs is not None
    strides = tuple([em.index(coefs[d.name] * scale, leaf) for d in along])
    sizes = [em.index(d.extent) for d in along]
    for k, dim in enumerate(along):
        for end in (ends or {}).get(dim.name, ()):
            sizes[k] = em.map("min", sizes[k], em.index(end, leaf))
    offset = em.index(address.rest * scale + part, leaf)
    view = em.pure(t.View, low.memory[address.buf], offset, tuple(sizes), strides)
    return view, tuple([d.start for d in along])


def _mask(
    low: State, conditions: Sequence[Value], point: Point, dims: Sequence[int]
) -> tuple[Value, ...]:
    """The conditions as a mask over some dims of the point, with those that hold for a loop."""
    counted = [low.inside(point, k) for k in dims if point.dims[k].count is not None]
    mask = low.em.all_of([*conditions, *counted])
    if mask is None:
        return ()
    shape = point.shape
    full = tuple([shape[k] if k in dims else 1 for k in range(len(shape))])
    spread = low.em.broadcast(mask, full)
    return (low.em.reshape(spread, tuple([shape[k] for k in dims])),)


def _checks(point: Point, dims: Sequence[int], ends: _Ends | None = None) -> tuple[int, ...]:
    found = [point.dims[k] for k in dims]
    checked = [(d.checked and d.count is None) or d.name in (ends or {}) for d in found]
    return tuple([at for at, is_checked in enumerate(checked) if is_checked])


# --- loads ------------------------------------------------------------------------------------


def load(low: State, op: s.Load, point: Point) -> Val:
    """An element per point of the tile; memory is not touched where a condition fails."""
    dtype = buffer_type(op.buf).dtype
    dyn = low.dyn(op.dyn, point)
    conditions = low.conditions(op.where, point, dyn, dtype.bits)
    if conditions is None:
        return low.constant(op.fill, dtype)
    fills: list[Number] = [op.fill]
    if dtype.is_complex:
        fills = [complex(op.fill).real, complex(op.fill).imag]
    address = address_of(low, op.buf, op.index, dyn, point)
    if address.coefs is None:
        return _gather(low, address, conditions, fills, point)
    coefs = address.coefs
    dims = [
        k
        for k, dim in enumerate(point.dims)
        if coefs[dim.name] != 0 or any(_varies(c, k) for c in conditions)
    ]
    parts: list[Value] = []
    for part, fill in enumerate(fills):
        view, coords = _view(low, address, point, dims, part)
        if not dims:
            parts.append(_load_scalar(low, op, view, conditions, fill))
            continue
        mask = _mask(low, conditions, point, dims)
        shape = tuple([point.shape[k] for k in dims])
        value = read(low, op, view, coords, mask, shape, _checks(point, dims), fill)
        full = tuple([n if k in dims else 1 for k, n in enumerate(point.shape)])
        parts.append(low.em.reshape(value, full))
    return Val(tuple(parts), point.names)


def prefetch(low: State, op: s.Load | s.Store, count: Dim, is_many: bool = False) -> None:
    """Has the elements fetched that an op reads from here on, as many as one op may fetch. Lines
    are many at once where others are fetched at the same time, as `is_many` says, or these are."""
    em = low.em
    leaf = low.leaf(Point(), low.dyn(op.dyn, Point()))
    strides = buffer_type(op.buf).element_strides()
    offset = em.index(sum([e * n for e, n in zip(op.index, strides, strict=True)], 0), leaf)
    dtype = buffer_type(op.buf).dtype
    parts = 2 if dtype.is_complex else 1
    offset = em.map("mul", offset, em.const(parts, int64)) if parts > 1 else offset
    most = MOST_FETCHED // dtype.itemsize
    count = parts * (min(count, most) if isinstance(count, int) else most)
    is_many = is_many or count * dtype.itemsize >= MANY_FETCHED
    em.add(Prefetch(low.memory[op.buf], offset, count, is_many, loc=em.loc))


def prefetch_place(low: State, op: prefetch_ops.Prefetch, point: Point) -> None:
    """Has the line fetched of a place, at the first point of a tile."""
    em = low.em
    with em.bound({dim.name: dim.start for dim in point.dims}):
        em.add(Prefetch(low.memory[op.buf], em.index(op.offset), 1, loc=op.loc))


def read(
    low: State,
    op: s.Load,
    view: Value,
    coords: tuple[Value, ...],
    mask: tuple[Value, ...],
    shape: Shape,
    check: tuple[int, ...],
    fill: Number,
) -> Value:
    """A box of what a load reads, which other ops may share."""
    em = low.em
    fields = (view, coords, mask, shape, check, fill)
    if op.buf in low.written:
        return em.add(t.Load(*fields, loc=em.loc))[0]
    deepest = max([em.levels[v] for v in (view, *coords, *mask)])
    floor = em.depth
    # A tile that is checked is the rest of a loop, which is seldom there: it stays under its `if`.
    # In a block it is a tile like all others.
    if deepest < floor and (low.is_block or not check) and low.is_bounded(op):
        floor = max(deepest, low.floor)
    return em.pure(t.Load, *fields, floor=floor)


def _load_scalar(
    low: State, op: s.Load, view: Value, conditions: Sequence[Value], fill: Number
) -> Value:
    guard = low.em.all_of(conditions)
    if guard is None:
        return read(low, op, view, (), (), (), (), fill)
    dtype = real_of(buffer_type(op.buf).dtype)
    (value,) = low.em.when(
        guard,
        lambda: [read(low, op, view, (), (), (), (), fill)],
        lambda: [low.em.const(fill, dtype)],
    )
    return value


def _bounds(low: State, point: Point, shape: Shape) -> list[Value]:
    """Masks of the checked dims along which something varies."""
    return [
        low.inside(point, k)
        for k, dim in enumerate(point.dims)
        if dim.checked and shape and shape[k] > 1
    ]


def _offsets(low: State, address: Address, point: Point) -> Value:
    return low.em.index(address.offset, low.leaf(point, address.dyn))


def _part_offsets(low: State, offsets: Value, parts: int) -> list[Value]:
    if parts == 1:
        return [offsets]
    even = low.em.map("mul", offsets, low.em.const(2, int64))
    return [even, low.em.map("add", even, low.em.const(1, int64))]


def _gather(
    low: State,
    address: Address,
    conditions: list[Value],
    fills: Sequence[Number],
    point: Point,
) -> Val:
    em = low.em
    offsets = _offsets(low, address, point)
    mask = em.all_of([*conditions, *_bounds(low, point, tile_type(offsets).shape)])
    masks = [] if mask is None else [mask]
    shape = common_shape([tile_type(v).shape for v in (offsets, *masks)])
    spread = tuple([em.broadcast(m, shape) for m in masks])

    def gathered() -> list[Value]:
        parts: list[Value] = []
        for at, fill in zip(_part_offsets(low, offsets, len(fills)), fills, strict=True):
            fields = (low.memory[address.buf], em.broadcast(at, shape), spread, fill)
            if address.buf in low.written:
                parts.append(em.add(t.Gather(*fields, loc=em.loc))[0])
            else:
                parts.append(em.pure(t.Gather, *fields, floor=em.depth))
        return parts

    def skip() -> list[Value]:
        dtype = real_of(buffer_type(address.buf).dtype)
        return [em.broadcast(em.const(fill, dtype), shape) for fill in fills]

    if low.is_block or not conditions or not shape:
        return Val(tuple(gathered()), point.names)
    # A vector's elements are read one by one: none at all where no condition holds.
    wanted = spread[0]
    for _ in shape:
        wanted = em.pure(t.Reduce, wanted, SCALARS["or"], len(tile_type(wanted).shape) - 1)
    return Val(tuple(em.when(wanted, gathered, skip)), point.names)


# --- stores -----------------------------------------------------------------------------------


def store(low: State, op: s.Store, point: Point) -> None:
    """Writes an element per point of the tile."""
    dyn = low.dyn(op.dyn, point)
    value = low.get(op.value, point)

    def action(streaming: int) -> tuple[Value, ...]:
        write(low, op.buf, value, op.index, point, op.where, dyn, op.combine, op.atomic, streaming)
        return ()

    past_caches(low, op, point, action)


def past_caches(
    low: State, op: s.Store, point: Point, action: Callable[[int], tuple[Value, ...]]
) -> None:
    """Does what a store does, which is told whether it writes past the caches."""
    if op.streaming and not isinstance(op.least, int):
        # How large it is shows when it runs. Beyond an extent nothing is written past the caches.
        is_large = low.em.map("ge", low.em.index(op.least), low.em.const(0, int64))
        if not any(dim.checked for dim in point.dims):
            low.em.when(is_large, lambda: action(True), lambda: action(False))
            return
    action(op.streaming)


def write(
    low: State,
    buf: Value,
    value: Val,
    index: Sequence[Dim],
    point: Point,
    where: Sequence[Dim] = (),
    dyn: Sequence[Value] = (),
    combine: ScalarFn | None = None,
    atomic: bool = False,
    streaming: int = 0,
) -> None:
    """Writes a value where the conditions hold; with `combine`, combined with what is there."""
    address = address_of(low, buf, index, dyn, point)
    ends: _Ends = {}
    if combine is None and not atomic:
        ends, where = _ends(low, address, where, point)
    conditions = low.conditions(where, point, dyn, buffer_type(buf).dtype.bits)
    if conditions is None:
        return
    guards = [c for c in conditions if not tile_type(c).shape]
    masks = [c for c in conditions if tile_type(c).shape]

    def action() -> tuple[Value, ...]:
        dims = None if atomic else _structured(address, value, masks, index, point, combine)
        if dims is None:
            _scatter(low, address, value, masks, point, combine, atomic)
        else:
            _write_box(low, address, value, masks, point, dims, ends, combine, streaming)
        return ()

    guard = low.em.all_of(guards)
    if guard is None:
        action()
    else:
        low.em.when(guard, action)


def _ends(
    low: State, address: Address, where: Sequence[Dim], point: Point
) -> tuple[_Ends, Sequence[Dim]]:
    """Where a block of a CPU that is turned as it is stored, ends along its dims, and the other
    conditions: squares have ends, but no masks."""
    coefs = address.coefs
    steps = [] if coefs is None else [coefs[dim.name] for dim in point.dims]
    if low.is_block or len(steps) != 2 or steps[0] not in (1, -1) or steps[1] in (0, 1, -1):
        return {}, where
    ends: dict[str, list[Dim]] = {}
    others: list[Dim] = []
    for e in where:
        names = [dim.name for dim in point.dims if dim.name in symbols(e)]
        form = linear_in(e, names) if len(names) == 1 and not isinstance(e, int) else None
        if form is None or form[0][names[0]] != -1:
            others.append(e)
        elif not (low.is_inner and is_nonneg(e, low.facts)):
            ends.setdefault(names[0], []).append(form[1] + 1)
    return ends, others


def _structured(
    address: Address,
    value: Val,
    masks: Sequence[Value],
    index: Sequence[Dim],
    point: Point,
    combine: ScalarFn | None,
) -> list[int] | None:
    """The dims of the box to write; None if tiles must be written element by element."""
    coefs = address.coefs
    if coefs is None:
        return None
    dims = [k for k, dim in enumerate(point.dims) if coefs[dim.name] != 0]
    others = [k for k, dim in enumerate(point.dims) if k not in dims and dim.size > 1]
    if any(_varies(x, k) for x in (*value.parts, *masks) for k in others):
        return None
    if combine is not None and (others or not _is_injective(address, index, point.dims)):
        return None
    return dims


def _is_injective(address: Address, index: Sequence[Dim], dims: Sequence[TileDim]) -> bool:
    """Whether points of a tile are distinct elements: each dim steps over all of those that have
    shorter steps, or moves an index of its own."""
    assert address.coefs is not None
    wide = [d for d in dims if d.size > 1]
    steps = [(address.coefs[d.name], d.size) for d in wide]
    known = sorted([(abs(step), size) for step, size in steps if isinstance(step, int)])
    reached = [sum([step * (size - 1) for step, size in known[:k]]) for k in range(len(known))]
    far = all(step > last for (step, _), last in zip(known, reached, strict=True))
    if far and len(known) == len(wide):
        return True
    names = [d.name for d in wide]
    owners: set[str] = set()
    for e in index:
        mentioned = symbols(e) & set(names)
        affine = linear_in(e, names)
        if len(mentioned) != 1 or affine is None:
            continue
        (name,) = mentioned
        if isinstance(affine[0][name], int):
            owners.add(name)
    return owners == set(names)


def _write_box(
    low: State,
    address: Address,
    value: Val,
    masks: Sequence[Value],
    point: Point,
    dims: Sequence[int],
    ends: _Ends,
    combine: ScalarFn | None,
    streaming: int,
) -> None:
    em = low.em
    shape = tuple([point.shape[k] for k in dims])
    full = tuple([n if k in dims else 1 for k, n in enumerate(point.shape)])
    check = _checks(point, dims, ends)
    mask = _mask(low, masks, point, dims)
    parts = 2 if buffer_type(address.buf).dtype.is_complex else 1
    views = [_view(low, address, point, dims, part, ends) for part in range(parts)]
    if combine is not None:
        found = [
            em.add(t.Load(view, coords, mask, shape, check, 0, loc=em.loc))[0]
            for view, coords in views
        ]
        old = Val(tuple([em.reshape(x, full) for x in found]), point.names)
        value = low.apply(combine, old, value)
    lanes = [address.coefs[point.dims[k].name] for k in dims[-1:]] if address.coefs else []
    if parts == 2 and not mask and not low.is_block and lanes == [1] and shape[-1] > 1:
        _write_parts(low, address, value, point, dims, streaming)
        return
    for (view, coords), part in zip(views, low.spread(value, full, parts), strict=True):
        part = em.reshape(part, shape)
        em.add(t.Store(view, part, coords, mask, check, streaming, loc=em.loc))


def _write_parts(
    low: State,
    address: Address,
    value: Val,
    point: Point,
    dims: Sequence[int],
    streaming: int,
) -> None:
    """Writes complex numbers that are neighbours, as one tile whose first dim is their parts."""
    em = low.em
    leaf = low.leaf(point, address.dyn)
    shape = tuple([point.shape[k] for k in dims])
    full = tuple([n if k in dims else 1 for k, n in enumerate(point.shape)])
    along = [point.dims[k] for k in dims]
    assert address.coefs is not None
    strides = [em.index(address.coefs[d.name] * 2, leaf) for d in along]
    sizes = [em.index(d.extent) for d in along]
    offset = em.index(address.rest * 2, leaf)
    memory = low.memory[address.buf]
    view = em.pure(t.View, memory, offset, (em.index(2), *sizes), (em.index(1), *strides))
    rows = [
        em.broadcast(em.reshape(part, (1, *shape)), (2, *shape))
        for part in low.spread(value, full, 2)
    ]
    number = em.pure(t.Iota, (2, *[1] * len(shape)), 0)
    is_real = em.map("eq", number, em.const(0, int64))
    both = em.select(is_real, *rows)
    coords = (em.index(0), *[d.start for d in along])
    check = tuple([k + 1 for k in _checks(point, dims)])
    em.add(t.Store(view, both, coords, (), check, streaming, loc=em.loc))


def _scatter(
    low: State,
    address: Address,
    value: Val,
    masks: Sequence[Value],
    point: Point,
    combine: ScalarFn | None,
    atomic: bool,
) -> None:
    em = low.em
    is_complex = buffer_type(address.buf).dtype.is_complex
    if is_complex and combine is not None and combine.name != "add":
        raise CompileError(
            f"schedule.store: complex elements cannot be combined with {combine.name} in a tile",
            loc=em.loc,
        )
    offsets = _offsets(low, address, point)
    shape = point.shape
    if combine is None:
        shape = common_shape([tile_type(x).shape for x in (offsets, *value.parts, *masks)])
    mask = em.all_of([*masks, *_bounds(low, point, shape)])
    spread = () if mask is None else (em.broadcast(mask, shape),)
    parts = 2 if is_complex else 1
    places = _part_offsets(low, offsets, parts)
    for at, part in zip(places, low.spread(value, shape, parts), strict=True):
        where = em.broadcast(at, shape)
        memory = low.memory[address.buf]
        em.add(t.Scatter(memory, where, part, spread, combine, atomic, loc=em.loc))
