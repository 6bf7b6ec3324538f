"""What functions did when they were traced before, so that they need not be traced in full again.

Outside of `jit` a gradient is taken anew in each call, as Python may do something else each time.
It hardly does: it calls the same functions of arrays of the same types, in the same order. So what
it calls is followed rather than recorded. A `Step` is a call of one function that is marked
(`graph/shortcut.py`) after some others; it has the ops that were recorded, and the steps that came
next, by what was called with which arguments. While what is called is known, a `Walk` goes from
step to step: results are tracers of the values that were recorded the first time, and nothing is
computed. At the end it is known what the whole function is, and what was made of that.

Invariants:

1. A call that is followed does what is recorded: all that a marked function depends on is in the
   key of its step, or an argument. Its arrays are traced, so that what it makes of their elements
   is in the program; one that reads elements otherwise is not followed.
2. Whoever asks for a value gets it: all that was followed is computed then (`catch_up`), op by op
   as while tracing. Errors are those of the first time: what is followed has none.
3. Ops of functions that are not marked, or that look at elements, are steps of their own; regions
   are told apart by their content. An op with effects or a function of the user ends the walk: all
   ops so far are computed, and tracing goes on as if there were no steps.

Transforms nest: the inputs of a walk, and what it captures, may be traced values of the one around
it. To that one, what was made of the inner function is a call as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from tessera.config import config
from tessera.errors import AROUND, TesseraError
from tessera.graph.array import READERS, Array
from tessera.graph.device import CPU, default_device
from tessera.graph.effects import is_watched, now_suspended
from tessera.graph.engine import ENGINE
from tessera.graph.remote import Remote
from tessera.graph.step_keys import Deferred, Keys, plain_key
from tessera.graph.trace import Trace, Tracer, as_tuple, count_active, traces
from tessera.graph.transforms.evaluate import arguments_of, bind_op
from tessera.ir import assumptions
from tessera.ir import loc as _loc
from tessera.ir.core import Op, Value
from tessera.ir.effects import PURE
from tessera.ir.loc import ORIGIN
from tessera.ir.types import TensorType

MOST_STEPS = 1 << 14
"""Steps of all functions that are kept."""

MOST_NEXT = 64
"""Steps that may come after one: a number that is another one each time is another call."""

MOST_KEPT = 4096
"""Bytes of an array that is part of a step."""

Made: TypeAlias = "Value | Array | tuple[Callable[..., Any], Sequence[Made]]"
"""What a call gives: a traced value, an array that is always the same, or several of these."""


class Step:
    """A call of a marked function, or an op, after others.

    Attributes:
        ops: what it recorded.
        captured: the values of the arrays that it was given first.
        constants: arrays that do not depend on any argument, and their values.
        made: its result.
        next: the steps that came after it, by what was called.
        ends: what was made of the functions that ended behind it, by what they returned.
    """

    __slots__ = ("captured", "constants", "ends", "made", "next", "ops")

    def __init__(
        self,
        ops: Sequence[Op] = (),
        captured: Sequence[Value] = (),
        constants: Sequence[tuple[Array, Value]] = (),
        made: Made = (tuple, ()),
    ) -> None:
        self.ops = ops
        self.captured = captured
        self.constants = constants
        self.made = made
        self.next: dict[Hashable, Step] = {}
        self.ends: dict[Hashable, End] = {}


_IN_PARTS = Step()
"""In the place of the step of a function that looks at elements: its ops are steps."""


class End(Protocol):
    """What was made of a function whose steps are known."""

    def __call__(self, operands: Sequence[Any]) -> Any:
        """The result, for what the function captures, but for constants, and its inputs."""
        ...


class _Root:
    """Where walks begin that have inputs of the same types."""

    __slots__ = ("inputs", "step")

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.inputs = [Value(x) for x in types]
        self.step = Step()


_ROOTS: dict[Hashable, _Root] = {}
_COUNT = [0]


def begin(key: Hashable, inputs: Sequence[Any], types: Sequence[TensorType]) -> Walk | None:
    """A walk for a function that is traced, if its calls may be followed.

    Args:
        key: the transform, the code of the function, and the structure of its inputs.
        inputs: arrays, or traced values of the walk around this one.
        types: the types of what stands for them in the function.
    """
    if AROUND or default_device() is not CPU or is_watched():
        return None
    settings = config.current()
    if settings.debug_nans or settings.debug_infs or settings.sentinels or now_suspended() != PURE:
        return None
    stack = traces()
    outer = stack[-1].walk if stack else None
    if stack and (outer is None or not outer.is_open):
        return None
    if assumptions.current() is not None or not all([_is_known(x, outer) for x in inputs]):
        return None
    promises = _loc.promises()
    key = (key, config.override.get(), promises, *[(x.shape, x.dtype) for x in types])
    if _COUNT[0] >= MOST_STEPS:
        _COUNT[0] = 0
        _ROOTS.clear()
    root = _ROOTS.get(key)
    if root is None:
        root = _ROOTS[key] = _Root(types)
        _COUNT[0] += 1
    return Walk(root, promises, outer)


def followed(
    function: Callable[..., Any],
    whole: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a function of arrays while something is traced.

    Args:
        function: depends on the types of arrays, and on the other arguments, alone; or says itself
            that it looks at elements, by `Array.host`.
        whole: the same as others call it, which may be run by native code.
        args: its arguments.
        kwargs: those by name.
    """
    stack = traces()
    walk = stack[-1].walk if stack else None
    if walk is None:
        return function(*args, **kwargs)
    return walk.call(function, whole, args, kwargs)


