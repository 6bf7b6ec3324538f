"""Sums over the rows of large operands, which are read in order: at every level, and for any number
of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.reduce import max_, min_, sum_
from tessera.ir.order import Tree
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import ops, read_in_order
from tessera.target.machine import Machine, machine, supported_levels
from tests.differential.levels import check_levels, with_pairs
from tests.pairs import every_pair
from tests.schedule.lowering import all_ops, traced, typed
from tests.tolerance import assert_close

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


def check(
    fn: Any, *types: Any, level: str = "x86-64-v3", cut: bool | None = True
) -> Lowered:
    """Runs a program at all levels, on a machine with a second cache of 32 KiB; its depth is cut or
    not, if that is asked."""
    graph = traced(fn, *types)
    rng = np.random.default_rng(5)
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    lowered = check_levels(graph, inputs, machine=replace(machine(level), l2=32 * 1024))
    is_cut = any(nest.ordered for nest in all_ops(lowered.schedule, ops.Nest))
    assert cut is None or is_cut is cut
    return lowered


def product(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((1,), (0,)))


@pytest.mark.parametrize("level", LEVELS)
def test_one_row(level: str) -> None:
    check(product, typed(1, 131), typed(131, 530), level=level)


@pytest.mark.parametrize("rows", [2, 8, 13])
def test_few_rows(rows: int) -> None:
    check(product, typed(rows, 65), typed(65, 515))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [2, 8, 11])
def test_few_rows_are_read_in_strips(
    rows: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the first cache holds beside their sums; of two rows as much as their sums alone."""
    monkeypatch.setattr(read_in_order, "STRIP_BYTES", 8192)
    lowered = check(product, typed(rows, 65), typed(65, 1100), level=level)
    (nest,) = [n for n in all_ops(lowered.schedule, ops.Nest) if n.ordered]
    assert (nest.chunk[-1] <= 256) is (rows > 2)
    # As many rows as the registers hold, alike in all blocks.
    has_many = machine(level).registers == 32
    assert nest.tile[-2] == {2: 2, 8: 8 if has_many else 4, 11: 11 if has_many else 6}[rows]


def test_narrow_numbers_are_read_in_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_in_order, "STRIP_BYTES", 16384)

    def fn(x: Any, y: Any) -> Any:
        return product(x, e.cast(y, dt.float32))

    lowered = check(fn, typed(4, 65), typed(65, 2100, dtype=dt.int8))
    (nest,) = [n for n in all_ops(lowered.schedule, ops.Nest) if n.ordered]
    assert nest.chunk[-1] > 512


def test_many_rows_are_blocks_of_registers() -> None:
    check(product, typed(17, 64), typed(64, 515), cut=False)


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.float16, dt.int8, dt.int32])
def test_dtypes(dtype: dt.DType) -> None:
    columns = 2048 // dtype.itemsize + 2
    check(product, typed(1, 66, dtype=dtype), typed(66, columns, dtype=dtype))
    check(product, typed(2, 66, dtype=dtype), typed(66, columns, dtype=dtype))


def test_a_wide_operand_is_read_in_strips() -> None:
    lowered = check(product, typed(1, 64), typed(64, 8500))
    (nest,) = [n for n in all_ops(lowered.schedule, ops.Nest) if n.ordered]
    assert nest.chunk[-1] > 0


def test_a_row_of_a_turned_operand() -> None:
    """A vector from the right, of a matrix that lies turned."""
    check(lambda x, y: dot_general(x, y, ((0,), (0,))), typed(128, 530), typed(128, 1))


def test_batches_share_nothing() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    check(fn, typed(3, 1, 70), typed(3, 70, 515))
    check(fn, typed(3, 2, 70), typed(3, 70, 515))


def test_prologue_and_epilogue() -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = product(x, e.add(y, 1.0))
        return e.tanh(e.add(z, broadcast(bias, z.shape, (1,)))), e.neg(z)

    lowered = check(fn, typed(1, 131), typed(131, 530), typed(530))
    assert len(lowered.kernels()) == 1


@pytest.mark.parametrize(("rows", "level"), [(2, "x86-64-v3"), (7, LEVELS[-1]), (5, LEVELS[0])])
def test_lanes_along_the_depth(rows: int, level: str) -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = dot_general(x, y, ((1,), (1,)))
        return e.add(z, broadcast(bias, z.shape, (1,)))

    types = [typed(rows, 515), typed(17, 515), typed(17)]
    lowered = check(fn, *types, level=level, cut=False)
    assert "lanes along the depth" in lowered.kernels()[0].reason
    # With the large operand on the left.
    types = [types[1], types[0], typed(rows)]
    lowered = check(fn, *types, level=level, cut=False)
    assert "lanes along the depth" in lowered.kernels()[0].reason


