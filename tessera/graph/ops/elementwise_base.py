"""What elementwise ops are, and those that convert: one class for each row of the scalar table.

Each class names the row of the scalar table (`ir/scalar.py`) that it applies to every element; that
row is all that lowering needs, and its `evaluate` is the meaning of the op. The operands of an op
have one shape and one dtype: nothing is broadcast or promoted here.

Each class has a function that binds it, `add(x, y)` for `Add`. A Python number among the operands
becomes an array of the dtype and shape of the others. `graph/ops/elementwise.py` has them all.

Derivatives of functions of complex numbers are those of JAX: tangents are pushed through as complex
differentials, and a cotangent `c` pairs with a tangent `t` as `Re(c * t)`, without conjugation, so
multiplying by a constant is its own transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tessera.dtypes import DType, Kind
from tessera.errors import DTypeError, MissingRuleError, ShapeError
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import shape_text, tensor, title
from tessera.graph.ops.rearrange import (
    Batched,
    broadcast,
    call,
    full,
    insert,
    move_axis,
)
from tessera.graph.trace import bind
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.scalar import SCALARS, ScalarFn, result_dtype
from tessera.ir.types import TensorType


class Elementwise(GraphOp):
    """Base of ops that compute each result element from the operands' elements at the same index.

    Class attributes:
        scalar: the name of a row of the scalar table; "" for `Cast` and `Bitcast`, which have none.
    """

    family = Family.ELEMENTWISE
    scalar: ClassVar[str] = ""

    @property
    def row(self) -> ScalarFn:
        """The row of the scalar table."""
        return SCALARS[self.scalar]

    def infer(self) -> TensorType:
        """The common shape, and the dtype that the row says; weak if all operands are."""
        types = [tensor(self, k) for k in range(len(self.operands))]
        first = types[0]
        weak = first.weak
        policy = first.policy
        for k in range(1, len(types)):
            other = types[k]
            if other.shape != first.shape:
                raise self._shape_error(k, first, other)
            weak = weak and other.weak
            policy = other.policy if policy is None else policy
        try:
            dtype = result_dtype(self.row, *[t.dtype for t in types])
        except DTypeError as error:
            raise self._dtype_error(error, [t.dtype for t in types]) from None
        return TensorType(first.shape, dtype, weak, policy)

    def _dtype_error(self, error: DTypeError, dtypes: list[DType]) -> DTypeError:
        """The scalar row's error, in the words of the namespace."""
        row, name = self.row.name, title(self)
        fix = error.fix
        if fix == "cast it first" and any(d.is_complex for d in dtypes):
            fix = "take `ts.abs(x)` or `ts.real(x)` first"
        elif fix is not None and dtypes[0].is_bool and "'or'" in fix:
            fix = "use `ts.logical_or` or `ts.logical_and`, or cast to an integer type first"
        rule = error.rule
        if rule is not None and rule.startswith(f"{row} "):
            rule = name + rule[len(row) :]
        what = error.what
        if what.startswith(f"{row}:"):
            what = name + what[len(row) :]
        return DTypeError(what, loc=self.loc, rule=rule, fix=fix)

    def _shape_error(self, k: int, first: TensorType, other: TensorType) -> ShapeError:
        what = f"{title(self)}: operand {k} is {other}, but operand 0 is {first}"
        if other.rank == first.rank:
            differing = [d for d in range(first.rank) if first.shape[d] != other.shape[d]]
            d = differing[0]
            what += f"; dim {d} is {other.shape[d]} and {first.shape[d]}"
            if len(differing) > 1:
                what += f", and dims {shape_text(differing[1:])} differ too"
        else:
            what += f"; their ranks are {other.rank} and {first.rank}"
        return ShapeError(
            what,
            loc=self.loc,
            rule="operands of elementwise operations have one shape",
            fix="broadcast them first",
        )

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """Applies the row."""
        return self.row.evaluate(*operands)

    def batch(self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim) -> Batched:
        """The op on operands that all have their batch axis where the first one has it."""
        at = next(a for a in axes if a is not None)
        aligned: list[Any] = []
        for x, axis in zip(operands, axes, strict=True):
            if axis is None:
                dims = [k + (k >= at) for k in range(x.ndim)]
                aligned.append(broadcast(x, insert(x.shape, at, size), dims))
            else:
                aligned.append(move_axis(x, axis, at))
        return (self.bind(*aligned),), (at,)


