"""Reductions, scans and bit flips: what combines elements of different threads.

Along an axis, first the registers of a thread are combined, then lanes by shuffles, then warps
through shared memory. Every thread ends with the result, so nothing has to be sent back. The order
is fixed by the spread: equal programs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tessera.dtypes import DType, Kind, float32, int32
from tessera.ir.core import Value
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.divide import step_along
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import Held, Simt
from tessera.target.from_tile.simt.side import VECTOR_BYTES, memory_dtype, shared
from tessera.target.from_tile.simt.spread import LANE_BITS, Piece, Spread, bits_of_dim
from tessera.target.types import VecType
from tessera.tile import ops as tile

Item = tuple[Value, ...]
"""What is combined: a value, or a value and its index."""

Combine = Callable[[Item, Item], Item]


class RunningSums(Protocol):
    """A scan of one tile."""

    def run(self, values: list[Value]) -> list[Value]:
        """The scanned registers."""
        ...


def wide(dtype: DType) -> DType:
    """What narrow floats are combined in."""
    return float32 if dtype.kind is Kind.FLOAT and dtype.bits < 32 else dtype


def shuffle(s: Simt, x: Value, kind: str, by: Value) -> Value:
    """A value of another lane; truth values travel as bytes."""
    dtype = t.element(x.type)
    moved = s.convert(x, memory_dtype(dtype))
    found = s.emit(g.ShuffleLanes(moved, by, kind, loc=s.loc))
    return s.convert(found, dtype)


def _tree(items: Sequence[Item], combine: Combine) -> Item:
    level = list(items)
    while len(level) > 1:
        half = len(level) // 2
        level = [combine(level[k], level[k + half]) for k in range(half)] + level[2 * half :]
    return level[0]


def _along(spread: Spread, axis: int) -> tuple[list[int], list[int], list[int]]:
    """Positions in registers, lanes and warps of the bits of an axis."""
    bits = bits_of_dim(spread.shape, axis)
    return (
        [k for k, bit in enumerate(spread.regs) if bit in bits],
        [k for k, bit in enumerate(spread.lanes) if bit in bits],
        [k for k, bit in enumerate(spread.warps) if bit in bits],
    )


def combine_axis(
    s: Simt, items: Sequence[Item], spread: Spread, axis: int, combine: Combine
) -> list[Item]:
    """Combines the registers of a spread along an axis, in all threads."""
    regs, lanes, warps = _along(spread, axis)
    inner = sum(1 << k for k in regs)
    starts = [r for r in range(spread.registers) if not r & inner]
    found = [
        _tree([items[r] for r in range(spread.registers) if r & ~inner == start], combine)
        for start in starts
    ]
    for k in lanes:
        by = s.i32(1 << k)
        found = [
            combine(item, tuple([shuffle(s, v, "xor", by) for v in item])) for item in found
        ]
    if warps:
        found = _combine_warps(s, found, spread, lanes, warps, combine)
    return found


def combine_exactly(
    s: Simt, items: Sequence[Item], spread: Spread, axis: int, combine: Combine
) -> list[Item]:
    """As `combine_axis`, but the first half of the axis with the second, and so on, wherever they
    lie: bit after bit of the places along it, from the highest on."""
    found = dict(enumerate(items))
    bits = bits_of_dim(spread.shape, axis)
    waiting: list[int] = []
    done: list[int] = []

    def meet() -> None:
        """Warps meet once for neighbouring bits of theirs."""
        if waiting:
            keys = list(found)
            positions = waiting[::-1]  # the lowest bit first
            values = _combine_warps(s, list(found.values()), spread, done, positions, combine)
            found.update(zip(keys, values, strict=True))
            waiting.clear()

    for bit in reversed(bits):
        if bit in spread.warps:
            waiting.append(spread.warps.index(bit))
            continue
        meet()
        if bit in spread.regs:
            high = 1 << spread.regs.index(bit)
            for r in [r for r in found if not r & high]:
                found[r] = combine(found[r], found.pop(r | high))
        else:
            k = spread.lanes.index(bit)
            by = s.i32(1 << k)
            for r, item in found.items():
                found[r] = combine(item, tuple([shuffle(s, v, "xor", by) for v in item]))
            done.append(k)
    meet()
    return [found[r] for r in sorted(found)]


def _number(s: Simt, positions: Sequence[int]) -> Value:
    """The number that some bits of the thread's make."""
    return s.bits_of_thread([Piece(k, 1, j) for j, k in enumerate(positions)])


