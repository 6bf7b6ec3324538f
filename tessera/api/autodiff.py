"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `linearize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from tessera import pytree
from tessera.api.again import Again, OneCall
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    wraps_other,
)
from tessera.api.problem import (
    Point,
    Problem,
    check_types,
    filled_tangents,
    select_args,
    split_aux,
)
from tessera.dtypes import Kind
from tessera.errors import CallError, GradError, api_boundary
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.reshape import full
from tessera.graph.transforms.differentiate import Linearized, zeros_of
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

P = ParamSpec("P")


@api_boundary
def value_and_grad(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, tuple[Any, Any]]:
    """A function that returns the value of `fn` and its gradient.

    Args:
        fn: returns a real scalar array, or with `has_aux` a pair of it and auxiliary results.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns auxiliary results as well.
        holomorphic: whether `fn` is a holomorphic function of complex numbers; its derivative is
            then a complex one, and the result of `fn` is complex.

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
        holomorphic,
        "value_and_grad",
        lambda value, aux, grads: ((value, aux) if has_aux else value, grads),
    )


@api_boundary
def grad(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """A function that returns the gradient of `fn`.

    Args:
        fn: returns a real scalar array, or with `has_aux` a pair of it and auxiliary results.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns auxiliary results as well; then `(gradient, aux)` is returned.
        holomorphic: whether `fn` is a holomorphic function of complex numbers; its derivative is
            then a complex one, and the result of `fn` is complex.

    Raises:
        GradError: an integer input, or an output that is no real scalar.

    Example:
        >>> import tessera as ts
        >>> float(ts.grad(lambda x: x * x)(3.0))
        6.0
    """
    return _gradient(
        fn,
        argnums,
        has_aux,
        holomorphic,
        "grad",
        lambda value, aux, grads: (grads, aux) if has_aux else grads,
    )


def _gradient(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    holomorphic: bool,
    transform: str,
    combine: Callable[[Any, Any, Any], Any],
) -> Callable[..., Any]:
    check_callable(transform, fn, f"pass arguments to what it returns: `ts.{transform}(f)(x)`")

    @api_boundary
    @wraps_other(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = select_args(fn, args, argnums, transform)
        key = (numbers, isinstance(argnums, int), has_aux)
        problem = Problem(fn, args, kwargs, numbers, transform, holomorphic, key)
        traced = problem.traced
        if traced.end is not None:
            return traced.end(problem.leaves)
        main, aux_tree = split_aux(traced, has_aux, fn, transform)
        main_leaves: list[int]
        main_leaves, main_treedef = pytree.flatten(main)
        found = [traced.types[k] for k in main_leaves]
        _check_scalar(name_of(fn), transform, found, has_aux, holomorphic)
        linear = problem.linearize()
        problem.finish(linear.outputs[len(traced.types) :])
        (k,) = main_leaves
        count, dtype = len(traced.types), traced.types[k].dtype

        def ones() -> list[Any]:
            cts: list[Any] = [None] * count
            cts[k] = full((), 1, dtype)
            return cts

        def result(values: Sequence[Any], grads: Sequence[Any]) -> Any:
            value = pytree.unflatten(main_treedef, [values[k]])
            aux = pytree.map_(values.__getitem__, aux_tree) if has_aux else None
            return combine(value, aux, grads[0] if isinstance(argnums, int) else tuple(grads))

        if traced.walk is not None:
            graph, treedef, inputs = traced.graph, problem.treedef, len(problem.leaves)

            def compute(primals: list[Any]) -> list[Any]:
                point = Point.at(graph, primals, inputs)
                linear = point.linearize()
                return [*linear.outputs, *point.pull(linear, ones())]

            def trees(found: Sequence[Any], _: Sequence[Any]) -> Any:
                return result(found[:count], pytree.unflatten(treedef, found[count:]))

            Again(traced, compute, trees)
        return result(linear.outputs, problem.cotangents(linear, ones()))

    return run


def _check_scalar(
    name: str, transform: str, types: Sequence[TensorType], has_aux: bool, holomorphic: bool
) -> None:
    subject = "the first result is" if has_aux else "the function returns"
    rule = f"{subject} one real number: a floating-point array without dims"
    if holomorphic:
        rule = f"with holomorphic=True {subject} one complex number: an array without dims"
    if len(types) != 1:
        several = f"{len(types)} arrays" if types else "no array"
        raise GradError(
            f"{transform}: {name} returns {several}" + (" as its first result" if has_aux else ""),
            loc=_loc.current(),
            rule=rule,
            fix="return the sum of all terms; for further results use has_aux=True"
            if types
            else "return the value to differentiate",
        )
    (type,) = types
    wanted = Kind.COMPLEX if holomorphic else Kind.FLOAT
    fixes = {
        Kind.FLOAT: "leave out holomorphic=True",
        Kind.COMPLEX: "return a real number made of it, such as `ts.abs(z)` or `ts.real(z)`; of a "
        "holomorphic function take `ts.grad(f, holomorphic=True)`",
        wanted: "reduce it, as with `ts.sum` or `ts.mean`; or use `ts.vjp`",
    }
    if type.shape or type.dtype.kind is not wanted:
        raise GradError(
            f"{transform}: {name} returns {type.strong()}",
            loc=_loc.current(),
            rule=rule,
            fix=fixes.get(type.dtype.kind, "integers and bools have no derivative; return a float"),
        )


@api_boundary
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function and its pullback.

    Args:
        fn: any function of arrays.
        *primals: the point.
        has_aux: whether `fn` returns a pair of the output and auxiliary results.

    Returns:
        `(output, pullback)` or `(output, pullback, aux)`; `pullback(cotangent)` returns a tuple,
        one per primal. The pullback is a node of trees (`ts.pytree.Partial`), whose leaves are the
        arrays that it keeps.

    Example:
        >>> import tessera as ts
        >>> y, pullback = ts.vjp(lambda x: x * x, ts.asarray([1.0, 2.0]))
        >>> pullback(ts.asarray([1.0, 10.0]))
        (Array([ 2., 40.], dtype=float32),)
    """
    key = (len(primals), has_aux)
    problem = Problem(fn, primals, {}, range(len(primals)), "vjp", key=key)
    traced, walk = problem.traced, problem.traced.walk
    if traced.end is not None:
        return traced.end(problem.leaves)
    main, aux_tree = split_aux(traced, has_aux, fn, "vjp")
    main_leaves: list[int]
    main_leaves, out_treedef = pytree.flatten(main)
    types, count = [traced.types[k] for k in main_leaves], len(traced.types)
    linear = problem.linearize()
    problem.finish(linear.outputs[count:])
    if walk is None:
        pulled = functools.partial(_pulled, problem, linear)
    else:
        pulled = _Pullback(linear, problem.treedef, [x.type for x in problem.leaves])

    @api_boundary
    def pull(residuals: Sequence[Any], cotangent: Any) -> tuple[Any, ...]:
        names = leaf_name("vjp", "the cotangent")
        leaves, treedef = leaf_arrays(cotangent, names)
        check_structure("vjp", treedef, out_treedef, ("the cotangent", "the output"), "cotangent")
        check_types(
            leaves,
            types,
            lambda k: (names(treedef, k), "the output"),
            "a cotangent has the shape and the dtype of the output",
        )
        cts: list[Any] = [None] * count
        for k, ct, type in zip(main_leaves, leaves, types, strict=True):
            if is_inexact(type.dtype):
                cts[k] = cast_weak(ct, type)
        return tuple(pulled(residuals, cts))

    def result(values: Sequence[Any], residuals: Sequence[Any]) -> Any:
        pullback = pytree.Partial(pull, list(residuals))
        out = pytree.unflatten(out_treedef, [values[k] for k in main_leaves])
        if not has_aux:
            return out, pullback
        return out, pullback, pytree.map_(values.__getitem__, aux_tree)

    if walk is not None:
        graph, inputs = traced.graph, len(problem.leaves)
        # Residuals that are operands are not made: who gave them has them.
        places = {id(x): k for k, x in enumerate(walk.operands(problem.leaves))}
        origins = [places.get(id(x)) for x in linear.residuals]

        def compute(arrays: list[Any]) -> list[Any]:
            found = Point.at(graph, arrays, inputs).linearize()
            own = [x for x, k in zip(found.residuals, origins, strict=True) if k is None]
            return [*found.outputs, *own]

        def trees(made: Sequence[Any], operands: Sequence[Any]) -> Any:
            own = iter(made[count:])
            return result(made[:count], [next(own) if k is None else operands[k] for k in origins])

        Again(traced, compute, trees)
    return result(linear.outputs, linear.residuals)


