"""Eager ops: one executable per op and kind of layout serves every shape, also 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager, eager_sizes
from tessera.errors import IndexOutOfBoundsError, ShapeError
from tessera.graph import trace
from tessera.graph.engine import installed
from tessera.graph.ops import rearrange
from tessera.graph.ops.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from tessera.graph.ops.gather import Combine, Scatter
from tessera.graph.ops.generate import RandomBits
from tessera.graph.ops.sort import Sort
from tessera.graph.shortcut import Shortcut
from tessera.ir.core import Op, Value
from tests.counting import names_of_compiled

SIZES = (0, 1, 2, 3, 5, 8)
Case = Callable[[np.random.Generator, tuple[int, ...]], tuple[Any, Any]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what is compiled by an engine that knows nothing yet."""
    names = names_of_compiled(monkeypatch)
    for fn in vars(ts).values():
        if isinstance(fn, Shortcut):
            monkeypatch.setattr(fn, "_table", None, raising=False)
            monkeypatch.setattr(fn, "notes", None)
    with installed(eager.Eager()):
        yield names


def array(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-9, 10, shape).astype(np.float32)


def size(rng: np.random.Generator) -> int:
    return int(rng.choice(SIZES))


def along(ours: Callable[..., Any], numpys: Callable[..., Any], empty: bool = True) -> Case:
    """A function of an array and an axis."""

    def case(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
        axis = int(rng.integers(len(shape)))
        if not empty:
            shape = tuple([max(n, 1) for n in shape])
        x = array(rng, shape)
        return ours(ts.asarray(x), axis=axis), numpys(x, axis=axis)

    return case


def of(ours: Callable[..., Any], numpys: Callable[..., Any]) -> Case:
    """A function of an array."""

    def case(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
        x = array(rng, shape)
        return ours(ts.asarray(x)), numpys(x)

    return case


def matmul(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, y = array(rng, shape), array(rng, (*shape[:-2], shape[-1], size(rng)))
    return ts.matmul(ts.asarray(x), ts.asarray(y)), x @ y


def concat(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    axis = int(rng.integers(len(shape)))
    x, y = array(rng, shape), array(rng, (*shape[:axis], size(rng), *shape[axis + 1 :]))
    found = ts.concat([ts.asarray(x), ts.asarray(y)], axis=axis)
    return found, np.concatenate([x, y], axis=axis)


def pad(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x = array(rng, shape)
    widths = [(int(a), int(b)) for a, b in rng.integers(0, 3, (len(shape), 2))]
    low, high = zip(*widths, strict=True)
    return rearrange.pad(ts.asarray(x), 0, low, high), np.pad(x, widths)


def take(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    axis = int(rng.integers(len(shape)))
    shape = (*shape[:axis], max(shape[axis], 1), *shape[axis + 1 :])
    x, index = array(rng, shape), rng.integers(0, shape[axis], size(rng))
    return ts.take(ts.asarray(x), ts.asarray(index), axis=axis), np.take(x, index, axis=axis)


def broadcast_pair(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    other = [1 if one else n for n, one in zip(shape, rng.integers(0, 2, len(shape)), strict=True)]
    return array(rng, shape), array(rng, tuple(other))


def arithmetic(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, y = broadcast_pair(rng, shape)
    return ts.asarray(x) * ts.asarray(y) + 1.0, x * y + 1.0


def where(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, y = broadcast_pair(rng, shape)
    return ts.where(ts.asarray(x) > 0, ts.asarray(x), ts.asarray(y)), np.where(x > 0, x, y)


def one_hot(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    index, count = rng.integers(0, 4, shape), size(rng)
    wanted = (index[..., None] == np.arange(count)).astype(np.float32)
    return ts.one_hot(ts.asarray(index), count), wanted


def softmax(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    axis = int(rng.integers(len(shape)))
    x = array(rng, tuple([max(n, 1) for n in shape]))
    powers = np.exp(x - x.max(axis, keepdims=True))
    return ts.softmax(ts.asarray(x), axis=axis), powers / powers.sum(axis, keepdims=True)


def reshape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    x = array(rng, shape)
    found = ts.reshape(ts.matrix_transpose(ts.asarray(x)), (x.size,))
    return found, np.swapaxes(x, -1, -2).reshape(x.size)


CASES: dict[str, tuple[Case, int]] = {
    "matmul": (matmul, 8),
    "concat": (concat, 2),
    "sort": (along(ts.sort, np.sort), 4),
    "cumulative_sum": (along(ts.cumulative_sum, np.cumsum), 4),
    "sum": (along(ts.sum, np.sum), 4),
    "max": (along(ts.max, np.max, empty=False), 4),
    "argmax": (along(ts.argmax, np.argmax, empty=False), 4),
    "all axes": (of(ts.sum, np.sum), 1),
    "tile": (of(lambda x: ts.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))), 0),
    "roll": (
        along(lambda x, axis: ts.roll(x, 2, axis=axis), lambda x, axis: np.roll(x, 2, axis)),
        2,
    ),
    "flip": (along(ts.flip, np.flip), 0),
    "reshape": (reshape, 0),
    "pad": (pad, 12),
    "take": (take, 6),
    "arithmetic": (arithmetic, 10),  # patterns of repeated dims, of what comes for the second time
    "where": (where, 8),
    "softmax": (softmax, 24),
    "one_hot": (one_hot, 6),
    "tril": (of(ts.tril, np.tril), 8),
}


@pytest.mark.parametrize("name", CASES)
def test_an_executable_serves_all_shapes(name: str, compiled: list[str]) -> None:
    case, most = CASES[name]
    rng = np.random.default_rng(7)
    for number in range(80):
        shape = tuple([size(rng) for _ in range(2 + number % 2)])
        found, wanted = case(rng, shape)
        assert found.shape == wanted.shape, shape
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, err_msg=str(shape))
    assert len(compiled) <= most, compiled


def scattered(rng: np.random.Generator) -> tuple[type[Op], list[Any], dict[str, Any]]:
    x, count = array(rng, (size(rng), max(size(rng), 1), size(rng))), size(rng)
    updates, index = array(rng, (count, x.shape[0], x.shape[2])), rng.integers(0, x.shape[1], count)
    return Scatter, [x, updates, (index,)], {"axes": (1,), "combine": Combine.ADD}


def dynamic_slice(rng: np.random.Generator) -> tuple[type[Op], list[Any], dict[str, Any]]:
    x = array(rng, (size(rng), size(rng), size(rng)))
    starts = tuple([rng.integers(-1, 9, x.shape[:1]) for _ in range(2)])
    sizes = tuple([int(rng.integers(0, n + 1)) for n in x.shape[1:]])
    return DynamicSlice, [x, starts], {"sizes": sizes}


def dynamic_update(rng: np.random.Generator) -> tuple[type[Op], list[Any], dict[str, Any]]:
    x = array(rng, (size(rng), size(rng), size(rng)))
    update = array(rng, (x.shape[0], *[int(rng.integers(0, n + 1)) for n in x.shape[1:]]))
    starts = tuple([rng.integers(-1, 9, x.shape[:1]) for _ in range(2)])
    return DynamicUpdateSlice, [x, update, starts], {}


def spaced(rng: np.random.Generator) -> tuple[type[Op], list[Any], dict[str, Any]]:
    names = ("lo", "hi", "interior")
    amounts = {name: (0, *[int(n) for n in rng.integers(1, 4, 2)]) for name in names}
    x = array(rng, (size(rng), size(rng), size(rng)))
    return rearrange.Pad, [x, np.float32(7)], amounts


def random_words(rng: np.random.Generator) -> tuple[type[Op], list[Any], dict[str, Any]]:
    keys = rng.integers(0, 9, (size(rng), 2)).astype(np.uint32)
    return RandomBits, [keys], {"shape": (size(rng), size(rng))}


@pytest.mark.parametrize(
    "case",
    [scattered, dynamic_slice, dynamic_update, spaced, random_words],
    ids=lambda f: f.__name__,
)
def test_dims_in_attributes_are_taken_at_run_time(case: Any, compiled: list[str]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        cls, operands, attrs = case(rng)
        given = [tuple(map(ts.asarray, x)) if type(x) is tuple else ts.asarray(x) for x in operands]
        found = trace.bind(cls, *given, **attrs)
        flat = [v for x in operands for v in (x if type(x) is tuple else (x,))]
        values = [
            tuple([Value(v.type) for v in x]) if type(x) is tuple else Value(x.type) for x in given
        ]
        wanted = cls(*values, **attrs).evaluate(*map(np.asarray, flat))
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(np.asarray(found), wanted)
    assert len(compiled) == 1


def test_errors_about_empty_axes_come_from_the_shapes_of_the_call(compiled: list[str]) -> None:
    for n in (3, 0, 2):
        x = ts.asarray(np.ones((2, n), np.float32))
        if n:
            assert np.asarray(ts.max(x, axis=1)).tolist() == [1, 1]
            continue
        with pytest.raises(ShapeError, match="empty"):
            ts.max(x, axis=1)
        with pytest.raises(ShapeError, match="empty"):
            ts.argmax(x, axis=1)
        with pytest.raises(IndexOutOfBoundsError):
            ts.take(x, ts.asarray(np.array([0])), axis=1)
    assert len(compiled) == 1


def test_equal_sizes_do_not_make_dims_equal(compiled: list[str]) -> None:
    rng = np.random.default_rng(1)
    for m, k, n in ((4, 4, 4), (2, 1, 2), (2, 3, 4), (0, 3, 0), (3, 0, 2)):
        x, y = array(rng, (m, k)), array(rng, (k, n))
        np.testing.assert_array_equal(np.asarray(ts.asarray(x) @ ts.asarray(y)), x @ y)
    assert compiled == ["dot_general"]


def test_an_op_that_asks_for_more_than_is_known_of_it(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_sizes, "_TIES", {})
    x, y = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    for _ in range(2):
        found = trace.bind(Sort, (ts.asarray(x), ts.asarray(y)), axis=1)
        assert [f.shape for f in found] == [(2, 3), (2, 3)]
    assert compiled == ["sort"]
