"""What CPUs take from the C library and GPUs have no instruction for: floating-point remainders and
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tessera.dtypes import float32, uint32, uint64
from tessera.ir.core import Block, Value
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.fold import Fold

Step = Callable[[Fold, Value], Value]


def _while(b: Fold, init: Value, going: Step, step: Step) -> Value:
    """`while going(x): x = step(x)`."""
    blocks: list[Block] = []
    for fn in (going, step):
        arg, inner = Value(init.type), b.inner()
        blocks.append(Block([arg], inner.ops, [fn(inner, arg)]))
    return b.emit(t.While([init], *blocks, loc=b.loc))


def rem(b: Build, x: Value, y: Value) -> Value:
    """The exact remainder of the quotient towards zero.

    The divisor is taken times powers of two until a quotient has few bits: its whole part times
    that is subtracted without rounding.
    """
    assert isinstance(b, Fold)
    bits = 20 if t.element(x.type) is float32 else 50
    zero, infinity, factor = b.like(x, 0.0), b.like(x, math.inf), b.like(x, 2.0**bits)
    a, d = b.map("abs", x), b.map("abs", y)
    divides = b.map("ne", d, zero)
    valid = b.map("and", b.map("lt", a, infinity), divides)
    start, divisor = b.select(valid, a, zero), b.select(divides, d, b.like(x, 1.0))

    def subtract(b: Fold, r: Value) -> Value:
        large = _while(
            b,
            divisor,
            lambda b, m: b.map("le", b.map("mul", m, factor), r),
            lambda b, m: b.map("mul", m, factor),
        )
        quotient = b.map("trunc", b.map("div", r, large))
        rest = b.map("fma", b.map("neg", quotient), large, r)
        # The quotient may have been rounded up to the next whole number.
        return b.select(b.map("lt", rest, zero), b.map("add", rest, large), rest)

    rest = _while(b, start, lambda b, r: b.map("ge", r, divisor), subtract)
    result = b.map("copysign", rest, x)
    known = b.map("and", valid, b.map("eq", y, y))
    return b.select(known, result, b.like(x, math.nan))


def nextafter(b: Build, x: Value, y: Value) -> Value:
    """The neighbour of x on the side of y: one more or one less as an integer."""
    dtype = t.element(x.type)
    carrier = uint32 if dtype is float32 else uint64
    u, v = b.bitcast(x, carrier), b.bitcast(y, carrier)
    one, sign, zero = b.like(u, 1), b.like(u, 1 << (dtype.bits - 1)), b.like(x, 0.0)
    grows = b.map("eq", b.map("lt", x, y), b.map("gt", x, zero))
    away = b.select(grows, b.map("add", u, one), b.map("sub", u, one))
    smallest = b.map("or", b.map("and", v, sign), one)
    result = b.select(b.map("eq", x, zero), smallest, away)
    stays = b.map("or", b.map("ne", y, y), b.map("eq", x, y))
    result = b.select(b.map("ne", x, x), u, b.select(stays, v, result))
    return b.bitcast(result, dtype)


LIBRARY: dict[str, Callable[..., Value]] = {"rem": rem, "nextafter": nextafter}
"""Functions of float32 and float64."""