def _pulled(
    problem: Problem, linear: Linearized, residuals: Sequence[Any], cts: Sequence[Any]
) -> Any:
    """Input cotangents as trees, one per primal, for cotangents of the outputs (None is zero)."""
    return problem.cotangents(linear.at(residuals), cts)


class _Pullback:
    """The same for a function that is followed, whose pullback may be one native call.

    Args:
        linear: the linear map at some point.
        treedef: the structure of the tuple of primals.
        types: of their leaves.
    """

    def __init__(
        self, linear: Linearized, treedef: pytree.TreeDef, types: Sequence[TensorType]
    ) -> None:
        self._linear = Linearized([], linear.func, [], linear.nonzero)
        self._treedef = treedef
        self._types = types
        # By which outputs have a cotangent.
        self._calls: dict[tuple[bool, ...], OneCall] = {}

    def __call__(self, residuals: Sequence[Any], cts: Sequence[Any]) -> Any:
        given = tuple([ct is not None for ct in cts])
        call = self._calls.get(given)
        if call is None:
            call = self._calls[given] = OneCall(self._for(given))
        found = call([*residuals, *[ct for ct in cts if ct is not None]])
        return pytree.unflatten(self._treedef, found)

    def _for(self, given: Sequence[bool]) -> Callable[..., tuple[Any, ...]]:
        linear, types = self._linear, self._types

        def compute(*arrays: Any) -> tuple[Any, ...]:
            count = len(arrays) - sum(given)
            cts = iter(arrays[count:])
            pulled = linear.at(arrays[:count]).pull_back([next(cts) if x else None for x in given])
            pairs = zip(types, pulled, strict=True)
            return tuple([zeros_of(type) if ct is None else ct for type, ct in pairs])

        return compute


