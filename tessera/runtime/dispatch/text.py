"""The native side of calls, as LLVM text. `tessera.runtime.dispatch.signatures` describes it.

What a call has found out so far is an array of words on the stack, of which `%call` is the address:
the place in the structure that is being followed, how many leaves were found, the key so far, and
per leaf what is kept and where its elements are.
"""

from __future__ import annotations

from tessera.graph.called import VECTORCALL
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.arguments_text import arguments_text
from tessera.runtime.dispatch.copy_text import copy_text
from tessera.runtime.dispatch.held_text import held_text
from tessera.runtime.dispatch.operators_text import operators_text
from tessera.runtime.dispatch.run_text import run_text
from tessera.runtime.dispatch.sequence_text import sequence_text
from tessera.runtime.dispatch.sizes_text import sizes_text
from tessera.runtime.dispatch.view_text import view_text
from tessera.runtime.dispatch.words import ENTRY, PLAN, STRUCTURE, TABLE, Offsets


def dispatch_text(offsets: Offsets) -> str:
    """The module.

    Args:
        offsets: of the slots of the classes `Array`, `TensorType`, `Called`, `Table` and `Plan`.
    """
    table = offsets["Called"]["_table"]
    words = offsets["Table"]["words"]
    return (
        _ENTRIES.format(
            OR_DECLINE=_OR_DECLINE, TABLE=_TABLE.format(table=table, TYPE=w.TYPE), SIZE=w.SIZE,
            ITEMS=w.TUPLE_ITEMS, VECTORCALL=VECTORCALL,
        )
        + _DISPATCH.format(
            words=words, DATA=w.DATA, CALL=w.CALL_WORDS, FIRST=TABLE.index("first"), KEY=w.KEY,
            LENGTH=w.LENGTH, LEAVES=w.LEAVES, REMOTES=w.REMOTES, LINES=w.LINES, KEPT=w.KEPT,
            LINE_FIRST=w.FIRST,
            lines=STRUCTURE.index("lines"), starter=STRUCTURE.index("starter"),
            tree=STRUCTURE.index("tree"), sized=STRUCTURE.index("sized"), REFS=w.REFS,
            MOST_COPIED=w.MOST_COPIED, most_copied=STRUCTURE.index("most_copied"),
            REFS_AT=w.REFS_AT, holds=PLAN.index("holds"),
        )
        + _FIND.format(
            entries=STRUCTURE.index("entries"), mask=STRUCTURE.index("mask"), KEY=w.KEY,
            LENGTH=w.LENGTH, ENTRY=len(ENTRY), MULTIPLIER=w.MULTIPLIER - (1 << 64),
        )
        + arguments_text(offsets)
        + run_text(offsets)
        + held_text(offsets)
        + sizes_text()
        + sequence_text()
        + copy_text()
        + view_text(offsets)
        + operators_text()
        + _DECLARATIONS
    )  # fmt: skip


# The table of what is called; it goes on at `go`, or at `slow` where there is none.
_TABLE = """\
  %table.at = getelementptr i8, ptr %self, i64 {table}
  %table = load ptr, ptr %table.at
  %missing = icmp eq ptr %table, null
  br i1 %missing, label %slow, label %look, !prof !0
look:
  %type.at = getelementptr i8, ptr %table, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %known = icmp eq ptr %type, @tessera_table_class
  br i1 %known, label %go, label %slow, !prof !1
"""

# The end of a way in that does nothing where the call is not known: NotImplemented is borrowed.
_OR_DECLINE = """\
  %declined = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %declined, label %decline, label %done
decline:
  call void @Py_IncRef(ptr %found)
  ret ptr %found
done:
  ret ptr %found
"""

