"""How far compiled elementary and special functions are from mpmath, over the whole of float32 and
float64; and what they do at the ends: infinities, NaN, zeros with signs, subnormal numbers.

The table of docs/numerics.md is made here: `TESSERA_BLESS=1` rewrites it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special

import tessera as ts
from tests.target.ptx.test_accuracy import LIMITS

INF, NAN = np.inf, np.nan
PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"


@dataclass(frozen=True)
class Function:
    """A function.

    Attributes:
        wide: what it is in float64.
        exact: with any number of digits.
        arity: how many arguments it takes.
        floor64: results in float64 below its value are as exact as if they were that.
    """

    wide: Callable[..., Any]
    exact: Callable[..., Any]
    arity: int = 1
    floor64: Callable[[np.ndarray], np.ndarray] = np.zeros_like


def lgamma(x: Any) -> Any:
    return mp.re(mp.loggamma(x)) if x > 0 else mp.log(abs(mp.gamma(x)))


def erfinv(y: Any) -> Any:
    """mpmath's is not made for numbers next to 0 and 1."""
    if abs(y) < mp.mpf(2) ** -40:
        # The next term of the series, pi y^3 / 12 of the first, is below 2^-80.
        return y * mp.sqrt(mp.pi) / 2
    start = mp.mpf(float(special.erfinv(float(y))))
    if not mp.isfinite(start):
        return start
    return mp.findroot(lambda x: mp.erf(x) - y, start, solver="newton", tol=mp.mpf(10) ** -50)


FUNCTIONS: dict[str, Function] = {
    "exp": Function(np.exp, mp.exp),
    "exp2": Function(np.exp2, lambda x: mp.mpf(2) ** x),
    "expm1": Function(np.expm1, mp.expm1),
    "log": Function(np.log, mp.log),
    "log1p": Function(np.log1p, mp.log1p),
    "log2": Function(np.log2, lambda x: mp.log(x) / mp.log(2)),
    "log10": Function(np.log10, mp.log10),
    "sqrt": Function(np.sqrt, mp.sqrt),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), lambda x: 1 / mp.sqrt(x)),
    "cbrt": Function(np.cbrt, lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "sin": Function(np.sin, mp.sin),
    "cos": Function(np.cos, mp.cos),
    "tan": Function(np.tan, mp.tan),
    "asin": Function(np.arcsin, mp.asin),
    "acos": Function(np.arccos, mp.acos),
    "atan": Function(np.arctan, mp.atan),
    "sinh": Function(np.sinh, mp.sinh),
    "cosh": Function(np.cosh, mp.cosh),
    "tanh": Function(np.tanh, mp.tanh),
    "asinh": Function(np.arcsinh, lambda x: mp.sign(x) * mp.asinh(abs(x))),
    "acosh": Function(np.arccosh, mp.acosh),
    "atanh": Function(np.arctanh, mp.atanh),
    "sigmoid": Function(special.expit, lambda x: 1 / (1 + mp.exp(-x))),
    "erf": Function(special.erf, mp.erf),
    "erfc": Function(special.erfc, mp.erfc),
    "erfinv": Function(special.erfinv, erfinv),
    # Terms of this size cancel at their zeros between negative integers.
    "lgamma": Function(special.gammaln, lgamma, floor64=lambda x: np.where(x < 0, 0.125, 0.0)),
    "digamma": Function(
        special.digamma,
        mp.digamma,
        floor64=lambda x: np.where(x < 0, np.log(np.maximum(1 - x, np.e)), 0.0),
    ),
    "pow": Function(np.power, lambda x, y: mp.power(x, y), 2),
    "atan2": Function(np.arctan2, mp.atan2, 2),
    "hypot": Function(np.hypot, mp.hypot, 2),
}


