"""Functions that make arrays, dtype functions, and what arrays are made from."""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import ALL, FLOATS, NUMERIC, dtype_of, engine, host, same, sample

__all__ = ["engine"]


# --- asarray ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"), (3, "int64"), (2.5, "float32"), (1 + 2j, "complex64"),
        ([1, 2], "int64"), ([1, 2.5], "float32"), ([True, False], "bool"), ([1, 2j], "complex64"),
        ([[1, 2], [3, 4]], "int64"), ([True, 2], "int64"), ([], "float32"), ([[]], "float32"),
        ((1, 2), "int64"), ([np.float64(1), 2], "float64"), ([np.int8(1), 2], "int8"),
    ],
)  # fmt: skip
def test_python_values(value: Any, dtype: str) -> None:
    same(ts.asarray(value), np.asarray(value).astype(dtype), dtype)


def test_large_arrays_begin_on_a_page() -> None:
    x = np.arange(37.0 * 200).reshape(37, 200)
    made = [
        ts.asarray(x), ts.asarray(x.T), ts.asarray(x, dtype=ts.float32), ts.asarray(x.tolist()),
        ts.asarray(ts.asarray(x), copy=True), ts.zeros((37, 200)), ts.ones_like(x),
        ts.full((37, 200), 2.5, dtype=ts.bfloat16),
    ]  # fmt: skip
    assert [host(a).ctypes.data % 4096 for a in made] == [0] * len(made)
    same(made[1], x.T)
    same(made[2], x.astype(np.float32))
    same(made[7], np.full((37, 200), 2.5, ml_dtypes.bfloat16))
    assert host(ts.asarray(x, copy=False)).ctypes.data == x.ctypes.data


@pytest.mark.parametrize("dtype", ALL)
def test_numpy_arrays_keep_their_dtype(dtype: str) -> None:
    x = sample(dtype, (3, 4))
    same(ts.asarray(x), x)
    same(ts.asarray(x[::2, ::-1]), x[::2, ::-1])
    same(ts.asarray(x[0, 0]), x[0, 0])
    same(ts.asarray(np.asfortranarray(x)), x)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_a_dtype_asked_for(dtype: str) -> None:
    wanted = np.asarray([1, 2, 3]).astype(dtype_of(dtype))
    same(ts.asarray([1, 2, 3], dtype=getattr(ts, dtype)), wanted)
    same(ts.asarray([1, 2, 3], dtype=dtype_of(dtype)), wanted)
    same(ts.asarray(np.asarray([1, 2, 3]), dtype=dtype), wanted)
    same(ts.asarray(ts.asarray([1, 2, 3]), dtype=dtype), wanted)
    same(ts.asarray(1, dtype=dtype), wanted[0])


def test_memory_is_copied_unless_told_otherwise() -> None:
    x = np.zeros(3)
    copied, shared = ts.asarray(x), ts.asarray(x, copy=False)
    x[0] = 1
    assert host(copied)[0] == 0
    assert host(shared)[0] == 1
    assert x.flags.writeable
    again = ts.asarray(shared)
    assert again is shared
    assert ts.asarray(shared, copy=True) is not shared


@pytest.mark.parametrize("value", [3, [1, 2], (1.0,)])
def test_what_cannot_be_shared(value: Any) -> None:
    with pytest.raises(TypeError, match="asarray: copy=False, but"):
        ts.asarray(value, copy=False)
    with pytest.raises(TypeError, match="the data have dtype"):
        ts.asarray(np.zeros(3), dtype=ts.float32, copy=False)


def test_arrays_in_sequences() -> None:
    x = ts.asarray([1.0, 2.0])
    same(ts.asarray([x, x]), [[1, 2], [1, 2]], "float32")
    same(ts.asarray([x, [3, 4]]), [[1, 2], [3, 4]], "float32")
    same(ts.asarray([x[0], 5]), [1, 5], "float32")


