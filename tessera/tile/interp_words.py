"""What memory holds whose rows are sorted, or from which the first are selected, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.verify import fail
from tessera.schedule.sorting import first_words
from tessera.tile.entry_ops import SelectWords, SortWords
from tessera.tile.types import POISON

if TYPE_CHECKING:
    import numpy.typing as npt

    from tessera.tile.interp import Interpreter

    Array = npt.NDArray[Any]


def _sort_words(s: Interpreter, op: SortWords) -> None:
    words = _rows(s, op, op.words, op.rows, op.room)
    _put(words, np.sort(words[:, : s.dim(op.count)])[:, : s.dim(op.until)])


def _select_words(s: Interpreter, op: SelectWords) -> None:
    found = first_words(_rows(s, op, op.keys, op.rows, op.count), op.descending)
    _put(_rows(s, op, op.words, op.rows, op.room), found[:, : op.until])


def _rows(s: Interpreter, op: Op, value: Value, *dims: Dim) -> Array:
    memory, shape = s.values[value], [s.dim(n) for n in dims]
    if math.prod(shape) > memory.data.size:
        raise fail(op, f"{shape[0]} rows in {memory.name}, which has {memory.data.size} elements")
    return memory.data[: math.prod(shape)].reshape(shape)


def _put(words: Array, found: Array) -> None:
    """Writes what is asked for. All else, and what is beside the words, may be anything."""
    words.view(np.uint8)[...] = POISON
    words[:, : found.shape[1]] = found


RULES: Mapping[type[Op], Callable[..., None]] = {
    SortWords: _sort_words,
    SelectWords: _select_words,
}
