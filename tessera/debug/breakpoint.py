"""Stopping a program to look at it: `ts.debug.breakpoint`, and its prompt."""

from __future__ import annotations

import bdb
import builtins
import cmd
import linecache
import pprint
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO

from tessera import pytree
from tessera.api.host import Call
from tessera.errors import TesseraError, api_boundary, is_glue_file, is_internal_frame
from tessera.graph.trace import Tracer
from tessera.ir import loc

MAX_FRAMES = 16
"""How many frames the prompt can go up, unless told otherwise."""


@dataclass(frozen=True)
class _Frame:
    """A running function of the user's, as the prompt shows it."""

    place: loc.Frame
    names: dict[str, Any]
    outer: dict[str, Any]


@api_boundary
def breakpoint(
    *,
    num_frames: int | None = None,
    ordered: bool = True,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
) -> None:
    """Stops a program here, also a compiled one, and opens a prompt.

    The prompt has the variables of the functions that were running when the program was traced;
    traced values among them have the values of this run. It comes whenever the program gets here:
    in each step of a loop, for each example under `ts.vmap`. Commands are those of `pdb`: `p`,
    `pp`, `l`, `w`, `u`, `d`, `a`, `c`, `q`; anything else is evaluated.

    Args:
        num_frames: how many functions to keep the variables of; by default up to 16.
        ordered: as for `ts.debug.callback`.
        stdin: where commands come from; by default the terminal.
        stdout: where answers go.

    Raises:
        PromptQuit: `q` was typed, or the input came to its end.

    Example:
        >>> import io
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     y = x * x
        ...     ts.debug.breakpoint(stdin=io.StringIO("p x, y\\nc\\n"))
        ...     return y
        >>> _ = f(3.0)  # doctest: +ELLIPSIS
        stopped at ...
        (tessera) (Array(3., dtype=float32), Array(9., dtype=float32))
        (tessera) 
    """
    del ordered
    frames = _frames(MAX_FRAMES if num_frames is None else max(1, num_frames))
    given: list[dict[str, Any]] = []
    for frame in frames:
        given.append({name: value for name, value in frame.names.items() if _is_traced(value)})
        # The program lives longer than its trace, which must not be kept.
        frame.names.update(dict.fromkeys(given[-1]))

    def stop(*values: dict[str, Any]) -> None:
        shown = [
            _Frame(frame.place, {**frame.names, **found}, frame.outer)
            for frame, found in zip(frames, values, strict=True)
        ]
        Prompt(shown, stdin, stdout).run()

    Call("debug.breakpoint", stop, given, {}, named=False).tell()


def _frames(limit: int) -> list[_Frame]:
    """The running functions of the user, innermost first."""
    places = loc.current(limit).frames
    found: list[_Frame] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and len(found) < len(places):
        if not is_internal_frame(frame) and not is_glue_file(frame.f_code.co_filename):
            outer = frame.f_globals
            # The variables of a module are looked up when they are asked for.
            names = {} if frame.f_locals is outer else dict(frame.f_locals)
            found.append(_Frame(places[len(found)], names, outer))
        frame = frame.f_back
    return found


def _is_traced(value: Any) -> bool:
    """Whether a variable holds values that are still to come, and can come here."""
    try:
        leaves = pytree.leaves(value)
    except Exception:  # a container that a user's class takes apart
        return False
    tracers = [x for x in leaves if isinstance(x, Tracer)]
    return bool(tracers) and all(x.trace.alive for x in tracers)


class PromptQuit(TesseraError, bdb.BdbQuit):
    """Somebody ended the program at a prompt."""


