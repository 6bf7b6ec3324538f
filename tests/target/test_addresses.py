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
from tessera.runtime import codegen
from tessera.target import ops as t
from tessera.target.llvm.addresses import MANY, NOTHING, Addresses, addresses
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
    return func, [op for op in walk(func.body) if isinstance(op, kinds)], addresses(func, 512)


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
    _, ops, found = found_in(rows(MANY))
    first, *others = ops
    assert found.behind == {op: (first, 40 * k) for k, op in enumerate(others, 1)}
    # The sums of the others are not written.
    assert sorted([op.fn.name for op in found.dead if isinstance(op, t.Map)]) == [
        *["add"] * (MANY - 1), *["mul"] * (MANY - 1)
    ]  # fmt: skip
    assert not found.opaque


def test_few_are_written_as_they_are() -> None:
    assert found_in(rows(MANY - 1))[2] == NOTHING


def test_long_rows_are_written_as_they_are() -> None:
    wide = rows(MANY).replace("{type=f32} : f32", "{type=vec<64 x f32>} : vec<64 x f32>")
    assert found_in(wide)[2] == NOTHING
    narrow = wide.replace("64 x", "16 x")
    assert len(found_in(narrow)[2].behind) == MANY - 1
    # They go along with short ones.
    _, ops, found = found_in(rows(MANY) + "  %y = target.load(%p, %s1, []) {type=vec<64 x f32>}"
                             " : vec<64 x f32>\n")  # fmt: skip
    assert found.behind[ops[-1]] == (ops[0], 40)


def test_bytes_and_elements_are_told_apart() -> None:
    others = """  %y = target.load(%p, %s1, []) {type=f64} : f64
  target.prefetch(%p, %s1) {bytes=64}
  %z = target.load(%q, %s1, []) {type=f32} : f32
"""
    _, ops, found = found_in(rows(MANY) + others)
    assert set(found.behind) == set(ops[1:MANY])
    bytes = """  %four = target.const() {value=4, type=i64} : i64
  %a = target.map([%s1, %four]) {fn=mul} : i64
  %b = target.map([%a, %ten]) {fn=add} : i64
  target.prefetch(%p, %b) {bytes=64}
"""
    _, ops, found = found_in(rows(MANY) + bytes)
    assert found.behind[ops[-1]] == (ops[0], 50)


def test_what_others_use_is_written() -> None:
    store = "  target.store(%q, %s1, %x0, []) {}\n"
    _, _, found = found_in(rows(MANY) + store)
    second = [op for op in found.dead if isinstance(op, t.Map)]
    assert len(second) == 2 * (MANY - 2)


def test_each_block_has_its_own() -> None:
    body = f"""  %a = target.load(%p, %lo, []) {{type=f32}} : f32
  target.for(%lo, %hi, %one, []) body(%i: i64) {{
    %b = target.load(%p, %lo, []) {{type=f32}} : f32
{rows(MANY, "    ")}    yield
  }}
"""
    _, ops, found = found_in(body)
    assert {lead for lead, _ in found.behind.values()} == {ops[2]}
    assert set(found.behind) == set(ops[3:])


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
    body = f"""{rows(MANY)}  %big = target.const() {{value={half}, type=i64}} : i64
  %a = target.map([%s0, %big]) {{fn=add}} : i64
  %y = target.load(%p, %a, []) {{type=f32}} : f32
"""
    _, ops, found = found_in(body)
    assert found.behind[ops[-1]] == (ops[0], 0)
    text = write_module(module_of(body), machine("x86-64"), "run")
    with config.update(cache_dir=""):
        codegen.assembly_text(codegen.Source(text, machine("x86-64"), "test"))


STREAMS = """  %v = target.const() {value=1.0, type=vec<16 x f32>} : vec<16 x f32>
  target.for(%lo, %hi, %one, []) body(%i: i64) {
    target.store(%p, %i, %v, []) {streaming=1}
"""


def stores(count: int, by: int) -> str:
    """Vectors that are stored past the caches, so many elements apart."""
    text = STREAMS
    for k in range(1, count):
        text += f"""    %by{k} = target.const() {{value={k * by}, type=i64}} : i64
    %b{k} = target.map([%i, %by{k}]) {{fn=add}} : i64
    target.store(%p, %b{k}, %v, []) {{streaming=1}}
"""
    return text + "    yield\n  }\n"


@pytest.mark.parametrize(("by", "together"), [(16, 7), (32, 7), (8, 0), (0, 7)])
def test_stores_past_the_caches_are_tested_together(by: int, together: int) -> None:
    body = stores(MANY, by)
    _, ops, found = found_in(body)
    assert found.streams == ({ops[0]: ops[1:]} if together else {})
    text = write_module(module_of(body), machine("x86-64-v4"), "run")
    assert text.count("!nontemporal !0") == MANY
    assert text.count("ptrtoint") == MANY - together


def test_a_read_between_parts_stores_past_the_caches() -> None:
    read = "    %x{} = target.load(%q, %i, []) {{type=f32}} : f32\n"
    body = stores(MANY, 16)
    assert found_in(body)[2].followers
    cut = body.replace("    %by4", read.format(4) + "    %by4")
    _, ops, found = found_in(cut)
    assert list(found.streams) == [ops[0], ops[5]]
    assert [len(some) for some in found.streams.values()] == [3, 3]


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
