"""Rows that do not depend on their batch, on a simulated GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import NotYetError
from tessera.ir import order
from tessera.ir.order import Order, Tree, fixed_in_blocks
from tests.fake_gpu import fake_gpu
from tests.numerics.test_determinism import Array, bits, in_order, random_array

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
        for k, shape in enumerate([(140, 150), (24, 150) if turned else (150, 24)])
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


def test_products_of_few_rows_are_not_cut() -> None:
    """The depth would be cut into parts, so many as there is room for."""
    x, w = ts.zeros((1, 4096)), ts.zeros((4096, 64))
    f = lambda x, w: x @ w  # noqa: E731
    with_order = ts.deterministic(batch_invariant=True)(f)
    args = [on_gpu(x), on_gpu(w)]
    assert "parts of" in ts.jit(f).lower(*args).stage("schedule")
    text = ts.jit(with_order).lower(*args).stage("schedule")
    assert "parts of" not in text
    assert "order=order<sequence, 0, 1>, fused=true" in text


def test_running_sums_are_refused() -> None:
    f = ts.deterministic(batch_invariant=True)(lambda x: ts.cumulative_sum(x, axis=1))
    with pytest.raises(NotYetError) as caught:
        ts.jit(f)(on_gpu(random_array((3, 4))))
    text = str(caught.value)
    assert text.startswith("deterministic: <lambda> has a running sum on cuda:0")
    assert "rule: running sums of rows do not depend on their batch on CPUs only" in text
    assert "tessera/" not in text
