"""What functions of matrices do with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.errors import DTypeError, OptionError, ShapeError
from tessera.graph.namespace.arguments import (
    as_inexact,
    broadcast_dims,
    common_dtype,
    spread,
    to_dtype,
)
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import may_equal
from tessera.graph.ops.library import DTYPES, adjoint
from tessera.graph.placement import common_device
from tessera.graph.shortcut import composed
from tessera.ir import loc


def matrix(name: str, x: object, square: bool = False) -> Any:
    """An argument as an array of matrices."""
    found = as_inexact(name, x)
    check_matrix(name, found, square)
    check_dtype(name, found)
    return found


def check_dtype(name: str, x: Any) -> None:
    """Libraries compute in the dtype of an array."""
    if x.dtype not in DTYPES:
        raise DTypeError(
            f"{name}: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="it is computed in f32, f64, c64 and c128",
            fix="convert it first, as with `x.astype(ts.float32)`",
        )


def check_matrix(name: str, x: Any, square: bool = False) -> None:
    """An array holds matrices in its last two dims."""
    if x.ndim < 2:
        raise ShapeError(
            f"{name}: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="a matrix has two dims or more",
        )
    if square and not may_equal(x.shape[-1], x.shape[-2]):
        raise ShapeError(
            f"{name}: the array is {x.type.strong()}, with matrices of {x.shape[-2]} rows and"
            f" {x.shape[-1]} columns",
            loc=loc.current(),
            rule="the matrices are square",
        )


def hermitian(name: str, x: object, symmetrize: bool) -> Any:
    """An argument as Hermitian matrices: its mean with its adjoint, unless it counts as it is."""
    found = matrix(name, x, square=True)
    return _symmetrized(found) if symmetrize else found


@composed
def _symmetrized(x: Any) -> Any:
    return ops.mul(ops.add(x, adjoint(x)), 0.5)


def same_lead(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two arrays of matrices with their dims in front broadcast."""
    lead = broadcast_dims([a.shape[:-2], b.shape[:-2]])
    if isinstance(lead, int):
        raise ShapeError(
            f"{name}: the arrays are {a.type.strong()} and {b.type.strong()}, whose dims"
            f" -{lead + 2} do not fit",
            loc=loc.current(),
            rule="dims in front of the matrices are equal, or one of them is 1 or missing",
        )
    return spread(a, (*lead, *a.shape[-2:])), spread(b, (*lead, *b.shape[-2:]))


def pair(name: str, x1: object, x2: object) -> tuple[Any, Any]:
    """Two arguments as arrays of one dtype, which libraries compute in."""
    given = [as_inexact(name, x1), as_inexact(name, x2)]
    common_device(name, given, (x1, x2))
    dtype, weak = common_dtype(name, given)
    a, b = (to_dtype(x, dtype, weak) for x in given)
    check_dtype(name, a)
    return a, b


def unknown_choice(name: str, what: str, value: object, known: Sequence[object]) -> OptionError:
    """The error for an option that is none of those there are."""
    texts = [repr(k) for k in known]
    return OptionError(
        f"{name}: {what} is {value!r}",
        loc=loc.current(),
        rule=f"it is one of {', '.join(texts)}",
    )
