"""Reading parts of arrays: `x[...]`.

An index is taken apart into a `Plan`: cuts along whole dims, which are slices, and index arrays,
which are one gather. NumPy's rules say where the dims of index arrays stand in the result. Index
arrays whose values are known are checked; those of tracers are clamped into range.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, cast

import numpy as np

from tessera.dtypes import DType, Kind, bool_, iinfo, int32, int64
from tessera.errors import (
    ConcretizationError,
    DTypeError,
    IndexOutOfBoundsError,
    OptionError,
    ShapeError,
    api_boundary,
    hide_own_frames,
)
from tessera.graph.array import READERS, Array, ArrayBase, view_of
from tessera.graph.namespace.arguments import (
    as_array,
    broadcast_dims,
    concrete,
    is_numpy,
    number,
    spread,
)
from tessera.graph.namespace.bounds import require_inside
from tessera.graph.namespace.choosing import chosen
from tessera.graph.namespace.statistics import size_of
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import largest, may_equal
from tessera.graph.ops.gather import IndexMode, gather
from tessera.graph.ops.rearrange import broadcast, reshape, reverse, slice_, transpose
from tessera.graph.placement import device_of, placed
from tessera.graph.remote import Remote
from tessera.graph.steps import followed
from tessera.graph.trace import Tracer, is_recording, is_tracing
from tessera.ir import loc
from tessera.ir.intexpr import Dim, IntExpr, ceildiv, maximum, minimum, simplify
from tessera.ir.types import TensorType

_MASK_FIX = "use `ts.where(mask, x, 0)`, which keeps the shape"


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of one dim: elements `start`, `start + step`, ... below `limit`, maybe reversed."""

    start: Dim
    limit: Dim
    step: int = 1
    reversed: bool = False
    dropped: bool = False
    """Whether an int chose the one element, so that the dim is gone from the result."""

    @property
    def size(self) -> Dim:
        """How many elements there are."""
        return ceildiv(self.limit - self.start, self.step)


