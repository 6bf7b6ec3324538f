"""Loops that carry an extreme and its place.

A step compares twice, as NaN is to win and the first one to stay, and the next one waits for both.
Numbers alone take one comparison, for which only the place waits, beside `max` in one instruction;
whether there was a NaN is one bit for every two lanes. If there was, the loop runs again as it is
stated:

    best, at = for i: wins = not (x[i] <= best) and not isnan(best)
                      yield wins ? x[i] : best, wins ? number : at
    ==>
    best, at, bad = for i: wins = x[i] > best
                           yield wins ? x[i] : best, wins ? number : at,
                                 bad | isnan(lower x[i]) | isnan(upper x[i])
    best, at = for i: ... as it was, if any bad
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.dtypes import bool_, float32, float64
from tessera.ir.core import Op, Value
from tessera.ir.effects import WRITE
from tessera.ir.scalar import scalar
from tessera.ir.walk import uses
from tessera.target import ops as t
from tessera.target.from_tile.counted_loop import counted_loop
from tessera.target.from_tile.extremes import either
from tessera.target.from_tile.lowering import Lowering, constant_of
from tessera.target.types import VecType
from tessera.tile import ops as tile

CHEAP = 32
"""The cost of a step beside which a comparison counts, and which is written down twice."""

NARROWEST = 256
"""Bits of a register from which bits of lanes cost less than a comparison."""

FEWEST = 8
"""Steps that are worth a second loop, which most often does not run."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step does.

    Attributes:
        own: the ops that decide whether the new value wins, and what is carried on.
        x: the new value.
        number: its place.
        beats: the comparison by which a number wins.
    """

    own: frozenset[Op | None]
    x: Value
    number: Value
    beats: str


def search(
    s: Lowering, op: tile.For, stated: Callable[[], Sequence[Value]]
) -> Sequence[Value] | None:
    """The results of a loop that searches for a place; None where it is another one.

    Args:
        s: the lowering of the kernel.
        op: the loop.
        stated: emits it as it is, and returns its results.
    """
    step = _step_of(op) if s.machine.vector_bits >= NARROWEST else None
    if step is None or _count(s, op) < FEWEST:
        return None
    init = s.flatten(op.init)
    half = len(init) // 2
    if not all(isinstance(row.type, VecType) and t.lanes(row.type) % 2 == 0 for row in init[:half]):
        return None
    none = [s.const(False, VecType(t.lanes(row.type) // 2, bool_)) for row in init[:half]]

    def turn(bad: list[Value]) -> tuple[list[Value], list[Value]]:
        s.loc = op.loc
        carried = s.flatten(op.body.args[1:])
        best, at = carried[:half], carried[half:]
        rows, numbers = s.rows(step.x).values, s.rows(step.number).values
        wins = [s.map(step.beats, x, old) for x, old in zip(rows, best, strict=True)]
        best = [s.map("select", *row) for row in zip(wins, rows, best, strict=True)]
        at = [s.map("select", *row) for row in zip(wins, numbers, at, strict=True)]
        return [*best, *at], [either(s, x, b) for x, b in zip(rows, bad, strict=True)]

    others = [one for one in op.body.ops if one not in step.own]
    found, bad = counted_loop(s, op, others, none, turn)
    total = bad[0]
    for one in bad[1:]:
        total = s.map("or", total, one)
    if t.lanes(total.type) > 1:
        total = s.emit(t.ReduceLanes(total, scalar("or"), loc=op.loc))
    else:
        total = s.extract(total, 0)
    return s.branch(total, stated, lambda: found)


def _count(s: Lowering, op: tile.For) -> float:
    """Steps of a loop, many where they are not known."""
    lo, hi, step = [constant_of(s.scalar(v)) for v in (op.lo, op.hi, op.step)]
    return float("inf") if lo is None or hi is None or not step else (hi - lo) // step


def _step_of(op: tile.For) -> _Step | None:
    """What a loop does that looks for one place, among numbers of which some may be NaN."""
    code = op.body.ops
    if len(op.init) != 2 or op.parallel or any([o.regions or o.effects & WRITE for o in code]):
        return None
    if sum([o.fn.cost for o in code if isinstance(o, tile.Map)]) > CHEAP:
        return None
    (_, best, at), (value, place) = op.body.args, op.body.outputs
    type = tile.tile_type(best)
    if type.dtype not in (float32, float64) or type.shape != tile.tile_type(at).shape:
        return None
    match _operands(value, "select"), _operands(place, "select"):
        case (wins, x, old), (same, number, before) if wins is same:
            if old is not best or before is not at:
                return None
        case _:
            return None
    sides = [_operands(side, "not") for side in _operands(wins, "and")]
    if [len(side) for side in sides] != [1, 1]:
        return None
    (loses,), (is_nan,) = sides
    beats = [b for fn, b in (("le", "gt"), ("ge", "lt")) if _operands(loses, fn) == (x, best)]
    own = (value, place, *_operands(wins, "and"), loses, is_nan)
    count = uses(op.body)
    if not beats or _operands(is_nan, "isnan") != (best,):
        return None
    if count[wins] != 2 or any(count[one] != 1 for one in own):
        return None
    return _Step(frozenset([one.op for one in (wins, *own)]), x, number, beats[0])


def _operands(value: Value, fn: str) -> tuple[Value, ...]:
    """The operands of a row of the scalar table; none where a value is not its result."""
    op = value.op
    return op.args if isinstance(op, tile.Map) and op.fn.name == fn else ()
