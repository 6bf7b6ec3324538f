"""Ops that move lanes of a vector as a mask or numbers say: instructions of CPUs with AVX-512, and
a few of those with AVX2."""

from __future__ import annotations

from tessera.dtypes import bool_, uint32, uint64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.opdef import operand
from tessera.ir.types import ScalarType, Type
from tessera.target.ops import INDEX, TargetOp, element, lanes, with_element
from tessera.target.types import VecType

REGISTERS = (256, 512)
"""Bits of a register."""


class Compress(TargetOp):
    """The lanes of a vector whose bit is set, in order; what is behind them is undefined.

    An instruction of CPUs with AVX-512, for vectors of its registers; with AVX2 a table has the
    places of the lanes for each mask of 4 or 8.
    """

    name = "target.compress"
    x: Value = operand()
    mask: Value = operand()

    def infer(self) -> Type:
        """The vector's type."""
        if not lanes(self.x.type) or self.mask.type != with_element(self.x.type, bool_):
            raise VerifyError(f"lanes of {self.x.type} that {self.mask.type} chooses")
        return self.x.type


class Permute(TargetOp):
    """The lanes of a vector that indices choose, of which the last bits count.

    An instruction of CPUs with AVX-512 or AVX2, for the integers of one of its registers.
    """

    name = "target.permute"
    x: Value = operand()
    index: Value = operand()

    def infer(self) -> Type:
        """The vector's type."""
        count = lanes(self.x.type)
        if self.index.type != self.x.type or element(self.x.type) not in (uint32, uint64):
            raise VerifyError(f"lanes of {self.x.type} at {self.index.type}")
        if count * element(self.x.type).bits not in REGISTERS:
            sizes = " or ".join(map(str, REGISTERS))
            raise VerifyError(f"{self.x.type} is no register of {sizes} bits")
        return self.x.type


class CountTrue(TargetOp):
    """How many lanes of a mask are set, i64."""

    name = "target.count_true"
    mask: Value = operand()

    def infer(self) -> Type:
        """An index."""
        type = self.mask.type
        if not isinstance(type, VecType) or element(type) is not bool_:
            raise VerifyError(f"count of {type}")
        return ScalarType(INDEX.dtype)
