"""Effects of Graphs: where each comes in, and which are suspended.

What an op does is said by its class (`effects`, `get_effects`). What escapes into the signature of
a function is less: an op that was recorded in a `suspended` block has the attribute `suspended`,
which transforms keep. Effects that no op shows, such as those of state that tracing has turned into
values, are noted on the trace (`Trace.note_effects`).

A function that runs as Python has no Graph; what it declares is checked as its effects happen
(`watched`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.config import OVERRIDDEN
from tessera.ir.core import Block, Op
from tessera.ir.effects import MEMORY, PURE, Effect, EffectKind, Effects, covers, uncovered
from tessera.ir.hostcall import HostFunction
from tessera.ir.loc import Loc, current
from tessera.ir.walk import map_ops

EFFECTS = "effects"
"""The attribute of a Graph that says its effects, as text."""

FIELD = "suspended"
"""The attribute of an op whose effects do not escape."""


@dataclass(frozen=True)
class Occurrence:
    """An effect of a function, and the first op that has it.

    Attributes:
        effect: the effect.
        what: what has it, as messages call it.
        loc: the line.
    """

    effect: Effect
    what: str
    loc: Loc


@dataclass(frozen=True)
class _Scope:
    """A function that runs as Python.

    Attributes:
        see: is told of its effects.
        suspended: what the functions around it have suspended.
        axes: the named axes around it: those of others are its own.
        first: the number of the first cell that is its own.
    """

    see: Callable[[Occurrence], None]
    suspended: Effects
    axes: frozenset[str]
    first: int


class _State(threading.local):
    def __init__(self) -> None:
        self.suspended: Effects = PURE
        self.scopes: list[_Scope] = []


_STATE = _State()


@contextmanager
def suspended(effects: Effects) -> Generator[None]:
    """What is recorded in this block may have these effects, and they do not escape from it."""
    before = _STATE.suspended
    _STATE.suspended = before | effects
    try:
        yield
    finally:
        _STATE.suspended = before


@contextmanager
def own_effects() -> Generator[None]:
    """A function is traced that has effects of its own, whoever calls it: nothing is suspended."""
    before = _STATE.suspended
    _STATE.suspended = PURE
    try:
        yield
    finally:
        _STATE.suspended = before


@contextmanager
def watched(
    see: Callable[[Occurrence], None], axes: Iterable[str], first: int
) -> Generator[None]:
    """In this block a function runs as Python, with effects of its own.

    Args:
        see: is told of each that escapes from the function, before it happens.
        axes: the named axes here.
        first: the number of the first cell that the function may have made.
    """
    OVERRIDDEN.value = 1  # `bind` looks
    scopes = _STATE.scopes
    scopes.append(_Scope(see, _STATE.suspended, frozenset(axes), first))
    try:
        with own_effects():
            yield
    finally:
        scopes.pop()


def is_watched() -> bool:
    """Whether somebody wants to know of effects as they happen."""
    return bool(_STATE.scopes)


def happens(effect: Effect, what: str, cell: int = -1) -> None:
    """Something is to happen, by the line of the user that runs.

    Args:
        effect: the effect.
        what: what has it, as messages call it.
        cell: the number of the cell that it is about.
    """
    asleep = _STATE.suspended
    for scope in reversed(_STATE.scopes):
        is_own = effect.kind is EffectKind.COLLECTIVE and effect.target not in scope.axes
        is_own = is_own or cell >= scope.first
        if not (is_own or covers(asleep, effect)):
            scope.see(Occurrence(effect, what, current()))
        asleep |= scope.suspended


def op_happens(cls: type[Op], attrs: Mapping[str, Any]) -> None:
    """An op is to run."""
    for effect in () if attrs.get(FIELD) else _visible(cls.effects_with(attrs)):
        happens(effect, _what(attrs, effect))


def now_suspended() -> Effects:
    """The effects that are suspended here."""
    return _STATE.suspended


def marked(op: Op, effects: Effects) -> Op:
    """The op with these of its effects, and of those of the ops in its regions, suspended."""
    found = op.get_effects()
    if not any([covers(effects, e) for e in found]):
        return op
    if op.regions:
        return op.rebuild(regions=[_marked_block(block, effects) for block in op.regions])
    if FIELD not in op.attrs or uncovered(effects, found):
        return op
    return op.rebuild(suspended=True)


def _marked_block(block: Block, effects: Effects) -> Block:
    return map_ops(block, lambda op: marked(op, effects))


def occurrences(block: Block) -> dict[Effect, Occurrence]:
    """The effects that escape from a block, in the order in which they come in."""
    found: dict[Effect, Occurrence] = {}
    for op in block.ops:
        if op.regions:
            for region in op.regions:
                for effect, occurrence in occurrences(region).items():
                    found.setdefault(effect, occurrence)
            continue
        effects = escaping(op)
        if effects:
            for effect in sorted(effects, key=str):
                found.setdefault(effect, Occurrence(effect, _what(op.attrs, effect), op.loc))
    return found


def _what(attrs: Mapping[str, Any], effect: Effect) -> str:
    function = attrs.get("function")
    if isinstance(function, HostFunction):
        return function.name
    return "a draw" if effect.kind is EffectKind.RANDOM else f"a {effect.kind.value}"


def escaping(op: Op) -> Effects:
    """The effects of an op without regions that belong to the signature of what has it.

    A read without a target is of the op's operands, which are values in a Graph: a barrier's, which
    is not to be merged.
    """
    effects = op.get_effects()
    return PURE if not effects or op.attrs.get(FIELD) else _visible(effects)


def _visible(effects: Effects) -> Effects:
    return frozenset([e for e in effects if e.target or e.kind not in MEMORY])


def effects_of(block: Block) -> Effects:
    """The effects that escape from a block."""
    return frozenset(occurrences(block))
