"""Checks that the `infer` methods of Graph primitives share, each with the message users read.

Dims are compared as canonical expressions. What cannot be disproved for symbolic dims is accepted:
`S` may equal `4`, but never `S + 1`. In a function with annotated shapes dims are equal only where
that is known, and other conditions become guards of its calls (`ir/assumptions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tessera.dtypes import DType, Kind
from tessera.errors import AxisError, DTypeError, ShapeError
from tessera.ir.assumptions import about
from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, bounds
from tessera.ir.types import TensorType

# Functions of the namespace that are one op of another name.
_PUBLIC_NAMES: dict[str, str] = {
    "and": "bitwise_and",
    "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum",
    "div": "divide",
    "eq": "equal",
    "floordiv": "floor_divide",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "lu_solve": "solve",
    "max": "maximum",
    "min": "minimum",
    "mod": "remainder",
    "mul": "multiply",
    "ne": "not_equal",
    "neg": "negative",
    "not": "bitwise_invert",
    "or": "bitwise_or",
    "reduce_all": "all",
    "reduce_any": "any",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_sum": "sum",
    "shl": "bitwise_left_shift",
    "shr": "bitwise_right_shift",
    "sub": "subtract",
    "xor": "bitwise_xor",
}


def title(op: Op) -> str:
    """The op's name as messages begin with it: that of the function that users know it by."""
    name = op.name.rpartition(".")[2]
    return _PUBLIC_NAMES.get(name, name)


def tensor(op: Op, k: int) -> TensorType:
    """The type of flat operand `k`."""
    found = op.operands[k].type
    assert isinstance(found, TensorType)
    return found


def may_equal(a: Dim, b: Dim) -> bool:
    """Whether `a == b` is possible."""
    if a is b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    gap = a - b
    known = about(gap)
    if known is not None:
        return known.equal(a, b)
    low, high = bounds(gap)
    return (low is None or low <= 0) and (high is None or high >= 0)


def may_be_nonneg(a: Dim) -> bool:
    """Whether `a >= 0` is possible."""
    if isinstance(a, int):
        return a >= 0
    known = about(a)
    if known is not None:
        return known.asked(a)
    high = bounds(a)[1]
    return high is None or high >= 0


def largest(size: Dim) -> int | None:
    """The greatest size that a dim can have; None where that is not known."""
    if isinstance(size, int):
        return size
    known = about(size)
    return None if known is None else known.largest(size)


def static_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """A shape without symbols, as evaluation needs it."""
    dims = tuple([d for d in shape if isinstance(d, int)])
    assert len(dims) == len(shape), "symbolic dims are replaced before an op is evaluated"
    return dims


def shapes_may_equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes can be the same."""
    return len(a) == len(b) and all(may_equal(x, y) for x, y in zip(a, b, strict=True))


def shape_text(shape: Iterable[Any]) -> str:
    """A shape, or other list of numbers, as messages show it."""
    return f"[{', '.join(map(str, shape))}]"


def check_shape(op: Op, shape: Sequence[Dim]) -> None:
    """Dims are not negative."""
    for k, dim in enumerate(shape):
        if not may_be_nonneg(dim):
            raise ShapeError(
                f"{title(op)}: dim {k} of shape {shape_text(shape)} is {dim}",
                loc=op.loc,
                rule="a dim is at least 0",
            )


def check_length(op: Op, what: str, values: Sequence[Any], rank: int) -> None:
    """An attribute has one entry per dim."""
    if len(values) != rank:
        raise ShapeError(
            f"{title(op)}: {what}={shape_text(values)} has {len(values)} entries for an operand"
            f" of rank {rank}",
            loc=op.loc,
            rule=f"{what} has one entry per dim of the operand",
        )


def check_axis(op: Op, axis: int, rank: int) -> None:
    """An axis is in range; primitives take no negative axes."""
    if not 0 <= axis < rank:
        raise AxisError(
            f"{title(op)}: axis {axis} is out of range for rank {rank}",
            loc=op.loc,
            rule=f"0 <= axis < {rank}" if rank else "a scalar has no axes",
        )


def check_axes(op: Op, axes: Sequence[int], rank: int) -> None:
    """Axes are in range and distinct."""
    for axis in axes:
        check_axis(op, axis, rank)
    if len(set(axes)) != len(axes):
        raise AxisError(
            f"{title(op)}: axes {shape_text(axes)} repeat", loc=op.loc, rule="axes are distinct"
        )


def check_permutation(op: Op, perm: Sequence[int], rank: int) -> None:
    """`perm` names every axis once."""
    if sorted(perm) != list(range(rank)):
        raise AxisError(
            f"{title(op)}: perm={shape_text(perm)} is not a permutation of the {rank} axes",
            loc=op.loc,
            rule=f"perm names each of the axes 0 to {rank - 1} once" if rank else "it is empty",
        )


def check_integer(op: Op, what: str, dtype: DType) -> None:
    """An index operand has an integer dtype."""
    if dtype.kind not in (Kind.INT, Kind.UINT):
        raise DTypeError(
            f"{title(op)}: {what} has dtype {dtype}",
            loc=op.loc,
            rule="an index has an integer dtype",
            fix="convert it with `astype`, or use `ts.where` for a boolean mask",
        )


def check_same_dtype(op: Op, a: TensorType, b: TensorType, names: tuple[str, str]) -> None:
    """Two operands have one dtype."""
    if a.dtype is not b.dtype:
        raise DTypeError(
            f"{title(op)}: {names[0]} is {a}, but {names[1]} is {b}",
            loc=op.loc,
            rule="the operands have one dtype",
            fix="convert one of them with `astype`",
        )


def check_dim(op: Op, ok: bool, text: str, rule: str) -> None:
    """A condition on the sizes of an op; `text` says what is wrong."""
    if not ok:
        raise ShapeError(f"{title(op)}: {text}", loc=op.loc, rule=rule)


def normalize_axis(name: str, axis: int, rank: int) -> int:
    """A possibly negative axis, counted from the front."""
    if not -rank <= axis < rank:
        raise AxisError(
            f"{name}: axis {axis} is out of range for rank {rank}",
            rule=f"-{rank} <= axis < {rank}" if rank else "a scalar has no axes",
        )
    return axis + rank if axis < 0 else axis
