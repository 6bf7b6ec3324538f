"""Tile choices: which axis has the lanes, how large tiles and chunks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tessera import dtypes as dt
from tessera.config import config
from tessera.graph.ops import elementwise as e
from tessera.graph.ops import reduce as red
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.cumulative import CumSum
from tessera.graph.ops.elementwise_base import cast
from tessera.graph.ops.gather import Combine, gather, scatter
from tessera.graph.ops.generate import iota
from tessera.graph.ops.rearrange import broadcast, pad, reshape, reverse, transpose
from tessera.graph.trace import bind
from tessera.ir.intexpr import sym
from tessera.schedule import ops
from tessera.schedule.grains import GRAIN, grain_of
from tessera.schedule.heuristics import choose
from tessera.schedule.machines import CpuModel
from tessera.schedule.schedule import Schedule
from tessera.schedule.split import split_for_threads
from tests.schedule.lowering import lowered, nests_of, typed
from tests.schedule.test_fusion import normalise, softmax

S, T = sym("S"), sym("T")
SSE, AVX2, AVX512 = CpuModel(128, 16), CpuModel(256, 16), CpuModel(512, 32)


def chosen(fn: Callable[..., Any], *types: Any, machine: CpuModel = AVX512) -> ops.Nest:
    """The last nest of a function's program."""
    return nests_of(choose(lowered(fn, *types), machine))[-1]


def names(nest: ops.Nest) -> list[str]:
    return [axis.name for axis in nest.axes]


def add(x: Any, y: Any) -> Any:
    return e.add(x, y)


def matmul(x: Any, y: Any) -> Any:
    return dot_general(x, y, ((x.ndim - 1,), (0,)))


# --- elementwise ------------------------------------------------------------------------------


@pytest.mark.parametrize(("machine", "lanes"), [(SSE, 16), (AVX2, 32), (AVX512, 64)])
def test_light_bodies_use_four_vectors(machine: CpuModel, lanes: int) -> None:
    nest = chosen(add, typed(S, T), typed(S, T), machine=machine)
    assert nest.tile == (lanes,)
    assert nest.chunk == (16384,)
    assert "lanes along i0" in nest.reason


def chain(x: Any, y: Any, z: Any) -> Any:
    a = e.add(e.mul(x, y), z)
    b = e.sub(a, x)
    return e.add(e.mul(e.maximum(b, z), a), e.abs_(e.sub(y, b)))


@pytest.mark.parametrize(("machine", "lanes"), [(SSE, 8), (AVX2, 16), (AVX512, 64)])
def test_vectors_that_do_not_fit_the_registers_are_two(machine: CpuModel, lanes: int) -> None:
    """x, y, a, b and what is computed of them are alive at once."""
    assert chosen(chain, *[typed(S)] * 3, machine=machine).tile == (lanes,)


def test_conditions_are_tested_for_four_vectors_at_once() -> None:
    def fn(x: Any, y: Any) -> Any:
        return chain(pad(x, 0, [1], [1]), y, pad(x, 0, [2], [0]))

    types = typed(4094), typed(4096)
    assert chosen(fn, *types, machine=AVX2).tile == (32,)
    assert chosen(chain, types[1], types[1], types[1], machine=AVX2).tile == (16,)


def test_heavy_bodies_use_two_vectors() -> None:
    assert chosen(lambda x: e.tanh(x), typed(S)).tile == (32,)


def test_wide_elements_have_fewer_lanes() -> None:
    assert chosen(add, typed(S, dtype=dt.float64), typed(S, dtype=dt.float64)).tile == (32,)
    int8 = typed(S, dtype=dt.int8)
    assert chosen(add, int8, int8).tile == (256,)


def test_small_arrays_are_one_program() -> None:
    nest = chosen(add, typed(10, 10), typed(10, 10))
    assert nest.chunk == (0,)
    assert nest.tile == (64,)
    assert chosen(add, typed(3), typed(3)).tile == (4,)
    assert chosen(add, typed(), typed()).tile == ()


def test_broadcast_runs_along_the_rows() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.add(x, broadcast(y, x.shape, (1,)))

    nest = chosen(fn, typed(1000, 300), typed(300))
    assert nest.tile == (1, 64)
    assert nest.chunk == (53, 0)


