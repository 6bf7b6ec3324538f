"""Transforms of random programs: Graph to Graph and eagerly, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import dtype_of
from tessera.graph import interp
from tessera.graph.transforms.differentiate import jvp, linearize, transpose
from tessera.graph.transforms.vectorize import vmap
from tessera.ir.core import Func
from tests.differential.programs import Program, random_program
from tests.tolerance import RTOL, assert_close

COUNT = 128
BATCH = 8
LENGTH = 100
"""The longest accumulation is of a few thousand values, of random sign."""
FACTOR = 200
"""Programs have a dozen operations, and their derivatives several for each of them."""


def compare(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], where: str) -> None:
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            assert_close(a, b, length=LENGTH, factor=FACTOR)
        except AssertionError as error:
            raise AssertionError(f"{where}, output {k}: {error}") from None


def compiled(graph: Func, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    return Lowered(graph).executable().run([np.ascontiguousarray(x) for x in xs])


def inexact(x: np.ndarray) -> bool:
    return dtype_of(x.dtype).is_inexact


def direction(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    t = rng.standard_normal(x.shape)
    return np.asarray(t + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else t).astype(
        x.dtype
    )


def check_batch(
    graph: Func, examples: Sequence[Sequence[np.ndarray]], batched: Sequence[bool], where: str
) -> None:
    """The batched Graph does for each example what the Graph does, and so does its code."""
    if not any(batched):
        return
    axes = [0 if b else None for b in batched]
    columns = list(zip(*examples, strict=True))
    given = [np.stack(c) if b else c[0] for c, b in zip(columns, batched, strict=True)]
    func, out_axes, captured = vmap(graph, axes, len(examples))
    assert not captured
    found = interp.run(func, given)
    for k in range(len(examples)):
        one = [x[k] if b else x for x, b in zip(given, batched, strict=True)]
        parts = [y if a is None else np.take(y, k, a) for y, a in zip(found, out_axes, strict=True)]
        compare(parts, interp.run(graph, [np.asarray(x) for x in one]), where)
    compare(compiled(func, given), found, f"{where}, compiled")


def pairing(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> tuple[float, float]:
    """The real part of the sum of products, and the sum of their magnitudes."""
    total = size = 0.0
    for x, y in zip(xs, ys, strict=True):
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        products = x.astype(wide) * y.astype(wide)
        total += float(np.sum(products).real)
        size += float(np.sum(np.abs(products)))
    return total, size


def check_reverse(
    graph: Func,
    xs: Sequence[np.ndarray],
    us: Sequence[np.ndarray],
    tangents: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> None:
    """The linear part and its transpose."""
    wrt = [inexact(x) for x in xs]
    forward, linear, captured, nonzero, count = linearize(graph, wrt)
    assert not captured
    outs = interp.run(forward, xs)
    compare(compiled(forward, xs), outs, "forward, compiled")
    known = outs[len(nonzero) :]
    assert len(known) == count
    pushed = interp.run(linear, [*known, *us])
    compare(pushed, tangents, "linear")
    if not pushed:
        return
    cts = [direction(rng, y) for y in pushed]
    backward, flags, captured = transpose(linear, count, [True] * len(cts))
    assert not captured
    pulled = interp.run(backward, [*known, *cts])
    compare(compiled(backward, [*known, *cts]), pulled, "backward, compiled")
    left, left_size = pairing(cts, pushed)
    right, right_size = pairing(pulled, [u for u, flag in zip(us, flags, strict=True) if flag])
    size = max(left_size, right_size)
    # What is narrow on the way decides, not only what comes out.
    text = f"{linear}{forward}"
    worst = max([RTOL[name] for name in ("bf16", "f16", "f32") if f"{name}[" in text], default=0.0)
    if np.isfinite(size):
        assert abs(left - right) <= max(worst, RTOL["f32"]) * 10 * max(size, 1e-3), "transpose"


def check(program: Program, seed: int) -> None:
    graph = program.graph()
    rng = np.random.default_rng(seed)
    xs, others = program.arrays(rng), program.arrays(rng)
    check_batch(graph, [xs, others], [bool(rng.random() < 0.7) for _ in xs], "vmap")
    wrt = [inexact(x) for x in xs]
    if not any(wrt):
        return
    us = [direction(rng, x) for x in xs if inexact(x)]
    pushed, flags, captured = jvp(graph, wrt)
    assert not captured
    both = interp.run(pushed, [*xs, *us])
    compare(both[: len(flags)], interp.run(graph, xs), "jvp")
    compare(compiled(pushed, [*xs, *us]), both, "jvp, compiled")
    batched = [bool(rng.random() < 0.6) for _ in (*xs, *us)]
    check_batch(pushed, [[*xs, *us], [*xs, *us]], batched, "vmap of jvp")
    if "graph.while(" not in str(graph):
        check_reverse(graph, xs, us, both[len(flags) :], rng)


def check_eager(program: Program, seed: int) -> None:
    """Op by op, what the interpreter does with the Graph."""
    graph = program.graph()
    rng = np.random.default_rng(seed)
    xs = program.arrays(rng)
    wrt = [inexact(x) for x in xs]
    us = [direction(rng, x) for x in xs if inexact(x)]
    pushed, flags, _ = jvp(graph, wrt)
    both = interp.run(pushed, [*xs, *us])

    def run(*given: object) -> list[object]:
        rest = iter(given)
        args = [next(rest) if w else ts.asarray(x) for x, w in zip(xs, wrt, strict=True)]
        return program.run(args)

    primals = [ts.asarray(x) for x, w in zip(xs, wrt, strict=True) if w]
    outs, tangents = ts.jvp(run, primals, [ts.asarray(u) for u in us])
    kept = [np.asarray(t) for t, flag in zip(tangents, flags, strict=True) if flag]
    compare([np.asarray(y) for y in (*outs, *kept)], both, "eager jvp")
    for t, flag in zip(tangents, flags, strict=True):
        assert flag or not np.any(np.asarray(t))


def run_batch(work: Callable[[Program, int], None], first: int, count: int) -> None:
    for seed in range(first, first + count):
        program = random_program(seed)
        try:
            work(program, seed)
        except Exception as error:
            error.add_note(f"seed {seed}: {', '.join(program.names)}")
            raise


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_graphs(first: int) -> None:
    run_batch(check, first, BATCH)


@pytest.mark.parametrize("first", range(20_000, 20_000 + COUNT // 2, BATCH))
def test_eager(first: int) -> None:
    run_batch(check_eager, first, BATCH)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 102_000, 50))
def test_many(first: int) -> None:
    run_batch(check, first, 50)
    run_batch(check_eager, first, 50)
