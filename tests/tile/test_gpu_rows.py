"""Row-wise work for GPUs: one kernel for a chain, rows in registers, and the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.gather import Combine, IndexMode, scatter, take_along
from tessera.graph.ops.generate import iota
from tessera.graph.ops.rearrange import broadcast, reshape, transpose
from tessera.graph.ops.reshape import full
from tessera.ir.intexpr import sym
from tessera.schedule import heuristics_gpu
from tessera.tile import ops as t
from tests.schedule.gpu import check, lowered
from tests.schedule.lowering import typed

S, T = sym("S"), sym("T")
SIZES = [(1, 1), (3, 5), (7, 64), (70, 100), (64, 33)]


def rows(x: Any, like: Any) -> Any:
    return broadcast(x, like.shape, tuple(range(like.ndim - 1)))


def columns(x: Any, like: Any) -> Any:
    return broadcast(x, like.shape, (like.ndim - 1,))


def softmax(x: Any) -> Any:
    top = red.max_(x, (x.ndim - 1,))
    top = e.select(e.isfinite(top), top, 0.0)
    up = e.exp(e.sub(x, rows(top, x)))
    return e.div(up, rows(red.sum_(up, (x.ndim - 1,)), x))


def normalise(x: Any, scale: Any, shift: Any) -> Any:
    mean, spread = moments(x)
    c = e.sub(x, rows(mean, x))
    return e.add(e.mul(e.mul(c, rows(spread, x)), columns(scale, x)), columns(shift, x))


def moments(x: Any) -> tuple[Any, Any]:
    count = full((), 8.0, x.dtype)
    last = (x.ndim - 1,)
    total = red.sum_(x, last)
    mean = e.div(total, broadcast(count, total.shape, ()))
    c = e.sub(x, rows(mean, x))
    spread = red.sum_(e.square(c), last)
    return mean, e.rsqrt(e.add(spread, 1e-5))


def with_moments(x: Any, scale: Any, shift: Any) -> Any:
    return (*moments(x), normalise(x, scale, shift))


def gradient(dy: Any, x: Any, scale: Any) -> Any:
    """What a layer normalisation gives back to its input."""
    mean, spread = moments(x)
    last = (x.ndim - 1,)
    hat = e.mul(e.sub(x, rows(mean, x)), rows(spread, x))
    d = e.mul(dy, columns(scale, x))
    first = rows(red.sum_(d, last), x)
    second = rows(red.sum_(e.mul(d, hat), last), x)
    return e.mul(rows(spread, x), e.sub(e.sub(d, first), e.mul(hat, second)))


def residual(x: Any, r: Any, scale: Any, shift: Any) -> Any:
    y = e.add(x, r)
    return y, normalise(y, scale, shift)


@pytest.mark.parametrize("shape", SIZES)
def test_softmax_is_one_kernel_that_reads_once(shape: tuple[int, ...]) -> None:
    found = check(softmax, typed(*shape))
    assert found.launches == 1
    assert len(found.tile_ops(t.Load)) == 1


def test_softmax_of_several_leading_dims() -> None:
    found = check(softmax, typed(3, 5, 40))
    assert found.launches == 1
    assert [axis.extent for axis in found.nests[0].axes] == [15, 40]


@pytest.mark.parametrize("dims", [{"S": 5, "T": 7}, {"S": 0, "T": 3}, {"S": 70, "T": 1}])
def test_softmax_of_symbolic_sizes(dims: dict[str, int]) -> None:
    assert check(softmax, typed(S, T), dims=dims).launches == 1
    assert check(softmax, typed(S, 24), dims={"S": dims["S"]}).launches == 1


@pytest.mark.parametrize("shape", [*SIZES, (64, 20_000)])
def test_layer_norm_is_one_kernel(shape: tuple[int, int]) -> None:
    found = check(normalise, typed(*shape), typed(shape[1]), typed(shape[1]), length=20_000)
    assert found.launches == 1


@pytest.mark.parametrize("shape", SIZES)
def test_statistics_are_stored_by_the_same_kernel(shape: tuple[int, int]) -> None:
    found = check(with_moments, typed(*shape), typed(shape[1]), typed(shape[1]))
    assert found.launches == 1
    assert len([op for op in found.tile_ops(t.Load)]) == 3


@pytest.mark.parametrize("count", [0, 1, 6])
def test_statistics_of_rows_that_may_be_empty(count: int) -> None:
    def fn(x: Any) -> Any:
        total = red.sum_(e.square(x), (1,))
        return total, e.mul(x, rows(total, x))

    check(fn, typed(5, T), dims={"T": count})
    check(fn, typed(S, T), dims={"S": 3, "T": count})
    check(fn, typed(5, count))


@pytest.mark.parametrize("shape", SIZES)
def test_the_gradient_of_a_layer_norm_is_one_kernel(shape: tuple[int, int]) -> None:
    found = check(gradient, typed(*shape), typed(*shape), typed(shape[1]))
    assert found.launches == 1
    assert len(found.tile_ops(t.Load)) == 3


def test_a_stored_sum_and_its_norm_are_one_kernel() -> None:
    found = check(residual, typed(9, 33), typed(9, 33), typed(33), typed(33))
    assert found.launches == 1
    assert len(found.tile_ops(t.Load)) == 4


def test_rows_too_long_for_registers_are_read_in_steps() -> None:
    def fn(x: Any) -> Any:
        return e.div(x, rows(red.sum_(x, (1,)), x))

    found = check(fn, typed(64, 17_000, dtype=dt.float64), length=17_000)
    assert found.launches == 1
    assert len(found.tile_ops(t.For)) == 2


def test_few_long_rows_are_not_one_block_each() -> None:
    assert lowered(lambda x: e.div(x, rows(red.sum_(x, (1,)), x)), typed(2, 1 << 20)).launches == 2


def test_reductions_of_other_axes_are_kernels_of_their_own() -> None:
    def fn(x: Any) -> Any:
        return red.sum_(x, (0,)), red.sum_(x, (1,))

    found = check(fn, typed(64, 64))
    assert found.launches == 2


def test_column_sums_share_a_kernel() -> None:
    def fn(dy: Any, x: Any) -> Any:
        return red.sum_(dy, (0,)), red.sum_(e.mul(dy, x), (0,))

    found = check(fn, typed(50, 70), typed(50, 70))
    assert found.launches == 1
    assert [op.shape for op in found.tile_ops(t.Load)] == [(64, 32)] * 2


@pytest.mark.parametrize("combine", [Combine.ADD, Combine.SET])
@pytest.mark.parametrize("mode", [IndexMode.CLIP, IndexMode.DROP])
@pytest.mark.parametrize("dtype", [dt.int32, dt.int8])
def test_one_element_of_each_row_is_written_without_a_scatter(
    combine: Combine, mode: IndexMode, dtype: dt.DType
) -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        n = x.shape[0]
        index = [iota((n, 1), 0, dt.int32), reshape(i, (n, 1))]
        return scatter(x, reshape(u, (n, 1)), index, axes=(0, 1), combine=combine, mode=mode)

    index = np.array([0, 3, -1, 9, 2], dtype.np)
    arrays = [np.ones((5, 4), np.float32), np.arange(5, dtype=np.float32), index]
    found = check(fn, typed(5, 4), typed(5), typed(5, dtype=dtype), inputs=arrays)
    assert found.launches == 1
    assert not found.tile_ops(t.Scatter)


def cross_entropy(x: Any, labels: Any) -> Any:
    """The loss of each row, and its gradient."""
    n = x.shape[0]
    top = red.max_(x, (1,))
    up = e.exp(e.sub(x, rows(top, x)))
    total = red.sum_(up, (1,))
    index = [iota((n,), 0, dt.int32), labels]
    zero = full(x.shape, 0.0, x.dtype)
    one = full((n,), 1.0, x.dtype)
    hot = scatter(zero, one, index, axes=(0, 1), combine=Combine.ADD, mode=IndexMode.CLIP)
    picked = red.sum_(e.mul(hot, x), (1,))
    loss = e.sub(e.add(e.log(total), top), picked)
    return loss, e.sub(e.div(up, rows(total, x)), hot)


def test_cross_entropy_and_its_gradient_are_one_kernel() -> None:
    found = check(cross_entropy, typed(70, 50), typed(70, dtype=dt.int32))
    assert found.launches == 1
    assert len(found.tile_ops(t.Load)) == 2


# --- other nests ------------------------------------------------------------------------------


def matmul(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((x.ndim - 1,), (0,)))


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.int8])
@pytest.mark.parametrize("shape", [(1, 5, 3), (17, 33, 20), (40, 64, 70)])
def test_products_of_any_size(dtype: dt.DType, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = check(matmul, typed(m, k, dtype=dtype), typed(k, n, dtype=dtype))
    for op in found.tile_ops(t.Dot):
        assert t.tile_type(op.a).dtype is dtype


def test_a_transposed_product_is_written_in_order() -> None:
    found = check(lambda x, y: transpose(matmul(x, y), (1, 0)), typed(40, 20), typed(20, 70))
    (store,) = found.tile_ops(t.Store)
    assert t.tile_type(store.value).shape == t.tile_type(found.tile_ops(t.Dot)[0].acc).shape


def test_a_product_whose_heads_are_joined_again_is_a_product() -> None:
    def fn(a: Any, v: Any) -> Any:
        heads, n = 3, a.shape[1]
        v = transpose(reshape(v, (n, heads, 16)), (1, 0, 2))
        found = dot_general(a, v, ((2,), (1,)), ((0,), (0,)))
        return e.add(reshape(transpose(found, (1, 0, 2)), (n, 48)), 1.0)

    found = check(fn, typed(3, 20, 20), typed(20, 48))
    assert found.launches == 1
    assert found.tile_ops(t.Dot)


def test_a_sum_of_products_is_a_product() -> None:
    def fn(x: Any, y: Any) -> Any:
        shape = (20, 30, 40)
        return red.sum_(e.mul(broadcast(x, shape, (0, 1)), broadcast(y, shape, (1, 2))), (1,))

    assert check(fn, typed(20, 30), typed(30, 40)).tile_ops(t.Dot)


@pytest.mark.parametrize("k", [0, 1, 5, 70])
def test_products_of_symbolic_sizes(k: int) -> None:
    dims = {"S": 20, "T": k}
    check(matmul, typed(S, T), typed(T, 30), dims=dims)


def test_operands_of_large_products_are_stored() -> None:
    found = lowered(lambda x, y: matmul(e.tanh(x), y), typed(512, 512), typed(512, 512))
    assert found.launches == 2


def test_computed_operands_are_zero_beyond_the_end() -> None:
    check(lambda x, y: matmul(e.exp(x), e.cos(y)), typed(5, 7), typed(7, 3))


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 1000), (7, 3, 20)])
def test_elementwise(shape: tuple[int, ...]) -> None:
    found = check(lambda x, y: (e.add(x, y), e.mul(x, y)), typed(*shape), typed(*shape))
    assert found.launches == 1
    assert all(nest.warps for nest in found.nests)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (33, 70), (100, 3)])
def test_transposes(shape: tuple[int, int]) -> None:
    check(lambda x: transpose(x, (1, 0)), typed(*shape))


def test_reasons_and_warps() -> None:
    found = lowered(softmax, typed(4096, 4096, dtype=dt.bfloat16))
    (nest,) = found.nests
    assert nest.tile == (1, 4096)
    assert nest.chunk == (1, 0)
    assert nest.warps == 4
    assert "a row in registers" in nest.reason
    (launch,) = [op for op in found.tile.entry.ops if isinstance(op, t.Launch)]
    assert launch.warps == 4
    assert launch.grid == (4096,)


@pytest.mark.parametrize("length", [1, 30, 100, 1000, 5000])
def test_short_rows_share_a_block(length: int) -> None:
    (nest,) = lowered(softmax, typed(1 << 16, length)).nests
    elements = nest.tile[0] * nest.reduce_tile if length > 1 else 2048
    assert elements >= 2048


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (9, 70)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_arg_reductions_and_reductions(shape: tuple[int, int], axes: tuple[int, ...]) -> None:
    check(lambda x: red.sum_(x, axes), typed(*shape))
    if 0 not in shape:
        check(lambda x: red.max_(x, axes), typed(*shape))
        check(lambda x: red.argmax(x, axes[0]), typed(*shape))


def test_ordered_axes_stay_in_a_block() -> None:
    def fn(x: Any, i: Any, u: Any) -> Any:
        return scatter(x, u, [i], axes=(0,), combine=Combine.ADD)

    check(fn, typed(5, 20), typed(9, dtype=dt.int32), typed(9, 20))


# --- rows in steps ----------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more than 16 elements do not fit."""
    monkeypatch.setattr(heuristics_gpu, "MAX_ROW", 16)
    monkeypatch.setattr(heuristics_gpu, "ROW_STEP", 16)


