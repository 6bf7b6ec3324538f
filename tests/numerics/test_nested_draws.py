"""Random compositions: three transforms of a function with any of the contracts around it, in any
order: refs, rules that write refs, policies, promises, annotated sizes, and calls of the host.

The transforms and their references are those of `test_nested.py`. Contracts change nothing of
values and derivatives, and a ref that counts counts the same, compiled or not. Which compositions
are refused is worked out here, too.
"""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import StateError
from tests.numerics.test_nested import (
    POOL,
    TOLERANCE,
    TRANSFORMS,
    WIDE,
    X,
    needs_forward_mode,
    ratio,
    waves,
)

Function = Callable[[Any], Any]
Contract = Callable[[Function, ts.Ref], Function]


def refs(f: Function, count: ts.Ref) -> Function:
    """The value goes through a ref of its own, and another counts."""

    def run(x: Any) -> Any:
        count.update(lambda n: n + 1)
        scratch = ts.Ref(x, name="scratch")
        scratch.update(f)
        return scratch.get()

    return run


def carried(f: Function, count: ts.Ref) -> Function:
    """A loop of one step writes a ref, and reads another."""
    one = ts.Ref(1.0, name="one")

    def run(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            count.update(lambda n: n + 1)
            return f(c) * ts.astype(one.get(), x.dtype), None

        return ts.scan(step, x, length=1)[0]

    return run


def forward_rule(f: Function, count: ts.Ref) -> Function:
    g = ts.custom_jvp(lambda x: f(x))

    @g.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        count.update(lambda n: n + 1)
        return ts.jvp(f, primals, tangents)

    return g


def backward_rule(f: Function, count: ts.Ref) -> Function:
    g = ts.custom_vjp(lambda x: f(x))

    def backward(x: Any, ct: Any) -> Any:
        count.update(lambda n: n + 1)
        _, pull = ts.vjp(f, x)
        return pull(ct)

    def forward(x: Any) -> Any:
        count.update(lambda n: n + 1)
        return f(x), x

    g.defvjp(forward, backward)
    return g


def policy(f: Function, count: ts.Ref) -> Function:
    wide = ts.Policy(compute=ts.float64, accumulate=ts.float64, storage=ts.float64, order="fixed")

    def run(x: Any) -> Any:
        with ts.policy(wide):
            return f(x)

    return run


def promises(f: Function, count: ts.Ref) -> Function:
    @ts.deterministic(seed=2, batch_invariant=True)
    def run(x: Any) -> Any:
        return f(x) + 0.0 * ts.random.uniform(ts.random.next_key(), x.shape, dtype=x.dtype)

    return run


def sizes(f: Function, count: ts.Ref) -> Function:
    @ts.jit
    @ts.constrain("N >= 1", "N <= 64")
    def run(x: ts.Tensor["N", ts.float64]) -> ts.Tensor["N", ts.float64]:
        return f(x)

    return run


def host(f: Function, count: ts.Ref) -> Function:
    one = ts.ShapeDtypeStruct((), ts.float64)

    def run(x: Any) -> Any:
        ts.debug.callback(lambda _: None, ts.stop_gradient(x))
        return f(x) * ts.io_callback(lambda: 1.0, one)

    return run


def suspended(f: Function, count: ts.Ref) -> Function:
    def run(x: Any) -> Any:
        with ts.effects.suspend("memory", "io", "random"):
            return f(x)

    return run


CONTRACTS: dict[str, Contract] = {
    "refs": refs, "carried": carried, "forward_rule": forward_rule, "backward_rule": backward_rule,
    "policy": policy, "promises": promises, "sizes": sizes, "host": host, "suspended": suspended,
}  # fmt: skip
WRITES = {"refs", "carried", "promises"}
"""Those that write a ref where the function runs; the promises have one for their keys."""
RULES = {"forward_rule", "backward_rule"}


def draw(seed: int) -> tuple[list[str], list[str]]:
    """Transforms and contracts, from the outermost to the innermost."""
    rng = random.Random(seed)
    while True:
        transforms = rng.choices([*TRANSFORMS], k=rng.randint(1, 3))
        contracts = rng.sample([*CONTRACTS], rng.randint(2, 4))
        whole = [
            *transforms,
            *["custom_vjp" if c == "backward_rule" else c for c in contracts],
        ]
        is_random = "promises" in contracts and "host" in contracts[contracts.index("promises") :]
        # One refusal is like the other: few of them will do.
        is_dull = refusals(transforms, contracts)[0] and rng.random() < 0.9
        if not (is_random or is_dull or needs_forward_mode(tuple(whole))):
            return transforms, contracts


def refusals(transforms: list[str], contracts: list[str]) -> tuple[bool, list[str]]:
    """Whether a compiled call is refused for sure, and by what messages calls may be."""
    names = [*transforms, *contracts]
    is_sure, found = False, list[str]()
    for k, name in enumerate(names):
        inner = names[k + 1 :]
        if name in RULES or name in ("custom_jvp", "custom_vjp"):
            # A function that has rules writes no refs; the rules within it do, under a derivative.
            is_sure |= bool(WRITES & {*inner})
            found.append("traces .*, which writes the ref")
        if name == "vmap" and "cond" in inner:
            found.append("each example something else")
    return is_sure, found


def check(seed: int) -> None:
    transforms, contracts = draw(seed)
    count = ts.Ref(0, name="count")
    pool = [waves, ratio] if "sizes" in contracts else POOL
    function = pool[seed % len(pool)]
    found: Function = lambda x: function(ts, x)  # noqa: E731
    for name in reversed(contracts):
        found = CONTRACTS[name](found, count)
    wanted: Function = lambda x: function(np, x)  # noqa: E731
    depth = 0
    for name in reversed(transforms):
        make, expect = TRANSFORMS[name]
        found, wanted = make(found), expect(wanted, depth)
        depth += name in ("grad", "jvp")
    expected = wanted(X.astype(WIDE)).astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(expected))))
    is_sure, messages = refusals(transforms, contracts)
    counts: list[int] = []
    for compiled in (False, True):
        count.set(0)
        run = ts.jit(found) if compiled else found
        try:
            result = run(ts.asarray(X))
        except StateError as error:
            if not any([re.search(m, error.what) for m in messages]):
                raise
            assert not (compiled and int(count.get()))
            continue
        assert not (is_sure and compiled)
        np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE * scale)
        counts.append(int(count.get()))
    assert len({*counts}) <= 1, counts


@pytest.mark.parametrize(
    "seed", [pytest.param(k, marks=[] if k < 14 else [pytest.mark.long]) for k in range(400)]
)
def test_draws(seed: int) -> None:
    check(seed)


def test_all_pairs_are_drawn() -> None:
    """Each contract stands within each transform, and within and around each other contract."""
    pairs = set[tuple[str, str]]()
    for seed in range(400):
        transforms, contracts = draw(seed)
        pairs.update([(t, c) for t in transforms for c in contracts])
        pairs.update([(a, b) for k, a in enumerate(contracts) for b in contracts[k + 1 :]])
    missing = {
        *[(t, c) for t in TRANSFORMS for c in CONTRACTS],
        *[(a, b) for a in CONTRACTS for b in CONTRACTS if a != b],
    } - pairs
    assert missing == {("promises", "host")}  # what the host gives varies, which is no promise
