"""Effects: what an op does besides computing its results.

One lattice for all layers: the empty set is pure; an effect set joins by union. Passes may remove
an op only when every effect it has is a read, and may reorder two ops only when `commute` says so.
"""

from __future__ import annotations

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
    operands reach).
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


def join(sets: Iterable[Effects]) -> Effects:
    """The union of several effect sets."""
    result: Effects = PURE
    for effects in sets:
        result = result | effects
    return result


def is_removable(effects: Effects) -> bool:
    """Whether an op with these effects may be dropped when its results are unused."""
    return all(effect.kind is EffectKind.READ for effect in effects)


def commute(a: Effects, b: Effects) -> bool:
    """Whether two ops with these effects may be exchanged, operands permitting."""
    for x in a:
        for y in b:
            if x.kind is EffectKind.READ and y.kind is EffectKind.READ:
                continue
            memory = {EffectKind.READ, EffectKind.WRITE}
            both_memory = x.kind in memory and y.kind in memory
            distinct = bool(x.target) and bool(y.target) and x.target != y.target
            if (x.kind is y.kind or both_memory) and not (both_memory and distinct):
                return False
    return True
