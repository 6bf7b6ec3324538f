"""What a benchmark is: one computation, its data, its source for each contender, and its floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cpu.libraries import Library

Size = Mapping[str, Any]
# Given a library and the case's size, what runs once: a function of the arguments.
Build = Callable[..., Callable[..., Any]]

F32 = np.float32


@dataclass(frozen=True)
class Cost:
    """The least work that any implementation must do.

    Attributes:
        bytes: that have to be read and written once, if nothing is kept in between.
        operations: multiplications, additions and their like; a fused multiply-add is two.
        kind: which peak the operations are of: `f32`, `f64`, `bf16` or `int8`.
    """

    bytes: float
    operations: float = 0.0
    kind: str = "f32"


@dataclass
class Program:
    """One computation in several sizes.

    Attributes:
        name: what is computed; family and name are what cases are chosen by.
        make: `(rng, **size)` -> the arguments, a tuple of trees of NumPy arrays.
        build: contender -> its program. `torch` also serves `torch.compile`, unless that has one of
            its own; `tessera` serves `tessera eager` where `eager` says that this is sensible.
        cost: `(**size)` -> the least work.
        sizes: what to measure.
        tiny: a size for the tests.
        quick: the positions in `sizes` that the quick mode measures.
        reference: the result in NumPy, in float64; None takes NumPy's program.
        view: `(arguments, result)` -> what is compared, both in float64, instead of the result.
        tolerance: the largest error allowed, relative to the largest magnitude of a leaf.
        threads: thread counts to measure, None for all that were asked for.
        eager: whether `tessera eager` is a contender.
        wide: whether JAX has to be told to have 64-bit types.
        bound: what bounds it where that is neither bytes nor operations.
        bar: seconds that a call of Tessera's may take; 0 where nothing is promised.
        is_raw: whether contenders get NumPy's arrays, not their own.
    """

    name: str
    make: Callable[..., tuple[Any, ...]]
    build: dict[str, Build]
    cost: Callable[..., Cost]
    sizes: Sequence[Size]
    tiny: Size
    quick: Sequence[int] = (0,)
    reference: Callable[..., Any] | None = None
    view: Callable[[Any, Any], Any] | None = None
    tolerance: float = 1e-4
    threads: Sequence[int] | None = None
    eager: bool = False
    wide: bool = False
    bound: str = ""
    bar: float = 0.0
    is_raw: bool = False
    family: str = field(default="", init=False)

    def label(self, size: Size) -> str:
        """The name of a case."""
        words = [f"{v}" if isinstance(v, str) else f"{k}={_short(v)}" for k, v in size.items()]
        return " ".join([self.name, *words])

    def contenders(self) -> list[str]:
        """Who can take part."""
        names = list(self.build)
        if "tessera" in names:
            names.append("tessera before")
        if self.eager and "tessera" in names:
            names.append("tessera eager")
        if "torch" in names and "torch.compile" not in names:
            names.append("torch.compile")
        return names


def _short(value: Any) -> str:
    if isinstance(value, int) and value >= 1000 and value % 10 ** (len(str(value)) - 1) == 0:
        return f"{value:.0e}".replace("e+0", "e")
    return str(value)


def shared(body: Callable[..., Callable[..., Any]], *libraries: str) -> dict[str, Build]:
    """A program whose text is the same for libraries with NumPy's names.

    Args:
        body: `(xp, **size)` -> the function, to be compiled by libraries that can.
        libraries: who takes part, all three if none is named.
    """

    def build(lib: Library, **size: Any) -> Callable[..., Any]:
        return lib.jit(body(lib.xp, **size))

    return dict.fromkeys(libraries or ("tessera", "jax", "numpy"), build)


def transformed(body: Callable[..., Callable[..., Any]]) -> dict[str, Build]:
    """The same for programs that need transforms: `body` takes the library, not its arrays."""

    def build(lib: Library, **size: Any) -> Callable[..., Any]:
        return lib.jit(body(lib, **size))

    return {"tessera": build, "jax": build}


def torch_program(body: Callable[..., Callable[..., Any]]) -> dict[str, Build]:
    """A program of torch's: `body` takes the module and the size."""

    def build(lib: Library, **size: Any) -> Callable[..., Any]:
        return lib.jit(body(lib.module, **size))

    return {"torch": build}


def numba_program(body: Callable[..., Callable[..., Any]]) -> dict[str, Build]:
    """A program of Numba's: `body` takes the module and returns a function that is compiled."""
    return {"numba": lambda lib, **size: body(lib.module, **size)}


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal numbers in float32."""
    found = rng.standard_normal(shape, dtype=np.float32)
    return found if scale == 1.0 else found * F32(scale)


def gradient_view(seed: int = 7) -> Callable[[Any, Any], Any]:
    """Compares gradients by their products with one random direction.

    The result of a program is `(loss, gradients)`, or the gradients alone where there is no tuple.
    """

    def view(arguments: Any, result: Any) -> Any:
        value, grads = result if isinstance(result, tuple) and len(result) == 2 else (None, result)
        slope = sum(
            float(np.sum(np.asarray(g, np.float64) * d))
            for g, d in zip(leaves(grads), directions(grads, seed), strict=True)
        )
        found = [np.asarray(slope)]
        return found if value is None else [np.asarray(value, np.float64), *found]

    return view


def directions(tree: Any, seed: int = 7) -> list[np.ndarray]:
    """One random direction for each leaf, the same whenever shapes are."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(np.shape(leaf)) for leaf in leaves(tree)]


def leaves(tree: Any) -> list[Any]:
    """The leaves of tuples, lists and dicts, keys in order."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `fn` of each leaf."""
    if isinstance(tree, dict):
        return {key: mapped(fn, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [mapped(fn, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return fn(tree)


def in_float64(tree: Any) -> Any:
    """The tree with float leaves widened."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fV" and leaf.dtype != np.float64:
            return leaf.astype(np.float64)
        return leaf

    return mapped(widen, tree)


def slopes(loss: Callable[..., Any], step: float = 1e-7) -> Callable[..., Any]:
    """The reference for `(loss, gradients of the first argument)`: a central difference.

    Args:
        loss: of the arguments, in NumPy and float64.
        step: how far along the direction.
    """

    def reference(first: Any, *rest: Any) -> Any:
        steps = iter(directions(first))
        moves = mapped(lambda leaf: next(steps), _sorted(first))
        ahead = loss(_added(first, moves, step), *rest)
        behind = loss(_added(first, moves, -step), *rest)
        return [np.asarray(loss(first, *rest)), np.asarray((ahead - behind) / (2 * step))]

    return reference


def _sorted(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _sorted(tree[key]) for key in sorted(tree)}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_sorted(part) for part in tree)
    return tree


def _added(tree: Any, moves: Any, step: float) -> Any:
    if isinstance(tree, dict):
        return {key: _added(value, moves[key], step) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_added(t, m, step) for t, m in zip(tree, moves, strict=True))
    return tree + step * moves
