"""Transforms outside `jit` of functions that do what they did before (`graph/steps.py`)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.graph import steps
from tessera.graph.shortcut import composed
from tessera.graph.trace import Trace
from tests.counting import calls

F = np.float32


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is known of any function."""
    steps._ROOTS.clear()
    yield
    steps._ROOTS.clear()


def random(*shape: int, seed: int = 0) -> ts.Array:
    """Normal numbers."""
    return ts.asarray(np.random.default_rng(seed).standard_normal(shape).astype(F))


def bits(tree: Any) -> list[Any]:
    """All that is to be the same: types and bytes of the leaves, and the structure."""
    leaves, treedef = ts.pytree.flatten(tree)
    return [
        treedef,
        *[(x.shape, x.dtype, x.weak, np.asarray(x).tobytes()) for x in leaves],
    ]


def agree(fn: Callable[..., Any], args: Callable[[int], tuple[Any, ...]], count: int = 6) -> None:
    """Calls give what they give where nothing is known, however often there were others."""
    for k in range(count):
        given = args(k)
        found = fn(*given)
        known = dict(steps._ROOTS)
        steps._ROOTS.clear()
        wanted = fn(*given)
        steps._ROOTS.clear()
        steps._ROOTS.update(known)
        assert bits(found) == bits(wanted), k


def recorded(fn: Callable[[], Any]) -> int:
    """How many ops a call records."""
    return calls(fn, Trace.record.__code__)[0]


def mlp(p: dict[str, Any], x: Any, y: Any) -> Any:
    """A loss of a layer and another one."""
    h = ts.tanh(x @ p["w"] + p["b"])
    return ts.mean((h @ p["v"] - y) ** 2)


def weights(k: int) -> tuple[Any, ...]:
    """Its arguments."""
    p = {"w": random(5, 7, seed=k), "b": random(7, seed=k + 100), "v": random(7, 3, seed=k + 200)}
    return p, random(4, 5, seed=k + 300), random(4, 3, seed=k + 400)


# --- the same results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        ts.grad(mlp),
        ts.value_and_grad(mlp),
        ts.value_and_grad(mlp, argnums=(0, 2)),
        ts.grad(mlp, argnums=(1,)),
        lambda p, x, y: ts.jvp(lambda w: mlp({**p, "w": w}, x, y), (p["w"],), (p["w"],)),
        lambda p, x, y: ts.vmap(ts.value_and_grad(mlp), in_axes=(None, 0, 0))(p, x, y),
        lambda p, x, y: ts.vmap(lambda r, t: mlp(p, r, t))(x, y),
        lambda p, x, y: ts.vmap(ts.grad(lambda r: mlp(p, r, y[0])), out_axes=1)(x),
        lambda p, x, y: ts.grad(lambda q: ts.sum(ts.grad(mlp)(q, x, y)["w"] ** 2))(p),
        lambda p, x, y: ts.hessian(lambda v: mlp({**p, "v": v}, x, y))(p["v"]),
        lambda p, x, y: ts.jacrev(lambda v: ts.tanh(x @ v) @ p["v"], has_aux=False)(p["w"]),
        lambda p, x, y: ts.jacfwd(
            lambda x: ({"t": ts.tanh(x), "m": x @ p["w"]}, x * 2), has_aux=True
        )(x),
        lambda p, x, y: ts.vmap(ts.jacfwd(lambda r: ts.sin(r @ p["w"])))(x),
    ],
    ids=[
        *("grad", "value", "two", "tuple", "jvp", "samples", "vmap", "axes", "twice"),
        *("hessian", "jacrev", "jacfwd", "jacobians"),
    ],
)
def test_calls_give_what_the_first_one_gives(transform: Callable[..., Any]) -> None:
    agree(transform, weights)


