"""Ops of the entry that group launches."""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.ir.core import Block
from tessera.ir.effects import READ_WRITE
from tessera.ir.opdef import region
from tessera.ir.types import Type
from tessera.tile.ops import Launch, TileOp


class Together(TileOp):
    """Launches, in any order or at the same time, that threads of a CPU share: what one of them
    writes no other reads or writes."""

    name = "tile.together"
    effects = READ_WRITE
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """There are launches only."""
        if self.body.args or self.body.outputs:
            raise VerifyError("it takes nothing, and yields nothing")
        if not all([isinstance(op, Launch) for op in self.body.ops]):
            raise VerifyError("it has launches only")
