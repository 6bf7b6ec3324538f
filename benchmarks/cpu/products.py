"""Matrix products: square, skinny, odd, batched; narrow and wide dtypes; with an epilogue."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from cpu.program import F32, Cost, Program, normal, shared, torch_program


def _pair(dtype: Any) -> Any:
    def make(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Any, ...]:
        return normal(rng, m, k).astype(dtype), normal(rng, k, n).astype(dtype)

    return make


def _square(dtype: Any) -> Any:
    def make(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        return _pair(dtype)(rng, n, n, n)

    return make


def _bytes_in(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Any, ...]:
    return tuple(rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))


def _cost(m: int, n: int, k: int, size: int = 4, kind: str = "f32", out: int = 0) -> Cost:
    return Cost(size * (m * k + k * n) + (out or size) * m * n, 2 * m * n * k, kind)


def _matmul(xp: Any, **size: Any) -> Any:
    return lambda a, b: a @ b


def _transposed(xp: Any, form: str, **size: Any) -> Any:
    programs = {
        "NT": lambda a, b: a @ b.T,
        "TN": lambda a, b: a.T @ b,
        "TT": lambda a, b: a.T @ b.T,
    }
    return programs[form]


def _linear(xp: Any, **size: Any) -> Any:
    return _transposed(xp, "NT")


def _linear_data(
    rng: np.random.Generator, m: int, n: int, k: int, dtype: Any = ml_dtypes.bfloat16
) -> tuple[Any, ...]:
    x, w = normal(rng, m, k), normal(rng, n, k, scale=k**-0.5)
    return x.astype(dtype), w.astype(dtype)


def _linear_int8(lib: Any, **size: Any) -> Any:
    ts = lib.module
    return lib.jit(lambda x, w: ts.einsum("mk,nk->mn", x, w, preferred_element_type=ts.int32))


def _linear_int8_jax(lib: Any, **size: Any) -> Any:
    jnp = lib.xp
    return lib.jit(lambda x, w: jnp.matmul(x, w.T, preferred_element_type=jnp.int32))


def _ours_int8(lib: Any, **size: Any) -> Any:
    ts = lib.module
    return lib.jit(lambda a, b: ts.astype(a, ts.int32) @ ts.astype(b, ts.int32))


def _jax_int8(lib: Any, **size: Any) -> Any:
    jnp = lib.xp
    return lib.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int32))


def _numpy_int8(lib: Any, **size: Any) -> Any:
    return lambda a, b: a.astype(np.int32) @ b.astype(np.int32)


def _gelu_numpy(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return 0.5 * x * (1 + erf(x * F32(math.sqrt(0.5))))


def _dense_gelu(lib: Any, **size: Any) -> Any:
    gelu = lib.nn.gelu
    return lib.jit(lambda x, w, b: gelu(x @ w + b, approximate=False))


def _dense_gelu_torch(torch: Any, **size: Any) -> Any:
    return lambda x, w, b: torch.nn.functional.gelu(torch.addmm(b, x, w))


def _dense_gelu_data(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Any, ...]:
    return normal(rng, m, k), normal(rng, k, n, scale=k**-0.5), normal(rng, n)


MATMUL = {**shared(_matmul), **torch_program(_matmul)}
NARROW = {**shared(_matmul, "tessera", "jax"), **torch_program(_matmul)}

INT8 = {
    "tessera": _ours_int8,
    "jax": _jax_int8,
    "numpy": _numpy_int8,
    **torch_program(lambda torch, **size: torch._int_mm),
}

NARROW_SHAPES = [
    {"m": 4, "n": 4096, "k": 1024},
    {"m": 32, "n": 1024, "k": 1024},
    {"m": 512, "n": 3072, "k": 768},
    {"m": 1001, "n": 999, "k": 1003},
]

PROGRAMS = [
    Program(
        "gemm f32",
        _square(F32),
        MATMUL,
        lambda n: _cost(n, n, n),
        [{"n": n} for n in (64, 128, 256, 512, 1024, 2048, 4096)],
        {"n": 7},
        quick=(0, 2, 4),
    ),
    Program(
        "gemm f32 shapes",
        _pair(F32),
        MATMUL,
        _cost,
        [
            {"m": 1, "n": 4096, "k": 4096},
            {"m": 4096, "n": 1, "k": 4096},
            {"m": 8, "n": 4096, "k": 1024},
            {"m": 4096, "n": 4096, "k": 16},
            {"m": 32, "n": 32, "k": 32768},
            {"m": 127, "n": 255, "k": 511},
            {"m": 1001, "n": 999, "k": 1003},
        ],
        {"m": 5, "n": 3, "k": 9},
        quick=(0, 2, 4, 5),
        eager=True,
    ),
    Program(
        "gemm f32 transposed",
        lambda rng, n, form: _square(F32)(rng, n),
        {**shared(_transposed), **torch_program(_transposed)},
        lambda n, form: _cost(n, n, n),
        [{"n": 1024, "form": form} for form in ("NT", "TN", "TT")],
        {"n": 7, "form": "TT"},
    ),
    Program(
        "batched gemm f32",
        lambda rng, b, n: (normal(rng, b, n, n), normal(rng, b, n, n)),
        MATMUL,
        lambda b, n: Cost(12 * b * n * n, 2 * b * n**3),
        [{"b": 1024, "n": 16}, {"b": 64, "n": 64}, {"b": 32, "n": 128}, {"b": 8, "n": 512}],
        {"b": 3, "n": 5},
        quick=(1,),
    ),
    Program(
        "gemm f64",
        _square(np.float64),
        MATMUL,
        lambda n: _cost(n, n, n, 8, "f64"),
        [{"n": 256}, {"n": 1024}],
        {"n": 7},
        wide=True,
    ),
    Program(
        "gemm bf16",
        _square(ml_dtypes.bfloat16),
        NARROW,
        lambda n: _cost(n, n, n, 2, "bf16"),
        [{"n": 256}, {"n": 1024}],
        {"n": 7},
        reference=lambda a, b: a @ b,
        tolerance=1e-2,
    ),
    Program(
        "gemm bf16 shapes",
        _pair(ml_dtypes.bfloat16),
        NARROW,
        lambda m, n, k: _cost(m, n, k, 2, "bf16"),
        NARROW_SHAPES,
        {"m": 9, "n": 20, "k": 34},
        reference=lambda a, b: a @ b,
        tolerance=1e-2,
        quick=(0, 1),
    ),
    Program(
        "linear bf16",
        _linear_data,
        {
            **shared(_linear, "tessera", "jax"),
            **torch_program(lambda torch, **size: torch.nn.functional.linear),
        },
        lambda m, n, k: _cost(m, n, k, 2, "bf16"),
        [
            {"m": 4, "n": 4096, "k": 1024},
            {"m": 16, "n": 4096, "k": 4096},
            {"m": 128, "n": 3072, "k": 768},
            {"m": 16, "n": 50257, "k": 768},
        ],
        {"m": 9, "n": 40, "k": 64},
        reference=lambda x, w: x @ w.T,
        tolerance=1e-2,
        quick=(1,),
    ),
    Program(
        "linear f32",
        lambda rng, m, n, k: _linear_data(rng, m, n, k, F32),
        {
            **shared(_linear, "tessera", "jax", "numpy"),
            **torch_program(lambda torch, **size: torch.nn.functional.linear),
        },
        lambda m, n, k: _cost(m, n, k, 4),
        [
            {"m": 16, "n": 4096, "k": 1024},
            {"m": 64, "n": 3072, "k": 768},
            {"m": 16, "n": 50257, "k": 768},
        ],
        {"m": 9, "n": 40, "k": 64},
        reference=lambda x, w: x @ w.T,
        quick=(0,),
    ),
    Program(
        "linear int8",
        lambda rng, m, n, k: (_bytes_in(rng, m, n, k)[0], _bytes_in(rng, n, m, k)[0]),
        {
            "tessera": _linear_int8,
            "jax": _linear_int8_jax,
            **torch_program(lambda torch, **size: lambda x, w: torch._int_mm(x, w.T)),
        },
        lambda m, n, k: _cost(m, n, k, 1, "int8", 4),
        [
            {"m": 32, "n": 4096, "k": 1024},
            {"m": 128, "n": 3072, "k": 768},
            {"m": 32, "n": 50257, "k": 768},
        ],
        {"m": 24, "n": 40, "k": 64},
        reference=lambda x, w: x.astype(float) @ w.astype(float).T,
        tolerance=0,
        quick=(0,),
    ),
    Program(
        "gemm int8",
        lambda rng, n: _bytes_in(rng, n, n, n),
        INT8,
        lambda n: _cost(n, n, n, 1, "int8", 4),
        [{"n": 256}, {"n": 1024}],
        {"n": 24},
        reference=lambda a, b: a.astype(float) @ b.astype(float),
        tolerance=0,
    ),
    Program(
        "gemm int8 shapes",
        _bytes_in,
        INT8,
        lambda m, n, k: _cost(m, n, k, 1, "int8", 4),
        NARROW_SHAPES,
        {"m": 24, "n": 16, "k": 40},
        reference=lambda a, b: a.astype(float) @ b.astype(float),
        tolerance=0,
        quick=(0, 1),
    ),
    Program(
        "gemm + bias + gelu",
        _dense_gelu_data,
        {
            "tessera": _dense_gelu,
            "jax": _dense_gelu,
            "numpy": lambda lib, **size: lambda x, w, b: _gelu_numpy(x @ w + b),
            **torch_program(_dense_gelu_torch),
        },
        lambda m, n, k: _cost(m, n, k),
        [{"m": 512, "n": 3072, "k": 768}, {"m": 64, "n": 512, "k": 512}],
        {"m": 5, "n": 6, "k": 7},
    ),
]
