"""LLVM text of what the entry asks of the host: calls of Python functions, and the ops that use a
GPU (`target/host_ops.py`).

A call of a host function gets the words of its operation, pointers and then dims, and gives 0, or
something else where the entry is to end. Where the arrays are in a GPU's memory, the functions that
read and write it (or null, where the call gives nothing) and the record of the run come first.

    i32 tessera_host_call_<index>(ptr words)

For a GPU, functions of the runtime are called:

    i32 tessera_cuda_launch(ptr function, i64 grid, i32 threads, i32 shared, ptr record, ptr params)
    i32 tessera_cuda_read(ptr host, ptr device, i64 bytes, ptr record)
    i32 tessera_cuda_write(ptr device, ptr host, i64 bytes, ptr record)
    i32 tessera_cuda_offload(ptr device, i64 at, i64 bytes, i64 number, ptr record)
    i32 tessera_cuda_fetch(ptr device, i64 at, i64 bytes, i64 number, ptr record)
    i32 tessera_cuda_wait(i64 number, ptr record)

They give 0, or the driver's answer, with which main ends; the record holds what failed.

Parameters of kernels stand on the stack, a word each, and next to them the pointers to these words
that the driver wants. As all have one size, the pointers are the same for all kernels, and are
written once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Op
from tessera.target import host_ops as h
from tessera.target import ops as t
from tessera.target.llvm.text import Rule, Writer, memory_text

LAUNCH, READ, WRITE = "tessera_cuda_launch", "tessera_cuda_read", "tessera_cuda_write"

OFFLOAD, FETCH, WAIT = "tessera_cuda_offload", "tessera_cuda_fetch", "tessera_cuda_wait"

IMPORTS = (LAUNCH, READ, WRITE, OFFLOAD, FETCH, WAIT)
"""The functions of the runtime that host code may call."""

_LAUNCH_TEXT = f"declare i32 @{LAUNCH}(ptr, i64, i32, i32, ptr, ptr) nounwind"
_READ_TEXT = f"declare i32 @{READ}(ptr, ptr, i64, ptr) nounwind"
_WRITE_TEXT = f"declare i32 @{WRITE}(ptr, ptr, i64, ptr) nounwind"


def frame(parameters: int) -> list[str]:
    """How the entry begins: room for so many parameters, and a word that is read back."""
    lines = [
        "  %word = alloca i64, align 8",
        f"  %args = alloca [{max(parameters, 1)} x i64], align 16",
        f"  %params = alloca [{max(parameters, 1)} x ptr], align 16",
    ]
    for k in range(parameters):
        lines += [
            f"  %arg{k} = getelementptr i64, ptr %args, i64 {k}",
            f"  %param{k} = getelementptr ptr, ptr %params, i64 {k}",
            f"  store ptr %arg{k}, ptr %param{k}, align 8",
        ]
    return lines


def _launch(w: Writer, op: h.LaunchKernel) -> None:
    w.declare(LAUNCH, _LAUNCH_TEXT)
    w.parameters = max(w.parameters or 0, len(op.args))
    n, grid = w.next_label(), w.name(op.grid)
    some = w.assign(f"icmp sgt i64 {grid}, 0")
    w.put(f"br i1 {some}, label %launch{n}, label %next{n}")
    w.start(f"launch{n}")
    for k, arg in enumerate(op.args):
        w.put(f"store {w.typed(arg)}, ptr %arg{k}, align 8")
    entry = w.assign(f"getelementptr i8, ptr {w.name(op.table)}, i64 {16 * op.index}")
    function = w.assign(f"load ptr, ptr {entry}, align 8")
    sizes: list[str] = []
    for at in (8, 12):
        field = w.assign(f"getelementptr i8, ptr {entry}, i64 {at}")
        sizes.append(w.assign(f"load i32, ptr {field}, align 4"))
    code = w.assign(
        f"call i32 @{LAUNCH}(ptr {function}, i64 {grid}, i32 {sizes[0]}, i32 {sizes[1]}, "
        f"ptr {w.name(op.record)}, ptr %params)"
    )
    _stop_unless_done(w, code, f"next{n}")


def _stop_unless_done(w: Writer, code: str, following: str) -> None:
    """Ends main after an error, else goes on with the block `following`."""
    n = w.next_label()
    failed = w.assign(f"icmp ne i32 {code}, 0")
    w.put(f"br i1 {failed}, label %failed{n}, label %{following}")
    w.start(f"failed{n}")
    w.put("ret void")
    w.start(following)


def _read_back(w: Writer, op: h.ReadBack) -> None:
    w.declare(READ, _READ_TEXT)
    w.parameters = w.parameters or 0
    dtype = t.element(op.type)
    element = f"i{8 * dtype.itemsize}"
    at = w.assign(f"getelementptr {element}, ptr {w.name(op.ptr)}, i64 {w.name(op.offset)}")
    code = w.assign(
        f"call i32 @{READ}(ptr %word, ptr {at}, i64 {dtype.itemsize}, ptr {w.name(op.record)})"
    )
    _stop_unless_done(w, code, f"read{w.next_label()}")
    value = w.assign(f"load {memory_text(op.type)}, ptr %word, align 8")
    if dtype.is_bool:
        value = w.assign(f"icmp ne {memory_text(op.type)} {value}, 0")
    w.names[op.result] = value


def host_call_symbol(index: int) -> str:
    """The name under which a program calls a host function."""
    return f"tessera_host_call_{index}"


def _host_call(w: Writer, op: t.HostCall) -> None:
    symbol = host_call_symbol(op.index)
    w.declare(symbol, f"declare i32 @{symbol}(ptr) nounwind")
    words = [w.typed(value) for value in op.operands]
    if op.record:
        w.declare(READ, _READ_TEXT)
        gives = op.inputs < len(op.args)
        if gives:
            w.declare(WRITE, _WRITE_TEXT)
        words[:0] = [f"ptr @{READ}", f"ptr @{WRITE}" if gives else "ptr null"]
    w.parameters = max(w.parameters or 0, len(words))
    for k, word in enumerate(words):
        w.put(f"store {word}, ptr %arg{k}, align 8")
    code = w.assign(f"call i32 @{symbol}(ptr %args)")
    _stop_unless_done(w, code, f"called{w.next_label()}")


def _copy(w: Writer, op: h.Offload | h.Fetch) -> None:
    symbol = OFFLOAD if isinstance(op, h.Offload) else FETCH
    w.declare(symbol, f"declare i32 @{symbol}(ptr, i64, i64, i64, ptr) nounwind")
    w.parameters = w.parameters or 0
    code = w.assign(
        f"call i32 @{symbol}(ptr {w.name(op.ptr)}, i64 {op.at}, i64 {op.size}, i64 {op.number}, "
        f"ptr {w.name(op.record)})"
    )
    _stop_unless_done(w, code, f"copied{w.next_label()}")


def _wait(w: Writer, op: h.WaitForCopy) -> None:
    w.declare(WAIT, f"declare i32 @{WAIT}(i64, ptr) nounwind")
    w.parameters = w.parameters or 0
    code = w.assign(f"call i32 @{WAIT}(i64 {op.number}, ptr {w.name(op.record)})")
    _stop_unless_done(w, code, f"waited{w.next_label()}")


RULES: Mapping[type[Op], Rule] = {
    h.Offload: _copy,
    h.Fetch: _copy,
    h.WaitForCopy: _wait,
    t.HostCall: _host_call,
    h.LaunchKernel: _launch,
    h.ReadBack: _read_back,
}
