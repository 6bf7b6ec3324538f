"""Short ways to write and run kernels as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.target.gpu import gpu
from tessera.target.simulate import run_kernel

Array = np.ndarray[Any, Any]

SM90 = gpu("sm_90a")

HEAD = """
%t = target.thread_id() : i32
%b = target.block_id() : i32
%i0 = target.const() {value=0, type=i32} : i32
%i1 = target.const() {value=1, type=i32} : i32
%i2 = target.const() {value=2, type=i32} : i32
%i4 = target.const() {value=4, type=i32} : i32
%i32 = target.const() {value=32, type=i32} : i32
%l0 = target.const() {value=0, type=i64} : i64
%l1 = target.const() {value=1, type=i64} : i64
%f0 = target.const() {value=0.0, type=f32} : f32
"""


def kernel(body: str, args: Sequence[str], threads: int = 32, info: str = "") -> Func:
    """A kernel whose body is given; `%t` and `%b` are the thread and the block."""
    more = f", {info}" if info else ""
    start = f"target.block_info() {{threads={threads}{more}}}"
    return parse_func(f"func @k({', '.join(args)}) {{ {start} {HEAD} {body} return }}")


def run_on(func: Func, args: Sequence[Any], grid: int, mode: Any = "eager") -> None:
    """Runs a kernel."""
    run_kernel(func, args, grid, machine=SM90, async_mode=mode)


def run(
    body: str,
    *arrays: Array,
    threads: int = 32,
    grid: int = 1,
    mode: Any = "eager",
    info: str = "",
    check: bool = True,
) -> None:
    """Runs a kernel on arrays, which it knows as `%x0`, `%x1`, ..."""
    args = [f"%x{k}: ptr<global>" for k in range(len(arrays))]
    func = kernel(body, args, threads, info)
    run_kernel(func, arrays, grid, machine=SM90, async_mode=mode, check=check)


INDEX = """
%T = target.const() {value=32, type=i32} : i32
%start = target.map([%b, %T]) {fn=mul} : i32
%i = target.map([%start, %t]) {fn=add} : i32
"""
"""The thread's number in the grid, `%i`, for blocks of 32."""
