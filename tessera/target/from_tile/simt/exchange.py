"""Moves tiles from one spread to another: by other names, by picking among copies, by shuffles, or
through shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, bool_, uint8
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.lowering import Held, Simt
from tessera.target.from_tile.simt.spread import Spread, flat_bits
from tessera.target.types import VecType
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
    held = {bit: value for bit, value in zip(source.elements, values, strict=True)}
    for flat, k in chosen.items():
        bit = s.thread_bit(k)
        low = {e: v for e, v in held.items() if not e >> flat & 1}
        held = {
            e: v if v is held[e | 1 << flat] else s.map("select", bit, held[e | 1 << flat], v)
            for e, v in low.items()
        }
    # What a thread bit of the target makes is left out of the number of the register's element.
    return [held[e] for e in target.elements]


def shared(s: Simt, dtype: DType, count: int, label: str) -> Value:
    """Room in shared memory for so many elements."""
    size = max(count * memory_dtype(dtype).itemsize, 16)
    return s.emit(g.Shared(size, 16, -1, label, loc=s.loc))


def memory_dtype(dtype: DType) -> DType:
    """What shared memory holds: bools as bytes."""
    return uint8 if dtype is bool_ else dtype


def _through_shared(s: Simt, source: Spread, target: Spread, x: Held) -> list[Value]:
    dtype = memory_dtype(x.dtype)
    data = [s.convert(v, dtype) for v in x.values]
    plan = through_memory(source.layout, target.layout, dtype.itemsize)
    count = 1 << flat_bits(target.shape)
    room = shared(s, x.dtype, count, "exchange")
    writer = _Side(s, plan.store.offsets, source, plan.store.vector)
    reader = _Side(s, plan.load.offsets, target, plan.load.vector)
    writer.store(room, data, dtype)
    found = reader.load(room, dtype)
    return [s.convert(v, x.dtype) for v in found]


class _Side:
    """The access of one spread to the shared copy of a tile."""

    def __init__(self, s: Simt, offsets: Layout, spread: Spread, vector: int) -> None:
        self.s = s
        self.spread = spread
        atom = offsets.linear
        columns = {name: [c[0] for c in atom.of_input(name)] for name in ("reg", "lane", "warp")}
        regs = columns["reg"] + [0] * (len(spread.regs) - len(columns["reg"]))
        self.thread = columns["lane"] + columns["warp"]
        self.own = s.mixed(self.thread)
        self.reach = 0
        for column in self.thread:
            self.reach |= column
        found = [0]
        for column in regs:
            found += [e ^ column for e in found]
        self.offsets = found
        self.vector = vector

    def groups(self) -> list[list[int]]:
        """Registers that one access moves, by neighbouring offsets."""
        place = {offset: r for r, offset in enumerate(self.offsets)}
        starts = sorted(o for o in place if o % self.vector == 0)
        return [[place[o + k] for k in range(self.vector)] for o in starts]

    def address(self, register: int) -> Value:
        """The element offset of a register."""
        s, offset = self.s, self.offsets[register]
        if offset & self.reach:
            return s.index("xor", self.own, s.i32(offset))
        return s.index("add", self.own, s.i32(offset))

    def store(self, room: Value, data: Sequence[Value], dtype: DType) -> None:
        """Writes the tile; one of several copies does."""
        s = self.s
        guard = s.first_copy(self.spread.copies)
        mask = () if guard is None else (guard,)
        width = self.vector * dtype.itemsize
        for group in self.groups():
            value = data[group[0]]
            if len(group) > 1:
                value = s.emit(g.Pack([data[r] for r in group], loc=s.loc))
            s.emit(t.Store(room, self.address(group[0]), value, mask, width, loc=s.loc))

    def load(self, room: Value, dtype: DType) -> list[Value]:
        """Reads the tile."""
        s = self.s
        width = self.vector * dtype.itemsize
        found: dict[int, Value] = {}
        for group in self.groups():
            type = VecType(len(group), dtype) if len(group) > 1 else ScalarType(dtype)
            value = s.emit(t.Load(room, self.address(group[0]), (), type, width, loc=s.loc))
            for lane, register in enumerate(group):
                found[register] = (
                    s.emit(t.Extract(value, lane, loc=s.loc)) if len(group) > 1 else value
                )
        return [found[r] for r in range(len(found))]
