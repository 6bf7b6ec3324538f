"""Every row of the scalar table against independent arithmetic, over its dtypes.

Integers are compared with Python's integers, real functions with mpmath at 200 bits, rounding and
sign functions with the definition. Special values have rows of their own.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest

from tessera import dtypes as dt
from tessera.dtypes import DType, Kind, finfo, iinfo
from tessera.errors import DTypeError, VerifyError
from tessera.ir.scalar import SCALARS, ScalarFn, Sig, result_dtype, scalar

mp.mp.prec = 200
INF, NAN = math.inf, math.nan

FLOATS = [d for d in dt.ALL if d.is_float]
INTEGERS = [d for d in dt.ALL if d.is_integer]
COMPLEXES = [d for d in dt.ALL if d.is_complex]
MP: Any = mp


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def array(values: object, dtype: DType) -> npt.NDArray[Any]:
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(values), dtype=None).astype(dtype.np)


def operands(fn: ScalarFn, dtype: DType) -> list[DType]:
    found = [dtype] * fn.arity
    if fn.sig is Sig.SELECT:
        found[0] = dt.bool_
    return found


def allowed(fn: ScalarFn, dtype: DType) -> bool:
    try:
        result_dtype(fn, *operands(fn, dtype))
    except DTypeError:
        return False
    return True


EVERY = [(f, d) for f in SCALARS.values() for d in dt.ALL if allowed(f, d)]


# --- what holds for every row -----------------------------------------------------------------


@pytest.mark.parametrize(("fn", "dtype"), EVERY, ids=str)
def test_results_are_arrays_of_the_result_dtype(fn: ScalarFn, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    types = operands(fn, dtype)
    expected = result_dtype(fn, *types)
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3)):
        args = [array(rng.integers(0, 3, shape), d) for d in types]
        result = fn.evaluate(*args)
        assert type(result) is np.ndarray
        assert result.dtype == expected.np
        assert result.shape == shape
        # A row means the same for one element as for many, and whatever the strides.
        for index in itertools.islice(np.ndindex(shape), 2):
            assert same(fn.evaluate(*(a[index] for a in args)), result[index])
        assert same(fn.evaluate(*(a.T for a in args)), result.T)


def same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.ascontiguousarray(b).tobytes() or bool(
        np.array_equal(wide(a), wide(b), equal_nan=True)
    )


def wide(x: Any) -> npt.NDArray[Any]:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize(("fn", "dtype"), [(f, d) for f, d in EVERY if f.commutative], ids=str)
def test_commutative_rows_commute(fn: ScalarFn, dtype: DType) -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(values(dtype), values(dtype)))
    rest = [a] * (fn.arity - 2)
    assert np.array_equal(
        wide(fn.evaluate(a, b, *rest)), wide(fn.evaluate(b, a, *rest)), equal_nan=True
    )


@pytest.mark.parametrize(("fn", "dtype"), [(f, d) for f, d in EVERY if f.identity], ids=str)
def test_identities_are_neutral(fn: ScalarFn, dtype: DType) -> None:
    assert fn.identity is not None
    x = values(dtype)
    neutral = np.full_like(x, np.asarray(fn.identity(dtype)).astype(dtype.np))
    result = fn.evaluate(x, neutral)
    finite = np.isfinite(wide(x)) if not finfo_has_infinity(dtype) else np.ones(x.shape, bool)
    assert np.array_equal(wide(result)[finite], wide(x)[finite], equal_nan=True)


def finfo_has_infinity(dtype: DType) -> bool:
    return dtype is not dt.float8_e4m3fn


def values(dtype: DType) -> npt.NDArray[Any]:
    """Special and ordinary values of a dtype."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_integer:
        limits = iinfo(dtype)
        near = [0, 1, 2, 3, 5, 7, limits.max, limits.max - 1, limits.min, limits.min + 1]
        near += [-1, -2, -3, -7] if limits.min else []
        near += [limits.max // 2, limits.max // 3, limits.max // 2 + 1]
        near += [-(limits.max // 3)] if limits.min else []
        return (
            np.array(sorted(set(near)), object)
            .astype(np.int64 if limits.min else np.uint64)
            .astype(dtype.np)
        )
    if dtype.is_float:
        return float_values(dtype)
    parts = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.25]
    grid = [complex(x, y) for x in parts for y in parts]
    return array(grid, dtype)


def float_values(dtype: DType) -> npt.NDArray[Any]:
    limits = finfo(dtype)
    some = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 7.0, 10.0, 0.1, 0.9, 0.999, 1.25]
    some += [1e-3, 1e-2, 20.0, 88.0, 100.0, 1e4, math.pi, math.pi / 2, 4.5, 5.5]
    some += [limits.max, limits.smallest_normal, limits.smallest_subnormal, limits.eps]
    some += [1 + limits.eps, 1 - limits.eps / 2, INF, NAN]
    return array([s * x for x in some for s in (1.0, -1.0)], dtype)


# --- integers ---------------------------------------------------------------------------------


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    if dtype.kind is Kind.INT and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def int_pow(a: int, b: int) -> int:
    if b >= 0:
        return a**b if abs(a) <= 1 or b < 300 else pow(a, b, 1 << 64)
    if a == 0:
        return 0
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def trunc(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shift(a: int, b: int, dtype: DType, left: bool) -> int:
    if not 0 <= b < dtype.bits:
        return 0 if left or a >= 0 else -1
    return a << b if left else a >> b


def bits_of(a: int, dtype: DType) -> int:
    return a & ((1 << dtype.bits) - 1)


IntFn = Callable[..., int]
INTEGER_ROWS: dict[str, IntFn] = {
    "add": lambda t, a, b: a + b,
    "sub": lambda t, a, b: a - b,
    "mul": lambda t, a, b: a * b,
    "floordiv": lambda t, a, b: a // b if b else 0,
    "mod": lambda t, a, b: a % b if b else 0,
    "trunc_div": lambda t, a, b: trunc(a, b),
    "rem": lambda t, a, b: a - b * trunc(a, b) if b else 0,
    "pow": lambda t, a, b: int_pow(a, b),
    "neg": lambda t, a: -a,
    "abs": lambda t, a: abs(a),
    "sign": lambda t, a: (a > 0) - (a < 0),
    "square": lambda t, a: a * a,
    "min": lambda t, a, b: min(a, b),
    "max": lambda t, a, b: max(a, b),
    "and": lambda t, a, b: a & b,
    "or": lambda t, a, b: a | b,
    "xor": lambda t, a, b: a ^ b,
    "not": lambda t, a: ~a,
    "shl": lambda t, a, b: shift(a, b, t, True),
    "shr": lambda t, a, b: shift(a, b, t, False),
    "clz": lambda t, a: t.bits - bits_of(a, t).bit_length(),
    "popcount": lambda t, a: bits_of(a, t).bit_count(),
    "mulhi": lambda t, a, b: (a * b) >> t.bits,
    "eq": lambda t, a, b: a == b,
    "ne": lambda t, a, b: a != b,
    "lt": lambda t, a, b: a < b,
    "le": lambda t, a, b: a <= b,
    "gt": lambda t, a, b: a > b,
    "ge": lambda t, a, b: a >= b,
}


def test_integer_rows_are_all_here() -> None:
    rows = {f.name for f in SCALARS.values() if f.kinds & {Kind.INT, Kind.UINT}}
    assert rows == {*INTEGER_ROWS, "select"}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER_ROWS)
def test_integers(name: str, dtype: DType) -> None:
    fn = scalar(name)
    some = values(dtype)
    if dtype.bits == 4:
        some = np.arange(-8, 8, dtype=np.int8).astype(dtype.np)  # all there are
    else:
        counts = [c for c in (dtype.bits - 1, dtype.bits, dtype.bits + 1) if c <= iinfo(dtype).max]
        some = np.unique(np.concatenate([some, np.array(counts).astype(dtype.np)]))
    args = [x.reshape(-1) for x in np.meshgrid(*[some] * fn.arity)]
    found = fn.evaluate(*args)
    for got, *given in zip(found.tolist(), *(a.tolist() for a in args), strict=True):
        expected = INTEGER_ROWS[name](dtype, *map(int, given))
        assert int(got) == (expected if fn.sig is Sig.PREDICATE else wrap(expected, dtype)), given


@pytest.mark.parametrize("dtype", [dt.int64, dt.uint64, dt.int32, dt.uint32], ids=str)
def test_integers_of_random_bits(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    limits = iinfo(dtype)
    a, b = (
        rng.integers(limits.min, limits.max, 200, dtype=dtype.np, endpoint=True) for _ in range(2)
    )
    for name in ("mul", "mulhi", "floordiv", "mod", "trunc_div", "rem", "clz", "popcount"):
        fn = scalar(name)
        found = fn.evaluate(*(a, b)[: fn.arity]).tolist()
        for i, got in enumerate(found):
            given = (int(a[i]), int(b[i]))[: fn.arity]
            assert got == wrap(INTEGER_ROWS[name](dtype, *given), dtype)


def test_bool() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    table = {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0], "eq": [1, 0, 0, 1]}
    for name, expected in table.items():
        assert scalar(name).evaluate(a, b).tolist() == [bool(x) for x in expected]
    assert scalar("ne").evaluate(a, b).tolist() == scalar("xor").evaluate(a, b).tolist()
    assert scalar("not").evaluate(a).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_select(dtype: DType) -> None:
    x = values(dtype)
    y = x[::-1]
    c = np.arange(x.size) % 3 == 0
    found = scalar("select").evaluate(c, x, y)
    expected = [p if k else q for k, p, q in zip(c, x, y, strict=True)]
    assert found.tobytes() == np.array(expected, dtype.np).tobytes()


# --- real functions ---------------------------------------------------------------------------


def mp_mod(a: Any, b: Any) -> Any:
    return a - b * mp.floor(a / b) if abs(a / b) < mp.mpf(2) ** 150 else None


def mp_rem(a: Any, b: Any) -> Any:
    x, y = Fraction(float(a)), Fraction(float(b))
    return MP.mpf((r := x - y * math.trunc(x / y)).numerator) / r.denominator


def mp_floordiv(a: Any, b: Any) -> Any:
    # Where the true quotient is not exact in the format, rounding a remainder may cost one unit.
    return mp.floor(a / b) if abs(a / b) < 8 else None


def mp_round(x: Any) -> Any:
    return mp.mpf(round(Fraction(float(x))))


# name: (reference, units in the last place allowed for float64, of 1 or the result if absolute)
REAL_ROWS: dict[str, tuple[Callable[..., Any], float]] = {
    "add": (lambda a, b: a + b, 0.5),
    "sub": (lambda a, b: a - b, 0.5),
    "mul": (lambda a, b: a * b, 0.5),
    "div": (lambda a, b: a / b, 0.5),
    "floordiv": (mp_floordiv, 0.5),
    "mod": (mp_mod, 1.0),
    "rem": (mp_rem, 0),
    "pow": (lambda a, b: MP.power(a, b), 1.0),
    "neg": (lambda x: -x, 0),
    "abs": (lambda x: abs(x), 0),
    "sign": (lambda x: MP.sign(x), 0),
    "square": (lambda x: x * x, 0.5),
    "min": (lambda a, b: min(a, b), 0),
    "max": (lambda a, b: max(a, b), 0),
    "fma": (lambda a, b, c: a * b + c, 0.5),
    "exp": (MP.exp, 1.0),
    "exp2": (lambda x: MP.power(2, x), 1.0),
    "expm1": (MP.expm1, 1.0),
    "log": (MP.log, 1.0),
    "log1p": (lambda x: MP.log1p(x), 1.0),
    "log2": (lambda x: MP.log(x, 2), 1.0),
    "log10": (lambda x: MP.log10(x), 2.0),
    "sqrt": (MP.sqrt, 0.5),
    "rsqrt": (lambda x: 1 / MP.sqrt(x), 1.5),
    "cbrt": (lambda x: MP.sign(x) * MP.cbrt(abs(x)), 4.0),  # glibc's, without AVX-512
    "sin": (MP.sin, 1.0),
    "cos": (MP.cos, 1.0),
    "tan": (MP.tan, 1.0),
    "asin": (MP.asin, 1.0),
    "acos": (MP.acos, 1.0),
    "atan": (MP.atan, 1.0),
    "atan2": (lambda a, b: MP.atan2(a, b) if a else None, 1.0),
    "sinh": (MP.sinh, 2.0),
    "cosh": (MP.cosh, 2.0),
    "tanh": (MP.tanh, 2.0),
    "asinh": (MP.asinh, 2.0),
    "acosh": (MP.acosh, 2.0),
    "atanh": (MP.atanh, 2.0),
    "hypot": (MP.hypot, 1.0),
    "logaddexp": (lambda a, b: max(a, b) + MP.log1p(MP.exp(-abs(a - b))), 2.0),
    "erf": (MP.erf, 1.0),
    "erfc": (MP.erfc, 4.0),
    "erfinv": (lambda x: MP.erfinv(x) if abs(x) < 1 else None, 4.0),
    "lgamma": (lambda x: MP.re(MP.loggamma(x)), 4.0),
    "digamma": (MP.digamma, 8.0),
    "sigmoid": (lambda x: 1 / (1 + MP.exp(-x)), 2.0),
    "floor": (MP.floor, 0),
    "ceil": (MP.ceil, 0),
    "trunc": (lambda x: MP.sign(x) * MP.floor(abs(x)), 0),
    "round": (mp_round, 0),
    "real": (lambda x: x, 0),
    "imag": (lambda x: x * 0, 0),
    "conj": (lambda x: x, 0),
    "copysign": (lambda a, b: abs(a) * (1 if MP.sign(b) >= 0 else -1) if b != 0 else None, 0),
}
ABSOLUTE = {"digamma", "lgamma", "logaddexp"}  # near their zeros the digits are those of 1


def test_real_rows_are_all_here() -> None:
    rows = {
        f.name for f in SCALARS.values() if Kind.FLOAT in f.kinds and f.sig is not Sig.PREDICATE
    }
    assert rows == {*REAL_ROWS, "select", "nextafter", "complex"}


def true_value(reference: Callable[..., Any], given: list[float]) -> Any:
    """The reference's value; None where it has none to compare."""
    try:
        value = reference(*(MP.mpf(x) for x in given))
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    if value is None or isinstance(value, mp.mpc):
        return None if value is None or value.imag else value.real
    return value if mp.isfinite(value) else None


def unit(value: Any, dtype: DType) -> Any:
    """One unit in the last place at a value."""
    limits = finfo(dtype)
    if abs(value) < limits.smallest_normal:
        return MP.mpf(limits.smallest_subnormal)
    return MP.mpf(2) ** (MP.frexp(abs(value))[1] - 1) * limits.eps


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REAL_ROWS)
def test_real_functions(name: str, dtype: DType) -> None:
    fn = scalar(name)
    reference, units = REAL_ROWS[name]
    if dtype.bits < 64 and units:
        units = 0.501  # as good as rounding the true value
    some = values(dtype)
    # Signs alternate, so odd steps keep both.
    some = some[:: {1: 1, 2: 3, 3: 5}[fn.arity]]
    args = [x.reshape(-1) for x in np.meshgrid(*[some] * fn.arity)]
    found = fn.evaluate(*args).astype(np.float64)
    limits = finfo(dtype)
    largest = MP.mpf(limits.max)
    compared = 0
    for i, got in enumerate(found.tolist()):
        given = [float(a[i]) for a in args]
        if not all(map(math.isfinite, given)):
            continue
        expected = true_value(reference, given)
        if expected is None or (name in ("sin", "cos", "tan") and abs(given[0]) > 1e15):
            continue
        if abs(expected) > largest:
            assert not math.isfinite(got) or abs(got) == largest, given
            continue
        one = unit(expected, dtype)
        if name in ABSOLUTE:
            one = max(one, MP.mpf(limits.eps) if dtype.bits == 64 else MP.mpf(2) ** -46)
        assert math.isfinite(got), given
        assert abs(MP.mpf(got) - expected) <= units * one, (given, got, expected)
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16, dt.float32, dt.float64], ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    # Sums that nearly cancel, or lie close to the middle of two numbers, show a second rounding.
    a, b = (array(rng.normal(size=300), dtype) for _ in range(2))
    near = array(-(a.astype(np.float64) * b.astype(np.float64)), dtype)
    tiny = array(rng.normal(size=300) * finfo(dtype).eps, dtype)
    one = array(np.ones(300), dtype)
    for x, y, z in ((a, b, near), (one, one, tiny), (a, b, tiny)):
        found = scalar("fma").evaluate(x, y, z)
        for got, p, q, r in zip(
            *(v.astype(np.float64).tolist() for v in (found, x, y, z)), strict=True
        ):
            exact = Fraction(p) * Fraction(q) + Fraction(r)
            error = abs(Fraction(got) - exact)
            for way in (INF, -INF):
                other = scalar("nextafter").evaluate(array(got, dtype), array(way, dtype))
                assert error <= abs(Fraction(float(other)) - exact)


