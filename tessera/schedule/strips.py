"""Arrays that kernels make, and read at neighbours too, held in the cache some rows at a time.

A filter of an image reads the row above and the row below. What it reads of another filter is
computed for the rows of a strip, and some more, and is still in the cache when it is read:

    kernel: nest i, j: p[i, j] = f(x)[i, j]
    kernel: nest i, j: y[i, j] = g(p[i, j], p[i + 2, j])
    ==>
    kernel: each b: nest i < rows + 2, j: p[part, i, j] = f(x)[b*step + i, j]
                    nest i < rows, j: y[b*step + i, j] = g(p[part, i, j], p[part, i + 2, j])

Rows that two strips need are computed twice. All strips are of one size, so where it divides the
rows badly they overlap a little, too: the same numbers are written twice. Each nest keeps the tiles
that it has by itself, and each sum its order: bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TypeAlias

from tessera.ir.core import Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, Sym, bounds, linear_in, sym, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.axes import digits, split_axis
from tessera.schedule.blocks import PARTS
from tessera.schedule.copying import Names
from tessera.schedule.dependence import inner_axes
from tessera.schedule.join_columns import place_of
from tessera.schedule.machines import CachedCpu
from tessera.schedule.planes import (
    LEAST,
    LINE,
    PLANES,
    InPart,
    Joined,
    Joining,
    Local,
    Member,
    Plane,
    Rewriting,
    SameAxes,
    Search,
    bound,
    free_axes,
    gone_dims,
)
from tessera.schedule.types import Axis, BufType, buffer_type

SHARE = 2
"""A strip takes so much of the second cache: what it is made of and goes into passes through."""

NEAR = 16
"""What is left in that part of it comes back fast."""

OVERLAP = 2
"""Rows of a strip for each that is computed twice."""

LITTLE = 16
"""So many are enough."""

LONG_ROW = 8
"""Vectors of a row that may be a loop of its own."""

MORE = 2
"""Parts for each core, so that none waits long for the last one. More take more memory."""

Range: TypeAlias = tuple[int, int]


def hold_strips(func: Func, machine: CachedCpu) -> Func:
    """The program with kernels joined that read neighbours of what others make.

    Args:
        func: the program, with tiles.
        machine: the CPU.
    """
    body = _Strips(func, machine).block(func.body)
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True)
class Strips:
    """Kernels to join.

    Attributes:
        members: by their places in the program.
        local: what nobody else reads.
        planes: axes of planes, each of which has its strips.
        along: the axis of rows of each member.
        dims: the dim of rows of each local array, and who makes it.
        more: the rows that each member computes before the first and after the last of a strip.
        count: how many strips a plane has.
        step: from one to the next.
        rows: of one.
        parts: that threads take.
    """

    members: Mapping[int, Member]
    local: Sequence[Value]
    planes: Sequence[Plane]
    along: Mapping[int, str]
    dims: Mapping[Value, tuple[int, int]]
    more: Mapping[int, Range]
    count: int
    step: int
    rows: int
    parts: int

    def extent(self, k: int) -> int:
        """The rows of a strip that a member computes."""
        low, high = self.more[k]
        return self.rows + high - low


class _Strips(Joining):
    """Joins kernels that read neighbours of what others make."""

    def found(self, code: Sequence[Op], outputs: Sequence[Value]) -> tuple[Joined, int] | None:
        """Kernels to join, and where."""
        found = _Search(self, code, outputs).run()
        return None if found is None else (_Joined(found[0], self.names), found[1])


class _Search:
    """Looks for kernels of a block that read neighbours of what others make."""

    def __init__(self, within: Rewriting, code: Sequence[Op], outputs: Sequence[Value]) -> None:
        self.machine = within.machine
        self.search = Search(within.machine, within.member, code, outputs)
        self.code = code

    def run(self) -> tuple[Strips, int] | None:
        """Kernels to join, and where."""
        made = self.search.wanted()
        wanted = [{k, *self.search.readers[v]} for v, k in made]
        for first, (value, _) in zip(wanted, made, strict=True):
            found = self.strips(first) if self.has_neighbours(value) else None
            if found is None:
                continue
            left = [more for more in wanted if more is not first]
            while True:
                every = set(found[0].members)
                near = [m for m in left if not m.isdisjoint(every) and not m <= every]
                larger = (self.strips(every | more) for more in near)
                better = next((one for one in larger if one is not None), None)
                if better is None:
                    return found
                found = better
        return None

    def has_neighbours(self, value: Value) -> bool:
        """Whether a kernel reads an array at other places than its own."""
        members = self.search.members(self.search.readers[value]).values()
        found = [e for one in members for op in one.accesses(value) for e in op.index]
        return any(not isinstance(e, (int, Sym)) for e in found)

    def strips(self, places: Iterable[int]) -> tuple[Strips, int] | None:
        """Some kernels, if they may be joined, and where."""
        members = {k: unmerged(one) for k, one in self.search.members(set(places)).items()}
        made = {v: k for k, one in members.items() for v in one.kernel.results}
        readers = {v: [k for k in members if v in members[k].kernel.inputs] for v in made}
        local = [v for v in made if readers[v]]
        last = [k for k in members if not any(made[v] == k for v in local)]
        at = place_of(self.code, set(members), min(members)) if members else None
        if at is None or not local or len(last) != 1:
            return None
        if any(readers[v] != self.search.readers.get(v) for v in local):
            return None  # somebody else reads it
        if any(made[v] != last[0] for v in made if v not in local):
            return None
        planes = SameAxes(members, local).planes()
        nest = members[last[0]].nest
        for axis in [axis for axis in nest.axes if axis.name in free_axes(nest)]:
            found = _Along(members, {v: made[v] for v in local}, last[0], axis, planes).run()
            strips = None if found is None else self.sized(found)
            if strips is not None:
                return strips, at
        return None

    def sized(self, found: _Along) -> Strips | None:
        """Strips of a size that the second cache has room for; None if there is none."""
        row = sum([found.row(v) * buffer_type(v).dtype.itemsize for v in found.made])
        halo = max([high - low for low, high in found.more.values()])
        most = self.machine.l2 // SHARE // row - halo
        enough = max(self.machine.l2 // NEAR // row, LITTLE * halo)
        planes = prod([n for n, _ in found.planes])
        enough = min(most, enough, found.extent, found.extent * planes // PLANES)
        least = max(OVERLAP * halo, enough // 2, 1)
        parts = max(PARTS, MORE * self.machine.cores)

        def rows(step: int) -> int:
            return found.extent - (found.extent // step - 1) * step

        def work(step: int) -> float:
            # A thread takes parts, and all of these have as many strips as the first one.
            count = found.extent // step
            points = count * planes
            return count * (rows(step) + halo) * ceil(points / parts) * parts / points

        steps = [n for n in range(least, enough + 1) if rows(n) <= most]
        step = min(steps, key=work, default=0)
        if not step or any(found.row(v) * step < LEAST for v in found.made):
            return None
        return Strips(
            found.members, list(found.made), found.planes, found.along, found.dims, found.more,
            found.extent // step, step, rows(step), parts,
        )  # fmt: skip


class _Along:
    """Follows rows from the kernel that comes last to those that make what it reads.

    Attributes:
        members: the kernels.
        made: what they make and read, and which of them makes it.
        extent: the rows.
        planes: the axes of planes, in dims before that of rows.
        along: the axis of rows of each member.
        dims: the dim of rows of each array, and who makes it.
        more: the rows that each member computes before the first and after the last of a strip.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        made: Mapping[Value, int],
        last: int,
        axis: Axis,
        planes: Sequence[Plane],
    ) -> None:
        self.members = members
        self.made = made
        self.last = last
        self.extent = axis.extent if isinstance(axis.extent, int) else 0
        self.along: dict[int, str] = {last: axis.name}
        self.dims: dict[Value, tuple[int, int]] = {}
        self.more: dict[int, Range] = {last: (0, 0)}
        self.every = planes
        self.planes: Sequence[Plane] = ()

    def run(self) -> _Along | None:
        """This, where rows of all are found."""
        left = [k for k in self.members if k != self.last]
        is_plane = any(nodes[self.last] == self.along[self.last] for _, nodes in self.every)
        if is_plane or not self.extent:
            return None
        done = {self.last}
        if not self.reads(self.last):
            return None
        while left:
            made = {k: [v for v in self.made if self.made[v] == k] for k in left}
            ready = [k for k in left if all(self.who_reads(v) <= done for v in made[k])]
            if not ready:
                return None
            for k in ready:
                if not self.makes(k, made[k]) or not self.reads(k):
                    return None
                done.add(k)
                left.remove(k)
        self.planes = [
            plane for plane in self.every
            if all(int(plane[1][v]) < d for v, (d, _) in self.dims.items())
        ]  # fmt: skip
        return self if all(map(self.is_first, self.dims)) else None

    def is_first(self, value: Value) -> bool:
        """Whether the rows of an array lie one after the other in a plane of it."""
        d, shape = self.dims[value][0], buffer_type(value).shape
        gone = gone_dims(value, self.planes)
        return all(k in gone or shape[k] == 1 for k in range(d))

    def who_reads(self, value: Value) -> set[int]:
        """The members that read an array."""
        return {k for k, one in self.members.items() if value in one.kernel.inputs}

    def reads(self, k: int) -> bool:
        """Whether a member reads the others' arrays in rows that follow its own; notes which."""
        one, axis = self.members[k], self.along[k]
        inner = _inner_ranges(one)
        pairs = [(v, op) for v in self.made for op in one.accesses(v) if v in one.kernel.inputs]
        for value, op in pairs:
            maker, found = self.made[value], _row_of(op.index, axis, inner)
            if found is None or self.dims.setdefault(value, (found[0], maker))[0] != found[0]:
                return False
            low, high = found[1][0] + self.more[k][0], found[1][1] + self.more[k][1]
            known = self.more.get(maker, (low, high))
            self.more[maker] = min(low, known[0]), max(high, known[1])
        return True

    def makes(self, k: int, values: Sequence[Value]) -> bool:
        """Whether a member has an axis of its own for rows of what it makes; notes it."""
        one = self.members[k]
        for value in values:
            d = self.dims[value][0]
            stores = [op for op in one.accesses(value) if isinstance(op, ops.Store)]
            if not stores or len(stores) != len(one.accesses(value)):
                return False
            for op in stores:
                e = op.index[d]
                if not isinstance(e, Sym) or _row_of(op.index, e.name, {}) != (d, (0, 0)):
                    return False
                if self.along.setdefault(k, e.name) != e.name or op.where:
                    return False
        return any(axis.name == self.along.get(k) for axis in one.nest.axes)

    def row(self, value: Value) -> int:
        """Elements of a row of an array, of one plane."""
        type = buffer_type(value)
        gone = {self.dims[value][0], *gone_dims(value, self.planes)}
        return prod([int(str(n)) for k, n in enumerate(type.shape) if k not in gone])


