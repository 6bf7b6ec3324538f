"""Loops and branches as PTX: run, and as few moves as there can be."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.ir.parser import parse_func
from tessera.target import gpu_ops  # noqa: F401  (its ops are parsed)
from tessera.target.gpu import gpu
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tests import ptx_interpreter
from tests.target.ptx.assembling import assemble, find_ptxas
from tests.target.ptx.evaluate import Array

MACHINE = gpu("sm_90a")
HEAD = """
  target.block_info() {threads=32}
  %t = target.thread_id() : i32
  %t64 = target.cast(%t) {dtype=i64} : i64
  %i0 = target.const() {value=0, type=i64} : i64
  %i1 = target.const() {value=1, type=i64} : i64
  %i3 = target.const() {value=3, type=i64} : i64
  %i10 = target.const() {value=10, type=i64} : i64
  %n0 = target.const() {value=0, type=i32} : i32
  %n1 = target.const() {value=1, type=i32} : i32
  %n2 = target.const() {value=2, type=i32} : i32
  %n5 = target.const() {value=5, type=i32} : i32
  %x = target.load(%p, %t, []) {type=i32} : i32
"""


def text_of(body: str) -> str:
    """A kernel that reads p, does the body, and stores %r."""
    tail = "  target.store(%q, %t, %r, [])\n  return\n}"
    args = "%p: ptr<global>, %q: ptr<global>, %n: i64"
    func = parse_func(f"func @k({args}) {{{HEAD}{body}\n{tail}")
    text = write_kernels([legalize_gpu(func, MACHINE)], MACHINE)
    if find_ptxas() is not None:
        assemble(text, MACHINE.name)
    return text


def run(body: str, n: int = 7) -> tuple[Array, str]:
    text = text_of(body)
    p = (np.arange(32, dtype=np.int32) * 7) % 11 - 3
    q = np.zeros(32, np.int32)
    ptx_interpreter.run(text, "k", 1, 32, [p, q, n])
    return q, text


X = (np.arange(32, dtype=np.int32) * 7) % 11 - 3
T = np.arange(32, dtype=np.int32)


def moves(text: str) -> int:
    return text.count("mov.b32") + text.count("mov.f32")


def test_a_sum_is_accumulated_in_place() -> None:
    got, text = run("""
  %r = target.for(%i0, %n, %i1, [%x]) : i32 body(%i: i64, %a: i32) {
    %j = target.cast(%i) {dtype=i32} : i32
    %b = target.map([%a, %j]) {fn=add} : i32
    yield %b
  }""")
    assert np.array_equal(got, X + 21)
    assert moves(text) == 1, text  # the first value


def test_swapped_values_pass_through_one_more_register() -> None:
    got, _ = run("""
  %u, %v = target.for(%i0, %i3, %i1, [%x, %t]) : (i32, i32) body(%i: i64, %a: i32, %b: i32) {
    yield %b, %a
  }
  %r = target.map([%u, %v]) {fn=sub} : i32""")
    assert np.array_equal(got, T - X)


def test_a_value_that_is_needed_later_is_not_overwritten() -> None:
    got, _ = run("""
  %u, %v = target.for(%i0, %i10, %i1, [%n0, %n1]) : (i32, i32) body(%i: i64, %a: i32, %b: i32) {
    %c = target.map([%a, %b]) {fn=add} : i32
    yield %b, %c
  }
  %r = target.map([%u, %x]) {fn=add} : i32""")
    assert np.array_equal(got, X + 55)


def test_an_address_outlives_what_it_was_made_of() -> None:
    got, text = run("""
  %u, %s = target.for(%i0, %i3, %i1, [%n0, %n0]) : (i32, i32) body(%i: i64, %k: i32, %s0: i32) {
    %k2 = target.map([%k, %n1]) {fn=add} : i32
    %k3 = target.map([%k2, %n2]) {fn=add} : i32
    %v = target.load(%p, %k3, []) {type=i32} : i32
    %s1 = target.map([%s0, %v]) {fn=add} : i32
    yield %k2, %s1
  }
  %r = target.map([%s, %u]) {fn=add} : i32""")
    assert np.array_equal(got, np.full(32, X[3:6].sum() + 3))
    assert "+12]" in text


def test_nested_loops_share_an_accumulator() -> None:
    got, text = run("""
  %r = target.for(%i0, %i3, %i1, [%x]) : i32 body(%i: i64, %a: i32) {
    %b = target.for(%i0, %n, %i1, [%a]) : i32 body(%j: i64, %c: i32) {
      %k = target.cast(%j) {dtype=i32} : i32
      %d = target.map([%c, %k]) {fn=add} : i32
      yield %d
    }
    yield %b
  }""")
    assert np.array_equal(got, X + 63)
    assert moves(text) == 2, text  # the first value, and the counter's


def test_an_inner_loop_that_reads_what_it_replaces() -> None:
    got, _ = run("""
  %r = target.for(%i0, %i3, %i1, [%x]) : i32 body(%i: i64, %a: i32) {
    %w = target.bitcast(%a) {dtype=u32} : u32
    %b = target.for(%i0, %i3, %i1, [%a]) : i32 body(%j: i64, %c: i32) {
      %e = target.bitcast(%w) {dtype=i32} : i32
      %d = target.map([%c, %e]) {fn=add} : i32
      yield %d
    }
    yield %b
  }""")
    assert np.array_equal(got, X * 64)


@pytest.mark.parametrize(("n", "count"), [(-5, 0), (0, 0), (1, 1), (7, 3), (9, 3), (10, 4)])
def test_loops_with_a_step(n: int, count: int) -> None:
    got, _ = run(
        """
  %r = target.for(%i0, %n, %i3, [%x]) : i32 body(%i: i64, %a: i32) {
    %b = target.map([%a, %n1]) {fn=add} : i32
    yield %b
  }""",
        n,
    )
    assert np.array_equal(got, X + count)


def test_lanes_leave_a_loop_at_different_times() -> None:
    got, text = run("""
  %r = target.for(%t64, %i10, %i1, [%x]) : i32 body(%i: i64, %a: i32) {
    %b = target.map([%a, %n1]) {fn=add} : i32
    yield %b
  }""")
    assert np.array_equal(got, X + np.maximum(10 - T, 0))
    assert "bra.uni $loop" not in text


def test_uniform_loops_say_so() -> None:
    _, text = run("""
  %r = target.for(%i0, %n, %i1, [%x]) : i32 body(%i: i64, %a: i32) {
    %b = target.map([%a, %x]) {fn=add} : i32
    yield %b
  }""")
    assert "bra.uni $loop" in text


def test_while() -> None:
    got, _ = run("""
  %r, %z = target.while([%x, %t]) : (i32, i32) cond(%a: i32, %b: i32) {
    %go = target.map([%b, %n0]) {fn=gt} : bool
    yield %go
  } body(%a: i32, %b: i32) {
    %c = target.map([%a, %b]) {fn=add} : i32
    %e = target.map([%b, %n2]) {fn=sub} : i32
    yield %c, %e
  }""")
    want = [x + sum(range(t, 0, -2)) for x, t in zip(X.tolist(), T.tolist(), strict=True)]
    assert np.array_equal(got, want)


BRANCH = """
  %c = target.map([%t, %n5]) {fn=lt} : bool
  %r = target.if(%c) : i32 then() {
    %a = target.load(%p, %n0, []) {type=i32} : i32
    %b = target.map([%a, %x]) {fn=add} : i32
    yield %b
  } otherwise() {
    yield %x
  }"""


def test_a_branch_gives_a_value() -> None:
    got, text = run(BRANCH)
    assert np.array_equal(got, np.where(T < 5, X + X[0], X))
    assert "bra $" in text


def test_a_cheap_branch_is_a_selection() -> None:
    cheap = BRANCH.replace("target.load(%p, %n0, []) {type=i32}", "target.map([%t]) {fn=neg}")
    got, text = run(cheap)
    assert np.array_equal(got, np.where(T < 5, X - T, X))
    assert "bra" not in text
    assert "selp" in text


def test_a_short_branch_with_effects_has_no_jump() -> None:
    got, text = run("""
  %r = target.map([%x, %n1]) {fn=add} : i32
  %c = target.map([%t, %n5]) {fn=lt} : bool
  target.if(%c) then() {
    %m = target.map([%x, %n0]) {fn=gt} : bool
    %b = target.map([%x, %n5]) {fn=sub} : i32
    target.store(%p, %t, %b, [%m])
    yield
  } otherwise() {
    target.store(%p, %t, %n2, [])
    yield
  }""")
    assert np.array_equal(got, X + 1)
    assert "bra" not in text
    assert "@!%p" in text
    assert "and.pred" in text


def test_a_long_branch_with_effects_jumps() -> None:
    stores = "\n".join(f"target.store(%p, %n{k}, %x, [])" for k in (0, 1, 2, 5) * 3)
    _, text = run(f"""
  %r = target.map([%x, %n1]) {{fn=add}} : i32
  %c = target.map([%n, %i0]) {{fn=lt}} : bool
  target.if(%c) then() {{
    {stores}
    yield
  }} otherwise() {{
    yield
  }}""")
    assert "bra.uni $done" in text
    assert "$else" not in text


def test_a_constant_condition_is_no_branch() -> None:
    got, text = run("""
  %c = target.map([%n1, %n5]) {fn=lt} : bool
  %r = target.if(%c) : i32 then() {
    yield %x
  } otherwise() {
    yield %t
  }""")
    assert np.array_equal(got, X)
    assert "bra" not in text
    assert "setp" not in text


def test_vectors_are_carried() -> None:
    got, _ = run("""
  %v = target.pack([%x, %t]) : vec<2 x i32>
  %w = target.for(%i0, %i3, %i1, [%v]) : vec<2 x i32> body(%i: i64, %a: vec<2 x i32>) {
    %b = target.extract(%a) {lane=0} : i32
    %c = target.extract(%a) {lane=1} : i32
    %d = target.map([%b, %c]) {fn=add} : i32
    %e = target.pack([%c, %d]) : vec<2 x i32>
    yield %e
  }
  %y = target.extract(%w) {lane=1} : i32
  %r = target.map([%y, %n0]) {fn=add} : i32""")
    assert np.array_equal(got, 2 * X + 3 * T)


def test_pointers_are_carried() -> None:
    got, _ = run("""
  %four = target.const() {value=4, type=i64} : i64
  %e, %r = target.for(%i0, %i3, %i1, [%p, %n0]) : (ptr<global>, i32)
      body(%i: i64, %s: ptr<global>, %a: i32) {
    %v = target.load(%s, %n2, []) {type=i32} : i32
    %b = target.map([%a, %v]) {fn=add} : i32
    %m = target.ptr_add(%s, %four) : ptr<global>
    yield %m, %b
  }""")
    assert np.array_equal(got, np.full(32, X[2:5].sum()))
