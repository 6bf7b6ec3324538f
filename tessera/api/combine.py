"""Arrays combined by an associative function of the user: `associative_scan`, `reduce`.

Both work by halves: a few whole arrays are combined at a time, so the function is called about
log2(n) times with arrays, and not n times with elements. All of it is ops that exist, so it has
derivatives in both modes and batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera import pytree
from tessera.api.leaves import (
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    strong,
)
from tessera.api.regions import number, result_text
from tessera.api.traced import Traced
from tessera.api.vectorize import vmap
from tessera.errors import AxisError, CallError, DTypeError, ShapeError, api_boundary
from tessera.graph.device import using
from tessera.graph.ops.arithmetic import Add, Max, Min, Mul, add, maximum, minimum, mul
from tessera.graph.ops.elementwise import cast
from tessera.graph.ops.rearrange import broadcast, concatenate, reshape, slice_axis, transpose
from tessera.graph.ops.rearrange import reverse as reversed_
from tessera.graph.ops.reduce import max_, min_, prod_, sum_
from tessera.graph.placement import device_of
from tessera.graph.state import running_rule
from tessera.ir import loc
from tessera.ir.core import Op
from tessera.ir.intexpr import prod as product
from tessera.ir.types import TensorType


@api_boundary
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes of an array combined by an associative function.

    Element i of the result is `fn(...fn(fn(x[0], x[1]), x[2])..., x[i])`. As `fn` is associative,
    pairs can be combined first: neighbours are, the scan of these pairs gives every second element,
    and one more call of `fn` the others. The work is about twice that of a loop, in 2 log2(n)
    steps, each of which is an operation on whole arrays (Ladner and Fischer, "Parallel prefix
    computation", 1980; Blelloch, "Prefix sums and their applications", 1990).

    Args:
        fn: combines two containers like `elems`, of slices along the axis; it is called with many
            at a time, so it must treat the axis as a batch. It must be associative.
        elems: an array, or a container of arrays, of the same size along the axis.
        reverse: whether to start from the end.
        axis: the axis along which prefixes are taken.

    Returns:
        A container like `elems`.

    Raises:
        ShapeError: sizes along the axis differ, or `fn` changes a shape.
        AxisError: there is no such axis.
        DTypeError, PytreeError: `fn` changes a dtype, or the structure.

    Example:
        >>> import tessera as ts
        >>> ts.associative_scan(ts.add, ts.asarray([1, 2, 3, 4]))
        Array([ 1,  3,  6, 10], dtype=int64)
    """
    name = "associative_scan"
    check_callable(name, fn)
    leaves, treedef = leaf_arrays(elems, leaf_name(name, "elems"))
    if not leaves:
        raise CallError(
            f"{name}: elems has no arrays", loc=loc.current(), rule="one or more are combined"
        )
    leaves = [strong(x) for x in leaves]
    axes = _axes(name, leaves, treedef, axis)

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        with running_rule(f"{name}: {name_of(fn)}"):
            result = fn(pytree.unflatten(treedef, a), pytree.unflatten(treedef, b))
        return _checked(name, fn, result, treedef, a)

    if reverse:
        leaves = [reversed_(x, (k,)) for x, k in zip(leaves, axes, strict=True)]
    found = _prefixes(combine, leaves, axes)
    if reverse:
        found = [reversed_(x, (k,)) for x, k in zip(found, axes, strict=True)]
    return pytree.unflatten(treedef, found)


def _axes(name: str, leaves: Sequence[Any], treedef: pytree.TreeDef, axis: int) -> list[int]:
    """The axis of each array, not negative."""
    result: list[int] = []
    paths = pytree.paths(treedef)
    for x, path in zip(leaves, paths, strict=True):
        place = f" at `{path}`" if path else ""
        if not -x.ndim <= axis < x.ndim:
            raise AxisError(
                f"{name}: axis {axis} of elems{place}, which is {x.type}",
                loc=loc.current(),
                rule=f"an axis of this array is one of {-x.ndim} to {x.ndim - 1}"
                if x.ndim
                else "an array without dims has no axis",
            )
        result.append(axis % x.ndim)
        size, first = x.shape[result[-1]], leaves[0].shape[result[0]]
        if not isinstance(size, int) or size != first:
            raise ShapeError(
                f"{name}: elems{place} is {x.type}, with a size of {size} along axis {axis}",
                loc=loc.current(),
                rule=f"all have the same known size along the axis; the first has {first}",
            )
    return result


