"""Mistakes with functions beyond the array API standard."""

from __future__ import annotations

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