def samples(dtype: Any, size: int, seed: int) -> np.ndarray:
    """All exponents of both signs, and the neighbourhoods of 0, 1 and of where functions change."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**64, size, dtype=np.uint64)
    every = bits.view(np.float64) if dtype is np.float64 else bits.astype(np.uint32).view(dtype)
    tiny = rng.integers(1, 2**20, size // 10).astype(dtype) * np.finfo(dtype).smallest_subnormal
    # Where exponentials come to their ends.
    top = 120 if dtype is np.float32 else 760
    with np.errstate(all="ignore"):
        parts = [
            np.where(np.isfinite(every), every, 1),
            rng.normal(size=size) * 3,
            rng.uniform(-1, 1, size),
            rng.uniform(-top, top, size),
            1 + rng.normal(size=size) * np.exp2(rng.uniform(-30, -1, size)),
            -rng.uniform(0, 20, size),
            tiny,
            -tiny,
        ]
    return np.concatenate([p.astype(dtype) for p in parts])


def arguments(name: str, dtype: Any, size: int) -> list[np.ndarray]:
    arity = FUNCTIONS[name].arity
    found = [samples(dtype, size, seed) for seed in range(arity)]
    if name == "pow":
        found[0] = np.abs(found[0])
        # Half of the exponents such that the result is a number.
        half = len(found[1]) // 2
        with np.errstate(all="ignore"):
            most = np.log(float(np.finfo(dtype).max)) / np.abs(
                np.log(found[0][:half].astype(float))
            )
            share = np.random.default_rng(9).uniform(-1, 1, half)
            found[1][:half] = np.nan_to_num(most * share, posinf=1, neginf=-1).astype(dtype)
    if name == "hypot" or name == "atan2":
        # Half of the pairs near each other: else one of the two does not count.
        half = len(found[1]) // 2
        factor = np.exp2(np.random.default_rng(9).uniform(-12, 12, half)).astype(dtype)
        with np.errstate(over="ignore"):
            found[1][:half] = found[0][:half] * factor
    return found


def unit(exact: np.ndarray, dtype: Any) -> np.ndarray:
    """The unit in the last place of numbers; that of the largest for those beyond it."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.clip(np.abs(exact), info.smallest_normal, info.max)
        return np.spacing(size.astype(dtype)).astype(np.longdouble)


def precise(name: str, args: list[np.ndarray], picks: np.ndarray) -> np.ndarray:
    """The function with the digits of a long double; 0 where it is far below all numbers."""
    fn = FUNCTIONS[name].exact
    found = np.zeros(len(picks), np.longdouble)
    with mp.workprec(300):
        for n, k in enumerate(picks):
            try:
                value = mp.re(fn(*[mp.mpf(float(x[k])) for x in args]))
            except OverflowError:  # erfc, whose logarithm is beyond the machine's numbers
                continue
            if mp.mag(value) > -1200:
                found[n] = np.longdouble(mp.nstr(value, 22))
    return found


def largest(name: str, args: list[np.ndarray], dtype: Any) -> float:
    """The largest error of compiled code in units: where a sweep against float64 is worst, and at
    random places.
    """
    function = FUNCTIONS[name]
    found = compiled(name, args)
    assert found.dtype == dtype
    with np.errstate(all="ignore"):
        wide = function.wide(*[x.astype(np.float64) for x in args])
        rounded = wide.astype(dtype)
        if dtype is np.float32:
            # Infinite where the exact result rounds to it, or is beyond the largest but for a unit.
            np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
            beyond = np.isinf(found) != np.isinf(rounded)
            assert (np.abs(wide[beyond]) > 0.9999998 * np.finfo(dtype).max).all()
        errors = np.abs(found.astype(np.float64) - wide) / unit(wide, dtype)
    usable = np.isfinite(wide) & np.isfinite(found)
    errors = np.where(usable, errors, 0).astype(float)
    picks = np.concatenate([np.argsort(errors)[-60:], np.flatnonzero(usable)[::4001]])
    picks = picks[usable[picks]]
    exact = precise(name, args, picks)
    floor = function.floor64(args[0][picks]) if dtype is np.float64 else 0.0
    units = unit(np.maximum(np.abs(exact), floor), dtype)
    return float(np.max(np.abs(found[picks] - exact) / units))


def compiled(name: str, args: list[np.ndarray]) -> np.ndarray:
    return np.asarray(ts.jit(getattr(ts, name))(*args))


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, Any], float]:
    """The largest error of each function, in units in the last place."""
    return {}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(name: str, measured: dict[tuple[str, Any], float]) -> None:
    worst = largest(name, arguments(name, np.float32, 40_000), np.float32)
    assert worst <= 2, f"{name}: {worst:.2f} units"
    measured[name, np.float32] = worst


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64(name: str, measured: dict[tuple[str, Any], float]) -> None:
    worst = largest(name, arguments(name, np.float64, 40_000), np.float64)
    assert worst <= 2, f"{name}: {worst:.2f} units"
    measured[name, np.float64] = worst


