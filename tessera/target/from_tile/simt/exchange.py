"""Moves tiles from one spread to another: by other names, by picking among copies, or through
shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target.from_tile.simt.lowering import Held, Simt
from tessera.target.from_tile.simt.side import Side, memory_dtype, shared
from tessera.target.from_tile.simt.spread import LANE_BITS, Spread, flat_bits
from tessera.tile.layouts.convert import LANES, Rename, Shuffle, conversion, through_memory
from tessera.tile.layouts.layout import Layout


def to_spread(s: Simt, x: Held, spread: Spread | None) -> Held:
    """A tile as it shall lie."""
    if spread is None or x.spread is None or x.spread == spread:
        return x
    source = x.spread.reshaped(spread.shape)
    if source == spread:
        return Held(x.shape, x.dtype, spread, x.values)
    picked = _pick(s, source, spread, x.values)
    if picked is None:
        picked = _move(s, source, spread, x)
    return Held(x.shape, x.dtype, spread, tuple(picked))


def _move(s: Simt, source: Spread, target: Spread, x: Held) -> list[Value]:
    """By whichever way costs least."""
    itemsize = memory_dtype(x.dtype).itemsize
    if not source.copies and not target.copies:
        plan = conversion(source.layout, target.layout, itemsize)
        if isinstance(plan, Rename):
            return [x.values[r] for r in plan.sources]
        if isinstance(plan, Shuffle):
            return _shuffled(s, plan, x)
    return _through_shared(s, source, target, x)


def _shuffled(s: Simt, plan: Shuffle, x: Held) -> list[Value]:
    """Exchanges between the lanes of each warp, round by round."""
    dtype = memory_dtype(x.dtype)
    data = [s.convert(v, dtype) for v in x.values]
    words = len(data) // plan.copies // plan.packed
    found: list[Value] = []
    for copy in range(plan.copies):
        parts: list[list[Value]] = []
        for element in range(plan.packed):
            start = copy * words * plan.packed + element
            offers = [data[start + w * plan.packed] for w in range(words)]
            received: list[Value] = []
            for one in plan.rounds:
                offer = _by_lane(s, one.give, offers)
                if not one.is_local:
                    lane = _by_lane(s, one.source, None)
                    offer = s.emit(g.ShuffleLanes(offer, lane, "index", loc=s.loc))
                received.append(offer)
            # In which round each lane gets a word differs from lane to lane.
            rounds = [
                tuple([_round(plan, lane, word) for lane in range(LANES)])
                for word in range(len(plan.rounds))
            ]
            parts.append([_by_lane(s, table, received) for table in rounds])
        found += [part[word] for word in range(len(plan.rounds)) for part in parts]
    return [s.convert(v, x.dtype) for v in found]


def _round(plan: Shuffle, lane: int, word: int) -> int:
    return next(k for k, one in enumerate(plan.rounds) if one.take[lane] == word)


def _by_lane(s: Simt, table: Sequence[int], values: Sequence[Value] | None) -> Value:
    """`values[table[lane]]`, or the number itself: the table is affine over the lane's bits."""
    columns = [table[1 << bit] ^ table[0] for bit in range(LANE_BITS)]
    if values is None:
        return s.index("xor", s.mixed(columns), s.i32(table[0]))
    varying = [1 << k for k in range(max(columns).bit_length()) if any(c >> k & 1 for c in columns)]
    chosen = {table[0] & ~sum(varying) | part: None for part in _spans(varying)}
    level = {index: values[index] for index in chosen}
    for bit in reversed(varying):
        # Whether the lane's number has this bit set in the table.
        mask = sum(1 << k for k, c in enumerate(columns) if c & bit)
        parity = s.mixed([int(mask >> k & 1) for k in range(LANE_BITS)])
        on = s.index("ne", parity, s.i32(1 if table[0] & bit else 0))
        level = {
            index: s.map("select", on, level[index | bit], value)
            for index, value in level.items()
            if not index & bit
        }
    (result,) = level.values()
    return result


def _spans(bits: Sequence[int]) -> list[int]:
    found = [0]
    for bit in bits:
        found += [v | bit for v in found]
    return found


def _pick(
    s: Simt, source: Spread, target: Spread, values: Sequence[Value]
) -> list[Value] | None:
    """Registers by other names; where lanes or warps held copies, each picks its own part."""
    chosen: dict[int, int] = {}
    for k, (old, new) in enumerate(zip(source.threads, target.threads, strict=True)):
        if old == new:
            continue
        if old is not None or new is None or new not in source.regs:
            return None
        chosen[new] = k
    held = dict(zip(source.elements, values, strict=True))
    for flat, k in chosen.items():
        bit = s.thread_bit(k)
        low = {e: v for e, v in held.items() if not e >> flat & 1}
        held = {
            e: v if v is held[e | 1 << flat] else s.map("select", bit, held[e | 1 << flat], v)
            for e, v in low.items()
        }
    # What a thread bit of the target makes is left out of the number of the register's element.
    return [held[e] for e in target.elements]


def _columns(offsets: Layout, name: str, count: int) -> list[int]:
    found = [column[0] for column in offsets.linear.of_input(name)]
    return found + [0] * (count - len(found))


def _through_shared(s: Simt, source: Spread, target: Spread, x: Held) -> list[Value]:
    dtype = memory_dtype(x.dtype)
    data = [s.convert(v, dtype) for v in x.values]
    plan = through_memory(source.layout, target.layout, dtype.itemsize)
    room = shared(s, x.dtype, 1 << flat_bits(target.shape), "exchange")
    sides: list[Side] = []
    for offsets, spread in ((plan.store.offsets, source), (plan.load.offsets, target)):
        threads = _columns(offsets, "lane", 5) + _columns(offsets, "warp", len(spread.warps))
        regs = _columns(offsets, "reg", len(spread.regs))
        sides.append(Side(s, threads, regs, dtype.itemsize))
    sides[0].store(room, data, dtype, s.first_copy(source.copies))
    return [s.convert(v, x.dtype) for v in sides[1].load(room, dtype)]
