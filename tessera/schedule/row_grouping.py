"""Groups for machines where a kernel keeps rows in registers: reductions along rows, what is
computed from them, and whole rows that use both share a nest.

The axes of such a nest begin with those of the rows. A scalar of a row does not depend on the axes
behind them, and is computed once for the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tessera.graph.ops.contract import DotGeneral
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, symbols
from tessera.schedule.cost import points, tensor
from tessera.schedule.fusion import MAX_MEMBERS
from tessera.schedule.grouping import MAX_STORES, Group, Grouping
from tessera.schedule.nestplan import AxisNames, Key, NestPlan, Root, row_axes
from tessera.schedule.strategy import Strategy
from tessera.schedule.types import Axis

MAX_NESTS = 16
"""Nests that share a launch, at most."""

Axes = tuple[Axis, ...]


class RowGrouping(Grouping):
    """Merges roots over the same rows, besides those over the same points."""

    def __init__(self, names: AxisNames, strategy: Strategy) -> None:
        super().__init__(names)
        self.strategy = strategy
        self.row_readers: dict[Value, list[Group]] = {}
        self.line_readers: dict[tuple[Value, Axes, tuple[Dim, ...]], Group] = {}

    def run(self, roots: Iterable[Root]) -> list[Group]:
        """The groups, in an order in which they can run."""
        super().run(roots)
        if not self.strategy.shares_launches:
            return [group for group in self.groups if group.roots]
        return list(self.neighbours([group for group in self.groups if group.roots]))

    def neighbours(self, groups: Iterable[Group]) -> Iterator[Group]:
        """Elementwise groups that follow each other and need nothing of each other, as one."""
        run: list[Group] = []
        for group in groups:
            members = sum(one.members for one in (*run, group))
            made = {value for one in run for value in one.targets}
            fits = _is_plain(group) and len(run) < MAX_NESTS and members <= MAX_MEMBERS
            if run and not (fits and made.isdisjoint(self.inputs[group])):
                yield _together(run)
                run = []
            if _is_plain(group):
                run.append(group)
            else:
                yield group
        if run:
            yield _together(run)

    def reads(self, root: Root) -> dict[Value, bool]:
        """The buffers that a root reads, and whether only at its own point or row."""
        found = super().reads(root)
        for nest in root.nests:
            own: dict[Value, bool] = {}
            for key in _loads(nest):
                own[key.value] = self.is_own(nest, key) and own.get(key.value, True)
            found.update(own)
        return found

    def is_own(self, nest: NestPlan, key: Key) -> bool:
        """Whether a load reads what belongs to the point, or to its row."""
        shape = tensor(key.value).shape
        axes = self.names.axes("i", shape)
        return (
            key.region is None
            and not key.guard
            and key.index == self.names.index("i", shape)
            and axes == nest.axes[: len(axes)]
        )

    def find(self, root: Root, axes: Axes, reads: dict[Value, bool]) -> Group | None:
        """The group that the root joins."""
        makers = {v: self.made_by[v] for v in reads if v in self.made_by}
        last = max(makers.values(), key=lambda g: g.position, default=None)
        if last is not None and all(reads[v] for v, g in makers.items() if g is last):
            if last.axes == axes and not _differ(last, root):
                if self.fits(last, root, sibling=False):
                    return last
            elif self.joins(last, axes, root):
                return self.united(last, makers, axes, root)
        ready = -1 if last is None else last.position
        for group in self.siblings(root, axes):
            if group.position > ready:
                return group
        return None

    def siblings(self, root: Root, axes: Axes) -> list[Group]:
        """Groups that read what the root reads, in the same way."""
        (nest,) = root.nests
        found: dict[Group, None] = {}
        for key in _loads(nest):
            group = self.sibling(nest, axes, key)
            if group is not None and not _differ(group, root) and self.fits(group, root, True):
                found[group] = None
            elif self.is_own(nest, key) or row_axes(nest, key) is not None:
                others = self.row_readers.get(key.value, ())
                found.update(dict.fromkeys(g for g in others if self.joins(g, axes, root)))
        return list(found)

    def sibling(self, nest: NestPlan, axes: Axes, key: Key) -> Group | None:
        """A group over the same axes that reads the same elements at the same points."""
        if nest.heavy:
            found = self.line_readers.get((key.value, axes, key.index))
            return None if key.region is None or found is None or found.axes != axes else found
        found = self.readers.get((key.value, axes))
        return None if found is None or found.heavy or found.axes != axes else found

    def joins(self, group: Group, axes: Axes, root: Root) -> bool:
        """Whether group and root are the same rows, in one of them or in both whole ones."""
        (nest,) = root.nests
        if group.axes is None or len(group.roots) >= MAX_STORES:
            return False
        if group.members + len(nest.members) > MAX_MEMBERS:
            return False
        if not self.strategy.shares_launches and any(map(_is_turned, (*group.plans, nest))):
            return False  # their tiles are squares
        short, long = sorted((group.axes, axes), key=len)
        if long[: len(short)] != short or any(n.ordered for n in group.plans):
            return False
        heavy = [plan for plan in (*group.plans, nest) if plan.heavy]
        if not heavy or any(isinstance(op, DotGeneral) for plan in heavy for op in plan.heavy):
            return False
        rows = heavy[0].axes
        if any(plan.axes != rows for plan in heavy) or long[: len(rows)] != rows:
            return False
        if any(len(plan.axes) < len(rows) for plan in (*group.plans, nest)):
            return False
        has_columns = len(long) > len(rows) and not self.strategy.shares_launches
        if has_columns and any(map(_runs_down, heavy)):
            return False  # lanes of these are rows, those of what is stored columns
        return self.is_worth(rows, long, heavy)

    def is_worth(self, rows: Axes, long: Axes, heavy: list[NestPlan]) -> bool:
        """Whether programs of whole rows keep the machine busy."""
        length = points([axis.extent for axis in long[len(rows) :]])
        for plan in heavy:
            for member in plan.members:
                if member.region is not None:
                    length = max(length, points([axis.extent for axis in member.region.axes]))
        return self.strategy.keeps_rows(points([axis.extent for axis in rows]), length)

    def united(self, last: Group, makers: Mapping[Value, Group], axes: Axes, root: Root) -> Group:
        """The last group that a root reads, with those of the others that fit taken in."""
        for other in dict.fromkeys(makers.values()):
            if not other.roots or other is last or other.axes is None or last.axes is None:
                continue
            whole = max(axes, last.axes, key=len)
            count = len(other.roots) + len(last.roots)
            if count >= MAX_STORES or other.members + last.members > MAX_MEMBERS:
                continue
            if not self.joins(other, whole, root) or not _same_rows(other, last):
                continue
            if not all(self.reads_own(one, other) for one in (*last.roots, root)):
                continue
            latest = max([g.position for g in makers.values() if g is not last], default=-1)
            if self.is_ready(last, other) and latest <= other.position:
                last = self.absorb(other, last, other)
            elif not self.is_needed(other, last):
                last = self.absorb(other, last, last)
            makers = {v: self.made_by[v] for v in makers}
        return last

    def reads_own(self, root: Root, group: Group) -> bool:
        """Whether a root reads of a group only what belongs to its own point or row."""
        reads = self.reads(root)
        return all(reads.get(value, True) for value in group.targets)

    def is_ready(self, group: Group, other: Group) -> bool:
        """Whether a group could run as early as an earlier one."""
        makers = [self.made_by[v] for v in self.inputs[group] if v in self.made_by]
        return all(maker.position <= other.position for maker in makers if maker is not group)

    def is_needed(self, group: Group, before: Group) -> bool:
        """Whether a group's results are read before a later one runs."""
        own = set(group.targets)
        between = self.groups[group.position + 1 : before.position]
        return any(not own.isdisjoint(self.inputs.get(one, ())) for one in between)

    def absorb(self, first: Group, second: Group, kept: Group) -> Group:
        """One group of two, at the place of one of them."""
        gone = second if kept is first else first
        roots = [*first.roots, *second.roots]
        kept.roots, gone.roots = [], []
        kept.members, kept.heavy = 0, []
        for root in roots:
            kept.add(root)
            for value in root.values:
                self.made_by[value] = kept
        assert first.axes is not None
        assert second.axes is not None
        kept.axes = max(first.axes, second.axes, key=len)
        self.inputs[kept] |= self.inputs.pop(gone)
        for table in (self.readers, self.line_readers):
            for key, group in list(table.items()):
                if group is gone:
                    table[key] = kept  # type: ignore[index]
        for known in self.row_readers.values():
            known[:] = dict.fromkeys(kept if group is gone else group for group in known)
        return kept

    def note(self, root: Root, axes: Axes, group: Group, reads: dict[Value, bool]) -> None:
        """Remembers what a root that has joined a group reads."""
        super().note(root, axes, group, reads)
        (nest,) = root.nests
        for key in _loads(nest):
            if key.region is not None:
                self.line_readers[key.value, axes, key.index] = group
            if self.is_own(nest, key) or row_axes(nest, key) is not None:
                known = self.row_readers.setdefault(key.value, [])
                if group not in known:
                    known.append(group)
        if group.axes is not None and len(axes) > len(group.axes):
            group.axes = axes


