"""Arithmetic, bits and conversions of the PTX interpreter, against NumPy and exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.texts import FILES, computed, file_of, same

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    3.4e38,
    0.5,
    1.5,
    2.5,
    -2.5,
]
RNG = np.random.default_rng(7)
F32 = np.concatenate([np.array(SPECIAL, "f4"), RNG.standard_normal(100).astype("f4") * 100])
F32B = RNG.permutation(F32)
F64 = np.concatenate([np.array(SPECIAL), RNG.standard_normal(100) * 1e5])
F64B = RNG.permutation(F64)
I32 = np.concatenate(
    [
        np.array([0, 1, -1, 2**31 - 1, -(2**31), 7, -7], "i4"),
        RNG.integers(-(2**31), 2**31, 100).astype("i4"),
    ]
)
I32B = RNG.permutation(I32)
I64 = np.concatenate(
    [I32.astype("i8"), RNG.integers(-(2**63), 2**63 - 1, 100), [-(2**63), 2**63 - 1]]
)
I64B = RNG.permutation(I64)
U16 = RNG.integers(0, 2**16, 200).astype("u2")


# --- arithmetic ---

FLOAT_CASES = [
    ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide),
    ("min", np.fmin), ("max", np.fmax), ("min.NaN", np.minimum), ("max.NaN", np.maximum),
    ("copysign", lambda a, b: np.copysign(b, a)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function"), FLOAT_CASES)
@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float_arithmetic(name: str, function: Any, type_: str) -> None:
    if "NaN" in name and type_ == "f64":
        pytest.skip("there is no such instruction")
    x, y = (F32, F32B) if type_ == "f32" else (F64, F64B)
    r = FILES[file_of(x.dtype)]
    got = computed(f"{name}.{type_} {r}9, {r}0, {r}1;", x, y, out=x.dtype)
    if name.startswith(("min", "max")):
        got, x, y = got + 0.0, x + 0.0, y + 0.0  # the sign of zero is looked at below
    same(got, function(x, y))


def test_zeros_have_an_order() -> None:
    x, y = np.array([0.0, -0.0], "f4"), np.array([-0.0, 0.0], "f4")
    same(computed("min.f32 %r9, %r0, %r1;", x, y, out="f4"), [-0.0, -0.0])
    same(computed("max.f32 %r9, %r0, %r1;", x, y, out="f4"), [0.0, 0.0])


def exact_fma(a: Any, b: Any, c: Any, out: Any) -> Any:
    found = []
    for x, y, z in zip(a, b, c, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = np.array(float(exact)).astype(out)  # perhaps rounded twice: look at the neighbours
        around = [near, np.nextafter(near, out(np.inf)), np.nextafter(near, out(-np.inf))]
        around = [v for v in around if np.isfinite(v)]
        best = min(
            around, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(f"u{v.nbytes}")) & 1)
        )
        found.append(best if exact else np.array(float(x) * float(y) + float(z), out))
    return np.array(found, out)


@pytest.mark.parametrize("out", [np.float32, np.float64])
def test_fma_is_rounded_once(out: Any) -> None:
    size = 300
    a, b = (RNG.standard_normal(size).astype(out) for _ in range(2))
    c = (-a * b * (1 + RNG.integers(-2, 3, size) * np.finfo(out).eps)).astype(out)
    c[::3] = RNG.standard_normal(len(c[::3])) * 2.0 ** RNG.integers(-60, 60, len(c[::3]))
    r, t = ("%r", "f32") if out is np.float32 else ("%rd", "f64")
    got = computed(f"fma.rn.{t} {r}9, {r}0, {r}1, {r}2;", a, b, c, out=out)
    same(got, exact_fma(a, b, c, out))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fma_of_special_numbers() -> None:
    got = computed("fma.rn.f64 %rd9, %rd0, %rd1, %rd2;", F64, F64B, F64, out="f8")
    expected = F64 * F64B + F64
    plain = ~np.isfinite(expected) | (F64 * F64B == 0)
    same(got[plain], expected[plain])
    got = computed("fma.rn.f32 %r9, %r0, %r1, %r2;", F32, F32B, F32, out="f4")
    same(got[:14], (F32.astype("f8") * F32B + F32).astype("f4")[:14])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_subnormals_are_kept_unless_flushed() -> None:
    tiny = np.array([1e-40, -1e-40, 2e-38, 1.0], "f4")
    same(computed("add.f32 %r9, %r0, %r1;", tiny, tiny, out="f4"), tiny + tiny)
    flushed = np.array([0.0, -0.0, 2e-38, 1.0], "f4")
    same(computed("add.ftz.f32 %r9, %r0, %r1;", tiny, tiny, out="f4"), flushed + flushed)
    same(computed("mul.ftz.f32 %r9, %r0, 0f3E800000;", tiny, out="f4"), [0, -0.0, 0, 0.25])
    same(computed("add.sat.f32 %r9, %r0, 0f3F800000;", tiny, out="f4"), [1, 1, 1, 1])


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(mode: str) -> None:
    x, y = RNG.standard_normal((2, 200)).astype("f4")
    got = computed(f"mul.{mode}.f32 %r9, %r0, %r1;", x, y, out="f4").astype("f8")
    exact = x.astype("f8") * y
    toward = {"rz": np.abs(got) <= np.abs(exact), "rm": got <= exact, "rp": got >= exact}[mode]
    assert toward.all()
    assert (np.abs(got - exact) <= np.abs(np.spacing(got.astype("f4")))).all()


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("sqrt.rn.f32", np.sqrt), ("rcp.rn.f32", lambda x: 1 / x), ("abs.f32", np.abs),
        ("neg.f32", np.negative), ("ex2.approx.ftz.f32", np.exp2), ("lg2.approx.f32", np.log2),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)), ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos), ("tanh.approx.f32", np.tanh),
        ("rcp.approx.ftz.f32", lambda x: 1 / x),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions(code: str, function: Any) -> None:
    x = F32[np.abs(F32) < 1e30] if "ftz" not in code else RNG.standard_normal(50).astype("f4")
    same(computed(f"{code} %r9, %r0;", x, out="f4"), function(x.astype("f8")).astype("f4"))


@pytest.mark.parametrize("type_", ["s32", "u32", "s64", "u64", "s16", "u16"])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max", "mad.lo"]
)
def test_integers(type_: str, name: str) -> None:
    bits = int(type_[1:])
    x, y = {16: (U16, U16[::-1]), 32: (I32, I32B), 64: (I64, I64B)}[bits]
    dtype = np.dtype(("i" if type_[0] == "s" else "u") + str(bits // 8))
    x, y = x.view(dtype), np.ascontiguousarray(y).view(dtype)
    r = FILES[f"b{bits}"]
    third = f", {r}0" if name == "mad.lo" else ""
    got = computed(f"{name}.{type_} {r}9, {r}0, {r}1{third};", x, y, out=dtype)

    def one(a: int, b: int) -> int:
        if name in ("div", "rem"):
            if b == 0:
                return -1 if name == "div" else a
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if name == "div" else a - quotient * b
        return {
            "add": a + b, "sub": a - b, "mul.lo": a * b, "mul.hi": a * b >> bits,
            "min": min(a, b), "max": max(a, b), "mad.lo": a * b + a,
        }[name]  # fmt: skip

    expected = [one(int(a), int(b)) % 2**bits for a, b in zip(x, y, strict=True)]
    same(got.view(f"u{bits // 8}"), np.array(expected, f"u{bits // 8}"))


def test_wide_products_and_carries() -> None:
    got = computed("mul.wide.s32 %rd9, %r0, %r1;", I32, I32B, out="i8")
    same(got, I32.astype("i8") * I32B)
    code = """mov.b64 {%r10, %r11}, %rd0; mov.b64 {%r12, %r13}, %rd1;
    add.cc.u32 %r14, %r10, %r12; addc.u32 %r15, %r11, %r13; mov.b64 %rd9, {%r14, %r15};"""
    same(computed(code, I64, I64B, out="i8"), I64 + I64B)
    code = code.replace("add.cc", "sub.cc").replace("addc", "subc")
    same(computed(code, I64, I64B, out="i8"), I64 - I64B)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_of_16_bits(kind: str) -> None:
    dtype = np.dtype("f2") if kind == "f16" else np.dtype(ml_dtypes.bfloat16)
    x, y = F32.astype(dtype), F32B.astype(dtype)
    for name, function in (("add", np.add), ("mul", np.multiply), ("sub", np.subtract)):
        got = computed(f"{name}.{kind} %h9, %h0, %h1;", x.view("u2"), y.view("u2"), out="u2")
        same(got.view(dtype), function(x, y))
    pairs = np.stack([x, y], axis=1).view("u4").reshape(-1)
    got = computed(f"fma.rn.{kind}x2 %r9, %r0, %r0, %r0;", pairs, out="u4")
    wide = np.stack([x, y], axis=1).astype("f8")
    expected = (
        (wide * wide + wide).astype("f4").astype(dtype)
        if kind == "bf16"
        else (wide * wide + wide).astype("f2")
    )
    close = got.view(dtype).reshape(-1, 2)
    np.testing.assert_allclose(close.astype("f4"), expected.astype("f4"), rtol=0.01)
    got = computed(f"max.NaN.{kind}x2 %r9, %r0, %r0;", pairs, out="u4")
    same(got.view(dtype), np.stack([x, y], axis=1).reshape(-1))


# --- bits, comparisons, moves ---


def test_bits() -> None:
    u, v = I32.view("u4"), I32B.view("u4")
    same(computed("lop3.b32 %r9, %r0, %r1, %r0, 0x96;", u, v, out="u4"), u ^ v ^ u)
    chosen = (u & v) | (~v & 5)  # where the second is set, the first, else the third
    same(computed("lop3.b32 %r9, %r0, %r1, 5, 0xE2;", u, v, out="u4"), chosen)
    same(computed("and.b32 %r9, %r0, %r1;", u, v, out="u4"), u & v)
    same(computed("or.b32 %r9, %r0, %r1;", u, v, out="u4"), u | v)
    same(computed("not.b32 %r9, %r0;", u, out="u4"), ~u)
    same(computed("popc.b32 %r9, %r0;", u, out="u4"), [int(x).bit_count() for x in u])
    same(computed("clz.b32 %r9, %r0;", u, out="u4"), [32 - int(x).bit_length() for x in u])
    words = I64.view("u8")
    same(computed("clz.b64 %r9, %rd0;", words, out="u4"), [64 - int(x).bit_length() for x in words])
    same(computed("brev.b32 %r9, %r0;", u, out="u4"), [int(f"{x:032b}"[::-1], 2) for x in u])
    expected = [(int(x) >> 5 & 0x7FF) - (0x800 if int(x) >> 15 & 1 else 0) for x in u]
    same(computed("bfe.s32 %r9, %r0, 5, 11;", u, out="i4"), expected)
    same(computed("bfe.u32 %r9, %r0, 28, 9;", u, out="u4"), u >> 28)
    same(
        computed("bfi.b32 %r9, %r0, %r1, 4, 8;", u, v, out="u4"),
        (v & ~np.uint32(0xFF0)) | (u & 0xFF) << 4,
    )
    same(
        computed("prmt.b32 %r9, %r0, %r1, 0x7610;", u, v, out="u4"), (u & 0xFFFF) | (v >> 16 << 16)
    )
    same(computed("shf.l.wrap.b32 %r9, %r0, %r0, 7;", u, out="u4"), (u << 7) | (u >> 25))
    bytes_u, bytes_v = (x.view("i1").reshape(-1, 4).astype("i4") for x in (u, v))
    same(computed("dp4a.s32.s32 %r9, %r0, %r1, 3;", u, v, out="i4"),
         (bytes_u * bytes_v).sum(1) + 3)  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_beyond_the_width(bits: int) -> None:
    x = {16: U16, 32: I32, 64: I64}[bits].view(f"i{bits // 8}")
    by = np.resize(np.array([0, 1, bits - 1, bits, bits + 1, 255], "u4"), len(x))
    r = FILES[f"b{bits}"]
    for name, one in (
        (f"shl.b{bits}", lambda a, n: a << n),
        (f"shr.s{bits}", lambda a, n: a >> n),
        (f"shr.u{bits}", lambda a, n: (a % 2**bits) >> n),
    ):
        got = computed(f"{name} {r}9, {r}0, %r1;", x, by, out=x.dtype).view(f"u{bits // 8}")
        expected = [one(int(a), int(n)) % 2**bits for a, n in zip(x, by, strict=True)]
        same(got, np.array(expected, f"u{bits // 8}"))


@pytest.mark.parametrize(
    "name", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "geu", "num", "nan"]
)
def test_comparisons_of_floats(name: str) -> None:
    code = f"setp.{name}.f32 %p1, %r0, %r1; selp.u32 %r9, 1, 0, %p1;"
    nan = np.isnan(F32) | np.isnan(F32B)
    plain = {
        "eq": F32 == F32B, "ne": F32 != F32B, "lt": F32 < F32B, "le": F32 <= F32B,
        "gt": F32 > F32B, "ge": F32 >= F32B,
    }  # fmt: skip
    if name in ("num", "nan"):
        expected = nan == (name == "nan")
    elif name in plain:
        expected = plain[name] & ~nan
    else:
        expected = plain[name[:-1]] | nan
    same(computed(code, F32, F32B, out="u4"), expected.astype("u4"))


def test_predicates() -> None:
    code = """setp.lt.s32 %p1|%p2, %r0, %r1; setp.eq.and.s32 %p3, %r0, 7, !%p1;
    and.pred %p4, %p2, !%p3; xor.pred %p5, %p4, %p1; not.pred %p6, %p5;
    mov.pred %p7, %p6; selp.s32 %r9, %r0, %r1, %p7; @!%p1 add.s32 %r9, %r9, 1;
    set.lt.u32.s32 %r10, %r0, %r1; xor.b32 %r9, %r9, %r10;"""
    less = I32 < I32B
    p4 = ~less & ~((I32 == 7) & ~less)
    value = np.where(~(p4 ^ less), I32, I32B) + ~less
    same(computed(code, I32, I32B, out="i4"), value ^ -less.astype("i4"))


def test_moves_and_scopes() -> None:
    code = """{ .reg .b32 %r0x; .reg .b16 %h0, %h1; mov.b32 {%h0, %h1}, %r0;
    mov.b32 %r0x, {%h1, %h0};
    mov.u32 %r9, %r0x; }"""
    same(computed(code, I32, out="u4"), (I32.view("u4") >> 16) | (I32.view("u4") << 16))
    half = ml_dtypes.bfloat16(1.5).view("u2")
    same(computed("mov.b16 %h9, 0x3FC0;", U16, out="u2"), np.full(len(U16), half))
    same(computed("mov.b64 {%r1, %r2}, %rd0; mov.b64 %rd9, {%r2, %r1};", I64, out="u8"),
         (I64.view("u8") >> 32) | (I64.view("u8") << 32))  # fmt: skip


# --- conversions ---


@pytest.mark.parametrize("source", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("out", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_integers_to_integers(source: str, out: str) -> None:
    bits, to = int(source[1:]), int(out[1:])
    sort, result = (
        np.dtype(("i" if t[0] == "s" else "u") + str(int(t[1:]) // 8)) for t in (source, out)
    )
    x = I64.astype(sort)
    carrier = max(bits, 16)
    wide = x.astype(f"{sort.kind}{carrier // 8}")
    r, q = FILES[f"b{carrier}"], FILES[f"b{max(to, 16)}"]
    got = computed(f"cvt.{out}.{source} {q}9, {r}0;", wide, out=f"{result.kind}{max(to, 16) // 8}")
    same(got, x.astype(result).astype(got.dtype))
    info, own = np.iinfo(result), np.iinfo(sort)
    if own.min < info.min or own.max > info.max:
        got = computed(f"cvt.sat.{out}.{source} {q}9, {r}0;", wide, out=got.dtype)
        same(got, np.array([min(max(int(v), info.min), info.max) for v in x], got.dtype))


@pytest.mark.parametrize("out", ["s32", "u32", "s64", "u64", "s16", "u8"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_integers(out: str, mode: str) -> None:
    x = np.concatenate(
        [F32, np.array([2**31, -(2**31), 2**32, 2**63, -(2**63), 1e30, 254.5, 255.5], "f4")]
    )
    bits = int(out[1:])
    result = np.dtype(("i" if out[0] == "s" else "u") + str(max(bits, 16) // 8))
    q = FILES[f"b{max(bits, 16)}"]
    got = computed(f"cvt.{mode}.{out}.f32 {q}9, %r0;", x, out=result)
    info = np.iinfo(f"{result.kind}{bits // 8}")
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]

    def one(value: float) -> int:
        if np.isnan(value):
            return (1 << 63) if bits == 64 else 0
        if np.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(int(rounding(value)), info.min), info.max)

    expected = [one(float(v)) % 2 ** (8 * result.itemsize) for v in x]
    same(got.view(f"u{result.itemsize}"), np.array(expected, f"u{result.itemsize}"))


def test_integers_to_floats() -> None:
    for type_, x in (("s32", I32), ("u32", I32.view("u4")), ("s64", I64), ("u64", I64.view("u8"))):
        r = FILES[file_of(x.dtype)]
        same(computed(f"cvt.rn.f32.{type_} %r9, {r}0;", x, out="f4"), x.astype("f4"))
        same(computed(f"cvt.rn.f64.{type_} %rd9, {r}0;", x, out="f8"), x.astype("f8"))
        got = computed(f"cvt.rz.f32.{type_} %r9, {r}0;", x, out="f4")
        assert all(abs(int(a)) <= abs(int(b)) for a, b in zip(got, x, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_to_floats() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    same(computed("cvt.rn.f32.f64 %r9, %rd0;", F64, out="f4"), F64.astype("f4"))
    same(computed("cvt.f64.f32 %rd9, %r0;", F32, out="f8"), F32.astype("f8"))
    same(computed("cvt.rn.f16.f32 %h9, %r0;", F32, out="u2").view("f2"), F32.astype("f2"))
    same(computed("cvt.rn.bf16.f32 %h9, %r0;", F32, out="u2").view(bf16), F32.astype(bf16))
    same(computed("cvt.f32.bf16 %r9, %h0;", U16, out="f4"), U16.view(bf16).astype("f4"))
    same(computed("cvt.f32.f16 %r9, %h0;", U16, out="f4"), U16.view("f2").astype("f4"))
    same(computed("cvt.rni.f32.f32 %r9, %r0;", F32, out="f4"), np.rint(F32))
    same(
        computed("cvt.sat.f32.f32 %r9, %r0;", F32, out="f4"),
        np.where(F32 > 0, np.minimum(F32, 1), 0),
    )
    same(computed("cvt.rna.tf32.f32 %r9, %r0;", F32[:3], out="f4"), F32[:3])
    same(
        computed("cvt.rz.bf16.f32 %h9, %r0;", F32[np.isfinite(F32)], out="u2"),
        F32[np.isfinite(F32)].view("u4") >> 16,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pairs() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    for kind, dtype in (("f16", np.dtype("f2")), ("bf16", bf16)):
        got = computed(f"cvt.rn.{kind}x2.f32 %r9, %r0, %r1;", F32, F32B, out="u4")
        same(got.view(dtype).reshape(-1, 2), np.stack([F32B, F32], axis=1).astype(dtype))
    for kind, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        limit = 448 if kind == "e4m3" else 57344
        got = computed(f"cvt.rn.satfinite.{kind}x2.f32 %h9, %r0, %r1;", F32, F32B, out="u2")
        expected = np.clip(np.stack([F32B, F32], axis=1), -limit, limit).astype(dtype)
        np.testing.assert_array_equal(
            got.view(dtype).reshape(-1, 2).astype("f4"), expected.astype("f4")
        )
        finite = np.arange(0, 120).astype("u2") * 257
        got = computed(f"cvt.rn.f16x2.{kind}x2 %r9, %h0;", finite, out="u4")
        np.testing.assert_array_equal(got.view("f2"), finite.view(dtype).astype("f2"))
