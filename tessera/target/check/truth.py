"""Conditions as the threads of a block compute them: known in each thread, or to be found out."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.target.check.index import (
    Assignment,
    Form,
    Scope,
    Sym,
    bounds,
    evaluate,
    fresh_number,
    scale,
    symbol,
)

Flags: TypeAlias = "NDArray[np.bool_]"


class Truth:
    """A condition.

    Attributes:
        kind: `known`; `ge` (form >= 0), `eq` (form == 0); `not`, `and`, `or`; `opaque`.
        may: where it is not known to be false.
        must: where it is known to be true.
        scope: who agrees on it.
        number: its own, among all conditions and symbols.
    """

    __slots__ = ("form", "kind", "may", "must", "number", "parts", "scope")

    def __init__(
        self,
        kind: str,
        may: Flags,
        must: Flags,
        scope: Scope,
        parts: tuple[Truth, ...] = (),
        form: Form | None = None,
    ) -> None:
        self.kind, self.may, self.must, self.scope = kind, may, must, scope
        self.parts, self.form = parts, form
        self.number = fresh_number()

    @property
    def is_known(self) -> bool:
        """Whether it is known in all threads."""
        return self.kind == "known"

    def value(self, values: Assignment) -> Flags | None:
        """The condition under an assignment of symbols; None where that does not say."""
        if self.kind == "known":
            return self.must
        if self.form is not None:
            found = evaluate(self.form, values)
            if found is None:
                return None
            wide = np.broadcast_to(np.asarray(found), self.may.shape)
            return wide >= 0 if self.kind == "ge" else wide == 0
        given = [p.value(values) for p in self.parts]
        known = [v for v in given if v is not None]
        if len(known) < len(given) or not known:
            return None
        if self.kind == "not":
            return ~known[0]
        return known[0] & known[1] if self.kind == "and" else known[0] | known[1]

    def symbols(self) -> set[Sym]:
        """The symbols that it mentions, those of computed symbols included."""
        found: set[Sym] = set()
        if self.form is not None:
            found |= deep_symbols(self.form)
        for part in self.parts:
            found |= part.symbols()
        return found


def deep_symbols(form: Form) -> set[Sym]:
    """The symbols of a form and of what they are computed from."""
    found: set[Sym] = set()
    pending = list(form.symbols())
    while pending:
        sym = pending.pop()
        if sym not in found:
            found.add(sym)
            pending += [s for a in sym.args for s in a.symbols()]
    return found


def known(flags: Flags) -> Truth:
    """A condition that is known in each thread."""
    same = bool((flags == flags[0]).all())
    return Truth("known", flags, flags, Scope.GRID if same else Scope.PRIVATE)


def opaque(threads: int, scope: Scope) -> Truth:
    """A condition about which nothing is known."""
    return Truth("opaque", np.ones(threads, np.bool_), np.zeros(threads, np.bool_), scope)


def _simple(found: Truth) -> Truth:
    if found.must.all() or not found.may.any() or (found.must == found.may).all():
        return known(found.must)
    return found


def at_least_zero(form: Form, threads: int) -> Truth:
    """form >= 0."""
    low, high = bounds(form)
    must = np.zeros(threads, np.bool_) if low is None else _wide(np.asarray(low) >= 0, threads)
    may = np.ones(threads, np.bool_) if high is None else _wide(np.asarray(high) >= 0, threads)
    return _simple(Truth("ge", may, must, form.scope, form=form))


def is_zero(form: Form, threads: int) -> Truth:
    """form == 0."""
    low, high = bounds(form)
    may = np.ones(threads, np.bool_)
    if low is not None:
        may = may & (np.asarray(low) <= 0)
    if high is not None:
        may = may & (np.asarray(high) >= 0)
    if form.is_const:
        return known(_wide(np.asarray(form.base) == 0, threads))
    return _simple(Truth("eq", may, np.zeros(threads, np.bool_), form.scope, form=form))


def _wide(flags: NDArray[np.bool_], threads: int) -> Flags:
    return np.ascontiguousarray(np.broadcast_to(flags, (threads,)))


def negate(a: Truth) -> Truth:
    """not a."""
    if a.is_known:
        return known(~a.must)
    if a.kind == "not":
        return a.parts[0]
    if a.kind == "ge" and a.form is not None:  # form < 0 is -form - 1 >= 0
        less = scale(a.form, -1)
        return at_least_zero(Form(less.base - 1, less.terms), len(a.may))
    return Truth("not", ~a.must, ~a.may, a.scope, (a,))


def both(a: Truth, b: Truth) -> Truth:
    """a and b."""
    for x, y in ((a, b), (b, a)):
        if x.is_known and x.must.all():
            return y
    scope = max(a.scope, b.scope)
    return _simple(Truth("and", a.may & b.may, a.must & b.must, scope, (a, b)))


def either(a: Truth, b: Truth) -> Truth:
    """a or b."""
    for x, y in ((a, b), (b, a)):
        if x.is_known and not x.may.any():
            return y
    scope = max(a.scope, b.scope)
    return _simple(Truth("or", a.may | b.may, a.must | b.must, scope, (a, b)))


def as_number(a: Truth, name: str) -> Form:
    """0 or 1."""
    if a.is_known:
        same = a.must[0] if (a.must == a.must[0]).all() else None
        return Form(int(same)) if same is not None else Form(a.must.astype(np.int64))
    return symbol(Sym(name, a.scope, 0, 1))
