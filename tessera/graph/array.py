"""`ArrayBase`: what arrays and tracers have in common, and `Array`: a concrete, immutable array.

The operators and methods that bind ops are installed by `graph/namespace/operators.py`; the
protocols of Python and of other libraries are in `graph/array_protocols.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tessera.dtypes import DType, DTypeLike, dtype_of
from tessera.errors import (
    ImmutableError,
    LeafError,
    UnhashableError,
    api_boundary,
    hide_own_frames,
)
from tessera.graph.array_protocols import HostProtocols, install_buffer
from tessera.graph.host_copy import host_copy
from tessera.graph.remote import Remote
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType

if TYPE_CHECKING:
    from tessera.graph.device import Device
    from tessera.graph.namespace.arguments import ArrayLike
    from tessera.graph.namespace.update import At

# `repeated` is for other modules of ours: these are the public names.
__all__ = ["Array", "ArrayBase"]


class ArrayBase:
    """Operators and attributes shared by arrays and tracers."""

    __slots__ = ()
    # NumPy's arrays leave operators with an array on either side to us.
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

    @api_boundary
    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise ImmutableError(
            f"assignment to elements of an array of type {self.type.strong()}",
            loc=loc.current(),
            rule="arrays are immutable",
            fix="make a new array, as with `x = x.at[index].set(value)` or `ts.where`",
        )

    @api_boundary
    def __hash__(self) -> int:
        raise UnhashableError(
            f"hash of an array of type {self.type.strong()}",
            loc=loc.current(),
            rule="arrays are no keys of dicts or members of sets: `==` compares their elements",
            fix="use `id(x)` as the key",
        )

    if TYPE_CHECKING:  # installed by graph/namespace/operators.py

        @property
        def size(self) -> Any: ...
        @property
        def itemsize(self) -> int: ...
        @property
        def nbytes(self) -> Any: ...
        @property
        def device(self) -> Device: ...
        @property
        def T(self) -> ArrayBase: ...
        @property
        def mT(self) -> ArrayBase: ...
        @property
        def at(self) -> At: ...
        def astype(self, dtype: DTypeLike, /, *, copy: bool = True) -> ArrayBase: ...
        def block_until_ready(self) -> ArrayBase: ...
        def to_device(self, device: Device | str, /, *, stream: object = None) -> ArrayBase: ...
        def __getitem__(self, index: Any, /) -> ArrayBase: ...
        def __iter__(self) -> Iterator[ArrayBase]: ...
        def __len__(self) -> int: ...
        def item(self) -> bool | int | float | complex: ...
        def tolist(self) -> Any: ...
        def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...
        def __neg__(self) -> ArrayBase: ...
        def __pos__(self) -> ArrayBase: ...
        def __abs__(self) -> ArrayBase: ...
        def __invert__(self) -> ArrayBase: ...
        def __add__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __radd__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __sub__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rsub__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __mul__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rmul__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __truediv__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rtruediv__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __floordiv__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rfloordiv__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __mod__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rmod__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __divmod__(self, other: ArrayLike, /) -> tuple[ArrayBase, ArrayBase]: ...
        def __rdivmod__(self, other: ArrayLike, /) -> tuple[ArrayBase, ArrayBase]: ...
        def __pow__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rpow__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __matmul__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rmatmul__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __and__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rand__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __or__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __ror__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __xor__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rxor__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __lshift__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rlshift__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rshift__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __rrshift__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __lt__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __le__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __gt__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __ge__(self, other: ArrayLike, /) -> ArrayBase: ...
        def __eq__(self, other: object, /) -> ArrayBase: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object, /) -> ArrayBase: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __round__(self, ndigits: int | None = None, /) -> ArrayBase: ...
        def __contains__(self, value: object, /) -> bool: ...
        def __bool__(self) -> bool: ...
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...
        def __complex__(self) -> complex: ...
        def __index__(self) -> int: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


_DTYPES: dict[np.dtype[Any], DType] = {}


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType:
    """The dtype object for a NumPy dtype; cached."""
    found = _DTYPES.get(dtype)
    if found is None:
        found = dtype_of(dtype)
        _DTYPES[dtype] = found
    return found


_DATA: tuple[type[Any], ...] = (np.ndarray, np.generic)

READERS: list[Callable[[np.ndarray | Remote], None]] = []
"""Who wants to know whose elements are read outside of programs: what a function makes of them is
no constant."""


class Array(HostProtocols, ArrayBase):
    """A concrete n-dimensional array on a device. Immutable.

    It speaks the array API standard, `__array__`, the buffer protocol (where that has the dtype: it
    lacks bfloat16, the 8-bit floats and int4) and DLPack. Make one with
    `ts.asarray` and the other creation functions; the constructor is internal, and takes over the
    NumPy array that it is given.
    """

    # Slots are laid out in the order of their names: `_data` is the second (`install_buffer`).
    __slots__ = ("__weakref__", "_contiguous", "_data", "_type")

    _contiguous: np.ndarray | Remote | None
    _data: np.ndarray | Remote
    _type: TensorType | None

    if TYPE_CHECKING:  # below, without a function in between

        @property
        def storage(self) -> np.ndarray | Remote: ...
        @property
        def prepared(self) -> np.ndarray | Remote | None: ...

    def __init__(self, data: np.ndarray | Remote, type: TensorType | None = None) -> None:
        if isinstance(data, _DATA):
            if data.__class__ is not np.ndarray:
                # Compiled code reads the memory of arrays; NumPy's scalars have it elsewhere.
                data = np.asarray(data)
            found: Any = data
            # Whoever gets to see the memory, through a buffer for instance, must not write to it.
            found.setflags(write=False)
            _set_contiguous(self, None)
        elif isinstance(data, Remote):
            _set_contiguous(self, data)
        else:
            try:
                raise _no_data(data)
            except LeafError as error:
                hide_own_frames(error)
                raise
        _set_data(self, data)
        _set_type(self, type)

    @api_boundary
    def __setattr__(self, name: str, value: Any) -> None:
        fix = {
            "shape": "make a new array: `ts.reshape(x, shape)`",
            "dtype": "make a new array: `x.astype(dtype)`",
        }
        raise ImmutableError(
            f"assignment to the attribute {name!r} of an array of type {self.type.strong()}",
            loc=loc.current(),
            rule="arrays are immutable",
            fix=fix.get(name, "make a new array"),
        )

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        found = self._type
        if found is None:
            found = TensorType(self._data.shape, dtype_from_numpy(self._data.dtype))
            _set_type(self, found)
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
        """The elements in the host's memory, which nobody may write to; a copy of those that are on
        another device.
        """
        data = self._data
        for reader in READERS:
            reader(data)
        return data.get() if isinstance(data, Remote) else data

    @property
    def weak(self) -> bool:
        """Whether the dtype yields to that of the other operand: a Python number's."""
        found = self._type
        return found is not None and found.weak

    @property
    def contiguous(self) -> Any:
        """The elements in row-major order, as compiled code takes them; not to be written to."""
        found = self._contiguous
        if found is None:
            data: Any = self._data
            found = data
            if not (data.flags.c_contiguous and data.flags.aligned):
                found = host_copy(data)
            _set_contiguous(self, found)
        return found

    @property
    def is_splat(self) -> bool:
        """Whether one element in memory stands for all: a number repeated to a shape."""
        if self._contiguous is not None:
            return False
        data: Any = self._data
        return data.size > 1 and not any(data.strides)


