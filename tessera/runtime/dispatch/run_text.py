"""The native side of running a program: memory, results and the call, as LLVM text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.blocks_text import BLOCKS
from tessera.runtime.dispatch.words import OUTPUT, PLAN, Offsets
from tessera.runtime.memory import POOLED_BYTES

VIEWS_ALONE: Final = "tessera_views_alone"


def run_text(offsets: Offsets) -> str:
    """The functions that run a plan and make its results."""
    array = offsets["Array"]
    return (
        run_function(offsets, "run", _PLAIN)
        + _MAKE.format(
            ALIGNED=w.ALIGNED, BASE=w.BASE, C_CONTIGUOUS=w.C_CONTIGUOUS, DATA=w.DATA,
            NOTHING=VIEWS_ALONE, OWNS=w.OWNS, READY=w.READY, FLAGS=w.FLAGS, HANDLER=w.HANDLER,
            POOLED=POOLED_BYTES, READ_ONLY=~w.WRITEABLE & 0xFFFF, type=array["_type"],
            data=array["_data"], contiguous=array["_contiguous"],
            **{f"o_{name}": OUTPUT.index(name) for name in OUTPUT},
        )
        + _ASSEMBLE
        + BLOCKS
    )  # fmt: skip


def run_function(offsets: Offsets, name: str, parts: Mapping[str, str]) -> str:
    """A function that runs a plan.

    Args:
        offsets: of the slots of classes.
        name: its name.
        parts: what such functions differ in.
    """
    fields = dict(
        MOST_WORDS=w.MOST_WORDS, MOST_OUTPUTS=w.MOST_OUTPUTS, FIRST=w.FIRST, RANK=w.RANK,
        DIMS=w.DIMS, DATA=w.DATA, ADDRESSES=w.ADDRESSES, LEAVES=w.LEAVES, LINES=w.LINES,
        TO_FLOAT32=w.TO_FLOAT32, TO_INT32=w.TO_INT32,
        INT_TO_FLOAT32=w.INT_TO_FLOAT32, INT_TO_FLOAT64=w.INT_TO_FLOAT64,
        KEPT=w.KEPT, BEFORE_KEPT=w.KEPT - 1, OUTPUT=len(OUTPUT),
        ARRAY_DATA=offsets["Array"]["_data"],
        ITEMS=w.TUPLE_ITEMS, TUPLE=w.A_TUPLE, NOTHING=w.NOTHING,
        MOST_REFS=w.MOST_REFS, MOST_CONTENTS=w.MOST_CONTENTS,
        **{word: PLAN.index(word) for word in PLAN},
        **{f"o_{word}": OUTPUT.index(word) for word in OUTPUT},
    )  # fmt: skip
    return _RUN.format(NAME=name, **fields, **{k: v.format(**fields) for k, v in parts.items()})


# The result of a plan for the leaves of a call; null with an error set; or a borrowed
# NotImplemented, where nothing was done.
_RUN = """
define internal ptr @{NAME}(ptr %call, ptr %plan) nounwind {{
entry:
  %words = alloca [{MOST_WORDS} x i64], align 64
  %results = alloca [{MOST_OUTPUTS} x ptr], align 64
{STACK}  %leaves.at = getelementptr i64, ptr %call, i64 {LEAVES}
  %leaves = load i64, ptr %leaves.at
  %lines.at = getelementptr i64, ptr %call, i64 {LINES}
  %lines = load i64, ptr %lines.at
  %is.line = icmp ne i64 %lines, 0
  %addresses = getelementptr i64, ptr %call, i64 {ADDRESSES}
  %first.at = getelementptr i64, ptr %call, i64 {FIRST}
  %captured.n.at = getelementptr i64, ptr %plan, i64 {captured}
  %captured.n = load i64, ptr %captured.n.at
  %outputs.n.at = getelementptr i64, ptr %plan, i64 {outputs}
  %outputs.n = load i64, ptr %outputs.n.at
  %outputs.from = getelementptr i64, ptr %plan, i64 {outputs_at}
  %outputs = load ptr, ptr %outputs.from
  br i1 %is.line, label %measure, label %numbers

measure:
  %first = load ptr, ptr %first.at
  %only.numbers = icmp eq ptr %first, null
  br i1 %only.numbers, label %decline, label %extents
extents:
  %first.rank.at = getelementptr i8, ptr %first, i64 {RANK}
  %first.rank = load i32, ptr %first.rank.at
  %first.dims.at = getelementptr i8, ptr %first, i64 {DIMS}
  %first.dims = load ptr, ptr %first.dims.at
  %first.rank64 = zext i32 %first.rank to i64
  br label %extent
extent:
  %d = phi i64 [ 0, %extents ], [ %d.next, %multiply ]
  %so.far = phi i64 [ 1, %extents ], [ %product, %multiply ]
  %more.dims = icmp ult i64 %d, %first.rank64
  br i1 %more.dims, label %multiply, label %measured
multiply:
  %extent.at = getelementptr i64, ptr %first.dims, i64 %d
  %extent.value = load i64, ptr %extent.at
  %product = mul i64 %so.far, %extent.value
  %d.next = add i64 %d, 1
  br label %extent
measured:
  ; Arrays without elements are known to Python.
  %empty = icmp eq i64 %so.far, 0
  br i1 %empty, label %decline, label %numbers

numbers:
  %size = phi i64 [ 1, %entry ], [ %so.far, %measured ]
  %rank = phi i32 [ 0, %entry ], [ %first.rank, %measured ]
  %dims = phi ptr [ null, %entry ], [ %first.dims, %measured ]
  %converted.from = getelementptr i64, ptr %plan, i64 {converted_at}
  %converted = load ptr, ptr %converted.from
  %has.numbers = icmp ne ptr %converted, null
  br i1 %has.numbers, label %number, label %fill

number:
  %n = phi i64 [ 0, %numbers ], [ %n.next, %as.it.is ]
  %more.numbers = icmp ult i64 %n, %leaves
  br i1 %more.numbers, label %convert, label %fill
convert:
  %code.at = getelementptr i64, ptr %converted, i64 %n
  %code = load i64, ptr %code.at
  %address.at = getelementptr i64, ptr %addresses, i64 %n
  switch i64 %code, label %as.it.is [
    i64 {TO_FLOAT32}, label %to.float
    i64 {TO_INT32}, label %to.int
    i64 {INT_TO_FLOAT32}, label %int.to.float
    i64 {INT_TO_FLOAT64}, label %int.to.double
  ]
int.to.float:
  %f.from = load ptr, ptr %address.at
  %f.int = load i64, ptr %f.from
  %f.value = sitofp i64 %f.int to float
  store float %f.value, ptr %f.from
  br label %as.it.is
int.to.double:
  %d.from = load ptr, ptr %address.at
  %d.int = load i64, ptr %d.from
  %d.value = sitofp i64 %d.int to double
  store double %d.value, ptr %d.from
  br label %as.it.is
to.float:
  %double.at = load ptr, ptr %address.at
  %double = load double, ptr %double.at
  %float = fptrunc double %double to float
  %big = call double @llvm.fabs.f64(double %double)
  %finite = fcmp one double %big, 0x7FF0000000000000
  %limit = fcmp oge double %big, 0x47EFFFFFE0000000
  %overflows = and i1 %finite, %limit
  br i1 %overflows, label %decline, label %put.float, !prof !0
put.float:
  store float %float, ptr %double.at
  br label %as.it.is
to.int:
  %long.at = load ptr, ptr %address.at
  %long = load i64, ptr %long.at
  %narrow = trunc i64 %long to i32
  %wide = sext i32 %narrow to i64
  %lossless = icmp eq i64 %wide, %long
  br i1 %lossless, label %put.int, label %decline, !prof !1
put.int:
  store i32 %narrow, ptr %long.at
  br label %as.it.is
as.it.is:
  %n.next = add i64 %n, 1
  br label %number

fill:
  %captured.from = getelementptr i64, ptr %plan, i64 {captured_at}
  %captured = load ptr, ptr %captured.from
  %captured.bytes = shl i64 %captured.n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %captured, i64 %captured.bytes, i1 false)
  %inputs = getelementptr i64, ptr %words, i64 %captured.n
  %input.bytes = shl i64 %leaves, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %inputs, ptr %addresses, i64 %input.bytes, i1 false)
  %contents.words = getelementptr i64, ptr %inputs, i64 %leaves
{HOLD}
ready:
  br label %output

