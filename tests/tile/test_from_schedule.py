"""Schedule programs lowered to Tile IR: verified, printed and parsed, and run against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tessera.dtypes import Kind
from tessera.errors import CompileError
from tessera.ir import intexpr
from tessera.ir.core import Func, Module
from tessera.ir.parser import parse_func, parse_module
from tessera.ir.verify import verify, verify_module
from tessera.ir.walk import walk
from tessera.schedule.ops import Contract
from tessera.schedule.types import BufType
from tessera.tile import ops as t
from tessera.tile.from_schedule import lower_program
from tessera.tile.interp import run_module
from tessera.tile.spec import TILE

Array = npt.NDArray[Any]


def program(
    ins: Sequence[str], outs: Sequence[str], body: str, dims: str = "", temps: int = 0
) -> Func:
    """A program of one kernel on buffers %a, %b, ...; the last `temps` of outs are temporary."""
    names = [f"%{chr(ord('a') + k)}" for k in range(len(ins) + len(outs))]
    args = ", ".join(f"{n}: buf<{x}>" for n, x in zip(names, [*ins, *outs], strict=True))
    head = ", ".join(f"%x{k}: buf<{x}>" for k, x in enumerate(ins))
    inputs = ", ".join(f"%x{k}" for k in range(len(ins)))
    results = [f"%y{k}" for k in range(len(outs))]
    count = len(outs) - temps
    places = [
        f"output({k})" if k < count else f"arena({(k - count) << 16})" for k in range(len(outs))
    ]
    types = ", ".join(f"buf<{x}>" for x in outs)
    result_types = types if len(outs) == 1 else f"({types})"
    text = f"""
func @f{f"[{dims}]" if dims else ""}({head}) {{
  {", ".join(results)} = schedule.kernel([{inputs}]) {{
    types=[{types}], places=[{", ".join(places)}],
    temps={temps}, label="test"}} : {result_types} body({args}) {{
    {body}
    yield
  }}
  return {", ".join(results[:count])}
}}"""
    func = parse_func(text)
    verify(func)
    return func


def nest(
    axes: str, body: str, tile: str = "", chunk: str = "", step: int = 1, ordered: str = ""
) -> str:
    """A nest as text."""
    options = f"axes=[{axes}], reduce_tile={step}"
    for key, value in (("tile", tile), ("chunk", chunk), ("ordered", ordered)):
        options += f", {key}=[{value}]" if value else ""
    return f"schedule.nest() {{{options}}} body() {{ {body} yield }}"


def lower(func: Func) -> Module:
    """The Tile module, after the checks that every result must pass."""
    before = str(func)
    module = lower_program(func)
    assert str(func) == before, "the input was changed"
    verify_module(module, TILE)
    assert str(parse_module(str(module))) == str(module)
    return module


def run(func: Func, *inputs: Array, **dims: int) -> list[Array]:
    """What the lowered program computes."""
    module = lower(func)
    outputs: list[Array] = []
    for value in func.outputs:
        assert isinstance(value.type, BufType)
        shape = [intexpr.evaluate(n, dims) for n in value.type.shape]
        outputs.append(np.zeros(shape, value.type.dtype.np))
    flat = [_real(x) for x in outputs]
    run_module(module, [_real(x) for x in inputs], flat, dims, 1 << 20)
    return outputs


def _real(x: Array) -> Array:
    return x.reshape(-1).view(x.real.dtype) if x.dtype.kind == "c" else x


def randoms(*shape: int, dtype: str = "f4", seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.startswith("c"):
        part = f"f{int(dtype[1:]) // 2}"
        return (randoms(*shape, dtype=part) + 1j * randoms(*shape, dtype=part, seed=1)).astype(
            dtype
        )
    if dtype.startswith(("i", "u")):
        return rng.integers(-9 if dtype[0] == "i" else 0, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def ops_of(module: Module, kind: type[Any]) -> list[Any]:
    """All ops of a class in the kernels."""
    found = [walk(f.body) for f in module.funcs.values() if f.name != "main"]
    return [op for ops in found for op in ops if isinstance(op, kind)]


# --- elementwise ------------------------------------------------------------------------------

SCALE = """
    %0 = schedule.load(%a, []) {index=[i, j]} : f32
    %1 = schedule.load(%b, []) {index=[j]} : f32
    %2 = schedule.map([%0, %1]) {fn=mul} : f32
    schedule.store(%c, %2, []) {index=[i, j]}
