"""Elementwise ops, shapes, control and indices: what costs no exchange between threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.dtypes import bool_, int64, uint64
from tessera.ir.core import Block, Value
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.from_tile.simt import pipeline
from tessera.target.from_tile.simt.comparison import compare_coordinates, coordinates_compared
from tessera.target.from_tile.simt.division import quotients, shares_divisors
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import I64, Held, Simt, Window
from tessera.target.from_tile.simt.spread import dim_starts
from tessera.tile import ops as tile
from tessera.tile.sentinel_ops import Sentinel
from tessera.tile.types import MemType, TileType

U64 = ScalarType(uint64)


def const(s: Simt, op: tile.Const) -> None:
    """A scalar constant."""
    assert not isinstance(op.value, complex)
    s.define(op.result, [s.const(op.value, op.dtype)])


def dim(s: Simt, op: tile.Dim_) -> None:
    """A symbolic size."""
    s.define(op.result, [s.dim(op.expr)])


def program_id(s: Simt, op: tile.ProgramId) -> None:
    """The program's place in the grid."""
    s.define(op.result, [s.program_ids[op.axis]])


def iota(s: Simt, op: tile.Iota) -> None:
    """Coordinates, from the thread's number and the register's."""
    spread = s.spread_of(op.result)
    if spread is None:
        s.define(op.result, [s.i64(0)])
        return
    s.define(
        op.result,
        [
            s.cast(s.element_coordinate(spread, op.axis, r), int64)
            for r in range(spread.registers)
        ],
    )


def map_(s: Simt, op: tile.Map) -> None:
    """A row of the scalar table, register by register."""
    spread = s.spread_of(op.result)
    args = [to_spread(s, s.held(a), spread).values for a in op.args]
    if spread is None and len(args) == 2 and args[0][0].type == args[1][0].type == I64:
        # Uniform index arithmetic is hoisted.
        s.define(op.result, [s.index(op.fn.name, args[0][0], args[1][0])])
        return
    if shares_divisors(op.fn, args):
        s.define(op.result, quotients(s, op.fn, args[0], args[1], s.is_narrowed(op.result)))
        return
    if coordinates_compared(s, op, args):
        s.define(op.result, compare_coordinates(s, op, args))
        return
    # Copies of one value (a broadcast scalar) are computed once.
    done: dict[tuple[Value, ...], Value] = {}
    values: list[Value] = []
    for row in zip(*args, strict=True):
        found = done.get(row)
        if found is None:
            known = _known(s, op.fn.name, row)
            found = done[row] = s.map(op.fn, *row) if known is None else known
        values.append(found)
    if op.fn.name == "lt" and 2 * len(done) == len(values) and args[0][0].type == U64:
        # Two registers that ask the same exchange what they hold. An assembler takes that for a
        # minimum and a maximum, and compares for each, unless something that it does not know
        # takes part.
        doubted = {v: s.map("xor", v, s.never) for v in done.values()}
        values = [doubted[v] for v in values]
    s.define(op.result, values)


def _known(s: Simt, fn: str, row: Sequence[Value]) -> Value | None:
    """What is decided by a register's number alone: the result of such a comparison, and what it
    selects."""
    numbers = [v.op.value if isinstance(v.op, t.Const) else None for v in row]
    if fn == "ne" and all(isinstance(n, int) for n in numbers):
        return s.const(numbers[0] != numbers[1], bool_)
    if fn == "select" and numbers[0] is not None:
        return row[1] if numbers[0] else row[2]
    return None


def _each(s: Simt, x: Value, result: Value, make: Callable[[Value], Value]) -> None:
    done: dict[Value, Value] = {}
    values: list[Value] = []
    for v in to_spread(s, s.held(x), s.spread_of(result)).values:
        found = done.get(v)
        if found is None:
            found = done[v] = make(v)
        values.append(found)
    s.define(result, values)


def cast(s: Simt, op: tile.Cast) -> None:
    """A conversion."""
    _each(s, op.x, op.result, lambda v: s.convert(v, op.dtype))


def bitcast(s: Simt, op: tile.Bitcast) -> None:
    """The same bits."""
    _each(s, op.x, op.result, lambda v: s.emit(t.Bitcast(v, op.dtype, loc=s.loc)))


def broadcast(s: Simt, op: tile.Broadcast) -> None:
    """Repeats: registers are named again, once the operand lies like the part that it fills."""
    spread = s.spread_of(op.result)
    x = s.held(op.x)
    if spread is None:
        s.define(op.result, x.values)
        return
    if x.spread is None:
        s.define(op.result, x.values * spread.registers)
        return
    axes = [k for k, n in enumerate(x.shape) if n != op.shape[k]]
    part = spread.to_one(axes)
    values = to_spread(s, x, part).values
    starts = dim_starts(part.shape)
    registers = part.register_of
    picked: list[Value] = []
    for coords in spread.coordinates:
        flat = 0
        for k, (c, start) in enumerate(zip(coords, starts, strict=True)):
            flat |= 0 if k in axes else c << start
        picked.append(values[registers[flat]])
    s.define(op.result, picked)


