"""Loops around a product, pipelined: while one part of the operands is multiplied, the next ones
are on their way to shared memory.

    for k in range(lo, hi, step): acc = dot(load(a, k), load(b, k), acc)

Where both operands come straight from memory, in pieces that the hardware copies by itself,
`stages - 1` parts are under way at a time (async copies into a ring of slots). Otherwise the next
part is loaded to registers before the product, and stored to the other one of two slots after it:
whatever is computed on the way (a cast, a scale) is computed there. Neither says a word of barriers
and waits: `target/passes/synchronize.py` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.ir.core import Op, Value
from tessera.ir.effects import PURE
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.dot import Product, multiply, product
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import I64, Held, Simt
from tessera.target.from_tile.simt.memory import Access
from tessera.target.from_tile.simt.operand import Operand
from tessera.target.gpu import GpuFeature
from tessera.tile import ops as tile
from tessera.tile.types import TileType


@dataclass(frozen=True)
class Loop:
    """A loop that can be pipelined: its product, and what makes the operands."""

    op: tile.For
    dot: tile.Dot
    makers: tuple[Op, ...]


def match(s: Simt, op: tile.For) -> Loop | None:
    """The loop, if all that it carries is the accumulator of its only product."""
    if len(op.init) != 1:
        return None
    dots = [one for one in op.body.ops if isinstance(one, tile.Dot)]
    carried = op.body.args[1]
    if len(dots) != 1 or dots[0].acc is not carried or op.body.outputs[0] is not dots[0].result:
        return None
    makers = tuple([one for one in op.body.ops if one is not dots[0]])
    for one in makers:
        reads = isinstance(one, (tile.Load, tile.Gather))
        if one.regions or carried in one.operands or dots[0].result in one.operands:
            return None
        if not reads and one.get_effects() != PURE:
            return None
        if isinstance(one, (tile.Reduce, tile.Scan, tile.ArgReduce, tile.FlipBits)):
            return None
    if 1 in (*_shape(dots[0].a), *_shape(dots[0].b)):
        return None
    return Loop(op, dots[0], makers)


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
    """The load that an operand is, if the hardware can copy it by itself."""
    op = value.op
    if not isinstance(op, tile.Load) or op.mask or op.fill != 0:
        return None
    assert isinstance(op.result.type, TileType)
    wish = s.spreads.wishes[op]
    return op if wish.safe * op.result.type.dtype.itemsize >= 4 else None


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
        init = s.held(loop.op.init[0])
        spread = s.spread_of(loop.dot.result)
        self.dtype = init.dtype
        self.acc = to_spread(s, init, spread).values

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
        s = self.s
        k = s.index("add", self.lo, s.index("mul", trip, self.step))
        s.define(self.loop.op.body.args[0], [k])
        for op in self.loop.makers:
            s.loc = op.loc
            s.rules[type(op)](s, op)

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

    def finish(self, acc: Sequence[Value]) -> None:
        """Binds the result of the loop."""
        s = self.s
        spread = self.how.spread.reshaped(_shape(self.loop.dot.result))
        held = Held(spread.shape, self.dtype, spread, tuple(acc))
        result = self.loop.op.results[0]
        s.define(result, to_spread(s, held, s.spread_of(result)).values)


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


class _Ring(_Pipeline):
    """Async copies, several parts ahead."""

    def __init__(self, s: Simt, loop: Loop, how: Product, stages: int) -> None:
        super().__init__(s, loop, how, stages)
        self.loads: list[tile.Load] = []
        for value in (loop.dot.a, loop.dot.b):
            assert isinstance(value.op, tile.Load)
            self.loads.append(value.op)
        kept = {*self.loads}
        self.addresses = tuple([op for op in loop.makers if op not in kept])

    def issue(self, trip: Value, slot: Value) -> None:
        """Starts the copies of one part."""
        s = self.s
        k = s.index("add", self.lo, s.index("mul", trip, self.step))
        s.define(self.loop.op.body.args[0], [k])
        for op in self.addresses:
            s.loc = op.loc
            s.rules[type(op)](s, op)
        for operand, load, base in zip(self.operands, self.loads, self.bases(slot), strict=True):
            s.loc = load.loc
            self.copy(operand, load, base)

    def copy(self, operand: Operand, load: tile.Load, base: Value) -> None:
        """Starts the copies of one operand."""
        s = self.s
        wish = s.spreads.wishes[load]
        spread = wish.spread(load.shape, s.warps)
        access = Access(s, s.windows[load.view], load.coords, load.check, spread, wish)
        width = min(1 << len(access.run), wish.safe)
        side = operand.side(spread)
        first = s.first_copy(spread.copies)

        def start() -> Sequence[Value]:
            for group in access.groups(width):
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
        init = [s.i32(0), s.i32(ahead % self.slots), *self.acc]

        def body(trip: Value, carried: list[Value]) -> Sequence[Value]:
            reading, filling, acc = carried[0], carried[1], carried[2:]
            self.guarded(s.index("add", trip, s.i64(ahead)), filling)
            s.emit(g.AsyncCommit(loc=s.loc))
            s.loc = self.loop.dot.loc
            bases = self.bases(reading)
            acc = multiply(s, self.how, self.operands, acc, self.dtype, bases)
            return [self.next(reading), self.next(filling), *acc]

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
        init = [s.i32(0), *self.acc]

        def body(trip: Value, carried: list[Value]) -> Sequence[Value]:
            slot, acc = carried[0], carried[1:]
            self.make(s.map("min", s.index("add", trip, s.i64(1)), last))
            parts = self.parts()
            s.loc = self.loop.dot.loc
            acc = multiply(s, self.how, self.operands, acc, self.dtype, self.bases(slot))
            other = s.map("sub", s.i32(1), slot)
            self.keep(parts, other)
            return [other, *acc]

        results = self.loop_over(init, body)
        self.finish(results[1:])
