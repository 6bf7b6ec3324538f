"""The transforms that users call: `jit`, `grad`, `value_and_grad`, `vjp`, `jvp`, `linearize`,
`vmap`, `compile`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from tessera import compile as _compile
from tessera import pytree
from tessera.config import config
from tessera.dtypes import dtype_of
from tessera.eager import Eager
from tessera.errors import (
    GradError,
    LeafError,
    PytreeError,
    ShapeError,
    StaticArgumentError,
    api_boundary,
)
from tessera.graph.array import Array, ArrayBase
from tessera.graph.namespace.operators import install as install_operators
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.control import Call
from tessera.graph.ops.reshape import broadcast, full, move_axis
from tessera.graph.trace import (
    Trace,
    Tracer,
    active,
    as_tuple,
    bind,
    install_engine,
    is_tracing,
)
from tessera.graph.transforms.differentiate import (
    Linearized,
    jvp_values,
    linearize_values,
    zeros_of,
)
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir import loc as _loc
from tessera.ir.core import Func
from tessera.ir.types import TensorType
from tessera.runtime.executable import Executable

P = ParamSpec("P")
R = TypeVar("R")

install_engine(Eager())
install_operators()


# --- leaves ---

_SCALARS = (bool, int, float, complex)


def as_array(x: Any, where: str) -> Array | Tracer:
    """A leaf of an argument or result as an array.

    Args:
        x: an array, a tracer, a NumPy array or scalar, or a Python number (which is weakly typed).
        where: what to call it in the error.
    """
    if isinstance(x, (Array, Tracer)):
        return x
    if isinstance(x, _SCALARS):
        dtype = dtype_of(type(x))
        return Array(np.asarray(x, dtype.np), TensorType((), dtype, weak=True))
    if isinstance(x, (np.ndarray, np.generic)):
        data = np.asarray(x)
        if data.dtype.hasobject or (
            data.dtype.kind in "USMmV" and data.dtype.name not in _KNOWN_VOID
        ):
            raise LeafError(
                f"{where} is a NumPy array of dtype {data.dtype}",
                loc=_loc.current(),
                rule="arrays hold numbers or bools",
                fix="convert it to a numeric dtype, or make the argument static",
            )
        return Array(data)
    raise LeafError(
        f"{where} is of type {type(x).__name__}, which is no array",
        loc=_loc.current(),
        rule="arguments and results are arrays, numbers, or containers of them",
        fix="make it a static argument (`static_argnums`), or register its class as a pytree",
    )


_KNOWN_VOID = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"})


def _name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _leaf_arrays(tree: Any, root: str) -> tuple[list[Array | Tracer], pytree.TreeDef]:
    leaves, treedef = pytree.flatten(tree)
    if all(isinstance(x, ArrayBase) for x in leaves):
        return leaves, treedef
    names = pytree.paths(treedef, root)
    return [as_array(x, n) for x, n in zip(leaves, names, strict=True)], treedef


# --- tracing user functions ---


class Traced:
    """A user function traced on flat inputs.

    Attributes:
        graph: the closed Graph (captured values first).
        captured: the captured values.
        outputs: how many output leaves.
        treedef: structure of the result.
        trace: the finished trace.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
        types: Sequence[TensorType],
        concrete: Sequence[Any] | None,
        kind: str,
        staging: bool = False,
    ) -> None:
        name = _name_of(fn)
        with active(Trace(kind, name, abstract=concrete is None, staging=staging)) as trace:
            values = concrete if concrete is not None else [None] * len(types)
            tracers = [trace.input(t, v) for t, v in zip(types, values, strict=True)]
            args, kwargs = rebuild(tracers)
            result = fn(*args, **kwargs)
            leaves, self.treedef = _leaf_arrays(result, f"the result of {name}")
            self.leaves = leaves
            self.graph, self.captured = trace.finish(leaves, _identifier(name))
        self.trace = trace
        self.types = [x.type for x in leaves]

    def known_outputs(self) -> list[Any]:
        """The concrete values of the outputs (concrete traces only)."""
        return [self.trace.lower(x) for x in self.leaves]


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return text if text and not text[0].isdigit() else f"f_{text}"