# The ways in: the slot of a class that is called, and a builtin function of positional arguments.
_ENTRIES = """
define ptr @tessera_call(ptr %self, ptr %args, ptr %kwargs) nounwind {{
{TABLE}go:
  ; From now on without a tuple.
  %own.code = getelementptr i8, ptr %self, i64 {VECTORCALL}
  store ptr @tessera_vectorcall, ptr %own.code
  %count.at = getelementptr i8, ptr %args, i64 {SIZE}
  %count = load i64, ptr %count.at
  %items = getelementptr i8, ptr %args, i64 {ITEMS}
  %found = call ptr @dispatch(ptr %table, ptr %items, i64 %count, ptr %args, ptr %kwargs)
  %declined = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %declined, label %slow, label %done, !prof !0
done:
  ret ptr %found
slow:
  %result = tail call ptr @tessera_slow_call(ptr %self, ptr %args, ptr %kwargs)
  ret ptr %result
}}

; The same as CPython's vector calls have arguments: the names of the last ones are in a tuple.
define ptr @tessera_vectorcall(ptr %self, ptr %args, i64 %number, ptr %names) nounwind {{
entry:
  %count = and i64 %number, 9223372036854775807
  %no.names = icmp eq ptr %names, null
  br i1 %no.names, label %ask, label %slow, !prof !1
ask:
{TABLE}go:
  %found = call ptr @dispatch(ptr %table, ptr %args, i64 %count, ptr null, ptr null)
  %declined = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %declined, label %slow, label %done, !prof !0
done:
  ret ptr %found

slow:
  %positional = call ptr @PyTuple_New(i64 %count)
  %no.tuple = icmp eq ptr %positional, null
  br i1 %no.tuple, label %fail, label %item, !prof !0
item:
  %i = phi i64 [ 0, %slow ], [ %i.next, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %put, label %perhaps.named
put:
  %item.at = getelementptr ptr, ptr %args, i64 %i
  %value = load ptr, ptr %item.at
  call void @Py_IncRef(ptr %value)
  %status = call i32 @PyTuple_SetItem(ptr %positional, i64 %i, ptr %value)
  %i.next = add i64 %i, 1
  br label %item
perhaps.named:
  br i1 %no.names, label %call, label %named
named:
  %dict = call ptr @PyDict_New()
  %no.dict = icmp eq ptr %dict, null
  br i1 %no.dict, label %drop, label %measure, !prof !0
measure:
  %length.at = getelementptr i8, ptr %names, i64 {SIZE}
  %length = load i64, ptr %length.at
  %keys = getelementptr i8, ptr %names, i64 {ITEMS}
  %values = getelementptr ptr, ptr %args, i64 %count
  br label %name
name:
  %k = phi i64 [ 0, %measure ], [ %k.next, %put.name ]
  %bad = phi i32 [ 0, %measure ], [ %bad.next, %put.name ]
  %more.names = icmp ult i64 %k, %length
  br i1 %more.names, label %put.name, label %all.named
put.name:
  %key.at = getelementptr ptr, ptr %keys, i64 %k
  %key = load ptr, ptr %key.at
  %named.at = getelementptr ptr, ptr %values, i64 %k
  %named.value = load ptr, ptr %named.at
  %named.status = call i32 @PyDict_SetItem(ptr %dict, ptr %key, ptr %named.value)
  %bad.next = or i32 %bad, %named.status
  %k.next = add i64 %k, 1
  br label %name
all.named:
  %is.bad = icmp ne i32 %bad, 0
  br i1 %is.bad, label %drop.both, label %call, !prof !0
call:
  %kwargs = phi ptr [ null, %perhaps.named ], [ %dict, %all.named ]
  %result = call ptr @tessera_call(ptr %self, ptr %positional, ptr %kwargs)
  call void @Py_DecRef(ptr %kwargs)
  call void @Py_DecRef(ptr %positional)
  ret ptr %result
drop.both:
  call void @Py_DecRef(ptr %dict)
  br label %drop
drop:
  call void @Py_DecRef(ptr %positional)
  br label %fail
fail:
  ret ptr null
}}

define ptr @tessera_start(ptr %self, ptr %args, i64 %count) nounwind {{
  %found = call ptr @dispatch(ptr %self, ptr %args, i64 %count, ptr null, ptr null)
{OR_DECLINE}}}
"""

