"""What the sorts of a GPU mean, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Op, Value
from tessera.ir.scalar import SCALARS
from tessera.schedule import sort_ops
from tessera.schedule.words import PLACE_BITS, Coder, Layout

Array = np.ndarray[Any, Any]


class ArrayCode:
    """Computes words on arrays."""

    def const(self, value: bool | int | float, dtype: DType) -> Array:
        """A constant."""
        return np.asarray(value).astype(dtype.np)

    def map(self, fn: str, *args: Array) -> Array:
        """A row of the scalar table."""
        return SCALARS[fn].evaluate(*args)

    def cast(self, x: Array, dtype: DType) -> Array:
        """A conversion."""
        return cast_array(x, dtype)

    def bitcast(self, x: Array, dtype: DType) -> Array:
        """The same bits as another dtype."""
        return bitcast_array(x, dtype)


def run_sort(op: Op, memory: Mapping[Value, Array]) -> None:
    """Runs one of the ops that a long sort consists of."""
    match op:
        case sort_ops.SortRuns():
            _sort_runs(op, memory)
        case sort_ops.SplitRuns():
            _split_runs(op, memory)
        case sort_ops.SortWords():
            words = memory[op.words]
            dtype = dtype_of(words.dtype)
            is_held = sort_ops.is_held(op.count, dtype, op.register)
            count = op.count if is_held else words.shape[-1] // 2
            words[..., :count].sort(axis=-1)
        case sort_ops.SelectWords():
            found = first_words(memory[op.keys], op.descending)
            memory[op.words][..., : op.until] = found[..., : op.until]
        case sort_ops.OrderZeros():
            _order_zeros(op, memory)
        case _:
            assert isinstance(op, sort_ops.MergeRuns)
            _merge_runs(op, memory)


def _order(words: Sequence[Array], low: int, high: int) -> Array:
    """The order of words along the last axis, from one place to another."""
    return np.lexsort([word[..., low:high] for word in reversed(words)], axis=-1)


def _sort_runs(op: sort_ops.SortRuns, memory: Mapping[Value, Array]) -> None:
    keys = [np.moveaxis(memory[v], op.axis, -1) for v in op.keys]
    count: int = keys[0].shape[-1]
    words = keys
    if not op.packed:
        layout = Layout.of([dtype_of(key.dtype) for key in keys], PLACE_BITS)
        line: Array = np.arange(count, dtype=np.int64)
        place: Array = np.broadcast_to(line, keys[0].shape)
        words = Coder(ArrayCode(), layout, op.descending).pack(keys, place)
    keep = op.keep or op.run
    for k, low in enumerate(range(0, count, op.run)):
        order = _order(words, low, low + op.run)[..., :keep]
        size: int = order.shape[-1]
        for word, target in zip(words, op.words, strict=True):
            found = np.take_along_axis(word[..., low : low + op.run], order, -1)
            memory[target][..., k * keep : k * keep + size] = found
            if op.keep:
                memory[target][..., k * keep + size : (k + 1) * keep] = np.iinfo(found.dtype).max


def _run(op: sort_ops.SplitRuns | sort_ops.MergeRuns, memory: Mapping[Value, Array]) -> int:
    """Places of a run."""
    return op.run or int(memory[op.runs[0]])


def _split_runs(op: sort_ops.SplitRuns, memory: Mapping[Value, Array]) -> None:
    words = [memory[v] for v in op.words]
    count = words[0].shape[-1]
    if count <= op.least:
        return
    run = _run(op, memory)
    for low in range(0, count, 2 * run):
        first = _order(words, low, low + 2 * run) < run
        for start in range(0, first.shape[-1], op.tile):
            at = (low + start) // op.tile
            memory[op.splits][..., at] = first[..., :start].sum(-1)


def _merge_runs(op: sort_ops.MergeRuns, memory: Mapping[Value, Array]) -> None:
    words = [memory[v] for v in op.words]
    count = words[0].shape[-1]
    if count <= op.least:
        return
    both = 2 * _run(op, memory)
    for low in range(0, count, both):
        order = _order(words, low, low + both)
        for word, target in zip(words, op.outputs, strict=True):
            part = word[..., low : low + both]
            memory[target][..., low : low + both] = np.take_along_axis(part, order, -1)


def first_words(keys: Array, descending: bool) -> Array:
    """The words of rows of keys and their places, in order, or the places alone."""
    layout = Layout.of([dtype_of(keys.dtype)], PLACE_BITS)
    line: Array = np.arange(keys.shape[-1], dtype=np.int64)
    coder = Coder(ArrayCode(), layout, descending)
    word, *others = coder.pack([keys], np.broadcast_to(line, keys.shape))
    if others:
        return np.argsort(word, axis=-1, kind="stable").astype(np.uint64)
    return np.sort(word, axis=-1)


def _order_zeros(op: sort_ops.OrderZeros, memory: Mapping[Value, Array]) -> None:
    source, target = [np.moveaxis(memory[v], op.axis, -1) for v in (op.source, op.target)]
    for row in np.ndindex(source.shape[:-1]):
        given, found = source[row], target[row]
        zeros = given[given == 0]
        places = np.flatnonzero(found == 0)
        found[places] = zeros[: len(places)]