def softmax_as_is(x: Any) -> Any:
    up = e.exp(e.sub(x, rows(red.max_(x, (1,)), x)))
    return e.div(up, rows(red.sum_(up, (1,)), x))


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float64])
@pytest.mark.parametrize("fn", [softmax, softmax_as_is])
@pytest.mark.parametrize("length", [17, 33, 64, 100])
@pytest.mark.usefixtures("short")
def test_a_maximum_and_the_sum_below_it_share_a_pass(dtype: dt.DType, fn: Any, length: int) -> None:
    found = check(fn, typed(5, length, dtype=dtype))
    assert found.launches == 1
    assert len(found.tile_ops(t.For)) == (1 if length < 32 else 2)


@pytest.mark.parametrize("fn", [softmax, softmax_as_is])
@pytest.mark.usefixtures("short")
def test_the_shared_pass_knows_what_is_not_finite(fn: Any) -> None:
    x = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32) * 30
    x[0, 3] = np.inf
    x[1] = -np.inf
    x[2, ::2] = -np.inf
    x[3, 60] = np.nan
    x[4, :40] = -np.inf
    x[5, 5] = -np.inf
    x[6, 69] = 3e38
    x[7] = 0.0
    check(fn, typed(9, 70), inputs=[x])


@pytest.mark.usefixtures("short")
def test_independent_reductions_share_a_pass() -> None:
    found = check(gradient, typed(5, 70), typed(5, 70), typed(70))
    # mean; spread and the two sums of the gradient, which need it; the result.
    assert len(found.tile_ops(t.For)) <= 4
    found = check(cross_entropy, typed(9, 50), typed(9, dtype=dt.int32))
    assert found.launches == 1
    assert len(found.tile_ops(t.For)) == 2