def _combine_warps(
    s: Simt,
    items: list[Item],
    spread: Spread,
    lanes: Sequence[int],
    warps: Sequence[int],
    combine: Combine,
) -> list[Item]:
    """Combines what warps hold, in all threads."""
    parts = parts_of_warps(s, items, spread, lanes, warps)
    return [_tree(found, combine) for found in parts]


def parts_of_warps(
    s: Simt,
    items: list[Item],
    spread: Spread,
    lanes: Sequence[int],
    warps: Sequence[int],
) -> list[list[Item]]:
    """Each warp leaves its part in shared memory; all threads take all parts of each item.

    Args:
        s: the lowering.
        items: what a thread holds.
        spread: of the tile that they are from.
        lanes: bits of the lane that do not matter: the items are the same in all of them.
        warps: bits of the warp that tell the parts apart.
    """
    parts = 1 << len(warps)
    taken = {*lanes, *[LANE_BITS + k for k in warps]}
    others = [
        k for k, bit in enumerate(spread.threads) if bit is not None and k not in taken
    ]
    count = 1 << len(others)
    own = _number(s, [LANE_BITS + k for k in warps])
    place = _number(s, others)
    guard = s.first_copy(spread.copies | sum(1 << k for k in lanes))
    masks = () if guard is None else (guard,)
    rows = len(items)
    results: list[list[Value]] = [[] for _ in range(parts * rows)]
    for field in range(len(items[0])):
        dtype = t.element(items[0][field].type)
        stored = memory_dtype(dtype)
        room = shared(s, dtype, parts * rows * count, "reduction")
        for r, item in enumerate(items):
            value = s.convert(item[field], stored)
            row = s.index("add", s.index("mul", own, s.i32(rows)), s.i32(r))
            at = s.index("add", s.index("mul", row, s.i32(count)), place)
            s.emit(t.Store(room, at, value, masks, 0, loc=s.loc))
        for k, value in enumerate(_read_parts(s, room, stored, parts * rows, count, place)):
            results[k].append(s.convert(value, dtype))
    return [[tuple(results[part * rows + r]) for part in range(parts)] for r in range(rows)]


