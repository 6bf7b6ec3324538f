"""What `ts.deterministic` promises of the ops of a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.errors import DeterminismError, NotYetError
from tessera.graph.device import CPU
from tessera.graph.effects import FIELD, now_suspended
from tessera.graph.ops.base import GraphOp
from tessera.graph.placement import device_of_all
from tessera.graph.promise import Promise
from tessera.graph.trace import items_of
from tessera.ir import loc
from tessera.ir.core import Op
from tessera.ir.effects import uncovered


@dataclass(frozen=True, slots=True)
class Deterministic(Promise):
    """The promise that results are the same bits in each run.

    Attributes:
        function: the name of the function that promises it.
        batch_invariant: whether a row of a result depends on no other row of the batch.
        stream: where its random numbers come from.
        allows: whether ops may vary here.
    """

    function: str
    batch_invariant: bool = False
    stream: Any = None
    allows: bool = False

    def attributes(
        self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
    ) -> dict[str, Any]:
        """Sums get an order; what is not the same in each run is refused."""
        if not issubclass(cls, GraphOp):
            return attrs
        device = device_of_all([x for item in operands for x in items_of(item)])
        if not (self.allows or cls.is_deterministic(operands, attrs, device is CPU)):
            is_wrapped = cls.effects and not uncovered(now_suspended(), cls.effects)
            if not (is_wrapped or attrs.get(FIELD)):
                raise self.refusal(cls, attrs)
        if attrs.get("order") is not None:
            return attrs
        order = cls.fixed_order(operands, attrs)
        if order is None:
            return attrs
        if device is not CPU:
            # The order of sums of a GPU follows from sizes and the machine: it is the same in each
            # run, but not for each batch.
            if self.batch_invariant:
                raise NotYetError(
                    f"deterministic: {self.function} has a sum on {device}",
                    loc=loc.current(),
                    rule="rows do not depend on their batch on CPUs only",
                    fix="leave out `batch_invariant`: results are the same in each run",
                )
            return attrs
        return {**attrs, "order": order}

    def refusal(self, cls: type[GraphOp], attrs: dict[str, Any]) -> DeterminismError:
        """The error for an op that is not the same in each run."""
        function = attrs.get("function")
        name = cls.name.rpartition(".")[2] if function is None else function.name
        return DeterminismError(
            f"{name}: its result may be another in each run, and {self.function} is deterministic",
            loc=loc.current(),
            rule="a function with `@ts.deterministic` gives the same bits in each run",
            fix="take the value as an argument; or say that it may vary, and put the line under "
            '`with ts.effects.suspend("io"):`'
            if cls.effects
            else "compute it on a CPU; or say that it may vary, and put the line under "
            "`with ts.nondeterministic():`",
        )
