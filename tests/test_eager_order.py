"""Large operands in another order than row-major: what is computed as they lie, and what is turned.

Expected values are NumPy's.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import eager
from tessera.eager_order import inverse, merged, order_of, spaces_of
from tessera.graph import host_copy
from tessera.graph.engine import installed
from tessera.ir.types import TensorType
from tests.counting import names_of_compiled

RNG = np.random.default_rng(7)
SHAPE = (40, 60, 50)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (RNG.random(shape) * 100).astype(dtype)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what is compiled by an engine that knows nothing yet."""
    names = names_of_compiled(monkeypatch)
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


def test_copies_of_parts(made: list[str]) -> None:
    for x in (data(400, 600)[::2], data(400, 600)[:, ::-1], data(9, 100, 400)[:, 1:, ::3]):
        for _ in range(3):
            np.testing.assert_array_equal(host_copy.host_copy(x), x)
            np.testing.assert_array_equal(host_copy.host_copy(x.T), x.T)
    assert len(made) == 6


def test_products_of_turned_operands() -> None:
    x, y = data(6, 100, 120) / 100, data(6, 120, 110) / 100
    for k, (p, q) in enumerate(itertools.product(ORDERS, ORDERS)):
        a = ts.permute_dims(ts.asarray(x.transpose(p).copy()), inverse(p))
        b = ts.permute_dims(ts.asarray(y.transpose(q).copy()), inverse(q))
        np.testing.assert_array_equal(np.asarray(a), x)
        rule = ("bij,bjk->bik", "bij,bjk->ik", "bij,cjk->bick")[k % 3]
        wanted = np.einsum(rule, x, y, optimize=True)
        np.testing.assert_allclose(np.asarray(ts.einsum(rule, a, b)), wanted, rtol=1e-4)


def test_other_shapes_of_turned_arrays(made: list[str]) -> None:
    x = data(40, 50, 60)
    for shape in ((50, 2400), (2000, 60), (-1,), (50, 40, 6, 10), (1, 50, 40, 60)):
        for _ in range(3):
            a = ts.permute_dims(ts.asarray(x), (1, 0, 2))
            found = ts.reshape(a, shape)
            np.testing.assert_array_equal(np.asarray(found), x.transpose(1, 0, 2).reshape(shape))
    assert made == ["transpose"]
    assert np.shares_memory(ts.reshape(a, (50, 40, 6, 10)).storage, a.storage)


