"""Copies of NumPy's arrays, in memory that begins where compiled code likes it.

`runtime/memory.py` says why; it gives results memory, and stands above this layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PAGE = 4096
"""Bytes from which a copy begins on a page. Smaller ones are NumPy's, which is faster."""

_ndarray: Any = np.ndarray


def host_copy(data: Any) -> np.ndarray:
    """A copy of an array in row-major order.

    >>> host_copy(np.ones((64, 64))).ctypes.data % 4096
    0
    """
    if data.nbytes < PAGE:
        return np.array(data, order="C")
    raw = np.empty(data.nbytes + PAGE - 1, np.uint8)
    start: int = raw.__array_interface__["data"][0]
    found = _ndarray(data.shape, data.dtype, raw, -start & PAGE - 1)
    np.copyto(found, data)
    return found
