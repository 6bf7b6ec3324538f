"""Mistakes with `ts.nn`."""

from __future__ import annotations

from tests.errors.message import expect


def test_an_activation_of_complex_numbers() -> None:
    expect(
        """
        ts.nn.gelu(ts.asarray([1j]))
        """,
        """
        DTypeError: nn.gelu: the array is c64[1]
          at user.py:1
            1 | ts.nn.gelu(ts.asarray([1j]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the elements are real numbers
          fix: take `ts.abs(x)` or `ts.real(x)` first
        """,
    )


def test_an_activation_of_a_text() -> None:
    expect(
        """
        ts.nn.silu('x')
        """,
        """
        LeafError: nn.silu: got a value of type str, which is no array
          at user.py:1
            1 | ts.nn.silu('x')
              | ^^^^^^^^^^^^^^^
          rule: functions of arrays take arrays and Python numbers
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_glu_of_an_odd_axis() -> None:
    expect(
        """
        ts.nn.glu(ts.ones((2, 3)))
        """,
        """
        ShapeError: nn.glu: axis 1 of f32[2, 3] has 3 elements
          at user.py:1
            1 | ts.nn.glu(ts.ones((2, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the axis has two halves
        """,
    )


def test_an_axis_of_glu() -> None:
    expect(
        """
        ts.nn.glu(ts.ones((2, 4)), axis=2)
        """,
        """
        AxisError: nn.glu: axis 2 is out of range for an array of rank 2
          at user.py:1
            1 | ts.nn.glu(ts.ones((2, 4)), axis=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -2 <= axis < 2
        """,
    )


def test_a_mask_of_numbers() -> None:
    expect(
        """
        ts.nn.softmax_safe(ts.ones(3), where=ts.ones(3))
        """,
        """
        DTypeError: nn.softmax_safe: where is f32[3]
          at user.py:1
            1 | ts.nn.softmax_safe(ts.ones(3), where=ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a mask is a bool array
          fix: compare it, as in `where != 0`
        """,
    )


def test_a_mask_that_does_not_fit() -> None:
    expect(
        """
        ts.nn.logsumexp_safe(ts.ones((2, 3)), where=ts.ones((3, 2)) > 0)
        """,
        """
        ShapeError: nn.logsumexp_safe: where is bool[3, 2], and the array f32[2, 3]
          at user.py:1
            1 | ts.nn.logsumexp_safe(ts.ones((2, 3)), where=ts.ones((3, 2)) > 0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the mask is broadcast to the shape of the array
        """,
    )


def test_a_scale_that_does_not_fit() -> None:
    expect(
        """
        ts.nn.layernorm_safe(ts.ones((2, 3)), ts.ones(2))
        """,
        """
        ShapeError: nn.layernorm_safe: scale has the shape [2], and the array [2, 3]
          at user.py:1
            1 | ts.nn.layernorm_safe(ts.ones((2, 3)), ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the scale is broadcast to the shape of the array
        """,
    )


def test_dense_layers_that_do_not_fit() -> None:
    expect(
        """
        ts.nn.dense(ts.ones((2, 3)), ts.ones((4, 5)))
        """,
        """
        ShapeError: nn.dense: x is f32[2, 3], kernel f32[4, 5]
          at user.py:1
            1 | ts.nn.dense(ts.ones((2, 3)), ts.ones((4, 5)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the kernel is [features, outputs], and the last dim of x has the features
        """,
    )


def test_a_bias_that_does_not_fit() -> None:
    expect(
        """
        ts.nn.dense(ts.ones((2, 3)), ts.ones((3, 5)), ts.ones(3))
        """,
        """
        ShapeError: nn.dense: bias is f32[3], for 5 outputs
          at user.py:1
            1 | ts.nn.dense(ts.ones((2, 3)), ts.ones((3, 5)), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the bias has one number for each output
        """,
    )


def test_a_window_without_an_image() -> None:
    expect(
        """
        ts.nn.conv(ts.ones(3), ts.ones((3, 3, 1, 8)))
        """,
        """
        ShapeError: nn.conv: x is f32[3], kernel f32[3, 3, 1, 8]
          at user.py:1
            1 | ts.nn.conv(ts.ones(3), ts.ones((3, 3, 1, 8)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the kernel is [*window, features, outputs], and x is [..., *places, features]
        """,
    )


def test_features_of_a_convolution() -> None:
    expect(
        """
        ts.nn.conv(ts.ones((1, 8, 8, 3)), ts.ones((3, 3, 1, 8)))
        """,
        """
        ShapeError: nn.conv: x is f32[1, 8, 8, 3], kernel f32[3, 3, 1, 8], with 1 groups of features
          at user.py:1
            1 | ts.nn.conv(ts.ones((1, 8, 8, 3)), ts.ones((3, 3, 1, 8)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the features of x are those of the kernel, times the number of groups
        """,
    )


def test_a_rate_of_dropout() -> None:
    expect(
        """
        ts.nn.dropout(ts.random.key(0), ts.ones(3), 1.5)
        """,
        """
        OptionError: nn.dropout: the rate is 1.5
          at user.py:1
            1 | ts.nn.dropout(ts.random.key(0), ts.ones(3), 1.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= rate <= 1
        """,
    )


def test_dropout_without_a_key() -> None:
    expect(
        """
        ts.nn.dropout(None, ts.ones(3), 0.5)
        """,
        """
        OptionError: nn.dropout: there is no key
          at user.py:1
            1 | ts.nn.dropout(None, ts.ones(3), 0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what is dropped is a function of a key
          fix: pass `ts.random.key(seed)`, split for each call, or `deterministic=True`
        """,
    )


def test_dropout_with_a_seed() -> None:
    expect(
        """
        ts.nn.dropout(0, ts.ones(3), 0.5)
        """,
        """
        DTypeError: nn.dropout: the key is the number 0
          at user.py:1
            1 | ts.nn.dropout(0, ts.ones(3), 0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )
