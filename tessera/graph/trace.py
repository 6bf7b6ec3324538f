"""Tracing: running Python on tracers to record a Graph.

A `Trace` records ops into a block. It is *abstract* (`jit`, `vmap`: tracers have types only) or
*concrete* (`grad` and friends outside `jit`: each op is also computed as it is recorded, so Python
`if` works on values). The value that a concrete tracer carries may itself be a tracer of an outer
trace; that is all there is to nesting.

`bind` decides where an op goes: to the innermost trace that one of its operands belongs to, or to
the innermost trace that is *staging* (`jit`), whichever is deeper; with neither it is computed at
once by the engine. Values of outer traces and concrete arrays that an op uses become inputs of the
trace (captured), so a finished Graph is closed.

Finalizers run whenever Python likes, also while something is traced. What they compute is no part
of what is traced: it is computed at once.
"""

from __future__ import annotations

import ctypes
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, cast

import numpy as np

from tessera.config import OVERRIDDEN
from tessera.errors import (
    ConcretizationError,
    TracerLeakError,
    api_boundary,
)
from tessera.graph.array import Array, ArrayBase
from tessera.graph.effects import Occurrence, is_watched, marked, now_suspended, op_happens
from tessera.graph.engine import ENGINE
from tessera.graph.finalizers import in_finalizer
from tessera.graph.leaks import DEFAULT, find_holder
from tessera.graph.ops.checks import title
from tessera.graph.promise import Promise
from tessera.graph.transforms.silence import recorded
from tessera.ir import assumptions
from tessera.ir import loc as _loc
from tessera.ir.assumptions import Assumptions
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.effects import Effect, covers
from tessera.ir.intexpr import IntExpr, symbols
from tessera.ir.loc import ORIGIN, Loc
from tessera.ir.types import TensorType
from tessera.ir.walk import clone_block


class _State(threading.local):
    def __init__(self) -> None:
        self.stack: list[Trace] = []
        self.active = 0
        self.watched = 0


_STATE = _State()

ACTIVE = ctypes.c_int64()
"""How many traces are being recorded in all threads, and calls watched, for native code."""

# Finalizers may trace, in the middle of counting too.
_active_lock = threading.RLock()


def count_active() -> None:
    """Leaves calls to Python, not to native code, for as long as anything is traced."""
    with _active_lock:
        count = len(_STATE.stack) + _STATE.watched
        ACTIVE.value += count - _STATE.active
        _STATE.active = count


@contextmanager
def in_python() -> Generator[None]:
    """Leaves calls in a block to Python, which sees what they do."""
    _STATE.watched += 1
    count_active()
    try:
        yield
    finally:
        _STATE.watched -= 1
        count_active()


def _after_fork() -> None:
    # The other threads are gone, and with them their traces; one of them may have had the lock.
    global _active_lock
    _active_lock = threading.RLock()
    ACTIVE.value = _STATE.active


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

StateRule = Callable[[type[Op], Sequence[Any], dict[str, Any]], Any]

STATE_RULES: list[StateRule] = []
"""What becomes of ops with state, where it is not recorded as it is: gives their results, or None.
There is one as soon as a program has such an op; see `discharge.py`."""

_TO_NUMPY = "conversion to a NumPy array"


