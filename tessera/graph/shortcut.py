"""Functions of arrays whose calls like earlier ones the engine may run natively, as a whole.

Between a call of `ts.sum(x, axis=0)` and the code that adds is Python that looks at arguments. It
takes twenty times as long as the additions of a small array. `shortcut` marks functions for which
all that depends on the types of arrays, and on the other arguments, alone; the engine may find that
a call was one run of one program, and give a function that runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from tessera.errors import hide_own_frames

P = ParamSpec("P")
R = TypeVar("R")


class Shortcut:
    """What is known of one function.

    Args:
        function: the function itself.
        told_by_numbers: see `composed`.
        unread: see `created` and `like`; None for what reads arrays.

    Attributes:
        start: runs a call that is known, of a tuple and a dict of arguments, or gives
            `NotImplemented` having done nothing; None where no call is known.
        notes: what the engine keeps of it.
    """

    __slots__ = ("function", "notes", "start", "told_by_numbers", "unread")

    def __init__(
        self,
        function: Callable[..., Any],
        told_by_numbers: bool = False,
        unread: int | None = None,
    ) -> None:
        self.function = function
        self.told_by_numbers = told_by_numbers
        self.unread = unread
        self.start: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.notes: Any = None


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
    return _marked(Shortcut(fn))


def composed(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function of arrays, as `shortcut` does, whose positional numbers may say what is
    computed: an axis, an exponent, a slope that a formula has twice.
    """
    return _marked(Shortcut(fn, told_by_numbers=True))


def created(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function, as `composed` does, that gives the same each time where it is given no
    array."""
    return _marked(Shortcut(fn, told_by_numbers=True, unread=0))


def like(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a function, as `created` does, that looks at the type of its first argument alone."""
    return _marked(Shortcut(fn, told_by_numbers=True, unread=1))


def _marked(known: Shortcut) -> Callable[..., Any]:
    fn = known.function

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = known.start
        if start is not None:
            found = start(args, kwargs)
            if found is not NotImplemented:
                return found
        try:
            return WATCHER[0](known, args, kwargs) if WATCHER else fn(*args, **kwargs)
        except BaseException as error:
            hide_own_frames(error)
            raise

    return call
