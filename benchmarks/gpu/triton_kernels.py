"""Row kernels written by hand in Triton, the peer where PyTorch has no fused kernel of its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(y, x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * columns + at, (v / tl.sum(v, 0)).to(y.dtype.element_ty), mask=inside)


def _warps(block: int) -> int:
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis."""
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _softmax[(x.shape[0],)](y, x, x.shape[1], BLOCK=block, num_warps=_warps(block))
    return y


@triton.jit
def _layernorm(y, x, weight, bias, columns, BLOCK: tl.constexpr, CENTRED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0.0)
    if CENTRED:
        v = tl.where(inside, v - tl.sum(v, 0) / columns, 0.0)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5) * w
    if CENTRED:
        v = v + tl.load(bias + at, mask=inside, other=0.0)
    tl.store(y + row * columns + at, v.to(y.dtype.element_ty), mask=inside)


def layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Along the last axis."""
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _layernorm[(x.shape[0],)](
        y, x, weight, bias, x.shape[1], BLOCK=block, CENTRED=True, num_warps=_warps(block)
    )
    return y


def rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Along the last axis."""
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _layernorm[(x.shape[0],)](
        y, x, weight, weight, x.shape[1], BLOCK=block, CENTRED=False, num_warps=_warps(block)
    )
    return y


@triton.jit
def _layernorm_backward(
    dx, dw, db, dy, x, weight, rows, columns, per, BLOCK: tl.constexpr, CENTRED: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, mask=inside, other=0.0)
    dw_sum = tl.zeros((BLOCK,), tl.float32)
    db_sum = tl.zeros((BLOCK,), tl.float32)
    for k in range(per):
        row = program * per + k
        here = inside & (row < rows)
        v = tl.load(x + row * columns + at, mask=here, other=0.0).to(tl.float32)
        g = tl.load(dy + row * columns + at, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            v = tl.where(inside, v - tl.sum(v, 0) / columns, 0.0)
        scale = tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5)
        n = v * scale
        dw_sum += g * n
        db_sum += g
        gw = g * w
        mean_n = tl.sum(gw * n, 0) / columns
        mean = tl.sum(gw, 0) / columns if CENTRED else 0.0
        result = (gw - n * mean_n - mean) * scale
        tl.store(dx + row * columns + at, result.to(dx.dtype.element_ty), mask=here)
    tl.store(dw + program * columns + at, dw_sum, mask=inside)
    tl.store(db + program * columns + at, db_sum, mask=inside)


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, centred: bool
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, weight and (if centred) bias."""
    rows, columns = x.shape
    programs = 132 * 4
    per = -(-rows // programs)
    dx = torch.empty_like(x)
    dw = torch.empty(programs, columns, device=x.device)
    db = torch.empty(programs, columns, device=x.device)
    block = triton.next_power_of_2(columns)
    _layernorm_backward[(programs,)](
        dx, dw, db, dy, x, weight, rows, columns, per, BLOCK=block, CENTRED=centred,
        num_warps=_warps(block),
    )  # fmt: skip
    return (dx, dw.sum(0), db.sum(0)) if centred else (dx, dw.sum(0))


@triton.jit
def _cross_entropy(loss, x, labels, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        v = v.to(tl.float32)
        new = tl.maximum(top, v)
        total = total * tl.exp(top - new) + tl.exp(v - new)
        top = new
    most = tl.max(top, 0)
    total_ = tl.sum(total * tl.exp(top - most), 0)
    picked = tl.load(x + row * columns + tl.load(labels + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total_) + most - picked)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss."""
    loss = torch.empty(logits.shape[0], device=logits.device)
    _cross_entropy[(logits.shape[0],)](
        loss, logits, labels, logits.shape[1], BLOCK=4096, num_warps=8
    )
    return loss.mean()


@triton.jit
def _adam(p, m, v, g, p2, m2, v2, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    grad = tl.load(g + at, mask=inside)
    first = 0.9 * tl.load(m + at, mask=inside) + 0.1 * grad
    second = 0.999 * tl.load(v + at, mask=inside) + 0.001 * grad * grad
    old = tl.load(p + at, mask=inside)
    new = old - 0.001 * (first / (tl.sqrt(second) + 1e-8) + 0.01 * old)
    tl.store(p2 + at, new, mask=inside)
    tl.store(m2 + at, first, mask=inside)
    tl.store(v2 + at, second, mask=inside)


def adam(
    p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """One step."""
    out = [torch.empty_like(p) for _ in range(3)]
    _adam[(triton.cdiv(p.numel(), 1024),)](p, m, v, g, *out, p.numel(), BLOCK=1024)
    return tuple(out)


@triton.jit
def _dropout(y, x, bias, residual, count, columns, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    v = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside)
    u = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    v = v * tl.sigmoid(2 * u)
    v = tl.where(tl.rand(seed, at) > 0.1, v * (1 / 0.9), 0.0)
    v = v + tl.load(residual + at, mask=inside).to(tl.float32)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=inside)


def dropout_block(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """residual + dropout(gelu(x + bias))."""
    y = torch.empty_like(x)
    _dropout[(triton.cdiv(x.numel(), 1024),)](
        y, x, bias, residual, x.numel(), x.shape[1], 7, BLOCK=1024
    )
    return y


@triton.jit
def add_one(y, x, count, BLOCK: tl.constexpr):
    """One more than each element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(y + at, tl.load(x + at, mask=inside) + 1, mask=inside)
