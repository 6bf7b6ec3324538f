"""Discrete Fourier transforms of one or several axes.

Transforms are computed in single or double precision: float32 and complex64 in single, integers and
bools as float32. `norm` says which direction divides by the number n of points: `backward` the
inverse one, `forward` the other, `ortho` both by the root of n.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from tessera.dtypes import (
    DType,
    DTypeLike,
    complex64,
    complex128,
    default_float,
    dtype_of,
    float32,
    float64,
)
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.device import Device, using
from tessera.graph.namespace.arguments import ArrayLike, as_array, as_inexact, is_static, parse_axes
from tessera.graph.namespace.conversion import asarray
from tessera.graph.namespace.manipulation import roll
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops import fourier
from tessera.graph.ops.rearrange import pad, slice_axis
from tessera.graph.placement import device_of
from tessera.graph.shortcut import composed
from tessera.ir import loc

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Norm: TypeAlias = Literal["backward", "ortho", "forward"]

NORMS = ("backward", "ortho", "forward")


# --- arguments ------------------------------------------------------------------------------------


def _complex(name: str, x: object) -> Any:
    """An argument as complex numbers."""
    found = _inexact(name, x)
    if found.dtype.is_complex:
        return found
    return ops.cast(found, complex64 if found.dtype is float32 else complex128)


def _real(name: str, x: object) -> Any:
    """An argument as real numbers."""
    found = _inexact(name, x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule=f"{name} transforms real numbers",
            fix=f"use `{'fft' if name[0] == 'r' else 'ifft'}`, or take the real part first",
        )
    return found


def _inexact(name: str, x: object) -> Any:
    found = as_inexact(name, x)
    if found.dtype not in (float32, float64, complex64, complex128):
        raise DTypeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="transforms are computed in f32, f64, c64 and c128",
            fix="convert it first, as with `x.astype(ts.float32)`",
        )
    return found


def _scale(name: str, norm: str | None, points: int, inverse: bool) -> float:
    """What an unscaled transform is multiplied by."""
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise OptionError(
            f"{name}: norm is {norm!r}",
            loc=loc.current(),
            rule=f"it is one of {', '.join(map(repr, NORMS))}",
        )
    if norm == "ortho":
        return 1 / math.sqrt(points)
    return 1 / points if (norm == "backward") is inverse else 1.0


def _scaled(x: Any, scale: float) -> Any:
    return x if scale == 1 else ops.mul(x, scale)


def _length(name: str, what: str, n: Any) -> int:
    try:
        found = operator.index(n)
    except TypeError:
        found = 0
    if found < 1:
        raise ShapeError(
            f"{name}: {what} is {n!r}",
            loc=loc.current(),
            rule="the length of a transform is an int of at least 1",
        )
    return found


def _resized(x: Any, axis: int, n: int) -> Any:
    """The first n elements along an axis, or all and then zeros."""
    size = x.shape[axis]
    if size == n:
        return x
    if size > n:
        return slice_axis(x, axis, 0, n)
    return pad(x, 0, [0] * x.ndim, [n - size if k == axis else 0 for k in range(x.ndim)])


def _sizes(
    name: str, x: Any, s: Sequence[int] | None, axes: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """The axes of a transform and their lengths."""
    if not is_static(x.shape):
        raise ShapeError(
            f"{name}: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="the length of a transform is known when the program is traced",
        )
    if axes is None:
        count = x.ndim if s is None else len(s)
        if count > x.ndim:
            raise ShapeError(
                f"{name}: {count} lengths for {x.type.strong()}",
                loc=loc.current(),
                rule="there are no more lengths than dims",
            )
        places = list(range(x.ndim - count, x.ndim))
    else:
        what = "axis" if len(axes) == 1 else "axes"
        places = list(parse_axes(name, tuple(axes), x.ndim, what))
    if s is None:
        return places, [_length(name, f"axis {k} of the array", x.shape[k]) for k in places]
    if len(s) != len(places):
        raise ShapeError(
            f"{name}: {len(s)} lengths for {len(places)} axes",
            loc=loc.current(),
            rule="there is one length per axis",
        )
    # NumPy's -1 is the length that there is.
    return places, [
        _length(name, "a length", x.shape[k] if n == -1 else n)
        for k, n in zip(places, s, strict=True)
    ]


# --- complex transforms ---------------------------------------------------------------------------


def _transform(
    name: str,
    x: object,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    inverse: bool,
) -> Any:
    found = _complex(name, x)
    places, sizes = _sizes(name, found, s, axes)
    scale = _scale(name, norm, math.prod(sizes), inverse)
    with using(device_of(found)):
        for axis, n in zip(places, sizes, strict=True):
            found = _resized(found, axis, n)
        return _scaled(fourier.fft(found, places, inverse), scale)


def _list(n: int | None) -> Sequence[int] | None:
    return None if n is None else (n,)


@composed
@api_boundary
def fft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The discrete Fourier transform along an axis: out[k] = sum_j x[j] exp(-2 pi i j k / n).

    Args:
        x: an array.
        n: how many elements are transformed: the first ones, or all and then zeros. None: all.
        axis: along which.
        norm: see the module.

    Returns:
        Complex numbers.

    Example:
        >>> import tessera as ts
        >>> ts.fft.fft(ts.asarray([1.0, 0.0, 0.0, 0.0]))
        Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _transform("fft", x, _list(n), (axis,), norm, inverse=False)


@composed
@api_boundary
def ifft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The inverse of `fft`."""
    return _transform("ifft", x, _list(n), (axis,), norm, inverse=True)


