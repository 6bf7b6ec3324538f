"""What fusion decides: which values are stored, and the scalars that each nest computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from tessera.graph.ops.cumulative import Cumulative
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim, Facts, Sym, sym, symbols
from tessera.ir.order import Order
from tessera.ir.scalar import ScalarFn
from tessera.schedule.cost import hint, points, tensor
from tessera.schedule.types import Axis


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a value is stored.

    Attributes:
        value: the Graph value.
        decision: what was decided.
        reason: why.
    """

    value: Value
    decision: str
    reason: str

    def __str__(self) -> str:
        what = self.value.op.name.partition(".")[2] if self.value.op is not None else "argument"
        name = f" %{self.value.name}" if self.value.name else ""
        return f"{what}{name} {self.value.type}: {self.decision}, {self.reason}"


class Region:
    """The body of a reduction, contraction or scan inside a nest.

    Attributes:
        axes: the reduction axes.
        facts: ranges of the nest's axes and these.
        start: position of the first of these axes behind those of the nest.
        points: products of extents, the nest's axes first.
    """

    __slots__ = ("axes", "contracts", "facts", "names", "points", "start")

    def __init__(self, nest: NestPlan, axes: tuple[Axis, ...], contracts: bool = False) -> None:
        self.axes = axes
        self.names = {axis.name: k for k, axis in enumerate(axes)}
        self.facts = with_axes(nest.facts, axes)
        self.start = len(nest.axes)
        self.points = [nest.points[-1]]
        for axis in axes:
            self.points.append(self.points[-1] * hint(axis.extent))
        self.contracts = contracts


@dataclass(frozen=True, slots=True)
class Key:
    """One scalar: an element of a value, at a place of a nest.

    Attributes:
        value: the Graph value.
        index: the element, in terms of the axes in scope.
        guard: conditions (>= 0) under which the element exists.
        region: the innermost region whose axes the above mentions; None is the nest itself.
    """

    value: Value
    index: tuple[Dim, ...]
    guard: tuple[Dim, ...]
    region: Region | None


@dataclass(slots=True)
class Member:
    """A scalar that a nest computes or loads.

    Attributes:
        key: which.
        op: the op to compute it with, None for a load.
        args: the scalars it is computed from, as the op's family lays down.
        sources: for rearranging ops, the conditions of each of `args`, the last one's empty.
        region: for reductions, contractions and scans, the body's region.
    """

    key: Key
    op: Op | None
    args: tuple[Key, ...] = ()
    sources: tuple[tuple[Dim, ...], ...] = ()
    region: Region | None = None


@dataclass(slots=True)
class StorePlan:
    """What a nest stores at each point.

    Attributes:
        target: the stored Graph value.
        key: the scalar.
        index: the element written.
        where: conditions for writing.
        combine: combines with what is there.
        order: in which order that happens in one element; None where it is not stated.
    """

    target: Value
    key: Key
    index: tuple[Dim, ...]
    where: tuple[Dim, ...] = ()
    combine: ScalarFn | None = None
    order: Order | None = None


class NestPlan:
    """A nest in the making.

    Attributes:
        axes: the loop axes.
        index: the element of the stored value at the current point.
        facts: ranges of the axes.
        members: scalars, users before operands.
        dynamic: for each `$d` name in an index, the integer scalar it stands for and how deep it
            varies.
        heavy: reductions and contractions that the nest computes.
        stores: what it writes.
        ordered: axes that run in order.
        points: products of extents.
        draws_blocks: whether random words are ops of their own.
    """

    def __init__(
        self,
        shape: Sequence[Dim],
        facts: Facts,
        names: AxisNames,
        draws_blocks: bool = False,
    ) -> None:
        self.draws_blocks = draws_blocks
        self.axes = names.axes("i", shape)
        self.index = names.index("i", shape)
        self.facts = with_axes(facts, self.axes)
        self.names = {axis.name: k for k, axis in enumerate(self.axes)}
        self.points = [1]
        for axis in self.axes:
            self.points.append(self.points[-1] * hint(axis.extent))
        self.members: list[Member] = []
        self.dynamic: dict[str, tuple[Key, int]] = {}
        self.heavy: list[Op] = []
        self.stores: list[StorePlan] = []
        self.ordered: tuple[str, ...] = ()

    def facts_of(self, region: Region | None) -> Facts:
        """The ranges in scope."""
        return self.facts if region is None else region.facts

    def depth(self, exprs: Iterable[Dim], region: Region | None) -> int:
        """How many of the axes in scope must be fixed for the expressions to have values."""
        found = 0
        for expr in exprs:
            for name in symbols(expr):
                if name in self.names:
                    found = max(found, self.names[name] + 1)
                elif region is not None and name in region.names:
                    found = max(found, region.start + region.names[name] + 1)
                elif name in self.dynamic:
                    found = max(found, self.dynamic[name][1])
        return found

    def evaluations(self, key: Key) -> int:
        """How often the element is computed: code that does not mention inner axes runs outside
        their loops."""
        depth = self.depth((*key.index, *key.guard), key.region)
        counts = self.points if key.region is None or depth < len(self.points) else None
        if counts is not None:
            return counts[depth]
        assert key.region is not None
        return key.region.points[depth - key.region.start]

    def reads(self, key: Key) -> int:
        """At how many points of the axes that its index mentions an element is computed: of an
        operand that is copied before it is used, each once."""
        axes = {axis.name: axis for axis in self.axes}
        if key.region is not None:
            axes |= {axis.name: axis for axis in key.region.axes}
        names = {name for expr in key.index for name in symbols(expr)}
        return prod([hint(axes[name].extent) for name in names if name in axes])

    @property
    def is_in_order(self) -> bool:
        """Whether it goes from one element to the next, as of a scatter along memory: elements at
        places that data tell have no vectors."""
        if not self.ordered or len(self.ordered) == len(self.axes):
            return bool(self.ordered)
        return any(_is_picked(store.index) for store in self.stores)

    def scans_columns(self, count: int) -> bool:
        """Whether it scans down fewer columns than so many."""
        scans = [op for op in self.heavy if isinstance(op, Cumulative)]
        dims = [tensor(op.x).shape[op.axis + 1 :] for op in scans]
        return any([len(columns) and points(columns) < count for columns in dims])

    def is_exact(self, key: Key) -> bool:
        """Whether the index visits each element of the value at exactly one point of the nest."""
        if key.region is not None or key.guard:
            return False
        seen: set[str] = set()
        for k, i in enumerate(key.index):
            if isinstance(i, Sym) and i.name in self.names and i.name not in seen:
                if self.axes[self.names[i.name]].extent != tensor(key.value).shape[k]:
                    return False
                seen.add(i.name)
            elif i != 0 or tensor(key.value).shape[k] != 1:
                return False
        return len(seen) == len(self.axes)


