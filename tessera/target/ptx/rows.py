"""The writer's tables: how each scalar function and each conversion is said in PTX.

`{d}` is the result, `{a}`, `{b}`, `{c}` are operands, `{r}`, `{h}`, `{q}`, `{p}` a scratch register
of 32, 16 or 64 bits or a predicate. A row of several instructions writes its result last, after
all operands have been read, so that the result may take the register of an operand.

Registers: integers of up to 32 bits are in 32-bit registers, extended by their sign or by zeros,
so that moves, comparisons and bitwise functions are those of 32 bits and only arithmetic has to
wrap; floats narrower than float32 are in 16-bit registers, those of 8 bits in the lower half; a
bool is a predicate.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import DType, Kind, bfloat16
from tessera.target.gpu import Gpu, GpuFeature


@dataclass(frozen=True, slots=True)
class Row:
    """Instructions that compute one function.

    Attributes:
        lines: the instructions.
        feature: what the machine needs, or None.
    """

    lines: tuple[str, ...]
    feature: GpuFeature | None = None


FILES = {"p": "pred", "h": "b16", "r": "b32", "q": "b64", "f": "f32", "g": "f64"}
"""Register files by the letter that scratch registers have in rows."""

_PREFIX = {"pred": "%p", "b16": "%h", "b32": "%r", "b64": "%rd", "f32": "%f", "f64": "%fd"}
PREFIX: dict[str, str] = _PREFIX
"""What register names of each file begin with."""


def key(dtype: DType) -> str:
    """A dtype in the words of PTX: `s32`, `u8`, `f32`, `bf16`, `e4m3`, `pred`."""
    if dtype.is_bool:
        return "pred"
    if dtype.kind is Kind.FLOAT:
        return {"f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}.get(dtype.name, dtype.name)
    return f"{'s' if dtype.kind is Kind.INT else 'u'}{dtype.bits}"


def register_file(dtype: DType) -> str:
    """The file whose registers hold scalars of the dtype."""
    if dtype.is_bool:
        return "pred"
    if dtype.kind is Kind.FLOAT:
        return {32: "f32", 64: "f64"}.get(dtype.bits, "b16")
    return "b64" if dtype.bits == 64 else "b32"


def memory_type(dtype: DType) -> str:
    """The type of a load or store of one scalar."""
    if dtype.is_bool or (dtype.kind is Kind.FLOAT and dtype.bits == 8):
        return "u8"
    if dtype.kind is Kind.FLOAT:
        return dtype.name if dtype.bits >= 32 else "b16"
    return key(dtype) if dtype.bits in (8, 16) else ("s8" if dtype.bits < 8 else f"b{dtype.bits}")


WIDE = ("s32", "u32", "s64", "u64")
SMALL = ("s8", "u8", "s16", "u16")
INTEGERS = (*SMALL, *WIDE)
FLOATS = ("f32", "f64")

WRAP = {
    "s8": "cvt.s32.s8 {d}, {x};",
    "u8": "and.b32 {d}, {x}, 255;",
    "s16": "cvt.s32.s16 {d}, {x};",
    "u16": "and.b32 {d}, {x}, 65535;",
}
"""From 32 bits to what a small integer has in its register."""

Rows = dict[str, Row]


def _row(text: str) -> Row:
    return Row(tuple(line.strip() + ";" for line in text.split(";") if line.strip()))


def _same(text: str, *keys: str) -> Rows:
    """One text, `{T}` being the type (that of 32 bits for small integers)."""
    wide = {k: k for k in (*WIDE, *FLOATS)} | {k: f"{k[0]}32" for k in SMALL}
    rows: Rows = {}
    for k in keys:
        bits = f"b{wide.get(k, k)[1:]}"
        rows[k] = _row(text.replace("{T}", wide.get(k, k)).replace("{B}", bits))
    return rows


def _wrapped(text: str) -> Rows:
    """An instruction whose result wraps around in small integers."""
    rows = _same(text, *WIDE)
    for k in SMALL:
        body = text.replace("{d}", "{r}").replace("{T}", f"{k[0]}32").replace("{B}", "b32")
        rows[k] = _row(body + ";" + WRAP[k].replace("{x}", "{r}"))
    return rows


def _counted(text: str) -> Rows:
    """`clz` and `popc`: of the bits that the dtype has."""
    rows = {k: _row(f"{text}.b32 {{d}}, {{a}}") for k in ("s32", "u32")}
    for k in ("s64", "u64"):
        rows[k] = _row(f"{text}.b64 {{r}}, {{a}}; cvt.u64.u32 {{d}}, {{r}}")
    for k in SMALL:
        bits = int(k[1:])
        mask = (1 << bits) - 1
        first = f"and.b32 {{r}}, {{a}}, {mask}; " if k[0] == "s" else ""
        source = "{r}" if k[0] == "s" else "{a}"
        rest = f"{text}.b32 {{d}}, {source}"
        if text == "clz":
            rest = f"clz.b32 {{r2}}, {source}; add.s32 {{d}}, {{r2}}, {bits - 32}"
        rows[k] = _row(first + rest)
    return rows


def _shift(text: str, small: Rows) -> Rows:
    rows = {k: _row(text.replace("{T}", k).replace("{B}", "b32") % "{b}") for k in ("s32", "u32")}
    for k in ("s64", "u64"):
        shift = text.replace("{T}", k).replace("{B}", "b64") % "{r}"
        rows[k] = _row("min.u64 {q}, {b}, 64; cvt.u32.u64 {r}, {q}; " + shift)
    return rows | small


def _division(word: str, wraps: bool) -> Rows:
    """0 where the divisor is 0."""
    rows: Rows = {}
    for k in INTEGERS:
        wide = k if k in WIDE else f"{k[0]}32"
        letter = "q" if wide.endswith("64") else "r"
        bits = f"b{wide[1:]}"
        body = f"setp.eq.{wide} {{p}}, {{b}}, 0; {word}.{wide} {{{letter}}}, {{a}}, {{b}}; "
        if wraps and k in SMALL:
            body += "selp.b32 {r2}, 0, {r}, {p}; " + WRAP[k].replace("{x}", "{r2}")
        else:
            body += f"selp.{bits} {{d}}, 0, {{{letter}}}, {{p}}"
        rows[k] = _row(body)
    return rows


def _unguarded_division(word: str, wraps: bool) -> Rows:
    """By a constant that is not 0."""
    if wraps:
        return _wrapped(word + ".{T} {d}, {a}, {b}")
    return _same(word + ".{T} {d}, {a}, {b}", *INTEGERS)


def _mulhi() -> Rows:
    rows = _same("mul.hi.{T} {d}, {a}, {b}", *WIDE)
    for k in SMALL:
        wide, bits = f"{k[0]}32", int(k[1:])
        rows[k] = _row(f"mul.lo.{wide} {{r}}, {{a}}, {{b}}; shr.{wide} {{d}}, {{r}}, {bits}")
    return rows


def _compare(code: str, unordered: str = "") -> Rows:
    rows = _same(f"setp.{code}.{{T}} {{d}}, {{a}}, {{b}}", *INTEGERS)
    return rows | _same(f"setp.{unordered or code}.{{T}} {{d}}, {{a}}, {{b}}", *FLOATS)


def _logical(word: str) -> Rows:
    rows = {k: _row(f"{word}.b32 {{d}}, {{a}}, {{b}}") for k in (*SMALL, "s32", "u32")}
    rows |= {k: _row(f"{word}.b64 {{d}}, {{a}}, {{b}}") for k in ("s64", "u64")}
    return rows | {"pred": _row(f"{word}.pred {{d}}, {{a}}, {{b}}")}


def _not() -> Rows:
    rows = _same("not.{B} {d}, {a}", *WIDE, "s8", "s16")
    rows |= {k: _row(f"xor.b32 {{d}}, {{a}}, {(1 << int(k[1:])) - 1}") for k in ("u8", "u16")}
    return rows | {"pred": _row("not.pred {d}, {a}")}


def _select() -> Rows:
    files = {k: "b32" for k in (*SMALL, "s32", "u32", "s4")} | {"s64": "b64", "u64": "b64"}
    files |= {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16", "e4m3": "b16", "e5m2": "b16"}
    return {k: _row(f"selp.{f} {{d}}, {{b}}, {{c}}, {{a}}") for k, f in files.items()}


_SHL_SMALL = {
    k: _row("shl.b32 {r}, {a}, {b};" + WRAP[k].replace("{x}", "{r}")) for k in SMALL
}
_SHR_SMALL = _same("shr.{T} {d}, {a}, {b}", *SMALL)

ROWS: dict[str, Rows] = {
    "add": _wrapped("add.{T} {d}, {a}, {b}") | _same("add.rn.{T} {d}, {a}, {b}", *FLOATS),
    "sub": _wrapped("sub.{T} {d}, {a}, {b}") | _same("sub.rn.{T} {d}, {a}, {b}", *FLOATS),
    "mul": _wrapped("mul.lo.{T} {d}, {a}, {b}") | _same("mul.rn.{T} {d}, {a}, {b}", *FLOATS),
    "div": _same("div.rn.{T} {d}, {a}, {b}", *FLOATS),
    "fma": _same("fma.rn.{T} {d}, {a}, {b}, {c}", *FLOATS, "f16", "bf16"),
    "sqrt": _same("sqrt.rn.{T} {d}, {a}", *FLOATS),
    "neg": _same("neg.{T} {d}, {a}", "s32", "s64", *FLOATS)
    | {"u32": _row("neg.s32 {d}, {a}"), "u64": _row("neg.s64 {d}, {a}")}
    | {k: _row("neg.s32 {r}, {a};" + WRAP[k].replace("{x}", "{r}")) for k in SMALL},
    "abs": _same("abs.{T} {d}, {a}", "s32", "s64", *FLOATS)
    | {k: _row("abs.s32 {r}, {a};" + WRAP[k].replace("{x}", "{r}")) for k in ("s8", "s16")},
    "min": _same("min.{T} {d}, {a}, {b}", *INTEGERS) | _same("min.NaN.{T} {d}, {a}, {b}", "f32"),
    "max": _same("max.{T} {d}, {a}, {b}", *INTEGERS) | _same("max.NaN.{T} {d}, {a}, {b}", "f32"),
    "floor": _same("cvt.rmi.{T}.{T} {d}, {a}", *FLOATS),
    "ceil": _same("cvt.rpi.{T}.{T} {d}, {a}", *FLOATS),
    "trunc": _same("cvt.rzi.{T}.{T} {d}, {a}", *FLOATS),
    "round": _same("cvt.rni.{T}.{T} {d}, {a}", *FLOATS),
    "copysign": _same("copysign.{T} {d}, {b}, {a}", *FLOATS),
    "and": _logical("and"),
    "or": _logical("or"),
    "xor": _logical("xor"),
    "not": _not(),
    "shl": _shift("shl.{B} {d}, {a}, %s", _SHL_SMALL),
    "shr": _shift("shr.{T} {d}, {a}, %s", _SHR_SMALL),
    "clz": _counted("clz"),
    "popcount": _counted("popc"),
    "mulhi": _mulhi(),
    "trunc_div": _division("div", True),
    "rem": _division("rem", False),
    "eq": _compare("eq") | {"pred": _row("xor.pred {p}, {a}, {b}; not.pred {d}, {p}")},
    "ne": _compare("ne", "neu") | {"pred": _row("xor.pred {d}, {a}, {b}")},
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("gt"),
    "ge": _compare("ge"),
    "select": _select(),
}
"""Scalar functions by name and by the key of the operands' dtype."""

