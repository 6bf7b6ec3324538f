"""The native side of calls with refs, whose arrays are inputs, and with donated arguments.

While such a call runs, its function has the arrays of the refs that it writes: the list in their
slot has no items (`graph/state.py`). Nothing else looks at that list meanwhile but to find it
empty, so what the item was is found where it stood.

Donated arguments are marked as such before the program runs, by a function of Python; then they
have their elements no more.
"""

from __future__ import annotations

from typing import Final

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.run_text import run_function
from tessera.runtime.dispatch.words import OUTPUT, PLAN, REF, Offsets


def held_text(offsets: Offsets) -> str:
    """The functions that run a plan with refs."""
    cell, array = offsets["Cell"], offsets["Array"]
    return run_function(offsets, "run_held", _HOLDING) + _HELD.format(
        REF=len(REF), REFS=w.REFS, REFS_AT=w.REFS_AT, TYPE=w.TYPE, SIZE=w.SIZE, COUNT=w.COUNT,
        LIST_ITEMS=w.LIST_ITEMS, FLAGS=w.FLAGS, READY=w.READY, DATA=w.DATA, BASE=w.BASE,
        OWNS=w.OWNS, OBJECTS=w.OBJECTS, MOST_LEAVES=w.MOST_LEAVES, array_data=array["_data"],
        slot=cell["slot"], user=cell["user"],
        **{name: PLAN.index(name) for name in PLAN},
        **{f"r_{name}": REF.index(name) for name in REF},
        **{f"o_{name}": OUTPUT.index(name) for name in OUTPUT},
    )  # fmt: skip


# What `run_text` has in addition where a plan has refs.
_HOLDING: Final = {
    "STACK": """\
  %cells = alloca [{MOST_REFS} x ptr], align 64
  %contents = alloca [{MOST_CONTENTS} x ptr], align 64
  %shown.at = getelementptr i64, ptr %plan, i64 {results}
  %shown = load i64, ptr %shown.at
""",
    "HOLD": """\
  %count.contents = call i64 @gather(ptr %call, ptr %plan, ptr %cells, ptr %contents,
      ptr %contents.words)
  %usable = icmp sge i64 %count.contents, 0
  br i1 %usable, label %take, label %decline, !prof !1
take:
  call void @take(ptr %plan, ptr %cells, ptr %contents)
  %out.words = getelementptr i64, ptr %contents.words, i64 %count.contents
  %kept = getelementptr i64, ptr %call, i64 {KEPT}
  %given = call i1 @give_away(ptr %call, ptr %plan)
  br i1 %given, label %ready, label %undo, !prof !1
""",
    "NEW": """\
  br label %make.it
make.it:
  %out.word = getelementptr i64, ptr %out.words, i64 %k
  %is.shown = icmp ult i64 %k, %shown
  %array = call ptr @produce(ptr %record, ptr %kept, i64 %leaves, ptr %contents, ptr %inputs,
      ptr %out.word, i1 %is.shown)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %undo, label %made, !prof !0
made:
  %result.at = getelementptr ptr, ptr %results, i64 %k
  store ptr %array, ptr %result.at
""",
    "SETTLE": """\
  %written = getelementptr ptr, ptr %results, i64 %shown
  ; What is returned may be let go of with the others.
  call void @keep_returned(ptr %plan, ptr %cells, ptr null)
  call void @settle(ptr %plan, ptr %cells, ptr %contents, ptr %written)
  call void @keep_returned(ptr %plan, ptr %cells, ptr %written)
  %returned.n.at = getelementptr i64, ptr %plan, i64 {returned}
  %returned.n = load i64, ptr %returned.n.at
  %all.shown = add i64 %shown, %returned.n
""",
    "MORE": ", [ 0, %take ]",
    "BEFORE": """\
  %before = phi i1 [ 1, %make.it ], [ 1, %borrow ], [ 1, %exhausted ], [ 0, %numbered ],
      [ 0, %named ], [ 1, %take ]
""",
    "UNDONE": """\
  br i1 %before, label %put.back, label %failed.late
put.back:
  call void @settle(ptr %plan, ptr %cells, ptr %contents, ptr null)
  ret ptr null
failed.late:
""",
}

