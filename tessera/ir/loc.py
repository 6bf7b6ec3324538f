"""Source locations: the user's frames that asked for an operation, innermost first.

A location costs about a microsecond to take, because only code objects and instruction offsets are
kept; file names, lines and columns are worked out when somebody looks. Frames of Tessera itself,
and of library code that only passes calls on, are never part of a location.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
import threading
import unicodedata
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

from tessera.config import config
from tessera.errors import (
    install_locator,
    is_glue_file,
    is_internal_file,
    is_internal_frame,
)

MAX_FRAMES: Final = 8
"""How many user frames a location keeps."""

MAX_CALLERS: Final = 3
"""How many callers an error message shows besides the innermost frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One place in a source file; lines count from 1, columns are UTF-8 byte offsets from 0.

    ``end_line``, ``column`` and ``end_column`` are None where the interpreter did not keep them.
    """

    filename: str
    line: int
    function: str
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None

    def __str__(self) -> str:
        place = f"{_shown_path(self.filename)}:{self.line}"
        return place if self.column is None else f"{place}:{_text_column(self) + 1}"

    def render(self, word: str = "at") -> str:
        """The place, and the source line with carets below the expression if it can be read."""
        head = f"{word} {_shown_path(self.filename)}:{self.line}"
        if self.function and self.function != "<module>":
            head += f" in {_shown_function(self.function)}"
        source = linecache.getline(self.filename, self.line).rstrip()
        if not source:
            return head
        number = str(self.line)
        lines = [head, f"  {number} | {source}"]
        carets = self._carets(source)
        if carets:
            lines.append(f"  {' ' * len(number)} | {carets}")
        return "\n".join(lines)

    def text(self) -> str:
        """The expression, if it stands on one line that can be read; else the line."""
        source = linecache.getline(self.filename, self.line).rstrip()
        if self.column is None or self.end_column is None or self.end_line != self.line:
            return source
        return source[_characters(source, self.column) : _characters(source, self.end_column)]

    def _carets(self, source: str) -> str:
        if self.column is None:
            return ""
        start = _text_column(self)
        end = len(source)
        if self.end_column is not None and self.end_line == self.line:
            end = _characters(source, self.end_column)
        if not 0 <= start < end:
            return ""
        # Tabs stay tabs, so that the carets stand right whatever a tab is worth on this screen.
        pad = "".join("\t" if c == "\t" else " " * _width(c) for c in source[:start])
        return pad + "^" * max(1, sum(_width(c) for c in source[start:end]))


class Loc:
    """An immutable chain of frames, innermost first; ``Loc.unknown`` has none.

    Attributes:
        is_backward: whether what is there was derived in reverse from what the user asked for.
        promises: what the functions around it promise of ops.
    """

    __slots__ = ("_frames", "_raw", "is_backward", "promises")

    unknown: ClassVar[Loc]

    _raw: tuple[tuple[CodeType, int], ...]
    _frames: tuple[Frame, ...] | None
    is_backward: bool
    promises: tuple[Hashable, ...]

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        self._raw = ()
        self._frames = tuple(frames)
        self.is_backward = False
        self.promises = ()

    def backward(self) -> Loc:
        """The same place, for what runs backwards."""
        if self.is_backward or not self:
            return self
        found = Loc.__new__(Loc)
        found._raw = self._raw
        found._frames = self._frames
        found.is_backward = True
        found.promises = self.promises
        return found

    def inside(self, call: Loc) -> Loc:
        """The frames below a call, whose location is given: what a function that is called again
        has in common with that call."""
        frames, outer = self.frames, call.frames
        for k in range(len(frames)):
            if frames[k:] == outer[: len(frames) - k]:
                return self._with(frames[:k])
        return self

    def called_from(self, call: Loc) -> Loc:
        """The frames, then those of a call."""
        return self._with((*self.frames, *call.frames))

    def _with(self, frames: tuple[Frame, ...]) -> Loc:
        found = Loc(frames)
        found.is_backward = self.is_backward
        found.promises = self.promises
        return found

    @classmethod
    def in_file(cls, filename: str, line: int, column: int | None = None) -> Loc:
        """The location of a place in a file; ``column`` is a UTF-8 byte offset from 0."""
        end = None if column is None else column + 1
        return cls((Frame(filename, line, "", column, line, end),))

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames, innermost first."""
        if self._frames is None:
            self._frames = tuple(_resolve(code, lasti) for code, lasti in self._raw)
        return self._frames

    def render(self) -> str:
        """The innermost frame with its source line, then a few callers in the user's own files."""
        frames = self.frames
        if not frames:
            return ""
        callers = [f for f in frames[1:] if not _is_installed(f.filename)][:MAX_CALLERS]
        return "\n".join([frames[0].render(), *(f.render("called from") for f in callers)])

    def __str__(self) -> str:
        return str(self.frames[0]) if self.frames else "unknown"

    def __repr__(self) -> str:
        return f"Loc({self})"

    def __bool__(self) -> bool:
        return bool(self._raw or self._frames)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Loc):
            return NotImplemented
        return self is other or self.frames == other.frames

    def __hash__(self) -> int:
        return hash(self.frames)

    def __reduce__(self) -> tuple[type[Loc], tuple[tuple[Frame, ...]]]:
        return Loc, (self.frames,)