def reshape(s: Simt, op: tile.Reshape) -> None:
    """Other names for the same elements."""
    x = s.held(op.x)
    if x.spread is None:
        s.define(op.result, x.values)
        return
    moved = Held(op.shape, x.dtype, x.spread.reshaped(op.shape), x.values)
    s.define(op.result, to_spread(s, moved, s.spread_of(op.result)).values)


def transpose(s: Simt, op: tile.Transpose) -> None:
    """Other names, then a move if the result shall lie otherwise."""
    x = s.held(op.x)
    if x.spread is None:
        s.define(op.result, x.values)
        return
    spread = x.spread.transposed(op.perm)
    moved = Held(spread.shape, x.dtype, spread, x.values)
    s.define(op.result, to_spread(s, moved, s.spread_of(op.result)).values)


def part(s: Simt, op: tile.Part) -> None:
    """A pointer some bytes further."""
    s.memory[op.result] = s.pure(t.PtrAdd, s.memory[op.mem], s.i64(op.offset))


def view(s: Simt, op: tile.View) -> None:
    """A window: only its parts are kept."""
    assert isinstance(op.mem.type, MemType)
    s.windows[op.result] = Window(
        s.memory[op.mem],
        op.result,
        op.mem.type.dtype,
        s.scalar(op.offset),
        tuple([s.scalar(v) for v in op.sizes]),
        tuple([s.scalar(v) for v in op.strides]),
    )


def sentinel(s: Simt, op: Sentinel) -> None:
    """Each thread looks at what it holds, and tells by itself: nothing is exchanged."""
    bad = list(dict.fromkeys(s.held(op.bad).values))
    found = bad[0]
    for value in bad[1:]:
        found = s.map("or", found, value)

    def tell() -> Sequence[Value]:
        s.emit(t.Sentinel(loc=s.loc))
        return ()

    s.branch(found, tell)


# --- control ---


def _flat(s: Simt, values: Sequence[Value], like: Sequence[Value]) -> list[Value]:
    """The registers of tiles, each lying as its counterpart in `like` shall."""
    found: list[Value] = []
    for value, other in zip(values, like, strict=True):
        found += to_spread(s, s.held(value), s.spread_of(other)).values
    return found


def _types(s: Simt, values: Sequence[Value]) -> list[Type]:
    found: list[Type] = []
    for value in values:
        assert isinstance(value.type, TileType)
        found += [ScalarType(value.type.dtype)] * s.registers(value)
    return found


def _bind(s: Simt, tiles: Sequence[Value], values: Sequence[Value]) -> None:
    position = 0
    for one in tiles:
        count = s.registers(one)
        s.define(one, values[position : position + count])
        position += count


def for_(s: Simt, op: tile.For) -> None:
    """A loop that all threads of the block run."""
    loop = pipeline.match(s, op)
    if loop is not None:
        pipeline.lower(s, loop)
        return
    inner = op.body.args[1:]
    init = _flat(s, op.init, inner)

    def body(args: list[Value]) -> Sequence[Value]:
        s.define(op.body.args[0], args[:1])
        _bind(s, inner, args[1:])
        s.run(op.body)
        return _flat(s, op.body.outputs, inner)

    block = s.region([I64, *_types(s, inner)], body)
    bounds = s.scalar(op.lo), s.scalar(op.hi), s.scalar(op.step)
    plain = t.For(*bounds, init, 0, block, loc=op.loc)
    s.emit(plain)
    _bind(s, op.results, plain.results)


def while_(s: Simt, op: tile.While) -> None:
    """A loop whose condition all threads agree on."""
    inner = op.cond.args
    init = _flat(s, op.init, inner)
    types = _types(s, inner)

    def part(block: Block, like: Sequence[Value]) -> Block:
        def body(args: list[Value]) -> Sequence[Value]:
            _bind(s, block.args, args)
            s.run(block)
            return _flat(s, block.outputs, like)

        return s.region(types, body)

    loop = t.While(init, part(op.cond, op.cond.outputs), part(op.body, inner), loc=op.loc)
    s.emit(loop)
    _bind(s, op.results, loop.results)


def if_(s: Simt, op: tile.If) -> None:
    """A branch that all threads take together."""

    def part(block: Block) -> Callable[[], Sequence[Value]]:
        def body() -> Sequence[Value]:
            s.run(block)
            return _flat(s, block.outputs, op.results)

        return body

    results = s.branch(s.scalar(op.pred), part(op.then), part(op.otherwise))
    _bind(s, op.results, results)
