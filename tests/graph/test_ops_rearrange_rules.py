"""Derivative and batching rules of rearranging ops and of scatter: loops and dot products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tessera.dtypes import bool_, float32, float64, uint32
from tessera.errors import AxisError, NotDifferentiableError, ShapeError
from tessera.graph.array import Array
from tessera.graph.engine import installed
from tessera.graph.ops import reduce  # noqa: F401  rules bind its ops by name
from tessera.graph.ops.base import GraphOp, Linear, Rearrange
from tessera.graph.ops.dynamic_slice import dynamic_slice, dynamic_update_slice
from tessera.graph.ops.gather import Combine, Gather, IndexMode, Scatter, take_along
from tessera.graph.ops.generate import RandomBits
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Slice,
    broadcast,
    concatenate,
    expand_dims,
    full,
    full_like,
    iota,
    move_axis,
    pad,
    reshape,
    reverse,
    slice_,
    slice_axis,
    squeeze,
    transpose,
)
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Value
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.graph.rearranging import CASES, Case, make, random_indices, random_shape, symbolic

ALL_CASES = {**CASES, "scatter": lambda rng: scatter_case(rng)}


class Engine:
    """Computes an op by its `evaluate`."""

    starters: ClassVar[dict[type, Any]] = {}
    operators: ClassVar[dict[int, object]] = {}

    def evaluate(self, cls: type[GraphOp], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        groups = [
            [Value(x.type) for x in i] if isinstance(i, (tuple, list)) else Value(i.type)
            for i in operands
        ]
        flat = [x for i in operands for x in (i if isinstance(i, (tuple, list)) else [i])]
        op = cls(*groups, **attrs)
        out = np.asarray(op.evaluate(*[x._data for x in flat]))
        (result,) = op.results
        assert isinstance(result.type, TensorType)
        assert out.shape == result.type.shape
        assert out.dtype == result.type.dtype.np
        return Array(out)


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    with installed(Engine()):
        yield


def is_float(x: np.ndarray) -> bool:
    return x.dtype.kind == "f"


def scatter_case(
    rng: np.random.Generator, combine: Combine | None = None, mode: IndexMode | None = None
) -> Case:
    combine = combine or list(Combine)[rng.integers(0, 5)]
    mode = mode or (IndexMode.DROP, IndexMode.CLIP, IndexMode.PROMISE)[rng.integers(0, 3)]
    shape, outer = random_shape(rng, 3), random_shape(rng, 2)
    if mode is not IndexMode.DROP:
        shape = tuple([n or 2 for n in shape])
    axes = [int(k) for k in rng.permutation(len(shape))[: rng.integers(0, len(shape) + 1)]]
    outer = outer if axes else ()
    indices = random_indices(rng, outer, [shape[k] for k in axes], mode is IndexMode.PROMISE)
    rest = tuple([n for k, n in enumerate(shape) if k not in axes])
    x, updates = (rng.integers(-3, 4, s).astype(np.float32) for s in (shape, outer + rest))
    return Case(
        Scatter, [x, updates, indices], {"axes": tuple(axes), "combine": combine, "mode": mode}
    )


def scattered(case: Case) -> np.ndarray:
    """What a scatter computes, update by update."""
    (x, updates, indices), axes = case.operands, case.attrs["axes"]
    join = {
        Combine.SET: lambda old, new: new,
        Combine.ADD: np.add,
        Combine.MUL: np.multiply,
        Combine.MIN: np.minimum,
        Combine.MAX: np.maximum,
    }[case.attrs["combine"]]
    out = x.copy()
    for at in np.ndindex(indices[0].shape if indices else ()):
        position: list[Any] = [slice(None)] * x.ndim
        inside = True
        for axis, index in zip(axes, indices, strict=True):
            n = int(index[at])
            inside &= 0 <= n < x.shape[axis]
            position[axis] = min(max(n, 0), x.shape[axis] - 1)
        if inside or case.attrs["mode"] is IndexMode.CLIP:
            out[tuple(position)] = join(out[tuple(position)], updates[at])
    return out


@pytest.mark.parametrize("seed", range(80))
def test_scatter_is_a_loop_over_updates(seed: int) -> None:
    case = scatter_case(np.random.default_rng(seed))
    found = case.op().evaluate(*case.arrays)
    np.testing.assert_array_equal(found, scattered(case))


# --- batching ---------------------------------------------------------------------------------


def vary(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Other values of the same kind: what is in range stays so."""
    if not is_float(x):
        return rng.permuted(x) if x.size > 1 else x
    return rng.integers(-9, 9, x.shape).astype(x.dtype)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("name", ALL_CASES)
