"""All programs by family."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cpu.program import Program, Size

if TYPE_CHECKING:
    from cpu.running import Row

FAMILIES = (
    *("products", "elementwise", "rows", "attention", "training", "recurrent", "indexing"),
    *("science", "images", "matrices", "inference", "costs"),
)


@dataclass(frozen=True)
class Case:
    """A program in one size."""

    program: Program
    size: Size

    @property
    def label(self) -> str:
        """Its name."""
        return self.program.label(self.size)


@cache
def programs() -> tuple[Program, ...]:
    """All programs."""
    found: list[Program] = []
    for family in FAMILIES:
        module = importlib.import_module(f"cpu.{family}")
        for program in module.PROGRAMS:
            program.family = family
            found.append(program)
    names = [p.name for p in found]
    assert len(set(names)) == len(names), "two programs have one name"
    return tuple(found)


def find(name: str) -> Program:
    """The program of a name."""
    return next(p for p in programs() if p.name == name)


def cases(words: list[str], quick: bool) -> list[Case]:
    """The cases whose family or label has one of the words, all if there are none."""
    found: list[Case] = []
    for program in programs():
        for place, size in enumerate(program.sizes):
            case = Case(program, size)
            text = f"{program.family} {case.label}"
            if (not quick or place in program.quick) and (
                not words or any(word in text for word in words)
            ):
                found.append(case)
    return found


def late(rows: Iterable[Row]) -> list[str]:
    """What takes Tessera longer than promised."""
    found: list[str] = []
    for row in rows:
        bar = next((p.bar for p in programs() if p.name == row.program), 0.0)
        ours = row.contenders.get("tessera")
        if bar and ours is not None and not ours.problem and ours.median > bar:
            found.append(f"{row.case}: {ours.median * 1e6:.3g} us, at most {bar * 1e6:.3g}")
    return found
