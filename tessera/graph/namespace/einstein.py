"""`einsum`: sums of products that letters describe, by contractions of two operands at a time."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DType, DTypeLike, bool_, int32
from tessera.errors import ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    as_array,
    common_dtype,
    is_sequence,
    parse_dtype,
    to_dtype,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import reduce
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.gather import gather
from tessera.graph.ops.generate import index_dtype, iota
from tessera.graph.ops.rearrange import broadcast, reshape, transpose
from tessera.graph.ops.round_blocks import in_blocks
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.ir.intexpr import Dim

__all__ = [
    "einsum",
]

_LETTERS = string.ascii_letters


class _Term:
    """An array, and a name for each of its dims; no name occurs twice."""

    __slots__ = ("names", "x")

    def __init__(self, x: Any, names: str) -> None:
        self.x = x
        self.names = names


@composed
@api_boundary
def einsum(
    subscripts: Any, /, *operands: Any, preferred_element_type: DTypeLike | None = None
) -> ArrayBase:
    """The sum of products over the dims whose letters the result lacks.

    Several operands are contracted two at a time, the pair first whose product is smallest beside
    the two.

    Args:
        subscripts: letters for the dims of each operand, and after `->` for those of the result:
            `"ij,jk->ik"`. `...` stands for dims that are broadcast. Without `->` the result has
            the letters that occur once, in alphabetical order. Or the first operand, which is then
            followed by a list of its dims' numbers, and so on, and a list for the result.
        operands: as many arrays as there are groups of letters.
        preferred_element_type: the dtype to add in, and of the result.

    Raises:
        ShapeError: the letters do not fit the operands, or dims of one letter differ.

    Example:
        >>> import tessera as ts
        >>> ts.einsum("ij,ij->i", ts.ones((2, 3)), ts.ones((2, 3)))
        Array([3., 3.], dtype=float32)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    given = [as_array("einsum", x) for x in operands]
    common_device("einsum", given, operands)
    dtype, weak = common_dtype("einsum", given)
    wide = dtype
    if preferred_element_type is not None:
        wide = parse_dtype("einsum", preferred_element_type)
    groups, result = _parse(subscripts, given)
    arrays = [to_dtype(x, dtype, weak) for x in given]
    if dtype.is_bool:
        # Whether any product is true: the sum of 0s and 1s is not 0.
        return ops.cast(_evaluate(subscripts, arrays, groups, result, int32), bool_)
    return _evaluate(subscripts, arrays, groups, result, wide)


def _bad(subscripts: str, what: str, rule: str) -> ShapeError:
    return ShapeError(f"einsum: {subscripts!r}: {what}", loc=loc.current(), rule=rule)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The form with lists of numbers, as the one with letters."""
    operands = arguments[: len(arguments) // 2 * 2 : 2]
    lists = [*arguments[1::2], *arguments[len(arguments) // 2 * 2 :]]
    if not all(is_sequence(names) for names in lists):
        rule = "each operand has a list of its dims' numbers"
        raise _bad("", "operands and lists do not alternate", rule)
    texts = ["".join(["..." if n is Ellipsis else _LETTERS[n] for n in names]) for names in lists]
    text = ",".join(texts[: len(operands)])
    return (text if len(texts) == len(operands) else f"{text}->{texts[-1]}"), operands


def _parse(subscripts: str, arrays: Sequence[Any]) -> tuple[list[str], str]:
    """The names of the dims of each operand and of the result; `...` gets names of its own."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    groups = left.split(",")
    sides = [*groups, right]
    for group in sides:
        rest = group.replace("...", "", 1)
        if not all(c in _LETTERS for c in rest):
            raise _bad(subscripts, f"the group {group!r}", "dims are letters, or `...` once")
    if len(groups) != len(arrays):
        what = f"{len(groups)} groups of letters for {len(arrays)} operands"
        raise _bad(subscripts, what, "each operand has one")
    spare = [c for c in reversed(_LETTERS) if c not in text]
    most = 0
    for k, (group, x) in enumerate(zip(groups, arrays, strict=True)):
        extra = x.ndim - len(group.replace("...", ""))
        if extra < 0 or (extra > 0 and "..." not in group):
            raise _bad(
                subscripts,
                f"{group!r} for operand {k}, which is {x.type.strong()}",
                "there is a letter for each dim, and `...` for any number of them",
            )
        most = max(most, extra)
    dots = "".join(spare[:most])
    named = [
        group.replace("...", dots[len(dots) - (x.ndim - len(group.replace("...", ""))) :])
        for group, x in zip(groups, arrays, strict=True)
    ]
    if arrow:
        if dots and "..." not in right:
            raise _bad(subscripts, "the result has no `...`", "the dims of `...` are not summed")
        result = right.replace("...", dots)
    else:
        letters = left.replace("...", "").replace(",", "")
        result = dots + "".join(sorted([c for c in set(letters) if letters.count(c) == 1]))
    unknown = [c for c in result if not any(c in group for group in named)]
    if unknown or len(set(result)) != len(result):
        raise _bad(
            subscripts,
            f"the result {right!r} has {unknown[0]!r}, which no operand has"
            if unknown
            else f"the result {right!r} has a letter twice",
            "the letters of the result are those of operands, each once",
        )
    return named, result


