"""Operators and indices of arrays that native code computes, and what goes to Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager
from tessera.errors import DonatedError, NonFiniteError, TesseraError
from tessera.graph.engine import ENGINE, OPERATORS, current_engine, installed
from tessera.graph.namespace import indexing
from tessera.graph.ops.arithmetic import Add
from tessera.ir.hash import content_hash
from tessera.runtime.dispatch.native import native
from tests.counting import calls

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
    pytest.mark.usefixtures("few_objects"),
]


def array(*shape: int, start: float = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray((np.arange(np.prod(shape, dtype=int)) + start).astype(dtype)).reshape(shape)


X, Y = array(3, 4, start=1), array(3, 4, start=2)


def start_of(cls: type) -> Any:
    return ENGINE[0].starters.get(cls)


def test_operators_of_arrays() -> None:
    x, y = ts.asarray(X), ts.asarray(Y)
    for _ in range(3):
        np.testing.assert_array_equal(x + y, X + Y)
        np.testing.assert_array_equal(x + 2.5, X + np.float32(2.5))
        np.testing.assert_array_equal(2.5 + x, X + np.float32(2.5))
    start = start_of(Add)
    np.testing.assert_array_equal(start(x, y), X + Y)
    np.testing.assert_array_equal(start(x, 0.1), X + np.float32(0.1))
    # Any shape is like any other, but both are the same.
    for shape in ((), (1,), (7,), (2, 1, 3)):
        a = ts.asarray(array(*shape))
        found = start(a, a)
        assert found.shape == shape
        np.testing.assert_array_equal(found, array(*shape) * 2)
    np.testing.assert_array_equal(start(2.0, x), X + 2)
    np.testing.assert_array_equal(start(x, 3), X + 3)
    declined: list[tuple[Any, ...]] = [(x, y[0]), (x[0], y), (x,), (x, y, y), (x, None), (1, 2)]
    for given in (*declined, (x, 1e300), (x, 10**30), (x, True), (x, 1j), (x, x.mT), (x, X > 0)):
        assert start(*given) is NotImplemented
    assert start(ts.zeros((0, 3)), ts.zeros((0, 3))) is NotImplemented
    big = ts.ones(1 << 19)  # from the pool
    found = start(big, big)
    assert found.shape == big.shape
    np.testing.assert_array_equal(found, np.full(1 << 19, 2, np.float32))
    assert (x + y).dtype == ts.float32


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


class Compiled:
    """A program that is lowered once, for all engines that ask for an equal one."""

    def __init__(self, program: Any) -> None:
        self._found = program.executable()

    def executable(self) -> Any:
        return self._found


COMPILED: dict[str, Compiled] = {}


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh engine knows no operators, but need not lower what another one has."""
    lower = eager.lower_graph

    def known(graph: Any, *args: Any) -> Compiled:
        key = content_hash(graph)
        if key not in COMPILED:
            COMPILED[key] = Compiled(lower(graph, *args))
        return COMPILED[key]

    monkeypatch.setattr(eager, "lower_graph", known)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.usefixtures("compiled_once")
def test_operators_mean_the_same_when_they_are_native(name: str) -> None:
    """Later results are those of the first, which Python computes; a fresh engine does not know."""
    fn = BINARY[name]
    weak = ts.jit(lambda: (ts.ones(2) * 0 + 2.0, 2.0))()[1]
    kinds: list[Any] = [
        *[ts.asarray(array(2, 3, start=k, dtype=d)) for d in ("f4", "f8", "f2", "i4", "i8", "u1")
          for k in (0, 2)],
        ts.asarray(array(3)), ts.asarray([True, False, True]), weak, ts.asarray(3.0),
        2.5, 3, True, -7, float("inf"), 2**40, 1e300, 0.1, 2**70, array(2, 3), np.float32(3),
    ]  # fmt: skip

    def outcome(a: Any, b: Any) -> Any:
        try:
            found = fn(a, b)
        except (TesseraError, OverflowError) as error:
            return type(error)
        return str(found.type), found.weak, np.asarray(found).tobytes()

    fresh = eager.Eager()
    with np.errstate(all="ignore"):
        for a in kinds:
            for b in kinds:
                if not (isinstance(a, ts.Array) or isinstance(b, ts.Array)):
                    continue
                fresh.starters.clear()
                fresh.operators.clear()
                with installed(fresh):
                    wanted = outcome(a, b)
                for _ in range(3):
                    assert outcome(a, b) == wanted


class Other:
    """What takes arrays on either side, and says how it was asked."""

    def __add__(self, other: Any) -> Any:
        return "add", other

    def __radd__(self, other: Any) -> Any:
        return "radd", other

    def __lt__(self, other: Any) -> Any:
        return "lt", other

    def __gt__(self, other: Any) -> Any:
        return "gt", other


