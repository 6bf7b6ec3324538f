"""Ops with regions: calls, conditionals, loops. Their regions are closed; all they use is an
operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import bool_, int64
from tessera.errors import NotDifferentiableError, ShapeError, VerifyError
from tessera.graph.ops.base import Family, GraphOp, Linear, is_inexact
from tessera.graph.ops.elementwise import select
from tessera.graph.ops.rearrange import broadcast, move_axis
from tessera.graph.ops.reduce import any_
from tessera.graph.ops.refs import batched_write
from tessera.graph.trace import as_tuple, bind, find_trace
from tessera.graph.transforms.differentiate import jvp, linearize, transpose, zeros_of
from tessera.graph.transforms.evaluate import bind_op
from tessera.graph.transforms.residuals import smaller
from tessera.graph.transforms.silence import silenced_block
from tessera.graph.transforms.vectorize import vmap
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import EffectKind, is_removable
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands, region
from tessera.ir.types import TensorType


def types_of(values: Sequence[Value]) -> tuple[TensorType, ...]:
    """The tensor types of values, none of them weak."""
    result: list[TensorType] = []
    for value in values:
        assert isinstance(value.type, TensorType)
        result.append(value.type.strong())
    return tuple(result)


def batch_to_front(x: Any, axis: int | None, size: Dim) -> Any:
    """An operand with its batch axis in front; one without is repeated."""
    if axis is None:
        return broadcast(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))
    return move_axis(x, axis, 0)


class Control(GraphOp):
    """Base of ops with regions."""

    family = Family.CONTROL
    isolated = True


def one_by_one(
    op: Op, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """The batch rule of an op with effects that not all examples have: a loop over these.

    Args:
        op: the op on one example.
        operands: arrays.
        axes: the batch axis of each, None where all examples have the same.
        size: how many examples there are.
    """
    for effect in op.get_effects():
        if effect.kind is EffectKind.WRITE:
            raise batched_write(effect.target, op.loc)
    args = [Value(t) for t in types_of(op.operands)]
    inner = op.rebuild(args)
    consts = [k for k, axis in enumerate(axes) if axis is None]
    rows = {k: axis for k, axis in enumerate(axes) if axis is not None}
    lead = [Value(TensorType((), int64)), *[args[k] for k in (*consts, *rows)]]
    outs = bind(
        Op.registry["graph.scan"],
        tuple([operands[k] for k in consts]),
        (),
        tuple([move_axis(operands[k], axis, 0) for k, axis in rows.items()]),
        length=size,
        body=Block(lead, [inner], inner.results),
    )
    found = as_tuple(outs)
    return found, [0] * len(found)


class Call(Control):
    """Applies a Graph: a jitted function called inside another trace. Lowering inlines it.

    %r = graph.call([%x]) {label="f"} : f32[] body(%a: f32[4]) { ... }
    """

    name = "graph.call"
    args: tuple[Value, ...] = operands()
    label: str = attr("")
    body: Block = region()

    def infer(self) -> tuple[TensorType, ...]:
        """The types that the body yields."""
        return types_of(self.body.outputs)

    def verify(self) -> None:
        """Operands match the body's arguments."""
        found = [t.strong() for t in types_of(self.args)]
        if found != list(types_of(self.body.args)):
            raise VerifyError("operands must match the body's arguments")

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Runs the body."""
        from tessera.graph.interp import run_block

        return tuple(run_block(self.body, operands))

    def applied(self, operands: Sequence[Any], body: Block) -> tuple[Any, ...]:
        """The results of a call of another body, made of this one."""
        return as_tuple(bind(Call, tuple(operands), label=self.label, body=body))

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Calls the forward part, then the linear part of the body."""
        func = Func(self.label, self.body)
        forward, linear, captured, nonzero, count = linearize(
            func, [t is not None for t in tangents]
        )
        forward, linear, residuals = smaller(forward, linear, count)
        inputs = (*captured, *primals)
        results = self.applied(inputs, forward.body)
        split = len(nonzero)
        given = [t for t in tangents if t is not None]
        if not any(nonzero):
            return results[:split], [None] * split
        kept = iter(results[split:])
        needed = [inputs[x] if isinstance(x, int) else next(kept) for x in residuals]
        touts = iter(self.applied((*needed, *given), linear.body))
        return results[:split], [next(touts) if n else None for n in nonzero]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Calls the transposed body."""
        linear = [isinstance(x, Linear) for x in operands]
        order = [k for k, f in enumerate(linear) if not f] + [k for k, f in enumerate(linear) if f]
        body = Block([self.body.args[k] for k in order], self.body.ops, self.body.outputs)
        knowns = [x for x in operands if not isinstance(x, Linear)]
        backward, flags, captured = transpose(
            Func(self.label, body), len(knowns), [ct is not None for ct in cts]
        )
        given = [ct for ct in cts if ct is not None]
        results: list[Any] = [None] * len(operands)
        # What a rule of the user does happens also where it gives no cotangents.
        if any(flags) or not is_removable(backward.body.get_effects()):
            found = iter(self.applied((*captured, *knowns, *given), backward.body))
            for k, flag in zip(order[len(knowns) :], flags, strict=True):
                results[k] = next(found) if flag else None
        return results

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Calls the batched body."""
        graph, out_axes, captured = vmap(Func(self.label, self.body), axes, size)
        return self.applied((*captured, *operands), graph.body), out_axes


