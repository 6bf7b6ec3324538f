"""Large operands in another order than row-major: what is computed as they lie, and what is turned.

Expected values are NumPy's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import eager, eager_order
from tessera.eager_order import inverse, merged, order_of
from tessera.graph import host_copy
from tessera.graph.engine import installed
from tessera.ir.types import TensorType

RNG = np.random.default_rng(7)
SHAPE = (40, 60, 50)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (RNG.random(shape) * 100).astype(dtype)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what is compiled by an engine that knows nothing yet."""
    names: list[str] = []
    lower = eager.lower_graph

    def counted(graph: Any, *args: Any) -> Any:
        names.append(graph.name)
        return lower(graph, *args)

    monkeypatch.setattr(eager, "lower_graph", counted)
    engine = eager.Eager()
    monkeypatch.setattr(host_copy, "TURNERS", [engine.turn])
    with installed(engine):
        yield names


ORDERS = [*itertools.permutations(range(3))][1:]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_results_of_elementwise_functions_lie_as_operands_do(order: tuple[int, ...]) -> None:
    x, y = data(*SHAPE), data(*SHAPE)
    a, b = (ts.permute_dims(ts.asarray(v), order) for v in (x, y))
    x, y = x.transpose(order), y.transpose(order)
    for found, wanted in (
        (a + b, x + y), (2 * a, 2 * x), (a < b, x < y), (ts.sqrt(a), np.sqrt(x)),
        (ts.astype(a, ts.int32), x.astype(np.int32)),
        (ts.where(a < b, a, 1.5), np.where(x < y, x, np.float32(1.5))),
    ):  # fmt: skip
        np.testing.assert_array_equal(np.asarray(found), wanted)
        assert not found.storage.flags.c_contiguous
        assert order_of(found.storage) == order_of(a.storage) != None  # noqa: E711
    assert a.prepared is None


def test_operands_that_lie_differently() -> None:
    x, y = data(300, 400), data(400, 300)
    a, b = ts.asarray(x), ts.asarray(y)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(a + b.T), x + y.T)
        np.testing.assert_array_equal(np.asarray(b.T + a[0]), y.T + x[0])
        np.testing.assert_array_equal(np.asarray(a[::-1].T + b), x[::-1].T + y)
        np.testing.assert_array_equal(np.asarray(ts.flip(b.T) + a), np.flip(y.T) + x)


REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (ts.sum, np.sum), "max": (ts.max, np.max), "prod": (ts.prod, np.prod),
    "any": (ts.any, np.any), "argmax": (ts.argmax, np.argmax),
    "cumsum": (ts.cumulative_sum, np.cumsum), "mean": (ts.mean, np.mean), "std": (ts.std, np.std),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_reductions_along_axes_as_they_lie(name: str, order: tuple[int, ...]) -> None:
    x = 1 + data(*SHAPE) / 1e5 if name == "prod" else data(*SHAPE)
    a, x = ts.permute_dims(ts.asarray(x), order), x.transpose(order)
    ours, numpys = REDUCTIONS[name]
    several = [] if name in ("argmax", "cumsum") else [(0, 1), (0, 2), (1, 2), None]
    for axis in (0, 1, 2, *several):
        found = np.asarray(ours(a, axis=axis))
        wanted = numpys(x.astype(np.float64), axis=axis)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-4)
    if name not in ("mean", "std"):
        assert a.prepared is None


def test_ties_are_the_first_along_the_axis() -> None:
    x = RNG.integers(0, 3, (300, 400)).astype(np.int32)
    a = ts.asarray(x).T
    for axis in (0, 1):
        np.testing.assert_array_equal(np.asarray(ts.argmax(a, axis=axis)), x.T.argmax(axis))
        np.testing.assert_array_equal(np.asarray(ts.argmin(a, axis=axis)), x.T.argmin(axis))


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64, np.complex64, bool])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_copies(made: list[str], order: tuple[int, ...], dtype: Any) -> None:
    """A compiled transpose makes them from the second one on."""
    for k in range(3):
        x = data(*SHAPE, dtype=dtype)
        a = ts.permute_dims(ts.asarray(x), order)
        assert not made or k > 1
        found = a.contiguous
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, x.transpose(order))
    assert made == ["transpose"]


def test_what_is_left_to_numpy(made: list[str]) -> None:
    """A short row in memory, small arrays, wide elements, and what does not lie close."""
    samples = [
        data(40000, 3).T, data(200, 200).T, data(300, 400, dtype=np.complex128).T,
        data(400, 600)[::2].T, data(400, 600)[:, ::-1].T,
        np.broadcast_to(data(400, 1), (400, 600)).T,
    ]  # fmt: skip
    for x in samples:
        for _ in range(3):
            np.testing.assert_array_equal(host_copy.host_copy(x), x)
    assert not made


@given(st.permutations(range(4)), st.lists(st.sampled_from([1, 2, 3, 50]), min_size=4, max_size=4))
def test_dims_that_stay_together_are_one(order: list[int], shape: list[int]) -> None:
    x = np.arange(np.prod(shape)).reshape([shape[k] for k in order])
    x = x.transpose(inverse(order))
    base, perm = merged(x, order)
    assert base.flags.c_contiguous
    assert base.base is not None
    np.testing.assert_array_equal(base.transpose(perm).reshape(x.shape), x)
    assert all([b != a + 1 for a, b in itertools.pairwise(perm)])


@pytest.mark.parametrize("shape", [(1, 300, 1, 400), (300, 1, 400), (300, 400, 1)])
def test_orders_with_dims_of_one(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_order, "MOST_COPIED", 1000)
    for order in itertools.permutations(range(len(shape))):
        x = data(*shape).transpose(order)
        found = order_of(x)
        assert (found is None) == x.flags.c_contiguous
        if found is not None:
            assert x.transpose(found).flags.c_contiguous


def test_functions_and_gradients_of_turned_arrays() -> None:
    x = data(300, 400)
    a = ts.asarray(x).T
    f = ts.jit(lambda v: ts.sum(ts.sin(v) * v, axis=0))
    for _ in range(3):
        np.testing.assert_allclose(f(a), (np.sin(x.T) * x.T).sum(0), rtol=1e-3, atol=1e-2)
        found = ts.grad(lambda v: ts.sum(v**3))(a)
        np.testing.assert_allclose(np.asarray(found), 3 * x.T**2, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(a @ a.T), x.T @ x, rtol=1e-4)


def test_weak_dtypes_stay_weak() -> None:
    x = data(300, 400)
    weak = ts.Array(x.T, TensorType((400, 300), ts.float32, weak=True))
    row = ts.Array(np.ascontiguousarray(x.T), weak.type)
    for fn in (ts.exp, lambda v: v + v, lambda v: ts.sum(v, axis=0), lambda v: v < 3):
        assert fn(weak).weak == fn(row).weak
        assert fn(weak).dtype == fn(row).dtype
        np.testing.assert_allclose(np.asarray(fn(weak)), np.asarray(fn(row)), rtol=1e-4)
