"""Reductions and scans that are split to fill a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, complex64, float32, int32
from tessera.graph.ops.cumulative import cumlogsumexp, cummax, cumprod, cumsum
from tessera.graph.ops.elementwise import add, div, exp, mul, sub
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.reduce import argmax, argmin, max_, sum_
from tessera.ir.core import Func
from tessera.ir.intexpr import Facts, sym
from tessera.schedule import split as splitting
from tessera.schedule import split_scan
from tessera.schedule.from_graph import from_graph
from tessera.schedule.rebuild import kernels
from tessera.schedule.split import split
from tests.schedule.lowering import labels, nests_of, traced, typed
from tests.tile.gpu_running import SM90, check_gpu


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short axes are split."""
    monkeypatch.setattr(splitting, "ROW_CHUNK", 4)
    monkeypatch.setattr(splitting, "COLUMN_CHUNK", 2)
    monkeypatch.setattr(split_scan, "SHORT_CHUNK", 4)


def parts(fn: Any, *types: Any) -> Func:
    """The split program of a function."""
    return split(from_graph(traced(fn, *types)), SM90)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 31])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_sums_of_all_lengths(length: int, axes: tuple[int, ...]) -> None:
    check_gpu(lambda x: sum_(x, axes), typed(length, 3), length=100)
    check_gpu(lambda x: sum_(mul(x, x), axes), typed(3, length), length=100)


def test_what_becomes_of_a_long_sum() -> None:
    func = parts(lambda x: sum_(x, (0,)), typed(64))
    (kernel,) = kernels(func.body)
    first, second = nests_of(func)
    assert kernel.temps == 1
    assert [axis.extent for axis in first.axes] == [16]
    assert second.axes == ()
    assert kernel.reason.endswith("reduced in 16 parts of 4 places")


def test_enough_rows_are_not_split() -> None:
    func = parts(lambda x: sum_(x, (1,)), typed(400, 64))
    assert len(nests_of(func)) == 1


@pytest.mark.parametrize("size", [0, 1, 3, 8, 21])
@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_lengths(axis: int, size: int) -> None:
    shape = (sym("N"), 3) if axis == 0 else (3, sym("N"))
    for fn in (sum_, max_):
        check_gpu(lambda x, fn=fn: fn(exp(x), (axis,)), typed(*shape), dims={"N": size or 1})
    check_gpu(lambda x: sum_(x, (axis,)), typed(*shape), dims={"N": size})
    check_gpu(partial(cumsum, axis=axis), typed(*shape), dims={"N": size})


def test_a_dim_that_is_known_to_be_short() -> None:
    func = from_graph(traced(lambda x: sum_(x, (0,)), typed(sym("N"))))
    assert len(nests_of(split(func, SM90))) == 2
    assert len(nests_of(split(func, SM90, Facts({"N": (0, 5)})))) == 1


@pytest.mark.parametrize("fn", [argmax, argmin])
@pytest.mark.parametrize("length", [2, 8, 11, 30])
def test_places_of_extremes(fn: Any, length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.integers(0, 3, (3, length)).astype(np.float32)
    check_gpu(lambda x: fn(x, 1), typed(3, length), inputs=[x])
    check_gpu(lambda x: fn(x, 0), typed(length, 3), inputs=[np.ascontiguousarray(x.T)])
    x[:, length // 2] = np.nan
    check_gpu(lambda x: fn(mul(x, x), 1), typed(3, length), inputs=[x])
    x[...] = -np.inf if fn is argmax else np.inf
    check_gpu(lambda x: fn(x, 1), typed(3, length), inputs=[x])


@pytest.mark.parametrize("dtype", [int32, bfloat16], ids=str)
def test_places_of_extremes_of_other_dtypes(dtype: Any) -> None:
    for length in (9, 16):
        check_gpu(lambda x: argmax(x, 0), typed(length, dtype=dtype))
        check_gpu(lambda x: argmin(x, 0), typed(length, dtype=dtype))


@pytest.mark.parametrize("size", [1, 5, 8, 17])
def test_places_of_extremes_along_a_symbolic_axis(size: int) -> None:
    check_gpu(lambda x: argmax(x, 0), typed(sym("N")), dims={"N": size})
    check_gpu(lambda x: argmin(x, 1), typed(2, sym("N")), dims={"N": size})


def test_reductions_that_need_others() -> None:
    def variance(x: Any) -> Any:
        mean = div(sum_(x, (0,)), 37.0)
        centred = sub(x, broadcast(mean, (37, 3), (1,)))
        return add(sum_(mul(centred, centred), (0,)), mean)

    check_gpu(variance, typed(37, 3), length=100)
    assert len(nests_of(parts(variance, typed(37, 3)))) >= 4


def test_a_long_row_that_is_normalised() -> None:
    def softmax(x: Any) -> Any:
        top = broadcast(max_(x, (1,)), (2, 45), (0,))
        e = exp(sub(x, top))
        return div(e, broadcast(sum_(e, (1,)), (2, 45), (0,)))

    check_gpu(softmax, typed(2, 45), length=100)


def test_several_results_share_their_loads() -> None:
    def fn(x: Any, y: Any) -> Any:
        return sum_(mul(x, y), (0,)), sum_(y, (0,)), max_(y, (0,))

    module = check_gpu(fn, typed(50, 4), typed(50, 4), length=100)
    func = parts(fn, typed(50, 4), typed(50, 4))
    assert len(labels(func)) == 1
    assert [len(nest.axes) for nest in nests_of(func)] == [2, 1]
    assert len(module.funcs) == 3


def test_several_axes() -> None:
    check_gpu(lambda x: sum_(x, (0, 2)), typed(5, 3, 9), length=100)
    check_gpu(lambda x: max_(x, (1,)), typed(2, 33, 2))
    check_gpu(lambda x: sum_(x, (0, 1)), typed(40, 3, 2, dtype=complex64), length=100)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [7, 8, 9, 16, 31])
def test_scans_of_all_lengths(length: int, reverse: bool) -> None:
    for fn in (cumsum, cummax, cumprod, cumlogsumexp):
        check_gpu(partial(fn, axis=0, reverse=reverse), typed(length), length=100)
        check_gpu(partial(fn, axis=0, reverse=reverse), typed(length, 3), length=100)
        check_gpu(partial(fn, axis=1, reverse=reverse), typed(2, length), length=100)


def test_what_becomes_of_a_long_scan() -> None:
    func = parts(lambda x: cumsum(exp(x), 0), typed(64))
    (kernel,) = kernels(func.body)
    assert kernel.temps == 2
    assert len(nests_of(func)) == 3
    assert "scanned in 16 parts of 4 places" in kernel.reason


def test_scans_of_other_dtypes() -> None:
    for dtype in (int32, complex64, bfloat16, float32):
        check_gpu(partial(cumsum, axis=0, reverse=True), typed(21, dtype=dtype), length=100)
        check_gpu(partial(cumprod, axis=0), typed(21, dtype=dtype), length=100)