"""
SHAPES = [(1, 1), (3, 5), (4, 8), (9, 17), (8, 16), (0, 4), (4, 0), (1, 33)]
TILES = [
    ("1, 1", ""),
    ("1, 4", ""),
    ("4, 8", ""),
    ("4, 8", "8, 16"),
    ("1, 8", "1, 0"),
    ("2, 1", "0, 3"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("tile", "chunk"), TILES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_elementwise(shape: tuple[int, int], tile: str, chunk: str, symbolic: bool) -> None:
    m, n = ("M", "N") if symbolic else shape
    body = nest(f"i: {m}, j: {n}", SCALE, tile, chunk)
    func = program([f"f32[{m}, {n}]", f"f32[{n}]"], [f"f32[{m}, {n}]"], body, "M, N")
    a, b = randoms(*shape), randoms(shape[1], seed=1)
    (c,) = run(func, a, b, M=shape[0], N=shape[1])
    np.testing.assert_array_equal(c, a * b)


def test_main_loop_has_no_checks_and_loads_are_structured() -> None:
    body = nest("i: 8, j: 24", SCALE, "4, 8")
    module = lower(program(["f32[8, 24]", "f32[24]"], ["f32[8, 24]"], body))
    assert not ops_of(module, t.Gather)
    assert not ops_of(module, t.If)
    assert {op.shape for op in ops_of(module, t.Load)} == {(4, 8), (8,)}
    assert all(not op.check for op in ops_of(module, t.Load) + ops_of(module, t.Store))
    assert all(op.parallel for op in ops_of(module, t.For))


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (8, 8), (1, 3), (16, 20)])
@pytest.mark.parametrize("tile", ["1, 1", "4, 8", "1, 4", "8, 1"])
def test_transposed_and_strided_loads(shape: tuple[int, int], tile: str) -> None:
    m, n = shape
    body = nest(
        f"i: {m}, j: {n}",
        """%0 = schedule.load(%a, []) {index=[j, i]} : f32
           schedule.store(%b, %0, []) {index=[i, j]}""",
        tile,
    )
    a = randoms(n, m)
    (b,) = run(program([f"f32[{n}, {m}]"], [f"f32[{m}, {n}]"], body), a)
    np.testing.assert_array_equal(b, a.T)
    strided = body.replace("index=[j, i]", "index=[i, j]")
    func = program([f"f32[{m}, {n}], strides [1, {m}]"], [f"f32[{m}, {n}]"], strided)
    (b,) = run(func, a)
    np.testing.assert_array_equal(b, a.T)


@pytest.mark.parametrize("n", [1, 7, 16, 30])
@pytest.mark.parametrize("tile", [1, 8])
def test_what_is_not_affine_is_gathered(n: int, tile: int) -> None:
    body = nest(
        f"i: {n}",
        """%0 = schedule.load(%a, []) {index=[i // 3, i % 3]} : f32
           schedule.store(%b, %0, []) {index=[i]}""",
        f"{tile}",
    )
    a = randoms(10, 4)
    func = program(["f32[10, 4]"], [f"f32[{n}]"], body)
    (b,) = run(func, a)
    np.testing.assert_array_equal(b, a[:, :3].reshape(-1)[:n])
    assert bool(ops_of(lower(func), t.Gather)) == (tile > 1 and n > 1)


@pytest.mark.parametrize("tile", ["1, 1", "1, 8", "4, 8", "4, 1"])
@pytest.mark.parametrize("shape", [(5, 9), (4, 8)])
def test_dynamic_indices(tile: str, shape: tuple[int, int]) -> None:
    m, n = shape
    body = nest(
        f"i: {m}, j: {n}",
        """%0 = schedule.load(%b, []) {index=[i]} : i32
           %1 = schedule.load(%a, [%0]) {index=[$0, j]} : f32
           schedule.store(%c, %1, []) {index=[i, j]}""",
        tile,
    )
    a, b = randoms(6, n), np.arange(m, dtype="i4")[::-1] % 6
    func = program([f"f32[6, {n}]", f"i32[{m}]"], [f"f32[{m}, {n}]"], body)
    np.testing.assert_array_equal(run(func, a, b)[0], a[b])
    # A table row that does not vary over the tile is read through a view.
    assert bool(ops_of(lower(func), t.Gather)) == tile.startswith("4")


@pytest.mark.parametrize("tile", ["1, 1", "1, 8", "4, 8", "4, 1"])
def test_padding_touches_no_memory_outside(tile: str) -> None:
    body = nest(
        "i: 7, j: 13",
        """%0 = schedule.load(%a, []) {
             index=[i - 1, j - 2], where=[i - 1, 5 - i, j - 2, 9 - j], fill=7.0} : f32
           schedule.store(%b, %0, []) {index=[i, j]}""",
        tile,
    )
    a = randoms(5, 8)
    (b,) = run(program(["f32[5, 8]"], ["f32[7, 13]"], body), a)
    np.testing.assert_array_equal(b, np.pad(a, ((1, 1), (2, 3)), constant_values=7))


@pytest.mark.parametrize("tile", ["1, 1", "1, 8", "4, 8"])
def test_conditions_on_axes_that_the_index_leaves_out(tile: str) -> None:
    body = nest(
        "i: 6, j: 11",
        """%0 = schedule.load(%a, []) {index=[j], where=[i - j], fill=-1.0} : f32
           %1 = schedule.load(%a, []) {index=[i // 2], where=[i - j], fill=-1.0} : f32
           %2 = schedule.index([]) {expr=10*i + j} : i64
           %3 = schedule.cast(%2) {dtype=f32} : f32
           %4 = schedule.holds([]) {where=[j - 2*i]} : bool
           %5 = schedule.map([%0, %1]) {fn=add} : f32
           %6 = schedule.map([%4, %3, %5]) {fn=select} : f32
           schedule.store(%b, %6, []) {index=[i, j], where=[9 - j]}""",
        tile,
    )
    a = randoms(11)
    (b,) = run(program(["f32[11]"], ["f32[6, 11]"], body), a)
    i, j = np.indices((6, 11))
    x = np.where(i >= j, a[j], -1) + np.where(i >= j, a[i // 2], -1)
    expected = np.where(j >= 2 * i, 10 * i + j, x).astype("f4")
    np.testing.assert_array_equal(b[:, :10], expected[:, :10])
    assert np.isnan(b[:, 10]).all()


# --- scatter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [1, 8])
@pytest.mark.parametrize("n", [1, 8, 21])
def test_scatter_adds_duplicates(tile: int, n: int) -> None:
    text = """%0 = schedule.load(%a, []) {index=[i]} : i32
              %1 = schedule.load(%b, []) {index=[i]} : f32
              schedule.store(%c, %1, [%0]) {index=[$0], where=[$0, 4 - $0], combine=add}"""
    zero = """%0 = schedule.const() {value=0.0, dtype=f32} : f32
              schedule.store(%c, %0, []) {index=[i]}"""
    body = nest("i: 5", zero, "4") + nest(f"i: {n}", text, f"{tile}", ordered='"i"')
    free = nest("i: 5", zero, "4") + nest(f"i: {n}", text, f"{tile}")
    a, b = np.arange(n, dtype="i4") % 7 - 1, randoms(n, dtype="i4").astype("f4")
    expected = np.zeros(5, "f4")
    inside = (a >= 0) & (a < 5)
    np.add.at(expected, a[inside], b[inside])
    for text in (body, free):
        (c,) = run(program([f"i32[{n}]", f"f32[{n}]"], ["f32[5]"], text), a, b)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("tile", ["1, 1", "2, 4", "1, 4"])
def test_combining_stores_on_distinct_elements(tile: str) -> None:
    load = "%0 = schedule.load(%a, []) {index=[i, j]} : f32 "
    fill = nest("i: 5, j: 6", load + "schedule.store(%b, %0, []) {index=[i, j]}", tile)
    store = "schedule.store(%b, %0, []) {index=[i, j], combine=mul}"
    square = nest("i: 5, j: 6", load + store, tile)
    func = program(["f32[5, 6]"], ["f32[5, 6]"], fill + square)
    a = randoms(5, 6)
    np.testing.assert_array_equal(run(func, a)[0], a * a)
    assert not ops_of(lower(func), t.Scatter)


@pytest.mark.parametrize("tile", ["1, 1", "2, 4", "1, 4"])
def test_the_last_store_to_an_element_wins(tile: str) -> None:
    text = """%0 = schedule.load(%a, []) {index=[i, j]} : f32
              schedule.store(%b, %0, []) {index=[i]}"""
    a = randoms(5, 6)
    (b,) = run(program(["f32[5, 6]"], ["f32[5]"], nest("i: 5, j: 6", text, tile)), a)
    np.testing.assert_array_equal(b, a[:, -1])


# --- reductions -------------------------------------------------------------------------------


def reduction(m: object, n: object, fn: str, tile: str, step: int, dtype: str = "f32") -> str:
    text = f"""
        %0 = schedule.reduce() {{axes=[k: {n}], fn={fn}}} : {dtype} body() {{
          %1 = schedule.load(%a, []) {{index=[i, k]}} : {dtype}
          yield %1
        }}
        schedule.store(%b, %0, []) {{index=[i]}}"""
    return nest(f"i: {m}", text, tile, step=step)


@pytest.mark.parametrize("shape", [(5, 17), (4, 16), (3, 1), (9, 0), (1, 5), (0, 3), (8, 40)])
@pytest.mark.parametrize(("tile", "step"), [("1", 1), ("1", 8), ("4", 1), ("4", 8), ("8", 16)])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("fn", ["add", "max"])
def test_reduce(shape: tuple[int, int], tile: str, step: int, symbolic: bool, fn: str) -> None:
    m, n = ("M", "N") if symbolic else shape
    body = reduction(m, n, fn, tile, step, "i32")
    func = program([f"i32[{m}, {n}]"], [f"i32[{m}]"], body, "M, N")
    a = randoms(*shape, dtype="i4")
    (b,) = run(func, a, M=shape[0], N=shape[1])
    expected = a.sum(1) if fn == "add" else a.max(1, initial=np.iinfo("i4").min)
    np.testing.assert_array_equal(b, expected)


@pytest.mark.parametrize("tile", ["1, 1", "1, 4", "2, 4"])
@pytest.mark.parametrize("step", [1, 4])
def test_reduce_over_several_axes_with_prologue_and_epilogue(tile: str, step: int) -> None:
    text = """
        %w = schedule.load(%b, []) {index=[j]} : f32
        %0 = schedule.reduce() {axes=[p: 3, q: 7], fn=add} : f32 body() {
          %1 = schedule.load(%a, []) {index=[i, p, q, j]} : f32
          %2 = schedule.map([%1, %w]) {fn=sub} : f32
          %3 = schedule.map([%2]) {fn=square} : f32
          yield %3
        }
        %4 = schedule.map([%0, %w]) {fn=mul} : f32
        schedule.store(%c, %4, []) {index=[i, j]}"""
    body = nest("i: 3, j: 9", text, tile, step=step)
    func = program(["f32[3, 3, 7, 9]", "f32[9]"], ["f32[3, 9]"], body)
    a, b = randoms(3, 3, 7, 9), randoms(9, seed=1)
    (c,) = run(func, a, b)
    np.testing.assert_allclose(c, ((a - b) ** 2).sum((1, 2)) * b, rtol=2e-5)


@pytest.mark.parametrize("tile", ["1", "4"])
@pytest.mark.parametrize("step", [1, 8])
def test_softmax_in_one_nest_per_row(tile: str, step: int) -> None:
    text = """
        %m = schedule.reduce() {axes=[p: N], fn=max} : f32 body() {
          %0 = schedule.load(%a, []) {index=[i, p]} : f32
          yield %0
        }
        %s = schedule.reduce() {axes=[q: N], fn=add} : f32 body() {
          %1 = schedule.load(%a, []) {index=[i, q]} : f32
          %2 = schedule.map([%1, %m]) {fn=sub} : f32
          %3 = schedule.map([%2]) {fn=exp} : f32
          yield %3
        }
        schedule.store(%b, %s, []) {index=[i]}"""
    func = program(["f32[M, N]"], ["f32[M]"], nest("i: M", text, tile, step=step), "M, N")
    a = randoms(6, 21)
    (b,) = run(func, a, M=6, N=21)
    np.testing.assert_allclose(b, np.exp(a - a.max(1, keepdims=True)).sum(1), rtol=1e-5)


@pytest.mark.parametrize("tile", ["1, 1", "1, 4"])
@pytest.mark.parametrize("step", [1, 4])
def test_reduction_inside_a_reduction(tile: str, step: int) -> None:
    text = """
        %0 = schedule.reduce() {axes=[p: 6], fn=max} : f32 body() {
          %1 = schedule.reduce() {axes=[q: 5], fn=add} : f32 body() {
            %2 = schedule.load(%a, []) {index=[i, p, q, j]} : f32
            yield %2
          }
          yield %1
        }
        schedule.store(%b, %0, []) {index=[i, j]}"""
    func = program(["f32[2, 6, 5, 7]"], ["f32[2, 7]"], nest("i: 2, j: 7", text, tile, step=step))
    a = randoms(2, 6, 5, 7)
    np.testing.assert_allclose(run(func, a)[0], a.sum(2).max(1), rtol=1e-5)


@pytest.mark.parametrize(("tile", "step"), [("1", 1), ("1", 8), ("4", 1), ("4", 4)])
@pytest.mark.parametrize("fn", ["max", "min"])
@pytest.mark.parametrize("n", [1, 8, 21])
def test_arg_reduce(tile: str, step: int, fn: str, n: int) -> None:
    text = f"""
        %0 = schedule.arg_reduce() {{axis=k: N, fn={fn}}} : i64 body() {{
          %1 = schedule.load(%a, []) {{index=[i, k]}} : f32
          yield %1
        }}
        schedule.store(%b, %0, []) {{index=[i]}}"""
    a = randoms(7, n, dtype="i4").astype("f4")
    a[1, n // 2 :] = np.nan
    a[2] = np.inf if fn == "min" else -np.inf
    a[3] = 1
    func = program(["f32[M, N]"], ["i64[M]"], nest("i: M", text, tile, step=step), "M, N")
    (b,) = run(func, a, M=7, N=n)
    np.testing.assert_array_equal(b, (np.argmax if fn == "max" else np.argmin)(a, axis=1))


def test_arg_reduce_of_truth_values() -> None:
    text = """
        %0 = schedule.arg_reduce() {axis=k: 9, fn=max} : i64 body() {
          %1 = schedule.load(%a, []) {index=[k]} : bool
          yield %1
        }
        schedule.store(%b, %0, []) {index=[]}"""
    a = np.zeros(9, bool)
    a[[5, 7]] = True
    (b,) = run(program(["bool[9]"], ["i64[]"], nest("", text, step=4)), a)
    assert b == 5


# --- contractions -----------------------------------------------------------------------------


def product(
    axes: str, over: str, lhs: str, rhs: str, out: str, dtype: str = "f32", **how: Any
) -> str:
    text = f"""
        %0 = schedule.contract() {{
          axes=[{over}], rows=["i"], cols=["j"], dtype=f32}} : f32 body() {{
          %1 = schedule.load(%a, []) {{index=[{lhs}]}} : {dtype}
          %2 = schedule.load(%b, []) {{index=[{rhs}]}} : {dtype}
          yield %1, %2
        }}
        schedule.store(%c, %0, []) {{index=[{out}]}}"""
    return nest(axes, text, **how)


@pytest.mark.parametrize("tile", ["1, 1", "4, 8", "1, 8", "4, 1"])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("shape", [(4, 8, 8), (5, 6, 11), (1, 3, 8), (9, 1, 1), (3, 0, 9)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_matmul(tile: str, step: int, shape: tuple[int, int, int], symbolic: bool) -> None:
    m, k, n = ("M", "K", "N") if symbolic else shape
    body = product(f"i: {m}, j: {n}", f"k: {k}", "i, k", "k, j", "i, j", tile=tile, step=step)
    func = program([f"f32[{m}, {k}]", f"f32[{k}, {n}]"], [f"f32[{m}, {n}]"], body, "M, K, N")
    a, b = randoms(shape[0], shape[1]), randoms(*shape[1:], seed=1)
    (c,) = run(func, a, b, M=shape[0], K=shape[1], N=shape[2])
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("axes", ["i: 6, j: 9", "j: 9, i: 6"])
def test_contract_of_transposed_operands_in_any_order_of_axes(axes: str, step: int) -> None:
    body = product(axes, "k: 5", "k, i", "j, k", "i, j", tile="4, 4", step=step)
    a, b = randoms(5, 6), randoms(9, 5, seed=1)
    func = program(["f32[5, 6]", "f32[9, 5]"], ["f32[6, 9]"], body)
    np.testing.assert_allclose(run(func, a, b)[0], a.T @ b.T, rtol=1e-5, atol=1e-6)
    # Several places of the depth at once are lanes along it.
    assert bool(ops_of(lower(func), t.Dot)) is (step == 1)


@pytest.mark.parametrize("tile", ["1, 4, 8", "4, 1, 8", "4, 4, 1", "1, 1, 1"])
@pytest.mark.parametrize("step", [1, 4])
def test_batched_contract_over_two_axes(tile: str, step: int) -> None:
    lhs, rhs = "n, i, p, q", "n, p, q, j"
    body = product("n: 5, i: 6, j: 9", "p: 2, q: 5", lhs, rhs, "n, i, j", tile=tile, step=step)
    a, b = randoms(5, 6, 2, 5), randoms(5, 2, 5, 9, seed=1)
    func = program(["f32[5, 6, 2, 5]", "f32[5, 2, 5, 9]"], ["f32[5, 6, 9]"], body)
    expected = np.einsum("nipq,npqj->nij", a, b)
    np.testing.assert_allclose(run(func, a, b)[0], expected, rtol=1e-5, atol=1e-6)


def test_operands_are_converted_to_the_accumulator() -> None:
    body = product("i: 5, j: 9", "k: 6", "i, k", "k, j", "i, j", "f16", tile="4, 8", step=2)
    a, b = randoms(5, 6, dtype="f2"), randoms(6, 9, dtype="f2", seed=1)
    func = program(["f16[5, 6]", "f16[6, 9]"], ["f32[5, 9]"], body)
    expected = a.astype("f4") @ b.astype("f4")
    np.testing.assert_allclose(run(func, a, b)[0], expected, rtol=1e-6, atol=1e-6)


def test_contract_with_prologue_padding_and_epilogue() -> None:
    """A convolution: the windows are conditions on the left operand, the bias comes at the end."""
    text = """
        %s = schedule.load(%c, []) {index=[j]} : f32
        %0 = schedule.contract() {
          axes=[u: 3, k: 4], rows=["i"], cols=["j"], dtype=f32} : f32 body() {
          %1 = schedule.load(%a, []) {index=[i + u - 1, k], where=[i + u - 1, 10 - i - u]} : f32
          %2 = schedule.map([%1]) {fn=square} : f32
          %3 = schedule.load(%b, []) {index=[u, k, j]} : f32
          yield %2, %3
        }
        %4 = schedule.map([%0, %s]) {fn=add} : f32
        schedule.store(%d, %4, []) {index=[i, j]}"""
    body = nest("i: 10, j: 9", text, "4, 8", step=2)
    func = program(["f32[10, 4]", "f32[3, 4, 9]", "f32[9]"], ["f32[10, 9]"], body)
    a, b, c = randoms(10, 4), randoms(3, 4, 9, seed=1), randoms(9, seed=2)
    padded = np.pad(a, ((1, 1), (0, 0))) ** 2
    expected = sum(padded[u : u + 10] @ b[u] for u in range(3)) + c
    np.testing.assert_allclose(run(func, a, b, c)[0], expected, rtol=1e-5, atol=1e-5)


def test_complex_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of complex matrices is four real ones."""
    monkeypatch.setattr(Contract, "accepted", Contract.accepted | {Kind.COMPLEX})
    body = product("i: 6, j: 9", "k: 5", "i, k", "k, j", "i, j", "c64", tile="4, 8", step=1)
    func = program(["c64[6, 5]", "c64[5, 9]"], ["c64[6, 9]"], body.replace("f32", "c64"))
    a, b = randoms(6, 5, dtype="c8"), randoms(5, 9, dtype="c8", seed=3)
    np.testing.assert_allclose(run(func, a, b)[0], a @ b, rtol=1e-5, atol=1e-5)
    dots = ops_of(lower(func), t.Dot)
    assert dots
    assert len(dots) % 4 == 0


def test_rows_that_are_left_are_one_tile_if_their_number_is_known() -> None:
    body = product("i: 11, j: 8", "k: 5", "i, k", "k, j", "i, j", tile="4, 8")
    module = lower(program(["f32[11, 5]", "f32[5, 8]"], ["f32[11, 8]"], body))
    assert {op.result.type.shape for op in ops_of(module, t.Dot)} == {(4, 8), (3, 8)}


def test_a_dim_that_is_known_to_be_a_multiple_leaves_no_rest() -> None:
    func = program(
        ["f32[N]", "f32[N]"], ["f32[N]"], nest("j: N", SCALE.replace("i, ", ""), "8"), "N"
    )
    assert ops_of(lower(func), t.If)
    assert not ops_of(lower_program(func, intexpr.Facts.parse("16 | N")), t.If)


# --- scans and sorts --------------------------------------------------------------------------


@pytest.mark.parametrize("tile", ["1", "4"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [0, 1, 6])
def test_scan(tile: str, reverse: bool, n: int) -> None:
    text = f"""
        schedule.scan(%b) {{
          axis=k: {n}, fn=add, reverse={str(reverse).lower()}, index=[k, i]}} body() {{
          %1 = schedule.load(%a, []) {{index=[k, i]}} : i32
          yield %1
        }}"""
    a = randoms(n, 7, dtype="i4")
    (b,) = run(program([f"i32[{n}, 7]"], [f"i32[{n}, 7]"], nest("i: 7", text, tile)), a)
    np.testing.assert_array_equal(b, np.cumsum(a[::-1], 0)[::-1] if reverse else np.cumsum(a, 0))


SORTS = [(0,), (1,), (2,), (17,), (3, 8), (2, 1), (64,)]


@pytest.mark.parametrize("shape", SORTS)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_with_nan_last(shape: tuple[int, ...], descending: bool) -> None:
    dims = ", ".join(map(str, shape))
    axis = len(shape) - 1
    body = f"""schedule.sort([%a, %b], [%c, %d], [%e, %f]) {{axis={axis}, num_keys=1,
               descending={str(descending).lower()}}}"""
    ins = [f"f32[{dims}]", f"i64[{dims}]"]
    outs = [*ins, f"u64[{dims}]", f"u64[{dims}]"]
    a = randoms(*shape, dtype="i4").astype("f4")
    a[a == 3] = np.nan
    b = np.broadcast_to(np.arange(shape[-1]), shape).copy()
    c, d = run(program(ins, outs, body, temps=2), a, b)
    key = -np.where(np.isnan(a), np.inf, a) if descending else a
    order = np.argsort(key, axis=-1, kind="stable")
    np.testing.assert_array_equal(c, np.take_along_axis(a, order, -1))
    np.testing.assert_array_equal(d, order)


def test_sort_by_two_keys_along_the_first_axis_of_strided_input() -> None:
    body = "schedule.sort([%a, %b], [%c, %d], [%e, %f]) {axis=0, num_keys=2}"
    ins = ["i32[N, 3], strides [1, N]", "i32[N, 3]"]
    outs = ["i32[N, 3]", "i32[N, 3]", "u64[N, 3]", "u64[N, 3]"]
    a, b = randoms(3, 20, dtype="i4") // 4, randoms(20, 3, dtype="i4", seed=1)
    c, d = run(program(ins, outs, body, "N", temps=2), a, b, N=20)
    for k in range(3):
        order = np.lexsort((b[:, k], a[k]))
        np.testing.assert_array_equal(c[:, k], a[k][order])
        np.testing.assert_array_equal(d[:, k], b[:, k][order])


# --- complex numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("tile", ["1, 1", "1, 4", "2, 4"])
def test_complex_elementwise(tile: str) -> None:
    body = nest(
        "i: 3, j: 6",
        """%0 = schedule.load(%a, []) {index=[i, j]} : c64
           %1 = schedule.load(%b, []) {index=[j, i], where=[j - 1], fill=(2.0, -1.0)} : c64
           %2 = schedule.map([%0, %1]) {fn=mul} : c64
           %3 = schedule.map([%2]) {fn=abs} : f32
           %4 = schedule.cast(%3) {dtype=c64} : c64
           %5 = schedule.const() {value=(0.5, 1.5), dtype=c64} : c64
           %6 = schedule.map([%4, %5]) {fn=add} : c64
           schedule.store(%c, %6, []) {index=[i, j]}""",
        tile,
    )
    func = program(["c64[3, 6]", "c64[6, 3]"], ["c64[3, 6]"], body)
    a, b = randoms(3, 6, dtype="c8"), randoms(6, 3, dtype="c8", seed=2)
    (c,) = run(func, a, b)
    b[0] = 2 - 1j
    np.testing.assert_allclose(c, np.abs(a * b.T) + (0.5 + 1.5j), rtol=1e-6)


@pytest.mark.parametrize(("tile", "step"), [("1", 1), ("1", 4), ("4", 4)])
@pytest.mark.parametrize("fn", ["add", "mul"])
def test_complex_reduce(tile: str, step: int, fn: str) -> None:
    func = program(["c128[5, 7]"], ["c128[5]"], reduction(5, 7, fn, tile, step, "c128"))
    a = randoms(5, 7, dtype="c16")
    expected = a.sum(1) if fn == "add" else a.prod(1)
    np.testing.assert_allclose(run(func, a)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("tile", ["1", "4"])
@pytest.mark.parametrize("fn", ["add", "mul"])
def test_complex_scatter(tile: str, fn: str) -> None:
    text = f"""%0 = schedule.load(%a, []) {{index=[i]}} : i32
               %1 = schedule.load(%b, []) {{index=[i]}} : c64
               schedule.store(%c, %1, [%0]) {{index=[$0], combine={fn}}}"""
    one = """%0 = schedule.const() {value=(1.0, 0.0), dtype=c64} : c64
             schedule.store(%c, %0, []) {index=[i]}"""
    func = program(["i32[9]", "c64[9]"], ["c64[3]"], nest("i: 3", one) + nest("i: 9", text, tile))
    a, b = np.arange(9, dtype="i4") % 3, randoms(9, dtype="c8")
    expected = np.ones(3, "c8")
    (np.add if fn == "add" else np.multiply).at(expected, a, b)
    np.testing.assert_allclose(run(func, a, b)[0], expected, rtol=1e-5)


def test_complex_scan_and_bits() -> None:
    text = """
        schedule.scan(%b) {axis=k: 5, fn=mul, index=[k, i]} body() {
          %0 = schedule.load(%a, []) {index=[k, i]} : c64
          yield %0
        }"""
    bits = """%0 = schedule.load(%a, []) {index=[i, j]} : c64
              %1 = schedule.bitcast(%0) {dtype=u64} : u64
              %2 = schedule.bitcast(%1) {dtype=c64} : c64
              %3 = schedule.map([%0, %2]) {fn=eq} : bool
              schedule.store(%c, %1, []) {index=[i, j]}
              schedule.store(%d, %3, []) {index=[i, j]}"""
    body = nest("i: 3", text, "2") + nest("i: 5, j: 3", bits, "1, 2")
    func = program(["c64[5, 3]"], ["c64[5, 3]", "u64[5, 3]", "bool[5, 3]"], body)
    a = randoms(5, 3, dtype="c8")
    b, c, d = run(func, a)
    np.testing.assert_allclose(b, np.cumprod(a, 0), rtol=1e-5)
    np.testing.assert_array_equal(c, a.view("u8"))
    assert d.all()


# --- programs ---------------------------------------------------------------------------------


def kernel(result: str, inputs: str, type: str, place: str, body: str) -> str:
    """A kernel with inputs %a, %b, ... and one output %z, all of one type."""
    names = inputs.split(", ") if inputs else []
    args = "".join(f"%{chr(ord('a') + k)}: buf<{type}>, " for k in range(len(names)))
    return f"""{result} = schedule.kernel([{inputs}]) {{types=[buf<{type}>], places=[{place}]}}
      : buf<{type}> body({args}%z: buf<{type}>) {{ {body} yield }}"""


def point(code: str) -> str:
    """A nest without axes."""
    return nest("", code)


LOAD_A = "%0 = schedule.load(%a, []) {index=[]} : i64 "
LOAD_B = "%1 = schedule.load(%b, []) {index=[]} : i64 "
ADD = LOAD_A + LOAD_B + "%2 = schedule.map([%0, %1]) {fn=add} : i64 "
STORE = "schedule.store(%z, %2, []) {index=[]}"
I64 = "i64[]"
BELOW = f"""%c = schedule.kernel([%p, %n]) {{types=[buf<bool[]>], places=[arena(512)]}}
  : buf<bool[]> body(%a: buf<i64[]>, %b: buf<i64[]>, %z: buf<bool[]>) {{
    {point(LOAD_A + LOAD_B + "%2 = schedule.map([%0, %1]) {fn=lt} : bool " + STORE)} yield }}"""


def test_while_exchanges_what_it_carries() -> None:
    """Fibonacci numbers: (p, q) becomes (q, p + q)."""
    func = parse_func(
        f"""
func @f(%p0: buf<i64[]>, %q0: buf<i64[]>, %n: buf<i64[]>) {{
  %r, %s = schedule.while([%p0, %q0]) {{places=[output(0), arena(64)]}} : (buf<i64[]>, buf<i64[]>)
    cond(%p: buf<i64[]>, %q: buf<i64[]>) {{ {BELOW} yield %c }}
    body(%p: buf<i64[]>, %q: buf<i64[]>) {{
      {kernel("%t", "%p, %q", I64, "arena(128)", point(ADD + STORE))}
      yield %q, %t
    }}
  return %r, %s
}}"""
    )
    verify(func)
    for n in (0, 1, 2, 30, 1000):
        p, q = 0, 1
        while p < n:
            p, q = q, p + q
        r, s = run(func, np.asarray(0), np.asarray(1), np.asarray(n))
        assert (r, s) == (p, q)


def test_while_swaps_in_place() -> None:
    more = LOAD_A + "%1 = schedule.const() {value=1, dtype=i64} : i64 "
    more += "%2 = schedule.map([%0, %1]) {fn=add} : i64 " + STORE
    func = parse_func(
        f"""
func @f(%n: buf<i64[]>, %x: buf<f32[3, 5]>, %y: buf<f32[3, 5]>, %p0: buf<i64[]>) {{
  %k, %r, %s = schedule.while([%p0, %x, %y]) {{places=[arena(0), arena(64), output(1)]}}
    : (buf<i64[]>, buf<f32[3, 5]>, buf<f32[3, 5]>)
    cond(%p: buf<i64[]>, %u: buf<f32[3, 5]>, %v: buf<f32[3, 5]>) {{ {BELOW} yield %c }}
    body(%p: buf<i64[]>, %u: buf<f32[3, 5]>, %v: buf<f32[3, 5]>) {{
      {kernel("%t", "%p", I64, "arena(256)", point(more))}
      yield %t, %v, %u
    }}
  return %r, %s
}}"""
    )
    verify(func)
    x, y = randoms(3, 5), randoms(3, 5, seed=1)
    for n in (0, 1, 2, 3):
        r, s = run(func, np.asarray(n), x, y, np.asarray(0))
        np.testing.assert_array_equal((r, s), (y, x) if n % 2 else (x, y))


def test_cond_runs_one_branch() -> None:
    func = parse_func(
        f"""
func @f(%n: buf<i64[]>, %p: buf<i64[]>) {{
  {BELOW}
  %r = schedule.cond(%c) {{places=[output(0)]}} : buf<i64[]>
    then() {{
      {kernel("%t", "%p, %n", I64, "output(0)", point(ADD + STORE))}
      yield %t
    }}
    otherwise() {{ yield %p }}
  return %r
}}"""
    )
    verify(func)
    assert run(func, np.asarray(5), np.asarray(2))[0] == 7
    assert run(func, np.asarray(2), np.asarray(5))[0] == 5


def test_an_output_that_lives_elsewhere_is_copied() -> None:
    func = parse_func("func @f[N](%x: buf<f32[N, 3], strides [1, N]>) { return %x, %x }")
    x = randoms(3, 20)
    outputs = [np.zeros((20, 3), "f4") for _ in range(2)]
    contiguous = Func("f", func.body, func.dims)
    run_module(lower(contiguous), [x], [o.reshape(-1) for o in outputs], {"N": 20})
    for out in outputs:
        np.testing.assert_array_equal(out, x.T)


def test_equal_nests_share_a_kernel() -> None:
    """Names of axes and reasons do not matter; extents, tiles and code do."""
    copy = """%0 = schedule.load(%a, []) {{index=[{0}]}} : f32
              schedule.store(%b, %0, []) {{index=[{0}]}}"""
    first = nest("i: N", copy.format("i"), "8", "64")
    same = nest("z: N", copy.format("z"), "8", "64").replace("axes", 'reason="r", axes')
    other = nest("i: N", copy.format("i"), "16", "64")
    module = lower(program(["f32[N]"], ["f32[N]"], first + same + other, "N, M"))
    assert list(module.funcs) == ["test_0", "test_1", "main"]
    launches = [op for op in module.entry.ops if isinstance(op, t.Launch)]
    assert [op.kernel for op in launches] == ["test_0", "test_0", "test_1"]
    assert [str(op.grid[0]) for op in launches] == ["(N + 63) // 64"] * 3
    assert module.funcs["test_0"].dims == ("N",)


def test_what_does_not_vary_is_loaded_outside_the_loop() -> None:
    text = """%0 = schedule.load(%a, []) {index=[i]} : f32
              %1 = schedule.load(%b, []) {index=[i, j]} : f32
              %2 = schedule.map([%0]) {fn=exp} : f32
              %3 = schedule.map([%1, %2]) {fn=mul} : f32
              schedule.store(%c, %3, []) {index=[i, j]}"""
    body = nest("i: M, j: N", text, "1, 8")
    module = lower(program(["f32[M]", "f32[M, N]"], ["f32[M, N]"], body, "M, N"))
    (outer,) = [op for op in module.funcs["test_0"].ops if isinstance(op, t.For)]
    hoisted = [op for op in outer.body.ops if isinstance(op, (t.Load, t.Map))]
    assert sum(isinstance(op, t.Load) for op in hoisted) == 1
    assert sum(isinstance(op, t.Map) and op.fn.name == "exp" for op in hoisted) == 1


def test_a_result_without_a_place_is_an_error() -> None:
    func = parse_func(
        """func @f() {
             %y = schedule.kernel([]) {types=[buf<f32[]>]}
                  : buf<f32[]> body(%a: buf<f32[]>) { yield }
             return %y
           }"""
    )
    with pytest.raises(CompileError, match=r"schedule.kernel: no places were chosen"):
        lower_program(func)
