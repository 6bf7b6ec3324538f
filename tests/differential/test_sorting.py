"""Sorts on a CPU, of words and of permutations, at every level."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.compile import Lowered
from tessera.dtypes import (
    ALL,
    DType,
    Kind,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from tessera.errors import CompileError
from tessera.graph.ops.sort import sort
from tessera.ir.intexpr import evaluate, sym
from tessera.ir.types import TensorType
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.schedule import ops, vector_sort
from tessera.schedule.sort_ops import SelectWords, SortWords
from tessera.target.machine import host, machine, supported_levels
from tessera.target.prefetch_ops import Prefetch
from tessera.tile import interp as tile_interp
from tests.differential.levels import check_levels
from tests.pairs import each_with_one, every_pair
from tests.schedule.lowering import traced, typed
from tests.tolerance import assert_close

SIZES = [0, 1, 2, 5, 16, 35]
# The last one has no vectors that sort words. Many hosts are as the second one.
LEVELS = ["host", *["x86-64-v3"] * (host().level != "x86-64-v3"), "x86-64"]


def both(x: Any) -> Any:
    return ts.sort(x, axis=0), ts.argsort(x, axis=0)


def falling(x: Any) -> Any:
    return ts.sort(x, axis=0, descending=True), ts.argsort(x, axis=0, descending=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_dtypes(dtype: DType, level: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype.is_bool else 9, 13).astype(dtype.np)
    for fn in (both, falling):
        check_levels(traced(fn, TensorType(x.shape, dtype)), [x], machine=machine(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [float32, float64])
def test_sizes(dtype: DType, size: int, level: str) -> None:
    x = np.random.default_rng(size).normal(size=(size, 2)).astype(dtype.np)
    check_levels(traced(both, TensorType(x.shape, dtype)), [x], machine=machine(level))


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(8, 8), (9, 17), (40, 33)])
def test_columns(shape: tuple[int, int], level: str) -> None:
    """Words are turned in squares of half a vector, which are soon compiled."""
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    where = machine(level)
    lowered = check_levels(traced(both, TensorType(x.shape, float32)), [x], machine=where)
    turned = [
        op for op in walk(lowered.schedule.body)
        if isinstance(op, ops.Nest) and sum([size > 1 for size in op.tile]) > 1
    ]  # fmt: skip
    assert turned
    assert all(max(op.tile) == where.vector_bits // 64 for op in turned)


@pytest.mark.parametrize("level", [n for n in supported_levels() if machine(n).compresses])
def test_rows_of_a_network(level: str) -> None:
    for size in (3, 4, 8, 15, 17, 32, 33, 64, 65, 128, 129, 256, 257):
        for dtype in (np.int32, np.int64):
            x = np.random.default_rng(size).integers(-99, 99, (9, size)).astype(dtype)
            lowered = ts.jit(lambda x: ts.sort(x, axis=1)).lower(x, machine=level)
            (found,) = lowered.executable().run([pointer(x)], [])
            np.testing.assert_array_equal(np.asarray(found), np.sort(x, 1))


def test_very_short_rows_are_merged_with_avx2() -> None:
    for level, least in (("x86-64-v3", 4), ("x86-64-v4", 0), ("x86-64", 99)):
        for count in (2, 3, 4, 5):
            text = str(Lowered(traced(ts.sort, typed(9, count)), machine(level)).schedule)
            assert ("schedule.sort_words(" in text) == (count >= least)


def test_lines_that_are_written_are_fetched_for_that() -> None:
    """With AVX-512, two for each of the eight vectors of a turn."""
    for level, fetches in (("x86-64-v4", 16), ("x86-64-v3", 0)):
        lowered = Lowered(traced(ts.sort, typed(5000)), machine(level))
        divide = lowered.target.funcs["words_divide_u32"]
        found = [op for op in walk(divide.body) if isinstance(op, Prefetch)]
        assert [op.is_written for op in found] == [True] * fetches
        assert lowered.llvm.count("i32 1, i32 3, i32 1)") == fetches


@pytest.mark.parametrize("level", LEVELS)
def test_symbolic(level: str) -> None:
    graph = traced(both, TensorType((sym("n"),), float32))
    for size in (0, 1, 7, 20, 300):
        x = np.random.default_rng(size).normal(size=size).astype(np.float32)
        check_levels(graph, [x], {"n": size}, machine(level))


@pytest.mark.parametrize("level", LEVELS)
def test_first_places(level: str) -> None:
    x = np.random.default_rng(5).integers(-3, 3, (3, 90)).astype(np.float32)
    x[:, ::2] *= -1.0

    def first(x: Any) -> Any:
        rows = ts.sort(x, axis=1, descending=True), ts.argsort(x, axis=1)
        return [row[:, :4] for row in rows]

    graph = traced(first, TensorType(x.shape, float32))
    lowered = check_levels(graph, [x], machine=machine(level))
    sorts = [op for op in walk(lowered.schedule.body) if isinstance(op, (ops.Sort, SortWords))]
    assert len(sorts) == 2
    if level == "host" and lowered.cpu.compresses:
        assert [op.until for op in sorts if isinstance(op, SortWords)] == [4, 4]


@pytest.mark.parametrize("count", [1 << 31, (1 << 31) + 1])
def test_places_that_do_not_fit_words_are_sorted_by_themselves(count: int) -> None:
    def first(x: Any) -> Any:
        return ts.top_k(x, 5)

    for fn, shape in ((ts.argsort, (count,)), (first, (2, count))):
        text = str(Lowered(traced(fn, typed(*shape)), machine("x86-64-v4")).schedule)
        assert ("schedule.sort(" in text) == (count > 1 << 31)
    assert "schedule.sort_words(" in str(
        Lowered(traced(ts.sort, typed(count)), machine("x86-64-v4")).schedule
    )


def test_a_gpu_has_words_for_all_places_or_says_so() -> None:
    def lower(count: int) -> str:
        x = ts.ShapeDtypeStruct((count,), ts.float32)
        return str(ts.jit(ts.argsort).lower(x, machine="sm_90a").schedule)

    assert "schedule.merge_runs(" in lower(1 << 31)
    with pytest.raises(CompileError, match="sort: rows of 2147483649 elements"):
        lower((1 << 31) + 1)


def largest(x: Any, k: int) -> np.ndarray:
    """The places of the first elements, largest first, by NumPy."""
    wide = np.asarray(x).astype(np.float64)
    places = np.broadcast_to(np.arange(wide.shape[-1]), wide.shape)
    missing = np.isnan(wide)
    order = (places, -np.where(missing, 0, wide), ~missing)
    return np.lexsort(order, axis=-1)[..., :k]


ROWS = {
    "random": lambda rng, shape: rng.normal(size=shape) * 50,
    "few": lambda rng, shape: rng.integers(0, 3, shape),
    "equal": lambda rng, shape: np.zeros(shape),
    "sorted": lambda rng, shape: np.sort(rng.normal(size=shape) * 50),
    "one column": lambda rng, shape: rng.normal(size=shape) * 50 * (np.arange(shape[1]) % 64 == 3),
}


def rows_of(kind: str, dtype: DType, shape: tuple[int, int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = ROWS[kind](rng, shape)
    x = (np.abs(x) if np.dtype(dtype.np).kind == "u" else x).clip(-120, 250).astype(dtype.np)
    if dtype.kind is Kind.INT and dtype.bits == 8:
        x = np.minimum(x, 120)
    if dtype.is_float and kind != "sorted":
        x[rng.random(shape) < 0.3] *= -1
        x[0, rng.random(shape[1]) < 0.3] = np.nan
        x[-1, :7] = -np.array(np.nan, dtype.np)
    return x


OTHERS = [pytest.param(x, marks=pytest.mark.unchecked) for x in (
    bfloat16, int32, int16, uint8, uint32, int64, uint64,
)]  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float16, int8, float64, *OTHERS], ids=str)
def test_selected(dtype: DType) -> None:
    for shape, k in (((3, 500), 10), ((2, 1300), 32), ((2, 2000), 33), ((5, 4107), 64)):
        largest_of = ts.jit(lambda x, k=k: ts.top_k(x, k))
        first_of = ts.jit(lambda x, k=k: ts.argsort(x, axis=-1)[:, :k])
        for kind in ROWS:
            x = rows_of(kind, dtype, shape)
            found, wanted = largest_of(ts.asarray(x)), largest(x, k)
            np.testing.assert_array_equal(np.asarray(found[1]), wanted, kind)
            picked = np.take_along_axis(x, wanted, -1)
            np.testing.assert_array_equal(bits_of(np.asarray(found[0])), bits_of(picked), kind)
            first = first_of(ts.asarray(x))
            order = np.argsort(x.astype(np.float64), axis=-1, kind="stable")
            np.testing.assert_array_equal(np.asarray(first), order[:, :k], kind)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_selected_at_every_level(dtype: DType, level: str) -> None:
    cases = [(600, 5, False), (600, 5, True)]
    cases += [(2000, 40, True)] if machine(level).compresses else []  # others sort, and slowly so
    for size, count, descending in cases:
        x = np.random.default_rng(1).integers(-40, 40, (2, size)).astype(dtype.np)
        x[:, ::7], x[1, ::50] = -0.0, np.nan

        def first(x: Any, descending: bool = descending, count: int = count) -> Any:
            return ts.argsort(x, axis=1, descending=descending)[:, :count]

        programs = [Lowered(traced(first, TensorType(x.shape, dtype)), machine(level))]
        # Levels that sort all of them do the same with fewer, which takes interpreters less time.
        x = x if machine(level).compresses else x[:, 100:250].copy()
        graph = traced(first, TensorType(x.shape, dtype))
        programs.append(check_levels(graph, [x], None, machine(level)))
        for lowered in programs:
            found = [op for op in walk(lowered.schedule.body) if isinstance(op, SelectWords)]
            is_one = lowered.cpu.compresses and (dtype is float32 or count == 5)
            assert len(found) == int(is_one)


def test_special_values() -> None:
    x = np.array([0, np.nan, -1, -0.0, np.inf, np.nan, 0, -np.inf, 1e-45, -1e-45], np.float32)
    for fn in (both, falling):
        check_levels(traced(fn, TensorType(x.shape, float32)), [x])
    found = np.asarray(ts.jit(ts.sort)(x))
    assert np.signbit(found[3:6]).tolist() == [False, True, False]


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bits of numbers, all NaN alike."""
    x = np.where(np.isnan(x), np.nan, x) if x.dtype.kind == "f" else x
    return x.view(f"u{x.dtype.itemsize}")


