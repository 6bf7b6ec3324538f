"""Sums over planes of arrays that kernels make and read plane by plane, one for each plane.

A loss is a sum over all of an array, and the gradient for the weights of a depthwise convolution
one over all images. As one sum, or in parts of so many elements, it reads an array in memory; in
parts that are planes it reads what the kernels before it have just left in the cache (`planes.py`):

    kernel: nest n, c, i, j: y[n, c, i, j] = ...
    kernel: z = f(reduce n, c, i, j: g(y[n, c, i, j]))
    ==>
    kernel: nest n, c, i, j: y[n, c, i, j] = ...
    kernel: nest n, c: part[n, c] = reduce i, j: g(y[n, c, i, j])
    kernel: z = f(reduce n, c: part[n, c])

Which parts there are depends on sizes and the machine's caches only, and so do results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from tessera.ir.core import Block, Func, Op, Value, scalar_dtype
from tessera.ir.intexpr import Facts, simplify, sym
from tessera.ir.lazy import cached_property
from tessera.ir.walk import free_values, walk
from tessera.schedule import ops
from tessera.schedule.access import dependence_of, ranges
from tessera.schedule.axes import digits
from tessera.schedule.copying import Copy, Names
from tessera.schedule.emit import without_dead
from tessera.schedule.heuristics import choose_nest
from tessera.schedule.join_columns import renamed
from tessera.schedule.machines import CachedCpu
from tessera.schedule.planes import (
    Code,
    Group,
    Member,
    Plane,
    Rewriting,
    Search,
    elements_of,
    free_axes,
)
from tessera.schedule.types import Axis, BufType

FEW = 128
"""Elements of a plane for each number that a part of a sum writes, if there is a choice: numbers
are added up of the lanes of a vector, which takes as long as so many elements."""


def sum_by_planes(func: Func, machine: CachedCpu) -> Func:
    """The program with sums cut into parts that are planes of an array.

    Args:
        func: a program; what has tiles is left alone.
        machine: the CPU.
    """
    body = _Cutting(func, machine).block(func.body)
    return func if body is func.body else func.with_body(body)


class _Summing(Member):
    """A kernel whose sums may be cut."""

    @cached_property
    def sums(self) -> dict[str, int]:
        """The axes along which that may be, with their extents."""
        found = _sums_of(self.nest)
        return {a.name: a.extent for op in found for a in op.axes if isinstance(a.extent, int)}

    @cached_property
    def axes(self) -> dict[str, int]:
        """The axes that planes may go along."""
        return {**self.sums, **free_axes(self.nest)}

    def split(self) -> Member:
        """The same with axes split of which some indices are digits."""
        for found in self.memory.values():
            for e in (e for op in found for e in op.index):
                for name, inner in digits(e):
                    if (
                        name in self.sums
                        and isinstance(inner, int)
                        and self.sums[name] % inner == 0
                    ):
                        return _Summing(self.kernel, _with_split(self.nest, name, inner)).split()
        one = super().split()
        return self if one is self else _Summing(one.kernel, one.nest)


class _Search(Search):
    """Looks for planes that sums may go along."""

    def choices(
        self, members: Mapping[int, Member], local: Sequence[Value], planes: Sequence[Plane]
    ) -> Iterator[Sequence[Plane]]:
        """Axes that planes may have: where parts of sums would be many numbers, rather others."""
        size = min(elements_of(v, planes) for v in local)

        def is_costly(plane: Plane) -> bool:
            cut = _cuts(members, [plane])
            return any(_numbers(members[k], k, planes) * FEW > size for k in cut)

        rest = [plane for plane in planes if is_costly(plane)]
        cheap = [plane for plane in planes if plane not in rest]
        yield from super().choices(members, local, cheap)
        for n in range(len(rest)):
            yield [*cheap, *rest[: len(rest) - n]]

    def groups(self) -> Iterator[Group]:
        """Kernels that share planes, all that there are."""
        left = self.wanted()
        for value, k in left:
            found = self.group({k, *self.readers[value]}) if self.is_first(value, k) else None
            if found is not None:
                yield self.grown(found, [(v, n) for v, n in left if v is not value])[0]


class _Cutting(Rewriting):
    """Cuts the sums of a program."""

    kind = _Summing

    def kernels(self, code: list[Op], outputs: list[Value]) -> Code | None:
        """The ops and outputs of a block with its sums cut; None if there are none."""
        pieces: dict[int, list[ops.Kernel]] = {}
        for group in _Search(self.machine, self.member, code, outputs).groups():
            for k, names in _cuts(group.members, group.planes).items():
                if k not in pieces and (found := self.cut(group, k, names)):
                    pieces[k] = found
        if not pieces:
            return None
        again: dict[Value, Value] = {}
        for k, found in pieces.items():
            again.update(zip(code[k].results, found[-1].results, strict=True))
        kept = [pieces[k][0] if k in pieces else op for k, op in enumerate(code)]
        code, outputs = renamed(kept, outputs, again)
        return _late(code, [found[-1] for found in pieces.values()]), outputs

    def cut(self, group: Group, k: int, names: Collection[str]) -> list[ops.Kernel]:
        """The kernels of a member: of the parts, and of all; [] where parts have no sums."""
        one = group.members[k]
        planes = {str(nodes[k]) for _, nodes in group.planes}
        if len(names) == len(_sums_of(one.nest)[0].axes):
            return []
        return _Cut(one, names, self.names).kernels(self.machine, planes)


class _Cut:
    """A kernel whose sums are cut.

    Attributes:
        one: the kernel.
        found: its sums.
        parts: for the axes of sums that are cut those of the parts.
        place: where a number of a part is.
        partial: where each sum has these.
    """

    def __init__(self, one: Member, names: Collection[str], fresh: Names) -> None:
        self.one = one
        self.nest = one.nest
        self.found = _sums_of(one.nest)
        axes = [axis for axis in self.found[0].axes if axis.name in names]
        self.parts = {axis.name: Axis(fresh.fresh("p"), axis.extent) for axis in axes}
        around = (*self.parts.values(), *self.nest.axes)
        self.place = tuple([sym(axis.name) for axis in around])
        dims = tuple([axis.extent for axis in around])
        self.partial = {op: Value(BufType(dims, scalar_dtype(op.result))) for op in self.found}

    def kernels(self, machine: CachedCpu, planes: Collection[str]) -> list[ops.Kernel]:
        """The kernel of the parts, and that which needs them; [] where lanes would go along planes.

        Args:
            machine: the CPU.
            planes: the kernel's axes that planes go along.
        """
        around = (*self.parts.values(), *self.nest.axes)
        first = self.kernel(around, self.part, [*self.partial.values()])
        (nest,) = first.body.ops
        assert isinstance(nest, ops.Nest)
        tiled = _whole(
            choose_nest(nest, machine), {*planes, *[a.name for a in self.parts.values()]}
        )
        if tiled is None:
            return []
        first = first.rebuild(regions=[Block(first.body.args, [tiled], ())])
        assert isinstance(first, ops.Kernel)
        known = dict(zip(self.partial.values(), first.results, strict=True))
        made = self.one.kernel.body.args[len(self.one.kernel.inputs) :]
        return [first, self.kernel(self.nest.axes, self.total, made, known)]

    def part(self, op: ops.Reduce, copy: Copy) -> list[Op]:
        """The code for a sum: that of a part is stored."""
        within = Copy({name: sym(axis.name) for name, axis in self.parts.items()}, env=copy.env)
        axes = tuple([axis for axis in op.axes if axis.name not in self.parts])
        found = ops.Reduce(axes, op.fn, within.block(op.body), loc=op.loc)
        return [found, ops.Store(copy.find(self.partial[op]), found.result, (), self.place)]

    def total(self, op: ops.Reduce, copy: Copy) -> list[Op]:
        """The code for a sum from those of the parts."""
        load = ops.Load(copy.find(self.partial[op]), (), self.place, loc=op.loc)
        body = Block([], [load], (load.result,))
        found = ops.Reduce(tuple(self.parts.values()), op.fn, body, loc=op.loc)
        copy.env[op.result] = found.result
        return [found]

    def kernel(
        self,
        axes: Sequence[Axis],
        code_of: Callable[[ops.Reduce, Copy], list[Op]],
        made: Sequence[Value],
        known: Mapping[Value, Value] | None = None,
    ) -> ops.Kernel:
        """One of the two.

        Args:
            axes: of its nest.
            code_of: the code of a sum.
            made: the buffers that it writes.
            known: for others the values of the program that they are, besides the old inputs.
        """
        old = self.one.kernel
        values = {**dict(zip(old.body.args, old.inputs, strict=False)), **(known or {})}
        copy = Copy(env={arg: Value(arg.type, arg.name) for arg in (*values, *made)})
        code: list[Op] = []
        late: set[Value] = set() if known is not None else {op.result for op in self.found}
        for op in self.nest.body.ops:
            if isinstance(op, ops.Reduce):
                code += code_of(op, copy)
            elif known is None and (isinstance(op, ops.Store) or not late.isdisjoint(op.operands)):
                late.update(op.results)
            else:
                code.append(copy.op(op))
        code = without_dead(code)
        nest = ops.Nest(tuple(axes), body=Block([], code, ()), loc=self.nest.loc)
        used = free_values(Block([], [nest], ()))
        reads = [arg for arg in values if copy.env[arg] in used]
        types = tuple([v.type for v in made if isinstance(v.type, BufType)])
        return ops.Kernel(
            [values[arg] for arg in reads], types, label=old.label,
            reason=f"{old.reason}; plane by plane" if known is None else old.reason,
            body=Block([copy.env[arg] for arg in (*reads, *made)], [nest], ()), loc=old.loc,
        )  # fmt: skip


class _Split(Copy):
    """Code in which an axis of a reduction is two."""

    def __init__(self, name: str, inner: int, facts: Facts) -> None:
        super().__init__({name: sym(f"{name}a") * inner + sym(f"{name}b")})
        self.facts = facts

    def op(self, op: Op) -> Op:
        """One op; its results are known from then on."""
        fresh = super().op(op)
        if isinstance(fresh, ops.Load):
            index = tuple([simplify(e, self.facts) for e in fresh.index])
            where = tuple([simplify(e, self.facts) for e in fresh.where])
            fresh = fresh.rebuild(index=index, where=where)
            self.env.update(zip(op.results, fresh.results, strict=True))
        return fresh


def _with_split(nest: ops.Nest, name: str, inner: int) -> ops.Nest:
    """The nest with an axis of its reductions split in two, of this extent the second."""
    outer = Copy()
    code: list[Op] = []
    for op in nest.body.ops:
        if not isinstance(op, ops.Reduce):
            code.append(outer.op(op))
            continue
        axes: list[Axis] = []
        for axis in op.axes:
            assert isinstance(axis.extent, int)
            halves = [Axis(f"{name}a", axis.extent // inner), Axis(f"{name}b", inner)]
            axes += halves if axis.name == name else [axis]
        copy = _Split(name, inner, ranges((*nest.axes, *axes)))
        copy.env = outer.env
        new = ops.Reduce(tuple(axes), op.fn, copy.block(op.body), loc=op.loc)
        outer.env[op.result] = new.result
        code.append(new)
    return ops.Nest(nest.axes, body=Block([], code, ()), loc=nest.loc)


def _sums_of(nest: ops.Nest) -> list[ops.Reduce]:
    """The reductions of a nest that may be cut: all that it has, or none."""
    found = [op for op in nest.body.ops if isinstance(op, ops.Reduce)]
    around = {axis.name for axis in nest.axes}
    if not found or nest.tile or any(not isinstance(axis.extent, int) for axis in nest.axes):
        return []
    if len(found) != sum(len(op.regions) > 0 for op in walk(nest.body)):
        return []
    used = dependence_of(nest.body).ops
    late: set[Value] = set()  # what needs a reduction
    for op in nest.body.ops:
        needed = free_values(Block([], [op], ()))
        is_late = not late.isdisjoint(needed)
        if isinstance(op, ops.Reduce):
            is_plain = op.order is None and op.axes == found[0].axes and around <= used[op]
            if is_late or not is_plain:
                return []
        if is_late or isinstance(op, ops.Reduce):
            late.update(op.results)
    return found


def _cuts(members: Mapping[int, Member], planes: Sequence[Plane]) -> dict[int, list[str]]:
    """The axes of members' sums that planes go along."""
    found: dict[int, list[str]] = {}
    for k, one in members.items():
        sums = one.sums if isinstance(one, _Summing) else {}
        names = [str(nodes[k]) for _, nodes in planes if nodes[k] in sums]
        if names:
            found[k] = names
    return found


