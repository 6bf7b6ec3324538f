"""Arrays of few columns that are put together have one loop over rows, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
RNG = np.random.default_rng(11)


def mixed(x: Any) -> Any:
    """Each column from two others."""
    count = x.shape[-1]
    return ts.stack([x[..., k] + x[..., (k + 1) % count] for k in range(count)], axis=-1)


def from_planes(x: Any) -> Any:
    """Columns that lie apart."""
    return ts.stack([x[..., k, :] * (k + 1) for k in range(x.shape[-2])], axis=-1)


def extended(x: Any) -> Any:
    """Another column beside those of an array."""
    return ts.concat([x, x[..., :1] + x[..., -1:]], axis=-1)


def limited(x: Any) -> Any:
    """What follows is done with whole rows."""
    return ts.clip(mixed(x) + x, 1, 5)


def dear(x: Any) -> Any:
    """What follows takes longer than to read its columns one by one."""
    return ts.log(mixed(x) + 1)


def values(*shape: int, dtype: dt.DType = dt.float32) -> np.ndarray:
    return RNG.integers(0, 7, shape).astype(dtype.np)


def run(fn: Callable[..., Any], x: np.ndarray, level: str = LEVELS[-1]) -> Lowered:
    graph = traced(fn, typed(*x.shape, dtype=dt.dtype_of(x.dtype)))
    return check_levels(graph, [x], machine=machine(level))


@every_pair(
    ("level", LEVELS),
    ("rows", [0, 1, 5, 16, 37, 300]),
    ("columns", [2, 3, 4, 5, 9, 16, 17]),
    ("fn", [mixed, extended, limited, dear]),
)
def test_levels(fn: Any, columns: int, rows: int, level: str) -> None:
    lowered = run(fn, values(rows, columns), level)
    count = columns + (fn is extended)
    if 1 < count <= (4 if fn in (extended, limited) else 16):
        assert all("nests" not in kernel.reason for kernel in lowered.kernels())
    if count == 17 and rows:
        assert any("nests" in kernel.reason for kernel in lowered.kernels())


@pytest.mark.parametrize("rows", [3, 37, 300])
@pytest.mark.parametrize("columns", [2, 3, 4, 13])
def test_planes(columns: int, rows: int) -> None:
    run(from_planes, values(columns, rows))
    run(from_planes, values(2, columns, rows))


@pytest.mark.parametrize(
    "dtype", [dt.uint8, dt.int16, dt.float16, dt.bfloat16, dt.float64, dt.int64]
)
@pytest.mark.parametrize("columns", [2, 3, 4, 7, 16])
def test_dtypes(columns: int, dtype: dt.DType) -> None:
    for fn in (mixed, limited, extended) if columns <= 4 else (mixed,):
        run(fn, values(133, columns, dtype=dtype))


def test_whole_vectors() -> None:
    """Nothing is written element by element."""
    for count in (2, 3, 4):
        lowered = run(from_planes, values(count + 6, 256))
        assert "target.scatter" not in str(lowered.target)
        lowered = run(mixed, values(256, count))
        assert {"tile.stack", "tile.row"} <= set(str(lowered.tile).replace("(", " ").split())
        assert "target.scatter" not in str(lowered.target)
        assert "target.gather" not in str(lowered.target)


def test_shared_work_is_done_once() -> None:
    def polar(r: Any, a: Any) -> Any:
        x = ts.exp(a)
        return ts.stack([r * x, r + x, r - x], axis=-1)

    inputs = [values(50), values(50)]
    lowered = check_levels(traced(polar, typed(50), typed(50)), inputs)
    assert str(lowered.schedule).count("fn=exp") == 1


def test_symbolic_rows() -> None:
    n = sym("n")
    for count in (2, 3, 4):
        graph = traced(mixed, TensorType((n, count), dt.float32))
        for rows in (0, 1, 33, 130):
            check_levels(graph, [values(rows, count)], {"n": rows})


def test_other_arrays() -> None:
    """Conditions, strides, complex numbers, columns of a part of the rows, what else is needed."""

    def padded(x: Any) -> Any:
        y = ts.pad(x, ((1, 2), (0, 0)))
        return ts.stack([y[:, 0] + y[:, 2], y[:, 1], y[:, 2]], axis=-1)

    def every_second(x: Any) -> Any:
        return ts.stack([x[::2, 0] + x[::2, 2], x[::2, 1]], axis=-1)

    def turned(x: Any) -> Any:
        return ts.stack([x[::-1, 2], x[::-1, 0] * 2, x[::-1, 1]], axis=-1)

    def wrapped(x: Any) -> Any:
        z = ts.stack([x[:, 0], x[:, 1] - x[:, 0]], axis=-1)
        return z, ts.sum(z * z, axis=-1)

    def parts(x: Any) -> Any:
        return ts.stack([x[:, 0] + 1j * x[:, 1], x[:, 2] + 0j], axis=-1)

    def sums(x: Any) -> Any:
        return ts.stack([ts.sum(x, axis=-1), ts.max(x, axis=-1), x[:, 0]], axis=-1) * 2

    def product(x: Any) -> Any:
        return ts.concat([x @ ts.matrix_transpose(x[:2]), x[:, :1]], axis=-1)

    for fn in (padded, every_second, turned, wrapped, parts, sums, product):
        run(fn, values(131, 3))


def test_gradients() -> None:
    def loss(x: Any) -> Any:
        return ts.sum(ts.sin(limited(x)) * x)

    run(ts.grad(loss), values(70, 3))
    run(ts.vmap(mixed), values(3, 40, 3))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 5, 50])
@pytest.mark.parametrize("length", [2, 17, 60])
def test_columns_that_are_ready_at_other_times(length: int, rows: int, level: str) -> None:
    """Reductions share loops, and what needs none is computed before; rows are written at last."""

    def summary(x: Any) -> Any:
        q = ts.reshape(x, (-1, length))
        high = ts.max(q, axis=1)
        parts = ts.sum(q / high[:, None], axis=1)
        return ts.stack([high, parts, ts.min(q, axis=1), q[:, -1]], axis=1)

    def ends(x: Any) -> Any:
        q = ts.reshape(x, (-1, length))
        return ts.stack([q[:, 0], ts.max(q, axis=1), ts.min(q, axis=1), q[:, -1]], axis=1)

    run(ends, values(rows * length), level)
    run(summary, values(rows * length) + np.float32(1), level)
