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
          fix: or say how many examples there are: `axis_size=...`
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
          fix: give one axis or None for each argument: 2, not 3
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


def test_unknown_axis_name() -> None:
    expect(
        """
        def f(x):
            return x / ts.psum(x, "batch")

        ts.vmap(f, axis_name="i")(ts.ones(3))
        """,
        """
        AxisError: psum: the axis name 'batch' is unknown; the axes named here are 'i'
          at user.py:2 in f
            2 |     return x / ts.psum(x, "batch")
              |                ^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | ts.vmap(f, axis_name="i")(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a collective is over an axis that a `vmap` around it has named
          fix: name it: `ts.vmap(f, axis_name='batch')`
        """,
    )


def test_no_axis_name() -> None:
    expect(
        """
        ts.vmap(lambda x: ts.pmean(x, "i"))(ts.ones(3))
        """,
        """
        AxisError: pmean: the axis name 'i' is unknown; no axis is named here
          at user.py:1 in <lambda>
            1 | ts.vmap(lambda x: ts.pmean(x, "i"))(ts.ones(3))
              |                   ^^^^^^^^^^^^^^^^
          called from user.py:1
            1 | ts.vmap(lambda x: ts.pmean(x, "i"))(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a collective is over an axis that a `vmap` around it has named
          fix: name it: `ts.vmap(f, axis_name='i')`
        """,
    )


def test_axis_of_all_gather() -> None:
    expect(
        """
        ts.vmap(lambda x: ts.all_gather(x, "i", axis=2), axis_name="i")(ts.ones(3))
        """,
        """
        AxisError: all_gather: axis 2 is out of range for an array of rank 1
          at user.py:1 in <lambda>
            1 | ts.vmap(lambda x: ts.all_gather(x, "i", axis=2), axis_name="i")(ts.ones(3))
              |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:1
            1 | ts.vmap(lambda x: ts.all_gather(x, "i", axis=2), axis_name="i")(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -1 <= axis < 1
        """,
    )


def test_index_of_ppermute() -> None:
    expect(
        """
        ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 3)]), axis_name="i")(ts.ones(3))
        """,
        """
        CallError: ppermute: perm has the destination 3 for an axis of 3 examples
          at user.py:1 in <lambda>
            1 | ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 3)]), axis_name="i")(ts.ones(3))
              |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:1
            1 | ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 3)]), axis_name="i")(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: perm has pairs (source, destination); each index is a source at most once, and a destination at most once
        """,
    )


def test_axis_size_beside_arguments() -> None:
    expect(
        """
        ts.vmap(lambda x: x, axis_size=4)(ts.ones(3))
        """,
        """
        ShapeError: vmap: argument `x` of <lambda> has 3 examples, and axis_size is 4
          at user.py:1
            1 | ts.vmap(lambda x: x, axis_size=4)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the batch axes of all arguments have one size
        """,
    )


def test_missing_def_vmap() -> None:
    expect(
        """
        @ts.custom_batching.custom_vmap
        def f(x):
            return x

        ts.vmap(f)(ts.ones(3))
        """,
        """
        BatchingError: custom_vmap: f has no rule
          at user.py:5
            5 | ts.vmap(f)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a function under `custom_vmap` is called after its rule is defined
          fix: define it with `def_vmap`
        """,
    )


def test_result_of_a_batching_rule() -> None:
    expect(
        """
        @ts.custom_batching.custom_vmap
        def f(x):
            return ts.sum(x)

        @f.def_vmap
        def f_vmap(axis_size, in_batched, x):
            return ts.sum(x), True

        ts.vmap(f)(ts.ones((3, 2)))
        """,
        """
        ShapeError: custom_vmap: the result of the rule of f is f32[], and the result of f, with the batch in front, is f32[3]
          at user.py:9
            9 | ts.vmap(f)(ts.ones((3, 2)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a rule computes what the function does
        """,
    )


def test_flags_of_a_batching_rule() -> None:
    expect(
        """
        @ts.custom_batching.custom_vmap
        def f(x):
            return {"y": x}

        f.def_vmap(lambda axis_size, in_batched, x: ({"y": x}, in_batched))
        ts.vmap(f)(ts.ones((3, 2)))
        """,
        """
        PytreeError: custom_vmap: the rule of f says that [True] is batched, of a result that is {'y': *}
          at user.py:6
            6 | ts.vmap(f)(ts.ones((3, 2)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is True or False, or a container of them nested like the result, which may stop early
        """,
    )


def test_batched_value_from_outside() -> None:
    expect(
        """
        def g(k):
            @ts.custom_batching.custom_vmap
            def f(x):
                return k * x

            f.def_vmap(lambda axis_size, in_batched, x: (k * x, in_batched[0]))
            return f(2.0)

        ts.vmap(g)(ts.ones(3))
        """,
        """
        BatchingError: custom_vmap: f uses a value from outside, which is batched
          at user.py:7 in g
            7 |     return f(2.0)
              |            ^^^^^^
          called from user.py:9
            9 | ts.vmap(g)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a rule is told of its arguments
          fix: pass the value as an argument
        """,
    )


def test_pairs_of_ppermute() -> None:
    expect(
        """
        ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 1, 2)]), axis_name="i")(ts.ones(3))
        """,
        """
        CallError: ppermute: perm is [(0, 1, 2)]
          at user.py:1 in <lambda>
            1 | ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 1, 2)]), axis_name="i")(ts.ones(3))
              |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:1
            1 | ts.vmap(lambda x: ts.ppermute(x, "i", [(0, 1, 2)]), axis_name="i")(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: perm has pairs (source, destination) of ints
        """,
    )


def test_axis_name_that_is_no_name() -> None:
    expect(
        """
        ts.vmap(lambda x: x, axis_name=3)
        """,
        """
        OptionError: vmap: axis_name is 3
          at user.py:1
            1 | ts.vmap(lambda x: x, axis_name=3)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a name is a string
        """,
    )
