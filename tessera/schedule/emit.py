"""Writes the code of nests: from the members that fusion has collected to ops of Schedule IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, Kind, bool_, int8, int16, int32, int64, uint8, uint32, uint64
from tessera.errors import CompileError
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.cumulative import Cumulative
from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise
from tessera.graph.ops.generate import PHILOX_WORDS, Constant, Iota, RandomBits
from tessera.graph.ops.reduce import ArgMax, ArgMin, Reduce
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.effects import is_removable
from tessera.ir.intexpr import Dim, prod, substitute, sym, symbols
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.schedule import ops
from tessera.schedule.cost import tensor
from tessera.schedule.nestplan import Key, Member, NestPlan, Region, StorePlan
from tessera.schedule.ops import Number

INT64_MAX = 2**63 - 1

_ADDED_WIDE = (int8, uint8, int16)
"""Integers whose sums of products are added up as int32, as machines do that several at a time: the
lowest bits are the same. 1024 cubed of int8 take two cores of a Xeon (Emerald Rapids) a twelfth of
the time so."""


class NestEmitter:
    """Emits the code of one or more plans into one nest. Their axes are the same, or those of some
    are the first ones of the others'.

    Args:
        plans: the plans; a later one may use what an earlier one stores, at the same point.
        buffers: the kernel's buffer for each Graph value that it loads or stores.
        stored: values that must be written; other targets of the plans live in registers only.
    """

    def __init__(
        self, plans: Sequence[NestPlan], buffers: Mapping[Value, Value], stored: set[Value]
    ) -> None:
        self.plans = plans
        self.buffers = buffers
        self.stored = stored
        self.loaded = {m.key.value for plan in plans for m in plan.members if m.op is None}
        self.body: list[Op] = []
        self.regions: dict[Region, list[Op]] = {}
        self.scalars: dict[Key, Value] = {}
        self.made: dict[object, Value] = {}
        self.registers: dict[Key, Value] = {}
        self.dynamic: dict[str, tuple[Key, int]] = {}
        self.loc = Loc.unknown

    def run(self) -> ops.Nest:
        """The nest."""
        for plan in self.plans:
            self.dynamic.update(plan.dynamic)
            members = {member.key: member for member in plan.members}
            scans = [m.key for m in plan.members if isinstance(m.op, Cumulative)]
            wanted = scans
            for store in plan.stores:
                wanted += [*self.dynamic_keys((*store.index, *store.where)), store.key]
            order = list(self.ordered(members, wanted))
            users = {k: m.op.loc for m in reversed(order) if m.op for k in self.operands(m)}
            for member in order:
                # What is only read stands where it is used first.
                self.loc = users.get(member.key, self.loc)
                self.member(member)
            for store in plan.stores:
                self.store(store)
        longest = max(self.plans, key=lambda plan: len(plan.axes))
        body = Block([], without_dead(self.body), ())
        return ops.Nest(axes=longest.axes, ordered=longest.ordered, body=body, loc=self.loc)

    def ordered(self, members: Mapping[Key, Member], wanted: Sequence[Key]) -> Iterator[Member]:
        """The members that are needed, operands before users, each close to its first use."""
        opened: set[Key] = set()
        done: set[Key] = set()
        stack = list(reversed(wanted))
        while stack:
            key = stack[-1]
            member = members.get(key)
            if member is None or key in done or key in self.scalars:
                stack.pop()
            elif key in opened:
                stack.pop()
                done.add(key)
                yield member
            else:
                opened.add(key)
                if key not in self.registers:
                    stack.extend(reversed(self.operands(member)))

    def operands(self, member: Member) -> list[Key]:
        """The scalars that the code of a member needs, those in its index expressions included."""
        conditions = [e for where in member.sources for e in where]
        exprs = (*member.key.index, *member.key.guard, *conditions)
        return [*self.dynamic_keys(exprs), *member.args]

    def dynamic_keys(self, exprs: Iterable[Dim]) -> list[Key]:
        """The integer scalars that `$d` names in index expressions stand for."""
        return [self.dynamic[name][0] for name in self.dynamic_names(exprs)]

    def dynamic_names(self, exprs: Iterable[Dim]) -> list[str]:
        """The `$d` names in index expressions."""
        if not self.dynamic:
            return []
        found = dict.fromkeys(name for e in exprs for name in sorted(symbols(e)))
        return [name for name in found if name in self.dynamic]

    # --- ops --------------------------------------------------------------------------------------

    def place(self, region: Region | None) -> list[Op]:
        """The ops of a region, or of the nest itself."""
        return self.body if region is None else self.regions.setdefault(region, [])

    def add(self, region: Region | None, cls: type[Op], *args: Any, **attrs: Any) -> Value:
        """Emits an op with one result, or finds an equal one."""
        token = (region, cls, args, tuple(attrs.items()))
        found = self.made.get(token)
        if found is None:
            op = cls(*args, loc=self.loc, **attrs)
            self.place(region).append(op)
            found = self.made[token] = op.result
        return found

    def const(self, value: Number, dtype: DType) -> Value:
        """A constant; it stands in the nest itself, so that every region may use it."""
        # 1 and 1.0 and True are equal keys, and so are 0.0 and -0.0: the text tells them apart.
        token = (ops.Const, repr(value), dtype)
        found = self.made.get(token)
        if found is None:
            op = ops.Const(value, dtype, loc=self.loc)
            self.body.append(op)
            found = self.made[token] = op.result
        return found

    def map(self, region: Region | None, fn: ScalarFn, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.add(region, ops.Map, args, fn)

    def cast(self, region: Region | None, x: Value, dtype: DType) -> Value:
        """A conversion, where one is needed."""
        return x if scalar_dtype(x) is dtype else self.add(region, ops.Cast, x, dtype)

    def formula(self, region: Region | None, expr: Dim) -> Value:
        """The value of an index expression, as i64."""
        if isinstance(expr, int):
            return self.const(expr, int64)
        (found,), dyn = self.bind((expr,))
        return self.add(region, ops.Index, dyn, found)

    def bind(self, exprs: Iterable[Dim]) -> tuple[tuple[Dim, ...], tuple[Value, ...]]:
        """Index expressions with their `$d` names numbered from 0, and the operands that these
        stand for."""
        exprs = tuple(exprs)
        names = self.dynamic_names(exprs)
        if not names:
            return exprs, ()
        mapping: dict[str, Dim] = {name: sym(f"${k}") for k, name in enumerate(names)}
        values = tuple([self.as_index(self.dynamic[name][0]) for name in names])
        return tuple([substitute(e, mapping) for e in exprs]), values

    def as_index(self, key: Key) -> Value:
        """An integer scalar as i64, in which no unsigned value becomes negative."""
        value = self.get(key)
        if scalar_dtype(value) is uint64:
            value = self.map(key.region, SCALARS["min"], value, self.const(INT64_MAX, uint64))
        return self.cast(key.region, value, int64)

    # --- members ----------------------------------------------------------------------------------

    def get(self, key: Key) -> Value:
        """The scalar of a member that was emitted before, or a constant."""
        op = key.value.op
        if isinstance(op, Constant):
            return self.const(constant_item(op), op.value.dtype)
        return self.scalars[key]

    def member(self, member: Member) -> None:
        """Emits one scalar."""
        key, op = member.key, member.op
        if key in self.scalars:
            return
        if op is None:
            self.scalars[key] = self.load(key)
            return
        self.loc = op.loc
        match op:
            case Elementwise():
                value = self.elementwise(key, op, [self.get(k) for k in member.args])
            case Reduce() | ArgMax() | ArgMin():
                value = self.reduce(member, op)
            case DotGeneral():
                value = self.contract(member, op)
            case Cumulative():
                self.scan(member, op)
                return
            case Constant():
                value = self.get(key)
            case Iota():
                expr = op.expr(key.index)
                value = self.cast(key.region, self.formula(key.region, expr), op.dtype)
            case RandomBits():
                value = self.random(member, op)
            case _:
                value = self.select(member)
        self.scalars[key] = value

    def elementwise(self, key: Key, op: Elementwise, args: list[Value]) -> Value:
        """Applies the op's row; conversions are ops of their own."""
        if isinstance(op, Cast):
            return self.cast(key.region, args[0], op.dtype)
        if isinstance(op, Bitcast):
            return self.add(key.region, ops.Bitcast, args[0], op.dtype)
        return self.map(key.region, op.row, *args)

    def load(self, key: Key, fill: Number = 0) -> Value:
        """Reads a buffer, or the register that holds the same element."""
        register = self.registers.get(key)
        if register is not None:
            return register
        (*exprs,), dyn = self.bind((*key.index, *key.guard))
        rank = len(key.index)
        type = tensor(key.value)
        found = _as_kind(fill, type.dtype.kind) if exprs[rank:] else 0
        if any(_is_nowhere(e, n) for e, n in zip(exprs, type.shape, strict=False)):
            return self.const(_as_kind(found, type.dtype.kind), type.dtype)
        return self.add(
            key.region,
            ops.Load,
            self.buffers[key.value],
            dyn,
            tuple(exprs[:rank]),
            tuple(exprs[rank:]),
            found,
        )

    def select(self, member: Member) -> Value:
        """A rearranged element: the first source whose conditions hold."""
        region = member.key.region
        *rest, last = member.args
        if len(rest) == 1 and self._is_filled_load(rest[0], last):
            op = last.value.op
            assert isinstance(op, Constant)
            return self.load(rest[0], constant_item(op))
        value = self.get(last)
        for key, where in zip(reversed(rest), reversed(member.sources[:-1]), strict=True):
            exprs, dyn = self.bind(where)
            holds = self.add(region, ops.Holds, dyn, exprs)
            value = self.map(region, SCALARS["select"], holds, self.get(key), value)
        return value

    def _is_filled_load(self, key: Key, other: Key) -> bool:
        """Whether a load can give the constant itself where its conditions fail."""
        op = other.value.op
        if not isinstance(op, Constant) or repr(constant_item(op)) == "-0.0":
            return False
        return key.value in self.loaded and key not in self.registers

    def reduce(self, member: Member, op: Reduce | ArgMax | ArgMin) -> Value:
        """A reduction in its accumulator's dtype, converted to the op's."""
        region, outer = member.region, member.key.region
        assert region is not None
        (arg,) = member.args
        fn = op.row
        dtype = tensor(op.result).dtype
        if isinstance(op, (ArgMax, ArgMin)):
            body = Block([], self.place(region), (self.get(arg),))
            found = ops.ArgReduce(region.axes[0], fn, body, loc=self.loc)
            self.place(outer).append(found)
            return self.cast(outer, found.result, dtype)
        value = self.cast(region if region.axes else outer, self.get(arg), op.accumulator)
        if region.axes:
            body = Block([], self.place(region), (value,))
            found = ops.Reduce(region.axes, fn, body, op.order, loc=self.loc)
            self.place(outer).append(found)
            value = found.result
        return self.cast(outer, value, dtype)

    def contract(self, member: Member, op: DotGeneral) -> Value:
        """A contraction; where a side has no axis of its own, a reduction of products."""
        region, outer = member.region, member.key.region
        assert region is not None
        lhs, rhs = member.args
        dtype = tensor(op.result).dtype
        accumulate = op.accumulate
        rows, cols = self._sides(lhs, rhs)
        left, right = self.get(lhs), self.get(rhs)
        # What states an order keeps it where a side has no axis left.
        is_product = bool(rows and cols) or op.order is not None
        if is_product and region.axes and accumulate.kind in ops.Contract.accepted:
            if accumulate in _ADDED_WIDE:
                left, right = self.cast(region, left, int32), self.cast(region, right, int32)
                accumulate = int32
            body = Block([], self.place(region), (left, right))
            found = ops.Contract(
                region.axes, rows, cols, accumulate, body, op.order, op.order is not None,
                loc=self.loc,
            )
            self.place(outer).append(found)
            return self.cast(outer, found.result, dtype)
        inner = region if region.axes else outer
        times, plus = ("and", "or") if accumulate is bool_ else ("mul", "add")
        left, right = self.cast(inner, left, accumulate), self.cast(inner, right, accumulate)
        value = self.map(inner, SCALARS[times], left, right)
        if region.axes:
            body = Block([], self.place(region), (value,))
            reduced = ops.Reduce(region.axes, SCALARS[plus], body, op.order, loc=self.loc)
            self.place(outer).append(reduced)
            value = reduced.result
        return self.cast(outer, value, dtype)

    def _sides(self, lhs: Key, rhs: Key) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names = [axis.name for axis in self.plans[0].axes]
        left, right = [frozenset[str]().union(*map(symbols, key.index)) for key in (lhs, rhs)]
        rows = tuple([name for name in names if name in left and name not in right])
        cols = tuple([name for name in names if name in right and name not in left])
        return rows, cols

    def scan(self, member: Member, op: Cumulative) -> None:
        """A running combination; it stores its results itself."""
        region = member.region
        assert region is not None
        (arg,) = member.args
        value = self.cast(region, self.get(arg), tensor(op.result).dtype)
        body = Block([], self.place(region), (value,))
        buffer = self.buffers[op.result]
        index = member.key.index
        self.body.append(
            ops.Scan(
                buffer, region.axes[0], op.row, op.reverse, index, body, op.order, loc=self.loc
            )
        )

    def random(self, member: Member, op: RandomBits) -> Value:
        """The words of a counter-based generator."""
        region = member.key.region
        place = op.linear_index(member.key.index)
        key = tuple([self.get(k) for k in member.args])
        if any(plan.draws_blocks for plan in self.plans):
            (expr,), dyn = self.bind((place,))
            return self.add(region, ops.Random, dyn, expr, key)
        count = prod(op.shape)
        is_short = isinstance(count, int) and count <= 1 << 32

        def words(expr: Dim) -> tuple[Value, Value]:
            linear = self.formula(region, expr)
            low = self.cast(region, linear, uint32)
            if is_short:
                return low, self.const(0, uint32)
            high = self.map(region, SCALARS["shr"], linear, self.const(32, int64))
            return low, self.cast(region, high, uint32)

        def emit(name: str, *values: Value) -> Value:
            return self.map(region, SCALARS[name], *values)

        if not isinstance(place % 2, int):
            return op.scalar_code(key, *words(place), emit, self.const)
        # Each element takes several words, and those of one block share it: the block's number is
        # the same formula.
        block, which = place // PHILOX_WORDS, place % PHILOX_WORDS
        if not isinstance(which, int):
            low = self.cast(region, self.formula(region, place), uint32)
            which = emit("and", low, self.const(PHILOX_WORDS - 1, uint32))
        return op.block_code(key, words(block), which, emit, self.const)

    def store(self, store: StorePlan) -> None:
        """Writes a scalar, and remembers it for later plans of the nest."""
        if isinstance(store.target.op, Cumulative):
            return
        value = self.get(store.key)
        if store.target in self.stored:
            exprs, dyn = self.bind((*store.index, *store.where))
            rank = len(store.index)
            buffer = self.buffers[store.target]
            where, index = exprs[rank:], exprs[:rank]
            fields = {"combine": store.combine, "order": store.order}
            self.body.append(ops.Store(buffer, value, dyn, index, where, loc=self.loc, **fields))
        if len(self.plans) > 1:
            self.registers[Key(store.target, store.index, (), None)] = value


