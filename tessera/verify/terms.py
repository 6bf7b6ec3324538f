"""Terms: what an element of an array is, as an expression of other elements.

Analysis with intervals alone forgets that two operands are the same number. A term remembers: it is
a function of an index, whose axes are labels. `exp(x - max(x))` over the last axis of a matrix is

    exp(sub(leaf x[0, 1], reduce max over -1 of (leaf x[0, -1])))

where 0 and 1 are the axes of the result and -1 is the axis that the maximum goes over. Moving
elements (broadcast, transpose, new axes) renames labels, so terms see through it; so do calls.
Equal terms are one object.

Terms know nothing of programs: a walk over the ops of some layer makes them (`graph_walk.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.dtypes import DType
from tessera.ir.interval import Interval

Index = tuple["int | None", ...]
"""The label of each axis; None where there is only index 0."""


class Base:
    """An array about which only an interval is known.

    Attributes:
        interval: where its elements are.
        label: what messages call it.
    """

    __slots__ = ("interval", "label")

    def __init__(self, interval: Interval, label: str = "") -> None:
        self.interval = interval
        self.label = label


@dataclass(frozen=True, slots=True)
class Count:
    """How many elements a reduction combines.

    Attributes:
        least: at least so many.
        most: at most so many; infinity where that is not known.
    """

    least: int
    most: float


class Term:
    """An expression; made by `Terms`, compared by identity.

    Attributes:
        op: a row of the scalar table, or `const`, `leaf`, `cast`, `pow2` (the power of two not
            above a positive number), `reduce`.
        args: operands.
        attr: of a constant its number, of a leaf its base and index, of a cast the source's dtype,
            of a reduction its row, its bound labels and their count.
        dtype: in which the op rounds; of a comparison that of its operands.
        free: the labels that it depends on.
        depth: how deep it is.
        lowest: the least of the labels that are bound in it, or 0.
    """

    __slots__ = ("args", "attr", "depth", "dtype", "free", "lowest", "op")

    def __init__(
        self, op: str, args: tuple[Term, ...], attr: Any, dtype: DType, free: frozenset[int]
    ) -> None:
        self.op = op
        self.args = args
        self.attr = attr
        self.dtype = dtype
        self.free = free
        self.depth = 1 + max([x.depth for x in args], default=0)
        bound: tuple[int, ...] = attr[1] if op == "reduce" else ()
        self.lowest = min([0, *bound, *[x.lowest for x in args]])

    def __repr__(self) -> str:
        if self.op == "const":
            return str(self.attr[1])
        if self.op == "leaf":
            return f"{self.attr[0].label or 'leaf'}{list(self.attr[1])}"
        inner = ", ".join(map(repr, self.args))
        if self.op == "reduce":
            return f"{self.attr[0]} over {list(self.attr[1])} of {inner}"
        return f"{self.op}({inner})"


class Terms:
    """Makes terms, each once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Term] = {}
        self._renamed: dict[tuple[Term, tuple[tuple[int, int | None], ...]], Term] = {}

    def _make(
        self, op: str, args: tuple[Term, ...], attr: Any, dtype: DType, free: frozenset[int]
    ) -> Term:
        key = (op, tuple([id(x) for x in args]), attr, dtype.name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Term(op, args, attr, dtype, free)
        return found

    def const(self, x: Any, dtype: DType) -> Term:
        """A number."""
        return self._make("const", (), (type(x).__name__, x), dtype, frozenset())

    def leaf(self, base: Base, index: Index, dtype: DType) -> Term:
        """An element of an array."""
        free = frozenset([k for k in index if k is not None])
        return self._make("leaf", (), (base, index), dtype, free)

    def apply(self, op: str, args: tuple[Term, ...], dtype: DType, attr: Any = None) -> Term:
        """A function of elements."""
        free = frozenset[int]().union(*[x.free for x in args])
        return self._make(op, args, attr, dtype, free)

    def reduce(
        self, row: str, body: Term, axes: tuple[int, ...], count: Count, dtype: DType
    ) -> Term:
        """A reduction over some labels of its body."""
        # Bound labels are negative, counted from inside: equal reductions are then one term.
        depth = -body.lowest
        names = {axis: -(depth + 1 + k) for k, axis in enumerate(axes)}
        inner = self.rename(body, names)
        bound = tuple(names.values())
        return self._make("reduce", (inner,), (row, bound, count), dtype, body.free - {*axes})

    def rename(self, term: Term, names: Mapping[int, int | None]) -> Term:
        """The same function of other labels; None is index 0 of an axis of length 1."""
        relevant = tuple(sorted([(a, b) for a, b in names.items() if a in term.free and a != b],
                                key=lambda pair: pair[0]))  # fmt: skip
        if not relevant:
            return term
        key = (term, relevant)
        found = self._renamed.get(key)
        if found is None:
            found = self._renamed[key] = self._rename(term, dict(relevant))
        return found

    def _rename(self, term: Term, names: Mapping[int, int | None]) -> Term:
        if term.op == "leaf":
            base, index = term.attr
            return self.leaf(base, tuple([names.get(k, k) for k in index]), term.dtype)
        args = tuple([self.rename(x, names) for x in term.args])
        free = frozenset(
            [k for k in [names.get(k, k) for k in term.free] if k is not None]
        )
        return self._make(term.op, args, term.attr, term.dtype, free)


def matches(pattern: Term, term: Term, bound: frozenset[int]) -> bool:
    """Whether a term is the pattern for some values of its bound labels.

    The body of a reduction over these labels, for instance, and an element that takes part in it.
    """
    names: dict[int, int | None] = {}
    seen: set[tuple[int, int]] = set()

    def visit(a: Term, b: Term) -> bool:
        if a is b and not a.free & bound:
            return True
        key = (id(a), id(b))
        if key in seen:
            return True
        if a.op != b.op or a.dtype is not b.dtype or len(a.args) != len(b.args):
            return False
        if a.op == "leaf":
            if a.attr[0] is not b.attr[0]:
                return False
            for x, y in zip(a.attr[1], b.attr[1], strict=True):
                if x in bound:
                    if names.setdefault(x, y) != y:
                        return False
                elif x != y:
                    return False
            return True
        if a.attr != b.attr:
            return False
        seen.add(key)
        return all(visit(x, y) for x, y in zip(a.args, b.args, strict=True))

    return visit(pattern, term)
