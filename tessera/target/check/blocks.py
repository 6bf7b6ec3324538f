"""Global memory: addresses that are products of symbolic sizes, and races between blocks.

An address such as `4 * (n * row + col)` with `0 <= col < n` has two digits: different rows lie
apart whatever `n` is. `levels` takes addresses apart like that, after proving that each digit stays
below the next one's weight. Blocks are kept apart by the digits of their number in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tessera.ir.core import Value
from tessera.target import gpu_ops as g
from tessera.target.check.access import Access, Agent, Kind
from tessera.target.check.index import (
    Coef,
    Form,
    Mono,
    Scope,
    Sym,
    add,
    bounds,
    content,
    scale,
    sub,
    symbol,
)
from tessera.target.check.report import Outcome, Verdict
from tessera.target.check.truth import Flags, Truth

BIG = 1 << 20
"""What a proven digit's weight is replaced with, to compare addresses as numbers."""


def facts_of(guard: Truth) -> list[Form]:
    """Forms that are at least zero where an access happens."""
    if guard.kind == "and":
        return [f for part in guard.parts for f in facts_of(part)]
    return _unwrapped(guard.form) if guard.kind == "ge" and guard.form is not None else []


def _unwrapped(fact: Form, depth: int = 4) -> list[Form]:
    """`min(a, b) + c >= 0` says so of a and of b; `max(a, b) + c >= 0` of a, where b + c < 0."""
    found = [fact]
    for mono, coef in fact.terms.items() if depth else ():
        if len(mono) != 1 or not isinstance(coef, int) or coef != 1:
            continue
        rest = Form(fact.base, {m: c for m, c in fact.terms.items() if m != mono})
        sym = mono[0]
        if sym.fn == "min":
            found += [f for arg in sym.args for f in _unwrapped(add(arg, rest), depth - 1)]
        elif sym.fn == "max":
            for one, other in (sym.args, sym.args[::-1]):
                _, high = bounds(add(other, rest))
                if high is not None and np.max(high) < 0:
                    found += _unwrapped(add(one, rest), depth - 1)
    return found


def at_least_zero(form: Form, facts: Sequence[Form], active: Flags, depth: int = 2) -> bool:
    """Whether a form is proved not to be negative in the active threads."""
    low, _ = bounds(form)
    if low is not None and (np.broadcast_to(np.asarray(low), active.shape)[active] >= 0).all():
        return True
    if not depth:
        return False
    for fact in facts:
        for mono, coef in form.terms.items():
            other = fact.terms.get(mono)
            if isinstance(coef, int) and isinstance(other, int) and coef * other > 0:
                times = coef // other if coef % other == 0 else 0
                if times > 0:
                    rest = sub(form, scale(fact, times))
                    if at_least_zero(rest, [f for f in facts if f is not fact], active, depth - 1):
                        return True
    return False


@dataclass(frozen=True, slots=True)
class Levels:
    """An address as digits: bytes first, then multiples of `weights`.

    Attributes:
        weights: products of sizes, each a multiple of the one before.
        digits: the form at each weight; one more than there are weights.
        unit: bytes that all digits but the first are multiples of.
    """

    weights: tuple[Mono, ...]
    digits: tuple[Form, ...]
    unit: int

    def flat(self) -> Form:
        """The address with large numbers for weights."""
        total = self.digits[0]
        for power, digit in enumerate(self.digits[1:], 1):
            total = add(total, scale(digit, self.unit * BIG**power))
        return total


