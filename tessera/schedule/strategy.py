"""What fusion has to know of the kind of machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """How values are fused.

    Attributes:
        row_cost: a value of rows may cost so many additions and be computed once more by each pass
            over them, rather than stored.
        min_rows: fewer rows than this share a kernel only if they are short: there would be too few
            programs.
        short_row: elements of a row that one program reduces quickly.
        least_row: rows of fewer elements do not share a kernel: their vectors would be short.
        shares_launches: whether nests that need nothing of each other become one kernel.
        extra_cost: recomputing an element may cost so many additions more than once; beyond that
            it is stored.
        extra_cost_large: the same for a value that does not fit the caches: writing and reading it
            again costs as much.
        cheap: what costs no more is computed wherever it is used.
        max_copies: how many nests may hold a copy of long code.
        computes_operands: whether operands of large contractions may be computed as they are
            loaded.
        keeps_loops: whether a scan whose steps are work on single elements is one nest, with the
            loop inside.
        unrolls_components: whether sums of few components of what is computed from pairs are taken
            one by one.
        joins_columns: whether arrays of few columns that are put together have one loop over rows.
        cuts_pieces: whether nests are cut where conditions change.
        draws_blocks: whether random words are ops of their own, so that neighbours can share the
            block of the generator that they are parts of.
        finds_contractions: whether sums of products become contractions.
        combines_bytes: whether scatters may combine elements of one byte with what is there.
        scatters_in_order: whether updates of one element are written one after the other; else
            those that round are sorted, as only others may meet by chance.
        ordered_cost: what costs more additions is not computed in a loop whose points run one after
            the other, but stored, by a loop that has vectors: a Zen 4 takes 0.2 to 1.0 of the time
            so, and up to 1.5 for a remainder, which costs 4.
    """

    row_cost: int = 20
    min_rows: int = 8
    short_row: int = 16384
    least_row: int = 8
    shares_launches: bool = False
    extra_cost: int = 8
    extra_cost_large: int = 40
    cheap: int = 0
    max_copies: int = 2
    computes_operands: bool = True
    keeps_loops: bool = True
    unrolls_components: bool = True
    joins_columns: bool = True
    cuts_pieces: bool = True
    draws_blocks: bool = False
    finds_contractions: bool = True
    combines_bytes: bool = True
    scatters_in_order: bool = True
    ordered_cost: int = 5

    def keeps_rows(self, count: int, length: int) -> bool:
        """Whether work on so many rows of so many elements is one kernel over rows."""
        is_spread = count >= self.min_rows or length <= self.short_row
        return length >= self.least_row and is_spread


CPU = Strategy()
"""A few cores with large caches: what is stored is read back soon."""

GPU = Strategy(
    row_cost=64,
    min_rows=64,
    least_row=0,
    shares_launches=True,
    extra_cost=64,
    extra_cost_large=64,
    cheap=2,
    max_copies=16,
    computes_operands=False,
    keeps_loops=False,
    unrolls_components=False,
    cuts_pieces=False,
    draws_blocks=True,
    combines_bytes=False,
    scatters_in_order=False,
    # There nothing runs one after the other: a scatter combines by atomics.
    ordered_cost=1 << 30,
)
"""Arithmetic is cheap beside memory, and every kernel more is a pass over memory more."""
