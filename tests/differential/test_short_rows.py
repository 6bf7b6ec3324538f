"""Short rows that go through their passes together, and long ones of which the next is fetched: at
every level, with the bits of one row at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.ir.walk import walk
from tessera.schedule import next_rows, ops, short_rows
from tessera.target.machine import machine, supported_levels
from tessera.tile.ops import For
from tessera.tile.prefetch_ops import Prefetch
from tests.differential.levels import check_levels
from tests.differential.test_join_in_blocks import backward
from tests.differential.test_rows import gradient, layer_norm, logsumexp, moments, softmax
from tests.pairs import every_pair
from tests.schedule.lowering import all_ops, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
WIDE = LEVELS[-1]
RNG = np.random.default_rng(5)


def run(fn: Any, *types: Any, level: str = WIDE) -> Lowered:
    """Runs a program at all levels."""
    inputs = [(2 * RNG.standard_normal(t.shape)).astype(t.dtype.np) for t in types]
    return check_levels(traced(fn, *types), inputs, machine=machine(level))


def accesses(lowered: Lowered) -> list[ops.Load | ops.Store]:
    """What a program reads and writes."""
    return [*all_ops(lowered.schedule, ops.Load), *all_ops(lowered.schedule, ops.Store)]


def together(lowered: Lowered) -> int:
    """How many rows the nests of a program take together."""
    found = [
        op
        for op in all_ops(lowered.schedule, ops.Nest)
        if any(isinstance(x, ops.Reduce) for x in op.body.ops)
    ]
    return max([max(op.tile[:-1], default=1) for op in found if op.reduce_tile > 1], default=1)


@every_pair(
    ("level", LEVELS),
    ("shape", [(8, 64), (17, 33), (7, 16), (9, 200), (4, 8)]),
    ("fn", [softmax, layer_norm, gradient(softmax), gradient(layer_norm)]),
)
def test_passes_over_short_rows(fn: Any, shape: tuple[int, int], level: str) -> None:
    """Rows that are left over go one by one."""
    lowered = run(fn, typed(*shape), level=level)
    if level == "x86-64-v4":
        assert together(lowered) > 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(8, 64), (18, 33), (7, 16), (64, 300)])
@pytest.mark.parametrize("fn", [logsumexp, moments])
def test_reductions_of_short_rows(fn: Any, shape: tuple[int, int], level: str) -> None:
    run(fn, typed(*shape), level=level)


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "any"])
@pytest.mark.parametrize(
    "dtype", [dt.float64, dt.bfloat16, dt.float16, dt.int32, dt.int8, dt.bool_]
)
def test_lanes_of_all_kinds(name: str, dtype: dt.DType) -> None:
    shape = (16, 48)
    x = RNG.integers(0, 2, shape) if dtype is dt.bool_ else RNG.integers(-3, 4, shape)
    graph = traced(lambda x: getattr(ts, name)(x, axis=1), typed(*shape, dtype=dtype))
    check_levels(graph, [x.astype(dtype.np)], machine=machine(WIDE))


@pytest.mark.parametrize("columns", [16, 24, 64, 100])
@pytest.mark.parametrize("fn", [softmax, layer_norm, logsumexp, gradient(softmax), moments])
def test_bits_do_not_depend_on_the_place(fn: Callable[[Any], Any], columns: int) -> None:
    """Of equal rows, one of which is left over."""
    x = np.tile(RNG.standard_normal(columns).astype(np.float32), (18 if fn is logsumexp else 19, 1))
    found = ts.jit(fn)(x)
    for result in found if isinstance(found, tuple) else (found,):
        rows = np.asarray(result)
        assert rows.tobytes() == np.tile(rows[:1], (len(x), *[1] * (rows.ndim - 1))).tobytes()


def test_each_row_has_its_own_special_values() -> None:
    x = RNG.standard_normal((8, 40)).astype(np.float32)
    x[0, 3], x[1, 39], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4], x[5, 20] = -0.0, -np.nan
    graph = traced(lambda x: (softmax(x), *moments(x)), typed(8, 40))
    check_levels(graph, [x], machine=machine(WIDE))
    sums = np.asarray(ts.jit(moments)(x)[0])
    assert np.isnan(sums).tolist() == [True, False, False, False, False, True, False, False]
    assert np.asarray(ts.jit(lambda x: ts.max(x, axis=1))(x))[3] == -np.inf


def test_what_goes_alone() -> None:
    """One sum, rows at places that data tell, long rows, and searches."""
    assert together(run(lambda x: x / ts.sum(x, axis=1, keepdims=True), typed(8, 64))) == 1
    assert together(run(softmax, typed(8, 600))) == 1
    assert together(run(lambda x: softmax(x) * ts.argmax(x, axis=1)[:, None], typed(8, 64))) == 1
    types = (typed(30, 64), typed(8, dtype=dt.int32))
    places = RNG.integers(0, 30, 8).astype(np.int32)
    graph = traced(lambda x, at: softmax(ts.take(x, at, axis=0)), *types)
    inputs = [RNG.standard_normal((30, 64)).astype(np.float32), places]
    assert together(check_levels(graph, inputs, machine=machine(WIDE))) == 1


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="AVX-512 is not there")
def test_a_short_row_of_exponentials_is_one_step() -> None:
    lowered = run(gradient(softmax), typed(8, 64), level="x86-64-v4")
    widths = {op.reduce_tile for op in all_ops(lowered.schedule, ops.Nest) if op.reduce_tile > 1}
    assert widths == {64}


def test_far_rows_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    near = together(run(layer_norm, typed(16, 128)))
    monkeypatch.setattr(short_rows, "FAR", 1)
    monkeypatch.setattr(short_rows.streaming, "STREAM_BYTES", 1 << 10)
    assert near > together(run(layer_norm, typed(16, 128))) == 1


@every_pair(
    ("level", LEVELS),
    ("columns", [512, 700, 1001]),
    ("fn", [softmax, layer_norm, gradient(layer_norm)]),
)
def test_later_rows_are_fetched(
    fn: Any, columns: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read and what is written, two rows further on."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    lowered = run(fn, typed(5, columns), level=level)
    marked = [op for op in accesses(lowered) if op.ahead]
    assert {op.ahead for op in marked} == {2}
    assert any(isinstance(op, ops.Store) for op in marked)
    assert "@llvm.prefetch" in lowered.stage("llvm")


def caches(lowered: Lowered) -> set[str]:
    """How near what is fetched is kept: 3 is the first cache, 2 the second."""
    return set(re.findall(r"@llvm.prefetch.*, i32 (\d), i32 1\)", lowered.stage("llvm")))


@pytest.mark.parametrize(("columns", "ahead"), [(512, 4), (1001, 3), (3000, 2)])
def test_rows_of_several_arrays_come_to_the_second_cache(
    columns: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Zen, whose first one waits for few lines; those of one array come to the first one."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    plain = replace(machine("x86-64-v3"), l1=1 << 15, l2=1 << 20)
    zen = replace(plain, llvm_cpu="znver3")

    shapes = (typed(9, columns), typed(9, columns), typed(columns))
    inputs = [RNG.standard_normal(t.shape).astype(np.float32) for t in shapes]
    lowered = check_levels(traced(backward, *shapes), inputs, machine=zen)
    assert {op.ahead for op in accesses(lowered) if op.ahead} == {ahead}
    assert caches(lowered) == {"2"}
    assert caches(Lowered(traced(backward, *shapes), plain)) == {"3"}
    assert caches(Lowered(traced(logsumexp, typed(9, columns)), zen)) == {"3"}


@pytest.mark.parametrize(("columns", "cache"), [(64, "3"), (128, "2")])
def test_short_rows_that_are_read_and_written_come_to_the_first_cache(
    columns: int, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Zen, too; not those of two arrays that are read, nor longer ones."""
    monkeypatch.setattr(next_rows, "LARGE", 1 << 10)
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    zen = replace(machine("x86-64-v3"), llvm_cpu="znver3")
    shape = typed(35, columns)
    one, two = [Lowered(traced(fn, *types), zen) for fn, types in (
        (softmax, [shape]), (lambda x, y: softmax(x + y), [shape, shape]),
    )]  # fmt: skip
    assert together(one) > 1
    assert (caches(one), caches(two)) == ({cache}, {"2"})


