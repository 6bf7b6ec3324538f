"""Legalization for GPUs: what the PTX writer has no row for is rewritten into what it has.

- Arithmetic on vectors becomes arithmetic on their elements: afterwards vectors are only what
  memory accesses and matrix instructions take and give.
- Arithmetic on formats narrower than float32 happens in float32, rounded once.
- Functions without an instruction are expanded: by `target/passes/approximate.py` where the special
  function unit helps, else by the expansions that CPUs use.
- Meanwhile constants are folded, repeated computations found and dead code dropped
  (`target/passes/fold.py`).

The rewritten program uses the same IR, so the interpreters run it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int4,
    int8,
)
from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import Gpu, GpuFeature
from tessera.target.passes.angles import ANGLES
from tessera.target.passes.approximate import APPROXIMATE, ROUGH
from tessera.target.passes.atomics import expand_atomic, is_native
from tessera.target.passes.expand import EXPANSIONS, signbit
from tessera.target.passes.fold import Fold
from tessera.target.passes.legalize import is_small, narrow_small, round_to_odd, widen_small
from tessera.target.passes.library import LIBRARY
from tessera.target.passes.mathematics import MATHEMATICS
from tessera.target.passes.narrow import NARROW
from tessera.target.ptx.rows import ROWS, key
from tessera.target.types import VecType

Lanes = list[Value]
Expansion = Callable[..., Value]


def is_primitive(name: str, dtype: DType) -> bool:
    """Whether the PTX writer has a row for a scalar function of operands of the dtype."""
    return key(dtype) in ROWS.get(name, {})


class Legal(Fold):
    """A builder whose functions and conversions are legal: expansions are written with it."""

    __slots__ = ("active", "machine")

    def __init__(self, machine: Gpu, outer: Legal | None = None) -> None:
        super().__init__(outer)
        self.machine = machine
        self.active: set[str] = set() if outer is None else outer.active

    def inner(self) -> Legal:
        """A builder of a block inside."""
        return Legal(self.machine, self)

    def map(self, name: str, *args: Value) -> Value:
        """A scalar function."""
        dtype = t.element(args[-1].type)
        if name == "select":
            return self.row(name, *args) if not dtype.is_bool else _select_bool(self, *args)
        if is_primitive(name, dtype):
            return self.row(name, *args)
        known = self.simplified(name, *args)
        if known is not None:
            return known
        if is_small(dtype):
            return self.small(name, args, dtype)
        if name not in self.active:
            rule = expansion(name, dtype)
            if rule is not None:
                self.active.add(name)
                value = rule(self, *args)
                self.active.remove(name)
                return value
        return self.row(name, *args)

    def small(self, name: str, args: Sequence[Value], dtype: DType) -> Value:
        """A function of operands narrower than float32, or than a byte."""
        if name in NARROW:
            return NARROW[name](self, *args)
        if name == "signbit" and dtype.is_float:
            # A conversion may make NaN positive.
            return signbit(self, *args)
        working = int8 if dtype is int4 else float32
        wide = [self.cast(a, working) for a in args]
        rough = ROUGH.get((name, dtype))
        value = self.map(name, *wide) if rough is None else rough(self, *wide)
        return self.cast(value, dtype) if t.element(value.type) is working else value

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion by steps that are primitive."""
        source, target = t.element(x.type), dtype
        if source is target:
            return x
        if int4 in (source, target):
            return self.cast_int4(x, source, target)
        if is_small(source):
            native = self.native(source)
            wide = self.raw_cast(x, float32) if native else widen_small(self, x, source)
            return self.cast(wide, target)
        if is_small(target):
            if source is float64:
                x = round_to_odd(self, x)
            elif source is not float32:
                x = self.raw_cast(x, float32)
            native = self.native(target)
            return self.raw_cast(x, target) if native else narrow_small(self, x, target)
        return self.raw_cast(x, target)

    def raw_cast(self, x: Value, dtype: DType) -> Value:
        """One conversion."""
        return self.emit(t.Cast(x, dtype, loc=self.loc))

    def cast_int4(self, x: Value, source: DType, target: DType) -> Value:
        """int4 lives in a byte; its upper bits are those of the sign once it has been computed."""
        if source is int4:
            return self.cast(self.extended(self.raw_cast(x, int8)), target)
        byte = self.cast(x, int8)
        if source.is_float:  # saturates, where integers wrap around
            byte = self.row("max", self.row("min", byte, self.like(byte, 7)), self.like(byte, -8))
        return self.raw_cast(self.extended(byte), int4)

    def extended(self, byte: Value) -> Value:
        """The lower half of a byte, extended by its sign."""
        four = self.like(byte, 4)
        return self.row("shr", self.row("shl", byte, four), four)

    def native(self, dtype: DType) -> bool:
        """Whether the machine converts the format to and from float32."""
        return dtype in (float16, bfloat16) or self.machine.has(GpuFeature.CVT_F8)


