"""`jit` and `compile`: what users call to compile a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from tessera.api.jit import JitFunction
from tessera.api.leaves import check_callable
from tessera.api.options import options_of
from tessera.compile import STAGES
from tessera.errors import OptionError, api_boundary
from tessera.ir import loc
from tessera.ir.effects import show
from tessera.ir.numerics import Policy

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(fn: Callable[P, R], /) -> JitFunction[P, R]: ...
@overload
def jit(
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
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
@overload
def jit(
    fn: Callable[P, R],
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
) -> JitFunction[P, R]: ...
@api_boundary
def jit(
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
    """Compiles a function of arrays.

    The function is traced once per signature (structure, dtypes and shapes of its arguments, and
    values of its static arguments), lowered through all IRs to native code, and run from then on
    without Python.

    Args:
        fn: a function of arrays and containers of arrays.
        static_argnums: positions of arguments that are Python values, part of the signature; they
            must hash.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose arrays the caller does not need any more:
            results take their memory where they can, and it is given back otherwise; using them
            again is an error.
        donate_argnames: names of such arguments.
        max_traces: for how many signatures it may be traced; one more is a `RetraceError`, which
            says what is new in the call. None for any number.
        max_specializations: how many programs may be compiled; one more is a `RetraceError`. For
            functions with annotated shapes (`ts.Tensor`) their number is known before:
            `f.specializations()`.
        effects: the effects that it may have, by the names of `ts.effects`; another is an
            `EffectError` when it is traced. None for any.
        check: what its compiled code looks for, of "nan", "inf", "overflow" and "bounds", such as
            "nan,inf"; what it finds is a `NonFiniteError` that names the operation, or a
            `MemoryAccessError`. It holds where the function is the outermost that is compiled.
        memory_budget: the most memory that a call may need, arguments and results included: bytes,
            or text such as "2GB" or "512MiB". Values are computed again where that holds it, with
            the same bits, or on a GPU moved to the memory of the host for a while; a
            `MemoryBudgetError` says what is missing otherwise.
        policy: the numerics policy of its operations, as by `ts.policy`; None for that which is in
            force where it is traced.

    Returns:
        A function of the same signature, with `.lower(*args)`.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     return ts.sum(x * x)
        >>> float(f(ts.asarray([1.0, 2.0])))
        5.0
    """
    options = options_of(
        "jit",
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
    def wrap(f: Callable[P, R]) -> JitFunction[P, R]:
        check_callable("jit", f, "pass arguments to the compiled function: `ts.jit(f)(x)`")
        return JitFunction(f, **options)

    return wrap if fn is None else wrap(fn)


@api_boundary
def compile(fn: Callable[P, R], *, dump: Sequence[str] = ()) -> JitFunction[P, R]:
    """Like `jit`, and prints the chosen stages of each program when it is compiled.

    Args:
        fn: a function of arrays, or a jitted one.
        dump: stages among "graph", "schedule" (or "sched"), "tile" ("tirh"), "target" ("tirt"),
            "llvm", "asm".

    Raises:
        OptionError: an unknown stage.
    """
    stages = [dump] if isinstance(dump, str) else dump
    for name in stages:
        if name not in STAGES:
            raise OptionError(
                f"compile: dump has {name!r}, which is no stage",
                loc=loc.current(),
                rule=f"the stages are {', '.join(STAGES)}",
            )
    check_callable("compile", fn, "pass arguments to the compiled function: `ts.compile(f)(x)`")
    if isinstance(fn, JitFunction):
        return JitFunction(
            fn.function,
            fn.static_argnums,
            fn.static_argnames,
            stages,
            donate_argnums=fn.donate_argnums,
            donate_argnames=fn.donate_argnames,
            check=fn.check,
            effects=None if fn.effects is None else show(fn.effects.effects),
            memory_budget=fn.memory_budget,
            policy=fn.policy,
        )
    return JitFunction(fn, dump=stages)
