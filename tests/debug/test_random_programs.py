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

    def __init__(self, seed: int, asks: bool = False) -> None:
        self.asks = asks
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
        if self.asks:
            simple += [self.ask, self.ask_unused, self.work_out]
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

    def ask(self, depth: int) -> Program:
        """What the host says depends on how often it was asked."""
        self.count += 1
        number, kind = self.count, ts.ShapeDtypeStruct((), ts.float32)

        def answer(v: Any) -> float:
            self.told.append((number, round(float(v), 3)))
            return 0.01 * len(self.told)

        return lambda x: x + ts.io_callback(answer, kind, ts.stop_gradient(x))

    def ask_unused(self, depth: int) -> Program:
        """Nobody uses the answer."""
        ask = self.ask(depth)

        def run(x: Any) -> Any:
            ask(x * 2)
            return x

        return run

    def work_out(self, depth: int) -> Program:
        """The host computes, and is told nothing."""
        a, kind = self.random.choice([0.5, 2.0]), ts.ShapeDtypeStruct((), ts.float32)

        def work(v: Any) -> float:
            return a * float(v)

        return lambda x: x + ts.pure_callback(work, kind, ts.stop_gradient(x))

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
        self.value = run()
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


@pytest.mark.parametrize("seed", range(30, 34))
def test_the_host_is_asked_the_same(seed: int) -> None:
    """It is asked once for each time that a program gets there, also where a derivative runs a part
    of the program again, and its answers are those that everything is computed with."""
    maker = Maker(seed, asks=True)
    program = maker.program(2)
    x = ts.asarray(0.75)
    with ts.debug.disable_jit():
        wanted = maker.heard(lambda: program(x))
        value = float(maker.value)
        maker.heard(lambda: ts.jvp(program, (x,), (1.0,)))
        slope = float(maker.value[1])
    with ts.config.update(verify=True):
        assert maker.heard(lambda: ts.jit(program)(x)) == wanted
    assert float(maker.value) == pytest.approx(value, rel=1e-5)
    for f in (program, ts.jit(program), ts.checkpoint(program)):
        for mode in (lambda f: f, ts.jit):
            grad = mode(ts.grad(f))
            assert maker.heard(lambda grad=grad: grad(x)) == wanted
            assert float(maker.value) == pytest.approx(slope, rel=1e-4)
    assert maker.heard(lambda: ts.jit(lambda x: ts.jvp(program, (x,), (1.0,)))(x)) == wanted
    assert float(maker.value[1]) == pytest.approx(slope, rel=1e-4)
    twice = ts.jit(ts.grad(program))
    assert [maker.heard(lambda: twice(x)) for _ in range(2)] == [wanted] * 2


@pytest.mark.parametrize("seed", range(40, 43))
def test_examples(seed: int) -> None:
    """The host is told of each example what it is told without the others."""
    maker = Maker(seed)
    program = maker.program(2)
    xs = ts.asarray([0.75, -0.5, 2.0])
    with ts.debug.disable_jit():
        single = [maker.heard(lambda x=x: program(x)) for x in xs]
    wanted = sorted([told for one in single for told in one])
    eager = maker.heard(lambda: ts.vmap(program)(xs))
    assert sorted(eager) == wanted
    assert maker.heard(lambda: ts.jit(ts.vmap(program))(xs)) == eager
    assert maker.heard(lambda: ts.jit(ts.grad(lambda x: ts.sum(ts.vmap(program)(x))))(xs)) == eager
    assert sorted(maker.heard(lambda: ts.jit(ts.vmap(ts.grad(program)))(xs))) == wanted


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
