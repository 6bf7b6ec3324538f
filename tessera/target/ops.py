"""Target IR: one kernel in instructions. Typed SSA over scalars, vectors and pointers, with
structured control flow.

Element access: `load(ptr, offset)` reads at ptr + offset * itemsize; a vector, what follows;
with a mask, lanes whose bit is not set give the `other` operand and touch no memory. Arithmetic is
`target.map`: a row of the shared scalar table on scalars, or on vectors of one lane count.
"""

from __future__ import annotations

import functools

from tessera.dtypes import (
    DType,
    bfloat16,
    bool_,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tessera.errors import VerifyError
from tessera.ir import control
from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import IO, READ, READ_WRITE, WRITE
from tessera.ir.hostcall import HostFunction
from tessera.ir.opdef import attr, operand, operands, region
from tessera.ir.scalar import ScalarFn, result_dtype
from tessera.ir.types import ScalarType, Type
from tessera.schedule.types import BufType
from tessera.target.types import PtrType, VecType

Number = bool | int | float


GROUPS: dict[tuple[DType, DType], tuple[DType, int]] = {
    (bfloat16, bfloat16): (float32, 2),
    (int16, int16): (int32, 2),
    (uint8, int8): (int32, 4),
}
"""What products of groups of two dtypes are added to, and how many a group has."""


class TargetOp(Op):
    """Base of all Target ops."""


INDEX = ScalarType(int64)

OFFSETS = (INDEX, ScalarType(int32))
"""Types of element offsets; GPUs use the narrow one where it is enough."""


def element(type: Type) -> DType:
    """The dtype of a scalar or vector."""
    if not isinstance(type, (ScalarType, VecType)):
        raise VerifyError(f"expected a scalar or a vector, not {type}")
    return type.dtype


def lanes(type: Type) -> int:
    """The lanes of a vector, 0 for a scalar."""
    return type.lanes if isinstance(type, VecType) else 0


def with_element(type: Type, dtype: DType) -> Type:
    """The same scalar or vector shape with another dtype."""
    element(type)
    return VecType(type.lanes, dtype) if isinstance(type, VecType) else ScalarType(dtype)


@functools.cache
def _result(fn: ScalarFn, *types: Type) -> Type:
    if len({lanes(t) for t in types}) != 1:
        raise VerifyError(f"{fn.name}: lane counts differ: {', '.join(map(str, types))}")
    return with_element(types[0], result_dtype(fn, *[element(t) for t in types]))


class Const(TargetOp):
    """A constant scalar, or a vector with that value in every lane."""

    name = "target.const"
    value: Number = attr()
    type: Type = attr()

    def infer(self) -> Type:
        """The given type."""
        element(self.type)
        return self.type


class Lanes(TargetOp):
    """The vector 0, 1, 2, ..., n - 1."""

    name = "target.lanes"
    count: int = attr()
    dtype: DType = attr(int64)

    def infer(self) -> Type:
        """A vector."""
        return VecType(self.count, self.dtype)


class Map(TargetOp):
    """A row of the scalar table on scalars, or lane by lane on vectors of one lane count."""

    name = "target.map"
    args: tuple[Value, ...] = operands()
    fn: ScalarFn = attr()

    def infer(self) -> Type:
        """By the row's signature."""
        return _result(self.fn, *[a.type for a in self.args])


class Cast(TargetOp):
    """Conversion between dtypes, as `graph.cast`."""

    name = "target.cast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """The same lanes."""
        return with_element(self.x.type, self.dtype)


class Bitcast(TargetOp):
    """The same bits as another dtype of equal width."""

    name = "target.bitcast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """The same lanes."""
        if element(self.x.type).bits != self.dtype.bits:
            raise VerifyError(f"{self.x.type} and {self.dtype} differ in width")
        return with_element(self.x.type, self.dtype)


class Splat(TargetOp):
    """A vector with a scalar in every lane."""

    name = "target.splat"
    x: Value = operand()
    count: int = attr()

    def infer(self) -> Type:
        """A vector."""
        if not isinstance(self.x.type, ScalarType):
            raise VerifyError(f"splat of {self.x.type}")
        return VecType(self.count, self.x.type.dtype)


class Extract(TargetOp):
    """One lane of a vector."""

    name = "target.extract"
    x: Value = operand()
    lane: int = attr()

    def infer(self) -> Type:
        """A scalar."""
        if not 0 <= self.lane < lanes(self.x.type):
            raise VerifyError(f"lane {self.lane} of {self.x.type}")
        return ScalarType(element(self.x.type))


class Insert(TargetOp):
    """A vector with one lane replaced."""

    name = "target.insert"
    x: Value = operand()
    value: Value = operand()
    lane: int = attr()

    def infer(self) -> Type:
        """The vector's type."""
        if not 0 <= self.lane < lanes(self.x.type) or self.value.type != ScalarType(
            element(self.x.type)
        ):
            raise VerifyError(f"lane {self.lane} of {self.x.type} := {self.value.type}")
        return self.x.type


class Shuffle(TargetOp):
    """Lanes picked from the concatenation of two vectors of one type."""

    name = "target.shuffle"
    a: Value = operand()
    b: Value = operand()
    picks: tuple[int, ...] = attr()

    def infer(self) -> Type:
        """A vector with one lane per pick."""
        total = 2 * lanes(self.a.type)
        if self.a.type != self.b.type or not total or any(not 0 <= p < total for p in self.picks):
            raise VerifyError(f"shuffle of {self.a.type} and {self.b.type} with {list(self.picks)}")
        return VecType(len(self.picks), element(self.a.type))


class ReduceLanes(TargetOp):
    """Combines the lanes of a vector with a row of the scalar table, in the order of `tile.reduce`.

    Formats narrower than float32 are combined in float32 and rounded once.
    """

    name = "target.reduce_lanes"
    x: Value = operand()
    fn: ScalarFn = attr()

    def infer(self) -> Type:
        """A scalar."""
        if not lanes(self.x.type):
            raise VerifyError(f"reduce_lanes of {self.x.type}")
        return ScalarType(element(self.x.type))


class Scale(TargetOp):
    """x * 2**power, rounded once, for f32 and f64; the power is of the same type, and rounded down.
    Of NaN it is NaN but where the power is infinite: 0 or infinity.

    An instruction of CPUs with AVX-512, for as many lanes as are a power of two.
    """

    name = "target.scale"
    x: Value = operand()
    power: Value = operand()

    def infer(self) -> Type:
        """The operands' type."""
        dtype, count = element(self.x.type), max(lanes(self.x.type), 1)
        if self.x.type != self.power.type or dtype not in (float32, float64):
            raise VerifyError(f"scale of {self.x.type} by {self.power.type}")
        if count & (count - 1):
            raise VerifyError(f"scale of {count} lanes")
        return self.x.type


class DotGroups(TargetOp):
    """Adds the products of groups of g lanes: lane i is acc[i] + sum of a[g*i+k] * b[g*i+k], k < g.

    Pairs of i16, and groups of four of u8 and i8, are added to i32, which wraps around; pairs of
    bf16 to f32, where subnormal numbers count as 0, and the two additions are rounded one by one,
    in the machine's order.
    """

    name = "target.dot_groups"
    acc: Value = operand()
    a: Value = operand()
    b: Value = operand()

    def infer(self) -> Type:
        """The accumulator's type."""
        found = GROUPS.get((element(self.a.type), element(self.b.type)))
        if found is None or found[0] is not element(self.acc.type):
            types = f"{self.a.type} and {self.b.type}"
            raise VerifyError(f"{types} are no groups that are added to {self.acc.type}")
        count = lanes(self.acc.type)
        if not count or not lanes(self.a.type) == lanes(self.b.type) == found[1] * count:
            raise VerifyError(f"groups of {self.a.type} and {self.b.type} for {self.acc.type}")
        return self.acc.type


# --- memory ---


class PtrAdd(TargetOp):
    """A pointer moved by a number of bytes."""

    name = "target.ptr_add"
    ptr: Value = operand()
    bytes: Value = operand()

    def infer(self) -> Type:
        """The pointer's type."""
        if not isinstance(self.ptr.type, PtrType) or self.bytes.type != INDEX:
            raise VerifyError("ptr_add takes a pointer and i64 bytes")
        return self.ptr.type


class Load(TargetOp):
    """Reads a scalar, or a vector of consecutive elements, at element `offset`.

    Operands `mask` and `other` are given together or not at all (vectors of the same lanes).

    Attributes:
        type: what is read.
        align: known alignment of the address in bytes; 0 means the element's.
    """

    name = "target.load"
    effects = READ
    ptr: Value = operand()
    offset: Value = operand()
    mask: tuple[Value, ...] = operands()
    type: Type = attr()
    align: int = attr(0)

    def infer(self) -> Type:
        """The given type."""
        _access(self.ptr, self.offset)
        _check_mask(self.mask, self.type, True)
        return self.type


class Store(TargetOp):
    """Writes a scalar, or a vector to consecutive elements, at element `offset`; with a mask, only
    lanes whose bit is set. With `streaming`, nobody is going to read it soon: one of so many (a
    power of two) pieces of memory is written past the caches, where the address allows it.
    """

    name = "target.store"
    effects = WRITE
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    align: int = attr(0)
    streaming: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _access(self.ptr, self.offset)
        _check_mask(self.mask, self.value.type, False)
        return ()


class Gather(TargetOp):
    """Reads one element per lane at a vector of element offsets; `mask` and `other` together or not
    at all.
    """

    name = "target.gather"
    effects = READ
    ptr: Value = operand()
    offsets: Value = operand()
    mask: tuple[Value, ...] = operands()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A vector of the offsets' lanes."""
        if not isinstance(self.ptr.type, PtrType) or element(self.offsets.type) is not int64:
            raise VerifyError("gather takes a pointer and i64 offsets")
        result = VecType(lanes(self.offsets.type), self.dtype)
        _check_mask(self.mask, result, True)
        return result


class Scatter(TargetOp):
    """Writes one element per lane at a vector of element offsets, lane 0 first; with a mask, only
    lanes that are set.
    """

    name = "target.scatter"
    effects = WRITE
    ptr: Value = operand()
    offsets: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        count = lanes(self.value.type)
        if not isinstance(self.ptr.type, PtrType) or self.offsets.type != VecType(count, int64):
            raise VerifyError("scatter takes a pointer, and one i64 offset for each value")
        _check_mask(self.mask, self.value.type, False)
        return ()


class Limit(TargetOp):
    """The same pointer, to a buffer that begins there and has `size` bytes. It is said where the
    mode that checks accesses asks for it (`passes/check_bounds.py`).
    """

    name = "target.limit"
    ptr: Value = operand()
    size: Value = operand()

    def infer(self) -> Type:
        """The pointer's type."""
        if not isinstance(self.ptr.type, PtrType) or self.size.type != INDEX:
            raise VerifyError(f"limit takes a pointer and an i64, not {self.size.type}")
        return self.ptr.type


class BadAccess(TargetOp):
    """Tells the runtime that an access would have left its buffer; the first one counts.

    Attributes:
        at: the byte where the access begins, from the pointer on.
        low: where the buffer begins.
        high: where it ends.
        site: which access it is.
    """

    name = "target.bad_access"
    effects = IO
    at: Value = operand()
    low: Value = operand()
    high: Value = operand()
    site: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if any(v.type != INDEX for v in (self.at, self.low, self.high)):
            raise VerifyError("places in memory are i64")
        return ()


class Sentinel(TargetOp):
    """Tells the runtime that a value is not what it should be; the first thing that is told counts,
    bad accesses included. In a kernel of a GPU any thread may.
    """

    name = "target.sentinel"
    effects = IO

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class Alloca(TargetOp):
    """Scratch memory private to one call: `count` elements, 64-byte aligned."""

    name = "target.alloca"
    effects = WRITE
    dtype: DType = attr()
    count: int = attr()

    def infer(self) -> Type:
        """A pointer."""
        return PtrType()


def _access(ptr: Value, offset: Value) -> None:
    if not isinstance(ptr.type, PtrType) or offset.type not in OFFSETS:
        raise VerifyError(f"expected a pointer and an i64 offset, not {ptr.type} and {offset.type}")


def _check_mask(mask: tuple[Value, ...], type: Type, has_other: bool) -> None:
    if not mask:
        return
    # One bool for the whole access is what GPUs have: a predicate.
    whole = mask[0].type == ScalarType(bool_)
    expected: list[Type] = [ScalarType(bool_) if whole else with_element(type, bool_)]
    if has_other:
        expected.append(type)
    if [m.type for m in mask] != expected:
        raise VerifyError(f"mask operands are {', '.join(str(m.type) for m in mask)} for {type}")


# --- control ---


class For(control.For, TargetOp):
    """`for i in range(lo, hi, step)` with i64 bounds, step > 0, carrying values; the body takes i
    and what is carried. With `unroll` 1 it stays a loop; 0 leaves that to the writer.
    """

    name = "target.for"
    counter = INDEX
    unroll: int = attr(0)
    body: Block = region()


class While(control.While, TargetOp):
    """`while cond(carried): carried = body(carried)`."""

    name = "target.while"
    truth = ScalarType(bool_)


class If(control.If, TargetOp):
    """`then()` if the bool scalar holds, else `otherwise()`."""

    name = "target.if"
    truth = ScalarType(bool_)


class Call(TargetOp):
    """Calls another function of the module; nothing is returned."""

    name = "target.call"
    effects = READ_WRITE
    args: tuple[Value, ...] = operands()
    callee: str = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class Parallel(TargetOp):
    """Calls another function of the module for the points 0 to `count`, cut into pieces: with
    `args`, and behind them the begin and the end of a piece. Pieces run in any order, also at the
    same time, and what one writes no other reads or writes. Nothing is returned.

    Attributes:
        grain: points of a piece; the last one may have fewer.
    """

    name = "target.parallel"
    effects = READ_WRITE
    args: tuple[Value, ...] = operands()
    count: Value = operand()
    callee: str = attr()
    grain: int = attr(1)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if self.count.type != INDEX or self.grain < 1:
            raise VerifyError(f"pieces of {self.grain} of {self.count.type} points")
        return ()


class Together(TargetOp):
    """Calls, whole or in pieces, that run in any order, also at the same time: what one of them
    writes no other reads or writes.

    Attributes:
        grain: pieces that a thread takes at a time; a whole call is one piece.
        body: calls and `target.parallel`.
    """

    name = "target.together"
    effects = READ_WRITE
    grain: int = attr(1)
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """There are calls only, of so many pieces as is known."""
        if self.body.args or self.body.outputs or self.grain < 1:
            raise VerifyError("it takes nothing, yields nothing, and its grain is positive")
        for op in self.body.ops:
            is_known = isinstance(op, Parallel) and isinstance(op.count.op, Const)
            if not (is_known or isinstance(op, Call)):
                raise VerifyError("it has calls only, and of pieces a number that is known")


class HostCall(TargetOp):
    """Calls a function of the host with contiguous arrays; if it fails, the entry ends.

    Attributes:
        record: where the arrays are on a GPU: the record of the run, by which they are copied to
            the host, and what it gives to the GPU.
        args: pointers to what it reads, then to what it gives.
        dims: the values of the symbolic dims that the types mention.
        function: the function.
        inputs: how many of the pointers it reads.
        types: shape and dtype of each array.
        names: the dims.
        index: which call of the program it is.
    """

    name = "target.host_call"
    effects = READ_WRITE | IO
    record: tuple[Value, ...] = operands()
    args: tuple[Value, ...] = operands()
    dims: tuple[Value, ...] = operands()
    function: HostFunction = attr()
    inputs: int = attr()
    types: tuple[BufType, ...] = attr()
    names: tuple[str, ...] = attr(())
    index: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if any(not isinstance(v.type, PtrType) for v in (*self.record, *self.args)):
            raise VerifyError("arrays are given by pointers")
        if any(v.type != INDEX for v in self.dims) or len(self.dims) != len(self.names):
            raise VerifyError("each dim is an i64, and has a name")
        if len(self.args) != len(self.types) or not 0 <= self.inputs <= len(self.args):
            raise VerifyError("a host function takes one pointer for each of its arrays")
        if len(self.record) > 1:
            raise VerifyError("a run has one record")
        return ()


class Apply(TargetOp):
    """The value that another function of the module computes from its arguments alone."""

    name = "target.apply"
    args: tuple[Value, ...] = operands()
    callee: str = attr()
    type: Type = attr()

    def infer(self) -> Type:
        """The given type."""
        element(self.type)
        return self.type