def _checked(
    name: str, fn: Callable[..., Any], result: Any, treedef: pytree.TreeDef, like: Sequence[Any]
) -> list[Any]:
    """The leaves of what a user's function returned, which are of the types of others."""
    word = result_text(name, fn).removeprefix(f"{name}: ")
    check_structure(name, pytree.structure(result), treedef, (word, "its operands"), "operand")
    found, _ = leaf_arrays(result, leaf_name(name, word))
    paths = pytree.paths(treedef)
    for k, (x, y) in enumerate(zip(found, like, strict=True)):
        if x.type.weak and x.shape == y.shape:
            found[k] = x = cast(x, y.dtype)
        if x.type.strong() != y.type.strong():
            place = f" at `{paths[k]}`" if paths[k] else ""
            raise (DTypeError if x.shape == y.shape else ShapeError)(
                f"{name}: {word}{place} is {x.type.strong()} for operands of type "
                f"{y.type.strong()}",
                loc=loc.current(),
                rule="it has the shape and the dtype of what it combines",
            )
    return found


def _prefixes(
    combine: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    xs: Sequence[Any],
    axes: Sequence[int],
) -> list[Any]:
    """Combined prefixes along the axes."""
    count = xs[0].shape[axes[0]]
    if count < 2:
        return list(xs)

    def cut(items: Sequence[Any], start: int, stop: int, stride: int = 1) -> list[Any]:
        return [
            slice_axis(x, k, start, max(stop, start), stride)
            for x, k in zip(items, axes, strict=True)
        ]

    even, odd = cut(xs, 0, count, 2), cut(xs, 1, count, 2)
    half = count // 2
    # Prefixes that end with the odd elements: those of pairs.
    ends = _prefixes(combine, combine(cut(even, 0, half), odd), axes)
    inner = (count - 1) // 2
    starts = cut(even, 0, 1)
    if inner:
        more = combine(cut(ends, 0, inner), cut(even, 1, inner + 1))
        starts = [
            concatenate([a, b], k) for a, b, k in zip(starts, more, axes, strict=True)
        ]
    return [_interleaved(a, b, k) for a, b, k in zip(starts, ends, axes, strict=True)]


def _interleaved(a: Any, b: Any, axis: int) -> Any:
    """Slices of two arrays in turn; the first may have one more."""
    count = b.shape[axis]
    last = slice_axis(a, axis, count, a.shape[axis]) if a.shape[axis] > count else None
    head = slice_axis(a, axis, 0, count)
    shape = (*b.shape[: axis + 1], 1, *b.shape[axis + 1 :])
    both = concatenate([reshape(head, shape), reshape(b, shape)], axis + 1)
    mixed = reshape(both, (*b.shape[:axis], 2 * count, *b.shape[axis + 1 :]))
    return mixed if last is None else concatenate([mixed, last], axis)


@api_boundary
def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
) -> Any:
    """Elements combined along axes by a function of the user.

    Args:
        operands: an array, or a container of arrays of one shape.
        init_values: for each array the neutral element of `computation`, a scalar.
        computation: combines two containers like `init_values`, of scalars. It must be associative
            and commutative, for the order is not defined.
        dimensions: the axes to combine along, which the results do not have.

    Returns:
        A container like `operands`. Where an axis has no elements, `init_values`.

    Raises:
        ShapeError: shapes differ, or an initial value is no scalar.
        AxisError: there is no such axis, or one is named twice.
        DTypeError, PytreeError: dtypes, or structures, of operands, initial values and results of
            `computation` differ.

    Example:
        >>> import tessera as ts
        >>> x = ts.asarray([[3.0, 4.0], [0.0, 2.0]])
        >>> ts.reduce(x, 0.0, lambda a, b: ts.hypot(a, b), (1,))
        Array([5., 2.], dtype=float32)
    """
    check_callable("reduce", computation)
    leaves, treedef = leaf_arrays(operands, leaf_name("reduce", "operands"))
    inits, init_tree = leaf_arrays(init_values, leaf_name("reduce", "init_values"))
    check_structure("reduce", init_tree, treedef, ("init_values", "operands"), "operand")
    if not leaves:
        raise CallError(
            "reduce: operands has no arrays", loc=loc.current(), rule="one or more are combined"
        )
    leaves = [strong(x) for x in leaves]
    with using(device_of(leaves[0])):
        inits = [number(v, x.type) for v, x in zip(inits, leaves, strict=True)]
    axes = _check_operands(leaves, inits, treedef, dimensions)
    shape = leaves[0].shape
    kept = [k for k in range(len(shape)) if k not in axes]
    count = product([shape[k] for k in axes])
    rest = tuple([shape[k] for k in kept])

    def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        half = len(values) // 2
        pair = [pytree.unflatten(treedef, v) for v in (values[:half], values[half:])]
        return tuple(pair), {}

    scalars = [TensorType((), x.dtype) for x in leaves]

    @functools.wraps(computation)
    def checked(a: Any, b: Any) -> Any:
        return _checked("reduce", computation, computation(a, b), treedef, pytree.leaves(a))

    traced = Traced(checked, rebuild, [*scalars, *scalars], None, "reduce", staging=True)
    monoid = _monoid(traced)
    if monoid is not None and count != 0:
        pair, total = monoid
        found = pair(broadcast(inits[0], rest, ()), total(leaves[0], tuple(axes)))
        return pytree.unflatten(treedef, [found])
    rows = [reshape(transpose(x, (*axes, *kept)), (count, *rest)) for x in leaves]
    batched = computation
    for _ in range(1 + len(rest)):
        batched = vmap(batched)

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        found = batched(pytree.unflatten(treedef, a), pytree.unflatten(treedef, b))
        return _checked("reduce", computation, found, treedef, a)

    first = [broadcast(v, (1, *rest), ()) for v in inits]
    rows = first if count == 0 else combine(first, _halved(combine, rows))
    return pytree.unflatten(treedef, [reshape(x, rest) for x in rows])


