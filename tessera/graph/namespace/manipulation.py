"""Functions that give the same elements another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.dtypes import default_int
from tessera.errors import AxisError, DTypeError, LeafError, ShapeError, api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    broadcast_dims,
    broadcast_together,
    common_dtype,
    concrete,
    index_of,
    is_number,
    is_sequence,
    parse_axes,
    parse_axis,
    parse_shape,
    spread,
    to_dtype,
)
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import rearrange
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.gather import gather
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed, fused
from tessera.graph.trace import Tracer
from tessera.ir import loc
from tessera.ir.intexpr import Dim, IntExpr, prod

__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]


@composed
@api_boundary
def reshape(x: ArrayLike, /, shape: Shape, *, copy: bool | None = None) -> ArrayBase:
    """The same elements, in row-major order, in another shape.

    Args:
        x: the array.
        shape: the shape; one dim may be -1, and is then what is left.
        copy: of no effect, as arrays cannot be changed.

    Example:
        >>> import tessera as ts
        >>> ts.reshape(ts.arange(6), (2, -1))
        Array([[0, 1, 2],
               [3, 4, 5]], dtype=int64)
    """
    found = as_array("reshape", x)
    return rearrange.reshape(found, _complete(found, shape))


def _complete(x: Any, shape: Any) -> tuple[Dim, ...]:
    """A shape with its -1, if any, replaced by what is left."""
    given: Sequence[Any] = shape if is_sequence(shape) else (shape,)
    plain = type(x) is Array and all([type(d) is int and d >= 0 for d in given])
    if plain and math.prod(given) == x.storage.size:
        return tuple(given)
    free = [k for k, d in enumerate(given) if not isinstance(d, IntExpr) and d == -1]
    dims = parse_shape("reshape", [1 if k in free else d for k, d in enumerate(given)])
    size, known = prod(x.shape), prod(dims)
    left: Dim = 1
    fits = len(free) <= 1
    if fits and free:
        static = isinstance(size, int) and isinstance(known, int)
        fits = known != 0 and (not static or size % known == 0)
        left = size // known if fits else 1
    elif fits:
        fits = may_equal(size, known)
    if not fits:
        raise ShapeError(
            f"reshape: {x.type.strong()} has {size} elements, which do not make the shape"
            f" {shape_text(given)}",
            loc=loc.current(),
            rule="reshaping keeps the number of elements; one dim may be -1, for what is left",
        )
    return tuple([left if k in free else d for k, d in enumerate(dims)])


@composed
@api_boundary
def permute_dims(x: ArrayLike, /, axes: tuple[int, ...]) -> ArrayBase:
    """The array with its dims in another order.

    Args:
        x: the array.
        axes: which dim of `x` is the first of the result, which the second, and so on.
    """
    found = as_array("permute_dims", x)
    if not hasattr(axes, "__iter__"):
        raise AxisError(
            f"permute_dims: axes={axes!r}",
            loc=loc.current(),
            rule="axes are a tuple of ints, one for each dim",
        )
    perm = parse_axes("permute_dims", tuple(axes), found.ndim, "axes")
    if len(perm) != found.ndim:
        raise AxisError(
            f"permute_dims: axes={tuple(axes)} for {found.type.strong()}",
            loc=loc.current(),
            rule="every axis is named once",
        )
    return rearrange.transpose(found, perm)


@composed
@api_boundary
def moveaxis(
    x: ArrayLike,
    source: int | tuple[int, ...],
    destination: int | tuple[int, ...],
    /,
) -> ArrayBase:
    """The array with some axes moved; the others keep their order.

    Args:
        x: the array.
        source: the axes to move.
        destination: where they are in the result.
    """
    found = as_array("moveaxis", x)
    start = parse_axes("moveaxis", source, found.ndim, "source")
    end = parse_axes("moveaxis", destination, found.ndim, "destination")
    if len(start) != len(end):
        raise AxisError(
            f"moveaxis: {len(start)} axes are moved to {len(end)} places",
            loc=loc.current(),
            rule="source and destination have one length",
        )
    moved = dict(zip(end, start, strict=True))
    rest = iter([k for k in range(found.ndim) if k not in start])
    return rearrange.transpose(
        found, [moved[k] if k in moved else next(rest) for k in range(found.ndim)]
    )


@composed
@api_boundary
def matrix_transpose(x: ArrayLike, /) -> ArrayBase:
    """The array with its last two dims exchanged."""
    found = as_array("matrix_transpose", x)
    if found.ndim < 2:
        raise ShapeError(
            f"matrix_transpose: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="a matrix has two dims or more",
        )
    rank = found.ndim
    return rearrange.transpose(found, (*range(rank - 2), rank - 1, rank - 2))


@composed
@api_boundary
def expand_dims(x: ArrayLike, /, axis: int | tuple[int, ...] = 0) -> ArrayBase:
    """The array with new dims of length 1.

    Args:
        x: the array.
        axis: where the result has the new dims.
    """
    found = as_array("expand_dims", x)
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    places = parse_axes("expand_dims", axis, found.ndim + count)
    dims = iter(found.shape)
    shape = [1 if k in places else next(dims) for k in range(found.ndim + count)]
    return rearrange.reshape(found, shape)


@composed
@api_boundary
def squeeze(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None) -> ArrayBase:
    """The array without some dims of length 1.

    Args:
        x: the array.
        axis: which dims; None is all that have length 1.
    """
    found = as_array("squeeze", x)
    if axis is None:
        axis = tuple([k for k, d in enumerate(found.shape) if d == 1])
    gone = parse_axes("squeeze", axis, found.ndim)
    for k in gone:
        if not may_equal(found.shape[k], 1):
            raise ShapeError(
                f"squeeze: dim {k} of {found.type.strong()} is {found.shape[k]}",
                loc=loc.current(),
                rule="only dims of length 1 can be removed",
            )
    return rearrange.reshape(found, [d for k, d in enumerate(found.shape) if k not in gone])


@composed
@api_boundary
def flip(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> ArrayBase:
    """The array with the order of elements reversed along some axes, or all."""
    found = as_array("flip", x)
    return rearrange.reverse(found, parse_axes("flip", axis, found.ndim))


@composed
@api_boundary
def roll(
    x: ArrayLike,
    /,
    shift: int | tuple[int, ...] | ArrayBase,
    *,
    axis: int | tuple[int, ...] | None = None,
) -> ArrayBase:
    """The array with elements moved along axes; those that leave at the end come in at the start.

    Args:
        x: the array.
        shift: by how many places; an array without dims may be given for a single axis.
        axis: along which axes; None rolls the elements in row-major order.
    """
    found = as_array("roll", x)
    if axis is None:
        flat = rearrange.reshape(found, (prod(found.shape),))
        return rearrange.reshape(roll(flat, shift, axis=0), found.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts: Any = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise AxisError(
            f"roll: {len(shifts)} shifts for {len(axes)} axes",
            loc=loc.current(),
            rule="there is one shift, or one per axis",
        )
    for one, by in zip(axes, shifts, strict=True):
        found = _rolled(found, by, parse_axis("roll", one, found.ndim))
    return found


def _rolled(x: Any, shift: Any, axis: int) -> Any:
    size = x.shape[axis]
    if size == 0:
        return x
    if isinstance(shift, ArrayBase) or not isinstance(size, int):
        places = rearrange.iota((size,), 0, default_int)
        by = to_dtype(shift, default_int)
        length = spread(size_of([size], default_int), (size,))
        places = ops.mod(ops.sub(places, spread(by, (size,))), length)
        return rearrange.move_axis(gather(x, [places], [axis]), 0, axis)
    by = index_of("roll", shift) % size
    if by == 0:
        return x
    return _moved(x, by if 2 * by <= size else by - size, axis)


@fused
@composed
def _moved(x: Any, by: int, axis: int) -> Any:
    """Elements moved along an axis by less than its size, back if `by` is negative."""
    size = x.shape[axis]
    start = size - by if by > 0 else -by
    parts = [
        rearrange.slice_axis(x, axis, start, size),
        rearrange.slice_axis(x, axis, 0, start),
    ]
    return rearrange.concatenate(parts, axis)


# --- joining, splitting, repeating ------------------------------------------------------------


def _same_dtype(name: str, arrays: Any) -> list[Any]:
    if isinstance(arrays, ArrayBase) and arrays.ndim:
        arrays = unstack(arrays)
    if is_number(arrays) or arrays is None or isinstance(arrays, (str, ArrayBase)):
        found = arrays.type.strong() if isinstance(arrays, ArrayBase) else type(arrays).__name__
        raise LeafError(
            f"{name}: got {found} in place of several arrays",
            loc=loc.current(),
            rule="arrays that are joined are in a tuple or a list",
        )
    given = [x if is_number(x) else as_array(name, x) for x in arrays]
    if not given:
        raise ShapeError(
            f"{name}: there are no arrays", loc=loc.current(), rule="one or more are joined"
        )
    common_device(name, given, arrays)
    dtype, weak = common_dtype(name, given)
    return [to_dtype(x, dtype, weak) for x in given]


@composed
@api_boundary
def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0) -> ArrayBase:
    """Arrays joined along an axis that they have.

    Args:
        arrays: one or more arrays, of equal shapes except for the axis.
        axis: the axis; None joins the elements of all in row-major order.
    """
    found = _same_dtype("concat", arrays)
    if axis is None:
        found = [rearrange.reshape(x, (prod(x.shape),)) for x in found]
    at = parse_axis("concat", axis or 0, found[0].ndim)
    first = found[0].shape
    for k, x in enumerate(found):
        same = x.ndim == len(first) and all(
            d == at or may_equal(first[d], x.shape[d]) for d in range(len(first))
        )
        if not same:
            raise ShapeError(
                f"concat: array 0 is {found[0].type.strong()}, but array {k} is {x.type.strong()}",
                loc=loc.current(),
                rule=f"joined arrays have equal dims except along axis {at}",
            )
    return rearrange.concatenate(found, at)


@composed
@api_boundary
def stack(arrays: Sequence[ArrayLike], /, *, axis: int = 0) -> ArrayBase:
    """Arrays of one shape joined along a new axis.

    Args:
        arrays: one or more arrays.
        axis: where the result has the new axis.
    """
    found = _same_dtype("stack", arrays)
    for k, x in enumerate(found):
        if x.shape != found[0].shape:
            raise ShapeError(
                f"stack: array 0 is {found[0].type.strong()}, but array {k} is {x.type.strong()}",
                loc=loc.current(),
                rule="stacked arrays have one shape",
            )
    at = parse_axis("stack", axis, found[0].ndim + 1)
    return rearrange.concatenate([rearrange.expand_dims(x, at) for x in found], at)


@composed
@api_boundary
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[ArrayBase, ...]:
    """The slices of an array along an axis, without that axis."""
    found = as_array("unstack", x)
    at = parse_axis("unstack", axis, found.ndim)
    size = found.shape[at]
    if not isinstance(size, int):
        raise ShapeError(
            f"unstack: dim {at} of {found.type.strong()} is symbolic",
            loc=loc.current(),
            rule="how many arrays there are must be known when the program is traced",
        )
    return tuple(
        [rearrange.squeeze(rearrange.slice_axis(found, at, k, k + 1), [at]) for k in range(size)]
    )


@fused
@composed
@api_boundary
def tile(x: ArrayLike, repetitions: tuple[int, ...], /) -> ArrayBase:
    """The array repeated as a whole along each axis.

    Args:
        x: the array.
        repetitions: how often along each axis; counted from the last.
    """
    found = as_array("tile", x)
    counts = parse_shape("tile", repetitions)
    rank = max(found.ndim, len(counts))
    dims = (1,) * (rank - found.ndim) + found.shape
    counts = (1,) * (rank - len(counts)) + counts
    pairs = [d for n, dim in zip(counts, dims, strict=True) for d in (n, dim)]
    lifted = rearrange.broadcast(rearrange.reshape(found, dims), pairs, range(1, 2 * rank, 2))
    return rearrange.reshape(lifted, [n * dim for n, dim in zip(counts, dims, strict=True)])


@fused
@composed
@api_boundary
def repeat(x: ArrayLike, repeats: int | ArrayBase, /, *, axis: int | None = None) -> ArrayBase:
    """The array with each element repeated along an axis.

    Args:
        x: the array.
        repeats: how often; an array gives a number per element, which decides the result's shape,
            so its values must be known.
        axis: the axis; None repeats the elements in row-major order.
    """
    found = as_array("repeat", x)
    if axis is None:
        found = rearrange.reshape(found, (prod(found.shape),))
    at = parse_axis("repeat", axis or 0, found.ndim)
    if isinstance(repeats, (ArrayBase, np.ndarray, list, tuple)):
        return _repeat_each(found, repeats, at)
    (count,) = parse_shape("repeat", repeats)
    shape = (*found.shape[: at + 1], count, *found.shape[at + 1 :])
    lifted = rearrange.broadcast(found, shape, [k for k in range(found.ndim + 1) if k != at + 1])
    return rearrange.reshape(
        lifted, (*found.shape[:at], found.shape[at] * count, *found.shape[at + 1 :])
    )


def _repeat_each(x: Any, repeats: Any, axis: int) -> Any:
    if isinstance(repeats, Tracer):
        repeats = concrete(repeats, "`ts.repeat`", "give one number of repeats, or make it static")
    counts: np.ndarray = repeats.host if isinstance(repeats, Array) else np.asarray(repeats)
    if counts.dtype.kind not in "iu":
        raise DTypeError(
            f"repeat: the repeats have dtype {counts.dtype}",
            loc=loc.current(),
            rule="repeats are integers",
        )
    if counts.ndim > 1 or (counts.size not in (1, x.shape[axis])) or (counts < 0).any():
        raise ShapeError(
            f"repeat: {counts.size} repeats for dim {axis} of {x.type.strong()}",
            loc=loc.current(),
            rule="there is one number of repeats per element, none of them negative",
        )
    size: int = x.shape[axis]
    places: np.ndarray = np.repeat(np.arange(size), counts)
    return rearrange.move_axis(gather(x, [Array(places)], [axis]), 0, axis)


# --- broadcasting -----------------------------------------------------------------------------


@composed
@api_boundary
def broadcast_to(x: ArrayLike, /, shape: Shape) -> ArrayBase:
    """The array repeated to a shape."""
    found = as_array("broadcast_to", x)
    dims = parse_shape("broadcast_to", shape)
    lead = len(dims) - found.ndim
    fits = lead >= 0 and all(
        a == 1 or may_equal(a, b) for a, b in zip(found.shape, dims[max(lead, 0) :], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"broadcast_to: {found.type.strong()} does not fit into the shape {shape_text(dims)}",
            loc=loc.current(),
            rule="counted from the last, dims are equal, or that of the array is 1 or missing",
        )
    return spread(found, dims)


@composed
@api_boundary
def broadcast_arrays(*arrays: ArrayLike) -> list[ArrayBase]:
    """Arrays repeated to their common shape."""
    found = [as_array("broadcast_arrays", x) for x in arrays]
    return broadcast_together("broadcast_arrays", found) if found else []


@api_boundary
def broadcast_shapes(*shapes: tuple[int | IntExpr, ...]) -> tuple[int | IntExpr, ...]:
    """The shape that arrays of these shapes are broadcast to together."""
    given = [parse_shape("broadcast_shapes", s) for s in shapes]
    found = broadcast_dims(given)
    if isinstance(found, int):
        raise ShapeError(
            f"broadcast_shapes: {' and '.join(map(shape_text, given))} differ in dim -{found}",
            loc=loc.current(),
            rule="counted from the last, dims are equal, or one of them is 1 or missing",
        )
    return found
