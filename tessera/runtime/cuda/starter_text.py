"""The native side of a whole call, as LLVM text. `tessera.runtime.cuda.starter` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tessera.runtime.cuda.record import FIELDS, field_at
from tessera.runtime.layout import LIST_ITEMS, LIST_SIZE

PLAN: Final = (
    "main",
    "stream_handle",
    "context",
    "inputs",
    "outputs",
    "tail",
    "scratch",
    "is_single",
    "forked",
    "chosen",
    "settings",
    "returned",
    "kept",
    "empty",
    "failed",
    "stream",
    "cuda_device",
    "backend",
    "device",
    "array_class",
    "remote_class",
    "buffer_class",
    "slow",
)
"""The first words of a plan, in order."""

INPUT: Final = ("dtype", "shape")
"""The words of each input, which come next."""

OUTPUT: Final = ("home", "nbytes", "shape", "dtype", "type")
"""The words of each output, which come then. The last ones are handed to the program.

An output that takes the memory of an input is that input: it has no home, and in place of its bytes
is the input's number.
"""

MOST_WORDS: Final = 512
"""A program that is called in this way has at most so many words."""

_TYPE = 8  # in the head of every object


def _plan(name: str) -> str:
    return f"getelementptr i64, ptr %plan, i64 {PLAN.index(name)}"


def _get(result: str, name: str, kind: str = "ptr") -> str:
    """Read a word of the plan."""
    return f"  %{result}.at = {_plan(name)}\n  %{result} = load {kind}, ptr %{result}.at\n"


def _slot(result: str, base: str, offset: int) -> str:
    """Read a slot of an object."""
    return (
        f"  %{result}.at = getelementptr i8, ptr %{base}, i64 {offset}\n"
        f"  %{result} = load ptr, ptr %{result}.at\n"
    )


def _need(name: str, condition: str, otherwise: str = "decline") -> str:
    """Go on where a comparison holds."""
    return (
        f"  %{name}.ok = icmp {condition}\n"
        f"  br i1 %{name}.ok, label %{name}.next, label %{otherwise}, !prof !1\n\n{name}.next:\n"
    )


def _is(result: str, base: str, cls: str, otherwise: str = "decline") -> str:
    """Go on where an object is exactly of a class."""
    return _slot(f"{result}.type", base, _TYPE) + _need(
        f"{result}.type", f"eq ptr %{result}.type, %{cls}", otherwise
    )


def _variable(name: str, wanted: str) -> str:
    """Go on where a context variable has a value."""
    return (
        _get(f"{name}.var", name)
        + f"  %{name}.status = call i32 @PyContextVar_Get(ptr %{name}.var, ptr null, ptr %found)\n"
        + _need(f"{name}.status", f"sge i32 %{name}.status, 0", "error")
        + f"  %{name} = load ptr, ptr %found\n  call void @Py_DecRef(ptr %{name})\n"
        + _need(name, f"eq ptr %{name}, {wanted}")
    )


def _no_items(name: str) -> str:
    """Go on where a queue is empty."""
    return (
        _get(name, name)
        + f"  %{name}.size = call i64 @PyObject_Size(ptr %{name})\n"
        + _need(f"{name}.size", f"eq i64 %{name}.size, 0")
    )


def _set(base: str, offset: int, value: str, number: str) -> str:
    """Write a slot of an object, with a reference of its own."""
    return (
        f"  call void @Py_IncRef(ptr {value})\n"
        f"  %set.{number} = getelementptr i8, ptr %{base}, i64 {offset}\n"
        f"  store ptr {value}, ptr %set.{number}\n"
    )


def _fill(base: str, offsets: Mapping[str, int], values: Mapping[str, str]) -> str:
    assert offsets.keys() == values.keys()
    return "".join(_set(base, offsets[k], v, f"{base}.{k}") for k, v in values.items())


def _pop(name: str, home: str, otherwise: str) -> str:
    """Take the last item of a list; nothing of Python's runs meanwhile."""
    return (
        f"  %{name}.size = call i64 @PyList_Size(ptr %{home})\n"
        + _need(f"{name}.size", f"sgt i64 %{name}.size, 0", otherwise)
        + f"  %{name}.last = sub i64 %{name}.size, 1\n"
        f"  %{name} = call ptr @PyList_GetItem(ptr %{home}, i64 %{name}.last)\n"
        f"  call void @Py_IncRef(ptr %{name})\n"
        f"  %{name}.cut = call i32 @PyList_SetSlice(ptr %{home}, i64 %{name}.last, "
        f"i64 %{name}.size, ptr null)\n"
    )


