"""Calls of libraries outside of any trace.

A call of a routine takes tens of microseconds of Python, however small its matrices are. So where
compiled programs have code instead (`target/from_tile/calls.py`), it runs here as well, as a
program for matrices or lines of one size, and any number of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.compile import current_machine
from tessera.eager_plans import Compiler, Plan, drop_oldest, specs_of
from tessera.graph.array import Array
from tessera.graph.ops.library import LibraryCall
from tessera.ir.builder import Builder
from tessera.ir.core import Value
from tessera.ir.hostcall import LibraryFunction
from tessera.ir.intexpr import Dim, sym
from tessera.ir.routines import run_routine
from tessera.ir.types import TensorType
from tessera.runtime.dispatch import direct
from tessera.runtime.memory import aligned_sized


@dataclass(frozen=True, slots=True)
class _Routine:
    """What the library is told besides arrays, and its results."""

    name: str
    options: tuple[int, ...]
    specs: Sequence[Any]

    def run(self, inputs: Sequence[Any]) -> Any:
        """The results for contiguous inputs."""
        direct.noted(None)
        outputs = [aligned_sized(shape, dtype, size) for shape, dtype, size in self.specs]
        run_routine(self.name, inputs, outputs, self.options)
        return Array(outputs[0]) if len(outputs) == 1 else tuple([Array(x) for x in outputs])


class Libraries:
    """Calls of libraries, and the programs that take their place.

    Args:
        compiler: makes programs.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._plans: dict[Hashable, Plan | _Routine] = {}
        self._programs: dict[Hashable, Any] = {}

    def call(self, cls: type[LibraryCall], flat: Sequence[Array], attrs: dict[str, Any]) -> Any:
        """The results of a call."""
        kinds = [(x.storage.shape, x.storage.dtype, x.weak) for x in flat]
        key = (cls, self._compiler.settings_key(), tuple(attrs.items()), *kinds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new(cls, flat, attrs)
            self._plans[key] = plan
            drop_oldest(self._plans)
        return plan.run([direct.contiguous(x) for x in flat])

    def _new(
        self, cls: type[LibraryCall], flat: Sequence[Array], attrs: dict[str, Any]
    ) -> Plan | _Routine:
        # The op's own check, whose errors are the user's.
        op = cls(*[Value(x.type) for x in flat], **attrs)
        results = [v.type for v in op.results]
        if not _has_code(op):
            dtypes = [t.dtype.np for t in results if isinstance(t, TensorType)]
            return _Routine(op.routine, op.options(), specs_of(results, dtypes))
        batch = flat[0].shape[: op.batch_rank]
        names = [f"b{k}" for k in range(len(batch))]
        numbers: tuple[Dim, ...] = tuple([sym(name) for name in names])
        shapes = [(*numbers, *x.shape[len(batch) :]) for x in flat]
        types = [TensorType(s, x.dtype, x.weak) for s, x in zip(shapes, flat, strict=True)]
        key = (cls, self._compiler.settings_key(), tuple(attrs.items()), *types)
        program = self._programs.get(key)
        if program is None:
            builder = Builder(types)
            found = builder.add(cls(*builder.args, **attrs))
            func = builder.func(op.routine, found.results, names)
            program = self._programs[key] = self._compiler.compiled(func)
            drop_oldest(self._programs)
        return self._compiler.plan(program, results, [*batch])


def _has_code(op: LibraryCall) -> bool:
    """Whether code does the same as a call."""
    # Imported where it is needed: who calls no library need not wait for it.
    from tessera.schedule.from_graph import buffer_type
    from tessera.target.from_tile.calls import has_code

    buffers = [buffer_type(v) for v in (*op.operands, *op.results)]
    return has_code(LibraryFunction(op.routine, op.options()), buffers, current_machine())
