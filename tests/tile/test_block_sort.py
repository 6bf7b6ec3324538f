"""Sorting as a GPU does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.dtypes import DType, float32, int64
from tessera.graph.ops.rearrange import iota, slice_axis
from tessera.graph.ops.sort import argsort, sort
from tessera.ir.core import Module
from tessera.ir.intexpr import sym
from tessera.schedule import split_sort
from tessera.tile import ops as t
from tessera.tile.interp import run_module
from tests.schedule.lowering import Array, typed
from tests.tile.gpu_running import check_gpu, ops_of

KEYS = (
    "bool", "i4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64",
    "f8e4m3fn", "f8e5m2", "f16", "bf16", "f32", "f64",
)  # fmt: skip


def keys(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Elements with duplicates and all special values."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, 2.0, -0.25]
        found = rng.choice(special, shape).astype(dtype.np)
        return np.where(rng.random(shape) < 0.5, found, rng.normal(size=shape).astype(dtype.np))
    info = dtypes.iinfo(dtype)
    special = [info.min, info.max, 0, 1]
    ints = rng.integers(0, 4, shape)
    return np.array([special[k] for k in ints.reshape(-1)], dtype.np).reshape(shape)


def check(fn: Callable[..., Any], *arrays: Array) -> Module:
    types = [typed(*x.shape, dtype=dtypes.dtype_of(x.dtype)) for x in arrays]
    return check_gpu(fn, *types, inputs=arrays)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", KEYS)
def test_keys_of_every_dtype(name: str, descending: bool) -> None:
    x = keys(dtypes.dtype_of(name), (3, 21))
    check(lambda x: sort((x,), 1, descending=descending), x)
    check(lambda x: argsort(x, 1, descending=descending), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (4, 1, 8), (17, 2, 3), (0, 3, 2)])
def test_all_axes(shape: tuple[int, ...], axis: int) -> None:
    x = keys(float32, shape)
    y = np.arange(x.size).reshape(shape)
    check(lambda x, y: sort((x, y), axis), x, y)


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 100])
def test_lengths(length: int) -> None:
    check(lambda x: sort((x,), 0), keys(float32, (length,)))


@pytest.mark.parametrize("descending", [False, True])
def test_several_keys_and_payloads(descending: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = keys(float32, (5, 40)), rng.integers(0, 3, (5, 40)).astype(np.int32)
    c = rng.normal(size=(5, 40)).astype(np.complex64)
    d = rng.normal(size=(5, 40)) > 0
    check(lambda a, b, c, d: sort((b, a, c, d), 1, 2, descending), a, b, c, d)
    check(lambda a, b, c: sort((a, b, b, c), 0, 3, descending), a, b, c)
    wide = a.astype(np.float64)
    check(lambda a, b: sort((b, a, b), 1, 2, descending), wide, b.astype(np.int64))


def test_signs_of_zeros_stay() -> None:
    x = np.array([0.0, -0.0, -0.0, 0.0, 1.0, -1.0], np.float32)
    module = check(lambda x: sort((x,), 0), x)
    assert not ops_of(module, t.Gather)


def test_places_are_neither_read_nor_stored_before() -> None:
    module = check(lambda x: argsort(x, 1), keys(float32, (4, 16)))
    assert len(module.funcs) == 2
    assert not ops_of(module, t.Gather)
    assert {op.value.type.dtype for op in ops_of(module, t.Store)} == {int64}


def test_words_are_as_short_as_keys_allow() -> None:
    for name, words in (("bf16", {"u32"}), ("i32", {"u32"}), ("f32", {"u32"})):
        module = check(lambda x: sort((x,), 1), keys(dtypes.dtype_of(name), (4, 64)))
        assert {op.x.type.dtype.name for op in ops_of(module, t.FlipBits)} == words


def test_steps_of_the_network() -> None:
    module = check(lambda x: argsort(x, 0), keys(float32, (256,)))
    assert len(ops_of(module, t.FlipBits)) == 8 * 9 // 2


def test_keys_alone_have_no_places() -> None:
    fn = lambda x: sort((x,), 1)  # noqa: E731
    for x in (np.arange(96)[::-1], np.array([0.0, -0.0, 1, np.nan] * 24), np.full(96, -0.0)):
        rows = np.stack([x, x[::-1], np.roll(x, 5)]).astype(np.float32)
        check(fn, rows)
        check(fn, rows[:, :77])
        check(top(3, 1), rows)
        check(lambda x: slice_axis(sort((x,), 1, descending=True)[0], 1, 0, 5), rows)
    module = check(fn, np.arange(64, dtype=np.int32).reshape(2, 32)[:, ::-1].copy())
    assert not ops_of(module, t.If)


def test_zeros_are_put_right_in_a_branch() -> None:
    module = check(lambda x: sort((x,), 0), keys(float32, (256,)))
    (branch,) = ops_of(module, t.If)
    inside = sum(isinstance(op, t.FlipBits) for op in branch.then.ops)
    assert inside == len(ops_of(module, t.FlipBits)) - inside == 8 * 9 // 2
    assert not branch.otherwise.ops


def test_signs_of_sorted_zeros() -> None:
    from tessera.graph import interp
    from tests.schedule.lowering import traced

    x = np.array([[0.0, -0.0, -0.0, 0.0, 1.0, -1.0, 0.0, -0.0]], np.float32)
    module = check(lambda x: sort((x,), 1), x)
    out = np.empty_like(x)
    run_module(module, [x], [out])
    (wanted,) = interp.run(traced(lambda x: sort((x,), 1), typed(1, 8)), [x], {})
    np.testing.assert_array_equal(np.signbit(out), np.signbit(wanted))


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 8 elements, tiles of 4."""
    monkeypatch.setattr(split_sort, "MAX_ROW", 8)
    monkeypatch.setattr(split_sort, "RUN", 8)
    monkeypatch.setattr(split_sort, "TILE", 4)


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("length", [9, 15, 16, 17, 32, 33, 100])
def test_long_rows(length: int) -> None:
    x = keys(float32, (2, length))
    y = np.arange(2 * length, dtype=np.int16).reshape(2, length)
    check(lambda x: sort((x,), 1), x)
    check(lambda x: argsort(x, 1, descending=True), x)
    check(lambda x, y: sort((x, y), 0), np.ascontiguousarray(x.T), np.ascontiguousarray(y.T))


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("name", KEYS)
def test_long_rows_of_every_dtype(name: str) -> None:
    x = keys(dtypes.dtype_of(name), (45,))
    check(lambda x: sort((x,), 0, descending=True), x)


