"""Makes every access to memory look whether it stays inside of its buffer: a mode for finding
mistakes of the compiler, in compiled code for CPUs.

    %v = target.load(%p, %i) : f32
    ==>
    %at = target.map([%i, 4]) {fn=mul}                     # the access is of bytes at .. at + 4
    %bad = at < %p.low | at + 4 > %p.high                  # the buffer, from where %p points
    %v = target.if(%bad) then() { target.bad_access(%at, %p.low, %p.high) {site=3} yield 0 }
                         otherwise() { yield target.load(%p, %i) }

In: Target IR before legalization, whose entry says by `target.limit` how long each buffer is. Out:
functions with pointers take, in front of their arguments, how far each reaches down and up; no
`target.limit` is left; an access outside is reported, reads zeros and writes nothing, so that the
program ends as it would have. With a mask, or where each lane has an offset of its own, lanes are
checked one by one, and only those that are inside run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tessera.dtypes import bool_, int64
from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import scalar
from tessera.ir.types import Type
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.panel_ops import DotPanels
from tessera.target.roots_ops import Roots
from tessera.target.types import PtrType
from tessera.tile.panel_ops import GROUP_BYTES

Access: TypeAlias = t.Load | t.Store | t.Gather | t.Scatter


@dataclass(frozen=True, slots=True)
class Site:
    """An access that is checked.

    Attributes:
        function: the name of the function that has it.
        what: `reads` or `writes`.
        size: bytes of an element.
        loc: where the user asked for it.
    """

    function: str
    what: str
    size: int
    loc: Loc


@dataclass(frozen=True, slots=True)
class _Reach:
    """How many bytes from a pointer on its buffer begins, which is at most 0, and ends."""

    low: Value
    high: Value


def check_bounds(module: Module) -> tuple[Module, tuple[Site, ...]]:
    """The module with checks, and what `target.bad_access` numbers: the accesses in order."""
    sites: list[Site] = []
    funcs = {name: _Checking(func, module, sites).run() for name, func in module.funcs.items()}
    return Module(funcs, module.main), tuple(sites)


class _Checking:
    """One function."""

    def __init__(self, func: Func, module: Module, sites: list[Site]) -> None:
        self.func = func
        self.sites = sites
        self.is_entry = func is module.entry
        self.env: dict[Value, Value] = {}
        self.reach: dict[Value, _Reach] = {}
        self.b = Build()

    def run(self) -> Func:
        """The function with checks."""
        front: list[Value] = []
        if not self.is_entry:
            for arg in self.func.args:
                if isinstance(arg.type, PtrType):
                    name = arg.name or "p"
                    low, high = Value(t.INDEX, f"{name}_low"), Value(t.INDEX, f"{name}_high")
                    self.reach[arg] = _Reach(low, high)
                    front += [low, high]
        body = self.block(self.func.body)
        return self.func.with_body(Block([*front, *body.args], body.ops, body.outputs))

    def block(self, block: Block) -> Block:
        """A block with checks; arguments stay the same values."""
        outer, self.b = self.b, Build()
        for op in block.ops:
            self.op(op)
        ops, self.b = self.b.ops, outer
        return Block(block.args, ops, [self.value(v) for v in block.outputs])

    def value(self, value: Value) -> Value:
        """What stands for a value now."""
        return self.env.get(value, value)

    def op(self, op: Op) -> None:
        """One op."""
        self.b.loc = op.loc
        operands = [self.value(v) for v in op.operands]
        if isinstance(op, t.Limit):
            # A place may be two buffers in turn: each has a pointer, and a reach, of its own.
            fresh = self.b.emit(t.PtrAdd(operands[0], self.index(0), loc=op.loc))
            self.env[op.result] = fresh
            self.reach[fresh] = _Reach(self.index(0), operands[1])
        elif isinstance(op, (t.Load, t.Store, t.Gather, t.Scatter)):
            self.access(op, operands)
        elif isinstance(op, DotPanels):
            self.panels(op, operands)
        elif isinstance(op, (t.Call, t.Parallel)):
            front = [v for arg in op.args for v in self.reaches(self.value(arg), op)]
            fresh = (
                t.Call((*front, *operands), op.callee, loc=op.loc)
                if isinstance(op, t.Call)
                else t.Parallel(
                    (*front, *operands[:-1]), operands[-1], op.callee, op.grain, loc=op.loc
                )
            )
            self.b.ops.append(fresh)
        else:
            regions = [self.block(region) for region in op.regions]
            fresh = op.rebuild(operands, regions)
            self.b.ops.append(fresh)
            self.env.update(zip(op.results, fresh.results, strict=True))
            self.follow(fresh)

    def follow(self, op: Op) -> None:
        """The reach of an op's result, if it is a pointer."""
        if isinstance(op, t.Alloca):
            size = op.count * op.dtype.itemsize
            self.reach[op.result] = _Reach(self.index(0), self.index(size))
        elif isinstance(op, Roots):
            self.reach[op.result] = _Reach(self.index(0), self.index(op.values().nbytes))
        elif isinstance(op, t.PtrAdd):
            known = self.reach.get(op.ptr)
            if known is not None:  # else it is one of the entry's, which a limit follows
                low, high = (self.b.map("sub", v, op.bytes) for v in (known.low, known.high))
                self.reach[op.result] = _Reach(low, high)

    def reaches(self, value: Value, op: Op) -> tuple[Value, ...]:
        """The reach of an argument, nothing for a number."""
        if not isinstance(value.type, PtrType):
            return ()
        known = self.reach.get(value)
        if known is None:
            raise CompileError(
                f"{op.name}: nothing says how long the buffer of {value!r} is", loc=op.loc
            )
        return known.low, known.high

    def index(self, number: int) -> Value:
        """An i64 constant."""
        return self.b.emit(t.Const(number, t.INDEX, loc=self.b.loc))

    # --- accesses -----------------------------------------------------------------------------

    def access(self, op: Access, operands: Sequence[Value]) -> None:
        """An access that is checked."""
        low, high = self.reaches(operands[0], op)
        is_store = isinstance(op, (t.Store, t.Scatter))
        type = operands[2].type if is_store else op.result.type
        size = t.element(type).itemsize
        site = len(self.sites)
        what = "writes" if is_store else "reads"
        self.sites.append(Site(self.func.name, what, size, op.loc))
        at = self.b.map("mul", operands[1], self.b.like(operands[1], size))
        lanes = t.lanes(type)
        is_lane_by_lane = lanes and (
            isinstance(op, (t.Gather, t.Scatter)) or (op.mask and t.lanes(op.mask[0].type))
        )
        if is_lane_by_lane:
            self.lanes(op, operands, at, lanes, _Report(site, low, high, size))
        else:
            self.whole(op, operands, at, max(lanes, 1) * size, _Report(site, low, high, size))

    def whole(
        self, op: Access, operands: Sequence[Value], at: Value, size: int, report: _Report
    ) -> None:
        """Elements one after the other, all of them or none."""
        b = self.b
        end = b.map("add", at, self.index(size))
        bad = b.map("or", b.map("lt", at, report.low), b.map("gt", end, report.high))
        if op.mask:  # one bool for all
            bad = b.map("and", bad, self.value(op.mask[0]))
        inner = op.rebuild(operands)
        call = t.BadAccess(at, report.low, report.high, report.site, loc=op.loc)
        if inner.results:
            zero = t.Const(_zero(inner.result.type), inner.result.type, loc=op.loc)
            then = Block([], [call, zero], [zero.result])
        else:
            then = Block([], [call], [])
        fresh = t.If(bad, then, Block([], [inner], inner.results), loc=op.loc)
        b.ops.append(fresh)
        self.env.update(zip(op.results, fresh.results, strict=True))

    def panels(self, op: DotPanels, operands: Sequence[Value]) -> None:
        """A product of panels, if both and its sums are inside of their buffers."""
        b, zero, end = self.b, self.index(0), self.value(op.end)
        row, item = (op.rows - 1) * op.row + op.depth, op.a.itemsize
        last = b.map("mul", b.map("sub", end, self.index(1)), self.index(op.step * item))
        right = b.map("mul", end, self.index(op.columns * op.depth * op.b.itemsize))
        sums = self.index(op.rows * op.columns * GROUP_BYTES)
        # Where there is no step before, sums begin at zero.
        before = b.map("select", b.map("gt", self.value(op.first), zero), sums, zero)
        out = (op.rows - 1) * op.width + op.columns
        wanted = [
            ("reads", item, b.map("add", last, self.index(row * item))),
            ("reads", op.b.itemsize, right),
            ("reads", GROUP_BYTES, before),
            ("writes", GROUP_BYTES, self.index(out * GROUP_BYTES)),
        ]
        fresh: Block = Block([], [op.rebuild(operands)], [])
        for pointer, (what, size, end) in zip(operands, wanted, strict=False):
            low, high = self.reaches(pointer, op)
            bad = b.map("or", b.map("lt", zero, low), b.map("gt", end, high))
            call = t.BadAccess(zero, low, high, len(self.sites), loc=op.loc)
            self.sites.append(Site(self.func.name, what, size, op.loc))
            fresh = Block([], [t.If(bad, Block([], [call], []), fresh, loc=op.loc)], [])
        b.ops += fresh.ops

    def lanes(
        self, op: Access, operands: Sequence[Value], at: Value, lanes: int, report: _Report
    ) -> None:
        """Lanes each by itself: those outside are masked off."""
        b = self.b
        if not t.lanes(at.type):  # consecutive elements
            steps = b.emit(t.Lanes(lanes, int64, loc=op.loc))
            places = b.map("mul", steps, b.like(steps, report.size))
            at = b.map("add", self.splat(at, lanes), places)
        end = b.map("add", at, b.like(at, report.size))
        bad = b.map(
            "or",
            b.map("lt", at, self.splat(report.low, lanes)),
            b.map("gt", end, self.splat(report.high, lanes)),
        )
        mask = [self.value(v) for v in op.mask]
        if mask:
            bad = b.map("and", bad, mask[0])
        some = b.emit(t.ReduceLanes(bad, scalar("or"), loc=op.loc))
        # The first of them, in memory.
        far = b.like(at, (1 << 63) - 1)
        first = b.emit(t.ReduceLanes(b.select(bad, at, far), scalar("min"), loc=op.loc))
        call = t.BadAccess(first, report.low, report.high, report.site, loc=op.loc)
        b.ops.append(t.If(some, Block([], [call], []), Block([], [], []), loc=op.loc))
        good = b.map("not", bad)
        if mask:
            fresh_mask = [b.map("and", good, mask[0]), *mask[1:]]
        elif isinstance(op, (t.Load, t.Gather)):
            type = op.result.type
            fresh_mask = [good, b.emit(t.Const(_zero(type), type, loc=op.loc))]
        else:
            fresh_mask = [good]
        fresh = _with_mask(op, operands, fresh_mask)
        b.ops.append(fresh)
        self.env.update(zip(op.results, fresh.results, strict=True))

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector of one number."""
        return self.b.emit(t.Splat(value, lanes, loc=self.b.loc))


@dataclass(frozen=True, slots=True)
class _Report:
    """What is said of an access outside."""

    site: int
    low: Value
    high: Value
    size: int


def _with_mask(op: Access, operands: Sequence[Value], mask: Sequence[Value]) -> Op:
    """The access with another mask."""
    match op:
        case t.Load():
            return t.Load(operands[0], operands[1], mask, op.type, op.align, loc=op.loc)
        case t.Store():
            return t.Store(
                operands[0], operands[1], operands[2], mask, op.align, op.streaming, loc=op.loc
            )
        case t.Gather():
            return t.Gather(operands[0], operands[1], mask, op.dtype, loc=op.loc)
        case t.Scatter():
            return t.Scatter(operands[0], operands[1], operands[2], mask, loc=op.loc)


def _zero(type: Type) -> bool | int:
    return False if t.element(type) is bool_ else 0