def test_other_sources() -> None:
    same(ts.asarray(array.array("d", [1.0, 2.0])), [1.0, 2.0])
    same(ts.asarray(b"ab"), np.asarray([97, 98], np.uint8))
    same(ts.asarray(memoryview(np.arange(3))), np.arange(3))
    same(ts.asarray(np.float32(3)), np.float32(3))
    same(ts.asarray(np.arange(3).astype(">i4")), np.arange(3, dtype=np.int32))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"], "the sequence holds a value of type str"),
        ("ab", "cannot make an array of a value of type str"),
        (None, "cannot make an array of a value of type NoneType"),
        ({}, "cannot make an array of a value of type dict"),
        (np.asarray(["a"]), "got a NumPy array of dtype"),
        (np.asarray([None]), "got a NumPy array of dtype object"),
        ([[1, 2], [3]], "the nested sequences have different lengths"),
        ([2**64], "a number does not fit into int64"),
    ],
)
def test_what_no_array_is_made_of(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ts.asarray(value)


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(OverflowError, match="does not fit into int8"):
        ts.asarray([300], dtype=ts.int8)
    for make in (ts.full, lambda n, x, **k: ts.full_like(ts.zeros(n), x, **k)):
        for value, dtype in ((300, ts.int8), (-1, ts.uint8), (2**70, ts.int64), (2**70, ts.int32)):
            with pytest.raises(OverflowError, match=f"full.*does not fit into {dtype.full_name}"):
                make(2, value, dtype=dtype)
        same(make(2, 1e300, dtype=ts.float32), [np.inf, np.inf], "float32")
    same(ts.asarray([2**63], dtype=ts.uint64), np.asarray([2**63], np.uint64))
    same(ts.asarray([1e60]), [np.inf], "float32")


# --- constants and ranges ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_constants(dtype: str) -> None:
    for shape in (3, (), (2, 0), (2, 3)):
        own = getattr(ts, dtype)
        same(ts.zeros(shape, dtype=own), np.zeros(shape, dtype_of(dtype)))
        same(ts.ones(shape, dtype=own), np.ones(shape, dtype_of(dtype)))
        same(ts.full(shape, 1, dtype=own), np.full(shape, 1, dtype_of(dtype)))
        assert ts.empty(shape, dtype=own).shape == np.zeros(shape).shape
    like = ts.ones((2, 3), dtype=getattr(ts, dtype))
    same(ts.zeros_like(like), np.zeros((2, 3), dtype_of(dtype)))
    same(ts.ones_like(like), np.ones((2, 3), dtype_of(dtype)))
    same(ts.full_like(like, 1), np.ones((2, 3), dtype_of(dtype)))
    assert ts.empty_like(like).dtype is like.dtype
    assert ts.zeros_like(like, dtype=ts.int8).dtype is ts.int8


def test_default_dtypes() -> None:
    assert ts.zeros(1).dtype is ts.float32
    assert ts.ones(1).dtype is ts.float32
    assert ts.empty(1).dtype is ts.float32
    assert ts.eye(1).dtype is ts.float32
    assert ts.full(1, 2).dtype is ts.int64
    assert ts.full(1, True).dtype is ts.bool
    assert ts.full(1, 2.0).dtype is ts.float32
    assert ts.full(1, 2j).dtype is ts.complex64
    assert ts.arange(3).dtype is ts.int64
    assert ts.arange(3.0).dtype is ts.float32
    assert ts.linspace(0, 1, 3).dtype is ts.float32


def test_full_of_an_array() -> None:
    same(ts.full((2,), ts.asarray(3, dtype=ts.int8)), np.asarray([3, 3], np.int8))
    with pytest.raises(ValueError, match=r"full: the value has type f32\[2\]"):
        ts.full((2,), ts.ones(2))


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, "ab", None, (1.5,), [[1]]])
def test_wrong_shapes(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"zeros: (the shape|dim)"):
        ts.zeros(shape)


@pytest.mark.parametrize(
    "args",
    [(5,), (2, 7), (1, 10, 3), (10, 1, -3), (5, 1), (0,), (0.5, 3), (0, 1, 0.1), (3, 0, -0.5)],
)
def test_arange(args: Any) -> None:
    wanted = np.arange(*args)
    same(ts.arange(*args), wanted.astype(np.float32) if wanted.dtype.kind == "f" else wanted)
    same(ts.arange(*args, dtype=ts.float64), wanted.astype(np.float64))


