"""What public functions do with their arguments before they bind ops.

Numbers and NumPy arrays become arrays, dtypes are promoted by the array API's rules with weak
Python numbers, shapes are broadcast by explicit ops, and axes are counted from the front. Messages
start with the public function's name and point to the user's line.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from tessera.config import config
from tessera.dtypes import (
    DType,
    DTypeLike,
    Kind,
    PythonScalar,
    default_float,
    default_int,
    dtype_of,
    iinfo,
    promote,
    promote_scalar,
    result_type,
)
from tessera.errors import (
    AxisError,
    ConcretizationError,
    DTypeError,
    LeafError,
    NumberRangeError,
    ShapeError,
)
from tessera.graph.array import Array, ArrayBase, dtype_from_numpy, repeated
from tessera.graph.host_copy import host_copy, host_full
from tessera.graph.ops.checks import shape_text
from tessera.graph.ops.elementwise import cast
from tessera.graph.ops.rearrange import broadcast, constant, full, iota, reshape, slice_axis
from tessera.graph.placement import common_device, device_of, placed
from tessera.graph.state import Cell
from tessera.graph.trace import Tracer, is_tracing, items_of
from tessera.ir import loc
from tessera.ir.assumptions import about
from tessera.ir.intexpr import Dim, IntExpr
from tessera.ir.types import TensorType

ArrayLike: TypeAlias = "ArrayBase | np.ndarray | np.generic | bool | int | float | complex"
"""What functions take as an array. Python numbers are weak: they take the dtype beside them."""

Shape: TypeAlias = "int | IntExpr | Sequence[int | IntExpr]"
"""What functions take as a shape."""

NUMBERS = (bool, int, float, complex)

# A stand-in for any weak value of the kind: promotion asks for the kind only.
_SAMPLES: dict[Kind, PythonScalar] = {
    Kind.BOOL: False,
    Kind.INT: 0,
    Kind.UINT: 0,
    Kind.FLOAT: 0.0,
    Kind.COMPLEX: 0j,
}

_NUMPY_KINDS = "biufc"
_EXTENSION_TYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"})


def is_number(x: object) -> TypeGuard[PythonScalar]:
    """Whether `x` is a Python number. NumPy's scalars are none: they have a dtype."""
    return isinstance(x, NUMBERS) and not isinstance(x, np.generic)


def is_numpy(x: object) -> TypeGuard[np.ndarray]:
    """Whether `x` is NumPy's: an array, or a scalar, which has the same attributes."""
    return isinstance(x, (np.ndarray, np.generic))


def is_sequence(x: object) -> TypeGuard[Sequence[Any]]:
    """Whether `x` is a tuple or a list, which hold several of something."""
    return isinstance(x, (tuple, list))


def number(value: PythonScalar, dtype: DType, weak: bool = False) -> Any:
    """A Python number as an array without dims."""
    if is_tracing():
        return constant(value, dtype, weak)
    with np.errstate(all="ignore"):
        data = np.asarray(value).astype(dtype.np)
    return Array(data, TensorType((), dtype, weak=True) if weak else None)


def as_array(name: str, x: object) -> Any:
    """An argument as an array or tracer."""
    if isinstance(x, ArrayBase):
        return x
    if is_number(x):
        return number(x, dtype_of(type(x)), weak=True)
    if is_numpy(x):
        # A copy: the result may be a view of it, or a trace keep it, and the user may write to `x`.
        return Array(host_copy(checked_data(name, np.asarray(x))))
    if isinstance(x, IntExpr) and is_tracing():
        return dim_value(x)
    if isinstance(x, Cell):
        raise LeafError(
            f"{name}: got the ref `{x.name}`, which is no array",
            loc=loc.current(),
            rule="functions of arrays take arrays and Python numbers; a ref holds arrays",
            fix="read it: `ref.get()`, or `ref[...]`",
        )
    raise LeafError(
        f"{name}: got {_described(x)}, which is no array",
        loc=loc.current(),
        rule="functions of arrays take arrays and Python numbers",
        fix="make an array of it with `ts.asarray`",
    )


def dim_value(size: IntExpr) -> Any:
    """A symbolic dim as an array without dims, weak as a Python int is."""
    # The last of the numbers from 0 to the size.
    line = iota((size + 1,), 0, default_int)
    return cast(reshape(slice_axis(line, 0, size, size + 1), ()), default_int, weak=True)


