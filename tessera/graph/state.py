"""State while functions are traced: what a cell holds, in each trace.

A `Cell` is memory with a name: its contents change, their types never do. Outside any trace it
holds elements of arrays. A trace does not touch these. What it reads and writes stands in its
`Scope`, a table from cells to their contents in that trace, so that a recorded program is pure:

1. What a cell holds, a trace asks of the trace around it, and the outermost one of the cell. In an
   *explicit* scope (`jit`, bodies of loops and branches) the contents become inputs of the program,
   which whoever calls it gives; in others (`grad`, `vmap`) they are captured as any outer value.
2. What a trace writes is an output of its program. Whoever recorded it stores that in the scope
   around it, once the transform has succeeded; so an error leaves all cells as they were.
3. A cell that is made while something is traced belongs to that trace, and ends with it.
4. Rules of the user also run in traces that transforms make for themselves, of what was traced
   already. State is no part of the interface of these: what they record says it by ops
   (`graph/ops/refs.py`), which become values in the first trace around them that has a scope of
   cells (`discharge.py`). Those that record nothing but linear functions of tangents have no state:
   what happens in them is part of the trace around them.

While a call runs that writes a cell, the cell is empty: its memory belongs to the call.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.config import OVERRIDDEN
from tessera.errors import StateError
from tessera.graph.array import Array
from tessera.graph.effects import Occurrence, happens, is_watched
from tessera.graph.finalizers import in_finalizer
from tessera.graph.ops.refs import Link, RefGet, RefSet
from tessera.graph.trace import STATE_RULES, Trace, Tracer, as_tuple, note_effects, traces
from tessera.ir import loc
from tessera.ir.effects import Effect, EffectKind
from tessera.ir.types import TensorType

_INSIDE = "what transforms trace for themselves writes no refs"


class Cell:
    """Memory with a name.

    Attributes:
        name: what messages and programs call it.
        types: of the arrays that it holds.
        kind: one object for all cells that a program may have in the same place, for native code.
        number: counts cells.
        slot: one list, of the elements of the arrays; nothing while a call has them, or after the
            end of the cell. Taking from a list is one step for all threads.
        home: the trace that it belongs to; None if it is not local.
        param: which argument of a compiled function it stands for, while that is traced.
        user: the call that has its elements, and the thread of that call.
        is_deleted: whether its memory was given back.
    """

    __slots__ = (
        *("__weakref__", "home", "is_deleted", "kind", "name", "number", "param", "slot", "types"),
        "user",
    )

    def __init__(self, name: str, types: Sequence[TensorType], structure: Hashable = None) -> None:
        self.name = name
        self.types = tuple(types)
        self.kind = _kind(structure, self.types)
        self.number = next(_NUMBERS)
        self.slot: list[list[Any]] = []
        self.home: Trace | None = None
        self.param: int | None = None
        self.user: tuple[str, int] = ("", 0)
        self.is_deleted = False

    def begin(self, leaves: Sequence[Any]) -> None:
        """The first contents."""
        stack = _traces_here()
        if stack:
            self.home = stack[-1]
            scope_of(self.home).held[self] = Held(list(leaves))
        else:
            self.slot.append([x.contiguous for x in leaves])

    def stand_for(self, param: int) -> None:
        """Makes it what an argument of a compiled function is while that is traced."""
        self.param = param
        self.home = traces()[-1]
        scope_of(self.home).take(self)

    def contents(self) -> list[Array]:
        """The arrays that it holds outside any trace."""
        try:
            data = self.slot[0]
        except IndexError:
            raise self.unusable() from None
        # Arrays of their own: who has one is seen to have the elements, which are then copied
        # where they would be overwritten.
        return [Array(x, t) for x, t in zip(data, self.types, strict=True)]

    def take(self, user: str) -> list[Any]:
        """Takes its elements, for a call that writes to them; `give` puts others back."""
        try:
            found = self.slot.pop()
        except IndexError:
            raise self.unusable() from None
        self.user = user, threading.get_ident()
        return found

    def give(self, data: list[Any]) -> None:
        """Ends what `take` began."""
        if not self.is_deleted:
            self.slot[:] = [data]

    def replace(self, leaves: Sequence[Any]) -> None:
        """Puts other arrays in the place of those that it holds outside any trace."""
        data = [x.contiguous for x in leaves]
        self.take("")
        self.give(data)

    def delete(self) -> None:
        """Gives its memory back."""
        self.check_usable()
        if traces():
            raise StateError(
                f"Ref.delete of `{self.name}` while `{traces()[-1].kind}` traces a function",
                loc=loc.current(),
                rule="a program cannot delete a ref",
                fix="delete it after the call",
            )
        self.take("")
        self.is_deleted = True

    def check_usable(self) -> None:
        """Fails for a cell that is deleted, or whose trace is over."""
        if self.is_deleted or (self.home is not None and not self.home.alive):
            raise self.unusable()

    def is_outer(self) -> bool:
        """Whether the innermost trace has it from outside; fails where it is of no use."""
        self.check_usable()
        return self.param is not None or self.home is not traces()[-1]

    def unusable(self) -> StateError:
        """The error for a cell that has no contents here."""
        what = f"use of the ref `{self.name}`"
        if self.is_deleted:
            return StateError(
                f"{what} after it was deleted",
                loc=loc.current(),
                rule="`ref.delete()` gives the memory of a ref back",
                fix="make another one: `ts.Ref(value)`",
            )
        if self.home is not None:
            return self._outlived(what)
        user, thread = self.user
        other = "" if thread == threading.get_ident() else " of another thread"
        return StateError(
            f"{what} while a call of {user}{other} writes it" if user else f"{what} by two threads",
            loc=loc.current(),
            rule="a ref has one user at a time: its memory belongs to a call that writes it until "
            "that returns",
            fix="pass the contents to the callback as an argument"
            if not other and user
            else "let one thread have it, or use a lock",
        )

    def _outlived(self, what: str) -> StateError:
        home = self.home
        assert home is not None
        function = home.function or "a function"
        if self.param is not None:
            return StateError(
                f"{what}, an argument, after `{home.kind}` has traced {function}",
                loc=loc.current(),
                rule="in a function that is traced, an argument stands for the ref of each call",
                fix="use the ref that was passed; keep no argument in a global, an attribute or a "
                "list",
            )
        return StateError(
            f"{what}, made while `{home.kind}` traced {function}, after that",
            loc=loc.current(),
            rule="a ref that a traced function makes is local to it, and ends with it",
            fix="make the ref before the call, and use it in the function or pass it",
        )


@functools.lru_cache(1024)
def _kind(structure: Hashable, types: tuple[TensorType, ...]) -> object:
    return structure, types


class Held:
    """What a cell holds in a trace.

    Attributes:
        values: its arrays and tracers.
        inputs: the inputs of the trace that they were at first, in an explicit scope.
        is_read: whether somebody asked for them.
        place: where they were written last; None if they were not.
    """

    __slots__ = ("inputs", "is_read", "place", "values")

    def __init__(self, values: list[Any], inputs: list[Tracer] | None = None) -> None:
        self.values = values
        self.inputs = inputs
        self.is_read = False
        self.place: loc.Loc | None = None


class Scope:
    """The cells that a trace has touched.

    Args:
        trace: the trace.
        explicit: whether contents become inputs of its program.
        refusal: the rule against writing other cells than local ones; None if they may be written.
        fix: what to do instead.
    """

    __slots__ = ("explicit", "fix", "held", "names", "refusal", "trace")

    def __init__(
        self, trace: Trace, explicit: bool, refusal: str | None, fix: str | None = None
    ) -> None:
        self.trace = trace
        self.explicit = explicit
        self.refusal = refusal
        self.fix = fix
        self.held: dict[Cell, Held] = {}
        self.names: list[str] = []

    def take(self, cell: Cell) -> Held:
        """A cell that is touched for the first time; without its contents where these are
        captured."""
        if not self.explicit:
            found = Held([])
        else:
            self.names += [cell.name] * len(cell.types)
            inputs = [self.trace.input(t, name=_identifier(cell.name)) for t in cell.types]
            found = Held([*inputs], inputs)
        self.held[cell] = found
        return found

    def touch(self, cell: Cell) -> None:
        """Makes a cell one of those that the trace has touched."""
        if cell not in self.held:
            self.take(cell)

    def finish(self) -> list[Touched]:
        """Ends the scope; gives the cells that are not local: all that are inputs of the program,
        or all written ones."""
        found = [
            Touched(cell, held.inputs or [], held.values, held.is_read, held.place)
            for cell, held in self.held.items()
            if held.inputs is not None or (held.place is not None and cell.home is not self.trace)
        ]
        # What is kept of a trace keeps no cells.
        self.held = {}
        return found


@dataclass(frozen=True)
class Touched:
    """A cell that a finished trace has touched.

    Attributes:
        cell: the cell.
        inputs: the inputs of the trace that are its contents at first.
        values: its contents at the end.
        is_read: whether the function asked for them.
        place: where it was written last; None if it was not.
    """

    cell: Cell
    inputs: list[Tracer]
    values: list[Any]
    is_read: bool
    place: loc.Loc | None


def _traces_here() -> list[Trace]:
    """The traces that what runs here belongs to: none for a finalizer."""
    stack = traces()
    return [] if stack and in_finalizer(stack[0].frame, arguments=True) else stack


def scope_of(trace: Trace) -> Scope:
    """The scope of a trace."""
    if trace.scope is None:
        trace.scope = Scope(trace, False, _INSIDE)
    return trace.scope


class _Rules(threading.local):
    """The user's rules that run: what messages call each, and the number of the first cell that it
    may have made itself."""

    def __init__(self) -> None:
        self.running: list[tuple[str, int]] = []


_RULES = _Rules()
_NUMBERS = itertools.count()


@contextmanager
def running_rule(what: str) -> Generator[None]:
    """In this block runs a rule of the user, which writes no cells that are not its own."""
    _RULES.running.append((what, next(_NUMBERS)))
    try:
        yield
    finally:
        _RULES.running.pop()


def read(cell: Cell) -> list[Any]:
    """What a cell holds here, for the user's program."""
    cell.check_usable()
    _happens(cell, EffectKind.READ)
    _note(cell, EffectKind.READ)
    return load(cell)


