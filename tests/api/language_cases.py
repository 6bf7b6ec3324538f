"""Programs of every part of the language, for devices that must all compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts

X = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)
W = (np.arange(16).reshape(4, 4) % 5 / 5).astype(np.float32)


def recurrent(x: Any, w: Any) -> Any:
    def cell(state: Any, row: Any) -> Any:
        state = ts.tanh(state @ w + row)
        return state, ts.sum(state)

    return ts.scan(cell, ts.zeros_like(x[0]), x)


def running(x: Any, w: Any) -> Any:
    row = lambda r: ts.scan(lambda c, a: (c + a, c * a), ts.zeros_like(r[0]), r)  # noqa: E731
    return ts.vmap(row)(x)


def known_loop(x: Any, w: Any) -> Any:
    return ts.grad(lambda x: ts.sum(ts.fori_loop(0, 4, lambda i, c: ts.sin(c) + i, x)))(x)


def branches(x: Any, w: Any) -> Any:
    ways = [lambda a: a, lambda a: a * 2, lambda a: -a]
    return ts.switch(ts.argmax(x[0]) % 3, ways, x)


def image(x: Any) -> Any:
    return ts.reshape(x, (1, 1, 3, 4))


def convolved(x: Any, k: Any) -> Any:
    return ts.conv_general(image(x), ts.reshape(k, (1, 1, 4, 4))[:, :, :2, :2], (1, 1), "SAME")


def stateful(x: Any, w: Any) -> Any:
    last, rows = ts.Ref(x[0] * 0, name="last"), ts.Ref(x * 0, name="rows")

    def step(i: Any, row: Any) -> Any:
        last.update(lambda s: ts.tanh(s @ w + row))
        rows[i] = last.get()
        ts.cond(row[0] > 0, lambda: last.update(lambda s: s / 2), lambda: None)
        return i + 1, ts.sum(last.get())

    _, sums = ts.scan(step, 0, x)
    return rows.get(), last.get(), sums


def random(draw: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: draw(ts.random.fold_in(ts.random.key(3), ts.argmax(x)), x)


LANGUAGE: dict[str, Callable[..., Any]] = {
    "scan": recurrent,
    "gradient of scan": lambda x, w: ts.grad(lambda w: ts.sum(recurrent(x, w)[1]))(w),
    "scan under vmap": running,
    "gradient of fori_loop": known_loop,
    "associative_scan": lambda x, w: ts.associative_scan(ts.multiply, x, axis=1),
    "switch": branches,
    "map": lambda x, w: ts.map(ts.sort, x),
    "checkpoint": lambda x, w: ts.grad(ts.checkpoint(lambda x: ts.sum(ts.sin(x @ w))))(x),
    "hessian": lambda x, w: ts.hessian(lambda v: ts.sum(ts.tanh(v) ** 3))(x[0]),
    "psum": lambda x, w: ts.vmap(lambda v: v / ts.psum(v * v, "i"), axis_name="i")(x),
    "normal": random(lambda key, x: ts.random.normal(key, (5, 7))),
    "permutation": random(lambda key, x: ts.random.permutation(key, 20)),
    "categorical": random(ts.random.categorical),
    "gamma": random(lambda key, x: ts.random.gamma(key, 2.5, (9,))),
    "convolution": convolved,
    "gradient of a convolution": lambda x, w: ts.grad(lambda k: ts.sum(convolved(x, k) ** 2))(w),
    "top_k": lambda x, w: ts.top_k(x, 2),
    "refs": stateful,
    "gradient with refs": lambda x, w: ts.grad(lambda w: ts.sum(stateful(x, w)[0] ** 2))(w),
    "at": lambda x, w: x.at[1, ts.asarray([0, 2], device=x.device)].add(5.0),
    "einsum": lambda x, w: ts.einsum("ij,jk,ik->i", x, w, x),
    "cumulative_prod": lambda x, w: ts.cumulative_prod(x, axis=1),
    "quantile": lambda x, w: ts.quantile(x, 0.3, axis=1),
    "gelu": lambda x, w: ts.nn.gelu(x),
}
