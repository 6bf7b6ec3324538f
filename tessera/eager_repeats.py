"""Operands of an elementwise op that stand repeated along some dims, read as they are.

`a + b` of shapes (m, n) and (n,) comes here as two arrays of shape (m, n), one of which has stride
0 along the first dim. Neighbouring dims along which the same operands are repeated are one dim to a
program, so that a rank needs none of its own: what is left is a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.graph.ops import reshape as s
from tessera.ir.builder import Builder
from tessera.ir.core import Func, Op
from tessera.ir.intexpr import Dim, sym
from tessera.ir.loc import Loc, scoped
from tessera.ir.types import TensorType

WORTH = 1 << 15
"""From so many elements on a program of its own is better than copies, even for a call that may not
come again."""

MOST_DIMS = 4
"""Dims of a pattern; of more, operands are copied."""

SHORT = 64
"""A last dim that is shorter is no run-time value where there are so many elements that it counts:
vectors would be mostly empty."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """How operands are repeated.

    Attributes:
        dims: the sizes that are no run-time values; 0 for those that are.
        varies: for each operand the dims along which it is not repeated.
    """

    dims: tuple[int, ...]
    varies: tuple[tuple[int, ...], ...]

    def program(
        self, cls: type[Op], types: Sequence[tuple[Any, bool]], attrs: dict[str, Any]
    ) -> Func:
        """The op on operands that have this pattern.

        Args:
            cls: the op.
            types: the dtype of each operand, and whether it is weak.
            attrs: the op's.
        """
        names = [f"d{k}" for k, size in enumerate(self.dims) if not size]
        shape: tuple[Dim, ...] = tuple([n or sym(f"d{k}") for k, n in enumerate(self.dims)])
        builder = Builder(
            [
                TensorType(tuple([shape[k] for k in own]), dtype, weak)
                for own, (dtype, weak) in zip(self.varies, types, strict=True)
            ]
        )
        with scoped(Loc.unknown):
            values = [
                arg
                if len(own) == len(shape)
                else builder.add(s.Broadcast(arg, shape=shape, dims=own)).result
                for arg, own in zip(builder.args, self.varies, strict=True)
            ]
            op = builder.add(cls(*values, **attrs))
        return builder.func(cls.name.split(".")[-1], op.results, names)


def lines(splats: Sequence[bool]) -> Pattern:
    """Operands that are lines of one length, or one number repeated."""
    return Pattern((0,), tuple([() if splat else (0,) for splat in splats]))


def pattern_of(
    shape: tuple[int, ...],
    operands: Sequence[np.ndarray],
    whole: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray,
) -> tuple[Pattern, list[int], list[np.ndarray]] | None:
    """The pattern of operands of one shape, the values of its dims, and the operands without what
    is repeated, contiguous, as `whole` makes them; None where copies are better.
    """
    dims = [k for k, size in enumerate(shape) if size != 1]
    strides = [x.strides for x in operands]
    sizes: list[int] = []
    varying: list[tuple[bool, ...]] = []
    for k in dims:
        here = tuple([own[k] != 0 for own in strides])
        if varying and varying[-1] == here:
            sizes[-1] *= shape[k]
        else:
            sizes.append(shape[k])
            varying.append(here)
    if not 1 <= len(sizes) <= MOST_DIMS or 0 in sizes:
        return None
    bases: list[np.ndarray] = []
    for x, own in zip(operands, strides, strict=True):
        # The first of what is repeated, and an array also where that is one element.
        base = x[(*[slice(None) if step else 0 for step in own], ...)]
        if not (base.flags.c_contiguous and base.flags.aligned):
            base = whole(base)
        bases.append(base)
    varies = [
        tuple([d for d, here in enumerate(varying) if here[k]]) for k in range(len(operands))
    ]
    static = [0] * len(sizes)
    if sizes[-1] < SHORT and operands[0].size >= WORTH:
        static[-1] = sizes[-1]
    values = [size for size, known in zip(sizes, static, strict=True) if not known]
    return Pattern(tuple(static), tuple(varies)), values, bases