def expansion(name: str, dtype: DType) -> Expansion | None:
    """What rewrites a function that the writer has no row for."""
    if name in LIBRARY:
        return LIBRARY[name]
    if name in ANGLES:
        return ANGLES[name]
    if dtype is float32 and name in APPROXIMATE:
        return APPROXIMATE[name]
    if dtype in (float32, float64) and name in MATHEMATICS:
        return MATHEMATICS[name]
    if dtype is float64 and name in ("min", "max"):
        return _extremum(name)
    return EXPANSIONS.get(name)


def _extremum(name: str) -> Expansion:
    """NaN if either is: the instruction would give the other."""

    def expand(b: Legal, x: Value, y: Value) -> Value:
        first = b.map("lt" if name == "min" else "gt", x, y)
        return b.select(b.map("or", first, b.map("ne", x, x)), x, y)

    return expand


def _select_bool(b: Legal, condition: Value, x: Value, y: Value) -> Value:
    yes = b.row("and", condition, x)
    return b.row("or", yes, b.row("and", b.row("not", condition), y))


class _Legalizer:
    """Rewrites one kernel.

    Attributes:
        env: what old values have become.
        lanes: elements of vectors that have not been put together.
    """

    def __init__(self, machine: Gpu) -> None:
        self.machine = machine
        self.env: dict[Value, Value] = {}
        self.lanes: dict[Value, Lanes] = {}

    def block(self, block: Block, outer: Legal | None = None) -> Block:
        """A block; arguments stay."""
        b = Legal(self.machine, outer)
        for op in block.ops:
            self.op(b, op)
        outputs = [self.whole(b, v) for v in block.outputs]
        return eliminate_dead(Block(block.args, b.ops, outputs))

    def whole(self, b: Legal, value: Value) -> Value:
        """A value as one, packed if it is a vector of elements."""
        lanes = self.lanes.get(value)
        if lanes is not None:
            return b.emit(g.Pack(lanes, loc=b.loc))
        return self.env.get(value, value)

    def split(self, b: Legal, value: Value) -> Lanes:
        """The elements of a vector; a scalar itself."""
        lanes = self.lanes.get(value)
        if lanes is not None:
            return lanes
        known = self.env.get(value, value)
        if not isinstance(known.type, VecType):
            return [known]
        return [b.emit(t.Extract(known, k, loc=b.loc)) for k in range(known.type.lanes)]

    def op(self, b: Legal, op: Op) -> None:
        """One op."""
        if op.loc:
            b.loc = op.loc
        rule = _RULES.get(type(op))
        if rule is not None:
            rule(self, b, op)
            return
        operands = [self.whole(b, v) for v in op.operands]
        if not op.regions and all(x is y for x, y in zip(operands, op.operands, strict=True)):
            fresh = op
        else:
            if isinstance(op, t.For):
                lo, hi = b.bounds.get(operands[0]), b.bounds.get(operands[1])
                if lo is not None and hi is not None:
                    b.bounds[op.body.args[0]] = lo[0], max(lo[0], hi[1] - 1)
            fresh = op.rebuild(operands, [self.block(r, b) for r in op.regions])
        if len(fresh.results) == 1 and not fresh.regions:
            self.env[op.result] = b.emit(fresh)
            return
        b.ops.append(fresh)
        self.env.update(zip(op.results, fresh.results, strict=True))

    def define(self, op: Op, lanes: Lanes) -> None:
        """The elements of the only result."""
        if isinstance(op.result.type, VecType):
            self.lanes[op.result] = lanes
        else:
            (self.env[op.result],) = lanes


