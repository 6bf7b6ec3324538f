"""Layers with quantized weights, NVFP4 in all products, and library routines under policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import IndexOutOfBoundsError, OptionError, ShapeError
from tests.precision.test_products import A, B, made, meant
from tests.tolerance import assert_close

RNG = np.random.default_rng(8)
FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("int8", {"axis": 1}),
    ("int4", {"block": (8, 1), "symmetric": False}),
    ("e4m3", {}),
    ("nvfp4", {"axis": 0}),
]


@pytest.mark.parametrize("how", FORMATS, ids=str)
def test_dense(how: Any) -> None:
    """The product, with a bias; nothing of the weights is converted by a policy."""
    w, bias = made(B, how), RNG.normal(size=10).astype(np.float32)
    variants = [w] if how[0] in ("int8", "e4m3") else [w, w.pack(), w.pack(1)]
    for q in variants:
        found = ts.jit(ts.nn.dense)(A, q, bias)
        assert_close(found, (A @ meant(w) + bias).astype(np.float32), length=32)
        with ts.policy(ts.policies.Training()):
            short = ts.jit(ts.nn.dense)(A, q)
        rounded = A.astype(ts.bfloat16.np).astype(np.float32)
        assert short.dtype is ts.bfloat16
        assert_close(short, (rounded @ meant(w)).astype(ts.bfloat16.np), length=32)
    g = ts.grad(lambda x: ts.sum(ts.nn.dense(x, w)))(ts.asarray(A))
    assert_close(g, np.broadcast_to(meant(w).sum(1), A.shape).astype(np.float32), length=10)
    with pytest.raises(ShapeError, match=r"nn.dense: x is f32\[6, 10\], kernel QuantizedTensor"):
        ts.nn.dense(ts.ones((6, 10)), w)


@pytest.mark.parametrize("how", [*FORMATS, ("int4", {"axis": 0}), ("int4", {})], ids=str)
def test_embedding(how: Any) -> None:
    table = made(B, how)
    at = np.array([[0, 31, -1], [7, 7, -32]])
    wanted = np.asarray(table.dequantize())[at]
    variants = [table] if how[0] in ("int8", "e4m3") else [table, table.pack(), table.pack(1)]
    for q in variants:
        found = ts.jit(ts.nn.embedding)(at, q)
        np.testing.assert_array_equal(np.asarray(found), wanted)
        with pytest.raises(IndexOutOfBoundsError):
            ts.nn.embedding(ts.asarray([32]), q)
    with ts.policy(ts.policies.Training()):
        assert ts.nn.embedding(at, variants[-1]).dtype is ts.float32
        assert ts.nn.embedding(at, B).dtype is ts.float32
    np.testing.assert_array_equal(np.asarray(ts.nn.embedding(at, B)), B[at])
    text = str(ts.make_graph(ts.nn.embedding)(at, variants[-1]))
    assert "graph.dequantize" in text
    assert "f32[32, 10]" not in text
    with pytest.raises(ShapeError, match="the table has 1 dims"):
        ts.nn.embedding(at, B[0])


def test_conv() -> None:
    x = RNG.normal(size=(2, 8, 3)).astype(np.float32)
    q = ts.quantize(RNG.normal(size=(4, 3, 5)).astype(np.float32), ts.int4, axis=2).pack()
    wanted = ts.nn.conv(x, q.dequantize())
    np.testing.assert_array_equal(np.asarray(ts.nn.conv(x, q)), np.asarray(wanted))


def nvfp4(x: np.ndarray, axis: int) -> np.ndarray:
    """Numbers as products under the policy take them."""
    wide = x.astype(ts.bfloat16.np).astype(np.float32)
    return np.asarray(ts.fake_quantize(wide, "nvfp4", axis=axis))


X = RNG.normal(size=(3, 4, 32)).astype(np.float32)
W = RNG.normal(size=(32, 5)).astype(np.float32)
V = RNG.normal(size=(4, 32, 5)).astype(np.float32)
F = X.transpose(0, 2, 1)
PRODUCTS: dict[str, tuple[Callable[..., Any], list[np.ndarray], np.ndarray]] = {
    "einsum": (
        lambda x, w: ts.einsum("bsd,df->bsf", x, w), [X, W], nvfp4(X, 2) @ nvfp4(W, 0)
    ),
    "batched": (
        lambda x, v: ts.einsum("bsd,sdf->sbf", x, v),
        [X, V],
        np.einsum("bsd,sdf->sbf", nvfp4(X, 2), nvfp4(V, 1)),
    ),
    "matmul of stacks": (
        lambda x, v: ts.matmul(x[:, :, None], v)[:, :, 0],
        [X, V],
        np.einsum("bsd,sdf->bsf", nvfp4(X, 2), nvfp4(V, 1)),
    ),
    "tensordot": (
        lambda x, w: ts.tensordot(x, w, axes=1), [X, W], nvfp4(X, 2) @ nvfp4(W, 0)
    ),
    "tensordot of two axes": (
        lambda x, v: ts.tensordot(x, v, axes=2),
        [X, V],
        nvfp4(X.reshape(3, 128), 1) @ nvfp4(V.reshape(128, 5), 0),
    ),
    "tensordot in another order": (
        lambda f, v: ts.tensordot(f, v, axes=((2, 1), (0, 1))),
        [F, V],
        nvfp4(X.reshape(3, 128), 1) @ nvfp4(V.reshape(128, 5), 0),
    ),
    "dense": (ts.nn.dense, [X, W], nvfp4(X, 2) @ nvfp4(W, 0)),
    "vecdot": (ts.vecdot, [X[0], X[1]], np.sum(nvfp4(X[0], 1) * nvfp4(X[1], 1), -1)),
    "dot": (ts.dot, [X, W[:, 0]], nvfp4(X, 2) @ nvfp4(W[:, 0], 0)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_nvfp4_in_products(name: str) -> None:
    """Both operands are rounded along what is summed over; several axes count as one."""
    f, inputs, wanted = PRODUCTS[name]
    with ts.policy(ts.policies.NVFP4(accum=ts.float32)):
        found = ts.jit(f)(*inputs)
        assert found.dtype is ts.bfloat16
    assert_close(found, wanted.astype(ts.bfloat16.np), length=128)
    plain = np.asarray(ts.jit(f)(*inputs))
    assert np.abs(plain - np.asarray(found).astype(np.float32)).max() > 0.01


def test_a_quantized_weight_is_not_rounded_to_blocks_again() -> None:
    q = ts.quantize(W, ts.int8, axis=1)
    with ts.policy(ts.policies.NVFP4(accum=ts.float32)):
        found = ts.nn.dense(X, q)
    wide = X.astype(ts.bfloat16.np).astype(np.float32)
    assert_close(found, (wide @ meant(q)).astype(ts.bfloat16.np), length=32)


S = (lambda m: m @ m.T + 4 * np.eye(4))(RNG.normal(size=(4, 4))).astype(np.float32)
ROUTINES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "cholesky": (ts.linalg.cholesky, [S]),
    "solve": (ts.linalg.solve, [S, B[:4]]),
    "inv": (ts.linalg.inv, [S]),
    "det": (ts.linalg.det, [S]),
    "qr": (lambda x: ts.linalg.qr(x).R, [S]),
    "svdvals": (ts.linalg.svdvals, [A]),
    "eigvalsh": (ts.linalg.eigvalsh, [S]),
    "expm": (ts.linalg.expm, [S / 8]),
    "norm": (ts.linalg.vector_norm, [A]),
    "nuclear norm": (lambda x: ts.linalg.matrix_norm(x, ord="nuc"), [A]),
    "spectrum": (lambda x: ts.abs(ts.fft.rfft(x)), [A]),
    "back": (lambda x: ts.fft.irfft(ts.fft.rfft(x) * 2.0), [A]),
}


@pytest.mark.parametrize("name", ROUTINES)
def test_library_routines_obey_policies(name: str) -> None:
    """Operands are converted, all is computed in float32 at least, results are rounded."""
    f, inputs = ROUTINES[name]
    narrow = [x.astype(ts.bfloat16.np) for x in inputs]
    wide = [x.astype(np.float32) for x in narrow]
    is_complex = name in ("spectrum", "back")
    for accumulate in (None, ts.float32, ts.float64):
        p = ts.Policy(storage=ts.bfloat16, compute=ts.bfloat16, accumulate=accumulate)
        work = [x.astype(np.float64) if accumulate is ts.float64 else x for x in wide]
        wanted = np.asarray(ts.jit(f)(*work))
        with ts.policy(p):
            for given in (inputs, narrow):
                found = ts.jit(f)(*given)
                if is_complex:  # what comes out of a Fourier transform is left alone
                    np.testing.assert_array_equal(np.asarray(found), wanted)
                    continue
                assert found.dtype is ts.bfloat16
                rounded = wanted.astype(np.float32).astype(ts.bfloat16.np)
                np.testing.assert_array_equal(np.asarray(found), rounded)


def test_results_of_routines_are_rounded_as_the_policy_says() -> None:
    up = ts.Policy(storage=ts.bfloat16, rounding="up")
    with ts.policy(up):
        found = np.asarray(ts.linalg.cholesky(S)).astype(np.float64)
    wanted = np.asarray(ts.linalg.cholesky(S)).astype(np.float64)
    assert (found >= wanted).all()
    assert (found - wanted).max() <= np.abs(wanted).max() * 2.0**-7
    text = str(ts.jit(ts.linalg.cholesky, policy=up).lower(S).stage("graph"))
    assert "round_to" in text
    graph = str(ts.jit(ts.linalg.inv, policy=ts.policies.Inference()).lower(S).stage("graph"))
    assert graph.count("dtype=f8e4m3fn") >= 1
    assert "graph.lu(" in graph or "graph.lu " in graph or "lu" in graph


def test_gradients_of_routines_under_policies() -> None:
    def loss(x: Any) -> Any:
        return ts.sum(ts.linalg.inv(x)).astype(ts.float32)

    with ts.policy(ts.policies.Training()):
        found = ts.grad(loss)(ts.asarray(S))
    assert found.dtype is ts.float32
    exact = np.asarray(ts.grad(lambda x: ts.sum(ts.linalg.inv(x)))(ts.asarray(S)))
    assert np.abs(np.asarray(found) - exact).max() < 0.05 * np.abs(exact).max()


def test_a_fixed_order_is_refused_by_library_routines() -> None:
    fixed = ts.Policy(order="fixed")
    with ts.policy(fixed):
        for f in (ts.linalg.cholesky, ts.linalg.inv, ts.fft.rfft):
            with pytest.raises(OptionError, match="a library routine adds in an order of its own"):
                f(S)
        assert ts.linalg.vector_norm(S).shape == ()
        with ts.policy(ts.Policy()):
            assert ts.linalg.cholesky(S).shape == (4, 4)


def test_what_moves_elements_is_left_alone() -> None:
    with ts.policy(ts.policies.Training()):
        assert ts.linalg.diagonal(ts.asarray(S)).dtype is ts.float32
        assert ts.fft.fftshift(ts.asarray(S)).dtype is ts.float32
        assert ts.fft.fftfreq(8).dtype is ts.float32
        assert ts.linalg.trace(ts.asarray(S)).dtype is ts.bfloat16
