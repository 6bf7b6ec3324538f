"""Random programs that tell the host: compiled, differentiated and run op by op they say the same
as Python does, in the same order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tests.fake_gpu import fake_gpu

Program = Callable[[Any], Any]


class Maker:
    """Makes programs, functions of one number to one number, out of random statements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.told: list[tuple[int, float]] = []
        self.count = 0

    def program(self, depth: int) -> Program:
        """Some statements, one after the other."""
        steps = [self.statement(depth) for _ in range(self.random.randint(1, 3))]

        def run(x: Any) -> Any:
            for step in steps:
                x = step(x)
            return x

        return run

    def statement(self, depth: int) -> Program:
        """One statement."""
        simple = [self.tell, self.compute, self.tell_unused]
        nested = [self.cond, self.fori, self.scan, self.call, self.checkpoint, self.while_]
        return self.random.choice(simple + (nested * 2 if depth else []))(depth)

    def tell(self, depth: int) -> Program:
        self.count += 1
        number = self.count

        def run(x: Any) -> Any:
            ts.debug.callback(lambda v: self.told.append((number, round(float(v), 3))), x)
            return x

        return run

    def tell_unused(self, depth: int) -> Program:
        """What is computed is used by nobody but the host."""
        tell, a = self.tell(depth), self.random.choice([0.5, 2.0])

        def run(x: Any) -> Any:
            tell(ts.sin(x) * a)
            return x

        return run

    def compute(self, depth: int) -> Program:
        a, b = self.random.choice([0.5, 1.0, -1.0]), self.random.choice([0.0, 1.0])
        return lambda x: x * a + b

    def cond(self, depth: int) -> Program:
        then, other = self.program(depth - 1), self.program(depth - 1)
        return lambda x: ts.cond(x > 0, then, other, x)

    def fori(self, depth: int) -> Program:
        body, count = self.program(depth - 1), self.random.randint(0, 2)
        return lambda x: ts.fori_loop(0, count, lambda i, v: body(v + i), x)

    def scan(self, depth: int) -> Program:
        body, count = self.program(depth - 1), self.random.randint(1, 2)
        reverse = self.random.random() < 0.5

        def run(x: Any) -> Any:
            xs = ts.arange(count, dtype=ts.float32)
            step: Any = lambda c, y: (body(c + y), c)  # noqa: E731
            carry, seen = ts.scan(step, x, xs, reverse=reverse)
            return carry + ts.sum(seen)

        return run

    def while_(self, depth: int) -> Program:
        test, compute = self.tell(depth), self.compute(depth)

        def run(x: Any) -> Any:
            # Reverse mode cannot pass through: the value goes on without it.
            start = (0, ts.stop_gradient(x))
            going: Any = lambda c: (test(c[1]), c[0] < 2)[1]  # noqa: E731
            return x + ts.while_loop(going, lambda c: (c[0] + 1, compute(c[1])), start)[1]

        return run

    def call(self, depth: int) -> Program:
        return ts.jit(self.program(depth - 1))

    def checkpoint(self, depth: int) -> Program:
        return ts.checkpoint(self.program(depth - 1))

    def heard(self, run: Callable[[], Any]) -> list[tuple[int, float]]:
        """What the host is told."""
        self.told.clear()
        run()
        return list(self.told)


@pytest.mark.parametrize("seed", range(9))
def test_the_host_is_told_the_same(seed: int) -> None:
    maker = Maker(seed)
    program = maker.program(2)
    x = ts.asarray(0.75)
    with ts.debug.disable_jit():
        wanted = maker.heard(lambda: program(x))
    assert maker.heard(lambda: program(x)) == wanted
    with ts.config.update(verify=True):
        assert maker.heard(lambda: ts.jit(program)(x)) == wanted
    assert maker.heard(lambda: ts.jit(ts.grad(program))(x)) == wanted
    assert maker.heard(lambda: ts.grad(program)(x)) == wanted
    assert maker.heard(lambda: ts.jit(lambda x: ts.jvp(program, (x,), (1.0,)))(x)) == wanted


@pytest.mark.parametrize("seed", [20, 21, 22])
def test_on_a_gpu(seed: int) -> None:
    maker = Maker(seed)
    program = maker.program(2)
    with ts.debug.disable_jit():
        wanted = maker.heard(lambda: program(ts.asarray(0.75)))
    with fake_gpu(), ts.device("cuda:0"):
        x = ts.asarray(0.75)
        assert maker.heard(lambda: ts.jit(program)(x)) == wanted
        assert maker.heard(lambda: ts.jit(ts.grad(program))(x)) == wanted
