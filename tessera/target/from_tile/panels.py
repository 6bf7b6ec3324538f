"""The CPU lowering of products of packed panels: registers for matrices are set up once for a
kernel, which takes as long as 30 of their products."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.ir.loc import Loc
from tessera.target import ops as t
from tessera.target import panel_ops
from tessera.target.from_tile.lowering import Lowering
from tessera.tile.panel_ops import DotPanels
from tessera.tile.types import MemType


def begin(s: Lowering, dots: Iterable[DotPanels]) -> None:
    """Sets the registers up where all products of a kernel need the same."""
    found = {op.set_up for op in dots}
    s.has_panels = len(found) == 1
    if s.has_panels:
        s.emit(panel_ops.BeginPanels(*found.pop(), loc=s.loc))


def end(s: Lowering) -> None:
    """Gives them back."""
    if s.has_panels:
        s.emit(panel_ops.EndPanels(loc=Loc.unknown))


def dot_panels(s: Lowering, op: DotPanels) -> None:
    """A product; where others need other registers, these are set up for it alone."""
    pointers: list[Value] = []
    dtypes: list[DType] = []
    places = ((op.left, op.left_at), (op.right, op.right_at))
    sums = ((op.start, op.start_at), (op.out, op.out_at))
    for mem, first in (*places, *sums):
        assert isinstance(mem.type, MemType)
        dtypes.append(mem.type.dtype)
        at = s.map("mul", s.scalar(first), s.index(mem.type.dtype.itemsize))
        pointers.append(s.emit(t.PtrAdd(s.ptr(mem), at, loc=s.loc)))
    operands = (*pointers, s.scalar(op.first), s.scalar(op.end))
    fields = (*dtypes[: len(places)], op.rows, op.columns, op.depth, op.step, op.row, op.width)
    if not s.has_panels:
        s.emit(panel_ops.BeginPanels(*op.set_up, loc=s.loc))
    s.emit(panel_ops.DotPanels(*operands, *fields, loc=s.loc))
    if not s.has_panels:
        s.emit(panel_ops.EndPanels(loc=s.loc))