BY_CONSTANT: dict[str, Rows] = {
    "shl": {k: _row("shl.b64 {d}, {a}, {b}") for k in ("s64", "u64")},
    "shr": {k: _row(f"shr.{k} {{d}}, {{a}}, {{b}}") for k in ("s64", "u64")},
    "trunc_div": _unguarded_division("div", True),
    "rem": _unguarded_division("rem", False),
}
"""Rows for a second operand that is a constant: a count in range, a divisor that is not 0."""


# --- conversions ----------------------------------------------------------------------------------


def _from_float(source: str, target: str) -> Row:
    """Cut off, held to the range, NaN to 0."""
    bits = int(target[1:])
    if bits < 32:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target[0] == "s" else (0, 0)
        high = high or (1 << bits) - 1
        wide = f"{target[0]}32"
        # NaN of float64 becomes the smallest integer, not 0.
        guard = "setp.neu.f64 {p}, {a}, {a}; selp.b32 {r2}, 0, {r}, {p}; "
        guard = guard if source == "f64" else ""
        x = "{r2}" if guard else "{r}"
        limits = f"min.{wide} {{d}}, {x}, {high}"
        if target[0] == "s":
            limits = f"min.{wide} {{r3}}, {x}, {high}; max.{wide} {{d}}, {{r3}}, {low}"
        return _row(f"cvt.rzi.{wide}.{source} {{r}}, {{a}}; {guard}{limits}")
    if source == "f32" and bits == 32:
        return _row(f"cvt.rzi.{target}.f32 {{d}}, {{a}}")
    letter = "q" if bits == 64 else "r"
    return _row(
        f"cvt.rzi.{target}.{source} {{{letter}}}, {{a}}; setp.neu.{source} {{p}}, {{a}}, {{a}}; "
        f"selp.b{bits} {{d}}, 0, {{{letter}}}, {{p}}"
    )