def _described(x: object) -> str:
    text = type(x).__name__
    return text if text == "NoneType" else f"a value of type {text}"


def checked_data(name: str, data: np.ndarray) -> np.ndarray:
    """A NumPy array whose elements can be those of an array."""
    if data.dtype.kind not in _NUMPY_KINDS and data.dtype.name not in _EXTENSION_TYPES:
        raise LeafError(
            f"{name}: got a NumPy array of dtype {data.dtype}",
            loc=loc.current(),
            rule="arrays hold numbers or bools",
            fix="convert it to a numeric dtype first",
        )
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    try:
        dtype_from_numpy(data.dtype)
    except DTypeError:
        raise LeafError(
            f"{name}: got a NumPy array of dtype {data.dtype}",
            loc=loc.current(),
            rule="the widest dtypes are float64 and complex128",
            fix="convert it first, as with `x.astype(np.float64)`",
        ) from None
    return data


# --- dtypes -----------------------------------------------------------------------------------


def common_dtype(name: str, values: Sequence[object]) -> tuple[DType, bool]:
    """The dtype that operands have together, and whether the result is weak."""
    same = _shared_dtype(values)
    if same is not None:
        return same, False
    strong: DType | None = None
    weak: list[PythonScalar] = []
    try:
        for x in values:
            if isinstance(x, ArrayBase):
                type = x.type
                if type.weak:
                    weak.append(_SAMPLES[type.dtype.kind])
                else:
                    strong = type.dtype if strong is None else promote(strong, type.dtype)
            elif is_number(x):
                weak.append(x)
            else:
                raise AssertionError("operands are arrays or numbers")
        if strong is None:
            return result_type(*weak), True
        found = strong
        for value in weak:
            found = promote_scalar(found, value)
        return found, False
    except DTypeError as error:
        what = error.what.removeprefix("promotion: ")
        types = " and ".join([_operand_text(x) for x in values])
        raise DTypeError(
            f"{name}: got {types}; {what}", loc=loc.current(), rule=error.rule, fix=error.fix
        ) from None


def _shared_dtype(values: Sequence[object]) -> DType | None:
    """The dtype of arrays that all have one: the usual case, which needs no types."""
    found: DType | None = None
    for x in values:
        if type(x) is not Array or x.weak:
            return None
        dtype = x.dtype
        if found is not None and dtype is not found:
            return None
        found = dtype
    return found


def _operand_text(x: object) -> str:
    return str(x.type.strong()) if isinstance(x, ArrayBase) else f"the number {x}"


def to_dtype(x: Any, dtype: DType, weak: bool = False) -> Any:
    """An operand as an array of a dtype."""
    return number(x, dtype, weak) if is_number(x) else cast(x, dtype, weak)


def parse_dtype(name: str, dtype: DTypeLike) -> DType:
    """A `dtype` argument."""
    try:
        return dtype_of(dtype)
    except DTypeError as error:
        raise DTypeError(
            f"{name}: {error.what.removeprefix('dtype: ')}",
            loc=loc.current(),
            rule=error.rule,
            fix=error.fix,
        ) from None


def as_inexact(name: str, x: object) -> Any:
    """An argument as an array of floating-point or complex dtype."""
    found = as_array(name, x)
    return found if found.dtype.is_inexact else cast(found, default_float)


# --- shapes -----------------------------------------------------------------------------------


def operands(name: str, *values: object) -> list[Any]:
    """Operands as arrays of one dtype and one shape."""
    if len(values) == 2:
        x, y = values
        if type(x) is Array and is_number(y) and (found := beside(x, y)) is not None:
            return [x, found]
        if type(y) is Array and is_number(x) and (found := beside(y, x)) is not None:
            return [found, y]
    given = [x if is_number(x) else as_array(name, x) for x in values]
    common_device(name, given, values)
    dtype, weak = common_dtype(name, given)
    return broadcast_together(name, [to_dtype(x, dtype, weak) for x in given])


def beside(x: Array, value: PythonScalar) -> Array | None:
    """A number as an operand beside a concrete array, where the array need not change for it."""
    dtype = x.dtype
    fits = (dtype.is_inexact and not isinstance(value, complex)) or dtype.is_complex
    if not fits or is_tracing() or x.type.weak:
        return None
    return Array(repeated(known_number(value, dtype), x.shape, ()))


