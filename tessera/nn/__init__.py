"""Neural networks as plain functions of arrays: activations, normalisation, attention, dense
layers, convolutions, dropout.

The names are those of `jax.nn` where it has the function. See docs/nn.md.
"""

from __future__ import annotations

from tessera.graph.namespace.creation import one_hot
from tessera.nn.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log1mexp,
    log_sigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softplus,
    softsign,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    swish,
    tanh,
)
from tessera.nn.attention import attention, attention_safe
from tessera.nn.exponentials import log_softmax, logsumexp, softmax, standardize
from tessera.nn.layers import conv, dense, dropout, embedding
from tessera.nn.normalization import (
    layernorm_safe,
    log_softmax_safe,
    logsumexp_safe,
    rmsnorm_safe,
    softmax_safe,
)

__all__ = [
    "attention",
    "attention_safe",
    "celu",
    "conv",
    "dense",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "layernorm_safe",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "log_softmax_safe",
    "logsumexp",
    "logsumexp_safe",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "rmsnorm_safe",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softmax_safe",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]
