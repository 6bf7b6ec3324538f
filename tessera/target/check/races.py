"""Races: accesses of different threads to one byte, one of them a write, in no order.

What is open at a barrier has met no barrier before, so every two of these accesses may happen in
either order. They race unless addresses keep different threads apart. Three answers are possible:
proved (no two meet, whatever the unknowns), refuted (an execution in which two meet), not decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tessera.ir.core import Func, Value
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target.check.access import Access, Agent, Kind
from tessera.target.check.blocks import flattened
from tessera.target.check.index import Form, Scope, Sym, add
from tessera.target.check.meeting import Meeting, apart, elements, find, stride
from tessera.target.check.report import Outcome, Verdict, Witness
from tessera.target.check.state import Open, State, Sync
from tessera.target.check.truth import deep_symbols

SIZES = (1 << 14, 1000, 64, 1)
"""What symbolic sizes are tried to be worth in the search for a witness."""

MAX_SCENARIOS = 48


@dataclass(frozen=True, slots=True)
class Finding:
    """The gravest answer about some accesses; `meeting` and `items` for what is refuted."""

    outcome: Outcome
    why: str = ""
    meeting: Meeting | None = None
    items: tuple[Open, ...] = ()
    values: str = ""


PROVED = Finding(Outcome.PROVED)


BY_PHASES = "the copy engine and threads take turns by barriers in memory"
"""Why a race is not decided without the search through the phases of those barriers."""


def _by_engine(item: Open) -> bool:
    """Whether it reads, or it is the engine that writes."""
    return item.access.kind is Kind.READ or item.access.agent is Agent.ENGINE


class Objects:
    """Which objects share memory, and what messages call them."""

    def __init__(self, func: Func) -> None:
        self.shared: list[g.Shared] = [op for op in walk(func.body) if isinstance(op, g.Shared)]
        self.names: dict[Value, str] = {
            a: f"memory {k}{f' (%{a.name})' if a.name else ''}" for k, a in enumerate(func.args)
        }
        for number, op in enumerate(self.shared):
            label = op.label or op.result.name or str(number)
            self.names[op.result] = f"shared object '{label}'"
        self.groups: dict[Value, Value] = {}
        placed = sorted((op for op in self.shared if op.offset >= 0), key=lambda op: op.offset)
        end, first = -1, None
        for op in placed:
            if first is None or op.offset >= end:
                first = op.result
            self.groups[op.result] = first
            end = max(end, op.offset + op.bytes)

    def space(self, base: Value) -> Value:
        """The same for all objects that may share bytes."""
        return self.groups.get(base, base)

    def offset(self, base: Value) -> int:
        """Where a shared object starts; 0 for what has not been placed."""
        op = base.op
        return max(0, op.offset) if isinstance(op, g.Shared) else 0

    def name(self, base: Value | None) -> str:
        """What messages call an object."""
        return "memory" if base is None else self.names.get(base, f"%{base.name}")


class Races:
    """Collects verdicts; `at_barrier` is shown what is open."""

    def __init__(self, func: Func, threads: int) -> None:
        self.objects = Objects(func)
        self.threads = threads
        self.block: Sym | None = None
        self.verdicts: list[Verdict] = []
        self._seen: set[tuple[object, ...]] = set()
        # Where threads hand memory back to the engine by arriving, more is ordered than is seen.
        self._handed_back = any(
            isinstance(op, g.MbarrierArrive) and not op.expect for op in walk(func.body)
        )

    def at_barrier(self, state: State) -> None:
        """Judges what is open."""
        spaces: dict[Value, list[Open]] = {}
        unknown = [o for o in state.open if o.access.base is None]
        for item in state.open:
            base = item.access.base
            if base is not None:
                spaces.setdefault(self.objects.space(base), []).append(self._shifted(item))
        for items in spaces.values():
            if unknown and (_writes(unknown) or _writes(items)):
                finding = Finding(Outcome.UNDECIDED, "a pointer is used that is not followed")
            else:
                finding = self._judge(items, state)
            self._record(items, finding)

    def _shifted(self, item: Open) -> Open:
        base = item.access.base
        offset = 0 if base is None else self.objects.offset(base)
        if not offset:
            return item
        return replace(item, access=replace(item.access, form=add(item.access.form, Form(offset))))

    def _judge(self, items: list[Open], state: State) -> Finding:
        if not _writes(items):
            return PROVED
        key = (*(_identity(o) for o in items), len(state.syncs))
        if key in self._seen:
            return PROVED
        self._seen.add(key)
        if any(o.access.width is None for o in items):
            return Finding(Outcome.UNDECIDED, "the size of a copy is not known")
        worst = PROVED
        doubtful = self._handed_back and any(o.access.agent is Agent.ENGINE for o in items)
        chosen_sets = scenarios(items)
        mixed = state.mixed or chosen_sets is None or doubtful
        for chosen in chosen_sets or [items]:
            found = judge_all(chosen, self.threads, state.syncs)
            if found.outcome is Outcome.UNDECIDED and self.block is not None:
                forms = flattened([o.access for o in chosen], self.block)
                if forms is not None:
                    flat = [
                        replace(o, access=replace(o.access, form=f))
                        for o, f in zip(chosen, forms, strict=True)
                    ]
                    if judge_all(flat, self.threads, state.syncs).outcome is Outcome.PROVED:
                        found = PROVED
            if found.outcome is not Outcome.PROVED and doubtful and all(map(_by_engine, items)):
                return Finding(Outcome.UNDECIDED, BY_PHASES)
            if found.outcome is Outcome.REFUTED:
                return replace(found, outcome=Outcome.UNDECIDED) if mixed else found
            if found.outcome is Outcome.UNDECIDED:
                worst = found
        return worst

    def _record(self, items: list[Open], finding: Finding) -> None:
        bases = {o.access.base for o in items}
        guilty: set[Value | None] = bases
        if finding.meeting is not None:
            pair = (finding.items[finding.meeting.first], finding.items[finding.meeting.second])
            guilty = {o.access.base for o in pair}
        for base in sorted(bases, key=self.objects.name):
            name = self.objects.name(base)
            if base not in guilty or finding.outcome is Outcome.PROVED:
                self.verdicts.append(Verdict("races", name, Outcome.PROVED))
            elif finding.meeting is None:
                self.verdicts.append(Verdict("races", name, finding.outcome, finding.why))
            else:
                self.verdicts.append(self._refusal(name, base, finding, finding.meeting))

    def _refusal(self, name: str, base: Value | None, finding: Finding, met: Meeting) -> Verdict:
        first, second = finding.items[met.first], finding.items[met.second]
        start = 0 if base is None else self.objects.offset(base)
        ops = (first.access.op, second.access.op)
        witness = Witness(met.threads, met.byte - start, ops, finding.values)
        return Verdict("races", name, finding.outcome, self._why(first, second), witness)

    def _why(self, first: Open, second: Open) -> str:
        names = f"{first.access.op.name} and {second.access.op.name}"
        if first.access.base is not second.access.base:
            others = (self.objects.name(first.access.base), self.objects.name(second.access.base))
            return f"{others[0]} and {others[1]} share bytes, and no barrier is between {names}"
        for item in (first, second):
            if item.in_flight and item.access.agent is Agent.ASYNC:
                wait = "waited for" if item.age is not None else "committed"
                return f"{names} meet: the copy has not been {wait}"
            if item.in_flight:
                return f"{names} meet: the copy engine may still be at it"
        return f"no barrier is between {names} of different threads"


def _identity(item: Open) -> tuple[object, ...]:
    access = item.access
    return (
        id(access.op), access.form.key, item.segment, item.landed, id(access.guard),
        access.path, access.certain,
    )  # fmt: skip


def _writes(items: Iterable[Open]) -> bool:
    return any(o.access.kind is not Kind.READ for o in items)


def scenarios(items: list[Open]) -> list[list[Open]] | None:
    """Sets of accesses that may happen in one run: of each choice, one path; None for too many."""
    sides: dict[int, set[int]] = {}
    for item in items:
        for choice, side in item.access.path:
            sides.setdefault(choice, set()).add(side)
    several = {choice: sorted(found) for choice, found in sides.items() if len(found) > 1}
    if prod(len(s) for s in several.values()) > MAX_SCENARIOS:
        return None
    found: list[list[Open]] = []
    for picks in product(*several.values()):
        taken = dict(zip(several, picks, strict=True))
        found.append(
            [o for o in items if all(taken.get(c, side) == side for c, side in o.access.path)]
        )
    return found


def judge_all(items: list[Open], threads: int, syncs: Sequence[Sync]) -> Finding:
    """Whether threads meet in these accesses, each other or copies that they started before."""
    worst = judge(items, threads, syncs)
    start = 0
    while worst.outcome is not Outcome.REFUTED and start < len(items):
        if not items[start].in_flight:
            start += 1
            continue
        end = start
        while end < len(items) and items[end].in_flight:
            end += 1
        if end < len(items):
            # Later copies are compared with what follows them in their turn.
            later = [replace(o, landed=True) for o in items[end:]]
            found = judge([*items[start:end], *later], threads, syncs, moving=True)
            worst = worst if found.outcome is Outcome.PROVED else found
        start = end
    return worst


def judge(items: list[Open], threads: int, syncs: Sequence[Sync], moving: bool = False) -> Finding:
    """Whether different owners meet in these accesses."""
    groups: dict[tuple[object, ...], list[Open]] = {}
    for item in items:
        groups.setdefault(item.access.form.terms_key, []).append(item)
    doubt = ""
    listed = list(groups.values())
    for number, one in enumerate(listed):
        form = one[0].access.form
        found = _compare(one, threads, syncs, stride(form, form), moving)
        if found is not None and found.outcome is Outcome.REFUTED:
            return found
        if found is not None:
            doubt = doubt or found.why
        for other in listed[number + 1 :]:
            if not (_writes(one) or _writes(other)):
                continue
            pair = _near(one, other)
            step = stride(form, other[0].access.form)
            if pair and _compare(pair, threads, syncs, step, moving):
                doubt = doubt or _doubt(pair)
    if not doubt:
        return PROVED
    return search(items, threads, syncs, moving) or Finding(Outcome.UNDECIDED, doubt)


def _near(one: list[Open], other: list[Open]) -> list[Open]:
    """The accesses of two groups whose ranges touch."""
    left = [a for a in one if not all(apart(a, b) for b in other)]
    right = [b for b in other if not all(apart(a, b) for a in left)]
    return [*left, *right] if left and right and (_writes(left) or _writes(right)) else []


def _doubt(items: Sequence[Open]) -> str:
    symbols: set[Sym] = set()
    for item in items:
        symbols |= item.access.form.symbols()
    if not symbols:
        return "it depends on data which threads run an access"
    names = sorted(s.name for s in symbols)
    shown = ", ".join(names[:3])
    return f"addresses depend on {shown if len(shown) < 100 else shown[:97] + '...'}"


def _compare(
    items: list[Open], threads: int, syncs: Sequence[Sync], step: int, moving: bool
) -> Finding | None:
    """None if nobody meets."""
    if step == 1:
        return Finding(Outcome.UNDECIDED, _doubt(items)) if _writes(items) else None
    found = elements(items, threads, modulus=step, moving=moving)
    met = None if found is None else find(found, threads, syncs)
    if met is None:
        return None
    if step == 0:
        sure = [o for o in items if o.access.certain]
        found = elements(sure, threads, must=True, moving=moving)
        met = None if found is None else find(found, threads, syncs)
        if met is not None:
            return Finding(Outcome.REFUTED, "", met, tuple(sure))
    return Finding(Outcome.UNDECIDED, _doubt(items))


def search(
    items: list[Open], threads: int, syncs: Sequence[Sync], moving: bool = False
) -> Finding | None:
    """Looks for values of the unknowns with which threads meet."""
    sure = [o for o in items if o.access.certain]
    symbols: set[Sym] = set()
    for item in sure:
        symbols |= deep_symbols(item.access.form) | item.access.guard.symbols()
        for condition in item.access.conditions:
            symbols |= condition.symbols()
    free = sorted((s for s in symbols if s.free), key=lambda s: s.number)
    sizes = SIZES if any(s.scope is Scope.GRID for s in free) else SIZES[:1]
    for size in sizes:
        # The iterations of threads that run freely are tried two at a time.
        runs = [{s: _trial(s, size, later) for s in free} for later in (0, 1)]
        both = any(s.scope is Scope.PRIVATE for s in free)
        doubled = [*sure, *sure] if both else sure
        values = [*([runs[0]] * len(sure)), *([runs[1]] * len(sure) if both else [])]
        found = elements(doubled, threads, values=values, moving=moving)
        met = None if found is None else find(found, threads, syncs)
        if met is not None:
            worth = ", ".join(f"{s.name} = {runs[0][s]}" for s in free if s.scope is Scope.GRID)
            text = f"for {worth}" if worth else ""
            return Finding(Outcome.REFUTED, "", met, tuple(doubled), text)
    return None


def _trial(sym: Sym, size: int, later: int) -> int:
    if sym.scope is Scope.GRID:
        return size
    value = (sym.lo or 0) + (later if sym.scope is Scope.PRIVATE else 0)
    return value if sym.hi is None else min(value, sym.hi)


def of_accesses(accesses: Iterable[Access]) -> list[Open]:
    """Accesses that nothing orders."""
    return [Open(a) for a in accesses]