def test_programs_take_equally_much() -> None:
    nest = chosen(lambda x: transpose(x, (1, 0)), typed(1000, 333))
    assert nest.chunk == (176, 256)
    assert grain_of(4, GRAIN / 3) == 2  # not three, which leaves one for the other thread
    assert grain_of(3, GRAIN / 3) == 0
    assert grain_of(15, GRAIN / 5) == 4  # nor three shares of five, for the same reason
    assert grain_of(90, GRAIN / 10) == 10


def test_short_rows_are_unrolled() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.add(x, broadcast(y, x.shape, (1,)))

    assert chosen(fn, typed(1000, 8), typed(8)).tile == (8, 8)


def test_lanes_follow_memory_not_the_order_of_axes() -> None:
    def fn(x: Any, y: Any) -> Any:
        return red.sum_(e.add(transpose(x, (1, 0, 2)), transpose(y, (1, 0, 2))), (2,))

    nest = chosen(fn, typed(400, 300, 3), typed(400, 300, 3))
    assert nest.reduce_tile == 1


def test_transposes_have_square_tiles() -> None:
    def fn(x: Any, y: Any) -> Any:
        return e.add(transpose(x, (1, 0)), transpose(y, (1, 0)))

    nest = chosen(fn, typed(T, S), typed(T, S))
    assert names(nest) == ["i1", "i0"]
    assert nest.tile == (16, 16)
    assert nest.chunk == (256, 256)
    assert chosen(fn, typed(3, 100), typed(3, 100)).tile == (4, 16)


def test_ordered_axes_stay_whole() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return scatter(x, u, (i,), (0,), Combine.ADD)

    nest = chosen(fn, typed(100, 64), typed(50, 64), typed(50, dtype=dt.int32))
    assert nest.ordered == ("i0",)
    assert nest.tile == (1, 64)
    assert nest.chunk[0] == 0


# --- reductions -------------------------------------------------------------------------------


def test_contiguous_reductions_have_lanes_along_them() -> None:
    nest = chosen(lambda x: red.sum_(x, (1,)), typed(500, 1000))
    assert (nest.tile, nest.reduce_tile) == ((1,), 64)
    assert nest.chunk == (32,)


def test_reductions_across_rows_have_lanes_along_columns() -> None:
    nest = chosen(lambda x: red.sum_(x, (0,)), typed(500, 1000))
    assert (nest.tile, nest.reduce_tile) == ((128,), 1)
    assert nest.chunk == (128,)
    assert chosen(lambda x: red.sum_(x, (0,)), typed(500, 4000)).tile == (256,)
    assert chosen(lambda x: red.sum_(e.exp(x), (0,)), typed(500, 4000)).tile == (32,)


def test_short_reductions_are_turned_in_squares() -> None:
    """Sums of pairs of columns, read along rows and stored along columns."""

    def fn(x: Any) -> Any:
        return red.sum_(reshape(transpose(x, (1, 0)), (64, 128, 2)), (2,))

    assert chosen(fn, typed(256, 64)).tile == (16, 16)


def test_reductions_go_downwards_too() -> None:
    nest = chosen(lambda x: red.min_(reverse(x, (1,)), (1,)), typed(512, 512))
    assert (nest.tile, nest.reduce_tile) == ((1,), 64)
    assert chosen(lambda x: red.min_(reverse(x, (1,)), (0,)), typed(512, 512)).reduce_tile == 1


def test_what_a_reduction_reads_once_does_not_count() -> None:
    def fn(x: Any, y: Any) -> Any:
        return red.argmin(e.mul(x, broadcast(y, (512, 512), (0,))), 1)

    assert chosen(fn, typed(512, 512), typed(512)).reduce_tile > 1


def test_short_reductions_are_not_worth_a_vector() -> None:
    assert chosen(lambda x: red.sum_(x, (1,)), typed(5000, 3)).reduce_tile == 1
    assert chosen(lambda x: red.sum_(x, (1,)), typed(5000, 6)).reduce_tile == 8


def test_full_reductions() -> None:
    assert chosen(lambda x: red.sum_(x), typed(S, T)).reduce_tile == 64


