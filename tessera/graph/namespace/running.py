"""Running sums, products, extrema and logarithms of sums along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import DTypeLike, uint8
from tessera.errors import DTypeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, as_inexact, parse_axis
from tessera.graph.namespace.statistics import accumulated
from tessera.graph.ops import cumulative
from tessera.graph.ops.elementwise import cast
from tessera.graph.ops.rearrange import reshape
from tessera.graph.shortcut import composed, fused, shortcut
from tessera.ir import loc
from tessera.ir.intexpr import prod

__all__ = [
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "logcumsumexp",
]


@fused
@shortcut
@api_boundary
def cumsum(
    x: ArrayLike,
    /,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    reverse: bool = False,
) -> ArrayBase:
    """Running sums.

    Args:
        x: the array.
        axis: along which axis; None takes the elements in row-major order.
        dtype: the dtype to add in; by default as for `sum`.
        reverse: whether to run from the end to the beginning.

    Example:
        >>> import tessera as ts
        >>> ts.cumsum(ts.asarray([1, 2, 3]))
        Array([1, 3, 6], dtype=int64)
    """
    found = accumulated("cumsum", x, dtype)
    return _run("cumsum", cumulative.cumsum, found, axis, reverse)


@fused
@shortcut
@api_boundary
def cumprod(
    x: ArrayLike,
    /,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    reverse: bool = False,
) -> ArrayBase:
    """Running products. For the arguments see `cumsum`."""
    found = accumulated("cumprod", x, dtype)
    return _run("cumprod", cumulative.cumprod, found, axis, reverse)


@composed
@api_boundary
def cummax(x: ArrayLike, /, axis: int | None = 0, *, reverse: bool = False) -> ArrayBase:
    """Running maxima; NaN from the first one on.

    Args:
        x: real numbers.
        axis: along which axis; None takes the elements in row-major order.
        reverse: whether to run from the end to the beginning.
    """
    return _extrema("cummax", cumulative.cummax, x, axis, reverse)


@composed
@api_boundary
def cummin(x: ArrayLike, /, axis: int | None = 0, *, reverse: bool = False) -> ArrayBase:
    """Running minima; NaN from the first one on. For the arguments see `cummax`."""
    return _extrema("cummin", cumulative.cummin, x, axis, reverse)


@composed
@api_boundary
def logcumsumexp(x: ArrayLike, /, axis: int | None = 0, *, reverse: bool = False) -> ArrayBase:
    """Running log(sum(exp(x))), without overflow on the way. For the arguments see `cummax`."""
    found = as_inexact("logcumsumexp", x)
    _check_real("logcumsumexp", found)
    return _run("logcumsumexp", cumulative.cumlogsumexp, found, axis, reverse)


def _run(
    name: str, op: Callable[[Any, int, bool], Any], x: Any, axis: int | None, reverse: bool
) -> Any:
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    return op(x, parse_axis(name, axis, x.ndim), reverse)


def _extrema(
    name: str, op: Callable[[Any, int, bool], Any], x: object, axis: int | None, reverse: bool
) -> Any:
    found = as_array(name, x)
    _check_real(name, found)
    exact = cast(found, uint8) if found.dtype.is_bool else found
    return cast(_run(name, op, exact, axis, reverse), found.dtype)


def _check_real(name: str, x: Any) -> None:
    if x.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="the elements are real numbers",
        )
