"""Tracing a user's function: from Python objects to a closed Graph and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from typing import Any

from tessera import pytree
from tessera.api.leaves import leaf_arrays, name_of, result_name
from tessera.config import config
from tessera.errors import CallError, TesseraError
from tessera.graph.effects import EFFECTS, Occurrence, occurrences, own_effects
from tessera.graph.ops.control import Call
from tessera.graph.precision import current
from tessera.graph.state import Cell, Scope, Touched, store
from tessera.graph.steps import Walk
from tessera.graph.trace import Trace, Tracer, active, as_tuple, bind, note_effects
from tessera.graph.transforms.silence import recorded
from tessera.ir import loc
from tessera.ir.core import Func
from tessera.ir.effects import Effect, text
from tessera.ir.numerics import POLICY
from tessera.ir.types import TensorType

Rebuild = Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
"""From leaves to the positional and keyword arguments of a call."""


class Refs(Enum):
    """What becomes of the refs that a traced function uses."""

    READ = "they are captured, and cannot be written"
    OUTPUTS = "they are captured; the contents of written ones are further outputs of the Graph"
    INPUTS = "their contents are further inputs; those of written ones are further outputs, too"


class Traced:
    """A user function traced on flat inputs.

    Args:
        fn: the function.
        rebuild: makes its arguments of leaves.
        types: types of the leaves.
        concrete: their values, for a transform that computes while it traces; or None.
        kind: the transform's name.
        staging: whether ops without traced operands are recorded too.
        input_name: what messages call a leaf.
        is_function: whether it has a signature of its own: what is suspended around it is not in
            it, and who calls it has its effects.
        refs: what becomes of refs that the function uses.
        walk: follows what is known of the function.

    Attributes:
        walk: the same, if it came to the function's end; else None.
        end: what was made of a function that did the same, for the inputs; then the function has no
            Graph.
        graph: the closed Graph: its inputs are the captured values, the leaves and the contents of
            refs; its outputs are the output leaves and the contents of written refs.
        captured: the captured values.
        touched: the refs that are inputs, or outputs.
        returned: those of them that are in the result, by their positions among all of its leaves.
        whole: the structure of the result with these.
        leaves: the output leaves, as tracers or arrays.
        types: their types.
        treedef: structure of the result.
        trace: the finished trace.
        effects: those of a function with a signature of its own, in the order in which they come
            in.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        rebuild: Rebuild,
        types: Sequence[TensorType],
        concrete: Sequence[Any] | None,
        kind: str,
        staging: bool = False,
        input_name: Callable[[int], str] | None = None,
        is_function: bool = False,
        refs: Refs = Refs.READ,
        walk: Walk | None = None,
    ) -> None:
        name = name_of(fn)
        self.trace = trace = Trace(kind, name, abstract=concrete is None, staging=staging)
        with own_effects() if is_function else nullcontext(), active(trace):
            tracers = _inputs(trace, types, concrete, walk)
            scope = trace.scope = _scope(trace, refs)
            if input_name is not None:
                # Not the scope, which has the trace: no cycle is to keep arrays.
                names = scope.names
                trace.input_name = lambda k: (
                    input_name(k).removeprefix(f"{kind}: ")
                    if k < len(types)
                    else f"in the ref `{names[k - len(types)]}`"
                )
            args, kwargs = rebuild(tracers)
            takes = functools.partial(_parameters, fn)
            result = call_at_its_lines(kind, takes, fn, args, kwargs)
            self.returned: dict[int, Cell] = {}
            if refs is Refs.INPUTS:
                result = self._take_refs(result, scope)
            self.leaves, self.treedef = leaf_arrays(
                result, result_name(kind, fn), "return arrays, numbers, or containers of them"
            )
            self.touched: list[Touched] = scope.finish()
            self.end = self._end(walk)
            self.walk = walk if walk is not None and walk.is_whole else None
            if self.end is not None:
                trace.scope = None
                return
            contents = [x for ref in self.written for x in ref.values]
            self.graph, self.captured = trace.finish([*self.leaves, *contents], _identifier(name))
        trace.scope = None
        self.effects: dict[Effect, Occurrence] = {}
        if is_function:
            graph = self.graph
            self.effects = {**occurrences(graph.body), **trace.noted}
            settings = config.current()
            if settings.debug_nans or settings.debug_infs or settings.sentinels:
                # It may be run once more, to find where a number comes from.
                graph = self.graph = graph.with_body(recorded(graph.body))
            said: dict[str, str] = {}
            if self.effects:
                said[EFFECTS] = text(frozenset(self.effects))
            if (policy := current()) is not None:
                said[POLICY] = str(policy)
            if said:
                self.graph = Func(graph.name, graph.body, graph.dims, {**graph.attrs, **said})
        elif trace.noted:
            note_effects(trace.noted.values())
        # What is said of the arithmetic on arrays ends with the function.
        self.types: list[TensorType] = [x.type.with_policy(None) for x in self.leaves]

    def _end(self, walk: Walk | None) -> Callable[[Sequence[Any]], Any] | None:
        if walk is None:
            return None
        if self.touched or self.trace.noted:
            walk.leave()
        found = walk.end(self.leaves, self.treedef)
        return None if found is None else lambda inputs: found(walk.operands(inputs))

    def _take_refs(self, result: Any, scope: Scope) -> Any:
        """A result without the refs in it that come from outside: they are returned as they are."""
        leaves, self.whole = pytree.flatten(result)
        self.returned = {k: x for k, x in enumerate(leaves) if isinstance(x, Cell) and x.is_outer()}
        if not self.returned:
            return result
        for cell in self.returned.values():
            scope.touch(cell)
        # None is an empty subtree.
        rest = [None if k in self.returned else x for k, x in enumerate(leaves)]
        return pytree.unflatten(self.whole, rest)

    def results(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The results of the Graph for operands, recorded or computed."""
        body = self.graph.body
        return as_tuple(bind(Call, tuple(operands), label=self.graph.name, body=body))

    @property
    def written(self) -> list[Touched]:
        """The refs that the function has written."""
        return [ref for ref in self.touched if ref.place is not None]

    def finish(self, contents: Sequence[Any], but: Collection[Cell] = ()) -> None:
        """Writes the refs that the function has written.

        Args:
            contents: the results that are their contents.
            but: refs that were written again since.
        """
        found = iter(contents)
        for ref in self.written:
            values = [next(found) for _ in ref.values]
            if ref.cell not in but:
                store(ref.cell, values, ref.place)

    def known_outputs(self) -> list[Any]:
        """The concrete values of the outputs (concrete traces only)."""
        return [self.trace.lower(x) for x in self.leaves]


def _inputs(
    trace: Trace, types: Sequence[TensorType], concrete: Sequence[Any] | None, walk: Walk | None
) -> list[Tracer]:
    values = concrete if concrete is not None else [None] * len(types)
    if walk is not None:
        return walk.inputs(trace, values)
    return [trace.input(t, v) for t, v in zip(types, values, strict=True)]


def _scope(trace: Trace, refs: Refs) -> Scope:
    if refs is not Refs.READ:
        return Scope(trace, refs is Refs.INPUTS, None)
    rule = f"`{trace.kind}` takes functions that write no refs: it does not say how often they run"
    return Scope(trace, False, rule, "return the new contents, and write them outside")


def call_at_its_lines(
    what: str,
    takes: Callable[[], str],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backward: bool = False,
) -> Any:
    """What a function of the user's returns. What it does is done at its own lines.

    Args:
        what: what messages call it.
        takes: the rule that messages state about its arguments.
        fn: the function.
        args: its arguments.
        kwargs: those with names.
        backward: whether it runs in the backward pass.

    Raises:
        CallError: it does not take these.
    """
    origin = loc.ORIGIN
    outer = origin.loc, origin.is_backward, origin.promises
    try:
        origin.loc, origin.is_backward, origin.promises = loc.of_user(backward)
        try:
            return fn(*args, **kwargs)
        finally:
            origin.loc, origin.is_backward, origin.promises = outer
    except TypeError as error:
        # The call itself failed if the error comes from no frame below this one.
        inner = error.__traceback__ and error.__traceback__.tb_next
        if isinstance(error, TesseraError) or inner is not None:
            raise
        raise CallError(f"{what}: {error}", loc=loc.current(), rule=takes()) from None


def _parameters(fn: Callable[..., Any]) -> str:
    try:
        return f"its parameters are {inspect.signature(fn)}"
    except (TypeError, ValueError):
        return "its parameters are not known"


def _identifier(name: str) -> str:
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text and not text[0].isdigit() else f"f_{text}"
