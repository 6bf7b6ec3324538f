"""Mistakes with `custom_jvp` and `custom_vjp`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_missing_defjvp() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x

        f(1.0)
        """,
        """
        GradError: custom_jvp: f has no rule
          at user.py:5
            5 | f(1.0)
              | ^^^^^^
          rule: a function under `ts.custom_jvp` is called after its rule is defined
          fix: define it with `defjvp` or `defjvps`
        """,
    )


def test_missing_defvjp() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(x):
            return x

        ts.grad(f)(1.0)
        """,
        """
        GradError: custom_vjp: f has no rule
          at user.py:5
            5 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: a function under `ts.custom_vjp` is called after its rule is defined
          fix: define it with `defvjp`
        """,
    )


def test_tangent_of_another_shape() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return ts.sum(x)

        @f.defjvp
        def f_jvp(primals, tangents):
            return f(*primals), tangents[0]

        ts.grad(f)(ts.ones(3))
        """,
        """
        ShapeError: custom_jvp: the tangent from the jvp rule of f is f32[3], and the result of f is f32[]
          at user.py:9
            9 | ts.grad(f)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a tangent has the type of what it belongs to
        """,
    )


def test_tangent_of_another_dtype() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return {"y": x}

        @f.defjvp
        def f_jvp(primals, tangents):
            return f(*primals), {"y": ts.astype(tangents[0], ts.float16)}

        ts.jvp(f, (ts.ones(3),), (ts.ones(3),))
        """,
        """
        DTypeError: custom_jvp: the tangent from the jvp rule of f at `['y']` is f16[3], and the result of f is f32[3]
          at user.py:9
            9 | ts.jvp(f, (ts.ones(3),), (ts.ones(3),))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a tangent has the type of what it belongs to
        """,
    )


def test_result_of_another_structure() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x, x

        @f.defjvp
        def f_jvp(primals, tangents):
            return [primals[0]], tangents

        ts.jvp(f, (1.0,), (1.0,))
        """,
        """
        PytreeError: custom_jvp: the result of the jvp rule of f and the result of f differ in structure; at result: the result of the jvp rule of f has a list, the result of f a tuple
          at user.py:9
            9 | ts.jvp(f, (1.0,), (1.0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the result of the jvp rule of f: [*]
          the result of f: (*, *)
        """,
    )


def test_rule_that_returns_no_pair() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x

        @f.defjvp
        def f_jvp(primals, tangents):
            return tangents[0]

        ts.grad(f)(1.0)
        """,
        """
        PytreeError: custom_jvp: the jvp rule of f returns one array, which is no pair
          at user.py:9
            9 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: a jvp rule returns the result and its tangent
          fix: return two results
        """,
    )


def test_number_of_defjvps() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x, y):
            return x * y

        f.defjvps(lambda t, out, x, y: t * y)
        ts.grad(f)(1.0, 2.0)
        """,
        """
        GradError: custom_jvp: defjvps of f got 1 functions for 2 arguments
          at user.py:6
            6 | ts.grad(f)(1.0, 2.0)
              | ^^^^^^^^^^^^^^^^^^^^
          rule: there is one function, or None, for each argument
        """,
    )


def test_result_of_fwd() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(x):
            return ts.sum(x)

        f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
        ts.grad(f)(ts.ones(3))
        """,
        """
        ShapeError: custom_vjp: the result of the fwd rule of f is f32[3], and the result of f is f32[]
          at user.py:6
            6 | ts.grad(f)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a rule computes what the function computes
        """,
    )


def test_bwd_without_a_tuple() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(x):
            return ts.sum(x)

        f.defvjp(lambda x: (f(x), x), lambda x, ct: ct * x)
        ts.grad(f)(ts.ones(3))
        """,
        """
        PytreeError: custom_vjp: the bwd rule of f returns one array, for 1 argument
          at user.py:6
            6 | ts.grad(f)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a bwd rule returns a tuple of one cotangent, or None, for each argument
          fix: return a tuple, as in `return (ct,)`
        """,
    )


def test_cotangent_of_another_shape() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(params):
            return ts.sum(params["w"])

        f.defvjp(lambda p: (f(p), None), lambda _, ct: ({"w": ct},))
        ts.grad(f)({"w": ts.ones(3)})
        """,
        """
        ShapeError: custom_vjp: the cotangent for `params` from the bwd rule of f is f32[], and the argument is f32[3]
          at user.py:6
            6 | ts.grad(f)({"w": ts.ones(3)})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a cotangent has the type of its argument
        """,
    )


def test_cotangent_of_another_structure() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(params):
            return ts.sum(params["w"])

        f.defvjp(lambda p: (f(p), None), lambda _, ct: (ct,))
        ts.grad(f)({"w": ts.ones(3)})
        """,
        """
        PytreeError: custom_vjp: the cotangent for `params` from the bwd rule of f is one array, and the argument is {'w': *}
          at user.py:6
            6 | ts.grad(f)({"w": ts.ones(3)})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a cotangent has the structure of its argument, with None where it is zero
        """,
    )


