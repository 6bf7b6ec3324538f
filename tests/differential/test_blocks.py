"""Attention and what is like it, row block by row block, at every level."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import CPU_PASSES, Lowered
from tessera.dtypes import DType, bfloat16, float32
from tessera.graph.ops.blocks import Blocks
from tessera.graph.passes.block_rows import BlockRows
from tessera.ir.core import Func
from tessera.ir.walk import walk
from tessera.schedule import blocks as schedule_blocks
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.target.machine import machine
from tests.differential.levels import check_levels

Shape = tuple[int, ...]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few rows, of products of any size."""
    assert (BlockRows(),) == CPU_PASSES
    passes = (BlockRows(least=2, stored=1, rows=4, fewest_rows=2, points=2, columns=2),)
    monkeypatch.setattr(sys.modules[Lowered.__module__], "CPU_PASSES", passes)


def softmax(x: Any) -> Any:
    e = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
    return e / ts.sum(e, axis=-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ ts.swapaxes(k, -1, -2) * 0.5) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    places = ts.arange(q.shape[-2])
    scores = q @ ts.swapaxes(k, -1, -2) * 0.5
    return softmax(ts.where(places[:, None] >= places[None, :], scores, -1e9)) @ v


def added(q: Any, k: Any, v: Any) -> Any:
    """Causal by what is added, with longer keys."""
    rows, columns = q.shape[-2], k.shape[-2]
    places = ts.arange(rows)[:, None] + (columns - rows)
    mask = ts.where(ts.arange(columns)[None, :] <= places, 0.0, -ts.inf)
    return softmax(q @ ts.swapaxes(k, -1, -2) + mask) @ v


def tril(q: Any, k: Any, v: Any) -> Any:
    seen = ts.tril(ts.ones((q.shape[-2], k.shape[-2]), dtype=ts.bool))
    return ts.nn.softmax(ts.where(seen, q @ ts.swapaxes(k, -1, -2), -ts.inf)) @ v


def function(q: Any, k: Any, v: Any) -> Any:
    return ts.nn.attention(q, k, v, causal=True)


def strictly(q: Any, k: Any, v: Any) -> Any:
    """Only keys before the query, and the second mask of some windows."""
    rows, columns = ts.arange(q.shape[-2])[:, None], ts.arange(k.shape[-2])
    seen = ts.logical_and(ts.logical_not(columns >= rows + 1), columns > rows - 3)
    return softmax(ts.where(seen, q @ ts.swapaxes(k, -1, -2), -1e30)) @ v


def library(q: Any, k: Any, v: Any) -> Any:
    return ts.nn.softmax(q @ ts.swapaxes(k, -1, -2) * 0.5) @ v


def einsum(q: Any, k: Any, v: Any) -> Any:
    """[batch, length, heads, width]."""
    weights = softmax(ts.einsum("bqhd,bkhd->bhqk", q, k))
    return ts.einsum("bhqk,bkhd->bqhd", weights, v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Two heads of queries for each of the keys."""
    b, h, s, d = q.shape
    q = ts.reshape(q, (b, h // 2, 2, s, d))
    weights = softmax(ts.einsum("bhgqd,bhkd->bhgqk", q, k[:, ::2]))
    return ts.einsum("bhgqk,bhkd->bhgqd", weights, v[:, ::2])


def biased(q: Any, k: Any, v: Any) -> Any:
    """With what is added to the scores, an array of its own, and a number."""
    bias = q[:, :, :, :1] * ts.sum(k, axis=-1)[:, :, None, :]
    return softmax(q @ ts.swapaxes(k, -1, -2) + bias + q[0, 0, 0, 0]) @ v


def entropy(q: Any, k: Any, v: Any) -> Any:
    """With a sum over all of the weights, and all columns."""
    weights = softmax(q @ ts.swapaxes(k, -1, -2))
    found = weights @ v + ts.sum(weights * ts.log(weights))
    return found * ts.sum(weights, axis=-2)[..., :1, None]


def learned(q: Any, k: Any, v: Any) -> Any:
    """What is added to the scores is the same in all batches; its gradient is a sum over these."""
    bias = ts.sin(q[0] + 1) @ ts.swapaxes(k[0], -1, -2)
    return softmax(q @ ts.swapaxes(k, -1, -2) + bias) @ v


def across(q: Any, k: Any, v: Any) -> Any:
    """The rows of softmax are the columns of the product."""
    scores = k @ ts.swapaxes(q, -1, -2)
    e = ts.exp(scores - ts.max(scores, axis=-2, keepdims=True))
    weights = e / ts.sum(e, axis=-2, keepdims=True)
    return ts.swapaxes(weights, -1, -2) @ v


def trained(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient, of a loss that each row of the result has a part of."""


    def loss(q: Any, k: Any, v: Any) -> Any:
        return ts.sum(ts.sin(f(q, k, v)))

    return ts.value_and_grad(loss, argnums=(0, 1, 2))


def behind(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a loss for which rows meet: scores are computed twice."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        out = f(q, k, v)
        out = ts.tensordot(out, ts.ones((out.shape[-1], 3), dtype=out.dtype), axes=1)
        return ts.sum(ts.tanh(ts.reshape(out, (-1, 6))))

    return ts.grad(loss, argnums=(0, 1, 2))


def inputs(shape: Shape = (2, 2, 8, 3), dtype: DType = float32) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=shape).astype(dtype.np) for _ in range(3)]


