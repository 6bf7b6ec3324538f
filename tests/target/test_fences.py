"""Fences in chains of integer operations, and what is computed once in a block."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.ir.types import ScalarType
from tessera.runtime import codegen
from tessera.target.llvm.fences import LIMITS, fence_type
from tessera.target.machine import machine, supported_levels
from tessera.target.types import VecType

Array = npt.NDArray[Any]

LEVELS = [level for level in ("x86-64", "x86-64-v3", "x86-64-v4") if level in supported_levels()]

FENCE = re.compile(r"(%v\d+) = call (<[^>]*>) @llvm.arithmetic.fence\.\w+\(<[^>]*> (%v\d+)\)")


def lowered(func: Any, level: str, *args: Array) -> Lowered:
    return Lowered(ts.make_graph(func)(*[ts.asarray(x) for x in args]), machine(level))


def mixed(x: Any, y: Any, rounds: int = 5) -> Any:
    """A long chain of what fences stand between, and of what they do not part."""
    for k in range(1, rounds + 1):
        x = (x << k) + y
        x = (x ^ (x >> 3)) * 5
        y = ts.where(x > y, ts.minimum(x, y) - k, (y & 77) | (x ^ 3))
    return x + y


def shorter(x: Any, y: Any) -> Any:
    """One that is compiled sooner, and has fences wherever the long one has some."""
    return mixed(x, y, 3)


def inputs(dtype: str, count: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(count)
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 3, count), dtype=dtype, endpoint=True)
    return x, y


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("level", LEVELS)
def test_results_are_the_same(level: str, dtype: str) -> None:
    for count in (1, 2, 3, 6, 8, 20, 33, 104):
        args = inputs(dtype, count)
        with config.update(cache_dir=""):
            (found,) = lowered(shorter, level, *args).executable().run(list(args))
        want = ts.make_graph(shorter)(*[ts.asarray(x) for x in args])
        with np.errstate(all="ignore"):
            assert np.array_equal(np.asarray(found), interpreted(want, args)), count


def interpreted(graph: Any, args: tuple[Array, ...]) -> Array:
    from tessera.graph.interp import run as run_graph

    (found,) = run_graph(graph, list(args))
    return np.asarray(found)


@pytest.mark.unchecked
@pytest.mark.parametrize("level", LEVELS)
def test_they_are_no_instructions(level: str) -> None:
    x, y = inputs("u4", 1024)
    text = lowered(mixed, level, x, y).llvm
    assert FENCE.search(text)
    plain = FENCE.sub(r"\1 = bitcast \2 \3 to \2", text)
    sources = [codegen.Source(one, machine(level), "test", passes="few") for one in (text, plain)]
    with_, without = [codegen.assembly_text(source) for source in sources]
    count = len(re.findall(r"^\t[a-z]", without, re.MULTILINE))
    assert len(re.findall(r"^\t[a-z]", with_, re.MULTILINE)) <= 1.02 * count


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", ["i1", "i2", "f4", "f8"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_square_is_turned_by_one_instruction_a_step(level: str, dtype: str) -> None:
    x = np.arange(128 * 192, dtype="f8").reshape(128, 192).astype(dtype)
    text = lowered(lambda x: x.T * 2, level, x).llvm
    plain = FENCE.sub(r"\1 = bitcast \2 \3 to \2", text)
    sources = [codegen.Source(one, machine(level), "test", passes="few") for one in (text, plain)]
    with_, without = [codegen.assembly_text(source) for source in sources]
    moves = re.compile(r"^\tv?(?:unpck|punpck|shuf|perm|insert|pshuf|blend)", re.MULTILINE)
    shuffles = len(re.findall(r" = shufflevector .* x i32>", text))
    assert 0 < len(moves.findall(with_)) <= max(shuffles, len(moves.findall(without)))


def test_machines_that_have_none() -> None:
    x, y = inputs("u4", 1024)
    assert "arithmetic.fence" not in lowered(mixed, "aarch64", x, y).llvm


def test_types_that_have_none() -> None:
    assert fence_type(VecType(16, ts.uint32)) == ("<16 x float>", "v16f32")
    assert fence_type(VecType(16, ts.bfloat16)) == ("<8 x float>", "v8f32")
    assert fence_type(VecType(3, ts.int64)) == ("<3 x double>", "v3f64")
    assert fence_type(VecType(16, ts.float32)) == ("<16 x float>", "v16f32")
    for type in (VecType(16, ts.bool), VecType(3, ts.int16)):
        assert fence_type(type) is None
    assert fence_type(VecType(1, ts.int64)) is None
    assert fence_type(ScalarType(ts.int32)) is None


@pytest.mark.parametrize("lanes", [*range(2, 40), 60, 64, 104, 250, 1000])
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_llvm_takes_all_of_them(level: str, lanes: int) -> None:
    for dtype in (ts.int8, ts.int16, ts.int32, ts.int64):
        found = fence_type(VecType(lanes, dtype))
        if found is None:
            continue
        floats, suffix = found
        vector = f"<{lanes} x i{8 * dtype.itemsize}>"
        text = f"""define void @f(ptr %p) {{
  %a = load {vector}, ptr %p, align 1
  %b = mul {vector} %a, %a
  %c = bitcast {vector} %b to {floats}
  %d = call {floats} @llvm.arithmetic.fence.{suffix}({floats} %c)
  %e = bitcast {floats} %d to {vector}
  %g = add {vector} %e, %a
  store {vector} %g, ptr %p, align 1
  ret void
}}
"""
        codegen.assembly_text(codegen.Source(text, machine(level), "test", passes="few"))


def twice(x: Any, y: Any) -> Any:
    return ((x + y) << 3) ^ ((x + y) >> 5)


@pytest.mark.unchecked
def test_one_value_a_block() -> None:
    x, y = inputs("u4", 1024)
    text = lowered(twice, "x86-64", x, y).llvm
    body = re.findall(r"^body\d+:\n((?:  .*\n)*)", text, re.MULTILINE)[0]
    assert len(re.findall(r"= add <", body)) == 1
    assert LIMITS["add"] < LIMITS["xor"]
