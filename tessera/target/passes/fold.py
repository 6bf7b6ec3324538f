"""A builder that simplifies what it is given: constants are computed, repeated computations are
found, integer identities applied.

Sums of a value and constants are kept as `x + c` with the constant outermost, whatever the order
they were written in, so that unrolled code has one base and constants beside it. Nothing that
floats round is reordered. Each op costs constant time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tessera.dtypes import DType, Kind, bool_, dtype_of, uint32
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Op, Value
from tessera.ir.intvalues import Bounds
from tessera.ir.scalar import scalar
from tessera.ir.types import ScalarType, Type
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.passes.bounds import bounds_of, decided
from tessera.target.types import VecType

Number = bool | int | float


class Fold(Build):
    """Collects simplified ops of one block.

    Attributes:
        outer: the builder of the block around, whose values may be used.
        known: values by what computes them.
        bounds: of integer values.
    """

    __slots__ = ("bounds", "known", "outer")

    def __init__(self, outer: Fold | None = None) -> None:
        super().__init__(fused=True)
        self.outer = outer
        self.known: dict[object, Value] = {}
        self.bounds: dict[Value, Bounds] = {} if outer is None else outer.bounds
        if outer is not None:
            self.loc = outer.loc

    def emit(self, op: Op) -> Value:
        """Adds an op with one result, or finds the value it would have."""
        if op.regions or op.get_effects():
            self.ops.append(op)
            return op.result
        found = _simplify(self, op)
        if found is not None:
            return found
        if isinstance(op, t.Const) and isinstance(op.value, float) and math.isnan(op.value):
            key: object = (t.Const, "nan", op.type)
        else:
            key = (type(op), op.operands, *_attributes(op))
        known = self.find(key)
        if known is not None:
            return known
        self.ops.append(op)
        self.known[key] = op.result
        found_bounds = bounds_of(op, self.bounds)
        if found_bounds is not None:
            self.bounds[op.result] = found_bounds
        return op.result

    def inner(self) -> Fold:
        """A builder of a block inside, whose ops become a region."""
        return Fold(self)

    def simplified(self, name: str, *args: Value) -> Value | None:
        """What a scalar function is known to give, or None."""
        return _map(self, t.Map(args, scalar(name), loc=self.loc))

    def find(self, key: object) -> Value | None:
        """The value of a computation that has been made here or around."""
        scope: Fold | None = self
        while scope is not None:
            value = scope.known.get(key)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def const(self, value: Number, type: Type) -> Value:
        """A constant."""
        return Fold.emit(self, t.Const(value, type, loc=self.loc))

    def row(self, name: str, *args: Value) -> Value:
        """A scalar function as it is."""
        return Fold.emit(self, t.Map(args, scalar(name), loc=self.loc))


def _attributes(op: Op) -> tuple[object, ...]:
    if isinstance(op, t.Const):
        # 0.0 and -0.0 are equal, as 1 and True are.
        return (repr(op.value), op.type)
    return tuple(op.attrs.values())


def constant(value: Value) -> Number | None:
    """The value of a scalar constant."""
    op = value.op
    return op.value if isinstance(op, t.Const) and isinstance(op.type, ScalarType) else None


def integer(value: Value) -> int | None:
    """The value of a scalar integer constant."""
    op = value.op
    if isinstance(op, t.Const) and isinstance(op.type, ScalarType) and op.type.dtype.is_integer:
        return int(op.value)
    return None


def wrapped(value: int, dtype: DType) -> int:
    """An integer as the dtype holds it."""
    bits = dtype.bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind is Kind.INT and value >> (bits - 1) else value


def _simplify(b: Fold, op: Op) -> Value | None:
    if isinstance(op, t.Map):
        return _map(b, op)
    if isinstance(op, t.Cast):
        return _cast(b, op)
    if isinstance(op, t.Bitcast):
        return _bitcast(b, op)
    if isinstance(op, t.Extract):
        return _extract(b, op)
    if isinstance(op, g.Pack):
        return _pack(op)
    if isinstance(op, t.PtrAdd) and integer(op.bytes) == 0:
        return op.ptr
    return None


def _cast(b: Fold, op: t.Cast) -> Value | None:
    source, inner = t.element(op.x.type), op.x.op
    if source is op.dtype:
        return op.x
    value = constant(op.x)
    if value is not None:
        return _array_constant(b, cast_array(np.asarray(value).astype(source.np), op.dtype))
    if isinstance(inner, t.Cast) and source.is_integer and op.dtype.is_integer:
        first = t.element(inner.x.type)
        # A wider step keeps all bits, and so does one back.
        if first.is_integer and first.bits >= 8 and source.bits >= op.dtype.bits:
            return Fold.emit(b, t.Cast(inner.x, op.dtype, loc=op.loc))
    return None


def _array_constant(b: Fold, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Value:
    dtype = dtype_of(array.dtype)
    value: Number
    if dtype.is_bool:
        value = bool(array)
    elif dtype.is_integer:
        value = int(array)  # pyright: ignore[reportArgumentType]
    else:
        value = float(array)  # pyright: ignore[reportArgumentType]
    return b.const(value, ScalarType(dtype))


def _bitcast(b: Fold, op: t.Bitcast) -> Value | None:
    source = t.element(op.x.type)
    if source is op.dtype:
        return op.x
    value = constant(op.x)
    if value is not None and not _is_nan(value):
        array = bitcast_array(np.asarray(value).astype(source.np), op.dtype)
        if op.dtype.is_float and np.isnan(array.astype(np.float64)):
            return None
        return _array_constant(b, array)
    if isinstance(op.x.op, t.Bitcast):
        return Fold.emit(b, t.Bitcast(op.x.op.x, op.dtype, loc=op.loc))
    return None


def _is_nan(value: Number) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _extract(b: Fold, op: t.Extract) -> Value | None:
    inner = op.x.op
    if isinstance(inner, g.Pack):
        return inner.args[op.lane]
    if isinstance(inner, t.Const):
        return b.const(inner.value, ScalarType(t.element(inner.type)))
    return None


def _pack(op: g.Pack) -> Value | None:
    """All elements of a vector in their order are the vector."""
    first = op.args[0].op
    if not isinstance(first, t.Extract) or first.x.type != op.result.type:
        return None
    for k, arg in enumerate(op.args):
        lane = arg.op
        if not isinstance(lane, t.Extract) or lane.x is not first.x or lane.lane != k:
            return None
    return first.x


# --- scalar functions -----------------------------------------------------------------------------


def _map(b: Fold, op: t.Map) -> Value | None:
    if isinstance(op.args[-1].type, VecType):
        return None
    dtype = t.element(op.args[-1].type)
    constants = [constant(a) for a in op.args]
    if None not in constants:
        return _evaluate(b, op, dtype, constants)  # pyright: ignore[reportArgumentType]
    name = op.fn.name
    if name == "select":
        return _select(b, op)
    if dtype.is_bool:
        return _logical(b, name, op.args)
    if name in _DECIDED and dtype.is_integer:
        return _compare(b, name, *op.args)
    rule = _INTEGER.get(name) if dtype.is_integer else _FLOAT.get(name)
    return None if rule is None else rule(b, dtype, *op.args)


def _compare(b: Fold, name: str, x: Value, y: Value) -> Value | None:
    """A comparison of integers whose answer is known."""
    answer = _DECIDED[name] if x is y else None
    if answer is None and x in b.bounds and y in b.bounds:
        answer = decided(name, b.bounds[x], b.bounds[y])
    return None if answer is None else b.const(answer, ScalarType(bool_))


_DECIDED = {"eq": True, "ne": False, "lt": False, "le": True, "gt": False, "ge": True}

_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, c: a + c,
    "sub": lambda a, c: a - c,
    "mul": lambda a, c: a * c,
    "and": lambda a, c: a & c,
    "or": lambda a, c: a | c,
    "xor": lambda a, c: a ^ c,
}


def _evaluate(b: Fold, op: t.Map, dtype: DType, constants: list[Number]) -> Value | None:
    quick = _EXACT.get(op.fn.name)
    if quick is not None and dtype.is_integer:
        value = quick(int(constants[0]), int(constants[1]))
        return b.const(wrapped(value, dtype), op.result.type)
    arrays = [
        np.asarray(c).astype(t.element(a.type).np)
        for a, c in zip(op.args, constants, strict=True)
    ]
    return _array_constant(b, op.fn.evaluate(*arrays))


def _select(b: Fold, op: t.Map) -> Value | None:
    condition, a, c = op.args
    known = constant(condition)
    if known is not None:
        return a if known else c
    if a is c:
        return a
    if t.element(a.type).is_bool:
        if constant(a) is True and constant(c) is False:
            return condition
        if constant(a) is False and constant(c) is True:
            return b.row("not", condition)
    inner = condition.op
    if isinstance(inner, t.Map) and inner.fn.name == "not":
        return b.row("select", inner.args[0], c, a)
    return None


def _logical(b: Fold, name: str, args: tuple[Value, ...]) -> Value | None:
    if name == "not":
        inner = args[0].op
        if isinstance(inner, t.Map) and inner.fn.name == "not":
            return inner.args[0]
        return None
    if len(args) != 2:
        return None
    x, y = args
    for a, other in ((x, y), (y, x)):
        known = constant(other)
        if known is None:
            continue
        if name == "and":
            return a if known else other
        if name == "or":
            return other if known else a
        if name in ("xor", "ne"):
            return b.row("not", a) if known else a
        if name == "eq":
            return a if known else b.row("not", a)
    if x is y and name in ("and", "or"):
        return x
    return None


def _parts(value: Value) -> tuple[Value, int] | None:
    """x and c of a sum x + c."""
    op = value.op
    if isinstance(op, t.Map) and op.fn.name == "add":
        c = integer(op.args[1])
        if c is not None:
            return op.args[0], c
    return None


def plus(b: Fold, x: Value, c: int, dtype: DType) -> Value:
    """x + c."""
    c = wrapped(c, dtype)
    return x if c == 0 else b.row("add", x, b.const(c, x.type))


def _add(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    if integer(x) is not None:
        return b.row("add", y, x)
    c = integer(y)
    inner = _parts(x)
    if c is not None:
        if c == 0:
            return x
        return None if inner is None else plus(b, inner[0], inner[1] + c, dtype)
    other = _parts(y)
    if inner is not None:
        return plus(b, b.row("add", inner[0], y), inner[1], dtype)
    if other is not None:
        return plus(b, b.row("add", x, other[0]), other[1], dtype)
    return None


def _sub(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    if x is y:
        return b.const(0, x.type)
    c = integer(y)
    if c is not None:
        return plus(b, x, -c, dtype)
    inner, other = _parts(x), _parts(y)
    if inner is not None:
        return plus(b, b.row("sub", inner[0], y), inner[1], dtype)
    if other is not None:
        return plus(b, b.row("sub", x, other[0]), -other[1], dtype)
    return None


def _mul(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    if integer(x) is not None:
        return b.row("mul", y, x)
    c = integer(y)
    if c is None:
        return None
    if c in (0, 1):
        return x if c else y
    inner = _parts(x)
    if inner is not None:
        return plus(b, b.row("mul", inner[0], y), inner[1] * c, dtype)
    op = x.op
    if isinstance(op, t.Map) and op.fn.name in ("mul", "shl"):
        k = integer(op.args[1])
        if k is not None and (op.fn.name == "mul" or 0 <= k < dtype.bits):
            factor = k if op.fn.name == "mul" else 1 << k
            return b.row("mul", op.args[0], b.const(wrapped(factor * c, dtype), x.type))
    if c > 1 and not c & (c - 1):
        return b.row("shl", x, b.const(c.bit_length() - 1, x.type))
    return None


def _shl(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    c = integer(y)
    if c is None:
        return None
    if c == 0:
        return x
    if not 0 < c < dtype.bits:
        return b.const(0, x.type)
    inner = _parts(x)
    if inner is not None:
        return plus(b, b.row("shl", inner[0], y), inner[1] << c, dtype)
    op = x.op
    if isinstance(op, t.Map) and op.fn.name in ("mul", "shl"):
        k = integer(op.args[1])
        if k is not None and (op.fn.name == "mul" or 0 <= k < dtype.bits):
            factor = (k if op.fn.name == "mul" else 1 << k) << c
            return b.row("mul", op.args[0], b.const(wrapped(factor, dtype), x.type))
    return None


def _shr(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del b, dtype
    return x if integer(y) == 0 else None


def _and(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    if integer(x) is not None:
        return b.row("and", y, x)
    c = integer(y)
    if x is y or c == wrapped(-1, dtype):
        return x
    return y if c == 0 else None


def _or(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    if integer(x) is not None:
        return b.row("or", y, x)
    c = integer(y)
    if x is y or c == 0:
        return x
    return y if c == wrapped(-1, dtype) else None


def _xor(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del dtype
    if x is y:
        return b.const(0, x.type)
    if integer(x) is not None:
        return b.row("xor", y, x)
    return x if integer(y) == 0 else None


def _same(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del b, dtype
    return x if x is y else None


def _power(c: int | None) -> int | None:
    """The exponent of a power of two."""
    return None if c is None or c <= 0 or c & (c - 1) else c.bit_length() - 1


def _floordiv(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del dtype
    power = _power(integer(y))
    return None if power is None else b.row("shr", x, b.const(power, x.type))


def _mod(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del dtype
    power = _power(integer(y))
    return None if power is None else b.row("and", x, b.const((1 << power) - 1, x.type))


def _division(name: str) -> Callable[..., Value | None]:
    """Division where neither operand is negative: the quotient has no sign to take care of, and
    32 bits are enough where the operands fit.
    """
    power = _floordiv if name in ("trunc_div", "floordiv") else _mod
    rounds_down = name in ("floordiv", "mod")

    def apply(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
        a, c = b.bounds.get(x), b.bounds.get(y)
        positive = dtype.kind is Kind.UINT or (a is not None and a[0] >= 0)
        if positive or rounds_down or integer(y) == 1:
            found = power(b, dtype, x, y)
            if found is not None:
                return found
        if a is None or c is None or a[0] < 0 or c[0] < 1:
            return None
        if a[1] < c[0]:
            return b.const(0, x.type) if power is _floordiv else x
        if dtype is uint32 or a[1] >= 1 << 32 or c[1] >= 1 << 32 or dtype.bits < 32:
            return None
        low, by = (Fold.emit(b, t.Cast(v, uint32, loc=b.loc)) for v in (x, y))
        found = b.row("trunc_div" if power is _floordiv else "rem", low, by)
        return Fold.emit(b, t.Cast(found, dtype, loc=b.loc))

    return apply


_INTEGER: dict[str, Callable[..., Value | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "shl": _shl,
    "shr": _shr,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "min": _same,
    "max": _same,
    "floordiv": _division("floordiv"),
    "mod": _division("mod"),
    "trunc_div": _division("trunc_div"),
    "rem": _division("rem"),
}


def _float_mul(b: Fold, dtype: DType, x: Value, y: Value) -> Value | None:
    del b, dtype
    for a, other in ((x, y), (y, x)):
        if constant(other) == 1.0:
            return a
    return None


def _float_neg(b: Fold, dtype: DType, x: Value) -> Value | None:
    del b, dtype
    op = x.op
    return op.args[0] if isinstance(op, t.Map) and op.fn.name == "neg" else None


_FLOAT: dict[str, Callable[..., Value | None]] = {"mul": _float_mul, "neg": _float_neg}
