"""Scalar functions of formats narrower than float32, or than a byte, that need their own code.

Most functions of such formats are those of a wider one, rounded (`target/passes/legalize.py`). Here
are the others: they read the bits, or would round twice.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.dtypes import float32, float64, int8, int64, uint8, uint16
from tessera.ir.core import Value
from tessera.target import ops as t
from tessera.target.build import Build


def nextafter(b: Build, x: Value, y: Value) -> Value:
    """The neighbour of x on the side of y: one more or one less as an integer."""
    dtype = t.element(x.type)
    carrier = uint8 if dtype.bits == 8 else uint16
    u, v = b.bitcast(x, carrier), b.bitcast(y, carrier)
    a, c = b.cast(x, float32), b.cast(y, float32)
    one, sign, none = b.like(u, 1), b.like(u, 1 << (dtype.bits - 1)), b.like(a, 0.0)
    grows = b.map("eq", b.map("lt", a, c), b.map("gt", a, none))
    away = b.select(grows, b.map("add", u, one), b.map("sub", u, one))
    smallest = b.map("or", b.map("and", v, sign), one)
    result = b.select(b.map("eq", a, none), smallest, away)
    stays = b.map("or", b.map("ne", c, c), b.map("eq", a, c))
    result = b.select(b.map("ne", a, a), u, b.select(stays, v, result))
    return b.bitcast(result, dtype)


def fma(b: Build, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once.

    The product is exact in float64, and the sum rounded to odd there: then its last bit says that
    something is missing, and rounding it to fewer bits rounds as the true value would.
    """
    p = b.map("mul", b.cast(x, float64), b.cast(y, float64))
    c = b.cast(z, float64)
    total = b.map("add", p, c)
    back = b.map("sub", total, p)
    rest = b.map("add", b.map("sub", p, b.map("sub", total, back)), b.map("sub", c, back))
    bits = b.bitcast(total, int64)
    one, none = b.like(bits, 1), b.like(total, 0.0)
    even = b.map("eq", b.map("and", bits, one), b.like(bits, 0))
    # An infinite total makes the rest NaN or infinite.
    finite = b.map("lt", b.map("abs", rest), b.like(rest, float("inf")))
    moves = b.map("and", b.map("and", even, finite), b.map("ne", rest, none))
    grows = b.map("eq", b.map("gt", rest, none), b.map("gt", total, none))
    moved = b.select(grows, b.map("add", bits, one), b.map("sub", bits, one))
    return b.cast(b.bitcast(b.select(moves, moved, bits), float64), t.element(x.type))


def copysign(b: Build, x: Value, y: Value) -> Value:
    """The bits of x with the sign of y; a conversion may change the sign of NaN."""
    dtype = t.element(x.type)
    carrier = uint8 if dtype.bits == 8 else uint16
    u, v = b.bitcast(x, carrier), b.bitcast(y, carrier)
    sign = b.like(u, 1 << (dtype.bits - 1))
    rest = b.like(u, (1 << (dtype.bits - 1)) - 1)
    bits = b.map("or", b.map("and", u, rest), b.map("and", v, sign))
    return b.bitcast(bits, dtype)


def _pattern(b: Build, x: Value) -> Value:
    """The four bits of an int4 in a byte."""
    byte = b.cast(x, int8)
    return b.map("and", byte, b.like(byte, 15))


def clz4(b: Build, x: Value) -> Value:
    """Leading zeros of four bits."""
    count = b.map("clz", _pattern(b, x))
    return b.cast(b.map("sub", count, b.like(count, 4)), t.element(x.type))


def popcount4(b: Build, x: Value) -> Value:
    """Ones among four bits."""
    return b.cast(b.map("popcount", _pattern(b, x)), t.element(x.type))


def mulhi4(b: Build, x: Value, y: Value) -> Value:
    """The upper half of a product of eight bits."""
    product = b.map("mul", b.cast(x, int8), b.cast(y, int8))
    return b.cast(b.map("shr", product, b.like(product, 4)), t.element(x.type))


NARROW: dict[str, Callable[..., Value]] = {
    "nextafter": nextafter,
    "fma": fma,
    "copysign": copysign,
    "clz": clz4,
    "popcount": popcount4,
    "mulhi": mulhi4,
}
"""By name; operands and result have the narrow dtype."""