def _map(s: _Legalizer, b: Legal, op: t.Map) -> None:
    columns = [s.split(b, v) for v in op.args]
    s.define(op, [b.map(op.fn.name, *row) for row in zip(*columns, strict=True)])


def _cast(s: _Legalizer, b: Legal, op: t.Cast) -> None:
    s.define(op, [b.cast(x, op.dtype) for x in s.split(b, op.x)])


def _bitcast(s: _Legalizer, b: Legal, op: t.Bitcast) -> None:
    s.define(op, [b.bitcast(x, op.dtype) for x in s.split(b, op.x)])


def _lanes(s: _Legalizer, b: Legal, op: t.Lanes) -> None:
    s.define(op, [b.const(k, ScalarType(op.dtype)) for k in range(op.count)])


def _splat(s: _Legalizer, b: Legal, op: t.Splat) -> None:
    s.define(op, s.split(b, op.x) * op.count)


def _pack(s: _Legalizer, b: Legal, op: g.Pack) -> None:
    s.define(op, [x for a in op.args for x in s.split(b, a)])


def _extract(s: _Legalizer, b: Legal, op: t.Extract) -> None:
    s.define(op, [s.split(b, op.x)[op.lane]])


def _insert(s: _Legalizer, b: Legal, op: t.Insert) -> None:
    lanes = list(s.split(b, op.x))
    (lanes[op.lane],) = s.split(b, op.value)
    s.define(op, lanes)


def _shuffle(s: _Legalizer, b: Legal, op: t.Shuffle) -> None:
    both = s.split(b, op.a) + s.split(b, op.b)
    s.define(op, [both[k] for k in op.picks])


def _reduce_lanes(s: _Legalizer, b: Legal, op: t.ReduceLanes) -> None:
    dtype = t.element(op.x.type)
    lanes = s.split(b, op.x)
    if is_small(dtype):
        working = int8 if dtype is int4 else float32
        s.define(op, [b.cast(_tree(b, op.fn, [b.cast(x, working) for x in lanes]), dtype)])
    else:
        s.define(op, [_tree(b, op.fn, lanes)])


def _tree(b: Legal, fn: ScalarFn, lanes: Lanes) -> Value:
    """Halves, then halves of those, as the op is defined."""
    rest: Lanes = []
    while len(lanes) > 1:
        if len(lanes) % 2:
            rest.append(lanes[-1])
        half = len(lanes) // 2
        lanes = [b.map(fn.name, lanes[k], lanes[half + k]) for k in range(half)]
    result = lanes[0]
    for item in reversed(rest):
        result = b.map(fn.name, result, item)
    return result


def _is_by_lane(op: t.Load | t.Store) -> bool:
    return bool(op.mask) and isinstance(op.mask[0].type, VecType)


def _load(s: _Legalizer, b: Legal, op: t.Load) -> None:
    if not _is_by_lane(op):
        operands = [s.whole(b, v) for v in op.operands]
        s.env[op.result] = b.emit(op.rebuild(operands))
        return
    dtype = t.element(op.type)
    ptr, offset = s.whole(b, op.ptr), s.whole(b, op.offset)
    found: Lanes = []
    for k, (m, other) in enumerate(zip(*[s.split(b, v) for v in op.mask], strict=True)):
        at = b.map("add", offset, b.const(k, offset.type))
        found.append(b.emit(t.Load(ptr, at, [m, other], ScalarType(dtype), loc=b.loc)))
    s.define(op, found)


def _store(s: _Legalizer, b: Legal, op: t.Store) -> None:
    if not _is_by_lane(op):
        b.ops.append(op.rebuild([s.whole(b, v) for v in op.operands]))
        return
    ptr, offset = s.whole(b, op.ptr), s.whole(b, op.offset)
    lanes = zip(s.split(b, op.value), s.split(b, op.mask[0]), strict=True)
    for k, (value, m) in enumerate(lanes):
        at = b.map("add", offset, b.const(k, offset.type))
        b.ops.append(t.Store(ptr, at, value, [m], loc=b.loc))


