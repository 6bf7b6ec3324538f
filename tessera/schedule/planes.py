"""Arrays that several kernels make and read plane by plane, held in the cache.

A convolution pads each channel of its operand, and its windows read that channel only. One kernel
after the other, the padded array goes through memory; for one channel at a time it stays in a cache
near the core, in memory that the next one uses again:

    kernel: nest n, c, i, j: p[n, c, i, j] = pad(x)[n, c, i, j]
    kernel: nest n, c, i, j: y[n, c, i, j] = reduce r, s: p[n, c, i + r, j + s] * w[c, r, s]
    ==>
    kernel: each n, c: nest i, j: p[part, i, j] = pad(x)[n, c, i, j]
                       nest i, j: y[n, c, i, j] = reduce r, s: p[part, i + r, j + s] * w[c, r, s]

Each nest keeps the tiles that it has by itself, and each sum its order: bits are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, TypeAlias

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, Sym, sym, symbols
from tessera.ir.lazy import cached_property
from tessera.ir.walk import free_values, walk
from tessera.schedule import ops
from tessera.schedule.axes import digits, split_axis
from tessera.schedule.block_ops import Each
from tessera.schedule.blocks import PARTS, work_of
from tessera.schedule.copying import Copy, Names
from tessera.schedule.grains import grain_of
from tessera.schedule.join_columns import place_of, renamed
from tessera.schedule.machines import CachedCpu
from tessera.schedule.types import Axis, BufType, buffer_type

LEAST = 1 << 10
"""Elements of a plane for which it pays to begin its nests."""

PLANES = 16
"""Planes of which threads have enough to share."""

LINE = 64
"""Bytes of a line."""

Node = tuple[object, str | int]
"""An axis of a kernel, or a dim of an array."""

Plane = tuple[int, Mapping[object, str | int]]
"""An axis of planes: its extent, and which axis of each kernel and dim of each array it is."""


Code: TypeAlias = tuple[list[Op], list[Value]]
"""The ops and outputs of a block."""


def hold_planes(func: Func, machine: CachedCpu) -> Func:
    """The program with kernels joined that go over the same planes of an array.

    Args:
        func: the program, with tiles.
        machine: the CPU.
    """
    body = _Planes(func, machine).block(func.body)
    return func if body is func.body else func.with_body(body)


class Member:
    """A kernel of one nest.

    Attributes:
        kernel: the kernel.
        nest: the nest.
    """

    def __init__(self, kernel: ops.Kernel, nest: ops.Nest) -> None:
        self.kernel = kernel
        self.nest = nest

    @cached_property
    def memory(self) -> dict[Value, list[ops.Load | ops.Store]]:
        """What reads and writes each value of the program."""
        found: dict[Value, list[ops.Load | ops.Store]] = {}
        values = dict(bound(self.kernel))
        for op in walk(self.nest.body):
            if isinstance(op, (ops.Load, ops.Store)):
                found.setdefault(values[op.buf], []).append(op)
        return found

    def accesses(self, value: Value) -> list[ops.Load | ops.Store]:
        """What reads and writes a value."""
        return self.memory.get(value, [])

    @cached_property
    def axes(self) -> dict[str, int]:
        """The axes that planes may go along, with their extents."""
        return free_axes(self.nest)

    def split(self) -> Member:
        """The same with axes split of which some indices are digits."""
        free = free_axes(self.nest)
        for e in [e for found in self.memory.values() for op in found for e in op.index]:
            for name, inner in digits(e):
                if name in free and isinstance(inner, int) and free[name] % inner == 0:
                    axis = next(one for one in self.nest.axes if one.name == name)
                    return Member(self.kernel, split_axis(self.nest, axis, inner, Facts())).split()
        return self


@dataclass(frozen=True)
class Group:
    """Kernels to join.

    Attributes:
        members: by their places in the program.
        local: what nobody else reads.
        planes: the axes of the planes.
    """

    members: Mapping[int, Member]
    local: Sequence[Value]
    planes: Sequence[Plane]


class Rewriting(ABC):
    """Rewrites the kernels of a program that share planes.

    Attributes:
        kind: what kernels are as members.
        known: the members that kernels are.
    """

    kind: ClassVar[type[Member]] = Member

    def __init__(self, func: Func, machine: CachedCpu) -> None:
        self.func = func
        self.machine = machine
        self.known: dict[Op, Member | None] = {}

    def block(self, old: Block) -> Block:
        """A block with its kernels rewritten, those of regions too; the same one if none is."""
        code, outputs = list(old.ops), list(old.outputs)
        again: dict[Value, Value] = {}
        is_new = False
        for k, op in enumerate(code):
            regions = () if isinstance(op, ops.Kernel) else op.regions
            inner = [self.block(region) for region in regions]
            if any(one is not region for one, region in zip(inner, regions, strict=True)):
                code[k] = op.rebuild(op.operands, inner)
                again.update(zip(op.results, code[k].results, strict=True))
                is_new = True
        if again:
            code, outputs = renamed(code, outputs, again)
        found = self.kernels(code, outputs)
        if found is None:
            return Block(old.args, code, outputs) if is_new else old
        return Block(old.args, *found)

    @abstractmethod
    def kernels(self, code: list[Op], outputs: list[Value]) -> Code | None:
        """The ops and outputs of a block with its own kernels rewritten; None if none is."""

    def member(self, op: Op) -> Member | None:
        """What may be joined of an op."""
        if op not in self.known:
            self.known[op] = member_of(op, self.kind)
        return self.known[op]

    @cached_property
    def names(self) -> Names:
        """Names for axes."""
        taken = {*self.func.dims}
        for op in walk(self.func.body):
            taken.update(ops.bound_axes(op))
        return Names(taken)


class Joining(Rewriting):
    """Joins kernels of a program until it finds no more."""

    def kernels(self, code: list[Op], outputs: list[Value]) -> Code | None:
        """The ops and outputs of a block with its kernels joined; None if there are none."""
        is_new = False
        while (found := self.found(code, outputs)) is not None:
            is_new, (group, at) = True, found
            joined, again = group.kernel()
            code[at] = joined
            code = [op for k, op in enumerate(code) if k == at or k not in group.members]
            code, outputs = renamed(code, outputs, again)
        return (code, outputs) if is_new else None

    @abstractmethod
    def found(self, code: Sequence[Op], outputs: Sequence[Value]) -> tuple[Joined, int] | None:
        """Kernels to join, and where."""


class _Planes(Joining):
    """Joins kernels that share planes."""

    def found(self, code: Sequence[Op], outputs: Sequence[Value]) -> tuple[Joined, int] | None:
        """Kernels to join, and where."""
        found = Search(self.machine, self.member, code, outputs).run()
        return None if found is None else (_Joined(found[0], self.names), found[1])


class Search:
    """Looks for kernels of a block that share planes.

    Attributes:
        readers: the kernels that read each value, which nothing else does.
    """

    def __init__(
        self,
        machine: CachedCpu,
        member: Callable[[Op], Member | None],
        code: Sequence[Op],
        outputs: Sequence[Value],
    ) -> None:
        self.machine = machine
        self.member = member
        self.code = code
        self.readers: dict[Value, list[int]] = {}
        elsewhere = set(outputs)
        for k, op in enumerate(code):
            if not isinstance(op, ops.Kernel):
                elsewhere.update(free_values(Block([], [op], ())))
                continue
            for value in dict.fromkeys(op.inputs):
                self.readers.setdefault(value, []).append(k)
        for value in elsewhere:
            self.readers.pop(value, None)

    def run(self) -> tuple[Group, int] | None:
        """Kernels to join, and where."""
        wanted = self.wanted()
        for value, k in wanted:
            found = self.group({k, *self.readers[value]}) if self.is_first(value, k) else None
            if found is not None:
                return self.grown(found, [(v, n) for v, n in wanted if v is not value])
        return None

    def wanted(self) -> list[tuple[Value, int]]:
        """Large arrays that members alone make and read, and where they are made."""
        made = [(v, k) for k, op in enumerate(self.code) for v in op.results]
        wanted = [(v, k) for v, k in made if v in self.readers and self.is_large(v)]
        return [(v, k) for v, k in wanted if self.members((k, *self.readers[v]))]

    def members(self, places: Collection[int]) -> dict[int, Member]:
        """What may be joined at some places; {} where something may not."""
        found: dict[int, Member] = {}
        for k in sorted(places):
            one = self.member(self.code[k])
            if one is None:
                return {}
            found[k] = one
        return found

    def grown(self, found: tuple[Group, int], others: list[tuple[Value, int]]) -> tuple[Group, int]:
        """A group with what makes or reads more of the arrays that it touches."""
        every = set(found[0].members)
        for _ in others:
            near = [{k, *self.readers[value]} for value, k in others]
            every.update(*[more for more in near if not more.isdisjoint(every)])
        if len(every) > len(found[0].members) and (largest := self.group(every)):
            return largest
        for value, k in others:
            more = {k, *self.readers[value]}
            if not more.isdisjoint(found[0].members):
                found = self.group(more | found[0].members.keys()) or found
        return found

    def is_large(self, value: Value) -> bool:
        """Whether the second cache does not hold an array."""
        if not isinstance(value.type, BufType) or not isinstance(value.type.size, int):
            return False
        return value.type.size * value.type.dtype.itemsize >= self.machine.l2

    def is_first(self, value: Value, k: int) -> bool:
        """Whether a group may begin with an array: windows are read of it, or it is made of windows
        and goes into sums of planes."""
        members = self.members((k, *self.readers[value]))
        readers = [members[n] for n in self.readers[value]]
        if any(_is_window(e) for one in readers for op in one.accesses(value) for e in op.index):
            return True
        made = [e for found in members[k].memory.values() for op in found for e in op.index]
        sums = [_size(v) for one in readers for v in one.kernel.results]
        return any(map(_is_window, made)) and max(sums) * LEAST <= _size(value)

    def group(self, places: Collection[int]) -> tuple[Group, int] | None:
        """Some kernels, if they may be joined, and where."""
        members = {k: one.split() for k, one in self.members(places).items()}
        made = [v for one in members.values() for v in one.kernel.results]
        readers = {v: [k for k in members if v in members[k].kernel.inputs] for v in made}
        flows = [v for v in made if readers[v]]
        local = [v for v in flows if readers[v] == self.readers.get(v)]
        at = place_of(self.code, set(members), min(members))
        if at is None or not local:
            return None
        for planes in self.choices(members, local, SameAxes(members, flows).planes()):
            if self.fits(local, planes):
                return Group(members, local, planes), at
        return None

    def choices(
        self, members: Mapping[int, Member], local: Sequence[Value], planes: Sequence[Plane]
    ) -> Iterator[Sequence[Plane]]:
        """Axes that planes may have, the best ones first."""
        return (planes[:n] for n in range(len(planes), 0, -1))

    def fits(self, local: Sequence[Value], planes: Sequence[Plane]) -> bool:
        """Whether planes are large enough, and the second cache holds them."""
        size = sum([elements_of(v, planes) * buffer_type(v).dtype.itemsize for v in local])
        is_large = min(elements_of(v, planes) for v in local) >= LEAST
        return is_large and 2 * size <= self.machine.l2 and prod([n for n, _ in planes]) >= PLANES


class SameAxes:
    """Which axes of some kernels, and dims of the arrays between them, are the same.

    Attributes:
        sets: for each axis or dim all that are the same.
        apart: dims along which some kernel reads elsewhere than at its own place.
        extents: of the kernels' axes.
    """

    def __init__(self, members: Mapping[int, Member], flows: Sequence[Value]) -> None:
        self.sets: dict[Node, dict[Node, None]] = {}
        self.apart: set[Node] = set()
        self.extents: dict[Node, int] = {}
        self.count = len(members) + len(flows)
        for k, one in members.items():
            self.extents.update({(k, name): n for name, n in one.axes.items()})
            for value in flows:
                for op in one.accesses(value):
                    for d, e in enumerate(op.index):
                        self.join((value, d), (k, e.name if isinstance(e, Sym) else ""))

    def join(self, dim: Node, axis: Node) -> None:
        """Says that a kernel goes along a dim with an axis."""
        if axis not in self.extents:
            self.apart.add(dim)
            return
        mine, other = [self.sets.setdefault(node, {node: None}) for node in (dim, axis)]
        if mine is not other:
            mine.update(other)
            self.sets.update(dict.fromkeys(other, mine))

    def planes(self) -> list[Plane]:
        """The axes that all kernels share, and along which each array is read where it is
        written."""
        found: dict[int, Plane] = {}
        for node, nodes in self.sets.items():
            owners = dict(nodes.keys())
            extents = {self.extents[one] for one in nodes if one in self.extents}
            is_shared = len(nodes) == len(owners) == self.count and len(extents) == 1
            if is_shared and node in self.extents and self.apart.isdisjoint(nodes):
                found[id(nodes)] = (extents.pop(), owners)
        return list(found.values())


class Joined(ABC):
    """A kernel in the making, that runs the nests of others at each point of some axes.

    Attributes:
        what: what points are, for the reason.
        members: the kernels, by their places in the program.
        local: what nobody else reads, which parts have memory for.
        axes: what points are of.
        points: how many there are.
        parts: by how many parts.
        part: the axis of these.
        own: the arguments of the kernel, by what they are in the program.
    """

    what: ClassVar[str]

    def __init__(
        self,
        members: Mapping[int, Member],
        local: Sequence[Value],
        extents: Sequence[int],
        parts: int,
        names: Names,
    ) -> None:
        self.members = members
        self.local = local
        self.axes = [Axis(names.fresh("b"), extent) for extent in extents]
        self.points = prod(extents)
        self.parts = min(self.points, parts)
        self.part = Axis(names.fresh("q"), self.parts)
        self.own: dict[Value, Value] = {}

    def kernel(self) -> tuple[ops.Kernel, dict[Value, Value]]:
        """The kernel, and its results for those of the members."""
        members, local = list(self.members.values()), self.local
        made = [v for one in members for v in one.kernel.results]
        inputs = [v for v in dict.fromkeys(v for m in members for v in m.kernel.inputs)]
        inputs = [v for v in inputs if v not in made]
        results = [v for v in made if v not in local]
        for value in (*inputs, *results):
            self.own[value] = Value(value.type, value.name)
        for value in local:
            self.own[value] = Value(self.temporary(value), value.name)
        nests = [self.nest(k) for k in self.members]
        work = sum([work_of(nest) for nest in nests]) * self.points / self.parts
        each = Each(
            tuple(self.axes), 0, self.part, f"{self.points} {self.what}, which stay in the cache",
            grain_of(self.parts, work), body=Block((), nests, ()), loc=members[-1].kernel.loc,
        )  # fmt: skip
        body = Block([self.own[v] for v in (*inputs, *results, *local)], [each], ())
        types = [v.type for v in body.args[len(inputs) :] if isinstance(v.type, BufType)]
        kernel = ops.Kernel(
            inputs, tuple(types), temps=len(local),
            label=members[-1].kernel.label,
            reason="; ".join([one.kernel.reason for one in members]),
            body=body, loc=members[-1].kernel.loc,
        )  # fmt: skip
        return kernel, dict(zip(results, kernel.results, strict=False))

    def rows(self, value: Value, shape: Sequence[Dim]) -> BufType:
        """Memory of the parts for what a point has of an array: in rows that begin a line of the
        cache, where that is not much more memory, and where nobody goes over several as one."""
        shape = list(shape)
        lanes = LINE // buffer_type(value).dtype.itemsize
        last = shape[-1] if shape else 0
        reads = [op.index[-1] for one in self.members.values() for op in one.accesses(value)]
        is_one = any(True for e in reads for _ in digits(e))
        if isinstance(last, int) and last >= lanes and lanes > 1 and not is_one:
            shape[-1] = -(-last // lanes) * lanes
        return BufType((self.parts, *shape), buffer_type(value).dtype)

    def copied(self, k: int, copy: Copy, axes: Mapping[str, Axis | None]) -> ops.Nest:
        """A member's nest at one point.

        Args:
            k: the member.
            copy: makes the code.
            axes: what becomes of axes that do not stay what they are; None: they are gone.
        """
        nest = self.members[k].nest
        new = {axis: axes.get(axis.name, axis) for axis in nest.axes}
        kept = [(axis, n) for n, axis in enumerate(new.values()) if axis is not None]
        found = nest.rebuild(
            (), [copy.block(nest.body)],
            axes=tuple([axis for axis, _ in kept]),
            tile=tuple([nest.tile[n] for _, n in kept]) if nest.tile else (),
            chunk=(), grain=0,
        )  # fmt: skip
        assert isinstance(found, ops.Nest)
        return found

    def env(self, k: int) -> dict[Value, Value]:
        """The arguments of the kernel for those of a member."""
        return {arg: self.own[v] for arg, v in bound(self.members[k].kernel)}

    @abstractmethod
    def temporary(self, value: Value) -> BufType:
        """Memory of the parts for an array."""

    @abstractmethod
    def nest(self, k: int) -> ops.Nest:
        """A member's nest at one point."""


