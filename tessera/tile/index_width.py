"""How wide the integers are that address the elements of a GPU kernel's memories.

Registers and instructions of GPUs have 32 bits; a product of 64 bits takes several. A kernel of
known sizes uses 32 bits where the values show that they fit. For sizes that are known at the call
it takes a proof: from bounds of the dims, which the user states, follows how many elements each
memory has at most; or a guard, which is evaluated at the launch. The decision and its reason are
attributes of the kernel.

Where each memory has fewer than 2^30 elements, sums of products of coordinates and strides fit into
32 bits for every element that is there; whatever else is computed, of elements that are outside, is
not used. The factor of 2 is for coordinates that begin before the first element.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.core import Func
from tessera.ir.intbounds import Facts
from tessera.ir.intexpr import Dim, prod
from tessera.ir.ranges import MOST_ELEMENTS
from tessera.schedule.types import BufType

INDEX, REASON = "index", "reason"
"""The attributes of a kernel: `i32` or `i64`, and why."""


def with_width(
    kernel: Func, buffers: Sequence[BufType], facts: Facts, guard: int | None = None
) -> tuple[Func, list[str]]:
    """A kernel that says how wide its indices are, and what is to be checked where it is launched.

    Args:
        kernel: a Tile kernel.
        buffers: its memories.
        facts: what the dims can be.
        guard: memories have fewer elements than this where that is checked; None if nothing is.
    """
    guards: dict[str, None] = {}
    largest, most = "", -1
    for buffer in buffers:
        span = _span(buffer)
        bound = facts.upper(span)
        if bound is not None and bound < MOST_ELEMENTS:
            if bound > most:
                largest, most = f"{buffer} has at most {bound} elements", bound
        elif guard is not None and not isinstance(span, int):
            guards[f"{span} < {guard}"] = None
        else:
            why = f"nothing bounds the elements of {buffer}"
            why = why if bound is None else f"{buffer} may have {bound} elements"
            return _with(kernel, "i64", why), []
    reason = f"checked at the launch: {' and '.join(guards)}" if guards else largest
    return _with(kernel, "i32", reason or "it has no memories"), list(guards)


def _with(kernel: Func, width: str, reason: str) -> Func:
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