@pytest.mark.parametrize("level", LEVELS)
def test_lanes_along_more_rows_than_half_of_them(level: str) -> None:
    lowered = check(product, typed(33, 515), typed(515, 15), level=level, cut=None)
    assert "lanes along the depth" not in str([info.reason for info in lowered.kernels()])


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="needs 16 lanes")
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
def test_a_small_operand_is_copied_along_the_depth(dtype: dt.DType) -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = product(x, e.cos(y))
        return e.add(z, broadcast(bias, z.shape, (1,)))

    types = [typed(33, 515, dtype=dtype), typed(515, 8, dtype=dtype), typed(8, dtype=dtype)]
    lowered = check(fn, *types, level="x86-64-v4", cut=False)
    assert "lanes along the depth" in str([info.reason for info in lowered.kernels()])


@pytest.mark.parametrize("level", [name for name in LEVELS if name != "x86-64"])
@pytest.mark.parametrize("columns", [2, 3, 6, 7])
def test_few_columns_are_copied_along_the_depth(columns: int, level: str) -> None:
    """Those that would fill few lanes, and all where the other operand is computed for each."""
    types = [typed(70, 130), typed(130, columns)]
    few = {"x86-64-v3": 3, "x86-64-v4": 6}[level]
    for fn, most in ((product, few), (lambda x, y: product(e.mul(x, 0.5), y), 7)):
        lowered = check(fn, *types, level=level, cut=None)
        reasons = str([info.reason for info in lowered.kernels()])
        assert ("lanes along the depth" in reasons) is (columns <= most)
    lowered = check(product, typed(60, 130), typed(130, columns), level=level, cut=None)
    assert "lanes along the depth" not in str([info.reason for info in lowered.kernels()])


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="needs 16 lanes")
def test_what_stands_before_a_product_with_lanes_along_the_depth() -> None:
    def fn(x: Any, y: Any) -> Any:
        return product(e.maximum(x, 0.0), e.maximum(y, 0.0))

    lowered = check(fn, typed(33, 515), typed(515, 8), level="x86-64-v4", cut=None)
    assert "lanes along the depth" in str([info.reason for info in lowered.kernels()])


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.int8])
def test_dtypes_of_lanes_along_the_depth(dtype: dt.DType) -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (2,)), ((0,), (0,)))

    many = 64 // dtype.itemsize + 1
    check(fn, typed(2, 2, 512, dtype=dtype), typed(2, many, 512, dtype=dtype), cut=False)


def test_sum_over_rows() -> None:
    check(lambda x: sum_(x, (0,)), typed(131, 530))


@pytest.mark.parametrize(
    "dtype", [dt.float32, dt.float64, dt.float16, dt.bfloat16, dt.int32, dt.uint8]
)
def test_extremes_over_rows(dtype: dt.DType) -> None:
    columns = 2048 // dtype.itemsize + 2
    check(lambda x: max_(x, (0,)), typed(66, columns, dtype=dtype))
    check(
        lambda x: e.neg(min_(e.add(x, x), (0,))), typed(66, columns, dtype=dtype), level=LEVELS[-1]
    )


@pytest.mark.parametrize("level", LEVELS)
def test_extremes_of_infinities_and_nan(level: str) -> None:
    x = np.random.default_rng(0).standard_normal((71, 530)).astype(np.float32)
    x[3, 5], x[70, 6], x[64, 529] = np.nan, np.nan, -np.inf
    x[:, 7], x[:, 8] = -np.inf, np.inf
    for fn in (max_, min_):
        graph = traced(lambda x, fn=fn: fn(x, (0,)), typed(71, 530))
        check_levels(graph, [x], machine=replace(machine(level), l2=32 * 1024))


def test_infinities_and_nan_stay_where_they_are() -> None:
    x, y = np.ones((1, 131), np.float32), np.ones((131, 530), np.float32)
    y[3, 5], y[130, 6], y[64, 529] = np.inf, np.nan, -np.inf
    graph = traced(product, typed(1, 131), typed(131, 530))
    check_levels(graph, [x, y], machine=replace(machine("x86-64-v3"), l2=32 * 1024))


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(0)
    for rows in (1, 5):
        x = rng.standard_normal((rows, 1100)).astype(np.float32)
        y = rng.standard_normal((1100, 2500)).astype(np.float32)
        f = ts.jit(lambda x, y: ts.tanh(x @ y))
        assert "rows read side by side" in str(f.lower(x, y).stage("schedule"))
        found: list[np.ndarray] = []
        for threads in (1, 2, 3):
            with ts.config.update(threads=threads):
                found.append(np.asarray(f(x, y)))
        assert_close(found[0], np.tanh(x @ y), length=1100)
        assert all(np.array_equal(found[0], one) for one in found[1:])


AMX = machine("x86-64-v4-amx")
GROUPS = replace(with_pairs(), l2=32 * 1024)
"""A machine that adds products of neighbours at once; interpreters run its code anywhere."""

PAIRS = replace(machine("x86-64-v3"), l2=32 * 1024)
"""One that adds those of two int16, and no more."""