def test_scan_along_rows_and_columns() -> None:
    def fn(axis: int, reverse: bool = False) -> Callable[..., Any]:
        return lambda x: bind(CumSum, x, axis=axis, reverse=reverse)

    assert chosen(fn(0), typed(64, 256)).tile == (64,)
    assert chosen(fn(1), typed(64, 256)).tile == (1,)
    assert chosen(fn(1, True), typed(64, 256)).reduce_tile == 16


def test_scans_across_memory_are_in_squares() -> None:
    def fn(x: Any) -> Any:
        return bind(CumSum, transpose(x, (1, 0)), axis=1, reverse=False)

    nest = chosen(fn, typed(64, 256))
    assert (nest.tile, nest.reduce_tile) == ((16,), 16)


def test_long_code_is_turned_in_squares_too() -> None:
    assert chosen(lambda x: e.log1p(transpose(x, (1, 0))), typed(64, 256)).tile == (16, 16)


def test_what_does_not_depend_on_a_reduction_has_no_lanes_if_memory_does_not_run_there() -> None:
    """The sum of pairs of equal rows."""

    def fn(x: Any) -> Any:
        return red.sum_(broadcast(x, (64, 2, 256), (2,)), (1,))

    nest = chosen(fn, typed(256))
    assert dict(zip(names(nest), nest.tile, strict=True)) == {"i0": 1, "i1": 64}


def test_what_is_read_once_for_a_scan_does_not_count() -> None:
    def fn(x: Any, y: Any) -> Any:
        return bind(CumSum, e.add(x, broadcast(y, (64, 256), (0,))), axis=1, reverse=False)

    nest = chosen(fn, typed(64, 256), typed(64))
    assert (nest.tile, nest.reduce_tile) == ((1,), 16)


def weighted(x: Any, y: Any) -> Any:
    """x[c, k] * y[c, j, k], summed over k."""
    spread = broadcast(x, y.shape, (0, 2))
    return red.sum_(e.mul(spread, y), (2,))


def test_sums_that_read_the_same_elements_are_side_by_side() -> None:
    nest = chosen(weighted, typed(16, 50), typed(16, 3, 50))
    assert nest.tile == (1, 3)
    assert nest.reduce_tile == 64
    nest = chosen(weighted, typed(16, 50), typed(16, 3, 50), machine=AVX2)
    assert (nest.tile, nest.reduce_tile) == ((1, 3), 16)  # 10 registers for three sums


def test_sums_are_one_after_the_other_elsewhere() -> None:
    """Where they are many, threads have too few others, or nothing is read twice."""
    for c, j in ((16, 5), (4, 3)):
        assert chosen(weighted, typed(c, 50), typed(c, j, 50)).tile == (1, 1)
    assert chosen(lambda x: red.sum_(x, (2,)), typed(16, 3, 50)).tile[-1] == 1
    heavy = chosen(lambda x, y: e.exp(weighted(x, e.exp(y))), typed(16, 50), typed(16, 3, 50))
    assert heavy.tile == (1, 1)  # what exponentials compute with needs the registers


# --- contractions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("machine", "tile"), [(SSE, (4, 8)), (AVX2, (6, 16)), (AVX512, (12, 32))])
def test_accumulators_fill_the_registers(machine: CpuModel, tile: tuple[int, ...]) -> None:
    nest = chosen(matmul, typed(600, 512), typed(512, 512), machine=machine)
    assert nest.tile == tile
    assert all(c % t == 0 for c, t in zip(nest.chunk, tile, strict=True))


def test_block_rows_waste_little() -> None:
    assert chosen(matmul, typed(64, 64), typed(64, 64)).tile == (8, 32)
    assert chosen(matmul, typed(70, 64), typed(64, 64)).tile == (14, 32)
    assert chosen(matmul, typed(5, 64), typed(64, 64)).tile == (5, 32)
    assert chosen(matmul, typed(64, 64), typed(64, 10)).tile == (8, 16)


def test_symbolic_contraction() -> None:
    nest = chosen(matmul, typed(S, 64), typed(64, T))
    assert nest.tile == (8, 32)
    assert nest.chunk == (64, 512)


def test_batch_axes_are_the_grid() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    nest = chosen(fn, typed(6, 64, 64), typed(6, 64, 64))
    assert nest.tile == (1, 8, 32)
    assert nest.chunk == (1, 0, 0)


