"""Products that are split along their depth to fill a GPU."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.compile_gpu import lower_on
from tessera.graph import interp as graph_interp
from tessera.graph.device import device_at
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast, transpose
from tessera.graph.ops.reduce import sum_
from tessera.ir.core import Func
from tessera.ir.intexpr import sym
from tessera.schedule import depth_parts, split_products
from tessera.schedule.from_graph import lower
from tessera.schedule.heuristics import choose
from tessera.schedule.rebuild import kernels
from tessera.schedule.split import split
from tessera.tile import ops as t
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.schedule.lowering import nests_of, random_inputs, traced, typed
from tests.tile.gpu_running import SM90, check_gpu, ops_of
from tests.tolerance import assert_close


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are split, whether it pays or not."""
    monkeypatch.setattr(split_products, "GAIN", 1e9)
    monkeypatch.setattr(split_products, "LAUNCH", 0.0)
    monkeypatch.setattr(split_products, "STEPS", 1)


@pytest.fixture(scope="module")
def device() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def matmul(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((x.ndim - 1,), (0,)))


def weights(x: Any, y: Any) -> Any:
    """A gradient of weights: the sum over all rows of both."""
    return dot_general(x, y, ((0,), (0,)))


def parts(fn: Any, *types: Any) -> Func:
    """The split program of a function."""
    return split(lower(traced(fn, *types), machine=SM90).func, SM90)


def reason(m: int, n: int, k: int, dtype: dt.DType = dt.bfloat16) -> str:
    """What is said about the split of a product."""
    func = parts(matmul, typed(m, k, dtype=dtype), typed(k, n, dtype=dtype))
    (kernel,) = kernels(func.body)
    _, _, said = kernel.reason.partition("; ")
    return said


# --- which ones -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [
        (768, 3072, 8192, "in 4 parts of 2048 products"),
        (3072, 768, 8192, "in 4 parts of 2048 products"),
        (768, 768, 8192, "in 8 parts of 1024 products"),
        (64, 64, 65536, "in 128 parts of 512 products"),
    ],
)
def test_few_blocks_of_great_depth_are_split(m: int, n: int, k: int, expected: str) -> None:
    assert reason(m, n, k) == expected


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (4096, 4096, 4096),
        (8192, 768, 3072),
        (1024, 1024, 1024),
        (64, 64, 64),
        (16, 8192, 8192),
        (1000, 513, 777),
    ],
)
def test_others_are_not(m: int, n: int, k: int) -> None:
    assert not reason(m, n, k)


@pytest.mark.parametrize("dtype", [dt.float16, dt.float32, dt.float64, dt.int8], ids=str)
def test_products_of_all_dtypes(dtype: dt.DType) -> None:
    assert "parts" in reason(256, 256, 16384, dtype)
    assert not reason(4096, 4096, 512, dtype)


def test_few_rows_are_split_if_they_leave_multiprocessors_idle() -> None:
    assert "parts" in reason(16, 512, 65536)
    assert not reason(16, 65536, 4096)


def test_blocks_stay_large() -> None:
    func = parts(matmul, typed(768, 8192, dtype=dt.bfloat16), typed(8192, 768, dtype=dt.bfloat16))
    first, second = nests_of(choose(func, SM90))
    assert first.tile == (1, 128, 128)
    assert second.reduce_tile == 0
    (kernel,) = kernels(func.body)
    assert kernel.temps == 1
    partial = kernel.types[-1]
    assert (partial.shape, partial.dtype) == ((8, 768, 768), dt.float32)


def test_symbolic_sizes_are_not_split(always: None) -> None:
    for shapes in [((8, sym("N")), (sym("N"), 8)), ((sym("N"), 4096), (4096, 8))]:
        assert len(nests_of(parts(matmul, *[typed(*shape) for shape in shapes]))) == 1


def test_many_products_are_blocks_as_well() -> None:
    def batched(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    def program(count: int) -> Func:
        x, y = (count, 128, 4096), (count, 4096, 128)
        return parts(batched, typed(*x, dtype=dt.bfloat16), typed(*y, dtype=dt.bfloat16))

    assert len(nests_of(program(4))) == 2
    assert len(nests_of(program(264))) == 1


# --- what they compute ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.int8, dt.int32], ids=str
)
@pytest.mark.parametrize("depth", [129, 200, 256, 300])
def test_products_in_parts(always: None, dtype: dt.DType, depth: int) -> None:
    x, y = typed(20, depth, dtype=dtype), typed(depth, 33, dtype=dtype)
    assert len(nests_of(parts(matmul, x, y))) == 2
    module = check_gpu(matmul, x, y, length=depth, factor=8.0)
    # Sums of bytes are added up as int32, and some parts of them are widened before.
    found = {t.tile_type(op.a).dtype for op in ops_of(module, t.Dot)}
    assert found <= ({dt.int8, dt.int32} if dtype is dt.int8 else {dtype})
    check_gpu(weights, typed(depth, 20, dtype=dtype), typed(depth, 33, dtype=dtype), length=depth)


