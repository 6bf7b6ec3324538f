"""The safe functions at the edges of each dtype, run and proved.

`ts.verify.numerics` proves them finite for all finite numbers of a dtype; here are the numbers
where it would show if that were wrong, with what should come of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import nn
from tessera.dtypes import DType, finfo

DTYPES = {
    "f64": ts.float64, "f32": ts.float32, "bf16": ts.bfloat16, "f16": ts.float16,
    "f8e5m2": ts.float8_e5m2, "f8e4m3fn": ts.float8_e4m3fn,
}  # fmt: skip
WIDTH = 4

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": nn.softmax_safe,
    "logsumexp": lambda x: nn.logsumexp_safe(x, axis=-1),
    "layernorm": nn.layernorm_safe,
    "layernorm without epsilon": lambda x: nn.layernorm_safe(x, epsilon=0),
    "rmsnorm": nn.rmsnorm_safe,
    "rmsnorm without epsilon": lambda x: nn.rmsnorm_safe(x, epsilon=0),
}


def edges(dtype: DType) -> np.ndarray:
    """Rows of the largest, smallest and smallest normal numbers, alone and together."""
    limits = finfo(dtype)
    m, t, s = limits.max, limits.smallest_subnormal, limits.smallest_normal
    rows = [
        [m] * 4, [-m] * 4, [m, -m, m, -m], [m, 0, 0, 0], [-m, 0, 0, 0], [t] * 4, [t, -t, 0, t],
        [s, -s, t, 0], [0] * 4, [1, 2, 3, 4], [m, t, -t, -m], [m, m, m, -m], [t, 0, 0, 0],
        [m, m / 2, m / 4, 0], [s] * 4, [m / 2, m / 2, m, m], [1, 1, 1, 1], [-0.0, 0.0, -0.0, 0.0],
    ]  # fmt: skip
    return np.asarray(rows, np.float64).astype(dtype.np)


def expected(name: str, rows: np.ndarray) -> np.ndarray:
    """The definitions, in numbers with a wider exponent."""
    x = rows.astype(np.longdouble)
    top = x.max(-1, keepdims=True)
    powers = np.exp(x - top)
    total = powers.sum(-1, keepdims=True)
    if name == "softmax":
        return powers / total
    if name == "logsumexp":
        return (np.log(total) + top)[..., 0]
    epsilon = 0.0 if "without" in name else 1e-5 if name == "layernorm" else 1e-6
    if name.startswith("layernorm"):
        x = x - x[..., :1]
        x = x - x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True) + np.longdouble(epsilon)
    with np.errstate(all="ignore"):
        return np.where(variance == 0, 0, x / np.sqrt(variance))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_at_the_edges(name: str, dtype: str, jit: bool) -> None:
    fn, kind = FUNCTIONS[name], DTYPES[dtype]
    rows = edges(kind)
    found = np.asarray((ts.jit(fn) if jit else fn)(ts.asarray(rows))).astype(np.float64)
    assert np.isfinite(found).all()
    wanted = expected(name, rows).astype(np.float64)
    limit = finfo(kind).max
    tolerance = max(4 * finfo(kind).eps, 4e-6 if kind is not ts.float64 else 1e-14)
    wanted = np.clip(wanted, -limit, limit)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_proofs_for_all_finite_numbers(name: str, dtype: str) -> None:
    found = ts.verify.numerics(FUNCTIONS[name]).report(f"{dtype}[3, {WIDTH}]")
    assert found.is_proved, found
    if name == "softmax":
        assert found.results[0].lo >= 0
        assert found.results[0].hi <= 1 + 4 * finfo(DTYPES[dtype]).eps
    elif name != "logsumexp":
        # Twice the largest that there can be, for roundings of squares that are no normal numbers.
        assert found.results[0].magnitude <= 4 * WIDTH**0.5


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_proofs_with_masks(dtype: str) -> None:
    types = (f"{dtype}[3, 4]", "bool[3, 4]")
    masked = ts.verify.numerics(lambda x, m: nn.softmax_safe(x, where=m)).report(*types)
    assert masked.is_proved, masked
    # Of nothing the logarithm of the sum is -inf, and so it is where differences overflow.
    total = ts.verify.numerics(lambda x, m: nn.logsumexp_safe(x, -1, where=m), stable=False)
    assert total.report(*types).is_proved
    logs = ts.verify.numerics(nn.log_softmax_safe, stable=False)
    assert logs.report(f"{dtype}[3, 4]").is_proved
    bounded = ts.verify.numerics(nn.log_softmax_safe, bounded=(-100, 100))
    assert bounded.report("f32[3, 4]").is_proved


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_derivatives_are_finite(dtype: str) -> None:
    """Where the derivative itself is a number of the dtype: that of x / |x| at the smallest numbers
    is not."""
    kind = DTYPES[dtype]
    weights = ts.asarray(np.array([1, 2, 4, -3.0]), dtype=kind)
    rows = ts.asarray(edges(kind))
    for name, fn in FUNCTIONS.items():
        if "without" in name:
            continue
        factor: Any = 1 if name == "logsumexp" else weights

        def loss(x: Any, fn: Any = fn, factor: Any = factor) -> Any:
            return ts.sum((fn(x) * factor).astype(ts.float32))

        assert np.isfinite(np.asarray(ts.grad(loss)(rows)).astype(np.float64)).all(), name
        _, tangent = ts.jvp(loss, (rows,), (ts.ones_like(rows),))
        assert np.isfinite(float(tangent)), name
    for slope in (nn.softmax_safe, lambda x: nn.logsumexp_safe(x, axis=-1)):
        gradient = ts.grad(lambda x, f=slope: ts.sum(f(x).astype(ts.float32)))
        assert ts.verify.numerics(gradient).report(f"{dtype}[3, 4]").is_proved


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16", "f8e5m2"])
def test_rows_of_minus_infinity_and_masked_rows(dtype: str) -> None:
    kind = DTYPES[dtype]
    rows = ts.asarray(np.full((2, 3), -np.inf).astype(kind.np))
    nothing = np.zeros((2, 3), bool)
    for x, where in ((rows, None), (ts.ones((2, 3), dtype=kind), nothing)):
        np.testing.assert_array_equal(nn.softmax_safe(x, where=where), np.zeros((2, 3), kind.np))
        total = np.asarray(nn.logsumexp_safe(x, -1, where=where)).astype(np.float64)
        np.testing.assert_array_equal(total, [-np.inf] * 2)


        def loss(x: Any, where: Any = where) -> Any:
            return ts.sum(nn.softmax_safe(x, where=where).astype(ts.float32))

        gradient = ts.grad(loss)
        np.testing.assert_array_equal(gradient(x), np.zeros((2, 3), kind.np))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_and_none(dtype: str) -> None:
    kind = DTYPES[dtype]
    for value in (finfo(kind).max, finfo(kind).smallest_subnormal, 0.0):
        one = ts.full((2, 1), value, dtype=kind)
        np.testing.assert_array_equal(nn.softmax_safe(one), np.ones((2, 1), kind.np))
        np.testing.assert_array_equal(nn.logsumexp_safe(one, -1), np.asarray(one)[:, 0])
        np.testing.assert_array_equal(nn.layernorm_safe(one), np.zeros((2, 1), kind.np))
    for fn in FUNCTIONS.values():
        assert fn(ts.ones((0, 3), dtype=kind)).shape[0] == 0


# --- attention ----------------------------------------------------------------------------------


@pytest.mark.unchecked
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_proved_for_all_finite_numbers(dtype: str) -> None:
    types = (f"{dtype}[2, 5, 4]",) * 3
    for options in ({}, {"causal": True}):
        run = ts.verify.numerics(lambda q, k, v, o=options: nn.attention_safe(q, k, v, **o))
        found = run.report(*types)
        assert found.is_proved, found
    masked = ts.verify.numerics(lambda q, k, v, m: nn.attention_safe(q, k, v, mask=m))
    assert masked.report(*types, "bool[5, 5]").is_proved
    # The plain one overflows, but not where products of queries and keys are numbers.
    if dtype != "f8e4m3fn":  # which ends at 448
        plain = ts.verify.numerics(nn.attention, bounded=(-100, 100)).report(*types)
        assert plain.is_proved
    if dtype in ("f64", "f32", "bf16"):
        assert not ts.verify.numerics(nn.attention).report(*types).is_proved


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_at_the_edges(dtype: str) -> None:
    kind = DTYPES[dtype]
    rows = edges(kind)[:16].reshape(-1)
    rng = np.random.default_rng(0)

    def drawn() -> Any:
        return ts.asarray(rng.permutation(rows).reshape(4, 4, 4))

    for options in ({}, {"causal": True}, {"mask": np.tri(4, 4, -1, dtype=bool)}):
        compiled = ts.jit(lambda *xs, o=options: nn.attention_safe(*xs, **o))
        for _ in range(2):
            q, k, v = drawn(), drawn(), drawn()
            for found in (nn.attention_safe(q, k, v, **options), compiled(q, k, v)):
                wide = np.asarray(found).astype(np.float64)
                assert np.isfinite(wide).all()
                # It lies between the values, up to roundings.
                most = np.abs(np.asarray(v).astype(np.float64)).max(1, keepdims=True)
                assert (np.abs(wide) / 2 <= most / 2 * (1 + 8 * finfo(kind).eps)).all()
    assert (np.asarray(nn.attention_safe(q, k, v, mask=np.zeros((4, 4), bool))) == 0).all()
    # Derivatives, where they are numbers of the dtype themselves.
    ones = ts.ones_like(q)
    slope = ts.grad(lambda q: ts.sum(nn.attention_safe(q, ones, ones).astype(ts.float32)))(q)
    assert np.isfinite(np.asarray(slope).astype(np.float64)).all()


@pytest.mark.parametrize("kind", [ts.float64, ts.float32, ts.float16, ts.bfloat16], ids=str)
def test_attention_agrees_with_the_plain_one(kind: DType) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (ts.asarray(rng.normal(size=(2, 4, 5, 3)) * 2, dtype=kind) for _ in range(3))
    few = tuple(x[:, :2] for x in (k, v))
    mask = np.where(rng.random((5, 5)) < 0.5, 0.0, -np.inf).astype(np.float32)
    tolerance = 8 * finfo(kind).eps
    for args, options in (
        ((q, k, v), {}), ((q, *few), {"causal": True}), ((q, k, v), {"mask": mask == 0}),
        ((q, k, v), {"mask": mask}), ((q, k, v), {"scale": 0.3}),
    ):  # fmt: skip
        plain: Any = np.asarray(nn.attention(*args, **options)).astype(np.float64)
        safe = np.asarray(nn.attention_safe(*args, **options)).astype(np.float64)
        np.testing.assert_allclose(safe, plain, rtol=tolerance, atol=tolerance)
        if kind in (ts.float64, ts.float32):
            a, b = (
                ts.grad(lambda q, f=f, r=args[1:], o=options: ts.sum(f(q, *r, **o) ** 2))(q)
                for f in (nn.attention, nn.attention_safe)
            )
            np.testing.assert_allclose(b, a, rtol=50 * tolerance, atol=50 * tolerance)
