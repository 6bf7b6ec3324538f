"""Functions with annotated shapes are called natively with sizes that no call had before."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import ShapeError, TesseraError
from tessera.runtime.dispatch.native import native

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
]

ANCHORED = ts.dim("S", 1, 4096, anchors=[8, 24], tile=4)
EVEN = ts.dim("E", 2, 64, multiple_of=2)


def counted(f: Any, *args: Any, **kwargs: Any) -> tuple[Any, int]:
    """The result of a call, and how many calls native code ran in it."""
    before = f._table.calls
    result = f(*args, **kwargs)
    return result, f._table.calls - before


def outcome(f: Any, *args: Any) -> object:
    """The result of a call as NumPy arrays, or its error's text."""
    try:
        result = f(*args)
    except TesseraError as error:
        return error.what, error.rule
    return [np.asarray(x).tolist() for x in (result if isinstance(result, tuple) else (result,))]


def product(q: ts.Tensor["S", "D"], k: ts.Tensor["T", "D"]) -> ts.Tensor["S", "T"]:
    return q @ k.T


def expressions(x: ts.Tensor["2*B + 1"], y: ts.Tensor["B"]) -> Any:
    return x[1:] * ts.concat([y, y]), y.shape[0] * y


def equal(x: ts.Tensor["D", 2], h: ts.Tensor["D//4"]) -> Any:
    return ts.reshape(x, (-1,)) * 2, h + 1


def classes(x: ts.Tensor[ANCHORED, 2]) -> ts.Tensor[ANCHORED]:
    return ts.sum(x, axis=1)


def ranged(x: ts.Tensor[EVEN], y: ts.Tensor["E // 2", ...]) -> Any:
    return x[0] + ts.sum(y, axis=0)


def guarded(x: ts.Tensor["N"]) -> Any:
    return x[4] + x


def mixed(x: ts.Tensor["N", "N"], y: Any) -> Any:
    return x * y


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (product, [((2, 3), (4, 3)), ((1, 3), (2, 3)), ((5, 1), (7, 1)), ((9, 30), (2, 30))]),
        (expressions, [((5,), (2,)), ((3,), (1,)), ((9,), (4,)), ((21,), (10,))]),
        (ts.constrain("D % 4 == 0")(equal), [((4, 2), (1,)), ((8, 2), (2,)), ((12, 2), (3,))]),
        (ranged, [((4,), (2, 3)), ((8,), (4, 3)), ((64,), (32, 3))]),
        (guarded, [((5,),), ((6,),), ((70,),), ((9,),)]),
        (mixed, [((2, 2), (1,)), ((3, 3), (1,)), ((4, 4), (1,))]),
    ],
)
def test_new_sizes_need_no_python(fn: Callable[..., Any], shapes: list[Any]) -> None:
    f = ts.jit(fn)
    for k, each in enumerate(shapes):
        arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in each]
        found, calls = counted(f, *arrays)
        assert calls == (k > 1), k
        wanted = ts.jit(fn)(*arrays)
        pairs = zip(ts.pytree.leaves(found), ts.pytree.leaves(wanted), strict=True)
        for a, b in pairs:
            assert (type(a), a.type, a.weak) == (type(b), b.type, b.weak)
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            assert np.asarray(a).ctypes.data % 64 == 0 or not a.size
    assert f.cache_size() == 1


def test_the_classes_of_sizes_are_told_apart() -> None:
    f = ts.jit(classes)
    for size in (8, 24, 4, 3, 8, 24, 16, 5):
        f(np.ones((size, 2), np.float32))
    assert f.cache_size() == len(f.specializations()) == 4
    for size in range(1, 40):
        found, calls = counted(f, np.full((size, 2), size, np.float32))
        assert calls == 1
        np.testing.assert_array_equal(found, np.full(size, 2 * size, np.float32))
    assert f.cache_size() == 4


WARM = {fn.__name__: ts.jit(fn) for fn in (product, expressions, ranged, guarded, classes)}
RANKS = {
    "product": (2, 2),
    "expressions": (1, 1),
    "ranged": (1, 2),
    "guarded": (1,),
    "classes": (2,),
}
FIRST = {
    "product": [((2, 3), (4, 3)), ((1, 3), (2, 3))],
    "expressions": [((5,), (2,)), ((3,), (1,))],
    "ranged": [((4,), (2, 1)), ((8,), (4, 1))],
    "guarded": [((5,),), ((6,),)],
    "classes": [((8, 2),), ((24, 2),), ((4, 2),), ((3, 2),), ((8, 2),), ((24, 2),), ((16, 2),)],
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(WARM)), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_native_code_and_python_agree_on_sizes(name: str, dims: list[int]) -> None:
    """Errors and results are those that a function gives that native code knows nothing of."""
    f = WARM[name]
    if not f._table.calls:
        for shapes in FIRST[name]:
            f(*[np.ones(s, np.float32) for s in shapes])
    shapes, rest = list[tuple[int, ...]](), dims
    for rank in RANKS[name]:
        shapes.append(tuple(rest[:rank]))
        rest = rest[rank:]
    if name == "classes":
        shapes = [(dims[0], 2 if dims[1] > 1 else dims[1])]
    arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes]
    with ts.config.update(dump_dir="other"):  # settings that native code has not met
        wanted = outcome(f, *arrays)
    assert outcome(f, *arrays) == wanted


