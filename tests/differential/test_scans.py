"""Cumulative operations along and across memory, in either direction, agree at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.cumulative import CumMax, CumSum
from tessera.graph.ops.rearrange import broadcast, pad, reverse, slice_, transpose
from tessera.graph.ops.reshape import full
from tessera.graph.trace import bind
from tessera.ir.intexpr import sym
from tessera.target.machine import machine
from tests.differential.levels import check_levels
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

N, M = sym("N"), sym("M")


def shifted(x: Any) -> Any:
    """Elements one place on in both directions, and zeros before them."""
    zero = full((), 0, float32)
    return slice_(pad(x, zero, (1, 1), (0, 0)), (0, 0), x.shape, (1, 1))


# What is scanned, of an array [M, N] and a vector [M].
OPERANDS: dict[str, Callable[[Any, Any], Any]] = {
    "in place": lambda x, y: x,
    "turned": lambda x, y: transpose(x, (1, 0)),
    "both": lambda x, y: e.mul(transpose(x, (1, 0)), transpose(reverse(x, (0,)), (1, 0))),
    "shifted and turned": lambda x, y: shifted(transpose(reverse(x, (0,)), (1, 0))),
    "downwards": lambda x, y: reverse(x, (1,)),
    "with what a line reads once": lambda x, y: e.add(x, broadcast(y, x.shape, (0,))),
}


@every_pair(
    ("level", ["x86-64", "host"]),
    ("down", [False, True]),
    ("name", OPERANDS),
)
def test_scans(name: str, down: bool, level: str) -> None:
    rng = np.random.default_rng(0)
    for k, (m, n) in enumerate([(5, 16), (37, 21)]):
        for axis in (0, 1):
            op = (CumSum, CumMax)[(k + axis) % 2]

            def fn(x: Any, y: Any, op: Any = op, axis: int = axis) -> Any:
                return bind(op, OPERANDS[name](x, y), axis=axis, reverse=down)

            x, y = (rng.normal(size=s).astype(np.float32) for s in [(m, n), (m,)])
            check_levels(traced(fn, typed(m, n), typed(m)), [x, y], machine=machine(level))
            if k:
                dims = {"M": m, "N": n}
                graph = traced(fn, typed(M, N), typed(M))
                check_levels(graph, [x, y], dims, machine=machine(level))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.unchecked
def test_the_end_of_a_scan_is_its_total(reverse: bool) -> None:
    """No lanes are added up beside a scan; NaN and what is infinite go on to the end."""

    def fn(x: Any) -> Any:
        return bind(CumSum, x, axis=1, reverse=reverse)

    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 133)).astype(np.float32)
    x[0, 7], x[1, 50], x[2, 100] = np.nan, np.inf, -np.inf
    lowered = check_levels(traced(fn, typed(4, 133)), [x], machine=machine("x86-64-v3"))
    assert "reduce_lanes" not in lowered.stage("target")


@pytest.mark.parametrize("level", ["x86-64", "host"])
@pytest.mark.parametrize("name", OPERANDS)
def test_no_scans(name: str, level: str) -> None:
    """The same operands, element by element and summed."""

    def fn(x: Any, y: Any) -> Any:
        z = e.neg(OPERANDS[name](x, y))
        return z, red.sum_(z, (0,)), red.sum_(z, (1,))

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in [(37, 21), (37,)])
    check_levels(traced(fn, typed(37, 21), typed(37)), [x, y], machine=machine(level))