def _check_operands(
    leaves: Sequence[Any], inits: Sequence[Any], treedef: pytree.TreeDef, dimensions: Sequence[int]
) -> list[int]:
    """The axes, after operands and initial values are checked."""
    shape = leaves[0].shape
    for x, v, path in zip(leaves, inits, pytree.paths(treedef), strict=True):
        place = f" at `{path}`" if path else ""
        if x.shape != shape:
            raise ShapeError(
                f"reduce: operands{place} is {x.type}, but the first operand is {leaves[0].type}",
                loc=loc.current(),
                rule="all have the same shape",
            )
        if v.ndim or v.dtype is not x.dtype:
            raise (ShapeError if v.ndim else DTypeError)(
                f"reduce: init_values{place} is {v.type.strong()} for an operand of type {x.type}",
                loc=loc.current(),
                rule="an initial value is a scalar of the dtype of its operand",
            )
    axes: list[int] = []
    for axis in dimensions:
        if not -len(shape) <= axis < len(shape):
            raise AxisError(
                f"reduce: axis {axis} of an operand of type {leaves[0].type}",
                loc=loc.current(),
                rule=f"it has {len(shape)} dims",
            )
        axes.append(axis % len(shape))
    if len(set(axes)) < len(axes):
        raise AxisError(
            f"reduce: dimensions {tuple(dimensions)} name an axis twice",
            loc=loc.current(),
            rule="an axis is combined once",
        )
    if not all(isinstance(shape[k], int) for k in axes):
        raise ShapeError(
            f"reduce: an operand of type {leaves[0].type}",
            loc=loc.current(),
            rule="axes to combine along have known sizes",
        )
    return axes


def _halved(
    combine: Callable[[Sequence[Any], Sequence[Any]], list[Any]], rows: Sequence[Any]
) -> list[Any]:
    """All rows combined."""
    rows = list(rows)
    while rows[0].shape[0] > 1:
        count = rows[0].shape[0]
        half = count // 2
        pairs = combine(
            [slice_axis(x, 0, 0, half) for x in rows],
            [slice_axis(x, 0, half, 2 * half) for x in rows],
        )
        if count % 2:
            last = [slice_axis(x, 0, count - 1, count) for x in rows]
            pairs = [concatenate([a, b], 0) for a, b in zip(pairs, last, strict=True)]
        rows = pairs
    return rows


_MONOIDS: dict[type[Op], tuple[Callable[..., Any], Callable[..., Any]]] = {
    Add: (add, sum_),
    Mul: (mul, prod_),
    Max: (maximum, max_),
    Min: (minimum, min_),
}
"""Ops of two elements, and the reductions by them."""


def _monoid(traced: Traced) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The op that a function of two scalars is, and the reduction by it."""
    graph = traced.graph
    if len(graph.args) != 2 or len(graph.ops) != 1:
        return None
    (op,) = graph.ops
    if set(op.operands) != set(graph.args) or list(graph.outputs) != list(op.results):
        return None
    return _MONOIDS.get(type(op))
