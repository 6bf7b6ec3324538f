"""Programs that run once for each block of an array become one kernel.

    graph.blocks(%x, ...) {counts=[4, 8], cuts=[[0, 1, -1]], ...} body(%a) { a program }
    ==>
    schedule.kernel(%x) {
      schedule.each {axes=[block0: 4, block1: 8], part=part: 32} { the nests of the program }
    }

A block of an operand is the operand itself, read further on. What the program stores for itself is
memory of a part, which each of its blocks uses again; what it yields is stored where it belongs in
the results, or added to what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from math import prod

from tessera.graph.ops.blocks import Blocks, Cut
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, substitute, sym
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.cost import tensor
from tessera.schedule.dependence import inner_axes
from tessera.schedule.grains import grain_of
from tessera.schedule.nestplan import AxisNames
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis, BufType, buffer_type

PARTS = 16
"""Parts that the blocks are dealt out to: enough for many threads, few enough that what they store
is small."""

FEW = 4
"""Fewer points that need nothing of each other leave threads without work."""

PARTIAL = 8
"""Parts that have sums of their own then, which are added in the end."""

PARTIAL_BYTES = 1 << 26
"""The most that these may take."""

Index = tuple[Dim, ...]
Moved = Callable[[Index], Index]


@dataclass(frozen=True)
class Program:
    """A program of kernels.

    Attributes:
        args: its arguments.
        code: kernels.
        outputs: results of theirs.
    """

    args: Sequence[Value]
    code: Sequence[Op]
    outputs: Sequence[Value]


def each_block(
    op: Blocks, inputs: Sequence[Value], program: Program, names: AxisNames
) -> ops.Kernel:
    """The kernel.

    Args:
        op: what runs for each block.
        inputs: the buffers of its operands.
        program: its body, on buffers that are blocks.
        names: of axes.
    """
    return _EachBlock(op, inputs, program, names).kernel()


class _EachBlock:
    """The kernel in the making.

    Attributes:
        loops: the axes.
        part: the axis of parts.
        env: for each value of the program that of the kernel; for a buffer, what it is a part of.
        where: where a buffer's elements are there.
        added: the buffers that are added to what is there.
        own: the kernel's arguments, by the buffers that they are.
        temps: memory of the parts.
        is_partial: whether parts have sums of their own.
        partial: these.
        before: nests that run first.
        after: nests that run in the end.
    """

    def __init__(
        self, op: Blocks, inputs: Sequence[Value], program: Program, names: AxisNames
    ) -> None:
        self.op = op
        self.program = program
        labels = op.names or [f"{names.prefix}block{k}" for k in range(len(op.counts))]
        self.loops = [Axis(name, n) for name, n in zip(labels, op.counts, strict=True)]
        last = len(op.counts) - 1
        # What goes on along the last loop does, whatever threads there are.
        in_order = {last} if op.firsts or len(op.summed) > 1 else set[int]()
        points, most = [
            prod([n for k, n in enumerate(op.counts) if k not in loops])
            for loops in (op.summed, in_order)
        ]
        added = sum([
            size_of(prod(tensor(v).shape)) * tensor(v).dtype.itemsize
            for k, v in enumerate(op.results)
            if op.is_sum(k) and not {*range(last + 1)} <= {*op.outs[k], *in_order}
        ])
        partial = min(most, PARTIAL, PARTIAL_BYTES // max(added, 1))
        self.is_partial = points < min(FEW, partial)
        self.ordered = in_order if self.is_partial else op.summed
        count = partial if self.is_partial else min(points, PARTS)
        self.part = Axis(f"{names.prefix}part", count)
        self.env: dict[Value, Value] = {}
        self.where: dict[Value, Moved] = {}
        self.added: set[Value] = set()
        self.own: dict[Value, Value] = {}
        for value in inputs:
            self.own.setdefault(value, Value(value.type, value.name))
        self.temps: list[Value] = []
        self.partial: list[Value] = []
        self.before: list[Op] = []
        self.after: list[Op] = []
        for arg, value, cut in zip(program.args, inputs, op.cuts, strict=False):
            self.bind(arg, self.own[value], cut)

    def is_parted(self, cut: Cut) -> bool:
        """Whether parts have sums of their own of a result."""
        loops = {*range(len(self.loops))} - self.ordered
        return self.is_partial and not loops <= {*cut}

    def bind(self, block: Value, whole: Value, cut: Cut, in_parts: bool = False) -> None:
        """Says which part of a buffer a block is; of one for each part, perhaps."""
        assert isinstance(block.type, BufType)
        pairs = list(zip(block.type.shape, cut, strict=True))
        first = [0 if k < 0 else sym(self.loops[k].name) * dim for dim, k in pairs]
        self.env[block] = whole
        lead: Index = (sym(self.part.name),) if in_parts else ()
        self.where[block] = lambda index: (
            *lead, *[i + f for i, f in zip(index, first, strict=True)]
        )  # fmt: skip

    def temporary(self, value: Value) -> None:
        """Gives a buffer of the program memory in each part."""
        assert isinstance(value.type, BufType)
        part = sym(self.part.name)
        shape = [substitute(dim, self.op.last) for dim in value.type.shape]
        type = BufType((self.part.extent, *shape), value.type.dtype)
        self.env[value] = Value(type, value.name)
        self.where[value] = lambda index: (part, *index)
        self.temps.append(self.env[value])

    def kernel(self) -> ops.Kernel:
        """The kernel."""
        op, loc = self.op, self.op.loc
        kernels: list[ops.Kernel] = []
        for one in self.program.code:
            assert isinstance(one, ops.Kernel)
            kernels.append(one)
        results = [Value(BufType(tensor(v).shape, tensor(v).dtype)) for v in op.results]
        copies = self.results(results, {v for one in kernels for v in one.inputs})
        nests = [*self.nests(kernels), *copies]
        count = self.part.extent
        assert isinstance(count, int)
        order = sorted(range(len(self.loops)), key=lambda k: (k in self.ordered, k))
        each = Each(
            tuple([self.loops[k] for k in order]),
            len(self.ordered),
            self.part,
            f"{prod(op.counts)} blocks, whose intermediate arrays stay in the cache",
            grain_of(count, prod(op.counts) / count * sum(map(work_of, nests))),
            op.steps,
            body=Block((), nests, ()),
            loc=loc,
        )
        stored = [*results, *self.partial, *self.temps]
        body = Block([*self.own.values(), *stored], [*self.before, each, *self.after], ())
        types = tuple([buffer_type(v) for v in stored])
        return ops.Kernel(
            list(self.own), types, temps=len(self.temps), label="blocks_" + kernels[0].label,
            reason="; ".join([one.reason for one in kernels]), body=body, loc=loc,
        )  # fmt: skip

    def results(self, results: Sequence[Value], read: Set[Value]) -> list[Op]:
        """Says where the outputs of the program are in the results; gives the nests that bring
        those there which the program stores for itself first, because it reads them."""
        copies: list[Op] = []
        states = len(results) - len(self.op.firsts)
        for arg, result, cut, first in zip(
            self.program.args[len(self.op.args) :],
            results[states:],
            self.op.outs[states:],
            self.op.firsts,
            strict=True,
        ):
            self.bind(arg, result, cut)
            self.before.append(_filled(result, first, self.op.loc))
        for k, (value, result, cut) in enumerate(
            zip(self.program.outputs, results, self.op.outs, strict=True)
        ):
            adds = self.op.is_sum(k)
            if adds and self.is_parted(cut):
                result = self.sum_of_parts(result)
            if adds:
                self.before.append(_filled(result, 0.0, self.op.loc))
            # A state is read until the step is over.
            is_read = k >= states or value in read or value in self.env
            if is_read or (adds and not _stored_once(value)):
                if value not in self.env:
                    self.temporary(value)
                copies.append(self.copy(value, result, cut, adds))
                continue
            self.bind(value, result, cut, adds and self.is_parted(cut))
            if adds:
                self.added.add(value)
        return copies

    def sum_of_parts(self, result: Value) -> Value:
        """The sums of the parts, which are added up in the end."""
        type, part = buffer_type(result), self.part
        partial = Value(BufType((part.extent, *type.shape), type.dtype))
        self.partial.append(partial)
        axes = tuple([Axis(f"i{k}", n) for k, n in enumerate(type.shape)])
        index = tuple([sym(axis.name) for axis in axes])
        load = ops.Load(partial, (), (sym("r0"), *index), loc=self.op.loc)
        body = Block([], [load], (load.result,))
        total = ops.Reduce((Axis("r0", part.extent),), SCALARS["add"], body, loc=self.op.loc)
        store = ops.Store(result, total.result, (), index, loc=self.op.loc)
        self.after.append(ops.Nest(axes, body=Block([], [total, store], ()), loc=self.op.loc))
        return partial

    def nests(self, kernels: Sequence[ops.Kernel]) -> list[Op]:
        """The nests of the program."""
        found: list[Op] = []
        for one in kernels:
            for value in one.results:
                if value not in self.env:
                    self.temporary(value)
            for arg, value in zip(one.body.args, (*one.inputs, *one.results), strict=True):
                self.env[arg], self.where[arg] = self.env[value], self.where[value]
                if value in self.added:
                    self.added.add(arg)
            found += [self.moved(nest) for nest in one.body.ops]
        return found

    def copy(self, value: Value, result: Value, cut: Cut, adds: bool) -> Op:
        """A nest that stores a block in a result."""
        buffer = buffer_type(value)
        axes = tuple([Axis(f"i{k}", n) for k, n in enumerate(buffer.shape)])
        index = tuple([sym(axis.name) for axis in axes])
        load = ops.Load(self.env[value], (), self.where[value](index), loc=self.op.loc)
        block = Value(buffer)
        env, where = self.env.copy(), self.where.copy()
        self.bind(block, result, cut, adds and self.is_parted(cut))
        store = ops.Store(block, load.result, (), index, loc=self.op.loc)
        if adds:
            self.added.add(block)
        found = [load, *self.store(store, [self.env[block], load.result])]
        self.env, self.where = env, where
        return ops.Nest(axes, body=Block([], found, ()), loc=self.op.loc)

    def moved(self, op: Op) -> Op:
        """An op on the buffers that blocks are parts of."""
        regions: list[Block] = []
        for region in op.regions:
            code = self.code(region.ops)
            regions.append(Block([], code, [self.env.get(v, v) for v in region.outputs]))
        operands = [self.env.get(v, v) for v in op.operands]
        changes: dict[str, object] = {}
        if isinstance(op, (ops.Load, ops.Store, ops.Scan)) and op.buf in self.where:
            changes["index"] = self.where[op.buf](op.index)
        new = op.rebuild(operands, regions, **changes)
        self.env.update(zip(op.results, new.results, strict=True))
        return new

    def code(self, code: Sequence[Op]) -> list[Op]:
        """The ops of a region."""
        found: list[Op] = []
        for op in code:
            if isinstance(op, ops.Store) and op.buf in self.added:
                found += self.store(op, [self.env.get(v, v) for v in op.operands])
            else:
                found.append(self.moved(op))
        return found

    def store(self, op: ops.Store, operands: Sequence[Value]) -> list[Op]:
        """A store to a result, or one that adds to it."""
        index = self.where[op.buf](op.index)
        if op.buf not in self.added:
            return [op.rebuild(operands, index=index)]
        buf, value, *dyn = operands
        load = ops.Load(buf, tuple(dyn), index, op.where, loc=op.loc)
        total = ops.Map((load.result, value), SCALARS["add"], loc=op.loc)
        return [load, total, op.rebuild([buf, total.result, *dyn], index=index)]


def work_of(op: Op) -> float:
    """Additions that a nest takes, roughly."""
    axes = inner_axes(op) if not isinstance(op, ops.Nest) else op.axes
    inner = sum([work_of(one) for region in op.regions for one in region.ops])
    return max(inner, 1) * prod([size_of(axis.extent) for axis in axes])


def _stored_once(value: Value) -> bool:
    """Whether one store gives each element of a buffer its value."""
    kernel = value.op
    assert isinstance(kernel, ops.Kernel)
    arg = kernel.body.args[len(kernel.inputs) + kernel.results.index(value)]
    found = [one for one in walk(kernel.body) if arg in one.operands]
    return len(found) == 1 and isinstance(found[0], ops.Store) and found[0].combine is None


def _filled(buffer: Value, number: float, loc: Loc) -> ops.Nest:
    """A nest that fills a buffer with a number."""
    type = buffer_type(buffer)
    axes = tuple([Axis(f"i{k}", n) for k, n in enumerate(type.shape)])
    zero = ops.Const(number, type.dtype)
    store = ops.Store(buffer, zero.result, (), tuple([sym(axis.name) for axis in axes]))
    return ops.Nest(axes, body=Block([], [zero, store], ()), loc=loc)
