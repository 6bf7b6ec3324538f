"""Discrete Fourier transforms, unscaled. They are linear; their transposes are transforms again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import DType, complex64, complex128, float32, float64, int64, real_of
from tessera.errors import DTypeError
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import linear
from tessera.graph.ops.checks import check_axes, check_axis, check_dim, may_equal, tensor, title
from tessera.graph.ops.generate import iota
from tessera.graph.ops.library import LibraryCall
from tessera.graph.ops.rearrange import Batched
from tessera.graph.trace import bind
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.types import TensorType

COMPLEX = {float32: complex64, float64: complex128}
"""The complex dtype of two numbers of a real one."""


class Transform(LibraryCall):
    """Base of the transforms: what they have in common."""

    jvp = linear

    def check(self, dtypes: tuple[DType, ...], kind: str) -> TensorType:
        """The type of the operand."""
        x = tensor(self, 0)
        if x.dtype not in dtypes:
            raise DTypeError(
                f"{title(self)}: the operand is {x.strong()}",
                loc=self.loc,
                rule=f"it is {kind}, of single or double precision",
                fix="convert it with `astype`",
            )
        return x.strong()

    def check_length(self, size: Dim) -> None:
        """A transform has points."""
        check_dim(self, not may_equal(size, 0), "a transform of no points", "it has one or more")


class Fft(Transform):
    """The transform over several axes: out[k] = sum_j x[j] exp(-2 pi i j k / n) for each of them.

    `%r = graph.fft(%x) {axes=[1]} : c64[3, 8]`.

    Attributes:
        axes: distinct axes.
        inverse: whether the exponent has the other sign; the result is not divided by n.
    """

    name = "graph.fft"
    routine = "fft"
    x: Value = operand()
    axes: tuple[int, ...] = attr()
    inverse: bool = attr(False)

    def infer(self) -> TensorType:
        """The operand's type."""
        x = self.check((complex64, complex128), "complex")
        check_axes(self, self.axes, x.rank)
        for axis in self.axes:
            self.check_length(x.shape[axis])
        return x

    @property
    def batch_rank(self) -> int:
        return min(self.axes)

    def options(self) -> tuple[int, ...]:
        """The direction, then the axes."""
        return (int(self.inverse), *self.axes)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The matrix of the transform is symmetric."""
        return (self.bind(cts[0]),)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """One more axis that is not transformed, where it is."""
        at = axes[0]
        assert at is not None
        moved = tuple([a + (a >= at) for a in self.axes])
        return (self.bind(*operands, axes=moved),), (at,)


class Half(Transform):
    """Base of the transforms of real numbers, whose other half is the conjugate of the first."""

    @property
    def batch_rank(self) -> int:
        return self.attrs["axis"]

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """One more axis that is not transformed, where it is."""
        at, axis = axes[0], self.attrs["axis"]
        assert at is not None
        return (self.bind(*operands, axis=axis + (axis >= at)),), (at,)


class Rfft(Half):
    """The first n // 2 + 1 elements of the transform of n real numbers along an axis.

    `%r = graph.rfft(%x) {axis=1} : c64[3, 5]` for f32[3, 8].
    """

    name = "graph.rfft"
    routine = "rfft"
    x: Value = operand()
    axis: int = attr()

    def infer(self) -> TensorType:
        """Complex numbers, about half as many."""
        x = self.check((float32, float64), "real")
        check_axis(self, self.axis, x.rank)
        n = x.shape[self.axis]
        self.check_length(n)
        shape = [n // 2 + 1 if k == self.axis else d for k, d in enumerate(x.shape)]
        return TensorType(tuple(shape), COMPLEX[x.dtype])

    def options(self) -> tuple[int, ...]:
        """The axis."""
        return (self.axis,)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The inverse transform of the conjugate, which counts the inner elements twice."""
        n = tensor(self, 0).shape[self.axis]
        ct = e.conj(cts[0])
        return (irfft(e.div(ct, count(ct.shape, self.axis, n, ct.dtype)), self.axis, n),)


class Irfft(Half):
    """The real result of the inverse transform of n elements, whose first n // 2 + 1 are given; not
    divided by n.

    `%r = graph.irfft(%x) {axis=1, size=8} : f32[3, 8]` for c64[3, 5]. The imaginary part of the
    first element is not read, nor that of the last one for an even n.
    """

    name = "graph.irfft"
    routine = "irfft"
    x: Value = operand()
    axis: int = attr()
    size: Dim = attr()

    def infer(self) -> TensorType:
        """Real numbers, about twice as many."""
        x = self.check((complex64, complex128), "complex")
        check_axis(self, self.axis, x.rank)
        self.check_length(self.size)
        given, wanted = x.shape[self.axis], self.size // 2 + 1
        check_dim(
            self,
            may_equal(given, wanted),
            f"{given} elements along axis {self.axis} for a result of {self.size}",
            "a real result of n elements has n // 2 + 1 in front of it",
        )
        shape = [self.size if k == self.axis else d for k, d in enumerate(x.shape)]
        return TensorType(tuple(shape), real_of(x.dtype))

    def options(self) -> tuple[int, ...]:
        """The axis."""
        return (self.axis,)

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The conjugate of the transform, with the inner elements twice."""
        found = e.conj(rfft(cts[0], self.axis))
        return (e.mul(found, count(found.shape, self.axis, self.size, found.dtype)),)


def count(shape: Sequence[Dim], axis: int, n: Dim, dtype: DType) -> Any:
    """How many elements of the whole an element of the first half stands for: 1 or 2."""
    place = iota(shape, axis, int64)
    # 2 * place is n for the last element of an even n alone.
    inner = e.and_(e.gt(place, 0), e.ne(e.mul(place, 2), n))
    return e.add(e.cast(inner, dtype), 1)


# --- functions ------------------------------------------------------------------------------------


def fft(x: Any, axes: Sequence[int], inverse: bool = False) -> Any:
    """The complex transform over axes; see `Fft`."""
    return bind(Fft, x, axes=tuple(axes), inverse=inverse) if axes else x


def rfft(x: Any, axis: int) -> Any:
    """The first half of the transform of real numbers; see `Rfft`."""
    return bind(Rfft, x, axis=axis)


def irfft(x: Any, axis: int, size: Dim) -> Any:
    """The real result of the inverse transform; see `Irfft`."""
    return bind(Irfft, x, axis=axis, size=size)
