"""The record that native programs start kernels with: which stream, and what happened.

A record belongs to one thread and one stream, so that programs that run at once do not meet. Native
code reads and writes it by the offsets that are given here.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tessera.runtime.cuda.stream import Stream

FIELDS: Final = (
    "stream",
    "context",
    "status",
    "failed",
    "last",
    "launches",
    "reads",
    "watch",
    "grid",
    "threads",
    "shared",
    "error_type",
    "error_value",
    "error_trace",
    "room",
)
"""The fields, each a word of 64 bits, in order."""

OFFSETS: Final = {name: index for index, name in enumerate(FIELDS)}
"""The number of each word."""


def field_at(name: str) -> str:
    """LLVM text: the address of a field of `%record`."""
    return f"getelementptr i64, ptr %record, i64 {OFFSETS[name]}"


def unless_failed(label: str) -> str:
    """LLVM text: a function's first blocks, which give the status of what has failed before, or go
    on at a label."""
    return f"""
entry:
  %status.at = {field_at("status")}
  %before = load i64, ptr %status.at
  %stopped = icmp ne i64 %before, 0
  br i1 %stopped, label %skip, label %{label}, !prof !0

skip:
  %known = trunc i64 %before to i32
  ret i32 %known

{label}:
"""


class LaunchRecord(ctypes.Structure):
    """What a native program is told, and what it reports.

    Attributes:
        stream: the driver's handle.
        context: the device's context, which is made current for a run.
        status: of the first thing that failed in a run; 0: nothing did.
        failed: the kernel that failed, 0 if it was none.
        last: the kernel that was launched last.
        launches: how many there were, ever.
        reads: how many there were, ever.
        watch: microseconds that a kernel may take, which is waited for after its launch; -1 for any
            time, and 0 for not waiting.
        grid: blocks of the launch that failed.
        threads: of its blocks.
        shared: its bytes of dynamic shared memory.
        error_type: class of what a signal's handler raised during the run, as CPython's
            ``PyErr_Fetch`` gives it.
        error_value: the same error's value.
        error_trace: its traceback.
        room: what a run has that copies to the host; see `tessera.runtime.cuda.host_room`.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in FIELDS)
    stream: int
    context: int
    status: int
    failed: int
    last: int
    launches: int
    reads: int
    watch: int
    grid: int
    threads: int
    shared: int
    error_type: int
    error_value: int
    error_trace: int
    room: int

    address: int
    """Where it lies."""

    owner: Stream
    """The stream."""


def new_record(stream: Stream) -> LaunchRecord:
    """A record for runs in a stream."""
    record = LaunchRecord()
    record.address = ctypes.addressof(record)
    record.owner = stream
    record.stream = _signed(stream.handle)
    record.context = _signed(stream.device.context)
    return record


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
