"""Rewrite rules: small typed functions, indexed by the op class at their root.

A rule sees one op whose operands are already rewritten and returns None (no match) or the values
that replace the op's results; it builds new ops through the rewriter. Its docstring holds an
example, `before ==> after` as IR text, that a test parses, runs and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import is_removable
from tessera.ir.walk import walk, with_parts

OpT = TypeVar("OpT", bound=Op)


class Rewriter:
    """What a rule uses to build its replacement: new ops land before the op that is rewritten."""

    __slots__ = ("ops",)

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def emit(self, op: Op) -> Value:
        """Adds an op with one result."""
        self.ops.append(op)
        return op.result

    def add(self, op: OpT) -> OpT:
        """Adds an op."""
        self.ops.append(op)
        return op


Replacement = Value | Sequence[Value] | None
RuleFunc = Callable[[OpT, Rewriter], Replacement]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its root op class and its function."""

    root: type[Op]
    apply: Callable[[Op, Rewriter], Replacement]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.apply.__name__


class RuleSet:
    """An immutable collection of rules; `a + b` joins two."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._index: dict[type[Op], tuple[Rule, ...]] = {}

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(self.rules + other.rules)

    def rules_for(self, cls: type[Op]) -> tuple[Rule, ...]:
        """The rules whose root is `cls` or a base of it."""
        found = self._index.get(cls)
        if found is None:
            found = tuple(rule for rule in self.rules if issubclass(cls, rule.root))
            self._index[cls] = found
        return found


def rule(root: type[OpT]) -> Callable[[RuleFunc[OpT]], Rule]:
    """Makes a function a rule on ops of class `root`."""

    def wrap(fn: RuleFunc[OpT]) -> Rule:
        return Rule(root, fn)  # pyright: ignore[reportArgumentType]

    return wrap


class _Driver:
    """One forward sweep that applies rules until none fires, op by op."""

    def __init__(self, rules: RuleSet, limit: int) -> None:
        self.rules = rules
        self.limit = limit
        self.env: dict[Value, Value] = {}
        self.fired: dict[str, int] = {}

    def block(self, block: Block) -> Block:
        out: list[Op] = []
        for op in block.ops:
            self.op(op, out)
        return Block(block.args, out, [self.lookup(v) for v in block.outputs])

    def lookup(self, value: Value) -> Value:
        while True:
            fresh = self.env.get(value)
            if fresh is None:
                return value
            value = fresh

    def op(self, op: Op, out: list[Op]) -> None:
        regions = [self.block(r) for r in op.regions]
        fresh = with_parts(op, [self.lookup(v) for v in op.operands], regions)
        if fresh is not op:
            self.env.update(zip(op.results, fresh.results, strict=True))
            op = fresh
        for candidate in self.rules.rules_for(type(op)):
            rewriter = Rewriter()
            found = candidate.apply(op, rewriter)
            if found is None:
                continue
            self.count(candidate)
            values = (found,) if isinstance(found, Value) else tuple(found)
            for new in rewriter.ops:
                self.op(new, out)
            for old, value in zip(op.results, values, strict=True):
                self.env[old] = value
            return
        out.append(op)

    def count(self, fired: Rule) -> None:
        self.limit -= 1
        self.fired[fired.name] = self.fired.get(fired.name, 0) + 1
        if self.limit < 0:
            counts = ", ".join(
                f"{k} ({n})" for k, n in sorted(self.fired.items(), key=lambda kv: -kv[1])[:5]
            )
            raise CompileError(f"rewriting did not come to an end; still firing: {counts}")


def rewrite_greedy(func: Func, rules: RuleSet, limit: int | None = None) -> Func:
    """Applies rules bottom-up in one forward sweep, again on what they produce, until none matches.

    Args:
        func: the function; it is not changed.
        rules: the rules.
        limit: the most rewrites allowed; default 100 + 20 per op, at any depth.

    Raises:
        CompileError: the limit was reached; the message lists the rules that still fire.
    """
    count = sum(1 for _ in walk(func.body))
    driver = _Driver(rules, limit if limit is not None else 100 + 20 * count)
    return func.with_body(driver.block(func.body))


def eliminate_dead(block: Block) -> Block:
    """The block without ops whose results are unused and whose effects allow it."""
    live: set[Value] = set(block.outputs)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not live.isdisjoint(op.results) or not is_removable(op.get_effects()):
            kept.append(op)
            live.update(op.operands)
            for region in op.regions:
                _mark(region, live)
    kept.reverse()
    return Block(block.args, kept, block.outputs)


def _mark(block: Block, live: set[Value]) -> None:
    for op in block.ops:
        live.update(op.operands)
        for region in op.regions:
            _mark(region, live)
    live.update(block.outputs)
