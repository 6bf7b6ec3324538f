"""What `ts.deterministic` promises of the ops of a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.config import config
from tessera.errors import DeterminismError, OptionError
from tessera.graph.device import CPU
from tessera.graph.effects import FIELD, now_suspended
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.library import LibraryCall
from tessera.graph.placement import device_of_all
from tessera.graph.promise import Promise, promised
from tessera.graph.trace import items_of
from tessera.ir import loc
from tessera.ir.core import Func, Op
from tessera.ir.effects import uncovered
from tessera.ir.loc import Loc
from tessera.ir.order import BY_CHANCE, Order
from tessera.ir.walk import walk


def order_of(cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Order | None:
    """The order that is promised of an op, and that it does not state."""
    if not issubclass(cls, GraphOp) or attrs.get("order") is not None:
        return None
    return cls.fixed_order(operands, attrs, is_for_cpu(operands))


def with_order(
    cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any], everywhere: bool = False
) -> dict[str, Any]:
    """The attributes of an op with the order that is promised of it.

    Args:
        cls: the op.
        operands: arrays.
        attrs: its attributes.
        everywhere: whether sums of GPUs have such an order, too.
    """
    if not everywhere and not is_for_cpu(operands):
        return attrs
    order = order_of(cls, operands, attrs)
    return attrs if order is None else {**attrs, "order": order}


def is_for_cpu(operands: Sequence[Any]) -> bool:
    """Whether an op of these arrays will be computed by a CPU."""
    if promised(config.current().promises, OnGpu) is not None:
        return False
    return device_of_all([x for item in operands for x in items_of(item)]) is CPU


@dataclass(frozen=True, slots=True)
class OnGpu(Promise):
    """What is traced is for a GPU, though its arrays are none of one: there need not be one."""


@dataclass(frozen=True, slots=True)
class FixedOrder(Promise):
    """The promise that sums have the order that depends on nothing but their terms. On a GPU it
    follows from sizes and the machine in any case."""

    def attributes(
        self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
    ) -> dict[str, Any]:
        """Sums get an order; those of library routines have none that could be stated."""
        if issubclass(cls, LibraryCall):
            raise OptionError(
                f"policy: {cls.routine} with order=fixed",
                loc=loc.current(),
                rule="a library routine adds in an order of its own, which no policy fixes",
                fix="end the policy around it: `with ts.policy(ts.Policy()):`",
            )
        return with_order(cls, operands, attrs)


@dataclass(frozen=True, slots=True)
class ByChance(Promise):
    """The promise that the order of sums does not matter: what is faster in any order may be other
    bits in each run, which on a GPU are updates that meet in one element."""

    def attributes(
        self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
    ) -> dict[str, Any]:
        """Updates meet in any order."""
        if not issubclass(cls, GraphOp):
            return attrs
        order = cls.free_order(operands, attrs)
        return attrs if order is None else {**attrs, "order": order}


def left_to_chance(func: Func) -> list[tuple[str, Loc]]:
    """What a program leaves to chance, and the lines that it is from."""
    found = [op for op in walk(func.body) if op.attrs.get("order") == BY_CHANCE]
    return [("updates of one element meet in any order", op.loc) for op in found]


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
        if not (self.allows or cls.is_deterministic(operands, attrs, is_for_cpu(operands))):
            is_wrapped = cls.effects and not uncovered(now_suspended(), cls.effects)
            if not (is_wrapped or attrs.get(FIELD)):
                raise self.refusal(cls, attrs)
        return with_order(cls, operands, attrs, self.batch_invariant)

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
