"""Effects: what an op does besides computing its results.

One lattice for all layers: sets of effects, ordered by inclusion and joined by union; the empty set
is pure. Users know four kinds by name: `random`, `io`, `memory(NAME)` and `collective(AXIS)`; to
the layers below, memory is read or written. What each kind means for passes:

- `random`: draws numbers of a key. The key says which, so a draw may be merged with an equal one,
  removed where nobody uses it, moved, and made again.
- `collective(AXIS)`: combines the values of all members of an axis. They all run the same program,
  so one may be merged, removed and made again; two over one axis keep their order.
- reads of memory may be removed; writes, and `io`, are neither merged, removed nor repeated, and
  keep their order. `commute` says which order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class EffectKind(Enum):
    """The closed set of effect kinds."""

    RANDOM = "random"
    IO = "io"
    READ = "read"
    WRITE = "write"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect; `target` names a state object or a mesh axis ("" = all memory that the op's
    operands reach; declared by users, all objects or all axes).
    """

    kind: EffectKind
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}({self.target})" if self.target else self.kind.value


Effects = frozenset[Effect]

PURE: Effects = frozenset()
READ: Effects = frozenset({Effect(EffectKind.READ)})
WRITE: Effects = frozenset({Effect(EffectKind.WRITE)})
READ_WRITE: Effects = READ | WRITE
RANDOM: Effects = frozenset({Effect(EffectKind.RANDOM)})
IO: Effects = frozenset({Effect(EffectKind.IO)})

MEMORY = frozenset({EffectKind.READ, EffectKind.WRITE})
"""The kinds that users call `memory`."""

_REPEATABLE = frozenset({EffectKind.RANDOM, EffectKind.COLLECTIVE})
_REMOVABLE = _REPEATABLE | {EffectKind.READ}


def memory(name: str = "") -> Effects:
    """Reads and writes of a state object; of all of them without a name."""
    return frozenset({Effect(EffectKind.READ, name), Effect(EffectKind.WRITE, name)})


def collective(axis: str = "") -> Effects:
    """Combinations over an axis; over all of them without a name."""
    return frozenset({Effect(EffectKind.COLLECTIVE, axis)})


# --- what passes ask ---


def join(sets: Iterable[Effects]) -> Effects:
    """The union of several effect sets."""
    result: Effects = PURE
    for effects in sets:
        result = result | effects
    return result


def is_repeatable(effects: Effects) -> bool:
    """Whether an op with these effects computes the same of the same operands each time: it may be
    merged with an equal one, and made again.
    """
    return all([effect.kind in _REPEATABLE for effect in effects])


def is_removable(effects: Effects) -> bool:
    """Whether an op with these effects may be dropped when its results are unused."""
    return all([effect.kind in _REMOVABLE for effect in effects])


def commute(a: Effects, b: Effects) -> bool:
    """Whether two ops with these effects may be exchanged, operands permitting."""
    for x in a:
        for y in b:
            if x.kind is EffectKind.RANDOM or y.kind is EffectKind.RANDOM:
                continue
            if x.kind is EffectKind.READ and y.kind is EffectKind.READ:
                continue
            both_memory = x.kind in MEMORY and y.kind in MEMORY
            named = both_memory or x.kind is y.kind is EffectKind.COLLECTIVE
            distinct = bool(x.target) and bool(y.target) and x.target != y.target
            if (x.kind is y.kind or both_memory) and not (named and distinct):
                return False
    return True


# --- what users write and read ---

NAMES = ("random", "io", "memory", "collective")
"""The names of effects, in the order in which they are shown; the last two may have a target."""

_TARGETED = frozenset({"memory", "collective"})
_FORM = re.compile(r"\s*(\w+)\s*(?:\(\s*([^()]*?)\s*\)\s*)?")


def user_name(effect: Effect) -> str:
    """What users call an effect: `memory(NAME)` for a read or a write."""
    if effect.kind in MEMORY:
        return f"memory({effect.target})" if effect.target else "memory"
    return str(effect)


def show(effects: Effects) -> list[str]:
    """The effects by the names that users know, sorted."""
    found = {user_name(effect) for effect in effects}
    return sorted(found, key=lambda name: (NAMES.index(name.partition("(")[0]), name))


def text(effects: Effects) -> str:
    """The effects as one string, which `parse_text` reads: `random, memory(cache)`."""
    return ", ".join(show(effects))


def parse(name: str) -> Effects:
    """The effects that a name stands for.

    Raises:
        ValueError: it is none.
    """
    found = _FORM.fullmatch(name)
    word, target = (found[1], found[2]) if found else ("", None)
    if word not in NAMES or (target is not None and (not target or word not in _TARGETED)):
        raise ValueError(name)
    if word == "memory":
        return memory(target or "")
    if word == "collective":
        return collective(target or "")
    return RANDOM if word == "random" else IO


def parse_text(string: str) -> Effects:
    """The effects in what `text` writes.

    Raises:
        ValueError: one of them is none.
    """
    return join([parse(name) for name in re.split(r",(?![^(]*\))", string) if name.strip()])


def covers(declared: Effects, effect: Effect) -> bool:
    """Whether declared effects say that there is this one; without a target they say all."""
    return any(
        [e.kind is effect.kind and (not e.target or e.target == effect.target) for e in declared]
    )


def uncovered(declared: Effects, effects: Effects) -> Effects:
    """Those of the effects that the declared ones do not say."""
    return frozenset([effect for effect in effects if not covers(declared, effect)])
