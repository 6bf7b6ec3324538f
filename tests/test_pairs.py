"""Parameters of which every two meet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.pairs import covering, each_with_one


@pytest.mark.parametrize(
    "counts", [[1], [3, 2], [9, 5, 3], [8, 4, 3], [2, 2, 2, 2], [4, 1, 3, 3], [6, 6, 2, 5, 3]]
)
def test_every_two_meet(counts: Sequence[int]) -> None:
    rows = covering(counts)
    for i, j in itertools.combinations(range(len(counts)), 2):
        wanted = set(itertools.product(range(counts[i]), range(counts[j])))
        assert {(row[i], row[j]) for row in rows} == wanted
    # Fewer are not possible than of the two longest; half as many again is near enough.
    least = sorted(counts)[-1] * (sorted(counts)[-2] if len(counts) > 1 else 1)
    assert len(rows) <= 1.5 * least


def test_each_value_is_there_once_or_more() -> None:
    marker = each_with_one(("a, b", [(1, 2), (3, 4), (5, 6)]), ("c", "xy")).mark
    assert marker.args == (["a", "b", "c"], [[1, 2, "x"], [3, 4, "y"], [5, 6, "x"]])
