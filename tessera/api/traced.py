"""Tracing a user's function: from Python objects to a closed Graph and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera import pytree
from tessera.api.leaves import leaf_arrays, name_of
from tessera.errors import api_boundary
from tessera.graph.trace import Trace, active
from tessera.ir.core import Func
from tessera.ir.types import TensorType


class Traced:
    """A user function traced on flat inputs.

    Attributes:
        graph: the closed Graph (captured values first).
        captured: the captured values.
        outputs: how many output leaves.
        treedef: structure of the result.
        trace: the finished trace.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
        types: Sequence[TensorType],
        concrete: Sequence[Any] | None,
        kind: str,
        staging: bool = False,
    ) -> None:
        name = name_of(fn)
        with active(Trace(kind, name, abstract=concrete is None, staging=staging)) as trace:
            values = concrete if concrete is not None else [None] * len(types)
            tracers = [trace.input(t, v) for t, v in zip(types, values, strict=True)]
            args, kwargs = rebuild(tracers)
            result = fn(*args, **kwargs)
            leaves, self.treedef = leaf_arrays(result, f"the result of {name}")
            self.leaves = leaves
            self.graph, self.captured = trace.finish(leaves, identifier(name))
        self.trace = trace
        self.types = [x.type for x in leaves]

    def known_outputs(self) -> list[Any]:
        """The concrete values of the outputs (concrete traces only)."""
        return [self.trace.lower(x) for x in self.leaves]


def identifier(name: str) -> str:
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return text if text and not text[0].isdigit() else f"f_{text}"


def make_graph(fn: Callable[..., Any]) -> Callable[..., Func]:
    """A function that returns the traced Graph of `fn` for given arguments, printable."""

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> Func:
        leaves, treedef = leaf_arrays((args, kwargs), "arguments")
        traced = Traced(
            fn,
            lambda tracers: pytree.unflatten(treedef, tracers),
            [x.type for x in leaves],
            None,
            "jit",
            staging=True,
        )
        return traced.graph

    return run
