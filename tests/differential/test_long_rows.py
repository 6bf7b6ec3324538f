"""Attention over rows that are gone over block of columns by block of columns, at every level."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import bfloat16, float16, float64
from tessera.graph.ops.blocks import Blocks
from tessera.graph.passes.block_rows import BlockRows
from tessera.ir.core import Func
from tessera.ir.walk import walk
from tessera.schedule.block_ops import Each
from tests.differential.levels import check_levels
from tests.differential.test_blocks import (
    attention,
    behind,
    biased,
    blocks,
    causal,
    einsum,
    function,
    graph_of,
    grouped,
    inputs,
    library,
    returned,
    sharpened,
    softmax,
    strictly,
    trained,
)
from tests.tolerance import assert_close

SMALL = BlockRows(
    least=2, stored=1, rows=4, fewest_rows=2, points=2, columns=2,
    row_bytes=1, width=4, sum_width=2, least_width=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few rows and columns, of products of any size."""
    monkeypatch.setattr(sys.modules[Lowered.__module__], "CPU_PASSES", (SMALL,))


def states(op: Blocks) -> int:
    return len(op.firsts)


def check(f: Callable[..., Any], given: list[np.ndarray], *counts: int, **options: Any) -> Lowered:
    """Checks a function at every level; its blocks have so many states each."""
    lowered = check_levels(graph_of(f, given), given, **options)
    assert sorted(map(states, blocks(lowered)), reverse=True) == list(counts)
    return lowered


def unguarded(q: Any, k: Any, v: Any) -> Any:
    e = ts.exp(q @ ts.swapaxes(k, -1, -2))
    return (e @ v) / ts.sum(e, axis=-1, keepdims=True)


def dropped(q: Any, k: Any, v: Any) -> Any:
    """Weights some of which are left out, and others made larger."""
    scores = q @ ts.swapaxes(k, -1, -2)
    e = ts.exp(scores - ts.max(scores, axis=-1, keepdims=True))
    weights = e * (1 / ts.sum(e, axis=-1, keepdims=True))
    return ts.where(scores > -0.3, weights * 1.5, 0.0) @ v


def left(q: Any, k: Any, v: Any) -> Any:
    """Windows: the first blocks of columns are masked for the last rows."""
    rows, columns = ts.arange(q.shape[-2])[:, None], ts.arange(k.shape[-2])
    seen = ts.abs(rows - columns) <= 2
    return ts.nn.softmax(ts.where(seen, q @ ts.swapaxes(k, -1, -2), -ts.inf)) @ v


FORMS = [attention, causal, library, einsum, grouped, biased, dropped, left, strictly]


@pytest.mark.parametrize("f", FORMS)
def test_forward(f: Callable[..., Any]) -> None:
    shape = (1, 8, 4, 3) if f is einsum else (2, 2, 8, 3)
    check(f, inputs(shape), 3)


def test_no_largest_element() -> None:
    check(unguarded, inputs((2, 2, 8, 3)), 0)
    check(trained(unguarded), inputs((1, 2, 8, 3)), 0, 0)


@pytest.mark.parametrize("f", [attention, causal, library, grouped, dropped, left, function])
def test_gradient(f: Callable[..., Any]) -> None:
    check(trained(f), inputs((1, 4, 8, 3)), 3, 0)


@pytest.mark.parametrize("f", [attention, library])
def test_gradient_behind_others(f: Callable[..., Any]) -> None:
    check(behind(f), inputs((1, 4, 8, 3)), 3, 0)


@pytest.mark.parametrize("f", [trained(attention), trained(causal), behind(library)])
def test_one_head_has_sums_for_each_part(f: Callable[..., Any]) -> None:
    lowered = check(f, inputs((1, 1, 16, 3)), 3, 0)
    eaches = [op for op in walk(lowered.schedule.body) if isinstance(op, Each)]
    assert [(len(op.free), op.ordered) for op in eaches] == [(1, 1), (1, 1)]
    assert all(op.part.extent == 4 for op in eaches)


@pytest.mark.parametrize("f", [causal, function, strictly])
def test_blocks_that_a_mask_leaves_out_are_not_gone_over(f: Callable[..., Any]) -> None:
    q, k, v = inputs((2, 2, 8, 3))
    for g in (f, trained(f)):
        lowered = check(g, [q, k, v], 3, *([0] if g is not f else []))
        first = blocks(lowered)[0]
        assert str(first.steps) == "block2 + 1"
        assert len(list(first.points())) == 2 * 2 * 3
        eaches = [op for op in walk(lowered.schedule.body) if isinstance(op, Each)]
        assert all(op.steps is not None for op in eaches)
    assert blocks(check(attention, [q, k, v], 3))[0].steps is None


def guarded(scores: Any) -> Any:
    """Where nothing is seen, zeros instead of weights."""
    largest = ts.max(scores, axis=-1, keepdims=True)
    e = ts.exp(scores - ts.where(largest == -ts.inf, 0.0, largest))
    total = ts.sum(e, axis=-1, keepdims=True)
    return e / ts.where(total == 0, 1.0, total)


