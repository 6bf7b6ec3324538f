"""`vmap`: functions of examples become functions of batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from tessera import pytree
from tessera.api.again import Again, walk_for
from tessera.api.collectives import mapped_axis
from tessera.api.leaves import (
    argument_name,
    check_callable,
    leaf_arrays,
    name_of,
    result_name,
    wraps_other,
)
from tessera.api.refs import Ref
from tessera.api.stateful import with_refs, without_refs
from tessera.api.traced import Rebuild, Refs, Traced
from tessera.errors import (
    AxisError,
    OptionError,
    PytreeError,
    ShapeError,
    StateError,
    api_boundary,
)
from tessera.graph.device import using
from tessera.graph.ops.reshape import broadcast, move_axis
from tessera.graph.placement import device_of_all
from tessera.graph.transforms.vectorize import named_axis, vmap_values
from tessera.ir import loc as _loc
from tessera.ir.intexpr import Dim

P = ParamSpec("P")
R = TypeVar("R")


def _flat_axes(axes: Any, tree: Any, name: str) -> list[int | None]:
    """An axis for every leaf of `tree`; `axes` is a tree prefix of ints and None."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes] * len(pytree.leaves(tree))
    described = "the arguments" if name == "in_axes" else "the results"
    spec, structure = pytree.flatten(axes, is_leaf=lambda x: x is None)
    if spec == [axes]:
        raise _axes_error(f"{name} has {axes!r}", f"entries of {name} are ints or None")
    try:
        parts: list[Any] = pytree.flatten_up_to(structure, tree)
    except ValueError:
        raise _axes_error(
            f"{name} is {axes!r}, but {described} are {pytree.show(pytree.structure(tree))}",
            f"{name} is an int, None, or containers of them nested like {described}, which may "
            f"stop early",
            _axes_fix(axes, tree) if name == "in_axes" else None,
        ) from None
    return [a for x, t in zip(spec, parts, strict=True) for a in _flat_axes(x, t, name)]


def _axes_error(what: str, rule: str, fix: str | None = None) -> PytreeError:
    return PytreeError(f"vmap: {what}", loc=_loc.current(), rule=rule, fix=fix)


def _axes_fix(axes: Any, args: Any) -> str | None:
    """What to do about axes for another number of arguments."""
    if not isinstance(axes, (tuple, list)) or not isinstance(args, tuple):
        return None
    count, wanted = len(cast("list[Any]", axes)), len(cast("tuple[Any, ...]", args))
    if count == wanted:
        return None
    few = "an axis or None" if count < wanted else "one axis or None"
    return f"give {few} for each argument: {wanted}, not {count}"


