"""Which sizes of an eager op are run-time values, and which of them are one.

The executable of an op serves every size, so each dim of each operand is a symbol of its own;
only dims that the op itself requires to be equal share one, however many happen to be equal. Also
sizes 0 and 1 are run-time values: errors about them come from the op on its concrete sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from tessera.eager_repeats import WORTH
from tessera.graph.ops import cumulative, dynamic_slice, gather, rearrange, reduce, sort
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.generate import RandomBits
from tessera.graph.ops.largest import Largest
from tessera.graph.ops.quantize import Dequantize, Quantize
from tessera.graph.ops.reshape import Broadcast
from tessera.graph.trace import items_of
from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, IntExpr, sym
from tessera.ir.opdef import attr_hints

Attrs: TypeAlias = dict[str, Any]
Shapes: TypeAlias = Sequence[tuple[int, ...]]
Labels: TypeAlias = list[list[Hashable]]
"""For each dim of each operand its name: equal names are equal sizes. None: a static size."""

Tie: TypeAlias = Callable[[Labels, Attrs], None]


def _tie_all(labels: Labels, attrs: Attrs) -> None:
    labels[1:] = [labels[0]] * (len(labels) - 1)


def _tie_contract(labels: Labels, attrs: Attrs) -> None:
    lhs, rhs = labels
    for pairs in (attrs["contract"], attrs.get("batch_axes", ((), ()))):
        for a, b in zip(*pairs, strict=True):
            rhs[b] = lhs[a]


def _tie_concatenate(labels: Labels, attrs: Attrs) -> None:
    axis = attrs["axis"]
    for other in labels[1:]:
        other[:axis], other[axis + 1 :] = labels[0][:axis], labels[0][axis + 1 :]


def _tie_gather(labels: Labels, attrs: Attrs) -> None:
    labels[1:] = labels[1:2] * (len(labels) - 1)


def _tie_scatter(labels: Labels, attrs: Attrs) -> None:
    rest = [label for k, label in enumerate(labels[0]) if k not in attrs["axes"]]
    outer = labels[2] if len(labels) > 2 else []
    labels[1] = [*outer, *rest]
    labels[3:] = [outer] * (len(labels) - 3)


def _tie_dynamic_slice(labels: Labels, attrs: Attrs) -> None:
    labels[1:] = [labels[0][: len(outer)] for outer in labels[1:]]


def _tie_dynamic_update(labels: Labels, attrs: Attrs) -> None:
    x, update, *starts = labels
    outer = len(x) - len(starts)
    update[:outer] = x[:outer]
    labels[2:] = [x[:outer]] * len(starts)


def _tie_random(labels: Labels, attrs: Attrs) -> None:
    labels[0][-1] = None  # a key has two words


def _tie_blocks(labels: Labels, attrs: Attrs) -> None:
    array, *scales = labels
    for k, block in enumerate(attrs["block"]):
        if block > 1:
            array[k] = None
        for scale in scales:
            scale[k] = array[k] if block == 1 else None


def _tie_largest(labels: Labels, attrs: Attrs) -> None:
    labels[0][-1] = None  # rows are selected from only where their length is known


_TIES: dict[type[Op], Tie] = {
    Quantize: _tie_blocks,
    Dequantize: _tie_blocks,
    DotGeneral: _tie_contract,
    RandomBits: _tie_random,
    dynamic_slice.DynamicSlice: _tie_dynamic_slice,
    dynamic_slice.DynamicUpdateSlice: _tie_dynamic_update,
    gather.Gather: _tie_gather,
    gather.Scatter: _tie_scatter,
    Largest: _tie_largest,
    rearrange.Concatenate: _tie_concatenate,
    sort.Sort: _tie_all,
}


FEW_COLUMNS = 4
"""Columns that are put together where their number is known."""


class SizeMap:
    """Symbols for sizes, and the values that they have in one call."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._known: dict[Hashable, IntExpr] = {}

    def fresh(self, size: int) -> IntExpr:
        """A new symbol for a size."""
        symbol = sym(f"d{len(self.values)}")
        self.values.append(size)
        return symbol

    def named(self, label: Hashable, size: int) -> Dim:
        """The symbol of that name."""
        if label is None:
            return size
        found = self._known.get(label)
        if found is None:
            found = self._known[label] = self.fresh(size)
        return found

    @property
    def names(self) -> list[str]:
        """The names of the symbols."""
        return [f"d{k}" for k in range(len(self.values))]


