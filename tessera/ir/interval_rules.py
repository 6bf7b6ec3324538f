"""What each scalar function makes of intervals: a rule for each row of the scalar table.

`apply(row, operands, dtype)` is the only entry. A row without a rule gives any value of its dtype.
Functions that rise or fall everywhere are computed at the ends, in float64, and rounded; IEEE
operations are then exact bounds, and functions that compilers approximate get some units more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tessera.dtypes import DType, float32, iinfo
from tessera.ir.interval import (
    ANY,
    EMPTY,
    Interval,
    Number,
    finite_range,
    full_range,
    hull,
    point,
    rounded,
    spread_out,
    wrapped,
)
from tessera.ir.interval_functions import (
    EITHER,
    FALSE,
    INF,
    TRUE,
    Rule,
    and_,
    at,
    atan2,
    bit_count,
    clamped,
    copysign,
    corners,
    cosh,
    digamma,
    hypot,
    lgamma,
    logaddexp,
    monotone,
    mulhi,
    nextafter,
    not_,
    of_numbers,
    or_,
    rsqrt,
    same_number,
    shl,
    shr,
    signbit,
    tan,
    waves,
    xor,
)
from tessera.ir.scalar import scalar


def apply(row: str, operands: Sequence[Interval], dtype: DType) -> Interval:
    """What a row gives for operands in intervals.

    Args:
        row: its name in the scalar table.
        operands: one interval per operand.
        dtype: that of the operands of comparisons and tests, of the result for all else.
    """
    if "." in row:
        return _formatted(row, operands[0], dtype)
    rule = RULES.get(row)
    if rule is None or dtype.is_complex:
        return ANY
    if row not in _OF_NOTHING:
        if any(x.is_empty and not x.nan for x in operands):
            return EMPTY
        if any(x.is_empty for x in operands):
            return ANY if row in ("pow", "hypot") else EMPTY.or_nan()
    return rule(operands, dtype)


# Rules that say themselves what comes of NaN alone.
_OF_NOTHING = frozenset(
    (*("select", "isnan", "isinf", "isfinite", "signbit", "copysign"),
     *("eq", "ne", "lt", "le", "gt", "ge"))
)  # fmt: skip


# --- arithmetic ---------------------------------------------------------------------------------


def _add(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    clash = (a.hi == INF and b.lo == -INF) or (a.lo == -INF and b.hi == INF)
    low, high = a.lo + b.lo, a.hi + b.hi
    # An end where infinities meet: what is left may be anything on that side.
    low = -INF if isinstance(low, float) and math.isnan(low) else low
    high = INF if isinstance(high, float) and math.isnan(high) else high
    return of_numbers([low, high], xs, dtype, clash)


def _neg(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    found = Interval(-x.hi, -x.lo, x.nan)
    return found if dtype.is_float else wrapped(found, dtype)


def _sub(xs: Sequence[Interval], dtype: DType) -> Interval:
    b = xs[1]
    return _add([xs[0], Interval(-b.hi, -b.lo, b.nan)], dtype)


def _mul(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if not dtype.is_float:
        ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        return of_numbers(ends, xs, dtype, False)
    nan = (a.has_zero and b.has_infinity) or (b.has_zero and a.has_infinity)
    return of_numbers(corners("mul", a, b), xs, dtype, nan)


def _div(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    nan = (a.has_infinity and b.has_infinity) or (a.has_zero and b.has_zero)
    if b.has_zero:
        if a.lo == a.hi == 0:
            return of_numbers([0.0], xs, dtype, True)
        return of_numbers([-INF, INF], xs, dtype, nan)
    return of_numbers(corners("div", a, b), xs, dtype, nan)


def _floordiv(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if dtype.is_float:
        found = _div(xs, dtype)
        if found.is_empty or b.has_zero:
            return found
        ends = [x if math.isinf(x) else math.floor(x) for x in (found.lo, found.hi)]
        # NumPy's way by the remainder may be one off where the quotient is rounded up.
        return rounded(Interval(ends[0] - 1, ends[1]), dtype).or_nan(found.nan)
    return _integer_quotient(a, b, dtype, lambda x, y: x // y)


def _trunc_div(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    return _integer_quotient(a, b, dtype, _towards_zero)


def _towards_zero(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _integer_quotient(
    a: Interval, b: Interval, dtype: DType, divide: Callable[[int, int], int]
) -> Interval:
    divisors = [y for y in (b.lo, b.hi, -1, 1) if b.lo <= y <= b.hi and y != 0]
    ends: list[Number] = [0] if b.has_zero else []
    ends += [divide(int(x), int(y)) for x in (a.lo, a.hi) for y in divisors]
    if a.has_zero:
        ends.append(0)
    return wrapped(hull(ends), dtype)


def _mod(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    nan = dtype.is_float and (b.has_zero or a.has_infinity)
    if not dtype.is_float:
        below = max(int(b.hi) - 1, 0) if b.hi > 0 else 0
        above = min(int(b.lo) + 1, 0) if b.lo < 0 else 0
        if a.lo >= 0 and a.hi < b.lo:
            return a
        return Interval(above, below)
    # With the sign of b, and smaller; rounding may make it b itself.
    low, high = min(b.lo, 0.0), max(b.hi, 0.0)
    return of_numbers([low, high], xs, dtype, nan)


def _rem(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    most = min(a.magnitude, b.magnitude)
    low, high = (-most if a.lo < 0 else 0), (most if a.hi > 0 else 0)
    if not dtype.is_float:
        return Interval(low, high)
    # Of the smallest number by one that is no smaller comes a number, so ends stay as they are.
    nan = b.has_zero or a.has_infinity
    return of_numbers([low, high], xs, dtype, nan)


def _pow(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if not dtype.is_float:
        if a.lo >= 0 and b.lo >= 0 and b.hi <= 128:
            ends: list[Number] = [int(x) ** int(y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            return wrapped(hull([*ends, *([0] if a.lo == 0 and b.hi > 0 else [])]), dtype)
        return finite_range(dtype)
    if b.lo == b.hi and float(b.lo).is_integer():
        return _integer_power(a, float(b.lo), b, dtype)
    if a.lo < 0:
        return ANY
    found = hull(corners("pow", a, b) + ([1.0] if a.lo <= 1 <= a.hi or b.has_zero else []))
    if a.lo == 0 and b.lo < 0:
        found = Interval(found.lo, INF)
    nan = a.nan or b.nan
    return clamped(spread_out(rounded(found, dtype), dtype), 0, INF).or_nan(nan)


def _integer_power(a: Interval, n: float, b: Interval, dtype: DType) -> Interval:
    if n == 0:
        return point(1.0).or_nan(a.nan or b.nan)
    if n < 0 and a.has_zero:
        even = n % 2 == 0
        return rounded(Interval(0.0 if even else -INF, INF, a.nan or b.nan), dtype)
    ends = [at("pow", a.lo, n), at("pow", a.hi, n)]
    if n % 2 == 0 and a.has_zero:
        ends.append(0.0)
    found = spread_out(rounded(hull(ends), dtype), dtype)
    return (clamped(found, 0, INF) if n % 2 == 0 else found).or_nan(a.nan or b.nan)


def _abs(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.is_empty:
        return x
    found = Interval(x.least, x.magnitude, x.nan)
    return found if dtype.is_float else wrapped(found, dtype)


def _sign(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.is_empty:
        return x
    signs = [(v > 0) - (v < 0) for v in (x.lo, x.hi)]
    low, high = map(float if dtype.is_float else int, signs)
    return Interval(low, high, x.nan)


def square(xs: Sequence[Interval], dtype: DType) -> Interval:
    """A number times itself."""
    (x,) = xs
    if x.is_empty:
        return x
    ends = [x.least * x.least, x.magnitude * x.magnitude]
    return of_numbers(ends, xs, dtype, False)


def _min(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi), a.nan or b.nan)


def _max(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b = xs
    if a.is_empty or b.is_empty:
        return EMPTY.or_nan()
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def _fma(xs: Sequence[Interval], dtype: DType) -> Interval:
    a, b, c = xs
    product = Interval(*_ends(corners("mul", a, b))) if not (a.is_empty or b.is_empty) else EMPTY
    nan = (a.has_zero and b.has_infinity) or (b.has_zero and a.has_infinity)
    if product.is_empty or c.is_empty:
        return EMPTY.or_nan()
    # In float64 the product is rounded, and so is the sum; an end in between two numbers of the
    # dtype may so fall to the wrong side.
    found = spread_out(_add([product, c], dtype), dtype, 1.0)
    if product.has_infinity and not (a.has_infinity or b.has_infinity):
        # Infinite only because it was rounded too early: no NaN beside an infinity of c then.
        found = Interval(found.lo, found.hi, c.nan)
    return found.or_nan(nan or a.nan or b.nan)


def _ends(xs: Sequence[float]) -> tuple[float, float]:
    return min(xs), max(xs)


# --- comparisons --------------------------------------------------------------------------------


_Test: TypeAlias = Callable[[Interval, Interval], bool]


def _compare(always: _Test, never: _Test) -> Rule:
    """A comparison, which is false of NaN."""

    def rule(xs: Sequence[Interval], dtype: DType) -> Interval:
        a, b = xs
        nan = a.nan or b.nan
        if a.is_empty or b.is_empty or never(a, b):
            return FALSE
        return TRUE if always(a, b) and not nan else EITHER

    return rule


def _same(a: Interval, b: Interval) -> bool:
    return a.lo == a.hi == b.lo == b.hi


def _apart(a: Interval, b: Interval) -> bool:
    return a.hi < b.lo or b.hi < a.lo


_LT = _compare(lambda a, b: a.hi < b.lo, lambda a, b: a.lo >= b.hi)
_LE = _compare(lambda a, b: a.hi <= b.lo, lambda a, b: a.lo > b.hi)
_EQ = _compare(_same, _apart)


def _ne(xs: Sequence[Interval], dtype: DType) -> Interval:
    equal = _EQ(xs, dtype)
    return Interval(1 - equal.hi, 1 - equal.lo)


def _select(xs: Sequence[Interval], dtype: DType) -> Interval:
    c, a, b = xs
    if c.lo == c.hi:
        return a if c.lo else b
    return a.join(b)


def _isnan(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    return EITHER if x.nan and not x.is_empty else TRUE if x.nan else FALSE


def _isinf(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if not x.has_infinity:
        return FALSE
    return TRUE if x.lo == x.hi and not x.nan else EITHER


def _isfinite(xs: Sequence[Interval], dtype: DType) -> Interval:
    (x,) = xs
    if x.is_finite:
        return TRUE
    return FALSE if x.is_empty or (x.lo == x.hi and x.has_infinity) else EITHER


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "trunc_div": _trunc_div,
    "rem": _rem,
    "pow": _pow,
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "square": square,
    "min": _min,
    "max": _max,
    "fma": _fma,
    "and": and_,
    "or": or_,
    "xor": xor,
    "not": not_,
    "shl": shl,
    "shr": shr,
    "clz": bit_count,
    "popcount": bit_count,
    "mulhi": mulhi,
    "eq": _EQ,
    "ne": _ne,
    "lt": _LT,
    "le": _LE,
    "gt": lambda xs, dtype: _LT([xs[1], xs[0]], dtype),
    "ge": lambda xs, dtype: _LE([xs[1], xs[0]], dtype),
    "select": _select,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "exp": monotone("exp", image=(0.0, INF)),
    "exp2": monotone("exp2", image=(0.0, INF)),
    "expm1": monotone("expm1", image=(-1.0, INF)),
    "log": monotone("log", (0.0, INF)),
    "log1p": monotone("log1p", (-1.0, INF)),
    "log2": monotone("log2", (0.0, INF)),
    "log10": monotone("log10", (0.0, INF)),
    "sqrt": monotone("sqrt", (0.0, INF), exact=True),
    "rsqrt": rsqrt,
    "cbrt": monotone("cbrt"),
    "sin": waves("sin", math.pi / 2),
    "cos": waves("cos", 0.0),
    "tan": tan,
    "asin": monotone("asin", (-1.0, 1.0)),
    "acos": monotone("acos", (-1.0, 1.0), (0.0, INF), falls=True),
    "atan": monotone("atan"),
    "atan2": atan2,
    "sinh": monotone("sinh"),
    "cosh": cosh,
    "tanh": monotone("tanh", image=(-1.0, 1.0)),
    "asinh": monotone("asinh"),
    "acosh": monotone("acosh", (1.0, INF), (0.0, INF)),
    "atanh": monotone("atanh", (-1.0, 1.0)),
    "hypot": hypot,
    "logaddexp": logaddexp,
    "erf": monotone("erf", image=(-1.0, 1.0)),
    "erfc": monotone("erfc", image=(0.0, 2.0), falls=True),
    "erfinv": monotone("erfinv", (-1.0, 1.0)),
    "lgamma": lgamma,
    "digamma": digamma,
    "sigmoid": monotone("sigmoid", image=(0.0, 1.0)),
    "floor": monotone("floor", exact=True),
    "ceil": monotone("ceil", exact=True),
    "trunc": monotone("trunc", exact=True),
    "round": monotone("round", exact=True),
    "signbit": signbit,
    "copysign": copysign,
    "nextafter": nextafter,
    "real": same_number,
    "imag": lambda xs, dtype: point(0.0),
    "conj": same_number,
}


def _formatted(row: str, x: Interval, dtype: DType) -> Interval:
    """Rounding to a format, saturation and flushing: rows that are called `round.bf16.up`.

    All of them keep the order of numbers, so the ends bound what is between them.
    """
    if x.is_empty:
        return x
    ends = [row, row]
    if row.endswith(".stochastic"):
        # One of the two neighbours.
        ends = [row.replace("stochastic", way) for way in ("down", "up")]
    numbers = [np.asarray(float(v)).astype(dtype.np) for v in (x.lo, x.hi)]
    low, high = [float(scalar(r).evaluate(v)) for r, v in zip(ends, numbers, strict=True)]
    if math.isnan(low) or math.isnan(high):
        return full_range(dtype)
    return Interval(low, high, x.nan)


# --- conversion ---------------------------------------------------------------------------------


def cast(x: Interval, source: DType, target: DType) -> Interval:
    """What numbers become in another dtype; see `ir/convert.py`."""
    if source.is_complex or target.is_complex:
        return ANY if target.is_inexact else full_range(target)
    if target.is_bool:
        if x.is_empty and not x.nan:
            return EMPTY
        if not x.has_zero or x.is_empty:
            return TRUE
        return FALSE if x.lo == x.hi and not x.nan else EITHER
    if target.is_integer:
        if not source.is_float:
            return wrapped(x, target)
        limits = iinfo(target)
        ends: list[Number] = [] if x.is_empty else [
            limits.min if v <= limits.min else limits.max if v >= limits.max else math.trunc(v)
            for v in (x.lo, x.hi)
        ]
        return hull([*ends, *([0] if x.nan else [])])
    if not source.is_float and target.bits < 32 and not x.is_empty:
        # By way of float32: two roundings, which keep the order as one does.
        x = rounded(Interval(float(x.lo), float(x.hi)), float32)
    found = rounded(Interval(x.lo, x.hi), target) if not x.is_empty else x
    return found.or_nan(x.nan)
