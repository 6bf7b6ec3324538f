"""Reduction-order classes: in which order an accumulating op combines what it rounds.

Sums of floating-point numbers depend on the order of their terms. An op that states its class gives
the same bits whatever is around it: on each machine, for each number of threads, with each other
row of the batch. One that does not has the order that its schedule chooses, which depends on sizes
and on the machine, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tessera.dtypes import DType
from tessera.errors import VerifyError
from tessera.ir.intexpr import Dim

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

WIDTH_BITS: Final = 2048
"""Bits of the lanes of a fixed class: four registers of the widest vectors."""

PART: Final = 8192
"""Terms of a part of a fixed class."""


class Tree(Enum):
    """How the lanes of a sum are combined in the end."""

    SEQUENCE = "sequence"
    HALVES = "halves"
    WARPS = "warps"
    BLOCKS = "blocks"
    NEIGHBOURS = "neighbours"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which terms are combined.

    The terms are cut into parts of `split`, and term k of a part is combined with lane k mod
    `width`, one after the other. The lanes of a part are combined by `tree` (one lane needs none:
    `SEQUENCE`; `HALVES` combines the first half with the second until one is left; `WARPS` is how
    the threads of a block do it), and the parts one after the other. Where a sum runs over several
    axes, its terms lie along the last one, and what this gives is combined in sequence over the
    others.

    `BLOCKS` has no lanes: `width` neighbours are combined by an instruction, or by a block of
    threads, in an order of their own, and one such block after the other.
    `NEIGHBOURS` is one for running sums that is stated: each block is that of `neighbours`. `ANY`
    leaves it to chance: terms are combined as they come.

    Text: `order<halves, 0, 64>`: tree, split, width.

    Attributes:
        tree: how lanes are combined.
        split: the terms of a part; 0 is all of them.
        width: the lanes.
    """

    tree: Tree = Tree.SEQUENCE
    split: int = 0
    width: int = 1

    def __post_init__(self) -> None:
        if self.split < 0 or self.width < 1 or self.width & (self.width - 1):
            raise VerifyError(
                f"{self}", rule="the width is a power of two, and the split is not negative"
            )
        if (self.tree in (Tree.SEQUENCE, Tree.ANY)) != (self.width == 1):
            raise VerifyError(f"{self}", rule="one lane is a sequence, and more are a tree")
        if self.tree is Tree.ANY and self.split:
            raise VerifyError(f"{self}", rule="what comes in any order has no parts")

    def __str__(self) -> str:
        return f"order<{self.tree.value}, {self.split}, {self.width}>"

    @classmethod
    def parse(cls, parser: Parser) -> Order:
        """Reads what `str` writes."""
        for text in ("order", "<"):
            parser.expect(text)
        tree = Tree(parser.word())
        parser.expect(",")
        split = parser.integer()
        parser.expect(",")
        width = parser.integer()
        parser.expect(">")
        return cls(tree, split, width)


SEQUENCE: Final = Order()
"""One term after the other: the class of products, whose terms may be fused into the sum."""

BY_CHANCE: Final = Order(Tree.ANY)
"""Terms as they come, which may be another order in each run: what `ts.nondeterministic` allows."""


LANES: Final = 4096
"""The lanes of a fixed class of a GPU, whose blocks hold whole rows of so many elements."""

ROWS: Final = 64
"""The lanes of one along other axes than the last."""

PARTS: Final = 512
"""So many parts of the longest sum of a GPU, which are added one after the other, are enough."""


DEEP: Final = 1024
"""Products of a part of a matrix product of a GPU, half as many without matrix instructions: so
many parts of a few rows keep the memory busy, and sums of large blocks rest often enough."""


def fixed_in_blocks(shape: Sequence[Dim], axes: Sequence[int]) -> Order:
    """The class of a sum of a GPU that depends on nothing but its terms.

    Args:
        shape: of what is summed.
        axes: the axes that are summed.
    """
    extent = shape[max(axes)] if axes else 1
    along = bool(axes) and max(axes) == len(shape) - 1
    most = LANES if along else ROWS
    if not isinstance(extent, int):
        return Order(Tree.HALVES, 0, min(most, 1024))
    width = min(1 << max(extent - 1, 1).bit_length(), most)
    split = max(16 * LANES, 1 << (extent // PARTS).bit_length())
    return Order(Tree.HALVES, split if extent > split else 0, width)


def fixed_running(shape: Sequence[Dim], axis: int) -> Order:
    """The class of running sums of a GPU, likewise: `Tree.NEIGHBOURS`.

    Args:
        shape: of what is summed.
        axis: along which it is.
    """
    extent = shape[axis]
    most, least = (LANES, 16 * LANES) if axis == len(shape) - 1 else (ROWS, 2 * LANES)
    if not isinstance(extent, int):
        return Order(Tree.NEIGHBOURS, 0, min(most, 1024))
    width = min(1 << max(extent - 1, 1).bit_length(), most)
    split = max(least, 1 << (extent // PARTS).bit_length())
    return Order(Tree.NEIGHBOURS, split if extent > split else 0, width)


def fixed_product(depth: Dim, at_once: int) -> Order:
    """The class of a product of matrices of a GPU, likewise: parts that divide the depth, if there
    are some of about the right size.

    Args:
        depth: products of an element.
        at_once: how many of them a matrix instruction adds.
    """
    tree = Tree.BLOCKS if at_once > 1 else Tree.SEQUENCE
    part = DEEP if at_once > 1 else DEEP // 2
    if not isinstance(depth, int) or 2 * depth <= 3 * part:
        return Order(tree, 0, at_once)
    found = [c for c in range(part // 2, 3 * part // 2 + 1, 32) if depth % c == 0]
    return Order(tree, min(found, key=lambda c: (abs(c - part), -c), default=part), at_once)


def neighbours(
    combine: Callable[[Any, Any], Any], terms: Sequence[Any], identity: Any
) -> list[Any]:
    """The running sums of a block of `Tree.NEIGHBOURS`, whose terms are a power of two.

    Neighbours make pairs, pairs of pairs, and so on. What lies before a term is made up of the
    longest such blocks, which are added from the first one on, beginning with the identity; the
    term comes last.
    """
    levels = [list(terms)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        levels.append([combine(level[k], level[k + 1]) for k in range(0, len(level), 2)])
    before = [identity]
    for level in levels[-2::-1]:
        pairs = zip(before, level[::2], strict=True)
        before = [v for start, first in pairs for v in (start, combine(start, first))]
    return [combine(start, term) for start, term in zip(before, terms, strict=True)]


def fixed(shape: Sequence[Dim], axes: Sequence[int], dtype: DType) -> Order:
    """The class of a sum that depends on nothing but its terms.

    Args:
        shape: of what is summed.
        axes: the axes that are summed.
        dtype: in which it is summed.
    """
    along = bool(axes) and max(axes) == len(shape) - 1
    extent = shape[max(axes)] if axes else 0
    # Where the extent is a symbol it may be that long; one part is the same as no parts.
    split = PART if not isinstance(extent, int) or extent > PART else 0
    if not along:
        return Order(split=split)
    bits = dtype.bits // 2 if dtype.is_complex else dtype.bits
    return Order(Tree.HALVES, split, WIDTH_BITS // max(bits, 32))
