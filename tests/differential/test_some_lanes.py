"""Loads and stores of some lanes on machines that have no instruction for it: what is not there is
neither used nor touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.dtypes import DType
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels, graph_of, values
from tests.pairs import every_pair

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]
DTYPES = [dt.int8, dt.bool_, dt.bfloat16, dt.float32, dt.float64]

PAGE = mmap.PAGESIZE


def rolled(x: Any) -> Any:
    return ts.roll(x, 3, axis=1)


def both_ways(x: Any) -> Any:
    return ts.where(ts.roll(x, 1, axis=1) > x, ts.roll(x, -2, axis=1), x)


def turned(x: Any) -> Any:
    return ts.roll(ts.roll(x, 1, axis=0), -1, axis=1)


def padded(x: Any) -> Any:
    return ts.pad(x[:, 1:], ((0, 1), (2, 3)))


def chosen(x: Any) -> Any:
    return ts.where(ts.arange(x.shape[1]) > 5, x, ts.roll(x, 7, axis=1))


def updated(x: Any) -> Any:
    return x.at[:, 3:-2].set(x[:, 5:])


def apart(x: Any) -> Any:
    """Reads elements that lie apart, of which some are not there."""
    return ts.pad(x[:, ::5], ((1, 0), (1, 2))), ts.roll(x, 1, axis=0)[:, 7:8]


def apart_on_both_sides(x: Any) -> Any:
    """The same of elements that are close by, of which either row has some."""
    found = list[Any]()
    for k, step in ((1, 2), (3, 4), (5, 8)):
        end = x.shape[1] // step * step
        half = ts.concat([x[:, k:end:step], x[::-1, :end:step]])
        found.append(ts.where(ts.roll(half, 1, axis=0) > half, half, x[:1, :1]))
    return ts.concat(found, axis=1)


def stored_apart(x: Any) -> Any:
    return x.at[:, 1::6].set(x[:, 1::6][:, ::-1])


def at_places(x: Any) -> Any:
    """Some of the places are not there; what is read there is 0, or lost."""
    places = ts.arange(40) * 3 - 20
    inside = (places >= 0) & (places < x.shape[1])
    return ts.where(inside, x[:, ts.clip(places, 0, x.shape[1] - 1)], x[:, :1])


FUNCTIONS = [
    rolled, both_ways, turned, padded, chosen, updated, apart, apart_on_both_sides, stored_apart,
    at_places,
]  # fmt: skip


def inputs_of(columns: int, dtype: DType) -> list[Any]:
    (x,) = values(((5, columns),), dt.float32)
    return [(x > 0 if dtype is dt.bool_ else x * 20).astype(dtype.np)]


@every_pair(
    ("level", LEVELS),
    ("dtype", DTYPES),
    ("fn", FUNCTIONS),
)
def test_levels(fn: Callable[[Any], Any], dtype: DType, level: str) -> None:
    for columns in (45, 129):
        graph = graph_of(fn, ((5, columns),), dtype)
        check_levels(graph, inputs_of(columns, dtype), machine=machine(level))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("dtype", "level", "named"),
    [
        (dt.int8, "x86-64-v3", True), (dt.float16, "x86-64-v3", True),
        (dt.float32, "x86-64-v3", False), (dt.float32, "x86-64", True),
        (dt.int8, "x86-64-v4", False), (dt.int8, "aarch64", True),
    ],
)  # fmt: skip
def test_where_it_is_written(dtype: DType, level: str, named: bool) -> None:
    text = Lowered(graph_of(padded, ((5, 300),), dtype), machine(level)).llvm
    assert ("tessera.load_some" in text) is named
    assert ("llvm.masked.load" in text) is not named


def flipped_twice(x: Any) -> Any:
    """Of each point one of four elements, which conditions of rows say."""
    for rows in (2, 4):
        x = ts.reshape(x, (rows, 2, 2, -1))
        x = ts.concat([x[:, :1], ts.flip(x[:, 1:], axis=2)], axis=1)
    return x


@every_pair(("level", LEVELS), ("dtype", [dt.complex64, dt.complex128]))
def test_some_complex_numbers(dtype: DType, level: str) -> None:
    """Their parts are picked out of vectors, and not gathered."""
    graph = graph_of(flipped_twice, ((16 * 37,),), dtype)
    inputs = [np.asarray(x, dtype.np) * (1 - 2j) for x in values(((16 * 37,),), dt.float64)]
    lowered = check_levels(graph, inputs, machine=machine(level))
    assert "where=[" in str(lowered.schedule)
    if level != "x86-64":
        assert "target.gather" not in str(lowered.target)


@pytest.mark.unchecked
def test_most_of_a_rolled_row_has_no_conditions() -> None:
    graph = graph_of(lambda x: rolled(x) + x, ((5, 300),), dt.float32)
    tile = str(Lowered(graph, machine("x86-64-v3")).tile)
    middle = tile.split("tile.if")[1].split("otherwise")[0]
    assert middle.count("tile.load") == 1
    assert "select" not in middle


@pytest.fixture
def fenced() -> Iterator[np.ndarray[Any, Any]]:
    """Two pages between two that nobody may touch."""
    memory = mmap.mmap(-1, 4 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for at in (start, start + 3 * PAGE):
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), 0) == 0
    yield np.frombuffer(memory, np.uint8, 2 * PAGE, PAGE)
    for at in (start, start + 3 * PAGE):
        libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), 3)


@every_pair(
    ("level", LEVELS),
    ("dtype", [np.int8, np.float32]),
    ("fn", FUNCTIONS),
)
def test_nothing_beyond_is_touched(
    fn: Callable[[Any], Any], dtype: Any, level: str, fenced: np.ndarray[Any, Any]
) -> None:
    """The first and the last rows of memory lie at pages that end the process if they are read."""
    fenced[:] = np.random.default_rng(0).integers(0, 100, fenced.shape)
    whole = fenced.view(dtype)
    whole[...] = np.random.default_rng(1).integers(0, 100, whole.shape)
    with ts.config.update(cpu_level=level):
        compiled = ts.jit(lambda x: (fn(x),))
        for columns in (33, 200):
            count = 3 * columns
            for flat in (whole[:count], whole[-count:]):
                x = flat.reshape(3, columns)
                (found,), (wanted,) = compiled(x), compiled(x.copy())
                pairs = zip(found, wanted, strict=True) if fn is apart else [(found, wanted)]
                for one, other in pairs:
                    np.testing.assert_array_equal(one, other)
