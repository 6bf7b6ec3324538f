"""The floating-point remainder of a quotient towards zero.

A quotient is rounded to its whole part q, or to the next whole number; x - q y is exact while q has
as many bits as a factor may have: with a fused multiply-add, or for float32 in float64. It is
negative where q was rounded up. Beyond that lanes get the C library's result, in a branch that is
taken only if there is such a lane.
"""

from __future__ import annotations

import math

from tessera.dtypes import float32, float64
from tessera.ir.core import Value
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.expression import Num, where_any

SINGLE, DOUBLE = 2.0**24, 2.0**53
"""Quotients with a fused multiply-add are below these."""

WIDENED = 2.0**28
"""Quotients of float32 whose product with a divisor is exact in float64."""


def rem(b: Build, x: Value, y: Value) -> Value:
    """The remainder of x / y, with the sign of x; the C library's without fused multiply-adds of
    float64."""
    dtype = t.element(x.type)
    if not b.fused and dtype is float64:
        return b.map("rem", x, y)
    u, v = (x, y) if b.fused else (b.cast(x, float64), b.cast(y, float64))
    limit = (SINGLE if dtype is float32 else DOUBLE) if b.fused else WIDENED
    dividend, divisor, none = b.map("abs", u), b.map("abs", v), b.like(u, 0.0)
    ratio = b.map("abs", b.map("div", u, v))
    whole = b.map("trunc", ratio)
    rest = b.fma(b.map("neg", whole), divisor, dividend)
    rest = b.select(b.map("lt", rest, none), b.map("add", rest, divisor), rest)
    # An infinite divisor times 0 is no number.
    rest = b.select(b.map("eq", whole, none), dividend, rest)
    result = b.cast(b.map("copysign", rest, u), dtype)
    # What is no number, as the remainder of a division by 0, has been found.
    known = b.map("and", b.map("lt", dividend, b.like(u, math.inf)), b.map("gt", divisor, none))
    large = b.map("and", b.map("ge", ratio, b.like(u, limit)), known)
    operands = [Num(b, x), Num(b, y)]

    def library(x: Num, y: Num) -> Num:
        return Num(x.b, x.b.map("rem", x.value, y.value))

    return where_any(Num(b, large), library, operands, Num(b, result)).value
