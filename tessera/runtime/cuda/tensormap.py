"""Tensor maps: what a bulk tensor copy (TMA) needs to know of an array, encoded by the driver.

Encoding takes microseconds, and the same arrays come again: maps are cached.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tessera.dtypes import DType
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import cuda_device
from tessera.runtime.cuda.errors import CudaError

MAP_BYTES: Final = 128
_ALIGNMENT = 64
_MOST_MAPS = 1024
_MOST_DIMS = 5
_MOST_STRIDE = 1 << 40
_MOST_EXTENT = 1 << 32
_MOST_BOX = 256
_UNIT = 16

# CUtensorMapDataType by the short name of a dtype; for copies, any type of the right size will do.
_TYPES: Final = {
    "bool": 0, "i8": 0, "u8": 0, "f8e4m3fn": 0, "f8e5m2": 0, "i4": 0, "i16": 1, "u16": 1,
    "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "c64": 4,
}  # fmt: skip
_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS: Final = {0: 0, 64: 1, 128: 2, 256: 3}


class TensorMap:
    """An encoded map.

    Attributes:
        data: its 128 bytes, as a kernel takes them for a parameter.
        address: where these lie.
    """

    __slots__ = ("address", "data")

    def __init__(self, content: bytes) -> None:
        room = np.zeros(MAP_BYTES + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        self.data = room[start : start + MAP_BYTES]
        self.data[:] = np.frombuffer(content, np.uint8)
        self.address: int = self.data.ctypes.data


_Key = tuple[Any, ...]


class TensorMaps:
    """A cache of maps; the ones that were not used for longest go first.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int = _MOST_MAPS) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._maps: OrderedDict[_Key, TensorMap] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(
        self,
        pointer: int,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        *,
        swizzle: int = 0,
        promotion: int = 256,
        device: int = 0,
    ) -> TensorMap:
        """The map of an array and the boxes that are copied of it.

        Dims come in the order of arrays, the contiguous one last; so do those of the box.

        Args:
            pointer: the address on the device.
            dtype: of the elements.
            shape: the extents.
            strides: in elements; the last is 1.
            box: the extents of one copy.
            swizzle: bytes of the swizzle's span: 0, 32, 64 or 128.
            promotion: bytes that the second cache fetches at once: 0, 64, 128 or 256.
            device: the number of the device.

        Raises:
            CudaError: The hardware has no such map.
        """
        key = (pointer, dtype, tuple(shape), tuple(strides), tuple(box), swizzle, promotion)
        with self._lock:
            found = self._maps.get(key)
            if found is not None:
                self._maps.move_to_end(key)
                return found
        found = encode(
            pointer, dtype, shape, strides, box,
            swizzle=swizzle, promotion=promotion, device=device,
        )  # fmt: skip
        with self._lock:
            self._maps[key] = found
            if len(self._maps) > self.limit:
                self._maps.popitem(last=False)
        return found


tensor_maps = TensorMaps()
"""The cache of this process."""


def encode(
    pointer: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    swizzle: int = 0,
    promotion: int = 256,
    device: int = 0,
) -> TensorMap:
    """Encode a map; see `TensorMaps.get`."""
    check(pointer, dtype, shape, strides, box, swizzle, promotion)
    api = driver.api()
    with cuda_device(device):  # the driver asks for a context
        found = _encode(api, pointer, dtype, shape, strides, box, swizzle, promotion)
    return TensorMap(ctypes.string_at(int(found.getPtr()), MAP_BYTES))


def _encode(
    api: Any,
    pointer: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    promotion: int,
) -> Any:
    rank = len(shape)
    # The driver counts dims from the contiguous one on, whose stride it does not take.
    steps = [step * dtype.itemsize for step in reversed(strides[:-1])] or [_UNIT]
    return driver.call(
        "cuTensorMapEncodeTiled",
        api.CUtensorMapDataType(_TYPES[dtype.name]),
        rank,
        pointer,
        [api.cuuint64_t(size) for size in reversed(shape)],
        [api.cuuint64_t(step) for step in steps],
        [api.cuuint32_t(size) for size in reversed(box)],
        [api.cuuint32_t(1)] * rank,
        api.CUtensorMapInterleave(0),
        api.CUtensorMapSwizzle(_SWIZZLES[swizzle]),
        api.CUtensorMapL2promotion(_PROMOTIONS[promotion]),
        api.CUtensorMapFloatOOBfill(0),
        what=f"tensor map of {dtype}[{', '.join(map(str, shape))}] in boxes of {tuple(box)}",
    )


def check(
    pointer: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    promotion: int,
) -> None:
    """Refuse what the hardware has no map for.

    Raises:
        CudaError: It has none; the message says why.
    """
    size = dtype.itemsize
    rules = (
        (1 <= len(shape) <= _MOST_DIMS, f"1 to {_MOST_DIMS} dims"),
        (len(shape) == len(strides) == len(box), "a stride and an extent of the box for each dim"),
        (dtype.name in _TYPES, f"no elements of dtype {dtype}"),
        (swizzle in _SWIZZLES, f"a swizzle of {', '.join(map(str, _SWIZZLES))} bytes"),
        (promotion in _PROMOTIONS, f"a promotion of {', '.join(map(str, _PROMOTIONS))} bytes"),
        (pointer % _UNIT == 0, f"an address that is a multiple of {_UNIT}"),
        (all(0 < n <= _MOST_EXTENT for n in shape), "extents of 1 to 2**32"),
        (tuple(strides[-1:]) == (1,), "a contiguous last dim"),
        (
            all(0 < n * size < _MOST_STRIDE and n * size % _UNIT == 0 for n in strides[:-1]),
            f"strides that are multiples of {_UNIT} bytes, below 2**40",
        ),
        (all(0 < n <= _MOST_BOX for n in box), f"boxes of 1 to {_MOST_BOX} elements a dim"),
        (
            not box or box[-1] * size % _UNIT == 0,
            f"boxes whose last dim is a multiple of {_UNIT} bytes",
        ),
        (
            not box or not swizzle or box[-1] * size <= swizzle,
            "boxes whose last dim is no longer than the swizzle's span",
        ),
    )
    for holds, rule in rules:
        if not holds:
            raise CudaError(
                f"tensor map of {dtype}[{', '.join(map(str, shape))}] with strides "
                f"{tuple(strides)} at {pointer:#x} in boxes of {tuple(box)}, swizzle {swizzle}",
                rule=f"bulk tensor copies take {rule}",
                fix="copy such arrays without tensor maps",
            )
