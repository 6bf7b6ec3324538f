"""What the forward loop of a differentiated scan hands to the linear one.

The body of a scan was linearized: `forward` also yields residuals, which `linear` takes. Only what
differs from step to step, and is nowhere yet, becomes a stacked result of the forward loop:

- a residual that is a constant of the loop, or is computed from constants alone, is a constant of
  the linear loop; what it takes to compute it leaves the forward loop;
- one that is a slice of what is scanned, or of a stacked result, is read from there;
- what only repeats or reorders the elements of another value is made again from that;
- what takes a few additions, products and the like of values that are there is computed again, and
  where one value is missing for that, it is stored in place of what is made of it;
- equal residuals are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tessera.graph.ops.arithmetic import (
    Abs,
    Add,
    Eq,
    Ge,
    Gt,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Neg,
    Select,
    Sub,
)
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.reshape import Broadcast, Reshape, Transpose
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import Effect, EffectKind, commute, is_repeatable
from tessera.ir.intexpr import prod
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType
from tessera.ir.walk import clone_op

MOVES = (Constant, Broadcast, Reshape, Transpose)
"""Ops that cost less than to store what they give."""


ARITHMETIC = (Abs, Add, Cast, Eq, Ge, Gt, Le, Lt, Max, Min, Mul, Ne, Neg, Select, Sub)
"""Ops that cost less than to store and load what they give, where their operands are loaded."""

MOST_STEPS = 8
"""Ops in a row that are computed again."""


class Origin(Enum):
    """Where the linear loop finds a residual."""

    CONST = "a constant of the loop"
    SCANNED = "something that is scanned"
    STACKED = "a stacked result"


@dataclass(frozen=True)
class Residuals:
    """Two loops in place of one.

    Attributes:
        outer: computes what leaves the forward loop, from the constants of the loop: the captured
            values, its own, and carried values that no step changes.
        unchanged: which carried values these are.
        forward: the body of the forward loop, whose constants are the captured values, its own, and
            the results of `outer`.
        linear: the body of the linear loop: the number of the step, constants, slices, tangents.
        consts: which constants it has; those of `outer` come last.
        slices: which slices.
    """

    outer: Func
    unchanged: list[int]
    forward: Block
    linear: Func
    consts: list[int]
    slices: list[tuple[Origin, int]]


def split(forward: Func, linear: Func, parts: tuple[int, int, int], count: int) -> Residuals:
    """Decides where each residual is kept.

    Args:
        forward: captured values, number of the step, constants, carried values and slices to next
            carried values, slices of stacked results, and residuals.
        linear: residuals and tangents to tangents.
        parts: how many captured values, constants and carried values there are.
        count: the number of residuals.
    """
    return _Split(forward, linear, parts, count).run()


@dataclass
class _Split:
    func: Func
    tangent_func: Func
    parts: tuple[int, int, int]
    count: int
    hoisted: list[Value] = field(default_factory=list[Value])
    stacked: list[Value] = field(default_factory=list[Value])
    found: dict[Value, Value] = field(default_factory=dict[Value, Value])
    consts: dict[int, Value] = field(default_factory=dict[int, Value])
    slices: dict[tuple[Origin, int], Value] = field(default_factory=dict[Any, Value])
    code: list[Op] = field(default_factory=list[Op])

    def run(self) -> Residuals:
        captured, n_consts, n_carry = self.parts
        args, outputs = self.func.args, self.func.outputs
        self.index = args[captured]
        own = [*args[:captured], *args[captured + 1 : captured + 1 + n_consts]]
        carry = args[captured + 1 + n_consts : captured + 1 + n_consts + n_carry]
        self.xs = args[captured + 1 + n_consts + n_carry :]
        split = len(outputs) - self.count
        unchanged = [k for k, arg in enumerate(carry) if outputs[k] is arg]
        self.fixed = [*own, *[carry[k] for k in unchanged]]
        self.ys = outputs[n_carry:split]
        invariant = set(self.fixed)
        steady: list[Op] = []
        # What is read and not written is the same in all steps.
        every = self.func.body.get_effects()
        reads = [e for e in every if _is_read(e) and commute(frozenset({e}), every)]
        for op in self.func.ops:
            effects = op.get_effects() - frozenset(reads)
            if is_repeatable(effects) and all(v in invariant for v in op.operands):
                invariant.update(op.results)
                steady.append(op)
        self.invariant = invariant
        self.number = Value(self.index.type)
        # Those that must be stored first: others may be computed from them.
        for v in outputs[split:]:
            if not isinstance(v.op, (*ARITHMETIC, *MOVES)):
                self.residual(v)
        for v in outputs[split:]:
            missing = list(self.missing(v))
            if len(missing) == 1 and _is_at_most(missing[0], v):
                self.residual(missing[0])
        residuals = [self.residual(v) for v in outputs[split:]]

        tangents = self.tangent_func.args[self.count :]
        env = dict(zip(self.tangent_func.args, residuals, strict=False))
        code = self.code + [clone_op(op, env) for op in self.tangent_func.ops]
        outs = [env.get(v, v) for v in self.tangent_func.outputs]
        lead = [self.number, *self.consts.values(), *self.slices.values()]
        linear = self.tangent_func.with_body(Block([*lead, *tangents], code, outs))
        outer = Func("hoisted", eliminate_dead(Block(self.fixed, steady, self.hoisted)))
        order = [self.index, *own]
        forward = self.without_hoisted(order, [*carry, *self.xs], outputs[:split])
        return Residuals(
            outer, unchanged, forward, linear, list(self.consts), list(self.slices)
        )

    def residual(self, value: Value) -> Value:
        """What stands for a residual in the linear body."""
        found = self.found.get(value)
        if found is None:
            found = self.found[value] = self._residual(value)
        return found

    def _residual(self, value: Value) -> Value:
        if value in self.fixed:
            return self.constant(self.fixed.index(value), value)
        if value in self.invariant and not isinstance(value.op, MOVES):
            self.hoisted.append(value)
            return self.constant(len(self.fixed) + len(self.hoisted) - 1, value)
        op = value.op if value not in self.ys else None
        is_cheap = isinstance(op, ARITHMETIC) and not any(self.missing(v) for v in op.operands)
        if isinstance(op, MOVES) or (op is not None and is_cheap):
            env = {v: self.residual(v) for v in op.operands}
            fresh = clone_op(op, env)
            self.code.append(fresh)
            return fresh.result
        if value is self.index:
            return self.number
        if value in self.xs:
            where = Origin.SCANNED, self.xs.index(value)
        elif value in self.ys:
            where = Origin.STACKED, self.ys.index(value)
        else:
            self.stacked.append(value)
            where = Origin.STACKED, len(self.ys) + len(self.stacked) - 1
        return self.slices.setdefault(where, Value(value.type))

    def missing(self, value: Value, steps: int = 0) -> set[Value]:
        """The values that would have to be stored to make a value in the linear loop."""
        if value in self.found or value in self.invariant or value is self.index:
            return set()
        if value in self.xs or value in self.ys:
            return set()
        op = value.op
        if not isinstance(op, (*ARITHMETIC, *MOVES)) or steps == MOST_STEPS:
            return {value}
        found: set[Value] = set()
        for v in op.operands:
            found |= self.missing(v, steps + 1)
            if len(found) > 1:
                break  # Two are too many, and paths may be.
        return found

    def constant(self, position: int, value: Value) -> Value:
        return self.consts.setdefault(position, Value(value.type))

    def without_hoisted(
        self, lead: Sequence[Value], rest: Sequence[Value], outputs: Sequence[Value]
    ) -> Block:
        """The forward body, in which what is hoisted is an argument."""
        given = {v: Value(v.type) for v in self.hoisted}
        env = dict(given)
        code: list[Op] = []
        for op in self.func.ops:
            code.append(clone_op(op, env))
            env.update({v: given[v] for v in op.results if v in given})
        outs = [env.get(v, v) for v in (*outputs, *self.stacked)]
        return eliminate_dead(Block([*lead, *given.values(), *rest], code, outs))


def _is_read(effect: Effect) -> bool:
    """Whether it is the read of a ref."""
    return effect.kind is EffectKind.READ and bool(effect.target)


def _is_at_most(a: Value, b: Value) -> bool:
    """Whether storing `a` is known not to take more than storing `b`."""
    assert isinstance(a.type, TensorType)
    assert isinstance(b.type, TensorType)
    if a.type.dtype.itemsize > b.type.dtype.itemsize:
        return False
    first, second = prod(a.type.shape), prod(b.type.shape)
    if isinstance(first, int) and isinstance(second, int):
        return first <= second
    return first == second
