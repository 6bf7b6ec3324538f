"""Transforms of transforms of transforms, against Python loops and finite differences.

Each transform makes a function of a vector from another; its reference makes the same of a
function in NumPy's long doubles, with loops for what maps and repeats, and differences for what
differentiates. The cases are all triples of transforms over a pool of functions in turn; a plain
run takes a part of them, `--long` all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import tessera as ts

Function: TypeAlias = Callable[[Any], Any]

X = np.array([0.4, -0.7, 1.1])
U = np.array([0.3, 0.8, -0.5])
W = np.array([0.6, -0.4, 0.9])
M = np.array([[0.5, -1.0, 0.2], [0.7, 0.3, -0.4], [-0.2, 0.6, 0.8]])
WIDE = np.longdouble

STEPS = (WIDE(3e-4), WIDE(2e-3), WIDE(1e-2))
"""The steps of differences by depth. Those of fourth order are wrong by the fourth power of the
step, and by the error of what is below over the step.
"""
TOLERANCE = 3e-6

# --- the pool: each function on arrays, with the namespace it uses ----------------------------


def waves(ns: Any, x: Any) -> Any:
    return ns.sin(x) * x[::-1] + ns.cos(ns.sum(x))


def layer(ns: Any, x: Any) -> Any:
    return ns.tanh(ns.asarray(M) @ x + 0.1)


def ratio(ns: Any, x: Any) -> Any:
    return x / (1.0 + ns.sum(x * x)) + ns.exp(-x * x)


def steps(ns: Any, x: Any) -> Any:
    y = ns.where(x > 0.0, x * x * x, ns.sin(x))
    return ns.sqrt(2.0 + y) * ns.asarray(W)


POOL: list[Callable[[Any, Any], Any]] = [waves, layer, ratio, steps]

# --- transforms, and their references ---------------------------------------------------------


def over_batch(f: Function) -> Function:
    return lambda x: ts.sum(ts.vmap(f)(ts.stack([x, 0.5 * x + 0.1, -x])), axis=0) / 3.0


def over_batch_loop(f: Function, depth: int) -> Function:
    return lambda x: sum(f(y) for y in (x, 0.5 * x + WIDE("0.1"), -x)) / WIDE(3)


def gradient(f: Function) -> Function:
    return ts.grad(lambda x: ts.sum(f(x) * ts.asarray(W)))


def gradient_differences(f: Function, depth: int) -> Function:
    def run(x: Any) -> Any:
        unit = np.eye(x.size, dtype=WIDE)
        return np.stack([np.sum(difference(f, x, e, STEPS[depth]) * W) for e in unit])

    return run


def difference(f: Function, x: Any, u: Any, step: Any) -> Any:
    """The derivative along a direction, of fourth order."""
    near, far = (f(x + k * step * u) - f(x - k * step * u) for k in (1, 2))
    return (8 * near - far) / (12 * step)


def along(f: Function) -> Function:
    return lambda x: ts.jvp(f, (x,), (ts.asarray(U),))[1]


def along_differences(f: Function, depth: int) -> Function:
    return lambda x: difference(f, x, U.astype(WIDE), STEPS[depth])


def repeated(f: Function) -> Function:
    def run(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            return 0.5 * f(c) + k * x, ts.sum(c)

        last, sums = ts.scan(step, x, ts.asarray([0.2, -0.1, 0.3], dtype=ts.float64))
        return last + 0.1 * sums

    return run


def repeated_loop(f: Function, depth: int) -> Function:
    def run(x: Any) -> Any:
        c, sums = x, []
        for k in (0.2, -0.1, 0.3):
            sums.append(np.sum(c))
            c = f(c) / 2 + k * x
        return c + WIDE(0.1) * np.stack(sums)

    return run


def branches(f: Function) -> Function:
    return lambda x: ts.cond(x[0] > x[1], lambda x: f(x) * x[2], lambda x: f(-x) + x, x)


def branches_if(f: Function, depth: int) -> Function:
    return lambda x: f(x) * x[2] if x[0] > x[1] else f(-x) + x


def with_jvp_rule(f: Function) -> Function:
    g = ts.custom_jvp(lambda x: f(x))
    g.defjvp(lambda primals, tangents: ts.jvp(f, primals, tangents))
    return g


def with_vjp_rule(f: Function) -> Function:
    g = ts.custom_vjp(lambda x: f(x))

    def backward(x: Any, ct: Any) -> Any:
        _, pull = ts.vjp(f, x)
        return pull(ct)

    g.defvjp(lambda x: (f(x), x), backward)
    return g


def same(f: Function, depth: int) -> Function:
    return f


Make: TypeAlias = Callable[[Function], Function]
Reference: TypeAlias = Callable[[Function, int], Function]
"""It is told how many derivatives are below."""

TRANSFORMS: dict[str, tuple[Make, Reference]] = {
    "jit": (ts.jit, same),
    "grad": (gradient, gradient_differences),
    "jvp": (along, along_differences),
    "vmap": (over_batch, over_batch_loop),
    "scan": (repeated, repeated_loop),
    "cond": (branches, branches_if),
    "checkpoint": (ts.checkpoint, same),
    "custom_jvp": (with_jvp_rule, same),
    "custom_vjp": (with_vjp_rule, same),
}


def needs_forward_mode(triple: tuple[str, ...]) -> bool:
    """Whether a function with a rule for reverse mode alone is differentiated forwards. Where a
    gradient is between, it is the rule that is.
    """
    for k, name in enumerate(triple):
        inner = triple[k + 1 :]
        if name == "jvp" and "custom_vjp" in inner:
            return "grad" not in inner[: inner.index("custom_vjp")]
    return False


ALL = [t for t in itertools.product(TRANSFORMS, repeat=3) if not needs_forward_mode(t)]
PART = 11
"""One of so many runs always; it has no divisor in common with the number of transforms."""


def selected() -> list[Any]:
    rest = [pytest.mark.long]
    return [
        pytest.param(k, id="-".join(triple), marks=[] if k % PART == 1 else rest)
        for k, triple in enumerate(ALL)
    ]


@pytest.mark.parametrize("case", selected())
def test_three_transforms(case: int) -> None:
    triple = ALL[case]
    function = POOL[(case + case // PART) % len(POOL)]
    depths = [sum(n in ("grad", "jvp") for n in triple[k + 1 :]) for k in range(3)]

    def start(x: Any) -> Any:
        return function(ts, x)

    found: Function = start
    expected: Function = lambda x: function(np, x)  # noqa: E731
    for name, depth in zip(reversed(triple), reversed(depths), strict=True):
        make, reference = TRANSFORMS[name]
        found, expected = make(found), reference(expected, depth)
    wanted = expected(X.astype(WIDE)).astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(wanted))))
    for wrap in (lambda f: f, ts.jit):
        result = wrap(found)(ts.asarray(X))
        np.testing.assert_allclose(result, wanted, rtol=0, atol=TOLERANCE * scale)
