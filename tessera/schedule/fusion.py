"""Which values of a Graph are stored in buffers, and which are computed where they are used.

`Fusion` visits the ops of a block once, last first, so all uses of a value are known when it is
decided. A *use* says where an element is needed: in which nest, at which index of the value, under
which conditions. A value that is not stored passes each use on to its operands, with the index
mapped; rearranging ops do nothing else. A value that is stored starts a nest of its own, and its
uses become loads. What a nest must compute is collected in its `members`, users before operands:
read backwards they are the nest's code. The number of uses of a value is bounded, so the work is
linear in the ops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tessera.errors import CompileError
from tessera.graph.ops.base import Family, GraphOp, Rearrange, Source
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.cumulative import Cumulative
from tessera.graph.ops.dynamic_slice import DynamicUpdateSlice
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.gather import Combine, IndexMode, Scatter
from tessera.graph.ops.generate import Constant, RandomBits
from tessera.graph.ops.rearrange import Broadcast, Concatenate, Reshape, Transpose
from tessera.graph.ops.reduce import ArgMax, ArgMin, Reduce
from tessera.graph.ops.windows import Windows
from tessera.ir.core import Block, Value
from tessera.ir.effects import is_removable
from tessera.ir.intexpr import (
    Dim,
    Facts,
    IntExpr,
    Sym,
    maximum,
    minimum,
    substitute,
    sym,
    symbols,
)
from tessera.ir.scalar import scalar
from tessera.schedule.across import reason_to_copy
from tessera.schedule.bounds import holds, may_hold, outside, reduced
from tessera.schedule.columns import join_nests
from tessera.schedule.cost import (
    IN_ORDER,
    Costs,
    are_windows,
    is_joined,
    is_stored,
    is_widened,
    points,
    read_along_memory,
    repeats_nothing,
    tensor,
    wants_rows,
)
from tessera.schedule.cost import reused as reused_by
from tessera.schedule.formulas import constant_value, formula
from tessera.schedule.nestplan import (
    AxisNames,
    Decision,
    Key,
    Member,
    NestPlan,
    Plan,
    Region,
    Root,
    StorePlan,
    is_picked,
    row_axes,
)
from tessera.schedule.strategy import CPU, Strategy
from tessera.schedule.types import Axis

MAX_USES = 16
"""A value that computes something is stored rather than computed in more places than this."""

MAX_REARRANGED_USES = 64
"""The same for a value that only moves elements."""

MAX_MEMBERS = 600
"""A nest that computes this many scalars takes no more ops in."""

MAX_PARTS = 4
"""A concatenation of more arrays is stored, one nest per array."""

LARGE_BYTES = 32 << 20
"""What does not fit the caches."""

SMALL = 512
"""Additions that are never worth a buffer."""

LONG_CODE = 16
"""What costs so many additions is long in instructions too, and takes time to compile."""

CHEAP_PROLOGUE = 2
"""What an operand of a contraction may cost and still be computed each time that it is loaded."""

PADDED_AGAIN = 0.5
"""A padded operand of a contraction that is read more often than so many times again is stored:
blocks read what has no conditions where it is."""

OPAQUE = frozenset({Family.SORT, Family.CONTROL, Family.KERNEL, Family.HOST, Family.LIBRARY})
"""Families whose operands and results are buffers."""


class Fusion:
    """One run of the analysis.

    Args:
        block: a block of Graph ops. Its arguments are buffers.
        facts: what is known of symbolic dims.
        names: names for axes.
        strategy: how values are fused.
        apart: stored values, and what other kernels that might read them make.
    """

    def __init__(
        self,
        block: Block,
        facts: Facts,
        names: AxisNames,
        strategy: Strategy = CPU,
        apart: Collection[tuple[Value, Value]] = (),
    ) -> None:
        self.strategy = strategy
        self.apart, self.again = apart, list[tuple[Value, NestPlan]]()
        self.block = block
        self.facts = facts
        self.names = names
        self.costs = Costs(block)
        self.uses: dict[Value, dict[tuple[NestPlan, Key], bool]] = {}
        self.needed: dict[Value, str] = {}
        self.plan = Plan()
        self.dynamic_names: dict[tuple[NestPlan, Key], str] = {}

    def run(self) -> Plan:
        """Visits all ops."""
        for value in self.block.outputs:
            self.needed[value] = "it is an output"
        for op in reversed(self.block.ops):
            assert isinstance(op, GraphOp)
            self.visit(op)
        for value in reversed(self.block.args):
            self.load(value)
        self.plan.roots.reverse()
        self.plan.decisions.reverse()
        return self.plan

    def visit(self, op: GraphOp) -> None:
        """Decides on the op's results."""
        is_used = any(v in self.uses or v in self.needed for v in op.results)
        if not is_used and is_removable(op.get_effects()):
            return
        if op.family in OPAQUE:
            reason = f"{op.name.partition('.')[2]} works on buffers"
            for value in op.operands:
                self.needed.setdefault(value, f"operand of {op.name.partition('.')[2]}")
            self.root(op, reason)
            return
        (value,) = op.results
        uses = self.uses.get(value, {})
        reason = self.reason_to_store(op, value, uses)
        if reason:
            again = self.computed_again(value, uses)
            for use in again:
                del uses[use]
            self.root(op, reason)
            for nest, key in again:
                self.expand(nest, key, op, False)
            return
        del self.uses[value]
        for (nest, key), exact in uses.items():
            self.expand(nest, key, op, exact)

    def root(self, op: GraphOp, reason: str) -> None:
        """Stores the op's results."""
        for value in op.results:
            self.load(value)
            self.plan.decisions.append(Decision(value, "stored", reason))
        self.plan.roots.append(Root(op.results, self.nests(op), op, reason))

    def load(self, value: Value) -> None:
        """Turns the uses of a stored value into loads."""
        for nest, key in self.uses.pop(value, {}):
            nest.members.append(Member(key, None))

    # --- decisions --------------------------------------------------------------------------------

    def reason_to_store(
        self, op: GraphOp, value: Value, uses: dict[tuple[NestPlan, Key], bool]
    ) -> str:
        """Why the value must be stored; empty where it is computed at its uses."""
        if value in self.needed:
            return self.needed[value]
        if op.family in (Family.SCAN, Family.SCATTER):
            return f"{op.name.partition('.')[2]} writes a buffer"
        if isinstance(op, Constant):
            return ""
        if value in self.costs.reduces:
            return self._reason_to_store_reduced(op, value, uses)
        if isinstance(op, Concatenate) and len(op.xs) > MAX_PARTS:
            return f"it joins {len(op.xs)} arrays"
        in_place = self.strategy.computes_operands
        if isinstance(op, Concatenate) and in_place and self.costs.contracts.issuperset(op.xs):
            return "contractions store their parts of it"
        copied = reason_to_copy(value, self.uses) if in_place else ""
        if copied:
            return copied
        if in_place and self._is_read_in_rows(value, uses):
            return "a contraction of few columns reads its rows faster than it computes them"
        if self._is_slow_in_order(value, uses):
            return "its use goes from one element to the next, where vectors are short"
        limit = MAX_REARRANGED_USES if isinstance(op, Rearrange) else MAX_USES
        if len(uses) > limit:
            return f"it is used at {len(uses)} different places"
        if any(len(nest.members) > MAX_MEMBERS for nest, _ in uses):
            return "its consumers are large already"
        return self._reason_by_cost(value, uses)

    def _is_read_in_rows(self, value: Value, uses: dict[tuple[NestPlan, Key], bool]) -> bool:
        heavy = [op for nest, _ in uses for op in nest.heavy]
        return wants_rows(heavy, value, self.costs.element.get(value, 0))

    def _is_slow_in_order(self, value: Value, uses: dict[tuple[NestPlan, Key], bool]) -> bool:
        """Whether a scatter, or a scan down few columns, would compute something long for each of
        its elements."""
        cost, strategy = self.costs.element.get(value, 0), self.strategy
        if points(tensor(value).shape) < IN_ORDER or isinstance(value.op, (Transpose, Reshape)):
            return False  # rather what is turned, as it lies
        in_order = [cost > strategy.ordered_cost and nest.is_in_order for nest, _ in uses]
        columns = [nest.scans_columns(strategy.least_row) for nest, _ in uses]
        return any(in_order) or (cost >= LONG_CODE and any(columns))

    def _reason_to_store_reduced(
        self, op: GraphOp, value: Value, uses: dict[tuple[NestPlan, Key], bool]
    ) -> str:
        if len(uses) > 1:
            return f"its {len(uses)} uses would repeat the reduction"
        ((nest, _), exact) = next(iter(uses.items()))
        if not exact:
            return "its use would repeat the reduction"
        parts = [s.target.op for s in nest.stores if isinstance(s.target.op, Concatenate)]
        if parts and value not in self.costs.contracts:
            return "the parts of a concatenation may share a loop"
        is_product = op.family is Family.CONTRACT
        if is_product and nest.heavy:
            return "its consumer already holds a reduction"
        if nest.ordered and (is_product or self.strategy.computes_operands):
            return "its consumer runs in order"  # and threads could share nothing of it
        for cls, word in ((DotGeneral, "contraction"), (Cumulative, "scan")):
            if any(isinstance(other, cls) for other in nest.heavy):
                return f"its consumer already holds a {word}"
        return ""

    def _reason_by_cost(self, value: Value, uses: dict[tuple[NestPlan, Key], bool]) -> str:
        narrow = self.strategy.computes_operands and (is_widened(value) or are_windows(value))
        if narrow or isinstance(value.op, (Broadcast, Windows)):
            return ""  # rather its operand, which is smaller
        cost, size = self.costs.element.get(value, 0), points(tensor(value).shape)
        strategy = self.strategy
        shared = self.shared_evaluations(size, uses)
        total = float(shared)
        for nest, key in uses:
            # Reductions of a row share a pass; what comes after them is another, which computes
            # again what costs little.
            if shared and self.is_shared(nest, key, cost):
                continue
            count: float = nest.evaluations(key)
            if key.region is not None and key.region.contracts:
                if not strategy.computes_operands and is_stored(value, cost, count):
                    return "contractions read their operands as they are"
                once = nest.reads(key)
                again = count / reused_by(nest.heavy)
                count = min(count, once) if cost <= CHEAP_PROLOGUE else max(size, again)
            total += count
        reads = self.costs.loads.get(value, 1)
        is_much = strategy.computes_operands and total * reads > size
        if reads > 1 and is_much and any([is_picked(key) for _, key in uses]):
            return f"single elements of {reads} arrays would be picked for each of it"
        again = total / size - 1
        if again >= PADDED_AGAIN and strategy.computes_operands:
            how = read_along_memory(value, [key.index for _, key in uses])
            if how and all([key.region and key.region.contracts for _, key in uses]):
                return f"a contraction reads it {total / size:.3g} times, {how}"
        extra = cost * again
        is_large = size * tensor(value).dtype.itemsize > LARGE_BYTES
        copies = len({id(nest) for nest, _ in uses})
        if cost >= LONG_CODE and copies > strategy.max_copies and not is_large:
            return f"its code is long, and {copies} kernels would hold a copy"
        if cost <= strategy.cheap or is_joined(value):
            return ""
        limit = strategy.extra_cost_large if is_large else strategy.extra_cost
        if extra <= limit or extra * size <= SMALL:
            return ""
        return f"it costs {cost} additions and would be computed {total / size:.3g} times"

    # --- rows -------------------------------------------------------------------------------------

    def computed_again(
        self, value: Value, uses: dict[tuple[NestPlan, Key], bool]
    ) -> list[tuple[NestPlan, Key]]:
        """Uses of a stored value that compute it once more: those by reductions along its rows,
        which share a kernel with what stores it."""
        if not isinstance(value.op, Elementwise):
            return []
        cost, strategy = self.costs.element[value], self.strategy
        if value in self.costs.reduces or cost > strategy.row_cost:
            return []
        again = [use for use in uses if self.kept_rows(*use) is not None]
        if cost > strategy.extra_cost:  # else it costs no more than to read it
            again = [use for use in again if (value, use[0].stores[0].target) not in self.apart]
            self.again += [(value, nest) for nest, _ in again]
        return again

    def kept_rows(self, nest: NestPlan, key: Key) -> tuple[Axis, ...] | None:
        """The axes of rows along which a reduction goes that share a kernel."""
        axes = row_axes(nest, key)
        if axes is None or key.region is None or any(isinstance(h, Cumulative) for h in nest.heavy):
            return None
        length = points([axis.extent for axis in key.region.axes])
        return axes if self.strategy.keeps_rows(nest.points[-1], length) else None

    def shared_evaluations(self, size: int, uses: dict[tuple[NestPlan, Key], bool]) -> int:
        """How often the uses along the same rows compute a value that they share, in all."""
        return size * len({axes for use in uses if (axes := self.kept_rows(*use)) is not None})

    def is_shared(self, nest: NestPlan, key: Key, cost: int) -> bool:
        """Whether a use takes part in that, of a value that costs so many additions."""
        is_cheap = cost <= self.strategy.row_cost
        return self.kept_rows(nest, key) is not None or (is_cheap and nest.is_exact(key))

    # --- nests of stored values -------------------------------------------------------------------

    def new_nest(self, shape: Sequence[Dim]) -> NestPlan:
        """A nest over the elements of a shape."""
        return NestPlan(shape, self.facts, self.names, self.strategy.draws_blocks)

    def nests(self, op: GraphOp) -> list[NestPlan]:
        """The loops that compute the op's stored result."""
        if op.family in OPAQUE:
            return []
        (value,) = op.results
        joined = join_nests(self, op)
        if joined:
            return joined
        if isinstance(op, Scatter):
            return self._scatter(op)
        if isinstance(op, DynamicUpdateSlice):
            return self._update(op)
        if isinstance(op, Cumulative):
            return [self._cumulative(op)]
        nest = self.new_nest(tensor(value).shape)
        key = Key(value, nest.index, (), None)
        nest.stores.append(StorePlan(value, key, nest.index))
        self.expand(nest, key, op, True)
        return [nest]

    def copy(self, value: Value, target: Value) -> Root:
        """Stores a value, which is a buffer already, once more."""
        nest = self.new_nest(tensor(value).shape)
        key = Key(value, nest.index, (), None)
        nest.members.append(Member(key, None))
        nest.stores.append(StorePlan(target, key, nest.index))
        return Root((target,), [nest], None, "an output must have a buffer of its own")

    def _scatter(self, op: Scatter) -> list[NestPlan]:
        first = self.new_nest(tensor(op.x).shape)
        key = self.use(first, op.x, first.index, (), None, True)
        first.stores.append(StorePlan(op.result, key, first.index))
        nest = self.new_nest(tensor(op.updates).shape)
        key = self.use(nest, op.updates, nest.index, (), None, True)
        lead = nest.index[: op.outer]
        rest = iter(nest.index[op.outer :])
        position: list[Dim] = []
        where: list[Dim] = []
        for axis, dim in enumerate(tensor(op.x).shape):
            if axis not in op.axes:
                position.append(next(rest))
                continue
            i = self._as_dim(nest, op.indices[op.axes.index(axis)], lead, (), None)
            if op.mode is IndexMode.CLIP:
                i = minimum(maximum(i, 0), dim - 1)
                where.append(dim - 1)
            elif op.mode is not IndexMode.PROMISE:
                where += [i, dim - 1 - i]
            position.append(i)
        combine = None if op.combine is Combine.SET else scalar(op.combine.value)
        place = tuple(position), tuple([e for e in where if not holds(e, nest.facts)])
        nest.stores.append(StorePlan(op.result, key, *place, combine, op.order))
        if not op.unique:
            nest.ordered = tuple([i.name for i in lead if isinstance(i, Sym)])
        return [first, nest]

    def _update(self, op: DynamicUpdateSlice) -> list[NestPlan]:
        """A copy and the block: where the copy lies on the original, only the block is written."""
        first = self.new_nest(tensor(op.x).shape)
        key = self.use(first, op.x, first.index, (), None, True)
        first.stores.append(StorePlan(op.result, key, first.index))
        shape = tensor(op.update).shape
        nest = self.new_nest(shape)
        key = self.use(nest, op.update, nest.index, (), None, True)
        position = list(nest.index)
        for k, start in enumerate(op.starts, op.outer):
            dim, size = tensor(op.x).shape[k], shape[k]
            if dim != size:
                begin = self._as_dim(nest, start, nest.index[: op.outer], (), None)
                position[k] = position[k] + minimum(maximum(begin, 0), dim - size)
        nest.stores.append(StorePlan(op.result, key, tuple(position)))
        return [first, nest]

    def _cumulative(self, op: Cumulative) -> NestPlan:
        shape = tensor(op.x).shape
        nest = self.new_nest([1 if k == op.axis else dim for k, dim in enumerate(shape)])
        region, place = self.line(nest, shape[op.axis])
        index = tuple([place if k == op.axis else i for k, i in enumerate(nest.index)])
        arg = self.use(nest, op.x, index, (), region, False)
        key = Key(op.result, index, (), region)
        nest.heavy.append(op)
        nest.members.append(Member(key, op, (arg,), (), region))
        return nest

    def line(self, nest: NestPlan, dim: Dim) -> tuple[Region, Dim]:
        """A new region with exactly one axis, and the place along it."""
        axis = Axis(f"{self.names.prefix}r0", dim)
        return Region(nest, (axis,)), sym(axis.name)

    def region(
        self, nest: NestPlan, dims: Sequence[Dim], contracts: bool = False
    ) -> tuple[Region, tuple[Dim, ...]]:
        """A new region with one axis per dim, and the index along these dims."""
        axes = self.names.axes("r", dims)
        return Region(nest, axes, contracts), self.names.index("r", dims)

    # --- uses -------------------------------------------------------------------------------------

    def use(
        self,
        nest: NestPlan,
        value: Value,
        index: tuple[Dim, ...],
        guard: tuple[Dim, ...],
        region: Region | None,
        exact: bool,
    ) -> Key:
        """Notes that an element is needed; constants are made where they are needed."""
        if isinstance(value.op, Constant):
            return Key(value, (), (), None)
        if region is not None and not self._mentions(nest, (*index, *guard), region):
            region = None
        key = Key(value, index, guard, region)
        exact = exact or nest.is_exact(key)
        found = self.uses.setdefault(value, {})
        found[nest, key] = exact and found.get((nest, key), True)
        return key

    @staticmethod
    def _mentions(nest: NestPlan, exprs: Iterable[Dim], region: Region) -> bool:
        for expr in exprs:
            for name in symbols(expr):
                if name in region.names:
                    return True
                found = nest.dynamic.get(name)
                if found is not None and found[0].region is region:
                    return True
        return False

    def expand(self, nest: NestPlan, key: Key, op: GraphOp, exact: bool) -> None:
        """Computes an element in the nest: passes the use on to the operands."""
        member = Member(key, op)
        nest.members.append(member)
        if isinstance(op, Elementwise):
            member.args = tuple(
                [self.use(nest, v, key.index, key.guard, key.region, exact) for v in op.operands]
            )
        elif isinstance(op, Rearrange):
            self._rearrange(nest, member, op, exact and repeats_nothing(op))
        elif isinstance(op, (Reduce, ArgMax, ArgMin)):
            self._reduce(nest, member, op)
        elif isinstance(op, DotGeneral):
            self._contract(nest, member, op)
        elif isinstance(op, RandomBits):
            lead = op.key_index(key.index)
            words = range(4 if tensor(op.key).shape[-1] == 4 else 2)
            member.args = tuple(
                [self.use(nest, op.key, (*lead, k), key.guard, key.region, False) for k in words]
            )
        elif op.family is not Family.GENERATE:
            raise CompileError(f"schedule: no lowering for {op.name}", loc=op.loc)

    def _reduce(self, nest: NestPlan, member: Member, op: Reduce | ArgMax | ArgMin) -> None:
        (x,) = op.operands
        shape = tensor(x).shape
        if isinstance(op, (ArgMax, ArgMin)):
            region, place = self.line(nest, shape[op.axis])
            inner: dict[int, Dim] = {op.axis: place}
        else:
            region, places = self.region(nest, [shape[k] for k in op.axes])
            inner = dict(zip(op.axes, places, strict=True))
        outer = iter(member.key.index)
        index = tuple([inner[k] if k in inner else next(outer) for k in range(len(shape))])
        nest.heavy.append(op)
        member.region = region
        member.args = (self.use(nest, x, index, (), region, False),)

    def _contract(self, nest: NestPlan, member: Member, op: DotGeneral) -> None:
        lhs = tensor(op.lhs)
        region, places = self.region(nest, [lhs.shape[k] for k in op.contract[0]], True)
        index = member.key.index
        batch = index[: len(op.batch_axes[0])]
        free = index[len(batch) :]
        split = lhs.rank - len(op.batch_axes[0]) - len(op.contract[0])
        nest.heavy.append(op)
        member.region = region
        keys: list[Key] = []
        for k, (value, own) in enumerate(((op.lhs, free[:split]), (op.rhs, free[split:]))):
            found = dict(zip(op.batch_axes[k], batch, strict=True))
            found.update(zip(op.contract[k], places, strict=True))
            rest = iter(own)
            at = tuple([found[d] if d in found else next(rest) for d in range(tensor(value).rank)])
            keys.append(self.use(nest, value, at, (), region, False))
        member.args = tuple(keys)

    def _rearrange(self, nest: NestPlan, member: Member, op: Rearrange, exact: bool) -> None:
        key = member.key
        facts = nest.facts_of(key.region)
        found: list[tuple[Source, Sequence[Dim], list[Dim]]] = []
        for source in op.sources(key.index):
            index, where = self._dynamic(nest, op, key, source.index, source.where)
            where = [reduced(e, facts) for e in where]
            if all(may_hold(e, facts) for e in where):
                found.append((source, index, [e for e in where if not holds(e, facts)]))
                if not found[-1][2]:
                    break
        args: list[Key] = []
        conditions: list[tuple[Dim, ...]] = []
        for source, index, where in found:
            # The conditions of the last candidate hold wherever the others' do not.
            last = source is found[-1][0]
            conditions.append(() if last else tuple(where))
            if source.operand is None:
                dtype = tensor(key.value).dtype
                args.append(Key(constant_value(source.fill, dtype), (), (), None))
                continue
            value = op.operands[source.operand]
            index = tuple([reduced(e, facts) for e in index])
            guard = (*key.guard, *conditions[-1])
            if source is not found[0][0]:
                # It is computed where an earlier candidate applies too, possibly out of range.
                guard += outside(index, tensor(value).shape, facts)
            unique = tuple(dict.fromkeys(guard))
            args.append(self.use(nest, value, index, unique, key.region, exact))
        member.args = tuple(args)
        member.sources = tuple(conditions)

    def _dynamic(
        self,
        nest: NestPlan,
        op: Rearrange,
        key: Key,
        index: Sequence[Dim],
        where: Sequence[Dim],
    ) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """Replaces `$k` by a name that is unique in the program; index operands become uses."""
        found = {
            name
            for e in (*index, *where)
            if isinstance(e, IntExpr)
            for name in e.symbols
            if name[0] == "$" and name[1:].isdigit()
        }
        if not found:
            return index, where
        mapping: dict[str, Dim] = {}
        for name in sorted(found):
            k = int(name[1:])
            place = op.dynamic_index(k, key.index)
            mapping[name] = self._as_dim(nest, op.operands[k], place, key.guard, key.region)
        return [substitute(e, mapping) for e in index], [substitute(e, mapping) for e in where]

    def _as_dim(
        self,
        nest: NestPlan,
        value: Value,
        index: tuple[Dim, ...],
        guard: tuple[Dim, ...],
        region: Region | None,
    ) -> Dim:
        """An element of an integer value, for use in index expressions: a `$d` name where it is not
        a formula."""
        known = formula(value, index)
        if known is not None:
            return known
        arg = self.use(nest, value, index, guard, region, False)
        name = self.dynamic_names.get((nest, arg))
        if name is None:
            name = f"$d{len(self.dynamic_names)}"
            self.dynamic_names[nest, arg] = name
            nest.dynamic[name] = (arg, nest.depth((*index, *guard), region))
        return sym(name)