FUNCTIONS = (
    *("abs", "argsort", "atan2", "broadcast_arrays", "clip", "concat", "cumulative_prod", "diff"),
    *("divide", "einsum", "expand_dims", "flip", "gelu", "hypot", "linalg.det"),
    *("linalg.inv", "log1p", "max", "mean", "meshgrid", "nanmean", "nn.softmax", "outer", "pad"),
    *("permute_dims", "pow", "prod", "relu", "repeat", "reshape", "roll", "sort", "split"),
    *("stack", "std", "take", "tensordot", "tile", "top_k", "linalg.trace", "tril", "unstack"),
    *("var", "where"),
)

ARGUMENTS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "broadcast_arrays": lambda x, y: (x, y[0]),
    "clip": lambda x, y: (x, -0.5, 0.5),
    "concat": lambda x, y: ([x, y],),
    "cumulative_prod": lambda x, y: (x[0],),
    "einsum": lambda x, y: ("ij,jk->ik", x, y),
    "expand_dims": lambda x, y: (x, 1),
    "meshgrid": lambda x, y: (x[0], y[1]),
    "outer": lambda x, y: (x[0], y[1]),
    "pad": lambda x, y: (x, ((1, 0), (0, 2))),
    "permute_dims": lambda x, y: (x, (1, 0)),
    "pow": lambda x, y: (x * x, 1.5),
    "repeat": lambda x, y: (x, 2),
    "reshape": lambda x, y: (x, (9,)),
    "roll": lambda x, y: (x, 1),
    "split": lambda x, y: (x, 3),
    "stack": lambda x, y: ([x, y],),
    "take": lambda x, y: (x[0], ts.asarray([0, 2])),
    "tile": lambda x, y: (x, (2, 1)),
    "top_k": lambda x, y: (x, 2),
    "where": lambda x, y: (x > 0, x, y),
} | dict.fromkeys(("atan2", "divide", "hypot", "tensordot"), lambda x, y: (x, y))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_library(name: str) -> None:
    fn: Any = ts
    for part in (f"nn.{name}" if name in ("gelu", "relu") else name).split("."):
        fn = getattr(fn, part)
    arguments = ARGUMENTS.get(name, lambda x, y: (x,))

    def loss(x: Any, y: Any) -> Any:
        found = [z for z in ts.pytree.leaves(fn(*arguments(x, y))) if z.dtype.is_float]
        return sum([ts.sum(z * ts.sin(z)) for z in found], ts.sum(x))

    agree(ts.grad(loss), lambda k: (random(3, 3, seed=k), random(3, 3, seed=k + 9)), 5)


@pytest.mark.unchecked  # there is no native code in checked mode
@pytest.mark.parametrize(
    "transform",
    [
        ts.grad(mlp),
        lambda p, x, y: ts.jvp(lambda w: mlp({**p, "w": w}, x, y), (p["w"],), (p["b"] * p["w"],)),
        ts.vmap(ts.value_and_grad(mlp), in_axes=(None, 0, 0)),
    ],
    ids=["grad", "jvp", "samples"],
)
def test_known_functions_are_not_traced_again(transform: Callable[..., Any]) -> None:
    given = weights(0)
    first = calls(lambda: transform(*given))[0]
    for _ in range(6):
        transform(*given)
    last = calls(lambda: transform(*given))[0]
    assert last < first / 8
    assert recorded(lambda: transform(*given)) == 0


def test_auxiliary_results_and_constants() -> None:
    def fn(x: Any, c: Any) -> Any:
        y = ts.sin(x)
        return ts.sum(y * c), {"y": y, "x": x, "zeros": ts.zeros_like(x), "none": None}

    agree(ts.grad(fn, has_aux=True), lambda k: (random(3, seed=k), random(3, seed=k + 9)))
    agree(ts.value_and_grad(fn, has_aux=True), lambda k: (random(3, seed=k), 2.0))


