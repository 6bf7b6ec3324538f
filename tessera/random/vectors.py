"""Random vectors: normal ones with a covariance, and points of a ball."""

from __future__ import annotations

from typing import Any, Literal

from tessera.dtypes import DType, DTypeLike, default_float
from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    broadcast_dims,
    parse_shape,
    spread,
)
from tessera.graph.namespace.linear import matmul
from tessera.graph.namespace.statistics import sum as reduce_sum
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.reshape import broadcast, reshape
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.linalg import cholesky, eigh, svd
from tessera.random import portable
from tessera.random.continuous import standard_exponential, standard_normal
from tessera.random.derived import generalized_normal
from tessera.random.keys import (
    compiled,
    parse_float,
    parse_key,
    refuse,
    sample_shape,
    split,
    working,
)

__all__ = ["ball", "multivariate_normal"]


@api_boundary
def multivariate_normal(
    key: ArrayLike,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
    method: Literal["cholesky", "eigh", "svd"] = "cholesky",
) -> ArrayBase:
    """Normally distributed vectors with a mean and a covariance.

    Differentiable in both. Products are rounded as a device does it, so the last bits may differ
    between devices.

    Args:
        key: a key.
        mean: means `[..., n]`.
        cov: covariances `[..., n, n]`, symmetric and not negative; for `cholesky` positive.
        shape: the shape of the result without the last dim, which the leading dims of `mean` and
            `cov` are broadcast to; by default their common shape.
        dtype: a floating-point dtype.
        method: how a square root of the covariance is found. `eigh` and `svd` take covariances of
            less than full rank.

    Returns:
        An array of shape `[*shape, n]`; NaN where a covariance has no root.

    Raises:
        ShapeError: the shapes do not fit.
    """
    name = "random.multivariate_normal"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    if method not in ("cholesky", "eigh", "svd"):
        raise OptionError(
            f"{name}: method={method!r}",
            loc=loc.current(),
            rule="it is 'cholesky', 'eigh' or 'svd'",
        )
    centre, spreads = [ops.cast(as_array(name, x), working(wanted)) for x in (mean, cov)]
    fits = centre.ndim >= 1 and spreads.ndim >= 2
    fits = fits and all(may_equal(d, centre.shape[-1]) for d in spreads.shape[-2:])
    if not fits:
        raise ShapeError(
            f"{name}: mean is {centre.type.strong()}, cov {spreads.type.strong()}",
            loc=loc.current(),
            rule="mean is [..., n], and cov [..., n, n]",
        )
    lead = broadcast_dims([centre.shape[:-1], spreads.shape[:-2]])
    if isinstance(lead, int):
        raise ShapeError(
            f"{name}: the leading dims of mean are {shape_text(centre.shape[:-1])}, those of cov "
            f"{shape_text(spreads.shape[:-2])}",
            loc=loc.current(),
            rule="they are broadcast together",
        )
    dims = sample_shape(name, shape, lead, "the array of means and covariances")
    return _multivariate(found, centre, spreads, dims, wanted, method)


@compiled("shape", "dtype", "method")
def _multivariate(
    key: Any, mean: Any, cov: Any, shape: tuple[Dim, ...], dtype: DType, method: str
) -> Any:
    if method == "cholesky":
        root: Any = cholesky(cov)
    elif method == "eigh":
        values, vectors = eigh(cov)
        root = _scaled(vectors, values)
    else:
        left, values, _ = svd(cov)
        root = _scaled(left, values)
    full = (*shape, mean.shape[-1])
    drawn = standard_normal(key, full, mean.dtype)
    moved: Any = matmul(root, reshape(drawn, (*full, 1)))
    found = ops.add(reshape(moved, full), spread(mean, full))
    return ops.cast(found, dtype)


def _scaled(vectors: Any, squares: Any) -> Any:
    """Columns times the roots of numbers; what is below 0 by rounding counts as 0."""
    lengths = ops.sqrt(ops.maximum(squares, 0.0))
    rank = vectors.ndim
    return ops.mul(vectors, broadcast(lengths, vectors.shape, (*range(rank - 2), rank - 1)))


@api_boundary
def ball(
    key: ArrayLike,
    d: int,
    p: ArrayLike = 2,
    shape: Shape = (),
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Points of the unit ball of a p-norm, everywhere alike.

    By the method of Barthe, Guédon, Mendelson and Naor, "A probabilistic approach to the geometry
    of the l_p^n-ball" (2005).

    Args:
        key: a key.
        d: the number of dims of the ball.
        p: which norm: a number above 0.
        shape: how many points.
        dtype: a floating-point dtype.

    Returns:
        An array of shape `[*shape, d]`.
    """
    name = "random.ball"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    refuse(name, "p", p, lambda v: ~(v > 0), "p > 0")
    (size,) = parse_shape(name, (d,))
    exponent = ops.cast(as_array(name, p), working(wanted))
    if exponent.ndim:
        raise ShapeError(
            f"{name}: p is {exponent.type.strong()}", loc=loc.current(), rule="p is one number"
        )
    return _ball(found, exponent, (*parse_shape(name, shape), size), wanted)


@compiled("shape", "dtype")
def _ball(key: Any, p: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    keys: Any = split(key)
    points: Any = generalized_normal(keys[0], p, shape, p.dtype)
    wide = spread(p, shape)
    powers = portable.exp(ops.mul(portable.log(ops.abs_(points)), wide))
    more = standard_exponential(keys[1], shape[:-1], p.dtype)
    size = ops.add(reduce_sum(powers, axis=-1), more)
    length = portable.exp(ops.div(portable.log(size), spread(p, shape[:-1])))
    found = ops.div(points, broadcast(length, shape, range(len(shape) - 1)))
    return ops.cast(found, dtype)
