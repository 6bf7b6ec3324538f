"""Calling Python from compiled programs: `ts.debug.callback`, `ts.debug.print`."""

from __future__ import annotations

import builtins
import string
from collections.abc import Callable, Sequence
from typing import Any

from tessera.api.host import Call
from tessera.api.leaves import check_callable
from tessera.errors import CallError, api_boundary
from tessera.graph.array import Array
from tessera.graph.trace import Tracer
from tessera.ir import loc


@api_boundary
def callback(
    callback: Callable[..., Any], /, *args: Any, ordered: bool = True, **kwargs: Any
) -> None:
    """Calls a Python function with the values of arrays, also from within a compiled program.

    The calls happen in the order in which the program has them, each as often as that part of the
    program runs: in each step of a loop, in the branch of `ts.cond` that is taken, and under
    `ts.vmap` once for each example. Where a function is differentiated they belong to the forward
    pass. What the function returns is ignored; what it raises ends the program, and is raised where
    that was called.

    Args:
        callback: the function.
        *args: its arguments: containers of arrays, which have values when the call comes, and of
            anything else, which is passed on as it is.
        ordered: False allows calls to be exchanged with others; today none is.
        **kwargs: its keyword arguments.

    Example:
        >>> import tessera as ts
        >>> seen = []
        >>> @ts.jit
        ... def f(x):
        ...     ts.debug.callback(lambda y: seen.append(float(y)), x * 2)
        ...     return x
        >>> _ = f(1.0), f(2.0)
        >>> seen
        [2.0, 4.0]
    """
    del ordered
    check_callable("debug.callback", callback, "pass its arguments after it")
    Call("debug.callback", callback, args, kwargs).tell()


@api_boundary
def print(fmt: str, /, *args: Any, ordered: bool = True, **kwargs: Any) -> None:
    """Prints values of arrays, also from within a compiled program.

    Args:
        fmt: what to print; `{}`, `{0}` and `{name}` in it stand for arguments, as in `str.format`.
        *args: arrays, or containers of them, or anything else.
        ordered: as for `ts.debug.callback`, which says when lines are printed.
        **kwargs: arguments with names.

    Raises:
        CallError: the format names an argument that is missing, or an argument is not in it.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     ts.debug.print("x is {x}, its square {:.1f}", x * x, x=x)
        ...     return x
        >>> _ = f(3.0)
        x is 3.0, its square 9.0
    """
    del ordered
    _check_format(fmt, args, kwargs)

    def write(*args: Any, **kwargs: Any) -> None:
        builtins.print(fmt.format(*args, **kwargs), flush=True)

    Call("debug.print", write, args, kwargs, named=False).tell()


def _check_format(fmt: object, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """The format and the arguments belong together."""
    if not isinstance(fmt, str):
        what = f"an array of type {fmt.type}" if isinstance(fmt, (Array, Tracer)) else repr(fmt)
        raise CallError(
            f"debug.print: the format is {what}",
            loc=loc.current(),
            rule="the first argument is a string, in which `{}` stands for the next argument",
            fix='write `ts.debug.print("{}", x)`',
        )
    names = _names(fmt)
    known: set[int | str] = {*range(len(args)), *kwargs}
    missing = [name for name in names if name not in known]
    if missing:
        name = missing[0]
        what = f"argument `{name}`" if isinstance(name, str) else f"positional argument {name}"
        raise CallError(
            f"debug.print: the format {fmt!r} has {what}, which is not given",
            loc=loc.current(),
            rule="each name in the format is an argument",
            fix="pass it, or write `{{` and `}}` for braces",
        )
    unused = [name for name in (*range(len(args)), *kwargs) if name not in names]
    if unused:
        name = unused[0]
        what = f"argument `{name}`" if isinstance(name, str) else f"positional argument {name}"
        raise CallError(
            f"debug.print: the format {fmt!r} does not have {what}",
            loc=loc.current(),
            rule="each argument is in the format",
            fix=f"write `{{{name if isinstance(name, str) else ''}}}` where it is to stand; an "
            "f-string would show the traced value, which has none",
        )


def _names(fmt: str) -> list[int | str]:
    """The arguments that a format mentions, positions as ints."""
    found: list[int | str] = []
    count = 0
    try:
        pending = [*string.Formatter().parse(fmt)]
        while pending:
            _, field, spec, _ = pending.pop(0)
            if field is None:
                continue
            name = field.partition(".")[0].partition("[")[0]
            found.append(count if not name else int(name) if name.isdecimal() else name)
            count += not name
            pending[:0] = string.Formatter().parse(spec or "")
        if count and len([name for name in found if isinstance(name, int)]) > count:
            raise ValueError("it has numbered braces and others")
    except ValueError as error:
        raise CallError(
            f"debug.print: the format {fmt!r} is none: {error}",
            loc=loc.current(),
            rule="it is one for `str.format`",
            fix="write `{{` and `}}` for braces",
        ) from None
    return found
