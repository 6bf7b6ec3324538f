"""Calls of the host, and code in place of calls of a library."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Value
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.intexpr import Dim, symbols
from tessera.ir.types import Type
from tessera.target import ops as t
from tessera.target.fourier.calls import Step, steps_of_call, transform_of
from tessera.target.from_tile.lowering import Lowering, constant_of
from tessera.target.linalg.calls import has_code as has_matrices
from tessera.target.linalg.calls import matrices_of_call
from tessera.target.machine import Machine
from tessera.tile import ops as tile


def has_code(function: HostFunction, types: Sequence[Type], machine: Machine) -> bool:
    """Whether code does the same as a call.

    Args:
        function: what is called.
        types: of what it reads and of what it gives.
        machine: the CPU.
    """
    return has_matrices(function, types) or bool(steps_of_call(function, types, machine))


def host_call(s: Lowering, op: tile.HostCall) -> None:
    """A call of the host, or code that does the same."""
    if s.run_record is None:
        steps = steps_of_call(op.function, op.types, s.machine)
        if steps:
            _transform(s, op, steps)
            return
        matrices = matrices_of_call(op.function, op.types, s.machine)
        if matrices:
            func = matrices.func
            s.made[func.name] = func
            count = _count(s, matrices.batch, matrices.points)
            _run(s, [s.ptr(a) for a in op.args], count, func.name, matrices.grain)
            return
    names = sorted({name for type in op.types for dim in type.shape for name in symbols(dim)})
    args, dims = [s.ptr(a) for a in op.args], [s.dims[name] for name in names]
    record = () if s.run_record is None else (s.run_record,)
    call = t.HostCall(
        record, args, dims, op.function, op.inputs, op.types, tuple(names), s.host_calls, loc=s.loc
    )
    s.host_calls += 1
    s.emit(call)


def _transform(s: Lowering, op: tile.HostCall, steps: Sequence[Step]) -> None:
    """Transforms of lines by code of this program."""
    assert isinstance(op.function, LibraryFunction)
    source, target = [s.ptr(a) for a in op.args]
    for step in steps:
        transform = transform_of(op.function, step)
        s.made.update(transform.funcs)
        count = _count(s, op.types[0].shape[: step.axis], transform.points)
        _run(s, [source, target], count, transform.callee, transform.grain)
        source = target


def _count(s: Lowering, dims: Sequence[Dim], points: int) -> Value:
    """How many points there are at all places of some axes."""
    count = s.index(points)
    for extent in dims:
        count = s.map("mul", count, s.dim(extent))
    return count


def _run(
    s: Lowering, args: Sequence[Value], count: Value, callee: str, grain: int
) -> None:
    """Calls a function for some points, by several threads where there are many."""
    known = constant_of(count)
    if known is None or known > grain:
        s.emit(t.Parallel(list(args), count, callee, grain, loc=s.loc))
    else:
        s.emit(t.Call([*args, s.index(0), count], callee, loc=s.loc))
