"""Elementwise ops: values against NumPy, types, errors, derivatives, batching."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import ALL, DType, Kind, bool_, complex64, dtype_of, float16, float32, int32
from tessera.errors import DTypeError, ShapeError
from tessera.graph.array import Array
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import Family
from tessera.graph.ops.precision import Formatted
from tessera.graph.transforms.differentiate import jvp
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import sym
from tessera.ir.opdef import FieldKind
from tessera.ir.scalar import SCALARS, Sig, result_dtype
from tessera.ir.types import TensorType
from tests.graph.rules import (
    arrays,
    check_batch,
    check_derivatives,
    numpy_engine,
    same,
    tangent,
    trace,
)

BUILTIN = {"abs", "and", "complex", "not", "or", "pow", "round"}
RENAMED = {"min": "minimum", "max": "maximum"}


def function(name: str) -> Callable[..., Any]:
    """The function that binds the op of a row."""
    return getattr(e, RENAMED.get(name, f"{name}_" if name in BUILTIN else name))


def cls_of(name: str) -> type[e.Elementwise]:
    found = Op.registry[f"graph.{name}"]
    assert issubclass(found, e.Elementwise)
    return found


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with numpy_engine():
        yield


def call(name: str, *xs: Any) -> np.ndarray:
    return function(name)(*arrays(xs)).host


# --- the classes ------------------------------------------------------------------------------


def test_one_class_for_each_row() -> None:
    classes = {
        cls.scalar: cls
        for cls in Op.registry.values()
        if issubclass(cls, e.Elementwise)
        and cls not in (e.Cast, e.Bitcast)
        and not issubclass(cls, Formatted)
    }
    assert set(classes) == set(SCALARS)
    for name, cls in classes.items():
        assert cls.name == f"graph.{name}"
        assert cls.family is Family.ELEMENTWISE
        assert sum(f.kind is FieldKind.OPERAND for f in cls.fields) == SCALARS[name].arity
        assert cls.__name__ in e.__all__
        assert function(name).__name__ in (name, f"{name}_")
        assert function(name).__doc__


# --- values -----------------------------------------------------------------------------------


def samples(dtype: DType, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a dtype, special ones among them."""
    count = math.prod(shape)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low = 0 if dtype.kind is Kind.UINT else -8
        return rng.integers(low, 8, shape).astype(dtype.np)
    x = rng.standard_normal(shape) * 2
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5]
    flat = x.reshape(-1)
    for k in range(min(count, len(special))):
        if rng.random() < 0.7:
            flat[k] = special[k]
    if dtype.is_complex:
        found = np.empty(shape, dtype.np)
        found.real, found.imag = x, rng.permutation(flat).reshape(shape)
        return found
    with np.errstate(all="ignore"):
        return x.astype(dtype.np)


@pytest.mark.parametrize("name", sorted(SCALARS))
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 5)], ids=str)
def test_every_row_on_every_dtype(name: str, shape: tuple[int, ...]) -> None:
    row = SCALARS[name]
    rng = np.random.default_rng(len(name))
    taken = [
        d
        for d in ALL
        if d.kind in row.kinds and (row.sig is not Sig.FROM_REALS or d.bits in (32, 64))
    ]
    assert taken
    for dtype in taken:
        dtypes = [dtype] * row.arity
        if row.sig is Sig.SELECT:
            dtypes[0] = bool_
        xs = [samples(d, rng, shape) for d in dtypes]
        out = function(name)(*arrays(xs))
        assert out.type == TensorType(shape, result_dtype(row, *dtypes))
        same(out.host, row.evaluate(*xs))


