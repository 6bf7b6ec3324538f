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

Repeat: TypeAlias = Callable[[int, int, Sequence[int], Sequence[int], Sequence[int], int], None]
"""Calls the function at an address so many times: with these pointers, and then each time with
pointers that are so many bytes further; in so many parts, which threads share. Those of a part are
other bytes further than those of the part before."""

FEW = 8
"""Batches of fewer matrices are not worth another call."""

PARTS, PART = 32, 10_000
"""Parts of a batch that threads share at most, and nanoseconds that one takes at least."""

LARGEST = 32 * 32
"""Elements of the largest matrices that threads share: products of larger ones have threads of the
library's own. Singular values of 48 matrices of 64 x 64 took 52 ms instead of 16."""

_PREFIXES = {"f": "s", "d": "d", "F": "c", "D": "z"}

# Elements of matrices and parts of a batch, at most, of routines whose threads wait for each other:
# for memory of the library's, and where matrices are larger for its own threads. With 16 threads of
# a Xeon (Emerald Rapids) 5000 of 4 x 4 took 14.2 ms, and 10.4 with one; 200 of 32 x 32 84 and 17.
_CONTENDED = {"syevd": (16 * 16, 2)}

# Routines of BLAS, whose last parameter is not `info`.
_BLAS = frozenset({"trsm"})

# Routines whose name differs for complex numbers.
_COMPLEX_NAMES = {"syevd": "heevd", "orgqr": "ungqr"}

# What parameters that are letters point to.
_ALPHABET = np.frombuffer(bytes(range(128)), np.uint8).copy()

def _told(x: Array) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


_LETTERS_AT = _told(_ALPHABET)

_POINTER: list[Callable[[Array], int]] = [_told]


def pointer(x: Array) -> int:
    """The address of the first element."""
    return _POINTER[0](x)


_REPEAT: list[Repeat] = []


def install_repeat(repeat: Repeat, pointer: Callable[[Array], int]) -> None:
    """Sets what calls a routine for the matrices of a large batch, and what finds the first element
    of an array in less time than NumPy tells it."""
    _REPEAT[:] = [repeat]
    _POINTER[:] = [pointer]


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
    if count == 1:
        return _call_once(name, dtype.char, args)
    found = routine(name, dtype.char)
    info = np.zeros(max(count, 1), found.integer)
    numbers = np.array([a for a in args if isinstance(a, int)], found.integer)
    starts: list[int] = []
    steps: list[int] = []
    shares: list[int] = []
    number = pointer(numbers)
    parts = _parts(name, count, args) if _REPEAT else 1
    held: list[Array] = []
    for arg in args:
        step = share = 0
        if isinstance(arg, bytes):
            start = _LETTERS_AT + arg[0]
        elif isinstance(arg, int):
            start = number
            number += numbers.itemsize
        elif isinstance(arg, tuple):
            held.append(_copies(arg[0], parts) if parts > 1 else arg[0])
            start, share = pointer(held[-1]), held[-1].strides[0] if parts > 1 else 0
        else:
            start = pointer(arg)
            step = arg.nbytes // count if count else 0
        starts.append(start)
        steps.append(step)
        shares.append(share)
    if found.has_info:
        starts.append(pointer(info))
        steps.append(info.itemsize)
        shares.append(0)
    if count >= FEW and _REPEAT:
        _REPEAT[0](found.address, count, starts, steps, shares, parts)
        return info
    for k in range(count):
        found.call(*[start + k * step for start, step in zip(starts, steps, strict=True)])
    return info


def _call_once(name: str, char: str, args: Sequence[Arg]) -> Array:
    """`call` for one matrix."""
    told = _POINTER[0]
    known: list[bytes | int | None] = []
    starts: list[int] = []
    for arg in args:
        if isinstance(arg, (int, bytes)):
            known.append(arg)
        else:
            known.append(None)
            starts.append(told(arg[0] if isinstance(arg, tuple) else arg))
    found, _, words, places = _known_words(name, char, tuple(known))
    info = np.zeros(1, found.integer)
    words = [*words]
    for k, start in zip(places, starts, strict=True):
        words[k] = start
    if found.has_info:
        words.append(told(info))
    found.call(*words)
    return info


@functools.lru_cache(maxsize=1024)
def _known_words(
    name: str, char: str, known: tuple[bytes | int | None, ...]
) -> tuple[Routine, Array, list[int], list[int]]:
    """A routine, and the addresses of its letters and of its ints, which an array holds; and the
    places of arrays among them."""
    found = routine(name, char)
    numbers = np.array([a if isinstance(a, int) else 0 for a in known], found.integer)
    words = [
        _LETTERS_AT + a[0]
        if isinstance(a, bytes)
        else pointer(numbers) + k * numbers.itemsize
        for k, a in enumerate(known)
    ]
    return found, numbers, words, [k for k, a in enumerate(known) if a is None]


def _parts(name: str, count: int, args: Sequence[Arg]) -> int:
    """In how many parts threads share a batch."""
    most, parts = _CONTENDED.get(name, (LARGEST, PARTS))
    sizes = [arg.size // max(count, 1) for arg in args if isinstance(arg, np.ndarray)]
    largest = max(sizes, default=0)
    if count < 2 * FEW or largest > most:
        return 1
    time = 200 + 2 * largest**1.5  # of a matrix: some instructions for each of its products
    return max(min(parts, int(count * time) // PART, count // FEW), 1)


def _copies(x: Array, count: int) -> Array:
    """Memory like an array's for each part, lines of the cache apart."""
    room = -(-x.nbytes // 64) * 64
    found = np.empty((count, room), np.uint8)
    found[:, : x.nbytes] = x.reshape(-1).view(np.uint8)
    return found




def work(name: str, dtype: np.dtype[Any], position: int, *args: Arg) -> Array:
    """Scratch memory of the size that a routine asks for.

    Args:
        name: the routine.
        dtype: of the elements.
        position: where its `work` stands, after which comes `lwork`.
        args: its parameters.
    """
    known = tuple([a if isinstance(a, (bytes, int)) else None for a in args])
    return np.empty(_work_size(name, dtype, position, known), dtype)


@functools.lru_cache(maxsize=1024)
def _work_size(
    name: str, dtype: np.dtype[Any], position: int, known: tuple[bytes | int | None, ...]
) -> int:
    """How many elements a routine asks for: its letters and ints say it, arrays are not read."""
    asked = np.zeros(1, dtype)
    query: list[Arg] = [(np.zeros(1, dtype), 0) if a is None else a for a in known]
    query[position : position + 2] = [(asked, 0), -1]
    call(name, dtype, 1, *query)
    return max(int(asked[0].real), 1)


def integers(name: str, dtype: np.dtype[Any], size: int) -> Array:
    """Scratch memory for integers."""
    return np.empty(max(size, 1), routine(name, dtype.char).integer)
