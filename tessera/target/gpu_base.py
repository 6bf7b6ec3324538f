"""What all ops of GPUs share: the base class, and checks of operands."""

from __future__ import annotations

from typing import ClassVar

from tessera.dtypes import bool_, int32, int64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.target.ops import TargetOp
from tessera.target.types import AddressSpace, PtrType

I32 = ScalarType(int32)
BOOL = ScalarType(bool_)
WARP = 32
"""Threads of a warp."""


def check_space(ptr: Value, *allowed: AddressSpace) -> None:
    if not isinstance(ptr.type, PtrType) or ptr.type.space not in allowed:
        names = " or ".join(space.value for space in allowed)
        raise VerifyError(f"expected a pointer to {names} memory, not {ptr.type}")


def check_offset(*values: Value) -> None:
    for value in values:
        if value.type not in (I32, ScalarType(int64)):
            raise VerifyError(f"an offset is i32 or i64, not {value.type}")


def check_mask(mask: tuple[Value, ...]) -> None:
    if len(mask) > 1 or any(m.type != BOOL for m in mask):
        raise VerifyError("at most one mask, a bool scalar")


class GpuOp(TargetOp):
    """Base of the ops that exist on GPUs only.

    Class attributes:
        collective: `""`, `"warp"` or `"block"`: the threads that must run it together.
    """

    collective: ClassVar[str] = ""
