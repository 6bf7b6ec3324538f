"""Whether accesses that no barrier separates touch the same bytes in different threads.

Addresses are forms; accesses whose unknown parts are equal and common to all threads are compared
byte by byte, for all threads at once. Where unknown parts differ, addresses are compared modulo
what all unknown parts are multiples of. Both kinds of "no" are proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tessera.target.check.access import Agent, Kind
from tessera.target.check.index import (
    Assignment,
    Coef,
    Form,
    Scope,
    bounds,
    content,
    evaluate,
)
from tessera.target.check.state import Open, Sync
from tessera.target.gpu_ops import WARP

Array = NDArray[np.int64]
TABLE = 1 << 22
"""Addresses up to which a table is made; beyond, addresses are numbered first."""


class Use(IntEnum):
    """What an element does."""

    READ = 0
    WRITE = 1
    ATOMIC = 2


_USES = {Kind.READ: Use.READ, Kind.WRITE: Use.WRITE, Kind.ATOMIC: Use.ATOMIC}


@dataclass(frozen=True, slots=True)
class Elements:
    """Single units of memory that single threads touch; arrays of one length.

    Attributes:
        place: address in units.
        owner: the thread, or a number above all threads for hardware that works for it.
        use: what is done.
        source: which access it is of.
        segment: partial barriers before it.
        unit: bytes.
    """

    place: Array
    owner: Array
    use: Array
    source: Array
    segment: Array
    unit: int

    def only(self, flags: NDArray[np.bool_]) -> Elements:
        """Some of them."""
        return Elements(
            self.place[flags], self.owner[flags], self.use[flags], self.source[flags],
            self.segment[flags], self.unit,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two accesses at one byte."""

    first: int
    second: int
    threads: tuple[int, int]
    byte: int


def _owner(item: Open, threads: int, moving: bool) -> int:
    """Who touches memory, as an offset to the thread's number."""
    if moving and item.in_flight:
        return threads
    return 2 * threads if item.access.agent is Agent.WARP else 0


def _taken(item: Open, values: Assignment) -> bool:
    """Whether all conditions on an access's path are known to hold."""
    found = [c.value(values) for c in item.access.conditions]
    return all(f is not None and bool(f.all()) for f in found)


def common_unit(items: Sequence[Open], bases: Sequence[Coef], modulus: int = 0) -> int:
    """The largest unit of which all widths and addresses are multiples."""
    unit = modulus
    for item, base in zip(items, bases, strict=True):
        unit = gcd(unit, item.access.width or 1, content(base))
    return unit or 1


