"""Classes whose instances native code may call in the place of Python."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from typing import TYPE_CHECKING, Any

WORD = 8
"""Bytes of a field of an object."""

_MEMBERS = 72  # Py_tp_members
_SIGNED_SIZE, _READ_ONLY = 19, 1  # T_PYSSIZET, READONLY
_MAY_BE_BASE = 1 << 10  # Py_TPFLAGS_BASETYPE
_HAS_VECTORCALL, _IS_METHOD = 1 << 11, 1 << 17  # Py_TPFLAGS_HAVE_VECTORCALL, _METHOD_DESCRIPTOR

OBJECTS_ARE_KNOWN: bool = (
    sys.implementation.name == "cpython"
    and struct.calcsize("P") == WORD
    and "t" not in getattr(sys, "abiflags", "")
)
"""Whether objects are laid out as they are with a global lock: free-threaded builds say so in
their flags. `sysconfig` knows too, under a lock that another thread may hold in a fork."""


class _Member(ctypes.Structure):
    """CPython's ``PyMemberDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Slot(ctypes.Structure):
    """CPython's ``PyType_Slot``."""

    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    """CPython's ``PyType_Spec``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("size", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


VECTORCALL = object.__basicsize__
"""Where instances of `Called` have the code that calls them."""

_SPECS: list[object] = []  # which types refer to


@functools.cache
def vectorcall_base() -> type:
    """A class whose instances have a word for code that calls them, null at first, which takes
    arguments as CPython's vector calls give them; `object` where objects are not known.

    The word counts for a class once `vectorcall_flag` of it says so. Until then, and where it is
    null, calls make a tuple of their arguments, and run `__call__`.
    """
    if not OBJECTS_ARE_KNOWN:
        return object
    member = _Member(b"__vectorcalloffset__", _SIGNED_SIZE, VECTORCALL, _READ_ONLY, None)
    members = (_Member * 2)(member)
    slots = (_Slot * 2)(_Slot(_MEMBERS, ctypes.cast(members, ctypes.c_void_p)))
    spec = _Spec(b"tessera.Called", VECTORCALL + WORD, 0, _MAY_BE_BASE, slots)
    _SPECS.extend([members, slots, spec])
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p]
    made: type = make(ctypes.addressof(spec))
    return made


def has_vectorcall(cls: type) -> bool:
    """Whether instances of a class have the word of `vectorcall_base`."""
    return vectorcall_base() in cls.__mro__[:-1]  # which is not `object`


if TYPE_CHECKING:
    _Base = object
else:
    _Base = vectorcall_base()


class Called(_Base):
    """A class whose instances native code may call. `_table` is what it looks at."""

    __slots__ = ("_table",)

    _table: Any


class Flag:
    """Something that CPython may know of a class."""

    def __init__(self, word: ctypes.c_uint64, flag: int) -> None:
        self._word = word
        self._flag = flag

    def set(self, is_set: bool) -> None:
        """Says so, or not."""
        word = self._word
        word.value = word.value | self._flag if is_set else word.value & ~self._flag


def vectorcall_flag(cls: type) -> Flag | None:
    """Whether calls of the instances of a class look at their own word for code; None where the
    place of the flag is not known.

    Args:
        cls: a class that is `Called`.
    """
    return _flag(cls, _HAS_VECTORCALL)


def method_flag(cls: type) -> Flag | None:
    """Whether instances in a class, called as methods, are given the object in front of the
    arguments without a bound method in between; None likewise.

    Args:
        cls: a class that is `Called`, whose `__get__` says the same.
    """
    return _flag(cls, _IS_METHOD)


def _flag(cls: type, flag: int) -> Flag | None:
    if not has_vectorcall(cls):
        return None
    size: Any = type.__basicsize__
    words = [ctypes.c_uint64.from_address(id(cls) + at) for at in range(2 * WORD, size, WORD)]
    found = [word for word in words if word.value == cls.__flags__]
    has_place = any(word.value == VECTORCALL for word in words)
    return Flag(found[0], flag) if len(found) == 1 and has_place else None