@api_boundary
def vmap(
    fn: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> Callable[P, R]:
    """Maps a function of examples over batches, without a loop.

    Args:
        fn: a function of arrays.
        in_axes: which axis of each argument is the batch axis: an int, None (not batched), or
            containers of them as a prefix of the arguments' structure.
        out_axes: where the batch axis goes in the results, likewise.
        axis_name: a name for the axis, so that `fn` may use collectives over it, such as
            `ts.psum(x, axis_name)`.
        axis_size: how many examples there are, where no argument says it.

    Raises:
        ShapeError: the batch axes have different sizes.
        AxisError: an axis does not exist.

    Example:
        >>> import tessera as ts
        >>> ts.vmap(ts.sum)(ts.ones((2, 3)))
        Array([3., 3.], dtype=float32)
    """
    check_callable("vmap", fn, "pass arguments to what it returns: `ts.vmap(f)(x)`")
    _check_options(axis_name, axis_size)
    axes_in: Any = tuple(cast("list[Any]", in_axes)) if isinstance(in_axes, list) else in_axes

    @api_boundary
    @wraps_other(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        name = argument_name("vmap", fn)
        axes = _flat_axes(axes_in, args, "in_axes") + [0] * len(pytree.leaves(kwargs))
        given, whole = pytree.flatten((args, kwargs))
        given, structure, refs = without_refs(given, whole, f"vmap: {name_of(fn)}")
        leaves, treedef = leaf_arrays(pytree.unflatten(structure, given), name)
        axes = _without_batched(refs, axes)
        axes = _normal_axes(leaves, axes, treedef, name)
        size = _batch_size(leaves, axes, treedef, name, fn, axis_size)
        types = [
            x.type if a is None else x.type.with_shape(x.shape[:a] + x.shape[a + 1 :])
            for x, a in zip(leaves, axes, strict=True)
        ]
        rebuild: Rebuild = functools.partial(with_refs, treedef=whole, refs=refs)
        walk = None
        if axis_name is None and not refs and type(out_axes) is int:
            key = ("vmap", treedef, tuple(axes), size, out_axes)
            walk = walk_for(fn, key, leaves, types)
        with contextlib.ExitStack() as stack:
            stack.enter_context(using(device_of_all(leaves)))
            if axis_name is not None:
                stack.enter_context(mapped_axis(axis_name, size))
            # A collective need not have an operand that is batched: its trace must be found.
            traced = Traced(
                fn,
                rebuild,
                types,
                None,
                "vmap",
                staging=axis_name is not None,
                input_name=lambda k: name(treedef, k),
                refs=Refs.OUTPUTS,
                walk=walk,
            )
            if traced.end is not None:
                return traced.end(leaves)
            all_axes: list[int | None] = [None] * len(traced.captured) + axes
            stack.enter_context(named_axis(axis_name))
            outs, found = vmap_values(traced.graph, [*traced.captured, *leaves], all_axes, size)
        count, out_treedef = len(traced.types), traced.treedef
        _check_state(traced, found[count:])
        state = outs[count:]
        outs = outs[:count]
        wanted = _flat_axes(out_axes, pytree.unflatten(out_treedef, outs), "out_axes")
        # Not the function itself, which what is remembered of it must not keep.
        results = result_name("vmap", fn)
        names = [results(out_treedef, k) for k in range(count)]

        def placed(outs: Sequence[Any], found: Sequence[int | None]) -> list[Any]:
            return [
                _place_axis(x, a, w, size, name)
                for x, a, w, name in zip(outs, found, wanted, names, strict=True)
            ]

        moved = placed(outs, found[:count])
        traced.finish(state)
        if traced.walk is not None:
            graph = traced.graph

            def compute(arrays: list[Any]) -> list[Any]:
                return placed(*vmap_values(graph, arrays, all_axes, size))

            Again(traced, compute, lambda made, _: pytree.unflatten(out_treedef, made))
        return pytree.unflatten(out_treedef, moved)

    return run


def _check_state(traced: Traced, axes: Sequence[int | None]) -> None:
    """What is written to refs is the same for all examples."""
    batched = iter(axes)
    for ref in traced.written:
        if any([next(batched) is not None for _ in ref.values]):
            raise StateError(
                f"vmap: {traced.trace.function} writes the ref `{ref.cell.name}`, each example "
                f"something else",
                loc=ref.place,
                rule="under `vmap` a ref has one value for all examples, as what is not batched",
                fix="write what is the same for all, as with `ts.pmean(x, axis_name)`; or return "
                "it, and write the ref outside",
            )


def _check_options(axis_name: object, axis_size: object) -> None:
    if axis_name is not None and not isinstance(axis_name, str):
        raise OptionError(
            f"vmap: axis_name is {axis_name!r}", loc=_loc.current(), rule="a name is a string"
        )
    is_size = isinstance(axis_size, int) and not isinstance(axis_size, bool) and axis_size >= 0
    if axis_size is not None and not is_size:
        raise OptionError(
            f"vmap: axis_size is {axis_size!r}",
            loc=_loc.current(),
            rule="it is a number of examples, at least 0",
        )


def _without_batched(refs: dict[int, Ref], axes: list[int | None]) -> list[int | None]:
    """The axes of arrays, after those of refs are checked."""
    for k, ref in refs.items():
        if axes[k] is not None:
            raise StateError(
                f"vmap: the ref `{ref.name}` has the axis {axes[k]} in in_axes",
                loc=_loc.current(),
                rule="under `vmap` a ref has one value for all examples, as what is not batched",
                fix="give None for it, as in `in_axes=(0, None)`",
            )
    return [axis for k, axis in enumerate(axes) if k not in refs]


Namer = Callable[[pytree.TreeDef, int], str]


def _normal_axes(
    leaves: Sequence[Any], axes: Sequence[int | None], treedef: pytree.TreeDef, name: Namer
) -> list[int | None]:
    result: list[int | None] = []
    for k, (x, a) in enumerate(zip(leaves, axes, strict=True)):
        if a is not None and not -x.ndim <= a < x.ndim:
            raise AxisError(
                f"{name(treedef, k)} is {x.type.strong()}, and its in_axes is {a}",
                loc=_loc.current(),
                rule=f"an axis of an array of rank {x.ndim} lies in [{-x.ndim}, {x.ndim})"
                if x.ndim
                else "an array without dims has no axes",
                fix="use None for arguments that are not batched",
            )
        result.append(None if a is None else a % x.ndim)
    return result


def _batch_size(
    leaves: Sequence[Any],
    axes: Sequence[int | None],
    treedef: pytree.TreeDef,
    name: Namer,
    fn: Callable[..., Any],
    axis_size: int | None,
) -> Dim:
    first: tuple[int, Dim] | None = None
    for k, (x, a) in enumerate(zip(leaves, axes, strict=True)):
        if a is None:
            continue
        if first is None:
            first = k, x.shape[a]
        elif x.shape[a] != first[1]:
            other = name(treedef, first[0]).removeprefix("vmap: ")
            raise ShapeError(
                f"{name(treedef, k)} has {x.shape[a]} examples, but {other} has {first[1]}",
                loc=_loc.current(),
                rule="the batch axes of all arguments have one size",
                fix="check in_axes; use None for arguments that are not batched",
                notes=(
                    f"they are {x.type.strong()} along axis {a} and "
                    f"{leaves[first[0]].type.strong()} along axis {axes[first[0]]}",
                ),
            )
    if first is None:
        if axis_size is not None:
            return axis_size
        raise ShapeError(
            f"vmap: no argument of {name_of(fn)} is batched",
            loc=_loc.current(),
            rule="at least one entry of in_axes is an int, and belongs to an array",
            fix="or say how many examples there are: `axis_size=...`",
        )
    if axis_size is not None and axis_size != first[1]:
        raise ShapeError(
            f"{name(treedef, first[0])} has {first[1]} examples, and axis_size is {axis_size}",
            loc=_loc.current(),
            rule="the batch axes of all arguments have one size",
        )
    return first[1]


def _place_axis(x: Any, axis: int | None, wanted: int | None, size: Dim, name: str) -> Any:
    if wanted is None:
        if axis is None:
            return x
        raise ShapeError(
            f"{name} depends on the example, and its out_axes is None",
            loc=_loc.current(),
            rule="out_axes=None is for results that are the same for all examples",
            fix="give the axis for the batch, as in out_axes=0",
        )
    rank = x.ndim + (axis is None)
    if not -rank <= wanted < rank:
        raise AxisError(
            f"{name} has rank {rank} with the batch, and its out_axes is {wanted}",
            loc=_loc.current(),
            rule=f"an axis of an array of rank {rank} lies in [{-rank}, {rank})",
        )
    place = wanted % rank
    if axis is None:
        shape = (*x.shape[:place], size, *x.shape[place:])
        return broadcast(x, shape, tuple([k for k in range(rank) if k != place]))
    return x if axis == place else move_axis(x, axis, place)
