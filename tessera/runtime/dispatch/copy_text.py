"""The native side of copies in row-major order, as LLVM text: a step of a sequence.

An eager function that turns, cuts or pads arrays reads them as views, of which compiled programs
read copies. `copies.py` writes what stands here as a run.
"""

from __future__ import annotations

COPY = "tessera_copy"

MOST_DIMS = 16

_NEAR = 1 << 14
"""Bytes that are copied at once where one element is repeated: they stay in the first cache."""

_SIZES = (1, 2, 4, 8, 16)


def copy_text() -> str:
    """The function."""
    rows = "".join([_ROW.format(SIZE=size, BITS=8 * size) for size in _SIZES])
    cases = " ".join([f"i64 {size}, label %row{size}" for size in _SIZES])
    return _COPY.format(
        NAME=COPY, MOST=MOST_DIMS, BYTES=8 * MOST_DIMS, NEAR=_NEAR, ROWS=rows, CASES=cases
    )


# The elements of the last dim, of so many bytes each.
_ROW = """
row{SIZE}:
  %k{SIZE} = phi i64 [ 0, %apart ], [ %k{SIZE}.next, %row{SIZE} ]
  %at{SIZE} = phi ptr [ %source, %apart ], [ %at{SIZE}.next, %row{SIZE} ]
  %value{SIZE} = load i{BITS}, ptr %at{SIZE}, align 1
  %to{SIZE} = getelementptr i{BITS}, ptr %target, i64 %k{SIZE}
  store i{BITS} %value{SIZE}, ptr %to{SIZE}, align 1
  %at{SIZE}.next = getelementptr i8, ptr %at{SIZE}, i64 %last.stride
  %k{SIZE}.next = add i64 %k{SIZE}, 1
  %more{SIZE} = icmp ult i64 %k{SIZE}.next, %length
  br i1 %more{SIZE}, label %row{SIZE}, label %next
"""

# The words: the source, the target, one that is not read, bytes of an element, how many dims there
# are, of which there is one, their sizes, which are not 0, and their strides in bytes.
_COPY = """
define void @{NAME}(ptr %words) nounwind {{
entry:
  %index = alloca [{MOST} x i64], align 64
  call void @llvm.memset.p0.i64(ptr %index, i8 0, i64 {BYTES}, i1 false)
  %first.source = load ptr, ptr %words
  %target.at = getelementptr i64, ptr %words, i64 1
  %first.target = load ptr, ptr %target.at
  %itemsize.at = getelementptr i64, ptr %words, i64 3
  %itemsize = load i64, ptr %itemsize.at
  %rank.at = getelementptr i64, ptr %words, i64 4
  %rank = load i64, ptr %rank.at
  %dims = getelementptr i64, ptr %words, i64 5
  %strides = getelementptr i64, ptr %dims, i64 %rank
  %last = sub i64 %rank, 1
  %length.at = getelementptr i64, ptr %dims, i64 %last
  %length = load i64, ptr %length.at
  %last.stride.at = getelementptr i64, ptr %strides, i64 %last
  %last.stride = load i64, ptr %last.stride.at
  %bytes = mul i64 %length, %itemsize
  %is.one = icmp eq i64 %last.stride, 0
  %is.whole = icmp eq i64 %last.stride, %itemsize
  br label %row
row:
  %source = phi ptr [ %first.source, %entry ], [ %source.next, %again ]
  %target = phi ptr [ %first.target, %entry ], [ %target.next, %again ]
  br i1 %is.whole, label %whole, label %perhaps.one
perhaps.one:
  br i1 %is.one, label %fill, label %apart
fill:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %itemsize, i1 false)
  br label %double
double:
  %full = phi i64 [ %itemsize, %fill ], [ %full.next, %grow ]
  %rest = sub i64 %bytes, %full
  %wants = icmp ne i64 %rest, 0
  br i1 %wants, label %grow, label %next
grow:
  %part = call i64 @llvm.umin.i64(i64 %full, i64 %rest)
  %near = call i64 @llvm.umin.i64(i64 %part, i64 {NEAR})
  %end = getelementptr i8, ptr %target, i64 %full
  call void @llvm.memcpy.p0.p0.i64(ptr %end, ptr %target, i64 %near, i1 false)
  %full.next = add i64 %full, %near
  br label %double
whole:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  br label %next
apart:
  switch i64 %itemsize, label %next [ {CASES} ]
{ROWS}
next:
  %target.next = getelementptr i8, ptr %target, i64 %bytes
  br label %carry
carry:
  %d = phi i64 [ %last, %next ], [ %e, %wrap ]
  %from = phi ptr [ %source, %next ], [ %back, %wrap ]
  %outermost = icmp eq i64 %d, 0
  br i1 %outermost, label %done, label %step
step:
  %e = sub i64 %d, 1
  %index.at = getelementptr i64, ptr %index, i64 %e
  %at = load i64, ptr %index.at
  %at.next = add i64 %at, 1
  %extent.at = getelementptr i64, ptr %dims, i64 %e
  %extent = load i64, ptr %extent.at
  %stride.at = getelementptr i64, ptr %strides, i64 %e
  %stride = load i64, ptr %stride.at
  %source.next = getelementptr i8, ptr %from, i64 %stride
  %more = icmp ult i64 %at.next, %extent
  br i1 %more, label %again, label %wrap
wrap:
  store i64 0, ptr %index.at
  %gone = mul i64 %at, %stride
  %opposite = sub i64 0, %gone
  %back = getelementptr i8, ptr %from, i64 %opposite
  br label %carry
again:
  store i64 %at.next, ptr %index.at
  br label %row
done:
  ret void
}}
"""
