"""Few rows times a large operand that runs along the depth: at every level, in vectors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.rearrange import broadcast
from tests.differential.levels import check_levels, with_pairs
from tests.differential.test_products import operands, product
from tests.pairs import every_pair
from tests.schedule.lowering import traced, typed

SMALL = replace(with_pairs(), cores=2, l1=1 << 12, l2=1 << 13)
"""With small caches, and without registers for matrices."""

NUMBERS = [dt.float32, dt.float64, dt.bfloat16, dt.int8]


def widened(x: Any, y: Any) -> Any:
    if x.dtype is dt.int8:
        x, y = e.cast(x, dt.int32), e.cast(y, dt.int32)
    return product("nt", x, y)


def check(fn: Any, *types: Any, cpu: Any = SMALL) -> Lowered:
    graph = traced(fn, *types)
    rng = np.random.default_rng(7)
    inputs = [(rng.standard_normal(t.shape) * 9).astype(t.dtype.np) for t in types]
    return check_levels(graph, inputs, machine=cpu)


def reads_in_place(lowered: Lowered) -> bool:
    """Whether blocks have eight rows of the large operand, of which nothing is packed."""
    text = str(lowered.schedule)
    return bool(re.search(r"8 x \d+ accumulators in registers, right operand packed", text))


@every_pair(
    ("dtype", NUMBERS),
    ("rows", [7, 16, 21, 40]),
    ("width", [160, 195]),
    ("depth", [128, 192]),
    ("is_first", [True, False]),
)
def test_few_rows_are_packed(
    dtype: dt.DType, rows: int, width: int, depth: int, is_first: bool
) -> None:
    """Whichever operand they are; the last block of the large one begins so early that it is
    whole."""
    shape = (rows, width, depth) if is_first else (width, rows, depth)
    lowered = check(widened, *operands("nt", shape, dtype))
    assert reads_in_place(lowered)
    assert "label=\"pack\"" in str(lowered.schedule)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_what_follows(dtype: dt.DType) -> None:
    """What is read where the result is stored is read once, by the block whose rows those are."""

    def fn(x: Any, y: Any, bias: Any) -> Any:
        return e.tanh(e.add(e.cast(widened(x, y), dt.float32), broadcast(bias, (9, 195), (1,))))

    def after(x: Any, y: Any, rest: Any) -> Any:
        return e.add(e.cast(widened(x, y), dt.float32), rest)

    types = operands("nt", (9, 195, 128), dtype)
    for one, other in ((fn, typed(195)), (after, typed(9, 195))):
        lowered = check(one, *types, other)
        assert reads_in_place(lowered)
        # Of 195 rows the last three are those of a block that begins five earlier.
        assert ("- 8*m + min(8*m, 187)" in str(lowered.schedule)) is (one is after)


def test_a_result_may_lie_where_a_term_was() -> None:
    """Blocks that overlap do not add to it twice."""
    rng = np.random.default_rng(3)
    x, w, rest = [
        rng.standard_normal(s).astype(np.float32) for s in ((9, 128), (20195, 128), (9, 20195))
    ]
    fn = ts.jit(lambda x, w, rest: ts.matmul(x, w.T) + rest, donate_argnums=2)
    got = np.asarray(fn(x, w, ts.asarray(rest)))
    np.testing.assert_allclose(got, x @ w.T + rest, rtol=1e-4, atol=1e-4)


def test_lines_of_rows_are_fetched_ahead() -> None:
    """Those of the next block; or some lines further along, where rows displace each other."""
    of_the_next, further = r"320\*\(r0 % 8\)[^}]* \+ 2560\}", r"1024\*\(r0 % 8\) \+ 32\}"
    for depth, place in ((320, of_the_next), (1024, further)):
        lowered = check(widened, *operands("nt", (7, 24, depth), dt.float32))
        assert re.search(r"prefetch\(%\d+\) \{offset=[^}]*" + place, str(lowered.schedule))


@pytest.mark.parametrize(
    ("rows", "width", "depth", "dtype"),
    [
        (5, 96, 128, dt.float32),
        (3, 96, 128, dt.int8),
        (16, 24, 128, dt.float32),
        (140, 300, 128, dt.float32),
        (16, 96, 64, dt.float32),
        (16, 96, 136, dt.bfloat16),
    ],
)
def test_others_are_not(rows: int, width: int, depth: int, dtype: dt.DType) -> None:
    """Fewer or more rows, operands that near caches hold, sums of few, and places that are no whole
    line."""
    assert not reads_in_place(check(widened, *operands("nt", (rows, width, depth), dtype)))
