"""What a kernel's accesses cost: bank conflicts in shared memory, sectors of global memory.

Counted exactly from the addresses of each warp's lanes. Shared memory has 32 banks of 4 bytes; a
request goes out in phases of 32 lanes for up to 4 bytes each, 16 for 8 bytes, 8 for 16 bytes, and a
phase takes as many wavefronts as the busiest bank has distinct words. Global memory moves sectors
of 32 bytes; what one line of the program loads or stores at one place together is counted together,
because the cache merges it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tessera.ir.core import Func, Op, Value
from tessera.ir.loc import Loc
from tessera.target import gpu_ops as g
from tessera.target.check.access import Access, Agent
from tessera.target.check.index import Scope, content, evaluate
from tessera.target.check.trace import Trace
from tessera.target.check.truth import deep_symbols

WORD = 4
BANKS = 32
SECTOR = 32
THRESHOLD = 2.0
"""Costs up to so many times the least are not reported."""

FEW = 8
"""Sectors that are too few to matter."""

TYPICAL_SIZE = 1 << 20
"""What symbolic sizes are taken to be."""

Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lint:
    """An access that costs more than it must.

    Attributes:
        kind: `bank conflicts` or `sectors`.
        op: the op; of several, the first.
        cost: wavefronts or sectors of a warp.
        ideal: the least that could be.
    """

    kind: str
    op: Op
    cost: int
    ideal: int

    @property
    def loc(self) -> Loc:
        """The user's line."""
        return self.op.loc

    def __str__(self) -> str:
        unit = "wavefronts" if self.kind == "bank conflicts" else "sectors"
        text = f"{self.kind}: {self.op.name} takes {self.cost} {unit} a warp where {self.ideal} do"
        place = self.loc.render()
        return f"{text}\n{place}" if place else text


def wavefronts(addresses: Array, width: int) -> tuple[int, int]:
    """Wavefronts of one request and the least that it could take.

    Args:
        addresses: byte addresses of the lanes that take part, in order of lanes, -1 for others.
        width: bytes of each lane.
    """
    lanes = len(addresses) if width <= WORD else len(addresses) * WORD // width
    total = least = 0
    for start in range(0, len(addresses), lanes):
        part = addresses[start : start + lanes]
        part = part[part >= 0]
        if not len(part):
            continue
        words = np.unique((part[:, None] + np.arange(0, width, WORD)) // WORD)
        total += int(np.bincount(words % BANKS).max())
        least += -(-len(words) // BANKS)
    return total, least


def sectors(addresses: Array, width: int) -> tuple[int, int]:
    """Sectors that bytes lie in, and the least that they would fit into."""
    starts = np.unique(addresses)
    if not len(starts):
        return 0, 0
    touched = np.unique((starts[:, None] + np.arange(width)).ravel())
    return len(np.unique(touched // SECTOR)), -(-len(touched) // SECTOR)


def lints(func: Func, threshold: float = THRESHOLD) -> list[Lint]:
    """The accesses of a kernel that cost more than `threshold` times the least.

    Accesses whose addresses depend on data are left out.
    """
    trace = Trace(func, lambda state: None)
    trace.run()
    found: dict[tuple[str, Loc, str], Lint] = {}
    together: dict[tuple[Loc, Value | None, str, int], list[Access]] = {}
    seen: set[tuple[object, ...]] = set()
    for access in trace.accesses:
        key = (id(access.op), access.form.key)
        if access.base is None or access.agent is Agent.ENGINE or key in seen:
            continue
        seen.add(key)
        if isinstance(access.base.op, g.Shared):
            _keep(found, _conflicts(access), threshold)
        else:
            label = (access.op.loc, access.base, str(access.form.terms_key), access.width or 1)
            together.setdefault(label, []).append(access)
    for group in together.values():
        _keep(found, _sectors(group), threshold)
    return list(found.values())


def _keep(found: dict[tuple[str, Loc, str], Lint], lint: Lint | None, threshold: float) -> None:
    if lint is None or lint.cost <= threshold * lint.ideal:
        return
    key = (lint.kind, lint.loc, lint.op.name)
    if key not in found or lint.cost > found[key].cost:
        found[key] = lint


def _addresses(access: Access, multiple: int) -> Array | None:
    """Byte addresses by warp and lane, -1 where a lane takes no part; None if they are unknown."""
    form, guard = access.form, access.guard
    # Where unknown parts do not move an access within its line, they are of no matter.
    values = {s: TYPICAL_SIZE if s.scope is Scope.GRID else 0 for s in deep_symbols(form)}
    for mono, coef in form.terms.items():
        common = all(s.scope is not Scope.PRIVATE and (s.free or s.fn) for s in mono)
        if not common and content(coef) % multiple:
            return None
    base = evaluate(form, values)
    if base is None:
        return None
    active = guard.may
    wide = np.where(active, np.broadcast_to(np.asarray(base), active.shape), -1)
    return wide.reshape(-1, g.WARP)


def _conflicts(access: Access) -> Lint | None:
    table = _addresses(access, BANKS * WORD)
    if table is None or access.width is None:
        return None
    worst = max((wavefronts(row, access.width) for row in table), key=lambda c: c[0] - c[1])
    return Lint("bank conflicts", access.op, *worst)


def _sectors(group: list[Access]) -> Lint | None:
    width = group[0].width
    tables = [_addresses(a, SECTOR) for a in group]
    known = [table for table in tables if table is not None]
    if width is None or len(known) < len(tables):
        return None
    rows = np.concatenate(known, axis=1)
    worst = max((sectors(row[row >= 0], width) for row in rows), key=lambda c: c[0] - c[1])
    return Lint("sectors", group[0].op, *worst) if worst[0] > FEW else None
