"""The native side of reading elements of one array, as LLVM text: what stands in the slot of
subscripts of its class."""

from __future__ import annotations

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.words import Offsets

_FEW = 256
"""An element of so many is a view, which keeps all of them; an element of a larger array is a
copy."""


def view_text(offsets: Offsets) -> str:
    """The function that stands in the slot of subscripts."""
    array = offsets["Array"]
    return _VIEW.format(
        TYPE=w.TYPE, RANK=w.RANK, DIMS=w.DIMS, STRIDES=w.STRIDES, DATA=w.DATA, BASE=w.BASE,
        DTYPE=w.DTYPE, FLAGS=w.FLAGS, READ_ONLY=~w.WRITEABLE & 0xFFFF, ALIGNED=w.ALIGNED, FEW=_FEW,
        SIZE=w.SIZE, TUPLE_ITEMS=w.TUPLE_ITEMS, data=array["_data"],
        contiguous=array["_contiguous"], type=array["_type"],
    )  # fmt: skip


# NumPy makes the view, but for an element of a vector. It also tells of a wrong index; then Python
# finds out what is wrong.
_VIEW = """
declare ptr @tessera_slow_subscript(ptr, ptr)
declare ptr @tessera_new_copy(ptr, i32)
define ptr @tessera_subscript(ptr %x, ptr %index) nounwind {{
entry:
  %traces = load i64, ptr @tessera_traces
  %quiet = icmp eq i64 %traces, 0
  br i1 %quiet, label %look, label %decline, !prof !1
look:
  %x.type.at = getelementptr i8, ptr %x, i64 {TYPE}
  %x.type = load ptr, ptr %x.type.at
  %is.ours = icmp eq ptr %x.type, @tessera_array_class
  br i1 %is.ours, label %ours, label %decline
ours:
  %data.at = getelementptr i8, ptr %x, i64 {data}
  %data = load ptr, ptr %data.at
  %data.type.at = getelementptr i8, ptr %data, i64 {TYPE}
  %data.type = load ptr, ptr %data.type.at
  %on.host = icmp eq ptr %data.type, @tessera_ndarray_type
  br i1 %on.host, label %kind, label %decline
kind:
  %rank.at = getelementptr i8, ptr %data, i64 {RANK}
  %rank = load i32, ptr %rank.at
  %is.vector = icmp eq i32 %rank, 1
  %code = call i64 @item_kind(ptr %index)
  switch i64 %code, label %decline [
    i64 1, label %number
    i64 2, label %whole
    i64 3, label %whole
    i64 4, label %places
  ]
number:
  br i1 %is.vector, label %element, label %whole
element:
  %one = call ptr @element(ptr %data, ptr %index)
  br label %was.read
places:
  %some = call ptr @read_places(ptr %data, ptr %index, i32 %rank)
  br label %was.read
whole:
  %viewed = call ptr @PyObject_GetItem(ptr %data, ptr %index)
  br label %was.read
was.read:
  %found = phi ptr [ %one, %element ], [ %some, %places ], [ %viewed, %whole ]
  %wrong = icmp eq ptr %found, null
  br i1 %wrong, label %clear, label %protect, !prof !0
protect:
  %flags.at = getelementptr i8, ptr %found, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %read.only = and i32 %flags, {READ_ONLY}
  store i32 %read.only, ptr %flags.at
  %array = call ptr @PyType_GenericAlloc(ptr @tessera_array_class, i64 0)
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %lost, label %set, !prof !0
lost:
  call void @Py_DecRef(ptr %found)
  ret ptr null
set:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  %array.type = getelementptr i8, ptr %array, i64 {type}
  store ptr @_Py_NoneStruct, ptr %array.type
  %array.data = getelementptr i8, ptr %array, i64 {data}
  store ptr %found, ptr %array.data
  %array.contiguous = getelementptr i8, ptr %array, i64 {contiguous}
  store ptr @_Py_NoneStruct, ptr %array.contiguous
  ret ptr %array
clear:
  call void @PyErr_Clear()
  br label %decline
decline:
  %slow = tail call ptr @tessera_slow_subscript(ptr %x, ptr %index)
  ret ptr %slow
}}

; 1 for a number, 2 for a slice or None, 3 for an ellipsis, 4 for a tuple, and else 0.
define internal i64 @item_kind(ptr %item) nounwind {{
entry:
  %type.at = getelementptr i8, ptr %item, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %is.number = icmp eq ptr %type, @PyLong_Type
  br i1 %is.number, label %number, label %other
number:
  ret i64 1
other:
  %is.slice = icmp eq ptr %type, @PySlice_Type
  %is.none = icmp eq ptr %item, @_Py_NoneStruct
  %is.ellipsis = icmp eq ptr %item, @_Py_EllipsisObject
  %is.tuple = icmp eq ptr %type, @PyTuple_Type
  %keeps = or i1 %is.slice, %is.none
  %tuple.code = select i1 %is.tuple, i64 4, i64 0
  %with.ellipsis = select i1 %is.ellipsis, i64 3, i64 %tuple.code
  %code = select i1 %keeps, i64 2, i64 %with.ellipsis
  ret i64 %code
}}

; An element of a vector, or null where there is none or no memory.
define internal ptr @element(ptr %data, ptr %index) nounwind {{
entry:
  %overflow = alloca i32
  %dims.at = getelementptr i8, ptr %data, i64 {DIMS}
  %dims = load ptr, ptr %dims.at
  %length = load i64, ptr %dims
  %value = call i64 @PyLong_AsLongLongAndOverflow(ptr %index, ptr %overflow)
  %from.end = icmp slt i64 %value, 0
  %counted = add i64 %value, %length
  %place = select i1 %from.end, i64 %counted, i64 %value
  %is.inside = icmp ult i64 %place, %length
  %lost.bits = load i32, ptr %overflow
  %fits = icmp eq i32 %lost.bits, 0
  %is.element = and i1 %is.inside, %fits
  br i1 %is.element, label %make, label %none
make:
  %strides.at = getelementptr i8, ptr %data, i64 {STRIDES}
  %strides = load ptr, ptr %strides.at
  %stride = load i64, ptr %strides
  %from = mul i64 %place, %stride
  %start.at = getelementptr i8, ptr %data, i64 {DATA}
  %start = load ptr, ptr %start.at
  %where = getelementptr i8, ptr %start, i64 %from
  %dtype.at = getelementptr i8, ptr %data, i64 {DTYPE}
  %dtype = load ptr, ptr %dtype.at
  %flags.at = getelementptr i8, ptr %data, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %aligned = and i32 %flags, {ALIGNED}
  call void @Py_IncRef(ptr %dtype)
  %found = call ptr @tessera_new_array(ptr @tessera_ndarray_type, ptr %dtype, i32 0,
      ptr null, ptr null, ptr %where, i32 %aligned, ptr null)
  %failed = icmp eq ptr %found, null
  br i1 %failed, label %none, label %keep, !prof !0
keep:
  call void @Py_IncRef(ptr %data)
  %base.at = getelementptr i8, ptr %found, i64 {BASE}
  store ptr %data, ptr %base.at
  %few = icmp ule i64 %length, {FEW}
  br i1 %few, label %view, label %copy
view:
  ret ptr %found
copy:
  %copied = call ptr @own_copy(ptr %found)
  ret ptr %copied
none:
  ret ptr null
}}

; A copy of a view, a reference to which it takes.
define internal ptr @own_copy(ptr %view) nounwind {{
  %copied = call ptr @tessera_new_copy(ptr %view, i32 0)
  call void @Py_DecRef(ptr %view)
  ret ptr %copied
}}

; What is at a tuple of numbers, slices, None and `...`; null where it has others, and where there
; is nothing.
define internal ptr @read_places(ptr %data, ptr %index, i32 %rank) nounwind {{
entry:
  %count.at = getelementptr i8, ptr %index, i64 {SIZE}
  %count = load i64, ptr %count.at
  %items = getelementptr i8, ptr %index, i64 {TUPLE_ITEMS}
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %counted ]
  %numbers = phi i64 [ 0, %entry ], [ %numbers.next, %counted ]
  %ellipses = phi i64 [ 0, %entry ], [ %ellipses.next, %counted ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %look, label %read
look:
  %item.at = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %item.at
  %code = call i64 @item_kind(ptr %item)
  %from.zero = add i64 %code, -1
  %is.known = icmp ult i64 %from.zero, 3
  br i1 %is.known, label %counted, label %none
counted:
  %is.number = icmp eq i64 %code, 1
  %number = zext i1 %is.number to i64
  %numbers.next = add i64 %numbers, %number
  %is.ellipsis = icmp eq i64 %code, 3
  %ellipsis = zext i1 %is.ellipsis to i64
  %ellipses.next = add i64 %ellipses, %ellipsis
  %k.next = add i64 %k, 1
  br label %next
read:
  %has.ellipsis = icmp ne i64 %ellipses, 0
  br i1 %has.ellipsis, label %as.given, label %longer
as.given:
  %given = call ptr @PyObject_GetItem(ptr %data, ptr %index)
  br label %was.read
longer:
  ; With `...`, NumPy gives an array also for an element.
  %one.more = add i64 %count, 1
  %tuple = call ptr @PyTuple_New(i64 %one.more)
  %no.tuple = icmp eq ptr %tuple, null
  br i1 %no.tuple, label %none, label %fill, !prof !0
fill:
  %n = phi i64 [ 0, %longer ], [ %n.next, %put ]
  %is.last = icmp eq i64 %n, %count
  br i1 %is.last, label %end, label %put
put:
  %old.at = getelementptr ptr, ptr %items, i64 %n
  %old = load ptr, ptr %old.at
  call void @Py_IncRef(ptr %old)
  %was.set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %n, ptr %old)
  %n.next = add i64 %n, 1
  br label %fill
end:
  call void @Py_IncRef(ptr @_Py_EllipsisObject)
  %last.set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %count, ptr @_Py_EllipsisObject)
  %found = call ptr @PyObject_GetItem(ptr %data, ptr %tuple)
  call void @Py_DecRef(ptr %tuple)
  br label %was.read
was.read:
  %view = phi ptr [ %given, %as.given ], [ %found, %end ]
  %wide = sext i32 %rank to i64
  %is.element = icmp eq i64 %numbers, %wide
  %failed = icmp eq ptr %view, null
  br i1 %failed, label %none, label %made, !prof !0
made:
  br i1 %is.element, label %measure, label %give
measure:
  %dims.at = getelementptr i8, ptr %data, i64 {DIMS}
  %dims = load ptr, ptr %dims.at
  br label %dim
dim:
  %d = phi i64 [ 0, %measure ], [ %d.next, %multiply ]
  %size = phi i64 [ 1, %measure ], [ %size.next, %multiply ]
  %few = icmp ule i64 %size, {FEW}
  br i1 %few, label %perhaps, label %copy
perhaps:
  %all = icmp eq i64 %d, %wide
  br i1 %all, label %give, label %multiply
multiply:
  %extent.at = getelementptr i64, ptr %dims, i64 %d
  %extent = load i64, ptr %extent.at
  %size.next = mul i64 %size, %extent
  %d.next = add i64 %d, 1
  br label %dim
copy:
  %copied = call ptr @own_copy(ptr %view)
  ret ptr %copied
give:
  ret ptr %view
none:
  ret ptr null
}}
"""
