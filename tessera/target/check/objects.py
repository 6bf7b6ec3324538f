"""Bounds and lifetimes of objects in shared memory."""

from __future__ import annotations

import numpy as np

from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target.check.access import Access, Kind
from tessera.target.check.index import Scope, bounds, evaluate
from tessera.target.check.races import SIZES, Objects
from tessera.target.check.report import Outcome, Verdict, Witness
from tessera.target.check.truth import deep_symbols


def check_bounds(accesses: list[Access], objects: Objects, threads: int) -> list[Verdict]:
    """Every access of a shared object lies inside of it."""
    return [
        _inside(access, access.base.op, objects.name(access.base), threads)
        for access in accesses
        if access.base is not None and isinstance(access.base.op, g.Shared)
    ]


def _inside(access: Access, op: g.Shared, name: str, threads: int) -> Verdict:
    if access.width is None:
        return Verdict("bounds", name, Outcome.UNDECIDED, "the size of a copy is not known")
    low, high = bounds(access.form)
    flags = access.guard.may
    last = op.bytes - access.width
    if low is not None and high is not None:
        least = np.broadcast_to(np.asarray(low), (threads,))
        most = np.broadcast_to(np.asarray(high), (threads,))
        outside = flags & ((least < 0) | (most > last))
        if not outside.any():
            return Verdict("bounds", name, Outcome.PROVED)
        surely = outside & access.guard.must
        if access.form.is_const and access.certain and surely.any():
            thread = int(np.argmax(surely))
            return _outside(access, op, name, thread, int(least[thread]))
    return _try_values(access, op, name, threads) or Verdict(
        "bounds", name, Outcome.UNDECIDED, f"{access.op.name} at byte {access.form!r}"[:200]
    )


def _outside(
    access: Access, op: g.Shared, name: str, thread: int, byte: int, values: str = ""
) -> Verdict:
    why = f"{access.op.name} of {access.width} bytes is outside of its {op.bytes} bytes"
    witness = Witness((thread,), byte, (access.op,), values)
    return Verdict("bounds", name, Outcome.REFUTED, why, witness)


def _try_values(access: Access, op: g.Shared, name: str, threads: int) -> Verdict | None:
    free = [s for s in deep_symbols(access.form) | access.guard.symbols() if s.free]
    if not access.certain or access.conditions:
        return None
    for size in SIZES:
        values = {s: size if s.scope is Scope.GRID else s.lo or 0 for s in free}
        byte, guard = evaluate(access.form, values), access.guard.value(values)
        if byte is None or guard is None:
            return None
        wide = np.broadcast_to(np.asarray(byte), (threads,))
        bad = guard & ((wide < 0) | (wide > op.bytes - (access.width or 1)))
        if bad.any():
            thread = int(np.argmax(bad))
            worth = ", ".join(f"{s.name} = {v}" for s, v in values.items() if s.scope is Scope.GRID)
            text = f"for {worth}" if worth else ""
            return _outside(access, op, name, thread, int(wide[thread]), text)
    return None


class Lifetimes:
    """Sees accesses in program order; an object is not read after another has overwritten it."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.verdicts: list[Verdict] = []
        self._lost: dict[Value, Access] = {}
        self._overlaps: dict[Value, list[Value]] = {}
        for a in objects.shared:
            self._overlaps[a.result] = [
                b.result
                for b in objects.shared
                if a is not b
                and min(a.offset, b.offset) >= 0
                and a.offset < b.offset + b.bytes
                and b.offset < a.offset + a.bytes
            ]

    def see(self, access: Access) -> None:
        """Takes note of an access."""
        base = access.base
        if base is None or base not in self._overlaps:
            return
        if access.kind is Kind.WRITE:
            self._lost.pop(base, None)
            for other in self._overlaps[base]:
                self._lost[other] = access
            return
        writer = self._lost.get(base)
        if writer is None or _exclusive(access, writer):
            return
        name = self.objects.name(base)
        why = f"it is read after {self.objects.name(writer.base)} at the same place was written"
        read, written = self._range(access), self._range(writer)
        if read is None or written is None or not (access.certain and writer.certain):
            self.verdicts.append(Verdict("lifetime", name, Outcome.UNDECIDED, why))
        elif read[0] < written[1] and written[0] < read[1]:
            witness = Witness((0,), read[0], (access.op, writer.op))
            self.verdicts.append(Verdict("lifetime", name, Outcome.REFUTED, why, witness))

    def _range(self, access: Access) -> tuple[int, int] | None:
        if not access.form.is_const or access.base is None or access.width is None:
            return None
        base = np.broadcast_to(np.asarray(access.form.base), access.guard.may.shape)
        if not access.guard.must.any():
            return None
        touched = base[access.guard.must] + self.objects.offset(access.base)
        return int(touched.min()), int(touched.max()) + access.width


def _exclusive(a: Access, b: Access) -> bool:
    sides = dict(a.path)
    return any(sides.get(branch, side) != side for branch, side in b.path)
