"""Caches in pages, built of refs: the newest tokens in a ring of pages that a table finds."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts

PAGES, SIZE, WIDTH = 5, 4, 3


class Paged:
    """A ring of pages for each sequence, whose pages lie anywhere in a pool."""

    def __init__(self, table: Any) -> None:
        self.table = ts.Ref(ts.asarray(table), name="table")
        self.pool = ts.Ref(ts.zeros((2 * PAGES, SIZE, WIDTH)), name="pool")
        self.count = ts.Ref(0, name="count")

    def append(self, tokens: Any) -> None:
        """Appends a token to each sequence; the oldest page is written over."""
        place = self.count.get()
        page = self.table.get()[:, (place // SIZE) % PAGES]
        pool = self.pool.get()
        for k in range(2):
            pool = pool.at[page[k], place % SIZE].set(tokens[k])
        self.pool.set(pool)
        self.count.set(place + 1)

    def read(self) -> Any:
        """All tokens of the rings, by their places in them."""
        pages = self.pool.get()[self.table.get()]
        return ts.reshape(pages, (2, PAGES * SIZE, WIDTH))


def test_ring_buffer_page_table_smoke() -> None:
    random = np.random.default_rng(0)
    table = random.permutation(2 * PAGES).reshape(2, PAGES)
    cache = Paged(table)
    append, read = ts.jit(cache.append), ts.jit(cache.read)
    tokens = random.standard_normal((33, 2, WIDTH)).astype(np.float32)
    kept = np.zeros((2, PAGES * SIZE, WIDTH), np.float32)
    for k, token in enumerate(tokens):
        append(token)
        kept[:, k % (PAGES * SIZE)] = token
        if k % 8 == 0:
            np.testing.assert_array_equal(read(), kept)
    np.testing.assert_array_equal(read(), kept)

    # Another table moves pages, and nothing else; a scan appends as single calls do.
    again = Paged(table[:, ::-1].copy())

    @ts.jit
    def fill(tokens: Any) -> None:
        ts.scan(lambda carry, token: (carry, again.append(token)), None, tokens)

    fill(tokens)
    np.testing.assert_array_equal(again.read(), kept)
    assert int(again.count.get()) == len(tokens)
