"""Calibration, histories of magnitudes, loss scales, and executables of several precisions."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import DTypeError, OptionError, PytreeError, ShapeError

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("name", ["calibration", "loss_scale", "adaptive"])
def test_examples(name: str) -> None:
    failed, count = doctest.testmod(importlib.import_module(f"tessera.precision.{name}"))
    assert failed == 0
    assert count


# --- histories --------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 2.0**99, width=32), max_size=12), st.integers(1, 5), st.integers(0, 3))
def test_a_history_knows_the_last_steps(seen: list[float], length: int, margin: int) -> None:
    history = ts.AmaxHistory.empty(length)
    for x in seen:
        history = history.update(np.float32([x / 2, -x]))
    last = (seen[::-1] + [0.0] * length)[:length]
    np.testing.assert_array_equal(np.asarray(history.history), np.float32(last))
    largest = np.float32(max(last))
    wanted = max(largest / np.float32(448), np.finfo(np.float32).tiny) if largest else 1.0
    found = float(history.scale("e4m3", margin))
    assert found == np.float32(wanted) * 2.0 ** (margin if largest else 0)


def test_an_overflow_does_not_enter_a_history() -> None:
    history = ts.AmaxHistory.empty(2).update(ts.asarray([3.0]))
    for bad in (np.inf, -np.inf, np.nan):
        after = history.update(ts.asarray([1.0, bad]))
        np.testing.assert_array_equal(np.asarray(after.history), [3, 0])


def test_a_history_is_carried_by_a_loop() -> None:
    """Delayed scaling: each step quantizes with the scale of those before it."""
    xs = (RNG.normal(size=(5, 4, 8)) * np.arange(1, 6)[:, None, None]).astype(np.float32)

    def step(history: Any, x: Any) -> Any:
        scale = history.scale("e4m3", margin=1)
        return history.update(x), ts.quantize(x, "e4m3", scale=scale).dequantize()

    history, found = ts.jit(lambda xs: ts.scan(step, ts.AmaxHistory.empty(2), xs))(xs)
    tops = np.abs(xs).max((1, 2))
    np.testing.assert_array_equal(np.asarray(history.history), tops[::-1][:2])
    for k in range(5):
        known = tops[max(k - 2, 0) : k].max() / np.float32(448) * 2 if k else 1.0
        alone = ts.quantize(xs[k], "e4m3", scale=float(known)).dequantize()
        np.testing.assert_array_equal(np.asarray(found[k]), np.asarray(alone))


# --- calibration ------------------------------------------------------------------------------


def test_calibration_by_the_largest_magnitude_and_percentiles() -> None:
    batches = [RNG.normal(size=(32, 6)).astype(np.float32) * k for k in (1, 3, 2)]

    def f(x: Any) -> Any:
        return {"plain": x, "twice": [x * 2]}

    found = ts.calibrate(f, batches, ts.int8)
    top = np.float32(max(np.abs(b).max() for b in batches))
    np.testing.assert_array_equal(np.asarray(found["plain"]), [[top / np.float32(127)]])
    np.testing.assert_array_equal(np.asarray(found["twice"][0]), [[top * 2 / np.float32(127)]])
    each = ts.calibrate(f, batches, "e4m3", axis=1)["plain"]
    wanted = np.abs(np.concatenate(batches)).max(0, keepdims=True) / np.float32(448)
    np.testing.assert_array_equal(np.asarray(each), wanted)
    part = ts.calibrate(f, batches, ts.int8, method="percentile", percentile=90, axis=1)["plain"]
    wanted = np.max([np.percentile(np.abs(b), 90, axis=0, keepdims=True) for b in batches], 0)
    np.testing.assert_allclose(np.asarray(part), wanted / 127, rtol=1e-6)
    pairs = [(b, b) for b in batches]
    both = ts.calibrate(lambda x, y: x + y, pairs, ts.int8)
    np.testing.assert_array_equal(np.asarray(both), [[top * 2 / np.float32(127)]])


def test_calibration_by_the_squared_error() -> None:
    """No other candidate is better; and an outlier is clipped."""
    batches = [RNG.normal(size=(64, 4)).astype(np.float32) for _ in range(2)]
    batches[0][0, 0] = 40.0

    def lost(scale: Any) -> float:
        back = [ts.quantize(b, ts.int4, scale=scale).dequantize() for b in batches]
        pairs = zip(back, batches, strict=True)
        return sum(float(np.sum((np.asarray(a) - b) ** 2)) for a, b in pairs)

    scale = ts.calibrate(lambda x: x, batches, ts.int4, method="mse")
    largest = ts.calibrate(lambda x: x, batches, ts.int4)
    ratio = float(scale[0, 0] / largest[0, 0]) * 64
    assert ratio == pytest.approx(round(ratio), abs=1e-3)
    assert round(ratio) < 64
    best = lost(scale)
    assert all(best <= lost(largest * (k / 64)) * (1 + 1e-5) for k in range(1, 65, 7))
    columns = ts.calibrate(lambda x: x, batches, ts.int4, method="mse", axis=1)
    assert columns.shape == (1, 4)
    assert lost(columns) <= best * (1 + 1e-5)


def test_calibration_that_cannot_be() -> None:
    x = [ts.ones((2, 3))]
    for options in ({"method": "median"}, {"percentile": 0}, {"percentile": 101}):
        with pytest.raises(OptionError):
            ts.calibrate(lambda x: x, x, ts.int8, **options)
    with pytest.raises(OptionError, match="no batches"):
        ts.calibrate(lambda x: x, [], ts.int8)
    with pytest.raises(OptionError, match="one step or more"):
        ts.AmaxHistory.empty(0)
    with pytest.raises(ShapeError, match="as long in all batches"):
        ts.calibrate(lambda x: x, [*x, ts.ones((5, 3))], ts.int8, axis=0)


# --- loss scales ------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 4), st.sampled_from([2.0, 4.0]))
def test_a_loss_scale_follows_its_definition(steps: list[bool], every: int, factor: float) -> None:
    options: dict[str, Any] = {"smallest": 4.0, "largest": 4096.0}
    ls = ts.LossScale(256.0, growth_interval=every, factor=factor, **options)
    value, count = 256.0, 0
    for ok in steps:
        _, ls, finite = ls.unscale({"w": ts.asarray([1.0, 2.0 if ok else ts.nan])})
        assert bool(finite) is ok
        count += 1
        if not ok:
            value, count = max(value / factor, 4.0), 0
        elif count == every:
            value, count = min(value * factor, 4096.0), 0
        assert (float(ls.value), int(ls.counter)) == (value, count)


def test_small_gradients_survive() -> None:
    def small(w: Any) -> Any:
        return ts.sum(w.astype(ts.float32)) * 1e-9

    w = ts.ones(3, dtype=ts.float16)
    plain = ts.grad(small)(w)
    assert not np.asarray(plain).any()
    ls = ts.LossScale(2.0**15)
    grads, _, finite = ls.unscale(ts.grad(lambda w: ls.scale(small(w)))(w))
    assert grads.dtype is ts.float32
    assert bool(finite)
    np.testing.assert_allclose(np.asarray(grads), 1e-9, rtol=2e-2)


def test_integers_are_left_alone() -> None:
    counts = ts.asarray([1, 2])
    (kept, _), _, finite = ts.LossScale(8.0).unscale((counts, ts.asarray([8.0])))
    np.testing.assert_array_equal(np.asarray(kept), [1, 2])
    assert bool(finite)


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16], ids=str)
def test_training_goes_on_after_an_overflow(dtype: Any) -> None:
    """In a loop of one program: one step overflows, is left out, and halves the scale."""
    x = RNG.normal(size=(16, 4)).astype(np.float32)
    y = x @ np.float32([1, -2, 3, 0.5])
    peak = np.ones(30, np.float32)
    peak[7] = np.inf

    def loss(w: Any, peak: Any) -> Any:
        short = (ts.asarray(x).astype(dtype) @ w.astype(dtype)).astype(ts.float32)
        return ts.mean((short - y) ** 2) * peak

    def step(state: Any, peak: Any) -> Any:
        w, ls = state
        grads = ts.grad(lambda w: ls.scale(loss(w, peak)))(w)
        grads, after, finite = ls.unscale(grads)
        return (ts.where(finite, w - 0.1 * grads, w), after), (finite, after.value, w)

    start = (ts.zeros(4), ts.LossScale(1024.0, growth_interval=10))
    (w, ls), (finite, values, ws) = ts.jit(lambda s, p: ts.scan(step, s, p))(start, peak)
    np.testing.assert_array_equal(np.asarray(finite), np.isfinite(peak))
    np.testing.assert_array_equal(np.asarray(ws)[7], np.asarray(ws)[8])
    wanted = [1024.0] * 7 + [512.0] * 10 + [1024.0] * 10 + [2048.0] * 3
    np.testing.assert_array_equal(np.asarray(values), wanted)
    assert float(ls.value) == 2048
    assert float(loss(w, 1.0)) < 0.05 * float(loss(ts.zeros(4), 1.0))


def test_loss_scales_that_cannot_be() -> None:
    for options in ({"growth_interval": 0}, {"factor": 1.0}, {"smallest": 0.0}, {"largest": 0.5}):
        with pytest.raises(OptionError, match="LossScale"):
            ts.LossScale(8.0, **options)


# --- several precisions -----------------------------------------------------------------------


def made(**options: Any) -> tuple[Any, list[str]]:
    """A function of three variants, and what is appended to whenever one is traced."""
    traced: list[str] = []

    def variant(name: str, factor: float) -> Any:
        def f(x: Any) -> Any:
            traced.append(name)
            return x * factor

        return f

    names = {"a": 1.0, "b": 2.0, "c": 3.0}
    variants = {name: variant(name, factor) for name, factor in names.items()}
    return ts.AdaptivePrecision(variants, [10, 100], **options), traced


def test_the_narrowest_that_is_enough() -> None:
    f, traced = made(patience=3, hysteresis=0.5)
    f.compile(ts.ones(2))
    assert sorted(set(traced)) == ["a", "b", "c"]
    count = len(traced)
    # What comes, and what is taken: wider at once, narrower after three calm calls in a row.
    script = [
        (1, "a"), (10, "a"), (11, "b"), (5, "b"), (5, "b"), (6, "b"), (5, "b"), (4, "b"), (5, "a"),
        (1e4, "c"), (40, "c"), (2, "c"), (40, "b"), (np.nan, "c"), (np.inf, "c"), (1, "c"),
        (1, "c"), (1, "a"), (-70, "b"),
    ]  # fmt: skip
    factors = {"a": 1.0, "b": 2.0, "c": 3.0}
    for x, name in script:
        found = np.asarray(f(ts.asarray([float(x), 0.0])))
        assert f.chosen == name, x
        np.testing.assert_array_equal(found[0], np.float32(x) * np.float32(factors[name]))
    assert len(traced) == count
    assert sum(f.counts.values()) == len(script)
    assert [(s.call, s.before, s.after) for s in f.switches] == [
        (2, "a", "b"), (8, "b", "a"), (9, "a", "c"), (12, "c", "b"), (13, "b", "c"),
        (17, "c", "a"), (18, "a", "b"),
    ]  # fmt: skip
    assert str(f.switches[0]) == "call 2: a -> b (measured 11)"
    assert repr(f).endswith("now b, 7 switches)")


@given(st.lists(st.floats(0, 1000), max_size=30), st.integers(1, 4))
def test_no_call_is_above_its_variants_limit(script: list[float], patience: int) -> None:
    f, _ = made(patience=patience)
    for x in script:
        f._choose(x)  # the choice alone, without compiling anything
        assert x <= {"a": 10, "b": 100, "c": np.inf}[f.chosen]


def test_inside_of_a_program_it_is_a_branch() -> None:
    """The narrowest variant whose limit holds, in jit, loops, batches and gradients."""

    def variant(k: float) -> Any:
        return lambda x, scale=1.0: x * (k * scale)

    f = ts.AdaptivePrecision({"a": variant(1.0), "b": variant(2.0), "c": variant(3.0)}, [1.0, 10.0])
    sizes = np.array([0.5, 1.0, 1.5, 10.0, 11.0, np.inf, np.nan, -0.5, -20.0], np.float32)
    factors = np.array([1, 1, 2, 2, 3, 3, 3, 1, 3], np.float32)
    run = ts.jit(lambda x: f(x))
    for x, k in zip(sizes, factors, strict=True):
        np.testing.assert_array_equal(np.asarray(run(ts.asarray(x))), x * k)
        np.testing.assert_array_equal(np.asarray(ts.grad(run)(ts.asarray(x))), k)
    wanted = sizes * factors
    np.testing.assert_array_equal(np.asarray(ts.vmap(f)(ts.asarray(sizes))), wanted)
    found = ts.jit(lambda xs: ts.scan(lambda c, x: (c, f(x)), 0.0, xs)[1])(ts.asarray(sizes))
    np.testing.assert_array_equal(np.asarray(found), wanted)
    np.testing.assert_array_equal(
        np.asarray(ts.jit(lambda x: f(x, scale=4.0))(ts.asarray(2.0))), 16.0
    )
    assert f.counts == {"a": 0, "b": 0, "c": 0}
    text = str(ts.make_graph(lambda x: f(x))(1.0))
    assert text.count("graph.cond(") == 2
    with ts.policy(ts.policies.Training()):  # what is measured is not rounded
        assert float(run(ts.asarray(1.001))) == 2.0
    with pytest.raises(OptionError, match="the measure is no number"):
        ts.jit(lambda x: ts.AdaptivePrecision({"a": ts.sin}, [], measure=lambda x: 1.0)(x))(1.0)


def test_a_measure_of_yours() -> None:
    """By the scale of gradients, which is an argument."""
    f = ts.AdaptivePrecision(
        {"narrow": lambda x, ls: x + 1, "wide": lambda x, ls: x + 2},
        [100],
        measure=lambda x, ls: 2.0**20 / ls.value,
    )
    x = ts.zeros(2)
    assert float(f(x, ts.LossScale(2.0**15))[0]) == 1
    assert float(f(x, ts.LossScale(2.0**12))[0]) == 2


def test_fp8_where_it_is_enough() -> None:
    """A product in fp8 with a fixed scale, and bfloat16 for what that would clip."""
    w = RNG.normal(size=(8, 4)).astype(np.float32)
    q = ts.quantize(w, "e4m3", axis=1)

    def fp8(x: Any) -> Any:
        return ts.quantize(x, "e4m3", scale=1.0) @ q

    def bf16(x: Any) -> Any:
        return (x.astype(ts.bfloat16) @ ts.asarray(w).astype(ts.bfloat16)).astype(ts.float32)

    f = ts.AdaptivePrecision({"fp8": fp8, "bf16": bf16}, [448])
    for size in (1.0, 100.0, 1e4, 1e6):
        x = (RNG.uniform(-1, 1, size=(3, 8)) * size).astype(np.float32)
        error = np.abs(np.asarray(f(x)) - x @ w).max() / np.abs(x @ w).max()
        assert error < 0.06
    assert f.counts == {"fp8": 2, "bf16": 2}


def test_threads_may_share_it() -> None:
    f, _ = made()
    f.compile(ts.ones(2))

    def run() -> None:
        for _ in range(20):
            f(ts.ones(2))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert f.counts["a"] == 80


def test_adaptive_precision_that_cannot_be() -> None:
    def f(x: Any) -> Any:
        return x

    for variants, limits, options in (
        ({"a": f, "b": f}, [], {}),
        ({}, [], {}),
        ({"a": f, "b": f, "c": f}, [2, 1], {}),
        ({"a": f, "b": f}, [0], {}),
        ({"a": f, "b": f}, [1], {"hysteresis": 0}),
        ({"a": f, "b": f}, [1], {"patience": 0}),
    ):
        with pytest.raises(OptionError, match="AdaptivePrecision"):
            ts.AdaptivePrecision(variants, limits, **options)
    two = ts.AdaptivePrecision({"a": f, "b": lambda x: x.astype(ts.float16)}, [1])
    with pytest.raises(PytreeError, match=r"a gives f32\[2\], b gives f16\[2\]"):
        two.compile(ts.ones(2))
    with pytest.raises(DTypeError, match=r"branches\[0\] returns f32\[2\], branches\[1\] f16\[2\]"):
        ts.jit(lambda x: two(x))(ts.ones(2))
    by = ts.AdaptivePrecision({"a": f, "b": f}, [1], measure=lambda x: x)
    with pytest.raises(OptionError, match="the measure is no number"):
        by(ts.ones(2))


def test_policies_make_variants() -> None:
    """One function, compiled under two policies; which one a call takes, the numbers say."""
    w = RNG.normal(size=(8, 4)).astype(np.float32)

    def f(x: Any) -> Any:
        return ts.tanh(x @ ts.asarray(w) / 1e6)

    short = ts.Policy(compute=ts.float16, accumulate=ts.float32, storage=ts.float32)
    adaptive = ts.AdaptivePrecision({"f16": ts.policy(short)(f), "f32": f}, [65504])
    adaptive.compile(ts.ones((3, 8)))
    for size, name in ((1.0, "f16"), (1e6, "f32")):
        x = (RNG.uniform(-1, 1, size=(3, 8)) * size).astype(np.float32)
        x[0, 0] = size
        found = adaptive(x)
        assert adaptive.chosen == name
        wanted = ts.policy(short)(f)(x) if name == "f16" else f(ts.asarray(x))
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-6)


def test_programs_that_use_none_of_it_load_none_of_it() -> None:
    code = (
        "import sys, tessera as ts; ts.jit(lambda x: x + 1)(1.0);"
        "print('tessera.precision' in sys.modules, 'quantize' in dir(ts));"
        "from tessera import quantize; print(quantize is ts.quantize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
    module = importlib.import_module("tessera.precision")
    assert all(getattr(ts, name) is getattr(module, name) for name in module.__all__)
    assert {*module.__all__} <= {*dir(ts)}


def test_the_widest_of_the_calm_calls_decides() -> None:
    """Wherever in the row of calm calls it was."""
    for calm in ([40, 2, 2], [2, 40, 2], [2, 2, 40]):
        f, _ = made(patience=3)
        for x in (1e4, *calm):
            f._choose(float(x))
        assert f.chosen == "b", calm
