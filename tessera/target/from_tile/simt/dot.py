"""Products of matrices: tensor cores where there is an instruction, multiply-adds elsewhere.

The accumulator lies as the instruction wants it: fragments of 16 x 8 (or 8 x 8) that repeat over a
warp's part of the tile. Operands are read from shared memory, one step along the depth at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.config import config
from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.from_tile.simt.exchange import to_spread
from tessera.target.from_tile.simt.lowering import Simt
from tessera.target.from_tile.simt.operand import Fragments, Operand
from tessera.target.from_tile.simt.side import Side
from tessera.target.from_tile.simt.spread import (
    LANE_BITS,
    Spread,
    bits_of_dim,
    blocked,
    flat_bits,
    log2,
    replicated,
)
from tessera.target.gpu import Gpu, MmaShape
from tessera.tile import ops as tile
from tessera.tile.types import TileType

KEEP_DEPTH = 4
"""Elements along the depth that a thread without tensor cores reads together."""


@dataclass(frozen=True)
class Product:
    """How one product is computed.

    Attributes:
        spread: of the accumulator.
        instruction: of the tensor cores; None for multiply-adds.
    """

    spread: Spread
    instruction: MmaShape | None


def product(op: tile.Dot, warps: int, machine: Gpu) -> Product:
    """The best way that the machine has."""
    assert isinstance(op.result.type, TileType) and isinstance(op.a.type, TileType)
    shape = op.result.type.shape
    instruction = _instruction(op, machine)
    if instruction is not None:
        depth = op.a.type.shape[1]
        split = _split(shape, warps, instruction)
        if split is not None and depth >= instruction.k:
            return Product(_fragments(shape, split, instruction), instruction)
    return Product(_plain(shape, warps), None)


def _instruction(op: tile.Dot, machine: Gpu) -> MmaShape | None:
    """The largest instruction for these dtypes that reads fragments by `ldmatrix`: 32 bytes deep;
    for numbers of 64 bits, which are read one by one, the largest that fits the tile."""
    assert isinstance(op.a.type, TileType) and isinstance(op.b.type, TileType)
    assert isinstance(op.result.type, TileType)
    kind, acc = str(op.a.type.dtype), str(op.result.type.dtype)
    if kind == "f32" and config.current().matmul_precision == "tf32":
        kind = "tf32"
    if op.b.type.dtype is not op.a.type.dtype:
        return None
    most = op.a.type.shape[1] if kind == "f64" else 32 // op.a.type.dtype.itemsize
    rows = op.a.type.shape[0]
    found = [
        one
        for one in machine.mma
        if (one.kind, one.accumulator) == (kind, acc) and one.k <= most and one.m <= rows
    ]
    return max(found, key=lambda one: (one.m, one.k), default=None)


def _split(
    shape: tuple[int, ...], warps: int, instruction: MmaShape
) -> tuple[int, int] | None:
    """Bits of the warp's number for rows and for columns: parts as square as possible."""
    best: tuple[int, int] | None = None
    for rows in range(log2(warps) + 1):
        cols = log2(warps) - rows
        m, n = shape[0] >> rows, shape[1] >> cols
        if m < instruction.m or n < instruction.n:
            continue
        if best is None or m + n < (shape[0] >> best[0]) + (shape[1] >> best[1]):
            best = (rows, cols)
    return best


def _fragments(
    shape: tuple[int, ...], split: tuple[int, int], instruction: MmaShape
) -> Spread:
    """Fragments side by side: first columns, then rows, then the warps' parts."""
    m, n = bits_of_dim(shape, 0), bits_of_dim(shape, 1)
    tall = instruction.m == 16
    own_m, own_n = len(m) - split[0], len(n) - split[1]
    regs = [n[0], *([m[3]] if tall else []), *n[3:own_n], *m[4 if tall else 3 : own_m]]
    return Spread(
        shape, tuple(regs), (n[1], n[2], m[0], m[1], m[2]), (*m[own_m:], *n[own_n:])
    )


def _plain(shape: tuple[int, ...], warps: int) -> Spread:
    """Blocks of about as many rows as columns, four columns together."""
    if flat_bits(shape) < LANE_BITS + log2(warps):
        return blocked(shape, warps, (1, 0), 1)
    m, n = list(bits_of_dim(shape, 0)), list(bits_of_dim(shape, 1))
    spare = len(m) + len(n) - LANE_BITS - log2(warps)
    regs = [n.pop(0) for _ in range(min(2, spare, len(n)))]
    lanes: list[int] = []
    while len(lanes) < LANE_BITS:
        # Three bits of columns, then two of rows, as far as there are any.
        from_n = n and (len(lanes) < 3 or not m)
        lanes.append(n.pop(0) if from_n else m.pop(0) if m else n.pop(0))
    held: list[int] = []
    own_m = own_n = 0
    for _ in range(spare - len(regs)):
        # The thread's own rows and columns, balanced; the highest bits.
        rows = m and (own_m <= own_n + len(regs) - 1 or not n)
        if rows:
            held.append(m.pop())
            own_m += 1
        else:
            held.append(n.pop())
            own_n += 1
    return Spread(shape, (*regs, *sorted(held)), tuple(lanes), tuple(sorted([*n, *m])))


