"""Functions that make arrays.

Under `jit`, `zeros`, `full`, `arange` and the like become part of the program; elsewhere their
results are computed on the spot. What is made from Python values has the default dtypes: float32,
int64, complex64.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from tessera.dtypes import (
    DType,
    DTypeLike,
    PythonScalar,
    complex64,
    complex128,
    default_float,
    default_int,
    dtype_of,
    float32,
    float64,
    result_type,
    uint32,
)
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import CPU, Device, using
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    check_fits,
    filled,
    is_number,
    is_static,
    number,
    parse_axis,
    parse_dtype,
    parse_shape,
    spread,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import generate
from tessera.graph.ops.rearrange import broadcast, iota
from tessera.graph.ops.rearrange import full as generate_full
from tessera.graph.placement import creation_device, device_of, placed, to_device
from tessera.graph.shortcut import composed, created, fused, like
from tessera.graph.trace import Tracer, is_tracing
from tessera.ir import loc
from tessera.ir.convert import cast_array
from tessera.ir.intexpr import IntExpr

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_like",
    "random_bits",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]

DeviceLike = Device | str | None


# --- constants --------------------------------------------------------------------------------


@created
@api_boundary
def full(
    shape: Shape,
    fill_value: PythonScalar | ArrayBase,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> ArrayBase:
    """An array that holds one value everywhere.

    Args:
        shape: the shape.
        fill_value: a number, or an array without dims.
        dtype: the element type; by default that of the value.
        device: where the array is to live.
    """
    return _full("full", shape, fill_value, dtype, device)


def _full(name: str, shape: Any, value: Any, dtype: DTypeLike | None, device: DeviceLike) -> Any:
    where = creation_device(name, device)
    dims = parse_shape(name, shape)
    wanted = None if dtype is None else parse_dtype(name, dtype)
    if is_number(value):
        wanted = wanted or dtype_of(type(value))
        if isinstance(value, int) and wanted.is_integer:
            check_fits(name, value, value, wanted)
        if where == CPU or is_tracing():
            return filled(dims, value, wanted)
        with using(where):
            return generate_full(dims, value, wanted)
    found = as_array(name, value)
    if device is not None:
        found = to_device(name, found, where)
    if found.ndim:
        raise ShapeError(
            f"{name}: the value has type {found.type.strong()}",
            loc=loc.current(),
            rule="the value has no dims",
            fix="use `ts.broadcast_to`",
        )
    return spread(ops.cast(found, wanted or found.dtype), dims)


def _full_like(
    name: str, x: object, value: Any, dtype: DTypeLike | None, device: DeviceLike
) -> Any:
    like = as_array(name, x)
    where = device_of(like) if device is None else device
    return _full(name, like.shape, value, like.dtype if dtype is None else dtype, where)


@like
@api_boundary
def full_like(
    x: ArrayLike,
    /,
    fill_value: PythonScalar | ArrayBase,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> ArrayBase:
    """An array of the shape and dtype of `x` that holds one value everywhere."""
    return _full_like("full_like", x, fill_value, dtype, device)


@created
@api_boundary
def zeros(shape: Shape, *, dtype: DTypeLike | None = None, device: DeviceLike = None) -> ArrayBase:
    """An array of zeros."""
    return _full("zeros", shape, 0, default_float if dtype is None else dtype, device)


@like
@api_boundary
def zeros_like(
    x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> ArrayBase:
    """An array of zeros of the shape and dtype of `x`."""
    return _full_like("zeros_like", x, 0, dtype, device)


@created
@api_boundary
def ones(shape: Shape, *, dtype: DTypeLike | None = None, device: DeviceLike = None) -> ArrayBase:
    """An array of ones."""
    return _full("ones", shape, 1, default_float if dtype is None else dtype, device)


@like
@api_boundary
def ones_like(
    x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> ArrayBase:
    """An array of ones of the shape and dtype of `x`."""
    return _full_like("ones_like", x, 1, dtype, device)


@created
@api_boundary
def empty(shape: Shape, *, dtype: DTypeLike | None = None, device: DeviceLike = None) -> ArrayBase:
    """An array of unspecified elements: zeros, as an array cannot be filled later."""
    return _full("empty", shape, 0, default_float if dtype is None else dtype, device)


@like
@api_boundary
def empty_like(
    x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> ArrayBase:
    """An array of unspecified elements, of the shape and dtype of `x`."""
    return _full_like("empty_like", x, 0, dtype, device)


# --- ranges -----------------------------------------------------------------------------------


@created
@api_boundary
def arange(
    start: float | IntExpr,
    /,
    stop: float | IntExpr | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> ArrayBase:
    """Evenly spaced numbers from `start` to `stop`, which is not among them.

    Args:
        start: the first number; 0 where `stop` is not given, and then this is the stop.
        stop: where the numbers end.
        step: the spacing.
        dtype: the element type; by default int64 if all numbers are integers, else float32.
        device: where the array is to live.
    """
    where = creation_device("arange", device)
    first, last = (0, start) if stop is None else (start, stop)
    if isinstance(first, IntExpr) or isinstance(last, IntExpr):
        return _symbolic_range(first, last, step, dtype)
    given: tuple[Any, ...] = (first, last, step)
    for x in given:
        if isinstance(x, Tracer):
            x.concretize("`ts.arange`", "make it a static argument: it decides the shape")
    bounds: list[Any] = [x.item() if hasattr(x, "item") else x for x in given]
    floating = any(isinstance(x, float) for x in bounds)
    found = (
        parse_dtype("arange", dtype)
        if dtype is not None
        else (default_float if floating else default_int)
    )
    if bounds[2] == 0:
        raise ShapeError("arange: the step is 0", loc=loc.current(), rule="a step is not 0")
    count = max(0, math.ceil((bounds[1] - bounds[0]) / bounds[2]))
    if not is_tracing():
        return placed(_counted(count, bounds[0], bounds[2], found), where)
    wide = found if found.is_inexact or found is default_int else default_int
    return ops.cast(_line(count, bounds[0], bounds[2], wide), found)


def _counted(count: int, start: Any, step: Any, dtype: DType) -> np.ndarray:
    exact = np.float64 if isinstance(start, float) or isinstance(step, float) else np.int64
    line = np.arange(count, dtype=exact) * exact(step) + exact(start)
    return cast_array(np.asarray(line), dtype)


def _line(count: Any, start: Any, step: Any, dtype: DType) -> Any:
    line = iota((count,), 0, dtype)
    if step != 1:
        line = ops.mul(line, step)
    return line if start == 0 else ops.add(line, start)


def _symbolic_range(first: Any, last: Any, step: Any, dtype: DTypeLike | None) -> Any:
    if step != 1 or first != 0:
        raise ShapeError(
            "arange: a symbolic range has a start or step of its own",
            loc=loc.current(),
            rule="symbolic ranges start at 0 and have step 1",
            fix="add and multiply afterwards",
        )
    return iota((last,), 0, default_int if dtype is None else parse_dtype("arange", dtype))


@created
@api_boundary
def linspace(
    start: PythonScalar | ArrayBase,
    stop: PythonScalar | ArrayBase,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    endpoint: bool = True,
) -> ArrayBase:
    """`num` evenly spaced numbers from `start` to `stop`.

    Args:
        start: the first number.
        stop: the last number, or where it would be.
        num: how many there are.
        dtype: the element type; by default float32, or complex64 for complex ends.
        device: where the array is to live.
        endpoint: whether `stop` is among them.
    """
    where = creation_device("linspace", device)
    (count,) = parse_shape("linspace", num)
    assert isinstance(count, int)
    ends = [start, stop]
    found = (
        parse_dtype("linspace", dtype)
        if dtype is not None
        else result_type(*[x if is_number(x) else as_array("linspace", x) for x in ends])
    )
    if dtype is None and not found.is_inexact:
        found = default_float
    if is_number(start) and is_number(stop) and not is_tracing():
        line = np.linspace(start, stop, count, endpoint=endpoint)
        return placed(cast_array(np.asarray(line), found), where)
    exact = found if found in (float64, complex64, complex128) else float32
    a, b = (
        number(x, exact) if is_number(x) else ops.cast(as_array("linspace", x), exact) for x in ends
    )
    parts = max(count - 1 if endpoint else count, 1)
    position = ops.div(iota((count,), 0, exact), parts)
    shape = (count,)
    a, b = spread(a, shape), spread(b, shape)
    # Both forms are exact at their own end.
    step = ops.sub(b, a)
    lower = ops.add(a, ops.mul(step, position))
    upper = ops.sub(b, ops.mul(step, ops.sub(spread(number(1, exact), shape), position)))
    half = ops.lt(iota(shape, 0, default_int), count // 2 + 1)
    line = ops.cast(ops.select(half, lower, upper), found)
    return line if device is None else to_device("linspace", line, where)


@created
@api_boundary
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> ArrayBase:
    """A matrix of zeros with ones on one diagonal.

    Args:
        n_rows: the number of rows.
        n_cols: the number of columns; by default as many.
        k: which diagonal: positive above the main one, negative below.
        dtype: the element type; by default float32.
        device: where the array is to live.
    """
    where = creation_device("eye", device)
    shape = parse_shape("eye", (n_rows, n_rows if n_cols is None else n_cols))
    found = default_float if dtype is None else parse_dtype("eye", dtype)
    if not is_tracing() and is_static(shape):
        rows, columns = shape
        return placed(np.eye(rows, columns, k).astype(found.np), where)
    with using(where):
        return ops.cast(_diagonal_test(shape, k, "equal"), found)


def _diagonal_test(shape: Any, k: int, test: Literal["equal", "below"]) -> Any:
    """Where column - row is k, or at most k, in the last two dims."""
    rank = len(shape)
    rows, columns = iota(shape, rank - 2, default_int), iota(shape, rank - 1, default_int)
    if k > 0:
        rows = ops.add(rows, k)
    elif k < 0:
        columns = ops.add(columns, -k)
    return ops.eq(columns, rows) if test == "equal" else ops.le(columns, rows)


@fused
@composed
@api_boundary
def tril(x: ArrayBase, /, *, k: int = 0) -> ArrayBase:
    """The part of matrices on and below a diagonal; zeros elsewhere.

    Args:
        x: an array whose last two dims are matrices.
        k: which diagonal: positive above the main one, negative below.
    """
    found = _matrices("tril", x)
    with using(device_of(found)):
        return ops.select(_diagonal_test(found.shape, k, "below"), found, 0)


@fused
@composed
@api_boundary
def triu(x: ArrayBase, /, *, k: int = 0) -> ArrayBase:
    """The part of matrices on and above a diagonal; zeros elsewhere."""
    found = _matrices("triu", x)
    with using(device_of(found)):
        return ops.select(_diagonal_test(found.shape, k - 1, "below"), 0, found)


def _matrices(name: str, x: object) -> Any:
    found = as_array(name, x)
    if found.ndim < 2:
        raise ShapeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="a matrix has two dims or more",
        )
    return found


@composed
@api_boundary
def meshgrid(*arrays: ArrayBase, indexing: Literal["xy", "ij"] = "xy") -> list[ArrayBase]:
    """Coordinates of a grid from those along its axes.

    Args:
        arrays: one-dimensional arrays of one dtype.
        indexing: `ij` numbers dims in the order of the arrays; `xy` exchanges the first two.

    Returns:
        One array per argument, all of the grid's shape.
    """
    found = [as_array("meshgrid", x) for x in arrays]
    if indexing not in ("xy", "ij"):
        raise ShapeError(
            f"meshgrid: indexing={indexing!r}", loc=loc.current(), rule="it is 'xy' or 'ij'"
        )
    for k, x in enumerate(found):
        if x.ndim > 1:
            raise ShapeError(
                f"meshgrid: argument {k} is {x.type.strong()}",
                loc=loc.current(),
                rule="the coordinates along an axis have one dim",
            )
    order = list(range(len(found)))
    if indexing == "xy" and len(found) >= 2:
        order[:2] = [1, 0]
    sizes = [x.shape[0] if x.ndim else 1 for x in found]
    shape = [0] * len(found)
    for k, axis in enumerate(order):
        shape[axis] = sizes[k]
    return [broadcast(x, shape, [order[k]] if x.ndim else []) for k, x in enumerate(found)]


@fused
@composed
@api_boundary
def one_hot(
    x: ArrayLike,
    num_classes: int,
    *,
    dtype: DTypeLike | None = None,
    axis: int = -1,
) -> ArrayBase:
    """Vectors with a one at the place of each index, and zeros elsewhere.

    Args:
        x: integers; those outside of [0, num_classes) give zeros.
        num_classes: the length of the vectors.
        dtype: the element type; by default float32.
        axis: where the result has the dim of the vectors.
    """
    index = as_array("one_hot", x)
    if not index.dtype.is_integer:
        raise DTypeError(
            f"one_hot: the indices are {index.type.strong()}",
            loc=loc.current(),
            rule="they are integers",
        )
    found = default_float if dtype is None else parse_dtype("one_hot", dtype)
    (size,) = parse_shape("one_hot", num_classes)
    at = parse_axis("one_hot", axis, index.ndim + 1)
    shape = (*index.shape[:at], size, *index.shape[at:])
    wide = ops.cast(index, default_int)
    places = broadcast(wide, shape, [k for k in range(len(shape)) if k != at])
    with using(device_of(index)):
        return ops.cast(ops.eq(places, iota(shape, at, default_int)), found)


@api_boundary
def random_bits(key: ArrayLike, shape: Shape, /) -> ArrayBase:
    """Uniformly random 32-bit words, a pure function of the key.

    Args:
        key: two words, uint32.
        shape: the shape of the result, of dtype uint32.
    """
    words = as_array("random_bits", key)
    if words.dtype is not uint32:
        raise DTypeError(
            f"random_bits: the key is {words.type.strong()}",
            loc=loc.current(),
            rule="a key is u32[2]",
        )
    return generate.random_bits(words, parse_shape("random_bits", shape))