@composed
@api_boundary
def fftn(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> ArrayBase:
    """The discrete Fourier transform over several axes.

    Args:
        x: an array.
        s: for each axis how many elements are transformed. None: all.
        axes: the axes. None: the last ones, as many as lengths are given, or all.
        norm: see the module.

    Returns:
        Complex numbers.
    """
    return _transform("fftn", x, s, axes, norm, inverse=False)


@composed
@api_boundary
def ifftn(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> ArrayBase:
    """The inverse of `fftn`."""
    return _transform("ifftn", x, s, axes, norm, inverse=True)


@composed
@api_boundary
def fft2(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> ArrayBase:
    """`fftn` over two axes."""
    return _transform("fft2", x, s, axes, norm, inverse=False)


@composed
@api_boundary
def ifft2(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> ArrayBase:
    """The inverse of `fft2`."""
    return _transform("ifft2", x, s, axes, norm, inverse=True)


# --- transforms of real numbers -------------------------------------------------------------------


def _real_transform(
    name: str, x: object, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str | None
) -> Any:
    found = _real(name, x)
    places, sizes = _sizes(name, found, s, axes)
    if not places:
        raise _no_axes(name)
    scale = _scale(name, norm, math.prod(sizes), False)
    with using(device_of(found)):
        for axis, n in zip(places, sizes, strict=True):
            found = _resized(found, axis, n)
        half = fourier.rfft(found, places[-1])
        return _scaled(fourier.fft(half, places[:-1]), scale)


def _inverse_real_transform(
    name: str,
    x: object,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    inverse: bool = True,
    conjugate: bool = False,
) -> Any:
    found = _complex(name, x)
    places, sizes = _sizes(name, found, s, axes)
    if not places:
        raise _no_axes(name)
    if s is None or s[-1] == -1:
        sizes[-1] = _length(name, "the length of the result", 2 * (sizes[-1] - 1))
    scale = _scale(name, norm, math.prod(sizes), inverse)
    with using(device_of(found)):
        found = ops.conj(found) if conjugate else found
        halves = [*sizes[:-1], sizes[-1] // 2 + 1]
        for axis, n in zip(places, halves, strict=True):
            found = _resized(found, axis, n)
        found = fourier.fft(found, places[:-1], inverse=True)
        return _scaled(fourier.irfft(found, places[-1], sizes[-1]), scale)


def _no_axes(name: str) -> ShapeError:
    return ShapeError(
        f"{name}: there are no axes", loc=loc.current(), rule="one axis or more is transformed"
    )


@composed
@api_boundary
def rfft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The transform of real numbers along an axis: the first n // 2 + 1 elements, which say the
    others.

    Args:
        x: an array of real numbers.
        n: how many elements are transformed: the first ones, or all and then zeros. None: all.
        axis: along which.
        norm: see the module.

    Returns:
        Complex numbers.
    """
    return _real_transform("rfft", x, _list(n), (axis,), norm)


@composed
@api_boundary
def irfft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The inverse of `rfft`.

    Args:
        x: the first n // 2 + 1 elements along an axis. The imaginary part of the first one is
            ignored, and that of the last one for an even n.
        n: the length of the result. None: twice the number of elements less one.
        axis: along which.
        norm: see the module.

    Returns:
        Real numbers.
    """
    return _inverse_real_transform("irfft", x, _list(n), (axis,), norm)


@composed
@api_boundary
def rfftn(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> ArrayBase:
    """The transform of real numbers over several axes: `rfft` along the last one of them, `fft`
    along the others.
    """
    return _real_transform("rfftn", x, s, axes, norm)


@composed
@api_boundary
def irfftn(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> ArrayBase:
    """The inverse of `rfftn`; `s` has the lengths of the result."""
    return _inverse_real_transform("irfftn", x, s, axes, norm)


@composed
@api_boundary
def rfft2(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> ArrayBase:
    """`rfftn` over two axes."""
    return _real_transform("rfft2", x, s, axes, norm)


@composed
@api_boundary
def irfft2(
    x: ArrayLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> ArrayBase:
    """The inverse of `rfft2`."""
    return _inverse_real_transform("irfft2", x, s, axes, norm)


@composed
@api_boundary
def hfft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The transform of numbers whose second half is the conjugate of the first, which is given.

    Args:
        x: the first n // 2 + 1 elements along an axis.
        n: the length of the result. None: twice the number of elements less one.
        axis: along which.
        norm: see the module.

    Returns:
        Real numbers.
    """
    return _inverse_real_transform(
        "hfft", x, _list(n), (axis,), norm, inverse=False, conjugate=True
    )


@composed
@api_boundary
def ihfft(
    x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> ArrayBase:
    """The inverse of `hfft`: the first n // 2 + 1 elements."""
    found = _real("ihfft", x)
    places, (size,) = _sizes("ihfft", found, _list(n), (axis,))
    scale = _scale("ihfft", norm, size, inverse=True)
    with using(device_of(found)):
        half = fourier.rfft(_resized(found, places[0], size), places[0])
        return _scaled(ops.conj(half), scale)


# --- places of frequencies ------------------------------------------------------------------------


def _frequencies(
    name: str, numbers: Sequence[int], n: int, d: float, dtype: DTypeLike | None, device: Any
) -> Any:
    wanted: DType = default_float if dtype is None else dtype_of(dtype)
    if not wanted.is_float:
        raise DTypeError(
            f"{name}: dtype is {wanted}", loc=loc.current(), rule="frequencies are real numbers"
        )
    step = 1.0 / (n * d)
    return asarray([k * step for k in numbers], dtype=wanted, device=device)


@api_boundary
def fftfreq(
    n: int,
    /,
    d: float = 1.0,
    *,
    dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> ArrayBase:
    """The frequencies of the elements of a transform: [0, 1, ..., -2, -1] / (n d).

    Args:
        n: the length of the transform.
        d: the distance of samples.
        dtype: of the result, a floating-point one; float32 by default.
        device: of the result.
    """
    size = _length("fftfreq", "n", n)
    half = (size + 1) // 2
    numbers = [*range(half), *range(half - size, 0)]
    return _frequencies("fftfreq", numbers, size, d, dtype, device)


@api_boundary
def rfftfreq(
    n: int,
    /,
    d: float = 1.0,
    *,
    dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> ArrayBase:
    """The frequencies of the elements of `rfft`: [0, 1, ..., n // 2] / (n d).

    Args are those of `fftfreq`.
    """
    size = _length("rfftfreq", "n", n)
    return _frequencies("rfftfreq", range(size // 2 + 1), size, d, dtype, device)


def _shifted(
    name: str, x: object, axes: int | Sequence[int] | None, direction: int
) -> Any:
    found = as_array(name, x)
    places = parse_axes(name, axes, found.ndim, "axes")
    if not is_static(found.shape):
        raise ShapeError(
            f"{name}: the array is {found.type.strong()}",
            loc=loc.current(),
            rule="the length of a transform is known when the program is traced",
        )
    # Backwards by what it was moved forwards: the two halves of an odd length differ.
    steps = tuple([direction * (found.shape[k] // 2) for k in places])
    return roll(found, steps, axis=places) if places else found


@composed
@api_boundary
def fftshift(x: ArrayLike, /, axes: int | Sequence[int] | None = None) -> ArrayBase:
    """Moves the element of frequency 0 to the middle.

    Args:
        x: an array.
        axes: along which; None: all.
    """
    return _shifted("fftshift", x, axes, 1)


@composed
@api_boundary
def ifftshift(x: ArrayLike, /, axes: int | Sequence[int] | None = None) -> ArrayBase:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, -1)