class _Joined(Joined):
    """A group in the making."""

    what = "planes"

    def __init__(self, group: Group, names: Names) -> None:
        extents = [n for n, _ in group.planes]
        super().__init__(group.members, group.local, extents, PARTS, names)
        self.planes = group.planes

    def temporary(self, value: Value) -> BufType:
        """Memory of the parts for an array's planes."""
        gone = gone_dims(value, self.planes)
        shape = buffer_type(value).shape
        return self.rows(value, [n for k, n in enumerate(shape) if k not in gone])

    def nest(self, k: int) -> ops.Nest:
        """A member's nest for one plane."""
        pairs = zip(self.planes, self.axes, strict=True)
        names = {str(nodes[k]): axis.name for (_, nodes), axis in pairs}
        kernel = self.members[k].kernel
        local = {
            arg: Local(gone_dims(v, self.planes)) for arg, v in bound(kernel) if v in self.local
        }
        copy = InPart(
            {name: sym(new) for name, new in names.items()},
            env=self.env(k), part=sym(self.part.name), local=local,
        )  # fmt: skip
        return self.copied(k, copy, dict.fromkeys(names))


@dataclass(frozen=True)
class Local:
    """An array that parts have memory for.

    Attributes:
        gone: its dims that the planes' axes go along.
        rows: the dim of rows, of which a part has some.
        start: the row that comes first in it.
    """

    gone: frozenset[int]
    rows: int = -1
    start: Dim = 0

    def index(self, index: Sequence[Dim]) -> list[Dim]:
        """Where an element of the array is in a part."""
        kept = [(k, e) for k, e in enumerate(index) if k not in self.gone]
        return [e - self.start if k == self.rows else e for k, e in kept]


