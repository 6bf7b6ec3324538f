"""The op that calls a Python function back: what `ts.debug` and the callbacks are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from tessera.errors import NotDifferentiableError
from tessera.graph.ops.base import Family, GraphOp, is_inexact
from tessera.graph.ops.reshape import batch_front, reshape
from tessera.graph.trace import as_tuple
from tessera.graph.transforms.evaluate import bind_op
from tessera.ir.core import Value
from tessera.ir.effects import IO, PURE, Effects
from tessera.ir.hostcall import Data, HostFunction, Spec
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operands
from tessera.ir.types import TensorType


class Batching(Enum):
    """How a call is batched.

    - `SEQUENTIAL`: one call for each example, in their order;
    - `EXPAND`: one call, for which all operands have a leading dim, of size 1 where they are the
      same for all examples;
    - `BROADCAST`: one call, for which all operands are repeated for each example.
    """

    SEQUENTIAL = "sequential"
    EXPAND = "expand_dims"
    BROADCAST = "broadcast_all"


class HostCall(GraphOp):
    """Calls a function of the host with arrays.

    `%r = graph.host_call([%x]) {function=host<load, 3>, types=[f32[4]]} : f32[4]`.

    Calls happen in the order of the program, and none is left out, unless `pure` says that the
    function does nothing but compute: then a call is like any other op.

    Attributes:
        args: what it is called with.
        function: the function.
        types: of its results.
        suspended: whether its effect does not escape from the function.
        pure: whether it has none.
        batching: how it is batched.
    """

    name = "graph.host_call"
    family = Family.HOST
    effects = IO
    args: tuple[Value, ...] = operands()
    function: HostFunction = attr()
    types: tuple[TensorType, ...] = attr(())
    suspended: bool = attr(False)
    pure: bool = attr(False)
    batching: Batching = attr(Batching.SEQUENTIAL)

    @classmethod
    def is_deterministic(
        cls, operands: Sequence[Any], attrs: Mapping[str, Any], on_cpu: bool
    ) -> bool:
        """What gives nothing cannot vary, and what only computes does not."""
        return bool(attrs.get("pure")) or not attrs.get("types")

    def infer(self) -> tuple[TensorType, ...]:
        """The given types."""
        return self.types

    @classmethod
    def effects_with(cls, attrs: Mapping[str, Any]) -> Effects:
        """None, if it is pure."""
        return PURE if attrs.get("pure") else IO

    def get_effects(self) -> Effects:
        """Those that its attributes say."""
        return self.effects_with(self.attrs)

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Calls it."""
        return self.function.checked(operands, specs(self.types))

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """What the host computes has no derivative; what it is told has, and needs none."""
        if any([is_inexact(t.dtype) for t in self.types]):
            raise NotDifferentiableError(
                f"{self.function.name}: its results have no derivative",
                loc=self.loc,
                rule="what Python computes is not traced, so nothing is known of how it depends on "
                "its arguments",
                fix="give the function that calls it a rule, by `ts.custom_jvp` or "
                "`ts.custom_vjp`; or pass it `ts.stop_gradient(x)`",
            )
        return bind_op(self, primals) if outs is None else outs, [None] * len(self.types)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """What has no cotangents has no value either."""
        raise NotDifferentiableError(
            f"{self.function.name}: called with a tangent, which has no value in reverse mode",
            loc=self.loc,
            rule="reverse mode runs the computation of tangents backwards, with cotangents",
            fix="call it under `ts.jvp`, or with the cotangents of a `ts.custom_vjp` rule",
        )

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """As `batching` says; all results have the batch in front."""
        types = tuple([t.with_shape((size, *t.shape)) for t in self.types])
        given, function = list(operands), self.function
        if self.batching is Batching.SEQUENTIAL:
            run = _each_example(function, tuple(axes), specs(self.types))
            function = HostFunction(function.name, run, function.loc, function.traced)
        else:
            for k, (x, axis) in enumerate(zip(operands, axes, strict=True)):
                alone = axis is None and self.batching is Batching.EXPAND
                given[k] = reshape(x, (1, *x.shape)) if alone else batch_front(x, axis, size)
        outs = as_tuple(self.bind(tuple(given), function=function, types=types))
        return outs, [0] * len(outs)


def specs(types: Sequence[TensorType]) -> list[Spec]:
    """Shapes and dtypes as functions of the host know them; None for a dim that is known at run
    time."""
    return [
        (tuple([d if isinstance(d, int) else None for d in t.shape]), t.dtype.np) for t in types
    ]


def _each_example(
    function: HostFunction, axes: tuple[int | None, ...], types: Sequence[Spec]
) -> Callable[..., Sequence[Data]]:
    def run(*batch: Data) -> Sequence[Data]:
        size = next(x.shape[a] for x, a in zip(batch, axes, strict=True) if a is not None)
        if not size:
            return [np.zeros((0, *[d or 0 for d in shape]), dtype) for shape, dtype in types]
        found = [
            function.checked(
                [x if a is None else x.take(k, a) for x, a in zip(batch, axes, strict=True)], types
            )
            for k in range(size)
        ]
        return [np.stack(parts) for parts in zip(*found, strict=True)]

    return run
