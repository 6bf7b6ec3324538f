"""Kernels that write a result over what they read.

The plan lets a result lie on an argument where each point reads the element that it writes, and
nothing else of it. That is enough for a store of what was computed of that element alone. But where
several threads have read an element, or it was read several times, and something else is made of it
too, the thread that stores may be ahead of one that has not read yet: then all threads of the block
meet before the store. Blocks have points of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from tessera.ir.core import Func, Op, Value
from tessera.ir.walk import walk
from tessera.tile import ops as tile

_ONE_BY_ONE = (tile.Map, tile.Cast, tile.Bitcast)


class Overwriting:
    """What is known of the arguments that may lie where another one does, while a kernel is lowered
    from its first op to its last.

    Args:
        args: these arguments.
        users: for each value the ops that use it; None for the end of a block.
    """

    def __init__(self, args: Collection[Value], users: dict[Value, list[Op | None]]) -> None:
        self.args = frozenset(args)
        self._users = users
        self._read: set[Value] = set()
        self._is_torn = False

    def note_load(self, op: tile.Load | tile.Gather, has_copies: bool) -> None:
        """Notes a load, of which several threads may read the same element."""
        memory = argument_of(op)
        if memory not in self.args:
            return
        is_again = memory in self._read
        self._read.add(memory)
        if (has_copies or is_again) and self._goes_elsewhere(op.results[0]):
            self._is_torn = True

    def must_meet(self, op: tile.Store | tile.Scatter) -> bool:
        """Whether threads have to meet before a store; they have then."""
        if not self._is_torn or argument_of(op) not in self.args:
            return False
        self._is_torn = False
        return True

    def _goes_elsewhere(self, value: Value) -> bool:
        """Whether more is made of a value than what is stored over it, element by element."""
        for op in self._users.get(value, ()):
            if isinstance(op, (tile.Store, tile.Scatter)):
                if value is not op.value or argument_of(op) not in self.args:
                    return True
            elif not isinstance(op, _ONE_BY_ONE) or self._goes_elsewhere(op.results[0]):
                return True
        return False


def argument_of(op: tile.Load | tile.Store | tile.Gather | tile.Scatter) -> Value:
    """The argument that an op reads or writes."""
    if isinstance(op, (tile.Gather, tile.Scatter)):
        return whole(op.mem)
    assert isinstance(op.view.op, tile.View)
    return whole(op.view.op.mem)


def whole(memory: Value) -> Value:
    """The argument of which a memory is a part."""
    while isinstance(memory.op, tile.Part):
        memory = memory.op.mem
    return memory


def written(func: Func) -> set[Value]:
    """The memory arguments that a kernel writes."""
    stores = (tile.Store, tile.Scatter)
    return {argument_of(op) for op in walk(func.body) if isinstance(op, stores)}