@dataclass
class InPart(Copy):
    """Code that runs for a part.

    Attributes:
        part: which part runs.
        local: the arrays that parts have memory for. No condition guards them.
    """

    part: Dim = 0
    local: Mapping[Value, Local] = field(default_factory=dict[Value, Local])

    def op(self, op: Op) -> Op:
        """One op; its results are known from then on."""
        if not isinstance(op, (ops.Load, ops.Store)) or op.buf not in self.local:
            return super().op(op)
        index = self.local[op.buf].index(self.places(op.index))
        where, operands = self.places(op.where), [self.find(v) for v in op.operands]
        fresh = op.rebuild(operands, index=(self.part, *index), where=where)
        if isinstance(op, ops.Store):
            fresh = fresh.rebuild(operands, streaming=0, least=0)
        self.env.update(zip(op.results, fresh.results, strict=True))
        return fresh


def _is_window(e: Dim) -> bool:
    """Whether an index moves with two axes."""
    return not isinstance(e, (int, Sym)) and len(symbols(e)) == 2


def bound(kernel: ops.Kernel) -> Iterator[tuple[Value, Value]]:
    """The arguments of a kernel's body, and the values of the program that they are."""
    return zip(kernel.body.args, (*kernel.inputs, *kernel.results), strict=True)


