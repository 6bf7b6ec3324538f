"""Integers of 64 bits that need no more than 32.

    %i = graph.iota() {shape=[640, 300], axis=0, dtype=i64}      # 0 to 639
    %j = graph.iota() {shape=[640, 300], axis=1, dtype=i64}
    %m = graph.lt(%i, %j)                                        # of i64[640, 300]
    ==>
    the same of i32[640, 300]

Numbers of places are int64 unless a user says otherwise, as are sums of truths. A vector has half
as many of them, and CPUs lack some of their instructions: products, conversions to floating point,
the least or greatest of two. What can be known is small: numbers along an axis, constants, narrow
integers that are widened, and what is computed of these. Where such a value is compared, converted
or summed, that is done in int32, as is what it is computed from; the results are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import DType, int32, int64
from tessera.graph.ops.arithmetic import Abs, Eq, Ge, Gt, Le, Lt, Ne, Neg, Select, Square
from tessera.graph.ops.cumulative import CumSum
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.elementwise_base import Binary, Cast
from tessera.graph.ops.generate import Constant, Dense, Iota
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from tessera.graph.ops.reduce import ArgReduce, Max, Min, Sum
from tessera.graph.passes.simplify import DeadCode
from tessera.graph.spec import GRAPH
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.intvalues import Bounds, combined, held, limits
from tessera.ir.passes import Pass
from tessera.ir.types import TensorType
from tessera.ir.walk import walk, with_parts

MOVES = (Broadcast, Concatenate, Pad, Reshape, Reverse, Slice, Transpose)
COMPARES = (Eq, Ge, Gt, Le, Lt, Ne)
SUMS = (Sum, CumSum)
LEAVES = (ArgReduce, Cast, Constant, Iota)
"""Ops whose operands may be of any dtype."""


@dataclass(frozen=True)
class NarrowIntegers(Pass):
    """Has int64 that are known to be small computed in int32."""

    name = "narrow_integers"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """All values, in regions too."""
        if not any(_is_wide(v) for op in walk(func.body) for v in op.operands):
            return func
        found = _Narrowing({}, {}).block(func.body)
        return DeadCode().run(func.with_body(found))


def _is_wide(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is int64


class _Narrowing:
    """One block.

    Args:
        bounds: of values of the blocks around it.
        narrow: values of these that stand in int32 for others.
    """

    def __init__(self, bounds: dict[Value, Bounds | None], narrow: dict[Value, Value]) -> None:
        self.bounds = dict(bounds)
        self.narrow = dict(narrow)
        self.small: dict[Value, bool] = {}
        self.env: dict[Value, Value] = {}
        self.code: list[Op] = []

    def block(self, block: Block) -> Block:
        """The block with narrow integers."""
        for op in block.ops:
            self.op(op)
        return Block(block.args, self.code, [self.env.get(v, v) for v in block.outputs])

    def op(self, op: Op) -> None:
        """Copies an op, or appends what stands for it."""
        regions = [_Narrowing(self.bounds, self.narrow).within(self.env, r) for r in op.regions]
        fresh = with_parts(op, [self.env.get(v, v) for v in op.operands], regions)
        for value in fresh.results:  # in order: of a long chain the beginning is known by its end
            self.is_small(value)
        made = self.made(fresh)
        if made is None:
            self.code.append(fresh)
        if fresh is not op or made is not None:
            results = fresh.results if made is None else (made,)
            self.env.update(zip(op.results, results, strict=True))

    def within(self, env: dict[Value, Value], region: Block) -> Block:
        """A region, which may read what is around it."""
        self.env = dict(env)
        return self.block(region)

    def made(self, op: Op) -> Value | None:
        """What stands for the result of an op that reads integers; None if the op does."""
        if isinstance(op, COMPARES):
            if not all([_is_wide(v) and self.is_small(v) for v in op.operands]):
                return None
            return self.checked(op, op.rebuild([self.in_32(v) for v in op.operands]))
        if isinstance(op, Cast) and op.dtype is not int64 and _is_wide(op.x):
            if not self.is_small(op.x):
                return None
            if op.dtype is int32 and not op.weak:
                return self.in_32(op.x)
            return self.checked(op, op.rebuild([self.in_32(op.x)]))
        if isinstance(op, SUMS) and _is_wide(op.result) and self.is_small(op.result):
            return self.checked(op, Cast(self.in_32(op.result), int64, loc=op.loc))
        return None

    def checked(self, op: Op, new: Op) -> Value | None:
        """The result of a new op, if it has the type of the old one's."""
        if new.results[0].type != op.results[0].type:
            return None
        self.code.append(new)
        return new.results[0]

    # --- what values can be ----------------------------------------------------------------------

    def is_small(self, value: Value) -> bool:
        """Whether a value, and what it is computed from as far as that is int64, fits int32."""
        if not _is_wide(value):
            return True
        if value not in self.small:
            self.small[value] = self.fits(value)
        return self.small[value]

    def fits(self, value: Value) -> bool:
        """The same, of one that is not known yet."""
        found = self.of(value)
        op = value.op
        if found is None or held(found, int32) is None or op is None:
            return False
        if isinstance(op, LEAVES):
            return True
        return all([self.is_small(v) for v in op.operands])

    def of(self, value: Value) -> Bounds | None:
        """Bounds of an integer, or of a truth, as a number."""
        if value not in self.bounds:
            self.bounds[value] = None  # while it is looked for
            self.bounds[value] = self.find(value)
        return self.bounds[value]

    def find(self, value: Value) -> Bounds | None:
        """The same, of one that is not known yet."""
        type = value.type
        if not isinstance(type, TensorType):
            return None
        dtype = type.dtype
        if dtype.is_bool:
            return 0, 1
        if not dtype.is_integer:
            return None
        found = self.computed(value, dtype)
        return limits(dtype) if found is None and dtype.bits < 64 else found

    def computed(self, value: Value, dtype: DType) -> Bounds | None:
        """Bounds from what a value is computed from."""
        op = value.op
        match op:
            case Constant():
                array = op.value.array
                return (int(array.min()), int(array.max())) if array.size else None
            case Iota():
                count = op.shape[op.axis]
                return (0, count - 1) if isinstance(count, int) and count > 0 else None
            case ArgReduce():
                count = tensor_type(op.x).shape[op.axis]
                return (0, count - 1) if isinstance(count, int) and count > 0 else None
            case Cast():
                inner = self.of(op.x)
                return None if inner is None else held(inner, dtype)
            case Sum() | CumSum():
                axes = op.axes if isinstance(op, Sum) else (op.axis,)
                return self.summed(op.x, axes, dtype)
            case Max() | Min():
                sizes = [tensor_type(op.x).shape[axis] for axis in op.axes]
                is_some = all([isinstance(n, int) and n > 0 for n in sizes])
                return self.of(op.x) if is_some else None
            case Select():
                return self.either(op.operands[1:])
            case Neg() | Abs() | Square():
                return self.unary(op, dtype)
            case Binary():
                a, b = [self.of(v) for v in op.operands]
                if a is None or b is None:
                    return None
                if op.scalar in ("shl", "shr") and b[1] >= int32.bits:
                    return None
                return combined(op.scalar, a, b, dtype)
            case _:
                return self.either(op.operands) if isinstance(op, MOVES) else None

    def either(self, values: tuple[Value, ...]) -> Bounds | None:
        """What one of several values can be."""
        found = [self.of(v) for v in values]
        ends = [bounds for bounds in found if bounds is not None]
        if not ends or len(ends) < len(found):
            return None
        return min([low for low, _ in ends]), max([high for _, high in ends])

    def summed(self, x: Value, axes: tuple[int, ...], dtype: DType) -> Bounds | None:
        """What sums along some axes can be, and what they are on the way."""
        inner, count = self.of(x), 1
        for axis in axes:
            size = tensor_type(x).shape[axis]
            if not isinstance(size, int):
                return None
            count *= size
        if inner is None:
            return None
        low, high = inner
        return held((min(low * count, 0), max(high * count, 0)), dtype)

    def unary(self, op: Elementwise, dtype: DType) -> Bounds | None:
        """What a function of one integer can be."""
        inner = self.of(op.operands[0])
        if inner is None:
            return None
        low, high = inner
        if isinstance(op, Neg):
            return held((-high, -low), dtype)
        most = max(abs(low), abs(high))
        return held((0, most * most if isinstance(op, Square) else most), dtype)

    # --- their code ------------------------------------------------------------------------------

    def in_32(self, value: Value) -> Value:
        """A small value in int32."""
        waiting = [value]
        while waiting:
            one = waiting[-1]
            missing = [v for v in self.needs(one) if self.known_in_32(v) is None]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if self.known_in_32(one) is None:
                new = self.narrowed(one)
                self.code.append(new)
                self.narrow[one] = new.results[0]
        found = self.known_in_32(value)
        assert found is not None
        return found

    def known_in_32(self, value: Value) -> Value | None:
        """The same, if nothing has to be computed for it."""
        op = value.op
        if not _is_wide(value):
            return value
        if isinstance(op, Cast) and tensor_type(op.x).dtype is int32:
            return op.x
        return self.narrow.get(value)

    def needs(self, value: Value) -> tuple[Value, ...]:
        """What has to be in int32 before a value is."""
        op = value.op
        if op is None or self.known_in_32(value) is not None or isinstance(op, LEAVES):
            return ()
        return op.operands

    def narrowed(self, value: Value) -> Op:
        """The op that computes a value in int32."""
        op = value.op
        match op:
            case Constant():
                return Constant(Dense.of(op.value.array, int32), loc=op.loc)
            case Iota():
                return Iota(op.shape, op.axis, int32, loc=op.loc)
            case Cast():
                return Cast(op.x, int32, loc=op.loc)
            case ArgReduce():
                return Cast(value, int32, loc=op.loc)
            case Sum():
                return op.rebuild([self.in_32(op.x)], accumulate=None)
            case _:
                assert op is not None
                return op.rebuild([self.in_32(v) for v in op.operands])
