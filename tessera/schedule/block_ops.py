"""Nests that run one after the other for one block of an array, then for the next."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.errors import VerifyError
from tessera.ir.core import Block, Op
from tessera.ir.effects import WRITE
from tessera.ir.intexpr import Dim, prod
from tessera.ir.opdef import attr, region
from tessera.ir.types import Type
from tessera.schedule.ops import Nest, ScheduleOp
from tessera.schedule.types import Axis


class Each(ScheduleOp):
    """Runs its nests in order at each point of its axes, which their index expressions may mention.

    What one nest leaves for the next is as large as a block, and still in the cache.

    Attributes:
        axes: outermost first.
        ordered: how many of them, at the end, run in order; no other points need each other.
        steps: how many points of the last axis, which is ordered, run at a point of the others,
            which it may mention; None: all.
        part: the axis of parts, that the nests may mention too. Part p has the points [p * n, (p +
            1) * n) of the axes that are not ordered, numbered row by row, where n is their number
            by that of the parts, rounded up; it runs them one after the other. So memory that has
            a dim for parts is used by one point at a time.
        reason: why blocks.
        grain: parts that are worth a thread's while on a CPU; 0: one thread runs all.
    """

    name = "schedule.each"
    effects = WRITE
    axes: tuple[Axis, ...] = attr()
    ordered: int = attr(0)
    part: Axis = attr()
    reason: str = attr("")
    grain: int = attr(0)
    steps: Dim | None = attr(None)
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """It holds nests; its axes have names of their own."""
        if self.body.args or self.body.outputs:
            raise VerifyError("its body has no arguments and yields nothing")
        if not all(isinstance(op, Nest) for op in self.body.ops):
            raise VerifyError("it runs nests")
        names = [axis.name for axis in (*self.axes, self.part)]
        if len(set(names)) != len(names) or not 0 <= self.ordered <= len(self.axes):
            raise VerifyError("axis names must be distinct, and ordered axes be some of them")
        if self.steps is not None and not self.ordered:
            raise VerifyError("steps are those of an ordered axis")

    @property
    def nests(self) -> list[Nest]:
        """The nests."""
        return [op for op in self.body.ops if isinstance(op, Nest)]

    def with_nests(self, nests: Sequence[Nest]) -> Op:
        """The same with other nests, each of which one thread runs."""
        whole = [nest.rebuild(chunk=(0,) * len(nest.axes), grain=0) for nest in nests]
        return self.rebuild(regions=[Block((), whole, ())])

    @property
    def free(self) -> tuple[Axis, ...]:
        """The axes that are not ordered."""
        return self.axes[: len(self.axes) - self.ordered]

    @property
    def points(self) -> Dim:
        """How many points the axes have that are not ordered."""
        return prod([axis.extent for axis in self.free])


def nests_of(block: Block) -> list[Nest]:
    """The nests of a kernel's body, those of blocks included."""
    found: list[Nest] = []
    for op in block.ops:
        if isinstance(op, Each):
            found += op.nests
        elif isinstance(op, Nest):
            found.append(op)
    return found
