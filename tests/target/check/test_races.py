"""Verdicts on random kernels, held against brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.target.check.kernel import check_kernel
from tessera.target.check.report import Outcome
from tessera.target.gpu import gpu
from tests.counting import calls
from tests.ir.layers import op_classes
from tests.target.check.brute import has_race

THREADS = 64
MACHINE = gpu("sm_90a")


class Writer:
    """Writes random kernels as text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def number(self, value: int, type: str = "i32") -> str:
        name = self.name()
        self.lines.append(f"{name} = target.const() {{value={value}, type={type}}} : {type}")
        return name

    def op(self, fn: str, *args: str, type: str = "i32") -> str:
        name = self.name()
        self.lines.append(f"{name} = target.map([{', '.join(args)}]) {{fn={fn}}} : {type}")
        return name

    def index(self, known: list[str], depth: int) -> str:
        """An expression of thread, counters and size."""
        if depth == 0:
            return self.pick("%t", "%t", *known)
        fn = self.pick("add", "mul", "and", "shr", "shl", "xor", "mod", "floordiv", "min", "sub")
        a = self.index(known, depth - 1)
        if fn in ("add", "xor", "min", "sub"):
            return self.op(fn, a, self.index(known, self.random.randint(0, depth - 1)))
        limits = {"shr": (0, 4), "shl": (0, 3), "mod": (1, 9), "floordiv": (1, 9), "mul": (-2, 5)}
        low, high = limits.get(fn, (0, 63))
        return self.op(fn, a, self.number(self.random.randint(low, high)))

    def address(self, known: list[str]) -> str:
        place = self.index(known, self.random.randint(0, 3))
        return self.op("and", place, self.number(self.random.choice([63, 127])))

    def statements(self, known: list[str], depth: int, uniform: bool = True) -> None:
        for _ in range(self.random.randint(1, 4)):
            kind = self.pick("store", "load", "barrier", "warp", "if", "for", "for", "ring")
            if kind == "store":
                self.lines.append(f"target.store(%s, {self.address(known)}, %t, [])")
            elif kind == "load":
                place = self.address(known)
                self.lines.append(
                    f"{self.name()} = target.load(%s, {place}, []) {{type=i32}} : i32"
                )
            elif kind == "barrier" and uniform:
                self.lines.append("target.barrier()")
            elif kind == "warp" and uniform:
                self.lines.append("target.warp_barrier()")
            elif kind == "if" and depth:
                self.branch(known, depth, uniform)
            elif kind == "for" and depth:
                self.loop(known, depth, uniform)
            elif kind == "ring" and depth:
                self.ring(known, depth, uniform)

    def branch(self, known: list[str], depth: int, uniform: bool) -> None:
        left = self.pick("%t", *known)
        limit = self.number(self.random.randint(-1, 8 if left == "%size" else 64))
        test = self.op(self.pick("lt", "ge", "eq"), left, limit, type="bool")
        self.lines.append(f"target.if({test}) then() {{")
        self.statements(known, depth - 1, uniform and left == "%size")
        self.lines.append("yield } otherwise() {")
        if self.random.random() < 0.5:
            self.statements(known, depth - 1, uniform and left == "%size")
        self.lines.append("yield }")

    def loop(self, known: list[str], depth: int, uniform: bool) -> None:
        end = self.pick("%n", self.number(self.random.randint(0, 70), "i64"))
        step = self.number(self.random.randint(1, 3), "i64")
        counter, narrow = self.name(), self.name()
        start = self.number(self.random.randint(0, 2), "i64")
        self.lines.append(f"target.for({start}, {end}, {step}, []) body({counter}: i64) {{")
        self.lines.append(f"{narrow} = target.cast({counter}) {{dtype=i32}} : i32")
        self.statements([*known, narrow], depth - 1, uniform)
        self.lines.append("yield }")

    def ring(self, known: list[str], depth: int, uniform: bool) -> None:
        """A loop with a slot that goes round, and an offset that grows."""
        slots = self.number(self.random.randint(1, 4))
        by, one = self.number(self.random.randint(0, 64)), self.number(1)
        start, first = self.number(0), self.number(0, "i64")
        step = self.number(1, "i64")
        counter, slot, place = self.name(), self.name(), self.name()
        self.lines.append(
            f"{self.name()}, {self.name()} = target.for({first}, %n, {step}, [{start}, {by}]) : "
            f"(i32, i32) body({counter}: i64, {slot}: i32, {place}: i32) {{"
        )
        self.statements([*known, slot, place], depth - 1, uniform)
        after = self.op("mod", self.op("add", slot, one), slots)
        self.lines.append(f"yield {after}, {self.op('add', place, by)} }}")