def test_few_rows_of_a_turned_operand_run_along_the_reduction() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (1,)))

    nest = chosen(fn, typed(3, 96), typed(300, 96))
    assert nest.tile == (1, 1)
    assert nest.reduce_tile == 64


@pytest.mark.parametrize(
    ("depth", "columns", "dtype", "costly", "turned"),
    [
        (16, 300, dt.float32, False, False),
        (16, 300, dt.float32, True, True),
        (16, 300, dt.bfloat16, False, True),  # converted at every step
        (512, 300, dt.float32, False, True),
        (512, 300, dt.int32, False, False),
        (512, 10, dt.float32, True, False),  # too few for a vector
    ],
)
def test_squares_of_a_turned_operand_with_long_columns(
    depth: int, columns: int, dtype: Any, costly: bool, turned: bool
) -> None:
    def fn(x: Any, y: Any) -> Any:
        found = dot_general(x, y, ((1,), (1,)))
        return e.tanh(found) if costly else found

    nest = chosen(fn, typed(3, depth, dtype=dtype), typed(columns, depth, dtype=dtype))
    assert ("in squares" in nest.reason) == turned


def test_vectors_along_pairs_that_a_row_is_added_to() -> None:
    def fn(x: Any, row: Any, pair: Any) -> Any:
        return e.add(e.add(x, columns(row, x)), columns(pair, x))

    def columns(x: Any, like: Any) -> Any:
        return broadcast(x, like.shape, tuple(range(3 - x.ndim, 3)))

    nest = chosen(fn, typed(300, 128, 2), typed(128, 2), typed(2))
    assert dict(zip(names(nest), nest.tile, strict=True)) == {"i0": 1, "i1": 16, "i2": 2}


def at_rows(x: Any, i: Any) -> Any:
    return gather(x, [i], [0])


@pytest.mark.parametrize(("columns", "lanes"), [(2, 2), (3, 4), (8, 8), (16, 16), (40, 64)])
def test_short_rows_at_computed_places_are_read_whole(columns: int, lanes: int) -> None:
    nest = chosen(at_rows, typed(1000, columns), typed(5000, dtype=dt.int32))
    assert nest.tile == (1, lanes)
    assert "whose rows are read at computed places" in nest.reason


@pytest.mark.parametrize(("columns", "whole"), [(3, False), (4, False), (16, True)])
def test_rows_whose_places_take_long_to_compute_are_gathered(columns: int, whole: bool) -> None:
    """Vectors have a place for each lane; one row after the other, each step is one of a number."""

    def fn(x: Any, at: Any) -> Any:
        for _ in range(6):
            at = e.sub(e.mul(at, 1.5), e.floor(at))
        return at_rows(x, e.cast(at, dt.int32))

    nest = chosen(fn, typed(1000, columns), typed(5000))
    assert ("whose rows are read at computed places" in nest.reason) == whole


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_short_rows_at_places_made_of_their_numbers_are_gathered(columns: int) -> None:
    """Nothing but what is gathered says along which axis lanes should go."""

    def fn(x: Any) -> Any:
        at = e.cast(iota((5000,), 0, dt.int32), dt.float32)
        for _ in range(6):
            at = e.sub(e.mul(at, 1.5), e.floor(at))
        return at_rows(x, e.cast(at, dt.int32))

    nest = chosen(fn, typed(1000, columns))
    assert [axis.name for axis in nest.axes] == ["i1", "i0"]
    assert nest.tile[-1] >= 8


def test_elements_at_computed_places_have_lanes_along_these() -> None:
    """Places that differ along a row, and long functions of what is read there."""
    nest = chosen(lambda x, i: gather(x, [i], [0]), typed(1000), typed(5000, 4, dtype=dt.int32))
    assert "computed places" not in nest.reason
    nest = chosen(
        lambda x, i: bind(e.Tanh, at_rows(x, i)), typed(1000, 3), typed(5000, dtype=dt.int32)
    )
    assert "computed places" not in nest.reason
    nest = chosen(
        lambda x, i: transpose(at_rows(x, i), (1, 0)), typed(1000, 3), typed(5000, dtype=dt.int32)
    )
    assert "computed places" not in nest.reason


