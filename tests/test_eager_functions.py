"""Functions of several ops on large arrays, which are one program: which ones, and what they give.

Expected values are those of the ops one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager
from tessera.errors import AxisError
from tessera.graph.engine import installed
from tessera.graph.interp import NumpyEngine
from tessera.graph.shortcut import Shortcut
from tessera.runtime.dispatch import direct
from tests.counting import forget, names_of_compiled

RNG = np.random.default_rng(3)
SHAPE = (150, 260)


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.5, 4, shape).astype(dtype)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what is compiled by an engine that knows nothing yet."""
    names = names_of_compiled(monkeypatch)
    engine = eager.Eager()
    monkeypatch.setattr(direct, "WHOLE", [engine.functions.call])
    for fn in FUNCTIONS.values():
        forget(fn)
    with installed(engine):
        yield names
    for fn in FUNCTIONS.values():
        forget(fn)


FUNCTIONS: dict[str, Shortcut] = {
    f"{module.__name__}.{name}": fn
    for module in (ts, ts.nn, ts.linalg)
    for name in dir(module)
    if isinstance(fn := getattr(module, name), Shortcut) and fn.is_fused
}


def _windows() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    image, window = data(2, 3, 28, 31), data(6, 3, 3, 3)
    rows: dict[str, Any] = {"lhs_dilation": [2, 1], "feature_group_count": 2}
    rows["dimension_numbers"] = ("NHWC", "HWIO", "NHWC")
    return [
        ((image, window, [1, 1], "SAME"), {}), ((image, window, (2, 1), [(1, 0), (2, 2)]), {}),
        ((data(2, 20, 31, 6), data(2, 3, 3, 4), (1, 2), "VALID"), rows),
        ((image, data(9, 3, 1, 1)), {"window_strides": (1, 1), "padding": "VALID"}),
    ]  # fmt: skip


def _heads() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    q, k, v = data(2, 4, 40, 16), data(2, 2, 50, 16), data(2, 2, 50, 8)
    mask = data(40, 50) > 2
    return [
        ((q, k, v), {}), ((q, k, v), {"causal": True}), ((q, k, v), {"scale": 0.5}),
        ((q, k, v), {"mask": ts.asarray(mask)}),
    ]  # fmt: skip