def _between_integers(source: str, target: str) -> Row | None:
    """None where the register stays as it is."""
    a, b = int(source[1:]), int(target[1:])
    if b == 64:
        if a == 64:
            return None
        # What a register of 32 bits has, extended as its dtype is.
        return _row(f"cvt.{'s64.s32' if source[0] == 's' else 'u64.u32'} {{d}}, {{a}}")
    if a == 64 and b == 32:
        return _row("cvt.u32.u64 {d}, {a}")
    if b == 32 or (a < b and source[0] == "u") or source == target:
        return None
    if a < b and target[0] == "s":
        return None
    wrap = WRAP[target]
    if a == 64:
        return _row("cvt.u32.u64 {r}, {a};" + wrap.replace("{x}", "{r}"))
    return _row(wrap.replace("{x}", "{a}"))


def _conversions() -> dict[tuple[str, str], Row | None]:
    rows: dict[tuple[str, str], Row | None] = {}
    for a in INTEGERS:
        for b in INTEGERS:
            rows[a, b] = _between_integers(a, b)
        wide = a if a in WIDE else f"{a[0]}32"
        for f in FLOATS:
            rows[a, f] = _row(f"cvt.rn.{f}.{wide} {{d}}, {{a}}")
            rows[f, a] = _from_float(f, a)
        letter = "b64" if wide.endswith("64") else "b32"
        rows["pred", a] = _row(f"selp.{letter} {{d}}, 1, 0, {{a}}")
        rows[a, "pred"] = _row(f"setp.ne.{wide} {{d}}, {{a}}, 0")
    for f, one in (("f32", "0f3f800000"), ("f64", "0d3ff0000000000000")):
        zero = "0" + one[1] + "0" * (len(one) - 2)
        rows["pred", f] = _row(f"selp.{f} {{d}}, {one}, {zero}, {{a}}")
        rows[f, "pred"] = _row(f"setp.neu.{f} {{d}}, {{a}}, {zero}")
    rows["f32", "f64"] = _row("cvt.f64.f32 {d}, {a}")
    rows["f64", "f32"] = _row("cvt.rn.f32.f64 {d}, {a}")
    rows["f16", "f32"] = _row("cvt.f32.f16 {d}, {a}")
    rows["f32", "f16"] = _row("cvt.rn.f16.f32 {d}, {a}")
    rows["f32", "bf16"] = _row("cvt.rn.bf16.f32 {d}, {a}")
    rows["bf16", "f32"] = _row("cvt.u32.u16 {r}, {a}; shl.b32 {r2}, {r}, 16; mov.b32 {d}, {r2}")
    for name in ("e4m3", "e5m2"):
        text = f"cvt.rn.f16x2.{name}x2 {{r}}, {{a}}; mov.b32 {{{{{{h}}, _}}}}, {{r}}; "
        rows[name, "f32"] = Row(_row(text + "cvt.f32.f16 {d}, {h}").lines, GpuFeature.CVT_F8)
    # The instruction holds to the largest number; the dtype's rule is NaN, or infinity.
    too_large = "abs.f32 {f}, {a}; setp.gt.f32 {p}, {f}, 0f43e80000; "
    cvt = "cvt.rn.satfinite.%sx2.f32 {h}, 0f00000000, {a}; "
    text = cvt % "e4m3" + too_large + "selp.b16 {d}, 0x7f, {h}, {p}"
    rows["f32", "e4m3"] = Row(_row(text).lines, GpuFeature.CVT_F8)
    too_large = "abs.f32 {f}, {a}; setp.ge.f32 {p}, {f}, 0f47700000; "
    text = cvt % "e5m2" + too_large + "or.b16 {h2}, {h}, 0x7c; and.b16 {h3}, {h2}, 0xfc; "
    text += "selp.b16 {d}, {h3}, {h}, {p}"
    rows["f32", "e5m2"] = Row(_row(text).lines, GpuFeature.CVT_F8)
    rows["s4", "s8"] = rows["s8", "s4"] = None
    return rows


