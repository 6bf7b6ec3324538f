"""Mistakes with `cond`, `while_loop` and `fori_loop`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_pred_is_a_number() -> None:
    expect(
        """
        ts.cond(ts.asarray(1.0), lambda x: x, lambda x: -x, 2.0)
        """,
        """
        DTypeError: cond: pred is f32[]
          at user.py:1
            1 | ts.cond(ts.asarray(1.0), lambda x: x, lambda x: -x, 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one bool: a bool array without dims
          fix: compare it, as in `x != 0`
        """,
    )


def test_pred_of_several() -> None:
    expect(
        """
        ts.cond(ts.ones(3) > 0, lambda: 1, lambda: 2)
        """,
        """
        ShapeError: cond: pred is bool[3]
          at user.py:1
            1 | ts.cond(ts.ones(3) > 0, lambda: 1, lambda: 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one bool: a bool array without dims
          fix: combine it with `ts.all` or `ts.any`
        """,
    )


def test_branches_of_different_structure() -> None:
    expect(
        """
        def both(x):
            return x, x

        def one(x):
            return x

        ts.cond(True, both, one, 1.0)
        """,
        """
        PytreeError: cond: the result of both and the result of one differ in structure; at result: the result of both has a tuple, the result of one a leaf
          at user.py:7
            7 | ts.cond(True, both, one, 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the result of both: (*, *)
          the result of one: *
        """,
    )


def test_branches_of_different_shape() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return ts.cond(x[0] > 0, ts.sum, ts.exp, x)

        f(ts.ones(3))
        """,
        """
        ShapeError: cond: sum returns f32[], exp f32[3]
          at user.py:3 in f
            3 |     return ts.cond(x[0] > 0, ts.sum, ts.exp, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: both functions return arrays of the same shapes and dtypes
        """,
    )


def test_branches_of_different_dtype() -> None:
    expect(
        """
        ts.cond(True, lambda: 2.5, lambda: ts.asarray(2))
        """,
        """
        DTypeError: cond: true_fn returns f32[], false_fn i64[]
          at user.py:1
            1 | ts.cond(True, lambda: 2.5, lambda: ts.asarray(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both functions return arrays of the same shapes and dtypes
        """,
    )


def test_carried_structure() -> None:
    expect(
        """
        ts.while_loop(lambda c: c["x"] < 3, lambda c: {"x": c["x"] + 1, "n": 1}, {"x": 0.0})
        """,
        """
        PytreeError: while_loop: the result of <lambda> and the carried value differ in structure; at carried: only the result of <lambda> has 'n'
          at user.py:1
            1 | ts.while_loop(lambda c: c["x"] < 3, lambda c: {"x": c["x"] + 1, "n": 1}, {"x": 0.0})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the result of <lambda>: {'n': *, 'x': *}
          the carried value: {'x': *}
        """,
    )


def test_carried_shape() -> None:
    expect(
        """
        def grow(x):
            return ts.concat([x, x])

        ts.while_loop(lambda x: ts.sum(x) < 3, grow, ts.ones(2))
        """,
        """
        ShapeError: while_loop: the carried value is f32[2] before a step and f32[4] after it
          at user.py:4
            4 | ts.while_loop(lambda x: ts.sum(x) < 3, grow, ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with an array of the final shape, and write into it: `x.at[i].set(...)`
        """,
    )


def test_carried_dtype() -> None:
    expect(
        """
        @ts.jit
        def f(n):
            return ts.fori_loop(0, n, lambda i, total: total + 0.5 * i, ts.asarray(0))

        f(3)
        """,
        """
        DTypeError: fori_loop: the carried value is i64[] before a step and f32[] after it
          at user.py:3 in f
            3 |     return ts.fori_loop(0, n, lambda i, total: total + 0.5 * i, ts.asarray(0))
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(3)
              | ^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with f32[], or convert the result of <lambda>
        """,
    )


def test_condition_is_no_bool() -> None:
    expect(
        """
        ts.while_loop(lambda x: x - 3, lambda x: x + 1, 0.0)
        """,
        """
        DTypeError: while_loop: the result of <lambda> is f32[]
          at user.py:1
            1 | ts.while_loop(lambda x: x - 3, lambda x: x + 1, 0.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one bool: a bool array without dims
          fix: compare it, as in `x != 0`
        """,
    )


def test_limit_is_a_float() -> None:
    expect(
        """
        ts.fori_loop(0, 2.5, lambda i, x: x, 1.0)
        """,
        """
        DTypeError: fori_loop: upper is f32[]
          at user.py:1
            1 | ts.fori_loop(0, 2.5, lambda i, x: x, 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: limits are integers
        """,
    )


def test_reverse_mode() -> None:
    expect(
        """
        def f(x):
            return ts.while_loop(lambda x: x < 10, lambda x: x * x, x)

        ts.grad(f)(2.0)
        """,
        """
        NotDifferentiableError: while_loop cannot be differentiated in reverse mode
          at user.py:2 in f
            2 |     return ts.while_loop(lambda x: x < 10, lambda x: x * x, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | ts.grad(f)(2.0)
              | ^^^^^^^^^^^^^^^
          rule: reverse mode would have to store an unknown number of steps
          fix: use forward mode (`ts.jvp`), or a loop with a known number of steps: `ts.scan`, or `ts.fori_loop` between Python numbers
        """,
    )


def test_python_if_in_a_body() -> None:
    expect(
        """
        def step(x):
            return x + 1 if x < 5 else x

        ts.while_loop(lambda x: x < 9, step, 0)
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:2 in step
            2 |     return x + 1 if x < 5 else x
              |                     ^^^^^
          called from user.py:4
            4 | ts.while_loop(lambda x: x < 9, step, 0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `while_loop` an array has a type but no value while the function is traced
          the value was computed at user.py:2:21 (less)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_no_function() -> None:
    expect(
        """
        ts.cond(True, 1, 2)
        """,
        """
        CallError: cond: got a value of type int, which is no function
          at user.py:1
            1 | ts.cond(True, 1, 2)
              | ^^^^^^^^^^^^^^^^^^^
          rule: `cond` takes a function of arrays
          fix: make a function of it, such as `lambda: value`
        """,
    )
