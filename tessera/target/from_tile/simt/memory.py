"""Loads and stores of tiles, gathers and scatters: addresses, predicates, vectors.

An access is an address that all threads share, a part of each thread's own, and a constant for each
register. What is known of strides and alignment decides how many registers one instruction moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.dtypes import bool_, float32, int32, int64
from tessera.ir.core import Value
from tessera.ir.lazy import cached_property
from tessera.ir.types import ScalarType, Type
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.assign import Wish
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import LARGEST_I32, Held, Simt, Window
from tessera.target.from_tile.simt.spread import Spread, bits_of_dim
from tessera.target.gpu import GpuFeature
from tessera.target.types import VecType
from tessera.tile import ops as tile
from tessera.tile.types import TileType

SECTOR = 32

# A tile is moved to another spread before it is stored (after it is loaded) when that saves more
# than this part of the sectors: the trip through shared memory is not free.
WORTH = 1.6


class Access:
    """The access of one tile to one window."""

    def __init__(
        self,
        s: Simt,
        window: Window,
        coords: Sequence[Value],
        check: Sequence[int],
        spread: Spread,
        wish: Wish,
    ) -> None:
        self.s = s
        self.window = window
        self.coords = [s.scalar(c) for c in coords]
        self.check = check
        self.spread = spread
        self.wish = wish
        self.strides = [s.number(v) for v in window.strides]

    # --- vectors ----------------------------------------------------------------------------------

    @cached_property
    def run(self) -> list[int]:
        """Bits of the register number that move one element along contiguous memory each time."""
        order = self.wish.order
        if not order or self.strides[order[0]] != 1:
            return []
        return run_of(self.spread, self.wish)

    def groups(self, width: int) -> list[list[int]]:
        """Registers that one instruction moves."""
        return groups_of(self.spread, self.run[: width.bit_length() - 1])

    # --- addresses --------------------------------------------------------------------------------

    @cached_property
    def pointer(self) -> Value:
        """Where register 0 of the thread is."""
        s, window = self.s, self.window
        if s.is_narrow:
            return self._narrow_pointer()
        base = window.offset
        for coord, stride in zip(self.coords, window.strides, strict=True):
            base = s.index("add", base, s.index("mul", coord, stride))
        own: Value | None = None
        reach = 0
        wide: list[Value] = []
        for dim, stride in enumerate(self.strides):
            largest = self.spread.largest(dim)
            if largest == 0:
                continue
            at = s.coordinate(self.spread, dim)
            if stride is None or largest * abs(stride) > LARGEST_I32:
                wide.append(s.index("mul", s.cast(at, int64), window.strides[dim]))
                continue
            if reach + largest * abs(stride) > LARGEST_I32:
                wide.append(s.index("mul", s.cast(at, int64), window.strides[dim]))
                continue
            reach += largest * abs(stride)
            part = s.index("mul", at, s.i32(stride))
            own = part if own is None else s.index("add", own, part)
        if own is not None:
            # One number of 32 bits for all dims, if it is surely one.
            base = s.index("add", base, s.cast(own, int64))
        for part in wide:
            base = s.index("add", base, part)
        size = s.i64(self.window.dtype.itemsize)
        return s.pure(t.PtrAdd, window.memory, s.index("mul", base, size))

    def _narrow_pointer(self) -> Value:
        """The same, where 32 bits hold the place of every element (`tile/index_width.py`)."""
        s, window = self.s, self.window
        place = s.narrow(window.offset)
        strides = [s.narrow(stride) for stride in window.strides]
        for coord, stride in zip(self.coords, strides, strict=True):
            place = s.index("add", place, s.index("mul", s.narrow(coord), stride))
        for dim, stride in enumerate(strides):
            if self.spread.largest(dim):
                at = s.coordinate(self.spread, dim)
                place = s.index("add", place, s.index("mul", at, stride))
        size = s.i64(self.window.dtype.itemsize)
        return s.pure(t.PtrAdd, window.memory, s.index("mul", s.cast(place, int64), size))

    def offset(self, register: int) -> Value:
        """The element offset of a register from the thread's pointer."""
        s = self.s
        fixed = 0
        found: Value | None = None
        for dim, c in enumerate(self.spread.coordinates[register]):
            stride = self.strides[dim]
            if c == 0:
                continue
            if stride is not None:
                fixed += c * stride
                continue
            stride_of, by = self.window.strides[dim], s.i64(c)
            if s.is_narrow:
                stride_of, by = s.narrow(stride_of), s.i32(c)
            part = s.index("mul", stride_of, by)
            found = part if found is None else s.index("add", found, part)
        if found is not None and s.is_narrow:
            found = s.cast(found, int64)
        constant = s.i64(fixed)
        return constant if found is None else s.index("add", found, constant)

    # --- predicates -------------------------------------------------------------------------------

    def limit(self, dim: int) -> Value:
        """How many elements are left along a dim, as i32."""
        s = self.s
        size, coord = self.window.sizes[dim], self.coords[dim]
        if s.is_narrow and self.strides[dim] != 0:  # else the size may be any number
            return s.index("sub", s.narrow(size), s.narrow(coord))
        left = s.index("sub", size, coord)
        number = s.number(left)
        if number is not None:
            return s.i32(max(min(number, 1 << 30), -1))
        left = s.index("max", s.index("min", left, s.i64(1 << 30)), s.i64(-1))
        return s.cast(left, int32)

    def inside(self, register: int, skip: int | None = None) -> Value | None:
        """Whether a register's element is inside the window; None if it surely is."""
        s = self.s
        found: list[Value | None] = []
        for dim in self.check:
            if dim == skip:
                continue
            limit = self.limit(dim)
            number = s.number(limit)
            c = self.spread.coordinates[register][dim]
            if number is not None and number >= self.spread.shape[dim]:
                continue
            at = s.index("add", s.coordinate(self.spread, dim), s.i32(c))
            found.append(s.index("lt", at, limit))
        return s.all_of(found)

    def interior(self, dim: int) -> Value | None:
        """Whether the whole tile is inside along a dim; None if it surely is."""
        s = self.s
        limit = self.limit(dim)
        number = s.number(limit)
        if number is not None:
            return None if number >= self.spread.shape[dim] else s.const(False, bool_)
        return s.index("ge", limit, s.i32(self.spread.shape[dim]))

    def choose(
        self, move: Callable[[int, int | None], Sequence[Value]], mask: Sequence[Value]
    ) -> Sequence[Value]:
        """Calls `move(width, dim)` with the vector width that is right.

        Where a ragged end could cut a vector, full tiles take vectors and the last one single
        elements; `dim` is then the one that need not be checked.
        """
        width = 1 << len(self.run)
        while width > 1 and mask and not _together(mask, self.groups(width)):
            width //= 2
        first = self.wish.order[0] if self.wish.order else None
        if width == 1 or first is None or first not in self.check or self.wish.safe >= width:
            return move(width, None)
        interior = self.interior(first)
        if interior is None:
            return move(width, None)
        number = self.s.number(interior)
        if number is not None:
            return move(width, first) if number else move(self.wish.safe, None)
        # Predicates of rows are computed outside, so that both branches share them.
        return self.s.branch(
            interior, lambda: move(width, first), lambda: move(self.wish.safe, None)
        )


