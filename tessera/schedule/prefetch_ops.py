"""What a nest tells a CPU's caches."""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import WRITE
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.types import Type
from tessera.schedule.ops import ScheduleOp
from tessera.schedule.types import BufType


class Prefetch(ScheduleOp):
    """Says that the element of `buf` at a linear offset is going to be read soon, and its line. It
    changes nothing; there need be no such element.
    """

    name = "schedule.prefetch"
    effects = WRITE
    buf: Value = operand()
    offset: Dim = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.buf.type, BufType):
            raise VerifyError("prefetch takes a buffer")
        return ()
