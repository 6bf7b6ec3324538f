"""Scaled dot-product attention, forward and gradient, causal and not."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu.elementwise import TRANSCENDENTAL
from cpu.program import Cost, Program, gradient_view, normal, slopes, transformed


def attention(xp: Any, length: int, causal: bool) -> Any:
    """Attention of [batch, heads, length, width] (Vaswani et al., 2017)."""

    def f(q: Any, k: Any, v: Any) -> Any:
        scores = q @ xp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
        if causal:
            places = xp.arange(length)
            scores = xp.where(places[:, None] >= places[None, :], scores, -1e9)
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
        return weights @ v

    return f


def _is_causal(mask: str) -> bool:
    return mask == "causal"


def _forward(lib: Any, length: int, mask: str, **size: int) -> Any:
    return lib.jit(attention(lib.xp, length, _is_causal(mask)))


def _forward_torch(lib: Any, length: int, mask: str, **size: int) -> Any:
    attend = lib.module.nn.functional.scaled_dot_product_attention
    return lib.jit(lambda q, k, v: attend(q, k, v, is_causal=_is_causal(mask)))


def _trained(lib: Any, length: int, mask: str, **size: int) -> Any:
    f, xp = attention(lib.xp, length, _is_causal(mask)), lib.xp
    return lib.value_and_grad(lambda qkv: xp.mean(f(*qkv) ** 2))


def _trained_torch(lib: Any, length: int, mask: str, **size: int) -> Any:
    torch, attend = lib.module, _forward_torch(lib, length, mask)

    def run(qkv: Any) -> Any:
        qkv = tuple(t.detach().requires_grad_() for t in qkv)
        loss = (attend(*qkv) ** 2).mean()
        return loss.detach(), torch.autograd.grad(loss, qkv)

    return run


def _data(
    rng: np.random.Generator, batch: int, heads: int, length: int, width: int, mask: str
) -> tuple[Any, ...]:
    return tuple(normal(rng, batch, heads, length, width) for _ in range(3))


def _packed(rng: np.random.Generator, **size: Any) -> tuple[Any, ...]:
    return (_data(rng, **size),)


def _cost(batch: int, heads: int, length: int, width: int, mask: str) -> Cost:
    pairs = batch * heads * length * length * (0.5 if _is_causal(mask) else 1)
    work = pairs * (4 * width + TRANSCENDENTAL + 4)
    return Cost(16 * batch * heads * length * width, work)


def _cost_trained(**size: Any) -> Cost:
    found = _cost(**size)
    return Cost(2 * found.bytes, 3.5 * found.operations)


def _numpy(lib: Any, length: int, mask: str, **size: int) -> Any:
    return attention(np, length, _is_causal(mask))


def _slopes(mask: str) -> Any:
    def loss(qkv: Any) -> Any:
        return np.mean(attention(np, qkv[0].shape[-2], _is_causal(mask))(*qkv) ** 2)

    return slopes(loss)


def _sizes(mask: str) -> list[dict[str, Any]]:
    shapes = (4, 8, 512), (8, 8, 128), (1, 8, 2048), (1, 4, 4096)
    return [
        {"batch": b, "heads": h, "length": s, "width": 64, "mask": mask} for b, h, s in shapes
    ]


def _tiny(mask: str) -> dict[str, Any]:
    return {"batch": 2, "heads": 1, "length": 5, "width": 4, "mask": mask}


PROGRAMS = [
    program
    for mask in ("full", "causal")
    for program in (
        Program(
            f"attention {mask}",
            _data,
            {"tessera": _forward, "jax": _forward, "torch": _forward_torch, "numpy": _numpy},
            _cost,
            _sizes(mask),
            _tiny(mask),
            quick=(0, 1),
        ),
        Program(
            f"attention {mask} gradient",
            _packed,
            {**transformed(_trained), "torch": _trained_torch},
            _cost_trained,
            _sizes(mask),
            _tiny(mask),
            quick=(1,),
            reference=_slopes(mask),
            view=gradient_view(),
            tolerance=1e-3,
        ),
    )
]
