"""LLVM text of reports about accesses outside of buffers and of sentinels: `target.bad_access`,
`target.sentinel`.

The runtime gives four words, `tessera_bad_access` (`runtime/bounds.py`): the number of the access
and 1, the byte, and where the buffer begins and ends. Who changes the first from 0 writes the
others.
"""

from __future__ import annotations

from tessera.target import ops as t
from tessera.target.llvm.text import Writer

RECORD = "tessera_bad_access"

BAD_VALUE = -1
"""The first word where a sentinel was the first; the others are then not written."""

_REPORT = "tessera.report"

_TEXT = f"""@{RECORD} = external global [4 x i64]
define internal void @{_REPORT}(i64 %site, i64 %at, i64 %low, i64 %high) noinline nounwind cold {{
entry:
  %pair = cmpxchg ptr @{RECORD}, i64 0, i64 %site acq_rel acquire
  %first = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %first, label %write, label %done
write:
  %p1 = getelementptr i64, ptr @{RECORD}, i64 1
  %p2 = getelementptr i64, ptr @{RECORD}, i64 2
  %p3 = getelementptr i64, ptr @{RECORD}, i64 3
  store i64 %at, ptr %p1
  store i64 %low, ptr %p2
  store i64 %high, ptr %p3
  br label %done
done:
  ret void
}}"""


def bad_access(w: Writer, op: t.BadAccess) -> None:
    """Reports it."""
    w.declare(_REPORT, _TEXT)
    places = ", ".join([w.typed(v) for v in (op.at, op.low, op.high)])
    w.put(f"call void @{_REPORT}(i64 {op.site + 1}, {places})")


def sentinel(w: Writer, op: t.Sentinel) -> None:
    """Reports it: no call, which would have the registers of the loop around it saved."""
    w.declare(_REPORT, _TEXT)
    w.assign(f"cmpxchg ptr @{RECORD}, i64 0, i64 {BAD_VALUE} monotonic monotonic")
