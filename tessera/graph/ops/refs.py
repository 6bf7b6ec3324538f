"""Reads and writes of state, as ops: `graph.ref_get`, `graph.ref_set`.

They stand in programs that transforms trace for themselves, where a rule of the user reads and
writes state: a branch that is transposed, a step of a loop that is differentiated. As soon as such
a program is used in one of the user's, state becomes values, arguments and results of the program
(`graph/discharge.py`). So no program that is compiled has these ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tessera.errors import StateError, VerifyError
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.transforms.evaluate import bind_op
from tessera.ir.core import Value
from tessera.ir.effects import Effect, EffectKind, Effects
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operands
from tessera.ir.types import TensorType

if TYPE_CHECKING:
    from tessera.ir.parser import Parser


@dataclass(eq=False)
class Link:
    """The cell that an op is about. It belongs to the process: text has its word alone."""

    cell: Any = None

    def __str__(self) -> str:
        return "cell"

    @classmethod
    def parse(cls, parser: Parser) -> Link:
        """No cell."""
        parser.word()
        return Link()


class RefOp(GraphOp):
    """Base of both.

    Attributes:
        label: the name of the ref.
        link: the ref.
        suspended: whether the effect does not escape from the function.
    """

    family = Family.HOST
    # Operands come before attributes.
    values: tuple[Value, ...] = operands()
    label: str = attr()
    link: Link = attr(Link())
    suspended: bool = attr(False)

    def get_effects(self) -> Effects:
        """Those that its attributes say."""
        return self.effects_with(self.attrs)

    def evaluate(self, *operands: Any) -> NoReturn:
        """There is no value without the cell."""
        raise VerifyError(f"the program has the ref `{self.label}`, which is no value")


class RefGet(RefOp):
    """What a ref holds.

    `%r = graph.ref_get([]) {label="scale", types=[f32[4]]} : f32[4]`.

    Attributes:
        types: of the arrays that it holds.
    """

    name = "graph.ref_get"
    differentiable = False
    types: tuple[TensorType, ...] = attr()

    def infer(self) -> tuple[TensorType, ...]:
        """The given types."""
        return self.types

    @classmethod
    def effects_with(cls, attrs: Mapping[str, Any]) -> Effects:
        """It reads that ref."""
        return frozenset({Effect(EffectKind.READ, attrs["label"])})


class RefSet(RefOp):
    """Makes a ref hold other arrays.

    `graph.ref_set([%x]) {label="scale"}`.
    """

    name = "graph.ref_set"

    def infer(self) -> tuple[TensorType, ...]:
        """It has no results."""
        return ()

    @classmethod
    def effects_with(cls, attrs: Mapping[str, Any]) -> Effects:
        """It writes that ref."""
        return frozenset({Effect(EffectKind.WRITE, attrs["label"])})

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """What refs hold is constant."""
        return bind_op(self, primals), ()

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Examples cannot write something else each."""
        raise batched_write(self.label, self.loc)


def batched_write(label: str, loc: Any) -> StateError:
    """The error for a rule that writes a ref, under `vmap`, for each example something else."""
    return StateError(
        f"vmap: a rule writes the ref `{label}`, each example something else",
        loc=loc,
        rule="under `vmap` a ref has one value for all examples, as what is not batched",
        fix="write it in a rule of the whole batch: put `ts.vmap` into the function that has the "
        "rule, or write what is the same for all, such as a count",
    )
