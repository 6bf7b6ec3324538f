"""A Tile kernel as a Target function that one thread runs.

    kernel(pointers..., dims..., symbolic extents of the grid...)

Blocks are numbered along one axis; the program's coordinates come from that number, last grid axis
fastest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tessera.dtypes import int32, int64
from tessera.ir.core import Func, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target.from_tile.simt import memory, reduction, rules, running
from tessera.target.from_tile.simt.assign import Assignment
from tessera.target.from_tile.simt.divide import Divisibility
from tessera.target.from_tile.simt.dot import dot, product
from tessera.target.from_tile.simt.lowering import I64, PTR, Rule, Simt
from tessera.target.from_tile.simt.overwriting import Overwriting, written
from tessera.target.gpu import Gpu
from tessera.tile import ops as tile
from tessera.tile.sentinel_ops import Sentinel
from tessera.tile.types import MemType

WARPS = 4
"""Warps of a block where the schedule leaves it open."""

BAND = 8
"""Rows of blocks of a product that are computed together."""

RULES: Mapping[type[Op], Rule] = {
    tile.Const: rules.const,
    tile.Dim_: rules.dim,
    tile.ProgramId: rules.program_id,
    tile.Iota: rules.iota,
    tile.Map: rules.map_,
    tile.Cast: rules.cast,
    tile.Bitcast: rules.bitcast,
    tile.Broadcast: rules.broadcast,
    tile.Reshape: rules.reshape,
    tile.Transpose: rules.transpose,
    tile.Part: rules.part,
    tile.View: rules.view,
    tile.For: rules.for_,
    tile.While: rules.while_,
    tile.If: rules.if_,
    Sentinel: rules.sentinel,
    tile.Load: memory.load,
    tile.Store: memory.store,
    tile.Gather: memory.gather,
    tile.Scatter: memory.scatter,
    tile.Reduce: reduction.reduce,
    tile.ArgReduce: reduction.arg_reduce,
    tile.Scan: running.scan,
    tile.FlipBits: reduction.flip_bits,
    tile.Dot: dot,
}


def lower_kernel(
    func: Func,
    grid: Sequence[Dim],
    machine: Gpu,
    warps: int = 0,
    shared_places: Collection[int] = (),
) -> Func:
    """Lowers one kernel; barriers and the places of shared objects are not in it yet.

    Args:
        func: a Tile kernel.
        grid: programs along each axis, as its launches have them.
        machine: the GPU.
        warps: of a block; 0 takes `WARPS`.
        shared_places: arguments that may lie where another one does, so that what they hold changes
            while the kernel runs.
    """
    warps = warps or WARPS
    assignment = Assignment(
        func, warps, lambda op, n: product(op, n, machine).spread, Divisibility()
    )
    s = Simt(machine, func, warps, assignment, RULES)
    args = [a for a in func.args if isinstance(a.type, MemType)]
    symbolic = [n for n in grid if not isinstance(n, int)]
    types = [*[PTR] * len(args), *[I64] * (len(func.dims) + len(symbolic))]
    names = [*[a.name for a in args], *func.dims, *[f"n{k}" for k in range(len(symbolic))]]
    params = s.open(types, names)
    s.memory.update(zip(args, params, strict=False))
    s.dims.update(zip(func.dims, params[len(args) :], strict=False))
    places = {args[k] for k in shared_places}
    s.written = {s.memory[arg] for arg in written(func) | places}
    s.overwriting = Overwriting(places)
    s.emit(g.BlockInfo(s.threads, loc=s.loc))
    extents = iter(params[len(args) + len(func.dims) :])
    sizes = [n if isinstance(n, int) else next(extents) for n in grid]
    _program_ids(s, sizes, any(isinstance(op, tile.Dot) for op in walk(func.body)))
    s.run(func.body)
    return Func(func.name, s.close(), attrs=func.attrs)


def _program_ids(s: Simt, grid: Sequence[int | Value], grouped: bool) -> None:
    """The coordinates of the block's program, the last axis fastest.

    Products go through the last two axes in bands of `BAND` rows instead: blocks that run at the
    same time then share rows and columns of the operands, which stay in the cache.
    """
    found: list[Value] = []
    rest = s.pure(g.BlockId) if grid else s.i32(0)
    sizes = [s.i32(n) if isinstance(n, int) else s.cast(n, int32) for n in grid]
    if grouped and len(sizes) > 1:
        rows, cols = sizes[-2:]
        plane = s.index("mul", rows, cols)
        inside = rest if len(sizes) == 2 else s.index("rem", rest, plane)
        found = list(_banded(s, inside, rows, cols))
        rest = s.index("trunc_div", rest, plane)
        sizes = sizes[:-2]
    for size in reversed(sizes[1:]):
        found.append(s.index("rem", rest, size))
        rest = s.index("trunc_div", rest, size)
    if sizes:
        found.append(rest)
    s.program_ids = [s.cast(v, int64) for v in reversed(found)]


def _banded(s: Simt, number: Value, rows: Value, cols: Value) -> tuple[Value, Value]:
    """Column and row of a block that is so far into a plane of bands."""
    area = s.index("mul", cols, s.i32(BAND))
    first = s.index("mul", s.index("trunc_div", number, area), s.i32(BAND))
    inside = s.index("rem", number, area)
    height = s.index("min", s.index("sub", rows, first), s.i32(BAND))
    row = s.index("add", first, s.index("rem", inside, height))
    return s.index("trunc_div", inside, height), row
