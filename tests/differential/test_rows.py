"""Work on rows in one kernel: softmax, normalisations and their gradients, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import int64
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, typed


def softmax(x: Any) -> Any:
    e = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
    return e / ts.sum(e, axis=-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    m = ts.max(x, axis=-1, keepdims=True)
    return ts.log(ts.sum(ts.exp(x - m), axis=-1)) + m[:, 0]


def layer_norm(x: Any) -> Any:
    d = x - ts.mean(x, axis=-1, keepdims=True)
    return d / ts.sqrt(ts.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def rms_norm(x: Any) -> Any:
    return x / ts.sqrt(ts.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def moments(x: Any) -> Any:
    return ts.sum(x, axis=-1), ts.sum(x * x, axis=-1), ts.max(x, axis=-1)


def column_moments(x: Any) -> Any:
    return ts.sum(x, axis=0), ts.sum(x * x, axis=0), ts.max(x, axis=0)


def across(x: Any) -> Any:
    return layer_norm(ts.permute_dims(x, (1, 0)))


def gradient(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return ts.grad(lambda x: ts.sum(ts.sin(f(x))))


ONE_KERNEL = [softmax, logsumexp, layer_norm, rms_norm, moments, column_moments]
GRADIENTS = [softmax, layer_norm, rms_norm]
SHAPES = [(9, 33), (3, 8), (1, 70), (17, 3), (2, 256)]


def values(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fn", [*ONE_KERNEL, across])
def test_forward(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    lowered = check_levels(traced(fn, typed(*shape)), [values(shape)])
    if fn is not across and min(shape[1] // 8, shape[0] - 1) > 0:
        assert len(lowered.kernels()) == 1


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("fn", GRADIENTS)
def test_gradient(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    lowered = check_levels(traced(gradient(fn), typed(*shape)), [values(shape)])
    assert len(lowered.kernels()) <= 2


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("fn", [softmax, layer_norm])
def test_machines(fn: Callable[[Any], Any], level: str) -> None:
    check_levels(traced(fn, typed(5, 19)), [values((5, 19))], machine=machine(level))


@pytest.mark.parametrize("sizes", [(5, 33), (1, 1), (0, 3), (9, 64)])
@pytest.mark.parametrize("fn", [softmax, layer_norm, gradient(rms_norm)])
def test_symbolic(fn: Callable[[Any], Any], sizes: tuple[int, int]) -> None:
    dims = dict(zip(("n", "m"), sizes, strict=True))
    check_levels(traced(fn, typed(sym("n"), sym("m"))), [values(sizes)], dims)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 1), (0, 5), (4, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative(shape: tuple[int, int], axis: int) -> None:
    def fn(x: Any) -> Any:
        narrow = ts.astype(x, ts.int8)
        return (
            ts.cumulative_sum(ts.tanh(x), axis=axis),
            ts.cumulative_prod(x / 2, axis=axis),
            ts.cumulative_sum(narrow, axis=axis, dtype=ts.int8),
            ts.flip(ts.cumulative_sum(ts.flip(x, axis=axis), axis=axis), axis=axis),
        )

    check_levels(traced(fn, typed(*shape)), [values(shape)])


def test_cumulative_of_symbols_and_special_values() -> None:
    def fn(x: Any) -> Any:
        return ts.cumulative_sum(x, axis=1)

    graph = traced(fn, typed(sym("n"), sym("m")))
    for sizes in ((3, 40), (1, 1), (2, 0)):
        check_levels(graph, [values(sizes)], dict(zip(("n", "m"), sizes, strict=True)))
    x = values((4, 40))
    x[0, 3], x[1, 20], x[2, 2], x[2, 30] = np.nan, np.inf, np.inf, -np.inf
    for level in ("x86-64", "x86-64-v3"):
        check_levels(traced(fn, typed(*x.shape)), [x], machine=machine(level))


def test_special_values() -> None:
    x = values((6, 40))
    x[1, 3], x[2, 5], x[3, 39], x[4] = np.nan, np.inf, -np.inf, -np.inf
    for fn in (softmax, logsumexp, layer_norm, moments):
        check_levels(traced(fn, typed(*x.shape)), [x])


def test_runs_are_bit_identical() -> None:
    x = ts.asarray(values((37, 301)))
    fn = ts.jit(gradient(softmax))
    first = np.asarray(fn(x)).tobytes()
    assert all(np.asarray(fn(x)).tobytes() == first for _ in range(3))


def test_a_row_over_its_sum_is_divided() -> None:
    """A product with the reciprocal of 49 is not 1."""
    x = np.zeros((64, 40), np.float32)
    x[:, 3] = np.arange(1, 65)
    found = ts.jit(lambda x: x / ts.sum(x, axis=-1, keepdims=True))(ts.asarray(x))
    assert (np.asarray(found)[:, 3] == 1).all()


def test_what_is_read_between_stays_before() -> None:
    """A scatter reads places that maxima were gathered from: no later kernel may take these in."""

    def loss(x: Any, places: Any) -> Any:
        return ts.sum(ts.log1p(ts.abs(ts.take(ts.max(x, axis=1), places, axis=0))))

    places = np.array([0, 3, 5, 5, 7, 11, 2, 1])
    types = typed(12, 128), TensorType((8,), int64)
    check_levels(traced(ts.grad(loss), *types), [values((12, 128)), places])


@pytest.mark.parametrize("level", ["host", "x86-64-v3"])
def test_rows_that_lie_the_other_way_are_turned_first(level: str) -> None:
    """As where the next layer wants channels first."""

    def gradient(x: Any, w: Any) -> Any:
        return ts.grad(lambda x: ts.sum(ts.matrix_transpose(layer_norm(x)) * w))(x)

    for rows, columns, is_turned in ((40, 33, True), (33, 100, True), (20, 40, False)):
        graph = traced(gradient, typed(rows, columns), typed(columns, rows))
        given = [values((rows, columns)), values((columns, rows))]
        lowered = check_levels(graph, given, machine=machine(level))
        assert any(kernel.label == "transpose" for kernel in lowered.kernels()) == is_turned


def test_rows_that_all_lie_the_other_way_are_not() -> None:
    def fn(x: Any) -> Any:
        return softmax(ts.matrix_transpose(x))

    lowered = check_levels(traced(fn, typed(64, 70)), [values((64, 70))])
    assert all(kernel.label != "transpose" for kernel in lowered.kernels())


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_of_what_lies_either_way(axis: int | None) -> None:
    def fn(x: Any, y: Any) -> Any:
        return ts.sum(ts.abs(x - ts.matrix_transpose(y)), axis=axis)

    lowered = check_levels(
        traced(fn, typed(48, 65), typed(65, 48)), [values((48, 65)), values((65, 48))]
    )
    assert "gather" not in str(lowered.tile)


def test_channels_that_lie_first_beside_channels_that_lie_last() -> None:
    def fn(x: Any, y: Any) -> Any:
        return ts.mean(x + ts.permute_dims(y, (0, 3, 1, 2)), axis=(2, 3))

    shapes = (2, 33, 6, 7), (2, 6, 7, 33)
    graph = traced(fn, *[typed(*shape) for shape in shapes])
    check_levels(graph, [values(shape) for shape in shapes])