# --- jit ---


class _Entry:
    """One compiled signature."""

    __slots__ = ("captured", "executable", "lowered", "pointers", "treedef")

    def __init__(
        self,
        lowered: _compile.Lowered,
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
                x = as_array(x, _argument_name(treedef, k))
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
                    f"static argument {k!r} of {_name_of(self._fn)} is of type "
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
        lowered = _compile.lower(traced.graph, _dump_folder())
        entry = _Entry(
            lowered, lowered.executable(), [x.contiguous() for x in traced.captured], traced.treedef
        )
        for stage in self._dump:
            print(f"// {stage} of {_name_of(self._fn)}\n{lowered.stage(stage)}\n")
        with self._lock:
            return self._entries.setdefault(key, entry)

    def _call_traced(self, leaves: Sequence[Any], treedef: pytree.TreeDef, statics: Any) -> Any:
        """Inside another trace: a call op."""
        arrays = [as_array(x, _argument_name(treedef, k)) for k, x in enumerate(leaves)]
        traced = self._trace([x.type for x in arrays], treedef, statics)
        results = as_tuple(
            bind(Call, (*traced.captured, *arrays), label=traced.graph.name, body=traced.graph.body)
        )
        return pytree.unflatten(traced.treedef, results)

    # --- inspection ---

    @api_boundary
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> _compile.Lowered:
        """Lowers for these arguments without running.

        Returns:
            An object with the stages `graph`, `schedule`, `tile`, `target`, `llvm`, `asm`, all
            printable, and `why()`.
        """
        dynamic, statics = self._split(args, kwargs)
        arrays, treedef = _leaf_arrays(dynamic, "arguments")
        traced = self._trace([x.type for x in arrays], treedef, statics)
        return _compile.lower(traced.graph)

    def cache_size(self) -> int:
        """How many signatures are compiled."""
        return len(self._entries)

    def compiled(self) -> list[_compile.Lowered]:
        """The lowered programs of the compiled signatures, in order."""
        return [entry.lowered for entry in self._entries.values()]

    def __repr__(self) -> str:
        return f"jit({_name_of(self._fn)}), {len(self._entries)} compiled"


def _argument_name(treedef: pytree.TreeDef, k: int) -> str:
    path = pytree.paths(treedef, "arguments")[k]
    return path.replace("arguments[0]", "argument ", 1).replace(
        "arguments[1]", "keyword argument ", 1
    )


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
    unknown = [d for d in dump if d not in _compile.STAGES]
    if unknown:
        raise ValueError(
            f"compile: unknown stage {unknown[0]!r}; the stages are {', '.join(_compile.STAGES)}"
        )
    inner = fn._fn if isinstance(fn, JitFunction) else fn
    return JitFunction(inner, dump=dump)


# --- differentiation ---


def _select_args(args: tuple[Any, ...], argnums: int | Sequence[int], name: str) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise GradError(
                f"{name}: argnums is {argnums}, but the function was called with {len(args)} "
                f"positional arguments",
                loc=_loc.current(),
                rule="argnums names positional arguments",
            )
    return tuple([n % len(args) for n in numbers])


def _check_real_inputs(leaves: Sequence[Any], names: Sequence[str], transform: str) -> None:
    for x, name in zip(leaves, names, strict=True):
        if not is_inexact(x.dtype):
            raise GradError(
                f"{transform}: {name} has dtype {x.dtype.full_name}, which has no derivative",
                loc=_loc.current(),
                rule="differentiated inputs must be floating point",
                fix="convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`",
            )


class _Problem:
    """A function prepared for differentiation with respect to some arguments."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: Sequence[int],
        transform: str,
    ) -> None:
        trees = [args[n] for n in argnums]
        self.leaves, self.treedef = _leaf_arrays(trees, "arguments")
        self.leaves = [_strong(x) for x in self.leaves]
        names = [_differentiated_name(p, argnums) for p in pytree.paths(self.treedef, "")]
        _check_real_inputs(self.leaves, names, transform)

        def rebuild(tracers: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full_args = list(args)
            for n, tree in zip(argnums, pytree.unflatten(self.treedef, tracers), strict=True):
                full_args[n] = tree
            return tuple(full_args), kwargs

        types = [x.type for x in self.leaves]
        self.traced = Traced(fn, rebuild, types, self.leaves, transform)

    def primals(self) -> list[Any]:
        """Values of all arguments of the Graph."""
        return [*self.traced.captured, *self.leaves]

    def linearize(self) -> Linearized:
        """The linear map at the point."""
        wrt = [False] * len(self.traced.captured) + [True] * len(self.leaves)
        return linearize_values(self.traced.graph, self.primals(), wrt, self.traced.trace.known)

    def cotangents(self, linear: Linearized, cts: Sequence[Any]) -> Any:
        """Input cotangents as trees, one per differentiated argument."""
        found = linear.pull_back(cts)
        filled = [
            zeros_of(x.type) if ct is None else ct for ct, x in zip(found, self.leaves, strict=True)
        ]
        return pytree.unflatten(self.treedef, filled)


def _differentiated_name(path: str, argnums: Sequence[int]) -> str:
    end = path.find("]")
    position = int(path[1:end]) if path.startswith("[") and end > 0 else 0
    return f"argument {argnums[position]}{path[end + 1 :]}"


def _strong(x: Any) -> Any:
    return Array(x.host) if isinstance(x, Array) and x.type.weak else x


def value_and_grad(
    fn: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[Any, Any]]:
    """A function that returns the value of `fn` and its gradient.

    Args:
        fn: returns a real scalar array, or with `has_aux` a pair of it and anything.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns auxiliary data as well.

    Returns:
        A function `(...) -> (value, gradient)`; the gradient has the structure of the argument, or
        is a tuple for several.

    Raises:
        GradError: an integer input, or an output that is no real scalar.
    """
    return _gradient(
        fn,
        argnums,
        has_aux,
        "value_and_grad",
        lambda value, aux, grads: ((value, aux) if has_aux else value, grads),
    )


def grad(
    fn: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, Any]:
    """A function that returns the gradient of `fn`.

    Args:
        fn: returns a real scalar array, or with `has_aux` a pair of it and anything.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns auxiliary data as well; then `(gradient, aux)` is returned.

    Raises:
        GradError: an integer input, or an output that is no real scalar.

    Example:
        >>> import tessera as ts
        >>> float(ts.grad(lambda x: x * x)(3.0))
        6.0
    """
    return _gradient(
        fn, argnums, has_aux, "grad", lambda value, aux, grads: (grads, aux) if has_aux else grads
    )


def _gradient(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    transform: str,
    combine: Callable[[Any, Any, Any], Any],
) -> Callable[..., Any]:
    @api_boundary
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = _select_args(args, argnums, transform)
        problem = _Problem(fn, args, kwargs, numbers, transform)
        traced = problem.traced
        name = _name_of(fn)
        main_treedef = traced.treedef
        if has_aux:
            parts = pytree.unflatten(traced.treedef, range(len(traced.types)))
            if not isinstance(parts, tuple) or len(parts) != 2:
                raise GradError(
                    f"{transform}: {name} does not return a pair",
                    loc=_loc.current(),
                    rule="with has_aux=True the function returns (value, aux)",
                )
            main, aux_tree = parts
            main_leaves, main_treedef = pytree.flatten(main)
        else:
            aux_tree, main_leaves = None, list(range(len(traced.types)))
        _check_scalar(name, transform, [traced.types[k] for k in main_leaves])
        linear = problem.linearize()
        cts: list[Any] = [None] * len(traced.types)
        (k,) = main_leaves
        cts[k] = full((), 1, traced.types[k].dtype)
        grads = problem.cotangents(linear, cts)
        values = traced.known_outputs()
        value = pytree.unflatten(main_treedef, [values[k]])
        aux = pytree.map_(lambda i: values[i], aux_tree) if has_aux else None
        return combine(value, aux, grads[0] if isinstance(argnums, int) else tuple(grads))

    return run


def _check_scalar(name: str, transform: str, types: Sequence[TensorType]) -> None:
    if len(types) != 1:
        raise GradError(
            f"{transform}: {name} returns {len(types)} arrays",
            loc=_loc.current(),
            rule="the function must return one scalar",
            fix="return their sum, or use `ts.vjp`; auxiliary results need has_aux=True",
        )
    (type,) = types
    if type.shape or not is_inexact(type.dtype) or type.dtype.kind.value == "complex":
        raise GradError(
            f"{transform}: {name} returns {type}",
            loc=_loc.current(),
            rule="the function must return a real scalar (shape (), floating point)",
            fix="reduce it (`ts.sum`, `ts.mean`), or use `ts.vjp`",
        )


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function and its pullback.

    Args:
        fn: any function of arrays.
        *primals: the point.
        has_aux: whether `fn` returns a pair of the output and auxiliary data.

    Returns:
        `(output, pullback)` or `(output, pullback, aux)`; `pullback(cotangent)` returns a tuple,
        one per primal.
    """
    return _vjp(fn, primals, has_aux)


@api_boundary
def _vjp(fn: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> Any:
    problem = _Problem(fn, primals, {}, range(len(primals)), "vjp")
    traced = problem.traced
    linear = problem.linearize()
    values = pytree.unflatten(traced.treedef, traced.known_outputs())
    out, aux = values if has_aux else (values, None)
    _, out_treedef = pytree.flatten(out)
    count = len(pytree.leaves(out))

    @api_boundary
    def pullback(cotangent: Any) -> tuple[Any, ...]:
        """Input cotangents for an output cotangent."""
        leaves, treedef = _leaf_arrays(cotangent, "cotangent")
        if treedef != out_treedef:
            pytree.same_structure(
                treedef, out_treedef, what="vjp", names=("the cotangent", "the output")
            )
        for ct, type in zip(leaves, traced.types[:count], strict=True):
            if ct.shape != type.shape or (ct.dtype is not type.dtype and not ct.type.weak):
                raise ShapeError(
                    f"vjp: the cotangent is {ct.type}, the output {type}",
                    loc=_loc.current(),
                    rule="a cotangent has the shape and dtype of the output",
                )
        cts: list[Any] = [
            _cast_weak(ct, t) if is_inexact(t.dtype) else None
            for ct, t in zip(leaves, traced.types[:count], strict=True)
        ]
        cts += [None] * (len(traced.types) - count)
        return tuple(problem.cotangents(linear, cts))

    return (out, pullback, aux) if has_aux else (out, pullback)


def _cast_weak(x: Any, type: TensorType) -> Any:
    return (
        Array(x.host.astype(type.dtype.np))
        if isinstance(x, Array) and x.dtype is not type.dtype
        else x
    )


def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value of a function and its derivative along a direction.

    Args:
        fn: any function of arrays.
        primals: the point, one entry per argument.
        tangents: the direction, of the same structure, shapes and dtypes.

    Returns:
        `(output, output tangent)`.
    """
    return _jvp(fn, tuple(primals), tuple(tangents))


@api_boundary
def _jvp(
    fn: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    problem = _Problem(fn, primals, {}, range(len(primals)), "jvp")
    leaves, treedef = _leaf_arrays(list(tangents), "tangents")
    if treedef != problem.treedef:
        pytree.same_structure(
            treedef, problem.treedef, what="jvp", names=("the tangents", "the primals")
        )
    for t, p in zip(leaves, problem.leaves, strict=True):
        if t.shape != p.shape or (t.dtype is not p.dtype and not t.type.weak):
            raise ShapeError(
                f"jvp: a tangent is {t.type}, its primal {p.type}",
                loc=_loc.current(),
                rule="a tangent has the shape and dtype of its primal",
            )
    given = [_cast_weak(t, p.type) for t, p in zip(leaves, problem.leaves, strict=True)]
    traced = problem.traced
    outs, touts = jvp_values(
        traced.graph, problem.primals(), [None] * len(traced.captured) + given, traced.trace.known
    )
    filled = [zeros_of(o.type) if t is None else t for o, t in zip(outs, touts, strict=True)]
    return pytree.unflatten(traced.treedef, outs), pytree.unflatten(traced.treedef, filled)


def linearize(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of a function and its derivative as a linear function of the tangents.

    Args:
        fn: any function of arrays.
        *primals: the point.

    Returns:
        `(output, push)`; `push(*tangents)` returns the output tangent and does not evaluate `fn`
        again.
    """
    return _linearize(fn, primals)


@api_boundary
def _linearize(fn: Callable[..., Any], primals: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    problem = _Problem(fn, primals, {}, range(len(primals)), "linearize")
    linear = problem.linearize()

    @api_boundary
    def push(*tangents: Any) -> Any:
        """The output tangent."""
        leaves, treedef = _leaf_arrays(list(tangents), "tangents")
        if treedef != problem.treedef:
            pytree.same_structure(
                treedef, problem.treedef, what="linearize", names=("the tangents", "the primals")
            )
        given = [_cast_weak(t, p.type) for t, p in zip(leaves, problem.leaves, strict=True)]
        return pytree.unflatten(problem.traced.treedef, linear.apply(given))

    return pytree.unflatten(problem.traced.treedef, problem.traced.known_outputs()), push


# --- vmap ---


def _flat_axes(axes: Any, tree: Any, name: str) -> list[int | None]:
    """An axis for every leaf of `tree`; `axes` is a tree prefix of ints and None."""
    if axes is None or isinstance(axes, int):
        return [axes] * len(pytree.leaves(tree))
    if isinstance(axes, (tuple, list)):
        if not isinstance(tree, (tuple, list)) or len(axes) != len(tree):
            raise PytreeError(
                f"vmap: {name} is {axes!r}, which does not fit the structure it describes",
                loc=_loc.current(),
                rule=(
                    f"{name} is an int, None, or a container of the same structure with ints or "
                    f"None"
                ),
            )
        return [a for x, t in zip(axes, tree, strict=True) for a in _flat_axes(x, t, name)]
    if isinstance(axes, dict):
        if not isinstance(tree, dict) or set(axes) != set(tree):
            raise PytreeError(
                f"vmap: {name} has keys {sorted(map(str, axes))}, which do not fit the structure "
                f"it describes",
                loc=_loc.current(),
                rule=(
                    f"{name} is an int, None, or a container of the same structure with ints or "
                    f"None"
                ),
            )
        return [a for k in sorted(tree) for a in _flat_axes(axes[k], tree[k], name)]
    raise PytreeError(
        f"vmap: {name} holds {axes!r}", loc=_loc.current(), rule="an axis is an int or None"
    )


def vmap(fn: Callable[P, R], in_axes: Any = 0, out_axes: Any = 0) -> Callable[P, R]:
    """Maps a function of examples over batches, without a loop.

    Args:
        fn: a function of arrays.
        in_axes: which axis of each argument is the batch axis: an int, None (not batched), or
            containers of them as a prefix of the arguments' structure.
        out_axes: where the batch axis goes in the results, likewise.

    Raises:
        ShapeError: the batch axes have different sizes.
        AxisError: an axis does not exist.
    """
    return _make_vmap(fn, in_axes, out_axes)


def _make_vmap(fn: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    @api_boundary
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        in_axes_tuple = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        axes = _flat_axes(in_axes_tuple, args, "in_axes") + [0] * len(pytree.leaves(kwargs))
        leaves, treedef = _leaf_arrays((args, kwargs), "arguments")
        axes = _normal_axes(leaves, axes, treedef)
        size = _batch_size(leaves, axes, treedef, _name_of(fn))
        types = [
            x.type if a is None else x.type.with_shape(x.shape[:a] + x.shape[a + 1 :])
            for x, a in zip(leaves, axes, strict=True)
        ]

        def rebuild(tracers: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return pytree.unflatten(treedef, tracers)

        traced = Traced(fn, rebuild, types, None, "vmap")
        all_axes: list[int | None] = [None] * len(traced.captured) + axes
        outs, found = vmap_values(traced.graph, [*traced.captured, *leaves], all_axes, size)
        wanted = _flat_axes(out_axes, pytree.unflatten(traced.treedef, outs), "out_axes")
        moved = [
            _place_axis(x, a, w, size, _name_of(fn))
            for x, a, w in zip(outs, found, wanted, strict=True)
        ]
        return pytree.unflatten(traced.treedef, moved)

    return run


def _normal_axes(
    leaves: Sequence[Any], axes: Sequence[int | None], treedef: pytree.TreeDef
) -> list[int | None]:
    result: list[int | None] = []
    for k, (x, a) in enumerate(zip(leaves, axes, strict=True)):
        if a is not None and not -x.ndim <= a < x.ndim:
            from tessera.errors import AxisError

            raise AxisError(
                f"vmap: in_axes is {a} for {_argument_name(treedef, k)} of type {x.type}",
                loc=_loc.current(),
                rule=f"an axis of an array of rank {x.ndim} lies in [{-x.ndim}, {x.ndim})",
                fix="use None for arguments that are not batched",
            )
        result.append(None if a is None else a % x.ndim)
    return result


def _batch_size(
    leaves: Sequence[Any], axes: Sequence[int | None], treedef: pytree.TreeDef, name: str
) -> Any:
    sizes = [
        (k, x.shape[a]) for k, (x, a) in enumerate(zip(leaves, axes, strict=True)) if a is not None
    ]
    if not sizes:
        raise ShapeError(
            f"vmap: no argument of {name} is batched",
            loc=_loc.current(),
            rule="at least one entry of in_axes must be an int",
        )
    first = sizes[0]
    for k, size in sizes[1:]:
        if size != first[1]:
            raise ShapeError(
                f"vmap: {_argument_name(treedef, first[0])} has batch size {first[1]}, "
                f"{_argument_name(treedef, k)} has {size}",
                loc=_loc.current(),
                rule="all batch axes must have one size",
                fix="check in_axes; use None for arguments that are not batched",
            )
    return first[1]


def _place_axis(x: Any, axis: int | None, wanted: int | None, size: Any, name: str) -> Any:
    if wanted is None:
        if axis is not None:
            raise ShapeError(
                f"vmap: out_axes is None for a result of {name} that depends on the batch",
                loc=_loc.current(),
                rule="out_axes=None is for results that are equal for all examples",
            )
        return x
    rank = x.ndim + (axis is None)
    place = wanted % rank if -rank <= wanted < rank else wanted
    if axis is None:
        shape = (*x.shape[:place], size, *x.shape[place:])
        return broadcast(x, shape, tuple(k for k in range(rank) if k != place))
    return x if axis == place else move_axis(x, axis, place)


# --- looking at graphs ---


def make_graph(fn: Callable[..., Any]) -> Callable[..., Func]:
    """A function that returns the traced Graph of `fn` for given arguments, printable."""

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> Func:
        leaves, treedef = _leaf_arrays((args, kwargs), "arguments")
        traced = Traced(
            fn,
            lambda tracers: pytree.unflatten(treedef, tracers),
            [x.type for x in leaves],
            None,
            "jit",
            staging=True,
        )
        return traced.graph

    return run


__all__ = [
    "JitFunction",
    "compile",
    "grad",
    "jit",
    "jvp",
    "linearize",
    "make_graph",
    "value_and_grad",
    "vjp",
    "vmap",
]