output:
  %k = phi i64 [ 0, %ready ], [ %k.next, %made ]
  %more = icmp ult i64 %k, %outputs.n
  br i1 %more, label %make, label %room
make:
  %record.index = mul i64 %k, {OUTPUT}
  %record = getelementptr i64, ptr %outputs, i64 %record.index
{NEW}  %k.next = add i64 %k, 1
  br label %output

room:
  %arena.word = getelementptr i64, ptr %out.words, i64 %outputs.n
  store i64 0, ptr %arena.word
  %scratch.at = getelementptr i64, ptr %plan, i64 {scratch}
  %scratch = load ptr, ptr %scratch.at
  %scratch.size.at = getelementptr i64, ptr %plan, i64 {scratch_size}
  %scratch.size = load i64, ptr %scratch.size.at
  %from.pool = icmp ne ptr %scratch, null
  br i1 %from.pool, label %borrow, label %perhaps.block
borrow:
  %arena = call ptr @PyObject_CallObject(ptr @tessera_sized, ptr %scratch)
  %no.arena = icmp eq ptr %arena, null
  br i1 %no.arena, label %undo, label %borrowed, !prof !0
borrowed:
  %arena.at = getelementptr i8, ptr %arena, i64 {DATA}
  %arena.address = load i64, ptr %arena.at
  store i64 %arena.address, ptr %arena.word
  br label %tail
