"""Columns behind the last whole block of a product have a narrower one: at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import DType, bfloat16, float32, float64
from tessera.ir.walk import walk
from tessera.target import ops as target
from tessera.target.machine import machine, supported_levels
from tessera.tile import ops as t
from tests.differential.levels import check_levels, values
from tests.pairs import every_pair

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
WIDE = LEVELS[-1]


def product(x: Any, y: Any) -> Any:
    return x @ y


def widths(lowered: Lowered) -> list[int]:
    """Columns of the tiles of products."""
    code = [op for func in lowered.tile.funcs.values() for op in walk(func.body)]
    return sorted({t.tile_type(op.result).shape[1] for op in code if isinstance(op, t.Dot)})


def run(fn: Any, *shapes: tuple[int, ...], dtype: DType = float32, level: str = WIDE) -> list[int]:
    """Runs a program at all levels; the columns of its tiles."""
    inputs = values(list(shapes), dtype)
    return widths(check_levels(ts.make_graph(fn)(*inputs), inputs, machine=machine(level)))


@every_pair(
    ("level", LEVELS),
    ("dtype", [float32, float64, bfloat16]),
    ("left", [1, 3, 4, 8, 12, 15]),
)
def test_at_all_levels(left: int, dtype: DType, level: str) -> None:
    found = run(product, (25, 9), (9, 64 + left), dtype=dtype, level=level)
    assert 1 <= len(found) <= 2


@pytest.mark.skipif(WIDE != "x86-64-v4", reason="this machine has no vectors of 512 bits")
@pytest.mark.parametrize(
    ("columns", "found"),
    [(64, [64]), (80, [16, 32]), (72, [8, 32]), (66, [4, 32]), (60, [64]), (16, [16])],
)
def test_columns_of_the_last_block(columns: int, found: list[int]) -> None:
    assert run(product, (36, 40), (40, columns)) == found


@pytest.mark.parametrize("level", LEVELS)
def test_products_in_groups_take_whole_vectors(level: str) -> None:
    def fn(x: Any, y: Any) -> Any:
        return ts.astype(x, ts.int32) @ ts.astype(y, ts.int32)

    rng = np.random.default_rng(1)
    x, y = [rng.integers(-128, 128, shape).astype(np.int8) for shape in ((40, 64), (64, 36))]
    lowered = check_levels(ts.make_graph(fn)(x, y), [x, y], machine=machine(level))
    assert all(width >= machine(level).vector_bits // 32 for width in widths(lowered))


@pytest.mark.parametrize("columns", [72, 77])
def test_blocks_before_the_last_one_store_without_conditions(columns: int) -> None:
    """Also where more than half of the last block's columns are left."""
    inputs = values([(36, 40), (40, columns), (columns,)])
    graph = ts.make_graph(lambda x, y, b: x @ y + b)(*inputs)
    lowered = check_levels(graph, inputs, machine=machine("x86-64-v3"))
    code = [op for func in lowered.target.funcs.values() for op in walk(func.body)]
    assert sum(isinstance(op, target.Store) and not op.mask for op in code) >= 6


@pytest.mark.parametrize(("level", "cols"), [("x86-64-v3", 84), ("x86-64-v4", 80)])
def test_long_code_behind_a_product_stands_there_once(level: str, cols: int) -> None:
    if level not in LEVELS:
        pytest.skip(f"this machine is below {level}")

    def fn(x: Any, y: Any) -> Any:
        return ts.nn.gelu(ts.tanh(x @ y))

    def short(x: Any, y: Any) -> Any:
        return ts.maximum(x @ y + 1, 0)

    assert len(run(fn, (36, 40), (40, cols), level=level)) == 1
    assert len(run(short, (36, 40), (40, cols), level=level)) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_turned_blocks_and_batches(level: str) -> None:
    run(lambda x, y: ts.matrix_transpose(x) @ y, (3, 7, 20), (3, 7, 36), level=level)
    run(lambda x, y: ts.matrix_transpose(x @ y), (3, 20, 7), (3, 7, 40), level=level)
    run(lambda x, y: x @ ts.matrix_transpose(y), (2, 33, 17), (2, 72, 17), level=level)


@pytest.mark.parametrize("numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
def test_channels_of_a_convolution(numbers: tuple[str, str, str]) -> None:
    def fn(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    is_last = numbers[0] == "NHWC"
    image, window = ((2, 9, 9, 5), (3, 3, 5, 48)) if is_last else ((2, 5, 9, 9), (48, 5, 3, 3))
    run(fn, image, window)
