"""The native code that calls programs, loaded into this process.

It is there once, whatever it calls; `signatures` describes it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.config import OVERRIDDEN, config
from tessera.graph import device, engine, trace
from tessera.graph.array import Array
from tessera.graph.called import Called, vectorcall_flag
from tessera.graph.remote import Remote
from tessera.graph.state import Cell
from tessera.ir.types import TensorType
from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.dispatch import exchange
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.operators_text import COMPARE, NAMES
from tessera.runtime.dispatch.text import dispatch_text
from tessera.runtime.engine import Loaded, Loading
from tessera.runtime.forks import hold
from tessera.runtime.layout import (
    method_word,
    sequences_are_known,
    slot_offsets,
)
from tessera.runtime.memory import LISTED_LINES, PooledMemory, aligned_sized, pool
from tessera.target.machine import machine

MOST_STRUCTURES = 32
"""A function with more structures of arguments leaves the others to Python."""


class Table:
    """The structures of one function, as native code sees them.

    Attributes:
        words: how many calls were native, how many structures there are, and their addresses.
        keep: what the words point to.
    """

    __slots__ = ("keep", "words")

    def __init__(self) -> None:
        self.words = np.zeros(w.TABLE.index("first") + MOST_STRUCTURES, np.uint64)
        self.keep: list[Any] = []

    @property
    def calls(self) -> int:
        """How many calls were native."""
        return int(self.words[w.TABLE.index("calls")])


class Plan:
    """How a program is run for one key.

    Attributes:
        words: as `words.PLAN` tells.
        keep: what they point to.
    """

    __slots__ = ("keep", "words")

    def __init__(self, words: np.ndarray, keep: object) -> None:
        self.words = words
        self.keep = keep


_CALL = "tessera_call"
START = "tessera_start"
_NEW_ARRAY, _NEW_COPY = 94, 85  # of NumPy's C interface: PyArray_NewFromDescr, PyArray_NewCopy


class _Handler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")],
    )


class _Method:
    """A class with the slot that native code is put into."""

    __slots__ = ()

    def __call__(self) -> None: ...


@functools.cache
def _offsets() -> Mapping[str, Mapping[str, int]] | None:
    """Where the slots of the classes are, or None if that is not known here."""
    classes = (Array, TensorType, Called, Table, Plan, Cell)
    found = {cls.__name__: slot_offsets(cls) for cls in classes}
    known = {name: offsets for name, offsets in found.items() if offsets is not None}
    is_known = len(known) == len(found) and sequences_are_known() and _arrays_are_known()
    is_known = is_known and _counts_are_known()
    return known if is_known else None


def _arrays_are_known() -> bool:
    """Whether arrays have what native code reads and writes where it is expected."""

    def word(at: int, kind: Any = ctypes.c_uint64) -> int:
        return kind.from_address(at).value

    for sample in (np.empty((2, 3)), np.empty((2, 3), np.int8, order="F"), np.empty(())):
        here = id(sample)
        dims, steps = (
            [word(word(here + at) + 8 * k) for k in range(sample.ndim)]
            for at in (w.DIMS, w.STRIDES)
        )
        flags = word(here + w.FLAGS, ctypes.c_int32)
        wanted = w.OWNS | w.WRITEABLE | w.ALIGNED | (w.C_CONTIGUOUS * sample.flags.c_contiguous)
        known = w.OWNS | w.WRITEABLE | w.ALIGNED | w.C_CONTIGUOUS
        if (
            word(here + w.RANK, ctypes.c_int32) != sample.ndim
            or (sample.ndim and dims != list(sample.shape))
            or (sample.ndim and steps != list(sample.strides))
            or word(here + w.DTYPE) != id(sample.dtype)
            or flags & known != wanted
            or word(here + w.HANDLER) != _memory_handler()
            or word(here + w.BASE)
            or word(id(part := sample[...]) + w.BASE) != id(part.base)
        ):
            return False
    return word(id(0.5) + w.FLOAT_VALUE, ctypes.c_double) == 0.5


def _counts_are_known() -> bool:
    """Whether objects have the count of their references where it is expected."""
    items = [object()]

    def count() -> int:
        return ctypes.c_uint32.from_address(id(items[0]) + w.COUNT).value

    alone = count()
    more = [items[0]] * 3
    return sys.byteorder == "little" and alone == 1 and count() == 1 + len(more)


def _interface(number: int) -> int:
    """A function of NumPy's C interface."""
    umath: Any = importlib.import_module("numpy._core._multiarray_umath")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = get(umath._ARRAY_API, None)
    return ctypes.c_uint64.from_address(table + 8 * number).value


_GET_HANDLER = 305  # PyDataMem_GetHandler


def _memory_handler() -> int:
    """The address of the capsule that says how NumPy gets memory."""
    get = ctypes.PYFUNCTYPE(ctypes.py_object)(_interface(_GET_HANDLER))
    return id(get())


@functools.cache
def _begin() -> Loading | None:
    """What loads the native code, which another thread compiles from now on if one is free."""
    offsets = _offsets()
    if offsets is None:
        return None
    loading = Loading(default_cache(), threads=2)
    # What calls do is to load, compare and store: LLVM's other passes take as long again and save
    # no time of a call.
    text = dispatch_text(offsets)
    loading.add(Source(text, machine("host"), "tessera.dispatch", unroll=False, passes="few"))
    return loading


