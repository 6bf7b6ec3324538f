"""A computation block by block: a pass finds it, nobody writes it.

Where an intermediate array is much larger than what it is computed from and what is computed from
it, as the scores of attention are, a block of it after the other stays in the cache, and the whole
is never stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from tessera.errors import VerifyError
from tessera.graph.ops.checks import tensor
from tessera.graph.ops.control import Control, types_of
from tessera.ir.core import Block, Value
from tessera.ir.intexpr import Dim, evaluate, substitute
from tessera.ir.opdef import attr, operands, region
from tessera.ir.types import TensorType

Cut: TypeAlias = tuple[int, ...]
"""For each axis of an array the loop whose steps have a block of it each, or -1: all of it."""


class Blocks(Control):
    """Computes the blocks of its results from blocks of its operands.

    `%r = graph.blocks([%x, %y]) {counts=[8], cuts=[[0, -1], [-1]], outs=[[0, -1]]} : f32[512, 64]
    body(%a: f32[64, 64], %b: f32[64]) { ... }`. The body runs at every point of some loops. Along
    an axis that a loop cuts, step i has block i, and all blocks are equally long.

    Attributes:
        args: arrays.
        counts: steps of each loop.
        names: a symbol for each loop, the number of the step, which dims of the body may mention.
            Such a dim grows from step to step: the block is the beginning of an axis that no loop
            cuts, and has all of it in the last step.
        cuts: which loops cut each operand.
        outs: which loops cut each result. Over loops that do not, a result is the sum of what the
            body gives, in their order.
        firsts: of as many results, the last ones, what they hold before the first step of the last
            loop. They are states of that loop, which every other one cuts: the body's last
            arguments are what the step before has given.
        steps: how many steps of the last loop run, from the first one on, at a point of the others,
            whose names it may mention; None: all.
        body: its arguments are blocks of the operands, and states, and it yields blocks of the
            results.
    """

    name = "graph.blocks"
    args: tuple[Value, ...] = operands()
    counts: tuple[int, ...] = attr()
    cuts: tuple[Cut, ...] = attr()
    outs: tuple[Cut, ...] = attr()
    names: tuple[str, ...] = attr(())
    firsts: tuple[float, ...] = attr(())
    steps: Dim | None = attr(None)
    body: Block = region()

    def infer(self) -> tuple[TensorType, ...]:
        """The dims of the body's results, times how many blocks there are."""
        if len(self.outs) != len(self.body.outputs):
            raise VerifyError("outs says for each result which loops cut it")
        found = zip(types_of(self.body.outputs), self.outs, strict=True)
        return tuple([type.with_shape(self._whole(type.shape, cut)) for type, cut in found])

    def _whole(self, shape: Sequence[Dim], cut: Cut) -> tuple[Dim, ...]:
        if len(cut) != len(shape) or not all(-1 <= k < len(self.counts) for k in cut):
            raise VerifyError("a cut says for each axis the loop, or -1")
        pairs = zip(shape, cut, strict=True)
        last = self.last
        return tuple([substitute(d, last) if k < 0 else d * self.counts[k] for d, k in pairs])

    @property
    def last(self) -> dict[str, int]:
        """The last step of each loop."""
        return {name: n - 1 for name, n in zip(self.names, self.counts, strict=bool(self.names))}

    def verify(self) -> None:
        """Blocks of the operands are what the body takes."""
        if self.names and len({*self.names}) != len(self.counts):
            raise VerifyError("loops have names of their own")
        count = len(self.body.args) - len(self.firsts)
        if not len(self.args) == len(self.cuts) == count:
            raise VerifyError("one cut and one argument of the body for each operand")
        types = types_of(self.body.args)
        self._verify_states(types[count:])
        for k, (block, cut) in enumerate(zip(types[:count], self.cuts, strict=True)):
            if tensor(self, k) != block.with_shape(self._whole(block.shape, cut)):
                raise VerifyError(f"operand {k} is not as many blocks of {block} as its loops say")

    def _verify_states(self, types: Sequence[TensorType]) -> None:
        last = len(self.counts) - 1
        if self.steps is not None and not self.names:
            raise VerifyError("steps are counted from the numbers of loops, which have no names")
        first = len(self.outs) - len(self.firsts)
        if first < 0 or types_of(self.body.outputs[first:]) != tuple(types):
            raise VerifyError("a state is what the last arguments of the body are, step for step")
        if not all({*cut} - {-1} == {*range(last)} for cut in self.outs[first:]):
            raise VerifyError("a state is cut by all loops but the last one")

    def is_state(self, k: int) -> bool:
        """Whether a result is a state of the last loop."""
        return k >= len(self.outs) - len(self.firsts)

    def is_sum(self, k: int) -> bool:
        """Whether a result is a sum over blocks."""
        return len({*self.outs[k]} - {-1}) < len(self.counts) and not self.is_state(k)

    @property
    def summed(self) -> frozenset[int]:
        """The loops over which some result is a sum; their steps run in order."""
        loops = range(len(self.counts))
        return frozenset([k for k in loops if not all(k in cut for cut in self.outs)])

    def points(self) -> Iterator[tuple[int, ...]]:
        """The points of the loops, in the order in which one follows the other."""
        for point in itertools.product(*map(range, self.counts)):
            if self.steps is not None:
                dims = dict(zip(self.names, point, strict=True))
                if point[-1] >= int(evaluate(self.steps, dims)):
                    continue
            yield point

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Step by step."""
        from tessera.graph.interp import run_block

        results: list[np.ndarray] = []
        for value in self.results:
            assert isinstance(value.type, TensorType)
            results.append(np.zeros(value.type.shape, value.type.dtype.np))  # type: ignore[arg-type]
        states = len(self.outs) - len(self.firsts)
        for out, first in zip(results[states:], self.firsts, strict=True):
            out[...] = first
        for point in self.points():
            steps = dict(zip(self.names, point, strict=False))
            given: list[np.ndarray] = []
            types = types_of(self.body.args)
            pairs = [*zip(operands, self.cuts, strict=True)]
            pairs += zip(results[states:], self.outs[states:], strict=True)
            for (x, cut), type in zip(pairs, types, strict=True):
                shape = [int(evaluate(dim, steps)) for dim in type.shape]
                given.append(x[_window(shape, cut, point)])
            found = run_block(self.body, given, steps)
            for k, (out, cut, block) in enumerate(zip(results, self.outs, found, strict=True)):
                place = _window(block.shape, cut, point)
                if self.is_sum(k):
                    block = out[place] + block
                out[place] = block
        return tuple(results)


def _window(shape: Sequence[int], cut: Cut, point: Sequence[int]) -> tuple[slice, ...]:
    """Where a block of a shape lies at a point of the loops."""
    first = [0 if k < 0 else size * point[k] for size, k in zip(shape, cut, strict=True)]
    return tuple([slice(f, f + size) for f, size in zip(first, shape, strict=True)])
