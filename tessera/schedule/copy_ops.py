"""Ops of a program for a GPU that copy buffers to the memory of the host, and back.

    %h = schedule.offload(%x) {places=[host(0)]} : buf<f32[4, S]>
    schedule.wait(%h, [%x])
    ...
    %y = schedule.fetch(%h) {places=[arena(64)]} : buf<f32[4, S]>
    schedule.wait(%y, [])

Copies run one after the other, beside kernels. A copy begins once what was started before it has
ended; when it has ended is known behind its wait only.
"""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ_WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.schedule.ops import ScheduleOp
from tessera.schedule.types import BufType, Place


class _Copy(ScheduleOp):
    """A copy of a whole buffer.

    Attributes:
        x: the buffer.
        places: where the copy lives; filled by the buffer plan.
    """

    effects = READ_WRITE
    x: Value = operand()
    places: tuple[Place, ...] = attr(())

    def infer(self) -> BufType:
        """The type of the buffer, which is contiguous."""
        if not isinstance(self.x.type, BufType) or self.x.type.strides is not None:
            raise VerifyError(f"a contiguous buffer is copied, not {self.x.type}")
        return self.x.type


class Offload(_Copy):
    """A copy of a buffer in the memory of the host, which only `schedule.fetch` reads."""

    name = "schedule.offload"


class Fetch(_Copy):
    """A copy, on the device, of a buffer in the memory of the host."""

    name = "schedule.fetch"


class Wait(ScheduleOp):
    """What follows begins once a copy has ended.

    Attributes:
        copy: what the copy gives.
        kept: buffers whose memory stays as it is until then: the one that is copied.
    """

    name = "schedule.wait"
    effects = READ_WRITE
    copy: Value = operand()
    kept: tuple[Value, ...] = operands()

    def infer(self) -> tuple[BufType, ...]:
        """No result."""
        if not isinstance(self.copy.op, (Offload, Fetch)):
            raise VerifyError("what is waited for is a copy")
        return ()
