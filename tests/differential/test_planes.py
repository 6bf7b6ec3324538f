"""Kernels that go over the same planes of an array, one plane at a time: at every level, with the
bits of the kernels one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera import lowering
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.schedule import planes
from tessera.schedule.block_ops import Each
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_donated, check_levels, graph_of, values
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
SHAPES = ((4, 18, 6, 9), (18, 1, 3, 3))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes are small."""
    monkeypatch.setattr(planes, "LEAST", 16)


def convolve(x: Any, w: Any) -> Any:
    around = (w.shape[2] // 2,) * 2
    return ts.conv_general(x, w, (1, 1), (around, around), feature_group_count=x.shape[1])


def loss(x: Any, w: Any) -> Any:
    return ts.sum(convolve(x, w) ** 2)


def check(
    fn: Any, shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: DType = float32,
    level: str = "x86-64-v3", joined: int = 1, l2: int = 8192,
) -> Lowered:  # fmt: skip
    """Runs a program at all levels, on a machine with a small second cache."""
    graph, inputs = graph_of(fn, shapes, dtype), values(shapes, dtype)
    target = replace(machine(level), l2=l2)
    lowered = check_levels(graph, inputs, machine=target)
    assert len(all_ops(lowered.schedule, Each)) == joined
    check_donated(graph, inputs, machine=target)
    return lowered


@pytest.mark.parametrize("level", [name for name in LEVELS if name != "x86-64-v4"])
def test_a_padded_channel_of_a_depthwise_convolution(level: str) -> None:
    lowered = check(convolve, level=level)
    (each,) = all_ops(lowered.schedule, Each)
    assert [axis.extent for axis in each.axes] == [4, 18]
    assert len(lowered.kernels()) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_its_gradient_is_one_pass(level: str) -> None:
    lowered = check(lambda x, w: ts.grad(loss, argnums=(0, 1))(x, w), level=level)
    (each,) = all_ops(lowered.schedule, Each)
    # Weights are summed over the examples.
    assert [axis.extent for axis in each.axes] == [18]
    assert len(lowered.kernels()) == 1


@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.int32])
def test_other_dtypes(dtype: DType) -> None:
    check(convolve, dtype=dtype)


def test_rows_in_the_cache_begin_lines() -> None:
    lowered = check(convolve, ((3, 7, 20, 20), (7, 1, 3, 3)))
    (each,) = all_ops(lowered.schedule, Each)
    store = each.nests[0].body.ops[-1]
    assert store.operands[0].type.shape == (16, 22, 32)


def test_larger_windows() -> None:
    check(convolve, ((3, 20, 9, 11), (20, 1, 5, 5)))


def test_what_is_needed_elsewhere_is_stored() -> None:
    def fn(x: Any, w: Any) -> tuple[Any, Any]:
        y = convolve(x, w)
        return y, convolve(ts.exp(y), w)

    lowered = check(fn)
    (kernel,) = lowered.kernels()
    assert kernel.count == 1


def test_padding_that_is_a_result_is_left_alone() -> None:
    def fn(x: Any, w: Any) -> tuple[Any, Any]:
        p = ts.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return p, ts.conv_general(p, w, (1, 1), ((0, 0), (0, 0)), feature_group_count=18)

    check(fn, joined=0)


def test_windows_across_planes_are_left_alone() -> None:
    def fn(x: Any) -> Any:
        p = ts.pad(ts.exp(x), ((1, 1), (1, 1), (1, 1)))
        return sum(
            p[i : i + 15, j : j + 16, k : k + 9] for i in (0, 2) for j in (0, 2) for k in (0, 2)
        )

    check(fn, ((15, 16, 9),), joined=0)


def test_few_planes_are_left_alone() -> None:
    check(convolve, ((1, 5, 20, 20), (5, 1, 3, 3)), joined=0)


def test_in_a_loop() -> None:
    def fn(x: Any, w: Any) -> Any:
        return ts.scan(lambda y, _: (convolve(y, w), None), x, None, length=3)[0]

    check(fn)