@pytest.mark.parametrize("size", [0, 1, 16, 40])
@pytest.mark.usefixtures("short")
def test_symbolic_rows_in_steps(size: int) -> None:
    if size:
        check(softmax, typed(S, T), dims={"S": 3, "T": size})
    check(normalise, typed(3, T), typed(T), typed(T), dims={"T": size})


def test_the_sum_of_a_row_with_one_element_is_the_element() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        hot = scatter(
            full(x.shape, 0.0, x.dtype),
            u,
            [iota((x.shape[0],), 0, dt.int32), i],
            axes=(0, 1),
            combine=Combine.ADD,
            mode=IndexMode.CLIP,
        )
        return red.sum_(e.neg(hot), (1,)), e.mul(hot, x)

    found = check(fn, typed(5, 9), typed(5), typed(5, dtype=dt.int32))
    assert not found.tile_ops(t.Reduce)


# --- nests that share a launch ----------------------------------------------------------------


def adam(*tensors: Any) -> list[Any]:
    """A step of Adam on parameters, gradients, and two averages each."""
    count = len(tensors) // 4
    found: list[Any] = []
    for p, g, m, v in [tensors[k::count] for k in range(count)]:
        m = e.add(e.mul(m, 0.9), e.mul(g, 0.1))
        v = e.add(e.mul(v, 0.999), e.mul(e.square(g), 0.001))
        found += [e.sub(p, e.div(m, e.add(e.sqrt(e.square(v)), 1e-3))), m, v]
    return found


