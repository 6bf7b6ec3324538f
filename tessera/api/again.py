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
        traced: the function, whose walk has come to its end.
        compute: the arrays of the result, for what the Graph captures and its inputs.
        result: the user's result of these and of the operands.
    """

    def __init__(
        self,
        traced: Traced,
        compute: Callable[[list[Any]], Sequence[Any]],
        result: Callable[[Sequence[Any], Sequence[Any]], Any],
    ) -> None:
        walk = traced.walk
        assert walk is not None
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

        self._run = OneCall(run)
        self._result = result
        walk.remember(self)

    def __call__(self, operands: Sequence[Any]) -> Any:
        """The result.

        Args:
            operands: what the function captures, but for what is always the same, and its inputs.
        """
        return self._result(self._run(operands), operands)


class OneCall:
    """A function of arrays that gives a tuple of them: one call to whoever sees it, which is native
    code, or a walk around this one.

    Args:
        function: depends on the types of the arrays alone.
    """

    def __init__(self, function: Callable[..., tuple[Any, ...]]) -> None:
        self._function = function
        self._run = Shortcut(function)
        # Where some of them are the same array: functions of different ones.
        self._runs: dict[tuple[int, ...], Shortcut] = {}

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The result."""
        places: dict[int, int] = {}
        which = tuple([places.setdefault(id(x), len(places)) for x in arrays])
        if len(places) == len(arrays):
            return self._run(*arrays)
        run = self._runs.get(which)
        if run is None:
            run = self._runs[which] = Shortcut(_picking(self._function, which))
        different = dict(zip(which, arrays, strict=True))
        return run(*[different[k] for k in range(len(places))])


def _picking(function: Callable[..., Any], which: tuple[int, ...]) -> Callable[..., Any]:
    """A function of which each argument is one of the arguments of another."""

    def run(*arrays: Any) -> Any:
        return function(*[arrays[k] for k in which])

    return run
