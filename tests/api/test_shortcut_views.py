"""Eager functions that rearrange arrays, or make them from nothing, as native code runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import ShapeError
from tessera.graph.trace import in_python
from tessera.runtime.dispatch.copies import copy_run
from tessera.runtime.dispatch.native import native
from tessera.runtime.memory import pointer
from tests.api.test_shortcut_sequences import arrays
from tests.api.test_shortcuts import natively
from tests.counting import forget

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
]

RNG = np.random.default_rng(5)

F = np.float32


def data(*shape: int, dtype: Any = F) -> np.ndarray:
    return RNG.uniform(0.5, 4, shape).astype(dtype)


def turned(*shape: int) -> ts.Array:
    """An array whose first dim is the last in memory."""
    return ts.asarray(data(*reversed(shape))).T


def parts(*shape: int) -> ts.Array:
    """Every second column of a matrix."""
    return ts.asarray(data(*shape[:-1], 2 * shape[-1]))[..., ::2]


Call = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, Any]]
CALLS: dict[str, Call] = {
    "reshape": (ts.reshape, lambda: (data(3, 4), (2, -1)), {}),
    "reshape of a turned one": (ts.reshape, lambda: (turned(3, 4), (6, 2)), {}),
    "reshape, large": (ts.reshape, lambda: (data(70, 80), (-1,)), {}),
    "permute_dims": (ts.permute_dims, lambda: (data(2, 3, 4), (2, 0, 1)), {}),
    "permute_dims, large": (ts.permute_dims, lambda: (data(20, 30, 40), (2, 0, 1)), {}),
    "moveaxis": (ts.moveaxis, lambda: (data(2, 3, 4), 0, -1), {}),
    "swapaxes": (ts.swapaxes, lambda: (data(2, 3, 4), 0, 2), {}),
    "matrix_transpose": (ts.matrix_transpose, lambda: (data(2, 3, 4),), {}),
    "expand_dims": (ts.expand_dims, lambda: (data(3),), {"axis": 1}),
    "squeeze": (ts.squeeze, lambda: (data(3, 1, 4), 1), {}),
    "flip": (ts.flip, lambda: (data(3, 4),), {"axis": 1}),
    "flip, large": (ts.flip, lambda: (data(70, 80),), {}),
    "rot90": (ts.rot90, lambda: (data(3, 4),), {}),
    "broadcast_to": (ts.broadcast_to, lambda: (data(4), (3, 4)), {}),
    "broadcast_to of a part": (ts.broadcast_to, lambda: (parts(3, 1), (3, 4)), {}),
    "atleast_2d": (ts.atleast_2d, lambda: (data(3),), {}),
    "roll": (ts.roll, lambda: (data(3, 4), 1), {"axis": 1}),
    "roll of all": (ts.roll, lambda: (data(3, 4), 5), {}),
    "roll of a turned one": (ts.roll, lambda: (turned(3, 4), (1, 2)), {"axis": (0, 1)}),
    "pad": (ts.pad, lambda: (data(3, 4), ((1, 0), (0, 2))), {}),
    "pad of all sides": (ts.pad, lambda: (data(3, 4), 1), {}),
    "tile": (ts.tile, lambda: (data(3, 4), (2, 1)), {}),
    "repeat": (ts.repeat, lambda: (data(3, 4), 3), {"axis": 0}),
    "diag": (ts.diag, lambda: (data(4, 4),), {}),
    "diag of a vector": (ts.diag, lambda: (data(4),), {"k": 1}),
    "diagonal": (ts.linalg.diagonal, lambda: (data(4, 5),), {}),
    "trace": (ts.linalg.trace, lambda: (data(4, 5),), {}),
    "cross": (ts.linalg.cross, lambda: (parts(4, 3), data(4, 3)), {}),
    "median along an axis": (ts.median, lambda: (data(5, 7),), {"axis": 1}),
    "split": (ts.split, lambda: (data(6, 4), 2), {}),
    "array_split": (ts.array_split, lambda: (data(7), 3), {}),
    "unstack": (ts.unstack, lambda: (data(3, 4),), {"axis": 1}),
    "meshgrid": (ts.meshgrid, lambda: (data(3), data(4)), {}),
    "top_k": (ts.top_k, lambda: (data(9), 3), {}),
    "gradient": (ts.gradient, lambda: (data(9),), {}),
    "cov": (ts.cov, lambda: (data(4, 9),), {}),
    "a part beside a matrix": (ts.subtract, lambda: (data(3, 4), parts(3, 1)), {}),
    "turned matrices": (ts.matmul, lambda: (turned(3, 4), turned(4, 5)), {}),
    "bfloat16, turned": (
        lambda x: ts.sum(x, axis=0),
        lambda: (ts.astype(turned(3, 4), ts.bfloat16),), {},
    ),
    "zeros": (ts.zeros, lambda: ((3, 4),), {}),
    "zeros without dims": (ts.zeros, lambda: ((),), {}),
    "ones, integers": (ts.ones, lambda: (5,), {"dtype": ts.int16}),
    "full": (ts.full, lambda: ((3, 4), 2.5), {}),
    "full, large": (ts.full, lambda: ((300, 400), -1), {}),
    "arange": (ts.arange, lambda: (3, 9, 2), {}),
    "linspace": (ts.linspace, lambda: (0.0, 1.0, 7), {}),
    "geomspace": (ts.geomspace, lambda: (1.0, 8.0, 4), {}),
    "eye": (ts.eye, lambda: (3,), {"k": 1}),
    "zeros_like": (ts.zeros_like, lambda: (data(3, 4),), {}),
    "ones_like, large": (ts.ones_like, lambda: (data(300, 400),), {}),
    "full_like": (ts.full_like, lambda: (data(3, 4), 7), {}),
}  # fmt: skip


def leaves(x: Any) -> list[ts.Array]:
    return [*x] if isinstance(x, (list, tuple)) else [x]


@pytest.mark.parametrize("name", CALLS)
def test_native_calls_give_the_same(name: str) -> None:
    fn, make, kwargs = CALLS[name]
    if not name.startswith("bfloat16"):
        forget(fn)
    for _ in range(5):
        args = tuple([arrays(x) for x in make()])
        with in_python():
            wanted = fn(*args, **kwargs)
        found = fn(*args, **kwargs)
        assert type(found) is type(wanted)
        for a, b in zip(leaves(found), leaves(wanted), strict=True):
            assert (a.shape, a.dtype, a.weak) == (b.shape, b.dtype, b.weak)
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            # Programs read it as what it is.
            np.testing.assert_array_equal(ts.add(a, a), ts.add(b, b))
            assert not np.asarray(a).flags.writeable
    if not name.startswith("bfloat16"):
        assert natively(fn, *args, **kwargs)


def test_views_share_memory() -> None:
    x = ts.asarray(data(20, 30, 40))
    forget(ts.permute_dims)
    forget(ts.unstack)
    for _ in range(4):
        turned = ts.permute_dims(x, (2, 0, 1))
        rows = ts.unstack(x)
    assert natively(ts.permute_dims, x, (2, 0, 1))
    assert natively(ts.unstack, x)
    assert pointer(turned.storage) == pointer(x.storage)
    assert pointer(rows[3].storage) == pointer(x.storage) + 3 * 30 * 40 * 4
    wanted = np.array(x)
    del x
    np.testing.assert_array_equal(turned, wanted.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["permute_dims", "flip", "split", "reshape", "expand_dims"])
def test_views_of_large_arrays_in_another_order(name: str) -> None:
    """Nothing is copied, which would take a thousand times as long as a view does."""
    rest: tuple[tuple[Any, ...], dict[str, Any]] = {
        "permute_dims": (((1, 0),), {}), "flip": ((), {}), "split": ((2,), {}),
        "reshape": (((1, 40, 30),), {}), "expand_dims": ((), {"axis": 0}),
    }[name]  # fmt: skip
    args, kwargs = rest
    fn = getattr(ts, name)
    forget(fn)
    for x in (ts.asarray(data(40, 30)), *[turned(40, 30) for _ in range(5)]):
        last = x
        found = fn(x, *args, **kwargs)
    fn(ts.asarray(data(40, 30)), *args, **kwargs)
    assert natively(fn, ts.asarray(data(40, 30)), *args, **kwargs)
    assert last.prepared is None
    for y in leaves(found):
        assert np.shares_memory(y.storage, last.storage)
    with in_python():
        wanted = fn(last, *args, **kwargs)
    for y, z in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(y), np.asarray(z))


def test_what_is_repeated_stays_one_element() -> None:
    forget(ts.broadcast_to)
    for _ in range(4):
        found = ts.broadcast_to(ts.asarray(data(1)), (50, 60))
    assert natively(ts.broadcast_to, ts.asarray(data(1)), (50, 60))
    assert found.is_splat


def test_a_value_that_decides_is_read_each_time() -> None:
    """Counts are read by Python, which makes an index of one element of them."""
    x = ts.asarray(np.array([1, 2, 3], F))
    for k in (1, 1, 1, 0, 2):
        counts = np.eye(3, dtype=int)[k]
        np.testing.assert_array_equal(ts.repeat(x, ts.asarray(counts)), [k + 1])


REPEATED: dict[str, Callable[[Any], Any]] = {
    "std": lambda y: ts.std(y, axis=1),
    "softmax": lambda y: ts.softmax(y, axis=0),
    "subtract": lambda y: ts.subtract(y, ts.ones((3, 4))),
    "permute_dims": lambda y: ts.permute_dims(y, (1, 0)),
    "roll": lambda y: ts.roll(y, 1, axis=1),
    "median": lambda y: ts.median(y, axis=0),
    "sum": lambda y: ts.sum(y, axis=0),
}


@pytest.mark.parametrize("name", REPEATED)
def test_arguments_that_are_repeated_are_no_constants(name: str) -> None:
    """They are read as they are, or from copies that something has made of them."""
    fn = REPEATED[name]
    forget(getattr(ts, name))
    for k in range(6):
        y = ts.broadcast_to(ts.asarray(data(3, 1)), (3, 4))
        if k % 2:
            assert y.contiguous is not y.storage
        with in_python():
            wanted = fn(y)
        np.testing.assert_array_equal(fn(y), wanted)
    for _ in range(4):
        y = ts.asarray(data(3, 4))
        with in_python():
            wanted = fn(y)
        np.testing.assert_array_equal(fn(y), wanted)
    assert getattr(ts, name).notes.signatures.table.words[1]  # these are run natively


def test_a_value_that_fills_is_read_each_time() -> None:
    for k in range(6):
        np.testing.assert_array_equal(ts.full((2,), ts.asarray(F(k))), [k, k])
        np.testing.assert_array_equal(ts.full_like(ts.zeros(2), ts.asarray(F(k))), [k, k])
        np.testing.assert_array_equal(ts.arange(ts.asarray(k)), np.arange(k))


def test_tuples_are_told_apart_by_their_items() -> None:
    x = ts.asarray(data(3, 4))
    forget(ts.reshape)
    for _ in range(4):
        n = len(x)
        ts.reshape(x, (2, 2 * n))
        ts.reshape(x, (4, n))
    assert natively(ts.reshape, x, (2, 2 * n))
    assert ts.reshape(x, (4, n)).shape == (4, 3)
    for _ in range(4):
        ts.zeros((1, 2))
    assert not natively(ts.zeros, (True, 2))
    with pytest.raises(ShapeError, match=r"shape is \(1.0, 2\)"):
        ts.zeros((1.0, 2))
    assert not natively(ts.zeros, [1, 2])


def test_signs_of_zeros_are_told_apart() -> None:
    for _ in range(4):
        for zero in (0.0, -0.0):
            found = np.asarray(ts.full((3,), zero))
            assert (np.signbit(found) == np.signbit(zero)).all()


def test_mistakes_stay_errors() -> None:
    x = ts.asarray(data(3, 4))
    for _ in range(4):
        ts.reshape(x, (4, 3))
        ts.pad(x, 1)
        with pytest.raises(ts.TesseraError):
            ts.reshape(x, (5, 3))
        with pytest.raises(ts.TesseraError):
            ts.pad(x, -1)
        with pytest.raises(ts.TesseraError):
            ts.zeros((3, -1))


def test_the_argument_itself() -> None:
    x = ts.asarray(data(3))
    for _ in range(4):
        assert ts.atleast_1d(x) is x


def test_a_large_constant_is_not_kept() -> None:
    forget(ts.arange)
    forget(ts.zeros)
    for _ in range(4):
        ts.arange(1 << 17)
        ts.zeros(1 << 17)
    assert not natively(ts.arange, 1 << 17)
    assert natively(ts.zeros, 1 << 17)
    assert ts.arange.notes is not None


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_copies(choose: st.DataObject) -> None:
    """Views of any order, repeated ones too, as one native copy."""
    rank = choose.draw(st.integers(0, 4))
    shape = tuple(choose.draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    dtype = choose.draw(st.sampled_from(["i1", "i2", "f4", "f8", "c16"]))
    x = RNG.integers(0, 100, shape).astype(dtype)
    x = np.broadcast_to(x, (choose.draw(st.integers(1, 3)), *shape))
    x = x.transpose(choose.draw(st.permutations(range(x.ndim))))
    steps = choose.draw(st.lists(st.sampled_from([1, 2, -1, -2]), min_size=x.ndim, max_size=x.ndim))
    x = x[tuple([slice(None, None, step) for step in steps])]
    if not x.size:
        return
    target = np.full(x.shape, 77, dtype)
    run = copy_run(x, target)
    assert run is not None
    words = [pointer(x), pointer(target), 0, *run.dims]
    call(run.executable.main, words)
    np.testing.assert_array_equal(target, x)


def call(address: int, words: list[int]) -> None:
    import ctypes

    given = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(given.ctypes.data)
