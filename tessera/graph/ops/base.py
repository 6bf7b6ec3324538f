"""What every Graph primitive is: one class with all of its rules, in one of a few structural
families.

A primitive must have `infer` and `evaluate`. The derivative and batching rules are optional; a
missing one raises an error that names the method to write. Rules are written with the functions of
`graph/ops` (`add`, `mul`, ...), which work on arrays and on tracers of any trace.

Conventions of the rules:
- `jvp(primals, tangents, outs)`: a tangent is None when it is known to be zero; so is a result.
- `partial(k, t, out, *primals)`: the tangent of the single output through operand k alone; `jvp`
  sums over k.
- `transpose(cts, operands)`: for an op that is linear in the operands given as `Linear`; returns a
  cotangent per operand, None for the others (and for zero).
- `batch(operands, axes, size)`: an axis is None where the operand has no batch axis; returns
  outputs and their axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from tessera.dtypes import DType, Kind
from tessera.errors import MissingRuleError, VerifyError
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import bind_op
from tessera.ir.core import Op
from tessera.ir.effects import Effects, collective
from tessera.ir.intexpr import Dim
from tessera.ir.order import Order
from tessera.ir.types import TensorType


class Family(Enum):
    """The structural families. Lowering has one rule per family, not per op."""

    ELEMENTWISE = "elementwise"
    REDUCE = "reduce"
    CONTRACT = "contract"
    REARRANGE = "rearrange"
    SCATTER = "scatter"
    SCAN = "scan"
    SORT = "sort"
    GENERATE = "generate"
    RANDOM = "random"
    LIBRARY = "library"
    CONTROL = "control"
    KERNEL = "kernel"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Linear:
    """Stands for an operand whose value is unknown because the op is linear in it."""

    type: TensorType


class GraphOp(Op):
    """Base of all Graph primitives.

    Class attributes:
        family: what lowering reads.
        differentiable: False for ops whose outputs never carry a tangent (comparisons, integer
            results).
    """

    family: ClassVar[Family]
    differentiable: ClassVar[bool] = True
    @classmethod
    def is_deterministic(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> bool:
        """Whether such an op gives equal bits of equal operands in each run.

        Args:
            operands: arrays.
            attrs: its attributes.
            on_cpu: whether it runs on the host.
        """
        return True

    @classmethod
    def fixed_order(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> Order | None:
        """The order of what such an op adds up and rounds, where functions promise one.

        Args:
            operands: arrays.
            attrs: its attributes.
            on_cpu: whether it runs on the host.
        """
        return None

    @classmethod
    def free_order(cls, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Order | None:
        """The order of what such an op adds up and rounds, where it may be left to chance; None
        where that does not help.

        Args:
            operands: arrays.
            attrs: its attributes.
        """
        return None

    def infer(self) -> TensorType | tuple[TensorType, ...]:
        """Result types from operand types and attributes."""
        raise MissingRuleError(self.name, "infer", loc=self.loc)

    def evaluate(self, *operands: np.ndarray) -> Any:
        """The meaning of the op, in NumPy: an array, or a tuple of arrays for several results."""
        raise MissingRuleError(self.name, "evaluate")

    def accumulates(self) -> DType | None:
        """The dtype in which an op that adds or multiplies up does so; None for one that does not.
        """
        return None

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
    ) -> Sequence[Any]:
        """Tangents of the outputs; the default sums `partial` over the operands with a tangent."""
        total: Any = None
        for k, tangent in enumerate(tangents):
            if tangent is None:
                continue
            part = self.partial(k, tangent, outs[0], *primals)
            if part is not None:
                total = part if total is None else add_tangents(total, part)
        return (total,)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """The tangent of the output through operand `k` alone, or None when it is zero."""
        raise MissingRuleError(self.name, "jvp (or partial)", loc=self.loc)

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Outputs (computed unless given) and their tangents. Ops with regions override this
        instead of `jvp`.
        """
        if outs is None:
            outs = bind_op(self, primals)
        return outs, self.jvp(primals, tangents, outs)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """Cotangents of the linear operands."""
        raise MissingRuleError(self.name, "transpose", loc=self.loc)

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Outputs of the op over a batch of operands, and the batch axis of each."""
        raise MissingRuleError(self.name, "batch", loc=self.loc)

    def bind(self, *operands: Any, **attrs: Any) -> Any:
        """Binds an op of the same class with the same attributes, except for those given."""
        return bind(type(self), *operands, **{**self.attrs, **attrs})


class Collective(GraphOp):
    """Base of the ops over all examples of a mapped axis, which their attribute `axis_name` says;
    see `collective.py`.
    """

    family = Family.CONTROL

    @classmethod
    def effects_with(cls, attrs: Mapping[str, Any]) -> Effects:
        """A collective over the axis."""
        return collective(attrs["axis_name"])

    def get_effects(self) -> Effects:
        """Those that its attributes say."""
        return self.effects_with(self.attrs)

    def evaluate(self, *operands: np.ndarray) -> Any:
        """It has a meaning over a batch only."""
        name = self.attrs["axis_name"]
        raise VerifyError(f"{self.name}: the axis {name!r} is not mapped", loc=self.loc)

    def resolve(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """The op on a batch over its own axis: outputs and their batch axes.

        Args:
            operands: arrays.
            axes: the batch axis of each, None where all examples have the same.
            size: how many examples there are.
        """
        raise MissingRuleError(self.name, "resolve", loc=self.loc)


def add_tangents(x: Any, y: Any) -> Any:
    """The sum of two tangents or cotangents; None is zero."""
    if x is None:
        return y
    if y is None:
        return x
    return bind(Op.registry["graph.add"], x, y)


def linear(
    self: GraphOp, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]
) -> Sequence[Any]:
    """`jvp = linear`: an op of one operand that is linear in it; the tangent is the op of the
    tangent.
    """
    (tangent,) = tangents
    return (None if tangent is None else self.bind(tangent),)


def is_inexact(dtype: DType) -> bool:
    """Whether values of the dtype carry tangents."""
    return dtype.kind in (Kind.FLOAT, Kind.COMPLEX)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one element of a rearranging op's result comes from.

    Attributes:
        operand: which operand is read, or None for the constant `fill`.
        index: the element of that operand. An expression may mention `$k`, the value of integer
            operand k, read at `Rearrange.dynamic_index(k, index)`.
        where: this source applies only where every expression is >= 0; the first source that
            applies wins, and the conditions of the last one hold by construction.
        fill: the constant when `operand` is None.
    """

    operand: int | None
    index: tuple[Dim, ...] = ()
    where: tuple[Dim, ...] = ()
    fill: float | int | bool | complex = 0


class Rearrange(GraphOp):
    """Ops that only move elements: each result element is one element of one operand.

    `sources` says which; lowering composes it into the index expressions of loads, so these ops
    cost nothing by themselves.
    """

    family = Family.REARRANGE

    def sources(self, index: tuple[Dim, ...]) -> list[Source]:
        """The candidates for the result element at `index` (one expression per result dim)."""
        raise MissingRuleError(self.name, "sources", loc=self.loc)

    def dynamic_index(self, k: int, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The element of integer operand `k` that `$k` stands for; scalars need no override."""
        return ()
