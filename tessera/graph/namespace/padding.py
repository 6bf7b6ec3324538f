"""`pad`: arrays made longer at their ends, in NumPy's ways."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from tessera.dtypes import default_float, default_int
from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    is_number,
    is_numpy,
    spread,
    to_dtype,
)
from tessera.graph.namespace.quantiles import median
from tessera.graph.namespace.statistics import max as max_
from tessera.graph.namespace.statistics import mean, size_of
from tessera.graph.namespace.statistics import min as min_
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import rearrange
from tessera.graph.ops.rearrange import broadcast, concatenate, iota, reverse, slice_axis
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim, IntExpr

__all__ = [
    "pad",
]

Pairs = list[tuple[Any, Any]]


@composed
@api_boundary
def pad(
    x: ArrayLike,
    pad_width: Any,
    mode: str | Callable[..., Any] = "constant",
    *,
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
) -> ArrayBase:
    """An array with more elements before and after those of each dim.

    Args:
        x: the array.
        pad_width: how many: a number for all ends, a pair for the two ends of every dim, or a pair
            for each dim. A dict gives a number or a pair for some dims.
        mode: what they are. `constant`: `constant_values`. `edge`: the element at the end.
            `reflect`: the elements before it, backwards; `symmetric`: from it on. `wrap`: those of
            the other end. `linear_ramp`: on a line from the end to `end_values`. `maximum`,
            `mean`, `median`, `minimum`: of the whole dim, or of its `stat_length` elements next to
            the end. `empty`: any, here zeros.
        constant_values: for `constant`; in the forms of `pad_width`.
        end_values: for `linear_ramp`; in the forms of `pad_width`.
        stat_length: for the statistics; in the forms of `pad_width`. None is all elements.
        reflect_type: for `reflect` and `symmetric`: `even`, or `odd` for twice the end less the
            reflected elements.

    Example:
        >>> import tessera as ts
        >>> ts.pad(ts.arange(3), (1, 2), "edge")
        Array([0, 0, 1, 2, 2, 2], dtype=int64)
    """
    found = as_array("pad", x)
    if mode not in _MODES:
        raise OptionError(
            f"pad: mode={mode!r}", loc=loc.current(), rule=f"it is one of {', '.join(_MODES)}"
        )
    if reflect_type not in ("even", "odd"):
        raise OptionError(
            f"pad: reflect_type={reflect_type!r}", loc=loc.current(), rule="it is 'even' or 'odd'"
        )
    widths = [(_width(lo), _width(hi)) for lo, hi in _pairs("pad_width", pad_width, found.ndim, 0)]
    options: dict[str, Any] = {
        "constant_values": _pairs("constant_values", constant_values, found.ndim),
        "end_values": _pairs("end_values", end_values, found.ndim),
        "stat_length": _pairs("stat_length", stat_length, found.ndim),
        "odd": reflect_type == "odd",
    }
    if mode == "empty" or (mode == "constant" and _is_one(options["constant_values"])):
        value = options["constant_values"][0][0] if mode == "constant" and found.ndim else 0
        lows, highs = [lo for lo, _ in widths], [hi for _, hi in widths]
        return rearrange.pad(found, _value(found, value), lows, highs)
    for axis, (lo, hi) in enumerate(widths):
        if lo == 0 and hi == 0:
            continue
        if found.shape[axis] == 0 and mode != "constant":
            raise ShapeError(
                f"pad: dim {axis} of {found.type.strong()} has no elements",
                loc=loc.current(),
                rule=f"mode '{mode}' takes what it adds from those that there are",
                fix="use mode 'constant'",
            )
        found = _MODES[mode](found, axis, lo, hi, options)
    return found


def _is_one(pairs: Pairs) -> bool:
    """Whether all ends have one Python number."""
    first = pairs[0][0] if pairs else 0
    return all(is_number(v) and v is first for pair in pairs for v in pair)


def _pairs(what: str, given: Any, rank: int, default: Any = None) -> Pairs:
    """A pair for each dim, from any of NumPy's forms."""
    if isinstance(given, dict):
        found: Pairs = [(default, default)] * rank
        for axis, value in cast("dict[int, Any]", given).items():
            found[axis] = tuple(value) if _has_items(value) else (value, value)
        return found
    if not _has_items(given):
        return [(given, given)] * rank
    items = list(given)
    if any(_has_items(item) for item in items):
        pairs = [tuple(item) if _has_items(item) else (item, item) for item in items]
        pairs = [pair * 2 if len(pair) == 1 else pair for pair in pairs]
        if len(pairs) == 1:
            pairs = pairs * rank
        if len(pairs) == rank and all(len(pair) == 2 for pair in pairs):
            return [(a, b) for a, b in pairs]
    elif len(items) in (1, 2):
        return [(items[0], items[-1])] * rank
    raise ShapeError(
        f"pad: {what}={given!r} for an array of rank {rank}",
        loc=loc.current(),
        rule="it is a number, a pair, or a pair for each dim",
    )


def _has_items(value: Any) -> bool:
    return isinstance(value, (tuple, list)) or (is_numpy(value) and value.ndim > 0)


def _width(value: Any) -> Dim:
    if isinstance(value, IntExpr):
        return value
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise ShapeError(
            f"pad: pad_width has {value!r}",
            loc=loc.current(),
            rule="the numbers of elements are ints, 0 or more, known when the program is traced",
        )
    return found


