"""Indices out of range, known as a program runs: `mode="raise"`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import IndexOutOfBoundsError
from tests.errors.message import expect
from tests.fake_gpu import fake_gpu


def test_take() -> None:
    expect(
        """
        @ts.jit
        def f(x, i):
            y = ts.sin(x)
            return ts.take(y, i, mode="raise")

        x = ts.arange(5.0)
        f(x, ts.asarray([[1, -5], [4, 2]]))
        f(x, ts.asarray([[1, -5], [7, 2]]))
        """,
        """
        IndexOutOfBoundsError: index: 7, element [1, 0] of the indices, is out of range for dim 0 of f32[5]
          at user.py:4 in f
            4 |     return ts.take(y, i, mode="raise")
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 | f(x, ts.asarray([[1, -5], [7, 2]]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -5 <= index < 5, as `mode='raise'` asks
        """,
    )


def test_update_in_a_loop() -> None:
    expect(
        """
        def step(k, x):
            return x.at[1, k].set(1.0, mode="raise")

        ts.jit(lambda x: ts.fori_loop(0, 7, step, x))(ts.zeros((2, 3)))
        """,
        """
        IndexOutOfBoundsError: index: 3 is out of range for dim 1 of f32[2, 3]
          at user.py:2 in step
            2 |     return x.at[1, k].set(1.0, mode="raise")
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4 in <lambda>
            4 | ts.jit(lambda x: ts.fori_loop(0, 7, step, x))(ts.zeros((2, 3)))
              |                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | ts.jit(lambda x: ts.fori_loop(0, 7, step, x))(ts.zeros((2, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -3 <= index < 3, as `mode='raise'` asks
        """,
    )


def test_an_index_that_is_known() -> None:
    expect(
        """
        ts.arange(5).at[7].get(mode="raise")
        """,
        """
        IndexOutOfBoundsError: index: 7 is out of range for dim 0 of i64[5]
          at user.py:1
            1 | ts.arange(5).at[7].get(mode="raise")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -5 <= index < 5
        """,
    )


def test_a_mode_that_is_none() -> None:
    expect(
        """
        ts.arange(5).at[7].get(mode="wrap")
        """,
        """
        OptionError: at[...].get: mode='wrap'
          at user.py:1
            1 | ts.arange(5).at[7].get(mode="wrap")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is 'clip', 'drop', 'fill', 'promise_in_bounds' or 'raise'
        """,
    )


X = np.arange(12.0, dtype=np.float32).reshape(4, 3)

ACCESSES: list[Callable[[Any, Any], Any]] = [
    lambda x, i: ts.take(x, i, axis=0, mode="raise"),
    lambda x, i: ts.take_along_axis(x, i[:, None], axis=0, mode="raise"),
    lambda x, i: x.at[i].get(mode="raise"),
    lambda x, i: x.at[i, 1:].add(1.0, mode="raise"),
    lambda x, i: x.at[1, i - 1].set(5.0, mode="raise"),
    lambda x, i: x.at[i[0]].multiply(2.0, mode="raise"),
    lambda x, i: x.at[i].apply(ts.sin, mode="raise"),
]


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
def test_in_range_it_is_as_without(access: Callable[[Any, Any], Any], dtype: str) -> None:
    x, i = ts.asarray(X), ts.asarray([1, 3, 1], dtype=getattr(ts, dtype))
    with ts.config.update(verify=True):
        found = ts.jit(access)(x, i)
    np.testing.assert_array_equal(found, access(x, i))
    with pytest.raises(IndexOutOfBoundsError, match=r"index: [89]"):
        ts.jit(access)(x, i + 9 - i)


def raising(i: Any) -> Any:
    return ts.asarray(X).at[i].get(mode="raise")


def test_under_transforms() -> None:
    i = ts.asarray([0, -4, 3])
    np.testing.assert_array_equal(ts.jit(ts.vmap(raising))(i), X[np.asarray(i)])
    with pytest.raises(IndexOutOfBoundsError, match="index: -5 is out of range"):
        ts.jit(ts.vmap(raising))(i - 1)
    with pytest.raises(IndexOutOfBoundsError, match="index: -5 is out of range"):
        ts.vmap(raising)(i - 1)

    def loss(x: Any, i: Any) -> Any:
        return ts.sum(x.at[i].get(mode="raise") ** 2)

    wanted = np.zeros_like(X)
    wanted[[0, 3]] = 2 * X[[0, 3]]
    x = ts.asarray(X)
    np.testing.assert_array_equal(ts.jit(ts.grad(loss))(x, ts.asarray([0, 3])), wanted)
    for grad in (ts.jit(ts.grad(loss)), ts.grad(ts.jit(loss))):
        with pytest.raises(IndexOutOfBoundsError, match=r"index: 4, element \[1\] of"):
            grad(x, ts.asarray([0, 4]))


def test_nobody_uses_what_is_read() -> None:
    def f(i: Any) -> Any:
        raising(i)
        return i

    assert int(ts.jit(f)(2)) == 2
    with pytest.raises(IndexOutOfBoundsError):
        ts.jit(f)(4)


def test_on_a_gpu() -> None:
    with fake_gpu(), ts.device("cuda:0"):
        x, i = ts.asarray(X), ts.asarray([1, 3])
        f = ts.jit(lambda x, i: x.at[i].add(1.0, mode="raise"))
        np.testing.assert_array_equal(f(x, i)[1], X[1] + 1)
        with pytest.raises(IndexOutOfBoundsError, match=r"index: 4, element \[1\]"):
            f(x, i + 1)
        with pytest.raises(IndexOutOfBoundsError, match=r"index: 4, element \[1\]"):
            x.at[i + 1].get(mode="raise")
