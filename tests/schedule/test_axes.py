"""Merging and splitting of axes."""

from __future__ import annotations

from typing import Any

from tessera import dtypes as dt
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.generate import random_bits
from tessera.graph.ops.rearrange import broadcast, reshape, slice_, transpose
from tessera.ir.intexpr import sym
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.from_graph import Options, from_graph
from tests.schedule.lowering import all_ops, check, lowered, nests_of, traced, typed

S, T = sym("S"), sym("T")


def axes_of(fn: Any, *types: Any) -> list[str]:
    (nest,) = nests_of(lowered(fn, *types))
    assert all(a.stride(axis.name) is not None for a in accesses(nest) for axis in nest.axes)
    return [str(axis) for axis in nest.axes]


def test_contiguous_axes_are_one() -> None:
    assert axes_of(lambda x, y: e.add(x, y), typed(S, T, 4), typed(S, T, 4)) == ["i0: 4*S*T"]


def test_broadcasts_keep_axes_apart() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.add(x, broadcast(y, x.shape, (2,)))

    assert axes_of(fn, typed(S, T, 4), typed(4)) == ["i0: S*T", "i2: 4"]


def test_slices_keep_axes_apart() -> None:
    assert axes_of(lambda x: slice_(x, (0, 1), (8, 5)), typed(8, 6)) == ["i0: 8", "i1: 4"]


def test_transposes_merge_what_stays_together() -> None:
    func = lambda x: transpose(x, (2, 0, 1))  # noqa: E731
    assert axes_of(func, typed(2, 3, 4)) == ["i0: 4", "i1: 6"]


def test_reduction_axes_merge() -> None:
    func = check(lambda x: red.sum_(x, (1, 2)), typed(2, 3, 4))
    (reduce,) = all_ops(func, ops.Reduce)
    assert [str(a) for a in reduce.axes] == ["r0: 12"]


def test_random_bits_of_merged_axes() -> None:
    func = check(lambda k: random_bits(k, (3, 4)), typed(2, dtype=dt.uint32))
    (index,) = all_ops(func, ops.Index)
    assert str(index.expr) == "i0"


def test_digits_are_split() -> None:
    def fn(x: Any) -> Any:
        return reshape(transpose(x, (1, 0, 2)), (S, 24))

    assert axes_of(fn, typed(6, S, 4)) == ["i0: S", "i1a: 6", "i1b: 4"]


def test_short_columns_are_not_split() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = dot_general(x, w, ((1,), (0,)))
        return reshape(transpose(reshape(y, (4, 8, 3)), (0, 2, 1)), (4, 24))

    check(fn, typed(4, 5), typed(5, 24))


def test_split_and_merge_change_no_result() -> None:
    def fn(x: Any) -> Any:
        y = reshape(transpose(reshape(x, (4, 3, 2, 5)), (2, 0, 3, 1)), (8, 15))
        return y, red.sum_(y, (0,)), e.exp(reshape(y, (2, 60)))

    check(fn, typed(12, 10))


def test_strided_buffers_do_not_merge() -> None:
    strides = (sym("a"), 1)
    func = from_graph(traced(lambda x: e.exp(x), typed(S, T)), Options(strides=(strides,)))
    (nest,) = nests_of(func)
    assert len(nest.axes) == 2


def test_known_strides_merge() -> None:
    strides = (T, 1)
    func = from_graph(traced(lambda x: e.exp(x), typed(S, T)), Options(strides=(strides,)))
    (nest,) = nests_of(func)
    assert len(nest.axes) == 1
