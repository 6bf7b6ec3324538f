"""Where CPython puts the slots of instances, for native code that reads and makes them."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from typing import Any

from tessera.runtime.memory import KNOWN_LAYOUT

_WORD = 8
_MEMBERS = 72  # Py_tp_members
_SIGNED_SIZE, _READ_ONLY = 19, 1  # T_PYSSIZET, READONLY
_MAY_BE_BASE, _HAS_VECTORCALL = 1 << 10, 1 << 11  # Py_TPFLAGS_BASETYPE, Py_TPFLAGS_HAVE_VECTORCALL


def _is_known() -> bool:
    """Whether objects are laid out as they are with a global lock: free-threaded builds say so in
    their flags. `sysconfig` knows too, under a lock that another thread may hold in a fork."""
    return KNOWN_LAYOUT and "t" not in sys.abiflags


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
"""Where instances of classes that `vectorcall_base` is a base of have the code that calls them."""

_SPECS: list[object] = []  # which types refer to


@functools.cache
def vectorcall_base() -> type:
    """A class whose instances have a word for code that calls them, null at first, which takes
    arguments as CPython's vector calls give them; `object` where objects are not known.

    The word counts for a class once `vectorcall_flags` of it says so. Until then, and where it is
    null, calls make a tuple of their arguments, and run `__call__`.
    """
    if not _is_known():
        return object
    member = _Member(b"__vectorcalloffset__", _SIGNED_SIZE, VECTORCALL, _READ_ONLY, None)
    members = (_Member * 2)(member)
    slots = (_Slot * 2)(_Slot(_MEMBERS, ctypes.cast(members, ctypes.c_void_p)))
    spec = _Spec(b"tessera.Called", VECTORCALL + _WORD, 0, _MAY_BE_BASE, slots)
    _SPECS.extend([members, slots, spec])
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p]
    made: type = make(ctypes.addressof(spec))
    return made


def _has_word(cls: type) -> bool:
    """Whether instances of a class have the word of `vectorcall_base`."""
    return vectorcall_base() in cls.__mro__[:-1]  # which is not `object`


class VectorcallFlag:
    """Whether calls of the instances of a class look at their own word for code."""

    def __init__(self, word: ctypes.c_uint64) -> None:
        self._word = word

    def set(self, is_set: bool) -> None:
        """Says so, or not."""
        word = self._word
        word.value = word.value | _HAS_VECTORCALL if is_set else word.value & ~_HAS_VECTORCALL


def vectorcall_flag(cls: type) -> VectorcallFlag | None:
    """The flag of a class, or None where it is not known.

    Args:
        cls: a class that `vectorcall_base` is a base of.
    """
    if not _has_word(cls):
        return None
    size: Any = type.__basicsize__
    words = [ctypes.c_uint64.from_address(id(cls) + at) for at in range(2 * _WORD, size, _WORD)]
    found = [word for word in words if word.value == cls.__flags__]
    has_place = any(word.value == VECTORCALL for word in words)
    return VectorcallFlag(found[0]) if len(found) == 1 and has_place else None


def slot_offsets(cls: type) -> Mapping[str, int] | None:
    """The offsets of the slots of a class in its instances, or None where that cannot be told.

    It is read off an instance of another class that has the same slots, whose instances are laid
    out in the same way.

    Args:
        cls: a class with `__slots__`, whose bases add no fields but `vectorcall_base`'s.
    """
    declared: tuple[str, ...] = vars(cls).get("__slots__", ())
    names = [name for name in declared if name not in ("__weakref__", "__dict__")]
    if not (_is_known() and names):
        return None
    bases = (vectorcall_base(),) if _has_word(cls) else ()
    sample_class: Any = type("Sample", bases, {"__slots__": declared})
    # Instances begin with the count of references and the type.
    head = object.__basicsize__
    if sample_class.__basicsize__ != cls.__basicsize__ or head != 2 * _WORD:
        return None
    sample = sample_class()
    values = {name: object() for name in names}
    for name, value in values.items():
        setattr(sample, name, value)
    found: dict[str, int] = {}
    for offset in range(head, cls.__basicsize__, _WORD):
        word = ctypes.c_uint64.from_address(id(sample) + offset).value
        for name, value in values.items():
            if word == id(value):
                found[name] = offset
    return found if len(found) == len(names) else None


def method_word(cls: type, name: str) -> ctypes.c_uint64 | None:
    """The word of a class that says what runs for a special method, or None where it is not known.

    It is where classes with such a method differ from those without one: CPython's function that
    calls the method stands there. Subscripts have two, of mappings and of sequences. CPython has
    these in this order in every class, as it asks the first one first.

    Args:
        cls: a class with such a method.
        name: `__del__`, `__call__`, `__getitem__` or an operator such as `__add__` and `__lt__`.
    """
    if not _is_known():
        return None

    def nothing(self: object) -> None:
        del self

    plain: Any = type("Plain", (), {"__slots__": ()})
    able: Any = type("Able", (), {"__slots__": (), name: nothing})
    size: Any = type.__basicsize__
    places = range(2 * _WORD, size, _WORD)
    found: list[ctypes.c_uint64] = []
    for offset in places:
        without, with_one, here = (
            ctypes.c_uint64.from_address(id(each) + offset) for each in (plain, able, cls)
        )
        if without.value != with_one.value and with_one.value == here.value:
            found.append(here)
    return found[0] if len(found) == (2 if name == "__getitem__" else 1) else None


LIST_SIZE = 16
"""Where a list has its length, and a tuple too."""

LIST_ITEMS = 24
"""Where a list has the address of its items, and a tuple its items."""


def sequences_are_known() -> bool:
    """Whether lists and tuples have their length and items where they are expected."""
    items = (object(), object())
    sample = [*items, object()]
    sample.pop()

    def word(address: int) -> int:
        return ctypes.c_uint64.from_address(address).value

    if word(id(sample) + LIST_SIZE) != 2 or word(id(items) + LIST_SIZE) != 2:
        return False
    first = word(id(sample) + LIST_ITEMS)
    wanted = [id(x) for x in items]
    in_tuple = [word(id(items) + LIST_ITEMS), word(id(items) + LIST_ITEMS + _WORD)]
    return in_tuple == wanted and first > 4096 and [word(first), word(first + _WORD)] == wanted