NARROW = {
    "in place": lambda x, y: product(x, y),
    "turned": lambda x, y: dot_general(x, y, ((0,), (0,))),
    "computed": lambda x, y: product(e.add(x, x), y),
    "from the right": lambda x, y: dot_general(y, x, ((0,), (1,))),
    "and followed": lambda x, y: e.neg(product(x, y)),
}


@every_pair(
    ("target", [GROUPS, PAIRS]),
    ("name", NARROW),
    ("dtype", [dt.bfloat16, dt.int8, dt.uint8]),
)
def test_few_rows_of_narrow_numbers(
    dtype: dt.DType, name: str, target: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours along the depth are mixed as they are read, and added by one instruction."""

    def fn(x: Any, y: Any) -> Any:
        wide = [v if dtype is dt.bfloat16 else e.cast(v, dt.int32) for v in (x, y)]
        return NARROW[name](*wide)

    monkeypatch.setattr(read_in_order, "LEAST_BYTES", 512)
    small = (66, 5) if name == "turned" else (5, 66)
    types = [typed(*small, dtype=dtype), typed(66, 512 // dtype.itemsize + 2, dtype=dtype)]
    rng = np.random.default_rng(6)
    inputs = [
        rng.choice([np.iinfo(t.dtype.np).min, 1, np.iinfo(t.dtype.np).max], t.shape)
        if dtype.is_integer
        else rng.standard_normal(t.shape)
        for t in types
    ]
    arrays = [x.astype(dtype.np) for x in inputs]
    lowered = check_levels(traced(fn, *types), arrays, machine=target)
    nests = [nest for nest in all_ops(lowered.schedule, ops.Nest) if nest.ordered]
    # Numbers that are computed first are no narrow ones.
    is_wide = name == "computed" if dtype.is_integer else target is PAIRS
    count = 1 if is_wide else 2
    assert [nest.reduce_tile for nest in nests] == [count]
    assert ("target.dot_groups" in str(lowered.target)) is (count > 1)


@pytest.mark.parametrize("rows", [2, 4, 5, 7, 8, 13])
def test_rows_of_bytes_that_are_not_packed(rows: int) -> None:
    """Packed operands have four products added at once, so that few rows alone are read in order;
    more of them where the other operand is in memory."""
    graph = traced(
        lambda x, y: product(e.cast(x, dt.int32), e.cast(y, dt.int32)),
        typed(rows, 64, dtype=dt.int8),
        typed(64, 2050, dtype=dt.int8),
    )
    small = replace(GROUPS, l2=8 * 1024)
    for target, most in ((GROUPS, 7), (small, 16), (replace(small, features=AMX.features), 4)):
        lowered = Lowered(graph, target)
        is_in_order = any(nest.ordered for nest in all_ops(lowered.schedule, ops.Nest))
        assert is_in_order is (rows <= most)


@pytest.mark.parametrize("rows", [2, 7, 8, 13])
def test_rows_of_pairs_that_are_not_packed(rows: int) -> None:
    """As many as those of groups of four; rows need not be as long."""

    def fn(x: Any, y: Any) -> Any:
        return product(e.cast(x, dt.int32), e.cast(y, dt.int32))

    types = [typed(rows, 66, dtype=dt.int8), typed(66, 514, dtype=dt.int8)]
    rng = np.random.default_rng(6)
    inputs = [rng.choice([-128, 1, 127], t.shape).astype(np.int8) for t in types]
    graph = traced(fn, *types)
    lowered = check_levels(graph, inputs, machine=PAIRS)
    assert any(nest.ordered for nest in all_ops(lowered.schedule, ops.Nest)) is (rows <= 7)
    assert "target.dot_groups" in str(lowered.target)
    # More rows are packed for groups of four.
    lowered = check_levels(graph, inputs, machine=GROUPS)
    assert [n.reduce_tile for n in all_ops(lowered.schedule, ops.Nest) if n.ordered] == (
        [2] if rows <= 7 else []
    )


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16])
def test_a_small_narrow_operand_is_widened_once(dtype: dt.DType, rows: int) -> None:
    """Before it is multiplied with each block of the large one."""
    lowered = check(product, typed(rows, 66, dtype=dtype), typed(66, 1026, dtype=dtype))
    (nest,) = [nest for nest in all_ops(lowered.schedule, ops.Nest) if nest.ordered]
    loads = [op for op in walk(nest.body) if isinstance(op, ops.Load)]
    (small,) = [op for op in loads if op.buf.type.shape[:2] == (rows, 66)]
    assert small.result.type == ScalarType(dtype if rows == 1 else dt.float32)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16])
def test_narrow_numbers_have_lanes_along_the_depth(dtype: dt.DType, rows: int) -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (1,)))

    types = [typed(rows, 516, dtype=dtype), typed(70, 516, dtype=dtype)]
    lowered = check(fn, *types, cut=False)
    products = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Contract)]
    assert [op.order.tree for op in products if op.order] == [Tree.HALVES]