@dataclass(slots=True)
class Plan:
    """An index, taken apart.

    Attributes:
        cuts: one per dim of the array; dims with an index array are kept whole.
        arrays: index arrays of one shape, by the dim that they index.
        outer: the shape of the index arrays.
        place: before which of the result's other dims the dims of the index arrays stand.
        layout: the other dims of the result, in order; None is a new one, of length 1.
        mode: what to do where an index is out of range.
        inside: whether none is meant to be, as the program does not say what to do.
    """

    cuts: list[Cut]
    arrays: dict[int, Any]
    outer: tuple[Dim, ...] = ()
    place: int = 0
    layout: list[int | None] = field(default_factory=list[int | None])
    mode: IndexMode = IndexMode.PROMISE
    inside: bool = False

    @property
    def is_basic(self) -> bool:
        """Whether there are no index arrays with dims of their own, so that no element repeats."""
        return not self.outer

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the result."""
        rest: list[Dim] = [1 if d is None else self.cuts[d].size for d in self.layout]
        return (*rest[: self.place], *self.outer, *rest[self.place :])


# --- taking an index apart --------------------------------------------------------------------


_MODES = {
    "clip": IndexMode.CLIP,
    "drop": IndexMode.FILL,
    "fill": IndexMode.FILL,
    "promise_in_bounds": IndexMode.PROMISE,
    "raise": IndexMode.RAISE,
}


def parse_mode(name: str, mode: str | None) -> IndexMode | None:
    """A `mode` argument; None leaves known indices to be checked, and others to be clamped."""
    if mode is None:
        return None
    if mode not in _MODES:
        raise OptionError(
            f"{name}: mode={mode!r}",
            loc=loc.current(),
            rule="it is 'clip', 'drop', 'fill', 'promise_in_bounds' or 'raise'",
        )
    return _MODES[mode]


def plan_index(type: TensorType, index: Any, mode: IndexMode | None = None) -> Plan:
    """Takes an index of an array of the given type apart.

    Args:
        type: the array's type.
        index: what stands in the brackets.
        mode: what becomes of ints and index arrays that are out of range. None refuses those that
            are known when the program is traced, and clamps the others.
    """
    items = _expand(type, cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,))
    plan = Plan([Cut(0, d) for d in type.shape], {})
    arrays: dict[int, Any] = {}
    advanced = any(_is_array(item) and item.ndim for item in items)
    axis = 0
    position = -1
    groups = 0
    adjacent = False
    for item in items:
        if item is None:
            plan.layout.append(None)
            adjacent = False
        elif isinstance(item, slice):
            plan.cuts[axis] = _slice(type, axis, cast(Any, item))
            plan.layout.append(axis)
            axis += 1
            adjacent = False
        else:
            if _is_array(item):
                arrays[axis] = item
            elif mode in (None, IndexMode.PROMISE) or _is_inside_dim(type, axis, item):
                at = _static_index(type, axis, item)
                if advanced:
                    arrays[axis] = Array(np.asarray(at, np.int64))
                else:
                    plan.cuts[axis] = Cut(at, at + 1, dropped=True)
            else:
                arrays[axis] = Array(np.asarray(item, np.int64))
            if position < 0:
                position = len(plan.layout)
            groups += not adjacent
            adjacent = True
            axis += 1
    if arrays:
        plan.place = position if groups == 1 else 0
        _broadcast_arrays(type, plan, arrays, mode)
    return plan


def _is_inside_dim(type: TensorType, axis: int, index: Any) -> bool:
    """Whether an int index is not known to be out of range."""
    size = type.shape[axis]
    return not (isinstance(size, int) and isinstance(index, int)) or -size <= index < size


def _is_array(item: object) -> bool:
    return isinstance(item, ArrayBase)


def _expand(type: TensorType, items: Sequence[Any]) -> list[Any]:
    """One item per dim, besides None for new dims: masks become indices, `...` becomes slices."""
    parsed = [item if item is None or item is Ellipsis else _parse(type, item) for item in items]
    if sum(item is Ellipsis for item in parsed) > 1:
        raise _bad_index("the index has two `...`", "there is one `...` at most")
    used = sum(_dims_used(item) for item in parsed)
    if used > type.rank:
        raise IndexOutOfBoundsError(
            f"index: {used} indices for {type}",
            loc=loc.current(),
            rule=f"an array takes at most one index for each dim, here {type.rank}",
        )
    if not any(item is Ellipsis for item in parsed):
        parsed.append(Ellipsis)
    found: list[Any] = []
    axis = 0
    for item in parsed:
        if item is Ellipsis:
            found += [slice(None)] * (type.rank - used)
            axis += type.rank - used
        else:
            found += _mask(type, axis, item) if _is_mask(item) else [item]
            axis += _dims_used(item)
    return found


def _is_mask(item: Any) -> bool:
    return isinstance(item, ArrayBase) and item.dtype is bool_


def _dims_used(item: Any) -> int:
    """How many dims of the array an item of an index takes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _parse(type: TensorType, item: Any) -> Any:
    """An item as a slice, an int, or an array of integers or bools."""
    if isinstance(item, (slice, IntExpr)):
        return cast(Any, item)
    if isinstance(item, (bool, np.bool_)):
        return Array(np.asarray(item, np.bool_))
    if isinstance(item, int):
        return item
    if is_numpy(item) or isinstance(item, list):
        data = np.array(cast(Any, item))
        item = Array(data.astype(np.int64) if data.size == 0 and data.dtype.kind == "f" else data)
    if not isinstance(item, ArrayBase):
        raise _bad_index(
            f"an array of type {type} is indexed with a value of type {item.__class__.__name__}",
            "an index is an int, a slice, `...`, None, or an array of integers or bools",
            "convert it with `int`, or divide with `//`" if isinstance(item, float) else None,
        )
    if not (item.dtype.is_integer or item.dtype.is_bool):
        raise _bad_index(
            f"an index has type {item.type.strong()}", "index arrays hold integers or bools"
        )
    if isinstance(item, Array) and not item.ndim and item.dtype.is_integer:
        # To wait for what is on a device would take longer than to look there.
        return item if isinstance(item.storage, Remote) else int(item.host[()])
    return item


def _bad_index(what: str, rule: str, fix: str | None = None) -> DTypeError:
    return DTypeError(f"index: {what}", loc=loc.current(), rule=rule, fix=fix)


