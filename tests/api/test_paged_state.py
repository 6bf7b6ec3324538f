"""Refs as users build caches of them: pages in a ring, found through a table."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

import tessera as ts

PAGES, PAGE, SLOTS, WIDTH = 6, 4, 3, 8
"""Pages of memory, rows of a page, pages of the ring, and columns."""


class Ring:
    """The last rows of a stream. Pages are taken from a pool in an order of their own."""

    def __init__(self) -> None:
        self.pool = ts.Ref(ts.zeros((PAGES, PAGE, WIDTH)), name="pool")
        self.table = ts.Ref(ts.asarray(np.array([4, 1, 3], np.int32)), name="table")
        self.length = ts.Ref(ts.asarray(np.int32(0)), name="length")

    def append(self, row: Any) -> None:
        at = self.length.get()
        page = self.table.get()[at // PAGE % SLOTS]
        self.pool[page, at % PAGE] = row
        self.length.set(at + 1)

    def rows(self) -> tuple[Any, Any]:
        """All rows of the ring, the oldest first, and which of them were written."""
        at, room = self.length.get(), PAGE * SLOTS
        places = (at + ts.arange(room, dtype=ts.int32)) % room
        found = self.pool.get()[self.table.get()[places // PAGE], places % PAGE]
        return found, ts.arange(room) >= room - ts.minimum(at, room)


@pytest.mark.parametrize("steps", [1, 5], ids=["calls", "scan"])
def test_ring_buffer_page_table_smoke(steps: int) -> None:
    ring, seen = Ring(), deque[np.ndarray](maxlen=PAGE * SLOTS)

    @ts.jit
    def append(rows: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            ring.append(row)
            return carry, None

        ts.scan(step, 0, rows)
        return ring.rows()

    rng = np.random.default_rng(0)
    append(ts.asarray(np.zeros((0, WIDTH), np.float32)))
    address = np.asarray(ring.pool.get()).ctypes.data
    for _ in range(40 // steps):
        rows = rng.normal(size=(steps, WIDTH)).astype(np.float32)
        seen.extend(rows)
        found, is_written = append(ts.asarray(rows))
        written = np.asarray(is_written)
        assert written.sum() == len(seen)
        np.testing.assert_array_equal(np.asarray(found)[written], np.stack(seen))
    assert int(ring.length.get()) == 40
    assert np.asarray(ring.pool.get()).ctypes.data == address
    # Pages that are in no slot are as they were.
    np.testing.assert_array_equal(np.asarray(ring.pool.get())[[0, 2, 5]], 0)
    # Another sequence takes over a slot: the table alone says where rows are.
    ring.table.set(ts.asarray(np.array([0, 1, 3], np.int32)))
    found, _ = append(ts.asarray(np.ones((1, WIDTH), np.float32)))
    assert not np.array_equal(np.asarray(found)[:-1], np.stack(seen)[1:])
