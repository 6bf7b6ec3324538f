"""Rounding with a mode, saturation and flushing: the definition against all numbers of a format,
and every level against the definition, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.compile import Lowered
from tessera.compile_gpu import LoweredGpu
from tessera.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64
from tessera.errors import DTypeError, OptionError, ShapeError
from tessera.graph import interp as graph_interp
from tessera.graph.ops import precision as p
from tessera.ir.convert import cast_array
from tessera.ir.core import Func
from tessera.ir.numerics import Rounding
from tessera.ir.rounding import GRIDS, flush_array, round_array, saturate_array
from tessera.runtime.memory import pointer
from tessera.target import interp as target_interp
from tessera.target.from_tile.simd import lower_module
from tessera.target.gpu import gpu as gpu_machine
from tessera.target.machine import machine
from tessera.tile import interp as tile_interp
from tests.fake_gpu import fake_gpu
from tests.ptx.program import run_lowered
from tests.schedule.lowering import Placed

Array = npt.NDArray[Any]

NARROW = (float8_e4m3fn, float8_e5m2, bfloat16, float16)
MODES = tuple(Rounding)
PAIRS = [(d, float32) for d in NARROW] + [(d, float64) for d in (*NARROW, float32)]


def numbers(dtype: DType) -> Array:
    """All finite numbers of a format that are not negative, in float64, in order."""
    bits = dtype.bits
    codes = np.arange(1 << (bits - 1), dtype=np.uint32).astype(f"u{dtype.itemsize}")
    with np.errstate(all="ignore"):
        found = codes.view(dtype.np).astype(np.float64)
    return found[np.isfinite(found)]


def inputs(wide: DType, count: int = 2000) -> Array:
    """Random bits, numbers of all sizes, and the edges of every format with their neighbours."""
    rng = np.random.default_rng(0)
    word = f"u{wide.itemsize}"
    raw = rng.integers(0, 1 << wide.bits, count, dtype=np.uint64).astype(word).view(wide.np)
    with np.errstate(all="ignore"):
        sized = (rng.standard_normal(count) * 10.0 ** rng.integers(-46, 39, count)).astype(wide.np)
        edges: list[float] = [0.0, math.inf, math.nan]
        for grid in GRIDS.values():
            least = math.ldexp(1.0, max(grid.least - grid.mantissa, -1074))
            top = math.ldexp(1.0, min(math.frexp(grid.largest)[1], 1023))
            edges += [grid.largest, top, (grid.largest + top) / 2, grid.smallest_normal, least]
            edges += [grid.smallest_normal - least / 2, least / 2, least * 0.75, least * 1.5]
        near = np.array(edges).astype(wide.np)
        up = np.nextafter(near, wide.np.type(np.inf))
        down = np.nextafter(near, wide.np.type(-np.inf))
    found = np.concatenate([raw, sized, near, up, down])
    return np.concatenate([found, -found])


def by_search(x: float, dtype: DType, mode: Rounding, u: float, grid: Array) -> float:
    """The definition, by looking for the neighbours among all numbers of the format."""
    if not math.isfinite(x):
        return x
    size = Fraction(abs(x))
    largest = Fraction(float(grid[-1]))
    k = int(np.searchsorted(grid, abs(x), side="right")) - 1
    low = Fraction(float(grid[k]))
    inward = (
        mode is Rounding.TOWARD_ZERO
        or (mode is Rounding.UP and math.copysign(1, x) < 0)
        or (mode is Rounding.DOWN and math.copysign(1, x) > 0)
    )
    if size > largest:
        # The grid goes on with the last step, as far as it matters, and then with larger ones.
        step = largest - Fraction(float(grid[-2]))
        if inward:
            return math.copysign(float(largest), x)
        if mode in (Rounding.UP, Rounding.DOWN):
            return math.copysign(math.inf, x)
        rest = (size - largest) / step
        odd = dtype is not float8_e4m3fn  # the last one has an odd mantissa, but in that format
        if mode is Rounding.NEAREST_EVEN:
            stays = rest < Fraction(1, 2) or (rest == Fraction(1, 2) and not odd)
        else:
            stays = rest < 1 and not Fraction(u) < rest
        return math.copysign(float(largest) if stays else math.inf, x)
    if size == low:
        return x
    high = Fraction(float(grid[k + 1])) if k + 1 < len(grid) else low
    rest = (size - low) / (high - low)
    if mode is Rounding.NEAREST_EVEN:
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and k % 2 == 1)
    elif mode is Rounding.STOCHASTIC:
        up = Fraction(u) < rest
    else:
        up = not inward
    return math.copysign(float(high if up else low), x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_definition(dtype: DType, mode: Rounding) -> None:
    grid = numbers(dtype)
    rng = np.random.default_rng(1)
    picks = grid if dtype.bits == 8 else rng.choice(grid[:-1], 150)
    k = np.searchsorted(grid, picks)
    after = grid[np.minimum(k + 1, len(grid) - 1)]
    # The numbers, the middles between them, and what lies a little beside these.
    near = [(picks + after) / 2, picks + (after - picks) * 0.25]
    x = np.concatenate([picks, *near, inputs(float64, 50)])
    x = np.concatenate([x, -x])
    u = rng.random(x.shape)
    found = round_array(x, GRIDS[dtype], mode, u)
    for a, b, v in zip(x, found, u, strict=True):
        want = by_search(float(a), dtype, mode, float(v), grid)
        assert (math.isnan(want) and math.isnan(b)) or (
            want == b and math.copysign(1, want) == math.copysign(1, b)
        ), (a, b, want, v)


@pytest.mark.parametrize(("dtype", "wide"), PAIRS, ids=str)
def test_nearest_is_the_plain_conversion(dtype: DType, wide: DType) -> None:
    x = inputs(wide)
    with np.errstate(all="ignore"):
        same(
            cast_array(round_array(x, GRIDS[dtype], Rounding.NEAREST_EVEN), dtype),
            cast_array(x, dtype),
        )


@pytest.mark.parametrize(("dtype", "wide"), PAIRS, ids=str)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_results_are_numbers_of_the_format(dtype: DType, wide: DType, mode: Rounding) -> None:
    x = inputs(wide)
    u = np.random.default_rng(2).random(x.shape).astype(wide.np)
    with np.errstate(all="ignore"):
        found = round_array(x, GRIDS[dtype], mode, u)
        back = cast_array(cast_array(found, dtype), wide)
    kept = ~np.isinf(found) if dtype is float8_e4m3fn else np.ones(x.shape, np.bool_)
    same(back[kept], found[kept])


def same(a: Array, b: Array) -> None:
    assert a.dtype == b.dtype
    x, y = (v.view(f"u{v.dtype.itemsize}") for v in (a, b))
    with np.errstate(all="ignore"):
        both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    np.testing.assert_array_equal(x[~both_nan], y[~both_nan])


def graph_of(wide: DType, dtypes: tuple[DType, ...], count: int) -> Func:
    """All ways to become a number of some formats."""

    def every(x: Any, u: Any) -> list[Any]:
        found: list[Any] = []
        for dtype in dtypes:
            rounded = [p.round_to(x, dtype, m) for m in MODES if m is not Rounding.STOCHASTIC]
            rounded.append(p.round_stochastic(x, u, dtype))
            found += [*rounded, p.saturate(x, dtype), p.flush(x, dtype)]
        return found

    kind = ts.ShapeDtypeStruct((count,), wide)
    return ts.make_graph(every)(kind, kind)


def expected_of(x: Array, u: Array, dtypes: tuple[DType, ...]) -> list[Array]:
    found: list[Array] = []
    with np.errstate(all="ignore"):
        for grid in [GRIDS[d] for d in dtypes]:
            found += [round_array(x, grid, m) for m in MODES if m is not Rounding.STOCHASTIC]
            found.append(round_array(x, grid, Rounding.STOCHASTIC, u))
            found += [saturate_array(x, grid), flush_array(x, grid)]
    return found


FORMATS = {float32: (float8_e4m3fn, float8_e5m2, bfloat16, float16, float32),
           float64: (float8_e4m3fn, bfloat16, float16, float32, float64)}  # fmt: skip


@pytest.mark.parametrize("wide", FORMATS, ids=str)
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_every_level(wide: DType, level: str) -> None:
    x = inputs(wide, 100)
    u = np.random.default_rng(3).random(x.shape).astype(wide.np)
    expected = expected_of(x, u, FORMATS[wide])
    lowered = Lowered(graph_of(wide, FORMATS[wide], len(x)), machine(level))
    found = {
        "graph": graph_interp.run(lowered.graph, [x, u], {}),
        "schedule": Placed.run(lowered.schedule, lowered.arena, [x, u], {}),
    }
    for name, run, module in (
        ("tile", tile_interp.run_module, lowered.tile),
        ("target", target_interp.run_module, lower_module(lowered.tile, lowered.cpu)),
        ("legalized", target_interp.run_module, lowered.target),
    ):
        found[name] = [np.empty_like(y) for y in expected]
        run(module, [x, u], found[name], {}, int(lowered.arena))
    found["native"] = list(lowered.executable().run([pointer(x), pointer(u)], []))
    for results in found.values():
        for a, b in zip(results, expected, strict=True):
            same(np.asarray(a), b)


@pytest.fixture(scope="module")
def gpu() -> Generator[object]:
    with fake_gpu() as found:
        yield found


@pytest.mark.unchecked
@pytest.mark.parametrize("wide", FORMATS, ids=str)
@pytest.mark.usefixtures("gpu")
def test_a_simulated_gpu(wide: DType) -> None:
    x = inputs(wide, 20)[:256]
    u = np.random.default_rng(3).random(x.shape).astype(wide.np)
    dtypes = (float8_e4m3fn, bfloat16)
    fn = ts.jit(lambda x, u: [*every_of(x, u, dtypes)])
    found = fn(*[ts.asarray(v, device="cuda:0") for v in (x, u)])
    for a, b in zip(found, expected_of(x, u, dtypes), strict=True):
        same(np.asarray(a), b)


@pytest.mark.unchecked
@pytest.mark.parametrize("wide", FORMATS, ids=str)
def test_ptx(wide: DType) -> None:
    x = inputs(wide, 20)[:200]
    u = np.random.default_rng(3).random(x.shape).astype(wide.np)
    dtypes = (float8_e4m3fn, bfloat16, float16)
    expected = expected_of(x, u, dtypes)
    lowered = LoweredGpu(graph_of(wide, dtypes, len(x)), gpu_machine("sm_90a"))
    found = [np.empty_like(y) for y in expected]
    run_lowered(lowered, [x, u], found, dims={}, async_mode="lazy")
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def every_of(x: Any, u: Any, dtypes: tuple[DType, ...]) -> Generator[Any]:
    for dtype in dtypes:
        for mode in MODES:
            if mode is not Rounding.STOCHASTIC:
                yield p.round_to(x, dtype, mode)
        yield p.round_stochastic(x, u, dtype)
        yield p.saturate(x, dtype)
        yield p.flush(x, dtype)


# --- laws -------------------------------------------------------------------------------------

NUMBERS = st.lists(st.floats(width=32), min_size=1, max_size=8)


def rounded(x: Array, dtype: DType, mode: Rounding, u: float = 0.5) -> Array:
    return round_array(x, GRIDS[dtype], mode, np.full(x.shape, u))


@given(NUMBERS, st.sampled_from(NARROW), st.floats(0, 1, exclude_max=True))
def test_modes_bracket_each_other(xs: list[float], dtype: DType, u: float) -> None:
    x = np.array([v for v in xs if math.isfinite(v)])
    down, up = (rounded(x, dtype, m) for m in (Rounding.DOWN, Rounding.UP))
    assert (down <= x).all()
    assert (x <= up).all()
    zero = rounded(x, dtype, Rounding.TOWARD_ZERO)
    same(zero, np.where(np.signbit(x), up, down))
    for mode in (Rounding.NEAREST_EVEN, Rounding.STOCHASTIC):
        found = rounded(x, dtype, mode, u)
        assert ((found == down) | (found == up) | np.isinf(found)).all()
    # What is a number of the format stays one, in every mode.
    for mode in MODES:
        once = rounded(x, dtype, mode, u)
        same(rounded(once, dtype, mode, 1 - u), once)
    same(rounded(-x, dtype, Rounding.UP), -down)


@given(NUMBERS, st.sampled_from(NARROW), st.sampled_from(MODES), st.floats(0, 1, exclude_max=True))
def test_rounding_is_monotone(xs: list[float], dtype: DType, mode: Rounding, u: float) -> None:
    x = np.sort(np.array([v for v in xs if not math.isnan(v)]))
    found = rounded(x, dtype, mode, u)
    assert (found[:-1] <= found[1:]).all()
    cut = saturate_array(x, GRIDS[dtype])
    assert (np.abs(rounded(cut, dtype, mode, u)) <= GRIDS[dtype].largest).all()


# --- the function -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [m for m in MODES if m is not Rounding.STOCHASTIC])
@pytest.mark.parametrize("dtype", [*NARROW, float32], ids=str)
def test_round_to(dtype: DType, mode: Rounding) -> None:
    for wide in (float16, float32, float64):
        with np.errstate(all="ignore"):
            x = inputs(float32, 50).astype(wide.np)
            grid = GRIDS[dtype]
            base = x.astype(np.float64 if wide is float64 else np.float32)
            exact = wide.bits < dtype.bits or (wide is dtype)
            plain = base if exact else round_array(base, grid, mode)
            full = base if exact else round_array(saturate_array(base, grid), grid, mode)
            if exact:
                full = saturate_array(base, grid)
            same(np.asarray(ts.round_to(x, dtype, rounding=mode)), plain.astype(dtype.np))
            got = ts.round_to(x, dtype, rounding=mode.value, saturate=True, denormals="flush")
            same(np.asarray(got), flush_array(full, grid).astype(dtype.np))


def test_stochastic_rounding_is_that_of_its_words() -> None:
    key = ts.random.key(3)
    x = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)
    found = ts.round_to(x, ts.bfloat16, rounding="stochastic", key=key)
    words = np.asarray(ts.random.bits(key, x.shape))
    u = ((words >> 9) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)
    want = round_array(x, GRIDS[bfloat16], Rounding.STOCHASTIC, u)
    same(np.asarray(found), want.astype(bfloat16.np))
    again = ts.jit(lambda x, key: ts.round_to(x, ts.bfloat16, rounding="stochastic", key=key))
    same(np.asarray(again(x, key)), np.asarray(found))
    many = ts.round_to(ts.full(100_000, 2.3), ts.int32, rounding="stochastic", key=key)
    assert abs(np.asarray(many).mean() - 2.3) < 0.01


def test_words_do_not_depend_on_threads() -> None:
    x = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    found: list[Array] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            fn = ts.jit(lambda x, k: ts.round_to(x, ts.bfloat16, rounding="stochastic", key=k))
            found.append(np.asarray(fn(x, ts.random.key(1))))
    same(found[0], found[1])
    same(found[0], found[2])


def test_integers() -> None:
    x = ts.asarray([2.5, -2.5, 3.2, -3.2, 300.0, -300.0, math.nan])
    for mode, want in (
        ("nearest_even", [2, -2, 3, -3, 127, -128, 0]),
        ("toward_zero", [2, -2, 3, -3, 127, -128, 0]),
        ("up", [3, -2, 4, -3, 127, -128, 0]),
        ("down", [2, -3, 3, -4, 127, -128, 0]),
    ):
        assert np.asarray(ts.round_to(x, ts.int8, rounding=mode)).tolist() == want
    n = ts.asarray([300, -300, 5])
    assert np.asarray(ts.round_to(n, ts.int8)).tolist() == [44, -44, 5]
    assert np.asarray(ts.round_to(n, ts.int8, saturate=True)).tolist() == [127, -128, 5]
    assert np.asarray(ts.round_to(n, ts.uint16, saturate=True)).tolist() == [300, 0, 5]
    big = ts.asarray([2**24 + 1, -(2**24) - 1], dtype=ts.int32)
    assert np.asarray(ts.round_to(big, ts.float32, rounding="up")).tolist() == [2**24 + 2, -(2**24)]


def test_derivatives_go_straight_through() -> None:
    x = ts.asarray([1.004, -1.004, 500.0])

    def f(x: Any) -> Any:
        return ts.sum(ts.round_to(x, ts.float8_e4m3fn, rounding="down").astype(ts.float32) * 3.0)

    def g(x: Any) -> Any:
        y = ts.round_to(x, ts.float8_e4m3fn, rounding="up", saturate=True)
        return ts.sum(y.astype(ts.float32) * 3.0)

    assert np.asarray(ts.grad(f)(x)).tolist() == [3.0, 3.0, 3.0]
    assert np.asarray(ts.grad(g)(x)).tolist() == [3.0, 3.0, 0.0]
    assert np.asarray(ts.jit(ts.grad(g))(x)).tolist() == [3.0, 3.0, 0.0]
    _, tangent = ts.jvp(g, (x,), (ts.ones(3),))
    assert float(tangent) == 6.0


def test_batches_are_rounded_alike() -> None:
    x = ts.asarray(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
    rows = ts.vmap(lambda r: ts.round_to(r, ts.bfloat16, rounding="up", denormals="flush"))(x)
    same(np.asarray(rows), np.asarray(ts.round_to(x, ts.bfloat16, rounding="up")))


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda x: ts.round_to(x, "bool"), DTypeError, "round_to: f32[3] to bool"),
        (lambda x: ts.round_to(x, ts.bfloat16, rounding="odd"), OptionError, "rounding is 'odd'"),
        (
            lambda x: ts.round_to(x, ts.bfloat16, rounding="stochastic"), OptionError,
            "rounding is stochastic, but there is no key",
        ),
        (
            lambda x: ts.round_to(x, ts.bfloat16, rounding="stochastic", key=ts.ones(2)),
            ShapeError, "the key has type f32\\[2\\]",
        ),
        (
            lambda x: ts.round_to(x.astype(ts.int64), ts.float32, rounding="up"), DTypeError,
            "i64\\[3\\] to float32, up",
        ),
    ],
)  # fmt: skip
def test_mistakes(call: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what.replace("f32[3]", "f32\\[3\\]")):
        call(ts.ones(3))
