"""Products of little depth whose result no cache holds: along rows, and past the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast
from tessera.schedule import far_results, ops, streaming
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import all_ops, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much memory is 8 KB."""
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 13)


def product(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((1,), (0,)))


def check(fn: Any, *types: Any, level: str = "x86-64-v3", past: bool = True) -> Lowered:
    """Runs a program at all levels, whose result goes past the caches."""
    graph = traced(fn, *types)
    rng = np.random.default_rng(5)
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    lowered = check_levels(graph, inputs, machine=machine(level))
    assert ("streaming=1" in str(lowered.schedule)) is past
    return lowered


def outer(lowered: Lowered) -> str:
    """The first axis of the blocks."""
    (nest,) = [
        nest
        for nest in all_ops(lowered.schedule, ops.Nest)
        if any(isinstance(op, ops.Contract) for op in nest.body.ops)
    ]
    return nest.axes[0].name


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [36, 40])
def test_whole_rows(rows: int, level: str) -> None:
    lowered = check(product, typed(rows, 16), typed(16, 128), level=level)
    assert outer(lowered) == "m"


@pytest.mark.parametrize("dtype", [dt.float64, dt.int32])
def test_dtypes(dtype: dt.DType) -> None:
    check(product, typed(36, 9, dtype=dtype), typed(9, 128, dtype=dtype))


def test_epilogue() -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = product(x, y)
        return e.neg(z), e.tanh(e.add(z, broadcast(bias, z.shape, (1,))))

    check(fn, typed(36, 16), typed(16, 128), typed(128))


def test_batches() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    check(fn, typed(3, 24, 16), typed(3, 16, 64))


def test_a_far_operand_goes_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_results, "goes_along_rows", lambda product: False)
    monkeypatch.setattr("tessera.schedule.products.goes_along_rows", lambda product: False)
    assert outer(check(product, typed(36, 16), typed(16, 128))) == "n"


@pytest.mark.parametrize(
    ("rows", "cols", "depth"), [(36, 127, 16), (36, 128, 65), (12, 16, 8), (9, 132, 4)]
)
def test_others_stay(rows: int, cols: int, depth: int) -> None:
    """Rows that begin anywhere, great depth, and a result that a cache holds."""
    check(product, typed(rows, depth), typed(depth, cols), past=False)


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(1)
    x, y = [rng.standard_normal(s).astype(np.float32) for s in ((1200, 16), (16, 512))]
    f = ts.jit(lambda x, y: x @ y)
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            found.append(np.asarray(f(x, y)).tobytes())
    assert len(set(found)) == 1
