"""Matrices of derivatives: `jacfwd`, `jacrev`, `hessian`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from tessera import pytree
from tessera.api.again import Again
from tessera.api.leaves import check_callable, name_of, wraps_other
from tessera.api.problem import Point, Problem, select_args, split_aux
from tessera.api.vectorize import vmap
from tessera.dtypes import Kind
from tessera.errors import GradError, api_boundary
from tessera.graph.device import using
from tessera.graph.namespace.creation import eye
from tessera.graph.namespace.manipulation import reshape
from tessera.graph.ops.base import is_inexact
from tessera.graph.placement import device_of, device_of_all
from tessera.graph.transforms.differentiate import zeros_of
from tessera.ir import loc as _loc
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType

P = ParamSpec("P")


@api_boundary
def jacfwd(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """A function that returns the Jacobian of `fn`, column by column: by forward mode.

    Its cost grows with the number of inputs; `jacrev` costs by the number of outputs.

    Args:
        fn: a function of arrays.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns a pair of the output and auxiliary results; then
            `(jacobian, aux)` is returned.
        holomorphic: whether `fn` is a holomorphic function of complex numbers.

    Returns:
        A function with the parameters of `fn`. Its result has the structure of the output; in the
        place of each array is the structure of the argument (a tuple of these for several), with
        arrays of the shape of the output followed by that of the input.

    Raises:
        GradError: an input that has no derivative, or is complex without `holomorphic`.

    Example:
        >>> import tessera as ts
        >>> ts.jacfwd(lambda x: x**2)(ts.asarray([1.0, 2.0]))
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """

    def check(problem: Problem, outputs: Sequence[int]) -> None:
        for k, x in enumerate(problem.leaves):
            if x.dtype.kind is Kind.COMPLEX and not holomorphic:
                raise _complex_error("jacfwd", f"{problem.name(problem.treedef, k)} has", x.type)

    def columns(point: Problem | Point, outputs: Sequence[int]) -> list[list[Any]]:
        by_input: list[list[Any]] = []
        for k, x in enumerate(point.leaves):

            def along(t: Any, k: int = k) -> list[Any]:
                tangents: list[Any] = [None] * len(point.leaves)
                tangents[k] = t
                outs, touts = point.push(tangents)
                return [
                    zeros_of(outs[o].type) if touts[o] is None else touts[o] for o in outputs
                ]

            with using(device_of(x)):
                found = vmap(along, out_axes=-1)(_basis(x.type))
            shape = x.shape
            by_input.append([reshape(y, (*y.shape[:-1], *shape)) for y in found])
        return [[column[k] for column in by_input] for k in range(len(outputs))]

    return _jacobian(fn, argnums, has_aux, holomorphic, "jacfwd", check, columns)


@api_boundary
def jacrev(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """A function that returns the Jacobian of `fn`, row by row: by reverse mode.

    Its cost grows with the number of outputs; `jacfwd` costs by the number of inputs.

    Args:
        fn: a function of arrays.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns a pair of the output and auxiliary results; then
            `(jacobian, aux)` is returned.
        holomorphic: whether `fn` is a holomorphic function of complex numbers.

    Returns:
        A function with the parameters of `fn`, whose result is as that of `jacfwd`.

    Raises:
        GradError: an input that has no derivative, or an output that has none or is complex
            without `holomorphic`.

    Example:
        >>> import tessera as ts
        >>> ts.jacrev(lambda x: ts.sum(x**2))(ts.asarray([1.0, 2.0]))
        Array([2., 4.], dtype=float32)
    """

    def check(problem: Problem, outputs: Sequence[int]) -> None:
        for o in outputs:
            type = problem.traced.types[o]
            if not is_inexact(type.dtype):
                raise GradError(
                    f"jacrev: a result of {name_of(fn)} is {type.strong()}, which has no "
                    f"derivative",
                    loc=_loc.current(),
                    rule="results of reverse mode are floating-point or complex numbers",
                    fix="leave it out of the result, or return it by has_aux=True",
                )
            if type.dtype.kind is Kind.COMPLEX and not holomorphic:
                raise _complex_error("jacrev", f"a result of {name_of(fn)} has", type)

    def rows(point: Problem | Point, outputs: Sequence[int]) -> list[list[Any]]:
        linear = point.linearize()
        found: list[list[Any]] = []
        for o in outputs:
            type = linear.outputs[o].type.with_policy(None).strong()

            def back(ct: Any, o: int = o) -> list[Any]:
                return point.pull(linear, [*[None] * o, ct])

            with using(device_of_all(point.leaves)):
                parts = vmap(back)(_basis(type))
            found.append([reshape(y, (*type.shape, *y.shape[1:])) for y in parts])
        return found

    return _jacobian(fn, argnums, has_aux, holomorphic, "jacrev", check, rows)


@api_boundary
def hessian(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, Any]:
    """A function that returns the second derivatives of `fn`: `jacfwd(jacrev(fn))`.

    Args:
        fn: a function of arrays.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fn` returns a pair of the output and auxiliary results; then
            `(hessian, aux)` is returned.
        holomorphic: whether `fn` is a holomorphic function of complex numbers.

    Returns:
        A function with the parameters of `fn`. Its result has the structure of the output, in it
        twice that of the argument, and arrays of the shapes of all three.

    Example:
        >>> import tessera as ts
        >>> ts.hessian(lambda x: x[0] * x[1] ** 2)(ts.asarray([1.0, 3.0]))
        Array([[0., 6.],
               [6., 2.]], dtype=float32)
    """
    check_callable("hessian", fn, "pass arguments to what it returns: `ts.hessian(f)(x)`")
    inner = jacrev(fn, argnums, has_aux, holomorphic)
    return jacfwd(inner, argnums, has_aux, holomorphic)


def _jacobian(
    fn: Callable[P, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    holomorphic: bool,
    transform: str,
    check: Callable[[Problem, Sequence[int]], None],
    blocks: Callable[[Problem | Point, Sequence[int]], list[list[Any]]],
) -> Callable[P, Any]:
    """What `jacfwd` and `jacrev` have in common.

    Args:
        fn: the function.
        argnums: see there.
        has_aux: see there.
        holomorphic: see there.
        transform: the public name.
        check: fails for inputs, and outputs (whose positions it is told), without a derivative.
        blocks: one array for each output, and each leaf of the input.
    """
    check_callable(transform, fn, f"pass arguments to what it returns: `ts.{transform}(f)(x)`")

    @api_boundary
    @wraps_other(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        numbers = select_args(fn, args, argnums, transform)
        key = (numbers, isinstance(argnums, int), has_aux)
        problem = Problem(fn, args, kwargs, numbers, transform, holomorphic, key)
        traced, treedef = problem.traced, problem.treedef
        if traced.end is not None:
            return traced.end(problem.leaves)
        main, aux = split_aux(traced, has_aux, fn, transform)
        outputs, out_treedef = pytree.flatten(main)
        inputs, count = len(problem.leaves), len(traced.types)

        def result(values: Sequence[Any], found: Sequence[Any]) -> Any:
            inner: list[Any] = []
            for k in range(len(outputs)):
                row = pytree.unflatten(treedef, found[k * inputs : (k + 1) * inputs])
                inner.append(row[0] if isinstance(argnums, int) else tuple(row))
            whole = pytree.unflatten(out_treedef, inner)
            return (whole, pytree.map_(values.__getitem__, aux)) if has_aux else whole

        check(problem, outputs)
        found = [x for row in blocks(problem, outputs) for x in row]
        problem.finish([traced.trace.lower(x) for ref in traced.written for x in ref.values])
        if traced.walk is not None:
            graph = traced.graph

            def compute(primals: list[Any]) -> list[Any]:
                point = Point.at(graph, primals, inputs)
                return [*point.outputs, *[x for row in blocks(point, outputs) for x in row]]

            Again(traced, compute, lambda made, _: result(made[:count], made[count:]))
        return result(traced.known_outputs(), found)

    return run


def _basis(type: TensorType) -> Any:
    """All arrays of a type with a one and zeros, along a first axis."""
    size: Dim = 1
    for dim in type.shape:
        size = size * dim
    return reshape(eye(size, dtype=type.dtype), (size, *type.shape))  # pyright: ignore[reportArgumentType]


def _complex_error(transform: str, what: str, type: TensorType) -> GradError:
    return GradError(
        f"{transform}: {what.removeprefix(f'{transform}: ')} dtype {type.dtype.full_name}",
        loc=_loc.current(),
        rule="the derivative of a complex number is no complex number, unless the function is "
        "holomorphic",
        fix="pass holomorphic=True if it is; else take real and imaginary parts apart",
    )
