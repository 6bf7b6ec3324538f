"""Calls that keep little for reverse mode, and compute the rest again: `checkpoint`.

The derivative of such a call has two parts. The forward part returns the outputs and those
residuals that its policy saves. The linear part takes these and the operands, computes the other
residuals again, and then the tangents; its transpose does so too, before it goes backwards. What
is computed again reads its inputs through `Barrier`, so that it is not found to be equal to what
the forward part has computed, which would keep that alive.

After Chen et al., "Training deep nets with sublinear memory cost", 2016, with the policies of JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.graph.ops.base import Rearrange, Source, linear
from tessera.graph.ops.checks import tensor
from tessera.graph.ops.control import Call, Control
from tessera.graph.ops.policies import NOTHING, Policy
from tessera.graph.ops.reshape import Batched
from tessera.graph.trace import as_tuple, bind, find_trace
from tessera.graph.transforms.differentiate import jvp, linearize
from tessera.graph.transforms.evaluate import bind_op, evaluate, trace_function
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import READ
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType
from tessera.ir.walk import inline


class Barrier(Control):
    """The operands, as values of their own: no two barriers are merged, nor is what follows them
    with what is before them. Lowering gives the results the buffers of the operands.

    `%r, %s = graph.barrier([%x, %y]) : (f32[S], i32[])`.
    """

    name = "graph.barrier"
    xs: tuple[Value, ...] = operands()
    # Not to be merged, yet removable: what a read of memory is.
    effects = READ

    def infer(self) -> tuple[TensorType, ...]:
        """The types of the operands."""
        return tuple([tensor(self, k).strong() for k in range(len(self.xs))])

    def evaluate(self, *operands: np.ndarray) -> Any:
        """The operands."""
        return operands

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """Tangents that are not zero pass another barrier."""
        return _barred(tangents)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Cotangents likewise."""
        return _barred(cts)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The batches pass a barrier."""
        return _barred(operands), axes


def _barred(xs: Sequence[Any]) -> list[Any]:
    given = tuple([x for x in xs if x is not None])
    found = iter(as_tuple(bind(Barrier, given)) if given else ())
    return [None if x is None else next(found) for x in xs]


class Name(Rearrange):
    """The operand, under a name that policies know.

    `%r = graph.name(%x) {label="scores"} : f32[S]`.
    """

    name = "graph.name"
    x: Value = operand()
    label: str = attr()

    def infer(self) -> TensorType:
        return tensor(self, 0)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return operands[0]

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        return [Source(0, index)]

    jvp = linear

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (self.bind(cts[0]),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        return (self.bind(operands[0]),), axes


class Checkpoint(Call):
    """A call whose derivative keeps what its policy saves. Lowering inlines it, as any call.

    %r = graph.checkpoint([%x]) {label="f", policy=nothing, again=true} : f32[] body(%a: f32[4])
    { ... }

    `again` says that what is computed again must not be merged with what was computed before.
    """

    name = "graph.checkpoint"
    policy: Policy = attr(NOTHING)
    again: bool = attr(True)

    def applied(self, operands: Sequence[Any], body: Block) -> tuple[Any, ...]:
        """Another checkpoint, so that higher derivatives keep little too."""
        attrs = {"label": self.label, "policy": self.policy, "again": self.again}
        return as_tuple(bind(Checkpoint, tuple(operands), body=body, **attrs))

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Forward mode: one call. Where the tangents are for a linear part: two."""
        func = Func(self.label, _flattened(self.body))
        wrt = [t is not None for t in tangents]
        given = [t for t in tangents if t is not None]
        if find_trace(primals) is find_trace([*primals, *given]):
            graph, flags, captured = jvp(func, wrt)
            results = self.applied([*captured, *primals, *given], graph.body)
            split = len(func.outputs)
            rest = iter(results[split:])
            return results[:split], [next(rest) if f else None for f in flags]
        forward, linear_part, captured, nonzero, count = linearize(func, wrt)
        known = [*captured, *primals]
        split = len(forward.outputs) - count
        if not any(nonzero):
            return outs or bind_op(self, primals), [None] * split
        residuals = forward.outputs[split:]
        saved = self.policy.choose(forward, residuals)
        wanted = [*forward.outputs[:split], *saved] if outs is None else saved
        values = dict(zip(forward.args, known, strict=True))
        body = eliminate_dead(Block(forward.args, forward.ops, wanted))
        if wanted or body.ops:
            found = self.applied(known, body)
            if outs is None:
                outs = found[:split]
            values.update(zip(saved, found[len(found) - len(saved) :], strict=True))
        recomputed, needed = _recomputed(forward, residuals, saved)
        kept = [v for v in (*forward.args, *saved) if v in needed]
        read = {v for op in recomputed for v in op.operands}
        barred = [v for v in kept if v in read] if self.again else []

        def run(*args: Any) -> list[Any]:
            known = dict(zip(kept, args, strict=False))
            env = {**known, **dict(zip(barred, _barred([known[v] for v in barred]), strict=True))}
            for op in recomputed:
                outs = bind_op(op, [env[v] for v in op.operands])
                env.update(zip(op.results, outs, strict=True))
            found = [known.get(v, env[v]) for v in residuals]
            return evaluate(linear_part, [*found, *args[len(kept) :]])

        types = [values[v].type for v in kept] + [t.type for t in given]
        graph, more = trace_function(run, types, "checkpoint", self.label)
        touts = iter(self.applied([*more, *[values[v] for v in kept], *given], graph.body))
        assert outs is not None
        return outs, [next(touts) if n else None for n in nonzero]


def _flattened(block: Block) -> Block:
    """The block with the bodies of plain calls in their places, so that policies see their ops."""
    ops: list[Op] = []
    env: dict[Value, Value] = {}

    def lookup(v: Value) -> Value:
        while v in env:
            v = env[v]
        return v

    def add(op: Op) -> None:
        operands = [lookup(v) for v in op.operands]
        if type(op) is Call:
            env.update(zip(op.results, inline(op.body, operands, add), strict=True))
            return
        copy = op.rebuild(operands)
        env.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)

    for op in block.ops:
        add(op)
    return Block(block.args, ops, [lookup(v) for v in block.outputs])


def _recomputed(
    forward: Func, residuals: Sequence[Value], saved: Sequence[Value]
) -> tuple[list[Op], set[Value]]:
    """The ops that have to run again, in order, and the known values that these and the residuals
    need.
    """
    known = {*forward.args, *saved}
    wanted = {*residuals}
    ops: list[Op] = []
    for op in reversed(forward.ops):
        if any(v in wanted and v not in known for v in op.results):
            ops.append(op)
            wanted.update(op.operands)
    return ops[::-1], {v for v in wanted if v in known}


def name_value(x: Any, label: str) -> Any:
    """`x`, named for policies."""
    return bind(Name, x, label=label)