CONVERSIONS: dict[tuple[str, str], Row | None] = _conversions()
"""Casts by the keys of source and target; None: the register stays as it is."""

BITS: dict[tuple[str, str], str] = {
    ("b32", "b32"): "",
    ("b16", "b16"): "",
    ("b64", "b64"): "",
    ("f32", "b32"): "mov.b32 {d}, {a};",
    ("b32", "f32"): "mov.b32 {d}, {a};",
    ("f64", "b64"): "mov.b64 {d}, {a};",
    ("b64", "f64"): "mov.b64 {d}, {a};",
    ("b32", "b16"): "cvt.u16.u32 {d}, {a};",
    ("b16", "b32"): "cvt.u32.u16 {d}, {a};",
}
"""Reinterpretations by register file."""

def atomic_type(name: str, dtype: DType, machine: Gpu) -> str | None:
    """The type of an atomic instruction (`exch` for an exchange), or None where there is none."""
    bits = dtype.bits
    if name in ("exch", "and", "or", "xor") and bits in (32, 64):
        return f"b{bits}"
    if name == "add" and dtype is bfloat16:
        return "noftz.bf16" if machine.has(GpuFeature.ARITHMETIC_BF16) else None
    if name == "add" and dtype.kind is Kind.FLOAT:
        return {16: "noftz.f16", 32: "f32", 64: "f64"}.get(bits)
    if not dtype.is_integer or bits not in (32, 64):
        return None
    signed = "s" if dtype.kind is Kind.INT else "u"
    if name == "add":
        return "u64" if bits == 64 else f"{signed}32"
    return f"{signed}{bits}" if name in ("min", "max") else None


APPROXIMATE = {
    "exp2": "ex2.approx.ftz.f32",
    "log2": "lg2.approx.ftz.f32",
    "reciprocal": "rcp.approx.ftz.f32",
    "rsqrt": "rsqrt.approx.ftz.f32",
    "sqrt": "sqrt.approx.ftz.f32",
    "sin": "sin.approx.ftz.f32",
    "cos": "cos.approx.ftz.f32",
    "tanh": "tanh.approx.f32",
    "saturate": "cvt.sat.f32.f32",
}
"""The instruction of each function of `target.approximate`."""
