"""Simulated control flow: threads that go different ways take turns under masks.

Blocks of ops run as generators: an op that must wait yields how to find out whether it may go on.
Threads that run in step never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

from tessera.ir.core import Block, Op
from tessera.target import ops as t
from tessera.target.simulate import access, arithmetic, async_copies, engine, warps
from tessera.target.simulate.state import Array, Pointer, Threads, failure
from tessera.target.simulate.waiting import STEPS as WAITING
from tessera.target.simulate.waiting import Wait

Steps: TypeAlias = "Generator[Wait, None, list[Any]]"

SPINS = 100_000
"""How often a loop that waits for memory may look before it counts as stuck."""

RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    **arithmetic.RULES,
    **access.RULES,
    **warps.RULES,
    **async_copies.RULES,
    **engine.RULES,
}


def run_block(s: Threads, block: Block) -> Steps:
    """Runs a block; the values of its outputs."""
    for op in block.ops:
        rule = RULES.get(type(op))
        if rule is not None:
            rule(s, op)
            continue
        steps = STEPS.get(type(op))
        if steps is None:
            raise failure(op, "no op of a GPU kernel that can be simulated")
        yield from steps(s, op)
    values = s.values
    return [values[v] for v in block.outputs]


def choose(s: Threads, op: Op, mask: Array, new: Any, old: Any) -> Any:
    """A register that is `new` where the mask is set, `old` elsewhere."""
    if new is old:
        return old
    if isinstance(new, Pointer):
        if new.memory is not old.memory:
            message = f"pointers to {new.memory.name} and {old.memory.name} meet"
            raise s.fail(op, message, int(s.positions()[0]))
        at = np.where(mask, new.at, old.at)
        window = None
        if new.window is not None and old.window is not None:
            window = np.where(mask, new.window, old.window)
        lo, hi = min(new.lo, old.lo), max(new.hi, old.hi)
        return Pointer(new.memory, at, lo, hi, window, new.name)
    fresh: Array = new
    return np.where(mask if fresh.ndim == 1 else mask[:, None], fresh, old)


def _for(s: Threads, op: t.For) -> Steps:
    lo, hi, step = (s.values[v] for v in (op.lo, op.hi, op.step))
    wrong = s.of_active(step <= 0)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        message = f"the step is {int(s.of_active(step)[k])}; it must be positive"
        raise s.fail(op, message, int(s.positions()[k]))
    carried = [s.values[v] for v in op.init]
    counter, *args = op.body.args
    if lo.size == hi.size == step.size == 1:
        for i in range(int(lo[0]), int(hi[0]), int(step[0])):
            s.values[counter] = np.full(1, i)
            s.values.update(zip(args, carried, strict=True))
            carried = yield from run_block(s, op.body)
    else:
        carried = yield from _divergent_for(s, op, (s.full(lo), s.full(hi), s.full(step)), carried)
    s.values.update(zip(op.results, carried, strict=True))
    return []


def _divergent_for(
    s: Threads, op: t.For, bounds: tuple[Array, Array, Array], carried: list[Any]
) -> Steps:
    lo, hi, step = bounds
    counter, *args = op.body.args
    before = s.mask
    i = lo
    going = (lo < hi) if before is None else (lo < hi) & before
    while going.any():
        s.narrow(going)
        s.values[counter] = i
        s.values.update(zip(args, carried, strict=True))
        found = yield from run_block(s, op.body)
        carried = [choose(s, op, going, new, old) for new, old in zip(found, carried, strict=True)]
        after = i + step
        going = going & (after > i) & (after < hi)
        i = after
    s.narrow(before)
    return carried


def _while(s: Threads, op: t.While) -> Steps:
    carried = [s.values[v] for v in op.init]
    before = s.mask
    spins = op in s.launch.spinning
    count = 0
    while True:
        s.values.update(zip(op.cond.args, carried, strict=True))
        (holds,) = yield from run_block(s, op.cond)
        if holds.shape[0] == 1:
            if not holds[0]:
                break
        else:
            going = holds if s.mask is None else holds & s.mask
            if not going.any():
                break
            s.narrow(going)
        s.values.update(zip(op.body.args, carried, strict=True))
        found = yield from run_block(s, op.body)
        mask = s.mask
        if mask is before or mask is None:
            carried = found
        else:
            carried = [
                choose(s, op, mask, new, old) for new, old in zip(found, carried, strict=True)
            ]
        if spins:
            count += 1
            if count > SPINS:
                raise s.fail(op, "waits without end", int(s.positions()[0]))
            yield Wait(op, s, lambda: True, lambda: "memory")
    s.narrow(before)
    s.values.update(zip(op.results, carried, strict=True))
    return []


def _if(s: Threads, op: t.If) -> Steps:
    pred: Array = s.values[op.pred]
    if pred.shape[0] == 1:
        found = yield from run_block(s, op.then if pred[0] else op.otherwise)
        s.values.update(zip(op.results, found, strict=True))
        return []
    before = s.mask
    sides = (pred, ~pred) if before is None else (pred & before, ~pred & before)
    results: list[list[Any]] = []
    for mask, block in zip(sides, (op.then, op.otherwise), strict=True):
        if mask.any():
            s.narrow(mask)
            results.append((yield from run_block(s, block)))
    s.narrow(before)
    found = results[0]
    if len(results) == 2:
        found = [choose(s, op, sides[0], a, b) for a, b in zip(*results, strict=True)]
    s.values.update(zip(op.results, found, strict=True))
    return []


STEPS: dict[type[Op], Callable[[Threads, Any], Generator[Wait, None, Any]]] = {
    t.For: _for,
    t.While: _while,
    t.If: _if,
    **WAITING,
}