def _push_word(value: str, name: str) -> str:
    return (
        f"  %{name}.word = getelementptr i64, ptr %words, i64 %{name}.place\n"
        f"  store {value}, ptr %{name}.word\n"
    )


Offsets = Mapping[str, Mapping[str, int]]

# Imports of the finalizer.
SLOW_FINALIZER: Final = "tessera_slow_finalizer"
EMPTY_TUPLE: Final = "tessera_empty_tuple"


def starter_text(offsets: Offsets) -> str:
    """The module.

    Args:
        offsets: of the slots of the classes `Array`, `TensorType`, `Remote`, `DeviceBuffer` and
            `Block`.
    """
    call = _HEAD + _guards() + _inputs(offsets) + _outputs(offsets) + _run(offsets) + _END
    return call + _finalizer(offsets)


_HEAD = f"""
define ptr @tessera_cuda_start(ptr %self, ptr %args, i64 %count) nounwind {{
  %plan = call ptr @PyLong_AsVoidPtr(ptr %self)
  %found = call ptr @start(ptr %plan, ptr %args, i64 %count)
  ret ptr %found
}}

define ptr @tessera_cuda_start_list(ptr %self, ptr %args, i64 %count) nounwind {{
  %plan = call ptr @PyLong_AsVoidPtr(ptr %self)
  %alone = icmp eq i64 %count, 1
  br i1 %alone, label %look, label %slowly, !prof !1

look:
  %list = load ptr, ptr %args
{_slot("type", "list", _TYPE)}
  %is.list = icmp eq ptr %type, @PyList_Type
  br i1 %is.list, label %list.of, label %slowly, !prof !1

list.of:
{_slot("items", "list", LIST_ITEMS)}
  %size.at = getelementptr i8, ptr %list, i64 {LIST_SIZE}
  %size = load i64, ptr %size.at
  %found = call ptr @start(ptr %plan, ptr %items, i64 %size)
  %declined = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %declined, label %drop, label %give, !prof !0

give:
  ret ptr %found

drop:
  call void @Py_DecRef(ptr %found)
  br label %slowly

slowly:
{_get("slow", "slow")}
  %result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %count, ptr null)
  ret ptr %result
}}

define internal ptr @start(ptr %plan, ptr %args, i64 %count) nounwind {{
entry:
  %found = alloca ptr, align 8
  %words = alloca [{MOST_WORDS} x i64], align 16
  %record = alloca [{len(FIELDS)} x i64], align 16
"""


def _guards() -> str:
    """Another stream, settings of a `with` block, a child of fork, something to be sorted in."""
    return (
        _get("inputs", "inputs", "i64")
        + _need("inputs", "eq i64 %inputs, %count")
        + _get("forked", "forked")
        + "  %in.child = load i64, ptr %forked\n"
        + _need("in.child", "eq i64 %in.child, 0")
        + _get("empty", "empty")
        + _variable("chosen", "%empty")
        + _variable("settings", "@_Py_NoneStruct")
        + _no_items("returned")
        + _no_items("kept")
        + _get("stream", "stream")
        + _get("device", "device")
        + _get("array_class", "array_class")
        + _get("remote_class", "remote_class")
        + _get("buffer_class", "buffer_class")
        + f"  %specs = getelementptr i64, ptr %plan, i64 {len(PLAN)}\n"
        + "  br label %input\n"
    )


