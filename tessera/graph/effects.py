"""Effects of Graphs: where each comes in, and which are suspended.

What an op does is said by its class (`effects`, `get_effects`). What escapes into the signature of
a function is less: an op that was recorded in a `suspended` block has the attribute `suspended`,
which transforms keep. Effects that no op shows, such as those of state that tracing has turned into
values, are noted on the trace (`Trace.note_effects`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tessera.ir.core import Block, Op
from tessera.ir.effects import MEMORY, PURE, Effect, EffectKind, Effects, covers, uncovered
from tessera.ir.hostcall import HostFunction
from tessera.ir.loc import Loc
from tessera.ir.walk import map_ops

EFFECTS = "effects"
"""The attribute of a Graph that says its effects, as text."""

FIELD = "suspended"
"""The attribute of an op whose effects do not escape."""


class _State(threading.local):
    def __init__(self) -> None:
        self.suspended: Effects = PURE


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
                found.setdefault(effect, Occurrence(effect, _what(op, effect), op.loc))
    return found


def _what(op: Op, effect: Effect) -> str:
    function = op.attrs.get("function")
    if isinstance(function, HostFunction):
        return function.name
    return "a draw" if effect.kind is EffectKind.RANDOM else f"a {effect.kind.value}"


def escaping(op: Op) -> Effects:
    """The effects of an op without regions that belong to the signature of what has it.

    A read without a target is of the op's operands, which are values in a Graph: a barrier's, which
    is not to be merged.
    """
    effects = op.get_effects()
    if not effects or op.attrs.get(FIELD):
        return PURE
    return frozenset([e for e in effects if e.target or e.kind not in MEMORY])


def effects_of(block: Block) -> Effects:
    """The effects that escape from a block."""
    return frozenset(occurrences(block))