SPECIAL: list[tuple[str, tuple[float, ...], float]] = [
    ("div", (1, 0), INF),
    ("div", (-1, 0), -INF),
    ("div", (0, 0), NAN),
    ("floordiv", (1, 0), INF),
    ("floordiv", (-7, 2), -4),
    ("mod", (-7, 2), 1),
    ("mod", (7, -2), -1),
    ("mod", (-0.0, 2), 0.0),
    ("mod", (1, 0), NAN),
    ("mod", (-1, INF), INF),
    ("rem", (-7, 2), -1),
    ("rem", (-4, 2), -0.0),
    ("rem", (1, INF), 1),
    ("pow", (0, 0), 1),
    ("pow", (NAN, 0), 1),
    ("pow", (1, NAN), 1),
    ("pow", (-2, 3), -8),
    ("pow", (-2, 0.5), NAN),
    ("pow", (0, -1), INF),
    ("abs", (-0.0,), 0.0),
    ("neg", (0.0,), -0.0),
    ("sign", (NAN,), NAN),
    ("sign", (-INF,), -1),
    ("min", (1, NAN), NAN),
    ("min", (NAN, 1), NAN),
    ("max", (1, NAN), NAN),
    ("max", (-INF, NAN), NAN),
    ("max", (-INF, INF), INF),
    ("exp", (-INF,), 0),
    ("exp", (INF,), INF),
    ("expm1", (-INF,), -1),
    ("expm1", (-0.0,), -0.0),
    ("log", (0.0,), -INF),
    ("log", (-1,), NAN),
    ("log1p", (-1,), -INF),
    ("log1p", (-0.0,), -0.0),
    ("log2", (8,), 3),
    ("log10", (INF,), INF),
    ("sqrt", (-0.0,), -0.0),
    ("sqrt", (-1,), NAN),
    ("rsqrt", (0.0,), INF),
    ("rsqrt", (-0.0,), -INF),
    ("rsqrt", (INF,), 0),
    ("cbrt", (-8,), -2),
    ("sin", (INF,), NAN),
    ("atan2", (0.0, -0.0), math.pi),
    ("atan2", (-0.0, 0.0), -0.0),
    ("atan", (INF,), math.pi / 2),
    ("acosh", (0.5,), NAN),
    ("atanh", (1,), INF),
    ("tanh", (-INF,), -1),
    ("hypot", (INF, NAN), INF),
    ("logaddexp", (-INF, -INF), -INF),
    ("logaddexp", (INF, INF), INF),
    ("erf", (INF,), 1),
    ("erfc", (-INF,), 2),
    ("erfinv", (1,), INF),
    ("erfinv", (-1,), -INF),
    ("erfinv", (1.5,), NAN),
    ("erfinv", (-0.0,), -0.0),
    ("lgamma", (0.0,), INF),
    ("lgamma", (-2,), INF),
    ("lgamma", (-INF,), INF),
    ("lgamma", (1,), 0),
    ("digamma", (0.0,), -INF),
    ("digamma", (-0.0,), INF),
    ("digamma", (-3,), NAN),
    ("digamma", (INF,), INF),
    ("digamma", (-INF,), NAN),
    ("sigmoid", (-INF,), 0),
    ("sigmoid", (INF,), 1),
    ("round", (2.5,), 2),
    ("round", (-0.5,), -0.0),
    ("round", (3.5,), 4),
    ("ceil", (-0.5,), -0.0),
    ("trunc", (-1.5,), -1),
    ("floor", (-INF,), -INF),
    ("copysign", (1, -0.0), -1),
    ("copysign", (-INF, 1), INF),
    ("fma", (0.0, INF, 1), NAN),
    ("fma", (INF, 1, -INF), NAN),
    ("fma", (INF, 1, 1), INF),
    ("fma", (-0.0, 1, -0.0), -0.0),
    ("fma", (1, 1, -1), 0.0),
]
NAN_IS_NOT_ABSORBED = {"pow", "hypot", "isnan", "isinf", "isfinite", "signbit", "copysign"}


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.float32, dt.float64], ids=str)
def test_special_values(dtype: DType) -> None:
    for name, given, expected in SPECIAL:
        got = scalar(name).evaluate(*(array(x, dtype) for x in given))
        rounded = array(expected, dtype)
        assert np.array_equal(wide(got), wide(rounded), equal_nan=True), (name, given, got)
        if expected == expected:
            assert np.signbit(wide(got)) == np.signbit(wide(rounded)), (name, given, got)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_gives_nan(dtype: DType) -> None:
    for name in REAL_ROWS:
        fn = scalar(name)
        if name in NAN_IS_NOT_ABSORBED or name == "imag":
            continue
        for place in range(fn.arity):
            args = [array(NAN if i == place else 1.0, dtype) for i in range(fn.arity)]
            assert np.isnan(wide(fn.evaluate(*args))), name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_comparisons_and_tests(dtype: DType) -> None:
    x = values(dtype)
    a, b = (v.reshape(-1) for v in np.meshgrid(x, x))
    p, q = a.astype(np.float64).tolist(), b.astype(np.float64).tolist()
    operators: dict[str, Callable[[float, float], bool]] = {
        "eq": lambda u, v: u == v,
        "ne": lambda u, v: u != v,
        "lt": lambda u, v: u < v,
        "le": lambda u, v: u <= v,
        "gt": lambda u, v: u > v,
        "ge": lambda u, v: u >= v,
    }
    for name, operator in operators.items():
        assert scalar(name).evaluate(a, b).tolist() == list(map(operator, p, q))
    tests: dict[str, Callable[[float], bool]] = {
        "isnan": math.isnan,
        "isinf": math.isinf,
        "isfinite": math.isfinite,
        "signbit": lambda v: math.copysign(1, v) < 0,
    }
    for name, test in tests.items():
        expected = list(map(test, x.astype(np.float64).tolist()))
        assert scalar(name).evaluate(x).tolist() == expected


