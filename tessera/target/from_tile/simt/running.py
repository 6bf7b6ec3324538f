"""Running sums whose order follows from the places of the terms (`ir.order.neighbours`).

A tile is combined bit after bit of the places along the scan, whether a bit belongs to registers,
lanes or warps: on the way up, each half learns the total of the other one; on the way down, from
the longest blocks to single places, the later half adds the total of the earlier one to what stands
before both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.target.from_tile.simt import reduction
from tessera.target.from_tile.simt.lowering import Simt
from tessera.target.from_tile.simt.spread import LANE_BITS, Spread, bits_of_dim
from tessera.tile import ops as tile

Held = dict[int, Value]
"""Values of a thread, by the register of the first place of their block."""

Down = Callable[[Held], Held]
"""What stands before the halves of some blocks, from what stands before the blocks."""


def scan(s: Simt, op: tile.Scan) -> None:
    """Running combination along an axis."""
    if op.exact:
        reduction.run_scan(s, op, Neighbours)
    else:
        reduction.scan(s, op)


class Neighbours:
    """The scan of one tile.

    Args:
        s: the lowering.
        spread: of the tile.
        op: the scan.
        dtype: in which it combines.
    """

    def __init__(self, s: Simt, spread: Spread, op: tile.Scan, dtype: DType) -> None:
        self.s = s
        self.spread = spread
        self.bits = bits_of_dim(spread.shape, op.axis)
        self.fn = op.fn
        self.reverse = op.reverse
        assert op.fn.identity is not None
        identity = op.fn.identity(dtype)
        assert not isinstance(identity, complex)
        self.identity = s.const(identity, dtype)
        self.lanes: list[int] = []

    def run(self, values: list[Value]) -> list[Value]:
        """The scanned registers."""
        spread, totals = self.spread, dict(enumerate(values))
        steps: list[Down] = []
        bits = list(self.bits)
        while bits:
            bit = bits.pop(0)
            if bit in spread.regs:
                down, totals = self.registers(totals, 1 << spread.regs.index(bit))
            elif bit in spread.lanes:
                down, totals = self.across_lanes(totals, spread.lanes.index(bit))
            else:
                warps = [spread.warps.index(bit)]
                while bits and bits[0] in spread.warps:
                    warps.append(spread.warps.index(bits.pop(0)))
                down, totals = self.across_warps(totals, warps)
            steps.append(down)
        before = dict.fromkeys(totals, self.identity)
        for down in reversed(steps):
            before = down(before)
        return [self.combine(before[r], v) for r, v in enumerate(values)]

    def combine(self, before: Value, after: Value) -> Value:
        """What comes first stands first."""
        return self.s.map(self.fn, before, after)

    def in_order(self, low: Value, high: Value) -> tuple[Value, Value]:
        """Two halves as the scan meets them."""
        return (high, low) if self.reverse else (low, high)

    def registers(self, totals: Held, mask: int) -> tuple[Down, Held]:
        """Halves in registers."""
        pairs = {r: self.in_order(v, totals[r | mask]) for r, v in totals.items() if not r & mask}

        def down(before: Held) -> Held:
            found: Held = {}
            for r, value in before.items():
                later = self.combine(value, pairs[r][0])
                found[r], found[r | mask] = self.in_order(value, later)
            return found

        return down, {r: self.combine(*pair) for r, pair in pairs.items()}

    def is_later(self, k: int) -> Value:
        """Whether the thread is in the later half, by a bit of its number."""
        bit = self.s.thread_bit(k)
        return self.s.map("not", bit) if self.reverse else bit

    def across_lanes(self, totals: Held, k: int) -> tuple[Down, Held]:
        """Halves in neighbouring lanes."""
        s = self.s
        by, later = s.i32(1 << k), self.is_later(k)
        others = {r: reduction.shuffle(s, v, "xor", by) for r, v in totals.items()}
        self.lanes.append(k)

        def joined(r: int, own: Value) -> Value:
            first = s.map("select", later, others[r], own)
            return self.combine(first, s.map("select", later, own, others[r]))

        def down(before: Held) -> Held:
            return {
                r: s.map("select", later, self.combine(v, others[r]), v)
                for r, v in before.items()
            }

        return down, {r: joined(r, v) for r, v in totals.items()}

    def across_warps(self, totals: Held, warps: Sequence[int]) -> tuple[Down, Held]:
        """Halves in neighbouring warps, for some bits at once: each thread takes all parts."""
        s = self.s
        items = [(v,) for v in totals.values()]
        parts = reduction.parts_of_warps(s, items, self.spread, self.lanes, warps)
        levels: dict[int, list[list[Value]]] = {}
        for r, found in zip(totals, parts, strict=True):
            level = [item[0] for item in found]
            levels[r] = [level]
            while len(level) > 1:
                pairs = [self.in_order(*level[k : k + 2]) for k in range(0, len(level), 2)]
                level = [self.combine(*pair) for pair in pairs]
                levels[r].append(level)

        def down(before: Held) -> Held:
            for j in reversed(range(len(warps))):
                later = self.is_later(LANE_BITS + warps[j])
                for r, value in before.items():
                    first = self.own(levels[r][j], warps[j + 1 :])
                    before[r] = s.map("select", later, self.combine(value, first), value)
            return before

        return down, {r: found[-1][0] for r, found in levels.items()}

    def own(self, level: Sequence[Value], warps: Sequence[int]) -> Value:
        """The earlier half of the pair that the warp is in, which some bits of its number tell."""
        found = [self.in_order(*level[k : k + 2])[0] for k in range(0, len(level), 2)]
        for k in warps:
            bit = self.s.thread_bit(LANE_BITS + k)
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [self.s.map("select", bit, high, low) for low, high in pairs]
        return found[0]
