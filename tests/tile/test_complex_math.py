"""Complex functions made of real ones, against high precision, NumPy and the C standard."""

from __future__ import annotations

import cmath
import math
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from tessera.dtypes import Kind, dtype_of
from tessera.errors import CompileError
from tessera.ir.scalar import SCALARS, scalar
from tessera.tile.complex_math import expand, takes_complex

Array = npt.NDArray[Any]

ELEMENTARY = "exp expm1 log log1p log2 log10 sqrt"
TRIGONOMETRIC = "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
UNARY = f"{ELEMENTARY} {TRIGONOMETRIC}".split()
EXACT: dict[str, Any] = {
    "expm1": mpmath.expm1,
    "log1p": lambda z: mpmath.log(1 + z),
    "log2": lambda z: mpmath.log(z) / mpmath.log(2),
    "log10": lambda z: mpmath.log(z) / mpmath.log(10),
}


def call(name: str, *args: Array) -> Array:
    """The row on arrays; complex ones are given by their parts."""
    part = next(x for x in args if x.dtype.kind in "cf").real.dtype
    pairs = [(x.real, x.imag) if x.dtype.kind == "c" else (x,) for x in args]
    found = expand(
        name,
        pairs,
        lambda fn, *xs: scalar(fn).evaluate(*xs),
        lambda value: np.asarray(value, part),
        dtype_of(part),
    )
    if len(found) == 1:
        return found[0]
    assert all(x.dtype == part for x in found)
    re, im = np.broadcast_arrays(*found)
    result = np.empty(re.shape, np.result_type(part, np.complex64))
    result.real, result.imag = re, im
    return result


def exact(name: str, z: complex) -> complex:
    f = EXACT.get(name) or getattr(mpmath, name)
    return complex(f(mpmath.mpc(z)))


def samples(dtype: str) -> Array:
    """Numbers of all sizes, and many near the points where the formulas cancel."""
    rng = np.random.default_rng(0)
    count = 60
    angles = np.exp(1j * rng.uniform(-np.pi, np.pi, (3, count)))
    spread = 10.0 ** rng.uniform(-6, 1.5, count) * angles[0]
    circle = (1 + 1e-6 * rng.standard_normal(count)) * angles[1]
    near = 10.0 ** rng.uniform(-5, -1, count) * angles[2]
    near += np.array([1, -1, 1j, -1j])[rng.integers(0, 4, count)]
    return np.concatenate([spread, circle, near]).astype(dtype)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", UNARY)
def test_accuracy(name: str, dtype: str) -> None:
    z = samples(dtype)
    found = call(name, z)
    with mpmath.workdps(60):
        expected = np.array([exact(name, complex(x)) for x in z])
    error = np.abs(found - expected) / np.abs(expected)
    assert error.max() < 24 * np.finfo(dtype).eps, z[error.argmax()]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", ["log", "log1p"])
def test_parts_of_a_logarithm_are_accurate_each(name: str, dtype: str) -> None:
    z = samples(dtype)
    found = call(name, z)
    with mpmath.workdps(60):
        expected = np.array([exact(name, complex(x)) for x in z])
    error = np.abs(found.real - expected.real) / np.abs(expected.real)
    assert error.max() < 8 * np.finfo(dtype).eps, z[error.argmax()]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_arithmetic(dtype: str) -> None:
    z = samples(dtype)
    w = np.roll(z, 7)
    tol = {"rtol": 8 * np.finfo(dtype).eps, "atol": 0}
    np.testing.assert_array_equal(call("add", z, w), z + w)
    np.testing.assert_array_equal(call("sub", z, w), z - w)
    np.testing.assert_array_equal(call("neg", z), -z)
    np.testing.assert_array_equal(call("conj", z), z.conj())
    np.testing.assert_array_equal(call("real", z), z.real)
    np.testing.assert_array_equal(call("imag", z), z.imag)
    np.testing.assert_allclose(call("mul", z, w), z * w, **tol)
    np.testing.assert_allclose(call("div", z, w), z / w, **tol)
    np.testing.assert_allclose(call("reciprocal", z), 1 / z, **tol)
    np.testing.assert_allclose(call("square", z), z * z, **tol)
    np.testing.assert_allclose(call("abs", z), np.abs(z), **tol)
    np.testing.assert_allclose(call("sign", z), np.sign(z), **tol)
    rtol = 400 * np.finfo(dtype).eps
    np.testing.assert_allclose(call("pow", z, w / 8), z.astype("c16") ** (w / 8), rtol=rtol)


