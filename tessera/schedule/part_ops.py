"""Parts of sums that another part has begun, which stand in nests as `schedule.contract` does."""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.opdef import operand
from tessera.ir.types import ScalarType
from tessera.schedule import ops


class ContractFrom(ops.Contract):
    """A sum of products that goes on from a value: a part of a longer one.

    As `schedule.contract`, but the sum begins as `start`.
    """

    name = "schedule.contract_from"
    start: Value = operand()

    def verify(self) -> None:
        """The value to go on from is a sum."""
        ops.Contract.verify(self)
        if self.start.type != ScalarType(self.dtype):
            raise VerifyError(f"it begins with {self.start.type}, not {self.dtype}")
