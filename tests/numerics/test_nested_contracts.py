"""Contracts under transforms of transforms: refs, policies, promises and annotated sizes stand
inside, and values and derivatives are those of the plain function.

The transforms and their references are those of `test_nested.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.numerics.test_nested import TOLERANCE, TRANSFORMS, WIDE, W, X, needs_forward_mode, waves

Function = Callable[[Any], Any]


def reference(x: Any) -> Any:
    return waves(np, x) * W


def plain(x: Any) -> Any:
    return waves(ts, x) * ts.asarray(W)


def with_refs() -> tuple[Function, Callable[[], None]]:
    """A ref is read, and another counts how often."""
    weights, count = ts.Ref(ts.asarray(W), name="weights"), ts.Ref(0, name="count")

    def f(x: Any) -> Any:
        count.update(lambda n: n + 1)
        scratch = ts.Ref(x, name="scratch")
        scratch.update(lambda y: waves(ts, y))
        return scratch.get() * weights.get()

    def check() -> None:
        np.testing.assert_array_equal(weights.get(), W)
        assert int(count.get()) > 0

    return f, check


def with_policy() -> tuple[Function, Callable[[], None]]:
    """A policy that rounds nothing of float64, and one that says nothing within it."""
    wide = ts.Policy(compute=ts.float64, accumulate=ts.float64, storage=ts.float64, order="fixed")

    def f(x: Any) -> Any:
        with ts.policy(wide):
            y = waves(ts, x)
            with ts.policy(ts.Policy()):
                return y * ts.asarray(W)

    return f, lambda: None


def with_promises() -> tuple[Function, Callable[[], None]]:
    """Sums in a stated order, keys of its own, and what is equal for real numbers."""

    @ts.deterministic(seed=2, batch_invariant=True)
    def f(x: Any) -> Any:
        key = ts.random.next_key()
        with ts.fast_math():
            noise = ts.random.uniform(key, x.shape, dtype=x.dtype)
            return plain(x) * 2.0 / 2.0 + 0.0 * noise

    return f, lambda: None


def with_sizes() -> tuple[Function, Callable[[], None]]:
    """One program for all sizes."""

    @ts.jit
    @ts.constrain("N >= 1", "N <= 64")
    def f(x: ts.Tensor["N", ts.float64]) -> ts.Tensor["N", ts.float64]:  # noqa: F821, UP037
        return waves(ts, x)

    return lambda x: f(x) * ts.asarray(W), lambda: None


CONTRACTS = {
    "refs": with_refs,
    "policy": with_policy,
    "promises": with_promises,
    "sizes": with_sizes,
    "all": with_refs,
}
ALL = [t for t in itertools.product(TRANSFORMS, repeat=2) if not needs_forward_mode(t)]
CASES = [(c, *t) for c in CONTRACTS for t in ALL]
PART = 7
"""One of so many runs always."""


def is_refused(contract: str, transforms: tuple[str, ...]) -> bool:
    """Whether refs would be written by a rule of derivatives, or by some examples only."""
    has_refs = contract in ("refs", "promises", "all")
    in_rule = bool({"custom_jvp", "custom_vjp"} & {*transforms})
    return has_refs and (in_rule or transforms == ("vmap", "cond"))


@pytest.mark.parametrize(
    ("contract", "outer", "inner"),
    [
        pytest.param(*case, marks=[] if k % PART == 3 else [pytest.mark.long])
        for k, case in enumerate(CASES)
        if not is_refused(case[0], case[1:])
    ],
)
def test_contracts_inside_of_transforms(contract: str, outer: str, inner: str) -> None:
    function, check = CONTRACTS[contract]()
    if contract == "all":
        inside = function
        fixed = ts.Policy(order="fixed")

        @ts.deterministic
        def everything(x: Any) -> Any:
            with ts.policy(fixed), ts.effects.suspend("memory"):
                return inside(x)

        function = everything
    found: Any = function
    wanted: Any = reference
    depth = 0
    for name in (inner, outer):
        make, expect = TRANSFORMS[name]
        found, wanted = make(found), expect(wanted, depth)
        depth += name in ("grad", "jvp")
    numbers = wanted(X.astype(WIDE)).astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(numbers))))
    for wrap in (lambda f: f, ts.jit):
        result = wrap(found)(ts.asarray(X))
        np.testing.assert_allclose(result, numbers, rtol=0, atol=TOLERANCE * scale)
    check()
