"""`function` and `autodiff`: decorators that say more of a function than `jit` does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from tessera import pytree
from tessera.api.jit import JitFunction
from tessera.api.leaves import argument_name, check_callable, leaf_arrays, name_of
from tessera.api.options import options_of
from tessera.api.stateful import with_refs, without_refs
from tessera.api.traced import Refs, Traced
from tessera.errors import GradError, NotYetError, api_boundary
from tessera.graph.device import using
from tessera.graph.ops.base import is_inexact
from tessera.graph.placement import device_of_all
from tessera.graph.transforms.differentiate import linearize, transpose
from tessera.ir import loc as _loc
from tessera.ir.numerics import Policy
from tessera.ir.types import TensorType

P = ParamSpec("P")
R = TypeVar("R")


class Function(JitFunction[P, R]):
    """A jitted function with its source and its options. Made by `function`.

    Attributes:
        source: the text of its definition; empty where Python does not know it.
        options: what it is compiled with.
    """

    def __init__(self, fn: Callable[P, R], options: dict[str, Any]) -> None:
        super().__init__(fn, **options)
        self.options: dict[str, Any] = dict(options)
        try:
            self.source = inspect.getsource(fn)
        except (OSError, TypeError):
            self.source = ""

    @api_boundary
    def profile(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Not there yet: figures of each kernel of a call."""
        raise NotYetError(
            f"function: {name_of(self.function)} cannot be profiled yet",
            loc=_loc.current(),
            rule="`profile()` of a function is planned",
            fix="`f.lower(...).kernels()` lists kernels with their reasons; profilers such as perf "
            "and Nsight show them by name",
        )

    @api_boundary
    def autotune(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Not there yet: a search for the best schedule."""
        raise NotYetError(
            f"function: {name_of(self.function)} cannot be tuned yet",
            loc=_loc.current(),
            rule="`autotune()` of a function is planned",
            fix="call it: schedules are chosen by rules of thumb",
        )

    def __repr__(self) -> str:
        return super().__repr__().replace("jit(", "function(", 1)


@overload
def function(fn: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    max_traces: int | None = None,
    max_specializations: int | None = None,
    effects: Sequence[str] | None = None,
    check: str | Sequence[str] = (),
    memory_budget: int | str | None = None,
    policy: Policy | str | None = None,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
@api_boundary
def function(
    fn: Callable[P, R] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    max_traces: int | None = None,
    max_specializations: int | None = None,
    effects: Sequence[str] | None = None,
    check: str | Sequence[str] = (),
    memory_budget: int | str | None = None,
    policy: Policy | str | None = None,
) -> Any:
    """`jit` that keeps the source and the options of the function.

    Args:
        fn: a function of arrays.
        static_argnums: as in `jit`, like the others.
        static_argnames: likewise.
        donate_argnums: likewise.
        donate_argnames: likewise.
        max_traces: likewise.
        max_specializations: likewise.
        effects: likewise.
        check: likewise.
        memory_budget: likewise.
        policy: likewise.

    Returns:
        A jitted function with `.source`, `.options`, `.profile()` and `.autotune()`.

    Example:
        >>> import tessera as ts
        >>> @ts.function(static_argnames="n")
        ... def power(x, n):
        ...     return x**n
        >>> float(power(3.0, n=2)), power.options["static_argnames"]
        (9.0, ('n',))
    """
    options = options_of(
        "function",
        {
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "max_traces": max_traces,
            "max_specializations": max_specializations,
            "effects": effects,
            "check": check,
            "memory_budget": memory_budget,
            "policy": policy,
        },
    )

    @api_boundary
    def wrap(f: Callable[P, R]) -> Function[P, R]:
        check_callable("function", f, "pass arguments to what it returns: `ts.function(f)(x)`")
        return Function(f, options)

    return wrap if fn is None else wrap(fn)


@api_boundary
def autodiff(fn: Callable[P, R]) -> Callable[P, R]:
    """A function that is sure to have derivatives in both modes.

    For each signature that it is called with, the derivative is made once, forwards and backwards,
    and thrown away: what would be an error when it is differentiated is one at the first call.

    Args:
        fn: a function of arrays. `@ts.jit @ts.autodiff` compiles it as well.

    Raises:
        GradError: no argument, or no result, is a floating-point or complex number.
        NotDifferentiableError: an operation has no derivative in one of the modes.
        MissingRuleError: an operation lacks a rule.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... @ts.autodiff
        ... def f(x):
        ...     return ts.sum(ts.tanh(x))
        >>> float(f(ts.zeros(3)))
        0.0
    """
    check_callable("autodiff", fn, "pass arguments to what it returns: `ts.autodiff(f)(x)`")
    name = argument_name("autodiff", fn)
    checked: set[Hashable] = set()

    @api_boundary
    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given, whole = pytree.flatten((args, kwargs))
        given, structure, refs = without_refs(given, whole, f"autodiff: {name_of(fn)}")
        leaves, treedef = leaf_arrays(pytree.unflatten(structure, given), name)
        types = [x.type for x in leaves]
        key = (treedef, tuple(types))
        if key not in checked:

            def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return with_refs(values, whole, refs)

            with using(device_of_all(leaves)):
                # What it writes to refs is thrown away, too.
                traced = Traced(
                    *(fn, rebuild, types, None, "autodiff"),
                    staging=True,
                    is_function=True,
                    refs=Refs.OUTPUTS,
                )
                _check(traced, types, name_of(fn))
            checked.add(key)
        return fn(*args, **kwargs)

    return run


def _check(traced: Traced, types: Sequence[TensorType], name: str) -> None:
    """Makes the derivatives of a traced function."""
    inputs = [is_inexact(type.dtype) for type in types]
    for what, found in (
        ("no argument", inputs),
        ("no result", [is_inexact(type.dtype) for type in traced.types]),
    ):
        if not any(found):
            raise GradError(
                f"autodiff: {what} of {name} has a derivative",
                loc=_loc.current(),
                rule="derivatives are with respect to floating-point or complex numbers, and of "
                "these",
            )
    wrt = [False] * len(traced.captured) + inputs
    _, linear, _, nonzero, count = linearize(traced.graph, wrt)
    transpose(linear, count, [True] * sum(nonzero))
