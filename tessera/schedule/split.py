"""Splits reductions and scans of a GPU's program that would not fill the machine.

A block of threads reduces a row, or some columns. Where these are few, the axis is cut into parts
of `chunk` places, which are reduced side by side, and a second nest combines them, always in order:

    nest i: y[i] = f(reduce k < K: g(i, k))
    ==>
    nest p, i: part[p, i] = reduce k < chunk: g(i, p*chunk + k) if p*chunk + k < K
    nest i: y[i] = f(reduce p: part[p, i])

Reductions that need the results of others come after them, level by level. Axes of the nest on
which no reduction depends (a row that is normalised) are left to a last nest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Protocol

from tessera.dtypes import int64
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, ceildiv, divides, sym
from tessera.ir.order import SEQUENCE
from tessera.ir.types import ScalarType
from tessera.ir.walk import free_values, uses, walk
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses, dependence_of
from tessera.schedule.copying import Copy, Names, guarded
from tessera.schedule.dependence import inner_axes
from tessera.schedule.emit import without_dead
from tessera.schedule.grains import GRAIN, PROGRAMS
from tessera.schedule.heuristics_gpu import traffic
from tessera.schedule.machines import Gpu
from tessera.schedule.near_rows import near_rows
from tessera.schedule.ordering import is_cut, stated_part, whole
from tessera.schedule.rebuild import without_dead_kernels
from tessera.schedule.scan_casts import convert_scans
from tessera.schedule.sizes import power_below, size_of
from tessera.schedule.sort_limits import limit_sorts
from tessera.schedule.split_sort import SortRule, split_sort
from tessera.schedule.types import Axis, BufType, buffer_type

BLOCKS = 2
"""Blocks per multiprocessor below which a reduction is split."""

WAVE = 8
"""Blocks per multiprocessor that a split reduction has."""

ROW_CHUNK = 8192
"""The least places of a part where memory runs along the reduction."""

COLUMN_CHUNK = 64
"""The least places of a part where memory runs across the reduction."""

PARTS = 64
"""Programs that a CPU's threads share of a reduction that is split."""

COLUMNS = 64
"""Neighbouring columns in one program of a CPU."""

LINE_BYTES = 128
"""Bytes of neighbouring columns in one block."""


