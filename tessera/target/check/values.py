"""What each op of a kernel computes, as forms, conditions and places in memory.

Only values that decide where memory is touched, and by whom, are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tessera.dtypes import Kind
from tessera.ir.core import Func, Op, Value
from tessera.ir.opdef import FieldKind
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check import truth as tr
from tessera.target.check.index import (
    Form,
    Scope,
    Sym,
    Symbols,
    add,
    choose,
    collapse,
    const,
    extent,
    inside,
    mul,
    scale,
    sub,
    symbol,
)
from tessera.target.check.truth import Truth
from tessera.target.check.uniform import Uniformity
from tessera.target.types import PtrType

GRID_BLOCKS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A pointer: bytes from the start of an object (None: nobody knows which)."""

    base: Value | None
    offset: Form


Item = Form | Truth | Place


def needed(func: Func) -> set[Value]:
    """The values that offsets, sizes, masks and control depend on."""
    feeds: dict[Value, list[Value]] = {}
    pending: list[Value] = []
    for op in walk(func.body):
        if isinstance(op, (t.For, t.While)):
            body = op.regions[-1]
            for region in op.regions:
                args = region.args[len(region.args) - len(op.init) :]
                for arg, start, end in zip(args, op.init, body.outputs, strict=True):
                    feeds.setdefault(arg, []).extend((start, end))
            for result, start, end in zip(op.results, op.init, body.outputs, strict=True):
                feeds[result] = [start, end]
            pending += [op.lo, op.hi, op.step] if isinstance(op, t.For) else op.cond.outputs
        elif isinstance(op, t.If):
            pending.append(op.pred)
            for result, a, b in zip(op.results, op.then.outputs, op.otherwise.outputs, strict=True):
                feeds[result] = [a, b]
        else:
            for result in op.results:
                feeds[result] = list(op.operands) if _is_computed(op) else []
            pending += _touching(op)
    found: set[Value] = set()
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += feeds.get(value, ())
    return found


def _is_computed(op: Op) -> bool:
    return isinstance(op, (t.Map, t.Cast, t.PtrAdd, g.Uniform, g.MapShared))


def _touching(op: Op) -> Iterable[Value]:
    """Operands that say where an op touches memory, and in which threads."""
    if op.regions or not (op.get_effects() or isinstance(op, g.ShuffleLanes)):
        return
    for field in op.fields:
        if field.kind is FieldKind.OPERAND and field.name not in ("value", "expected"):
            yield getattr(op, field.name)
        elif field.kind is FieldKind.OPERANDS:
            values: tuple[Value, ...] = getattr(op, field.name)
            yield from values[:1] if field.name == "mask" else values


