"""What is known of index expressions from the ranges of axes."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.intexpr import Dim, Facts, Sym, simplify


def reduced(e: Dim, facts: Facts) -> Dim:
    """The expression simplified; an affine one is as simple as it gets."""
    if isinstance(e, int) or all(isinstance(atom, Sym) for mono in e.coeffs for atom in mono):
        return e
    return simplify(e, facts)


def outside(index: Sequence[Dim], shape: Sequence[Dim], facts: Facts) -> tuple[Dim, ...]:
    """Conditions for an index to be in range that are not known to hold."""
    found: list[Dim] = []
    for i, dim in zip(index, shape, strict=True):
        found += [e for e in (i, dim - 1 - i) if not holds(e, facts)]
    return tuple(found)


def holds(e: Dim, facts: Facts) -> bool:
    """Whether an expression is known not to be negative."""
    low = facts.lower(e)
    return low is not None and low >= 0


def may_hold(e: Dim, facts: Facts) -> bool:
    """Whether an expression is not known to be negative."""
    high = facts.upper(e)
    return high is None or high >= 0