def known_number(value: PythonScalar, dtype: DType) -> np.ndarray:
    """A number as an array without dims; the same one each time."""
    # Zeros have a sign, which only their text tells.
    key = (value or str(value), type(value), dtype)
    data = _NUMBERS.get(key)
    if data is None:
        if len(_NUMBERS) >= _MOST_NUMBERS:
            _NUMBERS.clear()
        data = _NUMBERS[key] = number(value, dtype).host
    return data


# Numbers that stood beside arrays, as the arrays without dims that they were converted to.
_NUMBERS: dict[tuple[PythonScalar | str, type[object], DType], np.ndarray] = {}
_MOST_NUMBERS = 1024


def inexact_operands(name: str, *values: object) -> list[Any]:
    """Operands as arrays of one floating-point or complex dtype, and one shape."""
    arrays = [x for x in values if not is_number(x)]
    if arrays and all(isinstance(x, ArrayBase) and x.dtype.is_inexact for x in arrays):
        return operands(name, *values)
    given = [x if is_number(x) else as_array(name, x) for x in values]
    common_device(name, given, values)
    dtype, weak = common_dtype(name, given)
    if not dtype.is_inexact:
        dtype = default_float
    return broadcast_together(name, [to_dtype(x, dtype, weak) for x in given])


def broadcast_together(name: str, arrays: Sequence[Any]) -> list[Any]:
    """Arrays repeated to their common shape."""
    shape = common_shape(name, arrays)
    return [spread(x, shape) for x in arrays]


def common_shape(name: str, arrays: Sequence[Any]) -> tuple[Dim, ...]:
    """The shape that arrays are broadcast to together."""
    first: tuple[Dim, ...] = arrays[0].shape
    if all(x.shape == first for x in arrays):
        return first
    if config.current().rank_promotion == "forbid":
        _forbid_promotion(name, arrays)
    found = broadcast_dims([x.shape for x in arrays])
    if isinstance(found, int):
        types = " and ".join(str(x.type.strong()) for x in arrays)
        sizes = " and ".join(dict.fromkeys(str(x.shape[-found]) for x in arrays if x.ndim >= found))
        raise ShapeError(
            f"{name}: got {types}, which differ in dim -{found}: {sizes}",
            loc=loc.current(),
            rule="counted from the last, dims are equal, or one of them is 1 or missing",
            fix="insert dims of length 1 where one is missing, as in `x[:, None]`",
        )
    return found


def _forbid_promotion(name: str, arrays: Sequence[Any]) -> None:
    """Arrays with dims have as many of them."""
    if len({x.ndim for x in arrays if x.ndim}) > 1:
        types = " and ".join(str(x.type.strong()) for x in arrays)
        raise ShapeError(
            f"{name}: got {types}, of different numbers of dims",
            loc=loc.current(),
            rule="dims are not added in front while `rank_promotion` is `forbid`",
            fix="insert dims of length 1 where they are missing, as in `x[None, :]`",
        )


def broadcast_dims(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...] | int:
    """The common shape, or which dim from the back does not fit (1 is the last)."""
    rank = max([len(s) for s in shapes], default=0)
    dims: list[Dim] = []
    for back in range(rank, 0, -1):
        size: Dim = 1
        for shape in shapes:
            if len(shape) < back or shape[-back] == 1:
                continue
            if size == 1:
                size = shape[-back]
            elif shape[-back] != size and not _known_equal(shape[-back], size):
                return back
        dims.append(size)
    return tuple(dims)


def _known_equal(a: Dim, b: Dim) -> bool:
    """Whether dims that are other expressions are one size by what is assumed of them."""
    known = about(a - b)
    return known is not None and known.equal(a, b)


def spread(x: Any, shape: tuple[Dim, ...]) -> Any:
    """An array repeated to a shape that it is known to fit, by the rules of broadcasting."""
    if x.shape == shape:
        return x
    dims = range(len(shape) - x.ndim, len(shape))
    if type(x) is Array and not is_tracing() and is_static(shape):
        data = x.storage if x.prepared is None else x.prepared
        if type(data) is np.ndarray and data.flags.c_contiguous:
            return Array(repeated(data, shape, dims))
    return broadcast(x, shape, dims)