def elements(
    items: Sequence[Open],
    threads: int,
    *,
    must: bool = False,
    modulus: int = 0,
    values: Sequence[Assignment] | None = None,
    moving: bool = False,
) -> Elements | None:
    """All units that the accesses touch.

    Args:
        items: the accesses; each has a known width.
        threads: threads of the block.
        must: only what threads surely do, rather than what they may do.
        modulus: addresses count modulo this; 0: as they are.
        values: symbols' values for each access; without, only the known part of each address is
            taken.
        moving: whether copies in flight are nobody's own.
    """
    bases: list[Coef] = []
    kept: list[tuple[int, Open, NDArray[np.bool_]]] = []
    for number, item in enumerate(items):
        guard = item.access.guard
        base: Coef | None = item.access.form.base
        flags = guard.must if must else guard.may
        if values is not None:
            base = evaluate(item.access.form, values[number])
            found = guard.value(values[number])
            if base is None or found is None or not _taken(item, values[number]):
                continue
            flags = found
        if flags.any():
            kept.append((number, item, flags))
            bases.append(base)
    if not kept:
        return None
    unit = common_unit([item for _, item, _ in kept], bases, modulus)
    parts: list[tuple[Array, ...]] = []
    everyone = np.arange(threads, dtype=np.int64)
    for (number, item, flags), base in zip(kept, bases, strict=True):
        count = (item.access.width or 1) // unit
        who = everyone if flags.all() else np.flatnonzero(flags)
        start = np.broadcast_to(np.asarray(base) // unit, (threads,))[who]
        place = (start[:, None] + np.arange(count)).ravel() if count > 1 else start
        owner = np.repeat(who, count) if count > 1 else who
        size = len(place)
        use = _USES[item.access.kind]
        parts.append(
            (
                place, owner + _owner(item, threads, moving), np.full(size, use),
                np.full(size, number), np.full(size, item.segment),
            )
        )  # fmt: skip
    place, owner, use, source, segment = (np.concatenate(c) for c in zip(*parts, strict=True))
    if modulus:
        place = place % (modulus // unit)
    return Elements(place, owner, use, source, segment, unit)


def find(found: Elements, threads: int, syncs: Sequence[Sync]) -> Meeting | None:
    """Two units at one place of different threads, one a write, that no sync puts in order."""
    writing = found.use != Use.READ
    if not writing.any():
        return None
    if not syncs:
        # Only places that somebody writes matter.
        if not writing.all():
            low = int(found.place.min())
            span = int(found.place.max()) - low + 1
            if span <= TABLE:
                touched = np.zeros(span, np.bool_)
                touched[found.place[writing] - low] = True
                keep = touched[found.place - low]
                if not keep.all():
                    found = found.only(keep)
        return _clash(found, found.place, threads)
    return _across_warps(found, threads, syncs) or _within_warps(found, threads, syncs)


def _clash(found: Elements, key: Array, threads: int) -> Meeting | None:
    """Two owners of one key, one of which writes."""
    low = int(key.min())
    span = int(key.max()) - low + 1
    if span > TABLE:
        _, key = np.unique(key, return_inverse=True)
        low, span = 0, int(key.max()) + 1
    slot = key - low
    writes = found.use == Use.WRITE
    last = np.full(span, -1, np.int64)
    index = np.arange(len(slot))
    last[slot[writes]] = index[writes]
    other = last[slot]
    bad = (other >= 0) & (found.owner[other] != found.owner)
    if not bad.any():
        other, bad = _with_atomics(found, slot, span)
    if not bad.any():
        return None
    here = int(np.argmax(bad))
    there = int(other[here])
    return meeting(found, there, here, threads)


def _with_atomics(found: Elements, slot: Array, span: int) -> tuple[Array, NDArray[np.bool_]]:
    """Plain reads of what others change atomically."""
    atomic = found.use == Use.ATOMIC
    index = np.arange(len(slot))
    other = np.zeros(len(slot), np.int64)
    bad = np.zeros(len(slot), np.bool_)
    if not atomic.any() or atomic.all():
        return other, bad
    order = index[atomic]
    for places in (order, order[::-1]):
        last = np.full(span, -1, np.int64)
        last[slot[places]] = places
        seen = last[slot]
        clash = ~atomic & (seen >= 0) & (found.owner[seen] != found.owner)
        other = np.where(clash, seen, other)
        bad |= clash
    return other, bad


def meeting(found: Elements, first: int, second: int, threads: int) -> Meeting:
    """The meeting of two elements."""
    return Meeting(
        int(found.source[first]),
        int(found.source[second]),
        (int(found.owner[first]) % threads, int(found.owner[second]) % threads),
        int(found.place[second]) * found.unit,
    )


def _within_warps(found: Elements, threads: int, syncs: Sequence[Sync]) -> Meeting | None:
    """Lanes of one warp, between barriers that their warp takes part in."""
    warps = threads // WARP
    passed = np.zeros((len(syncs) + 1, warps), np.int64)
    for number, sync in enumerate(syncs):
        passed[number + 1] = passed[number] + (sync.warps if sync.waits else 0)
    warp = found.owner % threads // WARP
    epoch = passed[found.segment, warp]
    key = (found.place * warps + warp) * (len(syncs) + 1) + epoch
    return _clash(found, key, threads)


def _across_warps(found: Elements, threads: int, syncs: Sequence[Sync]) -> Meeting | None:
    """Different warps, between barriers that lead from one to the other."""
    warps = threads // WARP
    _, slot = np.unique(found.place, return_inverse=True)
    span = int(slot.max()) + 1
    warp_of = found.owner % threads // WARP
    present = sorted(set(found.segment.tolist()))
    masks: dict[tuple[int, Use], Array] = {}
    for segment in present:
        for use in Use:
            here = (found.segment == segment) & (found.use == use)
            table = np.zeros(span, np.int64)
            np.bitwise_or.at(table, slot[here], np.int64(1) << warp_of[here])
            masks[segment, use] = table
    order = happens_before(syncs, warps)
    for position, before in enumerate(present):
        for after in present[position:]:
            either = order[before, :, after, :] | order[after, :, before, :].T
            allowed = [
                sum(1 << int(w) for w in np.flatnonzero(either[:, warp])) | 1 << warp
                for warp in range(warps)
            ]
            for first, second in product(Use, Use):
                if first is second and first is not Use.WRITE:
                    continue
                where = _unordered(masks[before, first], masks[after, second], allowed)
                if where is not None:
                    place, a, b = where
                    one = (found.segment == before) & (found.use == first)
                    two = (found.segment == after) & (found.use == second)
                    x = np.flatnonzero(one & (slot == place) & (warp_of == a))[0]
                    y = np.flatnonzero(two & (slot == place) & (warp_of == b))[0]
                    return meeting(found, int(x), int(y), threads)
    return None


def happens_before(syncs: Sequence[Sync], warps: int) -> NDArray[np.bool_]:
    """Whether what a warp does in one segment comes before what another does in a segment:
    `[segment, warp, segment, warp]`.
    """
    count = len(syncs) + 1
    size = count * warps
    edges = np.eye(size, dtype=np.bool_)
    for segment in range(count - 1):
        here = np.arange(warps) + segment * warps
        edges[here, here + warps] = True
    for meeting_point in _rendezvous(syncs):
        leave = [s * warps + int(w) for s in meeting_point for w in np.flatnonzero(syncs[s].warps)]
        enter = [
            (s + 1) * warps + int(w)
            for s in meeting_point
            if syncs[s].waits
            for w in np.flatnonzero(syncs[s].warps)
        ]
        edges[np.ix_(leave, enter)] = True
    while True:
        paths = edges.astype(np.float32)
        more = edges | (paths @ paths > 0)
        if (more == edges).all():
            return edges.reshape(count, warps, count, warps)
        edges = more


def _rendezvous(syncs: Sequence[Sync]) -> list[list[int]]:
    """The arrivals, by position, that make one completion of a named barrier together."""
    waiting: dict[int, list[int]] = {}
    found: list[list[int]] = []
    for position, sync in enumerate(syncs):
        if sync.id < 0:
            continue
        arrivals = waiting.setdefault(sync.id, [])
        arrivals.append(position)
        if sum(int(syncs[p].warps.sum()) for p in arrivals) * WARP >= sync.threads:
            found.append(waiting.pop(sync.id))
    return found


def _unordered(first: Array, second: Array, ordered: Sequence[int]) -> tuple[int, int, int] | None:
    for warp, allowed in enumerate(ordered):
        bad = np.where((second >> warp) & 1 == 1, first & ~np.int64(allowed), 0)
        if bad.any():
            place = int(np.argmax(bad != 0))
            mask = int(bad[place])
            return place, (mask & -mask).bit_length() - 1, warp
    return None


# --- unknown parts --------------------------------------------------------------------------------


def stride(a: Form, b: Form) -> int:
    """What the unknown part of `a - b` is a multiple of, if each has its own private symbols and
    the others are common; 0 where there is no unknown part.
    """
    total = 0
    for mono in {**a.terms, **b.terms}:
        x, y = a.terms.get(mono, 0), b.terms.get(mono, 0)
        if any(s.scope is Scope.PRIVATE for s in mono):
            total = gcd(total, content(x), content(y))
        else:
            first = int(np.ravel(y)[0])
            total = gcd(total, content(np.asarray(x) - first), content(np.asarray(y) - first))
    return total


def apart(a: Open, b: Open) -> bool:
    """Whether the addresses lie in different ranges, in all threads."""
    (la, ha), (lb, hb) = _span(a), _span(b)
    return (ha is not None and lb is not None and ha <= lb) or (
        hb is not None and la is not None and hb <= la
    )


def _span(item: Open) -> tuple[int | None, int | None]:
    low, high = bounds(item.access.form)
    flags = item.access.guard.may
    if not flags.any():
        return 0, 0
    threads = len(flags)
    least = None if low is None else int(np.broadcast_to(np.asarray(low), (threads,))[flags].min())
    most = None if high is None else int(np.broadcast_to(np.asarray(high), (threads,))[flags].max())
    return least, None if most is None else most + (item.access.width or 1)
