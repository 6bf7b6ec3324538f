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
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tessera.ir.core import Module
from tessera.ir.hostcall import Data
from tessera.ir.intexpr import evaluate
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.target import ops as t
from tessera.target.llvm.host import host_call_symbol

_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))


# `tessera_cuda_read`; see `target/llvm/host.py`.
_READ = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)


class _State(threading.local):
    error: BaseException | None = None


_STATE = _State()


class HostCalls:
    """The native functions of a program's host calls, valid as long as this object lives.

    Args:
        module: the program; its entry holds the calls.

    Attributes:
        symbols: their addresses, by the names under which the program imports them.
    """

    def __init__(self, module: Module) -> None:
        calls = [op for op in walk(module.entry.body) if isinstance(op, t.HostCall)]
        self._native = [_NATIVE(_entry(op)) for op in calls]
        self.symbols: Mapping[str, int] = {
            host_call_symbol(op.index): ctypes.cast(native, ctypes.c_void_p).value or 0
            for op, native in zip(calls, self._native, strict=True)
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


def _entry(op: t.HostCall) -> Callable[[Any], int]:
    """What native code calls."""
    types, function, inputs, count = op.types, op.function, op.inputs, len(op.args)
    names, first = op.names, 2 if op.record else 0

    def run(words: Any) -> int:
        try:
            dims = {name: words[first + count + k] for k, name in enumerate(names)}
            arrays: list[Data] = []
            for k, type in enumerate(types):
                shape = tuple([int(evaluate(dim, dims)) for dim in type.shape])
                address = words[first + k]
                if not first:
                    arrays.append(_array(address, shape, type.dtype.np))
                    continue
                arrays.append(array := np.empty(shape, type.dtype.np))
                if array.size and _READ(words[0])(pointer(array), address, array.nbytes, words[1]):
                    return 1  # the record says why
            function.fill(arrays[:inputs], arrays[inputs:])
        except BaseException as error:
            _STATE.error = error
            return 1
        return 0

    return run


def _array(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Data:
    """The array at an address."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address & (1 << 64) - 1)
    return np.frombuffer(memory, dtype).reshape(shape)