@pytest.mark.parametrize("dtype", [dt.float8_e4m3fn, dt.float8_e5m2], ids=str)
def test_nextafter_walks_through_a_format(dtype: DType) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(dtype.np)
    order = np.unique(wide(numbers[~np.isnan(wide(numbers))]))  # both zeros are one
    for sign in (1.0, -1.0):
        end = array(sign * order[-1], dtype)
        found = wide(scalar("nextafter").evaluate(array(sign * order, dtype), end))
        assert (sign * found).tolist() == [*order[1:].tolist(), order[-1]]


@pytest.mark.parametrize("dtype", [dt.float16, dt.float32, dt.float64], ids=str)
def test_nextafter_is_numpys(dtype: DType) -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid(values(dtype), values(dtype)))
    with np.errstate(all="ignore"):
        expected = np.nextafter(a, b)
    found = scalar("nextafter").evaluate(a, b)
    assert np.array_equal(found, expected, equal_nan=True)
    if dtype is dt.float16:
        return  # between zeros of two signs NumPy gives the first here, against C's rule
    real = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found[real]), np.signbit(expected[real]))


@pytest.mark.parametrize("dtype", [dt.float8_e4m3fn, dt.float8_e5m2], ids=str)
def test_arithmetic_of_eight_bit_floats_is_exhaustively_right(dtype: DType) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype.np)
    a, b = (v.reshape(-1) for v in np.meshgrid(every, every))
    with np.errstate(all="ignore"):
        for name, exact in (("add", np.add), ("mul", np.multiply), ("div", np.divide)):
            # Sums and products are exact in float64, and quotients far finer than the format.
            true = exact(a.astype(np.float64), b.astype(np.float64))
            found = wide(scalar(name).evaluate(a, b))
            assert np.array_equal(found, nearest(true, every), equal_nan=True)


