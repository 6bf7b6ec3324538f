"""Calls of eager functions that native code runs as a whole: which ones, and what they give."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DonatedError, DTypeError, LeafError, NonFiniteError, ShapeError
from tessera.graph.shortcut import Shortcut
from tessera.runtime.dispatch.native import native
from tests.counting import calls, forget

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
]

RNG = np.random.default_rng(11)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.5, 4, shape).astype(dtype)


def natively(fn: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether native code runs a call."""
    assert isinstance(fn, Shortcut)
    table = fn.notes.signatures.table if fn.notes else None
    before = table and table.calls
    fn(*args, **kwargs)
    return table is not None and table.calls == before + 1


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "sum": (ts.sum, np.sum, ((3, 4),), {}),
    "sum of rows": (ts.sum, np.sum, ((3, 4),), {"axis": 1}),
    "sum of columns, kept": (ts.sum, np.sum, ((3, 4),), {"axis": 0, "keepdims": True}),
    "sum over two": (ts.sum, np.sum, ((3, 4, 2),), {"axis": (0, 2)}),
    "max": (ts.max, np.max, ((5,),), {"axis": -1}),
    "min": (ts.min, np.min, ((5, 1),), {"axis": 0}),
    "prod": (ts.prod, np.prod, ((2, 3),), {}),
    "matmul": (ts.matmul, np.matmul, ((3, 4), (4, 5)), {}),
    "matmul of a vector": (ts.matmul, np.matmul, ((3, 4), (4,)), {}),
    "maximum": (ts.maximum, np.maximum, ((3, 4), (3, 4)), {}),
    "maximum of a number": (ts.maximum, np.maximum, ((3, 4), 1.5), {}),
    "minimum of an integer": (ts.minimum, np.minimum, (2, (7,)), {}),
    "exp": (ts.exp, np.exp, ((3, 4),), {}),
    "where": (ts.where, np.where, (True, (3, 4), (3, 4)), {}),
    "abs": (ts.abs, np.abs, ((6,),), {}),
    "add": (ts.add, np.add, ((3, 4), (3, 4)), {}),
    "divide by a number": (ts.divide, np.divide, ((3, 4), 2.5), {}),
    "less": (ts.less, np.less, ((5,), (5,)), {}),
    "isnan": (ts.isnan, np.isnan, ((5,),), {}),
    "atan2": (ts.atan2, np.arctan2, ((3, 4), (3, 4)), {}),
    "sort": (ts.sort, np.sort, ((3, 4),), {"axis": 0}),
    "cumsum": (ts.cumsum, np.cumsum, ((3, 4),), {"axis": 1}),
    "argmax": (ts.argmax, np.argmax, ((3, 4),), {"axis": 1}),
}


@pytest.mark.parametrize("name", CALLS)
def test_results(name: str) -> None:
    fn, numpy, shapes, kwargs = CALLS[name]
    forget(fn)  # other tests may have called it where another engine computes
    for shift in (0, 3):
        sizes = [tuple(n + shift * (n > 2) for n in s) if type(s) is tuple else s for s in shapes]
        for _ in range(5):
            given = [data(*s) if type(s) is tuple else s for s in sizes]
            args = [ts.asarray(x) if type(x) is np.ndarray else x for x in given]
            found = fn(*args, **kwargs)
            wanted = numpy(*given, **kwargs)
            assert found.shape == np.shape(wanted)
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)
        assert natively(fn, *args, **kwargs)


def test_one_number_repeated_says_nothing_of_other_arrays() -> None:
    x = ts.asarray(data(23))
    for _ in range(4):
        repeated = ts.broadcast_to(ts.asarray(np.float32(-3)), (23,))
        np.testing.assert_array_equal(np.asarray(ts.abs(repeated)), np.full(23, 3))
    for _ in range(4):
        ts.abs(x)
    assert natively(ts.abs, x)


