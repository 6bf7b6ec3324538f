"""Native calls of functions that use refs."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import StateError
from tessera.runtime.dispatch.native import native

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
    pytest.mark.usefixtures("few_objects"),
]


@pytree.register_dataclass
@dataclasses.dataclass
class Cache:
    keys: ts.Ref
    scale: Any


def natively(f: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call is run by native code."""
    before = f._table.calls
    f(*args, **kwargs)
    return f._table.calls == before + 1


def warm(f: Any, *args: Any, **kwargs: Any) -> Any:
    f(*args, **kwargs)
    return f(*args, **kwargs)


def address(ref: ts.Ref) -> int:
    return np.asarray(ref.get()).ctypes.data


def ones(*shape: int) -> Any:
    return ts.ones(shape)


def test_a_ref_that_is_found() -> None:
    total = ts.Ref(ones(3), name="total")

    @ts.jit
    def add(x: Any) -> Any:
        total[...] += x
        return total[...] * 2

    for k in range(6):
        assert natively(add, ones(3)) == (k > 1)
        np.testing.assert_array_equal(total.get(), np.full(3, k + 2.0))
    np.testing.assert_array_equal(add(ones(3)), np.full(3, 16.0))


def test_refs_that_are_passed() -> None:
    @ts.jit
    def add(ref: ts.Ref, x: Any, *, scale: Any = 1.0) -> None:
        ref[...] += x * scale

    a, b = ts.Ref(ones(3)), ts.Ref(ones(3) * 5)
    assert warm(add, a, ones(3)) is None
    assert natively(add, b, ones(3))  # one program for all refs of a type
    np.testing.assert_array_equal(b.get(), np.full(3, 6.0))
    np.testing.assert_array_equal(a.get(), np.full(3, 3.0))
    warm(add, a, ones(3), scale=2.0)
    assert natively(add, a, ones(3), scale=0.5)
    np.testing.assert_array_equal(a.get(), np.full(3, 7.5))
    c = ts.Ref(ones(1, 3))
    assert not natively(add, c, ones(3))
    assert c.get().shape == (1, 3)


def test_refs_in_containers() -> None:
    @ts.jit
    def push(cache: Cache, refs: dict[str, ts.Ref]) -> Any:
        cache.keys[...] += cache.scale
        for ref in refs.values():
            ref.update(lambda t: (t[0] + 1, t[1] * cache.scale))
        return refs["b"].get()[1]

    cache = Cache(ts.Ref(ones(2, 2)), 3.0)
    refs = {name: ts.Ref((ts.asarray(k), ones(4))) for k, name in enumerate("ab")}
    warm(push, cache, refs)
    assert natively(push, cache, refs)
    np.testing.assert_array_equal(cache.keys.get(), np.full((2, 2), 10.0))
    assert [int(ref.get()[0]) for ref in refs.values()] == [3, 4]
    np.testing.assert_array_equal(push(cache, refs), np.full(4, 81.0))


def test_none_and_an_array_are_no_refs() -> None:
    f = ts.jit(lambda r, x: x if r is None else x + (r[...] if isinstance(r, ts.Ref) else -r))
    ref = ts.Ref(ones(2))
    for _ in range(3):
        assert float(f(None, ones(2))[0]) == 1
        assert float(f(ref, ones(2))[0]) == 2
        assert float(f(ones(2), ones(2))[0]) == 0


@pytest.mark.parametrize("size", [16, 1 << 19])
def test_memory_is_written_in_place(size: int) -> None:
    buffer = ts.Ref(ts.zeros(size), name="buffer")

    @ts.jit
    def put(i: Any, x: Any) -> None:
        buffer[i] = x

    for k in range(3):
        put(k, 1.0)
    where = address(buffer)
    for k in range(3, 8):
        assert natively(put, k, 1.0)
        assert address(buffer) == where
    held = buffer.get()
    assert natively(put, 8, 1.0)
    assert address(buffer) != where  # somebody has the old contents
    assert float(ts.sum(held)) == 8
    assert float(ts.sum(buffer.get())) == 9
    view = np.asarray(held)[2:]
    del held
    where = address(buffer)
    put(9, 1.0)
    assert address(buffer) == where
    assert view.sum() == 6


def test_contents_that_others_have() -> None:
    a = ts.Ref(ones(4))
    double = ts.jit(lambda r: r.set(r.get() * 2))
    for _ in range(3):
        double(a)
    b = ts.Ref(a.get())
    assert natively(double, b)
    np.testing.assert_array_equal(a.get(), np.full(4, 8.0))
    np.testing.assert_array_equal(b.get(), np.full(4, 16.0))
    mine = np.full(4, 3.0, np.float32)
    b.set(mine)
    assert natively(double, b)
    assert mine[0] == 3
    memory = memoryview(b.get())
    assert natively(double, b)
    assert memory[0] == 6
    x = b.get()
    plus = ts.jit(lambda r, x: r.set(r.get() + x))
    for _ in range(4):  # the contents are an argument, too
        x = b.get()
        before = float(x[0])
        plus(b, x)
        assert (float(x[0]), float(b.get()[0])) == (before, 2 * before)


