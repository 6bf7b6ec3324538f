"""`ts.numerics_diff`: what operations contribute to the error of results, under two policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import nn
from tessera.errors import LeafError, OptionError
from tests.errors.message import expect

TRAINING = ts.policies.Training()


def numbers(seed: int, *shape: int) -> ts.Array:
    return ts.asarray(np.random.default_rng(seed).normal(size=shape), dtype=ts.float32)


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    hidden = ts.tanh(x @ w + b)
    return nn.softmax_safe(hidden @ v)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T * 0.25
    return ts.softmax(scores, axis=-1) @ v


def layernorm(x: Any, scale: Any, bias: Any) -> Any:
    apart = x - ts.mean(x, axis=-1, keepdims=True)
    variance = ts.mean(apart * apart, axis=-1, keepdims=True)
    return apart / ts.sqrt(variance + 1e-5) * scale + bias


def recurrence(x: Any) -> Any:
    return ts.scan(lambda c, a: (ts.tanh(0.9 * c + a), c), ts.tanh(x[0]), x)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[ts.Array, ...]]] = {
    "mlp": (mlp, (numbers(0, 8, 16), numbers(1, 16, 32), numbers(2, 32), numbers(3, 32, 8))),
    "attention": (attention, (numbers(0, 16, 8), numbers(1, 16, 8), numbers(2, 16, 8))),
    "nn.attention": (
        lambda q, k, v: nn.attention(q, k, v, causal=True),
        (numbers(0, 2, 16, 8), numbers(1, 2, 16, 8), numbers(2, 2, 16, 8)),
    ),
    "layernorm": (layernorm, (numbers(0, 8, 64), numbers(1, 64), numbers(2, 64))),
    "scan": (recurrence, (numbers(0, 20, 8),)),
    "gradient": (
        ts.grad(lambda w, x: ts.mean(ts.tanh(x @ w) ** 2)), (numbers(0, 16, 8), numbers(1, 8, 16))
    ),
    "jit and vmap": (ts.vmap(ts.jit(lambda x: ts.sin(x) * ts.exp(x))), (numbers(0, 4, 5),)),
}  # fmt: skip

POLICIES = {
    "training": TRAINING,
    "f16": ts.Policy(storage=ts.float16),
    "fp8": ts.policies.Inference(),
    "toward zero": ts.Policy(storage=ts.bfloat16, rounding="toward_zero"),
    "all bf16": ts.Policy(compute=ts.bfloat16, accumulate=ts.bfloat16, storage=ts.bfloat16),
}


CASES = [(name, "training") for name in FUNCTIONS]
CASES += [("layernorm", policy) for policy in POLICIES if policy != "training"]
CASES += [("attention", "all bf16"), ("gradient", "f16"), ("scan", "toward zero"), ("mlp", "fp8")]


@pytest.mark.parametrize(("name", "policy"), CASES)
def test_contributions_add_up_to_the_error(name: str, policy: str) -> None:
    """Within 10 % for formats of 8 bits and more, where errors are small; float8 within 30 %."""
    fn, args = FUNCTIONS[name]
    found = ts.numerics_diff(fn, None, POLICIES[policy])(*args)
    factor = 1.3 if policy == "fp8" else 1.1
    for measured, predicted in zip(found.errors, found.predicted, strict=True):
        assert predicted / factor <= measured <= predicted * factor, found
    assert found.errors[0] < 1e-5 < found.errors[1]
    # The error is that of the function as it runs.
    with ts.policy(POLICIES[policy]):
        ran = ts.pytree.leaves(fn(*args))
    exact = ts.pytree.leaves(fn(*[x.astype(ts.float64) for x in args]))
    worst = max(relative(x, y) for x, y in zip(ran, exact, strict=True))
    assert 0.8 * found.errors[1] <= worst <= 1.25 * found.errors[1]


def relative(x: Any, y: Any) -> float:
    wide, exact = np.asarray(x).astype(np.float64), np.asarray(y)
    return float(np.abs(wide - exact).max() / np.abs(exact).max())


def test_one_site_is_its_rounding() -> None:
    x, y = numbers(0, 50), numbers(1, 50)
    found = ts.numerics_diff(lambda x, y: x * y, None, ts.Policy(storage=ts.bfloat16))(x, y)
    (site,) = found.sites
    exact = np.asarray(x).astype(np.float64) * np.asarray(y).astype(np.float64)
    rounded = (np.asarray(x) * np.asarray(y)).astype(ts.bfloat16.np).astype(np.float64)
    assert site.errors[1] == np.abs(rounded - exact).max() / np.abs(exact).max()
    assert site.operation == "multiply"
    assert site.formats == ("f32", "f32 -> bf16")
    assert found.errors == site.errors
    assert site.loc.frames


def test_sites_are_sorted_and_stand_at_their_lines() -> None:
    fn, args = FUNCTIONS["layernorm"]
    found = ts.numerics_diff(fn, None, TRAINING)(*args)
    worst = [max(s.errors) for s in found.sites]
    assert worst == sorted(worst, reverse=True)
    assert {s.operation for s in found.sites} >= {"subtract", "divide", "sqrt", "multiply", "add"}
    lines = {int(s.line.rpartition(":")[2]) for s in found.sites}
    first = layernorm.__code__.co_firstlineno
    assert lines == {first + 1, first + 2, first + 3}


def test_equal_policies_differ_nowhere() -> None:
    fn, args = FUNCTIONS["mlp"]
    found = ts.numerics_diff(fn, TRAINING, "Training(bf16 -> f32)")(*args)
    assert found.sites == ()
    assert found.common == 5
    assert found.errors[0] == found.errors[1] > 0


def test_what_an_accumulator_costs() -> None:
    """A running sum in bfloat16 ends where what is added is less than half a unit."""

    def total(x: Any) -> Any:
        return ts.scan(lambda c, a: (c + a, None), x[0] * 1, x[1:])[0]

    x = ts.abs(numbers(0, 512)).astype(ts.bfloat16)
    wide, narrow = ts.Policy(storage=ts.float32), ts.Policy(storage=ts.bfloat16)
    found = ts.numerics_diff(total, wide, narrow)(x)
    assert found.errors[0] < 1e-5
    assert found.errors[1] > 0.05
    assert found.sites[0].operation == "add"
    assert found.sites[0].errors[1] == pytest.approx(found.errors[1], rel=0.01)


def test_stochastic_rounding_saturation_and_quantization() -> None:
    stochastic = ts.Policy(storage=ts.bfloat16, rounding="stochastic")
    x = numbers(0, 64)
    found = ts.numerics_diff(lambda x: ts.sin(x), None, stochastic, key=ts.random.key(0))(x)
    (site,) = found.sites
    assert site.formats[1] == "f32 -> bf16, stochastic"
    assert 1e-4 < site.errors[1] < 1e-2
    saturating = ts.Policy(storage=ts.float8_e4m3fn, saturate=True)
    large = ts.numerics_diff(lambda x: x * 1000, None, saturating)(x)
    assert "saturating" in large.sites[0].formats[1]
    assert large.errors[1] > 0.5
    assert np.isfinite(large.errors[1])


def test_control_flow_and_stop_gradient() -> None:
    def f(x: Any) -> Any:
        found = ts.while_loop(lambda c: ts.sum(c) < 100, lambda c: c * 1.5 + 0.1, ts.abs(x) + 0.1)
        chosen = ts.cond(ts.sum(x) > 0, ts.sin, ts.cos, found)
        return chosen + ts.stop_gradient(found)

    x = ts.abs(numbers(0, 8)).astype(ts.bfloat16)
    found = ts.numerics_diff(f, ts.Policy(storage=ts.bfloat16), None)(x)
    assert found.errors[0] == pytest.approx(found.predicted[0], rel=0.1)


def test_host_calls_happen_once_for_each_policy() -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        y = ts.sin(x)
        ts.debug.callback(lambda v: seen.append(float(v)), ts.sum(y))
        return y * y

    ts.numerics_diff(f, None, TRAINING)(numbers(0, 3))
    assert len(seen) == 2


def test_the_table() -> None:
    text = str(ts.numerics_diff(lambda x: ts.sin(x) * 2, None, TRAINING)(numbers(0, 16)))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["line", "operation", "a:", "none", "error", "b:", "Training(bf16", "->",
                        "f32)", "error"]  # fmt: skip
    assert [line[:2] for line in lines[-2:]] == [["all", "operations"], ["the", "results"]]
    html = ts.numerics_diff(ts.sin, None, TRAINING)(numbers(0, 3))._repr_html_()
    assert html.startswith("<table>")
    assert "bf16" in html


def test_mistakes() -> None:
    with pytest.raises(OptionError, match="numerics_diff: got a value of type int, which is no"):
        ts.numerics_diff(ts.sin, None, 16)  # type: ignore[arg-type]

    def f(x: Any) -> Any:
        return x

    with pytest.raises(LeafError, match="argument `x` of f"):
        ts.numerics_diff(f, None, TRAINING)("x")


def test_the_error_for_a_computation_that_depends_on_the_policy() -> None:
    expect(
        """
        def f(x):
            y = ts.sin(x)
            return y[:2] if y.dtype == ts.bfloat16 else y

        ts.numerics_diff(f, None, ts.policies.Training())(ts.ones(3))
        """,
        """
        OptionError: numerics_diff: f has results [(3,)] under a and [(2,)] under b
          at user.py:5
            5 | ts.numerics_diff(f, None, ts.policies.Training())(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both policies are of one computation
          fix: leave out what depends on dtypes
        """,
    )


def test_operations_are_called_as_they_are_written() -> None:
    """By the function that is called, of which an operation may have many ops."""
    rng = np.random.default_rng(3)
    x, w = (ts.asarray(rng.normal(size=s).astype(np.float32)) for s in ((4, 16), (16, 16)))

    def f(x: Any, w: Any) -> Any:
        hidden = ts.nn.gelu(
            ts.nn.layernorm_safe(x) @ w
        )
        return ts.mean(hidden * 2.5, axis=-1)

    found = ts.numerics_diff(f, None, ts.policies.Training())(x, w)
    names = {"layernorm_safe", "matmul", "gelu", "multiply", "mean"}
    assert {site.operation for site in found.sites} == names


def test_operands_in_blocks_are_roundings() -> None:
    """NVFP4 differs from bfloat16 in the products, and that adds up to the error there is."""
    rng = np.random.default_rng(4)
    x, w = (ts.asarray(rng.normal(size=s).astype(np.float32)) for s in ((8, 32), (32, 16)))
    nvfp4 = ts.policies.NVFP4(accum=ts.float32)

    def f(x: Any, w: Any) -> Any:
        return ts.einsum("ij,jk->ik", ts.tanh(x @ w) @ w.T, w)

    found = ts.numerics_diff(f, ts.policies.Training(), nvfp4)(x, w)
    assert [site.operation for site in found.sites].count("matmul") == 2
    assert {site.operation for site in found.sites} == {"matmul", "einsum"}
    assert all(site.formats[1].endswith("from nvfp4") for site in found.sites)
    assert found.errors[1] > 5 * found.errors[0]
    assert 0.6 < found.predicted[1] / found.errors[1] < 1.6