@every_pair(
    ("level", LEVELS),
    ("columns", [64, 100]),
    ("fn", [softmax, layer_norm, logsumexp, gradient(softmax)]),
)
def test_short_rows_are_fetched(
    fn: Any, columns: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read and what is written, as many rows further on as 4 KB hold."""
    monkeypatch.setattr(next_rows, "LARGE", 1 << 10)
    lowered = run(fn, typed(35 if fn is not logsumexp else 32, columns), level=level)
    marked = [op for op in accesses(lowered) if op.ahead]
    if together(lowered) == 1:
        assert not marked
        return
    assert {op.ahead for op in marked} <= {4096 // (4 * columns) & -n for n in (1, 2, 4, 8)}
    assert len({op.buf for op in marked}) == len(marked) > 0
    assert any(isinstance(op, ops.Store) for op in marked) == (fn is not logsumexp)
    assert "@llvm.prefetch" in lowered.stage("llvm")


@pytest.mark.parametrize("l1", [8, 48])
def test_each_of_the_last_passes_fetches_one_array(
    l1: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a normalisation's gradient three; where there is no room the last one alone."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    shapes = (typed(72, 512), typed(72, 512), typed(512))
    inputs = [RNG.standard_normal(t.shape).astype(np.float32) for t in shapes]
    small = replace(machine(WIDE), l1=l1 << 10, l2=64 * 1024)
    lowered = check_levels(traced(backward, *shapes), inputs, machine=small)
    marks = [op.ahead for op in accesses(lowered) if op.ahead]
    bodies = [
        op.body.ops
        for func in lowered.tile.funcs.values()
        for op in walk(func.body)
        if isinstance(op, For)
    ]
    counts = [sum(isinstance(op, Prefetch) for op in body) for body in bodies]
    assert marks == ([2, 2, 2] if l1 > 8 else [1])
    assert sum(counts) == len(marks)
    assert max(counts) == 1


@pytest.mark.parametrize(("columns", "far"), [(512, 1 << 20), (100, 1 << 10), (9000, 1 << 10)])
def test_rows_that_are_near_short_or_too_long_are_not_fetched(
    columns: int, far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_rows, "FAR", far)
    lowered = run(layer_norm, typed(4, columns))
    assert not any(op.ahead for op in all_ops(lowered.schedule, ops.Load))


def places(x: Any) -> Any:
    return ts.argmax(x, axis=1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(67, 7), (65, 13), (81, 5), (71, 40)])
def test_rows_that_are_no_multiple_do_some_once_more(shape: tuple[int, int], level: str) -> None:
    """The last rows that go together begin among those before them."""
    for fn in (logsumexp, moments, places):
        run(fn, typed(*shape), level=level)
    if level != "x86-64-v4":
        return
    lowered = Lowered(traced(logsumexp, typed(*shape)), machine(level))
    assert together_of_all(lowered) == 8
    assert "fn=min" in str(lowered.tile)  # the place where a tile begins


def together_of_all(lowered: Lowered) -> int:
    """How many rows any nest of a program takes together."""
    return max(max(op.tile, default=1) for op in all_ops(lowered.schedule, ops.Nest))


def test_rows_that_read_what_lies_where_a_result_is_are_done_once() -> None:
    """`y[i]` may be in the memory of `b[i]`: no row is done once more."""
    def fn(x: Any, b: Any) -> Any:
        return ts.sum(x, axis=1) * b

    lowered = run(fn, typed(67, 7), typed(67))
    assert together_of_all(lowered) == 1
    assert together_of_all(run(fn, typed(64, 7), typed(64))) == 8


def test_few_rows_are_done_twice() -> None:
    """One in eight at most is done twice."""
    for rows, count in ((63, 4), (31, 2), (15, 1)):
        assert together_of_all(run(lambda x: ts.sum(x, axis=1), typed(rows, 7))) == count


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int32, dt.uint8])
def test_places_of_several_rows(dtype: dt.DType, level: str) -> None:
    """With equal elements and NaN; rows that are loops go one by one."""
    for count in (5, 16, 30, 300):
        x = RNG.integers(0, 4, (24, count)).astype(dtype.np)
        if dtype.is_float:
            x[::5, count // 2] = np.nan
        graph = traced(places, typed(24, count, dtype=dtype))
        check_levels(graph, [x], machine=machine(level))
    text = str(Lowered(traced(places, typed(24, 300)), machine(WIDE)).schedule)
    assert "rows together" not in text
    text = str(Lowered(traced(places, typed(24, 16)), machine(WIDE)).schedule)
    assert f"{8 if WIDE == 'x86-64-v4' else 4} rows together" in text


@pytest.mark.parametrize("length", [17, 128, 300])
@pytest.mark.parametrize("rows", [64, 67])
@pytest.mark.parametrize("level", LEVELS)
def test_rows_times_a_vector(level: str, rows: int, length: int) -> None:
    """Eight sums, each of a row, and what follows them in lanes; also where a step of a loop says
    what is added."""

    def fn(w: Any, h: Any, u: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            return c * 0.5, ts.tanh(w @ c + u[i])

        return ts.tanh(w @ h + 1), *ts.scan(step, h, ts.arange(3))

    for dtype in (dt.float32, dt.float64):
        types = [typed(*shape, dtype=dtype) for shape in ((rows, length), (length,), (3,))]
        inputs = [RNG.standard_normal(t.shape).astype(t.dtype.np) for t in types]
        lowered = check_levels(traced(fn, *types), inputs, machine=machine(level))
        # Rows are done once more only where nothing but the nest says where they are stored.
        assert str(lowered.schedule).count("8 rows together") == (2 if rows == 64 else 1)
