"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `linearize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from tessera import pytree
from tessera.api.leaves import cast_weak, leaf_arrays, name_of, strong
from tessera.api.traced import Traced
from tessera.errors import GradError, ShapeError, api_boundary
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.reshape import full
from tessera.graph.transforms.differentiate import (
    Linearized,
    jvp_values,
    linearize_values,
    zeros_of,
)
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

P = ParamSpec("P")


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
        self.leaves, self.treedef = leaf_arrays(trees, "arguments")
        self.leaves = [strong(x) for x in self.leaves]
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
        name = name_of(fn)
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
        leaves, treedef = leaf_arrays(cotangent, "cotangent")
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
            cast_weak(ct, t) if is_inexact(t.dtype) else None
            for ct, t in zip(leaves, traced.types[:count], strict=True)
        ]
        cts += [None] * (len(traced.types) - count)
        return tuple(problem.cotangents(linear, cts))

    return (out, pullback, aux) if has_aux else (out, pullback)


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
    leaves, treedef = leaf_arrays(list(tangents), "tangents")
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
    given = [cast_weak(t, p.type) for t, p in zip(leaves, problem.leaves, strict=True)]
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
        leaves, treedef = leaf_arrays(list(tangents), "tangents")
        if treedef != problem.treedef:
            pytree.same_structure(
                treedef, problem.treedef, what="linearize", names=("the tangents", "the primals")
            )
        given = [cast_weak(t, p.type) for t, p in zip(leaves, problem.leaves, strict=True)]
        return pytree.unflatten(problem.traced.treedef, linear.apply(given))

    return pytree.unflatten(problem.traced.treedef, problem.traced.known_outputs()), push
