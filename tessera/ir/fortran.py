"""Calls of LAPACK and BLAS at their addresses, for one matrix or for each of a batch.

`scipy.linalg.cython_lapack` and `cython_blas` state the address and the C signature of every
routine in capsules. All parameters are pointers, so a batch is a loop that adds to each of them the
size of its part. That loop is Python's, unless the runtime has installed a native one.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

Arg: TypeAlias = "bytes | int | Array | tuple[Array, int]"
"""What a routine is passed: a letter, an int, an array of which each matrix of the batch has an
equal share, or an array that all share, with any int."""

Repeat: TypeAlias = Callable[[int, int, Sequence[int], Sequence[int]], None]
"""Calls the function at an address so many times: with these pointers, and then each time with
pointers that are so many bytes further."""

FEW = 8
"""Batches of fewer matrices are not worth another call."""

_PREFIXES = {"f": "s", "d": "d", "F": "c", "D": "z"}

# Routines of BLAS, whose last parameter is not `info`.
_BLAS = frozenset({"trsm"})

# Routines whose name differs for complex numbers.
_COMPLEX_NAMES = {"syevd": "heevd", "orgqr": "ungqr"}

# What parameters that are letters point to.
_ALPHABET = np.frombuffer(bytes(range(128)), np.uint8).copy()

_REPEAT: list[Repeat] = []


def install_repeat(repeat: Repeat) -> None:
    """Sets what calls a routine for the matrices of a large batch."""
    _REPEAT[:] = [repeat]


@dataclass(frozen=True)
class Routine:
    """A routine.

    Attributes:
        call: it, as a function of addresses.
        address: where it is.
        integer: the type of its integers.
        has_info: whether its last parameter says how it went.
    """

    call: Callable[..., None]
    address: int
    integer: type[Any]
    has_info: bool


@functools.cache
def routine(name: str, char: str) -> Routine:
    """A routine of LAPACK or BLAS for a dtype, by its name without the letter for the dtype."""
    module = "cython_blas" if name in _BLAS else "cython_lapack"
    table: Any = importlib.import_module(f"scipy.linalg.{module}")
    if char in "FD":
        name = _COMPLEX_NAMES.get(name, name)
    capsule = table.__pyx_capi__[_PREFIXES[char] + name]
    api = ctypes.pythonapi
    signature_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
        ("PyCapsule_GetName", api)
    )
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    signature = signature_of(capsule)
    address = address_of(capsule, signature)
    parameters = signature.decode().partition("(")[2].split(",")
    # Builds of SciPy for LAPACKs with 64-bit integers call the type otherwise.
    plain = any(p.strip(" )").startswith("int *") for p in parameters)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(parameters))(address)
    return Routine(call, address, np.int32 if plain else np.int64, name not in _BLAS)


def call(name: str, dtype: np.dtype[Any], count: int, *args: Arg) -> Array:
    """Calls a routine once for each matrix of a batch.

    Args:
        name: the routine without the letter of its dtype.
        dtype: of the elements.
        count: matrices of the batch.
        args: its parameters, without `info`.

    Returns:
        What `info` was after each call; zeros of a routine that has none.
    """
    found = routine(name, dtype.char)
    info = np.zeros(max(count, 1), found.integer)
    numbers = np.array([a for a in args if isinstance(a, int)], found.integer)
    starts: list[int] = []
    steps: list[int] = []
    number = pointer(numbers)
    for arg in args:
        step = 0
        if isinstance(arg, bytes):
            start = _LETTERS_AT + arg[0]
        elif isinstance(arg, int):
            start = number
            number += numbers.itemsize
        elif isinstance(arg, tuple):
            start = pointer(arg[0])
        else:
            start = pointer(arg)
            step = arg.nbytes // count if count else 0
        starts.append(start)
        steps.append(step)
    if found.has_info:
        starts.append(pointer(info))
        steps.append(info.itemsize)
    if count >= FEW and _REPEAT:
        _REPEAT[0](found.address, count, starts, steps)
        return info
    for k in range(count):
        found.call(*[start + k * step for start, step in zip(starts, steps, strict=True)])
    return info


def pointer(x: Array) -> int:
    """The address of the first element."""
    address: int = x.__array_interface__["data"][0]
    return address


_LETTERS_AT = pointer(_ALPHABET)


def work(name: str, dtype: np.dtype[Any], position: int, *args: Arg) -> Array:
    """Scratch memory of the size that a routine asks for.

    Args:
        name: the routine.
        dtype: of the elements.
        position: where its `work` stands, after which comes `lwork`.
        args: its parameters.
    """
    asked = np.zeros(1, dtype)
    query: list[Arg] = [(a, 0) if isinstance(a, np.ndarray) else a for a in args]
    query[position : position + 2] = [(asked, 0), -1]
    call(name, dtype, 1, *query)
    return np.empty(max(int(asked[0].real), 1), dtype)


def integers(name: str, dtype: np.dtype[Any], size: int) -> Array:
    """Scratch memory for integers."""
    return np.empty(max(size, 1), routine(name, dtype.char).integer)
