"""Effects under transforms of transforms of transforms: what the host is told and gives, how often,
what is declared, and that values and derivatives are right beside it.

The transforms and their references are those of `test_nested.py`. What a function tells the host
when it runs once is worked out by Python loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import EffectError
from tests.numerics.test_nested import TOLERANCE, TRANSFORMS, WIDE, W, X, waves

KEY = ts.random.key(7)
NOISE = np.asarray(ts.random.uniform(KEY, (3,), dtype=ts.float64))
NAMES = ("jit", "grad", "jvp", "vmap", "scan", "cond", "checkpoint")

Once = Callable[[Any], Iterator[Any]]
"""What the innermost function is told when a function runs once."""


def reference(x: Any) -> Any:
    return waves(np, x) * W + NOISE


def told_by(name: str, value: Callable[[Any], Any], once: Once) -> Once:
    """What a transformed function tells, of the values and the tellings of the function."""

    def run(x: Any) -> Iterator[Any]:
        if name == "vmap":
            for y in (x, 0.5 * x + WIDE("0.1"), -x):
                yield from once(y)
        elif name == "scan":
            c = x
            for k in (0.2, -0.1, 0.3):
                yield from once(c)
                c = value(c) / 2 + k * x
        elif name == "cond" and not x[0] > x[1]:
            yield from once(-x)
        else:
            yield from once(x)

    return run


CASES = [t for k, t in enumerate(itertools.product(NAMES, repeat=3)) if k % 47 == 5]


@pytest.mark.parametrize("triple", CASES, ids="-".join)
def test_three_transforms_of_a_function_with_effects(triple: tuple[str, ...]) -> None:
    told: list[Any] = []

    def answer(x: Any) -> np.ndarray:
        told.append(np.asarray(x))
        return W

    def start(x: Any) -> Any:
        given = ts.io_callback(answer, ts.asarray(W), ts.stop_gradient(x))
        return waves(ts, x) * given + ts.random.uniform(KEY, (3,), dtype=ts.float64)

    found: Callable[[Any], Any] = start
    expected: Callable[[Any], Any] = reference
    once: Once = lambda x: iter([x])  # noqa: E731
    for k, name in reversed(list(enumerate(triple))):
        make, refer = TRANSFORMS[name]
        depth = sum(n in ("grad", "jvp") for n in triple[k + 1 :])
        found, expected, once = (
            make(found), refer(expected, depth), told_by(name, expected, once),
        )  # fmt: skip
    x = X.astype(WIDE)
    wanted = expected(x).astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(wanted))))
    asked = sorted([y.astype(np.float64).tolist() for y in once(x)])

    declared = ts.function(effects=["io", "random"])(found)
    for run in (found, ts.jit(found), declared):
        told.clear()
        np.testing.assert_allclose(run(ts.asarray(X)), wanted, rtol=0, atol=TOLERANCE * scale)
        assert len(told) == len(asked)
        np.testing.assert_allclose(
            sorted([y.tolist() for y in told]), asked, rtol=0, atol=TOLERANCE * scale
        )
    assert sorted(ts.effects.of(found)(X).effects) == ["io", "random"]
    told.clear()
    with pytest.raises(EffectError, match="has the effect `io`, which it does not declare"):
        ts.function(effects=["random"])(found)(X)
    with ts.effects.suspend("io", "random"):
        assert sorted(ts.effects.of(found)(X).effects) == ["io", "random"]

    def quiet(x: Any) -> Any:
        with ts.effects.suspend("io", "random"):
            return found(x)

    assert ts.effects.of(quiet)(X).effects == ()
    assert told == []
