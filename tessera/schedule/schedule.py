"""`Schedule`: the choices that a user, the heuristics or the autotuner make for a kernel, as one
value.

It is frozen and hashable, and has one JSON form, which caches store and files hold. A zero or an
empty tuple leaves a choice to the heuristics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tessera.errors import VerifyError
from tessera.schedule import ops


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tile and launch choices of one kernel.

    Attributes:
        block: elements per register tile (CPU) or thread block (GPU), one per axis of the nest; the
            last axes of the nest if
            there are fewer.
        k: elements per step along reduction axes.
        chunk: elements per program along each axis; 0 is the whole axis.
        warps: warps per thread block.
        stages: depth of the software pipeline.

    >>> Schedule(block=(8, 32), k=4).to_json()
    '{"block": [8, 32], "k": 4}'
    """

    block: tuple[int, ...] = ()
    k: int = 0
    chunk: tuple[int, ...] = ()
    warps: int = 0
    stages: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: int | tuple[int, ...] = getattr(self, field.name)
            items = value if isinstance(value, tuple) else (value,)
            if any(type(item) is not int or item < 0 for item in items):
                raise VerifyError(
                    f"Schedule: {field.name}={value!r}",
                    rule="sizes are ints that are not negative; 0 leaves the choice open",
                )

    def to_json(self) -> str:
        """The JSON form: choices that are made, keys in order."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({k: v for k, v in sorted(found.items()) if v})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Reads the JSON form.

        Raises:
            VerifyError: the text holds a key that no choice has.
        """
        found: Mapping[str, Any] = json.loads(text)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(found) - known)
        if unknown:
            raise VerifyError(
                f"Schedule: unknown keys {', '.join(unknown)}",
                rule=f"the keys are {', '.join(sorted(known))}",
            )
        choices: dict[str, Any] = {k: v if type(v) is int else tuple(v) for k, v in found.items()}
        return cls(**choices)

    def apply(self, nest: ops.Nest) -> ops.Nest:
        """The nest with these choices in place of its own."""
        rank = len(nest.axes)
        tile = _aligned(self.block, nest.tile, rank, 1)
        chunk = _aligned(self.chunk, nest.chunk, rank, 0)
        # A chunk is a whole number of tiles; 0 stays the whole axis.
        chunk = [-(-size // step) * step for size, step in zip(chunk, tile, strict=True)]
        new = nest.rebuild(
            tile=tuple(tile),
            chunk=tuple(chunk),
            reduce_tile=self.k or nest.reduce_tile,
            warps=self.warps or nest.warps,
            stages=self.stages or nest.stages,
            reason="as the schedule says",
        )
        assert isinstance(new, ops.Nest)
        return new


def _aligned(given: tuple[int, ...], chosen: tuple[int, ...], rank: int, default: int) -> list[int]:
    """One size per axis: given ones from the end, then chosen ones."""
    result = list(chosen) or [default] * rank
    for k, size in enumerate(reversed(given[-rank:] if rank else ())):
        result[rank - 1 - k] = size or result[rank - 1 - k]
    return result
