"""A transformer block that is proved not to overflow, its twin that does, and what bfloat16 costs.

`ts.verify.numerics` proves for all parameters and inputs within their bounds that the block is
finite, before anything runs. With a softmax that forgets its maximum it is not, and the proof's
other end is an input that shows it. `ts.numerics_diff` then lists which operations lose most when
arrays are kept in bfloat16.

    python examples/proofs.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts

TOKENS, WIDTH, HEADS = 16, 32, 4
SHAPES = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"u": (WIDTH, 4 * WIDTH), "d": (4 * WIDTH, WIDTH)}
BOUNDS = {"params": (-1, 1), "x": (-100, 100)}


def softmax(x: Any) -> Any:
    """Exponentials of what is not above 0."""
    powers = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
    return powers / ts.sum(powers, axis=-1, keepdims=True)


def naive_softmax(x: Any) -> Any:
    """Exponentials of anything."""
    powers = ts.exp(x)
    return powers / ts.sum(powers, axis=-1, keepdims=True)


def block(params: Any, x: Any, softmax: Callable[[Any], Any]) -> Any:
    """One pre-norm block.

    Args:
        params: matrices by name.
        x: tokens, [TOKENS, WIDTH].
        softmax: of scores.
    """

    def heads(a: Any) -> Any:
        return ts.permute_dims(ts.reshape(a, (TOKENS, HEADS, -1)), (1, 0, 2))

    h = ts.nn.layernorm_safe(x)
    q, k, v = (heads(h @ params[name]) for name in "qkv")
    scores = q @ ts.matrix_transpose(k) * (WIDTH // HEADS) ** -0.5
    seen = ts.permute_dims(softmax(scores) @ v, (1, 0, 2))
    x = x + ts.reshape(seen, (TOKENS, WIDTH)) @ params["o"]
    return x + ts.nn.gelu(ts.nn.rmsnorm_safe(x) @ params["u"]) @ params["d"]


def stable_block(params: Any, x: Any) -> Any:
    """The block with the softmax that does not."""
    return block(params, x, softmax)


def naive_block(params: Any, x: Any) -> Any:
    """The block with the softmax that overflows."""
    return block(params, x, naive_softmax)


def main() -> None:
    """Proves, refutes, compares."""
    types = {name: ts.ShapeDtypeStruct(shape, ts.float32) for name, shape in SHAPES.items()}
    tokens = ts.ShapeDtypeStruct((TOKENS, WIDTH), ts.float32)
    found = ts.verify.numerics(stable_block, bounded=BOUNDS).report(types, tokens)
    print(found.summary, "| results in", found.results[0])

    wrong = ts.verify.numerics(naive_block, bounded=BOUNDS).report(types, tokens)
    print("the naive one:", wrong.verdict.value, "|", wrong.culprit, "|", wrong.reason)
    assert wrong.witness is not None
    names = iter(wrong.witness.values)
    shown = {name: ts.asarray(next(names)) for name in sorted(SHAPES)}
    result = naive_block(shown, ts.asarray(next(names)))
    print("with the witness:", "NaN" if bool(ts.any(ts.isnan(result))) else "finite")

    rng = np.random.default_rng(0)
    params = {n: ts.asarray(rng.normal(size=s) / 8, dtype=ts.float32) for n, s in SHAPES.items()}
    x = ts.asarray(rng.normal(size=(TOKENS, WIDTH)), dtype=ts.float32)
    table = ts.numerics_diff(stable_block, None, ts.policies.Training())(params, x)
    print(table)

    if not (found.is_proved and bool(ts.any(ts.isnan(result)))):
        raise SystemExit("a proof or its twin failed")
    if not 0.8 < table.errors[1] / table.predicted[1] < 1.25:
        raise SystemExit("contributions do not add up to the error")


if __name__ == "__main__":
    main()
