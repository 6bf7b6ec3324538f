"""Structured loops and branches, for the layers whose values are those of kernels.

A layer derives its ops and says what its counters and its truth values are:

    class While(control.While, TileOp):
        name = "tile.while"
        truth = TileType((), bool_)

`run_for`, `run_while` and `run_if` define the ops for an interpreter that keeps values in a table.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar, Protocol

from tessera.errors import VerifyError
from tessera.ir.core import Block, Op, Value
from tessera.ir.opdef import operand, operands, region
from tessera.ir.types import Type
from tessera.ir.verify import fail


class For(Op):
    """`for i in range(lo, hi, step)`, step > 0, carrying values. The only region's arguments are i
    and the carried values. A layer's op declares it, as the last field.

    Class attributes:
        counter: the type of i and of the bounds; i64 in one form or another.
    """

    counter: ClassVar[Type]
    lo: Value = operand()
    hi: Value = operand()
    step: Value = operand()
    init: tuple[Value, ...] = operands()

    def infer(self) -> tuple[Type, ...]:
        """The carried types."""
        return tuple(v.type for v in self.init)

    def verify(self) -> None:
        """Bounds are indices; the body takes i and what is carried, and yields what is carried."""
        for value in (self.lo, self.hi, self.step):
            if value.type != self.counter:
                raise VerifyError(f"loop bounds must be i64 scalars, not {value.type}")
        (body,) = self.regions
        carried = [v.type for v in self.init]
        if [a.type for a in body.args] != [self.counter, *carried] or [
            v.type for v in body.outputs
        ] != carried:
            raise VerifyError("the body's arguments and outputs must match what is carried")


class While(Op):
    """`while cond(carried): carried = body(carried)`; the condition region yields one truth value.

    Class attributes:
        truth: the type of that value.
    """

    truth: ClassVar[Type]
    init: tuple[Value, ...] = operands()
    cond: Block = region()
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The carried types."""
        return tuple(v.type for v in self.init)

    def verify(self) -> None:
        """Carried types agree; the condition is one bool."""
        carried = [v.type for v in self.init]
        for block in (self.cond, self.body):
            if [a.type for a in block.args] != carried:
                raise VerifyError("region arguments must match what is carried")
        if [v.type for v in self.body.outputs] != carried or [
            v.type for v in self.cond.outputs
        ] != [self.truth]:
            raise VerifyError("the body yields what is carried, the condition one bool")


class If(Op):
    """`then()` if the truth value holds, else `otherwise()`; both yield the same types.

    Class attributes:
        truth: the type of that value.
    """

    truth: ClassVar[Type]
    pred: Value = operand()
    then: Block = region()
    otherwise: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """What the regions yield."""
        return tuple(v.type for v in self.then.outputs)

    def verify(self) -> None:
        """The condition is a bool; both regions yield the same types."""
        if self.pred.type != self.truth:
            raise VerifyError(f"the condition is {self.pred.type}")
        if [v.type for v in self.then.outputs] != [v.type for v in self.otherwise.outputs]:
            raise VerifyError("both regions must yield the same types")


class Runner(Protocol):
    """What the ops ask of an interpreter: a table of values, and to run a block."""

    @property
    def values(self) -> MutableMapping[Value, Any]:
        """What has been computed."""
        ...

    def block(self, block: Block) -> list[Any]:
        """Runs a block, whose arguments are in the table; the values of its outputs."""
        ...


def run_for(s: Runner, op: For) -> None:
    """Runs a loop over a range."""
    lo, hi, step = s.values[op.lo], s.values[op.hi], s.values[op.step]
    if step <= 0:
        raise fail(op, f"the step is {step}; it must be positive")
    (body,) = op.regions
    counter, *args = body.args
    carried = [s.values[v] for v in op.init]
    for i in range(lo, hi, step):
        s.values[counter] = i
        s.values.update(zip(args, carried, strict=True))
        carried = s.block(body)
    s.values.update(zip(op.results, carried, strict=True))


def run_while(s: Runner, op: While) -> None:
    """Runs a loop with a condition."""
    carried = [s.values[v] for v in op.init]
    while True:
        s.values.update(zip(op.cond.args, carried, strict=True))
        (going,) = s.block(op.cond)
        if not going:
            break
        s.values.update(zip(op.body.args, carried, strict=True))
        carried = s.block(op.body)
    s.values.update(zip(op.results, carried, strict=True))


def run_if(s: Runner, op: If) -> None:
    """Runs one of two regions."""
    found = s.block(op.then if s.values[op.pred] else op.otherwise)
    s.values.update(zip(op.results, found, strict=True))
