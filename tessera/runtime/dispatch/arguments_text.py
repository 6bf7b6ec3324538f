"""The native side of reading arguments: containers as LLVM text.

The ops of a structure are described in `structure.py`.
"""

from __future__ import annotations

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.leaf_text import leaf_text
from tessera.runtime.dispatch.words import STRUCTURE, Offsets


def arguments_text(offsets: Offsets) -> str:
    """The functions that find the leaves of arguments, and note what they are."""
    return (
        _FLATTEN.format(
            named=STRUCTURE.index("named"), flatten=STRUCTURE.index("flatten"),
            ops=len(STRUCTURE), SIZE=w.SIZE, TYPE=w.TYPE, ITEMS=w.TUPLE_ITEMS, CURSOR=w.CURSOR,
        )
        + _WALK.format(
            LEAF=w.LEAF, SKIP=w.SKIP, NONE=w.NONE, TUPLE=w.TUPLE, LIST=w.LIST, DICT=w.DICT,
            FIELDS=w.FIELDS, SAME=w.SAME, EQUAL=w.EQUAL, TYPE=w.TYPE, SIZE=w.SIZE,
            ITEMS=w.TUPLE_ITEMS, CURSOR=w.CURSOR,
        )
        + leaf_text(offsets)
    )  # fmt: skip


# Whether the arguments have a structure; its leaves are noted.
_FLATTEN = """
define internal i1 @flatten(ptr %call, ptr %structure, ptr %items, i64 %count, ptr %args,
    ptr %kwargs) nounwind {{
entry:
  %flatten.at = getelementptr i64, ptr %structure, i64 {flatten}
  %flatten = load ptr, ptr %flatten.at
  %by.python = icmp ne ptr %flatten, null
  br i1 %by.python, label %ask, label %count.them, !prof !0

count.them:
  %wanted = load i64, ptr %structure
  %right = icmp eq i64 %wanted, %count
  br i1 %right, label %names, label %no

names:
  %named.at = getelementptr i64, ptr %structure, i64 {named}
  %named = load i64, ptr %named.at
  %no.dict = icmp eq ptr %kwargs, null
  br i1 %no.dict, label %without, label %with

with:
  %size = call i64 @PyDict_Size(ptr %kwargs)
  br label %without

without:
  %given = phi i64 [ 0, %names ], [ %size, %with ]
  %right.names = icmp eq i64 %given, %named
  br i1 %right.names, label %begin, label %no

begin:
  %ops = getelementptr i64, ptr %structure, i64 {ops}
  %cursor.at = getelementptr i64, ptr %call, i64 {CURSOR}
  store ptr %ops, ptr %cursor.at
  br label %positional

positional:
  %i = phi i64 [ 0, %begin ], [ %i.next, %fitting ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %keywords
one:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %fits = call i1 @walk(ptr %call, ptr %item)
  br i1 %fits, label %fitting, label %no, !prof !1
fitting:
  %i.next = add i64 %i, 1
  br label %positional

keywords:
  %k = phi i64 [ 0, %positional ], [ %k.next, %named.fits ]
  %more.names = icmp ult i64 %k, %named
  br i1 %more.names, label %keyword, label %yes
keyword:
  %cursor = load ptr, ptr %cursor.at
  %name = load ptr, ptr %cursor
  %cursor.next = getelementptr i64, ptr %cursor, i64 1
  store ptr %cursor.next, ptr %cursor.at
  %value = call ptr @PyDict_GetItemWithError(ptr %kwargs, ptr %name)
  %absent = icmp eq ptr %value, null
  br i1 %absent, label %clear, label %follow, !prof !0
follow:
  %named.ok = call i1 @walk(ptr %call, ptr %value)
  br i1 %named.ok, label %named.fits, label %no, !prof !1
named.fits:
  %k.next = add i64 %k, 1
  br label %keywords

ask:
  %callable = icmp ne ptr %args, null
  br i1 %callable, label %ask.it, label %no
ask.it:
  %empty = icmp eq ptr %kwargs, null
  %or.none = select i1 %empty, ptr @_Py_NoneStruct, ptr %kwargs
  %list = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %flatten, ptr %args,
      ptr %or.none, ptr null)
  %failed = icmp eq ptr %list, null
  br i1 %failed, label %clear, label %look, !prof !0
look:
  %type.at = getelementptr i8, ptr %list, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %is.tuple = icmp eq ptr %type, @PyTuple_Type
  br i1 %is.tuple, label %leaves, label %other
leaves:
  %number.at = getelementptr i8, ptr %list, i64 {SIZE}
  %number = load i64, ptr %number.at
  %first = getelementptr i8, ptr %list, i64 {ITEMS}
  br label %leaf
leaf:
  %j = phi i64 [ 0, %leaves ], [ %j.next, %leaf.fits ]
  %more.leaves = icmp ult i64 %j, %number
  br i1 %more.leaves, label %take, label %taken
take:
  %leaf.at = getelementptr ptr, ptr %first, i64 %j
  %object = load ptr, ptr %leaf.at
  %leaf.ok = call i1 @leaf(ptr %call, ptr %object)
  br i1 %leaf.ok, label %leaf.fits, label %other, !prof !1
leaf.fits:
  %j.next = add i64 %j, 1
  br label %leaf
taken:
  call void @Py_DecRef(ptr %list)
  br label %yes
other:
  call void @Py_DecRef(ptr %list)
  br label %no

clear:
  call void @PyErr_Clear()
  br label %no
yes:
  ret i1 1
no:
  ret i1 0
}}
"""

