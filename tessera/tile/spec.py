"""What Tile IR may contain."""

from __future__ import annotations

from tessera.ir.verify import Spec
from tessera.tile.ops import TileOp

TILE = Spec("tile", (TileOp,))
"""The spec of the Tile layer."""
