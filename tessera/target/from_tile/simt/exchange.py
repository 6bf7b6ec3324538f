"""Moves tiles from one spread to another: by other names, by picking among copies, or through
shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Value
from tessera.target.from_tile.simt.lowering import Held, Simt
from tessera.target.from_tile.simt.side import Side, memory_dtype, shared
from tessera.target.from_tile.simt.spread import Spread, flat_bits
from tessera.tile.layouts.convert import through_memory
from tessera.tile.layouts.layout import Layout


def to_spread(s: Simt, x: Held, spread: Spread | None) -> Held:
    """A tile as it shall lie."""
    if spread is None or x.spread is None or x.spread == spread:
        return x
    source = x.spread.reshaped(spread.shape)
    if source == spread:
        return Held(x.shape, x.dtype, spread, x.values)
    picked = _pick(s, source, spread, x.values)
    values = picked if picked is not None else _through_shared(s, source, spread, x)
    return Held(x.shape, x.dtype, spread, tuple(values))


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