def _no_data(data: object) -> LeafError:
    return LeafError(
        f"Array: the constructor got a value of type {type(data).__name__}",
        loc=loc.current(),
        rule="it is internal, and takes a NumPy array that nobody else uses",
        fix="make an array with `ts.asarray`",
    )


# The slots' own setters: `Array.__setattr__` refuses, and these take half the time of `object`'s.
_set_contiguous: Any = vars(Array)["_contiguous"].__set__
_set_data: Any = vars(Array)["_data"].__set__
_set_type: Any = vars(Array)["_type"].__set__


_new = object.__new__


def view_of(data: np.ndarray) -> Array:
    """An array over elements of another, or over a new element; the constructor takes longer."""
    found = _new(Array)
    if data.flags.writeable:
        data.setflags(write=False)
    _set_contiguous(found, None)
    _set_data(found, data)
    _set_type(found, None)
    return found


def give_away(x: Array, marker: object) -> None:
    """Puts something else in the place of an array's elements; see `donation.py`."""
    _set_contiguous(x, None)
    _set_data(x, marker)


# Second names of slots, which are read without calling a function: where the elements are, as they
# are; and in row-major order, if that is known yet.
setattr(Array, "storage", vars(Array)["_data"])  # noqa: B010
setattr(Array, "prepared", vars(Array)["_contiguous"])  # noqa: B010


def repeated(data: np.ndarray, shape: tuple[int, ...], dims: Sequence[int]) -> np.ndarray:
    """A view of an array repeated to a shape, of which dim `dims[k]` is the array's dim k or, where
    that is 1, repeats it.
    """
    # NumPy makes arrays over memory of its own dtypes only.
    if data.dtype.kind in "biufc" and data.flags.c_contiguous:
        # Does what `np.broadcast_to` does in a tenth of the time.
        strides = [0] * len(shape)
        for d, size, stride in zip(dims, data.shape, data.strides, strict=True):
            strides[d] = 0 if size == 1 else stride
        return np.ndarray(shape, data.dtype, data, 0, strides)
    lengths = [1] * len(shape)
    for d, size in zip(dims, data.shape, strict=True):
        lengths[d] = size
    return np.broadcast_to(data.reshape(lengths), shape)


def _sample() -> Array:
    return Array(np.arange(3))


HAS_BUFFER = install_buffer(Array, _sample())
"""Whether arrays have the buffer protocol: `memoryview(x)`."""
