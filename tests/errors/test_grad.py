"""Mistakes with `grad`, `value_and_grad`, `vjp`, `jvp`."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tessera.ir.core import Op
from tests.errors.message import expect


def test_integer_input() -> None:
    expect(
        """
        def loss(params):
            return ts.sum(params["w"])

        ts.grad(loss)({"w": ts.asarray([1, 2])})
        """,
        """
        GradError: grad: argument `params['w']` of loss has dtype int64, which has no derivative
          at user.py:4
            4 | ts.grad(loss)({"w": ts.asarray([1, 2])})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: differentiated inputs are floating-point or complex numbers
          fix: convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`
        """,
    )


def test_integer_second_argument() -> None:
    expect(
        """
        def loss(w, n):
            return ts.sum(w) * n

        ts.grad(loss, argnums=(0, 1))(ts.ones(3), 2)
        """,
        """
        GradError: grad: argument `n` of loss has dtype int64, which has no derivative
          at user.py:4
            4 | ts.grad(loss, argnums=(0, 1))(ts.ones(3), 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: differentiated inputs are floating-point or complex numbers
          fix: convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`
        """,
    )


def test_vector_output() -> None:
    expect(
        """
        ts.grad(lambda x: x * x)(ts.ones(3))
        """,
        """
        GradError: grad: <lambda> returns f32[3]
          at user.py:1
            1 | ts.grad(lambda x: x * x)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the function returns one real number: a floating-point array without dims
          fix: reduce it, as with `ts.sum` or `ts.mean`; or use `ts.vjp`
        """,
    )


def test_integer_output() -> None:
    expect(
        """
        ts.grad(lambda x: ts.argmax(x))(ts.ones(3))
        """,
        """
        GradError: grad: <lambda> returns i64[]
          at user.py:1
            1 | ts.grad(lambda x: ts.argmax(x))(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the function returns one real number: a floating-point array without dims
          fix: integers and bools have no derivative; return a float
        """,
    )


def test_complex_output() -> None:
    expect(
        """
        ts.grad(lambda x: x * 1j)(1.0)
        """,
        """
        GradError: grad: <lambda> returns c64[]
          at user.py:1
            1 | ts.grad(lambda x: x * 1j)(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the function returns one real number: a floating-point array without dims
          fix: return a real number made of it, such as `ts.abs(z)` or `ts.real(z)`; of a holomorphic function take `ts.grad(f, holomorphic=True)`
        """,
    )


def test_several_outputs() -> None:
    expect(
        """
        def loss(x):
            return ts.sum(x), x

        ts.grad(loss)(ts.ones(3))
        """,
        """
        GradError: grad: loss returns 2 arrays
          at user.py:4
            4 | ts.grad(loss)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the function returns one real number: a floating-point array without dims
          fix: return the sum of all terms; for further results use has_aux=True
        """,
    )


def test_no_output() -> None:
    expect(
        """
        def loss(x):
            ts.sum(x)

        ts.grad(loss)(ts.ones(3))
        """,
        """
        GradError: grad: loss returns no array
          at user.py:4
            4 | ts.grad(loss)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the function returns one real number: a floating-point array without dims
          fix: return the value to differentiate
        """,
    )


def test_has_aux_without_pair() -> None:
    expect(
        """
        ts.value_and_grad(lambda x: ts.sum(x), has_aux=True)(ts.ones(3))
        """,
        """
        GradError: value_and_grad: with has_aux=True, <lambda> returns one array, which is no pair
          at user.py:1
            1 | ts.value_and_grad(lambda x: ts.sum(x), has_aux=True)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: with has_aux=True the function returns `(value, aux)`
          fix: return two results, or leave has_aux out
        """,
    )


def test_has_aux_vector() -> None:
    expect(
        """
        ts.grad(lambda x: (x, x), has_aux=True)(ts.ones(3))
        """,
        """
        GradError: grad: <lambda> returns f32[3]
          at user.py:1
            1 | ts.grad(lambda x: (x, x), has_aux=True)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the first result is one real number: a floating-point array without dims
          fix: reduce it, as with `ts.sum` or `ts.mean`; or use `ts.vjp`
        """,
    )


def test_argnums_out_of_range() -> None:
    expect(
        """
        def loss(x, y):
            return ts.sum(x * y)

        ts.grad(loss, argnums=2)(ts.ones(3), ts.ones(3))
        """,
        """
        GradError: grad: argnums has 2, but loss is called with 2 positional arguments
          at user.py:4
            4 | ts.grad(loss, argnums=2)(ts.ones(3), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: argnums are positions of positional arguments, counted from 0
        """,
    )


def test_argnums_twice() -> None:
    expect(
        """
        ts.grad(lambda x, y: x * y, argnums=(0, -2))(1.0, 2.0)
        """,
        """
        GradError: grad: argnums=(0, -2) names an argument twice
          at user.py:1
            1 | ts.grad(lambda x, y: x * y, argnums=(0, -2))(1.0, 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: argnums are distinct
        """,
    )


def test_argument_is_no_array() -> None:
    expect(
        """
        ts.grad(lambda x: x)("1.0")
        """,
        """
        LeafError: grad: argument `x` of <lambda> is of type str
          at user.py:1
            1 | ts.grad(lambda x: x)("1.0")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: leaves of arguments and results are arrays of numbers or bools, or Python numbers
        """,
    )


def test_cotangent_structure() -> None:
    expect(
        """
        y, pullback = ts.vjp(lambda x: {"a": x, "b": 2 * x}, ts.ones(3))
        pullback({"a": ts.ones(3)})
        """,
        """
        PytreeError: vjp: the cotangent and the output differ in structure; at cotangent: only the output has 'b'
          at user.py:2
            2 | pullback({"a": ts.ones(3)})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the cotangent: {'a': *}
          the output: {'a': *, 'b': *}
        """,
    )


def test_cotangent_shape() -> None:
    expect(
        """
        y, pullback = ts.vjp(lambda x: [x, ts.sum(x)], ts.ones(3))
        pullback([ts.ones(3), ts.ones(3)])
        """,
        """
        ShapeError: vjp: the cotangent at `[1]` is f32[3], the output f32[]
          at user.py:2
            2 | pullback([ts.ones(3), ts.ones(3)])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a cotangent has the shape and the dtype of the output
        """,
    )


def test_cotangent_dtype() -> None:
    expect(
        """
        y, pullback = ts.vjp(lambda x: 2 * x, ts.ones(3))
        pullback(ts.ones(3, dtype=ts.float64))
        """,
        """
        DTypeError: vjp: the cotangent is f64[3], the output f32[3]
          at user.py:2
            2 | pullback(ts.ones(3, dtype=ts.float64))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a cotangent has the shape and the dtype of the output
        """,
    )


def test_tangent_structure() -> None:
    expect(
        """
        ts.jvp(lambda x, y: x * y, (1.0, 2.0), (1.0,))
        """,
        """
        PytreeError: jvp: the tuple of tangents and that of primals differ in structure; at tangents: the tuple of tangents has length 1, that of primals 2
          at user.py:1
            1 | ts.jvp(lambda x, y: x * y, (1.0, 2.0), (1.0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the tuple of tangents: (*,)
          that of primals: (*, *)
        """,
    )


def test_tangent_shape() -> None:
    expect(
        """
        def f(params):
            return params["w"] * 2

        ts.jvp(f, ({"w": ts.ones(3)},), ({"w": ts.ones(4)},))
        """,
        """
        ShapeError: jvp: argument `params['w']` of f: its tangent is f32[4], its primal f32[3]
          at user.py:4
            4 | ts.jvp(f, ({"w": ts.ones(3)},), ({"w": ts.ones(4)},))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a tangent has the shape and the dtype of its primal
        """,
    )


def test_vjp_of_integers() -> None:
    expect(
        """
        ts.vjp(lambda x: x, 3)
        """,
        """
        GradError: vjp: argument `x` of <lambda> has dtype int64, which has no derivative
          at user.py:1
            1 | ts.vjp(lambda x: x, 3)
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: differentiated inputs are floating-point or complex numbers
          fix: convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`
        """,
    )


def test_missing_rule() -> None:
    program = """
        from tessera.graph.ops.base import Family, GraphOp
        from tessera.graph.trace import bind
        from tessera.ir.core import Value
        from tessera.ir.opdef import operand

        class Spin(GraphOp):
            name = "test.spin"
            family = Family.REARRANGE
            x: Value = operand()

            def infer(self):
                return self.x.type

        def f(x):
            return 2 * bind(Spin, x)

        ts.jit(ts.grad(f))(1.0)
        """
    try:
        expect(
            program,
            """
            MissingRuleError: test.spin: there is no rule 'jvp (or partial)' for this operation
              at user.py:15 in f
                15 |     return 2 * bind(Spin, x)
                   |                ^^^^^^^^^^^^^
              called from user.py:17
                17 | ts.jit(ts.grad(f))(1.0)
                   | ^^^^^^^^^^^^^^^^^^^^^^^
              rule: whatever uses 'jvp (or partial)' works on operations whose class defines it
              fix: write the method 'jvp (or partial)' on the class of test.spin
            """,
        )
    finally:
        Op.registry.pop("test.spin")


def test_no_function() -> None:
    expect(
        """
        ts.grad(3)
        """,
        """
        CallError: grad: got a value of type int, which is no function
          at user.py:1
            1 | ts.grad(3)
              | ^^^^^^^^^^
          rule: `grad` takes a function of arrays
          fix: pass arguments to what it returns: `ts.grad(f)(x)`
        """,
    )


def test_holomorphic_of_a_real_number() -> None:
    expect(
        """
        ts.grad(lambda z: z * z, holomorphic=True)(1.0)
        """,
        """
        GradError: grad: argument `z` of <lambda> has dtype float32, with holomorphic=True
          at user.py:1
            1 | ts.grad(lambda z: z * z, holomorphic=True)(1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a holomorphic function is one of complex numbers
          fix: convert it (`ts.astype(x, ts.complex64)`), or leave out holomorphic=True
        """,
    )


def test_holomorphic_with_a_real_result() -> None:
    expect(
        """
        ts.grad(lambda z: ts.abs(z), holomorphic=True)(1j)
        """,
        """
        GradError: grad: <lambda> returns f32[]
          at user.py:1
            1 | ts.grad(lambda z: ts.abs(z), holomorphic=True)(1j)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: with holomorphic=True the function returns one complex number: an array without dims
          fix: leave out holomorphic=True
        """,
    )


def test_jacobian_of_complex_numbers() -> None:
    expect(
        """
        ts.jacfwd(lambda z: z * z)(1j)
        """,
        """
        GradError: jacfwd: argument `z` of <lambda> has dtype complex64
          at user.py:1
            1 | ts.jacfwd(lambda z: z * z)(1j)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the derivative of a complex number is no complex number, unless the function is holomorphic
          fix: pass holomorphic=True if it is; else take real and imaginary parts apart
        """,
    )


def test_jacobian_with_a_complex_result() -> None:
    expect(
        """
        def f(x):
            return x * 1j

        ts.jacrev(f)(ts.ones(2))
        """,
        """
        GradError: jacrev: a result of f has dtype complex64
          at user.py:4
            4 | ts.jacrev(f)(ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the derivative of a complex number is no complex number, unless the function is holomorphic
          fix: pass holomorphic=True if it is; else take real and imaginary parts apart
        """,
    )


def test_jacobian_with_an_integer_result() -> None:
    expect(
        """
        ts.jacrev(lambda x: (x, ts.argmax(x)))(ts.ones(2))
        """,
        """
        GradError: jacrev: a result of <lambda> is i64[], which has no derivative
          at user.py:1
            1 | ts.jacrev(lambda x: (x, ts.argmax(x)))(ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: results of reverse mode are floating-point or complex numbers
          fix: leave it out of the result, or return it by has_aux=True
        """,
    )


def test_transpose_of_what_is_not_linear() -> None:
    expect(
        """
        def f(x):
            y = 2 * x
            return y * y

        ts.linear_transpose(f, ts.ones(3))
        """,
        """
        GradError: linear_transpose: f is not linear: it takes multiply of an argument
          at user.py:3 in f
            3 |     return y * y
              |            ^^^^^
          called from user.py:5
            5 | ts.linear_transpose(f, ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: each operation is linear in what is computed from the arguments, taken together
          fix: take `ts.vjp` for the transposed derivative at a point
        """,
    )


def test_transpose_of_integers() -> None:
    expect(
        """
        ts.linear_transpose(lambda x: 2 * x, ts.ShapeDtypeStruct((3,), ts.int32))
        """,
        """
        GradError: linear_transpose: argument `x` of <lambda> has dtype int32, which has no derivative
          at user.py:1
            1 | ts.linear_transpose(lambda x: 2 * x, ts.ShapeDtypeStruct((3,), ts.int32))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what is transposed is linear in floating-point or complex numbers
          fix: pass it by a closure
        """,
    )


def test_arguments_of_a_converted_closure() -> None:
    expect(
        """
        def f(k):
            g, values = ts.closure_convert(lambda x: k * x, 1.0)
            return g(2.0)

        ts.grad(f)(1.0)
        """,
        """
        CallError: closure_convert: the converted function got 0 values after its arguments
          at user.py:3 in f
            3 |     return g(2.0)
              |            ^^^^^^
          called from user.py:5
            5 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: it takes the 1 values that it was returned with
        """,
    )


def test_primals_that_are_no_tuple() -> None:
    expect(
        """
        ts.jvp(lambda x: x * x, 1.0, 1.0)
        """,
        """
        CallError: jvp: primals is of type float
          at user.py:1
            1 | ts.jvp(lambda x: x * x, 1.0, 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: primals is a tuple with one entry for each argument
          fix: for one argument pass a tuple of one, as in `(x,)`
        """,
    )
