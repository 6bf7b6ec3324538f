"""`deterministic`, `nondeterministic`, `fast_math`: promises of bits."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import numpy as np

from tessera.api.leaves import check_callable, name_of
from tessera.api.refs import Ref
from tessera.config import Config, config
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import Array
from tessera.graph.determinism import ByChance, Deterministic
from tessera.graph.effects import suspended
from tessera.graph.passes.fast_math import FastMath
from tessera.graph.promise import promised, with_promise
from tessera.graph.trace import is_recording
from tessera.ir import loc
from tessera.ir.effects import memory

P = ParamSpec("P")
R = TypeVar("R")


class Scope(Protocol):
    """What stands in `with`, and decorates functions."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> bool | None: ...
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...


class Stream:
    """The random numbers of a function without keys of its user: a key for each draw of each call.

    Attributes:
        step: the number of the call.
        draws: how many draws the call has had.
    """

    def __init__(self, function: str, seed: int) -> None:
        name = f"stream({function})"
        self.step: Ref = Ref(np.int32(0), name)
        self.draws: Ref = Ref(np.int32(0), name)
        # State of the stream is no effect of the function: its draws are.
        self.effects = memory(name)
        text = hashlib.sha256(f"{seed}, {function}".encode()).digest()
        self.words = np.frombuffer(text[:8], np.uint32)
        self._is_used = False
        self._depth = 0

    def draw(self) -> tuple[Array, Any, Any]:
        """The key of the function, the number of the call, and that of the draw in it."""
        self._is_used = True
        with suspended(self.effects):
            step, place = self.step.get(), self.draws.get()
            self.draws.set(place + 1)
        return Array(self.words), step, place

    def enter(self) -> None:
        """A call begins."""
        self._depth += 1

    def leave(self, failed: bool) -> None:
        """A call ends. The next one has the next number, if it returned."""
        self._depth -= 1
        if self._depth or not self._is_used or (failed and is_recording()):
            return
        with suspended(self.effects):
            self.draws.set(0)
            if not failed:
                self.step.update(lambda n: n + 1)


class DeterministicFunction(Generic[P, R]):
    """A function that promises the same bits in each run. Made by `deterministic`.

    Attributes:
        seed: of its random numbers.
        batch_invariant: whether a row of a result depends on no other row of the batch.
    """

    def __init__(self, fn: Callable[P, R], seed: int, batch_invariant: bool) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self.seed = seed
        self.batch_invariant = batch_invariant
        name = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', name_of(fn))}"
        self._stream = Stream(name, seed)
        # Native code knows settings by their identity.
        self._settings: dict[Config, Config] = {}

    @property
    def step(self) -> Ref:
        """The number of the next call, which its random numbers depend on; may be set."""
        return self._stream.step

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        outer = config.current()
        settings = self._settings.get(outer)
        if settings is None:
            known = promised(outer.promises, Deterministic)
            alone = self.batch_invariant or (known is not None and known.batch_invariant)
            promise = Deterministic(name_of(self._fn), alone, self._stream)
            kept = [p for p in outer.promises if type(p) is not ByChance]
            settings = replace(outer, promises=with_promise(kept, promise))
            self._settings[outer] = settings
        self._stream.enter()
        failed = True
        try:
            with config.using(settings):
                result = self._fn(*args, **kwargs)
            failed = False
        finally:
            self._stream.leave(failed)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        alone = ", batch_invariant=True" if self.batch_invariant else ""
        return f"deterministic({name_of(self._fn)}, seed={self.seed}{alone})"


