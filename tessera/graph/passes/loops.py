"""Loops do in each step what only that step can do.

    scan([%x, %w], [%v], []) {length=10} body(%i, %x, %w, %v): %y = dot(%x, %w) ... %v + %y
    ==>
    %y = dot(%x, %w)
    scan([%y], [%v], []) {length=10} body(%i, %y, %v): ... %v + %y

- A carried value that no step changes is a constant of the loop.
- A carried or stacked result is left out if nothing reads it, the steps that follow included.
- What is computed of constants of the loop is computed before it, if that saves more than it costs
  to store and read: the results of products, sums and other loops always; those of elementwise ops
  if they take no more memory than what they are computed of, or enough work, and the loop is not
  one kernel, which does that itself. What only repeats or reorders elements stays, as it takes
  no work.

A loop of no steps then computes something that nobody reads, which is all that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.elementwise_base import Elementwise
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape, Reverse, Slice, Transpose
from tessera.graph.ops.scan import Scan
from tessera.graph.ops.scan_parts import steps_apart
from tessera.graph.ops.work import nbytes, work
from tessera.graph.spec import GRAPH
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.effects import EffectKind, is_removable, is_repeatable
from tessera.ir.passes import Pass
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.walk import clone_op, inline, uses, walk, with_parts

MOVES = (Broadcast, Constant, Iota, Reshape, Transpose)
FREE = (*MOVES, Reverse, Slice)
"""Ops that are done while their results are read, at no cost."""

LOCAL = frozenset({Family.ELEMENTWISE, Family.GENERATE, Family.REARRANGE})
"""Ops that may be done while their results are read."""

APART = frozenset(
    {
        Family.CONTRACT, Family.KERNEL, Family.LIBRARY, Family.RANDOM, Family.REDUCE, Family.SCAN,
        Family.SCATTER, Family.SORT,
    }
)  # fmt: skip
"""Ops whose results are stored before they are read, most of the time."""

WORK_OF_A_BYTE = 4
"""So many additions are worth one more byte to read in each step."""

LEAST = 2_000
"""Additions that a loop has to be spared, or it does not pay to store a value before it."""

STEPS = 100
"""So many steps are assumed where it is not known how many there are."""

MOST = 1 << 20
"""Bytes of what elementwise ops make of less: more would not stay in a cache."""

FEW_ROWS = 16
"""Rows of a step of which a product takes longer than its part of one for all steps."""

_Loop = Scan | While


@dataclass(frozen=True)
class Loops(Pass):
    """Takes out of loops what need not be done in each step."""

    name = "loops"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """Loops in loops, too."""
        if not any(isinstance(op, _Loop) for op in walk(func.body)):
            return func
        return func.with_body(_pruned(_hoisted(_pruned(_apart(func.body)))))


def _apart(block: Block) -> Block:
    """The block, and those in it, with products of scans that are done for all steps at once."""
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for op in block.ops:
        fresh = _changed(op, env, [_apart(b) for b in op.regions])
        parts = steps_apart(fresh, FEW_ROWS) if isinstance(fresh, Scan) else None
        if parts is None:
            code.append(fresh)
        else:
            results = inline(parts.body, fresh.operands, code.append)
            env.update(zip(op.results, results, strict=True))
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _changed(op: Op, env: dict[Value, Value], regions: Sequence[Block]) -> Op:
    """The op on what stands for its operands, with other regions; itself if nothing differs."""
    fresh = with_parts(op, [env.get(v, v) for v in op.operands], regions)
    if fresh is not op:
        env.update(zip(op.results, fresh.results, strict=True))
    return fresh


# The operands of a loop are constants, carried values, and what is scanned. Each of its regions has
# an argument for each of them, in the same order, behind those that count steps.


def _lead(op: _Loop) -> int:
    return 1 if isinstance(op, Scan) else 0


def _remade(op: _Loop, operands: Sequence[Sequence[Value]], regions: Sequence[Block]) -> _Loop:
    """A loop of as many steps with other constants, carried values, and scanned ones."""
    consts, init, xs = map(tuple, operands)
    if isinstance(op, Scan):
        return Scan(consts, init, xs, **op.attrs, body=regions[0], loc=op.loc)
    return While(consts, init, cond=regions[0], body=regions[1], loc=op.loc)


# --- what does not change, and what nobody reads ---


def _pruned(block: Block) -> Block:
    """The block, and those in it, without values of loops that are not needed."""
    live = set(block.outputs)
    kept: list[Op] = []
    pruned: dict[Op, tuple[_Loop, dict[Value, Value]]] = {}
    for op in reversed(block.ops):
        if live.isdisjoint(op.results) and is_removable(op.get_effects()):
            continue
        kept.append(op)
        if isinstance(op, _Loop):
            pruned[op] = _prune(op, [v in live for v in op.results])
            live.update(pruned[op][1].values())
            live.update(pruned[op][0].operands)
        else:
            live.update(op.operands)
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for op in reversed(kept):
        fresh, stand = pruned[op] if op in pruned else (op, dict[Value, Value]())
        code.append(_changed(fresh, env, [_pruned(b) for b in fresh.regions]))
        env.update({old: env.get(new, new) for old, new in stand.items() if old is not new})
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _prune(op: _Loop, is_live: Sequence[bool]) -> tuple[_Loop, dict[Value, Value]]:
    """The loop without values that are not needed, and what stands for results of the old one."""
    lead, first, count = _lead(op), len(op.consts), len(op.init)
    body = op.regions[-1]
    fixed = {
        k
        for k in range(count)
        if body.outputs[k] is body.args[lead + first + k]
        and op.init[k].type == op.results[k].type
    }
    needed = {k for k, flag in enumerate(is_live) if flag} - fixed
    while True:
        outputs = [body.outputs[k] for k in sorted(needed)]
        regions = [*op.regions[:-1], Block(body.args, body.ops, outputs)]
        regions = [eliminate_dead(region) for region in regions]
        found = [uses(region) for region in regions]
        read = {
            k
            for k in range(len(op.operands))
            if any([r.args[lead + k] in u for r, u in zip(regions, found, strict=True)])
        }
        more = {k for k in range(count) if first + k in read} - fixed
        if more <= needed:
            break
        needed |= more
    stand = {op.results[k]: op.init[k] for k in fixed if is_live[k]}
    kept = read | {first + k for k in range(count)}
    if len(needed) == len(op.results) and len(kept) == len(op.operands):
        return op, {v: v for v in op.results}
    order = (
        [k for k in range(first + count) if k in read and (k < first or k - first in fixed)],
        [first + k for k in range(count) if k in needed],
        [k for k in range(first + count, len(op.operands)) if k in read],
    )
    regions = [
        Block(
            [*r.args[:lead], *[r.args[lead + k] for group in order for k in group]],
            r.ops,
            r.outputs,
        )
        for r in regions
    ]
    fresh = _remade(op, [[op.operands[k] for k in group] for group in order], regions)
    new = zip(sorted(needed), fresh.results, strict=True)
    return fresh, stand | {op.results[k]: v for k, v in new}


# --- what is the same in each step ---


def _hoisted(block: Block) -> Block:
    """The block, and those in it, with what is the same in each step of a loop before it."""
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for op in block.ops:
        fresh = _changed(op, env, [_hoisted(b) for b in op.regions])
        if isinstance(fresh, _Loop) and _steps(fresh) > 1:
            before, loop = _hoist(fresh)
            code += before
            env.update(zip(op.results, loop.results, strict=True))
            fresh = loop
        code.append(fresh)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _steps(op: _Loop) -> int:
    return op.length if isinstance(op, Scan) and isinstance(op.length, int) else STEPS


def _hoist(op: _Loop) -> tuple[list[Op], _Loop]:
    """What is computed before a loop, and the loop that is left."""
    lead, first = _lead(op), len(op.consts)
    before: list[Op] = []
    results: list[Value] = []
    found = [_Invariants(region, lead, first, _steps(op)) for region in op.regions]
    is_kernel = all([each.is_elementwise for each in found])
    chosen = [each.chosen(is_kernel) for each in found]
    if not any(chosen):
        return [], op
    for each, values in zip(found, chosen, strict=True):
        env = dict(zip(each.region.args[lead:], op.consts, strict=False))
        cone = eliminate_dead(Block(each.region.args, each.ops, values)).ops
        before += [clone_op(inner, env) for inner in cone]
        results += [env[v] for v in values]
    regions: list[Block] = []
    for region, values in zip(op.regions, chosen, strict=True):
        new = [Value(v.type) for v in results]
        start = sum([len(c) for c in chosen[: len(regions)]])
        own = dict(zip(values, new[start:], strict=False))
        env, code = {**own}, list[Op]()
        for inner in region.ops:
            code.append(_changed(inner, env, inner.regions))
            env |= own  # also where one of them is made of another
        args = [*region.args[: lead + first], *new, *region.args[lead + first :]]
        outputs = [env.get(v, v) for v in region.outputs]
        regions.append(eliminate_dead(Block(args, code, outputs)))
    xs = op.xs if isinstance(op, Scan) else ()
    return before, _remade(op, [[*op.consts, *results], op.init, xs], regions)


class _Invariants:
    """Values of a region of a loop that are the same in each step.

    Args:
        region: its arguments are `lead` numbers, then `count` constants of the loop.
        lead: how many of the first there are.
        count: how many of the second.
        steps: how many there are, about.
    """

    def __init__(self, region: Block, lead: int, count: int, steps: int) -> None:
        self.region = region
        self.spared = steps - 1
        self.consts = set(region.args[lead : lead + count])
        self.fixed = set(self.consts)
        self.ops: list[Op] = []
        self.read = set(region.outputs)
        """What others than these ops read."""
        self.is_elementwise = True
        """Whether these others are work on single elements."""
        for op in region.ops:
            if _is_pure(op) and self.fixed.issuperset(op.operands):
                self.ops.append(op)
                self.fixed.update(op.results)
            else:
                self.read.update(op.operands)
                self.is_elementwise &= isinstance(op, (Elementwise, *MOVES))

    def chosen(self, is_kernel: bool) -> list[Value]:
        """Those to compute before the loop.

        Args:
            is_kernel: each element has a loop of its own, before which elementwise ops are done
                once without a place in memory.
        """
        found: list[Value] = []
        wanted = {v for v in self.read if v in self.fixed}
        for op in reversed(self.ops):
            given = [v for v in op.results if v in wanted]
            if given and not (is_kernel and _is_local(op)) and self.pays(op):
                found += given
            elif given:
                wanted.update(op.operands)
        return found

    def pays(self, op: Op) -> bool:
        """Whether it does to compute an op before the loop."""
        if isinstance(op, FREE) or any([tensor_type(v).weak for v in op.results]):
            return False
        if not _is_local(op):
            return work(op) * self.spared >= LEAST
        # What it is computed of, by ops like it.
        results, total, sources, seen, left = op.results, 0, set[Value](), {op}, [op]
        while left:
            op = left.pop()
            total += 0 if isinstance(op, FREE) else work(op)
            for v in op.operands:
                if v in self.consts or v.op is None or not _is_local(v.op):
                    sources.add(v)
                elif v.op not in seen:
                    seen.add(v.op)
                    left.append(v.op)
        size = sum(map(nbytes, results))
        if size > max(MOST, sum(map(nbytes, sources))):
            return False
        more = size - sum([nbytes(v) for v in sources if v not in self.read])
        return total * self.spared >= LEAST and total >= WORK_OF_A_BYTE * more


def _is_local(op: Op) -> bool:
    return isinstance(op, GraphOp) and op.family in LOCAL


def _is_pure(op: Op) -> bool:
    """Whether an op may be computed at another place."""
    if not isinstance(op, GraphOp):
        return False
    effects = op.get_effects()
    if not is_repeatable(effects) or any([e.kind is EffectKind.COLLECTIVE for e in effects]):
        return False
    return op.family in LOCAL | APART or isinstance(op, Cond | _Loop)
