"""Where a traced value is kept after its trace: the search for the container that leaks it.

The search goes forward, from what the user's running functions can name (variables, closures,
globals) into containers, attributes, closures and default arguments, breadth first. So it finds the
shortest name, which is how the user would write it.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections import deque
from collections.abc import Iterator
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

from tessera.errors import is_glue_file, is_internal_frame
from tessera.graph.array import ArrayBase

MAX_OBJECTS: Final = 20_000
"""How many objects are looked at before the search is given up."""

MAX_DEPTH: Final = 8
"""How many steps a name may have."""

DEFAULT: Final = "a default argument of"
"""How the place begins, where a default argument holds what is looked for."""

_VARIABLE: Final = "the variable"
_OUTER: Final = "the enclosing function's variable"
_GLOBAL: Final = "the global"

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), ModuleType, FrameType)


def find_holder(target: object) -> str | None:
    """What keeps an object, in words that end a sentence: ``the global `cache[3]['k']` ``.

    Args:
        target: the object.

    Returns:
        The shortest name of a place that is not merely a local variable of a running function; None
        where none is found.
    """
    seen: set[int] = set()
    queue: deque[tuple[Any, str, str, int]] = deque()
    frames = _frames()
    for kind, name, value in _roots(frames):
        if value is target:
            if kind is not _VARIABLE:
                return f"{kind} `{name}`"
        elif id(value) not in seen:
            seen.add(id(value))
            queue.append((value, kind, name, 0))
    while queue and len(seen) < MAX_OBJECTS:
        holder, kind, name, depth = queue.popleft()
        for step_kind, step, value in _children(holder, kind, name):
            if value is target:
                if step_kind is _VARIABLE:
                    step_kind = _default_of(frames, step)
                return f"{step_kind} `{step}`"
            if depth < MAX_DEPTH and not isinstance(value, _LEAVES) and id(value) not in seen:
                seen.add(id(value))
                queue.append((value, step_kind, step, depth + 1))
    return None


def _frames() -> list[FrameType]:
    """The user's running functions, the innermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not is_internal_frame(frame) and not is_glue_file(frame.f_code.co_filename):
            frames.append(frame)
            if frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return frames


def _roots(frames: list[FrameType]) -> Iterator[tuple[str, str, Any]]:
    """What the user's running functions can name, from the innermost outwards."""
    for frame in frames:
        if frame.f_locals is frame.f_globals:
            continue
        for name, value in frame.f_locals.items():
            yield _OUTER if name in frame.f_code.co_freevars else _VARIABLE, name, value
    for frame in frames:
        for name, value in list(frame.f_globals.items()):
            if not name.startswith("__"):
                yield _GLOBAL, name, value


def _default_of(frames: list[FrameType], place: str) -> str:
    """What to call the variable in which a place begins: a parameter's default, that all calls
    share, or a variable.

    Who has a code object is asked of the garbage collector, which looks at all there is, so only
    for the place that is told.
    """
    name = re.match(r"\w*", place)
    for frame in frames:
        value = frame.f_locals.get(name[0]) if name else None
        if not isinstance(value, (list, dict, set, deque)):
            continue
        for fn in gc.get_referrers(frame.f_code):
            if isinstance(fn, FunctionType):
                found = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
                if any(x is value for x in found):
                    return f"{DEFAULT} {fn.__name__},"
    return _VARIABLE


def _children(holder: Any, kind: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """What an object holds: the kind of place, its name and the value."""
    if isinstance(holder, dict):
        # A subclass may have an `items` of its own, which is not to run here.
        items: list[Any] = [*cast(Any, dict).items(holder)]
        for key, value in items:
            yield kind, f"{name}[{_key(key)}]", value
        return
    if isinstance(holder, FunctionType):
        yield from _of_function(holder)
        return
    if isinstance(holder, CellType):
        yield kind, name, _contents(holder)
    elif isinstance(holder, (list, tuple, deque)):
        items = [*cast(Any, holder)]
        names: Any = getattr(cast(Any, holder), "_fields", None)
        for k, value in enumerate(items):
            yield kind, f"{name}.{names[k]}" if names else f"{name}[{k}]", value
    elif isinstance(holder, (set, frozenset)):
        for value in list(cast(Any, holder)):
            yield "a member of", name, value
    elif isinstance(holder, (MethodType, functools.partial)):
        yield from _of_bound(cast("Any", holder), kind, name)
    if not isinstance(holder, (_LEAVES, ArrayBase)):
        yield from _attributes(holder, kind, name)


def _of_bound(
    holder: MethodType | functools.partial[Any], kind: str, name: str
) -> Iterator[tuple[str, str, Any]]:
    """A function that has some of its arguments."""
    if isinstance(holder, MethodType):
        yield kind, f"{name}.__self__", holder.__self__
        yield kind, name, holder.__func__
        return
    yield kind, name, holder.func
    for k, value in enumerate(holder.args):
        yield kind, f"{name}.args[{k}]", value
    for key, value in holder.keywords.items():
        yield kind, f"{name}.keywords[{key!r}]", value


def _of_function(fn: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Default arguments, the closure, and what a decorator has wrapped."""
    code = fn.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = fn.__defaults__ or ()
    for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        yield f"{DEFAULT} {fn.__name__},", name, value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"{DEFAULT} {fn.__name__},", name, value
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        yield f"the closure of {fn.__name__}, as", name, _contents(cell)
    for name, value in vars(fn).items():
        yield "the attribute", f"{fn.__name__}.{name}", value


def _attributes(holder: Any, kind: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """The attributes of an instance, or of a class of the user's."""
    cls = cast("type[Any]", holder if isinstance(holder, type) else type(holder))
    if isinstance(holder, type) and _is_foreign(cls):
        return
    try:
        found = dict(vars(holder))
    except TypeError:
        found = {}
    wrapped = found.pop("__wrapped__", None)
    if wrapped is not None:
        yield kind, name, wrapped
    if not _is_foreign(cls):
        for key in [k for base in cls.__mro__ for k in _slots(base)]:
            found.setdefault(key, getattr(holder, key, None))
        for key, value in found.items():
            if not key.startswith("__"):
                yield kind, f"{name}.{key}", value


def _slots(cls: type) -> tuple[str, ...]:
    slots: Any = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_foreign(cls: type) -> bool:
    """Whether a class belongs to Tessera or to Python itself."""
    module = cls.__module__.partition(".")[0]
    return module in ("tessera", "builtins", "numpy")


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _key(key: object) -> str:
    # Other keys may have a `__repr__` of the user's, which is not to run here.
    text = repr(key) if isinstance(key, (str, int, float, bytes)) else f"<{type(key).__name__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."
