"""The table of scalar functions, which every layer shares.

A row says what a function of one element is called, which dtypes it takes and gives, and what it
computes. Elementwise operations of the Graph, the maps of the Schedule, Tile and Target layers, and
the combining functions of reductions and scans all name rows of this table; a writer has one entry
for each row that it can emit. ``evaluate`` is the definition that compiled code is tested against.

Rules that hold for every row:

- operands have one dtype (``select`` takes a bool first); casts are operations of their own;
- integer results wrap around; no input traps, and none warns;
- integer division or remainder by zero gives 0;
- a shift by the width or more, or by a negative count, moves every bit out;
- formats narrower than float32 compute in float32 or float64 and round once;
- transcendental functions of float32 are those of float64, rounded.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import (
    DType,
    Kind,
    bool_,
    complex_of,
    dtype_of,
    finfo,
    float32,
    float64,
    iinfo,
    real_of,
)
from tessera.errors import DTypeError, VerifyError
from tessera.ir import bits, special
from tessera.ir.numerics import Rounding
from tessera.ir.rounding import GRIDS, Grid, flush_array, round_array, saturate_array

Array: TypeAlias = "npt.NDArray[Any]"
Number: TypeAlias = "bool | int | float"


class Sig(enum.Enum):
    """How the result's dtype follows from the operands'."""

    SAME = "T, ... -> T"
    PREDICATE = "T, ... -> bool"
    SELECT = "bool, T, T -> T"
    TO_REAL = "T -> the dtype of T's parts"
    FROM_REALS = "T, T -> the complex dtype of T"


class Precision(enum.Enum):
    """In which format ``compute`` is given its operands."""

    NATIVE = "the operands' own; float32 and int8 for formats narrower than NumPy's"
    WIDE = "float64 and complex128"
    BITS = "the operands' own, always"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScalarFn:
    """A row of the table. There is one object per name: compare with ``is``.

    Attributes:
        name: What the IR prints.
        text: What it computes, in one line.
        arity: Number of operands.
        sig: How the result's dtype follows.
        kinds: Kinds of dtype that it takes.
        compute: The computation on NumPy arrays in the format that ``precision`` says.
        precision: See there.
        cost: Rough cost relative to an addition: 1, 4 (division, square root), 16 (transcendental).
        commutative: Whether the first two operands may be exchanged.
        identity: For associative functions that reduce: the dtype's neutral element.
    """

    name: str
    text: str
    arity: int
    sig: Sig
    kinds: frozenset[Kind]
    compute: Callable[..., Array]
    precision: Precision = Precision.NATIVE
    cost: int = 1
    commutative: bool = False
    identity: Callable[[DType], Number] | None = None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<scalar {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], ScalarFn], tuple[str]]:
        return scalar, (self.name,)

    def __copy__(self) -> ScalarFn:
        return self

    def __deepcopy__(self, memo: object) -> ScalarFn:
        return self

    def evaluate(self, *operands: npt.ArrayLike) -> Array:
        """Apply the function to arrays (or NumPy scalars), with NumPy's broadcasting.

        Returns:
            An array of exactly ``result_dtype`` of the operands' dtypes, 0-d ones included.
        """
        arrays = [np.asarray(x) for x in operands]
        with np.errstate(all="ignore"):
            return self.on(*[dtype_of(x.dtype) for x in arrays])(*arrays)

    @functools.cache  # noqa: B019 - rows of the table live as long as the process
    def on(self, *dtypes: DType) -> Callable[..., Array]:
        """What `evaluate` does with operands of these dtypes, which are not looked at again.

        Values are as NumPy has them, or Python's; NumPy may warn of them.
        """
        result, compute = result_dtype(self, *dtypes), self.compute
        widths = [_width(d, self.precision) for d in dtypes]
        if isinstance(compute, np.ufunc) and not any(widths):

            def as_they_are(*operands: npt.ArrayLike) -> Array:
                return round_into(np.asarray(compute(*operands)), result)

            return as_they_are

        def found(*operands: npt.ArrayLike) -> Array:
            given = [
                np.asarray(x) if width is None else np.asarray(x).astype(width)
                for x, width in zip(operands, widths, strict=True)
            ]
            return round_into(np.asarray(compute(*given)), result)

        return found

    @functools.cache  # noqa: B019 - rows of the table live as long as the process
    def on_arrays(self, *dtypes: DType) -> Callable[..., Array]:
        """`on` for arrays of at least one dim, of exactly these dtypes.

        Interpreters do this for each op of a loop's body, and what NumPy gives is right as it is.
        """
        result, compute = result_dtype(self, *dtypes), self.compute
        if any(_width(d, self.precision) for d in dtypes):
            return self.on(*dtypes)
        if isinstance(compute, np.ufunc):
            loop = compute.resolve_dtypes((*[d.np for d in dtypes], None))
            return compute if loop[-1] == result.np else self.on(*dtypes)

        def found(*operands: Array) -> Array:
            return round_into(compute(*operands), result)

        return found


def result_dtype(fn: ScalarFn, *dtypes: DType) -> DType:
    """The dtype of ``fn`` applied to operands of these dtypes.

    Raises:
        DTypeError: The number of operands is wrong, their dtypes differ, or the kind is not one
            that the function takes.
    """
    if len(dtypes) != fn.arity:
        raise DTypeError(f"{fn.name}: takes {fn.arity} operands, but was given {len(dtypes)}")
    same = dtypes
    if fn.sig is Sig.SELECT:
        if dtypes[0] is not bool_:
            raise DTypeError(
                f"{fn.name}: the condition is {dtypes[0].full_name}, not bool",
                fix="compare it with zero first",
            )
        same = dtypes[1:]
    first = same[0]
    for other in same:
        if other is not first:
            names = ", ".join(d.full_name for d in same)
            raise DTypeError(
                f"{fn.name}: operands have different dtypes: {names}",
                rule="all operands have one dtype; casts are operations of their own",
                fix="cast the operands to their promoted dtype",
            )
    if first.kind not in fn.kinds or (fn.sig is Sig.FROM_REALS and first not in (float32, float64)):
        raise _wrong_kind(fn, first)
    if fn.sig is Sig.PREDICATE:
        return bool_
    if fn.sig is Sig.TO_REAL:
        return real_of(first)
    if fn.sig is Sig.FROM_REALS:
        return complex_of(first)
    return first


def _wrong_kind(fn: ScalarFn, dtype: DType) -> DTypeError:
    takes = ", ".join(kind.value for kind in Kind if kind in fn.kinds)
    fix = "cast it first"
    if fn.sig is Sig.FROM_REALS:
        takes = "float32 or float64"
    elif fn.name == "div":
        fix = "use floordiv or trunc_div, or cast to a floating-point type first"
    elif dtype.is_bool and fn.name in ("add", "mul", "min", "max"):
        fix = "use 'or' or 'and', or cast to an integer type first"
    return DTypeError(
        f"{fn.name}: {dtype.full_name} operands are not allowed",
        rule=f"{fn.name} takes {takes} operands",
        fix=fix,
    )


def _width(dtype: DType, precision: Precision) -> type[np.generic] | None:
    """What values of a dtype are converted to before they are computed with; None is nothing."""
    if precision is Precision.BITS:
        return None
    if precision is Precision.WIDE and dtype.is_inexact:
        wide = np.complex128 if dtype.is_complex else np.float64
        return None if dtype.np == wide else wide
    if dtype.is_float and dtype.bits < 32:
        return np.float32
    return np.int8 if dtype.bits < 8 else None


def round_into(x: Array, dtype: DType) -> Array:
    """Round float results into ``dtype`` once, or wrap integers into it."""
    if x.dtype == dtype.np:
        return x
    if x.dtype == np.float64 and dtype.is_float and dtype.bits < 32:
        # The narrow formats convert by way of float32, which would round twice.
        x = special.to_float32_odd(x)
    return np.asarray(x.astype(dtype.np))


# --- computations -----------------------------------------------------------------------------


def _floordiv(a: Array, b: Array) -> Array:
    found = np.floor_divide(a, b)
    if found.dtype.kind != "f":
        return found
    # NumPy's remainder is NaN beside an infinity, and so is its quotient.
    return np.where(np.isinf(a) | np.isinf(b), np.true_divide(a, b), found)


def _trunc_div(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    up = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return quotient + up.astype(quotient.dtype)


def _pow(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    result = np.power(a, np.where(b < 0, 0, b).astype(b.dtype))
    alternating = np.where(b & 1, a, 1)  # the powers of -1 and of 1
    reciprocal = np.where(np.abs(a) == 1, alternating, 0)
    return np.where(b < 0, reciprocal, result).astype(a.dtype)


def _signbit(x: Array) -> Array:
    return (bits.unsigned(x) >> (8 * x.dtype.itemsize - 1)).astype(np.bool_)


def _copysign(a: Array, b: Array) -> Array:
    u, v = bits.unsigned(a), bits.unsigned(b)
    sign = u.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    return np.asarray((u & ~sign) | (v & sign)).view(a.dtype)


def _nextafter(a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    exact = np.float64 if a.dtype == np.float64 else np.float32
    x, y = a.astype(exact), b.astype(exact)
    u, v = bits.unsigned(a), bits.unsigned(b)
    one: Any = u.dtype.type(1)
    sign: Any = u.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    away = np.asarray(np.where((x < y) == (x > 0), u + one, u - one), u.dtype)
    from_zero = np.asarray((v & sign) | one, u.dtype)
    result = np.where(np.isnan(y) | (x == y), v, np.where(x == 0, from_zero, away))
    return np.asarray(np.where(np.isnan(x), u, result)).view(a.dtype)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, np.where(np.isnan(x), x, 1)) / (1 + small)


def _log1p(x: Array) -> Array:
    return special.log1p_complex(x) if x.dtype.kind == "c" else np.log1p(x)


def _make_complex(re: Array, im: Array) -> Array:
    dtype = np.complex128 if re.dtype == np.float64 else np.complex64
    result = np.empty(np.broadcast_shapes(re.shape, im.shape), dtype)
    result.real, result.imag = re, im
    return result


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == np.float64:
        return special.fma(a, b, c)
    if a.dtype == np.float32:
        return special.fma_single(a, b, c)
    return special.fma_wide(*[x.astype(np.float64) for x in (a, b, c)])


# --- neutral elements -------------------------------------------------------------------------


def _zero(dtype: DType) -> Number:
    return 0 if dtype.is_integer else 0.0


def _one(dtype: DType) -> Number:
    return 1 if dtype.is_integer else 1.0


def _lowest(dtype: DType) -> Number:
    if dtype.is_integer:
        return iinfo(dtype).min
    return -np.inf if _has_infinity(dtype) else finfo(dtype).min


def _highest(dtype: DType) -> Number:
    if dtype.is_integer:
        return iinfo(dtype).max
    return np.inf if _has_infinity(dtype) else finfo(dtype).max


def _has_infinity(dtype: DType) -> bool:
    return not dtype.full_name.endswith("fn")  # formats with finite values and NaN only


def _no_bits(dtype: DType) -> Number:
    return False if dtype.is_bool else 0


def _all_bits(dtype: DType) -> Number:
    if dtype.is_bool:
        return True
    return -1 if dtype.kind is Kind.INT else iinfo(dtype).max


# --- the table --------------------------------------------------------------------------------

_BOOL = frozenset({Kind.BOOL})
_INTEGER = frozenset({Kind.INT, Kind.UINT})
_FLOAT = frozenset({Kind.FLOAT})
_COMPLEX = frozenset({Kind.COMPLEX})
_REAL = _INTEGER | _FLOAT
_INEXACT = _FLOAT | _COMPLEX
_NUMERIC = _REAL | _COMPLEX
_LOGICAL = _BOOL | _INTEGER
_ANY = _BOOL | _NUMERIC


def _unary(
    name: str, text: str, kinds: frozenset[Kind], compute: Callable[..., Array], **more: Any
) -> ScalarFn:
    return ScalarFn(name, text, 1, more.pop("sig", Sig.SAME), kinds, compute, **more)


def _binary(
    name: str, text: str, kinds: frozenset[Kind], compute: Callable[..., Array], **more: Any
) -> ScalarFn:
    return ScalarFn(name, text, 2, more.pop("sig", Sig.SAME), kinds, compute, **more)


def _compare(
    name: str, text: str, kinds: frozenset[Kind], compute: Callable[..., Array], **more: Any
) -> ScalarFn:
    return ScalarFn(name, text, 2, Sig.PREDICATE, kinds, compute, **more)


def _transcendental(
    name: str, text: str, kinds: frozenset[Kind], compute: Callable[..., Array], arity: int = 1
) -> ScalarFn:
    return ScalarFn(name, text, arity, Sig.SAME, kinds, compute, Precision.WIDE, cost=16)


def _test(name: str, text: str, compute: Callable[..., Array]) -> ScalarFn:
    return ScalarFn(name, text, 1, Sig.PREDICATE, _INEXACT, compute)


_ARITHMETIC = (
    _binary("add", "a + b", _NUMERIC, np.add, commutative=True, identity=_zero),
    _binary("sub", "a - b", _NUMERIC, np.subtract),
    _binary("mul", "a * b", _NUMERIC, np.multiply, commutative=True, identity=_one),
    _binary("div", "a / b", _INEXACT, np.divide, cost=4),
    _binary("floordiv", "floor(a / b), from the remainder as Python does; a / b if b is 0, or one"
            " of them infinite", _REAL, _floordiv, cost=4),
    _binary("mod", "a - b * floordiv(a, b), with the sign of b", _REAL, np.remainder, cost=4),
    _binary("trunc_div", "a / b towards zero", _INTEGER, _trunc_div, cost=4),
    _binary("rem", "a - b * trunc(a / b), exact, with the sign of a", _REAL, np.fmod, cost=4),
    _binary("pow", "a ** b; for integers and b < 0, 1 / a**-b towards zero, and 0 if a is 0",
            _NUMERIC, _pow, precision=Precision.WIDE, cost=16),
    _unary("neg", "-x", _NUMERIC, np.negative),
    _unary("abs", "|x|; the smallest integer is its own", _NUMERIC, np.abs, sig=Sig.TO_REAL),
    _unary("sign", "-1, 0 or 1, NaN of NaN; for complex x / |x|, and 0 of 0", _NUMERIC, np.sign),
    _unary("square", "x * x", _NUMERIC, np.square),
    _binary("min", "the smaller, or NaN if either is", _REAL, np.minimum, commutative=True,
            identity=_highest),
    _binary("max", "the larger, or NaN if either is", _REAL, np.maximum, commutative=True,
            identity=_lowest),
    ScalarFn("fma", "a * b + c, rounded once", 3, Sig.SAME, _FLOAT, _fma, Precision.BITS,
             commutative=True),
)  # fmt: skip

_BITWISE = (
    _binary("and", "a & b", _LOGICAL, np.bitwise_and, commutative=True, identity=_all_bits),
    _binary("or", "a | b", _LOGICAL, np.bitwise_or, commutative=True, identity=_no_bits),
    _binary("xor", "a ^ b", _LOGICAL, np.bitwise_xor, commutative=True, identity=_no_bits),
    _unary("not", "~x; logical on bool", _LOGICAL, np.invert),
    _binary("shl", "a << b", _INTEGER, bits.shl),
    _binary("shr", "a >> b, keeping the sign of signed integers", _INTEGER, bits.shr),
    _unary("clz", "number of leading zero bits", _INTEGER, bits.clz, precision=Precision.BITS),
    _unary("popcount", "number of one bits", _INTEGER, bits.popcount, precision=Precision.BITS),
    _binary("mulhi", "upper half of the double-width product", _INTEGER, bits.mulhi,
            precision=Precision.BITS, commutative=True),
)  # fmt: skip

_COMPARISON = (
    _compare("eq", "a == b", _ANY, np.equal, commutative=True),
    _compare("ne", "a != b", _ANY, np.not_equal, commutative=True),
    _compare("lt", "a < b", _REAL, np.less),
    _compare("le", "a <= b", _REAL, np.less_equal),
    _compare("gt", "a > b", _REAL, np.greater),
    _compare("ge", "a >= b", _REAL, np.greater_equal),
    ScalarFn("select", "a if c else b", 3, Sig.SELECT, _ANY, np.where, Precision.BITS),
    _test("isnan", "whether x (or a part of it) is NaN", np.isnan),
    _test("isinf", "whether x (or a part of it) is infinite", np.isinf),
    _test("isfinite", "neither NaN nor infinite", np.isfinite),
)

_ELEMENTARY = (
    _transcendental("exp", "e ** x", _INEXACT, np.exp),
    _transcendental("exp2", "2 ** x", _FLOAT, np.exp2),
    _transcendental("expm1", "exp(x) - 1", _INEXACT, np.expm1),
    _transcendental("log", "natural logarithm", _INEXACT, np.log),
    _transcendental("log1p", "log(1 + x)", _INEXACT, _log1p),
    _transcendental("log2", "logarithm to base 2", _INEXACT, np.log2),
    _transcendental("log10", "logarithm to base 10", _INEXACT, np.log10),
    _unary("sqrt", "square root", _INEXACT, np.sqrt, cost=4),
    _unary("rsqrt", "1 / sqrt(x)", _FLOAT, _rsqrt, precision=Precision.WIDE,
           cost=4),
    _transcendental("cbrt", "cube root", _FLOAT, np.cbrt),
    _transcendental("sin", "sine", _INEXACT, np.sin),
    _transcendental("cos", "cosine", _INEXACT, np.cos),
    _transcendental("tan", "tangent", _INEXACT, np.tan),
    _transcendental("asin", "inverse sine", _INEXACT, np.arcsin),
    _transcendental("acos", "inverse cosine", _INEXACT, np.arccos),
    _transcendental("atan", "inverse tangent", _INEXACT, np.arctan),
    _transcendental("atan2", "angle of the point (b, a)", _FLOAT, np.arctan2, 2),
    _transcendental("sinh", "hyperbolic sine", _INEXACT, np.sinh),
    _transcendental("cosh", "hyperbolic cosine", _INEXACT, np.cosh),
    _transcendental("tanh", "hyperbolic tangent", _INEXACT, np.tanh),
    _transcendental("asinh", "inverse hyperbolic sine", _INEXACT, np.arcsinh),
    _transcendental("acosh", "inverse hyperbolic cosine", _INEXACT, np.arccosh),
    _transcendental("atanh", "inverse hyperbolic tangent", _INEXACT, np.arctanh),
    _binary("hypot", "sqrt(a*a + b*b) without overflow on the way", _FLOAT, np.hypot,
            precision=Precision.WIDE, cost=16, commutative=True),
    _binary("logaddexp", "log(exp(a) + exp(b))", _FLOAT, np.logaddexp, precision=Precision.WIDE,
            cost=16, commutative=True, identity=_lowest),
)  # fmt: skip

_SPECIAL = (
    _transcendental("erf", "error function", _FLOAT, special.erf),
    _transcendental("erfc", "1 - erf(x)", _FLOAT, special.erfc),
    _transcendental("erfinv", "inverse of erf", _FLOAT, special.erfinv),
    _transcendental("lgamma", "log(|gamma(x)|)", _FLOAT, special.lgamma),
    _transcendental("digamma", "derivative of lgamma", _FLOAT, special.digamma),
    _transcendental("sigmoid", "1 / (1 + exp(-x))", _FLOAT, _sigmoid),
)

_REPRESENTATION = (
    _unary("floor", "largest integer not above x", _FLOAT, np.floor),
    _unary("ceil", "smallest integer not below x", _FLOAT, np.ceil),
    _unary("trunc", "x without its fraction", _FLOAT, np.trunc),
    _unary("round", "nearest integer, halves to the even one", _FLOAT, np.rint),
    _unary("signbit", "whether the sign is negative, of zero and NaN too", _FLOAT, _signbit,
           precision=Precision.BITS, sig=Sig.PREDICATE),
    _binary("copysign", "a with the sign of b", _FLOAT, _copysign, precision=Precision.BITS),
    _binary("nextafter", "the next number from a towards b; b if they are equal", _FLOAT,
            _nextafter, precision=Precision.BITS),
    _unary("real", "real part", _INEXACT, np.real, sig=Sig.TO_REAL),
    _unary("imag", "imaginary part, 0 of a real number", _INEXACT, np.imag, sig=Sig.TO_REAL),
    _unary("conj", "complex conjugate", _INEXACT, np.conjugate),
    _binary("complex", "a + b*i", _FLOAT, _make_complex, sig=Sig.FROM_REALS),
)  # fmt: skip

SCALARS: Final[Mapping[str, ScalarFn]] = MappingProxyType(
    {
        row.name: row
        for family in (
            _ARITHMETIC,
            _BITWISE,
            _COMPARISON,
            _ELEMENTARY,
            _SPECIAL,
            _REPRESENTATION,
        )
        for row in family
    }
)
"""Every scalar function by name."""


def _round_row(dtype: DType, grid: Grid, mode: Rounding) -> ScalarFn:
    name = f"round.{dtype}.{mode.value}"
    text = f"a rounded to a number of {dtype.full_name}, {mode.value}"

    def compute(a: Array, b: Array | None = None) -> Array:
        return round_array(a, grid, mode, b)

    if mode is not Rounding.STOCHASTIC:
        return _unary(name, text, _FLOAT, compute, cost=4)
    text += ": away from zero where b in [0, 1) is less than the fraction of the way to there"
    return _binary(name, text, _FLOAT, compute, cost=4)


def _saturate_row(dtype: DType, grid: Grid) -> ScalarFn:
    text = f"x, but the largest number of {dtype.full_name} beyond it; NaN stays"
    return _unary(f"saturate.{dtype}", text, _FLOAT, partial(saturate_array, grid=grid))


def _flush_row(dtype: DType, grid: Grid) -> ScalarFn:
    text = f"x, but zero below the smallest normal number of {dtype.full_name}"
    return _unary(f"flush.{dtype}", text, _FLOAT, partial(flush_array, grid=grid))


FORMAT_SCALARS: Final[Mapping[str, ScalarFn]] = MappingProxyType(
    {
        row.name: row
        for dtype, grid in GRIDS.items()
        for row in (
            *[_round_row(dtype, grid, mode) for mode in Rounding],
            _saturate_row(dtype, grid),
            _flush_row(dtype, grid),
        )
    }
)
"""Scalar functions that make numbers of a format, by name: `round.bf16.toward_zero`. They stand for
the conversions of numerics policies; see `ir/rounding.py`."""


def scalar(name: str) -> ScalarFn:
    """The row with this name.

    Raises:
        VerifyError: There is none.
    """
    row = SCALARS.get(name) or FORMAT_SCALARS.get(name)
    if row is None:
        import difflib  # needed for the message only

        near = difflib.get_close_matches(name, (*SCALARS, *FORMAT_SCALARS), n=3)
        raise VerifyError(
            f"scalar: there is no scalar function named {name!r}",
            fix=f"did you mean {' or '.join(near)}?" if near else None,
        )
    return row
