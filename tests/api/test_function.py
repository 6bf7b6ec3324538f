"""`jit`: donation, traces without values, the cache; `function` and `autodiff`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DonatedError, GradError, NotDifferentiableError, NotYetError

X = np.arange(3, dtype=np.float32)


# --- donation ---------------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "operator": lambda x: x + 1,
    "reduction": ts.sum,
    "view": lambda x: ts.reshape(x, (3, 1)),
    "flipped": ts.flip,
    "numpy": np.asarray,
    "element": lambda x: float(x[0]),
    "list": list,
    "tolist": lambda x: x.tolist(),
    "argument": lambda x: ts.jit(lambda y: y)(x),
    "captured": lambda x: ts.jit(lambda y: y + x)(1.0),
    "gradient": lambda x: ts.grad(lambda y: ts.sum(x * y))(ts.ones(3)),
    "dlpack": lambda x: x.__dlpack__(),
    "repr": repr,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_donated_array_is_gone(use: Callable[[Any], Any]) -> None:
    x, y = ts.asarray(X), ts.asarray(X)
    f = ts.jit(lambda x, y: x + y, donate_argnums=0)
    assert f(x, y).tolist() == [0, 2, 4]
    with pytest.raises(DonatedError):
        use(x)
    # What is known of it stays known, and others are not concerned.
    assert (x.shape, x.dtype, x.ndim) == ((3,), ts.float32, 1)
    assert f(ts.asarray(X), y).tolist() == [0, 2, 4]


def test_donated_memory_is_given_back() -> None:
    x = ts.asarray(X)
    found = weakref.ref(x.storage)
    ts.jit(lambda p: p["x"] + 1, donate_argnames="p")({"x": x})
    gc.collect()
    assert found() is None


def test_what_may_be_donated() -> None:
    f = ts.jit(lambda p, x, *, k: p["a"] + x + k, donate_argnums=(-2,), donate_argnames=("k",))
    p, x, k = {"a": ts.asarray(X), "n": 2}, ts.asarray(X), ts.asarray(X)
    f(p, x, k=k)
    for gone in (p["a"], k):
        with pytest.raises(DonatedError, match="after it was donated to <lambda>"):
            ts.sum(gone)
    assert float(ts.sum(x)) == 3.0
    # NumPy arrays are the user's, and stay.
    data = X.copy()
    assert ts.jit(lambda x: x * 2, donate_argnums=0)(data).tolist() == [0, 2, 4]
    assert data.tolist() == [0, 1, 2]


def test_nothing_is_donated_while_tracing() -> None:
    f = ts.jit(lambda x, y: ts.sum(x * y), donate_argnums=(0, 1))
    x, y = ts.asarray(X), ts.asarray(X)
    for _ in range(2):
        assert ts.grad(lambda x: f(x, y))(x).tolist() == [0, 1, 2]
        assert float(ts.jit(lambda x: f(x, y))(x)) == 5.0


# --- traces without values, the cache ---------------------------------------------------------


def test_trace() -> None:
    @ts.jit(static_argnames="n")
    def f(p: Any, n: int) -> Any:
        return {"y": p["x"] ** n, "k": ts.argmax(p["x"])}

    traced = f.trace({"x": ts.ShapeDtypeStruct((4,), ts.float16)}, n=3)
    assert traced.out_info == {
        "y": ts.ShapeDtypeStruct((4,), ts.float16),
        "k": ts.ShapeDtypeStruct((), ts.int64),
    }
    assert str(traced).startswith("func @f(%0: f16[4])")
    assert traced.fun_name == "f"
    lowered = traced.lower()
    assert str(lowered.graph) == str(f.lower({"x": np.ones(4, np.float16)}, n=3).graph)
    assert f.cache_size() == 0


def test_cache_info() -> None:
    f = ts.jit(lambda x: x + 1)
    assert f.cache_info() == (0, 0, None, 0)
    for shape in ((2,), (3,), (2,), (2,)):
        f(ts.ones(shape))
    assert f.cache_info() == (2, 2, None, 2)
    assert f.cache_info().hits == 2
    f.clear_cache()
    assert f.cache_info() == (0, 0, None, 0)
    assert float(f(1.0)) == 2.0
    assert f.cache_info().misses == 1


def test_a_function_is_traced_once_inside_others() -> None:
    traces: list[Any] = []

    @ts.jit
    def layer(x: Any) -> Any:
        traces.append(x.type)
        return ts.sin(x)

    @ts.jit
    def network(x: Any) -> Any:
        return layer(layer(layer(x))) + layer(ts.ones((2,)))[0]

    found = network(1.0)
    assert [str(t) for t in traces] == ["f32*[]", "f32[]", "f32[2]"]
    ts.jit(ts.grad(network))(1.0)
    ts.jit(ts.vmap(layer))(ts.ones(3))
    assert len(traces) == 3
    assert float(found) == pytest.approx(np.sin(np.sin(np.sin(1.0))) + np.sin(1.0), rel=1e-6)


def test_what_is_traced_again_inside_others() -> None:
    """The sizes of named axes, and values of an outer trace, belong to one trace."""
    f = ts.jit(lambda x: x + ts.psum(1, "i"))
    for size in (2, 3):
        assert ts.vmap(f, axis_name="i")(ts.zeros(size)).tolist() == [size] * size
    for k in (2.0, 3.0):
        g = ts.jit(lambda k: ts.jit(lambda x: x * k)(2.0))
        assert float(g(k)) == 2 * k


def test_methods_and_partial_functions() -> None:
    class Model:
        scale = 3.0

        @partial(ts.jit, static_argnums=0, donate_argnums=1)
        def run(self, x: Any) -> Any:
            return self.scale * x

    model, x = Model(), ts.asarray(X)
    assert model.run(x).tolist() == [0, 3, 6]
    with pytest.raises(DonatedError):
        ts.sum(x)
    assert model.run.trace(ts.asarray(X)).out_info.shape == (3,)
    scaled = ts.jit(partial(lambda k, x: k * x, 2.0), donate_argnums=0)
    assert scaled(ts.asarray(X)).tolist() == [0, 2, 4]


# --- function and autodiff --------------------------------------------------------------------


def test_function() -> None:
    @ts.function(static_argnames="n")
    def power(x: Any, n: int) -> Any:
        """Documentation."""
        return x**n

    assert float(power(3.0, n=2)) == 9.0
    assert "return x**n" in power.source
    assert power.options["static_argnames"] == ("n",)
    assert power.__doc__ == "Documentation."
    assert repr(power) == "function(power), 1 compiled"
    for method in (power.profile, power.autotune):
        with pytest.raises(NotYetError, match="power cannot be"):
            method(3.0, n=2)
    assert float(ts.grad(ts.function(lambda x: x * x))(3.0)) == 6.0


def test_autodiff() -> None:
    traces: list[Any] = []

    @ts.jit
    @ts.autodiff
    def f(x: Any, n: Any) -> Any:
        traces.append(x)
        return {"y": ts.sin(x) * n}

    for _ in range(2):
        assert float(f(0.0, 2)["y"]) == 0.0
    assert len(traces) == 2  # by autodiff, by jit
    assert float(ts.grad(lambda x: f(x, 3)["y"])(0.0)) == 3.0
    assert f.__name__ == "f"

    halves = ts.autodiff(lambda x: ts.while_loop(lambda x: x > 1, lambda x: x / 2, x))
    with pytest.raises(NotDifferentiableError):
        halves(3.0)
    with pytest.raises(GradError, match="no argument of <lambda> has a derivative"):
        ts.autodiff(lambda n: n * 2.0)(3)
    with pytest.raises(GradError, match="no result of <lambda> has a derivative"):
        ts.autodiff(lambda x: x > 0)(3.0)
