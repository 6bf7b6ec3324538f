"""`ts.verify.numerics`: what it proves, what it refutes and by which arguments, what it says."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import nn
from tessera.errors import NumericsError, OptionError
from tessera.verify import NumericsReport, NumericsWarning, Verdict
from tests.errors.message import expect, message

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
HUNDRED = (-100, 100)
B = ts.dim("B", 1, 4096)


def report(
    fn: Callable[..., Any], *types: Any, bounded: Any = HUNDRED, **options: Any
) -> NumericsReport:
    """What is found; a witness is run, and must break the promise."""
    found = ts.verify.numerics(fn, bounded=bounded, **options).report(*types)
    if found.witness is not None:
        confirm(fn, found, bounded)
    return found


def confirm(fn: Callable[..., Any], found: NumericsReport, bounded: Any) -> None:
    """A witness is within its bounds, and breaks the promise when it is run, compiled too."""
    assert found.witness is not None
    values = [ts.asarray(v) for v in found.witness.values]
    for name, v in zip(found.witness.names, found.witness.values, strict=True):
        pair = bounded.get(name) if isinstance(bounded, dict) else bounded
        if pair is not None and v.dtype.kind not in "iub":
            wide = v.astype(np.float64)
            assert (wide >= pair[0]).all()
            assert (wide <= pair[1]).all()
        assert np.isfinite(v.astype(np.float64)).all()
    results = ts.pytree.leaves(ts.jit(fn)(*values))
    wrong = [x for x in results if not np.isfinite(np.asarray(x).astype(np.complex128)).all()]
    assert wrong, str(found.witness)


def naive_softmax(x: Any) -> Any:
    powers = ts.exp(x)
    return powers / ts.sum(powers, axis=-1, keepdims=True)


def stable_softmax(x: Any) -> Any:
    powers = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
    return powers / ts.sum(powers, axis=-1, keepdims=True)


def test_stable_softmax_numerics() -> None:
    """Softmax without its maximum overflows, as a witness shows; with it, it is proved not to."""
    wrong = report(naive_softmax, "f32[4, 8]")
    assert wrong.verdict is REFUTED
    assert wrong.culprit == "exp"
    assert report(naive_softmax, "f32[4, 8]", bounded=(-80, 80)).is_proved
    for dtype in ("f64", "f32", "bf16", "f16"):
        for bounded in (HUNDRED, None):
            right = report(stable_softmax, f"{dtype}[4, 8]", bounded=bounded)
            assert right.is_proved, right
            assert right.results[0].lo >= 0
            assert right.results[0].hi < 1.05
    assert report(stable_softmax, "f32[4, B]").is_proved is False  # a row of any length
    score = ts.verify.numerics(stable=True, bounded=[-100, 100])(
        lambda q, k: stable_softmax(q @ k.T / 8)
    )
    assert score.report("f32[16, 64]", "f32[16, 64]").is_proved
    assert score.report("bf16[16, 64]", "bf16[16, 64]").is_proved
    x = ts.asarray(np.linspace(-100, 100, 64, dtype=np.float32).reshape(2, 32))
    np.testing.assert_allclose(np.asarray(ts.sum(score(x, x), axis=1)), 1, rtol=1e-5)


PROVABLE: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a difference of the same value": (lambda x, y: ts.sqrt((x + y) - x + 101), ("f32[3]",) * 2),
    "a square": (lambda x: 1 / (1 + x * x), ("f32[3]",)),
    "a variance": (lambda x: ts.sqrt(ts.mean((x - ts.mean(x)) ** 2)), ("f32[9]",)),
    "ts.std": (ts.std, ("f32[9]",)),
    "where guards": (lambda x: ts.where(x > 0.5, ts.log(ts.where(x > 0.5, x, 1)), 0), ("f32[3]",)),
    "clip": (lambda x: ts.log(ts.clip(x, 0.1, 2)), ("f32[3]",)),
    "maximum": (lambda x: 1 / ts.maximum(x, 1e-3), ("f32[3]",)),
    "a norm": (lambda x: x / ts.maximum(ts.sqrt(ts.sum(x * x)), 1e-6), ("f32[3]",)),
    "abs of what is dominated": (lambda x: x / (ts.max(ts.abs(x)) + 1e-30), ("f32[3]",)),
    "mask": (lambda x, m: stable_softmax(ts.where(m, x, -1e9)), ("f32[4, 8]", "bool[4, 8]")),
    "softmax of a temperature": (lambda x: stable_softmax(x / 0.01), ("f32[4, 8]",)),
    "log of a sum of exponentials": (
        lambda x: ts.log(ts.sum(ts.exp(x - ts.max(x)))) + ts.max(x), ("f32[8]",)
    ),
    "vmap": (ts.vmap(stable_softmax), ("f32[4, 8]",)),
    "jit": (lambda x: ts.jit(stable_softmax)(ts.jit(lambda y: y * 2)(x)), ("f32[4, 8]",)),
    "transposed": (lambda x: stable_softmax(x.T).T, ("f32[4, 8]",)),
    "sums in f32": (lambda x: ts.sum(x.astype(ts.float32)), ("f16[10000]",)),
    "cond": (lambda x: ts.cond(x > 1, ts.log, lambda y: y, x), ("f32[]",)),
    "gradient of softmax": (ts.grad(lambda x: ts.sum(stable_softmax(x)[:, 0])), ("f32[4, 8]",)),
    "gradient of a loss": (
        ts.grad(lambda w, x: ts.mean(ts.tanh(x @ w) ** 2)), ("f32[8, 3]", "f32[5, 8]")
    ),
    "a custom rule": (
        ts.grad(lambda x: ts.sum(nn.logsumexp_safe(x, axis=1))), ("f32[4, 8]",)
    ),
    "scan: a bounded sum": (
        lambda x: ts.scan(lambda c, a: (c + a, c), ts.asarray(0.0), x), ("f32[1000]",)
    ),
    "scan: an average": (
        lambda x: ts.scan(lambda c, a: (0.9 * c + 0.1 * a, c), ts.asarray(0.0), x), ("f32[1000]",)
    ),
    "scan: few steps": (
        lambda x: ts.scan(lambda c, a: (c * a, c), ts.asarray(1.0), x), ("f32[6]",)
    ),
    "while": (
        lambda x: ts.while_loop(lambda c: c < 100, lambda c: c * 2, ts.abs(x) + 1), ("f32[]",)
    ),
    "fori_loop": (lambda x: ts.fori_loop(0, 50, lambda i, c: ts.sin(c) + c / 2, x), ("f32[]",)),
    "gelu": (nn.gelu, ("f32[8]",)),
    "attention": (lambda q, k, v: nn.attention(q, k, v, causal=True), ("f32[2, 16, 8]",) * 3),
    "attention with a mask": (
        lambda q, k, v, m: nn.attention(q, k, v, mask=m), (*("f32[2, 16, 8]",) * 3, "bool[16, 16]")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVABLE)
def test_proofs(name: str) -> None:
    fn, types = PROVABLE[name]
    found = report(fn, *types)
    assert found.is_proved, found
    # A proof is of what runs: random arguments within the bounds, compiled.
    rng = np.random.default_rng(0)
    for scale in (1.0, 100.0):
        args = [an_array(rng, t, scale) for t in types]
        outs = ts.pytree.leaves(ts.jit(fn)(*args))
        assert len(outs) == len(found.results)
        for out, bound in zip(outs, found.results, strict=True):
            wide = np.asarray(out).astype(np.float64)
            assert (wide >= bound.lo).all()
            assert (wide <= bound.hi).all()


def an_array(rng: np.random.Generator, type: str, scale: float) -> ts.Array:
    dtype, _, dims = type.removesuffix("]").partition("[")
    shape = tuple([int(d) for d in dims.split(",") if d])
    if dtype == "bool":
        return ts.asarray(rng.random(shape) < 0.5)
    wanted = {"f32": ts.float32, "f16": ts.float16}[dtype]
    return ts.asarray(rng.uniform(-scale, scale, shape), dtype=wanted)


REFUTABLE: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "an exponential": (lambda x: ts.exp(x), ("f32[3]",), "exp"),
    "a variance by squares": (
        lambda x: ts.sqrt(ts.mean(x * x) - ts.mean(x) ** 2), ("f32[8]",), "sqrt"
    ),
    "a logarithm": (lambda x: ts.log(ts.abs(x)), ("f32[3]",), "log"),
    "a quotient": (lambda x, y: x / y, ("f32[3]", "f32[3]"), "divide"),
    "a quotient with a pole inside": (lambda x: 1 / (x - 3.7), ("f32[3]",), "divide"),
    "a pole between two arguments": (
        lambda x, y: 1 / (x - y - 1.2345), ("f32[3]", "f32[3]"), "divide"
    ),
    "sums in f16": (lambda x: ts.sum(x * x), ("f16[100]",), "sum"),
    "a product of two": (lambda x: ts.exp(x[0] * x[1]), ("f32[2]",), "exp"),
    "a power": (lambda x: x**21, ("f32[3]",), "pow"),
    "arcsine": (lambda x: ts.asin(x / 99), ("f32[3]",), "asin"),
    "the branch that is not taken": (
        ts.grad(lambda x: ts.sum(ts.where(x > 0, ts.sqrt(x), 0))), ("f32[3]",), "sqrt"
    ),
    "scan": (
        lambda x: ts.scan(lambda c, a: (c * a, c), ts.asarray(1.0), x)[0], ("f32[30]",), "multiply"
    ),
    "a row without anything": (
        lambda x, m: stable_softmax(ts.where(m, x, -ts.inf)), ("f32[2, 3]", "bool[2, 3]"),
        "subtract",
    ),
    "a conversion": (lambda x: (x * 10000).astype(ts.float16), ("f32[3]",), "cast"),
    "fp8": (lambda x: (x * 10).astype(ts.float8_e4m3fn), ("f32[3]",), "cast"),
    "a singular matrix": (ts.linalg.inv, ("f32[3, 3]",), "lu"),
    "a symbolic size": (lambda x: ts.exp(x), ("f32[B, 3]",), "exp"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUTABLE)
def test_witnesses(name: str) -> None:
    fn, types, culprit = REFUTABLE[name]
    found = report(fn, *types)
    assert found.verdict is REFUTED, found
    assert found.culprit == culprit, found
    assert found.witness is not None
    assert found.loc is not None
    assert found.loc.frames


def test_a_witness_is_the_same_again() -> None:
    fn, types, _ = REFUTABLE["a variance by squares"]
    first, second = report(fn, *types).witness, report(fn, *types).witness
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.values[0], second.values[0])


def test_neither_is_said_so() -> None:
    """An operation without a rule, a size without an end, a zero that is hard to find."""
    unknown = report(lambda x: ts.linalg.eigh(x @ x.T + 100 * ts.eye(3))[0], "f32[3, 3]")
    assert unknown.verdict is UNKNOWN
    assert "nothing is known of the results of eigh" in unknown.reason
    endless = report(lambda x: ts.mean(x * x), "f32[B]")
    assert endless.verdict is UNKNOWN
    assert "the sizes B may be any" in endless.reason
    fn = ts.verify.numerics(lambda x: ts.linalg.eigh(x @ x.T)[0], bounded=HUNDRED)
    with pytest.warns(NumericsWarning, match="eigh: <lambda> is not proven to be stable"):
        fn(ts.ones((3, 3)))
    strict = ts.verify.numerics(lambda x: ts.linalg.eigh(x @ x.T)[0], bounded=HUNDRED, strict=True)
    with pytest.raises(NumericsError, match="is not proven"):
        strict(ts.ones((3, 3)))


def test_sizes_with_bounds() -> None:
    def mean(x: ts.Tensor[B, ts.float32]) -> Any:  # type: ignore[valid-type]
        return ts.sum(x * x) / x.shape[0]

    assert ts.verify.numerics(mean, bounded=HUNDRED).report().is_proved

    def endless(x: ts.Tensor["B", ts.float32]) -> Any:  # noqa: UP037
        return ts.sum(x * x) / x.shape[0]

    with pytest.warns(NumericsWarning, match="the sizes B may be any"):
        ts.verify.numerics(endless, bounded=HUNDRED)


def test_annotated_functions_are_checked_where_they_are_written() -> None:
    with pytest.raises(NumericsError, match="exp: wrong gives an infinity"):

        @ts.verify.numerics(bounded=HUNDRED)
        def wrong(x: ts.Tensor[4, ts.float32]) -> Any:  # type: ignore[valid-type]
            return ts.exp(x)


def test_each_signature_is_checked_once() -> None:
    traced: list[str] = []

    @ts.verify.numerics(bounded=HUNDRED)
    def f(x: Any, negative: bool = False) -> Any:
        traced.append(str(x.dtype))
        return ts.sin(-x if negative else x)

    for _ in range(3):
        f(ts.ones(3))
    assert len(traced) == 4  # three calls, one analysis
    f(ts.ones(3), negative=True)
    f(ts.ones(3, dtype=ts.float16))
    assert len(f.reports) == 3
    assert repr(f) == "verify.numerics(f), 3 signatures checked"
    assert f.__name__ == "f"


def test_with_other_transforms() -> None:
    checked = ts.verify.numerics(stable_softmax, bounded=HUNDRED)
    x = ts.asarray(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4))
    wanted = np.asarray(stable_softmax(x))
    np.testing.assert_allclose(ts.jit(checked)(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(ts.vmap(checked)(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(ts.verify.numerics(ts.jit(stable_softmax))(x), wanted, rtol=1e-6)
    slope = ts.grad(lambda x: ts.sum(checked(x)[:, 0]))(x)
    assert np.isfinite(np.asarray(slope)).all()
    inner = ts.jit(ts.verify.numerics(naive_softmax, bounded=HUNDRED))
    with pytest.raises(NumericsError, match="exp: naive_softmax gives NaN"):
        inner(x)

    class Model:
        @ts.verify.numerics(bounded={"x": HUNDRED})
        def __call__(self, x: Any) -> Any:
            return ts.tanh(x)

    np.testing.assert_allclose(Model()(x), np.tanh(x), rtol=1e-5)


def test_bounds_by_name() -> None:
    def f(params: Any, x: Any) -> Any:
        return ts.exp(params["w"] * x)

    types = {"w": ts.ShapeDtypeStruct((3,), ts.float32)}
    assert report(f, types, "f32[3]", bounded={"params": (-1, 1), "x": (-80, 80)}).is_proved
    wide = ts.verify.numerics(f, bounded={"params['w']": (-2, 2), "x": (-80, 80)})
    assert wide.report(types, "f32[3]").verdict is REFUTED
    # What has no bounds is any finite number.
    free = ts.verify.numerics(lambda x, y: x + 0 * y, bounded={"x": (-1, 1)})
    assert free.report("f32[3]", "f32[3]").is_proved
    # Bounds that are no numbers of the dtype are taken inwards.
    narrow = ts.verify.numerics(lambda x: ts.exp(x * 0), bounded=(-0.1, 0.1)).report("f16[2]")
    assert narrow.is_proved


def test_infinities_may_be_allowed() -> None:
    assert report(lambda x: ts.exp(x), "f32[3]", stable=False).is_proved
    assert not report(naive_softmax, "f32[3]", stable=False).is_proved


def test_captured_arrays_are_known() -> None:
    table = ts.asarray([1.0, 2.0, 4.0])
    assert report(lambda x: x / table, "f32[3]").is_proved
    assert report(lambda x: x / (table - 2), "f32[3]").verdict is REFUTED


def test_what_is_absorbed_is_no_failure() -> None:
    """x - max(x) overflows for the largest numbers, and the exponential of that is 0."""
    found = report(stable_softmax, "f32[4, 8]", bounded=None)
    assert found.is_proved
    notes = {row.operation: row.note for row in found.rows}
    assert notes == {"max": "", "subtract": "overflows", "exp": "", "sum": "", "divide": ""}


def test_the_table() -> None:
    found = report(stable_softmax, "f32[4, 8]")
    rows = [(row.operation, row.interval) for row in found.rows]
    assert rows == [
        ("max", "[-100, 100]"), ("subtract", "[-200, 0]"), ("exp", "[0, 1]"), ("sum", "[1, 8]"),
        ("divide", "[0, 1]"),
    ]  # fmt: skip
    text = str(found)
    assert text.splitlines()[-1] == (
        "stable_softmax: proved: no NaN and no infinity for x in [-100, 100]"
    )
    assert "<table>" in found._repr_html_()


def test_host_calls_are_not_run_for_a_witness() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        ts.debug.callback(seen.append, x)
        return ts.exp(x)

    found = ts.verify.numerics(f, bounded=HUNDRED).report("f32[2]")
    assert found.verdict is UNKNOWN
    assert not seen


def test_a_loop_that_does_not_end_is_given_up() -> None:
    def f(x: Any) -> Any:
        found = ts.while_loop(lambda c: c > 0, lambda c: c * 2, x)
        return ts.linalg.eigh(ts.eye(2) * found)[0]

    assert ts.verify.numerics(f, bounded=(-1, 1)).report("f32[]").verdict is UNKNOWN


def test_nothing_is_analysed_twice_in_a_scope_of_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.verify.numerics(stable_softmax, bounded=HUNDRED)(ts.ones((2, 3)))


def test_mistakes_with_bounds() -> None:
    with pytest.raises(OptionError, match="bounded has 'y', which is no parameter of stable"):
        ts.verify.numerics(stable_softmax, bounded={"y": (0, 1)})
    with pytest.raises(OptionError, match=r"bounded has \(3, 1\)"):
        ts.verify.numerics(stable_softmax, bounded=(3, 1))
    with pytest.raises(OptionError, match="no float16 is in"):
        ts.verify.numerics(ts.sin, bounded=(1e6, 1e7)).report("f16[2]")


def test_the_error_for_a_witness() -> None:
    expect(
        """
        @ts.verify.numerics(stable=True, bounded=[-100, 100])
        def softmax(x):
            powers = ts.exp(x)
            return powers / ts.sum(powers, axis=-1, keepdims=True)

        softmax(ts.ones((4, 8)))
        """,
        """
        NumericsError: exp: softmax gives NaN for numbers within its bounds
          at user.py:3 in softmax
            3 |     powers = ts.exp(x)
              |              ^^^^^^^^^
          called from user.py:6
            6 | softmax(ts.ones((4, 8)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `ts.verify.numerics` promises no NaN and no infinity for x in [-100, 100]
          witness: x = 100 everywhere
          why: exp of [-100, 100] is in [3.223e-44, inf], and f32 ends at 3.403e+38
          fix: subtract the maximum first, `ts.exp(x - ts.max(x, axis=-1, keepdims=True))`, or use `ts.nn.softmax_safe` or `ts.nn.logsumexp_safe`
        """,  # noqa: E501
    )


def test_the_error_without_a_proof() -> None:
    text = message(
        """
        @ts.verify.numerics(bounded={"x": (-1, 1)}, strict=True)
        def f(x):
            return ts.linalg.eigh(x @ x.T)[0]

        f(ts.ones((3, 3)))
        """
    )
    assert text.splitlines()[0] == "NumericsError: eigh: f is not proven to be stable"
    assert "why: nothing is known of the results of eigh" in text
    assert "no arguments were found that break the promise" in text


# --- whole programs -----------------------------------------------------------------------------


def transformer_block(params: Any, x: Any) -> Any:
    """16 tokens of width 32 with 4 heads."""

    def heads(a: Any) -> Any:
        return ts.permute_dims(ts.reshape(a, (16, 4, 8)), (1, 0, 2))

    h = nn.layernorm_safe(x)
    parts = [heads(h @ params[name]) for name in "qkv"]
    seen = ts.permute_dims(nn.attention(*parts, causal=True), (1, 0, 2))
    x = x + ts.reshape(seen, (16, 32)) @ params["o"]
    return x + nn.gelu(nn.rmsnorm_safe(x) @ params["u"]) @ params["d"]


def block_types(dtype: Any = ts.float32) -> tuple[dict[str, Any], Any]:
    shapes = dict.fromkeys("qkvo", (32, 32)) | {"u": (32, 128), "d": (128, 32)}
    params = {name: ts.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
    return params, ts.ShapeDtypeStruct((16, 32), dtype)


def test_a_transformer_block_and_its_gradient() -> None:
    bounded = {"params": (-1, 1), "x": (-100, 100)}

    def loss(params: Any, x: Any) -> Any:
        return ts.mean(transformer_block(params, x) ** 2)

    for dtype in (ts.float32, ts.bfloat16):
        assert report(transformer_block, *block_types(dtype), bounded=bounded).is_proved
    assert report(ts.grad(loss), *block_types(), bounded=bounded).is_proved


def test_policies_in_force_are_part_of_what_is_verified() -> None:
    checked = ts.verify.numerics(transformer_block, bounded={"params": (-1, 1), "x": HUNDRED})
    with ts.policy(ts.policies.Training()):
        assert checked.report(*block_types()).is_proved
    assert checked.report(*block_types()).is_proved
    assert len(checked.reports) == 2
    large = ts.verify.numerics(lambda x: ts.exp(x) * 2, bounded=(0, 12))
    assert large.report("f32[3]").is_proved
    for rounding in ("nearest_even", "up", "toward_zero"):
        with ts.policy(ts.Policy(storage=ts.float16, rounding=rounding)):
            # Rounded towards zero, what is too large becomes the largest number.
            wanted = PROVED if rounding == "toward_zero" else REFUTED
            assert large.report("f32[3]").verdict is wanted
        with ts.policy(ts.Policy(storage=ts.float16, rounding=rounding, saturate=True)):
            found = large.report("f32[3]")
            assert found.is_proved
            assert found.results[0].hi == 65504


def test_an_optimizer_step() -> None:
    def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (ts.sqrt(v) + 1e-8), m, v

    bounded = {"p": (-10, 10), "m": (-1, 1), "v": (0, 1), "g": (-1, 1)}
    found = report(adam, *["f32[8]"] * 4, bounded=bounded)
    assert found.is_proved
    assert found.results[2].lo == 0
    del bounded["v"]
    assert report(adam, *["f32[8]"] * 4, bounded=bounded).verdict is REFUTED


def test_losses_of_classes_and_random_numbers() -> None:
    def cross_entropy(x: Any, y: Any) -> Any:
        return ts.mean(-ts.sum(nn.one_hot(y, 8) * nn.log_softmax_safe(x), axis=-1))

    for fn in (cross_entropy, ts.grad(cross_entropy)):
        assert report(fn, "f32[4, 8]", "i32[4]").is_proved
    uniform = report(lambda key: ts.random.uniform(key, (3,)), "u32[2]")
    assert (uniform.results[0].lo, uniform.results[0].hi) == (0.0, pytest.approx(1))
    assert report(lambda key, x: nn.dropout(key, x, 0.1), "u32[2]", "f32[4]").is_proved
    assert "complex numbers" in report(ts.fft.fft, "f32[4]").reason


def test_products_that_are_not_negative() -> None:
    even = (lambda x: 0.1 * x * x, lambda x: x * (x * 3), lambda x: -x * -x)
    for fn in (*even, lambda x: x * x / 2 * x * x):
        assert report(fn, "f32[3]", bounded=(-3, 3)).results[0].lo == 0
    for fn in (lambda x: -0.1 * x * x, lambda x: x * x * x, lambda x: 2 * x / x):
        assert report(fn, "f32[3]", bounded=(-3, 3)).results[0].lo != 0


def test_contents_of_refs_may_be_anything() -> None:
    """What a ref holds now says nothing of a later call; it is not written by an analysis."""
    ref = ts.Ref(ts.asarray(2.0))

    def of(fn: Any, bound: tuple[float, float] = HUNDRED) -> NumericsReport:
        return ts.verify.numerics(fn, bounded=bound).report("f32[3]")

    def read(x: Any) -> Any:
        return x / ref.get()

    found = of(read, (-1, 1))
    assert found.verdict is Verdict.REFUTED
    assert found.witness is not None
    assert found.witness.names[1] == "the ref `ref`"
    assert not found.witness.values[1].any()
    again = of(ts.jit(read), (-1, 1))
    assert again.verdict is Verdict.REFUTED
    assert of(lambda x: x / (1 + ts.abs(ref.get())), (-1, 1)).is_proved

    def write(x: Any) -> Any:
        ref.set(ts.clip(ref.get() + x[0], -1.0, 1.0))
        return ts.sin(ref.get())

    assert of(write).is_proved
    assert float(ref.get()) == 2.0

    def grow(x: Any) -> Any:
        ref.set(ref.get() * 2)  # a result, too
        return x

    assert of(grow).verdict is Verdict.REFUTED
    checked = ts.verify.numerics(write, bounded=HUNDRED)
    assert checked(ts.ones(3)).shape == ()
    assert float(ref.get()) == 1.0