def test_comparisons_and_choice() -> None:
    z = np.array([1 + 2j, 1 + 3j, complex(np.nan, 1), complex(1, np.inf), 0])
    w = np.array([1 + 2j, 1 + 2j, complex(np.nan, 1), complex(1, np.inf), -0.0])
    for name, fn in (("eq", np.equal), ("ne", np.not_equal)):
        np.testing.assert_array_equal(call(name, z, w), fn(z, w))
    for name, test in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)):
        np.testing.assert_array_equal(call(name, z), test(z))
    cond = np.array([True, False, True, False, True])
    np.testing.assert_array_equal(call("select", cond, w, z), np.where(cond, w, z))
    np.testing.assert_array_equal(call("complex", z.imag, w.real), z.imag + 1j * w.real)


def test_nothing_overflows_on_the_way() -> None:
    big = 1e300
    z = np.array([complex(big, big)])
    half = 0.5 * math.log(2)
    np.testing.assert_allclose(call("div", z, z), 1)
    np.testing.assert_allclose(call("log", z), complex(math.log(big) + half, math.pi / 4))
    np.testing.assert_allclose(call("log", z * 1.5e8).real, math.log(1.5e8 * big) + half)
    for name in ("sqrt", "asin", "acos", "asinh", "acosh", "atan", "atanh"):
        np.testing.assert_allclose(call(name, z), getattr(cmath, name)(z[0]), rtol=1e-15)
    narrow = np.array([complex(710, 1e-3)])
    for name in ("exp", "sinh", "cosh"):
        with mpmath.workdps(40):
            expected = exact(name, narrow[0])
        np.testing.assert_allclose(call(name, narrow).imag, expected.imag, rtol=1e-13)


@pytest.mark.parametrize("name", ["sqrt", "log", "asin", "acos", "atanh", "acosh", "asinh", "atan"])
def test_signed_zeros_choose_the_side_of_a_cut(name: str) -> None:
    ends = [2.0, -2.0, 0.5, -0.5]
    points = [complex(x, s) for x in ends for s in (0.0, -0.0)]
    points += [complex(s, x) for x in ends for s in (0.0, -0.0)]
    f = getattr(cmath, name)
    for z in points:
        found, expected = call(name, np.array([z]))[0], f(z)
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-16, err_msg=str(z))


SPECIAL = [
    ("sqrt", complex(-math.inf, 1), complex(0, math.inf)),
    ("sqrt", complex(math.inf, -1), complex(math.inf, -0.0)),
    ("sqrt", complex(math.nan, math.inf), complex(math.inf, math.inf)),
    ("sqrt", 0j, 0j),
    ("exp", complex(-math.inf, math.inf), 0j),
    ("exp", complex(math.inf, 0), complex(math.inf, 0)),
    ("log", 0j, complex(-math.inf, 0)),
    ("log", complex(-math.inf, math.inf), complex(math.inf, 3 * math.pi / 4)),
    ("tanh", complex(math.inf, 1), 1 + 0j),
    ("tanh", complex(-math.inf, 1), -1 + 0j),
    ("sinh", complex(math.inf, 0), complex(math.inf, 0)),
    ("cosh", complex(math.inf, 0), complex(math.inf, 0)),
    ("asinh", complex(math.inf, math.inf), complex(math.inf, math.pi / 4)),
    ("acos", complex(-math.inf, 1), complex(math.pi, -math.inf)),
    ("acosh", complex(math.inf, 1), complex(math.inf, 0)),
    ("atanh", 1 + 0j, complex(math.inf, 0)),
    ("atanh", complex(math.inf, 1), complex(0, math.pi / 2)),
    ("sign", 0j, 0j),
    ("sign", complex(math.inf, 3), 1 + 0j),
    ("reciprocal", complex(math.inf, 1), 0j),
]


@pytest.mark.parametrize(("name", "z", "expected"), SPECIAL)
def test_special_values(name: str, z: complex, expected: complex) -> None:
    found = complex(call(name, np.array([z]))[0])
    np.testing.assert_allclose(found.real, expected.real)
    np.testing.assert_allclose(found.imag, expected.imag)


def test_powers_of_zero_and_to_the_power_of_zero() -> None:
    z = np.array([0j, 0j, 3 + 1j, 0j])
    w = np.array([2 + 1j, 0j, 0j, -1 + 0j])
    found = call("pow", z, w)
    np.testing.assert_array_equal(found[:3], [0, 1, 1])
    assert np.isnan(found[3])


def test_every_row_that_takes_complex_operands_is_known() -> None:
    rows = [name for name, row in SCALARS.items() if Kind.COMPLEX in row.kinds]
    assert [name for name in rows if not takes_complex(name)] == []
    with pytest.raises(CompileError, match="floor: takes no complex operands"):
        call("floor", np.array([1j]))