def nearest(true: npt.NDArray[Any], every: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values rounded to the nearest of a format's, ties to the even pattern, past the end over."""
    numbers = wide(every)
    finite = np.isfinite(numbers) & ~np.signbit(numbers)
    grid, patterns = numbers[finite], every.view(np.uint8)[finite]
    size = np.abs(true)
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    up = (size - low > high - size) | ((size - low == high - size) & (patterns[above] % 2 == 0))
    result = np.where(up, high, low)
    has_infinity = bool(np.isinf(numbers).any())
    # The next number of the format would be one step further; halfway goes to the even pattern.
    limit = grid[-1] + (grid[-1] - grid[-2]) / 2
    over = (size > limit) | ((size == limit) & (patterns[-1] % 2 == 1))
    result = np.where(over, np.inf if has_infinity else np.nan, result)
    return np.copysign(np.where(np.isnan(true), np.nan, result), true)


# --- complex functions ------------------------------------------------------------------------

COMPLEX_ROWS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b if a != 0 else None,
    "neg": lambda z: -z,
    "abs": lambda z: abs(z),
    "sign": lambda z: z / abs(z) if z != 0 else z,
    "square": lambda z: z * z,
    "exp": MP.exp,
    "expm1": lambda z: MP.exp(z) - 1,
    "log": MP.log,
    "log1p": lambda z: MP.log(1 + z),
    "log2": lambda z: MP.log(z) / MP.log(2),
    "log10": lambda z: MP.log(z) / MP.log(10),
    "sqrt": MP.sqrt,
    "sin": MP.sin,
    "cos": MP.cos,
    "tan": MP.tan,
    "asin": MP.asin,
    "acos": MP.acos,
    "atan": MP.atan,
    "sinh": MP.sinh,
    "cosh": MP.cosh,
    "tanh": MP.tanh,
    "asinh": MP.asinh,
    "acosh": MP.acosh,
    "atanh": MP.atanh,
    "real": MP.re,
    "imag": MP.im,
    "conj": MP.conj,
}


