"""Conditions on symbolic dims, and what follows from them.

A condition is an equation or an inequality of integer expressions: `D % 8 == 0`, `S <= 8192`,
`B in 1..=4096`, `H == D // 64`. A `System` holds several, and answers what they say of any
expression: its bounds, whether another condition follows or is impossible, and values that satisfy
all.

Equations are solved for symbols as they come, as in the omega test: what is left is a set of free
symbols with ranges, and an expression over these for every symbol of the user. `D % 8 == 0` makes
`D` into `8*$0`, and from then on every expression with `D` says that it is a multiple. Inequalities
tighten ranges until nothing changes.

Answers are sound, and not complete: None is "not known". A contradiction is one; that there is none
is only certain if `solution` finds values.

>>> system = System([*parse_conditions("D % 8 == 0"), *parse_conditions("8 <= D <= 100")])
>>> system.bounds(sym("D")), system.holds(parse_conditions("D % 4 == 0")[0])
((8, 96), True)

Source: W. Pugh, The Omega test (1991), for equations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import gcd
from typing import Final

from tessera.ir.intexpr import (
    Dim,
    Facts,
    FloorDiv,
    Mod,
    Sym,
    evaluate,
    parse,
    simplify,
    substitute,
    sym,
    symbols,
)
from tessera.ir.intnode import Mono, children, coeffs_of

MAX_ROUNDS: Final = 24
"""How often inequalities are gone through to tighten ranges."""

MAX_NODES: Final = 20_000
"""How many values `solution` tries."""

MAX_TRIED: Final = 256
"""How many values it tries of a symbol that has no upper bound."""


class Relation(Enum):
    """How a condition's expression compares with 0."""

    EQUAL = "=="
    """It is 0."""
    LEAST = ">="
    """It is 0 or more."""


@dataclass(frozen=True)
class Condition:
    """An expression compared with 0.

    Attributes:
        expr: the expression.
        relation: how it compares.
        text: what the user wrote, or a readable form.
    """

    expr: Dim
    relation: Relation
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text or f"{self.expr} {self.relation.value} 0"

    def satisfied(self, env: Mapping[str, int]) -> bool:
        """Whether it holds for values of its symbols."""
        value = evaluate(self.expr, env)
        return value == 0 if self.relation is Relation.EQUAL else value >= 0


_COMPARISON = re.compile(r"(<=|>=|==|<|>|(?<![<>=!])=(?!=)|!=)")
_MEMBER = re.compile(r"(?P<name>.+?)\s+in\s+(?P<low>.+?)\.\.(?P<closed>=?)(?P<high>.+)")


def parse_conditions(text: str) -> list[Condition]:
    """The conditions of a text: comparisons, also in a chain, or a range.

    >>> [str(c.expr) for c in parse_conditions("1 <= B < 9")]
    ['B - 1', '-B + 8']

    Raises:
        ValueError: it is neither.
    """
    member = _MEMBER.fullmatch(text)
    if member is not None:
        comparison = "<=" if member["closed"] else "<"
        text = f"{member['low']} <= {member['name']} {comparison} {member['high']}"
    parts = _COMPARISON.split(text)
    if len(parts) < 3:
        raise ValueError(
            f"{text!r} compares nothing: write `D % 8 == 0`, `S <= 8192`, `1 <= B <= 4096` or"
            " `B in 1..=4096`"
        )
    sides = [parse(part) for part in parts[::2]]
    found: list[Condition] = []
    for k, (left, right) in enumerate(pairwise(sides)):
        own = text.strip() if len(sides) == 2 else f"{left} {parts[2 * k + 1]} {right}"
        found.append(condition(left, parts[2 * k + 1], right, own))
    return found