def graph_of(f: Callable[..., Any], given: list[np.ndarray]) -> Func:
    return ts.make_graph(f)(*given)


def blocks(lowered: Lowered) -> list[Blocks]:
    return [op for op in walk(lowered.graph.body) if isinstance(op, Blocks)]


def check(f: Callable[..., Any], given: list[np.ndarray], count: int = 1, **options: Any) -> None:
    lowered = check_levels(graph_of(f, given), given, **options)
    assert len(blocks(lowered)) == count


FORMS = [attention, causal, library, einsum, grouped, biased, across]


@pytest.mark.parametrize("f", FORMS)
def test_forward(f: Callable[..., Any]) -> None:
    check(f, inputs((1, 6, 4, 3) if f is einsum else (2, 2, 6, 3)))


def test_exponentials_wait_where_weights_will_be() -> None:
    """Rows of a block are arrays whose first axis is the part, and others have one element."""
    given = inputs((1, 2, 12, 3))
    lowered = check_levels(graph_of(attention, given), given)
    (each,) = [op for op in walk(lowered.schedule.body) if isinstance(op, Each)]
    assert [op for op in walk(each.body) if isinstance(op, ops.Store) and op.keeps]


def test_what_waits_for_a_product_reads_what_is_stored() -> None:
    """Sums behind a product, as a gradient has, share no pass with what stores exponentials."""
    given = inputs((1, 2, 12, 3))
    lowered = check_levels(graph_of(trained(attention), given), given)
    (each,) = [op for op in walk(lowered.schedule.body) if isinstance(op, Each)]
    nests = [op for op in each.body.ops if isinstance(op, ops.Nest)]
    (first, *others) = [k for k, nest in enumerate(nests) if "fn=exp}" in str(nest)]
    assert not others
    products = [k for k, nest in enumerate(nests) if "schedule.contract" in str(nest)]
    sums = [k for k, nest in enumerate(nests) if "schedule.reduce" in str(nest)]
    assert any(first < k < sums[-1] for k in products)


@pytest.mark.parametrize("f", [attention, causal, grouped, across, learned])
def test_gradient_with_what_follows(f: Callable[..., Any]) -> None:
    check(trained(f), inputs((1, 4, 8, 3)))


@pytest.mark.parametrize("f", [attention, library, einsum])
def test_gradient_behind_others(f: Callable[..., Any]) -> None:
    check(behind(f), inputs((2, 4, 4, 3)), 2)


CAUSAL = [causal, added, tril, function, strictly]


@pytest.mark.parametrize("f", CAUSAL)
def test_what_is_masked_is_skipped(f: Callable[..., Any]) -> None:
    q, k, v = inputs((2, 2, 8, 3))
    if f is added:
        k, v = (np.concatenate([x, x[:, :, :4]], axis=2) for x in (k, v))
    for g in (f, *([trained(f), behind(f)] if f in (causal, function) else [])):
        lowered = check_levels(graph_of(g, [q, k, v]), [q, k, v])
        assert all(op.names for op in blocks(lowered))


@pytest.mark.parametrize("length", [1, 3])
def test_small_numbers_are_no_masks(length: int) -> None:
    """What they leave is read; so is what a sum reads without weights."""

    def finite(q: Any, k: Any, v: Any) -> Any:
        places = ts.arange(8)
        scores = ts.where(places[:, None] >= places, q @ ts.swapaxes(k, -1, -2), -5.0)
        return softmax(scores) @ v

    def total(q: Any, k: Any, v: Any) -> Any:
        places = ts.arange(8)
        scores = q @ ts.swapaxes(k, -1, -2)
        weights = softmax(ts.where(places[:, None] >= places, scores, -ts.inf))
        return weights @ v + ts.sum(scores, axis=-1, keepdims=True)

    def other(q: Any, k: Any, v: Any) -> Any:
        places = ts.arange(8)
        scores = ts.where(places[:, None] <= places, q @ ts.swapaxes(k, -1, -2), -ts.inf)
        return softmax(scores) @ v

    given = inputs((2, 1, 8, length))
    for f in (finite, total, other):
        lowered = check_levels(graph_of(f, given), given)
        (op,) = blocks(lowered)
        assert not op.names


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_machines(level: str) -> None:
    check(trained(attention), inputs((2, 1, 4, 3)), machine=machine(level))


@pytest.mark.parametrize("f", [causal, behind(attention)])
def test_bfloat16(f: Callable[..., Any]) -> None:
    check(f, inputs((2, 1, 8, 3), bfloat16), 1 if f is causal else 2)