def test_sums_of_rows_at_computed_places_have_lanes_along_the_rows() -> None:
    """What tells where rows are lies along the sum, and is read as numbers."""
    nest = chosen(
        lambda x, i: red.sum_(at_rows(x, i), (1,)), typed(1000, 100), typed(50, 10, dtype=dt.int32)
    )
    assert nest.tile == (1, 64)
    assert "lanes along i1, each with its own reduction" in nest.reason
    # What they are multiplied by lies along the sum, and is read as numbers, too.
    nest = chosen(
        lambda x, i, w: dot_general(w, at_rows(x, i), ((1,), (1,)), ((0,), (0,))),
        typed(1000, 100), typed(50, 10, dtype=dt.int32), typed(50, 10),
    )  # fmt: skip
    assert "lanes along i1, each with its own reduction" in nest.reason
    # Rows that are added up themselves are read along these.
    nest = chosen(
        lambda x, i: red.sum_(at_rows(x, i), (1,)), typed(1000, 100), typed(50, dtype=dt.int32)
    )
    assert "lanes along the reduction" in nest.reason


def test_short_rows_that_change_places_are_taken_by_lines() -> None:
    def tiles(rows: int, columns: int, few: int) -> list[int]:
        nest = chosen(lambda x: transpose(x, (1, 0, 2)), typed(rows, columns, few))
        return [nest.tile[names(nest).index(f"i{k}")] for k in range(3)]

    assert tiles(100, 64, 2) == [8, 8, 2]
    assert tiles(100, 64, 16) == [4, 4, 16]
    assert tiles(100, 3, 4) == [2, 8, 4]
    assert tiles(100, 64, 3) == [1, 8, 4]
    assert tiles(100, 64, 12) == [5, 4, 16]


def test_vectors_are_reductions() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (0,)))

    nest = chosen(fn, typed(300, 512), typed(512))
    assert (nest.tile, nest.reduce_tile) == ((8,), 16)
    # Of few rows, each has all registers.
    assert chosen(fn, typed(30, 512), typed(512)).reduce_tile == 64


# --- overrides --------------------------------------------------------------------------------


def test_schedules_override() -> None:
    func = lowered(matmul, typed(64, 64), typed(64, 64))
    (kernel,) = func.ops
    assert isinstance(kernel, ops.Kernel)
    schedule = Schedule(block=(4, 16), chunk=(10, 0), k=2)
    (nest,) = nests_of(choose(func, AVX512, {kernel.label: schedule}))
    assert (nest.tile, nest.chunk, nest.reduce_tile) == ((4, 16), (12, 0), 2)
    assert nest.reason == "as the schedule says"


def test_tiles_divide_chunks_always() -> None:
    for n in (1, 2, 3, 17, 1000, 5000, 70000):
        for m in (1, 3, 40, 3000):

            def fn(x: Any, y: Any) -> Any:
                z = e.add(x, broadcast(y, x.shape, (1,)))
                return e.tanh(z), red.sum_(z, (0,)), red.max_(z, (1,))

            for machine in (SSE, AVX512):
                for nest in nests_of(choose(lowered(fn, typed(n, m), typed(m)), machine)):
                    nest.verify()
                    assert len(nest.tile) == len(nest.chunk) == len(nest.axes)


# --- work that threads share ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 20, 999_983])
def test_long_reductions_are_parts_that_threads_share(size: int) -> None:
    func = split_for_threads(lowered(red.sum_, typed(size)), 2)
    *parts, total = nests_of(func)
    (axis,) = parts[0].axes
    assert total.axes == ()
    assert isinstance(axis.extent, int)
    assert 8 <= axis.extent <= 64
    assert len(parts) == (1 if size % axis.extent == 0 else 2)
    assert nests_of(choose(func, AVX512))[0].grain > 0


def test_reductions_of_many_rows_and_short_ones_are_not_split() -> None:
    for shape in ((100, 5000), (20_000,)):
        func = lowered(lambda x: red.sum_(x, (x.ndim - 1,)), typed(*shape))
        assert str(split_for_threads(func, 2)) == str(func)


