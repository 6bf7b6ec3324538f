"""The CPU lowering: Tile IR to Target IR, a tile being a block of vector registers.

A tile of shape [a, b, L] becomes a*b values: vectors of L lanes, or scalars when L is 1 (or the
rank is 0). Leading dims are unrolled, so tiles are register blocks and loops stand outside them. A
kernel becomes a function

    kernel(pointers..., dims..., n1, n2, ..., lo, hi)

that runs the programs lo to hi of its grid, numbered row by row; n1, n2, ... are the extents of the
grid's axes but the first, and a grid of rank 0 has no such arguments. Programs of a grid need
nothing of each other: a launch that says how many are worth a thread's while shares them
(`target.parallel`), and those of one thread that go through the same steps, each on its part of a
row, go through them together: the loop over steps stands outside, so that memory is taken row by
row. The entry takes pointers for inputs and outputs, the arena's pointer, and the dims.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, Kind, int8, int64
from tessera.ir.core import Func, Module, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import ScalarFn, scalar
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.from_tile import lanes, loops, memory, panels
from tessera.target.from_tile.calls import host_call
from tessera.target.from_tile.extremes import extreme_number
from tessera.target.from_tile.lowering import (
    I64,
    PTR,
    Lowering,
    Rows,
    Rule,
    constant_of,
    is_power,
    row_count,
    row_type,
)
from tessera.target.from_tile.side_by_side import combined
from tessera.target.from_tile.sorting import select_words, sort_words
from tessera.target.machine import Machine
from tessera.target.passes.outline import outline
from tessera.tile import ops as tile
from tessera.tile.entry_ops import SelectWords, SortWords, Together
from tessera.tile.panel_ops import DotPanels
from tessera.tile.prefetch_ops import Prefetch
from tessera.tile.scratch_ops import Scratch
from tessera.tile.sentinel_ops import Sentinel

# --- rules ---


def _const(s: Lowering, op: tile.Const) -> None:
    assert not isinstance(op.value, complex)
    s.define(op.result, [s.const(op.value, ScalarType(op.dtype))])


def _dim(s: Lowering, op: tile.Dim_) -> None:
    s.define(op.result, [s.dim(op.expr)])


def _program_id(s: Lowering, op: tile.ProgramId) -> None:
    s.define(op.result, [s.program_ids[op.axis]])


def _iota(s: Lowering, op: tile.Iota) -> None:
    shape = op.shape
    type = row_type(shape, int64)
    if op.axis == len(shape) - 1:
        lanes = shape[-1]
        row = s.index(0) if lanes == 1 else s.emit(t.Lanes(lanes, int64, loc=s.loc))
        s.define(op.result, [row] * row_count(shape))
        return
    s.define(
        op.result, [s.const(i[op.axis], type) for i in itertools.product(*map(range, shape[:-1]))]
    )


def _map(s: Lowering, op: tile.Map) -> None:
    args = [s.rows(a) for a in op.args]
    s.define(op.result, [s.map(op.fn, *row) for row in zip(*[a.values for a in args], strict=True)])


def _cast(s: Lowering, op: tile.Cast) -> None:
    s.define(op.result, [s.cast(v, op.dtype) for v in s.rows(op.x).values])


def _bitcast(s: Lowering, op: tile.Bitcast) -> None:
    s.define(op.result, [s.emit(t.Bitcast(v, op.dtype, loc=s.loc)) for v in s.rows(op.x).values])


def _broadcast(s: Lowering, op: tile.Broadcast) -> None:
    x = s.rows(op.x)
    lanes = op.shape[-1] if op.shape else 1
    values = x.values if x.lanes == lanes else tuple([s.splat(v, lanes) for v in x.values])
    if not x.shape:
        s.define(op.result, list(values) * row_count(op.shape))
        return
    picked: list[Value] = []
    for index in itertools.product(*map(range, op.shape[:-1])):
        flat = 0
        for i, size in zip(index, x.shape[:-1], strict=True):
            flat = flat * size + (i if size > 1 else 0)
        picked.append(values[flat])
    s.define(op.result, picked)


def _reshape(s: Lowering, op: tile.Reshape) -> None:
    x = s.rows(op.x)
    lanes = op.shape[-1] if op.shape else 1
    values = x.values if lanes == x.lanes else s.from_scalars(s.scalars(x), op.shape, x.dtype)
    s.define(op.result, values)


def _transpose(s: Lowering, op: tile.Transpose) -> None:
    x = s.rows(op.x)
    shape = tuple(x.shape[p] for p in op.perm)
    if op.perm == (1, 0) and shape[0] == shape[1] and is_power(shape[0]):
        s.define(op.result, s.turn(x.values))
        return
    by_row = op.perm and op.perm[-1] == len(shape) - 1
    items = list(x.values) if by_row else s.scalars(x)
    sizes = x.shape[:-1] if by_row else x.shape
    perm = op.perm[:-1] if by_row else op.perm
    result: list[Value] = []
    for index in itertools.product(*[range(sizes[p]) for p in perm]):
        source = [0] * len(perm)
        for k, p in enumerate(perm):
            source[p] = index[k]
        flat = 0
        for i, size in zip(source, sizes, strict=True):
            flat = flat * size + i
        result.append(items[flat])
    s.define(op.result, result if by_row else s.from_scalars(result, shape, x.dtype))


def _tree(items: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    level = list(items)
    rest: list[Value] = []
    while len(level) > 1:
        half = len(level) // 2
        rest += level[2 * half :]
        level = [combine(level[k], level[k + half]) for k in range(half)]
    result = level[0]
    for item in reversed(rest):
        result = combine(result, item)
    return result


def _reduce(s: Lowering, op: tile.Reduce) -> None:
    x = s.rows(op.x)
    shape = x.shape[: op.axis] + x.shape[op.axis + 1 :]
    scanned = s.scans.get((s.blocks[-1], op.x, op.fn, op.axis))
    if scanned is not None:
        rows, is_reverse = scanned
        end = 0 if is_reverse else x.shape[op.axis] - 1
        if op.axis == len(x.shape) - 1:
            ends = [s.extract(row, end) for row in rows]
            s.define(op.result, s.from_scalars(ends, shape, x.dtype))
        else:
            s.define(op.result, [rows[along[end]] for along in lanes.slices(x, op.axis)])
        return
    if op.axis == len(x.shape) - 1:
        whole = combined(s, x.values, op.fn) if len(shape) == 1 else None
        if whole is not None:
            s.define(op.result, [whole])
            return
        if op.numbers and is_power(x.lanes):
            scalars = [extreme_number(s, v, op.fn) for v in x.values]
        else:
            scalars = [
                v if x.lanes == 1 else s.emit(t.ReduceLanes(v, op.fn, loc=s.loc)) for v in x.values
            ]
        s.define(op.result, s.from_scalars(scalars, shape, x.dtype))
        return
    s.define(
        op.result,
        [
            _tree([x.values[r] for r in rows], lambda a, b: s.map(op.fn, a, b))
            for rows in lanes.slices(x, op.axis)
        ],
    )


def _pick(
    s: Lowering, fn: ScalarFn, a: tuple[Value, Value], b: tuple[Value, Value]
) -> tuple[Value, Value]:
    """The better of two (value, index) pairs: NaN first, then the extreme, then the smaller index.
    """
    (x, i), (y, j) = a, b
    dtype = t.element(x.type)
    better = s.map("gt" if fn.name == "max" else "lt", x, y)
    tie = s.map("eq", x, y)
    if dtype.kind is Kind.FLOAT:
        x_nan, y_nan = s.map("ne", x, x), s.map("ne", y, y)
        better = s.map("or", better, s.map("and", x_nan, s.map("not", y_nan)))
        tie = s.map("or", tie, s.map("and", x_nan, y_nan))
    first = s.map("or", better, s.map("and", tie, s.map("lt", i, j)))
    return s.map("select", first, x, y), s.map("select", first, i, j)


def _arg_reduce(s: Lowering, op: tile.ArgReduce) -> None:
    x, index = s.rows(op.x), s.rows(op.index)
    shape = x.shape[: op.axis] + x.shape[op.axis + 1 :]
    pairs = list(zip(x.values, index.values, strict=True))

    def combine(items: Sequence[tuple[Value, Value]]) -> tuple[Value, Value]:
        best = items[0]
        for item in items[1:]:
            best = _pick(s, op.fn, best, item)
        return best

    if op.axis == len(x.shape) - 1:
        found = [
            combine([(s.extract(v, k), s.extract(i, k)) for k in range(x.lanes)])
            if x.lanes > 1
            else (v, i)
            for v, i in pairs
        ]
        s.define(op.results[0], s.from_scalars([f[0] for f in found], shape, x.dtype))
        s.define(op.results[1], s.from_scalars([f[1] for f in found], shape, index.dtype))
        return
    found = [combine([pairs[r] for r in rows]) for rows in lanes.slices(x, op.axis)]
    s.define(op.results[0], [f[0] for f in found])
    s.define(op.results[1], [f[1] for f in found])


def _scan(s: Lowering, op: tile.Scan) -> None:
    x = s.rows(op.x)

    def running(items: list[Value]) -> list[Value]:
        if op.reverse:
            items = items[::-1]
        out = [items[0]]
        for item in items[1:]:
            out.append(s.map(op.fn, out[-1], item))
        return out[::-1] if op.reverse else out

    if op.axis == len(x.shape) - 1:
        if x.lanes == 1:
            s.define(op.result, x.values)
            return
        found = [_scan_lanes(s, op, v, x) for v in x.values]
        s.scans[s.blocks[-1], op.x, op.fn, op.axis] = found, op.reverse
        s.define(op.result, found)
        return
    result = list(x.values)
    for rows in lanes.slices(x, op.axis):
        for row, value in zip(rows, running([x.values[r] for r in rows]), strict=True):
            result[row] = value
    s.scans[s.blocks[-1], op.x, op.fn, op.axis] = result, op.reverse
    s.define(op.result, result)


def _scan_lanes(s: Lowering, op: tile.Scan, value: Value, x: Rows) -> Value:
    """A scan along lanes: neighbours make pairs, pairs make fours, and the last lane of each first
    half goes to all of the second (Sklansky, "Conditional-sum addition logic", 1960).

    Scans by steps twice as far each time have as many shuffles, but moves of whole vectors with
    zeros behind them are what LLVM 22 has the expanding instructions for, which are slow."""
    assert op.fn.identity is not None
    lanes = x.lanes
    neutral = s.const(op.fn.identity(x.dtype), row_type(x.shape, x.dtype))
    by = 1
    while by < lanes:
        if op.reverse:
            ends = [(k // by + 1) * by if k // by % 2 == 0 else lanes + k for k in range(lanes)]
        else:
            ends = [k // by * by - 1 if k // by % 2 else lanes + k for k in range(lanes)]
        picks = tuple(ends)
        moved = s.emit(t.Shuffle(value, neutral, picks, loc=s.loc))
        value = s.map(op.fn, moved, value)
        by *= 2
    return value


def _dot(s: Lowering, op: tile.Dot) -> None:
    a, b, acc = s.rows(op.a), s.rows(op.b), s.rows(op.acc)
    (rows, depth), lanes = a.shape, b.lanes
    dtype = acc.dtype
    is_whole = lanes * dtype.bits % s.machine.vector_bits == 0
    if depth > 1 and is_whole and s.machine.group(a.dtype, b.dtype) == depth:
        _dot_groups(s, op, a, b, acc)
        return
    fused = dtype.kind is Kind.FLOAT and has_fma(s.machine, dtype)
    result = list(acc.values)
    for k in range(depth):
        right = s.cast(b.values[k], dtype)
        for m in range(rows):
            left = s.splat(s.cast(s.extract(a.values[m], k), dtype), lanes)
            if fused:
                result[m] = s.map("fma", left, right, result[m])
            else:
                result[m] = s.map("add", result[m], s.map("mul", left, right))
    s.define(op.result, result)


def _dot_groups(s: Lowering, op: tile.Dot, a: Rows, b: Rows, acc: Rows) -> None:
    """Some steps along the depth at once, a power of two. Of bytes the unsigned ones come first."""
    size = len(b.values)
    is_turned = a.dtype is int8
    right = s.mix(b.values) if b.mixed is None else b.mixed
    result: list[Value] = []
    for left, total in zip(a.values, acc.values, strict=True):
        group = s.emit(t.Shuffle(left, left, tuple(range(size)) * b.lanes, loc=s.loc))
        sides = (right, group) if is_turned else (group, right)
        result.append(s.emit(t.DotGroups(total, *sides, loc=s.loc)))
    s.define(op.result, result)


def has_fma(machine: Machine, dtype: DType) -> bool:
    """Whether a fused multiply-add of the dtype is one instruction."""
    return machine.fma and dtype.bits in (32, 64)


def _arena(s: Lowering, op: tile.Arena) -> None:
    assert s.arena is not None
    s.env[op.result] = s.emit(t.PtrAdd(s.arena, s.dim(op.offset), loc=s.loc))


def _scratch(s: Lowering, op: Scratch) -> None:
    """The kernel has it already, for all its programs."""
    assert op.result in s.env


def _sentinel(s: Lowering, op: Sentinel) -> None:
    bad = s.rows(op.bad)
    found = _tree(bad.values, lambda a, b: s.map("or", a, b))
    found = s.emit(t.ReduceLanes(found, scalar("or"), loc=s.loc)) if bad.lanes > 1 else found
    told = s.region((), lambda _: (s.emit(t.Sentinel(loc=s.loc)), ())[1])
    s.emit(t.If(found, told, s.region((), lambda _: ()), loc=s.loc))


def _limit(s: Lowering, op: tile.Limit) -> None:
    s.env[op.result] = s.emit(t.Limit(s.ptr(op.mem), s.dim(op.size), loc=s.loc))


def _launch(s: Lowering, op: tile.Launch) -> None:
    args = [s.ptr(a) for a in op.args]
    args += [s.dims[name] for name in s.kernels[op.kernel].dims]
    if not op.grid:
        s.emit(t.Call(args, op.kernel, loc=s.loc))
        return
    extents = [s.dim(extent) for extent in op.grid]
    args += extents[1:]
    count = extents[0]
    for extent in extents[1:]:
        count = s.map("mul", count, extent)
    known = constant_of(count)
    if op.grain and (known is None or known > op.grain):
        s.emit(t.Parallel(args, count, op.kernel, op.grain, loc=s.loc))
    else:
        s.emit(t.Call([*args, s.index(0), count], op.kernel, loc=s.loc))


def _together(s: Lowering, op: Together) -> None:
    def launches(_: list[Value]) -> Sequence[Value]:
        s.run(op.body)
        return ()

    body = s.region((), launches)
    pieces = sum([_pieces(one) for one in body.ops if isinstance(one, (t.Call, t.Parallel))])
    s.emit(t.Together(max(pieces // _SHARES, 1), body, loc=s.loc))


_SHARES = 64
"""Into so many parts, at least, threads share calls that need nothing of each other."""


def _pieces(op: t.Call | t.Parallel) -> int:
    """How many pieces a call has."""
    count = constant_of(op.count) if isinstance(op, t.Parallel) else 1
    assert count is not None
    return -(-int(count) // op.grain) if isinstance(op, t.Parallel) else 1


RULES: Mapping[type[Op], Rule] = {
    tile.Const: _const,
    tile.Dim_: _dim,
    tile.ProgramId: _program_id,
    tile.Iota: _iota,
    tile.Map: _map,
    tile.Cast: _cast,
    tile.Bitcast: _bitcast,
    tile.Broadcast: _broadcast,
    tile.Reshape: _reshape,
    tile.Transpose: _transpose,
    tile.View: memory.view,
    tile.Load: memory.load,
    tile.Store: memory.store,
    tile.Gather: memory.gather,
    tile.Scatter: memory.scatter,
    tile.Reduce: _reduce,
    tile.ArgReduce: _arg_reduce,
    tile.Scan: _scan,
    tile.Dot: _dot,
    tile.For: loops.for_loop,
    tile.While: loops.while_loop,
    tile.If: loops.branch,
    tile.Arena: _arena,
    tile.Limit: _limit,
    Sentinel: _sentinel,
    Prefetch: memory.prefetch,
    Scratch: _scratch,
    DotPanels: panels.dot_panels,
    **lanes.RULES,
    tile.Launch: _launch,
    Together: _together,
    SortWords: sort_words,
    SelectWords: select_words,
    tile.HostCall: host_call,
}


def lower_kernel(func: Func, grid_rank: int, machine: Machine) -> Func:
    """One kernel as a function over a range of its grid."""
    s = Lowering(machine, func.dims, RULES)
    for arg in func.args:
        s.env[arg] = s.entry.arg(PTR, arg.name)
    for name in func.dims:
        s.dims[name] = s.entry.arg(I64, name)
    dots: list[DotPanels] = []
    for op in walk(func.body):
        if isinstance(op, Scratch):
            s.env[op.result] = s.emit(t.Alloca(op.dtype, op.count, loc=op.loc))
        elif isinstance(op, DotPanels):
            dots.append(op)
    names = [*[f"n{k}" for k in range(1, grid_rank)], "lo", "hi"] if grid_rank else []
    *extents, lo, hi = [s.entry.arg(I64, name) for name in names] or [None, None]
    panels.begin(s, dots)
    if lo is None or hi is None:
        s.run(func.body)
        return _function(s, func)

    # A program of a product in panels has as many of them as stay near.
    steps = _shared_steps(func) if grid_rank == 1 and not dots else None

    def programs(code: Sequence[Op]) -> None:
        def body(args: list[Value]) -> Sequence[Value]:
            s.program_ids = _places(s, args[0], [n for n in extents if n is not None])
            s.run_ops(code)
            return ()

        s.emit(t.For(lo, hi, s.index(1), (), 0, s.region([I64], body), loc=Loc.unknown))

    def step(args: list[Value]) -> Sequence[Value]:
        assert steps is not None
        s.bind_args(steps.loop.body.args, args)
        programs([*steps.own, *steps.loop.body.ops])
        return ()

    if steps is None:
        programs(func.body.ops)
    else:
        s.run_ops(steps.common)
        bounds = [s.scalar(v) for v in (steps.loop.lo, steps.loop.hi, steps.loop.step)]
        s.emit(t.For(*bounds, (), 0, s.region([I64], step), loc=steps.loop.loc))
    return _function(s, func)


def _function(s: Lowering, func: Func) -> Func:
    panels.end(s)
    return Func(func.name, s.entry.block(()), attrs=func.attrs)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A loop that all programs run alike.

    Attributes:
        common: what stands before it and is the same for all programs.
        own: what differs from program to program.
        loop: the loop.
    """

    common: list[Op]
    own: list[Op]
    loop: tile.For


