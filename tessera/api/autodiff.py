"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `linearize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from tessera import pytree
from tessera.api.leaves import (
    argument_name,
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    strong,
    wraps_other,
)
from tessera.api.refs import opened
from tessera.api.traced import Refs, Traced
from tessera.dtypes import Kind
from tessera.errors import CallError, DTypeError, GradError, ShapeError, api_boundary
from tessera.graph.array import Array
from tessera.graph.device import default_device, using
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.reshape import full
from tessera.graph.placement import common_device, device_of, moved
from tessera.graph.state import Cell, Scope, adopt, store
from tessera.graph.trace import Trace, active
from tessera.graph.transforms.differentiate import (
    Linearized,
    jvp_values,
    linearize_values,
    zeros_of,
)
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

P = ParamSpec("P")
T = TypeVar("T")


def select_args(
    fn: Callable[..., Any], args: tuple[Any, ...], argnums: int | Sequence[int], transform: str
) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    count = len(args)
    for n in numbers:
        if not -count <= n < count:
            plural = "" if count == 1 else "s"
            raise GradError(
                f"{transform}: argnums has {n}, but {name_of(fn)} is called with {count} "
                f"positional argument{plural}",
                loc=_loc.current(),
                rule="argnums are positions of positional arguments, counted from 0",
            )
    found = tuple([n % count for n in numbers])
    if len(set(found)) != len(found):
        raise GradError(
            f"{transform}: argnums={tuple(numbers)} names an argument twice",
            loc=_loc.current(),
            rule="argnums are distinct",
        )
    return found


class Problem:
    """A function prepared for differentiation with respect to some arguments.

    Args:
        fn: the function.
        args: its positional arguments.
        kwargs: its other arguments.
        argnums: which of the positional ones are differentiated.
        transform: the public name of the transform.
        holomorphic: whether they are complex and the derivative is with respect to these.

    Attributes:
        leaves: the leaves of the differentiated arguments.
        treedef: the structure of the tuple of these.
        traced: the function, whose inputs they are.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: Sequence[int],
        transform: str,
        holomorphic: bool = False,
    ) -> None:
        given_trees = tuple([args[n] for n in argnums])
        self.transform = transform
        self.name = name = argument_name(transform, fn, argnums)
        trees, filled = opened(given_trees, f"{transform}: {name_of(fn)}")
        leaves, self.treedef = leaf_arrays(trees, name)
        self._by_rules: set[Cell] = set()
        given = [x for x in pytree.leaves((args, kwargs)) if isinstance(x, Array)]
        device = common_device(transform, given, given)
        if device is not None:
            leaves = [moved(x, device) if isinstance(x, Array) else x for x in leaves]
        self.leaves = [strong(x) for x in leaves]
        for k, x in enumerate(self.leaves):
            if not is_inexact(x.dtype):
                raise GradError(
                    f"{name(self.treedef, k)} has dtype {x.dtype.full_name}, which has no "
                    f"derivative",
                    loc=_loc.current(),
                    rule="differentiated inputs are floating-point or complex numbers",
                    fix="convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`",
                )
            if holomorphic and x.dtype.kind is not Kind.COMPLEX:
                raise GradError(
                    f"{name(self.treedef, k)} has dtype {x.dtype.full_name}, with holomorphic=True",
                    loc=_loc.current(),
                    rule="a holomorphic function is one of complex numbers",
                    fix="convert it (`ts.astype(x, ts.complex64)`), or leave out holomorphic=True",
                )

        def rebuild(tracers: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full_args = list(args)
            found = filled(pytree.unflatten(self.treedef, tracers))
            for n, tree in zip(argnums, found, strict=True):
                full_args[n] = tree
            return tuple(full_args), kwargs

        types = [x.type for x in self.leaves]
        with using(default_device() if device is None else device):
            self.traced = Traced(
                fn,
                rebuild,
                types,
                self.leaves,
                transform,
                input_name=lambda k: name(self.treedef, k),
                refs=Refs.OUTPUTS,
            )

    def primals(self) -> list[Any]:
        """Values of all arguments of the Graph."""
        return [*self.traced.captured, *self.leaves]

    def linearize(self) -> Linearized:
        """The linear map at the point."""
        wrt = [False] * len(self.traced.captured) + [True] * len(self.leaves)
        graph, known = self.traced.graph, self.traced.trace.known
        return self._with_written(lambda: linearize_values(graph, self.primals(), wrt, known))

    def push(self, tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs of the Graph, and their tangents for tangents of the leaves; None is
        zero."""
        traced = self.traced
        given = [*[None] * len(traced.captured), *tangents]
        known = traced.trace.known
        return self._with_written(lambda: jvp_values(traced.graph, self.primals(), given, known))

    def _with_written(self, run: Callable[[], T]) -> T:
        """The result of a function that runs rules of the user, which find in refs what the
        function has written."""
        written = [ref for ref in self.traced.written if ref.cell not in self._by_rules]
        if not written:
            return run()
        with active(Trace(self.transform, self.traced.trace.function)) as trace:
            scope = trace.scope = Scope(trace, False, None)
            for ref in written:
                adopt(ref.cell, [self.traced.trace.lower(x) for x in ref.values])
            found = run()
            by_rules = scope.finish()
        for ref in by_rules:
            store(ref.cell, ref.values, ref.place)
            self._by_rules.add(ref.cell)
        return found

    def finish(self, contents: Sequence[Any]) -> None:
        """Writes the refs that the function has written, and no rule after it.

        Args:
            contents: the outputs of the Graph that are their contents.
        """
        self.traced.finish(contents, self._by_rules)

    def tangents(self, given: Sequence[Any]) -> list[Any]:
        """The user's tangents as leaves, checked against the primals."""
        names = leaf_name(self.transform, "the tangent")
        leaves, treedef = leaf_arrays(tuple(given), names)
        words = ("the tuple of tangents", "that of primals")
        check_structure(self.transform, treedef, self.treedef, words, "tangents")
        types = [x.type for x in self.leaves]
        check_types(
            leaves,
            types,
            lambda k: (f"{self.name(treedef, k)}: its tangent", "its primal"),
            "a tangent has the shape and the dtype of its primal",
        )
        return [cast_weak(t, type) for t, type in zip(leaves, types, strict=True)]

    def cotangents(self, linear: Linearized, cts: Sequence[Any]) -> Any:
        """Input cotangents as trees, one per differentiated argument."""
        # What is written to refs has no cotangent: their contents are constants.
        more = [None for ref in self.traced.written for _ in ref.values]
        found = linear.pull_back([*cts, *more])
        filled: list[Any] = []
        for ct, x in zip(found, self.leaves, strict=True):
            with using(device_of(x)):
                found_ct = zeros_of(x.type) if ct is None else ct
            here = isinstance(found_ct, Array) and isinstance(x, Array)
            filled.append(moved(found_ct, device_of(x)) if here else found_ct)
        return pytree.unflatten(self.treedef, filled)


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
        problem = Problem(fn, args, kwargs, numbers, transform, holomorphic)
        traced = problem.traced
        main, aux_tree = split_aux(traced, has_aux, fn, transform)
        main_leaves: list[int]
        main_leaves, main_treedef = pytree.flatten(main)
        found = [traced.types[k] for k in main_leaves]
        _check_scalar(name_of(fn), transform, found, has_aux, holomorphic)
        linear = problem.linearize()
        problem.finish(linear.outputs[len(traced.types) :])
        cts: list[Any] = [None] * len(traced.types)
        (k,) = main_leaves
        cts[k] = full((), 1, traced.types[k].dtype)
        grads = problem.cotangents(linear, cts)
        values = linear.outputs
        value = pytree.unflatten(main_treedef, [values[k]])
        aux = pytree.map_(values.__getitem__, aux_tree) if has_aux else None
        return combine(value, aux, grads[0] if isinstance(argnums, int) else tuple(grads))

    return run


