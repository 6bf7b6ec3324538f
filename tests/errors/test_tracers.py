"""Mistakes with traced values: Python asks for a value, or they outlive their trace."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_bool() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            if x > 0:
                return x
            return -x

        f(ts.asarray(1.0))
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:3 in f
            3 |     if x > 0:
              |        ^^^^^
          called from user.py:7
            7 | f(ts.asarray(1.0))
              | ^^^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value was computed at user.py:3:8 (greater)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_int() -> None:
    expect(
        """
        @ts.jit
        def f(x, n):
            return x * int(n)

        f(ts.ones(3), 2)
        """,
        """
        ConcretizationError: `int()` of a traced value of type i64[]
          at user.py:3 in f
            3 |     return x * int(n)
              |                ^^^^^^
          called from user.py:5
            5 | f(ts.ones(3), 2)
              | ^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `n` of f
          fix: make it a static argument, or keep it an array
        """,
    )


def test_float() -> None:
    expect(
        """
        ts.jit(lambda x: float(x))(1.0)
        """,
        """
        ConcretizationError: `float()` of a traced value of type f32[]
          at user.py:1 in <lambda>
            1 | ts.jit(lambda x: float(x))(1.0)
              |                  ^^^^^^^^
          called from user.py:1
            1 | ts.jit(lambda x: float(x))(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `x` of <lambda>
          fix: keep it an array
        """,
    )


def test_range() -> None:
    expect(
        """
        @ts.jit
        def f(x, n):
            for _ in range(n):
                x = x * x
            return x

        f(ts.ones(3), 2)
        """,
        """
        ConcretizationError: use of a traced value of type i64[] as a Python integer
          at user.py:3 in f
            3 |     for _ in range(n):
              |              ^^^^^^^^
          called from user.py:7
            7 | f(ts.ones(3), 2)
              | ^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `n` of f
          fix: make it a static argument; or loop with `ts.fori_loop`, and take elements of arrays with it
        """,
    )


def test_list_index() -> None:
    expect(
        """
        @ts.jit
        def f(i):
            return [1.0, 2.0][i]

        f(1)
        """,
        """
        ConcretizationError: use of a traced value of type i64[] as a Python integer
          at user.py:3 in f
            3 |     return [1.0, 2.0][i]
              |            ^^^^^^^^^^^^^
          called from user.py:5
            5 | f(1)
              | ^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `i` of f
          fix: make it a static argument; or loop with `ts.fori_loop`, and take elements of arrays with it
        """,
    )


def test_shape_argument() -> None:
    expect(
        """
        @ts.jit
        def f(n):
            return ts.zeros((n, 2))

        f(3)
        """,
        """
        ShapeError: zeros: the shape is (Tracer(i64[]), 2)
          at user.py:3 in f
            3 |     return ts.zeros((n, 2))
              |            ^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(3)
              | ^^^^
          rule: a shape is an int or a tuple of ints, known when the program is traced
          fix: make it a static argument, or take it from the shape of an array
        """,
    )


def test_numpy() -> None:
    expect(
        """
        import numpy as np

        @ts.jit
        def f(x):
            return np.sin(np.asarray(x))

        f(ts.ones(3))
        """,
        """
        ConcretizationError: conversion of a traced value of type f32[3] to a NumPy array
          at user.py:5 in f
            5 |     return np.sin(np.asarray(x))
              |                   ^^^^^^^^^^^^^
          called from user.py:7
            7 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `x` of f
          fix: use tessera's function in the place of `np.asarray`, or return the value and convert outside
        """,
    )


def test_while_bool() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            while x < 10:
                x = x * 2
            return x

        f(1.0)
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:3 in f
            3 |     while x < 10:
              |           ^^^^^^
          called from user.py:7
            7 | f(1.0)
              | ^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value was computed at user.py:3:11 (less)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_bool_under_vmap() -> None:
    expect(
        """
        def relu(x):
            return x if x > 0 else 0 * x

        ts.vmap(relu)(ts.ones(3))
        """,
        """
        ConcretizationError: `bool()` of a traced value of type bool[]
          at user.py:2 in relu
            2 |     return x if x > 0 else 0 * x
              |                 ^^^^^
          called from user.py:4
            4 | ts.vmap(relu)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `vmap` an array has a type but no value while the function is traced
          the value was computed at user.py:2:17 (greater)
          fix: use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make it a static argument
        """,
    )


def test_leak_through_a_global() -> None:
    expect(
        """
        kept = []

        @ts.jit
        def f(x):
            kept.append(x * 2)
            return x

        f(ts.ones(3))
        kept[0] + 1
        """,
        """
        TracerLeakError: use of a traced value of type f32[3] after `jit` has traced f
          at user.py:9
            9 | kept[0] + 1
              | ^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value was computed at user.py:5:17 (multiply)
          it is kept in the global `kept[0]`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_leak_of_an_argument() -> None:
    expect(
        """
        kept = []

        @ts.jit
        def f(x):
            kept.append(x)
            return x

        f(ts.ones(3))
        ts.sum(kept[0])
        """,
        """
        TracerLeakError: use of a traced value of type f32[3] after `jit` has traced f
          at user.py:9
            9 | ts.sum(kept[0])
              | ^^^^^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value is argument `x` of f
          it is kept in the global `kept[0]`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_leak_into_another_trace() -> None:
    expect(
        """
        kept = []

        @ts.jit
        def f(x):
            kept.append(x)
            return x

        @ts.jit
        def g(x):
            return x + kept[0]

        f(ts.ones(3))
        g(ts.ones(3))
        """,
        """
        TracerLeakError: use of a traced value of type f32[3] after `jit` has traced f
          at user.py:10 in g
            10 |     return x + kept[0]
               |            ^^^^^^^^^^^
          called from user.py:13
            13 | g(ts.ones(3))
               | ^^^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value is argument `x` of f
          it is kept in the global `kept[0]`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_leak_out_of_grad() -> None:
    expect(
        """
        kept = []

        def loss(x):
            kept.append(x * x)
            return ts.sum(x)

        ts.grad(loss)(ts.ones(3))
        ts.jit(lambda x: x + kept[0])(ts.ones(3))
        """,
        """
        TracerLeakError: use of a traced value of type f32[3] after `grad` has traced loss
          at user.py:8 in <lambda>
            8 | ts.jit(lambda x: x + kept[0])(ts.ones(3))
              |                  ^^^^^^^^^^^
          called from user.py:8
            8 | ts.jit(lambda x: x + kept[0])(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value was computed at user.py:4:17 (multiply)
          it is kept in the global `kept[0]`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_hash() -> None:
    expect(
        """
        ts.jit(lambda x: {x: 1})(1.0)
        """,
        """
        UnhashableError: hash of an array of type f32[]
          at user.py:1 in <lambda>
            1 | ts.jit(lambda x: {x: 1})(1.0)
              |                  ^^^^^^
          called from user.py:1
            1 | ts.jit(lambda x: {x: 1})(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: arrays are no keys of dicts or members of sets: `==` compares their elements
          fix: use `id(x)` as the key
        """,
    )


def test_value_dependent_shape() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return ts.nonzero(x)

        f(ts.ones(3))
        """,
        """
        ConcretizationError: `ts.nonzero` of a traced value of type f32[3]
          at user.py:3 in f
            3 |     return ts.nonzero(x)
              |            ^^^^^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `x` of f
          fix: use `ts.where(condition, x, y)`, which keeps the shape of its operands
        """,
    )


def test_in() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return 3.0 in x

        f(ts.ones(3))
        """,
        """
        ConcretizationError: `in` of a traced value of type bool[]
          at user.py:3 in f
            3 |     return 3.0 in x
              |            ^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value was computed at user.py:3:12 (any)
          fix: use `ts.any(x == value)`, which is an array
        """,
    )
