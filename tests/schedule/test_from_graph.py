"""Every family, lowered: the program computes what the Graph does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.errors import CompileError
from tessera.graph.ops import cumulative
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops import sort as sorting
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.dynamic_slice import dynamic_slice, dynamic_update_slice
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter, take_along
from tessera.graph.ops.generate import constant, iota, random_bits
from tessera.graph.ops.rearrange import (
    broadcast,
    concatenate,
    full,
    pad,
    reshape,
    reverse,
    slice_,
    transpose,
)
from tessera.graph.trace import bind
from tessera.ir.core import Block, Op
from tessera.ir.intexpr import sym
from tessera.schedule import interp, ops
from tessera.schedule.from_graph import Options, from_graph
from tessera.schedule.types import BufType
from tests.schedule.lowering import all_ops, check, compare, counts, lowered, traced, typed

S, T = sym("S"), sym("T")


# --- elementwise and rearranging --------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (0,), (5,), (3, 4), (2, 0, 3), (3, 1, 2), (1, 1)])
def test_elementwise(shape: tuple[int, ...]) -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.add(e.mul(x, y), e.exp(x)), e.select(e.lt(x, y), x, e.neg(y))

    func = check(fn, typed(*shape), typed(*shape))
    assert counts(func) == (1, 1, 2)


@pytest.mark.parametrize("dims", [{"S": 5, "T": 3}, {"S": 1, "T": 4}, {"S": 0, "T": 2}])
def test_symbolic_dims(dims: dict[str, int]) -> None:
    def fn(x: Any, y: Any) -> Any:
        wide = broadcast(y, (S, T), (1,))
        flat = reshape(e.add(x, wide), (S * T,))
        return flat, transpose(x, (1, 0)), red.sum_(x, (0,)), concatenate([x, e.neg(x)], 1)

    check(fn, typed(S, T), typed(T), dims=dims)


def test_rearrangements_cost_nothing_by_themselves() -> None:
    def fn(x: Any) -> Any:
        y = reverse(transpose(x, (1, 0)), (0,))
        return e.exp(reshape(slice_(y, (1, 0), (5, 4), (2, 1)), (4, 2)))

    func = check(fn, typed(4, 6))
    assert counts(func) == (1, 1, 1)
    assert len(all_ops(func, ops.Load)) == 1


def test_digits_of_an_axis_become_axes() -> None:
    def heads(x: Any) -> Any:
        return reshape(transpose(reshape(x, (2, 5, 3, 8)), (0, 2, 1, 3)), (6, 40))

    func = check(heads, typed(10, 24))
    (load,) = all_ops(func, ops.Load)
    assert not any("//" in str(i) or "%" in str(i) for i in load.index)


def test_pad_reads_nothing_outside() -> None:
    def fn(x: Any, v: Any) -> Any:
        inner = pad(x, 1.5, (1, 0), (2, 3), (1, 0))
        return inner, pad(e.exp(x), v, (0, 2), (1, 0))

    func = check(fn, typed(3, 4), typed())
    first = all_ops(func, ops.Load)[0]
    assert first.where
    assert first.fill == 1.5


def test_pad_of_an_inlined_value_selects() -> None:
    def fn(x: Any) -> Any:
        return pad(e.add(x, x), 0.0, (1,), (1,))

    func = check(fn, typed(5))
    assert counts(func) == (1, 1, 1)
    assert len(all_ops(func, ops.Holds)) == 1


def test_concatenate_of_outputs_is_a_nest_per_operand() -> None:
    def fn(x: Any, y: Any) -> Any:
        return concatenate([x, e.exp(y), x], 1)

    func = check(fn, typed(3, 2), typed(3, 5))
    assert counts(func) == (1, 3, 3)


def test_concatenate_inside_is_a_choice() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.mul(concatenate([x, y], 0), 2.0)

    func = check(fn, typed(3, 4), typed(2, 4))
    assert counts(func) == (1, 1, 1)
    assert len(all_ops(func, ops.Map)) == 2


def test_stencil() -> None:
    def fn(x: Any) -> Any:
        p = pad(x, 0.0, (1, 1), (1, 1))
        left, right = slice_(p, (1, 0), (6, 5)), slice_(p, (1, 2), (6, 7))
        up, down = slice_(p, (0, 1), (5, 6)), slice_(p, (2, 1), (7, 6))
        return e.sub(e.add(e.add(left, right), e.add(up, down)), e.mul(x, 4.0))

    func = check(fn, typed(5, 5))
    assert counts(func) == (1, 1, 1)


# --- reductions -------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5, 1), (2, 0, 3)])
def test_reductions(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        return red.sum_(e.exp(x), axes), red.prod_(x, axes)

    check(fn, typed(*shape))


def test_reductions_of_every_kind() -> None:
    def fn(x: Any, b: Any) -> Any:
        return (
            red.max_(x, (1,)),
            red.min_(x, (0,)),
            red.any_(b, (1,)),
            red.all_(b, (0,)),
            red.argmax(x, 1),
            red.argmin(x, 0),
        )

    check(fn, typed(4, 7), typed(4, 7, dtype=dt.bool_))
    check(fn, typed(4, 7, dtype=dt.int8), typed(4, 7, dtype=dt.bool_))
    check(fn, typed(4, 1), typed(4, 1, dtype=dt.bool_))


def test_argmax_finds_the_first_nan() -> None:
    x = np.array([[1.0, np.nan, np.nan], [3.0, 3.0, 1.0]], np.float32)
    check(lambda x: red.argmax(x, 1), typed(2, 3), inputs=[x])


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_narrow_sums_accumulate_wide(dtype: dt.DType) -> None:
    func = check(lambda x: red.sum_(x, (1,)), typed(3, 100, dtype=dtype))
    (reduce,) = all_ops(func, ops.Reduce)
    assert str(reduce.result.type) == "f32"


def test_reductions_over_all_axes_are_one_loop() -> None:
    func = check(lambda x: red.sum_(x), typed(S, T), dims={"S": 3, "T": 4})
    (reduce,) = all_ops(func, ops.Reduce)
    assert [str(axis) for axis in reduce.axes] == ["r0: S*T"]


# --- contractions -----------------------------------------------------------------------------


DOTS = {
    "matrices": ((4, 5), (5, 6), ((1,), (0,)), ((), ())),
    "turned": ((4, 5), (6, 5), ((1,), (1,)), ((), ())),
    "turned, many rows": ((12, 5), (6, 5), ((1,), (1,)), ((), ())),
    "both turned": ((5, 4), (6, 5), ((0,), (1,)), ((), ())),
    "batched": ((3, 4, 5), (3, 5, 2), ((2,), (1,)), ((0,), (0,))),
    "batched last": ((4, 5, 3), (5, 3, 2), ((1,), (0,)), ((2,), (1,))),
    "vector": ((5,), (5, 6), ((0,), (0,)), ((), ())),
    "inner": ((5,), (5,), ((0,), (0,)), ((), ())),
    "outer": ((4,), (3,), ((), ()), ((), ())),
    "two axes": ((4, 5, 3), (3, 5, 2), ((1, 2), (1, 0)), ((), ())),
    "one row": ((1, 5), (5, 6), ((1,), (0,)), ((), ())),
    "empty": ((4, 0), (0, 6), ((1,), (0,)), ((), ())),
}


@pytest.mark.parametrize("case", DOTS)
def test_contractions(case: str) -> None:
    a, b, contract, batch = DOTS[case]
    check(lambda x, y: dot_general(x, y, contract, batch), typed(*a), typed(*b))


@pytest.mark.parametrize(
    "dtype", [dt.bool_, dt.int8, dt.int32, dt.float64, dt.bfloat16, dt.complex64]
)
def test_contraction_dtypes(dtype: dt.DType) -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (0,)))

    check(fn, typed(4, 5, dtype=dtype), typed(5, 6, dtype=dtype))


def test_wider_results() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (0,)), dtype=dt.int32)

    check(fn, typed(4, 5, dtype=dt.int8), typed(5, 6, dtype=dt.int8))


# --- gather, scatter, dynamic slices ----------------------------------------------------------


@pytest.mark.parametrize("mode", [IndexMode.CLIP, IndexMode.FILL, IndexMode.DROP])
def test_gather(mode: IndexMode) -> None:
    i = np.array([[0, 7, -3], [2, 1, 3]], np.int32)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)

    def fn(x: Any, i: Any) -> Any:
        return e.mul(gather(x, (i,), (0,), mode), 2.0), gather(e.exp(x), (i, i), (1, 0), mode)

    check(fn, typed(4, 3), typed(2, 3, dtype=dt.int32), inputs=[x, i])


def test_gather_with_unsigned_index() -> None:
    i = np.array([0, 2**63, 2**64 - 1], np.uint64)
    x = np.arange(3, dtype=np.float32)
    check(
        lambda x, i: gather(x, (i,), (0,), IndexMode.CLIP),
        typed(3),
        typed(3, dtype=dt.uint64),
        inputs=[x, i],
    )


def test_gather_of_a_gather() -> None:
    def fn(x: Any, i: Any, j: Any) -> Any:
        return gather(gather(x, (i,), (0,), IndexMode.CLIP), (j,), (0,), IndexMode.FILL)

    func = check(fn, typed(5), typed(7, dtype=dt.int32), typed(4, dtype=dt.int64))
    assert counts(func) == (1, 1, 1)


def test_index_computed_after_what_it_indexes() -> None:
    def fn(x: Any, i: Any) -> Any:
        y = e.add(x, x)
        return gather(y, (e.mul(i, i),), (0,), IndexMode.CLIP)

    check(fn, typed(5), typed(4, dtype=dt.int32))


def test_iota_indices_are_formulas() -> None:
    def fn(x: Any, i: Any) -> Any:
        return take_along(x, i, 1, IndexMode.CLIP)

    func = check(fn, typed(3, 5), typed(3, 2, dtype=dt.int32))
    assert len(all_ops(func, ops.Load)) == 2


@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("mode", [IndexMode.CLIP, IndexMode.DROP])
def test_scatter(combine: Combine, mode: IndexMode) -> None:
    i = np.array([3, 0, 3, 9, -1], np.int32)

    def fn(x: Any, u: Any, i: Any) -> Any:
        return scatter(e.neg(x), e.exp(u), (i,), (0,), combine, mode)

    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    func = check(
        fn,
        typed(4, 3),
        typed(5, 3),
        typed(5, dtype=dt.int32),
        inputs=[x.astype(np.float32), u.astype(np.float32), i],
    )
    assert counts(func) == (1, 2, 2)


def test_scatter_along_several_axes() -> None:
    def fn(x: Any, u: Any, i: Any, j: Any) -> Any:
        return scatter(x, u, (i, j), (2, 0), Combine.ADD)

    index = typed(2, 2, dtype=dt.int64)
    check(fn, typed(3, 4, 5), typed(2, 2, 4), index, index)


def test_dynamic_slices() -> None:
    def fn(x: Any, u: Any, i: Any, j: Any) -> Any:
        y = dynamic_slice(x, (i, j), (2, 3))
        return e.exp(y), dynamic_update_slice(e.neg(x), u, (i, j))

    index = typed(dtype=dt.int32)
    check(fn, typed(4, 5), typed(2, 3), index, index)


# --- scans, sorting, generation ---------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", ["CumSum", "CumMax", "CumProd"])
def test_cumulative(name: str, axis: int, back: bool) -> None:
    cls: type[Op] = getattr(cumulative, name)

    def fn(x: Any) -> Any:
        return e.add(bind(cls, e.exp(x), axis=axis, reverse=back), 1.0)

    check(fn, typed(3, 6), length=256)
    check(fn, typed(1, 1))


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool) -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b = sorting.sort((e.neg(x), y), 0, 1, descending)
        return e.exp(a), b, sorting.argsort(x, 1, descending)

    func = check(fn, typed(5, 3), typed(5, 3, dtype=dt.int32))
    assert all(k.temps == 2 for k in func.ops if k.label.startswith("sort"))


def test_generated_values() -> None:
    def fn(x: Any) -> Any:
        return e.add(x, e.cast(iota((3, 4), 1, dt.int32), dt.float32))

    check(fn, typed(3, 4))
    check(lambda y: e.add(y, iota((S,), 0, dt.int64)), typed(S, dtype=dt.int64), dims={"S": 4})
    check(lambda x: [full((2, 3), 1.5, dt.float32), constant(2, dt.int32), x], typed(2))


def test_random_bits() -> None:
    key = np.array([[1, 2], [3, 4], [5, 6]], np.uint32)

    def fn(key: Any) -> Any:
        bits = random_bits(key, (2, 5))
        return bits, e.shr(bits, broadcast(constant(9, dt.uint32), bits.shape, ()))

    check(fn, typed(3, 2, dtype=dt.uint32), inputs=[key])


def test_arrays_are_not_constants() -> None:
    with pytest.raises(CompileError, match="only single numbers are constants"):
        lowered(lambda x: e.add(x, constant(np.arange(3.0), dt.float32)), typed(3))


# --- outputs, inputs --------------------------------------------------------------------------


def test_outputs_that_are_inputs_are_copied() -> None:
    def fn(x: Any) -> Any:
        y = e.exp(x)
        return x, y, y, x

    func = check(fn, typed(3))
    assert len({id(v) for v in func.outputs}) == 4


def test_dead_ops_leave_nothing() -> None:
    def fn(x: Any) -> Any:
        red.sum_(e.exp(x))
        return e.neg(x)

    assert counts(lowered(fn, typed(3))) == (1, 1, 1)


def test_strided_inputs() -> None:
    graph = traced(lambda x, y: e.add(x, y), typed(S, T), typed(S, T))
    strides = (sym("a"), sym("b"))
    func = from_graph(graph, Options(strides=(strides, None)))
    assert func.dims == ("S", "T", "a", "b")
    assert func.args[0].type == BufType((S, T), dt.float32, strides)
    assert [str(a) for a in func.body.ops[0].body.ops[0].axes] == ["i0: S", "i1: T"]  # type: ignore[attr-defined]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    compare(interp.run(func, [x.T, x.T]), [x.T + x.T])


def test_axis_names_avoid_dims() -> None:
    i = sym("i0")
    func = check(lambda x: e.exp(x), typed(i), dims={"i0": 3})
    (nest,) = all_ops(func, ops.Nest)
    assert nest.axes[0].name != "i0"


# --- control ----------------------------------------------------------------------------------


def block_of(fn: Any, *types: Any) -> Block:
    return traced(fn, *types).body


def test_calls_are_inlined() -> None:
    inner = block_of(lambda x, y: [e.add(x, y), x], typed(3), typed(3))
    outer = block_of(
        lambda x, y: [bind(Call, (y, x), label="g", body=inner)[0], e.neg(y)], typed(3), typed(3)
    )

    def fn(x: Any, y: Any) -> Any:
        a, b = bind(Call, (x, y), label="f", body=outer)
        c, d = bind(Call, (a, b), label="f", body=outer)
        return c, d

    func = check(fn, typed(3), typed(3))
    assert counts(func) == (1, 1, 2)


def test_while() -> None:
    def cond(n: Any, i: Any, x: Any, y: Any) -> Any:
        return e.lt(i, n)

    def body(n: Any, i: Any, x: Any, y: Any) -> Any:
        return e.add(i, 1), y, e.add(x, e.exp(red_to(x)))

    def red_to(x: Any) -> Any:
        return broadcast(e.neg(red.max_(x)), x.shape, ())

    types = [typed(dtype=dt.int32), typed(dtype=dt.int32), typed(4), typed(4)]
    blocks = {"cond": block_of(cond, *types), "body": block_of(body, *types)}

    def fn(n: Any, x: Any) -> Any:
        start = constant(0, dt.int32)
        found = bind(While, (n,), (start, e.neg(x), x), **blocks)
        return found[2], e.mul(found[1], 2.0)

    for n in (0, 1, 4):
        x = np.linspace(-1, 1, 4, dtype=np.float32)
        check(fn, types[0], typed(4), inputs=[np.asarray(n, np.int32), x])


def test_while_keeps_what_does_not_change() -> None:
    types = [typed(dtype=dt.int32), typed(64)]
    cond = block_of(lambda i, x: e.lt(i, 3), *types)
    body = block_of(lambda i, x: [e.add(i, 1), x], *types)

    def fn(i: Any, x: Any) -> Any:
        return bind(While, (), (i, x), cond=cond, body=body)

    check(fn, *types)
    (loop,) = [op for op in lowered(fn, *types).ops if isinstance(op, ops.While)]
    assert loop.body.outputs[1] is loop.body.args[1]


def test_cond() -> None:
    types = [typed(3, 4), typed(3, 4)]
    then = block_of(lambda x, y: [e.exp(x), x], *types)
    otherwise = block_of(lambda x, y: [e.add(x, y), e.neg(red_like(y))], *types)

    def fn(p: Any, x: Any, y: Any) -> Any:
        a, b = bind(Cond, p, (x, e.neg(y)), then=then, otherwise=otherwise)
        return e.mul(a, b), a

    for p in (False, True):
        x = np.ones((3, 4), np.float32)
        check(
            fn,
            typed(dtype=dt.bool_),
            *types,
            inputs=[np.asarray(p), x, np.arange(12, dtype="f").reshape(3, 4)],
        )


def red_like(x: Any) -> Any:
    return broadcast(red.sum_(x, (1,)), x.shape, (0,))


def test_a_value_used_in_a_loop_stays_alive() -> None:
    def scaled(x: Any) -> Any:
        return e.sub(x, broadcast(red.max_(x), x.shape, ()))

    types = [typed(4), typed(dtype=dt.int32), typed(4)]
    cond = block_of(lambda c, i, x: e.lt(i, 3), *types)
    body = block_of(lambda c, i, x: [e.add(i, 1), e.add(e.exp(c), scaled(x))], *types)

    def fn(x: Any) -> Any:
        c = scaled(x)
        found = bind(While, (c,), (constant(0, dt.int32), e.exp(x)), cond=cond, body=body)
        return found[1]

    check(fn, typed(4), factor=16)


def test_equal_functions_have_equal_programs() -> None:
    def fn(x: Any) -> Any:
        return red.sum_(e.exp(x), (1,))

    assert str(lowered(fn, typed(4, 5))) == str(lowered(fn, typed(4, 5)))


def test_location_and_reason() -> None:
    func = lowered(lambda x: e.mul(red.sum_(e.exp(x), (1,)), 2.0), typed(4, 5))
    (kernel,) = func.ops
    assert isinstance(kernel, ops.Kernel)
    assert kernel.label == "sum_exp_mul"
    assert kernel.reason == "sum over axes 1 with prologue exp with epilogue mul"
    assert kernel.loc.frames[0].filename.endswith("test_from_graph.py")


def test_a_turned_operand_behind_a_reshape_of_another_rank() -> None:
    a, x = np.ones((16, 4), np.float32), np.arange(96, dtype=np.float32).reshape(8, 3, 4)
    found = ts.jit(lambda a, x: a @ ts.permute_dims(ts.reshape(x, (24, 4)), (1, 0)))(a, x)
    np.testing.assert_array_equal(found, a @ x.reshape(24, 4).T)
