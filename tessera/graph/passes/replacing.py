"""A block some of whose values are computed by other ops, one group of them after the other.

What reads a value that was replaced is rebuilt once, when all is done: a rule that applies to each
layer of a network would else rebuild all that comes behind for each of them.

Invariants:

1. `ops` are in an order in which they can run; after the first replacement, none of them is dead.
2. What an op reads is `operands(op)`; the op itself still has the operands it was made with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import is_removable
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.walk import with_parts

Made = Mapping[Value, tuple[Sequence[Op], Value]]
"""Values, the ops that compute what stands for each of them, and what that is."""


class Replacing:
    """The block.

    Attributes:
        ops: in their order.
        outputs: what it gives.
        places: of each op, where it stands.
        users: of each value, the ops that read it.
    """

    def __init__(self, block: Block) -> None:
        self.original = block
        self.ops = list(block.ops)
        self.outputs = block.outputs
        self.places = {op: k for k, op in enumerate(self.ops)}
        self.users: dict[Value, list[Op]] = {}
        self._reads: dict[Op, Sequence[Value]] = {}
        self._is_changed = False
        for op in self.ops:
            self._add(op)

    def operands(self, op: Op) -> Sequence[Value]:
        """What an op reads, of this block or of one around it."""
        return self._reads.get(op, op.operands)

    def replace(self, old: Collection[Op], made: Made) -> None:
        """Takes ops out; what else is read of them is made by others."""
        order = self._order(old, made)
        near = [v for op in old for v in self._remove(op)]
        if not self._is_changed:
            # From here on, only what the ops read that are taken out can be dead.
            live = {*eliminate_dead(self.original).ops}
            for op in self.ops:
                if op not in live and op in self._reads:
                    self._remove(op)
            self._is_changed = True
        for op in dict.fromkeys([op for ops, _ in made.values() for op in ops]):
            self._add(op)
        self._rename({value: result for value, (_, result) in made.items()})
        self._remove_dead(near)
        self.ops = [op for op in order if op in self._reads]
        self.places = {op: k for k, op in enumerate(self.ops)}

    def block(self) -> Block:
        """The new block; the given one where nothing was replaced."""
        if not self._is_changed:
            return self.original
        env: dict[Value, Value] = {}
        code: list[Op] = []
        for old in self.ops:
            op = with_parts(old, [env.get(v, v) for v in self._reads[old]])
            if op is not old:
                env.update(zip(old.results, op.results, strict=True))
            code.append(op)
        return Block(self.original.args, code, [env.get(v, v) for v in self.outputs])

    def _add(self, op: Op) -> None:
        self._reads[op] = op.operands
        for value in op.operands:
            self.users.setdefault(value, []).append(op)

    def _remove(self, op: Op) -> Sequence[Value]:
        operands = self._reads.pop(op)
        for value in operands:
            self.users[value].remove(op)
        return operands

    def _order(self, old: Collection[Op], made: Made) -> list[Op]:
        """The ops in an order in which they can run: those that are made stand where they are first
        read, behind what they read."""
        first = min(map(self.places.__getitem__, old))
        code = self.ops[:first]
        done: set[Op | None] = {None, *old, *code}

        def add(op: Op, operands: Sequence[Value]) -> None:
            done.add(op)
            find(operands)
            code.append(op)

        def find(values: Sequence[Value]) -> None:
            for value in values:
                if value in made:
                    for op in made[value][0]:
                        if op not in done:
                            add(op, op.operands)
                elif value.op not in done and value.op in self.places:
                    add(value.op, self._reads[value.op])

        for op in self.ops[first:]:
            if op not in done:
                add(op, self._reads[op])
        find(self.outputs)
        return code

    def _rename(self, env: Mapping[Value, Value]) -> None:
        """Has ops read other values."""
        for old, new in env.items():
            users = self.users.pop(old, [])
            self.users.setdefault(new, []).extend(users)
            for op in users:
                self._reads[op] = [env.get(v, v) for v in self._reads[op]]
        self.outputs = tuple([env.get(v, v) for v in self.outputs])

    def _remove_dead(self, values: Sequence[Value]) -> None:
        """Takes out what computed values that nobody reads any more."""
        stack = list(values)
        while stack:
            op = stack.pop().op
            if op is None or op not in self._reads:
                continue
            is_read = any([self.users.get(v) or v in self.outputs for v in op.results])
            if not is_read and is_removable(op.get_effects()):
                stack += self._remove(op)
