"""Loops inside a nest that carry scalars, which stay in registers."""

from __future__ import annotations

from tessera.dtypes import bool_
from tessera.errors import VerifyError
from tessera.ir.core import Block, Value
from tessera.ir.effects import READ, WRITE
from tessera.ir.opdef import attr, operands, region
from tessera.ir.types import ScalarType, Type
from tessera.schedule.ops import ScheduleOp
from tessera.schedule.types import Axis


def _check_carried(init: tuple[Value, ...], *regions: Block) -> None:
    types = [v.type for v in init]
    if any([a.type for a in region.args] != types for region in regions):
        raise VerifyError("the regions' arguments must match what is carried into the loop")
    if [v.type for v in regions[-1].outputs] != types:
        raise VerifyError("the body must yield what it carries")


class Recur(ScheduleOp):
    """A loop inside a nest: `for r along axis: carried = body(carried)`, backwards when `reverse`.

    The region's arguments are the carried scalars; it yields the next ones, and may store. The
    results are the last ones.
    """

    name = "schedule.recur"
    effects = READ | WRITE
    init: tuple[Value, ...] = operands()
    axis: Axis = attr()
    reverse: bool = attr(False)
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The types of what is carried."""
        return tuple([v.type for v in self.init])

    def verify(self) -> None:
        """What is carried keeps its types."""
        _check_carried(self.init, self.body)


class Repeat(ScheduleOp):
    """A loop at each point of a nest: `while cond(carried): carried = body(carried)`.

    The regions' arguments are the carried scalars. Points do not wait for each other: how many
    steps each one takes is its own.
    """

    name = "schedule.repeat"
    effects = READ
    init: tuple[Value, ...] = operands()
    cond: Block = region()
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The types of what is carried."""
        return tuple([v.type for v in self.init])

    def verify(self) -> None:
        """What is carried keeps its types, and the condition is one bool."""
        _check_carried(self.init, self.cond, self.body)
        if [v.type for v in self.cond.outputs] != [ScalarType(bool_)]:
            raise VerifyError("the condition must yield one bool")


LOOPS = (Recur, Repeat)
"""Both kinds."""
