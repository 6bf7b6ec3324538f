"""Layers as plain functions of their parameters: dense, embedding, convolution, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    index_of,
    is_number,
    parse_axis,
    spread,
)
from tessera.graph.namespace.convolution import conv_general
from tessera.graph.namespace.elementwise import divide
from tessera.graph.namespace.linear import matmul
from tessera.graph.namespace.taking import take
from tessera.graph.namespace.windows import Padding
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.quantize import Quantized
from tessera.graph.ops.reshape import broadcast, full_like, reshape
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.nn.activations import real
from tessera.random import bernoulli
from tessera.random.keys import parse_key

__all__ = ["conv", "dense", "dropout", "embedding"]


@composed
@api_boundary
def dense(
    x: ArrayLike, kernel: ArrayLike | Quantized, bias: ArrayLike | None = None
) -> ArrayBase:
    """x @ kernel + bias.

    Args:
        x: an array `[..., features]`.
        kernel: a matrix `[features, outputs]`, which may be a quantized one (`ts.quantize`).
        bias: a vector `[outputs]`.

    Returns:
        An array `[..., outputs]`.

    Raises:
        ShapeError: the arrays do not fit.
    """
    found = as_array("nn.dense", x)
    weights = kernel if isinstance(kernel, Quantized) else as_array("nn.dense", kernel)
    if not found.ndim or weights.ndim != 2 or not may_equal(found.shape[-1], weights.shape[0]):
        text = weights if isinstance(weights, Quantized) else weights.type.strong()
        raise ShapeError(
            f"nn.dense: x is {found.type.strong()}, kernel {text}",
            loc=loc.current(),
            rule="the kernel is [features, outputs], and the last dim of x has the features",
        )
    if isinstance(weights, Quantized):
        return _biased("dense", found @ weights, bias)
    return _biased("dense", matmul(found, weights), bias)


@api_boundary
def embedding(indices: ArrayLike, table: ArrayLike | Quantized) -> ArrayBase:
    """Rows of a table.

    Args:
        indices: integers `[...]`, as for `ts.take`.
        table: a matrix `[entries, features]`, which may be a quantized one: only the rows that are
            taken are dequantized.

    Returns:
        An array `[..., features]`.

    Raises:
        ShapeError: the table is no matrix.

    Example:
        >>> import tessera as ts
        >>> ts.nn.embedding(ts.asarray([2, 0]), ts.eye(3))
        Array([[0., 0., 1.],
               [1., 0., 0.]], dtype=float32)
    """
    found = table if isinstance(table, Quantized) else as_array("nn.embedding", table)
    if found.ndim != 2:
        raise ShapeError(
            f"nn.embedding: the table has {found.ndim} dims",
            loc=loc.current(),
            rule="the table is [entries, features]",
        )
    if isinstance(found, Quantized):
        return found.rows(indices)
    return take(found, indices, axis=0)


def _biased(name: str, x: Any, bias: Any) -> Any:
    if bias is None:
        return x
    added = as_array(f"nn.{name}", bias)
    if added.ndim != 1 or not may_equal(added.shape[0], x.shape[-1]):
        raise ShapeError(
            f"nn.{name}: bias is {added.type.strong()}, for {x.shape[-1]} outputs",
            loc=loc.current(),
            rule="the bias has one number for each output",
        )
    return x + spread(added, x.shape)


@composed
@api_boundary
def conv(
    x: ArrayLike,
    kernel: ArrayLike | Quantized,
    bias: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] = 1,
    kernel_dilation: int | Sequence[int] = 1,
    feature_group_count: int = 1,
) -> ArrayBase:
    """A convolution along any number of dims, with the features last.

    `ts.conv_general` has other orders of dims.

    Args:
        x: an array `[..., *places, features]`.
        kernel: an array `[*window, features / feature_group_count, outputs]`; its rank says how
            many dims the window moves along. A quantized one is dequantized.
        bias: a vector `[outputs]`.
        strides: how far the window moves, along each dim or all.
        padding: `"SAME"`, `"VALID"`, or pairs of ints; see `ts.conv_general`.
        input_dilation: how far apart the elements of `x` are put; 2 is a transposed convolution
            with stride 2.
        kernel_dilation: how far apart the elements of the window are put.
        feature_group_count: the number of groups of features.

    Returns:
        An array `[..., *places, outputs]`.

    Raises:
        ShapeError: the arrays do not fit.

    Example:
        >>> import tessera as ts
        >>> images = ts.ones((8, 28, 28, 1))
        >>> ts.nn.conv(images, ts.ones((3, 3, 1, 16)), strides=2).shape
        (8, 14, 14, 16)
    """
    found = as_array("nn.conv", x)
    weights = as_array(
        "nn.conv", kernel.dequantize() if isinstance(kernel, Quantized) else kernel
    )
    count = weights.ndim - 2
    if count < 0 or found.ndim < count + 1:
        raise ShapeError(
            f"nn.conv: x is {found.type.strong()}, kernel {weights.type.strong()}",
            loc=loc.current(),
            rule="the kernel is [*window, features, outputs], and x is [..., *places, features]",
        )
    features, taken = found.shape[-1], weights.shape[-2]
    groups = index_of("nn.conv: feature_group_count", feature_group_count)
    if not may_equal(features, taken * groups):
        raise ShapeError(
            f"nn.conv: x is {found.type.strong()}, kernel {weights.type.strong()}, with "
            f"{groups} groups of features",
            loc=loc.current(),
            rule="the features of x are those of the kernel, times the number of groups",
        )
    at = found.ndim - count - 1
    lead = found.shape[:at]
    rest = found.shape[at:]
    flat: Any = reshape(found, (math.prod(lead), *rest)) if at != 1 else found
    places = "".join(chr(ord("a") + k) for k in range(count))
    result: Any = conv_general(
        flat,
        weights,
        _each(strides, count),
        padding,
        _each(input_dilation, count),
        _each(kernel_dilation, count),
        (f"N{places}C", f"{places}IO", f"N{places}C"),
        groups,
    )
    if at != 1:
        result = reshape(result, (*lead, *result.shape[1:]))
    return _biased("conv", result, bias)


def _each(value: int | Sequence[int], count: int) -> Sequence[int]:
    return (value,) * count if isinstance(value, (int, np.integer)) else value


@api_boundary
def dropout(
    key: ArrayLike | None,
    x: ArrayLike,
    rate: ArrayLike = 0.5,
    *,
    broadcast_dims: Sequence[int] = (),
    deterministic: bool = False,
) -> ArrayBase:
    """Sets elements to 0 with a probability, and divides the others by that of staying.

    What is dropped depends on the key alone, so the pass backwards drops the same.

    Args:
        key: a key of `ts.random`; a new one for each call. None only where nothing is random.
        x: real numbers.
        rate: the probability of 0.
        broadcast_dims: axes along which all elements share their fate.
        deterministic: whether to return `x` as it is, as when a model is not trained.

    Raises:
        OptionError: the rate is known not to be in [0, 1], or there is no key.

    Example:
        >>> import tessera as ts
        >>> x = ts.nn.dropout(ts.random.key(0), ts.ones(1000), 0.2)
        >>> sorted(set(x.tolist()))
        [0.0, 1.25]
    """
    found = real("dropout", x)
    axes = [parse_axis("nn.dropout", k, found.ndim, "broadcast_dims") for k in broadcast_dims]
    if is_number(rate):
        if isinstance(rate, complex) or not 0 <= rate <= 1:
            raise OptionError(
                f"nn.dropout: the rate is {rate}", loc=loc.current(), rule="0 <= rate <= 1"
            )
        if rate == 0 or deterministic:
            return found
        if rate == 1:
            return full_like(found, 0.0)
    elif deterministic:
        return found
    if key is None:
        raise OptionError(
            "nn.dropout: there is no key",
            loc=loc.current(),
            rule="what is dropped is a function of a key",
            fix="pass `ts.random.key(seed)`, split for each call, or `deterministic=True`",
        )
    shape = tuple([1 if k in axes else d for k, d in enumerate(found.shape)])
    stay: Any = ops.sub(1.0, as_array("nn.dropout", rate)) if not is_number(rate) else 1 - rate
    mask: Any = bernoulli(parse_key("nn.dropout", key), stay, shape)
    mask = broadcast(mask, found.shape, range(found.ndim))
    grown: Any = divide(found, stay)
    return ops.select(mask, ops.cast(grown, found.dtype), 0.0)
