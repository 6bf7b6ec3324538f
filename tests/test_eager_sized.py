"""Functions that are compiled for the sizes of their arrays outside of `jit`: convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager, eager_plans
from tessera.errors import ShapeError
from tessera.graph.engine import installed
from tessera.runtime.dispatch import direct
from tests.counting import forget, names_of_compiled

RNG = np.random.default_rng(5)
SIZED: tuple[Any, ...] = (ts.conv_general, ts.convolve, ts.max_pool, ts.avg_pool)


def data(*shape: int) -> ts.Array:
    return ts.asarray(RNG.standard_normal(shape).astype(np.float32))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[eager.Eager]:
    """An engine that knows nothing yet."""
    found = eager.Eager()
    monkeypatch.setattr(direct, "WHOLE", [found.functions.call])
    for fn in SIZED:
        forget(fn)
    with installed(found):
        yield found
    for fn in SIZED:
        forget(fn)


def convolved(x: Any, w: Any) -> Any:
    return ts.conv_general(x, w, window_strides=[1, 1], padding=[(1, 1), (1, 1)])


def pooled(x: Any) -> Any:
    return ts.max_pool(ts.permute_dims(x, (0, 2, 3, 1)), (2, 2), (2, 2))


def loss(x: Any, w: Any) -> Any:
    return ts.sum(ts.tanh(pooled(convolved(x, w))) ** 2)


X, W = data(2, 8, 16, 14), data(6, 8, 3, 3)


@pytest.mark.unchecked
def test_each_size_has_a_program(engine: eager.Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    for x in (X, data(1, 8, 20, 20), X, X, X):
        convolved(x, W)
    assert names == ["conv_general", "conv_general"]


def test_arrays_may_be_given_by_name(engine: eager.Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_compiled(monkeypatch)
    found = [ts.conv_general(lhs=X, rhs=W, window_strides=(1, 1), padding="SAME") for _ in "123"]
    assert names == ["conv_general"]
    for each in found:
        np.testing.assert_array_equal(np.asarray(each), np.asarray(convolved(X, W)))


def test_small_arrays_are_computed_op_by_op(
    engine: eager.Eager, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of_compiled(monkeypatch)
    x, w = data(1, 2, 6, 6), data(3, 2, 3, 3)
    found = convolved(x, w)
    assert "conv_general" not in names
    np.testing.assert_allclose(np.asarray(found), np.asarray(ts.jit(convolved)(x, w)), rtol=1e-5)


def test_programs_are_bounded(engine: eager.Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_plans, "MOST_PROGRAMS", 2)
    for n in (64, 65, 66, 64):
        x = data(n, 40)
        found = ts.avg_pool(ts.reshape(x, (1, n, 40, 1)), (1, 40), (1, 1))
        np.testing.assert_allclose(
            np.asarray(found).reshape(n), np.asarray(x).mean(1), rtol=1e-4, atol=1e-6
        )
        assert len(engine.functions.sized) <= 2


@pytest.mark.parametrize("which", [0, 1, (0, 1)])
def test_gradients_are_those_of_compiled_ones(engine: eager.Eager, which: Any) -> None:
    wanted = ts.jit(ts.grad(loss, argnums=which))(X, W)
    for _ in range(4):  # followed, then native
        found = ts.grad(loss, argnums=which)(X, W)
        for a, b in zip(ts.pytree.leaves(found), ts.pytree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def test_gradients_take_whole_convolutions(
    engine: eager.Eager, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of_compiled(monkeypatch)
    ts.grad(loss, argnums=(0, 1))(data(3, 8, 16, 14), W)
    # Of each of the two: the value, for a pool with what its derivative needs, and backward.
    assert names.count("call") == 5
    assert not {"windows", "dot_general"} & set(names)


def test_other_transforms(engine: eager.Eager) -> None:
    whole = np.asarray(convolved(X, W))
    each = ts.vmap(lambda x: convolved(x[None], W)[0])(X)
    np.testing.assert_allclose(np.asarray(each), whole, rtol=1e-5, atol=1e-5)
    _, tangent = ts.jvp(lambda x: convolved(x, W), (X,), (X,))
    np.testing.assert_allclose(np.asarray(tangent), whole, rtol=1e-5, atol=1e-5)

    def twice(x: Any) -> Any:
        return ts.sum(ts.grad(lambda y: loss(y, W))(x) ** 2)

    np.testing.assert_allclose(
        np.asarray(ts.grad(twice)(X)), np.asarray(ts.jit(ts.grad(twice))(X)), rtol=1e-4, atol=1e-4
    )


def test_what_is_compiled_sees_the_ops() -> None:
    for text in (ts.make_graph(convolved)(X, W), ts.jit(ts.grad(loss)).lower(X, W).graph):
        assert "graph.call" not in str(text)


def test_errors_are_those_of_the_function(engine: eager.Eager) -> None:
    wrong = data(6, 9, 3, 3)
    for fn in (convolved, ts.grad(loss)):
        with pytest.raises(ShapeError, match="the features of a group are those of"):
            fn(X, wrong)
