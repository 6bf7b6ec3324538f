"""What `ts.fast_math` lets a compiler do: what is equal for real numbers, and rounds otherwise.

    x / broadcast(s)   ==>  x * broadcast(1 / s)     s has fewer elements than x
    x / c              ==>  x * (1 / c)              c a constant
    (x * c) * d        ==>  x * (c * d)              c and d constants, x * c used once
    a * b + z          ==>  fma(a, b, z)             a * b used once, where the machine has it
    tanh, log, pow ... ==>  their `fast_functions`   of float32, on CPUs

Ops carry the promises of their line in their location, so what is derived from them may change as
they may. Results differ in their last bits, where they are not infinite or NaN: a reciprocal
may overflow where a quotient does not.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tessera.dtypes import float32
from tessera.graph.ops.arithmetic import Add, Div, Fma, Mul, Neg, Sub
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.checks import title
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.reshape import Broadcast
from tessera.graph.passes.fast_functions import FUNCTIONS, expansion
from tessera.graph.promise import Promise, promised
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.loc import ORIGIN, Loc
from tessera.ir.walk import inline, uses, walk, with_parts


@dataclass(frozen=True, slots=True)
class FastMath(Promise):
    """The promise that the last bits do not matter."""


@dataclass(frozen=True, slots=True)
class Change:
    """An op that became another.

    Attributes:
        what: both.
        loc: the line of the op.
        policy: which policy let it change.
    """

    what: str
    loc: Loc
    policy: str = "fast_math"

    def __str__(self) -> str:
        return f"{self.policy}: {self.what}, {self.loc}"


def fast_math(
    func: Func, fused: bool, functions: Collection[type[GraphOp]] = FUNCTIONS
) -> tuple[Func, list[Change]]:
    """The program with what may change changed, and what did.

    Args:
        func: the program.
        fused: whether the machine multiplies and adds in one instruction.
        functions: those that have shorter programs; GPUs have a unit for all.
    """
    if not any([_is_fast(op) for op in walk(func.body)]):
        return func, []
    changes: list[Change] = []
    body = _Block(func.body, fused, functions, uses(func.body), changes).run()
    return func.with_body(body), changes


def _is_fast(op: Op) -> bool:
    return bool(op.loc.promises) and promised(op.loc.promises, FastMath) is not None


class _Block:
    """The rewriting of one block."""

    def __init__(
        self,
        block: Block,
        fused: bool,
        functions: Collection[type[GraphOp]],
        count: Counter[Value],
        changes: list[Change],
    ) -> None:
        self.block = block
        self.fused = fused
        self.functions = functions
        self.count = count
        self.changes = changes
        self.env: dict[Value, Value] = {}
        self.before: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.own: set[Op] = set()

    def run(self) -> Block:
        """The block."""
        for old in self.block.ops:
            regions = [
                _Block(region, self.fused, self.functions, self.count, self.changes).run()
                for region in old.regions
            ]
            op = with_parts(old, [self.env.get(v, v) for v in old.operands], regions)
            new = self.changed(op, old) if _is_fast(old) else None
            if new is None:
                self.ops.append(op)
                self.own.add(op)
                new = op.results
            self.env.update(zip(old.results, new, strict=True))
            self.before.update(zip(new, old.results, strict=True))
        outputs = [self.env.get(v, v) for v in self.block.outputs]
        return Block(self.block.args, self.ops, outputs)

    def add(self, op: Op) -> Value:
        """Adds an op."""
        self.ops.append(op)
        self.own.add(op)
        return op.results[0]

    def changed(self, op: Op, old: Op) -> Sequence[Value] | None:
        """What takes the place of the results of an op; None where it stays."""
        if isinstance(op, GraphOp) and type(op) in self.functions:
            return self.expanded(op, old)
        if not isinstance(op, (Div, Mul, Add, Sub)):
            return None
        if not tensor_type(op.results[0]).dtype.is_float:
            return None
        if isinstance(op, Div):
            found, what = self.divided(op), "a quotient is a product with the reciprocal"
        elif isinstance(op, Mul):
            found, what = self.scaled(op), "two constant factors are one"
        else:
            found, what = self.joined(op), "a product is fused into a sum"
        if found is None:
            return None
        self.changes.append(Change(what, old.loc))
        return (found,)

    def expanded(self, op: GraphOp, old: Op) -> Sequence[Value] | None:
        """A function of float32 in fewer operations."""
        type = tensor_type(op.operands[0])
        if type.dtype is not float32:
            return None
        what = f"{title(op)} is one with a few units more in the last place"
        self.changes.append(Change(what, old.loc))
        outer = ORIGIN.loc
        ORIGIN.loc = op.loc or outer
        try:
            body = expansion(builtins.type(op), type.strong(), self.fused).body
        finally:
            ORIGIN.loc = outer
        return inline(body, op.operands, self.add)

    def divided(self, op: Div) -> Value | None:
        """A quotient by what is the same for many elements."""
        x, y = op.operands
        spread = y.op
        if not isinstance(spread, Broadcast):
            return None
        source = spread.x
        type = tensor_type(source)
        if isinstance(source.op, Constant):
            value = _constant(y)
            if not value:
                return None
            inverse = self.add(Constant(Dense.of(1 / value, type.dtype), loc=op.loc))
        else:
            if type.shape == tensor_type(y).shape:
                return None
            one = self.add(Constant(Dense.of(1.0, type.dtype), loc=op.loc))
            if type.shape:
                one = self.add(Broadcast(one, tuple(type.shape), (), loc=op.loc))
            inverse = self.add(Div(one, source, loc=op.loc))
        again = self.add(Broadcast(inverse, spread.shape, spread.dims, loc=op.loc))
        return self.add(Mul(x, again, loc=op.loc))

    def scaled(self, op: Mul) -> Value | None:
        """A product with two constants."""
        for side in (0, 1):
            constant = _constant(op.operands[side])
            inner = op.operands[1 - side].op
            if constant is None or not isinstance(inner, Mul) or not self.is_own(inner):
                continue
            for other in (0, 1):
                first = _constant(inner.operands[other])
                if first is None:
                    continue
                type = tensor_type(op.results[0])
                both = Constant(Dense.of(first * constant, type.dtype), loc=op.loc)
                factor = self.add(both)
                if type.shape:
                    factor = self.add(Broadcast(factor, tuple(type.shape), (), loc=op.loc))
                return self.add(Mul(inner.operands[1 - other], factor, loc=op.loc))
        return None

    def joined(self, op: Add | Sub) -> Value | None:
        """A sum with a product."""
        if not self.fused or tensor_type(op.results[0]).dtype.bits not in (32, 64):
            return None
        for side in (0, 1):
            product, other = op.operands[side].op, op.operands[1 - side]
            if not isinstance(product, Mul) or not self.is_own(product):
                continue
            a, b = product.operands
            if isinstance(op, Sub):
                if side:
                    a = self.add(Neg(a, loc=op.loc))
                else:
                    other = self.add(Neg(other, loc=op.loc))
            return self.add(Fma(a, b, other, loc=op.loc))
        return None

    def is_own(self, op: Op) -> bool:
        """Whether an op may change, and only what is looked at needs it."""
        (value,) = op.results
        return op in self.own and _is_fast(op) and self.count[self.before.get(value, value)] == 1


def _constant(value: Value) -> float | None:
    """The number that all elements are."""
    op = value.op
    if isinstance(op, Broadcast):
        op = op.x.op
    if not isinstance(op, Constant) or op.value.shape != ():
        return None
    return float(op.value.array[()]) if op.value.dtype.is_float else None
