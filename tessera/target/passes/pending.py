"""What the threads of a block may not rely on yet: accesses since the last barrier, and copies that
are under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest

from tessera.ir.core import Op, Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t

READS = (t.Load, t.Gather, g.LoadCached, g.LoadMatrix)
WRITES = (t.Store, t.Scatter, g.StoreCached, g.StoreMatrix)
ATOMICS = (g.Atomic, g.AtomicReduce, g.CompareExchange)


MAX_GROUPS = 16
"""Groups that are told apart; a loop around a pipeline could add some each time."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One access: of shared bytes `[start, end)` of an object, or of a memory argument."""

    root: Value | None
    object: Value | None
    start: int
    end: int
    writes: bool
    atomic: bool
    op: Op

    def needs_barrier(self, other: Touch) -> bool:
        """Whether this access must be seen to have happened before the other one."""
        if not (self.writes or other.writes) or (self.atomic and other.atomic):
            return False
        if self.root is not other.root:
            return False
        fills = isinstance(self.op, WRITES) and isinstance(other.op, WRITES)
        if fills and self.object is not None and self.object is other.object:
            return False
        if fills and self.root is not None and self.op.loc is other.op.loc:
            # The registers of one tile are other elements, too.
            return False
        if self.root is not None:
            # An op of a loop writes other elements each time.
            return self.op is not other.op
        copies = isinstance(self.op, g.AsyncCopy) and isinstance(other.op, g.AsyncCopy)
        if copies and self.object is other.object:
            # They bring different parts of it, like stores.
            return False
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Pending:
    """What is pending at some place of a kernel.

    Attributes:
        touches: accesses since the last barrier.
        groups: what each group of asynchronous copies writes that has not been waited for, oldest
            first.
        open: what copies since the last commit write.
        barrier: the op that the last barrier on this way stands in front of, if there is one.
        since: groups that were committed after it.
    """

    touches: frozenset[Touch] = frozenset()
    groups: tuple[frozenset[Touch], ...] = ()
    open: frozenset[Touch] = frozenset()
    barrier: Op | None = None
    since: int = 0

    def __or__(self, other: Pending) -> Pending:
        """Where two ways meet. Groups are counted from the newest."""
        pairs = zip_longest(
            reversed(self.groups), reversed(other.groups), fillvalue=frozenset[Touch]()
        )
        same = self.barrier is other.barrier and self.since == other.since
        return Pending(
            self.touches | other.touches,
            tuple([a | b for a, b in pairs][::-1]),
            self.open | other.open,
            self.barrier if same else None,
            self.since if same else 0,
        )

    def conflict(self, touches: Iterable[Touch]) -> bool:
        """Whether accesses need a barrier in front of them."""
        return any(old.needs_barrier(new) for new in touches for old in self.touches)

    def waiting(self, touches: Iterable[Touch]) -> int | None:
        """How many of the newest groups may be under way when accesses start; None: all."""
        new = list(touches)
        for younger, group in enumerate(reversed(self.groups)):
            if any(old.needs_barrier(one) for one in new for old in group):
                return younger
        return None

    def with_touches(self, touches: Iterable[Touch]) -> Pending:
        """After accesses; what copies write is open."""
        new = frozenset(touches)
        copies = frozenset({x for x in new if isinstance(x.op, g.AsyncCopy) and x.writes})
        return replace(self, touches=self.touches | (new - copies), open=self.open | copies)

    def committed(self) -> Pending:
        """The open copies are a group."""
        groups = (*self.groups, self.open)
        if len(groups) > MAX_GROUPS:
            # As if the oldest ones had come later: who waits for them waits for more.
            groups = (groups[0] | groups[1], *groups[2:])
        return replace(self, groups=groups, open=frozenset(), since=self.since + 1)

    def waited(self, under_way: int) -> Pending:
        """Older groups have been written by the threads that wait, which others do not know."""
        landed = max(len(self.groups) - under_way, 0)
        done = frozenset[Touch]().union(*self.groups[:landed])
        return replace(self, touches=self.touches | done, groups=self.groups[landed:])

    def met(self, op: Op) -> Pending:
        """After a barrier in front of an op."""
        return replace(self, touches=frozenset(), barrier=op, since=0)

    def entered(self) -> Pending:
        """Where control comes from several sides: which barrier was the last one is not known."""
        return replace(self, barrier=None, since=0)
