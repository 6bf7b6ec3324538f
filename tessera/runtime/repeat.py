"""The native loop over the matrices of a batch that `tessera.ir.fortran` asks for.

For each number of parameters there is one function, `repeat_<n>(function, count, starts, steps)`,
which calls `function` with n pointers, and then again with each a step further, and another one,
`parts_<n>(context, lo, hi)`, which does so for some parts of a batch: threads of the pool share
these. The interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera.config import config
from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loaded, load
from tessera.runtime.threads import symbols
from tessera.target.llvm.parallel import PARALLEL
from tessera.target.machine import machine

PARAMETERS = range(4, 18)
"""How many parameters routines have that are called for batches."""

_CONTEXT = {
    "function": "ptr", "count": "i64", "starts": "ptr", "steps": "ptr", "shares": "ptr",
    "size": "i64",
}  # fmt: skip
"""What the parts of a batch have in common: words, and their types."""


def repeat(
    address: int,
    count: int,
    starts: Sequence[int],
    steps: Sequence[int],
    shares: Sequence[int] = (),
    parts: int = 1,
) -> None:
    """Calls the function at an address with pointers that advance.

    Args:
        address: a C function of so many pointers, which returns nothing.
        count: how many times.
        starts: the pointers of the first call.
        steps: how many bytes each is further in the next one.
        shares: how many bytes each is further in the next part, besides: memory that the calls of a
            part may all use.
        parts: how many parts threads share.
    """
    words = ctypes.c_int64 * len(starts)
    first, further = words(*starts), words(*steps)
    if parts == 1:
        _loop(len(starts))(address, count, first, further)
        return
    part = -(-count // parts)
    own = words(*shares)
    places = [address, count, *map(ctypes.addressof, (first, further, own)), part]
    context = (ctypes.c_int64 * len(places))(*places)
    function = _loops().addresses[f"parts_{len(starts)}"]
    limit = config.current().threads
    _parallel()(function, context, -(-count // part), 1, limit)


@functools.cache
def _parallel() -> Callable[..., None]:
    kinds: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3]
    return ctypes.CFUNCTYPE(None, *kinds)(symbols(1)[PARALLEL])


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
    fields = "".join(
        [
            f"  %{name}.at = getelementptr i64, ptr %context, i64 {k}\n"
            f"  %{name} = load {kind}, ptr %{name}.at\n"
            for k, (name, kind) in enumerate(_CONTEXT.items())
        ]
    )
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
define void @parts_{n}(ptr %context, i64 %lo, i64 %hi) {{
entry:
  %own = alloca [{n} x i64]
{fields}  br label %part
part:
  %p = phi i64 [ %lo, %entry ], [ %p.next, %call ]
  %begin = mul i64 %p, %size
  %left = sub i64 %count, %begin
  %is.short = icmp slt i64 %left, %size
  %some = select i1 %is.short, i64 %left, i64 %size
  br label %place
place:
  %k = phi i64 [ 0, %part ], [ %k.next, %place ]
  %start.at = getelementptr i64, ptr %starts, i64 %k
  %start = load i64, ptr %start.at
  %step.at = getelementptr i64, ptr %steps, i64 %k
  %step = load i64, ptr %step.at
  %share.at = getelementptr i64, ptr %shares, i64 %k
  %share = load i64, ptr %share.at
  %by = mul i64 %begin, %step
  %beside = mul i64 %p, %share
  %further = add i64 %by, %beside
  %at = add i64 %start, %further
  %own.at = getelementptr i64, ptr %own, i64 %k
  store i64 %at, ptr %own.at
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, {n}
  br i1 %more, label %place, label %call
call:
  call void @repeat_{n}(ptr %function, i64 %some, ptr %own, ptr %steps)
  %p.next = add i64 %p, 1
  %going = icmp slt i64 %p.next, %hi
  br i1 %going, label %part, label %done
done:
  ret void
}}
"""
