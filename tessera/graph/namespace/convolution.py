"""Convolutions: contractions over windows that move along dims.

Windows are an index map (`tessera.graph.ops.windows`), so compiled code reads the operand where a
window stands, and never writes the windows down.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from tessera.dtypes import DType, DTypeLike
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.calls import fused_for_sizes
from tessera.graph.determinism import is_for_cpu
from tessera.graph.namespace.apart import are_apart, in_groups, sums_apart
from tessera.graph.namespace.arguments import (
    ArrayLike,
    as_array,
    common_dtype,
    filled,
    index_of,
    is_sequence,
    parse_dtype,
    to_dtype,
)
from tessera.graph.namespace.windows import Padding, moved, padded, parse_ints, parse_windows
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.contract import AxisPairs, dot_general
from tessera.graph.ops.rearrange import broadcast, pad, reshape, reverse, transpose
from tessera.graph.ops.windows import windows
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim

__all__ = [
    "ConvDimensionNumbers",
    "conv_general",
    "convolve",
]


DEEP, FEW_PLACES = 256, 49
"""Features of an operand that a CPU had better have last, if its result has no more places. How
many examples there are must not matter: results of one may be promised not to depend on it."""

DEEP_ON_GPU = 64
"""Those that a GPU had better have last."""


class ConvDimensionNumbers(NamedTuple):
    """Which dims of a convolution's arrays are what.

    Attributes:
        lhs_spec: the dims of the batch, the features and the places, in the order of the window's
            dims.
        rhs_spec: the dims of the result's features, the operand's features and the window.
        out_spec: as `lhs_spec`, of the result.
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def _spec(name: str, what: str, given: Any, letters: str, order: str, rank: int) -> tuple[int, ...]:
    """Dims in the order of two letters and then of the window's letters."""
    if isinstance(given, str):
        wanted = letters + "".join([c for c in order if c not in "OI"])
        if sorted(given) == sorted(wanted) and len(set(given)) == rank:
            return tuple([given.index(c) for c in wanted])
    elif is_sequence(given) and sorted(given) == list(range(rank)):
        return tuple(given)
    raise ShapeError(
        f"{name}: dimension_numbers names the dims of {what} {given!r}",
        loc=loc.current(),
        rule=f"each of the {rank} dims is named once: by the letters {letters[0]} and {letters[1]},"
        " and for the window's dims those of the second text; or by its number",
    )


def _dimension_numbers(name: str, given: Any, rank: int) -> ConvDimensionNumbers:
    if given is None:
        return ConvDimensionNumbers(*(tuple(range(rank)),) * 3)
    if not is_sequence(given) or len(given) != 3:
        raise ShapeError(
            f"{name}: dimension_numbers={given!r}",
            loc=loc.current(),
            rule="there are three: of the operand, the window and the result",
            fix="for instance ('NHWC', 'HWIO', 'NHWC')",
        )
    lhs, rhs, out = given
    order = rhs if isinstance(rhs, str) else ""
    if not order and any(isinstance(spec, str) for spec in (lhs, out)):
        raise ShapeError(
            f"{name}: dimension_numbers={given!r}",
            loc=loc.current(),
            rule="all three are texts, or tuples of ints",
        )
    return ConvDimensionNumbers(
        _spec(name, "the operand", lhs, "NC", order, rank),
        _spec(name, "the window", rhs, "OI", order, rank),
        _spec(name, "the result", out, "NC", order, rank),
    )


