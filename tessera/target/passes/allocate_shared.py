"""Places the objects of a GPU kernel in shared memory: those that are never in use together may
share bytes. `synchronize`, which runs afterwards, puts a barrier where one takes the other's place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target.gpu import Gpu

SMALL = 1024
"""Objects of no more bytes have a place of their own: a barrier costs more than the space."""

SMALL_TOTAL = 16 * 1024
"""As long as all of those together take no more than this."""


@dataclass
class _Object:
    """An object and the positions between which it is in use."""

    op: g.Shared
    depth: int
    first: int
    last: int
    offset: int = 0
    roots: set[Value] = field(default_factory=set[Value])


class _Lives:
    """When each object is in use, in a numbering of all ops."""

    def __init__(self, func: Func) -> None:
        self.objects: dict[Value, _Object] = {}
        self.root: dict[Value, _Object] = {}
        self.clock = 0
        self.loops: list[tuple[int, list[_Object]]] = []
        self.block(func.body)

    def block(self, block: Block) -> None:
        """Walks the ops of a block."""
        for op in block.ops:
            self.clock += 1
            if isinstance(op, g.Shared):
                found = _Object(op, len(self.loops), self.clock, self.clock)
                self.objects[op.result] = self.root[op.result] = found
                continue
            for value in op.operands:
                self.use(value)
                if value in self.root and op.results:
                    for result in op.results:
                        if result.type == value.type:
                            self.root[result] = self.root[value]
            if not op.regions:
                continue
            start = self.clock
            self.loops.append((start, []))
            for region in op.regions:
                self.block(region)
            self.clock += 1
            _, touched = self.loops.pop()
            # What is made outside of a loop keeps its contents from one iteration to the next.
            for one in touched:
                if one.depth <= len(self.loops):
                    one.first, one.last = min(one.first, start), max(one.last, self.clock)
                    if self.loops:
                        self.loops[-1][1].append(one)

    def use(self, value: Value) -> None:
        """Notes a use."""
        found = self.root.get(value)
        if found is None:
            return
        found.last = max(found.last, self.clock)
        if self.loops:
            self.loops[-1][1].append(found)


def allocate_shared(func: Func, machine: Gpu) -> Func:
    """Gives every `target.shared` its offset.

    Raises:
        CompileError: the objects in use at one time are larger than a block's shared memory.
    """
    objects = list(_Lives(func).objects.values())
    if not objects:
        return func
    small = [o for o in objects if o.op.bytes <= SMALL]
    apart = sum(_rounded(o.op.bytes, 16) for o in small) <= SMALL_TOTAL
    placed: list[_Object] = []
    for one in sorted(objects, key=lambda o: (-o.op.align, -o.op.bytes, o.first)):
        one.offset = _place(one, placed, apart)
        placed.append(one)
    total = max(o.offset + o.op.bytes for o in objects)
    if total > machine.shared_per_block:
        largest = max(objects, key=lambda o: o.op.bytes)
        raise CompileError(
            f"{func.name}: the kernel needs {total} bytes of shared memory, "
            f"the largest object ({largest.op.label or 'unnamed'}) {largest.op.bytes}",
            rule=f"a block of {machine} has {machine.shared_per_block}",
            fix="choose a smaller tile for this kernel",
            loc=largest.op.loc,
        )
    offsets = {one.op: one.offset for one in objects}
    return func.with_body(_rebuilt(func.body, offsets, {}))


def _rounded(size: int, align: int) -> int:
    return -(-size // align) * align


def _place(one: _Object, placed: list[_Object], apart: bool) -> int:
    """The lowest place that no object in use at the same time has."""
    rivals = [
        o
        for o in placed
        if (o.first <= one.last and one.first <= o.last)
        or (apart and (o.op.bytes <= SMALL or one.op.bytes <= SMALL))
    ]
    at = 0
    for rival in sorted(rivals, key=lambda o: o.offset):
        if at + one.op.bytes <= rival.offset:
            break
        at = max(at, _rounded(rival.offset + rival.op.bytes, one.op.align))
    return at


def _rebuilt(block: Block, offsets: dict[g.Shared, int], env: dict[Value, Value]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        regions = [_rebuilt(region, offsets, env) for region in op.regions]
        if isinstance(op, g.Shared):
            new = op.rebuild(offset=offsets[op])
        elif operands == list(op.operands) and not regions:
            ops.append(op)
            continue
        else:
            new = op.rebuild(operands, regions)
        env.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


def shared_bytes(func: Func) -> int:
    """Bytes of shared memory that a kernel's objects reach to."""
    found = [op for op in walk(func.body) if isinstance(op, g.Shared)]
    return max((op.offset + op.bytes for op in found), default=0)
