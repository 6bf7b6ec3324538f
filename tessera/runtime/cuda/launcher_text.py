"""The native side of launches, as LLVM text. `tessera.runtime.cuda.launch` describes it."""

from __future__ import annotations

from tessera.runtime.cuda.copier_text import COPIER_TEXT
from tessera.runtime.cuda.copier_text import IMPORTS as COPIER_IMPORTS
from tessera.runtime.cuda.errors import INTERRUPTED, TIMED_OUT
from tessera.runtime.cuda.record import field_at, unless_failed

# A run looks for Ctrl-C once in so many launches, reads, and questions whether a read is ready;
# after so many questions it sleeps between them, for so many microseconds. Signals are handled by
# the main thread alone; in others, CPython has nothing to do.
_LAUNCHES_PER_POLL = 4096
_READS_PER_POLL = 256
_QUESTIONS_PER_POLL = 512
_QUESTIONS_BEFORE_SLEEP = 2000
_SLEEP = 50

_NOT_READY = 600
_MONOTONIC = 1  # the clock
_LARGEST_GRID = (1 << 31) - 1
_CLUSTER, _OVERLAP = 4, 6  # CUlaunchAttributeID
_ATTRIBUTE_BYTES = 72


_LAUNCH_ARGUMENTS = (
    "ptr %kernel, i64 %grid, i32 %threads, i32 %shared, ptr %record, ptr %parameters"
)

# What comes before the driver is called: nothing after a failure, no launch of no blocks. Counts.
_BEFORE = f"""{unless_failed("size")}  %empty = icmp eq i64 %grid, 0
  br i1 %empty, label %nothing, label %check, !prof !0

nothing:
  ret i32 0

check:
  %large = icmp ugt i64 %grid, {_LARGEST_GRID}
  br i1 %large, label %refuse, label %count, !prof !0

refuse:
  %refused = call i32 @finish(ptr %kernel, i64 %grid, i32 %threads, i32 %shared, ptr %record, i32 1)
  ret i32 %refused

count:
  %last.at = {field_at("last")}
  store ptr %kernel, ptr %last.at
  %count.at = {field_at("launches")}
  %launches = load i64, ptr %count.at
  %launches.next = add i64 %launches, 1
  store i64 %launches.next, ptr %count.at
  %many = and i64 %launches.next, {_LAUNCHES_PER_POLL - 1}
  %is.time = icmp eq i64 %many, 0
  br i1 %is.time, label %poll, label %start, !prof !0

poll:
  %polled = call i32 @poll(ptr %record)
  %quit = icmp ne i32 %polled, 0
  br i1 %quit, label %leave, label %start, !prof !0

leave:
  ret i32 %polled

start:
  %stream.at = {field_at("stream")}
  %stream = load ptr, ptr %stream.at
  %blocks = trunc i64 %grid to i32
"""

_AFTER = """
  %result = call i32 @finish(ptr %kernel, i64 %grid, i32 %threads, i32 %shared, ptr %record, \
i32 %status)
  ret i32 %result
}
"""

