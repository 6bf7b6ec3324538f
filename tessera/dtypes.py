"""Element types, and the rules by which they combine.

Every dtype is one object: compare with ``is`` or ``==``. A dtype also equals the NumPy dtype (and
the NumPy scalar type) that it stands for, and hashes as the NumPy dtype does; scalar types such as
``np.float32`` compare equal but hash differently, so do not mix them with dtypes as dict keys.

Promotion follows the array API standard inside a kind. Across kinds, which the standard leaves
open: bool gives way to anything, integers to the floating or complex type beside them, and reals
to a complex type that is wide enough. ``float16`` with ``bfloat16`` gives ``float32``. ``uint64``
never mixes with signed integers. Storage types (``float8_*``, ``int4``) combine only with
themselves. Python numbers are weak: they take the dtype beside them, or its kind's default.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import ml_dtypes
import numpy as np

from tessera.errors import DTypeError


class Kind(enum.Enum):
    """What the elements are."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    COMPLEX = "complex"


class DType:
    """An element type.

    Attributes:
        name: Short name, as the IR prints it: ``f32``.
        full_name: Name in the public namespace: ``float32``.
        np: The NumPy dtype (from ml_dtypes where NumPy has none).
        kind: What the elements are.
        bits: Width of the format; bool counts as 8, and ``int4`` as 4.
        itemsize: Bytes of one element in an array; ``int4`` takes a byte.
        is_storage: Whether values are kept in it but not mixed with other types.
    """

    __slots__ = ("_hash", "bits", "full_name", "is_storage", "itemsize", "kind", "name", "np")

    name: str
    full_name: str
    np: np.dtype[Any]
    kind: Kind
    bits: int
    itemsize: int
    is_storage: bool
    _hash: int

    def __init__(self, name: str, full_name: str, kind: Kind, bits: int, scalar: object) -> None:
        if name in _BY_NAME:
            raise TypeError("element types are fixed; get one with tessera.dtypes.dtype_of(...)")
        numpy_dtype: np.dtype[Any] = np.dtype(scalar)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
        values: dict[str, object] = {
            "name": name,
            "full_name": full_name,
            "np": numpy_dtype,
            "kind": kind,
            "bits": bits,
            "itemsize": numpy_dtype.itemsize,
            "is_storage": bits < 8 or (kind is Kind.FLOAT and bits == 8),
            "_hash": hash(numpy_dtype),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        _BY_NAME[name] = _BY_NAME[full_name] = self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.full_name}: element types do not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.full_name}: element types do not change")

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        # NumPy's protocol: np.zeros(3, ts.float32) works.
        return self.np

    @property
    def is_bool(self) -> bool:
        """Whether the elements are truth values."""
        return self.kind is Kind.BOOL

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers, signed or not."""
        return self.kind is Kind.INT or self.kind is Kind.UINT

    @property
    def is_float(self) -> bool:
        """Whether the elements are real floating-point numbers."""
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self.kind is Kind.COMPLEX

    @property
    def is_inexact(self) -> bool:
        """Whether the elements are floating-point numbers, real or complex."""
        return self.kind is Kind.FLOAT or self.kind is Kind.COMPLEX

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, np.dtype):
            return bool(self.np == other)
        if isinstance(other, type) and issubclass(other, np.generic):
            return self.np.type is other
        return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tessera.{self.full_name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return dtype_of, (self.name,)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self


_BY_NAME: dict[str, DType] = {}

bool_: Final = DType("bool", "bool", Kind.BOOL, 8, np.bool_)
int4: Final = DType("i4", "int4", Kind.INT, 4, ml_dtypes.int4)
int8: Final = DType("i8", "int8", Kind.INT, 8, np.int8)
int16: Final = DType("i16", "int16", Kind.INT, 16, np.int16)
int32: Final = DType("i32", "int32", Kind.INT, 32, np.int32)
int64: Final = DType("i64", "int64", Kind.INT, 64, np.int64)
uint8: Final = DType("u8", "uint8", Kind.UINT, 8, np.uint8)
uint16: Final = DType("u16", "uint16", Kind.UINT, 16, np.uint16)
uint32: Final = DType("u32", "uint32", Kind.UINT, 32, np.uint32)
uint64: Final = DType("u64", "uint64", Kind.UINT, 64, np.uint64)
float8_e4m3fn: Final = DType("f8e4m3fn", "float8_e4m3fn", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fn)
float8_e5m2: Final = DType("f8e5m2", "float8_e5m2", Kind.FLOAT, 8, ml_dtypes.float8_e5m2)
float16: Final = DType("f16", "float16", Kind.FLOAT, 16, np.float16)
bfloat16: Final = DType("bf16", "bfloat16", Kind.FLOAT, 16, ml_dtypes.bfloat16)
float32: Final = DType("f32", "float32", Kind.FLOAT, 32, np.float32)
float64: Final = DType("f64", "float64", Kind.FLOAT, 64, np.float64)
complex64: Final = DType("c64", "complex64", Kind.COMPLEX, 64, np.complex64)
complex128: Final = DType("c128", "complex128", Kind.COMPLEX, 128, np.complex128)

ALL: Final[tuple[DType, ...]] = tuple(dict.fromkeys(_BY_NAME.values()))
"""Every dtype."""

default_float: Final = float32
default_int: Final = int64
default_complex: Final = complex64
default_index: Final = int64

DTypeLike: TypeAlias = DType | np.dtype[Any] | str | type
"""What ``dtype_of`` accepts."""

PythonScalar: TypeAlias = bool | int | float | complex
"""Python numbers, which promote weakly."""

_PYTHON_TYPES: Mapping[type, DType] = MappingProxyType(
    {bool: bool_, int: default_int, float: default_float, complex: default_complex}
)
_BY_KEY: dict[object, DType] = {
    **{d.np: d for d in ALL},
    **{d.np.type: d for d in ALL},
    **_BY_NAME,
    **_PYTHON_TYPES,
}


def dtype_of(dtype: DTypeLike) -> DType:
    """The dtype that something names.

    Args:
        dtype: A dtype, a NumPy dtype or scalar type, a name (``"f32"`` or ``"float32"``), or one of
            the Python types ``bool``, ``int``, ``float``, ``complex``, which mean the defaults.

    Raises:
        DTypeError: There is no such dtype. NumPy's byte-count codes are among what is refused:
            ``"i8"`` is the 8-bit integer here, as in the IR.
    """
    if isinstance(dtype, DType):
        return dtype
    try:
        return _BY_KEY[dtype]
    except (KeyError, TypeError):
        pass
    if isinstance(dtype, np.dtype):
        native = dtype.newbyteorder("=")
        if native in _BY_KEY:
            raise DTypeError(
                f"dtype: {dtype.str} does not have this machine's byte order",
                fix=f"convert the array first: x.astype('{native.name}')",
            )
    raise DTypeError(
        f"dtype: {dtype!r} is not an element type",
        rule="the element types are " + ", ".join(d.full_name for d in ALL),
        fix=_similar(dtype),
    )


def _similar(dtype: object) -> str | None:
    """What may have been meant."""
    import difflib  # slow to load, and seldom needed

    names = {"int": "int64", "float": "float32", "double": "float64", "half": "float16"}
    known = [d.full_name for d in ALL]
    if not isinstance(dtype, str):
        return "give the shape as one tuple" if isinstance(dtype, int) else None
    close = names.get(dtype) or next(iter(difflib.get_close_matches(dtype, known, 1)), None)
    return f"use `ts.{close}`" if close else None


def _dtype_in(x: object) -> DType:
    """The dtype that an argument is or, if it is an array, has."""
    named = x if isinstance(x, (DType, type, str)) else getattr(x, "dtype", x)
    return dtype_of(cast(DTypeLike, named))


def real_of(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; any other dtype is its own."""
    if dtype.kind is not Kind.COMPLEX:
        return dtype
    return float32 if dtype is complex64 else float64


