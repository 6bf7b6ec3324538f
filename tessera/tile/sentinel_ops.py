"""What a kernel tells of the values that it computes."""

from __future__ import annotations

from tessera.dtypes import bool_
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import IO
from tessera.ir.opdef import operand
from tessera.ir.types import Type
from tessera.tile.ops import TileOp
from tessera.tile.types import TileType


class Sentinel(TileOp):
    """Tells the runtime, if some element of the tile holds, that a value is wrong."""

    name = "tile.sentinel"
    effects = IO
    bad: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.bad.type, TileType) or self.bad.type.dtype is not bool_:
            raise VerifyError(f"a sentinel takes bools, not {self.bad.type}")
        return ()