def standard_floordiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The floor of a quotient as the array API standard has it: a / b at infinities."""
    found = np.floor_divide(a, b)
    return np.where(np.isinf(a) | np.isinf(b), a / b, found) if found.dtype.kind == "f" else found


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floordiv": standard_floordiv, "mod": np.remainder, "rem": np.fmod, "pow": np.power,
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "square": np.square, "min": np.minimum,
    "max": np.maximum, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "select": np.where, "isnan": np.isnan,
    "isinf": np.isinf, "isfinite": np.isfinite, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10,
    "sqrt": np.sqrt, "cbrt": np.cbrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "hypot": np.hypot, "logaddexp": np.logaddexp, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "signbit": np.signbit,
    "copysign": np.copysign, "nextafter": np.nextafter, "real": np.real, "imag": np.imag,
    "conj": np.conj, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, [np.float64]), "erfc": np.vectorize(math.erfc, [np.float64]),
    "complex": lambda x, y: x + 1j * y, "fma": lambda x, y, z: x * y + z,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NUMPY))
@pytest.mark.parametrize("dtype", [float32, dtype_of("f64")], ids=str)
def test_values_are_numpys(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    row = SCALARS[name]
    xs = [samples(dtype, rng, (4, 9)) for _ in range(row.arity)]
    if row.sig is Sig.SELECT:
        xs[0] = xs[0] > 0
    if name == "complex":
        xs = [np.nan_to_num(x) for x in xs]
    with np.errstate(all="ignore"):
        expected = NUMPY[name](*xs)
    tolerance = 4 * np.finfo(dtype.np).eps
    np.testing.assert_allclose(call(name, *xs), expected, rtol=tolerance, atol=tolerance)


def test_bits() -> None:
    x, y = np.array([12, -3, 7], np.int32), np.array([10, 5, -1], np.int32)
    assert call("and", x, y).tolist() == [8, 5, 7]
    assert call("or", x, y).tolist() == [14, -3, -1]
    assert call("xor", x, y).tolist() == [6, -8, -8]
    assert call("not", x).tolist() == [-13, 2, -8]
    assert call("shl", x, np.array([1, 2, 40], np.int32)).tolist() == [24, -12, 0]
    assert call("shr", x, np.array([1, 1, -1], np.int32)).tolist() == [6, -2, 0]
    assert call("clz", x).tolist() == [28, 0, 29]
    assert call("popcount", x).tolist() == [2, 31, 3]
    assert call("trunc_div", np.array([7, -7, 5]), np.array([2, 2, 0])).tolist() == [3, -3, 0]
    assert call("mulhi", np.array([2**40]), np.array([2**30])).tolist() == [2**6]


def test_python_numbers_become_arrays() -> None:
    x = Array(np.array([1, 2, 3], np.int8))
    assert e.add(x, 2).type == TensorType((3,), dtype_of("i8"))
    assert e.sub(10, x).host.tolist() == [9, 8, 7]
    z = Array(np.array([1j, 2], np.complex64))
    assert e.mul(z, 2j).host.tolist() == [-2, 4j]
    cond = Array(np.array([True, False]))
    assert e.select(cond, 0.5, Array(np.ones(2, np.float32))).host.tolist() == [0.5, 1.0]
    assert e.fma(Array(np.ones(2, np.float32)), 2, 3).host.tolist() == [5, 5]
    with pytest.raises(TypeError, match="at least one operand is an array"):
        e.add(1, 2)


def test_weak_operands() -> None:
    x = Array(np.float32(1), TensorType((), float32, weak=True))
    y = Array(np.float32(2))
    assert e.add(x, x).type.weak
    assert e.mul(x, 2).type.weak
    assert not e.add(x, y).type.weak
    assert not e.add(y, x).type.weak
    cond = Array(np.array(True))
    assert e.select(cond, x, x).type.weak
    assert not e.select(cond, x, y).type.weak
    assert not e.cast(Array(np.float32(1), x.type), int32).type.weak


# --- conversion -------------------------------------------------------------------------------


def cast(x: Any, name: str) -> list[Any]:
    return e.cast(Array(np.asarray(x)), dtype_of(name)).host.tolist()


def test_cast_of_floats_to_integers_saturates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -1.9, 1.9, 127.5, 128.0, -128.9])
    i32, u64 = 2**31 - 1, 2**64 - 1
    for given in (x, x.astype(np.float32)):
        assert cast(given, "i8") == [0, 127, -128, 127, -128, -1, 1, 127, 127, -128]
        assert cast(given, "u8") == [0, 255, 0, 255, 0, 0, 1, 127, 128, 0]
        assert cast(given, "i32") == [0, i32, -i32 - 1, i32, -i32 - 1, -1, 1, 127, 128, -128]
        assert cast(given, "u64") == [0, u64, 0, u64, 0, 0, 1, 127, 128, 0]
        assert cast(given, "i4") == [0, 7, -8, 7, -8, -1, 1, 7, 7, -8]
    assert cast(np.float16([np.inf, np.nan, -2.5]), "i64") == [2**63 - 1, 0, -2]
    assert cast(np.array([2.0**63, -(2.0**63)]), "i64") == [2**63 - 1, -(2**63)]
    assert cast(np.float32([2.0**31, -(2.0**31)]), "i32") == [i32, -i32 - 1]


def test_cast_of_everything_else() -> None:
    assert cast(np.array([300, -1], np.int32), "i8") == [44, -1]
    assert cast(np.array([-1], np.int8), "u32") == [2**32 - 1]
    assert cast(np.array([0.0, -0.0, 0.1, np.nan]), "bool") == [False, False, True, True]
    assert cast(np.array([0j, 1j]), "bool") == [False, True]
    assert cast(np.array([1.7 + 9j]), "f32") == [np.float32(1.7)]
    assert cast(np.array([-1.7 + 9j]), "i8") == [-1]
    assert cast(np.array([True, False]), "c64") == [1, 0]
    assert cast(np.array([1.5]), "c128") == [1.5]
    assert cast(np.array([2**24 + 1], np.int64), "f32") == [2.0**24]
    # by way of float32, the number would be rounded twice, and up
    assert cast(np.array([1 + 2.0**-8 + 2.0**-40]), "bf16") == [1 + 2.0**-7]
    assert cast(np.array([1 + 2.0**-8 - 2.0**-40]), "bf16") == [1.0]
    assert cast(np.float32(3.0), "bf16") == 3.0


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_casts_exist_between_all_dtypes(source: DType, target: DType) -> None:
    for shape in ((), (0,), (5,)):
        x = Array(samples(source, np.random.default_rng(0), shape))
        assert e.cast(x, target).type == TensorType(shape, target)
    small = Array(np.array([0, 1, 1, 0]).astype(source.np))
    assert (e.cast(small, target).host == np.array([0, 1, 1, 0]).astype(target.np)).all()


def test_bitcast() -> None:
    x = Array(np.float32([1.0, -0.0]))
    assert e.bitcast(x, dtype_of("u32")).host.tolist() == [0x3F800000, 0x80000000]
    assert e.bitcast(Array(np.float32(1)), int32).host.shape == ()
    assert e.bitcast(x, float32) is x
    with pytest.raises(DTypeError, match=r"bitcast: f32\[2\] has 32 bits per element, i64 has 64"):
        e.bitcast(x, dtype_of("i64"))
    with pytest.raises(DTypeError, match=r"bitcast: from u8\[1\] to bool"):
        e.bitcast(Array(np.zeros(1, np.uint8)), bool_)


# --- errors -----------------------------------------------------------------------------------


def infer(name: str, *types: TensorType) -> TensorType:
    found = cls_of(name)(*[Value(t) for t in types]).result.type
    assert isinstance(found, TensorType)
    return found


S, T = sym("S"), sym("T")


def test_shapes_differ() -> None:
    with pytest.raises(ShapeError) as caught:
        infer("add", TensorType((4, S), float32), TensorType((4, 3), float32))
    assert caught.value.what == (
        "add: operand 1 is f32[4, 3], but operand 0 is f32[4, S]; dim 1 is 3 and S"
    )
    assert "fix: broadcast them first" in str(caught.value)
    with pytest.raises(ShapeError, match=r"dim 0 is 5 and 4, and dims \[2\] differ too"):
        infer("mul", TensorType((4, 2, S), float32), TensorType((5, 2, T), float32))
    with pytest.raises(ShapeError, match=r"multiply: operand 1 is .*; their ranks are 0 and 1"):
        infer("mul", TensorType((4,), float32), TensorType((), float32))
    with pytest.raises(ShapeError, match=r"select: operand 2 is f32\[3\].*; dim 0 is 3 and 2"):
        infer(
            "select",
            TensorType((2,), bool_),
            TensorType((2,), float32),
            TensorType((3,), float32),
        )


def test_equal_symbolic_shapes() -> None:
    a, b = TensorType((S * 2 + T, 3), float32), TensorType((T + S + S, 3), float32)
    assert infer("add", a, b) == a


def test_dtypes_differ() -> None:
    with pytest.raises(DTypeError, match="add: operands have different dtypes: float32, int32"):
        infer("add", TensorType((4,), float32), TensorType((4,), int32))
    with pytest.raises(DTypeError, match="exp: int32 operands are not allowed"):
        infer("exp", TensorType((4,), int32))
    with pytest.raises(DTypeError, match="select: the condition is int32, not bool"):
        infer("select", *[TensorType((), int32)] * 3)
    with pytest.raises(DTypeError, match="less: complex64 operands are not allowed"):
        infer("lt", *[TensorType((), complex64)] * 2)
    with pytest.raises(DTypeError, match="complex: float16 operands are not allowed"):
        infer("complex", *[TensorType((), float16)] * 2)


def test_errors_say_where() -> None:
    with pytest.raises(DTypeError, match=r"test_ops_elementwise\.py:\d+") as caught:
        call("exp", np.int32(3))
    assert "call(" in str(caught.value)


# --- derivatives ------------------------------------------------------------------------------

POSITIVE, UNIT, ANYWHERE, ABOVE_ONE = (0.2, 3.0), (-0.9, 0.9), (-3.0, 3.0), (1.2, 4.0)
DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["log", "log2", "log10", "sqrt", "rsqrt", "cbrt", "pow", "log1p"], POSITIVE),
    **dict.fromkeys(["asin", "acos", "atanh", "erfinv"], UNIT),
    **dict.fromkeys(["acosh"], ABOVE_ONE),
}
# Second differences of these are too coarse near their jumps or poles.
SMOOTH = sorted(
    name
    for name in SCALARS
    if cls_of(name).differentiable and name not in ("mod", "rem", "select", "complex")
)


def points(rng: np.random.Generator, name: str, dtype: str) -> list[np.ndarray]:
    low, high = DOMAINS.get(name, ANYWHERE)
    xs: list[np.ndarray] = []
    for _ in range(SCALARS[name].arity):
        x = rng.uniform(low, high, (3, 4))
        if dtype == "c128":
            # off the branch cuts, which all lie on the axes
            x = x + 1j * rng.uniform(0.2, 0.9, (3, 4)) * rng.choice([-1, 1], (3, 4))
        xs.append(x)
    return xs


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_real_functions(name: str) -> None:
    rng = np.random.default_rng(3)
    check_derivatives(function(name), *points(rng, name, "f64"), rtol=2e-5)


@pytest.mark.parametrize(
    "name", [name for name in SMOOTH if Kind.COMPLEX in SCALARS[name].kinds]
)
def test_derivatives_of_complex_functions(name: str) -> None:
    rng = np.random.default_rng(5)
    check_derivatives(function(name), *points(rng, name, "c128"), rtol=5e-5)


def test_derivatives_of_remainders() -> None:
    x, y = np.array([7.3, -7.3, 5.2, -0.4]), np.array([2.0, 2.1, -1.7, -3.0])
    check_derivatives(e.mod, x, y)
    check_derivatives(e.rem, x, y)
    # x / y rounds to 3, but x is a little less than 3 * y
    x, y = np.float32(0.3), np.float32(0.1)
    quotient = math.floor(float(x) / float(y))
    assert tangent(e.rem, x, y, k=1) == tangent(e.mod, x, y, k=1) == -quotient


def test_derivatives_of_selections() -> None:
    rng = np.random.default_rng(1)
    cond = rng.integers(0, 2, (3, 4)).astype(bool)
    x, y = rng.standard_normal((2, 3, 4))
    check_derivatives(lambda c, x, y: e.select(c, e.sin(x), e.mul(x, y)), cond, x, y)
    check_derivatives(lambda c, x: e.select(c, x, 0), cond, x)
    check_derivatives(lambda c, x: e.select(c, 1, x), cond, x)


def test_derivatives_of_parts() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2, 5))
    check_derivatives(lambda x, y: e.square(e.complex_(x, y)), x, y)
    check_derivatives(lambda x: e.exp(e.complex_(x, 2)), x)
    check_derivatives(lambda x: e.exp(e.complex_(1, x)), x)
    z = x + 1j * y
    check_derivatives(lambda z: [e.mul(e.real(z), e.imag(z)), e.mul(z, e.conj(z))], z)
    check_derivatives(lambda x: [e.real(e.square(x)), e.conj(x)], x)


def test_derivatives_of_casts() -> None:
    x = np.array([0.3, -1.2, 2.0])
    z = x + 1j * x[::-1]
    check_derivatives(lambda x: e.square(e.cast(x, dtype_of("c128"))), x)
    check_derivatives(lambda z: e.cast(e.square(z), dtype_of("f64")), z)
    assert tangent(lambda x: e.cast(x, float32), x).dtype == np.float32
    assert not tangent(lambda x: e.cast(x, int32), x).any()


def test_derivatives_of_round_functions_are_zero() -> None:
    x = np.array([0.3, -1.2, 2.0])
    for name in ("floor", "ceil", "trunc", "round", "sign"):
        assert not tangent(function(name), x).any()
    for name in ("floordiv", "nextafter"):
        assert not tangent(function(name), x, x[::-1].copy()).any()


SPECIAL_POINTS: list[tuple[str, list[float], int, float]] = [
    ("abs", [0.0], 0, 0.0),
    ("abs", [-2.0], 0, -1.0),
    ("max", [1.0, 1.0], 0, 0.5),
    ("max", [1.0, 1.0], 1, 0.5),
    ("max", [2.0, 1.0], 0, 1.0),
    ("max", [2.0, 1.0], 1, 0.0),
    ("min", [1.0, 1.0], 0, 0.5),
    ("min", [1.0, 2.0], 1, 0.0),
    ("max", [np.inf, 1.0], 0, 1.0),
    ("pow", [0.0, 2.0], 0, 0.0),
    ("pow", [0.0, 1.0], 0, 1.0),
    ("pow", [0.0, 0.0], 0, 0.0),
    ("pow", [-2.0, 3.0], 0, 12.0),
    ("pow", [-2.0, 0.0], 0, 0.0),
    ("pow", [0.0, 2.0], 1, 0.0),
    ("pow", [0.0, 0.0], 1, 0.0),
    ("sqrt", [0.0], 0, np.inf),
    ("sqrt", [np.inf], 0, 0.0),
    ("cbrt", [0.0], 0, np.inf),
    ("cbrt", [-8.0], 0, 1 / 12),
    ("hypot", [0.0, 0.0], 0, 0.0),
    ("hypot", [3e200, 4e200], 1, 0.8),
    ("atan2", [0.0, 0.0], 0, 0.0),
    ("atan2", [0.0, -1.0], 0, -1.0),
    ("atan2", [1e200, 1e200], 0, 0.5e-200),
    ("logaddexp", [np.inf, np.inf], 0, 0.5),
    ("logaddexp", [-np.inf, -np.inf], 1, 0.5),
    ("logaddexp", [-np.inf, 0.0], 0, 0.0),
    ("logaddexp", [1000.0, 0.0], 0, 1.0),
    ("asinh", [1e200], 0, 1e-200),
    ("erf", [1e200], 0, 0.0),
    ("sigmoid", [1000.0], 0, 0.0),
    ("tanh", [1000.0], 0, 0.0),
    ("copysign", [2.0, -1.0], 0, -1.0),
    ("copysign", [-2.0, -1.0], 0, 1.0),
    ("copysign", [-2.0, -1.0], 1, 0.0),
    ("lgamma", [1.0], 0, -0.5772156649015329),
    ("digamma", [1.0], 0, math.pi**2 / 6),
    ("digamma", [0.5], 0, math.pi**2 / 2),
    ("digamma", [-0.5], 0, math.pi**2 / 2 + 4),
    ("digamma", [0.0], 0, np.inf),
    ("digamma", [-3.0], 0, np.inf),
    ("digamma", [100.0], 0, 0.010050166663333571),
    ("log", [0.0], 0, np.inf),
]


@pytest.mark.parametrize(("name", "xs", "k", "expected"), SPECIAL_POINTS)
def test_derivatives_at_special_points(
    name: str, xs: list[float], k: int, expected: float
) -> None:
    found = tangent(function(name), *[np.float64(x) for x in xs], k=k)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=0)


def test_pow_of_negative_base_in_the_exponent_is_nan() -> None:
    assert np.isnan(tangent(e.pow_, np.float64(-2), np.float64(2), k=1))


def test_second_derivative_of_pow_at_zero() -> None:
    def first(x: Any) -> Any:
        return e.pow_(x, 2)

    check_derivatives(first, np.array([0.0, 1.0, -1.0]), order=3)


def test_higher_derivatives_where_a_rule_has_a_special_case() -> None:
    equal = np.array([0.0, 1.5, -2.0])
    check_derivatives(e.logaddexp, equal, equal.copy(), order=3)
    check_derivatives(lambda x: e.logaddexp(x, 0.0), equal, order=3)
    check_derivatives(e.pow_, np.array([1.0, 0.5, 2.5]), np.zeros(3), order=3)


def test_equal_infinities_weigh_the_same() -> None:
    for x in (np.inf, -np.inf):
        assert tangent(e.logaddexp, np.float64(x), np.float64(x), k=0) == 0.5
    assert np.isnan(tangent(e.logaddexp, np.float64(np.nan), np.float64(np.nan), k=0))


def test_the_derivative_in_the_base_is_zero_where_the_exponent_is() -> None:
    for x in (0.0, np.nan, np.inf, -np.inf, 3.0):
        assert tangent(e.pow_, np.float64(x), np.float64(0), k=0) == 0


def test_abs_and_sign_of_complex_zero() -> None:
    assert tangent(e.abs_, np.complex128(0)) == 0
    assert tangent(e.sign, np.complex128(0)) == 0
    z = np.complex128(3 + 4j)
    np.testing.assert_allclose(tangent(e.abs_, z, t=1j), 0.8)


def test_float16_derivatives_stay_in_range() -> None:
    assert tangent(e.asinh, np.float16(1000)) == np.float16(0.001)


def test_derivatives_of_integers_do_not_exist() -> None:
    func = trace(lambda x: e.add(x, 1), [np.arange(3)])
    _, flags, _ = jvp(func, [True])
    assert flags == [False]


# --- batching ---------------------------------------------------------------------------------


def test_batches() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 3, 4, 5))
    check_batch(e.add, [x, y], [0, 0])
    check_batch(e.sub, [x, np.moveaxis(y, 0, 2)], [0, 2])
    check_batch(e.div, [x, y[0]], [0, None])
    check_batch(e.div, [y[0], np.moveaxis(x, 0, 1)], [None, 1])
    check_batch(e.exp, [x], [2])
    cond = rng.integers(0, 2, (4, 5)).astype(bool)
    check_batch(e.select, [cond, x, np.moveaxis(y, 0, -1)], [None, 0, 2])
    check_batch(lambda x: e.cast(x, int32), [x], [1])
    check_batch(e.fma, [x[:, 0, 0], y[0, 0, 0], x[:, 0, 1]], [0, None, 0])
