"""Mistakes with loops over slices, `switch`, `select`, `associative_scan` and `reduce`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_carried_shape() -> None:
    expect(
        """
        def step(c, x):
            return {"h": ts.concat([c["h"], c["h"]]), "n": c["n"]}, x

        ts.scan(step, {"h": ts.ones(2), "n": 0}, ts.ones(3))
        """,
        """
        ShapeError: scan: the carried value at `['h']` is f32[2] before a step and f32[4] after it
          at user.py:4
            4 | ts.scan(step, {"h": ts.ones(2), "n": 0}, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with an array of the final shape, and write into it: `x.at[i].set(...)`
        """,
    )


def test_carried_dtype() -> None:
    expect(
        """
        def step(c, x):
            return (c[0] + x, c[1]), c[0]

        @ts.jit
        def f(x):
            return ts.scan(step, (ts.asarray(1), x[0]), x)

        f(ts.ones(3))
        """,
        """
        DTypeError: scan: the carried value at `[0]` is i64[] before a step and f32[] after it
          at user.py:6 in f
            6 |     return ts.scan(step, (ts.asarray(1), x[0]), x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with f32[], or convert the result of step
        """,
    )


def test_carried_structure() -> None:
    expect(
        """
        ts.scan(lambda c, x: ((c, x), None), 0.0, ts.ones(3))
        """,
        """
        PytreeError: scan: the result of <lambda> and the carried value differ in structure; at carried: the result of <lambda> has a tuple, the carried value a leaf
          at user.py:1
            1 | ts.scan(lambda c, x: ((c, x), None), 0.0, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the result of <lambda>: (*, *)
          the carried value: *
        """,
    )


def test_a_step_that_returns_one_array() -> None:
    expect(
        """
        ts.scan(lambda c, x: c + x, 0.0, ts.ones(3))
        """,
        """
        PytreeError: scan: the result of <lambda> is one array, which is no pair
          at user.py:1
            1 | ts.scan(lambda c, x: c + x, 0.0, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a step returns a tuple of two: the next carried value, and a result or None
          fix: return `(carry, None)` where there is no result
        """,
    )


def test_slices_of_different_lengths() -> None:
    expect(
        """
        ts.scan(lambda c, x: (c, x), 0.0, {"a": ts.ones(3), "b": ts.ones((4, 2))})
        """,
        """
        ShapeError: scan: xs at `['b']` is f32[4, 2], but xs at `['a']` is f32[3]
          at user.py:1
            1 | ts.scan(lambda c, x: (c, x), 0.0, {"a": ts.ones(3), "b": ts.ones((4, 2))})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: all that is scanned has the same leading dim, the number of steps
        """,
    )


def test_a_length_that_xs_does_not_have() -> None:
    expect(
        """
        ts.scan(lambda c, x: (c, x), 0.0, (ts.ones(3), ts.ones(3)), length=4)
        """,
        """
        ShapeError: scan: xs at `[0]` is f32[3], but length is 4
          at user.py:1
            1 | ts.scan(lambda c, x: (c, x), 0.0, (ts.ones(3), ts.ones(3)), length=4)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: all that is scanned has the same leading dim, the number of steps
        """,
    )


def test_no_length() -> None:
    expect(
        """
        ts.scan(lambda c, _: (2 * c, None), 1.0)
        """,
        """
        CallError: scan: xs has no arrays, and there is no length
          at user.py:1
            1 | ts.scan(lambda c, _: (2 * c, None), 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the number of steps is the leading dim of xs, or `length`
          fix: say how many steps there are, as in `length=10`
        """,
    )


def test_a_negative_length() -> None:
    expect(
        """
        ts.scan(lambda c, _: (2 * c, None), 1.0, length=-1)
        """,
        """
        OptionError: scan: length is -1
          at user.py:1
            1 | ts.scan(lambda c, _: (2 * c, None), 1.0, length=-1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer >= 0
        """,
    )


def test_xs_without_dims() -> None:
    expect(
        """
        ts.scan(lambda c, x: (c, x), 0.0, (ts.ones(3), 2.0))
        """,
        """
        ShapeError: scan: xs at `[1]` is f32[]
          at user.py:1
            1 | ts.scan(lambda c, x: (c, x), 0.0, (ts.ones(3), 2.0))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what is scanned has a leading dim, along which it is cut into slices
        """,
    )


def test_no_steps_a_turn() -> None:
    expect(
        """
        ts.scan(lambda c, x: (c, x), 0.0, ts.ones(3), unroll=0)
        """,
        """
        OptionError: scan: unroll is 0
          at user.py:1
            1 | ts.scan(lambda c, x: (c, x), 0.0, ts.ones(3), unroll=0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a number of steps, at least 1, or True for all of them
        """,
    )


def test_a_traced_length() -> None:
    expect(
        """
        @ts.jit
        def f(n):
            return ts.scan(lambda c, _: (2 * c, None), 1.0, length=n)

        f(3)
        """,
        """
        ConcretizationError: `int()` of a traced value of type i64[]
          at user.py:3 in f
            3 |     return ts.scan(lambda c, _: (2 * c, None), 1.0, length=n)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(3)
              | ^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `n` of f
          fix: make it a static argument, or keep it an array
        """,
    )


def test_python_if_in_a_step() -> None:
    expect(
        """
        def step(c, x):
            if x > 0:
                c = c + x
            return c, c

        ts.scan(step, 0.0, ts.ones(3))
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:2 in step
            2 |     if x > 0:
              |        ^^^^^
          called from user.py:6
            6 | ts.scan(step, 0.0, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `scan` an array has a type but no value while the function is traced
          the value was computed at user.py:2:8 (greater)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_a_result_that_is_no_array() -> None:
    expect(
        """
        ts.scan(lambda c, x: (c, {"name": "x"}), 0.0, ts.ones(3))
        """,
        """
        LeafError: scan: `result[1]['name']` of <lambda> is of type str
          at user.py:1
            1 | ts.scan(lambda c, x: (c, {"name": "x"}), 0.0, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
        """,
    )


def test_unroll_of_an_unknown_number() -> None:
    expect(
        """
        ts.fori_loop(0, ts.asarray(3), lambda i, x: x + i, 0, unroll=2)
        """,
        """
        CallError: fori_loop: unroll is 2, but the limits are arrays
          at user.py:1
            1 | ts.fori_loop(0, ts.asarray(3), lambda i, x: x + i, 0, unroll=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a loop is unrolled where its number of steps is known
          fix: give the limits as Python numbers, or leave `unroll` out
        """,
    )


def test_what_a_known_loop_carries() -> None:
    expect(
        """
        ts.fori_loop(0, 3, lambda i, x: {"a": x["a"][:1]}, {"a": ts.ones(2)})
        """,
        """
        ShapeError: fori_loop: the carried value at `['a']` is f32[2] before a step and f32[1] after it
          at user.py:1
            1 | ts.fori_loop(0, 3, lambda i, x: {"a": x["a"][:1]}, {"a": ts.ones(2)})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with an array of the final shape, and write into it: `x.at[i].set(...)`
        """,
    )


def test_reverse_mode_of_an_unknown_number() -> None:
    expect(
        """
        def power(x, n):
            return ts.fori_loop(0, n, lambda i, y: y * x, 1.0)

        ts.grad(power)(2.0, ts.asarray(3))
        """,
        """
        NotDifferentiableError: while_loop cannot be differentiated in reverse mode
          at user.py:2 in power
            2 |     return ts.fori_loop(0, n, lambda i, y: y * x, 1.0)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | ts.grad(power)(2.0, ts.asarray(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: reverse mode would have to store an unknown number of steps
          fix: use forward mode (`ts.jvp`), or a loop with a known number of steps: `ts.scan`, or `ts.fori_loop` between Python numbers
        """,
    )


def test_switch_without_functions() -> None:
    expect(
        """
        ts.switch(0, [], 1.0)
        """,
        """
        CallError: switch: there are no functions
          at user.py:1
            1 | ts.switch(0, [], 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: one or more are given
        """,
    )


def test_switch_by_a_float() -> None:
    expect(
        """
        ts.switch(1.5, [ts.sin, ts.cos], 1.0)
        """,
        """
        DTypeError: switch: index is f32[]
          at user.py:1
            1 | ts.switch(1.5, [ts.sin, ts.cos], 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one integer
        """,
    )


def test_functions_of_a_switch_that_differ() -> None:
    expect(
        """
        def three(x):
            return ts.ones(3)

        ts.switch(1, [ts.sin, ts.cos, three], 1.0)
        """,
        """
        ShapeError: switch: sin returns f32[], three f32[3]
          at user.py:4
            4 | ts.switch(1, [ts.sin, ts.cos, three], 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: all functions return arrays of the same shapes and dtypes
        """,
    )


def test_select_of_different_shapes() -> None:
    expect(
        """
        ts.select(True, ts.ones(3), ts.ones(2))
        """,
        """
        ShapeError: select: on_true is f32[3], on_false f32[2]
          at user.py:1
            1 | ts.select(True, ts.ones(3), ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both have the same shape and dtype
          fix: use `ts.where`, which broadcasts and promotes
        """,
    )


def test_select_by_floats() -> None:
    expect(
        """
        ts.select(ts.ones(3), ts.ones(3), ts.ones(3))
        """,
        """
        DTypeError: select: pred is f32[3], but on_true is f32[3]
          at user.py:1
            1 | ts.select(ts.ones(3), ts.ones(3), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the predicate is bool, and has the shape of the others, or no dims
        """,
    )


def test_map_in_batches_of_nothing() -> None:
    expect(
        """
        ts.map(ts.sin, ts.ones(3), batch_size=0)
        """,
        """
        OptionError: map: batch_size is 0
          at user.py:1
            1 | ts.map(ts.sin, ts.ones(3), batch_size=0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a number of slices, at least 1
        """,
    )


def test_map_over_nothing() -> None:
    expect(
        """
        ts.map(lambda x: 1, None)
        """,
        """
        CallError: map: xs has no arrays
          at user.py:1
            1 | ts.map(lambda x: 1, None)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is cut along the leading axis
        """,
    )


def test_axis_of_associative_scan() -> None:
    expect(
        """
        ts.associative_scan(ts.add, ts.ones(3), axis=1)
        """,
        """
        AxisError: associative_scan: axis 1 of elems, which is f32[3]
          at user.py:1
            1 | ts.associative_scan(ts.add, ts.ones(3), axis=1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an axis of this array is one of -1 to 0
        """,
    )


def test_sizes_of_associative_scan() -> None:
    expect(
        """
        ts.associative_scan(lambda a, b: a, (ts.ones(3), ts.ones(4)))
        """,
        """
        ShapeError: associative_scan: elems at `[1]` is f32[4], with a size of 4 along axis 0
          at user.py:1
            1 | ts.associative_scan(lambda a, b: a, (ts.ones(3), ts.ones(4)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: all have the same known size along the axis; the first has 3
        """,
    )


def test_combined_shape() -> None:
    expect(
        """
        ts.associative_scan(lambda a, b: ts.sum(a), ts.ones(3))
        """,
        """
        ShapeError: associative_scan: the result of <lambda> is f32[] for operands of type f32[1]
          at user.py:1
            1 | ts.associative_scan(lambda a, b: ts.sum(a), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it has the shape and the dtype of what it combines
        """,
    )


def test_initial_value_of_reduce() -> None:
    expect(
        """
        ts.reduce(ts.ones(3), ts.asarray(0), ts.add, (0,))
        """,
        """
        DTypeError: reduce: init_values is i64[] for an operand of type f32[3]
          at user.py:1
            1 | ts.reduce(ts.ones(3), ts.asarray(0), ts.add, (0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an initial value is a scalar of the dtype of its operand
        """,
    )


def test_reduce_along_an_axis_twice() -> None:
    expect(
        """
        ts.reduce(ts.ones(3), 0.0, ts.add, (0, 0))
        """,
        """
        AxisError: reduce: dimensions (0, 0) name an axis twice
          at user.py:1
            1 | ts.reduce(ts.ones(3), 0.0, ts.add, (0, 0))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an axis is combined once
        """,
    )


def test_combined_dtype() -> None:
    expect(
        """
        ts.reduce(ts.ones(3), 0.0, lambda a, b: a > b, (0,))
        """,
        """
        DTypeError: reduce: the result of <lambda> is bool[] for operands of type f32[]
          at user.py:1
            1 | ts.reduce(ts.ones(3), 0.0, lambda a, b: a > b, (0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it has the shape and the dtype of what it combines
        """,
    )
