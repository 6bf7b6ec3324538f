"""The native side of memory for results that are not large, as LLVM text.

Blocks are aligned to 64 bytes and stand behind a line of their own that says their size; they wait
for their next use, and those of 16 KB and more start on pages (`runtime/memory.py` says why).
They are used with the interpreter's lock held. The last four functions are NumPy's
`PyDataMemAllocator`, by which arrays that own such a block give it back.

The allocator of C gives the system back what lies at its end, and has it filled in page by page the
next time: a step of Adam whose 300 results of 256 KB come from there took 10 ms rather than 1.7.
"""

from __future__ import annotations

from typing import Final

from tessera.runtime.memory import PAGE, PAGED_BYTES, POOLED_BYTES

SMALL_CLASSES: Final = 1024
"""Blocks of up to so many times 64 bytes have a list for each size, larger ones one for as many
pages as they take. The allocator of C joins and cuts those of more than a kilobyte each time, which
takes as long as an optimizer's work on them."""

WAITING_LINES: Final = 1 << 17
"""So many lines of 64 bytes of small blocks wait at most, of all sizes together; how many of larger
ones is a setting. When there are more, all are given back, since what waits may be of sizes that
nobody wants any more."""

_PAGED: Final = PAGED_BYTES // 64
_LINES: Final = PAGE // 64
_MOST: Final = POOLED_BYTES // 64
_SHIFT: Final = SMALL_CLASSES - SMALL_CLASSES // _LINES
_LISTS: Final = _SHIFT + _MOST // _LINES + 1

BLOCKS: Final = f"""
@waiting = internal global [{_LISTS} x ptr] zeroinitializer, align 64
@lines = internal global [2 x i64] zeroinitializer, align 64
@tessera_waiting_lines = external global i64

define internal i64 @before(i64 %class) nounwind alwaysinline {{
  %paged = icmp uge i64 %class, {_PAGED}
  %bytes = select i1 %paged, i64 {PAGE}, i64 64
  ret i64 %bytes
}}

; The list of blocks of so many lines.
define internal i64 @list(i64 %class) nounwind alwaysinline {{
  %small = icmp ule i64 %class, {SMALL_CLASSES}
  %pages = udiv i64 %class, {_LINES}
  %larger = add i64 %pages, {_SHIFT}
  %list = select i1 %small, i64 %class, i64 %larger
  ret i64 %list
}}

; How many lines wait, of small blocks or of larger ones.
define internal ptr @count(i64 %class) nounwind alwaysinline {{
  %larger = icmp ugt i64 %class, {SMALL_CLASSES}
  %at = zext i1 %larger to i64
  %count = getelementptr i64, ptr @lines, i64 %at
  ret ptr %count
}}

define internal ptr @allocate(i64 %size) nounwind {{
entry:
  %one = call i64 @llvm.umax.i64(i64 %size, i64 1)
  %up = add i64 %one, 63
  %exact = lshr i64 %up, 6
  %whole.up = add i64 %exact, {_LINES - 1}
  %whole = and i64 %whole.up, {-_LINES}
  %small = icmp ule i64 %exact, {SMALL_CLASSES}
  %class = select i1 %small, i64 %exact, i64 %whole
  %waits = icmp ule i64 %class, {_MOST}
  br i1 %waits, label %look, label %fresh
look:
  %list = call i64 @list(i64 %class)
  %head.at = getelementptr ptr, ptr @waiting, i64 %list
  %head = load ptr, ptr %head.at
  %none = icmp eq ptr %head, null
  br i1 %none, label %fresh, label %pop, !prof !0
pop:
  %next.at = getelementptr i64, ptr %head, i64 1
  %next = load ptr, ptr %next.at
  store ptr %next, ptr %head.at
  %count = call ptr @count(i64 %class)
  %lines = load i64, ptr %count
  %fewer = sub i64 %lines, %class
  store i64 %fewer, ptr %count
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
  %waits = icmp ule i64 %class, {_MOST}
  br i1 %waits, label %look, label %give
look:
  %count = call ptr @count(i64 %class)
  %lines = load i64, ptr %count
  %more = add i64 %lines, %class
  %small = icmp ule i64 %class, {SMALL_CLASSES}
  %most.larger = load i64, ptr @tessera_waiting_lines
  %most = select i1 %small, i64 {WAITING_LINES}, i64 %most.larger
  %full = icmp ugt i64 %more, %most
  br i1 %full, label %clear, label %push, !prof !0
clear:
  call void @give_back_all(i1 %small)
  %fits = icmp ule i64 %class, %most
  br i1 %fits, label %push, label %give
push:
  %now = phi i64 [ %more, %look ], [ %class, %clear ]
  store i64 %now, ptr %count
  %list = call i64 @list(i64 %class)
  %head.at = getelementptr ptr, ptr @waiting, i64 %list
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

; All small blocks, or all larger ones.
define internal void @give_back_all(i1 %small) nounwind noinline {{
entry:
  %from = select i1 %small, i64 0, i64 {SMALL_CLASSES + 1}
  %last = select i1 %small, i64 {SMALL_CLASSES}, i64 {_LISTS - 1}
  %larger = xor i1 %small, true
  %at = zext i1 %larger to i64
  %count = getelementptr i64, ptr @lines, i64 %at
  store i64 0, ptr %count
  br label %sizes
sizes:
  %list = phi i64 [ %from, %entry ], [ %list.next, %none ]
  %head.at = getelementptr ptr, ptr @waiting, i64 %list
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
  %class = load i64, ptr %raw
  call void @give_back(ptr %block, i64 %class)
  br label %look
none:
  %list.next = add i64 %list, 1
  %end = icmp ugt i64 %list.next, %last
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
; Gives back what waits of larger blocks, and says how many lines it was.
define i64 @tessera_release_waiting() nounwind {{
  %count = getelementptr i64, ptr @lines, i64 1
  %lines = load i64, ptr %count
  call void @give_back_all(i1 false)
  ret i64 %lines
}}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
