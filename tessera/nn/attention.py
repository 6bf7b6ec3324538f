"""Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017)."""

from __future__ import annotations

import math
from typing import Any

from tessera.dtypes import DType, bool_, finfo, float32, int32
from tessera.errors import ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.calls import fused_on_hosts
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_dims,
    common_dtype,
    spread,
    to_dtype,
)
from tessera.graph.namespace.statistics import stop_gradient, with_dims
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.generate import iota
from tessera.graph.ops.reshape import broadcast, reshape
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.nn.activations import real
from tessera.nn.normalization import power_below

__all__ = ["attention", "attention_safe"]


@fused_on_hosts
@composed
@api_boundary
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    mask: ArrayLike | None = None,
    scale: float | None = None,
) -> ArrayBase:
    """softmax(q @ k.T * scale + mask) @ v, for each head.

    On a CPU compiled code keeps a block of scores at a time, forwards and backwards; those that a
    causal mask leaves out are not computed.

    Args:
        q: queries `[..., heads, length, width]`; the dims before `length` may be missing.
        k: keys `[..., key heads, key length, width]`. Each of the key heads serves as many heads of
            the queries, neighbours.
        v: values `[..., key heads, key length, value width]`.
        causal: whether query i sees keys 0 to i only.
        mask: broadcast to the scores `[..., heads, length, key length]`: bool, which keys a query
            sees, or numbers that are added to the scores.
        scale: what the scores are multiplied by; None is `width ** -0.5`.

    Returns:
        An array `[..., heads, length, value width]` of the dtype of the arguments. Scores are
        computed in float32 at least. A query that sees nothing gets 0.

    Raises:
        ShapeError: the arrays do not fit.

    Example:
        >>> import tessera as ts
        >>> q, k = ts.ones((2, 8, 100, 64)), ts.ones((2, 2, 100, 64))
        >>> ts.nn.attention(q, k, k, causal=True).shape
        (2, 8, 100, 64)
    """
    return _attend("attention", (q, k, v), causal, mask, scale)


@fused_on_hosts
@composed
@api_boundary
def attention_safe(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    mask: ArrayLike | None = None,
    scale: float | None = None,
) -> ArrayBase:
    """`attention` that is finite for all finite arguments, the largest ones too.

    Products do not overflow: queries, keys and values are divided by powers of two first where they
    are above 1, which is exact. Scores that exceed the dtype they are computed in become its
    largest number, as results do, so that several such share a query equally. It takes a few
    operations more than `attention`, which gives NaN where products of queries and keys overflow.

    Args:
        q: queries, as those of `attention`.
        k: keys.
        v: values.
        causal: whether query i sees keys 0 to i only.
        mask: bool, which keys a query sees, or numbers that are added to the scores; where these
            are -inf, a query does not see the key.
        scale: what the scores are multiplied by; None is `width ** -0.5`.

    Returns:
        An array `[..., heads, length, value width]` of the dtype of the arguments. A query that
        sees nothing gets 0.

    Raises:
        ShapeError: the arrays do not fit.

    Example:
        >>> import tessera as ts
        >>> q = ts.full((1, 2, 4), 3e38)
        >>> ts.nn.attention_safe(q, q, q)[0, 0]
        Array([3.e+38, 3.e+38, 3.e+38, 3.e+38], dtype=float32)
    """
    return _attend("attention_safe", (q, k, v), causal, mask, scale, safe=True)


def _attend(
    name: str,
    given: tuple[ArrayLike, ArrayLike, ArrayLike],
    causal: bool,
    mask: ArrayLike | None,
    scale: float | None,
    safe: bool = False,
) -> ArrayBase:
    arrays = [real(name, x) for x in given]
    dtype, weak = common_dtype(f"nn.{name}", arrays)
    queries, keys, values = (to_dtype(x, dtype, weak) for x in arrays)
    lead, heads = _heads(name, queries, keys, values)
    shape = (*queries.shape[:-1], keys.shape[-2])
    if heads:
        queries = reshape(queries, (*lead, *heads, *queries.shape[-2:]))
    # Scores [..., key heads, heads of each, length, key length].
    batch = tuple(range(keys.ndim - 2))
    pair = ((queries.ndim - 1,), (keys.ndim - 1,))
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    if safe:
        scores = _safe_scores(queries, keys, factor, _wide(dtype))
    else:
        scores = dot_general(queries, keys, pair, (batch, batch), _wide(dtype))
        scores = ops.mul(scores, factor)
    seen: Any = None
    if mask is not None:
        shown = _mask(name, as_array(f"nn.{name}", mask), shape, heads)
        if shown.dtype is bool_:
            seen = spread(shown, scores.shape)
        else:
            added = spread(ops.cast(shown, scores.dtype), scores.shape)
            scores = ops.add(scores, added)
            if safe:
                seen = ops.ne(added, -math.inf)
                scores = _clipped(scores, scores.dtype)
    if causal:
        rank = scores.ndim
        lines = [iota((scores.shape[axis],), 0, int32) for axis in (rank - 2, rank - 1)]
        below = ops.ge(*[broadcast(x, scores.shape, (rank - 2 + n,)) for n, x in enumerate(lines)])
        seen = below if seen is None else ops.and_(seen, below)
    if seen is not None:
        scores = ops.select(seen, scores, -math.inf)
    weights = _weights(scores)
    if safe:
        found = _safe_sums(weights, values, dtype)
        return reshape(found, (*shape[:-1], values.shape[-1])) if heads else found
    weights = ops.cast(weights, dtype)
    pair = ((weights.ndim - 1,), (values.ndim - 2,))
    found = dot_general(weights, values, pair, (batch, batch))
    return reshape(found, (*shape[:-1], values.shape[-1])) if heads else found


