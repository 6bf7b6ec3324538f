"""Where all conditions of a nest hold: tiles that lie there have code of their own.

A border around an image is read under conditions, and most tiles have nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from tessera.ir.intbounds import is_nonneg
from tessera.ir.intexpr import Dim, linear_in, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.schedule.dependence import inner_axes

MOST = 0.75
"""So much of a nest's points have code of their own where no condition is tested."""


def _conditions(nest: s.Nest) -> Iterator[Dim]:
    for op in walk(nest.body):
        yield from op.where if isinstance(op, (s.Load, s.Store, s.Holds)) else ()


def inner_ranges(nest: s.Nest) -> Mapping[str, tuple[Dim, Dim]]:
    """For axes that conditions are about, the longest range in which each of these holds everywhere
    or nowhere; {} where that is not most of the nest, as it is for the border around an image, and
    for an array that is rolled."""
    extents = {axis.name: axis.extent for axis in nest.axes}
    if not all(isinstance(extent, int) for extent in extents.values()):
        return _symbolic(nest)
    cuts: dict[str, set[int]] = {}
    for e in _conditions(nest):
        name = next(iter(symbols(e)), "")
        extent = extents.get(name)
        if not isinstance(extent, int) or len(symbols(e)) > 1:
            continue
        affine = linear_in(e, (name,))
        if affine is None:
            continue
        step, rest = affine[0][name], affine[1]
        if not isinstance(step, int) or not isinstance(rest, int) or step == 0:
            continue
        # Where it begins to hold, or to fail.
        at = -(rest // step) if step > 0 else rest // -step + 1
        cuts.setdefault(name, {0, extent}).add(min(max(at, 0), extent))
    found: dict[str, tuple[int, int]] = {}
    part = 1.0
    for name, places in cuts.items():
        ends = sorted(places)
        start, end = max(pairwise(ends), key=lambda ends: ends[1] - ends[0], default=(0, 0))
        found[name] = start, end - 1
        part *= (end - start) / max(ends[-1], 1)
    if part < MOST:
        return {}
    return {**_symbolic(nest, cuts), **found}


def _symbolic(nest: s.Nest, known: Collection[str] = ()) -> dict[str, tuple[Dim, Dim]]:
    """The same where extents, or what is around the nest, are not known: the range in which all
    conditions hold, as far as there is one of each kind; {} where that is known to be empty, as for
    what is joined.

    Args:
        nest: the nest.
        known: axes to leave out.
    """
    extents = {axis.name: axis.extent for axis in nest.axes}
    inner = {axis.name for op in walk(nest.body) for axis in inner_axes(op)}
    found: dict[str, tuple[Dim, Dim]] = {}
    for e in dict.fromkeys(_conditions(nest)):
        names = [name for name in symbols(e) if name in extents]
        is_open = len(names) == 1 and names[0] not in known
        affine = linear_in(e, names) if is_open else None
        # Of what a loop inside or an array says, nothing is known in front of the tile.
        if affine is None or any(name in inner or name[0] == "$" for name in symbols(affine[1])):
            continue
        (name,), rest = names, affine[1]
        low, high = found.get(name, (0, extents[name] - 1))
        if affine[0][name] == 1 and low == 0:
            low = -rest
        elif affine[0][name] == -1 and high == extents[name] - 1:
            high = rest
        else:
            return {}
        found[name] = low, high
    return {} if any(is_nonneg(low - 1 - high) for low, high in found.values()) else found