# CUlaunchConfig: six numbers of 32 bits, shared memory, the stream at 32, the attributes at 40,
# and how many at 48. An attribute: its number, and its value at 8.
_START_WITH = f"""
  %config = alloca [56 x i8], align 8
  %attributes = alloca [{2 * _ATTRIBUTE_BYTES} x i8], align 8
  call void @llvm.memset.p0.i64(ptr %attributes, i8 0, i64 {2 * _ATTRIBUTE_BYTES}, i1 false)
  store i32 %blocks, ptr %config
  %grid.y = getelementptr i8, ptr %config, i64 4
  store i32 1, ptr %grid.y
  %grid.z = getelementptr i8, ptr %config, i64 8
  store i32 1, ptr %grid.z
  %block.x = getelementptr i8, ptr %config, i64 12
  store i32 %threads, ptr %block.x
  %block.y = getelementptr i8, ptr %config, i64 16
  store i32 1, ptr %block.y
  %block.z = getelementptr i8, ptr %config, i64 20
  store i32 1, ptr %block.z
  %bytes = getelementptr i8, ptr %config, i64 24
  store i32 %shared, ptr %bytes
  %config.stream = getelementptr i8, ptr %config, i64 32
  store ptr %stream, ptr %config.stream
  %list = getelementptr i8, ptr %config, i64 40
  store ptr %attributes, ptr %list
  %is.cluster = icmp ugt i32 %cluster, 1
  br i1 %is.cluster, label %clustered, label %single

clustered:
  store i32 {_CLUSTER}, ptr %attributes
  %cluster.x = getelementptr i8, ptr %attributes, i64 8
  store i32 %cluster, ptr %cluster.x
  %cluster.y = getelementptr i8, ptr %attributes, i64 12
  store i32 1, ptr %cluster.y
  %cluster.z = getelementptr i8, ptr %attributes, i64 16
  store i32 1, ptr %cluster.z
  br label %single

single:
  %one = phi i64 [ 0, %start ], [ 1, %clustered ]
  %is.early = icmp ne i32 %overlap, 0
  br i1 %is.early, label %early, label %call

early:
  %at = mul i64 %one, {_ATTRIBUTE_BYTES}
  %second = getelementptr i8, ptr %attributes, i64 %at
  store i32 {_OVERLAP}, ptr %second
  %allowed = getelementptr i8, ptr %second, i64 8
  store i32 1, ptr %allowed
  %both = add i64 %one, 1
  br label %call

call:
  %many.attributes = phi i64 [ %one, %single ], [ %both, %early ]
  %number = trunc i64 %many.attributes to i32
  %number.at = getelementptr i8, ptr %config, i64 48
  store i32 %number, ptr %number.at
  %status = call i32 @cuLaunchKernelEx(ptr %config, ptr %kernel, ptr %parameters, ptr null)
"""

_FINISH = f"""
define internal i32 @finish(ptr %kernel, i64 %grid, i32 %threads, i32 %shared, ptr %record, \
i32 %status) nounwind {{
entry:
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %fail, label %watch, !prof !0

watch:
  %watch.at = {field_at("watch")}
  %limit = load i64, ptr %watch.at
  %unwatched = icmp eq i64 %limit, 0
  br i1 %unwatched, label %done, label %wait

wait:
  %stream.at = {field_at("stream")}
  %stream = load ptr, ptr %stream.at
  %seen = call i32 @wait(ptr %record, ptr %stream, i64 %limit)
  %objection = icmp ne i32 %seen, 0
  br i1 %objection, label %fail, label %done

fail:
  %code = phi i32 [ %status, %entry ], [ %seen, %wait ]
  %wide = sext i32 %code to i64
  %status.at = {field_at("status")}
  store i64 %wide, ptr %status.at
  %failed.at = {field_at("failed")}
  store ptr %kernel, ptr %failed.at
  %grid.at = {field_at("grid")}
  store i64 %grid, ptr %grid.at
  %threads.wide = zext i32 %threads to i64
  %threads.at = {field_at("threads")}
  store i64 %threads.wide, ptr %threads.at
  %shared.wide = zext i32 %shared to i64
  %shared.at = {field_at("shared")}
  store i64 %shared.wide, ptr %shared.at
  ret i32 %code

done:
  ret i32 0
}}

define internal i32 @poll(ptr %record) nounwind {{
entry:
  %state = call i32 @PyGILState_Ensure()
  %answer = call i32 @PyErr_CheckSignals()
  %raised = icmp ne i32 %answer, 0
  br i1 %raised, label %fetch, label %leave

fetch:
  %type.at = {field_at("error_type")}
  %value.at = {field_at("error_value")}
  %trace.at = {field_at("error_trace")}
  call void @PyErr_Fetch(ptr %type.at, ptr %value.at, ptr %trace.at)
  %status.at = {field_at("status")}
  store i64 {INTERRUPTED}, ptr %status.at
  br label %leave

leave:
  %result = phi i32 [ 0, %entry ], [ {INTERRUPTED}, %fetch ]
  call void @PyGILState_Release(i32 %state)
  ret i32 %result
}}

define internal i64 @microseconds() nounwind {{
  %time = alloca [2 x i64], align 8
  %status = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000
  %part = sdiv i64 %rest, 1000
  %sum = add i64 %whole, %part
  ret i64 %sum
}}

define internal i32 @wait(ptr %record, ptr %stream, i64 %limit) noinline nounwind {{
entry:
  %first = call i32 @cuStreamQuery(ptr %stream)
  %unready = icmp eq i32 %first, {_NOT_READY}
  br i1 %unready, label %begin, label %answered

answered:
  ret i32 %first

begin:
  %started = call i64 @microseconds()
  br label %ask

ask:
  %questions = phi i64 [ 0, %begin ], [ %questions.next, %again ]
  %ready = call i32 @cuStreamQuery(ptr %stream)
  %waiting = icmp eq i32 %ready, {_NOT_READY}
  br i1 %waiting, label %more, label %over

over:
  ret i32 %ready

more:
  %questions.next = add i64 %questions, 1
  %long = icmp ugt i64 %questions.next, {_QUESTIONS_BEFORE_SLEEP}
  br i1 %long, label %sleep, label %turn

sleep:
  %slept = call i32 @usleep(i32 {_SLEEP})
  %is.limited = icmp sgt i64 %limit, 0
  br i1 %is.limited, label %measure, label %turn

measure:
  %now = call i64 @microseconds()
  %elapsed = sub i64 %now, %started
  %late = icmp sgt i64 %elapsed, %limit
  br i1 %late, label %hung, label %turn

hung:
  ret i32 {TIMED_OUT}

turn:
  %often = and i64 %questions.next, {_QUESTIONS_PER_POLL - 1}
  %look = icmp eq i64 %often, 0
  br i1 %look, label %poll, label %again

poll:
  %polled = call i32 @poll(ptr %record)
  %interrupted = icmp ne i32 %polled, 0
  br i1 %interrupted, label %stop, label %again

stop:
  ret i32 %polled

again:
  br label %ask
}}
"""

