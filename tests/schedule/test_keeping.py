"""Values of a row that are kept between passes: which, where, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import bfloat16
from tessera.errors import ParseError
from tessera.ir.core import Block, Func
from tessera.ir.intexpr import Dim, sym
from tessera.ir.parser import parse_func
from tessera.ir.walk import walk
from tessera.schedule import ops, streaming
from tessera.schedule.heuristics import choose
from tessera.schedule.keeping import LONGEST_ROW, expanded, find
from tessera.schedule.plan import may_share
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine, supported_levels
from tessera.tile.scratch_ops import Scratch
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import WIDE, lowered, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


def powers(x: Any) -> Any:
    return ts.exp(x - ts.max(x, axis=-1, keepdims=True))


def softmax(x: Any) -> Any:
    p = powers(x)
    return p / ts.sum(p, axis=-1, keepdims=True)


def weighted(x: Any, d: Any) -> Any:
    """The gradient of logsumexp, for a cotangent of each element."""
    return d * softmax(x)


def moments(x: Any) -> Any:
    """A reduction that needs the sum of exponentials, and one that does not."""
    p = powers(x)
    total = ts.sum(p, axis=-1, keepdims=True)
    spread = ts.sum(p * (x - total), axis=-1, keepdims=True)
    return p - ts.sum(p * x, axis=-1, keepdims=True) * spread


def pulled_back(x: Any, d: Any) -> Any:
    """A gradient, where what belongs to an element is computed in front of the sums."""
    return ts.vjp(softmax, x)[1](d)[0]


def total(x: Any) -> Any:
    return ts.sum(powers(x), axis=-1)


def layer_norm(x: Any) -> Any:
    d = x - ts.mean(x, axis=-1, keepdims=True)
    return d / ts.sqrt(ts.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def narrow(x: Any) -> Any:
    return ts.astype(softmax(ts.astype(x, ts.float32)), ts.bfloat16)


def chosen(fn: Callable[..., Any], *shapes: tuple[Dim, ...], **options: Any) -> list[ops.Nest]:
    func = choose(lowered(fn, *[typed(*shape, **options) for shape in shapes]), WIDE)
    units = [one for kernel in kernels(func.body) for one in kernel.body.ops]
    return [one for one in units if isinstance(one, ops.Nest)]


def keeps(nest: ops.Nest) -> bool:
    return any(isinstance(op, ops.Store) and op.keeps for op in nest.body.ops)


def exponentials(nest: ops.Nest) -> int:
    return sum(isinstance(op, ops.Map) and op.fn.name == "exp" for op in walk(nest.body))


@pytest.mark.parametrize(("fn", "count"), [(softmax, 2), (weighted, 2), (moments, 4)])
def test_what_is_kept_is_computed_once(fn: Callable[..., Any], count: int) -> None:
    shapes = [(9, 100)] * (2 if fn is weighted else 1)
    (nest,) = chosen(fn, *shapes)
    assert keeps(nest)
    assert exponentials(nest) == count
    # Of moments two sums share a pass, and there the exponential.
    found, _ = expanded(nest)
    assert exponentials(found) == (2 if fn is moments else 1)
    inside = [op for r in found.body.ops for region in r.regions for op in region.ops]
    (store,) = [op for op in inside if isinstance(op, ops.Store)]
    loads = [op for op in walk(found.body) if isinstance(op, ops.Load) and op.buf is store.buf]
    assert len(loads) == (2 if fn is moments else 1)


@pytest.mark.parametrize(
    "shape", [(1, 9, 100), (9, 1, 100), (1, 1, 9, 100), (3, 4, 100), (2, 3, 2, 36)]
)
def test_rows_of_several_axes(shape: tuple[int, ...]) -> None:
    (nest,) = chosen(softmax, shape)
    assert keeps(nest)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    check_levels(traced(softmax, typed(*shape)), [x])


def test_points_that_share_an_element_have_no_room() -> None:
    (nest,) = chosen(softmax, (3, 4, 100))
    (store,) = [op for op in nest.body.ops if isinstance(op, ops.Store)]
    rows, columns = (axis.name for axis in nest.axes)
    assert find(nest) is not None
    for place in [(sym(rows) // 4, 0), (sym(rows) // 4, sym(rows) // 4), (0, sym(rows) % 4)]:
        other = store.rebuild(index=(*place, sym(columns)), keeps=False)
        code = [other if op is store else op for op in nest.body.ops]
        changed = nest.rebuild(regions=[Block((), code, ())])
        assert isinstance(changed, ops.Nest)
        assert find(changed) is None


def test_other_kernels_read_what_is_stored() -> None:
    """Of several kernels over the same rows only the one that stores exponentials computes them."""

    def fn(x: Any) -> Any:
        return ts.grad(lambda x: ts.sum(ts.sin(softmax(x))))(x)

    first, *others = chosen(fn, (9, 100))
    assert others
    assert not any(exponentials(nest) for nest in others)
    assert exponentials(expanded(first)[0]) == 1
    x = np.random.default_rng(0).normal(size=(9, 36)).astype(np.float32)
    check_levels(traced(fn, typed(9, 36)), [x])


def test_elements_in_front_of_a_sum_read_what_it_keeps() -> None:
    (nest,) = chosen(pulled_back, (9, 100), (9, 100))
    assert keeps(nest)
    found, _ = expanded(nest)
    assert not [op for op in found.body.ops if isinstance(op, ops.Map) and op.fn.name == "exp"]
    x, d = (np.random.default_rng(k).normal(size=(9, 100)).astype(np.float32) for k in (0, 1))
    check_levels(traced(pulled_back, typed(9, 100), typed(9, 100)), [x, d])


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (layer_norm, (9, 100), None),  # a subtraction costs less than the room
        (narrow, (9, 100), bfloat16),  # the result has no room for float32
        (softmax, (9, LONGEST_ROW + 1), None),  # the row does not stay in the cache
        (total, (9, 100), None),  # there is no such result
    ],
)
def test_what_is_not_kept(fn: Callable[..., Any], shape: tuple[int, ...], dtype: Any) -> None:
    nests = chosen(fn, shape, **({} if dtype is None else {"dtype": dtype}))
    assert not any(keeps(nest) for nest in nests)
    assert all(expanded(nest) == (nest, None) for nest in nests)


def test_a_result_that_keeps_lies_on_no_input() -> None:
    """Its rows are written before all of the input's are read."""
    func: Func = choose(lowered(weighted, typed(9, 100), typed(9, 100)), WIDE)
    (kernel,) = kernels(func.body)
    assert not any(may_share(kernel, j, 0) for j in range(len(kernel.inputs)))
    # The same kernel without: the cotangent is read where the result is written.
    body = kernel.body
    (nest,) = body.ops
    (store,) = [op for op in nest.regions[0].ops if isinstance(op, ops.Store)]
    plain = [op.rebuild(keeps=False) if op is store else op for op in nest.regions[0].ops]
    region = type(body)((), plain, ())
    other = kernel.rebuild(regions=[type(body)(body.args, [nest.rebuild(regions=[region])], ())])
    assert isinstance(other, ops.Kernel)
    assert any(may_share(other, j, 0) for j in range(len(other.inputs)))