def run_of(spread: Spread, wish: Wish) -> list[int]:
    """Bits of the register number that are the lowest ones along a wish's first dim."""
    found: list[int] = []
    for bit in bits_of_dim(spread.shape, wish.order[0]):
        if bit not in spread.regs or 2 << len(found) > wish.vector:
            break
        found.append(spread.regs.index(bit))
    return found


def groups_of(spread: Spread, bits: Sequence[int]) -> list[list[int]]:
    """Registers in groups that differ in some bits, in the order of these."""
    used = sum(1 << b for b in bits)
    result: list[list[int]] = []
    for start in range(spread.registers):
        if start & used:
            continue
        group = [start]
        for b in bits:
            group += [r | 1 << b for r in group]
        result.append(group)
    return result


def _together(mask: Sequence[Value], groups: Sequence[Sequence[int]]) -> bool:
    return all(mask[r] is mask[group[0]] for group in groups for r in group)


def sectors(spread: Spread, strides: Sequence[int | None], itemsize: int, wish: Wish) -> float:
    """Sectors that one warp touches to move one tile, roughly: those of its first instruction,
    times instructions."""
    width = 1
    if wish.order and strides[wish.order[0]] == 1:
        for bit in bits_of_dim(spread.shape, wish.order[0]):
            if bit not in spread.regs or width * 2 > wish.vector:
                break
            width *= 2
    far = 1 << 30
    steps = [far if stride is None else stride for stride in strides]
    places = [0]
    for column in spread.layout.linear.of_input("lane"):
        step = sum(c * stride for c, stride in zip(column, steps, strict=True))
        places += [p + step for p in places]
    touched: set[int] = set()
    for p in places:
        first = p * itemsize
        touched.update(range(first // SECTOR, (first + width * itemsize - 1) // SECTOR + 1))
    return len(touched) * spread.registers / width


def _best(s: Simt, spread: Spread, wish: Wish, window: Window, itemsize: int) -> Spread:
    """The spread to access memory with: the given one, unless another is much better."""
    if spread.copies:
        return spread
    strides = [s.number(v) for v in window.strides]
    other = wish.spread(spread.shape, s.warps)
    if other.copies:
        return spread
    here = sectors(spread, strides, itemsize, wish)
    there = sectors(other, strides, itemsize, wish)
    return spread if here <= WORTH * there else other


def _single(s: Simt, op: tile.Load | tile.Store) -> tuple[Value, Value, Value | None]:
    """Pointer, offset and condition of an access to one element."""
    window = s.windows[op.view]
    offset = window.offset
    coords = [s.scalar(c) for c in op.coords]
    for coord, stride in zip(coords, window.strides, strict=True):
        offset = s.index("add", offset, s.index("mul", coord, stride))
    conditions: list[Value | None] = []
    for dim in op.check:
        found = s.index("lt", coords[dim], window.sizes[dim])
        if s.number(found) != 1:
            conditions.append(found)
    if op.mask:
        conditions.append(s.scalar(op.mask[0]))
    return window.memory, offset, s.all_of(conditions)


def _read(
    s: Simt, ptr: Value, offset: Value, type: Type, mask: Value | None, other: Value, align: int
) -> Value:
    masked = () if mask is None else (mask, other)
    root = ptr
    while isinstance(root.op, t.PtrAdd):
        root = root.op.ptr
    if root in s.written:
        return s.emit(t.Load(ptr, offset, masked, type, align, loc=s.loc))
    return s.emit(g.LoadCached(ptr, offset, masked, type, align, "nc", loc=s.loc))


def load(s: Simt, op: tile.Load) -> None:
    """Reads a box."""
    assert isinstance(op.result.type, TileType)
    assert not isinstance(op.fill, complex)
    dtype = op.result.type.dtype
    spread = s.spread_of(op.result)
    if spread is None:
        s.overwriting.note_load(op, True)
        ptr, offset, mask = _single(s, op)
        fill = s.const(op.fill, dtype)
        s.define(op.result, [_read(s, ptr, offset, ScalarType(dtype), mask, fill, 0)])
        return
    spread = spread.reshaped(op.shape)
    window = s.windows[op.view]
    wish = s.spreads.wishes[op]
    best = _best(s, spread, wish, window, dtype.itemsize)
    access = Access(s, window, op.coords, op.check, best, wish)
    mask = to_spread(s, s.held(op.mask[0]), best).values if op.mask else ()
    s.overwriting.note_load(op, bool(best.copies))

    def move(width: int, skip: int | None) -> list[Value]:
        found: dict[int, Value] = {}
        for group in access.groups(width):
            own = mask[group[0]] if len(mask) > 1 else mask[0] if mask else None
            guard = s.all_of([access.inside(group[0], skip), own])
            type = ScalarType(dtype) if width == 1 else VecType(width, dtype)
            other = s.pure(t.Const, op.fill, type)
            align = width * dtype.itemsize
            value = _read(s, access.pointer, access.offset(group[0]), type, guard, other, align)
            for lane, register in enumerate(group):
                one = value if width == 1 else s.emit(t.Extract(value, lane, loc=s.loc))
                found[register] = one
        return [found[r] for r in range(best.registers)]

    values = access.choose(move, mask)
    held = Held(op.shape, dtype, best, tuple(values))
    s.define(op.result, to_spread(s, held, spread).values, spread)


def store(s: Simt, op: tile.Store) -> None:
    """Writes a box; of several copies of an element, one thread writes its own."""
    x = s.held(op.value)
    window = s.windows[op.view]
    _meet(s, op)
    if x.spread is None:
        ptr, offset, mask = _single(s, op)
        guard = s.all_of([mask, s.first_copy(s.threads - 1)])
        masks = () if guard is None else (guard,)
        s.emit(t.Store(ptr, offset, x.values[0], masks, 0, loc=s.loc))
        return
    wish = s.spreads.wishes[op]
    best = _best(s, x.spread.reshaped(x.shape), wish, window, x.dtype.itemsize)
    values = to_spread(s, x, best).values
    mask = to_spread(s, s.held(op.mask[0]), best).values if op.mask else ()
    access = Access(s, window, op.coords, op.check, best, wish)
    first = s.first_copy(best.copies)

    def move(width: int, skip: int | None) -> Sequence[Value]:
        for group in access.groups(width):
            own = mask[group[0]] if len(mask) > 1 else mask[0] if mask else None
            guard = s.all_of([first, access.inside(group[0], skip), own])
            value = values[group[0]]
            if width > 1:
                value = s.emit(g.Pack([values[r] for r in group], loc=s.loc))
            masks = () if guard is None else (guard,)
            offset = access.offset(group[0])
            align = width * x.dtype.itemsize
            s.emit(t.Store(access.pointer, offset, value, masks, align, loc=s.loc))
        return ()

    access.choose(move, mask)


def _meet(s: Simt, op: tile.Store | tile.Scatter) -> None:
    """All threads wait for each other before a store over what some may not have read yet."""
    if s.overwriting.must_meet(op):
        s.emit(g.Barrier(loc=s.loc))


def _neighbours(
    s: Simt, op: tile.Gather | tile.Scatter, spread: Spread | None, mask: Sequence[Value]
) -> list[list[int]]:
    """Registers whose elements lie side by side in memory and move together."""
    wish = s.spreads.wishes.get(op)
    if spread is None or wish is None:
        return [[r] for r in range(1 if spread is None else spread.registers)]
    bits = run_of(spread, wish)
    while bits and mask and not _together(mask, groups_of(spread, bits)):
        bits.pop()
    return groups_of(spread, bits)


def gather(s: Simt, op: tile.Gather) -> None:
    """Reads elements at offsets."""
    assert isinstance(op.result.type, TileType)
    assert not isinstance(op.fill, complex)
    dtype = op.result.type.dtype
    spread = s.spread_of(op.result)
    s.overwriting.note_load(op, spread is None or bool(spread.copies))
    offsets = to_spread(s, s.held(op.offsets), spread).values
    mask = to_spread(s, s.held(op.mask[0]), spread).values if op.mask else ()
    memory = s.memory[op.mem]
    found: dict[int, Value] = {}
    for group in _neighbours(s, op, spread, mask):
        first, width = group[0], len(group)
        guard = mask[first] if mask else None
        type = ScalarType(dtype) if width == 1 else VecType(width, dtype)
        fill = s.pure(t.Const, op.fill, type)
        align = width * dtype.itemsize
        value = _read(s, memory, offsets[first], type, guard, fill, align)
        for lane, register in enumerate(group):
            one = value if width == 1 else s.emit(t.Extract(value, lane, loc=s.loc))
            found[register] = one
    s.define(op.result, [found[r] for r in range(len(found))])


def scatter(s: Simt, op: tile.Scatter) -> None:
    """Writes elements at offsets, or combines them with what is there, one at a time."""
    x = s.held(op.value)
    spread = x.spread
    _meet(s, op)
    offsets = to_spread(s, s.held(op.offsets), spread).values
    mask = to_spread(s, s.held(op.mask[0]), spread).values if op.mask else ()
    memory = s.memory[op.mem]
    first = s.first_copy(s.threads - 1 if spread is None else spread.copies)
    groups = _neighbours(s, op, spread, mask)
    if op.combine is not None and not _adds_vectors(s, op, x):
        groups = [[r] for group in groups for r in group]
    for group in groups:
        guard = s.all_of([first, mask[group[0]] if mask else None])
        masks = () if guard is None else (guard,)
        value = x.values[group[0]]
        if len(group) > 1:
            value = s.emit(g.Pack([x.values[r] for r in group], loc=s.loc))
        at = offsets[group[0]]
        if op.combine is None:
            align = len(group) * x.dtype.itemsize
            s.emit(t.Store(memory, at, value, masks, align, loc=s.loc))
        else:
            s.emit(g.AtomicReduce(memory, at, value, masks, op.combine, "device", loc=s.loc))


def _adds_vectors(s: Simt, op: tile.Scatter, x: Held) -> bool:
    """Whether several neighbours are combined by one instruction."""
    adds = op.combine is not None and op.combine.name == "add" and x.dtype is float32
    return adds and s.machine.has(GpuFeature.VECTOR_RED)
