"""What is known at compile time of the index scalars of a Tile kernel: their values, and by which
power of two they are divisible."""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, fold
from tessera.tile import ops as tile
from tessera.tile.types import TileType

MOST = 1 << 12
"""Zero is divisible by everything; this much is enough to know."""


def power_of_two(n: int) -> int:
    """The largest power of two, up to `MOST`, that divides a number."""
    return min(n & -n, MOST) if n else MOST


def constant(value: Value) -> int | None:
    """The integer that an index scalar is known to be."""
    op = value.op
    if isinstance(op, tile.Const) and isinstance(op.value, int):
        return int(op.value)
    if isinstance(op, tile.Dim_) and isinstance(op.expr, int):
        return op.expr
    if isinstance(op, (tile.Reshape, tile.Broadcast)):
        return constant(op.x)
    return None


class Divisibility:
    """Divisors of the values of one function; loop counters are known by their loops."""

    def __init__(self, dims: Callable[[str], int] = lambda _: 1) -> None:
        self.dims = dims
        self.known: dict[Value, int] = {}
        self.tiles: dict[tuple[Value, int], int] = {}

    def loop(self, op: tile.For) -> None:
        """Notes what the counter of a loop is divisible by."""
        self.known[op.body.args[0]] = min(self.of(op.lo), self.of(op.step))

    def of(self, value: Value) -> int:
        """The largest power of two that surely divides a value."""
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._compute(value)
        return found

    def _compute(self, value: Value) -> int:
        number = constant(value)
        if number is not None:
            return power_of_two(number)
        op = value.op
        match op:
            case tile.Dim_():
                return self.expr(op.expr)
            case tile.Map() if op.fn.name in ("add", "sub", "min", "max", "select"):
                return min(self.of(a) for a in op.args[-2:])
            case tile.Map() if op.fn.name == "mul":
                return min(self.of(op.args[0]) * self.of(op.args[1]), MOST)
            case tile.Map() if op.fn.name == "floordiv":
                by = constant(op.args[1])
                return max(self.of(op.args[0]) // by, 1) if by in _POWERS else 1
            case tile.Map() if op.fn.name == "neg":
                return self.of(op.args[0])
            case _:
                return 1

    def elements(self, value: Value, dim: int) -> int:
        """The largest power of two that surely divides all elements of a tile at coordinates of a
        dim that are multiples of it."""
        found = self.tiles.get((value, dim))
        if found is None:
            found = self.tiles[value, dim] = self._elements(value, dim)
        return found

    def _elements(self, value: Value, dim: int) -> int:
        assert isinstance(value.type, TileType)
        if not value.type.shape:
            return self.of(value)
        op = value.op
        match op:
            case tile.Iota():
                return MOST if op.axis == dim else 1
            case tile.Broadcast() | tile.Cast() | tile.Reshape() if _same_dims(op):
                return self.elements(op.operands[0], dim)
            case tile.Map() if op.fn.name in ("add", "sub", "min", "max", "select"):
                return min(self.elements(a, dim) for a in op.args[-2:])
            case tile.Map() if op.fn.name == "mul":
                return min(self.elements(op.args[0], dim) * self.elements(op.args[1], dim), MOST)
            case _:
                return 1

    def expr(self, e: Dim) -> int:
        """Of an index expression over the dims."""

        def combine(name: str, a: int, b: int) -> int:
            if name == "mul":
                return min(a * b, MOST)
            return min(a, b) if name in ("add", "sub", "min", "max") else 1

        return fold(e, self.dims, power_of_two, combine)


def _same_dims(op: tile.Broadcast | tile.Cast | tile.Reshape) -> bool:
    """Whether the operand has the result's dims, or none."""
    x, y = op.operands[0].type, op.result.type
    assert isinstance(x, TileType) and isinstance(y, TileType)
    if isinstance(op, tile.Reshape):
        return x.shape == y.shape
    return True


def step_along(value: Value, dim: int) -> int | None:
    """By how much a tile of integers grows from one coordinate of a dim to the next; None where
    that is not one known number.
    """
    known: dict[Value, int | None] = {}

    def of(value: Value) -> int | None:
        if value not in known:
            known[value] = compute(value)
        return known[value]

    def compute(value: Value) -> int | None:
        assert isinstance(value.type, TileType)
        if not value.type.shape or value.type.shape[dim] == 1:
            return 0
        op = value.op
        match op:
            case tile.Iota():
                return int(op.axis == dim)
            case tile.Broadcast():
                return of(op.x)
            case tile.Cast() if op.dtype.is_integer:
                return of(op.x)
            case tile.Map():
                return _step_of_map(op, [of(a) for a in op.args])
            case _:
                return None

    return of(value)


def _step_of_map(op: tile.Map, steps: list[int | None]) -> int | None:
    name = op.fn.name
    if all(step == 0 for step in steps):
        return 0
    if name not in ("add", "sub", "mul") or None in steps:
        return None
    a, b = [step or 0 for step in steps]
    if name == "mul":
        factors = [_uniform(op.args[1]), _uniform(op.args[0])]
        if b == 0 and factors[0] is not None:
            return a * factors[0]
        return b * factors[1] if a == 0 and factors[1] is not None else None
    return a + b if name == "add" else a - b


def _uniform(value: Value) -> int | None:
    """The number that all elements of a tile are known to be."""
    op = value.op
    return _uniform(op.x) if isinstance(op, tile.Broadcast) else constant(value)


_POWERS = {1 << k for k in range(13)}