def _inputs(offsets: Offsets) -> str:
    """The addresses of the inputs: of arrays if the plan says what they have to be like."""
    array, remote, buffer = offsets["Array"], offsets["Remote"], offsets["DeviceBuffer"]
    return (
        f"""
input:
  %i = phi i64 [ 0, %kept.size.next ], [ %i.next, %taken ]
  %is.last = icmp eq i64 %i, %count
  br i1 %is.last, label %results, label %take

take:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at
  %spec.index = mul i64 %i, {len(INPUT)}
  %dtype.at = getelementptr i64, ptr %specs, i64 %spec.index
  %dtype = load ptr, ptr %dtype.at
  %bare = icmp eq ptr %dtype, null
  br i1 %bare, label %elements, label %array

array:
"""
        + _is("arg", "arg", "array_class")
        + _slot("tensor", "arg", array["_type"])
        + """  %plain = icmp eq ptr %tensor, @_Py_NoneStruct
  br i1 %plain, label %strong, label %typed

typed:
"""
        + _slot("weak", "tensor", offsets["TensorType"]["weak"])
        + _need("weak", "eq ptr %weak, @_Py_FalseStruct")
        + "  br label %strong\n\nstrong:\n"
        + _slot("data", "arg", array["_contiguous"])
        + _is("data", "data", "remote_class")
        + _slot("data.dtype", "data", remote["dtype"])
        + _need("data.dtype", "eq ptr %data.dtype, %dtype")
        + _slot("data.device", "data", remote["device"])
        + _need("data.device", "eq ptr %data.device, %device")
        + _slot("data.shape", "data", remote["shape"])
        + f"""  %shape.at = getelementptr i64, ptr %dtype.at, i64 {INPUT.index("shape")}
  %shape = load ptr, ptr %shape.at
  %same = icmp eq ptr %data.shape, %shape
  br i1 %same, label %elements, label %compare

compare:
  %equal = call i32 @PyObject_RichCompareBool(ptr %data.shape, ptr %shape, i32 2)
  %equal.failed = icmp slt i32 %equal, 0
  br i1 %equal.failed, label %error, label %compared, !prof !0

compared:
"""
        + _need("equal", "eq i32 %equal, 1")
        + """  br label %elements

elements:
  %x = phi ptr [ %arg, %take ], [ %data, %data.device.next ], [ %data, %equal.next ]
"""
        + _is("x", "x", "remote_class")
        + _slot("owner", "x", remote["owner"])
        + _is("owner", "owner", "buffer_class")
        + _slot("owner.stream", "owner", buffer["stream"])
        + _need("owner.stream", "eq ptr %owner.stream, %stream")
        + _slot("others", "owner", buffer["_others"])
        + _need("others", "eq ptr %others, %empty")
        + _slot("address", "x", remote["address"])
        + """  %number = call i64 @PyLong_AsUnsignedLongLongMask(ptr %address)
  br label %taken

taken:
  %input.place = add i64 %i, 2
"""
        + _push_word("i64 %number", "input")
        + "  %i.next = add i64 %i, 1\n  br label %input\n"
    )


def _in_place(address: int) -> str:
    """An input as an output, if it is one, with a reference of its own."""
    return (
        """  %in.place = icmp eq ptr %home, null
  br i1 %in.place, label %reuse, label %fresh

reuse:
  %on = ptrtoint ptr %nbytes to i64
  %reused.at = getelementptr ptr, ptr %args, i64 %on
  %reused = load ptr, ptr %reused.at
  call void @Py_IncRef(ptr %reused)
"""
        + _slot("reused.address", "reused", address)
        + "  br label %put\n\nfresh:\n"
    )