# The result, null with an error set, or a borrowed NotImplemented where nothing was done.
_DISPATCH = """
define internal ptr @dispatch(ptr %table, ptr %items, i64 %count, ptr %args,
    ptr %kwargs) nounwind {{
entry:
  %call = alloca [{CALL} x i64], align 64
  %found.at = alloca [3 x i64], align 8
  %traces = load i64, ptr @tessera_traces
  %quiet = icmp eq i64 %traces, 0
  br i1 %quiet, label %device, label %decline, !prof !1

device:
  %moved = load i64, ptr @tessera_devices
  %at.home = icmp eq i64 %moved, 0
  br i1 %at.home, label %settings, label %ask.device, !prof !1

ask.device:
  %its.device = call ptr @variable(ptr @tessera_device_variable)
  %is.cpu = icmp eq ptr %its.device, @tessera_cpu
  br i1 %is.cpu, label %settings, label %decline, !prof !1

settings:
  %overrides = load i64, ptr @tessera_overrides
  %plain = icmp eq i64 %overrides, 0
  br i1 %plain, label %start, label %ask.settings, !prof !1

ask.settings:
  %override = call ptr @variable(ptr @tessera_settings_variable)
  br label %start

start:
  %chosen = phi ptr [ @_Py_NoneStruct, %settings ], [ %override, %ask.settings ]
  %chosen.word = ptrtoint ptr %chosen to i64
  call void @Py_IncRef(ptr %table)
  %words.at = getelementptr i8, ptr %table, i64 {words}
  %words.array = load ptr, ptr %words.at
  %words.data = getelementptr i8, ptr %words.array, i64 {DATA}
  %words = load ptr, ptr %words.data
  %number.at = getelementptr i64, ptr %words, i64 1
  %leaves.at = getelementptr i64, ptr %call, i64 {LEAVES}
  %length.at = getelementptr i64, ptr %call, i64 {LENGTH}
  %remotes.at = getelementptr i64, ptr %call, i64 {REMOTES}
  %lines.at = getelementptr i64, ptr %call, i64 {LINES}
  %first.at = getelementptr i64, ptr %call, i64 {LINE_FIRST}
  %refs.at = getelementptr i64, ptr %call, i64 {REFS}
  %most.copied.at = getelementptr i64, ptr %call, i64 {MOST_COPIED}
  %key = getelementptr i64, ptr %call, i64 {KEY}
  store i64 %chosen.word, ptr %key
  br label %each

each:
  %s = phi i64 [ 0, %start ], [ %s.next, %other ]
  %number = load i64, ptr %number.at
  %more = icmp ult i64 %s, %number
  br i1 %more, label %try, label %nothing, !prof !1

try:
  %index = add i64 %s, {FIRST}
  %structure.at = getelementptr i64, ptr %words, i64 %index
  %structure = load ptr, ptr %structure.at
  store i64 0, ptr %leaves.at
  store i64 1, ptr %length.at
  store i64 0, ptr %remotes.at
  store i64 0, ptr %refs.at
  %lines.from = getelementptr i64, ptr %structure, i64 {lines}
  %lines = load i64, ptr %lines.from
  store i64 %lines, ptr %lines.at
  %most.copied.from = getelementptr i64, ptr %structure, i64 {most_copied}
  %most.copied = load i64, ptr %most.copied.from
  store i64 %most.copied, ptr %most.copied.at
  store ptr null, ptr %first.at
  %fits = call i1 @flatten(ptr %call, ptr %structure, ptr %items, i64 %count, ptr %args,
      ptr %kwargs)
  br i1 %fits, label %complete, label %other, !prof !1

other:
  call void @drop(ptr %call)
  %s.next = add i64 %s, 1
  br label %each

complete:
  %remotes = load i64, ptr %remotes.at
  %elsewhere = icmp ne i64 %remotes, 0
  br i1 %elsewhere, label %remote, label %look

look:
  %plan = call ptr @find(ptr %call, ptr %structure, ptr %found.at)
  %unknown = icmp eq ptr %plan, null
  br i1 %unknown, label %perhaps.sized, label %run, !prof !0

perhaps.sized:
  %sized.at = getelementptr i64, ptr %structure, i64 {sized}
  %sized = load ptr, ptr %sized.at
  %has.sized = icmp ne ptr %sized, null
  br i1 %has.sized, label %run.sized, label %other
run.sized:
  %fitted = call ptr @run_sized(ptr %call, ptr %structure)
  %unfit = icmp eq ptr %fitted, @_Py_NotImplementedStruct
  br i1 %unfit, label %other, label %finish, !prof !0

run:
  %plan.words = load ptr, ptr %found.at
  call void @Py_IncRef(ptr %plan)
  %holds.at = getelementptr i64, ptr %plan.words, i64 {holds}
  %holds = load i64, ptr %holds.at
  %is.plain = icmp eq i64 %holds, 0
  br i1 %is.plain, label %run.plain, label %run.held, !prof !1
run.plain:
  %plain.result = call ptr @run(ptr %call, ptr %plan.words)
  br label %was.run
run.held:
  %held.result = call ptr @run_held(ptr %call, ptr %plan.words)
  br label %was.run
was.run:
  %result = phi ptr [ %plain.result, %run.plain ], [ %held.result, %run.held ]
  call void @Py_DecRef(ptr %plan)
  br label %finish

remote:
  %starter.at = getelementptr i64, ptr %structure, i64 {starter}
  %starter = load ptr, ptr %starter.at
  %has.starter = icmp ne ptr %starter, null
  br i1 %has.starter, label %all.remote, label %other

all.remote:
  %leaves = load i64, ptr %leaves.at
  %all = icmp eq i64 %remotes, %leaves
  br i1 %all, label %send, label %other

send:
  %tree.at = getelementptr i64, ptr %structure, i64 {tree}
  %tree = load ptr, ptr %tree.at
  %arrays = getelementptr i64, ptr %call, i64 {KEPT}
  call void @Py_IncRef(ptr %starter)
  call void @Py_IncRef(ptr %tree)
  %sent = call ptr @PyObject_Vectorcall(ptr %starter, ptr %arrays, i64 %leaves, ptr null)
  call void @Py_DecRef(ptr %starter)
  %refused = icmp eq ptr %sent, @_Py_NotImplementedStruct
  br i1 %refused, label %undo, label %sent.on, !prof !0

undo:
  call void @Py_DecRef(ptr %sent)
  call void @Py_DecRef(ptr %tree)
  br label %other

sent.on:
  %received = call ptr @assemble(ptr %sent, ptr %tree)
  call void @Py_DecRef(ptr %tree)
  br label %finish

finish:
  %value = phi ptr [ %result, %was.run ], [ %received, %sent.on ],
      [ %fitted, %run.sized ]
  %again = icmp eq ptr %value, @_Py_NotImplementedStruct
  br i1 %again, label %nothing.kept, label %count.it, !prof !0

count.it:
  %calls = load i64, ptr %words
  %calls.next = add i64 %calls, 1
  store i64 %calls.next, ptr %words
  call void @drop(ptr %call)
  call void @Py_DecRef(ptr %table)
  ret ptr %value

nothing.kept:
  call void @drop(ptr %call)
  br label %nothing

nothing:
  call void @Py_DecRef(ptr %table)
  ret ptr @_Py_NotImplementedStruct

decline:
  ret ptr @_Py_NotImplementedStruct
}}

; The value of a context variable, borrowed from its context; null where there is an error.
define internal ptr @variable(ptr %variable) nounwind {{
  %at = alloca ptr, align 8
  store ptr null, ptr %at
  %status = call i32 @PyContextVar_Get(ptr %variable, ptr null, ptr %at)
  %value = load ptr, ptr %at
  call void @Py_DecRef(ptr %value)
  ret ptr %value
}}

; Lets go of what is kept for the leaves that were found.
define internal void @drop(ptr %call) nounwind {{
entry:
  %leaves.at = getelementptr i64, ptr %call, i64 {LEAVES}
  %leaves = load i64, ptr %leaves.at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %more = icmp ult i64 %i, %leaves
  br i1 %more, label %one, label %done
one:
  %place = add i64 %i, {KEPT}
  %at = getelementptr i64, ptr %call, i64 %place
  %kept = load ptr, ptr %at
  call void @Py_DecRef(ptr %kept)
  %i.next = add i64 %i, 1
  br label %next
done:
  store i64 0, ptr %leaves.at
  %refs.at = getelementptr i64, ptr %call, i64 {REFS}
  br label %next.ref
next.ref:
  %refs = load i64, ptr %refs.at
  %any = icmp ne i64 %refs, 0
  br i1 %any, label %one.ref, label %all, !prof !0
one.ref:
  %j = sub i64 %refs, 1
  store i64 %j, ptr %refs.at
  %ref.place = add i64 %j, {REFS_AT}
  %ref.at = getelementptr i64, ptr %call, i64 %ref.place
  %ref = load ptr, ptr %ref.at
  call void @Py_DecRef(ptr %ref)
  br label %next.ref
all:
  ret void
}}
"""