@fused_for_sizes
@composed
@api_boundary
def conv_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvDimensionNumbers | Sequence[Any] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    *,
    preferred_element_type: DTypeLike | None = None,
) -> ArrayBase:
    """The products of an array with a window that moves along any number of its dims.

    As is usual for neural networks, the window is not reversed: this is a cross-correlation.

    Args:
        lhs: the operand, `[N, C, ...]` unless `dimension_numbers` says otherwise.
        rhs: the window, `[O, C / feature_group_count, ...]`.
        window_strides: how far the window moves along each dim.
        padding: zeros beyond the ends: pairs of ints, negative to cut elements off; `"VALID"` is
            none, `"SAME"` as many as make `ceil(length / stride)` windows, half of them, or one
            less, at the front; `"SAME_LOWER"` has the odd one in front.
        lhs_dilation: how far apart the operand's elements are put, with zeros between them.
        rhs_dilation: how far apart the window's elements are put.
        dimension_numbers: which dims are what: three texts such as `("NHWC", "HWIO", "NHWC")`, or
            three tuples of ints as of `ConvDimensionNumbers`. None is batch, features, places.
        feature_group_count: the features are in so many groups, each with its own part of the
            window. As many as features is a depthwise convolution.
        batch_group_count: the same for groups of examples, which give groups of features.
        preferred_element_type: the dtype of the result, at least as wide as the operands'.

    Returns:
        An array `[N / batch_group_count, O, ...]`, or as `dimension_numbers` says.

    Raises:
        ShapeError: numbers of dims, features or groups do not fit.

    Example:
        >>> import tessera as ts
        >>> x, w = ts.ones((1, 1, 4, 4)), ts.ones((1, 1, 3, 3))
        >>> ts.conv_general(x, w, (1, 1), "SAME")[0, 0]
        Array([[4., 6., 6., 4.],
               [6., 9., 9., 6.],
               [6., 9., 9., 6.],
               [4., 6., 6., 4.]], dtype=float32)
    """
    name = "conv_general"
    x, w = _operands(name, lhs, rhs)
    numbers = _dimension_numbers(name, dimension_numbers, x.ndim)
    features = index_of(f"{name}: feature_group_count", feature_group_count)
    batches = index_of(f"{name}: batch_group_count", batch_group_count)
    groups = _groups(name, x, w, numbers, features, batches)
    axes, inner = numbers.lhs_spec[2:], numbers.rhs_spec[2:]
    count = len(axes)
    dims = [x.shape[k] for k in axes]
    sizes = [w.shape[k] for k in inner]
    base = parse_ints(name, "lhs_dilation", lhs_dilation, count, 1)
    apart = parse_ints(name, "rhs_dilation", rhs_dilation, count, 1)
    strides = parse_ints(name, "window_strides", window_strides, count)
    moves = parse_windows(name, dims, sizes, strides, padding, base, apart)
    wide = None if preferred_element_type is None else parse_dtype(name, preferred_element_type)
    counts = [move.count(dim) for move, dim in zip(moves, dims, strict=True)]
    if any(n == 0 for n in counts) or any(n == 0 for n in sizes):
        shape: list[Dim] = [0] * x.ndim
        places = (x.shape[numbers.lhs_spec[0]] // batches, w.shape[numbers.rhs_spec[0]])
        for axis, dim in zip(numbers.out_spec, (*places, *counts), strict=True):
            shape[axis] = dim
        return filled(tuple(shape), 0, wide or x.dtype, x)
    if features == batches == 1 and _is_deep(x, w, numbers, counts):
        # Features last: the elements of a window's row are neighbours then.
        x = transpose(x, (numbers.lhs_spec[0], *axes, numbers.lhs_spec[1]))
        axes = tuple(range(1, 1 + count))
        numbers = numbers._replace(lhs_spec=(0, 1 + count, *axes))
    if are_apart(moves, dims):
        spec, window = numbers.lhs_spec, numbers.rhs_spec
        found = sums_apart(x, w, spec, window, moves, groups, batches > 1, wide)
    else:
        patches = moved(padded(x, axes, moves, 0), axes, moves)
        found = _products(patches, w, numbers, groups, batches > 1, wide)
    # Its dims are those of the operand in their order, and then the features.
    kept = sorted([numbers.lhs_spec[0], *axes])
    perm = [0] * x.ndim
    perm[numbers.out_spec[1]] = x.ndim - 1
    places = numbers.out_spec[:1] + numbers.out_spec[2:]
    for own, out in zip((numbers.lhs_spec[0], *axes), places, strict=True):
        perm[out] = kept.index(own)
    return transpose(found, perm)


def _is_deep(x: Any, w: Any, numbers: ConvDimensionNumbers, counts: Sequence[Dim]) -> bool:
    """Whether an operand whose features come first had better have them last. A GPU's threads read
    neighbours then. On a CPU rows of few places are too short for blocks of a product, and those of
    other examples lie far apart, where their lines displace each other."""
    channel, axes = numbers.lhs_spec[1], numbers.lhs_spec[2:]
    features, inner = x.shape[channel], [w.shape[k] for k in numbers.rhs_spec[2:]]
    if channel > max(axes, default=-1) or prod(inner) == 1 or not isinstance(features, int):
        return False
    if not is_for_cpu([x, w]):
        return features >= DEEP_ON_GPU
    is_known = all(isinstance(n, int) for n in counts)
    return is_known and features >= DEEP and prod(counts) <= FEW_PLACES


def _operands(name: str, lhs: object, rhs: object) -> tuple[Any, Any]:
    given = [as_array(name, lhs), as_array(name, rhs)]
    common_device(name, given, (lhs, rhs))
    dtype, weak = common_dtype(name, given)
    x, w = (to_dtype(v, dtype, weak) for v in given)
    types = f"lhs is {x.type.strong()}, rhs is {w.type.strong()}"
    if x.ndim < 2 or x.ndim != w.ndim:
        raise ShapeError(
            f"{name}: {types}",
            loc=loc.current(),
            rule="both have as many dims: two, and those along which the window moves",
        )
    if dtype.is_bool:
        raise DTypeError(f"{name}: {types}", loc=loc.current(), rule="the elements are numbers")
    return x, w


def _groups(
    name: str, x: Any, w: Any, numbers: ConvDimensionNumbers, features: int, batches: int
) -> int:
    """The number of groups, which fit the operands."""
    for what, n in (("feature_group_count", features), ("batch_group_count", batches)):
        if n < 1 or (n > 1 and features > 1 and batches > 1):
            raise ShapeError(
                f"{name}: {what} is {n}",
                loc=loc.current(),
                rule="a number of groups is 1 or more, and one of the two is 1",
            )
    batch, channels = (x.shape[k] for k in numbers.lhs_spec[:2])
    outputs, inputs = (w.shape[k] for k in numbers.rhs_spec[:2])
    types = f"lhs is {x.type.strong()}, rhs is {w.type.strong()}"
    if not may_equal(channels, inputs * features):
        many = f" in {features} groups" if features > 1 else ""
        raise ShapeError(
            f"{name}: lhs is {x.type.strong()} of {channels} features, rhs is"
            f" {w.type.strong()} of {inputs * features}{many}",
            loc=loc.current(),
            rule="the features of a group are those of the window",
            fix="name the dims, as in dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
            if features == 1
            else None,
        )
    groups = features * batches
    for what, dim, n in (("features of the result", outputs, groups), ("examples", batch, batches)):
        if not may_equal(dim % n, 0):
            raise ShapeError(
                f"{name}: {types}: {dim} {what} in {n} groups",
                loc=loc.current(),
                rule=f"the number of groups divides the number of {what}",
            )
    return groups


def _products(
    patches: Any,
    w: Any,
    numbers: ConvDimensionNumbers,
    groups: int,
    of_batch: bool,
    wide: DType | None,
) -> Any:
    """Sums of products over features and windows, with the features of the result last."""
    batch, channel, *axes = numbers.lhs_spec
    output, inputs, *inner = numbers.rhs_spec
    last = range(w.ndim, w.ndim + len(inner))  # the window's dims in the patches
    # In the order in which the operand's elements stand, so that reads are of neighbours.
    first = channel < max(axes, default=-1)
    if first:
        left, right = (channel, *last), (inputs, *inner)
    else:
        left, right = (*last, channel), (*inner, inputs)
    if groups == 1:
        return _dot(patches, w, (left, right), ((), ()), wide, first)
    grouped = batch if of_batch else channel
    patches = in_groups(patches, grouped, groups)
    left = tuple([k + (k >= grouped) for k in left])
    each = w.shape[output] // groups
    w = in_groups(w, output, groups)
    right = tuple([k + (k >= output) for k in right])
    if each == 1:
        found = _depthwise(patches, w, (left, right), (grouped, output), wide)
    else:
        found = _dot(patches, w, (left, right), ((grouped,), (output,)), wide, first)
    # Its dims are the groups, those of the operand, and the features of one group.
    found = transpose(found, (*range(1, found.ndim - 1), 0, found.ndim - 1))
    return reshape(found, (*found.shape[:-2], groups * each))


def _dot(
    patches: Any, w: Any, contract: AxisPairs, batch: AxisPairs, wide: DType | None, first: bool
) -> Any:
    """A contraction, with the batch axes first and the features of the result last.

    Args:
        patches: the windows of the operand.
        w: the window.
        contract: the contracted axes of both.
        batch: the axes of both that are groups.
        wide: the dtype of the result, if not that of the operands.
        first: whether the features stand before the places.
    """
    left, right = contract
    dtype = None if wide is patches.dtype else wide
    if first:
        # Neighbours in memory are places: products run along the dims of the right operand.
        found = dot_general(w, patches, (right, left), (batch[1], batch[0]), dtype)
        at = len(batch[0])
        return transpose(found, (*range(at), *range(at + 1, found.ndim), at))
    # Where patches are written down, the contracted dims come last.
    free = [k for k in range(patches.ndim) if k not in left]
    patches = transpose(patches, (*free, *left))
    last = tuple(range(len(free), patches.ndim))
    same = (tuple([free.index(k) for k in batch[0]]), batch[1])
    return dot_general(patches, w, (last, right), same, dtype)


def _depthwise(
    patches: Any, w: Any, contract: Any, grouped: tuple[int, int], wide: DType | None
) -> Any:
    """One feature per group: a product of a matrix and a vector for each, which a sum does."""
    dtype = wide or patches.dtype
    exact = reduce.default_accumulator(dtype)
    pairs = sorted([*zip(*contract, strict=True), grouped])
    factors = transpose(w, [*[r for _, r in pairs], grouped[1] + 1])
    factors = reshape(factors, factors.shape[:-1])
    factors = broadcast(factors, patches.shape, [k for k, _ in pairs])
    terms = ops.mul(ops.cast(patches, exact), ops.cast(factors, exact))
    found = ops.cast(reduce.sum_(terms, sorted(contract[0])), dtype)
    at = grouped[0] - sum(k < grouped[0] for k in contract[0])
    rest = [k for k in range(found.ndim) if k != at]
    found = transpose(found, (at, *rest))
    return reshape(found, (*found.shape, 1))


@fused_for_sizes
@composed
@api_boundary
def convolve(
    a: ArrayLike, v: ArrayLike, /, mode: Literal["full", "same", "valid"] = "full"
) -> ArrayBase:
    """The convolution of two vectors: `out[n] = sum over k of a[k] * v[n - k]`.

    Args:
        a: a vector.
        v: another.
        mode: `full` is every sum that has a term; `same` the middle ones, as many as the longer
            vector has elements; `valid` those that have all terms of the shorter one.

    Example:
        >>> import tessera as ts
        >>> ts.convolve(ts.asarray([1, 2, 3]), ts.asarray([0, 1]))
        Array([0, 1, 2, 3], dtype=int64)
    """
    name = "convolve"
    given = [as_array(name, a), as_array(name, v)]
    common_device(name, given, (a, v))
    dtype, weak = common_dtype(name, given)
    x, y = (to_dtype(u, dtype, weak) for u in given)
    if x.ndim != 1 or y.ndim != 1 or x.shape[0] == 0 or y.shape[0] == 0:
        raise ShapeError(
            f"{name}: a is {x.type.strong()}, v is {y.type.strong()}",
            loc=loc.current(),
            rule="both are vectors with an element or more",
        )
    if mode not in ("full", "same", "valid"):
        raise OptionError(
            f"{name}: mode={mode!r}", loc=loc.current(), rule="it is 'full', 'same' or 'valid'"
        )
    if isinstance(x.shape[0], int) and isinstance(y.shape[0], int) and x.shape[0] < y.shape[0]:
        x, y = y, x
    size = y.shape[0]
    before = {"full": size - 1, "same": size // 2, "valid": 0}[mode]
    after = size - 1 - before if mode == "same" else before
    patches = windows(pad(x, 0, (before,), (after,)), (0,), (size,), (1,), (1,))
    return dot_general(patches, reverse(y, (0,)), ((1,), (0,)))
