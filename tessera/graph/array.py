"""`ArrayBase`: what arrays and tracers have in common, and `Array`: a concrete, immutable array.

The operators live in `graph/array_api.py`, which fills in `ArrayBase`'s methods through
`operators`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.errors import ImmutableError
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType


class ArrayBase:
    """Operators and attributes shared by `Array` and tracers (completed by `graph/array_api.py`).
    """

    __slots__ = ()
    __array_priority__ = 1000

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        raise NotImplementedError

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape; under a trace with symbolic dims, entries may be expressions."""
        return self.type.shape

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.type.shape)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ImmutableError(
            "an array cannot be changed in place",
            rule="arrays are immutable",
            fix="build a new one, for instance with `ts.where` or `x.at[index].set(value)`",
        )


_DTYPES: dict[np.dtype[Any], DType] = {}


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType:
    """The dtype object for a NumPy dtype; cached."""
    found = _DTYPES.get(dtype)
    if found is None:
        found = dtype_of(dtype)
        _DTYPES[dtype] = found
    return found


class Array(ArrayBase):
    """A concrete n-dimensional array on a device. Immutable.

    It speaks the array API standard, `__array__`, the buffer protocol and DLPack. Make one with
    `ts.asarray` and the other creation functions; the constructor is internal.
    """

    __slots__ = ("__weakref__", "_data", "_pointer", "_type")

    _data: np.ndarray
    _type: TensorType | None
    _pointer: int

    def __init__(self, data: np.ndarray, type: TensorType | None = None) -> None:
        _set(self, "_data", data)
        _set(self, "_type", type)
        _set(self, "_pointer", 0)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ImmutableError(
            f"attribute {name!r} of an array cannot be set",
            rule="arrays are immutable",
            fix="build a new array",
        )

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        found = self._type
        if found is None:
            found = TensorType(self._data.shape, dtype_from_numpy(self._data.dtype))
            _set(self, "_type", found)
        return found

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtype_from_numpy(self._data.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._data.ndim

    @property
    def host(self) -> np.ndarray:
        """The elements, which nobody may write to."""
        return self._data

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        found = self._pointer
        if not found:
            found = self._data.__array_interface__["data"][0]
            _set(self, "_pointer", found)
        return found

    def contiguous(self) -> Array:
        """This array, or a row-major copy of it."""
        data = self._data
        return (
            self
            if data.flags.c_contiguous and data.flags.aligned
            else Array(np.ascontiguousarray(data), self._type)
        )


_set = object.__setattr__