def test_arange_of_narrow_dtypes() -> None:
    same(ts.arange(4, dtype=ts.uint8), np.arange(4, dtype=np.uint8))
    same(ts.arange(4, dtype=ts.bfloat16), np.arange(4).astype(ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="arange: the step is 0"):
        ts.arange(0, 3, 0)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-2, 5), (3, -3), (1.5, 1.5)])
def test_linspace(ends: Any, count: int, endpoint: bool) -> None:
    wanted = np.linspace(*ends, count, endpoint=endpoint)
    same(ts.linspace(*ends, count, endpoint=endpoint), wanted.astype(np.float32))
    same(ts.linspace(*ends, count, dtype=ts.float64, endpoint=endpoint), wanted)
    a, b = (ts.asarray(float(x)) for x in ends)
    same(ts.linspace(a, b, count, endpoint=endpoint), wanted.astype(np.float32))


def test_linspace_of_complex_numbers() -> None:
    same(ts.linspace(0, 1 + 2j, 5), np.linspace(0, 1 + 2j, 5).astype(np.complex64))


@pytest.mark.parametrize("args", [(3,), (2, 4), (4, 2), (0, 3)])
@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3])
def test_eye_and_triangles(args: Any, k: int) -> None:
    same(ts.eye(*args, k=k), np.eye(*args, k=k).astype(np.float32))
    x = sample("float64", (2, *args) if len(args) == 2 else (*args, *args))
    same(ts.tril(ts.asarray(x), k=k), np.tril(x, k))
    same(ts.triu(ts.asarray(x), k=k), np.triu(x, k))


def test_triangles_of_vectors() -> None:
    with pytest.raises(ValueError, match=r"tril: the array is f32\[3\]"):
        ts.tril(ts.ones(3))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (2, 3, 4), (0, 2)])
def test_meshgrid(indexing: Any, sizes: tuple[int, ...]) -> None:
    lines = [np.arange(n) for n in sizes]
    wanted = np.meshgrid(*lines, indexing=indexing)
    found = ts.meshgrid(*map(ts.asarray, lines), indexing=indexing)
    assert isinstance(found, list)
    for a, b in zip(found, wanted, strict=True):
        same(a, b)


def test_one_hot() -> None:
    x = np.asarray([[0, 2], [1, 5]])
    wanted = (x[..., None] == np.arange(3)).astype(np.float32)
    same(ts.one_hot(ts.asarray(x), 3), wanted)
    same(ts.one_hot(ts.asarray(x), 3, axis=0), np.moveaxis(wanted, -1, 0))
    same(ts.one_hot(ts.asarray(2), 3, dtype=ts.bool), [False, False, True], "bool")
    with pytest.raises(TypeError, match="one_hot: the indices are f32"):
        ts.one_hot(ts.ones(2), 3)


def test_random_bits() -> None:
    key = ts.asarray([1, 2], dtype=ts.uint32)
    found = ts.random_bits(key, (1000,))
    assert found.dtype is ts.uint32
    assert len(np.unique(host(found))) > 990
    assert (host(found) == host(ts.random_bits(key, 1000))).all()
    with pytest.raises(TypeError, match="random_bits: the key is"):
        ts.random_bits(ts.asarray([1, 2]), 3)


def test_devices() -> None:
    assert ts.zeros(1, device="cpu").device == ts.zeros(1).device
    assert str(ts.ones(1).device) == "cpu"
    assert ts.asarray(1, device=ts.ones(1).device).to_device("cpu").shape == ()
    with pytest.raises(ValueError, match="zeros: there is no device 'tpu'"):
        ts.zeros(1, device="tpu")


# --- dtype functions --------------------------------------------------------------------------


