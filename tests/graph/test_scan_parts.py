"""Products of a scan's steps that are done for all steps at once: `graph/ops/scan_parts.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph.ops import scan_parts
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.scan import Scan
from tessera.ir.walk import walk
from tests.tolerance import assert_close

RNG = np.random.default_rng(8)

Fn = Callable[..., Any]


def numbers(*shape: int) -> Any:
    return ts.asarray(RNG.standard_normal(shape) * 0.3)


def recurrent(
    scan: Fn, w: Any, u: Any, v: Any, x: Any, *, reverse: bool = False, is_numbered: bool = False
) -> Any:
    """A recurrent network, with a product of each kind."""

    def step(h: Any, row: Any) -> Any:
        given, i = row
        scale = 1 + i * 0.1 if is_numbered else 1.0
        h = ts.tanh(given @ w * scale + h @ u)
        return h, (ts.tanh(h @ v) + given[:, :1], h, given @ w)

    zero = ts.zeros((x.shape[1], u.shape[0]), dtype=x.dtype)
    rows = (x, ts.arange(x.shape[0], dtype=x.dtype))
    return scan(step, zero, rows, reverse=reverse)


def loop(step: Fn, h: Any, rows: Any, *, reverse: bool = False) -> Any:
    """A scan in Python."""
    x, numbers = rows
    found: list[Any] = []
    places = range(x.shape[0])
    for i in reversed(places) if reverse else places:
        h, ys = step(h, (x[i], numbers[i]))
        found.append(ys)
    order = reversed(found) if reverse else found
    return h, tuple([ts.stack(list(ys)) for ys in zip(*order, strict=True)])


def products_in_loops(fn: Fn, *args: Any) -> list[int]:
    """How many products each scan of a compiled program has in its steps."""
    graph = ts.jit(fn).lower(*args).graph
    scans = [op for op in graph.ops if isinstance(op, Scan)]
    return [sum(isinstance(op, DotGeneral) for op in walk(scan.body)) for scan in scans]


def all_close(actual: Any, expected: Any) -> None:
    for a, b in zip(ts.pytree.leaves(actual), ts.pytree.leaves(expected), strict=True):
        assert_close(a, b, length=100)


@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_recurrent_network(rows: int, reverse: bool, is_numbered: bool) -> None:
    args = numbers(6, 7), numbers(7, 7), numbers(7, 2), numbers(9, rows, 6)

    def f(scan: Fn) -> Fn:
        def run(*args: Any) -> Any:
            return recurrent(scan, *args, reverse=reverse, is_numbered=is_numbered)

        return run

    all_close(ts.jit(f(ts.scan))(*args), f(loop)(*args))
    # Of many rows each step has enough to do.
    assert products_in_loops(f(ts.scan), *args) == ([1] if rows < 40 else [3])


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_gradients(rows: int) -> None:
    args = numbers(6, 7), numbers(7, 7), numbers(7, 2), numbers(9, rows, 6)

    def f(scan: Fn) -> Fn:
        def run(*args: Any) -> Any:
            h, (y, hs, z) = recurrent(scan, *args, is_numbered=True)
            return ts.sum(h) + ts.sum(y * y) + ts.sum(ts.sin(hs)) + ts.sum(z * z)

        return run

    wrt = (0, 1, 2, 3)
    expected = ts.grad(f(loop), argnums=wrt)(*args)
    all_close(ts.jit(ts.grad(f(ts.scan), argnums=wrt))(*args), expected)
    all_close(ts.grad(f(ts.scan), argnums=wrt)(*args), expected)
    # One product for the state in the first loop; in the other one those of its derivatives.
    assert products_in_loops(ts.grad(f(ts.scan), argnums=wrt), *args) == [1, 2]


def test_other_transforms() -> None:
    args = numbers(6, 7), numbers(7, 7), numbers(7, 2), numbers(5, 2, 6)
    tangents = numbers(6, 7), numbers(7, 7), numbers(7, 2), numbers(5, 2, 6)

    def f(scan: Fn) -> Fn:
        return lambda *args: recurrent(scan, *args)

    all_close(
        ts.jit(lambda *t: ts.jvp(f(ts.scan), args, t))(*tangents), ts.jvp(f(loop), args, tangents)
    )

    def energy(scan: Fn) -> Fn:
        return lambda u: ts.sum(recurrent(scan, args[0], u, *args[2:])[1][0] ** 2)

    u = args[1]
    directional = ts.jit(ts.grad(lambda u: ts.sum(ts.grad(energy(ts.scan))(u) * tangents[1])))
    all_close(directional(u), ts.grad(lambda u: ts.sum(ts.grad(energy(loop))(u) * tangents[1]))(u))
    many = ts.stack([u, u * 2, -u])
    batched = ts.jit(ts.vmap(ts.grad(energy(ts.scan))))(many)
    all_close(batched, ts.stack([ts.grad(energy(loop))(m) for m in many]))


def test_any_number_of_steps() -> None:
    w, u, v = numbers(6, 7), numbers(7, 7), numbers(7, 2)

    def f(x: ts.Tensor["T", 2, 6, ts.float64]) -> Any:  # noqa: F821, UP037
        return recurrent(ts.scan, w, u, v, x)

    for steps in (1, 3, 9):
        x = numbers(steps, 2, 6)
        all_close(ts.jit(f)(x), recurrent(loop, w, u, v, x))


def test_what_is_read_of_the_state_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the state, of two slices, of few steps; and what would take too much memory."""
    w, x = numbers(6, 6), numbers(9, 2, 6)
    zero = ts.zeros((2, 6), dtype=ts.float64)

    def of_state(w: Any, x: Any) -> Any:
        return ts.scan(lambda h, r: (h @ w + r, None), zero, x)[0]

    def of_slices(w: Any, x: Any) -> Any:
        return ts.scan(lambda h, r: (h + r @ (r.T @ r), None), zero, x)[0]

    def plain(w: Any, x: Any) -> Any:
        return ts.scan(lambda h, r: (ts.sin(h) + r @ w, None), zero, x)[0]

    for fn in (of_state, of_slices):
        (count,) = products_in_loops(fn, w, x)
        assert count > 0
    assert products_in_loops(plain, w, x[:3]) == [1]
    assert products_in_loops(plain, w, x) == [0]
    monkeypatch.setattr(scan_parts, "MOST_BYTES", 800)
    assert products_in_loops(plain, w, x) == [1]
