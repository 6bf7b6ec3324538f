"""Element types: identity, NumPy, promotion, and the inquiries of the array API."""

from __future__ import annotations

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.dtypes import DType, Kind, can_cast, dtype_of, isdtype, promote, result_type
from tessera.errors import DTypeError

SIGNED = (dt.int8, dt.int16, dt.int32, dt.int64)
UNSIGNED = (dt.uint8, dt.uint16, dt.uint32, dt.uint64)
STORAGE = (dt.int4, dt.float8_e4m3fn, dt.float8_e5m2)
MIXING = tuple(d for d in dt.ALL if d not in STORAGE)


def test_names() -> None:
    assert " ".join(str(d) for d in dt.ALL) == (
        "bool i4 i8 i16 i32 i64 u8 u16 u32 u64 f8e4m3fn f8e5m2 f16 bf16 f32 f64 c64 c128"
    )
    assert repr(dt.float32) == "tessera.float32"


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_one_object_however_it_is_named(dtype: DType) -> None:
    for name in (dtype, dtype.name, dtype.full_name, dtype.np, dtype.np.type):
        assert dtype_of(name) is dtype
    assert copy.deepcopy(dtype) is copy.copy(dtype) is pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_numpy_understands_it(dtype: DType) -> None:
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        assert np.zeros(3, dtype).dtype == dtype.np
    assert dtype.itemsize == dtype.np.itemsize
    assert dtype == dtype.np
    assert dtype.np == dtype
    assert dtype == dtype.np.type
    assert dtype.np.type == dtype
    assert hash(dtype) == hash(dtype.np)
    assert [d for d in dt.ALL if d == dtype.np] == [dtype]


def test_python_types_are_the_defaults() -> None:
    found = [dtype_of(t) for t in (bool, int, float, complex)]
    assert found == [dt.bool_, dt.int64, dt.float32, dt.complex64]
    assert dt.default_index is dt.int64


def test_inequality() -> None:
    assert dt.float32 != dt.float64
    assert dt.float32 != np.float64
    assert dt.float32 != "float32"
    assert dt.float32 is not None


def test_no_others_and_no_changes() -> None:
    with pytest.raises(TypeError, match="element types are fixed"):
        DType("f32", "float32", Kind.INT, 8, np.int8)
    with pytest.raises(AttributeError, match="float32: element types do not change"):
        dt.float32.bits = 4
    with pytest.raises(AttributeError, match="do not change"):
        del dt.float32.bits


@pytest.mark.parametrize("bad", ["i128", object, np.dtype("U3"), np.dtype("M8[s]"), [1], "f4"])
def test_unknown_dtypes(bad: object) -> None:
    with pytest.raises(DTypeError, match="is not an element type"):
        dtype_of(bad)  # pyright: ignore[reportArgumentType]


def test_foreign_byte_order() -> None:
    with pytest.raises(DTypeError, match=r"byte order\n  fix: .*astype\('float32'\)"):
        dtype_of(np.dtype(">f4"))


# --- promotion --------------------------------------------------------------------------------


def try_promote(a: DType, b: DType) -> DType | None:
    try:
        return promote(a, b)
    except DTypeError:
        return None


def test_promotion_is_commutative_idempotent_and_reaches_an_upper_bound() -> None:
    for a, b in itertools.product(dt.ALL, repeat=2):
        result = try_promote(a, b)
        assert result is try_promote(b, a)
        assert promote(a, a) is a
        if result is not None:
            assert promote(a, result) is result
            assert promote(b, result) is result


def test_promotion_inside_a_kind_is_numpys() -> None:
    kinds = (SIGNED + UNSIGNED, (dt.float16, dt.float32, dt.float64), (dt.complex64, dt.complex128))
    for kind in kinds:
        for a, b in itertools.product(kind, repeat=2):
            expected = np.promote_types(a.np, b.np)
            found = try_promote(a, b)
            if expected.kind == "f" and kind is kinds[0]:
                assert found is None  # NumPy goes to float64
                assert dt.uint64 in (a, b)
            else:
                assert found == expected


def test_promotion_across_kinds() -> None:
    for a in MIXING:
        assert promote(dt.bool_, a) is a
    for a in SIGNED + UNSIGNED:
        for b in (dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.complex64, dt.complex128):
            assert promote(a, b) is b
    assert promote(dt.float16, dt.bfloat16) is dt.float32
    assert promote(dt.bfloat16, dt.float64) is dt.float64
    assert promote(dt.float32, dt.complex64) is dt.complex64
    assert promote(dt.bfloat16, dt.complex64) is dt.complex64
    assert promote(dt.float64, dt.complex64) is dt.complex128


def test_uint64_and_signed_integers() -> None:
    for signed in SIGNED:
        with pytest.raises(DTypeError, match=f"uint64 and {signed.full_name}") as caught:
            promote(dt.uint64, signed)
        assert "x.astype(ts.int64)" in str(caught.value)


@pytest.mark.parametrize("storage", STORAGE, ids=str)
def test_storage_types_combine_with_themselves_alone(storage: DType) -> None:
    assert storage.is_storage
    for other in dt.ALL:
        if other is not storage:
            with pytest.raises(DTypeError, match=r"is a storage type[^\n]*\n  fix: cast it first"):
                promote(storage, other)