class _Joined(Joined):
    """A group in the making."""

    what = "strips of rows"

    def __init__(self, strips: Strips, names: Names) -> None:
        extents = [*[n for n, _ in strips.planes], strips.count]
        super().__init__(strips.members, strips.local, extents, strips.parts, names)
        self.strips = strips

    def temporary(self, value: Value) -> BufType:
        """Memory of the parts for a strip of an array."""
        d, maker = self.strips.dims[value]
        gone = gone_dims(value, self.strips.planes)
        shape = list(buffer_type(value).shape)
        shape[d] = self.strips.extent(maker)
        return self.rows(value, [n for k, n in enumerate(shape) if k not in gone])

    def nest(self, k: int) -> ops.Nest:
        """A member's nest for one strip."""
        strips, one = self.strips, self.members[k]
        pairs = list(zip(strips.planes, self.axes, strict=False))
        to: dict[str, Dim] = {str(nodes[k]): sym(axis.name) for (_, nodes), axis in pairs}
        start, own = sym(self.axes[-1].name) * strips.step, strips.along[k]
        low, high = strips.more[k]
        axes: dict[str, Axis | None] = {str(nodes[k]): None for (_, nodes), _ in pairs}
        axes[own] = Axis(own, strips.extent(k))
        to[own] = start + low + sym(own)
        local: dict[Value, Local] = {}
        for arg, v in bound(one.kernel):
            if v in strips.local:
                d, maker = strips.dims[v]
                first = start + strips.more[maker][0]
                local[arg] = Local(gone_dims(v, strips.planes), d, first)
        # What no strip reads is not there: rows beyond those of a plane.
        extent = next(int(str(axis.extent)) for axis in one.nest.axes if axis.name == own)
        last = (strips.count - 1) * strips.step + strips.rows - 1
        guard = [sym(own)] if low < 0 else []
        guard += [extent - 1 - sym(own)] if last + high >= extent else []
        copy = InPart(
            to, guard=tuple(guard), env=self.env(k), part=sym(self.part.name), local=local
        )
        return self.copied(k, copy, axes)


