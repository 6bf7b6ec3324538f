"""Runs a kernel on forms, for all threads of a block at once, and shows what is open at barriers.

Loops with few iterations are unrolled. Of other loops with barriers, a whole period of iterations
is run for a symbolic start (`period * q + r`), after the first iterations and before what follows
the last ones; values that grow by the same amount, or that go round, are known in each iteration.
Loops without barriers are run once, each thread being in an iteration of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm

import numpy as np

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check import truth as tr
from tessera.target.check.access import Access, Reader
from tessera.target.check.index import (
    Coef,
    Form,
    Scope,
    Sym,
    add,
    extent,
    fresh_number,
    mul,
    scale,
    sub,
    symbol,
)
from tessera.target.check.recurrence import Plan, find_plan
from tessera.target.check.state import State, Sync, is_async, is_bulk, is_bulk_read, join
from tessera.target.check.truth import Truth
from tessera.target.check.uniform import Analysis
from tessera.target.check.values import Place, Values

MAX_PERIOD = 64
MAX_UNROLLED = 64
BUDGET = 40_000
"""Ops that unrolled iterations may run altogether."""

BLOCK_SYNCS = (g.Barrier, g.ClusterBarrier, g.AsyncWait, g.MbarrierWait, g.BulkWait)
SYNCS = (*BLOCK_SYNCS, g.WarpBarrier, g.BarrierArrive)
Observer = Callable[[State], None]


class Untraceable(Exception):
    """What a kernel does is not known in advance."""


class Trace:
    """One run of a kernel.

    Attributes:
        values: the values, as of the op that runs.
        state: what is open.
        accesses: all accesses so far.
    """

    def __init__(
        self,
        func: Func,
        at_barrier: Observer,
        visit: Callable[[Op, Trace], None] | None = None,
    ) -> None:
        analysis = Analysis(func)
        self.func = func
        self.threads = analysis.threads
        self.values = Values(func, self.threads, dict(analysis.values))
        self.reader = Reader(self.values)
        self.state = State()
        self.accesses: list[Access] = []
        self.at_barrier = at_barrier
        self.visit = visit
        self.budget = BUDGET
        # Ops around which every loop must be unrolled.
        self.only_exact: tuple[type[Op], ...] = ()
        self._sizes: dict[int, int] = {}
        self._contains: dict[tuple[int, tuple[type, ...]], bool] = {}

    def run(self) -> None:
        """Runs the kernel; what is open at its end meets a last barrier."""
        self.block(self.func.body)
        self.at_barrier(self.state)

    def contains(self, block: Block, classes: tuple[type, ...]) -> bool:
        """Whether ops of some classes are inside."""
        key = (id(block), classes)
        if key not in self._contains:
            self._contains[key] = any(isinstance(op, classes) for op in walk(block))
        return self._contains[key]

    def _size(self, block: Block) -> int:
        if id(block) not in self._sizes:
            self._sizes[id(block)] = sum(1 for _ in walk(block))
        return self._sizes[id(block)]

    def block(self, block: Block, dry: bool = False) -> None:
        """Runs the ops of a block; a dry run only computes values."""
        for op in block.ops:
            if isinstance(op, t.For):
                self._for(op, dry)
            elif isinstance(op, t.While):
                self._while(op, dry)
            elif isinstance(op, t.If):
                self._if(op, dry)
            else:
                self.values.define(op)
                if not dry:
                    self._op(op)

    def _op(self, op: Op) -> None:
        if self.visit is not None and (op.effects or isinstance(op, g.ShuffleLanes)):
            self.visit(op, self)
        if not op.effects:
            return
        if isinstance(op, SYNCS):
            self._sync(op)
        elif isinstance(op, g.AsyncCommit):
            self.state.commit(is_async)
        elif isinstance(op, g.BulkCommit):
            self.state.commit(is_bulk)
        elif isinstance(op, g.MbarrierArrive):
            self.state.arrive(self.values.place(op.ptr).base, self.reader.mask.must)
        else:
            for access in self.reader.accesses(op):
                self.accesses.append(access)
                self.state.add(access)

    def _sync(self, op: Op) -> None:
        waits = isinstance(op, (g.AsyncWait, g.BulkWait, g.MbarrierWait))
        if waits and any(o.in_flight for o in self.state.open):
            # What has been done until here was done while copies were in flight.
            self.at_barrier(self.state)
        if isinstance(op, g.AsyncWait):
            self.state.wait(op.pending, is_async)
            return
        if isinstance(op, g.BulkWait):
            self.state.wait(op.pending, is_bulk_read if op.read else is_bulk)
            return
        if isinstance(op, g.MbarrierWait):
            mask = self.reader.mask
            signal = self.reader.signal(op.ptr, op.offset)
            self.state.signalled(signal, everyone=bool(mask.must.all()))
            return
        warps = np.asarray(self.reader.mask.may.reshape(-1, g.WARP).any(axis=1))
        full = isinstance(op, g.Barrier) and op.threads in (0, self.threads)
        if isinstance(op, g.WarpBarrier):
            self.state.partial(Sync(warps, -1, g.WARP))
        elif isinstance(op, g.BarrierArrive):
            self.state.partial(Sync(warps, op.id, op.threads, waits=False))
        elif isinstance(op, g.Barrier) and (not full or (op.threads and not warps.all())):
            self.state.partial(Sync(warps, op.id, op.threads))
        else:
            self.at_barrier(self.state)
            self.state.barrier()

    # --- branches ---

    def _if(self, op: t.If, dry: bool) -> None:
        test = self.values.truth(op.pred)
        if test.is_known and test.scope is not Scope.PRIVATE:
            region = op.then if test.must[0] else op.otherwise
            self.block(region, dry)
            for result, value in zip(op.results, region.outputs, strict=True):
                if result in self.values.needed:
                    self._copy(result, value)
            return
        outer = (self.reader.mask, self.reader.path, self.reader.conditions)
        apart = not test.is_known and test.scope is not Scope.PRIVATE
        before, ends = self.state, list[State]()
        items: list[list[object]] = []
        for side, region in ((True, op.then), (False, op.otherwise)):
            if apart:
                self.state = before.copy()
                self.reader.path = outer[1] | {(test.number, int(side))}
                self.reader.conditions = (*outer[2], test if side else tr.negate(test))
            else:
                self.reader.mask = tr.both(outer[0], test if side else tr.negate(test))
            self.block(region, dry or (not apart and not self.reader.mask.may.any()))
            items.append([self.values.env.get(v) for v in region.outputs])
            ends.append(self.state)
            self.reader.mask, self.reader.path, self.reader.conditions = outer
        if apart and not dry:
            self.state = join(ends)
        elif apart:
            self.state = before
        self._merge(op, test, items)

    def _copy(self, result: Value, value: Value) -> None:
        item = self.values.env.get(value)
        self.values.env[result] = self.values.unknown(result) if item is None else item

    def _merge(self, op: t.If, test: Truth, items: list[list[object]]) -> None:
        for result, a, b in zip(op.results, *items, strict=True):
            if result not in self.values.needed:
                continue
            if isinstance(a, Form) and isinstance(b, Form):
                self.values.env[result] = self.values.selected(test, a, b)
            elif isinstance(a, Place) and isinstance(b, Place) and a.base is b.base:
                offset = self.values.selected(test, a.offset, b.offset)
                self.values.env[result] = Place(a.base, offset)
            else:
                self.values.env[result] = self.values.unknown(result)

    # --- loops ---

    def _for(self, op: t.For, dry: bool) -> None:
        lo, hi, step = (self.values.form(v) for v in (op.lo, op.hi, op.step))
        trips = trip_count(lo, hi, step)
        known = trips if isinstance(trips, int) else None
        if dry or not self._matters(op.body):
            self._skip(op, trips)
        elif known is not None and self._affordable(op.body, known):
            self._unroll(op, lo, step, range(known))
        elif self.only_exact and self.contains(op.body, self.only_exact):
            raise Untraceable("how long a loop runs depends on data, or is long")
        elif self.contains(op.body, BLOCK_SYNCS):
            self._periods(op, lo, hi, step, known)
        else:
            self._free_run(op, lo, hi, step, trips)

    def _matters(self, block: Block) -> bool:
        key = (id(block), (Op,))
        if key not in self._contains:
            self._contains[key] = any(op.get_effects() for op in walk(block))
        return self._contains[key]

    def _affordable(self, body: Block, trips: int) -> bool:
        cost = trips * self._size(body)
        if trips > MAX_UNROLLED or (trips > 4 and cost > 4000) or cost > self.budget:
            return False
        self.budget -= cost
        return True

    def _unroll(self, op: t.For, lo: Form, step: Form, iterations: range) -> None:
        self._start(op, [self.values.env.get(v) for v in op.init])
        for index in iterations:
            self.values.env[op.body.args[0]] = add(lo, scale(step, index))
            self.block(op.body)
            self._next(op)
        self._leave(op, known=True)

    def _start(self, op: t.For | t.While, items: list[object]) -> None:
        """Sets what is carried into the next iteration."""
        for region in op.regions:
            args = region.args[len(region.args) - len(items) :]
            for arg, item in zip(args, items, strict=True):
                if arg in self.values.needed:
                    self.values.env[arg] = (
                        item if isinstance(item, (Form, Truth, Place)) else self.values.unknown(arg)
                    )

    def _next(self, op: t.For | t.While) -> None:
        self._start(op, [self.values.env.get(v) for v in op.regions[-1].outputs])

    def _leave(self, op: t.For | t.While, known: bool) -> None:
        """The results: what is carried now, or anything."""
        body = op.regions[-1]
        args = body.args[len(body.args) - len(op.init) :]
        for result, arg in zip(op.results, args, strict=True):
            if result in self.values.needed:
                if known:
                    self._copy(result, arg)
                else:
                    self.values.env[result] = self.values.unknown(result)

    def _skip(self, op: t.For | t.While, trips: Coef | None) -> None:
        """A loop that touches nothing: only its results matter."""
        if any(r in self.values.needed for r in op.results):
            plan = self.plan(op) if isinstance(op, t.For) else None
            items = plan.after(trips) if plan is not None else [None] * len(op.results)
            for result, item in zip(op.results, items, strict=True):
                if result in self.values.needed:
                    unknown = item is None
                    self.values.env[result] = self.values.unknown(result) if unknown else item

    def plan(self, op: t.For | t.While) -> Plan:
        """How what is carried changes from iteration to iteration."""
        return find_plan(self, op)

    def _free_run(self, op: t.For, lo: Form, hi: Form, step: Form, trips: Coef | None) -> None:
        """Each thread is in an iteration of its own."""
        plan = self.plan(op)
        most = None if trips is None else int(np.max(trips)) - 1
        if most is not None and most < 0:
            self._skip(op, trips)
            return
        outer = self.reader.mask
        was, self.values.private = self.values.private, True
        for _ in range(2 if self.contains(op.body, (g.WarpBarrier,)) else 1):
            index = symbol(Sym("iteration", Scope.PRIVATE, 0, most, free=True))
            counter = add(lo, mul(step, index) or self._any())
            self.values.env[op.body.args[0]] = counter
            self._start(op, plan.at(index, 0))
            left = tr.at_least_zero(add(sub(hi, counter), Form(-1)), self.threads)
            self.reader.mask = tr.both(outer, left)
            self.block(op.body)
            self.reader.mask = outer
        self.values.private = was
        for result, item in zip(op.results, plan.after(trips), strict=True):
            if result in self.values.needed:
                self.values.env[result] = self.values.unknown(result) if item is None else item

    def _any(self) -> Form:
        return symbol(Sym("value", Scope.PRIVATE))

    def _periods(self, op: t.For, lo: Form, hi: Form, step: Form, trips: int | None) -> None:
        plan = self.plan(op)
        warm = self._warm(op)
        entry = self.state.copy()
        first = range(warm if trips is None else min(warm, trips))
        exits: list[State] = []
        self._start(op, [self.values.env.get(v) for v in op.init])
        for index in first:
            self._iteration(op, add(lo, scale(step, index)))
            exits.append(self.state.copy())
        period = self._period(op, lo, step, plan)
        last = None if trips is None else (trips - 1) // period
        q = symbol(Sym("iteration", Scope.BLOCK, 0, last, free=True))
        start = scale(q, period)
        self.state = State()
        self._start(op, plan.at(start, 0))
        for r in range(period + warm):
            index = Form(r, start.terms)
            self._iteration(op, add(lo, mul(step, index) or self._any()))
            if r >= warm - 1:
                exits.append(self.state.copy())
        if trips is None:
            least = extent(sub(hi, lo))[0]
            if least is None or least <= 0:
                exits.append(entry.uncertain())
            self.state = join(exits, fresh_number())
            items = plan.after(None)
        else:
            self.state = State()
            begin = max(0, trips - warm)
            self._start(op, plan.at(Form(begin), begin))
            for index in range(begin, trips):
                self._iteration(op, add(lo, scale(step, index)))
            items = plan.after(trips)
        for result, item in zip(op.results, items, strict=True):
            if result in self.values.needed:
                self.values.env[result] = self.values.unknown(result) if item is None else item

    def _iteration(self, op: t.For, counter: Form) -> None:
        self.values.env[op.body.args[0]] = counter
        self.block(op.body)
        self._next(op)

    def _warm(self, op: t.For | t.While) -> int:
        """Iterations after which nothing of an earlier one is open."""
        waits = [o.pending for r in op.regions for o in walk(r) if isinstance(o, g.AsyncWait)]
        return 1 + min(6, max(waits, default=-1) + 1)

    def _period(self, op: t.For, lo: Form, step: Form, plan: Plan) -> int:
        """Iterations after which quotients and remainders of the counter repeat."""
        period = plan.period
        for _ in range(4):
            sym = Sym("iteration", Scope.BLOCK, 0)
            index = scale(symbol(sym), period)
            self.values.moduli.clear()
            self.values.env[op.body.args[0]] = add(lo, mul(step, index) or self._any())
            self._start(op, plan.at(index, 0))
            self.block(op.body, dry=True)
            factor = lcm(*(f for s, f in self.values.moduli if s is sym))
            if factor == 1 or period * factor > MAX_PERIOD:
                break
            period *= factor
        return period

    def _while(self, op: t.While, dry: bool) -> None:
        if not dry and any(self._matters(r) for r in op.regions):
            outer = self.reader.mask
            if self.only_exact and any(self.contains(r, self.only_exact) for r in op.regions):
                raise Untraceable("how long a loop runs depends on data")
            if any(self.contains(r, BLOCK_SYNCS) for r in op.regions):
                states: list[State] = []
                for given in (True, False):
                    if not given:
                        self.state = State()
                    self._start(op, [self.values.env.get(v) if given else None for v in op.init])
                    for _ in range(self._warm(op) + 1):
                        self._turn(op, states)
                self.state = join(states, fresh_number())
            else:
                was, self.values.private = self.values.private, True
                self._start(op, [None] * len(op.init))
                for _ in range(2 if self.contains(op.body, (g.WarpBarrier,)) else 1):
                    self._turn(op, [])
                self.values.private = was
            self.reader.mask = outer
        for result in op.results:
            if result in self.values.needed:
                self.values.env[result] = self.values.unknown(result)

    def _turn(self, op: t.While, states: list[State]) -> None:
        self.block(op.cond)
        states.append(self.state.copy())
        going = self.values.truth(op.cond.outputs[0])
        if going.scope is Scope.PRIVATE:
            self.reader.mask = tr.both(self.reader.mask, going)
        self.block(op.body)
        self._next(op)


def trip_count(lo: Form, hi: Form, step: Form) -> Coef | None:
    """Iterations of a loop, in each thread; None where that is not known."""
    length = sub(hi, lo)
    if not length.is_const or not step.is_const or not isinstance(step.base, int):
        return None
    if step.base <= 0:
        return None
    count = -(-length.base // step.base)
    return max(0, count) if isinstance(count, int) else np.maximum(0, count)