def test_complex_rows_are_all_here() -> None:
    rows = {f.name for f in SCALARS.values() if Kind.COMPLEX in f.kinds}
    assert rows == {*COMPLEX_ROWS, "eq", "ne", "select", "isnan", "isinf", "isfinite"}


@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
@pytest.mark.parametrize("name", COMPLEX_ROWS)
def test_complex_functions(name: str, dtype: DType) -> None:
    fn = scalar(name)
    # Off the axes, where branch cuts lie; those are NumPy's.
    parts = [0.25, -1.5, 0.75, 3.0, 1e-4]
    some = array([complex(x, y) for x in parts for y in parts], dtype)
    args = [x.reshape(-1) for x in np.meshgrid(*[some] * fn.arity)]
    units = 32 if name == "pow" else 8
    eps = finfo(dtype).eps
    for got, *given in zip(fn.evaluate(*args), *args, strict=True):
        expected = COMPLEX_ROWS[name](*(MP.mpc(complex(x)) for x in given))
        error = abs(MP.mpmathify(complex(got)) - expected)
        assert error <= units * eps * abs(expected), (given, got, expected)


def test_log1p_of_small_complex_numbers_keeps_its_digits() -> None:
    z = np.array([1e-10 + 1e-10j, 1e-12 - 3e-9j, -1e-9 + 0j, 0.3 + 0.4j, 1e200 + 1e200j])
    for got, given in zip(scalar("log1p").evaluate(z), z, strict=True):
        expected = MP.log(1 + MP.mpc(complex(given)))
        assert abs(MP.mpf(got.real) - expected.real) <= 4 * 2.3e-16 * abs(expected.real)
        assert abs(MP.mpf(got.imag) - expected.imag) <= 4 * 2.3e-16 * abs(expected.imag)