def is_picked(key: Key) -> bool:
    """Whether elements are picked at places along memory that data tell."""
    return _is_picked(key.index)


def _is_picked(index: Sequence[Dim]) -> bool:
    return bool(index) and any(name[0] == "$" for name in symbols(index[-1]))


def row_axes(nest: NestPlan, key: Key) -> tuple[Axis, ...] | None:
    """The axes of a nest that run over rows of a value, where a reduction goes along these rows and
    each element is used once."""
    region = key.region
    if region is None or key.guard or region.contracts or not region.axes:
        return None
    rest = iter((*nest.axes, *region.axes))
    for i, dim in zip(key.index, tensor(key.value).shape, strict=True):
        if dim == 1:
            if i != 0:
                return None
            continue
        axis = next(rest, None)
        if axis is None or i != sym(axis.name) or axis.extent != dim:
            return None
    return nest.axes if next(rest, None) is None else None


def with_axes(facts: Facts, axes: Iterable[Axis]) -> Facts:
    """Facts that also hold the ranges of axes."""
    ranges = {name: facts[name] for name in facts}
    for axis in axes:
        ranges[axis.name] = (0, axis.extent - 1)
    return Facts(ranges, facts.multiples)


class AxisNames:
    """Names for axes that no symbolic dim of the function has."""

    def __init__(self, taken: Iterable[str]) -> None:
        taken = set(taken)
        self.prefix = ""
        letters = ("i", "r", "block", "part")
        while any(name.startswith(tuple([self.prefix + x for x in letters])) for name in taken):
            self.prefix += "_"
        self._axes: dict[tuple[str, tuple[Dim, ...]], tuple[Axis, ...]] = {}
        self._index: dict[tuple[str, tuple[Dim, ...]], tuple[Dim, ...]] = {}

    def axes(self, letter: str, shape: Sequence[Dim]) -> tuple[Axis, ...]:
        """One axis per dim that is not 1, numbered without gaps."""
        key = (letter, tuple(shape))
        found = self._axes.get(key)
        if found is None:
            dims = [dim for dim in shape if dim != 1]
            made = [Axis(f"{self.prefix}{letter}{k}", dim) for k, dim in enumerate(dims)]
            found = self._axes[key] = tuple(made)
        return found

    def index(self, letter: str, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The element at the point of these axes."""
        key = (letter, tuple(shape))
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = self._index_of(letter, shape)
        return found

    def _index_of(self, letter: str, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        result: list[Dim] = []
        count = 0
        for dim in shape:
            if dim == 1:
                result.append(0)
            else:
                result.append(sym(f"{self.prefix}{letter}{count}"))
                count += 1
        return tuple(result)


@dataclass(slots=True, eq=False)
class Root:
    """A stored value, or an op that works on buffers.

    Attributes:
        values: what it stores.
        nests: the loops that compute it; empty for an op on buffers.
        op: the op, None for a copy of an input.
        reason: why it is stored.
    """

    values: tuple[Value, ...]
    nests: list[NestPlan]
    op: Op | None
    reason: str


@dataclass(slots=True)
class Plan:
    """The result of `Fusion`.

    Attributes:
        roots: in an order in which they can run.
        decisions: why each one exists.
    """

    roots: list[Root] = field(default_factory=list[Root])
    decisions: list[Decision] = field(default_factory=list[Decision])
