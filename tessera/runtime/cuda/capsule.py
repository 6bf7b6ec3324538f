"""DLPack capsules of device memory: made, and taken apart.

What frees a tensor that another library has taken is native code: it may be called in any thread,
and while the interpreter ends.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, Kind, dtype_of
from tessera.graph.dlpack import (
    CODES,
    DTYPES,
    Managed,
    ManagedVersioned,
    Tensor,
    minimum_version,
)
from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.cuda.errors import ForeignBufferError
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine

CUDA, CUDA_HOST, CUDA_MANAGED = 2, 3, 13
"""Kinds of device (DLDeviceType)."""

READ_ONLY, IS_COPIED = 1, 2
"""Flags of a tensor with a version."""

_VERSION = (1, 1)
_KINDS = {Kind.INT: 0, Kind.UINT: 1, Kind.FLOAT: 2, Kind.COMPLEX: 5, Kind.BOOL: 6}
_NUMPY_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}


class _Holder:
    """What a tensor that was given away refers to: the memory of its description, and its owner."""

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts


def make_capsule(
    pointer: int,
    device: tuple[int, int],
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    owner: object,
    *,
    versioned: bool,
    flags: int = 0,
) -> Any:
    """A capsule of a tensor.

    Args:
        pointer: the address of its first element.
        device: kind and number.
        dtype: of its elements.
        shape: its extents.
        strides: in elements.
        owner: what keeps its memory alive.
        versioned: whether it is of DLPack 1.0 or later.
        flags: of a tensor with a version.
    """
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*strides)
    managed: Any = ManagedVersioned() if versioned else Managed()
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = flags
    tensor = managed.tensor
    tensor.data = pointer
    tensor.device_type, tensor.device_id = device
    tensor.ndim = len(shape)
    tensor.code, tensor.bits, tensor.lanes = dtype_code(dtype), dtype.bits, 1
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    holder = _Holder((managed, extents, steps, owner))
    managed.manager = id(holder)
    addresses = _code().addresses
    managed.deleter = addresses["delete_versioned" if versioned else "delete_plain"]
    # The tensor's own reference, which the deleter drops.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
    return _maker()(ctypes.addressof(managed), versioned)


def dtype_code(dtype: DType) -> int:
    """The code of a dtype (DLDataTypeCode).

    Raises:
        ForeignBufferError: DLPack does not have it in the form in which arrays have it.
    """
    code = CODES.get(dtype)
    if code is None and dtype.bits >= 8:
        code = _KINDS.get(dtype.kind)
    if code is None:
        raise ForeignBufferError(
            f"__dlpack__: an array of dtype {dtype.full_name}",
            rule="DLPack has no such dtype",
            fix="convert it to `ts.int8` first",
        )
    return code


def version_is_enough(dtype: DType, max_version: tuple[int, int] | None) -> bool:
    """Whether a consumer of this version knows the dtype."""
    least = minimum_version(dtype)
    return least is None or least <= (max_version or (0, 0))


_DELETER: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ImportedTensor:
    """A tensor that was taken out of another library's capsule; freed with this object.

    Attributes:
        pointer: the address of its first element.
        device: kind and number.
        dtype: of its elements.
        shape: its extents.
        strides: in elements; None for row-major order.
        read_only: whether its owner wants nobody to write to it.
    """

    def __init__(self, capsule: Any) -> None:
        self._managed: Any = None
        versioned = bool(_is_valid(capsule, _VERSIONED_NAME))
        name = _VERSIONED_NAME if versioned else _PLAIN_NAME
        if not versioned and not _is_valid(capsule, name):
            raise ForeignBufferError(
                "from_dlpack: __dlpack__ gave no capsule, or one that was used already",
                rule="a capsule can be taken once",
            )
        kind: Any = ManagedVersioned if versioned else Managed
        managed = kind.from_address(_get_pointer(capsule, name))
        if versioned and managed.major != _VERSION[0]:
            raise ForeignBufferError(
                f"from_dlpack: the tensor is of DLPack {managed.major}.{managed.minor}",
                rule=f"DLPack {_VERSION[0]} is known here",
            )
        tensor = managed.tensor
        self.dtype: DType = _dtype(tensor)
        self.pointer: int = (tensor.data or 0) + int(tensor.byte_offset)
        self.device: tuple[int, int] = (tensor.device_type, tensor.device_id)
        self.shape: tuple[int, ...] = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
        has_strides = bool(tensor.strides) and tensor.ndim > 0
        steps = tuple(tensor.strides[: tensor.ndim]) if has_strides else None
        self.strides: tuple[int, ...] | None = steps
        self.read_only: bool = versioned and bool(managed.flags & READ_ONLY)
        # From here on the tensor is ours to free.
        _set_name(capsule, _USED_VERSIONED_NAME if versioned else _USED_PLAIN_NAME)
        self._managed = managed

    def __del__(
        self, _call: Any = _DELETER, _ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        managed = self._managed
        if managed is not None and managed.deleter and not _ending():
            self._managed = None
            _call(managed.deleter)(ctypes.addressof(managed))


def _dtype(tensor: Tensor) -> DType:
    code, bits = tensor.code, tensor.bits
    special = DTYPES.get((code, bits, tensor.lanes))
    if special is not None:
        return special
    try:
        if tensor.lanes != 1 or bits % 8:
            raise TypeError
        return dtype_of(np.dtype("?" if code == 6 else f"{_NUMPY_KINDS[code]}{bits // 8}"))
    except (KeyError, TypeError):  # DTypeError too
        raise ForeignBufferError(
            f"from_dlpack: elements of type code {code}, {bits} bits, {tensor.lanes} lanes",
            rule="there is no such dtype here",
            fix="convert the array in the other library",
        ) from None


_Function = Callable[..., Any]


def _api(name: str, result: Any, *arguments: Any) -> _Function:
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = result, arguments
    return function


_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_get_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)

_PLAIN_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"


def _forever(name: bytes) -> int:
    """The address of a string that stays: capsules only point to their names."""
    text = ctypes.create_string_buffer(name)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
    return ctypes.addressof(text)


_USED_PLAIN_NAME = _forever(b"used_dltensor")
_USED_VERSIONED_NAME = _forever(b"used_dltensor_versioned")


def _deleter(name: str, offset: int) -> str:
    """Code that drops the reference of a tensor to its holder, unless Python is gone."""
    return f"""