def test_the_largest_of_windows_and_its_place() -> None:
    def fn(x: Any) -> Any:
        p = ts.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        lines = [p[:, :, i : i + 6, j : j + 9] for i in range(3) for j in range(3)]
        return ts.max(ts.stack(lines, axis=-1), axis=-1)

    graph, inputs = graph_of(fn, SHAPES[:1], float32), values(SHAPES[:1], float32)
    check_levels(graph, inputs, machine=replace(machine("x86-64-v3"), l2=8192))


@pytest.mark.parametrize("fn", [convolve, lambda x, w: ts.grad(loss, argnums=(0, 1))(x, w)])
def test_bits_are_those_of_kernels_one_after_the_other(
    fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 32, 56, 56)).astype(np.float32)
    w = rng.standard_normal((32, 1, 3, 3)).astype(np.float32)
    x[0, 0, 3, 5], x[1, 2, 0, 0], x[2, 3, 55, 55] = np.nan, np.inf, -0.0

    def bits(threads: int) -> list[bytes]:
        with ts.config.update(threads=threads):
            found = ts.jit(lambda x, w: fn(x, w))(x, w)
        found = found if isinstance(found, tuple) else (found,)
        return [np.asarray(y).tobytes() for y in found]

    both = [bits(1), bits(3)]
    monkeypatch.setattr(lowering, "hold_planes", lambda func, machine: func)
    assert both == [bits(2)] * 2


@pytest.mark.parametrize("fn", [convolve, lambda x, w: ts.grad(loss, argnums=1)(x, w)])
def test_accesses_are_checked(fn: Any) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((4, 32, 56, 56)).astype(np.float32)
    w = rng.standard_normal((32, 1, 3, 3)).astype(np.float32)
    expected = np.asarray(ts.jit(lambda x, w: fn(x, w))(x, w))
    with ts.config.update(debug_bounds=True):
        found = np.asarray(ts.jit(lambda x, w: fn(x, w))(x, w))
    assert found.tobytes() == expected.tobytes()


def reference(x: Any, w: Any) -> tuple[Any, Any, Any]:
    """The loss and its gradients, window by window."""
    r, s = w.shape[2:]
    around = ((0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2))
    p, (rows, columns) = np.pad(x, around), x.shape[2:]
    places = [(i, j, p[:, :, i : i + rows, j : j + columns]) for i in range(r) for j in range(s)]
    y = sum(w[:, 0, i, j, None, None] * one for i, j, one in places)
    dw, dp = np.zeros_like(w), np.zeros_like(p)
    for i, j, one in places:
        dw[:, 0, i, j] = np.sum(2 * y * one, (0, 2, 3))
        dp[:, :, i : i + rows, j : j + columns] += 2 * y * w[:, 0, i, j, None, None]
    return np.sum(y * y), dp[:, :, r // 2 : r // 2 + rows, s // 2 : s // 2 + columns], dw


# --- sums over planes ----------------------------------------------------------------------------


def gradient(x: Any, w: Any) -> Any:
    return ts.value_and_grad(loss, argnums=(0, 1))(x, w)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 9, 9, 17), (9, 1, 3, 3)),
        ((1, 18, 9, 17), (18, 1, 3, 3)),
        ((18, 1, 10, 16), (1, 1, 3, 3)),
    ],
)
def test_a_loss_is_summed_plane_by_plane(level: str, shapes: Any) -> None:
    lowered = check(gradient, shapes, level=level)
    (each,) = all_ops(lowered.schedule, Each)
    assert np.prod([axis.extent for axis in each.axes]) == shapes[0][0] * shapes[0][1]
    # The gradient for the operand is all that is as large.
    whole = np.prod(shapes[0])
    large = [v for one in kernels(lowered.schedule.body) for v in one.types[: -one.temps or None]]
    assert [v.shape for v in large if v.size >= whole] == [shapes[0]]


@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16])
def test_a_loss_of_other_dtypes(dtype: DType) -> None:
    check(gradient, ((2, 9, 5, 17), (9, 1, 3, 3)), dtype, l2=8192 if dtype.bits > 32 else 2048)