def _mask(type: TensorType, axis: int, mask: Any) -> list[Any]:
    """The indices of a mask's true elements."""
    if not mask.ndim:
        raise _bad_index(
            "a bool without dims stands among other indices", "such an index stands alone"
        )
    data = concrete(mask, "use as a boolean index", _MASK_FIX)
    wanted = type.shape[axis : axis + data.ndim]
    if len(wanted) != data.ndim or any(
        a and not may_equal(a, b) for a, b in zip(data.shape, wanted, strict=True)
    ):
        raise IndexOutOfBoundsError(
            f"index: a mask of type {mask.type.strong()} for dims {axis} to"
            f" {axis + data.ndim - 1} of {type}",
            loc=loc.current(),
            rule="a mask has the lengths of the dims that it selects from, or 0",
        )
    return [placed(index, device_of(mask)) for index in np.nonzero(data)]


def _static_index(type: TensorType, axis: int, index: Any) -> Dim:
    """An int index, counted from the front."""
    size = type.shape[axis]
    if isinstance(size, int) and isinstance(index, int) and not -size <= index < size:
        raise IndexOutOfBoundsError(
            f"index: {index} is out of range for dim {axis} of {type}",
            loc=loc.current(),
            rule=f"-{size} <= index < {size}" if size else "the dim has no elements",
        )
    return size + index if isinstance(index, int) and index < 0 else index


def _slice(type: TensorType, axis: int, item: slice) -> Cut:
    size = type.shape[axis]
    try:
        step = 1 if item.step is None else operator.index(item.step)
        start = None if item.start is None else _bound(item.start)
        stop = None if item.stop is None else _bound(item.stop)
    except ConcretizationError:
        raise
    except TypeError:
        raise _bad_index(
            f"a slice of {type} is {_slice_text(item)}",
            "the ends and the step of a slice are ints, known when the program is traced",
        ) from None
    if step == 0:
        raise _bad_index(f"a slice of {type} has step 0", "a step is not 0")
    if step > 0:
        first = _inside(start, size, 0)
        last = _inside(stop, size, size)
        return Cut(first, _at_least(last, first), step)
    # In the reversed array, element i is element size - 1 - i.
    first = 0 if start is None else size - 1 - _inside_reversed(start, size)
    last = size if stop is None else size - 1 - _inside_reversed(stop, size)
    return Cut(first, _at_least(last, first), -step, reversed=True)


def _at_least(limit: Dim, start: Dim) -> Dim:
    """The limit of a slice, which is empty where it would end before it starts."""
    found = maximum(limit, start)
    return simplify(found) if isinstance(found, IntExpr) else found


def _bound(value: Any) -> Dim:
    if isinstance(value, IntExpr):
        return value
    if isinstance(value, Tracer):
        value.concretize(
            "use as an end of a slice",
            "gather with an index array, `x[start + ts.arange(length)]`, or make it static",
        )
    return operator.index(value)


def _slice_text(item: slice) -> str:
    ends = [getattr(v, "type", v) for v in (item.start, item.stop, item.step)]
    return ":".join("" if v is None else str(v) for v in ends)


def _inside(value: Dim | None, size: Dim, default: Dim) -> Dim:
    """An end of a slice, within the dim."""
    if value is None:
        return default
    if isinstance(value, int) and value < 0:
        return maximum(size + value, 0)
    return minimum(value, size)


def _inside_reversed(value: Dim, size: Dim) -> Dim:
    """An end of a slice that runs backwards: -1 is before the first element."""
    if isinstance(value, int) and value < 0:
        return maximum(size + value, -1)
    return minimum(value, size - 1)


def _broadcast_arrays(
    type: TensorType, plan: Plan, arrays: dict[int, Any], mode: IndexMode | None
) -> None:
    shape = broadcast_dims([x.shape for x in arrays.values()])
    if isinstance(shape, int):
        raise ShapeError(
            "index: index arrays are "
            + " and ".join([str(x.type.strong()) for x in arrays.values()]),
            loc=loc.current(),
            rule="index arrays are broadcast to one shape",
        )
    prepared = {axis: wrapped(type, axis, x, mode) for axis, x in arrays.items()}
    if not all(known for _, known in prepared.values()):
        # What is checked is in range; that it is used clipped costs nothing where it is wrong.
        plan.mode = IndexMode.CLIP if mode in (None, IndexMode.RAISE) else mode
        plan.inside = mode in (None, IndexMode.PROMISE)
    plan.outer = shape
    plan.arrays = {axis: spread(x, shape) for axis, (x, _) in prepared.items()}