define void @{name}(ptr %managed) nounwind {{
entry:
  %alive = call i32 @Py_IsInitialized()
  %gone = icmp eq i32 %alive, 0
  br i1 %gone, label %leave, label %drop

drop:
  %state = call i32 @PyGILState_Ensure()
  %holder.at = getelementptr i8, ptr %managed, i64 {offset}
  %holder = load ptr, ptr %holder.at
  call void @Py_DecRef(ptr %holder)
  call void @PyGILState_Release(i32 %state)
  br label %leave

leave:
  ret void
}}
"""


def _offset(structure: Any) -> int:
    return int(structure.manager.offset)


_TEXT = (
    _deleter("delete_plain", _offset(Managed))
    + _deleter("delete_versioned", _offset(ManagedVersioned))
    + """
@plain = private constant [9 x i8] c"dltensor\\00"
@versioned = private constant [19 x i8] c"dltensor_versioned\\00"

define internal void @destroy_plain(ptr %capsule) nounwind {
entry:
  %unused = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @plain)
  %used = icmp eq i32 %unused, 0
  br i1 %used, label %leave, label %free

free:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @plain)
  call void @delete_plain(ptr %managed)
  br label %leave

leave:
  ret void
}

define internal void @destroy_versioned(ptr %capsule) nounwind {
entry:
  %unused = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @versioned)
  %used = icmp eq i32 %unused, 0
  br i1 %used, label %leave, label %free

free:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @versioned)
  call void @delete_versioned(ptr %managed)
  br label %leave

leave:
  ret void
}

define ptr @make(ptr %managed, i32 %kind) nounwind {
entry:
  %is.versioned = icmp ne i32 %kind, 0
  %name = select i1 %is.versioned, ptr @versioned, ptr @plain
  %destroy = select i1 %is.versioned, ptr @destroy_versioned, ptr @destroy_plain
  %capsule = call ptr @PyCapsule_New(ptr %managed, ptr %name, ptr %destroy)
  ret ptr %capsule
}

declare i32 @Py_IsInitialized()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare void @Py_DecRef(ptr)
declare i32 @PyCapsule_IsValid(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyCapsule_New(ptr, ptr, ptr)
"""
)


@functools.cache
def _code() -> Loaded:
    loaded = load(Source(_TEXT, machine("host"), "tessera.cuda.capsule"), default_cache())
    # Other libraries call it as long as they have tensors of ours, also at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return loaded


@functools.cache
def _maker() -> Any:
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
        _code().addresses["make"]
    )