@pytest.mark.parametrize("shape", [(9, 33), (3, 8), (2, 256)])
@pytest.mark.parametrize("fn", [weighted, moments])
def test_levels_agree(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    count = 2 if fn is weighted else 1
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
    check_levels(traced(fn, *[typed(*shape)] * count), inputs)


@every_pair(
    ("level", LEVELS),
    ("shape", [(5, 600), (3, 1024), (3, 1001), (3, 2048)]),
    ("fn", [softmax, weighted, moments, pulled_back]),
)
def test_rows_past_the_caches_have_scratch_memory(
    fn: Callable[..., Any], shape: tuple[int, int], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same memory for row after row."""
    count = 2 if fn in (weighted, pulled_back) else 1
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
    inputs[0].flat[::97], inputs[0].flat[5] = -np.inf, -0.0
    graph = traced(fn, *[typed(*shape)] * count)
    near = check_levels(graph, inputs, machine=machine(level))
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 10)
    far = check_levels(graph, inputs, machine=machine(level))
    assert not scratch(near)
    assert scratch(far) == [shape[1]]


def scratch(program: Lowered) -> list[int]:
    """Elements of scratch memory that kernels have."""
    code = [op for func in program.tile.funcs.values() for op in walk(func.body)]
    return [op.count for op in code if isinstance(op, Scratch)]


@pytest.mark.parametrize(("columns", "has"), [(2048, True), (2049, False)])
def test_long_rows_have_no_scratch_memory(
    columns: int, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 10)
    (nest,) = chosen(softmax, (8, columns))
    found, room = expanded(nest)
    (store,) = [op for op in found.body.ops if isinstance(op, ops.Store)]
    assert bool(store.streaming) is (room is not None) is has


def test_symbolic_rows_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the sizes tell whether the result goes past the caches."""
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 15)
    graph = traced(softmax, typed(sym("n"), 600))
    for rows in (0, 1, 5, 40):
        x = np.random.default_rng(1).normal(size=(rows, 600)).astype(np.float32)
        assert scratch(check_levels(graph, [x], {"n": rows})) == [600]


def test_symbolic_rows() -> None:
    rows, columns = sym("n"), sym("m")
    graph = traced(softmax, typed(rows, columns))
    for sizes in ((3, 40), (1, 1), (0, 5)):
        x = np.random.default_rng(1).normal(size=sizes).astype(np.float32)
        check_levels(graph, [x], dict(zip(("n", "m"), sizes, strict=True)))


def test_scratch_memory_has_a_size() -> None:
    text = "func @k() {\n  %m = tile.scratch() {dtype=f32, count=COUNT} : mem<f32>\n  return\n}"
    with pytest.raises(ParseError, match="scratch memory of 0 elements"):
        parse_func(text.replace("COUNT", "0"))
    func = parse_func(text.replace("COUNT", "8"))
    assert str(parse_func(str(func))) == str(func)