class Pattern(SizeMap):
    """The last resort: equal sizes share a symbol, 1 and 0 stay as they are."""

    def dim(self, size: int) -> Dim:
        """The symbol of a size."""
        return self.named(size if size > 1 else None, size)

    def attribute(self, value: Any) -> Any:
        """An attribute whose integers are sizes."""
        if isinstance(value, tuple):
            return tuple([self.attribute(v) for v in items_of(value)])
        return self.dim(value) if isinstance(value, int) else value


_GENERIC: dict[type[Op], frozenset[str]] = {}


def _generic_attrs(cls: type[Op]) -> frozenset[str]:
    """Names of the attributes that hold dims, which the generic executable takes at run time."""
    found = _GENERIC.get(cls)
    if found is None:
        found = frozenset(k for k, hint in attr_hints(cls).items() if "IntExpr" in str(hint))
        _GENERIC[cls] = found
    return found


def with_known_updates(
    cls: type[Op], shapes: Shapes, attrs: Attrs
) -> tuple[SizeMap, list[tuple[Dim, ...]], Attrs]:
    """As `symbolic`, for a scatter whose updates are sorted, in as many kernels as there are sizes
    of parts: their number is known."""
    return symbolic(cls, shapes, attrs, True)


def symbolic(
    cls: type[Op], shapes: Shapes, attrs: Attrs, known_updates: bool = False
) -> tuple[SizeMap, list[tuple[Dim, ...]], Attrs]:
    """Shapes and attributes with a symbol for every size."""
    labels: Labels = [[(k, axis) for axis in range(len(s))] for k, s in enumerate(shapes)]
    tie = _TIES.get(cls)
    if tie is not None:
        tie(labels, attrs)
    if cls is rearrange.Concatenate and attrs["axis"] and _are_few_columns(shapes):
        # As `collapse` leaves them, these are columns of short rows: one kernel writes whole rows.
        for names in labels:
            names[-1] = None
    if known_updates and len(shapes) > 2:
        outer: list[Hashable] = [None] * len(shapes[2])
        labels[1] = [*outer, *labels[1][len(outer) :]]
        labels[2:] = [outer] * (len(shapes) - 2)
    sizes = SizeMap()
    found = [
        tuple([sizes.named(label, size) for label, size in zip(names, shape, strict=True)])
        for names, shape in zip(labels, shapes, strict=True)
    ]
    changed = dict(attrs)
    if cls is Broadcast:
        # All dims of the operand are the result's: `collapse` has left no others.
        kept = dict(zip(attrs["dims"], found[0], strict=True))
        shape = [kept[k] if k in kept else sizes.fresh(n) for k, n in enumerate(attrs["shape"])]
        return sizes, found, {**changed, "shape": tuple(shape)}
    for name in sorted(_generic_attrs(cls) & attrs.keys()):
        values: tuple[int, ...] = attrs[name]
        changes = _padded(attrs) if cls is rearrange.Pad else range(len(values))
        if name == "interior" and not any(values):
            changed[name] = ()  # the rule, and without division by a step
        else:
            # Dims without any padding need no conditions.
            changed[name] = tuple(
                [sizes.fresh(n) if k in changes else 0 for k, n in enumerate(values)]
            )
    return sizes, found, changed


def _are_few_columns(shapes: Shapes) -> bool:
    columns = sum([shape[-1] for shape in shapes])
    return columns <= FEW_COLUMNS and columns * shapes[0][0] >= WORTH


def _interior(attrs: Attrs) -> tuple[int, ...]:
    return attrs.get("interior") or (0,) * len(attrs["lo"])


def _padded(attrs: Attrs) -> list[int]:
    """The dims that a padding op changes."""
    amounts = zip(attrs["lo"], attrs["hi"], _interior(attrs), strict=True)
    return [k for k, each in enumerate(amounts) if any(each)]


def patterned(
    cls: type[Op], shapes: Shapes, attrs: Attrs
) -> tuple[SizeMap, list[tuple[Dim, ...]], Attrs]:
    """Shapes and attributes with a symbol for all equal sizes above 1."""
    sizes = Pattern()
    found = [tuple([sizes.dim(size) for size in shape]) for shape in shapes]
    generic = _generic_attrs(cls)
    return sizes, found, {k: sizes.attribute(v) if k in generic else v for k, v in attrs.items()}


