"""What Python, NumPy and other libraries see of an array."""

from __future__ import annotations

import copy
import gc
import pickle
import struct
import weakref
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph import array as array_module
from tests.graph.namespace_cases import ALL, engine, same, sample

__all__ = ["engine"]


def test_attributes() -> None:
    x = ts.zeros((2, 3), dtype=ts.float64)
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes) == ((2, 3), 2, 6, 8, 48)
    assert x.dtype is ts.float64
    assert str(x.device) == "cpu"
    assert x.to_device("cpu") is x
    assert len(x) == 2


@pytest.mark.parametrize(
    ("x", "text"),
    [
        ([1.0, 2.0], "Array([1., 2.], dtype=float32)"),
        (3, "Array(3, dtype=int64)"),
        ([[1, 2], [3, 4]], "Array([[1, 2],\n       [3, 4]], dtype=int64)"),
        ([], "Array([], dtype=float32)"),
        ([True], "Array([ True], dtype=bool)"),
        (np.zeros((2, 0)), "Array([], shape=(2, 0), dtype=float64)"),
    ],
)
def test_repr(x: Any, text: str) -> None:
    assert repr(ts.asarray(x)) == text


def test_repr_of_other_dtypes_and_large_arrays() -> None:
    assert repr(ts.asarray([1.5], dtype=ts.bfloat16)) == "Array([1.5], dtype=bfloat16)"
    assert repr(ts.asarray([1], dtype=ts.int4)) == "Array([1], dtype=int4)"
    for dtype in (ts.float8_e5m2, ts.float8_e4m3fn):
        x = ts.asarray([1.5, -2.0], dtype=dtype)
        assert repr(x) == f"Array([ 1.5, -2. ], dtype={dtype.full_name})"
        assert str(x) == "[ 1.5 -2. ]"
    large = repr(ts.zeros((500, 500)))
    assert "..." in large
    assert len(large) < 1000
    assert repr(ts.jit(lambda x: print(x) or x)) is not None


def test_traced_values_show_once_what_they_stand_for() -> None:
    shown: list[str] = []

    def show(x: Any) -> Any:
        shown.append(repr(x))
        return ts.sum(x * x)

    x = ts.ones((2, 3))
    ts.jit(ts.grad(show))(x)
    ts.jit(ts.grad(lambda v: ts.sum(ts.grad(show)(v))))(x)
    assert set(shown) == {"Tracer(f32[2, 3])"}
    shown.clear()
    ts.grad(ts.grad(show))(2.0)
    assert shown == ["Tracer(Array(2., dtype=float32))"]
    shown.clear()
    ts.jit(show)(2)
    assert shown == ["Tracer(i64[])"]


def test_text_of_scalars() -> None:
    assert f"{ts.asarray(2.5):.2f}" == "2.50"
    assert f"{ts.asarray([1, 2])}" == "[1 2]"
    assert str(ts.asarray(3)) == "3"
    with pytest.raises(TypeError, match=r"the format '.2f' of an array of type"):
        f"{ts.ones(2):.2f}"


def test_numbers() -> None:
    x = ts.asarray(2.5)
    assert (float(x), int(x), bool(x), complex(x)) == (2.5, 2, True, 2.5)
    assert [10, 20, 30][ts.asarray(1)] == 20
    assert ts.asarray([[4]]).item() == 4
    assert ts.asarray([[1, 2]]).tolist() == [[1, 2]]
    assert isinstance(ts.asarray(1).item(), int)


@pytest.mark.parametrize("fn", [float, int, bool, complex])
def test_numbers_of_arrays_with_dims(fn: Any) -> None:
    with pytest.raises(TypeError, match=r"\(\) of an array of type f32\[2\]"):
        fn(ts.ones(2))
    with pytest.raises(ValueError, match="it takes an array without dims"):
        fn(ts.ones(1))


def test_rounding() -> None:
    x = ts.asarray([1.256, -2.5, 1e38])
    same(round(x), [1.0, -2.0, np.float32(1e38)], "float32")
    same(round(x, 1), [1.3, -2.5, np.float32(1e38)], "float32")
    same(round(ts.asarray([127.0, 44.0]), -1), [130.0, 40.0], "float32")
    same(round(ts.asarray([127])), [127], "int64")
    same(round(ts.asarray([127]), 2), [127], "int64")
    same(round(ts.asarray([1.25 + 2.75j]), 0), [1 + 3j], "complex64")
    same(ts.jit(lambda v: round(v, 1))(x), [1.3, -2.5, np.float32(1e38)], "float32")


def test_membership() -> None:
    x = ts.asarray([[1.0, 2.0], [3.0, np.nan]])
    assert 3 in x
    assert 4.0 not in x
    assert np.nan not in x
    assert ts.asarray(2.0) in x
    assert 1 not in ts.zeros((0, 2))
    assert 1 in ts.asarray(1)
    with pytest.raises(TypeError, match="equal: got a value of type str"):
        _ = "a" in x


def test_the_constructor_takes_numpy_arrays() -> None:
    same(ts.Array(np.arange(3)), np.arange(3))
    for wrong in ([1, 2], 3, None, "abc", ts.ones(2)):
        with pytest.raises(TypeError, match=r"the constructor got a value of type[^@]*ts\.asarray"):
            ts.Array(wrong)  # type: ignore[arg-type]


