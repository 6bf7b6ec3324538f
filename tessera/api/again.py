"""Transforms of functions that did the same before: what was computed is computed again, without
a function to trace (`graph/steps.py`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tessera.api.leaves import code_of
from tessera.api.traced import Traced
from tessera.graph.shortcut import Shortcut
from tessera.graph.steps import Walk, another, begin
from tessera.ir.types import TensorType


def walk_for(
    fn: Callable[..., Any], key: Hashable, inputs: Sequence[Any], types: Sequence[TensorType]
) -> Walk | None:
    """A walk for a function that is transformed, if what it calls may be followed.

    Args:
        fn: the user's function.
        key: all else that the result depends on, but for what the function does.
        inputs: what it is called with.
        types: the types of the inputs while it is traced.
    """
    return begin((code_of(fn), key), inputs, types)


class Again:
    """Computes what a transform computed, for other arrays.

    Args:
        walk: the walk that has come to its end.
        traced: the function as it was traced then.
        compute: the arrays of the result, for what the Graph captures and its inputs.
        result: the user's result of these.
    """

    def __init__(
        self,
        walk: Walk,
        traced: Traced,
        compute: Callable[[list[Any]], Sequence[Any]],
        result: Callable[[Sequence[Any]], Any],
    ) -> None:
        fixed = [
            x if v in walk.fixed else None
            for v, x in zip(traced.graph.args, traced.captured, strict=False)
        ]

        kept = [x for x in fixed if x is not None]

        def run(*arrays: Any) -> tuple[Any, ...]:
            given = iter(arrays)
            values = [next(given) if x is None else x for x in fixed]
            found = compute([*values, *given])
            return tuple([another(y) if any([x is y for x in kept]) else y for y in found])

        # One function of arrays to whoever calls it: native code, or a walk around this one.
        self._run = Shortcut(run)
        # Where some operands are the same array: functions of different ones.
        self._runs: dict[tuple[int, ...], Shortcut] = {}
        self._result = result
        walk.remember(self)

    def __call__(self, operands: Sequence[Any]) -> Any:
        """The result.

        Args:
            operands: what the function captures, but for what is always the same, and its inputs.
        """
        places: dict[int, int] = {}
        which = tuple([places.setdefault(id(x), len(places)) for x in operands])
        if len(places) == len(operands):
            return self._result(self._run(*operands))
        run = self._runs.get(which)
        if run is None:
            run = self._runs[which] = Shortcut(_picking(self._run.function, which))
        different = dict(zip(which, operands, strict=True))
        return self._result(run(*[different[k] for k in range(len(places))]))


def _picking(function: Callable[..., Any], which: tuple[int, ...]) -> Callable[..., Any]:
    """A function of which each argument is one of the arguments of another."""

    def run(*arrays: Any) -> Any:
        return function(*[arrays[k] for k in which])

    return run
