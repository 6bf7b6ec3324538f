"""One spread's access to a tile in shared memory, whose offsets are XOR-linear in all bits."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, bool_, uint8
from tessera.ir.core import Value
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.lowering import Simt
from tessera.target.types import VecType

VECTOR_BYTES = 16


def memory_dtype(dtype: DType) -> DType:
    """What shared memory holds: bools as bytes."""
    return uint8 if dtype is bool_ else dtype


def shared(s: Simt, dtype: DType, count: int, label: str) -> Value:
    """Room in shared memory for so many elements."""
    size = max(count * memory_dtype(dtype).itemsize, 16)
    return s.emit(g.Shared(size, 16, -1, label, loc=s.loc))


class Side:
    """Offsets of the registers of a thread.

    Args:
        s: the lowering.
        threads: by which offset each bit of the thread's number moves, in elements.
        regs: likewise for each bit of the register's number.
        itemsize: bytes of an element.
    """

    def __init__(
        self, s: Simt, threads: Sequence[int], regs: Sequence[int], itemsize: int
    ) -> None:
        self.s = s
        self.own = s.mixed(threads)
        self.reach = 0
        for column in threads:
            self.reach |= column
        found = [0]
        for column in regs:
            found += [e ^ column for e in found]
        self.offsets = found
        self.vector = 1
        others = [c for c in (*threads, *regs)]
        while self.vector * 2 * itemsize <= VECTOR_BYTES and self.vector in regs:
            others.remove(self.vector)
            if any(c & self.vector for c in others):
                break
            self.vector *= 2

    def groups(self) -> list[list[int]]:
        """Registers that one access moves, by neighbouring offsets."""
        place = {offset: r for r, offset in enumerate(self.offsets)}
        starts = sorted(o for o in place if o % self.vector == 0)
        return [[place[o + k] for k in range(self.vector)] for o in starts]

    def address(self, register: int, base: Value | None = None) -> Value:
        """The element offset of a register, in a slot that starts at `base`."""
        s, offset = self.s, self.offsets[register]
        own = self.own
        if offset & self.reach:
            own, offset = s.index("xor", own, s.i32(offset)), 0
        if base is not None:
            own = s.index("add", own, base)
        return s.index("add", own, s.i32(offset))

    def store(
        self,
        room: Value,
        data: Sequence[Value],
        dtype: DType,
        guard: Value | None,
        base: Value | None = None,
    ) -> None:
        """Writes a tile."""
        s = self.s
        masks = () if guard is None else (guard,)
        width = self.vector * dtype.itemsize
        for group in self.groups():
            value = data[group[0]]
            if len(group) > 1:
                value = s.emit(g.Pack([data[r] for r in group], loc=s.loc))
            at = self.address(group[0], base)
            s.emit(t.Store(room, at, value, masks, width, loc=s.loc))

    def load(self, room: Value, dtype: DType, base: Value | None = None) -> list[Value]:
        """Reads a tile."""
        s = self.s
        width = self.vector * dtype.itemsize
        found: dict[int, Value] = {}
        for group in self.groups():
            type = VecType(len(group), dtype) if len(group) > 1 else ScalarType(dtype)
            at = self.address(group[0], base)
            value = s.emit(t.Load(room, at, (), type, width, loc=s.loc))
            for lane, register in enumerate(group):
                one = s.emit(t.Extract(value, lane, loc=s.loc)) if len(group) > 1 else value
                found[register] = one
        return [found[r] for r in range(len(found))]
