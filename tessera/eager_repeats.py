"""Operands of an elementwise op that stand repeated along some dims, or among other elements, read
as they are.

`a + b` of shapes (m, n) and (n,) comes here as two arrays of shape (m, n), one of which has stride
0 along the first dim. Neighbouring dims along which the same operands are repeated are one dim to a
program, so that a rank needs none of its own: what is left is a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.eager_order import Spaces, adding, first_in_memory, is_apart, spaces_of
from tessera.graph.ops import reshape as s
from tessera.ir.builder import Builder
from tessera.ir.core import Func, Op, Value
from tessera.ir.intexpr import Dim, sym
from tessera.ir.types import TensorType
from tessera.runtime.memory import pointer

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
        spaces: for each operand how it lies among others in these dims; None where it is alone.
    """

    dims: tuple[int, ...]
    varies: tuple[tuple[int, ...], ...]
    spaces: tuple[Spaces | None, ...]

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
        operands = [*zip(self.varies, self.spaces, types, strict=True)]
        params: list[TensorType] = []
        for k, (own, spaces, (dtype, weak)) in enumerate(operands):
            dims = tuple([shape[d] for d in own])
            if spaces is not None:
                dims = spaces.shape(dims, k)
                names += spaces.names(k)
            params.append(TensorType(dims, dtype, weak))
        builder = Builder(params)
        values: list[Value] = []
        for arg, (own, spaces, _) in zip(builder.args, operands, strict=True):
            x: Value = arg
            if spaces is not None:
                x = spaces.read(adding(builder), x, [shape[d] for d in own])
            if len(own) < len(shape):
                x = builder.add(s.Broadcast(x, shape=shape, dims=own)).result
            values.append(x)
        op = builder.add(cls(*values, **attrs))
        return builder.func(cls.name.split(".")[-1], op.results, names)


def lines(splats: Sequence[bool]) -> Pattern:
    """Operands that are lines of one length, or one number repeated."""
    varies = tuple([() if splat else (0,) for splat in splats])
    return Pattern((0,), varies, (None,) * len(varies))


def pattern_of(
    shape: tuple[int, ...],
    operands: Sequence[np.ndarray],
    whole: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray,
) -> tuple[Pattern, list[int], list[np.ndarray]] | None:
    """The pattern of operands of one shape, the values of its dims, and the operands without what
    is repeated, whose first element is the first in memory; None where copies are better.

    Args:
        shape: theirs.
        operands: of any strides.
        whole: makes a copy in row-major order.
    """
    if 0 in shape:
        return None
    bases: list[np.ndarray] = []
    is_spaced: list[bool] = []
    for x in operands:
        # The first of what is repeated, and an array also where that is one element.
        base = x[(*[slice(None) if step else 0 for step in x.strides], ...)]
        apart = not (base.flags.c_contiguous and base.flags.aligned)
        if apart and (not is_apart(base) or _lies(base) is None):
            base, apart = whole(base), False
        bases.append(base)
        is_spaced.append(apart)
    runs = _runs(shape, operands, is_spaced)
    if runs is None:
        return None
    sizes = [math.prod([shape[k] for k in run]) for run in runs]
    varies: list[tuple[int, ...]] = []
    spaces: list[Spaces | None] = []
    values: list[int] = []
    for k, x in enumerate(operands):
        own = tuple([d for d, run in enumerate(runs) if x.strides[run[-1]]])
        varies.append(own)
        spaces.append(None)
        if is_spaced[k]:
            steps = [x.strides[runs[d][-1]] for d in own]
            found = spaces_of([sizes[d] for d in own], steps, x.itemsize)
            assert found is not None  # as with dims that are not put together
            spaces[k] = found[0]
            values += found[1]
            bases[k] = first_in_memory(bases[k])
    static = [0] * len(sizes)
    if sizes[-1] < SHORT and operands[0].size >= WORTH:
        static[-1] = sizes[-1]
    known = [size for size, is_known in zip(sizes, static, strict=True) if not is_known]
    return Pattern(tuple(static), tuple(varies), tuple(spaces)), [*known, *values], bases


def backwards(
    operands: Sequence[np.ndarray], inputs: Sequence[np.ndarray]
) -> tuple[int, ...] | None:
    """Which of some operands are read from their last element on; None if one was copied.

    Args:
        operands: what `pattern_of` was given.
        inputs: what it gave.
    """
    found: list[int] = []
    for k, (x, read) in enumerate(zip(operands, inputs, strict=True)):
        if pointer(read) != pointer(x):
            if pointer(read) != pointer(first_in_memory(x)):
                return None
            found.append(k)
    return tuple(found)


def _lies(base: np.ndarray) -> object:
    kept = [(n, step) for n, step in zip(base.shape, base.strides, strict=True) if n != 1]
    return spaces_of([n for n, _ in kept], [step for _, step in kept], base.itemsize)


def _runs(
    shape: tuple[int, ...], operands: Sequence[np.ndarray], is_spaced: Sequence[bool]
) -> list[list[int]] | None:
    """Neighbouring dims that are one to all operands; None where there are too many, or none."""
    runs: list[list[int]] = []
    for k in [k for k, size in enumerate(shape) if size != 1]:
        each = zip(operands, is_spaced, strict=True)
        if runs and all([_continues(x, runs[-1][-1], k, apart) for x, apart in each]):
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs if 1 <= len(runs) <= MOST_DIMS else None


def _continues(x: np.ndarray, a: int, b: int, is_spaced: bool) -> bool:
    """Whether a dim goes on where the one outside of it ends, or both repeat the operand."""
    outer, inner = x.strides[a], x.strides[b]
    if is_spaced:
        return outer == x.shape[b] * inner
    return (outer != 0) == (inner != 0)
