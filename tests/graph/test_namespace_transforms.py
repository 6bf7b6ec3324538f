"""The namespace under `jit`, `grad` and `vmap`: compiled code against the ops' own definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import ConcretizationError
from tessera.graph.interp import run
from tessera.ir.intexpr import sym
from tests.graph.namespace_cases import by_definition, host, sample

X = sample("float32", (4, 6))
Y = sample("float32", (6, 5), 1)
V = sample("float32", (6,), 2)
N = np.asarray([3, 0, -1, 2])
KEY = np.asarray([1, 2], np.uint32)



def _holes(x: Any) -> Any:
    """The array with NaN in places that do not depend on it."""
    return ts.where(ts.arange(x.shape[-1]) == 2, np.nan, x)


def _conv(x: Any, y: Any) -> Any:
    return ts.conv_general(x[None], y[:4, None, :3], (2,), "SAME", (2,), feature_group_count=4)


def _conv_image(x: Any, y: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    image, window = x[None, :, :, None], y[:3, :2, None, None]
    return ts.conv_general(image, window, (1, 2), [(1, 0), (0, 2)], (1, 2), (2, 1), numbers)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, v: (x + v) * 2 - x / (v + 20), (X, V)),
    "compare": (lambda x, v: ts.where(x > v, x, v**2), (X, V)),
    "mean": (lambda x: ts.mean(x, axis=0), (X,)),
    "std": (lambda x: ts.std(x, axis=1, keepdims=True), (X,)),
    "softmax": (lambda x: ts.softmax(x), (X,)),
    "log_softmax": (lambda x: ts.log_softmax(x, axis=0), (X,)),
    "logsumexp": (lambda x: ts.logsumexp(x, axis=1), (X,)),
    "matmul": (lambda x, y: x @ y, (X, Y)),
    "vecdot": (lambda x, v: ts.vecdot(x, v), (X, V)),
    "tensordot": (lambda x, y: ts.tensordot(x, y, axes=1), (X, Y)),
    "outer": (lambda v: ts.outer(v, v), (V,)),
    "slices": (lambda x: x[1:, ::-2], (X,)),
    "int": (lambda x: x[-1], (X,)),
    "newaxis": (lambda x: x[:, None, 2:4], (X,)),
    "gather": (lambda x, n: x[n], (X, N)),
    "gather_columns": (lambda x, n: x[1:, n], (X, N)),
    "dynamic_int": (lambda x, n: x[n[0] - 1], (X, N)),
    "take": (lambda x, n: ts.take(x, n, axis=1), (X, N)),
    "take_along_axis": (lambda x: ts.take_along_axis(x, ts.argsort(x), axis=-1), (X,)),
    "set": (lambda x: x.at[1:3].set(0.0), (X,)),
    "set_column": (lambda x, n: x.at[:, n[0]].set(1.0), (X, N)),
    "scatter_add": (lambda x, n: x.at[n].add(1.0), (X, N)),
    "strided_set": (lambda x: x.at[::2, 1::3].multiply(5.0), (X,)),
    "masked": (lambda x: x.at[x > 0].set(0.0), (X,)),
    "sort": (lambda x: ts.sort(x, axis=0), (X,)),
    "argmax": (lambda x: ts.argmax(x, axis=1), (X,)),
    "cumulative_sum": (lambda x: ts.cumulative_sum(x, axis=1), (X,)),
    "cumulative_initial": (lambda v: ts.cumulative_sum(v, include_initial=True), (V,)),
    "concat": (lambda x, v: ts.concat([x, v[None]]), (X, V)),
    "stack": (lambda x: ts.stack([x, -x], axis=1), (X,)),
    "roll": (lambda x: ts.roll(x, 2, axis=1), (X,)),
    "roll_dynamic": (lambda x, n: ts.roll(x, n[0], axis=1), (X, N)),
    "tile": (lambda v: ts.tile(v, (2, 3)), (V,)),
    "repeat": (lambda x: ts.repeat(x, 3, axis=1), (X,)),
    "tril": (lambda x: ts.tril(x, k=1), (X,)),
    "eye": (lambda x: x @ ts.eye(6), (X,)),
    "arange": (lambda v: v + ts.arange(6, dtype=ts.float32), (V,)),
    "linspace": (lambda v: v * ts.linspace(0.0, 1.0, 6), (V,)),
    "linspace_ends": (lambda v: ts.linspace(v[0], v[1], 5), (V,)),
    "meshgrid": (lambda v: ts.meshgrid(v, v)[0], (V,)),
    "one_hot": (lambda n: ts.one_hot(n, 4), (N,)),
    "diff": (lambda x: ts.diff(x, axis=0, n=2), (X,)),
    "clip": (lambda x: ts.clip(x, -1, 1), (X,)),
    "searchsorted": (lambda x, v: ts.searchsorted(ts.sort(v), x), (X, V)),
    "reshape": (lambda x: ts.reshape(x, (2, -1)).mT, (X,)),
    "flip": (lambda x: ts.flip(x, axis=1)[:, 1:], (X,)),
    "moveaxis": (lambda x: ts.moveaxis(x[None], 0, -1), (X,)),
    "var": (lambda x: ts.var(x, correction=1), (X,)),
    "all": (lambda x: ts.all(x > -100, axis=0), (X,)),
    "count": (lambda x: ts.count_nonzero(x > 0, axis=1), (X,)),
    "powers": (lambda x: x**2 + x**3 - abs(x) ** 0.5, (X,)),
    "casts": (lambda x: ts.astype(x, ts.int8).astype(ts.float32), (X,)),
    "bits": (lambda n: (n << 2) ^ (n & 1) | 5, (N,)),
    "integers": (lambda n: n // 2 + n % 3, (N,)),
    "sigmoid": (lambda x: ts.sigmoid(x) + ts.relu(x) + ts.erf(x), (X,)),
    "random_bits": (lambda k: ts.random_bits(k, (3, 5)), (KEY,)),
    "einsum": (lambda x, y, v: ts.einsum("ij,jk,j->ki", x, y, v), (X, Y, V)),
    "einsum_diagonal": (lambda x, y: ts.einsum("ij,...j,ii->...i", x, y.mT, x[:, :4]), (X, Y)),
    "pad": (lambda x: ts.pad(x, ((1, 2), (0, 0)), constant_values=3), (X,)),
    "pad_edge": (lambda x: ts.pad(x, (2, 1), "edge"), (X,)),
    "pad_reflect": (lambda x: ts.pad(x, (5, 4), "reflect"), (X,)),
    "pad_odd": (lambda x: ts.pad(x, (2, 6), "symmetric", reflect_type="odd"), (X,)),
    "pad_wrap": (lambda x: ts.pad(x, (1, 7), "wrap"), (X,)),
    "pad_ramp": (lambda x: ts.pad(x, 2, "linear_ramp", end_values=4), (X,)),
    "pad_mean": (lambda x: ts.pad(x, 1, "mean", stat_length=2), (X,)),
    "cumprod": (lambda x: ts.cumprod(x / 4, 1, reverse=True), (X,)),
    "cummax": (lambda x: ts.cummax(x, 1), (X,)),
    "logcumsumexp": (lambda x: ts.logcumsumexp(x), (X,)),
    "median": (lambda x: ts.median(x, axis=0), (X,)),
    "quantile": (lambda x, v: ts.quantile(x, ts.sigmoid(v[:3]), axis=1), (X, V)),
    "nanquantile": (lambda x: ts.nanquantile(_holes(x), 0.3, axis=1), (X,)),
    "top_k": (lambda x: ts.top_k(x, 3)[0], (X,)),
    "nanmean": (lambda x: ts.nanmean(_holes(x), axis=1), (X,)),
    "nanstd": (lambda x: ts.nanstd(_holes(x), axis=1, correction=1), (X,)),
    "nanprod": (lambda x: ts.nanprod(_holes(x / 4), axis=0), (X,)),
    "nanmax": (lambda x: ts.nanmax(_holes(x), axis=1), (X,)),
    "nanargmin": (lambda x: ts.nanargmin(_holes(x), axis=1), (X,)),
    "segment_sum": (lambda x, n: ts.segment_sum(x, n, 3), (X, N)),
    "segment_max": (lambda x, n: ts.segment_max(x, n % 2, 2), (X, N)),
    "interp": (lambda v, x: ts.interp(x / 3, ts.arange(6, dtype=v.dtype) - 2, v), (V, X)),
    "interp_places": (lambda x, v: ts.interp(x / 3, ts.sort(v), v), (X, V)),
    "histogram": (lambda x: ts.histogram(x, 4)[0], (X,)),
    "histogram_weights": (lambda y, x: ts.histogram(x[:, :5], 5, (-9, 9), y[:4])[0], (Y, X)),
    "isin": (lambda x, y: ts.isin(x, y), (X, Y)),
    "get_fill": (lambda x, n: x.at[:, n * 3].get(mode="fill", fill_value=1), (X, N)),
    "add_drop": (lambda x, n: x.at[n * 2].add(x, mode="drop"), (X, N)),
    "set_clip": (lambda x, n: x.at[:, n[0] * 5].set(x[:, 1], mode="clip"), (X, N)),
    "conv": (_conv, (X, Y)),
    "conv_of_window": (lambda y, x: _conv(x, y), (Y, X)),
    "conv_image": (_conv_image, (X, Y)),
    "convolve": (lambda x, v: ts.convolve(x[0], v[:3], "same"), (X, V)),
    "max_pool": (lambda x: ts.max_pool(x[None], (2,), (2,), "SAME"), (X,)),
    "avg_pool": (lambda x: ts.avg_pool(x[None], (3,), None, "SAME", False), (X,)),
    "reduce_window": (lambda x: ts.reduce_window(x, 1, ts.multiply, (2, 3), (1, 2), "SAME"), (X,)),
    "fold_window": (lambda x: ts.reduce_window(x, 1, lambda a, b: a * b, (1, 3)), (X,)),
    "half": (lambda x: ts.sum(ts.astype(x, ts.bfloat16), axis=0), (X,)),
    "asarray": (lambda v: ts.asarray([v[0], [1, 2, 3][1], v[2]]), (V,)),
    "iterate": (lambda x: sum(row for row in x), (X,)),
}

DIFFERENTIABLE = [
    "arithmetic", "compare", "mean", "std", "softmax", "log_softmax", "logsumexp", "matmul",
    "vecdot", "tensordot", "outer", "slices", "newaxis", "gather", "gather_columns", "take",
    "take_along_axis", "set", "set_column", "scatter_add", "strided_set", "masked", "sort",
    "cumulative_sum", "concat", "stack", "roll", "roll_dynamic", "tile", "repeat", "tril", "eye",
    "linspace_ends", "meshgrid", "diff", "clip", "reshape", "flip", "moveaxis", "var", "powers",
    "conv", "conv_of_window", "conv_image", "convolve", "max_pool", "avg_pool", "reduce_window",
    "fold_window",
    "sigmoid", "asarray", "iterate", "dynamic_int",
    "einsum", "einsum_diagonal", "pad", "pad_edge", "pad_reflect", "pad_odd", "pad_wrap",
    "pad_ramp", "pad_mean", "cumprod", "cummax", "logcumsumexp", "median", "quantile",
    "nanquantile", "top_k", "nanmean", "nanstd", "nanprod", "nanmax", "segment_sum", "segment_max",
    "interp", "interp_places", "histogram_weights", "get_fill", "add_drop", "set_clip",
]  # fmt: skip


def close(found: Any, wanted: np.ndarray, name: str) -> None:
    data = host(found)
    assert data.dtype == wanted.dtype, name
    assert data.shape == wanted.shape, name
    if data.dtype.kind in "biu":
        np.testing.assert_array_equal(data, wanted)
    else:
        np.testing.assert_allclose(
            data.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=2e-5
        )


def interpreted(fn: Callable[..., Any], args: tuple[Any, ...]) -> np.ndarray:
    """What the traced program computes by the definitions of its ops."""
    func = ts.make_graph(fn)(*[ts.asarray(a) for a in args])
    captured = len(func.body.args) - len(args)
    assert captured == 0, "nothing is captured: arrays of the namespace are part of the program"
    return run(func, list(args))[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_jit(name: str) -> None:
    fn, args = PROGRAMS[name]
    close(ts.jit(fn)(*map(ts.asarray, args)), interpreted(fn, args), name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_vmap(name: str) -> None:
    fn, args = PROGRAMS[name]
    batched = [np.stack([a, np.roll(a, 1, -1), a[::-1]]) for a in args]
    found = ts.jit(ts.vmap(fn))(*map(ts.asarray, batched))
    wanted = np.stack([interpreted(fn, tuple(b[k] for b in batched)) for k in range(3)])
    close(found, wanted, name)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_grad(name: str) -> None:
    """The derivative in one direction, against a difference quotient in float64."""
    fn, args = PROGRAMS[name]
    first, *rest = args
    # No two elements are equal: where they are, a sort has no derivative.
    x = first.astype(np.float64) + 0.01 + 1e-3 * np.arange(first.size).reshape(first.shape)
    rest = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in rest]
    weights = [None]

    def loss(x: Any, *rest: Any) -> Any:
        out = fn(x, *rest)
        if weights[0] is None:
            weights[0] = sample("float64", out.shape, 7)
        return ts.sum(out * ts.asarray(weights[0]))

    step, along = 1e-6, sample("float64", x.shape, 9)

    def at(shift: float) -> float:
        values = [ts.asarray(x + shift * along), *map(ts.asarray, rest)]
        return float(ts.jit(loss)(*values))

    quotient = (at(step) - at(-step)) / (2 * step)
    found = host(ts.jit(ts.grad(loss))(ts.asarray(x), *map(ts.asarray, rest)))
    assert found.shape == x.shape
    np.testing.assert_allclose(np.sum(found * along), quotient, rtol=1e-4, atol=1e-4)


def test_jit_makes_no_hidden_inputs() -> None:
    def fn(x: Any) -> Any:
        return x + ts.zeros(3) + ts.eye(3)[0] + ts.full(3, 2.0) + ts.linspace(0, 1, 3) + 1.5

    func = ts.make_graph(fn)(ts.ones(3))
    assert len(func.body.args) == 1


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("`ts.nonzero`", ts.nonzero),
        ("`ts.unique_values`", ts.unique_values),
        ("`ts.unique_all`", ts.unique_all),
        ("as a boolean index", lambda x: x[x > 0]),
        ("`ts.repeat`", lambda x: ts.repeat(x, ts.astype(x, ts.int64))),
        ("`ts.arange`", lambda x: ts.arange(x[0])),
        ("a slice", lambda x: x[: ts.astype(x[0], ts.int64)]),
        (r"`bool\(\)`", lambda x: 1 if x[0] > 0 else 2),
        (r"`float\(\)`", lambda x: float(x[0])),
        ("a NumPy array", lambda x: np.asarray(x)),
    ],
)
def test_what_needs_values_fails_under_jit(name: str, fn: Any) -> None:
    def program(x: Any) -> Any:
        return fn(x)

    with pytest.raises(ConcretizationError, match=name) as caught:
        ts.jit(program)(ts.asarray([1.0, 2.0]))
    text = str(caught.value)
    assert "fix:" in text
    assert "test_namespace_transforms.py" in text


def test_values_are_known_under_grad() -> None:
    def loss(x: Any) -> Any:
        if x[0] > 0:
            return ts.sum(x[x > 1] ** 2) + float(x[0]) * 0
        return ts.sum(x)

    np.testing.assert_allclose(host(ts.grad(loss)(ts.asarray([1.0, 2.0, 3.0]))), [0, 4, 6])


def test_a_softmax_gradient_takes_no_maximum() -> None:
    """The shift by the maximum cancels, so its derivative is not computed."""
    x = ts.asarray([[1.0, 1.0, 0.0]])
    found = host(ts.grad(lambda x: ts.logsumexp(x))(x))
    np.testing.assert_allclose(found, host(ts.softmax(x)), rtol=1e-6)


def test_stop_gradient() -> None:
    for value in (2.0, 2.0 + 1j):
        x = ts.asarray(value)
        found = ts.grad(lambda x: ts.real(x * ts.stop_gradient(x)))(x)
        assert complex(found) == complex(value)


def test_indices_that_tracers_hold_are_clamped() -> None:
    x = ts.asarray([1.0, 2.0, 3.0])
    read = ts.jit(lambda x, i: x[i])
    assert [float(read(x, ts.asarray(i))) for i in (0, -1, 7, -9)] == [1, 3, 3, 1]
    written = ts.jit(lambda x, i: x.at[i].set(0.0))
    np.testing.assert_array_equal(host(written(x, ts.asarray([0, 5]))), [0, 2, 3])


# --- symbolic dims ----------------------------------------------------------------------------

SYMBOLIC: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: ts.mean(x, axis=0),
    "var": lambda x: ts.var(x, axis=0, correction=1),
    "softmax": lambda x: ts.softmax(x, axis=0),
    "slices": lambda x: x[1:-1],
    "backwards": lambda x: x[::-1],
    "last": lambda x: x[-1],
    "odd": lambda x: x[1::2],
    "reshape": lambda x: ts.reshape(x, (-1,)),
    "matmul": lambda x: x.mT @ x,
    "broadcast": lambda x: x + x[0],
    "first": lambda x: x[:2],
    "concat": lambda x: ts.concat([x, x]),
    "iota": lambda x: x + ts.arange(x.shape[0], dtype=ts.float32)[:, None],
    "zeros": lambda x: ts.concat([x, ts.zeros((2, 3))]) - 1,
    "set": lambda x: x.at[1:].set(0.0),
    "roll": lambda x: ts.roll(x, 1, axis=0),
    "count": lambda x: ts.count_nonzero(x > 0),
    "sort": lambda x: ts.sort(x, axis=0),
    "tile": lambda x: ts.tile(x, (2, 1)),
    "take": lambda x: ts.take(x, ts.asarray([0, 1]), axis=0),
    "searchsorted": lambda x: ts.searchsorted(x[:, 0], 1.0),
    "flip": lambda x: ts.flip(x),
    "diff": lambda x: ts.diff(x, axis=0),
    "conv": lambda x: ts.conv_general(x.mT[None], ts.ones((2, 3, 2)), (2,), [(1, 0)]),
    "conv_same": lambda x: ts.conv_general(x.mT[None], ts.ones((2, 3, 2)), (1,), "SAME"),
    "conv_batch": lambda x: ts.conv_general(x[:, None], ts.ones((2, 1, 2)), (1,), "SAME"),
    "max_pool": lambda x: ts.max_pool(x[None], (2,), (1,)),
    "convolve": lambda x: ts.convolve(x[:, 0], ts.ones(2)),
    "einsum": lambda x: ts.einsum("ij,kj->ik", x, x),
    "einsum_chain": lambda x: ts.einsum("ij,kj,kl->il", x, x, x),
    "pad": lambda x: ts.pad(x, ((2, 1), (0, 0))),
    "pad_edge": lambda x: ts.pad(x, ((2, 1), (0, 0)), "edge"),
    "pad_mean": lambda x: ts.pad(x, ((2, 1), (0, 0)), "mean"),
    "pad_ramp": lambda x: ts.pad(x, ((2, 1), (0, 0)), "linear_ramp"),
    "cummax": lambda x: ts.cummax(x),
    "logcumsumexp": lambda x: ts.logcumsumexp(x),
    "median": lambda x: ts.median(x, axis=0),
    "quantile": lambda x: ts.nanquantile(x, 0.3, axis=0),
    "top_k": lambda x: ts.top_k(x, 2, axis=0)[0],
    "nanmean": lambda x: ts.nanmean(x, axis=0),
    "nanvar": lambda x: ts.nanvar(x, axis=0),
    "histogram": lambda x: ts.histogram(x, 4)[0],
    "interp": lambda x: ts.interp(x[:, 0], ts.sort(x[:, 1]), x[:, 2]),
    "isin": lambda x: ts.isin(x, x[1:]),
    "segment_sum": lambda x: ts.segment_sum(x, ts.astype(x[:, 0] > 0, ts.int64), 2),
    "get_fill": lambda x: x.at[ts.asarray([1, 3])].get(mode="fill", fill_value=0),
    "add_drop": lambda x: x.at[ts.asarray([1, 4])].add(1.0, mode="drop"),
    "set_clip": lambda x: x.at[4].set(1.0, mode="clip"),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_dims(name: str) -> None:
    from tessera.graph.trace import Trace, active
    from tessera.ir.types import TensorType

    fn = SYMBOLIC[name]
    with active(Trace("jit", name, staging=True)) as trace:
        x = trace.input(TensorType((sym("S"), 3), ts.float32))
        func, captured = trace.finish([fn(x)], name)
    for rows in (3, 5):
        data = sample("float32", (rows, 3), rows)
        found = run(func, [*[c.host for c in captured], data])[0]
        with by_definition():
            wanted = host(fn(ts.asarray(data)))
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_python_numbers_stay_weak_under_jit() -> None:
    x = ts.ones(3, dtype=ts.bfloat16)
    assert ts.jit(lambda x, n: x * n)(x, 0.5).dtype is ts.bfloat16
    assert ts.jit(lambda x, n: x * (1 - 0.9**n))(x, 2).dtype is ts.bfloat16
    assert ts.jit(lambda x, n: x * (n / 3))(x, 2).dtype is ts.bfloat16
    assert ts.jit(lambda x, n: x * n)(x, 1j).dtype is ts.complex64
    assert ts.jit(lambda n: n * 0.5)(2).dtype is ts.float32


def test_what_tracers_do_by_their_values() -> None:
    seen: list[Any] = []

    def loss(x: Any) -> Any:
        seen.append((f"{x:.2f}", x.item(), x[None].tolist(), len(x[None])))
        seen.append(f"{x}")
        return x * 2

    ts.grad(loss)(1.5)
    assert seen[0] == ("1.50", 1.5, [1.5], 1)
    for name in ("item", "tolist"):
        with pytest.raises(ConcretizationError, match=rf"`{name}\(\)` of a traced value"):
            ts.jit(lambda x, name=name: getattr(x, name)())(1.5)
    with pytest.raises(ConcretizationError, match=r"the format '\.1f' of a traced value"):
        ts.jit(lambda x: f"{x:.1f}")(1.5)
    assert ts.jit(lambda x: ts.asarray(len(x)))(ts.ones((4, 2))).item() == 4
    assert ts.jit(lambda x: x.__array_namespace__().sum(x))(ts.ones(3)).item() == 3
    with pytest.raises(TypeError, match=r"len\(\) of an array of type f32\[\]"):
        ts.jit(lambda x: len(x))(ts.asarray(1.0))


def test_functions_that_are_no_methods() -> None:
    with pytest.raises(AttributeError, match=r"use the function `ts\.reshape\(x, \.\.\.\)`"):
        ts.ones(2).reshape(1, 2)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ts.ones(2).nothing
