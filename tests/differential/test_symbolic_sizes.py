"""One executable per program with symbolic dims serves all sizes, 0 and 1 included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import DType, float32, int64
from tessera.graph.trace import Trace, active
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.schedule import ops, streaming
from tests.differential.levels import check_levels
from tests.tolerance import assert_close

N, M, K = sym("n"), sym("m"), sym("k")

Shape = tuple[Any, ...]


def softmax(x: np.ndarray) -> np.ndarray:
    if not x.size:
        return x
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def loss(x: Any, w: Any) -> Any:
    return ts.sum(ts.tanh(x @ w) ** 2)


def loss_gradient(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h = np.tanh(x @ w)
    return x.T @ (2 * h * (1 - h * h))


Program = tuple[str, Callable[..., Any], Callable[..., np.ndarray], Sequence[tuple[Shape, DType]]]

PROGRAMS: list[Program] = [
    ("chain", lambda x, y: ts.exp(-x * x) + y, lambda x, y: np.exp(-x * x) + y,
     [((N, M), float32)] * 2),
    ("digamma", lambda x: ts.digamma(x * x + 1), lambda x: scipy.special.digamma(x * x + 1),
     [((N, M), float32)]),
    ("row sums", lambda x: ts.sum(x, axis=1), lambda x: x.sum(1), [((N, M), float32)]),
    ("column sums", lambda x: ts.sum(x, axis=0), lambda x: x.sum(0), [((N, M), float32)]),
    ("total", lambda x: ts.sum(x), lambda x: x.sum(), [((N, M), float32)]),
    ("transpose", lambda x: ts.permute_dims(x, (1, 0)) * 2, lambda x: x.T * 2, [((N, M), float32)]),
    ("bias", lambda x, b: x + b, lambda x, b: x + b, [((N, M), float32), ((M,), float32)]),
    ("matmul", lambda x, y, b: x @ y + b, lambda x, y, b: x @ y + b,
     [((N, K), float32), ((K, M), float32), ((M,), float32)]),
    ("matmul, turned", lambda x, y: x @ ts.permute_dims(y, (1, 0)), lambda x, y: x @ y.T,
     [((N, K), float32), ((M, K), float32)]),
    ("cumulative", lambda x: ts.cumulative_sum(x, axis=1), lambda x: x.cumsum(1),
     [((N, M), float32)]),
    ("concatenate", lambda x, y: ts.concat([x, y], axis=0), lambda x, y: np.concatenate([x, y]),
     [((N, M), float32), ((K, M), float32)]),
    ("flip", lambda x: ts.flip(x, axis=1), lambda x: x[:, ::-1], [((N, M), float32)]),
    ("take", lambda x, i: ts.take(x, i, axis=0), lambda x, i: x.take(i, 0),
     [((7, M), float32), ((N,), int64)]),
    ("sort", lambda x: ts.sort(x, axis=1), lambda x: np.sort(x, 1), [((N, M), float32)]),
    ("gradient", lambda x, w: ts.grad(loss, argnums=1)(x, w), loss_gradient,
     [((N, K), float32), ((K, M), float32)]),
]  # fmt: skip

SIZES = [(0, 0, 0), (1, 1, 1), (0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 64, 1), (64, 1, 7), (5, 33, 17)]


def lower(fn: Callable[..., Any], types: Sequence[TensorType]) -> Lowered:
    with active(Trace("jit", "program", staging=True)) as trace:
        result = fn(*[trace.input(t) for t in types])
        graph, captured = trace.finish([result], "program")
    assert not captured
    return Lowered(graph)


def static(shape: Shape, dims: dict[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else dims[str(d)] for d in shape)


def random_input(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype is int64:
        return rng.integers(0, 7, shape)
    return rng.uniform(-2, 2, shape).astype(dtype.np)


@pytest.mark.parametrize("program", PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_one_executable_serves_all_sizes(program: Program) -> None:
    _, fn, reference, inputs = program
    lowered = lower(fn, [TensorType(shape, dtype) for shape, dtype in inputs])
    executable = lowered.executable()
    rng = np.random.default_rng(0)
    more = [tuple(int(s) for s in rng.integers(0, 150, 3)) for _ in range(12)]
    for sizes in [*SIZES, *more]:
        dims = dict(zip("nmk", sizes, strict=True))
        arrays = [random_input(rng, static(shape, dims), dtype) for shape, dtype in inputs]
        values = [dims[name] for name in lowered.schedule.dims]
        (found,) = executable.run([pointer(np.ascontiguousarray(x)) for x in arrays], values)
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
        expected = np.asarray(reference(*wide))
        length = max(sizes[2], sizes[1] * sizes[0], 1)
        assert_close(found, expected.astype(found.dtype), length=length, factor=4)


def test_a_dim_of_the_result() -> None:
    """A mean over a symbolic axis divides by its size."""
    lowered = lower(lambda x: ts.mean(x, axis=0), [TensorType((N, M), float32)])
    executable = lowered.executable()
    for n, m in ((1, 1), (4, 3), (65, 40)):
        x = np.random.default_rng(1).uniform(-1, 1, (n, m)).astype(np.float32)
        dims = {"n": n, "m": m}
        (found,) = executable.run([pointer(x)], [dims[d] for d in lowered.schedule.dims])
        assert_close(found, x.mean(0), length=n)


def test_softmax() -> None:
    """A row is empty, or has one element, or a tail."""
    lowered = lower(lambda x: ts.softmax(x, axis=-1), [TensorType((N, M), float32)])
    executable = lowered.executable()
    for n, m in ((0, 0), (3, 0), (1, 1), (3, 5), (2, 64), (7, 130)):
        x = np.random.default_rng(1).uniform(-3, 3, (n, m)).astype(np.float32)
        dims = {"n": n, "m": m}
        (found,) = executable.run([pointer(x)], [dims[d] for d in lowered.schedule.dims])
        assert_close(found, softmax(x), length=max(m, 1), factor=4)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 40), (2, 200), (40, 64)])
def test_large_results_are_written_past_the_caches(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are large shows when the program runs: the last two here are."""
    monkeypatch.setattr(streaming, "STREAM_BYTES", 4 * 2 * 300)
    with active(Trace("jit", "program", staging=True)) as trace:
        x = trace.input(TensorType((N, M), float32))
        graph, _ = trace.finish([x * 2 + 1, ts.permute_dims(x, (1, 0)) + 1], "program")
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    lowered = check_levels(graph, [x], {"n": sizes[0], "m": sizes[1]})
    stores = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Store)]
    assert [bool(op.streaming) for op in stores] == [True, True]