def _happens(cell: Cell, kind: EffectKind) -> None:
    if is_watched():
        happens(Effect(kind, cell.name), f"the ref `{cell.name}`", cell.number)


def next_number() -> int:
    """The number of the next cell, or one before."""
    return next(_NUMBERS)


def write(cell: Cell, values: Sequence[Any]) -> None:
    """Makes a cell hold other arrays, at the user's line."""
    if _RULES.running and cell.number < _RULES.running[-1][1]:
        raise StateError(
            f"{_RULES.running[-1][0]} writes the ref `{cell.name}`",
            loc=loc.current(),
            rule="what a transform calls as often as it needs reads refs and writes none",
            fix="return what is to be written, and write it outside",
        )
    _happens(cell, EffectKind.WRITE)
    store(cell, values)
    _note(cell, EffectKind.WRITE)


def _note(cell: Cell, kind: EffectKind) -> None:
    """The function that is traced has an effect, unless the cell is local to it."""
    if _traces_here() and (cell.home is None or cell.param is not None):
        what = f"the ref `{cell.name}`"
        note_effects([Occurrence(Effect(kind, cell.name), what, loc.current())])


def load(cell: Cell, is_read: bool = True) -> list[Any]:
    """What a cell holds here.

    Args:
        cell: the cell.
        is_read: whether the function that is traced asks for it.
    """
    cell.check_usable()
    stack = _traces_here()
    return _contents(cell, stack, len(stack) - 1, is_read)


