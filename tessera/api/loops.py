"""Loops with a known number of steps: `scan`, `map`, and what `fori_loop` is for known limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from tessera import pytree
from tessera.api import python_control
from tessera.api.leaves import check_callable, leaf_arrays, leaf_name, strong
from tessera.api.refs import Carried
from tessera.api.regions import Carry, Region, result_text
from tessera.api.vectorize import vmap
from tessera.dtypes import default_int
from tessera.errors import CallError, OptionError, PytreeError, ShapeError, api_boundary
from tessera.graph.closed import Closed
from tessera.graph.namespace.manipulation import concat
from tessera.graph.ops.rearrange import reshape, slice_axis
from tessera.graph.ops.scan import INDEX, Scan
from tessera.graph.trace import as_tuple, bind
from tessera.ir import loc
from tessera.ir.core import Block, Value
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType


@api_boundary
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """A loop over the leading axis of arrays that carries a value and stacks results.

        carry, ys = init, []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, stack(ys)

    The loop is one op: `f` is traced once, and no step returns to Python. It has derivatives in
    both modes. Reverse mode stores what it needs of each step; what is the same in all steps is
    stored once, and what is scanned or returned anyway is not stored again.

    Args:
        f: takes the carried value and a slice of `xs`, and returns the next carried value, of the
            same structure, shapes and dtypes, and a result, which may be None.
        init: the first carried value: an array, or a container of arrays. A Python number takes the
            dtype that `f` gives it.
        xs: an array, or a container of arrays, of which each has the leading dim `length`; None if
            there are none.
        length: the number of steps, needed where `xs` has no arrays.
        reverse: whether to go from the last slice to the first. Results lie where their slices do.
        unroll: so many steps are one turn of the compiled loop; True for all.

    Returns:
        The last carried value, and the results, stacked along a new leading axis.

    Raises:
        ShapeError: lengths differ, or an array of `xs` has no dims.
        DTypeError, ShapeError, PytreeError: a step changes what it carries.
        CallError: the number of steps is not known.
        OptionError: `unroll` or `length` is no such number.

    Example:
        >>> import tessera as ts
        >>> total, sums = ts.scan(lambda c, x: (c + x, c + x), 0.0, ts.asarray([1.0, 2.0, 3.0]))
        >>> float(total), sums
        (6.0, Array([1., 3., 6.], dtype=float32))
    """
    check_callable("scan", f)
    refs = Carried("scan", init)
    if refs.refs:
        found = scan(_with_carried(f, refs), refs.first, xs, length, reverse, unroll)
        return refs.within(found[0]), found[1]
    carry = Carry("scan", init)
    rows, x_tree = leaf_arrays(xs, leaf_name("scan", "xs"))
    rows = [strong(x) for x in rows]
    steps = _length("scan", rows, x_tree, length)
    turn = _turn("scan", unroll, steps)
    if python_control.is_python() and steps != 0 and isinstance(steps, int):
        trees = pytree.unflatten(x_tree, rows)
        return python_control.scan("scan", f, init, trees, range(steps)[:: -1 if reverse else 1])
    slices = [x.type.strong().with_shape(x.shape[1:]) for x in rows]
    treedef = pytree.structure((_tree(carry.treedef), _tree(x_tree)))

    def make(types: Sequence[TensorType]) -> Region:
        return Region("scan", f, treedef, [*types, *slices])

    region = carry.step(f, make, functools.partial(_carried, f))
    closed = Closed([region.traced])
    (block,) = closed.blocks
    # The first argument is the number of the step.
    body = Block([Value(INDEX), *block.args], block.ops, block.outputs)
    found = as_tuple(
        bind(
            Scan,
            closed.captured,
            (*closed.state, *carry.leaves),
            tuple(rows),
            length=steps,
            reverse=bool(reverse),
            unroll=turn,
            body=body,
        )
    )
    results = closed.finish(found)
    count = len(carry.leaves)
    y_tree = region.traced.treedef.children()[1]
    return (
        pytree.unflatten(carry.treedef, results[:count]),
        pytree.unflatten(y_tree, results[count:]),
    )


def _with_carried(
    f: Callable[[Any, Any], tuple[Any, Any]], refs: Carried
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step of a scan that carries refs, as one that carries none."""

    @functools.wraps(f)
    def step(carry: Any, x: Any) -> Any:
        found = cast("tuple[Any, ...]", f(refs.within(carry), x))
        if type(found) is tuple and len(found) == 2:
            return refs.without(found[0]), found[1]
        return found

    return step


def _tree(treedef: pytree.TreeDef) -> Any:
    return pytree.unflatten(treedef, [0] * treedef.num_leaves)


def _carried(f: Callable[..., Any], treedef: pytree.TreeDef) -> pytree.TreeDef:
    """The part of a step's result that is carried on."""
    if treedef.type is not tuple or treedef.num_children != 2:
        shown = "one array" if treedef.is_leaf() else pytree.show(treedef)
        raise PytreeError(
            f"{result_text('scan', f)} is {shown}, which is no pair",
            loc=loc.current(),
            rule="a step returns a tuple of two: the next carried value, and a result or None",
            fix="return `(carry, None)` where there is no result" if treedef.is_leaf() else None,
        )
    return treedef.children()[0]


