"""Tables of roots of unity, which Fourier transforms multiply by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType, float32, float64
from tessera.errors import VerifyError
from tessera.ir.opdef import attr
from tessera.ir.types import Type
from tessera.target.ops import TargetOp
from tessera.target.types import PtrType

Array = npt.NDArray[Any]


class Roots(TargetOp):
    """A pointer to constants: powers of w = exp(-2 pi i / n), in blocks.

    Block b has, for each power j from 1 to radix - 1, `lanes` real parts and as many imaginary
    parts: those of w**(j * (start + lane)), where start is b * lanes, or `count` - lanes if that is
    less.

    Attributes:
        n: the order of the root.
        radix: one more than the powers.
        count: the rows that the blocks share; at least `lanes`.
        lanes: rows of a block.
        dtype: f32 or f64.
    """

    name = "target.roots"
    n: int = attr()
    radix: int = attr()
    count: int = attr()
    lanes: int = attr()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A pointer."""
        if self.dtype not in (float32, float64) or min(self.n, self.radix - 1, self.lanes) < 1:
            raise VerifyError(f"no table of roots of {self.dtype}")
        if self.count < self.lanes:
            raise VerifyError(f"blocks of {self.lanes} rows of {self.count}")
        return PtrType()

    def values(self) -> Array:
        """The constants, each rounded once but for the last bit of a few."""
        blocks = -(-self.count // self.lanes)
        start = np.minimum(np.arange(blocks) * self.lanes, self.count - self.lanes)
        rows = start[:, None, None] + np.arange(self.lanes)
        power = rows * np.arange(1, self.radix)[:, None]
        real, imag = roots(power, self.n)
        return np.stack([real, imag], 2).astype(self.dtype.np).ravel()

    @property
    def symbol(self) -> str:
        """A name that says what the table has."""
        return f"roots.{self.n}.{self.radix}.{self.count}.{self.lanes}.{self.dtype}"


def roots(power: Array, n: int) -> tuple[Array, Array]:
    """Real and imaginary parts of exp(-2 pi i / n) to some powers, in extended precision.

    The angle is brought into the first eighth of the circle as a fraction of integers, so that it
    is as exact as pi.
    """
    # In units of the circle's part 1 / (8 n): eighths are n apart.
    place = power % n * 8
    eighth, rest = place // n, place % n
    # An odd eighth is measured from its end.
    rest = np.where(eighth % 2 == 1, n - rest, rest)
    angle = rest.astype(np.longdouble) * (np.longdouble(_PI) / (4 * n))
    near, far = np.cos(angle), np.sin(angle)
    swapped = np.isin(eighth, (1, 2, 5, 6))
    cos, sin = np.where(swapped, far, near), np.where(swapped, near, far)
    return np.where(np.isin(eighth, (2, 3, 4, 5)), -cos, cos), np.where(eighth < 4, -sin, sin)


_PI = np.longdouble("3.14159265358979323846264338327950288")
