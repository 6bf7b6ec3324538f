"""Classes of sizes: those that have an executable of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.annotations import DimVar
from tessera.ir.constraints import Condition, System, condition
from tessera.ir.intexpr import Sym, sym

Anchor = int | None
Case = tuple[str, Anchor, int]
"""A name, its size if it is one, and what is known to divide it."""


@dataclass(frozen=True)
class Specialization:
    """A class of sizes with an executable of its own.

    Attributes:
        conditions: what tells it, by name: `"S == 128"`, `"S % 16 == 0"`, or nothing.
        compiled: how many executables it has: one for each set of dtypes, structures and static
            values that it was called with.
    """

    conditions: tuple[str, ...]
    compiled: int

    def __str__(self) -> str:
        text = ", ".join(self.conditions) or "all other sizes"
        return f"{text}: {'compiled' if self.compiled else 'not compiled yet'}"


class Specializations(tuple[Specialization, ...]):
    """The classes of a function, printable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


class Classes:
    """The classes of one function.

    Args:
        names: of the dims.
        declared: what `ts.dim` said of some.
        system: the conditions.
    """

    def __init__(
        self, names: Sequence[str], declared: Mapping[str, DimVar], system: System
    ) -> None:
        self.names = names
        self.declared = declared
        self.system = system

    def all(self) -> Iterator[tuple[Case, ...]]:
        """The classes of sizes, those with more conditions first."""
        options: list[list[Case]] = []
        for name in self.names:
            dim = self.declared.get(name)
            own: list[Case] = []
            if dim is not None and isinstance(dim.expr, Sym):
                own = [(name, size, 1) for size in dim.anchors]
                own += [(name, None, dim.tile)] if dim.tile > 1 else []
            if own:
                options.append([*own, (name, None, 1)])
        for case in itertools.product(*options):
            system = self.system.adding(*conditions_of(case))
            if not system.is_impossible and not self._is_elsewhere(case, system):
                yield case

    def _is_elsewhere(self, case: tuple[Case, ...], system: System) -> bool:
        """Whether all sizes of a class belong to classes with more conditions."""
        for name, size, divisor in case:
            dim = self.declared[name]
            low, high = system.bounds(sym(name))
            is_anchor = low == high and low in dim.anchors
            is_tiled = size is None and divisor == 1 and dim.tile > 1
            if size is None and is_anchor:
                return True
            if is_tiled and system.divisor(sym(name)) % dim.tile == 0:
                return True
        return False

    def of(self, env: Mapping[str, int]) -> tuple[Case, ...]:
        """The class of some sizes."""
        found: list[Case] = []
        for name in self.names:
            dim = self.declared.get(name)
            if dim is None or not isinstance(dim.expr, Sym) or not (dim.anchors or dim.tile > 1):
                continue
            size = env[name]
            if size in dim.anchors:
                found.append((name, size, 1))
            else:
                found.append((name, None, dim.tile if size % dim.tile == 0 else 1))
        return tuple(found)


def conditions_of(case: tuple[Case, ...]) -> list[Condition]:
    """What tells a class from the others."""
    found: list[Condition] = []
    for name, size, divisor in case:
        if size is not None:
            found.append(condition(sym(name), "==", size))
        elif divisor > 1:
            found.append(condition(sym(name) % divisor, "==", 0))
    return found


def text_of(case: tuple[Case, ...]) -> str:
    """What messages call a class."""
    return ", ".join([str(c) for c in conditions_of(case)]) or "all other sizes"
