"""Arithmetic on Target values written with operators, for expansions.

A ``Num`` is a scalar or a vector under construction: an operator on it appends one op to a
``Build``. The code of an expansion is thus the same for every lane count and, with the format's
numbers taken from ``Num.format``, for float32 and float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tessera.dtypes import DType, float32, float64, uint32, uint64
from tessera.ir.core import Block, Value
from tessera.ir.scalar import scalar
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.lookup_ops import Lookup


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """The layout of a floating-point format.

    Attributes:
        bits: the unsigned integer of the same width.
        mantissa: stored bits of the mantissa.
        bias: the bias of the exponent.
    """

    bits: DType
    mantissa: int
    bias: int

    @property
    def magic(self) -> float:
        """A number whose last place is 1: adding and subtracting it rounds to an integer, halves
        to the even one, for what is below half of it.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def epsilon(self) -> float:
        """The last place of 1."""
        return 2.0**-self.mantissa

    def code(self, value: float) -> int:
        """The bits of a power of two."""
        mantissa, exponent = value.hex().split("p")
        assert mantissa == "0x1.0000000000000", value
        return (int(exponent) + self.bias) << self.mantissa


SINGLE = Format(uint32, 23, 127)
DOUBLE = Format(uint64, 52, 1023)


class Grade(Enum):
    """How exact a computation has to be; each polynomial has coefficients for each grade."""

    SINGLE = "in float32, for a result in float32"
    SHORT = "in float64, for a result in float32"
    DOUBLE = "in float64, for a result in float64"


class Num:
    """A scalar or a vector.

    Attributes:
        b: where ops are appended.
        value: the Target value.
        grade: how exact it has to be.
    """

    __slots__ = ("b", "grade", "value")

    def __init__(self, b: Build, value: Value, grade: Grade | None = None) -> None:
        self.b = b
        self.value = value
        single = t.element(value.type) is float32
        self.grade = grade or (Grade.SINGLE if single else Grade.DOUBLE)

    @property
    def format(self) -> Format:
        """The layout of the numbers that the computation is about."""
        return SINGLE if self.grade is Grade.SINGLE else DOUBLE

    def const(self, value: bool | int | float) -> Num:
        """A constant of the same type."""
        return self._of(self.b.like(self.value, value))

    def widen(self) -> Num:
        """The float64 of a float32, for a result in float32."""
        return Num(self.b, self.b.cast(self.value, float64), Grade.SHORT)

    def narrow(self) -> Num:
        """The nearest float32."""
        return Num(self.b, self.b.cast(self.value, float32))

    def bits(self) -> Num:
        """The bits as unsigned integers."""
        return self._of(self.b.bitcast(self.value, self.format.bits))

    def floats(self) -> Num:
        """The numbers that have these bits."""
        dtype = float32 if self.grade is Grade.SINGLE else float64
        return self._of(self.b.bitcast(self.value, dtype))

    def map(self, name: str, *others: Operand) -> Num:
        """A row of the scalar table."""
        return self._of(self.b.map(name, self.value, *[self._value(x) for x in others]))

    @property
    def scales(self) -> bool:
        """Whether there is an instruction for `scale`."""
        count = max(t.lanes(self.value.type), 1)
        return self.b.scales and not count & (count - 1)

    def scale(self, power: Num) -> Num:
        """The number times two to a power that is rounded down, rounded once."""
        return self._of(self.b.emit(t.Scale(self.value, power.value, loc=self.b.loc)))

    @property
    def looks_up(self) -> bool:
        """Whether there is an instruction for `lookup`."""
        return self.b.looks_up and self.grade is Grade.SINGLE

    def lookup(self, table: tuple[float, ...]) -> Num:
        """The entries of a table of 16 or 32 float32 that the last four or five bits choose."""
        return self._of(self.b.emit(Lookup(self.value, table, loc=self.b.loc)))

    def __add__(self, other: Operand) -> Num:
        return self.map("add", other)

    def __radd__(self, other: Operand) -> Num:
        return self.map("add", other)

    def __sub__(self, other: Operand) -> Num:
        return self.map("sub", other)

    def __rsub__(self, other: float) -> Num:
        return self.const(other).map("sub", self)

    def __mul__(self, other: Operand) -> Num:
        return self.map("mul", other)

    def __rmul__(self, other: Operand) -> Num:
        return self.map("mul", other)

    def __truediv__(self, other: Operand) -> Num:
        return self.map("div", other)

    def __rtruediv__(self, other: float) -> Num:
        return self.const(other).map("div", self)

    def __neg__(self) -> Num:
        return self.map("neg")

    def __abs__(self) -> Num:
        return self.map("abs")

    def __lt__(self, other: Operand) -> Num:
        return self.map("lt", other)

    def __le__(self, other: Operand) -> Num:
        return self.map("le", other)

    def __gt__(self, other: Operand) -> Num:
        return self.map("gt", other)

    def __ge__(self, other: Operand) -> Num:
        return self.map("ge", other)

    def equals(self, other: Operand) -> Num:
        """Equality, lane by lane."""
        return self.map("eq", other)

    def differs(self, other: Operand) -> Num:
        """Inequality, lane by lane; true of NaN."""
        return self.map("ne", other)

    def __and__(self, other: Operand) -> Num:
        return self.map("and", other)

    def __or__(self, other: Operand) -> Num:
        return self.map("or", other)

    def __xor__(self, other: Operand) -> Num:
        return self.map("xor", other)

    def __invert__(self) -> Num:
        return self.map("not")

    def __lshift__(self, count: int) -> Num:
        return self.map("shl", count)

    def __rshift__(self, count: int) -> Num:
        return self.map("shr", count)

    def sqrt(self) -> Num:
        """The square root."""
        return self.map("sqrt")

    def with_sign(self, other: Num) -> Num:
        """The magnitude with the sign of another number."""
        return self.map("copysign", other)

    def rounded(self) -> Num:
        """The nearest integer of a magnitude below 2**21 (float32) or 2**50 (float64)."""
        magic = self.format.magic
        return (self + magic) - magic

    def _of(self, value: Value) -> Num:
        return Num(self.b, value, self.grade)

    def _value(self, x: Operand) -> Value:
        return x.value if isinstance(x, Num) else self.b.like(self.value, x)