def collapse(cls: type[Op], shapes: Shapes, attrs: Attrs) -> tuple[Shapes, Attrs]:
    """The same computation on the same memory with fewer dims.

    Neighbours that the op treats alike become one dim, so that one executable serves all ranks, and
    dims of 1 that it only carries along disappear: kernels would take them for worth vectorizing.
    """
    if cls is rearrange.Concatenate:
        axis: int = attrs["axis"]
        outer = math.prod(shapes[0][:axis])
        inner = [math.prod(s[axis:]) for s in shapes]
        if outer == 1:
            return [(n,) for n in inner], {**attrs, "axis": 0}
        return [(outer, n) for n in inner], {**attrs, "axis": 1}
    if cls is DotGeneral:
        return _collapse_contract(shapes, attrs)
    if cls is Broadcast:
        return _collapse_broadcast(shapes[0], attrs)
    if cls is rearrange.Pad:
        return _collapse_pad(shapes, attrs)
    if issubclass(cls, reduce.Reduce):
        merged, places = _merge(shapes, attrs["axes"])
        return merged, {**attrs, "axes": places}
    if issubclass(cls, (cumulative.Cumulative, reduce.ArgReduce, sort.Sort)):
        merged, places = _merge(shapes, (attrs["axis"],))
        return merged, {**attrs, "axis": places[0]}
    return shapes, attrs


def _merge(shapes: Shapes, axes: Sequence[int]) -> tuple[Shapes, tuple[int, ...]]:
    """Shapes, equal outside the axes, whose neighbouring axes and other dims are one each; and the
    axes in them.
    """
    runs: list[tuple[int, int]] = []
    for inside, group in itertools.groupby(range(len(shapes[0])), lambda k: k in axes):
        run = list(group)
        if inside or math.prod(shapes[0][run[0] : run[-1] + 1]) != 1:
            runs.append((run[0], run[-1] + 1))
    places = tuple([k for k, (start, _) in enumerate(runs) if start in axes])
    return [tuple([math.prod(s[a:b]) for a, b in runs]) for s in shapes], places


def _collapse_contract(shapes: Shapes, attrs: Attrs) -> tuple[Shapes, Attrs]:
    found: list[tuple[int, ...]] = []
    pairs = {name: attrs.get(name, ((), ())) for name in ("contract", "batch_axes")}
    moved: dict[str, list[tuple[int, ...]]] = {name: [] for name in pairs}
    for side, shape in enumerate(shapes):
        used = {axis for pair in pairs.values() for axis in pair[side]}
        kept = [k for k, n in enumerate(shape) if n != 1 or k in used]
        found.append(tuple([shape[k] for k in kept]))
        for name, pair in pairs.items():
            moved[name].append(tuple([kept.index(axis) for axis in pair[side]]))
    return found, {**attrs, **{name: tuple(pair) for name, pair in moved.items()}}


def _collapse_broadcast(operand: tuple[int, ...], attrs: Attrs) -> tuple[Shapes, Attrs]:
    """Runs of dims that the operand has, and of dims along which it is repeated."""
    kept = {dim for dim, n in zip(attrs["dims"], operand, strict=True) if n != 1}
    shape: list[int] = []
    dims: list[int] = []
    last: bool | None = None
    for k, n in enumerate(attrs["shape"]):
        inside = k in kept
        if not inside and n == 1:
            continue
        if inside is last:
            shape[-1] *= n
        else:
            dims += [len(shape)] if inside else []
            shape.append(n)
            last = inside
    return [tuple([shape[d] for d in dims])], {**attrs, "shape": tuple(shape), "dims": tuple(dims)}


def _collapse_pad(shapes: Shapes, attrs: Attrs) -> tuple[Shapes, Attrs]:
    amounts = {"lo": attrs["lo"], "hi": attrs["hi"], "interior": _interior(attrs)}
    padded = _padded(attrs)
    # Neighbours that are padded stay apart: each has amounts of its own.
    shape: list[int] = []
    starts: list[int] = []
    for k, n in enumerate(shapes[0]):
        if starts and k not in padded and k - 1 not in padded:
            shape[-1] *= n
        else:
            shape.append(n)
            starts.append(k)
    changed = {name: tuple([values[k] for k in starts]) for name, values in amounts.items()}
    return [tuple(shape), *shapes[1:]], {**attrs, **changed}
