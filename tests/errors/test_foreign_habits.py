"""What users of NumPy, JAX and PyTorch write by habit."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

import pickle

import pytest

import tessera as ts
from tessera.errors import MissingNameError
from tests.errors.message import expect


def fix_of(program: str) -> str:
    """The remedy that a message gives."""
    from tests.errors.message import message

    return message(program).rpartition("fix: ")[2]


def test_a_method_that_is_a_function() -> None:
    expect(
        """
        ts.ones(6).reshape(2, 3)
        """,
        """
        MissingNameError: 'Array' object has no attribute 'reshape'
          at user.py:1
            1 | ts.ones(6).reshape(2, 3)
              | ^^^^^^^^^^^^^^^^^^
          fix: use the function `ts.reshape(x, ...)`
        """,
    )


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        ("ts.ones(4).view(2, 2)", "use `ts.reshape(x, shape)`"),
        ("ts.ones(4).cuda()", "use `x.to_device('cuda:0')`"),
        ("ts.ones(4).numpy()", "use `np.asarray(x)`"),
        ("ts.ones(4).backward()", "take the gradient of a function: `ts.grad(f)(x)`"),
        ("ts.ones(4).shpae", "did you mean `x.shape`?"),
        ("ts.ones(4).astype_('f')", "arrays are immutable: make a new one, as with `x = x.at[index].set(value)`"),
        ("ts.jit(lambda x: x.mean())(ts.ones(4))", "use the function `ts.mean(x, ...)`"),
        ("ts.sgrt(2.0)", "did you mean `ts.sqrt`?"),
        ("ts.array([1])", "use `ts.asarray`"),
        ("ts.concatenate([])", "use `ts.concat`"),
        ("ts.lax.scan", "what is in `jax.lax` is in `ts` itself: `ts.scan`, `ts.cond`, `ts.while_loop`"),
        ("ts.manual_seed(0)", "make a key: `ts.random.key(seed)`"),
    ],
)  # fmt: skip
def test_names(program: str, fix: str) -> None:
    assert fix_of(program) == fix


def test_code_may_ask_for_names() -> None:
    assert not hasattr(ts, "nothing_like_this")
    assert not hasattr(ts.ones(2), "nothing_like_this")
    assert getattr(ts.ones(2), "cuda", None) is None
    with pytest.raises(AttributeError, match="no attribute '_private'") as caught:
        _ = ts.ones(2)._private
    assert type(caught.value) is AttributeError
    with pytest.raises(MissingNameError) as found:
        _ = ts.ones(2).nothing_like_this
    copy = pickle.loads(pickle.dumps(found.value))
    assert str(copy) == str(found.value)


@pytest.mark.parametrize(
    ("name", "fix"),
    [("conv2d", "use `ts.nn.conv`"), ("gelu", "use `ts.nn.gelu`"), ("clamp", "use `ts.clip`")],
)
def test_names_of_layers(name: str, fix: str) -> None:
    with pytest.raises(MissingNameError) as found:
        getattr(ts, name)
    assert str(found.value).endswith(f"fix: {fix}")


def test_the_names_advised_are_there() -> None:
    import re

    from tessera.graph.namespace.foreign_names import ATTRIBUTES, FUNCTIONS

    for text in (*FUNCTIONS.values(), *ATTRIBUTES.values()):
        for path in re.findall(r"`ts\.([\w.]+)", text):
            found: object = ts
            for name in path.split("."):
                found = getattr(found, name)
        for name in re.findall(r"`x\.(\w+)", text):
            assert hasattr(ts.ones((2, 2)), name), name
    assert not [name for name in FUNCTIONS if hasattr(ts, name)]
    assert not [name for name in ATTRIBUTES if hasattr(ts.ones(2), name)]


def test_a_keyword_of_another_library() -> None:
    expect(
        """
        ts.sum(ts.ones((2, 3)), dim=1, keepdim=True)
        """,
        """
        CallError: sum: got an unexpected keyword argument 'dim'
          at user.py:1
            1 | ts.sum(ts.ones((2, 3)), dim=1, keepdim=True)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: its parameters are (x, /, *, axis=None, dtype=None, keepdims=False)
          fix: write `axis=`
        """,
    )


def test_a_shape_in_several_arguments() -> None:
    expect(
        """
        ts.zeros(3, 4)
        """,
        """
        CallError: zeros: takes 1 positional argument but 2 were given
          at user.py:1
            1 | ts.zeros(3, 4)
              | ^^^^^^^^^^^^^^
          rule: its parameters are (shape, *, dtype=None, device=None)
          fix: give the shape as a tuple, `zeros((2, 3))`, and what follows by name
        """,
    )


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        ("ts.concat(ts.ones(2), ts.ones(2))", "give the arrays as a list: `concat([x, y])`"),
        ("ts.std(ts.ones(2), unbiased=True)", "write `correction=`"),
        ("ts.sum(ts.ones(2), keepdim=True)", "write `keepdims=`"),
        ("ts.sum(ts.ones(2), 0)", "give what follows `*` by name"),
    ],
)
def test_calls(program: str, fix: str) -> None:
    assert fix_of(program) == fix


def test_type_errors_of_the_users_own_functions_stay() -> None:
    def f(x: object) -> object:
        return x

    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        ts.jit(lambda x: (f(), x)[1])(1.0)  # pyright: ignore[reportCallIssue]
    assert type(caught.value) is TypeError


def test_assignment_with_at() -> None:
    expect(
        """
        x = ts.zeros(3)
        x.at[0] += 1.0
        """,
        """
        ImmutableError: assignment to elements of an array of type f32[3]
          at user.py:2
            2 | x.at[0] += 1.0
              | ^^^^^^^^^^^^^^
          rule: arrays are immutable; `x.at[index]` names elements of a new one
          fix: give the result a name: `x = x.at[index].set(value)`, or `.add(value)` for `+=`
        """,
    )


def test_a_string_beside_an_array() -> None:
    expect(
        """
        ts.ones(3) + "1"
        """,
        """
        LeafError: add: got a str beside an array
          at user.py:1
            1 | ts.ones(3) + "1"
              | ^^^^^^^^^^^^^^^^
          rule: operators take arrays and Python numbers
          fix: convert it first, as with `float(text)`
        """,
    )


def test_none_beside_an_array() -> None:
    expect(
        """
        bias = None
        ts.ones(3) * bias
        """,
        """
        LeafError: multiply: got None beside an array
          at user.py:2
            2 | ts.ones(3) * bias
              | ^^^^^^^^^^^^^^^^^
          rule: operators take arrays and Python numbers
        """,
    )


def test_numpy_in_a_differentiated_function() -> None:
    expect(
        """
        import numpy as np

        def loss(x):
            return ts.sum(x * np.sum(np.sin(x)))

        ts.grad(loss)(ts.ones(3))
        """,
        """
        ConcretizationError: conversion of a traced value of type f32[3] to a NumPy array
          at user.py:4 in loss
            4 |     return ts.sum(x * np.sum(np.sin(x)))
              |                              ^^^^^^^^^
          called from user.py:6
            6 | ts.grad(loss)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what NumPy computes is not traced: `grad` would lose it
          the value is argument `x` of loss
          fix: use tessera's function in the place of `np.sin`, or return the value and convert outside
        """,
    )


def test_integers_have_no_derivative_to_lose() -> None:
    import numpy as np

    def f(x):
        order = np.asarray(ts.argsort(x))
        return x[int(order[-1])] ** 2

    assert ts.grad(f)(ts.asarray([1.0, 3.0, 2.0])).tolist() == [0.0, 6.0, 0.0]


def test_a_mutable_default() -> None:
    expect(
        """
        @ts.jit
        def f(x, seen=[]):
            seen.append(x)
            return sum(seen)

        f(1.0)
        f(ts.ones(2))
        """,
        """
        TracerLeakError: use of a traced value of type f32[] after `jit` has traced f
          at user.py:4 in f
            4 |     return sum(seen)
              |            ^^^^^^^^^
          called from user.py:7
            7 | f(ts.ones(2))
              | ^^^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value is argument `x` of f
          it is kept in a default argument of f, `seen[0]`
          fix: make the default `None`, and the container in the function: all calls share a default
        """,
    )


def test_matrices_that_fit_transposed() -> None:
    assert fix_of("ts.ones((3, 4)) @ ts.ones((5, 4))") == "transpose the second: `x1 @ x2.T`"
    assert fix_of("ts.ones((3, 4)) @ ts.ones((3, 5))") == "transpose the first: `x1.T @ x2`"
    program = "ts.ones((3, 4)) @ ts.ones((3, 4))"
    assert fix_of(program) == "transpose the second: `x1 @ x2.T`, or the first: `x1.T @ x2`"


def test_a_dtype_of_another_name() -> None:
    assert fix_of("ts.zeros(3, dtype='float')") == "use `ts.float32`"
    assert fix_of("ts.zeros(3, dtype='complx64')") == "use `ts.complex64`"


def test_sequences_of_different_lengths() -> None:
    expect(
        """
        ts.asarray([[[1, 2], [3]], [[1, 2], [3, 4]]])
        """,
        """
        ShapeError: asarray: the nested sequences have different lengths
          at user.py:1
            1 | ts.asarray([[[1, 2], [3]], [[1, 2], [3, 4]]])
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: an array is rectangular
          `x[0][0]` has 2 items, but `x[0][1]` has 1 item
        """,
    )


def test_an_end_of_a_slice() -> None:
    expect(
        """
        ts.jit(lambda x, n: x[:n])(ts.ones(3), 2)
        """,
        """
        ConcretizationError: use of a traced value of type i64[] as an end of a slice
          at user.py:1 in <lambda>
            1 | ts.jit(lambda x, n: x[:n])(ts.ones(3), 2)
              |                     ^^^^^
          called from user.py:1
            1 | ts.jit(lambda x, n: x[:n])(ts.ones(3), 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: inside `jit` an array has a type but no value while the function is traced
          the value is argument `n` of <lambda>
          fix: gather with an index array, `x[start + ts.arange(length)]`, or make it static
        """,
    )


def test_assignment_to_a_setting() -> None:
    expect(
        """
        ts.config.debug_nans = True
        """,
        """
        ConfigError: config: assignment to debug_nans
          at user.py:1
            1 | ts.config.debug_nans = True
              | ^^^^^^^^^^^^^^^^^^^^
          rule: settings are changed for a block, or for the process by its environment
          fix: write `with ts.config.update(debug_nans=True):`, or set TESSERA_DEBUG_NANS in the environment
        """,
    )


def test_a_setting_that_does_not_exist() -> None:
    text = fix_of("with ts.config.update(debug_nan=True):\n    pass")
    assert text == "did you mean 'debug_nans'?"


def test_trees_of_different_structure() -> None:
    expect(
        """
        params, grads = {"w": 1.0, "b": 2.0}, {"w": 1.0}
        ts.pytree.map_(lambda p, g: p - g, params, grads)
        """,
        """
        PytreeError: map: tree 2 does not have the structure of the first; at tree: only the first has 'b'
          at user.py:2
            2 | ts.pytree.map_(lambda p, g: p - g, params, grads)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          first: {'b': *, 'w': *}
          tree 2: {'w': *}
        """,
    )


def test_a_shift_that_is_no_integer() -> None:
    expect(
        """
        ts.roll(ts.ones(3), 3 / 2)
        """,
        """
        DTypeError: roll: got 1.5
          at user.py:1
            1 | ts.roll(ts.ones(3), 3 / 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer, known when the program is traced
        """,
    )


def test_a_format_of_a_traced_value() -> None:
    program = """
    @ts.jit
    def f(x):
        print(f"{x:.3f}")
        return x

    f(1.0)
    """
    assert fix_of(program) == "print it with `ts.debug.print`, or return it"
