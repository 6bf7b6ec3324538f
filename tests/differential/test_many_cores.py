"""Programs for machines of many cores are cut into more pieces, and agree at every level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.ops.cumulative import CumMax, CumSum
from tessera.graph.trace import bind
from tessera.ir.walk import walk
from tessera.schedule import grains, ops, read_in_order, rows_apart, scan_in_order, split
from tessera.target.machine import Machine, machine
from tests.differential.levels import check_levels
from tests.schedule.lowering import traced, type_of

CORES = 16


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little work is worth a thread's while, and short rows are long."""
    for module in (grains, split):
        monkeypatch.setattr(module, "GRAIN", 64)
    for module in (read_in_order, rows_apart, scan_in_order):
        monkeypatch.setattr(module, "LEAST_BYTES", 8)


def machines() -> tuple[Machine, ...]:
    small = [replace(machine(level), l2=64) for level in ("host", "x86-64")]
    return tuple([replace(one, cores=cores) for one in small for cores in (2, CORES)])


def programs(lowered: Any) -> int:
    """The most pieces of a nest that threads share."""
    found: list[int] = []
    for nest in walk(lowered.schedule.body):
        if isinstance(nest, ops.Nest) and nest.grain:
            pairs = zip(nest.axes, nest.chunk, strict=True)
            counts = [-(-axis.extent // chunk) for axis, chunk in pairs if chunk]
            found.append(int(np.prod(counts)) // nest.grain)
    return max(found)


def recurrence(w: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> tuple[Any, Any]:
        h = w * h + row
        return h, h

    return ts.scan(step, ts.zeros_like(w), x)[1]


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "sums of rows": (lambda x: ts.sum(x, axis=1), [array(128, 40)]),
    "sums of columns": (lambda x: ts.sum(x, axis=0), [array(530, 40)]),
    "sums of long rows": (lambda x: ts.sum(x, axis=0), [array(40, 700)]),
    "searches": (lambda x: ts.argmax(x, axis=0), [array(530, 40)]),
    "one row": (lambda x, y: x @ y, [array(1, 530), array(530, 40)]),
    "few rows": (lambda x, y: x @ y, [array(3, 530), array(530, 40)]),
    "running sums of columns": (lambda x: ts.cumsum(x, axis=0), [array(20, 700)]),
    "a recurrence": (recurrence, [array(270), array(20, 270)]),
    "a product": (lambda x, y: ts.tanh(x @ y) + 1, [array(90, 6), array(6, 74)]),
    "products": (lambda x, y: x @ y, [array(3, 18, 4), array(3, 4, 44)]),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_of_many_cores(name: str) -> None:
    fn, inputs = CASES[name]
    graph = traced(fn, *map(type_of, inputs))
    known: set[tuple[str, ...]] = set()
    for k, one in enumerate(machines()):
        lowered = check_levels(graph, inputs, machine=one, known=known)
        if k == 1:
            assert programs(lowered) > grains.PROGRAMS


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("size", [5000, 5056, 130])
def test_running_combinations_in_parts(size: int, down: bool) -> None:
    x = array(size)
    for op, rows in ((CumSum, 1), (CumMax, 3)):
        data = np.broadcast_to(x * 3, (rows, size)).copy()

        def fn(x: Any, op: Any = op) -> Any:
            return bind(op, x * x, axis=1, reverse=down)

        # Two cores and many may have the same program.
        known: set[tuple[str, ...]] = set()
        for one in machines():
            lowered = check_levels(traced(fn, type_of(data)), [data], machine=one, known=known)
            is_cut = size > 130 and rows < one.cores
            reasons = [kernel.reason for kernel in lowered.kernels()]
            assert any("scanned in" in reason for reason in reasons) == is_cut, (one, reasons)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int32", "complex64"])
def test_dtypes_of_running_sums_in_parts(dtype: str) -> None:
    found = getattr(ts, dtype)
    x = np.random.default_rng(0).integers(-5, 5, 5000).astype(found.np)
    are_cut = dtype != "complex64"  # numbers of two parts are scanned as one
    known: set[tuple[str, ...]] = set()
    for one in machines():
        lowered = check_levels(traced(ts.cumsum, type_of(x)), [x], machine=one, known=known)
        assert any("scanned in" in kernel.reason for kernel in lowered.kernels()) == are_cut


def test_narrow_columns_are_not_scanned_in_parts() -> None:
    x = array(700, 3)
    for fn in (lambda x: ts.cumsum(x, axis=0), lambda x: ts.cumsum(ts.matrix_transpose(x), axis=1)):
        lowered = check_levels(traced(fn, type_of(x)), [x], machine=machines()[1])
        assert not any("scanned in" in kernel.reason for kernel in lowered.kernels())


def test_programs_are_shared_evenly() -> None:
    product = grains.Shared(1, CORES, 3072, 6144, 65536)
    for blocks in [(171, 16), (43, 4), (1, 64), (64, 1), (1, 1), (7, 3)]:
        for most in (1, 8, 200):
            rows, columns = grains.share(product, blocks, most)
            assert 1 <= rows <= min(most, blocks[0])
            assert 1 <= columns <= blocks[1]
            count = -(-blocks[0] // rows) * -(-blocks[1] // columns)
            assert count >= min(CORES, blocks[0] * blocks[1]) * 3 / 4