Operand: TypeAlias = "Num | bool | int | float"


def where(condition: Num, a: Operand, b: Operand) -> Num:
    """``a`` where the condition holds, else ``b``; one of them may be a constant."""
    known = a if isinstance(a, Num) else b
    assert isinstance(known, Num)
    x, y = (v if isinstance(v, Num) else known.const(v) for v in (a, b))
    return Num(known.b, known.b.select(condition.value, x.value, y.value), known.grade)


def fma(a: Num, b: Operand, c: Operand) -> Num:
    """``a * b + c``, rounded once where the machine does that, else twice."""
    x, y = (v if isinstance(v, Num) else a.const(v) for v in (b, c))
    return Num(a.b, a.b.fma(a.value, x.value, y.value), a.grade)


def two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """The rounded sum and what rounding lost, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fast_two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """``two_sum`` for |a| >= |b|, or a = 0."""
    total = a + b
    return total, b - (total - a)


def upper_half(x: Num) -> Num:
    """The number with the lower half of its mantissa cleared: products of two are exact."""
    form = x.format
    low = (form.mantissa + 2) // 2
    return (x.bits() & ((1 << form.bits.bits) - (1 << low))).floats()


def two_product(a: Num, b: Num) -> tuple[Num, Num]:
    """The rounded product and what rounding lost, up to a last place of that; by halves of numbers
    (Dekker's method) on machines that do not fuse.
    """
    product = a * b
    if a.b.fused:
        return product, fma(a, b, -product)
    a_high, b_high = upper_half(a), upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    lost = ((a_high * b_high - product) + a_high * b_low) + a_low * b_high
    return product, lost + a_low * b_low


def where_any(
    condition: Num, compute: Callable[..., Num], operands: Sequence[Num], otherwise: Num
) -> Num:
    """``compute(*operands)`` in lanes where the condition holds, else ``otherwise``, in a branch
    that is taken if there is such a lane.
    """
    b, lanes = condition.b, t.lanes(condition.value.type)
    inner = b.inner()
    found = compute(*[Num(inner, x.value, x.grade) for x in operands]).value
    chosen = inner.select(condition.value, found, otherwise.value)
    taken = condition.value
    if lanes:
        taken = b.emit(t.ReduceLanes(taken, scalar("or"), loc=b.loc))
    then, stay = Block([], inner.ops, [chosen]), Block([], [], [otherwise.value])
    return Num(b, b.emit(t.If(taken, then, stay, loc=b.loc)), otherwise.grade)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The coefficients of a polynomial in each grade, lowest power first."""

    single: tuple[float, ...] = ()
    short: tuple[float, ...] = ()
    double: tuple[float, ...] = ()

    def __call__(self, x: Num) -> Num:
        """The value at x, by Horner's rule or in pairs of terms."""
        return evaluated(x, self._of(x.grade))

    def parts(self, x: Num) -> tuple[Num, Num]:
        """The constant coefficient and the other terms, by Horner's rule, which is more exact."""
        constant, *others = self._of(x.grade)
        return x.const(constant), x * horner(x, tuple(others))

    def _of(self, grade: Grade) -> tuple[float, ...]:
        rows = {Grade.SINGLE: self.single, Grade.SHORT: self.short, Grade.DOUBLE: self.double}
        return rows[grade]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Polynomials for 16 intervals, for machines that look tables of 16 numbers up.

    Attributes:
        columns: the coefficients of a power for each interval, lowest power first.
    """

    columns: tuple[tuple[float, ...], ...]

    def __call__(self, x: Num, index: Num) -> Num:
        """The values at x of the polynomials of intervals, by Horner's rule."""
        found: Num | None = None
        for column in reversed(self.columns):
            c = index.lookup(column)
            found = c if found is None else fma(found, x, c)
        assert found is not None
        return found


def evaluated(x: Num, coefficients: tuple[float, ...]) -> Num:
    """A polynomial, lowest power first, in the way that suits the machine."""
    return (in_pairs if x.b.pairs else horner)(x, coefficients)


def in_pairs(x: Num, coefficients: tuple[float, ...]) -> Num:
    """A polynomial, lowest power first, by Horner's rule for the square of x: one multiplication
    more, and half as many steps that wait for one another."""
    if len(coefficients) < 4:
        return horner(x, coefficients)
    square = x * x
    result: Num | None = None
    for k in reversed(range(0, len(coefficients), 2)):
        pair = horner(x, coefficients[k : k + 2])
        result = pair if result is None else fma(result, square, pair)
    assert result is not None
    return result


def horner(x: Num, coefficients: tuple[float, ...]) -> Num:
    """A polynomial, lowest power first."""
    result: Num | None = None
    for c in reversed(coefficients):
        result = x.const(c) if result is None else fma(result, x, c)
    assert result is not None
    return result
