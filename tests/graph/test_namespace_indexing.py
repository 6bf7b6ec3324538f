"""`x[...]`, `take`, `take_along_axis` and `x.at[...]`, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tessera as ts
from tessera.graph.namespace.indexing import plan_index, read
from tests.graph.namespace_cases import ALL, dtype_of, engine, host, same, sample

__all__ = ["engine"]

I = np.asarray([2, 0, -1])  # noqa: E741
J = np.asarray([[0], [1]])
K = np.asarray(1)
MASK = np.asarray([[True, False, True], [False, True, False], [True, True, False]])

BASIC: list[Any] = [
    0, -1, (), ..., None, (1, 2), (0, -1, 3), slice(None), slice(1, None), slice(None, None, -1),
    slice(None, None, 2), slice(-2, None), slice(5, 1), slice(10, 20), slice(2, 0, -1),
    slice(-1, -10, -2), slice(None, 1, -1), slice(0, 0), (slice(None), 0), (..., 0), (..., None),
    (None, 0, ..., None), (slice(0, 2), slice(3, 0, -2), slice(None, None, 3)),
    (0, ..., slice(1, 3)), (np.int32(1), slice(None)),
]  # fmt: skip

ADVANCED: list[Any] = [
    I, (I,), (I, 0), (0, I), (slice(None), I), (..., I), (I, I), (I, ..., I), (I, slice(None), I),
    (I, None), (None, I), (slice(None), None, I), (J, I), (I, J), (J, slice(1), I), K, (K, I),
    (slice(None), K), ([0, 2],), (I, slice(None, None, -1)), (slice(1, 3), I, slice(0, 2)),
    (0, slice(None), I), (I, 0, slice(None)), (slice(None), 0, I), ([],), (I, None, I),
    np.asarray([], np.int64), (slice(0, 0), I), np.asarray([1, 2], np.uint8),
    np.asarray([-1], np.int8), (..., I, None, 0),
]  # fmt: skip

MASKS: list[Any] = [
    MASK, (MASK,), (slice(None), MASK.T[:, 0]), (MASK[0],), (MASK[0], 1), (1, MASK[:, 0]),
    (MASK, 0), (..., np.asarray([True, False, True, True])), (MASK[0], I[:2]), MASK[:0],
]  # fmt: skip


def own(index: Any) -> Any:
    """The index with our arrays in place of NumPy's."""
    if isinstance(index, tuple):
        return tuple(own(i) for i in index)
    return ts.asarray(index) if isinstance(index, np.ndarray) else index


X = np.arange(36.0).reshape(3, 3, 4)


def by_plan(x: Any, index: Any) -> Any:
    """`x[index]` as it is traced; concrete arrays are read by NumPy."""
    return read(x, plan_index(x.type, index))


@pytest.mark.parametrize("index", [*BASIC, *ADVANCED], ids=str)
def test_reading(index: Any) -> None:
    same(ts.asarray(X)[own(index)], X[index])
    same(by_plan(ts.asarray(X), own(index)), X[index])
    same(ts.asarray(X)[index], X[index])


@pytest.mark.parametrize("index", MASKS[:-1], ids=str)
def test_reading_by_masks(index: Any) -> None:
    same(ts.asarray(X)[own(index)], X[index])
    same(by_plan(ts.asarray(X), own(index)), X[index])


@pytest.mark.parametrize("flag", [True, False])
def test_masks_without_dims(flag: bool) -> None:
    for x in (np.asarray(3.0), X):
        same(ts.asarray(x)[flag], x[flag])
        same(ts.asarray(x)[ts.asarray(flag)], x[flag])


@pytest.mark.parametrize("dtype", ALL)
def test_reading_of_all_dtypes(dtype: str) -> None:
    x = sample(dtype, (5, 4))
    same(ts.asarray(x)[1:, ::-1], x[1:, ::-1])
    same(ts.asarray(x)[ts.asarray([4, -5])], x[[4, -5]])


