"""Whether a finalizer runs: they run whenever Python likes, also while something is traced."""

from __future__ import annotations

import inspect
import sys
import weakref
from types import FrameType
from typing import Any, cast

from tessera.errors import is_internal_file

_FINALIZE = cast(Any, weakref.finalize).__call__.__code__


def in_finalizer(outermost: FrameType | None, arguments: bool) -> bool:
    """Whether a finalizer runs here, in the middle of what is recorded.

    Args:
        outermost: the frame that records; those that called it are not looked at.
        arguments: whether to look for callbacks of weak references and of the garbage collector,
            too. They are known by their arguments only, which takes longer.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame is not outermost:
        code = frame.f_code
        if code.co_name == "__del__" or code is _FINALIZE:
            return True
        if arguments and not is_internal_file(code.co_filename) and _is_callback(frame):
            return True
        frame = frame.f_back
    return False


def _is_callback(frame: FrameType) -> bool:
    """Whether a function got what Python gives callbacks of weak references, or of the garbage
    collector."""
    code = frame.f_code
    count = code.co_argcount
    has_more = bool(code.co_flags & inspect.CO_VARARGS)
    if not count and not has_more:
        return False
    found = frame.f_locals
    names = code.co_varnames
    given = [found.get(name) for name in names[:count]]
    if has_more:
        rest = found.get(names[count + code.co_kwonlyargcount])
        given += rest if type(rest) is tuple else ()
    if not given:
        return False
    dead = any([isinstance(x, weakref.ReferenceType) and x() is None for x in given])
    phase = type(given[-1]) is dict and "generation" in given[-1] and given[-2:-1]
    return dead or phase in (["start"], ["stop"])
