"""LLVM text of work that threads share: `target.parallel`.

    void tessera_parallel(ptr function, ptr context, i64 count, i64 grain, i64 threads)

The runtime has it (`runtime/threads.py`); `function(context, lo, hi)` runs one piece. The arguments
of the function of the module stand on the entry's stack, a word each, and are the context; a
function of its own reads them there. How many threads there may be is a word of the runtime's, so
that the code is the same for any number.

Calls that threads share together (`target.together`) are one job, whose points are the pieces of
all. A table says of each call what runs its pieces, where its arguments are, how many points it
has, how many of them a piece, and the number of its first piece. The context is the table's
address, the number of calls, and the arguments of all.
"""

from __future__ import annotations

from string import Template

from tessera.target import ops as t
from tessera.target.llvm.text import Writer, type_text

PARALLEL, THREADS = "tessera_parallel", "tessera_threads"

_PART = "{ ptr, i64, i64, i64, i64 }"


def parallel(w: Writer, op: t.Parallel) -> None:
    """Hands the pieces to the pool."""
    w.declare(PARALLEL, f"declare void @{PARALLEL}(ptr, ptr, i64, i64, i64) nounwind")
    w.declare(THREADS, f"@{THREADS} = external global i64")
    w.parameters = max(w.parameters or 0, len(op.args))
    for k, arg in enumerate(op.args):
        w.put(f"store {w.typed(arg)}, ptr %arg{k}, align 8")
    piece = f"{op.callee}.piece"
    if piece not in w.pieces:
        w.pieces[piece] = _piece(w, piece, op)
    _share(w, piece, "%args", w.typed(op.count), op.grain)


def _share(w: Writer, piece: str, context: str, count: str, grain: int) -> None:
    threads = w.assign(f"load i64, ptr @{THREADS}, align 8")
    w.put(
        f"call void @{PARALLEL}(ptr @{piece}, ptr {context}, {count}, i64 {grain}, i64 {threads})"
    )


def together(w: Writer, op: t.Together) -> None:
    """Hands the pieces of several calls to the pool."""
    w.declare(PARALLEL, f"declare void @{PARALLEL}(ptr, ptr, i64, i64, i64) nounwind")
    w.declare(THREADS, f"@{THREADS} = external global i64")
    w.pieces.setdefault("together", _TOGETHER)
    rows: list[str] = []
    first, words = 0, 2
    for call in op.body.ops:
        assert isinstance(call, (t.Call, t.Parallel))
        for k, arg in enumerate(call.args):
            at = w.assign(f"getelementptr i64, ptr %shared, i64 {words + k}")
            w.put(f"store {w.typed(arg)}, ptr {at}, align 8")
        if isinstance(call, t.Parallel):
            assert isinstance(call.count.op, t.Const)
            count, grain = int(call.count.op.value), call.grain
        else:
            count, grain = 1, 1
        piece = f"{call.callee}.{'piece' if isinstance(call, t.Parallel) else 'whole'}"
        if piece not in w.pieces:
            w.pieces[piece] = _piece(w, piece, call)
        fields = f"ptr @{piece}, i64 {words}, i64 {count}, i64 {grain}, i64 {first}"
        rows.append(f"{_PART} {{ {fields} }}")
        first += -(-count // grain)
        words += len(call.args)
    w.shared = max(w.shared, words)
    table = f"@parts.{w.next_label()}"
    kind = f"[{len(rows)} x {_PART}]"
    w.declare(table, f"{table} = internal constant {kind} [{', '.join(rows)}]")
    w.put(f"store ptr {table}, ptr %shared, align 8")
    number = w.assign("getelementptr i64, ptr %shared, i64 1")
    w.put(f"store i64 {len(rows)}, ptr {number}, align 8")
    _share(w, "together", "%shared", f"i64 {first}", op.grain)


# Runs some pieces: of each, the call is the last one whose first piece is not behind it.
_TOGETHER = Template("""\
define internal void @together(ptr %context, i64 %lo, i64 %hi) #2 {
entry:
  %table = load ptr, ptr %context, align 8
  %number.at = getelementptr i64, ptr %context, i64 1
  %number = load i64, ptr %number.at, align 8
  br label %piece
piece:
  %k = phi i64 [ %lo, %entry ], [ %k.next, %found ]
  br label %halve
halve:
  %low = phi i64 [ 0, %piece ], [ %low.next, %look ]
  %high = phi i64 [ %number, %piece ], [ %high.next, %look ]
  %width = sub i64 %high, %low
  %several = icmp ugt i64 %width, 1
  br i1 %several, label %look, label %found
look:
  %half = lshr i64 %width, 1
  %middle = add i64 %low, %half
  %begin.at = getelementptr $part, ptr %table, i64 %middle, i32 4
  %begin = load i64, ptr %begin.at, align 8
  %reached = icmp ule i64 %begin, %k
  %low.next = select i1 %reached, i64 %middle, i64 %low
  %high.next = select i1 %reached, i64 %high, i64 %middle
  br label %halve
found:
  %function.at = getelementptr $part, ptr %table, i64 %low, i32 0
  %function = load ptr, ptr %function.at, align 8
  %words.at = getelementptr $part, ptr %table, i64 %low, i32 1
  %words = load i64, ptr %words.at, align 8
  %count.at = getelementptr $part, ptr %table, i64 %low, i32 2
  %count = load i64, ptr %count.at, align 8
  %grain.at = getelementptr $part, ptr %table, i64 %low, i32 3
  %grain = load i64, ptr %grain.at, align 8
  %first.at = getelementptr $part, ptr %table, i64 %low, i32 4
  %first = load i64, ptr %first.at, align 8
  %own = sub i64 %k, %first
  %from = mul i64 %own, %grain
  %reach = add i64 %from, %grain
  %short = icmp slt i64 %reach, %count
  %to = select i1 %short, i64 %reach, i64 %count
  %args = getelementptr i64, ptr %context, i64 %words
  call void %function(ptr %args, i64 %from, i64 %to)
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %hi
  br i1 %more, label %piece, label %done
done:
  ret void
}""").substitute(part=_PART).splitlines()


def _piece(w: Writer, name: str, op: t.Parallel | t.Call) -> list[str]:
    """A function that calls another one with arguments from memory; for a piece of it, with its
    ends."""
    lines = [f"define internal void @{name}(ptr %args, i64 %lo, i64 %hi) #2 {{", "entry:"]
    words: list[str] = []
    for k, arg in enumerate(op.args):
        text = type_text(arg.type)
        lines.append(f"  %at{k} = getelementptr i64, ptr %args, i64 {k}")
        lines.append(f"  %word{k} = load {text}, ptr %at{k}, align 8")
        words.append(f"{text} %word{k}")
    ends = ["i64 %lo", "i64 %hi"] if isinstance(op, t.Parallel) else []
    call = ", ".join([*words, *ends])
    return [*lines, f"  call void {w.callee(op.callee)}({call})", "  ret void", "}"]