def test_a_result_takes_no_memory_that_a_ref_keeps() -> None:
    a = ts.Ref(ones(4))

    @ts.jit
    def swap(x: Any) -> Any:
        old = a.get()
        a.set(x)
        return old

    for k in range(6):
        found = swap(ones(4) * k)
        assert float(found[0]) == (k - 1 if k else 1)
    assert float(a.get()[0]) == 5


def test_refs_that_are_only_read() -> None:
    weights, steps = ts.Ref({"w": ones(3), "b": 2.0}), ts.Ref(0)

    @ts.jit
    def model(x: Any) -> Any:
        p = weights.get()
        steps.set(steps.get() + 1)
        return x * p["w"] + p["b"]

    warm(model, ones(3))
    assert natively(model, ones(3))
    kept = weights.get()["w"]
    assert natively(model, ones(3))
    assert weights.get()["w"].storage is kept.storage
    assert int(steps.get()) == 4


def test_mistakes_are_those_of_python() -> None:
    a, b = ts.Ref(ones(2), name="a"), ts.Ref(ones(2), name="b")
    move = ts.jit(lambda a, b: a.set(b.get() + a.get()))
    warm(move, a, b)
    with pytest.raises(StateError, match="passed the ref `a` twice"):
        move(a, a)
    use = ts.jit(lambda r: r.set(r.get() + b.get()))
    warm(use, a)
    assert natively(use, a)
    with pytest.raises(StateError, match="finds it outside as well"):
        use(b)
    assert natively(use, a)
    a.delete()
    with pytest.raises(StateError, match="after it was deleted"):
        move(a, b)
    b.delete()
    with pytest.raises(StateError, match="after it was deleted"):
        use(ts.Ref(ones(2)))


def test_a_ref_that_is_gone() -> None:
    made = {"ref": ts.Ref(ones(2), name="first")}

    @ts.jit
    def step(x: Any) -> Any:
        made["ref"][...] += x
        return made["ref"][...]

    for k in range(12):
        made["ref"] = ts.Ref(ones(2) * k, name="next")
        gc.collect()
        for n in range(4):
            wanted = k + (n + 1)
            assert float(step(ones(2))[0]) == wanted
        assert natively(step, ones(2))


def test_nothing_leaks() -> None:
    a, b = ts.Ref((ones(3), ts.asarray(1))), ts.Ref(ones(3))

    @ts.jit
    def step(r: ts.Ref, x: Any) -> Any:
        r.update(lambda t: (t[0] + x, t[1] + 1))
        return {"a": b.get() + x, "b": r.get()[0]}

    warm(step, a, ones(3))

    def counts() -> list[int]:
        lists = [ref.slot for ref in (a, b)]
        return [
            *[sys.getrefcount(x) for x in (a, b, None)][:2],
            *[sys.getrefcount(x) for slot in lists for x in (slot, slot[0], slot[0][0])],
            len(lists[0]),
        ]

    before = counts()
    x = ones(3)
    for _ in range(100):
        assert natively(step, a, x)
    assert counts() == before
    assert int(a.get()[1]) == 103


def test_a_call_that_is_traced_goes_to_python() -> None:
    a = ts.Ref(ones(2))
    add = ts.jit(lambda x: a.set(a.get() + x))
    warm(add, ones(2))
    ts.jit(lambda x: add(x))(ones(2))
    ts.scan(lambda c, x: (add(x), (c, x))[1], 0.0, ones(3, 2))
    np.testing.assert_array_equal(a.get(), np.full(2, 7.0))
    assert natively(add, ones(2))


def test_annotated_shapes() -> None:
    total = ts.Ref(0.0)

    @ts.jit
    def add(x: ts.Tensor["N", ts.float32]) -> Any:
        total.set(total.get() + ts.sum(x))
        return x * 2

    for n in (3, 5, 7):
        warm(add, ones(n))
    assert natively(add, ones(5))
    assert float(total.get()) == 35


def test_two_threads() -> None:
    """Whoever meets a call that writes a ref is told so; nobody sees half of it."""
    big = ts.Ref(ts.zeros(1 << 16), name="big")
    step = ts.jit(lambda: big.set(big.get() + 1))
    step()
    step()
    stop = threading.Event()
    wrong: list[Any] = []

    def look() -> None:
        while not stop.is_set():
            try:
                found = np.asarray(big.get())
            except StateError as error:
                if "another thread writes it" not in str(error):
                    wrong.append(error)
                continue
            first = found[0]
            if (found != first).any():
                wrong.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    done = 2
    for _ in range(300):
        try:
            step()
            done += 1
        except StateError:
            pass
    stop.set()
    thread.join()
    assert not wrong
    assert float(big.get()[0]) == done
    assert step._table.calls > 100


# --- refs that are returned -----------------------------------------------------------------------