def stable(x: np.ndarray, falls: bool) -> np.ndarray:
    """Sorted, with equal numbers in their order and NaN last, or first where it falls."""
    if not falls:
        return np.sort(x, kind="stable")
    order = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.take_along_axis(x, x.shape[-1] - 1 - order, -1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("keep", "at_once"), [(3, False), (12, True), (70, False), (70, True)])
def test_zeros_keep_their_order(
    keep: int, at_once: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_sort, "MARKED", 70)
    monkeypatch.setattr(vector_sort, "LEAST_ROWS", 1 if at_once else 1 << 30)
    numbers = np.array([0.0, -0.0, 1, -1, np.nan], np.float32)
    x = np.random.default_rng(keep).choice(numbers, (3, 70))

    def first(x: Any) -> Any:
        return [ts.sort(x, axis=1, descending=falls)[:, :keep] for falls in (False, True)]

    graph = traced(first, TensorType(x.shape, float32))
    lowered = check_levels(graph, [x], machine=machine(level))
    expected = [stable(x, falls)[:, :keep] for falls in (False, True)]
    outputs = [np.empty_like(np.ascontiguousarray(e)) for e in expected]
    arena = int(evaluate(lowered.arena, {}))
    tile_interp.run_module(lowered.tile, [x], outputs, {}, arena)
    native = lowered.executable().run([pointer(x)], [])
    for found in (outputs, native):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(bits_of(np.asarray(a)), bits_of(b))


