"""Mistakes with arrays: shapes, dtypes, axes, indices, attempts to change them."""

from __future__ import annotations

from tests.errors.message import expect


def test_shapes_do_not_broadcast() -> None:
    expect(
        """
        x, y = ts.ones((3, 4)), ts.ones((3, 5))

        def f(x, y):
            return 2 * (x + y)

        f(x, y)
        """,
        """
        ShapeError: add: got f32[3, 4] and f32[3, 5], which differ in dim -1: 4 and 5
          at user.py:4 in f
            4 |     return 2 * (x + y)
              |                 ^^^^^
          called from user.py:6
            6 | f(x, y)
              | ^^^^^^^
          rule: counted from the last, dims are equal, or one of them is 1 or missing
          fix: insert dims of length 1 where one is missing, as in `x[:, None]`
        """,
    )


def test_shapes_do_not_broadcast_under_jit() -> None:
    expect(
        """
        @ts.jit
        def f(x, y):
            return x * 2 + y

        f(ts.ones(3), ts.ones(4))
        """,
        """
        ShapeError: add: got f32[3] and f32[4], which differ in dim -1: 3 and 4
          at user.py:3 in f
            3 |     return x * 2 + y
              |            ^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(3), ts.ones(4))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: counted from the last, dims are equal, or one of them is 1 or missing
          fix: insert dims of length 1 where one is missing, as in `x[:, None]`
        """,
    )


def test_matmul() -> None:
    expect(
        """
        ts.ones((2, 3)) @ ts.ones((4, 5))
        """,
        """
        ShapeError: matmul: x1 is f32[2, 3], x2 is f32[4, 5]; dim 1 of x1 is 3, but dim 0 of x2 is 4
          at user.py:1
            1 | ts.ones((2, 3)) @ ts.ones((4, 5))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the dims that are summed over have equal lengths
        """,
    )


def test_concat_shapes() -> None:
    expect(
        """
        ts.concat([ts.ones((2, 3)), ts.ones((2, 4))], axis=0)
        """,
        """
        ShapeError: concat: array 0 is f32[2, 3], but array 1 is f32[2, 4]
          at user.py:1
            1 | ts.concat([ts.ones((2, 3)), ts.ones((2, 4))], axis=0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: joined arrays have equal dims except along axis 0
        """,
    )


def test_reshape() -> None:
    expect(
        """
        ts.reshape(ts.ones((2, 3)), (4, 2))
        """,
        """
        ShapeError: reshape: f32[2, 3] has 6 elements, which do not make the shape [4, 2]
          at user.py:1
            1 | ts.reshape(ts.ones((2, 3)), (4, 2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: reshaping keeps the number of elements; one dim may be -1, for what is left
        """,
    )


def test_dtypes_do_not_combine() -> None:
    expect(
        """
        x = ts.ones(2, dtype=ts.uint64)
        y = ts.ones(2, dtype=ts.int32)
        x + y
        """,
        """
        DTypeError: add: got u64[2] and i32[2]; uint64 and int32 do not combine
          at user.py:3
            3 | x + y
              | ^^^^^
          rule: no integer type holds all values of uint64 and of a signed integer
          fix: cast one operand first, e.g. x.astype(ts.int64)
        """,
    )


def test_number_does_not_fit() -> None:
    expect(
        """
        ts.ones(2, dtype=ts.int8) + 1000
        """,
        """
        DTypeError: add: got i8[2] and the number 1000; the number 1000 does not fit into int8
          at user.py:1
            1 | ts.ones(2, dtype=ts.int8) + 1000
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a Python number takes the dtype of the array beside it; int8 holds -128 to 127
          fix: cast the array to a wider type first
        """,
    )


def test_value_does_not_fit() -> None:
    expect(
        """
        ts.full((2, 3), 300, dtype=ts.int8)
        """,
        """
        NumberRangeError: full: a number does not fit into int8
          at user.py:1
            1 | ts.full((2, 3), 300, dtype=ts.int8)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: int8 holds -128 to 127
          fix: give a wider dtype
        """,
    )


