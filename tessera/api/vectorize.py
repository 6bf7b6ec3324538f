"""`vmap`: functions of examples become functions of batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from tessera import pytree
from tessera.api.leaves import argument_name, leaf_arrays, name_of
from tessera.api.traced import Traced
from tessera.errors import AxisError, PytreeError, ShapeError, api_boundary
from tessera.graph.ops.reshape import broadcast, move_axis
from tessera.graph.transforms.vectorize import vmap_values
from tessera.ir import loc as _loc

P = ParamSpec("P")
R = TypeVar("R")


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
        leaves, treedef = leaf_arrays((args, kwargs), "arguments")
        axes = _normal_axes(leaves, axes, treedef)
        size = _batch_size(leaves, axes, treedef, name_of(fn))
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
            _place_axis(x, a, w, size, name_of(fn))
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
            raise AxisError(
                f"vmap: in_axes is {a} for {argument_name(treedef, k)} of type {x.type}",
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
                f"vmap: {argument_name(treedef, first[0])} has batch size {first[1]}, "
                f"{argument_name(treedef, k)} has {size}",
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
