"""Changed copies of arrays: `x.at[index].set(values)` and its kin.

The array itself stays as it is; compiled code writes in place where nobody else uses it. Elements
are combined in the array's dtype. Where an index occurs several times, `set` keeps the last value,
and the others combine all of them. Indices that are only known at run time are ignored where they
are out of range, unless a mode says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast

import numpy as np

from tessera.dtypes import PythonScalar, bool_, default_int
from tessera.errors import (
    DTypeError,
    ImmutableError,
    IndexOutOfBoundsError,
    ShapeError,
    api_boundary,
)
from tessera.graph.array import READERS, Array, ArrayBase
from tessera.graph.host_copy import host_copy
from tessera.graph.namespace import elementwise
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    broadcast_dims,
    common_dtype,
    filled,
    is_number,
    is_numpy,
    known_number,
    number,
    spread,
    to_dtype,
)
from tessera.graph.namespace.indexing import (
    Cut,
    Plan,
    is_inside,
    is_scalar_mask,
    parse_mode,
    plan_index,
    read,
    read_or_fill,
    wrapped,
)
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.graph.ops.dynamic_slice import dynamic_update_slice
from tessera.graph.ops.gather import Combine, IndexMode, scatter
from tessera.graph.ops.rearrange import (
    broadcast,
    iota,
    reshape,
    reverse,
    transpose,
)
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed
from tessera.graph.trace import is_tracing
from tessera.ir import loc
from tessera.ir.intexpr import Dim

_OPS: dict[Combine, Callable[[Any, Any], Any]] = {
    Combine.SET: lambda old, new: new,
    Combine.ADD: ops.add,
    Combine.MUL: ops.mul,
    Combine.MIN: ops.minimum,
    Combine.MAX: ops.maximum,
}


class Options(TypedDict, total=False):
    """What the methods of `Elements` take by keyword."""

    indices_are_sorted: bool
    unique_indices: bool
    mode: str | None


class At:
    """What `x.at` is: `x.at[index]` names elements of `x`."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Elements:
        return Elements(self._x, index)

    @api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        raise ImmutableError(
            f"assignment to elements of an array of type {self._x.type.strong()}",
            loc=loc.current(),
            rule="arrays are immutable; `x.at[index]` names elements of a new one",
            fix="give the result a name: `x = x.at[index].set(value)`, or `.add(value)` for `+=`",
        )

    def __repr__(self) -> str:
        return f"at({self._x!r})"


