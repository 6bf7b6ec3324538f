"""Products of packed panels, which stand in nests as `schedule.contract` does."""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr
from tessera.schedule import ops


class ContractPanels(ops.Contract):
    """A product that a CPU multiplies in registers for matrices; its second operand is packed, the
    first one may be.

    As `schedule.contract` of a block, whose operands are read as they lie: for each step along the
    depth, rows of 64 bytes at most of the first one, and groups of 4 bytes of all columns of the
    second one.

    Attributes:
        step: elements from one step to the next in the first operand.
        row: elements from one row to the next there.
        columns: of a panel of the second one.
        panels: that it has; blocks may go on behind them.
    """

    name = "schedule.contract_panels"
    step: int = attr(0)
    row: int = attr(0)
    columns: int = attr(0)
    panels: Dim = attr(0)

    def verify(self) -> None:
        """Operands are loads, and nothing else is computed."""
        ops.Contract.verify(self)
        for value in self.body.outputs:
            if not isinstance(value.op, ops.Load) or value.op.where or value.op.dyn:
                raise VerifyError(f"{value!r} is no element of a packed operand")