def test_a_step_of_adam_over_several_tensors_is_one_launch() -> None:
    shapes = [(40, 33), (7,), (3, 5, 200), (), (5000,), (0, 4)]
    types = [typed(*shape) for _ in range(4) for shape in shapes]
    found = check(adam, *types)
    assert found.launches == 1


def test_a_step_of_adam_over_symbolic_tensors_is_one_launch() -> None:
    types = [typed(*shape) for _ in range(4) for shape in [(S, 3), (T,)]]
    for dims in ({"S": 5, "T": 700}, {"S": 0, "T": 1}):
        assert check(adam, *types, dims=dims).launches == 1


def test_nests_that_need_each_other_are_launched_in_turn() -> None:
    def fn(x: Any) -> Any:
        y = e.exp(x)
        z = transpose(y, (1, 0))
        return y, e.add(z, broadcast(red.max_(y), z.shape, ())), e.mul(x, 2.0)

    check(fn, typed(40, 30))


def test_rows_that_are_picked_by_number_are_read_by_views() -> None:
    def fn(table: Any, i: Any) -> Any:
        return take_along(table, broadcast(reshape(i, (9, 1)), (9, 200), (0, 1)), 0)

    found = check(fn, typed(30, 200), typed(9, dtype=dt.int32))
    assert found.launches == 1
    assert not found.tile_ops(t.Gather)
