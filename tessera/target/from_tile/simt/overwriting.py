"""Kernels that write a result over what they read.

The plan lets a result lie on an argument where each point reads the element that it writes, and
nothing else of it. But several threads may read an element, or one thread after the other, and only
one stores: it may be ahead of one that has not read yet. Then all threads of the block meet before
the store. Blocks have points of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from tessera.ir.core import Func, Value
from tessera.ir.walk import walk
from tessera.tile import ops as tile


class Overwriting:
    """What is known of the arguments that may lie where another one does, while a kernel is lowered
    from its first op to its last.

    Args:
        args: these arguments.
    """

    def __init__(self, args: Collection[Value]) -> None:
        self.args = frozenset(args)
        self._read: set[Value] = set()
        self._is_shared = False

    def note_load(self, op: tile.Load | tile.Gather, has_copies: bool) -> None:
        """Notes a load, of which several threads may read the same element."""
        memory = argument_of(op)
        if memory in self.args:
            self._is_shared |= has_copies or memory in self._read
            self._read.add(memory)

    def must_meet(self, op: tile.Store | tile.Scatter) -> bool:
        """Whether threads have to meet before a store; they have then."""
        if not self._is_shared or argument_of(op) not in self.args:
            return False
        self._is_shared = False
        return True


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
