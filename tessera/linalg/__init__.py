"""The standard's extension `linalg`, and a few more functions of matrices. See docs/linalg.md.

Matrices are the last two dims of arrays; dims in front are a batch. What LAPACK computes takes
float32, float64, complex64 and complex128; integers are converted to float32 first. Where a matrix
has no result, its results are NaN: a Cholesky factor of one that is not positive definite, or a
factorization of one whose elements are not finite. Equations of a singular matrix divide by zero.
"""

from __future__ import annotations

import tessera.api as _api  # which computes what is called here
from tessera.graph.namespace.linear import matmul, outer, tensordot, vecdot
from tessera.graph.namespace.manipulation import matrix_transpose
from tessera.linalg.equations import inv, lstsq, matrix_rank, pinv, solve, triangular_solve
from tessera.linalg.exponential import expm
from tessera.linalg.factorizations import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    lu,
    qr,
    svd,
    svdvals,
)
from tessera.linalg.norms import (
    cross,
    det,
    diagonal,
    matrix_norm,
    matrix_power,
    norm,
    slogdet,
    trace,
    vector_norm,
)

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "triangular_solve",
    "vecdot",
    "vector_norm",
]

del _api
