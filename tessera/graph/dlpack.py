"""DLPack for the element types that NumPy's DLPack lacks: bfloat16 and the 8-bit floats.

NumPy exports and imports unsigned integers of the same width instead, and the type code in the
managed tensor is exchanged on the way. So NumPy keeps the memory alive, and says whether it may be
written to; nothing of either depends on the type code.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tessera.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2

_UINT = 1
CODES: dict[DType, int] = {bfloat16: 4, float8_e4m3fn: 10, float8_e5m2: 12}
"""DLDataTypeCode of those."""
DTYPES: dict[tuple[int, int, int], DType] = {(c, d.bits, 1): d for d, c in CODES.items()}
"""By code, bits and lanes."""

_UNSIGNED = {8: np.uint8, 16: np.uint16}


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )
    data: int | None
    device_type: int
    device_id: int
    ndim: int
    code: int
    bits: int
    lanes: int
    shape: Any
    strides: Any
    byte_offset: int


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("tensor", Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )
    tensor: Tensor
    manager: int | None
    deleter: int | None


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )
    major: int
    minor: int
    manager: int | None
    deleter: int | None
    flags: int
    tensor: Tensor


def minimum_version(dtype: DType) -> tuple[int, int] | None:
    """The version of DLPack that has the dtype, where NumPy's has not; None if none has it."""
    if dtype not in CODES:
        return None
    # Old consumers know bfloat16, which is older than the versions.
    return (0, 0) if dtype is bfloat16 else (1, 1)


def as_unsigned(data: np.ndarray) -> Any:
    """The same memory as unsigned integers, which NumPy exports."""
    return data.view(_UNSIGNED[data.dtype.itemsize * 8])


def set_dtype(capsule: Any, dtype: DType) -> Any:
    """States the dtype in a capsule that NumPy made of `as_unsigned`."""
    tensor, managed = _open(capsule)
    tensor.code = CODES[dtype]
    if managed is not None:
        managed.minor = max(managed.minor, (minimum_version(dtype) or (0, 0))[1])
    return capsule


class Importable:
    """What NumPy is given to import in place of another library's array.

    Args:
        source: the other library's array.

    Attributes:
        dtype: the dtype that the elements have, if it is one that NumPy lacks.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.dtype: DType | None = None

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("max_version") is not None:
            options["max_version"] = (1, 1)
        capsule = self.source.__dlpack__(**options)
        if _name(capsule) is None:
            return capsule
        tensor, _ = _open(capsule)
        self.dtype = DTYPES.get((tensor.code, tensor.bits, tensor.lanes))
        if self.dtype is not None:
            tensor.code = _UINT
        return capsule


_VERSIONED, _PLAIN = b"dltensor_versioned", b"dltensor"


def _name(capsule: Any) -> bytes | None:
    """The name of a capsule that nobody has used yet."""
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.argtypes, is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    return next((name for name in (_VERSIONED, _PLAIN) if is_valid(capsule, name)), None)


def _open(capsule: Any) -> tuple[Tensor, ManagedVersioned | None]:
    """The tensor in a capsule, and what holds it if that has a version."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    name = _name(capsule)
    assert name is not None
    address: int = get(capsule, name)
    if name == _PLAIN:
        return Tensor.from_address(address), None
    managed = ManagedVersioned.from_address(address)
    return managed.tensor, managed