def test_axis_out_of_range() -> None:
    expect(
        """
        ts.sum(ts.ones((2, 3)), axis=2)
        """,
        """
        AxisError: sum: axis 2 is out of range for an array of rank 2
          at user.py:1
            1 | ts.sum(ts.ones((2, 3)), axis=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -2 <= axis < 2
        """,
    )


def test_axis_named_twice() -> None:
    expect(
        """
        ts.sum(ts.ones((2, 3)), axis=(0, -2))
        """,
        """
        AxisError: sum: axis=(0, -2) names an axis twice
          at user.py:1
            1 | ts.sum(ts.ones((2, 3)), axis=(0, -2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: axes are distinct
        """,
    )


def test_permutation() -> None:
    expect(
        """
        ts.permute_dims(ts.ones((2, 3)), (0, 0))
        """,
        """
        AxisError: permute_dims: axes=(0, 0) names an axis twice
          at user.py:1
            1 | ts.permute_dims(ts.ones((2, 3)), (0, 0))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: axes are distinct
        """,
    )


def test_index_out_of_range() -> None:
    expect(
        """
        x = ts.ones((2, 3))
        x[0, 3]
        """,
        """
        IndexOutOfBoundsError: index: 3 is out of range for dim 1 of f32[2, 3]
          at user.py:2
            2 | x[0, 3]
              | ^^^^^^^
          rule: -3 <= index < 3
        """,
    )


def test_too_many_indices() -> None:
    expect(
        """
        ts.ones((2, 3))[0, 0, 0]
        """,
        """
        IndexOutOfBoundsError: index: 3 indices for f32[2, 3]
          at user.py:1
            1 | ts.ones((2, 3))[0, 0, 0]
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an array takes at most one index for each dim, here 2
        """,
    )