def test_pullbacks() -> None:
    def fn(x: Any, y: Any) -> Any:
        return {"a": ts.sin(x) * y, "b": ts.sum(y * y), "i": ts.argmax(x)}, ts.exp(x)

    def pulled(x: Any, y: Any, c: Any) -> Any:
        out, pullback, aux = ts.vjp(fn, x, y, has_aux=True)
        ct = {"a": c, "b": ts.sum(c), "i": ts.zeros((), dtype=ts.int64)}
        return out, aux, pullback(ct), pullback({**ct, "a": c * 2}), ts.pytree.leaves(pullback)

    agree(pulled, lambda k: (random(3, seed=k), random(3, seed=k + 9), random(3, seed=k + 20)))

    def rows(x: Any, y: Any) -> Any:
        out, pullback = ts.vjp(lambda x: ts.tanh(x) * y + x, x)
        return out, ts.vmap(pullback)(ts.eye(3)), ts.jit(lambda c: pullback(c))(y)

    agree(rows, lambda k: (random(3, seed=k), random(3, seed=k + 9)))
    agree(lambda x, y: ts.grad(lambda x: ts.sum(rows(x, y)[1][0]))(x), lambda k: (random(3),) * 2)

    kept = [ts.vjp(lambda x: ts.sin(x) * x, random(3, seed=k))[1] for k in range(5)]
    for k, pullback in enumerate(kept):
        x = np.asarray(random(3, seed=k))
        wanted = np.cos(x) * x + np.sin(x)
        np.testing.assert_allclose(pullback(ts.ones(3))[0], wanted, rtol=1e-5)
        with pytest.raises(ts.errors.ShapeError, match="the cotangent is f32"):
            pullback(ts.ones(4))


def test_results_that_do_not_depend_on_the_argument() -> None:
    agree(ts.grad(lambda x: ts.sum(x) * 0.0 + 1.0), lambda k: (random(3, seed=k),))
    agree(ts.grad(lambda x, c: ts.sum(ts.zeros_like(x) + c)), lambda k: (random(3), random(3)))
    agree(ts.grad(lambda x: x), lambda k: (random(seed=k),))
    agree(ts.grad(lambda x: x * 1.0), lambda k: (float(k),))


def test_one_array_in_several_places() -> None:
    both = ts.grad(lambda x, y: ts.sum(x * y * y), argnums=(0, 1))

    def same(k: int) -> tuple[Any, Any]:
        x = random(4, seed=k)
        return x, x

    agree(both, same)
    agree(both, lambda k: (random(4, seed=k), random(4, seed=k + 9)))
    agree(lambda x: ts.grad(lambda y: ts.sum(x * y))(x), lambda k: (random(4, seed=k),))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3)])
@pytest.mark.parametrize("dtype", [ts.float32, ts.float64, ts.bfloat16, ts.complex64])
def test_shapes_and_dtypes(shape: tuple[int, ...], dtype: ts.DType) -> None:
    def fn(x: Any) -> Any:
        return ts.sum(ts.real(x * x + 2 * x) if dtype is ts.complex64 else ts.exp(x) * x)

    agree(ts.grad(fn), lambda k: (ts.astype(random(*shape, seed=k), dtype),))


def test_special_numbers() -> None:
    x = ts.asarray(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42], F))
    agree(ts.grad(lambda x: ts.sum(x * -0.0 + ts.abs(x) * 0.0 + x / x)), lambda k: (x,))


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::2], lambda x: x[::-1], lambda x: ts.broadcast_to(x[0], (6, 6))],
    ids=["turned", "skipped", "backwards", "repeated"],
)
def test_arrays_in_another_order(view: Callable[[Any], Any]) -> None:
    agree(ts.grad(lambda x: ts.sum(ts.sin(x) @ x.T)), lambda k: (view(random(6, 6, seed=k)),))


def test_large_arrays() -> None:
    agree(ts.grad(lambda x: ts.sum(ts.sin(x).T[:, 1:] * x[1:])), lambda k: (random(399, 400).T,), 4)


TOKENS = np.random.default_rng(7).integers(0, 5, (8, 6))


