"""What fusion has to know of the kind of machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """How values are fused.

    Attributes:
        rows: whether a chain of work on the same rows becomes one kernel: reductions along rows,
            what is computed from them, and whole rows computed from both.
        extra_cost: recomputing an element may cost so many additions more than once; beyond that
            it is stored.
        extra_cost_large: the same for a value that does not fit the caches: writing and reading it
            again costs as much.
        cheap: what costs no more is computed wherever it is used.
        max_copies: how many nests may hold a copy of long code.
        copies_operands: whether second operands of contractions are copied into the order in which
            vectors read them.
        computes_operands: whether operands of large contractions may be computed as they are
            loaded.
        draws_blocks: whether random words are ops of their own, so that neighbours can share the
            block of the generator that they are parts of.
        finds_contractions: whether sums of products become contractions.
    """

    rows: bool = False
    extra_cost: int = 8
    extra_cost_large: int = 40
    cheap: int = 0
    max_copies: int = 2
    copies_operands: bool = True
    computes_operands: bool = True
    draws_blocks: bool = False
    finds_contractions: bool = False


CPU = Strategy()
"""A few cores with large caches: what is stored is read back soon."""

GPU = Strategy(
    rows=True,
    extra_cost=64,
    extra_cost_large=64,
    cheap=2,
    max_copies=16,
    copies_operands=False,
    computes_operands=False,
    draws_blocks=True,
    finds_contractions=True,
)
"""Arithmetic is cheap beside memory, and every kernel more is a pass over memory more."""
