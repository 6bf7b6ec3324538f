"""Products of packed panels, in a CPU's registers for matrices."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ_WRITE
from tessera.ir.opdef import attr, operand
from tessera.ir.types import Type
from tessera.tile.ops import INDEX, TileOp
from tessera.tile.types import MemType

GROUP_BYTES = 4
"""Bytes of a group: the elements along the depth that lie together in the second panel."""

ROW_BYTES = 64
"""Bytes of a row of such a register."""

LONGEST = 16
"""Rows that it has."""

MOST = 4
"""Registers of sums that are in use at a time; the others hold operands."""


def sum_dtype(left: DType, right: DType) -> DType | None:
    """The dtype in which products of two narrow ones are added up; None where they are not."""
    if left is right is bfloat16:
        return float32
    return int32 if {left, right} <= {int8, uint8} else None


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers of sums.

    Attributes:
        down: registers along the rows.
        across: the same along the columns.
        rows: of a register.
    """

    down: int
    across: int
    rows: int


def registers(rows: int, columns: int) -> Registers | None:
    """Into how many registers the rows and the columns of a block are cut, each of equally many;
    None where they do not fit."""
    count, across = -(-rows // LONGEST), columns * GROUP_BYTES // ROW_BYTES
    if rows <= 0 or rows % count or columns * GROUP_BYTES != across * ROW_BYTES:
        return None
    if not 0 < across <= MOST:
        return None
    return Registers(count, across, rows // count) if count * across <= MOST else None


class DotPanels(TileOp):
    """out[i, j] = start[i, j] + sum of left[s, i, k] * right[s, k // g, j, k % g] over first <= s
    < end and k < depth; where `first` is 0, `start` is not read, and counts as 0.

    All lie from linear offsets on, the panels from that of their step 0, the second one and `start`
    without gaps; a group has g elements, 4 bytes. Integers wrap around; of floating-point numbers,
    subnormal ones may count as 0, and the order of additions is the machine's.

    Attributes:
        rows: of the first panel and of the result.
        columns: of the second panel and of the result.
        depth: products that a step adds to each sum, whole groups.
        step: elements from one step to the next in the first panel.
        row: elements from one row to the next there.
        width: elements from one row of `out` to the next.
    """

    name = "tile.dot_panels"
    effects = READ_WRITE
    left: Value = operand()
    left_at: Value = operand()
    right: Value = operand()
    right_at: Value = operand()
    first: Value = operand()
    end: Value = operand()
    start: Value = operand()
    start_at: Value = operand()
    out: Value = operand()
    out_at: Value = operand()
    rows: int = attr()
    columns: int = attr()
    depth: int = attr()
    step: int = attr()
    row: int = attr()
    width: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        left, right = self.left.type, self.right.type
        if not isinstance(left, MemType) or not isinstance(right, MemType):
            raise VerifyError(f"panels are memory, not {left} and {right}")
        wanted = sum_dtype(left.dtype, right.dtype)
        for mem in (self.start, self.out):
            if wanted is None or mem.type != MemType(wanted):
                raise VerifyError(f"products of {left} and {right} are not added to {mem.type}")
        places = (self.left_at, self.right_at, self.first, self.end, self.start_at, self.out_at)
        if any(v.type != INDEX for v in places):
            raise VerifyError("places in panels are i64 scalars")
        set_up_of(self.rows, self.columns, self.depth, left.dtype)
        return ()

    @property
    def set_up(self) -> tuple[int, int]:
        """Rows of a register and bytes of a row of the first operand."""
        assert isinstance(self.left.type, MemType)
        return set_up_of(self.rows, self.columns, self.depth, self.left.type.dtype)


def set_up_of(rows: int, columns: int, depth: int, dtype: DType) -> tuple[int, int]:
    """Rows of a register of sums and bytes of a row of the first operand's.

    Raises:
        VerifyError: registers do not hold a block of this size.
    """
    size, found = depth * dtype.itemsize, registers(rows, columns)
    if found is None:
        raise VerifyError(f"{rows} x {columns} sums do not fit registers")
    if not 0 < size <= ROW_BYTES or size % GROUP_BYTES:
        raise VerifyError(f"rows of {size} bytes, not groups of {GROUP_BYTES} up to {ROW_BYTES}")
    return found.rows, size