class Elements:
    """Some elements of an array, of which changed copies of the array can be made.

    All methods take `mode`, what becomes of indices out of range: `clip` takes the nearest one in
    range, `drop` leaves them out and `fill` does the same (`get` gives a value there),
    `promise_in_bounds` promises that there are none, `raise` makes one an error, also in a compiled
    program, which looks at them as it runs. Without a mode, indices that are known when
    the program is traced are checked, `get` clamps the others, and all other methods leave them
    out. `unique_indices` promises that no element is named twice, which products need to have
    derivatives; `indices_are_sorted` is accepted, and of no effect.

    Example:
        >>> import tessera as ts
        >>> ts.zeros(4).at[1:3].add(ts.asarray([1.0, 2.0]))
        Array([0., 1., 2., 0.], dtype=float32)
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any) -> None:
        self._x = x
        self._index = index

    @api_boundary
    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
        fill_value: PythonScalar | None = None,
    ) -> ArrayBase:
        """The elements: `x[index]`.

        Args:
            indices_are_sorted: of no effect.
            unique_indices: of no effect.
            mode: what becomes of indices out of range.
            fill_value: what `fill` gives. By default NaN, the lowest number of a signed integer
                dtype, the highest of an unsigned one, True.
        """
        policy = parse_mode("at[...].get", mode)
        if policy is None or is_scalar_mask(self._index):
            return self._x[self._index]
        return read_or_fill(self._x, plan_index(self._x.type, self._index, policy), fill_value)

    @api_boundary
    def set(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array in which the elements are these values."""
        return _updated("set", self._x, self._index, values, Combine.SET, options)

    @api_boundary
    def add(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array with these values added to the elements."""
        return _updated("add", self._x, self._index, values, Combine.ADD, options)

    @api_boundary
    def subtract(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array with these values subtracted from the elements."""
        less: Any = -values if is_number(values) else ops.neg(as_array("subtract", values))
        return _updated("subtract", self._x, self._index, less, Combine.ADD, options)

    @api_boundary
    def multiply(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array with the elements multiplied by these values."""
        return _updated("multiply", self._x, self._index, values, Combine.MUL, options)

    @api_boundary
    def divide(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array with the elements divided by these values."""
        ones = filled(self._x.shape, 1, self._x.dtype, self._x)
        by = _updated("divide", ones, self._index, values, Combine.MUL, options)
        return elementwise.divide(self._x, by)

    @api_boundary
    def power(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array with the elements raised to these powers."""
        ones = filled(self._x.shape, 1, self._x.dtype, self._x)
        exponents = _updated("power", ones, self._index, values, Combine.MUL, options)
        return elementwise.pow(self._x, exponents)

    @api_boundary
    def min(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array whose elements are these values where they are smaller."""
        return _updated("min", self._x, self._index, values, Combine.MIN, options)

    @api_boundary
    def max(self, values: ArrayLike, /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array whose elements are these values where they are larger."""
        return _updated("max", self._x, self._index, values, Combine.MAX, options)

    @api_boundary
    def apply(self, ufunc: Callable[[Any], Any], /, **options: Unpack[Options]) -> ArrayBase:
        """A copy of the array in which the elements are what a function makes of them.

        Args:
            ufunc: takes the elements, and returns as many. It is applied once to an element that
                is named several times.
            options: as for `set`.
        """
        return self.set(ufunc(self.get(**options)), **options)

    @api_boundary
    def _in_place(self, _: Any) -> Any:
        At(self._x)[self._index] = None  # which is refused

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = _in_place

    def __repr__(self) -> str:
        return f"at({self._x!r})[{self._index!r}]"


def _updated(
    name: str, x: Any, index: Any, values: Any, combine: Combine, options: Options
) -> Any:
    if type(x) is Array and not options and not is_tracing():
        at_once = _updated_at_once(x, index, values, combine)
        if at_once is not None:
            return at_once
    given = values if is_number(values) else as_array(f"at[...].{name}", values)
    common_device(f"at[...].{name}", [x, given], [x, values])
    dtype, _ = common_dtype(f"at[...].{name}", [x, given])
    if dtype is not x.dtype:
        raise DTypeError(
            f"at[...].{name}: the values are {getattr(given, 'type', given)}, the array is"
            f" {x.type.strong()}",
            loc=loc.current(),
            rule="the array keeps its dtype, so the values must promote to it",
            fix=f"convert one of them, for instance with `astype(ts.{x.dtype.full_name})`",
        )
    policy = parse_mode(f"at[...].{name}", options.get("mode"))
    found = to_dtype(given, dtype)
    mask = _as_mask(index)
    if mask is not None and not found.ndim:
        return _masked(x, mask, found, combine)
    places = None if policy else _known_places(x, index)
    if places is not None:
        unique = options.get("unique_indices", False)
        return _at_places(x, as_array(name, found), places, name, combine.value, unique)
    plan = plan_index(x.type, index, policy)
    if policy is None and plan.mode is IndexMode.CLIP:
        plan.mode = IndexMode.DROP
    return write(name, x, plan, found, combine, options.get("unique_indices", False))


def _updated_at_once(x: Array, index: Any, values: Any, combine: Combine) -> Array | None:
    """The result for a concrete array, an index of numbers and slices and values of its dtype, by
    NumPy; None where that does not do, or fails."""
    new: Any = None
    if type(values) is Array and values.dtype is x.dtype:
        new = values.storage
    elif isinstance(values, (float, int)) and x.dtype.is_float and values.__class__ is not bool:
        new = known_number(values, x.dtype)
    items = cast("tuple[Any, ...]", index) if type(index) is tuple else (index,)
    is_here = type(x.storage) is np.ndarray and type(new) is np.ndarray and not x.weak
    if not is_here or READERS or not all([item.__class__ in _PLAIN for item in items]):
        return None
    found = host_copy(x.storage)
    try:
        # With `...`, an element is an array, too.
        block = found[items if ... in items else (*items, ...)]
        # NumPy would leave out dims of length 1 in front.
        if new.ndim > block.ndim:
            return None
        if combine is not Combine.SET:
            new = np.broadcast_to(new, block.shape)
            new = _OPS[combine](Array(block.copy()), Array(new)).contiguous
        block[...] = new
    except (IndexError, TypeError, ValueError):
        return None  # the long way says what is wrong
    return Array(found)


_PLAIN = frozenset({int, slice, type(None), type(...)})


def _known_places(x: Any, index: Any) -> list[Array] | None:
    """An index of arrays that are all in range, as looking at them tells; None for another one, and
    while a program is traced."""
    items = cast("tuple[Any, ...]", index) if type(index) is tuple else (index,)
    is_here = type(x) is Array and not is_tracing() and len(items) <= x.ndim
    if not is_here or not all([type(i) is Array and i.ndim and i.dtype.is_integer for i in items]):
        return None
    shape = broadcast_dims([item.shape for item in items])
    if isinstance(shape, int):
        return None
    found = [wrapped(x.type, axis, item) for axis, item in enumerate(items)]
    return [places for places, _ in found] if all([known for _, known in found]) else None


@composed
def _at_places(
    x: Any, values: Any, places: list[Any], name: str, combine: str, unique: bool
) -> Any:
    """A copy of an array, changed at places of its first axes."""
    shape = broadcast_dims([i.shape for i in places])
    assert not isinstance(shape, int)
    arrays = {axis: spread(i, shape) for axis, i in enumerate(places)}
    plan = Plan([Cut(0, d) for d in x.shape], arrays, shape, 0, [*range(len(places), x.ndim)])
    return write(name, x, plan, values, Combine(combine), unique)


def _as_mask(index: Any) -> Any:
    if isinstance(index, (bool, np.bool_)) or (is_numpy(index) and index.dtype == np.bool_):
        return Array(np.array(index))
    return index if isinstance(index, ArrayBase) and index.dtype is bool_ else None


def _masked(x: Any, mask: Any, value: Any, combine: Combine) -> Any:
    """One value where a mask holds: the shape does not depend on the mask."""
    fits = mask.ndim <= x.ndim and all(
        a == 0 or may_equal(a, b) for a, b in zip(mask.shape, x.shape, strict=False)
    )
    if not fits:
        raise IndexOutOfBoundsError(
            f"index: a mask of type {mask.type.strong()} for an array of type {x.type.strong()}",
            loc=loc.current(),
            rule="a mask has the lengths of the dims that it selects from, or 0",
        )
    if any(d == 0 for d in mask.shape):
        return x
    where = broadcast(mask, x.shape, range(mask.ndim))
    return ops.select(where, _OPS[combine](x, spread(value, x.shape)), x)


def write(
    name: str, x: Any, plan: Plan, values: Any, combine: Combine, unique: bool = False
) -> Any:
    """The array with values combined into the elements that an index names."""
    shape = plan.shape
    lead = len(shape) - values.ndim
    fits = lead >= 0 and all(
        d == 1 or may_equal(d, size) for d, size in zip(values.shape, shape[lead:], strict=True)
    )
    if not fits:
        raise ShapeError(
            f"at[...].{name}: the values are {values.type.strong()}, but the index names elements"
            f" of shape {shape_text(shape)}",
            loc=loc.current(),
            rule="values are broadcast to the shape of the elements",
        )
    values = spread(values, shape)
    if any(d == 0 for d in shape):
        return x
    if plan.is_basic and all(c.step == 1 for c in plan.cuts):
        return _write_block(x, plan, _combined(x, plan, values, combine))
    return _scatter(x, plan, values, combine, unique)


def _combined(x: Any, plan: Plan, values: Any, combine: Combine) -> Any:
    """What is written at the elements of an index without dims, each of which occurs once."""
    dropping = plan.mode in (IndexMode.DROP, IndexMode.FILL)
    if combine is Combine.SET and not dropping:
        return values
    old = read(x, replace(plan, mode=IndexMode.CLIP) if dropping else plan)
    new = _OPS[combine](old, values)
    if not dropping:
        return new
    places = [(i, x.shape[axis]) for axis, i in plan.arrays.items()]
    return ops.select(spread(is_inside(places), new.shape), new, old)


def _write_block(x: Any, plan: Plan, new: Any) -> Any:
    """Adjacent elements, each once."""
    sizes = [1 if k in plan.arrays else c.size for k, c in enumerate(plan.cuts)]
    block = reshape(new, sizes)
    backwards = [k for k, c in enumerate(plan.cuts) if c.reversed]
    if backwards:
        block = reverse(block, backwards)
    if all(a is b or a == b for a, b in zip(sizes, x.shape, strict=True)):
        return block
    starts = [
        plan.arrays[k] if k in plan.arrays else _position(x.shape[k], c)
        for k, c in enumerate(plan.cuts)
    ]
    return dynamic_update_slice(x, block, starts)


def _position(size: Dim, c: Cut) -> Any:
    """Where a slice begins in the array, as an array without dims."""
    return _scalar(size - c.limit if c.reversed else c.start)


def _is_whole(size: Dim, c: Cut) -> bool:
    return not c.dropped and c.start == 0 and c.limit == size and c.step == 1 and not c.reversed


def _scatter(x: Any, plan: Plan, values: Any, combine: Combine, unique: bool) -> Any:
    """Any elements: slices that are not whole dims become index arrays, too."""
    parts: list[int] = []
    whole: list[int] = []
    for k in plan.layout:
        if k is not None:
            (whole if _is_whole(x.shape[k], plan.cuts[k]) else parts).append(k)
    outer = len(plan.outer)
    shape = (*plan.outer, *[plan.cuts[k].size for k in parts])
    indices: dict[int, Any] = {}
    for axis, index in plan.arrays.items():
        indices[axis] = broadcast(index, shape, range(outer))
    for n, axis in enumerate(parts):
        line = _line(x.shape[axis], plan.cuts[axis])
        indices[axis] = broadcast(line, shape, [outer + n])
    for axis, c in enumerate(plan.cuts):
        if c.dropped:
            indices[axis] = spread(_position(x.shape[axis], c), shape)

    # The values: first the dims of the index arrays, then the parts, then the whole dims.
    place = plan.place
    rank = values.ndim
    front = [*range(place, place + outer), *range(place), *range(place + outer, rank)]
    updates = transpose(values, front)
    kept = [k for k in plan.layout if k is not None]
    updates = reshape(updates, (*plan.outer, *[plan.cuts[k].size for k in kept]))
    order = [outer + kept.index(k) for k in (*parts, *whole)]
    updates = transpose(updates, [*range(outer), *order])
    axes = sorted(indices)
    mode = IndexMode.DROP if plan.mode is IndexMode.FILL else plan.mode
    unique = unique or not plan.arrays
    return scatter(
        x, updates, [indices[a] for a in axes], axes, combine, mode, unique, plan.inside
    )


def _line(size: Dim, c: Cut) -> Any:
    """The positions of a slice."""
    line = iota((c.size,), 0, default_int)
    if c.step != 1:
        line = ops.mul(line, c.step)
    first = _scalar(c.start if not c.reversed else size - 1 - c.start)
    first = spread(first, line.shape)
    return ops.sub(first, line) if c.reversed else ops.add(line, first)


def _scalar(value: Dim) -> Any:
    return number(value, default_int) if isinstance(value, int) else size_of([value], default_int)
