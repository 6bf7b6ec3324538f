"""Values of 4 bits, two in a byte.

    byte[k] = code(value[2 * k]) | code(value[2 * k + 1]) << 4

along one axis, and zeros behind an odd number of values. The code of an int4 are its bits in two's
complement; that of an e2m1 number are its sign, two bits of exponent and one of mantissa, as in
"OCP Microscaling Formats" 1.0 (2023), section 5.3.3. That format has no NaN, which becomes 6 or -6.

All of it is integer arithmetic on bytes, so it is fused into what makes the values and what reads
them.
"""

from __future__ import annotations

from typing import Any

from tessera.dtypes import float8_e4m3fn, int4, int8, int32, uint8
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.generate import iota
from tessera.graph.ops.quantize import Format
from tessera.graph.ops.rearrange import pad, slice_axis
from tessera.graph.ops.reshape import broadcast, full_like, reshape, squeeze
from tessera.ir.intexpr import Dim


def pack_values(values: Any, format: Format, axis: int, padded: bool) -> Any:
    """Values in bytes, `u8`, which are half as many along an axis."""
    codes = _int4_codes(values) if format is Format.INT4 else _e2m1_codes(values)
    if padded:
        lo = [0] * codes.ndim
        codes = pad(codes, 0, lo, [int(k == axis) for k in range(codes.ndim)])
    shape = codes.shape
    pairs = reshape(codes, [*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :]])
    low, high = (squeeze(slice_axis(pairs, axis + 1, k, k + 1), (axis + 1,)) for k in (0, 1))
    return e.or_(low, e.shl(high, 4))


def unpack_integers(packed: Any, format: Format, axis: int, size: Dim) -> Any:
    """The values, of which there are `size` along an axis, in int8; those of e2m1 times 2."""
    codes = _codes(packed, axis, size)
    if format is Format.INT4:
        return codes
    # 0, 1, 2, 3, 4, 6, 8, 12: three lines, and the highest one counts.
    number = e.and_(codes, 7)
    faster, fastest = e.sub(e.shl(number, 1), 4), e.sub(e.shl(number, 2), 16)
    number = e.maximum(number, e.maximum(faster, fastest))
    sign = e.shr(codes, 7)
    return e.sub(e.xor(number, sign), sign)


def unpack_values(packed: Any, format: Format, axis: int, size: Dim) -> Any:
    """The values in what an array of them is kept in."""
    codes = _codes(packed, axis, size)
    if format is Format.INT4:
        return e.cast(codes, int4)
    number = e.and_(codes, 7)
    bits = e.add(e.shl(number, 2), 0x30)
    bits = e.select(e.le(number, 1), e.mul(number, 0x30), bits)
    return e.bitcast(e.or_(bits, e.and_(codes, full_like(codes, -128))), float8_e4m3fn)


def _codes(packed: Any, axis: int, size: Dim) -> Any:
    """The codes with their first bit as the sign of an int8."""
    shape = [*packed.shape[:axis], packed.shape[axis], 2, *packed.shape[axis + 1 :]]
    flat = [*packed.shape[:axis], packed.shape[axis] * 2, *packed.shape[axis + 1 :]]
    dims = [k for k in range(packed.ndim + 1) if k != axis + 1]
    both = reshape(broadcast(e.bitcast(packed, int8), shape, dims), flat)
    is_second = e.cast(e.and_(iota(flat, axis, int32), 1), int8)
    first = e.shr(e.shl(both, 4), 4)
    found = e.select(e.ne(is_second, 0), e.shr(both, 4), first)
    return slice_axis(found, axis, 0, size)


def _int4_codes(values: Any) -> Any:
    return e.and_(e.bitcast(e.cast(values, int8), uint8), 15)


def _e2m1_codes(values: Any) -> Any:
    bits = e.bitcast(values, uint8)
    size = e.cast(e.and_(bits, 127), int8)
    # 0.5 is 0x30; the others are 0x38 for 1 and every fourth from there on, and 0.
    number = e.minimum(e.maximum(e.shr(e.sub(size, 0x30), 2), 1), 7)
    number = e.select(e.eq(size, 0), full_like(number, 0), number)
    return e.or_(e.cast(number, uint8), e.and_(e.shr(bits, 4), 8))
