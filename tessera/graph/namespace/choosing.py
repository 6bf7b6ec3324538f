"""The elements of large arrays where a mask holds, outside of any trace.

How many there are is counted first; then a program knows where each one goes. One for which the
mask does not hold is written behind the last place: NumPy's loop asks at each element, and a
processor guesses the answers, which takes four times as long where every other guess is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.dtypes import bool_, default_index, int32
from tessera.graph.array import READERS, Array, view_of
from tessera.graph.device import CPU, default_device
from tessera.graph.namespace.arguments import spread
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.cumulative import cumsum
from tessera.graph.ops.gather import Combine, IndexMode, scatter
from tessera.graph.ops.reduce import sum_
from tessera.graph.shortcut import composed, one_program

MANY = 1 << 14
"""Elements from which it is worth it."""

RARE = 10
"""Where fewer than one of so many is chosen, most guesses are right."""

_NARROW = 1 << 31


def chosen(x: Array, mask: Array) -> Array | None:
    """The elements of a large array on the host where a mask of its shape holds; None where NumPy
    finds them in less time."""
    data, which = x.storage, mask.storage
    if not isinstance(data, np.ndarray) or not isinstance(which, np.ndarray):
        return None
    if data.shape != which.shape or data.size < MANY or mask.dtype is not bool_:
        return None
    # Who is told what happens sees programs that do not depend on elements.
    if READERS or default_device() is not CPU:
        return None
    flat = Array(mask.contiguous.reshape(-1))
    count = int(_count(flat).host[()])
    if count * RARE < data.size:
        return None
    room = Array(np.empty(count + 1, data.dtype))
    found = _compressed(room, Array(x.contiguous.reshape(-1)), flat, data.size < _NARROW)
    return view_of(found.storage[:count])


@composed
def _count(mask: Any) -> Any:
    return sum_(ops.cast(mask, default_index), (0,))


@one_program
@composed
def _compressed(room: Any, x: Any, mask: Any, is_narrow: bool) -> Any:
    """The elements where a mask holds, and one of the others at the end."""
    dtype = int32 if is_narrow else default_index
    last = spread(size_of([room.shape[0] - 1], dtype), mask.shape)
    order = ops.sub(cumsum(ops.cast(mask, dtype), 0), 1)
    at = ops.select(mask, order, last)
    # What stands at the last place in the end is all the same.
    return scatter(room, x, [at], [0], Combine.SET, IndexMode.PROMISE, unique=True)
