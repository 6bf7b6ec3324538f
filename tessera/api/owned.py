"""Donated arguments: which nobody but the call has, as only their memory is written to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tessera import pytree
from tessera.api.signature import Arguments
from tessera.api.static import StaticArguments
from tessera.graph.array import Array
from tessera.graph.donation import donate
from tessera.graph.trace import Tracer, is_traced_here
from tessera.runtime.remote import is_its_own


def donated_leaves(donated: StaticArguments | None, call: Arguments) -> list[int]:
    """Which of the leaves of a call are donated."""
    if donated is None:
        return []
    args, kwargs = call.rebuild()(range(len(call.leaves)))
    return [k for k in pytree.leaves(donated.pick(args, kwargs)) if type(k) is int]


def give_away(
    donated: StaticArguments, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    """Takes the memory of donated arguments, where the call was not only recorded.

    Args:
        donated: which they are.
        args: what the user gave.
        kwargs: what the user gave.
        name: that of the function.
    """
    if any([isinstance(x, Tracer) for x in pytree.leaves((args, kwargs))]) or is_traced_here():
        return
    donate(pytree.leaves(donated.pick(args, kwargs)), name)


def marker(name: str) -> Callable[..., None]:
    """A function that takes the elements of arrays away, which were given to a function of this
    name."""

    def mark(*leaves: Any) -> None:
        donate(leaves, name)

    return mark


def owned(leaves: Sequence[Any], inputs: Sequence[Any], donated: Iterable[int]) -> list[int]:
    """Which donated inputs nobody else can see: no view, no buffer, no other argument.

    The caller has no references to the inputs but those in `inputs`.

    Args:
        leaves: the arrays.
        inputs: the elements of each, in row-major order.
        donated: positions of those that are donated.
    """
    return [
        k
        for k in donated
        if _references(leaves[k], inputs, k) == _EXPECTED and is_its_own(inputs[k])
    ]


def _references(x: Array, inputs: Sequence[Any], k: int) -> int:
    """References to the elements besides those of the array itself, in the way of counting."""
    data = inputs[k]
    return sys.getrefcount(data) - (x.storage is data) - (x.prepared is data)


def _expected() -> int:
    x = Array(np.empty(1))
    return _references(x, [x.storage], 0)


_EXPECTED = _expected()
