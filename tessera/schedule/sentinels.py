"""Puts sentinels into the nests of a program whose values are to be watched.

    %y = schedule.map([%x]) {fn=log} : f32          %y = schedule.map([%x]) {fn=log} : f32
    schedule.store(%b, %y, []) {index=[i]}   ==>    schedule.store(%b, %y, []) {index=[i]}
                                                    %n = schedule.map([%y]) {fn=isnan} : bool
                                                    schedule.sentinel(%n)

In: a program with places and tiles. Out: the same program, which computes the same bits, with
sentinels in nests that may give NaN or infinities. They may tell of a value that no operation of
the user's gave, never the other way round; whoever is told looks closer.

- What is NaN makes most of what is computed of it NaN. Only values at the ends of such chains are
  looked at: those that are stored, and those that something takes that may hide a NaN.
- So are infinities where the program means none. Where it may, as -inf for what is masked out, an
  infinity is looked for where it is made of finite operands (`infinities.py`).
- Overflow is an infinity of finite operands that is no value at a pole, as 1 / 0 and log(0) are.
- A branch of a `select` is looked at where it is chosen, if nothing else takes it.
- Conditions of loops that end at each point in its own time (`schedule.repeat`) are not looked at.
- Accesses to memory are looked at unless they are known to be inside of their buffers
  (`inside.py`), whether what they read is chosen later or not.
"""

from __future__ import annotations

import cmath
from collections.abc import Collection, Sequence

from tessera.dtypes import DType
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, symbols
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import inside, loop_ops, ops
from tessera.schedule.block_ops import Each
from tessera.schedule.dependence import Dependence
from tessera.schedule.infinities import Infinities
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.sentinel_ops import Sentinel
from tessera.schedule.types import Axis

NO_NAN = frozenset((
    "neg", "abs", "sign", "select", "min", "max", "copysign", "floor", "ceil", "trunc", "round",
    "nextafter", "exp", "exp2", "expm1", "tanh", "sigmoid", "erf", "erfc", "atan", "asinh", "cbrt",
    "real", "imag", "conj", "complex",
))  # fmt: skip
"""Functions that give NaN only of NaN."""

HIDES_NAN = frozenset(("select", "pow", "hypot", "copysign", "real", "imag"))
"""Functions of floats that may give a number of NaN."""

POLES = frozenset((
    "log", "log1p", "log2", "log10", "rsqrt", "atanh", "lgamma", "digamma", "erfinv",
))  # fmt: skip
"""Functions whose infinities of finite operands are all values at poles."""

GROWS = POLES | frozenset((
    "add", "sub", "mul", "div", "floordiv", "pow", "square", "fma", "exp", "exp2", "expm1", "tan",
    "sinh", "cosh", "hypot", "logaddexp",
))  # fmt: skip
"""Functions that may give infinities of finite operands."""

POLE_AT_ZERO = {"div": 1, "floordiv": 1, "pow": 0}
"""The operand for which 0 is a pole."""

KEEPS_INF = frozenset((
    "add", "sub", "mul", "neg", "abs", "square", "sqrt", "fma", "floor", "ceil", "trunc", "round",
    "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh",
))  # fmt: skip
"""Functions whose result is no number if an operand is infinite."""

_SUMS = ("add", "mul", "logaddexp")


def put_sentinels(func: Func, checks: Collection[str]) -> Func:
    """The program with sentinels for these checks."""
    meant = Infinities(func)
    settings = _Settings(frozenset(checks), has_unwatched(func), meant)
    return with_bodies(func, lambda kernel: _kernel(kernel.body, settings))


def has_unwatched(func: Func) -> bool:
    """Whether something writes memory that nobody looks at as it is written: calls of the host,
    running sums, and what is combined in memory."""
    return any(_is_unwatched(op) for op in walk(func.body))


def _is_unwatched(op: Op) -> bool:
    if isinstance(op, ops.Store):
        return op.combine is not None
    return isinstance(op, (ops.HostCall, ops.Scan))


class _Settings:
    """What is looked for in a program.

    Attributes:
        nan: whether NaN is.
        inf: whether infinities are, those at poles included.
        grows: functions that may give an infinity that is to be told.
        poles: where 0 as an operand excuses it.
        unwatched: whether what is read may be bad already.
        bounds: whether accesses are looked at.
        meant: the values that may be infinite because the program means them to be.
    """

    def __init__(self, checks: frozenset[str], unwatched: bool, meant: Infinities) -> None:
        self.nan = "nan" in checks
        self.inf = bool(checks & {"inf", "overflow"})
        self.grows = GROWS if "inf" in checks else GROWS - POLES
        self.poles = {} if "inf" in checks else POLE_AT_ZERO
        self.unwatched = unwatched
        self.bounds = "bounds" in checks
        self.meant = meant


