"""Linear algebra over GF(2): a vector is an int, bit i its i-th component; addition is `^`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Echelon:
    """A growing subspace, with each vector's expression in the vectors it was built from.

    Vectors that depend on earlier ones are numbered too but never used in an expression, so the
    expression of a vector is unique and prefers the vectors added first.
    """

    __slots__ = ("_rows", "count")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}
        self.count = 0
        for vector in vectors:
            self.add(vector)

    @property
    def rank(self) -> int:
        """The dimension of the subspace."""
        return len(self._rows)

    def reduce(self, vector: int) -> tuple[int, int]:
        """Returns `(rest, mask)`: `vector` is `rest` plus the added vectors named by `mask`."""
        mask = 0
        for pivot in sorted(self._rows, reverse=True):
            if vector >> pivot & 1:
                row, combination = self._rows[pivot]
                vector ^= row
                mask ^= combination
        return vector, mask

    def add(self, vector: int) -> bool:
        """Adds a vector; returns whether the subspace grew."""
        rest, mask = self.reduce(vector)
        if rest:
            self._rows[rest.bit_length() - 1] = (rest, mask | 1 << self.count)
        self.count += 1
        return bool(rest)

    def has(self, vector: int) -> bool:
        """Whether the vector lies in the subspace."""
        return self.reduce(vector)[0] == 0

    def solve(self, vector: int) -> int | None:
        """The mask of added vectors whose sum is `vector`, or None."""
        rest, mask = self.reduce(vector)
        return None if rest else mask


def rank(vectors: Iterable[int]) -> int:
    """The number of independent vectors."""
    return Echelon(vectors).rank


def independent(vectors: Iterable[int], modulo: Iterable[int] = ()) -> list[int]:
    """The vectors that extend the span of `modulo` and of the vectors before them."""
    space = Echelon(modulo)
    return [vector for vector in vectors if space.add(vector)]


def combine(columns: Sequence[int], mask: int) -> int:
    """The sum of the columns named by the mask: a matrix times a vector."""
    total = 0
    for index, column in enumerate(columns):
        if mask >> index & 1:
            total ^= column
    return total


def kernel(columns: Sequence[int]) -> list[int]:
    """A basis of the masks whose columns sum to zero."""
    space = Echelon()
    found: list[int] = []
    for index, column in enumerate(columns):
        rest, mask = space.reduce(column)
        if rest == 0:
            found.append(mask | 1 << index)
        space.add(column)
    return found


def intersection(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """A basis of the common part of two spans."""
    left = independent(left)
    right = independent(right)
    low = (1 << len(left)) - 1
    return [combine(left, mask & low) for mask in kernel([*left, *right])]


def inverse(columns: Sequence[int], bits: int) -> list[int] | None:
    """Columns of a right inverse: for each unit vector of `bits` bits, a mask of columns.

    None where the columns do not span all `bits` bits. Free inputs are zero.
    """
    space = Echelon(columns)
    masks = [space.solve(1 << bit) for bit in range(bits)]
    solved = [mask for mask in masks if mask is not None]
    return solved if len(solved) == bits else None


def left_inverse(columns: Sequence[int], bits: int) -> list[int] | None:
    """Columns of a left inverse on `bits` bits, or None where the columns are dependent.

    Unit vectors outside the span complete it to a basis and map to zero.
    """
    space = Echelon(columns)
    if space.rank < len(columns):
        return None
    for bit in range(bits):
        space.add(1 << bit)
    wanted = (1 << len(columns)) - 1
    masks = (space.solve(1 << bit) for bit in range(bits))
    return [mask & wanted for mask in masks if mask is not None]
