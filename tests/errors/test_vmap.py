"""Mistakes with `vmap`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_sizes_differ() -> None:
    expect(
        """
        def f(params, x):
            return params["w"] @ x

        ts.vmap(f)({"w": ts.ones((4, 2, 2))}, ts.ones((3, 2)))
        """,
        """
        ShapeError: vmap: argument `x` of f has 3 examples, but argument `params['w']` of f has 4
          at user.py:4
            4 | ts.vmap(f)({"w": ts.ones((4, 2, 2))}, ts.ones((3, 2)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the batch axes of all arguments have one size
          they are f32[3, 2] along axis 0 and f32[4, 2, 2] along axis 0
          fix: check in_axes; use None for arguments that are not batched
        """,
    )


def test_axis_out_of_range() -> None:
    expect(
        """
        ts.vmap(lambda x, y: x + y, in_axes=(0, 1))(ts.ones(3), ts.ones(3))
        """,
        """
        AxisError: vmap: argument `y` of <lambda> is f32[3], and its in_axes is 1
          at user.py:1
            1 | ts.vmap(lambda x, y: x + y, in_axes=(0, 1))(ts.ones(3), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an axis of an array of rank 1 lies in [-1, 1)
          fix: use None for arguments that are not batched
        """,
    )


def test_number_is_batched() -> None:
    expect(
        """
        ts.vmap(lambda x, y: x * y)(ts.ones(3), 2.0)
        """,
        """
        AxisError: vmap: argument `y` of <lambda> is f32[], and its in_axes is 0
          at user.py:1
            1 | ts.vmap(lambda x, y: x * y)(ts.ones(3), 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an array without dims has no axes
          fix: use None for arguments that are not batched
        """,
    )


def test_nothing_batched() -> None:
    expect(
        """
        ts.vmap(lambda x: x, in_axes=None)(ts.ones(3))
        """,
        """
        ShapeError: vmap: no argument of <lambda> is batched
          at user.py:1
            1 | ts.vmap(lambda x: x, in_axes=None)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: at least one entry of in_axes is an int, and belongs to an array
        """,
    )


def test_in_axes_structure() -> None:
    expect(
        """
        ts.vmap(lambda x, y: x + y, in_axes=(0, 0, 0))(ts.ones(3), ts.ones(3))
        """,
        """
        PytreeError: vmap: in_axes is (0, 0, 0), but the arguments are (*, *)
          at user.py:1
            1 | ts.vmap(lambda x, y: x + y, in_axes=(0, 0, 0))(ts.ones(3), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: in_axes is an int, None, or containers of them nested like the arguments, which may stop early
        """,
    )


def test_in_axes_is_no_axis() -> None:
    expect(
        """
        ts.vmap(lambda x: x, in_axes=("batch",))(ts.ones(3))
        """,
        """
        PytreeError: vmap: in_axes has 'batch'
          at user.py:1
            1 | ts.vmap(lambda x: x, in_axes=("batch",))(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: entries of in_axes are ints or None
        """,
    )


def test_out_axes_none() -> None:
    expect(
        """
        ts.vmap(lambda x: {"y": 2 * x}, out_axes=None)(ts.ones(3))
        """,
        """
        ShapeError: vmap: `result['y']` of <lambda> depends on the example, and its out_axes is None
          at user.py:1
            1 | ts.vmap(lambda x: {"y": 2 * x}, out_axes=None)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: out_axes=None is for results that are the same for all examples
          fix: give the axis for the batch, as in out_axes=0
        """,
    )


def test_out_axes_out_of_range() -> None:
    expect(
        """
        ts.vmap(lambda x: 2 * x, out_axes=1)(ts.ones(3))
        """,
        """
        AxisError: vmap: the result of <lambda> has rank 1 with the batch, and its out_axes is 1
          at user.py:1
            1 | ts.vmap(lambda x: 2 * x, out_axes=1)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an axis of an array of rank 1 lies in [-1, 1)
        """,
    )


def test_shapes_inside() -> None:
    expect(
        """
        def f(x, y):
            return x + y

        ts.vmap(f)(ts.ones((5, 2)), ts.ones((5, 3)))
        """,
        """
        ShapeError: add: got f32[2] and f32[3], which differ in dim -1: 2 and 3
          at user.py:2 in f
            2 |     return x + y
              |            ^^^^^
          called from user.py:4
            4 | ts.vmap(f)(ts.ones((5, 2)), ts.ones((5, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: counted from the last, dims are equal, or one of them is 1 or missing
          fix: insert dims of length 1 where one is missing, as in `x[:, None]`
        """,
    )


def test_no_function() -> None:
    expect(
        """
        ts.vmap(3)
        """,
        """
        CallError: vmap: got a value of type int, which is no function
          at user.py:1
            1 | ts.vmap(3)
              | ^^^^^^^^^^
          rule: `vmap` takes a function of arrays
          fix: pass arguments to what it returns: `ts.vmap(f)(x)`
        """,
    )
