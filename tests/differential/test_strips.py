"""Kernels that read neighbours of what others make, strip of rows by strip of rows: at every level,
with the bits of the kernels one after the other."""

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
from tessera.ir.intexpr import symbols
from tessera.schedule import strips
from tessera.schedule.block_ops import Each
from tessera.schedule.ops import Nest
from tessera.target.machine import machine, supported_levels
from tessera.tile.lowering.inner_ranges import inner_ranges
from tests.differential.levels import check_donated, check_levels, graph_of, values
from tests.pairs import each_with_one
from tests.schedule.lowering import all_ops

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips are small."""
    monkeypatch.setattr(strips, "LEAST", 16)
    monkeypatch.setattr(strips, "PLANES", 4)


def check(
    fn: Any, shapes: Sequence[tuple[int, ...]] = ((70, 18),), dtype: DType = float32,
    level: str = "x86-64-v3", joined: int = 1, l2: int = 4096,
) -> Lowered:  # fmt: skip
    """Runs a program at all levels, on a machine with a small second cache."""
    graph, inputs = graph_of(fn, shapes, dtype), values(shapes, dtype)
    target = replace(machine(level), l2=l2, cores=2)
    lowered = check_levels(graph, inputs, machine=target)
    assert len(all_ops(lowered.schedule, Each)) == joined
    check_donated(graph, inputs, machine=target)
    return lowered


def padded(x: Any, n: int = 1) -> Any:
    return ts.pad(x, ((n, n), (n, n)))


def edges(x: Any) -> Any:
    """Differences of neighbours in both directions, of which a padded copy is made."""
    p = padded(x)
    across = p[:-2, 2:] - p[:-2, :-2] + 2 * (p[1:-1, 2:] - p[1:-1, :-2]) + p[2:, 2:] - p[2:, :-2]
    down = p[2:, :-2] - p[:-2, :-2] + 2 * (p[2:, 1:-1] - p[:-2, 1:-1]) + p[2:, 2:] - p[:-2, 2:]
    return across * across + down * down


def box(x: Any) -> Any:
    """The mean of three by three."""
    p = padded(x)
    total = sum(p[i : i + x.shape[0], j : j + x.shape[1]] for i in range(3) for j in range(3))
    return total / 9.0


@each_with_one(("level", LEVELS), ("dtype", [dt.float32, dt.float64, dt.int32]))
def test_a_filter_of_a_padded_image(level: str, dtype: DType) -> None:
    lowered = check(edges, ((70, 40),), dtype, level, l2=1 << 13)
    (each,) = all_ops(lowered.schedule, Each)
    assert "strips of rows" in each.reason
    assert len(lowered.kernels()) == 1


@pytest.mark.parametrize("rows", [64, 71, 97, 113])
def test_strips_of_one_size_overlap_where_rows_do_not_divide(rows: int) -> None:
    lowered = check(edges, ((rows, 18),))
    (each,) = all_ops(lowered.schedule, Each)
    (axis,), last = each.axes, each.nests[-1].axes[0]
    (store,) = [op for op in each.nests[-1].body.ops if op.name == "schedule.store"]
    step = str(store.attrs["index"][0]).split("*")[0]
    # The last strip ends where the rows do.
    assert (axis.extent - 1) * int(step) + last.extent == rows
    assert last.extent >= int(step)


def test_filters_of_filters() -> None:
    """Rows beyond the image are computed by nobody: what is read there is what is padded."""
    lowered = check(lambda x: box(box(x)), ((120, 18),), l2=8192)
    (each,) = all_ops(lowered.schedule, Each)
    assert len(each.nests) == 3
    (first, second, third) = [nest.axes[0].extent for nest in each.nests]
    assert first == second + 2 == third + 4


def test_several_arrays_of_one_kernel() -> None:
    def fn(x: Any) -> Any:
        p = padded(x)
        a, b = p[1:-1, 2:] - p[1:-1, :-2], p[2:, 1:-1] - p[:-2, 1:-1]
        xx, yy, xy = box(a * a), box(b * b), box(a * b)
        return xx * yy - xy * xy

    lowered = check(fn, ((220, 18),), l2=1 << 14)
    assert len(all_ops(lowered.schedule, Each)) == 1


def test_planes_have_strips_of_their_own() -> None:
    def fn(x: Any) -> Any:
        p = ts.pad(ts.exp(x), ((0, 0), (0, 0), (1, 1), (0, 0)))
        return p[:, :, 2:] - p[:, :, :-2]

    lowered = check(fn, ((2, 3, 40, 128),), level="x86-64", l2=1 << 15)
    for each in all_ops(lowered.schedule, Each):
        assert [axis.extent for axis in each.axes[:2]] == [2, 3]


def test_strips_are_no_higher_than_planes() -> None:
    """Also of many planes, and where the second cache has room for more."""

    def fn(x: Any) -> Any:
        p = ts.pad(ts.exp(x), ((0, 0), (1, 1), (1, 1)))
        return p[:, 2:, 1:-1] * p[:, 1:-1, 2:] - p[:, :-2, 1:-1] * p[:, 1:-1, :-2]

    check(fn, ((200, 8, 40),), l2=1 << 13)


def test_most_of_a_strip_is_read_without_the_conditions_of_the_border() -> None:
    """Which rows are inside differs from strip to strip."""

    def fn(x: Any) -> Any:
        return edges(0.3 * x[..., 0] + 0.6 * x[..., 1] + 0.1 * x[..., 2])

    lowered = check(fn, ((70, 18, 3),))
    (each,) = all_ops(lowered.schedule, Each)
    first = next(op for op in each.body.ops if isinstance(op, Nest))
    low, high = inner_ranges(first)["i0"]
    (strip,) = [axis.name for axis in each.axes]
    assert symbols(low) == symbols(high) == {strip}


def test_windows_in_sums_read_neighbours_too() -> None:
    def fn(x: Any) -> Any:
        y = ts.reduce_window(padded(ts.exp(x), 2), -ts.inf, ts.maximum, (5, 5))
        return -ts.reduce_window(padded(-y, 2), -ts.inf, ts.maximum, (5, 5))

    check(fn, ((120, 28),), l2=1 << 13)


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5)])
def test_sums_over_windows_of_two_sizes(sizes: tuple[int, int]) -> None:
    """Their axes may have one name."""

    def fn(x: Any) -> Any:
        p = padded(ts.exp(x), 2)
        a, b = (ts.reduce_window(p, -ts.inf, ts.maximum, (n, 2))[: x.shape[0]] for n in sizes)
        return a - b

    check(fn, ((120, 28),), l2=1 << 13)


def test_merged_axes_are_split_where_rows_begin_lines() -> None:
    def blur(x: Any) -> Any:
        y = sum(x[:, i : i + 128] for i in range(3))
        return sum(y[i : i + 66] for i in range(5))

    check(blur, ((70, 130),), level="x86-64", l2=1 << 15)


def test_merged_axes_stay_merged_where_rows_do_not_begin_lines() -> None:
    def blur(x: Any) -> Any:
        y = sum(x[:, i : i + 125] for i in range(3))
        return sum(y[i : i + 66] for i in range(5))

    check(blur, ((70, 127),), level="x86-64", joined=0, l2=1 << 15)


def test_what_is_needed_elsewhere_is_stored() -> None:
    def fn(x: Any) -> tuple[Any, Any]:
        y = ts.exp(x)
        p = padded(y)
        return p, p[2:, 1:-1] - p[:-2, 1:-1]

    check(fn, joined=0)


def test_rows_that_are_read_from_everywhere_are_left_alone() -> None:
    def fn(x: Any) -> Any:
        p = padded(ts.exp(x))
        return p[2:, 1:-1] - p[:-2, 1:-1] + ts.flip(p, axis=0)[1:-1, 1:-1]

    check(fn, joined=0)


def test_few_rows_are_left_alone() -> None:
    check(edges, ((10, 300),), joined=0)


def test_in_a_loop() -> None:
    def fn(x: Any) -> Any:
        return ts.fori_loop(0, 3, lambda _, y: ts.sqrt(edges(y) + 1.0), x)

    check(fn)


def test_a_gradient() -> None:
    check(lambda x: ts.grad(lambda x: ts.sum(edges(x) ** 2))(x), ((90, 18),), dt.float64)


@pytest.mark.parametrize("fn", [edges, lambda x: box(box(x)), lambda x: box(ts.tanh(box(x)))])
def test_bits_are_those_of_kernels_one_after_the_other(
    fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(3).standard_normal((1080, 641)).astype(np.float32)
    x[0, 0], x[3, 5], x[-1, 7], x[500] = np.nan, np.inf, -np.inf, -0.0

    def bits(threads: int) -> bytes:
        with ts.config.update(threads=threads):
            found = ts.jit(lambda x: fn(x))
            assert "strips of rows" in found.lower(x).stage("schedule") or not is_held
            return np.asarray(found(x)).tobytes()

    is_held = True
    both = [bits(1), bits(3)]
    is_held = False
    monkeypatch.setattr(lowering, "hold_strips", lambda func, machine: func)
    assert both == [bits(2)] * 2


def test_accesses_are_checked() -> None:
    x = np.random.default_rng(4).standard_normal((1080, 641)).astype(np.float32)
    expected = np.asarray(ts.jit(lambda x: box(box(x)))(x))
    with ts.config.update(debug_bounds=True):
        found = np.asarray(ts.jit(lambda x: box(box(x)))(x))
    assert found.tobytes() == expected.tobytes()


def pipeline(seed: int) -> Any:
    """A few filters of an image, in a row and beside each other."""
    rng = np.random.default_rng(seed)
    steps = [(str(rng.choice(STEPS)), *map(int, rng.integers(0, 3, 3))) for _ in range(4)]

    def fn(x: Any) -> Any:
        y, before = x, x
        for name, a, b, c in steps:
            y, before = step(name, y, before, a, b, c), y
        return (y, before + 1.0) if steps[0][1] == 0 else y

    return fn


STEPS = ("padded", "cropped", "edges", "box", "windows", "columns", "both", "cosine", "shifted")


def step(name: str, x: Any, other: Any, a: int, b: int, c: int) -> Any:
    if name == "padded":
        return ts.pad(x, ((a, b), (c, a)), constant_values=float(c))
    if name == "cropped":
        return x[a : x.shape[0] - b, c:] * 2.0
    if name == "edges":
        return edges(x) if a else x[1:] - x[:-1]
    if name == "box":
        return box(x) if a else ts.where(x > 0, box(x), x)
    if name == "windows":
        return ts.reduce_window(x, -ts.inf, ts.maximum, (a + 1, b + 1))
    if name == "columns":
        return x - ts.mean(x, axis=1, keepdims=True) if a else x - ts.max(x, axis=0)
    if name == "both":
        rows, columns = [min(*pair) for pair in zip(x.shape, other.shape, strict=True)]
        return x[:rows, :columns] + other[:rows, :columns]
    if name == "cosine":
        return ts.cos(x) + x[::-1] if a else ts.cos(x)
    return ts.roll(x, (a, b), axis=(0, 1)) + x


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_random_pipelines(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "LEAST", 1)
    joined = 0
    for seed in range(first, first + 8):
        fn, shape = pipeline(seed), ((60 + seed % 7, 17 + seed % 5),)
        level = LEVELS[seed % len(LEVELS)]
        target = replace(machine(level), l2=(1024, 2048, 4096)[seed % 3], cores=2)
        graph, inputs = graph_of(fn, shape), values(shape)
        lowered = check_levels(graph, inputs, machine=target)
        joined += len([e for e in all_ops(lowered.schedule, Each) if "strips" in e.reason])
    assert joined