def unmerged(member: Member) -> Member:
    """The member with axes split of which some indices are digits, those with lanes too where rows
    are long enough, and begin a line of the cache."""
    nest = member.nest
    tiles = dict(zip([a.name for a in nest.axes], nest.tile, strict=False))
    places = [(op.buf, e) for found in member.memory.values() for op in found for e in op.index]
    for buf, e in places:
        for name, inner in digits(e):
            axis = next((one for one in nest.axes if one.name == name), None)
            if axis is None or not isinstance(axis.extent, int) or not isinstance(inner, int):
                continue
            tile, size = tiles.get(name, 1), inner * buffer_type(buf).dtype.itemsize
            is_whole = tile == 1 or (inner >= LONG_ROW * tile and size % LINE == 0)
            if axis.extent % inner == 0 and is_whole:
                return unmerged(Member(member.kernel, split_axis(nest, axis, inner, Facts())))
    return member


def _inner_ranges(member: Member) -> dict[str, Range]:
    """Where the axes of sums go; several sums have axes of one name."""
    found: dict[str, Range] = {}
    for axis in [axis for op in walk(member.nest.body) for axis in inner_axes(op)]:
        if isinstance(axis.extent, int):
            found[axis.name] = 0, max(axis.extent - 1, *found.get(axis.name, (0, 0)))
    return found


def _row_of(
    index: Sequence[Dim], axis: str, inner: Mapping[str, Range]
) -> tuple[int, Range] | None:
    """The dim that an index goes along with an axis, and how far from it; None if it is not one, or
    more than one.

    Args:
        index: the index.
        axis: the axis.
        inner: where axes go that the index may mention besides.
    """
    dims = [k for k, e in enumerate(index) if not isinstance(e, int) and axis in symbols(e)]
    found = linear_in(index[dims[0]], [axis]) if len(dims) == 1 else None
    if found is None or found[0][axis] != 1 or not symbols(found[1]) <= inner.keys():
        return None
    low, high = bounds(found[1], inner)
    return None if low is None or high is None else (dims[0], (low, high))
