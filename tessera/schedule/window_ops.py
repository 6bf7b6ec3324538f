"""Reads of windows along rows that a CPU holds in registers, which stand in nests as
`schedule.load` does."""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.opdef import attr
from tessera.schedule import ops


class WindowLoad(ops.Load):
    """An element of a window, whose places are neighbours along the last axis. Rows are read once
    for all of these, and moved in registers.

    Attributes:
        front: how many elements in front of a point's own the window begins.
        back: how many elements behind it the window ends.
        step: how many elements lie from one point's own to the next's; 1 or 2.
        length: elements of a row that may be read; there is nothing in front of the first.
    """

    name = "schedule.window_load"
    front: int = attr(0)
    back: int = attr(0)
    step: int = attr(1)
    length: int = attr(0)

    def verify(self) -> None:
        """A window has another place than the point's own."""
        ops.Load.verify(self)
        if self.step not in (1, 2):
            raise VerifyError(f"points are 1 or 2 elements apart, not {self.step}")
        if min(self.front, self.back) < 0 or self.front + self.back == 0 or self.length < 1:
            raise VerifyError(f"a window of {self.front}, {self.back} along {self.length}")