# The plan for the key of a call, borrowed, and its words; null if there is none.
_FIND = """
define internal ptr @find(ptr %call, ptr %structure, ptr %found.at) nounwind {{
entry:
  %key = getelementptr i64, ptr %call, i64 {KEY}
  %length.at = getelementptr i64, ptr %call, i64 {LENGTH}
  %length = load i64, ptr %length.at
  %end = getelementptr i64, ptr %key, i64 %length
  store <4 x i64> zeroinitializer, ptr %end, align 8
  br label %mix
mix:  ; a product waits for the one before it, so four go side by side
  %i = phi i64 [ 0, %entry ], [ %i.next, %mix ]
  %h0 = phi i64 [ 0, %entry ], [ %h0.next, %mix ]
  %h1 = phi i64 [ 0, %entry ], [ %h1.next, %mix ]
  %h2 = phi i64 [ 0, %entry ], [ %h2.next, %mix ]
  %h3 = phi i64 [ 0, %entry ], [ %h3.next, %mix ]
  %i0 = add i64 %i, 0
  %word0.at = getelementptr i64, ptr %key, i64 %i0
  %word0 = load i64, ptr %word0.at
  %mixed0 = xor i64 %h0, %word0
  %h0.next = mul i64 %mixed0, {MULTIPLIER}
  %i1 = add i64 %i, 1
  %word1.at = getelementptr i64, ptr %key, i64 %i1
  %word1 = load i64, ptr %word1.at
  %mixed1 = xor i64 %h1, %word1
  %h1.next = mul i64 %mixed1, {MULTIPLIER}
  %i2 = add i64 %i, 2
  %word2.at = getelementptr i64, ptr %key, i64 %i2
  %word2 = load i64, ptr %word2.at
  %mixed2 = xor i64 %h2, %word2
  %h2.next = mul i64 %mixed2, {MULTIPLIER}
  %i3 = add i64 %i, 3
  %word3.at = getelementptr i64, ptr %key, i64 %i3
  %word3 = load i64, ptr %word3.at
  %mixed3 = xor i64 %h3, %word3
  %h3.next = mul i64 %mixed3, {MULTIPLIER}
  %i.next = add i64 %i, 4
  %mixing = icmp ult i64 %i.next, %length
  br i1 %mixing, label %mix, label %probe.first
probe.first:
  %joined1 = mul i64 %h0.next, {MULTIPLIER}
  %part1 = xor i64 %joined1, %h1.next
  %joined2 = mul i64 %part1, {MULTIPLIER}
  %part2 = xor i64 %joined2, %h2.next
  %joined3 = mul i64 %part2, {MULTIPLIER}
  %part3 = xor i64 %joined3, %h3.next
  %high = lshr i64 %part3, 32
  %hash = xor i64 %part3, %high
  %entries.at = getelementptr i64, ptr %structure, i64 {entries}
  %entries = load ptr, ptr %entries.at
  %mask.at = getelementptr i64, ptr %structure, i64 {mask}
  %mask = load i64, ptr %mask.at
  br label %probe
probe:
  %place = phi i64 [ %hash, %probe.first ], [ %place.next, %collided ]
  %slot = and i64 %place, %mask
  %slot.index = mul i64 %slot, {ENTRY}
  %entry.at = getelementptr i64, ptr %entries, i64 %slot.index
  %plan.at = getelementptr i64, ptr %entry.at, i64 1
  %plan = load ptr, ptr %plan.at
  %empty = icmp eq ptr %plan, null
  br i1 %empty, label %none, label %compare, !prof !0
compare:
  %its.hash = load i64, ptr %entry.at
  %same.hash = icmp eq i64 %its.hash, %hash
  br i1 %same.hash, label %verify, label %collided
verify:
  %words.at = getelementptr i64, ptr %entry.at, i64 2
  %words = load ptr, ptr %words.at
  %its.length = load i64, ptr %words
  %same.length = icmp eq i64 %its.length, %length
  br i1 %same.length, label %contents, label %collided
contents:
  %its.key.at = getelementptr i64, ptr %words, i64 1
  %its.key = load ptr, ptr %its.key.at
  br label %same
same:  ; a call of memcmp takes as long as ten words
  %j = phi i64 [ 0, %contents ], [ %j.next, %equal ]
  %left = icmp ult i64 %j, %length
  br i1 %left, label %four, label %hit
four:
  %its.four.at = getelementptr i64, ptr %its.key, i64 %j
  %its.four = load <4 x i64>, ptr %its.four.at, align 8
  %own.four.at = getelementptr i64, ptr %key, i64 %j
  %own.four = load <4 x i64>, ptr %own.four.at, align 8
  %differ = xor <4 x i64> %its.four, %own.four
  %difference = bitcast <4 x i64> %differ to i256
  %is.equal = icmp eq i256 %difference, 0
  br i1 %is.equal, label %equal, label %collided, !prof !1
equal:
  %j.next = add i64 %j, 4
  br label %same
collided:
  %place.next = add i64 %place, 1
  br label %probe
hit:
  store ptr %words, ptr %found.at
  ret ptr %plan
none:
  ret ptr null
}}
"""