def multiply(
    s: Simt,
    how: Product,
    operands: tuple[Operand, Operand],
    acc: Sequence[Value],
    dtype: DType,
    base: tuple[Value | None, Value | None] = (None, None),
) -> list[Value]:
    """acc + a @ b, with both operands in shared memory, in slots that start at `base`."""
    if how.instruction is None:
        return _multiply_add(s, how.spread, operands, acc, dtype, base)
    return _multiply_fragments(s, how.spread, how.instruction, operands, acc, base)


def _multiply_fragments(
    s: Simt,
    spread: Spread,
    instruction: MmaShape,
    operands: tuple[Operand, Operand],
    acc: Sequence[Value],
    base: tuple[Value | None, Value | None],
) -> list[Value]:
    m, n = bits_of_dim(spread.shape, 0), bits_of_dim(spread.shape, 1)
    first = 4 if instruction.m == 16 else 3
    own_m = [bit - m.start for bit in spread.regs if bit in m and bit - m.start >= first]
    own_n = [bit - n.start for bit in spread.regs if bit in n and bit - n.start >= 3]
    rows = [None if b is None or b not in m else b - m.start for b in spread.warps]
    cols = [None if b is None or b not in n else b - n.start for b in spread.warps]
    left = Fragments(operands[0], 0, instruction.m == 16, instruction.k, rows, own_m)
    right = Fragments(operands[1], 1, False, instruction.k, cols, own_n)
    size = instruction.m * instruction.n // 32
    values = [
        s.emit(g.Pack(acc[k : k + size], loc=s.loc)) for k in range(0, len(acc), size)
    ]
    across = 1 << len(own_n)
    shape = (instruction.m, instruction.n, instruction.k)
    for step in range(left.steps):
        a = [s.emit(g.Pack(f, loc=s.loc)) for f in left.read(step, base[0])]
        b = [s.emit(g.Pack(f, loc=s.loc)) for f in right.read(step, base[1])]
        for i, x in enumerate(a):
            # There and back again: neighbours share an operand.
            order = range(across) if i % 2 == 0 else range(across - 1, -1, -1)
            for j in order:
                k = i * across + j
                op = g.Mma(x, b[j], values[k], *shape, instruction.kind, loc=s.loc)
                values[k] = s.emit(op)
    return [
        s.emit(t.Extract(v, k, loc=s.loc)) for v in values for k in range(size)
    ]


def _multiply_add(
    s: Simt,
    spread: Spread,
    operands: tuple[Operand, Operand],
    acc: Sequence[Value],
    dtype: DType,
    base: tuple[Value | None, Value | None],
) -> list[Value]:
    a, b = operands
    depth = a.shape[1]
    step = min(KEEP_DEPTH, depth)
    values = list(acc)
    for start in range(0, depth, step):
        lhs = _strip(s, a, spread, 0, start, step, dtype, base[0])
        rhs = _strip(s, b, spread, 1, start, step, dtype, base[1])
        for k in range(step):
            for r, (i, j) in enumerate(spread.coordinates):
                x, y = lhs[i, k], rhs[j, k]
                if dtype.is_inexact:
                    values[r] = s.map("fma", x, y, values[r])
                else:
                    values[r] = s.map("add", values[r], s.map("mul", x, y))
    return values


def _strip(
    s: Simt,
    operand: Operand,
    spread: Spread,
    outer: int,
    start: int,
    step: int,
    dtype: DType,
    base: Value | None,
) -> dict[tuple[int, int], Value]:
    """What a thread's elements need of an operand, for some steps along the depth."""
    result = bits_of_dim(spread.shape, outer)
    rows = bits_of_dim(operand.shape, outer)
    depth = bits_of_dim(operand.shape, 1 - outer)

    def column(bit: int | None) -> int:
        inside = bit is not None and bit in result
        return operand.columns[rows[bit - result.start]] if inside and bit is not None else 0

    own = [bit for bit in spread.regs if bit in result]
    regs = [*[operand.columns[b] for b in depth[: log2(step)]], *[column(b) for b in own]]
    side = Side(s, [column(b) for b in spread.threads], regs, operand.dtype.itemsize)
    offset = 0
    for k, bit in enumerate(depth):
        if start >> k & 1:
            offset ^= operand.columns[bit]
    side.offsets = [o ^ offset for o in side.offsets]
    data = [s.convert(v, dtype) for v in side.load(operand.room, operand.dtype, base)]
    found: dict[tuple[int, int], Value] = {}
    for r, value in enumerate(data):
        outer_index = 0
        for k, bit in enumerate(own):
            if r >> log2(step) + k & 1:
                outer_index |= 1 << bit - result.start
        found[outer_index, r & step - 1] = value
    return found


def dot(s: Simt, op: tile.Dot) -> None:
    """A product by itself: both operands are copied to shared memory first."""
    how = product(op, s.warps, s.machine)
    spread = s.spread_of(op.result)
    acc = s.held(op.acc)
    if spread is None:
        how = Product(replicated((1, 1), s.warps), None)
        values = acc.values
    else:
        values = to_spread(s, acc, how.spread).values
    operands = tuple([_copied(s, v, label) for v, label in ((op.a, "lhs"), (op.b, "rhs"))])
    assert len(operands) == 2
    result = multiply(s, how, operands, values, acc.dtype)
    s.define(op.result, result)


def _copied(s: Simt, value: Value, label: str) -> Operand:
    x = s.held(value)
    operand = Operand(s, x.shape, x.dtype, 1, 1, label)
    operand.store(x, None)
    return operand