def model(p: dict[str, Any], tokens: Any) -> Any:
    """A small language model's loss, of functions that look at indices."""
    x = ts.nn.embedding(tokens, p["table"])
    q, k, v = (ts.nn.dense(x, p[name]) for name in "qkv")
    x = x + ts.nn.softmax(q @ k.mT, axis=-1) @ v
    found = ts.nn.log_softmax(ts.stop_gradient(x) * x @ p["table"].T, axis=-1)
    wanted = ts.expand_dims(tokens[1:], axis=-1)
    right = ts.sum(found[:-1] * ts.one_hot(tokens[1:], 5))
    return -ts.mean(ts.take_along_axis(found[:-1], wanted, axis=-1)) - right


def picture(p: dict[str, Any], image: Any) -> Any:
    """A convolution, what is largest in windows, and a Fourier transform."""
    x = ts.nn.conv(image, p["kernel"])
    x = ts.max_pool(x, (2, 2), (2, 2))
    return ts.mean(ts.abs(ts.fft.rfft(x)) ** 2)


def test_models() -> None:
    def weights(k: int) -> tuple[Any, Any]:
        p = {name: random(4, 4, seed=k + ord(name)) for name in "qkv"}
        return {"table": random(5, 4, seed=k), **p}, ts.asarray(TOKENS[k])

    agree(ts.value_and_grad(model), weights)
    agree(
        ts.grad(picture),
        lambda k: ({"kernel": random(3, 3, 1, 2, seed=k)}, random(1, 10, 10, 1, seed=k + 9)),
    )
    wrong = ts.asarray(np.array([1, 2, 9]))
    with pytest.raises(ts.errors.IndexOutOfBoundsError, match="9 is out of range"):
        ts.grad(model)(weights(0)[0], wrong)


# --- what Python does otherwise ---------------------------------------------------------------


def test_another_path_through_the_function() -> None:
    def fn(x: Any, way: str) -> Any:
        if way == "sin":
            x = ts.sin(x)
        elif way == "cos":
            x = ts.cos(x)
        return ts.sum(x * x)

    ways = ["sin", "cos", "none", "cos", "sin", "none", "sin", "cos", "none"]
    agree(ts.grad(fn), lambda k: (random(3, seed=k), ways[k]), len(ways))


def test_values_decide() -> None:
    seen: list[float] = []

    def fn(x: Any) -> Any:
        y = ts.sum(x * x)
        seen.append(float(y))
        if y > 2.0:
            y = ts.sin(y)
        return y * x[0]

    numbers = [0.1, 3.0, 0.2, 4.0, 0.3, 5.0]
    agree(ts.grad(fn), lambda k: (ts.asarray([numbers[k], 0.0]),))
    assert seen == pytest.approx(np.repeat(np.square(numbers), 2))


def test_functions_that_want_known_arguments() -> None:
    @composed
    def scaled(x: Any, by: Any) -> Any:
        if not isinstance(by, ts.Array):
            raise ts.errors.CallError("scaled: traced")
        return x * by

    agree(ts.grad(lambda x: ts.sum(scaled(x, ts.ones(3)))), lambda k: (random(3, seed=k),))


def test_numbers_that_change() -> None:
    def fn(x: Any, rate: float) -> Any:
        return ts.sum(ts.exp(x * rate) / rate)

    agree(ts.grad(fn), lambda k: (random(3, seed=k), 1.0 + k), 80)
    (root,) = steps._ROOTS.values()
    assert len(root.step.next) == steps.MOST_NEXT
    agree(ts.grad(lambda x, n: ts.sum(x * n)), lambda k: (random(3), [1, 1.0, True][k % 3]), 9)
    agree(ts.grad(lambda x, n: ts.sum(x / n)), lambda k: (random(3), [0.0, -0.0][k % 2]), 8)


def test_arrays_outside_the_function_change() -> None:
    box: list[Any] = [None]

    def fn(x: Any) -> Any:
        return ts.sum(x * box[0] + ts.expand_dims(box[0], axis=0) ** 2 * x)

    def args(k: int) -> tuple[Any]:
        box[0] = random(4, seed=k) if k < 8 else random(1, seed=k)
        return (random(4, seed=k + 50),)

    agree(ts.grad(fn), args, 12)


