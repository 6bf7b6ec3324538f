"""`ts.fast_math`: what changes, where, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera.graph.passes.fast_math import fast_math
from tests.tolerance import assert_close


def names(f: Callable[..., Any], *args: Any) -> list[str]:
    """The ops of a compiled function's Graph."""
    text = ts.jit(f).lower(*args).stage("graph")
    return [line.split(" = graph.")[1].split("(")[0] for line in text.splitlines() if " = " in line]


def random_array(*shape: int) -> Any:
    """Numbers between 0.5 and 2."""
    return ts.asarray(np.random.default_rng(0).uniform(0.5, 2, shape).astype(np.float32))


def rows(x: Any) -> Any:
    """Quotients by sums, constants, and sums of products."""
    y = x / ts.sum(x, axis=-1, keepdims=True)
    return y * 2.0 * 3.0 + x * x - x / 7.0


def test_results_differ_in_their_last_bits() -> None:
    x = random_array(30, 100)
    found, plain = ts.jit(ts.fast_math()(rows))(x), ts.jit(rows)(x)
    assert_close(np.asarray(found), np.asarray(plain), length=4)
    assert np.asarray(found).tobytes() != np.asarray(plain).tobytes()


def test_what_changes() -> None:
    x = random_array(30, 100)
    assert names(rows, x).count("div") == 2
    fast = names(ts.fast_math()(rows), x)
    # The reciprocals of sums are what is left of quotients.
    assert fast.count("div") == 1
    assert fast.count("mul") < names(rows, x).count("mul") + 2
    if ts.jit(rows).lower(x).machine.fma:
        assert "fma" in fast
    why = ts.jit(ts.fast_math()(rows)).lower(x).why().splitlines()
    listed = [line for line in why if line.startswith("fast_math: ")]
    assert len([line for line in listed if "a quotient is a product" in line]) == 2
    assert all("test_fast_math.py:" in line for line in listed)


def units(found: Any, wanted: Any) -> float:
    """The largest distance from exact values, in units in the last place."""
    near = np.spacing(np.abs(wanted).astype(np.float32))
    return float(np.max(np.abs(np.asarray(found) - wanted) / near))


EDGES = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 9.5, -4.5, 88.0], np.float32)


@pytest.mark.parametrize(
    ("name", "bound"), [("tanh", 6), ("erf", 6), ("log", 2)]
)
@pytest.mark.parametrize("level", ["x86-64-v2", "host"])
def test_functions_are_a_few_units_from_exact(name: str, bound: int, level: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.standard_normal(50000) * 3, rng.uniform(-10, 10, 50000),
        10.0 ** rng.uniform(-37, 38, 50000), 1 + 1e-3 * rng.standard_normal(50000),
    ]).astype(np.float32)  # fmt: skip
    exact = {"tanh": np.tanh, "erf": scipy.special.erf, "log": np.log}[name]
    x = np.abs(x) + np.float32(2.0**-126) if name == "log" else x
    with ts.config.update(**({} if level == "host" else {"cpu_level": level})):
        f = ts.jit(ts.fast_math()(getattr(ts, name, None) or getattr(ts.nn, name, None)))
        assert f.lower(ts.asarray(x)).changes
        assert units(f(ts.asarray(x)), exact(x.astype(np.float64))) <= bound
        with np.errstate(all="ignore"):
            wanted = exact(EDGES.astype(np.float64)).astype(np.float32)
        found = np.asarray(f(ts.asarray(EDGES)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    assert_close(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)], factor=8.0)
    if name != "log":
        assert np.signbit(found[1])
        assert np.max(np.abs(found[np.isfinite(found)])) <= 1
    for dtype in (ts.float64, ts.bfloat16):
        given = ts.astype(ts.asarray([0.5, 2.0]), dtype)
        assert not ts.jit(ts.fast_math()(f.function)).lower(given).changes


def test_only_what_is_in_the_block_changes() -> None:
    def f(x: Any) -> Any:
        with ts.fast_math():
            y = x / ts.sum(x)
        return y / ts.sum(x)

    assert names(f, random_array(8)).count("div") == 2
    assert not ts.jit(rows).lower(random_array(3, 4)).changes


def test_derivatives_and_batches_change_as_well() -> None:
    f = ts.fast_math()(lambda x: ts.sum((x / ts.sum(x)) ** 2))
    x = random_array(3, 50)
    fast = names(ts.vmap(ts.grad(f)), x)
    plain = names(ts.vmap(ts.grad(lambda x: ts.sum((x / ts.sum(x)) ** 2))), x)
    assert fast.count("div") <= plain.count("div")
    found = ts.jit(ts.vmap(ts.grad(f)))(x)
    wanted = ts.vmap(ts.grad(lambda x: ts.sum((x / ts.sum(x)) ** 2)))(x)
    assert_close(np.asarray(found), np.asarray(wanted), length=50)


def test_loops_and_branches() -> None:
    @ts.fast_math()
    def f(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            c = ts.cond(ts.sum(c) > 0, lambda c: c / ts.sum(c), lambda c: c / 3.0, c)
            return c, None

        return ts.scan(body, x, None, length=3)[0]

    x = random_array(10)
    assert ts.jit(f).lower(x).changes
    assert_close(np.asarray(ts.jit(f)(x)), np.asarray(x / ts.sum(x)), length=10)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x / x,
        lambda x: ts.sum(x) / x,
        lambda x: x / 0.0,
        lambda x: (ts.astype(x, ts.int32) // 3) * 2 * 3,
        lambda x: x[:1] / x[1:2],
    ],
    ids=["same", "above", "zero", "integers", "equal shapes"],
)
def test_what_stays(f: Callable[[Any], Any]) -> None:
    x = random_array(10)
    assert not ts.jit(ts.fast_math()(f)).lower(x).changes
    assert np.array_equal(ts.jit(ts.fast_math()(f))(x), ts.jit(f)(x))


def test_products_that_others_need_are_not_fused() -> None:
    def f(x: Any) -> Any:
        y = x * x
        return y + 1.0, y

    assert "fma" not in names(ts.fast_math()(f), random_array(5))
    g = ts.make_graph(ts.fast_math()(lambda x: x * x + 1.0))(random_array(5))
    assert not fast_math(g, fused=False)[1]
    assert [change.what for change in fast_math(g, fused=True)[1]] == [
        "a product is fused into a sum"
    ]


def test_operations_outside_of_functions() -> None:
    x = random_array(10)
    before = np.asarray(x / ts.sum(x))
    with ts.fast_math():
        assert_close(np.asarray(x / ts.sum(x)), before)
    assert np.array_equal(x / ts.sum(x), before)


def test_it_goes_with_determinism() -> None:
    f = ts.jit(ts.deterministic(batch_invariant=True)(ts.fast_math()(rows)))
    x = random_array(9, 40)
    assert np.array_equal(np.asarray(f(x))[:2], f(x[:2]))
    assert "order=" in f.lower(x).stage("graph")
    assert f.lower(x).changes