_HELD: Final = """
; The refs of a call, what they hold, and where the elements are; the number of arrays. Less than 0
; where Python is to look. Changes nothing.
define internal i64 @gather(ptr %call, ptr %plan, ptr %cells, ptr %contents, ptr %words) nounwind {{
entry:
  %refs.n.at = getelementptr i64, ptr %plan, i64 {refs}
  %refs.n = load i64, ptr %refs.n.at
  %refs.from = getelementptr i64, ptr %plan, i64 {refs_at}
  %refs = load ptr, ptr %refs.from
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %r.next, %held ]
  %n = phi i64 [ 0, %entry ], [ %m, %held ]
  %more = icmp ult i64 %r, %refs.n
  br i1 %more, label %find, label %done
find:
  %ref.index = mul i64 %r, {REF}
  %ref = getelementptr i64, ptr %refs, i64 %ref.index
  %outer = load ptr, ptr %ref
  %passed = icmp eq ptr %outer, null
  br i1 %passed, label %argument, label %found
argument:
  %param.at = getelementptr i64, ptr %ref, i64 {r_param}
  %param = load i64, ptr %param.at
  %place = add i64 %param, {REFS_AT}
  %cell.from = getelementptr i64, ptr %call, i64 %place
  %given = load ptr, ptr %cell.from
  br label %found
found:
  %cell = phi ptr [ %outer, %find ], [ %given, %argument ]
  br label %other
other:
  %o = phi i64 [ 0, %found ], [ %o.next, %differs ]
  %more.others = icmp ult i64 %o, %r
  br i1 %more.others, label %compare, label %look
compare:
  %other.at = getelementptr ptr, ptr %cells, i64 %o
  %its = load ptr, ptr %other.at
  %same = icmp eq ptr %its, %cell
  br i1 %same, label %no, label %differs, !prof !0
differs:
  %o.next = add i64 %o, 1
  br label %other
look:
  %cell.to = getelementptr ptr, ptr %cells, i64 %r
  store ptr %cell, ptr %cell.to
  %slot.at = getelementptr i8, ptr %cell, i64 {slot}
  %slot = load ptr, ptr %slot.at
  %cleared = icmp eq ptr %slot, null
  br i1 %cleared, label %no, label %sized, !prof !0
sized:
  %slot.size.at = getelementptr i8, ptr %slot, i64 {SIZE}
  %slot.size = load i64, ptr %slot.size.at
  %is.there = icmp eq i64 %slot.size, 1
  br i1 %is.there, label %open, label %no, !prof !1
open:
  %arrays = call ptr @arrays(ptr %cell)
  %list.count.at = getelementptr i8, ptr %arrays, i64 {COUNT}
  %list.count = load i32, ptr %list.count.at
  %list.alone = icmp eq i32 %list.count, 1
  %size.at = getelementptr i8, ptr %arrays, i64 {SIZE}
  %size = load i64, ptr %size.at
  %wanted.at = getelementptr i64, ptr %ref, i64 {r_count}
  %wanted = load i64, ptr %wanted.at
  %right = icmp eq i64 %size, %wanted
  %fine = and i1 %list.alone, %right
  br i1 %fine, label %inside, label %no, !prof !1
inside:
  %items.at = getelementptr i8, ptr %arrays, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.at
  br label %item
item:
  %i = phi i64 [ 0, %inside ], [ %i.next, %noted ]
  %m = phi i64 [ %n, %inside ], [ %m.next, %noted ]
  %more.items = icmp ult i64 %i, %size
  br i1 %more.items, label %array, label %held
array:
  %data.at = getelementptr ptr, ptr %items, i64 %i
  %data = load ptr, ptr %data.at
  %type.at = getelementptr i8, ptr %data, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %is.host = icmp eq ptr %type, @tessera_ndarray_type
  br i1 %is.host, label %flags, label %no, !prof !1
flags:
  %flags.at = getelementptr i8, ptr %data, i64 {FLAGS}
  %flags.all = load i32, ptr %flags.at
  %ready = and i32 %flags.all, {READY}
  %is.ready = icmp eq i32 %ready, {READY}
  br i1 %is.ready, label %noted, label %no, !prof !1
noted:
  %content.to = getelementptr ptr, ptr %contents, i64 %m
  store ptr %data, ptr %content.to
  %elements.at = getelementptr i8, ptr %data, i64 {DATA}
  %elements = load i64, ptr %elements.at
  %word.to = getelementptr i64, ptr %words, i64 %m
  store i64 %elements, ptr %word.to
  %i.next = add i64 %i, 1
  %m.next = add i64 %m, 1
  br label %item
held:
  %r.next = add i64 %r, 1
  br label %next
done:
  ret i64 %n
no:
  ret i64 -1
}}

; Takes references to the refs that are returned; or, told where, puts them there.
define internal void @keep_returned(ptr %plan, ptr %cells, ptr %to) nounwind {{
entry:
  %count.at = getelementptr i64, ptr %plan, i64 {returned}
  %count = load i64, ptr %count.at
  %places.from = getelementptr i64, ptr %plan, i64 {returned_at}
  %places = load ptr, ptr %places.from
  %counts = icmp eq ptr %to, null
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %on ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %place.at = getelementptr i64, ptr %places, i64 %i
  %place = load i64, ptr %place.at
  %cell.at = getelementptr ptr, ptr %cells, i64 %place
  %cell = load ptr, ptr %cell.at
  br i1 %counts, label %take.it, label %put
take.it:
  call void @Py_IncRef(ptr %cell)
  br label %on
put:
  %put.at = getelementptr ptr, ptr %to, i64 %i
  store ptr %cell, ptr %put.at
  br label %on
on:
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}}

; The list of the arrays of a ref, borrowed.
define internal ptr @arrays(ptr %cell) nounwind {{
  %slot.at = getelementptr i8, ptr %cell, i64 {slot}
  %slot = load ptr, ptr %slot.at
  %slot.items.at = getelementptr i8, ptr %slot, i64 {LIST_ITEMS}
  %slot.items = load ptr, ptr %slot.items.at
  %arrays = load ptr, ptr %slot.items
  ret ptr %arrays
}}

; Says how many items the list in the slot of a ref has.
define internal void @resize(ptr %cell, i64 %size) nounwind {{
  %slot.at = getelementptr i8, ptr %cell, i64 {slot}
  %slot = load ptr, ptr %slot.at
  %size.at = getelementptr i8, ptr %slot, i64 {SIZE}
  store i64 %size, ptr %size.at
  ret void
}}

; Marks the donated arguments; no for an error.
define internal i1 @give_away(ptr %call, ptr %plan) nounwind {{
entry:
  %objects = alloca [{MOST_LEAVES} x ptr], align 16
  %count.at = getelementptr i64, ptr %plan, i64 {donated}
  %count = load i64, ptr %count.at
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %some
some:
  %places.from = getelementptr i64, ptr %plan, i64 {donated_at}
  %places = load ptr, ptr %places.from
  br label %one
one:
  %i = phi i64 [ 0, %some ], [ %i.next, %one ]
  %place.at = getelementptr i64, ptr %places, i64 %i
  %place = load i64, ptr %place.at
  %leaf = add i64 %place, {OBJECTS}
  %object.at = getelementptr i64, ptr %call, i64 %leaf
  %object = load ptr, ptr %object.at
  %to = getelementptr ptr, ptr %objects, i64 %i
  store ptr %object, ptr %to
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %count
  br i1 %more, label %one, label %mark
mark:
  %mark.at = getelementptr i64, ptr %plan, i64 {mark}
  %function = load ptr, ptr %mark.at
  %answer = call ptr @PyObject_Vectorcall(ptr %function, ptr %objects, i64 %count, ptr null)
  call void @Py_DecRef(ptr %answer)
  %well = icmp ne ptr %answer, null
  ret i1 %well
done:
  ret i1 1
}}

; Takes the arrays of the refs that are written, and keeps those of the others.
define internal void @take(ptr %plan, ptr %cells, ptr %contents) nounwind {{
entry:
  %refs.n.at = getelementptr i64, ptr %plan, i64 {refs}
  %refs.n = load i64, ptr %refs.n.at
  %refs.from = getelementptr i64, ptr %plan, i64 {refs_at}
  %refs = load ptr, ptr %refs.from
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %r.next, %on ]
  %n = phi i64 [ 0, %entry ], [ %n.next, %on ]
  %more = icmp ult i64 %r, %refs.n
  br i1 %more, label %one, label %done
one:
  %ref.index = mul i64 %r, {REF}
  %ref = getelementptr i64, ptr %refs, i64 %ref.index
  %count.at = getelementptr i64, ptr %ref, i64 {r_count}
  %count = load i64, ptr %count.at
  %n.next = add i64 %n, %count
  %cell.at = getelementptr ptr, ptr %cells, i64 %r
  %cell = load ptr, ptr %cell.at
  call void @Py_IncRef(ptr %cell)
  %written.at = getelementptr i64, ptr %ref, i64 {r_written}
  %written = load i64, ptr %written.at
  %is.written = icmp ne i64 %written, 0
  br i1 %is.written, label %empty, label %keep
empty:
  call void @resize(ptr %cell, i64 0)
  %new.user.at = getelementptr i64, ptr %ref, i64 {r_user}
  %new.user = load ptr, ptr %new.user.at
  %user.at = getelementptr i8, ptr %cell, i64 {user}
  %old.user = load ptr, ptr %user.at
  call void @Py_IncRef(ptr %new.user)
  store ptr %new.user, ptr %user.at
  ; A tuple of a string and an int: no code runs where it ends.
  call void @Py_DecRef(ptr %old.user)
  br label %on
keep:
  %k = phi i64 [ %n, %one ], [ %k.next, %keep.one ]
  %more.kept = icmp ult i64 %k, %n.next
  br i1 %more.kept, label %keep.one, label %on
keep.one:
  %kept.at = getelementptr ptr, ptr %contents, i64 %k
  %kept = load ptr, ptr %kept.at
  call void @Py_IncRef(ptr %kept)
  %k.next = add i64 %k, 1
  br label %keep
on:
  %r.next = add i64 %r, 1
  br label %next
done:
  ret void
}}

; Gives the refs that are written new arrays, whose references it takes, or their old ones back
; where there are none; and lets go of everything else.
define internal void @settle(ptr %plan, ptr %cells, ptr %contents, ptr %news) nounwind {{
entry:
  %refs.n.at = getelementptr i64, ptr %plan, i64 {refs}
  %refs.n = load i64, ptr %refs.n.at
  %refs.from = getelementptr i64, ptr %plan, i64 {refs_at}
  %refs = load ptr, ptr %refs.from
  %changes = icmp ne ptr %news, null
  br label %next
next:
  %r = phi i64 [ 0, %entry ], [ %r.next, %on ]
  %n = phi i64 [ 0, %entry ], [ %n.next, %on ]
  %w = phi i64 [ 0, %entry ], [ %w.next, %on ]
  %more = icmp ult i64 %r, %refs.n
  br i1 %more, label %one, label %drop
one:
  %ref.index = mul i64 %r, {REF}
  %ref = getelementptr i64, ptr %refs, i64 %ref.index
  %count.at = getelementptr i64, ptr %ref, i64 {r_count}
  %count = load i64, ptr %count.at
  %n.next = add i64 %n, %count
  %cell.at = getelementptr ptr, ptr %cells, i64 %r
  %cell = load ptr, ptr %cell.at
  %written.at = getelementptr i64, ptr %ref, i64 {r_written}
  %written = load i64, ptr %written.at
  %is.written = icmp ne i64 %written, 0
  br i1 %is.written, label %refill, label %on
refill:
  %arrays = call ptr @arrays(ptr %cell)
  %items.at = getelementptr i8, ptr %arrays, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.at
  br label %item
item:
  %i = phi i64 [ 0, %refill ], [ %i.next, %stored ]
  %more.items = icmp ult i64 %i, %count
  br i1 %more.items, label %replace, label %filled
replace:
  %old.place = add i64 %n, %i
  %old.at = getelementptr ptr, ptr %contents, i64 %old.place
  br i1 %changes, label %put, label %leave
put:
  %new.place = add i64 %w, %i
  %new.at = getelementptr ptr, ptr %news, i64 %new.place
  %new = load ptr, ptr %new.at
  %item.at = getelementptr ptr, ptr %items, i64 %i
  store ptr %new, ptr %item.at
  br label %stored
leave:
  store ptr null, ptr %old.at
  br label %stored
stored:
  %i.next = add i64 %i, 1
  br label %item
filled:
  call void @resize(ptr %cell, i64 1)
  br label %on
on:
  %written.now = phi i64 [ 0, %one ], [ %count, %filled ]
  %w.next = add i64 %w, %written.now
  %r.next = add i64 %r, 1
  br label %next
drop:
  ; Code may run from here on: all refs are as they should be.
  %d = phi i64 [ 0, %next ], [ %d.next, %drop.one ]
  %more.drops = icmp ult i64 %d, %n
  br i1 %more.drops, label %drop.one, label %cells.too
drop.one:
  %dropped.at = getelementptr ptr, ptr %contents, i64 %d
  %dropped = load ptr, ptr %dropped.at
  call void @Py_DecRef(ptr %dropped)
  %d.next = add i64 %d, 1
  br label %drop
cells.too:
  %c = phi i64 [ 0, %drop ], [ %c.next, %cell.one ]
  %more.cells = icmp ult i64 %c, %refs.n
  br i1 %more.cells, label %cell.one, label %done
cell.one:
  %done.at = getelementptr ptr, ptr %cells, i64 %c
  %done.cell = load ptr, ptr %done.at
  call void @Py_DecRef(ptr %done.cell)
  %c.next = add i64 %c, 1
  br label %cells.too
done:
  ret void
}}

; What an output is written to: an array of ours if it is a result, NumPy's if it is for a ref; null
; with an error set.
define internal ptr @produce(ptr %record, ptr %kept, i64 %leaves, ptr %contents, ptr %inputs,
    ptr %word, i1 %is.shown) nounwind {{
entry:
  %nbytes.at = getelementptr i64, ptr %record, i64 {o_nbytes}
  %nbytes = load i64, ptr %nbytes.at
  %on.at = getelementptr i64, ptr %record, i64 {o_on}
  %on = load i64, ptr %on.at
  %position = sub i64 %on, 1
  %behind = sub i64 %position, %leaves
  %is.leaf = icmp slt i64 %behind, 0
  %kept.at = getelementptr ptr, ptr %kept, i64 %position
  %content.at = getelementptr ptr, ptr %contents, i64 %behind
  %old.at = select i1 %is.leaf, ptr %kept.at, ptr %content.at
  %input.at = getelementptr i64, ptr %inputs, i64 %position
  %anew = icmp eq i64 %on, 0
  br i1 %anew, label %make, label %ask
ask:
  %asked = load ptr, ptr %old.at
  %free = call i1 @is_free(ptr %asked)
  br i1 %free, label %reuse, label %make
reuse:
  call void @Py_IncRef(ptr %asked)
  br i1 %is.shown, label %dress, label %note
dress:
  %dressed = call ptr @wrap(ptr %record, ptr %asked)
  %undressed = icmp eq ptr %dressed, null
  br i1 %undressed, label %fail, label %note, !prof !0
make:
  %rank.at = getelementptr i64, ptr %record, i64 {o_rank}
  %rank64 = load i64, ptr %rank.at
  %rank = trunc i64 %rank64 to i32
  %dims.at = getelementptr i64, ptr %record, i64 {o_dims}
  %dims = load ptr, ptr %dims.at
  %array = call ptr @make(ptr %record, i32 %rank, ptr %dims, i64 %nbytes)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %fail, label %made, !prof !0
made:
  %array.data.at = getelementptr i8, ptr %array, i64 {array_data}
  %array.data = load ptr, ptr %array.data.at
  br i1 %anew, label %bare, label %copy
copy:
  %from = load ptr, ptr %input.at
  %to.at = getelementptr i8, ptr %array.data, i64 {DATA}
  %to = load ptr, ptr %to.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %nbytes, i1 false)
  store ptr %to, ptr %input.at
  br label %bare
bare:
  br i1 %is.shown, label %note, label %strip
strip:
  call void @Py_IncRef(ptr %array.data)
  call void @Py_DecRef(ptr %array)
  br label %note
note:
  %found = phi ptr [ %asked, %reuse ], [ %dressed, %dress ], [ %array, %bare ],
      [ %array.data, %strip ]
  %data = phi ptr [ %asked, %reuse ], [ %asked, %dress ], [ %array.data, %bare ],
      [ %array.data, %strip ]
  %address.at = getelementptr i8, ptr %data, i64 {DATA}
  %address = load i64, ptr %address.at
  store i64 %address, ptr %word
  ret ptr %found
fail:
  ret ptr null
}}

; Whether something is an array that one place alone has, and nobody else can see its memory: see
; `memory.is_all_its_own`.
define internal i1 @is_free(ptr %data) nounwind {{
entry:
  %kind.at = getelementptr i8, ptr %data, i64 {TYPE}
  %its.kind = load ptr, ptr %kind.at
  %is.array = icmp eq ptr %its.kind, @tessera_ndarray_type
  br i1 %is.array, label %array, label %no, !prof !1
array:
  %count.at = getelementptr i8, ptr %data, i64 {COUNT}
  %count = load i32, ptr %count.at
  %alone = icmp eq i32 %count, 1
  %address.at = getelementptr i8, ptr %data, i64 {DATA}
  %address = load i64, ptr %address.at
  %rest = and i64 %address, 63
  %aligned = icmp eq i64 %rest, 0
  %ours = and i1 %alone, %aligned
  br i1 %ours, label %level, label %no
level:
  %owner = phi ptr [ %data, %array ], [ %base, %below ]
  %base.at = getelementptr i8, ptr %owner, i64 {BASE}
  %base = load ptr, ptr %base.at
  %no.base = icmp eq ptr %base, null
  br i1 %no.base, label %own, label %under
own:
  %flags.at = getelementptr i8, ptr %owner, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %owns.bit = and i32 %flags, {OWNS}
  %owns = icmp ne i32 %owns.bit, 0
  ret i1 %owns
under:
  %base.count.at = getelementptr i8, ptr %base, i64 {COUNT}
  %base.count = load i32, ptr %base.count.at
  %base.alone = icmp eq i32 %base.count, 1
  br i1 %base.alone, label %below, label %no
below:
  %type.at = getelementptr i8, ptr %base, i64 {TYPE}
  %type = load ptr, ptr %type.at
  %is.below = icmp eq ptr %type, @tessera_ndarray_type
  br i1 %is.below, label %level, label %pooled
pooled:
  %is.pooled = call i32 @PyType_IsSubtype(ptr %type, ptr @tessera_pooled_class)
  %found = icmp ne i32 %is.pooled, 0
  ret i1 %found
no:
  ret i1 0
}}
"""
