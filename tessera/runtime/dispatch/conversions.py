"""What native code does with arguments that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.runtime.dispatch import words as w

_CONVERSIONS = {
    (float, np.dtype(np.float64)): w.AS_IT_IS,
    (float, np.dtype(np.float32)): w.TO_FLOAT32,
    (int, np.dtype(np.int64)): w.AS_IT_IS,
    (int, np.dtype(np.int32)): w.TO_INT32,
    (int, np.dtype(np.float32)): w.INT_TO_FLOAT32,
    (int, np.dtype(np.float64)): w.INT_TO_FLOAT64,
    (bool, np.dtype(np.bool_)): w.AS_IT_IS,
}


def conversions(
    numbers: Sequence[type | None], dtypes: Sequence[np.dtype[Any]]
) -> list[int] | None:
    """What is done with the leaves that are numbers; None if that is not known.

    Args:
        numbers: from `key_of`.
        dtypes: what the program reads.
    """
    found: list[int] = []
    for kind, dtype in zip(numbers, dtypes, strict=True):
        code = w.AS_IT_IS if kind is None else _CONVERSIONS.get((kind, dtype))
        if code is None:
            return None
        found.append(code)
    return found
