"""What sentinels tell, as it is printed."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_nan_in_a_compiled_function() -> None:
    expect(
        """
        @ts.jit(check="nan,inf,bounds")
        def loss(x, y):
            z = ts.sum(x) - 6
            return ts.mean(y * z / (x - x))

        loss(ts.asarray([1.0, 2.0, 3.0]), 2.0)
        """,
        """
        NonFiniteError: divide: the result has NaN at [0], and 2 more, in the forward pass
          at user.py:4 in loss
            4 |     return ts.mean(y * z / (x - x))
              |                    ^^^^^^^^^^^^^^^
          called from user.py:6
            6 | loss(ts.asarray([1.0, 2.0, 3.0]), 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sentinels are on (check="nan,inf,bounds"): no operation gives NaN of operands without NaN
          operand 0 is [0., 0., 0.], there 0.0
          operand 1 is [0., 0., 0.], there 0.0
        """,
    )


def test_an_infinity_in_a_step_of_a_scan() -> None:
    expect(
        """
        def decay(x, rates):
            def step(x, rate):
                x = x / rate
                return x, x
            return ts.scan(step, x, rates)

        with ts.debug.sentinels():
            ts.jit(decay)(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 0.0]))
        """,
        """
        NonFiniteError: divide: the result has Inf at [0], and 1 more, in the forward pass, in step 1 of the scan
          at user.py:3 in step
            3 |         x = x / rate
              |             ^^^^^^^^
          called from user.py:5 in decay
            5 |     return ts.scan(step, x, rates)
              |            ^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 |     ts.jit(decay)(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 0.0]))
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sentinels are on (check="nan,inf,bounds"): no operation gives an infinity of finite operands
          operand 0 is [1., 2.], there 1.0
          operand 1 is [0., 0.], there 0.0
        """,
    )


def test_nan_in_an_argument() -> None:
    expect(
        """
        @ts.jit(check="nan")
        def double(x):
            return x * 2

        double(ts.asarray([1.0, float("nan")]))
        """,
        """
        NonFiniteError: double: result 0 has NaN
          at user.py:5
            5 | double(ts.asarray([1.0, float("nan")]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sentinels are on (check="nan"): results have no NaN
          input 0 has NaN already
          fix: leave "nan" out of `check`, or remove NaN from the data
        """,
    )


def test_an_unknown_check() -> None:
    expect(
        """
        @ts.jit(check="nans")
        def f(x):
            return x
        """,
        """
        OptionError: jit: there is no check 'nans'
          at user.py:1
            1 | @ts.jit(check="nans")
              |  ^^^^^^^^^^^^^^^^^^^^
          rule: `check` names some of nan, inf, overflow, bounds
          fix: write for example `check="nan,inf"`
        """,
    )


def test_an_index_out_of_range() -> None:
    expect(
        """
        @ts.jit(check="bounds")
        def rows(table, tokens):
            return ts.sum(table[tokens], axis=1)

        rows(ts.ones((10, 4)), ts.asarray([3, -1, 10]))
        """,
        """
        IndexOutOfBoundsError: gather: index 10, element [2] of the indices, is out of range for dim 0 of f32[10, 4], in the forward pass
          at user.py:3 in rows
            3 |     return ts.sum(table[tokens], axis=1)
              |                   ^^^^^^^^^^^^^
          called from user.py:5
            5 | rows(ts.ones((10, 4)), ts.asarray([3, -1, 10]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sentinels are on (check="bounds"): an index is in range, unless `mode` says what becomes of it
          fix: write `mode="clip"`, "fill" or "drop" if it may be out of range
        """,
    )