def levels(access: Access, weights: Sequence[Mono], names: Mapping[Sym, Form]) -> Levels | None:
    """Takes an address apart; None where a digit may be too large."""
    form = replace_symbols(access.form, names)
    parts: list[dict[Mono, Coef]] = [{} for _ in range(len(weights) + 1)]
    for mono, coef in form.terms.items():
        sizes = tuple(s for s in mono if s.scope is Scope.GRID)
        rest = tuple(s for s in mono if s.scope is not Scope.GRID)
        place = 0 if not sizes else 1 + list(weights).index(sizes)
        parts[place][rest] = coef
    unit = 0
    for part in parts[1:]:
        for coef in part.values():
            unit = int(np.gcd(unit, content(coef)))
    unit = unit or 1
    digits = [Form(form.base, parts[0])]
    for part in parts[1:]:
        base = part.pop((), 0)
        digits.append(Form(base // unit, {m: c // unit for m, c in part.items()}))
    facts = [replace_symbols(f, names) for f in facts_of(access.guard)]
    active = access.guard.may
    before: Mono = ()
    for number, weight in enumerate(weights):
        ratio = _quotient(weight, before)
        if ratio is None or access.width is None:
            return None
        limit = Form(0, {ratio: unit if number == 0 else 1})
        last = access.width if number == 0 else 1
        digit = digits[number]
        upper = sub(limit, Form(digit.base + last, digit.terms))
        if not at_least_zero(digit, facts, active) or not at_least_zero(upper, facts, active):
            return None
        before = weight
    return Levels(tuple(weights), tuple(digits), unit)


def _quotient(a: Mono, b: Mono) -> Mono | None:
    left = list(a)
    for sym in b:
        if sym not in left:
            return None
        left.remove(sym)
    return tuple(left)


def weights_of(forms: Sequence[Form]) -> list[Mono] | None:
    """The products of sizes in forms, each a multiple of the one before; None if they are not."""
    found = {tuple(s for s in m if s.scope is Scope.GRID) for f in forms for m in f.terms}
    ordered = sorted((w for w in found if w), key=len)
    for a, b in pairwise(ordered):
        if _quotient(b, a) is None:
            return None
    return ordered


def replace_symbols(form: Form, names: Mapping[Sym, Form]) -> Form:
    """The form with symbols replaced by forms."""
    for _ in range(4):
        changed = False
        for mono, coef in form.terms.items():
            sym = next((s for s in mono if s in names), None)
            if sym is not None:
                others = list(mono)
                others.remove(sym)
                rest = {m: c for m, c in form.terms.items() if m != mono}
                product = Form(0, {tuple(others): coef}) if others else Form(coef)
                form = add(Form(form.base, rest), _times(product, names[sym]))
                changed = True
                break
        if not changed:
            return form
    return form


def _times(a: Form, b: Form) -> Form:
    """The product of one term and a form."""
    ((mono, coef),) = a.terms.items() if a.terms else (((), a.base),)
    terms: dict[Mono, Coef] = {}
    base: Coef = 0
    for other, factor in (*b.terms.items(), ((), b.base)):
        key = tuple(sorted((*mono, *other), key=lambda s: s.number))
        value = coef * factor
        if key:
            terms[key] = terms.get(key, 0) + value
        else:
            base = base + value
    return Form(base, {m: c for m, c in terms.items() if content(c)})


def digits_of_block(block: Sym, forms: Sequence[Form]) -> tuple[dict[Sym, Form], list[Sym]]:
    """How the block's number is made of what forms divide it into: replacements, and digits."""
    names: dict[Sym, Form] = {}
    digits: list[Sym] = []
    current = block
    while True:
        found = next(
            (
                s
                for f in forms
                for s in sorted(f.symbols(), key=lambda s: s.number)
                if s.fn == "floordiv" and s.args[0].key == symbol(current).key
            ),
            None,
        )
        if found is None:
            return names, [*digits, current]
        by = found.args[1]
        most = by.base - 1 if by.is_const and isinstance(by.base, int) else None
        rest = Sym("program", Scope.BLOCK, 0, most)
        quotient = _times_forms(by, symbol(found))
        names[current] = add(quotient, symbol(rest))
        if most != 0:
            digits.append(rest)
        current = found


def _times_forms(a: Form, b: Form) -> Form:
    total = scale(b, a.base)
    for mono, coef in a.terms.items():
        total = add(total, _times(b, Form(0, {mono: coef})))
    return total


def flattened(accesses: Sequence[Access], block: Sym) -> list[Form] | None:
    """Addresses in which symbolic sizes are numbers, if that changes nothing in who meets whom."""
    forms = [a.form for a in accesses]
    facts = [f for a in accesses for f in facts_of(a.guard)]
    names, _ = digits_of_block(block, [*forms, *facts])
    weights = weights_of([replace_symbols(f, names) for f in forms])
    if not weights:
        return None
    found = [levels(a, weights, names) for a in accesses]
    known = [x for x in found if x is not None]
    if len(known) < len(found) or len({x.unit for x in known}) > 1:
        return None
    return [x.flat() for x in known]


def check_blocks(
    accesses: Sequence[Access], block: Sym, names: Mapping[Value, str], alone: bool
) -> list[Verdict]:
    """For each memory argument that is written: whether blocks keep out of each other's bytes.

    Args:
        accesses: of the kernel.
        block: the block's number.
        names: what messages call objects.
        alone: whether the kernel is for one block.
    """
    memories: dict[Value, list[Access]] = {}
    for access in accesses:
        if access.base is not None and not isinstance(access.base.op, g.Shared):
            memories.setdefault(access.base, []).append(access)
    found: list[Verdict] = []
    for base, items in memories.items():
        kinds = {a.kind for a in items}
        if kinds == {Kind.READ}:
            continue
        name = names.get(base, "memory")
        why = "" if alone or kinds == {Kind.ATOMIC} else _blocks_meet(_distinct(items), block)
        outcome = Outcome.UNDECIDED if why else Outcome.PROVED
        found.append(Verdict("blocks", name, outcome, why))
    return found


def _distinct(items: Sequence[Access]) -> list[Access]:
    found: dict[tuple[object, ...], Access] = {}
    for a in items:
        found.setdefault((a.form.key, a.width, id(a.guard)), a)
    return list(found.values())


def _blocks_meet(items: Sequence[Access], block: Sym) -> str:
    """Why two blocks might touch one byte; empty if they do not."""
    if any(a.agent is Agent.ENGINE for a in items):
        return "the copy engine writes it"
    forms = [a.form for a in items]
    names, digits = digits_of_block(block, [*forms, *(f for a in items for f in facts_of(a.guard))])
    weights = weights_of([replace_symbols(f, names) for f in forms])
    if weights is None:
        return "addresses are products of several sizes"
    apart = [levels(a, weights, names) for a in items]
    known = [x for x in apart if x is not None]
    if len(known) < len(apart):
        return "it is not known that rows end before the next ones begin"
    left = set(digits)
    for level in range(len(weights) + 1):
        rows = [(x.digits[level], a) for x, a in zip(known, items, strict=True)]
        why = _separate(rows, left, level == 0)
        if why:
            return why
    if left:
        return "blocks may write the same bytes"
    return ""


Row = tuple[Form, Access]


def _separate(rows: Sequence[Row], left: set[Sym], in_bytes: bool) -> str:
    """Whether the block's digits of one level keep blocks apart; takes them out of `left`."""
    part = _block_part(rows[0][0], left)
    if part is None or any(_block_part(form, left) != part for form, _ in rows):
        return "blocks move differently in different accesses"
    strides = sorted(((abs(c), s) for s, c in part.items()), key=lambda item: item[0])
    while strides:
        stride, sym = strides[0]
        covered = _covered(rows, set(part), in_bytes)
        if covered is None:
            return "how much a block covers is not known"
        if covered[1] - covered[0] <= stride:
            left.discard(sym)
            if len(strides) == 1:
                return ""
        # Rows of as many blocks as there are; what is left of an address counts such rows.
        pitch = stride * (sym.hi + 1) if sym.hi is not None else 0
        if not pitch or any(c % pitch for c, _ in strides[1:]):
            return "what one block covers reaches into the next one's"
        low = [(_modulo(form, pitch), a) for form, a in rows]
        covered = _covered(low, set(part), in_bytes)
        if covered is None or covered[0] < 0 or covered[1] > stride:
            return "what one block covers reaches into the next one's"
        left.discard(sym)
        rows = [(_over(form, pitch), a) for form, a in rows]
        strides = [(c // pitch, s) for c, s in strides[1:]]
        in_bytes = False
    return ""


def _covered(rows: Sequence[Row], digits: set[Sym], in_bytes: bool) -> tuple[int, int] | None:
    """The least and the greatest place of one block, from its start."""
    low: list[int] = []
    high: list[int] = []
    for form, access in rows:
        rest = Form(form.base, {m: c for m, c in form.terms.items() if not digits & set(m)})
        least, most = bounds(rest)
        active = access.guard.may
        if least is None or most is None or not active.any():
            return None
        size = (access.width or 1) if in_bytes else 1
        low.append(int(np.broadcast_to(np.asarray(least), active.shape)[active].min()))
        high.append(int(np.broadcast_to(np.asarray(most), active.shape)[active].max()) + size)
    return min(low), max(high)


def _modulo(form: Form, by: int) -> Form:
    return Form(form.base % by, {m: c for m, c in form.terms.items() if content(c) % by})


def _over(form: Form, by: int) -> Form:
    whole = {m: c // by for m, c in form.terms.items() if content(c) % by == 0}
    return Form(form.base // by, whole)


def _block_part(form: Form, digits: set[Sym]) -> dict[Sym, int] | None:
    found: dict[Sym, int] = {}
    for mono, coef in form.terms.items():
        if any(s in digits for s in mono):
            if len(mono) != 1 or not isinstance(coef, int):
                return None
            found[mono[0]] = coef
    return found