@pytest.mark.parametrize("a", ALL)
@pytest.mark.parametrize("b", ALL)
def test_astype(a: str, b: str) -> None:
    x = np.abs(sample(a, (3, 4))) if a != "bool" else sample(a, (3, 4))
    x = x.astype(dtype_of(a))
    if a.startswith("complex") and not b.startswith("complex") and b != "bool":
        with pytest.raises(TypeError, match=r"astype: .* does not become"):
            ts.astype(ts.asarray(x), getattr(ts, b))
        return
    same(ts.asarray(x).astype(getattr(ts, b)), x.astype(dtype_of(b)))
    assert ts.astype(ts.asarray(x), getattr(ts, b), copy=False).dtype is getattr(ts, b)


def test_astype_outside_of_the_range() -> None:
    x = ts.asarray([np.nan, np.inf, -np.inf, 300.0, -300.0, 2.7, -2.7])
    same(ts.astype(x, ts.int8), [0, 127, -128, 127, -128, 2, -2], "int8")
    same(ts.astype(x, ts.uint8), [0, 255, 0, 255, 0, 2, 0], "uint8")


def test_questions_about_dtypes() -> None:
    assert ts.can_cast(ts.int8, ts.int16)
    assert not ts.can_cast(ts.int16, ts.int8)
    assert ts.can_cast(ts.ones(1, dtype=ts.float32), ts.float64)
    assert ts.finfo(ts.float32).eps == np.finfo(np.float32).eps
    assert ts.finfo(ts.ones(1)).bits == 32
    assert ts.finfo(ts.complex64).dtype is ts.float32
    assert ts.iinfo(ts.uint8).max == 255
    assert ts.isdtype(ts.float32, "real floating")
    assert ts.isdtype(ts.int8, ("signed integer", "bool"))
    assert not ts.isdtype(ts.int8, ts.int16)
    assert ts.result_type(ts.int8, ts.ones(1, dtype=ts.int16)) is ts.int16
    assert ts.result_type(ts.ones(1, dtype=ts.int8), 1) is ts.int8
    assert ts.result_type(ts.ones(1, dtype=ts.int8), 1.0) is ts.float32


@pytest.mark.parametrize("dtype", FLOATS)
def test_finfo(dtype: str) -> None:
    found, wanted = ts.finfo(getattr(ts, dtype)), ml_dtypes.finfo(dtype_of(dtype))
    assert found.max == float(wanted.max)
    assert found.min == float(wanted.min)
    assert found.smallest_normal == float(wanted.smallest_normal)


# --- the namespace ----------------------------------------------------------------------------


def test_namespace_info() -> None:
    info = ts.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] is ts.float32
    assert set(info.dtypes(kind="integral")) == {
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
    }  # fmt: skip
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {
        "bool", "complex64", "complex128"
    }  # fmt: skip
    assert len(info.dtypes()) == 13
    assert ts.ones(1).__array_namespace__() is ts
    assert ts.ones(1).__array_namespace__(api_version="2024.12") is ts
    with pytest.raises(TypeError, match="version '1999'"):
        ts.ones(1).__array_namespace__(api_version="1999")


STANDARD = [
    "__array_namespace_info__",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "concat",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "finfo",
    "flip",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hypot",
    "iinfo",
    "imag",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "negative",
    "nextafter",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "positive",
    "pow",
    "prod",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "searchsorted",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
    "e",
    "inf",
    "nan",
    "newaxis",
    "pi",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def test_everything_of_the_standard_is_there() -> None:
    assert [name for name in STANDARD if not hasattr(ts, name)] == []
    assert set(STANDARD) <= {*dir(ts)}


def test_what_is_missing_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ts.linalg.nothing
    with pytest.raises(AttributeError, match="module 'tessera' has no attribute 'nothing'"):
        _ = ts.nothing


# The extensions of the standard's draft: 2024.12, and `eig` and `eigvals`, which came later.
LINALG = (
    "cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power"
    " matrix_rank matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot"
    " vector_norm"
)
FFT = "fft fftfreq fftn fftshift hfft ifft ifftn ifftshift ihfft irfft irfftn rfft rfftfreq rfftn"


def test_the_extensions_are_there() -> None:
    assert set(LINALG.split()) <= {*dir(ts.linalg)}
    assert set(FFT.split()) <= {*dir(ts.fft)}
    assert ts.linalg.matmul is ts.matmul
