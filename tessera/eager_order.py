"""Large operands that do not lie in memory in row-major order, computed as they lie.

`2 * a.T` reads the elements of `a` one after the other and gives the transpose of `2 * a`, and a
sum of `a.T` along its rows is one of `a` along its columns: nothing is turned. `a[:, 3:8]` is a
part of each row of a larger array, and `a[::-1]` one whose rows are read backwards: programs have
the space between rows as one more size (`Spaces`). Where elements are to be in row-major order a
compiled transpose puts them there, in a fifth of NumPy's time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.graph.array import Array, view_of
from tessera.graph.ops import cumulative, rearrange, reduce
from tessera.graph.ops import reshape as s
from tessera.graph.ops.contract import DotGeneral
from tessera.ir.builder import Builder
from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, sym
from tessera.runtime.dispatch.direct import MOST_COPIED, contiguous

_SHORTEST = 8
"""A last dim in memory that is shorter fills no vectors: NumPy turns it as fast."""

_MOST_STEP = 4
"""Elements from one that is read to the next, at most: of more, lines of memory are mostly not
read, and a copy of what is takes less."""


def is_apart(data: Any) -> bool:
    """Whether an array is large, and not in row-major order."""
    return type(data) is np.ndarray and data.size > MOST_COPIED and not data.flags.c_contiguous


def order_of(data: Any) -> tuple[int, ...] | None:
    """The dims of a large array from the outermost in memory to the innermost, if that is not their
    order; else None."""
    if not is_apart(data):
        return None
    shape, strides = data.shape, data.strides
    # Dims of one element have any stride.
    moving = [k for k in range(data.ndim) if shape[k] != 1]
    order = sorted(moving, key=lambda k: -abs(strides[k]))
    if order == moving or 0 in [strides[k] for k in moving]:
        return None
    return (*[k for k in range(data.ndim) if shape[k] == 1], *order)


Add = Callable[..., Any]


def adding(builder: Builder) -> Add:
    """What adds an op to a block."""

    def add(cls: Callable[..., Op], x: Any, **attrs: Any) -> Any:
        return builder.add(cls(x, **attrs)).results[0]

    return add


@dataclass(frozen=True, slots=True)
class Spaces:
    """How an operand lies among elements that are not read, as its programs know it.

    Attributes:
        rank: how many dims it has.
        step: from one element of the last dim to the next.
        backwards: the dims that are read from their last element to the first.
    """

    rank: int
    step: int
    backwards: tuple[int, ...]

    def names(self, k: int) -> list[str]:
        """Of the spaces behind each dim but the first one, of operand `k`."""
        return [f"s{k}_{d}" for d in range(1, self.rank)]

    def shape(self, dims: Sequence[Dim], k: int) -> tuple[Dim, ...]:
        """The shape of all the elements."""
        spans = self._spans(dims)
        return (spans[0], *[n + sym(s) for n, s in zip(spans[1:], self.names(k), strict=True)])

    def _spans(self, dims: Sequence[Dim]) -> list[Dim]:
        return [*dims[:-1], (dims[-1] - 1) * self.step + 1]

    def read(self, add: Add, x: Any, dims: Sequence[Dim]) -> Any:
        """The operand, of all the elements.

        Args:
            add: applies an op with attributes to an operand.
            x: all the elements.
            dims: the operand's.
        """
        stride = (*[1] * (self.rank - 1), self.step)
        start, limit = (0,) * self.rank, tuple(self._spans(dims))
        found = add(rearrange.Slice, x, start=start, limit=limit, stride=stride)
        return add(s.Reverse, found, axes=self.backwards) if self.backwards else found


def spaces_of(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[Spaces, list[int]] | None:
    """How the elements of an array lie among others, and how many are in each space; None for one
    that lies otherwise, as where a dim is outside of one with a larger stride.

    Args:
        shape: the sizes of its dims, which are more than 1.
        strides: theirs, in bytes, which are not 0.
        itemsize: bytes of an element.
    """
    if not shape or any([n % itemsize for n in strides]):
        return None
    apart = [abs(n) // itemsize for n in strides]
    backwards = tuple([k for k, n in enumerate(strides) if n < 0])
    step = apart[-1]
    if step > _MOST_STEP:
        return None
    spaces: list[int] = []
    for k in range(1, len(shape)):
        # Elements from one place of the dim outside to the next, and those of them that are read.
        is_last = k == len(shape) - 1
        whole, rest = divmod(apart[k - 1], 1 if is_last else apart[k])
        space = whole - ((shape[k] - 1) * step + 1 if is_last else shape[k])
        if rest or space < 0:
            return None
        spaces.append(space)
    return Spaces(len(shape), step, backwards), spaces


def first_in_memory(data: Any) -> np.ndarray:
    """The same elements, whose first one is the first in memory."""
    return data[tuple([slice(None, None, -1 if n < 0 else 1) for n in data.strides])]


def spaced(x: Array) -> tuple[Spaces, list[int]] | None:
    """How a large array lies, as `spaces_of` says it; None for one in row-major order, too."""
    data: Any = x.storage
    if not is_apart(data) or 0 in data.strides or not data.flags.aligned:
        return None
    found = spaces_of(data.shape, data.strides, data.itemsize)
    return found if found is not None and 1 not in data.shape else None


def as_it_lies(x: Array, spaces: object) -> np.ndarray:
    """What a program reads of an array, for which it knows spaces, or None."""
    return contiguous(x) if spaces is None else first_in_memory(x.storage)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order in which dims go back to where they were."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def turned(x: Array, order: Sequence[int]) -> Array:
    """The array with its dims in another order, as a view."""
    storage: Any = x.storage
    data = storage.transpose(order)
    return Array(data, x.type.with_shape(data.shape)) if x.weak else view_of(data)


def common(operands: Sequence[Array]) -> tuple[int, ...] | None:
    """The order in which an elementwise op may compute its operands, which is that of the first one
    that is no number repeated; None for the order of their dims."""
    for x in operands:
        data: Any = x.storage
        if type(data) is np.ndarray and data.size > MOST_COPIED and 0 not in data.strides:
            return order_of(data)
    return None


def as_they_lie(
    cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any]
) -> tuple[list[Array], dict[str, Any], tuple[int, ...]] | None:
    """An op along axes on operands in their order in memory: the operands, the attributes, and the
    order in which the dims of the result are to be put; None where that is not known, or the same.

    Args:
        cls: the op.
        operands: its operands.
        attrs: its attributes.
    """
    if not any([is_apart(x.storage) for x in operands]):
        return None
    if cls is DotGeneral:
        return _contraction(operands, attrs)
    is_reduce = issubclass(cls, reduce.Reduce)
    is_cumulative = issubclass(cls, cumulative.Cumulative)
    if not (is_reduce or is_cumulative or issubclass(cls, reduce.ArgReduce)):
        return None
    (x,) = operands
    # An order of combining that was asked for is one of the axes as they are.
    order = None if attrs.get("order") is not None else order_of(x.storage)
    if order is None:
        return None
    places = inverse(order)
    moved = dict(attrs)
    gone: tuple[int, ...] = ()
    if is_reduce:
        gone = attrs["axes"]
        moved["axes"] = tuple(sorted([places[k] for k in gone]))
    else:
        axis: int = attrs["axis"]
        gone = () if is_cumulative else (axis,)
        moved["axis"] = places[axis]
    return [turned(x, order)], moved, inverse([k for k in order if k not in gone])


def _contraction(
    operands: Sequence[Array], attrs: dict[str, Any]
) -> tuple[list[Array], dict[str, Any], tuple[int, ...]] | None:
    """A product whose operands stay where their dims are in another order. Those that the result
    has keep theirs."""
    pairs: dict[str, Any] = {n: attrs.get(n, ((), ())) for n in ("contract", "batch_axes")}
    moved: dict[str, list[Any]] = {name: [*axes] for name, axes in pairs.items()}
    found = [*operands]
    for side, x in enumerate(operands):
        order = order_of(x.storage)
        gone: list[int] = [k for axes in pairs.values() for k in axes[side]]
        if order is None or not _is_increasing([k for k in order if k not in gone]):
            continue
        found[side], places = turned(x, order), inverse(order)
        for name, axes in moved.items():
            own: tuple[int, ...] = pairs[name][side]
            axes[side] = tuple([places[k] for k in own])
    if all([x is y for x, y in zip(found, operands, strict=True)]):
        return None
    known = {name: tuple(axes) for name, axes in moved.items() if name in attrs}
    return found, {**attrs, **known}, ()


def _is_increasing(dims: Sequence[int]) -> bool:
    return all([a < b for a, b in itertools.pairwise(dims)])


def needs_copy(data: Any, shape: tuple[int, ...]) -> bool:
    """Whether a large array has another shape only in row-major order."""
    if not is_apart(data):
        return False
    try:
        data.reshape(shape, copy=False)
    except ValueError:
        return True
    return False


def merged(data: np.ndarray, order: Sequence[int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """An array as it lies, whose neighbouring dims that stay together are one, and the order that
    makes it row-major in the dims of `data`."""
    runs: list[list[int]] = []
    for k in order:
        if data.shape[k] == 1:
            continue
        if runs and _follows(data, runs[-1][-1], k):
            runs[-1].append(k)
        else:
            runs.append([k])
    sizes = [int(np.prod([data.shape[k] for k in run], dtype=np.int64)) for run in runs]
    firsts = [run[0] for run in runs]
    return data.transpose(order).reshape(sizes), tuple(
        sorted(range(len(runs)), key=firsts.__getitem__)
    )


def _follows(data: np.ndarray, a: int, b: int) -> bool:
    """Whether nothing is between two dims, in their order and in memory."""
    is_next = a < b and all([data.shape[k] == 1 for k in range(a + 1, b)])
    return is_next and data.strides[a] == data.shape[b] * data.strides[b]


def is_worth_turning(base: np.ndarray) -> bool:
    """Whether a compiled transpose of what `merged` gives is faster than NumPy's."""
    return base.shape[-1] >= _SHORTEST and base.dtype.itemsize <= 8