class Tracer(ArrayBase):
    """Stands for an array while a function is traced.

    Attributes:
        trace: the trace that it belongs to.
        value: the value that it stands for in that trace.
        concrete: in a concrete trace, the array or the tracer of an outer trace that it carries.
    """

    __slots__ = ("__weakref__", "concrete", "trace", "value")

    def __init__(self, trace: Trace, value: Value, concrete: Any = None) -> None:
        self.trace = trace
        self.value = value
        self.concrete = concrete

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        found = self.value.type
        assert isinstance(found, TensorType)
        return found

    def __repr__(self) -> str:
        inner = self.concrete
        while isinstance(inner, Tracer):
            inner = inner.concrete
        if inner is not None:
            return f"Tracer({inner!r})"
        return f"Tracer({self.type.strong()})"

    def concretize(self, wanted: str, fix: str) -> Array:
        """The concrete array behind the tracer.

        Args:
            wanted: what the user asked for, `bool()` or `use as an index`, without the value.
            fix: what to do instead.

        Raises:
            ConcretizationError: the tracer has no value.
            TracerLeakError: its trace is over.
        """
        self.trace.check_alive(self)
        if self.concrete is None:
            raise ConcretizationError(
                _wish(wanted, f"a traced value of type {self.type.strong()}"),
                loc=_loc.current(),
                rule=(
                    f"inside `{self.trace.kind}` an array has a type but no value while the "
                    f"function is traced"
                ),
                fix=fix,
                notes=(f"the value {self.trace.origin(self.value)}",),
            )
        inner = self.concrete
        return inner.concretize(wanted, fix) if isinstance(inner, Tracer) else inner

    @api_boundary
    def __bool__(self) -> bool:
        fix = (
            "use `ts.where`, `ts.cond` or `ts.while_loop`, `&` and `|` for `and` and `or`, or make "
            "it a static argument"
        )
        return bool(self.concretize("`bool()`", fix).host)

    @api_boundary
    def __int__(self) -> int:
        fix = "make it a static argument, or keep it an array"
        return int(self.concretize("`int()`", fix).host)

    @api_boundary
    def __float__(self) -> float:
        name = _foreign_function(_loc.current())
        fix = f"use tessera's function in the place of `{name}`" if name else "keep it an array"
        return float(self.concretize("`float()`", fix).host)

    @api_boundary
    def __complex__(self) -> complex:
        return complex(self.concretize("`complex()`", "keep it an array").host)

    @api_boundary
    def __index__(self) -> int:
        fix = (
            "make it a static argument; or loop with `ts.fori_loop`, and take elements of arrays "
            "with it"
        )
        return operator.index(self.concretize("use as a Python integer", fix).host[()])

    @api_boundary
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        name = _foreign_function(_loc.current())
        instead = f"tessera's function in the place of `{name}`" if name else "tessera's functions"
        fix = f"use {instead}, or return the value and convert outside"
        found = self.concretize(_TO_NUMPY, fix)
        if self.dtype.is_inexact:
            raise ConcretizationError(
                _wish(_TO_NUMPY, f"a traced value of type {self.type.strong()}"),
                loc=_loc.current(),
                rule=f"what NumPy computes is not traced: `{self.trace.kind}` would lose it",
                fix=fix,
                notes=(f"the value {self.trace.origin(self.value)}",),
            )
        return np.array(found.host, dtype=dtype, copy=copy)


def _wish(wanted: str, value: str) -> str:
    """What the user asked for, with the value: `use of a traced value as an index`."""
    found = re.fullmatch(r"(\w+) ((?:as|to) .*)", wanted)
    return f"{found[1]} of {value} {found[2]}" if found else f"{wanted} of {value}"


def _foreign_function(place: Loc) -> str:
    """The function of NumPy or `math` that the user calls there; empty where the source does not
    tell."""
    frames = place.frames
    call = r"\b(?:np|numpy|math)\.\w[\w.]*(?=\()"
    found = re.search(call, frames[0].text()) if frames else None
    return found[0] if found else ""


