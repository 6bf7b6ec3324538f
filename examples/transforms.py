"""Derivatives and batches of one function: kernel regression finds its own length scale.

Each point is predicted from all others, weighted by their distance; the error depends on the length
scale of the weights. `grad` gives its slope, a second `grad` its curvature, `vmap` both for many
scales at once, and `jit` makes one program of all of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts


def loss(log_scale: Any, x: Any, y: Any) -> Any:
    """The mean squared error of predicting each point from all others."""
    apart = (x[:, None] - x[None, :]) / ts.exp(log_scale)
    weights = ts.exp(-0.5 * apart**2) * (1 - ts.eye(x.shape[0]))
    predicted = weights @ y / ts.sum(weights, axis=1)
    return ts.mean((predicted - y) ** 2)


slope = ts.grad(loss)
curvature = ts.grad(slope)


@ts.jit
def newton(log_scale: Any, x: Any, y: Any) -> Any:
    """One guarded step of Newton's method."""
    step = slope(log_scale, x, y) / ts.maximum(ts.abs(curvature(log_scale, x, y)), 1e-3)
    return log_scale - ts.clip(step, -0.5, 0.5)


def main() -> None:
    """Minimizes from one start, and checks the result against a scan over many scales."""
    rng = np.random.default_rng(0)
    points = np.sort(rng.uniform(0, 6, 80))
    x = ts.asarray(points, dtype=ts.float32)
    y = ts.asarray(np.sin(points) + rng.normal(0, 0.1, 80), dtype=ts.float32)

    log_scale = ts.asarray(0.0)
    for _ in range(20):
        log_scale = newton(log_scale, x, y)
    found = float(ts.exp(log_scale))

    many = ts.linspace(-3, 1, 201)
    losses, slopes = ts.jit(ts.vmap(ts.value_and_grad(loss), in_axes=(0, None, None)))(many, x, y)
    best = int(ts.argmin(losses))
    print(f"length scale by Newton's method:  {found:.3f}")
    print(f"best of {many.shape[0]} scales at once:     {float(ts.exp(many[best])):.3f}")
    print(f"slope there: {float(slope(log_scale, x, y)):.1e}; in the scan it changes sign above")
    for k in np.flatnonzero(np.diff(np.sign(np.asarray(slopes)))):
        print(f"  {float(ts.exp(many[int(k)])):.3f}, loss {float(losses[int(k)]):.4f}")

    direction = ts.asarray(rng.normal(size=80), dtype=ts.float32)
    _, forward = ts.jvp(lambda y: loss(log_scale, x, y), (y,), (direction,))
    _, pullback = ts.vjp(lambda y: loss(log_scale, x, y), y)
    (gradient,) = pullback(ts.asarray(1.0))
    reverse = gradient @ direction
    print(f"along a direction: forward {float(forward):.6f}, reverse {float(reverse):.6f}")
    if abs(np.log(found) - float(many[best])) > 0.02:
        raise SystemExit("the two minima differ")


if __name__ == "__main__":
    main()