def _value(x: Any, value: Any) -> Any:
    """A number or an array without dims, in the dtype of `x`."""
    found = to_dtype(value if is_number(value) else as_array("pad", value), x.dtype)
    if found.ndim:
        raise ShapeError(
            f"pad: a value is {found.type.strong()}", loc=loc.current(), rule="values have no dims"
        )
    return found


# --- ways of padding one dim ------------------------------------------------------------------


def _ends(x: Any, axis: int, lo: Dim, hi: Dim, before: Any, after: Any) -> Any:
    """The array between two slices of length 1 (or single values), repeated."""
    shapes = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for count in (lo, hi)]
    return concatenate([spread(before, shapes[0]), x, spread(after, shapes[1])], axis)


def _constant(x: Any, axis: int, lo: Dim, hi: Dim, options: dict[str, Any]) -> Any:
    values = [_value(x, v) for v in options["constant_values"][axis]]
    return _ends(x, axis, lo, hi, *values)


def _edge(x: Any, axis: int, lo: Dim, hi: Dim, options: dict[str, Any]) -> Any:
    size = x.shape[axis]
    first, last = slice_axis(x, axis, 0, 1), slice_axis(x, axis, size - 1, size)
    return _ends(x, axis, lo, hi, first, last)


def _ramp(x: Any, axis: int, lo: Dim, hi: Dim, options: dict[str, Any]) -> Any:
    size = x.shape[axis]
    values = [_value(x, v) for v in options["end_values"][axis]]
    parts: list[Any] = []
    for k, count in enumerate((lo, hi)):
        edge = slice_axis(x, axis, 0, 1) if k == 0 else slice_axis(x, axis, size - 1, size)
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        wide = x.dtype if x.dtype.is_inexact else default_float
        edge, end = (ops.cast(spread(v, shape), wide) for v in (edge, values[k]))
        steps = ops.cast(iota(shape, axis, default_int), wide)
        whole = spread(size_of([count], wide), shape)
        weights = ops.div(steps if k == 0 else ops.add(steps, 1), whole)
        start, stop = (end, edge) if k == 0 else (edge, end)
        line = ops.add(start, ops.mul(ops.sub(stop, start), weights))
        line = line if x.dtype.is_inexact else ops.floor(line)
        parts.append(ops.cast(line, x.dtype))
    return concatenate([parts[0], x, parts[1]], axis)


def _statistic(function: Callable[..., Any]) -> Callable[..., Any]:
    def padded(x: Any, axis: int, lo: Dim, hi: Dim, options: dict[str, Any]) -> Any:
        size = x.shape[axis]
        found: list[Any] = []
        for k, length in enumerate(options["stat_length"][axis]):
            near = size if length is None else min(operator.index(length), size)
            if near == 0:
                raise ShapeError(
                    "pad: stat_length is 0", loc=loc.current(), rule="it is 1 or more"
                )
            part = slice_axis(x, axis, *((0, near) if k == 0 else (size - near, size)))
            value = function(part, axis=axis, keepdims=True)
            exact = not x.dtype.is_integer or value.dtype.is_integer
            found.append(ops.cast(value if exact else ops.round_(value), x.dtype))
        return _ends(x, axis, lo, hi, *found)

    return padded


def _wrap(x: Any, axis: int, lo: Dim, hi: Dim, options: dict[str, Any]) -> Any:
    size = x.shape[axis]
    whole = [-(-n // size) for n in (lo, hi)]
    count = whole[0] + 1 + whole[1]
    shape = (*x.shape[:axis], count, *x.shape[axis:])
    many = broadcast(x, shape, [k + (k >= axis) for k in range(x.ndim)])
    many = rearrange.reshape(many, (*x.shape[:axis], count * size, *x.shape[axis + 1 :]))
    start = whole[0] * size - lo
    return slice_axis(many, axis, start, start + lo + size + hi)


def _mirror(edge: int) -> Callable[..., Any]:
    """Reflection; `edge` is 1 if the element at the end is not repeated."""

    def padded(x: Any, axis: int, lo: Any, hi: Any, options: dict[str, Any]) -> Any:
        if x.shape[axis] == 1 and edge:
            return _edge(x, axis, lo, hi, options)
        # Each round adds as many as there are, so the array doubles or more.
        while lo != 0 or hi != 0:
            size = x.shape[axis]
            before, after = (min(n, size - edge) for n in (lo, hi))
            first = reverse(slice_axis(x, axis, edge, edge + before), (axis,))
            last = reverse(slice_axis(x, axis, size - edge - after, size - edge), (axis,))
            if options["odd"]:
                ends = slice_axis(x, axis, 0, 1), slice_axis(x, axis, size - 1, size)
                first, last = (
                    ops.sub(ops.mul(spread(end, part.shape), 2), part)
                    for end, part in zip(ends, (first, last), strict=True)
                )
            x = concatenate([first, x, last], axis)
            lo, hi = lo - before, hi - after
        return x

    return padded


_MODES: dict[Any, Callable[..., Any]] = {
    "constant": _constant,
    "edge": _edge,
    "reflect": _mirror(1),
    "symmetric": _mirror(0),
    "wrap": _wrap,
    "linear_ramp": _ramp,
    "maximum": _statistic(max_),
    "mean": _statistic(mean),
    "median": _statistic(median),
    "minimum": _statistic(min_),
    "empty": _constant,
}