def test_what_the_program_is_not_for_is_an_error_and_no_run() -> None:
    f = ts.jit(product)
    for s in (1, 2, 3):
        f(np.ones((s, 2), np.float32), np.ones((4, 2), np.float32))
    before = f._table.calls
    with pytest.raises(ShapeError, match=r'`k: dim 1 "D"` is 3, but `q: dim 1 "D"` is 2'):
        f(np.ones((5, 2), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises(ShapeError, match="S is 0"):
        f(np.ones((0, 2), np.float32), np.ones((4, 2), np.float32))
    with pytest.raises(ShapeError, match="of 1 dim"):
        f(np.ones(2, np.float32), np.ones((4, 2), np.float32))
    assert f._table.calls == before
    # Another dtype has a program of its own.
    _, calls = counted(f, np.ones((7, 2)), np.ones((4, 2)))
    assert (calls, f.cache_size()) == (0, 2)


def test_sizes_that_do_not_fit_into_a_word_are_left_to_python() -> None:
    @ts.jit
    @ts.constrain("Z >= 0", "N*N*N >= 1")
    def f(x: ts.Tensor["N", "Z"]) -> Any:
        return x * 2

    for n, calls in ((1, 0), (2, 0), (3, 1), (1 << 20, 1), (1 << 21, 0), (1 << 20, 1)):
        assert counted(f, np.ones((n, 0), np.float32))[1] == calls


def test_large_results_and_scratch_memory_come_from_the_pool() -> None:
    @ts.jit
    def f(x: ts.Tensor["N", "N"]) -> Any:
        return ts.softmax(x @ x @ x), ts.sum(x), x + 1

    for n in (2, 3):
        f(np.ones((n, n), np.float32))
    for n in (600, 5, 700):
        x = np.random.default_rng(n).normal(size=(n, n)).astype(np.float32)
        found, calls = counted(f, x)
        assert calls == 1
        for a, b in zip(found, ts.jit(f.function)(x), strict=True):
            np.testing.assert_array_equal(a, b)
            assert not np.asarray(a).flags.writeable


def test_numbers_keywords_and_containers() -> None:
    @ts.jit
    def f(p: dict[str, ts.Tensor["N"]], s: Any, *, y: ts.Tensor["N"]) -> Any:
        return {"sum": p["a"] * s + y, "n": (p["b"],)}

    for n in (1, 2, 3, 4):
        x = np.arange(n, dtype=np.float32)
        found, calls = counted(f, {"b": x, "a": x + 1}, 2.5, y=x)
        assert calls == (n > 2)
        np.testing.assert_array_equal(found["sum"], (x + 1) * np.float32(2.5) + x)
        np.testing.assert_array_equal(found["n"][0], x)


def test_settings_of_a_block_have_plans_of_their_own() -> None:
    f = ts.jit(guarded)
    for n in (5, 6, 7):
        f(np.ones(n, np.float32))
    with ts.config.update(threads=1):
        # It is compiled once more, as `threads` may change programs.
        assert [counted(f, np.ones(n, np.float32))[1] for n in (8, 9, 7)] == [0, 0, 1]
    assert counted(f, np.ones(10, np.float32))[1] == 1


def test_arrays_without_elements() -> None:
    @ts.jit
    @ts.constrain("N >= 0")
    def f(x: ts.Tensor["N", 3]) -> Any:
        return x * 2

    for n in (1, 2):
        f(np.ones((n, 3), np.float32))
    found, calls = counted(f, np.ones((0, 3), np.float32))
    assert (found.shape, calls) == ((0, 3), 1)


def test_many_threads_call_with_new_sizes() -> None:
    f = ts.jit(product)
    for s in (1, 2, 3):
        f(np.ones((s, 2), np.float32), np.ones((4, 2), np.float32))
    wrong: list[int] = []

    def work(start: int) -> None:
        for s in range(start, 400, 4):
            x = np.full((s, 2), s, np.float32)
            if not np.array_equal(f(x, x[:1]), np.full((s, 1), 2 * s * s, np.float32)):
                wrong.append(s)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_function_without_annotations_is_not_concerned() -> None:
    f = ts.jit(lambda x: x + 1)
    for n in (1, 2, 3, 4):
        assert counted(f, np.ones(n, np.float32))[1] == 0
    assert f.cache_size() == 4
