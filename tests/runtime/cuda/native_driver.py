"""Functions of a driver as native code, which write down what they are called with.

Native programs call the driver by address; these addresses stand in for it. What the functions
answer is set, and what they were told is read, through `words`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loaded, load
from tessera.target.machine import machine

_FIELDS = (
    "launches", "kernel", "blocks", "y", "z", "threads", "block_y", "block_z", "shared", "stream",
    "parameter", "launch_status", "context", "pushes", "pops", "push_status", "current_status",
    "queries", "busy", "query_status", "copies", "copy_status", "synchronizations",
    "synchronize_status", "attributes", "attribute0", "value0", "attribute1", "value1",
    "records", "recorded", "recorded_in", "record_status", "waits", "waiting", "waited",
    "wait_status", "copied_in",
)  # fmt: skip


def _at(name: str) -> str:
    return f"getelementptr i64, ptr @words, i64 {_FIELDS.index(name)}"


def _save(name: str, value: str, number: int, kind: str = "i32") -> str:
    if kind == "ptr":
        return f"  %p{number} = {_at(name)}\n  store ptr {value}, ptr %p{number}\n"
    return (
        f"  %w{number} = zext {kind} {value} to i64\n  %p{number} = {_at(name)}\n"
        f"  store i64 %w{number}, ptr %p{number}\n"
    )


def _count(name: str) -> str:
    return (
        f"  %c.at = {_at(name)}\n  %c = load i64, ptr %c.at\n  %c.next = add i64 %c, 1\n"
        "  store i64 %c.next, ptr %c.at\n"
    )


def _answer(name: str) -> str:
    return f"  %s.at = {_at(name)}\n  %s = load i32, ptr %s.at\n  ret i32 %s\n}}\n"


def _parameter(number: int) -> str:
    return (
        "  %first = load ptr, ptr %parameters\n  %value = load i64, ptr %first\n"
        f"  %p{number} = {_at('parameter')}\n  store i64 %value, ptr %p{number}\n"
    )


def _numbers(names: str) -> str:
    parts: list[str] = []
    for i, name in enumerate(names.split()):
        parts.append(
            f"  %a{i} = getelementptr i8, ptr %config, i64 {4 * i}\n"
            f"  %v{i} = load i32, ptr %a{i}\n" + _save(name, f"%v{i}", i)
        )
    return "".join(parts)


def _attribute(index: int) -> str:
    at = 72 * index
    return (
        f"  %t{index} = getelementptr i8, ptr %list, i64 {at}\n"
        f"  %id{index} = load i32, ptr %t{index}\n"
        f"  %u{index} = getelementptr i8, ptr %list, i64 {at + 8}\n"
        f"  %val{index} = load i32, ptr %u{index}\n"
        + _save(f"attribute{index}", f"%id{index}", 20 + 2 * index)
        + _save(f"value{index}", f"%val{index}", 21 + 2 * index)
    )


_TEXT = (
    f"@words = global [{len(_FIELDS)} x i64] zeroinitializer\n"
    "define ptr @log() { ret ptr @words }\n"
    "define i32 @cuLaunchKernel(ptr %kernel, i32 %x, i32 %y, i32 %z, i32 %bx, i32 %by, i32 %bz, "
    "i32 %shared, ptr %stream, ptr %parameters, ptr %extra) {\n"
    + _count("launches")
    + _save("kernel", "%kernel", 0, "ptr")
    + _save("blocks", "%x", 1)
    + _save("y", "%y", 2)
    + _save("z", "%z", 3)
    + _save("threads", "%bx", 4)
    + _save("block_y", "%by", 5)
    + _save("block_z", "%bz", 6)
    + _save("shared", "%shared", 7)
    + _save("stream", "%stream", 8, "ptr")
    + _parameter(9)
    + _answer("launch_status")
    + "define i32 @cuLaunchKernelEx(ptr %config, ptr %kernel, ptr %parameters, ptr %extra) {\n"
    + _count("launches")
    + _numbers("blocks y z threads block_y block_z shared")
    + _save("kernel", "%kernel", 10, "ptr")
    + "  %stream.at = getelementptr i8, ptr %config, i64 32\n"
    "  %stream = load ptr, ptr %stream.at\n"
    + _save("stream", "%stream", 11, "ptr")
    + "  %list.at = getelementptr i8, ptr %config, i64 40\n"
    "  %list = load ptr, ptr %list.at\n"
    "  %n.at = getelementptr i8, ptr %config, i64 48\n"
    "  %n = load i32, ptr %n.at\n"
    + _save("attributes", "%n", 12)
    + _attribute(0)
    + _attribute(1)
    + _parameter(13)
    + _answer("launch_status")
    + "define i32 @cuEventRecord(ptr %event, ptr %stream) {\n"
    + _count("records")
    + _save("recorded", "%event", 0, "ptr")
    + _save("recorded_in", "%stream", 1, "ptr")
    + _answer("record_status")
    + "define i32 @cuStreamWaitEvent(ptr %stream, ptr %event, i32 %flags) {\n"
    + _count("waits")
    + _save("waiting", "%stream", 0, "ptr")
    + _save("waited", "%event", 1, "ptr")
    + _answer("wait_status")
    + "define i32 @cuMemcpyDtoHAsync_v2(ptr %host, ptr %device, i64 %bytes, ptr %stream) {\n"
    + _count("copies")
    + _save("copied_in", "%stream", 0, "ptr")
    + "  call void @llvm.memcpy.p0.p0.i64(ptr %host, ptr %device, i64 %bytes, i1 false)\n"
    + _answer("copy_status")
    + "define i32 @cuMemcpyHtoDAsync_v2(ptr %device, ptr %host, i64 %bytes, ptr %stream) {\n"
    + _count("copies")
    + _save("copied_in", "%stream", 0, "ptr")
    + "  call void @llvm.memcpy.p0.p0.i64(ptr %device, ptr %host, i64 %bytes, i1 false)\n"
    + _answer("copy_status")
    + "define i32 @cuStreamQuery(ptr %stream) {\n"
    + _count("queries")
    + f"  %b.at = {_at('busy')}\n  %b = load i64, ptr %b.at\n  %more = icmp sgt i64 %b, 0\n"
    "  br i1 %more, label %wait, label %over\n"
    "wait:\n  %b.next = sub i64 %b, 1\n  store i64 %b.next, ptr %b.at\n  ret i32 600\n"
    "over:\n"
    + _answer("query_status")
    + "define i32 @cuStreamSynchronize(ptr %stream) {\n"
    + _count("synchronizations")
    + _answer("synchronize_status")
    + f"define i32 @cuCtxGetCurrent(ptr %out) {{\n  %at = {_at('context')}\n"
    "  %now = load ptr, ptr %at\n  store ptr %now, ptr %out\n"
    + _answer("current_status")
    + "define i32 @cuCtxPushCurrent_v2(ptr %context) {\n"
    + _count("pushes")
    + _answer("push_status")
    + "define i32 @cuCtxPopCurrent_v2(ptr %out) {\n"
    + _count("pops")
    + "  ret i32 0\n}\n"
    + "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
)


class NativeDriver:
    """The functions, and what they were called with.

    Attributes:
        addresses: by name.
    """

    def __init__(self) -> None:
        source = Source(_TEXT, machine("host"), "native driver", optimize=False, passes="none")
        self._loaded: Loaded = load(source, ObjectCache(None))
        self.addresses: Mapping[str, int] = self._loaded.addresses
        log = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.addresses["log"])()
        assert log is not None
        self._words = (ctypes.c_int64 * len(_FIELDS)).from_address(log)

    def reset(self) -> None:
        """Forget all calls, and answer 0 to everything."""
        for i in range(len(_FIELDS)):
            self._words[i] = 0

    def __getitem__(self, name: str) -> int:
        return self._words[_FIELDS.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[_FIELDS.index(name)] = value
