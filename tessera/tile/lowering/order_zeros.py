"""The zeros of sorted rows, in the order in which the rows had them.

A sort of words tells -0 from 0, and all zeros of one sign come first. Where the zeros of a row are
is found by halving; most rows have none, or of one sign alone, and are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import float16, float32, int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule.sort_ops import OrderZeros
from tessera.schedule.types import BufType
from tessera.schedule.words import UNSIGNED, key_bits
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.sort_words import TileCode
from tessera.tile.ops import tile_type


def order_zeros(em: Emitter, op: OrderZeros, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid."""
    em.loc = op.loc
    return _Zeros(em, op, memory).run()


class _Zeros:
    def __init__(self, em: Emitter, op: OrderZeros, memory: dict[Value, Value]) -> None:
        self.em = em
        self.op = op
        self.memory = memory
        type = _type(op.target)
        others = [k for k in range(len(type.shape)) if k != op.axis]
        self.grid = tuple([type.shape[k] for k in others])
        self.names = {k: f"$p{at}" for at, k in enumerate(others)}
        for at, name in enumerate(self.names.values()):
            em.symbols[name] = em.pure(t.ProgramId, at)
        self.wide = type.dtype if type.dtype.bits >= 32 else float32
        self.none, self.one = em.const(0, int64), em.const(1, int64)
        self.zero = em.const(0.0, self.wide)

    def view(self, buf: Value, k: Value) -> Value:
        """The place of an element."""
        strides = _type(buf).element_strides()
        base: Dim = strides[self.op.axis] * sym("$k")
        for axis, name in self.names.items():
            base = base + strides[axis] * sym(name)
        return self.em.pure(t.View, self.memory[buf], self.em.index(base, lambda _: k), (), ())

    def load(self, buf: Value, k: Value) -> Value:
        """An element."""
        return self.em.add(t.Load(self.view(buf, k), (), (), (), loc=self.em.loc))[0]

    def is_zero(self, x: Value) -> Value:
        """Whether it is one of both."""
        return self.em.map("eq", self.em.cast(x, self.wide), self.zero)

    def is_before(self, x: Value) -> Value:
        """Whether it stands before zeros."""
        em = self.em
        x = em.cast(x, self.wide)
        if not self.op.descending:
            return em.map("lt", x, self.zero)
        return em.map("or", em.map("gt", x, self.zero), em.map("isnan", x))

    def comes_first(self, x: Value) -> Value:
        """Whether a zero has the sign of those that come first."""
        dtype = tile_type(x).dtype
        bits = key_bits(dtype)
        x = x if dtype.bits == bits else self.em.cast(x, float16)
        pattern = TileCode(self.em).bitcast(x, UNSIGNED[bits])
        is_positive = self.em.map("eq", pattern, self.em.const(0, UNSIGNED[bits]))
        return is_positive if self.op.descending else self.em.map("not", is_positive)

    def found(self, wanted: Value) -> list[Value]:
        """Where the zeros begin, and where they end."""
        em = self.em

        def search(turn: Value, carried: list[Value]) -> Sequence[Value]:
            _, begin = carried
            passes_zeros = em.map("ne", turn, self.none)

            def halve(carried: list[Value]) -> Sequence[Value]:
                low, high = carried
                middle = em.map("shr", em.map("add", low, high), self.one)
                x = self.load(self.op.target, middle)
                passes = em.map("and", passes_zeros, self.is_zero(x))
                goes_up = em.map("or", self.is_before(x), passes)
                low = em.select(goes_up, em.map("add", middle, self.one), low)
                return [low, em.select(goes_up, high, middle)]

            low, _ = em.repeat([begin, wanted], lambda c: em.map("lt", c[0], c[1]), halve)
            return [begin, low]

        two = em.const(2, int64)
        return em.loop((self.none, two, self.one), [self.none, self.none], search)

    def run(self) -> tuple[Dim, ...]:
        """Emits the kernel's body."""
        em, op = self.em, self.op
        count = em.index(_type(op.source).shape[op.axis])
        wanted = em.index(_type(op.target).shape[op.axis])
        low, high = self.found(wanted)

        def step(k: Value, carried: list[Value]) -> Sequence[Value]:
            (place,) = carried
            x = self.load(op.source, k)
            is_next = em.map("and", self.is_zero(x), em.map("lt", place, high))

            def put() -> Sequence[Value]:
                em.add(t.Store(self.view(op.target, place), x, (), (), loc=em.loc))
                return [em.map("add", place, self.one)]

            return em.when(is_next, put, lambda: [place])

        def order() -> Sequence[Value]:
            em.loop((self.none, count, self.one), [low], step)
            return ()

        def some() -> Sequence[Value]:
            first = self.load(op.target, low)
            last = self.load(op.target, em.map("sub", high, self.one))
            # There may be others that a shorter row lacks.
            is_cut = em.map("and", em.map("eq", high, wanted), em.map("lt", wanted, count))
            is_mixed = em.map("or", is_cut, em.map("not", self.comes_first(last)))
            em.when(em.map("and", self.comes_first(first), is_mixed), order)
            return ()

        em.when(em.map("lt", low, high), some)
        return self.grid


def _type(value: Value) -> BufType:
    assert isinstance(value.type, BufType)
    return value.type