class Unary(Elementwise):
    """Ops of one operand. A class whose derivative is a factor gives it as `derivative`."""

    x: Value = operand()

    def derivative(self, x: Any, out: Any) -> Any:
        """What a tangent is multiplied by, from the operand and the result."""
        raise MissingRuleError(self.name, "derivative (or partial)", loc=self.loc)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        """The tangent times the derivative."""
        return call("mul", t, self.derivative(primals[0], out))


class Binary(Elementwise):
    """Ops of two operands."""

    x: Value = operand()
    y: Value = operand()


# --- functions --------------------------------------------------------------------------------


def is_number(x: Any) -> bool:
    """Whether an operand is a Python number, not an array."""
    return isinstance(x, (bool, int, float, complex))


def filled(cls: type[Elementwise], operands: Sequence[Any]) -> list[Any]:
    """The operands, with numbers made arrays like the first array among them."""
    like = next((x for x in operands if not is_number(x)), None)
    if like is None:
        raise TypeError(f"{cls.__name__}: at least one operand is an array")
    type: TensorType = like.type
    return [
        full(type.shape, x, type.dtype, type.weak) if is_number(x) else x for x in operands
    ]


def unary(cls: type[Unary]) -> Callable[[Any], Any]:
    """The function that binds an op of one operand."""

    def apply(x: Any) -> Any:
        return bind(cls, x)

    return _named(apply, cls)


def binary(cls: type[Binary]) -> Callable[[Any, Any], Any]:
    """The function that binds an op of two operands, one of which may be a Python number."""

    def apply(x: Any, y: Any) -> Any:
        if is_number(x) or is_number(y):
            x, y = filled(cls, (x, y))
        return bind(cls, x, y)

    return _named(apply, cls)


def _named(fn: Any, cls: type[Elementwise]) -> Any:
    fn.__name__ = fn.__qualname__ = cls.scalar
    fn.__doc__ = cls.__doc__
    return fn


# --- conversion -------------------------------------------------------------------------------


class Cast(Elementwise):
    """x in another dtype. `%r = graph.cast(%x) {dtype=i32} : i32[4]`.

    To bool: whether x is not 0. Complex to real: the real part. Floating-point to integer: without
    the fraction, the nearest end of the range for what lies outside, and 0 for NaN. Integers wrap
    around. See `ir/convert.py`. The result is weak only where `weak` says so.
    """

    name = "graph.cast"
    x: Value = operand()
    dtype: DType = attr()
    weak: bool = attr(False)

    def infer(self) -> TensorType:
        """The same shape."""
        x = tensor(self, 0)
        return TensorType(x.shape, self.dtype, self.weak, x.policy)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The conversion of `ir/convert.py`."""
        return cast_array(operands[0], self.dtype)

    def partial(self, k: int, t: Any, out: Any, *primals: Any) -> Any:
        return cast(t, self.dtype) if self.dtype.is_inexact else None

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        return (cast(cts[0], operands[0].type.dtype),)


class Bitcast(Elementwise):
    """The bits of x as another dtype of the same width. `%r = graph.bitcast(%x) {dtype=u32}`."""

    name = "graph.bitcast"
    differentiable = False
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> TensorType:
        """The same shape."""
        x = tensor(self, 0)
        for dtype in (x.dtype, self.dtype):
            if dtype.kind is Kind.BOOL and x.dtype is not self.dtype:
                raise DTypeError(
                    f"bitcast: from {x} to {self.dtype}",
                    loc=self.loc,
                    rule="the bits of a bool are not accessible",
                    fix="use a cast",
                )
        if x.dtype.bits != self.dtype.bits:
            raise DTypeError(
                f"bitcast: {x} has {x.dtype.bits} bits per element, {self.dtype} has"
                f" {self.dtype.bits}",
                loc=self.loc,
                rule="both dtypes have the same width",
            )
        return x.strong().with_dtype(self.dtype)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """The same bytes."""
        return bitcast_array(operands[0], self.dtype)


def cast(x: Any, dtype: DType, weak: bool = False) -> Any:
    """x in another dtype; x itself where it has that dtype."""
    if x.dtype is dtype:
        return x
    return bind(Cast, x, dtype=dtype, weak=True) if weak else bind(Cast, x, dtype=dtype)


def bitcast(x: Any, dtype: DType) -> Any:
    """The bits of x as another dtype of the same width."""
    return x if x.dtype is dtype else bind(Bitcast, x, dtype=dtype)