def _kernel(block: Block, settings: _Settings, axes: Sequence[Axis] = ()) -> Block:
    """The nests of a kernel, or of blocks that run along axes."""
    code: list[Op] = []
    for op in block.ops:
        if isinstance(op, Each):
            op = op.rebuild(regions=[_kernel(op.body, settings, (*op.axes, op.part))])
        elif isinstance(op, ops.Nest):
            facts = inside.facts_of(op.body, (*axes, *op.axes))
            op = op.rebuild(regions=[_Watching(op.body, settings, facts).block(op.body)])
        code.append(op)
    return Block(block.args, code, block.outputs)


def _dtype(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, ScalarType) else None


def _is_inexact(value: Value) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_inexact


def _is_complex(value: Value) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_complex


class _Watching:
    """The body of a nest.

    Attributes:
        users: the ops that take a value, and those whose region yields it.
        yielded: values that a region yields.
        nan: values that may be NaN by what the nest does.
        inf: values that may be infinite by what it does, none of which is meant to be.
        conditions: for each value those under which it is used.
        facts: what is known of axes.
        env: what values have become.
    """

    def __init__(self, body: Block, settings: _Settings, facts: Facts) -> None:
        self.settings = settings
        self.facts = facts
        self.body = body
        self.dependence = Dependence(body)
        self.users: dict[Value, list[Op]] = {}
        self.yielded: set[Value] = set()
        self.nan: set[Value] = set()
        self.inf: set[Value] = set()
        self.env: dict[Value, Value] = {}
        self.conditions: dict[Value, list[tuple[Value, bool]]] = {}
        self._note(body)

    def _note(self, block: Block) -> None:
        for op in block.ops:
            for value in dict.fromkeys(op.operands):
                self.users.setdefault(value, []).append(op)
            if isinstance(op, loop_ops.LOOPS):
                # What is carried may be anything from the second step on.
                args = [v for region in op.regions for v in region.args if _is_inexact(v)]
                self.nan.update(args)
                self.inf.update([v for v in args if not self.settings.meant.has(v)])
            for region in op.regions:
                self._note(region)
                for value in region.outputs:
                    self.users.setdefault(value, []).append(op)
                    self.yielded.add(value)
            results = [v for v in op.results if _is_inexact(v)]
            if results and self._may_be_nan(op):
                self.nan.update(results)
            if results and self._may_be_infinite(op):
                self.inf.update([v for v in results if not self.settings.meant.has(v)])

    # --- what values may be -------------------------------------------------------------------

    def _may_be_nan(self, op: Op) -> bool:
        """Whether the results of an op may be NaN although what was read was not."""
        match op:
            case ops.Load():
                return self.settings.unwatched
            case ops.Map():
                makes = op.fn.name not in NO_NAN
                # What may be NaN and is hidden is looked at before.
                return makes or (op.fn.name not in HIDES_NAN and _any(op.operands, self.nan))
            case ops.Cast():
                dtype = _dtype(op.result)
                # Formats without infinities have NaN for what is too large.
                return _any(op.operands, self.nan) or (dtype is not None and dtype.bits < 16)
            case ops.Reduce():
                return op.fn.name in _SUMS or _any(op.body.outputs, self.nan)
            case _:
                return isinstance(op, (ops.Contract, *loop_ops.LOOPS))

    def _may_be_infinite(self, op: Op) -> bool:
        """Whether the results of an op may be infinite although what was read was not."""
        match op:
            case ops.Load():
                return self.settings.unwatched
            case ops.Map():
                kept = op.fn.name in KEEPS_INF and _any(op.operands, self.inf)
                return kept or self.makes_infinity(op)
            case ops.Cast():
                return _any(op.operands, self.inf) or self.makes_infinity(op)
            case ops.Reduce():
                return op.fn.name in _SUMS or _any(op.body.outputs, self.inf)
            case _:
                return isinstance(op, (ops.Contract, *loop_ops.LOOPS))

    def makes_infinity(self, op: Op) -> bool:
        """Whether an op may give an infinity that is to be told of other operands."""
        if isinstance(op, ops.Map):
            return op.fn.name in self.settings.grows
        if isinstance(op, ops.Cast):
            source, dtype = _dtype(op.x), _dtype(op.result)
            assert source is not None
            assert dtype is not None
            return source.is_inexact and source.bits > dtype.bits
        return isinstance(op, (ops.Contract, loop_ops.Repeat)) or (
            isinstance(op, ops.Reduce) and op.fn.name in _SUMS
        )

    # --- where values are used ----------------------------------------------------------------

    def guard(self, value: Value) -> list[tuple[Value, bool]]:
        """The conditions under which a value is used, each with the truth value that is wanted;
        none where it always is."""
        found = self.conditions.get(value)
        if found is not None:
            return found
        found = []
        users = self.users.get(value, [])
        op = users[0] if len(users) == 1 else None
        if isinstance(op, ops.Map) and value not in self.yielded:
            if op.fn.name != "select":
                found = self.guard(op.result) if _is_inexact(op.result) else []
            elif value is not op.args[0] and op.args[1] is not op.args[2]:
                found = [(op.args[0], value is op.args[1]), *self.guard(op.result)]
        self.conditions[value] = found
        return found

    def _is_shown(self, value: Value, bad: set[Value]) -> bool:
        """Whether something that is looked at is bad if a value is.

        Args:
            value: the value.
            bad: those that may be NaN, or infinite.
        """
        users = self.users.get(value, [])
        for op in users:
            keeps = self._keeps_nan(op, value) if bad is self.nan else self._keeps_inf(op, value)
            results = [v for v in op.results if _is_inexact(v)]
            if not keeps or not all(v in bad for v in results):
                continue
            if len(users) == 1 or not any([self.guard(v) for v in results]):
                return True
        return False

    def _keeps_nan(self, op: Op, value: Value) -> bool:
        """Whether an op gives NaN if it is given NaN."""
        match op:
            case ops.Map():
                is_float = _is_inexact(op.result) and not _is_complex(op.result)
                return is_float and op.fn.name not in HIDES_NAN
            case ops.Cast():
                return _is_inexact(op.result) and not _is_complex(value)
            case loop_ops.Recur():
                return value in op.init or value in op.body.outputs
            case _:
                return isinstance(op, (ops.Reduce, ops.Contract))

    def _keeps_inf(self, op: Op, value: Value) -> bool:
        """Whether an op gives what is no number if it is given an infinity."""
        match op:
            case ops.Map():
                is_divided = op.fn.name == "div" and op.args[0] is value is not op.args[1]
                keeps = op.fn.name in KEEPS_INF or is_divided
                return keeps and not _is_complex(op.result)
            case ops.Reduce():
                return op.fn.name in ("add", "mul")
            case _:
                return self._keeps_nan(op, value)

    # --- sentinels ----------------------------------------------------------------------------

    def block(self, block: Block, watched: bool = True) -> Block:
        """A block with sentinels at its end, if it is to be watched; itself if nothing is new."""
        code: list[Op] = []
        env = self.env
        found = _Sentinels(self)
        for op in block.ops:
            is_condition = isinstance(op, loop_ops.Repeat)  # the first region of such a loop
            regions: list[Block] = []
            for region in op.regions:
                regions.append(self.block(region, watched and not is_condition))
                is_condition = False
            operands = [env.get(v, v) for v in op.operands]
            fresh = op
            if regions != list(op.regions) or operands != list(op.operands):
                fresh = op.rebuild(operands, regions)
            outside = inside.unproved(fresh, self.facts) if self.settings.bounds else ()
            if outside:
                if watched:
                    found.add_access(op, fresh, outside)
                fresh = inside.confined(fresh, outside)
            env.update(zip(op.results, fresh.results, strict=True))
            code.append(fresh)
        for op in block.ops if watched else ():
            for value in op.results:
                if _is_inexact(value):
                    self.look(op, value, found)
        found.narrow(_wanted(block) if block is self.body else ())
        code += found.code()
        outputs = [env.get(v, v) for v in block.outputs]
        is_same = code == list(block.ops) and outputs == list(block.outputs)
        return block if is_same else Block(block.args, code, outputs)

    def look(self, op: Op, value: Value, found: _Sentinels) -> None:
        """Notes what a value is looked at for."""
        settings = self.settings
        nan = settings.nan and value in self.nan and not self._is_shown(value, self.nan)
        if settings.inf and settings.meant.has(value):
            if self.makes_infinity(op):
                found.made_infinity(op, value)
        elif settings.inf and value in self.inf and not self._is_shown(value, self.inf):
            found.add("isfinite", value)
            return
        if nan:
            found.add("isnan", value)


