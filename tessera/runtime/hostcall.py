"""How compiled code calls Python back.

A program that calls functions of the host imports one native function for each call, made here of
the operation (`target.host_call`). It makes arrays of the words that it is given, takes the
interpreter's lock, calls the function, and stores the results. An exception does not pass through
native code: it is kept, the program ends at once, and whoever called it raises the exception there
(`checked`). A program runs its host calls on the thread that called it, and functions may call
other programs.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.ir.core import Module
from tessera.ir.hostcall import Data, HostFunction
from tessera.ir.intexpr import evaluate
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.schedule.types import BufType
from tessera.target import ops as t
from tessera.target.llvm.host import host_call_symbol

_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))


# `tessera_cuda_read` and `tessera_cuda_write`; see `target/llvm/host.py`.
_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)


class _State(threading.local):
    error: BaseException | None = None


_STATE = _State()


@dataclass(frozen=True)
class CallSite:
    """One call of the host in a program.

    Attributes:
        function: what is called.
        inputs: how many of the arrays it reads; it gives the others.
        types: shape and dtype of each array.
        names: the symbolic dims that these mention, whose values are passed.
        index: which call of the program it is.
        is_remote: whether the arrays are in a GPU's memory.
    """

    function: HostFunction
    inputs: int
    types: tuple[BufType, ...]
    names: tuple[str, ...]
    index: int
    is_remote: bool = False


def call_sites(module: Module) -> tuple[CallSite, ...]:
    """The calls of the host in a program's entry, in order."""
    found: list[CallSite] = []
    for op in walk(module.entry.body):
        if isinstance(op, t.HostCall):
            remote = bool(op.record)
            found.append(CallSite(op.function, op.inputs, op.types, op.names, op.index, remote))
    return tuple(found)


class HostCalls:
    """The native functions of a program's host calls, valid as long as this object lives.

    Args:
        sites: the calls.

    Attributes:
        symbols: their addresses, by the names under which the program imports them.
    """

    def __init__(self, sites: Sequence[CallSite]) -> None:
        self._native = [_NATIVE(_entry(site)) for site in sites]
        self.symbols: Mapping[str, int] = {
            host_call_symbol(site.index): ctypes.cast(native, ctypes.c_void_p).value or 0
            for site, native in zip(sites, self._native, strict=True)
        }

    def __bool__(self) -> bool:
        return bool(self._native)


def checked(run: Callable[..., Any], keep: object = None) -> Callable[..., Any]:
    """A program's way in that raises what its host functions raised.

    Args:
        run: calls the program.
        keep: what must stay alive with it.
    """

    def call(*args: Any, _keep: object = keep) -> Any:
        outer, _STATE.error = _STATE.error, None
        try:
            found = run(*args)
            error = _STATE.error
        finally:
            _STATE.error = outer
        if error is not None:
            raise error
        return found

    return call


def _entry(site: CallSite) -> Callable[[Any], int]:
    """What native code calls."""
    types, function, inputs, count = site.types, site.function, site.inputs, len(site.types)
    names, first = site.names, 3 if site.is_remote else 0
    known = None if names else [_placer(_shape(type, {}), type.dtype.np) for type in types]

    def fill(words: Any, arrays: list[Data]) -> bool:
        """Calls it with arrays that are elsewhere; whether that went well."""

        def copy(by: int, to: int, source: int, k: int) -> bool:
            size = arrays[k].nbytes
            return not size or not _COPY(words[by])(to, source, size, words[2])

        own = [pointer(x) for x in arrays]
        # Where one fails, the record says why.
        if not all([copy(0, own[k], words[first + k], k) for k in range(inputs)]):
            return False
        function.fill(arrays[:inputs], arrays[inputs:])
        return all([copy(1, words[first + k], own[k], k) for k in range(inputs, count)])

    def run(words: Any) -> int:
        try:
            if known is not None and not first:
                arrays = [place(words[k]) for k, place in enumerate(known)]
                function.fill(arrays[:inputs], arrays[inputs:])
                return 0
            dims = {name: words[first + count + k] for k, name in enumerate(names)}
            shapes = [_shape(type, dims) for type in types]
            if first:
                arrays = [np.empty(s, t.dtype.np) for s, t in zip(shapes, types, strict=True)]
                return 0 if fill(words, arrays) else 1
            places = [_placer(s, t.dtype.np) for s, t in zip(shapes, types, strict=True)]
            arrays = [place(words[k]) for k, place in enumerate(places)]
            function.fill(arrays[:inputs], arrays[inputs:])
        except BaseException as error:
            _STATE.error = error
            return 1
        return 0

    return run


def _shape(type: BufType, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([int(evaluate(dim, dims)) for dim in type.shape])


def _placer(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[int], Data]:
    """Gives the array at an address."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return lambda address: np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address
    return lambda address: np.ndarray(shape, dtype, memory(address & (1 << 64) - 1))
