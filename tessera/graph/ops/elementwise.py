"""All elementwise ops: a class for each row of the scalar table, and the function that binds it.

Those on bits and on the representation of numbers are here; `arithmetic` and `elementwise_math`
have the others. Import from this module.
"""

from __future__ import annotations

from typing import Any

from tessera.graph.ops.arithmetic import (
    Abs,
    Add,
    Ceil,
    Complex,
    Conj,
    Div,
    Eq,
    Floor,
    FloorDiv,
    Fma,
    Ge,
    Gt,
    Imag,
    IsFinite,
    IsInf,
    IsNan,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Pow,
    Real,
    Rem,
    Round,
    Select,
    Sign,
    Square,
    Sub,
    Trunc,
    TruncDiv,
    abs_,
    add,
    ceil,
    complex_,
    conj,
    div,
    eq,
    floor,
    floordiv,
    fma,
    ge,
    gt,
    imag,
    isfinite,
    isinf,
    isnan,
    le,
    lt,
    maximum,
    minimum,
    mod,
    mul,
    ne,
    neg,
    pow_,
    real,
    rem,
    round_,
    select,
    sign,
    square,
    sub,
    trunc,
    trunc_div,
)
from tessera.graph.ops.elementwise_base import (
    Binary,
    Bitcast,
    Cast,
    Elementwise,
    Unary,
    binary,
    bitcast,
    cast,
    unary,
)
from tessera.graph.ops.elementwise_math import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atan2,
    Atanh,
    Cbrt,
    Cos,
    Cosh,
    Digamma,
    Erf,
    Erfc,
    Erfinv,
    Exp,
    Exp2,
    Expm1,
    Hypot,
    Lgamma,
    Log,
    Log1p,
    Log2,
    Log10,
    LogAddExp,
    Rsqrt,
    Sigmoid,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    erfinv,
    exp,
    exp2,
    expm1,
    hypot,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    rsqrt,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trigamma,
)
from tessera.ir.convert import bitcast_array, cast_array

__all__ = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "Binary",
    "Bitcast",
    "Cast",
    "Cbrt",
    "Ceil",
    "Clz",
    "Complex",
    "Conj",
    "CopySign",
    "Cos",
    "Cosh",
    "Digamma",
    "Div",
    "Elementwise",
    "Eq",
    "Erf",
    "Erfc",
    "Erfinv",
    "Exp",
    "Exp2",
    "Expm1",
    "Floor",
    "FloorDiv",
    "Fma",
    "Ge",
    "Gt",
    "Hypot",
    "Imag",
    "IsFinite",
    "IsInf",
    "IsNan",
    "Le",
    "Lgamma",
    "Log",
    "Log1p",
    "Log2",
    "Log10",
    "LogAddExp",
    "Lt",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "MulHi",
    "Ne",
    "Neg",
    "NextAfter",
    "Not",
    "Or",
    "Popcount",
    "Pow",
    "Real",
    "Rem",
    "Round",
    "Rsqrt",
    "Select",
    "Shl",
    "Shr",
    "Sigmoid",
    "Sign",
    "SignBit",
    "Sin",
    "Sinh",
    "Sqrt",
    "Square",
    "Sub",
    "Tan",
    "Tanh",
    "Trunc",
    "TruncDiv",
    "Unary",
    "Xor",
    "abs_",
    "acos",
    "acosh",
    "add",
    "and_",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "binary",
    "bitcast",
    "bitcast_array",
    "cast",
    "cast_array",
    "cbrt",
    "ceil",
    "clz",
    "complex_",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floordiv",
    "fma",
    "ge",
    "gt",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "lt",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "mulhi",
    "ne",
    "neg",
    "nextafter",
    "not_",
    "or_",
    "popcount",
    "pow_",
    "real",
    "rem",
    "round_",
    "rsqrt",
    "select",
    "shl",
    "shr",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "trigamma",
    "trunc",
    "trunc_div",
    "unary",
    "xor",
]


class And(Binary):
    """The bits of x and y; logical on bool."""

    name = "graph.and"
    scalar = "and"
    differentiable = False


class Or(Binary):
    """The bits of x or y; logical on bool."""

    name = "graph.or"
    scalar = "or"
    differentiable = False


class Xor(Binary):
    """The bits of either x or y; logical on bool."""

    name = "graph.xor"
    scalar = "xor"
    differentiable = False


class Not(Unary):
    """The bits that x has not; logical on bool."""

    name = "graph.not"
    scalar = "not"
    differentiable = False


class Shl(Binary):
    """x with its bits moved up by y; 0 for y < 0 and from the width on."""

    name = "graph.shl"
    scalar = "shl"
    differentiable = False


class Shr(Binary):
    """x with its bits moved down by y, keeping the sign."""

    name = "graph.shr"
    scalar = "shr"
    differentiable = False


class Clz(Unary):
    """The number of leading zero bits."""

    name = "graph.clz"
    scalar = "clz"
    differentiable = False


class Popcount(Unary):
    """The number of one bits."""

    name = "graph.popcount"
    scalar = "popcount"
    differentiable = False


class MulHi(Binary):
    """The upper half of the double-width product."""

    name = "graph.mulhi"
    scalar = "mulhi"
    differentiable = False


class SignBit(Unary):
    """Whether the sign is negative, of zero and NaN too."""

    name = "graph.signbit"
    scalar = "signbit"
    differentiable = False


class CopySign(Binary):
    """x with the sign of y. The derivative in x is 0 where x == 0."""

    name = "graph.copysign"
    scalar = "copysign"

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        if k == 1:
            return None
        # The sign of a zero result is 0, and that of any other the sign of y.
        return mul(t, mul(sign(primals[0]), sign(out)))


class NextAfter(Binary):
    """The next number from x towards y."""

    name = "graph.nextafter"
    scalar = "nextafter"
    differentiable = False


and_ = binary(And)
or_ = binary(Or)
xor = binary(Xor)
not_ = unary(Not)
shl = binary(Shl)
shr = binary(Shr)
clz = unary(Clz)
popcount = unary(Popcount)
mulhi = binary(MulHi)
signbit = unary(SignBit)
copysign = binary(CopySign)
nextafter = binary(NextAfter)
