"""Convolutions of operands whose elements are put apart, as those that make images larger are.

They are written as what a stride leaves in a gradient: a product of the operand and the windows'
factors, each slice of which moves to its place, and a sum over the window. So the passes that know
gradients of convolutions compute them phase by phase, without a product with a zero between
elements (`tessera.graph.passes.window_products`), and their derivatives are those of a convolution
with a stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.dtypes import DType
from tessera.graph.namespace.windows import Window, padded
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast, reshape, transpose
from tessera.graph.ops.windows import Windows
from tessera.graph.passes.window_phases import MOST_PHASES
from tessera.graph.trace import bind
from tessera.ir.intexpr import Dim


def are_apart(moves: Sequence[Window], dims: Sequence[Dim]) -> bool:
    """Whether a convolution is of the kind.

    Args:
        moves: how the windows move.
        dims: the dims that they move along, before these are padded.
    """
    apart = [(move, dim) for move, dim in zip(moves, dims, strict=True) if move.base > 1]
    return 1 < prod([m.base for m, _ in apart]) <= MOST_PHASES and all(_is_plain(*p) for p in apart)


def _is_plain(move: Window, dim: Dim) -> bool:
    """Whether sizes are known, and windows move by one element at a time."""
    known = all(isinstance(n, int) for n in (dim, move.lo, move.hi))
    return known and move.stride == move.dilation == 1


def in_groups(x: Any, axis: int, groups: int) -> Any:
    """An array with a dim cut in two: the groups, and what each of them has."""
    return reshape(x, (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :]))


def sums_apart(
    x: Any,
    w: Any,
    spec: Sequence[int],
    window: Sequence[int],
    moves: Sequence[Window],
    groups: int,
    of_batch: bool,
    wide: DType | None,
) -> Any:
    """The convolution, with the dims of `x` in their order but for its features, and the features
    of the result last.

    Args:
        x: the operand.
        w: the windows' factors.
        spec: the dims of the operand's batch, its features and its places.
        window: those of `w` for the result's features, the operand's features and the window.
        moves: how windows move along the places.
        groups: how many groups there are.
        of_batch: whether they are of examples rather than of features.
        wide: the dtype of the result, if not that of the operands.
    """
    dtype = wide or x.dtype
    exact = reduce.default_accumulator(dtype)
    channel, axes = spec[1], list(spec[2:])
    output, inputs, *inner = window
    is_depthwise = groups > 1 and not of_batch and w.shape[output] == groups == x.shape[channel]
    if is_depthwise:
        factors = transpose(w, (output, inputs, *inner))
        factors = reshape(factors, (groups, *factors.shape[2:]))
        shape = (*x.shape, *factors.shape[1:])
        spread = broadcast(ops.cast(x, exact), shape, range(x.ndim))
        places = [channel, *range(x.ndim, len(shape))]
        terms = ops.mul(spread, broadcast(ops.cast(factors, exact), shape, places))
    else:
        terms, axes = _products(x, w, spec, window, groups, of_batch, exact)
    terms = padded(terms, axes, moves, 0)
    steps, gaps = ([getattr(move, what) for move in moves] for what in ("stride", "dilation"))
    slices = bind(Windows, terms, axes=tuple(axes), step=tuple(steps), dilation=tuple(gaps))
    found = reduce.sum_(slices, range(slices.ndim - len(axes), slices.ndim))
    if is_depthwise:
        found = transpose(found, (*[k for k in range(found.ndim) if k != channel], channel))
    elif groups > 1:
        found = reshape(found, (*found.shape[:-2], found.shape[-2] * found.shape[-1]))
    return ops.cast(found, dtype)


def _products(
    x: Any,
    w: Any,
    spec: Sequence[int],
    window: Sequence[int],
    groups: int,
    of_batch: bool,
    dtype: DType,
) -> tuple[Any, list[int]]:
    """Products of each element and each of the factors, summed over features: the dims of `x`, the
    features of the result in their groups, and the window; and the dims of places."""
    batch, channel, *axes = spec
    output, inputs, *inner = window
    kept = sorted([batch, *axes])
    own = list(range(x.ndim))
    same: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if groups > 1:
        at = batch if of_batch else channel
        x, w = in_groups(x, at, groups), in_groups(w, output, groups)
        same = (at,), (output,)
        own = [k + (k >= at) for k in own]
        output, inputs, *inner = [k + (k >= output) for k in window]
    contract = (own[channel],), (inputs,)
    found = dot_general(x, w, contract, same, None if dtype is x.dtype else dtype)
    # Its dims are those of the groups, of the operand and of the window.
    left, right = (
        [k for k in range(v.ndim) if k not in (*c, *s)]
        for v, c, s in zip((x, w), contract, same, strict=True)
    )
    before, count = len(same[0]), len(same[0]) + len(left)
    order = [before + left.index(own[k]) for k in kept]
    order += [*range(before), *[count + right.index(k) for k in (output, *inner)]]
    return transpose(found, order), [kept.index(k) for k in axes]
