"""What Python and other libraries ask of a concrete array: printing, conversion to numbers, NumPy,
the buffer protocol, DLPack, pickling.

Nobody outside gets memory that can be written to, as arrays are immutable: views are read-only, and
what cannot be told so is given a copy, but for consumers of old DLPack that say `copy=False`.
"""

from __future__ import annotations

import ctypes
import operator
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.dtypes import DType, dtype_of
from tessera.errors import DTypeError, LeafError, ShapeError, TesseraError, api_boundary
from tessera.graph import dlpack
from tessera.graph.remote import Remote
from tessera.ir import loc
from tessera.ir.html import show_array

if TYPE_CHECKING:
    from tessera.graph.array import Array


class RankError(ShapeError, TypeError):
    """An array has the wrong number of dims for what Python asks of it."""


class ExportError(TesseraError, BufferError):
    """An array cannot be handed to another library in the way that it asks for."""


class _Writable:
    """An array as NumPy takes it for one whose memory can be written to."""

    def __init__(self, data: np.ndarray) -> None:
        self._owner = data
        found = dict(data.__array_interface__)
        self.__array_interface__ = {**found, "data": (found["data"][0], False)}


class HostProtocols:
    """The protocols of a concrete array. Most want the elements in the host's memory: if they are
    on another device they are copied, once they are computed.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def host(self) -> np.ndarray: ...
        @property
        def storage(self) -> np.ndarray | Remote: ...

    # --- numbers ------------------------------------------------------------------------------

    @api_boundary
    def item(self) -> bool | int | float | complex:
        """The only element, as a Python number."""
        if self.storage.size != 1:
            raise self._rank_error("item()", "an array with one element", None)
        return self.host.reshape(()).item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.host.tolist()

    @api_boundary
    def __bool__(self) -> bool:
        return bool(self._scalar("bool()", "use `ts.any(x)` or `ts.all(x)`"))

    @api_boundary
    def __int__(self) -> int:
        return int(self._scalar("int()", "use `x.item()` if it has one element"))

    @api_boundary
    def __float__(self) -> float:
        return float(self._scalar("float()", "use `x.item()` if it has one element"))

    @api_boundary
    def __complex__(self) -> complex:
        return complex(self._scalar("complex()", "use `x.item()` if it has one element"))

    @api_boundary
    def __index__(self) -> int:
        found = self._scalar("use as a Python integer", None)
        if not dtype_of(self.storage.dtype).is_integer:
            raise DTypeError(
                f"use as a Python integer of an array of dtype {self.storage.dtype.name}",
                loc=loc.current(),
                rule="an index is an integer",
            )
        return operator.index(found)

    def _scalar(self, what: str, fix: str | None) -> Any:
        if self.storage.ndim:
            raise self._rank_error(what, "an array without dims", fix)
        return self.host.item()

    def _rank_error(self, what: str, wanted: str, fix: str | None) -> RankError:
        return RankError(
            f"{what} of an array of type {self._type_text()}",
            loc=loc.current(),
            rule=f"it takes {wanted}",
            fix=fix,
        )

    def _type_text(self) -> str:
        data = self.storage
        return f"{dtype_of(data.dtype)}[{', '.join(map(str, data.shape))}]"

    @api_boundary
    def __len__(self) -> int:
        data = self.storage
        if not data.ndim:
            raise self._rank_error("len()", "an array with a dim", None)
        return data.shape[0]

    # --- text ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        data = self.host
        dtype = dtype_of(data.dtype)
        text = np.array2string(_printable(data, dtype), separator=", ", prefix="Array(")
        shape = f", shape={data.shape}" if not data.size and data.shape != (0,) else ""
        where = f", device={self.storage.device}" if isinstance(self.storage, Remote) else ""
        return f"Array({text}{shape}, dtype={dtype.full_name}{where})"

    def _repr_html_(self) -> str:
        """What a notebook shows: dtype, shape, device and some numbers."""
        data = self.host
        dtype = dtype_of(data.dtype)
        device = self.storage.device if isinstance(self.storage, Remote) else "cpu"
        title = f"{dtype}[{', '.join(map(str, data.shape))}] on {device}"
        return show_array(title, _printable(data, dtype))

    def __str__(self) -> str:
        data = self.host
        return str(_printable(data, dtype_of(data.dtype)))

    @api_boundary
    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if not self.storage.ndim:
            return format(self.host.item(), spec)
        raise self._rank_error(f"the format {spec!r}", "an array without dims", "use `str(x)`")

    # --- NumPy --------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        data = self.host
        if copy is False and data is not self.storage:
            raise ValueError("an array on another device has no NumPy array without a copy")
        if copy or (dtype is not None and np.dtype(dtype) != data.dtype):
            return np.array(data, dtype=dtype, copy=copy)
        view = data.view()
        view.flags.writeable = False
        return view

    @api_boundary
    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise LeafError(
                f"__array_namespace__: version {api_version!r}",
                loc=loc.current(),
                rule="the namespace follows the standard 2024.12",
            )
        return sys.modules["tessera"]

    # --- other libraries ----------------------------------------------------------------------

    # Before Python 3.12 the buffer is NumPy's, with NumPy's `ValueError` for other dtypes.
    @api_boundary
    def __buffer__(self, flags: int, /) -> memoryview:
        data: Any = self.storage
        dtype = dtype_of(data.dtype)
        if isinstance(data, Remote):
            raise ExportError(
                f"the buffer of an array on {data.device}",
                loc=loc.current(),
                rule="the buffer protocol is for the host's memory",
                fix="copy it to the host first, as with `np.asarray(x)`",
            )
        if not _is_numpy_type(dtype):
            raise ExportError(
                f"the buffer of an array of dtype {dtype.full_name}",
                loc=loc.current(),
                rule="the buffer protocol has no such dtype",
                fix="take the bytes, `np.asarray(x).view(np.uint8)`, or convert the array first",
            )
        return memoryview(data).toreadonly()

    def __dlpack_device__(self) -> tuple[int, int]:
        data = self.storage
        if isinstance(data, Remote):
            return data.backend.dlpack_device(data)
        return data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self.storage
        if not isinstance(data, Remote):
            raise AttributeError("an array on the host has no '__cuda_array_interface__'")
        return data.backend.interface(data)

    @api_boundary
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        stored = self.storage
        if isinstance(stored, Remote):
            options = {"stream": stream, "max_version": max_version, "copy": copy}
            return stored.backend.export_dlpack(stored, {**options, "dl_device": dl_device})
        data, dtype = stored, dtype_of(stored.dtype)
        if not _is_numpy_type(dtype):
            data = self._unsigned(dtype, max_version)
        capsule = self._capsule(data, stream, max_version, dl_device, copy)
        return capsule if data is stored else dlpack.set_dtype(capsule, dtype)

    def _unsigned(self, dtype: DType, max_version: tuple[int, int] | None) -> np.ndarray:
        """The elements as NumPy can export them in place of those of a dtype that it lacks."""
        least = dlpack.minimum_version(dtype)
        if least is None or least > (max_version or (0, 0)):
            raise ExportError(
                f"__dlpack__: an array of dtype {dtype.full_name}",
                loc=loc.current(),
                rule="DLPack has no such dtype"
                if least is None
                else f"DLPack has this dtype since version {least[0]}.{least[1]}, and the consumer "
                f"asks for {'an older one' if max_version is None else max_version}",
                fix=f"convert it to `ts.{'int8' if dtype.is_integer else 'float32'}` first",
            )
        return dlpack.as_unsigned(self.host)

    @staticmethod
    def _capsule(
        data: np.ndarray,
        stream: Any,
        max_version: tuple[int, int] | None,
        dl_device: tuple[Any, int] | None,
        copy: bool | None,
    ) -> Any:
        if max_version is None or max_version[0] < 1:
            # The old form of DLPack cannot say that memory is read-only, so its consumer gets
            # memory of its own, unless it insists.
            given: Any = np.asarray(_Writable(data)) if copy is False else np.array(data)
            return given.__dlpack__(stream=stream, dl_device=dl_device)
        shared: Any = np.array(data) if copy else data
        return shared.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    # --- copies -------------------------------------------------------------------------------

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, tuple[np.ndarray]]:
        return _rebuild, (np.asarray(self),)


def _is_numpy_type(dtype: DType) -> bool:
    """Whether NumPy itself has the dtype. Its kind does not say so: that of float8_e5m2 is "f"."""
    return issubclass(dtype.np.type, (np.number, np.bool_))


def _printable(data: np.ndarray, dtype: DType) -> np.ndarray:
    """The elements in a dtype that NumPy prints well."""
    if _is_numpy_type(dtype):
        return data
    return data.astype(np.float32 if dtype.is_float else np.int8)


def _rebuild(data: np.ndarray) -> Array:
    from tessera.graph.array import Array

    return Array(data)


# --- the buffer protocol before Python 3.12 ---------------------------------------------------


class _BufferProcs(ctypes.Structure):
    _fields_ = (("getbuffer", ctypes.c_void_p), ("releasebuffer", ctypes.c_void_p))


_WORD = ctypes.sizeof(ctypes.c_void_p)

# PyTypeObject.tp_as_buffer: the object's head with its size (3 words), then 15 words up to it.
_AS_BUFFER = 20 * _WORD

# PickleBuffer: the head (2 words), then a Py_buffer, whose second word is the exporting object.
_EXPORTER = 3 * _WORD


def install_buffer(cls: type, sample: Array) -> bool:
    """Gives a class the buffer protocol, where Python classes cannot define it (before 3.12).

    A `pickle.PickleBuffer` holds a reference to an object, and asks that object for each buffer. If
    the reference to the NumPy array lies at the same place in an array as in a PickleBuffer, its C
    function serves arrays as well. All that this needs to hold is checked first; without it, arrays
    have no buffer protocol.

    Args:
        cls: the class, with a slot `_data`.
        sample: an instance, to check the result with.

    Returns:
        Whether the class has the protocol now.
    """
    if sys.version_info >= (3, 12):
        return True
    if sys.implementation.name != "cpython" or not _layout_is_known(sample):
        return False
    own, theirs = _procs(cls), _procs(pickle.PickleBuffer)
    if own is None or theirs is None or own.getbuffer:
        return False
    own.getbuffer = theirs.getbuffer
    if _works(sample):
        return True
    own.getbuffer = None
    return False


def _layout_is_known(sample: Any) -> bool:
    """Whether the references lie where they are expected: in a PickleBuffer and in an array."""
    held = bytearray(8)
    places = ((pickle.PickleBuffer(held), held), (sample, sample.host))
    return all(
        type(holder).__basicsize__ >= _EXPORTER + _WORD
        and ctypes.c_void_p.from_address(id(holder) + _EXPORTER).value == id(target)
        for holder, target in places
    )


def _procs(cls: type) -> _BufferProcs | None:
    address = ctypes.c_void_p.from_address(id(cls) + _AS_BUFFER).value
    return None if address is None else _BufferProcs.from_address(address)


def _works(sample: Any) -> bool:
    try:
        view = memoryview(sample)
    except (TypeError, BufferError, ValueError):
        return False
    return view.readonly and view.obj is sample.host and view.tolist() == sample.host.tolist()
