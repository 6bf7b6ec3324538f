"""Numbers for the sizes that tiles are chosen by."""

from __future__ import annotations

from math import prod

from tessera.ir.intexpr import Dim, evaluate
from tessera.ir.types import TensorType
from tessera.schedule.types import BufType

SYMBOLIC_EXTENT = 512
"""What a symbolic dim counts as."""


def size_of(dim: Dim) -> int:
    """An extent as a number."""
    if isinstance(dim, int):
        return dim
    return max(int(evaluate(dim, dict.fromkeys(dim.symbols, SYMBOLIC_EXTENT))), 1)


def bytes_of(type: TensorType | BufType) -> int:
    """The bytes of an array or a buffer."""
    return prod(map(size_of, type.shape)) * type.dtype.itemsize


def power_above(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()


def power_below(n: float) -> int:
    """The greatest power of two that is not greater; at least 1."""
    return 1 << max(int(n), 1).bit_length() - 1
