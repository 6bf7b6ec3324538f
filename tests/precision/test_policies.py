"""Policies in force: what functions compute under them, against the definition in NumPy; where they
are in force; and that Graphs keep their promises about precision.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import DType, bfloat16, dtype_of, float32
from tessera.errors import CallError, DTypeError, OptionError, ShapeError, VerifyError
from tessera.graph import interp as graph_interp
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.elementwise import Unary
from tessera.graph.ops.reduce import Sum
from tessera.graph.ops.round_blocks import round_blocks
from tessera.graph.spec import GRAPH
from tessera.graph.trace import ACTIVE
from tessera.ir.convert import cast_array
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.numerics import Denormals, Policy, Rounding
from tessera.ir.opdef import operand
from tessera.ir.parser import parse_func
from tessera.ir.rounding import GRIDS, flush_array, round_array, saturate_array
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tests.tolerance import assert_close

Array = npt.NDArray[Any]
TRAINING = ts.policies.Training()


# --- the definition ---------------------------------------------------------------------------


def converted(x: Array, dtype: DType, p: Policy, mode: Rounding) -> Array:
    """An array in another dtype by a policy, in NumPy."""
    if dtype_of(x.dtype) is dtype and not p.rounds:
        return x
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    with np.errstate(all="ignore"):
        if p.saturate:
            wide = saturate_array(wide, GRIDS[dtype])
        wide = round_array(wide, GRIDS[dtype], mode)
        if p.denormals is Denormals.FLUSH:
            wide = flush_array(wide, GRIDS[dtype])
        return cast_array(wide, dtype)


def defined(fn: Callable[..., Array], p: Policy, *xs: Array) -> Array:
    """What a function of NumPy arrays is under a policy."""
    own = [p.compute or dtype_of(x.dtype) for x in xs]
    given = [converted(x, d, p, Rounding.NEAREST_EVEN) for x, d in zip(xs, own, strict=True)]
    if p.accumulate is not None or p.rounds:
        given = [cast_array(x, p.accumulate or float32) for x in given]
    return converted(np.asarray(fn(*given)), p.storage or own[0], p, p.rounding)


def wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


POLICIES = [
    TRAINING,
    ts.policies.Training(ts.float16, ts.float64),
    ts.policies.Inference(),
    ts.Policy(storage="f32", compute="bf16", accumulate="f64"),
    ts.Policy(accumulate="f64"),
    ts.Policy(storage="bf16", rounding="toward_zero"),
    ts.Policy(storage="f8e5m2", compute="f16", accumulate="f32", rounding="up", saturate=True),
    ts.Policy(storage="f16", accumulate="f32", rounding="down", denormals="flush"),
]


def exactly(found: Any, want: Array) -> None:
    assert np.asarray(found).dtype == want.dtype
    np.testing.assert_array_equal(wide(found), wide(want))


@pytest.mark.parametrize("p", POLICIES, ids=str)
def test_elementwise_operations_are_those_of_the_definition(p: Policy) -> None:
    rng = np.random.default_rng(0)
    x, y = ((rng.standard_normal((5, 7)) * 10.0 ** rng.integers(-9, 5, (5, 7))).astype(np.float32)
            for _ in range(2))  # fmt: skip
    for fn, reference, args in (
        (ts.add, np.add, (x, y)),
        (ts.multiply, np.multiply, (x, y)),
        (ts.divide, np.divide, (x, y)),
        (ts.negative, np.negative, (x,)),
        (ts.square, np.square, (x,)),
        (ts.maximum, np.maximum, (x, y)),
        (lambda a: ts.max(a, axis=1), lambda a: np.max(a, 1), (x,)),
    ):
        with np.errstate(all="ignore"):
            want = defined(reference, p, *args)
        arrays = [ts.asarray(a) for a in args]
        with ts.policy(p):
            exactly(fn(*arrays), want)
            exactly(ts.jit(fn)(*arrays), want)
        exactly(ts.jit(fn, policy=p)(*arrays), want)


@pytest.mark.parametrize("p", POLICIES[:6], ids=str)
def test_sums_and_products_are_those_of_the_definition(p: Policy) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((6, 40)), rng.standard_normal((40, 5))
    x, w = x.astype(np.float32), w.astype(np.float32)
    for fn, reference, args in (
        (ts.matmul, np.matmul, (x, w)),
        (lambda a, b: ts.einsum("ij,jk->ki", a, b), lambda a, b: np.matmul(a, b).T, (x, w)),
        (lambda a: ts.sum(a, axis=1), lambda a: np.sum(a, 1), (x,)),
        (lambda a: ts.mean(a, axis=0), lambda a: np.mean(a, 0), (x,)),
        (lambda a: ts.cumsum(a, axis=1), lambda a: np.cumsum(a, 1), (x,)),
    ):
        want = defined(reference, p, *args)
        with ts.policy(p):
            found = ts.jit(fn)(*[ts.asarray(a) for a in args])
        assert np.asarray(found).dtype == want.dtype
        # Sums of another order are rounded to a neighbour now and then.
        step = np.abs(wide(want)) * 2.0 ** -GRIDS[dtype_of(want.dtype)].mantissa
        assert (np.abs(wide(found) - wide(want)) <= 1.01 * step + 1e-6).all()


def test_functions_of_several_steps_are_one_operation() -> None:
    x = ts.asarray(np.random.default_rng(2).standard_normal((4, 9)).astype(np.float32))
    narrow = x.astype(ts.bfloat16)
    with ts.policy(TRAINING):
        for fn in (ts.nn.softmax, ts.nn.gelu, lambda x: ts.var(x, axis=0)):
            found = fn(x)
            exactly(found, np.asarray(_outside(fn, narrow.astype(ts.float32)).astype(ts.bfloat16)))


def _outside(fn: Callable[..., Any], *xs: Any) -> Any:
    with ts.policy(ts.Policy()):
        return fn(*xs)


def test_accumulators() -> None:
    """The sum of 1 and many small numbers needs more than float32."""
    x = ts.concat([ts.ones(1), ts.full((1000,), 1e-9)])
    p = ts.Policy(storage="f64", accumulate="f64")
    with ts.policy(p):
        assert abs(float(ts.sum(x)) - (1 + 1e-6)) < 1e-12
    with ts.policy(ts.Policy(accumulate="f64")):
        big = ts.asarray([1e8, 1.0, -1e8], dtype=ts.float32)
        assert float(big @ ts.ones(3)) == 1.0
        assert (big @ ts.ones(3)).dtype is ts.float32


def test_what_is_no_operation() -> None:
    x = ts.ones((2, 3))
    with ts.policy(TRAINING):
        for y in (
            ts.reshape(x, (6,)), x.T, x[0], ts.concat([x, x]), x.astype(ts.float32),
            ts.where(x > 0, x, x), ts.round_to(x, ts.float32), ts.zeros(3),
            ts.linalg.diagonal(x),
        ):  # fmt: skip
            assert y.dtype is ts.float32
        assert ts.sum(x, dtype=ts.float64).dtype is ts.float64
        assert (x + 1j).dtype is ts.complex64
        assert ts.sum(ts.arange(3)).dtype.is_integer
        assert (ts.arange(3) + 1).dtype is ts.int64
        assert (ts.arange(3) / 2).dtype is ts.bfloat16


def test_numbers_stay_weak() -> None:
    with ts.policy(TRAINING):
        assert (ts.ones(3) * 2.5).dtype is ts.bfloat16
        assert (2.5 * ts.ones(3, dtype=ts.int32)).dtype is ts.bfloat16
        assert float(ts.multiply(np.float32(2), np.ones(1, np.float32))[0]) == 2.0


# --- where a policy is in force -----------------------------------------------------------------


def test_policies_nest_and_end() -> None:
    x = ts.ones(3)
    with ts.policy(TRAINING):
        with ts.policy(ts.Policy(storage="f16")):
            assert (x + x).dtype is ts.float16
        with ts.policy(ts.Policy()):
            assert (x + x).dtype is ts.float32
        assert (x + x).dtype is ts.bfloat16
        with pytest.raises(KeyError), ts.policy(ts.Policy(storage="f16")):
            raise KeyError
        assert (x + x).dtype is ts.bfloat16
    assert (x + x).dtype is ts.float32
    assert ts.sum(x).dtype is ts.float32


def test_a_policy_is_of_one_thread() -> None:
    found: list[Any] = []
    with ts.policy(TRAINING):
        thread = threading.Thread(target=lambda: found.append((ts.ones(3) + 1).dtype))
        thread.start()
        thread.join()
    assert found == [ts.float32]


def test_a_jitted_function_is_traced_once_for_each_policy() -> None:
    f = ts.jit(lambda x: ts.exp(x) + 1)
    x = ts.ones(3)
    for _ in range(3):
        assert f(x).dtype is ts.float32
    for _ in range(3):
        with ts.policy(TRAINING):
            assert f(x).dtype is ts.bfloat16
            assert f(x).dtype is ts.bfloat16
        with ts.policy("policy(storage=f16)"):
            assert f(x).dtype is ts.float16
        assert f(x).dtype is ts.float32
    assert f.cache_size() == 3


def test_the_policy_of_a_function_is_not_that_of_its_callers() -> None:
    @ts.function(policy=TRAINING)
    def inner(x: Any) -> Any:
        return x @ x.T

    @ts.jit(policy=ts.Policy(storage="f16"))
    def outer(x: Any) -> Any:
        y = inner(x)
        assert y.dtype is ts.bfloat16
        return y + y

    x = ts.ones((2, 3))
    assert outer(x).dtype is ts.float16
    assert inner(x).dtype is ts.bfloat16
    with ts.policy(ts.Policy(storage="f64")):
        assert inner(x).dtype is ts.bfloat16
    with ts.debug.disable_jit():
        assert inner(x).dtype is ts.bfloat16
    assert repr(inner).endswith(", policy=Training(bf16 -> f32), 2 compiled")


def test_a_decorator() -> None:
    @ts.policy(TRAINING)
    def f(x: Any) -> Any:
        return x + 1

    assert f(ts.ones(2)).dtype is ts.bfloat16
    assert ts.jit(f)(ts.ones(2)).dtype is ts.bfloat16


def test_control_flow_and_batches() -> None:
    x = ts.ones((4, 3))
    with ts.policy(TRAINING):
        _, ys = ts.scan(lambda c, r: (c, r * 2), ts.zeros(()), x)
        assert ys.dtype is ts.bfloat16
        assert ts.vmap(lambda r: r + 1)(x).dtype is ts.bfloat16
        assert ts.cond(True, lambda v: v + 1, lambda v: v * 2, x).dtype is ts.bfloat16
        assert ts.checkpoint(lambda v: ts.sin(v))(x).dtype is ts.bfloat16


def test_derivatives_have_the_dtypes_of_the_arguments() -> None:
    rng = np.random.default_rng(3)
    x, w = (ts.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((4, 8), (8, 3)))

    def loss(w: Any) -> Any:
        return ts.mean(ts.square(ts.tanh(x @ w))).astype(ts.float32)

    reference = ts.grad(loss)(w)
    with ts.policy(TRAINING):
        eager, compiled = ts.grad(loss)(w), ts.jit(ts.grad(loss))(w)
        _, tangent = ts.jvp(loss, (w,), (w,))
    assert eager.dtype is compiled.dtype is ts.float32
    assert_close(np.asarray(eager), np.asarray(compiled), factor=4)
    assert np.max(np.abs(wide(eager) - wide(reference))) < 0.02 * np.max(np.abs(wide(reference)))
    assert abs(float(tangent) - float(ts.sum(reference * w))) < 0.02


# --- stochastic rounding ------------------------------------------------------------------------

STOCHASTIC = ts.Policy(storage="bf16", accumulate="f32", rounding="stochastic")


def test_stochastic_rounding_takes_words_of_its_key() -> None:
    x = ts.asarray(np.full(4000, 1.002, np.float32))
    key = ts.random.key(5)

    def twice(x: Any, key: Any) -> Any:
        with ts.policy(STOCHASTIC, key=key):
            return x * 1.0, x * 1.0

    a, b = twice(x, key)
    assert not np.array_equal(wide(a), wide(b))
    for found in (a, b):
        assert sorted(set(wide(found).tolist())) == [1.0, 1.0078125]
        assert abs(wide(found).mean() - 1.002) < 5e-4
    for again, first in zip(ts.jit(twice)(x, key), (a, b), strict=True):
        exactly(again, np.asarray(first))
    other, _ = ts.jit(twice)(x, ts.random.key(6))
    assert not np.array_equal(wide(other), wide(a))
    # The words have nothing to do with those that the program draws by the same key.
    u = np.asarray(ts.random.bits(key, x.shape))
    assert abs(np.corrcoef(u, wide(a))[0, 1]) < 0.06


def test_stochastic_rounding_without_a_key() -> None:
    with (
        ts.policy(STOCHASTIC),
        pytest.raises(OptionError, match="rounds stochastically, but there is no key"),
    ):
        ts.ones(3) + 1


def test_a_key_from_outside_of_a_jitted_function() -> None:
    with (
        ts.policy(STOCHASTIC, key=ts.random.key(0)),
        pytest.raises(OptionError, match="is from outside of a jitted function"),
    ):
        ts.jit(lambda x: x + 1)(ts.ones(3))


def test_wrong_calls_are_explained_as_ever() -> None:
    add: Any = ts.add
    with ts.policy(TRAINING):
        with pytest.raises(CallError, match="add: missing 1 required positional argument: 'x2'"):
            add(ts.ones(3))
        with pytest.raises(ShapeError, match=r"add: got f32\[3\] and f32\[4\]"):
            ts.add(ts.ones(3), ts.ones(4))


def test_what_is_no_policy() -> None:
    with pytest.raises(OptionError, match="got a value of type int, which is no policy"):
        ts.policy(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="cannot be read"):
        ts.jit(lambda x: x, policy="Training")


# --- Graphs -------------------------------------------------------------------------------------


def test_policy_passthrough() -> None:
    """The policy of a function is an attribute of its programs, in every IR."""
    p = ts.Policy(storage="bf16", compute="bf16", accumulate="f32", rounding="toward_zero")
    f = ts.jit(lambda x, w: ts.tanh(x @ w), policy=p)
    lowered = f.lower(ts.ones((4, 8)), ts.ones((8, 3)))
    said = f'policy="{p}"'
    for stage in ("graph", "schedule", "tile", "target"):
        text = str(lowered.stage(stage))
        assert text.count(said) == 1
    graph = str(lowered.stage("graph"))
    assert str(parse_func(graph)) == graph
    plain = ts.jit(lambda x, w: ts.tanh(x @ w)).lower(ts.ones((4, 8)), ts.ones((8, 3)))
    assert "policy" not in str(plain.stage("graph"))
    # What it means is there as ops: products are formed in float32, and rounded by ops.
    lines = [line.split(" = ")[1] for line in graph.splitlines() if " = " in line]
    names = [line.split("(")[0] for line in lines]
    assert names[names.index("graph.dot_general") + 1 :][:2] == ["graph.round_to", "graph.cast"]
    assert "{dtype=bf16, rounding=toward_zero} : f32[4, 3]" in lines[names.index("graph.round_to")]
    for stage in ("schedule", "tile"):
        assert f"{stage}.map([" in str(lowered.stage(stage))
        assert "{fn=round.bf16.toward_zero}" in str(lowered.stage(stage))


class Narrowing(Unary):
    """An op that should be a cast."""

    name = "graph.test_narrowing"
    scalar = "neg"

    def infer(self) -> TensorType:
        return super().infer().with_dtype(bfloat16)


class Silent(GraphOp):
    """A reduction that does not say in what it accumulates."""

    name = "graph.test_silent"
    family = Family.REDUCE
    x: Value = operand()

    def infer(self) -> TensorType:
        found = self.x.type
        assert isinstance(found, TensorType)
        return found.with_shape(())


for made in (Narrowing, Silent):  # other tests go over all ops
    del Op.registry[made.name]


def graph_of(dtype: DType, make: Callable[[Value], Op]) -> Func:
    x = Value(TensorType((4,), dtype))
    op = make(x)
    return Func("f", Block([x], [op], [op.result]))


def test_illegal_implicit_downcast() -> None:
    """Numbers become narrower by casts alone, and whoever does it otherwise is told."""
    with pytest.raises(VerifyError, match=r"A7: .* from numbers of 32 bits; only casts do"):
        verify(graph_of(float32, lambda x: Narrowing(x)), GRAPH)
    verify(graph_of(bfloat16, lambda x: Narrowing(x)), GRAPH)
    x = ts.ones((3, 3))
    with pytest.raises(DTypeError, match="products of f32 cannot be accumulated in bf16"):
        dot_general(x, x, ((1,), (0,)), dtype=bfloat16)
    with pytest.raises(DTypeError, match="f32\\[4\\] cannot be accumulated in bf16"):
        Sum(Value(TensorType((4,), float32)), axes=(0,), accumulate=bfloat16)
    narrow = x.astype(ts.bfloat16)
    with pytest.raises(DTypeError, match="the array keeps its dtype"):
        narrow.at[0].set(x[0])

    @ts.jit
    def f(x: ts.Tensor[3, 3, ts.bfloat16]) -> Any:
        return x

    with pytest.raises(DTypeError, match="arguments are not converted"):
        f(x)


def test_accumulators_are_stated() -> None:
    with pytest.raises(VerifyError, match=r"A6: .* does not say in what it accumulates"):
        verify(graph_of(float32, lambda x: Silent(x)), GRAPH)

    found = Sum(Value(TensorType((4,), bfloat16)), axes=(0,))
    assert found.accumulate is float32


def test_programs_under_policies_verify() -> None:
    def step(x: Any, w: Any) -> Any:
        return ts.grad(lambda w: ts.mean(ts.nn.softmax(x @ w, axis=-1)).astype(ts.float32))(w)

    for p in (TRAINING, ts.policies.Inference(), ts.Policy(accumulate="f64")):
        with ts.config.update(verify=True):
            lowered = ts.jit(step, policy=p).lower(ts.ones((4, 8)), ts.ones((8, 3)))
            assert isinstance(lowered, Lowered)
            lowered.stage("target")


def test_nothing_changes_without_a_policy() -> None:
    def f(x: Any) -> Sequence[Any]:
        return ts.sum(ts.exp(x)), x.astype(ts.bfloat16)

    before = str(ts.make_graph(f)(ts.ones(3)))
    with ts.policy(TRAINING):
        ts.exp(ts.ones(3))
    assert before == str(ts.make_graph(f)(ts.ones(3)))
    assert "round" not in before
    assert "saturate" not in before


def test_fixed_orders() -> None:
    """Sums state their order under a policy that asks for one, also those of derivatives."""
    x = ts.ones((4, 100))

    def f(x: Any) -> Any:
        return ts.sum(ts.sum(x * x, axis=1) * 3.0)

    def spread(row: Any) -> Any:
        return ts.broadcast_to(row, (4, 100))

    fixed = ts.Policy(order="fixed")
    with ts.policy(fixed):
        graph = str(ts.make_graph(f)(x))
        assert graph.count("order=order<halves, 0, 64>") == 2
        assert "graph.cast" not in graph
        _, pull = ts.vjp(spread, x[0])
        assert float(pull(x)[0][0]) == 4.0
        backwards = ts.make_graph(lambda x: ts.vjp(spread, x[0])[1](x))
        assert "order=order<sequence, 0, 1>" in str(backwards(x))
        with ts.policy(ts.Policy()):
            assert "order=" not in str(ts.make_graph(f)(x))
    assert "order=" not in str(ts.make_graph(f)(x))
    assert "order=order" in str(ts.jit(f, policy=fixed).lower(x).stage("graph"))


def test_nvfp4() -> None:
    """Operands of products are rounded to blocks that share a scale; the rest is in 16 bits."""
    rng = np.random.default_rng(4)
    x, w = (ts.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((3, 4, 32), (32, 5)))
    p = ts.policies.NVFP4(accum=ts.float32)
    assert str(p) == "NVFP4(accum=f32)"
    assert Policy.parse(str(p)) == p
    wide = [a.astype(ts.bfloat16).astype(ts.float32) for a in (x, w)]
    want = ts.fake_quantize(wide[0], "nvfp4", axis=2) @ ts.fake_quantize(wide[1], "nvfp4", axis=0)
    with ts.policy(p):
        exactly(x @ w, np.asarray(want.astype(ts.bfloat16)))
        exactly(ts.jit(ts.matmul)(x, w), np.asarray(want.astype(ts.bfloat16)))
        assert (x[0, 0] @ w).shape == (5,)
        assert ts.vecdot(x[0], x[1]).dtype is ts.bfloat16
        exactly(x + 1.0, np.asarray((wide[0] + 1.0).astype(ts.bfloat16)))
        assert (ts.ones((0, 16)) @ ts.ones((16, 2))).shape == (0, 2)
        with pytest.raises(ShapeError, match="blocks of 16 elements fill the dim"):
            ts.ones((2, 10)) @ ts.ones((10, 2))
    with ts.policy(ts.policies.NVFP4(accum=ts.float16)):
        assert (x @ w).dtype is ts.float16


def test_blocks_are_rounded_alike_at_every_level() -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((3, 32)) * 10.0 ** rng.integers(-9, 9, (3, 1))).astype(np.float32)
    x[0, :16] = 0
    graph = ts.make_graph(lambda x: round_blocks(x, 1))(x)
    want = graph_interp.run(graph, [x], {})[0]
    exactly(ts.jit(lambda x: round_blocks(x, 1))(x), want)
    rows = np.stack([np.asarray(round_blocks(ts.asarray(row), 0)) for row in x])
    exactly(ts.vmap(lambda row: round_blocks(row, 0))(ts.asarray(x)), rows)
    columns = ts.vmap(lambda c: round_blocks(c, 0), in_axes=1)(ts.asarray(x.T))
    exactly(columns, rows)
    assert np.asarray(ts.grad(lambda x: ts.sum(round_blocks(x, 1) * 2.0))(ts.asarray(x))).min() == 2


@pytest.mark.unchecked
def test_products_of_a_gpu_read_narrow_operands() -> None:
    """Forwards and backwards, policies come to products of what is stored, added in float32."""
    x, w = ts.ShapeDtypeStruct((64, 64), float32), ts.ShapeDtypeStruct((64, 64), float32)

    def loss(w: Any, x: Any) -> Any:
        return ts.sum(ts.square(x @ w)).astype(ts.float32)

    lowered = ts.jit(ts.grad(loss, argnums=(0, 1)), policy=TRAINING).lower(w, x, machine="sm_90a")
    graph = str(lowered.stage("graph"))
    products = [line for line in graph.splitlines() if "dot_general" in line]
    assert len(products) == 3
    assert all("dtype=f32} : f32[64, 64]" in line for line in products)
    assert "f32.bf16.bf16.f32" in str(lowered.stage("ptx"))


def test_policies_compose_with_transforms_and_symbolic_shapes() -> None:
    rng = np.random.default_rng(6)
    x, w = (ts.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((5, 6, 8), (3, 8, 8)))

    def body(h: Any, w: Any) -> Any:
        return ts.tanh(h @ w).astype(h.dtype), ts.sum(h)

    def loss(w: Any, x: Any) -> Any:
        last, sums = ts.scan(ts.checkpoint(body), x, w)
        return (ts.mean(ts.square(last)) + ts.mean(sums) * 1e-3).astype(ts.float32)

    def mean_loss(w: Any, x: ts.Tensor["B", 6, 8, ts.float32]) -> Any:  # noqa: F821, UP037
        return ts.mean(ts.vmap(loss, in_axes=(None, 0))(w, x)).astype(ts.float32)

    plain = ts.jit(ts.value_and_grad(mean_loss))(w, x)
    compiled = ts.jit(ts.value_and_grad(mean_loss), policy=TRAINING)
    for found, want in zip(compiled(w, x), plain, strict=True):
        assert found.dtype is ts.float32
        gap = np.max(np.abs(wide(found) - wide(want)))
        assert gap < 0.1 * np.max(np.abs(wide(want)))
    sized = ts.jit(mean_loss, policy=TRAINING)
    for count in (5, 3):
        assert abs(float(sized(w, x[:count])) - float(mean_loss(w, x[:count]))) < 0.01
    assert sized.cache_size() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_fork_is_under_the_policy() -> None:
    x = ts.ones(3)
    for _ in range(3):
        assert (x + x).dtype is ts.float32
    with ts.policy(TRAINING):
        child = os.fork()
        if not child:
            os._exit(0 if (x + x).dtype is ts.bfloat16 and ACTIVE.value == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ACTIVE.value == 0
