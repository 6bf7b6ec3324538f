"""Simulated control flow under masks, beside a plain Python program for each thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import SimulationError
from tessera.ir.parser import parse_func
from tests.target.simulate.kernels import kernel, run, run_on

# --- programs on one i64 variable, drawn at random ------------------------------------------------

CONSTANTS = (0, 1, 2, 3, 5, 7)


@dataclass
class Program:
    """The text of statements, and what they do to a variable in one thread."""

    text: list[str] = field(default_factory=list[str])
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def map(self, fn: str, a: str, b: str, type: str = "i64") -> str:
        name = self.name()
        self.text.append(f"{name} = target.map([{a}, {b}]) {{fn={fn}}} : {type}")
        return name


Statement = Callable[[int, int], int]


def write(program: Program, tree: Any, var: str, tid: str) -> tuple[str, Statement]:
    """Writes a statement that takes `var`; the value after it, and what it means."""
    kind = tree[0]
    if kind == "map":
        _, fn, with_tid, constant = tree
        other = tid if with_tid else f"%c{constant}"
        result = program.map(fn, var, other)
        meaning: dict[str, Callable[[int, int], int]] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b % 1009,
            "max": max,
        }
        if fn == "mul":
            result = program.map("mod", result, "%c1009")
        return result, lambda v, t: meaning[fn](v, t if with_tid else constant)
    if kind == "seq":
        steps: list[Statement] = []
        for part in tree[1]:
            var, step = write(program, part, var, tid)
            steps.append(step)

        def sequence(v: int, t: int) -> int:
            for step in steps:
                v = step(v, t)
            return v

        return var, sequence
    return write_region(program, tree, var, tid)


def write_region(
    program: Program, tree: tuple[object, ...], var: str, tid: str
) -> tuple[str, Statement]:
    kind, divisor, first, second = tree
    assert isinstance(divisor, int)
    rest = program.map("mod", tid if kind != "uniform" else "%c5", f"%c{divisor}")
    result = program.name()
    if kind in ("if", "uniform"):
        pred = program.map("eq", rest, "%c0", "bool")
        program.text.append(f"{result} = target.if({pred}) : i64 then() {{")
        a, one = write(program, first, var, tid)
        program.text.append(f"yield {a} }} otherwise() {{")
        b, two = write(program, second, var, tid)
        program.text.append(f"yield {b} }}")
        fixed = 5 if kind == "uniform" else None
        return result, lambda v, t: (one if (fixed or t) % divisor == 0 else two)(v, t)
    arg = program.name()
    if kind == "for":
        counter = program.name()
        program.text.append(
            f"{result} = target.for(%c0, {rest}, %c1, [{var}]) : i64"
            f" body({counter}: i64, {arg}: i64) {{"
        )
        a, one = write(program, first, arg, tid)
        b = program.map("add", a, counter)
        program.text.append(f"yield {b} }}")

        def loop(v: int, t: int) -> int:
            for i in range(t % divisor):
                v = one(v, t) + i
            return v

        return result, loop
    left, stop = program.name(), program.name()
    program.text.append(
        f"{result}, {stop} = target.while([{var}, {rest}]) : (i64, i64)"
        f" cond({arg}c: i64, {left}c: i64) {{"
    )
    pred = program.map("gt", f"{left}c", "%c0", "bool")
    program.text.append(f"yield {pred} }} body({arg}: i64, {left}: i64) {{")
    a, one = write(program, first, arg, tid)
    b = program.map("sub", left, "%c1")
    program.text.append(f"yield {a}, {b} }}")

    def repeat(v: int, t: int) -> int:
        for _ in range(t % divisor):
            v = one(v, t)
        return v

    return result, repeat


LEAVES = st.tuples(
    st.just("map"),
    st.sampled_from(["add", "sub", "mul", "max"]),
    st.booleans(),
    st.sampled_from(CONSTANTS),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(
            st.sampled_from(["if", "uniform", "for", "while"]),
            st.sampled_from([1, 2, 3, 5, 7]),
            inner,
            inner,
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(TREES, st.booleans())
def test_threads_go_their_own_ways(tree: Any, apart: bool) -> None:
    program = Program()
    result, meaning = write(program, tree, "%tl", "%tl")
    consts = "\n".join(
        f"%c{n} = target.const() {{value={n}, type=i64}} : i64" for n in (*CONSTANTS, 1009)
    )
    # A barrier of some of the threads makes each warp run by itself.
    barrier = "target.barrier() {id=1, threads=64}" if apart else ""
    body = f"""{consts}
    %tl = target.cast(%t) {{dtype=i64}} : i64
    {chr(10).join(program.text)}
    {barrier}
    target.store(%x0, %t, {result}, [])
    """
    y = np.zeros(64, np.int64)
    run(body, y, threads=64)

    def wrapped(v: int) -> int:
        return (v + 2**63) % 2**64 - 2**63

    assert y.tolist() == [wrapped(meaning(t, t)) for t in range(64)]


# --- corners --------------------------------------------------------------------------------------


def test_loops_of_no_and_one_turn_keep_what_they_carry() -> None:
    body = """
    %tl = target.cast(%t) {dtype=i64} : i64
    %l5 = target.const() {value=5, type=i64} : i64
    %big = target.const() {value=9223372036854775800, type=i64} : i64
    %hi = target.map([%big, %tl]) {fn=add} : i64
    %lo = target.map([%hi, %l1]) {fn=sub} : i64
    %n = target.for(%lo, %hi, %l5, [%l0]) : i64 body(%i: i64, %a: i64) {
      %c = target.map([%a, %l1]) {fn=add} : i64
      yield %c
    }
    target.store(%x0, %t, %n, [])
    """
    y = np.zeros(32, np.int64)
    run(body, y, check=True, threads=32)
    # Threads from the eighth on wrap around: their end lies before their start.
    assert y.tolist()[:8] == [1] * 8


def test_loops_that_all_threads_leave_together() -> None:
    body = """
    %l9 = target.const() {value=9, type=i64} : i64
    %tl = target.cast(%t) {dtype=i64} : i64
    %n, %sum = target.while([%l9, %tl]) : (i64, i64) cond(%a: i64, %b1: i64) {
      %go = target.map([%a, %l0]) {fn=gt} : bool
      yield %go
    } body(%c: i64, %d: i64) {
      %e = target.map([%c, %l1]) {fn=sub} : i64
      %f = target.map([%d, %c]) {fn=add} : i64
      yield %e, %f
    }
    target.store(%x0, %t, %sum, [])
    """
    y = np.zeros(32, np.int64)
    run(body, y)
    assert y.tolist() == [45 + k for k in range(32)]


def test_a_step_must_be_positive() -> None:
    body = """
    %tl = target.cast(%t) {dtype=i64} : i64
    target.for(%l0, %l1, %tl, []) body(%i: i64) { yield }
    """
    with pytest.raises(SimulationError, match=r"the step is 0; it must be positive \(thread 0"):
        run(body)


def test_pointers_are_chosen() -> None:
    body = """
    %tl = target.cast(%t) {dtype=i64} : i64
    %p = target.map([%t, %i4]) {fn=lt} : bool
    %l128 = target.const() {value=128, type=i64} : i64
    %q = target.if(%p) : ptr<global> then() {
      yield %x0
    } otherwise() {
      %r = target.ptr_add(%x0, %l128) : ptr<global>
      yield %r
    }
    target.store(%q, %t, %t, [])
    """
    y = np.zeros(64, np.int32)
    run(body, y)
    assert y[:4].tolist() == [0, 1, 2, 3]
    assert y[36:].tolist() == list(range(4, 32))


def test_pointers_to_different_arrays_do_not_meet() -> None:
    body = """
    %p = target.map([%t, %i4]) {fn=lt} : bool
    %q = target.if(%p) : ptr<global> then() {
      yield %x0
    } otherwise() {
      yield %x1
    }
    """
    with pytest.raises(SimulationError, match="pointers to %x0 and %x1 meet"):
        run(body, np.zeros(1), np.zeros(1))


def test_pointers_to_shared_memory_are_chosen() -> None:
    body = """
    %s = target.shared() {bytes=128, label="s"} : ptr<shared>
    %u = target.shared() {bytes=128, label="u"} : ptr<shared>
    target.store(%s, %t, %i1, [])
    target.store(%u, %t, %i2, [])
    %p = target.map([%t, %i4]) {fn=lt} : bool
    %q = target.if(%p) : ptr<shared> then() {
      yield %s
    } otherwise() {
      yield %u
    }
    %v = target.load(%q, %t, []) {type=i32} : i32
    target.store(%x0, %b, %v, [%p])
    target.store(%x1, %b, %v, [%not])
    """.replace("target.store(%x0", "%not = target.map([%p]) {fn=not} : bool target.store(%x0")
    x, y = np.zeros(3, np.int32), np.zeros(3, np.int32)
    run(body, x, y, grid=3)
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [2, 2, 2])


def test_a_dependent_kernel_waits_first() -> None:
    y = np.zeros(32, np.int32)
    run("target.grid_wait() target.store(%x0, %t, %t, []) target.grid_release()", y,
        info="dependent=true")  # fmt: skip
    assert y.tolist() == list(range(32))
    with pytest.raises(SimulationError, match="touches memory before grid_wait"):
        run("target.store(%x0, %t, %t, []) target.grid_wait()", y, info="dependent=true")


def test_a_trap_ends_the_kernel() -> None:
    body = "%p = target.map([%t, %i4]) {fn=eq} : bool target.trap(%p)"
    with pytest.raises(SimulationError, match=r"target.trap: .* \(thread 4 of block 0\)"):
        run(body)


def test_launches_that_the_machine_refuses() -> None:
    func = kernel("", ["%n: i64"])
    with pytest.raises(SimulationError, match="takes 1 arguments, not 0"):
        run_on(func, [], 1)
    with pytest.raises(SimulationError, match=r"%n is i64, not ndarray"):
        run_on(func, [np.zeros(3)], 1)
    run_on(func, [3], 0)
    big = kernel("%s = target.shared() {bytes=232449} : ptr<shared>", [])
    with pytest.raises(SimulationError, match="232449 bytes of shared memory; sm_90a has 232448"):
        run_on(big, [], 1)
    with pytest.raises(SimulationError, match=r"a kernel begins with target.block_info"):
        run_on(parse_func("func @k() { return }"), [], 1)
    odd = kernel("%s = target.shared() {bytes=16, align=16, offset=8} : ptr<shared>", [])
    with pytest.raises(SimulationError, match="byte 8 is not aligned to 16 bytes"):
        run_on(odd, [], 1)
    call = kernel('target.call([]) {callee="f"}', [])
    with pytest.raises(SimulationError, match="no op of a GPU kernel that can be simulated"):
        run_on(call, [], 1)
    with pytest.raises(SimulationError, match="3 blocks in clusters of 2"):
        run_on(kernel("", [], info="cluster=2"), [], 3)
