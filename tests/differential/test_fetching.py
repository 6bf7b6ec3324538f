"""Rows of large arrays that are fetched ahead, those at places that data tell and those beside
products: at every level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.errors import ParseError
from tessera.ir.intexpr import evaluate, sym
from tessera.ir.parser import parse_func
from tessera.schedule import fetching, next_rows, ops, streaming
from tessera.schedule.prefetch_ops import Prefetch
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.schedule.lowering import all_ops, traced, typed

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
RNG = np.random.default_rng(11)


@pytest.fixture
def nothing_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a thousand bytes count as large."""
    monkeypatch.setattr(fetching, "FAR", 1 << 10)


def run(fn: Any, *types: Any, level: str = "x86-64-v3") -> Lowered:
    """Runs a program at all levels."""
    inputs = [RNG.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    return check_levels(traced(fn, *types), inputs, machine=machine(level))


def check(fn: Any, table: Any, *rest: Any, level: str = "x86-64-v3", ahead: bool = True) -> None:
    """Runs a program of a table, places and other operands at all levels."""
    inputs: list[np.ndarray] = []
    for type in (table, *rest):
        made: np.ndarray = RNG.standard_normal(type.shape)
        if type.dtype.is_integer:
            made = RNG.integers(-table.shape[0], table.shape[0], type.shape)
        inputs.append(made.astype(type.dtype.np))
    lowered = check_levels(traced(fn, table, *rest), inputs, machine=machine(level))
    marks = [op.ahead for kind in (ops.Load, ops.Store) for op in all_ops(lowered.schedule, kind)]
    assert any(marks) is ahead
    assert ("tile.prefetch" in lowered.stage("tile")) is ahead
    assert ("@llvm.prefetch" in lowered.stage("llvm")) is ahead


def rows(x: Any, places: Any) -> Any:
    return ts.take(x, places, axis=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("many", [1, 2, 7, 40, 100])
def test_rows(many: int, level: str) -> None:
    """More and fewer rows than are fetched ahead, and than a program has."""
    check(rows, typed(4100, 67), typed(many, dtype=dt.int32), level=level, ahead=many > 1)


@pytest.mark.parametrize("dtype", [dt.float64, dt.bfloat16, dt.complex64])
def test_dtypes(dtype: dt.DType) -> None:
    check(rows, typed(2100, 600 // dtype.itemsize * 2, dtype=dtype), typed(20, dtype=dt.int64))


def test_long_rows_are_fetched_in_part() -> None:
    check(rows, typed(70, 5000), typed(19, dtype=dt.int32))


def test_with_work_on_the_rows() -> None:
    def fn(x: Any, places: Any, y: Any) -> Any:
        return ts.tanh(ts.take(x, places, axis=0)) * y + ts.take(x, places + 1, axis=0)

    check(fn, typed(4100, 70), typed(30, dtype=dt.int32), typed(30, 70))


def spread(x: Any) -> Any:
    return ts.var(x, axis=-1)


def total(x: Any) -> Any:
    return ts.nn.logsumexp(x, axis=-1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fn", [spread, total])
@pytest.mark.parametrize("shape", [(9, 600), (3, 5, 517), (37, 64), (30, 24)], ids=str)
def test_sums_fetch_what_the_next_row_reads(
    shape: tuple[int, ...], fn: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last pass, every line; behind the last row there need be nothing."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    lowered = run(fn, typed(*shape), level=level)
    nests = all_ops(lowered.schedule, ops.Nest)
    (nest,) = [op for op in nests if any(isinstance(one, ops.Reduce) for one in op.body.ops)]
    first, last = [op for op in nest.body.ops if isinstance(op, ops.Reduce)]
    found = [op for op in last.body.ops if isinstance(op, Prefetch)]
    count, length = nest.tile[-1], shape[-1]
    lines = range(0, min(nest.reduce_tile, length), 16)
    assert bool(found) is (count > 1 or length > 500)
    assert not any(isinstance(op, Prefetch) for op in first.body.ops)
    if found:
        assert len(found) == count * len(lines)
        assert "@llvm.prefetch" in lowered.stage("llvm")
        row, lane = nest.axes[-1].name, last.axes[-1].name
        at = {**{axis.name: 0 for axis in nest.axes}, row: 3, lane: 0}
        places = {evaluate(op.offset, at) for op in found}
        ahead = 1 if length > 500 else -(-4096 // (4 * length) // count) * count
        rows = [3 + ahead + k for k in range(count)]
        assert places == {row * length + k for row in rows for k in lines}


@pytest.mark.parametrize(("fn", "fetches"), [(spread, False), (total, True)])
def test_long_rows_are_fetched_for_passes_that_take_long(fn: Any, fetches: bool) -> None:
    cpu = replace(machine("x86-64-v4"), l1=1 << 15, l2=1 << 20)
    for length, wanted in ((2000, True), (50_000, fetches), (1 << 18, False)):
        func = Lowered(traced(fn, typed(200, length)), cpu).schedule
        assert bool(all_ops(func, Prefetch)) is wanted


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.usefixtures("nothing_is_near")
def test_rows_that_are_added_to(level: str) -> None:
    """Places may meet, and those that are none are left out."""

    def fn(x: Any, places: Any, y: Any) -> Any:
        return ts.asarray(x).at[places].add(y)

    rest = (typed(40, dtype=dt.int32), typed(40, 67))
    check(fn, typed(50, 67), *rest, level=level)
    check(lambda x, places, y: fn(x, places + 40, y), typed(50, 67), *rest, level=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.usefixtures("nothing_is_near")
def test_what_is_added_to_a_product(level: str) -> None:
    def fn(x: Any, w: Any, y: Any) -> Any:
        return ts.tanh(x @ w + y)

    shapes = (typed(40, 33), typed(33, 70), typed(40, 70))
    lowered = run(fn, *shapes, level=level)
    assert [op.early for op in all_ops(lowered.schedule, ops.Load)].count(True) == 1
    assert "@llvm.prefetch" in lowered.stage("llvm")


@pytest.mark.usefixtures("nothing_is_near")
def test_what_is_added_at_a_step_of_a_loop() -> None:
    def fn(w: Any, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = ts.tanh(h @ w + row)
            return h, h

        return ts.scan(step, ts.zeros((16, 34)), x)[1]

    lowered = run(fn, typed(34, 34), typed(5, 16, 34))
    assert any(op.early for op in all_ops(lowered.schedule, ops.Load))


@pytest.mark.usefixtures("nothing_is_near")
def test_rows_beside_a_product_at_places_that_data_tell_are_read_late() -> None:
    def fn(y: Any, places: Any, x: Any, w: Any) -> Any:
        return x @ w + ts.take(y, places, axis=0)

    types = (typed(50, 70), typed(40, dtype=dt.int32), typed(40, 33), typed(33, 70))
    inputs = [RNG.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    inputs[1] = RNG.integers(0, 50, 40).astype(np.int32)
    lowered = check_levels(traced(fn, *types), inputs, machine=machine("x86-64-v3"))
    assert not any(op.early for op in all_ops(lowered.schedule, ops.Load))


@pytest.mark.parametrize("far", [1 << 10, 1 << 20])
def test_what_is_near_or_the_same_for_all_rows_is_read_late(
    far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FAR", far)
    other = typed(40, 70) if far > 1 << 10 else typed(70)
    lowered = run(lambda x, w, y: x @ w + y, typed(40, 33), typed(33, 70), other)
    assert not any(op.early for op in all_ops(lowered.schedule, ops.Load))


def test_small_tables_and_short_rows_are_near() -> None:
    check(rows, typed(50, 70), typed(30, dtype=dt.int32), ahead=False)
    check(rows, typed(40000, 16), typed(30, dtype=dt.int32), ahead=False)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int32, dt.bfloat16])
@pytest.mark.parametrize("width", [300, 509, 3000])
def test_lines_that_are_searched(
    width: int, dtype: dt.DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a later block reads is fetched, where blocks of a line are searched, vectors are short
    and the line is no longer than what is fetched is away."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)
    x = (RNG.standard_normal((5, width)) * 100).astype(dtype.np)
    if not dtype.is_integer:
        x[2, width // 2 :], x[3, -1], x[4] = np.nan, np.inf, -0.0
    for fn in (ts.argmax, ts.argmin):
        graph = traced(lambda x, fn=fn: fn(x * x, axis=1), typed(5, width, dtype=dtype))
        for level in LEVELS:
            lowered = check_levels(graph, [x], machine=machine(level))
            marks = [op.ahead for op in all_ops(lowered.schedule, ops.Load)]
            is_meant = level != "x86-64-v4" and width * dtype.itemsize <= next_rows.LINE
            assert any(marks) is is_meant
            if not is_meant:
                assert "@llvm.prefetch" not in lowered.stage("llvm")
            elif width * dtype.itemsize > 2048 or level == "x86-64":
                assert "@llvm.prefetch" in lowered.stage("llvm")


def test_sums_of_a_line_that_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are passes over rows: the next row is fetched for them, not what lies ahead."""
    monkeypatch.setattr(next_rows, "FAR", 1 << 10)

    def fn(x: Any) -> Any:
        clipped = ts.minimum(x, ts.mean(x * x, axis=1, keepdims=True))
        return ts.mean(clipped, axis=1), ts.argmax(clipped, axis=1)

    x = RNG.standard_normal((5, 300)).astype(np.float32)
    for level in LEVELS:
        check_levels(traced(fn, typed(5, 300)), [x], machine=machine(level))


def test_places_along_the_rows_are_no_rows() -> None:
    def fn(x: Any, places: Any) -> Any:
        return ts.take(x, places, axis=1)

    check(fn, typed(600, 600), typed(300, dtype=dt.int32), ahead=False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(64, 96), (47, 131), (16, 16), (33, 7)])
@pytest.mark.usefixtures("nothing_is_near")
def test_squares_that_are_turned(shape: tuple[int, int], level: str) -> None:
    """The next ones are fetched, not those of a rest."""
    for dtype in (dt.float32, dt.float64, dt.int8):
        lowered = check_levels(
            traced(lambda x: x.T, typed(*shape, dtype=dtype)),
            [RNG.integers(-9, 9, shape).astype(dtype.np)],
            machine=machine(level),
        )
        if min(shape) >= 16 and dtype is dt.float32:
            assert all(op.ahead == 64 for op in all_ops(lowered.schedule, ops.Load))
            assert "@llvm.prefetch" in lowered.stage("llvm")


@pytest.mark.unchecked
def test_rows_of_a_square_that_are_not_there_are_looked_for_nowhere() -> None:
    """How many there are is known, so nothing is read for them, and no condition is tested."""
    turned = ts.matrix_transpose
    shapes = typed(41, 48), typed(48, 41)
    target = run(lambda x, y: ts.add(turned(x), y), *shapes).stage("target")
    assert "{fn=select}" not in target
    # How many there are of a size without a number is not: masked off at the place of the first.
    n = sym("n")
    graph = graph_of(lambda x, y: ts.add(turned(x), y), [(n, 48), (48, n)])
    lowered = check_levels(graph, values([(41, 48), (48, 41)]), {"n": 41}, machine("x86-64-v3"))
    assert lowered.stage("target").count("{fn=select}") == 7
    # Where the result does not lie on what is read, the last square begins early enough.
    assert "{fn=select}" not in run(lambda x: turned(x), typed(41, 48)).stage("target")


@pytest.mark.parametrize("level", LEVELS)
def test_squares_past_the_caches_are_narrow(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that begin with a vector have stretches of 256 bytes; others stay in large squares, as
    many rows in each."""
    monkeypatch.setattr(streaming, "STREAM_BYTES", 1 << 10)
    for shape, rows, width in (((192, 320), 160, 64), ((190, 321), 161, 0)):
        lowered = run(lambda x: x.T, typed(*shape), level=level)
        (nest,) = all_ops(lowered.schedule, ops.Nest)
        side = nest.tile[0]
        assert nest.chunk == (-(-rows // side) * side, width)


def test_a_prefetch_takes_memory_and_an_offset() -> None:
    with pytest.raises(ParseError, match="prefetch takes memory and an i64 scalar"):
        parse_func(
            "func @k(%x: mem<f32>) {\n"
            "  %n = tile.const() {value=0, dtype=i32} : tile<i32[]>\n"
            "  tile.prefetch(%x, %n) {count=4}\n  return\n}"
        )
    with pytest.raises(ParseError, match="prefetch takes a pointer and an i64 offset"):
        parse_func("func @k(%x: i64) {\n  target.prefetch(%x, %x) {bytes=64}\n  return\n}")


NARROWED = [("uint32", "uint8"), ("int64", "int32"), ("uint64", "uint16"), ("int16", "int8")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("wide", "narrow"), NARROWED)
def test_one_row_behind_whole_squares_is_narrowed(wide: str, narrow: str, level: str) -> None:
    """LLVM 22 wrote a wide lane where one lane, known when it compiles, of a narrowed vector is
    stored. One of the lengths is a lane more than the vectors of the level."""
    for count in (5, 9, 17, 33):
        x = np.arange(count * 3, dtype=wide).reshape(count, 3)
        graph = ts.make_graph(lambda x: x.T.astype(getattr(ts, narrow)))(x)
        (found,) = Lowered(graph, machine(level)).executable().run([x])
        np.testing.assert_array_equal(np.asarray(found), x.T.astype(narrow))
