"""Simplification of integer expressions by what is known of their symbols.

The rules stand in tables, one per kind of node. A row names its rule and carries one instance of
it: under ``guard`` (the form of ``Facts.parse``) the rule rewrites ``lhs`` into ``rhs``. The tests
fire each row, and evaluate both sides wherever the guard holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Generic, TypeVar

from tessera.ir.intbounds import Facts, Ranges, is_nonneg
from tessera.ir.intnode import (
    Atom,
    Dim,
    FloorDiv,
    IntExpr,
    Max,
    Min,
    Mod,
    Poly,
    Sym,
    coeffs_of,
    floordiv,
    from_coeffs,
    map_children,
    maximum,
    minimum,
    mod,
    prod,
    split,
    without,
)

N = TypeVar("N", bound=IntExpr)

_FUEL = 400
_MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Rule(Generic[N]):
    """A rewrite of nodes of one kind.

    Attributes:
        name: what the rule is called.
        apply: the simpler expression, or None where the rule does not match.
        lhs: text of an expression that the rule matches.
        rhs: what it becomes.
        guard: what must be known for that.
    """

    name: str
    apply: Callable[[N, Facts], Dim | None]
    lhs: str
    rhs: str
    guard: str = ""


def simplify(e: Dim, ranges: Ranges | None = None) -> Dim:
    """An expression that equals ``e`` wherever ``ranges`` hold, of no more divisions or terms.

    Args:
        e: the expression.
        ranges: inclusive ranges of symbols, or ``Facts``, which also remember what was simplified.
    """
    return _Simplifier(Facts.of(ranges)).run(e, 0)


class _Simplifier:
    """Bottom-up rewriting to a fixpoint, or until the fuel is spent: every step is sound alone."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.fuel = _FUEL

    def run(self, e: Dim, depth: int) -> Dim:
        if isinstance(e, int):
            return e
        done = self.facts.simplified
        if e in done:
            return done[e]
        if depth > _MAX_DEPTH:
            return e
        result = map_children(e, lambda child: self.run(child, depth + 1))
        step = result if result is not e else rewrite(e, self.facts)
        if step is not None and self.fuel > 0:
            self.fuel -= 1
            result = self.run(step, depth + 1)
        done[e] = result
        return result


def rewrite(e: Dim, facts: Facts) -> Dim | None:
    """The result of the first rule that matches ``e`` itself; None where no rule does."""
    match e:
        case Sym():
            return _first(SYM_RULES, e, facts)
        case FloorDiv():
            return _first(DIV_RULES, e, facts)
        case Mod():
            return _first(MOD_RULES, e, facts)
        case Min() | Max():
            return _first(EXTREMUM_RULES, e, facts)
        case Poly():
            return _first(SUM_RULES, e, facts)
        case _:
            return None


def _first(rules: tuple[Rule[N], ...], e: N, facts: Facts) -> Dim | None:
    for rule in rules:
        new = rule.apply(e, facts)
        if new is not None:
            return new
    return None


# Symbols


def _fixed_symbol(e: Sym, facts: Facts) -> Dim | None:
    low, high = facts.range_of(e.name)
    return low if low is not None and low == high else None


# Divisions


def _quotient(num: Dim, den: Dim, facts: Facts) -> int | None:
    """The value of ``num // den`` where it is one known int."""
    if isinstance(den, int):
        low, high = facts.lower(num), facts.upper(num)
        if low is None or high is None or low // den != high // den:
            return None
        return low // den
    for q in (0, -1):
        rest = num - q * den
        if is_nonneg(rest, facts) and is_nonneg(den - 1 - rest, facts):
            return q
    return None


def _div_known(e: FloorDiv, facts: Facts) -> Dim | None:
    return _quotient(e.num, e.den, facts)


def _mod_known(e: Mod, facts: Facts) -> Dim | None:
    q = _quotient(e.num, e.den, facts)
    return None if q is None else e.num - q * e.den


def _div_of_div(e: FloorDiv, facts: Facts) -> Dim | None:
    # floor((floor(x / a) + c) / b) = floor((x + a*c) / (a*b)), for every integer c
    del facts
    coeffs = dict(coeffs_of(e.num))
    constant = coeffs.pop((), 0)
    for mono, c in coeffs.items():
        if len(coeffs) == 1 and len(mono) == 1 and c == 1 and isinstance(mono[0], FloorDiv):
            inner = mono[0]
            return floordiv(inner.num + constant * inner.den, inner.den * e.den)
    return None


def _div_of_mod(e: FloorDiv, facts: Facts) -> Dim | None:
    del facts
    if not isinstance(e.num, Mod):
        return None
    digits, rest = split(e.num.den, e.den)
    return mod(floordiv(e.num.num, e.den), digits) if rest == 0 else None


