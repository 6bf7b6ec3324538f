"""Operands of products in shared memory: where their elements lie, how they get there, and how
threads read the fragments of matrix instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType
from tessera.errors import CompileError
from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.lowering import Held, Simt
from tessera.target.from_tile.simt.side import Side, memory_dtype
from tessera.target.from_tile.simt.spread import LANE_BITS, Spread, bits_of_dim, flat_bits, log2
from tessera.tile.layouts.eligibility import MatrixMove, matrix_move
from tessera.tile.layouts.layout import Layout

CHUNK = 16
"""Bytes that move together: of an async copy, of a row of `ldmatrix`."""

LINE = 128
"""Bytes after which shared memory's banks repeat."""


class Operand:
    """A tile in shared memory, in one or several slots.

    Rows run along the dim that is contiguous in global memory. Chunks of 16 bytes are swapped by an
    XOR with the row's number, so that eight rows of one column of chunks lie in different banks.

    Args:
        s: the lowering.
        shape: of the tile.
        dtype: of its elements.
        fast: the dim that is contiguous.
        slots: tiles that there is room for.
        label: what messages call it.
    """

    def __init__(
        self,
        s: Simt,
        shape: tuple[int, ...],
        dtype: DType,
        fast: int,
        slots: int,
        label: str,
    ) -> None:
        self.s = s
        self.shape = shape
        self.dtype = memory_dtype(dtype)
        self.fast = fast
        self.count = 1 << flat_bits(shape)
        size = max(self.count * self.dtype.itemsize * slots, CHUNK)
        ring = slots if slots > 1 else 0
        self.room = s.emit(g.Shared(size, LINE, -1, label, ring, loc=s.loc))
        self.columns = self._columns()

    def _columns(self) -> dict[int, int]:
        """By which offset, in elements, each bit of the element's number moves."""
        itemsize = self.dtype.itemsize
        fast = bits_of_dim(self.shape, self.fast)
        slow = bits_of_dim(self.shape, 1 - self.fast)
        columns = {bit: 1 << k for k, bit in enumerate(fast)}
        width = itemsize << len(fast)
        for k, bit in enumerate(slow):
            columns[bit] = 1 << (len(fast) + k)
        # Rows that share a line of banks need no swap among themselves.
        lines = log2(LINE // width) if width < LINE else 0
        chunks = log2(width // CHUNK) if width > CHUNK else 0
        for k in range(min(chunks, 3 - lines)):
            if lines + k < len(slow):
                columns[slow[lines + k]] ^= (CHUNK << k) // itemsize
        return columns

    def slot(self, number: Value) -> Value:
        """The element offset of a slot."""
        return self.s.index("mul", number, self.s.i32(self.count))

    def side(self, spread: Spread) -> Side:
        """The access of a spread of the whole tile."""
        threads = [0 if bit is None else self.columns[bit] for bit in spread.threads]
        regs = [self.columns[bit] for bit in spread.regs]
        return Side(self.s, threads, regs, self.dtype.itemsize)

    def store(self, x: Held, base: Value | None) -> None:
        """Copies a tile from registers."""
        s = self.s
        data = [s.convert(v, self.dtype) for v in x.values]
        if x.spread is None:
            at = s.i32(0) if base is None else base
            guard = s.first_copy(s.threads - 1)
            masks = () if guard is None else (guard,)
            s.emit(t.Store(self.room, at, data[0], masks, 0, loc=s.loc))
            return
        spread = x.spread.reshaped(self.shape)
        self.side(spread).store(self.room, data, self.dtype, s.first_copy(spread.copies), base)


class Fragments:
    """The fragments of an operand that a warp's part of the accumulator needs.

    A fragment covers the instruction's depth along k, and 8 or 16 elements along the other dim
    (outer): register bits first take a word's elements along k, lanes four words and eight outer
    elements; what is left of the depth is in registers again.

    Args:
        operand: where the tile lies.
        outer: the operand's dim that the result has, too.
        tall: whether fragments have 16 outer elements rather than 8.
        depth: of the instruction.
        outer_warps: for each bit of the warp's number, the bit of the outer coordinate, or None.
        outer_regs: bits of the outer coordinate that distinguish the warp's fragments.
    """

    def __init__(
        self,
        operand: Operand,
        outer: int,
        tall: bool,
        depth: int,
        outer_warps: Sequence[int | None],
        outer_regs: Sequence[int],
    ) -> None:
        self.operand = operand
        self.s = operand.s
        self.rows = bits_of_dim(operand.shape, outer)
        self.depth = bits_of_dim(operand.shape, 1 - outer)
        itemsize = operand.dtype.itemsize
        packed = log2(4 // itemsize) if itemsize < 4 else 0
        self.step_bits = log2(depth)
        k, r = self.depth, self.rows
        regs = [k[j] for j in range(packed)]
        if tall:
            regs.append(r[3])
        regs += k[packed + 2 : self.step_bits]
        self.regs = regs
        self.lanes = [k[packed], k[packed + 1], r[0], r[1], r[2]]
        self.warps = [None if bit is None else r[bit] for bit in outer_warps]
        self.pieces = [r[bit] for bit in outer_regs]
        self.move = self._move()

    @property
    def steps(self) -> int:
        """Matrix instructions along the depth."""
        return 1 << len(self.depth) - self.step_bits

    def _column(self, bit: int | None) -> int:
        return 0 if bit is None else self.operand.columns[bit]

    def _move(self) -> MatrixMove | None:
        """The `ldmatrix` that reads fragments, if there is one."""
        # Two short fragments make up one instruction of four matrices.
        extra = self.pieces[:1] if len(self.regs) < 4 else []
        bits = [*self.regs, *extra]
        registers = Layout.of(
            ("offset",),
            {
                "reg": [(self._column(b),) for b in bits],
                "lane": [(self._column(b),) for b in self.lanes],
            },
        )
        itemsize = self.operand.dtype.itemsize
        if itemsize > 4:
            return None
        count = max(self.operand.count, 1)
        memory = Layout.of(("offset",), {"offset": [(1 << b,) for b in range(log2(count))]})
        found = matrix_move(registers, memory, itemsize)
        return found if isinstance(found, MatrixMove) else None

    def read(self, step: int, base: Value | None) -> list[list[Value]]:
        """The elements of each fragment at one step along the depth, in register order."""
        offset = 0
        for k, bit in enumerate(self.depth[self.step_bits :]):
            if step >> k & 1:
                offset ^= self._column(bit)
        pieces = [offset]
        for bit in self.pieces:
            pieces += [p ^ self._column(bit) for p in pieces]
        if self.move is None:
            return [self._single(p, base) for p in pieces]
        return self._matrices(self.move, pieces, base)

    def _matrices(
        self, move: MatrixMove, pieces: Sequence[int], base: Value | None
    ) -> list[list[Value]]:
        s, dtype = self.s, self.operand.dtype
        lanes = [column[0] for column in move.addresses.linear.of_input("lane")]
        lanes += [0] * (LANE_BITS - len(lanes))
        # Addresses of matrices are bytes.
        size = dtype.itemsize
        threads = [c * size for c in (*lanes, *[self._column(bit) for bit in self.warps])]
        side = Side(s, threads, (), 1)
        if base is not None:
            base = s.index("mul", base, s.i32(size))
        size = 1 << len(self.regs)
        per = move.count * 32 // dtype.bits // size
        if per < 1:
            raise CompileError(f"simt: {move.count} matrices for fragments of {size} elements")
        found: list[list[Value]] = []
        for first in range(0, len(pieces), per):
            side.offsets = [pieces[first] * dtype.itemsize]
            at = side.address(0, base)
            op = g.LoadMatrix(self.operand.room, at, move.count, move.trans, dtype, loc=s.loc)
            value = s.emit(op)
            parts = [s.emit(t.Extract(value, k, loc=s.loc)) for k in range(per * size)]
            found += [parts[k * size : (k + 1) * size] for k in range(per)]
        return found

    def _single(self, piece: int, base: Value | None) -> list[Value]:
        threads = [self._column(bit) for bit in (*self.lanes, *self.warps)]
        regs = [self._column(bit) for bit in self.regs]
        side = Side(self.s, threads, regs, self.operand.dtype.itemsize)
        side.offsets = [o ^ piece for o in side.offsets]
        return side.load(self.operand.room, self.operand.dtype, base)
