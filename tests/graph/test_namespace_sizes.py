"""Functions of arrays whose sizes are symbols: right for every size, or refused with an error.

Every public function of one or two arrays is traced with names in the place of sizes, and evaluated
for the sizes; what it gives is compared with what it gives where the sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import TesseraError
from tessera.graph.interp import run
from tessera.graph.trace import Trace, active
from tessera.graph.transforms.resize import resize
from tessera.ir.assumptions import Assumptions, assuming
from tessera.ir.constraints import System, parse_conditions
from tessera.ir.intexpr import sym
from tessera.ir.types import TensorType
from tests.graph.namespace_cases import engine

__all__ = ["engine"]

Fn = Callable[..., Any]


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)


MATRIX, SQUARE, LINE = array(0, 5, 3), array(1, 4, 4), np.sort(array(2, 6))
POSITIVE = SQUARE @ SQUARE.T + np.eye(4, dtype=np.float32)
INTS = np.arange(6, dtype=np.int32) % 4
PAIRS = [(MATRIX, array(3, 5, 3)), (POSITIVE, SQUARE), (LINE, INTS), (MATRIX, array(4, 3, 5))]
ONE: list[Fn] = [
    lambda f, x: f(x),
    lambda f, x: f(x, axis=0),
    lambda f, x: f(x, axis=-1),
    lambda f, x: f(x, axis=-1, keepdims=True),
    lambda f, x: f(x, 2),
    lambda f, x: f(x, 2, axis=-1),
]

MODULES = {"ts": ts, "nn": ts.nn, "linalg": ts.linalg}
APART = {
    "jit",
    "grad",
    "vmap",
    "jvp",
    "vjp",
    "compile",
    "function",
    "asarray",
    "debug",
    "map",
    "scan",
}


def functions(module: str) -> Iterator[tuple[str, Fn]]:
    for name in sorted(dir(MODULES[module])):
        found = getattr(MODULES[module], name)
        is_public = not name.startswith("_") and name not in APART
        if is_public and callable(found) and not isinstance(found, type):
            yield name, found


def calls(fn: Fn) -> Iterator[tuple[Fn, tuple[np.ndarray, ...]]]:
    for x in (MATRIX, POSITIVE, LINE, INTS):
        for call in ONE:
            yield lambda x, call=call: call(fn, x), (x,)
    for pair in PAIRS:
        yield lambda x, y: fn(x, y), pair


def with_names(fn: Fn, args: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """The results of a trace with a name for each size that there is."""
    names = {size: f"n{size}" for x in args for size in x.shape}
    types = [TensorType(tuple([sym(names[n]) for n in x.shape]), ts.asarray(x).dtype) for x in args]
    least = [c for name in names.values() for c in parse_conditions(f"{name} >= 1")]
    with (
        assuming(Assumptions(System(least), list(names.values()))),
        active(Trace("jit", staging=True)) as trace,
    ):
        found, _ = pytree.flatten(fn(*[trace.input(t) for t in types]))
        graph, captured = trace.finish([x if hasattr(x, "type") else ts.asarray(x) for x in found])
    sized = resize(graph, {name: size for size, name in names.items()})
    return run(sized, [*[x.host for x in captured], *args])


@pytest.mark.parametrize(("module", "least"), [("ts", 1200), ("nn", 180), ("linalg", 60)])
def test_results_do_not_depend_on_whether_sizes_are_known(module: str, least: int) -> None:
    agreed = 0
    for name, fn in functions(module):
        for call, args in calls(fn):
            try:
                leaves = pytree.leaves(call(*map(ts.asarray, args)))
                wanted = [np.asarray(x) for x in leaves]
            except (TesseraError, TypeError, ValueError):
                continue  # it does not take these
            if any(x.dtype == object for x in wanted):
                continue
            try:
                found = with_names(call, args)
            except TesseraError:
                continue  # refused: that is right as well
            for a, b in zip(found, wanted, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype), name
                if b.dtype.kind in "fc":
                    np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4, err_msg=name)
                else:
                    np.testing.assert_array_equal(a, b, err_msg=name)
            agreed += 1
    assert agreed >= least
