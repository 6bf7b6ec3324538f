"""Lowers Graph IR to Schedule IR.

    in:  a closed Graph function
    out: a program over buffers: kernels in order, loops and conditionals; nothing is tiled or
        placed yet

1. `prepare` inlines calls, and writes scans as loops.
2. `fusion` decides which values are stored and what each nest computes.
3. `grouping` puts stored values over the same points into one nest.
4. `emit` writes the nests, `axes` splits and merges their axes.

No step is told about single ops: there is one rule per family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.dtypes import int64
from tessera.errors import CompileError
from tessera.graph.ops.blocks import Blocks
from tessera.graph.ops.checkpoint import Barrier
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.ops.library import LibraryCall, refusal
from tessera.graph.ops.scan import Scan, Unwritten
from tessera.graph.ops.sort import Sort
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.intexpr import Dim, Facts, is_nonneg, symbols
from tessera.ir.loc import Loc
from tessera.ir.ranges import guarded_below
from tessera.ir.walk import walk
from tessera.schedule import contractions, ops
from tessera.schedule.axes import collapse, split
from tessera.schedule.blocks import Program, each_block
from tessera.schedule.cost import tensor
from tessera.schedule.emit import NestEmitter
from tessera.schedule.fusion import Fusion
from tessera.schedule.grouping import Group, Grouping, label, reason
from tessera.schedule.join_columns import join
from tessera.schedule.machines import Cpu, Gpu
from tessera.schedule.nestplan import AxisNames, Decision, NestPlan
from tessera.schedule.pieces import cut
from tessera.schedule.prepare import prepare
from tessera.schedule.recurrence import recurrence
from tessera.schedule.row_grouping import RowGrouping, apart
from tessera.schedule.strategy import CPU, GPU, Strategy
from tessera.schedule.types import Axis, BufType
from tessera.schedule.words import layout_of


@dataclass(frozen=True)
class Options:
    """What `from_graph` may be told.

    Attributes:
        strides: for each input its element strides, None for row-major; () for all row-major. New
            symbols in them become
            dims of the program.
        facts: what is known of symbolic dims.
        reshape_axes: whether axes are split and merged.
        strategy: how values are fused.
    """

    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    facts: Facts | None = None
    reshape_axes: bool = True
    strategy: Strategy = CPU


@dataclass(frozen=True)
class Lowered:
    """A program, why it is as it is, and the buffers of those Graph values that it stores."""

    func: Func
    decisions: tuple[Decision, ...]
    buffers: Mapping[Value, Value]


def from_graph(func: Func, options: Options | None = None) -> Func:
    """The program of a Graph function; see `lower`."""
    return lower(func, options).func


def lower(
    func: Func,
    options: Options | None = None,
    machine: Cpu | Gpu | None = None,
    is_prepared: bool = False,
) -> Lowered:
    """Lowers a closed Graph function.

    Args:
        func: the function; its symbolic dims stay symbolic.
        options: see `Options`.
        machine: what the program is for; a GPU decides the strategy.
        is_prepared: whether the body is what `prepare` gives; then kernels are not joined, so that
            the buffers of all values are there.

    Returns:
        The program and the decisions behind it. The program's outputs are contiguous buffers, each
        of its own.
    """
    options = options or Options()
    if isinstance(machine, Gpu):
        options = replace(options, strategy=GPU)
    args: list[Value] = []
    for k, arg in enumerate(func.args):
        strides = options.strides[k] if options.strides else None
        args.append(Value(buffer_type(arg, strides), arg.name))
    dims = dict.fromkeys(func.dims)
    for arg in args:
        for dim in arg.type.dims():
            dims.update(dict.fromkeys(sorted(symbols(dim))))
    lowering = _Lowering(options, AxisNames(dims), guarded_below(func))
    buffers = dict(zip(func.args, args, strict=True))
    code, outputs = lowering.block(func.body, buffers, is_prepared=is_prepared)
    program = Func(func.name, Block(args, code, outputs), tuple(dims), func.attrs)
    if isinstance(machine, Gpu) and not is_prepared:
        program = join(program, machine)
    return Lowered(program, tuple(lowering.decisions), buffers)


def buffer_type(value: Value, strides: tuple[Dim, ...] | None = None) -> BufType:
    """The buffer that holds a Graph value."""
    found = tensor(value)
    return BufType(found.shape, found.dtype, strides)


class _Lowering:
    def __init__(self, options: Options, names: AxisNames, below: int | None) -> None:
        self.options = options
        self.names = names
        self.below = below
        self.facts = options.facts or Facts()
        self.decisions: list[Decision] = []
        self.hoisted: list[Op] = []

    def block(
        self,
        block: Block,
        env: dict[Value, Value],
        kept: Sequence[Value] = (),
        is_prepared: bool = False,
    ) -> tuple[list[Op], list[Value]]:
        """Lowers a block whose arguments `env` maps to buffers.

        Args:
            block: Graph ops.
            env: program values; gains those of the block.
            kept: arguments that may be outputs; others are copied.
            is_prepared: whether it is what `prepare` gives.
        """
        strategy = self.options.strategy
        block = block if is_prepared else prepare(block, strategy, below=self.below)
        fusion = Fusion(block, self.facts, self.names, strategy)
        grouping = RowGrouping(self.names, strategy)
        groups = grouping.run(fusion.run().roots)
        ends = [_behind_barriers(output) for output in block.outputs]
        if other := apart(fusion.again, _with_stored(groups, grouping, ends)):
            fusion = Fusion(block, self.facts, self.names, strategy, other)
            grouping = RowGrouping(self.names, strategy)
            groups = grouping.run(fusion.run().roots)
        self.decisions += fusion.plan.decisions
        outputs: list[Value] = []
        for value in ends:
            if (value in env and value not in kept) or value in outputs:
                target = Value(value.type, value.name)
                group = Group([], None, len(groups))
                group.add(fusion.copy(value, target))
                groups.append(group)
                value = target
            outputs.append(value)
        code: list[Op] = []
        for group, stored in _with_stored(groups, grouping, outputs):
            first = group.roots[0].op
            if isinstance(first, Barrier):
                # Its place among the groups has kept what reads it behind it.
                env.update(zip(first.results, [env[v] for v in first.xs], strict=True))
                continue
            op, values = self.group(group, stored, env)
            env.update(zip(values, op.results, strict=False))
            code += self.hoisted
            code.append(op)
            self.hoisted = []
        return code, [env[v] for v in outputs]

    def group(
        self, group: Group, stored: set[Value], env: dict[Value, Value]
    ) -> tuple[Op, Sequence[Value]]:
        """One op of the program, and the Graph values of its results."""
        op = group.roots[0].op
        if group.plans or op is None:
            return self.kernel(group, stored, env)
        if isinstance(op, Sort):
            return self.sort(op, group, env), op.results
        if isinstance(op, While):
            keeps = self.options.strategy.keeps_loops
            found = self.recurrence(op, group, env) if keeps else None
            return found or self.loop(op, env), op.results
        if isinstance(op, Scan):
            found = self.recurrence(op, group, env)
            assert found is not None
            return found, op.results
        if isinstance(op, Cond):
            return self.branches(op, env), op.results
        if isinstance(op, Blocks):
            return self.blocks(op, env), op.results
        if isinstance(op, Unwritten):
            types = tuple([buffer_type(v) for v in op.results])
            body = Block([Value(t) for t in types], [], ())
            return ops.Kernel((), types, label=label(group), body=body, loc=op.loc), op.results
        if isinstance(op, HostCall):
            return self.host_call(op, op.function, env), op.results
        if isinstance(op, LibraryCall):
            if self.options.strategy is not CPU:
                raise refusal(op)
            function = LibraryFunction(op.routine, op.options())
            return self.host_call(op, function, env), op.results
        raise CompileError(f"schedule: no lowering for {op.name}", loc=op.loc)

    def kernel(
        self, group: Group, stored: set[Value], env: dict[Value, Value]
    ) -> tuple[Op, list[Value]]:
        """A kernel of nests."""
        plans = group.plans
        own = set(group.targets)
        reads: dict[Value, None] = {}
        for plan in plans:
            for member in reversed(plan.members):
                if member.op is None and member.key.value not in own:
                    reads[member.key.value] = None
        inputs = [env[v] for v in reads]
        targets = [v for v in group.targets if v in stored]
        types = tuple([buffer_type(v) for v in targets])
        args = [Value(v.type, v.name) for v in inputs]
        args += [Value(t, v.name) for t, v in zip(types, targets, strict=True)]
        buffers = dict(zip([*reads, *targets], args, strict=True))
        # The plans of several roots share one nest; a root with several has one nest for each.
        if group.parts:
            found = [[nest for root in part for nest in root.nests] for part in group.parts]
            nests = [nest for part in found for nest in self.bundle(part, buffers, stored)]
        elif len(group.roots) > 1:
            nests = self.bundle(plans, buffers, stored)
        else:
            nests = [NestEmitter([plan], buffers, stored).run() for plan in plans]
        if self.options.strategy.cuts_pieces:
            nests = [piece for nest in nests for piece in cut(nest, self.facts)]
        if self.options.reshape_axes:
            nests = [split(nest, self.facts) for nest in nests]
            if self.options.strategy.finds_contractions:
                nests = [contractions.find(nest) for nest in nests]
            nests = [collapse(nest, self.facts) for nest in nests]
        loc = next((root.op.loc for root in group.roots if root.op is not None), Loc.unknown)
        used = {v for nest in nests for op in walk(nest.body) for v in op.operands}
        inputs = [v for v, arg in zip(inputs, args, strict=False) if arg in used]
        args = [v for k, v in enumerate(args) if k >= len(reads) or v in used]
        body = Block(args, nests, ())
        kernel = ops.Kernel(
            inputs,
            types,
            label=label(group),
            reason=reason(group),
            concurrent=bool(group.parts),
            body=body,
            loc=loc,
        )
        return kernel, targets

    def bundle(
        self, plans: Sequence[NestPlan], buffers: dict[Value, Value], stored: set[Value]
    ) -> list[ops.Nest]:
        """One nest for several plans; what belongs to rows has a nest of its own where the rows may
        have no elements, and no point of the common nest would store it."""
        rank = max(len(plan.axes) for plan in plans)
        rows = [plan for plan in plans if len(plan.axes) < rank]
        apart = {s.target for plan in rows for s in plan.stores if s.target in stored}
        longest = next(plan for plan in plans if len(plan.axes) == rank)
        shortest = min(len(plan.axes) for plan in plans)
        if not apart or all(self.is_filled(axis) for axis in longest.axes[shortest:]):
            return [NestEmitter(plans, buffers, stored).run()]
        return [
            NestEmitter(rows, buffers, apart).run(),
            NestEmitter(plans, buffers, stored - apart).run(),
        ]

    def is_filled(self, axis: Axis) -> bool:
        """Whether an axis is known to have points."""
        return is_nonneg(axis.extent - 1, self.facts)

    def sort(self, op: Sort, group: Group, env: dict[Value, Value]) -> Op:
        """A kernel that sorts, with room for words or permutations."""
        inputs = [env[v] for v in op.operands]
        outputs = [buffer_type(v) for v in op.results]
        keys = [tensor(v).dtype for v in op.operands[: op.num_keys]]
        count = outputs[0].shape[op.axis]
        layout = layout_of(keys, len(op.operands) - op.num_keys, count)
        words = (int64,) if layout is None else layout.dtypes
        temps = [BufType(outputs[0].shape, dtype) for dtype in words] * 2
        types = (*outputs, *temps)
        args = [Value(t) for t in (*[v.type for v in inputs], *types)]
        n = len(inputs)
        inner = ops.Sort(
            args[:n],
            args[n : 2 * n],
            args[2 * n :],
            axis=op.axis,
            num_keys=op.num_keys,
            descending=op.descending,
            loc=op.loc,
        )
        return ops.Kernel(
            inputs,
            types,
            temps=len(temps),
            label=label(group),
            reason=reason(group),
            body=Block(args, [inner], ()),
            loc=op.loc,
        )

    def host_call(self, op: Op, function: HostFunction, env: dict[Value, Value]) -> Op:
        """The call, on buffers."""
        inputs = [env[v] for v in op.operands]
        if any(isinstance(v.type, BufType) and v.type.strides is not None for v in inputs):
            raise CompileError("schedule: a host function is given a strided buffer", loc=op.loc)
        types = tuple([buffer_type(v) for v in op.results])
        return ops.HostCall(inputs, function, types, loc=op.loc)

    def loop(self, op: While, env: dict[Value, Value]) -> Op:
        """A loop over programs."""
        init = [env[v] for v in op.init]
        blocks: list[Block] = []
        hoisted: list[Op] = []
        for region in (op.cond, op.body):
            split = len(op.consts)
            carried = [Value(buffer_type(v), v.name) for v in region.args[split:]]
            inner = {a: env[v] for a, v in zip(region.args, op.consts, strict=False)}
            inner.update(zip(region.args[split:], carried, strict=True))
            kept = region.outputs if region is op.cond else region.args[split:]
            code, outputs = self.block(region, inner, kept)
            before, code = _hoist(code, carried, outputs)
            hoisted += before
            blocks.append(Block(carried, code, outputs))
        self.hoisted = hoisted
        init_types = [v.type for v in blocks[1].args]
        if [v.type for v in init] != init_types:
            raise CompileError("schedule: a loop carries a strided buffer", loc=op.loc)
        return ops.While(init, cond=blocks[0], body=blocks[1], loc=op.loc)

    def recurrence(self, op: Scan | While, group: Group, env: dict[Value, Value]) -> Op | None:
        """A kernel with a loop inside its nest; None where the loop is not of this kind."""
        operands = list(dict.fromkeys(op.operands))
        inputs = [env[v] for v in operands]
        types = tuple([buffer_type(v) for v in op.results])
        args = [Value(t) for t in (*[v.type for v in inputs], *types)]
        buffers = dict(zip((*operands, *op.results), args, strict=True))
        nest = recurrence(op, buffers, self.names, self.facts)
        if nest is None:
            return None
        if self.options.reshape_axes:
            nest = collapse(nest, self.facts)
        used = {v for one in walk(nest.body) for v in one.operands}
        kept = [k for k, arg in enumerate(args) if k >= len(inputs) or arg in used]
        return ops.Kernel(
            [inputs[k] for k in kept if k < len(inputs)],
            types,
            label=label(group),
            reason="a loop of steps that need no other elements, inside the nest",
            body=Block([args[k] for k in kept], [nest], ()),
            loc=op.loc,
        )

    def blocks(self, op: Blocks, env: dict[Value, Value]) -> Op:
        """A kernel that runs the nests of the body for one block after the other."""
        inner = {arg: Value(buffer_type(arg)) for arg in op.body.args}
        outer = self.facts
        ranges = {name: outer[name] for name in outer}
        ranges.update({name: (0, last) for name, last in op.last.items()})
        self.facts = Facts(ranges, outer.multiples)
        code, outputs = self.block(op.body, inner)
        self.facts = outer
        args = [inner[arg] for arg in op.body.args]
        text = " x ".join(map(str, op.counts))
        reason = f"its rows stay in the cache: {text} blocks" + (
            ", without what a mask leaves out" if op.names else ""
        )
        self.decisions += [Decision(v, "computed in blocks", reason) for v in op.results]
        return each_block(op, [env[v] for v in op.args], Program(args, code, outputs), self.names)

    def branches(self, op: Cond, env: dict[Value, Value]) -> Op:
        """Two programs, one of which runs."""
        blocks: list[Block] = []
        for region in (op.then, op.otherwise):
            inner = {a: env[v] for a, v in zip(region.args, op.args, strict=True)}
            code, outputs = self.block(region, inner)
            blocks.append(Block([], code, outputs))
        return ops.Cond(env[op.pred], then=blocks[0], otherwise=blocks[1], loc=op.loc)


def _behind_barriers(value: Value) -> Value:
    """The value that has the buffer."""
    while isinstance(value.op, Barrier):
        value = value.op.xs[value.op.results.index(value)]
    return value


def _hoist(
    code: Sequence[Op], carried: Sequence[Value], outputs: Sequence[Value]
) -> tuple[list[Op], list[Op]]:
    """The kernels of a loop that compute the same in every step, and the rest.

    Copies of operands are of this kind, and all that depends on constants of the loop alone. What
    is carried on is computed where it is carried.
    """
    varying = set(carried)
    before: list[Op] = []
    rest: list[Op] = []
    for op in code:
        steady = isinstance(op, ops.Kernel) and not op.get_effects()
        if steady and varying.isdisjoint(op.operands) and not any(v in outputs for v in op.results):
            before.append(op)
        else:
            varying.update(op.results)
            rest.append(op)
    return before, rest


def _with_stored(
    groups: Sequence[Group], grouping: Grouping, outputs: Iterable[Value]
) -> list[tuple[Group, set[Value]]]:
    """Each group with those of its values that somebody else reads."""
    wanted = set(outputs)
    for group in groups:
        own = set(group.targets)
        for root in group.roots:
            wanted.update(v for v in grouping.reads(root) if v not in own)
    result: list[tuple[Group, set[Value]]] = []
    for group in groups:
        stored = {v for v in group.targets if v in wanted}
        if group.roots[0].nests and not stored:
            continue
        result.append((group, stored))
    return result
