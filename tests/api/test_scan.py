"""`scan`, `map`, and loops with known limits, against loops of Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.graph.ops.scan import Scan
from tests.tolerance import assert_close

MODES: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [lambda f: f, ts.jit]


@pytest.fixture(params=MODES, ids=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


class State(NamedTuple):
    """Something that is carried."""

    total: Any
    parts: Any


def looped(
    f: Callable[..., Any], init: Any, xs: Any, length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """The definition, as a loop of Python."""
    carry, found = init, [None] * length
    for i in range(length)[:: -1 if reverse else 1]:
        carry, found[i] = f(carry, ts.pytree.map_(lambda x, i=i: x[i], xs))
    return carry, ts.pytree.map_(lambda *ys: ts.stack(ys), *found) if length else None


def values(dtype: Any, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(len(shape) + sum(shape))
    return (rng.uniform(0.5, 1.5, shape) * 2).astype(dtype)


def inputs(length: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    c = {"a": values(dtype, 3), "b": (values(dtype, 3, 1)[:, 0], values(dtype, 1, 3)[0])}
    xs = (values(dtype, length, 3), values(dtype, length, 1))
    return ts.pytree.map_(ts.asarray, c), ts.pytree.map_(ts.asarray, xs)


def step(c: Any, x: Any) -> Any:
    total = c["a"] * x[0] + ts.sum(c["b"][0])
    return {"a": total, "b": (c["b"][0] - x[1], c["b"][1] * 2)}, (total, [x[1], None])


def same(found: Any, wanted: Any, length: int = 1) -> None:
    a, first = ts.pytree.flatten(found)
    b, second = ts.pytree.flatten(wanted)
    assert first == second
    for x, y in zip(a, b, strict=True):
        assert_close(x, y, length=length, factor=4)  # several operations a step


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "unroll"), [(1, 1), (2, 1), (5, 1), (5, 2), (6, 3), (4, True)])
def test_scan_of_containers(mode: Any, length: int, unroll: Any, reverse: bool) -> None:
    init, xs = inputs(length)
    f = mode(lambda c, xs: ts.scan(step, c, xs, reverse=reverse, unroll=unroll))
    same(f(init, xs), looped(step, init, xs, length, reverse), length)


@pytest.mark.parametrize("outer", [1, 2])
def test_scans_in_a_scan_that_is_no_loop(mode: Any, outer: int) -> None:
    def inner(x: Any) -> Any:
        return ts.scan(lambda c, y: (c + y, c), x, ts.arange(2.0))[0]

    f = mode(lambda x: ts.scan(lambda c, _: (inner(inner(c)), None), x, length=outer)[0])
    assert float(f(0.5)) == 0.5 + 2 * outer


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "uint8", "complex64"])
def test_dtypes(mode: Any, dtype: str) -> None:
    wanted = getattr(ts, dtype)
    xs = ts.astype(ts.arange(1, 7), wanted)
    init = ts.astype(ts.asarray(2), wanted)

    def f(c: Any, x: Any) -> Any:
        return c + x, c - x

    found = mode(lambda c, xs: ts.scan(f, c, xs))(init, xs)
    same(found, looped(f, init, xs, 6))


def test_bools_and_flags(mode: Any) -> None:
    xs = ts.asarray([True, True, False, True])
    found, ys = mode(lambda xs: ts.scan(lambda c, x: (c & x, ~c), ts.asarray(True), xs))(xs)
    assert not bool(found)
    np.testing.assert_array_equal(ys, [False, False, False, True])


@pytest.mark.parametrize("unroll", [1, 3, True])
def test_no_steps(mode: Any, unroll: Any) -> None:
    init, xs = inputs(0)
    found, (totals, (rest, nothing)) = mode(
        lambda c, xs: ts.scan(step, c, xs, unroll=unroll)
    )(init, xs)
    same(found, init)
    assert totals.shape == (0, 3)
    assert rest.shape == (0, 1)
    assert nothing is None


def test_length_in_place_of_xs(mode: Any) -> None:
    f = mode(lambda x: ts.scan(lambda c, _: (c * 2, c), x, length=4))
    found, ys = f(3)
    assert int(found) == 48
    np.testing.assert_array_equal(ys, [3, 6, 12, 24])


def test_no_carry(mode: Any) -> None:
    xs = ts.arange(4)
    nothing, ys = mode(lambda xs: ts.scan(lambda c, x: (None, x * x), None, xs))(xs)
    assert nothing is None
    np.testing.assert_array_equal(ys, [0, 1, 4, 9])


def test_numbers_take_the_dtype_of_the_steps(mode: Any) -> None:
    xs = ts.asarray([0.5, 1.5], dtype=ts.float64)
    total, _ = mode(lambda xs: ts.scan(lambda c, x: (c + x, None), 0, xs))(xs)
    assert total.dtype is ts.float64
    assert float(total) == 2.0


def test_values_from_outside_and_named_tuples(mode: Any) -> None:
    w = ts.asarray([1.0, 2.0])

    def f(x: Any) -> Any:
        scale = ts.sum(x)
        return ts.scan(
            lambda c, x: (State(c.total + x * scale, c.parts * w), c.parts),
            State(0.0, w),
            x,
        )

    x = ts.asarray([1.0, 2.0, 3.0])
    (total, parts), ys = mode(f)(x)
    assert float(total) == 36.0
    np.testing.assert_array_equal(parts, [1.0, 16.0])
    np.testing.assert_array_equal(ys, [[1, 2], [1, 4], [1, 8]])


def test_results_that_are_carried_scanned_or_equal(mode: Any) -> None:
    """A result of a step may be what it got, or be returned twice."""
    xs = ts.asarray([1.0, 2.0])
    found = mode(lambda xs: ts.scan(lambda c, x: ((c[1], c[0]), (x, x, c[0])), (1.0, 2.0), xs))(xs)
    same(found, ((ts.asarray(1.0), ts.asarray(2.0)), (xs, xs, ts.asarray([1.0, 2.0]))))


def test_nested_scans(mode: Any) -> None:
    x = ts.asarray(values(np.float32, 3, 4))

    def f(x: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            inner, ys = ts.scan(lambda d, v: (d * v + c, d), c, row)
            return inner, ys

        return ts.scan(outer, 1.0, x)

    def by_hand(x: Any) -> Any:
        return looped(
            lambda c, row: looped(lambda d, v: (d * v + c, d), c, row, 4), ts.asarray(1.0), x, 3
        )

    same(mode(f)(x), by_hand(x), 12)
    same(mode(ts.grad(lambda x: f(x)[0]))(x), ts.grad(lambda x: by_hand(x)[0])(x), 12)


def test_loops_in_scans(mode: Any) -> None:
    def f(x: Any) -> Any:
        return ts.scan(
            lambda c, x: (ts.while_loop(lambda v: v < 10, lambda v: v * 2 + x, c) - 9, c), 1.0, x
        )

    def by_hand(xs: Any) -> tuple[float, list[float]]:
        c, found = 1.0, []
        for x in xs:
            found.append(c)
            while c < 10:
                c = c * 2 + x
            c -= 9
        return c, found

    x = [1.0, 3.0, 0.5]
    found, ys = mode(f)(ts.asarray(x))
    wanted, rows = by_hand(x)
    assert float(found) == wanted
    np.testing.assert_array_equal(ys, rows)


# --- derivatives ----------------------------------------------------------------------------------


def rnn(w: Any, h: Any, xs: Any, **options: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = ts.tanh(h @ w["hidden"] + x * w["scale"])
        return h, ts.sum(h * w["scale"])

    return ts.scan(cell, h, xs, **options)


def rnn_by_hand(w: Any, h: Any, xs: Any, reverse: bool = False, unroll: int = 1) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = ts.tanh(h @ w["hidden"] + x * w["scale"])
        return h, ts.sum(h * w["scale"])

    return looped(cell, h, xs, xs.shape[0], reverse)


def weights() -> tuple[Any, Any, Any]:
    w = {"hidden": ts.asarray(values(np.float64, 3, 3)) / 4, "scale": ts.asarray([0.5, -1.0, 0.3])}
    w["scale"] = ts.astype(w["scale"], ts.float64)
    return w, ts.asarray(values(np.float64, 2, 3)) / 4, ts.asarray(values(np.float64, 5, 2, 3)) - 2


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_reverse_mode(mode: Any, reverse: bool, unroll: int) -> None:
    def loss(run: Any) -> Any:
        def f(w: Any, h: Any, xs: Any) -> Any:
            h, ys = run(w, h, xs, reverse=reverse, unroll=unroll)
            return ts.sum(h * h) + ts.sum(ys)

        return f

    args = weights()
    found = mode(ts.grad(loss(rnn), argnums=(0, 1, 2)))(*args)
    same(found, ts.grad(loss(rnn_by_hand), argnums=(0, 1, 2))(*args), 30)


def test_forward_mode(mode: Any) -> None:
    args = weights()
    tangents = ts.pytree.map_(lambda x: x * x + 1, args)
    found = mode(lambda a, t: ts.jvp(rnn, a, t))(args, tangents)
    same(found, ts.jvp(rnn_by_hand, args, tangents), 30)


def test_second_derivatives(mode: Any) -> None:
    """Reverse over reverse, forward over reverse, reverse over forward."""
    _, h, xs = weights()
    w = weights()[0]

    def loss(run: Any) -> Any:
        return lambda x: ts.sum(run(w, h, x)[1] ** 2)

    def twice(f: Any) -> list[Any]:
        grad = ts.grad(f)
        return [
            ts.grad(lambda x: ts.sum(grad(x) ** 2))(xs),
            ts.jvp(grad, (xs,), (h * xs,))[1],
            ts.grad(lambda x: ts.jvp(f, (x,), (x * x,))[1])(xs),
        ]

    for a, b in zip(mode(lambda: twice(loss(rnn)))(), twice(loss(rnn_by_hand)), strict=True):
        assert_close(a, b, length=100)


def test_only_some_inputs_are_differentiated(mode: Any) -> None:
    """What does not depend on them has no tangent, and integers have none."""

    def f(x: Any, s: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            n, p, q = c
            return (n + 1, p * v + n, q * 2.0), (n, q)

        (n, p, q), _ = ts.scan(body, (0, s, 1.0), x)
        return p * q + n

    x = ts.asarray([2.0, 3.0, 4.0])
    # p = ((2 s + 0) 3 + 1) 4 + 2, and q is 8.
    np.testing.assert_allclose(mode(ts.grad(f))(x, 0.5), [8 * 0.5 * 12, 8 * 0.5 * 8, 8 * 4])
    assert float(mode(ts.grad(f, argnums=1))(x, 0.5)) == 8 * 24


def test_stacked_results_alone_carry_derivatives(mode: Any) -> None:
    f = mode(ts.grad(lambda x: ts.sum(ts.scan(lambda c, v: (c + 1, v * v * c), 1.0, x)[1])))
    np.testing.assert_array_equal(f(ts.asarray([1.0, 2.0, 3.0])), [2.0, 8.0, 18.0])


def scans(f: Any, *args: Any) -> list[Scan]:
    """The loops of a compiled function."""
    return [op for op in ts.jit(f).lower(*args).graph.ops if isinstance(op, Scan)]


def test_what_no_step_changes_is_stored_once() -> None:
    """`w * w` is a constant of the linear loop, `x` is scanned, `c` of each step is stacked."""
    w, x = ts.ones((4, 4)), ts.ones((7, 4))

    def f(w: Any, x: Any) -> Any:
        return ts.sum(ts.scan(lambda c, v: (c * v + (w * w) @ v, None), ts.ones(4), x)[0])

    forward, backward = scans(ts.grad(f, argnums=(0, 1)), w, x)
    assert [str(v.type) for v in forward.results] == ["f32[4]", "f32[7, 4]"]
    assert all("7, 4, 4" not in str(v.type) for v in (*backward.operands, *backward.results))


def test_results_of_steps_are_not_stored_again() -> None:
    """The derivative of `exp` is its value, which is stacked anyway."""
    x = ts.ones(7)
    f = ts.grad(lambda x: ts.sum(ts.scan(lambda c, v: (c, ts.exp(v)), 0.0, x)[1]))
    found = [str(v.type) for op in scans(f, x) for v in op.results]
    assert found.count("f32[7]") == 2, found


def test_grad_of_fori_loop(mode: Any) -> None:
    def f(x: Any) -> Any:
        return ts.fori_loop(2, 6, lambda i, y: y * x + i, x)

    def by_hand(x: Any) -> Any:
        y = x
        for i in range(2, 6):
            y = y * x + i
        return y

    assert_close(mode(ts.grad(f))(1.5), ts.grad(by_hand)(1.5), length=4)
    assert_close(mode(ts.grad(ts.grad(f)))(1.5), ts.grad(ts.grad(by_hand))(1.5), length=9)
    assert float(mode(lambda x: ts.fori_loop(6, 2, lambda i, y: y * x, x))(1.5)) == 1.5
    assert float(mode(lambda x: ts.fori_loop(0, 7, lambda i, y: y + x, 0, unroll=3))(2.0)) == 14


def test_fori_loop_with_limits_that_are_arrays_has_forward_derivatives(mode: Any) -> None:
    f = mode(
        lambda n, x: ts.jvp(lambda x: ts.fori_loop(0, n, lambda i, y: y * x, x), (x,), (1.0,))
    )
    value, tangent = f(ts.asarray(3), 2.0)
    assert (float(value), float(tangent)) == (16.0, 32.0)


# --- batches, and transforms in every order -------------------------------------------------------


@pytest.mark.parametrize("axes", [(None, 0, 1), (0, None, None), (None, None, 2), (0, 0, 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_vmap(mode: Any, axes: tuple[int | None, ...], reverse: bool) -> None:
    shapes = ((3,), (3,), (5, 3))
    args = [
        ts.asarray(values(np.float64, *(shape if a is None else (*shape[:a], 2, *shape[a:]))))
        for shape, a in zip(shapes, axes, strict=True)
    ]

    def f(w: Any, h: Any, xs: Any, run: Any = ts.scan) -> Any:
        return run(lambda h, x: (ts.sin(h * w) + x, h[0]), h, xs, reverse=reverse)

    found = mode(ts.vmap(f, in_axes=axes))(*args)
    for k in range(2):
        one = [
            x if a is None else ts.moveaxis(x, a, 0)[k] for x, a in zip(args, axes, strict=True)
        ]

        def by_hand(g: Any, h: Any, xs: Any, reverse: bool) -> Any:
            return looped(g, h, xs, 5, reverse)

        wanted = f(*one, run=by_hand)
        same(ts.pytree.map_(lambda x, k=k: x[k], found), wanted, 5)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": ts.jit,
    "grad": lambda f: ts.grad(lambda x: ts.sum(f(x))),
    "vmap": lambda f: lambda x: ts.vmap(f)(ts.stack([x, x * 0.5]))[1],
    "jvp": lambda f: lambda x: ts.jvp(f, (x,), (x * x,))[1],
}


@pytest.mark.parametrize("names", list(itertools.permutations(TRANSFORMS, 3)), ids="-".join)
def test_transforms_in_every_order(names: tuple[str, ...]) -> None:
    def body(c: Any, v: Any) -> Any:
        return c * ts.cos(v) + v, c * c

    def f(x: Any) -> Any:
        c, ys = ts.scan(body, x[0], x, unroll=2)
        return ys * c

    def by_hand(x: Any) -> Any:
        c, ys = looped(body, x[0], x, 4)
        return ys * c

    for name in names:
        f, by_hand = TRANSFORMS[name](f), TRANSFORMS[name](by_hand)
    x = ts.asarray([0.3, 0.9, -0.4, 0.7], dtype=ts.float64)
    assert_close(f(x), by_hand(x), length=100)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.booleans(), st.integers(1, 4))
def test_cumulative_sums(xs: list[float], reverse: bool, unroll: int) -> None:
    x = np.asarray(xs)
    total, sums = ts.scan(
        lambda c, v: (c + v, c + v), ts.asarray(0.0, dtype=ts.float64), x, None, reverse, unroll
    )
    wanted = np.cumsum(x[::-1])[::-1] if reverse else np.cumsum(x)
    assert_close(sums, wanted, length=6)
    assert_close(total, np.asarray(np.sum(x)), length=6)


# --- map ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 7, 9])
def test_map(mode: Any, batch_size: int | None) -> None:
    x = ts.asarray(values(np.float32, 7, 3))

    def f(row: Any) -> Any:
        return {"sum": ts.sum(row * row), "row": row[::-1]}

    found = mode(lambda x: ts.map(f, x, batch_size=batch_size))(x)
    same(found, ts.vmap(f)(x), 3)
    grad = mode(ts.grad(lambda x: ts.sum(ts.map(f, x, batch_size=batch_size)["sum"])))(x)
    same(grad, 2 * x)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_map_of_nothing(mode: Any, batch_size: int | None) -> None:
    found = mode(lambda x: ts.map(lambda v: v[0] * 2, x, batch_size=batch_size))(ts.ones((0, 3)))
    assert found.shape == (0,)


def test_loops_of_python_where_jit_is_disabled() -> None:
    init, xs = inputs(3)
    with ts.debug.disable_jit():
        seen: list[Any] = []

        def f(c: Any, x: Any) -> Any:
            seen.append(float(x[1][0]))
            return step(c, x)

        found = ts.scan(f, init, xs, reverse=True)
        assert int(ts.fori_loop(1, 4, lambda i, t: t + i, 0)) == 6
        assert float(ts.switch(1, [ts.sin, ts.exp], 0.0)) == 1.0
    assert len(seen) == 3
    same(found, looped(step, init, xs, 3, reverse=True), 3)


def test_arithmetic_of_what_is_there_is_computed_again() -> None:
    """The derivative of `tanh` is (1 - y) (1 + y), and y is a result; only h is stacked as well."""
    w, x = ts.ones((4, 4)), ts.ones((7, 4))

    def f(w: Any, x: Any) -> Any:
        def cell(h: Any, v: Any) -> Any:
            h = ts.tanh(h @ w + v)
            return h, h

        return ts.sum(ts.scan(cell, ts.zeros(4), x)[1] ** 2)

    forward, _ = scans(ts.grad(f), w, x)
    assert [str(v.type) for v in forward.results] == ["f32[4]", "f32[7, 4]", "f32[7, 4]"]


def test_steps_that_are_computed_again() -> None:
    """A step under `checkpoint` stores what it is given."""
    x = ts.asarray(values(np.float64, 5, 3))

    def step(c: Any, v: Any) -> Any:
        c = ts.sin(c) * ts.exp(ts.cos(v))
        return c, ts.exp(c)

    def f(step: Any) -> Any:
        return lambda x: ts.sum(ts.scan(step, x[0], x)[1])

    kept = ts.jit(ts.grad(f(ts.checkpoint(step))))
    assert_close(kept(x), ts.grad(f(step))(x), length=50)
    assert_close(ts.grad(f(ts.checkpoint(step)))(x), ts.grad(f(step))(x), length=50)
    loops = [op for op in kept.lower(x).graph.ops if isinstance(op, Scan)]
    stacks = [v for v in loops[0].results if str(v.type) == "f64[5, 3]"]
    assert len(stacks) == 1, loops[0]  # what the steps are given: nobody reads their results


def test_one_value_is_stored_for_all_that_is_made_of_it() -> None:
    """Of a gate, `t = tanh(x)`, both t / 2 + 1 / 2 and (1 - t) (1 + t) are needed."""
    x = ts.asarray(values(np.float64, 6, 3))

    def f(x: Any) -> Any:
        def gate(c: Any, v: Any) -> Any:
            return (ts.tanh(c + v) * 0.5 + 0.5) * c, None

        return ts.sum(ts.scan(gate, ts.ones(3, dtype=ts.float64), x)[0])

    def by_hand(x: Any) -> Any:
        c = ts.ones(3, dtype=ts.float64)
        for i in range(6):
            c = (ts.tanh(c + x[i]) * 0.5 + 0.5) * c
        return ts.sum(c)

    assert_close(ts.jit(ts.grad(f))(x), ts.grad(by_hand)(x), length=50)
    forward, _ = scans(ts.grad(f), x)
    assert [str(v.type) for v in forward.results] == ["f64[3]", "f64[6, 3]", "f64[6, 3]"]


def test_a_compiled_gradient_has_one_loop_forward() -> None:
    """The loop that stores residuals gives the values too, whatever is computed from these."""
    x = ts.ones((5, 3))

    def f(x: Any) -> Any:
        c, ys = ts.scan(lambda c, v: (ts.sin(c) * v, c), x[0], x)
        return ts.sum(ts.exp(ys) * ts.sum(c)), c

    loops = scans(ts.value_and_grad(f, has_aux=True), x)
    assert [op.reverse for op in loops] == [False, True]