def warm_operators(x: Any, y: Any) -> None:
    for _ in range(3):
        for fn in BINARY.values():
            fn(x, y)


def test_operators_are_asked_in_the_order_of_python() -> None:
    x, y, other = ts.asarray(X), ts.asarray(Y), Other()
    warm_operators(x, y)
    assert x + other == ("radd", x)
    assert other + x == ("add", x)
    assert (x < other) == ("gt", x)
    assert (other < x) == ("lt", x)
    for fn in (lambda: x - other, lambda: other - x, lambda: other * x, lambda: x / other):
        with pytest.raises(TypeError, match="unsupported operand"):
            fn()
    for fn in (lambda: x + "text", lambda: None * x, lambda: x < [1]):
        with pytest.raises(TesseraError, match="beside an array"):
            fn()
    np.testing.assert_array_equal(array(4) + ts.asarray(array(4)), array(4) * 2)
    np.testing.assert_array_equal(ts.Array.__add__(x, y), X + Y)
    assert ts.Array.__add__(x, object()) is NotImplemented


def test_operators_of_classes_of_the_user() -> None:
    x, y = ts.asarray(X), ts.asarray(Y)
    warm_operators(x, y)

    class Named(ts.Array):
        __slots__ = ()

        def __radd__(self, other: Any) -> Any:
            return "named"

    assert x + Named(X) == "named"
    np.testing.assert_array_equal(Named(X) - y, X - Y)
    np.testing.assert_array_equal(x - Named(Y), X - Y)


def test_operators_give_references_back() -> None:
    x, y, other = ts.asarray(X), ts.asarray(Y), Other()
    warm_operators(x, y)
    things = (x, y, x.storage, y.storage, other, None, NotImplemented)
    counts = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        _ = x + y, x < y, 2.5 * x, x + other, other + x, x < other
        with pytest.raises(TypeError):
            x - other
    del _
    gc.collect()
    for count, thing in zip(counts, things, strict=True):
        assert abs(sys.getrefcount(thing) - count) < 9


def test_operators_of_an_engine_end_with_it() -> None:
    x, y = ts.asarray(X), ts.asarray(Y)
    warm_operators(x, y)
    before = list(OPERATORS)
    assert any(before)
    with installed(eager.Eager()):
        assert not any(OPERATORS)
        warm_operators(x, y)
        assert any(OPERATORS)
        assert not set(OPERATORS) & set(before) - {0}
    assert list(OPERATORS) == before
    zero = ts.zeros(3)
    with ts.debug.nans(), pytest.raises(NonFiniteError):
        zero / zero
    assert list(OPERATORS) == before
    np.testing.assert_array_equal(x + y, X + Y)


def test_what_native_code_was_told_outlives_the_engine() -> None:
    """A word of another engine that was left behind would not be one of freed memory."""
    x, y = ts.asarray(X), ts.asarray(Y)
    left, before = [], list(OPERATORS)
    for _ in range(5):
        with installed(eager.Eager()):
            warm_operators(x, y)
            left.append(list(OPERATORS))
    gc.collect()
    try:
        for words in left:
            OPERATORS[:] = words
            np.testing.assert_array_equal(x + y, X + Y)
            np.testing.assert_array_equal(x < y, X < Y)
    finally:
        OPERATORS[:] = before
    assert current_engine().operators


INDICES: list[Any] = [
    *(0, -1, 2, slice(None), slice(1, 3), slice(None, None, -2), slice(5, 2), slice(9, None)),
    *(None, ..., (), (1,), (0, ...), (..., -1), (None, 1), (slice(1, None), None)),
    *((None, ..., None), (0, 1)),
    *((-1, slice(1, None)), (slice(None), -1), (slice(None, None, 2), slice(0, 2))),
    *((1, 0, 1), (slice(None), ..., 0), (0, ..., None, 1)),
]