class Multiprocessors(Gpu, Protocol):
    """What splitting asks of a machine, besides what tiles do."""

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a copy moves, read and written."""
        ...


@dataclass
class Context:
    """What splitting a nest needs to know.

    Attributes:
        machine: the GPU; None for a CPU.
        facts: what is known of symbolic dims.
        names: for new axes.
        used: values of the program that something reads, for sorts.
        sorts: what a sort becomes.
        cores: of a CPU.
    """

    machine: Multiprocessors | None
    facts: Facts
    names: Names
    used: Container[Value] = ()
    sorts: SortRule | None = None
    cores: int = 1

    @property
    def gpu(self) -> Multiprocessors:
        """The GPU, for rules that only GPUs have."""
        assert self.machine is not None
        return self.machine


@dataclass
class Pieces:
    """What takes the place of a nest.

    Attributes:
        nests: in order.
        temps: their temporary buffers.
        reason: what was done.
    """

    nests: list[Op] = field(default_factory=list[Op])
    temps: list[Value] = field(default_factory=list[Value])
    reason: str = ""

    def buffer(self, type: BufType) -> Value:
        """A new temporary buffer."""
        value = Value(type)
        self.temps.append(value)
        return value


Rule = Callable[[ops.Nest, Context], "Pieces | None"]


def rewrite(
    func: Func,
    machine: Multiprocessors | None,
    rules: Iterable[Rule],
    facts: Facts | None = None,
    sorts: SortRule | None = None,
    cores: int = 1,
) -> Func:
    """The program with nests replaced by what the first rule that applies makes of them.

    Args:
        func: a program without tiles and places.
        machine: the GPU; None for a CPU.
        rules: each says what a nest becomes; None leaves it.
        facts: what is known of symbolic dims.
        sorts: what a sort becomes.
        cores: of a CPU.
    """
    taken = {*func.dims}
    for op in walk(func.body):
        taken.update(ops.bound_axes(op))
    used = () if sorts is None else uses(func.body)
    context = Context(machine, facts or Facts(), Names(taken), used, sorts, cores)
    return func.with_body(_block(func.body, {}, list(rules), context))


def split_for_threads(func: Func, cores: int, facts: Facts | None = None) -> Func:
    """The program with reductions, scans and scatters split that one thread of a CPU would have to
    do alone.

    How they are split depends on their sizes and the machine only, and so do results.
    """
    # These build on this module.
    from tessera.schedule.split_scan import split_scan
    from tessera.schedule.split_scatter import share_updates

    rules = (split_reduction, split_scan, share_updates)
    return rewrite(func, None, rules, facts, cores=cores)


def split(func: Func, machine: Multiprocessors, facts: Facts | None = None) -> Func:
    """The program with reductions, products and scans split that would not fill the machine."""
    # These build on this module.
    from tessera.schedule.split_products import split_products
    from tessera.schedule.split_scan import split_scan
    from tessera.schedule.split_scatter import split_scatter

    func = convert_scans(limit_sorts(func, facts or Facts()))
    rules = (split_reduction, split_products, split_scan, split_scatter)
    sorts = partial(split_sort, multiprocessors=machine.multiprocessors)
    return rewrite(func, machine, rules, facts, sorts)


def _block(block: Block, env: dict[Value, Value], rules: list[Rule], context: Context) -> Block:
    code: list[Op] = []
    for op in block.ops:
        operands = [env.get(v, v) for v in op.operands]
        results: Iterable[Value] = op.results
        if not isinstance(op, ops.Kernel):
            regions = [_block(region, env, rules, context) for region in op.regions]
            new = op.rebuild(operands, regions)
        else:
            sorts = context.sorts
            found = sorts and sorts(op, operands, context.used, context.names)
            if found is not None:
                new, kept = found
                results = [op.results[k] for k in kept]
            else:
                new = _kernel(op, operands, rules, context)
        env.update(zip(results, new.results, strict=False))
        code.append(new)
    return without_dead_kernels(Block(block.args, code, [env.get(v, v) for v in block.outputs]))


def _kernel(
    op: ops.Kernel, operands: Sequence[Value], rules: list[Rule], context: Context
) -> ops.Kernel:
    code: list[Op] = []
    temps: list[Value] = []
    reasons: dict[str, None] = {}
    for part in op.body.ops:
        pieces = None
        # Nests that share a launch have been arranged already.
        if isinstance(part, ops.Nest) and not (part.tile or op.joined or op.concurrent):
            pieces = next(filter(None, (rule(part, context) for rule in rules)), None)
        if pieces is None:
            code.append(part)
            continue
        code += pieces.nests
        temps += pieces.temps
        reasons[pieces.reason] = None
    if not reasons:
        new = op.rebuild(operands, op.regions)
        assert isinstance(new, ops.Kernel)
        return new
    types = (*op.types, *[buffer_type(v) for v in temps])
    body = Block([*op.body.args, *temps], code, ())
    return ops.Kernel(
        operands, types, temps=op.temps + len(temps), label=op.label,
        reason="; ".join([op.reason, *reasons]), body=body, loc=op.loc,
    )  # fmt: skip


def index_of(axes: Iterable[Axis]) -> tuple[Dim, ...]:
    """The element at the current point of some axes."""
    return tuple([sym(axis.name) for axis in axes])


# --- how many parts -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a reduction or scan looks like from outside.

    Attributes:
        rows: axes of the nest on which it depends.
        extent: of the axis that is cut.
        others: places of its other axes.
        blocks: blocks per multiprocessor that are enough.
    """

    rows: Sequence[Axis]
    extent: Dim
    others: int
    blocks: float = BLOCKS


