"""Scans over the rows of large operands, which are taken row by row: at every level, the same bits
as in registers, and for any number of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.ir.core import Func
from tessera.runtime.memory import pointer
from tessera.schedule import loop_ops, ops
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.scan_in_order import PART_BYTES
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
ROWS, COLUMNS = 19, 530
KEPT = (ops.Scan, loop_ops.Recur)


def values(*shapes: tuple[int, ...], dtype: DType = float32) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [(rng.standard_normal(shape) * 3).astype(dtype.np) for shape in shapes]


def check(
    fn: Any, *shapes: tuple[int, ...], dtype: DType = float32, level: str = "x86-64-v3",
    cut: bool = True,
) -> Lowered:  # fmt: skip
    """Runs a program at all levels, on a machine with a second cache of 8 KiB, and compares with
    the code that keeps what is carried in registers."""
    graph, inputs = graph_of(fn, shapes, dtype), values(*shapes, dtype=dtype)
    small = replace(machine(level), l2=8 * 1024)
    lowered = check_levels(graph, inputs, machine=small)
    nests = [nest for nest in all_ops(lowered.schedule, ops.Nest) if nest.ordered]
    assert [nest.reason for nest in nests] == ["whole rows, one after the other"] * cut
    assert bool([op for cls in KEPT for op in all_ops(lowered.schedule, cls)]) is not cut
    if level in supported_levels():
        near = replace(machine(level), l2=1 << 30)
        for one, other in zip(run(graph, small, inputs), run(graph, near, inputs), strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    return lowered


def run(graph: Func, on: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    found = Lowered(graph, on).executable().run([pointer(x) for x in inputs])
    return [np.atleast_1d(np.asarray(x)) for x in found]


def columns(x: Any) -> Any:
    return ts.cumulative_sum(x, axis=0)


def linear(w: Any, x: Any) -> Any:
    return ts.scan(lambda h, row: (w * h + row, h - row), w, x)


def backwards(w: Any, x: Any) -> Any:
    return ts.scan(lambda h, row: (h + row * w, h + 1), w, x, reverse=True)


def several(w: Any, x: Any, y: Any) -> Any:
    """What is carried changes places, and only some of it is left at the end."""

    def step(carry: Any, row: Any) -> Any:
        a, b = carry
        return (b + row[0], a), (a - row[1], b)

    (a, _), ys = ts.scan(step, (w, w + 1), (x, y))
    return a, *ys


@pytest.mark.parametrize("level", LEVELS)
def test_running_sums_of_columns(level: str) -> None:
    check(columns, (ROWS, COLUMNS), level=level)


@pytest.mark.parametrize("dtype", [dt.float64, dt.int32, dt.bfloat16, dt.int8])
def test_dtypes(dtype: DType) -> None:
    check(columns, (ROWS, 1030), dtype=dtype)


def test_what_is_scanned_is_computed() -> None:
    check(lambda x: ts.cumulative_prod(1 + x / 64, axis=0) * 2, (ROWS, COLUMNS))


def test_sums_from_the_end() -> None:
    check(lambda x: ts.flip(columns(ts.flip(x, axis=0)), axis=0), (ROWS, COLUMNS))


def test_batches() -> None:
    for batches in (1, 2, 5):
        check(lambda x: ts.cumulative_sum(x, axis=1), (batches, ROWS, COLUMNS))


@pytest.mark.parametrize("fn", [linear, backwards])
@pytest.mark.parametrize("level", LEVELS)
def test_loops(fn: Any, level: str) -> None:
    check(fn, (COLUMNS,), (ROWS, COLUMNS), level=level)


def test_several_are_carried() -> None:
    check(several, (COLUMNS,), (ROWS, COLUMNS), (ROWS, COLUMNS))


def test_what_stays_in_registers() -> None:
    check(columns, (ROWS, 128), cut=False)  # short rows
    check(columns, (9, COLUMNS), cut=False)  # few of them
    check(lambda w, x: ts.scan(lambda h, row: (ts.sin(h) + row, h), w, x), (COLUMNS,),
          (ROWS, COLUMNS), cut=False)  # long steps  # fmt: skip


def test_factors_that_the_first_cache_does_not_hold() -> None:
    wide = 10_000
    for level, cut in (("x86-64-v3", True), ("x86-64-v4", False)):
        # Few registers leave lines too short for prefetchers: whole rows are faster even so.
        check(linear, (wide,), (ROWS, wide), level=level, cut=cut)
    check(lambda w, x: ts.scan(lambda h, row: (h + row, h), w, x), (wide,), (ROWS, wide))


def test_the_next_row_is_fetched() -> None:
    """Every line of a tile, of what is read and what is written; no more than the first cache has
    room for, nor what is stored past the caches."""

    def fetched(fn: Any, *shapes: tuple[int, ...], **cpu: Any) -> list[Any]:
        on = replace(machine("x86-64-v3"), l2=8 * 1024, **cpu)
        found = Lowered(graph_of(fn, shapes, float32), on).schedule
        return [op.offset for op in all_ops(found, Prefetch)]

    (step, *_), ends = fetched(columns, (ROWS, COLUMNS)), (ROWS - 2) * COLUMNS
    assert str(step) == f"i0 + {COLUMNS}*r0 + {COLUMNS}"
    assert len(fetched(columns, (ROWS, COLUMNS))) == 2 * 32 * 4 // 64
    assert len(fetched(several, *[(COLUMNS,)] + [(ROWS, COLUMNS)] * 2)) == 4 * 32 * 4 // 64
    assert str(fetched(backwards, (COLUMNS,), (ROWS, COLUMNS))[0]).endswith(f"*r0 + {ends}")
    assert not fetched(columns, (ROWS, 40_000))
    assert len(fetched(columns, (10_000, COLUMNS))) == 32 * 4 // 64
    # A Zen's prefetchers read on into the next row, but not into the next part of one.
    for width, is_fetched in ((COLUMNS, False), (8 * COLUMNS, True)):
        plain = fetched(columns, (ROWS, width), cores=2)
        assert plain
        zen = fetched(columns, (ROWS, width), cores=2, llvm_cpu="znver4")
        assert zen == (plain if is_fetched else [])


def test_parts_of_half_a_page() -> None:
    """Two threads of a Zen 5 take them of rows in a near cache."""

    def wide(cpu: str, threads: int) -> list[int]:
        on = replace(machine("x86-64-v4"), l2=8 * 1024, cores=2, llvm_cpu=cpu)
        with ts.config.update(threads=threads):
            found = Lowered(graph_of(columns, [(64, 1024)], float32), on).schedule
        return [op.chunk[-1] for op in all_ops(found, ops.Nest) if op.ordered]

    assert [wide("znver5", threads) for threads in (2, 1)] == [[512], [0]]
    assert [wide("znver4", threads) for threads in (2, 1)] == [[0], [0]]


def test_negative_zero_is_added_to_zero() -> None:
    x = np.full((ROWS, COLUMNS), -0.0, np.float32)
    graph = graph_of(columns, [x.shape])
    (found,) = run(graph, replace(machine(LEVELS[-1]), l2=8 * 1024), [x])
    assert not np.signbit(found).any()


def test_programs_of_one_thread_take_rows_together() -> None:
    """The loop over steps stands outside of that over programs."""
    lowered = check(columns, (ROWS, 2 * PART_BYTES // 4))
    text = lowered.stage("target")
    kernel = text[text.index("func @cumsum_1") : text.index("func @main")]
    loops = [line.split("(")[1] for line in kernel.splitlines() if "target.for(" in line]
    assert [loop.split(",")[0] == "%lo" for loop in loops] == [False, True, False]


def test_threads_do_not_change_a_bit() -> None:
    x, w = values((600, 2200), (2200,))
    for fn, given in ((columns, (x,)), (linear, (w, x))):
        jitted = ts.jit(fn)
        found: list[list[np.ndarray]] = []
        for threads in (1, 2, 3):
            with ts.config.update(threads=threads):
                leaves = ts.pytree.leaves(jitted(*given))
                found.append([np.asarray(leaf) for leaf in leaves])
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