class Trace:
    """One recording.

    Args:
        kind: the transform's name, for messages.
        function: the name of the traced function, for messages.
        abstract: whether tracers carry no values.
        staging: whether ops without a tracer operand are recorded here too (`jit`).
        is_inner: whether a transform makes it for itself, of what was traced already: state is no
            part of its interface (`state.py`).

    Attributes:
        input_name: what messages call the input of a number.
        frame: the Python frame that records it, while it does.
        noted: effects that no op shows.
        scope: what the state that it touches holds in it; see `state.py`.
        walk: what is known of the function that it records; see `steps.py`.
    """

    def __init__(
        self,
        kind: str,
        function: str = "",
        abstract: bool = True,
        staging: bool = False,
        is_inner: bool = False,
    ) -> None:
        self.kind = kind
        self.function = function
        self.abstract = abstract
        self.staging = staging
        self.is_inner = is_inner
        self.alive = True
        self.level = 0
        self.builder = Builder()
        self.loc = _loc.current() if staging else Loc.unknown
        self.captured: dict[int, tuple[Any, Value]] = {}
        self.known: dict[Value, Any] = {}
        self.noted: dict[Effect, Occurrence] = {}
        self.input_name: Callable[[int], str] | None = None
        self.frame: FrameType | None = None
        self.scope: Any = None
        self.walk: Any = None

    def input(self, type: TensorType, concrete: Any = None, name: str = "") -> Tracer:
        """A new input."""
        value = self.builder.arg(type, name)
        if not self.abstract:
            self.known[value] = concrete
        return Tracer(self, value, concrete)

    def lift(self, x: Any) -> Value:
        """The value in this trace that stands for `x`, an array or a tracer of this or an outer
        trace.
        """
        if isinstance(x, Tracer):
            if x.trace is self:
                return x.value
            x.trace.check_alive(x)
        elif not isinstance(x, Array):
            raise TypeError(f"bind takes arrays and tracers, not {type(x).__name__}")
        found = self.captured.get(id(x))
        return self.capture(x, Value(x.type)) if found is None else found[1]

    def capture(self, x: Any, value: Value) -> Value:
        """Captures an array, or a tracer of an outer trace, as a value."""
        self.captured[id(x)] = (x, value)
        if not self.abstract:
            self.known[value] = x
        return value

    def lower(self, x: Any) -> Any:
        """The value that `x` carries."""
        return x.concrete if isinstance(x, Tracer) and x.trace is self else x

    def record(
        self,
        cls: type[Op],
        operands: Sequence[Any],
        attrs: dict[str, Any],
        known: Sequence[Any] | None = None,
    ) -> Any:
        """Records an op (and computes it, in a concrete trace, unless its results are known);
        returns one tracer or a tuple.
        """
        if self.walk is not None:
            found = self.walk.record(cls, operands, attrs, known)
            if found is not NotImplemented:
                return found
        lifted = [
            tuple([self.lift(x) for x in items_of(item)])
            if isinstance(item, (tuple, list))
            else self.lift(item)
            for item in operands
        ]
        if not self.abstract and known is None:
            attrs = {k: recorded(v) if isinstance(v, Block) else v for k, v in attrs.items()}
        fresh: dict[str, Any] = {
            k: clone_block(v, {}) if isinstance(v, Block) else v for k, v in attrs.items()
        }
        assumed = assumptions.current()
        if assumed is not None:
            fresh = {k: assumed.attribute(v) for k, v in fresh.items()}
        op = cls(*lifted, **fresh)
        asleep = now_suspended()
        if asleep:
            op = marked(op, asleep)
        self.builder.add(op)
        if self.abstract:
            tracers = tuple([Tracer(self, v) for v in op.results])
        else:
            outer = ORIGIN.loc
            ORIGIN.loc = op.loc or outer
            try:
                lowered = [_map(self.lower, item) for item in operands]
                if known is None:
                    values = as_tuple(bind(cls, *lowered, **attrs))
                else:
                    values = bind_known(cls, lowered, attrs, known)
            finally:
                ORIGIN.loc = outer
            self.known.update(zip(op.results, values, strict=True))
            tracers = tuple([Tracer(self, v, c) for v, c in zip(op.results, values, strict=True)])
        if assumed is not None:
            tracers = tuple([self._shown(x, assumed) for x in tracers])
        return tracers[0] if len(tracers) == 1 else tracers

    def _shown(self, x: Tracer, assumed: Assumptions) -> Tracer:
        """An array with its dims as they are shown for what is known of them.

        Ops compare dims by what they are, so one size has one expression. It is an op that says
        this, as types are what ops infer.
        """
        shape = tuple([assumed.shown(d) for d in x.type.shape])
        if shape == x.type.shape:
            return x
        attrs = {"shape": shape, "dims": tuple(range(len(shape)))}
        return self.record(Op.registry["graph.broadcast"], [x], attrs)

    def finish(self, outputs: Sequence[Any], name: str = "") -> tuple[Func, list[Any]]:
        """Ends the recording.

        Args:
            outputs: arrays or tracers.
            name: the function's name.

        Returns:
            The closed Graph, whose inputs are the captured values followed by the declared inputs,
            and the captured values.
        """
        values = [self.lift(x) for x in outputs]
        captured = list(self.captured.values())
        args = [v for _, v in captured] + self.builder.args
        body = Block(args, self.builder.ops, values)
        names: dict[str, None] = {}
        for arg in args:
            for dim in arg.type.dims():
                if isinstance(dim, IntExpr):
                    names.update(dict.fromkeys(sorted(symbols(dim))))
        return Func(name or self.function or "f", body, tuple(names)), [x for x, _ in captured]

    def origin(self, value: Value) -> str:
        """Where a value comes from, as the end of a sentence."""
        if value.op is not None:
            return f"was computed at {value.op.loc} ({title(value.op)})"
        if self.input_name is not None and value in self.builder.args:
            return f"is {self.input_name(self.builder.args.index(value))}"
        return f"is an argument of {self.function or 'the function'}"

    def check_alive(self, tracer: Tracer) -> None:
        """Fails for a tracer whose trace is over."""
        if not self.alive:
            _leak(self, tracer)


