"""Functions of float32 in fewer operations, for `fast_math`: a few units in the last place more.

Quotients of polynomials are our own fits by least squares on Chebyshev's nodes, weighted towards
their largest relative error; polynomials, those of Remez's algorithm (`tests/target/
fit_mathematics.py`). The bounds are those of `tests/numerics/test_fast_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tessera.dtypes import float32, int32
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.arithmetic import Pow
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.elementwise_base import Binary
from tessera.graph.ops.elementwise_math import (
    Acosh,
    Asinh,
    Atan2,
    Atanh,
    Erf,
    Erfc,
    Log,
    Log1p,
    Log2,
    Log10,
    LogAddExp,
    Sigmoid,
    Tanh,
)
from tessera.graph.ops.reshape import full_like
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func
from tessera.ir.types import TensorType

_TANH: Final = (
    (1.0, 0.13709132373332977, 0.003904774086549878, 2.873060293495655e-05,
     3.226234213116186e-08, -1.337910424809019e-11),
    (1.0, 0.4704246520996094, 0.027379661798477173, 0.00040024842019192874,
     1.3371201248446596e-06),
)  # fmt: skip
"""tanh(x) / x = p(x**2) / q(x**2) for |x| <= 9."""

_ERF: Final = (
    (1.1283791065216064, 0.19355259835720062, 0.053102511912584305, 0.0038836069870740175,
     0.00028456118889153004, 1.9865833564836066e-06),
    (1.0, 0.5048640966415405, 0.11535290628671646, 0.015207783319056034,
     0.0011856153141707182, 3.741787077160552e-05),
)  # fmt: skip
"""erf(x) / x = p(x**2) / q(x**2) for |x| <= 4."""

_LOG: Final = (
    0.3333333134651184, -0.250008225440979, 0.20001226663589478, -0.16623353958129883,
    0.14201778173446655, -0.13160239160060883, 0.1276145875453949, -0.07634197175502777,
)  # fmt: skip
"""log(1 + f) = f - f**2 / 2 + f**3 * p(f) for 1 + f between the roots of 1/2 and of 2."""

_LOG2: Final = (0.9617967009544373, 0.5770828723907471, 0.4117068946361542, 0.34020867943763733)
"""log2((1 + s) / (1 - s)) = 2 * log2(e) * s + s**3 * p(s**2) for |s| <= 0.1716."""

_ATAN: Final = (
    -0.33333152532577515, 0.19993774592876434, -0.142110675573349, 0.10666055232286453,
    -0.07552320510149002, 0.04321308434009552, -0.016368664801120758, 0.002920872764661908,
)  # fmt: skip
"""atan(x) = x + x**3 * p(x**2) for |x| <= 1."""

_ERFC: Final = (
    1.2769783735275269, -0.0927639827132225, -0.16603140532970428, 0.16405531764030457,
    -0.054204463958740234, -0.008059746585786343, 0.008632311597466469, 0.001313569606281817,
    -0.0012307001743465662, -0.0004010112606920302,
)  # fmt: skip
"""exp(x**2) * erfc(x) * (1 + 2 * x) in (x - 2) / (x + 2) for x between 0 and 10.06."""

LN2: Final = 0.6931471805599453
LOG2_E: Final = 1.4426950408889634
TWICE_LOG2_E: Final = (2.885390043258667, 3.851925982253235e-08)
"""The nearest float32, and what it lacks."""
LOG10_E: Final = 0.4342944819032518
ROOT_HALF: Final = 0x3F3504F3
SMALLEST: Final = 2.0**-126
LARGE: Final = 2.0**26
"""From here on x + 1 is x."""
INTEGERS: Final = 2.0**23
"""From here on all numbers are integers."""


Sum = Callable[[Any, Any, Any], Any]
"""a * b + c."""


def _apart(a: Any, b: Any, c: Any) -> Any:
    return e.add(e.mul(a, b), c)


def _horner(x: Any, coefficients: Sequence[float], sum_: Sum) -> Any:
    """A polynomial."""
    *rest, last = coefficients
    found: Any = full_like(x, last)
    for c in reversed(rest):
        found = sum_(found, x, full_like(x, c))
    return found


def _quotient(
    x: Any, limit: float, parts: tuple[Sequence[float], Sequence[float]], sum_: Sum
) -> Any:
    """An odd function that is 1 from a limit on."""
    inside = e.minimum(e.maximum(x, -limit), limit)
    square = e.mul(inside, inside)
    above, below = [_horner(square, part, sum_) for part in parts]
    return e.minimum(e.maximum(e.div(e.mul(inside, above), below), -1.0), 1.0)


def tanh(x: Any, sum_: Sum) -> Any:
    """At most 6 units in the last place."""
    return _quotient(x, 9.0, _TANH, sum_)


def erf(x: Any, sum_: Sum) -> Any:
    """At most 6 units in the last place."""
    return _quotient(x, 4.0, _ERF, sum_)


def _parts(x: Any) -> tuple[Any, Any]:
    """e and f of a positive normal number 2**e * (1 + f), 1 + f between the roots of 1/2 and 2."""
    bits = e.sub(e.bitcast(x, int32), ROOT_HALF)
    near_one = e.bitcast(e.add(e.and_(bits, 0x7FFFFF), ROOT_HALF), float32)
    return e.cast(e.shr(bits, 23), float32), e.sub(near_one, 1.0)


def _near_one(f: Any, sum_: Sum) -> Any:
    """log(1 + f)."""
    square = e.mul(f, f)
    return e.add(sum_(e.mul(square, f), _horner(f, _LOG, sum_), e.mul(square, -0.5)), f)


def _positive_log(x: Any, sum_: Sum) -> Any:
    """The logarithm of a positive normal number."""
    exponent, f = _parts(x)
    return sum_(exponent, full_like(x, LN2), _near_one(f, sum_))


def _whole_line(x: Any, found: Any) -> Any:
    """A logarithm of x with what it is of zero, of negative numbers, infinity and NaN."""
    found = e.select(e.lt(x, SMALLEST), float("-inf"), found)
    found = e.select(e.lt(x, 0.0), float("nan"), found)
    # Infinity and NaN stay.
    return e.select(e.lt(x, float("inf")), found, x)


def log(x: Any, sum_: Sum) -> Any:
    """At most 2 units in the last place; of what is below the smallest normal number, as of 0."""
    return _whole_line(x, _positive_log(x, sum_))


def log2(x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place; of what is below the smallest normal number, as of 0."""
    exponent, f = _parts(x)
    return _whole_line(x, sum_(_near_one(f, sum_), full_like(x, LOG2_E), exponent))


