"""Mistakes with numerics policies, rounding and modifiers of dtypes."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_a_field_with_a_wrong_value() -> None:
    expect(
        """
        ts.Policy(storage=ts.bfloat16, rounding="nearest")
        """,
        """
        OptionError: Policy: rounding is 'nearest'
          at user.py:1
            1 | ts.Policy(storage=ts.bfloat16, rounding="nearest")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one of "nearest_even", "toward_zero", "up", "down", "stochastic"
        """,
    )


def test_a_dtype_of_integers() -> None:
    expect(
        """
        ts.Policy(storage=ts.int8)
        """,
        """
        OptionError: Policy: storage is int8
          at user.py:1
            1 | ts.Policy(storage=ts.int8)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: storage is a floating-point dtype, or None
          fix: integers are not touched by a policy
        """,
    )


def test_sums_in_a_narrower_dtype() -> None:
    expect(
        """
        ts.Policy(compute=ts.float32, accumulate=ts.bfloat16)
        """,
        """
        OptionError: Policy: accumulate is bfloat16, compute is float32
          at user.py:1
            1 | ts.Policy(compute=ts.float32, accumulate=ts.bfloat16)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sums are formed in a dtype of at least the width of what is added
          fix: make compute bfloat16, or accumulate float32
        """,
    )


def test_a_text_that_is_no_policy() -> None:
    expect(
        """
        ts.Policy.parse("policy(storage=bf16, round=up)")
        """,
        """
        OptionError: Policy: the text 'policy(storage=bf16, round=up)' cannot be read
          at user.py:1
            1 | ts.Policy.parse("policy(storage=bf16, round=up)")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is `policy(field=value, ...)`, or `Training(bf16 -> f32)`
          line 1: a policy has no 'round'
              policy(storage=bf16, round=up)
                                        ^
        """,
    )


def test_what_is_no_policy() -> None:
    expect(
        """
        with ts.policy(ts.bfloat16):
            pass
        """,
        """
        OptionError: policy: got a value of type DType, which is no policy
          at user.py:1
            1 | with ts.policy(ts.bfloat16):
              |      ^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a `ts.Policy`, or its text
          fix: as in `ts.policies.Training()`
        """,
    )


def test_stochastic_rounding_without_a_key() -> None:
    expect(
        """
        p = ts.Policy(storage=ts.bfloat16, rounding="stochastic")
        with ts.policy(p):
            ts.ones(3) * 0.3
        """,
        """
        OptionError: policy: policy(storage=bf16, rounding=stochastic) rounds stochastically, but there is no key
          at user.py:3
            3 |     ts.ones(3) * 0.3
              |     ^^^^^^^^^^^^^^^^
          rule: random numbers come from a key
          fix: give one with the policy: `with ts.policy(p, key=key):`
        """,
    )


def test_a_key_from_outside() -> None:
    expect(
        """
        p = ts.Policy(storage=ts.bfloat16, rounding="stochastic")

        @ts.jit
        def f(x):
            return x * 0.3

        with ts.policy(p, key=ts.random.key(0)):
            f(ts.ones(3))
        """,
        """
        OptionError: policy: the key of stochastic rounding is from outside of a jitted function
          at user.py:5 in f
            5 |     return x * 0.3
              |            ^^^^^^^
          called from user.py:8
            8 |     f(ts.ones(3))
              |     ^^^^^^^^^^^^^
          rule: a jitted function gets what changes from call to call as an argument
          fix: write `with ts.policy(p, key=key):` inside of it, with `key` among its arguments
        """,
    )


def test_a_loop_that_changes_dtype() -> None:
    expect(
        """
        def add(total, x):
            return total + x, x

        with ts.policy(ts.policies.Training()):
            ts.scan(add, ts.zeros(()), ts.ones(3))
        """,
        """
        DTypeError: scan: the carried value is f32[] before a step and bf16[] after it
          at user.py:5
            5 |     ts.scan(add, ts.zeros(()), ts.ones(3))
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a step keeps the shapes and the dtypes of what it carries
          fix: start with bf16[], or convert the result of add
        """,
    )


def test_round_to_without_a_key() -> None:
    expect(
        """
        ts.round_to(ts.ones(3), ts.bfloat16, rounding="stochastic")
        """,
        """
        OptionError: round_to: rounding is stochastic, but there is no key
          at user.py:1
            1 | ts.round_to(ts.ones(3), ts.bfloat16, rounding="stochastic")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: random numbers come from a key
          fix: give one: `key=ts.random.key(0)`
        """,
    )


def test_round_to_of_wide_integers() -> None:
    expect(
        """
        ts.round_to(ts.arange(3), ts.float32, rounding="up")
        """,
        """
        DTypeError: round_to: i64[3] to float32, up
          at user.py:1
            1 | ts.round_to(ts.arange(3), ts.float32, rounding="up")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: integers of 64 bits become floating-point numbers by nearest_even only
          fix: convert them to float64 first, which rounds those above 2**53
        """,
    )


def test_round_to_a_bool() -> None:
    expect(
        """
        ts.round_to(ts.ones(3), ts.bool)
        """,
        """
        DTypeError: round_to: f32[3] to bool
          at user.py:1
            1 | ts.round_to(ts.ones(3), ts.bool)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: real numbers are rounded to real numbers
          fix: use `ts.astype`
        """,
    )


def test_an_accumulator_that_is_too_narrow() -> None:
    expect(
        """
        ts.bfloat16 @ ts.accum(ts.bfloat16)
        """,
        """
        NotYetError: accum: bfloat16 @ accum(bfloat16)
          at user.py:1
            1 | ts.bfloat16 @ ts.accum(ts.bfloat16)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: sums and products of bfloat16 are formed in float32, or in what holds its numbers
          fix: write `@ ts.accum(ts.float32)`, or leave it out
        """,
    )


def test_a_modifier_behind_an_integer() -> None:
    expect(
        """
        ts.int8 @ ts.saturate
        """,
        """
        OptionError: saturate: behind int8
          at user.py:1
            1 | ts.int8 @ ts.saturate
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: modifiers are about floating-point dtypes
          fix: as in `ts.bfloat16 @ ts.saturate`
        """,
    )


def test_a_modifier_of_a_value() -> None:
    expect(
        """
        ts.accum(ts.float32)(3)
        """,
        """
        OptionError: accum(f32): it decorates a value of type int
          at user.py:1
            1 | ts.accum(ts.float32)(3)
              | ^^^^^^^^^^^^^^^^^^^^^^^
          rule: it stands behind a dtype, or decorates a function
        """,
    )
