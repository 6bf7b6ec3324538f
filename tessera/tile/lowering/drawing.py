"""Random words in a block of a GPU's threads.

The generator makes blocks of four words. Where the last dim of a tile runs along the sequence, and
begins with a block, each block is made once, in a tile of a quarter of the size, and its words are
dealt out to the four elements:

    %a, %b, %c, %d = words of blocks first / 4 + 0, 1, ..., [R, N / 4] each
    %w = select by the lowest two bits of the place, [R, N / 4, 4], reshaped to [R, N]
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import DType, int64, uint32
from tessera.graph.ops.generate import PHILOX_WORDS, philox
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, divides, linear_in
from tessera.schedule import ops as s
from tessera.tile import ops as t
from tessera.tile.lowering.state import Point, State, Val
from tessera.tile.ops import tile_type


def random(low: State, op: s.Random, point: Point) -> Val:
    """The word at one place of a key's sequence."""
    em = low.em
    keys = [low.get(key, point).parts[0] for key in op.key]
    dyn = low.dyn(op.dyn, point)
    if _shares(low, op.expr, point, [*keys, *dyn]):
        return Val((_dealt(low, op, point, keys, dyn),), point.names)
    place = em.index(op.expr, low.leaf(point, dyn))
    words = _block(low, em.map("shr", place, em.const(2, int64)), keys)
    which = em.cast(em.map("and", place, em.const(PHILOX_WORDS - 1, int64)), uint32)
    return Val((_chosen(low, words, which),), point.names)


def _block(low: State, counter: Value, keys: Sequence[Value]) -> tuple[Value, ...]:
    """The words of the block of a number."""
    em = low.em
    zero = em.const(0, uint32)
    high = em.cast(em.map("shr", counter, em.const(32, int64)), uint32)

    def const(value: int, dtype: DType) -> Value:
        return em.const(value, dtype)

    upper0, upper1 = keys[2:] or (zero, zero)
    counters = (em.cast(counter, uint32), high, upper0, upper1)
    return philox(counters, (keys[0], keys[1]), em.map, const)


def _chosen(low: State, words: Sequence[Value], which: Value) -> Value:
    """One of four words."""
    em = low.em
    odd = em.map("ne", em.map("and", which, em.const(1, uint32)), em.const(0, uint32))
    upper = em.map("ge", which, em.const(2, uint32))
    a, b, c, d = words
    return em.select(upper, em.select(odd, d, c), em.select(odd, b, a))


def _shares(low: State, expr: Dim, point: Point, values: Sequence[Value]) -> bool:
    """Whether the last dim of the tile runs along the sequence, from the first word of a block
    on."""
    if not low.is_block or not point.dims or point.dims[-1].size % PHILOX_WORDS:
        return False
    if any(tile_type(v).shape and tile_type(v).shape[-1] > 1 for v in values):
        return False
    last = point.dims[-1]
    found = linear_in(expr, (last.name,))
    # Tiles begin at multiples of their size.
    if found is None or found[0][last.name] != 1:
        return False
    return divides(PHILOX_WORDS, found[1], low.facts)


def _dealt(
    low: State, op: s.Random, point: Point, keys: Sequence[Value], dyn: Sequence[Value]
) -> Value:
    em = low.em
    last = len(point.dims) - 1
    dim = point.dims[last]
    count = dim.size // PHILOX_WORDS
    line = tuple([count if k == last else 1 for k in range(last + 1)])
    steps = em.map("mul", em.pure(t.Iota, line, last), em.const(PHILOX_WORDS, int64))
    first = em.map("add", dim.start, steps)
    outer = low.leaf(point, dyn)
    place = em.index(op.expr, lambda name: first if name == dim.name else outer(name))
    words = _block(low, em.map("shr", place, em.const(2, int64)), keys)
    shape = (*tile_type(words[0]).shape, PHILOX_WORDS)
    spread = [em.broadcast(em.reshape(word, (*shape[:-1], 1)), shape) for word in words]
    deal = tuple([PHILOX_WORDS if k == last + 1 else 1 for k in range(last + 2)])
    which = em.cast(em.pure(t.Iota, deal, last + 1), uint32)
    found = _chosen(low, spread, which)
    return em.reshape(found, (*shape[:-2], dim.size))