def test_whole_and_masked_parts(always: None) -> None:
    for depth, masked in [(256, False), (250, True)]:
        x, y = typed(depth, 20, dtype=dt.bfloat16), typed(depth, 24, dtype=dt.bfloat16)
        module = check_gpu(weights, x, y, length=depth)
        loads = ops_of(module, t.Load)
        assert any(load.mask for load in loads) is masked


def test_operands_that_are_not_zero_beyond_the_end(always: None) -> None:
    def fn(x: Any, y: Any) -> Any:
        return matmul(e.exp(x), e.log(e.add(e.abs_(y), 0.0)))

    check_gpu(fn, typed(17, 150), typed(150, 20), length=300, factor=16.0)


def test_what_follows_a_product(always: None) -> None:
    def fn(x: Any, y: Any, bias: Any, old: Any) -> Any:
        z = e.add(matmul(x, y), broadcast(bias, (20, 40), (1,)))
        h = e.tanh(z)
        return z, e.add(e.mul(h, 0.5), old), transpose(h, (1, 0))

    check_gpu(fn, typed(20, 200), typed(200, 40), typed(40), typed(20, 40), length=200)
    bf = [typed(*shape, dtype=dt.bfloat16) for shape in [(20, 256), (256, 40), (40,), (20, 40)]]
    check_gpu(fn, *bf, length=256)


def test_batches_and_several_axes(always: None) -> None:
    def batched(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    def deep(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((0, 1), (0, 1)))

    def crossed(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((0, 1), (2, 0)))

    check_gpu(batched, typed(3, 10, 200), typed(3, 200, 20), length=200)
    check_gpu(deep, typed(3, 100, 10), typed(3, 100, 20), length=300)
    check_gpu(deep, typed(100, 3, 10), typed(100, 3, 20), length=300)
    check_gpu(crossed, typed(100, 3, 10), typed(3, 20, 100), length=300)
    check_gpu(crossed, typed(4, 90, 10), typed(90, 20, 4), length=360)


def test_more_parts_than_are_summed_at_once(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_parts, "UNROLLED", 2)
    module = check_gpu(matmul, typed(10, 300), typed(300, 20), length=300)
    assert ops_of(module, t.Reduce)


def test_a_product_that_is_summed_up_is_left(always: None) -> None:
    def fn(x: Any, y: Any) -> Any:
        z = matmul(x, y)
        return z, sum_(z, (1,))

    check_gpu(fn, typed(20, 200), typed(200, 40), length=1000)


@pytest.mark.parametrize("seed", range(12))
def test_random_products(always: None, seed: int) -> None:
    rng = random.Random(seed)
    m, n, k = rng.randint(1, 70), rng.randint(1, 70), rng.randint(30, 600)
    dtype = rng.choice([dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.int8])
    fn = rng.choice([matmul, weights])
    x = (m, k) if fn is matmul else (k, m)
    check_gpu(fn, typed(*x, dtype=dtype), typed(k, n, dtype=dtype), length=k, factor=8.0)


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float32, dt.float64, dt.int8], ids=str)
@pytest.mark.parametrize("depth", [256, 203])
def test_threads_compute_them(
    always: None, device: FakeBackend, dtype: dt.DType, depth: int
) -> None:
    def fn(x: Any, y: Any, old: Any) -> Any:
        z = weights(x, y)
        return z, e.add(z, old)

    types = [typed(*shape, dtype=dtype) for shape in [(depth, 20), (depth, 40), (20, 40)]]
    graph = traced(fn, *types)
    arrays = random_inputs(types, {})
    where = device_at("cuda", 0)
    lowered = lower_on(graph, where)
    assert "parts of" in str([kernel.reason for kernel in kernels(lowered.schedule.body)])
    given = [device.put(np.asarray(x, order="C"), where) for x in arrays]
    found = lowered.executable(where).run(given, [])
    for a, b in zip(found, graph_interp.run(graph, arrays, {}), strict=True):
        assert_close(device.get(a), b, length=depth, factor=4.0)