def wrapped(
    type: TensorType, axis: int, index: Any, mode: IndexMode | None = None
) -> tuple[Any, bool]:
    """An index array counted from the front, and whether all of it is known to be in range.

    One that is known not to be is refused, unless the mode says what becomes of it. The mode
    `raise` checks the others while the program runs.
    """
    size = type.shape[axis]
    wide = _index_dtype(index.dtype, size)
    known = isinstance(index, Array) and not isinstance(index.storage, Remote)
    if known and isinstance(size, int):
        data = index.host
        if data.size and data.min() >= 0 and data.max() < size:
            is_fit = data.dtype == wide.np and not index.weak
            return index if is_fit else Array(data.astype(wide.np)), True
        bad = (data >= size) | (data < -size) if index.dtype.kind.value == "int" else data >= size
        known = not bad.any()
        if not known and mode in (None, IndexMode.PROMISE, IndexMode.RAISE):
            raise IndexOutOfBoundsError(
                f"index: {data[bad][0]} is out of range for dim {axis} of {type}",
                loc=loc.current(),
                rule=f"-{size} <= index < {size}" if size else "the dim has no elements",
            )
        moved = data.astype(wide.np)
        return Array(np.where(moved < 0, moved + wide.np.type(size), moved)), known
    found = ops.cast(index, wide)
    if index.dtype.kind.value == "int":
        length = spread(size_of([size], wide), found.shape)
        found = ops.select(ops.lt(found, 0), ops.add(found, length), found)
    if mode is IndexMode.RAISE:
        require_inside(type, axis, index, is_inside([(found, size)]), size_of([size], int64))
    return found, False


def _index_dtype(dtype: DType, size: Dim) -> DType:
    """A dtype for the indices of a dim, in which adding its length does not overflow."""
    most = largest(size)
    small = most is not None and most < 2**30
    return int32 if small and dtype.bits <= 32 and str(dtype) != "u32" else int64


# --- reading ----------------------------------------------------------------------------------


def cut(x: Any, cuts: Sequence[Cut]) -> Any:
    """Slices every dim; dims that ints chose keep length 1."""
    axes = tuple([k for k, c in enumerate(cuts) if c.reversed])
    if axes:
        x = reverse(x, axes)
    return slice_(x, [c.start for c in cuts], [c.limit for c in cuts], [c.step for c in cuts])


def read(x: Any, plan: Plan) -> Any:
    """The elements that an index names."""
    found = cut(x, plan.cuts)
    if plan.arrays:
        axes = sorted(plan.arrays)
        found = gather(found, [plan.arrays[a] for a in axes], axes, plan.mode, plan.inside)
        # The dims of the index arrays are in front; `before` of the others belong before them.
        outer = len(plan.outer)
        rest = [k for k in range(x.ndim) if k not in plan.arrays]
        kept = [k for k in plan.layout[: plan.place] if k is not None]
        before = rest.index(kept[-1]) + 1 if kept else 0
        order = [*range(outer, outer + before), *range(outer), *range(outer + before, found.ndim)]
        found = transpose(found, order)
    return reshape(found, plan.shape)


def read_or_fill(x: Any, plan: Plan, fill: Any) -> Any:
    """The elements that an index names, and a value where it is out of range."""
    if plan.mode is not IndexMode.FILL:
        return read(x, plan)
    plan.mode = IndexMode.DROP
    found = read(x, plan)
    dims = range(plan.place, plan.place + len(plan.outer))
    places = [(i, x.shape[axis]) for axis, i in plan.arrays.items()]
    return fill_outside(found, places, dims, fill)


