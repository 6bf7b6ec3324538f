"""Chooses how each tile of a kernel lies in the block's threads.

Tiles that are used element by element together form a class and lie alike; a reshape joins
classes, too, since it changes no element number. Classes are settled largest first: by the accesses
to memory that they take part in (neighbours in memory to neighbouring threads, vectors as wide as
alignment allows), or by a product of matrices. A class of smaller tiles follows the larger one to
which it broadcasts, or out of which it is reduced. What does not fit then is converted at its use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tessera.ir.core import Func, Op, Value
from tessera.ir.walk import walk
from tessera.target.from_tile.simt.divide import Divisibility, constant, step_along
from tessera.target.from_tile.simt.spread import (
    Spread,
    arranged,
    bits_of_dim,
    blocked,
    flat_bits,
    in_order,
    log2,
)
from tessera.tile import ops as tile
from tessera.tile.types import TileType, ViewType

VECTOR_BYTES = 16

_ALIKE = (
    tile.Map,
    tile.Cast,
    tile.Bitcast,
    tile.Reshape,
    tile.Scan,
    tile.FlipBits,
    tile.Load,
    tile.Gather,
)
"""Ops all of whose tiles lie alike."""

Anchor = Callable[["tile.Dot", int], Spread]


@dataclass
class Wish:
    """What one access to memory asks of a spread.

    Attributes:
        order: dims, the one along which memory is contiguous first.
        vector: neighbours that are surely aligned.
        safe: those of them that are surely inside the view together, or outside.
        itemsize: bytes of an element.
        bytes: of the tile.
        bits: the tile's flat bits in that order; they stay what they are when it is reshaped.
    """

    order: tuple[int, ...]
    vector: int
    safe: int
    itemsize: int
    bytes: int
    bits: tuple[int, ...]

    def spread(self, shape: tuple[int, ...], warps: int, late: Sequence[int] = ()) -> Spread:
        """The spread that suits this access best."""
        return blocked(shape, warps, self.order, self.vector, late)


@dataclass
class _Class:
    """Tiles that lie alike.

    Attributes:
        shape: of one of them.
        wishes: of the accesses.
        late: flat bits along which something is combined.
        flipped: flat bits in which places differ whose elements change places.
        fixed: the spread that a product of matrices needs.
        follows: (how the spread derives, of which value) for tiles that follow a larger one.
    """

    shape: tuple[int, ...]
    wishes: list[Wish] = field(default_factory=list[Wish])
    late: set[int] = field(default_factory=set[int])
    flipped: set[int] = field(default_factory=set[int])
    fixed: Spread | None = None
    follows: list[tuple[Callable[[Spread], Spread], Value]] = field(
        default_factory=list[tuple[Callable[[Spread], Spread], Value]]
    )


def is_spread(value: Value) -> bool:
    """Whether a value is a tile of several elements."""
    return isinstance(value.type, TileType) and flat_bits(value.type.shape) > 0


class Assignment:
    """The spreads of one kernel.

    Args:
        func: a Tile kernel.
        warps: of its blocks.
        dot: the spread of the accumulator of a product, given the warps.
        divisors: what index scalars are divisible by.
    """

    def __init__(self, func: Func, warps: int, dot: Anchor, divisors: Divisibility) -> None:
        self.warps = warps
        self.divisors = divisors
        self.leader: dict[Value, Value] = {}
        self.classes: dict[Value, _Class] = {}
        self.wishes: dict[Op, Wish] = {}
        self.spreads: dict[Value, Spread] = {}
        ops = list(walk(func.body))
        for op in ops:
            if isinstance(op, tile.For):
                divisors.loop(op)
        for op in ops:
            self._join(op)
        for op in ops:
            self._note(op, dot)
        self._settle()

    def of(self, value: Value) -> Spread:
        """How a tile lies."""
        assert isinstance(value.type, TileType)
        found = self.spreads[self._find(value)]
        return found.reshaped(value.type.shape)

    # --- classes ----------------------------------------------------------------------------------

    def _find(self, value: Value) -> Value:
        path: list[Value] = []
        while (above := self.leader.setdefault(value, value)) is not value:
            path.append(value)
            value = above
        for one in path:
            self.leader[one] = value
        return value

    def _class(self, value: Value) -> _Class:
        leader = self._find(value)
        found = self.classes.get(leader)
        if found is None:
            assert isinstance(leader.type, TileType)
            found = self.classes[leader] = _Class(leader.type.shape)
        return found

    def _same(self, values: Iterable[Value]) -> None:
        found = [self._find(v) for v in values if is_spread(v)]
        for one in found[1:]:
            if self._find(one) is not self._find(found[0]):
                self.leader[self._find(one)] = self._find(found[0])

    def _join(self, op: Op) -> None:
        """Joins what an op uses element by element."""
        match op:
            case tile.Store() | tile.Scatter():
                self._same(op.operands)
            case tile.ArgReduce():
                self._same(op.operands)
                self._same(op.results)
            case tile.Dot():
                self._same([op.acc, op.result])
            case tile.For():
                self._alike(op.init, op.body.args[1:], op.body.outputs, op.results)
            case tile.While():
                self._alike(op.init, op.cond.args, op.body.args, op.body.outputs, op.results)
            case tile.If():
                self._alike(op.then.outputs, op.otherwise.outputs, op.results)
            case _:
                if isinstance(op, _ALIKE):
                    self._same([*op.operands, *op.results])

    def _alike(self, *lists: Sequence[Value]) -> None:
        for group in zip(*lists, strict=True):
            self._same(group)

    # --- what is asked ----------------------------------------------------------------------------

    def _note(self, op: Op, dot: Anchor) -> None:
        """Notes what an op asks of its tiles."""
        for value in (*op.operands, *op.results):
            if is_spread(value):
                self._class(value)
        match op:
            case tile.Load():
                self._wish(op, op.result, op.view, op.coords, op.check)
            case tile.Store():
                self._wish(op, op.value, op.view, op.coords, op.check)
            case tile.Gather():
                self._wish_of_offsets(op, op.result, op.offsets)
            case tile.Scatter():
                self._wish_of_offsets(op, op.value, op.offsets)
            case tile.Reduce() | tile.ArgReduce():
                self._late(op.x, op.axis)
                axis = op.axis
                self._follow(op.results[0], op.x, lambda s: s.without(axis))
            case tile.Scan() | tile.FlipBits():
                self._moves(op)
            case tile.Broadcast():
                assert isinstance(op.x.type, TileType)
                axes = [k for k, n in enumerate(op.x.type.shape) if n != op.shape[k]]
                self._follow(op.x, op.result, lambda s: s.to_one(axes))
            case tile.Transpose():
                perm = op.perm
                back = tuple(sorted(range(len(perm)), key=perm.__getitem__))
                self._follow(op.result, op.x, lambda s: s.transposed(perm))
                self._follow(op.x, op.result, lambda s: s.transposed(back))
            case tile.Dot() if is_spread(op.acc):
                self._class(op.acc).fixed = dot(op, self.warps)
            case _:
                pass

    def _late(self, value: Value, axis: int) -> None:
        """Notes that something is combined along an axis."""
        if is_spread(value):
            assert isinstance(value.type, TileType)
            self._class(value).late.update(bits_of_dim(value.type.shape, axis))

    def _moves(self, op: tile.Scan | tile.FlipBits) -> None:
        """Notes between which places something moves."""
        if isinstance(op, tile.Scan):
            self._late(op.x, op.axis)
        elif is_spread(op.x):
            assert isinstance(op.x.type, TileType)
            bits = bits_of_dim(op.x.type.shape, op.axis)
            flipped = [bit for k, bit in enumerate(bits) if op.mask >> k & 1]
            self._class(op.x).flipped.update(flipped)

    def _follow(self, value: Value, other: Value, rule: Callable[[Spread], Spread]) -> None:
        """Notes that a value would like to lie as the rule says of another one."""
        if not (is_spread(value) and is_spread(other)):
            return
        assert isinstance(value.type, TileType) and isinstance(other.type, TileType)
        shape, source = self._class(value).shape, other.type.shape
        if self._find(value) is not self._find(other):
            self._class(value).follows.append(
                (lambda s: rule(s.reshaped(source)).reshaped(shape), other)
            )

    def _wish(
        self, op: Op, value: Value, view: Value, coords: Sequence[Value], check: Sequence[int]
    ) -> None:
        assert isinstance(value.type, TileType)
        if not is_spread(value):
            return
        wish = self.wish(value.type, view, coords, check)
        self.wishes[op] = wish
        self._class(value).wishes.append(wish)

    def _wish_of_offsets(self, op: Op, value: Value, offsets: Value) -> None:
        """Where offsets count up along the last dim, neighbours move together."""
        assert isinstance(value.type, TileType)
        shape, itemsize = value.type.shape, value.type.dtype.itemsize
        if not is_spread(value) or step_along(offsets, len(shape) - 1) != 1:
            return
        last = len(shape) - 1
        vector = self.divisors.elements(offsets, last)
        vector = min(vector, VECTOR_BYTES // itemsize, shape[last])
        order = tuple(reversed(range(len(shape))))
        total = itemsize << flat_bits(shape)
        wish = Wish(order, vector, vector, itemsize, total, in_order(shape, order))
        self.wishes[op] = wish
        self._class(value).wishes.append(wish)

    def wish(
        self, type: TileType, view: Value, coords: Sequence[Value], check: Sequence[int]
    ) -> Wish:
        """What an access asks for."""
        window = view.op
        assert isinstance(window, tile.View) and isinstance(view.type, ViewType)
        rank = len(type.shape)
        strides = [constant(s) for s in window.strides]
        # Dims by stride; unknown ones are taken for large, in the order in which they stand.
        keys = [
            (1 << 40) + rank - k if s is None else abs(s) if s else (1 << 39) + rank - k
            for k, s in enumerate(strides)
        ]
        order = tuple(sorted(range(rank), key=lambda k: (type.shape[k] == 1, keys[k], -k)))
        itemsize = type.dtype.itemsize
        vector = safe = 1
        if order and strides[order[0]] == 1:
            dim = order[0]
            vector = self.aligned(type.shape, window, coords, dim)
            vector = safe = min(vector, VECTOR_BYTES // itemsize, type.shape[dim])
            if dim in check:
                safe = min(safe, self.divisors.of(window.sizes[dim]))
        total = itemsize << flat_bits(type.shape)
        return Wish(order, vector, safe, itemsize, total, in_order(type.shape, order))

    def aligned(
        self, shape: tuple[int, ...], window: tile.View, coords: Sequence[Value], dim: int
    ) -> int:
        """How many neighbours along a dim are aligned together."""
        of = self.divisors.of
        found = of(window.offset)
        for k, (coord, stride) in enumerate(zip(coords, window.strides, strict=True)):
            # The tile's own elements step by the stride, the coordinate by its multiples.
            own = 1 if shape[k] > 1 and k != dim else of(coord)
            found = min(found, own if k == dim else of(stride) * own)
        return found

    # --- decisions --------------------------------------------------------------------------------

    def _settle(self) -> None:
        pending = dict(self.classes)
        # Classes that follow a settled one come before those that choose for themselves.
        while pending:
            ready = self._next(pending)
            leader = ready
            one = pending.pop(leader)
            self.spreads[leader] = self._choose(one)

    def _next(self, pending: dict[Value, _Class]) -> Value:
        def rank(item: tuple[Value, _Class]) -> tuple[bool, int, bool, int]:
            _, one = item
            size = flat_bits(one.shape)
            weight = sum(w.bytes for w in one.wishes)
            return (one.fixed is not None, size, bool(one.wishes), weight)

        return max(pending.items(), key=rank)[0]

    def _choose(self, one: _Class) -> Spread:
        if one.fixed is not None:
            return one.fixed.reshaped(one.shape)
        size = flat_bits(one.shape)
        for rule, other in one.follows:
            settled = self.spreads.get(self._find(other))
            if settled is not None and (flat_bits(settled.shape) > size or not one.wishes):
                return rule(settled)
        bits = tuple(range(size))
        if one.flipped and len(one.late) in (0, size):
            # A sorting network flips its lowest bits most often: they cost least in registers, and
            # warps meet only for the highest.
            bits = tuple(sorted(bits, key=lambda b: (b not in one.flipped, b)))
            return arranged(one.shape, self.warps, bits, size)
        vector = 0
        if one.wishes:
            votes: Counter[tuple[int, ...]] = Counter()
            for wish in one.wishes:
                votes[wish.bits] += wish.bytes
            bits = max(votes, key=lambda o: votes[o])
            agreeing = [w for w in one.wishes if w.bits[:1] == bits[:1]]
            widest = VECTOR_BYTES // max(w.itemsize for w in agreeing)
            counts = Counter[int]()
            for wish in agreeing:
                counts[min(wish.vector, widest)] += wish.bytes
            vector = log2(max(counts, key=lambda v: (counts[v], v)))
        return arranged(one.shape, self.warps, bits, vector, frozenset(one.late))


def threads_of(warps: int) -> int:
    """Bits of a thread number."""
    return log2(warps) + 5
