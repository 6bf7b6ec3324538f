"""Division of many numbers by few, as in a softmax, whose rows are divided by their sums.

A reciprocal is computed for each divisor, and each quotient corrected by its remainder (Markstein,
"Computation of elementary functions on the IBM RISC System/6000 processor", 1990): three
instructions a number instead of ten. That is right as long as nothing overflows or is close to the
subnormal numbers on the way; a thread whose numbers are not that tame divides in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import float32, float64
from tessera.ir.core import Value
from tessera.ir.scalar import ScalarFn, scalar
from tessera.target import gpu_ops as g
from tessera.target import ops as t
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
    conditions = [_is_tame(s, value) for value in divisors]
    if not rough:
        sizes = [s.map("abs", value) for value in dict.fromkeys(x)]
        most = sizes[0]
        for size in sizes[1:]:
            most = s.map("max", most, size)
        conditions.append(s.map("lt", most, s.const(LARGE, float32)))
    tame = conditions[0]
    for condition in conditions[1:]:
        tame = s.map("and", tame, condition)
    inverse = {value: _inverse(s, value) for value in divisors}

    def fast() -> list[Value]:
        found: list[Value] = []
        for a, b in zip(x, y, strict=True):
            minus, r = inverse[b]
            q = s.map("mul", a, r)
            found.append(q if rough else s.map("fma", s.map("fma", minus, q, a), r, q))
        return found

    return list(s.branch(tame, fast, lambda: _by_float64(s, x, y)))


def _once(s: Simt, fn: str, *args: Value) -> Value:
    """A row of the scalar table, computed once for all divisions by one number."""
    return s.pure(t.Map, args, scalar(fn))


def _is_tame(s: Simt, divisor: Value) -> Value:
    """Whether a divisor and its reciprocal are far from overflow; NaN and infinities are not."""
    size = _once(s, "abs", divisor)
    below = _once(s, "lt", size, s.const(LARGE, float32))
    return _once(s, "and", below, _once(s, "gt", size, s.const(SMALL, float32)))


def _inverse(s: Simt, divisor: Value) -> tuple[Value, Value]:
    """A divisor's negative, and its reciprocal, right to the last place if the divisor is tame."""
    minus = _once(s, "neg", divisor)
    r = s.pure(g.Approximate, divisor, "reciprocal")
    wrong = _once(s, "fma", minus, r, s.const(1.0, float32))
    return minus, _once(s, "fma", r, wrong, r)


def _by_float64(s: Simt, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
    """The quotients of all numbers, without branches, whose registers would be missed elsewhere.

    In float64 everything is far from overflow, and the quotient is right to the last place; rounded
    twice, it is that of float32, as 53 bits are more than twice 24. Where its remainder is NaN
    (infinities, zero divisors), the product with the reciprocal was right.
    """
    one = s.const(1.0, float64)
    inverse: dict[Value, tuple[Value, Value]] = {}
    for value in dict.fromkeys(y):
        wide = s.convert(value, float64)
        inverse[value] = s.map("neg", wide), s.map("div", one, wide)
    found: list[Value] = []
    for a, b in zip(x, y, strict=True):
        minus, r = inverse[b]
        wide = s.convert(a, float64)
        q = s.map("mul", wide, r)
        better = s.map("fma", s.map("fma", minus, q, wide), r, q)
        q = s.map("select", s.map("isnan", better), q, better)
        found.append(s.convert(q, float32))
    return found
