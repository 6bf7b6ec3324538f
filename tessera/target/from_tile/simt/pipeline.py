"""Loops around a product, pipelined: while one part of the operands is multiplied, the next ones
are on their way to shared memory.

    for k in range(lo, hi, step): acc = dot(load(a, k), load(b, k), acc)

Where both operands come straight from memory, in pieces that the hardware copies by itself,
`stages - 1` parts are under way at a time (async copies into a ring of slots). Otherwise the next
part is loaded to registers before the product, and stored to the other one of two slots after it:
whatever is computed on the way (a cast, a scale) is computed there. Neither says a word of barriers
and waits: `target/passes/synchronize.py` finds them.

A loop may carry more than the accumulator, and do something with it after the product: parts of a
sum are added to those before them there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import PURE
from tessera.ir.walk import free_values
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.dot import Product, multiply, product
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import I64, Held, Simt
from tessera.target.from_tile.simt.memory import Access
from tessera.target.from_tile.simt.operand import Operand
from tessera.target.from_tile.simt.spread import (
    LANE_BITS,
    Spread,
    bits_of_dim,
    flat_bits,
    log2,
)
from tessera.target.gpu import GpuFeature
from tessera.tile import ops as tile
from tessera.tile.types import TileType

LEAST_COPY = 4
"""Bytes that the hardware copies by itself, at least."""


@dataclass(frozen=True)
class Loop:
    """A loop that can be pipelined.

    Attributes:
        op: the loop.
        dot: its product.
        makers: what makes the operands.
        after: what comes after the product.
        at: which of the carried values is its accumulator.
    """

    op: tile.For
    dot: tile.Dot
    makers: tuple[Op, ...]
    after: tuple[Op, ...] = ()
    at: int = 0


def match(s: Simt, op: tile.For) -> Loop | None:
    """The loop, if it carries the accumulator of its only product, and what is made of that."""
    dots = [one for one in op.body.ops if isinstance(one, tile.Dot)]
    carried = op.body.args[1:]
    if len(dots) != 1 or dots[0].acc not in carried:
        return None
    if len(carried) == 1:
        if op.body.outputs[0] is not dots[0].result:
            return None
        makers = tuple([one for one in op.body.ops if one is not dots[0]])
        loop = Loop(op, dots[0], makers)
    else:
        makers = _needed(op.body, dots[0].operands[:2])
        rest = [one for one in op.body.ops if one not in makers and one is not dots[0]]
        if any(one.get_effects() != PURE for one in rest):
            return None
        again = _needed(op.body, [v for one in rest for v in _inputs(one)])
        if any(isinstance(one, (tile.Load, tile.Gather)) for one in again):
            return None
        after = tuple([one for one in op.body.ops if one in rest or one in again])
        after = tuple([one for one in after if one is not dots[0]])
        loop = Loop(op, dots[0], makers, after, carried.index(dots[0].acc))
    for one in makers:
        reads = isinstance(one, (tile.Load, tile.Gather))
        if one.regions or dots[0].result in one.operands:
            return None
        if any(v in carried for v in one.operands):
            return None
        if not reads and one.get_effects() != PURE:
            return None
        if isinstance(one, (tile.Reduce, tile.Scan, tile.ArgReduce, tile.FlipBits)):
            return None
    if 1 in (*_shape(dots[0].a), *_shape(dots[0].b)):
        return None
    return loop


def _needed(block: Block, values: Sequence[Value]) -> tuple[Op, ...]:
    """The ops of a block that some values need, up to its product."""
    wanted = set(values)
    found: list[Op] = []
    for one in reversed(block.ops):
        if wanted.isdisjoint(one.results) or isinstance(one, tile.Dot):
            continue
        found.append(one)
        wanted.update(_inputs(one))
    return tuple(reversed(found))


def _inputs(op: Op) -> list[Value]:
    """What an op and its regions use."""
    return [*op.operands, *[v for region in op.regions for v in free_values(region)]]


def lower(s: Simt, loop: Loop) -> None:
    """Emits the pipelined loop."""
    how = product(loop.dot, s.warps, s.machine)
    copies = [_copy(s, value) for value in (loop.dot.a, loop.dot.b)]
    stages = max(loop.op.stages, 2)
    if all(copies) and s.machine.has(GpuFeature.ASYNC_COPY):
        _Ring(s, loop, how, stages).run()
    else:
        _Registers(s, loop, how).run()


def _copy(s: Simt, value: Value) -> tile.Load | None:
    """The load that an operand is, or repeats, if the hardware can copy it by itself."""
    op = _way(value)[-1].op
    if not isinstance(op, tile.Load) or op.mask or op.fill != 0:
        return None
    assert isinstance(op.result.type, TileType)
    wish = s.spreads.wishes[op]
    return op if wish.safe * op.result.type.dtype.itemsize >= LEAST_COPY else None


def _held_together(shape: tuple[int, ...], warps: int, count: int) -> Spread:
    """The spread of a short row that has so many neighbours in each thread."""
    bits = range(flat_bits(shape))
    own, lanes, rest = bits[: log2(count)], bits[log2(count) :][:LANE_BITS], bits[log2(count) :]
    others = rest[LANE_BITS:]
    lacking = [None] * (LANE_BITS - len(lanes)), [None] * (log2(warps) - len(others))
    return Spread(shape, tuple(own), (*lanes, *lacking[0]), (*others, *lacking[1]))


def _within(spread: Spread, shape: tuple[int, ...]) -> Spread:
    """The spread of a part of a larger tile, the first places of each dim."""
    names: dict[int, int | None] = {}
    for k in range(len(shape)):
        own = bits_of_dim(spread.shape, k)
        names.update(zip(own, bits_of_dim(shape, k), strict=False))
    return spread.renamed(shape, names)


def _way(value: Value) -> list[Value]:
    """An operand that repeats a row, what it repeats, and that before it was a row."""
    found = [value]
    for kind in (tile.Broadcast, tile.Reshape):
        if isinstance(found[-1].op, kind):
            found.append(found[-1].op.operands[0])
    return found if len(found) == 1 or isinstance(value.op, tile.Broadcast) else [value]


class _Pipeline:
    """What both kinds share."""

    def __init__(self, s: Simt, loop: Loop, how: Product, slots: int) -> None:
        self.s = s
        self.loop = loop
        self.how = how
        self.slots = slots
        self.lo = s.scalar(loop.op.lo)
        self.step = s.scalar(loop.op.step)
        span = s.index("sub", s.scalar(loop.op.hi), self.lo)
        span = s.index("add", span, s.index("sub", self.step, s.i64(1)))
        self.trips = s.index("max", s.index("floordiv", span, self.step), s.i64(0))
        self.operands = (self.operand(loop.dot.a, "lhs"), self.operand(loop.dot.b, "rhs"))
        self.dtype = s.held(loop.op.init[loop.at]).dtype
        self.carried = loop.op.body.args[1:]
        self.init = self.flat(loop.op.init)

    def flat(self, values: Sequence[Value]) -> list[Value]:
        """The registers of what is carried."""
        s = self.s
        pairs = zip(values, self.carried, strict=True)
        return [r for v, like in pairs for r in to_spread(s, s.held(v), s.spread_of(like)).values]

    def parts_of(self, values: Sequence[Value]) -> list[Sequence[Value]]:
        """The registers of each carried tile."""
        found: list[Sequence[Value]] = []
        at = 0
        for arg in self.carried:
            count = self.s.registers(arg)
            found.append(values[at : at + count])
            at += count
        return found

    def turn(
        self, trip: Value, values: Sequence[Value], bases: tuple[Value, Value]
    ) -> list[Value]:
        """The product of one part, and what comes after it."""
        s, loop = self.s, self.loop
        parts = self.parts_of(values)
        s.loc = loop.dot.loc
        acc = multiply(s, self.how, self.operands, parts[loop.at], self.dtype, bases)
        if not loop.after:
            return acc
        s.define(loop.op.body.args[0], [self.start_of(trip)])
        for arg, held in zip(self.carried, parts, strict=True):
            s.define(arg, held)
        s.define(loop.dot.result, acc)
        self.run_ops(loop.after)
        return self.flat(loop.op.body.outputs)

    def start_of(self, trip: Value) -> Value:
        """The loop's counter."""
        s = self.s
        return s.index("add", self.lo, s.index("mul", trip, self.step))

    def run_ops(self, code: Sequence[Op]) -> None:
        """Lowers some ops of the loop."""
        s = self.s
        for op in code:
            s.loc = op.loc
            s.rules[type(op)](s, op)

    def operand(self, value: Value, label: str) -> Operand:
        """Shared memory for one operand."""
        assert isinstance(value.type, TileType)
        type = value.type
        op = value.op
        while isinstance(op, (tile.Cast, tile.Map)) and op not in self.s.spreads.wishes:
            op = op.operands[0].op
        fast = 1
        if isinstance(op, tile.Load):
            order = self.s.spreads.wishes[op].order
            fast = order[0] if order and type.shape == _shape(op.result) else 1
        return Operand(self.s, type.shape, type.dtype, fast, self.slots, label)

    def make(self, trip: Value) -> None:
        """Computes what the operands of one iteration are made of."""
        self.s.define(self.loop.op.body.args[0], [self.start_of(trip)])
        self.run_ops(self.loop.makers)

    def bases(self, slot: Value) -> tuple[Value, Value]:
        """Where a slot starts in both operands."""
        return self.operands[0].slot(slot), self.operands[1].slot(slot)

    def next(self, slot: Value) -> Value:
        """The slot after another one."""
        s = self.s
        after = s.map("add", slot, s.i32(1))
        wrapped = s.map("eq", after, s.i32(self.slots))
        return s.map("select", wrapped, s.i32(0), after)

    def loop_over(
        self,
        init: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """`for trip in range(trips)`, carrying values."""
        s = self.s
        types = [v.type for v in init]
        block = s.region([I64, *types], lambda args: body(args[0], args[1:]))
        loc = self.loop.op.loc
        one = t.For(s.i64(0), self.trips, s.i64(1), tuple(init), 0, block, loc=loc)
        s.emit(one)
        return one.results

    def finish(self, values: Sequence[Value]) -> None:
        """Binds the results of the loop."""
        s = self.s
        spread = self.how.spread.reshaped(_shape(self.loop.dot.result))
        pairs = zip(self.loop.op.results, self.parts_of(values), strict=True)
        for k, (result, part) in enumerate(pairs):
            if k == self.loop.at:
                held = Held(spread.shape, self.dtype, spread, tuple(part))
                part = to_spread(s, held, s.spread_of(result)).values
            s.define(result, part)


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


class _Ring(_Pipeline):
    """Async copies, several parts ahead."""

    def __init__(self, s: Simt, loop: Loop, how: Product, stages: int) -> None:
        super().__init__(s, loop, how, stages)
        values = loop.dot.a, loop.dot.b
        self.loads = [load for load in map(partial(_copy, s), values) if load is not None]
        assert len(self.loads) == len(values)
        kept = {one.op for value in values for one in _way(value)}
        self.addresses = tuple([op for op in loop.makers if op not in kept])

    def issue(self, trip: Value, slot: Value) -> None:
        """Starts the copies of one part."""
        s = self.s
        s.define(self.loop.op.body.args[0], [self.start_of(trip)])
        self.run_ops(self.addresses)
        shapes = [_shape(_way(value)[:2][-1]) for value in self.loop.dot.operands[:2]]
        copies = zip(self.operands, shapes, self.loads, self.bases(slot), strict=True)
        for operand, shape, load, base in copies:
            s.loc = load.loc
            self.copy(operand, shape, load, base)

    def copy(
        self, operand: Operand, shape: tuple[int, ...], load: tile.Load, base: Value
    ) -> None:
        """Starts the copies of one operand, the repeated part of which has a shape."""
        s = self.s
        wish = s.spreads.wishes[load]
        spread = wish.spread(load.shape, s.warps)
        if spread.registers * operand.dtype.itemsize < LEAST_COPY:
            spread = _held_together(load.shape, s.warps, LEAST_COPY // operand.dtype.itemsize)
        access = Access(s, s.windows[load.view], load.coords, load.check, spread, wish)
        width = min(1 << len(access.run), wish.safe)
        side = operand.side(_within(spread.reshaped(shape), operand.shape))
        first = s.first_copy(spread.copies)
        # Where a row is repeated, it is copied so many times.
        repeats = [0]
        for k, extent in enumerate(shape):
            for bit in bits_of_dim(operand.shape, k)[log2(extent) :]:
                repeats += [at ^ operand.columns[bit] for at in repeats]
        places = side.offsets

        def start() -> Sequence[Value]:
            for group, moved in itertools.product(access.groups(width), repeats):
                side.offsets = [at ^ moved for at in places]
                at = side.address(group[0], base)
                size = width * operand.dtype.itemsize
                inside = access.inside(group[0])
                valid: tuple[Value, ...] = ()
                if inside is not None:
                    valid = (s.map("select", inside, s.i32(size), s.i32(0)),)
                source = access.offset(group[0])
                s.emit(
                    g.AsyncCopy(
                        operand.room, at, access.pointer, source, valid, size, operand.dtype,
                        loc=s.loc,
                    )
                )  # fmt: skip
            return ()

        if first is None:
            start()
        else:
            s.branch(first, start)

    def run(self) -> None:
        """The prologue, and the loop."""
        s = self.s
        ahead = self.slots - 1
        for k in range(ahead):
            trip = s.i64(k)
            self.guarded(trip, s.i32(k))
            s.emit(g.AsyncCommit(loc=s.loc))
        # The slot that is read, and the one that is filled next.
        init = [s.i32(0), s.i32(ahead % self.slots), *self.init]

        def body(trip: Value, carried: list[Value]) -> Sequence[Value]:
            reading, filling = carried[:2]
            self.guarded(s.index("add", trip, s.i64(ahead)), filling)
            s.emit(g.AsyncCommit(loc=s.loc))
            s.loc = self.loop.dot.loc
            values = self.turn(trip, carried[2:], self.bases(reading))
            s.loc = self.loop.dot.loc
            return [self.next(reading), self.next(filling), *values]

        results = self.loop_over(init, body)
        self.finish(results[2:])

    def guarded(self, trip: Value, slot: Value) -> None:
        """Starts the copies of one part, if there is one."""
        s = self.s
        trips, known = s.number(self.trips), s.number(trip)
        if trips is not None and known is not None:
            if known < trips:
                self.issue(trip, slot)
            return

        def start() -> Sequence[Value]:
            self.issue(trip, slot)
            return ()

        s.branch(s.map("lt", trip, self.trips), start)


class _Registers(_Pipeline):
    """One part ahead, in registers."""

    def __init__(self, s: Simt, loop: Loop, how: Product) -> None:
        super().__init__(s, loop, how, 2)

    def parts(self) -> list[Held]:
        """The operands that were made last."""
        return [self.s.held(self.loop.dot.a), self.s.held(self.loop.dot.b)]

    def keep(self, parts: Sequence[Held], slot: Value) -> None:
        """Stores both operands."""
        for operand, part, base in zip(self.operands, parts, self.bases(slot), strict=True):
            operand.store(part, base)

    def run(self) -> None:
        """The first part, and the loop. After the last one, a part is made that nobody reads."""
        s = self.s
        last = s.index("sub", self.trips, s.i64(1))

        def first() -> Sequence[Value]:
            self.make(s.i64(0))
            self.keep(self.parts(), s.i32(0))
            return ()

        some = s.map("gt", self.trips, s.i64(0))
        s.branch(some, first)
        init = [s.i32(0), *self.init]

        def body(trip: Value, carried: list[Value]) -> Sequence[Value]:
            slot = carried[0]
            self.make(s.map("min", s.index("add", trip, s.i64(1)), last))
            parts = self.parts()
            s.loc = self.loop.dot.loc
            values = self.turn(trip, carried[1:], self.bases(slot))
            s.loc = self.loop.dot.loc
            other = s.map("sub", s.i32(1), slot)
            self.keep(parts, other)
            return [other, *values]

        results = self.loop_over(init, body)
        self.finish(results[1:])
