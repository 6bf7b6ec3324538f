"""What is known of the symbols of an expression, and the bounds that follow from it.

Every answer is sound: a bound holds for all values that the ranges allow, and False or None means
"not proved". Two arguments are used. *Intervals*: the extremes of each product of atoms, added up.
*Elimination*: an atom in which the sum is linear is replaced with the (symbolic) extreme that makes
the sum least; `S - 1 - i` with `i <= S - 1` is thus at least 0, and `S - S // 4 * 4` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import gcd, inf, isfinite, prod
from typing import Any, TypeAlias

from tessera.ir.intnode import (
    Atom,
    Dim,
    FloorDiv,
    IntExpr,
    Max,
    Min,
    Mod,
    Mono,
    Sym,
    coeffs_of,
    from_coeffs,
    mul,
    symbols,
    without,
)
from tessera.ir.intparse import parse

Range: TypeAlias = "tuple[Dim | None, Dim | None]"
Ranges: TypeAlias = "Mapping[str, tuple[Dim | None, Dim | None]]"

_MAX_DEPTH = 48
_MAX_STEPS = 2000
_CLAUSE = re.compile(
    r"(?P<k>\d+) \| (?P<d>\S+)"
    r"|(?:(?P<lo>[^<]+) <= )?(?P<n>\$\w+|[^\W\d]\w*)(?: <= (?P<hi>[^<]+))?"
)


class Facts(Mapping[str, "tuple[Dim | None, Dim | None]"]):
    """Ranges and known divisors of symbols; remembers what it has proved.

    Any function that takes ranges takes one of these; use it where many expressions share ranges.
    A symbol without an entry has its default range; an entry replaces the default as a whole.
    One thread at a time may use an object.
    """

    def __init__(
        self, ranges: Ranges | None = None, multiples: Mapping[str, int] | None = None
    ) -> None:
        """Args:
        ranges: for a symbol its inclusive (low, high); None is no bound; bounds may be symbolic.
        multiples: for a symbol a positive int that divides it.
        """
        self._ranges = dict(ranges or {})
        self.multiples = dict(multiples or {})
        self.simplified: dict[IntExpr, Dim] = {}
        # Facts of these and more, by what is more; for whoever makes the same ones often.
        self.within: dict[Any, Facts] = {}
        self._lower: dict[IntExpr, int | None] = {}
        self._upper: dict[IntExpr, int | None] = {}
        self._depth = 0
        self._steps = 0

    @classmethod
    def of(cls, ranges: Ranges | None) -> Facts:
        """``ranges`` as facts; the same object where it is one."""
        return ranges if isinstance(ranges, Facts) else cls(ranges)

    @classmethod
    def parse(cls, text: str) -> Facts:
        """Facts from text such as ``0 <= i <= n - 1; 1 <= n; 8 | D``."""
        ranges: dict[str, Range] = {}
        multiples: dict[str, int] = {}
        for clause in filter(None, (part.strip() for part in text.split(";"))):
            match = _CLAUSE.fullmatch(clause)
            if match is None:
                raise ValueError(f"{clause!r} is neither `low <= name <= high` nor `k | name`")
            if match["k"]:
                multiples[match["d"]] = int(match["k"])
            else:
                low, high = match["lo"], match["hi"]
                ranges[match["n"]] = (parse(low) if low else None, parse(high) if high else None)
        return cls(ranges, multiples)

    def __getitem__(self, name: str) -> Range:
        return self._ranges[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def range_of(self, name: str) -> Range:
        """The range of a symbol: its entry, or else its default."""
        found = self._ranges.get(name)
        if found is None:
            return (None, None) if name.startswith("$") else (0, None)
        return found

    def lower(self, e: Dim) -> int | None:
        """An int that ``e`` is never less than, or None where none is known."""
        if isinstance(e, int):
            return e
        if e in self._lower:
            return self._lower[e]
        if self._depth == 0:
            self._steps = 0
        self._steps += 1
        if self._depth >= _MAX_DEPTH or self._steps > _MAX_STEPS:
            return None
        self._lower[e] = None  # what a cyclic range finds here
        self._depth += 1
        try:
            bound = self._atom_lower(e) if isinstance(e, Atom) else self._sum_lower(e)
        finally:
            self._depth -= 1
        self._lower[e] = bound
        return bound

    def upper(self, e: Dim) -> int | None:
        """An int that ``e`` is never greater than, or None where none is known."""
        if isinstance(e, int):
            return e
        if not isinstance(e, Atom):
            low = self.lower(mul(e, -1))
            return None if low is None else -low
        if e in self._upper:
            return self._upper[e]
        if self._depth == 0:
            self._steps = 0
        if self._depth >= _MAX_DEPTH:
            return None
        self._upper[e] = None
        self._depth += 1
        try:
            bound = self._atom_upper(e)
        finally:
            self._depth -= 1
        self._upper[e] = bound
        return bound

    def _atom_lower(self, e: Atom) -> int | None:
        match e:
            case Sym():
                low, _ = self.range_of(e.name)
                return None if low is None else self.lower(low)
            case FloorDiv():
                low = self.lower(e.num)
                if low is None:
                    return None
                least, most = self._divisor(e.den)
                by = most if low >= 0 else least
                return 0 if by is None else low // by
            case Mod():
                return 0
            case Min():
                return _least(self.lower(arg) for arg in e.args)
            case Max():
                return _greatest(self.lower(arg) for arg in e.args)
            case _:
                raise AssertionError(f"unknown kind of atom: {e!r}")

    def _atom_upper(self, e: Atom) -> int | None:
        match e:
            case Sym():
                _, high = self.range_of(e.name)
                return None if high is None else self.upper(high)
            case FloorDiv():
                high = self.upper(e.num)
                if high is None:
                    return None
                least, most = self._divisor(e.den)
                by = least if high >= 0 else most
                return -1 if by is None else high // by
            case Mod():
                _, most = self._divisor(e.den)
                high = None if most is None else most - 1
                low = self.lower(e.num)
                return _known_least(high, self.upper(e.num)) if _reaches(low, 0) else high
            case Min():
                return _known_least(*(self.upper(arg) for arg in e.args))
            case Max():
                highs = [self.upper(arg) for arg in e.args]
                return None if None in highs else _greatest(highs)
            case _:
                raise AssertionError(f"unknown kind of atom: {e!r}")

    def _divisor(self, den: Dim) -> tuple[int, int | None]:
        most = self.upper(den)
        return max(1, self.lower(den) or 1), None if most is None else max(1, most)

    # Sums

    def _sum_lower(self, e: IntExpr) -> int | None:
        total: float = 0
        for mono, c in e.terms:
            low, high = self._product_interval(mono)
            total += _times(c, low if c > 0 else high)
        interval = int(total) if isfinite(total) else None
        independent = all(len(mono) <= 1 and self._is_plain(mono) for mono in e.coeffs)
        return interval if independent else _greatest((interval, self._eliminate(e)))

    def _product_interval(self, mono: Mono) -> tuple[float, float]:
        least: float = 1
        most: float = 1
        for atom in mono:
            low, high = self.lower(atom), self.upper(atom)
            a = -inf if low is None else low
            b = inf if high is None else high
            ends = [_times(x, y) for x in (least, most) for y in (a, b)]
            least, most = min(ends), max(ends)
        return least, most

    def _is_plain(self, mono: Mono) -> bool:
        """Whether intervals say all there is to say of the atoms: symbols with constant bounds."""
        return all(
            isinstance(atom, Sym)
            and not any(isinstance(end, IntExpr) for end in self.range_of(atom.name))
            for atom in mono
        )

    def _eliminate(self, e: IntExpr) -> int | None:
        """A lower bound of ``e`` by replacing one atom, then others in turn, with its extreme."""
        for atom in self._elimination_order(e):
            affine = affine_in(e, atom)
            if affine is None:
                continue
            c, rest = affine
            rising = _reaches(self.lower(c), 0)
            if not rising and not _reaches(self.lower(-c), 0):
                continue
            if isinstance(atom, Sym):
                low, high = self.range_of(atom.name)
                end = low if rising else high
                if end is not None:
                    # one order only: to try them all takes exponential time
                    return self.lower(c * end + rest)
                continue
            found = self._replace(atom, c, rest, rising=rising)
            if found is not None:
                return found
        return None

    def _elimination_order(self, e: IntExpr) -> list[Atom]:
        """Compound atoms, outermost first; then symbols, before those that their bounds mention."""
        atoms = dict.fromkeys(atom for mono, _ in e.terms for atom in mono)
        compounds = [atom for atom in atoms if not isinstance(atom, Sym)]
        compounds.sort(key=lambda atom: -len(str(atom)))
        inside = frozenset[str]().union(*(atom.symbols for atom in compounds))
        free = [atom for atom in atoms if isinstance(atom, Sym) and atom.name not in inside]
        mentioned = {atom.name: self._mentioned(atom.name) for atom in free}
        free.sort(key=lambda atom: sum(atom.name in names for names in mentioned.values()))
        return [*compounds, *free]

    def _mentioned(self, name: str) -> set[str]:
        """Symbols that the bounds of ``name`` lead to."""
        seen: set[str] = set()
        work = [name]
        while work:
            for end in self.range_of(work.pop()):
                new = symbols(end if end is not None else 0) - seen
                seen |= new
                work.extend(new)
        return seen - {name}

    def _replace(self, atom: Atom, c: Dim, rest: Dim, *, rising: bool) -> int | None:
        """A lower bound of ``c * atom + rest``, where c >= 0 if rising and c <= 0 if not."""
        match atom:
            case FloorDiv(num=num, den=den):
                # (num - den + 1) / den <= num // den <= num / den, so bound den times the sum
                end = num - den + 1 if rising else num
                scaled = self.lower(c * end + rest * den)
                if scaled is None:
                    return None
                if isinstance(den, int):
                    return -(-scaled // den)
                return min(scaled, 1)
            case Mod(num=num, den=den):
                if rising:
                    return self.lower(rest)
                bound = self.lower(c * (den - 1) + rest)
                if _reaches(self.lower(num), 0):
                    bound = _greatest((bound, self.lower(c * num + rest)))
                return bound
            case Min(args=args) | Max(args=args):
                cases = (self.lower(c * arg + rest) for arg in args)
                # the atom is one of args in any case, and bounded by each on its own side
                return _least(cases) if rising == isinstance(atom, Min) else _greatest(cases)
            case _:
                raise AssertionError(f"unknown kind of atom: {atom!r}")

    # Divisors

    def divisor(self, e: Dim) -> int:
        """The greatest int known to divide ``e``; 0 where ``e`` is 0."""
        return gcd(
            *(c * prod(self._atom_divisor(a) for a in mono) for mono, c in coeffs_of(e).items())
        )

    def _atom_divisor(self, atom: Atom) -> int:
        match atom:
            case Sym():
                return self.multiples.get(atom.name, 1)
            case Mod():
                return gcd(self.divisor(atom.num), self.divisor(atom.den))
            case Min() | Max():
                return gcd(*(self.divisor(arg) for arg in atom.args))
            case _:
                return 1


def affine_in(e: Dim, atom: Atom) -> tuple[Dim, Dim] | None:
    """``(c, rest)`` with ``e == c * atom + rest``, or None where ``e`` has a power of the atom.

    Atoms are not looked into: ``c`` and ``rest`` may hold others that mention the atom.
    """
    inside: dict[Mono, int] = {}
    outside: dict[Mono, int] = {}
    for mono, c in coeffs_of(e).items():
        count = mono.count(atom)
        if count > 1:
            return None
        if count:
            inside[without(mono, atom)] = c
        else:
            outside[mono] = c
    return from_coeffs(inside), from_coeffs(outside)


def bounds(e: Dim, ranges: Ranges | None = None) -> tuple[int | None, int | None]:
    """A numeric interval that holds ``e``; None is no known bound."""
    facts = Facts.of(ranges)
    return facts.lower(e), facts.upper(e)


def is_nonneg(e: Dim, ranges: Ranges | None = None) -> bool:
    """Whether ``e >= 0`` is proved."""
    return _reaches(Facts.of(ranges).lower(e), 0)


def is_positive(e: Dim, ranges: Ranges | None = None) -> bool:
    """Whether ``e >= 1`` is proved."""
    return _reaches(Facts.of(ranges).lower(e), 1)


def divides(k: int, e: Dim, ranges: Ranges | None = None) -> bool:
    """Whether the int ``k`` is proved to divide ``e``, from coefficients and known multiples."""
    divisor = Facts.of(ranges).divisor(e)
    return divisor == 0 if k == 0 else divisor % k == 0


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _reaches(low: int | None, target: int) -> bool:
    return low is not None and low >= target


def _least(bounds: Iterable[int | None]) -> int | None:
    """The least of several bounds all of which may be needed: unknown where one is unknown."""
    known = list(bounds)
    return None if None in known else min(b for b in known if b is not None)


def _greatest(bounds: Iterable[int | None]) -> int | None:
    """The best of several lower bounds each of which holds."""
    return max((b for b in bounds if b is not None), default=None)


def _known_least(*bounds: int | None) -> int | None:
    """The best of several upper bounds each of which holds."""
    return min((b for b in bounds if b is not None), default=None)