# Of what is compiled, nothing comes to the child of a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin.cache_clear)


_lock = threading.RLock()
hold(_lock)


def prepare() -> None:
    """Lets the native code be compiled beside the caller, who may need it soon."""
    _begin()


def native() -> Loaded | None:
    """The native code; None where the layout of objects is not known."""
    with _lock:
        return _native()


# Called under the lock only: threads that make their first calls at once share what is loaded.
@functools.cache
def _native() -> Loaded | None:
    loading = _begin()
    slow = method_word(_Method, "__call__")
    if loading is None or slow is None:
        return None
    handler = _Handler(b"tessera", 1, None)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(handler), b"mem_handler", None)
    imports = {
        "tessera_slow_call": slow.value,
        "tessera_new_array": _interface(_NEW_ARRAY),
        "tessera_new_copy": _interface(_NEW_COPY),
        "tessera_traces": ctypes.addressof(trace.ACTIVE),
        "tessera_overrides": ctypes.addressof(OVERRIDDEN),
        "tessera_devices": ctypes.addressof(device.MOVED),
        "tessera_settings_variable": id(config.override),
        "tessera_device_variable": id(device.DEFAULT),
        "tessera_cpu": id(device.CPU),
        "tessera_table_class": id(Table),
        "tessera_array_class": id(Array),
        "tessera_remote_class": id(Remote),
        "tessera_ndarray_type": id(np.ndarray),
        "tessera_handler": id(capsule),
        "tessera_sized": id(aligned_sized),
        "tessera_waiting_lines": ctypes.addressof(LISTED_LINES),
        "tessera_exchange": ctypes.addressof(exchange.NOTED),
        "tessera_cell_class": id(Cell),
        "tessera_pooled_class": id(PooledMemory),
        "tessera_operators": ctypes.addressof(engine.OPERATORS),
        "tessera_slow_compare": (operator_slots()[COMPARE] or slow).value,
        "tessera_slow_subscript": (_subscript_slot() or slow).value,
        "tessera_name_contiguous": id(_CONTIGUOUS),
        **{f"tessera_name_{name}": id(method) for name, method in METHODS.items()},
        **{f"tessera_reflected_{name}": id(method) for name, method in REFLECTED.items()},
    }
    with loading:
        loaded = loading.finish(imports)
    for name in ("malloc", "calloc", "realloc", "free"):
        setattr(handler, name, loaded.addresses[f"tessera_{name}"])
    release = ctypes.PYFUNCTYPE(ctypes.c_int64)(loaded.addresses["tessera_release_waiting"])
    pool.beside.append(release)
    # Arrays may die after everything else, and give their memory back: none of this is ever freed.
    for thing in (loaded, handler, capsule, aligned_sized, LISTED_LINES):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _read_natively(loaded)
    return loaded


@functools.cache
def _subscript_slot() -> ctypes.c_uint64 | None:
    return method_word(Array, "__getitem__")


def _read_natively(loaded: Loaded) -> None:
    """Puts native code into the slot of subscripts of arrays, until the process ends."""
    slot = _subscript_slot()
    if slot is None:
        return
    # CPython enters a function of Python that is `__getitem__` without asking the slot.
    new = ctypes.pythonapi.PyInstanceMethod_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.py_object]
    setattr(Array, "__getitem__", new(Array.__getitem__))  # noqa: B010
    atexit.register(setattr, slot, "value", slot.value)
    slot.value = loaded.addresses["tessera_subscript"]


_CALLED: dict[type, bool] = {}


def call_natively(cls: type[Called]) -> bool:
    """Puts native code into the slot that calls the instances of a class, until the process ends.

    Args:
        cls: the class, which has a method `__call__` for what is not known.

    Returns:
        Whether there is such code.
    """
    found = _CALLED.get(cls)
    if found is None:
        found = _CALLED[cls] = _install(cls)
    return found


_CONTIGUOUS = "contiguous"
METHODS = {name: f"__{name}__" for name in NAMES}
REFLECTED = {name: f"__r{name}__" for name in NAMES}


@functools.cache
def operator_slots() -> Mapping[str, ctypes.c_uint64 | None]:
    """The words of the class of arrays that say what its operators run; None where that is not
    known."""
    names = {**METHODS, COMPARE: "__lt__"}
    return {key: method_word(Array, name) for key, name in names.items()}


@functools.cache
def operate_natively() -> None:
    """Puts native code into the slots of operators of arrays, until the process ends."""
    loaded = native()
    if loaded is None:
        return
    for name, slot in operator_slots().items():
        if slot is not None:
            atexit.register(setattr, slot, "value", slot.value)
            slot.value = loaded.addresses[f"tessera_{name}"]


def _install(cls: type[Called]) -> bool:
    loaded = native()
    slot = method_word(cls, "__call__")
    if loaded is None or slot is None:
        return False
    slow, flag = slot.value, vectorcall_flag(cls)
    slot.value = loaded.addresses[_CALL]
    if flag is not None:
        flag.set(True)

    def restore() -> None:
        # What native code looks at goes away.
        if flag is not None:
            flag.set(False)
        slot.value = slow
        _CALLED[cls] = False

    atexit.register(restore)
    return True
