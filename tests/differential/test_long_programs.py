"""Long programs: code stays in pieces of bounded size, and equal pieces are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target import spec
from tessera.target.interp import run_module
from tessera.target.machine import machine

MANY = 100
"""More uses of a function than one function holds copies of."""

X = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)


def chain(steps: int, fn: Callable[[Any], Any] = ts.tanh) -> Callable[[Any], Any]:
    def f(v: Any) -> Any:
        for i in range(steps):
            v = fn(v) * 1.01 + i
        return v

    return f


def sizes(lowered: Any) -> dict[str, int]:
    """How many ops each function has, but for the one that calls them in order."""
    funcs = lowered.target.funcs.values()
    return {f.name: sum(1 for _ in walk(f.body)) for f in funcs if f.name != "main"}


def narrow(v: Any) -> Any:
    return ts.tanh(v.astype(ts.bfloat16)).astype(ts.float32)


def divided(v: Any) -> Any:
    return (v.astype(ts.int32) // 7).astype(ts.float32)


MOST = {"x86-64-v3": 4000, "x86-64-v4": 4200}
"""Ops of a function: with 512 bits, steps of four vectors are of as many ops, but for masks."""

CASES = [(f, "x86-64-v3") for f in (ts.tanh, ts.exp, ts.sigmoid, narrow, divided)]
CASES += [(ts.exp, "x86-64-v4")]


@pytest.mark.unchecked
@pytest.mark.parametrize(("fn", "level"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_functions_do_not_grow_with_the_program(fn: Callable[[Any], Any], level: str) -> None:
    def lowered(steps: int) -> Lowered:
        return Lowered(ts.make_graph(chain(steps, fn))(X), machine(level))

    short, long = (sizes(lowered(n)) for n in (300, 900))
    assert max(long.values()) <= 1.1 * max(short.values())
    assert max(long.values()) < MOST[level]
    assert sum(long.values()) < 3.5 * sum(short.values())


def test_a_long_expansion_is_written_once() -> None:
    lowered = ts.jit(chain(MANY)).lower(X)
    spec.verify(lowered.target, lowered.machine, legalized=True)
    shared = [f for f in lowered.target.funcs.values() if f.outputs]
    assert [f.name.partition("_")[0] for f in shared] == ["tanh"]
    calls = [op for f in lowered.target.funcs.values() for op in walk(f.body)]
    assert sum(isinstance(op, t.Apply) for op in calls) >= MANY


def test_few_uses_are_expanded_in_place() -> None:
    module = ts.jit(chain(3)).lower(X).target
    assert not any(isinstance(op, t.Apply) for f in module.funcs.values() for op in walk(f.body))


@pytest.mark.parametrize("fn", [ts.tanh, ts.exp2, ts.cos, ts.cbrt], ids=lambda f: f.__name__)
def test_calls_compute_what_copies_do(fn: Callable[[Any], Any]) -> None:
    def damped(v: Any) -> Any:
        return fn(v) * 0.1 - 0.5

    long = ts.jit(chain(MANY, damped))
    one = ts.jit(lambda v, i: damped(v) * 1.01 + i)
    expected: Any = X
    for i in range(MANY):
        expected = one(expected, np.float32(i))
    np.testing.assert_allclose(np.asarray(long(X)), np.asarray(expected), rtol=1e-6)
    out = np.zeros_like(X)
    lowered = long.lower(X)
    arena = lowered.arena
    run_module(lowered.target, [X], [out], {}, arena if isinstance(arena, int) else 0)
    np.testing.assert_allclose(out, np.asarray(expected), rtol=1e-5)


def test_repeated_layers_share_their_kernels() -> None:
    def loss(layers: Any, x: Any) -> Any:
        for w, b in layers:
            x = ts.tanh(x @ w + b)
        return ts.sum(x * x)

    def count(depth: int) -> int:
        rng = np.random.default_rng(0)
        layers = [
            (rng.normal(size=(16, 16)).astype(np.float32), np.zeros(16, np.float32))
            for _ in range(depth)
        ]
        return len(sizes(ts.jit(ts.grad(loss)).lower(layers, np.ones((8, 16), np.float32))))

    assert count(30) <= count(15) <= 12


@pytest.mark.unchecked
def test_pointers_are_read_where_they_are_used() -> None:
    """Hundreds of arguments in registers from the start on would be spilled at once."""

    def total(xs: Any) -> list[Any]:
        return [x @ x for x in xs]

    arrays = [np.full((4, 4), k, np.float32) for k in range(40)]
    f = ts.jit(total)
    for k, found in enumerate(f(arrays)):
        np.testing.assert_array_equal(np.asarray(found), np.full((4, 4), 4 * k * k))
    text = f.lower(arrays).llvm
    main = text[text.index("define void @") :].splitlines()
    first = next(k for k, line in enumerate(main) if "call void" in line)
    assert sum("load ptr" in line for line in main[:first]) <= 4


@pytest.mark.unchecked
def test_llvm_unrolls_short_loops_only() -> None:
    kept = "llvm.loop.unroll.disable"
    columns = ts.jit(lambda x: ts.max(x, axis=0))
    few, many = (np.arange(16 * n, dtype=np.float32).reshape(n, 16) for n in (3, 300))
    assert kept not in columns.lower(few).llvm
    copies = ts.jit(lambda x: ts.concat([x, x + 1, x * 2], axis=1))
    wide = np.arange(100 * 768, dtype=np.float32).reshape(100, 768)
    assert kept in copies.lower(wide).llvm
    for x in (few, many):
        np.testing.assert_array_equal(np.asarray(columns(x)), x.max(0))
    expected = np.concatenate([wide, wide + 1, wide * 2], axis=1)
    np.testing.assert_array_equal(np.asarray(copies(wide)), expected)