_COPY = """
define i32 @tessera_cuda_{name}(ptr %{to}, ptr %{source}, i64 %bytes, ptr %record) nounwind {{
entry:
  %status.at = {status}
  %before = load i64, ptr %status.at
  %stopped = icmp ne i64 %before, 0
  br i1 %stopped, label %skip, label %count, !prof !0

skip:
  %known = trunc i64 %before to i32
  br label %zero

count:
  %stream.at = {stream}
  %stream = load ptr, ptr %stream.at
  %count.at = {reads}
  %reads = load i64, ptr %count.at
  %reads.next = add i64 %reads, 1
  store i64 %reads.next, ptr %count.at
  %many = and i64 %reads.next, {each}
  %is.time = icmp eq i64 %many, 0
  br i1 %is.time, label %look, label %ask, !prof !0

look:
  %looked = call i32 @poll(ptr %record)
  %quit = icmp ne i32 %looked, 0
  br i1 %quit, label %zero, label %ask, !prof !0

ask:
  %ready = call i32 @wait(ptr %record, ptr %stream, i64 0)
  %ready.bad = icmp ne i32 %ready, 0
  br i1 %ready.bad, label %fail, label %copy

copy:
  %copied = call i32 @{copy}(ptr %{to}, ptr %{source}, i64 %bytes, ptr %stream)
  %copy.bad = icmp ne i32 %copied, 0
  br i1 %copy.bad, label %fail, label %arrive

arrive:
  %arrived = call i32 @cuStreamSynchronize(ptr %stream)
  %arrive.bad = icmp ne i32 %arrived, 0
  br i1 %arrive.bad, label %fail, label %done

done:
  ret i32 0

fail:
  %code = phi i32 [ %ready, %ask ], [ %copied, %copy ], [ %arrived, %arrive ]
  %wide = sext i32 %code to i64
  store i64 %wide, ptr %status.at
  br label %zero

zero:
  %result = phi i32 [ %known, %skip ], [ %looked, %look ], [ %code, %fail ]
{end}  ret i32 %result
}}
"""


