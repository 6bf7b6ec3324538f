"""Complex scalar functions in terms of real ones.

A complex number is a pair (re, im) of values of any kind: tiles when a nest is lowered, NumPy
arrays in the tests. `expand` gives the pair of a result, or the single value of a predicate or a
real result. The formulas follow Kahan ("Branch cuts for complex elementary functions", 1987) and
Annex G of the C standard: signed zeros choose the side of a branch cut, there is no overflow on the
way where the result has none, and cancellation near |z| = 1 is made up for. There are no branches:
where two formulas share the work, both are computed and one is selected. Where one part is NaN, the
other is known in the cases that the standard lists; these are selected last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

from tessera.dtypes import DType, finfo
from tessera.errors import CompileError

T = TypeVar("T")
Apply: TypeAlias = "Callable[..., T]"
Const: TypeAlias = "Callable[[float], T]"


class _Code(Generic[T]):
    """Where the real operations go."""

    def __init__(self, apply: Apply[T], const: Const[T], dtype: DType) -> None:
        self.apply = apply
        self.const = const
        info = finfo(dtype)
        self.max = float(info.max)
        self.tiny = float(info.smallest_normal)
        self.eps = float(info.eps)
        self.max_exp = math.log(self.max)

    def __call__(self, name: str, *args: _Real[T] | float) -> _Real[T]:
        return _Real(self.apply(name, *[self.raw(a) for a in args]), self)

    def raw(self, x: _Real[T] | float) -> T:
        """The operand behind a number."""
        return x.raw if isinstance(x, _Real) else self.const(float(x))

    def real(self, x: float) -> _Real[T]:
        """A constant."""
        return _Real(self.const(float(x)), self)

    def select(self, cond: _Real[T], a: _Real[T] | float, b: _Real[T] | float) -> _Real[T]:
        """`a` where the condition holds, else `b`."""
        return self("select", cond, a, b)

    def choose(self, cond: _Real[T], a: Pair[T], b: Pair[T]) -> Pair[T]:
        """The same for pairs."""
        return self.select(cond, a[0], b[0]), self.select(cond, a[1], b[1])


class _Real(Generic[T]):
    """A real operand with operators, so that formulas read as such."""

    __slots__ = ("code", "raw")

    def __init__(self, raw: T, code: _Code[T]) -> None:
        self.raw = raw
        self.code = code

    def __add__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("add", self, other)

    def __radd__(self, other: float) -> _Real[T]:
        return self.code("add", other, self)

    def __sub__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("sub", self, other)

    def __rsub__(self, other: float) -> _Real[T]:
        return self.code("sub", other, self)

    def __mul__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("mul", self, other)

    def __rmul__(self, other: float) -> _Real[T]:
        return self.code("mul", other, self)

    def __truediv__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("div", self, other)

    def __rtruediv__(self, other: float) -> _Real[T]:
        return self.code("div", other, self)

    def __neg__(self) -> _Real[T]:
        return self.code("neg", self)

    def __abs__(self) -> _Real[T]:
        return self.code("abs", self)

    def __lt__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("lt", self, other)

    def __gt__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("gt", self, other)

    def __ge__(self, other: _Real[T] | float) -> _Real[T]:
        return self.code("ge", self, other)

    def __and__(self, other: _Real[T]) -> _Real[T]:
        return self.code("and", self, other)

    def __or__(self, other: _Real[T]) -> _Real[T]:
        return self.code("or", self, other)

    def __invert__(self) -> _Real[T]:
        return self.code("not", self)

    def is_(self, other: _Real[T] | float) -> _Real[T]:
        """Equality."""
        return self.code("eq", self, other)


Pair: TypeAlias = "tuple[_Real[T], _Real[T]]"


# --- arithmetic -------------------------------------------------------------------------------


def _add(c: _Code[T], z: Pair[T], w: Pair[T]) -> Pair[T]:
    return z[0] + w[0], z[1] + w[1]


def _sub(c: _Code[T], z: Pair[T], w: Pair[T]) -> Pair[T]:
    return z[0] - w[0], z[1] - w[1]


def _mul(c: _Code[T], z: Pair[T], w: Pair[T]) -> Pair[T]:
    return z[0] * w[0] - z[1] * w[1], z[0] * w[1] + z[1] * w[0]


def _neg(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return -z[0], -z[1]


def _conj(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return z[0], -z[1]


def _square(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    product = a * b
    return (a - b) * (a + b), product + product


def _div(c: _Code[T], z: Pair[T], w: Pair[T]) -> Pair[T]:
    """Smith's method: the larger part of the divisor is divided out first."""
    by_real = abs(w[0]) >= abs(w[1])
    p, q = c.select(by_real, w[0], w[1]), c.select(by_real, w[1], w[0])
    x, y = c.select(by_real, z[0], z[1]), c.select(by_real, z[1], z[0])
    ratio = q / p
    scale = p + q * ratio
    re, im = (x + y * ratio) / scale, (y - x * ratio) / scale
    im = c.select(by_real, im, -im)
    zero = w[0].is_(0) & w[1].is_(0)
    return c.choose(zero, (z[0] / abs(w[0]), z[1] / abs(w[0])), (re, im))


