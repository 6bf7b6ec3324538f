"""The host's part of a GPU program: `main` of a Tile module for the CPU that drives the GPU.

    main(record, pointers..., arena, dims..., table)

A launch passes a kernel its memories, its dims and the symbolic extents of its grid (static ones
are constants in its code), in this order, 8 bytes each. Blocks are numbered in one row, so the
grid is the product of its extents. Conditions of loops and branches are read back. The memory
of the host that buffers are moved to is the record's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.errors import CompileError
from tessera.ir.core import Func, Module, Op, Value
from tessera.ir.types import ScalarType
from tessera.target import host_ops as h
from tessera.target.from_tile.lowering import I64, PTR, Lowering, Rule, View
from tessera.target.from_tile.simd import RULES as CPU_RULES
from tessera.target.machine import Machine
from tessera.tile import entry_ops
from tessera.tile import ops as tile


class _Host(Lowering):
    """The lowering of `main`.

    Args:
        machine: the host.
        dims: names of the symbolic dims.
        kernels: the kernels, in the order of the table.
    """

    def __init__(self, machine: Machine, dims: Sequence[str], kernels: Mapping[str, Func]) -> None:
        super().__init__(machine, dims, RULES)
        self.kernels = dict(kernels)
        self.indices = {name: k for k, name in enumerate(kernels)}
        self.record = self.run_record = self.entry.arg(PTR, "record")
        self.table = Value(PTR, "table")


def _launch(s: _Host, op: tile.Launch) -> None:
    grid = s.index(1)
    for extent in op.grid:
        grid = s.map("mul", grid, s.dim(extent))
    args = [s.ptr(a) for a in op.args]
    args += [s.dims[name] for name in s.kernels[op.kernel].dims]
    args += [s.dim(extent) for extent in op.grid if not isinstance(extent, int)]
    index = s.indices[op.kernel]
    s.emit(h.LaunchKernel(s.record, s.table, grid, args, op.kernel, index, loc=op.loc))


def _load(s: _Host, op: tile.Load) -> None:
    view = s.env[op.view]
    assert isinstance(view, View)
    if op.shape or op.mask:
        raise CompileError("host: only single elements are read on the host", loc=op.loc)
    type = ScalarType(view.dtype)
    value = h.ReadBack(s.record, view.ptr, view.offset, type, loc=op.loc)
    s.define(op.result, [s.emit(value)])


def _copy(s: _Host, op: entry_ops.Offload | entry_ops.Fetch) -> None:
    cls = h.Offload if isinstance(op, entry_ops.Offload) else h.Fetch
    s.emit(cls(s.record, s.ptr(op.mem), op.at, op.size, op.number, loc=op.loc))


def _wait(s: _Host, op: entry_ops.Wait) -> None:
    s.emit(h.WaitForCopy(s.record, op.number, loc=op.loc))


RULES: Mapping[type[Op], Rule] = {
    **CPU_RULES,
    entry_ops.Offload: _copy,
    entry_ops.Fetch: _copy,
    entry_ops.Wait: _wait,
    tile.Launch: _launch,
    tile.Load: _load,
}


def lower_host(module: Module, machine: Machine) -> Module:
    """The entry of a Tile module, for a host that starts the other functions on a GPU.

    Args:
        module: a Tile module.
        machine: the host.

    Returns:
        A Target module of one function.
    """
    main = module.entry
    kernels = {name: f for name, f in module.funcs.items() if name != module.main}
    s = _Host(machine, main.dims, kernels)
    for arg in main.args:
        s.env[arg] = s.entry.arg(PTR, arg.name)
    s.arena = s.entry.arg(PTR, "arena")
    for name in main.dims:
        s.dims[name] = s.entry.arg(I64, name)
    s.table = s.entry.arg(PTR, "table")
    s.run(main.body)
    lowered = Func(main.name, s.entry.block(()), attrs=main.attrs)
    return Module({main.name: lowered}, main.name)