def log10(x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place; of what is below the smallest normal number, as of 0."""
    exponent, f = _parts(x)
    near = e.mul(_near_one(f, sum_), LOG10_E)
    return _whole_line(x, sum_(exponent, full_like(x, LN2 * LOG10_E), near))


def _log1p(x: Any, sum_: Sum) -> Any:
    """log(1 + x) for x > -1 that is not infinite: 1 + x = 2**e * (1 + f)."""
    bits = e.sub(e.bitcast(e.add(x, 1.0), int32), ROOT_HALF)
    exponent = e.and_(bits, -0x800000)
    # Four times 2**-e, which is a normal number where that is none.
    inverse = e.bitcast(e.sub(0x40800000, exponent), float32)
    near = e.bitcast(e.sub(e.bitcast(x, int32), exponent), float32)
    f = e.add(near, sum_(inverse, full_like(x, 0.25), full_like(x, -1.0)))
    exponent = e.cast(e.shr(bits, 23), float32)
    return sum_(exponent, full_like(x, LN2), _near_one(f, sum_))


def log1p(x: Any, sum_: Sum) -> Any:
    """At most 2 units in the last place."""
    found = e.select(e.eq(x, -1.0), float("-inf"), _log1p(x, sum_))
    found = e.select(e.lt(x, -1.0), float("nan"), found)
    return e.select(e.and_(e.lt(x, float("inf")), e.ne(x, 0.0)), found, x)


def logaddexp(x: Any, y: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place of the larger of its terms max(x, y) and
    log1p(exp(-|x - y|)).
    """
    # The difference of equal infinities is NaN.
    apart = e.select(e.eq(x, y), 0.0, e.sub(x, y))
    return e.add(e.maximum(x, y), _log1p(e.exp(e.neg(e.abs_(apart))), sum_))


def asinh(x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place."""
    a = e.abs_(x)
    b = e.minimum(a, LARGE)
    square = e.mul(b, b)
    above = e.add(b, e.div(square, e.add(e.sqrt(e.add(square, 1.0)), 1.0)))
    return e.copysign(_log_of_twice(a, above, sum_), x)


def acosh(x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place."""
    b = e.sub(e.minimum(x, LARGE), 1.0)
    above = e.add(b, e.sqrt(sum_(b, b, e.add(b, b))))
    return e.select(e.lt(x, 1.0), float("nan"), _log_of_twice(x, above, sum_))


def _log_of_twice(a: Any, above: Any, sum_: Sum) -> Any:
    """log(1 + above), or log(2 a) where a is large."""
    is_large = e.gt(a, LARGE)
    found = _log1p(e.select(is_large, a, above), sum_)
    found = e.add(found, e.select(is_large, full_like(a, LN2), 0.0))
    return e.select(e.lt(a, float("inf")), found, a)


def atanh(x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place."""
    a = e.abs_(x)
    above = e.div(e.add(a, a), e.sub(1.0, a))
    found = e.mul(_log1p(above, sum_), 0.5)
    found = e.select(e.eq(a, 1.0), float("inf"), found)
    return e.copysign(e.select(e.le(a, 1.0), found, float("nan")), x)


def sigmoid(x: Any, sum_: Sum) -> Any:
    """At most 4 units in the last place; 0 for x below -88.8, where it is below 2**-127."""
    return e.div(1.0, e.add(e.exp(e.neg(x)), 1.0))


def erfc(x: Any, sum_: Sum) -> Any:
    """At most 6 units in the last place."""
    a = e.minimum(e.abs_(x), 10.06)
    variable = e.div(e.sub(a, 2.0), e.add(a, 2.0))
    factor = e.div(_horner(variable, _ERFC, sum_), e.add(e.add(a, a), 1.0))
    square, lost = _exact_product(a, a, sum_)
    growth = e.exp(e.neg(square))
    found = e.mul(e.sub(growth, e.mul(growth, lost)), factor)
    found = e.select(e.lt(x, 0.0), e.sub(2.0, found), found)
    return e.select(e.eq(x, x), found, x)


def atan2(y: Any, x: Any, sum_: Sum) -> Any:
    """At most 3 units in the last place."""
    a, b = e.abs_(y), e.abs_(x)
    low, high = e.minimum(a, b), e.maximum(a, b)
    # Zeros have the angle 0 or pi; infinities, that of equal numbers.
    ratio = e.select(e.eq(low, high), 1.0, e.div(low, high))
    ratio = e.select(e.eq(high, 0.0), 0.0, ratio)
    square = e.mul(ratio, ratio)
    angle = sum_(e.mul(ratio, square), _horner(square, _ATAN, sum_), ratio)
    angle = e.select(e.gt(a, b), e.sub(math.pi / 2, angle), angle)
    angle = e.select(e.signbit(x), e.sub(math.pi, angle), angle)
    return e.copysign(angle, y)


def _exact_product(a: Any, b: Any, sum_: Sum) -> tuple[Any, Any]:
    """The rounded product, and what rounding lost."""
    product = e.mul(a, b)
    if sum_ is not _apart:
        return product, sum_(a, b, e.neg(product))
    a_high, b_high = [e.bitcast(e.and_(e.bitcast(x, int32), -0x1000), float32) for x in (a, b)]
    a_low, b_low = e.sub(a, a_high), e.sub(b, b_high)
    lost = e.sub(e.mul(a_high, b_high), product)
    lost = e.add(e.add(lost, e.mul(a_high, b_low)), e.mul(a_low, b_high))
    return product, e.add(lost, e.mul(a_low, b_low))


def _joined(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum of a larger and a smaller number, and what rounding lost."""
    total = e.add(a, b)
    return total, e.sub(b, e.sub(total, a))


def _log2_in_parts(x: Any, sum_: Sum) -> tuple[Any, Any]:
    """log2 of a positive number and what it lacks, to 29 bits."""
    is_tiny = e.lt(x, SMALLEST)
    exponent, f = _parts(e.select(is_tiny, e.mul(x, 2.0**24), x))
    exponent = e.sub(exponent, e.select(is_tiny, full_like(x, 24.0), 0.0))
    below, below_rest = _joined(full_like(f, 2.0), f)
    inverse = e.div(1.0, below)
    s = e.mul(f, inverse)
    back, lost = _exact_product(s, below, sum_)
    rest = e.sub(e.sub(e.sub(f, back), lost), e.mul(s, below_rest))
    square = e.mul(s, s)
    tail = e.mul(e.mul(s, square), _horner(square, _LOG2, sum_))
    high, low = TWICE_LOG2_E
    found, lost = _exact_product(s, full_like(s, high), sum_)
    rest = sum_(e.mul(rest, inverse), full_like(s, high), sum_(s, full_like(s, low), lost))
    exponent, found = _joined(exponent, found)
    return _joined(exponent, e.add(found, e.add(tail, rest)))


def pow_(x: Any, y: Any, sum_: Sum) -> Any:
    """At most 8 units in the last place."""
    a, size = e.abs_(x), e.abs_(y)
    high, low = _log2_in_parts(a, sum_)
    high = e.select(e.lt(a, float("inf")), high, a)
    high = e.select(e.eq(a, 0.0), float("-inf"), high)
    product, lost = _exact_product(y, high, sum_)
    rest = e.select(e.lt(e.abs_(product), 256.0), sum_(y, low, lost), 0.0)
    # Half of what is near the largest number, which the rounded product may be beyond.
    is_large = e.gt(product, 100.0)
    growth = e.exp2(e.select(is_large, e.sub(product, 1.0), product))
    found = e.mul(growth, e.add(e.mul(rest, LN2), 1.0))
    found = e.select(is_large, e.mul(found, 2.0), found)
    # 1 to any power, -1 to an infinite one, and anything to the power of 0 are 1.
    unit = e.or_(e.eq(x, 1.0), e.and_(e.eq(x, -1.0), e.eq(size, float("inf"))))
    found = e.select(e.or_(unit, e.eq(y, 0.0)), 1.0, found)
    half = e.mul(size, 0.5)
    whole = e.eq(size, e.floor(size))
    is_odd = e.and_(e.lt(size, 2 * INTEGERS), e.and_(whole, e.ne(half, e.floor(half))))
    negative = e.select(is_odd, e.neg(found), found)
    undefined = e.and_(e.and_(e.lt(x, 0.0), e.lt(a, float("inf"))), e.not_(whole))
    negative = e.select(undefined, float("nan"), negative)
    return e.select(e.signbit(x), negative, found)


FUNCTIONS: dict[type[GraphOp], Callable[..., Any]] = {
    Tanh: tanh,
    Erf: erf,
    Erfc: erfc,
    Sigmoid: sigmoid,
    Log: log,
    Log2: log2,
    Log10: log10,
    Log1p: log1p,
    LogAddExp: logaddexp,
    Asinh: asinh,
    Acosh: acosh,
    Atanh: atanh,
    Atan2: atan2,
    Pow: pow_,
}
"""What takes the place of an op of float32."""


LOOKED_UP: Final = frozenset({Erf, Erfc})
"""Functions that take as few operations without it where a machine looks tables of 16 numbers up.
"""


def expansion(cls: type[GraphOp], type: TensorType, fused: bool) -> Func:
    """The Graph of a function."""
    sum_ = e.fma if fused else _apart

    def run(*args: Any) -> list[Any]:
        return [FUNCTIONS[cls](*args, sum_)]

    types = [type] * (2 if issubclass(cls, Binary) else 1)
    func, captured = trace_function(run, types, "fast_math", cls.__name__.lower())
    assert not captured
    return func