@pytest.mark.parametrize("dtype", [ts.float64, ts.int32, ts.bool, ts.bfloat16, ts.complex64])
def test_dtypes_are_told_apart(dtype: Any) -> None:
    for _ in range(3):
        x = ts.astype(ts.asarray(data(3, 4)), dtype)
        found = ts.sum(x, axis=0)
        with ts.debug.nans():  # not natively
            wanted = ts.sum(x, axis=0)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_settings_of_a_block() -> None:
    x = ts.asarray(data(3, 7))
    wanted = ts.sum(x)
    for _ in range(3):
        with ts.config.update(threads=1):
            assert float(ts.sum(x)) == pytest.approx(float(wanted), rel=1e-6)
    with ts.config.update(threads=1):
        assert natively(ts.sum, x)
    with ts.config.update(threads=2):
        assert not natively(ts.sum, x)  # it may be another program


def test_numbers_are_read_anew() -> None:
    x = ts.asarray(data(4, 5))
    for number in (0.5, 1.0, 2.0, 3.5, 2, True):
        for _ in range(2):
            wanted = np.maximum(np.asarray(x), np.float32(number))
            np.testing.assert_array_equal(np.asarray(ts.maximum(x, number)), wanted)


def test_other_keywords_are_other_calls() -> None:
    x = ts.asarray(data(3, 3))
    for _ in range(4):
        for axis in (0, 1, None, (0, 1), (1,), -1):
            for keepdims in (False, True):
                wanted = np.sum(np.asarray(x), axis=axis, keepdims=keepdims)
                found = ts.sum(x, axis=axis, keepdims=keepdims)
                assert found.shape == wanted.shape
                np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


def test_weak_types_stay() -> None:
    x, one = ts.asarray(data(3)), ts.asarray(2.0)
    for _ in range(4):
        weak = ts.exp(one)
        assert weak.dtype == ts.exp(one).dtype
        assert (ts.sum(x) + 1).dtype == ts.float32


def test_views_and_strides_go_to_python() -> None:
    whole = data(6, 8)
    x = ts.asarray(whole)
    for _ in range(4):
        np.testing.assert_allclose(np.asarray(ts.sum(x.T, axis=0)), whole.sum(1), rtol=1e-5)
        found = np.asarray(ts.sum(x[:, ::2], axis=0))
        np.testing.assert_allclose(found, whole[:, ::2].sum(0), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(ts.sum(ts.ones((3, 4)))), 12)


def test_mistakes_stay_errors() -> None:
    x = ts.ones((3, 4)) + 0
    for _ in range(4):
        assert ts.matmul(x, x.T).shape == (3, 3)
        with pytest.raises(ShapeError):
            ts.matmul(x, x)
        with pytest.raises(DTypeError):
            ts.maximum(x, 1j)
        with pytest.raises(ts.TesseraError):
            ts.sum(x, axis=2)
        with pytest.raises(ts.TesseraError):
            ts.sum(x, axes=0)  # type: ignore[call-arg]
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    f(x)
    with pytest.raises(DonatedError):
        ts.sum(x)


def test_traces_and_transforms_see_the_function() -> None:
    x = ts.asarray(data(3, 4))
    for _ in range(4):
        ts.sum(x, axis=0)
        assert "reduce_sum" in str(ts.jit(lambda x: ts.sum(x, axis=0)).trace(x))
        assert ts.grad(lambda x: ts.sum(ts.exp(x)))(x).shape == (3, 4)
        assert ts.vmap(lambda x: ts.sum(x))(x).shape == (3,)


def test_not_a_number_is_found() -> None:
    x = ts.asarray(np.array([-1.0, 2.0], np.float32))
    for _ in range(4):
        ts.sqrt(x)
    with ts.debug.nans(), pytest.raises(NonFiniteError):
        ts.sqrt(x)