@pytest.mark.parametrize(
    ("part", "whole"), [(dt.float32, dt.complex64), (dt.float64, dt.complex128)]
)
def test_complex_from_its_parts(part: DType, whole: DType) -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid(values(part), values(part)))
    z = scalar("complex").evaluate(a, b)
    assert z.dtype == whole.np
    assert np.array_equal(scalar("real").evaluate(z), a, equal_nan=True)
    assert np.array_equal(scalar("imag").evaluate(z), b, equal_nan=True)
    for name, test in (("isnan", np.isnan), ("isinf", np.isinf)):
        assert np.array_equal(scalar(name).evaluate(z), test(a) | test(b))
    assert np.array_equal(scalar("isfinite").evaluate(z), np.isfinite(a) & np.isfinite(b))
    assert np.array_equal(scalar("eq").evaluate(z, z), (a == a) & (b == b))
    assert np.array_equal(scalar("ne").evaluate(z, z), (a != a) | (b != b))


# --- the table --------------------------------------------------------------------------------


def test_result_dtypes() -> None:
    assert result_dtype(scalar("lt"), dt.float32, dt.float32) is dt.bool_
    assert result_dtype(scalar("abs"), dt.complex64) is dt.float32
    assert result_dtype(scalar("abs"), dt.int8) is dt.int8
    assert result_dtype(scalar("complex"), dt.float64, dt.float64) is dt.complex128
    assert result_dtype(scalar("select"), dt.bool_, dt.int8, dt.int8) is dt.int8