def is_static(shape: Sequence[Dim]) -> TypeGuard[tuple[int, ...]]:
    """Whether no dim is symbolic."""
    return all(isinstance(d, int) for d in shape)


def parse_shape(name: str, shape: Any) -> tuple[Dim, ...]:
    """A `shape` argument: an int or a sequence of ints, all at least 0."""
    if isinstance(shape, ArrayBase):
        raise _bad_shape(name, shape)
    given = (shape,) if isinstance(shape, IntExpr) or hasattr(shape, "__index__") else shape
    try:
        dims = tuple([d if isinstance(d, IntExpr) else operator.index(d) for d in given])
    except TypeError:
        raise _bad_shape(name, shape) from None
    for k, d in enumerate(dims):
        if isinstance(d, int) and d < 0:
            raise ShapeError(
                f"{name}: dim {k} of the shape {shape_text(dims)} is {d}",
                loc=loc.current(),
                rule="a dim is at least 0",
            )
    return dims


def _bad_shape(name: str, shape: Any) -> ShapeError:
    return ShapeError(
        f"{name}: the shape is {shape!r}",
        loc=loc.current(),
        rule="a shape is an int or a tuple of ints, known when the program is traced",
        fix="make it a static argument, or take it from the shape of an array"
        if any(isinstance(d, Tracer) for d in items_of(shape))
        else None,
    )


def filled(shape: tuple[Dim, ...], value: PythonScalar, dtype: DType, beside: Any = None) -> Any:
    """An array that holds a Python number everywhere, on the device of another one if given."""
    if is_tracing() or not is_static(shape):
        return full(shape, value, dtype)
    if isinstance(value, (float, complex)):
        with np.errstate(all="ignore"):  # what is too large is infinite
            data = host_full(shape, value, dtype.np)
    else:
        data = host_full(shape, value, dtype.np)
    return Array(data) if beside is None else placed(data, device_of(beside))


def check_fits(name: str, low: int, high: int, dtype: DType) -> None:
    """Checks that an integer dtype holds integers.

    Raises:
        NumberRangeError: it does not.
    """
    limits = iinfo(dtype)
    if low < limits.min or high > limits.max:
        raise NumberRangeError(
            f"{name}: a number does not fit into {dtype.full_name}",
            loc=loc.current(),
            rule=f"{dtype.full_name} holds {limits.min} to {limits.max}",
            fix="give a wider dtype",
        ) from None


# --- axes -------------------------------------------------------------------------------------


def index_of(name: str, value: Any) -> int:
    """An argument that is a Python integer."""
    try:
        return operator.index(value)
    except ConcretizationError:
        raise
    except TypeError:
        raise DTypeError(
            f"{name}: got {value!r}",
            loc=loc.current(),
            rule="it is an integer, known when the program is traced",
        ) from None


def parse_axis(name: str, axis: Any, rank: int, what: str = "axis") -> int:
    """An axis counted from the front."""
    try:
        found = operator.index(axis)
    except TypeError:
        raise AxisError(
            f"{name}: {what} is {axis!r}", loc=loc.current(), rule=f"{what} is an int"
        ) from None
    if not -rank <= found < rank:
        raise AxisError(
            f"{name}: {what} {found} is out of range for an array of rank {rank}",
            loc=loc.current(),
            rule=f"-{rank} <= {what} < {rank}" if rank else "an array without dims has no axes",
        )
    return found + rank if found < 0 else found


def parse_axes(name: str, axis: Any, rank: int, what: str = "axis") -> tuple[int, ...]:
    """Distinct axes counted from the front, in the order given; None is all of them."""
    if axis is None:
        return tuple(range(rank))
    given = axis if is_sequence(axis) else (axis,)
    one = "axis" if what == "axes" else what
    found = tuple([parse_axis(name, a, rank, one) for a in given])
    if len(set(found)) != len(found):
        raise AxisError(
            f"{name}: {what}={axis} names an axis twice",
            loc=loc.current(),
            rule="axes are distinct",
        )
    return found


def concrete(x: Any, wanted: str, fix: str) -> np.ndarray:
    """The elements of an array on the host, for functions whose result's shape depends on them."""
    if isinstance(x, Tracer):
        x = x.concretize(wanted, fix)
    assert isinstance(x, Array)
    return x.host