def fill_outside(
    found: Any, places: Sequence[tuple[Any, Dim]], dims: Sequence[int], fill: Any
) -> Any:
    """What was read, and a value where one of the places is out of range.

    Args:
        found: what was read.
        places: index arrays, and the lengths that they index.
        dims: the dims of `found` that are those of the index arrays.
        fill: the value; None is the dtype's (`default_fill`).
    """
    value = number(default_fill(found.dtype) if fill is None else fill, found.dtype)
    inside = broadcast(is_inside(places), found.shape, dims)
    return ops.select(inside, found, spread(value, found.shape))


def is_inside(places: Sequence[tuple[Any, Dim]]) -> Any:
    """Where index arrays of one shape are all in range of the lengths that they index."""
    inside: Any = None
    for index, size in places:
        length = spread(size_of([size], index.dtype), index.shape)
        here = ops.and_(ops.ge(index, 0), ops.lt(index, length))
        inside = here if inside is None else ops.and_(inside, here)
    return inside


def default_fill(dtype: DType) -> float | int | bool:
    """What stands for elements that do not exist: NaN, else what is least likely to be one."""
    if dtype.is_inexact:
        return nan
    if dtype.is_bool:
        return True
    limits = iinfo(dtype)
    return limits.min if dtype.kind is Kind.INT else limits.max


_FEW = 4096
"""Places that NumPy reads, of rows of eight elements on average."""

_BASIC = frozenset({int, slice, type(None), type(...)})


def read_at_once(x: Array, index: Any) -> Array | None:
    """`x[index]` for a concrete array and a known index, by NumPy; None where that fails."""
    data = x.storage
    if isinstance(data, Remote) or READERS:  # who is told what happens sees programs
        return None
    if type(index) is Array and index.ndim == x.ndim and (picked := chosen(x, index)) is not None:
        return picked
    items = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    count, is_mask = 0, False
    for item in items:
        if type(item) is Array and item.ndim and not isinstance(item.storage, Remote):
            places = item.host
            is_mask = is_mask or places.dtype == np.bool_
            count = max(count, places.size)
            found.append(places)
        elif type(item) in _BASIC:
            found.append(item)
        else:
            return None
    if count > _FEW // 8 and not is_mask and count * data.size > 8 * _FEW * data.shape[0]:
        return None  # programs read many in less time
    try:
        return Array(np.asarray(data[tuple(found)]))
    except (IndexError, TypeError, ValueError):
        return None  # the long way says what is wrong


def is_scalar_mask(index: Any) -> bool:
    """Whether an index is a single bool."""
    if isinstance(index, ArrayBase):
        return index.dtype is bool_ and not index.ndim
    return isinstance(index, (bool, np.bool_))


_SMALL = 4096


def _is_plain(items: tuple[Any, ...]) -> bool:
    """Whether an index has no arrays, and nothing that stands for several dims."""
    for item in items:
        kind = item.__class__
        if kind is not int and kind is not slice:
            return False
    return True


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`."""
    kind = index.__class__
    if (kind is int or kind is slice or kind is tuple) and type(x) is Array and not is_recording():
        data = x.storage
        if type(data) is np.ndarray and (kind is not tuple or _is_plain(index)):
            try:
                # A number, for an element of a large array: a view would keep that.
                if kind is slice or data.nbytes > _SMALL:
                    found = data[index]
                else:
                    found = data[(*index, ...)] if kind is tuple else data[index, ...]
            except (IndexError, TypeError, ValueError):
                pass  # the long way says what is wrong
            else:
                if type(found) is not np.ndarray:
                    found = np.array(x.host[index])
                return view_of(found)
    try:
        return followed(_getitem, getitem, (x, index), {}) if is_recording() else _getitem(x, index)
    except BaseException as error:
        hide_own_frames(error)
        raise


@api_boundary
def _getitem(x: Any, index: Any) -> Any:
    if type(x) is Array and not is_tracing():
        found = read_at_once(x, index)
        if found is not None:
            return found
    if is_scalar_mask(index):
        # A mask without dims selects all or nothing along a new dim.
        chosen = concrete(as_array("index", index), "use as a boolean index", _MASK_FIX)
        x, index = reshape(x, (1, *x.shape)), slice(0, int(chosen))
    return read(x, plan_index(x.type, index))
