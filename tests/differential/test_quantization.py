"""Quantization and products of quantized tensors in every form of a program: interpreters of all
layers, kinds of CPUs, and a simulated GPU.

What is quantized, and what that stands for, agrees to the bit: floats are compared as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import lower_on
from tessera.dtypes import uint8, uint32
from tessera.graph import interp as graph_interp
from tessera.graph.device import device_at
from tessera.graph.ops import elementwise as e
from tessera.target.machine import machine, supported_levels
from tests.differential.levels import check_levels
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.tolerance import assert_close

LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]

RNG = np.random.default_rng(11)
X = (RNG.normal(size=(6, 32)) * 3).astype(np.float32)
X[0, :4] = [0.0, -0.0, 1e-40, 3e38]
X[1, :4] = [np.inf, -np.inf, np.nan, 1.0]
W = RNG.normal(size=(32, 10)).astype(np.float32)
A = RNG.normal(size=(6, 32)).astype(np.float32)


def bits(x: Any) -> Any:
    """What an array holds, as integers."""
    if x.dtype is ts.float32:
        return e.bitcast(x, uint32)
    return e.bitcast(x, uint8) if x.dtype.is_float else x


def stored(format: str, **options: Any) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        q = ts.quantize(x[2:], format, **options)
        wild = ts.quantize(x, "e2m1" if format == "nvfp4" else format, scale=0.25)
        found = (q.values, q.scale, q.dequantize(), wild.values)
        return tuple([bits(y) for y in found])

    return f


def packed(format: str, axis: int) -> Callable[..., Any]:
    """Bytes of two values each, of an odd number of them, and what they stand for."""

    def f(x: Any) -> Any:
        q = ts.quantize(x[1:6, 2:11], format, scale=0.25).pack(axis)
        return q.values, bits(q.unpack().values), bits(q.dequantize())

    return f


def from_bytes(format: str, pairs: int, **options: Any) -> Callable[..., Any]:
    """Products of a matrix and a vector with bytes of two values each."""

    def f(a: Any, w: Any) -> Any:
        q = ts.quantize(w, format, **options).pack(pairs)
        return ts.tanh(a @ q / 8), ts.tanh(a[0] @ q / 8)

    return f


def product(left: Any, right: Any) -> Callable[..., Any]:
    """A product of operands that are quantized inside, and its gradient for their scales."""

    def f(a: Any, w: Any) -> Any:
        x = a if left is None else ts.quantize(a, **left)
        y = w if right is None else ts.quantize(w, **right)
        return ts.tanh(ts.quantized_matmul(x, y) / 8)

    return f


STORED = {
    "int8 rows": stored("int8", axis=0),
    "int8 zero points": stored("int8", axis=1, symmetric=False),
    "uint8": stored("uint8", symmetric=False),
    "int4 blocks": stored("int4", block=8),
    "e4m3 tiles": stored("e4m3", block=(2, 16)),
    "e5m2": stored("e5m2"),
    "e2m1": stored("e2m1", axis=0),
    "nvfp4": stored("nvfp4"),
    "packed int4": packed("int4", 0),
    "packed e2m1": packed("e2m1", 1),
}
PRODUCTS = {
    "int8": product({"dtype": "int8", "axis": 0}, {"dtype": "int8", "axis": 1}),
    "zero points": product(
        {"dtype": "uint8", "axis": 0, "symmetric": False}, {"dtype": "int8", "symmetric": False}
    ),
    "weights": product(None, {"dtype": "int4", "block": (16, 1)}),
    "fp8": product({"dtype": "e4m3"}, {"dtype": "e4m3", "axis": 1}),
    "mixed fp8": product({"dtype": "e5m2"}, {"dtype": "e4m3", "axis": 1}),
    "nvfp4": product({"dtype": "nvfp4"}, {"dtype": "nvfp4", "axis": 0}),
}
ALL: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    **{name: (f, [X]) for name, f in STORED.items()},
    **{f"product, {name}": (f, [A, W]) for name, f in PRODUCTS.items()},
    "product, packed int4": (from_bytes("int4", 0, axis=1), [A, W]),
    "product, packed nvfp4": (from_bytes("nvfp4", 1, axis=0), [A, W]),
}


def gradients(a: Any, w: Any) -> Any:
    def loss(a: Any, w: Any, s: Any) -> Any:
        return ts.sum(ts.fake_quantize(a, "e4m3", axis=0) @ ts.fake_quantize(w, "int4", scale=s))

    return ts.grad(loss, argnums=(0, 1, 2))(a, w, ts.full((1, 10), 0.3))


ALL["gradients"] = (gradients, [A, W])


@pytest.mark.parametrize("name", ALL)
def test_all_levels(name: str) -> None:
    f, inputs = ALL[name]
    check_levels(ts.make_graph(f)(*inputs), inputs, machine=machine("x86-64-v3"))


@pytest.mark.parametrize("level", [name for name in LEVELS if name != "x86-64-v3"])
@pytest.mark.parametrize("name", ["int8 rows", "e4m3 tiles", "e2m1", "product, zero points"])
def test_other_machines(name: str, level: str) -> None:
    f, inputs = ALL[name]
    check_levels(ts.make_graph(f)(*inputs), inputs, machine=machine(level))


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ALL)
def test_on_a_simulated_gpu(gpu: FakeBackend, name: str) -> None:
    f, inputs = ALL[name]
    graph = ts.make_graph(f)(*inputs)
    expected = graph_interp.run(graph, inputs)
    device = device_at("cuda", 0)
    given = [gpu.put(np.asarray(x, order="C"), device) for x in inputs]
    found = lower_on(graph, device).executable(device).run(given, [])
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert_close(gpu.get(a), b, length=32, factor=20)


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("format", ["int4", "nvfp4"])
def test_few_rows_unpack_as_they_load_on_a_gpu(gpu: FakeBackend, format: str, dtype: str) -> None:
    """No copy of the matrix is stored for up to 16 rows; those of more rows read it again."""
    rng = np.random.default_rng(3)
    x = ts.astype(ts.asarray(rng.normal(size=(20, 96)).astype(np.float32)), getattr(ts, dtype))
    axis = 0 if format == "nvfp4" else 1
    w = ts.quantize(rng.normal(size=(96, 280)).astype(np.float32), format, axis=axis)
    exact = np.asarray(x).astype(np.float64) @ np.asarray(w.dequantize()).astype(np.float64)
    p = ts.device_put(w.pack(), "cuda:0")
    f = ts.jit(lambda x, p: x @ p)
    for rows in (1, 2, 16, 20):
        given = ts.device_put(x[:rows], "cuda:0")
        assert_close(
            np.asarray(f(given, p)).astype(np.float32), exact[:rows].astype(np.float32), length=96,
            factor=4.0 if dtype == "float32" else 2.0**17,
        )  # fmt: skip
        assert (len(f.lower(given, p).kernels()) == 1) == (rows <= 16)
    stated = ts.jit(ts.deterministic(batch_invariant=True)(lambda x, p: x @ p))
    whole = np.asarray(stated(ts.device_put(x, "cuda:0"), p))
    for rows in (1, 3):
        alone = np.asarray(stated(ts.device_put(x[:rows], "cuda:0"), p))
        assert alone.tobytes() == whole[:rows].tobytes()
