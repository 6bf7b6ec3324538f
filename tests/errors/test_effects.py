"""Mistakes with effects."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_undeclared_effect() -> None:
    expect(
        """
        @ts.function(effects=["random"])
        def step(x):
            y = x * 2
            ts.debug.print("y is {}", y)
            return y

        step(ts.ones(3))
        """,
        """
        EffectError: step has the effect `io`, which it does not declare: that of debug.print
          at user.py:4 in step
            4 |     ts.debug.print("y is {}", y)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | step(ts.ones(3))
              | ^^^^^^^^^^^^^^^^
          rule: a function that declares effects has no others; this one declares `random`
          fix: declare it, `effects=["random", "io"]`, or put the line under `with ts.effects.suspend("io"):`
        """,
    )


def test_undeclared_effect_in_a_function_that_is_called() -> None:
    expect(
        """
        @ts.function(effects=[])
        def dropout(key, x):
            return ts.where(ts.random.bernoulli(key, 0.5, x.shape), x, 0)

        @ts.jit
        def model(key, x):
            return dropout(key, x)

        model(ts.random.key(0), ts.ones(3))
        """,
        """
        EffectError: dropout has the effect `random`, which it does not declare: that of a draw
          at user.py:3 in dropout
            3 |     return ts.where(ts.random.bernoulli(key, 0.5, x.shape), x, 0)
              |                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7 in model
            7 |     return dropout(key, x)
              |            ^^^^^^^^^^^^^^^
          called from user.py:9
            9 | model(ts.random.key(0), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a function that declares effects has no others; this one declares none
          fix: declare it, `effects=["random"]`, or put the line under `with ts.effects.suspend("random"):`
        """,
    )


def test_undeclared_effect_in_a_loop() -> None:
    expect(
        """
        def step(i, x):
            ts.debug.print("{}", i)
            return x + 1

        @ts.jit(effects=[])
        def count(x):
            return ts.fori_loop(0, 3, step, x)

        count(1.0)
        """,
        """
        EffectError: count has the effect `io`, which it does not declare: that of debug.print
          at user.py:2 in step
            2 |     ts.debug.print("{}", i)
              |     ^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7 in count
            7 |     return ts.fori_loop(0, 3, step, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:9
            9 | count(1.0)
              | ^^^^^^^^^^
          rule: a function that declares effects has no others; this one declares none
          fix: declare it, `effects=["io"]`, or put the line under `with ts.effects.suspend("io"):`
        """,
    )


def test_undeclared_collective() -> None:
    expect(
        """
        @ts.function(effects=["collective(j)"])
        def mean(x):
            return ts.pmean(x, "i")

        ts.vmap(mean, axis_name="i")(ts.ones(3))
        """,
        """
        EffectError: mean has the effect `collective(i)`, which it does not declare: that of a collective
          at user.py:3 in mean
            3 |     return ts.pmean(x, "i")
              |            ^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | ts.vmap(mean, axis_name="i")(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a function that declares effects has no others; this one declares `collective(j)`
          fix: declare it, `effects=["collective(i)", "collective(j)"]`, or put the line under `with ts.effects.suspend("collective(i)"):`
        """,
    )


def test_no_effect() -> None:
    expect(
        """
        @ts.function(effects=["IO"])
        def f(x):
            return x
        """,
        """
        OptionError: f: effects has 'IO', which is no effect
          at user.py:1
            1 | @ts.function(effects=["IO"])
              |  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: effects are "random", "io", "memory(NAME)" and "collective(AXIS)"; "memory" and "collective" are those of any name
        """,
    )


def test_no_name_of_an_effect() -> None:
    expect(
        """
        @ts.jit(effects=[print])
        def f(x):
            return x
        """,
        """
        OptionError: jit: effects is [<built-in function print>]
          at user.py:1
            1 | @ts.jit(effects=[print])
              |  ^^^^^^^^^^^^^^^^^^^^^^^
          rule: it has names, strings: one, or several in a tuple
        """,
    )


def test_suspension_of_no_effect() -> None:
    expect(
        """
        with ts.effects.suspend("memory("):
            pass
        """,
        """
        OptionError: effects.suspend has 'memory(', which is no effect
          at user.py:1
            1 | with ts.effects.suspend("memory("):
              |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: effects are "random", "io", "memory(NAME)" and "collective(AXIS)"; "memory" and "collective" are those of any name
        """,
    )
