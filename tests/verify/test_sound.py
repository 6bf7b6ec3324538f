"""What is proved holds: random programs, run on numbers at the ends of what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.dtypes import DType, finfo
from tessera.errors import TesseraError
from tessera.graph import interp
from tessera.ir.interval import of_array

SHAPE = (3, 4)
Step = Callable[[list[Any]], Any]

ONE: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": ts.abs,
    "exp": ts.exp,
    "log": ts.log,
    "log1p": ts.log1p,
    "expm1": ts.expm1,
    "sqrt": ts.sqrt,
    "rsqrt": ts.rsqrt,
    "square": ts.square,
    "reciprocal": ts.reciprocal,
    "tanh": ts.tanh,
    "sin": ts.sin,
    "floor": ts.floor,
    "sign": ts.sign,
    "relu": ts.nn.relu,
    "gelu": ts.nn.gelu,
    "softplus": ts.nn.softplus,
    "sum": lambda x: ts.sum(x, axis=-1, keepdims=True) + 0 * x,
    "mean": lambda x: x - ts.mean(x, axis=0, keepdims=True),
    "shift": lambda x: x - ts.max(x, axis=-1, keepdims=True),
    "lift": lambda x: x - ts.min(x, axis=-1, keepdims=True),
    "share": lambda x: x / ts.sum(x, axis=-1, keepdims=True),
    "scale": lambda x: x / ts.max(ts.abs(x), axis=-1, keepdims=True),
    "norm": lambda x: x / ts.sqrt(ts.sum(x * x, axis=-1, keepdims=True)),
    "rms": lambda x: x / ts.sqrt(ts.mean(x * x, axis=-1, keepdims=True) + 1e-3),
    "softmax": ts.nn.softmax,
    "logsumexp": lambda x: ts.nn.logsumexp(x, axis=-1, keepdims=True) - x,
    "variance": lambda x: ts.var(x, axis=0, keepdims=True) + x,
    "prod": lambda x: ts.prod(x, axis=-1, keepdims=True) * ts.ones_like(x),
    "cumsum": lambda x: ts.cumulative_sum(x, axis=1),
    "cumprod": lambda x: ts.cumulative_prod(x, axis=1),
    "sort": lambda x: ts.sort(x, axis=-1),
    "flip": lambda x: ts.flip(x, axis=1),
    "turned": lambda x: ts.reshape(x.T, SHAPE),
    "gaps": lambda x: x - ts.roll(x, 1, axis=1),
    "steps": lambda x: ts.sort(x, axis=-1) - x,
    "gram": lambda x: x @ x.T @ x,
    "clip": lambda x: ts.clip(x, -2.0, 3.0),
    "short": lambda x: x.astype(ts.float16).astype(x.dtype),
    "bf16": lambda x: x.astype(ts.bfloat16).astype(x.dtype),
    "byte": lambda x: x.astype(ts.int8).astype(x.dtype),
    "fp8": lambda x: x.astype(ts.float8_e4m3fn).astype(x.dtype),
    "rounded": lambda x: ts.round_to(x, ts.bfloat16, rounding="up"),
    "saturated": lambda x: ts.round_to(x, ts.float8_e5m2, saturate=True).astype(x.dtype),
    "quantized": lambda x: ts.quantize(x, ts.int8, axis=0).dequantize(),
    "packed": lambda x: ts.quantize(x, ts.int4, scale=0.5).pack().dequantize(),
    "nvfp4": lambda x: ts.quantize(x, "e2m1", axis=0).pack(0).dequantize(),
    "product": lambda x: x @ ts.quantize(ts.ones((4, 4)), ts.int4).pack() + x,
    "affine": lambda x: ts.quantize(x, ts.uint8, axis=0, symmetric=False).dequantize(),
    "safe log": lambda x: ts.where(x > 0, ts.log(ts.where(x > 0, x, 1.0)), 0.0),
    "guarded": lambda x: ts.where(ts.abs(x) > 1e-3, 1.0 / x, x),
    "padded": lambda x: ts.pad(x, ((0, 0), (1, 0)), constant_values=2.0)[:, :4],
    "taken": lambda x: ts.take(x, ts.argmax(x, axis=1), axis=1)[:, :1] - x,
    "loop": lambda x: ts.fori_loop(0, 5, lambda _, c: c * 0.5 + x, x),
    "growing": lambda x: ts.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
    "doubled": lambda x: ts.while_loop(lambda c: ts.max(c) < 100, lambda c: ts.abs(c) * 2 + 1, x),
    "branch": lambda x: ts.cond(ts.sum(x) > 0, lambda x: ts.sqrt(ts.abs(x)), lambda x: -x, x),
    "called": lambda x: ts.jit(lambda y: y / (1.0 + ts.exp(-y)))(x),
    "slope": lambda x: ts.grad(lambda y: ts.sum(ts.tanh(y) * y))(x),
    "spectrum": lambda x: ts.real(ts.fft.fft(x.astype(ts.float32))),
    "solved": lambda x: x @ ts.linalg.inv(ts.eye(4)),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": ts.maximum,
    "min": ts.minimum,
    "where": lambda x, y: ts.where(x > y, x, y),
    "where not": lambda x, y: ts.where(x < y, x - y, ts.sqrt(x - y)),
    "atan2": ts.atan2,
    "hypot": ts.hypot,
    "pow": lambda x, y: ts.pow(ts.abs(x), ts.clip(y, -3.0, 3.0)),
    "logaddexp": ts.logaddexp,
    "matmul": lambda x, y: x @ y.T @ y,
    "remainder": ts.remainder,
    "copysign": ts.copysign,
    "mask": lambda x, y: ts.where(y > 0, x, -math.inf),
}
BOUNDS = [(-100.0, 100.0), (0.0, 1.0), (1.0, 4.0), (-1e-3, 1e4), (1e-30, 1e30), (-3.0, -2.0), None]
Program = list[tuple[str, int, int]]


def program(steps: Program) -> Callable[[Any], Any]:
    """A function: each step takes two of the values before it."""

    def f(x: Any) -> Any:
        values = [x]
        for name, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            y = ONE[name](a) if name in ONE else TWO[name](a, b)
            values.append(y.astype(x.dtype) if y.dtype is not x.dtype else y)
        return values[-1], values[-2]

    return f


def ends(dtype: DType, bound: tuple[float, float] | None) -> list[np.ndarray]:
    """Arrays within the bounds: at their ends, near zero, of numbers far apart, at random."""
    info = finfo(dtype)
    most = float(info.max)
    low, high = (max(bound[0], -most), min(bound[1], most)) if bound else (-most, most)
    some = [low, high, 0.0, -0.0, 1.0, -1.0, (low + high) / 2, low / 2, high / 3]
    some += [s * t for t in (float(info.smallest_subnormal), float(info.smallest_normal))
             for s in (1, -1)]  # fmt: skip
    some += [1 + float(info.eps), 1 - float(info.eps) / 2, 1e-3, 2.0, 0.5, 127.5, 88.8, -88.0]
    numbers = np.asarray(some).astype(dtype.np)
    wide = numbers.astype(np.float64)
    inside = numbers[(wide >= low) & (wide <= high)]
    rng = np.random.default_rng(0)
    found = [np.full(SHAPE, x, dtype.np) for x in inside]
    found += [rng.choice(inside, SHAPE) for _ in range(12)]
    for k in range(6):
        x = np.full(SHAPE, inside[k % len(inside)], dtype.np)
        x[k % 3, k % 4] = inside[(k + 1) % len(inside)]
        found.append(x)
    dense = low + (high - low) * rng.random((4, *SHAPE)) if bound else rng.normal(size=(4, *SHAPE))
    wide = inside.astype(np.float64)
    drawn = np.clip(dense, wide.min(), wide.max())
    return [*found, *drawn.astype(dtype.np)]


def check(steps: Program, dtype: DType, bound: tuple[float, float] | None) -> bool:
    """Whether there was something to check: a proof, or a bound of a result."""
    f = program(steps)
    type = ts.ShapeDtypeStruct(SHAPE, dtype)
    verified = ts.verify.numerics(f, bounded=list(bound) if bound else None, strict=False)
    found = verified.report(type)
    graph = ts.make_graph(f)(type)
    for x in ends(dtype, bound):
        with np.errstate(all="ignore"):
            try:
                outs = interp.run(graph, [x])
            except TesseraError:
                continue
        for out, interval in zip(outs, found.results, strict=True):
            inside = of_array(out)
            assert inside.within(interval), (steps, dtype, bound, x, out, interval)
            if found.is_proved:
                assert np.isfinite(out.astype(np.float64)).all(), (steps, dtype, bound, x, out)
    return found.is_proved


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_each_step(name: str) -> None:
    """With the bounds that are nearest to its edges."""
    for dtype, bound in ((ts.float32, None), (ts.float16, (-100.0, 100.0))):
        check([(name, 0, 0)], dtype, bound)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*ONE, *TWO]), st.integers(0, 4), st.integers(0, 4)),
        min_size=1, max_size=4,
    ),
    st.sampled_from([ts.float32, ts.float32, ts.float16, ts.bfloat16]),
    st.sampled_from(BOUNDS),
)  # fmt: skip
def test_what_is_proved_holds(
    steps: Program, dtype: DType, bound: tuple[float, float] | None
) -> None:
    check(steps, dtype, bound)
