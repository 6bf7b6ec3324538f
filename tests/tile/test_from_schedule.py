"""Schedule programs lowered to Tile IR: verified, printed and parsed, and run against NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tessera.dtypes import real_of
from tessera.errors import CompileError
from tessera.ir import intexpr
from tessera.ir.core import Func, Module
from tessera.ir.parser import parse_func, parse_module
from tessera.ir.verify import verify, verify_module
from tessera.ir.walk import walk
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
