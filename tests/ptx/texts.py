"""Kernels to try the PTX interpreter on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.errors import CompileError
from tessera.runtime.cuda.assemblers import find_assembler
from tests.ptx_interpreter import run

HEAD = """.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
REGISTERS = """    .reg .pred %p<9>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %rd<40>;
    .reg .f32 %f<60>; .reg .f64 %fd<20>;
"""
BYTES = {"b16": 2, "b32": 4, "b64": 8}
FILES = {"b16": "%h", "b32": "%r", "b64": "%rd"}


@functools.cache
def assembled(text: str) -> None:
    """Refuse what the real assembler refuses."""
    try:
        assembler = find_assembler("auto")
    except CompileError:
        return
    result = assembler.run(text, "sm_90a")
    assert result.cubin is not None, result.log


def kernel(body: str, params: str = ".param .u64 a, .param .u64 b", declare: str = "") -> str:
    text = f"{HEAD}{declare}.visible .entry k({params})\n{{\n{REGISTERS}{body}\n    ret;\n}}\n"
    assembled(text)
    return text


def mapped(code: str, inputs: Sequence[str], output: str) -> str:
    """A kernel that runs code in each thread on one element of each input: `x0`, `x1`, ... in
    registers %h0, %r0 or %rd0 and so on by their number, to number 9 of the output's file."""
    body = [
        "    mov.u32 %r50, %tid.x;",
        "    mov.u32 %r51, %ctaid.x;",
        "    mov.u32 %r52, %ntid.x;",
    ]
    body.append("    mad.lo.u32 %r50, %r51, %r52, %r50;")
    for i, kind in enumerate([*inputs, output]):
        body.append(f"    ld.param.u64 %rd{20 + i}, [x{i}];")
        body.append(f"    mad.wide.u32 %rd{20 + i}, %r50, {BYTES[kind]}, %rd{20 + i};")
    for i, kind in enumerate(inputs):
        body.append(f"    ld.global.{kind} {FILES[kind]}{i}, [%rd{20 + i}];")
    body.append(code)
    body.append(f"    st.global.{output} [%rd{20 + len(inputs)}], {FILES[output]}9;")
    params = ", ".join(f".param .u64 x{i}" for i in range(len(inputs) + 1))
    return kernel("\n".join(body), params)


def file_of(dtype: np.dtype[Any]) -> str:
    return f"b{8 * dtype.itemsize}"


def computed(code: str, *inputs: Any, out: Any) -> Any:
    """What code makes of arrays of one length, 64 threads a block."""
    arrays = [np.ascontiguousarray(x) for x in inputs]
    n = -(-len(arrays[0]) // 64) * 64
    padded = [np.resize(x, n) for x in arrays]
    result = np.zeros(n, out)
    text = mapped(code, [file_of(x.dtype) for x in arrays], file_of(result.dtype))
    run(text, "k", n // 64, 64, [*padded, result])
    return result[: len(arrays[0])]


def same(got: Any, expected: Any) -> None:
    """Equal in every bit, any NaN equal to any other."""
    expected = np.asarray(expected, got.dtype)
    if got.dtype.kind not in "iub?":
        both = np.isnan(got) & np.isnan(expected)
        bits = f"u{got.dtype.itemsize}"
        got = np.where(both, 0, got.view(bits))
        expected = np.where(both, 0, expected.view(bits))
    np.testing.assert_array_equal(got, expected)
