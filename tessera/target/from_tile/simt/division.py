"""Division of many numbers by few, as in a softmax, whose rows are divided by their sums.

A reciprocal is computed for each divisor, and each quotient corrected by its remainder (Markstein,
"Computation of elementary functions on the IBM RISC System/6000 processor", 1990): three
instructions a number instead of ten. That is right as long as nothing overflows or is close to the
subnormal numbers on the way; a thread whose numbers are not that tame divides as usual.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import float32
from tessera.ir.core import Value
from tessera.ir.scalar import ScalarFn
from tessera.target import gpu_ops as g
from tessera.target.from_tile.simt.lowering import Simt

FEW = 4
"""Numbers for each divisor from which on this pays."""

LARGE = 2.0**100
SMALL = 2.0**-100


def shares_divisors(fn: ScalarFn, args: Sequence[Sequence[Value]]) -> bool:
    """Whether an elementwise op divides many float32 by few."""
    if fn.name != "div":
        return False
    x, y = args
    return str(x[0].type) == "f32" and len(set(y)) * FEW <= len(set(zip(x, y, strict=True)))


def quotients(
    s: Simt, fn: ScalarFn, x: Sequence[Value], y: Sequence[Value], rough: bool
) -> list[Value]:
    """x / y, register by register; `rough` if the last bit does not matter, because what is needed
    is the quotient rounded to a much narrower format."""
    divisors = list(dict.fromkeys(y))
    large, small = s.const(LARGE, float32), s.const(SMALL, float32)
    # NaN and infinities fail these comparisons.
    conditions: list[Value] = []
    for value in divisors:
        size = s.map("abs", value)
        conditions += [s.map("lt", size, large), s.map("gt", size, small)]
    if not rough:
        sizes = [s.map("abs", value) for value in dict.fromkeys(x)]
        most = sizes[0]
        for size in sizes[1:]:
            most = s.map("max", most, size)
        conditions.append(s.map("lt", most, large))
    tame = conditions[0]
    for condition in conditions[1:]:
        tame = s.map("and", tame, condition)

    def fast() -> list[Value]:
        one = s.const(1.0, float32)
        inverse: dict[Value, tuple[Value, Value]] = {}
        for value in divisors:
            minus = s.map("neg", value)
            r = s.emit(g.Approximate(value, "reciprocal", loc=s.loc))
            r = s.map("fma", r, s.map("fma", minus, r, one), r)
            inverse[value] = minus, r
        found: list[Value] = []
        for a, b in zip(x, y, strict=True):
            minus, r = inverse[b]
            q = s.map("mul", a, r)
            found.append(q if rough else s.map("fma", s.map("fma", minus, q, a), r, q))
        return found

    def exact() -> list[Value]:
        return [s.map(fn, a, b) for a, b in zip(x, y, strict=True)]

    return list(s.branch(tame, fast, exact))