def _shared_steps(func: Func) -> _Steps | None:
    """The loop that a kernel consists of, if each of its steps goes over places in a row that begin
    where the program's number says; None where it does not."""
    before, loop = func.body.ops[:-1], func.body.ops[-1] if func.body.ops else None
    if not isinstance(loop, tile.For) or loop.init or any(op.effects for op in before):
        return None
    own: dict[Value, Op] = {}
    for op in before:
        if isinstance(op, tile.ProgramId) or any(v in own for v in op.operands):
            own.update(dict.fromkeys(op.results, op))
    rows = [op for op in loop.body.ops if isinstance(op, tile.For)]
    if len(rows) != 1 or any(v in own for v in (loop.lo, loop.hi, loop.step)):
        return None
    first = own.get(rows[0].lo)
    if not isinstance(first, tile.Map) or first.fn.name != "mul":
        return None
    if not isinstance(first.args[0].op, tile.ProgramId):
        return None
    owned = set(own.values())
    return _Steps([op for op in before if op not in owned], list(dict.fromkeys(own.values())), loop)


def _places(s: Lowering, number: Value, extents: Sequence[Value]) -> list[Value]:
    """Where a program stands on each axis of the grid."""
    places: list[Value] = []
    for extent in reversed(extents):
        # Both are at least 0, where the remainder of the two divisions is the same.
        places.append(s.map("rem", number, extent))
        number = s.map("trunc_div", number, extent)
    return [number, *places[::-1]]


