"""DLPack of the element types that NumPy's DLPack lacks."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import engine

__all__ = ["engine"]

CODES = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Plain(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Library:
    """Another library's array, which knows some version of DLPack."""

    def __init__(self, x: Any, version: tuple[int, int] | None = (1, 1)) -> None:
        self._x = x
        self._version = version

    def __dlpack__(self, **options: Any) -> Any:
        if self._version is None and options:
            raise TypeError("this version of DLPack has no options")
        if self._version is None:
            return self._x.__dlpack__()
        asked = options.pop("max_version", None)
        return self._x.__dlpack__(**options, max_version=asked and min(asked, self._version))

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


def take(capsule: Any, struct: Any, name: bytes) -> Any:
    """What a consumer does: it takes what is in the capsule, and owns it from then on."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes, rename.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    address = get(capsule, name)
    rename(capsule, USED[name])
    return struct.from_address(address)


# A capsule does not copy its name.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def release(managed: Any) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(ctypes.addressof(managed))


def narrow(dtype: str) -> Any:
    return ts.asarray([[1.5, -2.0, 3.0], [4.0, 0.5, np.inf]], dtype=getattr(ts, dtype))


@pytest.mark.parametrize("dtype", CODES)
def test_a_capsule_with_a_version(dtype: str) -> None:
    x = narrow(dtype) if dtype != "float8_e4m3fn" else narrow("float32").astype(ts.float8_e4m3fn)
    part: Any = x[:, ::2]
    data = part.host
    managed = take(part.__dlpack__(max_version=(1, 1)), Versioned, b"dltensor_versioned")
    assert managed.version[0] == 1
    assert managed.version[1] >= (dtype != "bfloat16")
    assert managed.flags & 1, "the memory is read-only"
    assert not managed.flags & 2, "it is no copy"
    tensor = managed.tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == (*CODES[dtype], 1)
    assert [*tensor.device] == [1, 0]
    assert tensor.ndim == 2
    assert tensor.shape[:2] == [2, 2]
    assert tensor.strides[:2] == [s // data.itemsize for s in data.strides]
    assert tensor.data + tensor.byte_offset == data.ctypes.data
    release(managed)


def test_a_capsule_without_a_version_is_a_copy() -> None:
    x = narrow("bfloat16")
    managed = take(x.__dlpack__(), Plain, b"dltensor")
    assert (managed.tensor.code, managed.tensor.bits) == (4, 16)
    assert managed.tensor.data != x.host.ctypes.data
    release(managed)


def test_what_was_exported_keeps_its_memory() -> None:
    x = narrow("bfloat16")
    data = x.host
    count = sys.getrefcount(data)
    managed = take(x.__dlpack__(max_version=(1, 0)), Versioned, b"dltensor_versioned")
    expected = data.tobytes()
    del x
    gc.collect()
    assert ctypes.string_at(managed.tensor.data, len(expected)) == expected
    assert sys.getrefcount(data) >= count
    release(managed)
    assert sys.getrefcount(data) < count


def test_a_capsule_that_nobody_takes_frees_itself() -> None:
    x = narrow("bfloat16")
    data = x.host
    count = sys.getrefcount(data)
    for version in (None, (1, 1)):
        for _ in range(10):
            x.__dlpack__(max_version=version)
    assert sys.getrefcount(data) == count


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("copy", [None, True])
def test_there_and_back(dtype: str, copy: bool | None) -> None:
    for x in (narrow(dtype), narrow(dtype).T, narrow(dtype)[:, ::2], narrow(dtype)[0, 0]):
        found: Any = ts.from_dlpack(Library(x), copy=copy)
        assert found.dtype is x.dtype
        assert found.shape == x.shape
        assert found.host.tobytes() == x.host.tobytes()
        if copy is None:
            assert found.host.ctypes.data == x.host.ctypes.data
        found = ts.asarray(Library(x))
        assert found.dtype is x.dtype
        assert found.host.tobytes() == x.host.tobytes()


def test_old_libraries() -> None:
    x = narrow("bfloat16")
    for version in (None, (1, 0)):
        found: Any = ts.from_dlpack(Library(x, version))
        assert found.dtype is ts.bfloat16
        assert found.host.tobytes() == x.host.tobytes()
    for version in (None, (1, 0)):
        with pytest.raises(BufferError, match=r"float8_e5m2[^@]*since version 1\.1"):
            ts.from_dlpack(Library(narrow("float8_e5m2"), version))


def test_consumers_that_lack_a_dtype_say_so() -> None:
    # NumPy reads the capsule, and does not know bfloat16.
    with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported dtype"):
        np.from_dlpack(narrow("bfloat16"))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
def test_other_dtypes_pass_as_they_are(dtype: str) -> None:
    x = ts.asarray([0, 1], dtype=getattr(ts, dtype))
    found = ts.from_dlpack(Library(x))
    assert found.dtype is x.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(x))