MOVED: dict[str, Callable[[], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "attention": _heads,
    "attention_safe": _heads,
    "conv_general": _windows,
    "convolve": lambda: [
        ((data(5000), data(60)), {"mode": mode}) for mode in ("full", "same", "valid")
    ],
    "repeat": lambda: [
        ((data(*SHAPE), 2), {"axis": 1}), ((data(*SHAPE), 3), {"axis": 0}),
        ((data(*SHAPE), 2), {}), ((data(260), 200), {}),
    ],
    "tile": lambda: [
        ((data(*SHAPE), counts), {}) for counts in ((2, 3), (2,), (2, 1, 1), (1, 1))
    ],
}  # fmt: skip
"""Calls of functions that move elements, or windows."""


def arguments(name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of a function with large arrays."""
    fn, name = FUNCTIONS[name], name.rpartition(".")[2]
    x, y = data(*SHAPE), data(*SHAPE)
    if "prod" in name:
        x /= 2  # products of a row stay finite, which infinite ones would be in any order
    axes = [{}, {"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}]
    if name == "cross":
        return [((data(20000, 3), data(20000, 3)), {})]
    if name == "clip":
        return [((x, 1.0, 2.0), {}), ((x, 2), {}), ((x, data(260)), {})]
    if name in ("copysign", "divide", "logical_and", "logical_or", "logical_xor"):
        whole = RNG.integers(-5, 5, SHAPE).astype(np.int32)
        return [((x - 2, y), {}), ((whole, whole[::-1]), {}), ((whole, y), {})]
    if name == "pow":
        return [((x, 3), {}), ((x, 5), {}), ((x, 0.5), {}), ((x.astype(np.int32), 4), {})]
    if name in ("isclose", "layernorm_safe"):
        return [((x, x + np.float32(1e-6) * y), {})] if name == "isclose" else []
    if name.endswith("_pool"):
        image = data(2, 60, 50, 7)
        ends = {"padding": "SAME"}
        return [((image, (2, 2)), {}), ((image, (2, 3), (2, 1)), {}), ((image, (3, 3)), ends)]
    if name in MOVED:
        return MOVED[name]()
    if name == "one_hot":
        whole = RNG.integers(-1, 12, SHAPE)
        return [((whole[0], 300), {}), ((whole, 9), {"axis": 1}), ((whole, 9), {})]
    if name in ("tril", "triu", "diag"):
        return [((x,), {}), ((x,), {"k": 1}), ((x,), {"k": -3})]
    if name in ("relu", "nan_to_num") or fn.__module__ == "tessera.nn.activations":
        x[3] = np.nan
        return [((x - 2,), {}), ((-x.astype(np.float64),), {})]
    return [
        *[((x,), options) for options in axes], ((x > 2,), {"axis": 0}),
        ((RNG.integers(0, 5, SHAPE).astype(np.int32),), {"axis": 1}),
        ((x.astype(np.float64),), {}), ((data(4, 60, 150),), {"axis": (0, 2)}),
    ]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_program_gives_what_ops_do(name: str) -> None:
    """NumPy computes the ops: to compile each of them would say nothing more about the program."""
    fn = FUNCTIONS[name]
    forget(fn)
    count = 0
    for given, options in arguments(name):
        args = [ts.asarray(x) if isinstance(x, np.ndarray) else x for x in given]
        try:
            with installed(NumpyEngine()):
                wanted = fn.function(*args, **options)
        except ts.TesseraError as error:
            with pytest.raises(type(error)):
                fn(*args, **options)
            continue
        count += 1
        first = fn(*args, **options)
        for _ in range(4):
            found = fn(*args, **options)
            # Native from the third call on, and the same.
            assert np.asarray(found).tobytes() == np.asarray(first).tobytes()
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(np.asarray(first), np.asarray(wanted), rtol=2e-5, atol=1e-6)
    assert count or name.endswith("layernorm_safe")


def test_all_sizes_share_a_program(made: list[str]) -> None:
    for shape in ((200, 300), (300, 200), (201, 777), (7, 9000)):
        x = data(*shape)
        found = ts.nn.gelu(ts.asarray(x))
        wanted = ts.nn.gelu.function(ts.asarray(x.astype(np.float64)))
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5)
    assert made.count("gelu") == 1


def test_square_arrays_and_short_rows_have_their_own(made: list[str]) -> None:
    for shape in ((200, 200), (300, 300), (9000, 5), (8000, 5), (40000, 1)):
        x = data(*shape)
        found = ts.softmax(ts.asarray(x), axis=-1)
        np.testing.assert_allclose(np.asarray(found).sum(-1), 1, rtol=1e-5)
    # As long as there are many, of five, and of one.
    assert made.count("softmax") == 3


def test_small_arrays_are_computed_op_by_op(made: list[str]) -> None:
    ts.nn.gelu(ts.asarray(data(20, 30)))
    assert "gelu" not in made


def test_one_op_is_no_program_of_its_own(made: list[str]) -> None:
    x = ts.asarray(data(*SHAPE))
    ts.sum(x, axis=0)
    ts.sum(x, axis=0)
    assert made == ["reduce_sum"]


def test_what_is_repeated_is_one_program(made: list[str]) -> None:
    for shape in ((200, 300), (300, 201)):
        x = data(*shape)
        for _ in range(3):
            found = ts.repeat(ts.asarray(x), 2, axis=1)
            np.testing.assert_array_equal(np.asarray(found), x.repeat(2, axis=1))
            np.testing.assert_array_equal(np.asarray(ts.tile(ts.asarray(x), (1, 2))), np.tile(x, 2))
    assert made == ["repeat", "tile"]
    counts = np.arange(200) % 3
    found = ts.repeat(ts.asarray(data(200, 300)), ts.asarray(counts), axis=0)
    assert found.shape == (counts.sum(), 300)


def test_numbers_are_read_anew(made: list[str]) -> None:
    x = data(*SHAPE)
    for low, high in ((1.0, 2.0), (1.5, 2.5), (0.0, 1.0), (2.0, 1.0)):
        for _ in range(3):
            found = ts.clip(ts.asarray(x), low, high)
            np.testing.assert_array_equal(np.asarray(found), x.clip(low, high))
    assert made == ["clip"]


@pytest.mark.parametrize("dtype", [ts.float64, ts.float32, ts.bfloat16, ts.int32, ts.int8])
def test_numbers_have_the_dtype_of_arrays(dtype: ts.DType) -> None:
    x = ts.astype(ts.asarray(data(*SHAPE)), dtype)
    for low, high in ((0.1, 0.9), (1, 3), (0.1, 2), (True, 3), (1, 10**12), (1.5, 1e300)):
        for _ in range(3):
            try:
                wanted = ts.clip.function(x, low, high)  # type: ignore[attr-defined]
            except ts.TesseraError as error:
                with pytest.raises(type(error), match="does not fit"):
                    ts.clip(x, low, high)
                continue
            found = ts.clip(x, low, high)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_settings_and_signs_of_numbers_tell_programs_apart() -> None:
    x = ts.asarray(data(*SHAPE) - 2)
    for slope in (0.1, -0.0, 0.0, 1, True):
        wanted = ts.nn.leaky_relu.function(x, slope)
        for _ in range(3):
            found = ts.nn.leaky_relu(x, slope)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
            assert (np.signbit(found) == np.signbit(wanted)).all()
    with ts.policy(ts.Policy(compute=ts.float64)):
        wide = ts.std(x, axis=0)
    assert not np.array_equal(np.asarray(wide), np.asarray(ts.std(x, axis=0)))


def test_numbers_that_change_each_time_are_not_compiled(made: list[str]) -> None:
    x = ts.asarray(data(*SHAPE) - 2)
    for k in range(12):
        slope = 0.1 + 0.01 * k
        wanted = ts.nn.leaky_relu.function(x, slope)
        np.testing.assert_allclose(np.asarray(ts.nn.leaky_relu(x, slope)), np.asarray(wanted))
    assert made.count("leaky_relu") == 8


PARTS: dict[str, Callable[[Any], Any]] = {
    "columns": lambda x: x[:, 3:-4], "rows": lambda x: x[::2], "backwards": lambda x: x[::-1, ::-1],
    "turned": lambda x: x.T, "part of turned": lambda x: x.T[5:, 1:],
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_arrays_in_another_order(part: str) -> None:
    x = data(600, 500)
    for fn in (ts.softmax, ts.std, ts.nn.gelu, ts.tril):
        options = {} if fn in (ts.nn.gelu, ts.tril) else {"axis": 1}
        a = PARTS[part](ts.asarray(x))
        assert not a.storage.flags.c_contiguous
        wanted = np.asarray(fn(ts.asarray(np.ascontiguousarray(PARTS[part](x))), **options))
        for _ in range(4):
            np.testing.assert_allclose(np.asarray(fn(a, **options)), wanted, rtol=1e-5, atol=1e-6)
        assert a.prepared is None


def test_what_is_wrong_is_said_as_ever() -> None:
    x = ts.asarray(data(*SHAPE))
    for _ in range(3):
        with pytest.raises(AxisError, match="std: axis 5"):
            ts.std(x, axis=5)
    with pytest.raises(ts.TesseraError, match="clip"):
        ts.clip(x, "a")  # type: ignore[arg-type]


def test_an_axis_that_is_an_array_is_read() -> None:
    x = ts.asarray(data(*SHAPE))
    for axis in (0, 1, 0, 1):
        found = ts.nn.softmax(x, ts.asarray(np.int32(axis)))  # type: ignore[arg-type]
        np.testing.assert_allclose(np.asarray(found).sum(axis), 1, rtol=1e-5)


def test_gradients_and_traces_see_the_ops() -> None:
    x = ts.asarray(data(*SHAPE))
    graph = str(ts.make_graph(ts.softmax)(x))
    assert "graph.exp" in graph
    found = ts.grad(lambda v: ts.sum(ts.nn.gelu(v)))(x)
    wanted = ts.jit(ts.grad(lambda v: ts.sum(ts.nn.gelu(v))))(x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5)
