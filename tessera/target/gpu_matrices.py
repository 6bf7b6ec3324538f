"""Target ops of GPUs that work on matrices: `ldmatrix`, `stmatrix`, `mma.sync`.

`tessera.target.gpu_ops` has all ops of GPUs under one name.
"""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ, WRITE
from tessera.ir.opdef import attr, operand
from tessera.ir.types import Type
from tessera.target.gpu_base import WARP, GpuOp, check_offset, check_space
from tessera.target.ops import element, lanes
from tessera.target.types import AddressSpace, VecType


class LoadMatrix(GpuOp):
    """Reads 1, 2 or 4 matrices of 8 x 16 bytes from shared memory into fragments.

    Lane l passes the byte offset of row l % 8 of matrix l // 8 (lanes beyond 8 * count pass
    anything). Each lane gets, of every matrix, two 16-bit elements: row lane // 4, columns
    2 * (lane % 4) and the next; with `transpose`, of the transposed matrix.

    Attributes:
        count: matrices.
        transpose: whether rows and columns change places.
        dtype: elements of the result, of 8, 16 or 32 bits.
    """

    name = "target.load_matrix"
    effects = READ
    collective = "warp"
    ptr: Value = operand()
    offset: Value = operand()
    count: int = attr()
    transpose: bool = attr(False)
    dtype: DType = attr()

    def infer(self) -> Type:
        """Two elements per matrix."""
        check_space(self.ptr, AddressSpace.SHARED)
        check_offset(self.offset)
        if self.count not in (1, 2, 4) or self.dtype.bits not in (8, 16, 32):
            raise VerifyError(f"load_matrix of {self.count} matrices of {self.dtype}")
        return VecType(self.count * 32 // self.dtype.bits, self.dtype)


class StoreMatrix(GpuOp):
    """Writes 1, 2 or 4 matrices, the reverse of `load_matrix`."""

    name = "target.store_matrix"
    effects = WRITE
    collective = "warp"
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    transpose: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.ptr, AddressSpace.SHARED)
        check_offset(self.offset)
        if lanes(self.value.type) not in (2, 4, 8) or element(self.value.type).bits != 16:
            raise VerifyError(f"store_matrix of {self.value.type}")
        return ()


class Mma(GpuOp):
    """a @ b + c by the warp's tensor core; operands are fragments (`target/gpu_fragments.py`).

    Attributes:
        m: rows.
        n: columns.
        k: depth.
        kind: dtypes of a and b: bf16, f16, tf32 (given as f32), f64, i8, u8, f8e4m3fn, f8e5m2.
    """

    name = "target.mma"
    collective = "warp"
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()
    m: int = attr()
    n: int = attr()
    k: int = attr()
    kind: str = attr()

    def infer(self) -> Type:
        """The accumulator's type."""
        if lanes(self.a.type) * WARP != self.m * self.k or lanes(self.b.type) * WARP != (
            self.k * self.n
        ):
            raise VerifyError(f"mma m{self.m}n{self.n}k{self.k} of {self.a.type}, {self.b.type}")
        if lanes(self.c.type) * WARP != self.m * self.n:
            raise VerifyError(f"mma m{self.m}n{self.n}k{self.k} into {self.c.type}")
        return self.c.type