def _wide(dtype: DType) -> DType:
    return float32 if dtype.bits < 32 else dtype


def _safe_scores(queries: Any, keys: Any, scale: float, wide: DType) -> Any:
    """Scores within the finite numbers of a dtype: products of queries and keys that are 2 at most,
    times the powers of two that they were divided by.
    """
    pairs = [_divided(ops.cast(x, wide), x.ndim - 1) for x in (queries, keys)]
    batch = tuple(range(keys.ndim - 2))
    pair = ((queries.ndim - 1,), (keys.ndim - 1,))
    scores = ops.mul(dot_general(pairs[0][0], pairs[1][0], pair, (batch, batch)), scale)
    rows = tuple(range(queries.ndim - 1))
    columns = (*batch, queries.ndim - 1)
    for (_, power), dims in zip(pairs, (rows, columns), strict=True):
        scores = ops.mul(scores, broadcast(power, scores.shape, dims))
    return _clipped(scores, wide)


def _safe_sums(weights: Any, values: Any, dtype: DType) -> Any:
    """Sums of values by weights that add up to 1, within the finite numbers of a dtype."""
    small, power = _divided(ops.cast(values, weights.dtype), values.ndim - 2)
    batch = tuple(range(values.ndim - 2))
    pair = ((weights.ndim - 1,), (values.ndim - 2,))
    found = dot_general(weights, small, pair, (batch, batch))
    found = ops.mul(found, broadcast(power, found.shape, (*batch, found.ndim - 1)))
    return ops.cast(_clipped(found, dtype), dtype)


def _divided(x: Any, axis: int) -> tuple[Any, Any]:
    """An array divided by powers of two, so that it is 2 at most, and the powers, without the axis.
    """
    power = power_below(ops.maximum(_largest(ops.abs_(x), axis), 1.0))
    kept = tuple([k for k in range(x.ndim) if k != axis])
    return ops.div(x, broadcast(power, x.shape, kept)), power


def _largest(x: Any, axis: int) -> Any:
    """The largest element along an axis, without a derivative; 0 of none."""
    if x.shape[axis] == 0:
        return reduce.sum_(x, (axis,))
    return reduce.max_(stop_gradient(x), (axis,))


def _clipped(x: Any, dtype: DType) -> Any:
    """An array within the finite numbers of a dtype."""
    limit = finfo(dtype).max
    return ops.minimum(ops.maximum(x, -limit), limit)


def _heads(
    name: str, q: Any, k: Any, v: Any
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The dims before the heads; the heads of the keys, and how many of the queries each serves, if
    that is not one."""
    arrays = (q, k, v)
    fits = q.ndim == k.ndim == v.ndim >= 2
    if fits:
        pairs = [(q.shape[-1], k.shape[-1]), (k.shape[-2], v.shape[-2])]
        pairs += [*zip(q.shape[:-3], k.shape[:-3], strict=True)]
        pairs += [*zip(k.shape[:-2], v.shape[:-2], strict=True)]
        fits = all(may_equal(a, b) for a, b in pairs)
    if fits and q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        many, few = q.shape[-3], k.shape[-3]
        fits = isinstance(many, int) and isinstance(few, int) and few > 0 and many % few == 0
        if fits:
            return q.shape[:-3], (few, many // few)
    if not fits:
        texts = [str(x.type.strong()) for x in arrays]
        raise ShapeError(
            f"nn.{name}: q is {texts[0]}, k {texts[1]}, v {texts[2]}",
            loc=loc.current(),
            rule="they are [..., heads, length, width] with the dims before the heads in common; k "
            "has the width of q, v the heads and the length of k, and q a multiple of its heads",
        )
    return q.shape[:-2], ()


def _mask(name: str, mask: Any, shape: tuple[Dim, ...], heads: tuple[Dim, ...]) -> Any:
    """The mask with the dims of the scores, or 1 in place of those."""
    if mask.dtype.is_complex or broadcast_dims([mask.shape, shape]) != shape:
        raise ShapeError(
            f"nn.{name}: mask is {mask.type.strong()}, and the scores {shape_text(shape)}",
            loc=loc.current(),
            rule="a mask is bool or numbers to add, and is broadcast to the scores "
            "[..., heads, length, key length]",
        )
    if not heads or mask.ndim < 3:
        return mask
    own = (1, 1) if mask.shape[-3] == 1 else heads
    return reshape(mask, (*mask.shape[:-3], *own, *mask.shape[-2:]))


def _weights(scores: Any) -> Any:
    """Softmax along rows; zeros in those of which nothing is left."""
    if scores.shape[-1] == 0:
        return scores
    axes = (scores.ndim - 1,)

    def along(x: Any) -> Any:
        return spread(with_dims(x, scores.shape, axes), scores.shape)

    top = reduce.max_(stop_gradient(scores), axes)
    top = ops.select(ops.eq(top, -math.inf), 0.0, top)
    powers = ops.exp(ops.sub(scores, along(top)))
    total = reduce.sum_(powers, axes)
    return ops.div(powers, along(ops.select(ops.eq(total, 0.0), 1.0, total)))
