"""Keys without keys: those of the function that promises to be deterministic."""

from __future__ import annotations

from tessera.api.collectives import axis_index, named_axes
from tessera.api.determinism import Stream
from tessera.errors import DeterminismError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.determinism import Deterministic
from tessera.graph.promise import promised
from tessera.ir import loc
from tessera.random.keys import fold_in


@api_boundary
def next_key() -> ArrayBase:
    """A new key, of the innermost function with `ts.deterministic` that is running.

    It depends on the seed and the name of that function, on the number of its call, on how many
    keys were taken in the call before, and on the place on each axis that a `ts.vmap` has named;
    examples of a `ts.vmap` without a name have the same key. In a loop each step has its own.

    Returns:
        A key.

    Raises:
        DeterminismError: there is no such function.

    Example:
        >>> import tessera as ts
        >>> @ts.deterministic(seed=1)
        ... def noise():
        ...     return ts.random.normal(ts.random.next_key(), (2,))
        >>> bool(ts.any(noise() == noise()))
        False
    """
    promise = promised(loc.promises(), Deterministic)
    stream = None if promise is None else promise.stream
    if not isinstance(stream, Stream):
        raise DeterminismError(
            "random.next_key: no deterministic function is running",
            loc=loc.current(),
            rule="keys without a key come from the function around it, which has a seed",
            fix="put `@ts.deterministic(seed=0)` on the function; or make a key with "
            "`ts.random.key(seed)`",
        )
    words, step, place = stream.draw()
    key = fold_in(fold_in(words, step), place)
    for name in dict.fromkeys([name for name, _ in named_axes()]):
        key = fold_in(key, axis_index(name))
    return key
