"""Calls that native code runs: which ones, what they give, and that all others go to Python."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import subprocess
import sys
import threading
import tracemalloc
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import DonatedError, NonFiniteError, RetraceError, TesseraError
from tessera.graph.called import VECTORCALL, vectorcall_flag
from tessera.runtime.dispatch import native as native_module
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.native import Called, Table, native
from tessera.runtime.dispatch.signatures import key_hash
from tessera.runtime.layout import method_word, sequences_are_known, slot_offsets
from tessera.runtime.memory import LISTED_LINES, pool

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
    pytest.mark.usefixtures("few_objects"),
]

Pair = namedtuple("Pair", "a b")


@pytree.register_dataclass
@dataclasses.dataclass
class Scaled:
    x: Any
    by: Any
    name: str = dataclasses.field(default="s", metadata={"static": True})


def array(*shape: int, start: float = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray((np.arange(np.prod(shape, dtype=int)) + start).astype(dtype)).reshape(shape)


def natively(f: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call is run by native code."""
    before = f._table.calls
    f(*args, **kwargs)
    return f._table.calls == before + 1


def warm(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls until native code knows the call."""
    f(*args, **kwargs)
    return f(*args, **kwargs)


# --- what is called natively ------------------------------------------------------------------

X, Y = array(3, 4, start=1), array(3, 4, start=2)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "arrays": (lambda x, y: x * y, (ts.asarray(X), ts.asarray(Y)), {}),
    "NumPy": (lambda x, y: x * y, (X, Y), {}),
    "keyword": (lambda x, y: x - y, (X,), {"y": Y}),
    "keywords": (lambda x, y: x - y, (), {"y": Y, "x": X}),
    "tuple": (lambda t: t[0] - t[1][0], ((X, [Y]),), {}),
    "dict": (lambda d: d["b"] - d["a"], ({"b": X, "a": Y},), {}),
    "numbered dict": (lambda d: d[2] - d[1], ({2: X, 1: Y},), {}),
    "named tuple": (lambda p: p.a - p.b, (Pair(X, Y),), {}),
    "dataclass": (lambda s: s.x * s.by, (Scaled(X, Y),), {}),
    "None": (lambda t: t[0] if t[1] is None else t[1], ((X, None),), {}),
    "nested": (lambda t: t["p"].a + t["l"][0]["x"], ({"l": [{"x": X}], "p": Pair(Y, ())},), {}),
    "ordered dict": (lambda d: d["b"] - d["a"], (OrderedDict(b=X, a=Y),), {}),
    "float": (lambda x, s: x * s, (X, 2.5), {}),
    "int": (lambda x, s: x * s, (X, 3), {}),
    "bool": (lambda x, s: ts.where(s, x, -x), (X, False), {}),
    "many outputs": (lambda x: (x, x + 1, x * 2), (X,), {}),
    "a list": (lambda x: [x + 1], (X,), {}),
    "a tree": (lambda x: {"b": x + 1, "a": (x * 2, None)}, (X,), {}),
    "nothing": (lambda x: (), (X,), {}),
    "no arguments": (lambda: ts.arange(3), (), {}),
    "captured": (lambda x: x + ts.asarray(Y), (X,), {}),
    "scratch": (lambda x: ts.softmax(x @ x.mT @ x) if hasattr(ts, "softmax") else x @ x, (X,), {}),
    "large": (lambda x: x * 2, (array(600, 600),), {}),
    "no elements": (lambda x: x * 2, (array(0, 500),), {}),
    "no dims": (lambda x: x * 2, (array(),), {}),
    "weak result": (lambda x: (x, 2.0), (X,), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_native_calls_give_what_python_gives(name: str) -> None:
    fn, args, kwargs = CALLS[name]
    f = ts.jit(fn)
    wanted = f(*args, **kwargs)
    f(*args, **kwargs)
    assert natively(f, *args, **kwargs)
    found = f(*args, **kwargs)
    assert pytree.structure(found) == pytree.structure(wanted)
    for a, b in zip(pytree.leaves(found), pytree.leaves(wanted), strict=True):
        assert (type(a), a.type, a.weak) == (type(b), b.type, b.weak)
        x, y = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(x, y)
        for flag in ("c_contiguous", "f_contiguous", "aligned", "writeable"):
            assert getattr(x.flags, flag) == getattr(y.flags, flag)
        assert x.strides == y.strides
        assert x.ctypes.data % 64 == 0 or not x.size
        assert not x.flags.writeable


def test_names_in_any_order_and_dicts_in_any_order() -> None:
    f = ts.jit(lambda d, x, y: d["a"] - d["b"] + x - y)
    wanted = warm(f, {"a": X, "b": Y}, x=X, y=Y)
    assert natively(f, {"b": Y, "a": X}, y=Y, x=X)
    np.testing.assert_array_equal(f({"b": Y, "a": X}, y=Y, x=X), wanted)
    np.testing.assert_array_equal(f({"b": X, "a": Y}, y=X, x=Y), -np.asarray(wanted))


@pytest.mark.parametrize("order", ["as noted", "sorted", "turned", "turned in part", "replaced"])
def test_entries_are_found_in_any_order(order: str) -> None:
    names = [f"layer{k}" for k in range(12)]  # "layer10" stands before "layer2"
    tree = {name: (np.full(2, k, np.float32), {"b": X + k, "a": k}) for k, name in enumerate(names)}

    def fn(tree: Any) -> Any:
        return [(v[0] * 2, v[1]["b"] - v[1]["a"]) for _, v in sorted(tree.items())]

    f = ts.jit(fn)
    wanted = warm(f, tree)
    others = {
        "as noted": names,
        "sorted": sorted(names),
        "turned": names[::-1],
        "turned in part": [*names[:5], *names[:4:-1]],
        # Keys that are equal, and other objects.
        "replaced": ["".join(["lay", name[3:]]) for name in names],
    }
    given = {name: tree[name] for name in others[order]}
    assert natively(f, given)
    for found, expected in zip(pytree.leaves(f(given)), pytree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_dicts_that_lack_something_give_back_what_was_found() -> None:
    names = [f"layer{k}" for k in range(12)]
    tree = {name: np.full(2, k, np.float32) for k, name in enumerate(names)}
    counts = [sys.getrefcount(x) for x in tree.values()]
    f = ts.jit(lambda tree: sum(tree.values()))
    warm(f, tree)
    for k, name in enumerate(names):
        renamed = {(n if n != name else "other"): x for n, x in tree.items()}
        wrong = {**tree, name: "text"}
        assert not natively(f, renamed)
        f.clear_cache()
        warm(f, tree)
        with pytest.raises(ts.TesseraError):
            f(wrong)
        assert natively(f, tree)
        assert float(f(tree)[0]) == 66, k
    del renamed, wrong
    gc.collect()
    f.clear_cache()
    assert [sys.getrefcount(x) for x in tree.values()] == counts


def test_dicts_with_more_entries_than_there_is_room_for() -> None:
    f = ts.jit(lambda tree: tree["x"] * 2)
    for count in (w.MOST_LEAVES - 1, w.MOST_LEAVES, 100_000):
        tree = {"x": X, **{f"none{k}": None for k in range(count)}}
        for _ in range(3):
            np.testing.assert_array_equal(f(tree), X * 2)


def test_static_arguments() -> None:
    f = ts.jit(lambda x, n, *, name: x * n + len(name), static_argnums=1, static_argnames="name")
    for n, name in ((2, "a"), (3, "a"), (2, "abc"), (True, "a"), (1, "a"), (2.0, "a")):
        for _ in range(4):
            np.testing.assert_allclose(f(X, n, name=name), X * n + len(name))
    assert f.cache_info().misses == 6
    assert natively(f, X, 2, name="".join(["a", "bc"]))  # an equal string that is another object
    assert natively(f, X, 3, name="a")
    zero = ts.jit(lambda x, s: x / s, static_argnums=1)
    one = ts.ones(1)
    for _ in range(4):
        assert float(zero(one, 0.0)[0]) == np.inf
        assert float(zero(one, -0.0)[0]) == -np.inf


def test_static_values_of_other_classes_stay_in_python() -> None:
    class Mode:
        def __init__(self, n: int) -> None:
            self.n = n

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Mode) and self.n == other.n

        def __hash__(self) -> int:
            return hash(self.n)

    f = ts.jit(lambda x, m: x * m.n, static_argnums=1)
    mode = Mode(2)
    for _ in range(4):
        np.testing.assert_array_equal(f(X, mode), X * 2)
    mode.n = 3
    np.testing.assert_array_equal(f(X, mode), X * 3)


def test_many_signatures() -> None:
    f = ts.jit(lambda x: x + x.shape[0])
    arrays = [array(k + 1) for k in range(40)]
    for _ in range(2):
        for x in arrays:
            f(x)
    for x in arrays:
        assert natively(f, x)
        np.testing.assert_array_equal(f(x), x + len(x))
    assert f.cache_info() == (40 + 80, 40, None, 40)


def test_more_structures_than_there_is_room_for() -> None:
    f = ts.jit(lambda *xs: sum(xs))
    for count in range(1, native_module.MOST_STRUCTURES + 4):
        for _ in range(3):
            np.testing.assert_array_equal(f(*[X] * count), X * count)
    assert natively(f, X)
    assert not natively(f, *[X] * (native_module.MOST_STRUCTURES + 2))


@pytest.mark.parametrize(("count", "rank"), [(500, 1), (600, 1), (400, 8), (1200, 1)])
def test_many_leaves(count: int, rank: int) -> None:
    f = ts.jit(lambda xs: (xs[0] + xs[-1], [xs[k] for k in range(0, len(xs), 3)]))
    xs = [np.full((1,) * rank, k, np.float32) for k in range(count)]
    for _ in range(4):
        total, some = f(xs)
        assert float(total.item()) == count - 1
        assert [float(x.item()) for x in some] == list(range(0, count, 3))
    is_native = count <= w.MOST_LEAVES and count * (rank + 2) + 1 <= w.MOST_KEY_WORDS - 80
    assert natively(f, xs) == is_native


def test_in_a_thread_with_a_small_stack() -> None:
    f = ts.jit(lambda x: x * 2)
    warm(f, X)
    found: list[bool] = []
    before = threading.stack_size(96 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.append(natively(f, X)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert found == [True]


def test_hashes_that_collide() -> None:
    # All of one hash: the keys themselves are compared.
    f = ts.jit(lambda x: x * 2)
    warm(f, array(3))
    warm(f, array(4))
    known = f._native._signatures.find(1)
    assert known is not None
    entries = known._entries
    keys = list(known._keys)
    assert {key_hash(k) for k in keys} == {int(h) for h in entries[:, 0] if h}
    np.testing.assert_array_equal(f(array(3)), array(3) * 2)
    np.testing.assert_array_equal(f(array(4)), array(4) * 2)


# --- guards -----------------------------------------------------------------------------------


class Sub(np.ndarray):
    pass


def unaligned() -> np.ndarray:
    return np.frombuffer(bytes(4 * 12 + 1), np.uint8)[1:].view(np.float32).reshape(3, 4)


STRIDED: dict[str, Callable[[], Any]] = {
    "Fortran order": lambda: np.asfortranarray(array(3, 4)),
    "strides": lambda: array(3, 8)[:, ::2],
    "negative strides": lambda: array(3, 4)[::-1],
    "alignment": unaligned,
    "ours, turned": lambda: ts.asarray(array(4, 3)).T,
    "ours, reversed": lambda: ts.asarray(array(3, 4))[:, ::-1],
    "ours, a part": lambda: ts.asarray(array(5, 6))[1:4, 2:],
}


@pytest.mark.parametrize("name", STRIDED)
def test_small_arrays_in_another_order_are_copied(name: str) -> None:
    f = ts.jit(lambda x: (x * 2, x + 1))
    warm(f, array(3, 4))
    for _ in range(3):
        given = STRIDED[name]()
        before = f._table.calls
        doubled, more = f(given)
        assert f._table.calls == before + 1
        np.testing.assert_array_equal(doubled, np.asarray(given) * 2)
        np.testing.assert_array_equal(more, np.asarray(given) + 1)


def test_large_arrays_in_another_order() -> None:
    f = ts.jit(lambda x: x * 2)
    x = array(70, 90)
    warm(f, x)
    turned = ts.asarray(np.ascontiguousarray(x.T)).T
    before = f._table.calls
    np.testing.assert_array_equal(f(turned), x * 2)
    assert f._table.calls == before + 1
    # The copy is kept.
    assert turned.prepared is not None
    np.testing.assert_array_equal(f(turned), x * 2)
    # That of another library's array could not be.
    np.testing.assert_array_equal(f(np.asfortranarray(x)), x * 2)
    assert f._table.calls == before + 2


def test_donated_views_are_gone() -> None:
    f = ts.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(2):
        f(ts.asarray(array(3, 4)))
    x = array(4, 3)
    turned = ts.asarray(x).T
    np.testing.assert_array_equal(f(turned), x.T + 1)
    with pytest.raises(DonatedError):
        turned + 1


DECLINED: dict[str, Callable[[], Any]] = {
    "rank": lambda: array(3, 4, 1),
    "first dim": lambda: array(2, 4),
    "last dim": lambda: array(3, 5),
    "dtype": lambda: array(3, 4, dtype=np.float64),
    "dtype of the same size": lambda: array(3, 4, dtype=np.int32),
    "byte order": lambda: array(3, 4).astype(">f4"),
    "zero strides": lambda: np.broadcast_to(array(4), (3, 4)),
    "strides of another byte order": lambda: array(3, 8).astype(">f4")[:, ::2],
    "subclass": lambda: array(3, 4).view(Sub),
    "weak": lambda: ts.asarray(2.0),
    "list": lambda: [array(3, 4)],
    "number": lambda: 2.0,
    "NumPy number": lambda: np.float32(2),
    "bool": lambda: True,
    "large number": lambda: 10**30,
    "unhashable": lambda: {"x": [array(3, 4)]},
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_does_not_fit_goes_to_python(name: str) -> None:
    def double(x: Any) -> Any:
        return pytree.map_(lambda leaf: leaf * 2, x)

    f, g = ts.jit(double), ts.jit(double)
    warm(f, array(3, 4))
    given = DECLINED[name]()
    before = f._table.calls
    try:
        wanted = g(given)
    except TesseraError as error:
        with pytest.raises(type(error)):
            f(given)
        return
    found = f(given)
    assert f._table.calls == before
    for a, b in zip(pytree.leaves(found), pytree.leaves(wanted), strict=True):
        assert a.type == b.type
        np.testing.assert_array_equal(a, b)
    assert natively(f, array(3, 4))


def test_read_only_and_writable_arrays_are_both_taken() -> None:
    f = ts.jit(lambda x: x * 2)
    x = array(3, 4)
    warm(f, x)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert natively(f, frozen)
    before = x.copy()
    f(x)
    np.testing.assert_array_equal(x, before)
    assert x.flags.writeable


def test_weak_and_strong_arrays_are_told_apart() -> None:
    f = ts.jit(lambda x, s: x * s)
    x = array(4).astype(np.float16)
    weak, strong = ts.jit(lambda: 2.0)(), ts.asarray(2.0)
    assert weak.weak
    for _ in range(4):
        assert f(x, weak).dtype == ts.float16
        assert f(x, strong).dtype == strong.dtype
        assert f(x, 2.0).dtype == ts.float16
    assert natively(f, x, weak)
    assert natively(f, x, strong)


def test_wrong_numbers_of_arguments() -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    f = ts.jit(add)
    warm(f, X, Y)
    for args, kwargs in (((X,), {}), ((X, Y, X), {}), ((X, Y), {"y": Y}), ((X,), {"z": Y})):
        with pytest.raises(TypeError):
            f(*args, **kwargs)
    assert natively(f, X, Y)


def test_numbers_that_do_not_fit() -> None:
    f = ts.jit(lambda x, n: x * n)
    x = array(3).astype(np.float32)
    warm(f, x, 2.0)
    warm(f, x, 2)
    assert np.isinf(np.asarray(f(x, float("inf")))[1])
    assert np.isnan(np.asarray(f(x, float("nan")))[1])
    with pytest.raises(TesseraError):
        f(x, 10**30)
    g = ts.jit(lambda x, n: x * n)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(f(x, 1e300), g(x, 1e300))


def test_donated_arrays_are_refused() -> None:
    f, give = ts.jit(lambda x: x * 2), ts.jit(lambda x: x + 1, donate_argnums=0)
    x = ts.asarray(array(4))
    warm(f, x)
    for _ in range(3):
        y = ts.asarray(array(4))
        give(y)
        with pytest.raises(DonatedError):
            np.asarray(y)
        with pytest.raises(DonatedError):
            f(y)


# --- state ------------------------------------------------------------------------------------


def test_a_call_while_something_is_traced_is_recorded() -> None:
    f = ts.jit(lambda x: x * 2)
    x = ts.asarray(array(4))
    warm(f, x)
    calls = f._table.calls
    outer = ts.jit(lambda y: f(x) + f(y))
    np.testing.assert_array_equal(outer(x), array(4) * 4)
    np.testing.assert_array_equal(ts.grad(lambda y: ts.sum(f(y)))(x), np.full(4, 2.0))
    assert f._table.calls == calls
    assert "call" in str(ts.jit(lambda y: f(y) + f(x)).trace(x).graph)
    assert natively(f, x)


def test_a_trace_that_fails_leaves_the_way_free() -> None:
    f = ts.jit(lambda x: x * 2)
    warm(f, X)

    def fails(x: Any) -> Any:
        raise KeyError("no")

    with pytest.raises(KeyError):
        ts.jit(fails)(X)
    assert natively(f, X)


def test_settings_of_a_block() -> None:
    f = ts.jit(lambda x: x * 2)
    warm(f, X)
    with ts.config.update(threads=1):
        assert not natively(f, X)  # other settings may be another program
        warm(f, X)
        assert natively(f, X)
        with ts.config.update(disable_jit=True):
            assert not natively(f, X)
            assert not natively(f, X)
        assert natively(f, X)
    assert natively(f, X)
    with ts.config.update(disable_jit=True):
        for _ in range(3):
            assert not natively(f, X)


def test_blocks_with_equal_settings_are_one() -> None:
    f = ts.jit(lambda x: x * 2)
    warm(f, X)
    for k in range(4):
        with ts.config.update(threads=1):
            assert natively(f, X) == (k > 1)
    with ts.policy("Training(bf16 -> f32)"), ts.config.update(threads=1):
        assert not natively(f, X)


def test_policies() -> None:
    f = ts.jit(lambda x: x * 3)
    exact = warm(f, X / 3)
    low = ts.policies.Training()
    with ts.policy(low):
        rounded = warm(f, X / 3)
        assert rounded.dtype is ts.bfloat16
        assert natively(f, X / 3)
        np.testing.assert_array_equal(np.asarray(f(X / 3)), np.asarray(rounded))
        with ts.policy(ts.Policy()):
            assert warm(f, X / 3).dtype is ts.float32
            assert natively(f, X / 3)
    with ts.policy(low):  # another block of the same
        assert natively(f, X / 3)
    assert natively(f, X / 3)
    np.testing.assert_array_equal(np.asarray(f(X / 3)), np.asarray(exact))


def test_operators_under_a_policy_are_not_those_without() -> None:
    x = ts.asarray(X / 3)
    low = ts.policies.Training()
    for _ in range(4):
        exact = x * x
        with ts.policy(low):
            assert (x * x).dtype is ts.bfloat16
            with ts.config.update(threads=1):
                assert (x * x).dtype is ts.bfloat16
                # It computes by ops, which are no operations of the user.
                assert ts.random.normal(ts.random.key(0), (3, 4)).dtype is ts.float32
        with ts.config.update(threads=1):
            assert (x * x).dtype is ts.float32
        np.testing.assert_array_equal(np.asarray(x * x), np.asarray(exact))


def test_a_policy_of_another_thread() -> None:
    f = ts.jit(lambda x: x * 3)
    warm(f, X)
    begun, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        with ts.policy(ts.policies.Training()):
            warm(f, X)
            begun.set()
            done.wait(10)
            found.append((natively(f, X), f(X).dtype))

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    for _ in range(3):
        assert natively(f, X)
        assert f(X).dtype is ts.float32
    done.set()
    thread.join()
    assert found == [(True, ts.bfloat16)]


def test_settings_of_tasks() -> None:
    import asyncio

    f = ts.jit(lambda x: x * 3)
    warm(f, X)
    found: dict[str, list[Any]] = {"a": [], "b": []}

    async def task(name: str) -> None:
        for _ in range(4):
            found[name].append(f(X).dtype)
            await asyncio.sleep(0)

    async def low() -> None:
        with ts.policy(ts.policies.Training()):
            inner = asyncio.create_task(task("a"))  # it outlives the block
            await task("a")
        assert f(X).dtype is ts.float32
        await inner
        assert natively(f, X)

    async def both() -> None:
        await asyncio.gather(low(), task("b"))

    asyncio.run(both())
    assert found == {"a": [ts.bfloat16] * 8, "b": [ts.float32] * 4}


def test_watching_for_nan() -> None:
    f = ts.jit(lambda x: x / x)
    zero = ts.zeros(3)
    warm(f, zero)
    assert natively(f, zero)
    for _ in range(3):
        with ts.debug.nans(), pytest.raises(NonFiniteError):
            f(zero)
    assert natively(f, zero)


def test_settings_in_a_copied_context() -> None:
    import contextvars

    f = ts.jit(lambda x: x * 2)
    warm(f, X)
    with ts.config.update(disable_jit=True):
        context = contextvars.copy_context()
    assert natively(f, X)
    assert not context.run(natively, f, X)


def test_max_traces() -> None:
    f = ts.jit(lambda x: x * 2, max_traces=1)
    warm(f, X)
    assert natively(f, X)
    with pytest.raises(RetraceError):
        f(array(5))
    assert natively(f, X)


def test_cache_info_and_clear_cache() -> None:
    f = ts.jit(lambda x: x * 2)
    for _ in range(5):
        f(X)
    assert f.cache_info() == (4, 1, None, 1)
    f.clear_cache()
    assert f.cache_info() == (0, 0, None, 0)
    assert not natively(f, X)
    assert f.cache_info().misses == 1


def test_a_program_that_calls_the_host_stays_in_python() -> None:
    seen: list[float] = []
    inner = ts.jit(lambda x: x + 1)

    def host(x: Any) -> None:
        # A compiled function, called while another one runs.
        seen.append(float(inner(x)[0]))

    def fn(x: Any) -> Any:
        ts.debug.callback(host, x)
        return x * 2

    f = ts.jit(fn)
    x = array(3, start=1)
    for k in range(6):
        np.testing.assert_array_equal(f(x + k), (x + k) * 2)
    assert seen == [2, 3, 4, 5, 6, 7]
    assert f._table.calls == 0
    assert inner._table.calls > 2


def test_errors_of_a_slow_call_are_the_users() -> None:
    f = ts.jit(lambda x, y: x @ y)
    warm(f, array(3, 3), array(3, 3))
    with pytest.raises(TesseraError, match="matmul"):
        f(array(3, 3), array(4, 3))


# --- memory -----------------------------------------------------------------------------------


def test_references_are_given_back() -> None:
    tree = {"a": ts.asarray(X), "b": [Y]}
    f = ts.jit(lambda d, s, k: (d["a"] + d["b"][0] * s, k))
    warm(f, tree, 1234567.5, k=X)
    things = [tree, tree["a"], tree["a"].storage, tree["b"], Y, X, f._table, np.dtype("f4"), None]
    things += [np.ndarray, ts.Array, f]
    assert natively(f, tree, 1234567.5, k=X)
    before = [sys.getrefcount(x) for x in things]
    for _ in range(1000):
        f(tree, 1234567.5, k=X)
    after = [sys.getrefcount(x) for x in things]
    assert np.abs(np.subtract(after, before)).max() < 10


def test_declined_calls_give_references_back() -> None:
    f = ts.jit(lambda d: d["a"] + d["b"])
    good, bad = {"a": X, "b": Y}, {"a": X, "b": np.asfortranarray(Y)}
    warm(f, good)
    table = f._table
    things = [X, Y, bad["b"], good, bad, table]
    before = [sys.getrefcount(x) for x in things]
    for _ in range(200):
        f(bad)
    gc.collect()
    after = [sys.getrefcount(x) for x in things]
    assert np.abs(np.subtract(after, before)).max() < 10


def test_memory_does_not_grow() -> None:
    f = ts.jit(lambda x, y: (x + y, {"z": x * y}))
    x, y = ts.asarray(X), ts.asarray(Y)
    warm(f, x, y)
    f(x, y)
    tracemalloc.start()
    try:
        for _ in range(300):
            f(x, y)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(3000):
            f(x, y)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - first < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1000, 4000, 16000, 16380, 16400, 65536, 250_000])
def test_many_results_of_a_call_take_memory_of_before(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an optimizer's do: of 4, 16 and 64 KB, the last more than what waits at most, and larger
    ones, which have lists by pages."""
    # Another test's setting holds until the next large result, and what waits of its results may
    # be so much that all is given back.
    monkeypatch.setattr(LISTED_LINES, "value", ts.config.memory_cache << 11)
    pool.release()
    f = ts.jit(lambda xs: [x + 1 for x in xs])
    xs = [array(count, start=k) for k in range(160)]
    warm(f, xs)
    before = {np.asarray(y).ctypes.data for y in f(xs)}
    found = f(xs)
    if count <= 4000 or count > 16384:
        assert len(before & {np.asarray(y).ctypes.data for y in found}) > 100
    for _ in range(3):
        kept, found = found, f(xs)
        for x, y, z in zip(xs, kept, found, strict=True):
            assert np.asarray(z).ctypes.data % (4096 if z.nbytes >= 16384 else 64) == 0
            np.testing.assert_array_equal(y, x + 1)
            np.testing.assert_array_equal(z, x + 1)


def test_blocks_of_sizes_that_nobody_wants_any_more_are_given_back() -> None:
    for width in (500, 2100, 8200, 16100):
        f = ts.jit(lambda xs: [x * 2 for x in xs])
        xs = [array(width + 16 * k) for k in range(200)]
        warm(f, xs)
        for x, y in zip(xs, f(xs), strict=True):
            np.testing.assert_array_equal(y, x * 2)


@pytest.mark.parametrize("lines", [0, 1 << 15])
def test_a_setting_bounds_how_much_of_larger_ones_waits(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LISTED_LINES, "value", lines)
    for width in (17_000, 100_000, 16_500):
        f = ts.jit(lambda xs: [x * 2 for x in xs])
        xs = [array(width + 1024 * k) for k in range(12)]
        warm(f, xs)
        for _ in range(3):
            for x, y in zip(xs, f(xs), strict=True):
                np.testing.assert_array_equal(y, x * 2)


def test_larger_ones_are_given_back_where_memory_runs_short() -> None:
    f = ts.jit(lambda xs: [x * 2 for x in xs])
    xs = [array(50_000, start=k) for k in range(12)]
    warm(f, xs)
    (release,) = pool.beside
    release()
    found = f(xs)
    assert release() == 0
    del found
    gc.collect()
    assert release() == 12 * 49 * 64  # pages of 200,000 bytes each
    pool.release()
    assert release() == 0
    for x, y in zip(xs, f(xs), strict=True):
        np.testing.assert_array_equal(y, x * 2)


def test_results_keep_their_memory_to_themselves() -> None:
    f = ts.jit(lambda x: x + 1)
    warm(f, array(7))
    kept = [f(array(7, start=k)) for k in range(200)]
    views = [np.asarray(x)[2:5] for x in kept[::2]]
    del kept[::2]
    more = [f(array(7, start=-k)) for k in range(200)]
    for k, x in enumerate(kept):
        np.testing.assert_array_equal(x, array(7, start=2 * k + 1) + 1)
    for k, v in enumerate(views):
        np.testing.assert_array_equal(v, (array(7, start=2 * k) + 1)[2:5])
    for k, x in enumerate(more):
        np.testing.assert_array_equal(x, array(7, start=-k) + 1)


def test_numpy_may_resize_what_it_gets() -> None:
    f = ts.jit(lambda x: x + 1)
    warm(f, array(7))
    for size in (1, 5, 40, 3000, 0):
        data = np.array(f(array(7)).storage, copy=None)
        data.flags.writeable = True
        assert data.flags.owndata
        data.resize(size, refcheck=False)
        wanted = np.zeros(size, np.float32)
        wanted[:7] = (array(7) + 1)[:size]
        np.testing.assert_array_equal(data, wanted)
        del data


def test_arguments_live_while_the_program_runs() -> None:
    # The lock is released: other threads empty the containers meanwhile.
    f = ts.jit(lambda xs: sum(xs))
    size, stop = 200_000, threading.Event()
    warm(f, [np.ones(size, np.float32)] * 4)
    holder: list[list[Any]] = [[np.ones(size, np.float32) for _ in range(4)]]

    def churn() -> None:
        while not stop.is_set():
            old, holder[0] = holder[0], [np.ones(size, np.float32) for _ in range(4)]
            old[:] = [None] * 4

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(60):
            try:
                found = f(holder[0])
            except TesseraError:
                continue  # it was emptied before
            except TypeError:
                continue
            np.testing.assert_array_equal(found, np.full(size, 4, np.float32))
    finally:
        stop.set()
        thread.join()


# --- threads and processes --------------------------------------------------------------------


def test_threads_call_one_function() -> None:
    f = ts.jit(lambda x, y: (x * y, x + y))
    failures: list[str] = []

    def work(k: int) -> None:
        for i in range(300):
            n = (k + i) % 5 + 1
            x = array(n, start=k)
            a, b = f(x, x)
            if not (np.array_equal(a, x * x) and np.array_equal(b, x + x)):
                failures.append(f"{k} {i}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert f.cache_info().hits + f.cache_info().misses == 1800
    assert f._table.calls > 1000


def test_one_thread_traces_while_others_call() -> None:
    f = ts.jit(lambda x: x * 2)
    warm(f, X)
    begun, end = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        begun.set()
        end.wait(20)
        return x + 1

    thread = threading.Thread(target=lambda: ts.jit(slow)(X))
    thread.start()
    begun.wait(20)
    np.testing.assert_array_equal(f(X), X * 2)
    end.set()
    thread.join()
    assert natively(f, X)


def run(code: str) -> str:
    found = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert not found.stderr, found.stderr
    return found.stdout


HEAD = """
import numpy as np, tessera as ts
f = ts.jit(lambda x: x * 2)
x = ts.ones(4)
for _ in range(4): y = f(x)
"""


def test_at_the_end_of_the_process() -> None:
    code = """
import atexit
class Late:
    def __del__(self, f=f, x=x): f(x)
late = Late()
atexit.register(lambda: print(float(f(x)[0])))
kept = [f(x).storage for _ in range(100)]
np.kept = kept + [np.asarray(y)[1:]]
"""
    assert run(HEAD + code) == "2.0\n"


def test_in_a_child_of_fork() -> None:
    code = """
import os, threading
begun, end = threading.Event(), threading.Event()
def slow(x):
    begun.set(); end.wait(20)
    return x
thread = threading.Thread(target=lambda: ts.jit(slow)(x))
thread.start(); begun.wait(20)
import warnings; warnings.simplefilter("ignore")
child = os.fork()
if not child:
    before = f._table.calls
    y = f(x)
    # The thread that traced is not in the child.
    os._exit(0 if float(y[0]) == 2 and f._table.calls == before + 1 else 1)
end.set(); thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(HEAD + code) == "0\n"


FRESH = """
import os, threading, warnings
os.environ["TESSERA_CACHE_DIR"] = FOLDER
import numpy as np, tessera as ts
from tessera.runtime import crew
crew.usable_cpus = lambda: 4
by = {}
def emit(source, emit=crew.emit):
    by[source.name] = threading.current_thread().name
    return emit(source)
crew.emit = emit
f = ts.jit(lambda x: x * 2)
x = ts.ones(3)
"""


def test_it_is_compiled_beside_the_first_program(tmp_path: Path) -> None:
    code = """
x + x
for _ in range(3): f(x)
print(by["tessera.dispatch"], f._table.calls)
"""
    assert run(FRESH.replace("FOLDER", repr(str(tmp_path))) + code) == "tessera.compile 1\n"


def test_a_child_of_fork_compiles_what_its_parent_began(tmp_path: Path) -> None:
    code = """
f(x)
warnings.simplefilter("ignore")
child = os.fork()
for _ in range(3): y = f(x)
ok = f._table.calls == 2 and float(y[0]) == 2
if not child:
    os._exit(0 if ok else 1)
print(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(FRESH.replace("FOLDER", repr(str(tmp_path))) + code) == "True 0\n"


def test_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from tessera.runtime import layout
layout.KNOWN_LAYOUT = False
import numpy as np, tessera as ts
f = ts.jit(lambda d, n: {"r": d["x"] * n}, static_argnums=1)
for _ in range(4):
    assert float(f({"x": np.ones(3, np.float32)}, 3)["r"][0]) == 3
    x = ts.ones(3); assert float((x + x)[0]) == 2
print(f._table.calls, f.cache_info())
"""
    assert run(code) == "0 CacheInfo(hits=3, misses=1, maxsize=None, currsize=1)\n"


# --- layouts ----------------------------------------------------------------------------------


def test_layouts_are_checked() -> None:
    assert sequences_are_known()
    assert native_module._arrays_are_known()
    assert method_word(Table, "__call__") is None


def test_calls_without_a_tuple() -> None:
    """Known calls, keywords, unknown ones and mistakes, all through CPython's vector calls."""
    word = ctypes.c_uint64.from_address
    f = ts.jit(lambda x, y=1, **more: x * y + sum(more.values()))
    flag = vectorcall_flag(type(f))
    assert flag is not None
    assert type(f).__flags__ & 1 << 11
    assert not word(id(f) + VECTORCALL).value
    x, y = ts.ones(3), ts.full((3,), 2.0)
    values = (x, y)
    counts = [sys.getrefcount(v) for v in values]
    for _ in range(5):
        assert float(f(x)[0]) == 1
        assert float(f(x, y)[0]) == 2
        assert float(f(x, y=y)[0]) == 2
        assert float(f(x, y, z=y, w=x)[0]) == 5
        assert float(f(*values, **{"z": y})[0]) == 4
        assert word(id(f) + VECTORCALL).value
        assert float(f(ts.ones((3, 1)), y=ts.ones(2))[0, 0]) == 1
    gc.collect()
    assert [sys.getrefcount(v) for v in values] == counts
    for _ in range(2):
        with pytest.raises(TypeError):
            f()
        with pytest.raises(TypeError):
            f(x, x=x)
    calls = f._table.calls
    f(x, y)
    f(x, y=y)
    assert f._table.calls == calls + 2
    flag.set(False)
    try:
        f(x, y)
        f(x, y=y)
    finally:
        flag.set(True)
    assert f._table.calls == calls + 4


def test_classes_without_a_word_for_code() -> None:
    assert vectorcall_flag(int) is None
    assert vectorcall_flag(Table) is None
    assert slot_offsets(Called) == {"_table": VECTORCALL + 8}
    assert Called.__basicsize__ == VECTORCALL + 16


@pytest.mark.parametrize("name", ["DIMS", "DTYPE", "FLAGS", "HANDLER", "RANK", "FLOAT_VALUE"])
def test_a_layout_that_is_not_as_expected_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"DIMS": w.DATA, "HANDLER": w.DATA, "RANK": w.FLAGS, "FLOAT_VALUE": w.TYPE}
    monkeypatch.setattr(w, name, other.get(name, w.DIMS))
    assert not native_module._arrays_are_known()


# --- arrays of another library ----------------------------------------------------------------


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    f = ts.jit(lambda x, y: (x * 2, y["b"] + 1))
    given = [
        (torch.arange(12, dtype=torch.float32).reshape(3, 4), torch.ones(2, dtype=torch.int64)),
        (torch.arange(12, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.bfloat16)),
        (torch.ones(()), torch.zeros(0, 3)),
        (torch.ones(1, 3)[:, :1], torch.ones(4, 3)[1:2]),
        (torch.ones(5, dtype=torch.bool) * 1, torch.ones(5, dtype=torch.uint8)),
    ]
    for x, y in given:
        warm(f, x, {"b": y})
        assert natively(f, x, {"b": y})
        a, b = f(x, {"b": y})
        np.testing.assert_array_equal(a, (x * 2).numpy())
        np.testing.assert_array_equal(np.asarray(b, np.float64), (y + 1).double().numpy())
    x, y = given[0]
    before = sys.getrefcount(x)
    for _ in range(1000):
        f(x, {"b": y})
    assert sys.getrefcount(x) - before < 10


def test_tensors_that_native_code_does_not_read() -> None:
    torch = pytest.importorskip("torch")
    f = ts.jit(lambda x: x * 2)
    warm(f, torch.ones(3, 3))
    x = torch.arange(9.0).reshape(3, 3)
    calls = f._table.calls
    given = [x.t(), x[::2], torch.ones(2, dtype=torch.complex64).conj().resolve_conj()]
    for tensor in given:
        for _ in range(4):
            np.testing.assert_array_equal(f(tensor), (tensor * 2).numpy())
    for tensor in (
        torch.ones(3, 3, requires_grad=True),
        x.to_sparse(),
        torch.ones(3, device="meta"),
    ):
        for _ in range(3):
            with pytest.raises(TesseraError, match="cannot be read"):
                f(tensor)
    with pytest.raises(TesseraError, match=r"x\.detach\(\)"):
        f(torch.ones(3, 3, requires_grad=True))
    assert f._table.calls == calls
    parameter = torch.nn.Parameter(torch.ones(3, 3), requires_grad=False)
    np.testing.assert_array_equal(f(parameter), np.full((3, 3), 2))
    assert natively(f, x)


def test_results_do_not_share_memory_with_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3)
    found = [ts.jit(lambda x: x)(x), ts.vmap(lambda x: x)(x), ts.vjp(lambda x: x, x)[0]]
    x[:] = 5
    for array in found:
        np.testing.assert_array_equal(array, np.ones(3))


# --- NumPy's scalars --------------------------------------------------------------------------

SCALARS = [np.float32(1.5), np.float64(2.5), np.int32(5), np.int64(-7), np.uint8(100), np.int16(3)]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda x: x.dtype.name)
def test_scalars_of_numpy_go_to_python(scalar: Any) -> None:
    f = ts.jit(lambda x, y: (x + y, y * 2))
    whole = np.asarray(scalar)
    for _ in range(4):
        for found, wanted in zip(f(X, scalar), f(X, whole), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
        np.testing.assert_array_equal(np.asarray(ts.asarray(X) + scalar), f(X, whole)[0])
        np.testing.assert_array_equal(np.asarray(ts.add(scalar, scalar)), f(X, whole)[1])
    assert natively(f, X, whole)
    assert not natively(f, X, scalar)


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda x: x.dtype.name)
def test_an_array_over_a_scalar_of_numpy(scalar: Any) -> None:
    x = ts.Array(scalar)
    assert type(x.host) is np.ndarray
    f = ts.jit(lambda x: x + x)
    for _ in range(3):
        for found in (x + x, ts.add(x, x), f(x), ts.sum(ts.stack([x, x]))):
            assert found.item() == np.add(scalar, scalar, dtype=scalar.dtype)