perhaps.block:
  %wants.block = icmp ne i64 %scratch.size, 0
  br i1 %wants.block, label %take.block, label %tail
take.block:
  %block = call ptr @allocate(i64 %scratch.size)
  %no.block = icmp eq ptr %block, null
  br i1 %no.block, label %exhausted, label %taken, !prof !0
exhausted:
  %error = call ptr @PyErr_NoMemory()
  br label %undo
taken:
  store ptr %block, ptr %arena.word
  br label %tail

tail:
  %held = phi ptr [ null, %perhaps.block ], [ null, %taken ], [ %arena, %borrowed ]
  %lent = phi ptr [ null, %perhaps.block ], [ %block, %taken ], [ null, %borrowed ]
  %rest = getelementptr i64, ptr %arena.word, i64 1
  br i1 %is.line, label %put.size, label %put.tail
put.size:
  store i64 %size, ptr %rest
  br label %go
put.tail:
  %tail.n.at = getelementptr i64, ptr %plan, i64 {tail}
  %tail.n = load i64, ptr %tail.n.at
  %tail.from = getelementptr i64, ptr %plan, i64 {tail_at}
  %tail.at = load ptr, ptr %tail.from
  %tail.bytes = shl i64 %tail.n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %tail.at, i64 %tail.bytes, i1 false)
  br label %go

go:
  %main.at = getelementptr i64, ptr %plan, i64 {main}
  %main = load ptr, ptr %main.at
  %release.at = getelementptr i64, ptr %plan, i64 {release}
  %release = load i64, ptr %release.at
  %let.go = icmp uge i64 %size, %release
  br i1 %let.go, label %released, label %holding
released:
  %thread = call ptr @PyEval_SaveThread()
  call void %main(ptr %words)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %ran
holding:
  call void %main(ptr %words)
  br label %ran

ran:
  %has.block = icmp ne ptr %lent, null
  br i1 %has.block, label %return.block, label %give.back
return.block:
  call void @release(ptr %lent)
  br label %give.back
give.back:
  call void @Py_DecRef(ptr %held)
{SETTLE}  %tree.at = getelementptr i64, ptr %plan, i64 {tree}
  %tree = load i64, ptr %tree.at
  %is.leaf = icmp eq i64 %tree, 0
  br i1 %is.leaf, label %single, label %several
single:
  %one = load ptr, ptr %results
  ret ptr %one

several:
  %is.nothing = icmp eq i64 %tree, {NOTHING}
  br i1 %is.nothing, label %nothing, label %containers
nothing:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
containers:
  %template.at = getelementptr i64, ptr %plan, i64 {template}
  %template = load ptr, ptr %template.at
  %is.dict = icmp ne ptr %template, null
  br i1 %is.dict, label %named, label %numbered

named:
  %keys.at = getelementptr i64, ptr %plan, i64 {keys}
  %keys = load ptr, ptr %keys.at
  %keys.items = getelementptr i8, ptr %keys, i64 {ITEMS}
  %dict = call ptr @PyDict_Copy(ptr %template)
  %no.dict = icmp eq ptr %dict, null
  br i1 %no.dict, label %undo, label %entries, !prof !0
