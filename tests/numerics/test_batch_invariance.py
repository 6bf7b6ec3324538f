"""Rows that do not depend on their batch, on a simulated GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ir import order
from tessera.ir.order import Order, Tree, fixed_in_blocks, fixed_product, fixed_running, neighbours
from tessera.schedule import split_products
from tests.fake_gpu import fake_gpu
from tests.numerics.test_determinism import Array, bits, fused, in_order, random_array
from tests.pairs import each_with_one

pytestmark = pytest.mark.unchecked


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Generator[None]:
    with fake_gpu():
        yield


def on_gpu(x: Any) -> Any:
    return ts.device_put(x, "cuda:0")


def check(
    f: Callable[..., Any], x: Any, *rest: Any, counts: tuple[int, ...] = (1, 3)
) -> Array:
    """The first rows alone have the bits that they have among all."""
    run = ts.jit(ts.deterministic(batch_invariant=True)(f))
    given = [on_gpu(a) for a in rest]
    whole = np.asarray(run(on_gpu(x), *given))
    for count in counts:
        alone = np.asarray(run(on_gpu(x[:count]), *given))
        assert bits(alone) == bits(whole[:count]), count
    return whole


@pytest.mark.parametrize("count", [5, 300, 1037, 5000])
@pytest.mark.parametrize("axis", [1, 2])
def test_sums_are_in_the_order_that_they_state(count: int, axis: int) -> None:
    x = random_array((9, count, 3) if axis == 1 else (9, 2, count))
    found = check(lambda x: ts.sum(x, axis=axis), x)
    wanted = in_order(np.moveaxis(x, axis, -1), fixed_in_blocks(x.shape, (axis,)), np.add)
    assert bits(found) == bits(wanted)


def test_long_sums_have_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LANES", 16)
    x = random_array((5, 700))
    found = check(lambda x: ts.sum(x, axis=1), x)
    assert fixed_in_blocks((5, 700), (1,)) == Order(Tree.HALVES, 256, 16)
    assert bits(found) == bits(in_order(x, Order(Tree.HALVES, 256, 16), np.add))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ts.softmax(x, axis=-1),
        lambda x: (x - ts.mean(x, axis=-1, keepdims=True)) / ts.std(x, axis=-1, keepdims=True),
        lambda x: x / ts.sqrt(ts.mean(x * x, axis=-1, keepdims=True)),
        lambda x: ts.nn.attention(
            ts.reshape(x, (-1, 1, 13, 10)), *[ts.reshape(x, (-1, 1, 13, 10))] * 2, causal=True
        ),
        lambda x: ts.grad(lambda x: ts.sum(ts.logsumexp(x, axis=-1)))(x),
    ],
    ids=["softmax", "layernorm", "rmsnorm", "attention", "gradient"],
)
def test_rows(f: Callable[[Any], Any]) -> None:
    found = check(f, random_array((70, 130)))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("turned", [False, True])
def test_products(dtype: str, turned: bool) -> None:
    x, w = [
        ts.astype(ts.asarray(random_array(shape, seed=k)), getattr(ts, dtype))
        for k, shape in enumerate([(70, 150), (24, 150) if turned else (150, 24)])
    ]
    found = check(lambda x, w: x @ (w.T if turned else w), x, w, counts=(1, 17))
    wanted = np.asarray(x).astype("f8") @ np.asarray(w.T if turned else w).astype("f8")
    limit = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 0.1}[dtype]
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=limit, atol=20 * limit)


def test_products_with_vectors_and_batches() -> None:
    check(lambda x, w: x @ w, random_array((40, 70)), random_array((70,)))
    check(lambda x, w: ts.tanh(x @ w), random_array((9, 5, 20)), random_array((9, 20, 1))[:1])
    x = random_array((70,))
    dot = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, y: x @ y))
    assert abs(float(dot(on_gpu(x), on_gpu(x))) - float(x @ x)) < 1e-3


def test_products_of_narrow_numbers_use_one_instruction() -> None:
    w = on_gpu(ts.zeros((200, 24), dtype=ts.bfloat16))
    f = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, w: x @ w))
    for rows in (1, 2, 17, 64, 1000, 20000):
        lowered = f.lower(ts.ShapeDtypeStruct((rows, 200), ts.bfloat16), w, machine="sm_90a")
        assert set(re.findall(r"mma\.\S+", lowered.ptx)) == {
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        }


def test_deep_products_are_cut_into_the_parts_that_they_state() -> None:
    """The parts of a few rows are computed side by side, those of many one after the
    other."""
    w = on_gpu(ts.zeros((4096, 4096)))
    f = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, w: x @ w))
    for rows, side_by_side in ((1, True), (8, True), (4096, False)):
        lowered = f.lower(on_gpu(ts.zeros((rows, 4096))), w)
        assert "{contract=[[1], [0]], order=order<sequence, 512, 1>}" in lowered.stage("graph")
        text = lowered.stage("schedule")
        assert ("in 8 parts of 512 products" in text) == side_by_side
        assert ("order=order<sequence, 512, 1>, fused=true" in text) != side_by_side
        assert "cp.async.cg" in lowered.ptx


@pytest.mark.parametrize(("depth", "part"), [(80, 0), (192, 64), (320, 64), (200, 64), (224, 32)])
def test_classes_of_products(monkeypatch: pytest.MonkeyPatch, depth: int, part: int) -> None:
    """Parts divide the depth where some of about the right size do."""
    monkeypatch.setattr(order, "DEEP", 128)
    assert fixed_product(depth, 1) == Order(Tree.SEQUENCE, part, 1)
    assert fixed_product(2 * depth, 16) == Order(Tree.BLOCKS, 2 * part, 16)


@each_with_one(
    ("dtype", ["float32", "bfloat16", "float64"]),
    ("depth, turned", [(320, False), (256, True), (200, False)]),
)
def test_parts_of_products_side_by_side_or_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, dtype: str, depth: int, turned: bool
) -> None:
    monkeypatch.setattr(order, "DEEP", 128)
    x, w = random_array((70, depth)), random_array((24, depth) if turned else (depth, 24), seed=1)
    x, w = [ts.astype(ts.asarray(a), getattr(ts, dtype)) for a in (x, w)]

    def product(x: Any, w: Any) -> Any:
        return x @ (w.T if turned else w)

    found: set[bytes] = set()
    for gain in (0.0, float("inf")):
        monkeypatch.setattr(split_products, "GAIN", gain)
        whole = check(product, x, w, counts=(1, 2, 64))
        found.add(bits(whole))
        text = ts.jit(ts.deterministic(batch_invariant=True)(product)).lower(on_gpu(x), on_gpu(w))
        assert ("parts of" in text.stage("schedule")) == (gain > 0)
    assert len(found) == 1
    if dtype == "float32":
        matrix = np.asarray(w).T if turned else np.asarray(w)
        parts = [slice(k, k + 64) for k in range(0, depth, 64)]
        sums = [fused(np.asarray(x)[:, k], matrix[k]) for k in parts]
        total = sums[0]
        for one in sums[1:]:
            total = total + one
        assert bits(whole) == bits(total)


def running(x: Array, stated: Order, reverse: bool = False) -> Array:
    """Running sums along the last axis in the order that is stated, without parts."""
    size = x.shape[-1]
    width = min(stated.width, 1 << (size - 1).bit_length())
    blocks = -(-size // width)
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], blocks * width - size), x.dtype)], -1)
    found, carry = np.empty_like(padded), None
    for k in reversed(range(blocks)) if reverse else range(blocks):
        block = np.moveaxis(padded[..., k * width : (k + 1) * width], -1, 0)
        step = -1 if reverse else 1
        sums = np.stack(neighbours(np.add, [*block[::step]], np.float32(0))[::step])
        total = in_order(np.moveaxis(block, 0, -1), Order(Tree.HALVES, 0, width), np.add)
        if carry is not None:
            sums, total = carry + sums, carry + total
        found[..., k * width : (k + 1) * width] = np.moveaxis(sums, 0, -1)
        carry = total
    return found[..., :size]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((70, 130), 1), ((7, 1000), 1), ((3, 130, 5), 1),
        ((3, 4), 1), ((5, 4100), 1), ((2, 70, 40), 1),
    ],
)
def test_running_sums_are_in_the_order_that_they_state(
    shape: tuple[int, ...], axis: int, reverse: bool
) -> None:
    x = random_array(shape)
    found = check(lambda x: ts.cumsum(x, axis, reverse=reverse), x, counts=(1, 2))
    stated = fixed_running(shape, axis)
    assert stated.width == min(1 << (shape[axis] - 1).bit_length(), 64 if len(shape) > 2 else 4096)
    wanted = running(np.moveaxis(x, axis, -1), stated, reverse)
    assert bits(found) == bits(np.moveaxis(wanted, -1, axis))


@pytest.mark.parametrize("reverse", [False, True])
def test_long_running_sums_have_parts(monkeypatch: pytest.MonkeyPatch, reverse: bool) -> None:
    """Whether few rows or many: each part goes on from the sums of the parts before it."""
    monkeypatch.setattr(order, "LANES", 16)
    x = random_array((5, 900))
    stated = fixed_running((5, 900), 1)
    assert stated == Order(Tree.NEIGHBOURS, 256, 16)
    f = lambda x: ts.cumsum(ts.softmax(x, axis=-1), 1, reverse=reverse) - 1  # noqa: E731
    found = check(f, x, counts=(1, 2))
    terms = np.exp(x.astype("f8"))
    terms /= terms.sum(1, keepdims=True)
    sums = np.cumsum(terms[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(terms, 1)
    np.testing.assert_allclose(found, sums - 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_running_sums_of_other_dtypes(dtype: str) -> None:
    x = ts.astype(ts.asarray(random_array((6, 300))), getattr(ts, dtype))
    found = check(lambda x: ts.cumulative_sum(x, axis=1), x)
    wide = "c16" if dtype == "complex64" else "f8"
    wanted = np.cumsum(np.asarray(x).astype(wide), axis=1)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14, "complex64": 1e-6}[dtype]
    assert np.abs(found.astype(wide) - wanted).max() <= 40 * limit


def test_other_running_combinations_and_gradients() -> None:
    x = random_array((5, 70))
    products = check(lambda x: ts.cumulative_prod(1 + x / 8, axis=1), x)
    np.testing.assert_allclose(products, np.cumprod(1 + x.astype("f8") / 8, 1), rtol=1e-5)
    found = check(lambda x: ts.logcumsumexp(x, axis=1), x)
    wanted = np.logaddexp.accumulate(x.astype("f8"), axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    loss = lambda x: ts.sum(ts.cumulative_sum(x, axis=1) ** 2)  # noqa: E731
    check(lambda x: ts.grad(loss)(x), x)
    z = (x + 1j * random_array((5, 70), seed=1)).astype(np.complex64)
    found = check(lambda z: ts.cumulative_prod(z, axis=1), z)
    np.testing.assert_allclose(found, np.cumprod(z.astype("c16"), 1), rtol=1e-4)