def enters_python(read: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a read of an array enters the function of Python; what it gives."""
    count, found = calls(read, indexing.getitem.__code__)
    return count > 0, found


SHAPES = [(), (4,), (3, 4), (3, 0), (256,), (257,), (2000,), (16, 17), (3, 2, 5), (300, 2, 5)]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_and_views(shape: tuple[int, ...], index: Any) -> None:
    native()
    for dtype in (ts.float32, ts.int8, ts.bfloat16, ts.complex128):
        x = ts.asarray(array(*shape), dtype=dtype)
        try:
            wanted = np.asarray(x)[index]
        except IndexError:
            with pytest.raises(TesseraError):
                x[index]
            continue
        entered, found = enters_python(lambda x=x: x[index])
        assert not entered
        assert type(found) is ts.Array
        assert found.shape == wanted.shape
        assert (found.dtype, found.weak) == (dtype, False)
        assert found.type == indexing.getitem(x, index).type
        np.testing.assert_array_equal(found, wanted)
        data = np.asarray(found)
        assert not data.flags.writeable
        assert data.flags.aligned == np.asarray(x).flags.aligned
        # An element of a large array does not keep that.
        items = index if isinstance(index, tuple) else (index,)
        numbers = sum(type(item) is int for item in items)
        is_copied = len(shape) > 0 and numbers == len(shape) and x.size > 256
        assert np.shares_memory(data, np.asarray(x)) == bool(found.size and not is_copied)


def test_views_of_views() -> None:
    x = ts.asarray(array(4, 6))
    for found, wanted in (
        (x[:, 2][1], 8.0), (x[::2, 1:][1][3], 16.0), (x[1][::-1][0], 11.0), (x[-1][2:][0], 20.0),
    ):  # fmt: skip
        assert float(found) == wanted
    column = x[:, 3]
    del x
    gc.collect()
    np.testing.assert_array_equal(column * 2, [6, 18, 30, 42])


def test_what_is_no_view_goes_to_python() -> None:
    native()
    x, twice = ts.asarray(X), ts.jit(lambda x: x * 2, donate_argnums=0)
    for index, wanted in (
        (True, X[None]), (np.int64(1), X[1]), ([0], X[[0]]), (ts.asarray(1), X[1]),
        ((0, np.int64(1)), X[0, 1]), (([0, 1], 1), X[:2, 1]), ((ts.asarray(2), 0), X[2, 0]),
    ):  # fmt: skip
        entered, found = enters_python(lambda index=index: x[index])
        assert entered
        np.testing.assert_array_equal(found, wanted)
    for index, text in (
        (3, "3 is out of range for dim 0"), (-4, "-4 is out of range for dim 0"),
        ((0, 4), "4 is out of range for dim 1"), (1 << 70, "out of range for dim 0"),
        ((0, True), "stands alone"), ((0, 0, 0), "index"), ((..., ...), "index"),
        ("a", "index"), (2.0, "index"),
    ):  # fmt: skip
        with pytest.raises(TesseraError, match=text):
            x[index]
    vector = ts.asarray(array(5))
    for at in (5, -6, 1 << 70, -(1 << 70)):
        with pytest.raises(TesseraError, match="is out of range for dim 0"):
            vector[at]
    twice(x)
    with pytest.raises(DonatedError):
        x[0]
    y = ts.asarray(X)
    traced = ts.make_graph(lambda v: (v[0], y[0] * v[1]))(y)
    np.testing.assert_array_equal(ts.jit(lambda v: y[0] * v[1])(y), X[0] * X[1])
    assert len(traced.outputs) == 2


def test_classes_with_subscripts_of_their_own() -> None:
    class Named(ts.Array):
        def __getitem__(self, index: Any) -> Any:
            return "name" if index == "name" else super().__getitem__(index)

    class Plain(ts.Array):
        pass

    native()
    x = Named(X.copy())
    assert x["name"] == "name"
    np.testing.assert_array_equal(x[1], X[1])
    np.testing.assert_array_equal(Plain(X.copy())[1:, 2], X[1:, 2])
    np.testing.assert_array_equal(ts.Array.__getitem__(ts.asarray(X), 2), X[2])


def test_views_keep_what_they_show_and_no_more() -> None:
    native()
    x = ts.asarray(array(4, 5))
    data, nothing = x.storage, sys.getrefcount(None)
    data = data if data.base is None else data.base  # which NumPy's views refer to
    count = sys.getrefcount(data)
    views = [x[k % 4] for k in range(100)]
    assert sys.getrefcount(data) == count + 100
    del views
    with pytest.raises(TesseraError):
        x[4]
    assert sys.getrefcount(data) == count
    assert abs(sys.getrefcount(None) - nothing) < 50


def test_bools_are_not_added() -> None:
    b = ts.asarray([True, False])
    for _ in range(3):
        with pytest.raises(TesseraError):
            b + b


def test_operators_while_watched_or_traced() -> None:
    zero = ts.zeros(3)
    for _ in range(3):
        zero / zero
    for _ in range(3):
        with ts.debug.nans(), pytest.raises(NonFiniteError):
            zero / zero
    graph = str(ts.jit(lambda x: x + zero / zero).trace(zero).graph)
    assert "div" in graph


def test_results_that_are_weak_stay_so() -> None:
    weak = ts.jit(lambda: (1.0, 2.0))()
    found = [weak[0] + weak[1] for _ in range(4)]
    assert len({(x.type, x.weak) for x in found}) == 1