def _gather(s: _Legalizer, b: Legal, op: t.Gather) -> None:
    ptr, offsets = s.whole(b, op.ptr), s.split(b, op.offsets)
    masks = [s.split(b, v) for v in op.mask]
    found: Lanes = []
    for k, at in enumerate(offsets):
        mask = [m[k] for m in masks]
        found.append(b.emit(t.Load(ptr, at, mask, ScalarType(op.dtype), loc=b.loc)))
    s.define(op, found)


def _scatter(s: _Legalizer, b: Legal, op: t.Scatter) -> None:
    ptr, offsets = s.whole(b, op.ptr), s.split(b, op.offsets)
    values = s.split(b, op.value)
    masks = [s.split(b, v) for v in op.mask]
    for k, (at, value) in enumerate(zip(offsets, values, strict=True)):
        b.ops.append(t.Store(ptr, at, value, [m[k] for m in masks], loc=b.loc))


def _if(s: _Legalizer, b: Legal, op: t.If) -> None:
    pred = s.whole(b, op.pred)
    if isinstance(pred.op, t.Const):
        taken = op.then if pred.op.value else op.otherwise
        for inner in taken.ops:
            s.op(b, inner)
        for result, value in zip(op.results, taken.outputs, strict=True):
            if value in s.lanes:
                s.lanes[result] = s.lanes[value]
            else:
                s.env[result] = s.env.get(value, value)
        return
    regions = [s.block(r, b) for r in op.regions]
    if op.results and all(_is_cheap(r) for r in regions):
        then, otherwise = (_inlined(b, r) for r in regions)
        for result, x, y in zip(op.results, then, otherwise, strict=True):
            s.env[result] = b.map("select", pred, x, y)
        return
    fresh = op.rebuild([pred], regions)
    b.ops.append(fresh)
    s.env.update(zip(op.results, fresh.results, strict=True))


CHEAP = 4
"""A branch of so many instructions is run in any case, and its result selected."""


def _is_cheap(region: Block) -> bool:
    """Whether a branch costs less than the jump around it."""
    ops = [op for op in region.ops if not isinstance(op, t.Const)]
    return (
        len(ops) <= CHEAP
        and all(isinstance(op, (t.Map, t.Cast, t.Bitcast)) for op in ops)
        and all(isinstance(v.type, ScalarType) for v in region.outputs)
    )


def _inlined(b: Legal, region: Block) -> Lanes:
    """The outputs of a legal block whose ops are added here."""
    env: dict[Value, Value] = {}
    for op in region.ops:
        env[op.result] = b.emit(op.rebuild([env.get(v, v) for v in op.operands]))
    return [env.get(v, v) for v in region.outputs]


def _atomic(s: _Legalizer, b: Legal, op: g.Atomic | g.AtomicReduce) -> None:
    fresh = op.rebuild([s.whole(b, v) for v in op.operands])
    assert isinstance(fresh, (g.Atomic, g.AtomicReduce))
    if is_native(fresh, s.machine):
        b.ops.append(fresh)
        s.env.update(zip(op.results, fresh.results, strict=True))
        return
    found = expand_atomic(b, fresh)
    if found is not None:
        s.env[op.result] = found


def _refuse(s: _Legalizer, b: Legal, op: Op) -> None:
    del s, b
    raise CompileError(f"legalize_gpu: {op.name} in a kernel of a GPU", loc=op.loc)


_RULES: dict[type[Op], Callable[..., None]] = {
    t.Map: _map,
    t.Cast: _cast,
    t.Bitcast: _bitcast,
    t.Lanes: _lanes,
    t.Splat: _splat,
    t.Extract: _extract,
    t.Insert: _insert,
    t.Shuffle: _shuffle,
    t.ReduceLanes: _reduce_lanes,
    t.Load: _load,
    t.Store: _store,
    t.Gather: _gather,
    t.Scatter: _scatter,
    t.If: _if,
    t.Call: _refuse,
    t.Parallel: _refuse,
    t.Together: _refuse,
    t.Limit: _refuse,
    t.BadAccess: _refuse,
    t.Apply: _refuse,
    g.Pack: _pack,
    g.Atomic: _atomic,
    g.AtomicReduce: _atomic,
}


def legalize_gpu(func: Func, machine: Gpu) -> Func:
    """A kernel with only what the PTX writer has rows for.

    Args:
        func: one kernel; what it calls has been inlined.
        machine: the GPU.
    """
    return func.with_body(_Legalizer(machine).block(func.body))