def _read_parts(
    s: Simt, room: Value, dtype: DType, total: int, count: int, place: Value
) -> list[Value]:
    """`total` numbers that lie `count` apart; several at once where they are neighbours."""
    width = 1 if count > 1 else min(VECTOR_BYTES // dtype.itemsize, total)
    found: list[Value] = []
    for k in range(0, total, width):
        at = s.index("add", s.i32(k * count), place)
        type = ScalarType(dtype) if width == 1 else VecType(width, dtype)
        value = s.emit(t.Load(room, at, (), type, width * dtype.itemsize, loc=s.loc))
        if width == 1:
            found.append(value)
        else:
            found += [s.emit(t.Extract(value, j, loc=s.loc)) for j in range(width)]
    return found


def reduce(s: Simt, op: tile.Reduce) -> None:
    """Combines along an axis."""
    x = s.held(op.x)
    if x.spread is None:
        s.define(op.result, x.values)
        return
    dtype = wide(x.dtype)
    spread = x.spread.reshaped(x.shape)
    items = [(s.convert(v, dtype),) for v in x.values]
    rule = combine_exactly if op.exact else combine_axis
    found = rule(s, items, spread, op.axis, lambda a, b: (s.map(op.fn, a[0], b[0]),))
    values = tuple([s.convert(item[0], x.dtype) for item in found])
    if x.dtype.is_bool and s.warps == 1 and s.spread_of(op.result) is None:
        # It may be what a branch depends on, which the lanes take together.
        agreed = s.emit(g.Uniform(s.convert(values[0], int32), loc=s.loc))
        values = (s.map("ne", agreed, s.i32(0)),)
    _finish(s, op.result, values, x.dtype, spread.without(op.axis))


def _finish(
    s: Simt, result: Value, values: Sequence[Value], dtype: DType, spread: Spread
) -> None:
    wanted = s.spread_of(result)
    if wanted is None:
        s.define(result, values)
        return
    held = Held(spread.shape, dtype, spread, tuple(values))
    s.define(result, to_spread(s, held, wanted).values)


def _pick(s: Simt, fn: ScalarFn, a: Item, b: Item) -> Item:
    """The better of two (value, index) pairs: NaN first, then the extreme, then the smaller index.
    """
    (x, i), (y, j) = a, b
    better = s.map("gt" if fn.name == "max" else "lt", x, y)
    tie = s.map("eq", x, y)
    if t.element(x.type).kind is Kind.FLOAT:
        x_nan, y_nan = s.map("ne", x, x), s.map("ne", y, y)
        better = s.map("or", better, s.map("and", x_nan, s.map("not", y_nan)))
        tie = s.map("or", tie, s.map("and", x_nan, y_nan))
    first = s.map("or", better, s.map("and", tie, s.map("lt", i, j)))
    return s.map("select", first, x, y), s.map("select", first, i, j)


def arg_reduce(s: Simt, op: tile.ArgReduce) -> None:
    """The extreme along an axis, and its index."""
    x = s.held(op.x)
    index = to_spread(s, s.held(op.index), x.spread)
    if x.spread is None:
        s.define(op.results[0], x.values)
        s.define(op.results[1], index.values)
        return
    spread = x.spread.reshaped(x.shape)
    if step_along(op.index, op.axis) == 1:
        found = _counted(s, op, spread, x.values, index.values)
    else:
        items = list(zip(x.values, index.values, strict=True))
        found = combine_axis(s, items, spread, op.axis, lambda a, b: _pick(s, op.fn, a, b))
    out = spread.without(op.axis)
    _finish(s, op.results[0], [f[0] for f in found], x.dtype, out)
    _finish(s, op.results[1], [f[1] for f in found], index.dtype, out)


def _counted(
    s: Simt,
    op: tile.ArgReduce,
    spread: Spread,
    values: Sequence[Value],
    index: Sequence[Value],
) -> list[Item]:
    """Where indices count up along the axis: the extreme first, then the first place where it is.

    NaN is the extreme if there is any; then places that hold NaN count.
    """
    best = combine_axis(
        s, [(v,) for v in values], spread, op.axis, lambda a, b: (s.map(op.fn, a[0], b[0]),)
    )
    inner = sum(1 << k for k in _along(spread, op.axis)[0])
    starts = [r for r in range(spread.registers) if not r & inner]
    extreme = dict(zip(starts, [item[0] for item in best], strict=True))
    none = s.i32(spread.shape[op.axis])
    floating = t.element(values[0].type).kind is Kind.FLOAT
    places: list[Item] = []
    for r, value in enumerate(values):
        hit = s.map("eq", value, extreme[r & ~inner])
        if floating:
            hit = s.map("or", hit, s.map("ne", value, value))
        places.append((s.map("select", hit, s.element_coordinate(spread, op.axis, r), none),))
    first = combine_axis(
        s, places, spread, op.axis, lambda a, b: (s.map("min", a[0], b[0]),)
    )
    found: list[Item] = []
    for r, (place,) in zip(starts, first, strict=True):
        dtype = t.element(index[r].type)
        base = s.map("sub", index[r], s.cast(s.coordinate(spread, op.axis), dtype))
        found.append((extreme[r], s.map("add", base, s.convert(place, dtype))))
    return found


# --- scans ---


def scan(s: Simt, op: tile.Scan) -> None:
    """Running combination along an axis, as its elements lie."""
    run_scan(s, op, _Scan)


def run_scan(
    s: Simt, op: tile.Scan, rule: Callable[[Simt, Spread, tile.Scan, DType], RunningSums]
) -> None:
    """Running combination along an axis, by some rule."""
    x = s.held(op.x)
    if x.spread is None:
        s.define(op.result, x.values)
        return
    dtype = wide(x.dtype)
    spread = x.spread.reshaped(x.shape)
    values = [s.convert(v, dtype) for v in x.values]
    found = rule(s, spread, op, dtype).run(values)
    held = Held(x.shape, x.dtype, spread, tuple([s.convert(v, x.dtype) for v in found]))
    s.define(op.result, to_spread(s, held, s.spread_of(op.result)).values)


class _Scan:
    """The scan of one tile.

    The bits of the axis, lowest first, fall into runs that belong to registers, lanes or warps.
    Each run takes what is scanned over the bits below it, and adds to every element the total of
    all that comes before the element's block of these lower bits.
    """

    def __init__(self, s: Simt, spread: Spread, op: tile.Scan, dtype: DType) -> None:
        self.s = s
        self.spread = spread
        self.fn = fn = op.fn
        self.reverse = op.reverse
        self.dtype = dtype
        place = {bit: ("reg", k) for k, bit in enumerate(spread.regs)}
        place.update({bit: ("lane", k) for k, bit in enumerate(spread.lanes) if bit is not None})
        place.update({bit: ("warp", k) for k, bit in enumerate(spread.warps) if bit is not None})
        self.runs: list[tuple[str, list[int]]] = []
        for bit in bits_of_dim(spread.shape, op.axis):
            kind, k = place[bit]
            if self.runs and self.runs[-1][0] == kind:
                self.runs[-1][1].append(k)
            else:
                self.runs.append((kind, [k]))
        # Bits of the axis that are done: of registers, lanes and warps.
        self.regs: list[int] = []
        self.lanes: list[int] = []
        self.warps: list[int] = []
        identity = fn.identity(dtype) if fn.identity is not None else 0
        assert not isinstance(identity, complex)
        self.identity = s.const(identity, dtype)

    def combine(self, before: Value, after: Value) -> Value:
        """What comes first stands first, as in a loop over the axis."""
        return self.s.map(self.fn, before, after)

    def run(self, values: list[Value]) -> list[Value]:
        """The scanned registers."""
        for kind, positions in self.runs:
            step = {"reg": self.registers, "lane": self.across_lanes, "warp": self.across_warps}
            values = step[kind](values, positions)
            done = {"reg": self.regs, "lane": self.lanes, "warp": self.warps}[kind]
            done += positions
        return values

    def mask(self, positions: Sequence[int]) -> int:
        """Bits as one number."""
        return sum(1 << k for k in positions)

    def last(self, register: int) -> int:
        """The register with the last element of the block of lower bits that one is in."""
        done = self.mask(self.regs)
        return register & ~done if self.reverse else register | done

    def ordered(self, positions: Sequence[int]) -> list[int]:
        """The values of a run in the order of the scan, as masks of register bits."""
        found = [0]
        for k in positions:
            found += [v | 1 << k for v in found]
        return found[::-1] if self.reverse else found

    def registers(self, values: list[Value], positions: Sequence[int]) -> list[Value]:
        """Blocks of one thread follow each other: their totals are carried along."""
        run = self.mask(positions)
        order = self.ordered(positions)
        groups = sorted({r & ~(run | self.mask(self.regs)) for r in range(len(values))})
        totals = {
            group | v: values[self.last(group | v)] for group in groups for v in order
        }
        if self.lanes or self.warps:
            totals = self.shared_totals(totals)
        result = list(values)
        for group in groups:
            carry = totals[group | order[0]]
            for v in order[1:]:
                for r in range(len(values)):
                    if r & ~self.mask(self.regs) == group | v:
                        result[r] = self.combine(carry, values[r])
                if v != order[-1]:
                    if self.lanes or self.warps:
                        carry = self.combine(carry, totals[group | v])
                    else:
                        carry = result[self.last(group | v)]
        return result

    def shared_totals(self, totals: dict[int, Value]) -> dict[int, Value]:
        """Totals, which the last lanes and warps of their blocks hold, in all threads."""
        s = self.s
        if not self.warps:
            source = self.last_lane(self.lanes)
            return {k: shuffle(s, v, "index", source) for k, v in totals.items()}
        done = {*self.lanes, *[LANE_BITS + k for k in self.warps]}
        others = [
            k
            for k, bit in enumerate(self.spread.threads)
            if bit is not None and k not in done
        ]
        count = 1 << len(others)
        place = _number(s, others)
        stored = memory_dtype(self.dtype)
        room = shared(s, self.dtype, count * len(totals), "scan")
        conditions = [self.at_last(sorted(done)), s.first_copy(self.spread.copies)]
        guard = s.all_of(conditions)
        masks = () if guard is None else (guard,)
        for j, v in enumerate(totals.values()):
            at = s.index("add", s.i32(j * count), place)
            s.emit(t.Store(room, at, s.convert(v, stored), masks, 0, loc=s.loc))
        found: dict[int, Value] = {}
        for j, k in enumerate(totals):
            at = s.index("add", s.i32(j * count), place)
            value = s.emit(t.Load(room, at, (), ScalarType(stored), 0, loc=s.loc))
            found[k] = s.convert(value, self.dtype)
        return found

    def at_last(self, positions: Sequence[int]) -> Value:
        """Whether the thread is the last one along some bits of its number."""
        s = self.s
        mask = self.mask(positions)
        found = s.index("and", s.thread, s.i32(mask))
        return s.index("eq", found, s.i32(0 if self.reverse else mask))

    def lane_with(self, clear: int, fill: int) -> Value:
        """The lane with some bits of its number cleared, then some set."""
        s = self.s
        lane = s.index("and", s.thread, s.i32(31 & ~clear))
        return s.index("or", lane, s.i32(fill))

    def last_lane(self, positions: Sequence[int]) -> Value:
        """The last lane along some bits."""
        mask = self.mask(positions)
        return self.lane_with(mask, 0 if self.reverse else mask)

    def before(self, values: list[Value]) -> dict[int, Value]:
        """Totals of the blocks of lower bits, by the register bits above them."""
        done = self.mask(self.regs)
        keys = sorted({r & ~done for r in range(len(values))})
        return {key: values[self.last(key)] for key in keys}

    def apply(self, values: list[Value], prefixes: dict[int, Value]) -> list[Value]:
        """Combines each element with what comes before its block."""
        done = self.mask(self.regs)
        return [self.combine(prefixes[r & ~done], v) for r, v in enumerate(values)]

    def across_lanes(self, values: list[Value], positions: Sequence[int]) -> list[Value]:
        """A scan of the lanes' totals in as many steps as the lane has bits."""
        s = self.s
        prefixes: dict[int, Value] = {}
        for key, total in self.before(values).items():
            before, running = self.identity, total
            if self.lanes:
                running = shuffle(s, running, "index", self.last_lane(self.lanes))
            lower = self.mask(self.lanes)
            for k in positions:
                clear = lower | 1 << k
                fill = 1 << k if self.reverse else lower
                other = shuffle(s, running, "index", self.lane_with(clear, fill))
                set_ = s.thread_bit(k)
                joined = self.combine(other, running)
                earlier = self.combine(other, before)
                pairs = (joined, running), (earlier, before)
                if self.reverse:
                    pairs = (running, joined), (before, earlier)
                running = s.map("select", set_, *pairs[0])
                before = s.map("select", set_, *pairs[1])
                lower |= 1 << k
            prefixes[key] = before
        return self.apply(values, prefixes)

    def across_warps(self, values: list[Value], positions: Sequence[int]) -> list[Value]:
        """The warps' totals go through shared memory; each thread combines those before its own."""
        s = self.s
        parts = 1 << len(positions)
        done = {*self.lanes, *[LANE_BITS + k for k in (*self.warps, *positions)]}
        others = [
            k
            for k, bit in enumerate(self.spread.threads)
            if bit is not None and k not in done
        ]
        count = 1 << len(others)
        place = _number(s, others)
        own = _number(s, [LANE_BITS + k for k in positions])
        totals = self.before(values)
        stored = memory_dtype(self.dtype)
        room = shared(s, self.dtype, count * parts * len(totals), "scan")
        lower = [*self.lanes, *[LANE_BITS + k for k in self.warps]]
        guard = s.all_of(
            [self.at_last(lower) if lower else None, s.first_copy(self.spread.copies)]
        )
        masks = () if guard is None else (guard,)
        for j, v in enumerate(totals.values()):
            row = s.index("add", s.index("mul", own, s.i32(len(totals))), s.i32(j))
            at = s.index("add", s.index("mul", row, s.i32(count)), place)
            s.emit(t.Store(room, at, s.convert(v, stored), masks, 0, loc=s.loc))
        prefixes: dict[int, Value] = {}
        order = list(range(parts))[::-1] if self.reverse else list(range(parts))
        for j, key in enumerate(totals):
            before = self.identity
            for part in order[:-1]:
                at = s.index("add", s.i32((part * len(totals) + j) * count), place)
                value = s.emit(t.Load(room, at, (), ScalarType(stored), 0, loc=s.loc))
                joined = self.combine(before, s.convert(value, self.dtype))
                comes = s.index("lt" if self.reverse else "gt", own, s.i32(part))
                before = s.map("select", comes, joined, before)
            prefixes[key] = before
        return self.apply(values, prefixes)


# --- flips ---


def flip_bits(s: Simt, op: tile.FlipBits) -> None:
    """Elements change places with those whose number differs in some bits."""
    x = s.held(op.x)
    spread = s.spread_of(op.result)
    if spread is None:
        s.define(op.result, x.values)
        return
    values = to_spread(s, x, spread).values
    start = bits_of_dim(x.shape, op.axis).start
    flipped = {start + k for k in range(op.mask.bit_length()) if op.mask >> k & 1}
    regs = sum(1 << k for k, bit in enumerate(spread.regs) if bit in flipped)
    lanes = sum(1 << k for k, bit in enumerate(spread.lanes) if bit in flipped)
    warps = sum(1 << k for k, bit in enumerate(spread.warps) if bit in flipped)
    moved = [values[r ^ regs] for r in range(len(values))]
    if warps:
        moved = _through_rows(s, moved, x.dtype, warps << LANE_BITS | lanes)
    elif lanes:
        by = s.i32(lanes)
        moved = [shuffle(s, v, "xor", by) for v in moved]
    s.define(op.result, moved)


def _through_rows(s: Simt, values: Sequence[Value], dtype: DType, mask: int) -> list[Value]:
    """Each thread reads what another one, with some bits flipped, has written: one row of shared
    memory for each register, so that neither side has conflicts."""
    stored = memory_dtype(dtype)
    room = shared(s, dtype, len(values) * s.threads, "flip")
    other = s.index("xor", s.thread, s.i32(mask))
    for r, v in enumerate(values):
        at = s.index("add", s.thread, s.i32(r * s.threads))
        s.emit(t.Store(room, at, s.convert(v, stored), (), 0, loc=s.loc))
    found: list[Value] = []
    for r in range(len(values)):
        at = s.index("add", other, s.i32(r * s.threads))
        value = s.emit(t.Load(room, at, (), ScalarType(stored), 0, loc=s.loc))
        found.append(s.convert(value, dtype))
    return found