def complex_of(dtype: DType) -> DType:
    """The complex dtype that holds a dtype's values: complex128 for float64, else complex64."""
    if dtype.kind is Kind.COMPLEX:
        return dtype
    return complex128 if dtype is float64 else complex64


# --- promotion --------------------------------------------------------------------------------


def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation between arrays of two dtypes.

    Raises:
        DTypeError: The two do not combine.
    """
    if a is b:
        return a
    result = _TABLE.get((a.name, b.name))
    if result is None:
        raise _no_promotion(a, b)
    return result


def _combine(a: DType, b: DType) -> DType | None:
    if a is b:
        return a
    if a.is_storage or b.is_storage:
        return None
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.is_complex or b.is_complex:
        wide = complex128 in (complex_of(a), complex_of(b))
        return complex128 if wide else complex64
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            return float32  # float16 and bfloat16: neither holds the other
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind is b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind is Kind.INT else (b, a)
    bits = max(signed.bits, 2 * unsigned.bits)
    return {16: int16, 32: int32, 64: int64}.get(bits)


_TABLE: Mapping[tuple[str, str], DType] = MappingProxyType(
    {(a.name, b.name): r for a in ALL for b in ALL if (r := _combine(a, b)) is not None}
)


def _no_promotion(a: DType, b: DType) -> DTypeError:
    what = f"promotion: {a.full_name} and {b.full_name} do not combine"
    storage = next((d for d in (a, b) if d.is_storage), None)
    if storage is not None:
        other = b if storage is a else a
        target = other.full_name
        if other.is_storage or other.is_bool:
            target = "int8" if storage is int4 and not other.is_float else "float32"
        return DTypeError(
            what,
            rule=f"{storage.full_name} is a storage type: it combines only with itself",
            fix=f"cast it first: x.astype(ts.{target})",
        )
    return DTypeError(
        what,
        rule="no integer type holds all values of uint64 and of a signed integer",
        fix="cast one operand first, e.g. x.astype(ts.int64)",
    )


def promote_scalar(dtype: DType, value: PythonScalar) -> DType:
    """The dtype of an operation between an array and a Python number, which is weak.

    A NumPy scalar is not weak: it counts as an array of its dtype.

    Raises:
        DTypeError: The number is an integer that the array's integer dtype cannot hold, or it is
            of a kind that a storage dtype does not combine with.
    """
    if isinstance(value, np.generic):
        return promote(dtype, dtype_of(value.dtype))
    if isinstance(value, bool):
        return dtype
    if isinstance(value, int):
        return default_int if dtype.is_bool else _check_fits(dtype, value)
    if isinstance(value, float):
        return dtype if dtype.is_inexact else _leave_kind(dtype, default_float, value)
    return _leave_kind(dtype, complex_of(dtype), value)


def _check_fits(dtype: DType, value: int) -> DType:
    if dtype.is_integer:
        limits = iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise DTypeError(
                f"promotion: the number {value} does not fit into {dtype.full_name}",
                rule=f"a Python number takes the dtype of the array beside it; {dtype.full_name} "
                f"holds {limits.min} to {limits.max}",
                fix="cast the array to a wider type first",
            )
    return dtype


def _leave_kind(dtype: DType, result: DType, value: PythonScalar) -> DType:
    if dtype.is_storage:
        raise DTypeError(
            f"promotion: {dtype.full_name} does not combine with the number {value!r}",
            rule=f"{dtype.full_name} is a storage type: it combines only with itself",
            fix=f"cast it first: x.astype(ts.{result.full_name})",
        )
    return result


def result_type(*args: object) -> DType:
    """The dtype that operands have together.

    Args:
        args: Dtypes (or what ``dtype_of`` accepts), arrays, and Python numbers. Numbers are weak,
            whatever their position; numbers alone give the default of their widest kind.

    Raises:
        DTypeError: Two of them do not combine.
        ValueError: There is no argument.
    """
    strong: DType | None = None
    weak: list[PythonScalar] = []
    for arg in args:
        if isinstance(arg, (bool, int, float, complex)) and not isinstance(arg, np.generic):
            weak.append(arg)
            continue
        dtype = _dtype_in(arg)
        strong = dtype if strong is None else promote(strong, dtype)
    if strong is None:
        if not weak:
            raise ValueError("result_type needs at least one argument")
        strong = (bool_, default_int, default_float, default_complex)[max(map(_rank, weak))]
    result = strong
    for value in weak:
        result = promote_scalar(result, value)
    return result


def _rank(value: PythonScalar) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1
    return 2 if isinstance(value, float) else 3


# --- inquiries of the array API ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FInfo:
    """Limits of a floating-point dtype; those of a complex dtype are its parts'."""

    dtype: DType
    bits: int
    eps: float
    min: float
    max: float
    smallest_normal: float
    smallest_subnormal: float


