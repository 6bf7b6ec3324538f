"""One trace with names for sizes is right for all sizes that its guards let through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import TesseraError
from tessera.graph.interp import run
from tessera.graph.trace import Trace, active
from tessera.graph.transforms.resize import resize
from tessera.ir.assumptions import Assumptions, assuming
from tessera.ir.constraints import System, parse_conditions
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType

dir(ts)  # loads everything: arrays have their operators then
Step = tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]
LIMITS = st.none() | st.integers(-4, 4)
STRIDES = st.sampled_from([None, 1, 2, 3, -1, -2])


def same(fn: Callable[[Any], Any]) -> Step:
    return fn, fn


@st.composite
def steps(draw: st.DrawFn) -> Step:
    a, b, k = draw(LIMITS), draw(LIMITS), draw(st.integers(-3, 3))
    c = draw(STRIDES)
    return draw(
        st.sampled_from(
            [
                same(lambda x: x[a:b:c]),
                same(lambda x: x[:, a:b]),
                same(lambda x: x[k][None, :]),
                same(lambda x: x[:, k : k + 2]),
                same(lambda x: x[1:] - x[:-1]),
                same(lambda x: x + x[:1]),
                same(lambda x: x.T),
                (lambda x: ts.flip(x, axis=0), lambda x: np.flip(x, 0)),
                (lambda x: ts.roll(x, k, axis=0), lambda x: np.roll(x, k, 0)),
                (lambda x: ts.concat([x, x[:2]]), lambda x: np.concatenate([x, x[:2]])),
                (lambda x: ts.pad(x, ((1, 2), (0, 1))), lambda x: np.pad(x, ((1, 2), (0, 1)))),
                (lambda x: ts.cumulative_sum(x, axis=0), lambda x: np.cumsum(x, 0)),
                (lambda x: ts.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1))),
                (lambda x: ts.reshape(x, (-1, 1)), lambda x: x.reshape(-1, 1)),
                (
                    lambda x: x - ts.max(x, axis=1, keepdims=True),
                    lambda x: x - x.max(1, keepdims=True),
                ),
                (
                    lambda x: x / x.shape[0] * ts.arange(x.shape[1]).astype(ts.float64),
                    lambda x: x / max(x.shape[0], 1) * np.arange(x.shape[1]),
                ),
                (lambda x: ts.sort(x, axis=0), lambda x: np.sort(x, 0)),
                (lambda x: ts.take(x, ts.asarray([0, -1]), axis=0), lambda x: x[[0, -1]]),
            ]
        )
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=4), st.sampled_from([0, 1, 3]))
def test_a_trace_is_right_for_all_sizes(program: list[Step], least: int) -> None:
    conditions = [c for n in "SD" for c in parse_conditions(f"{n} >= {least}")]
    facts = Assumptions(System(conditions), "SD")
    with assuming(facts), active(Trace("jit", staging=True)) as trace:
        value: Any = trace.input(TensorType((sym("S"), sym("D")), ts.float64))
        try:
            for ours, _ in program:
                value = ours(value)
        except TesseraError:
            return  # refused for all sizes
        graph, captured = trace.finish([value])
    constants = [x.host for x in captured]
    for s in range(least, 7):
        for d in range(least, 5):
            sizes = {"S": s, "D": d}
            if not all(guard.condition.satisfied(sizes) for guard in facts.guards.values()):
                continue
            x = np.random.default_rng(s).uniform(-1, 1, (s, d))
            wanted = x
            try:
                for _, theirs in program:
                    wanted = theirs(wanted)
            except (IndexError, ValueError):
                continue  # of what is empty, which ours define
            (found,) = run(resize(graph, sizes), [*constants, x])
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
