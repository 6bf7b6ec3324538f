"""What a call costs beside its work, and what compiling a small function takes."""

from __future__ import annotations

import itertools
from collections import namedtuple
from typing import Any

import numpy as np

from cpu.program import Build, Cost, Program, normal, numba_program, shared, torch_program


def _three(xp: Any, **size: Any) -> Any:
    return lambda x, y, z: x * y + z


def _mapped(xp: Any, **size: Any) -> Any:
    return lambda p: {name: 2 * leaf for name, leaf in p.items()}


def _first(xp: Any, **size: Any) -> Any:
    return lambda p: p["w0"] + p["w1"]


def _leaves(rng: np.random.Generator, leaves: int) -> tuple[Any, ...]:
    return ({f"w{k}": normal(rng, 8) for k in range(leaves)},)


def _with_keyword(lib: Any) -> Any:
    f = lib.jit(lambda x, y: x + y)
    return lambda x, y: f(x, y=y)


def _many(lib: Any, signatures: int) -> Any:
    """One function that has been compiled for many shapes; the call is of the first."""
    f = lib.jit(lambda x, y: x + y)
    for n in range(1, signatures):
        other = lib.asarray(np.zeros(8 + n, np.float32))
        f(other, other)
    return f


def _compiling(body: Any) -> dict[str, Build]:
    """A new function of the same kind each time, compiled and called.

    Each has a constant of its own, which no cache can know.
    """

    def build(lib: Any, **size: Any) -> Any:
        numbers = itertools.count()

        def run(x: Any) -> Any:
            constant = 1 + 1e-6 * (next(numbers) % 1000)
            return lib.jit(body(lib.xp, constant))(x)

        return run

    return dict.fromkeys(("tessera", "jax", "torch.compile"), build)


def _one_kernel(xp: Any, constant: float) -> Any:
    return lambda x: xp.sum(xp.exp(-x * x) * constant + x)


def _compiling_numba(lib: Any, **size: Any) -> Any:
    numba = lib.module
    numbers = itertools.count()

    def run(x: Any) -> Any:
        constant = np.float32(1 + 1e-6 * (next(numbers) % 1000))

        @numba.njit
        def f(x: Any) -> Any:
            total = np.float32(0)
            for v in x:
                total += np.exp(-v * v) * constant + v
            return total

        return f(x)

    return run


CALL, COMPILE = "the call", "the compiler"