def _outputs(offsets: Offsets) -> str:
    """New arrays, or what they have on the device; and the addresses of their memory."""
    block = offsets["Block"]
    buffer = {
        "_block": "%block", "_exported": "@_Py_FalseStruct", "_others": "%empty",
        "device": "%cuda_device", "nbytes": "%nbytes", "owner": "@_Py_NoneStruct",
        "pointer": "%pointer", "stream": "%stream",
    }  # fmt: skip
    remote = {
        "address": "%pointer", "backend": "%backend", "device": "%device", "dtype": "%out.dtype",
        "owner": "%buffer", "shape": "%out.shape",
    }  # fmt: skip
    array = {"_contiguous": "%remote", "_data": "%remote", "_type": "%out.type"}
    fields = "".join(
        f"  %{name}.word.at = getelementptr i64, ptr %out, i64 {OUTPUT.index(field)}\n"
        f"  %{name} = load ptr, ptr %{name}.word.at\n"
        for name, field in (
            ("home", "home"), ("nbytes", "nbytes"), ("out.shape", "shape"), ("out.dtype", "dtype"),
            ("out.type", "type"),
        )
    )  # fmt: skip
    return (
        "\nresults:\n"
        + _get("outputs", "outputs", "i64")
        + _get("cuda_device", "cuda_device")
        + _get("backend", "backend")
        + f"""  %list = call ptr @PyList_New(i64 %outputs)
  %list.failed = icmp eq ptr %list, null
  br i1 %list.failed, label %error, label %first, !prof !0

first:
  %inputs.words = mul i64 %count, {len(INPUT)}
  %out.specs = getelementptr i64, ptr %specs, i64 %inputs.words
  br label %output

output:
  %k = phi i64 [ 0, %first ], [ %k.next, %put ]
  %out.index = mul i64 %k, {len(OUTPUT)}
  %out = getelementptr i64, ptr %out.specs, i64 %out.index
  %out.done = icmp eq i64 %k, %outputs
  br i1 %out.done, label %room, label %make

make:
"""
        + fields
        + _in_place(offsets["Remote"]["address"])
        + _pop("block", "home", "undo")
        + _slot("pointer", "block", block["pointer"])
        + _slot("unused", "block", block["nbytes"])
        + _set("block", block["nbytes"], "%nbytes", "block.nbytes")
        + "  call void @Py_DecRef(ptr %unused)\n"
        "  %buffer = call ptr @PyType_GenericAlloc(ptr %buffer_class, i64 0)\n"
        "  %buffer.failed = icmp eq ptr %buffer, null\n"
        "  br i1 %buffer.failed, label %drop, label %own, !prof !0\n\ndrop:\n"
        "  call void @Py_DecRef(ptr %block)\n  br label %spoiled\n\nown:\n"
        + _fill("buffer", offsets["DeviceBuffer"], buffer)
        + "  call void @Py_DecRef(ptr %block)\n"
        "  %remote = call ptr @PyType_GenericAlloc(ptr %remote_class, i64 0)\n"
        "  %remote.failed = icmp eq ptr %remote, null\n"
        "  br i1 %remote.failed, label %release, label %hold, !prof !0\n\nrelease:\n"
        "  call void @Py_DecRef(ptr %buffer)\n  br label %spoiled\n\nhold:\n"
        + _fill("remote", offsets["Remote"], remote)
        + """  call void @Py_DecRef(ptr %buffer)
  %wanted = icmp ne ptr %out.type, null
  br i1 %wanted, label %wrap, label %put

wrap:
  %array.new = call ptr @PyType_GenericAlloc(ptr %array_class, i64 0)
  %array.failed = icmp eq ptr %array.new, null
  br i1 %array.failed, label %unwrapped, label %wrapped, !prof !0

unwrapped:
  call void @Py_DecRef(ptr %remote)
  br label %spoiled

wrapped:
"""
        + _fill("array.new", offsets["Array"], array)
        + """  call void @Py_DecRef(ptr %remote)
  br label %put

put:
  %made = phi ptr [ %remote, %hold ], [ %array.new, %wrapped ], [ %reused, %reuse ]
  %out.address = phi ptr [ %pointer, %hold ], [ %pointer, %wrapped ], [ %reused.address, %reuse ]
  %set.item = call i32 @PyList_SetItem(ptr %list, i64 %k, ptr %made)
  %out.number = call i64 @PyLong_AsUnsignedLongLongMask(ptr %out.address)
  %out.offset = add i64 %count, 2
  %output.place = add i64 %out.offset, %k
"""
        + _push_word("i64 %out.number", "output")
        + "  %k.next = add i64 %k, 1\n  br label %output\n"
    )