def constant_item(op: Constant) -> Number:
    """The only element of a constant, as a Python number."""
    items = op.value.array.reshape(-1)
    first = items[:1]
    if len(items) == 0 or not bool(
        np.all(items.view(np.uint8).reshape(len(items), -1) == first.view(np.uint8))
    ):
        raise CompileError(
            f"schedule: a constant of shape {list(op.value.shape)} inside a program",
            loc=op.loc,
            rule="arrays are inputs of a program; only single numbers are constants",
        )
    return _as_kind(first[0], op.value.dtype.kind)


def _is_nowhere(index: Dim, size: Dim) -> bool:
    """Whether no element of an axis has this index. Then no point reads it: the nest or a reduction
    has none, and its axis is gone from the index, so the load would stand outside."""
    if not isinstance(size, int):
        return False
    return size == 0 or (isinstance(index, int) and not 0 <= index < size)


def _as_kind(value: Any, kind: Kind) -> Number:
    if kind is Kind.BOOL:
        return bool(value)
    if kind is Kind.COMPLEX:
        return complex(value)
    return float(value) if kind is Kind.FLOAT else int(value)


def without_dead(code: Sequence[Op]) -> list[Op]:
    """The ops whose results are used, or that write; regions included."""
    live: set[Value] = set()
    return _live(code, live)


def _live(code: Sequence[Op], live: set[Value]) -> list[Op]:
    kept: list[Op] = []
    for op in reversed(code):
        if not any(v in live for v in op.results) and is_removable(op.get_effects()):
            continue
        live.update(op.operands)
        if op.regions:
            op = _with_live_regions(op, live)
        kept.append(op)
    kept.reverse()
    return kept


def _with_live_regions(op: Op, live: set[Value]) -> Op:
    """The op with dead code removed from its regions; its results stay the same values."""
    for block in op.regions:
        live.update(block.outputs)
        # The region was built by this module and nobody else has seen it, so it may still be
        # changed.
        block.ops[:] = _live(block.ops, live)
    return op
