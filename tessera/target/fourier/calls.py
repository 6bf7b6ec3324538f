"""Calls of the library's transforms as code: which ones, and the functions that do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import real_of
from tessera.ir.core import Func, Value
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.types import Type
from tessera.schedule.types import BufType
from tessera.target import ops as t
from tessera.target.fourier import halves
from tessera.target.fourier.code import I64, PTR, Code
from tessera.target.fourier.line import Plan, emit_line, line_functions, plan_of
from tessera.target.machine import Machine

GRAIN = 1 << 14
"""Numbers of the lines that are worth a thread's while."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A call as code.

    Attributes:
        callee: the function for some lines: `callee(source, target, lo, hi)`.
        funcs: it, and what it calls, by name.
        grain: lines that are worth a thread's while.
    """

    callee: str
    funcs: Mapping[str, Func]
    grain: int


def plan_of_call(function: HostFunction, types: Sequence[Type], machine: Machine) -> Plan | None:
    """How code does the same as a call; None where the library is called.

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
    # The direction comes first for complex numbers.
    *axes, axis = function.options[function.name == "fft" :]
    line = (target if function.name == "irfft" else source).shape
    length = line[-1]
    if axes or axis != len(line) - 1 or not isinstance(length, int):
        return None
    if function.name != "fft":
        if length % 2:
            return None
        length //= 2
    return plan_of(length, real_of(source.dtype), machine)


def transform_of(function: LibraryFunction, plan: Plan) -> Transform:
    """What does the same as a call, by a plan."""
    if function.name == "fft":
        return _whole(plan, bool(function.options[0]))
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
    return Transform(func.name, found, -(-GRAIN // max(parts)))