def _contents(cell: Cell, stack: Sequence[Trace], top: int, is_read: bool) -> list[Any]:
    for k in range(top, -1, -1):
        trace = stack[k]
        scope = trace.scope
        held = None if scope is None else scope.held.get(cell)
        if held is None:
            if trace.is_inner:
                if not trace.staging:
                    continue
                return [*_record(trace, RefGet, ((),), cell, types=cell.types)]
            if k != top and (scope is None or not scope.explicit):
                continue
            held = scope_of(trace).take(cell)
        if not held.values:
            held.values = _contents(cell, stack, k - 1, is_read)
        held.is_read |= is_read
        return held.values
    return cell.contents()


def adopt(cell: Cell, values: Sequence[Any]) -> None:
    """In the innermost trace a cell holds arrays and tracers that are its own, as if they had been
    there."""
    scope_of(traces()[-1]).held[cell] = Held(list(values))


def store(cell: Cell, values: Sequence[Any], place: loc.Loc | None = None) -> None:
    """Makes a cell hold other arrays.

    Args:
        cell: the cell.
        values: arrays and tracers of its types.
        place: where the user's program does it, if not here.
    """
    cell.check_usable()
    stack = _traces_here()
    trace = _writer(cell, stack)
    level = trace.level if trace is not None else 0
    if any([isinstance(x, Tracer) and x.trace.level > level for x in values]):
        raise StateError(
            f"the ref `{cell.name}` is written with what depends on a tangent, in reverse mode",
            loc=place or loc.current(),
            rule="reverse mode does not compute tangents: it runs their computation backwards",
            fix="take `ts.jvp`; or write it in the bwd rule of a `ts.custom_vjp`, which has "
            "cotangents",
        )
    if trace is None:
        cell.replace(values)
        return
    scope = trace.scope
    held = None if scope is None else scope.held.get(cell)
    if held is None or held.place is None:
        _check_writable(cell, stack)
    if held is None and trace.is_inner:
        outer = loc.ORIGIN.loc
        loc.ORIGIN.loc = place or loc.current()
        try:
            _record(trace, RefSet, (tuple(values),), cell)
        finally:
            loc.ORIGIN.loc = outer
        return
    held = held or scope_of(trace).take(cell)
    held.values = list(values)
    held.place = place or loc.current()


