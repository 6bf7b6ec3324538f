"""Scans whose steps are work on single elements are one nest, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.dtypes import DType, complex64, float32, float64, int32
from tessera.errors import VerifyError
from tessera.ir.core import Block, Value
from tessera.ir.intexpr import sym
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops, streaming
from tessera.schedule.types import Axis
from tessera.target.machine import machine
from tests.differential.levels import check_levels, graph_of, values


def linear(w: Any, x: Any) -> Any:
    return ts.scan(lambda h, row: (w * h + row, h), ts.zeros_like(w), x)


def backwards(w: Any, x: Any) -> Any:
    return ts.scan(lambda h, row: (ts.sin(h) + row * w, h + 1), w, x, reverse=True)


def several(w: Any, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        a, b, n = carry
        return (a + row, ts.where(row > 0, b * w, a), n + 1), (a * b, row - b)

    (a, b, _), ys = ts.scan(step, (w, w, ts.zeros((), dtype=ts.int32)), x)
    return a, b, *ys


def selective(dt: Any, a: Any, b: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        dt, b, x = row
        h = ts.exp(dt[:, :, None] * a) * h + (dt * x)[:, :, None] * b[:, None, :]
        return h, ts.sum(h * b[:, None, :], axis=-1)

    h = ts.zeros((*dt.shape[1:], a.shape[1]), dtype=dt.dtype)
    return ts.scan(step, h, (dt, b, x))


def numbered(w: Any, x: Any) -> Any:
    return ts.fori_loop(0, 5, lambda i, h: h * w + ts.astype(i, h.dtype) * x[0], x[1])


def loops(lowered: Any) -> list[type]:
    kinds = (*loop_ops.LOOPS, ops.While)
    return [type(op) for op in walk(lowered.schedule.body) if isinstance(op, kinds)]


@pytest.mark.parametrize("fn", [linear, backwards])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33,), (3, 5), (2, 3, 20)])
def test_elements(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    shapes = [shape, (6, *shape)]
    lowered = check_levels(graph_of(fn, shapes), values(shapes))
    assert loops(lowered) == [loop_ops.Recur]


def blended(a: Any, x: Any) -> Any:
    """Colours behind each other, with a weight for each point."""
    step = lambda c, one: (c * (1 - one[1][..., None]) + one[0], c)  # noqa: E731
    return ts.scan(step, x[0] * 0, (x, a))


@pytest.mark.parametrize("level", ["host", "x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 7, 8, 12, 15, 16])
def test_short_rows_share_vectors(columns: int, level: str) -> None:
    for points in ((9, 3), (40,)):
        shapes = [(5, *points), (5, *points, columns)]
        lowered = check_levels(graph_of(blended, shapes), values(shapes), machine=machine(level))
        assert loops(lowered) == [loop_ops.Recur]
        tiles = [
            nest.tile
            for nest in walk(lowered.schedule.body)
            if isinstance(nest, ops.Nest)
            and any(isinstance(op, loop_ops.Recur) for op in walk(nest.body))
        ]
        if level == "x86-64-v4" and columns < 16:
            assert all([np.prod(tile) >= 16 for tile in tiles])


@pytest.mark.parametrize("dtype", [float64, int32, complex64])
def test_dtypes(dtype: DType) -> None:
    shapes = [(19,), (4, 19)]
    assert loops(check_levels(graph_of(linear, shapes, dtype), values(shapes, dtype)))


def test_several_values_are_carried() -> None:
    shapes = [(9,), (5, 9)]
    check_levels(graph_of(several, shapes), values(shapes))


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short(length: int) -> None:
    shapes = [(9,), (length, 9)]
    check_levels(graph_of(linear, shapes), values(shapes))


@pytest.mark.parametrize("sizes", [(5, 2, 17, 4), (3, 1, 33, 16), (4, 2, 3, 1)])
def test_last_dims_are_unrolled(sizes: tuple[int, int, int, int]) -> None:
    length, batch, width, state = sizes
    rows = (length, batch, width)
    shapes = [rows, (width, state), (length, batch, state), rows]
    lowered = check_levels(graph_of(selective, shapes), values(shapes))
    assert loops(lowered) == [loop_ops.Recur]
    (loop,) = [op for op in walk(lowered.schedule.body) if isinstance(op, loop_ops.Recur)]
    assert len(loop.init) == state


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_machines(level: str) -> None:
    shapes = [(4, 2, 9), (9, 4), (4, 2, 4), (4, 2, 9)]
    check_levels(graph_of(selective, shapes), values(shapes), machine=machine(level))


def test_counted_loops_are_of_this_kind() -> None:
    shapes = [(21,), (2, 21)]
    assert loops(check_levels(graph_of(numbered, shapes), values(shapes))) == [loop_ops.Recur]


@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (4, 33), (6, 0)])
def test_symbolic(sizes: tuple[int, int]) -> None:
    n, m = sizes
    graph = graph_of(linear, [(sym("m"),), (sym("n"), sym("m"))])
    lowered = check_levels(graph, values([(m,), (n, m)]), {"n": n, "m": m})
    assert loops(lowered) == [loop_ops.Recur]


@pytest.mark.parametrize(
    "step",
    [
        lambda h, row: (ts.roll(h, 1) + row, h),
        lambda h, row: (h - ts.max(h) + row, h),
        lambda h, row: (ts.sort(h + row), h),
    ],
)
def test_steps_that_need_other_elements_are_programs(step: Callable[..., Any]) -> None:
    shapes = [(40,), (3, 40)]
    graph = graph_of(lambda w, x: ts.scan(step, w, x), shapes)
    assert loops(check_levels(graph, values(shapes))) == [ops.While]


# --- loops with a condition -----------------------------------------------------------------------


def escape(x: Any, y: Any) -> Any:
    def cond(state: Any) -> Any:
        a, b, n = state
        return (a * a + b * b < 4.0) & (n < 40)

    def body(state: Any) -> Any:
        a, b, n = state
        return a * a - b * b + x, 2 * a * b + y, n + 1

    return ts.while_loop(cond, body, (x, y, ts.zeros((), dtype=ts.int32)))


def doubled(x: Any, y: Any) -> Any:
    # It never ends for 0, which is what lies beyond the end of an array.
    return ts.while_loop(lambda v: v < 100.0, lambda v: v * 2 + y * 0, ts.abs(x) + 0.1)


def masked(x: Any, y: Any) -> Any:
    def goes(state: Any) -> Any:
        return state[0] < 5.0

    def body(state: Any) -> Any:
        v, n = state
        return ts.where(goes(state), v + ts.abs(y) + 0.5, v), ts.where(goes(state), n + 1, n)

    return ts.while_loop(lambda s: ts.any(goes(s)), body, (x, ts.zeros_like(x)))


@pytest.mark.parametrize("fn", [ts.vmap(escape), ts.vmap(doubled), masked])
@pytest.mark.parametrize("size", [1, 5, 33, 300])
def test_points_end_by_themselves(fn: Callable[..., Any], size: int) -> None:
    shapes = [(size,)] * 2
    lowered = check_levels(graph_of(fn, shapes), values(shapes))
    assert loops(lowered) == [loop_ops.Repeat]


def test_two_batch_dims_and_symbols() -> None:
    fn = ts.vmap(ts.vmap(escape))
    lowered = check_levels(graph_of(fn, [(3, 17)] * 2), values([(3, 17)] * 2))
    assert loops(lowered) == [loop_ops.Repeat]
    graph = graph_of(ts.vmap(doubled), [(sym("n"),)] * 2)
    for n in (0, 1, 19):
        check_levels(graph, values([(n,)] * 2), {"n": n})


def test_state_with_few_last_elements() -> None:
    def fn(x: Any, y: Any) -> Any:
        return ts.while_loop(lambda v: ts.sum(v * v) < 50.0, lambda v: v * 1.5 + 0.1, x)

    shapes = [(21, 3)] * 2
    lowered = check_levels(graph_of(ts.vmap(fn), shapes), values(shapes))
    assert loops(lowered) == [loop_ops.Repeat]


def test_a_loop_of_scalars_is_a_kernel() -> None:
    lowered = check_levels(graph_of(escape, [(), ()]), values([(), ()]))
    assert loops(lowered) == [loop_ops.Repeat]


@pytest.mark.parametrize(
    "body",
    [lambda v: v + 1, lambda v: ts.where(v < 4, v + 1, v), lambda v: ts.where(v < 5, v + 1, 7.0)],
)
def test_points_that_change_after_their_end_wait_for_each_other(body: Callable[..., Any]) -> None:
    def fn(x: Any, y: Any) -> Any:
        return ts.while_loop(lambda v: ts.any(v < 5) & ts.any(v < 4), body, x)

    shapes = [(40,)] * 2
    assert loops(check_levels(graph_of(fn, shapes), values(shapes))) == [ops.While]
    other = graph_of(lambda x, y: ts.while_loop(lambda v: ts.any(v < 5), body, x), shapes)
    if body(ts.asarray([4.5]))[0] != 4.5:
        assert loops(check_levels(other, values(shapes))) == [ops.While]


def test_special_values() -> None:
    w, x = values([(20,), (5, 20)])
    w[3], x[1, 4], x[2, 5], x[0, 6] = np.inf, np.nan, -np.inf, np.inf
    check_levels(graph_of(linear, [w.shape, x.shape]), [w, x])


def test_gradient() -> None:
    w, x = values([(11,), (7, 11)])
    found = ts.jit(ts.grad(lambda w, x: ts.sum(linear(w, x)[1] ** 2)))(w / 3, x)
    step = 1e-3
    for k in range(3):
        wide = [(w / 3).astype(np.float64) for _ in range(2)]
        wide[0][k] -= step
        wide[1][k] += step
        low, high = [_loss(v, x.astype(np.float64)) for v in wide]
        np.testing.assert_allclose(np.asarray(found)[k], (high - low) / (2 * step), rtol=1e-3)


def _loss(w: np.ndarray, x: np.ndarray) -> float:
    h, total = np.zeros_like(w), 0.0
    for row in x:
        total += float((h**2).sum())
        h = w * h + row
    return total


def test_a_loop_must_yield_what_it_carries() -> None:
    zero = ops.Const(0.0, float32)
    arg = Value(ScalarType(float32))
    body, cond = Block([arg], [], ()), Block([Value(arg.type)], [], ())
    with pytest.raises(VerifyError, match="must yield what it carries"):
        loop_ops.Recur((zero.result,), Axis("r0", 3), False, body).verify()
    with pytest.raises(VerifyError, match="must yield one bool"):
        loop_ops.Repeat((zero.result,), cond, Block([arg], [], (arg,))).verify()
    with pytest.raises(VerifyError, match="must match what is carried"):
        loop_ops.Repeat((), cond, body).verify()


@pytest.mark.parametrize("streams", [False, True])
def test_wide_states_are_long_lines_of_memory(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streams:
        monkeypatch.setattr(streaming, "STREAM_BYTES", 64)
    shapes = ((256,), (3, 256))
    lowered = check_levels(graph_of(linear, shapes), values(shapes), machine=machine("x86-64-v3"))
    found = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    (nest,) = [op for op in found if any(one.regions for one in op.body.ops)]
    inside = [op for loop in nest.body.ops for r in loop.regions for op in r.ops]
    # Eight vectors, in half of the registers, or four, where memory is far.
    assert nest.tile == (32 if streams else 64,)
    assert [op.streaming for op in inside if isinstance(op, ops.Store)] == [streams]
