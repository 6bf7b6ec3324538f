"""Layouts: which element of a tile each register of each lane holds, or each offset of memory.

A layout maps named inputs (`reg`, `lane`, `warp`, `warpgroup`; or `offset` for memory) to named
dims. It is a GF(2) atom times mixed-radix repetitions: exact where hardware XORs bits, and of any
size where tiles are not powers of two (176 columns are 22 repetitions of 8).

The meaning. Of each input index, the low bits go through the atom; what is left above them is split
into digits by the repetitions of that input, first one fastest. The coordinate in a dim is

    (XOR of the atom's columns) + (sum of digit * stride)

Inverse maps have the same form, so they are layouts too: dims are the inputs then. Operations
either return the exact layout or raise `LayoutError`; none approximates. Where atoms alone take
part they are Gaussian eliminations; where repetitions do, the result is read off its values digit
by digit and then checked against all of them (`Layout.from_table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tessera.ir.lazy import cached_property
from tessera.tile.layouts import gf2
from tessera.tile.layouts.linear import Index, LayoutError, Linear, Vector

Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rep:
    """A repetition: the next digit of `axis` has `count` values, each `stride` along `dim`."""

    axis: str
    dim: str
    count: int
    stride: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.stride < 0:
            raise LayoutError(f"layout: {self}: the count is at least 1 and the stride at least 0")

    def __str__(self) -> str:
        return f"{self.axis}*{self.count}:{self.dim}+{self.stride}"


@dataclass(frozen=True)
class Layout:
    """A map from named inputs to named dims: a GF(2) atom and repetitions of it.

    Args:
        atom: The linear part; every input that a repetition names is an input of the atom, too
            (with no bits, where repetitions alone describe it).
        reps: The repetitions, fastest first within each input.
    """

    atom: Linear
    reps: tuple[Rep, ...] = ()

    def __post_init__(self) -> None:
        for rep in self.reps:
            if rep.axis not in self.atom.in_bits or rep.dim not in self.atom.outs:
                raise LayoutError(f"layout: {rep} names no input or dim of the atom")

    @staticmethod
    def of(
        outs: Sequence[str],
        ins: Mapping[str, Sequence[Sequence[int]]],
        reps: Sequence[tuple[str, str, int, int]] = (),
    ) -> Layout:
        """Builds a layout from columns per input bit and (axis, dim, count, stride) repetitions.

        Example:
            >>> tile = Layout.of(("row", "col"), {"reg": [(0, 1)], "lane": [(1, 0)]})
            >>> tile(reg=1, lane=1)
            {'row': 1, 'col': 1}
        """
        return Layout(Linear.of(outs, ins), tuple(Rep(*rep) for rep in reps))

    @property
    def ins(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(name for name, _ in self.atom.ins)

    @property
    def outs(self) -> tuple[str, ...]:
        """Names of the dims."""
        return self.atom.outs

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of values of each input."""
        sizes = {name: 1 << bits for name, bits in self.atom.in_bits.items()}
        for rep in self.reps:
            sizes[rep.axis] *= rep.count
        return sizes

    @cached_property
    def shape(self) -> dict[str, int]:
        """The extent of each dim: above every coordinate, and exact where the tile is dense."""
        extents = {dim: (1 << bits) - 1 for dim, bits in self.atom.out_bits.items()}
        for rep in self.reps:
            extents[rep.dim] += (rep.count - 1) * rep.stride
        return {dim: largest + 1 for dim, largest in extents.items()}

    def reps_of(self, axis: str) -> tuple[Rep, ...]:
        """The repetitions of one input, fastest first."""
        return tuple(rep for rep in self.reps if rep.axis == axis)

    def __call__(self, **index: int) -> dict[str, int]:
        """The coordinates of one index; inputs left out are 0."""
        for name, value in index.items():
            if not 0 <= value < self.sizes.get(name, 0):
                raise LayoutError(f"layout: {name}={value} is out of range {self.sizes}")
        return {d: int(v) for d, v in zip(self.outs, self.apply(index), strict=True)}

    def apply(self, index: Mapping[str, Index]) -> list[Index]:
        """The coordinates of an index (ints or arrays that broadcast), one per dim."""
        coords = self.atom.apply(index)
        rest = {n: index.get(n, 0) >> bits for n, bits in self.atom.in_bits.items()}
        for rep in self.reps:
            digit = rest[rep.axis] % rep.count
            rest[rep.axis] = rest[rep.axis] // rep.count
            place = self.outs.index(rep.dim)
            coords[place] = coords[place] + digit * rep.stride
        return coords

    def table(self) -> Array:
        """All coordinates: an array `[dim, *inputs]`."""
        sizes = list(self.sizes.values())
        grids = np.ogrid[tuple(slice(0, size) for size in sizes)]
        index: dict[str, Index] = {
            name: np.asarray(grid, dtype=np.int64)
            for name, grid in zip(self.ins, grids, strict=True)
        }
        coords = [np.broadcast_to(np.asarray(c, np.int64), sizes) for c in self.apply(index)]
        return np.stack(coords) if coords else np.zeros((0, *sizes), np.int64)

    def where(self, **coords: int) -> list[dict[str, int]]:
        """Inverse evaluation: every index that holds the given coordinates, in index order."""
        wanted = np.array([coords[dim] for dim in self.outs], np.int64)
        hits = np.all(self.table() == wanted.reshape(-1, *[1] * len(self.ins)), axis=0)
        found: list[list[int]] = np.argwhere(hits).tolist()
        return [dict(zip(self.ins, row, strict=True)) for row in found]

    @staticmethod
    def from_table(ins: Sequence[str], outs: Sequence[str], table: Array) -> Layout:
        """The layout with the given coordinates.

        Args:
            ins: Names of the inputs.
            outs: Names of the dims.
            table: The coordinates, `[dim, *inputs]`.

        Raises:
            LayoutError: No layout has these coordinates.
        """
        columns: dict[str, list[Vector]] = {}
        reps: list[Rep] = []
        for place, name in enumerate(ins):
            line = np.moveaxis(table, place + 1, 1).reshape(len(outs), table.shape[place + 1], -1)
            columns[name], of_axis = _axis_digits(name, outs, line)
            reps.extend(of_axis)
        layout = Layout(Linear.of(outs, columns), tuple(reps))
        if not np.array_equal(layout.table(), table):
            raise LayoutError("layout: the map is not an atom with repetitions")
        return layout

    def is_linear(self) -> bool:
        """Whether the whole map is linear over GF(2)."""
        return not self.expanded.reps

    @cached_property
    def linear(self) -> Linear:
        """The whole map as one matrix. Raises LayoutError where it is none."""
        if self.expanded.reps:
            raise LayoutError(f"layout: {self} is not linear over GF(2)")
        return self.expanded.atom

    @cached_property
    def expanded(self) -> Layout:
        """The same map with the largest atom: even repetitions become atom bits where that is so.

        A repetition moves in when no column uses the bits of its stride, so that adding is XOR.
        Where only some can, registers come last: they are constants of an instruction anyway.
        """
        columns = {name: list(cs) for name, cs in self.atom.ins}
        pending = list(self.reps)
        changed = True
        while changed:
            changed = False
            for axis in sorted(columns, key=lambda name: name == "reg"):
                first = next((r for r in pending if r.axis == axis), None)
                if first is None:
                    continue
                at = pending.index(first)
                place = self.outs.index(first.dim)
                if first.count == 1:
                    del pending[at]
                elif first.count % 2 == 0 and not _meets(columns, place, first.stride):
                    unit = tuple(first.stride * (p == place) for p in range(len(self.outs)))
                    columns[axis].append(unit)
                    pending[at] = Rep(axis, first.dim, first.count // 2, first.stride * 2)
                else:
                    continue
                changed = True
                break
        return Layout(Linear.of(self.outs, columns), tuple(pending))

    def canonical(self) -> Layout:
        """The one form that equal maps share: the smallest atom, merged repetitions, sorted names.

        The top bit of an input leaves the atom when it moves along one dim and shares no bit there
        with another column, which is exactly when its contribution is a plain sum. Inputs with one
        value are dropped, so a layout for one warp equals the same layout without warps.
        """
        dims = tuple(sorted(self.outs))
        columns = {name: list(cs) for name, cs in self.atom.select(dims).ins}
        moved: dict[str, list[Rep]] = {name: [] for name in columns}
        changed = True
        while changed:
            changed = False
            for name, own in columns.items():
                if own and (rep := _as_rep(name, dims, columns)) is not None:
                    own.pop()
                    moved[name].insert(0, rep)
                    changed = True
        names = sorted(name for name, size in self.sizes.items() if size > 1)
        reps: list[Rep] = []
        for name in names:
            reps.extend(_merged(dims, [*moved[name], *self.reps_of(name)]))
        return Layout(Linear.of(dims, {name: columns[name] for name in names}), tuple(reps))

    def equals(self, other: Layout) -> bool:
        """Whether both are the same map, however they are written."""
        return self.canonical() == other.canonical()

    def compose(self, inner: Layout) -> Layout:
        """`self` after `inner`: the dims of `inner` are inputs of `self`; missing ones are 0."""
        for dim, extent in inner.shape.items():
            if extent > self.sizes.get(dim, 1):
                raise LayoutError(
                    f"layout: compose: {dim} has extent {extent}, the outer map takes "
                    f"{self.sizes.get(dim, 1)}"
                )
        if self.is_linear() and inner.is_linear():
            return Layout(self.linear.compose(inner.linear))
        coords: dict[str, Index] = dict(zip(inner.outs, inner.table(), strict=True))
        sizes = tuple(inner.sizes.values())
        values = [np.broadcast_to(np.asarray(v, np.int64), sizes) for v in self.apply(coords)]
        return Layout.from_table(inner.ins, self.outs, np.stack(values))

    def invert(self) -> Layout:
        """The inverse of a one-to-one map onto its whole box."""
        if self.count != int(np.prod(list(self.shape.values()), dtype=np.int64)):
            raise LayoutError(f"layout: invert: {self} is not one-to-one onto its shape")
        return self.right_inverse()

    @property
    def count(self) -> int:
        """The number of indices."""
        return int(np.prod(list(self.sizes.values()), dtype=np.int64))

    def right_inverse(self) -> Layout:
        """A map from dims to inputs with `self(inverse(c)) == c` for every `c` in the shape."""
        if self.is_linear():
            return Layout(self.linear.right_inverse())
        shape, sizes = tuple(self.shape.values()), tuple(self.sizes.values())
        inverse = np.full(shape, -1, np.int64)
        table = self.table().reshape(len(shape), -1)
        # Later writes win: go backwards so that the first index holding a coordinate stays.
        inverse[tuple(table[:, ::-1])] = np.arange(self.count, dtype=np.int64)[::-1]
        if inverse.min() < 0:
            raise LayoutError("layout: right_inverse: some coordinates are not reached")
        found = np.stack(np.unravel_index(inverse, sizes)).astype(np.int64)
        return Layout.from_table(self.outs, self.ins, found)

    def left_inverse(self) -> Layout:
        """A map from dims to inputs with `inverse(self(i)) == i` for every index `i`."""
        return Layout(self.linear.left_inverse()) if self.is_linear() else self.invert()

    def product(self, outer: Layout) -> Layout:
        """The tile `self` repeated by `outer`: inputs above its own, coordinates in whole tiles."""
        outs = (*self.outs, *(dim for dim in outer.outs if dim not in self.outs))
        ins = (*self.ins, *(name for name in outer.ins if name not in self.ins))
        grown = {dim: self.shape.get(dim, 1) for dim in outs}
        mine, more = self.expanded, outer.expanded
        if mine.reps or any(extent & extent - 1 for extent in grown.values()):
            more = outer.canonical()
            blocked = [n for n, bits in more.atom.in_bits.items() if bits and mine.reps_of(n)]
            bent = [d for d, bits in more.atom.out_bits.items() if bits and grown[d] & grown[d] - 1]
            if blocked or bent:
                raise LayoutError(f"layout: product: {outer} does not fit above {self}")
        columns: dict[str, list[Vector]] = {}
        for name in ins:
            low = [dict(zip(self.outs, c, strict=True)) for c in mine.atom.of_input(name)]
            high = [dict(zip(more.outs, c, strict=True)) for c in more.atom.of_input(name)]
            columns[name] = [tuple(c.get(d, 0) for d in outs) for c in low]
            columns[name] += [tuple(c.get(d, 0) * grown[d] for d in outs) for c in high]
        reps = [*mine.reps]
        reps += [Rep(r.axis, r.dim, r.count, r.stride * grown[r.dim]) for r in more.reps]
        return Layout(Linear.of(outs, columns), tuple(reps))

    def divide(self, tile: Layout) -> Layout:
        """The layout of whole tiles: the `q` with `tile.product(q) == self`.

        Raises:
            LayoutError: `self` is no repetition of `tile`.
        """
        sizes = [self.sizes[n] // tile.sizes.get(n, 1) for n in self.ins]
        index = np.ogrid[tuple(slice(0, max(size, 1)) for size in sizes)]
        starts: dict[str, Index] = {
            name: np.asarray(grid, np.int64) * tile.sizes.get(name, 1)
            for name, grid in zip(self.ins, index, strict=True)
        }
        shape = [max(size, 1) for size in sizes]
        coords = [
            np.broadcast_to(np.asarray(c, np.int64) // tile.shape.get(d, 1), shape)
            for d, c in zip(self.outs, self.apply(starts), strict=True)
        ]
        found = Layout.from_table(self.ins, self.outs, np.stack(coords))
        if not tile.product(found).equals(self):
            raise LayoutError(f"layout: divide: {self} is no repetition of {tile}")
        return found

    def quotient(self, dim: str, axis: str = "reg") -> Layout:
        """The layout that is left when `dim` is reduced away.

        Registers of a lane that then hold the same element become one; lanes and warps stay, and
        hold copies.

        Args:
            dim: The reduced dim.
            axis: The input whose duplicates are dropped.
        """
        dims = tuple(d for d in self.outs if d != dim)
        atom = self.expanded.atom.select(dims)
        space = gf2.Echelon()
        kept = [c for c in atom.of_input(axis) if space.add(atom.pack(c))]
        reps: list[Rep] = []
        for rep in self.expanded.reps:
            if rep.dim != dim and not (rep.axis == axis and rep.stride == 0):
                reps.append(rep)
            elif rep.axis != axis and dims:
                reps.append(Rep(rep.axis, dims[0], rep.count, 0))
        return Layout(atom.with_input(axis, kept), tuple(reps))

    def __str__(self) -> str:
        parts = [f"{name}[{' '.join(map(_column, cs))}]" for name, cs in self.atom.ins]
        parts += [str(rep) for rep in self.reps]
        return f"({', '.join(self.outs)}) <- " + " ".join(parts)

    def grid(self, rows: int | None = None, cols: int | None = None) -> str:
        """A text picture of a tile of rank 1 or 2: each cell shows who holds it.

        A register layout shows `warp.lane:reg` (`warp.` only with several warps); any other layout
        shows its index. A trailing `+` says that others hold the element, too.

        Args:
            rows: Show only so many rows.
            cols: Show only so many columns.
        """
        if not 1 <= len(self.outs) <= 2:
            raise LayoutError("layout: grid: only tiles of rank 1 or 2 have a picture")
        height, width = (1, *self.shape.values())[-2:]
        cells = [["." for _ in range(width)] for _ in range(height)]
        table = self.table().reshape(len(self.outs), -1)
        sizes = tuple(self.sizes.values())
        for flat in range(self.count - 1, -1, -1):
            row, col = (0, *(int(v) for v in table[:, flat]))[-2:]
            index = dict(
                zip(self.ins, (int(v) for v in np.unravel_index(flat, sizes)), strict=True)
            )
            held = cells[row][col] != "."
            cells[row][col] = self._cell(index) + ("+" if held else "")
        shown = [line[:cols] for line in cells[:rows]]
        pad = max(len(cell) for line in shown for cell in line)
        return "\n".join(" ".join(cell.rjust(pad) for cell in line) for line in shown)

    def _cell(self, index: dict[str, int]) -> str:
        if "lane" not in index:
            return ".".join(str(v) for v in index.values())
        outer = [index[n] for n in ("warpgroup", "warp") if self.sizes.get(n, 1) > 1]
        return "".join(f"{v}." for v in outer) + f"{index['lane']}:{index.get('reg', 0)}"


def _column(column: Vector) -> str:
    return "(" + ",".join(map(str, column)) + ")"


def _meets(columns: Mapping[str, list[Vector]], place: int, number: int) -> bool:
    """Whether a column has a bit of `number` in the dim at `place`."""
    return any(c[place] & number for of_input in columns.values() for c in of_input)


def _as_rep(name: str, dims: Sequence[str], columns: Mapping[str, list[Vector]]) -> Rep | None:
    """The repetition that does what the top atom bit of an input does, if one does."""
    top = columns[name][-1]
    places = [place for place, number in enumerate(top) if number]
    if len(places) > 1 or not dims:
        return None
    place = places[0] if places else 0
    rest = {other: cs[:-1] if other == name else cs for other, cs in columns.items()}
    if _meets(rest, place, top[place]):
        return None
    return Rep(name, dims[place], 2, top[place])


def _merged(dims: Sequence[str], reps: list[Rep]) -> list[Rep]:
    """Drops repetitions of one and joins those that continue each other."""
    merged: list[Rep] = []
    for rep in reps:
        if rep.count == 1:
            continue
        if rep.stride == 0:
            rep = Rep(rep.axis, dims[0], rep.count, 0)
        last = merged[-1] if merged else None
        if last and last.dim == rep.dim and rep.stride == last.count * last.stride:
            merged[-1] = Rep(rep.axis, rep.dim, last.count * rep.count, last.stride)
        else:
            merged.append(rep)
    return merged


def _axis_digits(name: str, outs: Sequence[str], line: Array) -> tuple[list[Vector], list[Rep]]:
    """Atom columns and repetitions of one input: `line` is `[dim, the input, all others]`.

    The atom gets as few bits as will do: those above it must add to whatever the others give.
    """
    index: Array = np.arange(line.shape[1], dtype=np.int64)
    bits = (len(index) & -len(index)).bit_length() - 1
    for low in range(bits + 1):
        above: Array = index >> low << low
        if not np.array_equal(line, line[:, index - above] + line[:, above, :1]):
            continue
        reps = _radix_digits(name, outs, line[:, :: 1 << low, 0])
        if reps is not None:
            return [tuple(int(v) for v in line[:, 1 << bit, 0]) for bit in range(low)], reps
    raise LayoutError(f"layout: the map is not an atom with repetitions along {name}")


def _radix_digits(name: str, outs: Sequence[str], line: Array) -> list[Rep] | None:
    """The repetitions whose sums are the given coordinates, or None."""
    whole = line
    reps: list[Rep] = []
    while (size := line.shape[1]) > 1:
        step = line[:, 1]
        places = np.flatnonzero(step)
        if len(places) > 1 or not outs:
            return None
        place = int(places[0]) if len(places) else 0
        plain: Array = np.multiply.outer(step, np.arange(size, dtype=np.int64))
        differs = np.flatnonzero(np.any(line != plain, axis=0))
        run = int(differs[0]) if len(differs) else size
        while size % run:
            run -= 1
        if run < 2 or step[place] < 0:
            return None
        reps.append(Rep(name, outs[place], run, int(step[place])))
        line = line[:, ::run]
    sums = Layout(Linear.of(outs, {name: ()}), tuple(reps)).table()
    return reps if np.array_equal(sums, whole) else None