def test_forward_mode_of_custom_vjp() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(x):
            return x * 2

        f.defvjp(lambda x: (f(x), None), lambda _, ct: (2 * ct,))

        def g(x):
            return f(x)

        ts.jvp(g, (1.0,), (1.0,))
        """,
        """
        NotDifferentiableError: f has a rule for reverse mode only (defvjp), and is differentiated in forward mode
          at user.py:8 in g
            8 |     return f(x)
              |            ^^^^
          called from user.py:10
            10 | ts.jvp(g, (1.0,), (1.0,))
               | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what custom_vjp defines is a transpose, for `ts.grad`, `ts.vjp` and `ts.jacrev`
          fix: define the function with `ts.custom_jvp`, which gives both modes
        """,
    )


def test_derivative_of_a_value_from_outside() -> None:
    expect(
        """
        def loss(k):
            @ts.custom_jvp
            def f(x):
                return k * x

            f.defjvps(lambda t, out, x: k * t)
            return f(2.0)

        ts.grad(loss)(1.0)
        """,
        """
        GradError: custom_jvp: f uses a value from outside, which is differentiated
          at user.py:7 in loss
            7 |     return f(2.0)
              |            ^^^^^^
          called from user.py:9
            9 | ts.grad(loss)(1.0)
              | ^^^^^^^^^^^^^^^^^^
          rule: a rule gives derivatives with respect to arguments
          fix: pass the value as an argument, or wrap it in `ts.stop_gradient`
        """,
    )


def test_derivative_of_a_nondiff_argument() -> None:
    expect(
        """
        def f(x, n):
            return x * n

        f = ts.custom_jvp(f, nondiff_argnums=(1,))

        @f.defjvp
        def f_jvp(n, primals, tangents):
            return f(primals[0], n), tangents[0] * n

        ts.grad(lambda x: f(x, x))(1.0)
        """,
        """
        GradError: custom_jvp: an argument of f in nondiff_argnums is differentiated
          at user.py:10 in <lambda>
            10 | ts.grad(lambda x: f(x, x))(1.0)
               |                   ^^^^^^^
          called from user.py:10
            10 | ts.grad(lambda x: f(x, x))(1.0)
               | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: arguments in nondiff_argnums have no derivative
          fix: take it out of nondiff_argnums, or wrap it in `ts.stop_gradient`
        """,
    )


def test_position_in_nondiff_argnums() -> None:
    expect(
        """
        f = ts.custom_vjp(lambda x: x, nondiff_argnums=(1,))
        f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
        ts.grad(f)(1.0)
        """,
        """
        CallError: custom_vjp: nondiff_argnums has 1, but <lambda> is called with 1 argument
          at user.py:3
            3 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: nondiff_argnums are positions of arguments, counted from 0
        """,
    )


def test_arguments_that_the_function_does_not_take() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x):
            return x

        f.defjvps(lambda t, out, x: t)
        ts.grad(f)(1.0, 2.0)
        """,
        """
        CallError: custom_jvp: f: too many positional arguments
          at user.py:6
            6 | ts.grad(f)(1.0, 2.0)
              | ^^^^^^^^^^^^^^^^^^^^
          rule: its parameters are (x)
        """,
    )


def test_keyword_only_parameter() -> None:
    expect(
        """
        @ts.custom_jvp
        def f(x, *, n=2):
            return x

        f.defjvps(lambda t, out, x: t)
        ts.grad(f)(1.0)
        """,
        """
        CallError: custom_jvp: f has the keyword-only parameter `n`
          at user.py:6
            6 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: rules get arguments by position
          fix: make it a positional parameter, and name it in `nondiff_argnums`
        """,
    )


def test_name_in_nondiff_argnames() -> None:
    expect(
        """
        ts.custom_jvp(lambda x, n: x, nondiff_argnames="m")
        """,
        """
        CallError: custom_jvp: nondiff_argnames has 'm', which is no parameter of <lambda>
          at user.py:1
            1 | ts.custom_jvp(lambda x, n: x, nondiff_argnames="m")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: its parameters are x, n
        """,
    )


def test_parameters_of_rules() -> None:
    expect(
        """
        @ts.custom_vjp
        def f(x):
            return x

        f.defvjp(lambda x, y: (x, None), lambda residuals, ct: (ct,))
        ts.grad(f)(1.0)
        """,
        """
        CallError: custom_vjp: the fwd rule of f: <lambda>() missing 1 required positional argument: 'y'
          at user.py:6
            6 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: it is called with the arguments of the function
        """,
    )


def test_parameters_of_a_jvp_rule() -> None:
    expect(
        """
        f = ts.custom_jvp(lambda x, n: x, nondiff_argnums=1)
        f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
        ts.grad(f)(1.0, 2)
        """,
        """
        CallError: custom_jvp: the jvp rule of <lambda>: <lambda>() takes 2 positional arguments but 3 were given
          at user.py:3
            3 | ts.grad(f)(1.0, 2)
              | ^^^^^^^^^^^^^^^^^^
          rule: it is called with a tuple of the arguments and one of their tangents, after the arguments of nondiff_argnums
        """,
    )
