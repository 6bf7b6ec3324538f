"""The op that calls a Python function back: what `ts.debug` is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.errors import NotDifferentiableError
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.trace import as_tuple
from tessera.ir.core import Value
from tessera.ir.effects import IO
from tessera.ir.hostcall import Data, HostFunction
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operands
from tessera.ir.types import TensorType


class HostCall(GraphOp):
    """Calls a function of the host with arrays. Calls happen in the order of the program, and none
    is left out.

    `graph.host_call([%x]) {function=host<print, 3>}`.

    Attributes:
        args: what it is called with.
        function: the function.
        types: of its results.
        suspended: whether its effect does not escape from the function.
    """

    name = "graph.host_call"
    family = Family.HOST
    effects = IO
    differentiable = False
    args: tuple[Value, ...] = operands()
    function: HostFunction = attr()
    types: tuple[TensorType, ...] = attr(())
    suspended: bool = attr(False)

    @classmethod
    def is_deterministic(cls, attrs: Mapping[str, Any]) -> bool:
        """What gives nothing cannot vary."""
        return not attrs.get("types")

    def infer(self) -> tuple[TensorType, ...]:
        """The given types."""
        return self.types

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Calls it."""
        return self.function(operands)

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
        """One call for each example, in their order."""
        one = self.function
        run = _each_example(one, tuple(axes))
        function = HostFunction(one.name, run, one.loc, one.traced)
        types = tuple([t.with_shape((size, *t.shape)) for t in self.types])
        outs = as_tuple(self.bind(tuple(operands), function=function, types=types))
        return outs, [0] * len(outs)


def _each_example(function: HostFunction, axes: tuple[int | None, ...]) -> Any:
    def run(*batch: Data) -> Sequence[Data]:
        size = next(x.shape[a] for x, a in zip(batch, axes, strict=True) if a is not None)
        found = [
            function([x if a is None else x.take(k, a) for x, a in zip(batch, axes, strict=True)])
            for k in range(size)
        ]
        return [np.stack(parts) for parts in zip(*found, strict=True)]

    return run
