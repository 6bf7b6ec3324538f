"""The native side of running several programs one after the other, as LLVM text.

It stands where a plan has the address of a program, and finds what to run behind its first word;
`sequences.py` writes that.
"""

from __future__ import annotations

from tessera.runtime.dispatch import words as w

SEQUENCE = "tessera_sequence"


def sequence_text() -> str:
    """The function."""
    return _SEQUENCE.format(NAME=SEQUENCE, MOST=w.MOST_STEP_WORDS)


# Per step: the program, how many words it takes, and for each the index of one of the call's words,
# or less than 0, and what is added to that.
_SEQUENCE = """
define void @{NAME}(ptr %words) nounwind {{
entry:
  %own = alloca [{MOST} x i64], align 64
  %steps.at = load ptr, ptr %words
  %steps = load i64, ptr %steps.at
  %first = getelementptr i64, ptr %steps.at, i64 1
  br label %step

step:
  %k = phi i64 [ 0, %entry ], [ %k.next, %run ]
  %at = phi ptr [ %first, %entry ], [ %word.at, %run ]
  %more = icmp ult i64 %k, %steps
  br i1 %more, label %begin, label %done
begin:
  %program = load ptr, ptr %at
  %count.at = getelementptr i64, ptr %at, i64 1
  %count = load i64, ptr %count.at
  %words.at = getelementptr i64, ptr %at, i64 2
  br label %word

word:
  %i = phi i64 [ 0, %begin ], [ %i.next, %put ]
  %word.at = phi ptr [ %words.at, %begin ], [ %word.next, %put ]
  %more.words = icmp ult i64 %i, %count
  br i1 %more.words, label %find, label %run
find:
  %index = load i64, ptr %word.at
  %add.at = getelementptr i64, ptr %word.at, i64 1
  %add = load i64, ptr %add.at
  %is.known = icmp slt i64 %index, 0
  br i1 %is.known, label %put, label %look
look:
  %from = getelementptr i64, ptr %words, i64 %index
  %found = load i64, ptr %from
  br label %put
put:
  %start = phi i64 [ 0, %find ], [ %found, %look ]
  %value = add i64 %start, %add
  %to = getelementptr i64, ptr %own, i64 %i
  store i64 %value, ptr %to
  %i.next = add i64 %i, 1
  %word.next = getelementptr i64, ptr %word.at, i64 2
  br label %word

run:
  call void %program(ptr %own)
  %k.next = add i64 %k, 1
  br label %step

done:
  ret void
}}
"""