def _mod_of_mod(e: Mod, facts: Facts) -> Dim | None:
    del facts
    for mono, c in coeffs_of(e.num).items():
        for atom in mono:
            if isinstance(atom, Mod):
                factor = from_coeffs({without(mono, atom): c})
                if split(factor * atom.den, e.den)[1] == 0:
                    return mod(e.num + factor * (atom.num - atom), e.den)
    return None


def _mod_of_multiple(e: Mod, facts: Facts) -> Dim | None:
    return 0 if isinstance(e.den, int) and facts.divisor(e.num) % e.den == 0 else None


def _radix(e: FloorDiv | Mod, facts: Facts) -> tuple[Dim, Dim, Dim] | None:
    """``(g, high, low)``: ``num == g*high + low``, 0 <= low < g, and ``g`` divides ``den``."""
    den = coeffs_of(e.den)
    if len(den) != 1 or not isinstance(e.num, IntExpr):
        return None
    ((dens, k),) = den.items()
    tried: set[Dim] = {1, e.den}
    for mono, c in e.num.terms:
        common = tuple(atom for atom in dict.fromkeys(mono) if atom in dens)
        g = from_coeffs({common: gcd(c, k)})
        if g in tried or not mono:
            continue
        tried.add(g)
        high, low = split(e.num, g)
        q = _quotient(low, g, facts)
        if q is not None:
            return g, high + q, low - q * g
    return None


def _div_radix(e: FloorDiv, facts: Facts) -> Dim | None:
    found = _radix(e, facts)
    if found is None:
        return None
    g, high, _ = found
    return floordiv(high, split(e.den, g)[0])


def _mod_radix(e: Mod, facts: Facts) -> Dim | None:
    found = _radix(e, facts)
    if found is None:
        return None
    g, high, low = found
    return g * mod(high, split(e.den, g)[0]) + low


# Sums


def _divisions(e: Dim) -> int:
    return sum(isinstance(atom, (FloorDiv, Mod)) for mono in coeffs_of(e) for atom in mono)


def _factors(e: Poly) -> Iterator[tuple[Atom, Dim]]:
    """Each division in the sum, with what it is multiplied by."""
    for mono, c in e.terms:
        for atom in mono:
            if isinstance(atom, (FloorDiv, Mod)):
                yield atom, from_coeffs({without(mono, atom): c})


def _recombine(e: Poly, facts: Facts) -> Dim | None:
    for atom, factor in _factors(e):
        if isinstance(atom, Mod):
            quotient = floordiv(atom.num, atom.den)
            nested = rewrite(quotient, facts)
            whole = atom.num - (quotient if nested is None else nested) * atom.den
            new = e + factor * (whole - atom)
            if _divisions(new) < _divisions(e):
                return new
            for other, _ in _factors(e):
                # A remainder was taken of less, by what its divisor divides: (9*y + x) % 7 is
                # (2*y + x) % 7, but the quotient, of that or of k times as much, is still of all.
                if isinstance(other, FloorDiv):
                    k, rest = split(other.den, atom.den)
                    if rest != 0:
                        continue
                    of = floordiv(other.num, k)
                    new = e + factor * (of - atom.den * other - atom)
                    is_same = split(of - atom.num, atom.den)[1] == 0
                    if is_same and _divisions(new) < _divisions(e):
                        return new
    return None


def _remainder(e: Poly, facts: Facts) -> Dim | None:
    del facts
    for atom, factor in _factors(e):
        if isinstance(atom, FloorDiv):
            times, rest = split(factor, atom.den)
            if rest == 0:
                new = e + times * (atom.num - mod(atom.num, atom.den) - atom.den * atom)
                shorter = len(coeffs_of(new)) < len(e.coeffs)
                if shorter and _divisions(new) <= _divisions(e):
                    return new
    return None


def _exact(e: Poly, facts: Facts) -> Dim | None:
    for atom, factor in _factors(e):
        if isinstance(atom, FloorDiv) and isinstance(atom.den, int):
            times, rest = split(factor, atom.den)
            if rest == 0 and facts.divisor(atom.num) % atom.den == 0:
                return e + times * (atom.num - atom.den * atom)
    return None


# Minimum and maximum


def _dominated(e: Min | Max, facts: Facts) -> Dim | None:
    sign = 1 if isinstance(e, Min) else -1
    for arg in e.args:
        rest = [other for other in e.args if other is not arg]
        if any(is_nonneg(sign * (arg - other), facts) for other in rest):
            return minimum(*rest) if isinstance(e, Min) else maximum(*rest)
    return None