def test_a_loss_of_several_channels_of_one() -> None:
    """A multiplier: planes of the operand are read by two of the result."""

    def fn(x: Any, w: Any) -> Any:
        return ts.value_and_grad(
            lambda x, w: ts.sum(
                ts.conv_general(x, w, (1, 1), "SAME", feature_group_count=x.shape[1]) ** 2
            ),
            argnums=(0, 1),
        )(x, w)

    shapes = ((2, 5, 9, 17), (10, 1, 3, 3))
    graph, inputs = graph_of(fn, shapes, float32), values(shapes, float32)
    check_levels(graph, inputs, machine=replace(machine("x86-64-v3"), l2=8192))


def test_a_loss_with_targets() -> None:
    def fn(x: Any, w: Any, y: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return ts.mean((convolve(x, w) - y) ** 2)

        return ts.value_and_grad(loss, argnums=(0, 1))(x, w)

    shapes = ((2, 9, 9, 17), (9, 1, 3, 3), (2, 9, 9, 17))
    (each,) = all_ops(check(fn, shapes).schedule, Each)
    assert [axis.extent for axis in each.axes] == [2, 9]


@pytest.mark.parametrize("name", ["max", "sum", "all"])
def test_other_reductions_over_planes(name: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        y = convolve(ts.exp(x), w)
        found = ts.all(y > -100) if name == "all" else getattr(ts, name)(ts.abs(y), axis=(0, 2, 3))
        return found, convolve(y, w)

    lowered = check(fn, ((2, 9, 9, 17), (9, 1, 3, 3)))
    (each,) = all_ops(lowered.schedule, Each)
    assert [axis.extent for axis in each.axes] == [2, 9]


def test_two_sums_of_the_same_planes() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = convolve(x, w)
        return ts.sum(y), ts.sum(y * y), convolve(y, w)

    check(fn, ((2, 9, 9, 17), (9, 1, 3, 3)))


def test_numbers_that_are_rows_apart_are_kept_in_planes() -> None:
    """A factor that is known later: what is needed to begin with comes first."""

    def fn(x: Any, w: Any, ct: Any) -> Any:
        y, back = ts.vjp(lambda x, w: ts.sum(convolve(x, w) ** 2, axis=(0, 2, 3)), x, w)
        return y, *back(ct)

    lowered = check(fn, ((2, 16, 9, 17), (16, 1, 3, 3), (16,)))
    (each,) = all_ops(lowered.schedule, Each)
    assert [axis.extent for axis in each.axes] == [2, 16]


@pytest.mark.parametrize(
    "shapes", [((2, 9, 40, 57), (9, 1, 3, 3)), ((1, 64, 33, 47), (64, 1, 5, 5))]
)
def test_a_loss_has_the_same_bits_on_any_number_of_threads(shapes: Any) -> None:
    rng = np.random.default_rng(5)
    x, w = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x = np.tile(x, (8, 1, 1, 1))
    found: list[list[bytes]] = []
    for threads in (1, 2, 3):
        with ts.config.update(threads=threads):
            value, (dx, dw) = ts.jit(lambda x, w: gradient(x, w))(x, w)
        found.append([np.asarray(y).tobytes() for y in (value, dx, dw)])
    assert found[0] == found[1] == found[2]
    exact = [np.asarray(y) for y in reference(x.astype(np.float64), w.astype(np.float64))]
    for y, z in zip((value, dx, dw), exact, strict=True):
        assert np.abs(np.asarray(y) - z).max() <= 1e-5 * np.abs(z).max()


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_alone(level: str) -> None:
    lowered = check(loss, ((2, 9, 33, 40), (9, 1, 3, 3)), level=level, l2=65536 // 2)
    (each,) = all_ops(lowered.schedule, Each)
    assert [axis.extent for axis in each.axes] == [2, 9]


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_a_stencil_that_goes_into_a_sum(level: str) -> None:
    """Windows along the axis of planes are none of one plane, but may be read."""

    def fn(x: Any) -> Any:
        y = x[2:] + x[1:-1] * 2 + x[:-2]
        return ts.sum(ts.stack([y, y * 3]) ** 2), ts.max(y, axis=1)

    graph, inputs = graph_of(fn, ((35, 90),), float32), values(((35, 90),), float32)
    check_levels(graph, inputs, machine=replace(machine(level), l2=2048))