def _copy(name: str, to: str, source: str, copy: str, end: str = "") -> str:
    """A function that waits for what was launched, copies between host and device, and waits."""
    return _COPY.format(
        name=name, to=to, source=source, copy=copy, end=end, each=_READS_PER_POLL - 1,
        status=field_at("status"), stream=field_at("stream"), reads=field_at("reads"),
    )  # fmt: skip


_READ = _copy(
    "read",
    "host",
    "device",
    "cuMemcpyDtoHAsync_v2",
    "  call void @llvm.memset.p0.i64(ptr %host, i8 0, i64 %bytes, i1 false)\n",
)
_WRITE = _copy("write", "device", "host", "cuMemcpyHtoDAsync_v2")

_RUN = f"""
define void @tessera_cuda_run(ptr %words) nounwind {{
entry:
  %current = alloca ptr, align 8
  %main = load ptr, ptr %words
  %rest = getelementptr i64, ptr %words, i64 1
  %record = load ptr, ptr %rest
  %status.at = {field_at("status")}
  store i64 0, ptr %status.at
  %failed.at = {field_at("failed")}
  store ptr null, ptr %failed.at
  %found = call i32 @cuCtxGetCurrent(ptr %current)
  %found.bad = icmp ne i32 %found, 0
  br i1 %found.bad, label %fail, label %compare, !prof !0

compare:
  %now = load ptr, ptr %current
  %context.at = {field_at("context")}
  %context = load ptr, ptr %context.at
  %same = icmp eq ptr %now, %context
  br i1 %same, label %run, label %push

push:
  %pushed = call i32 @cuCtxPushCurrent_v2(ptr %context)
  %pushed.bad = icmp ne i32 %pushed, 0
  br i1 %pushed.bad, label %fail, label %run, !prof !0

run:
  call void %main(ptr %rest)
  br i1 %same, label %done, label %pop

pop:
  %popped = call i32 @cuCtxPopCurrent_v2(ptr %current)
  br label %done

fail:
  %code = phi i32 [ %found, %entry ], [ %pushed, %push ]
  %wide = sext i32 %code to i64
  store i64 %wide, ptr %status.at
  br label %done

done:
  ret void
}}
"""

_DECLARATIONS = """
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
declare i32 @cuLaunchKernelEx(ptr, ptr, ptr, ptr)
declare i32 @cuMemcpyDtoHAsync_v2(ptr, ptr, i64, ptr)
declare i32 @cuMemcpyHtoDAsync_v2(ptr, ptr, i64, ptr)
declare i32 @cuStreamQuery(ptr)
declare i32 @cuStreamSynchronize(ptr)
declare i32 @cuCtxGetCurrent(ptr)
declare i32 @cuCtxPushCurrent_v2(ptr)
declare i32 @cuCtxPopCurrent_v2(ptr)
declare i32 @usleep(i32)
declare i32 @clock_gettime(i32, ptr)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
!0 = !{!"branch_weights", i32 1, i32 10000}
"""

LAUNCHER_TEXT = "".join(
    (
        _FINISH,
        f"\ndefine i32 @tessera_cuda_launch({_LAUNCH_ARGUMENTS}) nounwind {{",
        _BEFORE,
        "  %status = call i32 @cuLaunchKernel(ptr %kernel, i32 %blocks, i32 1, i32 1, "
        "i32 %threads, i32 1, i32 1, i32 %shared, ptr %stream, ptr %parameters, ptr null)",
        _AFTER,
        f"\ndefine i32 @tessera_cuda_launch_with({_LAUNCH_ARGUMENTS}, i32 %cluster, "
        "i32 %overlap) nounwind {",
        _BEFORE,
        _START_WITH,
        _AFTER,
        _READ,
        _WRITE,
        _RUN,
        COPIER_TEXT,
        _DECLARATIONS,
    )
)
"""The module."""

IMPORTS = (
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    *COPIER_IMPORTS,
)
"""The driver's functions that it calls."""