def _common_factor(e: Min | Max, facts: Facts) -> Dim | None:
    k = gcd(*(c for arg in e.args for c in coeffs_of(arg).values()))
    if k < 2:
        return None
    del facts
    args = (split(arg, k)[0] for arg in e.args)
    return prod((k, minimum(*args) if isinstance(e, Min) else maximum(*args)))


SYM_RULES: tuple[Rule[Sym], ...] = (Rule("fixed symbol", _fixed_symbol, "i", "3", "3 <= i <= 3"),)

DIV_RULES: tuple[Rule[FloorDiv], ...] = (
    Rule("known quotient", _div_known, "i // n", "0", "0 <= i <= n - 1; 1 <= n"),
    Rule("known quotient of int", _div_known, "(i + 3) // 8", "1", "5 <= i <= 12"),
    Rule("negative quotient", _div_known, "(-i - 1) // n", "-1", "0 <= i <= n - 1; 1 <= n"),
    Rule("nested division", _div_of_div, "($x // 2) // 3", "$x // 6"),
    Rule("nested division plus", _div_of_div, "($x // n + 2) // 3", "($x + 2*n) // (3*n)"),
    Rule("division of remainder", _div_of_mod, "($x % 12) // 4", "($x // 4) % 3"),
    Rule("division of remainder by n", _div_of_mod, "($x % (3*n)) // n", "($x // n) % 3"),
    Rule("radix", _div_radix, "(4*$i + j) // 12", "$i // 3", "0 <= j <= 3"),
    Rule("radix n", _div_radix, "(n*$i + j) // (2*n)", "$i // 2", "0 <= j <= n - 1; 1 <= n"),
    Rule("radix offset", _div_radix, "(4*$i + j + 3) // 12", "($i + 1) // 3", "1 <= j <= 4"),
)

MOD_RULES: tuple[Rule[Mod], ...] = (
    Rule("known remainder", _mod_known, "i % n", "i", "0 <= i <= n - 1; 1 <= n"),
    Rule("known remainder of int", _mod_known, "(i + 3) % 8", "i - 5", "5 <= i <= 12"),
    Rule("negative remainder", _mod_known, "(-i - 1) % n", "n - i - 1", "0 <= i <= n - 1; 1 <= n"),
    Rule("remainder of multiple", _mod_of_multiple, "3*i % 4", "0", "4 | i"),
    Rule("nested remainder", _mod_of_mod, "($x % 6) % 3", "$x % 3"),
    Rule("nested remainder plus", _mod_of_mod, "(3*($x % 2) + y) % 6", "(3*$x + y) % 6"),
    Rule("nested remainder of n", _mod_of_mod, "($x % (2*n)) % n", "$x % n"),
    Rule("radix", _mod_radix, "(4*$i + j) % 12", "4*($i % 3) + j", "0 <= j <= 3"),
    Rule("radix n", _mod_radix, "(n*$i + j) % (2*n)", "n*($i % 2) + j", "0 <= j <= n - 1; 1 <= n"),
)

SUM_RULES: tuple[Rule[Poly], ...] = (
    Rule("recombine", _recombine, "($x // 4)*4 + $x % 4", "$x"),
    Rule("recombine n", _recombine, "3*y*n*($x // n) + 3*y*($x % n)", "3*y*$x"),
    Rule("recombine shifted", _recombine, "(($x + 5) // 4)*4 + ($x + 1) % 4", "$x + 5"),
    Rule("recombine reduced", _recombine, "7*((9*y + $x) // 7) + (2*y + $x) % 7", "9*y + $x"),
    Rule("recombine reduced digits", _recombine,
         "12*((16*y + $x) // 12) + 4*((y + $x // 4) % 3)", "16*y + 4*($x // 4)"),
    Rule("recombine digits", _recombine, "8*($x // 8) + 4*($x // 4 % 2)", "4*($x // 4)"),
    Rule("remainder", _remainder, "$x - 4*($x // 4)", "$x % 4"),
    Rule("remainder of n", _remainder, "y*$x - y*n*($x // n)", "y*($x % n)"),
    Rule("exact division", _exact, "4*(i // 4) + j", "i + j", "4 | i"),
)

EXTREMUM_RULES: tuple[Rule[Min | Max], ...] = (
    Rule("least", _dominated, "min(i, n)", "i", "0 <= i <= n - 1; 1 <= n"),
    Rule("greatest", _dominated, "max(i, 0, $x)", "max(i, $x)"),
    Rule("common factor", _common_factor, "min(4*i, 8)", "4*min(i, 2)"),
)

RULES = (*SYM_RULES, *DIV_RULES, *MOD_RULES, *SUM_RULES, *EXTREMUM_RULES)
