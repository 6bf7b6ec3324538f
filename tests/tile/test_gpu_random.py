"""Random programs for a GPU: the layers above Target IR agree.

Besides programs over all families there are those over rows: statistics of rows, what is computed
from them, and sums of columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.graph import interp as graph_interp
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.rearrange import broadcast
from tessera.ir.intexpr import sym
from tessera.schedule import heuristics_gpu, join_columns
from tessera.schedule.rebuild import kernels
from tests.differential.levels import compare
from tests.differential.programs import random_program
from tests.schedule.gpu import MACHINE, Lowered, check, lower_graph, runs
from tests.schedule.lowering import typed

BATCH = 10
SMALL = replace(MACHINE, multiprocessors=1)


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + BATCH):
        symbolic = seed % 3 == 0
        program = random_program(seed, symbolic)
        graph = program.graph(symbolic)
        inputs = program.arrays(np.random.default_rng(seed))
        dims = {f"n{size}": size for x in program.inputs for size in x.shape}
        dims = {k: v for k, v in dims.items() if symbolic and k in graph.dims}
        expected = graph_interp.run(graph, inputs, dims)
        for found in runs(lower_graph(graph), inputs, expected, dims):
            compare(found, expected, f"seed {seed}")


class Rows:
    """A random program over the rows and columns of matrices."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, items: list[Any]) -> Any:
        return self.random.choice(items)

    def wide(self, pool: list[Any], rows: list[Any], columns: list[Any]) -> Any:
        """A matrix from others, and from numbers of rows and columns."""
        x, y = self.pick(pool), self.pick(pool)
        kind = self.random.randrange(4)
        if kind == 0:
            return e.tanh(self.pick([e.add, e.sub, e.mul])(x, y))
        if kind == 1 and rows:
            return e.sub(x, broadcast(self.pick(rows), x.shape, (0,)))
        if kind == 2 and columns:
            return e.mul(x, broadcast(self.pick(columns), x.shape, (1,)))
        return self.pick([e.neg, e.sin, e.square])(e.tanh(x))

    def program(self, both: bool) -> Callable[..., list[Any]]:
        """Work on rows; with `both`, certainly some that uses columns, and a sum of columns."""

        def run(x: Any, y: Any, w: Any, s: Any) -> list[Any]:
            pool, rows, columns, outputs = [x, y], [s], [w], list[Any]()
            for _ in range(self.random.randrange(3, 9)):
                kind = self.random.randrange(6)
                if kind <= 1:
                    found = self.pick([red.sum_, red.max_])(self.wide(pool, rows, columns), (1,))
                    rows.append(e.tanh(found))
                elif kind == 2:
                    found = red.sum_(self.wide(pool, rows, columns), (0,))
                    columns.append(e.sin(found))
                elif kind == 3 and len(rows) > 1:
                    rows.append(e.mul(self.pick(rows), self.pick(rows)))
                else:
                    pool.append(self.wide(pool, rows, columns))
                if self.random.random() < 0.3:
                    outputs.append(self.pick([pool[-1], rows[-1], columns[-1]]))
            if both:
                outputs.append(red.sum_(self.wide(pool, rows, columns), (0,)))
                outputs.append(e.mul(self.wide(pool, rows, []), broadcast(w, x.shape, (1,))))
            given = {id(v) for v in (x, y, w, s)}
            made = {id(v): v for v in (*outputs, pool[-1], rows[-1], columns[-1])}
            return [v for k, v in made.items() if k not in given] or [e.neg(x)]

        return run


def check_rows(seed: int, both: bool = False, **options: Any) -> Lowered:
    writer = Rows(seed)
    count, width = writer.pick([16, 64] if both else [1, 4, 16, 7]), writer.pick([1, 5, 32, 130])
    shape = (sym("S"), width) if seed % 5 == 0 and not both else (count, width)
    dims = {} if shape[0] == count else {"S": count}
    dtype = writer.pick([dt.float32, dt.float64])
    state = writer.random.getstate()

    def fn(*args: Any) -> list[Any]:
        writer.random.setstate(state)
        return writer.program(both)(*args)

    types = [typed(*shape, dtype=dtype)] * 2 + [typed(width, dtype=dtype)]
    types.append(typed(shape[0], dtype=dtype))
    return check(fn, *types, dims=dims, length=2000, factor=50.0, **options)


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_random_rows(first: int) -> None:
    for seed in range(first, first + BATCH):
        check_rows(seed)


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_random_rows_in_small_steps(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics_gpu, "MAX_ROW", 16)
    monkeypatch.setattr(heuristics_gpu, "ROW_STEP", 16)
    monkeypatch.setattr(join_columns, "LONGEST", 0)
    for seed in range(first, first + BATCH):
        check_rows(seed)


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_random_rows_joined_with_columns(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_columns, "SHORTEST", 2)
    monkeypatch.setattr(join_columns, "MIN_CHUNK", 2)
    found = [check_rows(seed, both=True, machine=SMALL) for seed in range(first, first + BATCH)]
    assert any(kernel.joined for one in found for kernel in kernels(one.schedule.body))
