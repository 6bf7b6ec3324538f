"""What is said of budgets of memory."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_a_budget_that_no_plan_holds() -> None:
    expect(
        """
        @ts.jit(memory_budget="1KB")
        def f(x):
            return ts.cumsum(ts.exp(x), axis=0) + x

        f(ts.ones((64, 64)))
        """,
        """
        MemoryBudgetError: f: it needs 49152 bytes at the peak, and computing values again does not help, 48152 more than its memory budget of 1000
          at user.py:5
            5 | f(ts.ones((64, 64)))
              | ^^^^^^^^^^^^^^^^^^^^
          rule: a plan holds the budget, arguments and results included
          without a budget it needs 49152; arguments and results are 32768
          16384 bytes input: f32[64, 64]
          16384 bytes output: f32[64, 64] of add, user.py:3:12
          16384 bytes between: f32[64, 64] of cumsum_exp, user.py:3:12
          fix: donate arguments, use smaller dtypes or batches, or `ts.checkpoint` inside of loops; a CPU has nowhere to move buffers to
        """,
    )


def test_a_budget_that_no_plan_for_a_gpu_holds() -> None:
    expect(
        """
        @ts.jit(memory_budget="50KB")
        def f(x, w):
            y = ts.sort(x @ w, axis=1)
            z = ts.sort(y @ w, axis=1)
            return ts.sort(ts.sort(z @ w, axis=1) @ w, axis=1) * y * z

        f.lower(ts.ones((128, 64)), ts.ones((64, 64)), machine="sm_90a")
        """,
        """
        MemoryBudgetError: f: it needs 180224 bytes at the peak with all that helps computed again or moved to the host, 130224 more than its memory budget of 50000
          at user.py:7
            7 | f.lower(ts.ones((128, 64)), ts.ones((64, 64)), machine="sm_90a")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a plan holds the budget, arguments and results included
          without a budget it needs 212992; arguments and results are 81920
          32768 bytes input: f32[128, 64]
          32768 bytes output: f32[128, 64] of mul, user.py:5:12
          32768 bytes between: f32[128, 64] of sort, user.py:4:9
          32768 bytes between: f32[128, 64] of dot, user.py:5:28
          32768 bytes between: f32[128, 64] of sort, user.py:5:20
          16384 bytes input: f32[64, 64]
          fix: donate arguments, use smaller dtypes or batches, or `ts.checkpoint` inside of loops; what loops work on, arguments and results stay where they are
        """,
    )


def test_no_budget() -> None:
    expect(
        """
        f = ts.jit(ts.exp, memory_budget="2 gigabytes")
        """,
        """
        OptionError: jit: memory_budget is '2 gigabytes'
          at user.py:1
            1 | f = ts.jit(ts.exp, memory_budget="2 gigabytes")
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a number of bytes, at least 1, or a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB
          fix: write for example `memory_budget="2GB"`
        """,
    )


def test_memory_of_what_is_not_compiled() -> None:
    expect(
        """
        ts.jit(ts.exp).memory()
        """,
        """
        OptionError: memory: exp has not been compiled yet
          at user.py:1
            1 | ts.jit(ts.exp).memory()
              | ^^^^^^^^^^^^^^^^^^^^^^^
          rule: what a call needs depends on the types of its arguments
          fix: give them: `f.memory(ts.ShapeDtypeStruct((8, 128), ts.float32))`
        """,
    )
