"""State by hand: attention over the last tokens, from a ring buffer of keys and values.

The cache is a `ts.Ref`: `attend` writes the newest key and value over the oldest ones, and reads
all. Token by token from Python, and inside a compiled scan over many tokens, it gives what
attention over the whole sequence with a window gives. The compiled step writes the cache in place.

    python examples/ring_cache.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts

HEADS, WIDTH, WINDOW, TOKENS = 4, 16, 8, 30


def new_cache(name: str) -> ts.Ref:
    """An empty ring of keys and values, and the number of tokens so far."""
    shape = (WINDOW, HEADS, WIDTH)
    return ts.Ref({"k": ts.zeros(shape), "v": ts.zeros(shape), "count": 0}, name=name)


def attend(cache: ts.Ref, q: Any, k: Any, v: Any) -> Any:
    """Attention of one token to itself and those before it that the ring still has.

    Args:
        cache: the ring.
        q: the token's query, of shape [HEADS, WIDTH].
        k: its key.
        v: its value.
    """
    ring = cache.get()
    place = ring["count"] % WINDOW
    keys, values = ring["k"].at[place].set(k), ring["v"].at[place].set(v)
    cache.set({"k": keys, "v": values, "count": ring["count"] + 1})
    scores = ts.einsum("hd,whd->hw", q, keys) / WIDTH**0.5
    is_there = ts.arange(WINDOW) <= ring["count"]
    weights = ts.nn.softmax(ts.where(is_there, scores, -ts.inf), axis=-1)
    return ts.einsum("hw,whd->hd", weights, values)


step = ts.jit(attend)


@ts.jit
def prefill(cache: ts.Ref, tokens: Any) -> Any:
    """All tokens of a prompt, one after the other, in one program."""
    return ts.scan(lambda carry, qkv: (carry, attend(cache, *qkv)), None, tokens)[1]


def whole(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same by NumPy, with all tokens at hand."""
    scores = np.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
    apart = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
    scores = np.where((apart >= 0) & (apart < WINDOW), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


def main() -> None:
    """Runs both ways, and compares."""
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, TOKENS, HEADS, WIDTH)).astype(np.float32)
    wanted = whole(q, k, v)

    one = new_cache("one")
    found = np.stack([step(one, *qkv) for qkv in zip(q, k, v, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)

    # A prompt in one program, the rest token by token: another ring, the same compiled step.
    other = new_cache("other")
    first = prefill(other, (q[:20], k[:20], v[:20]))
    rest = [step(other, *qkv) for qkv in zip(q[20:], k[20:], v[20:], strict=True)]
    np.testing.assert_allclose(np.concatenate([first, rest]), wanted, rtol=1e-4, atol=1e-5)
    for a, b in zip(ts.pytree.leaves(one.get()), ts.pytree.leaves(other.get()), strict=True):
        np.testing.assert_array_equal(a, b)

    use = step.lower(one, q[0], k[0], v[0]).memory()
    print(f"{int(one.get()['count'])} tokens, {step.cache_size()} program: {step}")
    print(f"memory of a step: {use}")


if __name__ == "__main__":
    main()
