"""What a nest tells of the values that it computes."""

from __future__ import annotations

from tessera.dtypes import bool_
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import IO
from tessera.ir.opdef import operand
from tessera.ir.types import ScalarType, Type
from tessera.schedule.ops import ScheduleOp


class Sentinel(ScheduleOp):
    """Tells the runtime, if the bool holds at some point, that a value there is not what it should
    be.
    """

    name = "schedule.sentinel"
    effects = IO
    bad: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """It takes a bool."""
        if self.bad.type != ScalarType(bool_):
            raise VerifyError(f"a sentinel takes a bool, not {self.bad.type}")
