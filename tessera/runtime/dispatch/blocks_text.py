"""The native side of memory for small results, as LLVM text.

Blocks are aligned to 64 bytes and stand behind a line of their own that says their size; small ones
wait for their next use, and those of 16 KB and more start on pages (`runtime/memory.py` says why).
They are used with the interpreter's lock held. The last four functions are NumPy's
`PyDataMemAllocator`, by which arrays that own such a block give it back.
"""

from __future__ import annotations

from typing import Final

from tessera.runtime.memory import PAGE, PAGED_BYTES

SMALL_CLASSES: Final = 1024
"""Blocks of up to so many times 64 bytes wait for their next use. The allocator of C joins and cuts
those of more than a kilobyte each time, which takes as long as an optimizer's work on them."""

WAITING_LINES: Final = 1 << 17
"""So many lines of 64 bytes wait at most, of all sizes together. When there are more, all are given
back, since what waits may be of sizes that nobody wants any more."""

_PAGED: Final = PAGED_BYTES // 64

BLOCKS: Final = f"""
@waiting = internal global [{SMALL_CLASSES + 1} x ptr] zeroinitializer, align 64
@lines = internal global i64 0, align 64

define internal i64 @before(i64 %class) nounwind alwaysinline {{
  %paged = icmp uge i64 %class, {_PAGED}
  %bytes = select i1 %paged, i64 {PAGE}, i64 64
  ret i64 %bytes
}}

define internal ptr @allocate(i64 %size) nounwind {{
entry:
  %one = call i64 @llvm.umax.i64(i64 %size, i64 1)
  %up = add i64 %one, 63
  %class = lshr i64 %up, 6
  %small = icmp ule i64 %class, {SMALL_CLASSES}
  br i1 %small, label %look, label %fresh
look:
  %head.at = getelementptr ptr, ptr @waiting, i64 %class
  %head = load ptr, ptr %head.at
  %none = icmp eq ptr %head, null
  br i1 %none, label %fresh, label %pop, !prof !0
pop:
  %next.at = getelementptr i64, ptr %head, i64 1
  %next = load ptr, ptr %next.at
  store ptr %next, ptr %head.at
  %lines = load i64, ptr @lines
  %fewer = sub i64 %lines, %class
  store i64 %fewer, ptr @lines
  %popped = getelementptr i8, ptr %head, i64 64
  ret ptr %popped
fresh:
  %before = call i64 @before(i64 %class)
  %long = shl i64 %class, 6
  %bytes = add i64 %long, %before
  %raw = call ptr @aligned_alloc(i64 %before, i64 %bytes)
  %full = icmp eq ptr %raw, null
  br i1 %full, label %fail, label %label, !prof !0
label:
  %block = getelementptr i8, ptr %raw, i64 %before
  %line = getelementptr i8, ptr %block, i64 -64
  store i64 %class, ptr %line
  ret ptr %block
fail:
  ret ptr null
}}

define internal void @release(ptr %block) nounwind {{
entry:
  %raw = getelementptr i8, ptr %block, i64 -64
  %class = load i64, ptr %raw
  %small = icmp ule i64 %class, {SMALL_CLASSES}
  br i1 %small, label %look, label %give
look:
  %lines = load i64, ptr @lines
  %more = add i64 %lines, %class
  %full = icmp ugt i64 %more, {WAITING_LINES}
  br i1 %full, label %clear, label %push, !prof !0
clear:
  call void @give_back_all()
  br label %push
push:
  %now = phi i64 [ %more, %look ], [ %class, %clear ]
  store i64 %now, ptr @lines
  %head.at = getelementptr ptr, ptr @waiting, i64 %class
  %head = load ptr, ptr %head.at
  %next.at = getelementptr i64, ptr %raw, i64 1
  store ptr %head, ptr %next.at
  store ptr %raw, ptr %head.at
  ret void
give:
  call void @give_back(ptr %block, i64 %class)
  ret void
}}

define internal void @give_back(ptr %block, i64 %class) nounwind {{
  %before = call i64 @before(i64 %class)
  %back = sub i64 0, %before
  %start = getelementptr i8, ptr %block, i64 %back
  call void @free(ptr %start)
  ret void
}}

define internal void @give_back_all() nounwind noinline {{
entry:
  br label %sizes
sizes:
  %class = phi i64 [ 0, %entry ], [ %class.next, %none ]
  %head.at = getelementptr ptr, ptr @waiting, i64 %class
  %head = load ptr, ptr %head.at
  store ptr null, ptr %head.at
  br label %look
look:
  %raw = phi ptr [ %head, %sizes ], [ %next, %some ]
  %empty = icmp eq ptr %raw, null
  br i1 %empty, label %none, label %some
some:
  %next.at = getelementptr i64, ptr %raw, i64 1
  %next = load ptr, ptr %next.at
  %block = getelementptr i8, ptr %raw, i64 64
  call void @give_back(ptr %block, i64 %class)
  br label %look
none:
  %class.next = add i64 %class, 1
  %end = icmp ugt i64 %class.next, {SMALL_CLASSES}
  br i1 %end, label %done, label %sizes
done:
  ret void
}}

define ptr @tessera_malloc(ptr %context, i64 %size) nounwind {{
  %block = call ptr @allocate(i64 %size)
  ret ptr %block
}}

define ptr @tessera_calloc(ptr %context, i64 %count, i64 %size) nounwind {{
  %bytes = mul i64 %count, %size
  %block = call ptr @allocate(i64 %bytes)
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %block, i8 0, i64 %bytes, i1 false)
  br label %done
done:
  ret ptr %block
}}

define ptr @tessera_realloc(ptr %context, ptr %old, i64 %size) nounwind {{
  %block = call ptr @allocate(i64 %size)
  %none = icmp eq ptr %block, null
  %nothing = icmp eq ptr %old, null
  %done.soon = or i1 %none, %nothing
  br i1 %done.soon, label %done, label %copy
copy:
  %raw = getelementptr i8, ptr %old, i64 -64
  %class = load i64, ptr %raw
  %capacity = shl i64 %class, 6
  %bytes = call i64 @llvm.umin.i64(i64 %capacity, i64 %size)
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %old, i64 %bytes, i1 false)
  call void @release(ptr %old)
  br label %done
done:
  ret ptr %block
}}

define void @tessera_free(ptr %context, ptr %block, i64 %size) nounwind {{
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %some
some:
  call void @release(ptr %block)
  br label %done
done:
  ret void
}}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
