"""Memory that a program of a kernel has for itself."""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.errors import VerifyError
from tessera.ir.effects import WRITE
from tessera.ir.opdef import attr
from tessera.ir.types import Type
from tessera.tile.ops import TileOp
from tessera.tile.types import MemType


class Scratch(TileOp):
    """Memory of `count` elements on a CPU's stack. What is in it at first is not defined, and it is
    there until the program ends."""

    name = "tile.scratch"
    effects = WRITE
    dtype: DType = attr()
    count: int = attr()

    def infer(self) -> Type:
        """Memory like any other."""
        if self.count <= 0:
            raise VerifyError(f"scratch memory of {self.count} elements")
        return MemType(self.dtype)
