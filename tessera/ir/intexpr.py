"""Symbolic integer expressions: shapes, strides, index maps and loop bounds of every layer.

``Dim = int | IntExpr``. Expressions are interned polynomials over symbols, floor divisions,
remainders, minima and maxima: equal ones are the same object, and what is constant is an ``int``.
So ``a*(b + 1) is a*b + a``, and ``==`` asks whether two expressions are one, whatever their values.

>>> s, i = sym("S"), sym("i")
>>> str((s*i + s + 3) // s)
'i + 3 // S + 1'
>>> str(simplify((4*i + sym("j")) // 4, {"j": (0, 3)}))
'i'
>>> is_nonneg(s - 1 - i, {"i": (0, s - 1)})
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from tessera.ir.intbounds import Facts, Range, Ranges, bounds, divides, is_nonneg, is_positive
from tessera.ir.intnode import (
    Atom,
    Dim,
    FloorDiv,
    IntExpr,
    Max,
    Min,
    Mod,
    Mono,
    Poly,
    Sym,
    Term,
    ceildiv,
    coeffs_of,
    from_coeffs,
    map_children,
    maximum,
    minimum,
    prod,
    sym,
    symbols,
    without,
)
from tessera.ir.intparse import parse, parse_prefix
from tessera.ir.intrules import simplify

__all__ = [
    "Dim",
    "Facts",
    "FloorDiv",
    "IntArray",
    "IntExpr",
    "Max",
    "Min",
    "Mod",
    "Poly",
    "Range",
    "Ranges",
    "Sym",
    "bounds",
    "ceildiv",
    "divides",
    "evaluate",
    "fold",
    "is_nonneg",
    "is_positive",
    "linear_in",
    "maximum",
    "minimum",
    "parse",
    "parse_prefix",
    "prod",
    "simplify",
    "substitute",
    "sym",
    "symbols",
]

IntArray: TypeAlias = "NDArray[np.integer]"
T = TypeVar("T")


def substitute(e: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """``e`` with symbols replaced by name, all at once."""
    names = mapping.keys()
    if isinstance(e, int) or names.isdisjoint(e.symbols):
        return e
    if isinstance(e, Sym):
        return mapping[e.name]
    done: dict[IntExpr, Dim] = {}

    def visit(x: Dim) -> Dim:
        if isinstance(x, int) or names.isdisjoint(x.symbols):
            return x
        if isinstance(x, Sym):
            return mapping[x.name]
        if x not in done:
            done[x] = map_children(x, visit)
        return done[x]

    return visit(e)


def linear_in(e: Dim, names: Iterable[str]) -> tuple[dict[str, Dim], Dim] | None:
    """The affine form of ``e`` in some symbols.

    Returns:
        ``(coef, rest)`` with ``e == sum(coef[n] * n) + rest``, where neither mentions a name; every
        name has a coefficient, if only 0. None where ``e`` is not affine in the names.
    """
    wanted = {name: sym(name) for name in names}
    inside: dict[str, dict[Mono, int]] = {name: {} for name in wanted}
    rest: dict[Mono, int] = {}
    for mono, c in coeffs_of(e).items():
        found = [atom for atom in mono if not atom.symbols.isdisjoint(wanted)]
        if not found:
            rest[mono] = c
            continue
        atom = found[0]
        if len(found) > 1 or not isinstance(atom, Sym):
            return None
        inside[atom.name][without(mono, atom)] = c
    return {name: from_coeffs(coeffs) for name, coeffs in inside.items()}, from_coeffs(rest)


def solved_for(e: Dim, name: str) -> tuple[int, Dim] | None:
    """``(c, left)`` with ``c > 0``, so that ``e == 0`` means ``c * name == left``; None where ``e``
    is not affine in the symbol, with a number before it."""
    found = linear_in(e, [name])
    if found is None:
        return None
    c, rest = found[0][name], found[1]
    if not isinstance(c, int) or c == 0:
        return None
    return (c, -rest) if c > 0 else (-c, rest)


def fold(
    e: Dim,
    leaf: Callable[[str], T],
    const: Callable[[int], T],
    op: Callable[[str, T, T], T],
) -> T:
    """The value of ``e`` in some other domain, such as code: bottom-up, each atom once.

    Common factors are taken out, so that few multiplications remain.

    Args:
        e: the expression.
        leaf: the value of a symbol, by name.
        const: the value of an int.
        op: applies ``add``, ``mul``, ``floordiv``, ``mod``, ``min`` or ``max``.
    """
    return _Fold(leaf, const, op).dim(e)


class _Fold(Generic[T]):
    def __init__(
        self, leaf: Callable[[str], T], const: Callable[[int], T], op: Callable[[str, T, T], T]
    ) -> None:
        self.leaf = leaf
        self.const = const
        self.op = op
        self.done: dict[Atom, T] = {}

    def dim(self, e: Dim) -> T:
        return self.const(e) if isinstance(e, int) else self.total(e.terms)

    def atom(self, e: Atom) -> T:
        if e not in self.done:
            self.done[e] = self.compute(e)
        return self.done[e]

    def compute(self, e: Atom) -> T:
        match e:
            case Sym():
                return self.leaf(e.name)
            case FloorDiv():
                return self.op("floordiv", self.dim(e.num), self.dim(e.den))
            case Mod():
                return self.op("mod", self.dim(e.num), self.dim(e.den))
            case Min():
                return self.chain("min", [self.dim(arg) for arg in e.args])
            case Max():
                return self.chain("max", [self.dim(arg) for arg in e.args])
            case _:
                raise AssertionError(f"unknown kind of atom: {e!r}")

    def chain(self, name: str, values: list[T]) -> T:
        value = values[0]
        for other in values[1:]:
            value = self.op(name, value, other)
        return value

    def total(self, terms: Iterable[Term]) -> T:
        factor = _shared_factor(terms)
        if factor is None:
            return self.flat(terms)
        inside: list[Term] = []
        outside: list[Term] = []
        for mono, c in terms:
            if factor in mono:
                inside.append((without(mono, factor), c))
            else:
                outside.append((mono, c))
        value = self.op("mul", self.atom(factor), self.total(inside))
        return self.op("add", value, self.total(outside)) if outside else value

    def flat(self, terms: Iterable[Term]) -> T:
        """A sum without shared atoms: terms of one coefficient are added, then scaled."""
        groups: dict[int, list[T]] = {}
        values: list[T] = []
        constant = 0
        for mono, c in terms:
            if mono:
                product = self.chain("mul", [self.atom(x) for x in mono])
                groups.setdefault(c, []).append(product)
            else:
                constant = c
        for c, products in groups.items():
            value = self.chain("add", products)
            values.append(value if c == 1 else self.op("mul", value, self.const(c)))
        if constant:
            values.append(self.const(constant))
        return self.chain("add", values)


def _shared_factor(terms: Iterable[Term]) -> Atom | None:
    """The atom that most terms have in common, if two have one."""
    counts: dict[Atom, int] = {}
    for mono, _ in terms:
        for atom in dict.fromkeys(mono):
            counts[atom] = counts.get(atom, 0) + 1
    best = max(counts, key=lambda atom: counts[atom], default=None)
    return best if best is not None and counts[best] > 1 else None


@overload
def evaluate(e: Dim, env: Mapping[str, int]) -> int: ...
@overload
def evaluate(e: Dim, env: Mapping[str, int] | Mapping[str, int | IntArray]) -> int | IntArray: ...
def evaluate(e: Dim, env: Mapping[str, int] | Mapping[str, int | IntArray]) -> int | IntArray:
    """The value of ``e``, elementwise where symbols have arrays, which broadcast.

    Args:
        e: the expression.
        env: an int or an integer array for each symbol, by name.
    """

    def leaf(name: str) -> int | IntArray:
        if name not in env:
            raise KeyError(f"no value for the symbol {name!r} of `{e}`")
        return env[name]

    return fold(e, leaf, _constant, _apply)


def _constant(value: int) -> int | IntArray:
    return value


def _apply(name: str, a: int | IntArray, b: int | IntArray) -> int | IntArray:
    match name:
        case "add":
            return a + b
        case "mul":
            return a * b
        case "floordiv":
            return a // b
        case "mod":
            return a % b
        case _:
            if isinstance(a, int) and isinstance(b, int):
                return min(a, b) if name == "min" else max(a, b)
            return np.minimum(a, b) if name == "min" else np.maximum(a, b)
