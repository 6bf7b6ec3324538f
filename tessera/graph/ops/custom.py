"""Calls whose derivative or batching the user has written: `custom_jvp`, `custom_vjp`,
`custom_batching`.

Such a call is a `Call` with `Rules`. The body is what it computes; the rules are Python functions,
which run when the call is differentiated or batched, and not before: a rule may call the function
that it belongs to. They belong to the process, so the text form has only their word, and an op that
was read from text has the derivatives of its body.

A function with a rule for reverse mode has a derivative that is known by its transpose alone. It is
the op `CustomLinear`, which can be transposed and has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tessera.errors import GradError, NotDifferentiableError
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.control import Call, Control
from tessera.graph.ops.rearrange import broadcast, move_axis
from tessera.graph.ops.reduce import sum_
from tessera.graph.trace import as_tuple, bind, known_value
from tessera.graph.transforms.differentiate import zeros_of
from tessera.graph.transforms.evaluate import evaluate, trace_function
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir.core import Func, Value
from tessera.ir.intexpr import Dim
from tessera.ir.loc import current
from tessera.ir.opdef import attr, operands
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType
from tessera.ir.walk import uses

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

Tangents: TypeAlias = "Sequence[Any]"
"""One entry per operand or output; None where it is zero."""


@dataclass(eq=False)
class Rules:
    """What derivatives and batching a call has; these are the ones of its body."""

    word: str = "body"

    def __str__(self) -> str:
        return self.word

    @classmethod
    def parse(cls, parser: Parser) -> Rules:
        """The rules that text has: their word."""
        return Rules(parser.word())

    def differentiate(
        self, call: CustomCall, primals: Sequence[Any], tangents: Tangents, outs: Any
    ) -> tuple[Sequence[Any], Tangents]:
        """Outputs and their tangents."""
        return Call.differentiate(call, primals, tangents, outs)

    def batch(
        self, call: CustomCall, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Outputs over a batch, and their batch axes."""
        return Call.batch(call, operands, axes, size)


class CustomCall(Call):
    """A call with rules of the user. Lowering inlines it, as any call.

    %r = graph.custom_call([%x]) {label="f", rules=jvp} : f32[] body(%a: f32[4]) { ... }
    """

    name = "graph.custom_call"
    rules: Rules = attr(Rules())

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """What the rules say."""
        return self.rules.differentiate(self, primals, tangents, outs)

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """What the rules say."""
        return self.rules.batch(self, operands, axes, size)