def _sizes(subscripts: str, arrays: Sequence[Any], groups: Sequence[str]) -> dict[str, Dim]:
    """The length of each name; dims of length 1 are broadcast."""
    sizes: dict[str, Dim] = {}
    for k, (group, x) in enumerate(zip(groups, arrays, strict=True)):
        for name, size in zip(group, x.shape, strict=True):
            known = sizes.get(name, 1)
            if known == 1:
                sizes[name] = size
            elif size not in (1, known):
                raise _bad(
                    subscripts,
                    f"operand {k} is {x.type.strong()}, with {size} for {name!r}, which is {known}"
                    " before",
                    "dims of one letter have equal lengths, or 1",
                )
    return sizes


def _evaluate(
    subscripts: str, arrays: Sequence[Any], groups: Sequence[str], result: str, wide: DType
) -> Any:
    sizes = _sizes(subscripts, arrays, groups)
    terms = [_simplified(x, group, sizes) for x, group in zip(arrays, groups, strict=True)]
    if len(terms) == 1:
        # A single operand is added up in the wider dtype from the start.
        terms = [_Term(ops.cast(terms[0].x, wide), terms[0].names)]
    terms = [_summed(term, _others(terms, k, result)) for k, term in enumerate(terms)]
    while len(terms) > 1:
        i, j = _next_pair(terms, result, sizes)
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        kept = {*result, *[c for term in rest for c in term.names]}
        terms = [*rest, _product(terms[i], terms[j], kept, wide)]
    (last,) = terms
    missing = [c for c in result if c not in last.names]  # dims of length 1 that were left out
    x, names = last.x, last.names + "".join(missing)
    x = reshape(x, (*x.shape, *[1] * len(missing)))
    found = transpose(x, [names.index(c) for c in result])
    return ops.cast(broadcast(found, [sizes[c] for c in result], range(len(result))), wide)


def _others(terms: Sequence[_Term], k: int, result: str) -> set[str]:
    return {*result, *[c for j, term in enumerate(terms) if j != k for c in term.names]}


def _simplified(x: Any, group: str, sizes: dict[str, Dim]) -> _Term:
    """Diagonals for names that repeat; dims of length 1 that are longer elsewhere are left out."""
    for name in dict.fromkeys(group):
        axes = [k for k, c in enumerate(group) if c == name]
        if len(axes) > 1:
            size = max([x.shape[k] for k in axes], key=lambda d: d != 1)
            shape = [size if k in axes else d for k, d in enumerate(x.shape)]
            x = broadcast(x, shape, range(x.ndim))
            line = iota((size,), 0, index_dtype(size))
            x = gather(x, [line] * len(axes), axes)
            group = name + "".join([c for k, c in enumerate(group) if k not in axes])
    kept = [k for k, c in enumerate(group) if x.shape[k] != 1 or sizes[c] == 1]
    x = reshape(x, [x.shape[k] for k in kept])
    return _Term(x, "".join([group[k] for k in kept]))


def _summed(term: _Term, kept: set[str]) -> _Term:
    """Without the dims that nothing else has."""
    axes = [k for k, c in enumerate(term.names) if c not in kept]
    if not axes:
        return term
    names = "".join([c for c in term.names if c in kept])
    return _Term(reduce.sum_(term.x, axes), names)


def _count(names: set[str], sizes: dict[str, Dim]) -> int:
    """The number of elements of an array with dims of these names; a symbol counts as 2**7."""
    total = 1
    for name in names:
        size = sizes[name]
        total *= size if isinstance(size, int) else 128
    return total


def _next_pair(terms: Sequence[_Term], result: str, sizes: dict[str, Dim]) -> tuple[int, int]:
    """The two operands whose product has the fewest elements more than they have; then the one
    that takes the fewest multiplications.
    """
    best: tuple[int, int] = (0, 1)
    least: tuple[int, int] | None = None
    for i in range(len(terms)):
        for j in range(i + 1, len(terms)):
            a, b = set(terms[i].names), set(terms[j].names)
            rest = {c for k, term in enumerate(terms) if k not in (i, j) for c in term.names}
            kept = (a | b) & (rest | set(result))
            growth = _count(kept, sizes) - _count(a, sizes) - _count(b, sizes)
            cost = (growth, _count(a | b, sizes))
            if least is None or cost < least:
                best, least = (i, j), cost
    return best


def _product(a: _Term, b: _Term, kept: set[str], wide: DType) -> _Term:
    """The product of two operands, summed over names that nothing else has."""
    a = _summed(a, kept | set(b.names))
    b = _summed(b, kept | set(a.names))
    both = [c for c in a.names if c in b.names]
    batch = [c for c in both if c in kept]
    inner = [c for c in both if c not in kept]
    names = [*batch, *[c for t in (a, b) for c in t.names if c not in both]]

    def axes(names: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        left, right = (tuple([t.names.index(c) for c in names]) for t in (a, b))
        return left, right

    pairs = axes(inner)
    left, right = in_blocks(a.x, pairs[0]), in_blocks(b.x, pairs[1])
    if left.dtype is right.dtype and left.dtype.bits <= wide.bits and left.dtype.kind is wide.kind:
        dtype = None if wide is left.dtype else wide
        x = dot_general(left, right, pairs, axes(batch), dtype)
    else:
        x = dot_general(ops.cast(left, wide), ops.cast(right, wide), pairs, axes(batch))
    return _Term(x, "".join(names))
