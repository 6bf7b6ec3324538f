"""LLVM text that keeps the workers of the thread pool off their caller's core.

Linux wakes a thread where it ran last if the other cores look busy to it, and on a virtual machine
idle cores do. A worker that is woken on its caller's core leaves it, once it runs (`@leave_core`).
Until then it waits for its turn, 4 ms perhaps, while the caller does its work as well: so a caller
moves workers that have not seen its job some time after it woke them (`@push_late`).
"""

from __future__ import annotations

from string import Template

MOVE = 1_000_000
"""Nanoseconds from one move of a worker off its caller's core to the next: where others hold the
other cores it would be back at once, and a move takes longer than a small job. Counted in jobs it
could take forever: a worker that is woken too late for each of them has none."""

LATE = 20_000
"""Nanoseconds after which a worker that was woken should run; it takes 12 microseconds."""

PUSHES = 4
"""Workers that a caller moves off its core at a time."""

_TEXT = """
; For each worker its thread, and the epoch that it saw last.
%who = type { i32, i32, [30 x i32] }
@workers = internal global [$most x %who] zeroinitializer, align 128
@moving = internal global i32 0, align 128
@pushed = internal global i64 0, align 128
; When the job of now had workers woken; 0: none slept.
@woken = internal global i64 0, align 128

declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i64 @now() nounwind {
  %time = alloca [2 x i64], align 8
  %c = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i32 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}

; Whether it is long enough since the last move; then, now counts as its time.
define internal i1 @may_move(ptr %moved) nounwind {
entry:
  %now = call i64 @now()
  %last = load i64, ptr %moved
  %gone = sub i64 %now, %last
  %may = icmp uge i64 %gone, $move
  br i1 %may, label %yes, label %no

yes:
  store i64 %now, ptr %moved
  ret i1 true

no:
  ret i1 false
}

; Has a thread leave a core for any other one that it may have (0: this thread). A system that has
; once woken a worker on its caller's core does so again as long as the others look busy to it, and
; those have long been idle.
define internal void @move_off(i32 %thread, i32 %core) nounwind {
entry:
  %all = alloca [16 x i64], align 8
  %rest = alloca [16 x i64], align 8
  %far = icmp uge i32 %core, 1024
  br i1 %far, label %stay, label %lock

; Two at a time could leave a thread without a core for good.
lock:
  %pair = cmpxchg ptr @moving, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %look, label %stay

look:
  call void @llvm.memset.p0.i64(ptr %all, i8 0, i64 128, i1 false)
  %g = call i32 @sched_getaffinity(i32 %thread, i64 128, ptr %all)
  %failed = icmp slt i32 %g, 0
  br i1 %failed, label %unlock, label %copy

copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %all, i64 128, i1 false)
  %word = lshr i32 %core, 6
  %at = getelementptr i64, ptr %rest, i32 %word
  %place = and i32 %core, 63
  %place64 = zext i32 %place to i64
  %bit = shl i64 1, %place64
  %mask = xor i64 %bit, -1
  %old = load i64, ptr %at
  %new = and i64 %old, %mask
  store i64 %new, ptr %at
  ; It fails where no other core is left.
  %s = call i32 @sched_setaffinity(i32 %thread, i64 128, ptr %rest)
  %refused = icmp ne i32 %s, 0
  br i1 %refused, label %unlock, label %restore

restore:
  %r = call i32 @sched_setaffinity(i32 %thread, i64 128, ptr %all)
  br label %unlock

unlock:
  store atomic i32 0, ptr @moving release, align 4
  br label %stay

stay:
  ret void
}

; Leaves a core; says whether it did.
define internal i1 @leave_core(i32 %core) nounwind {
  call void @move_off(i32 0, i32 %core)
  %here = call i32 @sched_getcpu()
  %left = icmp ne i32 %here, %core
  ret i1 %left
}

; Moves workers that have not seen this job off the core of its caller, where one of them may wait
; for its turn until the job is over: it could only leave by itself if it ran.
define internal void @push_late() nounwind noinline {
entry:
  %woken = load i64, ptr @woken
  %slept = icmp ne i64 %woken, 0
  br i1 %slept, label %wait, label %leave

wait:
  %now = call i64 @now()
  %gone = sub i64 %now, %woken
  %long = icmp uge i64 %gone, $late
  br i1 %long, label %begin, label %leave

begin:
  %epoch = load atomic i32, ptr @epoch monotonic, align 4
  %count = load i32, ptr @started
  br label %next

next:
  %k = phi i32 [ 0, %begin ], [ %number, %skip ]
  %done = phi i32 [ 0, %begin ], [ %done.next, %skip ]
  %more = icmp ult i32 %k, %count
  %few = icmp ult i32 %done, $pushes
  %goes = and i1 %more, %few
  br i1 %goes, label %look, label %leave

look:
  %number = add i32 %k, 1
  %who = getelementptr %who, ptr @workers, i32 %k, i32 0
  %seen.at = getelementptr %who, ptr @workers, i32 %k, i32 1
  %seen = load atomic i32, ptr %seen.at monotonic, align 4
  %thread = load atomic i32, ptr %who monotonic, align 4
  %late = icmp ne i32 %seen, %epoch
  %lives = icmp ne i32 %thread, 0
  %is = and i1 %late, %lives
  br i1 %is, label %first, label %skip

first:
  %begun = icmp ne i32 %done, 0
  br i1 %begun, label %move, label %time

time:
  %may = call i1 @may_move(ptr @pushed)
  br i1 %may, label %move, label %leave

move:
  %core = call i32 @sched_getcpu()
  call void @move_off(i32 %thread, i32 %core)
  %done.up = add i32 %done, 1
  br label %skip

skip:
  %done.next = phi i32 [ %done, %look ], [ %done.up, %move ]
  br label %next

leave:
  ret void
}

; In the child of a fork, where the workers are gone.
define internal void @forget_workers() nounwind {
  call void @llvm.memset.p0.i64(ptr @workers, i8 0, i64 $bytes, i1 false)
  store i32 0, ptr @moving
  store i64 0, ptr @pushed
  ret void
}

"""


def cores_text(most: int) -> str:
    """The functions, for so many workers."""
    return Template(_TEXT).substitute(
        most=most, bytes=most * 128, move=MOVE, pushes=PUSHES, late=LATE
    )
