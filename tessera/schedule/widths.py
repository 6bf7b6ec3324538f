"""How wide the elements are that a nest computes with: what lanes a vector has for them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Op
from tessera.ir.intexpr import symbols
from tessera.ir.types import ScalarType
from tessera.schedule import lengths, ops
from tessera.schedule.access import Access, dependence_of


def widest(nest: ops.Nest, code: Sequence[Op], accesses: Sequence[Access]) -> int:
    """Bits of the widest element that the body computes with. Addresses do not count, nor what is
    the same at all points: a factor in float64 of bytes is converted once.

    Args:
        nest: The nest.
        code: Its ops, those of regions included.
        accesses: What it reads and writes.
    """
    found: list[tuple[Op, int]] = []
    for op in code:
        if isinstance(op, (ops.Map, ops.Load, ops.Cast, ops.Reduce, ops.Contract)):
            assert isinstance(op.result.type, ScalarType)
            if op.result.type.dtype.is_inexact:
                found.append((op, op.result.type.dtype.bits))
    if len({bits for _, bits in found}) > 1:
        depends = dependence_of(nest.body).ops
        found = [(op, bits) for op, bits in found if depends[op]] or found
    inexact = max([bits for _, bits in found], default=0)
    if 0 < inexact < 32 and lengths.of(code) > lengths.LONG:
        return 32
    if inexact:
        return inexact
    bits = [a.dtype.bits for a in accesses]
    moving = [a.dtype.bits for a in accesses if a.varies or symbols(a.offset)]
    return max(moving or bits or [32])
