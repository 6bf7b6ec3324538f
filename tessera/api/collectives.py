"""Collectives over an axis that `vmap` has named: `psum`, `pmean`, `pmax`, `pmin`, `all_gather`,
`ppermute`, `axis_index`.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from tessera import pytree
from tessera.api.leaves import leaf_arrays, leaf_name
from tessera.errors import AxisError, CallError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import is_number, parse_axis
from tessera.graph.namespace.manipulation import reshape
from tessera.graph.ops.collective import AllGather, AxisIndex, AxisReduce, Combination, Permute
from tessera.graph.trace import bind
from tessera.ir import loc as _loc
from tessera.ir.intexpr import Dim

AxisNames: TypeAlias = "str | tuple[str, ...]"


class _State(threading.local):
    def __init__(self) -> None:
        self.sizes: list[tuple[str, Dim]] = []


_STATE = _State()


@contextmanager
def mapped_axis(name: str, size: Dim) -> Generator[None]:
    """While a function of examples is traced: collectives may be over this axis."""
    _STATE.sizes.append((name, size))
    try:
        yield
    finally:
        _STATE.sizes.pop()


def named_axes() -> tuple[tuple[str, Dim], ...]:
    """The axes that collectives may be over here."""
    return tuple(_STATE.sizes)


def _size(what: str, name: object) -> Dim:
    """The size of a mapped axis."""
    for known, size in reversed(_STATE.sizes):
        if known == name:
            return size
    names = list(dict.fromkeys([known for known, _ in _STATE.sizes]))
    here = f"the axes named here are {', '.join(map(repr, names))}" if names else (
        "no axis is named here"
    )
    raise AxisError(
        f"{what}: the axis name {name!r} is unknown; {here}",
        loc=_loc.current(),
        rule="a collective is over an axis that a `vmap` around it has named",
        fix=f"name it: `ts.vmap(f, axis_name={name!r})`",
    )


def _names(axis_name: AxisNames) -> tuple[str, ...]:
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def _combined(what: str, tree: Any, axis_name: AxisNames, how: Combination) -> Any:
    names = _names(axis_name)
    sizes = [_size(what, name) for name in names]
    if how is Combination.SUM and is_number(tree):
        # So that `psum(1, name)` is the size of the axis, a Python number.
        total: Any = tree
        for size in sizes:
            total = total * size
        return total
    leaves, treedef = leaf_arrays(tree, leaf_name(what, "the argument"))
    for name in names:
        leaves = [bind(AxisReduce, x, axis_name=name, how=how) for x in leaves]
    return pytree.unflatten(treedef, leaves)


@api_boundary
def psum(x: Any, axis_name: AxisNames) -> Any:
    """The sum over a mapped axis, which all of its examples get.

    Args:
        x: arrays, in containers of any structure. Of a Python number the result is one too:
            `psum(1, name)` is the size of the axis.
        axis_name: the name that `vmap` has given the axis, or a tuple of names.

    Returns:
        The sums, of the same structure, shapes and dtypes.

    Raises:
        AxisError: no `vmap` around the call has named the axis.

    Example:
        >>> import tessera as ts
        >>> ts.vmap(lambda x: x / ts.psum(x, "i"), axis_name="i")(ts.asarray([1.0, 3.0]))
        Array([0.25, 0.75], dtype=float32)
    """
    return _combined("psum", x, axis_name, Combination.SUM)


@api_boundary
def pmean(x: Any, axis_name: AxisNames) -> Any:
    """The mean over a mapped axis; see `psum`."""
    total = _combined("pmean", x, axis_name, Combination.SUM)
    count = 1
    for name in _names(axis_name):
        count = count * _size("pmean", name)
    return pytree.map_(functools.partial(_over, count), total)


def _over(count: Any, total: Any) -> Any:
    return total / count


@api_boundary
def pmax(x: Any, axis_name: AxisNames) -> Any:
    """The maximum over a mapped axis; see `psum`."""
    return _combined("pmax", x, axis_name, Combination.MAX)


@api_boundary
def pmin(x: Any, axis_name: AxisNames) -> Any:
    """The minimum over a mapped axis; see `psum`."""
    return _combined("pmin", x, axis_name, Combination.MIN)


@api_boundary
def all_gather(x: Any, axis_name: str, *, axis: int = 0, tiled: bool = False) -> Any:
    """The values of all examples, along a new axis; all examples get them.

    Args:
        x: arrays, in containers of any structure.
        axis_name: the name that `vmap` has given the axis.
        axis: where the new axis goes.
        tiled: whether there is no new axis: the values are joined along `axis`.

    Raises:
        AxisError: no `vmap` around the call has named the axis, or `axis` is out of range.
    """
    size = _size("all_gather", axis_name)
    leaves, treedef = leaf_arrays(x, leaf_name("all_gather", "the argument"))
    found: list[Any] = []
    for leaf in leaves:
        at = parse_axis("all_gather", axis, leaf.ndim + (not tiled))
        y = bind(AllGather, leaf, axis_name=axis_name, axis=at, size=size)
        if tiled:
            y = reshape(y, (*leaf.shape[:at], size * leaf.shape[at], *leaf.shape[at + 1 :]))
        found.append(y)
    return pytree.unflatten(treedef, found)


@api_boundary
def ppermute(x: Any, axis_name: str, perm: Iterable[Sequence[int]]) -> Any:
    """What another example has.

    Args:
        x: arrays, in containers of any structure.
        axis_name: the name that `vmap` has given the axis.
        perm: pairs `(source, destination)` of indices on the axis. An example that is no
            destination gets zeros.

    Raises:
        AxisError: no `vmap` around the call has named the axis.
        CallError: an index is out of range, or twice a source or a destination.

    Example:
        >>> import tessera as ts
        >>> shift = lambda x: ts.ppermute(x, "i", [(0, 1), (1, 2)])
        >>> ts.vmap(shift, axis_name="i")(ts.asarray([1.0, 2.0, 3.0]))
        Array([0., 1., 2.], dtype=float32)
    """
    size = _size("ppermute", axis_name)
    pairs = _pairs(perm)
    for k, what in enumerate(("source", "destination")):
        seen: set[int] = set()
        for pair in pairs:
            n = pair[k]
            if n in seen or n < 0 or (isinstance(size, int) and n >= size):
                problem = "twice" if n in seen else f"for an axis of {size} examples"
                raise CallError(
                    f"ppermute: perm has the {what} {n} {problem}",
                    loc=_loc.current(),
                    rule="perm has pairs (source, destination); each index is a source at most "
                    "once, and a destination at most once",
                )
            seen.add(n)
    leaves, treedef = leaf_arrays(x, leaf_name("ppermute", "the argument"))
    found = [bind(Permute, leaf, axis_name=axis_name, pairs=pairs) for leaf in leaves]
    return pytree.unflatten(treedef, found)


def _pairs(perm: Any) -> tuple[tuple[int, int], ...]:
    try:
        return tuple([(operator.index(s), operator.index(d)) for s, d in perm])
    except (TypeError, ValueError):
        raise CallError(
            f"ppermute: perm is {perm!r}",
            loc=_loc.current(),
            rule="perm has pairs (source, destination) of ints",
        ) from None


@api_boundary
def axis_index(axis_name: AxisNames) -> ArrayBase:
    """Which example of a mapped axis this is, counted from 0.

    Args:
        axis_name: the name that `vmap` has given the axis; of a tuple of names, the index on all
            of their examples in row-major order.

    Returns:
        An int64 scalar.

    Raises:
        AxisError: no `vmap` around the call has named the axis.
    """
    found: Any = None
    for name in _names(axis_name):
        size = _size("axis_index", name)
        index = bind(AxisIndex, axis_name=name)
        found = index if found is None else found * size + index
    return found
