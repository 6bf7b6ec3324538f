"""The text of one program for LLVM in several modules, which threads compile at the same time.

A program of few lines is one module, as `write_module` writes it. Of a longer one, kernels fill one
module after another in their order, a short one first, and the entry with what runs pieces has the
last. Functions that others call are hidden: the linker finds them, nobody else does. Functions that
are finished (`FINISHED`) have modules of their own; those that hardly run (`RARE`) stand beside the
entry. The cut depends on the program alone, so that its code is the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tessera.ir.core import Func, Module, Op
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.llvm import host
from tessera.target.llvm.addresses import is_streamed
from tessera.target.llvm.text import Part, Writer, repeats
from tessera.target.llvm.writer import RULES
from tessera.target.machine import Machine
from tessera.target.types import VecType
from tessera.tile.types import FINISHED, RARE

LENGTH = {False: 1000, True: 250}
"""A module takes functions until it has so many lines, which LLVM works on for about 0.1 s, or, of
those that are finished, 0.01 s. What a module costs beside its functions is 3 ms, and 0.5 ms."""

FIRST = 200
"""The same for the first module, so that another thread begins while the rest is written; each of
the next ones has half as many again."""

Passes = Literal["all", "few", "none"]
"""Which of LLVM's passes run over a text before it becomes instructions: its standard ones, those
that loops over rows of vectors need, or none."""


@dataclass(frozen=True, slots=True)
class ModuleText:
    """One module.

    Attributes:
        text: LLVM IR.
        passes: which of LLVM's it needs.
        is_glue: whether it only starts the functions of others, once a call each; optimised, it
            would take a fifth of the time that the whole program takes, and run no faster.
        is_last: whether no other follows.
    """

    text: str
    passes: Passes
    is_glue: bool = False
    is_last: bool = False


def write_modules(module: Module, machine: Machine, entry: str) -> list[ModuleText]:
    """LLVM IR text of a Target module, in modules.

    Args:
        module: legalized Target IR.
        machine: the CPU.
        entry: as for `write_module`.
    """
    found: list[ModuleText] = []
    writer = ModuleWriter(machine, found.append, repeats(module.entry))
    for func in module.funcs.values():
        if func is not module.entry:
            writer.add(func)
    writer.finish(module, entry)
    return found


class ModuleWriter:
    """Writes functions one after the other, and gives away each module once it is full.

    Args:
        machine: the CPU.
        take: what is done with each module.
        repeats: whether the entry runs some functions many times; they stand beside it then, if
            they are no more than a module.
    """

    def __init__(
        self, machine: Machine, take: Callable[[ModuleText], None], repeats: bool = False
    ) -> None:
        self._take = take
        # The lines of the next module of functions that are not finished.
        self._length = LENGTH[False] if repeats else FIRST
        self._writer = Writer(machine, RULES, host.frame)
        self._known: dict[str, Part] = {}
        # The functions of the modules that are not full yet, and how many lines they have.
        self._open: dict[bool, list[str]] = {False: [], True: []}
        self._lines = {False: 0, True: 0}
        self._rare: list[str] = []
        self._is_one = True
        # Whether those that are not finished need few passes.
        self._is_plain = True

    def add(self, func: Func) -> None:
        """Writes a function that is not the entry, and calls only those that were added before."""
        is_finished = FINISHED in func.attrs
        if func.attrs.get(FINISHED) == RARE:
            self._known[func.name] = self._writer.func(func, optimize=False)
            self._rare.append(func.name)
            self._is_one = False
            return
        length = LENGTH[True] if is_finished else self._length
        is_full = self._lines[is_finished] >= length
        self._is_one &= not (is_full or is_finished)
        if is_full:
            self._give(is_finished)
        if is_finished and self._lines[False] >= LENGTH[True]:
            # There are several modules anyway: a thread begins while what is finished is written.
            self._give(False)
        part = self._known[func.name] = self._writer.func(func)
        if self._is_plain and not is_finished:
            followers = self._writer.addresses.followers
            self._is_plain = all([_is_plain(op, followers) for op in walk(func.body)])
        self._open[is_finished].append(func.name)
        self._lines[is_finished] += len(part.lines)

    def finish(self, module: Module, entry: str) -> None:
        """Writes the entry, once the other functions of a program are written."""
        w = self._writer
        is_plain = all([_is_plain(op) for op in walk(module.entry.body)])
        if self._is_one:
            text = w.finish(module, entry)
            is_plain &= self._is_plain
            self._take(ModuleText(text, "few" if is_plain else "all", is_last=True))
            return
        for is_finished, names in self._open.items():
            if names:
                self._give(is_finished)
        first = len(w.lines)
        w.entry(module.entry, entry)
        self._known[entry] = Part(w.lines[first:], w.needs, "")
        text = _group_text(w, self._known, [*self._rare, entry])
        is_glue = not repeats(module.entry)
        passes: Passes = "none" if is_glue else "few" if is_plain else "all"
        self._take(ModuleText(text, passes, is_glue, is_last=True))

    def _give(self, is_finished: bool) -> None:
        text = _group_text(self._writer, self._known, self._open[is_finished])
        self._open[is_finished], self._lines[is_finished] = [], 0
        if is_finished:
            self._take(ModuleText(text, "none"))
            return
        self._take(ModuleText(text, "few" if self._is_plain else "all"))
        self._is_plain = True
        self._length = min(LENGTH[False], self._length * 3 // 2)


def _group_text(w: Writer, known: dict[str, Part], group: Sequence[str]) -> str:
    """A module of some functions."""
    lines: list[str] = []
    needs: dict[str, None] = {}
    for name in group:
        first, *others = known[name].lines
        lines += [first.replace("define internal", "define hidden", 1), *others]
        needs.update(dict.fromkeys(known[name].needs))
    lines += [*w.attributes(True), *_declarations(w, known, needs, group)]
    return "\n".join(lines) + "\n"


def _declarations(
    w: Writer, known: dict[str, Part], needs: dict[str, None], own: Sequence[str]
) -> list[str]:
    """What a module takes from elsewhere."""
    others = [name for name in needs if name not in own]
    return [known[n].declaration if n in known else w.declared[n] for n in others]


def _is_plain(op: Op, followers: Collection[Op] = ()) -> bool:
    """Whether an op needs few of LLVM's passes. Of loops that go through memory element by element
    the others make more, and they find that tests of the addresses of several streamed rows are
    one."""
    if not isinstance(op, t.For):
        return True
    streams = [one for one in op.body.ops if is_streamed(one) and one not in followers]
    if len(streams) > 1:
        return False
    code = list(walk(op.body))
    is_scalar = not any([isinstance(v.type, VecType) for one in code for v in one.results])
    return not (is_scalar and {t.Load, t.Store} <= {type(one) for one in code})
