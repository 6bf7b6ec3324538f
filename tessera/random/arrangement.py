"""Random orders, choices out of an array, and random orthogonal matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.api import fori_loop, vmap
from tessera.dtypes import DType, DTypeLike, default_float, default_int, uint64
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    is_static,
    parse_axis,
    parse_shape,
)
from tessera.graph.namespace.creation import arange
from tessera.graph.namespace.linear import matmul
from tessera.graph.namespace.searching import searchsorted
from tessera.graph.namespace.sorting import argsort
from tessera.graph.namespace.statistics import cumulative_sum
from tessera.graph.namespace.statistics import max as reduce_max
from tessera.graph.namespace.statistics import sum as reduce_sum
from tessera.graph.namespace.taking import take
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import shape_text
from tessera.graph.ops.gather import take_along
from tessera.graph.ops.rearrange import iota, slice_axis
from tessera.graph.ops.reshape import broadcast, full, reshape
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random.continuous import standard_exponential, standard_normal
from tessera.random.discrete import below
from tessera.random.keys import (
    compiled,
    known,
    parse_float,
    parse_key,
    refuse,
    words,
    working,
)

__all__ = ["choice", "orthogonal", "permutation"]


def _population(name: str, x: Any, axis: int) -> tuple[Any, int]:
    """An array of things, and the axis that they are along; an int stands for its range."""
    if isinstance(x, int) and not isinstance(x, bool):
        if x < 0:
            raise OptionError(
                f"{name}: the number of things is {x}", loc=loc.current(), rule="it is at least 0"
            )
        return arange(x), 0
    found = as_array(name, x)
    if not found.ndim:
        raise ShapeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="it has one dim or more, or is a Python int that stands for its range",
        )
    return found, parse_axis(name, axis, found.ndim)


# --- orders -----------------------------------------------------------------------------------


@api_boundary
def permutation(
    key: ArrayLike, x: ArrayLike, axis: int = 0, independent: bool = False
) -> ArrayBase:
    """An array with its parts along an axis in random order.

    Each order is equally likely, up to a probability of size**2 / 2**65 that two of the words
    that are sorted are equal, of 64 bits.

    Args:
        key: a key.
        x: an array, or an int that stands for its range.
        axis: the axis.
        independent: whether each line along the axis has an order of its own; else they have one.

    Example:
        >>> import tessera as ts
        >>> sorted(ts.random.permutation(ts.random.key(0), 5).tolist())
        [0, 1, 2, 3, 4]
    """
    name = "random.permutation"
    found = parse_key(name, key)
    things, at = _population(name, x, axis)
    return _permutation(found, things, at, independent, is_range=isinstance(x, int))


@compiled("axis", "independent", "is_range")
def _permutation(key: Any, x: Any, axis: int, independent: bool, is_range: bool) -> Any:
    if is_range:
        return ops.cast(argsort(words(key, x.shape, 64)), x.dtype)
    if independent:
        order = argsort(words(key, x.shape, 64), axis=axis)
        return take_along(x, order, axis)
    order: Any = argsort(words(key, (x.shape[axis],), 64))
    return take(x, order, axis=axis)


# --- choices ----------------------------------------------------------------------------------


@api_boundary
def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
) -> ArrayBase:
    """Random parts of an array.

    Args:
        key: a key.
        a: an array, or an int that stands for its range.
        shape: the shape of the choices.
        replace: whether a part can be chosen again.
        p: the probability of each part; by default all have the same. They are scaled to the sum 1.
        axis: the axis that parts are along.

    Returns:
        An array whose shape is that of `a` with `shape` in the place of the axis.

    Raises:
        ShapeError: more are to be chosen than there are, or `p` has not one number for each.
        OptionError: probabilities are known to be negative, or not to have the sum 1.
    """
    name = "random.choice"
    found, dims = parse_key(name, key), parse_shape(name, shape)
    things, at = _population(name, a, axis)
    size = things.shape[at]
    if is_static(dims) and isinstance(size, int):
        wanted = math.prod(dims)
        if wanted > (size if not replace else wanted if size else 0):
            raise ShapeError(
                f"{name}: chooses {wanted} of {size}",
                loc=loc.current(),
                rule="without replacement at most all are chosen"
                if not replace
                else "there is something to choose from",
            )
    weights = None if p is None else _probabilities(name, p, size)
    return _choice(found, things, weights, dims, replace, at)


def _probabilities(name: str, p: Any, size: Dim) -> Any:
    found = as_array(name, p)
    if not found.dtype.is_float:
        raise DTypeError(
            f"{name}: p is {found.type.strong()}",
            loc=loc.current(),
            rule="probabilities are real numbers",
        )
    if found.shape != (size,):
        raise ShapeError(
            f"{name}: p is {found.type.strong()}, to choose from {size}",
            loc=loc.current(),
            rule=f"p has the shape {shape_text((size,))}",
        )
    refuse(name, "p", p, lambda v: ~(v >= 0), "probabilities are at least 0")
    data = known(p)
    if data is not None:
        total = float(np.sum(data.astype(np.float64)))
        allowed = float(np.sqrt(np.finfo(found.dtype.np).eps)) if found.dtype.bits >= 32 else 1e-2
        if not abs(total - 1) <= allowed:
            raise OptionError(
                f"{name}: the probabilities have the sum {total:.6g}",
                loc=loc.current(),
                rule="they have the sum 1",
                fix="divide by it: `p / ts.sum(p)`",
            )
    return found


@compiled("shape", "replace", "axis")
def _choice(key: Any, a: Any, p: Any, shape: tuple[Dim, ...], replace: bool, axis: int) -> Any:
    size = a.shape[axis]
    count: Any = math.prod(shape)
    if p is None and replace:
        index = below(key, full(shape, size, uint64), shape)
    elif p is None:
        index = slice_axis(argsort(words(key, (size,), 64)), 0, 0, count)
    elif replace:
        index = _weighted(key, p, shape)
    else:
        # The first arrivals of clocks that run at these rates.
        dtype = working(p.dtype)
        arrival = ops.div(standard_exponential(key, (size,), dtype), ops.cast(p, dtype))
        index = slice_axis(argsort(arrival), 0, 0, count)
    flat = reshape(ops.cast(index, default_int), (count,))
    found: Any = take(a, flat, axis=axis)
    return reshape(found, (*a.shape[:axis], *shape, *a.shape[axis + 1 :]))


def _weighted(key: Any, p: Any, shape: tuple[Dim, ...]) -> Any:
    """Indices with given probabilities.

    In integers: these have the same sums in whatever order they are added.
    """
    dtype = working(p.dtype)
    p = ops.cast(p, dtype)
    size: Any = p.shape[0]
    # The largest weight is a power of two that leaves room for the sum of all.
    largest = 2.0 ** (62 - int(size).bit_length()) if isinstance(size, int) else 2.0**30
    top = broadcast(reduce_max(p), p.shape, ())
    weights = ops.cast(ops.mul(ops.div(p, top), largest), uint64)
    sums: Any = cumulative_sum(weights)
    total = broadcast(slice_axis(sums, 0, size - 1, size), (*shape, 1), (len(shape),))
    place = below(key, reshape(total, shape), shape)
    return searchsorted(sums, place, side="right")


# --- matrices ---------------------------------------------------------------------------------


@api_boundary
def orthogonal(
    key: ArrayLike,
    n: int,
    shape: Shape = (),
    dtype: DTypeLike = default_float,
    m: int | None = None,
) -> ArrayBase:
    """Random orthogonal matrices, all rotations and reflections alike (the Haar measure).

    The factor Q, with positive diagonal of R, of matrices of normal numbers (Stewart, "The
    efficient generation of random orthogonal matrices", 1980), by Gram-Schmidt twice over. Sums are
    rounded as a device does it, so the last bits may differ between devices.

    Args:
        key: a key.
        n: the number of rows.
        shape: how many matrices: leading dims of the result.
        dtype: a floating-point dtype.
        m: the number of columns, by default `n`. Of a matrix that is not square, the columns or the
            rows, whichever are fewer, are orthonormal.

    Returns:
        An array of shape `[*shape, n, m]`.
    """
    name = "random.orthogonal"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    lead = parse_shape(name, shape)
    rows, columns = parse_shape(name, (n, n if m is None else m))
    return _orthogonal(found, rows, columns, lead, wanted)


@compiled("n", "m", "shape", "dtype")
def _orthogonal(key: Any, n: Any, m: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    long, short = max(n, m), min(n, m)
    # Vectors that are made orthonormal are rows here.
    start = standard_normal(key, (*shape, short, long), working(dtype))
    make: Any = _orthonormal
    for _ in shape:
        make = vmap(make)
    found = ops.cast(make(start), dtype)
    return found if n < m else found.mT


def _orthonormal(x: Any) -> Any:
    """The rows of a matrix, made orthonormal one after the other."""
    count, size = x.shape
    if not count:
        return x
    rows = iota((count, size), 0, default_int)

    def step(k: Any, q: Any) -> Any:
        k = as_array("random.orthogonal", k)
        row: Any = take(x, reshape(k, (1,)), axis=0)
        row = reshape(row, (size,))
        for _ in range(2):
            # Rows that are still missing are zeros.
            row = ops.sub(row, matmul(matmul(q, row), q))
        length = ops.sqrt(reduce_sum(ops.mul(row, row)))
        row = ops.div(row, broadcast(length, (size,), ()))
        is_this = ops.eq(rows, broadcast(k, (count, size), ()))
        return ops.select(is_this, broadcast(row, (count, size), (1,)), q)

    return fori_loop(0, count, step, full((count, size), 0.0, x.dtype))