def _call(name: str, build: dict[str, Build], count: int = 1, *rest: Any, **more: Any) -> Program:
    """A call with so many small vectors, and then what else it takes."""
    return Program(
        f"call, {name}",
        lambda rng, n: (*[normal(rng, n) for _ in range(count)], *rest),
        build,
        lambda n: Cost(4 * n * (count + 1), n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        bound=CALL,
        **more,
    )


def _compiled(body: Any) -> dict[str, Build]:
    """The same function for all, without the size."""
    return {
        **shared(lambda xp, n: body),
        **torch_program(lambda torch, n: body),
        **numba_program(lambda numba, n: numba.njit(body)),
    }


def _layers(rng: np.random.Generator, n: int, layers: int) -> tuple[Any, ...]:
    weights = [(normal(rng, n, n) / n**0.5, normal(rng, n) / n) for _ in range(layers)]
    return weights, normal(rng, n, n), normal(rng, n, n)


def _loss(xp: Any) -> Any:
    """The loss of some layers."""

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w, b in layers:
            x = xp.tanh(x @ w + b)
        return xp.mean((x - y) ** 2)

    return loss


def _gradient_torch(lib: Any, **size: Any) -> Any:
    torch = lib.module
    loss = _loss(torch)

    def run(layers: Any, x: Any, y: Any) -> Any:
        own = [tuple([t.detach().requires_grad_() for t in layer]) for layer in layers]
        found = torch.autograd.grad(loss(own, x, y), [t for layer in own for t in layer])
        return list(zip(found[::2], found[1::2], strict=True))

    return run


def _gradient(layers: Any, x: Any, y: Any) -> Any:
    """It by hand."""
    values = [x]
    for w, b in layers:
        values.append(np.tanh(values[-1] @ w + b))
    d = 2 * (values[-1] - y) / y.size
    grads: list[Any] = []
    for (w, _), before, after in zip(layers[::-1], values[-2::-1], values[::-1], strict=False):
        d = d * (1 - after * after)
        grads.append((before.T @ d, d.sum(0)))
        d = d @ w.T
    return grads[::-1]


def _eager(body: Any) -> dict[str, Build]:
    """Operators, as a user would write them."""
    return dict.fromkeys(("tessera", "jax", "torch", "numpy"), lambda lib, n: body)


Pair = namedtuple("Pair", "a b")

CALLS = [
    _call("1 array", _compiled(lambda x: 2 * x)),
    _call("3 NumPy arrays", _compiled(lambda x, y, z: x * y + z), 3, bar=0.25e-6, is_raw=True),
    _call("array and number", _compiled(lambda x, s: x * s), 1, 2.5),
    _call(
        "static argument",
        {
            "tessera": lambda lib, n: lib.jit(lambda x, k: x * k, static_argnums=1),
            "jax": lambda lib, n: lib.jit(lambda x, k: x * k, static_argnums=1),
            "numpy": lambda lib, n: lambda x, k: x * k,
        },
        1,
        3,
    ),
    _call("3 arrays out", shared(lambda xp, n: lambda x: (x, 2 * x, 3 * x))),
    _call("keyword", shared(lambda xp, n: lambda x, y: x + y, "numpy")
          | dict.fromkeys(("tessera", "jax"), lambda lib, n: _with_keyword(lib)), 2),
    Program(
        "call, named tuple",
        lambda rng, n: (Pair(normal(rng, n), normal(rng, n)),),
        shared(lambda xp, n: lambda p: p[0] + p[1]),
        lambda n: Cost(12 * n, n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        bound=CALL,
    ),
    _call("eager x + 2.5", _eager(lambda x: x + 2.5)),
    _call("eager 2 * x", _eager(lambda x: 2 * x)),
    _call("eager x < y", _eager(lambda x, y: x < y), 2),
    _call("eager x[0]", _eager(lambda x: x[0])),
    _call("eager -x", _eager(lambda x: -x)),
    *[
        _call(f"eager {name}", dict.fromkeys(
            ("tessera", "jax", "torch", "numpy"), lambda lib, n, name=name: getattr(lib.xp, name)
        ))
        for name in ("exp", "sum")
    ],
]

PROGRAMS = [
    *CALLS,
    Program(
        "call, gradient without jit",
        _layers,
        {
            **dict.fromkeys(
                ("tessera", "jax"), lambda lib, **size: lib.module.grad(_loss(lib.xp))
            ),
            "torch": _gradient_torch,
        },
        lambda n, layers: Cost(8 * n * n * (layers + 1), 6 * n**3 * layers),
        [{"n": 16, "layers": 2}, {"n": 16, "layers": 12}],
        {"n": 4, "layers": 2},
        reference=_gradient,
        threads=(1,),
        bound=CALL,
    ),
    Program(
        "call, 3 arrays",
        lambda rng, n: tuple(normal(rng, n) for _ in range(3)),
        {
            **shared(_three),
            **torch_program(_three),
            **numba_program(lambda numba, n: numba.njit(lambda x, y, z: x * y + z)),
        },
        lambda n: Cost(16 * n, 2 * n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        eager=True,
        bound=CALL,
        bar=0.25e-6,
    ),
    Program(
        "call, eager x + y",
        lambda rng, n: tuple(normal(rng, n) for _ in range(2)),
        {
            **dict.fromkeys(
                ("tessera", "jax", "torch", "numpy"), lambda lib, n: lambda x, y: x + y
            ),
        },
        lambda n: Cost(12 * n, n),
        [{"n": 8}],
        {"n": 8},
        threads=(1,),
        bound=CALL,
        bar=1e-6,
    ),
    Program(
        "call, dict in",
        _leaves,
        {**shared(_first), **torch_program(_first)},
        lambda leaves: Cost(96, 8),
        [{"leaves": 50}],
        {"leaves": 3},
        threads=(1,),
        bound=CALL,
        bar=3e-6,
    ),
    Program(
        "call, dict in and out",
        _leaves,
        {**shared(_mapped), **torch_program(_mapped)},
        lambda leaves: Cost(64 * leaves, 8 * leaves),
        [{"leaves": 10}, {"leaves": 50}],
        {"leaves": 3},
        threads=(1,),
        quick=(0, 1),
        bound=CALL,
    ),
    Program(
        "call, one signature of many",
        lambda rng, signatures: tuple(normal(rng, 8) for _ in range(2)),
        {"tessera": _many, "jax": _many, "numpy": lambda lib, signatures: lambda x, y: x + y},
        lambda signatures: Cost(96, 8),
        [{"signatures": 100}],
        {"signatures": 3},
        threads=(1,),
        bound=CALL,
    ),
    Program(
        "compile one kernel",
        lambda rng, n: (normal(rng, n),),
        {**_compiling(_one_kernel), "numba": _compiling_numba},
        lambda n: Cost(4 * n, 24 * n),
        [{"n": 1000}],
        {"n": 9},
        reference=lambda x: np.sum(np.exp(-x * x) + x),
        tolerance=1e-2,
        threads=(1,),
        bound=COMPILE,
        bar=40e-3,
    ),
]
