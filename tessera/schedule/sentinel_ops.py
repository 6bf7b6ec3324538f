"""What a nest tells of the values that it computes."""

from __future__ import annotations

from tessera.dtypes import bool_
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import IO
from tessera.ir.opdef import attr, operand
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.schedule.ops import ScheduleOp


class Sentinel(ScheduleOp):
    """Tells the runtime where a bool holds at some point: a value there is what `fn` asks for. The
    first sentinel that tells something counts.

    Attributes:
        bad: whether there is such a value.
        fn: `isnan` or `isinf`.
    """

    name = "schedule.sentinel"
    effects = IO
    bad: Value = operand()
    fn: ScalarFn = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """It is told of a bool, and asks for NaN or infinities."""
        if self.bad.type != ScalarType(bool_):
            raise VerifyError(f"a sentinel takes a bool, not {self.bad.type}")
        if self.fn.name not in ("isnan", "isinf"):
            raise VerifyError(f"a sentinel looks for isnan or isinf, not {self.fn}")
