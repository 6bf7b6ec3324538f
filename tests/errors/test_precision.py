"""Mistakes with quantized tensors, calibration, loss scales and variants."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_a_format_that_is_none() -> None:
    expect(
        """
        ts.quantize(ts.ones(4), ts.int16)
        """,
        """
        DTypeError: quantize: int16 is no quantized format
          at user.py:1
            1 | ts.quantize(ts.ones(4), ts.int16)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the formats are int4, int8, uint8, e4m3, e5m2, e2m1 and nvfp4
          fix: convert it plainly: `x.astype(ts.int16)`
        """,
    )


def test_quantizing_integers() -> None:
    expect(
        """
        ts.quantize(ts.asarray([1, 2]), ts.int8)
        """,
        """
        DTypeError: quantize: the array is i64[2]
          at user.py:1
            1 | ts.quantize(ts.asarray([1, 2]), ts.int8)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what is quantized are real floating-point numbers
          fix: cast it first: `x.astype(ts.float32)`
        """,
    )


def test_a_block_that_does_not_fill_its_axis() -> None:
    expect(
        """
        ts.quantize(ts.ones((4, 10)), ts.int4, block=16)
        """,
        """
        ShapeError: quantize: dim 1 of f32[4, 10] has 10 elements, and blocks have 16
          at user.py:1
            1 | ts.quantize(ts.ones((4, 10)), ts.int4, block=16)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: blocks fill the dim; 0 is one block
          fix: pad the array: `ts.pad`
        """,
    )


def test_a_zero_point_out_of_range() -> None:
    expect(
        """
        ts.quantize(ts.ones(4), ts.int8, scale=0.1, zero_point=200)
        """,
        """
        DTypeError: quantize: the zero point is 200
          at user.py:1
            1 | ts.quantize(ts.ones(4), ts.int8, scale=0.1, zero_point=200)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a zero point is one of the values of int8, -128 to 127
        """,
    )


def test_a_zero_point_of_floats() -> None:
    expect(
        """
        ts.quantize(ts.ones(4), "e4m3", symmetric=False)
        """,
        """
        OptionError: quantize: symmetric=False with e4m3
          at user.py:1
            1 | ts.quantize(ts.ones(4), "e4m3", symmetric=False)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: formats of floating-point numbers have no zero point
        """,
    )


def test_a_scale_of_another_shape() -> None:
    expect(
        """
        ts.quantize(ts.ones((4, 8)), ts.int8, axis=0, scale=ts.ones((1, 8)))
        """,
        """
        ShapeError: quantize: the scale is f32[1, 8] for f32[4, 8] with block=[1, 0]; dim 0 has 4 elements and 1 scales
          at user.py:1
            1 | ts.quantize(ts.ones((4, 8)), ts.int8, axis=0, scale=ts.ones((1, 8)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a block of 0 has one scale along the dim; blocks of n elements fill the dim, and have a scale each
        """,
    )


def test_a_scale_of_integers() -> None:
    expect(
        """
        ts.quantize(ts.ones((4, 8)), ts.int8, scale=ts.asarray([[1]]))
        """,
        """
        DTypeError: quantize: the scale is i64[1, 1]
          at user.py:1
            1 | ts.quantize(ts.ones((4, 8)), ts.int8, scale=ts.asarray([[1]]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a scale is a floating-point number
          fix: cast it: `scale.astype(ts.float32)`
        """,
    )


def test_a_product_that_does_not_fit() -> None:
    expect(
        """
        w = ts.quantize(ts.ones((8, 4)), ts.int8)
        ts.ones((3, 5)) @ w
        """,
        """
        ShapeError: matmul: x1 is f32[3, 5], x2 is f32[8, 4]; dim 1 of x1 is 5, but dim 0 of x2 is 8
          at user.py:2
            2 | ts.ones((3, 5)) @ w
              | ^^^^^^^^^^^^^^^^^^^
          rule: the dims that are summed over have equal lengths
        """,
    )


def test_a_product_with_integers() -> None:
    expect(
        """
        w = ts.quantize(ts.ones((2, 4)), ts.int8)
        ts.asarray([[1, 2]]) @ w
        """,
        """
        DTypeError: quantized_matmul: x1 is i64[1, 2]
          at user.py:2
            2 | ts.asarray([[1, 2]]) @ w
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an array beside a quantized tensor has floating-point numbers
          fix: cast it: `x.astype(ts.float32)`
        """,
    )


def test_a_method_of_calibration() -> None:
    expect(
        """
        ts.calibrate(lambda x: x, [ts.ones(3)], ts.int8, method="median")
        """,
        """
        OptionError: calibrate: method is 'median'
          at user.py:1
            1 | ts.calibrate(lambda x: x, [ts.ones(3)], ts.int8, method="median")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is "amax", "percentile" or "mse"
        """,
    )


def test_a_loss_scale_that_does_not_grow() -> None:
    expect(
        """
        ts.LossScale(8.0, factor=1.0)
        """,
        """
        OptionError: LossScale: growth_interval=2000, factor=1.0, smallest=1.0, largest=16777216.0
          at user.py:1
            1 | ts.LossScale(8.0, factor=1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the interval is 1 or more, the factor above 1, and 0 < smallest <= largest
        """,
    )


def test_variants_without_limits() -> None:
    expect(
        """
        ts.AdaptivePrecision({"a": ts.sin, "b": ts.cos}, [])
        """,
        """
        OptionError: AdaptivePrecision: 2 variants and 0 limits
          at user.py:1
            1 | ts.AdaptivePrecision({"a": ts.sin, "b": ts.cos}, [])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: each variant but the last one has a limit
        """,
    )


def test_variants_of_other_dtypes_in_a_trace() -> None:
    expect(
        """
        f = ts.AdaptivePrecision({"a": lambda x: x.astype(ts.float16), "b": ts.cos}, [1.0])
        ts.jit(lambda x: f(x))(ts.ones(2))
        """,
        """
        DTypeError: switch: branches[0] returns f16[2], branches[1] f32[2]
          at user.py:2 in <lambda>
            2 | ts.jit(lambda x: f(x))(ts.ones(2))
              |                  ^^^^
          called from user.py:2
            2 | ts.jit(lambda x: f(x))(ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both functions return arrays of the same shapes and dtypes
        """,
    )


def test_packing_what_takes_a_byte() -> None:
    expect(
        """
        ts.quantize(ts.ones((4, 8)), ts.int8).pack()
        """,
        """
        DTypeError: pack: the values are int8
          at user.py:1
            1 | ts.quantize(ts.ones((4, 8)), ts.int8).pack()
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: int4, e2m1 and nvfp4 take 4 bits, two values a byte
        """,
    )


def test_slices_along_the_packed_axis() -> None:
    expect(
        """
        w = ts.quantize(ts.ones((4, 8)), ts.int4, block=(2, 0)).pack(0)
        ts.vmap(lambda w: w.dequantize())(w)
        """,
        """
        ShapeError: QuantizedTensor: the values are u8[8], packed along axis -2
          at user.py:2 in <lambda>
            2 | ts.vmap(lambda w: w.dequantize())(w)
              |                   ^^^^^^^^^^^^^^
          called from user.py:2
            2 | ts.vmap(lambda w: w.dequantize())(w)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: slices are taken along axes in front of the packed one
          fix: pack along another axis, `q.pack(-1)`, or slice `q.unpack()`
        """,
    )


def test_packing_a_size_that_nothing_is_known_of() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["S", ts.float32]):
            return ts.quantize(x, ts.int4).pack().values
        f(ts.ones(32))
        """,
        """
        ShapeError: pack: dim 0 has S values
          at user.py:3 in f
            3 |     return ts.quantize(x, ts.int4).pack().values
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | f(ts.ones(32))
              | ^^^^^^^^^^^^^^
          rule: whether a dim has an even number of values is known before it is packed
          S is any size: that of `x: dim 0 "S"`
          `x` is Tensor["S", f32] at user.py:2
          fix: say that it has: `ts.constrain("S % 2 == 0")`, or pack another axis
        """,
    )


def test_a_block_of_a_size_that_nothing_is_known_of() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["S", ts.float32]):
            return ts.quantize(x, ts.int8, block=16).values
        f(ts.ones(32))
        """,
        """
        ShapeError: quantize: dim 0 of f32[S] has S elements, and blocks have 16
          at user.py:3 in f
            3 |     return ts.quantize(x, ts.int8, block=16).values
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | f(ts.ones(32))
              | ^^^^^^^^^^^^^^
          rule: blocks fill the dim; 0 is one block
          S is any size: that of `x: dim 0 "S"`
          `x` is Tensor["S", f32] at user.py:2
          fix: say that they do: `ts.constrain("S % 16 == 0")`
        """,
    )