def chunk_of(shape: Shape, found: Sequence[Access], context: Context) -> int:
    """Places of a part; 0 where the work fills the machine anyway, or is small.

    Args:
        shape: the reduction.
        found: the accesses inside.
        context: the machine.
    """
    weight = {id(a): traffic(a, shape.rows) for a in found}
    along = sum(weight[id(a)] for a in found if a.stride(a.inner[-1].name) == 1)
    across, columns = max(
        [
            (
                sum(weight[id(a)] for a in found if a.stride(axis.name) == 1),
                size_of(axis.extent),
            )
            for axis in shape.rows
        ],
        default=(0, 1),
    )
    blocks = prod([size_of(axis.extent) for axis in shape.rows])
    if blocks == 0:
        return 0
    if context.machine is None:
        near = near_rows(shape.extent, blocks, found) if across > along else 0
        if near and shape.others == 1:
            return near
        return _chunk_for_threads(shape, len(found), columns if across > along else 1, context)
    machine = context.machine.multiprocessors
    least = ROW_CHUNK
    if across > along:
        width = max(LINE_BYTES // max(a.dtype.itemsize for a in found), 1)
        blocks = blocks // columns * -(-columns // width)
        least = COLUMN_CHUNK
    if blocks >= machine * shape.blocks:
        return 0
    least = max(least // power_below(shape.others), 1)
    extent = shape.extent
    if not isinstance(extent, int):
        upper = context.facts.upper(extent)
        chunk = 2 * least
        return chunk if upper is None or upper > chunk else 0
    parts = min(power_below(WAVE * machine / blocks), extent // least)
    if parts < 2:
        return 0
    return -(-extent // parts // least) * least


def _chunk_for_threads(shape: Shape, loads: int, columns: int, context: Context) -> int:
    """Places of a part on a CPU; 0 where there are programs enough, or the work is small.

    Args:
        shape: the reduction.
        loads: accesses of a place.
        columns: places that lie side by side, of which one program has many.
        context: what is known of the sizes.
    """
    blocks = prod([size_of(axis.extent) for axis in shape.rows])
    programs = blocks // columns * -(-columns // COLUMNS)
    if programs >= PROGRAMS or shape.others == 0:
        return 0
    least = max(GRAIN // (2 * loads * shape.others * -(-blocks // programs)), 1)
    extent = shape.extent
    if not isinstance(extent, int):
        upper = context.facts.upper(extent)
        return least if upper is None or upper > least else 0
    parts = min(PARTS // programs, extent // least)
    if parts < 2:
        return 0
    chunk = -(-extent // parts)
    # One that divides the extent leaves no rest, which is a nest of its own.
    exact = (c for c in range(chunk, chunk + chunk // 4) if extent % c == 0)
    return next(exact, -(-chunk // 64) * 64 if chunk > 512 else chunk)


# --- reductions -----------------------------------------------------------------------------------


def split_reduction(nest: ops.Nest, context: Context) -> Pieces | None:
    """A nest with reductions, in parts."""
    heavy = (ops.Reduce, ops.ArgReduce, ops.Contract, ops.Scan)
    found = [op for op in nest.body.ops if isinstance(op, (ops.Reduce, ops.ArgReduce))]
    if (
        not found
        or nest.ordered
        or len(found) != sum(isinstance(x, heavy) for x in walk(nest.body))
    ):
        return None
    return _Reductions(nest, found, context).run()


@dataclass(frozen=True, eq=False)
class _Cut:
    """A reduction that is split.

    Attributes:
        op: the reduction.
        level: how many split reductions it needs, one after the other.
        at: which of its axes is cut.
        partial: the buffer of the parts' results.
    """

    op: ops.Reduce | ops.ArgReduce
    level: int
    at: int
    partial: Value

    @property
    def axis(self) -> Axis:
        """The axis that is cut."""
        return inner_axes(self.op)[self.at]


@dataclass(frozen=True)
class Span:
    """Parts that one nest reduces or scans.

    Attributes:
        axis: of the parts; None for a single one.
        number: which part it is.
        places: how many it has.
    """

    axis: Axis | None
    number: Dim
    places: Dim


def spans_of(
    name: str, extent: Dim, chunk: int, context: Context, is_known: bool = True
) -> tuple[Axis, list[Span]]:
    """The axis of parts, and the parts.

    A block of a GPU masks what is beyond the end. A loop of a CPU would test each place for it, so
    the last places are a part of their own there, which no loop over parts has.
    """
    if context.machine is not None or not is_known or divides(chunk, extent, context.facts):
        part = Axis(name, ceildiv(extent, chunk))
        return part, [Span(part, sym(name), chunk)]
    full = extent // chunk
    spans = [Span(Axis(name, full), sym(name), chunk), Span(None, full, extent - full * chunk)]
    return Axis(name, full + 1), spans


class _Reductions:
    """Splits the reductions of one nest."""

    def __init__(
        self, nest: ops.Nest, found: Sequence[ops.Reduce | ops.ArgReduce], context: Context
    ) -> None:
        self.nest = nest
        self.found = found
        self.context = context
        self.pieces = Pieces()
        dependence = dependence_of(nest.body)
        used = frozenset[str]().union(*[dependence.ops[op] for op in found])
        self.rows = [axis for axis in nest.axes if axis.name in used]
        self.part = Axis(context.names.fresh("p"), 0)
        self.spans: list[Span] = []
        self.chunk = 0
        self.cuts: dict[Op, _Cut] = {}
        self.totals: dict[Op, Value] = {}

    def run(self) -> Pieces | None:
        """The nests; None if nothing is split."""
        axes = [max(inner_axes(op), key=lambda axis: size_of(axis.extent)) for op in self.found]
        k = max(range(len(axes)), key=lambda k: size_of(axes[k].extent))
        longest, axis = self.found[k], axes[k]
        others = prod([size_of(a.extent) for a in inner_axes(longest) if a is not axis])
        inside = [a for a in accesses(self.nest, self.context.facts) if a.inner]
        shape = Shape(self.rows, axis.extent, others)
        stated = stated_part(self.found, axis.extent, self.context.facts)
        found = chunk_of(shape, inside, self.context) if inside and stated is None else 0
        self.chunk = found if stated is None else stated
        if not self.chunk:
            return None
        self._find_parts(axis.extent)
        self._find_cuts(axis.extent)
        levels = 1 + max(cut.level for cut in self.cuts.values())
        has_columns = len(self.rows) < len(self.nest.axes)
        for level in range(levels):
            self.partial(level)
            if level < levels - 1 or has_columns:
                self.combined(level)
        self.last(levels - 1)
        self.pieces.reason = f"reduced in {self.part.extent} parts of {self.chunk} places"
        return self.pieces

    def _find_parts(self, extent: Dim) -> None:
        """Where the parts lie."""
        is_known = isinstance(extent, int) or all(isinstance(op, ops.Reduce) for op in self.found)
        self.part, self.spans = spans_of(self.part.name, extent, self.chunk, self.context, is_known)

    def _find_cuts(self, extent: Dim) -> None:
        """The reductions along an axis of this extent are cut."""
        levels: dict[Value, int] = {}
        for op in self.nest.body.ops:
            level = max([levels.get(v, 0) for v in free_values(Block([], [op], ()))], default=0)
            axes = inner_axes(op)
            at = next((k for k, a in enumerate(axes) if a.extent == extent), -1)
            if isinstance(op, (ops.Reduce, ops.ArgReduce)) and at >= 0 and is_cut(op, self.chunk):
                dims = (self.part.extent, *[axis.extent for axis in self.rows])
                assert isinstance(op.result.type, ScalarType)
                partial = self.pieces.buffer(BufType(dims, op.result.type.dtype))
                self.cuts[op] = _Cut(op, level, at, partial)
                level += 1
            levels.update(dict.fromkeys(op.results, level))

    def partial(self, level: int) -> None:
        """Nests that reduce the parts."""
        for span in self.spans:

            def made(cut: _Cut, copy: Copy, code: list[Op], span: Span = span) -> Value | None:
                if cut.level != level:
                    return self.loaded(cut, code)
                value = self.reduced_part(cut, span, copy, code)
                place = (span.number, *index_of(self.rows))
                code.append(ops.Store(cut.partial, value, (), place))
                return None

            axes = self.rows if span.axis is None else (span.axis, *self.rows)
            self.add(axes, made, stores=False)

    def combined(self, level: int) -> None:
        """A nest that stores the results of a level."""

        def made(cut: _Cut, copy: Copy, code: list[Op]) -> Value | None:
            if cut.level != level:
                return self.loaded(cut, code)
            value = self.total(cut, copy, code)
            assert isinstance(value.type, ScalarType)
            dims = tuple([axis.extent for axis in self.rows])
            buffer = self.pieces.buffer(BufType(dims, value.type.dtype))
            totals[cut.op] = buffer
            code.append(ops.Store(buffer, value, (), index_of(self.rows)))
            return None

        totals: dict[Op, Value] = {}
        self.add(self.rows, made, stores=False)
        self.totals.update(totals)

    def last(self, level: int) -> None:
        """The nest that stores what the original one does."""

        def made(cut: _Cut, copy: Copy, code: list[Op]) -> Value | None:
            if cut.level == level and cut.op not in self.totals:
                return self.total(cut, copy, code)
            return self.loaded(cut, code)

        self.add(self.nest.axes, made, stores=True)

    def add(
        self,
        axes: Sequence[Axis],
        made: Callable[[_Cut, Copy, list[Op]], Value | None],
        stores: bool,
    ) -> None:
        """A nest with the code of the original one, in which `made` takes the place of the
        reductions that are cut; what needs one that is not made is left out."""
        copy = Copy()
        code: list[Op] = []
        missing: set[Value] = set()
        for op in self.nest.body.ops:
            if isinstance(op, ops.Store) and not stores:
                continue
            if not missing.isdisjoint(free_values(Block([], [op], ()))):
                missing.update(op.results)
                continue
            cut = self.cuts.get(op)
            if cut is None:
                code.append(copy.op(op))
                continue
            value = made(cut, copy, code)
            if value is None:
                missing.add(cut.op.result)
            else:
                copy.env[cut.op.result] = value
        body = Block([], without_dead(code), ())
        self.pieces.nests.append(ops.Nest(tuple(axes), body=body, loc=self.nest.loc))

    # --- values -------------------------------------------------------------------------------

    def loaded(self, cut: _Cut, code: list[Op]) -> Value | None:
        """The result of a reduction that is complete."""
        buffer = self.totals.get(cut.op)
        if buffer is None:
            return None
        load = ops.Load(buffer, (), index_of(self.rows), loc=cut.op.loc)
        code.append(load)
        return load.result

    def guard(self, axis: Axis) -> tuple[Dim, ...]:
        """The condition that a place of a part exists."""
        if len(self.spans) > 1 or divides(self.chunk, axis.extent, self.context.facts):
            return ()
        return (axis.extent - 1 - sym(axis.name),)

    def reduced_part(self, cut: _Cut, span: Span, copy: Copy, code: list[Op]) -> Value:
        """The reduction of one part; of an extreme its place."""
        op, axis = cut.op, cut.axis
        begin = span.number * self.chunk
        guard = self.guard(axis)
        inner = Copy({axis.name: begin + sym(axis.name)}, {}, guard, dict(copy.env))
        body = inner.block(op.body)
        places = tuple([e - begin for e in guard])
        value = guarded(body.ops, body.outputs[0], places, (), op.fn)
        body = Block([], body.ops, (value,))
        short = Axis(axis.name, span.places)
        if isinstance(op, ops.ArgReduce):
            found = ops.ArgReduce(short, op.fn, body, loc=op.loc)
            place = ops.Index((found.result,), begin + sym("$0"))
            code += [found, place]
            return place.result
        axes = tuple([short if a is axis else a for a in op.axes])
        reduced = ops.Reduce(axes, op.fn, body, whole(op.order), loc=op.loc)
        code.append(reduced)
        return reduced.result

    def total(self, cut: _Cut, copy: Copy, code: list[Op]) -> Value:
        """The result of a reduction from those of its parts."""
        op = cut.op
        load = ops.Load(cut.partial, (), index_of((self.part, *self.rows)), loc=op.loc)
        if isinstance(op, ops.Reduce):
            body = Block([], [load], (load.result,))
            order = None if op.order is None else SEQUENCE
            reduced = ops.Reduce((self.part,), op.fn, body, order, loc=op.loc)
            code.append(reduced)
            return reduced.result
        # The extremes themselves are computed again from their places.
        guard = self.guard(op.axis)
        inner = Copy({}, {op.axis.name: load.result}, guard, dict(copy.env))
        copied = inner.block(op.body)
        body_ops: list[Op] = [load, *copied.ops]
        exists = (op.axis.extent - 1 - sym("$0"),) if guard else ()
        value = guarded(body_ops, copied.outputs[0], exists, (load.result,), op.fn)
        best = ops.ArgReduce(self.part, op.fn, Block([], body_ops, (value,)), loc=op.loc)
        place = ops.Load(cut.partial, (best.result,), (sym("$0"), *index_of(self.rows)))
        code += [best, place]
        assert place.result.type == ScalarType(int64)
        return place.result
