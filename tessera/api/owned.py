"""Which donated arguments nobody but the call has: only their memory is written to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tessera.graph.array import Array
from tessera.runtime.memory import is_all_its_own


def owned(leaves: Sequence[Any], inputs: Sequence[Any], donated: Iterable[int]) -> list[int]:
    """Which donated inputs nobody else can see: no view, no buffer, no other argument.

    The caller has no references to the inputs but those in `inputs`.

    Args:
        leaves: the arrays.
        inputs: the elements of each, in row-major order.
        donated: positions of those that are donated.
    """
    return [
        k
        for k in donated
        if _references(leaves[k], inputs, k) == _EXPECTED and is_all_its_own(inputs[k])
    ]


def _references(x: Array, inputs: Sequence[Any], k: int) -> int:
    """References to the elements besides those of the array itself, in the way of counting."""
    data = inputs[k]
    return sys.getrefcount(data) - (x.storage is data) - (x.prepared is data)


def _expected() -> int:
    x = Array(np.empty(1))
    return _references(x, [x.storage], 0)


_EXPECTED = _expected()
