"""Functions that change shapes and orders, and products of matrices, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import ALL, NUMERIC, SHAPES, dtype_of, engine, same, sample

__all__ = ["engine"]


@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((2, 3), (6,)), ((2, 3), (3, 2)), ((2, 3), -1), ((2, 3), (-1, 2)), ((), (1, 1)),
        ((1,), ()), ((0, 3), (3, 0)), ((4,), (2, -1, 1)), ((), -1),
        ((2, 3), np.int64(6)),
    ],
)  # fmt: skip
def test_reshape(shape: tuple[int, ...], to: Any) -> None:
    x = sample("float32", shape)
    same(ts.reshape(ts.asarray(x), to), x.reshape(to))


@pytest.mark.parametrize("to", [(4,), (-1, 4), (-1, -1), (0, -1), (2, 4)])
def test_wrong_reshapes(to: Any) -> None:
    with pytest.raises(ValueError, match=r"reshape: f32\[2, 3\] has 6 elements") as caught:
        ts.reshape(ts.ones((2, 3)), to)
    assert "test_namespace_manipulation.py" in str(caught.value)


@pytest.mark.parametrize("dtype", ALL)
def test_orders_of_dims(dtype: str) -> None:
    x = sample(dtype, (2, 3, 4))
    a = ts.asarray(x)
    same(ts.permute_dims(a, (2, 0, 1)), x.transpose(2, 0, 1))
    same(ts.permute_dims(a, (-1, 0, 1)), x.transpose(2, 0, 1))
    same(ts.matrix_transpose(a), np.swapaxes(x, -1, -2))
    same(a.mT, np.swapaxes(x, -1, -2))
    same(a[0].T, x[0].T)
    same(ts.moveaxis(a, 0, -1), np.moveaxis(x, 0, -1))
    same(ts.moveaxis(a, (0, 1), (2, 0)), np.moveaxis(x, (0, 1), (2, 0)))
    same(ts.flip(a), np.flip(x))
    same(ts.flip(a, axis=1), np.flip(x, 1))
    same(ts.flip(a, axis=(0, -1)), np.flip(x, (0, -1)))


def test_wrong_orders() -> None:
    x = ts.ones((2, 3))
    with pytest.raises(ValueError, match=r"permute_dims: axes=\(0,\) for"):
        ts.permute_dims(x, (0,))
    with pytest.raises(ValueError, match="names an axis twice"):
        ts.permute_dims(x, (0, 0))
    with pytest.raises(ValueError, match="axis 2 is out of range"):
        ts.permute_dims(x, (0, 2))
    with pytest.raises(ValueError, match=r"moveaxis: 1 axes are moved to 2 places"):
        ts.moveaxis(x, 0, (0, 1))
    with pytest.raises(ValueError, match="T: the array is"):
        _ = ts.ones((1, 2, 3)).T
    with pytest.raises(ValueError, match="matrix_transpose: the array is"):
        _ = ts.ones(3).mT


def test_dims_of_length_one() -> None:
    x = sample("float32", (2, 1, 3, 1))
    a = ts.asarray(x)
    same(ts.squeeze(a, 1), x.squeeze(1))
    same(ts.squeeze(a, (1, -1)), x.squeeze((1, 3)))
    same(ts.squeeze(a), x.squeeze())
    same(ts.expand_dims(a), x[None])
    same(ts.expand_dims(a, axis=2), np.expand_dims(x, 2))
    same(ts.expand_dims(a, axis=-1), np.expand_dims(x, -1))
    same(ts.expand_dims(a, axis=(0, -1)), np.expand_dims(x, (0, -1)))
    with pytest.raises(ValueError, match=r"squeeze: dim 0 of .* is 2"):
        ts.squeeze(a, 0)
    with pytest.raises(ValueError, match="expand_dims: axis 5 is out of range"):
        ts.expand_dims(a, axis=5)


@pytest.mark.parametrize("shift", [0, 1, -1, 2, 7, -9])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_roll(shift: int, axis: Any) -> None:
    x = sample("int32", (3, 4))
    same(ts.roll(ts.asarray(x), shift, axis=axis), np.roll(x, shift, axis))


def test_roll_otherwise() -> None:
    x = sample("int32", (3, 4))
    same(ts.roll(ts.asarray(x), (1, -2), axis=(0, 1)), np.roll(x, (1, -2), (0, 1)))
    same(ts.roll(ts.asarray(x), ts.asarray(-2), axis=1), np.roll(x, -2, 1))
    same(ts.roll(ts.zeros((0, 2)), 1, axis=0), np.zeros((0, 2), np.float32))
    with pytest.raises(ValueError, match="roll: 2 shifts for 1 axes"):
        ts.roll(ts.asarray(x), (1, 2), axis=0)


@pytest.mark.parametrize("dtype", ALL)
def test_joining(dtype: str) -> None:
    x, y = sample(dtype, (2, 3)), sample(dtype, (1, 3), 1)
    a, b = ts.asarray(x), ts.asarray(y)
    same(ts.concat([a, b]), np.concatenate([x, y]))
    same(ts.concat((a, b), axis=-2), np.concatenate([x, y]))
    same(ts.concat([a, b], axis=None), np.concatenate([x, y], None))
    same(ts.concat([a]), x)
    same(ts.stack([a, a, a]), np.stack([x, x, x]))
    same(ts.stack([a, a], axis=-1), np.stack([x, x], -1))
    same(ts.stack([a, a], axis=1), np.stack([x, x], 1))


def test_joining_promotes() -> None:
    found = ts.concat([ts.asarray([1], dtype=ts.int8), ts.asarray([2], dtype=ts.int16)])
    assert found.dtype is ts.int16
    assert ts.stack([ts.ones(()), 2]).dtype is ts.float32
    same(ts.stack(ts.asarray([[1, 2], [3, 4]]), axis=1), [[1, 3], [2, 4]], "int64")


def test_wrong_joins() -> None:
    with pytest.raises(ValueError, match="concat: there are no arrays"):
        ts.concat([])
    with pytest.raises(
        ValueError, match=r"concat: array 0 is f32\[2, 3\], but array 1 is f32\[2, 4\]"
    ):
        ts.concat([ts.ones((2, 3)), ts.ones((2, 4))])
    with pytest.raises(ValueError, match=r"stack: array 0 is f32\[2\], but array 1 is f32\[3\]"):
        ts.stack([ts.ones(2), ts.ones(3)])
    with pytest.raises(ValueError, match="stack: axis 2 is out of range"):
        ts.stack([ts.ones(2)], axis=2)


def test_unstack() -> None:
    x = sample("float32", (3, 2))
    for a, b in zip(ts.unstack(ts.asarray(x)), x, strict=True):
        same(a, b)
    for a, b in zip(ts.unstack(ts.asarray(x), axis=-1), x.T, strict=True):
        same(a, b)
    assert ts.unstack(ts.zeros((0, 3))) == ()
    assert [float(v) for v in ts.asarray([1.0, 2.0])] == [1, 2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("counts", [(), (2,), (0,), (1, 3), (2, 1, 2)])
def test_tile(shape: tuple[int, ...], counts: tuple[int, ...]) -> None:
    x = sample("int16", shape)
    same(ts.tile(ts.asarray(x), counts), np.tile(x, counts))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("repeats", [0, 1, 3])
def test_repeat(axis: Any, repeats: int) -> None:
    x = sample("float32", (2, 3))
    same(ts.repeat(ts.asarray(x), repeats, axis=axis), np.repeat(x, repeats, axis))


def test_repeat_each() -> None:
    x = sample("float32", (2, 3))
    counts = np.asarray([0, 2, 1])
    same(ts.repeat(ts.asarray(x), ts.asarray(counts), axis=1), np.repeat(x, counts, 1))
    same(ts.repeat(ts.asarray(x), ts.asarray([2]), axis=0), np.repeat(x, 2, 0))
    with pytest.raises(ValueError, match="repeat: 2 repeats for dim 1"):
        ts.repeat(ts.asarray(x), ts.asarray([1, 2]), axis=1)
    with pytest.raises(TypeError, match="repeat: the repeats have dtype float"):
        ts.repeat(ts.asarray(x), ts.asarray([1.0, 2.0]), axis=0)


def test_broadcasts() -> None:
    x, y = sample("float32", (3, 1)), sample("int8", (4,))
    same(ts.broadcast_to(ts.asarray(x), (2, 3, 4)), np.broadcast_to(x, (2, 3, 4)))
    same(ts.broadcast_to(ts.asarray(y), 4), y)
    for a, b in zip(
        ts.broadcast_arrays(ts.asarray(x), ts.asarray(y)), np.broadcast_arrays(x, y), strict=True
    ):
        same(a, b)
    assert ts.broadcast_arrays() == []
    assert ts.broadcast_shapes((3, 1), (4,), ()) == (3, 4)
    assert ts.broadcast_shapes((0, 1), (1, 3)) == (0, 3)
    with pytest.raises(ValueError, match="broadcast_shapes:"):
        ts.broadcast_shapes((3,), (4,))
    with pytest.raises(ValueError, match=r"broadcast_to: f32\[3, 1\] does not fit"):
        ts.broadcast_to(ts.asarray(x), (3,))
    with pytest.raises(ValueError, match="broadcast_to:"):
        ts.broadcast_to(ts.asarray(x), (4, 4))


# --- products ---------------------------------------------------------------------------------


MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)), ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMULS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    x, y = sample(dtype, a), sample(dtype, b, 1)
    same(ts.matmul(ts.asarray(x), ts.asarray(y)), np.matmul(x, y), rtol=1e-5)
    same(ts.asarray(x) @ ts.asarray(y), np.matmul(x, y), rtol=1e-5)
    same(x @ ts.asarray(y), np.matmul(x, y), rtol=1e-5)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_dtypes_of_products(dtype: str) -> None:
    x, y = sample(dtype, (4, 3), low=0), sample(dtype, (3, 5), 1, low=0)
    wide: Any = np.complex128 if dtype.startswith("c") else np.float64
    wanted = x.astype(wide) @ y.astype(wide)
    if x.dtype.kind in "iu":
        wanted = wanted.astype(np.int64)
    same(ts.asarray(x) @ ts.asarray(y), wanted.astype(dtype_of(dtype)), rtol=1e-2)


def test_products_promote() -> None:
    x, y = ts.ones((2, 2), dtype=ts.bfloat16), ts.ones((2, 2), dtype=ts.float32)
    assert (x @ y).dtype is ts.float32
    mask = ts.asarray([[True, False], [False, False]])
    same(mask @ mask, [[True, False], [False, False]], "bool")


def test_wrong_products() -> None:
    with pytest.raises(ValueError, match=r"matmul: x1 is .*dim 1 of x1 is 3, but dim 0 of x2 is 4"):
        _ = ts.ones((2, 3)) @ ts.ones((4, 5))
    with pytest.raises(ValueError, match="operands of a matrix product"):
        ts.matmul(ts.ones(()), ts.ones(2))
    with pytest.raises(ValueError, match="whose dims -3 do not fit"):
        _ = ts.ones((2, 1, 3)) @ ts.ones((4, 3, 5))


@pytest.mark.parametrize(
    "axes", [0, 1, 2, ((1,), (0,)), ((1, 2), (0, 1)), ([2, 1], [1, 0]), ((-1,), (1,))]
)
def test_tensordot(axes: Any) -> None:
    x, y = sample("float64", (2, 3, 4)), sample("float64", (3, 4, 5), 1)
    if axes == 1 or axes == ((1,), (0,)):
        y = sample("float64", (4, 3, 5) if axes == 1 else (3, 4, 5), 1)
    same(
        ts.tensordot(ts.asarray(x), ts.asarray(y), axes=axes),
        np.tensordot(x, y, axes),
        rtol=1e-12,
    )


def test_vecdot_and_others() -> None:
    x, y = sample("complex64", (5, 3)), sample("complex64", (2, 1, 3), 1)
    same(ts.vecdot(ts.asarray(x), ts.asarray(y)), np.vecdot(x, y), rtol=1e-5)
    u, v = sample("float32", (3, 4)), sample("float32", (3, 4), 1)
    same(ts.vecdot(ts.asarray(u), ts.asarray(v), axis=-2), np.vecdot(u, v, axis=-2), rtol=1e-5)
    same(ts.dot(ts.asarray(u), ts.asarray(v.T)), np.dot(u, v.T), rtol=1e-5)
    same(ts.dot(ts.asarray(u), 2.0), u * 2, rtol=1e-5)
    same(ts.outer(ts.asarray(u[0]), ts.asarray(v[1])), np.outer(u[0], v[1]))
    with pytest.raises(ValueError, match="vecdot: x1 is"):
        ts.vecdot(ts.ones(3), ts.ones(4))
    with pytest.raises(ValueError, match="tensordot: 3 axes of"):
        ts.tensordot(ts.ones((2, 2)), ts.ones((2, 2)), axes=3)
