"""Mistakes with the arguments and results of `jit` and `compile`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_argument_is_no_array() -> None:
    expect(
        """
        @ts.jit
        def f(x, mode):
            return x

        f(ts.ones(3), {"kind": "fast"})
        """,
        """
        LeafError: jit: argument `mode['kind']` of f is of type str
          at user.py:5
            5 | f(ts.ones(3), {"kind": "fast"})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: name it in `static_argnames`, or register its class as a pytree
        """,
    )


def test_argument_is_an_object_array() -> None:
    expect(
        """
        import numpy as np

        @ts.jit
        def f(x):
            return x

        f(np.array([None]))
        """,
        """
        LeafError: jit: argument `x` of f is a NumPy array of dtype object
          at user.py:7
            7 | f(np.array([None]))
              | ^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: convert it to a numeric dtype
        """,
    )


def test_result_is_no_array() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return {"out": x, "name": "f"}

        f(ts.ones(3))
        """,
        """
        LeafError: jit: `result['name']` of f is of type str
          at user.py:5
            5 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: return arrays, numbers, or containers of them
        """,
    )


def test_result_is_a_function() -> None:
    expect(
        """
        ts.jit(lambda x: print)(1.0)
        """,
        """
        LeafError: jit: the result of <lambda> is of type builtin_function_or_method
          at user.py:1
            1 | ts.jit(lambda x: print)(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: return arrays, numbers, or containers of them
        """,
    )


def test_static_argument_is_a_list() -> None:
    expect(
        """
        from functools import partial

        @partial(ts.jit, static_argnames="axes")
        def f(x, axes):
            return ts.sum(x, axis=tuple(axes))

        f(ts.ones((2, 3)), axes=[0, 1])
        """,
        """
        StaticArgumentError: jit: static argument `axes` of f is of type list, which cannot be hashed
          at user.py:7
            7 | f(ts.ones((2, 3)), axes=[0, 1])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: static arguments are part of the cache key: they hash, and compare by value
          fix: pass a hashable value, such as a tuple for a list, or make it a normal argument
        """,
    )


def test_static_argument_is_an_array() -> None:
    expect(
        """
        f = ts.jit(lambda x, n: x * n, static_argnums=1)
        f(ts.ones(3), ts.asarray(2))
        """,
        """
        StaticArgumentError: jit: static argument `n` of <lambda> is an array, which cannot be hashed
          at user.py:2
            2 | f(ts.ones(3), ts.asarray(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: static arguments are part of the cache key: they hash, and compare by value
          fix: make it a normal argument
        """,
    )


def test_static_argnames_unknown() -> None:
    expect(
        """
        def f(x, n):
            return x * n

        ts.jit(f, static_argnames="m")
        """,
        """
        StaticArgumentError: jit: static_argnames has 'm', which is no parameter of f
          at user.py:4
            4 | ts.jit(f, static_argnames="m")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: its parameters are x, n
        """,
    )


def test_static_argnums_out_of_range() -> None:
    expect(
        """
        def f(x, n):
            return x * n

        ts.jit(f, static_argnums=2)
        """,
        """
        StaticArgumentError: jit: static_argnums has 2, but f has 2 positional parameters
          at user.py:4
            4 | ts.jit(f, static_argnums=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: static_argnums are positions of parameters
        """,
    )


def test_unknown_stage() -> None:
    expect(
        """
        ts.compile(lambda x: x, dump=["graph", "hlo"])
        """,
        """
        OptionError: compile: dump has 'hlo', which is no stage
          at user.py:1
            1 | ts.compile(lambda x: x, dump=["graph", "hlo"])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the stages are graph, sched, schedule, tirh, tile, tirt, target, llvm, asm, host, ptx, sass
        """,
    )


def test_missing_argument() -> None:
    expect(
        """
        @ts.jit
        def f(x, y):
            return x + y

        f(ts.ones(3))
        """,
        """
        CallError: jit: f() missing 1 required positional argument: 'y'
          at user.py:5
            5 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: its parameters are (x, y)
        """,
    )


def test_integer_too_large() -> None:
    expect(
        """
        ts.jit(lambda x: x)(2**70)
        """,
        """
        DTypeError: the number 1180591620717411303424 does not fit into int64
          at user.py:1
            1 | ts.jit(lambda x: x)(2**70)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a Python number becomes an array of int64
          fix: use a float
        """,
    )


