"""Mistakes with functions beyond the array API standard."""

from __future__ import annotations

import pytest

from tests.errors.message import expect


def test_features_that_do_not_fit() -> None:
    expect(
        """
        x, w = ts.ones((2, 3, 8, 8)), ts.ones((4, 8, 8, 3))
        ts.conv_general(x, w, (1, 1), "SAME")
        """,
        """
        ShapeError: conv_general: lhs is f32[2, 3, 8, 8] of 3 features, rhs is f32[4, 8, 8, 3] of 8
          at user.py:2
            2 | ts.conv_general(x, w, (1, 1), "SAME")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the features of a group are those of the window
          fix: name the dims, as in dimension_numbers=('NHWC', 'HWIO', 'NHWC')
        """,
    )


def test_padding_under_jit() -> None:
    expect(
        """
        @ts.jit
        def layer(x, w):
            return ts.conv_general(x, w, (1, 1), "FULL")

        layer(ts.ones((2, 3, 8, 8)), ts.ones((4, 3, 3, 3)))
        """,
        """
        OptionError: conv_general: padding='FULL'
          at user.py:3 in layer
            3 |     return ts.conv_general(x, w, (1, 1), "FULL")
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | layer(ts.ones((2, 3, 8, 8)), ts.ones((4, 3, 3, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: padding is 'SAME', 'SAME_LOWER', 'VALID', or a pair of ints for each dim
        """,
    )


def test_letters_of_two_lengths() -> None:
    expect(
        """
        ts.einsum("ij,jk->ik", ts.ones((2, 3)), ts.ones((4, 5)))
        """,
        """
        ShapeError: einsum: 'ij,jk->ik': operand 1 is f32[4, 5], with 4 for 'j', which is 3 before
          at user.py:1
            1 | ts.einsum("ij,jk->ik", ts.ones((2, 3)), ts.ones((4, 5)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: dims of one letter have equal lengths, or 1
        """,
    )


def test_updates_out_of_range() -> None:
    expect(
        """
        x = ts.zeros(4)
        x.at[ts.asarray([1, 7])].set(1.0)
        """,
        """
        IndexOutOfBoundsError: index: 7 is out of range for dim 0 of f32[4]
          at user.py:2
            2 | x.at[ts.asarray([1, 7])].set(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -4 <= index < 4
        """,
    )


def test_unknown_modes() -> None:
    expect(
        """
        x = ts.zeros(4)
        x.at[1].set(1.0, mode="wrap")
        """,
        """
        OptionError: at[...].set: mode='wrap'
          at user.py:2
            2 | x.at[1].set(1.0, mode="wrap")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is 'clip', 'drop', 'fill', 'promise_in_bounds' or 'raise'
        """,
    )


def test_numbers_of_other_rows() -> None:
    expect(
        """
        ts.segment_sum(ts.ones((4, 2)), ts.asarray([0, 1, 1]), 2)
        """,
        """
        ShapeError: segment_sum: data is f32[4, 2], segment_ids are i64[3]
          at user.py:1
            1 | ts.segment_sum(ts.ones((4, 2)), ts.asarray([0, 1, 1]), 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: there is one number for each row
        """,
    )


def test_numbers_that_are_not_known() -> None:
    expect(
        """
        @ts.jit
        def totals(x, ids):
            return ts.segment_sum(x, ids)

        totals(ts.ones(3), ts.asarray([0, 1, 1]))
        """,
        """
        ConcretizationError: `ts.segment_sum` of a traced value of type i64[3]
          at user.py:3 in totals
            3 |     return ts.segment_sum(x, ids)
              |            ^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | totals(ts.ones(3), ts.asarray([0, 1, 1]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `ids` of totals
          fix: give num_segments
        """,
    )


def test_more_than_there_are() -> None:
    expect(
        """
        ts.top_k(ts.ones((4, 2)), 3)
        """,
        """
        ShapeError: top_k: k=3 for dim 1 of f32[4, 2]
          at user.py:1
            1 | ts.top_k(ts.ones((4, 2)), 3)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: k is at least 0, and at most the number of elements
        """,
    )


def test_as_many_as_nobody_can_count() -> None:
    expect(
        """
        ts.top_k(ts.ones((4, 2)), 1.5)
        """,
        """
        DTypeError: top_k: k: got 1.5
          at user.py:1
            1 | ts.top_k(ts.ones((4, 2)), 1.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer, known when the program is traced
        """,
    )


def test_as_many_as_the_program_finds_out() -> None:
    expect(
        """
        @ts.jit
        def best(x, k):
            return ts.top_k(x, k)
        best(ts.ones((4, 2)), 1)
        """,
        """
        ConcretizationError: use of a traced value of type i64[] as a Python integer
          at user.py:3 in best
            3 |     return ts.top_k(x, k)
              |            ^^^^^^^^^^^^^^
          called from user.py:4
            4 | best(ts.ones((4, 2)), 1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `k` of best
          fix: make it a static argument; or loop with `ts.fori_loop`, and take elements of arrays with it
        """,  # noqa: E501
    )


@pytest.mark.parametrize(
    ("call", "what", "rule"),
    [
        ("ts.argmax(ts.ones((4, 0)), axis=1)", "ShapeError: argmax: dim 1 of f32[4, 0] is empty",
         "an empty axis has no extremum"),
        ("ts.sort(ts.ones((4, 2)), axis=2)",
         "AxisError: sort: axis 2 is out of range for an array of rank 2", "-2 <= axis < 2"),
        ("ts.argsort(ts.ones((4, 2)), axis=None)", "AxisError: argsort: axis is None",
         "axis is an int"),
        ("ts.max_pool(ts.ones((1, 8, 8, 3)), (3,))", "ShapeError: max_pool: window_shape is (3,)",
         "it has 2 ints, each 1 or more"),
        ("ts.conv_general(ts.ones((1, 4, 8)), ts.ones((5, 2, 3)), (1,), 'SAME', "
         "feature_group_count=2)",
         "ShapeError: conv_general: lhs is f32[1, 4, 8], rhs is f32[5, 2, 3]: 5 features of the "
         "result in 2 groups", "the number of groups divides the number of features of the result"),
        ("ts.conv_general(ts.ones((1, 4, 8)), ts.ones((6, 2, 3)), (1,), 'SAME', "
         "feature_group_count=2.0)",
         "DTypeError: conv_general: feature_group_count: got 2.0",
         "it is an integer, known when the program is traced"),
    ],
)  # fmt: skip
def test_one_line(call: str, what: str, rule: str) -> None:
    """Each is one error, at the call."""
    expect(
        call,
        f"""
        {what}
          at user.py:1
            1 | {call}
              | {"^" * len(call)}
          rule: {rule}
        """,
    )


def test_widths_for_other_dims() -> None:
    expect(
        """
        ts.pad(ts.ones((4, 2)), ((1, 1), (2, 2), (0, 0)))
        """,
        """
        ShapeError: pad: pad_width=((1, 1), (2, 2), (0, 0)) for an array of rank 2
          at user.py:1
            1 | ts.pad(ts.ones((4, 2)), ((1, 1), (2, 2), (0, 0)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a number, a pair, or a pair for each dim
        """,
    )
