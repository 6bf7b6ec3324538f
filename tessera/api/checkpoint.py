"""`checkpoint`, also called `remat`: reverse mode that keeps little and computes the rest again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from tessera import pytree
from tessera.api import python_control
from tessera.api.checkpoint_policies import AnyPolicy, policy_of
from tessera.api.leaves import (
    argument_name,
    check_callable,
    leaf_arrays,
    name_of,
    parameter_names,
)
from tessera.api.stateful import with_refs, without_refs
from tessera.api.traced import Refs, Traced
from tessera.errors import CallError, OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import using
from tessera.graph.namespace.arguments import ArrayLike, as_array
from tessera.graph.ops.checkpoint import Checkpoint, name_value
from tessera.graph.placement import device_of_all
from tessera.graph.trace import as_tuple, bind, is_recording
from tessera.ir import loc as _loc

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpoint(
    fn: Callable[P, R],
    *,
    prevent_cse: bool = True,
    policy: AnyPolicy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, R]: ...
@overload
def checkpoint(
    *,
    prevent_cse: bool = True,
    policy: AnyPolicy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@api_boundary
def checkpoint(
    fn: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: AnyPolicy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Any:
    """A function that keeps little for reverse mode, and computes the rest again when it is needed.

    The values and derivatives are those of `fn`. Between the forward and the backward pass only
    its arguments stay in memory, and what `policy` saves.

    Args:
        fn: a function of arrays. It is traced, as by `jit`, where a transform is at work. Without
            it, a decorator is returned.
        prevent_cse: whether what is computed again is kept apart from what was computed before.
            With False, the compiler may find that both are the same, and keep the values.
        policy: what may be saved, one of `ts.checkpoint_policies` or a function of an operation;
            None saves nothing.
        static_argnums: positions of arguments that are Python values.
        static_argnames: names of such arguments.

    Example:
        >>> import tessera as ts
        >>> f = ts.checkpoint(lambda x: ts.sin(ts.sin(x)))
        >>> float(ts.grad(f)(0.0))
        1.0
    """
    if fn is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    function = fn
    check_callable("checkpoint", function, "pass arguments to what it returns")
    chosen = policy_of(policy)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = {static_argnames} if isinstance(static_argnames, str) else {*static_argnames}
    named = [k for k, name in enumerate(parameter_names(function)) if name in names]

    @api_boundary
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_recording() or python_control.is_python():
            return function(*args, **kwargs)
        statics = _positions(function, numbers, len(args)) | {k for k in named if k < len(args)}
        fixed = {name: x for name, x in kwargs.items() if name in names}
        kwargs = {name: x for name, x in kwargs.items() if name not in names}
        # None is an empty subtree: nothing of a static argument is left in the tree.
        given = tuple([None if k in statics else x for k, x in enumerate(args)])
        rest, whole = pytree.flatten((given, kwargs))
        rest, structure, refs = without_refs(rest, whole, f"checkpoint: {name_of(function)}")
        leaves, _ = leaf_arrays(
            pytree.unflatten(structure, rest),
            argument_name("checkpoint", function),
            "name it in `static_argnums`",
        )

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            found, keywords = with_refs(values, whole, refs)
            given = [args[k] if k in statics else x for k, x in enumerate(found)]
            return tuple(given), {**keywords, **fixed}

        types = [x.type for x in leaves]
        with using(device_of_all(leaves)):
            traced = Traced(
                *(function, rebuild, types, None, "checkpoint"), staging=True, refs=Refs.OUTPUTS
            )
            results = bind(
                Checkpoint,
                (*traced.captured, *leaves),
                label=traced.graph.name,
                body=traced.graph.body,
                policy=chosen,
                again=prevent_cse,
            )
        found = as_tuple(results)
        traced.finish(found[len(traced.types) :])
        return pytree.unflatten(traced.treedef, found[: len(traced.types)])

    return run


remat = checkpoint


def _positions(fn: Callable[..., Any], numbers: Sequence[int], count: int) -> set[int]:
    for n in numbers:
        if not -count <= n < count:
            raise CallError(
                f"checkpoint: static_argnums has {n}, but {name_of(fn)} is called with {count} "
                f"positional argument{'' if count == 1 else 's'}",
                loc=_loc.current(),
                rule="static_argnums are positions of positional arguments, counted from 0",
            )
    return {n % count for n in numbers}


@api_boundary
def checkpoint_name(x: ArrayLike, name: str) -> ArrayBase:
    """`x`, under a name that policies of `ts.checkpoint` know.

    Args:
        x: an array.
        name: the name, as in `ts.checkpoint_policies.save_only_these_names("scores")`.

    Example:
        >>> import tessera as ts
        >>> ts.checkpoint_name(ts.ones(2), "ones")
        Array([1., 1.], dtype=float32)
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(
            f"checkpoint_name: the name is {name!r}", loc=_loc.current(), rule="it is a string"
        )
    return name_value(as_array("checkpoint_name", x), name)
