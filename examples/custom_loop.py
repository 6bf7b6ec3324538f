"""A training loop of one's own: a simulation learns its constants from what was observed.

A pendulum with friction is simulated by the leapfrog method. Its frequency, friction and first
angle are unknown; the loss compares the simulation with noisy observations, and its gradient goes
through all steps of the simulation. Several starts are trained side by side by `vmap`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

import tessera as ts

Tree = dict[str, Any]
STEPS, DT = 40, 0.15


def simulate(p: Tree) -> Any:
    """The angle after each step. The loop is Python's: the Graph holds every step."""
    angle, speed = p["angle"], 0.0 * p["angle"]
    angles = []
    for _ in range(STEPS):
        half = speed - 0.5 * DT * (p["frequency"] ** 2 * ts.sin(angle) + p["friction"] * speed)
        angle = angle + DT * half
        speed = half - 0.5 * DT * (p["frequency"] ** 2 * ts.sin(angle) + p["friction"] * half)
        angles.append(angle)
    return ts.stack(angles)


def loss(p: Tree, observed: Any) -> Any:
    """The mean squared error of the simulated angles."""
    return ts.mean((simulate(p) - observed) ** 2)


def step(p: Tree, velocity: Tree, observed: Any) -> Any:
    """One step of gradient descent with momentum, the gradient limited to length 1."""
    value, grads = ts.value_and_grad(loss)(p, observed)
    length = ts.sqrt(sum(g * g for g in grads.values()))
    scale = 1 / ts.maximum(length, 1.0)
    velocity = {k: 0.9 * velocity[k] - 0.02 * scale * g for k, g in grads.items()}
    return value, {k: p[k] + velocity[k] for k in p}, velocity


train = ts.jit(ts.vmap(step, in_axes=(0, 0, None)))


def main() -> None:
    """Observes, trains from several starts, and prints the best."""
    rng = np.random.default_rng(0)
    true = {"frequency": 1.7, "friction": 0.25, "angle": 1.2}
    exact = simulate({k: ts.asarray(v) for k, v in true.items()})
    noise = rng.normal(0, 0.02, STEPS).astype(np.float32)
    observed = exact + ts.asarray(noise)

    starts = {
        "frequency": ts.asarray(rng.uniform(0.5, 3, 8).astype(np.float32)),
        "friction": ts.full((8,), 0.1),
        "angle": ts.full((8,), 0.8),
    }
    p, velocity = starts, {k: ts.zeros((8,)) for k in starts}
    values: Any = None
    for _ in tqdm(range(300), desc="training", unit="step"):
        values, p, velocity = train(p, velocity, observed)

    best = int(ts.argmin(values))
    print(f"losses of the starts: {np.round(np.asarray(values), 4)}")
    for name, value in true.items():
        print(f"{name:10} {float(p[name][best]):.3f}, was {value}")
    (program,) = train.compiled()
    print(f"one step of training is {sum(k.count for k in program.kernels())} kernels")
    if any(abs(float(p[k][best]) - v) > 0.05 for k, v in true.items()):
        raise SystemExit("the constants were not found")


if __name__ == "__main__":
    main()
