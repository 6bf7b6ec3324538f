"""What CPUs with registers for matrices do with them: eight, of 16 rows of 64 bytes at most."""

from __future__ import annotations

from tessera.dtypes import DType, int64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ_WRITE, WRITE
from tessera.ir.opdef import attr, operand
from tessera.ir.types import ScalarType, Type
from tessera.target.ops import TargetOp
from tessera.target.types import PtrType
from tessera.tile.panel_ops import set_up_of, sum_dtype


class BeginPanels(TargetOp):
    """Sets the registers up for products of panels, until `target.end_panels`.

    Attributes:
        rows: of a register of sums, and of the first operand.
        bytes: of a row of the first operand.
    """

    name = "target.begin_panels"
    effects = WRITE
    rows: int = attr()
    bytes: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class EndPanels(TargetOp):
    """Gives the registers back: nothing in them is kept."""

    name = "target.end_panels"
    effects = WRITE

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class DotPanels(TargetOp):
    """As `tile.dot_panels`, of panels and sums from pointers on, between `target.begin_panels` for
    it and `target.end_panels`.

    Attributes:
        a: the dtype of the first panel.
        b: that of the second one.
        rows: of the first panel and of the result.
        columns: of the second panel and of the result.
        depth: products that a step adds to each sum.
        step: elements from one step to the next in the first panel.
        row: elements from one row to the next there.
        width: elements from one row of `out` to the next.
    """

    name = "target.dot_panels"
    effects = READ_WRITE
    left: Value = operand()
    right: Value = operand()
    start: Value = operand()
    out: Value = operand()
    first: Value = operand()
    end: Value = operand()
    a: DType = attr()
    b: DType = attr()
    rows: int = attr()
    columns: int = attr()
    depth: int = attr()
    step: int = attr()
    row: int = attr()
    width: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        pointers = (self.left, self.right, self.start, self.out)
        if not all(isinstance(v.type, PtrType) for v in pointers):
            raise VerifyError("panels and sums are at pointers")
        for step in (self.first, self.end):
            if step.type != ScalarType(int64):
                raise VerifyError(f"{step.type} is no number of steps")
        if sum_dtype(self.a, self.b) is None:
            raise VerifyError(f"products of {self.a} and {self.b} are not added up")
        set_up_of(self.rows, self.columns, self.depth, self.a)
        return ()

    @property
    def set_up(self) -> tuple[int, int]:
        """Rows of a register and bytes of a row, for which registers are set up."""
        return set_up_of(self.rows, self.columns, self.depth, self.a)
