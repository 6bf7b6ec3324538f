"""Races in shared memory: accesses of two warps that no barrier orders.

Each warp has a clock for every warp of its block: how much of that warp's past it has seen. A cell
(the smallest element that the kernel accesses) remembers who wrote it last and when, and when each
warp read it. Lanes of one warp count as ordered, and so does the copy engine: what it does wrong
shows in the lazy mode.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from tests.ptx.memory import SHARED_BASE, Array, Fault


class Clocks:
    """The clocks of the resident blocks, and the past of their shared memory.

    Args:
        blocks: resident blocks.
        warps: of a block.
        size: bytes of all blocks' shared memory.
        cell: bytes of a cell.
        row: what makes a lane's address a byte position.
    """

    def __init__(self, blocks: int, warps: int, size: int, cell: int, row: Array) -> None:
        self.warps = warps
        self.cell = cell
        cells = size // cell
        self.row = row
        self.clocks = np.zeros((blocks, warps, warps), "i4")
        self.writer = np.zeros(cells, "i4")
        self.written = np.zeros(cells, "i4")
        self.by_atomic = np.zeros(cells, bool)
        self.read_at = np.zeros((cells, warps), "i4")
        self.kept: dict[object, Array] = {}
        self.mode = "plain"
        self.reset()

    def reset(self) -> None:
        """New blocks begin."""
        self.clocks[:] = np.eye(self.warps, dtype="i4")
        for array in (self.writer, self.written, self.by_atomic, self.read_at):
            array[...] = 0
        self.kept.clear()

    @contextmanager
    def accesses(self, mode: str) -> Generator[None, None, None]:
        """Within this, accesses are those of `atomic` operations or of the copy `engine`."""
        outer, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = outer

    # --- accesses ---

    def _cells(self, places: Array, width: int, lanes: Array) -> tuple[Array, Array, Array]:
        cells, count = places // self.cell, width // self.cell
        if count > 1:
            cells = (cells + np.arange(count)[:, None]).reshape(-1)
            lanes = np.tile(lanes, count)
        return cells, lanes // 32, lanes

    def read(self, places: Array, width: int, lanes: Array) -> None:
        """Lanes read elements."""
        if self.mode == "engine":
            return
        cells, warp, lanes = self._cells(places, width, lanes)
        own = warp % self.warps
        if self.mode == "plain" or not self.by_atomic[cells].all():
            self._after_writes(cells, warp, lanes, "reads what")
        if self.mode == "plain":
            self.read_at[cells, own] = self.clocks[warp // self.warps, own, own]

    def write(self, places: Array, width: int, lanes: Array) -> None:
        """Lanes write elements."""
        cells, warp, lanes = self._cells(places, width, lanes)
        if self.mode == "engine":
            self.written[cells] = 0
            self.read_at[cells] = 0
            return
        own = warp % self.warps
        atomic = self.mode == "atomic"
        if not atomic or not self.by_atomic[cells].all():
            self._after_writes(cells, warp, lanes, "overwrites what")
        seen = self.clocks[warp // self.warps, own]
        late = self.read_at[cells] > seen
        if late.any():
            i, other = (int(x[0]) for x in np.nonzero(late))
            raise Fault(self._text(cells[i], lanes[i], "overwrites what", "read", other), lanes[i])
        self.writer[cells] = own
        self.written[cells] = self.clocks[warp // self.warps, own, own]
        twice = self.writer[cells] != own
        if twice.any() and not atomic:
            i = int(np.argmax(twice))
            other = int(self.writer[cells[i]])
            raise Fault(self._text(cells[i], lanes[i], "writes what", "writes", other), lanes[i])
        self.by_atomic[cells] = atomic

    def _after_writes(self, cells: Array, warp: Array, lanes: Array, what: str) -> None:
        writer = self.writer[cells]
        seen = self.clocks[warp // self.warps, warp % self.warps, writer]
        late = self.written[cells] > seen
        if late.any():
            i = int(np.argmax(late))
            text = self._text(cells[i], lanes[i], what, "wrote", int(writer[i]))
            raise Fault(text, int(lanes[i]))

    def _text(self, cell: int, lane: int, what: str, did: str, other: int) -> str:
        at = self.cell * int(cell) - int(self.row[lane]) - SHARED_BASE
        return (
            f"byte {at} of shared memory: warp {int(lane) // 32 % self.warps} {what} warp {other} "
            f"{did}, and no barrier is between"
        )

    # --- order ---

    def meet_all(self) -> None:
        """All warps of all blocks meet."""
        self.clocks[:] = self.clocks.max(axis=1, keepdims=True)
        self._tick(slice(None), np.arange(self.warps))

    def meet(self, block: int, warps: Array, key: object) -> None:
        """Some warps of a block meet, and see what others left under a key."""
        join = self.clocks[block, warps].max(axis=0, initial=0)
        kept = self.kept.pop((block, key), None)
        self.clocks[block, warps] = join if kept is None else np.maximum(join, kept)
        self._tick(block, warps)

    def leave(self, block: int, warps: Array, key: object) -> None:
        """Some warps leave what they have seen, and go on."""
        join = self.clocks[block, warps].max(axis=0, initial=0)
        kept = self.kept.get((block, key))
        self.kept[block, key] = join if kept is None else np.maximum(join, kept)
        self._tick(block, warps)

    def take(self, block: int, warp: int, seen: Array) -> None:
        """A warp sees what was left."""
        self.clocks[block, warp] = np.maximum(self.clocks[block, warp], seen)

    def _tick(self, block: int | slice, warps: Array) -> None:
        self.clocks[block, warps, warps] += 1