def split_aux(traced: Traced, has_aux: bool, fn: Callable[..., Any], transform: str) -> Any:
    """The output and the auxiliary results, as trees of the leaves' positions."""
    tree: Any = pytree.unflatten(traced.treedef, range(len(traced.types)))
    if not has_aux:
        return tree, None
    if not isinstance(tree, tuple) or traced.treedef.num_children != 2:
        is_leaf = traced.treedef.is_leaf()
        shown = "one array" if is_leaf else pytree.show(traced.treedef)
        raise GradError(
            f"{transform}: with has_aux=True, {name_of(fn)} returns {shown}, which is no pair",
            loc=_loc.current(),
            rule="with has_aux=True the function returns `(value, aux)`",
            fix="return two results, or leave has_aux out",
        )
    return cast("tuple[Any, Any]", tree)


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
    problem = Problem(fn, primals, {}, range(len(primals)), "vjp")
    traced = problem.traced
    main, aux_tree = split_aux(traced, has_aux, fn, "vjp")
    main_leaves: list[int]
    main_leaves, out_treedef = pytree.flatten(main)
    types = [traced.types[k] for k in main_leaves]
    linear = problem.linearize()
    problem.finish(linear.outputs[len(traced.types) :])

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
        cts: list[Any] = [None] * len(traced.types)
        for k, ct, type in zip(main_leaves, leaves, types, strict=True):
            if is_inexact(type.dtype):
                cts[k] = cast_weak(ct, type)
        return tuple(problem.cotangents(linear.at(residuals), cts))

    pullback = pytree.Partial(pull, linear.residuals)
    values = linear.outputs
    out = pytree.unflatten(out_treedef, [values[k] for k in main_leaves])
    if not has_aux:
        return out, pullback
    return out, pullback, pytree.map_(values.__getitem__, aux_tree)


def check_types(
    leaves: Sequence[Any],
    types: Sequence[TensorType],
    names: Callable[[int], tuple[str, str]],
    rule: str,
) -> None:
    """Tangents or cotangents have the types of what they belong to; numbers may be of any dtype.

    Args:
        leaves: the arrays.
        types: the types.
        names: what messages call an array, and what it belongs to.
        rule: what messages say.
    """
    for k, (x, type) in enumerate(zip(leaves, types, strict=True)):
        if x.shape != type.shape or (x.dtype is not type.dtype and not x.type.weak):
            first, second = names(k)
            raise (DTypeError if x.shape == type.shape else ShapeError)(
                f"{first} is {x.type}, {second} {type.strong()}", loc=_loc.current(), rule=rule
            )


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
    problem = Problem(fn, tuple(primals), {}, range(len(primals)), "jvp")
    along = problem.tangents(tangents)
    main, aux = split_aux(problem.traced, has_aux, fn, "jvp")
    outs, touts = problem.push(along)
    count = len(problem.traced.types)
    problem.finish(outs[count:])
    filled = filled_tangents(outs[:count], touts[:count])
    found = tuple([pytree.map_(values.__getitem__, main) for values in (outs, filled)])
    return (*found, pytree.map_(outs.__getitem__, aux)) if has_aux else found


def filled_tangents(outs: Sequence[Any], touts: Sequence[Any]) -> list[Any]:
    """Tangents of outputs, with zeros for None."""
    filled: list[Any] = []
    for o, t in zip(outs, touts, strict=True):
        with using(device_of(o)):
            filled.append(zeros_of(o.type) if t is None else t)
    return filled


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