def _leak(trace: Trace, tracer: Tracer) -> NoReturn:
    function = trace.function or "a function"
    holder = find_holder(tracer)
    raise TracerLeakError(
        f"use of a traced value of type {tracer.type.strong()} after `{trace.kind}` has traced "
        f"{function}",
        loc=_loc.current(),
        rule="traced values live only while their function is traced",
        fix="make the default `None`, and the container in the function: all calls share a default"
        if holder and holder.startswith(DEFAULT)
        else "return it from the function; keep none in a global, an attribute or a list",
        notes=(
            f"the value {trace.origin(tracer.value)}",
            *((f"it is kept in {holder}",) if holder else ()),
        ),
    )


def _map(fn: Callable[[Any], Any], item: Any) -> Any:
    mapped = tuple([fn(x) for x in items_of(item)])
    return mapped if isinstance(item, (tuple, list)) else mapped[0]


def items_of(item: Any) -> tuple[Any, ...]:
    """The operands in one argument of `bind`: one, or all of a variadic field."""
    return tuple(cast("Sequence[Any]", item)) if isinstance(item, (tuple, list)) else (item,)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Results of `bind` as a tuple."""
    return cast("tuple[Any, ...]", results) if isinstance(results, tuple) else (results,)


@contextmanager
def active(trace: Trace) -> Generator[Trace]:
    """Makes a trace the innermost one of this thread; it is dead afterwards."""
    stack = _STATE.stack
    # Ctrl-C may come anywhere: what was not done yet is not undone, and what an interrupted end
    # left of it the next one does.
    try:
        stack.append(trace)
        count_active()
        trace.level = len(stack)
        # Of the `with` statement: `contextlib` stands between.
        trace.frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        yield trace
    finally:
        trace.frame = trace.walk = None
        trace.alive = False
        if trace in stack:
            stack.remove(trace)
        count_active()


def find_trace(operands: Sequence[Any]) -> Trace | None:
    """The trace that an op with these operands belongs to, or None."""
    best: Trace | None = None
    level = 0
    for item in operands:
        for x in items_of(item):
            if isinstance(x, Tracer):
                trace = x.trace
                if not trace.alive:
                    _leak(trace, x)
                if trace.level > level:
                    best, level = trace, trace.level
    stack = _STATE.stack
    if best is not None and in_finalizer(best.frame, arguments=False):
        raise _finalized(operands)
    for trace in reversed(stack):
        if trace.level <= level:
            break
        if trace.staging:
            return best if in_finalizer(trace.frame, arguments=True) else trace
    return best


def _finalized(operands: Sequence[Any]) -> TracerLeakError:
    found = next(x for item in operands for x in items_of(item) if isinstance(x, Tracer))
    return TracerLeakError(
        f"use of a traced value of type {found.type.strong()} in a finalizer",
        loc=_loc.current(),
        rule="finalizers run at any time: what they compute is no part of what is traced",
        fix="keep no traced values in objects with finalizers",
        notes=(f"the value {found.trace.origin(found.value)}",),
    )


def bind(cls: type[Op], *operands: Any, **attrs: Any) -> Any:
    """Applies a primitive to arrays or tracers.

    Args:
        cls: the op class.
        *operands: one item per operand field; a tuple for a variadic field.
        **attrs: attributes.

    Returns:
        One array or tracer, or a tuple of them when the op has several results.
    """
    if OVERRIDDEN.value:
        if is_watched():
            op_happens(cls, attrs)
        for rule in STATE_RULES:
            found = rule(cls, operands, attrs)
            if found is not None:
                return found
        for promise in _loc.promises():
            if isinstance(promise, Promise):
                attrs = promise.attributes(cls, operands, attrs)
    if not _STATE.stack and all([type(x) is Array for x in operands]):
        return ENGINE[0].evaluate(cls, operands, attrs)
    trace = find_trace(operands)
    if trace is None:
        return ENGINE[0].evaluate(cls, operands, attrs)
    return trace.record(cls, operands, attrs)


def bind_known(
    cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any], results: Sequence[Any]
) -> tuple[Any, ...]:
    """`bind` for an op whose results are known: concrete traces record it, and nobody computes it.

    Args:
        cls: the op class.
        operands: one item per operand field.
        attrs: attributes.
        results: arrays.
    """
    trace = find_trace(operands)
    if trace is None:
        return tuple(results)
    return as_tuple(trace.record(cls, operands, attrs, results))


def known_value(x: Any) -> Array | None:
    """The array behind an array or a tracer; None where it has no value."""
    while isinstance(x, Tracer):
        x = x.concrete
    return x


def traces() -> list[Trace]:
    """The active traces of this thread, the innermost last."""
    return _STATE.stack


def is_recording() -> bool:
    """Whether any trace is active in this thread."""
    return bool(_STATE.stack)


def note_effects(occurrences: Iterable[Occurrence]) -> None:
    """The function that is traced here has these effects, which no op shows, unless they are
    suspended."""
    asleep = now_suspended()
    # What a transform traces for itself, without recording what has no traced operand, is part of
    # what is traced around it.
    trace = next((t for t in reversed(_STATE.stack) if t.staging or not t.is_inner), None)
    if trace is None:
        return
    for found in occurrences:
        if not covers(asleep, found.effect):
            trace.noted.setdefault(found.effect, found)


def recorded_call() -> Loc | None:
    """Where the program that is being recorded was called: the outermost staging trace."""
    for trace in _STATE.stack:
        if trace.staging:
            return trace.loc
    return None


def is_tracing() -> bool:
    """Whether a staging trace is active in this thread."""
    stack = _STATE.stack
    return bool(stack) and any([trace.staging for trace in stack])


def is_traced_here() -> bool:
    """Whether what runs here is traced: a staging trace is active, and this is no finalizer."""
    for trace in reversed(_STATE.stack):
        if trace.staging:
            return not in_finalizer(trace.frame, arguments=True)
    return False
