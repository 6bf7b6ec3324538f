"""Calls of the host, and transforms of lines in place of calls of a library."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.hostcall import LibraryFunction
from tessera.ir.intexpr import symbols
from tessera.target import ops as t
from tessera.target.fourier.calls import Step, steps_of_call, transform_of
from tessera.target.from_tile.lowering import Lowering, constant_of
from tessera.tile import ops as tile


def host_call(s: Lowering, op: tile.HostCall) -> None:
    """A call of the host, or code that does the same."""
    steps = None if s.run_record else steps_of_call(op.function, op.types, s.machine)
    if steps:
        _transform(s, op, steps)
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
        count = s.index(transform.points)
        for extent in op.types[0].shape[: step.axis]:
            count = s.map("mul", count, s.dim(extent))
        known = constant_of(count)
        if known is None or known > transform.grain:
            args = [source, target]
            s.emit(t.Parallel(args, count, transform.callee, transform.grain, loc=s.loc))
        else:
            s.emit(t.Call([source, target, s.index(0), count], transform.callee, loc=s.loc))
        source = target
