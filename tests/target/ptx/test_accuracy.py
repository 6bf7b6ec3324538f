"""How far the functions of GPUs are from the exact ones, whatever the special function unit gives
within its own error; and those that GPUs have no library for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.ir.scalar import scalar
from tessera.target import gpu_ops as g
from tessera.target.gpu import gpu
from tessera.target.passes.approximate import APPROXIMATE, ROUGH
from tessera.target.passes.legalize_gpu import legalize_gpu
from tests.target.ptx.evaluate import Array, evaluate, map_kernel

MACHINE = gpu("sm_90a")

LIMITS = {
    # Units in the last place; the unit's own error of the exponential, 2.06, is not part of it.
    "exp": 1.0,
    "exp2": 0.8,
    "sigmoid": 1.95,
    "tanh": 1.8,
    "erf": 1.6,
    "log": 1.0,
    "log2": 1.2,
    "log10": 1.1,
    "log1p": 1.6,
    "rsqrt": 0.6,
    "sin": 1.6,
    "cos": 1.6,
    "tan": 1.6,
}
OWN_ERROR = {"exp": 1.1, "exp2": 1.1, "rsqrt": 1.1}
"""What an error of the unit by one in the last place adds at most."""


def samples() -> Array:
    """All exponents, and the neighbourhoods of 0, 1 and of where functions change."""
    rng = np.random.default_rng(0)
    some = np.arange(0, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    normal = rng.normal(size=20000) * np.exp2(rng.integers(-6, 7, 20000))
    near_one = 1 + rng.normal(size=10000) * np.exp2(rng.integers(-24, -1, 10000).astype(float))
    line = np.linspace(-110, 110, 40001)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2**-126, 2**-149, -(2**-149), 3.4e38]
    parts = (some, normal, near_one, line, np.array(special))
    return np.concatenate([x.astype(np.float32) for x in parts])


def errors(got: Array, exact: Array) -> Array:
    """Units in the last place of float32, against float64."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))) - 23)
        found = np.abs(got.astype(np.float64) - exact) / unit
    special = ~np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(special, np.where(same, 0, np.inf), np.nan_to_num(found, nan=np.inf))


@pytest.mark.parametrize("units", [0, 1, -1])
@pytest.mark.parametrize("name", LIMITS)
def test_functions_of_float32(name: str, units: int) -> None:
    x = samples()
    got = evaluate(map_kernel(name, [d.float32]), MACHINE, [x], units)
    with np.errstate(all="ignore"):
        exact = scalar(name).evaluate(x.astype(np.float64))
    found = errors(got, exact)
    k = int(np.argmax(found))
    limit = LIMITS[name] + (OWN_ERROR.get(name, 0.3) if units else 0)
    assert found[k] <= limit, f"{name}({x[k]}) = {exact[k]}, but was {got[k]}: {found[k]} units"
    zero = np.abs(exact) < 2.0**-150
    assert np.array_equal(np.signbit(got[zero]), np.signbit(exact[zero]))


@pytest.mark.parametrize("units", [0, 2, -2])
@pytest.mark.parametrize(("name", "dtype"), ROUGH, ids=str)
def test_rough_functions_are_a_unit_off_at_most(name: str, dtype: DType, units: int) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(dtype.np)
    want = scalar(name).evaluate(x)
    got = evaluate(map_kernel(name, [dtype]), MACHINE, [x], units)
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(nan, np.isnan(got.astype(np.float32)))
    distance = np.where(nan, 0, np.abs(ordered(got) - ordered(want)))
    k = int(np.argmax(distance))
    assert distance[k] <= 1, f"{name}({x[k]}) = {want[k]}, but was {got[k]}"


def ordered(x: Array) -> Array:
    """16-bit floats as integers in their order."""
    bits = x.view(np.uint16).astype(np.int64)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("name", sorted({name for name, _ in ROUGH} & set(APPROXIMATE)))
