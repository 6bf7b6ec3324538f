"""Values of 4 bits, two in a byte: the same numbers and bits in half of the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.errors import DTypeError, ShapeError
from tessera.graph import interp as graph_interp
from tessera.target.machine import supported_levels
from tests.precision.test_products import A, B, made, meant
from tests.precision.test_quantize import every_value
from tests.tolerance import assert_close

RNG = np.random.default_rng(5)
FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("int4", {"axis": 1}),
    ("int4", {"axis": 1, "symmetric": False}),
    ("int4", {"block": (8, 1)}),
    ("int4", {"block": (4, 5), "symmetric": False}),
    ("e2m1", {"axis": 1}),
    ("nvfp4", {"axis": 0}),
]


def equal(a: Any, b: Any) -> None:
    """The same bits, of the same dtype."""
    x, y = np.asarray(a), np.asarray(b)
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    if x.dtype == ts.int4.np:  # of whose byte 4 bits count
        x, y = x.astype(np.int8), y.astype(np.int8)
    np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


def of(values: np.ndarray, format: str) -> ts.QuantizedTensor:
    """A tensor that has these values."""
    return ts.QuantizedTensor(ts.asarray(values), ts.ones([1] * values.ndim), format=format)


def check(format: str, shape: Sequence[int], axis: int, run: Callable[..., Any]) -> None:
    """Packs and unpacks values: what the bytes hold, and what comes back."""
    dtype = {"int4": ts.int4, "e2m1": ts.float8_e4m3fn}[format].np
    values = RNG.choice(every_value(format), size=shape).astype(dtype)
    size = shape[axis]

    def both(values: Any) -> Any:
        p = of(values, format).pack(axis)
        assert p.shape == values.shape
        assert p.block == (0,) * len(shape) or 1 in shape
        assert (p.packed, p.padded) == (axis % len(shape) - len(shape), size % 2 == 1)
        back = p.unpack()
        assert back.packed is None
        assert not back.padded
        return p.values, back.values, p.dequantize()

    found = run(both, values)
    narrow = ml_dtypes.int4 if format == "int4" else ml_dtypes.float4_e2m1fn
    codes = np.moveaxis(values.astype(np.float32).astype(narrow).view(np.uint8) & 15, axis, 0)
    codes = np.concatenate([codes, np.zeros((size % 2, *codes.shape[1:]), np.uint8)])
    equal(found[0], np.moveaxis(codes[0::2] | codes[1::2] << 4, 0, axis))
    equal(found[1], values)
    equal(found[2], values.astype(np.float32))


@given(
    st.sampled_from(["int4", "e2m1"]),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.integers(-3, 2),
)
def test_packing_and_back(format: str, shape: list[int], at: int) -> None:
    """Any axis of any shape, by the definition of the ops."""
    axis = at % len(shape) if at >= 0 else -(-at % len(shape)) - 1
    check(format, shape, axis, lambda fn, x: graph_interp.run(ts.make_graph(fn)(x), [x]))


@pytest.mark.parametrize("format", ["int4", "e2m1"])
def test_packing_and_back_compiled(format: str) -> None:
    for shape, axis in (((7, 33), 0), ((7, 33), -1), ((64, 48), 0), ((64, 48), 1), ((0, 3), 0)):
        check(format, shape, axis, lambda fn, x: ts.jit(fn)(x))


BYTES = ["10", "32", "54", "76", "98", "ba", "dc", "fe"]


def test_the_bytes_of_e2m1() -> None:
    """The sign, two bits of exponent, one of mantissa; there is no NaN."""
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = np.array([*sizes, *[-x for x in sizes]]).astype(ts.float8_e4m3fn.np)
    p = of(values, "e2m1").pack()
    assert [f"{x:02x}" for x in np.asarray(p.values)] == BYTES
    equal(p.unpack().values, values)
    lost = of(np.array([np.nan, -np.nan]).astype(ts.float8_e4m3fn.np), "e2m1").pack()
    np.testing.assert_array_equal(np.asarray(lost.dequantize()), [6.0, -6.0])


@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_memory_halves_and_products_stay(how: Any) -> None:
    q = made(B, how)
    axis = FORMATS.index(how) % 2
    p = q.pack(axis)
    assert q.pack().packed == -2
    assert p.values.nbytes * 2 == q.values.nbytes == B.size
    assert q.nbytes - p.nbytes == B.size // 2
    assert p.pack(axis) is p
    lefts = [A, A[0], A.astype(ts.bfloat16.np), ts.quantize(A, "int8", axis=0)]
    lefts += [ts.quantize(A, "uint8", symmetric=False), ts.quantize(A, "e4m3")]
    lefts += [ts.quantize(A, "nvfp4")]

    def f(w: Any) -> Any:
        products = [x @ w for x in lefts]
        return [*products, w.mT.dequantize(), w.mT @ ts.asarray(A).T, w @ B[0], w.mT @ A[0]]

    for a, b in zip(ts.jit(f)(p), ts.jit(f)(q), strict=True):
        assert_close(a, np.asarray(b), length=32)
    assert_close(A @ p, (A @ meant(q)).astype(np.float32), length=32)


def test_both_operands_packed() -> None:
    f = ts.jit(lambda a, b: a @ b)
    for left, right in (("int4", "int4"), ("nvfp4", "nvfp4"), ("e2m1", "int4"), ("int4", "nvfp4")):
        a, b = ts.quantize(A, left), ts.quantize(B, right, axis=0 if right == "nvfp4" else 1)
        assert_close(f(a.pack(1), b.pack(0)), np.asarray(f(a, b)), length=32)
        assert_close(f(a.pack(0), b.pack(1)), np.asarray(f(a, b)), length=32)


def test_odd_sizes() -> None:
    w = RNG.normal(size=(31, 9)).astype(np.float32)
    x = RNG.normal(size=(3, 31)).astype(np.float32)
    for axis in (0, 1):
        q = ts.quantize(w, ts.int4, axis=1, symmetric=False)
        p = q.pack(axis)
        assert p.padded
        assert p.values.shape == ((16, 9) if axis == 0 else (31, 5))
        f = ts.jit(lambda x, w: (x @ w, x[0] @ w))
        for a, b in zip(f(x, p), f(x, q), strict=True):
            assert_close(a, np.asarray(b), length=31)


def test_rows_of_bytes_are_read_once() -> None:
    """A vector times a packed matrix takes two values of each byte that it loads."""
    w, x = ts.quantize(RNG.normal(size=(64, 256)).astype(np.float32), ts.int4, axis=1), ts.ones(64)
    f = ts.jit(lambda x, w: x @ w)
    kernels = f.lower(x, w.pack()).kernels()
    assert len(kernels) == 1
    text = str(f.lower(x, w.pack()).stage("tile"))
    loads = [line for line in text.splitlines() if "tile.load" in line and "tile<u8" in line]
    assert len(loads) == 1
    assert "value=32, dtype=i64" in text  # steps


LARGE: list[tuple[tuple[str, dict[str, Any]], bool]] = [
    (("int4", {"axis": 1}), True),
    (("int4", {"block": (32, 1)}), True),
    (("nvfp4", {"axis": 0}), False),
]


@pytest.mark.parametrize(("how", "packed"), LARGE, ids=str)
def test_large_matrices_are_read_in_order(how: Any, packed: bool) -> None:
    """Rows of bytes, and of scales for several of them, side by side."""
    w = RNG.normal(size=(2048, 2048)).astype(np.float32)
    x = RNG.normal(size=2048).astype(np.float32)
    p = made(w, how).pack() if packed else made(w, how)
    f = ts.jit(lambda x, w: x @ w)
    (kernel,) = f.lower(x, p).kernels()
    assert "8 rows read side by side" in kernel.reason
    wanted = x.astype(np.float64) @ np.asarray(p.dequantize()).astype(np.float64)
    assert_close(f(x, p), wanted.astype(np.float32), length=2048)


@pytest.mark.parametrize("level", supported_levels())
@pytest.mark.parametrize(
    ("rows", "how"), [(2, LARGE[0]), (7, LARGE[0]), (16, LARGE[0]), (3, LARGE[1])]
)
def test_few_rows_unpack_in_registers(rows: int, how: Any, level: str) -> None:
    """The bits of the product with bytes, and no copy of the matrix."""
    x, w = (RNG.normal(size=shape).astype(np.float32) for shape in ((rows, 2048), (2048, 2048)))
    q = made(w, how[0])
    f = ts.jit(lambda x, q: x @ q)
    with ts.config.update(cpu_level=level):
        equal(f(x, q.pack()), f(x, q))
        (kernel,) = f.lower(x, q.pack()).kernels()
    assert "8 rows read side by side" in kernel.reason


def test_trees_batches_and_loops() -> None:
    stack = ts.quantize(RNG.normal(size=(3, 32, 10)).astype(np.float32), ts.int4, axis=(0, 2))
    p = stack.pack()
    assert repr(p) == (
        "QuantizedTensor(int4, shape=(3, 32, 10), scale=(3, 1, 10), packed=-2, dtype=float32)"
    )
    x = ts.asarray(A)
    each = ts.vmap(lambda w: x @ w)
    assert_close(each(p), np.asarray(each(stack)), length=32)
    equal(ts.vmap(lambda w: w.dequantize())(p), stack.dequantize())
    packed = ts.vmap(lambda w: ts.quantize(w, ts.int4, axis=1).pack())(stack.dequantize())
    assert packed.packed == -2
    assert packed.values.shape == (3, 16, 10)

    def step(c: Any, w: Any) -> Any:
        return c + ts.sum(x @ w), None

    def total(w: Any) -> Any:
        return ts.scan(step, ts.asarray(0.0), w)[0]

    assert_close(total(p), np.asarray(total(stack)), length=960)
    assert_close(x @ p, np.asarray(x @ stack), length=32)
    leaves, treedef = ts.pytree.flatten(p)
    assert ts.pytree.unflatten(treedef, leaves).packed == -2
    assert treedef != ts.pytree.structure(stack)


def test_gradients() -> None:
    """Of an activation beside packed weights, and of their scales."""
    q = ts.quantize(B, ts.int4, block=(16, 1))
    ct = RNG.normal(size=(6, 10)).astype(np.float32)
    for fn in (
        lambda w: ts.grad(lambda x: ts.sum((x @ w) * ct))(ts.asarray(A)),
        lambda w: ts.grad(lambda s: ts.sum((A @ replace(w, scale=s)) * ct))(w.scale),
    ):
        assert_close(fn(q.pack()), np.asarray(fn(q)), length=32)


def test_inside_of_a_jitted_function() -> None:
    """Quantizing, packing and storing is one kernel; a product stores no wider values than bytes
    before it packs its operands."""

    def stored(w: Any) -> Any:
        return ts.quantize(w, ts.int4, scale=ts.full((1, 10), 0.1)).pack()

    labels = [k.label for k in ts.jit(stored).lower(ts.asarray(B)).kernels()]
    assert len([label for label in labels if "round" in label]) == 1
    big = ts.quantize(RNG.normal(size=(64, 64)).astype(np.float32), ts.int4, axis=1).pack()
    f = ts.jit(lambda x, w: x @ w)
    kernels = str(f.lower(ts.ones((64, 64)), big).stage("schedule")).count("schedule.kernel(")
    assert kernels == 3
    assert "buf<i8[64, 64]>" in str(f.lower(ts.ones((64, 64)), big).stage("schedule"))
    equal(f(A, ts.jit(stored)(B)), f(A, stored(B)))


def test_calls_with_packed_tensors_are_native() -> None:
    q = ts.quantize(B, ts.int4, axis=1).pack()
    from tessera.runtime.dispatch.structure import structure_of  # not before `ts` is loaded

    found = structure_of((q,), {}, (), ())
    assert found is not None
    assert found.flatten is None


def test_sizes_that_are_known_later() -> None:
    @ts.jit
    @ts.constrain("S % 2 == 0")
    def f(x: ts.Tensor["S", ts.float32], y: ts.Tensor["S", 8, ts.float32]) -> Any:  # noqa: F821, UP037
        return x @ ts.quantize(y, ts.int4, axis=1).pack()

    for n in (16, 48, 2):
        x, y = (RNG.normal(size=s).astype(np.float32) for s in ((n,), (n, 8)))
        assert_close(f(x, y), np.asarray(x @ ts.quantize(y, ts.int4, axis=1)), length=n)
    assert len(f.compiled()) == 1


def test_policies_change_nothing() -> None:
    q = ts.quantize(B, "nvfp4", axis=0).pack()
    with ts.policy(ts.policies.Training()):
        equal(q.unpack().values, ts.quantize(B, "nvfp4", axis=0).values)
        assert_close(A @ q, np.asarray(A @ q.unpack()), length=32)


def test_what_cannot_be_packed() -> None:
    with pytest.raises(DTypeError, match="pack: the values are int8"):
        ts.quantize(B, ts.int8).pack()
    whole = replace(ts.quantize(B, ts.int4).pack(0), scale=ts.ones((16, 1)))
    with pytest.raises(ShapeError, match="packed along axis -2"):
        ts.vmap(lambda w: w.dequantize())(whole)
    with pytest.raises(ts.TesseraError, match="axis"):
        ts.quantize(B, ts.int4).pack(2)

    @ts.jit
    def f(y: ts.Tensor["S", 8, ts.float32]) -> Any:  # noqa: F821, UP037
        return ts.quantize(y, ts.int4, axis=1).pack().values

    with pytest.raises(ShapeError, match="pack: dim 0 has S values"):
        f(ts.ones((16, 8)))


def test_recordings_and_refs(tmp_path: Path) -> None:
    """Packed tensors are arguments of a recording that is saved, and what a ref holds."""
    q = ts.quantize(B, ts.int4, axis=1).pack()
    f = ts.jit(lambda x, w: x @ w)
    recording = ts.replay.record(f, A, q)
    recording.save(tmp_path / "product.npz")
    loaded = ts.replay.load(tmp_path / "product.npz")
    assert "the same bits" in str(loaded.run(f, A, q))
    weights = ts.Ref(q)
    found = ts.jit(lambda x: x @ weights.get())(A)
    equal(found, f(A, q))
    with pytest.raises(ts.TesseraError):
        weights.set(q.unpack())
