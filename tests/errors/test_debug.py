"""Mistakes with `ts.debug.print` and `ts.debug.callback`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_an_argument_is_missing() -> None:
    expect(
        """
        ts.debug.print("x is {x}", y=1.0)
        """,
        """
        CallError: debug.print: the format 'x is {x}' has argument `x`, which is not given
          at user.py:1
            1 | ts.debug.print("x is {x}", y=1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: each name in the format is an argument
          fix: pass it, or write `{{` and `}}` for braces
        """,
    )


def test_an_argument_is_not_in_the_format() -> None:
    expect(
        """
        ts.debug.print("x is", 1.0)
        """,
        """
        CallError: debug.print: the format 'x is' does not have positional argument 0
          at user.py:1
            1 | ts.debug.print("x is", 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: each argument is in the format
          fix: write `{}` where it is to stand; an f-string would show the traced value, which has none
        """,
    )


def test_no_format() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            ts.debug.print(x)
            return x

        f(ts.ones(2))
        """,
        """
        CallError: debug.print: the format is an array of type f32[2]
          at user.py:3 in f
            3 |     ts.debug.print(x)
              |     ^^^^^^^^^^^^^^^^^
          called from user.py:6
            6 | f(ts.ones(2))
              | ^^^^^^^^^^^^^
          rule: the first argument is a string, in which `{}` stands for the next argument
          fix: write `ts.debug.print("{}", x)`
        """,
    )


def test_a_bad_format() -> None:
    expect(
        """
        ts.debug.print("{", 1.0)
        """,
        """
        CallError: debug.print: the format '{' is none: Single '{' encountered in format string
          at user.py:1
            1 | ts.debug.print("{", 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one for `str.format`
          fix: write `{{` and `}}` for braces
        """,
    )


def test_numbered_and_plain_braces() -> None:
    expect(
        """
        ts.debug.print("{} {0}", 1.0)
        """,
        """
        CallError: debug.print: the format '{} {0}' is none: it has numbered braces and others
          at user.py:1
            1 | ts.debug.print("{} {0}", 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one for `str.format`
          fix: write `{{` and `}}` for braces
        """,
    )


def test_no_function() -> None:
    expect(
        """
        ts.debug.callback(print("x"), 1.0)
        """,
        """
        CallError: debug.callback: got a value of type NoneType, which is no function
          at user.py:1
            1 | ts.debug.callback(print("x"), 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `debug.callback` takes a function of arrays
          fix: pass its arguments after it
        """,
    )


def test_a_tangent_in_reverse_mode() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x * x

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            ts.debug.print("tangent {}", t)
            return f(x), 2 * x * t

        ts.jvp(f, (2.0,), (1.0,))
        ts.grad(f)(2.0)
        """,
        """
        NotDifferentiableError: debug.print: called with a tangent, which has no value in reverse mode
          at user.py:8 in rule
            8 |     ts.debug.print("tangent {}", t)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:12
            12 | ts.grad(f)(2.0)
               | ^^^^^^^^^^^^^^^
          rule: reverse mode runs the computation of tangents backwards, with cotangents
          fix: call it under `ts.jvp`, or with the cotangents of a `ts.custom_vjp` rule
        """,
    )


def test_a_mistake_in_a_rule_is_shown_in_the_rule() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x * x

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            return f(x), ts.ones((2, 3)) @ (x * t)

        ts.jit(ts.grad(f))(2.0)
        """,
        """
        ShapeError: matmul: x1 is f32[2, 3], x2 is f32[]
          at user.py:8 in rule
            8 |     return f(x), ts.ones((2, 3)) @ (x * t)
              |                  ^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:10
            10 | ts.jit(ts.grad(f))(2.0)
               | ^^^^^^^^^^^^^^^^^^^^^^^
          rule: operands of a matrix product have one dim or more
          fix: use `*` to multiply by a number
        """,
    )
