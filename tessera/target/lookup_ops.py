"""Tables that CPUs keep in a register."""

from __future__ import annotations

import math

from tessera.dtypes import float32, uint32
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.opdef import attr, operand
from tessera.ir.types import Type
from tessera.target.ops import TargetOp, element, with_element

ENTRIES = 16
"""The float32 that a register of 512 bits holds; a table has as many, or twice as many."""


class Lookup(TargetOp):
    """The entries of a table of f32 that indices of u32 choose, of which the last bits count: four
    where it has 16 entries, five where it has 32.

    An instruction of CPUs with AVX-512, for any number of lanes.
    """

    name = "target.lookup"
    index: Value = operand()
    table: tuple[float, ...] = attr()

    def infer(self) -> Type:
        """f32 for each index."""
        if element(self.index.type) is not uint32:
            raise VerifyError(f"lookup of {self.index.type}; indices are u32")
        count = len(self.table)
        if count not in (ENTRIES, 2 * ENTRIES) or not all(map(math.isfinite, self.table)):
            raise VerifyError(f"a table of {count} entries, not {ENTRIES} or {2 * ENTRIES} numbers")
        return with_element(self.index.type, float32)