_DECLARATIONS = """
@tessera_traces = external global i64
@tessera_overrides = external global i64
@tessera_devices = external global i64
@tessera_settings_variable = external global i8
@tessera_device_variable = external global i8
@tessera_cpu = external global i8
@tessera_table_class = external global i8
@tessera_array_class = external global i8
@tessera_remote_class = external global i8
@tessera_ndarray_type = external global i8
@tessera_handler = external global i8
@tessera_sized = external global i8
@tessera_exchange = external global [3 x i64]
@tessera_cell_class = external global i8
@tessera_pooled_class = external global i8
@_Py_NoneStruct = external global i8
@_Py_FalseStruct = external global i8
@_Py_TrueStruct = external global i8
@_Py_NotImplementedStruct = external global i8
@_Py_EllipsisObject = external global i8
@PyTuple_Type = external global i8
@PyList_Type = external global i8
@PyDict_Type = external global i8
@PyFloat_Type = external global i8
@PyLong_Type = external global i8
@PyBool_Type = external global i8
@PySlice_Type = external global i8
declare ptr @tessera_slow_call(ptr, ptr, ptr)
declare ptr @tessera_new_array(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_GetItem(ptr, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare ptr @PyObject_CallObject(ptr, ptr)
declare ptr @PyObject_CallMethodObjArgs(ptr, ptr, ...)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyTuple_New(i64)
declare ptr @PyDict_New()
declare ptr @PyDict_Copy(ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyErr_NoMemory()
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
!0 = !{!"branch_weights", i32 1, i32 10000}
!1 = !{!"branch_weights", i32 10000, i32 1}
"""
