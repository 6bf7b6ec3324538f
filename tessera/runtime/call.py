"""How Python enters compiled code: builtin functions made over native addresses.

An executable is a function ``void run(ptr words)``, whose argument points to 64-bit words:
addresses, sizes, scalars as bit patterns. ``make_caller`` makes a builtin function out of it. What
stands between the two is one function written in LLVM text, shared by all callers, which turns the
arguments of Python's vector call into words: an integer is its value, an array the address of its
data. It takes integers apart by CPython's stable C API, and reads arrays at the offsets that
``tessera.runtime.memory`` checks. Where that check fails, calls go through ctypes.

``make_builtin`` is the same for code that speaks CPython's calling convention itself.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loaded, load
from tessera.runtime.memory import DATA_OFFSET, KNOWN_LAYOUT, TYPE_OFFSET, pointer
from tessera.target.machine import machine

Word = int | npt.NDArray[Any]
"""An integer, taken modulo 2**64, so negative and unsigned ones both do; or an array, which stands
for the address of its first element."""

Caller = Callable[..., None]
"""A compiled entry as a Python function of words."""

_METH_FASTCALL = 0x80

# Words on the stack of a call; with more they go on the heap.
_STACK_WORDS = 512

_TYPE_SYMBOL = "tessera_ndarray_type"


def make_caller(address: int, *, owner: object = None, release_gil: bool = True) -> Caller:
    """Make a Python function out of the address of a ``void run(ptr words)``.

    Arguments are passed as they are: neither the dtype nor the layout of an array is checked, nor
    how many words there are. Subclasses of arrays are refused, by a TypeError.

    Args:
        address: The function.
        owner: What keeps the code loaded; the caller refers to it.
        release_gil: Whether other Python threads run meanwhile. Letting go and coming back costs
            about 30 ns, and more when others do run; leave it for work that is not tiny.
    """
    shim = _shim()
    if shim is None:
        return _through_ctypes(address, owner, release_gil)
    symbol = "call_released" if release_gil else "call"
    code = shim.addresses[symbol]
    return make_builtin(code, receiver=address, owner=(shim, owner), name=symbol)


def make_builtin(
    address: int, *, receiver: object = None, owner: object = None, name: str = "entry"
) -> Callable[..., Any]:
    """Make a builtin function out of native code ``ptr f(ptr self, ptr args, i64 count)``.

    The code gets borrowed references to its positional arguments and gives back a new reference, or
    null with an error set: CPython's ``METH_FASTCALL``.

    Args:
        address: The function.
        receiver: What the code gets as its first argument.
        owner: What keeps the code loaded; the function refers to it.
        name: The name that Python shows.
    """
    new = ctypes.pythonapi["PyCFunction_NewEx"]
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return new(ctypes.addressof(_method(address, name)), receiver, owner)


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _method(address: int, name: str) -> _MethodDef:
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    # Functions read their definition when they are freed, which at exit may come after this
    # module is gone. It is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return definition


@functools.cache
def _shim() -> Loaded | None:
    """The code between Python and an entry, or None if it cannot read arrays here."""
    if not KNOWN_LAYOUT:
        return None
    text = _shim_text("call", False) + _shim_text("call_released", True) + _DECLARATIONS
    source = Source(text, machine("host"), "tessera.call", unroll=False)
    return load(source, default_cache(), {_TYPE_SYMBOL: id(np.ndarray)})


def _through_ctypes(address: int, owner: object, release_gil: bool) -> Caller:
    prototype = ctypes.CFUNCTYPE if release_gil else ctypes.PYFUNCTYPE
    run = prototype(None, ctypes.c_char_p)(address)

    def call(*words: Word, _owner: object = owner) -> None:
        numbers = [pointer(w) if type(w) is np.ndarray else w.__index__() for w in words]
        # Bytes are the cheapest array that ctypes can point to; the code only reads its words.
        run(struct.pack(f"={len(words)}Q", *[number & (1 << 64) - 1 for number in numbers]))

    return call


def _shim_text(name: str, release_gil: bool) -> str:
    release = "  %thread = call ptr @PyEval_SaveThread()\n" if release_gil else ""
    acquire = "  call void @PyEval_RestoreThread(ptr %thread)\n" if release_gil else ""
    return f"""
define ptr @{name}(ptr %self, ptr %args, i64 %count) nounwind {{
entry:
  %stack = alloca [{_STACK_WORDS} x i64], align 64
  %many = icmp ugt i64 %count, {_STACK_WORDS}
  br i1 %many, label %allocate, label %start, !prof !0

allocate:
  %bytes = shl i64 %count, 3
  %heap = call ptr @PyMem_RawMalloc(i64 %bytes)
  %full = icmp eq ptr %heap, null
  br i1 %full, label %exhausted, label %start, !prof !0

exhausted:
  %none = call ptr @PyErr_NoMemory()
  ret ptr null

start:
  %words = phi ptr [ %stack, %entry ], [ %heap, %allocate ]
  %owned = phi ptr [ null, %entry ], [ %heap, %allocate ]
  br label %next

next:
  %i = phi i64 [ 0, %start ], [ %i.next, %store ]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %run, label %convert

convert:
  %arg = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %arg
  %type.at = getelementptr i8, ptr %object, i64 {TYPE_OFFSET}
  %type = load ptr, ptr %type.at
  %is.array = icmp eq ptr %type, @{_TYPE_SYMBOL}
  br i1 %is.array, label %array, label %integer

array:
  %data.at = getelementptr i8, ptr %object, i64 {DATA_OFFSET}
  %data = load i64, ptr %data.at
  br label %store

integer:
  %number = call i64 @PyLong_AsUnsignedLongLongMask(ptr %object)
  %suspect = icmp eq i64 %number, -1
  br i1 %suspect, label %check, label %store, !prof !0

check:
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %fail, label %store

store:
  %word = phi i64 [ %data, %array ], [ %number, %integer ], [ %number, %check ]
  %cell = getelementptr i64, ptr %words, i64 %i
  store i64 %word, ptr %cell
  %i.next = add nuw i64 %i, 1
  br label %next

run:
  %code = call ptr @PyLong_AsVoidPtr(ptr %self)
{release}  call void %code(ptr %words)
{acquire}  br i1 %many, label %free, label %leave, !prof !0

free:
  call void @PyMem_RawFree(ptr %owned)
  br label %leave

leave:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct

fail:
  call void @PyMem_RawFree(ptr %owned)
  ret ptr null
}}
"""


_DECLARATIONS = (
    f"@{_TYPE_SYMBOL} = external global i8\n"
    + """\
@_Py_NoneStruct = external global i8
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_NoMemory()
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
declare void @Py_IncRef(ptr)
!0 = !{!"branch_weights", i32 1, i32 10000}
"""
)
