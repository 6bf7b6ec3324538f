"""The contenders: how each makes arrays, compiles, and waits for a result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from cpu.program import mapped

CONTENDERS = (
    *("tessera", "tessera before", "tessera eager"),
    *("jax", "torch", "torch.compile", "numba", "numpy"),
)
# Names the folder of another version of Tessera, which is `tessera before`.
BEFORE = "TESSERA_BENCHMARK_BEFORE"
# The setting of each runtime for the number of its threads, read when it is loaded.
THREAD_SETTINGS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
    "TESSERA_THREADS",
)


def same(value: Any) -> Any:
    """What there is to do for a library that does not compile, or whose results are there."""
    return value


@dataclass
class Library:
    """One contender, loaded.

    Attributes:
        name: of the contender.
        module: the library.
        xp: its functions under NumPy's names.
        jit: compiles a function, or returns it as it is.
        asarray: makes one array of a NumPy array.
        wait: waits until a result is there.
        parts: further functions by name, as attributes: `grad`, `scan`, `nn`, ...
    """

    name: str
    module: ModuleType
    xp: Any
    jit: Callable[..., Any] = same
    asarray: Callable[[np.ndarray], Any] = same
    wait: Callable[[Any], Any] = same
    parts: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.parts[name]
        except KeyError:
            raise AttributeError(name) from None

    def arrays(self, tree: Any) -> Any:
        """The tree with its NumPy arrays made into arrays of this library."""
        return mapped(lambda x: self.asarray(x) if isinstance(x, np.ndarray) else x, tree)


def thread_settings(count: int) -> dict[str, str]:
    """The environment of a process that shall have `count` threads.

    NumPy reads its setting when it is imported, so the process has to be started with it.
    """
    return dict.fromkeys(THREAD_SETTINGS, str(count))


def use_cores(count: int) -> None:
    """Keeps this thread, and those that it makes from now on, to `count` cores."""
    if hasattr(os, "sched_setaffinity"):
        # XLA has no setting: it makes as many threads as it may use cores.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:count])


def load(name: str) -> Library:
    """Loads a contender.

    Raises:
        ImportError: it is not installed.
    """
    return _LOADERS[name](name)


def _tessera(name: str) -> Library:
    # The cache on disk would hide what the first call costs.
    os.environ.setdefault("TESSERA_CACHE", "off")
    if name == "tessera before":
        sys.path.insert(0, os.environ[BEFORE])
    import tessera as ts

    parts = ("grad", "value_and_grad", "vmap", "scan", "while_loop", "fori_loop", "nn", "fft")
    # Programs for a CPU have run when they return.
    jit = same if name == "tessera eager" else ts.jit
    return Library(
        name, ts, ts, jit, ts.asarray, parts={part: getattr(ts, part) for part in parts}
    )


def _jax(name: str) -> Library:
    import jax
    import jax.numpy as jnp

    parts = {p: getattr(jax, p) for p in ("grad", "value_and_grad", "vmap", "nn")}
    parts |= {p: getattr(jax.lax, p) for p in ("scan", "while_loop", "fori_loop")}
    parts["fft"] = jnp.fft
    return Library(name, jax, jnp, jax.jit, jnp.asarray, jax.block_until_ready, parts)


def _torch(name: str) -> Library:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def asarray(x: np.ndarray) -> Any:
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    def compiled(fn: Callable[..., Any]) -> Any:
        torch.compiler.reset()
        return torch.compile(fn, dynamic=False)

    return Library(name, torch, torch, compiled if name == "torch.compile" else same, asarray)


def _numba(name: str) -> Library:
    import numba

    return Library(name, numba, np)


def _numpy(name: str) -> Library:
    return Library(name, np, np)


_LOADERS: dict[str, Callable[[str], Library]] = {
    "tessera": _tessera,
    "tessera before": _tessera,
    "tessera eager": _tessera,
    "jax": _jax,
    "torch": _torch,
    "torch.compile": _torch,
    "numba": _numba,
    "numpy": _numpy,
}


def as_numpy(leaf: Any) -> np.ndarray:
    """One array of any library as NumPy's; narrow floats are widened."""
    if type(leaf).__module__.startswith("torch"):
        leaf = leaf.detach()
        if str(leaf.dtype) == "torch.bfloat16":
            leaf = leaf.float()
        leaf = leaf.numpy()
    found = np.asarray(leaf)
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found
