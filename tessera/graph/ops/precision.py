"""What numerics policies do to numbers, as ops: rounding to a format, saturation, flushing.

All of them give the dtype that they take: their results are numbers of the format, so that the
conversion to it, which follows as an op of its own, changes nothing.

Their derivatives are those of the identity ("straight through"), but that of a saturated number is
0: what rounding does to a tangent is noise, what saturation does is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DType, float32, float64
from tessera.errors import DTypeError
from tessera.graph.ops.checks import tensor, title
from tessera.graph.ops.elementwise import Elementwise, abs_, bitcast, cast, le, mul, or_, shr, sub
from tessera.graph.ops.elementwise_base import filled
from tessera.graph.ops.generate import random_bits
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.numerics import Rounding
from tessera.ir.opdef import attr, operand
from tessera.ir.rounding import GRIDS, Grid
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import TensorType


class Formatted(Elementwise):
    """Base of the ops that make numbers of a format.

    Attributes:
        dtype: the format.
    """

    def infer(self) -> TensorType:
        """The operand's type."""
        x, dtype = tensor(self, 0), self.__dict__["dtype"]
        for found, what in ((x.dtype, "the operand"), (dtype, "the format")):
            if not found.is_float:
                raise DTypeError(
                    f"{title(self)}: {what} is {found.full_name}",
                    loc=self.loc,
                    rule="numbers of a floating-point dtype are rounded to those of another",
                )
        return super().infer()

    @property
    def grid(self) -> Grid:
        """The numbers of the format."""
        return GRIDS[self.__dict__["dtype"]]


class RoundTo(Formatted):
    """x rounded to a number of a format. `%r = graph.round_to(%x) {dtype=bf16, rounding=up}`.

    Attributes:
        rounding: the mode, but stochastic; see `RoundStochastic`.
    """

    name = "graph.round_to"
    x: Value = operand()
    dtype: DType = attr()
    rounding: Rounding = attr(Rounding.NEAREST_EVEN)

    @property
    def row(self) -> ScalarFn:
        """The row of the format."""
        return scalar(f"round.{self.dtype}.{self.rounding.value}")

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Straight through."""
        return t


class RoundStochastic(Formatted):
    """x rounded to one of its neighbours in a format: away from zero where `u`, in [0, 1), is less
    than the fraction of the way to there. `%r = graph.round_stochastic(%x, %u) {dtype=bf16}`.
    """

    name = "graph.round_stochastic"
    x: Value = operand()
    u: Value = operand()
    dtype: DType = attr()

    @property
    def row(self) -> ScalarFn:
        """The row of the format."""
        return scalar(f"round.{self.dtype}.stochastic")

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Straight through."""
        return t if k == 0 else None


class Saturate(Formatted):
    """x, but the largest number of a format beyond it. `%r = graph.saturate(%x) {dtype=f8e4m3fn}`.

    NaN stays; infinities do not.
    """

    name = "graph.saturate"
    x: Value = operand()
    dtype: DType = attr()

    @property
    def row(self) -> ScalarFn:
        """The row of the format."""
        return scalar(f"saturate.{self.dtype}")

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Of what is not saturated."""
        inside = le(abs_(primals[0]), self.grid.largest)
        return mul(t, cast(inside, t.dtype))


class Flush(Formatted):
    """x, but zero of its sign below the smallest normal number of a format.
    `%r = graph.flush(%x) {dtype=f16}`.
    """

    name = "graph.flush"
    x: Value = operand()
    dtype: DType = attr()

    @property
    def row(self) -> ScalarFn:
        """The row of the format."""
        return scalar(f"flush.{self.dtype}")

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """Straight through."""
        return t


# --- functions --------------------------------------------------------------------------------


def round_to(x: Any, dtype: DType, rounding: Rounding = Rounding.NEAREST_EVEN) -> Any:
    """x rounded to a number of a format, in any mode but the stochastic one."""
    return bind(RoundTo, x, dtype=dtype, rounding=rounding)


def round_stochastic(x: Any, u: Any, dtype: DType) -> Any:
    """x rounded to a number of a format, by numbers in [0, 1)."""
    x, u = filled(RoundStochastic, (x, u))
    return bind(RoundStochastic, x, u, dtype=dtype)


def saturate(x: Any, dtype: DType) -> Any:
    """x within the finite numbers of a format."""
    return bind(Saturate, x, dtype=dtype)


def flush(x: Any, dtype: DType) -> Any:
    """x without numbers below the smallest normal one of a format."""
    return bind(Flush, x, dtype=dtype)


def unit(key: Any, shape: Sequence[Any], dtype: DType) -> Any:
    """Numbers in [0, 1), one for each element, by the words of a key: element n has word n.

    Multiples of 2**-23 in float32, and of 2**-32 in float64.
    """
    words = random_bits(key, shape)
    if dtype is float64:
        return mul(cast(words, float64), 2.0**-32)
    # The upper bits are the mantissa of a number in [1, 2).
    bits = or_(shr(words, 9), 0x3F800000)
    return sub(bitcast(bits, float32), 1.0)


def holds(wide: DType, narrow: DType) -> bool:
    """Whether all numbers of a format are numbers of another."""
    a, b = GRIDS[wide], GRIDS[narrow]
    # Subnormal numbers of the one may be normal ones of the other.
    reaches = a.least - a.mantissa <= b.least - b.mantissa
    return a.mantissa >= b.mantissa and reaches and a.largest >= b.largest


def round_cast(
    x: Any,
    dtype: DType,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturated: bool = False,
    flushed: bool = False,
    key: Any = None,
) -> Any:
    """x in another floating-point dtype: saturated, rounded, flushed and converted, by an op each.

    Args:
        x: a floating-point array.
        dtype: the dtype.
        rounding: the mode.
        saturated: whether what is too large becomes the largest finite number.
        flushed: whether subnormal numbers become zero.
        key: for stochastic rounding, a key `u32[2]`.
    """
    source: DType = x.dtype
    if not holds(dtype, source):
        wide = float64 if source is float64 else float32
        x = cast(x, wide)
        if saturated:
            x = saturate(x, dtype)
        if rounding is Rounding.STOCHASTIC:
            x = round_stochastic(x, unit(key, x.shape, wide), dtype)
        elif rounding is not Rounding.NEAREST_EVEN:
            x = round_to(x, dtype, rounding)
    elif saturated:
        x = saturate(cast(x, dtype), dtype)
    if flushed:
        # Where rounding is left to the conversion, only after it is known what is subnormal.
        x = flush(cast(x, dtype) if rounding is Rounding.NEAREST_EVEN else x, dtype)
    return cast(x, dtype)


__all__ = [
    "Flush",
    "Formatted",
    "RoundStochastic",
    "RoundTo",
    "Saturate",
    "flush",
    "holds",
    "round_cast",
    "round_stochastic",
    "round_to",
    "saturate",
    "unit",
]
