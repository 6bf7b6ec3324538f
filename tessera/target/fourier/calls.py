"""Calls of the library's transforms as code: which ones, and the functions that do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import real_of
from tessera.ir.core import Func, Value
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.types import Type
from tessera.schedule.types import BufType
from tessera.target import ops as t
from tessera.target.fourier import halves
from tessera.target.fourier.code import Code
from tessera.target.fourier.columns import (
    column_functions,
    column_plan,
    copy_part,
    emit_columns,
)
from tessera.target.fourier.line import Plan, emit_line, line_functions, plan_of
from tessera.target.function import I64, PTR
from tessera.target.machine import Machine

GRAIN = 1 << 14
"""Numbers of the lines that are worth a thread's while."""


@dataclass(frozen=True, slots=True)
class Step:
    """A transform along one axis.

    Attributes:
        axis: which one.
        inner: elements from one of a line to the next.
        plan: how lines are transformed.
    """

    axis: int
    inner: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Transform:
    """A step as code.

    Attributes:
        callee: the function for some points: `callee(source, target, lo, hi)`. Target may be
            source.
        funcs: it, and what it calls, by name.
        points: those of each place of the axes before the step's; they are numbered place by place.
        grain: points that are worth a thread's while.
    """

    callee: str
    funcs: Mapping[str, Func]
    points: int
    grain: int


