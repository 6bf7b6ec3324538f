"""Functions with annotated shapes for GPUs: arrays of several sizes for each, and results."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import tessera as ts

Shape = tuple[int, ...]


class Case(NamedTuple):
    """A function, the shapes of its arguments in some calls, and its result in float64."""

    fn: Callable[..., Any]
    wanted: Callable[..., Any]
    shapes: Sequence[tuple[Shape, ...]]
    conditions: tuple[str, ...] = ()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def elementwise(x: ts.Tensor["N", "M"], y: ts.Tensor["M"]) -> ts.Tensor["N", "M"]:
    return ts.exp(-x) + y


def transpose(x: ts.Tensor["N", "M"]) -> ts.Tensor["M", "N"]:
    return x.T + 1


def rows(x: ts.Tensor["N", "M"]) -> ts.Tensor["N", "M"]:
    return ts.softmax(x, axis=-1)


def sums(x: ts.Tensor["N", "M"]) -> Any:
    return ts.sum(x, axis=0), ts.sum(x, axis=1), ts.sum(x)


def norm(x: ts.Tensor["N", 96], scale: ts.Tensor[96]) -> ts.Tensor["N", 96]:
    return ts.nn.rmsnorm_safe(x) * scale


def product(x: ts.Tensor["N", "K"], y: ts.Tensor["K", "M"]) -> ts.Tensor["N", "M"]:
    return ts.tanh(x @ y)


def attention(
    q: ts.Tensor["B", "S", 32], k: ts.Tensor["B", "T", 32], v: ts.Tensor["B", "T", 32]
) -> ts.Tensor["B", "S", 32]:
    return ts.softmax(q @ ts.matrix_transpose(k) * 0.125, axis=-1) @ v


def scan(x: ts.Tensor["N", "M"]) -> ts.Tensor["N", "M"]:
    return ts.cumulative_sum(x, axis=1)


def ordered(x: ts.Tensor["N"]) -> ts.Tensor["N"]:
    return ts.sort(x)


def heads(x: ts.Tensor["S", "D"], slopes: ts.Tensor["D // 16"]) -> Any:
    s, d = x.shape
    return ts.permute_dims(ts.reshape(x, (s, d // 16, 16)), (1, 0, 2)) * slopes[:, None, None]


CASES: dict[str, Case] = {
    "elementwise": Case(
        elementwise,
        lambda x, y: np.exp(-x) + y,
        [((5, 7), (7,)), ((1, 1), (1,)), ((0, 3), (3,)), ((130, 257), (257,)), ((4, 0), (0,))],
        ("N >= 0", "M >= 0"),
    ),
    "transpose": Case(transpose, lambda x: x.T + 1, [((5, 7),), ((70, 65),), ((1, 129),)]),
    "rows": Case(rows, softmax, [((5, 7),), ((3, 1000),), ((0, 4),), ((2, 5000),)], ("N >= 0",)),
    "sums": Case(
        sums,
        lambda x: (x.sum(0), x.sum(1), x.sum()),
        [((5, 7),), ((1000, 3),), ((0, 3),), ((3, 0),), ((300, 130),)],
        ("N >= 0", "M >= 0"),
    ),
    "norm": Case(
        norm,
        lambda x, s: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s,
        [((5, 96), (96,)), ((33, 96), (96,)), ((1, 96), (96,))],
    ),
    "product": Case(
        product,
        lambda x, y: np.tanh(x @ y),
        [((5, 7), (7, 3)), ((65, 33), (33, 70)), ((1, 1), (1, 1)), ((0, 2), (2, 3))],
        ("N >= 0",),
    ),
    "attention": Case(
        attention,
        lambda q, k, v: softmax(q @ np.swapaxes(k, -1, -2) * 0.125) @ v,
        [((1, 5, 32), (1, 7, 32), (1, 7, 32)), ((2, 33, 32), (2, 20, 32), (2, 20, 32))],
    ),
    "scan": Case(scan, lambda x: np.cumsum(x, axis=1), [((3, 5),), ((2, 300),), ((1, 1),)]),
    "ordered": Case(ordered, np.sort, [((5,),), ((100,),), ((1000,),), ((1,),)]),
    "heads": Case(
        heads,
        lambda x, s: np.transpose(x.reshape(len(x), -1, 16), (1, 0, 2)) * s[:, None, None],
        [((5, 32), (2,)), ((1, 16), (1,)), ((9, 48), (3,))],
        ("D % 16 == 0",),
    ),
}


def arrays(shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Arrays of these shapes."""
    rng = np.random.default_rng(len(shapes))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def jitted(case: Case, most: int | None = None) -> Any:
    """The function, compiled at its calls.

    Args:
        case: which.
        most: the largest size; None for any.
    """
    names = ts.jit(case.fn).generic.names if most is not None else ()
    conditions = [*case.conditions, *[f"{name} <= {most}" for name in names]]

    def fn(*args: Any) -> Any:
        return case.fn(*args)

    functools.update_wrapper(fn, case.fn)
    return ts.jit(ts.constrain(*conditions)(fn) if conditions else fn)