def in_threads(work: Callable[[int], None]) -> None:
    """Runs work for several numbers at once."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_threads() -> None:
    wrong: list[object] = []

    def work(k: int) -> None:
        x = np.full((k + 1, 3), k, np.float32)
        ours = ts.asarray(x)
        for _ in range(200):
            found = ts.sum(ours, axis=0), ts.matmul(ours, ours.T)
            for a, b in zip(found, (x.sum(0), x @ x.T), strict=True):
                if not np.array_equal(np.asarray(a), b):
                    wrong.append(k)

    in_threads(work)
    assert not wrong


def test_large_arrays() -> None:
    x = data(1 << 19)
    ours = ts.asarray(x)
    for _ in range(4):
        np.testing.assert_allclose(np.asarray(ts.exp(ours)), np.exp(x), rtol=1e-5)
        np.testing.assert_allclose(float(ts.sum(ours)), x.sum(dtype=np.float64), rtol=1e-5)


def test_functions_stay_functions() -> None:
    """Marked functions are objects; to those who ask they look like functions."""
    assert inspect.isroutine(ts.sum)
    assert ts.sum.__name__ == ts.sum.__qualname__ == "sum"
    assert repr(ts.sum) == "<function sum>"
    assert list(inspect.signature(ts.sum).parameters) == ["x", "axis", "dtype", "keepdims"]
    assert pickle.loads(pickle.dumps(ts.matmul)) is ts.matmul
    assert copy.deepcopy(ts.matmul) is ts.matmul
    assert weakref.ref(ts.sum)() is ts.sum
    assert str(ts.sum.__doc__).startswith("The sum")
    assert "sum(" in re.sub("(.)\x08", "", pydoc.render_doc(ts.sum))


class Module:
    """Whose method is a function of the library, and what is called of each instance."""

    negative = ts.negative
    total = staticmethod(ts.sum)


def test_functions_are_methods_of_classes() -> None:
    x = ts.asarray(data(3))
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(x.__neg__()), -np.asarray(x))
        np.testing.assert_array_equal(np.asarray(ts.Array.__neg__(x)), -np.asarray(x))
        np.testing.assert_array_equal(np.asarray(-x), -np.asarray(x))
        assert float(Module().total(x)) == pytest.approx(float(np.asarray(x).sum()))
    assert Module.negative is ts.negative
    assert natively(ts.Array.__neg__, x)
    with pytest.raises(LeafError, match="negative: got a value of type Module"):
        Module().negative()  # type: ignore[call-arg]


def test_methods_take_no_frame_of_python() -> None:
    """Neither a bound method nor a frame is made where a call is known."""
    x = ts.asarray(data(5))

    def read() -> None:
        for _ in range(10):
            _ = -x
            ts.exp(x)

    read()
    read()
    count, _ = calls(read)
    assert count <= 1


@pytest.mark.parametrize(
    "policy",
    [
        ts.Policy(order="fixed"),
        ts.Policy(compute=ts.float32, accumulate=ts.float32),
        ts.Policy(storage=ts.bfloat16),
        ts.Policy(accumulate=ts.float64),
    ],
    ids=str,
)
def test_operators_within_policies(policy: ts.Policy) -> None:
    """Native code runs them, also where a policy rounds what is read and what comes out. Another
    policy, and none, is told apart."""
    x, y = ts.asarray(data(3, 4)), ts.asarray(data(3, 4))
    operators: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "truediv": lambda a, b: a / b, "lt": lambda a, b: a < b,
    }  # fmt: skip
    for name, operator in operators.items():
        plain = operator(x, y)
        for number in (y, 2.5):
            with ts.policy(policy):
                wanted = ts.jit(operator)(x, number)
                for _ in range(5):
                    found = operator(x, number)
                    assert found.dtype == wanted.dtype
                    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
                if name != "lt":
                    reflected = ts.jit(lambda a, b, f=operator: f(b, a))(x, 2.5)
                    for _ in range(4):
                        np.testing.assert_array_equal(
                            np.asarray(operator(2.5, x)), np.asarray(reflected)
                        )
                assert natively(getattr(ts.Array, f"__{name}__"), x, number)
        np.testing.assert_array_equal(np.asarray(operator(x, y)), np.asarray(plain))


def test_errors_of_operators_within_policies() -> None:
    with ts.policy(ts.Policy(order="fixed")):
        for _ in range(4):
            with pytest.raises(ShapeError) as error:
                _ = ts.ones(3) + ts.ones(2)
            assert "ts.ones(3) + ts.ones(2)" in str(error.value)