def lower_main(func: Func, kernels: dict[str, Func], machine: Machine) -> dict[str, Func]:
    """The entry: pointers of inputs and outputs, the arena, the dims. Functions that only it calls
    come before it."""
    s = Lowering(machine, func.dims, RULES)
    for arg in func.args:
        s.env[arg] = s.entry.arg(PTR, arg.name)
    s.arena = s.entry.arg(PTR, "arena")
    for name in func.dims:
        s.dims[name] = s.entry.arg(I64, name)
    s.kernels = kernels
    s.run(func.body)
    return {**s.made, func.name: Func(func.name, s.entry.block(()), attrs=func.attrs)}


def lower_module(module: Module, machine: Machine) -> Module:
    """A Tile module as a Target module."""
    ranks: dict[str, int] = {}
    for op in walk(module.entry.body):
        if isinstance(op, tile.Launch):
            ranks[op.kernel] = len(op.grid)
    kernels = {name: f for name, f in module.funcs.items() if name != module.main}
    funcs: dict[str, Func] = {}
    for name, f in kernels.items():
        found = outline(lower_kernel(f, ranks.get(name, 0), machine))
        funcs.update([(one.name, one) for one in found])
    funcs.update(lower_main(module.entry, kernels, machine))
    return Module(funcs, module.main)