def test_arrays_of_numpy() -> None:
    data = np.ones(3, F)

    def fn(x: Any) -> Any:
        y = x * data
        data[:] += 1  # what it was is in the result
        return ts.sum(y * x)

    for k in range(6):
        data[:] = k
        np.testing.assert_array_equal(ts.grad(fn)(ts.ones(3)), np.full(3, 2.0 * k))


def test_indices_are_looked_at_each_time() -> None:
    def fn(x: Any, i: Any) -> Any:
        return ts.sum(x[i] * x[1:3][0])

    agree(ts.grad(fn), lambda k: (random(5, seed=k), ts.asarray([k % 5, 1])))
    agree(ts.grad(fn), lambda k: (random(5, seed=k), k % 5))
    with pytest.raises(ts.errors.IndexOutOfBoundsError, match="index: 7 is out of range for dim 0"):
        ts.grad(fn)(random(5), ts.asarray([7, 1]))
    with pytest.raises(ts.errors.IndexOutOfBoundsError, match="5"):
        ts.grad(fn)(random(5), 5)


def test_functions_with_effects() -> None:
    count = ts.Ref(ts.asarray(0))
    told: list[float] = []

    def fn(x: Any) -> Any:
        y = ts.sin(x)
        y = ts.cond(ts.sum(y) > 0, lambda v: v * 2, lambda v: v * 3, y)
        count.set(count.get() + 1)
        ts.debug.callback(lambda v: told.append(float(v)), y[0])
        return ts.sum(ts.cos(y))

    agree(ts.grad(fn), lambda k: (random(4, seed=k),))
    assert int(count.get()) == 12
    assert len(told) == 12


REGIONS: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda x, c: ts.sum(ts.jit(lambda y: ts.sin(y) * c)(x)),
    "kept": lambda x, c: KEPT(x, c) * KEPT(x * x, c),
    "scan": lambda x, c: ts.sum(ts.scan(lambda s, a: (ts.tanh(s + a * c[0]), s), c[0] * 0, x)[1]),
    "fori_loop": lambda x, c: ts.sum(ts.fori_loop(0, 3, lambda i, s: ts.sin(s) * c + i, x)),
    "cond": lambda x, c: ts.cond(x[0] > 0, lambda: ts.sum(x * c), lambda: ts.sum(ts.exp(x))),
    "map": lambda x, c: ts.sum(ts.map(lambda a: ts.sin(a) * c[1], x)),
    "checkpoint": lambda x, c: ts.sum(ts.checkpoint(lambda y: ts.sin(ts.sin(y) * c))(x)),
}

KEPT = ts.jit(lambda x, c: ts.sum(ts.cumulative_sum(x * c) ** 2))


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "hessian"])
def test_loops_and_branches(name: str, transform: str) -> None:
    fn = REGIONS[name]
    if transform == "vmap":
        shape = (3, 4)
        whole = ts.vmap(ts.value_and_grad(fn), in_axes=(0, None))
    else:
        shape = (4,)
        whole = {
            "grad": ts.value_and_grad(fn),
            "jvp": lambda x, c: ts.jvp(lambda y: fn(y, c), (x,), (ts.cos(x),)),
            "hessian": ts.hessian(fn),
        }[transform]
    agree(whole, lambda k: (random(*shape, seed=k), random(4, seed=k + 50)), 5)


def test_loops_of_another_body() -> None:
    def fn(x: Any, k: int) -> Any:
        body = (lambda s, a: (s + a, s * a)) if k % 2 else (lambda s, a: (s * a, s + a))
        return ts.sum(ts.scan(body, x[0], x)[1]) * ts.scan(lambda s, a: (s + k, s), x[1], x)[0]

    agree(ts.grad(fn), lambda k: (random(4, seed=k), k % 3), 9)


