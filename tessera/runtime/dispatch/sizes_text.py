"""The native side of programs for many sizes, as LLVM text. `sizes` describes it."""

from __future__ import annotations

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.words import OUTPUT, PLAN, SIZE_OPS, SIZED, STRUCTURE
from tessera.runtime.memory import POOLED_BYTES


def sizes_text() -> str:
    """The functions that find a plan for many sizes and run it."""
    return _SIZES.format(
        sized=STRUCTURE.index("sized"), KEY=w.KEY, LENGTH=w.LENGTH, MOST_FRAME=w.MOST_FRAME,
        MOST_STEPS=w.MOST_STEPS, OUTPUT=len(OUTPUT), POOLED=POOLED_BYTES, PLAN=len(PLAN),
        p_outputs=PLAN.index("outputs"), p_holds=PLAN.index("holds"), LARGE=OUTPUT.index("large"),
        **{f"s_{name}": SIZED.index(name) for name in SIZED},
        **{f"o_{name}": OUTPUT.index(name) for name in OUTPUT},
        **{f"op_{name}": k for k, name in enumerate(SIZE_OPS)},
    )  # fmt: skip


_SIZES = """
; Runs a call of a structure by a plan for many sizes. Gives its result; null with an error set; or
; a borrowed NotImplemented where there is none for it.
define internal ptr @run_sized(ptr %call, ptr %structure) noinline nounwind {{
entry:
  %frame = alloca [{MOST_FRAME} x i64], align 64
  %values = alloca [{MOST_STEPS} x i64], align 64
  %key = getelementptr i64, ptr %call, i64 {KEY}
  %length.at = getelementptr i64, ptr %call, i64 {LENGTH}
  %length = load i64, ptr %length.at
  %list.at = getelementptr i64, ptr %structure, i64 {sized}
  %list = load ptr, ptr %list.at
  %number = load i64, ptr %list
  br label %each
each:
  %s = phi i64 [ 0, %entry ], [ %s.next, %other ]
  %more = icmp ult i64 %s, %number
  br i1 %more, label %try, label %none
try:
  %index = add i64 %s, 1
  %plan.at = getelementptr i64, ptr %list, i64 %index
  %plan = load ptr, ptr %plan.at
  %its.length.at = getelementptr i64, ptr %plan, i64 {s_length}
  %its.length = load i64, ptr %its.length.at
  %same.length = icmp eq i64 %its.length, %length
  br i1 %same.length, label %compare, label %other
compare:
  %like.at = getelementptr i64, ptr %plan, i64 {s_like}
  %like = load ptr, ptr %like.at
  %mask.at = getelementptr i64, ptr %plan, i64 {s_mask}
  %mask = load ptr, ptr %mask.at
  br label %word
word:
  %i = phi i64 [ 0, %compare ], [ %i.next, %next.word ]
  %i.key.at = getelementptr i64, ptr %key, i64 %i
  %i.key = load i64, ptr %i.key.at
  %i.like.at = getelementptr i64, ptr %like, i64 %i
  %i.like = load i64, ptr %i.like.at
  %i.mask.at = getelementptr i64, ptr %mask, i64 %i
  %i.mask = load i64, ptr %i.mask.at
  %i.differ = xor i64 %i.key, %i.like
  %i.matters = and i64 %i.differ, %i.mask
  %i.same = icmp eq i64 %i.matters, 0
  br i1 %i.same, label %next.word, label %other
next.word:
  %i.next = add i64 %i, 1
  %more.words = icmp ult i64 %i.next, %length
  br i1 %more.words, label %word, label %prepare
other:
  %s.next = add i64 %s, 1
  br label %each
none:
  ret ptr @_Py_NotImplementedStruct

prepare:
  %template.at = getelementptr i64, ptr %plan, i64 {s_frame}
  %template = load ptr, ptr %template.at
  %frame.size.at = getelementptr i64, ptr %plan, i64 {s_frame_size}
  %frame.size = load i64, ptr %frame.size.at
  %frame.bytes = shl i64 %frame.size, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %template, i64 %frame.bytes, i1 false)
  %code.at = getelementptr i64, ptr %plan, i64 {s_code}
  %code = load ptr, ptr %code.at
  %steps.at = getelementptr i64, ptr %plan, i64 {s_steps}
  %steps = load i64, ptr %steps.at
  br label %step

step:
  %n = phi i64 [ 0, %prepare ], [ %n.next, %given ]
  %more.steps = icmp ult i64 %n, %steps
  br i1 %more.steps, label %decode, label %go
decode:
  %op.index = mul i64 %n, 3
  %op.at = getelementptr i64, ptr %code, i64 %op.index
  %op = load i64, ptr %op.at
  %a.at = getelementptr i64, ptr %op.at, i64 1
  %a = load i64, ptr %a.at
  %b.at = getelementptr i64, ptr %op.at, i64 2
  %b = load i64, ptr %b.at
  switch i64 %op, label %none [
    i64 {op_const}, label %given
    i64 {op_key}, label %op.key
    i64 {op_relocate}, label %op.relocate
    i64 {op_sized}, label %op.sized
    i64 {op_copy}, label %op.copy
    i64 {op_put}, label %first
    i64 {op_add}, label %first
    i64 {op_mul}, label %first
    i64 {op_floordiv}, label %first
    i64 {op_mod}, label %first
    i64 {op_min}, label %first
    i64 {op_max}, label %first
    i64 {op_zero}, label %first
    i64 {op_least}, label %first
    i64 {op_other}, label %first
  ]

op.key:
  %word.at = getelementptr i64, ptr %key, i64 %a
  %word.value = load i64, ptr %word.at
  br label %given
op.relocate:
  %from.at = getelementptr i64, ptr %frame, i64 %a
  %to.at = getelementptr i64, ptr %frame, i64 %b
  store ptr %to.at, ptr %from.at
  br label %given
op.copy:
  %copied.at = getelementptr i64, ptr %frame, i64 %b
  %copied = load i64, ptr %copied.at
  %copy.to = getelementptr i64, ptr %frame, i64 %a
  store i64 %copied, ptr %copy.to
  br label %given
op.sized:
  %record = getelementptr i64, ptr %frame, i64 %b
  %nbytes.at = getelementptr i64, ptr %record, i64 {o_nbytes}
  %nbytes = load i64, ptr %nbytes.at
  %is.large = icmp uge i64 %nbytes, {POOLED}
  br i1 %is.large, label %ask, label %given
ask:
  %its.rank.at = getelementptr i64, ptr %record, i64 {o_rank}
  %its.rank64 = load i64, ptr %its.rank.at
  %its.rank = trunc i64 %its.rank64 to i32
  %its.dims.at = getelementptr i64, ptr %record, i64 {o_dims}
  %its.dims = load ptr, ptr %its.dims.at
  %its.dtype.at = getelementptr i64, ptr %record, i64 {o_dtype}
  %its.dtype = load ptr, ptr %its.dtype.at
  %wanted = call ptr @wanted(ptr %its.dtype, i32 %its.rank, ptr %its.dims, i64 %nbytes)
  %not.made = icmp eq ptr %wanted, null
  br i1 %not.made, label %release, label %note, !prof !0
note:
  %note.to = getelementptr i64, ptr %frame, i64 %a
  store ptr %wanted, ptr %note.to
  br label %given

first:
  %x.at = getelementptr i64, ptr %values, i64 %a
  %x = load i64, ptr %x.at
  switch i64 %op, label %second [
    i64 {op_put}, label %op.put
    i64 {op_zero}, label %op.zero
    i64 {op_least}, label %op.least
    i64 {op_other}, label %op.other
  ]
op.put:
  %put.to = getelementptr i64, ptr %frame, i64 %b
  store i64 %x, ptr %put.to
  br label %given
op.zero:
  %zero = icmp eq i64 %x, 0
  br i1 %zero, label %given, label %other
op.least:
  %least = icmp sge i64 %x, 0
  br i1 %least, label %given, label %other
op.other:
  %nonzero = icmp ne i64 %x, 0
  br i1 %nonzero, label %given, label %other

second:
  %y.at = getelementptr i64, ptr %values, i64 %b
  %y = load i64, ptr %y.at
  switch i64 %op, label %none [
    i64 {op_add}, label %op.add
    i64 {op_mul}, label %op.mul
    i64 {op_floordiv}, label %divide
    i64 {op_mod}, label %divide
    i64 {op_min}, label %op.min
    i64 {op_max}, label %op.max
  ]
op.add:
  %sum.or = call {{i64, i1}} @llvm.sadd.with.overflow.i64(i64 %x, i64 %y)
  %sum = extractvalue {{i64, i1}} %sum.or, 0
  %sum.over = extractvalue {{i64, i1}} %sum.or, 1
  br i1 %sum.over, label %none, label %given, !prof !0
op.mul:
  %product.or = call {{i64, i1}} @llvm.smul.with.overflow.i64(i64 %x, i64 %y)
  %product = extractvalue {{i64, i1}} %product.or, 0
  %product.over = extractvalue {{i64, i1}} %product.or, 1
  br i1 %product.over, label %none, label %given, !prof !0
divide:
  %positive = icmp sgt i64 %y, 0
  br i1 %positive, label %quotients, label %none, !prof !1
quotients:
  %toward.zero = sdiv i64 %x, %y
  %back = mul i64 %toward.zero, %y
  %rest = sub i64 %x, %back
  %below = icmp slt i64 %rest, 0
  %rest.up = add i64 %rest, %y
  %floor.rest = select i1 %below, i64 %rest.up, i64 %rest
  %down = sub i64 %toward.zero, 1
  %floor = select i1 %below, i64 %down, i64 %toward.zero
  %is.mod = icmp eq i64 %op, {op_mod}
  %divided = select i1 %is.mod, i64 %floor.rest, i64 %floor
  br label %given
op.min:
  %smaller = call i64 @llvm.smin.i64(i64 %x, i64 %y)
  br label %given
op.max:
  %larger = call i64 @llvm.smax.i64(i64 %x, i64 %y)
  br label %given

given:
  %value = phi i64 [ %a, %decode ], [ %word.value, %op.key ], [ 0, %op.relocate ], [ 0, %op.copy ],
      [ 0, %op.sized ], [ 0, %note ], [ 0, %op.put ], [ 0, %op.zero ], [ 0, %op.least ],
      [ 0, %op.other ], [ %sum, %op.add ], [ %product, %op.mul ], [ %divided, %quotients ],
      [ %smaller, %op.min ], [ %larger, %op.max ]
  %value.at = getelementptr i64, ptr %values, i64 %n
  store i64 %value, ptr %value.at
  %n.next = add i64 %n, 1
  br label %step

go:
  %holds.at = getelementptr i64, ptr %frame, i64 {p_holds}
  %holds = load i64, ptr %holds.at
  %is.plain = icmp eq i64 %holds, 0
  br i1 %is.plain, label %plain, label %held, !prof !1
plain:
  %found = call ptr @run(ptr %call, ptr %frame)
  br label %release
held:
  %found.held = call ptr @run_held(ptr %call, ptr %frame)
  br label %release

release:
  %result = phi ptr [ %found, %plain ], [ %found.held, %held ], [ null, %ask ]
  %outputs.at = getelementptr i64, ptr %frame, i64 {p_outputs}
  %outputs = load i64, ptr %outputs.at
  %records = getelementptr i64, ptr %frame, i64 {PLAN}
  br label %let.go
let.go:
  ; The record of the scratch memory comes last.
  %room.index = mul i64 %outputs, {OUTPUT}
  %room.large = add i64 %room.index, {LARGE}
  %room.at = getelementptr i64, ptr %records, i64 %room.large
  %room.wanted = load ptr, ptr %room.at
  call void @Py_DecRef(ptr %room.wanted)
  br label %done
done:
  ret ptr %result
}}

; What the pool is asked with for an array: its shape, dtype and bytes.
define internal ptr @wanted(ptr %dtype, i32 %rank32, ptr %dims, i64 %nbytes) nounwind {{
entry:
  %rank = zext i32 %rank32 to i64
  %shape = call ptr @PyTuple_New(i64 %rank)
  %no.shape = icmp eq ptr %shape, null
  br i1 %no.shape, label %fail, label %dim
dim:
  %d = phi i64 [ 0, %entry ], [ %d.next, %put ]
  %more = icmp ult i64 %d, %rank
  br i1 %more, label %extent, label %whole
extent:
  %extent.at = getelementptr i64, ptr %dims, i64 %d
  %extent.value = load i64, ptr %extent.at
  %extent.object = call ptr @PyLong_FromLongLong(i64 %extent.value)
  %no.extent = icmp eq ptr %extent.object, null
  br i1 %no.extent, label %drop.shape, label %put
put:
  %put.status = call i32 @PyTuple_SetItem(ptr %shape, i64 %d, ptr %extent.object)
  %d.next = add i64 %d, 1
  br label %dim
whole:
  %size = call ptr @PyLong_FromLongLong(i64 %nbytes)
  %no.size = icmp eq ptr %size, null
  br i1 %no.size, label %drop.shape, label %group
group:
  %tuple = call ptr @PyTuple_New(i64 3)
  %no.tuple = icmp eq ptr %tuple, null
  br i1 %no.tuple, label %drop.size, label %items
items:
  call void @Py_IncRef(ptr %dtype)
  %status0 = call i32 @PyTuple_SetItem(ptr %tuple, i64 0, ptr %shape)
  %status1 = call i32 @PyTuple_SetItem(ptr %tuple, i64 1, ptr %dtype)
  %status2 = call i32 @PyTuple_SetItem(ptr %tuple, i64 2, ptr %size)
  ret ptr %tuple
drop.size:
  call void @Py_DecRef(ptr %size)
  br label %drop.shape
drop.shape:
  call void @Py_DecRef(ptr %shape)
  br label %fail
fail:
  ret ptr null
}}
declare {{i64, i1}} @llvm.sadd.with.overflow.i64(i64, i64)
declare {{i64, i1}} @llvm.smul.with.overflow.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare ptr @PyLong_FromLongLong(i64)
"""