def _aside(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function that has to do with nothing that is traced, as if nothing were."""
    stack = traces()
    hidden = stack[:]
    stack.clear()
    count_active()
    try:
        return function(*args, **kwargs)
    finally:
        stack[:] = hidden
        count_active()


def _is_known(x: Any, outer: Walk | None) -> bool:
    """Whether an input is an array on the host, or a traced value of the walk around."""
    if type(x) is Array:
        return type(x.storage) is np.ndarray and not x.weak
    return outer is not None and isinstance(x, Tracer) and x.trace is outer.trace


class Walk:
    """One call of a function that is traced, as far as it is known.

    Args:
        root: where it begins.
        promises: what is promised of ops there.
        outer: the walk around it.

    Attributes:
        trace: the trace of the function.
        fixed: the values of captured arrays that are always the same.
    """

    def __init__(self, root: _Root, promises: Hashable, outer: Walk | None) -> None:
        self.trace: Trace
        self.fixed: set[Value] = set()
        self._root = root
        self._outer = outer
        self._step = root.step
        self._promises = promises
        self._override = config.override.get()
        self._waiting: list[Step] = []
        self._is_inside = False
        self._is_over = False
        self._sees_values = False
        self._end: Hashable = None

    @property
    def is_open(self) -> bool:
        """Whether calls are followed now."""
        return not self._is_over and not self._is_inside

    @property
    def is_whole(self) -> bool:
        """Whether all that the function did, from the beginning to the end, is steps."""
        return self._end is not None

    def inputs(self, trace: Trace, values: Sequence[Any]) -> list[Tracer]:
        """The tracers of the inputs in a new trace.

        Args:
            trace: the trace.
            values: what the inputs carry, None where the trace is abstract.
        """
        self.trace = trace
        trace.walk = self
        inputs = self._root.inputs
        trace.builder.args[:] = inputs
        if not trace.abstract:
            trace.known.update(zip(inputs, values, strict=True))
        return [Tracer(trace, v, x) for v, x in zip(inputs, values, strict=True)]

    def call(
        self,
        function: Callable[..., Any],
        whole: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a function of arrays gives; see `followed`."""
        if not self.is_open:
            return function(*args, **kwargs)
        plain = plain_key(self.trace, function, args, kwargs)
        found = self._step.next.get(plain) if plain is not None and self._is_as_before() else None
        if found is not None and found is not _IN_PARTS:
            return self._follow(found, ())
        keys = Keys(self.trace)
        key = keys.of_call(function, args, kwargs)
        if key is not None and not keys.is_traced:
            if self._outer is not None:
                return self._outer.call(function, whole, args, kwargs)
            return _aside(whole, args, kwargs)
        if key is None or not self._is_as_before():
            return function(*args, **kwargs)
        found = self._step.next.get(key)
        if found is None:
            return self._learn_call(key, function, args, kwargs, keys)
        if found is _IN_PARTS:
            return function(*args, **kwargs)
        return self._follow(found, keys.new)

    def record(
        self,
        cls: type[Op],
        operands: Sequence[Any],
        attrs: dict[str, Any],
        known: Sequence[Any] | None,
    ) -> Any:
        """What an op gives that is no part of a call of a marked function that is a step;
        `NotImplemented` where it is to be recorded."""
        if known is not None:
            # Its results are not what the op itself would give: a function of the user ran.
            self._sees_values = True
            self.leave()
        if not self.is_open:
            return NotImplemented
        keys = Keys(self.trace)
        key = keys.of_call(cls, operands, attrs)
        if key is None or not keys.is_traced or not self._is_as_before():
            self.leave()
            return NotImplemented
        found = self._step.next.get(key)
        if found is not None:
            return self._follow(found, keys.new)
        return self._learn_op(key, cls, operands, attrs, keys)

    def _is_as_before(self) -> bool:
        """Whether what is in force around the calls of arrays is what it was in the beginning."""
        return (
            not AROUND
            and config.override.get() is self._override
            and default_device() is CPU
            and _loc.promises() == self._promises
        )

    def _follow(self, found: Step, new: Sequence[Any]) -> Any:
        trace = self.trace
        self._step = found
        self._waiting.append(found)
        for x, value in zip(new, found.captured, strict=True):
            trace.capture(x, value)
        for x, value in found.constants:
            trace.capture(x, value)
            self.fixed.add(value)
        made = found.made
        return Deferred(trace, made) if isinstance(made, Value) else self._result(made)

    def _result(self, made: Made) -> Any:
        if isinstance(made, Value):
            return Deferred(self.trace, made)
        if isinstance(made, Array):
            return another(made)
        make, items = made
        return make([self._result(item) for item in items])

    def _learn_call(
        self,
        key: Hashable,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        keys: Keys,
    ) -> Any:
        self.catch_up()
        if not self._has_room():
            return function(*args, **kwargs)
        ops, captured = self.trace.builder.ops, self.trace.captured
        before = len(ops), len(captured)
        try:
            result = self._watched(function, args, kwargs)
        except BaseException:
            self.leave()
            raise
        values: list[Value] = []
        if keys.has_captured and not self._sees_values:
            # What it made of elements of arrays was made at once: once more, to see it.
            self._undo(*before)
            values = [self.trace.lift(x) for x in keys.new]
            traced = {name: self._traced(x) for name, x in kwargs.items()}
            try:
                result = self._watched(function, tuple([self._traced(x) for x in args]), traced)
            except TesseraError:
                self._sees_values = True  # it is about more than types
        if not self._sees_values and self._add(key, before, values, result):
            return result
        self._undo(*before)
        self._step.next[key] = _IN_PARTS
        return function(*args, **kwargs)

    def _learn_op(
        self,
        key: Hashable,
        cls: type[Op],
        operands: Sequence[Any],
        attrs: dict[str, Any],
        keys: Keys,
    ) -> Any:
        self.catch_up()
        if not self._has_room():
            return NotImplemented
        before = len(self.trace.builder.ops), len(self.trace.captured)
        values = [self.trace.lift(x) for x in keys.new]
        self._is_inside = True
        try:
            result = self.trace.record(cls, operands, attrs)
        finally:
            self._is_inside = False
        if not self._add(key, before, values, result):
            self.leave()
        return result

    def _has_room(self) -> bool:
        """Whether another step may come next; the walk ends if not."""
        if len(self._step.next) >= MOST_NEXT:
            self.leave()
        return self.is_open

    def _undo(self, ops: int, captured: int) -> None:
        """Forgets what was recorded since there were so many ops and captured arrays."""
        trace = self.trace
        del trace.builder.ops[ops:]
        for one in list(trace.captured)[captured:]:
            trace.captured.pop(one)

    def _add(
        self, key: Hashable, before: tuple[int, int], values: Sequence[Value], result: Any
    ) -> bool:
        """Makes a step of what was recorded, if it may be one, and goes there.

        Args:
            key: what was called.
            before: how many ops and captured arrays there were.
            values: the first of those that there are now, which are arguments.
            result: what the call gave.
        """
        trace = self.trace
        made = self._made(result)
        ops = tuple(trace.builder.ops[before[0] :])
        more = list(trace.captured.values())[before[1] + len(values) :]
        is_plain = not any([op.get_effects() for op in ops])
        if made is None or not is_plain or not all([_is_kept(x) for x, _ in more]):
            return False
        self.fixed.update([value for _, value in more])
        found = self._step.next[key] = Step(ops, values, more, made)
        self._step = found
        _COUNT[0] += 1
        return True

    def _watched(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a function gives, which is told from others by whether it reads elements."""
        self._is_inside, self._sees_values = True, False
        READERS.append(self._read)
        try:
            return function(*args, **kwargs)
        finally:
            self._is_inside = False
            READERS.remove(self._read)

    def _read(self, data: object) -> None:
        self._sees_values = True

    def _traced(self, x: Any) -> Any:
        """An argument, with a tracer in the place of what is captured."""
        if type(x) is Array or (isinstance(x, Tracer) and x.trace is not self.trace):
            return Tracer(self.trace, self.trace.lift(x), x)
        if type(x) in (tuple, list):
            make: Any = type(cast("object", x))
            return make([self._traced(item) for item in x])
        return x

    def _made(self, result: Any) -> Made | None:
        """How the result of a call is made again; None where that is not known."""
        if isinstance(result, Tracer):
            return result.value if result.trace is self.trace else None
        if type(result) is Array:
            return another(result) if _is_kept(result) else None
        if not isinstance(result, (tuple, list)):
            return None
        items = [self._made(x) for x in cast("Sequence[Any]", result)]
        found = [x for x in items if x is not None]
        make: Any = type(cast("object", result))
        make = make if make in (tuple, list) else getattr(make, "_make", None)
        return None if make is None or len(found) < len(items) else (make, found)

    def catch_up(self) -> None:
        """Computes what was followed."""
        if not self._waiting:
            return
        trace = self.trace
        known = trace.known
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            for op in () if trace.abstract else step.ops:
                found = _computed(op, [known[v] for v in op.operands])
                known.update(zip(op.results, found, strict=True))
            trace.builder.ops += step.ops

    def leave(self) -> None:
        """Ends the walk: what comes is recorded."""
        if not self._is_over and not self._is_inside:
            self.catch_up()
            self._is_over = True

    def end(self, leaves: Sequence[Any], structure: Hashable) -> End | None:
        """What was made of a function that did the same; else all is computed, and None.

        Args:
            leaves: what the function returns.
            structure: of the result.
        """
        self._end = None
        trace = self.trace
        is_whole = all([isinstance(x, Tracer) and x.trace is trace for x in leaves])
        if not self._is_over and is_whole:
            self._end = (structure, *[x.value for x in leaves])
            found = self._step.ends.get(self._end)
            if found is not None:
                return found
        self.catch_up()
        return None

    def remember(self, end: End) -> None:
        """Says what is made of functions that do the same."""
        if self._end is not None:
            self._step.ends[self._end] = end

    def operands(self, leaves: Sequence[Array]) -> list[Array]:
        """The arrays that an end is given."""
        fixed = self.fixed
        return [*[x for x, v in self.trace.captured.values() if v not in fixed], *leaves]


def _computed(op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of an op, which is recorded where one of its operands is."""
    outer = ORIGIN.loc
    ORIGIN.loc = op.loc or outer
    try:
        if not all([type(x) is Array for x in operands]):
            return bind_op(op, operands)
        # No trace that was begun since has to do with it.
        items, attrs = arguments_of(op, operands)
        return as_tuple(ENGINE[0].evaluate(type(op), items, attrs))
    finally:
        ORIGIN.loc = outer


def another(x: Array) -> Array:
    """The same array as another object: who has one may give it away."""
    return Array(x.storage, x.type if x.weak else None)


def _is_kept(x: Any) -> bool:
    """Whether an array that is always the same is small enough to be kept."""
    if type(x) is not Array or isinstance(x.storage, Remote):
        return False
    return x.storage.nbytes <= MOST_KEPT or not any(x.storage.strides)
