"""Accesses of rows that a condition excludes: no address that may have no memory."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values


def rolled(x: Any) -> Any:
    return ts.max(ts.concat([x[-1:] * 2, x[:-1]], axis=0), axis=1)


def padded(x: Any) -> Any:
    return ts.sum(ts.pad(x, [(2, 3), (0, 0)]), axis=1)


def read_of_one_row(x: Any) -> Any:
    first = ts.sin(x[:1])
    return x + ts.pad(first, [(0, x.shape[0] - 1), (0, 0)]), first


PROGRAMS = (rolled, padded, read_of_one_row)


@pytest.mark.unchecked
@pytest.mark.parametrize("fn", PROGRAMS)
def test_rows_that_are_excluded_are_not_looked_for(fn: Any) -> None:
    lowered = Lowered(graph_of(fn, [(64, 64)]), machine("x86-64-v4"))
    found = 0
    for func in lowered.target.funcs.values():
        for op in walk(func.body):
            if not isinstance(op, (t.Load, t.Store)) or not op.mask:
                continue
            if isinstance(op.mask[0].op, t.Splat):
                offset = op.offset.op
                assert isinstance(offset, t.Map)
                assert offset.fn.name == "select"
                assert offset.args[0] is op.mask[0].op.x
                found += 1
    assert found


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 64), (33, 100)])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_programs(fn: Any, shape: tuple[int, ...], level: str) -> None:
    check_levels(graph_of(fn, [shape]), values([shape]), machine=machine(level))
