"""Loops of a long function as functions of their own, so that threads compile them at the same
time: a kernel may run a dozen loops over blocks that stay in the cache, one after the other.

    func @f(%p, %lo, %hi) {             func @f.0(%p, %i) { for %j ... }
      for %i in %lo .. %hi {            func @f.1(%p, %i) { for %k ... }
        for %j ...                ==>   func @f(%p, %lo, %hi) {
        for %k ...                        for %i in %lo .. %hi {
      }                                     call @f.0(%p, %i)
    }                                       call @f.1(%p, %i)
                                          }
                                        }

A loop stays where it is if it carries values, has registers of panels, writes past the caches
(which each function waits for at its end), or does so little that the call would be felt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import ScalarType
from tessera.ir.walk import clone_op, free_values, walk
from tessera.target import ops as t
from tessera.target.llvm.control import turns_of
from tessera.target.panel_ops import BeginPanels, DotPanels, EndPanels
from tessera.target.types import PtrType

LENGTH = 250
"""A function of so many ops is long: LLVM takes 30 ms."""

PART = 90
"""Loops of so many ops are worth a function, which costs 0.5 ms beside its code."""

WORK = 2048
"""So many ops take a microsecond, beside which a call is not felt."""

UNKNOWN = 8
"""Turns of a loop that are not known."""

_CHEAP = (t.Const, t.Lanes, t.Splat, t.Map)
"""Ops that a part does again rather than be given their results, if these are vectors."""


def outline(func: Func) -> list[Func]:
    """A function of Target IR with those it calls in front of it."""
    if not any(isinstance(op, t.For) for op in func.ops) or _length(func.body) < LENGTH:
        return [func]
    parts = _Parts(func.name)
    body = parts.block(func.body)
    return [*parts.found, func if body is func.body else func.with_body(body)]


def _length(block: Block) -> int:
    return sum([1 + sum(map(_length, op.regions)) for op in block.ops])


def _work(op: Op) -> int:
    """About how many ops run."""
    inner = sum([_work(one) for region in op.regions for one in region.ops])
    return (inner + 1) * (turns_of(op, UNKNOWN) if isinstance(op, t.For) else 1)


class _Parts:
    """The parts of one function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[Func] = []

    def block(self, block: Block) -> Block:
        """A block whose loops are parts; or, where one is nearly all of it, what is in that."""
        lengths = {op: _length(op.body) for op in block.ops if isinstance(op, t.For)}
        most = max(lengths, key=lambda op: lengths[op], default=None)
        if most is None:
            return block
        if 4 * lengths[most] < 3 * sum(lengths.values()):
            return self.cut(block, lengths)
        inner = most.body if most.results else self.block(most.body)
        if inner is most.body:
            return block
        fresh = most.rebuild(regions=[inner])
        return Block(block.args, [fresh if op is most else op for op in block.ops], block.outputs)

    def cut(self, block: Block, lengths: Mapping[t.For, int]) -> Block:
        """A block of loops that runs some of them as parts. What is between two of one part, and
        touches no memory, comes before it."""
        ops: list[Op] = []
        run: list[t.For] = []

        def end() -> None:
            call = self.call(run) if sum([lengths[loop] for loop in run]) >= PART else None
            ops.extend([call] if call else run)
            run.clear()

        for op in block.ops:
            if isinstance(op, t.For) and _is_movable(op):
                run.append(op)
                if sum([lengths[loop] for loop in run]) >= PART:
                    end()
                continue
            if isinstance(op, t.For) or op.get_effects():
                end()
            ops.append(op)
        end()
        return Block(block.args, ops, block.outputs)

    def call(self, loops: Sequence[t.For]) -> t.Call | None:
        """A call of a function that runs some loops; None if they stay where they are."""
        found = _needs(loops)
        if found is None or sum(map(_work, loops)) < WORK:
            return None
        given, again = found
        args = [Value(value.type, value.name) for value in given]
        env = dict(zip(given, args, strict=True))
        ops = [clone_op(op, env) for op in (*again, *loops)]
        part = Func(f"{self.name}.{len(self.found)}", Block(args, ops, ()))
        self.found.append(part)
        return t.Call(given, part.name, loc=loops[0].loc)


def _is_movable(loop: t.For) -> bool:
    return not loop.results and all(map(_is_free, walk(loop.body)))


def _is_free(op: Op) -> bool:
    if isinstance(op, (BeginPanels, DotPanels, EndPanels, t.Alloca)):
        return False
    return not (isinstance(op, t.Store) and op.streaming)


def _needs(loops: Sequence[t.For]) -> tuple[list[Value], list[Op]] | None:
    """What loops are given, and what they do again, in order; None if they have to be given more
    than pointers and numbers."""
    given: dict[Value, None] = {}
    again: dict[Op, None] = {}

    def need(value: Value) -> bool:
        op = value.op
        if value in given or op in again:
            return True
        is_vector = not isinstance(value.type, (ScalarType, PtrType))
        if isinstance(op, t.Const) or (is_vector and isinstance(op, _CHEAP)):
            if not all(map(need, op.operands)):
                return False
            again[op] = None
            return True
        if is_vector:
            return False
        given[value] = None
        return True

    is_possible = all(map(need, free_values(Block([], loops, ()))))
    return (list(given), list(again)) if is_possible else None
