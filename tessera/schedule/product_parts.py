"""Parts of the depth of a CPU's products, which run one after the other; see `products`.

Part p of a depth with several axes is part of each of them, the last one fastest, so that sums keep
their order:

    contract k0 < 8, k1 < 56: ...
    ==>
    for p < 16 in order: contract k0 < 1, k1 < 28: ... at k0 = p // 2, k1 + p % 2 * 28
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.ir.loc import Loc
from tessera.schedule import ops
from tessera.schedule.copying import Copy
from tessera.schedule.types import Axis


@dataclass(frozen=True, slots=True)
class Sums:
    """Where sums wait for the next part.

    Attributes:
        buf: the memory.
        index: the place of a sum, at a point of the product's nest.
        store: the store of a result, if it is the memory of that.
    """

    buf: Value
    index: tuple[Dim, ...]
    store: ops.Store | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Parts of a product's depth that one nest runs, one after the other.

    Attributes:
        sums: where those of the parts before are.
        axis: the parts.
        place: which one of all parts runs.
        is_last: whether the last one is among them, and results are stored.
    """

    sums: Sums
    axis: Axis
    place: Dim
    is_last: bool = True

    def start(self, copy: Copy, guards: Sequence[Dim], loc: Loc | None) -> ops.Load | None:
        """The load of the sums of the parts before; None where there are none."""
        if self.place == 0:
            return None
        exists = [] if isinstance(self.place, int) else [self.place - 1]
        where = copy.places([*guards, *exists])
        return ops.Load(self.sums.buf, (), copy.places(self.sums.index), where, loc=loc)


def cuts_of(extents: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Into how many equal parts axes are cut, so that there are about as many as wanted or more:
    all of the first ones, then of one a divisor.

    >>> cuts_of((8, 56, 56), 13)
    (8, 2, 1)
    """
    found: list[int] = []
    for extent in extents:
        rest = ceil(wanted / prod(found))
        if rest >= extent:
            found.append(extent)
            continue
        found.append(next((n for n in range(rest, 2 * rest) if extent % n == 0), 1))
        break
    return (*found, *[1] * (len(extents) - len(found)))


def cut(
    axes: Sequence[Axis], cuts: Sequence[int], place: Dim
) -> tuple[tuple[Axis, ...], dict[str, Dim]]:
    """The axes of a part, and what those of the whole are there."""
    found: dict[str, Axis] = {}
    at: dict[str, Dim] = {}
    first = next((k for k, n in enumerate(cuts) if n > 1), 0)
    for k in reversed(range(len(cuts))):
        axis, count = axes[k], cuts[k]
        if count == 1:
            continue
        assert isinstance(axis.extent, int)
        found[axis.name] = Axis(axis.name, axis.extent // count)
        own = place if k == first else place % count
        at[axis.name] = own * (axis.extent // count) + sym(axis.name)
        place = place // count
    return tuple([found.get(axis.name, axis) for axis in axes]), at