def test_rules_within_regions() -> None:
    def fn(x: Any, factor: float) -> Any:
        @ts.custom_jvp
        def double(y: Any) -> Any:
            return y * 2

        double.defjvp(lambda p, t: (double(*p), t[0] * factor))
        return ts.sum(ts.jit(lambda y: double(ts.sin(y)))(x))

    agree(ts.grad(fn), lambda k: (random(4, seed=k), float(k % 3)), 9)
    np.testing.assert_array_equal(ts.grad(fn)(ts.zeros(2), 5.0), [5, 5])


def test_user_rules() -> None:
    @ts.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    double.defjvp(lambda p, t: (double(*p), t[0] * 7))
    agree(ts.grad(lambda x: ts.sum(double(ts.sin(x)) * x)), lambda k: (random(4, seed=k),))
    np.testing.assert_array_equal(ts.grad(lambda x: ts.sum(double(x)))(ts.ones(2)), [7, 7])


def test_rules_run_each_time() -> None:
    seen: list[str] = []

    @ts.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    def backward(_: Any, ct: Any) -> Any:
        seen.append("backward")
        return (ct * len(seen),)

    double.defvjp(lambda x: (x * 2, None), backward)
    _, pullback = ts.vjp(lambda x: double(ts.sin(x)), ts.zeros(2))
    for k in range(1, 6):
        np.testing.assert_array_equal(pullback(ts.ones(2))[0], [k, k])
    for k in range(6, 11):
        np.testing.assert_array_equal(ts.grad(lambda x: ts.sum(double(x)))(ts.zeros(2)), [k, k])


def test_functions_of_the_library_with_rules() -> None:
    def fn(x: Any) -> Any:
        return ts.sum(ts.nn.logsumexp_safe(x, axis=0) * 1.5)

    # Its body is run op by op, and rounds otherwise than the program of the call.
    agree(ts.value_and_grad(fn), lambda k: (random(3, 4, seed=k),), 150)


def test_settings_change() -> None:
    rounded = [ts.Policy(), ts.Policy(storage=ts.bfloat16)]

    def within(x: Any, k: int) -> Any:
        y = ts.exp(x)
        with ts.policy(rounded[k]):
            return ts.astype(ts.sum(y * y), ts.float32)

    agree(ts.grad(within), lambda k: (random(64, seed=k), k % 2), 8)

    def around(x: Any, k: int) -> Any:
        with ts.policy(rounded[k]):
            return ts.grad(lambda x: ts.sum(ts.exp(x)))(x)

    agree(around, lambda k: (random(64, seed=k), k % 2), 8)

    def threads(x: Any, k: int) -> Any:
        with ts.config.update(threads=k):
            return ts.grad(lambda x: ts.sum(ts.exp(x)))(x)

    agree(threads, lambda k: (random(64, seed=k), 1 + k % 2), 8)

    def strict(x: Any, k: int) -> Any:
        with ts.config.update(rank_promotion=("allow", "forbid")[k]):
            return ts.grad(lambda x: ts.sum(x + ts.ones(64)))(x)

    for _ in range(4):
        strict(random(2, 64), 0)
        with pytest.raises(ts.errors.ShapeError, match="rank"):
            strict(random(2, 64), 1)


def test_threads() -> None:
    wanted = [bits(ts.value_and_grad(mlp)(*weights(k))) for k in range(8)]
    wrong: list[int] = []

    def work() -> None:
        for k in range(64):
            if bits(ts.value_and_grad(mlp)(*weights(k % 8))) != wanted[k % 8]:
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- mistakes -------------------------------------------------------------------------------------


def test_errors_do_not_depend_on_what_is_known() -> None:
    def fn(x: Any, w: Any) -> Any:
        return ts.sum(ts.sin(x) @ w)

    texts: list[str] = []
    for k in range(6):
        with pytest.raises(ts.errors.ShapeError) as error:
            ts.grad(fn)(random(3), random(4))
        texts.append(str(error.value))
        ts.grad(fn)(random(3), random(3, seed=k))
    assert set(texts) == {texts[0]}
    assert "return ts.sum(ts.sin(x) @ w)" in texts[0]


