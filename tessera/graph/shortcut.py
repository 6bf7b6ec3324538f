"""Functions of arrays whose calls like earlier ones the engine may run natively, as a whole.

Between a call of `ts.sum(x, axis=0)` and the code that adds is Python that looks at arguments. It
takes twenty times as long as the additions of a small array. `shortcut` marks functions for which
all that depends on the types of arrays, and on the other arguments, alone; the engine may find that
a call was one run of one program, and give a function that runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, ParamSpec, Protocol, TypeVar

from tessera.errors import hide_own_frames
from tessera.graph.called import Called, method_flag

P = ParamSpec("P")
R = TypeVar("R")


class Shortcut(Called):
    """A marked function. Calls that are known are run by native code, which takes the place of
    `__call__` then: there is no frame of Python in between.

    Args:
        function: the function itself.
        told_by_numbers: see `composed`.
        unread: see `created` and `like`; None for what reads arrays.

    Attributes:
        notes: what the engine keeps of it.
        is_fused: see `fused`.
        is_whole: see `one_program`.
        for_sizes: the same as one op, while something is traced; see `graph/calls.py`.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., Any],
        told_by_numbers: bool = False,
        unread: int | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.told_by_numbers = told_by_numbers
        self.unread = unread
        self.notes: Any = None
        self.is_fused = False
        self.is_whole = False
        self.for_sizes: Callable[..., Any] | None = None

    def known_by(self, table: object) -> None:
        """Says which table native code looks at; None for none."""
        self._table = table

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        try:
            return WATCHER[0](self, args, kwargs) if WATCHER else self.function(*args, **kwargs)
        except BaseException as error:
            hide_own_frames(error)
            raise

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Methods are functions."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<function {self.__qualname__}>"


_flag = method_flag(Shortcut)
if _flag is not None:
    _flag.set(True)


class Watcher(Protocol):
    """Calls the function of a shortcut, and looks at what it does."""

    def __call__(
        self, shortcut: Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Any:
        """What the function gives."""
        ...


WATCHER: list[Watcher] = []
"""The engine's, if there is one."""


def shortcut(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function of arrays, which gives one array, and without effects.

    Positional arguments that are numbers are operands, and used once each: which numbers they are
    decides nothing.
    """
    return Shortcut(fn)


def composed(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function of arrays, as `shortcut` does, whose positional numbers may say what is
    computed: an axis, an exponent, a slope that a formula has twice.
    """
    return Shortcut(fn, told_by_numbers=True)


def created(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function, as `composed` does, that gives the same each time where it is given no
    array."""
    return Shortcut(fn, told_by_numbers=True, unread=0)


def like(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function, as `created` does, that looks at the type of its first argument alone."""
    return Shortcut(fn, told_by_numbers=True, unread=1)


def fused(fn: Callable[P, R]) -> Callable[P, R]:
    """Says of a marked function that it is several ops, and looks at no element: of large arrays it
    may be computed as one program."""
    assert isinstance(fn, Shortcut)
    fn.is_fused = True
    return fn


def one_program(fn: Callable[P, R]) -> Callable[P, R]:
    """Says of a marked function, as `fused` does, that it is one program, also of small arrays: op
    by op it would be dozens."""
    assert isinstance(fn, Shortcut)
    fn.is_fused = fn.is_whole = True
    return fn