entries:
  %e = phi i64 [ 0, %named ], [ %e.next, %entry.one ]
  %bad = phi i32 [ 0, %named ], [ %bad.next, %entry.one ]
  %more.entries = icmp ult i64 %e, %all.shown
  br i1 %more.entries, label %entry.one, label %entries.done
entry.one:
  %e.key.at = getelementptr ptr, ptr %keys.items, i64 %e
  %e.key = load ptr, ptr %e.key.at
  %e.value.at = getelementptr ptr, ptr %results, i64 %e
  %e.value = load ptr, ptr %e.value.at
  %e.status = call i32 @PyDict_SetItem(ptr %dict, ptr %e.key, ptr %e.value)
  %bad.next = or i32 %bad, %e.status
  call void @Py_DecRef(ptr %e.value)
  %e.next = add i64 %e, 1
  br label %entries
entries.done:
  %well = icmp eq i32 %bad, 0
  br i1 %well, label %dict.made, label %dict.failed, !prof !1
dict.made:
  ret ptr %dict
dict.failed:
  call void @Py_DecRef(ptr %dict)
  ret ptr null

numbered:
  %tuple = call ptr @PyTuple_New(i64 %all.shown)
  %no.tuple = icmp eq ptr %tuple, null
  br i1 %no.tuple, label %undo, label %items, !prof !0
items:
  %j = phi i64 [ 0, %numbered ], [ %j.next, %item ]
  %more.items = icmp ult i64 %j, %all.shown
  br i1 %more.items, label %item, label %together
item:
  %item.at = getelementptr ptr, ptr %results, i64 %j
  %item.value = load ptr, ptr %item.at
  %set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %j, ptr %item.value)
  %j.next = add i64 %j, 1
  br label %items
together:
  %is.tuple = icmp eq i64 %tree, {TUPLE}
  %builder = inttoptr i64 %tree to ptr
  %builder.or.none = select i1 %is.tuple, ptr null, ptr %builder
  %assembled = call ptr @assemble(ptr %tuple, ptr %builder.or.none)
  ret ptr %assembled

undo:
  %count = phi i64 [ %k, %make.it ], [ %outputs.n, %borrow ], [ %outputs.n, %exhausted ],
      [ %all.shown, %numbered ], [ %all.shown, %named ]{MORE}
{BEFORE}  br label %undo.next
undo.next:
  %u = phi i64 [ 0, %undo ], [ %u.next, %undo.one ]
  %more.undo = icmp ult i64 %u, %count
  br i1 %more.undo, label %undo.one, label %undone
undo.one:
  %undo.at = getelementptr ptr, ptr %results, i64 %u
  %undo.value = load ptr, ptr %undo.at
  call void @Py_DecRef(ptr %undo.value)
  %u.next = add i64 %u, 1
  br label %undo.next
undone:
{UNDONE}  ret ptr null

decline:
  ret ptr @_Py_NotImplementedStruct
}}
"""

_ASSEMBLE = """
; What a function makes of results, whose reference it takes; these themselves without one.
define internal ptr @assemble(ptr %results, ptr %tree) nounwind {
entry:
  %arguments = alloca ptr, align 8
  %as.it.is = icmp eq ptr %tree, null
  %failed = icmp eq ptr %results, null
  %done = or i1 %as.it.is, %failed
  br i1 %done, label %give, label %build
give:
  ret ptr %results
build:
  store ptr %results, ptr %arguments
  %built = call ptr @PyObject_Vectorcall(ptr %tree, ptr %arguments, i64 1, ptr null)
  call void @Py_DecRef(ptr %results)
  ret ptr %built
}
declare double @llvm.fabs.f64(double)
"""

# What there is besides where a plan has no refs and no donated arguments.
_PLAIN: Final = {
    "STACK": "",
    "HOLD": """\
  %out.words = getelementptr i64, ptr %contents.words, i64 0
  br label %ready
""",
    "NEW": """\
  br i1 %is.line, label %make.line, label %make.exact
make.line:
  %itemsize.at = getelementptr i64, ptr %record, i64 {o_itemsize}
  %itemsize = load i64, ptr %itemsize.at
  %line.bytes = mul i64 %size, %itemsize
  br label %make.it
make.exact:
  %view.at = getelementptr i64, ptr %record, i64 {o_view}
  %view = load i64, ptr %view.at
  %is.view = icmp ne i64 %view, 0
  br i1 %is.view, label %make.view, label %make.anew
