"""Scans as a GPU runs them: tiles along the scan, with a carry between them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import DType, bfloat16, complex64, float16, float32, float64, int32, uint8
from tessera.graph.ops.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from tessera.graph.ops.elementwise import cast, exp, mul
from tessera.ir.intexpr import sym
from tessera.schedule import heuristics_gpu_scan
from tessera.tile import ops as t
from tests.schedule.lowering import typed
from tests.tile.gpu_running import check_gpu, ops_of

FUNCTIONS = {
    "sum": cumsum,
    "product": cumprod,
    "maximum": cummax,
    "minimum": cummin,
    "logsumexp": cumlogsumexp,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows take several steps."""
    monkeypatch.setattr(heuristics_gpu_scan, "MAX_ROW", 8)
    monkeypatch.setattr(heuristics_gpu_scan, "STEP", 4)
    monkeypatch.setattr(heuristics_gpu_scan, "THREAD_ELEMENTS", 1)
    monkeypatch.setattr(heuristics_gpu_scan, "LINE_BYTES", 8)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_along_every_axis(name: str, axis: int, reverse: bool) -> None:
    fn = partial(FUNCTIONS[name], axis=axis, reverse=reverse)
    module = check_gpu(fn, typed(3, 5, 7))
    (scan,) = ops_of(module, t.Scan)
    assert scan.reverse == reverse
    # A tile's last dim is the one along which memory runs.
    rank = len(scan.result.type.shape)
    assert scan.axis == (rank - 1 if axis == 2 else 0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 12, 31])
def test_tiles_carry_to_the_next(length: int, axis: int, reverse: bool) -> None:
    for fn in (cumsum, cummax):
        shape = (length, 3) if axis == 0 else (3, length)
        check_gpu(partial(fn, axis=axis, reverse=reverse), typed(*shape))


@pytest.mark.parametrize(
    "dtype", [float16, bfloat16, float32, float64, int32, uint8, complex64], ids=str
)
@pytest.mark.parametrize("axis", [0, 1])
def test_dtypes(dtype: DType, axis: int) -> None:
    check_gpu(partial(cumsum, axis=axis), typed(4, 9, dtype=dtype))
    check_gpu(partial(cumprod, axis=axis, reverse=True), typed(4, 9, dtype=dtype))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [0, 1, 3, 8, 21])
@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_lengths(axis: int, size: int) -> None:
    n, m = sym("N"), sym("M")
    for reverse in (False, True):
        fn = partial(cumsum, axis=axis, reverse=reverse)
        check_gpu(fn, typed(n, m), dims={"N": size, "M": 5})


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (0, 3), (3, 0), (1, 1, 4)])
def test_short_and_empty_arrays(shape: tuple[int, ...]) -> None:
    check_gpu(partial(cumsum, axis=0), typed(*shape))
    check_gpu(partial(cummin, axis=len(shape) - 1), typed(*shape))


@pytest.mark.usefixtures("small")
def test_nan_stays_once_met() -> None:
    x = np.arange(30, dtype=np.float32).reshape(2, 15)
    x[0, 9] = x[1, 0] = np.nan
    for fn in (cummax, cummin, cumsum, cumlogsumexp):
        check_gpu(partial(fn, axis=1), typed(2, 15), inputs=[x])


@pytest.mark.usefixtures("small")
def test_prologue_and_two_scans_of_one_array() -> None:
    def fn(x: Any) -> Any:
        y = mul(exp(x), x)
        return cumsum(y, 1), cumsum(y, 1, reverse=True), cummax(y, 0)

    check_gpu(fn, typed(4, 13))


def test_a_row_that_fits_is_one_tile() -> None:
    module = check_gpu(partial(cumsum, axis=1), typed(3, 1000))
    (scan,) = ops_of(module, t.Scan)
    assert scan.result.type.shape[-1] == 1024
    assert not ops_of(module, t.For)
    assert not ops_of(module, t.Reduce)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_results_are_converted_as_they_are_stored(dtype: DType) -> None:
    module = check_gpu(partial(cumsum, axis=1), typed(3, 100, dtype=dtype))
    assert len(module.funcs) == 2
    (store,) = ops_of(module, t.Store)
    assert store.value.type.dtype is dtype
    (scan,) = ops_of(module, t.Scan)
    assert scan.result.type.dtype is float32
    check_gpu(partial(cumsum, axis=0, reverse=True), typed(sym("N"), 5, dtype=dtype), dims={"N": 7})


def test_results_that_are_used_twice_are_stored_as_they_are() -> None:
    def fn(x: Any) -> Any:
        y = cumsum(cast(x, float32), 1)
        return y, cast(y, bfloat16)

    check_gpu(fn, typed(3, 40, dtype=bfloat16))
