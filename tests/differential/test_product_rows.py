"""What follows a product and is long: row by row, from scratch memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.dtypes import DType, bfloat16, complex64, float16, float32, float64
from tessera.ir.walk import walk
from tessera.target.machine import machine
from tessera.tile.scratch_ops import Scratch
from tests.differential.levels import check_levels, graph_of, values
from tests.tolerance import assert_close


def gelu(x: Any, y: Any, b: Any) -> Any:
    return ts.nn.gelu(x @ y + b)


def rooms(lowered: Lowered) -> int:
    """How many tiles of products go through scratch memory."""
    funcs = lowered.tile.funcs.values()
    return sum(isinstance(op, Scratch) for func in funcs for op in walk(func.body))


@pytest.mark.parametrize("shape", [(6, 8, 64), (13, 5, 70), (25, 33, 17), (2, 3, 1), (1, 64, 64)])
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=str)
def test_at_all_levels(shape: tuple[int, int, int], dtype: DType) -> None:
    m, k, n = shape
    shapes = [(m, k), (k, n), (n,)]
    graph = graph_of(gelu, shapes, dtype)
    lowered = check_levels(graph, values(shapes, dtype), machine=machine("x86-64-v3"))
    assert (rooms(lowered) > 0) is (m > 1 and n > 1)


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "host"])
def test_residuals_columns_and_batches(level: str) -> None:
    def fn(x: Any, y: Any, c: Any, r: Any) -> Any:
        z = x @ y
        return ts.tanh(ts.erf(z + c)) * r + z, ts.tanh(z) * ts.sin(c)

    rng = np.random.default_rng(3)
    x, y, r = rng.normal(size=(3, 31, 7)), rng.normal(size=(3, 7, 45)), rng.normal(size=(3, 31, 45))
    c = rng.normal(size=(31, 1))
    graph = ts.make_graph(fn)(x, y, c, r)
    with config.update(cache_dir=""):
        lowered = Lowered(graph, machine(level))
        found = lowered.executable().run([x, y, c, r])
    assert rooms(lowered) > 0
    z = x @ y
    erf = np.vectorize(math.erf)
    assert_close(found[0], np.tanh(erf(z + c)) * r + z, factor=20)
    assert_close(found[1], np.tanh(z) * np.sin(c), factor=20)


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x, y, b: ts.maximum(x @ y + b, 0), float32),
        (lambda x, y, b: ts.maximum(x @ y + b, 0), bfloat16),
        (lambda x, y, b: ts.maximum(x @ y + b, 0), float16),
        (lambda x, y, b: ts.sqrt(ts.abs(x @ y + b)), float32),
        (lambda x, y, b: ts.exp(x @ y + b), complex64),
    ],
)
def test_what_is_short_stays_in_registers(fn: Any, dtype: DType) -> None:
    graph = graph_of(fn, [(24, 32), (32, 64), (64,)], dtype)
    assert rooms(Lowered(graph, machine("x86-64-v4"))) == 0


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=str)
def test_an_exponential_is_long(dtype: DType) -> None:
    graph = graph_of(lambda x, y, b: ts.exp(x @ y + b), [(24, 32), (32, 64), (64,)], dtype)
    assert rooms(Lowered(graph, machine("x86-64-v4"))) > 0


def test_the_code_is_written_once() -> None:
    graph = graph_of(gelu, [(24, 32), (32, 64), (64,)])
    text = Lowered(graph, machine("x86-64-v4")).llvm
    assert text.count("fdiv") <= 2