def _run(offsets: Offsets) -> str:
    """Scratch memory, which is given back at once; what is always the same; and the program."""
    return (
        "\nroom:\n"
        + _get("scratch", "scratch")
        + "  %arena.base = add i64 %count, %outputs\n  %arena.place = add i64 %arena.base, 2\n"
        "  %has.scratch = icmp ne ptr %scratch, null\n"
        "  br i1 %has.scratch, label %borrow, label %no.arena\n\nno.arena:\n  br label %ready\n\n"
        "borrow:\n"
        + _pop("arena", "scratch", "undo")
        + _slot("arena.pointer", "arena", offsets["Block"]["pointer"])
        + """  %arena.number = call i64 @PyLong_AsUnsignedLongLongMask(ptr %arena.pointer)
  br label %ready

ready:
  %arena.value = phi i64 [ 0, %no.arena ], [ %arena.number, %arena.size.next ]
  %borrowed = phi ptr [ null, %no.arena ], [ %arena, %arena.size.next ]
"""
        + _push_word("i64 %arena.value", "arena")
        + _get("tail", "tail", "i64")
        + f"""  %rest = getelementptr i64, ptr %arena.word, i64 1
  %bytes = shl i64 %tail, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %out, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64(ptr %record, i8 0, i64 {8 * len(FIELDS)}, i1 false)
"""
        + _get("handle", "stream_handle", "i64")
        + f"  %r0 = {field_at('stream')}\n"
        "  store i64 %handle, ptr %r0\n"
        + _get("context", "context", "i64")
        + f"  %r1 = {field_at('context')}\n"
        "  store i64 %context, ptr %r1\n"
        + _get("main", "main", "i64")
        + f"""  store i64 %main, ptr %words
  %record.word = getelementptr i64, ptr %words, i64 1
  store ptr %record, ptr %record.word
  %thread = call ptr @PyEval_SaveThread()
  call void @tessera_cuda_run(ptr %words)
  call void @PyEval_RestoreThread(ptr %thread)
  br i1 %has.scratch, label %return, label %judge

return:
  %appended = call i32 @PyList_Append(ptr %scratch, ptr %borrowed)
  call void @Py_DecRef(ptr %borrowed)
  %append.failed = icmp ne i32 %appended, 0
  br i1 %append.failed, label %spoiled, label %judge, !prof !0

judge:
  %r2 = {field_at("status")}
  %status = load i64, ptr %r2
"""
        + _need("status", "eq i64 %status, 0", "fail")
        + _get("single", "is_single", "i64")
        + """  %is.single = icmp ne i64 %single, 0
  br i1 %is.single, label %only, label %all

only:
  %one = call ptr @PyList_GetItem(ptr %list, i64 0)
  call void @Py_IncRef(ptr %one)
  call void @Py_DecRef(ptr %list)
  ret ptr %one

all:
  ret ptr %list
"""
    )


def _finalizer(offsets: Offsets) -> str:
    """What `DeviceBuffer.__del__` does with memory that only its own stream uses."""
    block, buffer = offsets["Block"], offsets["DeviceBuffer"]
    return (
        f"""
@{EMPTY_TUPLE} = external global i8
declare void @{SLOW_FINALIZER}(ptr)
declare ptr @PyLong_FromLong(i64)
declare void @PyErr_Clear()

define void @tessera_cuda_finalize(ptr %self) nounwind {{
entry:
"""
        + _slot("block", "self", buffer["_block"])
        + _need("block", "ne ptr %block, null")
        + _need("own", "ne ptr %block, @_Py_NoneStruct")
        + _slot("others", "self", buffer["_others"])
        + _need("others", f"eq ptr %others, @{EMPTY_TUPLE}")
        + _slot("exported", "self", buffer["_exported"])
        + _need("exported", "eq ptr %exported, @_Py_FalseStruct")
        + _slot("home", "block", block["home"])
        + _slot("nbytes", "block", block["nbytes"])
        + _slot("place", "block", block["place"])
        + """  %waits = call ptr @PyLong_FromLong(i64 -1)
  store ptr %waits, ptr %nbytes.at
  call void @Py_DecRef(ptr %nbytes)
"""
        + _set("block", block["place"], "@_Py_NoneStruct", "place")
        + """  call void @Py_DecRef(ptr %place)
  %status = call i32 @PyList_Append(ptr %home, ptr %block)
  %full = icmp ne i32 %status, 0
  br i1 %full, label %forget, label %done, !prof !0

forget:
  call void @PyErr_Clear()
  br label %done

done:
  ret void

decline:
"""
        + f"  call void @{SLOW_FINALIZER}(ptr %self)\n  ret void\n}}\n"
    )


_END = (
    f"""
fail:
  call void @Py_DecRef(ptr %list)
  %failed.at = {_plan("failed")}
  %failed = load ptr, ptr %failed.at
"""
    + """  %where = call ptr @PyLong_FromVoidPtr(ptr %record)
  %raised = call ptr @PyObject_CallOneArg(ptr %failed, ptr %where)
  call void @Py_DecRef(ptr %where)
  ret ptr %raised

undo:
  call void @Py_DecRef(ptr %list)
  br label %decline

decline:
  call void @Py_IncRef(ptr @_Py_NotImplementedStruct)
  ret ptr @_Py_NotImplementedStruct

spoiled:
  call void @Py_DecRef(ptr %list)
  br label %error

error:
  ret ptr null
}

@PyList_Type = external global i8
@_Py_NoneStruct = external global i8
@_Py_FalseStruct = external global i8
@_Py_NotImplementedStruct = external global i8
declare void @tessera_cuda_run(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare i64 @PyObject_Size(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyList_New(i64)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
!0 = !{!"branch_weights", i32 1, i32 10000}
!1 = !{!"branch_weights", i32 10000, i32 1}
"""
)
