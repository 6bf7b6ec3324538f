"""A small builder for writing Target IR by hand: expansions and legalization use it."""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.ir.core import Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import scalar
from tessera.target import ops as t


class Build:
    """Collects ops; every method works on scalars and on vectors alike.

    Attributes:
        ops: what was built.
        loc: the location of new ops.
        fused: whether the machine has a fused multiply-add.
        scales: whether it has an instruction for `target.scale`.
        looks_up: whether it has one for `target.lookup`.
        assists: whether an underflow takes it long.
        pairs: whether polynomials are evaluated in pairs of terms.
    """

    __slots__ = ("assists", "fused", "loc", "looks_up", "ops", "pairs", "scales")

    def __init__(
        self,
        *,
        fused: bool = False,
        scales: bool = False,
        looks_up: bool = False,
        assists: bool = False,
        pairs: bool = False,
    ) -> None:
        self.ops: list[Op] = []
        self.loc: Loc = Loc.unknown
        self.fused = fused
        self.scales = scales
        self.looks_up = looks_up
        self.assists = assists
        self.pairs = pairs

    def inner(self) -> Build:
        """A builder of a block inside, whose ops become a region."""
        inner = Build(
            fused=self.fused,
            scales=self.scales,
            looks_up=self.looks_up,
            assists=self.assists,
            pairs=self.pairs,
        )
        inner.loc = self.loc
        return inner

    def emit(self, op: Op) -> Value:
        """Adds an op with one result."""
        self.ops.append(op)
        return op.result

    def map(self, name: str, *args: Value) -> Value:
        """A scalar function."""
        return self.emit(t.Map(args, scalar(name), loc=self.loc))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        return self.map("select", condition, a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c`: rounded once on a machine that does so in one instruction, else twice."""
        return self.map("fma", a, b, c) if self.fused else self.map("add", self.map("mul", a, b), c)

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion, unless it is none."""
        return x if t.element(x.type) is dtype else self.emit(t.Cast(x, dtype, loc=self.loc))

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype."""
        return x if t.element(x.type) is dtype else self.emit(t.Bitcast(x, dtype, loc=self.loc))

    def like(self, x: Value, value: bool | int | float) -> Value:
        """A constant of the type of `x`."""
        return self.emit(t.Const(value, x.type, loc=self.loc))
