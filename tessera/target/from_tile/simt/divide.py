"""What is known at compile time of the index scalars of a Tile kernel: their values, and by which
power of two they are divisible."""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, fold
from tessera.tile import ops as tile

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

    def expr(self, e: Dim) -> int:
        """Of an index expression over the dims."""

        def combine(name: str, a: int, b: int) -> int:
            if name == "mul":
                return min(a * b, MOST)
            return min(a, b) if name in ("add", "sub", "min", "max") else 1

        return fold(e, self.dims, power_of_two, combine)


_POWERS = {1 << k for k in range(13)}