def _length(
    name: str, rows: Sequence[Any], treedef: pytree.TreeDef, length: int | None
) -> Dim:
    """The number of steps."""
    if length is not None and (isinstance(length, bool) or int(length) != length or length < 0):
        raise OptionError(
            f"{name}: length is {length!r}", loc=loc.current(), rule="it is an integer >= 0"
        )
    paths = pytree.paths(treedef)
    for x, path in zip(rows, paths, strict=True):
        if not x.ndim:
            raise ShapeError(
                f"{name}: xs{_at(path)} is {x.type.strong()}",
                loc=loc.current(),
                rule="what is scanned has a leading dim, along which it is cut into slices",
            )
    if not rows and length is None:
        raise CallError(
            f"{name}: xs has no arrays, and there is no length",
            loc=loc.current(),
            rule="the number of steps is the leading dim of xs, or `length`",
            fix="say how many steps there are, as in `length=10`",
        )
    wanted: Dim = int(length) if length is not None else rows[0].shape[0]
    for x, path in zip(rows, paths, strict=True):
        if x.shape[0] != wanted:
            other = f"length is {wanted}"
            if length is None:
                other = f"xs{_at(paths[0])} is {rows[0].type.strong()}"
            raise ShapeError(
                f"{name}: xs{_at(path)} is {x.type.strong()}, but {other}",
                loc=loc.current(),
                rule="all that is scanned has the same leading dim, the number of steps",
            )
    return wanted


def _at(path: str) -> str:
    return f" at `{path}`" if path else ""


def _turn(name: str, unroll: int | bool, steps: Dim) -> int:
    """Steps per turn."""
    if unroll is True:
        return max(steps, 1) if isinstance(steps, int) else 1
    if unroll is False:
        return 1
    if unroll < 1 or int(unroll) != unroll:
        raise OptionError(
            f"{name}: unroll is {unroll!r}",
            loc=loc.current(),
            rule="it is a number of steps, at least 1, or True for all of them",
        )
    return int(unroll)


def counted(
    lower: int, upper: int, body_fn: Callable[[Any, Any], Any], init: Any, unroll: int
) -> Any:
    """`fori_loop` with known limits."""
    if python_control.is_python():
        return python_control.fori_loop("fori_loop", range(lower, upper), body_fn, init)
    carry = Carry("fori_loop", init)
    steps = max(upper - lower, 0)
    turn = _turn("fori_loop", unroll, steps)
    treedef = pytree.structure((0, _tree(carry.treedef)))

    @functools.wraps(body_fn)
    def step(index: Any, value: Any) -> Any:
        return body_fn(index + lower if lower else index, value)

    def make(types: Sequence[TensorType]) -> Region:
        return Region("fori_loop", step, treedef, [TensorType((), default_int), *types])

    closed = Closed([carry.step(body_fn, make).traced])
    (block,) = closed.blocks
    # The index comes first, the captured values are constants.
    count = len(closed.captured) + len(closed.state)
    args = [block.args[count], *block.args[:count], *block.args[count + 1 :]]
    body = Block(args, block.ops, block.outputs)
    first = (*closed.state, *carry.leaves)
    results = bind(Scan, closed.captured, first, (), length=steps, unroll=turn, body=body)
    return pytree.unflatten(carry.treedef, closed.finish(as_tuple(results)))


@api_boundary
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """The results of a function for each slice along the leading axis, one slice after the other.

    Where `vmap` computes all at once, `map` needs the memory of one, or of `batch_size` of them.

    Args:
        f: a function of a slice.
        xs: an array, or a container of arrays with the same leading dim.
        batch_size: so many slices are computed at once, by `vmap`; the rest at the end as well.

    Returns:
        The results, stacked along a new leading axis.

    Raises:
        ShapeError: lengths differ, or an array of `xs` has no dims.
        CallError: `xs` has no arrays.
        OptionError: `batch_size` is no such number.

    Example:
        >>> import tessera as ts
        >>> ts.map(lambda x: ts.sum(x * x), ts.asarray([[1.0, 2.0], [3.0, 4.0]]))
        Array([ 5., 25.], dtype=float32)
    """
    check_callable("map", f)
    rows, treedef = leaf_arrays(xs, leaf_name("map", "xs"))
    if not rows:
        raise CallError(
            "map: xs has no arrays", loc=loc.current(), rule="it is cut along the leading axis"
        )
    steps = _length("map", rows, treedef, None)
    if batch_size is None:
        return scan(_each(f), None, xs)[1]
    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise OptionError(
            f"map: batch_size is {batch_size!r}",
            loc=loc.current(),
            rule="it is a number of slices, at least 1",
        )
    if not isinstance(steps, int):
        raise ShapeError(
            f"map: there are {steps} slices",
            loc=loc.current(),
            rule="batches are cut from a known number of slices",
        )
    whole = steps - steps % batch_size
    main = [
        reshape(slice_axis(x, 0, 0, whole), (whole // batch_size, batch_size, *x.shape[1:]))
        for x in rows
    ]
    each = vmap(f)
    found: list[Any] = []

    def flat(y: Any) -> Any:
        return reshape(y, (whole, *y.shape[2:]))

    if whole or not steps:
        _, stacks = scan(_each(each), None, pytree.unflatten(treedef, main))
        found.append(pytree.map_(flat, stacks))
    if whole < steps:
        rest = [slice_axis(x, 0, whole, steps) for x in rows]
        found.append(each(pytree.unflatten(treedef, rest)))
    if len(found) == 1:
        return found[0]

    def joined(a: Any, b: Any) -> Any:
        return concat([a, b])

    return pytree.map_(joined, *found)


def _each(f: Callable[[Any], Any]) -> Callable[[None, Any], tuple[None, Any]]:
    @functools.wraps(f)
    def step(carry: None, x: Any) -> tuple[None, Any]:
        return None, f(x)

    return step


