"""Tiles that move between threads: conversions, reductions, scans, flips, transposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.config import config
from tessera.dtypes import dtype_of, int64
from tessera.ir.core import Value
from tessera.ir.scalar import scalar
from tessera.ir.walk import walk
from tessera.tile import ops as tile
from tessera.tile.lowering.emitter import Emitter
from tests.pairs import every_pair
from tests.target.simt.running import both, load, lowered, module, rows, store, view
from tests.tolerance import assert_close

DTYPES = ["float32", "float64", "float16", "int32", "int8", "int64", "uint8"]


def _data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 7, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


extents = st.integers(0, 6).map(lambda k: 1 << k)
shapes = st.lists(extents, min_size=1, max_size=3).map(tuple).filter(lambda s: np.prod(s) <= 4096)
warp_counts = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(shapes, warp_counts, st.sampled_from(DTYPES), st.data())
def test_reductions(
    shape: tuple[int, ...], warps: int, dtype: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    fn = data.draw(st.sampled_from(["add", "max", "min", "mul"]))
    x = _data(shape, dtype)
    kept = shape[:axis] + shape[axis + 1 :]

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        total = em.pure(tile.Reduce, value, scalar(fn), axis)
        store(em, view(em, memory[1], kept, rows(kept) if kept else []), total)

    found, expected = both(build, [x], [np.zeros(kept, dtype)], warps=warps)
    assert_close(found[0], expected[0], length=shape[axis], factor=4)


@settings(max_examples=60, deadline=None)
@given(shapes, warp_counts, st.sampled_from(DTYPES), st.booleans(), st.data())
def test_scans(
    shape: tuple[int, ...], warps: int, dtype: str, reverse: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    fn = data.draw(st.sampled_from(["add", "max", "min"]))
    x = _data(shape, dtype)

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        total = em.pure(tile.Scan, value, scalar(fn), axis, reverse)
        store(em, view(em, memory[1], shape, rows(shape)), total)

    found, expected = both(build, [x], [np.zeros(shape, dtype)], warps=warps)
    assert_close(found[0], expected[0], length=shape[axis], factor=4)


@settings(max_examples=60, deadline=None)
@given(shapes, warp_counts, st.sampled_from(["float32", "float64"]), st.booleans(), st.data())
def test_exact_scans(
    shape: tuple[int, ...], warps: int, dtype: str, reverse: bool, data: st.DataObject
) -> None:
    """The same bits however the tile lies, those of the interpreter."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    fn = data.draw(st.sampled_from(["add", "mul", "max"]))
    x = _data(shape, dtype)

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        total = em.pure(tile.Scan, value, scalar(fn), axis, reverse, True)
        store(em, view(em, memory[1], shape, rows(shape)), total)

    found, expected = both(build, [x], [np.zeros(shape, dtype)], warps=warps)
    assert found[0].tobytes() == expected[0].tobytes()