@given(st.data())
def test_any_basic_index(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    x = sample("float64", shape)
    same(ts.asarray(x)[index], x[index])
    same(by_plan(ts.asarray(x), index), x[index])


@given(st.data())
def test_any_integer_arrays(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    index = data.draw(hnp.integer_array_indices(shape))
    x = sample("float64", shape)
    same(ts.asarray(x)[own(index)], x[index])
    same(by_plan(ts.asarray(x), own(index)), x[index])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, r"index: 3 is out of range for dim 0 of f64\[3, 3, 4\]"),
        ((0, -4), r"index: -4 is out of range for dim 1"),
        ((0, 0, 0, 0), "index: 4 indices for"),
        (np.asarray([0, 5]), "index: 5 is out of range for dim 0"),
        ((0, np.asarray([-4])), "index: -4 is out of range for dim 1"),
        (MASK[:2], "index: a mask of type"),
    ],
)
def test_out_of_range(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message) as caught:
        _ = ts.asarray(X)[own(index)]
    assert "ts.asarray(X)[own(index)]" in str(caught.value)
    with pytest.raises(IndexError, match=message):
        ts.asarray(X).at[own(index)].set(0.0)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.5, "indexed with a value of type float"),
        ("a", "indexed with a value of type str"),
        (np.asarray([1.5]), "an index has type f64"),
        ((..., ...), "two `...`"),
        (slice(0, 2.5), "a slice of .* is 0:2.5"),
        (slice(0, 2, 0), "has step 0"),
    ],
)
def test_wrong_indices(index: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        _ = ts.asarray(X)[own(index)]


def test_index_arrays_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="index arrays are"):
        _ = ts.asarray(X)[ts.asarray([0, 1]), ts.asarray([0, 1, 2])]


# --- functions --------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(axis: int) -> None:
    same(ts.take(ts.asarray(X), ts.asarray(I), axis=axis), np.take(X, I, axis))
    same(ts.take(ts.asarray(X), ts.asarray(J), axis=axis), np.take(X, J, axis))
    same(ts.take(ts.asarray(X), 1, axis=axis), np.take(X, 1, axis))


