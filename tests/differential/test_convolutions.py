"""Convolutions of a CPU and their gradients, as products on windows read where they are, at every
level and on every kind of machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.schedule import ops
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.schedule.lowering import all_ops, labels, traced, typed

NCHW, NHWC = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")
LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]

# Shapes of the operand and of the window, strides, padding, options.
CASES: dict[str, Any] = {
    "nchw": ((2, 3, 5, 9), (8, 3, 3, 3), (1, 1), "SAME", {"dimension_numbers": NCHW}),
    "nhwc": ((2, 5, 9, 4), (3, 3, 4, 9), (1, 1), "SAME", {"dimension_numbers": NHWC}),
    "strided": ((1, 3, 9, 18), (9, 3, 3, 2), (2, 2), ((1, 1), (0, 1)), {}),
    "lanes along channels": ((1, 2, 4, 9), (20, 2, 3, 3), (1, 1), "SAME", {}),
    "lanes along channels, strided": ((1, 2, 5, 17), (20, 2, 3, 3), (2, 2), "SAME", {}),
    "pointwise": ((2, 5, 4, 9), (9, 5, 1, 1), (1, 1), "VALID", {}),
    "pointwise, strided": ((1, 5, 5, 19), (8, 5, 1, 1), (1, 2), "VALID", {}),
    "grouped": ((1, 4, 4, 9), (16, 2, 2, 3), (1, 1), "VALID", {"feature_group_count": 2}),
    "put apart": ((1, 3, 3, 5), (4, 3, 4, 3), (1, 1), ((2, 2), (1, 2)), {"lhs_dilation": (2, 2)}),
    "depthwise": ((1, 3, 4, 9), (3, 1, 3, 3), (1, 1), "SAME", {"feature_group_count": 3}),
    "depthwise, side by side": (
        *((2, 8, 5, 19), (8, 1, 3, 2), (1, 1), "SAME"),
        {"feature_group_count": 8},
    ),
}


def programs(name: str) -> Any:
    """The convolution and both gradients, and the inputs: a cotangent and the operands."""
    x_shape, w_shape, strides, padding, options = CASES[name]
    rng = np.random.default_rng(len(name))
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))

    def convolve(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, strides, padding, **options)

    ct = rng.standard_normal(ts.eval_shape(convolve, x, w).shape).astype(np.float32)

    def everything(ct: Any, x: Any, w: Any) -> Any:
        value, back = ts.vjp(convolve, x, w)
        return value, *back(ct)

    return ts.make_graph(everything)(ct, x, w), [ct, x, w]


@pytest.mark.parametrize("name", list(CASES))
def test_convolutions_and_gradients(name: str) -> None:
    graph, inputs = programs(name)
    check_levels(graph, inputs, machine=machine("x86-64-v3"))


@pytest.mark.parametrize("level", [name for name in LEVELS if name != "x86-64-v3"])
@pytest.mark.parametrize(
    "name", ["nchw", "nhwc", "lanes along channels, strided", "depthwise, side by side"]
)
def test_other_machines(name: str, level: str) -> None:
    graph, inputs = programs(name)
    check_levels(graph, inputs, machine=machine(level))


def test_masked_loads_are_as_wide_as_vectors() -> None:
    """LLVM 22 splits wider ones wrongly: it reads an upper half without its mask."""
    graph, _ = programs("depthwise")
    text = str(Lowered(graph, machine("x86-64-v3")).llvm)
    assert "masked.load.v8f32" in text
    assert "masked.load.v16f32" not in text


@pytest.mark.parametrize("stride", [1, 2])
def test_lanes_run_along_channels_where_they_fill_vectors(stride: int) -> None:
    graph = traced(
        lambda x, w: ts.conv_general(x, w, (stride, stride), "SAME"),
        typed(2, 16, 9 * stride, 9 * stride),
        typed(16, 16, 3, 3),
    )
    func = Lowered(graph, machine("x86-64-v3")).schedule
    assert labels(func) == ["pad", "pack", "dot_windows"]
    product = all_ops(func, ops.Nest)[-1]
    assert product.tile[-2:] == (9, 8)
    (store,) = all_ops(func, ops.Store)[-1:]
    # The channel is the second dim.
    assert "j" in str(store.index[1])
    assert "i" in str(store.index[3])


def test_few_channels_of_windows_are_rows_of_blocks() -> None:
    """Nine windows of three channels each share the packed cotangents."""

    def fn(x: Any, w: Any, ct: Any) -> Any:
        return ts.vjp(lambda w: ts.conv_general(x, w, (1, 1), "VALID"), w)[1](ct)

    types = [typed(2, 3, 8, 9), typed(16, 3, 3, 3), typed(2, 16, 6, 7)]
    func = Lowered(traced(fn, *types), machine("x86-64-v3")).schedule
    assert labels(func) == ["pack", "dot_windows"]
    product = all_ops(func, ops.Nest)[-1]
    assert product.tile[-2:] == (3, 16)


def test_windows_of_groups_are_read_in_place() -> None:
    graph = traced(
        lambda x, w: ts.conv_general(x, w, (1, 1), "SAME", feature_group_count=2),
        typed(1, 16, 14, 14),
        typed(16, 8, 3, 3),
    )
    assert labels(Lowered(graph, machine("x86-64-v4")).schedule) == ["pad", "dot_windows"]
