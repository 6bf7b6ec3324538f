"""Puts sentinels into the nests of a program whose values are to be watched.

    %y = schedule.map([%x]) {fn=log} : f32          %y = schedule.map([%x]) {fn=log} : f32
    schedule.store(%b, %y, []) {index=[i]}   ==>    schedule.store(%b, %y, []) {index=[i]}
                                                    %n = schedule.map([%y]) {fn=isnan} : bool
                                                    schedule.sentinel(%n) {fn=isnan}

In: a program with places and tiles. Out: the same program, which computes the same bits, with one
sentinel for NaN and one for infinities in each nest that may give some. They may tell of a value
that no operation of the user's gave, never the other way round; whoever is told looks closer.

- What is NaN makes most of what is computed of it NaN. Only values at the ends of such chains are
  looked at: those that are stored, and those that something takes that may hide a NaN.
- An infinity is looked for where it is made of finite operands, for programs are full of those
  that are wanted, such as -inf where something is masked out. Sums and products of matrices are
  looked at as a whole.
- Overflow is an infinity of finite operands that is no value at a pole, as 1 / 0 and log(0) are.
- A branch of a `select` is looked at where it is chosen, if nothing else takes it.
- What a contraction reads is not looked at one by one: its sums show it. Nor are the steps of
  loops that end at each point in its own time (`schedule.repeat`); what they come to is.
"""

from __future__ import annotations

import cmath
from collections.abc import Collection, Mapping, Sequence

from tessera.dtypes import DType
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.block_ops import Each
from tessera.schedule.dependence import Dependence
from tessera.schedule.rebuild import with_bodies
from tessera.schedule.sentinel_ops import Sentinel

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


def put_sentinels(func: Func, checks: Collection[str]) -> Func:
    """The program with sentinels for these checks."""
    unwatched = has_unwatched(func)
    return with_bodies(func, lambda kernel: _kernel(kernel.body, checks, unwatched))


def has_unwatched(func: Func) -> bool:
    """Whether something writes memory that nobody looks at as it is written: calls of the host,
    running sums, and what is combined in memory."""
    return any(_is_unwatched(op) for op in walk(func.body))


def _is_unwatched(op: Op) -> bool:
    if isinstance(op, ops.Store):
        return op.combine is not None
    return isinstance(op, (ops.HostCall, ops.Scan))


def _kernel(block: Block, checks: Collection[str], unwatched: bool) -> Block:
    code: list[Op] = []
    for op in block.ops:
        if isinstance(op, Each):
            op = op.rebuild(regions=[_kernel(op.body, checks, unwatched)])
        elif isinstance(op, ops.Nest):
            op = op.rebuild(regions=[_Watching(op.body, checks, unwatched).block(op.body)])
        code.append(op)
    return Block(block.args, code, block.outputs)


def _dtype(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, ScalarType) else None


def _is_inexact(value: Value) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_inexact


class _Watching:
    """The body of a nest.

    Attributes:
        users: the ops that take a value, and those whose region yields it.
        yielded: values that a region yields.
        may: values that may be NaN by what the nest does.
        conditions: for each value those under which it is used.
    """

    def __init__(self, body: Block, checks: Collection[str], unwatched: bool) -> None:
        self.checks = frozenset(checks)
        self.unwatched = unwatched
        self.dependence = Dependence(body)
        self.users: dict[Value, list[Op]] = {}
        self.yielded: set[Value] = set()
        self.may: set[Value] = set()
        self.conditions: dict[Value, list[tuple[Value, bool]]] = {}
        self._note(body)

    def _note(self, block: Block) -> None:
        for op in block.ops:
            for value in dict.fromkeys(op.operands):
                self.users.setdefault(value, []).append(op)
            if isinstance(op, loop_ops.LOOPS):
                # What is carried may be anything from the second step on.
                self.may.update(*[region.args for region in op.regions])
            for region in op.regions:
                self._note(region)
                for value in region.outputs:
                    self.users.setdefault(value, []).append(op)
                    self.yielded.add(value)
            if op.results and self._may_be_nan(op):
                self.may.update(op.results)

    # --- NaN ----------------------------------------------------------------------------------

    def _may_be_nan(self, op: Op) -> bool:
        """Whether the results of an op may be NaN although what was read was not."""
        if not any(_is_inexact(v) for v in op.results):
            return False
        match op:
            case ops.Load():
                return self.unwatched
            case ops.Map():
                makes = op.fn.name not in NO_NAN
                # What may be NaN and is hidden is looked at before.
                return makes or (op.fn.name not in HIDES_NAN and self._of_nan(op.operands))
            case ops.Cast():
                dtype = _dtype(op.result)
                # Formats without infinities have NaN for what is too large.
                return self._of_nan(op.operands) or (dtype is not None and dtype.bits < 16)
            case ops.Reduce():
                return op.fn.name in ("add", "mul", "logaddexp") or self._of_nan(op.body.outputs)
            case ops.Contract() | loop_ops.Recur() | loop_ops.Repeat():
                return True
            case _:
                return False

    def _of_nan(self, values: Sequence[Value]) -> bool:
        return any(v in self.may for v in values)

    def _keeps_nan(self, op: Op, value: Value) -> bool:
        """Whether an op gives NaN if it is given NaN, and somebody looks at what it gives."""
        match op:
            case ops.Map():
                is_float = _is_inexact(op.result) and not _is_complex(op.result)
                keeps = is_float and op.fn.name not in HIDES_NAN
            case ops.Cast():
                keeps = _is_inexact(op.result) and not _is_complex(value)
            case ops.Reduce() | ops.Contract():
                keeps = True
            case loop_ops.Recur():
                keeps = value in op.init or value in op.body.outputs
            case _:
                return False
        if not keeps:
            return False
        is_only = self.users[value] == [op]
        return is_only or not any([self.guard(v) for v in op.results])

    # --- where values are used ----------------------------------------------------------------

    def guard(self, value: Value) -> list[tuple[Value, bool]]:
        """The conditions under which a value is used, each with the truth value that is wanted;
        none where it always is."""
        found = self.conditions.get(value)
        if found is not None:
            return found
        self.conditions[value] = []
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

    # --- sentinels ----------------------------------------------------------------------------

    def block(self, block: Block) -> Block:
        """A block with sentinels at its end; itself if there are none."""
        code: list[Op] = []
        env: dict[Value, Value] = {}
        for op in block.ops:
            inner = isinstance(op, (ops.Reduce, ops.ArgReduce, ops.Scan, loop_ops.Recur))
            regions = [self.block(region) if inner else region for region in op.regions]
            operands = [env.get(v, v) for v in op.operands]
            if regions != list(op.regions) or operands != list(op.operands):
                fresh = op.rebuild(operands, regions)
                env.update(zip(op.results, fresh.results, strict=True))
                code.append(fresh)
            else:
                code.append(op)
        found = _Sentinels(env, self.dependence)
        for op in block.ops:
            for value in op.results:
                if "nan" in self.checks and self.is_end(value):
                    found.add("isnan", value, (), self.guard(value))
            if self.checks & {"inf", "overflow"}:
                poles = {} if "inf" in self.checks else POLE_AT_ZERO
                for value in op.results if self.may_overflow(op) else ():
                    found.infinity(op, value, poles, self.guard(value))
        code += found.code()
        if code == list(block.ops):
            return block
        return Block(block.args, code, [env.get(v, v) for v in block.outputs])

    def is_end(self, value: Value) -> bool:
        """Whether a value may be NaN, and nothing that is looked at shows it."""
        if value not in self.may or not _is_inexact(value):
            return False
        return not any([self._keeps_nan(op, value) for op in self.users.get(value, ())])

    def may_overflow(self, op: Op) -> bool:
        """Whether an op may give an infinity that is to be told."""
        if not any([_is_inexact(v) for v in op.results]):
            return False
        match op:
            case ops.Map():
                return op.fn.name in (GROWS if "inf" in self.checks else GROWS - POLES)
            case ops.Cast():
                source, dtype = _dtype(op.x), _dtype(op.result)
                assert source is not None
                assert dtype is not None
                return source.is_inexact and source.bits > dtype.bits
            case ops.Reduce():
                return op.fn.name in ("add", "mul", "logaddexp")
            case _:
                return isinstance(op, (ops.Contract, loop_ops.Repeat))


