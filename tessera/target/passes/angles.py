"""Sine, cosine and tangent on GPUs, of angles of any size.

An angle less the nearest multiple of pi / 2: by subtraction in parts while that is exact, else by
the digits of 2 / pi that count for the angle's exponent (Payne and Hanek's method), in a branch
that warps without large angles skip.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tessera.dtypes import float64, uint64
from tessera.ir.core import Block, Value
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.expression import Grade, Num, fast_two_sum, fma, where
from tessera.target.passes.fold import Fold
from tessera.target.passes.mathematics_trigonometry import (
    HALF_PI_SINGLE,
    LIMIT,
    PI_PARTS,
    Reduced,
    of_reduced,
    reduce,
)

SINGLE_LIMIT = 1e5
"""The largest float32 angle that is reduced in parts."""

TWO_OVER_PI = (
    0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484,
    0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip
"""The binary digits of 2 / pi after the point, 64 in each."""


def _reduce_single(x: Num, name: str) -> Reduced:
    """The parts of a float32 angle of at most `SINGLE_LIMIT`: products are exact until they are
    subtracted. A tangent needs what the last rounding lost.
    """
    shifted = fma(x, 2 / math.pi, x.format.magic)
    k = shifted - x.format.magic
    first, second, third = HALF_PI_SINGLE
    high = fma(k, -first, x)
    if name != "tan":
        return Reduced(shifted.bits(), fma(k, -third, fma(k, -second, high)), None)
    product = k * -second
    r, lost = fast_two_sum(high, product)
    return Reduced(shifted.bits(), r, fma(k, -third, lost + fma(k, -second, -product)))


def _digits(width: int) -> list[int]:
    """Words of the digits of 2 / pi, after one with what is before the point."""
    if width == 64:
        return [0, *TWO_OVER_PI]
    return [0, *[(w >> s) & 0xFFFFFFFF for w in TWO_OVER_PI for s in (32, 0)]]


def _reduce_large(x: Num) -> Reduced:
    """The parts of |x| for a large angle, from products with the digits that count.

    |x| = m * 2**e; digits of 2 / pi that make multiples of 4 are left out, and of what follows
    three words are enough.
    """
    form = x.format
    width, p = form.bits.bits, form.mantissa
    bits = x.bits() & ((1 << (width - 1)) - 1)
    m = (bits & ((1 << p) - 1)) | (1 << p)
    place = (bits >> p) - (form.bias + p + 2 - width)
    word, offset = place >> (width.bit_length() - 1), place & (width - 1)
    last = (2 * form.bias - (form.bias + p + 2 - width)) // width
    table = _digits(width)
    picked: list[Num] = []
    for j in range(4):
        value: Num = word.const(table[j])
        for k in range(1, last + 1):
            value = where(word.equals(k), table[k + j], value)
        picked.append(value)
    back = offset.const(width) - offset
    a = [picked[j].map("shl", offset) | picked[j + 1].map("shr", back) for j in range(3)]
    low, middle = m * a[2], m * a[1]
    sum_ = middle + m.map("mulhi", a[2])
    carry = where(sum_ < middle, sum_.const(1), 0)
    high = m * a[0] + m.map("mulhi", a[1]) + carry
    return _fraction(x, high, sum_, low)


def _fraction(x: Num, high: Num, middle: Num, low: Num) -> Reduced:
    """The quadrant and the rest of an angle, whose fraction of 2 * pi is given in words."""
    width = x.format.bits.bits
    first = (high << 2) | (middle >> (width - 2))
    second = (middle << 2) | (low >> (width - 2))
    up = first >> (width - 1)
    quadrant = (high >> (width - 2)) + up
    over = up.differs(0)
    carry = where(second.equals(0), second.const(1), 0)
    first = where(over, ~first + carry, first)
    second = where(over, second.const(0) - second, second)
    b = x.b
    if x.grade is Grade.SINGLE:
        wide = (Num(b, b.cast(first.value, uint64)) << 32) | Num(b, b.cast(second.value, uint64))
        angle = Num(b, b.cast(wide.value, float64)) * (math.pi / 2 * 2.0**-64)
        r = angle.narrow()
        rest = (angle - r.widen()).narrow()
        return Reduced(quadrant, where(over, -r, r), where(over, -rest, rest))
    top = Num(b, b.cast((first & ~0x7FF % (1 << 64)).value, float64)) * 2.0**-64
    below = ((first & 0x7FF) << 53) | (second >> 11)
    bottom = Num(b, b.cast(below.value, float64)) * 2.0**-117
    pi, more = PI_PARTS[Grade.DOUBLE]
    product = top * (pi / 2)
    lost = fma(top, pi / 2, -product)
    r, rest = fast_two_sum(product, lost + fma(top, more / 2, bottom * (pi / 2)))
    return Reduced(quadrant, where(over, -r, r), where(over, -rest, rest))


def _reduced(x: Num, name: str) -> Reduced:
    """The parts of an angle; of infinities, NaN."""
    b = x.b
    assert isinstance(b, Fold)
    single = x.grade is Grade.SINGLE
    a = abs(x)
    near = _reduce_single(a, name) if single else reduce(a)
    large = a > (SINGLE_LIMIT if single else LIMIT)
    inner = b.inner()
    far = _reduce_large(Num(inner, x.value, x.grade))
    finite = Num(inner, a.value) < math.inf
    r = where(finite, far.r, math.nan)
    then = [far.quadrant.value, r.value]
    otherwise = [near.quadrant.value, near.r.value]
    if far.rest is not None and near.rest is not None:
        then.append(far.rest.value)
        otherwise.append(near.rest.value)
    branch = t.If(large.value, Block([], inner.ops, then), Block([], [], otherwise), loc=b.loc)
    b.ops.append(branch)
    quadrant, r_value, *rest = [Num(b, v, x.grade) for v in branch.results]
    return Reduced(quadrant, r_value, rest[0] if rest else None)


def _function(name: str) -> Callable[..., Value]:
    def expand(b: Build, x: Value) -> Value:
        angle = Num(b, x)
        result = of_reduced(_reduced(angle, name), name)
        if name == "cos":
            return result.value
        # The parts are those of |x|.
        result = (result.bits() ^ (angle.bits() & (1 << (angle.format.bits.bits - 1)))).floats()
        return where(abs(angle) < 2.0**-28, angle, result).value

    expand.__name__, expand.__doc__ = name, f"The {name} row."
    return expand


ANGLES: dict[str, Callable[..., Value]] = {name: _function(name) for name in ("sin", "cos", "tan")}
"""Functions of float32 and float64 by the name of their row."""
