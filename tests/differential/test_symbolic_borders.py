"""Conditions about axes whose extents are not known: tiles on which all hold have code of their
own, and columns that are stored side by side are stored at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import float32
from tessera.graph.ops import rearrange
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func, Module, Op
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.target.machine import machine
from tessera.tile import ops as t
from tests.differential.levels import check_levels

RNG = np.random.default_rng(29)


def graph_of(fn: Callable[..., Any], *dims: str) -> Func:
    type = TensorType(tuple([sym(name) for name in dims or ("a", "b")]), float32)
    func, _ = trace_function(lambda x: [fn(x)], [type], "jit", "borders")
    return func


def ops_of(program: Func | Module, cls: type[Op]) -> list[Any]:
    funcs = [program] if isinstance(program, Func) else program.funcs.values()
    return [op for func in funcs for op in walk(func.body) if isinstance(op, cls)]


def pad(x: Any) -> Any:
    return ts.pad(x, ((1, 2), (3, 1)))


def turned(x: Any) -> Any:
    """Conditions whose axis runs backwards."""
    return ts.flip(ts.pad(x, 2), axis=1)


def around(x: Any) -> Any:
    """Neighbours, which are 0 outside."""
    above = rearrange.slice_axis(ts.pad(x, ((1, 0), (0, 0))), 0, 0, x.shape[0])
    left = rearrange.slice_axis(ts.pad(x, ((0, 0), (1, 0))), 1, 0, x.shape[1])
    return above + left * x


def joined(x: Any) -> Any:
    return ts.concat([x, x * 2, x], axis=1) * 3


def pair(x: Any) -> Any:
    return ts.stack([x * 2, x + 1], axis=-1)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (2, 31), (3, 70), (40, 33)], ids=str)
@pytest.mark.parametrize("fn", [pad, turned, around, joined, pair])
def test_levels(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    check_levels(graph_of(fn), [x], {"a": shape[0], "b": shape[1]})


@pytest.mark.parametrize("size", [0, 1, 5])
def test_conditions_about_parts_of_a_sum(size: int) -> None:
    """A part's place and one inside of it are in one condition."""
    x = RNG.standard_normal((size, size, 3)).astype(np.float32)
    wide = ((1, 2), (1, 1), (1, 0))
    graph = graph_of(lambda x: ts.sum(ts.pad(x, wide, constant_values=1.0)), "a", "a", "b")
    check_levels(graph, [x], {"a": size, "b": 3})


@pytest.mark.parametrize(("fn", "count"), [(pad, 1), (turned, 1), (joined, 0)])
def test_tiles_inside_have_code_of_their_own(fn: Callable[..., Any], count: int) -> None:
    """A load without a mask stands beside one with it."""
    lowered = Lowered(graph_of(fn), machine("x86-64-v3"))
    branches = [op for op in ops_of(lowered.tile, t.If) if _loads_plainly(op)]
    assert len(branches) == count


def _loads_plainly(op: t.If) -> bool:
    loads = [[one for one in region if isinstance(one, t.Load)] for region in op.regions]
    return bool(loads[0]) and not any([one.mask for one in loads[0]]) and all(
        [one.mask for one in loads[1]]
    )


def test_columns_are_stored_at_once() -> None:
    lowered = Lowered(graph_of(pair), machine("x86-64-v3"))
    (first, second) = ops_of(lowered.schedule, s.Store)
    assert first.streaming
    assert first.least == second.least
    assert all([len(op.coords) == 2 for op in ops_of(lowered.tile, t.Store)])