def _is_complex(value: Value) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_complex


class _Sentinels:
    """The sentinels of one block.

    Args:
        env: what values of the block have become.
        dependence: on which axes they depend. What is the same all along a row is told of once.
    """

    def __init__(self, env: Mapping[Value, Value], dependence: Dependence) -> None:
        self.env = env
        self.dependence = dependence
        self.loc = Loc.unknown
        self.ops: list[Op] = []
        self.made: dict[tuple[object, ...], Value] = {}
        self.bad: dict[tuple[str, frozenset[str]], tuple[Value, Loc]] = {}

    def map(self, name: str, *args: Value) -> Value:
        """A scalar function, once for equal operands."""
        key = (name, *args)
        found = self.made.get(key)
        if found is None:
            op = ops.Map(args, SCALARS[name], loc=self.loc)
            self.ops.append(op)
            found = self.made[key] = op.result
        return found

    def add(
        self,
        name: str,
        value: Value,
        conditions: Sequence[Value],
        guard: Sequence[tuple[Value, bool]],
    ) -> None:
        """A value that is looked at, under conditions, and where a guard holds."""
        op = value.op
        assert op is not None
        self.loc = op.loc
        looks = "isnan" if name == "isnan" else "isinf"
        bad = self.map(name, self.env.get(value, value))
        if name == "isfinite":
            bad = self.map("not", bad)
        for condition in conditions:
            bad = self.map("and", bad, condition)
        axes = self.dependence.values[value]
        for condition, wanted in guard:
            axes = axes | self.dependence.values[condition]
            holds = self.env.get(condition, condition)
            bad = self.map("and", bad, holds if wanted else self.map("not", holds))
        before = self.bad.get((looks, axes))
        if before is not None:
            bad, loc = self.map("or", before[0], bad), before[1]
        else:
            loc = op.loc
        self.bad[looks, axes] = bad, loc

    def infinity(
        self,
        op: Op,
        value: Value,
        poles: Mapping[str, int],
        guard: Sequence[tuple[Value, bool]],
    ) -> None:
        """An infinity that is looked for where it is made of what is finite."""
        self.loc = op.loc
        if op.regions:  # what it was made of is not at hand any more
            if _is_inexact(value):
                self.add("isfinite", value, (), guard)
            return
        given = [self.env.get(v, v) for v in op.operands]
        conditions = [self.map("isfinite", v) for v in given if not _is_finite(v)]
        at = poles.get(op.fn.name) if isinstance(op, ops.Map) else None
        if at is not None:
            dtype = _dtype(given[at])
            assert dtype is not None
            zero = ops.Const(0.0, dtype, loc=op.loc)
            self.ops.append(zero)
            conditions.append(self.map("ne", given[at], zero.result))
        self.add("isinf", value, conditions, guard)

    def code(self) -> list[Op]:
        """The ops."""
        told = [Sentinel(bad, SCALARS[fn], loc=loc) for (fn, _), (bad, loc) in self.bad.items()]
        return [*self.ops, *told]


def _is_finite(value: Value) -> bool:
    """Whether a value is a number that is known."""
    return isinstance(value.op, ops.Const) and cmath.isfinite(value.op.value)
