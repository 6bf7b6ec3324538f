"""What shares a kernel and what is stored: numbers of kernels, nests and stores of typical
programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.cumulative import CumSum
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter
from tessera.graph.ops.generate import random_bits
from tessera.graph.ops.rearrange import broadcast, concatenate, reshape, slice_axis, transpose
from tessera.graph.trace import bind
from tessera.ir.intexpr import sym
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.from_graph import from_graph, lower
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine
from tests.counting import calls
from tests.differential.levels import check_levels, graph_of, values
from tests.schedule.lowering import all_ops, check, counts, labels, lowered, nests_of, traced, typed

S = sym("S")


def matmul(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((x.ndim - 1,), (0,)))


def rows(x: Any, like: Any) -> Any:
    """A value per row, repeated along the columns."""
    return broadcast(x, like.shape, (0,))


def columns(x: Any, like: Any) -> Any:
    """A value per column, repeated along the rows."""
    return broadcast(x, like.shape, (like.ndim - 1,))


def softmax(x: Any) -> Any:
    up = e.exp(e.sub(x, rows(red.max_(x, (1,)), x)))
    return e.div(up, rows(red.sum_(up, (1,)), x))


def normalise(x: Any, scale: Any, shift: Any) -> Any:
    count = float(x.shape[1])
    mean = e.div(red.sum_(x, (1,)), count)
    c = e.sub(x, rows(mean, x))
    spread = e.rsqrt(e.add(e.div(red.sum_(e.square(c), (1,)), count), 1e-5))
    return e.add(e.mul(e.mul(c, rows(spread, x)), columns(scale, x)), columns(shift, x))


def layer(x: Any, w: Any, b: Any) -> Any:
    y = matmul(x, w)
    return e.tanh(e.add(y, columns(b, y)))


# --- chains and reductions --------------------------------------------------------------------


def test_softmax() -> None:
    func = check(softmax, typed(64, 100))
    assert labels(func) == ["max_sum_sub_exp"]
    assert counts(func) == (1, 1, 1)


def test_softmax_of_few_long_rows_is_not_left_to_few_programs() -> None:
    func = lowered(softmax, typed(2, 65536))
    assert labels(func) == ["max", "sub_exp", "sum", "div"]


def test_softmax_of_very_short_rows_is_not_one_kernel() -> None:
    func = lowered(softmax, typed(1000, 3))
    assert labels(func) == ["max", "sub_exp", "sum", "div"]


def test_softmax_across_rows_has_a_kernel_for_each_reduction() -> None:
    func = lowered(lambda x: transpose(softmax(transpose(x, (1, 0))), (1, 0)), typed(64, 100))
    assert labels(func)[0] == "max_sum_sub_exp"
    (nest, _) = nests_of(func)
    assert [axis.name for axis in nest.axes] == ["i0"]


def test_layer_norm() -> None:
    func = check(normalise, typed(32, 40), typed(40), typed(40))
    assert counts(func) == (1, 1, 1)
    assert len(all_ops(func, ops.Reduce)) == 2


def test_variance_alone_is_one_nest_and_one_store() -> None:
    def variance(x: Any) -> Any:
        mean = e.div(red.sum_(x, (1,)), 40.0)
        return red.sum_(e.square(e.sub(x, rows(mean, x))), (1,))

    assert counts(check(variance, typed(32, 40))) == (1, 1, 1)


def test_reductions_of_one_array_share_a_nest() -> None:
    def moments(x: Any) -> Any:
        return red.sum_(x, (1,)), red.sum_(e.square(x), (1,)), red.max_(x, (1,))

    assert counts(check(moments, typed(32, 40))) == (1, 1, 3)


def test_reduction_of_a_reduction_is_stored() -> None:
    def fn(x: Any) -> Any:
        return red.max_(red.sum_(x, (1,)))

    assert counts(check(fn, typed(8, 9))) == (2, 2, 2)


def test_reduction_through_unit_dims_keeps_its_epilogue() -> None:
    def fn(x: Any) -> Any:
        s = reshape(red.sum_(x, (1,)), (8, 1))
        return e.mul(reshape(s, (8, 1, 1)), 2.0)

    assert counts(check(fn, typed(8, 9))) == (1, 1, 1)


def test_reduction_transposed_afterwards_keeps_its_epilogue() -> None:
    def fn(x: Any) -> Any:
        return e.exp(transpose(red.sum_(x, (1,)), (1, 0)))

    assert counts(check(fn, typed(4, 5, 6))) == (1, 1, 1)


def test_part_of_a_reduction_computes_no_more_than_the_part() -> None:
    def fn(x: Any) -> Any:
        return slice_axis(red.sum_(x, (1,)), 0, 1, 3)

    func = check(fn, typed(8, 9))
    assert counts(func) == (1, 1, 1)
    assert str(nests_of(func)[0].axes[0]) == "i0: 2"


def test_stacks_of_stacks_are_stored_part_by_part() -> None:
    """In another shape, too, in which what follows reads them."""

    def halves(x: Any, count: int) -> Any:
        x = reshape(x, (count, 2, 64 // count))
        a, b = [slice_axis(x, 1, k, k + 1) for k in (0, 1)]
        a, b = e.sub(e.tanh(a), b), e.add(a, e.tanh(b))
        return concatenate([a, b], 1)

    func = check(lambda x: halves(halves(halves(x, 1), 2), 4), typed(128))
    assert counts(func) == (3, 6, 6)


# --- contractions -----------------------------------------------------------------------------


def test_windows_of_what_is_computed_are_not_copied() -> None:
    """Also where a convolution reads them in one order, and the gradient of its weights in another:
    they are nine times what they are taken from, and that is stored."""

    def loss(w: Any, x: Any) -> Any:
        sides = ("NHWC", "HWIO", "NHWC")
        y = ts.conv_general(ts.maximum(x * 2, 0), w, (1, 1), "SAME", dimension_numbers=sides)
        return ts.sum(y * y)

    types = [ts.ShapeDtypeStruct(s, ts.float32) for s in ((3, 3, 32, 32), (4, 16, 16, 32))]
    lowered = ts.jit(ts.grad(loss)).lower(*types, machine="x86-64-v4")
    stored = [t.size for kernel in kernels(lowered.schedule.body) for t in kernel.types]
    assert max(stored) == 4 * 18 * 18 * 32


def test_layer_is_one_kernel() -> None:
    func = check(layer, typed(S, 16), typed(16, 24), typed(24), dims={"S": 5})
    assert counts(func) == (1, 1, 1)


def test_two_layers() -> None:
    def fn(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        return layer(layer(x, w, b), v, c)

    types = [typed(20, 16), typed(16, 24), typed(24), typed(24, 8), typed(8)]
    assert counts(check(fn, *types)) == (2, 2, 2)


def test_rows_of_a_batch_are_one_axis() -> None:
    func = check(layer, typed(4, 5, 16), typed(16, 24), typed(24))
    (nest,) = nests_of(func)
    assert [str(a) for a in nest.axes] == ["i0: 20", "i2: 24"]


def test_gate_has_one_contraction_per_nest() -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        return e.mul(e.sigmoid(matmul(x, w)), matmul(x, v))

    assert counts(check(fn, typed(12, 16), typed(16, 24), typed(16, 24))) == (2, 2, 2)


def test_contraction_used_twice_is_stored_from_the_register() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = matmul(x, w)
        return y, e.tanh(y)

    assert counts(check(fn, typed(12, 16), typed(16, 24))) == (1, 1, 2)


def test_cheap_prologue_of_a_contraction_is_inlined() -> None:
    def fn(x: Any, w: Any) -> Any:
        return matmul(e.cast(x, dt.float32), e.mul(w, 2.0))

    func = check(fn, typed(12, 16, dtype=dt.bfloat16), typed(16, 24))
    assert counts(func) == (1, 1, 1)


def test_expensive_prologue_of_a_contraction_is_stored() -> None:
    def fn(x: Any, w: Any) -> Any:
        return matmul(e.tanh(x), w)

    assert labels(check(fn, typed(64, 64), typed(64, 96))) == ["tanh", "dot"]


def test_operand_of_a_contraction_of_few_columns_is_stored_before() -> None:
    def times(fn: Any, columns: int, rows: int = 400) -> list[str]:
        return labels(lowered(lambda x, w: matmul(fn(x), w), typed(rows, 64), typed(64, columns)))

    def turned(x: Any) -> Any:
        return concatenate((e.sin(x), e.cos(x)), 1)

    def doubled(x: Any) -> Any:
        return e.add(x, x)

    def root(x: Any) -> Any:
        return e.sqrt(e.add(x, x))

    def joined(x: Any, w: Any) -> Any:
        return matmul(turned(x), w)

    assert len(labels(lowered(joined, typed(400, 32), typed(64, 4)))) == 2
    assert len(times(root, 4)) == 2
    assert len(times(root, 4, rows=3)) == 1
    assert len(times(doubled, 4)) == 1
    # Both operands run along the depth.
    assert len(times(root, 1)) == 1


def test_reduction_before_a_scatter_is_stored() -> None:
    # It would be computed for one element after the other.
    def fn(x: Any, y: Any, i: Any) -> Any:
        return scatter(x, red.max_(y, (0,)), (i,), (0,), Combine.ADD)

    func = lowered(fn, typed(8), typed(300, 512), typed(512, dtype=dt.int64))
    largest, *_ = nests_of(func)
    assert not largest.ordered
    assert any(isinstance(op, ops.Reduce) for op in walk(largest.body))


def test_exponentials_before_a_scatter_along_memory_are_stored() -> None:
    """An element is scattered after the other; rows have lanes."""

    def fn(axis: int, f: Any) -> Any:
        return lambda x, u, i: scatter(x, f(u), (i,), (axis,), Combine.ADD)

    def count(axis: int, f: Any, *updates: int) -> int:
        return len(labels(lowered(fn(axis, f), *types(axis, updates))))

    def types(axis: int, updates: tuple[int, ...]) -> list[Any]:
        others = updates[1:]
        shape = (*others[:axis], 50, *others[axis:])
        return [typed(*shape), typed(*updates), typed(updates[0], dtype=dt.int64)]

    cheap = [count(0, e.neg, 400), count(1, e.neg, 400, 30), count(0, e.exp, 400, 30)]
    assert cheap == [1, 1, 1]
    assert [count(0, e.exp, 400), count(1, e.exp, 400, 30)] == [2, 2]
    assert count(0, e.exp, 20) == 1


def test_attention() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        batch = ((0,), (0,))
        s = e.mul(dot_general(q, k, ((2,), (2,)), batch), 0.125)
        m = broadcast(red.max_(s, (2,)), s.shape, (0, 1))
        p = e.exp(e.sub(s, m))
        p = e.div(p, broadcast(red.sum_(p, (2,)), s.shape, (0, 1)))
        return dot_general(p, v, ((2,), (1,)), batch)

    types = [typed(2, 32, 16)] * 3
    assert labels(check(fn, *types, length=64)) == ["dot_mul", "max_sum_sub_exp", "dot_div"]


def test_gradient_of_a_layer() -> None:
    def fn(x: Any, w: Any, y: Any, ct: Any) -> Any:
        d = e.mul(ct, e.sub(1.0, e.square(y)))
        dx = dot_general(d, w, ((1,), (1,)))
        dw = dot_general(x, d, ((0,), (0,)))
        return dx, dw, red.sum_(d, (0,))

    func = check(fn, typed(64, 96), typed(96, 80), typed(64, 80), typed(64, 80), length=256)
    assert labels(func) == ["square_sub_mul", "dot", "dot", "sum"]


# --- values used several times ----------------------------------------------------------------


def test_cheap_values_are_computed_again() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = e.add(x, y)
        return red.sum_(z, (0,)), e.neg(z)

    assert counts(check(fn, typed(64, 64), typed(64, 64))) == (2, 2, 2)


def test_expensive_values_are_stored() -> None:
    def fn(x: Any) -> Any:
        z = e.exp(x)
        return red.sum_(z, (0,)), e.neg(z)

    # The stored exponential is not read back for the output at the same points.
    func = check(fn, typed(64, 64))
    assert counts(func) == (2, 2, 3)


def test_pointwise_uses_share_the_loop_and_nothing_is_stored() -> None:
    def fn(x: Any) -> Any:
        z = e.exp(x)
        return e.add(z, 1.0), e.mul(z, x), e.neg(z)

    func = check(fn, typed(64, 64))
    assert counts(func) == (1, 1, 3)
    assert len([m for m in all_ops(func, ops.Map) if m.fn.name == "exp"]) == 1


def test_outputs_over_shared_inputs_share_the_loop() -> None:
    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = e.add(e.mul(m, 0.9), e.mul(g, 0.1))
        v = e.add(e.mul(v, 0.99), e.mul(e.square(g), 0.01))
        return e.sub(p, e.mul(e.div(m, e.add(e.sqrt(v), 1e-8)), 1e-3)), m, v

    def fn(p: Any, g: Any, m: Any, v: Any) -> Any:
        return adam(p, g, m, e.square(v))

    func = check(fn, *[typed(32, 8)] * 4)
    assert counts(func) == (1, 1, 3)
    assert len(all_ops(func, ops.Load)) == 4


def test_no_cycle_between_kernels() -> None:
    def fn(x: Any) -> Any:
        a = e.exp(x)
        s = rows(red.sum_(a, (1,)), x)
        return a, e.mul(a, s), e.add(e.neg(x), s)

    func = check(fn, typed(32, 33))
    assert counts(func)[0] == 1
    func = check(fn, typed(33, 5))
    assert counts(func)[0] == 3


def test_expensive_value_per_column_is_stored_and_per_row_is_not() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.mul(x, broadcast(e.exp(y), x.shape, (axis,)))

    axis = 0
    assert counts(check(fn, typed(64, 64), typed(64)))[0] == 1
    axis = 1
    assert counts(check(fn, typed(64, 64), typed(64)))[0] == 2


def test_scalars_are_computed_where_they_are_used() -> None:
    def fn(x: Any, a: Any) -> Any:
        return e.mul(x, broadcast(e.exp(e.neg(a)), x.shape, ()))

    assert counts(check(fn, typed(64, 64), typed()))[0] == 1


def test_gather_reads_what_it_needs_of_a_cheap_table() -> None:
    def fn(table: Any, i: Any) -> Any:
        return gather(e.cast(table, dt.float32), (i,), (0,), IndexMode.CLIP)

    func = check(fn, typed(50, 8, dtype=dt.float16), typed(6, dtype=dt.int32))
    assert counts(func) == (1, 1, 1)


def test_sums_are_stored_before_single_elements_are_picked() -> None:
    """Each array that is read would be gathered from."""

    def kernels(picked: int, axis: int = 1) -> int:
        def fn(x: Any, y: Any, i: Any) -> Any:
            return gather(e.add(x, y), (i,), (axis,), IndexMode.CLIP)

        return counts(lowered(fn, *[typed(64, 64)] * 2, typed(picked, dtype=dt.int32)))[0]

    assert kernels(64) == 2
    assert kernels(8) == 1  # most of the sums are wanted by nobody
    assert kernels(64, axis=0) == 1  # rows are read whole


def test_long_functions_are_not_computed_down_few_columns() -> None:
    def kernels(fn: Any, *shape: int) -> int:
        func = lowered(lambda x: bind(CumSum, fn(x), axis=0, reverse=False), typed(*shape))
        return counts(func)[0]

    assert kernels(e.tanh, 512, 3) == 2
    assert kernels(e.tanh, 512, 8) == 1
    assert kernels(e.sqrt, 512, 3) == 1
    assert kernels(e.tanh, 512) == 1  # along memory


def test_prologue_of_a_scan() -> None:
    func = check(lambda x: bind(CumSum, e.exp(x), axis=0, reverse=False), typed(16, 8))
    assert counts(func) == (1, 1, 1)


def test_random_numbers_are_made_once() -> None:
    def fn(key: Any, x: Any) -> Any:
        mask = e.lt(random_bits(key, x.shape), 1 << 31)
        kept = e.select(mask, x, e.mul(x, 0.0))
        return kept, red.sum_(kept, (0,))

    key = np.array([1, 2], np.uint32)
    x = np.ones((32, 32), np.float32)
    func = check(fn, typed(2, dtype=dt.uint32), typed(32, 32), inputs=[key, x])
    assert len([i for i in all_ops(func, ops.Index)]) == 1


# --- large programs ---------------------------------------------------------------------------


def test_long_chains_are_cut() -> None:
    def fn(x: Any) -> Any:
        for _ in range(1500):
            x = e.add(e.mul(x, x), 0.5)
        return x

    nests = nests_of(from_graph(traced(fn, typed(16))))
    assert 1 < len(nests) < 20
    assert max(len(nest.body.ops) for nest in nests) < 2000


def test_shifted_sums_do_not_explode() -> None:
    def fn(x: Any) -> Any:
        for _ in range(12):
            n = x.shape[0]
            x = e.add(slice_axis(x, 0, 0, n - 1), slice_axis(x, 0, 1, n))
        return x

    func = check(fn, typed(200))
    assert len(all_ops(func, ops.Map)) < 100


def test_work_is_linear() -> None:
    def network(depth: int) -> Any:
        def fn(x: Any, w: Any, b: Any) -> Any:
            for _ in range(depth):
                x = e.add(x, layer(normalise(x, b, b), w, b))
            return x

        return traced(fn, typed(8, 32), typed(32, 32), typed(32))

    def work(depth: int) -> int:
        graph = network(depth)
        return calls(lambda: from_graph(graph))[0]

    work(4)
    assert work(160) < 16 * work(10) * 1.2


@pytest.mark.parametrize("depth", [1, 3])
def test_equal_layers_have_equal_kernels(depth: int) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        for _ in range(2 * depth):
            x = e.add(x, layer(normalise(x, b, b), w, b))
        return x

    func = lowered(fn, typed(8, 32), typed(32, 32), typed(32))
    bodies = {str(nest) for nest in nests_of(func)}
    assert len(bodies) <= len(nests_of(func)) / (2 * depth)


def test_decisions_say_why() -> None:
    found = lower(traced(softmax, typed(1000, 3))).decisions
    texts = [str(d) for d in found]
    assert texts[1].startswith("exp f32[1000, 3]: stored, it costs 17 additions")
    assert texts[-1].endswith("stored, it is an output")


# --- narrow operands, digits of axes -----------------------------------------------------------


def quantised(x: Any) -> Any:
    scale = e.div(red.max_(e.abs_(x), (1,)), 127.0)
    return e.cast(e.round_(e.div(x, rows(scale, x))), dt.int8)


def test_what_is_quantised_is_stored_in_bytes() -> None:
    """The product widens its operands; what it reads is narrow."""

    def fn(x: Any, w: Any) -> Any:
        return matmul(e.cast(quantised(x), dt.int32), e.cast(w, dt.int32))

    func = check(fn, typed(40, 64), typed(64, 48, dtype=dt.int8))
    stored = [op.buf.type.dtype for op in all_ops(func, ops.Store)]
    assert stored == [dt.int8, dt.int32]


def test_what_passes_over_rows_would_compute_twice_is_stored() -> None:
    def fn(x: Any) -> Any:
        return quantised(e.mul(e.erfc(e.mul(x, -0.7)), e.tanh(x)))

    func = check(fn, typed(40, 64))
    assert [op.fn.name for op in all_ops(func, ops.Map)].count("erfc") == 1
    # Cheap functions are computed by each pass.
    func = check(lambda x: quantised(e.mul(x, 0.5)), typed(40, 64))
    assert counts(func) == (1, 1, 1)


def test_heads_side_by_side_are_a_contraction() -> None:
    def fn(weights: Any, values: Any) -> Any:
        found = dot_general(weights, values, ((3,), (2,)), ((0, 1), (0, 1)))
        return reshape(transpose(found, (0, 2, 1, 3)), (2, 12, 20))

    func = check(fn, typed(2, 4, 12, 7), typed(2, 4, 7, 5))
    (product,) = all_ops(func, ops.Contract)
    assert len(product.rows) == len(product.cols) == 1


def test_what_is_turned_does_not_join_rows() -> None:
    """Squares are turned in registers; a pass over a row would gather a column."""

    def fn(x: Any) -> Any:
        return transpose(e.sub(x, columns(red.min_(x, (1,)), x)), (1, 0))

    assert counts(lowered(fn, typed(64, 64)))[:2] == (2, 2)

    def straight(x: Any) -> Any:
        return e.sub(x, rows(red.min_(x, (1,)), x))

    assert counts(lowered(straight, typed(64, 64)))[:2] == (1, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_rows_do_not_join_what_is_turned(order: tuple[int, ...]) -> None:
    def fn(x: Any, y: Any) -> Any:
        z = e.mul(x, y)
        found = [transpose(z, (1, 0)), e.log1p(z), red.sum_(z, (1,))]
        return [found[k] for k in order]

    for nest in nests_of(lowered(fn, *[typed(64, 64)] * 2)):
        inside = [op for op in walk(nest.body) if isinstance(op, ops.Load)]
        turned = {str(op.index[-1]) for op in inside} - {"i1", "r0"}
        assert not (turned and any(isinstance(op, ops.Reduce) for op in nest.body.ops))


def test_a_scan_takes_no_reduction_in() -> None:
    def fn(x: Any) -> Any:
        return bind(CumSum, columns(e.mul(red.sum_(x, (0,)), 2.0), x), axis=0, reverse=False)

    assert labels(lowered(fn, typed(512, 8))) == ["sum_mul", "cumsum"]


def test_a_scan_does_not_compute_again_what_is_stored() -> None:
    def fn(x: Any) -> Any:
        y = e.sin(x)
        return bind(CumSum, y, axis=1, reverse=False), red.sum_(transpose(y, (1, 0)), (1,)), y

    assert all("sin" not in label for label in labels(lowered(fn, typed(64, 256)))[1:])


@pytest.mark.parametrize(
    ("shape", "width", "turned", "apart"),
    [
        # Fewer than 8 columns have no register blocks: lanes go along them.
        ((100, 64), 2, False, True),
        ((3, 100), 90, False, True),
        ((20, 8), 2, False, False),
        # Both run along the depth, and so do lanes.
        ((100, 64), 2, True, False),
        # Blocks would have lanes along the rows of a large operand.
        ((2048, 256), 10, False, True),
        ((128, 64), 10, False, False),
    ],
)
def test_operands_of_few_columns(
    shape: tuple[int, int], width: int, turned: bool, apart: bool
) -> None:
    """What takes long is computed before, where a contraction would take it element by element."""

    def fn(x: Any, w: Any) -> Any:
        return matmul(e.tanh(x), transpose(w, (1, 0)) if turned else w)

    depth = shape[1]
    func = lowered(fn, typed(*shape), typed(*((width, depth) if turned else (depth, width))))
    assert counts(func)[0] == 1 + apart
    cheap = lowered(lambda x, w: matmul(e.mul(x, 2.0), w), typed(*shape), typed(depth, width))
    assert counts(cheap)[0] == 1


def test_what_is_turned_before_a_scatter_is_stored_as_it_lies() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return scatter(x, transpose(e.exp(u), (1, 0)), (i,), (1,), Combine.ADD)

    func = lowered(fn, typed(30, 50), typed(30, 400), typed(400, dtype=dt.int64))
    first, *_ = nests_of(func)
    (load,) = [op for op in first.body.ops if isinstance(op, ops.Load)]
    (store,) = [op for op in first.body.ops if isinstance(op, ops.Store)]
    assert load.index == store.index


@pytest.mark.parametrize(("perm", "stored"), [((0, 3, 1, 2), True), ((1, 0, 2, 3), False)])
def test_an_operand_that_lies_turned_is_turned_once(perm: tuple[int, ...], stored: bool) -> None:
    """Each place of a window would turn it again; what keeps its rows is read where it is."""

    def fn(x: Any, w: Any) -> Any:
        return ts.conv_general(ts.permute_dims(x, perm), w, (1, 1), ((0, 0), (0, 0)))

    shapes = ((2, 9, 12, 8) if stored else (8, 2, 9, 12), (16, 8, 3, 3))
    decisions = lower(graph_of(fn, shapes)).decisions
    assert any(d.reason.endswith("times, in windows") for d in decisions) == stored
    check_levels(graph_of(fn, shapes), values(shapes), machine=machine("x86-64-v3"))
