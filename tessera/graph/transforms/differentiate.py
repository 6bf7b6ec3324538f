"""Forward and reverse differentiation.

`jvp` pushes tangents through the ops' `jvp` rules. `linearize` does the same with the tangents as
inputs of a new trace: what the rules compute from primal values alone happens outside, and what
depends on a tangent is recorded, so the recorded Graph is linear in its inputs and its captured
values are the residuals. `transpose` runs that Graph backwards. Reverse mode is `linearize`, then
`transpose` (Frostig et al., "Decomposing reverse-mode automatic differentiation", 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.graph.device import using
from tessera.graph.ops.base import GraphOp, Linear, add_tangents, is_inexact
from tessera.graph.ops.rearrange import full
from tessera.graph.placement import device_of
from tessera.graph.trace import Trace, Tracer, active
from tessera.graph.transforms.evaluate import argument_types, bind_op, evaluate, trace_function
from tessera.graph.transforms.shifts import shifts
from tessera.graph.transforms.silence import silenced
from tessera.ir.core import Func, Op, Value
from tessera.ir.effects import is_repeatable
from tessera.ir.loc import ORIGIN
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType


def zeros_of(type: TensorType) -> Any:
    """Zeros of a type."""
    return full(type.shape, 0, type.dtype)


def jvp_values(
    func: Func,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    known: Mapping[Value, Any] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Outputs and output tangents of a Graph.

    Args:
        func: the Graph.
        primals: arguments, arrays or tracers.
        tangents: one per argument; None is zero.
        known: values of the Graph that are computed already (by a concrete trace).

    Returns:
        The outputs and their tangents, None where zero.
    """
    env: dict[Value, Any] = dict(zip(func.args, primals, strict=True))
    tangent_of: dict[Value, Any] = {
        v: t for v, t in zip(func.args, tangents, strict=True) if t is not None
    }
    # A loop that stores what its derivative needs is another one than that which gave the known
    # values. In a program that is being made, all that follows is taken from it, and the first loop
    # is not needed.
    again: set[Value] = set()
    # What nobody uses need not have a derivative: the value of a function whose gradient alone is
    # asked for, where a rule of the user knows reverse mode only.
    # That is so as well for what is there for what it does alone, such as to tell the host.
    code = eliminate_dead(func.body).ops
    wanted = set(func.outputs)
    for op in reversed(code):
        if not wanted.isdisjoint(op.results):
            wanted.update(op.operands)
    ignored = shifts(code, func.outputs, env)
    for op in code:
        assert isinstance(op, GraphOp)
        operands = [env[v] for v in op.operands]
        ts = [tangent_of.get(v) for v in op.operands]
        is_wanted = not wanted.isdisjoint(op.results) and ignored.isdisjoint(op.results)
        outer = ORIGIN.loc
        ORIGIN.loc = op.loc or outer
        try:
            stale = any(v in again for v in op.operands) and is_repeatable(op.get_effects())
            outs = [known[v] for v in op.results] if known is not None and not stale else None
            if is_wanted and op.differentiable and any(t is not None for t in ts):
                # What has run already must not tell the host of it again.
                rule = op if known is None else silenced(op)
                outs, touts = rule.differentiate(operands, ts, outs)
            else:
                outs = outs if outs is not None else bind_op(op, operands)
                touts = [None] * len(outs)
        finally:
            ORIGIN.loc = outer
        if known is not None:
            again.update(v for v, x in zip(op.results, outs, strict=True) if _is_new(x, known[v]))
        env.update(zip(op.results, outs, strict=True))
        for value, t in zip(op.results, touts, strict=True):
            assert isinstance(value.type, TensorType)
            if t is not None and is_inexact(value.type.dtype):
                tangent_of[value] = t
    return [env[v] for v in func.outputs], [tangent_of.get(v) for v in func.outputs]


def _is_new(x: Any, known: Any) -> bool:
    """Whether a value of a program that is being made is not the one that was known."""
    return x is not known and isinstance(x, Tracer) and x.concrete is None


@dataclass(frozen=True)
class Linearized:
    """The result of linearizing at a point.

    Attributes:
        outputs: primal outputs.
        func: the linear Graph: arguments are the residuals, then one tangent per differentiated
            input; outputs are the tangents of those primal outputs that depend on the inputs.
        residuals: values for the residual arguments.
        nonzero: for each primal output, whether it has a tangent.
    """

    outputs: list[Any]
    func: Func
    residuals: list[Any]
    nonzero: list[bool]

    def at(self, residuals: Sequence[Any]) -> Linearized:
        """The same with other values for the residual arguments."""
        return Linearized(self.outputs, self.func, list(residuals), self.nonzero)

    def apply(self, tangents: Sequence[Any]) -> list[Any]:
        """Output tangents (zeros materialised) for input tangents."""
        found = iter(evaluate(self.func, [*self.residuals, *tangents]))
        result: list[Any] = []
        for o, n in zip(self.outputs, self.nonzero, strict=True):
            with using(device_of(o)):
                result.append(next(found) if n else zeros_of(o.type))
        return result

    def pull_back(self, cts: Sequence[Any]) -> list[Any]:
        """Input cotangents (None where zero) for output cotangents (None where zero)."""
        wanted = [ct for ct, n in zip(cts, self.nonzero, strict=True) if n]
        return transpose_values(self.func, self.residuals, wanted)


