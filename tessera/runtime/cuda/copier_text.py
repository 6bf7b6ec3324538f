"""The native side of copies beside kernels, as LLVM text. `tessera.runtime.cuda.host_room`
describes it.

A record's `room` is the address of words: where the memory of the host begins, the stream that
copies, an event for the time at which a copy may begin, then one for each copy, for its end.
"""

from __future__ import annotations

from tessera.runtime.cuda.record import field_at, unless_failed

ROOM = ("memory", "stream", "begin", "ends")
"""The words of a room, in order; the last are as many as there are copies."""


def _word(name: str) -> str:
    return f"getelementptr i64, ptr %room, i64 {ROOM.index(name)}"


_BEGIN = f"""{unless_failed("begin")}  %stream.at = {field_at("stream")}
  %stream = load ptr, ptr %stream.at
  %room.at = {field_at("room")}
  %room = load ptr, ptr %room.at
  %end.at = getelementptr i64, ptr %room, i64 {ROOM.index("ends")}
  %own.at = getelementptr i64, ptr %end.at, i64 %number
  %end = load ptr, ptr %own.at
"""

_COPY = """
define i32 @tessera_cuda_{name}(ptr %device, i64 %at, i64 %bytes, i64 %number, \
ptr %record) nounwind {{
{begin}  %memory.at = {memory}
  %memory = load ptr, ptr %memory.at
  %host = getelementptr i8, ptr %memory, i64 %at
  %copies.at = {copies}
  %copies = load ptr, ptr %copies.at
  %event.at = {event}
  %event = load ptr, ptr %event.at
  %recorded = call i32 @cuEventRecord(ptr %event, ptr %stream)
  %recorded.bad = icmp ne i32 %recorded, 0
  br i1 %recorded.bad, label %fail, label %order, !prof !0

order:
  %ordered = call i32 @cuStreamWaitEvent(ptr %copies, ptr %event, i32 0)
  %ordered.bad = icmp ne i32 %ordered, 0
  br i1 %ordered.bad, label %fail, label %copy, !prof !0

copy:
  %copied = call i32 @{copy}(ptr %{to}, ptr %{source}, i64 %bytes, ptr %copies)
  %copied.bad = icmp ne i32 %copied, 0
  br i1 %copied.bad, label %fail, label %note, !prof !0

note:
  %noted = call i32 @cuEventRecord(ptr %end, ptr %copies)
  %noted.bad = icmp ne i32 %noted, 0
  br i1 %noted.bad, label %fail, label %done, !prof !0

done:
  ret i32 0

fail:
  %code = phi i32 [ %recorded, %begin ], [ %ordered, %order ], [ %copied, %copy ], [ %noted, %note ]
  %wide = sext i32 %code to i64
  store i64 %wide, ptr %status.at
  ret i32 %code
}}
"""


def _copy(name: str, copy: str, to: str, source: str) -> str:
    """A function that starts a copy once what was started in the stream is done."""
    return _COPY.format(
        name=name, copy=copy, to=to, source=source, begin=_BEGIN, memory=_word("memory"),
        copies=_word("stream"), event=_word("begin"),
    )  # fmt: skip


_WAIT = f"""
define i32 @tessera_cuda_wait(i64 %number, ptr %record) nounwind {{
{_BEGIN}  %code = call i32 @cuStreamWaitEvent(ptr %stream, ptr %end, i32 0)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %fail, label %done, !prof !0

done:
  ret i32 0

fail:
  %wide = sext i32 %code to i64
  store i64 %wide, ptr %status.at
  ret i32 %code
}}
"""

COPIER_TEXT = "".join(
    (
        _copy("offload", "cuMemcpyDtoHAsync_v2", "host", "device"),
        _copy("fetch", "cuMemcpyHtoDAsync_v2", "device", "host"),
        _WAIT,
        "declare i32 @cuEventRecord(ptr, ptr)\n",
        "declare i32 @cuStreamWaitEvent(ptr, ptr, i32)\n",
    )
)
"""The functions; they use declarations of the launcher's module."""

IMPORTS = ("cuEventRecord", "cuStreamWaitEvent")
"""The driver's functions that these call, beside those of the launcher."""