def _is_plain(group: Group) -> bool:
    """Whether a group is one nest without reductions."""
    return group.axes is not None and not group.heavy and not any(n.ordered for n in group.plans)


def _together(run: list[Group]) -> Group:
    """One group of several, with a nest for each."""
    if len(run) == 1:
        return run[0]
    result = Group([], None, run[0].position)
    for group in run:
        result.parts.append(group.roots)
        for root in group.roots:
            result.add(root)
    return result


def apart(
    again: Iterable[tuple[Value, NestPlan]], groups: Iterable[tuple[Group, set[Value]]]
) -> set[tuple[Value, Value]]:
    """Stored values that nests of other groups compute again, where they might be read, and what
    these nests make.

    Args:
        again: values, and nests that compute them again.
        groups: all groups, and what each of them stores.
    """
    makers: dict[Value, Group] = {}
    users: dict[NestPlan, Group] = {}
    for group, stored in groups:
        makers.update(dict.fromkeys(stored, group))
        users.update(dict.fromkeys(group.plans, group))
    return {
        (value, nest.stores[0].target)
        for value, nest in again
        if value in makers and nest in users and makers[value] is not users[nest]
    }


def _loads(nest: NestPlan) -> list[Key]:
    """The buffers' elements that a nest reads."""
    return [member.key for member in nest.members if member.op is None]