def test_take_without_axis() -> None:
    same(ts.take(ts.asarray(X[0, 0]), ts.asarray([1, 1])), [1.0, 1.0], "float64")
    with pytest.raises(ValueError, match="take: no axis is given"):
        ts.take(ts.asarray(X), ts.asarray([1]))
    with pytest.raises(TypeError, match="take: the indices are f32"):
        ts.take(ts.asarray(X), ts.ones(1), axis=0)
    with pytest.raises(IndexError, match="9 is out of range"):
        ts.take(ts.asarray(X), ts.asarray([9]), axis=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(axis: int) -> None:
    index = np.argsort(-X, axis)[:2, :2, :2]
    shape = [2 if k == axis % 3 else d for k, d in enumerate(X.shape)]
    index = np.broadcast_to(np.resize(index, [2 if k == axis % 3 else 1 for k in range(3)]), shape)
    same(
        ts.take_along_axis(ts.asarray(X), ts.asarray(index), axis=axis),
        np.take_along_axis(X, index, axis),
    )


def test_take_along_axis_broadcasts() -> None:
    index = np.asarray([[[1, 0]]])
    wanted = np.take_along_axis(X, np.broadcast_to(index, (3, 3, 2)), -1)
    same(ts.take_along_axis(ts.asarray(X), ts.asarray(index)), wanted)
    with pytest.raises(ValueError, match="take_along_axis: x is"):
        ts.take_along_axis(ts.asarray(X), ts.asarray([1]))


# --- updates ----------------------------------------------------------------------------------

UPDATES: list[tuple[str, Any]] = [
    ("set", lambda old, new: new),
    ("add", np.add),
    ("multiply", np.multiply),
    ("min", np.minimum),
    ("max", np.maximum),
]


@pytest.mark.parametrize(("name", "fn"), UPDATES, ids=[u[0] for u in UPDATES])
@pytest.mark.parametrize("index", [*BASIC, *ADVANCED, *MASKS[:-1]], ids=str)
def test_updates(index: Any, name: str, fn: Any) -> None:
    shape = X[index].shape
    for values in (np.asarray(7.5), sample("float64", shape), sample("float64", shape[-1:])):
        wanted = X.copy()
        if name == "add":
            np.add.at(wanted, index, values)
        elif name == "multiply":
            np.multiply.at(wanted, index, values)
        elif name in ("min", "max"):
            fn.at(wanted, index, values)
        else:
            wanted[index] = values
        found = getattr(ts.asarray(X).at[own(index)], name)(ts.asarray(values))
        same(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", ALL)
def test_updates_of_all_dtypes(dtype: str) -> None:
    x = sample(dtype, (5, 4))
    wanted = x.copy()
    wanted[1:3, ::2] = dtype_of(dtype).type(1)
    same(ts.asarray(x).at[1:3, ::2].set(1 if dtype != "bool" else True), wanted)


def test_updates_leave_the_array_alone() -> None:
    x = ts.zeros(3)
    y = x.at[0].set(1.0)
    same(x, np.zeros(3, np.float32))
    same(y, [1, 0, 0], "float32")
    same(x.at[1:].get(), [0, 0], "float32")


def test_repeated_positions() -> None:
    x = ts.zeros(3)
    index = ts.asarray([0, 0, 2])
    same(x.at[index].add(1.0), [2, 0, 1], "float32")
    same(x.at[index].set(ts.asarray([1.0, 2.0, 3.0])), [2, 0, 3], "float32")


def test_wrong_updates() -> None:
    x = ts.zeros((2, 3), dtype=ts.int32)
    with pytest.raises(TypeError, match=r"at\[\.\.\.\]\.set: the values are 1\.5"):
        x.at[0].set(1.5)
    with pytest.raises(TypeError, match=r"at\[\.\.\.\]\.add: the values are i64\[3\]"):
        x.at[0].add(ts.asarray([1, 2, 3]))
    with pytest.raises(ValueError, match=r"the values are i32\[2\], but the index names"):
        x.at[0].set(ts.asarray([1, 2], dtype=ts.int32))
    with pytest.raises(IndexError, match="index: a mask of type"):
        x.at[ts.asarray([True, False, True])].set(0)
    with pytest.raises(TypeError, match=r"assignment to elements[\s\S]*x\.at\[index\]\.set"):
        x[0] = 1


def test_masked_updates_keep_the_shape() -> None:
    x = sample("float32", (3, 4))
    wanted = x.copy()
    wanted[x > 0] *= 2
    same(ts.asarray(x).at[ts.asarray(x) > 0].multiply(2.0), wanted)


def test_iteration_and_membership() -> None:
    x = ts.asarray([[1, 2], [3, 4]])
    assert [host(row).tolist() for row in x] == [[1, 2], [3, 4]]
    assert len(x) == 2
    assert 3 in ts.asarray([1, 3])
    assert 5 not in ts.asarray([1, 3])
    with pytest.raises(TypeError, match="iteration over an array"):
        iter(ts.asarray(1))


def test_elements_keep_no_large_array_and_nobody_writes_to_them() -> None:
    for size in (8, 1 << 16):
        x = ts.asarray(np.arange(size, dtype=np.float32))
        found = np.asarray(x[3])
        assert (found.shape, found.dtype, float(found)) == ((), np.float32, 3.0)
        assert size == 8 or x[3].storage.base is None
        for part in (x[3], x[-2], x[2:4], ts.reshape(x, (2, -1))[1]):
            assert not np.asarray(part).flags.writeable
    with pytest.raises(IndexError, match="8 is out of range"):
        ts.arange(8)[8]