@every_pair(
    ("dtype", [float32, float64, float16, bfloat16]),
    ("falls", [False, True]),
    ("axis", [0, 1, 2]),
)
def test_zeros_of_many_short_rows(axis: int, falls: bool, dtype: DType) -> None:
    """Where no row has some, the last row alone, and most rows."""
    shape = [17, 19, 23]
    shape[axis] = 6
    x = np.random.default_rng(axis).normal(size=shape)
    x[x < -0.5] = math.nan
    first, second = (0.0, -0.0) if falls else (-0.0, 0.0)
    lone, many = x.copy(), np.where(np.abs(x) < 0.3, np.where(x < 0, first, second), x)
    lone[-1, -1, -1], last = first, [slice(-1, None)] * 3
    last[axis] = slice(-2, -1)
    lone[tuple(last)] = second
    fn = ts.jit(lambda x: ts.sort(x, axis=axis, descending=falls))
    text = str(fn.lower(ts.asarray(x, dtype=dtype)).schedule)
    assert ("order_zeros" in text) is ("fn=min" in text) is host().compresses
    for wide in (x, lone, many):
        rows = wide.astype(dtype.np)
        expected = np.moveaxis(stable(np.moveaxis(rows.astype(float), axis, -1), falls), -1, axis)
        found = np.asarray(fn(ts.asarray(rows))).astype(float)
        np.testing.assert_array_equal(bits_of(found), bits_of(expected))


NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0]), st.floats(width=32)
)


@given(st.lists(NUMBERS, max_size=300), st.booleans())
@settings(deadline=None)
def test_any_numbers_to_the_bit(numbers: list[float], falls: bool) -> None:
    fn = JITTED[falls]
    for dtype in ("float32", "float64"):
        x = np.array(numbers, dtype)
        values, order = [np.asarray(v) for v in fn(x)]
        np.testing.assert_array_equal(bits_of(values), bits_of(stable(x, falls)))
        np.testing.assert_array_equal(bits_of(x[order]), bits_of(values))


JITTED = [
    ts.jit(lambda x, falls=falls: (ts.sort(x, descending=falls), ts.argsort(x, descending=falls)))
    for falls in (False, True)
]


@each_with_one(
    ("dtype", ["float32", "float64", "int32", "uint64", "int16", "float16"]),
    ("shape", [(40_000,), (70, 1_001), (3, 33_000)]),
)
def test_long_rows_for_any_number_of_threads(shape: tuple[int, ...], dtype: str) -> None:
    x = (np.random.default_rng(4).normal(size=shape) * 1000).astype(dtype)
    if x.dtype.kind == "f":
        x[..., ::5], x[..., 1::7], x[..., 3::101] = 0.0, -0.0, np.nan
    for falls in (False, True):
        found: list[np.ndarray] = []
        for threads in (1, 2):
            with ts.config.update(threads=threads):
                fn = ts.jit(lambda x, falls=falls: ts.sort(x, axis=-1, descending=falls))
                found.append(np.asarray(fn(x)))
        assert found[0].tobytes() == found[1].tobytes()
        np.testing.assert_array_equal(bits_of(found[0]), bits_of(stable(x, falls)))


def test_keys_that_share_a_word_and_payloads() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 3, 29).astype(np.int8), rng.integers(-3, 3, 29).astype(np.int16)
    c = rng.normal(size=29).astype(np.float64)
    types = [TensorType((29,), d) for d in (int8, int16, float64)]
    check_levels(traced(lambda *x: sort(list(x), 0, num_keys=2), *types), [a, b, c])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [int64, float64, int8])
def test_elements_of_two_words(first: DType, level: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 3, 29).astype(first.np), rng.integers(-2, 2, 29).astype(np.int64)
    c = rng.normal(size=29)
    types = [TensorType((29,), d) for d in (first, int64, float64)]
    programs = [
        lambda a, b, c: sort([a, b, c], 0, num_keys=2),
        lambda a, b, c: sort([a, b, c], 0, num_keys=1, descending=True),
        lambda a, b, c: sort([b, c], 0, num_keys=2),
    ]
    for fn in programs:
        check_levels(traced(fn, *types), [a, b, c], machine=machine(level))


@every_pair(
    ("level", LEVELS),
    ("falls", [False, True]),
    ("dtypes, digits", [
    ([float64], 2), ([bfloat16, float64], 3), ([int8, int16, int32, float16], 3),
    ([int64, float64], 4), ([int64, float64, int8], 0),
]),
)  # fmt: skip
def test_keys_of_several_digits(dtypes: list[DType], digits: int, falls: bool, level: str) -> None:
    rng = np.random.default_rng(1)
    keys = [rng.choice([-2, -1, -0.0, 0, 1], (2, 33, 2)).astype(d.np) for d in dtypes]
    keys[0] = np.where(rng.random((2, 33, 2)) < 0.1, keys[0].dtype.type(3), keys[0])
    payload = rng.normal(size=(2, 33, 2)).astype(np.float32)
    types = [TensorType((2, 33, 2), d) for d in (*dtypes, float32)]
    graph = traced(lambda *x: sort(list(x), 1, len(dtypes), falls), *types)
    lowered = check_levels(graph, [*keys, payload], machine=machine(level))
    sorts = sum([isinstance(op, SortWords) for op in walk(lowered.schedule.body)])
    assert sorts == (digits if machine(level).compresses else 0)


