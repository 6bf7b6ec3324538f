"""The programs that are compared: array code that runs under Tessera and JAX alike (`xp` is the
namespace), and the same in PyTorch.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from torch.nn import functional as F

Array = Any


def chain(xp: Any, x: Array) -> Array:
    """A dozen elementwise operations."""
    y = xp.tanh(x) * 2 + x
    return xp.where(y > 0, xp.sqrt(xp.abs(y)), y * 0.1) - xp.exp(-xp.abs(x))


def torch_chain(x: torch.Tensor) -> torch.Tensor:
    """The same."""
    y = torch.tanh(x) * 2 + x
    return torch.where(y > 0, torch.sqrt(torch.abs(y)), y * 0.1) - torch.exp(-torch.abs(x))


def gelu(xp: Any, x: Array) -> Array:
    """GELU with tanh, computed in float32."""
    y = xp.astype(x, xp.float32)
    y = 0.5 * y * (1 + xp.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))
    return xp.astype(y, x.dtype)


def torch_gelu(x: torch.Tensor) -> torch.Tensor:
    """The same."""
    return F.gelu(x, approximate="tanh")


def softmax(xp: Any, x: Array) -> Array:
    """Along the last axis, in float32."""
    y = xp.astype(x, xp.float32)
    e = xp.exp(y - xp.max(y, axis=-1, keepdims=True))
    return xp.astype(e / xp.sum(e, axis=-1, keepdims=True), x.dtype)


def torch_softmax(x: torch.Tensor) -> torch.Tensor:
    """The same."""
    return torch.softmax(x, -1)


def layernorm(xp: Any, x: Array, weight: Array, bias: Array) -> Array:
    """Along the last axis, in float32."""
    y = xp.astype(x, xp.float32)
    centred = y - xp.mean(y, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    result = centred / xp.sqrt(variance + 1e-5) * weight + bias
    return xp.astype(result, x.dtype)


def torch_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same."""
    return F.layer_norm(x, (x.shape[-1],), weight.to(x.dtype), bias.to(x.dtype), 1e-5)


def rmsnorm(xp: Any, x: Array, weight: Array) -> Array:
    """Along the last axis, in float32."""
    y = xp.astype(x, xp.float32)
    scale = 1 / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return xp.astype(y * scale * weight, x.dtype)


def torch_rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), 1e-5)


def cross_entropy(xp: Any, logits: Array, labels: Array) -> Array:
    """The mean of -log softmax at the labels, in float32."""
    y = xp.astype(logits, xp.float32)
    # The shift cancels, so nothing flows back through it; JAX's log_softmax does the same.
    top = _constant(xp, xp.max(y, axis=-1, keepdims=True))
    total = xp.log(xp.sum(xp.exp(y - top), axis=-1)) + xp.squeeze(top, axis=-1)
    picked = xp.squeeze(xp.take_along_axis(y, xp.expand_dims(labels, axis=-1), axis=-1), axis=-1)
    return xp.mean(total - picked)


def _constant(xp: Any, x: Array) -> Array:
    """The array without its gradient."""
    return xp.stop_gradient(x) if hasattr(xp, "stop_gradient") else jax.lax.stop_gradient(x)


def torch_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same."""
    return F.cross_entropy(logits.float(), labels)


def adam(xp: Any, p: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """One step of AdamW."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.001 * (m / (xp.sqrt(v) + 1e-8) + 0.01 * p), m, v


def torch_adam(
    p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.001 * (m / (torch.sqrt(v) + 1e-8) + 0.01 * p), m, v


def dropout_block(xp: Any, x: Array, bias: Array, residual: Array, bits: Array) -> Array:
    """residual + dropout(gelu(x + bias)): what is kept is decided by 32 random bits an element."""
    y = xp.astype(x, xp.float32) + bias
    y = 0.5 * y * (1 + xp.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)))
    y = xp.where((bits >> 8) < 15099494, y * (1 / 0.9), 0.0)
    return xp.astype(y + xp.astype(residual, xp.float32), x.dtype)


def torch_dropout_block(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """The same, with torch's generator."""
    return residual + F.dropout(F.gelu(x + bias, approximate="tanh"), 0.1)


def append(xp: Any, keys: Array, values: Array, place: Array, key: Array, value: Array) -> Array:
    """Keys and values with those of one more token."""
    return keys.at[:, place].set(key), values.at[:, place].set(value)


def decode(
    xp: Any, keys: Array, values: Array, place: Array, key: Array, value: Array, query: Array
) -> Array:
    """The same, and attention of one token to all so far, in float32."""
    keys, values = append(xp, keys, values, place, key, value)
    scores = xp.sum(xp.astype(keys, xp.float32) * query[:, None], axis=-1) * keys.shape[-1] ** -0.5
    scores = xp.where(xp.arange(keys.shape[1]) <= place, scores, -xp.inf)
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    found = xp.sum(weights[:, :, None] * xp.astype(values, xp.float32), axis=1)
    return keys, values, xp.astype(found, keys.dtype)


def torch_append(
    keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """In place."""
    keys.index_copy_(1, place.reshape(1), key[:, None])
    values.index_copy_(1, place.reshape(1), value[:, None])
    return keys, values


def torch_decode(
    keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, query: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The same, where all tokens are there already."""
    torch_append(keys, values, place, key, value)
    found = F.scaled_dot_product_attention(query[None, :, None], keys[None], values[None])
    return keys, values, found[0, :, 0]
