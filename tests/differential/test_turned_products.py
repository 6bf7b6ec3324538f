"""Blocks that run along their columns in memory are loaded by lines and turned: where arrays of few
rows and columns are transposed, and in small products of an operand that runs along the depth."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast, transpose
from tessera.ir.walk import walk
from tessera.target.machine import machine, supported_levels
from tessera.target.ops import Gather
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import nests_of, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
SQUARES = "squares turned"


def run(fn: Callable[..., Any], types: list[Any], level: str = "x86-64-v4") -> Any:
    graph = traced(fn, *types)
    rng = np.random.default_rng(zlib.crc32(str(graph).encode()))
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    return check_levels(graph, inputs, machine=machine(level))


def matrices(
    form: str, sizes: tuple[int, int, int], dtype: dt.DType = dt.float32, count: int = 3
) -> list[Any]:
    """The types of some products' operands; `t` lies with its depth in front, or behind."""
    rows, columns, depth = sizes
    left = (rows, depth) if form[0] == "n" else (depth, rows)
    right = (depth, columns) if form[1] == "n" else (columns, depth)
    return [typed(count, *left, dtype=dtype), typed(count, *right, dtype=dtype)]


def products(form: str, x: Any, y: Any) -> Any:
    axes = ((2 if form[0] == "n" else 1,), (1 if form[1] == "n" else 2,))
    return dot_general(x, y, axes, ((0,), (0,)))


def is_turned(lowered: Any) -> bool:
    return any(SQUARES in nest.reason for nest in nests_of(lowered.schedule))


def gathers(lowered: Any) -> int:
    code = [op for func in lowered.target.funcs.values() for op in walk(func.body)]
    return sum(isinstance(op, Gather) for op in code)


SIZES = [
    (2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 7, 6), (7, 5, 9), (8, 8, 8), (3, 12, 5), (16, 16, 16),
    (17, 9, 19), (32, 13, 3), (4, 24, 4), (6, 17, 11), (8, 16, 32),
]  # fmt: skip


@every_pair(
    ("level", LEVELS),
    ("form", ["nt", "tt"]),
    ("sizes", SIZES),
)
def test_products(sizes: tuple[int, int, int], form: str, level: str) -> None:
    lowered = run(lambda x, y: products(form, x, y), matrices(form, sizes), level)
    if level == "x86-64-v4":
        assert is_turned(lowered)
        assert "pack" not in str(lowered.schedule)


@pytest.mark.parametrize("level", LEVELS)
def test_double(level: str) -> None:
    lowered = run(lambda x, y: products("nt", x, y), matrices("nt", (7, 8, 6), dt.float64), level)
    assert is_turned(lowered) == (level != "x86-64")


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.int32, dt.complex64])
def test_dtypes_that_are_not_turned(dtype: dt.DType) -> None:
    """What is converted, has two parts, or has its sums in any order, is computed as ever."""
    types = matrices("nt", (5, 6, 7), dtype)
    assert not is_turned(run(lambda x, y: products("nt", x, y), types))


def test_the_sums_are_in_sequence() -> None:
    """As those of an operand that runs along its columns are, so that their bits are the same."""
    for form in ("nn", "nt"):
        lowered = run(lambda x, y, form=form: products(form, x, y), matrices(form, (8, 8, 13)))
        assert "order=order<sequence, 0, 1>" in str(lowered.schedule)


def test_epilogue() -> None:
    def fn(x: Any, y: Any, bias: Any, rest: Any) -> Any:
        z = products("nt", x, y)
        return e.add(e.tanh(e.add(z, broadcast(bias, z.shape, (2,)))), rest)

    types = [*matrices("nt", (6, 7, 5)), typed(7), typed(3, 6, 7)]
    assert is_turned(run(fn, types))


def test_what_is_computed_before_is_not_turned() -> None:
    """It would be computed for one element at a time, or again for each block of rows."""
    lowered = run(lambda x, y: products("nt", e.cos(x), e.add(y, 1.0)), matrices("nt", (6, 7, 5)))
    assert not is_turned(lowered)


def test_a_product_of_two_batches() -> None:
    """Covariances: `a @ s @ a.mT`, of two batch axes."""
    def fn(x: Any, y: Any) -> Any:
        axes, batch = ((3,), (2,)), ((0, 1), (0, 1))
        inner = dot_general(x, y, axes, batch)
        return dot_general(inner, x, ((3,), (3,)), batch)

    assert is_turned(run(fn, [typed(2, 3, 4, 4), typed(2, 3, 4, 4)]))


@pytest.mark.parametrize("sizes", [(16, 3, 2), (2, 2, 32), (33, 8, 8), (8, 8, 33), (16, 32, 8)])
def test_products_that_other_ways_suit(sizes: tuple[int, int, int]) -> None:
    assert not is_turned(run(lambda x, y: products("nt", x, y), matrices("nt", sizes)))


def test_eight_columns_are_half_a_vector() -> None:
    lowered = run(lambda x, y: products("nn", x, y), matrices("nn", (8, 8, 8)))
    assert "8 x 8 accumulators" in str(lowered.schedule)


def test_no_products() -> None:
    run(lambda x, y: products("nt", x, y), matrices("nt", (4, 4, 4), count=0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(3, 3), (5, 7), (7, 5), (6, 20), (12, 12), (3, 16), (33, 6)])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int16, dt.uint8])
def test_transposes(dtype: dt.DType, shape: tuple[int, int], level: str) -> None:
    graph = traced(lambda x: transpose(x, (0, 2, 1)), typed(3, *shape, dtype=dtype))
    x = (np.random.default_rng(4).standard_normal((3, *shape)) * 9).astype(dtype.np)
    lowered = check_levels(graph, [x], machine=machine(level))
    if level == "x86-64-v4" and dtype.bits == 32:
        assert not gathers(lowered)


def test_what_is_left_of_panels_is_turned() -> None:
    """The last panel is not whole: its columns are lines of memory."""
    types = [typed(40, 70), typed(69, 70)]
    lowered = run(lambda x, y: dot_general(x, y, ((1,), (1,))), types)
    rest = [nest for nest in nests_of(lowered.schedule) if "left at the ends" in nest.reason]
    assert [nest.tile for nest in rest] == [(1, 16, 16)]