def test_batch_is_a_loop_over_examples(name: str, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    case = ALL_CASES[name](rng)
    size = int(rng.choice([1, 2, 3]))
    arrays = case.arrays
    batched = rng.random(len(arrays)) < 0.6
    batched[rng.integers(0, len(arrays))] = True
    examples: list[list[np.ndarray]] = [
        [vary(rng, x) if b else x for x, b in zip(arrays, batched, strict=True)]
        for _ in range(size)
    ]
    op = case.op()
    axes = [
        int(rng.integers(0, x.ndim + 1)) if b else None
        for x, b in zip(arrays, batched, strict=True)
    ]
    operands = [
        Array(np.stack([e[k] for e in examples], axis) if axis is not None else arrays[k])
        for k, axis in enumerate(axes)
    ]
    (out,), (axis,) = op.batch(operands, axes, size)
    assert axis is not None
    expected = np.stack([op.evaluate(*e) for e in examples])
    np.testing.assert_array_equal(np.moveaxis(out._data, axis, 0), expected)


def test_batched_keys() -> None:
    op = make(RandomBits, TensorType((2,), uint32), shape=(5,))
    keys = np.arange(6, dtype=np.uint32).reshape(2, 3)
    (out,), (axis,) = op.batch([Array(keys)], [1], 3)
    assert axis == 0
    for k in range(3):
        np.testing.assert_array_equal(out._data[k], op.evaluate(keys[:, k]))


# --- derivatives ------------------------------------------------------------------------------

LINEAR = [*CASES, "scatter set", "scatter add"]


def linear_case(name: str, rng: np.random.Generator) -> Case:
    """A case whose floats are small integers, so that sums are exact."""
    if name.startswith("scatter"):
        return scatter_case(rng, Combine(name.split()[1]))
    case = CASES[name](rng)
    case.operands = [
        [small(rng, x) for x in i] if isinstance(i, list) else small(rng, i) for i in case.operands
    ]
    return case


def small(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "iu" and x.dtype != np.int32:
        return x
    return rng.integers(-4, 5, x.shape).astype(np.float64) if is_float(x) else x


def linear_part(op: Rearrange, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The op on tangents: out of range, `fill` reads a constant, whose tangent is 0."""
    out = np.asarray(op.evaluate(*arrays))
    if isinstance(op, Gather) and op.mode is IndexMode.FILL:
        return np.nan_to_num(out)
    return out


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", LINEAR)
def test_jvp_of_linear_ops(name: str, seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    case = linear_case(name, rng)
    arrays = case.arrays
    if not is_float(arrays[0]):
        pytest.skip("integers carry no tangents")
    op = case.op()
    tangents = [
        rng.integers(-4, 5, x.shape).astype(x.dtype) if is_float(x) and rng.random() < 0.7 else None
        for x in arrays
    ]
    given = [None if t is None else Array(t) for t in tangents]
    (found,) = op.jvp([Array(x) for x in arrays], given, [Array(np.asarray(op.evaluate(*arrays)))])
    if all(t is None for t in tangents):
        assert found is None
        return
    filled = [
        x if not is_float(x) else np.zeros_like(x) if t is None else t
        for x, t in zip(arrays, tangents, strict=True)
    ]
    np.testing.assert_array_equal(found._data, linear_part(op, filled))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", [*LINEAR, "scatter mul"])
def test_transpose_is_the_adjoint(name: str, seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    case = linear_case(name, rng)
    arrays = case.arrays
    if not is_float(arrays[0]):
        pytest.skip("integers carry no tangents")
    op = case.op()
    linear = [is_float(x) and (name != "scatter mul" or k == 0) for k, x in enumerate(arrays)]
    if name == "pad":  # what is linear in one operand need not be in the other
        linear = [[True, True], [True, False], [False, True]][rng.integers(0, 3)]
    fixed = [
        x if not is_float(x) or name == "scatter mul" or b else np.zeros_like(x)
        for x, b in zip(arrays, linear, strict=True)
    ]
    out = linear_part(op, fixed)
    ct = rng.integers(-4, 5, out.shape).astype(out.dtype)
    operands = [
        Linear(TensorType(x.shape, Array(x).dtype)) if b else Array(x)
        for x, b in zip(fixed, linear, strict=True)
    ]
    cts = op.transpose([Array(ct)], operands)
    total = 0.0
    for x, b, found in zip(fixed, linear, cts, strict=True):
        if not b:
            assert found is None
            continue
        assert found.shape == x.shape
        assert found._data.dtype == x.dtype
        total += float((found._data * x).sum())
    assert total == float((ct * out).sum())


@pytest.mark.parametrize("combine", [Combine.MUL, Combine.MIN, Combine.MAX])
@pytest.mark.parametrize("seed", range(20))
def test_jvp_of_nonlinear_scatter(combine: Combine, seed: int) -> None:
    rng = np.random.default_rng(4000 + seed)
    x, updates = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    places = rng.permutation(5)[:4] if combine is Combine.MUL else rng.integers(-1, 6, 4)
    attrs = {"axes": (0,), "combine": combine, "unique": combine is Combine.MUL}
    op = Case(Scatter, [x, updates, [places]], attrs).op()
    dx, du = rng.normal(size=x.shape), rng.normal(size=updates.shape)
    dx, du = [(dx, du), (dx, None), (None, du)][seed % 3]
    out = op.evaluate(x, updates, places)
    (found,) = op.jvp(
        [Array(x), Array(updates), Array(places)],
        [None if t is None else Array(t) for t in (dx, du, None)],
        [Array(out)],
    )
    step = 1e-6
    ahead = op.evaluate(
        x if dx is None else x + step * dx, updates if du is None else updates + step * du, places
    )
    np.testing.assert_allclose(found._data, (ahead - out) / step, rtol=1e-4, atol=1e-4)


def test_ties_of_an_extremum_share_the_tangent() -> None:
    attrs = {"axes": (0,), "combine": Combine.MAX}
    x, updates, places = np.zeros(2), np.zeros(3), np.array([0, 0, 1])
    op = Case(Scatter, [x, updates, [places]], attrs).op()
    arrays = [Array(x), Array(updates), Array(places)]
    tangents = [Array(np.array([3.0, 4.0])), Array(np.array([6.0, 9.0, 2.0])), None]
    (found,) = op.jvp(arrays, tangents, [Array(x)])
    np.testing.assert_array_equal(found._data, [6.0, 3.0])


def test_product_scatter_with_repeats_has_no_derivative() -> None:
    attrs = {"axes": (0,), "combine": Combine.MUL}
    x, updates, places = np.ones(3), np.ones(2), np.array([0, 0])
    op = Case(Scatter, [x, updates, [places]], attrs).op()
    arrays = [Array(x), Array(updates), Array(places)]
    with pytest.raises(NotDifferentiableError) as caught:
        op.jvp(arrays, [None, arrays[1], None], [arrays[0]])
    assert caught.value.what.startswith("scatter: the derivative of a product")
    assert caught.value.rule == "the positions of a differentiated product scatter do not repeat"
    assert caught.value.fix == "promise it with unique=True, or scatter-add logarithms"


def test_infinities_inside_do_not_reach_the_padding_cotangent() -> None:
    op = make(Pad, TensorType((2,), float32), TensorType((), float32), lo=(1,), hi=(0,))
    ct = Array(np.array([3, np.inf, -np.inf], np.float32))
    types = [Linear(v.type) for v in op.operands]
    assert op.transpose([ct], types)[1]._data == 3


# --- symbolic dims ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", LINEAR)
def test_cotangents_have_the_types_of_operands(name: str, seed: int) -> None:
    rng = np.random.default_rng(5000 + seed)
    case = linear_case(name, rng)
    if not is_float(case.arrays[0]):
        pytest.skip("integers carry no tangents")
    op, _ = symbolic(case, rng)
    floats = [is_float(x) for x in case.arrays]
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    (result,) = op.results
    assert isinstance(result.type, TensorType)
    found: list[Any] = []

    def run(ct: Any, *operands: Any) -> list[Any]:
        mixed = [Linear(x.type) if b else x for x, b in zip(operands, floats, strict=True)]
        found[:] = op.transpose([ct], mixed)
        return [x for x in found if x is not None]

    trace_function(run, [result.type, *types], "transpose")
    for type, x, b in zip(types, found, floats, strict=True):
        assert (x is not None) == b
        if b:
            assert x.type == type, name


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ALL_CASES)
def test_batched_types(name: str, seed: int) -> None:
    rng = np.random.default_rng(6000 + seed)
    op, _ = symbolic(ALL_CASES[name](rng), rng)
    size = sym("B")
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    (result,) = op.results
    assert isinstance(result.type, TensorType)
    batched = [rng.random() < 0.6 for _ in types]
    batched[int(rng.integers(0, len(types)))] = True
    axes = [
        int(rng.integers(0, t.rank + 1)) if b else None
        for t, b in zip(types, batched, strict=True)
    ]
    fed = [
        t if a is None else t.with_shape((*t.shape[:a], size, *t.shape[a:]))
        for t, a in zip(types, axes, strict=True)
    ]
    found: list[Any] = []

    def run(*operands: Any) -> list[Any]:
        outs, out_axes = op.batch(operands, axes, size)
        found[:] = [outs[0].type, out_axes[0]]
        return list(outs)

    trace_function(run, fed, "vmap")
    type, axis = found
    assert type.shape[axis] is size
    assert (*type.shape[:axis], *type.shape[axis + 1 :]) == result.type.shape


def test_slicing_a_symbolic_dim_with_strides() -> None:
    s = sym("S")
    f32 = TensorType((s,), float32)
    op = make(Slice, f32, start=(1,), limit=(s,), stride=(3,))
    found: list[Any] = []

    def run(ct: Any) -> list[Any]:
        found[:] = op.transpose([ct], [Linear(f32)])
        (pad,) = found
        again = make(Pad, op.result.type, TensorType((), float32), lo=(2,), hi=(1,), interior=(4,))
        found.extend(again.transpose([full_like(Linear(again.result.type), 1)], map_linear(again)))
        return [pad]

    trace_function(run, [op.result.type], "transpose")
    assert found[0].type == f32
    assert found[1].type == op.result.type


def map_linear(op: GraphOp) -> list[Any]:
    types = [v.type for v in op.operands]
    return [Linear(t) for t in types if isinstance(t, TensorType)]


# --- functions --------------------------------------------------------------------------------


def data(x: Any) -> np.ndarray:
    return x._data


def test_functions_compute_what_numpy_does() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    a = Array(x)
    for source, destination in np.ndindex(3, 3):
        moved = np.moveaxis(x, source, destination)
        np.testing.assert_array_equal(data(move_axis(a, source - 3, destination)), moved)
    for axis in range(-4, 4):
        found = expand_dims(a, axis)
        np.testing.assert_array_equal(data(found), np.expand_dims(x, axis))
        np.testing.assert_array_equal(data(squeeze(found, [axis])), x)
    np.testing.assert_array_equal(data(slice_axis(a, -1, 1, 4, 2)), x[..., 1:4:2])
    np.testing.assert_array_equal(data(reverse(a, (1,))), x[:, ::-1])
    np.testing.assert_array_equal(data(concatenate([a, a, a], -2)), np.concatenate([x] * 3, 1))
    padded = pad(slice_axis(slice_axis(a, 0, 0, 1), 2, 0, 2), 9, (0, 0, 1), (1, 0, 0), (0, 0, 1))
    np.testing.assert_array_equal(data(padded)[0, 0], [9, 0, 9, 1])
    np.testing.assert_array_equal(data(full((2, 2), True, bool_)), np.ones((2, 2), np.bool_))
    np.testing.assert_array_equal(data(iota((2, 3), 1, float32)), [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(data(dynamic_slice(a, (1, 1, 9), (1, 2, 2))), x[1:, 1:, 2:])
    zero = full((1, 1, 1), 0, float64)
    changed = x.copy()
    changed[1, 0, 3] = 0
    np.testing.assert_array_equal(data(dynamic_update_slice(a, zero, (1, 0, 7))), changed)


def test_functions_with_nothing_to_do_return_their_operand() -> None:
    a = Array(np.ones((2, 3)))
    assert broadcast(a, (2, 3), (0, 1)) is a
    assert reshape(a, [2, 3]) is a
    assert transpose(a, (0, 1)) is a
    assert move_axis(a, 1, -1) is a
    assert slice_(a, (0, 0), (2, 3)) is a
    assert pad(a, 0, (0, 0), (0, 0), (0, 0)) is a
    assert concatenate([a], 0) is a
    assert reverse(a, ()) is a


def test_refusals_of_functions() -> None:
    a = Array(np.ones((2, 3)))
    with pytest.raises(ShapeError) as caught:
        squeeze(a, (1,))
    assert caught.value.what == "squeeze: dim 1 of f64[2, 3] is 3"
    assert caught.value.rule == "only dims of length 1 can be removed"
    with pytest.raises(AxisError) as caught:
        move_axis(a, 2, 0)
    assert caught.value.what == "move_axis: axis 2 is out of range for rank 2"
    assert caught.value.rule == "-2 <= axis < 2"


def test_take_along() -> None:
    x = np.arange(12.0).reshape(3, 4)
    index = np.argsort(-x, 1)[:, :2]
    found = take_along(Array(x), Array(index), -1)
    np.testing.assert_array_equal(found._data, np.take_along_axis(x, index, 1))


def test_unknown_tangents_are_zeros() -> None:
    x, y = np.ones(2), np.ones(3)
    op = Case(Concatenate, [[x, y]], {"axis": 0}).op()
    (found,) = op.jvp([Array(x), Array(y)], [None, Array(y)], [])
    np.testing.assert_array_equal(found._data, [0, 0, 1, 1, 1])


def test_broadcast_from_one_element_sums_its_cotangent() -> None:
    op = make(Broadcast, TensorType((1, 3), float64), shape=(2, 4, 3), dims=(1, 2))
    (found,) = op.transpose([Array(np.ones((2, 4, 3)))], map_linear(op))
    np.testing.assert_array_equal(found._data, np.full((1, 3), 8.0))