@pytest.mark.parametrize(
    ("name", "dtypes", "message"),
    [
        ("add", (dt.float32,), "add: takes 2 operands, but was given 1"),
        ("add", (dt.float32, dt.float64), "add: operands have different dtypes: float32, float64"),
        ("add", (dt.bool_, dt.bool_), r"add: bool operands are not allowed[^$]*fix: use 'or'"),
        (
            "div",
            (dt.int8, dt.int8),
            r"rule: div takes float, complex operands\n  fix: use floordiv",
        ),
        ("exp", (dt.int32,), "exp: int32 operands are not allowed"),
        ("lt", (dt.complex64, dt.complex64), "rule: lt takes int, uint, float operands"),
        ("complex", (dt.float16, dt.float16), "rule: complex takes float32 or float64 operands"),
        ("select", (dt.int8, dt.int8, dt.int8), "select: the condition is int8, not bool"),
        ("select", (dt.bool_, dt.int8, dt.int16), "different dtypes: int8, int16"),
    ],
)
def test_wrong_operands(name: str, dtypes: tuple[DType, ...], message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        result_dtype(scalar(name), *dtypes)


def test_unknown_names() -> None:
    with pytest.raises(VerifyError, match=r"named 'sine'[^$]*did you mean sin"):
        scalar("sine")
    with pytest.raises(VerifyError, match="named 'qqqqqq'"):
        scalar("qqqqqq")


def test_rows_are_single_objects() -> None:
    fn = scalar("add")
    assert pickle.loads(pickle.dumps(fn)) is copy.deepcopy(fn) is copy.copy(fn) is fn
    assert str(fn) == "add"
    assert {r.name: r for r in SCALARS.values()} == dict(SCALARS)
    assert all(r.text and r.cost in (1, 4, 16) for r in SCALARS.values())
    with pytest.raises(AttributeError):
        fn.cost = 2  # pyright: ignore[reportAttributeAccessIssue]