def linearize_values(
    func: Func,
    primals: Sequence[Any],
    wrt: Sequence[bool],
    known: Mapping[Value, Any] | None = None,
) -> Linearized:
    """Linearizes a Graph at `primals` with respect to the arguments marked in `wrt`."""
    with active(Trace("linearize", func.name, is_inner=True)) as trace:
        tangents = [
            trace.input(p.type.strong()) if w else None for p, w in zip(primals, wrt, strict=True)
        ]
        outs, touts = jvp_values(func, primals, tangents, known)
        nonzero = [t is not None for t in touts]
        linear, residuals = trace.finish([t for t in touts if t is not None], func.name)
    return Linearized(outs, linear.with_body(eliminate_dead(linear.body)), residuals, nonzero)


def transpose_values(func: Func, knowns: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Runs a linear Graph backwards.

    Args:
        func: a Graph whose first `len(knowns)` arguments are known, and which is linear in the
            others.
        knowns: values of the known arguments.
        cts: one cotangent per output; None is zero.

    Returns:
        One cotangent per linear argument; None is zero.
    """
    env: dict[Value, Any] = dict(zip(func.args, knowns, strict=False))
    unknown: set[Value] = set(func.args[len(knowns) :])
    pending: list[Op] = []
    for op in func.ops:
        if any(v in unknown for v in op.operands):
            unknown.update(op.results)
            pending.append(op)
        else:
            outer = ORIGIN.loc
            ORIGIN.loc = op.loc or outer
            try:
                env.update(zip(op.results, bind_op(op, [env[v] for v in op.operands]), strict=True))
            finally:
                ORIGIN.loc = outer
    cotangent: dict[Value, Any] = {}
    for value, ct in zip(func.outputs, cts, strict=True):
        if value in unknown:
            cotangent[value] = add_tangents(cotangent.get(value), ct)
    for op in reversed(pending):
        assert isinstance(op, GraphOp)
        outs = [cotangent.pop(v, None) for v in op.results]
        # What has no results is there for what it does, and cannot be left out in silence.
        if outs and all(ct is None for ct in outs):
            continue
        operands: list[Any] = []
        for v in op.operands:
            assert isinstance(v.type, TensorType)
            operands.append(Linear(v.type) if v in unknown else env[v])
        outer = ORIGIN.loc
        ORIGIN.loc = op.loc.backward() or outer
        try:
            found = op.transpose(outs, operands)
            for v, ct in zip(op.operands, found, strict=True):
                if ct is not None and v in unknown:
                    cotangent[v] = add_tangents(cotangent.get(v), ct)
        finally:
            ORIGIN.loc = outer
    return [cotangent.get(v) for v in func.args[len(knowns) :]]


# --- Graph to Graph ---


def jvp(func: Func, nonzero: Sequence[bool]) -> tuple[Func, list[bool], list[Any]]:
    """The Graph that computes outputs and tangents.

    Args:
        func: a Graph.
        nonzero: which arguments have a tangent.

    Returns:
        The Graph (arguments: captured, primals, the tangents asked for; outputs: primals, nonzero
        tangents), which outputs have a tangent, and the captured values.
    """
    types = argument_types(func)
    count = len(types)
    flags: list[bool] = []

    def run(*args: Any) -> list[Any]:
        given = iter(args[count:])
        tangents = [next(given) if n else None for n in nonzero]
        outs, touts = jvp_values(func, args[:count], tangents)
        flags[:] = [t is not None for t in touts]
        return [*outs, *[t for t in touts if t is not None]]

    graph, captured = trace_function(
        run,
        types + [t.strong() for t, n in zip(types, nonzero, strict=True) if n],
        "jvp",
        func.name,
    )
    return graph, flags, captured


def linearize(func: Func, wrt: Sequence[bool]) -> tuple[Func, Func, list[Any], list[bool], int]:
    """Splits a Graph into one that computes outputs and residuals, and a linear one.

    Returns:
        forward: captured and primals -> outputs, then residuals.
        linear: residuals and tangents -> nonzero output tangents.
        captured: values for `forward`'s leading arguments.
        nonzero: which outputs have a tangent.
        count: the number of residuals.
    """
    found: list[Linearized] = []

    def run(*args: Any) -> list[Any]:
        result = linearize_values(func, args, wrt)
        found[:] = [result]
        return [*result.outputs, *result.residuals]

    forward, captured = trace_function(run, argument_types(func), "linearize", func.name)
    (result,) = found
    return forward, result.func, captured, result.nonzero, len(result.residuals)


def transpose(
    func: Func, count: int, ct_nonzero: Sequence[bool]
) -> tuple[Func, list[bool], list[Any]]:
    """The Graph that runs a linear Graph backwards.

    Args:
        func: a Graph whose first `count` arguments are known and which is linear in the others.
        count: how many arguments are known.
        ct_nonzero: which outputs have a cotangent.

    Returns:
        The Graph (arguments: captured, knowns, cotangents asked for; outputs: nonzero cotangents),
        which linear arguments have a cotangent, and the captured values.
    """
    types = argument_types(func)
    out_types: list[TensorType] = []
    for value, wanted in zip(func.outputs, ct_nonzero, strict=True):
        assert isinstance(value.type, TensorType)
        if wanted:
            out_types.append(value.type.strong())
    flags: list[bool] = []

    def run(*args: Any) -> list[Any]:
        given = iter(args[count:])
        cts = [next(given) if n else None for n in ct_nonzero]
        result = transpose_values(func, args[:count], cts)
        flags[:] = [ct is not None for ct in result]
        return [ct for ct in result if ct is not None]

    graph, captured = trace_function(run, types[:count] + out_types, "transpose", func.name)
    return graph, flags, captured
