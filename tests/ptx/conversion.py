"""cvt in all its forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.decode import Decode, Decoder
from tests.ptx.machine import Run
from tests.ptx.memory import Array
from tests.ptx.parser import Instruction
from tests.ptx.rounding import (
    BF16,
    E4M3,
    E5M2,
    flush,
    narrow,
    saturate,
    tf32,
    to_f8,
)

Function = Callable[..., Array]
_FLOAT = ("f16", "bf16", "f32", "f64")
_TO_INT: dict[str, np.ufunc] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _convert(d: Decoder, ins: Instruction) -> Run:
    if ins.parts[1] == "pack":
        return _pack_saturated(d, ins)
    out, source = ins.parts[-2:]
    modes = ins.parts[1:-2]
    known = {
        "rn",
        "rz",
        "rm",
        "rp",
        "rna",
        "rni",
        "rzi",
        "rmi",
        "rpi",
        "ftz",
        "sat",
        "satfinite",
        "relu",
    }
    if unknown := set(modes) - known:
        raise d.fail(f".{unknown.pop()} is not known")
    if out in ("f16x2", "bf16x2") and source == "f32":
        return _pair_from_floats(d, ins, out, modes)
    if out in ("e4m3x2", "e5m2x2"):
        return _pair_to_f8(d, ins, out, source, modes)
    if source in ("e4m3x2", "e5m2x2"):
        return _pair_from_f8(d, ins, out, source, modes)
    if out == "tf32":
        mode = next((m for m in modes if m in ("rn", "rna", "rz")), "rn")
        x = d.src(ins.operands[1], "f32")
        return d.pure(ins.operands[0], "b32", lambda a: tf32(a, mode).view("u4"), x)
    function = _between(d, out, source, modes)
    return d.pure(ins.operands[0], out, function, d.src(ins.operands[1], source))


def _between(d: Decoder, out: str, source: str, modes: tuple[str, ...]) -> Function:
    if source in _FLOAT:
        return _from_float(d, out, source, modes)
    if out in _FLOAT:
        mode = next((m for m in modes if m in ("rn", "rz", "rm", "rp")), "rn")
        return lambda x: _int_to_float(x, out, mode)
    dtype = d.dtype(out)
    if "sat" in modes:
        info = np.iinfo(dtype)
        return lambda x: _clamped(x, info.min, info.max).astype(dtype)
    return lambda x: x.astype(dtype)


def _clamped(x: Array, low: int, high: int) -> Array:
    own = np.iinfo(x.dtype)
    return np.clip(x, max(low, own.min), min(high, own.max))


def _int_to_float(x: Array, out: str, mode: str) -> Array:
    if out == "f64":
        return x.astype("f8")
    if x.dtype.itemsize < 8:
        return narrow(x.astype("f8"), out, mode)
    if out == "f32" and mode == "rn":
        return x.astype("f4")
    # 64-bit integers: the float64 below, with a last bit that says what is cut off.
    magnitude = np.where(x < 0, np.zeros((), x.dtype) - x, x).view("u8")
    high = magnitude & ~np.uint64(0x7FF)
    sticky = ((magnitude & np.uint64(0x7FF)) != 0).astype("u8") << np.uint64(11)
    wide = np.where(magnitude >> np.uint64(53), high | sticky, magnitude).astype("f8")
    return narrow(np.where(x < 0, -wide, wide), out, mode)


def _from_float(d: Decoder, out: str, source: str, modes: tuple[str, ...]) -> Function:
    ftz = "ftz" in modes
    to_int = next((m for m in modes if m in _TO_INT), None)
    if out not in _FLOAT:
        if to_int is None:
            raise d.fail("a conversion to an integer needs a rounding")
        dtype = d.dtype(out)
        nan = 1 << (8 * dtype.itemsize - 1) if source == "f64" or dtype.itemsize == 8 else 0
        return lambda x: _to_int(flush(x) if ftz else x, dtype, _TO_INT[to_int], nan)

    def run(x: Array) -> Array:
        if ftz and source == "f32":
            x = flush(x)
        if to_int is not None:
            x = np.copysign(_TO_INT[to_int](x.astype("f8")), x.astype("f8"))
        mode = next((m for m in modes if m in ("rn", "rz", "rm", "rp")), "rn")
        y = _rounded(x, out, mode)
        if ftz and out == "f32":
            y = flush(y)
        if "sat" in modes:
            y = saturate(y)
        return _limited(y, out, modes)

    return run


def _rounded(x: Array, kind: str, mode: str) -> Array:
    """A float as another; one cast where NumPy rounds once."""
    if mode == "rn" and x.dtype.itemsize <= 4:
        return x.astype(BF16 if kind == "bf16" else f"f{int(kind[1:]) // 8}")
    return narrow(x.astype("f8"), kind, mode)


def _limited(y: Array, out: str, modes: tuple[str, ...]) -> Array:
    if "satfinite" in modes:
        limit = np.float32(65504) if out == "f16" else np.float32(3.3895314e38)
        wide = y.astype("f4")
        y = np.where(np.isnan(wide), wide, np.clip(wide, -limit, limit)).astype(y.dtype)
    if "relu" in modes:
        zero = np.zeros((), y.dtype)
        y = np.where(np.isnan(y), y, np.where(y > zero, y, zero))
    return y


def _to_int(x: Array, dtype: np.dtype[np.generic], rounding: np.ufunc, nan: int) -> Array:
    """Clamped to the range; NaN gives a fixed number."""
    wide = rounding(x.astype("f8"))
    info = np.iinfo(dtype)
    inside = (wide >= info.min) & (wide < float(info.max) + (1 if dtype.itemsize < 8 else 0))
    cut = np.where(inside, wide, 0.0).astype(dtype)
    cut = np.where(
        wide > info.max if dtype.itemsize < 8 else wide >= float(info.max),
        dtype.type(info.max),
        cut,
    )
    cut = np.where(wide < info.min, dtype.type(info.min), cut)
    return np.where(np.isnan(x), np.array(nan, f"u{dtype.itemsize}").view(dtype), cut)


def _pair_from_floats(d: Decoder, ins: Instruction, out: str, modes: tuple[str, ...]) -> Run:
    """The first source becomes the upper half."""
    upper, lower = (d.src(x, "f32") for x in ins.operands[1:3])
    kind = out.removesuffix("x2")
    mode = "rz" if "rz" in modes else "rn"

    def run(a: Array, b: Array) -> Array:
        halves = [_limited(_rounded(x, kind, mode), kind, modes) for x in (b, a)]
        return np.stack(halves, axis=1)

    return d.pure(ins.operands[0], out, run, upper, lower)


def _pair_to_f8(d: Decoder, ins: Instruction, out: str, source: str, modes: tuple[str, ...]) -> Run:
    kind = out.removesuffix("x2")
    if "satfinite" not in modes:
        raise d.fail("a conversion to an 8-bit float saturates")

    def code(x: Array) -> Array:
        x = x.astype("f4")
        return to_f8(np.where(x < 0, np.float32(0), x) if "relu" in modes else x, kind)

    if source == "f32":
        upper, lower = (d.src(x, "f32") for x in ins.operands[1:3])
        return d.pure(ins.operands[0], "b16", lambda a, b: _bytes(code(b), code(a)), upper, lower)
    both = d.src(ins.operands[1], source)
    return d.pure(ins.operands[0], "b16", lambda x: _bytes(code(x[:, 0]), code(x[:, 1])), both)


def _bytes(low: Array, high: Array) -> Array:
    return low.astype("u2") | (high.astype("u2") << np.uint16(8))


def _pair_from_f8(
    d: Decoder, ins: Instruction, out: str, source: str, modes: tuple[str, ...]
) -> Run:
    if out not in ("f16x2", "bf16x2"):
        raise d.fail("8-bit floats become f16x2")
    x = d.src(ins.operands[1], "b16")
    dtype = E4M3 if source.startswith("e4m3") else E5M2
    to = np.dtype("f2") if out == "f16x2" else BF16

    def run(a: Array) -> Array:
        # A 16-bit operand may be the low part of a wider register, which does not lie together.
        y = np.ascontiguousarray(a).view("u1").reshape(-1, 2).view(dtype).astype("f4").astype(to)
        return _limited(y, out.removesuffix("x2"), modes)

    return d.pure(ins.operands[0], out, run, x)


def _pack_saturated(d: Decoder, ins: Instruction) -> Run:
    """cvt.pack.sat.s8.s32.b32 d, a, b, c: a and b clamped, above the lower part of c."""
    narrow_type = ins.parts[3]
    dtype = d.dtype(narrow_type)
    info = np.iinfo(dtype)
    a, b = (d.src(x, "s32") for x in ins.operands[1:3])
    raw = np.dtype(f"u{dtype.itemsize}")
    bits = 8 * dtype.itemsize
    third = d.src(ins.operands[3], "b32") if len(ins.operands) > 3 else None

    def run(x: Array, y: Array) -> Array:
        parts = [
            np.clip(v, info.min, info.max).astype(dtype).view(raw).astype("u4") for v in (x, y)
        ]
        value = (parts[0] << np.uint32(bits)) | parts[1]
        return value if third is None else value | (third << np.uint32(2 * bits))

    return d.pure(ins.operands[0], "b32", run, a, b)


CONVERSION: dict[str, Decode] = {"cvt": _convert}
"""How it is decoded."""