make.view:
  %viewed.place = add i64 %view, {BEFORE_KEPT}
  %viewed.at = getelementptr i64, ptr %call, i64 %viewed.place
  %viewed = load ptr, ptr %viewed.at
  %view.array = call ptr @make_view(ptr %record, ptr %viewed)
  %no.view = icmp eq ptr %view.array, null
  br i1 %no.view, label %undo, label %made, !prof !0
make.anew:
  %nbytes.at = getelementptr i64, ptr %record, i64 {o_nbytes}
  %nbytes = load i64, ptr %nbytes.at
  %its.rank.at = getelementptr i64, ptr %record, i64 {o_rank}
  %its.rank64 = load i64, ptr %its.rank.at
  %its.rank = trunc i64 %its.rank64 to i32
  %its.dims.at = getelementptr i64, ptr %record, i64 {o_dims}
  %its.dims = load ptr, ptr %its.dims.at
  br label %make.it
make.it:
  %out.bytes = phi i64 [ %line.bytes, %make.line ], [ %nbytes, %make.anew ]
  %out.rank = phi i32 [ %rank, %make.line ], [ %its.rank, %make.anew ]
  %out.dims = phi ptr [ %dims, %make.line ], [ %its.dims, %make.anew ]
  %new.array = call ptr @make(ptr %record, i32 %out.rank, ptr %out.dims, i64 %out.bytes)
  %failed = icmp eq ptr %new.array, null
  br i1 %failed, label %undo, label %made, !prof !0
made:
  %array = phi ptr [ %new.array, %make.it ], [ %view.array, %make.view ]
  %result.at = getelementptr ptr, ptr %results, i64 %k
  store ptr %array, ptr %result.at
  %elements.at = getelementptr i8, ptr %array, i64 {ARRAY_DATA}
  %elements = load ptr, ptr %elements.at
  %address.from = getelementptr i8, ptr %elements, i64 {DATA}
  %address = load i64, ptr %address.from
  %out.word = getelementptr i64, ptr %out.words, i64 %k
  store i64 %address, ptr %out.word
""",
    "SETTLE": "  %all.shown = add i64 %outputs.n, 0\n",
    "MORE": ", [ %k, %make.view ]",
    "BEFORE": "",
    "UNDONE": "",
}

# A new array of ours, as a record tells it; null with an error set.
_MAKE = """
define internal ptr @make(ptr %record, i32 %rank, ptr %dims, i64 %nbytes) nounwind {{
entry:
  %dtype.at = getelementptr i64, ptr %record, i64 {o_dtype}
  %dtype = load ptr, ptr %dtype.at
  %large.at = getelementptr i64, ptr %record, i64 {o_large}
  %known.large = load ptr, ptr %large.at
  %is.known = icmp ne ptr %known.large, null
  br i1 %is.known, label %with.known, label %perhaps.large
with.known:
  call void @Py_IncRef(ptr %known.large)
  br label %from.pool
perhaps.large:
  ; Those of lines are as long as the call's.
  %is.large = icmp uge i64 %nbytes, {POOLED}
  br i1 %is.large, label %describe.large, label %own
describe.large:
  %new.large = call ptr @wanted(ptr %dtype, i32 %rank, ptr %dims, i64 %nbytes)
  %no.words = icmp eq ptr %new.large, null
  br i1 %no.words, label %fail, label %from.pool, !prof !0

from.pool:
  %large = phi ptr [ %known.large, %with.known ], [ %new.large, %describe.large ]
  %pooled = call ptr @PyObject_CallObject(ptr @tessera_sized, ptr %large)
  call void @Py_DecRef(ptr %large)
  %no.pooled = icmp eq ptr %pooled, null
  br i1 %no.pooled, label %fail, label %protect, !prof !0
protect:
  %pooled.flags.at = getelementptr i8, ptr %pooled, i64 {FLAGS}
  %pooled.flags = load i32, ptr %pooled.flags.at
  %protected = and i32 %pooled.flags, {READ_ONLY}
  store i32 %protected, ptr %pooled.flags.at
  br label %wrap

own:
  %block = call ptr @allocate(i64 %nbytes)
  %no.block = icmp eq ptr %block, null
  br i1 %no.block, label %exhausted, label %describe, !prof !0
exhausted:
  %error = call ptr @PyErr_NoMemory()
  ret ptr null
describe:
  call void @Py_IncRef(ptr %dtype)
  %fresh = call ptr @tessera_new_array(ptr @tessera_ndarray_type, ptr %dtype, i32 %rank,
      ptr %dims, ptr null, ptr %block, i32 {READY}, ptr null)
  %no.fresh = icmp eq ptr %fresh, null
  br i1 %no.fresh, label %lost, label %owned, !prof !0
lost:
  call void @release(ptr %block)
  ret ptr null
owned:
  %flags.at = getelementptr i8, ptr %fresh, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %flags.own = or i32 %flags, {OWNS}
  store i32 %flags.own, ptr %flags.at
  call void @Py_IncRef(ptr @tessera_handler)
  %handler.at = getelementptr i8, ptr %fresh, i64 {HANDLER}
  store ptr @tessera_handler, ptr %handler.at
  br label %wrap

wrap:
  %data = phi ptr [ %fresh, %owned ], [ %pooled, %protect ]
  %made = call ptr @wrap(ptr %record, ptr %data)
  ret ptr %made
fail:
  ret ptr null
}}

