"""Copies of NumPy's arrays, and arrays of one number, where compiled code likes memory to begin.

`runtime/memory.py` says why; it gives results memory, and large copies as well, though it stands
above this layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

PAGE = 4096
"""Bytes from which a copy begins on a page. Smaller ones are NumPy's, which is faster."""

LARGE = 1 << 20
"""Bytes from which a copy takes memory that was used before, whose pages are there already."""

RECYCLED: list[Callable[[tuple[int, ...], np.dtype[Any], int], np.ndarray]] = []
"""Gives such memory, if anything does."""

TURNERS: list[Callable[[np.ndarray], np.ndarray | None]] = []
"""Gives large arrays in row-major order sooner than NumPy does, or None, if anything does."""

_ndarray: Any = np.ndarray


def host_copy(data: Any) -> np.ndarray:
    """A copy of an array in row-major order.

    >>> host_copy(np.ones((64, 64))).ctypes.data % 4096
    0
    """
    if data.nbytes < PAGE:
        return np.array(data, order="C")
    if TURNERS and (turned := TURNERS[0](data)) is not None:
        return turned
    found = _on_page(data.shape, data.dtype, data.nbytes)
    np.copyto(found, data)
    return found


def host_moved(data: Any) -> np.ndarray:
    """A new array of NumPy's itself, if it begins where a copy would, or else a copy."""
    begins = data.nbytes < PAGE or data.__array_interface__["data"][0] % PAGE == 0
    return data if begins else host_copy(data)


def host_full(shape: tuple[int, ...], value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """A new array that holds one value everywhere."""
    size = math.prod(shape) * dtype.itemsize
    if size < PAGE:
        return np.full(shape, value, dtype)
    found = _on_page(shape, dtype, size)
    np.copyto(found, value, casting="unsafe")
    return found


def _on_page(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> np.ndarray:
    """A new array of so many bytes that is not initialised."""
    if size >= LARGE and RECYCLED:
        return RECYCLED[0](shape, dtype, size)
    raw = np.empty(size + PAGE - 1, np.uint8)
    start: int = raw.__array_interface__["data"][0]
    return _ndarray(shape, dtype, raw, -start & PAGE - 1)