def test_refs_that_are_returned() -> None:
    """Passed or found, in any place of any container, alone too."""
    found = ts.Ref(ones(2), name="found")

    def write(r: Any, x: Any) -> Any:
        r.update(lambda v: v + x)
        return r

    forms: list[Any] = [
        lambda r, x: write(r, x),
        lambda r, x: (x * 2, write(r, x)),
        lambda r, x: (write(r, x), x * 2),
        lambda r, x: {"b": write(r, x), "a": [x, None, (found,)]},
        lambda r, x: ((x, write(r, x)), None),
        lambda r, x: (write(found, x), write(r, x)),
        lambda r, x: [r, found],
        lambda r, x: Cache(write(r, x), x),
    ]
    for form in forms:
        f = ts.jit(form)
        for k in range(5):
            r, x = ts.Ref(ones(2), name="passed"), ones(2) * k
            found.set(ones(2))
            before = f._table.calls
            result = f(r, x)
            assert f._table.calls - before == (k > 1)
            seen = [np.asarray(v.get()) if isinstance(v, ts.Ref) else np.asarray(v)
                    for v in pytree.leaves(result)]  # fmt: skip
            refs = [v for v in pytree.leaves(result) if isinstance(v, ts.Ref)]
            assert all([v is r or v is found for v in refs])
            again, other = ts.Ref(ones(2), name="passed"), ts.Ref(ones(2), name="other")
            del other
            found.set(ones(2))
            with ts.debug.disable_jit():
                wanted = form(again, x)
            assert pytree.structure(wanted) == pytree.structure(result)
            for a, b in zip(seen, pytree.leaves(wanted), strict=True):
                np.testing.assert_array_equal(a, b.get() if isinstance(b, ts.Ref) else b)


def test_returned_refs_do_not_leak() -> None:
    found = ts.Ref(ones(2), name="found")
    f = ts.jit(lambda r, x: (x, r, found))
    r, x = ts.Ref(ones(2)), ones(2)
    for _ in range(4):
        f(r, x)
    gc.collect()
    before = sys.getrefcount(r), sys.getrefcount(found)
    for _ in range(100):
        assert natively(f, r, x)
    assert (sys.getrefcount(r), sys.getrefcount(found)) == before


# --- annotated shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize("passed", [False, True])
def test_refs_with_sizes_that_are_new(passed: bool) -> None:
    """A step of a cache, for any number of new rows: one program, and no Python for new sizes."""
    cache, used = ts.Ref(ts.zeros((64, 2)), name="cache"), ts.Ref(0, name="used")

    def append(ref: Any, rows: ts.Tensor["N", 2], scale: Any) -> Any:
        at = used.get()
        ref.update(lambda c: ts.dynamic_update_slice(c, rows * scale, (at, 0)))
        used.set(at + rows.shape[0])
        return ts.sum(rows, axis=1), ref

    if passed:
        g = ts.jit(append)
        f: Any = lambda rows, scale: g(cache, rows, scale)  # noqa: E731
    else:

        @ts.jit
        def g(rows: ts.Tensor["N", 2], scale: Any) -> Any:
            return append(cache, rows, scale)

        f = g
    wanted: list[Any] = []
    for k, size in enumerate((3, 1, 5, 2, 7, 4)):
        rows = np.full((size, 2), k + 1, np.float32)
        wanted += (rows * 2).tolist()
        where = address(cache)
        before = g._table.calls
        sums, same = f(rows, 2.0)
        assert g._table.calls - before == (k > 1)
        assert same is cache
        assert address(cache) == where or not k  # zeros belong to others, too
        np.testing.assert_array_equal(sums, np.full(size, 2 * k + 2))
    assert g.cache_size() == 1
    assert int(used.get()) == len(wanted)
    np.testing.assert_array_equal(cache.get()[: len(wanted)], wanted)


def test_a_ref_that_is_gone_with_sizes_that_are_new() -> None:
    made = {"ref": ts.Ref(1.0, name="first")}

    @ts.jit
    def f(x: ts.Tensor["N"]) -> Any:
        return x * made["ref"].get()

    for size in (1, 2, 3, 4):
        np.testing.assert_array_equal(f(ones(size)), np.ones(size))
    assert natively(f, ones(5))
    made["ref"] = ts.Ref(3.0, name="second")
    gc.collect()
    for size in (6, 7, 8):
        np.testing.assert_array_equal(f(ones(size)), np.full(size, 3.0))


def test_donated_arguments_of_sizes_that_are_new() -> None:
    def step(x: ts.Tensor["N"], y: ts.Tensor["N"]) -> Any:
        return x + y, ts.sum(y)

    f = ts.jit(step, donate_argnums=0)
    for k, size in enumerate((3, 5, 9, 1000, 1 << 19)):
        x, y = ts.ones(size) * k, ts.ones(size)
        where = x.storage.ctypes.data
        before = f._table.calls
        z, total = f(x, y)
        assert f._table.calls - before == (k > 1)
        assert z.storage.ctypes.data == where
        assert float(total) == size
        np.testing.assert_array_equal(z, np.full(size, k + 1))
        with pytest.raises(ts.TesseraError, match="float32 after"):
            ts.sum(x)
    kept = ts.ones(11)
    other = np.asarray(kept)
    z, _ = f(kept, ts.ones(11))
    np.testing.assert_array_equal(other, np.ones(11))  # somebody has it: it is copied
