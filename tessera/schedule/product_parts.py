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
from typing import TYPE_CHECKING

from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, sym
from tessera.ir.loc import Loc
from tessera.schedule import ops
from tessera.schedule.blocking import NEAR
from tessera.schedule.copying import Copy
from tessera.schedule.types import Axis

if TYPE_CHECKING:
    from tessera.schedule.products import Product


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


def cuts_of_depth(p: Product) -> tuple[int, ...]:
    """Cuts of the depth into parts that run one after the other, so that what a block reads of
    the second operand stays in the second cache. Where blocks are narrow, what they read of the
    first one is most of what is there: half as much then (2000 cubed take a Zen 3 0.93 of the
    time).
    """
    panel = p.block.columns * p.depth * p.elements[1].itemsize
    near = p.machine.l2 // NEAR
    parts = round(panel / near) if p.machine.has_masks else ceil(2 * panel / near)
    extents = [axis.extent for axis in p.op.axes]
    fixed = [n for n in extents if isinstance(n, int)]
    if parts < 2 or p.group > 1 or p.has_few or len(fixed) < len(extents) or p.sums() is None:
        return ()
    # Lines of zeros fill the last part.
    return (parts,) if p.line and len(fixed) == 1 else cuts_of(fixed, parts)


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