@settings(max_examples=40, deadline=None)
@given(shapes, warp_counts, st.sampled_from([*DTYPES, "bool"]), st.data())
def test_flips(shape: tuple[int, ...], warps: int, dtype: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    mask = data.draw(st.integers(0, shape[axis] - 1))
    x = _data(shape, dtype)

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        flipped = em.pure(tile.FlipBits, value, axis, mask)
        store(em, view(em, memory[1], shape, rows(shape)), flipped)

    found, expected = both(build, [x], [np.zeros(shape, dtype)], warps=warps)
    np.testing.assert_array_equal(found[0], expected[0])


@settings(max_examples=60, deadline=None)
@given(shapes, warp_counts, st.sampled_from([*DTYPES, "bool"]), st.data())
def test_transposes(
    shape: tuple[int, ...], warps: int, dtype: str, data: st.DataObject
) -> None:
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    x = _data(shape, dtype)
    turned = tuple(shape[p] for p in perm)

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        store(em, view(em, memory[1], turned, rows(turned)), em.transpose(value, perm))

    found, expected = both(build, [x], [np.zeros(turned, dtype)], warps=warps)
    np.testing.assert_array_equal(found[0], expected[0])


@settings(max_examples=60, deadline=None)
@given(shapes, warp_counts, st.sampled_from([*DTYPES, "bool"]), st.data())
def test_strided_views(
    shape: tuple[int, ...], warps: int, dtype: str, data: st.DataObject
) -> None:
    """Memory whose dims lie in any order, with gaps, and tiles that reach beyond its end."""
    order = data.draw(st.permutations(range(len(shape))))
    sizes = [data.draw(st.integers(1, n)) for n in shape]
    pad = data.draw(st.sampled_from([0, 0, 1, 4]))
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= sizes[dim] + pad
    x = _data((step,), dtype)
    check = tuple(k for k, n in enumerate(shape) if sizes[k] < n)

    def build(em: Emitter, memory: list[Value]) -> None:
        window = view(em, memory[0], sizes, strides)
        value = load(em, window, shape, check=check, fill=1)
        store(em, view(em, memory[1], shape, rows(shape)), value)
        store(em, view(em, memory[2], sizes, strides), value, check=check)

    outputs = [np.zeros(shape, dtype), np.zeros((step,), dtype)]
    found, expected = both(build, [x], outputs, warps=warps)
    np.testing.assert_array_equal(found[0], expected[0])
    written = expected[1] != np.zeros((step,), dtype)
    np.testing.assert_array_equal(found[1][written], expected[1][written])


@settings(max_examples=40, deadline=None)
@given(shapes, warp_counts, st.sampled_from(["max", "min"]), st.data())
def test_arg_reductions(
    shape: tuple[int, ...], warps: int, fn: str, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.round(_data(shape, "float32") * 2)
    x[np.random.default_rng(1).random(shape) < 0.05] = np.nan
    kept = shape[:axis] + shape[axis + 1 :]
    counter = data.draw(st.sampled_from(["int32", "int64"]))

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        index = em.cast(em.pure(tile.Iota, shape, axis), dtype_of(counter))
        best = em.add(tile.ArgReduce(value, index, scalar(fn), axis))
        for k in (0, 1):
            store(em, view(em, memory[1 + k], kept, rows(kept) if kept else []), best[k])

    outputs = [np.zeros(kept, np.float32), np.zeros(kept, counter)]
    found, expected = both(build, [x], outputs, warps=warps)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("shape", [(8, 64), (1, 1024), (32, 32), (2, 4096)])
def test_rows_share_what_is_reduced(shape: tuple[int, int], warps: int) -> None:
    """A softmax: the reduced value goes back to the whole row."""
    x = _data(shape, "float32")

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        top = em.reshape(em.pure(tile.Reduce, value, scalar("max"), 1), (shape[0], 1))
        e = em.map("exp", em.map("sub", value, em.broadcast(top, shape)))
        total = em.reshape(em.pure(tile.Reduce, e, scalar("add"), 1), (shape[0], 1))
        result = em.map("div", e, em.broadcast(total, shape))
        store(em, view(em, memory[1], shape, rows(shape)), result)

    found, expected = both(build, [x], [np.zeros(shape, np.float32)], warps=warps)
    assert_close(found[0], expected[0], factor=2)


DOTS = [
    ("float32", "float32", 1e-5),
    ("float16", "float32", 1e-3),
    ("float64", "float64", 1e-12),
    ("int8", "int32", 0),
    ("int32", "int32", 0),
]


BLOCKS = [((16, 16, 32), 1), ((32, 32, 32), 4), ((16, 64, 16), 2), ((64, 64, 16), 8)]


@every_pair(
    ("trans", ["nn", "nt", "tn", "tt"]),
    ("dtype, acc, tol", DOTS),
    ("shape, warps", BLOCKS),
)
def test_products(
    shape: tuple[int, int, int], warps: int, dtype: str, acc: str, tol: float, trans: str
) -> None:
    """A loop over steps of the depth, whose last one is ragged; operands in either order."""
    m, n, step = shape
    depth = step * 3 - 5
    a = _data((m, depth) if trans[0] == "n" else (depth, m), dtype)
    b = _data((depth, n) if trans[1] == "n" else (n, depth), dtype)
    c = np.zeros((m, n), acc)

    def build(em: Emitter, memory: list[Value]) -> None:
        left = [depth, 1] if trans[0] == "n" else [1, m]
        right = [n, 1] if trans[1] == "n" else [1, depth]
        lhs = view(em, memory[0], (m, depth), left)
        rhs = view(em, memory[1], (depth, n), right)
        zero = em.broadcast(em.const(0, dtype_of(acc)), (m, n))
        bounds = em.const(0, int64), em.const(depth, int64), em.const(step, int64)
        origin = em.const(0, int64)

        def body(k: Value, carried: list[Value]) -> list[Value]:
            x = em.add(tile.Load(lhs, (origin, k), (), (m, step), (1,)))[0]
            y = em.add(tile.Load(rhs, (k, origin), (), (step, n), (0,)))[0]
            return [em.add(tile.Dot(x, y, carried[0]))[0]]

        (total,) = em.loop(bounds, [zero], body)
        store(em, view(em, memory[2], (m, n), (n, 1)), total)

    found, expected = both(build, [a, b], [c], warps=warps)
    scale = np.abs(expected[0]).max() or 1
    assert np.abs(found[0].astype(float) - expected[0].astype(float)).max() <= tol * scale


def test_division_by_few() -> None:
    """Quotients are those of division, also where reciprocals overflow or do not exist."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((64, 128)) * 2.0 ** rng.integers(-80, 80, (64, 128))).astype("f4")
    y = (rng.standard_normal(64) * 2.0 ** rng.integers(-90, 90, 64)).astype("f4")
    y[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, 2e-38]
    x[8:12, :5] = [np.inf, -np.inf, np.nan, 0.0, 1e-44]
    shape = (64, 128)

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        by = load(em, view(em, memory[1], (64, 1), (1, 1)), (64, 1))
        quotient = em.map("div", value, em.broadcast(by, shape))
        store(em, view(em, memory[2], shape, rows(shape)), quotient)

    with np.errstate(all="ignore"):
        found, _ = both(build, [x, y], [np.zeros(shape, np.float32)])
        expected = x / y[:, None]
    same = (found[0] == expected) | (np.isnan(found[0]) & np.isnan(expected))
    assert same.all()


@pytest.mark.parametrize("fn", ["eq", "ne"])
@pytest.mark.parametrize("label", [0, 7, 1000, 1001, 2023, 2024, -1, 1001 + (1 << 32), -(1 << 63)])
def test_coordinates_that_are_compared_with_a_label(fn: str, label: int) -> None:
    """Also labels that are no coordinates, and would be if they had fewer bits."""

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], (), ()), ())
        across = em.pure(tile.Iota, (1024,), 0)
        start = em.const(1000, int64)
        at = em.map("add", em.broadcast(start, (1024,)), across)
        store(em, view(em, memory[1], (1024,), (1,)), em.map(fn, em.broadcast(value, (1024,)), at))

    found, expected = both(build, [np.array(label)], [np.zeros(1024, bool)])
    np.testing.assert_array_equal(found[0], expected[0])
    same = np.arange(1000, 2024) == label
    np.testing.assert_array_equal(found[0], same if fn == "eq" else ~same)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", [(16, 64), (1, 1024), (64, 8)])
def test_rows_that_are_looked_up(shape: tuple[int, int], dtype: str) -> None:
    """Offsets that count up along the last dim, from anywhere: gathered, scattered, added."""
    count, width = shape
    rng = np.random.default_rng(3)
    table = _data((97, width), dtype)
    ids = rng.permutation(97)[:count].astype(np.int64)

    def build(em: Emitter, memory: list[Value]) -> None:
        picked = load(em, view(em, memory[1], (count, 1), (1, 1)), (count, 1))
        starts = em.map("mul", picked, em.const(width, int64))
        across = em.pure(tile.Iota, (1, width), 1)
        at = em.map("add", em.broadcast(starts, shape), em.broadcast(across, shape))
        value = em.add(tile.Gather(memory[0], at, ()))[0]
        store(em, view(em, memory[2], shape, rows(shape)), value)
        em.add(tile.Scatter(memory[3], at, value, ()))
        if dtype != "int8":
            em.add(tile.Scatter(memory[4], at, value, (), scalar("add"), True))

    outputs = [np.zeros(shape, dtype), np.ones((97, width), dtype), np.ones((97, width), dtype)]
    found, expected = both(build, [table, ids], outputs)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_products_of_ten_bits(trans: str) -> None:
    """With the setting, products of float32 are the tensor cores'."""
    with config.update(matmul_precision="tf32"):
        test_products((64, 64, 32), 4, "float32", "float32", 2e-3, trans)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (4, 16), (2, 64), (32, 32)])
def test_short_transposes_stay_in_the_warp(shape: tuple[int, int], dtype: str) -> None:
    """Where few words move, shuffles cost less than a trip through shared memory."""
    x = _data(shape, dtype)
    turned = (shape[1], shape[0])

    def build(em: Emitter, memory: list[Value]) -> None:
        value = load(em, view(em, memory[0], shape, rows(shape)), shape)
        store(em, view(em, memory[1], turned, rows(turned)), em.transpose(value, (1, 0)))

    found, expected = both(build, [x], [np.zeros(turned, dtype)], warps=1)
    np.testing.assert_array_equal(found[0], expected[0])
    if shape == (8, 8):
        program = module(build, [x, np.zeros(turned, dtype)], (), 1)
        names = [op.name for op in walk(lowered(program, (), 1).body)]
        assert "target.shuffle_lanes" in names
        assert "target.shared" not in names