@pytest.mark.parametrize("shape", [(100_001,), (2, 40_000), (70, 999)])
def test_orders_of_long_rows_for_any_number_of_threads(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(3).normal(size=shape)
    numbers[..., ::7] = np.round(numbers[..., ::7])
    for x in (numbers, (numbers * 2**60).astype(np.int64)):
        for threads in (1, 2, 4):
            with ts.config.update(threads=threads):
                order = np.asarray(ts.jit(lambda x: ts.argsort(x, axis=-1))(x))
            np.testing.assert_array_equal(order, np.argsort(x, axis=-1, kind="stable"))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_many_elements_against_numpy(dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 99, (3, 2001)).astype(dtype)
    fn = ts.jit(lambda x: (ts.sort(x, axis=1), ts.argsort(x, axis=1)))
    values, order = [np.asarray(v) for v in fn(x)]
    np.testing.assert_array_equal(values, np.sort(x, axis=1))
    np.testing.assert_array_equal(order, np.argsort(x, axis=1, kind="stable"))


def test_many_rows_against_numpy() -> None:
    x = np.random.default_rng(2).normal(size=(37, 1001)).astype(np.float32)
    fn = ts.jit(lambda x: (ts.sort(x, axis=1), ts.argsort(x, axis=1)))
    values, order = [np.asarray(v) for v in fn(x)]
    np.testing.assert_array_equal(values, np.sort(x, 1))
    np.testing.assert_array_equal(order, np.argsort(x, 1, kind="stable"))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sort_and_its_derivative_are_one(axis: int) -> None:
    def fn(x: Any) -> Any:
        values = ts.sort(x, axis=axis)
        places = ts.arange(x.shape[axis])
        return ts.sum(values**2 * ts.expand_dims(places, axis=1 - axis)), values

    x = np.random.default_rng(3).normal(size=(9, 40)).astype(np.float32)
    graph = ts.jit(ts.value_and_grad(fn, has_aux=True)).lower(x)
    text = str(graph.graph)
    assert text.count("graph.sort") == 1
    # No element is moved twice, so threads share them.
    assert "combine=add, mode=promise, unique=true" in text
    (_, values), slope = ts.jit(ts.value_and_grad(fn, has_aux=True))(x)
    order = np.argsort(x, axis=axis, kind="stable")
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, order, axis))
    ranks = np.argsort(order, axis=axis)
    assert_close(np.asarray(slope), (2 * x * ranks).astype(np.float32))


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize(
    ("dtype", "most"), [(bfloat16, 1 << 15), (float16, 1 << 15), (int16, 1 << 16)], ids=str
)
def test_places_share_words_of_32_bits_while_they_fit(
    dtype: DType, most: int, falls: bool
) -> None:
    rng = np.random.default_rng(8)
    for count, bits in ((most, 32), (most + 1, 64)):
        x = rng.normal(size=(2, count)) * 2
        x[:, ::7], x[:, 1::7], x[:, 2::999] = 0, -0.0, 0 if dtype is int16 else math.nan
        x = x.astype(dtype.np)
        fn = ts.jit(lambda x: (ts.sort(x, axis=1, descending=falls),
                               ts.argsort(x, axis=1, descending=falls)))  # fmt: skip
        text = str(fn.lower(ts.asarray(x)).schedule)
        assert (f"words of {bits} bits" in text) or not host().compresses
        values, order = map(np.asarray, fn(ts.asarray(x)))
        wide = x.astype(float)
        expected = stable(wide, falls)
        np.testing.assert_array_equal(bits_of(values.astype(float)), bits_of(expected))
        np.testing.assert_array_equal(
            bits_of(np.take_along_axis(wide, order, 1)), bits_of(expected)
        )
        # Equal elements stay in their order.
        ties = np.diff(values.astype(float)) == 0
        assert (np.diff(order)[ties] > 0).all()
