"""`jit` and `compile`: functions that are compiled once per signature of their arguments."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

from tessera import pytree
from tessera.api.leaves import argument_name, as_array, leaf_arrays, name_of
from tessera.api.traced import Traced
from tessera.compile import STAGES, Lowered
from tessera.compile import lower as lower_graph
from tessera.config import config
from tessera.errors import StaticArgumentError, api_boundary
from tessera.graph.array import Array
from tessera.graph.ops.control import Call
from tessera.graph.trace import Tracer, as_tuple, bind, is_tracing
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType
from tessera.runtime.executable import Executable

P = ParamSpec("P")
R = TypeVar("R")


class _Entry:
    """One compiled signature."""

    __slots__ = ("captured", "executable", "lowered", "pointers", "treedef")

    def __init__(
        self,
        lowered: Lowered,
        executable: Executable,
        captured: list[Array],
        treedef: pytree.TreeDef,
    ) -> None:
        self.lowered = lowered
        self.executable = executable
        self.captured = captured
        self.pointers = [x.pointer for x in captured]
        self.treedef = treedef


class JitFunction(Generic[P, R]):
    """A function that is traced and compiled once per signature. Made by `jit`."""

    def __init__(
        self,
        fn: Callable[P, R],
        static_argnums: tuple[int, ...] = (),
        static_argnames: tuple[str, ...] = (),
        dump: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._static_argnums = static_argnums
        self._static_argnames = frozenset(static_argnames)
        self._has_static = bool(static_argnums or static_argnames)
        self._dump = tuple(dump)
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the compiled function; traces and compiles it first where the signature is new."""
        dynamic, statics = self._split(args, kwargs)
        leaves, treedef = pytree.flatten(dynamic)
        arrays: list[Any] = []
        signature: list[Any] = [treedef, statics, config.current().key()]
        for k, x in enumerate(leaves):
            if type(x) is not Array:
                if isinstance(x, Tracer) or is_tracing():
                    return self._call_traced(leaves, treedef, statics)
                x = as_array(x, argument_name(treedef, k))
                assert isinstance(x, Array)
                if x.type.weak:
                    signature.append(True)
            arrays.append(x)
            signature.append(x.host.dtype)
            signature.append(x.host.shape)
        key = tuple(signature)
        entry = self._entries.get(key)
        if entry is None:
            if is_tracing():
                return self._call_traced(leaves, treedef, statics)
            entry = self._compile_entry(key, arrays, treedef, statics)
        inputs = [x.contiguous() for x in arrays]
        outputs = entry.executable.run([*entry.pointers, *[x.pointer for x in inputs]])
        return pytree.unflatten(entry.treedef, [Array(x) for x in outputs])

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    # --- signatures ---

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Hashable]:
        """Separates static arguments; they must hash."""
        if not self._has_static:
            return (args, kwargs), ()
        numbers = {
            n % len(args) if args else n
            for n in self._static_argnums
            if -len(args) <= n < len(args)
        }
        names = self._static_names()
        statics: list[tuple[Any, Any]] = []
        for k in sorted(numbers):
            statics.append((k, args[k]))
        positional = list(inspect.signature(self._fn).parameters)
        for k, name in enumerate(positional[: len(args)]):
            if name in self._static_argnames and k not in numbers:
                numbers.add(k)
                statics.append((k, args[k]))
        statics += [(k, kwargs[k]) for k in sorted(kwargs) if k in names]
        for k, value in statics:
            try:
                hash(value)
            except TypeError:
                raise StaticArgumentError(
                    f"static argument {k!r} of {name_of(self._fn)} is of type "
                    f"{type(value).__name__}, which cannot be "
                    f"hashed",
                    loc=_loc.current(),
                    rule=(
                        "a static argument is part of the cache key, so it must be hashable and "
                        "compare by value"
                    ),
                    fix="pass a tuple instead of a list, or make it a normal argument",
                ) from None
        # None is an empty subtree: nothing of a static argument is left in the tree.
        rest = tuple([None if k in numbers else x for k, x in enumerate(args)])
        return (rest, {k: v for k, v in kwargs.items() if k not in names}), tuple(
            [(k, type(v), v) for k, v in statics]
        )

    def _static_names(self) -> frozenset[str]:
        if not self._static_argnums:
            return self._static_argnames
        positional = list(inspect.signature(self._fn).parameters)
        extra = [
            positional[n] for n in self._static_argnums if -len(positional) <= n < len(positional)
        ]
        return self._static_argnames | frozenset(extra)

    def _rebuild(
        self, treedef: pytree.TreeDef, statics: Any
    ) -> Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
        def rebuild(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = pytree.unflatten(treedef, leaves)
            args = list(args)
            for k, _, value in statics:
                if isinstance(k, int):
                    args[k] = value
                else:
                    kwargs[k] = value
            return tuple(args), kwargs

        return rebuild

    # --- compiling ---

    def _trace(self, types: Sequence[TensorType], treedef: pytree.TreeDef, statics: Any) -> Traced:
        return Traced(self._fn, self._rebuild(treedef, statics), types, None, "jit", staging=True)

    def _compile_entry(
        self, key: Hashable, arrays: list[Array], treedef: pytree.TreeDef, statics: Any
    ) -> _Entry:
        traced = self._trace([x.type for x in arrays], treedef, statics)
        lowered = lower_graph(traced.graph, _dump_folder())
        entry = _Entry(
            lowered, lowered.executable(), [x.contiguous() for x in traced.captured], traced.treedef
        )
        for stage in self._dump:
            print(f"// {stage} of {name_of(self._fn)}\n{lowered.stage(stage)}\n")
        with self._lock:
            return self._entries.setdefault(key, entry)

    def _call_traced(self, leaves: Sequence[Any], treedef: pytree.TreeDef, statics: Any) -> Any:
        """Inside another trace: a call op."""
        arrays = [as_array(x, argument_name(treedef, k)) for k, x in enumerate(leaves)]
        traced = self._trace([x.type for x in arrays], treedef, statics)
        results = as_tuple(
            bind(Call, (*traced.captured, *arrays), label=traced.graph.name, body=traced.graph.body)
        )
        return pytree.unflatten(traced.treedef, results)

    # --- inspection ---

    @api_boundary
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Lowers for these arguments without running.

        Returns:
            An object with the stages `graph`, `schedule`, `tile`, `target`, `llvm`, `asm`, all
            printable, and `why()`.
        """
        dynamic, statics = self._split(args, kwargs)
        arrays, treedef = leaf_arrays(dynamic, "arguments")
        traced = self._trace([x.type for x in arrays], treedef, statics)
        return lower_graph(traced.graph)

    def cache_size(self) -> int:
        """How many signatures are compiled."""
        return len(self._entries)

    def compiled(self) -> list[Lowered]:
        """The lowered programs of the compiled signatures, in order."""
        return [entry.lowered for entry in self._entries.values()]

    def __repr__(self) -> str:
        return f"jit({name_of(self._fn)}), {len(self._entries)} compiled"


def _dump_folder() -> Path | None:
    settings = config.current()
    return Path(settings.dump_dir) if settings.dump else None


@overload
def jit(fn: Callable[P, R], /) -> JitFunction[P, R]: ...
@overload
def jit(
    *, static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = ()
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
@overload
def jit(
    fn: Callable[P, R],
    /,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> JitFunction[P, R]: ...
def jit(
    fn: Callable[P, R] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> Any:
    """Compiles a function of arrays.

    The function is traced once per signature (structure, dtypes and shapes of its arguments, and
    values of its static arguments), lowered through all IRs to native code, and run from then on
    without Python.

    Args:
        fn: a function of arrays and containers of arrays.
        static_argnums: positions of arguments that are Python values, part of the signature; they
            must hash.
        static_argnames: names of such arguments.

    Returns:
        A function of the same signature, with `.lower(*args)`.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     return ts.sum(x * x)
        >>> float(f(ts.asarray([1.0, 2.0])))
        5.0
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def wrap(f: Callable[P, R]) -> JitFunction[P, R]:
        return JitFunction(f, numbers, names)

    return wrap if fn is None else wrap(fn)


def compile(fn: Callable[P, R], *, dump: Sequence[str] = ()) -> JitFunction[P, R]:
    """Like `jit`, and prints the chosen stages of each program when it is compiled.

    Args:
        fn: a function of arrays, or a jitted one.
        dump: stages among "graph", "sched", "tirh", "tirt", "llvm", "asm".

    Raises:
        ValueError: an unknown stage.
    """
    unknown = [d for d in dump if d not in STAGES]
    if unknown:
        raise ValueError(
            f"compile: unknown stage {unknown[0]!r}; the stages are {', '.join(STAGES)}"
        )
    inner = fn._fn if isinstance(fn, JitFunction) else fn
    return JitFunction(inner, dump=dump)
