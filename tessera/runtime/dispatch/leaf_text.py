"""The native side of reading one leaf of the arguments, as LLVM text."""

from __future__ import annotations

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.words import Offsets


def leaf_text(offsets: Offsets) -> str:
    """The function that notes what a leaf is."""
    array = offsets["Array"]
    return _LEAF.format(
        TYPE=w.TYPE, DATA=w.DATA, RANK=w.RANK, DIMS=w.DIMS, DTYPE=w.DTYPE, FLAGS=w.FLAGS,
        READY=w.READY, type=array["_type"], weak=offsets["TensorType"]["weak"],
        contiguous=array["_contiguous"], data=array["_data"], LEAVES=w.LEAVES, LENGTH=w.LENGTH,
        REMOTES=w.REMOTES, LINES=w.LINES, KEPT=w.KEPT, KEY=w.KEY, ADDRESSES=w.ADDRESSES,
        NUMBERS=w.NUMBERS, FLOAT=w.FLOAT_VALUE, MOST_LEAVES=w.MOST_LEAVES,
        MOST_KEY=w.MOST_KEY_WORDS - 80,
    )  # fmt: skip


# Whether an object is an array or a number; then its part of the key is noted, and it is kept.
_LEAF = """
define internal i1 @leaf(ptr %call, ptr %object) nounwind {{
entry:
  %leaves.at = getelementptr i64, ptr %call, i64 {LEAVES}
  %length.at = getelementptr i64, ptr %call, i64 {LENGTH}
  %k = load i64, ptr %leaves.at
  %length = load i64, ptr %length.at
  %room = icmp ult i64 %k, {MOST_LEAVES}
  %key.room = icmp ult i64 %length, {MOST_KEY}
  %both.room = and i1 %room, %key.room
  br i1 %both.room, label %look, label %no, !prof !1

look:
  %key.place = add i64 %length, {KEY}
  %key = getelementptr i64, ptr %call, i64 %key.place
  %kept.place = add i64 %k, {KEPT}
  %kept.at = getelementptr i64, ptr %call, i64 %kept.place
  %address.place = add i64 %k, {ADDRESSES}
  %address.at = getelementptr i64, ptr %call, i64 %address.place
  %lines.at = getelementptr i64, ptr %call, i64 {LINES}
  %lines = load i64, ptr %lines.at
  %is.line = icmp ne i64 %lines, 0
  %type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %is.ours = icmp eq ptr %type, @tessera_array_class
  br i1 %is.ours, label %ours, label %foreign

ours:
  %tensor.at = getelementptr i8, ptr %object, i64 {type}
  %tensor = load ptr, ptr %tensor.at
  %untyped = icmp eq ptr %tensor, @_Py_NoneStruct
  br i1 %untyped, label %strong, label %typed
typed:
  %weak.at = getelementptr i8, ptr %tensor, i64 {weak}
  %weak.value = load ptr, ptr %weak.at
  %is.weak = icmp ne ptr %weak.value, @_Py_FalseStruct
  br label %strong
strong:
  %weak = phi i1 [ 0, %ours ], [ %is.weak, %typed ]
  %contiguous.at = getelementptr i8, ptr %object, i64 {contiguous}
  %contiguous = load ptr, ptr %contiguous.at
  %unprepared = icmp eq ptr %contiguous, @_Py_NoneStruct
  br i1 %unprepared, label %as.it.is, label %prepared
as.it.is:
  %data.at = getelementptr i8, ptr %object, i64 {data}
  %data = load ptr, ptr %data.at
  br label %prepared
prepared:
  %held = phi ptr [ %contiguous, %strong ], [ %data, %as.it.is ]
  %held.type.at = getelementptr i8, ptr %held, i64 {TYPE}
  %held.type = load ptr, ptr %held.type.at
  %on.host = icmp eq ptr %held.type, @tessera_ndarray_type
  br i1 %on.host, label %elements, label %perhaps.remote, !prof !1

perhaps.remote:
  %is.remote = icmp eq ptr %held.type, @tessera_remote_class
  br i1 %is.remote, label %remote, label %no
remote:
  %remotes.at = getelementptr i64, ptr %call, i64 {REMOTES}
  %remotes = load i64, ptr %remotes.at
  %remotes.next = add i64 %remotes, 1
  store i64 %remotes.next, ptr %remotes.at
  br label %keep

foreign:
  %is.numpy = icmp eq ptr %type, @tessera_ndarray_type
  br i1 %is.numpy, label %elements, label %number

elements:
  %array = phi ptr [ %held, %prepared ], [ %object, %foreign ]
  %yields = phi i1 [ %weak, %prepared ], [ 0, %foreign ]
  %flags.at = getelementptr i8, ptr %array, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %ready = and i32 %flags, {READY}
  %is.ready = icmp eq i32 %ready, {READY}
  br i1 %is.ready, label %describe, label %no, !prof !1
describe:
  %dtype.at = getelementptr i8, ptr %array, i64 {DTYPE}
  %dtype = load i64, ptr %dtype.at
  %rank.at = getelementptr i8, ptr %array, i64 {RANK}
  %rank32 = load i32, ptr %rank.at
  %rank = zext i32 %rank32 to i64
  %dims.at = getelementptr i8, ptr %array, i64 {DIMS}
  %dims = load ptr, ptr %dims.at
  %elements.at = getelementptr i8, ptr %array, i64 {DATA}
  %address = load i64, ptr %elements.at
  store i64 %address, ptr %address.at
  store i64 %dtype, ptr %key
  %key1 = getelementptr i64, ptr %key, i64 1
  %yields.bit = zext i1 %yields to i64
  %yields.word = shl i64 %yields.bit, 32
  br i1 %is.line, label %line, label %shape

shape:
  %word1 = or i64 %yields.word, %rank
  store i64 %word1, ptr %key1
  %key2 = getelementptr i64, ptr %key, i64 2
  br label %dim
dim:
  %d = phi i64 [ 0, %shape ], [ %d.next, %put.dim ]
  %more.dims = icmp ult i64 %d, %rank
  br i1 %more.dims, label %put.dim, label %shaped
put.dim:
  %dim.at = getelementptr i64, ptr %dims, i64 %d
  %dim.value = load i64, ptr %dim.at
  %dim.to = getelementptr i64, ptr %key2, i64 %d
  store i64 %dim.value, ptr %dim.to
  %d.next = add i64 %d, 1
  br label %dim
shaped:
  %shape.words = add i64 %rank, 2
  %shape.length = add i64 %length, %shape.words
  store i64 %shape.length, ptr %length.at
  br label %keep

line:
  store i64 %yields.word, ptr %key1
  %line.length = add i64 %length, 2
  store i64 %line.length, ptr %length.at
  %is.first = icmp eq i64 %k, 0
  br i1 %is.first, label %keep, label %same.rank
same.rank:
  %first.at = getelementptr i64, ptr %call, i64 {KEPT}
  %first = load ptr, ptr %first.at
  %first.rank.at = getelementptr i8, ptr %first, i64 {RANK}
  %first.rank = load i32, ptr %first.rank.at
  %equal.rank = icmp eq i32 %first.rank, %rank32
  br i1 %equal.rank, label %same.dims, label %no
same.dims:
  %first.dims.at = getelementptr i8, ptr %first, i64 {DIMS}
  %first.dims = load ptr, ptr %first.dims.at
  br label %same.dim
same.dim:
  %e = phi i64 [ 0, %same.dims ], [ %e.next, %next.dim ]
  %more.same = icmp ult i64 %e, %rank
  br i1 %more.same, label %compare.dim, label %keep
compare.dim:
  %mine.at = getelementptr i64, ptr %dims, i64 %e
  %mine = load i64, ptr %mine.at
  %its.at = getelementptr i64, ptr %first.dims, i64 %e
  %its = load i64, ptr %its.at
  %equal.dim = icmp eq i64 %mine, %its
  br i1 %equal.dim, label %next.dim, label %no
next.dim:
  %e.next = add i64 %e, 1
  br label %same.dim

number:
  %beside.none = icmp eq i64 %k, 0
  %alone = and i1 %is.line, %beside.none
  br i1 %alone, label %no, label %which.number
which.number:
  %number.place = add i64 %k, {NUMBERS}
  %number.at = getelementptr i64, ptr %call, i64 %number.place
  %is.float = icmp eq ptr %type, @PyFloat_Type
  br i1 %is.float, label %float, label %perhaps.int
float:
  %value.at = getelementptr i8, ptr %object, i64 {FLOAT}
  %value = load i64, ptr %value.at
  br label %put.number
perhaps.int:
  %is.int = icmp eq ptr %type, @PyLong_Type
  br i1 %is.int, label %int, label %perhaps.bool
int:
  %overflow.at = alloca i32, align 4
  %integer = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow.at)
  %overflow = load i32, ptr %overflow.at
  %fits = icmp eq i32 %overflow, 0
  br i1 %fits, label %put.number, label %no
perhaps.bool:
  %is.bool = icmp eq ptr %type, @PyBool_Type
  br i1 %is.bool, label %bool, label %no
bool:
  %is.true = icmp eq ptr %object, @_Py_TrueStruct
  %truth = zext i1 %is.true to i64
  br label %put.number
put.number:
  %bits = phi i64 [ %value, %float ], [ %integer, %int ], [ %truth, %bool ]
  store i64 %bits, ptr %number.at
  %number.address = ptrtoint ptr %number.at to i64
  store i64 %number.address, ptr %address.at
  %class.word = ptrtoint ptr %type to i64
  store i64 %class.word, ptr %key
  %number.key1 = getelementptr i64, ptr %key, i64 1
  store i64 -1, ptr %number.key1
  %number.length = add i64 %length, 2
  store i64 %number.length, ptr %length.at
  br label %keep

keep:
  %keeps = phi ptr [ %object, %remote ], [ %array, %shaped ], [ %array, %line ], [ %array,
      %same.dim ], [ %object, %put.number ]
  call void @Py_IncRef(ptr %keeps)
  store ptr %keeps, ptr %kept.at
  %k.next = add i64 %k, 1
  store i64 %k.next, ptr %leaves.at
  ret i1 1
no:
  ret i1 0
}}
"""
