"""`deterministic`: the promise of equal bits in each run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

from tessera.api.leaves import check_callable, name_of
from tessera.config import Config, config
from tessera.errors import api_boundary
from tessera.graph.determinism import Deterministic

P = ParamSpec("P")
R = TypeVar("R")


@overload
def deterministic(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def deterministic(
    *, batch_invariant: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@api_boundary
def deterministic(fn: Callable[..., Any] | None = None, /, *, batch_invariant: bool = False) -> Any:
    """A function whose results are the same bits in each run.

    Results are reproducible without it, for one version, machine and shape. With it, each sum in
    the function, and in its derivatives, has an order that is stated in the program: it depends on
    the terms alone, and not on the machine, on threads or on what is fused with it. What may vary
    from run to run is refused, unless it stands in `with ts.effects.suspend("io"):`.

    Args:
        fn: a function of arrays, jitted or not. Without it, a decorator is returned.
        batch_invariant: whether a row of a result is also the same whatever other rows are
            computed with it, and however many.

    Raises:
        DeterminismError: the function has an operation that may vary, when it is called.
        NotYetError: `batch_invariant` on a device that is no CPU.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... @ts.deterministic(batch_invariant=True)
        ... def layer(x, w):
        ...     return ts.tanh(x @ w)
        >>> x, w = ts.random.normal(ts.random.key(0), (8, 64)), ts.ones((64, 4))
        >>> bool(ts.all(layer(x, w)[:1] == layer(x[:1], w)))
        True
    """

    @api_boundary
    def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
        check_callable("deterministic", f, "pass arguments to what it returns")
        name = name_of(f)
        # Native code knows settings by their identity.
        known: dict[Config, Config] = {}

        @functools.wraps(f)
        def run(*args: Any, **kwargs: Any) -> Any:
            outer = config.current()
            settings = known.get(outer)
            if settings is None:
                scope = outer.scope
                alone = isinstance(scope, Deterministic) and scope.batch_invariant
                promise = Deterministic(name, batch_invariant or alone)
                settings = known[outer] = replace(outer, scope=promise)
            with config.using(settings):
                return f(*args, **kwargs)

        return api_boundary(run)

    return wrap if fn is None else wrap(fn)