class Prompt(cmd.Cmd):
    """The prompt.

    Args:
        frames: innermost first.
        stdin: where commands come from.
        stdout: where answers go.
    """

    prompt = "(tessera) "

    def __init__(
        self, frames: Sequence[_Frame], stdin: TextIO | None = None, stdout: TextIO | None = None
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.frames = frames
        self.position = 0

    def run(self) -> None:
        """Answers until the user goes on."""
        self.show(f"stopped {self.frame.place.render()}")
        self.cmdloop()

    @property
    def frame(self) -> _Frame:
        """The frame that is looked at."""
        return self.frames[self.position]

    def show(self, text: str) -> None:
        """Prints a line."""
        builtins.print(text, file=self.stdout)

    # --- values ---

    def _evaluate(self, text: str) -> Any:
        return eval(text, self._names())

    def _names(self) -> dict[str, Any]:
        # One namespace: functions written at the prompt see the variables of the frame.
        return {**self.frame.outer, **self.frame.names}

    def _answer(self, text: str, show: Any) -> None:
        try:
            self.show(show(self._evaluate(text)))
        except Exception as error:
            self.show("*** " + traceback.format_exception_only(error)[-1].strip())

    def do_p(self, arg: str) -> None:
        """p expression: prints its value."""
        self._answer(arg, repr)

    def do_pp(self, arg: str) -> None:
        """pp expression: prints its value over several lines."""
        self._answer(arg, pprint.pformat)

    def default(self, line: str) -> None:
        """Evaluates or runs what is no command."""
        text = line.removeprefix("!")
        names = self._names()
        try:
            try:
                code = compile(text, "<prompt>", "eval")
            except SyntaxError:
                exec(compile(text, "<prompt>", "exec"), names)
                changed = {k: v for k, v in names.items() if self.frame.outer.get(k) is not v}
                changed.pop("__builtins__", None)
                self.frame.names.update(changed)
                return
            found = eval(code, names)
            if found is not None:
                self.show(repr(found))
        except Exception as error:
            self.show("*** " + traceback.format_exception_only(error)[-1].strip())

    def do_a(self, arg: str) -> None:
        """a: prints the variables of the frame."""
        for name, value in self.frame.names.items():
            self.show(f"{name} = {value!r}")

    # --- places ---

    def do_l(self, arg: str) -> None:
        """l: prints the lines around the place."""
        place = self.frame.place
        for number in range(max(1, place.line - 5), place.line + 6):
            line = linecache.getline(place.filename, number).rstrip()
            if line or number <= place.line:
                mark = "->" if number == place.line else "  "
                self.show(f"{number:4} {mark} {line}".rstrip())

    def do_w(self, arg: str) -> None:
        """w: prints where the program is, the innermost function last."""
        for k in range(len(self.frames) - 1, -1, -1):
            mark = ">" if k == self.position else " "
            self.show(f"{mark} {self.frames[k].place.render()}")

    def do_u(self, arg: str) -> None:
        """u: goes to the caller."""
        self._go(self.position + 1, "the outermost function is shown")

    def do_d(self, arg: str) -> None:
        """d: goes back to what was called."""
        self._go(self.position - 1, "the innermost function is shown")

    def _go(self, position: int, refusal: str) -> None:
        if 0 <= position < len(self.frames):
            self.position = position
            self.show(self.frame.place.render())
        else:
            self.show(f"*** {refusal}")

    # --- the end ---

    def do_c(self, arg: str) -> bool:
        """c: goes on."""
        return True

    def do_q(self, arg: str) -> None:
        """q: ends the program."""
        what = "debug.breakpoint: the program was ended at the prompt"
        raise PromptQuit(what, loc=loc.Loc([self.frames[0].place]))

    def precmd(self, line: str) -> str:
        """Marks what only begins like a command: `w[0]`, `a.shape`, `c = 1`."""
        return f"!{line}" if re.match(r"\w+([^\s\w?]|\s*=[^=])", line) else line

    def emptyline(self) -> bool:
        """An empty line does nothing."""
        return False

    do_print = do_p
    do_list = do_l
    do_where = do_bt = do_w
    do_up = do_u
    do_down = do_d
    do_args = do_a
    do_continue = do_cont = do_c
    do_quit = do_exit = do_EOF = do_q
