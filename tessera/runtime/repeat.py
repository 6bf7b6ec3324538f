"""The native loop over the matrices of a batch that `tessera.ir.fortran` asks for.

For each number of parameters there is one function, `repeat_<n>(function, count, starts, steps)`,
which calls `function` with n pointers, and then again with each a step further. The interpreter's
lock is free meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine

PARAMETERS = range(4, 18)
"""How many parameters routines have that are called for batches."""


def repeat(address: int, count: int, starts: Sequence[int], steps: Sequence[int]) -> None:
    """Calls the function at an address with pointers that advance.

    Args:
        address: a C function of so many pointers, which returns nothing.
        count: how many times.
        starts: the pointers of the first call.
        steps: how many bytes each is further in the next one.
    """
    words = ctypes.c_int64 * len(starts)
    _loop(len(starts))(address, count, words(*starts), words(*steps))


@functools.cache
def _loops() -> Loaded:
    text = "".join([_text(n) for n in PARAMETERS])
    return load(Source(text, machine("host"), "tessera.repeat", unroll=False), default_cache())


@functools.cache
def _loop(parameters: int) -> Callable[..., None]:
    address = _loops().addresses[f"repeat_{parameters}"]
    kinds: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *kinds)(address)


def _text(n: int) -> str:
    """LLVM text of the loop for so many parameters."""
    head, body, places = "", "", [f"ptr %p{k}" for k in range(n)]
    for k in range(n):
        head += f"""\
  %start{k} = getelementptr ptr, ptr %starts, i64 {k}
  %first{k} = load ptr, ptr %start{k}
  %at{k} = getelementptr i64, ptr %steps, i64 {k}
  %step{k} = load i64, ptr %at{k}
"""
        body += f"  %p{k} = phi ptr [ %first{k}, %entry ], [ %next{k}, %call ]\n"
    moves = "".join([f"  %next{k} = getelementptr i8, ptr %p{k}, i64 %step{k}\n" for k in range(n)])
    return f"""
define void @repeat_{n}(ptr %function, i64 %count, ptr %starts, ptr %steps) {{
entry:
{head}  %some = icmp sgt i64 %count, 0
  br i1 %some, label %call, label %done
call:
  %i = phi i64 [ 0, %entry ], [ %i.next, %call ]
{body}  call void %function({", ".join(places)})
{moves}  %i.next = add nuw i64 %i, 1
  %going = icmp slt i64 %i.next, %count
  br i1 %going, label %call, label %done
done:
  ret void
}}
"""
