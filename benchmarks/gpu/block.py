"""A GPT-2-small block, forward and backward, from plain array code: beside PyTorch and JAX.

    python benchmarks/gpu/block.py [--json out.json]

Batch 8, 1024 tokens, width 768, 12 heads; parameters in float32, products in bfloat16 (or all in
float32). Gradients of all parameters and of the input are checked against PyTorch in float64 on a
part of the batch.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from run import measure
from torch.nn import functional as F

import tessera as ts

BATCH, TOKENS, WIDTH, HEADS = 8, 1024, 768, 12
Params = dict[str, Any]


def parameters() -> Params:
    """Random parameters of a block."""

    def random(*shape: int, scale: float = 0.02) -> torch.Tensor:
        return torch.randn(*shape, device="cuda") * scale

    return {
        "ln1": 1 + random(WIDTH),
        "ln1_bias": random(WIDTH),
        "qkv": random(WIDTH, 3 * WIDTH),
        "qkv_bias": random(3 * WIDTH),
        "out": random(WIDTH, WIDTH),
        "out_bias": random(WIDTH),
        "ln2": 1 + random(WIDTH),
        "ln2_bias": random(WIDTH),
        "up": random(WIDTH, 4 * WIDTH),
        "up_bias": random(4 * WIDTH),
        "down": random(4 * WIDTH, WIDTH),
        "down_bias": random(WIDTH),
    }


def norm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Layer normalisation in float32."""
    y = xp.astype(x, xp.float32)
    centred = y - xp.mean(y, axis=-1, keepdims=True)
    scale = 1 / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)
    return centred * scale * weight + bias


def block(xp: Any, dtype: Any, p: Params, x: Any) -> Any:
    """x + attention(norm(x)), then + mlp(norm(.)); products in `dtype`, the rest in float32."""

    def linear(y: Any, weight: str) -> Any:
        product = xp.astype(y, dtype) @ xp.astype(p[weight], dtype)
        return xp.astype(product, xp.float32) + p[weight + "_bias"]

    batch, tokens, width = x.shape
    qkv = linear(norm(xp, x, p["ln1"], p["ln1_bias"]), "qkv")
    parts = xp.permute_dims(
        xp.reshape(xp.astype(qkv, dtype), (batch, tokens, 3, HEADS, width // HEADS)),
        (2, 0, 3, 1, 4),
    )
    q, k, v = parts[0], parts[1], parts[2]
    scores = xp.astype(q @ xp.matrix_transpose(k), xp.float32) / math.sqrt(width // HEADS)
    row = xp.expand_dims(xp.arange(tokens), axis=1)
    scores = xp.where(xp.arange(tokens) <= row, scores, -1e30)
    e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = xp.astype(e / xp.sum(e, axis=-1, keepdims=True), dtype)
    heads = xp.permute_dims(weights @ v, (0, 2, 1, 3))
    x = x + linear(xp.reshape(heads, (batch, tokens, width)), "out")
    up = linear(norm(xp, x, p["ln2"], p["ln2_bias"]), "up")
    gelu = 0.5 * up * (1 + xp.tanh(0.7978845608028654 * (up + 0.044715 * up * up * up)))
    return x + linear(gelu, "down")


def torch_block(dtype: torch.dtype, p: Params, x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """The same in PyTorch, with its fused attention."""

    def linear(y: torch.Tensor, weight: str) -> torch.Tensor:
        return (y.to(dtype) @ p[weight].to(dtype)).to(wide) + p[weight + "_bias"]

    batch, tokens, width = x.shape
    y = F.layer_norm(x, (width,), p["ln1"], p["ln1_bias"], 1e-5)
    qkv = linear(y, "qkv").to(dtype).view(batch, tokens, 3, HEADS, width // HEADS)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(heads.transpose(1, 2).reshape(batch, tokens, width), "out")
    y = F.layer_norm(x, (width,), p["ln2"], p["ln2_bias"], 1e-5)
    return x + linear(F.gelu(linear(y, "up"), approximate="tanh"), "down")


def loss_of(xp: Any, dtype: Any) -> Callable[[Params, Any, Any], Any]:
    """A scalar of the block's output."""
    return lambda p, x, g: xp.sum(block(xp, dtype, p, x) * g)


def torch_gradients(
    dtype: torch.dtype, wide: torch.dtype, p: Params, x: torch.Tensor, g: torch.Tensor
) -> Any:
    """Gradients of the parameters and of x."""
    names = list(p)
    leaves = {k: v.detach().requires_grad_() for k, v in p.items()}
    y = x.detach().requires_grad_()
    loss = (torch_block(dtype, leaves, y, wide) * g).sum()
    grads = torch.autograd.grad(loss, [*[leaves[k] for k in names], y])
    return dict(zip(names, grads, strict=False)), grads[-1]


def compare(found: Any, expected: Any) -> float:
    """The largest relative error in norm over all gradients."""
    worst = 0.0
    for key, value in expected[0].items():
        got = torch.from_dlpack(found[0][key]).double()
        worst = max(worst, float((got - value.double()).norm() / value.double().norm()))
    got = torch.from_dlpack(found[1]).double()
    return max(worst, float((got - expected[1].double()).norm() / expected[1].double().norm()))


def run(name: str, record: dict[str, Any]) -> None:
    """Checks and measures one precision."""
    torch.manual_seed(0)
    low = {"bf16": torch.bfloat16, "f32": torch.float32}[name]
    p = parameters()
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda")
    g = torch.randn(BATCH, TOKENS, WIDTH, device="cuda")
    ours = {k: ts.from_dlpack(v) for k, v in p.items()}, ts.from_dlpack(x), ts.from_dlpack(g)
    step = ts.jit(ts.grad(loss_of(ts, ts.bfloat16 if name == "bf16" else ts.float32), (0, 1)))
    theirs = {k: jnp.from_dlpack(v) for k, v in p.items()}, jnp.from_dlpack(x), jnp.from_dlpack(g)
    xla = jax.jit(jax.grad(loss_of(jnp, jnp.bfloat16 if name == "bf16" else jnp.float32), (0, 1)))
    compiled = torch.compile(torch_gradients)
    few = {k: v.double() for k, v in p.items()}, x[:2].double(), g[:2].double()
    expected = torch_gradients(torch.float64, torch.float64, *few)
    part = step(ours[0], ts.from_dlpack(x[:2].contiguous()), ts.from_dlpack(g[:2].contiguous()))
    error = compare(part, expected)
    times = measure(
        {
            "tessera": lambda: step(*ours),
            "torch": lambda: torch_gradients(low, torch.float32, p, x, g),
            "compile": lambda: compiled(low, torch.float32, p, x, g),
            "jax": lambda: xla(*theirs),
        }
    )
    text = " ".join(f"{k} {v * 1e6:.0f} us" for k, v in times.items())
    print(f"GPT-2-small block, forward and backward, {name}: {text}; error {error:.1e}", flush=True)
    record[name] = {"times": times, "error": error}


def main() -> None:
    """Both precisions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {}
    for name in ("bf16", "f32"):
        run(name, record)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
