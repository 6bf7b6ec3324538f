"""Ops that are compositions of others.

Such an op has a name, types, a meaning and derivatives of its own, so programs print, hash and
verify with it; before anything is lowered, what it is made of stands in its place, and is fused
with what is around it as if it had been written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.errors import MissingRuleError
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import tensor
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func
from tessera.ir.loc import ORIGIN


class Composite(GraphOp):
    """Base of ops with one result that are compositions. `evaluate` is the definition; `compose`
    computes the same bits.
    """

    family = Family.CONTROL

    def compose(self, operands: Sequence[Any]) -> Any:
        """The result, by functions of other ops."""
        raise MissingRuleError(self.name, "compose", loc=self.loc)

    def compose_selected(self, operands: Sequence[Any]) -> Any:
        """The same, where the first places of a sort are found without sorting the rest."""
        return self.compose(operands)

    def expansion(self, selects: bool = False) -> Func:
        """The Graph that stands for the op: an argument for each operand.

        Args:
            selects: whether it is for such a machine.
        """
        compose = self.compose_selected if selects else self.compose
        types = [tensor(self, k) for k in range(len(self.operands))]
        outer = ORIGIN.loc
        ORIGIN.loc = self.loc or outer
        try:
            func, captured = trace_function(
                lambda *operands: [compose(operands)], types, "lower", self.name
            )
        finally:
            ORIGIN.loc = outer
        assert not captured
        return func
