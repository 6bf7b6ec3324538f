"""Native calls with donated arguments."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import DonatedError
from tessera.runtime.dispatch.native import native

pytestmark = [
    pytest.mark.skipif(native() is None, reason="the layout of objects is not known"),
    pytest.mark.unchecked,
    pytest.mark.usefixtures("few_objects"),
]


@pytree.register_dataclass
@dataclasses.dataclass
class State:
    x: Any
    steps: Any


def natively(f: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call is run by native code."""
    before = f._table.calls
    f(*args, **kwargs)
    return f._table.calls == before + 1


def fresh(size: int = 100, value: float = 1.0) -> Any:
    return ts.ones(size) * value


def place(x: Any) -> int:
    return x.storage.ctypes.data


@pytest.mark.parametrize("size", [10, 1 << 19])
def test_memory_is_taken_and_the_argument_is_gone(size: int) -> None:
    f = ts.jit(lambda x, y: x + y, donate_argnums=0)
    y = fresh(size, 2.0)
    for k in range(5):
        x = fresh(size, k)
        where = place(x)
        before = f._table.calls
        z = f(x, y)
        assert f._table.calls - before == (k > 1)
        assert place(z) == where
        assert float(z[1]) == k + 2
        with pytest.raises(DonatedError, match=rf"shape \[{size}\] and dtype float32 after") as e:
            ts.sum(x)
        assert "test_native_donation.py" in str(e.value)
        assert "z = f(x, y)" in str(e.value)
        with pytest.raises(DonatedError):
            f(x, y)
    assert float(y[0]) == 2


def test_memory_that_others_have_is_left_alone() -> None:
    f = ts.jit(lambda x: x * 3, donate_argnums=0)
    for _ in range(3):
        f(fresh())
    for see in (lambda x: x[2:5], np.asarray, memoryview, np.from_dlpack):
        x = fresh()
        witness = see(x)
        assert natively(f, x)
        assert float(np.asarray(witness)[0]) == 1
    mine = np.ones(100, np.float32)
    f(mine)
    assert natively(f, mine)
    assert mine[0] == 1


def test_the_same_array_twice() -> None:
    f = ts.jit(lambda x, y: x - 2 * y, donate_argnums=(0, 1))
    for _ in range(4):
        x = fresh()
        assert float(f(x, x)[0]) == -1
        with pytest.raises(DonatedError):
            ts.sum(x)
    assert f._table.calls == 2
    g = ts.jit(lambda x, y: x - 2 * y, donate_argnums=0)
    for _ in range(4):
        x = fresh()
        assert float(g(x, x)[0]) == -1
    assert g._table.calls == 2


def test_containers_and_names() -> None:
    @ts.jit
    def plain(params: Any, grads: Any, rate: Any) -> Any:
        return {k: params[k] - rate * grads[k] for k in params}

    step = ts.jit(plain.function, donate_argnames=("params",))
    params = {name: fresh(64, k) for k, name in enumerate("abc")}
    grads = {name: fresh(64, 2) for name in "abc"}
    for n in range(6):
        where = {k: place(x) for k, x in params.items()}
        old, params = params, step(params=params, grads=grads, rate=0.5)
        assert {k: place(x) for k, x in params.items()} == where
        with pytest.raises(DonatedError):
            ts.sum(old["b"])
        del old
        assert [float(x[0]) for x in params.values()] == [k - n - 1 for k in range(3)]
    assert step._table.calls == 4
    assert float(grads["a"][0]) == 2


def test_fields_of_classes_are_left_to_python() -> None:
    step = ts.jit(lambda s: State(s.x * 2, s.steps + 1), donate_argnums=0)
    s = State(fresh(), ts.asarray(0))
    for _ in range(5):
        old, s = s, step(s)
        with pytest.raises(DonatedError):
            ts.sum(old.x)
    assert (float(s.x[0]), int(s.steps)) == (32, 5)


def test_results_of_another_shape() -> None:
    f = ts.jit(lambda x: ts.reshape(x * 2, (25, 4)), donate_argnums=0)
    for _ in range(4):
        found = f(fresh())
        assert found.shape == (25, 4)
        assert float(found[3, 3]) == 2
    state = ts.Ref(fresh())

    @ts.jit
    def swap(x: Any) -> Any:
        old = state.get()
        state.set(x)
        return ts.reshape(old * 2, (25, 4))

    for k in range(5):
        found = swap(fresh(100, k + 2.0))
        assert found.shape == (25, 4)
        assert float(found[1, 1]) == 2 * (k + 1)
        assert state.get().shape == (100,)


def test_donated_arguments_and_refs() -> None:
    total = ts.Ref(fresh(100, 0.0))

    def add(x: Any) -> Any:
        total[...] += x
        return x + total[...]

    f = ts.jit(add, donate_argnums=0)
    for k in range(5):
        x = fresh()
        where = place(x)
        y = f(x)
        assert place(y) == where
        assert float(y[0]) == k + 2
    assert f._table.calls == 3
    assert float(total.get()[0]) == 5


def test_nothing_leaks() -> None:
    f = ts.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)
    y = fresh()
    x = fresh()
    for _ in range(3):
        x, _ = f(x, y)
    gc.collect()
    before = sys.getrefcount(y), sys.getrefcount(y.storage), len(gc.get_objects())
    for _ in range(200):
        x, _ = f(x, y)
    gc.collect()
    after = sys.getrefcount(y), sys.getrefcount(y.storage), len(gc.get_objects())
    assert before[:2] == after[:2]
    assert after[2] - before[2] < 50
    assert f._table.calls > 200