def steps_of_call(
    function: HostFunction, types: Sequence[Type], machine: Machine
) -> tuple[Step, ...] | None:
    """How code does the same as a call; None where the library is called. The first step reads what
    the call reads, the others what it gives.

    Args:
        function: what is called.
        types: of what it reads and of what it gives.
        machine: the CPU.
    """
    if not isinstance(function, LibraryFunction) or function.name not in ("fft", "rfft", "irfft"):
        return None
    source, target = types
    assert isinstance(source, BufType)
    assert isinstance(target, BufType)
    shape = (target if function.name == "irfft" else source).shape
    dtype = real_of(source.dtype)
    steps: list[Step] = []
    # The direction comes first for complex numbers. Lines that lie side by side are the last.
    for axis in sorted(function.options[function.name == "fft" :], reverse=True):
        length, inner = shape[axis], math.prod(shape[axis + 1 :])
        if not isinstance(length, int) or not isinstance(inner, int):
            return None
        if function.name != "fft":
            plan = plan_of(length // 2, dtype, machine) if inner == 1 and length % 2 == 0 else None
        elif inner == 1:
            plan = plan_of(length, dtype, machine)
        else:
            plan = column_plan(length, dtype, machine)
        if plan is None:
            return None
        steps.append(Step(axis, inner, plan))
    return tuple(steps)


def transform_of(function: LibraryFunction, step: Step) -> Transform:
    """The code of a step."""
    plan = step.plan
    if function.name == "fft":
        inverse = bool(function.options[0])
        return _whole(plan, inverse) if step.inner == 1 else _columns(plan, step.inner, inverse)
    return _half(plan) if function.name == "rfft" else _half_inverse(plan)


def _whole(plan: Plan, inverse: bool) -> Transform:
    sign = -1.0 if inverse else 1.0

    def line(c: Code, source: Value, target: Value, scratch: tuple[Value, Value]) -> None:
        emit_line(c, plan, source, target, scratch, (sign, sign))

    return _lines(plan, "ifft" if inverse else "fft", (2 * plan.n, 2 * plan.n), line, ())


def _half(plan: Plan) -> Transform:
    unfold = halves.unfold(plan)

    def line(c: Code, source: Value, target: Value, scratch: tuple[Value, Value]) -> None:
        # What nobody reads any more; lines of the result are aligned to 8 bytes alone.
        free = scratch[len(plan.radices) % 2]
        emit_line(c, plan, source, free, scratch, (1.0, 1.0))
        c.ops.append(t.Call((free, target), unfold.name, loc=c.loc))

    return _lines(plan, "rfft", (2 * plan.n, 2 * plan.n + 2), line, (unfold,))


def _half_inverse(plan: Plan) -> Transform:
    fold = halves.fold(plan)

    def line(c: Code, source: Value, target: Value, scratch: tuple[Value, Value]) -> None:
        c.ops.append(t.Call((source, scratch[1]), fold.name, loc=c.loc))
        emit_line(c, plan, scratch[1], target, scratch, (1.0, -1.0))

    return _lines(plan, "irfft", (2 * plan.n + 2, 2 * plan.n), line, (fold,))


def _lines(
    plan: Plan,
    name: str,
    parts: tuple[int, int],
    line: Callable[[Code, Value, Value, tuple[Value, Value]], None],
    funcs: tuple[Func, ...],
) -> Transform:
    """The function for some lines, each of which has so many parts in either array."""
    names = ("source", "target", "lo", "hi")
    c = Code(plan.dtype, 1, plan.fused, (PTR, PTR, I64, I64), names)
    source, target, lo, hi = c.args
    # One more element, which the transform of a real line has.
    size = 2 * plan.n + 2
    first, second = [c.emit(t.Alloca(plan.dtype, size, loc=c.loc)) for _ in range(2)]

    def body(number: Value) -> None:
        starts = [
            c.emit(t.PtrAdd(ptr, c.times(number, count * plan.dtype.itemsize), loc=c.loc))
            for ptr, count in zip((source, target), parts, strict=True)
        ]
        line(c, starts[0], starts[1], (first, second))

    c.span(lo, hi, body)
    func = c.func(plan.name(f"{name}_lines"))
    found = {**line_functions(plan), **{f.name: f for f in (*funcs, func)}}
    return Transform(func.name, found, 1, -(-GRAIN // max(parts)))


def _columns(plan: Plan, inner: int, inverse: bool) -> Transform:
    """The function for some vectors of lines that lie side by side, `inner` of them."""
    lanes = plan.lanes
    blocks, rest = -(-inner // lanes), inner % lanes
    sign = -1.0 if inverse else 1.0
    c = Code(plan.dtype, 1, plan.fused, (PTR, PTR, I64, I64), ("source", "target", "lo", "hi"))
    source, target, lo, hi = c.args
    row = 2 * lanes
    first, second = [c.emit(t.Alloca(plan.dtype, row * plan.n, loc=c.loc)) for _ in range(2)]
    copies = [copy_part(plan, rest, is_back) for is_back in (False, True)] if rest else []

    def body(number: Value) -> None:
        place, block = number, c.index(0)
        if blocks > 1:
            place = c.map("trunc_div", number, c.index(blocks))
            block = c.map("rem", number, c.index(blocks))
        size = plan.dtype.itemsize
        start = c.map("add", c.times(place, 2 * size * plan.n * inner), c.times(block, row * size))
        here, there = [c.emit(t.PtrAdd(ptr, start, loc=c.loc)) for ptr in (source, target)]
        far, near = c.index(2 * inner), c.index(row)

        def whole() -> None:
            emit_columns(c, plan, (here, there), (far, far), (first, second), sign)

        def part() -> None:
            c.ops.append(t.Call((here, second, far), copies[0].name, loc=c.loc))
            last = (first, second)[(len(plan.radices) - 1) % 2]
            emit_columns(c, plan, (second, last), (near, near), (first, second), sign)
            c.ops.append(t.Call((last, there, far), copies[1].name, loc=c.loc))

        if not rest:
            whole()
        elif blocks == 1:
            part()
        else:
            c.when(c.map("eq", block, c.index(blocks - 1)), part, whole)

    c.span(lo, hi, body)
    func = c.func(plan.name(f"{'ifft' if inverse else 'fft'}_columns_of_{inner}"))
    found = {**column_functions(plan), **{f.name: f for f in (*copies, func)}}
    return Transform(func.name, found, blocks, -(-GRAIN // (row * plan.n)))
