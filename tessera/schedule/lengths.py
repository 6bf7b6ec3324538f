"""How long code is, in instructions for one vector, roughly: LLVM takes 10 to 40 microseconds for
each of them. And how many registers it takes.

A long body had better be written down once: a second copy for the lanes that are left at the end
gains it nothing, and a mask is one instruction of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.dtypes import DType
from tessera.ir.core import Op, Value
from tessera.ir.types import ScalarType
from tessera.schedule import ops

LONG = 800
"""Instructions that keep half floats from being computed in four vectors of float32 a turn."""

WHOLE = 250
"""Those of a vector beside which masks are nothing."""

_FUNCTIONS = {
    "exp": 20, "exp2": 18, "expm1": 40, "sinh": 45, "cosh": 30, "tanh": 45, "erf": 40,
    "sigmoid": 40, "sin": 110, "cos": 110, "tan": 110, "pow": 190, "erfinv": 175, "asinh": 75,
    "acosh": 80, "atanh": 95, "logaddexp": 95, "lgamma": 430, "digamma": 450, "mulhi": 8,
}  # fmt: skip
"""What one vector of float32 takes on AVX-512; those that compute in float64 take two."""

HEAVY_COST = 16
"""A function of this cost is 60 instructions, where nothing better is known, and a body with one
keeps many temporaries in registers."""

_ROUNDING = 5
"""What takes a float32 to a half one."""


def of(code: Iterable[Op]) -> int:
    """Instructions that code takes for one vector; half floats are computed in two of float32."""
    total = 0
    for op in code:
        if isinstance(op, ops.Map):
            name, cost = op.fn.name, op.fn.cost
            own = _FUNCTIONS.get(name, 60 if cost >= HEAVY_COST else cost)
            total += 2 * (own + _ROUNDING) if _is_half(op) else own
        elif isinstance(op, ops.Cast):
            total += 2 * _ROUNDING if _is_half(op) else 1
        elif isinstance(op, (ops.Load, ops.Store)):
            total += 1
    return total


def registers(code: Sequence[Op], vectors: int) -> int:
    """Registers that elementwise code takes for so many vectors: what is alive of each at the same
    time, and constants."""
    last = {value: place for place, op in enumerate(code) for value in op.operands}
    alive: set[Value] = set()
    most = 0
    for place, op in enumerate(code):
        if not isinstance(op, ops.Const):
            most = max(most, len(alive) + len(op.results))
            alive = {v for v in (*alive, *op.results) if last.get(v, 0) > place}
    return vectors * most + sum(isinstance(op, ops.Const) for op in code)


def _is_half(op: Op) -> bool:
    dtype = _dtype(op)
    return dtype.is_inexact and dtype.bits == 16


def _dtype(op: Op) -> DType:
    type = op.result.type
    assert isinstance(type, ScalarType)
    return type.dtype