class Values:
    """The values of a kernel, in the order in which it runs.

    Attributes:
        env: what is known of each value now; loops write it again in each iteration.
        needed: the values that are followed.
        moduli: pairs (symbol, factor): a quotient would be exact if the symbol were a multiple of
            the factor.
        in_block_zero: whether only the first block is meant.
        private: whether each thread is in an iteration of its own, so that nothing is common.
    """

    def __init__(self, func: Func, threads: int, uniform: dict[Value, Uniformity]) -> None:
        self.threads = threads
        self.uniform = uniform
        self.symbols = Symbols()
        self.needed = needed(func)
        self.env: dict[Value, Item] = {}
        self.moduli: set[tuple[Sym, int]] = set()
        self.private = False
        self.in_block_zero = False
        self.block = Sym("block", Scope.BLOCK, 0, GRID_BLOCKS, free=True)
        self.rank = Sym("rank", Scope.BLOCK, 0, 15, free=True)
        for arg in func.args:
            if isinstance(arg.type, PtrType):
                self.env[arg] = Place(arg, Form(0))
            else:
                self.env[arg] = symbol(Sym(f"%{arg.name}", Scope.GRID, 0, free=True))

    def define(self, op: Op) -> None:
        """Computes the results of an op without regions."""
        if isinstance(op, (g.Shared, t.Alloca)):
            self.env[op.result] = Place(op.result, Form(0))
        else:
            for value in op.results:
                if value in self.needed:
                    self.env[value] = self._fitting(op, value)

    def _fitting(self, op: Op, value: Value) -> Item:
        """The result of an op; unknown where unsigned arithmetic may wrap around."""
        try:
            found = self._compute(op, value)
        except OverflowError:  # beyond 64 bits
            return self.unknown(value)
        type = value.type
        if isinstance(found, Form) and isinstance(type, ScalarType):
            unsigned = type.dtype.kind is Kind.UINT and not isinstance(op, t.Const)
            if unsigned and not inside(found, 0, (1 << type.dtype.bits) - 1):
                return self.unknown(value)
        return found

    def form(self, value: Value) -> Form:
        """An integer."""
        found = self.env.get(value)
        if isinstance(found, Form):
            return found
        if isinstance(found, Truth):
            return tr.as_number(found, f"%{value.name}")
        fresh = self.env[value] = self.unknown(value)
        assert isinstance(fresh, Form)
        return fresh

    def truth(self, value: Value) -> Truth:
        """A condition."""
        found = self.env.get(value)
        if isinstance(found, Truth):
            return found
        fresh = tr.opaque(self.threads, self._scope(value))
        self.env[value] = fresh
        return fresh

    def place(self, value: Value) -> Place:
        """A pointer."""
        found = self.env.get(value)
        return found if isinstance(found, Place) else Place(None, Form(0))

    def unknown(self, value: Value, scope: Scope | None = None) -> Item:
        """A value about which nothing but its uniformity is known."""
        type = value.type
        scope = self._scope(value) if scope is None else scope
        if isinstance(type, PtrType):
            return Place(None, Form(0))
        if isinstance(type, ScalarType) and type.dtype.is_bool:
            return tr.opaque(self.threads, scope)
        low = 0 if isinstance(type, ScalarType) and type.dtype.kind is Kind.UINT else None
        return symbol(Sym(f"%{value.name or 'value'}", scope, low))

    def _scope(self, value: Value) -> Scope:
        if self.private:
            return Scope.PRIVATE
        uniform = self.uniform.get(value, Uniformity.DIVERGENT)
        return Scope.BLOCK if uniform is Uniformity.BLOCK else Scope.PRIVATE

    def _compute(self, op: Op, value: Value) -> Item:
        if isinstance(op, t.Const) and isinstance(value.type, ScalarType):
            if value.type.dtype.is_bool:
                return tr.known(np.full(self.threads, bool(op.value)))
            is_whole = isinstance(op.value, int) or op.value.is_integer()
            return Form(int(op.value)) if is_whole else self.unknown(value)
        if isinstance(op, g.ThreadId):
            return Form(np.arange(self.threads, dtype=np.int64))
        if isinstance(op, (g.BlockId, g.ClusterRank)):
            if self.in_block_zero:
                return Form(0)
            return symbol(self.block if isinstance(op, g.BlockId) else self.rank)
        if isinstance(op, t.PtrAdd):
            start = self.place(op.ptr)
            return replace(start, offset=add(start.offset, self.form(op.bytes)))
        if isinstance(op, t.Cast):
            return self._cast(op, value)
        if isinstance(op, g.Uniform):
            return self._first_lane(self.form(op.x))
        if isinstance(op, t.Map):
            found = self._map(op)
            return self.unknown(value) if found is None else found
        return self.unknown(value)

    def _first_lane(self, form: Form) -> Form:
        if any(s.scope is Scope.PRIVATE for s in form.symbols()):
            return symbol(Sym("uniform", Scope.PRIVATE))
        first = np.arange(self.threads) // g.WARP * g.WARP
        terms = {m: c if isinstance(c, int) else collapse(c[first]) for m, c in form.terms.items()}
        base = form.base if isinstance(form.base, int) else collapse(form.base[first])
        return Form(base, terms)

    def _cast(self, op: t.Cast, value: Value) -> Item:
        source = op.x.type
        if not isinstance(source, ScalarType):
            return self.unknown(value)
        if op.dtype.is_bool:
            if source.dtype.kind not in (Kind.INT, Kind.UINT):
                return self.unknown(value)
            return tr.negate(tr.is_zero(self.form(op.x), self.threads))
        if source.dtype.kind not in (Kind.INT, Kind.UINT, Kind.BOOL) or op.dtype.kind not in (
            Kind.INT,
            Kind.UINT,
        ):
            return self.unknown(value)
        form = self.form(op.x)
        low, high = extent(form)
        if op.dtype.kind is Kind.UINT and (low is None or low < 0):
            return self.unknown(value)
        narrow = op.dtype.bits < 32 and source.dtype.bits > op.dtype.bits
        if narrow and (low is None or high is None or high >= 1 << op.dtype.bits - 1):
            return self.unknown(value)
        return form

    # --- scalar functions ---

    def _map(self, op: t.Map) -> Item | None:
        name = op.fn.name
        first = op.args[0].type
        if not isinstance(first, ScalarType):
            return None
        if name == "select":
            return self._select(op)
        if first.dtype.is_bool:
            rows = _LOGIC.get(name)
            return None if rows is None else rows([self.truth(a) for a in op.args])
        if first.dtype.kind not in (Kind.INT, Kind.UINT):
            return None
        args = [self.form(a) for a in op.args]
        if name in _COMPARISONS:
            return _COMPARISONS[name](args[0], args[1], self.threads)
        if name in _LINEAR:
            return _LINEAR[name](args)
        return self._number(name, args, first.dtype.bits)

    def _select(self, op: t.Map) -> Item | None:
        condition, a, b = op.args
        test = self.truth(condition)
        if isinstance(a.type, ScalarType) and a.type.dtype.is_bool:
            x, y = self.truth(a), self.truth(b)
            return tr.either(tr.both(test, x), tr.both(tr.negate(test), y))
        if isinstance(a.type, PtrType) or not (
            isinstance(a.type, ScalarType) and a.type.dtype.kind in (Kind.INT, Kind.UINT)
        ):
            return None
        return self.selected(test, self.form(a), self.form(b))

    def selected(self, test: Truth, x: Form, y: Form) -> Form:
        """x where the test holds, else y."""
        if x.key == y.key:
            return x
        if test.is_known:
            same = bool((test.must == test.must[0]).all())
            return choose(bool(test.must[0]) if same else test.must, x, y)
        (la, ha), (lb, hb) = extent(x), extent(y)
        lo = None if la is None or lb is None else min(la, lb)
        hi = None if ha is None or hb is None else max(ha, hb)
        scope = max(test.scope, x.scope, y.scope)
        return symbol(Sym("select", scope, lo, hi))

    def _number(self, name: str, args: list[Form], bits: int) -> Item | None:
        symbols = self.symbols
        if name in ("min", "max"):
            return symbols.pick(args[0], args[1], name == "max")
        if name in ("and", "or", "xor"):
            return symbols.bitwise(name, args[0], args[1])
        if name in ("shl", "shr"):
            by = args[1].base
            if not args[1].is_const or not isinstance(by, int):
                return self._shift_by_threads(name, args)
            if not 0 <= by < bits:
                return Form(0) if name == "shl" else None
            return scale(args[0], 1 << by) if name == "shl" else self._divide(args[0], 1 << by)[0]
        if name in ("floordiv", "mod", "trunc_div", "rem"):
            return self._quotient(name, args)
        return None

    def _shift_by_threads(self, name: str, args: list[Form]) -> Form:
        if all(a.is_const for a in args):
            amount = np.asarray(args[1].base)
            if ((amount >= 0) & (amount < 62)).all():
                shift = np.left_shift if name == "shl" else np.right_shift
                wide = np.broadcast_to(np.asarray(args[0].base), (self.threads,))
                return const(shift(wide, amount))
        return symbols_of(self, name, args)

    def _quotient(self, name: str, args: list[Form]) -> Form:
        a, b = args
        low, _ = extent(a)
        towards_zero = name in ("trunc_div", "rem")
        remainder = name in ("mod", "rem")
        if towards_zero and (low is None or low < 0):
            return symbols_of(self, name, args)
        if b.is_const and isinstance(b.base, int):
            if b.base <= 0:
                return symbols_of(self, name, args)
            return self._divide(a, b.base)[remainder]
        if b.is_const and a.is_const and not (np.asarray(b.base) <= 0).any():
            wide = np.broadcast_to(np.asarray(a.base), (self.threads,))
            return const(wide % b.base if remainder else wide // b.base)
        return self.symbols.divide_by_form(a, b)[remainder]

    def _divide(self, a: Form, by: int) -> tuple[Form, Form]:
        for mono, coef in a.terms.items():
            if len(mono) == 1 and isinstance(coef, int) and coef % by:
                self.moduli.add((mono[0], by // gcd(coef, by)))
        return self.symbols.divide(a, by)


def symbols_of(values: Values, name: str, args: list[Form]) -> Form:
    """The symbol of an operation that is not followed."""
    return values.symbols.computed(name, tuple(args))


_LINEAR: dict[str, Callable[[list[Form]], Form | None]] = {
    "add": lambda x: add(x[0], x[1]),
    "sub": lambda x: sub(x[0], x[1]),
    "mul": lambda x: mul(x[0], x[1]),
    "neg": lambda x: scale(x[0], -1),
    "square": lambda x: mul(x[0], x[0]),
}
_COMPARISONS: dict[str, Callable[[Form, Form, int], Truth]] = {
    "ge": lambda a, b, n: tr.at_least_zero(sub(a, b), n),
    "le": lambda a, b, n: tr.at_least_zero(sub(b, a), n),
    "gt": lambda a, b, n: tr.at_least_zero(add(sub(a, b), Form(-1)), n),
    "lt": lambda a, b, n: tr.at_least_zero(add(sub(b, a), Form(-1)), n),
    "eq": lambda a, b, n: tr.is_zero(sub(a, b), n),
    "ne": lambda a, b, n: tr.negate(tr.is_zero(sub(a, b), n)),
}


def _differ(a: Truth, b: Truth) -> Truth:
    return tr.either(tr.both(a, tr.negate(b)), tr.both(tr.negate(a), b))


_LOGIC: dict[str, Callable[[list[Truth]], Truth]] = {
    "and": lambda x: tr.both(x[0], x[1]),
    "or": lambda x: tr.either(x[0], x[1]),
    "not": lambda x: tr.negate(x[0]),
    "xor": lambda x: _differ(x[0], x[1]),
    "ne": lambda x: _differ(x[0], x[1]),
    "eq": lambda x: tr.negate(_differ(x[0], x[1])),
}
