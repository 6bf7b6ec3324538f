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
    """Tells the runtime, if the bool scalar holds, that a value is not what it should be."""

    name = "tile.sentinel"
    effects = IO
    bad: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if self.bad.type != TileType((), bool_):
            raise VerifyError(f"a sentinel takes a bool scalar, not {self.bad.type}")
        return ()
