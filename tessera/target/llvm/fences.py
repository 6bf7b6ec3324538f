"""Fences in long chains of integer operations on vectors, and of shuffles.

Choosing instructions, LLVM asks at each operation on integers which bits its operands may have, and
follows them six operations back, in several rounds: 20 to 45 us for an instruction, as against 7
for arithmetic on floats. A fence is no instruction, but nobody looks through it. Chains are cut
before arithmetic only, and logic much deeper: what becomes one instruction stays together
(conversions and comparisons with what they take, rotations, logic of three operands).

    %2 = add %0, %1                     %2 = add %0, %1
    %3 = xor %2, %0                     %3 = xor %2, %0
    %4 = shl %3, 7           ==>        %4 = shl %3, 7
    %5 = add %4, %0                     %5 = fence %4
                                        %6 = add %5, %0

Of shuffles LLVM tries whether several steps may be one, which takes it longer than all the rest of
a transpose: what took two steps stands behind a fence for the third one.
"""

from __future__ import annotations

import functools

from tessera.dtypes import Kind, bool_
from tessera.ir.types import Type
from tessera.target.types import VecType

DEPTH, LOGIC_DEPTH = 3, 7
"""Arithmetic has operands that took so many operations in their block behind a fence, logic those
that took more. With fewer of them instructions are more by one in a hundred, with more LLVM takes
longer."""

LIMITS = {
    **dict.fromkeys(("add", "sub", "mul", "mulhi", "shl", "shr", "min", "max"), DEPTH),
    **dict.fromkeys(("and", "or", "xor", "not", "select"), LOGIC_DEPTH),
}
"""How many operations the operands of a function may have taken."""

SHUFFLES = 2
"""How many steps the operands of a shuffle may have taken."""


@functools.cache
def fence_type(type: Type) -> tuple[str, str] | None:
    """The vector of floats as which a vector passes a fence, and its suffix; None for what gets
    none."""
    if not isinstance(type, VecType) or type.dtype is bool_ or type.lanes < 2:
        return None
    size = type.dtype.itemsize
    if size * type.lanes % 8:
        return None
    width, element = (8, "double") if size == 8 else (4, "float")
    count = size * type.lanes // width
    return f"<{count} x {element}>", f"v{count}f{8 * width}"


def is_float(type: Type) -> bool:
    """Whether arithmetic on a vector is cheap to choose instructions for."""
    return isinstance(type, VecType) and type.dtype.kind is Kind.FLOAT and type.dtype.itemsize >= 4