def _reciprocal(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _div(c, (c.real(1), c.real(0)), z)


def _abs(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return c("hypot", z[0], z[1])


def _sign(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    # An infinite part counts 1 and a finite one beside it 0, which makes the length finite; two
    # have no direction.
    infinite = c("isinf", a) | c("isinf", b)
    x = c.select(infinite, c.select(c("isinf", a), c("copysign", 1, a), a * 0), a)
    y = c.select(infinite, c.select(c("isinf", b), c("copysign", 1, b), b * 0), b)
    both = c("isinf", a) & c("isinf", b)
    length = c.select(both, math.nan, c("hypot", x, y))
    zero = length.is_(0)
    return c.select(zero, 0, x / length), c.select(zero, 0, y / length)


# --- exponential and logarithm ----------------------------------------------------------------

_SHIFT = 32.0


def _exp(c: _Code[T], z: Pair[T]) -> Pair[T]:
    """exp(a) may overflow where exp(a) * sin(b) does not: large exponents are taken down."""
    a, b = z
    large = a > c.max_exp - 1
    size = c("exp", c.select(large, a - _SHIFT, a))
    factor = c.select(large, math.exp(_SHIFT), 1)
    re, im = size * c("cos", b) * factor, size * c("sin", b) * factor
    im = c.select(b.is_(0), b, im)
    vanishes = a.is_(-math.inf) & ~c("isfinite", b)
    re, im = c.select(vanishes, 0, re), c.select(vanishes, 0, im)
    # exp(inf + i NaN) and exp(inf + i inf) are infinite, with a part that is unknown.
    return c.select(a.is_(math.inf) & ~c("isfinite", b), math.inf, re), im


def _expm1(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    half = c("sin", b * 0.5)
    near = c("expm1", a) * c("cos", b) - 2.0 * (half * half)
    near = c.select(near.is_(0), 0, near)  # 1 - 1 is not -0
    re, im = _exp(c, z)
    re = c.select(a < 1, near, re - 1)
    return c.select(a.is_(-math.inf) & ~c("isfinite", b), -1, re), im


def _two_sum(a: _Real[T], b: _Real[T]) -> Pair[T]:
    """a + b and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _squares(c: _Code[T], a: _Real[T], b: _Real[T], base: _Real[T]) -> _Real[T]:
    """base + a*a + b*b, as exact as one rounding at the end allows."""
    p, q = a * a, b * b
    p_error, q_error = c("fma", a, a, -p), c("fma", b, b, -q)
    first, error1 = _two_sum(base, p)
    total, error2 = _two_sum(first, q)
    return total + (error1 + error2 + p_error + q_error)


def _log_abs(c: _Code[T], a: _Real[T], b: _Real[T]) -> _Real[T]:
    """log(hypot(a, b)); near the unit circle from |z|**2 - 1, which is computed exactly."""
    x, y = abs(a), abs(b)
    big = c("max", x, y)
    large, small = big > c.max * 0.25, big < c.tiny * 4 / c.eps
    unit = 2.0**60
    scale = c.select(large, 0.25, c.select(small, unit, 1))
    shift = c.select(large, math.log(4), c.select(small, -math.log(unit), 0))
    far = c("log", c("hypot", x * scale, y * scale)) + shift
    around = (big > 0.5) & (big < 1.5) & (c("hypot", x, y) < 2)
    x, y = c.select(around, x, 1), c.select(around, y, 1)
    near = 0.5 * c("log1p", _squares(c, x, y, c.real(-1)))
    return c.select(around, near, far)


def _log(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _log_abs(c, *z), c("atan2", z[1], z[0])


def _log1p(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    small = (abs(a) < 0.5) & (abs(b) < 1)
    x, y = c.select(small, a, 0), c.select(small, b, 0)
    near = 0.5 * c("log1p", _squares(c, x, y, x + x))
    far = _log_abs(c, 1 + a, b)
    return c.select(small, near, far), c("atan2", b, 1 + a)


def _log2(c: _Code[T], z: Pair[T]) -> Pair[T]:
    re, im = _log(c, z)
    return re * (1 / math.log(2)), im * (1 / math.log(2))


def _log10(c: _Code[T], z: Pair[T]) -> Pair[T]:
    re, im = _log(c, z)
    return re * (1 / math.log(10)), im * (1 / math.log(10))


def _sqrt(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    x, y = abs(a), abs(b)
    big = c("max", x, y)
    large, small = big > c.max * 0.25, big < c.tiny * 4 / c.eps
    unit = 2.0**60
    scale = c.select(large, 0.25, c.select(small, unit, 1))
    back = c.select(large, 2.0, c.select(small, unit**-0.5, 1))
    x_scaled = x * scale
    root = c("sqrt", (x_scaled + c("hypot", x_scaled, y * scale)) * 0.5)
    other = y * scale / (root + root)
    other = c.select(root.is_(0), 0, other)
    root, other = root * back, other * back
    right = a >= 0
    re, im = c.select(right, root, other), c.select(right, other, root)
    # On the negative real axis and at infinity the formula meets inf / inf.
    far = c("isinf", a)
    re = c.select(far, c.select(right, math.inf, c.select(c("isnan", b), math.nan, 0)), re)
    im = c.select(far, c.select(right, c.select(c("isnan", b), math.nan, 0), math.inf), im)
    im = c("copysign", im, b)
    endless = c("isinf", b)
    return c.select(endless, math.inf, re), c.select(endless, b, im)


def _pow(c: _Code[T], z: Pair[T], w: Pair[T]) -> Pair[T]:
    """exp(w log z); z**0 is 1, and 0**w is 0 where w has a positive real part."""
    re, im = _exp(c, _mul(c, w, _log(c, z)))
    zero = z[0].is_(0) & z[1].is_(0)
    at_zero = c.select(w[0] > 0, 0, math.nan)
    re, im = c.select(zero, at_zero, re), c.select(zero, at_zero, im)
    one = w[0].is_(0) & w[1].is_(0)
    return c.select(one, 1, re), c.select(one, 0, im)


# --- trigonometric and hyperbolic -------------------------------------------------------------


def _hyperbolic(c: _Code[T], a: _Real[T]) -> tuple[_Real[T], _Real[T], _Real[T]]:
    """sinh(a) / f, cosh(a) / f and f, which keeps them finite where products with sines are."""
    size = abs(a)
    large = size > c.max_exp - 1
    half = c("exp", c.select(large, size - _SHIFT, 0)) * 0.5
    small = c.select(large, 0, a)
    sinh = c.select(large, c("copysign", half, a), c("sinh", small))
    cosh = c.select(large, half, c("cosh", small))
    return sinh, cosh, c.select(large, math.exp(_SHIFT), 1)


def _sinh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    sinh, cosh, factor = _hyperbolic(c, a)
    re, im = sinh * c("cos", b) * factor, cosh * c("sin", b) * factor
    endless = c("isinf", a) & ~c("isfinite", b)
    re = c.select(endless, math.inf, re)
    return c.select(a.is_(0), a, re), c.select(b.is_(0), b, im)


def _cosh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    sinh, cosh, factor = _hyperbolic(c, a)
    re, im = cosh * c("cos", b) * factor, sinh * c("sin", b) * factor
    endless = c("isinf", a) & ~c("isfinite", b)
    re = c.select(endless, math.inf, re)
    real_axis = b.is_(0) | a.is_(0)
    signed = c("copysign", 0, c("copysign", 1, a) * c("copysign", 1, b))
    return re, c.select(real_axis, signed, im)


def _tanh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    """Kahan's form, finite everywhere; for large |a| it has converged to 1 but for exp(-2|a|)."""
    a, b = z
    large = abs(a) > (11 if c.max_exp < 100 else 22)
    x = c.select(large, 0, a)
    tan, sinh = c("tan", b), c("sinh", x)
    beta = 1 + tan * tan
    denominator = 1 + beta * (sinh * sinh)
    re = beta * c("sqrt", 1 + sinh * sinh) * sinh / denominator
    im = tan / denominator
    tail = 4.0 * c("sin", b) * c("cos", b) * c("exp", -2.0 * abs(a))
    tail = c.select(c("isinf", a), c("copysign", 0, c("sin", b + b)), tail)
    tail = c.select(c("isnan", tail) & c("isinf", a), 0, tail)
    re, im = c.select(large, c("copysign", 1, a), re), c.select(large, tail, im)
    # Without an angle only the imaginary axis and infinity have a known real part.
    lost = c("isfinite", a) & ~c("isfinite", b)
    re = c.select(lost, c.select(a.is_(0), a, math.nan), re)
    return re, c.select(b.is_(0), b, im)


def _times_i(z: Pair[T]) -> Pair[T]:
    return -z[1], z[0]


def _over_i(z: Pair[T]) -> Pair[T]:
    return z[1], -z[0]


def _sin(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _over_i(_sinh(c, _times_i(z)))


def _cos(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _cosh(c, _times_i(z))


def _tan(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _over_i(_tanh(c, _times_i(z)))


def _far(c: _Code[T], z: Pair[T]) -> tuple[_Real[T], _Real[T]]:
    """Where |z| is so large that asinh(z) is log(2z), and log(2|z|)."""
    far = c("max", abs(z[0]), abs(z[1])) > 4 / c.eps
    return far, _log_abs(c, *z) + math.log(2)


def _asin(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    far, size = _far(c, z)
    x, y = c.select(far, 0, a), c.select(far, 0, b)
    minus, plus = _sqrt(c, (1 - x, -y)), _sqrt(c, (1 + x, y))
    re = c("atan2", x, minus[0] * plus[0] - minus[1] * plus[1])
    im = c("asinh", minus[0] * plus[1] - minus[1] * plus[0])
    re, im = c.choose(far, (c("atan2", a, abs(b)), c("copysign", size, b)), (re, im))
    unknown = c("isnan", b)
    re = c.select(unknown & a.is_(0), a, re)
    return re, c.select(unknown & c("isinf", a), math.inf, im)


def _acos(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    far, size = _far(c, z)
    x, y = c.select(far, 0, a), c.select(far, 0, b)
    minus, plus = _sqrt(c, (1 - x, -y)), _sqrt(c, (1 + x, y))
    re = 2.0 * c("atan2", minus[0], plus[0])
    im = c("asinh", plus[0] * minus[1] - plus[1] * minus[0])
    re, im = c.choose(far, (c("atan2", abs(b), a), -c("copysign", size, b)), (re, im))
    unknown = c("isnan", b)
    re = c.select(c("isnan", a), a, c.select(unknown & a.is_(0), math.pi / 2, re))
    return re, c.select(unknown & c("isinf", a), -math.inf, im)


def _asinh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _over_i(_asin(c, _times_i(z)))


def _acosh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    far, size = _far(c, z)
    x, y = c.select(far, 1, a), c.select(far, 0, b)
    minus, plus = _sqrt(c, (x - 1, y)), _sqrt(c, (x + 1, y))
    re = c("asinh", minus[0] * plus[0] + minus[1] * plus[1])
    im = 2.0 * c("atan2", minus[1], plus[0])
    re, im = c.choose(far, (size, c("atan2", b, a)), (re, im))
    unknown = c("isnan", b)
    im = c.select(c("isnan", a), a, c.select(unknown & a.is_(0), math.pi / 2, im))
    return c.select(unknown & c("isinf", a), math.inf, re), im


def _atanh(c: _Code[T], z: Pair[T]) -> Pair[T]:
    a, b = z
    far = c("max", abs(a), abs(b)) > 4 / c.eps
    x, y = c.select(far, 0, abs(a)), c.select(far, 0, b)
    from_one = 1 - x
    near = 0.25 * c("log1p", 4.0 * x / (from_one * from_one + y * y))
    angle = 0.5 * c("atan2", y + y, from_one * (1 + x) - y * y)
    length = c("hypot", a, b)
    small = c.select(c("isinf", length), 0, abs(a) / length / length)
    re = c("copysign", c.select(far, small, near), a)
    im = c.select(far, c("copysign", math.pi / 2, b), angle)
    ends = c("isnan", b) & (a.is_(0) | c("isinf", a))
    re = c.select(ends, c("copysign", 0, a), re)
    ends = c("isnan", a) & c("isinf", b)
    return c.select(ends, 0, re), c.select(ends, c("copysign", math.pi / 2, b), im)


def _atan(c: _Code[T], z: Pair[T]) -> Pair[T]:
    return _over_i(_atanh(c, _times_i(z)))


# --- predicates and parts ---------------------------------------------------------------------


def _eq(c: _Code[T], z: Pair[T], w: Pair[T]) -> _Real[T]:
    return z[0].is_(w[0]) & z[1].is_(w[1])


def _ne(c: _Code[T], z: Pair[T], w: Pair[T]) -> _Real[T]:
    return c("ne", z[0], w[0]) | c("ne", z[1], w[1])


def _isnan(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return c("isnan", z[0]) | c("isnan", z[1])


def _isinf(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return c("isinf", z[0]) | c("isinf", z[1])


def _isfinite(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return c("isfinite", z[0]) & c("isfinite", z[1])


def _real(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return z[0]


def _imag(c: _Code[T], z: Pair[T]) -> _Real[T]:
    return z[1]


_Formula: TypeAlias = "Callable[..., Any]"

_FORMULAS: dict[str, _Formula] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "conj": _conj,
    "square": _square,
    "reciprocal": _reciprocal,
    "abs": _abs,
    "sign": _sign,
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "log2": _log2,
    "log10": _log10,
    "sqrt": _sqrt,
    "pow": _pow,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "asin": _asin,
    "acos": _acos,
    "atan": _atan,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "eq": _eq,
    "ne": _ne,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "real": _real,
    "imag": _imag,
}


def expand(
    name: str,
    args: Sequence[tuple[T, ...]],
    apply: Apply[T],
    const: Const[T],
    dtype: DType,
) -> tuple[T, ...]:
    """A row of the scalar table on complex numbers.

    Args:
        name: the row.
        args: per operand (re, im), or the single value of a real one (which counts as complex where
            the row needs that).
        apply: applies a row to real operands: `apply("add", a, b)`; broadcasts.
        const: a real constant.
        dtype: the dtype of the parts.

    Returns:
        (re, im), or the single value of a predicate, modulus or part.

    Raises:
        CompileError: the row does not take complex operands.
    """
    if name == "complex":
        return args[0][0], args[1][0]
    if name == "select":
        cond, a, b = args
        wide = [x if len(x) == 2 else (x[0], const(0.0)) for x in (a, b)]
        (re, im), (other_re, other_im) = wide
        return apply("select", cond[0], re, other_re), apply("select", cond[0], im, other_im)
    formula = _FORMULAS.get(name)
    if formula is None:
        raise CompileError(f"{name}: takes no complex operands")
    code = _Code(apply, const, dtype)
    pairs = [tuple(_Real(part, code) for part in x) for x in args]
    zero = _Real(const(0.0), code)
    found = formula(code, *[x if len(x) == 2 else (x[0], zero) for x in pairs])
    if isinstance(found, tuple):
        re, im = cast("Pair[T]", found)
        return re.raw, im.raw
    return (cast("_Real[T]", found).raw,)


def takes_complex(name: str) -> bool:
    """Whether `expand` knows a row."""
    return name in _FORMULAS or name in ("complex", "select")