def _is_turned(nest: NestPlan) -> bool:
    """Whether elements are computed of what runs along another axis of the nest in memory."""
    if nest.heavy or not nest.axes:
        return False
    last = nest.axes[-1].name
    for key in _loads(nest):
        moved = [symbols(i) for i in key.index if symbols(i)]
        if any(last in names for names in moved[:-1]) and last not in moved[-1]:
            return True
    return False


def _runs_down(nest: NestPlan) -> bool:
    """Whether all that the reductions of a nest read runs along its rows in memory."""
    rows = {axis.name for axis in nest.axes}
    found = [key for key in _loads(nest) if key.region is not None and key.index]
    last = [symbols(key.index[-1]) for key in found]
    return bool(found) and all(
        not names.isdisjoint(rows) and names.isdisjoint(key.region.names)
        for key, names in zip(found, last, strict=True)
        if key.region is not None
    )


def _differ(group: Group, root: Root) -> bool:
    """Whether both hold reductions, over rows of different kinds."""
    (nest,) = root.nests
    found = {plan.axes for plan in (*group.plans, nest) if plan.heavy}
    return len(found) > 1


def _same_rows(a: Group, b: Group) -> bool:
    """Whether the reductions of two groups are over the same rows."""
    return len({plan.axes for plan in (*a.plans, *b.plans) if plan.heavy}) <= 1
