"""Functions that find elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tessera.dtypes import bool_, default_index, default_int, int32, uint8
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_together,
    common_dtype,
    concrete,
    operands,
    parse_axis,
    spread,
    to_dtype,
)
from tessera.graph.namespace.statistics import Axis, reduced, size_of, with_dims
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.checks import largest
from tessera.graph.ops.gather import IndexMode, gather
from tessera.graph.ops.rearrange import full, reshape
from tessera.graph.placement import device_of, placed
from tessera.graph.shortcut import composed, fused, one_program, shortcut
from tessera.graph.trace import is_tracing
from tessera.ir import loc
from tessera.ir.intexpr import prod

__all__ = [
    "argmax",
    "argmin",
    "count_nonzero",
    "nonzero",
    "searchsorted",
    "where",
]


@shortcut
@api_boundary
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """x1 where the condition holds, else x2.

    Args:
        condition: bools; numbers hold where they are not 0.
        x1: an array or number.
        x2: an array or number. All three are broadcast to one shape.

    Example:
        >>> import tessera as ts
        >>> x = ts.asarray([-1.0, 2.0])
        >>> ts.where(x > 0, x, 0)
        Array([0., 2.], dtype=float32)
    """
    test = ops.cast(as_array("where", condition), bool_)
    cond, a, b = broadcast_together("where", [test, *operands("where", x1, x2)])
    return ops.select(cond, a, b)


@shortcut
@api_boundary
def argmax(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> ArrayBase:
    """The position, int64, of the first largest element, or of the first NaN.

    Args:
        x: real numbers.
        axis: the axis to search along; None searches all elements in row-major order.
        keepdims: whether the axes that were searched stay, with length 1.
    """
    return _position("argmax", reduce.argmax, x, axis, keepdims)


@shortcut
@api_boundary
def argmin(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> ArrayBase:
    """The position, int64, of the first smallest element, or of the first NaN. See `argmax`."""
    return _position("argmin", reduce.argmin, x, axis, keepdims)


def _position(
    name: str, op: Callable[[Any, int], Any], x: object, axis: int | None, keepdims: bool
) -> Any:
    found = as_array(name, x)
    if found.dtype.is_bool:
        found = ops.cast(found, uint8)
    if axis is None:
        at = op(reshape(found, (prod(found.shape),)), 0)
        return reshape(at, [1] * found.ndim) if keepdims else at
    where_ = parse_axis(name, axis, found.ndim)
    at = op(found, where_)
    return with_dims(at, found.shape, [where_]) if keepdims else at


@fused
@shortcut
@api_boundary
def count_nonzero(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> ArrayBase:
    """How many elements are not 0, int64.

    Args:
        x: the array.
        axis: the axes to count along; None counts all.
        keepdims: whether the axes stay, with length 1.
    """
    found = ops.cast(ops.cast(as_array("count_nonzero", x), bool_), default_index)
    return reduced("count_nonzero", reduce.sum_, found, axis, keepdims)


@api_boundary
def nonzero(x: ArrayLike, /) -> tuple[ArrayBase, ...]:
    """Where elements are not 0: one array of indices per dim.

    The shape of the result depends on the elements, so under `jit` this is an error.

    Args:
        x: an array with one dim or more.
    """
    found = as_array("nonzero", x)
    if found.ndim == 0:
        raise ShapeError(
            f"nonzero: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the array has one dim or more",
        )
    data = concrete(
        found,
        "`ts.nonzero`",
        "use `ts.where(condition, x, y)`, which keeps the shape of its operands",
    )
    where = device_of(found)
    return tuple([placed(i.astype(np.int64, copy=False), where) for i in np.nonzero(data)])


@composed
@api_boundary
def searchsorted(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: ArrayLike | None = None,
) -> ArrayBase:
    """Where elements would have to be inserted into a sorted array to keep it sorted.

    Args:
        x1: a sorted array of one dim. NaN comes last.
        x2: what to insert, of any shape.
        side: `left` gives the first possible place, `right` the last one.
        sorter: the order that sorts `x1`, where it is not sorted itself.

    Returns:
        int64 places, of the shape of `x2`.
    """
    if side not in ("left", "right"):
        raise OptionError(
            f"searchsorted: side={side!r}", loc=loc.current(), rule="it is 'left' or 'right'"
        )
    line, wanted = as_array("searchsorted", x1), as_array("searchsorted", x2)
    if line.ndim != 1:
        raise ShapeError(
            f"searchsorted: x1 is {line.type.strong()}", loc=loc.current(), rule="x1 has one dim"
        )
    dtype, weak = common_dtype("searchsorted", [line, wanted])
    if dtype.is_complex:
        raise DTypeError(
            f"searchsorted: x1 is {line.type.strong()}", loc=loc.current(), rule="numbers are real"
        )
    line, wanted = to_dtype(line, dtype, weak), to_dtype(wanted, dtype, weak)
    if dtype.is_bool:
        line, wanted = ops.cast(line, uint8), ops.cast(wanted, uint8)
    if sorter is not None:
        line = gather(line, [as_array("searchsorted", sorter)], [0], IndexMode.CLIP)
    return bisect(line, wanted, side)


def bisect(line: Any, wanted: Any, side: Literal["left", "right"]) -> Any:
    """Where `searchsorted` finds elements of one dtype."""
    size = line.shape[0]
    if size == 0:
        return full(wanted.shape, 0, default_int)
    # A symbolic size has less than 2**48 elements: that many fit into no address space.
    most = largest(size)
    steps = 48 if most is None else most.bit_length()
    if is_tracing():
        return _halved(line, wanted, steps, side)
    # Few programs serve all lengths.
    steps = -(-steps // _TOGETHER) * _TOGETHER
    return (_first_places if side == "left" else _last_places)(line, wanted, steps)


_TOGETHER = 3
"""Lines of lengths that differ in so many steps share a program outside of any trace."""


@one_program
@composed
def _first_places(line: Any, wanted: Any, steps: int) -> Any:
    return _halved(line, wanted, steps, "left")


@one_program
@composed
def _last_places(line: Any, wanted: Any, steps: int) -> Any:
    return _halved(line, wanted, steps, "right")


def _halved(line: Any, wanted: Any, steps: int, side: Literal["left", "right"]) -> Any:
    """The places in a line of less than 2**steps elements: how many come before what is wanted, bit
    by bit from the highest one."""
    shape = wanted.shape
    dtype = int32 if steps <= _NARROW else default_int
    count = spread(size_of([line.shape[0]], dtype), shape)
    found = full(shape, 0, dtype)
    for k in reversed(range(steps)):
        more = ops.add(found, 1 << k)
        here = gather(line, [ops.sub(more, 1)], [0], IndexMode.CLIP)
        before = _less(here, wanted) if side == "left" else ops.not_(_less(wanted, here))
        found = ops.select(ops.and_(before, ops.le(more, count)), more, found)
    return ops.cast(found, default_int)


_NARROW = 30
"""Bits of places that int32 holds, and of one that is as far again."""


def _less(a: Any, b: Any) -> Any:
    """a < b, where NaN is larger than everything else."""
    found = ops.lt(a, b)
    if not a.dtype.is_float:
        return found
    return ops.or_(found, ops.and_(ops.isnan(b), ops.not_(ops.isnan(a))))
