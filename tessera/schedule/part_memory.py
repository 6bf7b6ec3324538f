"""Memory of the parts of blocks, shared by what is needed at different times.

    each: nest writes a; nest reads a, writes b; nest reads b, writes c
    ==>
    each: nest writes a; nest reads a, writes b; nest reads b, writes a

A block leaves nothing for the next one in it, so a buffer lives from the first nest that mentions
it to the last. What lives in turn has one place: less memory, and more of it is in the cache. Where
shapes differ, elements are those of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.types import BufType, buffer_type


def share(each: Each, temps: Sequence[Value]) -> tuple[Op, list[Value]]:
    """The blocks on shared memory.

    Args:
        each: the blocks.
        temps: memory of its parts: buffers whose first dim is the part.

    Returns:
        The new op, and the memory that it uses.
    """
    lives = _lives(each, temps)
    places: list[_Place] = []
    for value in sorted(lives, key=lambda v: lives[v]):
        first, last = lives[value]
        free = [p for p in places if p.last < first and p.dtype is buffer_type(value).dtype]
        place = max(free, key=lambda p: _fit(p, value), default=None)
        if place is None:
            place = _Place([], -1)
            places.append(place)
        place.values.append(value)
        place.last = last
    memory = [place.memory() for place in places]
    where = {v: m for p, m in zip(places, memory, strict=True) for v in p.values}
    env: dict[Value, Value] = {}
    return each.rebuild(regions=[_moved(each.body, where, env)]), memory


@dataclass
class _Place:
    """Memory of several buffers in turn.

    Attributes:
        values: the buffers.
        last: the last nest that mentions one.
    """

    values: list[Value]
    last: int

    @property
    def dtype(self) -> object:
        """Of the elements."""
        return buffer_type(self.values[0]).dtype

    def memory(self) -> Value:
        """A buffer that has room for each."""
        types = [buffer_type(v) for v in self.values]
        if all(type == types[0] for type in types):
            return Value(types[0], self.values[0].name)
        size = max([_row(type) for type in types])
        return Value(BufType((types[0].shape[0], size), types[0].dtype))


def _fit(place: _Place, value: Value) -> tuple[bool, int]:
    """How well a buffer fits a place: equal ones first, then those of equal size."""
    types = [buffer_type(v) for v in place.values]
    size = max([_row(type) for type in types])
    return buffer_type(value) in types, -abs(size - _row(buffer_type(value)))


def _lives(each: Each, temps: Sequence[Value]) -> dict[Value, tuple[int, int]]:
    """The first and the last nest that mention each buffer."""
    found: dict[Value, tuple[int, int]] = {}
    wanted = set(temps)
    for k, nest in enumerate(each.body.ops):
        for op in walk(Block([], [nest], ())):
            for value in op.operands:
                if value in wanted:
                    found[value] = (found.get(value, (k, k))[0], k)
    return found


def _row(type: BufType) -> int:
    """Elements that a part has of a buffer."""
    size = BufType(type.shape[1:], type.dtype).size
    assert isinstance(size, int)
    return size


def _moved(block: Block, where: dict[Value, Value], env: dict[Value, Value]) -> Block:
    """A region on the shared memory."""
    code: list[Op] = []
    for op in block.ops:
        regions = [_moved(region, where, env) for region in op.regions]
        operands = [where.get(v, env.get(v, v)) for v in op.operands]
        changes: dict[str, object] = {}
        if isinstance(op, (ops.Load, ops.Store, ops.Scan)) and op.buf in where:
            before, after = buffer_type(op.buf), buffer_type(where[op.buf])
            if len(before.shape) != len(after.shape) or before.shape[1:] != after.shape[1:]:
                place: Dim = 0
                for i, stride in zip(op.index[1:], before.element_strides()[1:], strict=True):
                    place = place + i * stride
                changes["index"] = (op.index[0], place)
        new = op.rebuild(operands, regions, **changes)
        env.update(zip(op.results, new.results, strict=True))
        code.append(new)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])
