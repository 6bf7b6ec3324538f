"""Copies in row-major order, as who watches a function sees them: runs of native code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.runtime.dispatch.copy_text import COPY, MOST_DIMS
from tessera.runtime.dispatch.native import native
from tessera.runtime.dispatch.run import Run


class Copier:
    """What copies, as a run names a program.

    Attributes:
        main: its address.
    """

    __slots__ = ("main",)

    def __init__(self, main: int) -> None:
        self.main = main

    def scratch(self, dims: Sequence[int]) -> int:
        """How many bytes of scratch memory it takes."""
        return 0


def copy_run(source: np.ndarray, target: np.ndarray) -> Run | None:
    """The run that copies a view, of any order and repeated ones too, to an array in row-major
    order; None if there is none."""
    loaded = native()
    dims, strides = _joined(source)
    if loaded is None or len(dims) > MOST_DIMS or source.itemsize not in (1, 2, 4, 8, 16):
        return None
    words = (source.itemsize, len(dims), *dims, *strides)
    return Run(Copier(loaded.addresses[COPY]), (source,), (target,), words)


def _joined(source: np.ndarray) -> tuple[list[int], list[int]]:
    """Sizes and strides of an array, where dims that are one run through memory are one."""
    dims: list[int] = []
    strides: list[int] = []
    kept: list[Any] = [d for d in zip(source.shape, source.strides, strict=True) if d[0] != 1]
    for size, stride in kept or [(1, source.itemsize)]:
        if dims and strides[-1] == size * stride:
            dims[-1] *= size
            strides[-1] = stride
        else:
            dims.append(size)
            strides.append(stride)
    return dims, strides