def test_method_of_an_unknown_class() -> None:
    expect(
        """
        class Model:
            @ts.jit
            def __call__(self, x):
                return x

        Model()(ts.ones(3))
        """,
        """
        LeafError: jit: argument `self` of __call__ is of type Model
          at user.py:6
            6 | Model()(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: name it in `static_argnames`, or register its class as a pytree
        """,
    )


def test_no_function() -> None:
    expect(
        """
        x = ts.ones(3)
        ts.jit(x)
        """,
        """
        CallError: jit: got a value of type Array, which is no function
          at user.py:2
            2 | ts.jit(x)
              | ^^^^^^^^^
          rule: `jit` takes a function of arrays
          fix: pass arguments to the compiled function: `ts.jit(f)(x)`
        """,
    )


def test_no_function_to_compile() -> None:
    expect(
        """
        ts.compile(3)
        """,
        """
        CallError: compile: got a value of type int, which is no function
          at user.py:1
            1 | ts.compile(3)
              | ^^^^^^^^^^^^^
          rule: `compile` takes a function of arrays
          fix: pass arguments to the compiled function: `ts.compile(f)(x)`
        """,
    )


def test_long_double_argument() -> None:
    expect(
        """
        import numpy as np
        ts.jit(ts.sin)(np.zeros(2, np.longdouble))
        """,
        """
        LeafError: jit: argument `x` of sin is a NumPy array of dtype float128
          at user.py:2
            2 | ts.jit(ts.sin)(np.zeros(2, np.longdouble))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
          fix: convert it first, as with `x.astype(np.float64)`
        """,
    )


def test_donated_array_used_again() -> None:
    expect(
        """
        @ts.jit(donate_argnums=0)
        def step(state):
            return state + 1

        state = ts.zeros(3)
        step(state)
        step(state)
        """,
        """
        DonatedError: use of an array of shape [3] and dtype float32 after it was donated to step
          at user.py:7
            7 | step(state)
              | ^^^^^^^^^^^
          rule: the memory of a donated argument belongs to the call that it was passed to
          it was donated at user.py:6
            6 | step(state)
              | ^^^^^^^^^^^
          fix: use what the call returned, or leave the argument out of `donate_argnums`
        """,
    )


def test_static_and_donated() -> None:
    expect(
        """
        ts.jit(lambda x, n: x, static_argnums=1, donate_argnames="n")
        """,
        """
        StaticArgumentError: jit: `n` of <lambda> is both static and donated
          at user.py:1
            1 | ts.jit(lambda x, n: x, static_argnums=1, donate_argnames="n")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: arrays are donated, and static arguments are no arrays
        """,
    )


def test_unknown_name_in_donate_argnames() -> None:
    expect(
        """
        ts.jit(lambda x: x, donate_argnames="state")
        """,
        """
        StaticArgumentError: jit: donate_argnames has 'state', which is no parameter of <lambda>
          at user.py:1
            1 | ts.jit(lambda x: x, donate_argnames="state")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: its parameters are x
        """,
    )


def test_function_without_profile() -> None:
    expect(
        """
        @ts.function
        def f(x):
            return x

        f.profile(1.0)
        """,
        """
        NotYetError: function: f cannot be profiled yet
          at user.py:5
            5 | f.profile(1.0)
              | ^^^^^^^^^^^^^^
          rule: `profile()` of a function is planned
          fix: `f.lower(...).kernels()` lists kernels with their reasons; profilers such as perf and Nsight show them by name
        """,
    )


def test_autodiff_of_a_loop() -> None:
    expect(
        """
        @ts.autodiff
        def f(x):
            return ts.while_loop(lambda x: x > 1, lambda x: x / 2, x)

        f(3.0)
        """,
        """
        NotDifferentiableError: while_loop cannot be differentiated in reverse mode
          at user.py:3 in f
            3 |     return ts.while_loop(lambda x: x > 1, lambda x: x / 2, x)
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(3.0)
              | ^^^^^^
          rule: reverse mode would have to store an unknown number of steps
          fix: use forward mode (`ts.jvp`), or a loop with a known number of steps: `ts.scan`, or `ts.fori_loop` between Python numbers
        """,
    )


def test_argnums_that_are_no_numbers() -> None:
    expect(
        """
        ts.jit(lambda x: x, donate_argnums="x")
        """,
        """
        OptionError: jit: donate_argnums is 'x'
          at user.py:1
            1 | ts.jit(lambda x: x, donate_argnums="x")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it has positions, ints: one, or several in a tuple
        """,
    )