def test_rows_that_are_masked_as_a_whole() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        seen = q[0, 0, :, 0] > 0
        return softmax(ts.where(seen[:, None], q @ ts.swapaxes(k, -1, -2), -ts.inf)) @ v

    given = inputs((2, 1, 8, 3))
    check(f, given)
    found = np.asarray(ts.jit(f)(*given))
    seen = given[0][0, 0, :, 0] > 0
    assert np.isnan(found[:, :, ~seen]).all()
    assert np.isfinite(found[:, :, seen]).all()


def returned(q: Any, k: Any, v: Any) -> Any:
    weights = softmax(q @ ts.swapaxes(k, -1, -2))
    return weights @ v, weights


def without_rows(q: Any, k: Any, v: Any) -> Any:
    return ts.tanh(q @ ts.swapaxes(k, -1, -2)) @ v


@pytest.mark.parametrize("f", [returned, without_rows])
def test_others_are_as_before(f: Callable[..., Any]) -> None:
    """Rows that somebody wants, or that are not reduced."""
    check(f, inputs((2, 1, 8, 3)), 0)


def test_rows_that_are_no_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs((2, 1, 7, 3))
    check(trained(attention), given)
    passes = (BlockRows(least=2, stored=1, rows=4, fewest_rows=2, points=2, block_bytes=0),)
    monkeypatch.setattr(sys.modules[Lowered.__module__], "CPU_PASSES", passes)
    assert not blocks(Lowered(graph_of(attention, given)))


def test_sums_over_all_rows() -> None:
    check(entropy, inputs((2, 2, 8, 3)))


def sharpened(q: Any, k: Any, v: Any) -> Any:
    """Rows that wait twice, so that they are kept whole."""
    weights = softmax(q @ ts.swapaxes(k, -1, -2))
    return (weights / ts.max(weights, axis=-1, keepdims=True)) @ v


def test_large_operands_are_not_read_for_each_block() -> None:
    passes = BlockRows()
    shapes = [(1024, 256), (16384, 256), (16384, 256)]
    graph = ts.make_graph(sharpened)(*[ts.ShapeDtypeStruct(s, ts.float32) for s in shapes])
    assert not [op for op in walk(passes.run(graph).body) if isinstance(op, Blocks)]


def test_layers_behind_a_norm_are_not_in_blocks() -> None:
    """Rows are reduced there, too, but each block would read all weights, and add to their sums."""

    def loss(x: Any, first: Any, second: Any, third: Any) -> Any:
        h = x @ first
        centred = h - ts.mean(h, axis=-1, keepdims=True)
        normal = centred / ts.sqrt(ts.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)
        return ts.sum(ts.tanh(normal @ second) @ third)

    rng = np.random.default_rng(5)
    for width, count in ((4, 0), (3, 1)):
        shapes = [(12, 2), (2, 4), (4, width), (width, 4)]
        given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        check(ts.grad(loss, argnums=(0, 1, 2, 3)), given, count)


def test_large_sums_have_fewer_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs((1, 1, 32, 3))
    sums = 2 * 32 * 3 * 4  # of keys and values
    for part_bytes, count in ((8 * sums, 8), (8 * sums - 1, 7), (2 * sums, 2), (sums, 1)):
        monkeypatch.setattr(schedule_blocks, "PARTIAL_BYTES", part_bytes)
        lowered = check_levels(graph_of(trained(attention), given), given)
        (each,) = [op for op in walk(lowered.schedule.body) if isinstance(op, Each)]
        assert each.part.extent == count


def test_blocks_pack_in_nests_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many panels of rows that lie across as are packed together elsewhere."""
    monkeypatch.undo()
    given = [np.zeros((1, 8, 512, 64), np.float32) for _ in range(3)]
    lowered = Lowered(graph_of(trained(attention), given), replace(machine("x86-64-v4"), cores=2))
    assert blocks(lowered)
    assert "panels together" not in str(lowered.schedule)


def test_why() -> None:
    given = inputs((2, 1, 8, 3))
    text = Lowered(graph_of(causal, given)).why()
    assert "computed in blocks, its rows stay in the cache: 2 x 2 blocks, without what" in text
    text = Lowered(graph_of(returned, given)).why()
    assert "not in blocks of rows, all of div f32[2, 1, 8, 8] is needed elsewhere" in text
    assert "not in blocks" not in Lowered(graph_of(without_rows, given)).why()


@pytest.mark.parametrize(("f", "count"), [(trained(causal), 1), (behind(attention), 2)])
def test_one_head_has_sums_for_each_part(f: Callable[..., Any], count: int) -> None:
    check(f, inputs((1, 1, 12, 3)), count)


def test_scores_are_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shape = (1, 4, 1024, 32)
    given = [np.zeros(shape, np.float32) for _ in range(3)]
    for f in (attention, trained(causal)):
        used = ts.jit(f).lower(*given).memory()
        assert used.arena < 4 * 1024 * 1024 * 4