@dataclass(frozen=True, slots=True)
class IInfo:
    """Limits of an integer dtype."""

    dtype: DType
    bits: int
    min: int
    max: int


def _float_limits(dtype: DType) -> FInfo:
    limits = cast(Any, ml_dtypes.finfo(dtype.np))
    return FInfo(
        dtype,
        dtype.bits,
        float(limits.eps),
        float(limits.min),
        float(limits.max),
        float(limits.smallest_normal),
        float(limits.smallest_subnormal),
    )


def _integer_limits(dtype: DType) -> IInfo:
    if dtype.kind is Kind.INT:
        return IInfo(dtype, dtype.bits, -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return IInfo(dtype, dtype.bits, 0, (1 << dtype.bits) - 1)


_FLOAT_LIMITS: dict[str, FInfo] = {}
_INTEGER_LIMITS: Mapping[str, IInfo] = MappingProxyType(
    {d.name: _integer_limits(d) for d in ALL if d.is_integer}
)


def finfo(type: object, /) -> FInfo:
    """Limits of a floating-point or complex dtype, or of an array's dtype.

    Raises:
        DTypeError: The dtype is neither.
    """
    dtype = _dtype_in(type)
    if not dtype.is_inexact:
        raise DTypeError(f"finfo: {dtype.full_name} is not a floating-point type", fix="use iinfo")
    dtype = real_of(dtype)
    limits = _FLOAT_LIMITS.get(dtype.name)
    if limits is None:
        limits = _FLOAT_LIMITS[dtype.name] = _float_limits(dtype)
    return limits


def iinfo(type: object, /) -> IInfo:
    """Limits of an integer dtype, or of an array's dtype.

    Raises:
        DTypeError: The dtype is not an integer type.
    """
    dtype = _dtype_in(type)
    if not dtype.is_integer:
        raise DTypeError(f"iinfo: {dtype.full_name} is not an integer type", fix="use finfo")
    return _INTEGER_LIMITS[dtype.name]


_KIND_NAMES: Mapping[str, frozenset[Kind]] = MappingProxyType(
    {
        "bool": frozenset({Kind.BOOL}),
        "signed integer": frozenset({Kind.INT}),
        "unsigned integer": frozenset({Kind.UINT}),
        "integral": frozenset({Kind.INT, Kind.UINT}),
        "real floating": frozenset({Kind.FLOAT}),
        "complex floating": frozenset({Kind.COMPLEX}),
        "numeric": frozenset({Kind.INT, Kind.UINT, Kind.FLOAT, Kind.COMPLEX}),
    }
)


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether a dtype is of a kind, as the array API standard defines it.

    Args:
        dtype: The dtype.
        kind: A dtype; ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``,
            ``"real floating"``, ``"complex floating"`` or ``"numeric"``; or a tuple of such.

    Raises:
        DTypeError: ``kind`` is none of these.
    """
    found = dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, one) for one in kind)
    if isinstance(kind, str):
        kinds = _KIND_NAMES.get(kind)
        if kinds is None:
            names = ", ".join(repr(name) for name in _KIND_NAMES)
            raise DTypeError(f"isdtype: {kind!r} is not a kind", rule=f"the kinds are {names}")
        return found.kind in kinds
    return found is dtype_of(kind)


def can_cast(from_: object, to: DTypeLike) -> bool:
    """Whether a dtype (or an array's) becomes another by promotion alone."""
    source = _dtype_in(from_)
    target = dtype_of(to)
    return source is target or _TABLE.get((source.name, target.name)) is target
