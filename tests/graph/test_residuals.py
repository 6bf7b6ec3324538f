"""What linear parts need of forward parts: no windows, nothing repeated, no copies of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.transforms.differentiate import linearize
from tessera.graph.transforms.evaluate import evaluate, trace_function
from tessera.graph.transforms.residuals import smaller
from tessera.ir.core import Func, Value
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType

RNG = np.random.default_rng(11)


def data(*shape: int) -> ts.Array:
    return ts.asarray(RNG.standard_normal(shape).astype(np.float32))


def conv(x: Any, w: Any) -> Any:
    return ts.conv_general(x, w, (1, 1), "SAME")


def times_itself(x: Any) -> Any:
    return x * x


Q, K, K2 = data(40, 4), data(50, 4), data(300, 129)
X, W, ROW = data(2, 3, 9, 8), data(4, 3, 3, 3), data(8)
# Functions, their arguments, and how many residuals are arguments, and are not.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, int]] = {
    "windows": (conv, (X, W), 2, 0),
    "repeated": (lambda x, r: x * r, (X, ROW), 2, 0),
    "turned": (lambda x: times_itself(ts.permute_dims(x, (1, 0, 2, 3))), (X,), 1, 0),
    "repeated results": (lambda x, r: x * ts.exp(r), (X, ROW), 1, 1),
    "parts": (lambda x: times_itself(x[:, 1:, 2:5]), (X,), 1, 0),
    "parts of results": (lambda x: times_itself(ts.exp(x)[:, 1:, 2:5]), (X,), 0, 2),
    "nothing moves": (lambda x: ts.sin(x), (X,), 0, 1),
    # The largest score of each row, whether there is one, and the sum of the weights.
    "scores": (lambda q, k: ts.nn.attention(q, k, k, causal=True), (Q, K), 2, 3),
    "scores of deep products": (lambda q, k: ts.exp(q @ ts.matrix_transpose(k)), (Q, K), 2, 0),
    "too deep": (lambda q, k: ts.exp(q @ ts.matrix_transpose(k)), (data(300, 129), K2), 2, 1),
    "no larger": (lambda q, k: ts.exp(q @ ts.matrix_transpose(k)), (data(5, 4), data(6, 4)), 2, 1),
}


def split(fn: Callable[..., Any], args: Any) -> tuple[Func, Func, list[Any], list[bool], int]:
    func = ts.make_graph(fn)(*args)
    return linearize(func, [True] * len(func.args))


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_same_and_residuals_small(name: str) -> None:
    fn, args, given, kept = CASES[name]
    forward, linear, captured, _, count = split(fn, args)
    assert not captured
    tangents = [data(*x.shape) for x in args]
    outs = evaluate(forward, args)
    wanted = evaluate(linear, [*outs[len(outs) - count :], *tangents])
    first, second, places = smaller(forward, linear, count)
    assert sum(isinstance(p, int) for p in places) == given
    assert sum(isinstance(p, Value) for p in places) == kept
    found = evaluate(first, args)
    assert len(found) == len(outs) - count + kept
    rest = iter(found[len(outs) - count :])
    needed = [args[p] if isinstance(p, int) else next(rest) for p in places]
    for a, b in zip(evaluate(second, [*needed, *tangents]), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_sizes_that_nobody_knows_stay() -> None:
    types = [TensorType(shape, ts.float32) for shape in ((sym("N"), 4), (4,))]
    func, _ = trace_function(lambda x, r: [x * ts.exp(r)], types, "jit")
    forward, linear, _, _, count = linearize(func, [True, True])
    first, _, places = smaller(forward, linear, count)
    # The product, the exponential, and the rows that repeat it; x is an argument.
    assert len(first.outputs) == 3
    assert sum(isinstance(p, int) for p in places) == 1


def test_jitted_functions_in_gradients() -> None:
    f = ts.jit(lambda x, r: ts.sum(ts.tanh(conv(x, W) * r)))
    found = ts.grad(f, argnums=(0, 1))(X, ROW)
    wanted = ts.jit(ts.grad(f, argnums=(0, 1)))(X, ROW)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def test_long_chains_stay() -> None:
    """Also those that are longer than Python's stack."""

    def fn(q: Any, k: Any) -> Any:
        found = q @ ts.matrix_transpose(k)
        for _ in range(1500):
            found = ts.sin(found)
        return found

    forward, linear, _, _, count = split(fn, (Q, K))
    _, _, places = smaller(forward, linear, count)
    assert sum(isinstance(p, int) for p in places) == 2
    assert sum(isinstance(p, Value) for p in places) > 1400