def kernel(seed: int) -> Func:
    """A random kernel."""
    op_classes()
    writer = Writer(seed)
    writer.lines.append("%size = target.cast(%n) {dtype=i32} : i32")
    writer.statements(["%size"], 2)
    body = "\n".join(writer.lines)
    return parse_func(
        f"func @k(%n: i64) {{\ntarget.block_info() {{threads={THREADS}}}\n"
        "%t = target.thread_id() : i32\n"
        f"%s = target.shared() {{bytes=512}} : ptr<shared>\n{body}\nreturn }}"
    )


@pytest.mark.parametrize("seed", range(60))
def test_verdicts_are_right(seed: int) -> None:
    func = kernel(seed)
    report = check_kernel(func, MACHINE)
    for verdict in report.verdicts:
        if verdict.what == "bounds":
            assert verdict.outcome is Outcome.PROVED
        elif verdict.outcome is Outcome.PROVED:
            assert not any(has_race(func, THREADS, size) for size in (0, 1, 3, 5))
        elif verdict.outcome is Outcome.REFUTED:
            # A loop may have to run for some rounds first, and a branch may ask for a size.
            assert any(has_race(func, THREADS, size) for size in (3, 0, 1, 2, 4, 5, 6, 7, 8, 65))


def long_kernel(rounds: int) -> Func:
    """A kernel of `rounds` exchanges through shared memory, each between two barriers."""
    rng = np.random.default_rng(0)
    lines: list[str] = []
    for k in range(rounds):
        number = int(rng.integers(0, 8))
        lines.append(
            f"%c{k} = target.const() {{value={number * 256}, type=i32}} : i32\n"
            f"%m{k} = target.const() {{value={int(rng.integers(0, 256))}, type=i32}} : i32\n"
            f"%x{k} = target.map([%t, %m{k}]) {{fn=xor}} : i32\n"
            f"%a{k} = target.map([%x{k}, %c{k}]) {{fn=add}} : i32\n"
            f"%b{k} = target.map([%t, %c{k}]) {{fn=add}} : i32\n"
            f"%l{k} = target.load(%s, %a{k}, []) {{type=f32}} : f32\n"
            f"%u{k} = target.map([%l{k}, %l{k}]) {{fn=add}} : f32\n"
            f"%w{k} = target.map([%u{k}, %l{k}]) {{fn=mul}} : f32\n"
            "target.barrier()\n"
            f"target.store(%s, %b{k}, %w{k}, [])\n"
            "target.barrier()"
        )
    op_classes()
    return parse_func(
        "func @k() {\ntarget.block_info() {threads=256}\n%t = target.thread_id() : i32\n"
        "%s = target.shared() {bytes=8192} : ptr<shared>\n" + "\n".join(lines) + "\nreturn }"
    )


def calls_to_check(rounds: int) -> int:
    """How many Python functions the check of such a kernel calls."""
    func = long_kernel(rounds)
    count, report = calls(lambda: check_kernel(func, MACHINE))
    assert {v.outcome for v in report.verdicts} == {Outcome.PROVED}
    return count


def test_the_check_grows_with_the_kernel_and_no_faster() -> None:
    assert calls_to_check(400) < 2.2 * calls_to_check(200)
