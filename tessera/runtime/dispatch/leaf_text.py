"""The native side of reading one leaf of the arguments, as LLVM text."""

from __future__ import annotations

from typing import Final

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.words import Offsets

# Where DLPack's DLTensor has its fields.
_SIZE, _DEVICE, _RANK, _KIND, _SHAPE, _STRIDES, _OFFSET = 48, 8, 16, 20, 24, 32, 40
_COMPLEX = 5
_MOST_DIMS = 64

SMALL_COPY: Final = 512
"""Elements of an array in another order that is copied anew for each call."""


def leaf_text(offsets: Offsets) -> str:
    """The function that notes what a leaf is."""
    array = offsets["Array"]
    return _LEAF.format(
        TYPE=w.TYPE, DATA=w.DATA, RANK=w.RANK, DIMS=w.DIMS, DTYPE=w.DTYPE, FLAGS=w.FLAGS,
        READY=w.READY, type=array["_type"], weak=offsets["TensorType"]["weak"],
        contiguous=array["_contiguous"], data=array["_data"], LEAVES=w.LEAVES, LENGTH=w.LENGTH,
        REMOTES=w.REMOTES, LINES=w.LINES, KEPT=w.KEPT, FIRST=w.FIRST, KEY=w.KEY,
        ADDRESSES=w.ADDRESSES, NUMBERS=w.NUMBERS, FLOAT=w.FLOAT_VALUE, MOST_LEAVES=w.MOST_LEAVES,
        MOST_KEY=w.MOST_KEY_WORDS - 80, REFS=w.REFS, REFS_AT=w.REFS_AT, MOST_REFS=w.MOST_REFS,
        kind=offsets["Cell"]["kind"], OBJECTS=w.OBJECTS,
    ) + _COPY.format(
        LEAVES=w.LEAVES, RANK=w.RANK, DIMS=w.DIMS, STRIDES=w.STRIDES, OBJECTS=w.OBJECTS,
        SMALL=SMALL_COPY, MOST_COPIED=w.MOST_COPIED,
    ) + _EXCHANGE.format(
        SIZE=_SIZE, DEVICE=_DEVICE, RANK=_RANK, KIND=_KIND, SHAPE=_SHAPE, STRIDES=_STRIDES,
        OFFSET=_OFFSET, COMPLEX=_COMPLEX, MOST=_MOST_DIMS, TYPE=w.TYPE,
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
  br i1 %is.numpy, label %elements, label %perhaps.tensor

perhaps.tensor:
  %tensor.class = load ptr, ptr @tessera_exchange
  %is.tensor = icmp eq ptr %type, %tensor.class
  br i1 %is.tensor, label %tensor.leaf, label %number
tensor.leaf:
  %tensor.words = call i64 @exchange(ptr %object, ptr %key, ptr %address.at)
  %tensor.known = icmp ne i64 %tensor.words, 0
  %tensor.ok = xor i1 %is.line, true
  %tensor.fits = and i1 %tensor.known, %tensor.ok
  br i1 %tensor.fits, label %tensor.noted, label %no
tensor.noted:
  %tensor.length = add i64 %length, %tensor.words
  store i64 %tensor.length, ptr %length.at
  br label %keep

elements:
  %array = phi ptr [ %held, %prepared ], [ %object, %foreign ]
  %yields = phi i1 [ %weak, %prepared ], [ 0, %foreign ]
  %is.foreign = phi i1 [ 0, %prepared ], [ 1, %foreign ]
  %flags.at = getelementptr i8, ptr %array, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %ready = and i32 %flags, {READY}
  %is.ready = icmp eq i32 %ready, {READY}
  br i1 %is.ready, label %describe, label %strided, !prof !1
strided:
  br i1 %yields, label %no, label %copied
copied:
  %is.array = xor i1 %is.foreign, true
  %as.copy = call i1 @leaf_of_copy(ptr %call, ptr %object, ptr %array, i1 %is.array)
  ret i1 %as.copy
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
  %first.at = getelementptr i64, ptr %call, i64 {FIRST}
  %first = load ptr, ptr %first.at
  %is.first = icmp eq ptr %first, null
  br i1 %is.first, label %put.first, label %same.rank
put.first:
  store ptr %array, ptr %first.at
  br label %keep
same.rank:
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
  br i1 %is.bool, label %bool, label %perhaps.ref
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

perhaps.ref:
  %cells = call i32 @PyType_IsSubtype(ptr %type, ptr @tessera_cell_class)
  %is.cell = icmp ne i32 %cells, 0
  %refs.at = getelementptr i64, ptr %call, i64 {REFS}
  %refs = load i64, ptr %refs.at
  %ref.room = icmp ult i64 %refs, {MOST_REFS}
  %no.line = xor i1 %is.line, true
  %ref.fits = and i1 %ref.room, %no.line
  %is.ref = and i1 %is.cell, %ref.fits
  br i1 %is.ref, label %ref, label %no
ref:
  %kind.at = getelementptr i8, ptr %object, i64 {kind}
  %kind = load i64, ptr %kind.at
  store i64 %kind, ptr %key
  %ref.length = add i64 %length, 1
  store i64 %ref.length, ptr %length.at
  %ref.place = add i64 %refs, {REFS_AT}
  %ref.at = getelementptr i64, ptr %call, i64 %ref.place
  call void @Py_IncRef(ptr %object)
  store ptr %object, ptr %ref.at
  %refs.next = add i64 %refs, 1
  store i64 %refs.next, ptr %refs.at
  ret i1 1

keep:
  %keeps = phi ptr [ %object, %remote ], [ %object, %tensor.noted ],
      [ %array, %shaped ], [ %array, %put.first ], [ %array,
      %same.dim ], [ %object, %put.number ]
  call void @Py_IncRef(ptr %keeps)
  store ptr %keeps, ptr %kept.at
  %object.place = add i64 %k, {OBJECTS}
  %object.at = getelementptr i64, ptr %call, i64 %object.place
  store ptr %object, ptr %object.at
  %k.next = add i64 %k, 1
  store i64 %k.next, ptr %leaves.at
  ret i1 1
no:
  ret i1 0
}}
"""


# Notes a copy in row-major order in place of an array in another one. What is repeated is left to
# Python, which may read it as it is. Large arrays of ours keep copies for the next call; another
# library's cannot.
_COPY = """
@tessera_name_contiguous = external global i8
define internal i1 @leaf_of_copy(ptr %call, ptr %object, ptr %array,
    i1 %is.ours) nounwind noinline {{
entry:
  %leaves.at = getelementptr i64, ptr %call, i64 {LEAVES}
  %k = load i64, ptr %leaves.at
  %rank.at = getelementptr i8, ptr %array, i64 {RANK}
  %rank32 = load i32, ptr %rank.at
  %rank = zext i32 %rank32 to i64
  %dims.at = getelementptr i8, ptr %array, i64 {DIMS}
  %dims = load ptr, ptr %dims.at
  %strides.at = getelementptr i8, ptr %array, i64 {STRIDES}
  %strides = load ptr, ptr %strides.at
  br label %dim
dim:
  %d = phi i64 [ 0, %entry ], [ %d.next, %moves ]
  %size = phi i64 [ 1, %entry ], [ %size.next, %moves ]
  %more = icmp ult i64 %d, %rank
  br i1 %more, label %measure, label %measured
measure:
  %extent.at = getelementptr i64, ptr %dims, i64 %d
  %extent = load i64, ptr %extent.at
  %stride.at = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %stride.at
  %size.next = mul i64 %size, %extent
  %d.next = add i64 %d, 1
  %several = icmp ugt i64 %extent, 1
  %stays = icmp eq i64 %stride, 0
  %repeats = and i1 %several, %stays
  br i1 %repeats, label %no, label %moves
moves:
  br label %dim
measured:
  %is.small = icmp ule i64 %size, {SMALL}
  br i1 %is.small, label %copy, label %large
copy:
  %fresh = call ptr @tessera_new_copy(ptr %array, i32 0)
  br label %made
large:
  %most.at = getelementptr i64, ptr %call, i64 {MOST_COPIED}
  %most = load i64, ptr %most.at
  %is.copied = icmp ule i64 %size, %most
  %may.be.asked = and i1 %is.ours, %is.copied
  br i1 %may.be.asked, label %ask, label %no
ask:
  %kept = call ptr @PyObject_GetAttr(ptr %object, ptr @tessera_name_contiguous)
  br label %made
made:
  %made.array = phi ptr [ %fresh, %copy ], [ %kept, %ask ]
  %failed = icmp eq ptr %made.array, null
  br i1 %failed, label %clear, label %note, !prof !0
note:
  %noted = call i1 @leaf(ptr %call, ptr %made.array)
  %object.place = add i64 %k, {OBJECTS}
  %object.at = getelementptr i64, ptr %call, i64 %object.place
  store ptr %object, ptr %object.at
  call void @Py_DecRef(ptr %made.array)
  ret i1 %noted
clear:
  call void @PyErr_Clear()
  br label %no
no:
  ret i1 0
}}
"""


# Asks an array of another library where its elements are. Gives the number of words of the key that
# it wrote, or 0 for what native code does not know.
_EXCHANGE = """
define internal i64 @exchange(ptr %object, ptr %key, ptr %address.at) nounwind {{
entry:
  %tensor = alloca [{SIZE} x i8], align 8
  %name.at = getelementptr i64, ptr @tessera_exchange, i64 2
  %name = load ptr, ptr %name.at
  %has.name = icmp ne ptr %name, null
  br i1 %has.name, label %look, label %ask
look:
  %value = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  %no.value = icmp eq ptr %value, null
  br i1 %no.value, label %clear, label %judge, !prof !0
judge:
  call void @Py_DecRef(ptr %value)
  %is.false = icmp eq ptr %value, @_Py_FalseStruct
  br i1 %is.false, label %ask, label %no, !prof !1
ask:
  %function.at = getelementptr i64, ptr @tessera_exchange, i64 1
  %function = load ptr, ptr %function.at
  %status = call i32 %function(ptr %object, ptr %tensor)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %clear, label %read, !prof !0
read:
  %device.at = getelementptr i8, ptr %tensor, i64 {DEVICE}
  %device = load i32, ptr %device.at
  %on.host = icmp eq i32 %device, 1
  %rank.at = getelementptr i8, ptr %tensor, i64 {RANK}
  %rank32 = load i32, ptr %rank.at
  %rank = zext i32 %rank32 to i64
  %few = icmp ult i64 %rank, {MOST}
  %kind.at = getelementptr i8, ptr %tensor, i64 {KIND}
  %kind32 = load i32, ptr %kind.at
  %kind = zext i32 %kind32 to i64
  %code = and i64 %kind, 255
  ; Complex numbers may be marked as conjugate.
  %is.real = icmp ne i64 %code, {COMPLEX}
  %offset.at = getelementptr i8, ptr %tensor, i64 {OFFSET}
  %offset = load i64, ptr %offset.at
  %shape.at = getelementptr i8, ptr %tensor, i64 {SHAPE}
  %shape = load ptr, ptr %shape.at
  %strides.at = getelementptr i8, ptr %tensor, i64 {STRIDES}
  %strides = load ptr, ptr %strides.at
  %elements = load i64, ptr %tensor
  %address = add i64 %elements, %offset
  %bits.up = lshr i64 %kind, 8
  %bits = and i64 %bits.up, 255
  %bytes = lshr i64 %bits, 3
  %below = sub i64 %bytes, 1
  %rest = and i64 %address, %below
  %aligned = icmp eq i64 %rest, 0
  %whole = icmp ne i64 %bytes, 0
  %ok1 = and i1 %on.host, %few
  %ok2 = and i1 %is.real, %aligned
  %ok3 = and i1 %ok1, %ok2
  %ok = and i1 %ok3, %whole
  br i1 %ok, label %describe, label %no, !prof !1
describe:
  %type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load i64, ptr %type.at
  store i64 %type, ptr %key
  %rank.high = shl i64 %rank, 32
  %word = or i64 %rank.high, %kind
  %key1 = getelementptr i64, ptr %key, i64 1
  store i64 %word, ptr %key1
  %key2 = getelementptr i64, ptr %key, i64 2
  %dense = icmp eq ptr %strides, null
  br label %dim
dim:
  %d = phi i64 [ %rank, %describe ], [ %e, %matching ]
  %step = phi i64 [ 1, %describe ], [ %step.next, %matching ]
  %more = icmp ne i64 %d, 0
  br i1 %more, label %put, label %done
put:
  %e = sub i64 %d, 1
  %extent.at = getelementptr i64, ptr %shape, i64 %e
  %extent = load i64, ptr %extent.at
  %to = getelementptr i64, ptr %key2, i64 %e
  store i64 %extent, ptr %to
  %step.next = mul i64 %step, %extent
  br i1 %dense, label %matching, label %compare
compare:
  %stride.at = getelementptr i64, ptr %strides, i64 %e
  %stride = load i64, ptr %stride.at
  %same = icmp eq i64 %stride, %step
  %alone = icmp eq i64 %extent, 1
  %fine = or i1 %same, %alone
  br i1 %fine, label %matching, label %no, !prof !1
matching:
  br label %dim
done:
  store i64 %address, ptr %address.at
  %words = add i64 %rank, 2
  ret i64 %words
clear:
  call void @PyErr_Clear()
  br label %no
no:
  ret i64 0
}}
"""