; A view of what is kept for a leaf, as a record tells it; null with an error set.
define internal ptr @make_view(ptr %record, ptr %base) nounwind {{
entry:
  %dtype.at = getelementptr i64, ptr %record, i64 {o_dtype}
  %dtype = load ptr, ptr %dtype.at
  %rank.at = getelementptr i64, ptr %record, i64 {o_rank}
  %rank64 = load i64, ptr %rank.at
  %rank = trunc i64 %rank64 to i32
  %dims.at = getelementptr i64, ptr %record, i64 {o_dims}
  %dims = load ptr, ptr %dims.at
  %strides.at = getelementptr i64, ptr %record, i64 {o_strides}
  %strides = load ptr, ptr %strides.at
  %offset.at = getelementptr i64, ptr %record, i64 {o_offset}
  %offset = load i64, ptr %offset.at
  %start.at = getelementptr i8, ptr %base, i64 {DATA}
  %start = load ptr, ptr %start.at
  %where = getelementptr i8, ptr %start, i64 %offset
  call void @Py_IncRef(ptr %dtype)
  %view = call ptr @tessera_new_array(ptr @tessera_ndarray_type, ptr %dtype, i32 %rank,
      ptr %dims, ptr %strides, ptr %where, i32 {ALIGNED}, ptr null)
  %no.view = icmp eq ptr %view, null
  br i1 %no.view, label %fail, label %keep, !prof !0
keep:
  call void @Py_IncRef(ptr %base)
  %base.at = getelementptr i8, ptr %view, i64 {BASE}
  store ptr %base, ptr %base.at
  %array = call ptr @wrap(ptr %record, ptr %view)
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %fail, label %look, !prof !0
look:
  %flags.at = getelementptr i8, ptr %view, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %whole = and i32 %flags, {C_CONTIGUOUS}
  %is.whole = icmp ne i32 %whole, 0
  br i1 %is.whole, label %done, label %unprepared
unprepared:
  %prepared.at = getelementptr i8, ptr %array, i64 {contiguous}
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  store ptr @_Py_NoneStruct, ptr %prepared.at
  call void @Py_DecRef(ptr %view)
  br label %done
done:
  ret ptr %array
fail:
  ret ptr null
}}

; What a plan runs whose results are views.
define void @{NOTHING}(ptr %words) nounwind {{
  ret void
}}

; An array of ours with these elements, a reference to which it takes; null with an error set.
define internal ptr @wrap(ptr %record, ptr %data) nounwind {{
entry:
  %array = call ptr @PyType_GenericAlloc(ptr @tessera_array_class, i64 0)
  %no.array = icmp eq ptr %array, null
  br i1 %no.array, label %unwrapped, label %set, !prof !0
unwrapped:
  call void @Py_DecRef(ptr %data)
  ret ptr null
set:
  %type.at = getelementptr i64, ptr %record, i64 {o_type}
  %type = load ptr, ptr %type.at
  call void @Py_IncRef(ptr %type)
  call void @Py_IncRef(ptr %data)
  %array.type = getelementptr i8, ptr %array, i64 {type}
  store ptr %type, ptr %array.type
  %array.data = getelementptr i8, ptr %array, i64 {data}
  store ptr %data, ptr %array.data
  %array.contiguous = getelementptr i8, ptr %array, i64 {contiguous}
  store ptr %data, ptr %array.contiguous
  ret ptr %array
}}
"""
