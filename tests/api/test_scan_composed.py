"""Loops with everything else inside: containers of any form, rules of the user, collectives,
randomness, what is told to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tests.tolerance import assert_close

LEAVES = st.sampled_from([(), (2,), (3, 1), (0,)])
TREES: st.SearchStrategy[Any] = st.recursive(
    st.none() | LEAVES.map(list),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    ),
    max_leaves=4,
)


def is_shape(x: Any) -> bool:
    return isinstance(x, list)


def filled(tree: Any, *lead: int) -> Any:
    """Arrays of the shapes that a tree has as leaves."""

    def array(shape: list[int]) -> Any:
        whole = (*lead, *shape)
        flat = np.linspace(0.5, 1.5, int(np.prod(whole)), dtype=np.float32)
        return ts.asarray(flat.reshape(whole))

    return ts.pytree.map_(array, tree, is_leaf=is_shape)


@given(TREES, TREES, st.integers(0, 3), st.booleans(), st.sampled_from([1, 2, True]))
def test_containers_of_any_form(
    carried: Any, scanned: Any, length: int, reverse: bool, unroll: Any
) -> None:
    carry, xs = filled(carried), filled(scanned, length)

    def step(c: Any, x: Any) -> Any:
        total = sum([ts.sum(v) for v in ts.pytree.leaves(x)], ts.asarray(1.0))
        c = ts.pytree.map_(lambda v: v * 0.5 + total, c)
        return c, (x, {"total": total, "c": c})

    found, ys = ts.jit(
        lambda c, xs: ts.scan(step, c, xs, length=length, reverse=reverse, unroll=unroll)
    )(carry, xs)
    rows: list[Any] = [None] * length
    for i in range(length)[:: -1 if reverse else 1]:
        carry, rows[i] = step(carry, ts.pytree.map_(lambda v, i=i: v[i], xs))
    for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(carry), strict=True):
        assert_close(a, b, length=10)
    assert ts.pytree.structure(ys) == ts.pytree.structure(step(carry, filled(scanned))[1])
    if length:
        wanted = ts.pytree.map_(lambda *v: ts.stack(v), *rows)
        for a, b in zip(ts.pytree.leaves(ys), ts.pytree.leaves(wanted), strict=True):
            assert_close(a, b, length=10)


@pytest.mark.parametrize("mode", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_collectives_in_steps(mode: Any) -> None:
    x = ts.asarray(np.linspace(0.5, 2, 6).reshape(2, 3))

    def f(x: Any) -> Any:
        def row(x: Any) -> Any:
            def step(c: Any, v: Any) -> Any:
                total = ts.psum(v * c, "i")
                return ts.cond(total > 100, lambda: c, lambda: c * v + total), total

            return ts.scan(step, x[0], x)

        return ts.vmap(row, axis_name="i")(x)

    def by_hand(x: Any) -> Any:
        c, rows = x[:, 0], []
        for t in range(3):
            total = ts.sum(x[:, t] * c)
            c = c * x[:, t] + total
            rows.append(total)
        return c, ts.stack([ts.stack(rows)] * 2)

    for a, b in zip(mode(f)(x), by_hand(x), strict=True):
        assert_close(a, b, length=10)
    found = mode(ts.grad(lambda x: ts.sum(f(x)[0]) + ts.sum(f(x)[1])))(x)
    wanted = ts.grad(lambda x: ts.sum(by_hand(x)[0]) + ts.sum(by_hand(x)[1]))(x)
    assert_close(found, wanted, length=50)


@pytest.mark.parametrize("mode", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_rules_of_the_user_in_steps(mode: Any) -> None:
    @ts.custom_vjp
    def doubled(x: Any) -> Any:
        return ts.sin(x)

    doubled.defvjp(lambda x: (ts.sin(x), x), lambda x, ct: (2 * ct * ts.cos(x),))

    @ts.custom_jvp
    def tripled(x: Any) -> Any:
        return ts.sin(x)

    tripled.defjvp(lambda primals, tangents: (ts.sin(primals[0]), 3 * tangents[0]))

    def run(f: Any) -> Any:
        return lambda x: ts.scan(lambda c, v: (f(c) + v, None), x, ts.ones(3))[0]

    x = 0.3
    chain = [x, float(np.sin(x)) + 1, float(np.sin(np.sin(x) + 1)) + 1]
    slope = np.float32(np.prod([2 * np.cos(v) for v in chain]))
    assert_close(mode(ts.grad(run(doubled)))(x), slope, length=10)
    assert_close(mode(ts.vmap(ts.grad(run(doubled))))(ts.full(2, x)), np.full(2, slope), length=10)
    assert float(mode(ts.grad(run(tripled)))(x)) == 27.0
    assert float(mode(lambda x: ts.jvp(run(tripled), (x,), (1.0,))[1])(x)) == 27.0


@pytest.mark.parametrize("mode", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_random_numbers_of_steps(mode: Any) -> None:
    def step(key: Any, _: Any) -> Any:
        key, own = ts.random.split(key)
        return key, ts.random.uniform(own, (2,))

    key = ts.random.key(3)
    _, found = mode(lambda key: ts.scan(step, key, length=4))(key)
    for row in found:
        key, wanted = step(key, None)
        np.testing.assert_array_equal(row, wanted)


@pytest.mark.parametrize("mode", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_each_step_is_told_once_in_order(mode: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            ts.debug.print("v = {}", v)
            return ts.sin(c) * v, None

        return ts.scan(step, x, ts.asarray([1.0, 2.0, 3.0]))[0]

    mode(ts.grad(f))(0.5)
    assert capsys.readouterr().out == "v = 1.0\nv = 2.0\nv = 3.0\n"


def test_all_jacobians_of_a_scan_are_one() -> None:
    def f(x: Any) -> Any:
        return ts.scan(lambda c, v: (ts.sin(c) * v, c * v), x[0], x)[1]

    x = ts.asarray([0.3, 0.9, -0.4], dtype=ts.float64)
    forward, backward = ts.jit(ts.jacfwd(f))(x), ts.jit(ts.jacrev(f))(x)
    assert_close(forward, backward, length=10)
    step = 1e-6
    for k in range(3):
        shift = np.zeros(3)
        shift[k] = step
        slope = (np.asarray(f(x + shift)) - np.asarray(f(x - shift))) / (2 * step)
        np.testing.assert_allclose(np.asarray(forward)[:, k], slope, atol=1e-8)
    hessian = ts.hessian(lambda x: ts.sum(f(x)))(x)
    assert_close(hessian, np.asarray(hessian).T, length=50)