def _record(
    trace: Trace, cls: type[RefGet | RefSet], operands: Sequence[Any], cell: Cell, **attrs: Any
) -> tuple[Any, ...]:
    """Records an op with state in a trace that a transform makes for itself."""
    if not STATE_RULES:
        from tessera.graph.discharge import discharged

        STATE_RULES.append(discharged)
        OVERRIDDEN.value = 1  # `bind` looks
    return as_tuple(trace.record(cls, operands, {"label": cell.name, "link": Link(cell), **attrs}))


def inner_trace() -> Trace | None:
    """The trace that records ops with state as they are: the innermost one that has state, where a
    transform makes it for itself."""
    for trace in reversed(_traces_here()):
        if trace.staging or not trace.is_inner:
            return trace if trace.is_inner else None
    return None


def _writer(cell: Cell, stack: Sequence[Trace]) -> Trace | None:
    """The trace in which a cell is written here; None if it is none."""
    for trace in reversed(stack):
        if trace.staging or not trace.is_inner:
            return trace
        if trace.scope is not None and cell in trace.scope.held:
            return trace
    return None


def _check_writable(cell: Cell, stack: Sequence[Trace]) -> None:
    """All traces out to that of the cell may write it."""
    for trace in reversed(stack):
        if cell.home is trace:
            return
        if trace.is_inner:
            continue
        scope = scope_of(trace)
        if scope.refusal is not None:
            raise StateError(
                f"`{trace.kind}` traces {trace.function or 'a function'}, which writes the ref "
                f"`{cell.name}`",
                loc=loc.current(),
                rule=scope.refusal,
                fix=scope.fix,
            )


def _identifier(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else ""
