"""Mistakes with `checkpoint`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_python_control_flow() -> None:
    expect(
        """
        @ts.checkpoint
        def f(x):
            return x if x > 0 else -x

        ts.grad(f)(1.0)
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:3 in f
            3 |     return x if x > 0 else -x
              |                 ^^^^^
          called from user.py:5
            5 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: inside `checkpoint` an array has a type but no value while the function is traced
          the value was computed at user.py:3:17 (greater)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_an_argument_that_is_no_array() -> None:
    expect(
        """
        f = ts.checkpoint(lambda x, mode: x)
        ts.grad(lambda x: f(x, "fast"))(1.0)
        """,
        """
        LeafError: checkpoint: argument `mode` of <lambda> is of type str
          at user.py:2 in <lambda>
            2 | ts.grad(lambda x: f(x, "fast"))(1.0)
              |                   ^^^^^^^^^^^^
          called from user.py:2
            2 | ts.grad(lambda x: f(x, "fast"))(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: name it in `static_argnums`
        """,
    )


def test_positions_of_static_arguments() -> None:
    expect(
        """
        f = ts.checkpoint(lambda x: x, static_argnums=1)
        ts.grad(f)(1.0)
        """,
        """
        CallError: checkpoint: static_argnums has 1, but <lambda> is called with 1 positional argument
          at user.py:2
            2 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: static_argnums are positions of positional arguments, counted from 0
        """,
    )


def test_policy() -> None:
    expect(
        """
        ts.checkpoint(lambda x: x, policy="dots")
        """,
        """
        OptionError: checkpoint: the policy is of type str
          at user.py:1
            1 | ts.checkpoint(lambda x: x, policy="dots")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a policy is one of `ts.checkpoint_policies`, or a function of an operation
        """,
    )


def test_negative_budget() -> None:
    expect(
        """
        ts.checkpoint_policies.memory_budget(-1)
        """,
        """
        OptionError: memory_budget: got -1 bytes
          at user.py:1
            1 | ts.checkpoint_policies.memory_budget(-1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is at least 0
        """,
    )


def test_budget_in_another_policy() -> None:
    expect(
        """
        policies = ts.checkpoint_policies
        policies.save_from_both_policies(policies.memory_budget(10), policies.dots_saveable)
        """,
        """
        OptionError: save_from_both_policies: got a memory budget
          at user.py:2
            2 | policies.save_from_both_policies(policies.memory_budget(10), policies.dots_saveable)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a budget chooses among all values together, and is no part of another policy
        """,
    )
