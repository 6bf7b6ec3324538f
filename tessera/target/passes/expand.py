"""Expansions: scalar functions written with simpler ones.

Each row of `EXPANSIONS` rewrites one row of the shared scalar table for operands of the kinds that
the LLVM writer has no text for. The meaning stays that of the table, special cases included.
Transcendental functions are in `target/passes/mathematics.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.dtypes import Kind, int8, int16, int32, int64
from tessera.ir.core import Value
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.rounding import ROUNDINGS

_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}


def _kind(x: Value) -> Kind:
    return t.element(x.type).kind


def square(b: Build, x: Value) -> Value:
    """x * x."""
    return b.map("mul", x, x)


def identity(b: Build, x: Value) -> Value:
    """x."""
    del b
    return x


def zero(b: Build, x: Value) -> Value:
    """0."""
    return b.like(x, 0)


def sign(b: Build, x: Value) -> Value:
    """-1, 0 or 1; NaN of NaN."""
    one, none = b.like(x, 1), b.like(x, 0)
    positive = b.select(b.map("gt", x, none), one, none)
    if _kind(x) is Kind.UINT:
        return positive
    result = b.select(b.map("lt", x, none), b.like(x, -1), positive)
    return b.select(b.map("ne", x, x), x, result) if _kind(x) is Kind.FLOAT else result


def rsqrt(b: Build, x: Value) -> Value:
    """1 / sqrt(x)."""
    return b.map("div", b.like(x, 1.0), b.map("sqrt", x))


def logaddexp(b: Build, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) = max + log1p(exp(-|x - y|)); equal infinities need no difference."""
    high = b.map("max", x, y)
    gap = b.map("neg", b.map("abs", b.map("sub", x, y)))
    result = b.map("add", high, b.map("log1p", b.map("exp", gap)))
    equal = b.map("eq", x, y)
    return b.select(equal, b.map("add", x, b.like(x, 0.6931471805599453)), result)


def isnan(b: Build, x: Value) -> Value:
    """x is not itself."""
    return b.map("ne", x, x)


def isinf(b: Build, x: Value) -> Value:
    """|x| is infinite."""
    return b.map("eq", b.map("abs", x), b.like(x, float("inf")))


def isfinite(b: Build, x: Value) -> Value:
    """|x| is below infinity."""
    return b.map("lt", b.map("abs", x), b.like(x, float("inf")))


def signbit(b: Build, x: Value) -> Value:
    """The sign bit, read as an integer's sign."""
    bits = b.bitcast(x, _SIGNED[t.element(x.type).bits])
    return b.map("lt", bits, b.like(bits, 0))


def floordiv(b: Build, x: Value, y: Value) -> Value:
    """Floor division as Python has it."""
    if _kind(x) is Kind.FLOAT:
        return _float_divmod(b, x, y)[0]
    divisor = _divisor(y)
    if divisor and not divisor & (divisor - 1):
        return b.map("shr", x, b.like(x, divisor.bit_length() - 1))
    quotient = b.map("trunc_div", x, y)
    if _kind(x) is Kind.UINT:
        return quotient
    if divisor and t.lanes(x.type):
        # LLVM makes a remainder of `x - quotient * y`, which is another division for vectors.
        less = b.map("sub", quotient, b.like(x, 1))
        return b.select(b.map("gt", b.map("mul", quotient, y), x), less, quotient)
    remainder = b.map("rem", x, y)
    if divisor:
        return b.map("add", quotient, _sign(b, remainder))
    return b.select(_crosses(b, remainder, y), b.map("sub", quotient, b.like(x, 1)), quotient)


def mod(b: Build, x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor."""
    if _kind(x) is Kind.FLOAT:
        return _float_divmod(b, x, y)[1]
    divisor = _divisor(y)
    if divisor and not divisor & (divisor - 1):
        return b.map("and", x, b.like(x, divisor - 1))
    remainder = b.map("rem", x, y)
    if _kind(x) is Kind.UINT:
        return remainder
    if divisor:
        return b.map("add", remainder, b.map("and", _sign(b, remainder), y))
    return b.select(_crosses(b, remainder, y), b.map("add", remainder, y), remainder)


def _divisor(y: Value) -> int:
    """A divisor that is known and above 0; else 0."""
    value = y.op.value if isinstance(y.op, t.Const) else 0
    return max(int(value), 0)


def _sign(b: Build, x: Value) -> Value:
    """-1 where an integer is below 0, else 0."""
    return b.map("shr", x, b.like(x, t.element(x.type).bits - 1))


def _crosses(b: Build, remainder: Value, y: Value) -> Value:
    """Whether a truncated remainder is nonzero and has not the divisor's sign."""
    none = b.like(y, 0)
    differ = b.map("ne", b.map("lt", remainder, none), b.map("lt", y, none))
    return b.map("and", b.map("ne", remainder, none), differ)


def _float_divmod(b: Build, x: Value, y: Value) -> tuple[Value, Value]:
    """Quotient and remainder as NumPy computes them: the remainder is exact, the quotient is
    rounded to an integer.
    """
    none, one = b.like(x, 0.0), b.like(x, 1.0)
    truncated = remainder = b.map("rem", x, y)
    crosses = _crosses(b, remainder, y)
    quotient = b.map("div", b.map("sub", x, remainder), y)
    quotient = b.select(crosses, b.map("sub", quotient, one), quotient)
    remainder = b.select(crosses, b.map("add", remainder, y), remainder)
    remainder = b.select(b.map("eq", remainder, none), b.map("copysign", none, y), remainder)
    whole = b.map("floor", quotient)
    high = b.map("gt", b.map("sub", quotient, whole), b.like(x, 0.5))
    whole = b.select(high, b.map("add", whole, one), whole)
    ratio = b.map("div", x, y)
    whole = b.select(b.map("eq", quotient, none), b.map("copysign", none, ratio), whole)
    by_zero = b.map("eq", y, none)
    remainder = b.select(by_zero, truncated, remainder)
    # The ratio is exact where it is 0 or infinite: at the ends of the range.
    endless = b.map("or", isinf(b, x), isinf(b, y))
    return b.select(b.map("or", by_zero, endless), ratio, whole), remainder


def int_pow(b: Build, x: Value, y: Value) -> Value:
    """Integer power by repeated squaring; a negative exponent gives the truncated inverse."""
    one, none = b.like(x, 1), b.like(x, 0)
    result, base, rest = one, x, y
    for _ in range(8 * t.element(x.type).itemsize - (_kind(x) is Kind.INT)):
        bit = b.map("ne", b.map("and", rest, one), none)
        result = b.select(bit, b.map("mul", result, base), result)
        base = b.map("mul", base, base)
        rest = b.map("shr", rest, one)
    if _kind(x) is Kind.UINT:
        return result
    odd = b.map("ne", b.map("and", y, one), none)
    minus = b.like(x, -1)
    inverse = b.select(b.map("eq", x, one), one, none)
    inverse = b.select(b.map("eq", x, minus), b.select(odd, minus, one), inverse)
    return b.select(b.map("lt", y, none), inverse, result)


EXPANSIONS: dict[str, Callable[..., Value]] = {
    "square": square,
    "abs": identity,
    "conj": identity,
    "real": identity,
    "imag": zero,
    "sign": sign,
    "rsqrt": rsqrt,
    "logaddexp": logaddexp,
    "isnan": isnan,
    "isinf": isinf,
    "isfinite": isfinite,
    "signbit": signbit,
    "floordiv": floordiv,
    "mod": mod,
    "pow": int_pow,
    **ROUNDINGS,
}
