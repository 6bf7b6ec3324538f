"""The text of one program for LLVM in several modules, which threads compile at the same time.

A program of few lines is one module, as `write_module` writes it. Of a longer one, kernels fill one
module after another in their order, and the entry with what runs pieces has the last. Functions
that others call are hidden: the linker finds them, nobody else does. Functions that are finished
(`FINISHED`) have modules of their own. The cut depends on the program alone, so that its code is
the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.ir.core import Func, Module
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.build import FINISHED
from tessera.target.llvm import host
from tessera.target.llvm.text import Part, Writer
from tessera.target.llvm.writer import RULES
from tessera.target.machine import Machine

ModuleGroup = tuple[list[str], bool]
"""The functions of a module, and whether they are finished."""

LENGTH = 1000
"""A module takes functions until it has so many lines, which LLVM works on for about 0.1 s. What a
module costs beside its functions is 3 ms."""


@dataclass(frozen=True, slots=True)
class ModuleText:
    """One module.

    Attributes:
        text: LLVM IR.
        is_glue: whether it only starts the functions of others, once a call each; optimised, it
            would take a fifth of the time that the whole program takes, and run no faster.
        is_finished: whether LLVM's passes are left out.
    """

    text: str
    is_glue: bool = False
    is_finished: bool = False


def write_modules(module: Module, machine: Machine, entry: str) -> Iterator[ModuleText]:
    """LLVM IR text of a Target module, one module after the other.

    Args:
        module: legalized Target IR.
        machine: the CPU.
        entry: as for `write_module`.
    """
    w = Writer(machine, RULES, host.frame)
    known: dict[str, Part] = {}
    groups: list[ModuleGroup] = []
    for is_finished in (False, True):
        length = LENGTH
        for name, func in module.funcs.items():
            if func is module.entry or (FINISHED in func.attrs) is not is_finished:
                continue
            if length >= LENGTH:
                groups.append(([], is_finished))
                length = 0
            part = known[name] = w.func(func)
            groups[-1][0].append(name)
            length += len(part.lines)
    if len(groups) < 2 and not any(is_finished for _, is_finished in groups):
        yield ModuleText(w.finish(module, entry))
        return
    for names, is_finished in groups:
        yield ModuleText(_group_text(w, known, names), is_finished=is_finished)
    first = len(w.lines)
    w.entry(module.entry, entry)
    lines = [*w.lines[first:], *w.attributes(True), *_declarations(w, known, w.needs, ())]
    yield ModuleText("\n".join(lines) + "\n", not _repeats(module.entry))


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


def _repeats(main: Func) -> bool:
    """Whether the entry may run something of its own many times."""
    return any(isinstance(op, (t.For, t.While)) for op in walk(main.body))
