"""Functions prepared for differentiation: what all transforms that differentiate have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tessera import pytree
from tessera.api.again import walk_for
from tessera.api.leaves import (
    argument_name,
    cast_weak,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    strong,
)
from tessera.api.refs import opened
from tessera.api.traced import Refs, Traced
from tessera.dtypes import Kind
from tessera.errors import DTypeError, GradError, ShapeError
from tessera.graph.array import Array
from tessera.graph.device import default_device, using
from tessera.graph.ops.base import is_inexact
from tessera.graph.placement import common_device, device_of, moved
from tessera.graph.state import Cell, Scope, adopt, store
from tessera.graph.trace import Trace, active
from tessera.graph.transforms.differentiate import (
    Linearized,
    jvp_values,
    linearize_values,
    zeros_of,
)
from tessera.graph.transforms.evaluate import values_of
from tessera.ir import loc as _loc
from tessera.ir.core import Func, Value
from tessera.ir.types import TensorType

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
        key: what tells apart what is made of a function that is followed; None where it is traced
            anew.

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
        key: Hashable = None,
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

        treedef = self.treedef

        def rebuild(tracers: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full_args = list(args)
            found = filled(pytree.unflatten(treedef, tracers))
            for n, tree in zip(argnums, found, strict=True):
                full_args[n] = tree
            return tuple(full_args), kwargs

        types = [x.type for x in self.leaves]
        walk = None
        if key is not None and device is None:
            key = (transform, key, holomorphic, self.treedef)
            walk = walk_for(fn, key, self.leaves, types)
        with using(default_device() if device is None else device):
            self.traced = Traced(
                fn,
                rebuild,
                types,
                self.leaves,
                transform,
                input_name=lambda k: name(treedef, k),
                refs=Refs.OUTPUTS,
                walk=walk,
            )

    @property
    def point(self) -> Point:
        """The Graph with its arguments."""
        traced = self.traced
        primals = [*traced.captured, *self.leaves]
        return Point(traced.graph, primals, len(self.leaves), traced.trace.known)

    def linearize(self) -> Linearized:
        """See `Point`."""
        return self._with_written(self.point.linearize)

    def push(self, tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See `Point`."""
        return self._with_written(lambda: self.point.push(tangents))

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

    def pull(self, linear: Linearized, cts: Sequence[Any]) -> list[Any]:
        """See `Point`."""
        return self.point.pull(linear, cts)

    def cotangents(self, linear: Linearized, cts: Sequence[Any]) -> Any:
        """Input cotangents as trees, one per differentiated argument."""
        return pytree.unflatten(self.treedef, self.pull(linear, cts))


@dataclass(frozen=True)
class Point:
    """A Graph with its arguments.

    Attributes:
        graph: the Graph.
        primals: the arguments.
        count: how many of them, the last ones, are differentiated.
        known: values of the Graph that are computed already.
    """

    graph: Func
    primals: list[Any]
    count: int
    known: Mapping[Value, Any]

    @staticmethod
    def at(graph: Func, primals: list[Any], count: int) -> Point:
        """One whose values are computed first."""
        return Point(graph, primals, count, values_of(graph, primals))

    @property
    def leaves(self) -> list[Any]:
        """The arguments that are differentiated."""
        return self.primals[len(self.primals) - self.count :]

    @property
    def outputs(self) -> list[Any]:
        """The outputs of the Graph."""
        return [self.known[v] for v in self.graph.outputs]

    def linearize(self) -> Linearized:
        """The linear map here."""
        wrt = [False] * (len(self.primals) - self.count) + [True] * self.count
        return linearize_values(self.graph, self.primals, wrt, self.known)

    def push(self, tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs of the Graph, and their tangents for tangents of the leaves; None is
        zero."""
        given = [*[None] * (len(self.primals) - self.count), *tangents]
        return jvp_values(self.graph, self.primals, given, self.known)

    def pull(self, linear: Linearized, cts: Sequence[Any]) -> list[Any]:
        """The cotangents of the leaves.

        Args:
            linear: the linear map.
            cts: the cotangents of the first outputs; None is zero. What is written to refs, by
                further outputs, has none: their contents are constants.
        """
        more = [None] * (len(self.graph.outputs) - len(cts))
        filled: list[Any] = []
        for ct, x in zip(linear.pull_back([*cts, *more]), self.leaves, strict=True):
            with using(device_of(x)):
                found = zeros_of(x.type) if ct is None else ct
            here = isinstance(found, Array) and isinstance(x, Array)
            filled.append(moved(found, device_of(x)) if here else found)
        return filled


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


def filled_tangents(outs: Sequence[Any], touts: Sequence[Any]) -> list[Any]:
    """Tangents of outputs, with zeros for None."""
    filled: list[Any] = []
    for o, t in zip(outs, touts, strict=True):
        with using(device_of(o)):
            filled.append(zeros_of(o.type) if t is None else t)
    return filled
