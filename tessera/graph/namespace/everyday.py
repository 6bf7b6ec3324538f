"""What NumPy's users reach for daily, written with functions that the standard has: comparisons
with tolerances, averages, differences, polynomials, counts, places in shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DTypeLike, default_int, float64
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace import elementwise as elements
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    as_inexact,
    filled,
    index_of,
    parse_axes,
    parse_axis,
)
from tessera.graph.namespace.creation import arange, linspace
from tessera.graph.namespace.data_types import finfo
from tessera.graph.namespace.linear import matmul, tensordot
from tessera.graph.namespace.manipulation import (
    broadcast_to,
    concat,
    expand_dims,
    moveaxis,
    reshape,
)
from tessera.graph.namespace.mathematics import conj, imag, real, sqrt
from tessera.graph.namespace.parts import atleast_2d, diag
from tessera.graph.namespace.searching import searchsorted, where
from tessera.graph.namespace.segments import segment_sum
from tessera.graph.namespace.statistics import Axis, mean, sum
from tessera.graph.namespace.utility import all as every
from tessera.graph.ops.checks import shape_text
from tessera.graph.shortcut import composed, created, fused
from tessera.ir import loc

__all__ = [
    "allclose",
    "array_equal",
    "average",
    "bincount",
    "corrcoef",
    "cov",
    "deg2rad",
    "digitize",
    "dynamic_slice",
    "dynamic_update_slice",
    "geomspace",
    "gradient",
    "inner",
    "isclose",
    "kron",
    "logspace",
    "nan_to_num",
    "polyval",
    "rad2deg",
    "ravel_multi_index",
    "trapezoid",
    "unravel_index",
]


# --- comparisons --------------------------------------------------------------------------------


@fused
@composed
@api_boundary
def isclose(
    x1: ArrayLike, x2: ArrayLike, /, rtol: float = 1e-5, atol: float = 1e-8, *,
    equal_nan: bool = False,
) -> ArrayBase:  # fmt: skip
    """Whether elements are about the same: `abs(x1 - x2) <= atol + rtol * abs(x2)`.

    Args:
        x1: numbers.
        x2: numbers, which the relative tolerance is of.
        rtol: the relative tolerance.
        atol: the absolute one.
        equal_nan: whether NaN is close to NaN.

    Returns:
        bool; infinities are close to themselves alone.
    """
    a, b = _two("isclose", x1, x2)
    near = elements.abs(a - b) <= atol + rtol * elements.abs(b)
    found = where(elements.isfinite(a) & elements.isfinite(b), near, a == b)
    return found | (elements.isnan(a) & elements.isnan(b)) if equal_nan else found


@api_boundary
def allclose(
    x1: ArrayLike, x2: ArrayLike, /, rtol: float = 1e-5, atol: float = 1e-8, *,
    equal_nan: bool = False,
) -> ArrayBase:  # fmt: skip
    """Whether all elements are about the same, a bool. See `isclose`."""
    return every(isclose(x1, x2, rtol, atol, equal_nan=equal_nan))


@api_boundary
def array_equal(x1: ArrayLike, x2: ArrayLike, /, *, equal_nan: bool = False) -> ArrayBase:
    """Whether two arrays have one shape and the same elements, a bool."""
    a, b = as_array("array_equal", x1), as_array("array_equal", x2)
    if a.shape != b.shape:
        return elements.equal(0, 1)
    found = elements.equal(a, b)
    if equal_nan:
        found = elements.logical_or(found, elements.isnan(a) & elements.isnan(b))
    return every(found)


def _two(name: str, x1: object, x2: object) -> tuple[Any, Any]:
    """Two arguments as numbers with a fraction; integers keep all digits that float64 has."""
    a, b = as_array(name, x1), as_array(name, x2)
    if not a.dtype.is_inexact and not b.dtype.is_inexact:
        return a.astype(float64), b.astype(float64)
    return as_inexact(name, a), as_inexact(name, b)


@fused
@composed
@api_boundary
def nan_to_num(
    x: ArrayLike, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> ArrayBase:
    """The array with numbers in place of NaN and infinities.

    Args:
        x: the array.
        nan: what NaN becomes.
        posinf: what infinity becomes; by default the dtype's largest number.
        neginf: what minus infinity becomes; by default the dtype's lowest number.
    """
    found = as_array("nan_to_num", x)
    if found.dtype.is_complex:
        parts = [
            nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf)
            for part in (real(found), imag(found))
        ]
        return (parts[0] + 1j * parts[1]).astype(found.dtype)
    if not found.dtype.is_inexact:
        return found
    limits = finfo(found.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    infinite = elements.isinf(found)
    found = where(infinite & (found > 0), high, where(infinite & (found < 0), low, found))
    return where(elements.isnan(found), nan, found)


# --- averages -----------------------------------------------------------------------------------


@composed
@api_boundary
def average(
    x: ArrayLike, /, *, axis: Axis = None, weights: ArrayLike | None = None, keepdims: bool = False
) -> ArrayBase:
    """The mean, of elements that count as much as their weights say.

    Args:
        x: numbers.
        axis: the axes; None is all.
        weights: as many as elements, or, for one axis, as many as that is long; None: all alike.
        keepdims: whether the axes stay, with length 1.
    """
    found = as_inexact("average", as_array("average", x))
    if weights is None:
        return mean(found, axis=axis, keepdims=keepdims)
    given: Any = as_array("average", weights)
    if given.shape != found.shape:
        if not isinstance(axis, int) or given.ndim != 1:
            raise ShapeError(
                f"average: weights of shape {shape_text(given.shape)} for {found.type.strong()}",
                loc=loc.current(),
                rule="there are as many weights as elements, or as many as one axis is long",
            )
        at = parse_axis("average", axis, found.ndim)
        shape = [1] * found.ndim
        shape[at] = given.shape[0]
        given = broadcast_to(reshape(given, tuple(shape)), found.shape)
    total = sum(given.astype(found.dtype), axis=axis, keepdims=keepdims)
    return sum(found * given, axis=axis, keepdims=keepdims) / total


@composed
@api_boundary
def cov(x: ArrayLike, /, *, rowvar: bool = True, ddof: int = 1) -> ArrayBase:
    """The covariance matrix of variables.

    Args:
        x: `[variables, observations]`; a vector is one variable.
        rowvar: False if observations come first.
        ddof: what is taken off the number of observations before it divides.

    Returns:
        `[variables, variables]`, or one number for one variable.
    """
    found = _variables("cov", x, rowvar)
    centred: Any = found - mean(found, axis=1, keepdims=True)
    matrix: Any = matmul(centred, conj(centred.mT)) / (found.shape[1] - ddof)
    return matrix[0, 0] if found.shape[0] == 1 else matrix


@composed
@api_boundary
def corrcoef(x: ArrayLike, /, *, rowvar: bool = True) -> ArrayBase:
    """The correlation coefficients of variables. For the arguments see `cov`."""
    matrix: Any = cov(x, rowvar=rowvar)
    if matrix.ndim == 0:
        return matrix / matrix
    deviation: Any = sqrt(real(diag(matrix)) if matrix.dtype.is_complex else diag(matrix))
    return matrix / deviation / expand_dims(deviation, axis=1)


def _variables(name: str, x: object, rowvar: bool) -> Any:
    found: Any = as_inexact(name, as_array(name, x))
    if found.ndim > 2:
        raise ShapeError(
            f"{name}: {found.type.strong()}",
            loc=loc.current(),
            rule="variables and observations are the two dims of a matrix",
        )
    one = found.ndim < 2
    found = atleast_2d(found)
    return found if rowvar or one else found.mT


# --- differences, areas, polynomials ------------------------------------------------------------


@composed
@api_boundary
def gradient(
    f: ArrayLike, /, spacing: float = 1.0, *, axis: Axis = None
) -> ArrayBase | list[ArrayBase]:
    """The slopes of values on a grid: central differences, and one-sided ones at both ends.

    For the derivative of a function see `ts.grad`.

    Args:
        f: the values; two at least along each axis.
        spacing: the distance of neighbours.
        axis: the axes; None is all.

    Returns:
        An array for one axis, else a list with one for each.
    """
    found: Any = as_inexact("gradient", as_array("gradient", f))
    axes = parse_axes("gradient", axis, found.ndim)
    slopes: list[ArrayBase] = []
    for at in axes:
        size = found.shape[at]
        if isinstance(size, int) and size < 2:
            raise ShapeError(
                f"gradient: dim {at} of {found.type.strong()}",
                loc=loc.current(),
                rule="a slope needs two values at least",
            )
        y: Any = moveaxis(found, at, 0)
        inner = (y[2:] - y[:-2]) / (2 * spacing)
        ends = (y[1:2] - y[:1]) / spacing, (y[-1:] - y[-2:-1]) / spacing
        slopes.append(moveaxis(concat([ends[0], inner, ends[1]]), 0, at))
    return slopes[0] if len(slopes) == 1 else slopes


@fused
@composed
@api_boundary
def trapezoid(
    y: ArrayLike, /, x: ArrayLike | None = None, dx: float = 1.0, *, axis: int = -1
) -> ArrayBase:
    """The area under values, by the trapezoidal rule.

    Args:
        y: the values.
        x: where they are, as many as the axis is long or as `y` has; None: `dx` apart.
        dx: the distance of neighbours.
        axis: the axis along which the area is taken.
    """
    values: Any = as_inexact("trapezoid", as_array("trapezoid", y))
    at = parse_axis("trapezoid", axis, values.ndim)
    values = moveaxis(values, at, -1)
    if x is None:
        return dx * (sum(values, axis=-1) - (values[..., 0] + values[..., -1]) / 2)
    places: Any = as_array("trapezoid", x)
    if places.ndim > 1:
        places = moveaxis(places, at, -1)
    widths = places[..., 1:] - places[..., :-1]
    return sum(widths * (values[..., 1:] + values[..., :-1]) / 2, axis=-1)


@composed
@api_boundary
def polyval(p: ArrayLike, x: ArrayLike, /) -> ArrayBase:
    """The value of a polynomial, by Horner's rule.

    Args:
        p: the coefficients, that of the highest power first, a vector of known length.
        x: where.
    """
    coefficients: Any = as_array("polyval", p)
    if coefficients.ndim != 1 or not isinstance(coefficients.shape[0], int):
        raise ShapeError(
            f"polyval: p is {coefficients.type.strong()}",
            loc=loc.current(),
            rule="the coefficients are a vector of known length",
        )
    at: Any = as_array("polyval", x)
    found: Any = elements.multiply(at, 0) + elements.multiply(0, coefficients.dtype.np.type(0))
    for k in range(coefficients.shape[0]):
        found = found * at + coefficients[k]
    return found


@composed
@api_boundary
def deg2rad(x: ArrayLike, /) -> ArrayBase:
    """Degrees in radians."""
    return elements.multiply(as_inexact("deg2rad", as_array("deg2rad", x)), math.pi / 180)


@composed
@api_boundary
def rad2deg(x: ArrayLike, /) -> ArrayBase:
    """Radians in degrees."""
    return elements.multiply(as_inexact("rad2deg", as_array("rad2deg", x)), 180 / math.pi)


@created
@api_boundary
def logspace(
    start: float, stop: float, /, num: int = 50, *, endpoint: bool = True, base: float = 10.0,
    dtype: DTypeLike | None = None,
) -> ArrayBase:  # fmt: skip
    """Powers of `base` whose exponents are evenly spaced from `start` to `stop`."""
    return elements.pow(base, linspace(start, stop, num, endpoint=endpoint, dtype=dtype))


@created
@api_boundary
def geomspace(
    start: float, stop: float, /, num: int = 50, *, endpoint: bool = True,
    dtype: DTypeLike | None = None,
) -> ArrayBase:  # fmt: skip
    """Numbers from `start` to `stop`, each a constant multiple of the one before.

    Args:
        start: the first; not 0.
        stop: the last, of the same sign.
        num: how many.
        endpoint: whether `stop` is one of them.
        dtype: of the result.
    """
    if not start * stop > 0:
        raise OptionError(
            f"geomspace: from {start!r} to {stop!r}",
            loc=loc.current(),
            rule="both ends have one sign, and are not 0",
        )
    sign = math.copysign(1.0, start)
    ends = math.log(abs(start)), math.log(abs(stop))
    found: Any = logspace(*ends, num, endpoint=endpoint, base=math.e, dtype=dtype) * sign
    # The ends are what was asked for, to the last bit.
    number = arange(num, device=found.device)
    found = where(number == 0, start, found)
    return where(number == num - 1, stop, found) if endpoint and num > 1 else found


# --- products -----------------------------------------------------------------------------------


@composed
@api_boundary
def inner(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """Sums of products along the last axes of both arrays."""
    a, b = as_array("inner", x1), as_array("inner", x2)
    if not a.ndim or not b.ndim:
        return elements.multiply(a, b)
    return tensordot(a, b, axes=((a.ndim - 1,), (b.ndim - 1,)))


@composed
@api_boundary
def kron(x1: ArrayLike, x2: ArrayLike, /) -> ArrayBase:
    """The Kronecker product: the first array, each element times the second."""
    a: Any = as_array("kron", x1)
    b: Any = as_array("kron", x2)
    rank = max(a.ndim, b.ndim)
    a = reshape(a, (*[1] * (rank - a.ndim), *a.shape))
    b = reshape(b, (*[1] * (rank - b.ndim), *b.shape))
    product = expand_dims(a, axis=tuple(range(1, 2 * rank, 2))) * expand_dims(
        b, axis=tuple(range(0, 2 * rank, 2))
    )
    return reshape(product, tuple([m * n for m, n in zip(a.shape, b.shape, strict=True)]))


# --- counts -------------------------------------------------------------------------------------


@composed
@api_boundary
def bincount(
    x: ArrayLike, /, weights: ArrayLike | None = None, *, length: int | None = None
) -> ArrayBase:
    """How often each number from 0 on occurs.

    Args:
        x: a vector of integers; negative ones do not count.
        weights: what each counts; None: 1.
        length: how many numbers; by default as many as needed, which must then be known.
    """
    found: Any = as_array("bincount", x)
    if found.ndim != 1 or not found.dtype.is_integer:
        raise DTypeError(
            f"bincount: x is {found.type.strong()}",
            loc=loc.current(),
            rule="it is a vector of integers",
        )
    counts = filled(found.shape, 1, default_int, found) if weights is None else weights
    return segment_sum(counts, found, length)


@composed
@api_boundary
def digitize(x: ArrayLike, /, bins: ArrayLike, *, right: bool = False) -> ArrayBase:
    """The number of the bin that each element is in.

    Args:
        x: real numbers.
        bins: the edges, a vector that does not fall.
        right: whether a bin holds its right edge, rather than its left one.

    Returns:
        int64: 0 for what is below all edges, `len(bins)` for what is above.
    """
    return searchsorted(bins, x, side="left" if right else "right")


# --- places -------------------------------------------------------------------------------------


@composed
@api_boundary
def unravel_index(indices: ArrayLike, /, shape: Sequence[int]) -> tuple[ArrayBase, ...]:
    """The coordinates of elements whose numbers, in row-major order, are given.

    Example:
        >>> import tessera as ts
        >>> ts.unravel_index(ts.asarray(5), (2, 3))
        (Array(1, dtype=int64), Array(2, dtype=int64))
    """
    rest: Any = as_array("unravel_index", indices)
    found: list[ArrayBase] = []
    for size in reversed([index_of("unravel_index: shape", n) for n in shape]):
        found.append(rest % size)
        rest = rest // size
    return tuple(reversed(found))


@api_boundary
def ravel_multi_index(multi_index: Sequence[ArrayLike], /, dims: Sequence[int]) -> ArrayBase:
    """The numbers of elements, in row-major order, whose coordinates are given."""
    sizes = [index_of("ravel_multi_index: dims", n) for n in dims]
    if len(multi_index) != len(sizes) or not sizes:
        raise ShapeError(
            f"ravel_multi_index: {len(multi_index)} coordinates for {len(sizes)} dims",
            loc=loc.current(),
            rule="there is one coordinate for each dim",
        )
    found: Any = as_array("ravel_multi_index", multi_index[0])
    for size, index in zip(sizes[1:], multi_index[1:], strict=True):
        found = found * size + as_array("ravel_multi_index", index)
    return found


@api_boundary
def dynamic_slice(
    x: ArrayLike, start_indices: Sequence[ArrayLike] | ArrayBase, slice_sizes: Sequence[int], /
) -> ArrayBase:
    """A part of an array of known size, from a place that may be data.

    Args:
        x: the array.
        start_indices: where it starts along each axis, integers; clamped so that the part is
            inside. Negative ones count from the end.
        slice_sizes: its lengths.
    """
    found: Any = as_array("dynamic_slice", x)
    starts, sizes = _part("dynamic_slice", found, start_indices, slice_sizes)
    places = _places(found, starts, sizes)
    return found[_grid(places)] if places else found


@api_boundary
def dynamic_update_slice(
    x: ArrayLike, update: ArrayLike, start_indices: Sequence[ArrayLike] | ArrayBase, /
) -> ArrayBase:
    """An array with a part replaced, at a place that may be data. See `dynamic_slice`."""
    found: Any = as_array("dynamic_update_slice", x)
    new: Any = as_array("dynamic_update_slice", update)
    if new.ndim != found.ndim:
        raise ShapeError(
            f"dynamic_update_slice: {new.type.strong()} into {found.type.strong()}",
            loc=loc.current(),
            rule="both have the same number of dims",
        )
    starts, sizes = _part("dynamic_update_slice", found, start_indices, new.shape)
    places = _places(found, starts, sizes)
    return found.at[_grid(places)].set(new) if places else new


def _part(name: str, x: Any, starts: Any, sizes: Sequence[Any]) -> tuple[list[Any], Sequence[int]]:
    """Where a part starts, inside of the array, and its size."""
    given = [starts[k] for k in range(len(starts))]
    if len(given) != x.ndim or len(sizes) != x.ndim:
        raise ShapeError(
            f"{name}: {len(given)} starts and {len(sizes)} sizes for {x.type.strong()}",
            loc=loc.current(),
            rule="there is one start and one size for each dim",
        )
    for k, (size, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        if isinstance(size, int) and isinstance(whole, int) and not 0 <= size <= whole:
            raise ShapeError(
                f"{name}: a part of length {size} of dim {k} of {x.type.strong()}",
                loc=loc.current(),
                rule="a part is not longer than the whole",
            )
    found: list[Any] = []
    for start, size, whole in zip(given, sizes, x.shape, strict=True):
        at: Any = as_array(name, start).astype(default_int)
        at = where(at < 0, at + whole, at)
        found.append(elements.clip(at, 0, whole - size))
    return found, sizes


def _places(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Places along each axis."""
    return [s + arange(n, device=x.device) for s, n in zip(starts, sizes, strict=True)]


def _grid(places: Sequence[Any]) -> tuple[Any, ...]:
    """Places along each axis, as indices that broadcast."""
    rank = len(places)
    return tuple(
        [
            reshape(at, tuple([-1 if j == k else 1 for j in range(rank)]))
            for k, at in enumerate(places)
        ]
    )