@pytest.mark.parametrize("dtype", MIXING, ids=str)
def test_python_numbers_are_weak(dtype: DType) -> None:
    assert dt.promote_scalar(dtype, True) is dtype
    assert dt.promote_scalar(dtype, 1) is (dt.int64 if dtype.is_bool else dtype)
    by_float = dtype if dtype.is_inexact else dt.float32
    assert dt.promote_scalar(dtype, 1.5) is by_float
    wide = dtype in (dt.float64, dt.complex128)
    assert dt.promote_scalar(dtype, 1j) is (dt.complex128 if wide else dt.complex64)


def test_numpy_scalars_are_not_weak() -> None:
    assert dt.promote_scalar(dt.float32, np.float64(1)) is dt.float64
    assert result_type(dt.float32, np.float64(1)) is dt.float64


def test_integers_that_do_not_fit() -> None:
    assert dt.promote_scalar(dt.uint8, 255) is dt.uint8
    with pytest.raises(DTypeError, match="the number 256 does not fit into uint8"):
        dt.promote_scalar(dt.uint8, 256)
    with pytest.raises(DTypeError, match="the number -1 does not fit into uint64"):
        dt.promote_scalar(dt.uint64, -1)


def test_storage_types_and_numbers() -> None:
    assert dt.promote_scalar(dt.float8_e5m2, 2.5) is dt.float8_e5m2
    assert dt.promote_scalar(dt.float8_e5m2, 2) is dt.float8_e5m2
    assert dt.promote_scalar(dt.int4, 7) is dt.int4
    for storage, number in ((dt.int4, 1.5), (dt.int4, 1j), (dt.float8_e5m2, 1j)):
        with pytest.raises(DTypeError, match="cast it first"):
            dt.promote_scalar(storage, number)


def test_result_type() -> None:
    assert result_type(dt.int8, np.zeros(1, np.uint8)) is dt.int16
    assert result_type(1, dt.int8, True) is dt.int8
    assert result_type(1.5, dt.int8, dt.int32) is dt.float32
    assert result_type(1, 1.5) is dt.float32
    assert result_type(True) is dt.bool_
    assert result_type(3, 1j) is dt.complex64
    assert result_type(np.float32, "f64") is dt.float64
    with pytest.raises(ValueError, match="at least one argument"):
        result_type()


# --- inquiries --------------------------------------------------------------------------------


def test_parts() -> None:
    assert dt.real_of(dt.complex128) is dt.float64
    assert dt.real_of(dt.bfloat16) is dt.bfloat16
    assert dt.complex_of(dt.float64) is dt.complex128
    assert dt.complex_of(dt.bfloat16) is dt.complex64


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.is_float], ids=str)
def test_finfo(dtype: DType) -> None:
    found, expected = dt.finfo(dtype), ml_dtypes.finfo(dtype.np)
    for name in ("bits", "eps", "min", "max", "smallest_normal", "smallest_subnormal"):
        assert getattr(found, name) == float(getattr(expected, name))
        assert type(getattr(found, name)) in (int, float)
    assert found.dtype is dtype


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.is_integer], ids=str)
def test_iinfo(dtype: DType) -> None:
    found, expected = dt.iinfo(dtype), ml_dtypes.iinfo(dtype.np)
    assert (found.bits, found.min, found.max) == (expected.bits, expected.min, expected.max)


def test_limits_of_arrays_and_complex() -> None:
    assert dt.finfo(np.zeros(2, np.complex64)) is dt.finfo(dt.float32)
    assert dt.iinfo(np.zeros(2, np.int8)) is dt.iinfo("i8")
    with pytest.raises(DTypeError, match="use iinfo"):
        dt.finfo(dt.int8)
    with pytest.raises(DTypeError, match="use finfo"):
        dt.iinfo(dt.bool_)


def test_isdtype() -> None:
    kinds = {
        "bool": {Kind.BOOL},
        "signed integer": {Kind.INT},
        "unsigned integer": {Kind.UINT},
        "integral": {Kind.INT, Kind.UINT},
        "real floating": {Kind.FLOAT},
        "complex floating": {Kind.COMPLEX},
        "numeric": set(Kind) - {Kind.BOOL},
    }
    for dtype in dt.ALL:
        for name, members in kinds.items():
            assert isdtype(dtype, name) == (dtype.kind in members)
    assert isdtype(dt.int8, (dt.float32, "integral"))
    assert isdtype(dt.int8, np.int8)
    assert not isdtype(dt.int8, ())
    with pytest.raises(DTypeError, match="'integer' is not a kind"):
        isdtype(dt.int8, "integer")


def test_can_cast() -> None:
    assert can_cast(dt.int8, dt.int16)
    assert not can_cast(dt.int16, dt.int8)
    assert can_cast(np.zeros(1, np.float32), dt.float64)
    assert not can_cast(dt.uint64, dt.int64)
    assert can_cast(dt.int4, dt.int4)
    assert not can_cast(dt.int4, dt.int8)