def _wanted(body: Block) -> list[Dim]:
    """The conditions under which anything of a nest is stored. Elsewhere, as beyond the last row of
    a product whose operands are packed in whole blocks, values may be anything."""
    stores = [op for op in body.ops if isinstance(op, ops.Store)]
    if not stores or any(isinstance(op, ops.Scan) or _stores_inside(op) for op in body.ops):
        return []
    first, *others = [
        [e for e in op.where if not any(name.startswith("$") for name in symbols(e))]
        for op in stores
    ]
    return [e for e in first if all(e in where for where in others)]


def _stores_inside(op: Op) -> bool:
    return any(isinstance(x, (ops.Store, ops.Scan)) for region in op.regions for x in walk(region))


def _any(values: Sequence[Value], some: set[Value]) -> bool:
    return any(v in some for v in values)


class _Sentinels:
    """The sentinels of one block. What is the same all along a row is told of once."""

    def __init__(self, around: _Watching) -> None:
        self.around = around
        self.loc = Loc.unknown
        self.ops: list[Op] = []
        self.made: dict[tuple[object, ...], Value] = {}
        self.bad: dict[frozenset[str], tuple[Value, Loc]] = {}

    def map(self, name: str, *args: Value) -> Value:
        """A scalar function, once for equal operands."""
        key = (name, *args)
        found = self.made.get(key)
        if found is None:
            op = ops.Map(args, SCALARS[name], loc=self.loc)
            self.ops.append(op)
            found = self.made[key] = op.result
        return found

    def add(self, name: str, value: Value, conditions: Sequence[Value] = ()) -> None:
        """A value that is bad if it is NaN, or infinite, or no number, and conditions hold."""
        op = value.op
        assert op is not None
        self.loc = op.loc
        env, dependence = self.around.env, self.around.dependence.values
        bad = self.map(name, env.get(value, value))
        if name == "isfinite":
            bad = self.map("not", bad)
        for condition in conditions:
            bad = self.map("and", bad, condition)
        axes = dependence[value]
        for condition, wanted in self.around.guard(value):
            axes = axes | dependence[condition]
            holds = env.get(condition, condition)
            bad = self.map("and", bad, holds if wanted else self.map("not", holds))
        self.tell(bad, axes)

    def tell(self, bad: Value, axes: frozenset[str]) -> None:
        """Tells of what depends on some axes."""
        before, loc = self.bad.get(axes, (None, self.loc))
        self.bad[axes] = (bad if before is None else self.map("or", before, bad)), loc

    def add_access(self, op: Op, fresh: Op, conditions: Sequence[Dim]) -> None:
        """An access that is bad unless conditions hold, wherever its own do.

        Args:
            op: the access.
            fresh: what it has become.
            conditions: expressions that are at least 0.
        """
        self.loc = op.loc
        bad = self.map("not", self.holds(fresh, conditions))
        own = fresh.where if isinstance(fresh, (ops.Load, ops.Store)) else ()
        if own:
            bad = self.map("and", bad, self.holds(fresh, own))
        self.tell(bad, self.around.dependence.ops[op])

    def holds(self, op: Op, conditions: Sequence[Dim]) -> Value:
        """Whether expressions of an access are at least 0, once for equal ones."""
        dyn = op.dyn if isinstance(op, (ops.Load, ops.Store)) else ()
        key = ("holds", *dyn, *conditions)
        found = self.made.get(key)
        if found is None:
            made = ops.Holds(dyn, tuple(conditions), loc=self.loc)
            self.ops.append(made)
            found = self.made[key] = made.result
        return found

    def made_infinity(self, op: Op, value: Value) -> None:
        """An infinity that is looked for where it is made of what is finite."""
        self.loc = op.loc
        if op.regions:  # what it was made of is not at hand any more
            self.add("isfinite", value)
            return
        given = [self.around.env.get(v, v) for v in op.operands]
        conditions = [self.map("isfinite", v) for v in given if not _is_finite(v)]
        at = self.around.settings.poles.get(op.fn.name) if isinstance(op, ops.Map) else None
        if at is not None:
            dtype = _dtype(given[at])
            assert dtype is not None
            zero = ops.Const(0.0, dtype, loc=op.loc)
            self.ops.append(zero)
            conditions.append(self.map("ne", given[at], zero.result))
        self.add("isinf", value, conditions)

    def narrow(self, conditions: Sequence[Dim]) -> None:
        """Tells only where conditions hold: expressions over axes that are at least 0."""
        if not self.bad or not conditions:
            return
        made = ops.Holds((), tuple(conditions), loc=self.loc)
        self.ops.append(made)
        for axes, (bad, loc) in self.bad.items():
            self.bad[axes] = self.map("and", bad, made.result), loc

    def code(self) -> list[Op]:
        """The ops."""
        return [*self.ops, *[Sentinel(bad, loc=loc) for bad, loc in self.bad.values()]]


def _is_finite(value: Value) -> bool:
    """Whether a value is a number that is known."""
    return isinstance(value.op, ops.Const) and cmath.isfinite(value.op.value)