class Cond(Control):
    """`then(*args)` if `pred` (bool scalar) holds, else `otherwise(*args)`; only one of them runs.
    """

    name = "graph.cond"
    pred: Value = operand()
    args: tuple[Value, ...] = operands()
    then: Block = region()
    otherwise: Block = region()

    def infer(self) -> tuple[TensorType, ...]:
        """What both regions yield."""
        return types_of(self.then.outputs)

    def verify(self) -> None:
        """The predicate is a bool scalar, both regions fit."""
        assert isinstance(self.pred.type, TensorType)
        if self.pred.type.shape or self.pred.type.dtype is not bool_:
            raise VerifyError(f"the predicate is {self.pred.type}, not bool[]")
        if types_of(self.then.outputs) != types_of(self.otherwise.outputs):
            raise VerifyError("both regions must yield the same types")

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Runs one region."""
        from tessera.graph.interp import run_block

        pred, *args = operands
        return tuple(run_block(self.then if bool(pred) else self.otherwise, args))

    def _bind_branches(
        self, pred: Any, args: Sequence[Any], graphs: Sequence[tuple[Func, list[Any]]]
    ) -> tuple[Any, ...]:
        """Binds a conditional over two Graphs whose leading arguments are captured values of their
        own.
        """
        (then, then_captured), (otherwise, otherwise_captured) = graphs
        blocks: list[Block] = []
        for k, func in enumerate((then, otherwise)):
            lead = (
                [Value(x.type) for x in then_captured],
                [Value(x.type) for x in otherwise_captured],
            )
            own = func.args[: len(lead[k])]
            both = (own, lead[1]) if k == 0 else (lead[0], own)
            blocks.append(
                Block([*both[0], *both[1], *func.args[len(own) :]], func.ops, func.outputs)
            )
        return as_tuple(
            bind(
                Cond,
                pred,
                (*then_captured, *otherwise_captured, *args),
                then=blocks[0],
                otherwise=blocks[1],
            )
        )

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Forward and linear conditionals; each branch pads the other's residuals with zeros."""
        pred, *args = primals
        wrt = [t is not None for t in tangents[1:]]
        parts = [linearize(Func("branch", b), wrt) for b in (self.then, self.otherwise)]
        residual_types = [types_of(linear.args[:count]) for _, linear, _, _, count in parts]
        nonzero = [any(flags) for flags in zip(parts[0][3], parts[1][3], strict=True)]
        count = len(self.then.outputs)
        forwards: list[tuple[Func, list[Any]]] = []
        linears: list[tuple[Func, list[Any]]] = []
        out_types = types_of(self.then.outputs)
        for k, (forward, linear, captured, flags, _) in enumerate(parts):
            forwards.append((_pad_outputs(forward, count, residual_types, k), captured))
            linears.append(
                (_align_linear(linear, residual_types, k, flags, nonzero, out_types), [])
            )
        results = self._bind_branches(pred, args, forwards)
        given = [t for t in tangents[1:] if t is not None]
        if not any(nonzero):
            return results[:count], [None] * count
        touts = iter(self._bind_branches(pred, [*results[count:], *given], linears))
        return results[:count], [next(touts) if n else None for n in nonzero]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """A conditional of the transposed branches; a missing cotangent is zeros."""
        pred, *args = operands
        linear = [isinstance(x, Linear) for x in args]
        order = [k for k, f in enumerate(linear) if not f] + [k for k, f in enumerate(linear) if f]
        knowns = [x for x in args if not isinstance(x, Linear)]
        types = [x.type for x in args if isinstance(x, Linear)]
        wanted = [ct is not None for ct in cts]
        graphs: list[tuple[Func, list[Any]]] = []
        for block in (self.then, self.otherwise):
            body = Block([block.args[k] for k in order], block.ops, block.outputs)
            backward, flags, captured = transpose(Func("branch", body), len(knowns), wanted)
            graphs.append((_fill_outputs(backward, flags, types), captured))
        found = self._bind_branches(pred, [*knowns, *[ct for ct in cts if ct is not None]], graphs)
        results: list[Any] = [None] * len(operands)
        for k, value in zip(order[len(knowns) :], found, strict=True):
            results[k + 1] = value
        return results

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Unbatched predicate: a conditional of batched branches, whose results are batched where
        one of the branches has it so. Batched: both branches and a select; or one example after the
        other, if a branch does what cannot be undone.
        """
        if axes[0] is not None and not is_removable(self.get_effects()):
            return one_by_one(self, operands, axes, size)
        pred, *args = operands
        found = [vmap(Func("branch", b), axes[1:], size) for b in (self.then, self.otherwise)]
        (_, first, _), (_, second, _) = found
        is_same = [
            a is None and b is None and axes[0] is None for a, b in zip(first, second, strict=True)
        ]
        graphs = [
            (_front_outputs(graph, out_axes, size, is_same), captured)
            for graph, out_axes, captured in found
        ]
        if axes[0] is None:
            return self._bind_branches(pred, args, graphs), [None if s else 0 for s in is_same]
        both = [
            as_tuple(bind(Call, (*captured, *args), label="branch", body=graph.body))
            for graph, captured in graphs
        ]
        outs = tuple(
            [
                select(broadcast(pred, x.shape, (0,)), x, y)
                for x, y in zip(both[0], both[1], strict=True)
            ]
        )
        return outs, [0] * len(outs)


def extended(func: Func, extra: Any) -> Func:
    """The Graph with outputs recomputed by `extra(outputs) -> outputs`, traced after its body."""
    from tessera.graph.transforms.evaluate import argument_types, evaluate, trace_function

    graph, captured = trace_function(
        lambda *args: extra(evaluate(func, args)), argument_types(func), "jit", func.name
    )
    if captured:
        raise VerifyError("a region captured a value")
    return graph


def _pad_outputs(
    forward: Func, count: int, types: Sequence[tuple[TensorType, ...]], branch: int
) -> Func:
    def extra(outs: list[Any]) -> list[Any]:
        own = outs[count:]
        first = own if branch == 0 else [zeros_of(t) for t in types[0]]
        second = own if branch == 1 else [zeros_of(t) for t in types[1]]
        return [*outs[:count], *first, *second]

    return extended(forward, extra)


def _align_linear(
    linear: Func,
    types: Sequence[tuple[TensorType, ...]],
    branch: int,
    flags: Sequence[bool],
    nonzero: Sequence[bool],
    out_types: Sequence[TensorType],
) -> Func:
    def extra(outs: list[Any]) -> list[Any]:
        found = iter(outs)
        result: list[Any] = []
        for flag, wanted, type in zip(flags, nonzero, out_types, strict=True):
            value = next(found) if flag else None
            if wanted:
                result.append(zeros_of(type) if value is None else value)
        return result

    func = extended(linear, extra)
    own = func.args[: len(types[branch])]
    other = [Value(t) for t in types[1 - branch]]
    lead = [*own, *other] if branch == 0 else [*other, *own]
    return func.with_body(Block([*lead, *func.args[len(own) :]], func.ops, func.outputs))


def _fill_outputs(func: Func, flags: Sequence[bool], types: Sequence[TensorType]) -> Func:
    def extra(outs: list[Any]) -> list[Any]:
        found = iter(outs)
        return [next(found) if flag else zeros_of(t) for flag, t in zip(flags, types, strict=True)]

    return extended(func, extra)


def _front_outputs(
    func: Func, axes: Sequence[int | None], size: Dim, is_same: Sequence[bool]
) -> Func:
    """A batched Graph with the batch axis in front in all results but those that have none."""

    def to_front(outs: list[Any]) -> list[Any]:
        return [
            x if same else batch_to_front(x, a, size)
            for x, a, same in zip(outs, axes, is_same, strict=True)
        ]

    return extended(func, to_front)


class While(Control):
    """`while cond(consts, carry): carry = body(consts, carry)`.

    The regions' arguments are `consts`, then the carried values. The condition yields one bool
    scalar.
    """

    name = "graph.while"
    consts: tuple[Value, ...] = operands()
    init: tuple[Value, ...] = operands()
    cond: Block = region()
    body: Block = region()

    def infer(self) -> tuple[TensorType, ...]:
        """The carried types."""
        carried = types_of(self.init)
        if types_of(self.body.outputs) != carried:
            raise ShapeError(
                f"while_loop: the body returns {', '.join(map(str, types_of(self.body.outputs)))} "
                f"for carried values "
                f"{', '.join(map(str, carried))}",
                rule="the body must return values of the types that it takes",
            )
        return carried

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Runs the loop."""
        from tessera.graph.interp import run_block

        consts, carry = operands[: len(self.consts)], operands[len(self.consts) :]
        while bool(run_block(self.cond, (*consts, *carry))[0]):
            carry = tuple(run_block(self.body, (*consts, *carry)))
        return tuple(carry)

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """One loop that carries values and tangents."""
        split = len(self.consts)
        count = len(self.init)
        body = Func("body", self.body)
        carry_flags = [t is not None for t in tangents[split:]]
        const_flags = [t is not None for t in tangents[:split]]
        while True:
            graph, flags, captured = jvp(body, [*const_flags, *carry_flags])
            grown = [a or b for a, b in zip(carry_flags, flags, strict=True)]
            if grown == carry_flags:
                break
            carry_flags = grown
        types = types_of(self.init)
        for k, t in enumerate(types):
            carry_flags[k] = carry_flags[k] and is_inexact(t.dtype)
        start = [
            (t if t is not None else zeros_of(p.type))
            for f, t, p in zip(carry_flags, tangents[split:], primals[split:], strict=True)
            if f
        ]
        const_tangents = [t for t in tangents[:split] if t is not None]
        graph = _while_tangent_outputs(graph, flags, carry_flags, types, count)
        # jvp's argument order: captured, consts, carry, const tangents, carry tangents; the loop
        # wants the carried last.
        n_captured, n_ct = len(captured), len(const_tangents)
        args = graph.args
        lead = args[: n_captured + split]
        carry = args[n_captured + split : n_captured + split + count]
        ct_args = args[n_captured + split + count : n_captured + split + count + n_ct]
        tangent_args = args[n_captured + split + count + n_ct :]
        given = [t for t in tangents if t is not None]
        # Where the tangents belong to a trace of their own, as in `linearize`, so does this loop;
        # the values must not, and need another, which tells the host what there is to tell.
        together = outs is None and find_trace(primals) is find_trace([*primals, *given])
        new_body = Block([*lead, *ct_args, *carry, *tangent_args], graph.ops, graph.outputs)
        new_body = new_body if together else silenced_block(new_body)
        cond_args = [Value(x.type) for x in captured], [Value(v.type) for v in ct_args]
        cond = self.cond if together else silenced_block(self.cond)
        new_cond = Block(
            [
                *cond_args[0],
                *cond.args[:split],
                *cond_args[1],
                *cond.args[split:],
                *[Value(v.type) for v in tangent_args],
            ],
            cond.ops,
            cond.outputs,
        )
        results = as_tuple(
            bind(
                While,
                (*captured, *primals[:split], *const_tangents),
                (*primals[split:], *start),
                cond=new_cond,
                body=new_body,
            )
        )
        touts = iter(results[count:])
        if outs is None:
            outs = results[:count] if together else bind_op(self, primals)
        return outs, [next(touts) if f else None for f in carry_flags]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Not possible: the number of steps is not known."""
        raise NotDifferentiableError(
            "while_loop cannot be differentiated in reverse mode",
            loc=self.loc,
            rule="reverse mode would have to store an unknown number of steps",
            fix="use forward mode (`ts.jvp`), or a loop with a known number of steps: `ts.scan`, "
            "or `ts.fori_loop` between Python numbers",
        )

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Carried values are batched where they may differ between examples.

        Where the condition does, all of them are, and an example for which it is false keeps its
        values. If the loop does what cannot be undone, there is then one for each example.
        """
        split = len(self.consts)
        cond_func, body_func = Func("cond", self.cond), Func("body", self.body)
        batched = [a is not None for a in axes[split:]]
        while True:
            inner = [*axes[:split], *[0 if b else None for b in batched]]
            cond, (cond_axis,), cond_captured = vmap(cond_func, inner, size)
            body, body_axes, body_captured = vmap(body_func, inner, size)
            grown = [
                b or a is not None or cond_axis is not None
                for b, a in zip(batched, body_axes, strict=True)
            ]
            if grown == batched:
                break
            batched = grown
        init = [
            batch_to_front(x, a, size) if b else x
            for x, a, b in zip(operands[split:], axes[split:], batched, strict=True)
        ]
        if cond_axis is not None and not is_removable(self.get_effects()):
            return one_by_one(self, operands, axes, size)
        n_cond, n_body = len(cond_captured), len(body_captured)
        consts = (*cond_captured, *body_captured, *operands[:split])
        types = [x.type for x in (*consts, *init)]

        from tessera.graph.transforms.evaluate import evaluate, trace_function

        def going(args: Sequence[Any]) -> Any:
            return evaluate(cond, [*args[:n_cond], *args[n_cond + n_body :]])[0]

        def run_cond(*args: Any) -> list[Any]:
            found = going(args)
            return [found if cond_axis is None else any_(found, (0,))]

        def run_body(*args: Any) -> list[Any]:
            new = [
                batch_to_front(x, a, size) if b else x
                for x, a, b in zip(evaluate(body, args[n_cond:]), body_axes, batched, strict=True)
            ]
            if cond_axis is None:
                return new
            goes, old = going(args), args[len(args) - len(new) :]
            return [
                select(broadcast(goes, x.shape, (0,)), x, y) for x, y in zip(new, old, strict=True)
            ]

        new_cond, captured_cond = trace_function(run_cond, types, "jit", "cond")
        new_body, captured_body = trace_function(run_body, types, "jit", "body")
        if captured_cond or captured_body:
            raise VerifyError("a region captured a value")
        outs = as_tuple(bind(While, consts, init, cond=new_cond.body, body=new_body.body))
        return outs, [0 if b else None for b in batched]


def _while_tangent_outputs(
    graph: Func,
    flags: Sequence[bool],
    wanted: Sequence[bool],
    types: Sequence[TensorType],
    count: int,
) -> Func:
    """Makes a jvp'd loop body yield a tangent for every carried value that has one."""

    def extra(outs: list[Any]) -> list[Any]:
        found = iter(outs[count:])
        result = list(outs[:count])
        for flag, keep, type in zip(flags, wanted, types, strict=True):
            value = next(found) if flag else None
            if keep:
                result.append(zeros_of(type) if value is None else value)
        return result

    return extended(graph, extra)