# --- results in containers --------------------------------------------------------------------


class Both(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    "build",
    [
        lambda x: {"z": x, "a": x + 1, "m": x * 2},
        lambda x: {3: x, 1: x + 1, 2: x * 2},
        lambda x: {("a", 1): x + 1, ("a", 0): x * 2},
        lambda x: {"one": x + 1},
        lambda x: [x + 1, x * 2],
        lambda x: OrderedDict(z=x, a=x + 1),
        lambda x: Both(x, x + 1),
        lambda x: {"z": {"b": x, "a": x + 1}, "c": [x]},
        lambda x: {},
    ],
)
def test_dicts_and_lists_of_results(build: Callable[[Any], Any]) -> None:
    f = ts.jit(build)
    wanted = build(X)
    for _ in range(4):
        found = f(X)
        assert type(found) is type(wanted)
        assert not isinstance(wanted, dict) or list(found) == list(wanted)
        for a, b in zip(pytree.leaves(found), pytree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    assert natively(f, X)


def test_dicts_of_results_are_new_and_freed() -> None:
    f = ts.jit(lambda x: {f"k{k}": x + k for k in range(60)})
    first, second = warm(f, X), f(X)
    assert first is not second
    first["more"] = 1
    del first["k3"]
    assert list(f(X)) == [f"k{k}" for k in range(60)]
    gc.collect()
    tracemalloc.start()
    for _ in range(50):
        f(X)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        f(X)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000


def test_functions_of_the_library_are_static_arguments() -> None:
    f: Any = ts.jit(lambda act, x: act(x), static_argnums=0)
    x = ts.asarray(np.array([-1.0, 2.0], np.float32))
    for act in (ts.relu, ts.exp, ts.nn.gelu, ts.relu):
        for _ in range(4):
            before = f._table.calls
            found = f(act, x)
        assert f._table.calls == before + 1
        np.testing.assert_allclose(found, act(x), rtol=1e-6)
