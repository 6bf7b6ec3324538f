"""Copies of a nest's code in which axes are something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, substitute, sym, symbols
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.ir.types import ScalarType
from tessera.schedule import ops

POINTWISE = (ops.Const, ops.Index, ops.Holds, ops.Load, ops.Store, ops.Map, ops.Cast, ops.Bitcast)
"""Ops of one point of a nest, without loops."""


@dataclass
class Copy:
    """One copy of code.

    Attributes:
        axes: what axes become, in terms of other axes.
        dynamic: i64 scalars of the copy that take the place of axes.
        guard: conditions (>= 0) under which memory may be read, on the original axes.
        env: for values of the original those of the copy.
    """

    axes: Mapping[str, Dim] = field(default_factory=dict[str, Dim])
    dynamic: Mapping[str, Value] = field(default_factory=dict[str, Value])
    guard: tuple[Dim, ...] = ()
    env: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def find(self, value: Value) -> Value:
        """A value of the copy."""
        return self.env.get(value, value)

    def places(self, index: Iterable[Dim]) -> tuple[Dim, ...]:
        """Index expressions of the copy."""
        return tuple([substitute(e, self.axes) for e in index])

    def block(self, block: Block) -> Block:
        """A region."""
        args = [Value(arg.type, arg.name) for arg in block.args]
        self.env.update(zip(block.args, args, strict=True))
        code = [self.op(op) for op in block.ops]
        return Block(args, code, [self.find(v) for v in block.outputs])

    def op(self, op: Op) -> Op:
        """One op; its results are known from then on."""
        regions = [self.block(region) for region in op.regions]
        attrs, dyn = self._expressions(op)
        operands = [self.find(v) for v in op.operands]
        if dyn:
            fresh = type(op)(loc=op.loc, **self._fields(op, attrs, dyn))
        else:
            fresh = op.rebuild(operands, regions, **attrs)
        self.env.update(zip(op.results, fresh.results, strict=True))
        return fresh

    def _expressions(self, op: Op) -> tuple[dict[str, object], list[Value]]:
        """The index expressions of the copy, and the dynamic operands that they mention besides
        the op's."""
        found: dict[str, tuple[Dim, ...]] = {}
        if isinstance(op, (ops.Load, ops.Store)):
            found = {"index": op.index, "where": op.where}
            if isinstance(op, ops.Load):
                found["where"] = (*op.where, *self.guard)
        elif isinstance(op, ops.Scan):
            found = {"index": op.index}
        elif isinstance(op, ops.Holds):
            found = {"where": op.where}
        elif isinstance(op, ops.Index):
            found = {"expr": (op.expr,)}
        names = [
            n for n in self.dynamic if any(n in symbols(e) for es in found.values() for e in es)
        ]
        count = len(op.dyn) if isinstance(op, (ops.Load, ops.Store, ops.Holds, ops.Index)) else 0
        mapping = dict(self.axes)
        mapping.update({name: sym(f"${count + k}") for k, name in enumerate(names)})
        attrs: dict[str, object] = {}
        for key, exprs in found.items():
            made = tuple([substitute(e, mapping) for e in exprs])
            attrs[key] = made[0] if key == "expr" else made
        return attrs, [self.dynamic[name] for name in names]

    def _fields(self, op: Op, attrs: dict[str, object], dyn: list[Value]) -> dict[str, Any]:
        """The fields of an op that gains dynamic operands."""
        assert isinstance(op, (ops.Load, ops.Store, ops.Holds, ops.Index))
        fields: dict[str, Any] = {**op.attrs, **attrs}
        fields["dyn"] = (*[self.find(v) for v in op.dyn], *dyn)
        if isinstance(op, ops.Random):
            fields["key"] = tuple([self.find(word) for word in op.key])
        if isinstance(op, (ops.Load, ops.Store)):
            fields["buf"] = self.find(op.buf)
        if isinstance(op, ops.Store):
            fields["value"] = self.find(op.value)
        return fields


def guarded(
    code: list[Op], value: Value, guard: tuple[Dim, ...], dyn: tuple[Value, ...], fn: ScalarFn
) -> Value:
    """The value where all conditions hold, else the neutral element of `fn`; adds to the code."""
    if not guard:
        return value
    assert isinstance(value.type, ScalarType)
    neutral = ops.Const(identity(value, fn), value.type.dtype)
    holds = ops.Holds(dyn, guard)
    chosen = ops.Map((holds.result, value, neutral.result), SCALARS["select"])
    code += [neutral, holds, chosen]
    return chosen.result


def identity(value: Value, fn: ScalarFn) -> ops.Number:
    """The neutral element of `fn` for a scalar."""
    assert isinstance(value.type, ScalarType)
    dtype = value.type.dtype
    assert fn.identity is not None
    if dtype.is_bool and fn.name in ("max", "min"):
        return fn.name == "min"
    if dtype.is_complex:
        return complex(fn.identity(dtype))
    return fn.identity(dtype)


class Names:
    """Names for axes that nothing has yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def fresh(self, letter: str) -> str:
        """A name that begins with a letter."""
        name, count = letter, 0
        while name in self.taken:
            name, count = f"{letter}{count}", count + 1
        self.taken.add(name)
        return name