Loc.unknown = Loc()


class Origin(threading.local):
    """What the running thread works for. It is set for a while by assignments:

        outer = ORIGIN.loc
        ORIGIN.loc = op.loc or outer
        try:
            ...
        finally:
            ORIGIN.loc = outer

    A context manager would not do: Ctrl-C may come as its end is called, before that has done
    anything, and whatever is asked for later would have the wrong location.

    Attributes:
        loc: what ``current()`` is, for operations that are derived from one; None for where the
            user's code runs.
        is_backward: whether that code is called in reverse mode.
        promises: what the functions around it promise of ops.
    """

    loc: Loc | None = None
    is_backward: bool = False
    promises: tuple[Hashable, ...] = ()


ORIGIN: Final = Origin()
_NUMPY: Final = f"{os.sep}site-packages{os.sep}numpy{os.sep}"
_skip: dict[str, bool] = {}


def current(limit: int = MAX_FRAMES) -> Loc:
    """The location of the user's code that is running now.

    While ``ORIGIN.loc`` is set, it is that.

    Args:
        limit: How many frames to keep at most.
    """
    if ORIGIN.loc is not None:
        return ORIGIN.loc
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    raw: list[tuple[CodeType, int]] = []
    while frame is not None:
        code = frame.f_code
        skip = _skip.get(code.co_filename)
        if skip is None:
            skip = _decide_skip(frame)
        if not skip:
            raw.append((code, frame.f_lasti))
            # Who imported the user's module is of no interest.
            if len(raw) >= limit or code.co_name == "<module>":
                break
        frame = frame.f_back
    loc = Loc.__new__(Loc)
    loc._raw = tuple(raw)  # pyright: ignore[reportPrivateUsage]
    loc._frames = None  # pyright: ignore[reportPrivateUsage]
    loc.is_backward = ORIGIN.is_backward
    loc.promises = promises()
    return loc


install_locator(current)


def promises() -> tuple[Hashable, ...]:
    """What the functions around what runs now promise of ops.

    While ``ORIGIN.loc`` is set, it is that of the location: what is derived from an op keeps what
    was promised of it.
    """
    if ORIGIN.loc is not None:
        return ORIGIN.loc.promises
    settings = config.override.get()
    return (settings and settings.promises) or ORIGIN.promises


def of_user(backward: bool = False) -> tuple[None, bool, tuple[Hashable, ...]]:
    """What ``ORIGIN`` is while functions run that the user has written as rules: ``current()`` is
    where they are. What they ask for while something is derived in reverse is derived in reverse,
    too.

    Args:
        backward: whether the function belongs to reverse mode.
    """
    place = ORIGIN.loc
    if place is None:
        return None, ORIGIN.is_backward or backward, ORIGIN.promises
    return None, place.is_backward or backward, place.promises


def _decide_skip(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    if filename == "<string>":
        return is_internal_frame(frame)  # the name is shared, so the answer is not kept
    # NumPy calls `__array__` and the like for the user.
    skip = is_internal_file(filename) or is_glue_file(filename) or _NUMPY in filename
    _skip[filename] = skip
    return skip


def _resolve(code: CodeType, lasti: int) -> Frame:
    positions = next(itertools.islice(code.co_positions(), max(lasti, 0) // 2, None), None)
    line, end_line, column, end_column = positions or (None, None, None, None)
    line = line or code.co_firstlineno
    return Frame(code.co_filename, line, code.co_qualname, column, end_line, end_column)


def _shown_path(filename: str) -> str:
    cell = _cell(filename)
    if cell is not None:
        return cell
    try:
        folder = os.getcwd()
    except OSError:  # the working directory was removed
        return filename
    inside = filename.startswith(folder.rstrip(os.sep) + os.sep)
    return os.path.relpath(filename, folder) if inside else filename


def _cell(filename: str) -> str | None:
    """The cell of a notebook, such as `In[3]`, that the code of a file without a name is from."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    describe: Any = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = describe(filename) if describe is not None else None
    return found[1] if found else None


def _shown_function(qualified: str) -> str:
    return qualified.rpartition("<locals>.")[2]


def _text_column(frame: Frame) -> int:
    column = frame.column or 0
    source = linecache.getline(frame.filename, frame.line)
    return _characters(source, column) if source else column


def _characters(source: str, byte_offset: int) -> int:
    if source.isascii():
        return byte_offset
    return len(source.encode()[:byte_offset].decode(errors="ignore"))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@functools.cache
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # a slow import, needed for messages only

    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({paths[name] + os.sep for name in names if name in paths})


def _is_installed(filename: str) -> bool:
    return filename.startswith((*_library_folders(), "<frozen"))
