"""How a tile goes from one register layout to another, at the least cost.

Three ways, by what the map between the layouts moves: registers alone (renaming, free), lanes of a
warp (shuffles, with selects where a lane's register depends on the lane), or anything (a round trip
through shared memory, in a layout solved so that neither side has bank conflicts).

Costs count issue slots: 2 for a shuffle, 1 for a select, 5 for a wavefront of shared memory: a
word that is stored and loaded without conflicts costs 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.tile.layouts import gf2
from tessera.tile.layouts.access import LANE_BITS, WORD, Access
from tessera.tile.layouts.layout import Layout, Rep
from tessera.tile.layouts.linear import LayoutError, Linear, pack, unpack
from tessera.tile.layouts.memory import row_major

SHUFFLE_COST = 2
SELECT_COST = 1
WAVEFRONT_COST = 5
MAX_VECTOR = 16
LANES = 1 << LANE_BITS


@dataclass(frozen=True, slots=True)
class Rename:
    """Each register of the result is one of the same lane: `sources[register]`."""

    sources: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Nothing is executed."""
        return 0


@dataclass(frozen=True, slots=True)
class ShuffleRound:
    """One exchange between the lanes of a warp; each field has one number per lane.

    Args:
        give: The word register that the lane offers.
        source: The lane whose offer it reads.
        take: The word register of the result that it fills.
    """

    give: tuple[int, ...]
    source: tuple[int, ...]
    take: tuple[int, ...]

    @property
    def is_local(self) -> bool:
        """Whether every lane reads its own offer, so that no shuffle is needed."""
        return self.source == tuple(range(LANES))

    @property
    def cost(self) -> int:
        """The shuffle, if needed, and a select for each bit of a register number that varies."""
        selects = sum(len(set(which)).bit_length() - 1 for which in (self.give, self.take))
        return SHUFFLE_COST * (not self.is_local) + SELECT_COST * selects


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Exchanges within each warp.

    Args:
        rounds: The exchanges of one repetition of the tile.
        packed: Elements per word: registers `packed * w` and on make up word w.
        copies: Repetitions; each has as many registers as the first, which follow one another.
    """

    rounds: tuple[ShuffleRound, ...]
    packed: int
    copies: int

    @property
    def cost(self) -> int:
        """Shuffles and selects of all rounds."""
        return self.copies * sum(one.cost for one in self.rounds)


@dataclass(frozen=True, slots=True)
class SharedTrip:
    """Store, barrier, load.

    Args:
        memory: The shared-memory layout, offset -> dims.
        store: The access of the old layout.
        load: The access of the new one.
    """

    memory: Layout
    store: Access
    load: Access

    @property
    def cost(self) -> int:
        """Wavefronts of one warp, both ways."""
        return WAVEFRONT_COST * (self.store.wavefronts + self.load.wavefronts)


Plan = Rename | Shuffle | SharedTrip


def conversion(src: Layout, dst: Layout, itemsize: int) -> Plan:
    """The cheapest way from one register layout to another.

    Args:
        src: The layout that the tile has.
        dst: The layout that it shall have, of the same dims and shape.
        itemsize: Bytes per element.

    Raises:
        LayoutError: The layouts are of different tiles.
    """
    if set(src.outs) != set(dst.outs) or any(src.shape[d] != dst.shape[d] for d in dst.outs):
        raise LayoutError(f"layout: conversion: the tiles differ: {src.shape} and {dst.shape}")
    pair = _Pair.of(src, dst)
    if pair is None:
        if src.equals(dst):
            return Rename(tuple(range(dst.sizes["reg"])))
        return _trip(src, dst, itemsize, row_major(src.shape))
    moved = pair.within_warps(itemsize)
    if isinstance(moved, Rename):
        return moved
    trip = through_memory(src, dst, itemsize)
    return trip if moved is None or trip.cost < moved.cost else moved


def through_memory(src: Layout, dst: Layout, itemsize: int) -> SharedTrip:
    """The way through shared memory, in a layout solved so that neither side has bank conflicts."""
    pair = _Pair.of(src, dst)
    if pair is None:
        return _trip(src, dst, itemsize, row_major(src.shape))
    try:
        return _trip(src, dst, itemsize, pair.memory(itemsize))
    except LayoutError:
        return _trip(src, dst, itemsize, row_major(src.shape))


def _trip(src: Layout, dst: Layout, itemsize: int, memory: Layout) -> SharedTrip:
    return SharedTrip(memory, _access(src, memory, itemsize), _access(dst, memory, itemsize))


def _access(registers: Layout, memory: Layout, itemsize: int) -> Access:
    """The access with the vector that takes the fewest wavefronts; wider ones may conflict."""
    offsets = Access.of(registers, memory, itemsize, MAX_VECTOR).offsets
    widths = (size for size in (16, 8, 4, 2, 1) if size >= itemsize)
    choices = [Access(offsets, itemsize, width) for width in widths]
    return min(choices, key=lambda one: (one.wavefronts, one.conflicts, one.instructions))


@dataclass(frozen=True)
class _Pair:
    """Both layouts as packed columns over common dims, and the repetitions that they share."""

    dims: tuple[str, ...]
    widths: tuple[int, ...]
    src: dict[str, list[int]]
    dst: dict[str, list[int]]
    reps: tuple[Rep, ...]

    @staticmethod
    def of(src: Layout, dst: Layout) -> _Pair | None:
        """The pair, or None where the layouts differ beyond their atoms."""
        a, b = src.expanded, dst.expanded
        if a.reps != b.reps or any(rep.axis != "reg" for rep in a.reps):
            return None
        bits = [max(a.atom.out_bits[dim], b.atom.out_bits[dim]) for dim in src.outs]
        columns = [_columns(part.atom.select(src.outs), bits) for part in (a, b)]
        return _Pair(src.outs, tuple(bits), columns[0], columns[1], a.reps)

    @property
    def copies(self) -> int:
        """Repetitions of the atoms."""
        total = 1
        for rep in self.reps:
            total *= rep.count
        return total

    def _outer(self, side: dict[str, list[int]]) -> list[tuple[str, list[int]]]:
        """Columns of everything that is not in a warp; inputs without columns do not count."""
        return sorted((n, c) for n, c in side.items() if n not in ("reg", "lane") and c)

    def within_warps(self, itemsize: int) -> Rename | Shuffle | None:
        """Renaming or shuffles, or None where neither will do."""
        if self._outer(self.src) != self._outer(self.dst):
            return None
        lanes = [self.src.get("lane", []), self.dst.get("lane", [])]
        if any(len(columns) != LANE_BITS for columns in lanes):
            return None
        old, new = self.src.get("reg", []), self.dst.get("reg", [])
        packed = 0
        while (
            itemsize << packed < WORD
            and packed < min(len(old), len(new))
            and old[packed] == new[packed]
        ):
            packed += 1
        space = gf2.Echelon([*old[packed:], *lanes[0]])
        shifts = [a ^ b for a, b in zip(*lanes, strict=True)]
        masks = [space.solve(column) for column in (*new[packed:], *shifts)]
        solved = [mask for mask in masks if mask is not None]
        if len(solved) < len(masks):
            return None
        regs = len(old) - packed
        source = [(mask & (1 << regs) - 1, mask >> regs) for mask in solved]
        own = len(new) - packed
        of_reg = source[:own]
        of_lane = [(reg, lane ^ 1 << bit) for bit, (reg, lane) in enumerate(source[own:])]
        if all(lane == 0 for _, lane in of_reg) and of_lane == [(0, 1 << b) for b in range(5)]:
            return self._rename([reg for reg, _ in of_reg], 1 << packed, 1 << regs)
        rounds = _rounds(of_reg, of_lane)
        return Shuffle(tuple(rounds), 1 << packed, self.copies) if rounds else None

    def _rename(self, columns: Sequence[int], packed: int, words: int) -> Rename:
        sources = [
            (copy * words + gf2.combine(columns, word)) * packed + element
            for copy in range(self.copies)
            for word in range(1 << len(columns))
            for element in range(packed)
        ]
        return Rename(tuple(sources))

    def memory(self, itemsize: int) -> Layout:
        """Shared memory in which both accesses have long vectors and no bank conflicts.

        Offset bits, low to high: the vector, a run that both sides hold in registers; the banks, on
        which the lanes of a phase must differ; the rest. A direction that only old lanes take and
        one that only new lanes take can share a bank bit: their sum goes to the rest.
        """
        common = gf2.intersection(self.src.get("reg", []), self.dst.get("reg", []))
        vector = common[: (MAX_VECTOR // itemsize).bit_length() - 1]
        phases = max(1, (itemsize << len(vector)) // WORD)
        lanes = LANE_BITS - (phases.bit_length() - 1)
        old = gf2.independent(self.src.get("lane", [])[:lanes], vector)
        new = gf2.independent(self.dst.get("lane", [])[:lanes], vector)
        both = gf2.independent(gf2.intersection([*vector, *old], [*vector, *new]), vector)
        old = gf2.independent(old, [*vector, *both])
        new = gf2.independent(new, [*vector, *both])
        shared = min(len(old), len(new))
        banks = [*both, *old, *new[shared:]]
        sums = [a ^ b for a, b in zip(old, new, strict=False)]
        units = [1 << bit for bit in range(sum(self.widths))]
        columns = gf2.independent([*vector, *banks, *sums, *units])
        vectors = tuple(unpack(column, self.widths) for column in columns)
        reps = tuple(Rep("offset", rep.dim, rep.count, rep.stride) for rep in self.reps)
        return Layout(Linear((("offset", vectors),), self.dims), reps)


def _columns(atom: Linear, widths: Sequence[int]) -> dict[str, list[int]]:
    return {name: [pack(column, widths) for column in columns] for name, columns in atom.ins}


def _rounds(
    of_reg: Sequence[tuple[int, int]], of_lane: Sequence[tuple[int, int]]
) -> list[ShuffleRound]:
    """Exchanges that fetch each register from where it is; none where one offer will not do.

    `of_reg` and `of_lane` give, per bit of the new register and lane, the old (register, lane). In
    round t, lane l fills register `t ^ twist(l)`. The twist makes the lanes read from different
    lanes: where two of them would read one, it has them fill registers that lie in different lanes.
    """
    to_lane = [lane for _, lane in of_reg]
    from_lane = [lane for _, lane in of_lane]
    clashes = gf2.kernel(from_lane)
    reached = gf2.Echelon(from_lane)
    apart = [1 << bit for bit, lane in enumerate(to_lane) if reached.add(lane)]
    apart += [0] * (len(clashes) - len(apart))
    basis = gf2.Echelon([*clashes, *(1 << bit for bit in range(LANE_BITS))])
    masks = [basis.solve(1 << bit) or 0 for bit in range(LANE_BITS)]
    few = (1 << len(clashes)) - 1
    twist = [gf2.combine(apart, mask & few) for mask in masks]
    rounds: list[ShuffleRound] = []
    for start in range(1 << len(of_reg)):
        give: dict[int, int] = {}
        source: list[int] = []
        take: list[int] = []
        for lane in range(LANES):
            take.append(start ^ gf2.combine(twist, lane))
            reg = gf2.combine([r for r, _ in of_reg], take[-1])
            reg ^= gf2.combine([r for r, _ in of_lane], lane)
            source.append(gf2.combine(to_lane, take[-1]) ^ gf2.combine(from_lane, lane))
            if give.setdefault(source[-1], reg) != reg:
                return []
        offers = tuple(give.get(lane, 0) for lane in range(LANES))
        rounds.append(ShuffleRound(offers, tuple(source), tuple(take)))
    return rounds