@pytest.mark.usefixtures("short_runs")
def test_long_rows_with_several_keys() -> None:
    a, b = keys(float32, (70,)), keys(int64, (70,))
    c = np.random.default_rng(0).integers(0, 2, 70).astype(np.int8)
    check(lambda a, b, c: sort((c, a, b), 0, 2), a, b, c)
    check(lambda a, b, c: sort((c, b, a), 0, 3, True), a, b, c)


@pytest.mark.usefixtures("short_runs")
def test_rows_of_unknown_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_sort, "MAX_LENGTH", 64)
    n, m = sym("N"), sym("M")
    for length in (0, 1, 7, 8, 9, 16, 17, 40):
        x = keys(float32, (length,))
        check_gpu(lambda x: sort((x,), 0), typed(n), inputs=[x])
        x = keys(float32, (3, length))
        fn = partial(argsort, axis=1)
        check_gpu(fn, typed(m, n), inputs=[x])
        check_gpu(lambda x: sort((x, x), 0), typed(n, m), inputs=[np.ascontiguousarray(x.T)])


def top(k: int, axis: int, descending: bool = True) -> Callable[..., Any]:
    """The first places of sorted rows, and where their elements were."""

    def fn(x: Any) -> Any:
        found = sort((x, iota(x.shape, axis, int64)), axis, 1, descending)
        return [slice_axis(y, axis, 0, k) for y in found]

    return fn


@pytest.mark.parametrize("name", ["f32", "bf16", "f64", "i8"])
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_first_places(k: int, name: str) -> None:
    x = keys(dtypes.dtype_of(name), (3, 64))
    module = check(top(k, 1), x)
    size = 1 << (k - 1).bit_length()
    assert all(op.shape[-1] <= 64 for op in ops_of(module, t.Load))
    assert {op.value.type.shape[-1] for op in ops_of(module, t.Store)} >= {size}
    check(top(k, 1, False), x[:, :37])
    check(top(k, 0), np.ascontiguousarray(x.T))


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("name", ["f32", "u16", "i64"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_first_places_of_long_rows(k: int, name: str) -> None:
    for length in (16, 33, 100):
        x = keys(dtypes.dtype_of(name), (2, length))
        check(top(k, 1), x)
        check(top(k, 0, False), np.ascontiguousarray(x.T))


def test_all_places_are_wanted() -> None:
    def fn(x: Any) -> Any:
        (found,) = sort((x,), 1)
        return found, slice_axis(found, 1, 0, 2)

    check(fn, keys(float32, (3, 40)))
    check(lambda x: slice_axis(sort((x,), 1)[0], 1, 30, 40), keys(float32, (3, 40)))