def _late(code: Sequence[Op], others: Iterable[Op]) -> list[Op]:
    """The code with other ops where they are needed first, or at the end: kernels around them may
    be joined."""
    waiting = {v: op for op in others for v in op.results}
    found: list[Op] = []
    for op in code:
        needed = [v for v in free_values(Block([], [op], ())) if v in waiting]
        found += dict.fromkeys(waiting.pop(v) for v in needed)
        found.append(op)
    return [*found, *dict.fromkeys(waiting.values())]


def _numbers(one: Member, k: int, planes: Sequence[Plane]) -> int:
    """What a member's sums over a plane are."""
    names = {str(nodes[k]) for _, nodes in planes}
    return prod([n for name, n in free_axes(one.nest).items() if name not in names])


def _whole(nest: ops.Nest, planes: Collection[str]) -> ops.Nest | None:
    """The nest without tiles along planes; None where its lanes go along one."""
    pairs = [*zip(nest.axes, nest.tile, strict=True)]
    if all(size == 1 for axis, size in pairs if axis.name in planes):
        return nest
    if nest.reduce_tile < 2:
        return None
    tile = tuple([1 if axis.name in planes else size for axis, size in pairs])
    new = nest.rebuild(tile=tile)
    assert isinstance(new, ops.Nest)
    return new
