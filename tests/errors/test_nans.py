"""Where NaN comes from: `ts.debug.nans`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

import threading

import numpy as np
import pytest

import tessera as ts
from tests.errors.message import expect
from tests.fake_gpu import fake_gpu


def test_eager() -> None:
    expect(
        """
        x = ts.asarray([1.0, 0.0, -1.0])
        with ts.debug.nans():
            y = ts.log(x)
        """,
        """
        NonFiniteError: log: the result has NaN at [2], in the forward pass
          at user.py:3
            3 |     y = ts.log(x)
              |         ^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is [ 1.,  0., -1.], there -1.0
        """,
    )


def test_in_a_compiled_function() -> None:
    expect(
        """
        @ts.jit
        def loss(x, y):
            z = ts.sum(x) - 6
            return ts.mean(y * z / (x - x))

        with ts.debug.nans():
            loss(ts.asarray([1.0, 2.0, 3.0]), 2.0)
        """,
        """
        NonFiniteError: divide: the result has NaN at [0], and 2 more, in the forward pass
          at user.py:4 in loss
            4 |     return ts.mean(y * z / (x - x))
              |                    ^^^^^^^^^^^^^^^
          called from user.py:7
            7 |     loss(ts.asarray([1.0, 2.0, 3.0]), 2.0)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is [0., 0., 0.], there 0.0
          operand 1 is [0., 0., 0.], there 0.0
        """,
    )


@pytest.mark.parametrize("grad", ["ts.grad(f)", "ts.jit(ts.grad(f))", "ts.grad(ts.jit(f))"])
def test_in_the_backward_pass(grad: str) -> None:
    call = f"{grad}(ts.asarray([1.0, 0.0]))"
    expect(
        f"""
        def f(x):
            return ts.sum(ts.where(x > 0, ts.sqrt(x), 0))

        with ts.debug.nans():
            {call}
        """,
        f"""
        NonFiniteError: multiply: the result has NaN at [1], in the backward pass
          at user.py:2 in f
            2 |     return ts.sum(ts.where(x > 0, ts.sqrt(x), 0))
              |                                   ^^^^^^^^^^
          called from user.py:5
            5 |     {call}
              |     {"^" * len(call)}
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is [1., 0.], there 0.0
          operand 1 is [0.5, inf], there inf
          fix: choose the operand, not the result: `ts.sqrt(ts.where(x > 0, x, 1))`, as the derivative of what `ts.where` does not choose is computed all the same
        """,
    )


def test_in_a_loop() -> None:
    expect(
        """
        def step(i, v):
            return ts.log(v - 1)

        with ts.debug.nans():
            ts.fori_loop(0, 3, step, ts.asarray(3.0))
        """,
        """
        NonFiniteError: log: the result has NaN, in the forward pass
          at user.py:2 in step
            2 |     return ts.log(v - 1)
              |            ^^^^^^^^^^^^^
          called from user.py:5
            5 |     ts.fori_loop(0, 3, step, ts.asarray(3.0))
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is -0.30685282
        """,
    )


def test_in_the_backward_pass_of_a_scan() -> None:
    expect(
        """
        def step(c, x):
            return ts.sqrt(c) * x, None

        def f(c):
            return ts.scan(step, c, ts.ones(2))[0]

        with ts.debug.nans():
            ts.jit(ts.grad(lambda c: f(c * 0)))(1.0)
        """,
        """
        NonFiniteError: multiply: the result has NaN, in the backward pass
          at user.py:8 in <lambda>
            8 |     ts.jit(ts.grad(lambda c: f(c * 0)))(1.0)
              |                                ^^^^^
          called from user.py:8
            8 |     ts.jit(ts.grad(lambda c: f(c * 0)))(1.0)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is inf
          operand 1 is 0.
          fix: choose the operand, not the result: `ts.sqrt(ts.where(x > 0, x, 1))`, as the derivative of what `ts.where` does not choose is computed all the same
        """,
    )


@pytest.mark.parametrize("grad", ["ts.grad(f)", "ts.jit(ts.grad(f))"])
def test_in_a_backward_rule(grad: str) -> None:
    call = f"{grad}(2.0)"
    expect(
        f"""
        f = ts.custom_vjp(lambda x: x * x)

        def bwd(x, ct):
            return (ts.log(ct - 2) * x,)

        f.defvjp(lambda x: (f(x), x), bwd)
        with ts.debug.nans():
            {call}
        """,
        f"""
        NonFiniteError: log: the result has NaN, in the backward pass
          at user.py:4 in bwd
            4 |     return (ts.log(ct - 2) * x,)
              |             ^^^^^^^^^^^^^^
          called from user.py:8
            8 |     {call}
              |     {"^" * len(call)}
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is -1.
        """,
    )


def test_infinities() -> None:
    expect(
        """
        @ts.debug.nans(infs=True)
        def run(x):
            return ts.jit(lambda x: ts.exp(x) @ x)(x)

        run(ts.asarray([[1.0, 200.0], [2.0, 3.0]]))
        """,
        """
        NonFiniteError: exp: the result has Inf at [0, 1], in the forward pass
          at user.py:3 in <lambda>
            3 |     return ts.jit(lambda x: ts.exp(x) @ x)(x)
              |                             ^^^^^^^^^
          called from user.py:3 in run
            3 |     return ts.jit(lambda x: ts.exp(x) @ x)(x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | run(ts.asarray([[1.0, 200.0], [2.0, 3.0]]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN or Inf
          operand 0 is [[  1., 200.],
             [  2.,   3.]], there 200.0
        """,
    )


def test_given_nan() -> None:
    expect(
        """
        with ts.debug.nans():
            x = ts.asarray([1.0, ts.nan])
            ts.reshape(x, (2, 1)) + 1
        """,
        """
        NonFiniteError: add: the result has NaN at [1, 0], in the forward pass
          at user.py:3
            3 |     ts.reshape(x, (2, 1)) + 1
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is [[ 1.],
             [nan]], there nan; it has NaN already
          operand 1 is [[1.],
             [1.]], there 1.0
        """,
    )


def test_what_is_replaced_in_a_compiled_function_is_no_mistake() -> None:
    x = ts.asarray([1.0, -1.0])
    with ts.debug.nans():
        found = ts.jit(lambda x: ts.where(x > 0, ts.log(x), 0))(x)
    np.testing.assert_array_equal(found, [0.0, 0.0])


def test_it_ends_and_holds_for_its_thread() -> None:
    x = ts.asarray([-1.0, 4.0])
    found: list[bool] = []
    with ts.debug.nans():
        thread = threading.Thread(target=lambda: found.append(bool(ts.isnan(ts.log(x))[0])))
        thread.start()
        thread.join()
        with ts.debug.nans(), pytest.raises(FloatingPointError):
            ts.log(x)
        with pytest.raises(FloatingPointError):
            ts.log(x)
        assert ts.all(ts.isnan(x) == ts.asarray([False, False]))
        assert (ts.asarray([1, 2]) // 2).dtype is ts.int64
        assert ts.sum(ts.ones(2, dtype=ts.bfloat16)) == 2
    assert bool(ts.isnan(ts.log(x))[0])
    assert found == [True]


def test_callbacks_are_not_called_again() -> None:
    seen: list[float] = []

    @ts.jit
    def f(x):
        ts.debug.callback(lambda x: seen.append(float(x)), x)
        return ts.log(x)

    with ts.debug.nans(), pytest.raises(FloatingPointError, match="log"):
        f(-1.0)
    assert seen == [-1.0]


def test_on_a_gpu() -> None:
    with fake_gpu(), ts.device("cuda:0"):
        x = ts.asarray([1.0, -1.0])
        f = ts.jit(lambda x: ts.log(x) + 1)
        for _ in range(2):
            f(x)
        with ts.debug.nans():
            with pytest.raises(FloatingPointError, match=r"log: the result has NaN at \[1\]"):
                f(x)
            with pytest.raises(FloatingPointError, match=r"log: the result has NaN at \[1\]"):
                ts.log(x)
        f(x)


def test_a_call_later_than_the_one_that_was_traced() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return ts.log(x)

        f(ts.asarray(1.0))
        with ts.debug.nans():
            f(ts.asarray(2.0))
            f(ts.asarray(-1.0))
        """,
        """
        NonFiniteError: log: the result has NaN, in the forward pass
          at user.py:3 in f
            3 |     return ts.log(x)
              |            ^^^^^^^^^
          called from user.py:8
            8 |     f(ts.asarray(-1.0))
              |     ^^^^^^^^^^^^^^^^^^^
          rule: `ts.debug.nans()` is in force: no operation may give NaN
          operand 0 is -1.
        """,
    )
