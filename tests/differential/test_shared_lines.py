"""Sums along which one of the operands is the same for neighbours go together: at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.schedule import ops
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import all_ops, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
WIDE = LEVELS[-1]
LANES = machine(WIDE).vector_bits // 32
RNG = np.random.default_rng(5)


def windows(stride: int = 1, apart: int = 1, padding: str = "SAME") -> Any:
    """A window of its own for each channel, channels last."""

    def fn(x: Any, w: Any) -> Any:
        return ts.conv_general(
            x, w, (stride, stride), padding, rhs_dilation=(apart, apart),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1],
        )  # fmt: skip

    return fn


def weighted(x: Any, w: Any) -> Any:
    """A weighted sum of rows, with weights for each column."""
    return ts.sum(x * w[:, None], axis=0)


def tiles(fn: Any, *types: Any, level: str = WIDE) -> list[tuple[int, ...]]:
    """Runs a program at all levels; the tiles of its sums."""
    inputs = [(2 * RNG.standard_normal(t.shape)).astype(t.dtype.np) for t in types]
    lowered = check_levels(traced(fn, *types), inputs, machine=machine(level))
    found = [op for op in all_ops(lowered.schedule, ops.Nest)]
    return [op.tile for op in found if any(isinstance(x, ops.Reduce) for x in op.body.ops)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("places", "channels", "stride", "apart", "padding"),
    [(14, 72, 1, 1, "SAME"), (13, 40, 1, 1, "SAME"), (19, 64, 2, 1, "VALID"),
     (15, 33, 1, 2, "SAME")],
)  # fmt: skip
def test_windows_of_each_channel(
    places: int, channels: int, stride: int, apart: int, padding: str, level: str
) -> None:
    """Places that are left over, and channels, have masks or a nest of their own."""
    types = typed(1, places, places, channels), typed(3, 3, 1, channels)
    (tile,) = tiles(windows(stride, apart, padding), *types, level=level)
    assert 4 <= tile[-2] <= 8
    assert tile[-1] <= machine(level).vector_bits // 32


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.float16, dt.int32, dt.int8])
def test_dtypes(dtype: dt.DType) -> None:
    types = typed(2, 9, 8, 40, dtype=dtype), typed(3, 3, 1, 40, dtype=dtype)
    assert tiles(windows(), *types)


@pytest.mark.parametrize("level", LEVELS)
def test_lines_that_displace_each_other_are_read_in_stretches(level: str) -> None:
    types = typed(1, 8, 8, 512), typed(3, 3, 1, 512)
    (tile,) = tiles(windows(), *types, level=level)
    lanes, registers = machine(level).vector_bits // 32, machine(level).registers
    assert tile[-1] > lanes
    assert tile[-2] * tile[-1] // lanes < registers


def test_weighted_sums() -> None:
    (tile,) = tiles(weighted, typed(9, 20, 48), typed(9, 48))
    assert tile == (5, LANES)


def test_sums_that_share_nothing_go_alone() -> None:
    (tile,) = tiles(lambda x, y: ts.sum(x * y, axis=0), typed(9, 20, 48), typed(9, 20, 48))
    assert tile == (8 * LANES,)


def test_windows_that_are_padded_as_they_are_read_go_alone() -> None:
    """Masks for each place would take longer than what is read once."""
    found = tiles(windows(2), typed(1, 16, 16, 64), typed(3, 3, 1, 64))
    assert [tile[-2] for tile in found] == [1] * len(found)
