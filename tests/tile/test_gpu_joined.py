"""Row kernels that sum up columns on the way: the same results as apart, and one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera import dtypes as dt
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.rearrange import transpose
from tessera.schedule import ops
from tessera.schedule.rebuild import kernels
from tessera.tile import ops as t
from tests.schedule.gpu import MACHINE, Lowered, check
from tests.schedule.lowering import typed
from tests.tile.test_gpu_rows import columns, gradient, moments, rows

SMALL = replace(MACHINE, multiprocessors=2)
"""A machine that a few rows fill."""


def joined(found: Lowered) -> list[ops.Kernel]:
    return [kernel for kernel in kernels(found.schedule.body) if kernel.joined]


def both(dy: Any, x: Any, scale: Any) -> Any:
    """The gradients of a normalisation: of its input, and of both weights."""
    mean, spread = moments(x)
    hat = e.mul(e.sub(x, rows(mean, x)), rows(spread, x))
    return gradient(dy, x, scale), red.sum_(e.mul(dy, hat), (0,)), red.sum_(dy, (0,))


@pytest.mark.parametrize("shape", [(64, 128), (128, 130), (256, 200), (192, 1000)])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
def test_the_gradients_of_a_normalisation_are_one_pass(
    shape: tuple[int, int], dtype: dt.DType
) -> None:
    types = [typed(*shape, dtype=dtype), typed(*shape, dtype=dtype), typed(shape[1], dtype=dtype)]
    found = check(both, *types, length=2000, factor=30.0, machine=SMALL)
    (kernel,) = joined(found)
    assert kernel.temps == 2
    assert found.launches == 2
    first = next(f for name, f in found.tile.funcs.items() if name != "main")
    (loop,) = [op for op in first.ops if isinstance(op, t.For)]
    whole = [op for op in loop.body.ops if isinstance(op, t.Load)]
    assert len(whole) == 2
    # What is added up does not wait for the row.
    places = {value: k for k, op in enumerate(loop.body.ops) for value in op.results}
    last = max(k for k, op in enumerate(loop.body.ops) if isinstance(op, t.Store))
    assert all(places[value] < last - 2 for value in loop.body.outputs)


def test_elementwise_work_and_column_sums_are_one_pass() -> None:
    def fn(dy: Any, x: Any, b: Any) -> Any:
        d = e.mul(dy, e.tanh(e.add(x, columns(b, x))))
        return d, red.sum_(d, (0,)), red.max_(x, (0,))

    found = check(fn, typed(256, 150), typed(256, 150), typed(150), length=256, machine=SMALL)
    assert joined(found)


def test_sums_with_an_epilogue() -> None:
    def fn(dy: Any, x: Any, b: Any) -> Any:
        return e.add(dy, columns(b, x)), e.exp(e.mul(e.add(red.sum_(e.mul(dy, x), (0,)), b), 0.01))

    found = check(fn, typed(256, 150), typed(256, 150), typed(150), length=256, machine=SMALL)
    assert joined(found)


def test_values_that_need_the_sums_come_later() -> None:
    def fn(x: Any) -> Any:
        total = red.sum_(x, (0,))
        return total, e.add(x, columns(total, x)), e.mul(x, 2.0)

    check(fn, typed(256, 150), length=256, machine=SMALL)


def test_what_is_read_across_rows_is_not_joined() -> None:
    def fn(x: Any) -> Any:
        y = e.exp(x)
        return y, red.sum_(e.mul(x, transpose(y, (1, 0))), (0,))

    check(fn, typed(256, 256), length=256, machine=SMALL)


@pytest.mark.parametrize("shape", [(255, 200), (8, 128), (256, 20), (0, 128), (256, 20_000)])
def test_shapes_that_are_not_joined(shape: tuple[int, int]) -> None:
    def fn(x: Any) -> Any:
        return e.mul(x, 2.0), red.sum_(x, (0,))

    found = check(fn, typed(*shape), length=256, machine=SMALL)
    assert not joined(found)
