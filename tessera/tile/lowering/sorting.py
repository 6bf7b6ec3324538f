"""Sorting on a CPU: stable merge sorts, one program per row, between two temporary buffers. Where
the machine has vectors for it, elements that fit a word each are sorted by `schedule.sort_words`.

Keys that fit two words together with their places (`schedule/words.py`) are sorted as such words;
places are left out where only keys are wanted that do not show where they were. A row is cut into
2**n runs whose lengths differ by one at most, n even, and each pass merges pairs of runs from one
buffer into the other, at both ends at once: m steps from the front and as many from the back, m
being the length of the shorter run, never reach the end of a run, so nothing but words is compared;
if one run is longer, one element is left for the middle.

Other keys stay where they are, and a permutation is sorted: it starts as 0, 1, 2, ... in the first
buffer. A pass merges neighbouring runs of a width; passes come in pairs, so that the result is back
in the first buffer. At the end every output gathers its input through the permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import bool_, int64, uint8
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.schedule import ops as s
from tessera.schedule.types import BufType
from tessera.schedule.words import Coder, Layout, layout_of
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.sort_words import TileCode, precedes
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
        target = op.outputs[0].type
        assert isinstance(target, BufType)
        self.wanted = em.index(target.shape[op.axis])
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
        em.loop((self.zero, self.wanted, self.one), (), collect, parallel=True)

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


class _WordSorter(_Sorter):
    """Sorts words of keys and places, one or two for each element.

    Attributes:
        first: rows of words, where they are before a pair of passes.
        second: others, where they are between the passes.
        compared: how many words are compared: a second one that holds no part of a key is not, for
            of equal elements that of the left run comes first.
    """

    def __init__(self, em: Emitter, op: s.Sort, memory: dict[Value, Value], layout: Layout) -> None:
        super().__init__(em, op, memory)
        self.layout = layout
        self.coder = Coder(TileCode(em), layout, op.descending)
        count = len(layout.dtypes)
        self.first, self.second = self.temps[:count], self.temps[count : 2 * count]
        self.compared = 1 + max(part.word for part in layout.parts)

    def run(self) -> None:
        """Emits the kernel's body."""
        em = self.em
        a, b = self.first, self.second

        def start(k: Value, _: list[Value]) -> Sequence[Value]:
            keys = [self.load(row, k)[0] for row in self.keys]
            self.put(a, k, self.coder.pack(keys, k))
            return ()

        def passes(carried: list[Value]) -> Sequence[Value]:
            (bits,) = carried
            self.level(a, b, bits)
            less = em.map("sub", bits, self.one)
            self.level(b, a, less)
            return [em.map("sub", less, self.one)]

        whole = (self.zero, self.count, self.one)
        em.loop(whole, (), start, parallel=True)
        two = em.const(2, int64)
        (bits,) = em.repeat(
            [self.zero],
            lambda carried: em.map("lt", em.map("shl", self.one, carried[0]), self.count),
            lambda carried: [em.map("add", carried[0], two)],
        )
        em.repeat([bits], lambda carried: em.map("gt", carried[0], self.zero), passes)
        em.loop((self.zero, self.wanted, self.one), (), self.collect, parallel=True)

    def get(self, rows: Sequence[_Row], k: Value) -> list[Value]:
        """The words of an element."""
        return [self.load(row, k)[0] for row in rows]

    def put(self, rows: Sequence[_Row], k: Value, words: Sequence[Value]) -> None:
        """Writes the words of an element."""
        for row, word in zip(rows, words, strict=True):
            self.store(row, k, [word])

    def in_order(self, left: Sequence[Value], right: Sequence[Value]) -> Value:
        """Whether an element of a left run comes before one of the right run."""
        n = self.compared
        return self.em.map("not", precedes(self.em, right[:n], left[:n]))

    def chosen(self, test: Value, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        """One of two elements."""
        return [self.em.select(test, x, y) for x, y in zip(a, b, strict=True)]

    def level(self, source: Sequence[_Row], target: Sequence[_Row], bits: Value) -> None:
        """Merges pairs of the 2**bits runs of a row."""
        em, one = self.em, self.one

        def pair(number: Value, _: list[Value]) -> Sequence[Value]:
            first = em.map("add", number, number)
            second = em.map("add", first, one)
            low, middle, high = [
                em.map("shr", em.map("mul", run, self.count), bits)
                for run in (first, second, em.map("add", second, one))
            ]
            left, right = em.map("sub", middle, low), em.map("sub", high, middle)
            steps = em.map("min", left, right)
            last = em.map("sub", high, one)

            def take(k: Value, carried: list[Value]) -> Sequence[Value]:
                i, j, p, q = carried
                x, y = self.get(source, i), self.get(source, j)
                front = self.in_order(x, y)
                self.put(target, em.map("add", low, k), self.chosen(front, x, y))
                x, y = self.get(source, p), self.get(source, q)
                back = self.in_order(x, y)
                self.put(target, em.map("sub", last, k), self.chosen(back, y, x))
                taken, kept = em.cast(front, int64), em.cast(em.map("not", front), int64)
                given, stays = em.cast(back, int64), em.cast(em.map("not", back), int64)
                return [
                    em.map("add", i, taken),
                    em.map("add", j, kept),
                    em.map("sub", p, stays),
                    em.map("sub", q, given),
                ]

            begin = [low, middle, em.map("sub", middle, one), last]
            ends = em.loop((self.zero, steps, one), begin, take)

            def rest() -> Sequence[Value]:
                i, j, p, _ = ends
                place = em.select(em.map("le", i, p), i, j)
                self.put(target, em.map("add", low, steps), self.get(source, place))
                return ()

            em.when(em.map("ne", left, right), rest)
            return ()

        runs = em.map("shl", one, em.map("sub", bits, one))
        em.loop((self.zero, runs, one), (), pair)

    def collect(self, k: Value, _: list[Value]) -> Sequence[Value]:
        """Writes the elements of a place: keys as their words have them."""
        op = self.op
        words = self.get(self.first, k)
        for n, (source, target) in enumerate(zip(op.inputs, op.outputs, strict=True)):
            is_held = n < op.num_keys and self.layout.holds_keys
            if is_held:
                parts = [self.coder.key(words, n)]
            else:
                parts = self.load(self.row(source), self.coder.place(words))
            self.store(self.row(target), k, parts)
        return ()


def lower_sort(em: Emitter, op: s.Sort, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid."""
    em.loc = op.loc
    types = [v.type for v in op.inputs if isinstance(v.type, BufType)]
    keys = [type.dtype for type in types[: op.num_keys]]
    layout = layout_of(keys, len(op.inputs) - op.num_keys, types[0].shape[op.axis])
    sorter = _Sorter(em, op, memory) if layout is None else _WordSorter(em, op, memory, layout)
    sorter.run()
    return sorter.grid
