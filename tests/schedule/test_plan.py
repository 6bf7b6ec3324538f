"""The buffer plan: no two buffers that are alive at once overlap, memory is used again, and
results still agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tessera import dtypes as dt
from tessera.errors import CompileError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops import sort as sorting
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.dynamic_slice import dynamic_update_slice
from tessera.graph.ops.gather import Combine, scatter
from tessera.graph.ops.generate import constant
from tessera.graph.ops.rearrange import broadcast, full, reshape, transpose
from tessera.graph.trace import bind
from tessera.ir.core import Block, Func, Value
from tessera.ir.intexpr import Dim, Facts, evaluate, sym
from tessera.ir.parser import parse_func
from tessera.schedule import ops
from tessera.schedule.from_graph import from_graph
from tessera.schedule.plan import may_share, plan
from tessera.schedule.sharing import _tells
from tessera.schedule.types import Axis, BufType, Place, PlaceKind
from tests.schedule.lowering import Placed, check, compare, lowered, random_inputs, traced, typed
from tests.schedule.test_fusion import layer, normalise, softmax

S, T = sym("S"), sym("T")


# --- an independent check ---------------------------------------------------------------------


class Live:
    """Walks a straight program and collects, for each step, the byte ranges that must be intact."""

    def __init__(self, func: Func, dims: dict[str, int]) -> None:
        self.dims = dims
        self.uses: dict[Value, int] = {}
        for k, op in enumerate(func.ops):
            for value in op.operands:
                self.uses[value] = k
        for value in func.outputs:
            self.uses[value] = len(func.ops)

    def extent(self, value: Value, place: Place) -> range:
        assert isinstance(value.type, BufType)
        start = int(evaluate(place.at, self.dims))
        size = int(evaluate(value.type.size, self.dims)) * value.type.dtype.itemsize
        return range(start, start + size)


def assert_disjoint(func: Func, size: Dim, dims: dict[str, int] | None = None) -> None:
    """Every arena buffer keeps its bytes from its kernel to its last use, or hands them over at
    one."""
    live = Live(func, dims or {})
    held: dict[Value, range] = {}
    total = int(evaluate(size, live.dims))
    for k, op in enumerate(func.ops):
        assert isinstance(op, ops.Kernel)
        for value, place in zip(op.results, op.places, strict=True):
            if place.kind is not PlaceKind.ARENA:
                continue
            new = live.extent(value, place)
            assert new.start % 64 == 0
            assert new.stop <= total
            for other, old in held.items():
                if new.start < old.stop and old.start < new.stop:
                    assert other in op.operands, "two living buffers overlap"
                    assert live.uses[other] == k, "the buffer is needed later"
                    assert old == new, "an output lies on part of an input"
            held[value] = new
        held = {v: r for v, r in held.items() if live.uses.get(v, -1) > k}


def planned(fn: Callable[..., Any], *types: Any) -> tuple[Func, Dim]:
    return plan(lowered(fn, *types))


def places(func: Func) -> list[str]:
    return [str(p) for op in func.ops for p in getattr(op, "places", ())]


# --- straight programs ------------------------------------------------------------------------


def deep(x: Any, w: Any, b: Any) -> Any:
    for _ in range(6):
        x = e.add(x, layer(normalise(x, b, b), w, b))
        x = softmax(x)
    return x


@pytest.mark.parametrize("rows", [16, S])
def test_deep_network(rows: Any) -> None:
    types = [typed(rows, 32), typed(32, 32), typed(32)]
    dims = {"S": 16}
    func, size = planned(deep, *types)
    assert_disjoint(func, size, dims)
    arrays = random_inputs(types, dims)
    compare(Placed.run(func, size, arrays, dims), check_outputs(deep, types, arrays, dims))
    # Six layers need no more memory than two.
    assert int(evaluate(size, dims)) < 8 * 16 * 32 * 4


def check_outputs(fn: Any, types: list[Any], arrays: list[Any], dims: dict[str, int]) -> list[Any]:
    from tessera.graph import interp

    return interp.run(traced(fn, *types), arrays, dims)


def test_outputs_live_with_the_caller() -> None:
    func, size = planned(lambda x: (e.exp(x), e.neg(x)), typed(8))
    assert places(func) == ["output(0)", "output(1)"]
    assert size == 0


def chain(x: Any) -> Any:
    """Values that must be stored, one after the other, each of the same size."""
    for _ in range(4):
        x = e.sub(x, broadcast(red.max_(x, (0,)), x.shape, (1,)))
        x = e.add(x, e.exp(x))
    return e.mul(x, 2.0)


def test_memory_is_used_again() -> None:
    func, size = planned(chain, typed(32, 8))
    assert_disjoint(func, size)
    assert isinstance(size, int)
    assert size <= 2 * 1024 + 2 * 64


def test_an_elementwise_output_may_lie_on_its_dying_input() -> None:
    def fn(x: Any) -> Any:
        a = e.exp(x)
        s = red.sum_(a, (0,))
        b = e.tanh(e.mul(a, broadcast(s, x.shape, (1,))))
        return red.sum_(b, (0,)), red.max_(b, (1,))

    func, size = planned(fn, typed(32, 16))
    assert_disjoint(func, size)
    assert size == 2048 + 64
    first, _, third = [op.places[0] for op in func.ops[:3] if isinstance(op, ops.Kernel)]
    assert first == third


def test_a_turned_output_may_not() -> None:
    def fn(x: Any) -> Any:
        a = e.exp(x)
        b = e.tanh(e.add(a, transpose(a, (1, 0))))
        return red.sum_(b, (0,)), red.max_(b, (1,))

    func, size = planned(fn, typed(16, 16))
    assert_disjoint(func, size)
    assert size == 2 * 1024
    check(fn, typed(16, 16))


@pytest.mark.parametrize("is_before", [True, False])
def test_an_output_stored_before_an_input_is_read_may_not(is_before: bool) -> None:
    store = "schedule.store(%d, %s, []) {index=[i]}"
    text = f"""
    func @f(%x: buf<f32[4]>, %y: buf<f32[4]>) {{
      %u, %v = schedule.kernel([%x, %y]) {{types=[buf<f32[4]>, buf<f32[4]>]}}
        : (buf<f32[4]>, buf<f32[4]>)
        body(%a: buf<f32[4]>, %b: buf<f32[4]>, %d: buf<f32[4]>, %e: buf<f32[4]>) {{
        schedule.nest() {{axes=[i: 4]}} body() {{
          %s = schedule.load(%b, []) {{index=[i]}} : f32
          {"" if is_before else store}
          %r = schedule.load(%a, []) {{index=[i]}} : f32
          {store if is_before else ""}
          %t = schedule.map([%s, %r]) {{fn=add}} : f32
          schedule.store(%e, %t, []) {{index=[i]}}
          yield
        }}
        yield
      }}
      return %u, %v
    }}
    """
    (kernel,) = parse_func(text).ops
    assert isinstance(kernel, ops.Kernel)
    assert may_share(kernel, 0, 0) is is_before  # %d on %a
    assert may_share(kernel, 1, 0)
    assert may_share(kernel, 0, 1)


def test_a_scatter_may_lie_on_what_it_copies() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        a = e.exp(x)
        y = scatter(a, u, (i,), (0,), Combine.ADD)
        return red.sum_(y, (0,)), red.max_(y, (1,))

    types = [typed(8, 8), typed(3, 8), typed(3, dtype=dt.int32)]
    func, size = planned(fn, *types)
    assert_disjoint(func, size)
    check(fn, *types)


@given(
    st.integers(1, 48),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), st.sampled_from([1, 2, 3, 4, 8, 0])),
        max_size=3,
    ),
)
def test_an_index_that_tells_the_point(extent: int, digits: list[tuple[int, int]]) -> None:
    i = sym("i")
    index = [i // place % base if base else i // place for place, base in digits]
    points = [tuple([evaluate(d, {"i": k}) for d in index]) for k in range(extent)]
    is_told = len(set(points)) == extent
    if _tells(index, Axis("i", extent)):
        assert is_told
    if [base for _, base in digits] == [0] or digits in ([(16, 0), (1, 16)], [(4, 4), (1, 4)]):
        assert _tells(index, Axis("i", extent)) is is_told


def test_scratch_of_a_sort_is_free_afterwards() -> None:
    def fn(x: Any) -> Any:
        a = sorting.sort((e.neg(x),), 0)[0]
        b = sorting.sort((e.neg(a),), 0)[0]
        return e.exp(b)

    func, size = planned(fn, typed(64, 2))
    assert_disjoint(func, size)
    assert size == 2 * 1024 + 2 * 512
    check(fn, typed(64, 2))


def test_empty_buffers_have_places() -> None:
    check(lambda x: red.sum_(e.exp(red.sum_(x, (0,))), (0,)), typed(3, 0))


def test_outputs_must_be_distinct() -> None:
    func = lowered(lambda x: e.exp(x), typed(4))
    (value,) = func.outputs
    twice = func.with_body(Block(func.args, func.ops, (value, value)))
    with pytest.raises(CompileError, match="appears twice"):
        plan(twice)


# --- symbolic sizes ---------------------------------------------------------------------------


def test_equal_symbolic_sizes_share_a_slot() -> None:
    func, size = planned(chain, typed(S, T))
    for s, t in ((1, 1), (7, 3), (0, 4)):
        assert_disjoint(func, size, {"S": s, "T": t})
    assert str(size) == "64*((S*T + 15) // 16) + 64*((T + 15) // 16)"


def test_a_provably_larger_slot_is_taken() -> None:
    def fn(x: Any) -> Any:
        a = e.exp(x)
        s = red.sum_(a, (0,))
        half = e.exp(broadcast(e.neg(s), (S, 4), (1,)))
        return red.max_(half, (0,)), red.max_(half, (1,))

    func, size = planned(fn, typed(S, 4))
    assert_disjoint(func, size, {"S": 5})
    assert str(size) == "64*((4*S + 15) // 16) + 64" or "S" in str(size)


def test_facts_about_dims_help() -> None:
    def fn(x: Any, y: Any) -> Any:
        a = red.max_(e.exp(x), (0,))
        b = e.mul(e.exp(y), broadcast(red.max_(a), y.shape, ()))
        return red.max_(e.tanh(b), (0,))

    graph = traced(fn, typed(4, S), typed(4, T))
    func = from_graph(graph)
    _, free = plan(func)
    _, known = plan(func, Facts({"S": (0, T)}))
    assert int(evaluate(known, {"S": 64, "T": 64})) <= int(evaluate(free, {"S": 64, "T": 64}))


# --- loops and conditionals -------------------------------------------------------------------


def block_of(fn: Any, *types: Any) -> Block:
    return traced(fn, *types).body


def test_a_loop_keeps_what_it_uses_from_outside() -> None:
    types = [typed(16), typed(dtype=dt.int32), typed(16)]

    def step(c: Any, i: Any, x: Any) -> Any:
        return e.add(i, 1), e.add(x, e.mul(c, broadcast(red.max_(x), x.shape, ())))

    cond, body = block_of(lambda c, i, x: e.lt(i, 5), *types), block_of(step, *types)

    def fn(x: Any) -> Any:
        c = e.exp(e.sub(x, broadcast(red.max_(x), x.shape, ())))
        zero = constant(0, dt.int32)
        return bind(While, (c,), (zero, e.neg(c)), cond=cond, body=body)[1]

    check(fn, typed(16), factor=64)


def test_initial_values_that_die_become_the_carried_buffers() -> None:
    types = [typed(dtype=dt.int32), typed(64)]
    cond = block_of(lambda i, x: e.lt(i, 5), *types)
    body = block_of(lambda i, x: [e.add(i, 1), e.mul(x, 0.5)], *types)

    def fn(i: Any, x: Any) -> Any:
        found = bind(While, (), (e.neg(i), e.exp(x)), cond=cond, body=body)
        return red.max_(found[1]), e.neg(found[0])

    func, _ = planned(fn, *types)
    init = [op.places[0] for op in func.ops[:2] if isinstance(op, ops.Kernel)]
    loop = next(op for op in func.ops if isinstance(op, ops.While))
    assert set(loop.places) == set(init)
    check(fn, *types)


@pytest.mark.parametrize("p", [False, True])
def test_branches_write_where_the_result_is(p: bool) -> None:
    types = [typed(8, 4)]

    def then(x: Any) -> Any:
        a = e.exp(x)
        return e.mul(a, broadcast(red.sum_(a, (0,)), x.shape, (1,)))

    blocks = {"then": block_of(then, *types), "otherwise": block_of(lambda x: x, *types)}

    def fn(p: Any, x: Any) -> Any:
        y = e.tanh(x)
        z = bind(Cond, p, (y,), **blocks)
        z = z[0] if isinstance(z, tuple) else z
        return e.add(z, y), red.sum_(z, (0,))

    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    check(fn, typed(dtype=dt.bool_), *types, inputs=[np.asarray(p), x])


def test_nested_loops() -> None:
    types = [typed(dtype=dt.int32), typed(8)]
    inner_cond = block_of(lambda i, x: e.lt(i, 3), *types)
    inner_body = block_of(
        lambda i, x: [e.add(i, 1), e.add(x, broadcast(red.max_(x), x.shape, ()))], *types
    )

    def step(i: Any, x: Any) -> Any:
        y = e.exp(e.neg(x))
        found = bind(While, (), (constant(0, dt.int32), y), cond=inner_cond, body=inner_body)
        return e.add(i, 1), e.add(e.mul(found[1], 0.125), y)

    cond, body = block_of(lambda i, x: e.lt(i, 4), *types), block_of(step, *types)

    def fn(x: Any) -> Any:
        return bind(While, (), (constant(0, dt.int32), x), cond=cond, body=body)[1]

    check(fn, typed(8), factor=64)


# --- random programs --------------------------------------------------------------------------

TEXT = """
func @f(%x: buf<f32[{n}]>) {{
{body}
  return {out}
}}
"""


def random_program(rng: np.random.Generator) -> Func:
    """Kernels over buffers of random sizes, each reading one or two earlier ones element by
    element."""
    n = 64
    names, lines = ["%x"], []
    for k in range(int(rng.integers(3, 25))):
        picks = [names[i] for i in rng.choice(len(names), min(2, len(names)), replace=False)]
        args = ", ".join(f"%a{k}_{j}: buf<f32[{n}]>" for j in range(len(picks)))
        loads = "\n".join(
            f"      %l{k}_{j} = schedule.load(%a{k}_{j}, []) {{index=[i0]}} : f32"
            for j in range(len(picks))
        )
        last = f"%l{k}_{len(picks) - 1}"
        head = f"schedule.kernel([{', '.join(picks)}]) {{types=[buf<f32[{n}]>]}} : buf<f32[{n}]>"
        lines.append(
            f"""  %v{k} = {head} body({args}, %o{k}: buf<f32[{n}]>) {{
    schedule.nest() {{axes=[i0: {n}]}} body() {{
{loads}
      %m{k} = schedule.map([%l{k}_0, {last}]) {{fn=add}} : f32
      schedule.store(%o{k}, %m{k}, []) {{index=[i0]}}
      yield
    }}
    yield
  }}"""
        )
        names.append(f"%v{k}")
    out = f"{names[-1]}, {names[len(names) // 2]}" if len(names) > 4 else names[-1]
    return parse_func(TEXT.format(n=n, body="\n".join(lines), out=out))


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    from tessera.schedule import interp

    func = random_program(np.random.default_rng(seed))
    x = np.linspace(0, 1, 64, dtype=np.float32)
    placed, size = plan(func)
    assert_disjoint(placed, size)
    compare(Placed.run(placed, size, [x], {}), interp.run(func, [x]))


# --- updates in place -------------------------------------------------------------------------


def filling_loop(x: Any) -> Any:
    """Fills the rows of an array one by one, as a scan does."""

    def step(i: Any, c: Any, rows: Any) -> Any:
        c = e.add(e.mul(c, 0.5), 1.0)
        zero = constant(0, dt.int32)
        return e.add(i, 1), c, dynamic_update_slice(rows, reshape(c, (1, 4)), (i, zero))

    types = [typed(dtype=dt.int32), typed(4), typed(5, 4)]
    cond, body = block_of(lambda i, c, r: e.lt(i, 5), *types), block_of(step, *types)
    start = (constant(0, dt.int32), x, full((5, 4), 0.0, dt.float32))
    return bind(While, (), start, cond=cond, body=body)[1:]


def test_a_loop_that_fills_an_array_writes_one_row_per_step() -> None:
    func, _ = planned(filling_loop, typed(4))
    loop = next(op for op in func.ops if isinstance(op, ops.While))
    inside = [op for op in loop.body.ops if isinstance(op, ops.Kernel)]
    filled = next(op for op in inside if "update" in op.label)
    (nest,) = filled.body.ops
    assert isinstance(nest, ops.Nest)
    assert [str(axis.extent) for axis in nest.axes] == ["4"]
    # The counter is still read after its next value is computed, so that is copied.
    found = {v: p for op in inside for v, p in zip(op.results, op.places, strict=True)}
    assert [found[v] == p for v, p in zip(loop.body.outputs, loop.places, strict=True)] == [
        False,
        True,
        True,
    ]
    check(filling_loop, typed(4))


def test_a_carried_buffer_that_is_still_read_is_not_overwritten() -> None:
    types = [typed(dtype=dt.int32), typed(8), typed(8)]

    def step(i: Any, x: Any, y: Any) -> Any:
        # The new x is stored before the reduction of the old one.
        new = e.exp(e.neg(e.mul(x, x)))
        return e.add(i, 1), new, e.add(e.sub(y, new), broadcast(red.max_(x), x.shape, ()))

    cond, body = block_of(lambda i, x, y: e.lt(i, 4), *types), block_of(step, *types)

    def fn(x: Any) -> Any:
        start = (constant(0, dt.int32), x, e.neg(x))
        return bind(While, (), start, cond=cond, body=body)[1:]

    check(fn, typed(8), factor=64)


def test_updates_of_dying_buffers_copy_nothing() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        a = e.exp(x)
        y = scatter(a, u, (i,), (0,), Combine.SET)
        return red.sum_(y, (0,)), red.max_(y, (1,))

    func, _ = planned(fn, typed(64, 8), typed(3, 8), typed(3, dtype=dt.int32))
    kernel = next(op for op in func.ops if isinstance(op, ops.Kernel) and "scatter" in op.label)
    assert len(kernel.body.ops) in (1, 2)