@api_boundary
def jvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """The value of a function and its derivative along a direction.

    Args:
        fn: any function of arrays.
        primals: the point, one entry per argument.
        tangents: the direction, of the same structure, shapes and dtypes.
        has_aux: whether `fn` returns a pair of the output and auxiliary results.

    Returns:
        `(output, output tangent)` or `(output, output tangent, aux)`.
    """
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CallError(
                f"jvp: {what} is of type {type(given).__name__}",
                loc=_loc.current(),
                rule=f"{what} is a tuple with one entry for each argument",
                fix="for one argument pass a tuple of one, as in `(x,)`",
            )
    problem = Problem(
        fn, tuple(primals), {}, range(len(primals)), "jvp", key=(len(primals), has_aux)
    )
    along = problem.tangents(tangents)
    traced = problem.traced
    if traced.end is not None:
        return traced.end([*problem.leaves, *along])
    main, aux = split_aux(traced, has_aux, fn, "jvp")
    outs, touts = problem.push(along)
    count = len(traced.types)
    problem.finish(outs[count:])

    def result(outs: Sequence[Any], filled: Sequence[Any]) -> Any:
        found = tuple([pytree.map_(values.__getitem__, main) for values in (outs, filled)])
        return (*found, pytree.map_(outs.__getitem__, aux)) if has_aux else found

    if traced.walk is not None:
        graph, inputs = traced.graph, len(problem.leaves)

        def compute(arrays: list[Any]) -> list[Any]:
            primals, along = arrays[: len(graph.args)], arrays[len(graph.args) :]
            outs, touts = Point.at(graph, primals, inputs).push(along)
            return [*outs, *filled_tangents(outs, touts)]

        Again(traced, compute, lambda made, _: result(made[:count], made[count:]))
    return result(outs, filled_tangents(outs[:count], touts[:count]))


@api_boundary
def linearize(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of a function and its derivative as a linear function of the tangents.

    Args:
        fn: any function of arrays.
        *primals: the point.
        has_aux: whether `fn` returns a pair of the output and auxiliary results.

    Returns:
        `(output, push)` or `(output, push, aux)`; `push(*tangents)` returns the output tangent and
        does not evaluate `fn` again. It is a node of trees, as the pullback of `vjp`.
    """
    problem = Problem(fn, primals, {}, range(len(primals)), "linearize")
    main, aux = split_aux(problem.traced, has_aux, fn, "linearize")
    linear = problem.linearize()
    problem.finish(linear.outputs[len(problem.traced.types) :])

    @api_boundary
    def along(residuals: Sequence[Any], *tangents: Any) -> Any:
        found = linear.at(residuals).apply(problem.tangents(tangents))
        return pytree.map_(found.__getitem__, main)

    push = pytree.Partial(along, linear.residuals)
    values = linear.outputs
    out = pytree.map_(values.__getitem__, main)
    return (out, push, pytree.map_(values.__getitem__, aux)) if has_aux else (out, push)
