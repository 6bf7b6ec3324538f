"""Elementwise ops: arithmetic, comparisons, selection, parts of complex numbers, rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.graph.ops.base import Linear
from tessera.graph.ops.checks import tensor
from tessera.graph.ops.elementwise_base import (
    Binary,
    Elementwise,
    Unary,
    binary,
    filled,
    is_number,
    unary,
)
from tessera.graph.ops.rearrange import call, full_like
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.opdef import operand
from tessera.ir.types import TensorType

# --- arithmetic -------------------------------------------------------------------------------


class Add(Binary):
    """x + y."""

    name = "graph.add"
    scalar = "add"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return t

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return [cts[0] if isinstance(x, Linear) else None for x in operands]


class Sub(Binary):
    """x - y."""

    name = "graph.sub"
    scalar = "sub"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return neg(t) if k else t

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        x, y = operands
        return (
            cts[0] if isinstance(x, Linear) else None,
            neg(cts[0]) if isinstance(y, Linear) else None,
        )


class Mul(Binary):
    """x * y."""

    name = "graph.mul"
    scalar = "mul"

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        # Doubled last: then a cotangent that is the same for many elements is doubled once.
        if primals[0] is primals[1] and tangents[0] is tangents[1] is not None:
            return (mul(mul(tangents[0], primals[0]), 2),)
        return super().jvp(primals, tangents, outs)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return mul(t, primals[1 - k])

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        x, y = operands
        if isinstance(x, Linear):
            return mul(cts[0], y), None
        return None, mul(cts[0], x)


class Div(Binary):
    """x / y; of floating-point and complex numbers only."""

    name = "graph.div"
    scalar = "div"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        # Divided last: the gradients of x and y share the cotangent over y.
        y = primals[1]
        return div(neg(mul(t, out)), y) if k else div(t, y)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return div(cts[0], operands[1]), None


class FloorDiv(Binary):
    """floor(x / y); 0 for an integer x and y == 0."""

    name = "graph.floordiv"
    scalar = "floordiv"
    differentiable = False


class Mod(Binary):
    """x - y * floor(x / y), with the sign of y."""

    name = "graph.mod"
    scalar = "mod"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return neg(mul(t, floordiv(*primals))) if k else t


class TruncDiv(Binary):
    """x / y towards zero, of integers."""

    name = "graph.trunc_div"
    scalar = "trunc_div"
    differentiable = False


class Rem(Binary):
    """x - y * trunc(x / y), with the sign of x."""

    name = "graph.rem"
    scalar = "rem"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        if k == 0:
            return t
        # Not trunc(x / y): the quotient may round up to the next integer.
        x, y = primals
        return neg(mul(t, round_(div(sub(x, out), y))))


class Pow(Binary):
    """x ** y.

    The derivative in x is 0 where x and y are 0, and the derivative in y is 0 where x == 0; for
    x < 0 the latter is NaN.
    """

    name = "graph.pow"
    scalar = "pow"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        x, y = primals
        if k == 0:
            # Where 0 * inf would be NaN; elsewhere y may be 0 and the derivative have one in y.
            constant = call("and", eq(y, 0), call("not", gt(abs_(x), 0)))
            power = pow_(x, select(constant, 1, sub(y, 1)))
            return mul(t, select(constant, 0, mul(y, power)))
        zero = eq(x, 0)
        # log of 1, not of 0: -inf would spoil the derivative of this expression.
        logarithm = call("log", select(zero, 1, x))
        return mul(t, select(zero, 0, mul(out, logarithm)))


class Neg(Unary):
    """-x."""

    name = "graph.neg"
    scalar = "neg"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return neg(t)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (neg(cts[0]),)


class Abs(Unary):
    """|x|, a real number also for complex x. The derivative at 0 is 0."""

    name = "graph.abs"
    scalar = "abs"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        (x,) = primals
        if x.dtype.is_complex:
            return real(mul(t, conj(sign(x))))
        return mul(t, sign(x))


class Sign(Unary):
    """-1, 0 or 1 as x is negative, zero or positive; x / |x| of complex numbers, and 0 of 0."""

    name = "graph.sign"
    scalar = "sign"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        (x,) = primals
        if not x.dtype.is_complex:
            return None
        # Only the part of t across the direction of x turns it: out * i * Im(conj(out) t) / |x|.
        size = abs_(x)
        turn = div(imag(mul(t, conj(out))), select(eq(size, 0), 1, size))
        return mul(complex_(full_like(turn, 0), turn), out)


class Square(Unary):
    """x * x."""

    name = "graph.square"
    scalar = "square"

    def derivative(self, x: Any, out: Any) -> Any:
        return mul(x, 2)


class _Extremum(Binary):
    """Ties share the derivative equally."""

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        wins = (gt if self.scalar == "max" else lt)(primals[k], primals[1 - k])
        half = select(eq(*primals), full_like(t, 0.5), 0)
        return mul(t, select(wins, 1, half))


class Min(_Extremum):
    """The smaller of x and y, or NaN if either is. Ties share the derivative equally."""

    name = "graph.min"
    scalar = "min"


class Max(_Extremum):
    """The larger of x and y, or NaN if either is. Ties share the derivative equally."""

    name = "graph.max"
    scalar = "max"


class Fma(Elementwise):
    """x * y + z, rounded once."""

    name = "graph.fma"
    scalar = "fma"
    x: Value = operand()
    y: Value = operand()
    z: Value = operand()

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return t if k == 2 else mul(t, primals[1 - k])

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        x, y, z = operands
        return (
            mul(cts[0], y) if isinstance(x, Linear) else None,
            mul(cts[0], x) if isinstance(y, Linear) else None,
            cts[0] if isinstance(z, Linear) else None,
        )


add = binary(Add)
sub = binary(Sub)
mul = binary(Mul)
div = binary(Div)
floordiv = binary(FloorDiv)
mod = binary(Mod)
trunc_div = binary(TruncDiv)
rem = binary(Rem)
pow_ = binary(Pow)
neg = unary(Neg)
abs_ = unary(Abs)
sign = unary(Sign)
square = unary(Square)
minimum = binary(Min)
maximum = binary(Max)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    return bind(Fma, *filled(Fma, (x, y, z)))


# --- comparisons and selection ----------------------------------------------------------------


class Eq(Binary):
    """x == y."""

    name = "graph.eq"
    scalar = "eq"
    differentiable = False


class Ne(Binary):
    """x != y."""

    name = "graph.ne"
    scalar = "ne"
    differentiable = False


class Lt(Binary):
    """x < y."""

    name = "graph.lt"
    scalar = "lt"
    differentiable = False


class Le(Binary):
    """x <= y."""

    name = "graph.le"
    scalar = "le"
    differentiable = False


class Gt(Binary):
    """x > y."""

    name = "graph.gt"
    scalar = "gt"
    differentiable = False


class Ge(Binary):
    """x >= y."""

    name = "graph.ge"
    scalar = "ge"
    differentiable = False


class IsNan(Unary):
    """Whether x, or a part of it, is NaN."""

    name = "graph.isnan"
    scalar = "isnan"
    differentiable = False


class IsInf(Unary):
    """Whether x, or a part of it, is infinite."""

    name = "graph.isinf"
    scalar = "isinf"
    differentiable = False


class IsFinite(Unary):
    """Whether x is neither NaN nor infinite."""

    name = "graph.isfinite"
    scalar = "isfinite"
    differentiable = False


class Select(Elementwise):
    """x where the condition (bool) holds, else y."""

    name = "graph.select"
    scalar = "select"
    cond: Value = operand()
    x: Value = operand()
    y: Value = operand()

    def infer(self) -> TensorType:
        """The type of x and y; weak if both are."""
        x, y = tensor(self, 1), tensor(self, 2)
        found = super().infer()
        return TensorType(found.shape, found.dtype, x.weak and y.weak, found.policy)

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        _, x, y = tangents
        if x is None and y is None:
            return (None,)
        return (select(primals[0], 0 if x is None else x, 0 if y is None else y),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        cond, x, y = operands
        return (
            None,
            select(cond, cts[0], 0) if isinstance(x, Linear) else None,
            select(cond, 0, cts[0]) if isinstance(y, Linear) else None,
        )


eq = binary(Eq)
ne = binary(Ne)
lt = binary(Lt)
le = binary(Le)
gt = binary(Gt)
ge = binary(Ge)
isnan = unary(IsNan)
isinf = unary(IsInf)
isfinite = unary(IsFinite)


def select(cond: Any, x: Any, y: Any) -> Any:
    """x where the condition (bool) holds, else y; one of x and y may be a Python number."""
    if is_number(x) or is_number(y):
        x, y = filled(Select, (x, y))
    return bind(Select, cond, x, y)


# --- complex numbers and rounding -------------------------------------------------------------


class Real(Unary):
    """The real part; a real number is its own."""

    name = "graph.real"
    scalar = "real"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return real(t)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        return (complex_(ct, 0) if operands[0].type.dtype.is_complex else ct,)


class Imag(Unary):
    """The imaginary part; 0 of a real number."""

    name = "graph.imag"
    scalar = "imag"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return imag(t) if t.dtype.is_complex else None

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (complex_(0, neg(cts[0])) if operands[0].type.dtype.is_complex else None,)


class Conj(Unary):
    """The complex conjugate; a real number is its own."""

    name = "graph.conj"
    scalar = "conj"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return conj(t)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (conj(cts[0]),)


class Complex(Binary):
    """x + y*i, of real numbers."""

    name = "graph.complex"
    scalar = "complex"

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        re, im = tangents
        if re is None and im is None:
            return (None,)
        return (complex_(0 if re is None else re, 0 if im is None else im),)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        x, y = operands
        return (
            real(ct) if isinstance(x, Linear) else None,
            neg(imag(ct)) if isinstance(y, Linear) else None,
        )


class Floor(Unary):
    """The largest integer that is not above x."""

    name = "graph.floor"
    scalar = "floor"
    differentiable = False


class Ceil(Unary):
    """The smallest integer that is not below x."""

    name = "graph.ceil"
    scalar = "ceil"
    differentiable = False


class Trunc(Unary):
    """x without its fraction."""

    name = "graph.trunc"
    scalar = "trunc"
    differentiable = False


class Round(Unary):
    """The nearest integer; halves go to the even one."""

    name = "graph.round"
    scalar = "round"
    differentiable = False


real = unary(Real)
imag = unary(Imag)
conj = unary(Conj)
complex_ = binary(Complex)
floor = unary(Floor)
ceil = unary(Ceil)
trunc = unary(Trunc)
round_ = unary(Round)