@overload
def deterministic(fn: Callable[P, R], /) -> DeterministicFunction[P, R]: ...
@overload
def deterministic(
    *, seed: int = 0, batch_invariant: bool = False
) -> Callable[[Callable[P, R]], DeterministicFunction[P, R]]: ...
@api_boundary
def deterministic(
    fn: Callable[..., Any] | None = None, /, *, seed: int = 0, batch_invariant: bool = False
) -> Any:
    """A function whose results are the same bits in each run.

    Results are reproducible without it, for one version, machine and shape. With it, each sum in
    the function, and in its derivatives, has an order that is stated in the program: it depends on
    the terms alone, and not on the machine, on threads or on what is fused with it. What may vary
    from run to run is refused, unless it stands in `with ts.effects.suspend("io"):`.

    Within it, `ts.random.next_key()` gives keys: each of the next draw of this call, by the seed,
    the name of the function, the number of the call (`step`) and the place on named axes.

    Args:
        fn: a function of arrays, jitted or not. Without it, a decorator is returned.
        seed: what the keys depend on.
        batch_invariant: whether a row of a result is also the same whatever other rows are
            computed with it, and however many.

    Raises:
        OptionError: the seed is no integer.
        DeterminismError: the function has an operation that may vary, when it is called.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... @ts.deterministic(batch_invariant=True)
        ... def layer(x, w):
        ...     return ts.tanh(x @ w)
        >>> x, w = ts.random.normal(ts.random.key(0), (8, 64)), ts.ones((64, 4))
        >>> bool(ts.all(layer(x, w)[:1] == layer(x[:1], w)))
        True
    """
    if type(seed) is not int:
        raise OptionError(
            f"deterministic: the seed is {seed!r}", loc=loc.current(), rule="it is an integer"
        )

    @api_boundary
    def wrap(f: Callable[..., Any]) -> DeterministicFunction[..., Any]:
        check_callable("deterministic", f, "pass arguments to what it returns")
        return DeterministicFunction(f, seed, batch_invariant)

    return wrap if fn is None else wrap(fn)


@overload
def nondeterministic() -> Scope: ...
@overload
def nondeterministic(fn: Callable[P, R], /) -> Callable[P, R]: ...
@api_boundary
def nondeterministic(fn: Callable[..., Any] | None = None, /) -> Any:
    """Lets what is traced in a block be other bits in each run, where that is faster.

    On a GPU those are sums into elements that meet (`x.at[i].add(y)` of floating-point numbers, and
    the derivative of reading elements): they are summed as they come, by atomic additions, and
    not sorted before. `f.lower(...).why()` lists them, with their lines.

    Within a deterministic function, its block may also call the host; `ts.effects.suspend("io")`
    lets through these calls alone.

    Args:
        fn: a function that is in such a block whenever it is called. Without it, what is returned
            is for `with`, and a decorator.
    """
    return _scope("nondeterministic", _nondeterministic(), fn)


@overload
def fast_math() -> Scope: ...
@overload
def fast_math(fn: Callable[P, R], /) -> Callable[P, R]: ...
@api_boundary
def fast_math(fn: Callable[..., Any] | None = None, /) -> Any:
    """Lets what is traced in a block be computed otherwise where only the last bits differ.

    A quotient by what many elements share becomes a product with its reciprocal, constant factors
    become one, products are fused into sums, and on CPUs functions of float32 such as `log`, `tanh`
    and `pow` have shorter programs. Derivatives may change likewise. `f.lower(...).why()` lists
    what has changed, with its lines.

    Results may be infinite or NaN where they would not be: the reciprocal of a tiny number is
    infinite.

    Args:
        fn: a function that is in such a block whenever it is called. Without it, what is returned
            is for `with`, and a decorator.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... @ts.fast_math
        ... def f(x):
        ...     return x / ts.sum(x)
        >>> float(ts.sum(f(ts.ones(49))))
        1.0
    """
    return _scope("fast_math", _fast_math(), fn)


def _scope(name: str, scope: Any, fn: Callable[..., Any] | None) -> Any:
    if fn is None:
        return scope
    check_callable(name, fn, f"`with ts.{name}():` is for a block")
    return scope(fn)


@contextmanager
def _nondeterministic() -> Generator[None]:
    outer = config.current()
    promises = outer.promises
    promise = promised(promises, Deterministic)
    if promise is not None:
        promises = with_promise(promises, replace(promise, allows=True))
    with config.using(replace(outer, promises=with_promise(promises, ByChance()))):
        yield


@contextmanager
def _fast_math() -> Generator[None]:
    outer = config.current()
    with config.using(replace(outer, promises=with_promise(outer.promises, FastMath()))):
        yield
