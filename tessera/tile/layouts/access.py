"""What a warp's access to memory costs, counted exactly from the layouts.

An access moves a register tile to or from memory: each lane moves vectors of contiguous, aligned
elements, one instruction per vector. Where the lanes' addresses are linear over GF(2) the counts
are ranks; where they are not (a padded pitch, say) the addresses of one warp are enumerated. Both
are exact for memory that starts aligned to its largest XORed bit.

- Shared memory has 32 banks of 4 bytes. A request of 32 lanes goes out in phases: all lanes for up
  to 4 bytes a lane, 16 lanes for 8 bytes, 8 lanes for 16 bytes. A phase takes as many wavefronts as
  the busiest bank has distinct words in it.
- Global memory moves 32-byte sectors; an instruction costs as many as its lanes touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.ir.lazy import cached_property
from tessera.tile.layouts import gf2
from tessera.tile.layouts.layout import Array, Layout
from tessera.tile.layouts.linear import LayoutError
from tessera.tile.layouts.memory import Swizzle, swizzled

LANE_BITS = 5
WORD = 4
BANK_BYTES = 128
SECTOR = 32


def address_map(memory: Layout) -> Layout:
    """The map from dims to `offset` of a memory layout, given in either direction."""
    return memory if memory.outs == ("offset",) else memory.right_inverse()


@dataclass(frozen=True)
class Access:
    """The access of a register tile to memory.

    Args:
        offsets: A map from `reg`, `lane` and further inputs to `offset`, in elements.
        itemsize: Bytes per element, a power of two.
        max_bytes: The largest vector of the instruction.
    """

    offsets: Layout
    itemsize: int
    max_bytes: int = 16

    def __post_init__(self) -> None:
        if self.offsets.outs != ("offset",) or self.offsets.sizes.get("lane", 0) != 1 << LANE_BITS:
            raise LayoutError(f"layout: access: {self.offsets} does not map 32 lanes to offsets")
        for what, value in (("itemsize", self.itemsize), ("max_bytes", self.max_bytes)):
            if value < 1 or value & value - 1:
                raise LayoutError(f"layout: access: {what} is a power of two, not {value}")

    @staticmethod
    def of(registers: Layout, memory: Layout, itemsize: int, max_bytes: int = 16) -> Access:
        """The access of a register layout to a memory layout of the same dims."""
        return Access(address_map(memory).compose(registers), itemsize, max_bytes)

    @cached_property
    def _form(self) -> Layout:
        return self.offsets.expanded

    def _columns(self, name: str) -> list[int]:
        return [column[0] for column in self._form.atom.of_input(name)]

    @cached_property
    def vector(self) -> int:
        """Elements per vector: the largest aligned contiguous run that every lane holds.

        Registers may be taken in any order, so a run of 2**j is there exactly when the registers'
        columns span the lowest j offset bits and no repetition moves by less.
        """
        space = gf2.Echelon(self._columns("reg"))
        run = 1
        while (
            run * 2 * self.itemsize <= self.max_bytes
            and space.has(run)
            and all(rep.stride % (run * 2) == 0 for rep in self._form.reps)
        ):
            run *= 2
        return run

    @property
    def vector_bytes(self) -> int:
        """Bytes per vector."""
        return self.vector * self.itemsize

    @cached_property
    def instructions(self) -> int:
        """Vector instructions of one warp. Copies of an element in a lane are moved once."""
        return self._chunks.shape[0]

    @property
    def phases(self) -> int:
        """Groups of lanes that shared memory serves one after the other, per instruction."""
        return max(1, self.vector_bytes // WORD)

    @cached_property
    def wavefronts(self) -> int:
        """Shared-memory wavefronts of all instructions of one warp."""
        unit = max(self.vector_bytes, WORD)
        if self._lanes_are_linear(unit):
            lanes = self._columns("lane")[: LANE_BITS - (self.phases.bit_length() - 1)]
            units = [column * self.itemsize // unit for column in lanes]
            banks = [number % (BANK_BYTES // unit) for number in units]
            return self.instructions * self.phases << gf2.rank(units) - gf2.rank(banks)
        return sum(_wavefronts(row * self.vector_bytes, self.vector_bytes) for row in self._chunks)

    @property
    def ideal_wavefronts(self) -> int:
        """Wavefronts without any conflict."""
        return self.instructions * self.phases

    @property
    def conflicts(self) -> float:
        """Wavefronts over those of a conflict-free access: 1.0 is conflict-free, 8.0 is 8-way."""
        return self.wavefronts / self.ideal_wavefronts

    @cached_property
    def sectors(self) -> int:
        """32-byte sectors of global memory over all instructions of one warp."""
        if self._lanes_are_linear(SECTOR):
            lanes = [column * self.itemsize // SECTOR for column in self._columns("lane")]
            return self.instructions << gf2.rank(lanes)
        per_sector = SECTOR // self.vector_bytes
        return sum(len(np.unique(row // per_sector)) for row in self._chunks)

    @cached_property
    def ideal_sectors(self) -> int:
        """Sectors if every instruction's bytes lay together."""
        moved = (len(np.unique(row)) * self.vector_bytes for row in self._chunks)
        return sum(-(-size // SECTOR) for size in moved)

    def _lanes_are_linear(self, unit: int) -> bool:
        """Whether the lanes' addresses are linear, and instructions lie whole units apart."""
        reps = self._form.reps
        return all(r.axis != "lane" and r.stride * self.itemsize % unit == 0 for r in reps)

    @cached_property
    def _chunks(self) -> Array:
        """Vector numbers (offset // vector) of the first warp: `[instruction, lane]`."""
        reg, lane = np.ogrid[0 : self.offsets.sizes.get("reg", 1), 0 : 1 << LANE_BITS]
        (offset,) = self.offsets.apply({"reg": reg, "lane": lane})
        elements = np.broadcast_to(np.asarray(offset, np.int64), (reg.size, lane.size))
        table = elements // self.vector
        # Registers of one vector, and copies, follow the same pattern in every lane; where a lane
        # permutes them, its vectors still come out in the order of their first registers.
        first = [np.sort(np.unique(column, return_index=True)[1]) for column in table.T]
        return np.stack([column[at] for column, at in zip(table.T, first, strict=True)], axis=1)


def _wavefronts(addresses: Array, width: int) -> int:
    """Wavefronts of one instruction, given the byte address of each lane, by counting."""
    total = 0
    lanes = len(addresses) if width <= WORD else len(addresses) * WORD // width
    for start in range(0, len(addresses), lanes):
        base = addresses[start : start + lanes, None]
        words = np.unique((base + np.arange(0, width, WORD)) // WORD)
        total += int(np.bincount(words % (BANK_BYTES // WORD)).max())
    return total


def best_swizzle(registers: Layout, itemsize: int, max_bytes: int = 16) -> Swizzle | None:
    """The smallest swizzle that makes the access of a 2-d tile free of conflicts, if one does."""
    for swizzle in Swizzle:
        try:
            memory = swizzled(registers.shape, itemsize, swizzle)
        except LayoutError:
            continue
        if Access.of(registers, memory, itemsize, max_bytes).conflicts == 1:
            return swizzle
    return None
