"""Computes values once more where they are needed, so that a program holds a budget of memory.

    %y = graph.exp(%x)                        %y = graph.exp(%x)
    %a = graph.dot_general(%y, %w)            %a = graph.dot_general(%y, %w)
    ... much memory is needed here ...  ==>   ... %y is gone ...
    %b = graph.mul(%y, %c)                    %x' = graph.barrier([%x])
                                              %z = graph.exp(%x')
                                              %b = graph.mul(%z, %c)

In: a Graph after its passes. Out: one that computes the same bits, whose plan needs less memory.

Each step lowers the Graph to kernels, finds the one that runs when most memory is needed, and picks
among the buffers that wait meanwhile for somebody later: those that give back most bytes for the
work of computing them again, from arguments and from what is there anyhow. The steps do not depend
on the budget, and a budget takes the fewest that hold it: a smaller one recomputes all that a
larger one does, and more.

- Ops with effects, random numbers, calls of the host and of libraries, and loops run once.
- What is inside of loops stays as it is.
- Products of matrices may run twice. Whoever plans a step looks whether all sums are still added up
  in the same order (`sums_of`); if not, the step is left out.
- A barrier keeps what is computed again apart from what was computed before.

Greedy, as Chen et al., "Training deep nets with sublinear memory cost", 2016, for chains; weighed
by cost as in Kirisame et al., "Dynamic tensor rematerialization", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checkpoint import Barrier
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.ranges import guarded_below
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import free_values, walk
from tessera.schedule import ops
from tessera.schedule.cost import points, tensor
from tessera.schedule.cut_scans import may_be_cut
from tessera.schedule.from_graph import lower
from tessera.schedule.machines import Cpu, Gpu
from tessera.schedule.plan import Lifetimes, byte_size
from tessera.schedule.prepare import prepare
from tessera.schedule.strategy import CPU, GPU, Strategy
from tessera.schedule.types import BufType

MAX_STEPS = 40
"""The most steps that are tried."""

AT_ONCE = 6
"""One of so many candidates is taken in a step, and one at least."""

LIMITS = (1 << 24, 1 << 20, 0)
"""Bytes that are stored for sums behind loops, where storing more does not hold a budget. They do
not depend on it, so that a smaller budget takes what a larger one does, or less."""

MAX_CHAIN = 6
"""Values that are computed again for the sake of another one, one after the other."""

_AGAIN = frozenset((Family.ELEMENTWISE, Family.REARRANGE, Family.GENERATE, Family.CONTRACT))
"""Families whose ops give the same bits wherever they are computed."""


@dataclass(frozen=True)
class Again:
    """A value that is computed once more.

    Attributes:
        bytes: of its buffer.
        type: of its buffer, as text.
        loc: the line that asked for it.
    """

    bytes: int
    type: str
    loc: Loc

    def __str__(self) -> str:
        return f"computed again for the memory budget: {self.bytes} bytes, {self.type}, {self.loc}"


def steps(graph: Func, machine: Cpu | Gpu) -> Iterator[tuple[Func, tuple[Again, ...]]]:
    """Graphs that compute the same with less and less memory in between, and more work; and what
    each computes again.

    Args:
        graph: the program.
        machine: what it is for.
    """
    strategy = _strategy(machine)
    step = graph.with_body(prepare(graph.body, strategy, below=guarded_below(graph)))
    again: tuple[Again, ...] = ()
    for _ in range(MAX_STEPS):
        found = _Analysis(step, machine).step()
        if found is None:
            return
        step, plans = found
        again += tuple([plan.told for plan in plans])
        yield step, again


def fit(
    graph: Func, budget: int, machine: Cpu | Gpu, planned: Callable[[Func], int | None]
) -> tuple[Func, int, tuple[Again, ...]]:
    """A Graph that needs no more memory than a budget, if one is found.

    Args:
        graph: the program.
        budget: bytes.
        machine: what it is for.
        planned: the bytes that a Graph needs, by its plan; None if it would compute other bits.

    Returns:
        The Graph, what it needs, and what it computes again: the first within the budget, or else
        the one that needs least.
    """
    need = planned(graph)
    assert need is not None
    best: tuple[Func, int, tuple[Again, ...]] = graph, need, ()
    if need <= budget:
        return best
    for step, again in steps(graph, machine):
        need = planned(step)
        if need is not None and need < best[1]:
            best = step, need, again
            if need <= budget:
                break
    return best


def with_less_behind_loops(graph: Func, machine: Cpu | Gpu) -> Iterator[Func]:
    """The Graph with the sums of loops taken in their steps, which stores nothing for them: first
    those for which most is stored (`cut_scans.py`). Their order is another one.

    Args:
        graph: the program.
        machine: what it is for.
    """
    strategy = _strategy(machine)
    if not strategy.keeps_loops or not may_be_cut(graph.body):
        return
    for limit in LIMITS:
        yield graph.with_body(prepare(graph.body, strategy, limit))


def _strategy(machine: Cpu | Gpu) -> Strategy:
    return GPU if isinstance(machine, Gpu) else CPU


def sums_of(program: Func) -> set[tuple[object, ...]]:
    """How sums and products of a program are added up: their lines, sizes and lanes. One that is
    computed again, or of other values that are, gives the same bits if this is the same. On a GPU
    it is the tiles, too; how threads share a tile also depends on what else the kernel reads.
    """
    found: set[tuple[object, ...]] = set()
    for nest in walk(program.body):
        if not isinstance(nest, ops.Nest):
            continue
        for op in walk(nest.body):
            if isinstance(op, (ops.Contract, ops.Reduce)):
                extents = tuple([axis.extent for axis in op.axes])
                is_flat = not any(inner.regions for inner in op.body.ops)
                lanes = (nest.tile, nest.chunk, nest.warps) if nest.warps else ()
                found.add((op.loc.frames[:1], type(op), extents, nest.reduce_tile, is_flat, *lanes))
    return found


@dataclass
class _Plan:
    """How a value is computed again.

    Attributes:
        value: the value.
        buffer: what holds it.
        late: the stored values that need it after the peak.
        chain: other stored values that have to be computed again for it.
        cost: additions, roughly.
        saved: bytes that are free at the peak.
    """

    value: Value
    buffer: Value
    late: list[Value]
    chain: set[Value] = field(default_factory=set[Value])
    cost: float = 0.0
    saved: int = 0

    @property
    def gain(self) -> float:
        """Bytes for the work."""
        return self.saved / (self.cost + self.saved)

    @property
    def told(self) -> Again:
        """The same for people."""
        assert isinstance(self.buffer.type, BufType)
        size = points(self.buffer.type.shape) * self.buffer.type.dtype.itemsize
        type = str(self.buffer.type)[len("buf<") : -1]
        return Again(size, type, _op(self.value).loc)


class _Analysis:
    """The kernels of a Graph, and when their buffers are needed.

    Attributes:
        peak: bytes of the buffers in between that are there when most are.
    """

    def __init__(self, graph: Func, machine: Cpu | Gpu) -> None:
        self.graph = graph
        lowered = lower(graph, machine=machine, is_prepared=True)
        self.program = lowered.func
        # The first value of a buffer is the one that is not behind a barrier.
        self.buffers = {v: b for v, b in lowered.buffers.items() if v.op in _ops(graph)}
        self.args = {lowered.buffers[v] for v in graph.args}
        self.lives = Lifetimes(self.program)
        self.order = {op: k for k, op in enumerate(self.program.body.ops)}
        self.place = {op: k for k, op in enumerate(graph.ops)}
        self.inputs = {op: _inputs(op) for op in graph.ops}
        self._leaves: dict[Value, dict[Value, None]] = {}
        self.stored = {*self.buffers, *graph.args}
        self.outputs = set(self.program.outputs)
        self.at, self.peak = self._peak()

    # --- memory -------------------------------------------------------------------------------

    def _between(self) -> Iterator[Value]:
        for op in self.program.body.ops:
            yield from [v for v in op.results if v not in self.outputs]

    def _peak(self) -> tuple[Op | None, int]:
        sizes = [(v, _bytes(v)) for v in self._between()]
        best: tuple[Op | None, int] = (None, 0)
        for op in self.program.body.ops:
            total = sum([size for v, size in sizes if self._is_there(v, op)])
            if total > best[1]:
                best = op, total
        return best

    def _is_there(self, buffer: Value, op: Op) -> bool:
        """Whether a buffer is in use while an op runs."""
        assert buffer.op is not None
        span, own = self.lives.spans[op], self.lives.spans[buffer.op]
        return own.start <= span.start <= max(self.lives.last.get(buffer, 0), own.end)

    # --- candidates ---------------------------------------------------------------------------

    def step(self) -> tuple[Func, Sequence[_Plan]] | None:
        """The Graph with some values computed again, and these; None if there is nothing to
        gain."""
        plans = [plan for v in self.buffers if (plan := self.plan(v)) is not None]
        plans = [plan for plan in plans if plan.saved > 0]
        if not plans:
            return None
        plans.sort(key=lambda p: (-p.gain, -p.saved, self.place[_op(p.value)]))
        plans = plans[: -(-len(plans) // AT_ONCE)]
        return self.rewrite(plans), plans

    def plan(self, value: Value) -> _Plan | None:
        """How a value may be computed again behind the peak; None if it may not."""
        buffer, at = self.buffers[value], self.at
        if at is None or buffer in self.outputs or not _is_repeatable(_op(value)):
            return None
        waits = buffer.op is not at and self._is_there(buffer, at) and buffer not in at.operands
        if not waits or buffer.op is None:
            return None
        late = self.readers(value, self.order[at])
        if late is None:
            return None
        found = _Plan(value, buffer, late, saved=_bytes(buffer))
        self.chain(value, found, min([self._time(v) for v in late]), 0)
        return found

    def readers(self, value: Value, after: int) -> list[Value] | None:
        """The stored values that a later kernel computes of a value, in the Graph's order; None if
        something reads it that gives none."""
        buffer = self.buffers[value]
        found: list[Value] = []
        for w in self.buffers:
            if self._time(w) > after and value in self.leaves(w):
                found.append(w)
        known = {self._time(w) for w in found}
        for op in self.program.body.ops[after + 1 :]:
            reads = buffer in op.operands or any(buffer in free_values(r) for r in op.regions)
            if reads and self.order[op] not in known:
                return None
        return sorted(found, key=lambda w: self.place[_op(w)]) or None

    def _time(self, value: Value) -> int:
        op = self.buffers[value].op
        return -1 if op is None else self.order[op]

    def leaves(self, value: Value) -> dict[Value, None]:
        """The stored values that a value is computed of."""
        known = self._leaves.get(value)
        if known is not None:
            return known
        found = self._leaves[value] = {}
        for op in self.slice(value):
            found.update(dict.fromkeys([v for v in self.inputs[op] if v in self.stored]))
        return found

    def slice(self, value: Value) -> list[Op]:
        """The ops that compute a value of stored ones, in order."""
        found: set[Op] = set()
        stack = [_op(value)]
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                inner = [v.op for v in self.inputs[op] if v not in self.stored]
                stack += [one for one in inner if one is not None]
        return sorted(found, key=self.place.__getitem__)

    def chain(self, value: Value, plan: _Plan, time: int, depth: int) -> None:
        """Adds what computing a value again costs, and what has to be there for it."""
        for op in self.slice(value):
            plan.cost += _cost(op)
            if not _is_repeatable(op):
                plan.saved = 0
        for leaf in self.leaves(value):
            if leaf in plan.chain or leaf not in self.buffers:
                continue
            buffer = self.buffers[leaf]
            needed = self.lives.last.get(buffer, 0)
            if buffer in self.outputs or needed >= self.lives.spans[self._kernel(time)].start:
                continue
            is_small = 4 * _bytes(buffer) <= plan.saved
            if is_small or depth == MAX_CHAIN or not _is_repeatable(_op(leaf)):
                plan.saved -= _bytes(buffer)
            else:
                plan.chain.add(leaf)
                self.chain(leaf, plan, time, depth + 1)

    def _kernel(self, time: int) -> Op:
        return self.program.body.ops[time]

    # --- rewriting ----------------------------------------------------------------------------

    def rewrite(self, plans: Sequence[_Plan]) -> Func:
        """The Graph in which these values are computed again for those who need them late."""
        again = {plan.value for plan in plans}
        within = again.union(*[plan.chain for plan in plans])
        late: dict[Op, set[Value]] = {}
        for plan in plans:
            for w in plan.late:
                late.setdefault(_op(w), set()).add(plan.value)
        code: list[Op] = []
        env: dict[Value, Value] = {}
        made: dict[Value, Value] = {}

        def add(op: Op, own: dict[Value, Value]) -> None:
            operands = [own.get(v, env.get(v, v)) for v in op.operands]
            regions = [_replaced(r, {**env, **own}) for r in op.regions]
            fresh = op.rebuild(operands, regions)
            own.update(zip(op.results, fresh.results, strict=True))
            code.append(fresh)

        def make(value: Value) -> Value:
            if value in made:
                return made[value]
            leaves = list(self.leaves(value))
            own = {leaf: make(leaf) for leaf in leaves if leaf in within}
            given = [leaf for leaf in leaves if leaf not in own]
            if given:
                barrier = Barrier([env.get(v, v) for v in given], loc=_op(value).loc)
                code.append(barrier)
                own.update(zip(given, barrier.results, strict=True))
            for op in self.slice(value):
                add(op, own)
            made[value] = own[value]
            return made[value]

        for op in self.graph.ops:
            own: dict[Value, Value] = {v: make(v) for v in _in_order(self.place, late.get(op, ()))}
            if own:
                # What is between them may serve somebody early, too.
                changed = set(own)
                for inner in self.slice(op.results[0])[:-1]:
                    if changed.intersection(self.inputs[inner]):
                        add(inner, own)
                        changed.update(inner.results)
            add(op, own)
            env.update({v: own[v] for v in op.results})
        outputs = [env.get(v, v) for v in self.graph.outputs]
        return self.graph.with_body(eliminate_dead(Block(self.graph.args, code, outputs)))


def _in_order(place: dict[Op, int], values: Iterable[Value]) -> list[Value]:
    """Values in the order of their ops."""
    return sorted(values, key=lambda v: place[_op(v)])


def _ops(graph: Func) -> set[Op]:
    return {op for op in graph.ops if not isinstance(op, Barrier)}


def _op(value: Value) -> Op:
    assert value.op is not None
    return value.op


def _bytes(buffer: Value) -> int:
    assert isinstance(buffer.type, BufType)
    size = byte_size(buffer.type)
    return size if isinstance(size, int) else 0


def _inputs(op: Op) -> dict[Value, None]:
    """What an op reads, its regions included, in order."""
    inner = [v for region in op.regions for v in free_values(region)]
    return dict.fromkeys([*op.operands, *inner])


def _is_repeatable(op: Op) -> bool:
    if not isinstance(op, GraphOp) or op.get_effects() or len(op.results) != 1:
        return isinstance(op, Barrier)
    return op.family in _AGAIN and not op.regions


def _cost(op: Op) -> float:
    """Additions that an op takes, roughly."""
    size = points(tensor(op.results[0]).shape) if op.results else 1
    if isinstance(op, DotGeneral):
        depth = points([tensor(op.lhs).shape[axis] for axis in op.contract[0]])
        return 2.0 * size * depth
    if isinstance(op, Elementwise) and op.scalar:
        return float(size * SCALARS[op.scalar].cost)
    return float(size)


def _replaced(block: Block, env: dict[Value, Value]) -> Block:
    """A region with other values from outside."""
    if env.keys().isdisjoint(free_values(block)):
        return block
    inner = dict(env)
    code: list[Op] = []
    for op in block.ops:
        regions = [_replaced(region, inner) for region in op.regions]
        fresh = op.rebuild([inner.get(v, v) for v in op.operands], regions)
        inner.update(zip(op.results, fresh.results, strict=True))
        code.append(fresh)
    return Block(block.args, code, [inner.get(v, v) for v in block.outputs])
