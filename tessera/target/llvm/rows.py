"""The writer's table: how each scalar function is said in LLVM IR.

A row covers the functions that are primitive for this writer; `target/passes/legalize.py` has
rewritten everything else by the time text is written. `{T}` is the LLVM type, `{0}`, `{1}`, `{2}`
are operands, `{S}` is the intrinsic suffix.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import Kind


@dataclass(frozen=True, slots=True)
class Row:
    """One function.

    Attributes:
        text: instruction text by kind of the operands' dtype.
        libm: base name of the C function to call lane by lane instead (`f` is appended for f32).
    """

    text: dict[Kind, str]
    libm: str = ""


def _int(text: str, unsigned: str | None = None, boolean: str | None = None) -> dict[Kind, str]:
    rows = {Kind.INT: text, Kind.UINT: unsigned or text}
    if boolean is not None:
        rows[Kind.BOOL] = boolean
    return rows


def _float(text: str) -> dict[Kind, str]:
    return {Kind.FLOAT: text}


def _call(name: str, arity: int = 1, flags: str = "") -> str:
    args = ", ".join(f"{{T}} {{{k}}}" for k in range(arity))
    return f"call {flags}{{T}} @llvm." + name + ".{S}(" + args + ")"


def _extreme(name: str) -> str:
    """The intrinsic, with its operands the other way round."""
    return "call nsz {T} @llvm." + name + ".{S}({T} {1}, {T} {0})"


def _compare(float_code: str, signed: str, unsigned: str) -> Row:
    return Row(
        {
            Kind.FLOAT: f"fcmp {float_code} {{T}} {{0}}, {{1}}",
            Kind.INT: f"icmp {signed} {{T}} {{0}}, {{1}}",
            Kind.UINT: f"icmp {unsigned} {{T}} {{0}}, {{1}}",
            Kind.BOOL: f"icmp {unsigned} {{T}} {{0}}, {{1}}",
        }
    )


_SELECT = "select {C} {0}, {T} {1}, {T} {2}"

ROWS: dict[str, Row] = {
    "add": Row(_float("fadd {T} {0}, {1}") | _int("add {T} {0}, {1}")),
    "sub": Row(_float("fsub {T} {0}, {1}") | _int("sub {T} {0}, {1}")),
    "mul": Row(_float("fmul {T} {0}, {1}") | _int("mul {T} {0}, {1}")),
    "div": Row(_float("fdiv {T} {0}, {1}")),
    "neg": Row(_float("fneg {T} {0}") | _int("sub {T} {Z}, {0}")),
    "abs": Row(_float(_call("fabs")) | {Kind.INT: "call {T} @llvm.abs.{S}({T} {0}, i1 false)"}),
    # Of zeros of both signs either may be the result; to tell them apart would cost three
    # instructions more. x86's instruction gives its second operand where one is NaN, and LLVM tests
    # the first for NaN: with what a reduction has found so far as the second operand, as here, no
    # step waits for the test of the one before.
    "min": Row(_float(_extreme("minimum")) | _int(_call("smin", 2), _call("umin", 2))),
    "max": Row(_float(_extreme("maximum")) | _int(_call("smax", 2), _call("umax", 2))),
    "fma": Row(_float(_call("fma", 3))),
    "sqrt": Row(_float(_call("sqrt"))),
    "floor": Row(_float(_call("floor"))),
    "ceil": Row(_float(_call("ceil"))),
    "trunc": Row(_float(_call("trunc"))),
    "round": Row(_float(_call("roundeven"))),
    "copysign": Row(_float(_call("copysign", 2))),
    "rem": Row(_float("frem {T} {0}, {1}")),
    "and": Row(_int("and {T} {0}, {1}", boolean="and {T} {0}, {1}")),
    "or": Row(_int("or {T} {0}, {1}", boolean="or {T} {0}, {1}")),
    "xor": Row(_int("xor {T} {0}, {1}", boolean="xor {T} {0}, {1}")),
    "not": Row(_int("xor {T} {0}, {O}", boolean="xor {T} {0}, {O}")),
    "clz": Row(_int("call {T} @llvm.ctlz.{S}({T} {0}, i1 false)")),
    "popcount": Row(_int(_call("ctpop"))),
    "eq": _compare("oeq", "eq", "eq"),
    "ne": _compare("une", "ne", "ne"),
    "lt": _compare("olt", "slt", "ult"),
    "le": _compare("ole", "sle", "ule"),
    "gt": _compare("ogt", "sgt", "ugt"),
    "ge": _compare("oge", "sge", "uge"),
    "select": Row({k: _SELECT for k in (Kind.FLOAT, Kind.INT, Kind.UINT, Kind.BOOL)}),
    "exp": Row(_float(_call("exp"))),
    "exp2": Row(_float(_call("exp2"))),
    "log": Row(_float(_call("log"))),
    "log2": Row(_float(_call("log2"))),
    "log10": Row(_float(_call("log10"))),
    "sin": Row(_float(_call("sin"))),
    "cos": Row(_float(_call("cos"))),
    "tan": Row(_float(_call("tan"))),
    "asin": Row(_float(_call("asin"))),
    "acos": Row(_float(_call("acos"))),
    "atan": Row(_float(_call("atan"))),
    "sinh": Row(_float(_call("sinh"))),
    "cosh": Row(_float(_call("cosh"))),
    "tanh": Row(_float(_call("tanh"))),
    "pow": Row(_float(_call("pow", 2))),
    "atan2": Row({}, "atan2"),
    "hypot": Row({}, "hypot"),
    "expm1": Row({}, "expm1"),
    "log1p": Row({}, "log1p"),
    "cbrt": Row({}, "cbrt"),
    "asinh": Row({}, "asinh"),
    "acosh": Row({}, "acosh"),
    "atanh": Row({}, "atanh"),
    "erf": Row({}, "erf"),
    "erfc": Row({}, "erfc"),
    "lgamma": Row({}, "lgamma"),
    "nextafter": Row({}, "nextafter"),
}
"""Shifts, integer division and `mulhi` need guards and stand in `writer.py`."""