def test_no_array() -> None:
    expect(
        """
        ts.sqrt("two")
        """,
        """
        LeafError: sqrt: got a value of type str, which is no array
          at user.py:1
            1 | ts.sqrt("two")
              | ^^^^^^^^^^^^^^
          rule: functions of arrays take arrays and Python numbers
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_none() -> None:
    expect(
        """
        ts.ones(3) + ts.sum(None)
        """,
        """
        LeafError: sum: got NoneType, which is no array
          at user.py:1
            1 | ts.ones(3) + ts.sum(None)
              |              ^^^^^^^^^^^^
          rule: functions of arrays take arrays and Python numbers
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_item_assignment() -> None:
    expect(
        """
        x = ts.ones(3)
        x[0] = 1
        """,
        """
        ImmutableError: assignment to elements of an array of type f32[3]
          at user.py:2
            2 | x[0] = 1
              | ^^^^
          rule: arrays are immutable
          fix: make a new array, as with `x = x.at[index].set(value)` or `ts.where`
        """,
    )


def test_item_assignment_under_jit() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            x[0] = 1
            return x

        f(ts.ones(3))
        """,
        """
        ImmutableError: assignment to elements of an array of type f32[3]
          at user.py:3 in f
            3 |     x[0] = 1
              |     ^^^^
          called from user.py:6
            6 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: arrays are immutable
          fix: make a new array, as with `x = x.at[index].set(value)` or `ts.where`
        """,
    )


def test_attribute_assignment() -> None:
    expect(
        """
        x = ts.ones(3)
        x.shape = (1, 3)
        """,
        """
        ImmutableError: assignment to the attribute 'shape' of an array of type f32[3]
          at user.py:2
            2 | x.shape = (1, 3)
              | ^^^^^^^
          rule: arrays are immutable
          fix: make a new array: `ts.reshape(x, shape)`
        """,
    )


def test_truth_of_several() -> None:
    expect(
        """
        if ts.ones(3) > 0:
            pass
        """,
        """
        RankError: bool() of an array of type bool[3]
          at user.py:1
            1 | if ts.ones(3) > 0:
              |    ^^^^^^^^^^^^^^
          rule: it takes an array without dims
          fix: use `ts.any(x)` or `ts.all(x)`
        """,
    )


def test_hash() -> None:
    expect(
        """
        {ts.ones(3): 1}
        """,
        """
        UnhashableError: hash of an array of type f32[3]
          at user.py:1
            1 | {ts.ones(3): 1}
              | ^^^^^^^^^^^^^^^
          rule: arrays are no keys of dicts or members of sets: `==` compares their elements
          fix: use `id(x)` as the key
        """,
    )


def test_unpack_numpy_object() -> None:
    expect(
        """
        import numpy as np
        ts.sin(np.array(["a"]))
        """,
        """
        LeafError: sin: got a NumPy array of dtype <U1
          at user.py:2
            2 | ts.sin(np.array(["a"]))
              | ^^^^^^^^^^^^^^^^^^^^^^^
          rule: arrays hold numbers or bools
          fix: convert it to a numeric dtype first
        """,
    )


def test_float() -> None:
    expect(
        """
        float(ts.ones(3))
        """,
        """
        RankError: float() of an array of type f32[3]
          at user.py:1
            1 | float(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^
          rule: it takes an array without dims
          fix: use `x.item()` if it has one element
        """,
    )


def test_maximum_of_nothing() -> None:
    expect(
        """
        ts.max(ts.zeros((0, 3)))
        """,
        """
        ShapeError: max: dim 0 of f32[0, 3] is empty
          at user.py:1
            1 | ts.max(ts.zeros((0, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an empty axis has no extremum
        """,
    )


def test_logic_of_floats() -> None:
    expect(
        """
        True & ts.ones(2)
        """,
        """
        DTypeError: bitwise_and: float32 operands are not allowed
          at user.py:1
            1 | True & ts.ones(2)
              | ^^^^^^^^^^^^^^^^^
          rule: bitwise_and takes bool, int, uint operands
          fix: cast it first
        """,
    )


def test_order_of_complex() -> None:
    expect(
        """
        ts.asarray([1j]) < 2
        """,
        """
        DTypeError: less: complex64 operands are not allowed
          at user.py:1
            1 | ts.asarray([1j]) < 2
              | ^^^^^^^^^^^^^^^^^^^^
          rule: less takes int, uint, float operands
          fix: take `ts.abs(x)` or `ts.real(x)` first
        """,
    )


def test_maximum_of_complex() -> None:
    expect(
        """
        ts.argmax(ts.asarray([1j]))
        """,
        """
        DTypeError: argmax: the operand is c64[1]
          at user.py:1
            1 | ts.argmax(ts.asarray([1j]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the dtype's kind is one of float, int, uint
          fix: take `ts.abs(x)` or `ts.real(x)` first
        """,
    )


def test_sum_of_bools() -> None:
    expect(
        """
        ts.asarray([True]) + True
        """,
        """
        DTypeError: add: bool operands are not allowed
          at user.py:1
            1 | ts.asarray([True]) + True
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: add takes int, uint, float, complex operands
          fix: use `ts.logical_or` or `ts.logical_and`, or cast to an integer type first
        """,
    )


def test_weak_types_are_not_marked() -> None:
    expect(
        """
        ts.ones((2, 3)) @ ts.jit(lambda x: x)(2.0)
        """,
        """
        ShapeError: matmul: x1 is f32[2, 3], x2 is f32[]
          at user.py:1
            1 | ts.ones((2, 3)) @ ts.jit(lambda x: x)(2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: operands of a matrix product have one dim or more
          fix: use `*` to multiply by a number
        """,
    )


def test_a_list_beside_an_array() -> None:
    expect(
        """
        x = ts.ones(3)
        x + [1, 2, 3]
        """,
        """
        LeafError: add: got a list beside an array
          at user.py:2
            2 | x + [1, 2, 3]
              | ^^^^^^^^^^^^^
          rule: operators take arrays and Python numbers
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_a_list_before_an_array() -> None:
    expect(
        """
        x = ts.ones(2)
        [1, 2] * x
        """,
        """
        LeafError: multiply: got a list beside an array
          at user.py:2
            2 | [1, 2] * x
              | ^^^^^^^^^^
          rule: operators take arrays and Python numbers
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_constructor() -> None:
    expect(
        """
        ts.Array([1, 2])
        """,
        """
        LeafError: Array: the constructor got a value of type list
          at user.py:1
            1 | ts.Array([1, 2])
              | ^^^^^^^^^^^^^^^^
          rule: it is internal, and takes a NumPy array that nobody else uses
          fix: make an array with `ts.asarray`
        """,
    )


def test_round_of_integers() -> None:
    expect(
        """
        round(ts.asarray([125]), -1)
        """,
        """
        DTypeError: round: -1 digits of i64[1]
          at user.py:1
            1 | round(ts.asarray([125]), -1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: integers are rounded to no less than one
          fix: convert it to a floating-point dtype first
        """,
    )


def test_long_double() -> None:
    expect(
        """
        import numpy as np
        ts.asarray(np.zeros(2, np.longdouble))
        """,
        """
        LeafError: asarray: got a NumPy array of dtype float128
          at user.py:2
            2 | ts.asarray(np.zeros(2, np.longdouble))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the widest dtypes are float64 and complex128
          fix: convert it first, as with `x.astype(np.float64)`
        """,
    )


def test_long_double_in_a_sequence() -> None:
    expect(
        """
        import numpy as np
        ts.asarray([1.0, np.longdouble(2)])
        """,
        """
        LeafError: asarray: got a NumPy array of dtype float128
          at user.py:2
            2 | ts.asarray([1.0, np.longdouble(2)])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the widest dtypes are float64 and complex128
          fix: convert it first, as with `x.astype(np.float64)`
        """,
    )


def test_limits_of_integers() -> None:
    expect(
        """
        ts.finfo(ts.int32)
        """,
        """
        DTypeError: finfo: int32 is not a floating-point type
          at user.py:1
            1 | ts.finfo(ts.int32)
              | ^^^^^^^^^^^^^^^^^^
          fix: use iinfo
        """,
    )


def test_export() -> None:
    expect(
        """
        ts.ones(2, dtype=ts.int4).__dlpack__()
        """,
        """
        ExportError: __dlpack__: an array of dtype int4
          at user.py:1
            1 | ts.ones(2, dtype=ts.int4).__dlpack__()
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: DLPack has no such dtype
          fix: convert it to `ts.int8` first
        """,
    )


def test_logsumexp_of_complex() -> None:
    expect(
        """
        ts.logsumexp(ts.asarray([1j]))
        """,
        """
        DTypeError: logsumexp: the array is c64[1]
          at user.py:1
            1 | ts.logsumexp(ts.asarray([1j]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the elements are real numbers
          fix: take `ts.abs(x)` or `ts.real(x)` first
        """,
    )


def test_no_dlpack() -> None:
    expect(
        """
        ts.from_dlpack([1, 2])
        """,
        """
        LeafError: from_dlpack: got a value of type list
          at user.py:1
            1 | ts.from_dlpack([1, 2])
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: it takes an array of another library, with the method `__dlpack__`
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_concat_of_a_number() -> None:
    expect(
        """
        ts.concat(2.5)
        """,
        """
        LeafError: concat: got float in place of several arrays
          at user.py:1
            1 | ts.concat(2.5)
              | ^^^^^^^^^^^^^^
          rule: arrays that are joined are in a tuple or a list
        """,
    )


def test_stack_of_an_array_without_dims() -> None:
    expect(
        """
        ts.stack(ts.asarray(2.5))
        """,
        """
        LeafError: stack: got f32[] in place of several arrays
          at user.py:1
            1 | ts.stack(ts.asarray(2.5))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: arrays that are joined are in a tuple or a list
        """,
    )


def test_permutation_by_a_number() -> None:
    expect(
        """
        ts.permute_dims(ts.ones((2, 3)), 1)
        """,
        """
        AxisError: permute_dims: axes=1
          at user.py:1
            1 | ts.permute_dims(ts.ones((2, 3)), 1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: axes are a tuple of ints, one for each dim
        """,
    )
