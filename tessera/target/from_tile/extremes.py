"""Loops that carry extremes, and NaN beside them.

`max` is three instructions on x86, as NaN is to win, and the next step waits for two of them. Where
the lanes of a vector are combined behind the loop, one bit for each two of its lanes says whether
either was NaN, and what remains in the loop is an instruction, and half of one for these bits:

    best = for i: yield max(best, x[i])
    ==>
    best, bad = for i: yield x[i] > best ? x[i] : best, bad | isnan(lower x[i]) | isnan(upper x[i])
    best = bad ? nan : best, in the lower and the upper half
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import bool_, float32, float64
from tessera.ir.core import Op, Value
from tessera.ir.scalar import ScalarFn
from tessera.ir.walk import uses
from tessera.target import ops as t
from tessera.target.from_tile.lowering import Lowering
from tessera.target.machine import Feature
from tessera.target.types import VecType
from tessera.tile import ops as tile


def either(s: Lowering, x: Value, bad: Value) -> Value:
    """Whether one of two lanes was NaN, or is."""
    half = t.lanes(x.type) // 2
    parts = [s.pick(x, range(at, at + half)) for at in (0, half)]
    low, high = [s.map("ne", part, part) for part in parts]
    return s.map("or", bad, s.map("or", low, high))


def extreme_number(s: Lowering, x: Value, fn: ScalarFn) -> Value:
    """The extreme of lanes, a power of two, none of which is NaN."""
    lanes = t.lanes(x.type)
    while lanes > 1:
        lanes //= 2
        low, high = [s.pick(x, range(at, at + lanes)) for at in (0, lanes)]
        x = s.map("select", s.map("gt" if fn.name == "max" else "lt", high, low), high, low)
    return s.extract(x, 0)


class Extremes:
    """Those of a loop.

    Attributes:
        found: the op that makes each of them, by its place in what is carried.
    """

    def __init__(self, s: Lowering, op: tile.For) -> None:
        self.s = s
        self.loop = op
        self.found: dict[int, tile.Map] = {}
        if not op.pooled or not s.machine.has(Feature.AVX512F):
            return
        count = uses(op.body)
        for k, (arg, out) in enumerate(zip(op.body.args[1:], op.body.outputs, strict=True)):
            one = out.op
            if not isinstance(one, tile.Map) or one.fn.name not in ("max", "min"):
                continue
            lanes = tile.tile_type(out).shape[-1]
            dtype = tile.tile_type(out).dtype
            is_wide = dtype in (float32, float64) and lanes >= 2 * s.machine.vector_lanes(
                dtype.bits
            )
            if is_wide and one.args[0] is arg and count[arg] == count[out] == 1:
                self.found[k] = one

    @property
    def others(self) -> list[Op]:
        """The ops of the body that are lowered as they are."""
        own = set(self.found.values())
        return [op for op in self.loop.body.ops if op not in own]

    def start(self) -> list[Value]:
        """No NaN so far: what is carried besides."""
        found = [row for k in self.found for row in self.s.rows(self.loop.init[k]).values]
        return [self.s.const(False, VecType(t.lanes(row.type) // 2, bool_)) for row in found]

    def step(self, bad: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """What the body yields, and what it yields besides."""
        s, body = self.s, self.loop.body
        new: list[Value] = []
        outputs: list[Value] = []
        for k, out in enumerate(body.outputs):
            if k not in self.found:
                outputs += s.rows(out).values
                continue
            op = self.found[k]
            s.loc = op.loc
            for best, x in zip(*[s.rows(v).values for v in op.args], strict=True):
                wins = s.map("gt" if op.fn.name == "max" else "lt", x, best)
                outputs.append(s.map("select", wins, x, best))
                new.append(either(s, x, bad[len(new)]))
        return outputs, new

    def finish(self, results: Sequence[Value], bad: Sequence[Value]) -> list[Value]:
        """The results, with NaN."""
        fixed: list[Value] = []
        rest = list(bad)
        for k, value in enumerate(self.loop.init):
            at = len(fixed)
            rows = list(results[at : at + len(self.s.rows(value).values)])
            if k in self.found:
                rows = [self.spread(row, rest.pop(0)) for row in rows]
            fixed += rows
        return fixed

    def spread(self, row: Value, bad: Value) -> Value:
        """NaN in both lanes of those that had one."""
        half = t.lanes(bad.type)
        both = self.s.emit(t.Shuffle(bad, bad, (*range(half), *range(half)), loc=self.s.loc))
        return self.s.map("select", both, self.s.const(float("nan"), row.type), row)
