"""LLVM text of work that threads share: `target.parallel`.

    void tessera_parallel(ptr function, ptr context, i64 count, i64 grain, i64 threads)

The runtime has it (`runtime/threads.py`); `function(context, lo, hi)` runs one piece. The arguments
of the function of the module stand on the entry's stack, a word each, and are the context; a
function of its own reads them there. How many threads there may be is a word of the runtime's, so
that the code is the same for any number.
"""

from __future__ import annotations

from tessera.target import ops as t
from tessera.target.llvm.text import Writer, type_text

PARALLEL, THREADS = "tessera_parallel", "tessera_threads"


def parallel(w: Writer, op: t.Parallel) -> None:
    """Hands the pieces to the pool."""
    w.declare(PARALLEL, f"declare void @{PARALLEL}(ptr, ptr, i64, i64, i64) nounwind")
    w.declare(THREADS, f"@{THREADS} = external global i64")
    w.parameters = max(w.parameters or 0, len(op.args))
    for k, arg in enumerate(op.args):
        w.put(f"store {w.typed(arg)}, ptr %arg{k}, align 8")
    piece = f"{op.callee}.piece"
    if piece not in w.pieces:
        w.pieces[piece] = _piece(piece, op)
    threads = w.assign(f"load i64, ptr @{THREADS}, align 8")
    w.put(
        f"call void @{PARALLEL}(ptr @{piece}, ptr %args, {w.typed(op.count)}, i64 {op.grain}, "
        f"i64 {threads})"
    )


def _piece(name: str, op: t.Parallel) -> list[str]:
    """A function that calls another one with arguments from memory."""
    lines = [f"define internal void @{name}(ptr %args, i64 %lo, i64 %hi) #0 {{", "entry:"]
    words: list[str] = []
    for k, arg in enumerate(op.args):
        text = type_text(arg.type)
        lines.append(f"  %at{k} = getelementptr i64, ptr %args, i64 {k}")
        lines.append(f"  %word{k} = load {text}, ptr %at{k}, align 8")
        words.append(f"{text} %word{k}")
    call = ", ".join([*words, "i64 %lo", "i64 %hi"])
    return [*lines, f"  call void @{op.callee}({call})", "  ret void", "}"]
