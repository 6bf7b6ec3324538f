"""Parameters of tests of which every two meet, rather than all of them: of nine functions, five
dtypes and three levels 45 tests rather than 135. Most mistakes need one or two of them (Kuhn,
Wallace and Gallo, "Software fault interactions and implications for software testing", 2004), and
random programs have the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def every_pair(*parameters: tuple[str, Iterable[Any]]) -> pytest.MarkDecorator:
    """Like `pytest.mark.parametrize` for each parameter, but with fewer tests.

    Args:
        *parameters: names, separated by commas, and what they are given.
    """
    return _marked(parameters, covering)


def each_with_one(*parameters: tuple[str, Iterable[Any]]) -> pytest.MarkDecorator:
    """The same with fewer still: as many tests as the longest list has values. For parameters that
    have little to do with each other, where a test takes seconds.

    Args:
        *parameters: names, separated by commas, and what they are given.
    """
    return _marked(
        parameters, lambda counts: [tuple([k % n for n in counts]) for k in range(max(counts))]
    )


def _marked(
    parameters: Sequence[tuple[str, Iterable[Any]]],
    choose: Callable[[Sequence[int]], Iterable[Sequence[int]]],
) -> pytest.MarkDecorator:
    lists = [list(values) for _, values in parameters]
    rows = [
        [values[k] for values, k in zip(lists, row, strict=True)]
        for row in choose([len(values) for values in lists])
    ]
    names = [[n.strip() for n in names.split(",")] for names, _ in parameters]
    flat: list[list[Any]] = []
    for row in rows:
        parts = zip(names, row, strict=True)
        flat.append([x for own, value in parts for x in (value if len(own) > 1 else [value])])
    ids = ["-".join(map(_id, row)) for row in flat]
    return pytest.mark.parametrize([n for own in names for n in own], flat, ids=ids)


def covering(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of numbers below the counts, so that any two columns have every pair of theirs.

    >>> covering([2, 2, 2])
    [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
    """
    columns = range(len(counts))
    missing: dict[tuple[int, int, int, int], None] = {}
    for i, j in itertools.combinations(columns, 2):
        for a, b in itertools.product(range(counts[i]), range(counts[j])):
            missing[i, a, j, b] = None
    used = [[0] * count for count in counts]
    rows: list[tuple[int, ...]] = []
    while missing:
        i, a, j, b = next(iter(missing))
        row = {i: a, j: b}
        for column in columns:
            if column not in row:
                row[column] = max(
                    range(counts[column]),
                    key=lambda k: (_found(missing, row, column, k), -used[column][k]),
                )
        for column, k in row.items():
            used[column][k] += 1
            for other in columns:
                missing.pop((column, k, other, row[other]), None)
        rows.append(tuple([row[column] for column in columns]))
    return sorted(rows)


def _found(
    missing: dict[tuple[int, int, int, int], None], row: dict[int, int], column: int, k: int
) -> int:
    """How many pairs a number in a column adds to those of a row."""
    pairs = [(other, at, column, k) for other, at in row.items() if other < column]
    pairs += [(column, k, other, at) for other, at in row.items() if other > column]
    return sum([pair in missing for pair in pairs])


def _id(value: object) -> str:
    return str(getattr(value, "__name__", value))
