"""Building blocks and functions op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import Type

OpT = TypeVar("OpT", bound=Op)


class Builder:
    """Collects ops of one block."""

    __slots__ = ("args", "ops")

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.args = [Value(t, names[k] if k < len(names) else "") for k, t in enumerate(arg_types)]
        self.ops: list[Op] = []

    def add(self, op: OpT) -> OpT:
        """Appends an op and returns it."""
        self.ops.append(op)
        return op

    def emit(self, op: Op) -> Value:
        """Appends an op with one result and returns the result."""
        self.ops.append(op)
        return op.result

    def arg(self, type: Type, name: str = "") -> Value:
        """Adds a block argument."""
        value = Value(type, name)
        self.args.append(value)
        return value

    def block(self, outputs: Sequence[Value] = ()) -> Block:
        """The finished block."""
        return Block(self.args, self.ops, outputs)

    def func(self, name: str, outputs: Sequence[Value] = (), dims: Sequence[str] = ()) -> Func:
        """The finished function."""
        return Func(name, self.block(outputs), dims)
