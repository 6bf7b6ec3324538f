"""Kernels that read what one thread has just written."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.schedule import ops
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine
from tests.schedule.lowering import traced, typed

AVX2 = machine("x86-64-v3")


def shared(fn: Any, *types: Any) -> list[bool]:
    """Of each kernel that reads an array of two dims, whether threads share it."""
    func = Lowered(traced(fn, *types), AVX2).schedule
    found: list[bool] = []
    for kernel in kernels(func.body):
        if any(len(value.type.shape) == 2 for value in kernel.inputs):
            nests = [op for op in kernel.body.ops if isinstance(op, ops.Nest)]
            found.append(any(nest.grain > 0 for nest in nests))
    return found


def recurrence(x: Any) -> Any:
    """What one thread computes: all steps of a few columns."""
    return ts.scan(lambda h, row: (h * 0.5 + row,) * 2, ts.zeros(8), x)[1]


def test_who_wrote_it_sums_it() -> None:
    assert shared(lambda x: ts.sum(x * x), typed(65536, 8)) == [True]
    assert shared(lambda x: ts.sum(recurrence(x) ** 2), typed(65536, 8)) == [False, False]


def test_threads_share_what_is_worth_moving() -> None:
    def costly(x: Any) -> Any:
        return ts.sum(ts.sin(ts.exp(ts.tanh(recurrence(x)))))

    assert shared(costly, typed(65536, 8)) == [False, True]


def test_large_results_are_worth_it() -> None:
    """Others read them, and gain too."""
    assert shared(lambda x: recurrence(x).T * 2.0, typed(65536, 8)) == [False, True]


def test_the_reason_says_so() -> None:
    lowered = Lowered(traced(lambda x: ts.sum(recurrence(x) ** 2), typed(65536, 8)), AVX2)
    reasons = [op.reason for kernel in kernels(lowered.schedule.body) for op in kernel.body.ops]
    assert sum("one thread has just used what it reads" in reason for reason in reasons) == 1


@pytest.mark.parametrize(("side", "is_shared"), [(128, False), (1024, True)])
def test_what_one_thread_has_just_read_is_not_shared_for_little(side: int, is_shared: bool) -> None:
    """A step of conjugate gradients: sums over arrays, and then work on their elements."""

    def step(x: Any, r: Any, p: Any, q: Any) -> Any:
        near = 4 * p - ts.pad(p[1:], ((0, 1), (0, 0))) - ts.pad(p[:-1], ((1, 0), (0, 0)))
        part = q / ts.sum(p * near)
        r = r - part * near
        square = ts.sum(r * r)
        return x + part * p, r, r + (square / q) * p, square

    types = [typed(side, side)] * 3
    func = Lowered(traced(step, *types, typed()), AVX2).schedule
    last = [op for kernel in kernels(func.body) for op in kernel.body.ops][-1]
    assert isinstance(last, ops.Nest)
    assert (last.grain > 0) == is_shared
