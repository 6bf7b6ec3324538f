"""Which elements a network exchanges that puts them in order: the merge exchange of Batcher (Knuth,
The Art of Computer Programming, volume 3, 5.2.2 M)."""

from __future__ import annotations

from collections.abc import Iterator


def exchanges(count: int) -> Iterator[tuple[int, int]]:
    """The steps of a merge exchange.

    >>> list(exchanges(4))
    [(0, 2), (1, 3), (0, 1), (2, 3), (1, 2)]
    """
    top = 1 << max((count - 1).bit_length() - 1, 0)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            for i in range(count - d):
                if i & p == r:
                    yield i, i + d
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
