"""Intervals: each rule holds for the numbers in its operands, over the dtypes of its row.

The oracle is the scalar table itself: numbers are drawn inside of intervals, the row is computed,
and what comes lies in what the rule says.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import dtypes as dt
from tessera.dtypes import DType, finfo, iinfo
from tessera.errors import DTypeError
from tessera.ir.convert import cast_array
from tessera.ir.interval import (
    ANY,
    EMPTY,
    Interval,
    bits_of,
    finite_range,
    full_range,
    has_infinities,
    next_above,
    next_below,
    of_array,
    point,
    rounded,
    sum_of,
)
from tessera.ir.interval_rules import RULES, apply, cast
from tessera.ir.scalar import SCALARS, ScalarFn, Sig, result_dtype, scalar

INF, NAN = math.inf, math.nan
REAL = [d for d in dt.ALL if not d.is_complex]
SPECIAL = (0.0, 0.5, 1.0, 2.0, 3.0, 0.1, 10.0, 100.0, 1e4, 1e30, 1e-30, math.pi, math.pi / 2)


def operands(fn: ScalarFn, dtype: DType) -> list[DType]:
    found = [dtype] * fn.arity
    if fn.sig is Sig.SELECT:
        found[0] = dt.bool_
    return found


def allowed(fn: ScalarFn, dtype: DType) -> bool:
    try:
        return not result_dtype(fn, *operands(fn, dtype)).is_complex
    except DTypeError:
        return False


EVERY = [(f, d) for f in SCALARS.values() for d in REAL if allowed(f, d)]


def numbers(rng: np.random.Generator, dtype: DType) -> list[float]:
    """Numbers of a dtype where something may happen, and random ones."""
    if dtype.is_bool:
        return [0, 1]
    if dtype.is_integer:
        limits = iinfo(dtype)
        found = [limits.min, limits.max, 0, 1, 2, 3, 5, limits.max // 2, *rng.integers(0, 100, 4)]
        if limits.min < 0:
            found += [-1, -2, -7, *(-rng.integers(0, 100, 3))]
        return [int(x) for x in found if limits.min <= x <= limits.max]
    limits = finfo(dtype)
    found = [*SPECIAL, limits.max, limits.smallest_normal, limits.smallest_subnormal]
    found += [*rng.normal(size=6), *(rng.normal(size=4) * 30), *(10.0 ** rng.uniform(-30, 30, 4))]
    found += [-x for x in found] + ([INF, -INF] if has_infinities(dtype) else [])
    with np.errstate(all="ignore"):
        array = np.asarray(found).astype(dtype.np).astype(np.float64)
    return [float(x) for x in array if not math.isnan(x)]


def an_interval(rng: np.random.Generator, dtype: DType) -> Interval:
    pool = numbers(rng, dtype)
    a, b = rng.choice(len(pool), 2)
    low, high = min(pool[a], pool[b]), max(pool[a], pool[b])
    nan = dtype.is_float and rng.random() < 0.15
    return point(low) if rng.random() < 0.15 else Interval(low, high, bool(nan))


def inside(rng: np.random.Generator, x: Interval, dtype: DType, count: int = 24) -> np.ndarray:
    """Numbers of a dtype in an interval: its ends, what is special, and any."""
    pool = [v for v in numbers(rng, dtype) if x.contains(v)] + [x.lo, x.hi, x.lo, x.hi]
    if dtype.is_float:
        pool += [-0.0] if x.has_zero else []
        pool += [NAN, NAN] if x.nan else []
        low, high = max(x.lo, finite_range(dtype).lo), min(x.hi, finite_range(dtype).hi)
        t = rng.random(8)
        with np.errstate(all="ignore"):
            between = (low * (1 - t) + high * t).astype(dtype.np).astype(np.float64)
        pool += [float(v) for v in between if x.contains(float(v))]
    elif not dtype.is_bool and x.hi - x.lo < 2**62:
        pool += [int(x.lo) + int(v) for v in rng.integers(0, int(x.hi) - int(x.lo) + 1, 8)]
    chosen = [pool[k] for k in rng.integers(0, len(pool), count)]
    with np.errstate(all="ignore"):
        return np.asarray(chosen, dtype=np.float64 if dtype.is_float else object).astype(dtype.np)


def outside(results: np.ndarray, dtype: DType, bound: Interval) -> list[int]:
    """Which results are not in an interval."""
    if not dtype.is_float:
        return [k for k, v in enumerate(results) if not bound.contains(int(v))]
    wide = results.astype(np.float64)
    return [k for k, v in enumerate(wide) if not bound.contains(float(v))]


Case = tuple[list[Interval], list[np.ndarray]]


@functools.cache
def samples(dtypes: tuple[DType, ...]) -> list[Case]:
    """Intervals and numbers in them, which are the same for all functions of some dtypes."""
    rng = np.random.default_rng(7)
    found: list[Case] = []
    for _ in range(50):
        xs = [an_interval(rng, d) for d in dtypes]
        found.append((xs, [inside(rng, x, d) for x, d in zip(xs, dtypes, strict=True)]))
    return found


def check(fn: ScalarFn, dtype: DType, cases: list[Case]) -> None:
    """All cases in one call: that of a function takes longer than its numbers do."""
    result = result_dtype(fn, *operands(fn, dtype))
    whole = fn.evaluate(*map(np.concatenate, zip(*[arrays for _, arrays in cases], strict=True)))
    ends = np.cumsum([len(arrays[0]) for _, arrays in cases])
    for (xs, arrays), found in zip(cases, np.split(whole, ends[:-1]), strict=True):
        bound = apply(fn.name, xs, dtype)
        wrong = outside(found, result, bound)
        assert not wrong, (
            f"{fn.name} of {[str(x[wrong[0]]) for x in arrays]} is {found[wrong[0]]}, but of "
            f"{', '.join(map(str, xs))} it is said to be in {bound} ({dtype})"
        )


@pytest.mark.parametrize("fn", SCALARS.values(), ids=str)
def test_every_rule_holds(fn: ScalarFn) -> None:
    for dtype in [d for f, d in EVERY if f is fn]:
        check(fn, dtype, samples(tuple(operands(fn, dtype))))


@settings(max_examples=150)
@given(st.sampled_from(EVERY), st.data())
def test_rules_hold_for_any_numbers(case: tuple[ScalarFn, DType], data: Any) -> None:
    fn, dtype = case
    xs: list[Interval] = []
    arrays: list[np.ndarray] = []
    for d in operands(fn, dtype):
        element = elements(d)
        drawn = data.draw(st.lists(element, min_size=2, max_size=6))
        array = np.asarray(drawn, dtype=np.float64 if d.is_float else object).astype(d.np)
        xs.append(of_array(array))
        arrays.append(np.resize(array, 12))
    check(fn, dtype, [(xs, arrays)])


def elements(dtype: DType) -> st.SearchStrategy[Any]:
    if dtype.is_bool:
        return st.integers(0, 1)
    if dtype.is_integer:
        return st.integers(iinfo(dtype).min, iinfo(dtype).max)
    wide = st.floats(allow_nan=True, allow_infinity=has_infinities(dtype))

    def fitted(x: float) -> float:
        with np.errstate(all="ignore"):
            found = float(np.asarray(x).astype(dtype.np))
        return found if not math.isnan(found) or math.isnan(x) else finfo(dtype).max

    return wide.map(fitted)


def test_every_row_has_a_rule() -> None:
    # Complex numbers have none: they are said to be anything.
    assert set(SCALARS) - set(RULES) == {"complex"}
    assert apply("complex", [point(1.0), point(1.0)], dt.float32) == ANY
    assert apply("mul", [point(1.0), point(1.0)], dt.complex64) == ANY


@pytest.mark.parametrize("source", REAL, ids=str)
def test_conversions_hold(source: DType) -> None:
    rng = np.random.default_rng(1)
    for target in REAL:
        for _ in range(25):
            x = an_interval(rng, source)
            array = inside(rng, x, source)
            found = cast_array(array, target)
            bound = cast(x, source, target)
            wrong = outside(found, target, bound)
            assert not wrong, f"{array[wrong[0]]} is {found[wrong[0]]} of {target}, not in {bound}"


@pytest.mark.parametrize("dtype", [d for d in REAL if not d.is_bool], ids=str)
def test_sums_hold_in_any_order(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        x = an_interval(rng, dtype)
        count = int(rng.integers(1, 12))
        array = inside(rng, x, dtype, count)
        least = int(rng.integers(0, count + 1))
        bound = sum_of(x, least, count + int(rng.integers(0, 3)), dtype)
        for order in (array, array[::-1], rng.permutation(array)):
            with np.errstate(all="ignore"):
                total = order[0]
                for v in order[1:]:
                    total = SCALARS["add"].evaluate(total, v)
                pairs = [_two(part, dtype) for part in np.array_split(order, 2)]
                halves = SCALARS["add"].evaluate(*[SCALARS["add"].evaluate(*p) for p in pairs])
            assert not outside(np.asarray([total], dtype.np), dtype, bound)
            if count <= 4:
                assert not outside(np.asarray([halves], dtype.np), dtype, bound)


def _two(part: np.ndarray, dtype: DType) -> list[np.ndarray]:
    filled = [*part, *[np.zeros((), dtype.np)] * 2]
    return [np.asarray(v, dtype.np) for v in filled[:2]]


def test_sums_are_not_too_wide() -> None:
    assert sum_of(Interval(0.0, 1.0), 8, 8, dt.float32).hi < 8.001
    assert sum_of(point(1.0), 1000, 1000, dt.float32).lo > 999.9
    assert sum_of(Interval(0.0, 1.0), 0, INF, dt.float32) == Interval(0.0, INF)
    # Both signs, and partial sums that may overflow in both directions.
    big = sum_of(Interval(-3e38, 3e38), 4, 4, dt.float32)
    assert big == ANY
    assert not sum_of(Interval(0.0, 3e38), 4, 4, dt.float32).nan
    assert sum_of(Interval(-100, 100), 2, 2, dt.int8) == full_range(dt.int8)


FORMATS = [d for d in REAL if d.is_float and d.bits < 32]


@pytest.mark.parametrize("target", FORMATS, ids=str)
def test_rounding_to_formats_holds(target: DType) -> None:
    rng = np.random.default_rng(5)
    rows = [f"{word}.{target}" for word in ("saturate", "flush")]
    rows += [f"round.{target}.{mode}" for mode in ("nearest_even", "toward_zero", "up", "down")]
    for row in rows:
        for _ in range(25):
            x = an_interval(rng, dt.float32)
            found = scalar(row).evaluate(inside(rng, x, dt.float32))
            assert not outside(found, dt.float32, apply(row, [x], dt.float32)), row
    row = f"round.{target}.stochastic"
    for _ in range(25):
        x = an_interval(rng, dt.float32)
        u = rng.random(24, dtype=np.float32)
        found = scalar(row).evaluate(inside(rng, x, dt.float32), u)
        bound = apply(row, [x, Interval(0.0, 1.0)], dt.float32)
        assert not outside(found, dt.float32, bound), row


def test_bits_of_positive_numbers_keep_their_order() -> None:
    assert bits_of(Interval(0x3F800000, 0x3FFFFFFF), dt.uint32, dt.float32).hi < 2
    assert bits_of(Interval(0x3F800000, 0x3FFFFFFF), dt.uint32, dt.float32).lo == 1
    assert bits_of(Interval(0, 0x7F800000), dt.uint32, dt.float32) == ANY
    assert bits_of(Interval(-1, 5), dt.int32, dt.float32) == ANY
    assert bits_of(point(1.0), dt.float32, dt.uint32) == full_range(dt.uint32)


def test_joins_and_meets() -> None:
    a, b = Interval(0.0, 2.0), Interval(1.0, 3.0, True)
    assert a.join(b) == Interval(0.0, 3.0, True)
    assert a.meet(b) == Interval(1.0, 2.0)
    assert a.join(EMPTY) == a
    assert EMPTY.or_nan().join(a) == a.or_nan()
    assert a.within(a.join(b))
    assert not b.within(b.without_nan())
    assert [str(x) for x in (a, b, EMPTY, EMPTY.or_nan(), point(1), ANY)] == [
        "[0, 2]", "[1, 3] or NaN", "nothing", "NaN", "1", "[-inf, inf] or NaN",
    ]  # fmt: skip
    assert of_array(np.array([1.0, NAN, -2.0])) == Interval(-2.0, 1.0, True)
    assert of_array(np.zeros(0)) == EMPTY
    assert of_array(np.array([1j])) == ANY


@pytest.mark.parametrize("dtype", [d for d in REAL if d.is_float], ids=str)
def test_neighbours(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    for x in numbers(rng, dtype):
        if math.isinf(x):
            continue
        towards = np.asarray(INF if has_infinities(dtype) else finfo(dtype).max, dtype.np)
        up = float(SCALARS["nextafter"].evaluate(np.asarray(x, dtype.np), towards))
        if has_infinities(dtype) or x != finfo(dtype).max:
            assert next_above(x, dtype) == up
        assert next_below(next_above(x, dtype), dtype) <= x


def test_overflow_in_formats_without_infinities_is_nan() -> None:
    found = rounded(Interval(0.0, 1e4), dt.float8_e4m3fn)
    assert found == Interval(0.0, 448.0, True)
    assert rounded(Interval(0.0, 1e9), dt.float8_e5m2) == Interval(0.0, INF)
