"""Sorting: a stable bottom-up merge sort of an index permutation, one program per row.

The permutation starts as 0, 1, 2, ... in the first temporary buffer. A pass merges neighbouring
runs of a width from one temporary buffer into the other; passes come in pairs, so that the result
is back in the first one. At the end every output gathers its input through the permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import bool_, int64, uint8
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule import ops as s
from tessera.schedule.types import BufType
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.ops import tile_type


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a buffer: elements at base + k * stride."""

    mem: Value
    parts: int
    base: Dim
    stride: Dim


class _Sorter:
    def __init__(self, em: Emitter, op: s.Sort, memory: dict[Value, Value]) -> None:
        self.em = em
        self.op = op
        self.memory = memory
        first = op.inputs[0].type
        assert isinstance(first, BufType)
        self.others = [k for k in range(len(first.shape)) if k != op.axis]
        self.grid = tuple([first.shape[k] for k in self.others])
        self.names = {k: f"$p{at}" for at, k in enumerate(self.others)}
        for at, name in enumerate(self.names.values()):
            em.symbols[name] = em.pure(t.ProgramId, at)
        self.count = em.index(first.shape[op.axis])
        self.zero, self.one = em.const(0, int64), em.const(1, int64)
        self.keys = [self.row(v) for v in op.inputs[: op.num_keys]]
        self.temps = [self.row(v) for v in op.temps]

    def row(self, buf: Value) -> _Row:
        assert isinstance(buf.type, BufType)
        strides = buf.type.element_strides()
        parts = 2 if buf.type.dtype.is_complex else 1
        base: Dim = 0
        for k, name in self.names.items():
            base = base + strides[k] * sym(name)
        return _Row(self.memory[buf], parts, base * parts, strides[self.op.axis] * parts)

    def view(self, row: _Row, k: Value, part: int = 0) -> Value:
        place = row.base + row.stride * sym("$k") + part
        return self.em.pure(t.View, row.mem, self.em.index(place, lambda _: k), (), ())

    def load(self, row: _Row, k: Value) -> list[Value]:
        """The parts of an element."""
        em = self.em
        views = [self.view(row, k, part) for part in range(row.parts)]
        return [em.add(t.Load(view, (), (), (), loc=em.loc))[0] for view in views]

    def store(self, row: _Row, k: Value, parts: Sequence[Value]) -> None:
        for part, value in enumerate(parts):
            self.em.add(t.Store(self.view(row, k, part), value, (), (), loc=self.em.loc))

    def run(self) -> None:
        """Emits the kernel's body."""
        em = self.em
        a, b = self.temps

        def start(k: Value, _: list[Value]) -> Sequence[Value]:
            self.store(a, k, [k])
            return ()

        def passes(carried: list[Value]) -> Sequence[Value]:
            (width,) = carried
            double = em.map("add", width, width)
            self.merge(a, b, width, double)
            self.merge(b, a, double, em.map("add", double, double))
            return [em.map("add", double, double)]

        def collect(k: Value, _: list[Value]) -> Sequence[Value]:
            (place,) = self.load(a, k)
            for source, target in zip(self.op.inputs, self.op.outputs, strict=True):
                self.store(self.row(target), k, self.load(self.row(source), place))
            return ()

        whole = (self.zero, self.count, self.one)
        em.loop(whole, (), start, parallel=True)
        em.repeat([self.one], lambda carried: em.map("lt", carried[0], self.count), passes)
        em.loop(whole, (), collect, parallel=True)

    def merge(self, source: _Row, target: _Row, width: Value, step: Value) -> None:
        """Merges runs of `width` from one buffer to the other."""
        em = self.em
        last = em.map("sub", self.count, self.one)

        def pair(low: Value, _: list[Value]) -> Sequence[Value]:
            middle = em.map("min", em.map("add", low, width), self.count)
            high = em.map("min", em.map("add", low, step), self.count)

            def take(k: Value, carried: list[Value]) -> Sequence[Value]:
                i, j = carried
                # A run that is used up is read at some place inside the row, and not chosen.
                (left,) = self.load(source, em.map("min", i, last))
                (right,) = self.load(source, em.map("min", j, last))
                keeps = em.map(
                    "or", em.map("ge", j, high), em.map("not", self.precedes(right, left))
                )
                keeps = em.map("and", em.map("lt", i, middle), keeps)
                self.store(target, k, [em.select(keeps, left, right)])
                next_i, next_j = em.map("add", i, self.one), em.map("add", j, self.one)
                return [em.select(keeps, next_i, i), em.select(keeps, j, next_j)]

            em.loop((low, high, self.one), [low, middle], take)
            return ()

        em.loop((self.zero, self.count, step), (), pair)

    def precedes(self, p: Value, q: Value) -> Value:
        """Whether element p must stand before element q."""
        em = self.em
        x = [part for row in self.keys for part in self.load(row, p)]
        y = [part for row in self.keys for part in self.load(row, q)]
        if self.op.descending:
            x, y = y, x
        result: Value | None = None
        for a, b in reversed(list(zip(x, y, strict=True))):
            less, equal = self.compare(a, b)
            result = less if result is None else em.map("or", less, em.map("and", equal, result))
        assert result is not None
        return result

    def compare(self, a: Value, b: Value) -> tuple[Value, Value]:
        """a < b and a = b, in the order where NaN is the largest number."""
        em = self.em
        if tile_type(a).dtype is bool_:
            a, b = em.cast(a, uint8), em.cast(b, uint8)
        less, equal = em.map("lt", a, b), em.map("eq", a, b)
        if tile_type(a).dtype.is_float:
            a_nan, b_nan = em.map("isnan", a), em.map("isnan", b)
            less = em.map("or", less, em.map("and", b_nan, em.map("not", a_nan)))
            equal = em.map("or", equal, em.map("and", a_nan, b_nan))
        return less, equal


def lower_sort(em: Emitter, op: s.Sort, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid."""
    em.loc = op.loc
    sorter = _Sorter(em, op, memory)
    sorter.run()
    return sorter.grid
