"""LLVM text of the thread pool; `runtime/threads.py` says what it promises.

    void tessera_parallel(ptr function, ptr context, i64 count, i64 grain, i64 threads)
    void tessera_threads_reset()    in the child of a fork, where the workers are gone
    void tessera_threads_stop()     ends the workers and waits for them

One job is under way at a time. Its points are dealt out to as many ranges as there may be threads,
each on a cache line of its own; a thread takes pieces off its own range, then off the others, until
all are empty. So a thread gets the same part of an array in kernel after kernel, which it then has
in its cache, and nobody waits for a thread that sleeps.

What synchronises is one word, the gate: how many workers are inside (bits 0 to 9), how many may be
(10 to 19), whether the job is open (20), whether its caller sleeps until they have left (21), and
whether a worker has the caller's core (22), as happens where others hold the rest of them.
A worker enters by one compare-and-swap of the whole word, so what it reads afterwards belongs to
the job that it entered, and holds still until it leaves. The other words: the epoch, on which
workers spin briefly, then sleep; how many sleep, so that a job wakes them only if there are any;
whether a job is under way; and how many callers there are, with and without a job of the pool.
"""

from __future__ import annotations

from string import Template

from tessera.runtime.threads_cores import cores_text

SPIN = 600
"""Looks at the epoch before a worker sleeps: some 10 microseconds. Longer, it takes time from
others, and on a virtual machine it delays even its own next job."""

LONGEST = 8 * SPIN
"""The same, of a worker whose jobs follow soon."""

SOON = 100_000
"""Nanoseconds from when a worker sleeps to when it is woken, that were better spent with looks: a
virtual machine takes as long to wake it. Each such sleep doubles how often it looks, and a longer
one ends that. A Xeon (Granite Rapids) takes 150 us rather than 210 for `2 * x + 1` of a million
elements."""

WAIT = 2000
"""Looks at the gate before a caller sleeps until the last worker has left."""

MOST = 256
"""Threads that a job has at most."""

