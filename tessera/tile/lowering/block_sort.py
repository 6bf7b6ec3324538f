"""Sorting rows in a block of a GPU's threads.

A tile holds some whole rows, whose keys and places are packed into words; the words go through a
sorting network. Keys come back from their words where they can, other inputs are gathered from
where their elements were:

    %w = words of tile.load(keys), their places in the low bits; the largest word beyond the end
    %w = a compare and exchange of %w and tile.flip_bits(%w), for each step of the network
    tile.store(keys of %w); tile.store(tile.gather(payload, places of %w))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import int64, uint32
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, ceildiv, divides, sym
from tessera.ir.scalar import SCALARS
from tessera.schedule import ops as s
from tessera.schedule.types import BufType, buffer_type
from tessera.schedule.words import FIRST_ZERO, Layout, key_bits
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.sort_words import Network, Words, last


@dataclass(frozen=True, slots=True)
class Lines:
    """How the rows of buffers are shared out among programs.

    Attributes:
        grid: programs along each axis.
        fixed: for the axes of a buffer at which a program stands, the name of its place.
        axis: the axis of the sort.
        row: the axis along which a program has several rows; None where there is only one row.
        rows: how many rows.
    """

    grid: tuple[Dim, ...]
    fixed: dict[int, str]
    axis: int
    row: int | None
    rows: int


def lines_of(em: Emitter, type: BufType, axis: int, rows: int, inner: Sequence[Dim] = ()) -> Lines:
    """Shares out the rows of buffers of a type; `inner` adds axes to the grid."""
    others = [k for k in range(len(type.shape)) if k != axis]
    row = others[-1] if others else None
    grid: list[Dim] = []
    fixed: dict[int, str] = {}
    for k in others:
        name = f"$p{len(grid)}"
        em.symbols[name] = em.pure(t.ProgramId, len(grid))
        fixed[k] = name
        grid.append(ceildiv(type.shape[k], rows) if k == row else type.shape[k])
    return Lines((*grid, *inner), fixed, axis, row, rows)


class BlockSort:
    """The lowering of one sort of whole rows.

    Attributes:
        size: elements of a tile along the axis.
        shape: of the tile: rows and places, what memory runs along last.
        at: the dim of the places.
    """

    def __init__(self, em: Emitter, op: s.Sort, memory: dict[Value, Value]) -> None:
        self.em = em
        self.op = op
        self.memory = memory
        first = buffer_type(op.inputs[0])
        extent = first.shape[op.axis]
        assert isinstance(extent, int)
        self.extent = extent
        self.size = 1 << max(extent - 1, 0).bit_length()
        self.lines = lines_of(em, first, op.axis, op.rows)
        places_last = first.element_strides()[op.axis] == 1 or op.rows == 1
        self.at = 1 if places_last else 0
        self.shape = (op.rows, self.size) if places_last else (self.size, op.rows)
        keys = [buffer_type(v).dtype for v in op.inputs[: op.num_keys]]
        layout = Layout.of(keys, max(self.size.bit_length() - 1, 1))
        self.words = Words(em, layout, op.descending, self.shape)

    # --- memory ---------------------------------------------------------------------------------

    def _row(self) -> tuple[Value, Value]:
        """The first row of the program, and how many there are."""
        em, row = self.em, self.lines.row
        if row is None:
            return em.const(0, int64), em.const(1, int64)
        place = sym(self.lines.fixed[row]) * self.lines.rows
        return em.index(place), em.index(buffer_type(self.op.inputs[0]).shape[row])

    def _base(self, type: BufType) -> Dim:
        """The offset of the place that is fixed."""
        strides = type.element_strides()
        base: Dim = 0
        for k, name in self.lines.fixed.items():
            if k != self.lines.row:
                base = base + strides[k] * sym(name)
        return base

    def views(self, buf: Value) -> tuple[list[Value], list[Value], tuple[int, ...]]:
        """Views of the parts of a buffer, coordinates of the tile, and the dims to check."""
        em, type = self.em, buffer_type(buf)
        scale = 2 if type.dtype.is_complex else 1
        strides = type.element_strides()
        row = self.lines.row
        first, count = self._row()
        step = em.const(0, int64) if row is None else em.index(strides[row] * scale)
        along = em.index(strides[self.op.axis] * scale)
        sizes, steps = [count, em.index(type.shape[self.op.axis])], [step, along]
        coords = [first, em.const(0, int64)]
        if self.at == 0:
            sizes, steps, coords = sizes[::-1], steps[::-1], coords[::-1]
        base = self._base(type) * scale
        views = [
            em.pure(t.View, self.memory[buf], em.index(base + k), tuple(sizes), tuple(steps))
            for k in range(scale)
        ]
        check = [self.at] if self.size != self.extent else []
        if row is not None and not divides(self.lines.rows, type.shape[row]):
            check.append(1 - self.at)
        return views, coords, tuple(sorted(check))

    def load(self, buf: Value) -> Value:
        """The elements of a key."""
        (view,), coords, check = self.views(buf)
        return self.em.pure(t.Load, view, tuple(coords), (), self.shape, check, 0)

    def store(self, buf: Value, parts: Sequence[Value]) -> None:
        """Writes the parts of a result."""
        views, coords, check = self.views(buf)
        for view, part in zip(views, parts, strict=True):
            self.em.add(t.Store(view, part, tuple(coords), (), check, loc=self.em.loc))

    def gather(self, buf: Value, places: Value) -> list[Value]:
        """The parts of the elements that were at some places of their rows."""
        em, type = self.em, buffer_type(buf)
        scale = 2 if type.dtype.is_complex else 1
        strides = type.element_strides()
        row = self.lines.row
        offset = em.map("mul", places, em.index(strides[self.op.axis] * scale))
        offset = em.map("add", offset, em.index(self._base(type) * scale))
        mask = self.inside()
        if row is not None:
            line = em.map("mul", self._rows(), em.index(strides[row] * scale))
            offset = em.map("add", offset, line)
        offset = em.broadcast(offset, self.shape)
        masks = () if mask is None else (em.broadcast(mask, self.shape),)
        parts: list[Value] = []
        for k in range(scale):
            at = em.map("add", offset, em.const(k, int64)) if k else offset
            parts.append(em.pure(t.Gather, self.memory[buf], at, masks, 0))
        return parts

    def _iota(self, axis: int) -> Value:
        line = tuple([n if k == axis else 1 for k, n in enumerate(self.shape)])
        return self.em.pure(t.Iota, line, axis)

    def _rows(self) -> Value:
        """The rows of the tile, as a tile with that dim only."""
        return self.em.map("add", self._row()[0], self._iota(1 - self.at))

    def inside(self) -> Value | None:
        """Where the tile's elements exist; None if all do."""
        em, found = self.em, list[Value]()
        if self.size != self.extent:
            found.append(em.map("lt", self._iota(self.at), em.const(self.extent, int64)))
        row = self.lines.row
        shape = buffer_type(self.op.inputs[0]).shape
        if row is not None and not divides(self.lines.rows, shape[row]):
            found.append(em.map("lt", self._rows(), self._row()[1]))
        return em.all_of(found)

    # --- sorting --------------------------------------------------------------------------------

    def sorted(self, words: Sequence[Value]) -> list[Value]:
        """The first words in order, as many as are wanted; what does not exist comes last."""
        em = self.em
        if self.size != self.extent:
            where = em.map("lt", self._iota(self.at), em.const(self.extent, int64))
            words = last(em, em.broadcast(where, self.shape), words)
        near = self.shape[0] * self.shape[1] // (32 * max(self.op.warps, 1))
        network = Network(em, self.shape, self.at, near)
        return network.first(words, self.limit()[1])

    def limit(self) -> tuple[int, int]:
        """The places that are wanted, and the size of their tile."""
        (limit,) = {buffer_type(v).shape[self.op.axis] for v in self.op.outputs}
        assert isinstance(limit, int)
        return limit, 1 << max(limit - 1, 0).bit_length()

    def shorten(self) -> None:
        """From now on the tile is that of the places that are wanted."""
        self.extent, self.size = self.limit()
        self.shape = tuple([self.size if k == self.at else n for k, n in enumerate(self.shape)])

    def run(self) -> tuple[Dim, ...]:
        """Emits the kernel's body; its grid."""
        op = self.op
        if self.extent == 0:
            return self.lines.grid
        keys = [self.load(v) for v in op.inputs[: op.num_keys]]
        if self.is_alone():
            found = self.keys_alone(keys[0])
            self.shorten()
            for target in op.outputs:
                self.store(target, [found])
            return self.lines.grid
        words = self.sorted(self.words.pack(keys, self._iota(self.at)))
        self.shorten()
        self.store_all(words)
        return self.lines.grid

    def store_all(self, words: Sequence[Value]) -> None:
        """Writes what belongs to sorted words."""
        em, op, coder = self.em, self.op, self.words.coder
        places = coder.place(words)
        for k, target in op.moved():
            if k < 0:
                self.store(target, [em.cast(places, buffer_type(target).dtype)])
            elif k < op.num_keys and coder.layout.holds_keys:
                self.store(target, [coder.key(words, k)])
            else:
                self.store(target, self.gather(op.inputs[k], places))

    # --- keys alone -----------------------------------------------------------------------------

    def is_alone(self) -> bool:
        """Whether keys of 32 bits are all that is wanted: places would make words longer."""
        op, keys = self.op, self.words.layout.keys
        only = op.num_keys == 1 and all(k == 0 for k, _ in op.moved())
        return only and key_bits(keys[0]) == 32

    def keys_alone(self, key: Value) -> Value:
        """Sorted keys. Which of equal keys comes first cannot be seen, except by the sign of a
        zero: -0 comes before 0 at first, which is put right where a row may have both."""
        em, coder = self.em, self.words.coder
        word = em.broadcast(coder.ordered(key), self.shape)
        (found,) = self.sorted([word])
        if coder.layout.keys[0].is_float:
            some = em.map("eq", word, coder.negative_zero())
            line = em.reshape(some, (self.shape[0] * self.shape[1],))
            some = em.pure(t.Reduce, line, SCALARS["or"], 0)
            turned = lambda: [self.signs_in_order(word, found)]  # noqa: E731
            (found,) = em.when(some, turned, lambda: [found], stays=True)
        return coder.unordered(found)

    def signs_in_order(self, word: Value, found: Value) -> Value:
        """Sorted words in which zeros have the order that they had. Numbers that rise with the
        places of the zeros and hold their signs are sorted, those of smaller and larger words
        being the smallest and the largest: what belongs to the zeros ends up where these are."""
        em = self.em
        least, one = em.const(FIRST_ZERO, uint32), em.const(1, uint32)
        sign = em.map("sub", word, least)
        number = em.map("shl", em.cast(self._iota(self.at), uint32), one)
        number = em.map("add", em.map("or", number, sign), one)
        smaller = em.map("lt", word, least)
        ends = em.select(smaller, em.const(0, uint32), em.const(2**32 - 1, uint32))
        two = em.const(2, uint32)
        (numbers,) = self.sorted([em.select(em.map("lt", sign, two), number, ends)])
        sign = em.map("and", em.map("sub", numbers, one), one)
        is_zero = em.map("lt", em.map("sub", found, least), two)
        return em.select(is_zero, em.map("add", least, sign), found)


def lower_block_sort(em: Emitter, op: s.Sort, memory: dict[Value, Value]) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid."""
    em.loc = op.loc
    return BlockSort(em, op, memory).run()