def condition(left: Dim, relation: str, right: Dim, text: str = "") -> Condition:
    """A comparison of two expressions.

    Args:
        left: one side.
        relation: one of ``== <= < >= >``.
        right: the other side.
        text: what messages call it.

    Raises:
        ValueError: another relation.
    """
    text = text or f"{left} {relation} {right}"
    match relation:
        case "==":
            return Condition(left - right, Relation.EQUAL, text)
        case "<=":
            return Condition(right - left, Relation.LEAST, text)
        case "<":
            return Condition(right - left - 1, Relation.LEAST, text)
        case ">=":
            return Condition(left - right, Relation.LEAST, text)
        case ">":
            return Condition(left - right - 1, Relation.LEAST, text)
        case _:
            raise ValueError(f"{text!r}: the relations are ==, <=, <, >= and >, not {relation}")


class _Impossible(Exception):
    """Conditions contradict each other."""


class System:
    """Conditions that hold together.

    Symbols are dims, 0 or more, and what they divide by is 1 or more.

    Attributes:
        conditions: what was given.
        is_impossible: whether they are known to contradict each other.
    """

    def __init__(self, conditions: Iterable[Condition] = ()) -> None:
        self.conditions: tuple[Condition, ...] = ()
        self.is_impossible = False
        self._solved: dict[str, Dim] = {}
        self._ranges: dict[str, tuple[int | None, int | None]] = {}
        self._open: list[Condition] = []
        self._fresh = 0
        self._facts: Facts | None = None
        self._take(tuple(conditions))

    def adding(self, *conditions: Condition) -> System:
        """A system of these conditions and more."""
        new = System()
        new.conditions, new.is_impossible = self.conditions, self.is_impossible
        new._solved, new._ranges = dict(self._solved), dict(self._ranges)
        new._open, new._fresh, new._facts = list(self._open), self._fresh, self._facts
        new._take(conditions)
        return new

    def _take(self, conditions: tuple[Condition, ...]) -> None:
        self.conditions += conditions
        if self.is_impossible:
            return
        try:
            for each in conditions:
                for den in _divisors(each.expr):
                    self._add(den - 1, Relation.LEAST)
                self._add(each.expr, each.relation)
            self._tighten()
        except _Impossible:
            self.is_impossible = True

    # --- questions ---

    def reduce(self, e: Dim) -> Dim:
        """An expression over free symbols that has the same value.

        Raises:
            ZeroDivisionError: it divides by what is known to be 0.
        """
        self._introduce(e)
        return simplify(substitute(e, self._solved), self.facts)

    @property
    def facts(self) -> Facts:
        """The ranges of the free symbols."""
        if self._facts is None:
            self._facts = Facts(self._ranges)
        return self._facts

    def bounds(self, e: Dim) -> tuple[int | None, int | None]:
        """An interval that holds the value of an expression; None is no known end.

        What it divides by is taken to be 1 or more, here and in all questions.
        """
        system = self._asked(e)
        if system.is_impossible:
            return (None, None)
        reduced = system.reduce(e)
        return system.facts.lower(reduced), system.facts.upper(reduced)

    def divisor(self, e: Dim) -> int:
        """The greatest int that is known to divide an expression; 0 if it is 0."""
        system = self._asked(e)
        return 1 if system.is_impossible else system.facts.divisor(system.reduce(e))

    def holds(self, asked: Condition) -> bool | None:
        """Whether a condition follows: True; never holds: False; or None, which is not known."""
        system = self._asked(asked.expr)
        if system.is_impossible:
            return True
        found = system._by_bounds(asked)
        if found is not None:
            return found
        if system.adding(asked).is_impossible:
            return False
        if asked.relation is Relation.LEAST:
            others = [Condition(-asked.expr - 1, Relation.LEAST)]
        else:
            others = [Condition(s * asked.expr - 1, Relation.LEAST) for s in (1, -1)]
        return True if all(system.adding(other).is_impossible for other in others) else None

    def _asked(self, e: Dim) -> System:
        """The system in which a question about an expression has a meaning."""
        divisors = [Condition(den - 1, Relation.LEAST) for den in _divisors(e)]
        return self.adding(*divisors) if divisors else self

    def _by_bounds(self, asked: Condition) -> bool | None:
        low, high = self.bounds(asked.expr)
        if asked.relation is Relation.LEAST:
            if low is not None and low >= 0:
                return True
            return False if high is not None and high < 0 else None
        if low == high == 0:
            return True
        beyond = (low is not None and low > 0) or (high is not None and high < 0)
        return False if beyond or _has_remainder(self.reduce(asked.expr)) else None

    def contradiction(self) -> tuple[Condition, ...]:
        """Conditions that contradict each other, none of which could be left out; else none."""
        if not self.is_impossible:
            return ()
        core = list(self.conditions)
        for each in self.conditions:
            fewer = [other for other in core if other is not each]
            if System(fewer).is_impossible:
                core = fewer
        return tuple(core)

    def solution(self) -> dict[str, int] | None:
        """The least values found that satisfy all; None where there are none, or many were tried.

        Symbols come in the order in which the conditions mention them, each as small as those
        before it allow.
        """
        names = list(dict.fromkeys(n for c in self.conditions for n in sorted(symbols(c.expr))))
        budget = [MAX_NODES]
        found = None if self.is_impossible else _search(self, names, {}, budget)
        return found

    # --- solving ---

    def _introduce(self, e: Dim) -> None:
        """Gives symbols that are new their range."""
        for name in symbols(e):
            if name not in self._solved and name not in self._ranges:
                self._ranges[name] = (0, None)
                self._facts = None

    def _new(self) -> Sym:
        """A free symbol for any integer."""
        name = f"${self._fresh}"
        self._fresh += 1
        self._ranges[name] = (None, None)
        self._facts = None
        found = sym(name)
        assert isinstance(found, Sym)
        return found

    def _add(self, e: Dim, relation: Relation) -> None:
        e = self.reduce(e)
        if isinstance(e, int):
            if e < 0 or (e > 0 and relation is Relation.EQUAL):
                raise _Impossible
        elif relation is Relation.EQUAL:
            self._solve(e)
        else:
            self._open.append(Condition(e, relation))

    def _solve(self, e: Dim) -> None:
        """Takes an equation of an expression and 0 in."""
        if _has_remainder(e):
            raise _Impossible
        terms = coeffs_of(e)
        common = gcd(*terms.values())
        terms = {mono: c // common for mono, c in terms.items()}
        e = _sum(terms)
        plain = {
            mono[0].name: c
            for mono, c in terms.items()
            if len(mono) == 1 and isinstance(mono[0], Sym)
        }
        # A symbol that occurs elsewhere, too, cannot be moved to the other side.
        others = _sum({m: c for m, c in terms.items() if not _is_plain(m)})
        free = {name: c for name, c in plain.items() if name not in symbols(others)}
        for name, c in free.items():
            if abs(c) == 1:
                self._define(name, (e - c * sym(name)) * -c)
                return
        if free and not symbols(others):
            self._reduce_coefficients(e, free)
        elif not self._solve_atom(e, others):
            self._open.append(Condition(e, Relation.EQUAL))

    def _reduce_coefficients(self, e: Dim, plain: dict[str, int]) -> None:
        """A linear equation whose coefficients are not 1: Euclid's algorithm on two of them."""
        name = min(plain, key=lambda n: (abs(plain[n]), n))
        least = plain[name]
        # With t = name + sum of the quotients, coefficients become remainders.
        t = self._new()
        rest = coeffs_of(e - least * sym(name))
        quotients = _sum({mono: c // least for mono, c in rest.items()})
        self._define(name, t - quotients)
        self._add(substitute(e, {name: t - quotients}), Relation.EQUAL)

    def _solve_atom(self, e: Dim, others: Dim) -> bool:
        """An equation with a remainder or a quotient by a number, whose coefficient is 1."""
        for mono, c in coeffs_of(others).items():
            if len(mono) != 1 or abs(c) != 1:
                continue
            atom = mono[0]
            rest = (e - c * atom) * -c  # the atom's value
            if isinstance(atom, Mod) and isinstance(atom.den, int):
                if not isinstance(rest, int):
                    continue
                if not 0 <= rest < atom.den:
                    raise _Impossible
                self._add(atom.num - rest - atom.den * self._new(), Relation.EQUAL)
                return True
            if isinstance(atom, FloorDiv) and isinstance(atom.den, int):
                left = atom.num - atom.den * rest
                self._add(left, Relation.LEAST)
                self._add(atom.den - 1 - left, Relation.LEAST)
                return True
        return False

    def _define(self, name: str, value: Dim) -> None:
        """Replaces a free symbol."""
        low, high = self._ranges.pop(name)
        self._facts = None
        to = {name: value}
        self._solved = {n: substitute(e, to) for n, e in self._solved.items()}
        self._solved[name] = value
        waiting, self._open = self._open, []
        for each in waiting:
            self._add(each.expr, each.relation)
        if low is not None:
            self._add(value - low, Relation.LEAST)
        if high is not None:
            self._add(high - value, Relation.LEAST)

    def _tighten(self) -> None:
        """Ranges from inequalities, until nothing changes."""
        for _ in range(MAX_ROUNDS):
            before = dict(self._ranges)
            count = len(self._open)
            waiting, self._open = self._open, []
            for each in waiting:
                self._add(each.expr, each.relation)
            for each in list(self._open):
                self._tighten_by(each)
            if self._ranges == before and len(self._open) == count:
                return

    def _tighten_by(self, each: Condition) -> None:
        e = each.expr
        low, high = self.facts.lower(e), self.facts.upper(e)
        if high is not None and high < 0:
            raise _Impossible
        if each.relation is Relation.EQUAL and low is not None and low > 0:
            raise _Impossible
        for signed in (e, -e) if each.relation is Relation.EQUAL else (e,):
            for mono, c in coeffs_of(signed).items():
                if len(mono) == 1 and isinstance(mono[0], Sym):
                    self._limit(mono[0].name, c, self.facts.upper(signed - c * mono[0]))

    def _limit(self, name: str, c: int, most: int | None) -> None:
        """From `c * name + rest >= 0`, where the rest is at most so much."""
        if most is None or name not in self._ranges:  # replaced meanwhile: the next round sees it
            return
        low, high = self._ranges[name]
        end = -(most // c) if c > 0 else most // -c
        if c > 0:
            low = end if low is None else max(low, end)
        else:
            high = end if high is None else min(high, end)
        if low is not None and high is not None:
            if low > high:
                raise _Impossible
            if low == high:
                self._define(name, low)
                return
        if self._ranges[name] != (low, high):
            self._ranges[name] = (low, high)
            self._facts = None


def _divisors(e: Dim) -> list[Dim]:
    """What an expression divides by, besides numbers."""
    found: list[Dim] = []
    for child in () if isinstance(e, int) else children(e):
        found += _divisors(child)
    if isinstance(e, (FloorDiv, Mod)) and not isinstance(e.den, int):
        found.append(e.den)
    return found


def _is_plain(mono: Sequence[object]) -> bool:
    """Whether a product is a number or one symbol."""
    return not mono or (len(mono) == 1 and isinstance(mono[0], Sym))


def _sum(terms: Mapping[Mono, int]) -> Dim:
    total: Dim = 0
    for mono, c in terms.items():
        product: Dim = c
        for atom in mono:
            product = product * atom
        total = total + product
    return total


def _has_remainder(e: Dim) -> bool:
    """Whether an expression cannot be 0, since all but its constant has a common divisor."""
    terms = dict(coeffs_of(e))
    constant = terms.pop((), 0)
    common = gcd(*terms.values())
    return constant % common != 0 if common else constant != 0


def _search(
    system: System, names: Sequence[str], env: dict[str, int], budget: list[int]
) -> dict[str, int] | None:
    if not names:
        return env if all(c.satisfied(env) for c in system.conditions) else None
    name, *rest = names
    low, high = system.bounds(sym(name))
    first = low or 0
    last = first + MAX_TRIED if high is None else high
    for value in range(first, last + 1):
        if budget[0] <= 0:
            return None
        budget[0] -= 1
        smaller = system.adding(Condition(sym(name) - value, Relation.EQUAL))
        if smaller.is_impossible:
            continue
        found = _search(smaller, rest, {**env, name: value}, budget)
        if found is not None:
            return found
    return None