def test_rough_functions_are_shorter(name: str) -> None:
    rough, exact = (map_kernel(name, [x]) for x in (d.bfloat16, d.float32))
    assert len(legalize_gpu(rough, MACHINE).ops) < len(legalize_gpu(exact, MACHINE).ops)


def test_the_unit_is_used() -> None:
    func = legalize_gpu(map_kernel("exp", [d.float32]), MACHINE)
    found = [op.fn for op in func.ops if isinstance(op, g.Approximate)]
    assert len([fn for fn in found if fn != "saturate"]) == 1
    assert len(func.ops) < 30


# --- against many digits --------------------------------------------------------------------------


def check(name: str, dtype: DType, inputs: list[Array], exact: Callable[..., Any], limit: float,
          floor: float = 0.0) -> None:  # fmt: skip
    given = [x.astype(dtype.np) for x in inputs]
    got = evaluate(map_kernel(name, [dtype] * len(given)), MACHINE, given).astype(np.float64)
    info = d.finfo(dtype)
    digits = 23 if dtype is d.float32 else 52
    with mpmath.workdps(60):
        for k in range(len(got)):
            args = [float(x[k]) for x in given]
            want = exact(*[mpmath.mpf(a) for a in args])
            if not mpmath.isfinite(want) or abs(want) > float(info.max):
                continue
            size = max(abs(want), float(info.smallest_normal), floor)
            unit = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(size, 2)) - digits)
            error = abs(mpmath.mpf(float(got[k])) - want) / unit
            text = f"{name}{args} = {float(want)!r}, but was {got[k]!r}: {float(error):.2f} units"
            assert error <= limit, text


def angles(top: float) -> Array:
    rng = np.random.default_rng(1)
    wide = (rng.random(200) + 1) * np.exp2(rng.uniform(-20, top, 200))
    near = np.arange(1, 100) * np.pi / 2
    return np.concatenate([wide, -wide[:50], near, near * 1e5, rng.normal(size=100) * 100])


@pytest.mark.parametrize("dtype", [d.float32, d.float64], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size(name: str, dtype: DType) -> None:
    top = 126.0 if dtype is d.float32 else 1000.0
    check(name, dtype, [angles(top)], getattr(mpmath, name), 1.6)


def test_infinite_angles() -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    for name in ("sin", "cos", "tan"):
        for dtype in (d.float32, d.float64):
            got = evaluate(map_kernel(name, [dtype]), MACHINE, [x.astype(dtype.np)])
            assert np.isnan(got).all()


def test_powers_of_float64() -> None:
    rng = np.random.default_rng(2)
    x = np.abs(rng.normal(size=200) * np.exp2(rng.uniform(-100, 100, 200)))
    y = rng.normal(size=200) * np.exp2(rng.uniform(-5, 6, 200))
    near = np.abs(1 + rng.normal(size=200) * np.exp2(rng.uniform(-40, -2, 200)))
    large = rng.uniform(-1000, 1000, 200) / np.log2(near)
    check("pow", d.float64, [np.append(x, near), np.append(y, large)], mpmath.power, 1.2)


def test_lgamma_of_float64() -> None:
    rng = np.random.default_rng(3)
    x = [rng.uniform(-20, 200, 200), rng.uniform(0, 12, 200), 1 + rng.normal(size=50) * 0.01]
    x.append(2 + rng.normal(size=50) * 0.01)
    gamma = mpmath.gamma
    every = np.concatenate(x)
    check("lgamma", d.float64, [every], lambda v: mpmath.log(abs(gamma(v))), 1.2, floor=0.125)


@pytest.mark.parametrize("dtype", [d.float32, d.float64], ids=str)
def test_remainders_of_far_apart_numbers(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    top = 120.0 if dtype is d.float32 else 1000.0
    a, b = (
        (rng.normal(size=2000) * np.exp2(rng.uniform(-top, top, 2000))).astype(dtype.np)
        for _ in range(2)
    )
    got = evaluate(map_kernel("rem", [dtype, dtype]), MACHINE, [a, b])
    assert np.array_equal(got, np.fmod(a, b))