@pytest.mark.parametrize("weigh", [softmax, ts.nn.softmax, guarded])
def test_rows_that_are_masked_are_what_they_are_elsewhere(weigh: Callable[..., Any]) -> None:
    """NaN, infinities, and rows of which nothing is seen, or nothing in some block."""

    def seen(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = q @ ts.swapaxes(k, -1, -2) + bias
        return weigh(scores) @ v

    q, k, v = inputs((1, 2, 8, 3))
    bias = np.zeros((8, 8), np.float32)
    bias[0] = -np.inf
    bias[1, :4] = -np.inf
    bias[2, 4:] = -np.inf
    bias[3, 5] = np.inf
    bias[4, 2] = np.nan
    bias[5, :] = np.arange(8) * 60 - 300
    bias[6, 1::2] = -np.inf
    check(seen, [q, k, v, bias], 3)
    found = np.asarray(ts.jit(seen)(q, k, v, bias))
    lost = [row for row in range(8) if np.isnan(found[0, :, row]).all()]
    assert lost == ([3, 4] if weigh is guarded else [0, 3, 4])
    assert np.isfinite(found[0, :, [1, 2, 5, 6, 7]]).all()


@pytest.mark.parametrize("f", [causal, trained(attention)])
def test_bfloat16(f: Callable[..., Any]) -> None:
    lowered = check_levels(graph_of(f, given := inputs((2, 1, 8, 3), bfloat16)), given)
    assert blocks(lowered)


@pytest.mark.parametrize("f", [attention, library])
def test_sums_of_exponentials_may_be_large(f: Callable[..., Any]) -> None:
    """Sums of what is multiplied with weights are larger than the largest float16."""
    q, k, v = inputs((2, 1, 8, 3), float16)
    given = [q * 0, k, v * 0 + 1e4]
    assert blocks(check_levels(graph_of(f, given), given))
    np.testing.assert_allclose(np.asarray(ts.jit(f)(*given)), 1e4, rtol=1e-3)


@pytest.mark.parametrize("g", [ts.exp, ts.square, softmax])
def test_gradients_that_are_exponentials(g: Callable[..., Any]) -> None:
    """What the loss is of looks like a row itself."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return ts.sum(ts.sin(g(attention(q, k, v)))) + ts.sum(ts.exp(attention(q, k, v)))

    check(ts.grad(loss, argnums=(0, 1, 2)), inputs((1, 2, 8, 3)), 3, 0)


def test_float64() -> None:
    check(trained(causal), inputs((2, 1, 8, 3), float64), 3, 0)


def test_others_keep_whole_rows() -> None:
    """Weights that are needed as a whole, twice, or of which nothing is a product."""

    def loss(h: Any, w: Any, t: Any) -> Any:
        logits = h @ w
        e = ts.exp(logits - ts.max(logits, axis=-1, keepdims=True))
        return ts.sum(ts.log(ts.sum(e, axis=-1))) - ts.sum(logits * t)

    assert not blocks(check_levels(graph_of(returned, g := inputs((2, 1, 8, 3))), g))
    assert not any(map(states, blocks(check_levels(graph_of(sharpened, g), g))))
    given = [x.astype(np.float32) for x in np.random.default_rng(0).normal(size=(3, 8, 8))]
    lowered = check_levels(graph_of(ts.grad(loss, argnums=(0, 1)), given), given)
    assert not any(map(states, blocks(lowered)))


def test_lengths_without_divisors_keep_whole_rows() -> None:
    q, k, v = inputs((2, 1, 8, 3))
    k, v = (np.ascontiguousarray(x[:, :, :7]) for x in (k, v))
    lowered = check_levels(graph_of(attention, [q, k, v]), [q, k, v])
    assert [states(op) for op in blocks(lowered)] == [0]


def scores_of(length: int, f: Callable[..., Any] = attention) -> tuple[Func, BlockRows]:
    shape = ts.ShapeDtypeStruct((1, 2, length, 64), ts.float32)
    return ts.make_graph(f)(shape, shape, shape), BlockRows()


def test_lengths() -> None:
    """Rows that fit the second cache are whole; longer ones are not, however long they are."""
    lengths = {attention: (1024, 2048), causal: (2048, 4096)}
    for f, (short, long) in lengths.items():
        for length, count in ((short, 0), (long, 3), (65536, 3), (1 << 20, 3)):
            graph, passes = scores_of(length, f)
            (op,) = [op for op in walk(passes.run(graph).body) if isinstance(op, Blocks)]
            assert states(op) == count


def test_memory_does_not_grow_with_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for f in (attention, trained(causal)):
        arenas: list[int] = []
        for length in (4096, 16384):
            shape = ts.ShapeDtypeStruct((1, 2, length, 64), ts.float32)
            arenas.append(ts.jit(f).lower(shape, shape, shape).memory().arena)
        assert arenas[1] < 4.5 * arenas[0]
        assert arenas[1] < 2 * 16384 * 16384 // 2


@pytest.mark.parametrize("f", [attention, causal])
def test_against_float64(monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any]) -> None:
    """As long as it is used for, value and gradient, with any number of threads the same bits."""
    monkeypatch.undo()
    rng = np.random.default_rng(3)
    given = [rng.normal(size=(1, 1, 2304, 32)) for _ in range(3)]
    single = [x.astype(np.float32) for x in given]
    g = ts.jit(trained(f))
    assert any(map(states, blocks(g.lower(*single))))  # type: ignore[arg-type]
    with ts.config.update(threads=1):
        one = ts.pytree.leaves(g(*single))
    found = ts.pytree.leaves(g(*single))
    for a, b, c in zip(found, one, ts.pytree.leaves(ts.jit(trained(f))(*given)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert_close(np.asarray(a), np.asarray(c).astype(np.float32), length=2304)
