"""Windows that are taken from rows in registers: at every level, for windows and rows of any size,
with the bits of those that are read from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import dtypes as dt
from tessera import lowering, pytree
from tessera.compile import Lowered
from tessera.dtypes import DType, float32
from tessera.ir.core import Func
from tessera.schedule import ops
from tessera.schedule.window_ops import WindowLoad
from tessera.target.machine import Machine, machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.pairs import every_pair
from tests.schedule.lowering import all_ops, labels

pytestmark = pytest.mark.skipif(
    "x86-64-v4" not in supported_levels(), reason="registers of 512 bits"
)
V4 = machine("x86-64-v4")


def convolve(x: Any, w: Any, **options: Any) -> Any:
    strides, padding = (1,) * (x.ndim - 2), options.pop("padding", "SAME")
    return ts.conv_general(x, w, strides, padding, feature_group_count=x.shape[1], **options)


def loss(x: Any, w: Any) -> Any:
    return ts.sum(convolve(x, w) ** 2)


def gradients(x: Any, w: Any) -> Any:
    return ts.grad(loss, argnums=(0, 1))(x, w)


def with_options(**options: Any) -> Any:
    """The same with options."""

    def fn(x: Any, w: Any) -> Any:
        return convolve(x, w, **options)

    return fn


def check(
    fn: Any, shapes: Sequence[tuple[int, ...]], dtype: DType = float32, target: Machine = V4
) -> Func:
    """Runs a program at all levels."""
    graph, inputs = graph_of(fn, shapes, dtype), values(shapes, dtype)
    return check_levels(graph, inputs, machine=target).schedule


@pytest.mark.parametrize("side", [1, 2, 7, 16, 17, 33])
def test_rows_of_any_length(side: int) -> None:
    func = check(convolve, ((2, 3, side, side), (3, 1, 3, 3)))
    if side > 2:
        assert labels(func) == ["sum_windows_mul"]  # there is no padded copy
        assert len(all_ops(func, WindowLoad)) == 1


@pytest.mark.parametrize("length", [63, 64, 65, 128, 129, 200, 300])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 0), (3, 1))])
def test_rows_of_several_tiles(length: int, padding: Any) -> None:
    check(with_options(padding=padding), ((1, 2, 3, length), (2, 1, 3, 5)))


@pytest.mark.parametrize("window", [(1, 3), (3, 1), (2, 2), (5, 5), (4, 7), (7, 7)])
def test_windows_of_any_size(window: tuple[int, int]) -> None:
    check(convolve, ((1, 2, 9, 20), (2, 1, *window)))
    check(gradients, ((2, 3, 9, 20), (3, 1, *window)))


def test_windows_along_one_dim_and_three() -> None:
    check(convolve, ((2, 3, 40), (3, 1, 4)))
    check(gradients, ((2, 3, 40), (3, 1, 4)))
    check(convolve, ((1, 2, 4, 5, 20), (2, 1, 3, 3, 3)))


@pytest.mark.parametrize("dilation", [(1, 2), (2, 3), (1, 40)])
def test_windows_with_gaps(dilation: tuple[int, int]) -> None:
    check(with_options(rhs_dilation=dilation), ((1, 2, 6, 50), (2, 1, 3, 3)))


@pytest.mark.parametrize("padding", [((0, 2), (-1, 1)), ((3, 3), (4, 4)), ((-1, -1), (-2, 3))])
def test_rows_that_are_cut_or_more_than_padded(padding: Any) -> None:
    check(with_options(padding=padding), ((1, 2, 6, 20), (2, 1, 3, 3)))


@every_pair(
    ("shape", [(2, 3, 6, 20), (1, 2, 7, 57), (1, 2, 3, 140), (1, 1, 4, 300)]),
    ("window", [(3, 3), (2, 2), (5, 7)]),
    ("padding", ["SAME", ((1, 1), (1, 1)), ((0, 2), (3, 4))]),
)
def test_every_second_window(shape: Any, window: Any, padding: Any) -> None:
    def strided(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, (2, 2), padding, feature_group_count=x.shape[1])

    func = check(strided, (shape, (shape[1], 1, *window)))
    assert len(all_ops(func, WindowLoad)) == 1


def test_gradients_of_every_second_window() -> None:
    def fn(x: Any, w: Any) -> Any:
        return ts.sum(ts.conv_general(x, w, (2, 2), "SAME", feature_group_count=x.shape[1]) ** 2)

    for side in (9, 20, 56):
        check(ts.grad(fn, argnums=(0, 1)), ((2, 3, side, side), (3, 1, 3, 3)))


@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16, dt.int32, dt.int8])
def test_other_dtypes(dtype: DType) -> None:
    check(convolve, ((2, 3, 5, 21), (3, 1, 3, 3)), dtype)


@pytest.mark.parametrize(
    "shape",
    [(2, 3, 8, 20), (2, 3, 5, 56), (1, 2, 3, 70), (3, 2, 1, 9), (1, 2, 4, 140), (2, 1, 6, 300)],
)
def test_gradients(shape: tuple[int, ...]) -> None:
    check(gradients, (shape, (shape[1], 1, 3, 3)))


def test_work_around_windows_is_fused_as_elsewhere() -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return ts.maximum(convolve(ts.exp(x), w) + b, 0.0)

    check(fn, ((2, 3, 6, 20), (3, 1, 3, 3), (3, 1, 1)))


def test_a_copy_that_somebody_else_reads_stays() -> None:
    def fn(x: Any, w: Any) -> Any:
        padded = ts.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return padded, convolve(padded, w, padding="VALID")

    func = check(fn, ((2, 3, 6, 20), (3, 1, 3, 3)))
    assert len(all_ops(func, WindowLoad)) == 1
    assert all_ops(func, WindowLoad)[0].length == 22


def every_second(x: Any, w: Any) -> Any:
    return ts.conv_general(x, w, (2, 2), "SAME", feature_group_count=x.shape[1])


@pytest.mark.parametrize("fn", [convolve, gradients, every_second])
def test_bits_are_those_of_windows_in_memory(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((2, 3, 9, 56), (3, 1, 3, 3))
    graph, inputs = graph_of(fn, shapes, float32), values(shapes, float32)
    inputs[0][0, 0, 0, :5] = [np.inf, np.nan, -0.0, -np.inf, 1e-40]

    def run() -> list[np.ndarray]:
        executable = Lowered(graph, V4).executable()
        found = executable.run_on(inputs, ())
        for threads in (1, 2, 3):
            with ts.config.update(threads=threads):
                for a, b in zip(executable.run_on(inputs, ()), found, strict=True):
                    np.testing.assert_array_equal(a, b)
        return found

    found = run()

    def as_it_is(func: Func, _: Machine) -> Func:
        return func

    monkeypatch.setattr(lowering, "take_windows", as_it_is)
    for a, b in zip(found, run(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_machines_read_windows_from_memory() -> None:
    shapes = ((2, 3, 6, 20), (3, 1, 3, 3))
    func = check(convolve, shapes, target=machine("x86-64-v3"))
    assert not all_ops(func, WindowLoad)


def test_places_that_are_not_neighbours_are_read_as_elements() -> None:
    def strided(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, (1, 3), "SAME", feature_group_count=x.shape[1])

    assert not all_ops(check(strided, ((2, 3, 6, 20), (3, 1, 3, 3))), WindowLoad)

    def pool(x: Any) -> Any:
        return ts.reduce_window(x, -np.inf, ts.maximum, (1, 1, 3, 3), padding="SAME")

    assert not all_ops(check(pool, ((2, 3, 6, 20),)), WindowLoad)


def test_rows_are_under_way_together() -> None:
    for shape, rows in (((1, 1, 14, 14), 7), ((1, 1, 56, 56), 2), ((1, 1, 28, 28), 4)):
        graph = graph_of(convolve, (shape, (1, 1, 3, 3)), float32)
        (nest,) = all_ops(Lowered(graph, V4).schedule, ops.Nest)
        assert nest.tile[-2] == rows


@pytest.mark.parametrize("fn", [convolve, gradients, every_second])
@pytest.mark.parametrize("length", [20, 70, 300])
def test_bounds_are_checked(fn: Any, length: int) -> None:
    inputs = values(((1, 2, 5, length), (2, 1, 3, 5)), float32)
    plain = ts.jit(fn)(*inputs)
    with ts.config.update(debug_bounds=True):
        found = ts.jit(fn)(*inputs)
    for a, b in zip(pytree.leaves(found), pytree.leaves(plain), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_window(data: st.DataObject) -> None:
    shape = (1, 2, data.draw(st.integers(1, 6)), data.draw(st.integers(1, 90)))
    window = (2, 1, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)))
    sides = st.tuples(st.integers(-1, 4), st.integers(-1, 4))
    padding = (data.draw(sides), data.draw(sides))
    dilation = (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3)))
    tall, wide = (n + sum(p) for n, p in zip(shape[2:], padding, strict=True))
    if any(n <= d * (k - 1) for n, d, k in zip((tall, wide), dilation, window[2:], strict=True)):
        return
    target = replace(V4, l2=data.draw(st.sampled_from([4096, 1 << 20])))
    fn = with_options(padding=padding, rhs_dilation=dilation)
    check(fn, (shape, window), target=target)