def test_what_is_left_to_numpy(made: list[str]) -> None:
    """A short row in memory, small arrays, wide elements, and what is far apart or repeated."""
    samples = [
        data(40000, 3).T, data(200, 200).T, data(300, 400, dtype=np.complex128).T,
        data(400, 1600)[:, ::8], np.broadcast_to(data(400, 1), (400, 600)).T,
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
def test_orders_with_dims_of_one(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):
        x = data(*shape).transpose(order)
        found = order_of(x)
        assert (found is None) == x.flags.c_contiguous
        if found is not None:
            assert x.transpose(found).flags.c_contiguous


Index = tuple[Any, ...]

PARTS: dict[str, Index] = {
    "columns": (..., slice(3, 45)), "rows": (slice(5, 300),),
    "every second row": (slice(None, None, 2),),
    "every second column": (..., slice(None, None, 2)), "every third": (..., slice(1, None, 3)),
    "inside": (slice(1, -1), slice(1, -1), slice(1, -1)), "one place": (slice(None), 7),
    "backwards": (slice(None, None, -1),), "columns backwards": (..., slice(None, None, -1)),
    "every second backwards": (slice(None, None, -2), ..., slice(40, 2, -2)),
    "all backwards": (slice(None, None, -1),) * 3, "a column": (..., 4),
    "one row": (slice(3, 4), slice(None), slice(5, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_parts_of_larger_arrays(name: str, order: tuple[int, ...]) -> None:
    """They are read as they are, in the order of dims and in others."""
    # All parts have more elements than are copied, and most of them several programs.
    shape = (1700, 40, 50) if name in ("a column", "one place") else (80, 40, 50)
    shape = (4, 1600, 50) if name == "one row" else (180, 40, 50) if "every" in name else shape
    x, y = data(*shape), data(*shape)
    a, b = (ts.asarray(v)[PARTS[name]] for v in (x, y))
    x, y = x[PARTS[name]], y[PARTS[name]]
    if len(a.shape) == 3:
        a, b = (ts.permute_dims(v, order) for v in (a, b))
        x, y = x.transpose(order), y.transpose(order)
    row = data(x.shape[-1])
    rest = tuple(range(1, a.ndim))
    u, v = x.astype(np.float64), y.astype(np.float64)
    exact: list[tuple[Callable[[], Any], Any]] = [
        (lambda: a + b, x + y), (lambda: a * 2, x * 2), (lambda: a + ts.asarray(row), x + row),
        (lambda: a < b, x < y), (lambda: ts.where(a < b, b, 0.0), np.where(x < y, y, 0)),
        (lambda: a - ts.asarray(y), x - y), (lambda: ts.astype(a, ts.float64), u),
        (lambda: ts.max(a, axis=-1), x.max(-1)), (lambda: ts.argmin(a, axis=0), x.argmin(0)),
        (lambda: ts.any(a > 99, axis=rest), (x > 99).any(rest)),
        (lambda: ts.concat([a, b], axis=0), np.concatenate([x, y])),
        (lambda: ts.sort(a, axis=-1), np.sort(x)),
    ]  # fmt: skip
    near: list[tuple[Callable[[], Any], Any]] = [
        (lambda axis=axis: ts.sum(a, axis=axis), u.sum(axis)) for axis in (None, *range(a.ndim))
    ]
    if name != "one row":  # as large as a product of a column and a row is
        whole = x.ndim > 1
        wanted = u @ v.swapaxes(-1, -2) if whole else u @ v
        near.append((lambda: a @ (ts.matrix_transpose(b) if whole else b), wanted))
    for _ in range(2):
        for fn, wanted in exact:
            np.testing.assert_array_equal(np.asarray(fn()), wanted)
        for fn, wanted in near:
            np.testing.assert_allclose(np.asarray(fn()), wanted, rtol=1e-4)


def test_parts_are_not_copied() -> None:
    whole = ts.asarray(data(600, 700))
    for a in (whole[:, 5:300], whole[::2], whole[:, ::2], whole[::-1], whole[1:-1, 1:-1].T):
        for _ in range(3):
            a + a, ts.exp(a), ts.sum(a, axis=0), ts.max(a), a @ ts.ones(a.shape[1])
        assert a.prepared is None


def test_kinds_of_parts() -> None:
    def lies(x: np.ndarray) -> Any:
        found = spaces_of(x.shape, x.strides, x.itemsize)
        return found and (found[0].step, found[0].backwards, found[1])

    x = np.zeros((6, 8, 10), np.float32)
    assert lies(x) == (1, (), [0, 0])
    assert lies(x[1:, 2:5, 3:9]) == (1, (), [5, 4])
    assert lies(x[::2, ::-1, ::3]) == (3, (1,), [8, 0])
    assert lies(x[:, 2::2]) == (1, (), [1, 10])
    assert lies(x[:, ::3]) is None  # a third of eight rows are no whole number
    assert lies(x[:, :, ::5]) is None
    assert lies(x.transpose(0, 2, 1)) is None
    assert lies(x[:, 3, ::-1]) == (1, (1,), [70])


GUARDED = """
import ctypes, mmap, sys
import numpy as np
import tessera as ts

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 1024 * PAGE + PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert libc.mprotect(ctypes.c_void_p(start + 1024 * PAGE), PAGE, 0) == 0

def part(dtype, rows, columns, pitch, step):
    item = np.dtype(dtype).itemsize
    size = ((rows - 1) * pitch + (columns - 1) * step + 1) * item
    offset = 1024 * PAGE - size  # the last element is the last before memory that is not to be read
    x = np.ndarray((rows, columns), dtype, memory, offset, (pitch * item, step * item))
    x[...] = np.arange(rows * columns).reshape(rows, columns) % 100
    return x

SHAPES = (400, 301, 700, 1), (300, 257, 800, 2), (300, 260, 801, 3)
for k, (rows, columns, pitch, step) in enumerate(SHAPES):
    for turn in (False, True):
        dtype = ("u1", "f4")[(k + turn) % 2]
        x = part(dtype, rows, columns, pitch, step)
        x = x.T if turn else x
        for view in (x, x[:, ::-1]):
            a = ts.Array(view)
            assert (np.asarray(a + a) == view + view).all()
            assert (np.asarray(ts.astype(a, ts.float32)) == view.astype("f4")).all()
            assert (np.asarray(ts.where(a > 5, a, 0)) == np.where(view > 5, view, 0)).all()
            for axis in (0, 1, (0, 1)):
                assert (np.asarray(ts.max(a, axis=axis)) == view.max(axis)).all()
                found = np.asarray(ts.sum(a, axis=axis, dtype=ts.float64))
                assert np.allclose(found, view.sum(axis, dtype="f8"))
            assert (np.asarray(ts.argmax(a, axis=1)) == view.argmax(1)).all()
            if dtype[0] == "f":
                ones = ts.ones(view.shape[1], dtype=a.dtype)
                assert np.allclose(np.asarray(a @ ones), view.sum(1))
            assert a.prepared is None
print("done")
"""


def test_nothing_behind_the_last_element_is_read() -> None:
    found = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True)
    assert found.stdout == "done\n", (found.returncode, found.stderr)


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