# Whether an object is what the structure has next.
_WALK = """
define internal i1 @walk(ptr %call, ptr %object) nounwind {{
entry:
  %d.next.at = alloca i64, align 8
  %d.its.key.at = alloca ptr, align 8
  %d.its.value.at = alloca ptr, align 8
  %cursor.at = getelementptr i64, ptr %call, i64 {CURSOR}
  %cursor = load ptr, ptr %cursor.at
  %op = load i64, ptr %cursor
  %w1 = getelementptr i64, ptr %cursor, i64 1
  %w2 = getelementptr i64, ptr %cursor, i64 2
  %w3 = getelementptr i64, ptr %cursor, i64 3
  store ptr %w1, ptr %cursor.at
  switch i64 %op, label %no [
    i64 {LEAF}, label %leaf
    i64 {SKIP}, label %yes
    i64 {NONE}, label %none
    i64 {TUPLE}, label %tuple
    i64 {LIST}, label %list
    i64 {DICT}, label %dict
    i64 {FIELDS}, label %fields
    i64 {SAME}, label %same
    i64 {EQUAL}, label %equal
  ]

leaf:
  %is.array = call i1 @leaf(ptr %call, ptr %object)
  ret i1 %is.array

none:
  %is.none = icmp eq ptr %object, @_Py_NoneStruct
  ret i1 %is.none

same:
  store ptr %w2, ptr %cursor.at
  %only = load ptr, ptr %w1
  %is.it = icmp eq ptr %object, %only
  ret i1 %is.it

equal:
  store ptr %w2, ptr %cursor.at
  %value = load ptr, ptr %w1
  %identical = icmp eq ptr %object, %value
  br i1 %identical, label %yes, label %kinds
kinds:
  %value.type.at = getelementptr i8, ptr %value, i64 {TYPE}
  %value.type = load ptr, ptr %value.type.at
  %object.type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %object.type = load ptr, ptr %object.type.at
  %one.kind = icmp eq ptr %value.type, %object.type
  br i1 %one.kind, label %contents, label %no
contents:
  %order = call i32 @PyObject_RichCompareBool(ptr %object, ptr %value, i32 2)
  %is.equal = icmp eq i32 %order, 1
  br i1 %is.equal, label %yes, label %clear

tuple:
  %t.type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %t.type = load ptr, ptr %t.type.at
  %t.class = load ptr, ptr %w1
  %t.ok = icmp eq ptr %t.type, %t.class
  br i1 %t.ok, label %t.count, label %no
t.count:
  %t.size.at = getelementptr i8, ptr %object, i64 {SIZE}
  %t.size = load i64, ptr %t.size.at
  %t.wanted = load i64, ptr %w2
  %t.right = icmp eq i64 %t.size, %t.wanted
  br i1 %t.right, label %t.begin, label %no
t.begin:
  store ptr %w3, ptr %cursor.at
  %t.items = getelementptr i8, ptr %object, i64 {ITEMS}
  call void @Py_IncRef(ptr %object)
  br label %t.next
t.next:
  %t.i = phi i64 [ 0, %t.begin ], [ %t.i.next, %t.fits ]
  %t.more = icmp ult i64 %t.i, %t.wanted
  br i1 %t.more, label %t.one, label %held
t.one:
  %t.at = getelementptr ptr, ptr %t.items, i64 %t.i
  %t.item = load ptr, ptr %t.at
  %t.child = call i1 @walk(ptr %call, ptr %t.item)
  br i1 %t.child, label %t.fits, label %let.go, !prof !1
t.fits:
  %t.i.next = add i64 %t.i, 1
  br label %t.next

list:
  %l.type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %l.type = load ptr, ptr %l.type.at
  %l.ok = icmp eq ptr %l.type, @PyList_Type
  br i1 %l.ok, label %l.count, label %no
l.count:
  %l.size = call i64 @PyList_Size(ptr %object)
  %l.wanted = load i64, ptr %w1
  %l.right = icmp eq i64 %l.size, %l.wanted
  br i1 %l.right, label %l.begin, label %no
l.begin:
  store ptr %w2, ptr %cursor.at
  call void @Py_IncRef(ptr %object)
  br label %l.next
l.next:
  %l.i = phi i64 [ 0, %l.begin ], [ %l.i.next, %l.fits ]
  %l.more = icmp ult i64 %l.i, %l.wanted
  br i1 %l.more, label %l.one, label %held
l.one:
  %l.item = call ptr @PyList_GetItem(ptr %object, i64 %l.i)
  %l.gone = icmp eq ptr %l.item, null
  br i1 %l.gone, label %let.go.clear, label %l.follow, !prof !0
l.follow:
  call void @Py_IncRef(ptr %l.item)
  %l.child = call i1 @walk(ptr %call, ptr %l.item)
  call void @Py_DecRef(ptr %l.item)
  br i1 %l.child, label %l.fits, label %let.go, !prof !1
l.fits:
  %l.i.next = add i64 %l.i, 1
  br label %l.next

dict:
  %d.type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %d.type = load ptr, ptr %d.type.at
  %d.ok = icmp eq ptr %d.type, @PyDict_Type
  br i1 %d.ok, label %d.count, label %no
d.count:
  %d.size = call i64 @PyDict_Size(ptr %object)
  %d.wanted = load i64, ptr %w1
  %d.right = icmp eq i64 %d.size, %d.wanted
  br i1 %d.right, label %d.begin, label %no
d.begin:
  call void @Py_IncRef(ptr %object)
  %d.slots = alloca ptr, i64 %d.wanted, align 8
  store i64 0, ptr %d.next.at
  br label %d.next
d.next:
  %d.i = phi i64 [ 0, %d.begin ], [ %d.i.next, %d.found ]
  %d.more = icmp ult i64 %d.i, %d.wanted
  br i1 %d.more, label %d.one, label %d.all
d.one:
  %d.index = shl i64 %d.i, 1
  %d.key.at = getelementptr i64, ptr %w2, i64 %d.index
  %d.key = load ptr, ptr %d.key.at
  %d.place.at = getelementptr i64, ptr %d.key.at, i64 1
  %d.place = load i64, ptr %d.place.at
  %d.is.there = call i32 @PyDict_Next(ptr %object, ptr %d.next.at, ptr %d.its.key.at,
      ptr %d.its.value.at)
  %d.none.left = icmp eq i32 %d.is.there, 0
  br i1 %d.none.left, label %d.look.up, label %d.compare, !prof !0
d.compare:
  %d.its.key = load ptr, ptr %d.its.key.at
  %d.its.value = load ptr, ptr %d.its.value.at
  %d.same = icmp eq ptr %d.its.key, %d.key
  br i1 %d.same, label %d.found, label %d.look.up
d.look.up:  ; in another order, or with a key that is equal
  %d.item = call ptr @PyDict_GetItemWithError(ptr %object, ptr %d.key)
  %d.gone = icmp eq ptr %d.item, null
  br i1 %d.gone, label %d.undo.clear, label %d.found, !prof !0
d.found:
  %d.value = phi ptr [ %d.its.value, %d.compare ], [ %d.item, %d.look.up ]
  call void @Py_IncRef(ptr %d.value)
  %d.slot = getelementptr ptr, ptr %d.slots, i64 %d.place
  store ptr %d.value, ptr %d.slot
  %d.i.next = add i64 %d.i, 1
  br label %d.next
d.undo.clear:
  call void @PyErr_Clear()
  br label %d.undo
d.undo:
  %d.u = phi i64 [ %d.i, %d.undo.clear ], [ %d.v, %d.undo.one ]
  %d.undone = icmp eq i64 %d.u, 0
  br i1 %d.undone, label %let.go, label %d.undo.one
d.undo.one:
  %d.v = sub i64 %d.u, 1
  %d.undo.index = shl i64 %d.v, 1
  %d.undo.at = getelementptr i64, ptr %w3, i64 %d.undo.index
  %d.undo.place = load i64, ptr %d.undo.at
  %d.undo.slot = getelementptr ptr, ptr %d.slots, i64 %d.undo.place
  %d.undo.value = load ptr, ptr %d.undo.slot
  call void @Py_DecRef(ptr %d.undo.value)
  br label %d.undo
d.all:
  %d.words = shl i64 %d.wanted, 1
  %d.children = getelementptr i64, ptr %w2, i64 %d.words
  store ptr %d.children, ptr %cursor.at
  br label %d.child
d.child:
  %d.j = phi i64 [ 0, %d.all ], [ %d.j.next, %d.each ]
  %d.fits = phi i1 [ 1, %d.all ], [ %d.still.fits, %d.each ]
  %d.left = icmp ult i64 %d.j, %d.wanted
  br i1 %d.left, label %d.take, label %d.done
d.take:
  %d.own = getelementptr ptr, ptr %d.slots, i64 %d.j
  %d.object = load ptr, ptr %d.own
  br i1 %d.fits, label %d.follow, label %d.each, !prof !1
d.follow:
  %d.well = call i1 @walk(ptr %call, ptr %d.object)
  br label %d.each
d.each:
  %d.still.fits = phi i1 [ %d.well, %d.follow ], [ 0, %d.take ]
  call void @Py_DecRef(ptr %d.object)
  %d.j.next = add i64 %d.j, 1
  br label %d.child
d.done:
  br i1 %d.fits, label %held, label %let.go, !prof !1

fields:
  %f.type.at = getelementptr i8, ptr %object, i64 {TYPE}
  %f.type = load ptr, ptr %f.type.at
  %f.class = load ptr, ptr %w1
  %f.ok = icmp eq ptr %f.type, %f.class
  br i1 %f.ok, label %f.begin, label %no
f.begin:
  %f.wanted = load i64, ptr %w2
  store ptr %w3, ptr %cursor.at
  call void @Py_IncRef(ptr %object)
  br label %f.next
f.next:
  %f.i = phi i64 [ 0, %f.begin ], [ %f.i.next, %f.fits ]
  %f.more = icmp ult i64 %f.i, %f.wanted
  br i1 %f.more, label %f.one, label %held
f.one:
  %f.cursor = load ptr, ptr %cursor.at
  %f.name = load ptr, ptr %f.cursor
  %f.cursor.next = getelementptr i64, ptr %f.cursor, i64 1
  store ptr %f.cursor.next, ptr %cursor.at
  %f.item = call ptr @PyObject_GetAttr(ptr %object, ptr %f.name)
  %f.gone = icmp eq ptr %f.item, null
  br i1 %f.gone, label %let.go.clear, label %f.follow, !prof !0
f.follow:
  %f.child = call i1 @walk(ptr %call, ptr %f.item)
  call void @Py_DecRef(ptr %f.item)
  br i1 %f.child, label %f.fits, label %let.go, !prof !1
f.fits:
  %f.i.next = add i64 %f.i, 1
  br label %f.next

held:
  call void @Py_DecRef(ptr %object)
  br label %yes
let.go.clear:
  call void @PyErr_Clear()
  br label %let.go
let.go:
  call void @Py_DecRef(ptr %object)
  br label %no
clear:
  call void @PyErr_Clear()
  br label %no
yes:
  ret i1 1
no:
  ret i1 0
}}
"""