_FUTEX = {"x86-64": 202, "aarch64": 98}
_GETTID = {"x86-64": 186, "aarch64": 178}
_PAUSE = {
    "x86-64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
_DECLARED = {
    "x86-64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32)",
}


def has_threads(arch: str, platform: str) -> bool:
    """Whether the pool has workers there; else its caller does everything itself."""
    return platform == "linux" and arch in _FUTEX


def serial_text() -> str:
    """A pool without workers."""
    return """
define void @tessera_parallel(ptr %function, ptr %context, i64 %count, i64 %grain, i64 %threads) {
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %run, label %leave
run:
  call void %function(ptr %context, i64 0, i64 %count)
  br label %leave
leave:
  ret void
}
define void @tessera_threads_reset() {
  ret void
}
define void @tessera_threads_stop() {
  ret void
}
"""


_STATE = """
%line = type { i64, i64, [14 x i64] }
; What callers write for a job, and a worker needs to enter it: a line, which comes over once.
%job = type { i32, i32, i32, i32, ptr, ptr, i64, i64, i32, i32, [16 x i32] }
@job = internal global %job zeroinitializer, align 128
@gate = internal alias i32, ptr @job
@busy = internal alias i32, getelementptr (%job, ptr @job, i32 0, i32 1)
@callers = internal alias i32, getelementptr (%job, ptr @job, i32 0, i32 2)
@sleepers = internal alias i32, getelementptr (%job, ptr @job, i32 0, i32 3)
@function = internal alias ptr, getelementptr (%job, ptr @job, i32 0, i32 4)
@context = internal alias ptr, getelementptr (%job, ptr @job, i32 0, i32 5)
@grain = internal alias i64, getelementptr (%job, ptr @job, i32 0, i32 6)
@ranges = internal alias i64, getelementptr (%job, ptr @job, i32 0, i32 7)
@limit = internal alias i32, getelementptr (%job, ptr @job, i32 0, i32 8)
@core = internal alias i32, getelementptr (%job, ptr @job, i32 0, i32 9)
@epoch = internal global i32 0, align 128
@stopped = internal global i32 0, align 128
@started = internal global i32 0, align 128
@lines = internal global [$most x %line] zeroinitializer, align 128
@handles = internal global [$most x i64] zeroinitializer, align 64

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_getcpu()
declare i64 @syscall(i64, ...)
$declared

"""

_WORK = """
define internal void @work(i64 %me) nounwind {
entry:
  %function = load ptr, ptr @function
  %context = load ptr, ptr @context
  %grain = load i64, ptr @grain
  %ranges = load i64, ptr @ranges
  %limit = load i32, ptr @limit
  %first = urem i64 %me, %ranges
  %helps = icmp ne i64 %me, 0
  br label %range

range:
  %tried = phi i64 [ 0, %entry ], [ %tried.next, %following ]
  %r = phi i64 [ %first, %entry ], [ %r.next, %following ]
  %next.at = getelementptr %line, ptr @lines, i64 %r, i32 0
  %end.at = getelementptr %line, ptr @lines, i64 %r, i32 1
  %end = load i64, ptr %end.at
  br label %look

look:
  %seen = load atomic i64, ptr %next.at monotonic, align 8
  %some = icmp slt i64 %seen, %end
  br i1 %some, label %take, label %following

take:
  %lo = atomicrmw add ptr %next.at, i64 %grain monotonic
  %mine = icmp slt i64 %lo, %end
  br i1 %mine, label %run, label %following

run:
  %reach = add i64 %lo, %grain
  %hi = call i64 @llvm.smin.i64(i64 %reach, i64 %end)
  call void %function(ptr %context, i64 %lo, i64 %hi)
  br i1 %helps, label %polite, label %missing

; Somebody is not here yet, or has left.
missing:
  %state = load atomic i32, ptr @gate monotonic, align 4
  %there = and i32 %state, 1023
  %room.high = lshr i32 %state, 10
  %room = and i32 %room.high, 1023
  %full = icmp uge i32 %there, %room
  br i1 %full, label %look, label %push

push:
  call void @push_late()
  br label %look

; A worker makes room for callers that came in the meantime: they run on threads of their own.
polite:
  %callers = load atomic i32, ptr @callers monotonic, align 4
  %gate = load atomic i32, ptr @gate monotonic, align 4
  %inside = and i32 %gate, 1023
  %all = add i32 %callers, %inside
  %many = icmp sgt i32 %all, %limit
  %stopped = load atomic i32, ptr @stopped monotonic, align 4
  %ending = icmp ne i32 %stopped, 0
  %out = or i1 %many, %ending
  br i1 %out, label %leave, label %look

following:
  %tried.next = add i64 %tried, 1
  %r.up = add i64 %r, 1
  %wraps = icmp eq i64 %r.up, %ranges
  %r.next = select i1 %wraps, i64 0, i64 %r.up
  %more = icmp ult i64 %tried.next, %ranges
  br i1 %more, label %range, label %leave

leave:
  ret void
}

"""

_WORKER = """
define internal ptr @worker(ptr %number) nounwind {
entry:
  %me = ptrtoint ptr %number to i64
  %moved = alloca i64, align 8
  store i64 0, ptr %moved
  %slept = alloca i64, align 8
  %patience = alloca i32, align 4
  store i32 $spin, ptr %patience
  %index = sub i64 %me, 1
  %who = getelementptr %who, ptr @workers, i64 %index, i32 0
  %seen = getelementptr %who, ptr @workers, i64 %index, i32 1
  %thread = call i64 (i64, ...) @syscall(i64 $gettid)
  %thread32 = trunc i64 %thread to i32
  store atomic i32 %thread32, ptr %who monotonic, align 4
  br label %next

next:
  %woken = phi i1 [ false, %entry ], [ false, %idle ], [ true, %sleep ]
  br i1 %woken, label %weigh, label %fresh

weigh:
  %slept.at = load i64, ptr %slept
  %woken.at = load atomic i64, ptr @woken monotonic, align 8
  %away = sub i64 %woken.at, %slept.at
  %soon = icmp slt i64 %away, $soon
  %before.sleep = load i32, ptr %patience
  %twice = shl i32 %before.sleep, 1
  %more = icmp ult i32 %twice, $longest
  %most = select i1 %more, i32 %twice, i32 $longest
  %from.now = select i1 %soon, i32 %most, i32 $spin
  store i32 %from.now, ptr %patience
  br label %fresh

fresh:
  %epoch = load atomic i32, ptr @epoch seq_cst, align 4
  store atomic i32 %epoch, ptr %seen monotonic, align 4
  %stopped = load atomic i32, ptr @stopped seq_cst, align 4
  %ending = icmp ne i32 %stopped, 0
  br i1 %ending, label %quit, label %try

try:
  %gate = load atomic i32, ptr @gate seq_cst, align 4
  %inside = and i32 %gate, 1023
  %room.high = lshr i32 %gate, 10
  %room = and i32 %room.high, 1023
  %open.bit = and i32 %gate, 1048576
  %open = icmp ne i32 %open.bit, 0
  %fits = icmp ult i32 %inside, %room
  %enters = and i1 %open, %fits
  br i1 %enters, label %enter, label %late

; Woken for a job that is over: whoever had it goes on, perhaps on this core.
late:
  br i1 %woken, label %behind, label %idle

behind:
  %late.here = call i32 @sched_getcpu()
  %late.there = load i32, ptr @core
  %late.shared = icmp eq i32 %late.here, %late.there
  br i1 %late.shared, label %late.near, label %sleep

late.near:
  %late.may = call i1 @may_move(ptr %moved)
  br i1 %late.may, label %late.move, label %sleep

late.move:
  %late.left = call i1 @leave_core(i32 %late.here)
  br label %sleep

enter:
  %entered = add i32 %gate, 1
  %pair = cmpxchg ptr @gate, i32 %gate, i32 %entered acq_rel monotonic
  %done = extractvalue { i32, i1 } %pair, 1
  br i1 %done, label %inner, label %try

inner:
  store atomic i64 0, ptr @pushed monotonic, align 8
  %here = call i32 @sched_getcpu()
  %there = load i32, ptr @core
  %shared = icmp eq i32 %here, %there
  br i1 %shared, label %near, label %help

near:
  %may = call i1 @may_move(ptr %moved)
  br i1 %may, label %move, label %crowd

move:
  %left = call i1 @leave_core(i32 %here)
  br i1 %left, label %help, label %crowd

; Others hold the other cores: this thread and its caller take turns, and neither should spin.
crowd:
  %c = atomicrmw or ptr @gate, i32 4194304 monotonic
  br label %help

help:
  %crowded = phi i1 [ false, %inner ], [ false, %move ], [ true, %crowd ]
  call void @work(i64 %me)
  %before = atomicrmw sub ptr @gate, i32 1 acq_rel
  %others = and i32 %before, 1023
  %last = icmp eq i32 %others, 1
  %waits.bit = and i32 %before, 2097152
  %waits = icmp ne i32 %waits.bit, 0
  %wakes = and i1 %last, %waits
  br i1 %wakes, label %wake, label %after

wake:
  %w = call i64 (i64, ...) @syscall(i64 $futex, ptr @gate, i32 129, i32 1)
  br label %after

after:
  br i1 %crowded, label %sleep, label %idle

; There is no job, or this worker has done what it could of it: the next one is another epoch.
idle:
  %looks = phi i32 [ 0, %late ], [ 0, %after ], [ %looks.next, %spin ]
  %now = load atomic i32, ptr @epoch acquire, align 4
  %changed = icmp ne i32 %now, %epoch
  br i1 %changed, label %next, label %spin

spin:
  $pause
  %looks.next = add i32 %looks, 1
  %looked.for = load i32, ptr %patience
  %again = icmp ult i32 %looks.next, %looked.for
  br i1 %again, label %idle, label %sleep

sleep:
  %bed.time = call i64 @now()
  store i64 %bed.time, ptr %slept
  %s = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %f = call i64 (i64, ...) @syscall(i64 $futex, ptr @epoch, i32 128, i32 %epoch, ptr null)
  %t = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %next

quit:
  store atomic i32 0, ptr %who monotonic, align 4
  ret ptr null
}

"""

_START = """
; Starts workers until there are so many, if the system allows. Signals are left to others.
define internal void @start(i32 %wanted) nounwind {
entry:
  %all = alloca [16 x i64], align 8
  %old = alloca [16 x i64], align 8
  %have = load i32, ptr @started
  %enough = icmp uge i32 %have, %wanted
  br i1 %enough, label %leave, label %begin

begin:
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %m = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %loop

loop:
  %k = phi i32 [ %have, %begin ], [ %number, %made ]
  %number = add i32 %k, 1
  %handle = getelementptr i64, ptr @handles, i32 %k
  %id = zext i32 %number to i64
  %arg = inttoptr i64 %id to ptr
  %error = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %arg)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %end, label %made

made:
  store i32 %number, ptr @started
  %more = icmp ult i32 %number, %wanted
  br i1 %more, label %loop, label %end

end:
  %n = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  br label %leave

leave:
  ret void
}

"""

_PARALLEL = """
define void @tessera_parallel(
    ptr %function, ptr %context, i64 %count, i64 %grain, i64 %threads) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %size, label %leave

size:
  %small = icmp sle i64 %count, %grain
  %alone = icmp sle i64 %threads, 1
  %stopped = load atomic i32, ptr @stopped monotonic, align 4
  %ending = icmp ne i32 %stopped, 0
  %a = or i1 %small, %alone
  %b = or i1 %a, %ending
  br i1 %b, label %serial, label %arrive

serial:
  call void %function(ptr %context, i64 0, i64 %count)
  br label %leave

arrive:
  %others = atomicrmw add ptr @callers, i32 1 seq_cst
  %pair = cmpxchg ptr @busy, i32 0, i32 1 acq_rel monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %plan, label %apart

; The workers have another job, or this is called from inside one.
apart:
  call void %function(ptr %context, i64 0, i64 %count)
  br label %depart

plan:
  %count.up = add i64 %count, %grain
  %count.last = sub i64 %count.up, 1
  %pieces = sdiv i64 %count.last, %grain
  %least = call i64 @llvm.smin.i64(i64 %threads, i64 %pieces)
  %ranges = call i64 @llvm.smin.i64(i64 %least, i64 $most)
  %ranges32 = trunc i64 %ranges to i32
  %helpers = sub i32 %ranges32, 1
  call void @start(i32 %helpers)
  %limit = trunc i64 %threads to i32
  %besides = sub i32 %limit, 1
  %free = sub i32 %besides, %others
  %fewer = call i32 @llvm.smin.i32(i32 %helpers, i32 %free)
  %room = call i32 @llvm.smax.i32(i32 %fewer, i32 0)
  store ptr %function, ptr @function
  store ptr %context, ptr @context
  store i64 %grain, ptr @grain
  store i64 %ranges, ptr @ranges
  store i32 %limit, ptr @limit
  %core = call i32 @sched_getcpu()
  store i32 %core, ptr @core
  br label %deal

deal:
  %r = phi i64 [ 0, %plan ], [ %r.next, %deal ]
  %first = phi i64 [ 0, %plan ], [ %last, %deal ]
  %r.next = add i64 %r, 1
  %share = mul i64 %pieces, %r.next
  %upto = sdiv i64 %share, %ranges
  %reach = mul i64 %upto, %grain
  %last = call i64 @llvm.smin.i64(i64 %reach, i64 %count)
  %next.at = getelementptr %line, ptr @lines, i64 %r, i32 0
  %end.at = getelementptr %line, ptr @lines, i64 %r, i32 1
  store i64 %first, ptr %next.at
  store i64 %last, ptr %end.at
  %dealt = icmp eq i64 %r.next, %ranges
  br i1 %dealt, label %open, label %deal

open:
  %room.high = shl i32 %room, 10
  %gate = or i32 %room.high, 1048576
  store atomic i32 %gate, ptr @gate seq_cst, align 4
  %e = atomicrmw add ptr @epoch, i32 1 seq_cst
  %sleeping = load atomic i32, ptr @sleepers seq_cst, align 4
  %asleep = icmp ne i32 %sleeping, 0
  store atomic i64 0, ptr @woken monotonic, align 8
  br i1 %asleep, label %wake, label %work

wake:
  %time = call i64 @now()
  store atomic i64 %time, ptr @woken monotonic, align 8
  %w = call i64 (i64, ...) @syscall(i64 $futex, ptr @epoch, i32 129, i32 %room)
  br label %work

work:
  call void @work(i64 0)
  %was = atomicrmw and ptr @gate, i32 -1048577 acq_rel
  %was.inside = and i32 %was, 1023
  %empty = icmp eq i32 %was.inside, 0
  br i1 %empty, label %finish, label %wait

wait:
  %was.crowd = and i32 %was, 4194304
  %crowded = icmp ne i32 %was.crowd, 0
  br i1 %crowded, label %announce, label %look

look:
  %looks = phi i32 [ 0, %wait ], [ %looks.next, %spin ]
  %now = load atomic i32, ptr @gate acquire, align 4
  %now.inside = and i32 %now, 1023
  %gone = icmp eq i32 %now.inside, 0
  br i1 %gone, label %finish, label %spin

spin:
  $pause
  %looks.next = add i32 %looks, 1
  %again = icmp ult i32 %looks.next, $wait
  br i1 %again, label %look, label %announce

announce:
  %x = atomicrmw or ptr @gate, i32 2097152 seq_cst
  br label %check

check:
  %then = load atomic i32, ptr @gate acquire, align 4
  %then.inside = and i32 %then, 1023
  %left = icmp eq i32 %then.inside, 0
  br i1 %left, label %finish, label %sleep

sleep:
  %f = call i64 (i64, ...) @syscall(i64 $futex, ptr @gate, i32 128, i32 %then, ptr null)
  br label %check

finish:
  store atomic i32 0, ptr @busy seq_cst, align 4
  br label %depart

depart:
  %y = atomicrmw sub ptr @callers, i32 1 seq_cst
  br label %leave

leave:
  ret void
}

"""

_RESET = """
define void @tessera_threads_reset() nounwind {
  call void @forget_workers()
  store i32 0, ptr @gate
  store i32 0, ptr @epoch
  store i32 0, ptr @sleepers
  store i32 0, ptr @busy
  store i32 0, ptr @callers
  store i32 0, ptr @stopped
  store i32 0, ptr @started
  ret void
}

"""

_STOP = """
define void @tessera_threads_stop() nounwind {
entry:
  store atomic i32 1, ptr @stopped seq_cst, align 4
  %e = atomicrmw add ptr @epoch, i32 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 $futex, ptr @epoch, i32 129, i32 2147483647)
  %count = load i32, ptr @started
  br label %loop

loop:
  %k = phi i32 [ 0, %entry ], [ %k.next, %join ]
  %more = icmp ult i32 %k, %count
  br i1 %more, label %join, label %leave

join:
  %handle.at = getelementptr i64, ptr @handles, i32 %k
  %handle = load i64, ptr %handle.at
  %j = call i32 @pthread_join(i64 %handle, ptr null)
  %k.next = add i32 %k, 1
  br label %loop

leave:
  store i32 0, ptr @started
  ret void
}
"""


def pool_text(arch: str) -> str:
    """The pool for Linux."""
    text = "".join((_STATE, _WORK, _WORKER, _START, _PARALLEL, _RESET, _STOP))
    return cores_text(MOST) + Template(text).substitute(
        futex=_FUTEX[arch], gettid=_GETTID[arch], pause=_PAUSE[arch], declared=_DECLARED[arch],
        spin=SPIN, longest=LONGEST, soon=SOON, wait=WAIT, most=MOST,
    )  # fmt: skip
