"""Policies of `checkpoint`: which residuals are saved, and which computed again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.work import nbytes, work
from tessera.ir.core import Func, Op, Value
from tessera.ir.effects import EffectKind, is_removable

if TYPE_CHECKING:
    from tessera.ir.parser import Parser


@dataclass(eq=False)
class Policy:
    """Which results may be saved.

    Args:
        word: what text and messages call it.
        saves: says so of an op.
    """

    word: str
    saves: Callable[[GraphOp], bool]

    def __str__(self) -> str:
        return self.word

    @classmethod
    def parse(cls, parser: Parser) -> Policy:
        """A policy that needs no more than its word; in text, the others save nothing."""
        return BY_WORD.get(parser.word(), NOTHING)

    def choose(self, forward: Func, residuals: Sequence[Value]) -> list[Value]:
        """The values to save: those on the way from the residuals back to the arguments that come
        first and may be saved.

        Args:
            forward: the Graph that computes the residuals.
            residuals: values of it.
        """
        args, wanted = {*forward.args}, {*residuals}
        saved: list[Value] = []
        for op in reversed(forward.ops):
            found = [v for v in op.results if v in wanted and v not in args]
            if not found:
                continue
            assert isinstance(op, GraphOp)
            # What has effects must not run again; what has no operands is made again for nothing.
            if _is_once(op) or (op.operands and self.saves(op)):
                saved.extend(found)
            else:
                wanted.update(op.operands)
        return saved[::-1]


NOTHING = Policy("nothing", lambda op: False)
EVERYTHING = Policy("everything", lambda op: True)
DOTS = Policy("dots", lambda op: isinstance(op, DotGeneral))
DOTS_WITHOUT_BATCH = Policy(
    "dots_without_batch", lambda op: isinstance(op, DotGeneral) and not op.batch_axes[0]
)
BY_WORD = {p.word: p for p in (NOTHING, EVERYTHING, DOTS, DOTS_WITHOUT_BATCH)}


class Budget(Policy):
    """Saves what spares most work, within a number of bytes.

    Args:
        size: the bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__("budget", lambda op: True)
        self.size = size

    def choose(self, forward: Func, residuals: Sequence[Value]) -> list[Value]:
        """Greedily, by the work that saving a value spares for each of its bytes.

        What one value spares shrinks as others are saved, so a value whose figure is still the
        best after it was worked out anew is the next ("lazy greedy", Minoux 1978).
        """
        closure = _Closure(forward, residuals)
        saved = {v for v in closure.candidates if v.op is not None and _is_once(v.op)}
        left, work = self.size, closure.work(saved)

        def gain(v: Value) -> float:
            return (work - closure.work(saved | {v})) / max(nbytes(v), 1)

        queue = [(-gain(v), k, v) for k, v in enumerate(closure.candidates)]
        heapq.heapify(queue)
        while queue:
            _, k, v = heapq.heappop(queue)
            if nbytes(v) > left:
                continue
            found = gain(v)
            if found <= 0:
                continue
            if queue and found < -queue[0][0]:
                heapq.heappush(queue, (-found, k, v))
                continue
            saved.add(v)
            left -= nbytes(v)
            work = closure.work(saved)
        # Some that were saved early may be of no use beside those that were saved later.
        reached = closure.reached(saved)
        return [v for v in closure.candidates if v in reached]


class _Closure:
    """What has to be computed again for some residuals."""

    def __init__(self, forward: Func, residuals: Sequence[Value]) -> None:
        self.args = {*forward.args}
        self.residuals = residuals
        self.ops = forward.ops
        self.costs = [work(op) for op in self.ops]
        wanted = {*residuals}
        found: list[Value] = []
        for op in reversed(self.ops):
            if any(v in wanted for v in op.results):
                wanted.update(op.operands)
                if op.operands or _is_once(op):
                    found.extend(op.results)
        self.candidates = [v for v in reversed(found) if v in wanted]

    def _walk(self, saved: set[Value]) -> tuple[int, set[Value]]:
        wanted = {*self.residuals}
        total = 0
        for op, cost in zip(reversed(self.ops), reversed(self.costs), strict=True):
            if any(v in wanted and v not in saved for v in op.results):
                total += cost
                wanted.update(op.operands)
        return total, wanted

    def work(self, saved: set[Value]) -> int:
        """What it costs, where some values are saved."""
        return self._walk(saved)[0]

    def reached(self, saved: set[Value]) -> set[Value]:
        """Those saved values that are needed."""
        return self._walk(saved)[1] & saved


def _is_once(op: Op) -> bool:
    """Whether an op must not run again: for what it does, or since what it reads may be written by
    then."""
    effects = op.get_effects()
    reads = [e for e in effects if e.kind is EffectKind.READ and e.target]
    return bool(reads) or not is_removable(effects)
