"""Scales from what was seen: a history of magnitudes in training, and calibration on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tessera import pytree
from tessera.api.compiling import jit
from tessera.api.vectorize import vmap
from tessera.dtypes import float32
from tessera.errors import OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import ArrayLike, as_array, parse_axes
from tessera.graph.namespace.creation import linspace, zeros
from tessera.graph.namespace.elementwise import add, isfinite, maximum, square
from tessera.graph.namespace.manipulation import concat
from tessera.graph.namespace.quantiles import percentile as find_percentile
from tessera.graph.namespace.searching import argmin, where
from tessera.graph.namespace.statistics import max as find_max
from tessera.graph.namespace.statistics import stop_gradient
from tessera.graph.namespace.statistics import sum as find_sum
from tessera.graph.namespace.taking import take
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.reshape import reshape
from tessera.ir import loc
from tessera.precision.apart import apart
from tessera.precision.schemes import FormatLike, amax, parse_format, scale_of
from tessera.precision.tensors import quantize

CANDIDATES = 64
"""How many scales calibration by the squared error tries."""


@pytree.register_dataclass
@dataclass(frozen=True, eq=False)
class AmaxHistory:
    """The largest magnitudes of an array in the last steps: delayed scaling (Micikevicius et al.,
    "FP8 formats for deep learning", 2022).

    A scale from earlier steps is known before the array is, so quantizing needs no pass of its own.
    The state is a value: `update` returns another one, in `jit` and `scan` as outside.

    Attributes:
        history: float32, one element for each step, the last one first; 0 where there was none.

    Example:
        >>> import tessera as ts
        >>> h = ts.AmaxHistory.empty(3)
        >>> for x in (8.0, 14.0, 7.0, 7.0):
        ...     h = h.update(ts.asarray([x, -1.0]))
        >>> h.history, h.scale(ts.int4)
        (Array([ 7.,  7., 14.], dtype=float32), Array(2., dtype=float32))
    """

    history: Any

    @classmethod
    @api_boundary
    def empty(cls, length: int = 16) -> AmaxHistory:
        """The history before the first step.

        Args:
            length: of how many steps it knows.
        """
        if length < 1:
            raise OptionError(
                f"AmaxHistory: length is {length}",
                loc=loc.current(),
                rule="a history knows one step or more",
            )
        return cls(zeros((length,), dtype=float32))

    @api_boundary
    @apart
    def update(self, x: ArrayLike) -> AmaxHistory:
        """The history after a step; as it was, if a magnitude is infinite or NaN.

        Args:
            x: the step's array, of floating-point numbers.
        """
        found = stop_gradient(as_array("AmaxHistory.update", x))
        largest = reshape(e.cast(amax(found, [0] * found.ndim), float32), (1,))
        moved = concat([largest, self.history[:-1]])
        return replace(self, history=where(isfinite(largest), moved, self.history))

    @api_boundary
    @apart
    def scale(self, dtype: FormatLike, margin: int = 0) -> ArrayBase:
        """The scale for the next step: with it, the largest magnitude that the history has becomes
        the format's largest value.

        Args:
            dtype: the format, as for `ts.quantize`.
            margin: leaves room for magnitudes that are `2**margin` times as large.

        Returns:
            A float32 number; 1 while nothing was seen.
        """
        format = parse_format("AmaxHistory.scale", dtype)
        largest = find_max(self.history)
        return where(largest > 0, scale_of(largest, format) * 2.0**margin, 1.0)


@api_boundary
def calibrate(
    f: Callable[..., Any],
    batches: Iterable[Any],
    dtype: FormatLike,
    *,
    method: Literal["amax", "percentile", "mse"] = "amax",
    percentile: float = 99.9,
    axis: int | Sequence[int] | None = None,
) -> Any:
    """The scales for what a function gives, from data.

    Args:
        f: gives an array, or a tree of arrays: the activations that are to be quantized.
        batches: what it is called with: tuples of arguments, or its only argument.
        dtype: the format, as for `ts.quantize`.
        method: "amax": the largest magnitude of all batches becomes the format's largest value;
            "percentile": instead of it, the percentile of the magnitudes of each batch, the largest
            one of all batches; "mse": of 64 fractions of the largest magnitude the one with the
            smallest squared error over all batches, for which `f` runs twice.
        percentile: which one.
        axis: axes whose indices have scales of their own.

    Returns:
        A tree like what `f` gives, of scales for `ts.quantize(x, dtype, scale=...)`.

    Raises:
        OptionError: there is no such method, or no batch.

    Example:
        >>> import tessera as ts
        >>> data = [ts.asarray([[1.0, -2.0]]), ts.asarray([[0.5, 254.0]])]
        >>> ts.calibrate(lambda x: {"h": x / 2}, data, ts.int8)
        {'h': Array([[1.]], dtype=float32)}
        >>> ts.calibrate(lambda x: x / 2, data, ts.int8, axis=1) * 127
        Array([[  0.5, 127. ]], dtype=float32)
    """
    format = parse_format("calibrate", dtype)
    if method not in ("amax", "percentile", "mse"):
        raise OptionError(
            f"calibrate: method is {method!r}",
            loc=loc.current(),
            rule='it is "amax", "percentile" or "mse"',
        )
    if not 0 < percentile <= 100:
        raise OptionError(
            f"calibrate: percentile is {percentile}",
            loc=loc.current(),
            rule="it is above 0, and at most 100",
        )

    @apart
    def size_of(x: Any) -> Any:
        found = as_array("calibrate", x)
        block = _block(found, axis)
        if method != "percentile":
            return e.cast(amax(found, block), float32)
        others = tuple([k for k, n in enumerate(block) if not n])
        size = e.cast(e.abs_(found), float32)
        return find_percentile(size, percentile, axis=others, keepdims=True) if others else size

    observe = jit(lambda *batch: pytree.map_(size_of, f(*batch)))
    given: list[tuple[Any, ...]] = [b if isinstance(b, tuple) else (b,) for b in batches]
    if not given:
        raise OptionError(
            "calibrate: there are no batches", loc=loc.current(), rule="it takes one or more"
        )
    sizes: Any = observe(*given[0])
    for batch in given[1:]:
        sizes = pytree.map_(_largest, sizes, observe(*batch))
    if method == "mse":
        sizes = _least_error(f, given, sizes, dtype)
    return pytree.map_(partial(scale_of, format=format), sizes)


def _block(x: Any, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    own = () if axis is None else parse_axes("calibrate", axis, x.ndim)
    return tuple([int(k in own) for k in range(x.ndim)])


@apart
def _largest(a: Any, b: Any) -> Any:
    if a.shape != b.shape:
        raise ShapeError(
            f"calibrate: scales of one batch are {a.type}, of another {b.type}",
            loc=loc.current(),
            rule="axes with scales of their own are as long in all batches",
        )
    return maximum(a, b)


def _least_error(f: Any, batches: Sequence[Any], sizes: Any, dtype: FormatLike) -> Any:
    """The fractions of the largest magnitudes with which all batches lose least."""
    format = parse_format("calibrate", dtype)
    parts: Any = apart(linspace)(1 / CANDIDATES, 1, CANDIDATES, dtype=float32)

    def loss(x: Any, size: Any, part: Any) -> Any:
        wide = e.cast(as_array("calibrate", x), float32)
        found = quantize(wide, dtype, scale=scale_of(size * part, format)).dequantize()
        gone = tuple([k for k, n in enumerate(size.shape) if n == 1])
        return find_sum(square(found - wide), axis=gone, keepdims=True)

    def losses(sizes: Any, *batch: Any) -> Any:
        @apart
        def each(x: Any, size: Any) -> Any:
            return vmap(partial(loss, x, size))(parts)

        return pytree.map_(each, f(*batch), sizes)

    lose = jit(losses)
    total: Any = lose(sizes, *batches[0])
    for batch in batches[1:]:
        total = pytree.map_(apart(add), total, lose(sizes, *batch))

    @apart
    def best(size: Any, lost: Any) -> Any:
        return size * take(parts, argmin(lost, axis=0))

    return pytree.map_(best, sizes, total)
