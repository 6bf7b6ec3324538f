"""Functions of float32 in fewer operations, for `fast_math`: a few units in the last place more.

Quotients of polynomials, and polynomials, are our own fits by least squares on Chebyshev's nodes,
weighted towards their largest relative error. The bounds are those of `tests/numerics/
test_fast_math.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tessera.dtypes import float32, int32
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.elementwise_math import Erf, Log, Tanh
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

LN2: Final = 0.6931471805599453
ROOT_HALF: Final = 0x3F3504F3
SMALLEST: Final = 2.0**-126


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


def log(x: Any, sum_: Sum) -> Any:
    """At most 2 units in the last place; of what is below the smallest normal number, as of 0."""
    bits = e.sub(e.bitcast(x, int32), ROOT_HALF)
    exponent = e.cast(e.shr(bits, 23), float32)
    near_one = e.bitcast(e.add(e.and_(bits, 0x7FFFFF), ROOT_HALF), float32)
    f = e.sub(near_one, 1.0)
    square = e.mul(f, f)
    tail = sum_(e.mul(square, f), _horner(f, _LOG, sum_), e.mul(square, -0.5))
    found = sum_(exponent, full_like(x, LN2), e.add(tail, f))
    found = e.select(e.lt(x, SMALLEST), float("-inf"), found)
    found = e.select(e.lt(x, 0.0), float("nan"), found)
    # Infinity and NaN stay.
    return e.select(e.lt(x, float("inf")), found, x)


FUNCTIONS: dict[type[GraphOp], Callable[[Any, Sum], Any]] = {Tanh: tanh, Erf: erf, Log: log}
"""What takes the place of an op of float32."""


def expansion(cls: type[GraphOp], type: TensorType, fused: bool) -> Func:
    """The Graph of a function."""
    sum_ = e.fma if fused else _apart

    def run(x: Any) -> list[Any]:
        return [FUNCTIONS[cls](x, sum_)]

    func, captured = trace_function(run, [type], "fast_math", cls.__name__.lower())
    assert not captured
    return func