def test_the_table_of_the_documentation(measured: dict[tuple[str, Any], float]) -> None:
    """The errors of the table are upper bounds, and not far from what is found."""
    if len(measured) < 2 * len(FUNCTIONS):
        pytest.skip("the functions were not all measured")
    text = PAGE.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` (\| [\d.]+ \| [\d.]+) \|", text, re.MULTILINE))
    made = ["| function | float32 | float64 | float32 on a GPU |", "|---|---|---|---|"]
    current = True
    for name in FUNCTIONS:
        errors = [measured[name, dtype] for dtype in (np.float32, np.float64)]
        told = [float(x) for x in re.findall(r"[\d.]+", rows.get(name, ""))]
        # Another processor has other instructions: half a unit more, or less, or a unit less where
        # it computes in float64 for lack of tables.
        fits = len(told) == 2 and all(
            a - 1.0 <= b <= a + 0.5 for a, b in zip(told, errors, strict=True)
        )
        current = current and fits
        bounds = [np.ceil(10 * e) / 10 for e in errors]
        gpu = f"{LIMITS[name]:g}" if name in LIMITS else ""
        made.append(f"| `{name}` | {bounds[0]:.1f} | {bounds[1]:.1f} | {gpu} |")
    if os.environ.get("TESSERA_BLESS") == "1":
        begin, end = "<!-- errors -->\n", "<!-- end of errors -->"
        start, stop = text.index(begin) + len(begin), text.index(end)
        PAGE.write_text(text[:start] + "\n".join(made) + "\n" + text[stop:])
    else:
        assert current, "\n".join(made)


# --- the ends ---------------------------------------------------------------------------------

PI = np.pi
# What the array API standard and IEEE 754 say of single arguments.
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(NAN, NAN), (0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0)],
    "exp2": [(NAN, NAN), (0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0)],
    "expm1": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1)],
    "log": [(NAN, NAN), (-1, NAN), (0.0, -INF), (-0.0, -INF), (1, 0.0), (INF, INF), (-INF, NAN)],
    "log2": [(NAN, NAN), (-1, NAN), (0.0, -INF), (-0.0, -INF), (1, 0.0), (INF, INF), (-INF, NAN)],
    "log10": [(NAN, NAN), (-1, NAN), (0.0, -INF), (-0.0, -INF), (1, 0.0), (INF, INF), (-INF, NAN)],
    "log1p": [(NAN, NAN), (-2, NAN), (-1, -INF), (0.0, 0.0), (-0.0, -0.0), (INF, INF)],
    "sqrt": [(NAN, NAN), (-1, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF)],
    "rsqrt": [(NAN, NAN), (-1, NAN), (0.0, INF), (INF, 0.0), (4, 0.5)],
    "cbrt": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-8, -2)],
    "sin": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(NAN, NAN), (0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)],
    "tan": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(NAN, NAN), (2, NAN), (-2, NAN), (0.0, 0.0), (-0.0, -0.0), (1, PI / 2)],
    "acos": [(NAN, NAN), (2, NAN), (-2, NAN), (1, 0.0), (-1, PI)],
    "atan": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, PI / 2), (-INF, -PI / 2)],
    "sinh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "cosh": [(NAN, NAN), (0.0, 1), (-0.0, 1), (INF, INF), (-INF, INF)],
    "tanh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1)],
    "asinh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(NAN, NAN), (0.5, NAN), (1, 0.0), (INF, INF), (-INF, NAN)],
    "atanh": [(NAN, NAN), (2, NAN), (-2, NAN), (1, INF), (-1, -INF), (0.0, 0.0), (-0.0, -0.0)],
    "sigmoid": [(NAN, NAN), (0.0, 0.5), (INF, 1), (-INF, 0.0)],
    "erf": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1)],
    "erfc": [(NAN, NAN), (0.0, 1), (INF, 0.0), (-INF, 2)],
    "erfinv": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN)],
    "lgamma": [(NAN, NAN), (1, 0.0), (2, 0.0), (0.0, INF), (-1, INF), (INF, INF)],
    "digamma": [(NAN, NAN), (INF, INF), (-1, NAN)],
}


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16, ts.float32, ts.float64])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_arguments(name: str, dtype: Any) -> None:
    x, wanted = (np.array(part).astype(dtype.np) for part in zip(*SPECIAL[name], strict=True))
    for fn in (getattr(ts, name), ts.jit(getattr(ts, name))):
        found = np.asarray(fn(x))
        assert found.dtype == dtype.np
        # What is no number of the dtype, a multiple of pi, may be a unit off.
        np.testing.assert_allclose(
            found.astype(np.float64),
            wanted.astype(np.float64),
            rtol=float(ts.finfo(dtype).eps),
            atol=0,
        )
        exact = np.isin(np.abs(wanted.astype(float)), [0, 0.5, 1, 2, INF])
        np.testing.assert_array_equal(found[exact], wanted[exact])
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(wanted)[numbers])


# Their value for a number that is almost 0 is a multiple of it.
THROUGH_ZERO = {
    "expm1": 1, "log1p": 1, "sin": 1, "tan": 1, "asin": 1, "atan": 1, "sinh": 1, "tanh": 1,
    "asinh": 1,
    "atanh": 1, "erf": 2 / np.sqrt(PI), "erfinv": np.sqrt(PI) / 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", THROUGH_ZERO)
def test_subnormal_numbers_are_kept(name: str, dtype: Any) -> None:
    least = np.finfo(dtype).smallest_subnormal
    x = least * np.array([1, -1, 2, 3, 1000, -12345], dtype)
    wanted = np.rint(THROUGH_ZERO[name] * (x / least).astype(np.float64))
    found = compiled(name, [x]) / least
    # The factor is rounded after it is multiplied by; a tie may fall either way.
    assert (np.abs(found - wanted) <= (0 if THROUGH_ZERO[name] == 1 else 1)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_results(dtype: Any) -> None:
    info = np.finfo(dtype)
    for name, x in (("exp", np.log(float(info.smallest_normal)) - 5), ("exp2", info.minexp - 5.0)):
        found = float(compiled(name, [np.array([x], dtype)])[0])
        assert 0 < found < float(info.smallest_normal)
        exact = precise(name, [np.array([x], dtype)], np.array([0]))[0]
        assert abs(found - exact) <= 2 * float(info.smallest_subnormal)
    tiny = np.array([info.smallest_normal], dtype)
    halves = compiled("multiply", [tiny, np.array([0.5], dtype)])
    assert halves[0] == info.smallest_normal / 2
    assert compiled("add", [tiny, -tiny * dtype(0.75)])[0] == info.smallest_normal / 4


PAIRS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign,
    "nextafter": np.nextafter, "maximum": np.maximum, "minimum": np.minimum,
    "logaddexp": np.logaddexp, "remainder": np.remainder, "floor_divide": np.floor_divide,
}  # fmt: skip
ENDS = [0.0, 0.5, 1.0, 2.0, 3.0, INF]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_special_pairs(name: str, dtype: Any) -> None:
    """All pairs of special numbers, beside NumPy, which does as IEEE 754 and C say."""
    info = np.finfo(dtype)
    line = [*ENDS, float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)]
    values = np.array([*line, *[-v for v in line], NAN], dtype)
    x, y = (part.reshape(-1).copy() for part in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        wanted = PAIRS[name](x, y)
    found = compiled(name, [x, y])
    eager = np.asarray(getattr(ts, name)(x, y))
    if name == "floor_divide":
        # With infinity it may be the floor of the quotient, or what makes the remainder right.
        with np.errstate(all="ignore"):
            sure = np.isfinite(wanted) & np.isfinite(x / y) & np.isfinite(y)
        found, eager, wanted = found[sure], eager[sure], wanted[sure]
    for result in (found, eager):
        np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
        numbers = ~np.isnan(wanted)
        np.testing.assert_allclose(result[numbers], wanted[numbers], rtol=2 * info.eps, atol=0)
        zeros = wanted == 0
        if name not in ("maximum", "minimum"):  # which may give either of two zeros
            np.testing.assert_array_equal(np.signbit(result)[zeros], np.signbit(wanted)[zeros])