def test_other_wrong_uses() -> None:
    with pytest.raises(TypeError, match=r"item\(\) of an array"):
        ts.ones(2).item()
    with pytest.raises(TypeError, match="use as a Python integer"):
        _ = [1, 2][ts.asarray(1.0)]
    with pytest.raises(TypeError, match=r"len\(\) of an array"):
        len(ts.asarray(1))
    with pytest.raises(TypeError, match="hash of an array"):
        hash(ts.ones(2))
    with pytest.raises(TypeError, match="assignment to the attribute 'shape' of an array"):
        ts.ones(2).shape = (1, 2)


@pytest.mark.parametrize("dtype", ALL)
def test_numpy_sees_the_elements(dtype: str) -> None:
    x = sample(dtype, (3, 4))
    a = ts.asarray(x)
    seen = np.asarray(a)
    np.testing.assert_array_equal(seen, x)
    assert seen.dtype == x.dtype
    assert not seen.flags.writeable
    written = np.array(a)
    assert written.flags.writeable
    written[0] = 0
    np.testing.assert_array_equal(np.asarray(a), x)
    assert np.asarray(a, np.complex128).dtype == np.complex128
    assert np.array(a, copy=False) is not None
    with pytest.raises(ValueError, match="copy"):
        np.array(ts.ones(2), dtype=np.int8, copy=False)


def test_numpy_functions_take_arrays() -> None:
    np.testing.assert_allclose(np.sin(ts.asarray([1.0])), np.sin(np.float32([1.0])))
    assert np.sum(np.asarray(ts.ones(3))) == 3


# --- buffers ----------------------------------------------------------------------------------

needs_buffer = pytest.mark.skipif(not array_module.HAS_BUFFER, reason="no buffer protocol here")


@needs_buffer
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_memoryview(dtype: str, shape: tuple[int, ...]) -> None:
    x = sample(dtype, shape)
    view = memoryview(ts.asarray(x))
    assert view.readonly
    assert view.shape == shape
    assert view.tolist() == x.tolist()
    assert bytes(ts.asarray(x)) == x.tobytes() if shape else True


@needs_buffer
def test_a_buffer_outlives_its_array() -> None:
    x = ts.asarray(np.arange(1000))
    ref = weakref.ref(x)
    view = memoryview(x)
    del x
    gc.collect()
    assert ref() is None
    assert view[999] == 999
    view.release()


@needs_buffer
def test_nobody_writes_through_a_buffer() -> None:
    x = ts.asarray([1, 2])
    with pytest.raises(TypeError, match=r"read-only|read-write"):
        struct.pack_into("q", x, 0, 5)
    with pytest.raises(TypeError, match="cannot modify"):
        memoryview(x)[0] = 3
    y = ts.asarray([1.0]) + 1
    assert memoryview(y).readonly
    assert memoryview(ts.jit(lambda v: v + 1)(y)).readonly


@needs_buffer
def test_dtypes_that_buffers_lack() -> None:
    with pytest.raises((ValueError, BufferError, TypeError)):
        memoryview(ts.ones(2, dtype=ts.bfloat16))


@needs_buffer
def test_buffers_of_views() -> None:
    x = np.arange(12).reshape(3, 4)
    view = memoryview(ts.asarray(x)[:, ::2])
    assert view.tolist() == x[:, ::2].tolist()


# --- DLPack -----------------------------------------------------------------------------------


class OldConsumer:
    """An array of a library that knows DLPack before 1.0 only."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack__(self, *, stream: Any = None, **new: Any) -> Any:
        return self._x.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "complex64"])
def test_dlpack_to_numpy_and_back(dtype: str) -> None:
    x = sample(dtype, (2, 3))
    a = ts.asarray(x)
    out = np.from_dlpack(a)
    np.testing.assert_array_equal(out, x)
    assert not out.flags.writeable
    same(ts.from_dlpack(x), x)
    same(ts.from_dlpack(a), x)
    assert a.__dlpack_device__() == (1, 0)


def test_dlpack_shares_memory_unless_told_otherwise() -> None:
    x = np.zeros(3)
    shared, copied = ts.from_dlpack(x), ts.from_dlpack(x, copy=True)
    x[0] = 1
    same(shared, [1.0, 0, 0], "float64")
    same(copied, [0.0, 0, 0], "float64")


class Capsule:
    """What a consumer of DLPack takes, around a capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_old_dlpack_gets_a_copy() -> None:
    a = ts.asarray([1.0, 2.0])
    out = np.from_dlpack(OldConsumer(a))
    np.testing.assert_array_equal(out, [1, 2])
    insisting = np.from_dlpack(Capsule(a.__dlpack__(copy=False)))
    assert np.shares_memory(insisting, np.asarray(a))
    part = ts.arange(6.0)[::-2]
    np.testing.assert_array_equal(np.from_dlpack(Capsule(part.__dlpack__(copy=False))), [5, 3, 1])


def test_dlpack_lacks_some_dtypes() -> None:
    with pytest.raises(BufferError, match="__dlpack__: an array of dtype int4"):
        np.from_dlpack(ts.ones(2, dtype=ts.int4))
    with pytest.raises(BufferError, match=r"since version 1\.1, and the consumer asks for"):
        np.from_dlpack(ts.ones(2, dtype=ts.float8_e5m2))


# --- copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex128"])
def test_pickle(dtype: str) -> None:
    x = sample(dtype, (3, 2))
    same(pickle.loads(pickle.dumps(ts.asarray(x))), x)


def test_copies_are_the_array_itself() -> None:
    x = ts.ones(3)
    assert copy.copy(x) is x
    assert copy.deepcopy([x])[0] is x
