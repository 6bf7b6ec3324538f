"""Mistakes with `ts.io_callback` and `ts.pure_callback`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_another_shape() -> None:
    expect(
        """
        def load():
            return [1.0, 2.0, 3.0]

        @ts.jit
        def step(x):
            return x + ts.io_callback(load, [x])[0]

        step(ts.ones(2))
        """,
        """
        PytreeError: io_callback of load: the result and `result_shape_dtypes` differ in structure; at result: the result has length 3, `result_shape_dtypes` 1
          at user.py:6 in step
            6 |     return x + ts.io_callback(load, [x])[0]
              |                ^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 | step(ts.ones(2))
              | ^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the result: [*, *, *]
          `result_shape_dtypes`: [*]
        """,
    )


def test_another_dtype() -> None:
    expect(
        """
        import numpy as np

        @ts.jit
        def f(x):
            return ts.pure_callback(lambda x: {"y": np.float64(x)}, {"y": x}, x)

        f(ts.ones(2))
        """,
        """
        DTypeError: pure_callback of <lambda>: `result['y']` is float64[2], not float32[2]
          at user.py:5 in f
            5 |     return ts.pure_callback(lambda x: {"y": np.float64(x)}, {"y": x}, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | f(ts.ones(2))
              | ^^^^^^^^^^^^^
          rule: a host function gives what it was said to give
          fix: convert it, by `.astype("float32")`, or change what it is said to give
        """,
    )


def test_another_shape_for_one_example() -> None:
    expect(
        """
        import numpy as np

        def f(x):
            return ts.io_callback(lambda x: np.ones(3, np.float32), x, x)

        ts.jit(ts.vmap(f))(ts.ones((4, 2)))
        """,
        """
        ShapeError: io_callback of <lambda>: the result is float32[3], not float32[2]
          at user.py:4 in f
            4 |     return ts.io_callback(lambda x: np.ones(3, np.float32), x, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:6
            6 | ts.jit(ts.vmap(f))(ts.ones((4, 2)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a host function gives what it was said to give
          fix: change what it returns, or what it is said to give
        """,
    )


def test_something_in_the_place_of_nothing() -> None:
    expect(
        """
        seen = []
        ts.io_callback(lambda x: x, None, ts.ones(2))
        """,
        """
        PytreeError: io_callback of <lambda>: the function returns something, and `result_shape_dtypes` has no arrays
          at user.py:2
            2 | ts.io_callback(lambda x: x, None, ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a host function gives what it was said to give
          fix: return None, or say what it returns
        """,
    )


def test_no_array() -> None:
    expect(
        """
        ts.io_callback(lambda x: "text", ts.ones(2), ts.ones(2))
        """,
        """
        LeafError: io_callback of <lambda>: the function returns an object of type str
          at user.py:1
            1 | ts.io_callback(lambda x: "text", ts.ones(2), ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it returns arrays and numbers
        """,
    )


def test_no_type() -> None:
    expect(
        """
        ts.pure_callback(lambda x: x, "f32[2]", ts.ones(2))
        """,
        """
        LeafError: pure_callback: result_shape_dtypes is of type str
          at user.py:1
            1 | ts.pure_callback(lambda x: x, "f32[2]", ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
        """,
    )


def test_no_function() -> None:
    expect(
        """
        ts.pure_callback(3.0, ts.ones(2), ts.ones(2))
        """,
        """
        CallError: pure_callback: got a value of type float, which is no function
          at user.py:1
            1 | ts.pure_callback(3.0, ts.ones(2), ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `pure_callback` takes a function of arrays
          fix: pass its arguments after the types of its results
        """,
    )


def test_no_method() -> None:
    expect(
        """
        ts.pure_callback(lambda x: x, ts.ones(2), ts.ones(2), vmap_method="legacy")
        """,
        """
        OptionError: pure_callback: vmap_method is 'legacy'
          at user.py:1
            1 | ts.pure_callback(lambda x: x, ts.ones(2), ts.ones(2), vmap_method="legacy")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one of 'sequential', 'expand_dims', 'broadcast_all'
        """,
    )


def test_no_derivative() -> None:
    expect(
        """
        import numpy as np

        @ts.jit
        def loss(x):
            y = ts.pure_callback(np.cbrt, x, x)
            return ts.sum(y)

        ts.grad(loss)(ts.ones(2))
        """,
        """
        NotDifferentiableError: pure_callback of cbrt: its results have no derivative
          at user.py:5 in loss
            5 |     y = ts.pure_callback(np.cbrt, x, x)
              |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 | ts.grad(loss)(ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what Python computes is not traced, so nothing is known of how it depends on its arguments
          fix: give the function that calls it a rule, by `ts.custom_jvp` or `ts.custom_vjp`; or pass it `ts.stop_gradient(x)`
        """,
    )
