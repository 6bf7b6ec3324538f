"""What is known of the dims of a program while it is traced, and what is asked of them.

A function with shape annotations is traced with a symbol for each of its dims. Each name is one
size that nobody knows: it equals another only if the conditions say so. What an op asks for beyond
an equation, such as a slice that must end inside of its dim, is proved from the conditions, or
becomes a guard: checked when the program is called, before it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from tessera.ir import loc
from tessera.ir.constraints import Condition, Relation, System, condition
from tessera.ir.intexpr import Dim, IntExpr, Sym, from_coeffs, sym, symbols
from tessera.ir.unknown import DECIDE


@dataclass(frozen=True)
class Guard:
    """A condition that is checked when a program is called.

    Attributes:
        condition: what must hold.
        loc: the user's line that asks for it.
    """

    condition: Condition
    loc: loc.Loc


class Assumptions:
    """Conditions on the dims of one trace.

    Args:
        system: what holds.
        names: the symbols that it is about.
        given: those of them that others give; they are shown by these.

    Attributes:
        guards: what was asked for and is not known, in order.
        proofs: what was asked for and follows.
    """

    def __init__(self, system: System, names: Sequence[str], given: Collection[str] = ()) -> None:
        self.system = system
        self.names = frozenset(names)
        self.guards: dict[Condition, Guard] = {}
        self.proofs: dict[Condition, loc.Loc] = {}
        self._shown: dict[Dim, Dim] = {}
        for name in sorted(self.names.difference(given)):
            self._shown.setdefault(self._reduced(sym(name)), sym(name))

    def covers(self, e: Dim) -> bool:
        """Whether an expression has such symbols, and no others."""
        found = symbols(e)
        return bool(found) and found <= self.names

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are known to be one size."""
        gap = self._reduced(a - b)
        if isinstance(gap, int):
            return gap == 0
        return self.system.holds(Condition(gap, Relation.EQUAL)) is True

    def asked(self, e: Dim) -> bool:
        """Whether `e >= 0` is known, or is possible and now guarded."""
        if isinstance(e, Sym):
            return True
        return self.asked_for(Condition(e, Relation.LEAST, at_least_text(e)), loc.current())

    def asked_for(self, wanted: Condition, place: loc.Loc) -> bool:
        """Whether a condition is known, or is possible and now guarded, for the user's line."""
        if wanted in self.guards or wanted in self.proofs:
            return True
        found = self.system.holds(wanted)
        if found is False:
            return False
        if found:
            self.proofs[wanted] = place
        else:
            self.guards[wanted] = Guard(wanted, place)
        return True

    def largest(self, e: Dim) -> int | None:
        """The greatest size that an expression can have, which is then noted as proved; None if
        that is not known."""
        high = self.system.bounds(e)[1]
        if high is not None:
            asked = Condition(high - e, Relation.LEAST, f"{e} <= {high}")
            self.proofs.setdefault(asked, loc.current())
        return high

    def shown(self, e: Dim) -> Dim:
        """The simplest expression that users wrote of what equals `e`, or else `e` itself.

        With `D % 8 == 0`, `4*(D // 4)` is `D`. Results of ops are told so, and are then compared
        by what they are.
        """
        if isinstance(e, int) or not self.covers(e):
            return e
        reduced = self._reduced(e)
        return self._shown.setdefault(reduced, reduced if symbols(reduced) <= self.names else e)

    def attribute(self, value: Any) -> Any:
        """An attribute of an op with its dims as they are shown."""
        if isinstance(value, IntExpr):
            return self.shown(value)
        if isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            fresh = tuple([self.attribute(item) for item in items])
            return items if all([a is b for a, b in zip(items, fresh, strict=True)]) else fresh
        return value

    def _reduced(self, e: Dim) -> Dim:
        return self.system.reduce(e) if self.covers(e) else e


_CURRENT: ContextVar[Assumptions | None] = ContextVar("tessera.assumptions", default=None)


def current() -> Assumptions | None:
    """What is known of the dims of the program that is being traced, if anything."""
    return _CURRENT.get()


def about(e: Dim) -> Assumptions | None:
    """What is known of an expression with symbols."""
    found = _CURRENT.get()
    return found if found is not None and found.covers(e) else None


@contextmanager
def assuming(assumptions: Assumptions | None) -> Generator[None]:
    """Puts assumptions in force for a block."""
    token = _CURRENT.set(assumptions)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def decide(left: Dim, relation: str, right: Dim) -> bool | None:
    """Whether a comparison holds; None where that is not known."""
    asked = condition(left, relation, right if isinstance(right, IntExpr) else int(right))
    if isinstance(asked.expr, int):
        return asked.satisfied({})
    known = about(asked.expr)
    return (System() if known is None else known.system).holds(asked)


def at_least_text(e: Dim) -> str:
    """`e >= 0` as users would write it: `S >= 4` for `S - 4`, `S <= 8` for `8 - S`."""
    if isinstance(e, int):
        return f"{e} >= 0"
    left = from_coeffs({mono: c for mono, c in e.coeffs.items() if c > 0})
    right = left - e
    return f"{right} <= {left}" if isinstance(left, int) else f"{left} >= {right}"


DECIDE.append(decide)
