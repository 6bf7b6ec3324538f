"""Work on rows and sums over these rows, in blocks of rows that stay in the cache: at every level,
and for any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.target.machine import Machine, machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
ROWS, COLUMNS = 72, 131


def normalized(x: Any, scale: Any) -> Any:
    x = x - ts.mean(x, axis=-1, keepdims=True)
    return x / ts.sqrt(ts.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def backward(d: Any, x: Any, scale: Any) -> Any:
    """The gradient of a layer normalisation: of its rows, its scale and its shift."""
    mean = ts.mean(x, axis=-1, keepdims=True)
    inverse = 1 / ts.sqrt(ts.mean((x - mean) ** 2, axis=-1, keepdims=True) + 1e-5)
    y, g = (x - mean) * inverse, d * scale
    along = ts.mean(g * y, axis=-1, keepdims=True)
    dx = inverse * (g - ts.mean(g, axis=-1, keepdims=True) - y * along)
    return dx, ts.sum(d * y, axis=0), ts.sum(d, axis=0)


def check(
    fn: Any, *shapes: tuple[int, ...], dtype: DType = float32, level: str = "x86-64-v3",
    joined: bool = True,
) -> Lowered:  # fmt: skip
    """Runs a program at all levels, on a machine with a second cache of 64 KiB."""
    return run(fn, shapes, dtype, replace(machine(level), l2=64 * 1024), joined)


def run(
    fn: Any, shapes: Sequence[tuple[int, ...]], dtype: DType, machine: Machine, joined: bool = True
) -> Lowered:
    graph, inputs = graph_of(fn, shapes, dtype), values(shapes, dtype)
    lowered = check_levels(graph, inputs, machine=machine)
    assert bool(all_ops(lowered.schedule, Each)) is joined
    return lowered


def nests(lowered: Lowered) -> list[list[str]]:
    """The axes of the nests of each block, ordered ones marked."""
    (each,) = all_ops(lowered.schedule, Each)
    return [
        ["in order" if axis.name in nest.ordered else "any" for axis in nest.axes]
        for nest in each.nests
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_of_a_normalisation(level: str) -> None:
    lowered = check(backward, (ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,), level=level)
    assert len(lowered.kernels()) == 1
    (each,) = all_ops(lowered.schedule, Each)
    assert [axis.extent for axis in each.axes] == [ROWS // 8]
    assert nests(lowered) == [["any"], ["in order", "any"]]


def test_sums_that_do_not_fit_the_first_cache_have_a_pass_of_their_own() -> None:
    shapes = ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))
    small = replace(machine("x86-64-v3"), l1=2048, l2=64 * 1024)
    lowered = run(backward, shapes, float32, small)
    assert nests(lowered) == [["any", "any"], ["any"]]

    def stored(x: Any) -> Any:
        y = x - ts.mean(x, axis=1, keepdims=True)
        return y, ts.sum(y, axis=0)

    run(stored, [(ROWS, 2 * COLUMNS)], float32, small, joined=False)


def test_sums_of_what_the_rows_store() -> None:
    def softmax(d: Any, x: Any) -> Any:
        """Exponentials wait in the result's row, the sums read them, and then it is written."""
        e = ts.exp(x - ts.max(x, axis=1, keepdims=True))
        y = e / ts.sum(e, axis=1, keepdims=True)
        dx = y * (d - ts.sum(d * y, axis=1, keepdims=True))
        return dx, ts.sum(dx, axis=0), ts.sum(e, axis=0)

    def one(d: Any, x: Any) -> Any:
        return softmax(d, x)[:2]

    for fn in (softmax, one):
        lowered = check(fn, (ROWS, 2 * COLUMNS), (ROWS, 2 * COLUMNS))
        assert nests(lowered) == [["any"], ["in order", "any"]]
        assert any(op.keeps for op in all_ops(lowered.schedule, ops.Store))


def test_elements_and_sums_of_their_columns() -> None:
    def scaled(d: Any, x: Any, scale: Any) -> Any:
        dx = ts.where(x > 0, d * scale, 0)
        return dx, ts.sum(dx, axis=0), ts.max(d * x, axis=0)

    lowered = check(scaled, (ROWS, 2 * COLUMNS), (ROWS, 2 * COLUMNS), (2 * COLUMNS,))
    assert nests(lowered) == [["any"], ["in order", "any"]]


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16])
def test_dtypes(dtype: DType) -> None:
    columns = 1040 // dtype.itemsize
    check(backward, (ROWS, columns), (ROWS, columns), (columns,), dtype=dtype)


def test_by_transforms() -> None:
    def fn(d: Any, x: Any, scale: Any) -> Any:
        return ts.vjp(normalized, x, scale)[1](d)

    check(fn, (ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))


def test_other_reductions_of_columns() -> None:
    def fn(x: Any) -> Any:
        return x - ts.max(x, axis=1, keepdims=True), ts.max(ts.abs(x), axis=0)

    check(fn, (ROWS, 2 * COLUMNS))


def test_inside_of_a_loop() -> None:
    def fn(d: Any, x: Any, scale: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            x, scale = carry
            dx, dscale, _ = backward(d, x, scale)
            return x - dx, scale - dscale / ROWS

        return ts.fori_loop(0, 2, step, (x, scale))

    check(fn, (ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,))


def test_what_is_not_joined() -> None:
    def stored(x: Any) -> Any:
        y = x - ts.mean(x, axis=1, keepdims=True)
        return ts.exp(y), ts.sum(ts.exp(y) * 2, axis=0)

    lowered = check(stored, (ROWS, COLUMNS), joined=False)
    assert len(all_ops(lowered.schedule, ops.Nest)) > 1
    short = ((ROWS, 100), (ROWS, 100), (100,))
    check(backward, *short, joined=False)
    few = ((40, COLUMNS), (40, COLUMNS), (COLUMNS,))
    check(backward, *few, joined=False)
    odd = ((73, COLUMNS), (73, COLUMNS), (COLUMNS,))
    check(backward, *odd, joined=False)


def test_sums_of_the_rows_of_a_square_are_not_those_of_its_columns() -> None:
    """Their axes are as long as those of sums of columns would be."""

    def fn(x: Any) -> Any:
        y = ts.where(x > 0.25, x, 2 * x)
        z = ts.concat([y[-1:], y[:-1]], axis=0)
        return y - z, ts.max(z, axis=1)

    check(fn, (256, 256), joined=False)


def test_a_stated_order_is_kept() -> None:
    def fn(x: Any) -> Any:
        return x - ts.max(x, axis=1, keepdims=True), ts.sum(x, axis=0)

    check(fn, (ROWS, 2 * COLUMNS))
    check(ts.deterministic(fn), (ROWS, 2 * COLUMNS), joined=False)


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(0)
    d, x = rng.standard_normal((2, 2048, 256)).astype(np.float32)
    f = ts.jit(backward)
    assert all_ops(f.lower(d, x, d[0]).schedule, Each)
    found: list[list[np.ndarray]] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            found.append([np.asarray(one) for one in f(d, x, d[0])])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
