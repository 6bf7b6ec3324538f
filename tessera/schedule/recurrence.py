"""Loops whose steps are work on single elements: one nest, with the loop inside.

    %c, %ys = graph.scan([%k], [%a], [%xs]) {length=T} body(%t, %k, %a, %x) { ... yield %b, %y }
    ==>
    schedule.nest() {axes=[i0: B, i1: C]} body() {
      %0 = schedule.load(%a) {index=[i0, i1]}
      %1 = schedule.recur([%0]) {axis=r0: T} body(%2) {
        ... schedule.store(%ys, ...) {index=[r0, i0, i1]}
        yield ...
      }
      schedule.store(%c, %1) {index=[i0, i1]}
    }

What is carried stays in registers from the first step to the last. An element may need no other
element of what is carried, except along the last dims where these are few: they are unrolled, and
each point of the nest carries all of them. So a state of [batch, channels, 16] that is summed over
the last dim is sixteen scalars at each point of [batch, channels].

A loop with a condition is of this form if it goes on while any element wants to, and leaves alone
those that do not: each point has a loop of its own then, and a vector of points stops when its last
lane is done. This is what `vmap` makes of a loop.

    graph.while cond { any(p(%a)) } body { yield select(p(%a), f(%a), %a) }
    ==>
    schedule.nest() { schedule.repeat([%0]) cond { p } body { f } }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from tessera.dtypes import DType
from tessera.graph.ops.arithmetic import Select
from tessera.graph.ops.base import Rearrange
from tessera.graph.ops.control import While
from tessera.graph.ops.elementwise import Bitcast, Cast, Elementwise
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.rearrange import Broadcast, Reshape
from tessera.graph.ops.reduce import Any_, Reduce
from tessera.graph.ops.scan import Scan
from tessera.ir.core import Block, Op, Value, scalar_dtype
from tessera.ir.effects import is_removable
from tessera.ir.intexpr import Dim, Facts, sym, symbols
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType
from tessera.schedule import loop_ops, ops
from tessera.schedule.bounds import reduced
from tessera.schedule.cost import tensor
from tessera.schedule.emit import constant_item, without_dead
from tessera.schedule.nestplan import AxisNames, with_axes
from tessera.schedule.types import Axis, BufType

MAX_STATE = 32
"""Scalars that one point carries, at most: they should stay in registers."""

MAX_UNROLLED = 2
"""Last dims that are unrolled."""

MAX_OPS = 1500
"""Ops of a step with all that is unrolled."""

Index = tuple[Dim, ...]


class _Refused(Exception):
    """The body is not of this form."""


def is_recurrence(op: Scan) -> bool:
    """Whether a loop can be one nest."""
    buffers = {v: Value(_buffer(v)) for v in (*op.operands, *op.results)}
    return recurrence(op, buffers, AxisNames(()), Facts()) is not None


def recurrence(
    op: Scan | While, buffers: Mapping[Value, Value], names: AxisNames, facts: Facts
) -> ops.Nest | None:
    """The nest of a loop.

    Args:
        op: the loop.
        buffers: the kernel's buffer for each operand and result.
        names: names for axes.
        facts: what is known of symbolic dims.

    Returns:
        The nest; None where the body is not of this form.
    """
    steps = [inner for region in op.regions for inner in region.ops]
    if not op.init or not all(is_removable(inner.get_effects()) for inner in steps):
        return None
    shape = max([tensor(v).shape for v in op.init], key=len)
    for unrolled in range(min(MAX_UNROLLED, len(shape)) + 1):
        lead = shape[: len(shape) - unrolled]
        try:
            if isinstance(op, Scan):
                return _Recurrence(op, buffers, names, facts, lead).run()
            return _Repetition(op, buffers, names, facts, lead).run()
        except _Refused:
            continue
    return None


LoopOp = TypeVar("LoopOp", bound=Scan | While)


class _Elements(Generic[LoopOp]):
    """One attempt, with a number of dims unrolled: the code of elements.

    Attributes:
        op: the loop.
        before: ops that are the same in every step.
        step: ops of a step.
    """

    def __init__(
        self,
        op: LoopOp,
        buffers: Mapping[Value, Value],
        names: AxisNames,
        facts: Facts,
        lead: tuple[Dim, ...],
    ) -> None:
        self.op = op
        self.loc = op.loc
        self.init = op.init
        self.buffers = buffers
        self.lead = lead
        self.axes = names.axes("i", lead)
        self.point = names.index("i", lead)
        self.axis = Axis(f"{names.prefix}r0", op.length if isinstance(op, Scan) else 1)
        self.place = sym(self.axis.name)
        self.facts = with_axes(facts, (*self.axes, self.axis))
        self.before: list[Op] = []
        self.step: list[Op] = []
        self.varying: set[Value] = set()
        self.found: dict[tuple[Value, Index], Value] = {}
        self.made: dict[object, Value] = {}
        self.consts: dict[Value, Value] = {}
        self.slices: dict[Value, Value] = {}
        self.number: Value | None = None
        self.places = [self.elements(v) for v in op.init]
        if sum(map(len, self.places)) > MAX_STATE:
            raise _Refused

    def start(self) -> tuple[Value, ...]:
        """What is carried into the loop."""
        pairs = zip(self.init, self.places, strict=True)
        return tuple([self.load(self.buffers[v], i) for v, items in pairs for i in items])

    def bind(self, carry: Sequence[Value]) -> list[Value]:
        """The arguments of a region, for carried values of the loop."""
        args: list[Value] = []
        for arg, items in zip(carry, self.places, strict=True):
            for index in items:
                scalar = Value(ScalarType(tensor(arg).dtype))
                args.append(scalar)
                self.varying.add(scalar)
                self.found[arg, index] = scalar
        return args

    def outs(self, values: Sequence[Value]) -> list[Value]:
        """The elements of what is carried on."""
        pairs = zip(values, self.places, strict=False)
        return [self.scalar(v, index) for v, items in pairs for index in items]

    def nest(self, loop: Op, results: Sequence[Value]) -> ops.Nest:
        """The nest of a loop, which stores what was carried last."""
        code = [*self.before, loop]
        last = iter(loop.results)
        for result, items in zip(results, self.places, strict=False):
            for index in items:
                code.append(ops.Store(self.buffers[result], next(last), (), index, loc=self.loc))
        return ops.Nest(axes=self.axes, body=Block([], without_dead(code), ()), loc=self.loc)

    def elements(self, value: Value) -> list[Index]:
        """The elements of a value that belong to a point of the nest."""
        shape = tensor(value).shape
        rest = shape[len(self.lead) :]
        if shape[: len(self.lead)] != self.lead:
            raise _Refused
        sizes = [n for n in rest if isinstance(n, int)]
        if len(sizes) < len(rest) or math.prod(sizes) > MAX_STATE:
            raise _Refused
        return [(*self.point, *index) for index in itertools.product(*map(range, sizes))]

    # --- code -------------------------------------------------------------------------------------

    def add(self, cls: type[Op], *args: object, exprs: Index = (), **attrs: object) -> Value:
        """Emits an op: into the loop where it changes from step to step, else before it."""
        token = (cls, args, tuple(attrs.items())) if cls is not ops.Const else (cls, repr(args))
        known = self.made.get(token)
        if known is not None:
            return known
        op = cls(*args, loc=self.loc, **attrs)  # type: ignore[arg-type]
        self.made[token] = op.result
        varies = any(v in self.varying for v in op.operands)
        if varies or any(self.axis.name in symbols(e) for e in exprs):
            self.step.append(op)
            self.varying.update(op.results)
        else:
            self.before.append(op)
        if len(self.step) + len(self.before) > MAX_OPS:
            raise _Refused
        return op.result

    def load(self, buffer: Value, index: Index) -> Value:
        """An element of a buffer."""
        return self.add(ops.Load, buffer, (), index, exprs=index)

    def map(self, fn: ScalarFn, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.add(ops.Map, args, fn)

    def scalar(self, value: Value, index: Index) -> Value:
        """An element of a value of the body."""
        key = (value, index)
        known = self.found.get(key)
        if known is None:
            known = self.found[key] = self._scalar(value, index)
        return known

    def _scalar(self, value: Value, index: Index) -> Value:
        op = value.op
        if value in self.consts:
            return self.load(self.buffers[self.consts[value]], index)
        if value in self.slices:
            return self.load(self.buffers[self.slices[value]], (self.place, *index))
        if value is self.number:
            return self.add(ops.Index, (), self.place, exprs=(self.place,))
        match op:
            case Constant():
                item = constant_item(op)
                return self.add(ops.Const, item, op.value.dtype)
            case Cast():
                return self.cast(self.scalar(op.x, index), op.dtype)
            case Bitcast():
                return self.add(ops.Bitcast, self.scalar(op.operands[0], index), op.dtype)
            case Elementwise():
                return self.map(op.row, *[self.scalar(v, index) for v in op.operands])
            case Iota():
                expr = op.expr(index)
                found = self.add(ops.Index, (), expr, exprs=(expr,))
                return self.cast(found, op.dtype)
            case Reduce():
                return self.reduce(op, index)
            case Rearrange():
                return self.moved(op, index)
            case _:
                # An element of what is carried that belongs to another point, or an op that is no
                # work on single elements.
                raise _Refused

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion, where one is needed."""
        return x if scalar_dtype(x) is dtype else self.add(ops.Cast, x, dtype)

    def reduce(self, op: Reduce, index: Index) -> Value:
        """A reduction over few elements, by halves."""
        (x,) = op.operands
        shape = tensor(x).shape
        sizes = [n for k in op.axes if isinstance(n := shape[k], int)]
        if len(sizes) < len(op.axes) or not 0 < math.prod(sizes) <= MAX_STATE:
            raise _Refused
        items: list[Value] = []
        for inner in itertools.product(*map(range, sizes)):
            within = dict(zip(op.axes, inner, strict=True))
            outer = iter(index)
            full = [within[k] if k in within else next(outer) for k in range(len(shape))]
            items.append(self.cast(self.scalar(x, tuple(full)), op.accumulator))
        while len(items) > 1:
            half = len(items) // 2
            pairs = zip(items[:half], items[half : 2 * half], strict=True)
            items = [self.map(op.row, a, b) for a, b in pairs] + items[2 * half :]
        return self.cast(items[0], tensor(op.result).dtype)

    def moved(self, op: Rearrange, index: Index) -> Value:
        """An element of a rearranging op, where it is known which one of an operand it is."""
        for source in op.sources(index):
            bounds = [self.facts.upper(e) for e in source.where]
            if any(high is not None and high < 0 for high in bounds):
                continue
            lows = [self.facts.lower(e) for e in source.where]
            if not all(low is not None and low >= 0 for low in lows) or _is_dynamic(source.index):
                raise _Refused
            if source.operand is None:
                return self.add(ops.Const, source.fill, tensor(op.result).dtype)
            place = tuple([reduced(e, self.facts) for e in source.index])
            return self.scalar(op.operands[source.operand], place)
        raise _Refused


