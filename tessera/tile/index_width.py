"""How wide the integers are that address the elements of a GPU kernel's memories.

Registers and instructions of GPUs have 32 bits; a product of 64 bits takes several. A kernel of
known sizes uses 32 bits where the values show that they fit. For sizes that are known at the call
it takes a proof: from bounds of the dims, which the user states, follows how many elements each
memory has at most. The decision and its reason are attributes of the kernel.

Where each memory has fewer than 2^30 elements, sums of products of coordinates and strides fit into
32 bits for every element that is there; whatever else is computed, of elements that are outside, is
not used. The factor of 2 is for coordinates that begin before the first element.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Func
from tessera.ir.intbounds import Facts
from tessera.ir.intexpr import Dim, prod
from tessera.schedule.types import BufType

MOST_ELEMENTS = 1 << 30
"""So many elements of a memory need 64 bits."""

INDEX, REASON = "index", "reason"
"""The attributes of a kernel: `i32` or `i64`, and why."""


def with_width(kernel: Func, buffers: Sequence[BufType], facts: Facts) -> Func:
    """A kernel that says how wide its indices are.

    Args:
        kernel: a Tile kernel.
        buffers: its memories.
        facts: what the dims can be.
    """
    width, reason = "i32", "its memories have no elements"
    most = -1
    for buffer in buffers:
        span = facts.upper(_span(buffer))
        if span is None:
            width, reason = "i64", f"nothing bounds the elements of {buffer}"
            break
        if span > most:
            most = span
            fits = span < MOST_ELEMENTS
            width = "i32" if fits else "i64"
            reason = f"{buffer} has at most {span} elements"
            if not fits:
                reason = f"{buffer} may have {span} elements"
    return Func(kernel.name, kernel.body, kernel.dims, {INDEX: width, REASON: reason})


def _span(buffer: BufType) -> Dim:
    """The elements from the first to the last one."""
    if buffer.strides is None:
        return prod(buffer.shape)
    span: Dim = 1
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        away = stride if not isinstance(stride, int) else abs(stride)
        span = span + (size - 1) * away
    return span
