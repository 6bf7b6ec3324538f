"""LLVM text of control flow: loops, branches, and calls of functions of the module.

LLVM unrolls only loops whose bodies are short; others say that they are to stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.dtypes import bool_
from tessera.ir.core import Op, Value
from tessera.ir.types import Type
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.llvm.text import Rule, Writer, type_text
from tessera.target.machine import Machine
from tessera.target.types import VecType

ENOUGH, TOTAL = 8, 192
"""A loop whose body works on so many registers, or in all of its turns together on so many, is left
as it is: what going round costs is hidden, and LLVM spends a fifth of its time on unrolling. A
search of columns compares 8 rows in 96; as a loop it takes twice as long. The maximum of a row of 4
KB had better be few turns, too: prefetchers follow the loads of a loop, and 16 turns have them run
on (softmax of [4096, 1024] 880 us, and 650)."""

FEW = 4
"""Loops of so many turns are LLVM's to unroll: masks that depend on the turn are constants then,
and steps of a stencil over rows of 128 take half of the time. Not so where there is another loop in
each: it would be there as often."""

MOST = 600
"""What works on so many registers in all of its turns LLVM leaves as it is, after it has looked."""


def _phis(w: Writer, values: Sequence[Value]) -> tuple[list[str], int]:
    """Reserves a phi line per value; they are filled in once the incoming values are known."""
    names = [w.fresh() for _ in values]
    at = len(w.lines)
    w.lines.extend([""] * len(values))
    return names, at


def _fill_phis(
    w: Writer,
    at: int,
    names: Sequence[str],
    types: Sequence[Type],
    incoming: Sequence[tuple[Sequence[str], str]],
) -> None:
    for k, (name, type) in enumerate(zip(names, types, strict=True)):
        sources = ", ".join(f"[ {values[k]}, %{label} ]" for values, label in incoming)
        w.lines[at + k] = f"  {name} = phi {type_text(type)} {sources}"


def _for(w: Writer, op: t.For) -> None:
    n = w.next_label()
    before, init = w.label, [w.name(op.lo), *[w.name(v) for v in op.init]]
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    names, at = _phis(w, op.body.args)
    types = [a.type for a in op.body.args]
    w.names.update(zip(op.body.args, names, strict=True))
    going = w.assign(f"icmp slt i64 {names[0]}, {w.name(op.hi)}")
    w.put(f"br i1 {going}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    w.block(op.body)
    following = w.assign(f"add nsw i64 {names[0]}, {w.name(op.step)}")
    carried = [following, *[w.name(v) for v in op.body.outputs]]
    last = w.label
    w.put(f"br label %head{n}{as_it_is(w) if op.unroll == 1 or _is_long(op, w.machine) else ''}")
    _fill_phis(w, at, names, types, [(init, before), (carried, last)])
    w.start(f"done{n}")
    w.names.update(zip(op.results, names[1:], strict=True))


def turns_of(loop: t.For, unknown: int) -> int:
    """How many turns a loop has; `unknown` where that is."""
    ends = [v.op.value for v in (loop.lo, loop.hi, loop.step) if isinstance(v.op, t.Const)]
    return len(range(*map(int, ends))) if len(ends) == 3 else unknown


def _is_long(loop: t.For, machine: Machine) -> bool:
    """Whether LLVM need not unroll a loop."""
    turns = turns_of(loop, TOTAL)
    if turns <= FEW and not any([isinstance(op, t.For) for op in loop.body.ops]):
        least = MOST // max(turns, 1)
    elif loop.init or any(isinstance(op, (t.Load, t.Gather)) for op in walk(loop.body)):
        least = max(ENOUGH, TOTAL // turns)
    else:
        least = ENOUGH // 2  # what fills memory waits for its stores
    count = 0
    for op in walk(loop.body):
        value = op.value if isinstance(op, t.Store) else op.results[0] if op.results else None
        if value is not None and isinstance(value.type, VecType) and not _is_light(op, value):
            bits = 8 * value.type.dtype.itemsize * value.type.lanes
            count += -(-bits // machine.vector_bits)
            if count >= least:
                return True
    return False


def _is_light(op: Op, value: Value) -> bool:
    """Whether an op makes masks, or picks registers."""
    return isinstance(op, t.Shuffle) or t.element(value.type) is bool_


def as_it_is(w: Writer) -> str:
    """What is said at the end of a loop that LLVM is to leave as it is."""
    w.declare("as it is", '!1 = distinct !{!1, !2}\n!2 = !{!"llvm.loop.unroll.disable"}')
    return ", !llvm.loop !1"


def _while(w: Writer, op: t.While) -> None:
    n = w.next_label()
    before, init = w.label, [w.name(v) for v in op.init]
    w.put(f"br label %head{n}")
    w.start(f"head{n}")
    names, at = _phis(w, op.init)
    types = [v.type for v in op.init]
    w.names.update(zip(op.cond.args, names, strict=True))
    w.names.update(zip(op.body.args, names, strict=True))
    w.block(op.cond)
    w.put(f"br i1 {w.name(op.cond.outputs[0])}, label %body{n}, label %done{n}")
    w.start(f"body{n}")
    w.block(op.body)
    carried = [w.name(v) for v in op.body.outputs]
    last = w.label
    w.put(f"br label %head{n}")
    _fill_phis(w, at, names, types, [(init, before), (carried, last)])
    w.start(f"done{n}")
    w.names.update(zip(op.results, names, strict=True))


def _if(w: Writer, op: t.If) -> None:
    n = w.next_label()
    w.put(f"br i1 {w.name(op.pred)}, label %then{n}, label %else{n}")
    incoming: list[tuple[list[str], str]] = []
    for word, block in (("then", op.then), ("else", op.otherwise)):
        w.start(f"{word}{n}")
        w.block(block)
        incoming.append(([w.name(v) for v in block.outputs], w.label))
        w.put(f"br label %done{n}")
    w.start(f"done{n}")
    names, at = _phis(w, op.results)
    _fill_phis(w, at, names, [v.type for v in op.results], incoming)
    w.names.update(zip(op.results, names, strict=True))


def _call(w: Writer, op: t.Call) -> None:
    w.put(f"call void {w.callee(op.callee)}({', '.join(w.typed(a) for a in op.args)})")


def _apply(w: Writer, op: t.Apply) -> None:
    args = ", ".join(w.typed(a) for a in op.args)
    w.names[op.result] = w.assign(f"call {type_text(op.type)} {w.callee(op.callee)}({args})")


RULES: Mapping[type[Op], Rule] = {
    t.For: _for,
    t.While: _while,
    t.If: _if,
    t.Call: _call,
    t.Apply: _apply,
}