class _Recurrence(_Elements[Scan]):
    """A scan."""

    def run(self) -> ops.Nest:
        """The nest."""
        op = self.op
        self.number, *rest = op.body.args
        consts, carry, xs = op.split(rest)
        self.consts = dict(zip(consts, op.consts, strict=True))
        self.slices = dict(zip(xs, op.xs, strict=True))
        init, args = self.start(), self.bind(carry)
        count = len(carry)
        outs = self.outs(op.body.outputs[:count])
        for v, result in zip(op.body.outputs[count:], op.results[count:], strict=True):
            for index in self.elements(v):
                value = self.scalar(v, index)
                place = (self.place, *index)
                self.step.append(ops.Store(self.buffers[result], value, (), place, loc=self.loc))
        body = Block(args, self.step, outs)
        loop = loop_ops.Recur(init, self.axis, op.reverse, body, loc=self.loc)
        return self.nest(loop, op.results)


class _Repetition(_Elements[While]):
    """A loop with a condition."""

    def run(self) -> ops.Nest:
        """The nest."""
        op = self.op
        split = len(op.consts)
        wish = self.wish()
        init = self.start()
        self.consts = dict(zip(op.cond.args, op.consts, strict=False))
        self.consts.update(zip(op.body.args, op.consts, strict=False))
        args = self.bind(op.cond.args[split:])
        cond = Block(args, self.step, (self.scalar(wish, self.point),))
        self.step, self.found = [], {}
        args = self.bind(op.body.args[split:])
        # The condition of the arguments of the body, which its selections must be made by.
        for v, w, items in zip(
            op.cond.args[split:], op.body.args[split:], self.places, strict=True
        ):
            self.found.update({(v, index): self.found[w, index] for index in items})
        goes = self.scalar(wish, self.point)
        outs = [
            self.changed(goes, new, old)
            for new, old in zip(self.outs(op.body.outputs), args, strict=True)
        ]
        loop = loop_ops.Repeat(init, cond, Block(args, self.step, outs), loc=self.loc)
        return self.nest(loop, op.results)

    def wish(self) -> Value:
        """What says for each element whether it goes on."""
        (cond,) = self.op.cond.outputs
        while self.lead and isinstance(cond.op, Any_):
            cond = cond.op.operands[0]
        if tensor(cond).shape != self.lead:
            raise _Refused
        return cond

    def _scalar(self, value: Value, index: Index) -> Value:
        found = self.selected(value.op, index) if isinstance(value.op, Select) else None
        return super()._scalar(value, index) if found is None else found

    def selected(self, op: Select, index: Index) -> Value | None:
        """`select(any(p), select(p, new, old), old)`, as batches of batches have it, is the inner
        selection."""
        test, new, old = op.operands
        inner = self.behind_any(test, index)
        if inner is None:
            return None
        found = self.scalar(new, index)
        made = found.op
        if not isinstance(made, ops.Map) or made.fn.name != "select":
            return None
        chosen, _, other = made.args
        same = chosen is self.scalar(inner, self.point) and other is self.scalar(old, index)
        return found if same else None

    def behind_any(self, value: Value, index: Index) -> Value | None:
        """What a test says of some elements, that of this point among them."""
        op = value.op
        while isinstance(op, (Broadcast, Reshape)):
            (source,) = op.sources(index)
            index = tuple([reduced(e, self.facts) for e in source.index])
            op = op.operands[0].op
        if not isinstance(op, Any_) or tensor(op.operands[0]).shape != self.lead:
            return None
        outer = iter(index)
        point = [p if k in op.axes else next(outer) for k, p in enumerate(self.point)]
        return op.operands[0] if tuple(point) == self.point else None

    def changed(self, goes: Value, new: Value, old: Value) -> Value:
        """What an element becomes that goes on; the others must stay what they are."""
        if new is old or not self.lead:
            return new
        op = new.op
        if not isinstance(op, ops.Map) or op.fn.name != "select":
            raise _Refused
        test, value, other = op.args
        if test is not goes or other is not old:
            raise _Refused
        return value


def _is_dynamic(index: Index) -> bool:
    """Whether an index mentions the value of an operand."""
    return any(name.startswith("$") for e in index for name in symbols(e))


def _buffer(value: Value) -> BufType:
    found = tensor(value)
    return BufType(found.shape, found.dtype)
