"""Products of narrow numbers, which CPUs add up several at a time; see `pack_products`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tessera.dtypes import DType, bfloat16, can_cast, float32, int8, int16, int32, uint8
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.schedule import ops

LEAST_BYTES = 32
"""Bytes of the depth that lie together, for which registers for matrices are worth it: half of
what a row of theirs holds."""


class NarrowCpu(Protocol):
    """What is asked of a machine."""

    @property
    def has_panels(self) -> bool:
        """Whether it has registers for matrices."""
        ...

    def group(self, a: DType, b: DType) -> int:
        """How many products of two narrow dtypes one instruction adds to a lane of 32 bits; 1 where
        there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Groups:
    """How a product is added up.

    Attributes:
        elements: the dtypes in which the operands of the contraction are packed and multiplied.
        size: how many products one instruction adds to a sum.
        is_panels: whether that is done in registers for matrices.
    """

    elements: tuple[DType, DType]
    size: int = 1
    is_panels: bool = False

    @property
    def registers(self) -> str:
        """Where sums are kept."""
        return "registers for matrices" if self.is_panels else "registers"


def groups_of(op: ops.Contract, machine: NarrowCpu, panels: bool) -> Groups:
    """How a product is added up: by groups, if the operands are narrow enough before they are
    widened, and the machine has what adds them.

    Args:
        op: the product.
        machine: the CPU.
        panels: whether registers for matrices may be used.
    """
    first, second = [narrow(value) for value in op.body.outputs]
    found = {first, second}
    options: list[tuple[DType, DType]] = []
    # Instructions that add pairs of products round otherwise than one product after the other.
    if op.dtype is float32 and found == {bfloat16} and op.order is None:
        options = [(bfloat16, bfloat16)]
    elif op.dtype is int32 and found == {int8, uint8}:
        options = [(first, second), (int16, int16)]
    elif op.dtype is int32 and found == {int8}:
        # One of them is moved by 128; what that adds, sums of the other one, is subtracted again.
        # The second one is packed anyway, and may be for a whole loop, with its sums; but blocks
        # that compute the first one would have to sum its rows besides.
        options = [(int8, uint8) if panels else (uint8, int8), (int16, int16)]
    elif op.dtype is int32 and found <= {int8, uint8, int16}:
        options = [(int16, int16)]
    if options and panels and machine.has_panels and int16 not in found:
        last = op.axes[-1].extent
        if not isinstance(last, int) or last * first.itemsize >= LEAST_BYTES:
            return Groups((first, second), 4 // first.itemsize, True)
    for pair in options:
        if machine.group(*pair) > 1:
            return Groups(pair, machine.group(*pair))
    return Groups((op.dtype, op.dtype))


def narrowed(value: Value) -> Value:
    """A scalar before it was widened; what a conversion changes is not what it was."""
    op = value.op
    if not isinstance(op, ops.Cast):
        return value
    assert isinstance(op.x.type, ScalarType)
    return op.x if can_cast(op.x.type.dtype, op.dtype) else value


def narrow(value: Value) -> DType:
    """Its dtype."""
    type = narrowed(value).type
    assert isinstance(type, ScalarType)
    return type.dtype
