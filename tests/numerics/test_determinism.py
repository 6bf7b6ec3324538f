"""Stated orders of sums: what they mean on each machine, and what `ts.deterministic` promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.compile import lower
from tessera.config import config
from tessera.dtypes import dtype_of
from tessera.errors import VerifyError
from tessera.graph.ops.cumulative import CumSum
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.ops.reduce import Prod, Sum
from tessera.graph.trace import bind
from tessera.ir.core import Func
from tessera.ir.hash import content_hash
from tessera.ir.hostcall import HostFunction
from tessera.ir.loc import Loc
from tessera.ir.order import PART, SEQUENCE, Order, Tree, fixed
from tessera.ir.parser import parse_func
from tessera.ir.scalar import SCALARS
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule.ordering import rounds
from tessera.schedule.spec import SCHEDULE
from tessera.target.machine import host, machine
from tests.fake_gpu import fake_gpu

Array = np.ndarray[Any, Any]

LEVELS = [
    level
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4")
    if host().has(*machine(level).features)
]


def in_order(terms: Array, order: Order, combine: Callable[[Array, Array], Array]) -> Array:
    """What `Order` says, along the last axis."""
    count = terms.shape[-1]
    size = order.split or max(count, 1)
    parts: list[Array] = []
    for start in range(0, max(count, 1), size):
        part = terms[..., start : start + size]
        width = min(order.width, 1 << max(part.shape[-1] - 1, 0).bit_length())
        neutral = np.zeros((), terms.dtype) if combine is np.add else np.ones((), terms.dtype)
        lanes = np.broadcast_to(neutral, (*terms.shape[:-1], width)).copy()
        for k in range(part.shape[-1]):
            lanes[..., k % width] = combine(lanes[..., k % width], part[..., k])
        while width > 1:
            width //= 2
            lanes = combine(lanes[..., :width], lanes[..., width:])
        parts.append(lanes[..., 0])
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


def test_products_state_no_other_order() -> None:
    text = (
        "func @f(%x: f32[4, 5], %y: f32[5, 6]) {\n"
        "  %r = graph.dot_general(%x, %y) {contract=[[1], [0]], order=order<halves, 0, 8>}"
        " : f32[4, 6]\n  return %r\n}\n"
    )
    with config.update(verify=True), pytest.raises(VerifyError, match="added in sequence, not in"):
        lower(parse_func(text)).to_schedule()


def random_array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bits(x: Any) -> bytes:
    """The bits of an array."""
    return np.asarray(x).tobytes()


# --- what an order is ---


def test_orders_have_one_text_form() -> None:
    order = Order(Tree.HALVES, 8192, 64)
    assert str(order) == "order<halves, 8192, 64>"
    text = (
        "func @f(%x: f32[4, 100]) {\n"
        f"  %r = graph.reduce_sum(%x) {{axes=[1], order={order}}} : f32[4]\n  return %r\n}}\n"
    )
    func = parse_func(text)
    (op,) = func.ops
    assert isinstance(op, Sum)
    assert op.order == order
    assert parse_func(str(func)).ops[0].attrs["order"] == order
    other = parse_func(text.replace("8192, 64", "8192, 32"))
    assert content_hash(func) != content_hash(other)


@pytest.mark.parametrize(
    "given", [(Tree.HALVES, 0, 3), (Tree.HALVES, -1, 4), (Tree.HALVES, 0, 1), (Tree.SEQUENCE, 0, 2)]
)
def test_what_is_no_order(given: tuple[Tree, int, int]) -> None:
    with pytest.raises(VerifyError):
        Order(*given)


@given(
    count=st.integers(0, 300),
    dtype=st.sampled_from(["float32", "float64"]),
    power=st.integers(0, 7),
    split=st.sampled_from([0, 64, 100]),
    op=st.sampled_from([(Sum, np.add), (Prod, np.multiply)]),
    axis=st.sampled_from([0, 1]),
)
@settings(max_examples=25, deadline=None)
def test_sums_are_in_the_order_that_they_state(
    count: int, dtype: str, power: int, split: int, op: Any, axis: int
) -> None:
    cls, combine = op
    order = Order(Tree.HALVES if power else Tree.SEQUENCE, split, 1 << power)
    x = random_array((3, count), dtype) + (1 if cls is Prod else 0)
    x = x.astype(dtype)
    given = ts.asarray(x if axis else np.ascontiguousarray(x.T))
    found = ts.jit(lambda x: bind(cls, x, axes=(axis,), order=order))(given)
    assert bits(found) == bits(in_order(x, order, combine))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(3, 5), (2, 1000), (1, PART + 100)])
def test_sums_are_the_same_on_each_machine(level: str, shape: tuple[int, ...]) -> None:
    x = random_array(shape)
    with config.update(cpu_level=level):
        rows = ts.jit(ts.deterministic(lambda x: ts.sum(x, axis=1)))(ts.asarray(x))
        columns = ts.jit(ts.deterministic(lambda x: ts.sum(x, axis=0)))(ts.asarray(x.T.copy()))
        running = ts.jit(ts.deterministic(lambda x: ts.cumulative_sum(x, axis=1)))(ts.asarray(x))
    f32 = dtype_of("float32")
    assert bits(rows) == bits(in_order(x, fixed(shape, (1,), f32), np.add))
    assert bits(columns) == bits(in_order(x, fixed(shape[::-1], (0,), f32), np.add))
    assert bits(running) == bits(np.cumsum(x, axis=1, dtype=np.float32))


def fused(x: Array, w: Array) -> Array:
    """A product, each term of which is fused into the sum."""
    total = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for k in range(x.shape[1]):
        a, b = np.broadcast_arrays(x[:, k, None], w[k])
        total = SCALARS["fma"].evaluate(a.copy(), b.copy(), total)
    return total


@pytest.mark.parametrize("shape", [(1, 70, 33), (3, 70, 1), (1, 9, 1), (5, 70, 33), (40, 70, 48)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_added_one_after_the_other(
    shape: tuple[int, int, int], turned: bool
) -> None:
    m, k, n = shape
    x, w = random_array((m, k)), random_array((k, n), seed=1)
    f = ts.jit(ts.deterministic(lambda x, w: x @ (w.T if turned else w)))
    found = f(ts.asarray(x), ts.asarray(w.T.copy() if turned else w))
    if not ts.jit(lambda x: x).lower(1.0).machine.fma:
        pytest.skip("the machine rounds products before it adds them")
    assert bits(found) == bits(fused(x, w))


# --- the promise ---


def layer(x: Any, w: Any) -> Any:
    """A product, a softmax and a norm."""
    y = ts.softmax(ts.nn.gelu(x @ w), axis=-1)
    return (y - ts.mean(y, axis=-1, keepdims=True)) / ts.std(y, axis=-1, keepdims=True)


@pytest.mark.parametrize("size", [(24, 40), (300, 200)])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_do_not_depend_on_their_batch(size: tuple[int, int], turned: bool) -> None:
    k, n = size
    w = ts.asarray(random_array((n, k) if turned else (k, n), seed=1))
    f = ts.jit(
        ts.deterministic(batch_invariant=True)(lambda x, w: layer(x, w.T if turned else w))
    )
    x = random_array((70, k))
    whole = np.asarray(f(ts.asarray(x), w))
    for rows in (1, 2, 3, 8, 13, 33):
        assert bits(f(ts.asarray(x[:rows].copy()), w)) == bits(whole[:rows]), rows


def test_rows_of_a_large_operand_that_is_read_in_order() -> None:
    w = ts.asarray(random_array((1030, 1024), seed=1))
    x = random_array((64, 1030))
    f = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, w: x @ w))
    whole = np.asarray(f(ts.asarray(x), w))
    assert "read side by side" in str(f.lower(ts.asarray(x[:1]), w).kernels())
    for rows in (1, 2, 20):
        assert bits(f(ts.asarray(x[:rows].copy()), w)) == bits(whole[:rows]), rows


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ts.nn.attention(x, x, x, causal=True),
        lambda x: ts.abs(ts.fft.fft(x)),
        lambda x: ts.linalg.inv(ts.swapaxes(x, -1, -2) @ x),
        lambda x: ts.grad(lambda x: ts.sum(ts.tanh(x @ ts.swapaxes(x, -1, -2))))(x),
    ],
    ids=["attention", "fft", "inv", "grad"],
)
def test_examples_do_not_depend_on_their_batch(f: Callable[[Any], Any]) -> None:
    x = random_array((9, 2, 40, 16))
    run = ts.jit(ts.deterministic(batch_invariant=True)(f))
    whole = np.asarray(run(ts.asarray(x)))
    for count in (1, 4):
        assert bits(run(ts.asarray(x[:count].copy()))) == bits(whole[:count])


def sums(func: Func) -> list[Any]:
    """The ops of a Graph that add."""
    names = {"graph.reduce_sum", "graph.dot_general", "graph.cumsum"}
    return [op for op in walk(func.body) if op.name in names]


def test_derivatives_and_batches_keep_the_order() -> None:
    f = ts.deterministic(lambda x, w: ts.sum(ts.cumulative_sum(ts.tanh(x @ w), axis=1) ** 2))
    x, w = ts.asarray(random_array((4, 5))), ts.asarray(random_array((5, 3)))
    for g in (f, ts.grad(f, argnums=1), ts.vmap(ts.grad(f), in_axes=(None, None), axis_size=2)):
        for made in (ts.make_graph(g)(x, w), ts.make_graph(ts.jit(g))(x, w)):
            found = sums(made)
            assert found
            assert all(op.order is not None for op in found)
    outside = ts.make_graph(lambda x, w: f(x, w) + ts.sum(x))(x, w)
    assert [op.order is None for op in sums(outside)].count(True) == 1


def test_the_order_goes_down_to_the_registers() -> None:
    f = ts.jit(ts.deterministic(lambda x: ts.sum(x, axis=1)))
    lowered = f.lower(ts.zeros((4, 1000)))
    assert "order=order<halves, 0, 64>" in lowered.stage("graph")
    assert "order=order<halves, 0, 64>" in lowered.stage("schedule")
    assert "tile.reduce" in lowered.stage("tile")
    assert "tile<f32[64]>" in lowered.stage("tile")
    plain = ts.jit(lambda x: ts.sum(x, axis=1)).lower(ts.zeros((4, 1000)))
    assert "order" not in plain.stage("graph")


ROWS: Any = ts.zeros((40, 1000))
COLUMNS: Any = ts.zeros((1000, 40))
PAIR: Any = ts.zeros((64, 64))


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(
    ("f", "args", "on_cpu", "on_gpu"),
    [
        (lambda x: ts.sum(x, axis=1), (ROWS,), "halves", "warps"),
        (lambda x: ts.mean(x, axis=1), (ROWS,), "halves", "warps"),
        (lambda x: ts.prod(x, axis=1), (ROWS,), "halves", "warps"),
        (lambda x: ts.sum(x, axis=0), (COLUMNS,), "sequence", "warps"),
        (lambda x: ts.cumulative_sum(x, axis=1), (ROWS,), "blocks", "blocks"),
        (lambda x: ts.cumulative_prod(x, axis=1), (ROWS,), "blocks", "blocks"),
        (lambda x, y: x @ y, (PAIR, PAIR), "sequence", "blocks"),
        (lambda x, y: ts.conv_general(x[None, None], y[None, None, :3, :3], (1, 1), "SAME"),
         (PAIR, PAIR), "sequence", "warps"),
        (lambda x, i: x.at[i].add(1.0), (ts.zeros(4), ts.zeros(9, dtype=ts.int32)),
         "sequence", "sequence"),
    ],
    ids=["sum", "mean", "prod", "columns", "cumsum", "cumprod", "product", "conv", "scatter"],
)  # fmt: skip
def test_what_accumulates_states_its_order(
    f: Any, args: Any, on_cpu: str, on_gpu: str, gpu: bool
) -> None:
    """Once tiles are chosen, by what no program has stated, too."""
    lowered = ts.jit(f).lower(*args, machine="sm_90a" if gpu else "x86-64-v3")
    assert "order" not in lowered.stage("graph")
    found = [op for op in walk(lowered.schedule.body) if rounds(op)]
    assert {op.attrs["order"].tree.value for op in found} == {on_gpu if gpu else on_cpu}
    text = str(lowered.schedule)
    again = parse_func(text)
    assert str(again) == text
    verify(again, SCHEDULE)
    without = re.sub(r", order=order<[^>]*>", "", text)
    with pytest.raises(VerifyError, match=r"S7.*what it adds up rounds, and it states no order"):
        verify(parse_func(without), SCHEDULE)
    assert content_hash(parse_func(without)) != content_hash(again)


@pytest.mark.parametrize(
    "f",
    [lambda x: ts.max(x, axis=1), lambda x: ts.any(x > 0, axis=1), lambda x: ts.argmax(x, axis=1),
     lambda x: ts.sum(ts.astype(x, ts.int32), axis=1), lambda x: ts.sort(x, axis=1)],
    ids=["max", "any", "argmax", "integers", "sort"],
)  # fmt: skip
def test_what_does_not_round_has_no_order(f: Any) -> None:
    assert "order=" not in ts.jit(f).lower(ROWS).stage("schedule")


def test_integers_and_extremes_have_no_order() -> None:
    f = ts.deterministic(lambda x, k: (ts.max(x), ts.sum(k), k @ k))
    made = ts.make_graph(f)(ts.zeros(3), ts.zeros((3, 3), dtype=ts.int32))
    assert all(op.attrs.get("order") is None for op in walk(made.body))


def test_calls_outside_know_nothing_of_the_promise() -> None:
    plain = ts.jit(lambda x: ts.sum(x))
    promised = ts.deterministic(plain)
    x = ts.zeros(5)
    assert [float(g(x)) for g in (plain, promised, plain, promised)] == [0.0] * 4
    assert plain.cache_size() == 2
    with config.update(threads=1):
        assert float(promised(x)) == 0.0


def test_the_innermost_promise_holds_and_the_outer_one_is_not_lost() -> None:
    inner = ts.deterministic(lambda x: ts.sum(x))
    outer = ts.deterministic(batch_invariant=True)(lambda x: inner(x) + ts.sum(x))
    made = ts.make_graph(outer)(ts.zeros(5))
    assert [str(op.order) for op in sums(made)] == ["order<halves, 0, 64>"] * 2


def clock(x: Any) -> Any:
    """A call of the host that gives a number."""
    function = HostFunction("clock", lambda x: (x,), Loc.unknown)
    return bind(HostCall, (x,), function=function, types=(x.type,))


def test_pipeline_rejects_nondet_op_in_deterministic_scope() -> None:
    f = ts.deterministic(lambda x: clock(x)[0] if isinstance(clock(x), tuple) else clock(x))
    for g in (f, ts.jit(f)):
        with pytest.raises(ts.TesseraError) as caught:
            g(ts.ones(2))
        text = str(caught.value)
        assert text.startswith("clock: its result may be another in each run, and <lambda> is ")
        assert 'put the line under `with ts.effects.suspend("io"):`' in text
        assert "tessera/" not in text


def test_suspension_lets_a_deterministic_function_vary() -> None:
    @ts.jit
    @ts.deterministic
    def f(x: Any) -> Any:
        with ts.effects.suspend("io"):
            y = clock(x)
        return ts.sum(y[0] if isinstance(y, tuple) else y)

    assert float(f(ts.ones(2))) == 2.0


def test_what_may_vary_can_be_allowed() -> None:
    @ts.jit
    @ts.deterministic
    def f(x: Any) -> Any:
        with ts.nondeterministic():
            y = clock(x)
        return ts.sum(y[0] if isinstance(y, tuple) else y)

    assert float(f(ts.ones(2))) == 2.0
    with ts.nondeterministic():  # which nobody needs here
        assert float(ts.sum(ts.ones(2))) == 2.0


def test_updates_that_meet_are_summed_in_order() -> None:
    f = ts.jit(ts.deterministic(lambda x, i, y: x.at[i].add(y)))
    i = np.random.default_rng(0).integers(0, 5, 3000)
    y = random_array((3000,))
    found = [bits(f(ts.zeros(5), ts.asarray(i), ts.asarray(y))) for _ in range(2)]
    assert found[0] == found[1]


def summed_in_parts(x: Array, at: Array, y: Array) -> Array:
    """Updates of an element, in parts of 16, which are summed in parts of 16, and so on."""
    out = x.copy()
    for k in range(len(x)):
        terms = y[at == k]
        while len(terms) > 1:
            cut = [terms[j : j + 16] for j in range(0, len(terms), 16)]
            terms = np.stack([np.add.accumulate(part, axis=0)[-1] for part in cut])
        if len(terms):
            out[k] += terms[0]
    return out


@pytest.mark.unchecked
def test_updates_that_meet_on_a_gpu_are_summed_in_order() -> None:
    """By default, and in a deterministic function."""
    rng = np.random.default_rng(0)
    x, y = random_array((7, 5)), random_array((300, 5), seed=1)
    at = rng.integers(0, 7, 300)
    add = lambda x, i, y: x.at[i].add(y)  # noqa: E731
    with fake_gpu():
        given = [ts.device_put(a, "cuda:0") for a in (x, at, y)]
        found = ts.jit(add)(*given)
        assert bits(found) == bits(summed_in_parts(x, at, y))
        promised = ts.jit(ts.deterministic(lambda t, i: ts.sum(t[i] * t[i]))).lower(*given[:2])
        lowered = ts.jit(ts.grad(ts.deterministic(lambda t, i: ts.sum(t[i] * t[i]))))
        text = lowered.lower(*given[:2]).stage("schedule")
    assert "atomic=true" not in text + promised.stage("schedule")


@pytest.mark.unchecked
@pytest.mark.parametrize("count", [1, 16, 40])
def test_eager_updates_on_a_gpu_are_summed_in_order(count: int) -> None:
    x, y = random_array((7, 5)), random_array((count, 5), seed=1)
    at = np.arange(count) % 3
    with fake_gpu():
        for rows in (7, 4):
            given = [ts.device_put(a, "cuda:0") for a in (x[:rows], y, at)]
            found = np.asarray(given[0].at[given[2]].add(given[1]))
            np.testing.assert_allclose(found, summed_in_parts(x[:rows], at, y), rtol=1e-5)


@pytest.mark.unchecked
def test_what_is_left_to_chance_is_listed() -> None:
    @ts.jit
    def step(x: Any, i: Any, n: Any) -> Any:
        with ts.nondeterministic():
            y, m = x.at[i].add(1.0), n.at[i].add(1)
        return y + x.at[i].add(2.0), m

    @ts.jit
    @ts.nondeterministic()
    def inner(x: Any, i: Any) -> Any:
        return ts.deterministic(lambda x: x.at[i].add(1.0))(x)

    x, i = np.zeros(5, np.float32), np.arange(40) % 5
    with fake_gpu():
        given = [ts.device_put(a, "cuda:0") for a in (x, i, x.astype(np.int32))]
        lowered = step.lower(*given)
        found = step(*given)
        assert "atomic=true" not in inner.lower(*given[:2]).stage("schedule")
    said = [line for line in lowered.why().splitlines() if line.startswith("nondeterministic: ")]
    assert len(said) == 1
    assert "updates of one element meet in any order, " in said[0]
    assert lowered.stage("graph").count("order=order<any, 0, 1>") == 1
    assert "atomic=true, order=order<any, 0, 1>" in lowered.stage("schedule")
    assert np.asarray(found[0]).tolist() == [24.0] * 5
    assert np.asarray(found[1]).tolist() == [8] * 5
    # On a CPU nothing changes.
    assert "nondeterministic" not in step.lower(x, i, x.astype(np.int32)).why()


def test_printing_is_no_result() -> None:
    f = ts.jit(ts.deterministic(lambda x: (ts.debug.print("{}", x), x + 1)[1]))
    assert float(f(1.0)) == 2.0


def test_order_of_a_scan_is_the_definition() -> None:
    x = random_array((7, 100))
    found = ts.jit(lambda x: bind(CumSum, x, axis=1, order=SEQUENCE))(ts.asarray(x))
    assert bits(found) == bits(np.cumsum(x, axis=1))


# --- random streams ---


@ts.deterministic(seed=3)
def draws(x: Any) -> Any:
    """Draws twice, and once in each step of a loop."""
    first = ts.random.normal(ts.random.next_key(), (2,))
    second = ts.random.normal(ts.random.next_key(), (2,))

    def body(carry: Any, _: Any) -> Any:
        return carry + 1, ts.random.normal(ts.random.next_key(), (2,))

    _, rest = ts.scan(body, x, None, length=3)
    return ts.concat([first, second, ts.reshape(rest, (6,))])


def test_each_draw_of_each_call_has_its_own_key() -> None:
    draws.step.set(0)
    found = np.concatenate([np.asarray(draws(0.0)) for _ in range(3)])
    assert len(set(found.tolist())) == found.size
    assert int(draws.step.get()) == 3


def test_draws_depend_on_seed_function_and_step_only() -> None:
    draws.step.set(0)
    eager = [np.asarray(draws(0.0)) for _ in range(3)]
    for f in (ts.jit(draws), ts.jit(lambda x: draws(x) + 0), draws):
        draws.step.set(0)
        assert [bits(f(0.0)) for _ in range(3)] == [bits(x) for x in eager]
    draws.step.set(1)
    assert bits(draws(0.0)) == bits(eager[1])
    other = ts.deterministic(seed=4)(draws._fn)  # pyright: ignore[reportPrivateUsage]
    assert not set(np.asarray(other(0.0)).tolist()) & set(np.concatenate(eager).tolist())


def test_two_deterministic_functions_share_no_program_of_draws() -> None:
    noise = ts.jit(lambda: ts.random.normal(ts.random.next_key(), (2,)))
    a = ts.deterministic(seed=1)(lambda: noise())
    b = ts.deterministic(seed=2)(lambda: noise())
    found = [bits(a()), bits(b()), bits(a()), bits(b())]
    assert len(set(found)) == 4
    a.step.set(0)
    assert bits(a()) == found[0]


def test_examples_of_a_named_axis_draw_for_themselves() -> None:
    draws.step.set(0)
    named = np.asarray(ts.vmap(draws, axis_name="i")(ts.zeros(3)))
    assert len(set(named.ravel().tolist())) == named.size
    draws.step.set(0)
    plain = np.asarray(ts.vmap(draws)(ts.zeros(3)))
    draws.step.set(0)
    assert bits(plain) == bits(np.stack([np.asarray(draws(0.0))] * 3))


def test_dropout_drops_the_same_backwards_and_when_computed_again() -> None:
    def loss(x: Any) -> Any:
        kept = ts.checkpoint(lambda x: ts.tanh(ts.nn.dropout(ts.random.next_key(), x, 0.5)))
        y = kept(x)
        return ts.sum(y), y

    f = ts.deterministic(loss)
    (_, y), g = ts.jit(ts.value_and_grad(f, has_aux=True))(ts.ones(64))
    assert bits(np.asarray(y) != 0) == bits(np.asarray(g) != 0)
    assert 0 < np.count_nonzero(np.asarray(y)) < 64
    assert int(f.step.get()) == 1


def test_a_call_that_fails_draws_the_same_again() -> None:
    fails = [True]

    @ts.deterministic
    def f() -> Any:
        found = ts.random.normal(ts.random.next_key(), (2,))
        if fails:
            fails.clear()
            raise KeyError("once")
        return found

    with pytest.raises(KeyError):
        f()
    first = bits(f())
    f.step.set(0)
    assert bits(f()) == first


def test_draws_are_the_random_effect_and_not_state() -> None:
    assert [row[0] for row in ts.effects.of(draws)(0.0).rows] == ["random"]


def test_keys_need_a_deterministic_function() -> None:
    with pytest.raises(ts.TesseraError) as caught:
        ts.random.next_key()
    assert str(caught.value).startswith("random.next_key: no deterministic function is running")
    with pytest.raises(ts.TesseraError, match="the seed is 'a'"):
        ts.deterministic(seed="a")  # type: ignore[call-overload]


def test_methods_can_be_deterministic() -> None:
    class Model:
        @ts.deterministic
        def call(self, x: Any) -> Any:
            return ts.sum(x) + 0 * ts.random.normal(ts.random.next_key())

    assert float(Model().call(ts.ones(3))) == 3.0


def test_orders_are_those_of_the_machine_that_it_is_lowered_for() -> None:
    @ts.jit
    @ts.deterministic(batch_invariant=True)
    def f(x: Any) -> Any:
        return x @ x.T

    x = ts.ones((8, 4096))
    texts = [f.lower(x, machine=m).stage("graph") for m in ("sm_90a", "x86-64-v3", "sm_90a")]
    assert ["order<sequence, 512, 1>" in text for text in texts] == [True, False, True]
    assert f.memory(x, machine="sm_90a").peak > f.memory(x).inputs
    assert "order<sequence, 0, 1>" in f.lower(x).stage("graph")
