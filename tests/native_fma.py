"""Fused multiply-adds for interpreters in tests: one native loop for all elements.

`tessera/ir/special.py` has what defines them, which takes a call of Python for each float64, or a
dozen of NumPy's for a few float32: a third of the time of interpreting products and polynomials.
`tests/ir/test_special.py` holds both to exact arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.ir import special
from tessera.runtime.cpu import Caller, compile_text
from tessera.target.machine import machine

LOOP = """
define void @fma_{name}(ptr %words) {{
entry:
  %a = load ptr, ptr %words
  %b.at = getelementptr i64, ptr %words, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr i64, ptr %words, i64 2
  %c = load ptr, ptr %c.at
  %to.at = getelementptr i64, ptr %words, i64 3
  %to = load ptr, ptr %to.at
  %count.at = getelementptr i64, ptr %words, i64 4
  %count = load i64, ptr %count.at
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %end
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x.at = getelementptr {type}, ptr %a, i64 %k
  %x = load {type}, ptr %x.at
  %y.at = getelementptr {type}, ptr %b, i64 %k
  %y = load {type}, ptr %y.at
  %z.at = getelementptr {type}, ptr %c, i64 %k
  %z = load {type}, ptr %z.at
  %sum = call {type} @llvm.fma.{name}({type} %x, {type} %y, {type} %z)
  %sum.at = getelementptr {type}, ptr %to, i64 %k
  store {type} %sum, ptr %sum.at
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}}
declare {type} @llvm.fma.{name}({type}, {type}, {type})
"""


@functools.cache
def compiled(name: str, type: str) -> Caller:
    text = LOOP.format(name=name, type=type)
    return compile_text(text, machine("host"), name="fma").caller(f"fma_{name}", release_gil=False)


def as_one_loop(reference: Callable[..., Any], name: str, type: str, dtype: Any) -> Any:
    """A function that gives what the reference does."""

    @functools.wraps(reference)
    def fma(*operands: Any) -> Any:
        a, b, c = operands
        if not a.shape == b.shape == c.shape:
            a, b, c = np.broadcast_arrays(a, b, c)
        result = np.empty(a.shape, dtype)
        arrays = [np.ascontiguousarray(x) for x in (a, b, c)]
        compiled(name, type)(*arrays, result, result.size)
        return result

    return fma


def install() -> None:
    special.fma = as_one_loop(special.fma, "f64", "double", np.float64)
    special.fma_single = as_one_loop(special.fma_single, "f32", "float", np.float32)