class CustomLinear(Control):
    """A linear function of `tangents`, known by its transpose `pull` alone.

    `pull.fn(residuals, cts)` gives a cotangent for each tangent.
    """

    name = "graph.custom_linear"
    residuals: tuple[Value, ...] = operands()
    tangents: tuple[Value, ...] = operands()
    label: str = attr()
    types: tuple[TensorType, ...] = attr()
    pull: Pull = attr()

    def infer(self) -> tuple[TensorType, ...]:
        """The types of the tangents of the outputs."""
        return self.types

    def evaluate(self, *operands: Any) -> Any:
        """There is no value."""
        raise self.no_value()

    def no_value(self) -> NotDifferentiableError:
        """The error for whoever needs the value."""
        return NotDifferentiableError(
            f"{self.label} has a rule for reverse mode only (defvjp), and is differentiated in "
            f"forward mode",
            loc=self.loc,
            rule="what custom_vjp defines is a transpose, for `ts.grad`, `ts.vjp` and `ts.jacrev`",
            fix="define the function with `ts.custom_jvp`, which gives both modes",
        )

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Runs the user's backward function."""
        count = len(self.residuals)
        return [*[None] * count, *self.pull.fn(operands[:count], cts)]

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """Along the tangents it is linear; along residuals nothing is known."""
        count = len(self.residuals)
        if any(t is not None for t in tangents[:count]):
            raise self.no_value()
        given = [
            zeros_of(p.type) if t is None else t
            for p, t in zip(primals[count:], tangents[count:], strict=True)
        ]
        return as_tuple(self.bind(tuple(primals[:count]), tuple(given)))

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Its value over a batch is asked for."""
        raise self.no_value()


PullFn: TypeAlias = "Callable[[Sequence[Any], Tangents], Tangents]"


@dataclass(eq=False)
class Pull:
    """A backward function, as an attribute."""

    fn: PullFn

    def __str__(self) -> str:
        return "pull"

    @classmethod
    def parse(cls, parser: Parser) -> Pull:
        """Text has no functions: this one knows no cotangents."""
        parser.word()
        return Pull(_no_cotangents)


def _no_cotangents(residuals: Sequence[Any], cts: Tangents) -> Tangents:
    raise GradError(
        "the backward function of this op is not known",
        loc=current(),
        rule="programs that are read from text have none of the functions of Python",
    )


# --- forward mode -----------------------------------------------------------------------------

JvpFn: TypeAlias = "Callable[[Sequence[Any], Tangents], tuple[Sequence[Any], Tangents]]"
"""From operands and their tangents to outputs and theirs."""


@dataclass(eq=False)
class JvpRules(Rules):
    """The derivative of the user's `jvp`."""

    fn: JvpFn = field(kw_only=True)
    word: str = "jvp"

    def differentiate(
        self, call: CustomCall, primals: Sequence[Any], tangents: Tangents, outs: Any
    ) -> tuple[Sequence[Any], Tangents]:
        """What the function gives."""
        found, touts = self.fn(primals, tangents)
        return found if outs is None else outs, touts

    def batch(
        self, call: CustomCall, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """The batched body, whose derivative is the batched derivative."""
        types = example_types(call)

        def batched(primals: Sequence[Any], tangents: Tangents) -> tuple[list[Any], list[Any]]:
            nonzero = [t is not None for t in tangents]
            flags: list[bool] = []

            def run(*args: Any) -> list[Any]:
                given = iter(args[len(types) :])
                full = [next(given) if n else None for n in nonzero]
                outs, touts = self.fn(args[: len(types)], full)
                flags[:] = [t is not None for t in touts]
                return [*outs, *[t for t in touts if t is not None]]

            wanted = [t for t, n in zip(types, nonzero, strict=True) if n]
            found = _mapped(
                run,
                (*primals, *[t for t in tangents if t is not None]),
                (*types, *wanted),
                (*axes, *[a for a, n in zip(axes, nonzero, strict=True) if n]),
                size,
                call.label,
            )
            fronts = [_to_front(x, a, size) for x, a in found]
            touts = iter(fronts[len(flags) :])
            return fronts[: len(flags)], [next(touts) if f else None for f in flags]

        def rules(skip: int) -> Rules:
            return JvpRules(fn=_skip(batched, skip))

        return bind_batched(call, operands, axes, size, rules)


def _skip(fn: JvpFn, count: int) -> JvpFn:
    """The function of all operands but the first ones."""
    if not count:
        return fn
    return lambda primals, tangents: fn(primals[count:], tangents[count:])


# --- reverse mode -----------------------------------------------------------------------------

FwdFn: TypeAlias = "Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any], PullFn]]"
"""From operands to outputs, residuals, and the function that pulls cotangents back."""


@dataclass(eq=False)
class VjpRules(Rules):
    """The derivative of the user's `fwd` and `bwd`."""

    fwd: FwdFn = field(kw_only=True)
    word: str = "vjp"

    def differentiate(
        self, call: CustomCall, primals: Sequence[Any], tangents: Tangents, outs: Any
    ) -> tuple[Sequence[Any], Tangents]:
        """The outputs of `fwd`, and an op that only transposes."""
        found, residuals, pull = self.fwd(primals)
        types = tuple([x.type.strong() for x in found if is_inexact(x.dtype)])
        if any(known_value(x) is None for x in residuals):
            residuals, pull = _without_unused(residuals, pull, types, call.label)
        wrt = [t is not None for t in tangents]

        def pull_given(residuals: Sequence[Any], cts: Tangents) -> Tangents:
            filled = [zeros_of(t) if ct is None else ct for ct, t in zip(cts, types, strict=True)]
            return [ct for ct, w in zip(pull(residuals, filled), wrt, strict=True) if w]

        given = tuple([t for t in tangents if t is not None])
        touts: list[Any] = [None] * len(found)
        if types:
            results = as_tuple(
                bind(
                    CustomLinear,
                    tuple(residuals),
                    given,
                    label=call.label,
                    types=types,
                    pull=Pull(pull_given),
                )
            )
            rest = iter(results)
            touts = [next(rest) if is_inexact(x.dtype) else None for x in found]
        # These may be differentiated again, in forward mode too; what the call gave may not.
        return found, touts

    def batch(
        self, call: CustomCall, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """The batched body, with both functions batched."""
        types = example_types(call)

        def batched(primals: Sequence[Any]) -> tuple[list[Any], list[Any], PullFn]:
            pulls: list[PullFn] = []
            count = 0

            def run(*args: Any) -> list[Any]:
                nonlocal count
                outs, residuals, pull = self.fwd(args)
                pulls[:] = [pull]
                count = len(outs)
                return [*outs, *residuals]

            found = _mapped(run, primals, types, axes, size, call.label)
            residuals = found[count:]
            pull = _batched_pull(pulls[0], [a for _, a in residuals], axes, size, call.label)
            outs = [_to_front(x, a, size) for x, a in found[:count]]
            return outs, [x for x, _ in residuals], pull

        def rules(skip: int) -> Rules:
            def fwd(primals: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], PullFn]:
                outs, residuals, pull = batched(primals[skip:])
                return outs, residuals, lambda r, cts: [*[None] * skip, *pull(r, cts)]

            return VjpRules(fwd=fwd)

        return bind_batched(call, operands, axes, size, rules)


def _batched_pull(
    pull: PullFn,
    residual_axes: Sequence[int | None],
    axes: Sequence[int | None],
    size: Dim,
    label: str,
) -> PullFn:
    """A backward function over a batch. An operand that all examples share gets the sum of their
    cotangents.

    Args:
        pull: the backward function of an example.
        residual_axes: batch axes of its residuals.
        axes: batch axes of the operands.
        size: how many examples there are.
        label: the name of the function.
    """

    def batched(residuals: Sequence[Any], cts: Tangents) -> Tangents:
        count = len(residuals)
        flags: list[bool] = []

        def run(*args: Any) -> list[Any]:
            found = pull(args[:count], args[count:])
            flags[:] = [ct is not None for ct in found]
            return [ct for ct in found if ct is not None]

        all_axes = [*residual_axes, *[0] * len(cts)]
        given = [*residuals, *cts]
        types = [_example_type(x.type, a) for x, a in zip(given, all_axes, strict=True)]
        found = iter(_mapped(run, given, types, all_axes, size, label))
        result: list[Any] = []
        for flag, axis in zip(flags, axes, strict=True):
            if not flag:
                result.append(None)
                continue
            ct, at = next(found)
            if axis is not None:
                result.append(move_axis(_to_front(ct, at, size), 0, axis))
            else:
                result.append(sum_(_to_front(ct, at, size), (0,)))
        return result

    return batched


def _without_unused(
    residuals: Sequence[Any], pull: PullFn, types: Sequence[TensorType], label: str
) -> tuple[list[Any], PullFn]:
    """The residuals that the backward function reads, and the function of these."""
    count = len(residuals)
    flags: list[bool] = []

    def run(*args: Any) -> list[Any]:
        found = pull(args[:count], args[count:])
        flags[:] = [ct is not None for ct in found]
        return [ct for ct in found if ct is not None]

    wanted = [x.type.strong() for x in residuals]
    graph, captured = trace_function(run, [*wanted, *types], "custom_vjp", label)
    graph = graph.with_body(eliminate_dead(graph.body))
    used = uses(graph.body)
    known = [*captured, *residuals]
    kept = [k for k in range(len(known)) if graph.args[k] in used]

    def pull_kept(residuals: Sequence[Any], cts: Tangents) -> Tangents:
        # What is not used needs a place among the arguments, and no value.
        args: list[Any] = [None] * len(known)
        for k, x in zip(kept, residuals, strict=True):
            args[k] = x
        found = iter(evaluate(graph, [*args, *cts]))
        return [next(found) if flag else None for flag in flags]

    return [known[k] for k in kept], pull_kept


# --- batching ---------------------------------------------------------------------------------

BatchFn: TypeAlias = (
    "Callable[[Dim, Sequence[bool], Sequence[Any]], tuple[Sequence[Any], Sequence[bool]]]"
)
"""From the size of a batch, which operands have it as their first axis, and the operands, to
outputs and which of these have it.
"""


@dataclass(eq=False)
class BatchRules(Rules):
    """The batching of the user's function; derivatives are those of the body."""

    fn: BatchFn = field(kw_only=True)
    word: str = "batch"

    def batch(
        self, call: CustomCall, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """What the function gives."""
        fronts = [
            x if a is None else move_axis(x, a, 0) for x, a in zip(operands, axes, strict=True)
        ]
        outs, flags = self.fn(size, [a is not None for a in axes], fronts)
        return outs, [0 if flag else None for flag in flags]


def bind_batched(
    call: CustomCall,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    size: Dim,
    rules: Callable[[int], Rules],
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """A call of the batched body, whose results all have the batch in front.

    Args:
        call: the call of an example.
        operands: the operands over the batch.
        axes: their batch axes.
        size: how many examples there are.
        rules: gives the rules, told how many values precede the operands.
    """
    func = Func(call.label, call.body)

    def run(*args: Any) -> list[Any]:
        outs, found = vmap_values(func, args, axes, size)
        return [_to_front(x, a, size) for x, a in zip(outs, found, strict=True)]

    graph, captured = trace_function(run, [x.type for x in operands], "vmap", call.label)
    outs = as_tuple(
        bind(
            CustomCall,
            (*captured, *operands),
            label=call.label,
            body=graph.body,
            rules=rules(len(captured)),
        )
    )
    return outs, [0] * len(outs)


def example_types(call: CustomCall) -> list[TensorType]:
    """The types of a call's operands."""
    types: list[TensorType] = []
    for value in call.args:
        assert isinstance(value.type, TensorType)
        types.append(value.type.strong())
    return types


def _example_type(type: TensorType, axis: int | None) -> TensorType:
    shape = type.shape if axis is None else (*type.shape[:axis], *type.shape[axis + 1 :])
    return type.with_shape(shape).strong()


def _mapped(
    run: Callable[..., Sequence[Any]],
    args: Sequence[Any],
    types: Sequence[TensorType],
    axes: Sequence[int | None],
    size: Dim,
    label: str,
) -> list[tuple[Any, int | None]]:
    """The results of a function of examples over a batch, and their batch axes."""
    graph, captured = trace_function(run, types, "vmap", label)
    all_axes = [*[None] * len(captured), *axes]
    return list(zip(*vmap_values(graph, [*captured, *args], all_axes, size), strict=True))


def _to_front(x: Any, axis: int | None, size: Dim) -> Any:
    if axis is None:
        return broadcast(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))
    return move_axis(x, axis, 0)
