"""LLVM text of loads and stores of some lanes of a vector where the machine has no instruction for
it: of 8 and 16 bits on AVX2, of anything on a CPU without it; and of such whose lanes lie apart, of
32 bits and more on AVX2, too.

LLVM writes a test, a branch and an access down for each lane, and a program with eight such loads
of 32 bytes took 1.7 s to compile, and seven times as long as XLA's to run. Nearly always all lanes
are there, though: masks are those of the ends of rows. So one test tells whether they are, and
what remains is a function that is written once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.target.llvm.text import Writer, element_text, suffix, type_text
from tessera.target.types import VecType

PAGE = 4096
"""Bytes of the smallest page of memory of any machine: where one may be read, all of them may."""

NOTHING = "tessera.nothing"
"""Memory that is read where nothing is to be."""

ATTRIBUTES = "noinline nounwind cold"


def load(w: Writer, type: VecType, at: str, align: int, mask: str, other: str) -> str:
    """The lanes that a mask has, the others from `other`."""
    text, masks = type_text(type), f"<{type.lanes} x i1>"
    n = w.next_label()
    w.put(f"br i1 {_are_all(w, mask, type)}, label %all{n}, label %some{n}")
    w.start(f"all{n}")
    whole = w.assign(f"load {text}, ptr {at}, align {align}")
    w.put(f"br label %loaded{n}")
    w.start(f"some{n}")
    name = f"tessera.load_some.{suffix(type)}"
    any = f"llvm.vector.reduce.or.v{type.lanes}i1"
    w.declare(any, f"declare i1 @{any}({masks})")
    w.declare(name, _load_text(name, type))
    some = w.assign(f"call {text} @{name}(ptr {at}, {masks} {mask}, {text} {other})")
    w.put(f"br label %loaded{n}")
    w.start(f"loaded{n}")
    return w.assign(f"phi {text} [ {whole}, %all{n} ], [ {some}, %some{n} ]")


def store(w: Writer, type: VecType, value: str, at: str, align: int, mask: str) -> None:
    """Stores the lanes that a mask has."""
    text, masks = type_text(type), f"<{type.lanes} x i1>"
    n = w.next_label()
    w.put(f"br i1 {_are_all(w, mask, type)}, label %all{n}, label %some{n}")
    w.start(f"all{n}")
    w.put(f"store {text} {value}, ptr {at}, align {align}")
    w.put(f"br label %stored{n}")
    w.start(f"some{n}")
    name = f"tessera.store_some.{suffix(type)}"
    w.declare(name, _store_text(name, type))
    w.put(f"call void @{name}(ptr {at}, {masks} {mask}, {text} {value})")
    w.put(f"br label %stored{n}")
    w.start(f"stored{n}")


def safe_pointers(w: Writer, pointers: str, mask: str, lanes: int) -> str:
    """Pointers of which those that a mask does not have point to memory that is there."""
    w.declare(NOTHING, f"@{NOTHING} = internal unnamed_addr constant i64 0, align 8")
    other = f"<{lanes} x ptr> splat (ptr @{NOTHING})"
    return w.assign(f"select <{lanes} x i1> {mask}, <{lanes} x ptr> {pointers}, {other}")


def scatter(
    w: Writer, type: VecType, value: str, base: str, offsets: str, lane: str, mask: str
) -> None:
    """Stores the lanes that a mask has, so many elements behind an address each, in a vector of
    `lane` integers."""
    name, count = f"tessera.scatter_some.{suffix(type)}.{lane}", type.lanes
    w.declare(name, _scatter_text(name, type, lane))
    given = f"ptr {base}, <{count} x {lane}> {offsets}, <{count} x i1> {mask}"
    w.put(f"call void @{name}({given}, {type_text(type)} {value})")


def _are_all(w: Writer, mask: str, type: VecType) -> str:
    """Whether a mask has all lanes. LLVM 22 knows no better way on x86 than to bring them together
    one by one; there is an instruction that takes the signs of all bytes of a register."""
    lanes, masks = type.lanes, f"<{type.lanes} x i1> {mask}"
    whole = w.machine.vector_bits // 8
    size = type.dtype.itemsize if lanes * type.dtype.itemsize == whole else max(16 // lanes, 1)
    bytes = lanes * size
    if w.machine.arch != "x86-64" or bytes not in (16, whole):
        name = f"llvm.vector.reduce.and.v{lanes}i1"
        w.declare(name, f"declare i1 @{name}(<{lanes} x i1>)")
        return w.value(f"call i1 @{name}({masks})")
    name = "llvm.x86.avx2.pmovmskb" if bytes == 32 else "llvm.x86.sse2.pmovmskb.128"
    w.declare(name, f"declare i32 @{name}(<{bytes} x i8>)")
    wide = w.value(f"sext {masks} to <{lanes} x i{8 * size}>")
    signs = w.value(f"bitcast <{lanes} x i{8 * size}> {wide} to <{bytes} x i8>")
    bits = w.value(f"call i32 @{name}(<{bytes} x i8> {signs})")
    return w.value(f"icmp eq i32 {bits}, {-1 if bytes == 32 else 0xFFFF}")


def _load_text(name: str, type: VecType) -> str:
    """Where the lanes that are there lie in one page with all the others, these are read, too, and
    forgotten. A vector that reaches from one page into the next is read lane by lane."""
    text, lanes, size = type_text(type), type.lanes, type.dtype.itemsize
    element = element_text(type.dtype)
    given = f"ptr %at, <{lanes} x i1> %mask, {text} %other"
    return f"""define internal {text} @{name}({given}) {ATTRIBUTES} {{
entry:
  %some = call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> %mask)
  br i1 %some, label %look, label %nothing
nothing:
  ret {text} %other
look:
  %word = ptrtoint ptr %at to i64
  %place = and i64 %word, {PAGE - 1}
  %fits = icmp ule i64 %place, {PAGE - lanes * size}
  br i1 %fits, label %page, label %lanes
page:
  %all = load {text}, ptr %at, align 1
  %chosen = select <{lanes} x i1> %mask, {text} %all, {text} %other
  ret {text} %chosen
lanes:
  %k = phi i64 [ 0, %look ], [ %k.next, %next ]
  %found = phi {text} [ %other, %look ], [ %found.next, %next ]
  %is = extractelement <{lanes} x i1> %mask, i64 %k
  br i1 %is, label %one, label %next
one:
  %from = getelementptr i{8 * size}, ptr %at, i64 %k
  %lane = load {element}, ptr %from, align {size}
  %with = insertelement {text} %found, {element} %lane, i64 %k
  br label %next
next:
  %found.next = phi {text} [ %found, %lanes ], [ %with, %one ]
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, {lanes}
  br i1 %more, label %lanes, label %done
done:
  ret {text} %found.next
}}"""


def _store_text(name: str, type: VecType) -> str:
    place = f"%to = getelementptr i{8 * type.dtype.itemsize}, ptr %at, i64 %k"
    return _stores(name, type, "ptr %at", (place,))


def _scatter_text(name: str, type: VecType, lane: str) -> str:
    offsets = f"<{type.lanes} x {lane}> %offsets"
    places = (
        f"%place = extractelement {offsets}, i64 %k",
        f"%to = getelementptr i{8 * type.dtype.itemsize}, ptr %base, {lane} %place",
    )
    return _stores(name, type, f"ptr %base, {offsets}", places)


def _stores(name: str, type: VecType, where: str, place: Sequence[str]) -> str:
    """A function that stores lanes one by one, the `%k`-th one at `%to`, which `place` computes."""
    text, lanes, size = type_text(type), type.lanes, type.dtype.itemsize
    element = element_text(type.dtype)
    given = f"{where}, <{lanes} x i1> %mask, {text} %value"
    to = "\n  ".join(place)
    return f"""define internal void @{name}({given}) {ATTRIBUTES} {{
entry:
  br label %lanes
lanes:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %is = extractelement <{lanes} x i1> %mask, i64 %k
  br i1 %is, label %one, label %next
one:
  {to}
  %lane = extractelement {text} %value, i64 %k
  store {element} %lane, ptr %to, align {size}
  br label %next
next:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, {lanes}
  br i1 %more, label %lanes, label %done
done:
  ret void
}}"""