def member_of(op: Op, kind: type[Member]) -> Member | None:
    """A kernel of one plain nest."""
    if not isinstance(op, ops.Kernel) or op.temps or op.joined or len(op.body.ops) != 1:
        return None
    (nest,) = op.body.ops
    if not isinstance(nest, ops.Nest) or nest.ordered:
        return None
    for one in walk(nest.body):
        is_update = isinstance(one, ops.Store) and one.combine is not None
        if is_update or (one.regions and not isinstance(one, (ops.Reduce, ops.ArgReduce))):
            return None
    return kind(op, nest)


def free_axes(nest: ops.Nest) -> dict[str, int]:
    """The axes of known size that have no tiles."""
    tiles = nest.tile or (1,) * len(nest.axes)
    pairs = zip(nest.axes, tiles, strict=True)
    return {a.name: a.extent for a, tile in pairs if tile <= 1 and isinstance(a.extent, int)}


def gone_dims(value: Value, planes: Sequence[Plane]) -> frozenset[int]:
    """The dims of an array that the planes' axes go along."""
    return frozenset([int(nodes[value]) for _, nodes in planes])


def elements_of(value: Value, planes: Sequence[Plane]) -> int:
    """Those of a plane of an array."""
    assert isinstance(value.type, BufType)
    size = value.type.size
    assert isinstance(size, int)
    return size // prod([extent for extent, _ in planes])


def _size(value: Value) -> int:
    """The elements of an array; very many where they are not known."""
    assert isinstance(value.type, BufType)
    return value.type.size if isinstance(value.type.size, int) else 1 << 62
