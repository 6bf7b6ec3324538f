"""The zeros of sorted rows, in the order in which the rows had them.

A sort of words tells -0 from 0, and all zeros of one sign come first. Where the zeros of a row
begin is found by halving; most rows have none of that sign, and are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import float16, float32, int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule.sort_ops import OrderZeros
from tessera.schedule.types import buffer_type
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
        type = buffer_type(op.target)
        others = [k for k in range(len(type.shape)) if k != op.axis]
        self.rows = tuple([type.shape[k] for k in others])
        self.names = {k: f"$p{at}" for at, k in enumerate(others)}
        self.wide = type.dtype if type.dtype.bits >= 32 else float32
        self.none, self.one = em.const(0, int64), em.const(1, int64)
        self.zero = em.const(0.0, self.wide)

    def view(self, buf: Value, k: Value) -> Value:
        """The place of an element."""
        strides = buffer_type(buf).element_strides()
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
        """Whether it is a zero of the sign that comes first."""
        dtype = tile_type(x).dtype
        bits = key_bits(dtype)
        x = x if dtype.bits == bits else self.em.cast(x, float16)
        pattern = TileCode(self.em).bitcast(x, UNSIGNED[bits])
        first = 0 if self.op.descending else 1 << (bits - 1)
        return self.em.map("eq", pattern, self.em.const(first, UNSIGNED[bits]))

    def begin(self, wanted: Value) -> Value:
        """Where the zeros begin, if there are some."""
        em = self.em

        def halve(carried: list[Value]) -> Sequence[Value]:
            low, high = carried
            middle = em.map("shr", em.map("add", low, high), self.one)
            goes_up = self.is_before(self.load(self.op.target, middle))
            low = em.select(goes_up, em.map("add", middle, self.one), low)
            return [low, em.select(goes_up, high, middle)]

        return em.repeat([self.none, wanted], lambda c: em.map("lt", c[0], c[1]), halve)[0]

    def run(self) -> tuple[Dim, ...]:
        """Emits the kernel's body: a program for each row, or one for all, which are marked."""
        em = self.em
        if not self.op.marks:
            for at, name in enumerate(self.names.values()):
                em.symbols[name] = em.pure(t.ProgramId, at)
            self.row()
            return self.rows
        whole, each = self.op.marks
        names = list(self.names.values())

        def rows(at: int) -> Sequence[Value]:
            if at == len(names):
                strides = buffer_type(each).element_strides()
                place: Dim = sum([n * sym(name) for n, name in zip(strides, names, strict=True)], 0)
                em.when(self.is_marked(each, place), self.row)
                return ()

            def one(k: Value, _: list[Value]) -> Sequence[Value]:
                with em.bound({names[at]: k}):
                    return rows(at + 1)

            em.loop((self.none, em.index(self.rows[at]), self.one), (), one)
            return ()

        em.when(self.is_marked(whole, 0), lambda: rows(0))
        return ()

    def is_marked(self, marks: Value, at: Dim) -> Value:
        """Whether a number says that there is such a zero."""
        em = self.em
        view = em.pure(t.View, self.memory[marks], em.index(at), (), ())
        found = em.add(t.Load(view, (), (), (), loc=em.loc))[0]
        return em.map("eq", found, em.const(0, tile_type(found).dtype))

    def row(self) -> Sequence[Value]:
        """Orders the zeros of a row, perhaps as a branch, which yields nothing."""
        em, op = self.em, self.op
        count = em.index(buffer_type(op.source).shape[op.axis])
        wanted = em.index(buffer_type(op.target).shape[op.axis])
        begin = self.begin(wanted)

        def step(k: Value, carried: list[Value]) -> Sequence[Value]:
            (place,) = carried
            x = self.load(op.source, k)
            is_next = em.map("and", self.is_zero(x), em.map("lt", place, wanted))

            def put() -> Sequence[Value]:
                em.add(t.Store(self.view(op.target, place), x, (), (), loc=em.loc))
                return [em.map("add", place, self.one)]

            return em.when(is_next, put, lambda: [place])

        def order() -> Sequence[Value]:
            em.loop((self.none, count, self.one), [begin], step)
            return ()

        def some() -> Sequence[Value]:
            em.when(self.comes_first(self.load(op.target, begin)), order)
            return ()

        em.when(em.map("lt", begin, wanted), some)
        return ()
