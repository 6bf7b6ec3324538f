"""Loops and branches.

What a loop carries is in fixed registers, which the body writes in place where the old value is
not needed any more; else it is copied at the end of the body.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int32
from tessera.ir.core import Block, Op, Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.ptx.address import constant
from tessera.target.ptx.text import Writer, value_files

SHORT = 8
"""A branch of so many ops with effects is written without a jump."""

ALIASES = (t.Cast, t.Bitcast, t.Extract, t.PtrAdd, g.Pack)
"""Ops whose result may be a register of an operand, or be computed where it is used."""

IN_PLACE = (t.Map, g.Mma, t.For, t.While, g.Approximate)
"""Ops that write their results after they have read their operands."""

PREDICATED = (
    t.Const, t.Map, t.Cast, t.Bitcast, t.Extract, g.Pack, t.Store, g.StoreCached, g.AtomicReduce,
    g.AsyncCopy, g.AsyncCommit, g.MbarrierInit, g.MbarrierArrive, g.BulkLoad, g.BulkStore,
    g.TensorLoad, g.TensorStore, g.BulkCommit, g.Trap, t.Sentinel,
)  # fmt: skip
"""Ops that a branch without a jump may have. What has no effects is run in any case, so that a load
is not among them: nothing may read what it did not give.
"""


def _may_alias(w: Writer, op: Op) -> bool:
    return isinstance(op, ALIASES) or (isinstance(op, t.Map) and op.result in w.addressed)


def last_uses(w: Writer, block: Block) -> dict[Value, int]:
    """The position of the last op of a block that needs each value; `len(block.ops)`: its outputs
    do. An op that may only rename a value passes on its own uses.
    """
    found: dict[Value, int] = {v: len(block.ops) for v in block.outputs}
    for k in range(len(block.ops) - 1, -1, -1):
        op = block.ops[k]
        at = k
        if _may_alias(w, op):
            at = max([k, *[found.get(r, k) for r in op.results]])
        for value in _needed(op):
            if found.get(value, -1) < at:
                found[value] = at
    return found


def _needed(op: Op) -> list[Value]:
    values = list(op.operands)
    for region in op.regions:
        for inner in region.ops:
            values += _needed(inner)
        values += region.outputs
    return values


def _want(
    w: Writer, body: Block, registers: Sequence[tuple[str, ...]], args: Sequence[Value] | None
) -> None:
    """Asks for the registers that a body's outputs are to be in.

    Args:
        w: the writer.
        body: the block.
        registers: of each output.
        args: what is in these registers before, for each output; None where nothing is.
    """
    position = {r: k for k, op in enumerate(body.ops) for r in op.results}
    last = last_uses(w, body) if args is not None else {}
    taken: set[Value] = set()
    for k, value in enumerate(body.outputs):
        at = position.get(value)
        if at is None or value in taken or value in w.fused:
            continue
        op = body.ops[at]
        if not isinstance(op, IN_PLACE):
            continue
        if args is not None and last.get(args[k], -1) > at:
            continue
        if args is not None and op.regions and not _hands_over(w, body, at, value, args[k]):
            continue
        taken.add(value)
        w.wanted[value] = registers[k]


def _hands_over(w: Writer, body: Block, at: int, value: Value, arg: Value) -> bool:
    """Whether an inner loop carries on just this argument, which nothing else in it reads, also
    not under another name.
    """
    op = body.ops[at]
    if not isinstance(op, (t.For, t.While)):
        return False
    if any(_may_alias(w, before) and arg in before.operands for before in body.ops[:at]):
        return False
    k = op.results.index(value)
    if op.init[k] is not arg or list(op.operands).count(arg) != 1:
        return False
    return all(arg not in _needed(inner) for region in op.regions for inner in region.ops)


def _yield(w: Writer, body: Block, registers: Sequence[tuple[str, ...]]) -> None:
    """The outputs of a body, in their registers."""
    targets: list[str] = []
    sources: list[str] = []
    files: list[str] = []
    for value, names in zip(body.outputs, registers, strict=True):
        targets += names
        sources += w.registers(value)
        files += value_files(value.type)
    w.copies(targets, sources, files)


def _carry(w: Writer, op: t.For | t.While) -> list[tuple[str, ...]]:
    """Registers of what a loop carries, holding its first values."""
    carried: list[tuple[str, ...]] = []
    targets: list[str] = []
    sources: list[str] = []
    files: list[str] = []
    for value, result in zip(op.init, op.results, strict=True):
        given = w.registers(value)
        names = w.results(result)
        carried.append(names)
        targets += names
        sources += given
        files += value_files(value.type)
    w.copies(targets, sources, files)
    return carried


def _fits(value: int | None) -> bool:
    return value is not None and 0 <= value < 1 << 30


def _narrow_counter(op: t.For) -> bool:
    """Whether the counter fits 32 bits: constants, or an i32 as the end."""
    lo, hi, step = constant(op.lo), constant(op.hi), constant(op.step)
    if not _fits(lo) or not _fits(step):
        return False
    return _fits(hi) or (isinstance(op.hi.op, t.Cast) and t.element(op.hi.op.x.type) is int32)


def for_loop(w: Writer, op: t.For) -> None:
    """A loop with its test at the end, and one in front where it may not run at all."""
    n = w.next_label()
    narrow = _narrow_counter(op)
    file, kind = ("b32", "s32") if narrow else ("b64", "s64")
    lo, hi = constant(op.lo), constant(op.hi)
    carried = _carry(w, op)
    counter = w.register(file)
    w.copy(counter, w.use(op.lo), file)
    end = _end(w, op, narrow)
    step = w.use(op.step)
    uniform = op.hi not in w.divergent and op.lo not in w.divergent and op.step not in w.divergent
    bra = "bra.uni" if uniform else "bra"
    runs = lo is not None and hi is not None and lo < hi
    if not runs:
        skip = w.register("pred")
        w.put(f"setp.ge.{kind} {skip}, {counter}, {end}")
        w.put(f"@{skip} {bra} $done{n}")
    w.start(f"$loop{n}")
    index, *args = op.body.args
    w.known.append({})
    _bind_counter(w, index, counter, narrow)
    w.names.update(zip(args, carried, strict=True))
    w.depth.update(dict.fromkeys(op.body.args, len(w.known)))
    _want(w, op.body, carried, args)
    w.block(op.body)
    _yield(w, op.body, carried)
    w.known.pop()
    again = w.register("pred")
    w.put(f"add.{kind} {counter}, {counter}, {step}")
    # The end is above 0 here, and a sum of it and a step may need all 32 bits.
    w.put(f"setp.lt.{'u32' if narrow else kind} {again}, {counter}, {end}")
    w.put(f"@{again} {bra} $loop{n}")
    w.start(f"$done{n}")
    w.names.update(zip(op.results, carried, strict=True))


def _end(w: Writer, op: t.For, narrow: bool) -> str:
    if narrow and isinstance(op.hi.op, t.Cast):
        return w.use(op.hi.op.x)
    return w.use(op.hi)


def _bind_counter(w: Writer, index: Value, counter: str, narrow: bool) -> None:
    if not narrow:
        w.names[index] = (counter,)
        return
    wide = w.register("b64")
    w.names[index] = (wide,)
    w.narrow[index] = counter
    w.always(f"cvt.s64.s32 {wide}, {counter}")


def while_loop(w: Writer, op: t.While) -> None:
    """A loop with its test in front."""
    n = w.next_label()
    carried = _carry(w, op)
    w.start(f"$loop{n}")
    w.known.append({})
    w.names.update(zip(op.cond.args, carried, strict=True))
    w.names.update(zip(op.body.args, carried, strict=True))
    w.depth.update(dict.fromkeys([*op.cond.args, *op.body.args], len(w.known)))
    w.block(op.cond)
    going = op.cond.outputs[0]
    bra = "bra" if going in w.divergent else "bra.uni"
    w.put(f"@!{w.use(going)} {bra} $done{n}")
    _want(w, op.body, carried, op.body.args)
    w.region(op.body)
    _yield(w, op.body, carried)
    w.put(f"bra.uni $loop{n}")
    w.known.pop()
    w.start(f"$done{n}")
    w.names.update(zip(op.results, carried, strict=True))


def branch(w: Writer, op: t.If) -> None:
    """A branch, or instructions under a predicate."""
    if not op.results and _is_short(op) and not w.guard:
        _predicated(w, op)
        return
    n = w.next_label()
    results = [w.results(r) for r in op.results]
    bra = "bra" if op.pred in w.divergent else "bra.uni"
    has_else = bool(op.otherwise.ops or op.results)
    w.put(f"@!{w.use(op.pred)} {bra} ${'else' if has_else else 'done'}{n}")
    _inner(w, op.then, results)
    if has_else:
        w.put(f"bra.uni $done{n}")
        w.start(f"$else{n}")
        _inner(w, op.otherwise, results)
    w.start(f"$done{n}")
    w.names.update(zip(op.results, results, strict=True))


def _inner(w: Writer, block: Block, results: Sequence[tuple[str, ...]]) -> None:
    _want(w, block, results, None)
    w.known.append({})
    w.block(block)
    _yield(w, block, results)
    w.known.pop()


def _is_short(op: t.If) -> bool:
    return all(
        len(block.ops) <= 4 * SHORT
        and sum(bool(o.get_effects()) for o in block.ops) <= SHORT
        and all(isinstance(o, PREDICATED) for o in block.ops)
        and sum(isinstance(o, t.Map) for o in block.ops) <= SHORT
        for block in (op.then, op.otherwise)
    )


def _predicated(w: Writer, op: t.If) -> None:
    predicate = w.use(op.pred)
    for sign, block in (("", op.then), ("!", op.otherwise)):
        w.known.append({})
        w.guard = f"@{sign}{predicate} "
        w.block(block)
        w.guard = ""
        w.known.pop()
