"""Where CPython puts the slots of instances, for native code that reads and makes them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from tessera.graph.called import OBJECTS_ARE_KNOWN, WORD, has_vectorcall, vectorcall_base
from tessera.runtime.memory import KNOWN_LAYOUT


def _is_known() -> bool:
    return KNOWN_LAYOUT and OBJECTS_ARE_KNOWN


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
    bases = (vectorcall_base(),) if has_vectorcall(cls) else ()
    sample_class: Any = type("Sample", bases, {"__slots__": declared})
    # Instances begin with the count of references and the type.
    head = object.__basicsize__
    if sample_class.__basicsize__ != cls.__basicsize__ or head != 2 * WORD:
        return None
    sample = sample_class()
    values = {name: object() for name in names}
    for name, value in values.items():
        setattr(sample, name, value)
    found: dict[str, int] = {}
    for offset in range(head, cls.__basicsize__, WORD):
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
    places = range(2 * WORD, size, WORD)
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
    in_tuple = [word(id(items) + LIST_ITEMS), word(id(items) + LIST_ITEMS + WORD)]
    return in_tuple == wanted and first > 4096 and [word(first), word(first + WORD)] == wanted
