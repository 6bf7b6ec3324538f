"""Addresses that follow from others, in LLVM text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.ir.core import Func, Module, Op
from tessera.ir.parser import parse_module
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.llvm.addresses import MANY, Addresses, addresses
from tessera.target.llvm.writer import write_module
from tessera.target.machine import machine, supported_levels
from tessera.target.prefetch_ops import Prefetch

Array = npt.NDArray[Any]

LEVELS = [level for level in ("x86-64", "x86-64-v3", "x86-64-v4") if level in supported_levels()]

HEAD = """func @f(%p: ptr<global>, %q: ptr<global>, %lo: i64, %hi: i64) {
  %one = target.const() {value=1, type=i64} : i64
  %two = target.const() {value=2, type=i64} : i64
  %ten = target.const() {value=10, type=i64} : i64
"""
TAIL = """  return
}
func @main(%p: ptr<global>, %q: ptr<global>, %n: i64) {
  %zero = target.const() {value=0, type=i64} : i64
  target.call([%p, %q, %zero, %n]) {callee="f"}
  return
}
"""


def module_of(body: str) -> Module:
    return Module(parse_module(HEAD + body + TAIL).funcs, "main")


def found_in(body: str) -> tuple[Func, list[Op], Addresses]:
    func = module_of(body).funcs["f"]
    kinds = (t.Load, t.Store, Prefetch)
    return func, [op for op in walk(func.body) if isinstance(op, kinds)], addresses(func)


def rows(count: int, indent: str = "  ") -> str:
    """Accesses of rows that begin ten elements apart, each sum of its own."""
    lines: list[str] = []
    for k in range(count):
        lines += [
            f"%k{k} = target.const() {{value={k}, type=i64}} : i64",
            f"%r{k} = target.map([%lo, %k{k}]) {{fn=add}} : i64",
            f"%s{k} = target.map([%r{k}, %ten]) {{fn=mul}} : i64",
            f"%x{k} = target.load(%p, %s{k}, []) {{type=f32}} : f32",
        ]
    return "".join(f"{indent}{line}\n" for line in lines)


def test_rows_follow_from_the_first_one() -> None:
    _, ops, found = found_in(rows(3))
    first, second, third = ops
    assert found.behind == {second: (first, 40), third: (first, 80)}
    # The sums of the others are not written.
    assert sorted([op.fn.name for op in found.dead if isinstance(op, t.Map)]) == [
        *("add", "add", "mul", "mul")
    ]
    assert not found.opaque


def test_bytes_and_elements_are_told_apart() -> None:
    body = """  %x = target.load(%p, %lo, []) {type=f32} : f32
  %y = target.load(%p, %lo, []) {type=f64} : f64
  target.prefetch(%p, %lo) {bytes=64}
  %z = target.load(%q, %lo, []) {type=f32} : f32
"""
    assert not found_in(body)[2].behind
    body = """  %x = target.load(%p, %lo, []) {type=f32} : f32
  %four = target.const() {value=4, type=i64} : i64
  %a = target.map([%lo, %four]) {fn=mul} : i64
  %b = target.map([%a, %ten]) {fn=add} : i64
  target.prefetch(%p, %b) {bytes=64}
"""
    _, (load, fetch), found = found_in(body)
    assert found.behind == {fetch: (load, 10)}


def test_what_others_use_is_written() -> None:
    body = rows(2) + "  target.store(%q, %s1, %x0, []) {}\n"
    _, ops, found = found_in(body)
    assert set(found.behind) == {ops[1]}
    assert not found.dead


def test_each_block_has_its_own() -> None:
    body = f"""  %a = target.load(%p, %lo, []) {{type=f32}} : f32
  target.for(%lo, %hi, %one, []) body(%i: i64) {{
    %b = target.load(%p, %lo, []) {{type=f32}} : f32
{rows(2, "    ")}    yield
  }}
"""
    _, ops, found = found_in(body)
    assert found.behind == {ops[3]: (ops[2], 40)}


def test_many_are_opaque_in_loops_only() -> None:
    assert not found_in(rows(MANY))[2].opaque
    for count in (MANY - 1, MANY):
        body = f"  target.for(%lo, %hi, %one, []) body(%i: i64) {{\n{rows(count)}  yield\n  }}\n"
        _, ops, found = found_in(body)
        assert found.opaque == ({ops[0]} if count == MANY else set())
    text = write_module(module_of(body), machine("x86-64-v4"), "run")
    assert text.count("call ptr @llvm.launder.invariant.group.p0") == 1
    assert len(re.findall(r"getelementptr i8, ptr %v\d+, i64 \d+", text)) == MANY - 1


def test_sums_that_wrap_around_are_the_same_addresses() -> None:
    half = 1 << 62
    body = f"""  %big = target.const() {{value={half}, type=i64}} : i64
  %a = target.map([%lo, %big]) {{fn=add}} : i64
  %x = target.load(%p, %lo, []) {{type=f32}} : f32
  %y = target.load(%p, %a, []) {{type=f32}} : f32
"""
    _, (first, second), found = found_in(body)
    assert found.behind == {second: (first, 4 * half)}  # 0 of 64 bits
    write_module(module_of(body), machine("x86-64"), "run")


STREAMS = """  %v = target.const() {value=1.0, type=vec<16 x f32>} : vec<16 x f32>
  target.for(%lo, %hi, %one, []) body(%i: i64) {
    target.store(%p, %i, %v, []) {streaming=true}
"""


@pytest.mark.parametrize(("by", "together"), [(16, 1), (32, 1), (8, 0), (0, 1)])
def test_stores_past_the_caches_are_tested_together(by: int, together: int) -> None:
    body = f"""{STREAMS}    %by = target.const() {{value={by}, type=i64}} : i64
    %b = target.map([%i, %by]) {{fn=add}} : i64
    target.store(%p, %b, %v, []) {{streaming=true}}
    yield
  }}
"""
    _, (first, second), found = found_in(body)
    assert found.streams == ({first: [second]} if together else {})
    text = write_module(module_of(body), machine("x86-64-v4"), "run")
    assert text.count("!nontemporal") == 2
    assert text.count("ptrtoint") == 2 - together


def test_a_read_between_parts_stores_past_the_caches() -> None:
    body = f"""{STREAMS}    %x = target.load(%q, %i, []) {{type=f32}} : f32
    target.store(%p, %i, %v, []) {{streaming=true}}
    yield
  }}
"""
    assert not found_in(body)[2].streams


def turned(x: Any) -> Any:
    return x.T * 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(2048, 2048), (1024, 1040), (1003, 2050)])
def test_large_transposes(level: str, shape: tuple[int, int]) -> None:
    """They go past the caches, from all offsets of a line."""
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, shape).astype("f4")
    graph = ts.make_graph(turned)(ts.asarray(x))
    with config.update(cache_dir=""):
        (found,) = Lowered(graph, machine(level)).executable().run([x])
    assert np.array_equal(np.asarray(found), turned(x))