def test_columns_of_large_arrays_are_added_up_some_rows_at_a_time() -> None:
    """Whatever the next program reads is then near: rows in the second cache."""

    def sums(x: Any, y: Any) -> Any:
        return red.sum_(x, (0,)), red.sum_(e.mul(x, y), (0,))

    for rows, parts in ((4096, 32), (4000, 31), (1024, 0)):
        func = lowered(sums, *[typed(rows, 1024)] * 2)
        first = nests_of(split_for_threads(func, 2))[0]
        assert (len(first.axes) > 1) is bool(parts)
        if parts:
            assert first.axes[0].extent == parts
        # Lines of 8 vectors: what is read has a part of the registers, as each of two sums.
        tiles = nests_of(choose(split_for_threads(func, 2), AVX512))[0].tile
        assert tiles[-1] == 128
        one = lowered(lambda x: (red.sum_(x, (0,)), red.max_(x, (0,))), typed(rows, 1024))
        assert nests_of(choose(split_for_threads(one, 2), AVX512))[0].tile[-1] == 256


def test_large_results_are_written_past_the_caches() -> None:
    few, many = 1 << 25, 3 << 24

    def streams(fn: Callable[..., Any], *types: Any) -> list[bool]:
        found = chosen(fn, *types).body.ops
        return [bool(op.streaming) for op in found if isinstance(op, ops.Store)]

    for threads, least in ((1, few), (2, many), (5, many)):
        with config.update(threads=threads):
            assert streams(add, typed(least // 12 + 1), typed(least // 12 + 1)) == [True]
            assert streams(add, typed(least // 12 - 1), typed(least // 12 - 1)) == [False]
    # Of symbolic sizes it shows when it runs.
    assert streams(add, typed(S), typed(S)) == [True]
    (store,) = [op for op in chosen(add, typed(S), typed(S)).body.ops if isinstance(op, ops.Store)]
    assert store.least == 12 * S - (few if config.threads == 1 else many)
    assert streams(lambda x: red.sum_(x, (1,)), typed(S, 4096)) == [False]
    assert streams(lambda x: red.sum_(x, (1,)), typed(1 << 24, 2)) == [False]

    # So is what follows passes over a row, unless a long row of the result is of use before.
    def rows(n: int) -> tuple[Any, ...]:
        return typed(1 << 12, n), typed(n), typed(n)

    assert streams(normalise, *rows(1 << 11)) == [True]
    assert streams(normalise, *rows(1 << 9)) == [False]
    assert streams(softmax, typed(1 << 12, 1 << 11)) == [True]
    assert streams(softmax, typed(1 << 12, 1 << 12)) == [False]


def test_numbers_that_all_lanes_share_are_no_reason_to_gather_others() -> None:
    def largest(x: Any, scale: Any, shift: Any) -> Any:
        return red.max_(normalise(x, scale, shift), (0,))

    nest = chosen(largest, typed(1024, 16), typed(16), typed(16))
    assert (nest.tile, nest.reduce_tile) == ((16,), 1)


def test_what_is_stored_along_rows_does_not_follow_reductions_down_columns() -> None:
    def spread(x: Any) -> Any:
        return broadcast(reshape(red.argmax(x, 0), (16, 1)), (16, 1024), (0, 1))

    assert len(nests_of(lowered(spread, typed(1024, 16)))) == 2
    assert len(nests_of(lowered(lambda x: spread(transpose(x, (1, 0))), typed(16, 1024)))) == 1


def test_what_is_the_same_everywhere_has_no_lanes() -> None:
    """Bytes that are shifted by a number in int64 fill vectors; a float64 that scales does."""

    def shifted(x: Any, n: Any) -> Any:
        return e.shl(x, broadcast(cast(n, dt.uint8), x.shape, ()))

    def scaled(x: Any, a: Any) -> Any:
        return e.mul(x, broadcast(cast(a, dt.float32), x.shape, ()))

    types = typed(1000, dtype=dt.uint8), typed(dtype=dt.int64)
    assert chosen(shifted, *types).tile == (256,)
    types = typed(1000, dtype=dt.float32), typed(dtype=dt.float64)
    assert chosen(scaled, *types).tile == (64,)
    # What is converted at each point does count.
    assert chosen(lambda x: cast(x, dt.float64), typed(1000)).tile == (32,)
