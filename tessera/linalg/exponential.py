"""The exponential of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import complex64, float32
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import using
from tessera.graph.namespace.arguments import ArrayLike
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.library import identity, product
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.reduce import max_, sum_
from tessera.graph.ops.solve import solve
from tessera.graph.placement import device_of
from tessera.graph.shortcut import composed
from tessera.ir import loc
from tessera.linalg.matrices import matrix

__all__ = ["expm"]

# Coefficients of the Pade approximants of degrees 7 and 13, and the largest norm for which they are
# exact to single and to double precision: tables 2.3 and 10.2 of Higham, "Functions of Matrices"
# (2008), and his "The scaling and squaring method for the matrix exponential revisited" (2005).
_SINGLE = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)
_DOUBLE = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0),
    *(129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0),
    *(40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
_LARGEST_SINGLE = 3.925724783138660
_LARGEST_DOUBLE = 5.371920351148152


@composed
@api_boundary
def expm(x: ArrayLike, /, *, max_squarings: int = 16) -> ArrayBase:
    """The exponential of square matrices, by scaling, a Pade approximant, and squaring.

    Args:
        x: an array `[..., n, n]`.
        max_squarings: how often the result may be squared, which is a product each time. Matrices
            with a 1-norm of more than about 4 * 2 ** max_squarings are NaN.

    Returns:
        An array `[..., n, n]`.

    Example:
        >>> import tessera as ts
        >>> ts.linalg.expm(ts.asarray([[0.0, 1.0], [0.0, 0.0]]))
        Array([[1., 1.],
               [0., 1.]], dtype=float32)
    """
    found = matrix("expm", x, square=True)
    if max_squarings < 0:
        raise OptionError(
            f"expm: max_squarings is {max_squarings}", loc=loc.current(), rule="it is at least 0"
        )
    if 0 in found.shape:
        return found
    with using(device_of(found)):
        return _expm(found, max_squarings)


def _expm(x: Any, most: int) -> Any:
    single = x.dtype in (float32, complex64)
    terms, largest = (_SINGLE, _LARGEST_SINGLE) if single else (_DOUBLE, _LARGEST_DOUBLE)
    lead = range(x.ndim - 2)
    norm = max_(sum_(ops.abs_(x), (x.ndim - 2,)), (x.ndim - 2,))
    # Of 0 the logarithm is -inf; NaN stays NaN.
    count = ops.maximum(ops.ceil(ops.log2(ops.div(norm, largest))), 0)
    scale = broadcast(ops.exp2(ops.neg(count)), x.shape, lead)
    a = ops.mul(x, scale if scale.dtype is x.dtype else ops.cast(scale, x.dtype))
    even, odd = _polynomial(a, terms[0::2]), product(a, _polynomial(a, terms[1::2]))
    result = solve(ops.sub(even, odd), ops.add(even, odd))
    for k in range(most):
        more = broadcast(ops.gt(count, k), x.shape, lead)
        result = ops.select(more, product(result, result), result)
    enough = broadcast(ops.le(count, most), x.shape, lead)
    return ops.select(enough, result, float("nan"))


def _polynomial(a: Any, terms: Sequence[float]) -> Any:
    """The polynomial of the square of matrices."""
    square, one = product(a, a), identity(a)
    result = ops.mul(one, terms[-1])
    for term in terms[-2::-1]:
        result = ops.add(product(square, result), ops.mul(one, term))
    return result
