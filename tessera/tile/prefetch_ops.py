"""What a kernel tells a CPU's caches."""

from __future__ import annotations

from tessera.dtypes import int64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import WRITE
from tessera.ir.opdef import attr, operand
from tessera.ir.types import Type
from tessera.tile.ops import TileOp
from tessera.tile.types import MemType, TileType


class Prefetch(TileOp):
    """Says that `count` elements of memory from a linear offset on are going to be read soon. It
    changes nothing, so it stays where it is, as what writes does; there need be no such elements.
    Where `is_many`, many lines are on their way at once.
    """

    name = "tile.prefetch"
    effects = WRITE
    mem: Value = operand()
    offset: Value = operand()
    count: int = attr()
    is_many: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.mem.type, MemType) or self.offset.type != TileType((), int64):
            raise VerifyError("prefetch takes memory and an i64 scalar")
        return ()
