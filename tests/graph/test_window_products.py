"""Sums over windows of a product as products with windows: the same values, without the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import GRAPH_PASSES
from tessera.graph import interp
from tessera.graph.ops.rearrange import Pad
from tessera.graph.ops.reduce import Sum
from tessera.graph.passes.window_products import WindowProducts
from tessera.ir.core import Func
from tessera.ir.passes import PassContext, run_pipeline

NCHW, NHWC = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def gradient_of(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], *options: Any, **named: Any
) -> tuple[Func, list[np.ndarray]]:
    """The program of the gradients of a convolution, before passes, and its inputs."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))

    def f(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, *options, **named)

    ct = rng.standard_normal(ts.eval_shape(f, x, w).shape).astype(np.float32)
    program = ts.make_graph(lambda ct, x, w: ts.vjp(f, x, w)[1](ct))(ct, x, w)
    return program, [ct, x, w]


def after(program: Func, *, with_it: bool) -> Func:
    """The program after the passes, with or without the one that is tested."""
    passes = tuple(p for p in GRAPH_PASSES if with_it or not isinstance(p, WindowProducts))
    return run_pipeline(program, passes, PassContext(True))


def sums(program: Func) -> int:
    """How many sums a program has."""
    return sum(isinstance(op, Sum) for op in program.body.ops)


CASES = [
    ((2, 3, 7, 6), (4, 3, 3, 2), (1, 1), ((1, 1), (0, 1)), {"dimension_numbers": NCHW}),
    ((2, 3, 7, 6), (4, 3, 3, 2), (1, 1), "VALID", {"rhs_dilation": (2, 3)}),
    ((2, 7, 6, 3), (3, 2, 3, 4), (1, 1), "SAME", {"dimension_numbers": NHWC}),
    ((2, 3, 9), (4, 3, 3), (1,), ((-1, 2),), {}),
    ((1, 2, 4, 3, 5), (3, 2, 2, 2, 3), (1, 1, 1), "SAME", {}),
]


@pytest.mark.parametrize(("x", "w", "strides", "padding", "options"), CASES)
def test_gradients_are_products_with_windows(
    x: Any, w: Any, strides: Any, padding: Any, options: Any
) -> None:
    program, inputs = gradient_of(x, w, strides, padding, **options)
    plain, found = after(program, with_it=False), after(program, with_it=True)
    assert sums(plain) == 1
    assert sums(found) == 0
    for a, b in zip(interp.run(found, inputs), interp.run(plain, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


STRIDED = [
    ((2, 3, 7, 6), (4, 3, 3, 2), (2, 1), "SAME", {}),
    ((2, 3, 8, 9), (4, 3, 3, 3), (2, 2), ((1, 1), (1, 1)), {}),
    ((2, 8, 9, 3), (3, 3, 3, 4), (2, 2), "SAME", {"dimension_numbers": NHWC}),
    ((1, 2, 11), (3, 2, 2), (3,), "VALID", {}),  # phases that no window touches
    ((1, 2, 11), (3, 2, 5), (2,), ((-2, 3),), {}),
    ((1, 2, 13), (3, 2, 7), (4,), "SAME_LOWER", {}),
    ((1, 2, 3, 5), (3, 2, 1, 4), (1, 2), ((0, 0), (4, 0)), {"rhs_dilation": (2, 1)}),
]


@pytest.mark.parametrize(("x", "w", "strides", "padding", "options"), STRIDED)
def test_strided_gradients_are_products_of_phases(
    x: Any, w: Any, strides: Any, padding: Any, options: Any
) -> None:
    program, inputs = gradient_of(x, w, strides, padding, **options)
    plain, found = after(program, with_it=False), after(program, with_it=True)
    assert apart(plain)
    assert not apart(found)
    assert sums(found) == 0
    for a, b in zip(interp.run(found, inputs), interp.run(plain, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def apart(program: Func) -> bool:
    """Whether a program puts zeros between elements."""
    return any(isinstance(op, Pad) and any(op.interior) for op in program.body.ops)


OTHERS = [
    ((2, 3, 9, 6), (4, 3, 3, 2), (2, 1), "SAME", {"rhs_dilation": (2, 1)}),
    ((1, 1, 40), (2, 1, 20), (17,), "VALID", {}),  # too many phases
    ((2, 4, 7, 6), (6, 2, 3, 2), (1, 1), "SAME", {"feature_group_count": 2}),
    ((2, 4, 7, 6), (6, 2, 3, 2), (2, 2), "SAME", {"feature_group_count": 2}),
    ((2, 4, 7, 6), (4, 1, 3, 2), (2, 2), "SAME", {"feature_group_count": 4}),
]


@pytest.mark.parametrize(("x", "w", "strides", "padding", "options"), OTHERS)
def test_other_gradients_stay_right(
    x: Any, w: Any, strides: Any, padding: Any, options: Any
) -> None:
    program, inputs = gradient_of(x, w, strides, padding, **options)
    plain, found = after(program, with_it=False), after(program, with_it=True)
    for a, b in zip(interp.run(found, inputs), interp.run(plain, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def test_gradients_of_depthwise_convolutions_read_windows() -> None:
    program, inputs = gradient_of((2, 3, 7, 6), (3, 1, 3, 2), (1, 1), "SAME", feature_group_count=3)
    plain, found = after(program, with_it=False), after(program, with_it=True)
    # Pads stand before the product instead of after it: those of the operand alone.
    sizes = [op.result.type.rank for op in found.body.ops if isinstance(op, Pad)]
    assert sizes == [4, 4]
    assert max(op.result.type.rank for op in plain.body.ops if isinstance(op, Pad)) == 6
    for a, b in zip(interp.run(found, inputs), interp.run(plain, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def test_compiled_gradients_agree_with_the_definition() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s) for s in ((2, 3, 6, 5), (4, 3, 3, 3)))
    dx, dw = rng.standard_normal(x.shape), rng.standard_normal(w.shape)

    def loss(x: Any, w: Any) -> Any:
        return ts.sum(ts.conv_general(x, w, (1, 1), "SAME") ** 3)

    gx, gw = (np.asarray(g) for g in ts.jit(ts.grad(loss, argnums=(0, 1)))(x, w))
    run, step = ts.jit(loss), 1e-6
    change = float(run(x + step * dx, w + step * dw)) - float(run(x - step * dx, w - step * dw))
    np.testing.assert_allclose(np.sum(gx * dx) + np.sum(gw * dw), change / (2 * step), rtol=1e-6)


def test_in_a_loop() -> None:
    def fn(x: Any, w: Any) -> Any:
        def step(x: Any, _: Any) -> tuple[Any, None]:
            y = ts.conv_general(x, w, (2, 2), ((1, 1), (1, 1)))
            return ts.conv_general(y, w, (1, 1), ((1, 2), (1, 2)), lhs_dilation=(2, 2)), None

        return ts.scan(step, x, None, length=3)[0]

    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 6, 6), (3, 3, 3, 3)))
    for f in (fn, lambda x, w: ts.grad(lambda x, w: ts.sum(fn(x, w) ** 2), (0, 1))(x, w)):
        program = ts.make_graph(f)(x, w)
        found = after(program, with_it=True)
        assert "interior=" in str(after(program, with_it=False))
        assert "interior=" not in str(found)
        for a, b in zip(interp.run(found, [x, w]), interp.run(program, [x, w]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)