def test_the_function_goes_on_after_an_error() -> None:
    def fn(x: Any) -> Any:
        y = ts.sin(x)
        try:
            y = y + ts.zeros(7)
        except ts.errors.ShapeError:
            y = y * 2
        return ts.sum(y)

    agree(ts.grad(fn), lambda k: (random(3, seed=k),))


def test_traced_values_do_not_leave_the_function() -> None:
    kept: list[Any] = []

    def fn(x: Any) -> Any:
        kept.append(ts.sin(x))
        return ts.sum(kept[-1])

    texts: list[str] = []
    for _ in range(5):
        ts.grad(fn)(random(3))
        with pytest.raises(ts.errors.TracerLeakError) as error:
            kept.pop() + 1
        texts.append(str(error.value))
    assert set(texts) == {texts[0]}
    assert "kept.append(ts.sin(x))" in texts[0] or "test_steps.py" in texts[0]


def test_what_messages_say_of_traced_values() -> None:
    shown: list[str] = []

    def fn(x: Any) -> Any:
        y = x * 2
        shown.append(f"{y!r} {y.shape} {y.dtype} {y.ndim} {float(y[0])}")
        return ts.sum(y)

    for _ in range(4):
        ts.grad(fn)(ts.asarray([1.0, 2.0]))
    assert set(shown) == {"Tracer(Array([2., 4.], dtype=float32)) (2,) f32 1 2.0"}


# --- memory -----------------------------------------------------------------------------------


def test_arrays_are_not_kept() -> None:
    def seen(k: int) -> list[weakref.ref[Any]]:
        p, x, y = weights(k)
        found = [*p.values(), x, y, *ts.grad(mlp)(p, x, y).values()]
        found.append(ts.hessian(lambda v: mlp({**p, "v": v}, x, y))(p["v"]))
        found.append(ts.vmap(lambda r: ts.sum(r @ p["w"]))(x))
        found.append(ts.jvp(ts.sin, (x,), (x,))[1])
        found += ts.vjp(lambda x: ts.sin(x @ p["w"]), x)[1](ts.ones((4, 7)))
        return [weakref.ref(a) for a in found]

    refs = [ref for k in range(5) for ref in seen(k)]
    gc.collect()
    assert not [ref for ref in refs if ref() is not None]


def test_arrays_of_known_calls_are_freed_at_once() -> None:
    def freed(k: int) -> list[weakref.ref[Any]]:
        p, x, y = weights(k)
        grads = ts.grad(mlp)(p, x, y)
        return [weakref.ref(a) for a in (*p.values(), x, y, *grads.values())]

    for k in range(4):
        freed(k)
    gc.collect()
    gc.disable()
    try:
        assert not [ref for k in range(4) for ref in freed(k) if ref() is not None]
    finally:
        gc.enable()


def test_constants_may_be_given_away() -> None:
    taken = ts.jit(lambda z: z + 1, donate_argnums=0)

    def fn(x: Any) -> Any:
        zeros = ts.zeros_like(x)
        return ts.sum(x * ts.ones_like(x)) + ts.sum(x) * ts.sum(taken(zeros))

    agree(ts.grad(fn), lambda k: (random(8, seed=k),))

    def of_constants(x: Any) -> Any:
        return ts.sum(x * ts.ones_like(x))

    for _ in range(6):
        found = ts.grad(of_constants)(random(8))
        np.testing.assert_array_equal(found, np.ones(8))
        taken(found)


def test_there_are_not_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_STEPS", 20)
    for n in range(1, 30):
        np.testing.assert_array_equal(ts.grad(lambda x: ts.sum(x * x))(ts.ones(n)), np.full(n, 2))
        assert len(steps._ROOTS) <= 20
