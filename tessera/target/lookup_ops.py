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
"""Those of a table: the float32 that a register of 512 bits holds."""


class Lookup(TargetOp):
    """The entries of a table of f32 that indices of u32 choose, of which the last four bits count.

    An instruction of CPUs with AVX-512, for any number of lanes.
    """

    name = "target.lookup"
    index: Value = operand()
    table: tuple[float, ...] = attr()

    def infer(self) -> Type:
        """f32 for each index."""
        if element(self.index.type) is not uint32:
            raise VerifyError(f"lookup of {self.index.type}; indices are u32")
        if len(self.table) != ENTRIES or not all(map(math.isfinite, self.table)):
            raise VerifyError(f"a table of {len(self.table)} entries, not {ENTRIES} numbers")
        return with_element(self.index.type, float32)
