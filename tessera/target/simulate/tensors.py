"""Which bytes a bulk or tensor copy moves: places in shared memory beside places outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.dtypes import DType
from tessera.target import gpu_ops as g
from tessera.target.simulate.access import locate
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.state import Array, Pointer, Threads

SHARED_ALIGN = 128
"""What the address of a box in shared memory is a multiple of."""


@dataclass(frozen=True, eq=False)
class TensorMap:
    """What a tensor map describes: a tensor in global memory, and how boxes of it are copied.

    Attributes:
        array: the memory, from the tensor's first element on.
        dtype: of its elements.
        shape: extents, fastest first.
        strides: bytes from one element to the next, fastest first; the first is the itemsize.
        box: extents of a box, fastest first.
        swizzle: 0, 32, 64 or 128 bytes.
    """

    array: Array
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


@dataclass(frozen=True, slots=True)
class Box:
    """Bytes that one thread copies.

    Attributes:
        shared: their addresses in shared memory.
        memory: the global memory.
        outer: their addresses in it, -1 for what lies outside of the tensor.
    """

    shared: Array
    memory: Memory
    outer: Array


def boxes(s: Threads, op: g.BulkLoad | g.BulkStore | g.TensorLoad | g.TensorStore) -> list[Box]:
    """What each active thread copies."""
    if isinstance(op, (g.TensorLoad, g.TensorStore)):
        return _tensor(s, op)
    inner, outer = (op.dst, op.src) if isinstance(op, g.BulkLoad) else (op.src, op.dst)
    in_offset, out_offset = op.dst_offset, op.src_offset
    if isinstance(op, g.BulkStore):
        in_offset, out_offset = out_offset, in_offset
    size = s.full(s.values[op.size].astype(np.int64))
    chosen = s.positions()
    wrong = (size[chosen] <= 0) | (size[chosen] % 16 != 0)
    if wrong.any():
        k = int(chosen[np.flatnonzero(wrong)[0]])
        raise s.fail(op, f"{int(size[k])} bytes are no positive multiple of 16", k)
    found: list[Box] = []
    pointer: Pointer = s.values[outer]
    shared: Pointer = s.values[inner]
    offsets = [s.full(s.values[v].astype(np.int64)) for v in (in_offset, out_offset)]
    for k in chosen.tolist():
        one, count = np.array([k]), int(size[k])
        start = int(locate(s, op, shared, offsets[0], one, count, 16)[0])
        other = int(locate(s, op, pointer, offsets[1], one, count, 16)[0])
        line = np.arange(count)
        found.append(Box(start + line, pointer.memory, other + line))
    return found


def _tensor(s: Threads, op: g.TensorLoad | g.TensorStore) -> list[Box]:
    tensor: TensorMap = s.values[op.map]
    _check_map(s, op, tensor)
    if s.early:
        raise s.fail(op, "a dependent kernel touches memory before grid_wait", 0)
    pointer: Pointer = s.values[op.dst if isinstance(op, g.TensorLoad) else op.src]
    offset = s.values[op.dst_offset if isinstance(op, g.TensorLoad) else op.src_offset]
    coords = [s.full(s.values[v]).astype(np.int64) for v in op.coords]
    memory = s.launch.mapped[id(tensor.array)]
    size = int(np.prod(op.box)) * op.dtype.itemsize
    found: list[Box] = []
    for k in s.positions().tolist():
        at = s.full(offset.astype(np.int64))
        start = int(locate(s, op, pointer, at, np.array([k]), size, SHARED_ALIGN)[0])
        outer = _outer(tensor, [int(c[k]) for c in coords])
        if outer.size and outer.max() >= memory.data.size:
            raise s.fail(op, f"the tensor map reaches beyond {memory.name}", k)
        found.append(Box(swizzled(start + np.arange(size), op.swizzle), memory, outer))
    return found


def _outer(tensor: TensorMap, start: list[int]) -> Array:
    """The addresses of a box's bytes, fastest first; -1 outside of the tensor."""
    at: Array = np.zeros(1, np.int64)
    inside = np.ones(1, np.bool_)
    for first, count, extent, stride in zip(
        start, tensor.box, tensor.shape, tensor.strides, strict=True
    ):
        line = np.arange(first, first + count)
        at = (line * stride)[:, None] + at
        inside = ((line >= 0) & (line < extent))[:, None] & inside
        at, inside = at.reshape(-1), inside.reshape(-1)
    # The first dim varies fastest.
    places = at[:, None] + np.arange(tensor.dtype.itemsize)
    return np.where(inside[:, None], places, -1).reshape(-1)


def swizzled(at: Array, swizzle: int) -> Array:
    """Addresses in shared memory as the copy engine permutes them."""
    return at ^ ((at >> 7) & (swizzle // 16 - 1)) << 4 if swizzle else at


def _check_map(s: Threads, op: g.TensorLoad | g.TensorStore, tensor: TensorMap) -> None:
    position = int(s.positions()[0])
    stated = (op.box, op.dtype, op.swizzle)
    if stated != (tensor.box, tensor.dtype, tensor.swizzle):
        text = f"box {list(tensor.box)} of {tensor.dtype}, swizzle {tensor.swizzle}"
        raise s.fail(op, f"the tensor map says {text}", position)
    row = op.box[0] * op.dtype.itemsize
    if row % 16 or (op.swizzle and row > op.swizzle):
        raise s.fail(op, f"rows of {row} bytes with a swizzle of {op.swizzle}", position)
    if tensor.strides[0] != op.dtype.itemsize or any(n % 16 for n in tensor.strides[1:]):
        raise s.fail(op, f"strides {list(tensor.strides)} are no multiples of 16 bytes", position)
