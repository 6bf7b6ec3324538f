"""Puts stored values that are computed at the same points into one nest, and names what came
out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.reduce import Reduce
from tessera.ir.core import Value
from tessera.schedule.cost import tensor
from tessera.schedule.fusion import MAX_MEMBERS
from tessera.schedule.nestplan import AxisNames, NestPlan, Root
from tessera.schedule.types import Axis

MAX_STORES = 8
"""The most values that one nest stores."""


@dataclass(eq=False)
class Group:
    """What will be one kernel.

    Attributes:
        roots: the stored values, operands before users.
        axes: the axes of the only nest; None where the kernel has several, or works on buffers.
        position: place in the order of kernels.
        members: how many scalars the nest computes.
        heavy: reductions and contractions in the nest.
        parts: the roots of each nest, where there are several that need nothing of each other.
    """

    roots: list[Root]
    axes: tuple[Axis, ...] | None
    position: int
    members: int = 0
    heavy: list[GraphOp] = field(default_factory=list[GraphOp])
    parts: list[list[Root]] = field(default_factory=list[list[Root]])

    def add(self, root: Root) -> None:
        """Takes one more root in."""
        self.roots.append(root)
        for nest in root.nests:
            self.members += len(nest.members)
            self.heavy += [op for op in nest.heavy if isinstance(op, GraphOp)]

    @property
    def plans(self) -> list[NestPlan]:
        """All nests."""
        return [nest for root in self.roots for nest in root.nests]

    @property
    def targets(self) -> list[Value]:
        """All stored values."""
        return [value for root in self.roots for value in root.values]


class Grouping:
    """Merges roots in one pass over them, in program order.

    A root may join an earlier group only if all that it reads is ready when that group runs: groups
    keep the order of their creation, so no cycle can arise.
    """

    def __init__(self, names: AxisNames) -> None:
        self.names = names
        self.groups: list[Group] = []
        self.made_by: dict[Value, Group] = {}
        self.readers: dict[tuple[Value, tuple[Axis, ...]], Group] = {}
        self.inputs: dict[Group, set[Value]] = {}

    def run(self, roots: Iterable[Root]) -> list[Group]:
        """The groups, in an order in which they can run."""
        for root in roots:
            reads = self.reads(root)
            axes = _single_axes(root)
            group = self.find(root, axes, reads) if axes is not None else None
            if group is None:
                group = Group([], axes, len(self.groups))
                self.groups.append(group)
            group.add(root)
            self.inputs.setdefault(group, set()).update(reads)
            for value in root.values:
                self.made_by[value] = group
            if axes is not None:
                self.note(root, axes, group, reads)
        return self.groups

    def note(
        self, root: Root, axes: tuple[Axis, ...], group: Group, reads: dict[Value, bool]
    ) -> None:
        """Remembers what a root that has joined a group reads."""
        for value in reads:
            self.readers[value, axes] = group

    def reads(self, root: Root) -> dict[Value, bool]:
        """The buffers that a root reads, and whether only at its own point."""
        found: dict[Value, bool] = {}
        for nest in root.nests:
            for member in nest.members:
                if member.op is not None:
                    continue
                key = member.key
                shape = tensor(key.value).shape
                own = key.region is None and not key.guard
                own = own and key.index == self.names.index("i", shape)
                own = own and self.names.axes("i", shape) == nest.axes
                found[key.value] = own and found.get(key.value, True)
        if root.op is not None and not root.nests:
            found.update(dict.fromkeys(root.op.operands, False))
        return found

    def find(self, root: Root, axes: tuple[Axis, ...], reads: dict[Value, bool]) -> Group | None:
        """The group that the root joins."""
        makers = {v: self.made_by[v] for v in reads if v in self.made_by}
        last = max(makers.values(), key=lambda g: g.position, default=None)
        if last is not None:
            pointwise = all(reads[v] for v, g in makers.items() if g is last)
            if pointwise and last.axes == axes and self.fits(last, root, sibling=False):
                return last
        ready = -1 if last is None else last.position
        for value in reads:
            found = self.readers.get((value, axes))
            if (
                found is not None
                and found.position > ready
                and self.fits(found, root, sibling=True)
            ):
                return found
        return None

    def fits(self, group: Group, root: Root, sibling: bool) -> bool:
        """Whether a nest for both is a good one."""
        (nest,) = root.nests
        if group.axes is None or len(group.roots) >= MAX_STORES:
            return False
        if group.members + len(nest.members) > MAX_MEMBERS:
            return False
        both = [*group.heavy, *nest.heavy]
        if len(both) > 1 and any(isinstance(op, DotGeneral) for op in both):
            return False
        if nest.heavy and not group.heavy:
            return False
        return not sibling or bool(nest.heavy) == bool(group.heavy)


def _single_axes(root: Root) -> tuple[Axis, ...] | None:
    """The axes of a root that is one plain nest."""
    if len(root.nests) != 1 or not root.nests[0].stores:
        return None
    return root.nests[0].axes


# --- words ----------------------------------------------------------------------------------------


def label(group: Group) -> str:
    """A short name: the first few ops."""
    words: dict[str, None] = {}
    for plan in group.plans:
        for member in reversed(plan.members):
            if member.op is not None and isinstance(member.op, GraphOp):
                words[_word(member.op)] = None
    for root in group.roots:
        if root.op is not None and len(root.nests) != 1:
            words[_word(root.op)] = None
    names = [w for w in words if w not in QUIET] or list(words) or ["copy"]
    heavy = [_word(op) for op in group.heavy]
    names = list(dict.fromkeys([*heavy, *names]))
    return "_".join(names[:4])


WORDS = {"dot_general": "dot", "random_bits": "random"}
"""Shorter words for some ops."""

QUIET = frozenset({"broadcast", "reshape", "transpose", "constant", "cast"})
"""Ops that a label mentions only if there are no others."""


def reason(group: Group) -> str:
    """Why the kernel is what it is."""
    first = group.roots[0]
    if not first.nests:
        return first.reason
    if len(first.nests) > 1:
        return f"{first.reason}; {len(first.nests)} nests, one after the other"
    parts: list[str] = []
    before: dict[str, None] = {}
    after: dict[str, None] = {}
    for plan in group.plans:
        for member in reversed(plan.members):
            if isinstance(member.op, Elementwise):
                (before if member.key.region is not None else after)[_word(member.op)] = None
    if group.heavy:
        parts.append(" and ".join(_describe(op) for op in group.heavy))
        if before:
            parts.append(f"with prologue {_list(before)}")
        if after:
            parts.append(f"with epilogue {_list(after)}")
    else:
        parts.append(f"one pass: {_list(after)}" if after else "moves elements")
    text = " ".join(parts)
    if group.parts:
        text += f"; {len(group.parts)} independent nests share the launch"
    elif len(group.roots) > 1:
        text += f"; {len(group.roots)} values at the same points share the loop"
    return text


def _describe(op: GraphOp) -> str:
    word = _word(op)
    if isinstance(op, DotGeneral):
        return f"contraction over axes {_list(op.contract[0])} and {_list(op.contract[1])}"
    if isinstance(op, Reduce):
        return f"{word} over axes {_list(op.axes)}"
    return f"{word} over axis {op.attrs.get('axis')}"


def _word(op: object) -> str:
    name = getattr(op, "name", "")
    word = str(name).rpartition(".")[2].removeprefix("reduce_")
    return WORDS.get(word, word)


def _list(items: Iterable[object]) -> str:
    words: Sequence[str] = [str(item) for item in items]
    return ", ".join(words[:6]) + (", ..." if len(words) > 6 else "")
