"""The native side of reading elements of one array, as LLVM text."""

from __future__ import annotations

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.words import Offsets

_FEW = 256
"""An element of so many is a view, which keeps all of them; what is read of larger arrays by single
numbers is copied, by Python."""


def view_text(offsets: Offsets) -> str:
    """The function that reads at a number or a slice."""
    array = offsets["Array"]
    return _VIEW.format(
        TYPE=w.TYPE, RANK=w.RANK, DIMS=w.DIMS, FLAGS=w.FLAGS, READ_ONLY=~w.WRITEABLE & 0xFFFF,
        FEW=_FEW, data=array["_data"], contiguous=array["_contiguous"], type=array["_type"],
    )  # fmt: skip


# NumPy makes the view. It also tells of a wrong index; then Python finds out what is wrong.
_VIEW = """
define ptr @tessera_view(ptr %self, ptr %args, i64 %count) nounwind {{
entry:
  %traces = load i64, ptr @tessera_traces
  %quiet = icmp eq i64 %traces, 0
  br i1 %quiet, label %look, label %decline, !prof !1
look:
  %x = load ptr, ptr %args
  %index.at = getelementptr ptr, ptr %args, i64 1
  %index = load ptr, ptr %index.at
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
  %index.type.at = getelementptr i8, ptr %index, i64 {TYPE}
  %index.type = load ptr, ptr %index.type.at
  %is.slice = icmp eq ptr %index.type, @PySlice_Type
  br i1 %is.slice, label %read, label %perhaps.number
perhaps.number:
  %is.number = icmp eq ptr %index.type, @PyLong_Type
  br i1 %is.number, label %number, label %decline
number:
  %rank.at = getelementptr i8, ptr %data, i64 {RANK}
  %rank = load i32, ptr %rank.at
  %is.vector = icmp eq i32 %rank, 1
  br i1 %is.vector, label %vector, label %read
vector:
  %dims.at = getelementptr i8, ptr %data, i64 {DIMS}
  %dims = load ptr, ptr %dims.at
  %length = load i64, ptr %dims
  %few = icmp ule i64 %length, {FEW}
  br i1 %few, label %element, label %decline
element:
  %tuple = call ptr (i64, ...) @PyTuple_Pack(i64 2, ptr %index, ptr @_Py_EllipsisObject)
  %no.tuple = icmp eq ptr %tuple, null
  br i1 %no.tuple, label %clear, label %read, !prof !0
read:
  %where = phi ptr [ %index, %kind ], [ %index, %number ], [ %tuple, %element ]
  %own = phi i1 [ 0, %kind ], [ 0, %number ], [ 1, %element ]
  %found = call ptr @PyObject_GetItem(ptr %data, ptr %where)
  br i1 %own, label %drop.tuple, label %was.read
drop.tuple:
  call void @Py_DecRef(ptr %where)
  br label %was.read
was.read:
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
  call void @Py_IncRef(ptr @_Py_NotImplementedStruct)
  ret ptr @_Py_NotImplementedStruct
}}
"""
