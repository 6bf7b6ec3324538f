"""What a kernel tells a CPU's caches."""

from __future__ import annotations

from tessera.dtypes import int64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import WRITE
from tessera.ir.opdef import attr, operand
from tessera.ir.types import ScalarType, Type
from tessera.target.ops import TargetOp
from tessera.target.types import PtrType


class Prefetch(TargetOp):
    """Says that so many bytes from byte `offset` on are going to be read soon, or written. It
    changes nothing, wherever it points; a CPU fetches their lines into its caches, and takes those
    that are going to be written from other cores. Where `is_many`, many lines are on their way at
    once, more than some CPUs' first cache waits for (`Machine.waits_for_few`).
    """

    name = "target.prefetch"
    effects = WRITE
    ptr: Value = operand()
    offset: Value = operand()
    bytes: int = attr()
    is_written: bool = attr(False)
    is_many: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.ptr.type, PtrType) or self.offset.type != ScalarType(int64):
            raise VerifyError("prefetch takes a pointer and an i64 offset")
        return ()
