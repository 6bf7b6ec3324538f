"""Control flow that depends on traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

MODES: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [lambda f: f, ts.jit]


@pytest.fixture
def x() -> ts.Array:
    return ts.asarray(np.arange(4, dtype=np.float32))


@pytest.fixture(params=MODES, ids=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_cond(mode: Any, x: ts.Array) -> None:
    f = mode(lambda p, x: ts.cond(p, lambda x: {"y": 2 * x}, lambda x: {"y": -x}, x))
    np.testing.assert_array_equal(f(True, x)["y"], 2 * np.asarray(x))
    np.testing.assert_array_equal(f(ts.asarray(False), x)["y"], -np.asarray(x))


def test_cond_uses_values_from_outside(mode: Any, x: ts.Array) -> None:
    f = mode(lambda p, x: ts.cond(p, lambda: x + 1, lambda: x - ts.sum(x)))
    np.testing.assert_array_equal(f(True, x), np.asarray(x) + 1)
    np.testing.assert_array_equal(f(False, x), np.asarray(x) - 6)


def test_only_one_branch_is_computed(mode: Any) -> None:
    def endless() -> Any:
        return ts.while_loop(lambda n: n >= 0, lambda n: n * 1, 1)

    assert int(mode(lambda p: ts.cond(p, lambda: 7, endless))(True)) == 7


def test_cond_joins_numbers(mode: Any, x: ts.Array) -> None:
    half = x.astype(ts.float16)
    f = mode(lambda p: ts.cond(p, lambda: 2, lambda: half[1]))
    assert f(True).dtype is ts.float16
    assert float(f(True)) == 2


def test_derivatives_of_cond(mode: Any, x: ts.Array) -> None:
    def f(p: Any, x: Any) -> Any:
        return ts.sum(ts.cond(p, lambda x: x * x, lambda x: 3 * x, x))

    g = mode(ts.grad(f, argnums=1))
    np.testing.assert_array_equal(g(True, x), 2 * np.asarray(x))
    np.testing.assert_array_equal(g(False, x), np.full(4, 3, np.float32))


def test_vmap_of_cond(mode: Any, x: ts.Array) -> None:
    f = mode(ts.vmap(lambda x: ts.cond(x > 1, lambda x: x * 10, lambda x: x, x)))
    np.testing.assert_array_equal(f(x), np.asarray([0, 1, 20, 30], np.float32))


def test_while_loop(mode: Any) -> None:
    f = mode(lambda x: ts.while_loop(lambda x: x < 100, lambda x: x * 2, x))
    assert float(f(3.0)) == 192.0
    assert float(f(300.0)) == 300.0


def test_while_loop_carries_containers(mode: Any, x: ts.Array) -> None:
    def f(n: Any, x: Any) -> Any:
        return ts.while_loop(
            lambda c: c["i"] < n, lambda c: {"i": c["i"] + 1, "v": c["v"] * x}, {"i": 0, "v": x}
        )

    found = mode(f)(2, x)
    assert int(found["i"]) == 2
    np.testing.assert_array_equal(found["v"], np.asarray(x) ** 3)


def test_jvp_of_while_loop(mode: Any) -> None:
    f = mode(lambda x: ts.jvp(lambda x: ts.while_loop(lambda x: x < 9, lambda x: x * x, x), x, x))
    value, tangent = f((2.0,))
    assert (float(value), float(tangent)) == (16.0, 64.0)


def test_vmap_of_while_loop_stops_each_example_by_itself(mode: Any) -> None:
    f = mode(ts.vmap(lambda x: ts.while_loop(lambda x: x < 10, lambda x: x * 2, x)))
    np.testing.assert_array_equal(f(ts.asarray([1, 3, 11])), [16, 12, 11])


def test_fori_loop(mode: Any, x: ts.Array) -> None:
    f = mode(lambda n, x: ts.fori_loop(0, n, lambda i, v: v + i * x, x))
    np.testing.assert_array_equal(f(4, x), 7 * np.asarray(x))
    np.testing.assert_array_equal(f(0, x), np.asarray(x))
    np.testing.assert_array_equal(f(-3, x), np.asarray(x))


def test_limits_of_any_integer_dtype(mode: Any) -> None:
    f = mode(lambda lo, hi: ts.fori_loop(lo, hi, lambda i, v: v + i, 0))
    assert int(f(ts.asarray(2, dtype=ts.int32), 5)) == 9
    assert int(f(2, ts.asarray(5, dtype=ts.uint8))) == 9


def test_nested_loops(mode: Any) -> None:
    def f(n: Any) -> Any:
        return ts.fori_loop(0, n, lambda i, total: ts.fori_loop(0, i, lambda j, t: t + j, total), 0)

    assert int(mode(f)(5)) == sum(j for i in range(5) for j in range(i))


# --- switch and select ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_switch(mode: Any, x: ts.Array, count: int) -> None:
    """An index out of range means the first function, or the last."""
    branches = [lambda x, k=k: {"y": x * k, "k": k} for k in range(count)]
    f = mode(lambda i, x: ts.switch(i, branches, x))
    for i in range(-2, count + 2):
        found = f(i, x)
        k = min(max(i, 0), count - 1)
        assert int(found["k"]) == k
        np.testing.assert_array_equal(found["y"], k * np.asarray(x))


def test_only_one_function_of_a_switch_is_computed(mode: Any) -> None:
    def endless() -> Any:
        return ts.while_loop(lambda n: n >= 0, lambda n: n * 1, 1)

    f = mode(lambda i: ts.switch(i, [endless, endless, lambda: 7, endless]))
    assert int(f(ts.asarray(2, dtype=ts.uint8))) == 7


def test_switch_joins_numbers_and_uses_values_from_outside(mode: Any, x: ts.Array) -> None:
    half = x.astype(ts.float16)
    f = mode(lambda i: ts.switch(i, [lambda: 2, lambda: half[1], lambda: 0.5]))
    assert [float(f(i)) for i in range(3)] == [2.0, 1.0, 0.5]
    assert f(0).dtype is ts.float16


def test_derivatives_of_switch(mode: Any, x: ts.Array) -> None:
    def f(i: Any, x: Any) -> Any:
        return ts.sum(ts.switch(i, [lambda x: x * x, lambda x: 3 * x, lambda x: ts.ones(4)], x))

    for i, wanted in enumerate((2 * np.asarray(x), np.full(4, 3), np.zeros(4))):
        found = mode(ts.grad(f, argnums=1))(i, x)
        np.testing.assert_array_equal(found, wanted.astype(np.float32))
        tangent = mode(lambda x, i=i: ts.jvp(lambda x: f(i, x), (x,), (x,))[1])(x)
        assert float(tangent) == float(np.sum(wanted * np.asarray(x)))


def test_vmap_of_switch(mode: Any, x: ts.Array) -> None:
    branches = [lambda x: x, lambda x: x * 10, lambda x: -x]
    f = mode(ts.vmap(lambda i, x: ts.switch(i, branches, x)))
    np.testing.assert_array_equal(f(ts.asarray([0, 1, 2, 5]), x), [0, 10, -2, -3])
    shared = mode(ts.vmap(lambda i, x: ts.switch(i, branches, x), in_axes=(None, 0)))
    np.testing.assert_array_equal(shared(1, x), [0, 10, 20, 30])


def test_select(mode: Any, x: ts.Array) -> None:
    f = mode(lambda p, x, y: ts.select(p, x, y))
    np.testing.assert_array_equal(f(x > 1, x, -x), [0, -1, 2, 3])
    np.testing.assert_array_equal(f(ts.asarray(False), x, -x), -np.asarray(x))
    assert ts.select(True, 1, ts.asarray(2.0, dtype=ts.float16)).dtype is ts.float16
    grad = mode(ts.grad(lambda x: ts.sum(ts.select(x > 1, x * x, 3 * x))))
    np.testing.assert_array_equal(grad(x), [3, 3, 4, 6])


# --- derivatives of loops with conditions ---------------------------------------------------------


def test_jvp_of_a_loop_whose_length_depends_on_the_input(mode: Any) -> None:
    def f(x: Any) -> Any:
        return ts.while_loop(lambda c: c[0] < 100, lambda c: (c[0] * x, c[1] + c[0]), (x, 0.0))[1]

    for point in (1.5, 3.0):
        value, tangent = mode(lambda x: ts.jvp(f, (x,), (1.0,)))(point)
        step = 1e-3
        ends = [ts.asarray(point + s, dtype=ts.float64) for s in (-step, step)]
        low, high = [float(ts.jit(f)(x)) for x in ends]
        assert float(value) == pytest.approx(float(f(point)))
        assert float(tangent) == pytest.approx((high - low) / (2 * step), rel=1e-4)


def test_a_batched_condition_masks_the_loop(mode: Any) -> None:
    """What one example does after its end does not reach it, not even NaN."""

    def f(x: Any) -> Any:
        return ts.while_loop(
            lambda c: c[0] > 0, lambda c: (c[0] - 1, ts.sqrt(c[0]) + c[1]), (x, 0.0)
        )

    found = mode(ts.vmap(f))(ts.asarray([2.0, 5.0, -1.0]))
    wanted = [np.sqrt([2, 1]).sum(), np.sqrt([5, 4, 3, 2, 1]).sum(), 0.0]
    np.testing.assert_allclose(found[1], wanted, rtol=1e-6)


def test_a_number_takes_the_dtype_of_the_steps(mode: Any, x: ts.Array) -> None:
    total = mode(lambda x: ts.while_loop(lambda c: c < 9, lambda c: c + x[1] * 2.5, 0))(x)
    assert (total.dtype, float(total)) == (ts.float32, 10.0)
    total = mode(lambda n, x: ts.fori_loop(0, n, lambda i, c: c + x[i], 0))(4, x)
    assert (total.dtype, float(total)) == (ts.float32, 6.0)
