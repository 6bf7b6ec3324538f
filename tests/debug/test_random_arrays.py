"""Random programs of matrices that tell and ask the host between kernels, in loops and branches:
memory that is used again still holds what the host is to be told, with one thread and with two."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

Program = Callable[[Any], Any]
SIZE = 33
MATRIX = ts.ShapeDtypeStruct((SIZE, SIZE), ts.float32)


class Maker:
    """Makes programs, functions of a matrix to a matrix."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.told: list[np.ndarray] = []
        self.steps: list[Program] = [
            lambda x: ts.sin(x) + 1, lambda x: x @ x / SIZE, lambda x: ts.softmax(x, axis=-1),
            lambda x: x.T, lambda x: x - ts.mean(x, axis=0), lambda x: ts.pad(x[1:-1, 1:-1], 1),
            lambda x: ts.sort(x, axis=1), lambda x: x.at[1].set(x[0] * 2),
            lambda x: ts.cumulative_sum(x, axis=0) / SIZE,
            self.tell, self.tell, self.ask, self.ask, self.work_out,
            lambda x: (self.tell(ts.sum(x)), self.tell(x * 2), x)[2],
            lambda x: x + self.tell(ts.max(x, axis=0)),
            lambda x: ts.concat([x[2:], self.tell(x[:2])], axis=0),
        ]  # fmt: skip

    def note(self, x: Any) -> np.ndarray:
        self.told.append(np.array(x))
        return self.told[-1]

    def tell(self, x: Any) -> Any:
        ts.debug.callback(self.note, x)
        return x

    def ask(self, x: Any) -> Any:
        def answer(x: Any) -> np.ndarray:
            return self.note(x)[::-1] * np.float32(0.5) + np.float32(len(self.told) % 3)

        return ts.io_callback(answer, MATRIX, x)

    def work_out(self, x: Any) -> Any:
        return ts.pure_callback(lambda x: np.flipud(np.asarray(x)), MATRIX, x)

    def program(self, depth: int) -> Program:
        """Some steps, one after the other."""
        steps = [self.step(depth) for _ in range(self.random.randint(2, 4))]

        def run(x: Any) -> Any:
            for step in steps:
                x = step(x)
            return x

        return run

    def step(self, depth: int) -> Program:
        if not depth or self.random.random() > 0.4:
            return self.random.choice(self.steps)
        body, count = self.program(depth - 1), self.random.randint(1, 3)

        def scan(x: Any) -> Any:
            step: Any = lambda c, a: (body(c) + a, c[0])  # noqa: E731
            last, rows = ts.scan(step, x, ts.arange(count, dtype=ts.float32) * 0.1)
            return last + ts.sum(rows, axis=0)

        return self.random.choice([
            lambda x: ts.fori_loop(0, count, lambda i, c: body(c) * 0.5, x),
            lambda x: ts.cond(x[0, 0] > 0.3, body, lambda x: x, x),
            scan,
            ts.jit(body),
        ])  # fmt: skip


@pytest.mark.parametrize("seed", [4, 5, 11])
def test_the_host_is_told_what_was_computed(seed: int) -> None:
    maker = Maker(seed)
    program = maker.program(2)
    x = ts.asarray(np.random.default_rng(seed).random((SIZE, SIZE)).astype(np.float32))
    with ts.debug.disable_jit():
        value = program(x)
    wanted = list(maker.told)
    assert wanted
    for threads in (1, 2):
        with ts.config.update(threads=threads):
            compiled = ts.jit(program)
            for _ in range(2):
                maker.told.clear()
                found = compiled(x)
                assert len(maker.told) == len(wanted)
                for a, b in zip([*maker.told, found], [*wanted, value], strict=True):
                    np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)
