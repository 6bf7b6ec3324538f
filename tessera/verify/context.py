"""Bounds of terms under assumptions: intervals, and the relations that plain intervals lose.

A `Context` gives the interval of a term. It knows, besides the rules of `ir/interval_rules.py`:

- order: `max(x)` is at least each `x`, a sum of what is not negative at least each of it;
- attainment: some `x - max(x)` is 0, so that `sum(exp(x - max(x)))` is at least 1;
- quotients: `x / max(|x|)` is at most 1, `x / sqrt(mean(x * x))` at most the root of the number of
  elements;
- forms that are linear in the same numbers: `(x + y) - x` is `y`, and roundings;
- cases: where a result is not good, both values of a condition in it (of a `select`) are assumed in
  turn, and what follows from each is joined.

Assumptions make a context of their own, in which intervals can only be smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tessera.dtypes import DType, finfo
from tessera.ir.interval import (
    EMPTY,
    Interval,
    bits_of,
    full_range,
    next_above,
    next_below,
    point,
    rounded,
    sum_of,
)
from tessera.ir.interval_rules import apply, cast, square
from tessera.verify.linear_forms import linear
from tessera.verify.quotients import is_even_product, product, ratio
from tessera.verify.terms import Term, matches

MAX_CASES = 3
"""So many conditions are assumed at once."""

MAX_CONDITIONS = 4
"""So many conditions of one term are tried."""

MAX_DEPTH = 14
"""A context looks so deep into a term; below that it believes its parent."""

_RISING = frozenset(
    (*("exp", "exp2", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "atan"),
     *("asinh", "sinh", "erf"))
)  # fmt: skip


TERMS_PER_OP = 1500
"""So many terms are looked at under assumptions for one op."""


class Budget:
    """How many terms may still be looked at under assumptions: for the op at hand, and in all.

    What is not looked at is not proved, and nothing else.
    """

    def __init__(self) -> None:
        self.rest = 4000
        self.terms = self._given = TERMS_PER_OP

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.terms <= 0

    def next_op(self) -> None:
        """Another op is looked at."""
        self.rest += 120 - (self._given - self.terms)
        self.terms = self._given = max(min(TERMS_PER_OP, self.rest), 0)


class Context:
    """What holds at some place of a program.

    Args:
        parent: what holds around it.

    Attributes:
        is_dead: whether the assumptions contradict each other.
    """

    def __init__(self, parent: Context | None = None) -> None:
        self.parent = parent
        self.level: int = parent.level + 1 if parent else 0
        self.budget: Budget = parent.budget if parent else Budget()
        self.is_dead = False
        self._facts: dict[Term, Interval] = dict(parent._facts) if parent else {}
        self._extrema: list[Term] = list(parent._extrema) if parent else []
        self._known: dict[Term, Interval] = {}
        self._cases: dict[tuple[Term, bool], Context] = {}

    # --- intervals ------------------------------------------------------------------------------

    def interval(self, term: Term, depth: int = 0) -> Interval:
        """Where the values of a term are."""
        if self.is_dead:
            return EMPTY
        found = self._known.get(term)
        if found is not None:
            return found
        if self.parent is not None and depth > MAX_DEPTH:
            found = self.parent.interval(term)
            fact = self._facts.get(term)
            return found if fact is None else found.meet(fact)
        found = self._narrowed(term, self._plain(term, depth))
        self._known[term] = found
        if not found.is_finite:
            found = self._by_cases(term, found)
            self._known[term] = found
        return found

    def _narrowed(self, term: Term, found: Interval) -> Interval:
        """With what the assumptions say of it, or of an extremum that it takes part in."""
        if self.parent is not None:
            known = self.parent._known.get(term)
            if known is not None:
                found = found.meet(known)
        fact = self._facts.get(term)
        if fact is not None:
            found = found.meet(fact)
        for top in self._extrema:
            (body,) = top.args
            if body.op == term.op and matches(body, term, frozenset(top.attr[1])):
                limit = self._facts[top]
                if top.attr[0] == "min":
                    found = Interval(max(found.lo, limit.lo), found.hi, found.nan)
                else:
                    found = Interval(found.lo, min(found.hi, limit.hi), found.nan)
                if not limit.nan:
                    found = found.without_nan()
        return found

    def _plain(self, term: Term, depth: int) -> Interval:
        op = term.op
        if self.level:
            self.budget.terms -= 1
        if op == "const":
            x = term.attr[1]
            is_nan = isinstance(x, float) and math.isnan(x)
            return EMPTY.or_nan() if is_nan else point(x)
        if op == "leaf":
            return term.attr[0].interval
        if op == "reduce":
            return self._reduction(term, depth)
        if op == "select":
            return self._select(term, depth)
        given = [self.interval(x, depth + 1) for x in term.args]
        if op == "cast":
            return cast(given[0], term.attr, term.dtype)
        if op == "bitcast":
            return bits_of(self.interval(term.args[0], depth + 1), term.attr, term.dtype)
        if op == "pow2":
            (x,) = given
            found = Interval(_power_below(float(x.lo)), _power_below(float(x.hi)))
            # The exponent of NaN is that of infinity.
            return found.join(point(math.inf)) if x.nan else found
        found = apply(op, given, term.dtype)
        if not term.dtype.is_float or found.is_empty:
            return found
        better = self._related(term, given, found)
        return found if better is None else better

    def _select(self, term: Term, depth: int) -> Interval:
        condition, a, b = term.args
        truth = self.interval(condition, depth + 1)
        if truth.lo == truth.hi:
            return self.interval(a if truth.lo else b, depth + 1)
        if truth.is_empty:
            return EMPTY
        if self.level >= MAX_CASES or self.budget.is_spent:
            return self.interval(a, depth + 1).join(self.interval(b, depth + 1))
        return self.assume(condition, True).interval(a, depth + 1).join(
            self.assume(condition, False).interval(b, depth + 1)
        )

    # --- cases ----------------------------------------------------------------------------------

    def assume(self, condition: Term, truth: bool) -> Context:
        """This context with one assumption more."""
        key = (condition, truth)
        found = self._cases.get(key)
        if found is None:
            found = self._cases[key] = Context(self)
            found._take(condition, truth)
        return found

    def _by_cases(self, term: Term, found: Interval) -> Interval:
        """Both cases of conditions in the term, where that makes it better."""
        if self.level >= MAX_CASES or term.op in ("const", "leaf", "select"):
            return found
        for condition in self._conditions(term):
            if self.budget.is_spent:
                break
            cases = [self.assume(condition, truth) for truth in (True, False)]
            # Without a value in the first case that case cannot be.
            joined = cases[0].interval(term).join(cases[1].interval(term))
            found = found.meet(joined)
            if found.is_finite:
                break
        return found

    def _conditions(self, term: Term) -> Iterator[Term]:
        """Conditions within a term that are not decided, the nearest first."""
        seen: set[Term] = set()
        level: list[Term] = [term]
        count = 0
        for _ in range(MAX_DEPTH):
            below: list[Term] = []
            for t in level:
                if t in seen:
                    continue
                seen.add(t)
                below += t.args
                if t.op != "select":
                    continue
                condition = t.args[0]
                # What depends on a label that is bound here is not one condition.
                if condition in seen or any(k < 0 and k not in term.free for k in condition.free):
                    continue
                seen.add(condition)
                truth = self.interval(condition)
                if truth.lo != truth.hi:
                    yield condition
                    count += 1
                    if count >= MAX_CONDITIONS:
                        return
            level = below
            if not level or len(seen) > 200:
                return

    def _take(self, condition: Term, truth: bool) -> None:
        """Notes what follows from a condition."""
        self._note(condition, point(int(truth)))
        op, args = condition.op, condition.args
        if op == "not":
            self._take(args[0], not truth)
        elif (op == "and" and truth) or (op == "or" and not truth):
            if condition.dtype.is_bool:
                for x in args:
                    self._take(x, truth)
        elif op in _COMPARISONS:
            self._take_comparison(op, args[0], args[1], truth)
        elif op in ("isfinite", "isnan", "isinf"):
            self._take_test(op, args[0], truth)

    def _take_test(self, op: str, x: Term, truth: bool) -> None:
        known = self.interval(x)
        if op == "isnan":
            self._note(x, EMPTY.or_nan() if truth else known.without_nan())
            return
        if (op == "isfinite") is truth:
            # No infinity; no NaN either where that was asked.
            low = next_above(known.lo, x.dtype) if known.lo == -math.inf else known.lo
            high = next_below(known.hi, x.dtype) if known.hi == math.inf else known.hi
            self._note(x, Interval(low, high, known.nan and op == "isinf"))
            return
        ends = [v for v in (known.lo, known.hi) if math.isinf(v)]
        nan = known.nan and op == "isfinite"
        found = Interval(min(ends), max(ends)) if ends and not known.is_empty else EMPTY
        self._note(x, found.or_nan(nan))

    def _take_comparison(self, op: str, a: Term, b: Term, truth: bool) -> None:
        x, y = self.interval(a), self.interval(b)
        if op in ("eq", "ne"):
            if (op == "eq") is truth:
                both = x.without_nan().meet(y.without_nan())
                self._note(a, both)
                self._note(b, both)
                return
            if y.lo == y.hi and not y.nan:
                self._note(a, _excluding(x, y.lo, a.dtype))
            if x.lo == x.hi and not x.nan:
                self._note(b, _excluding(y, x.lo, b.dtype))
            return
        if op in ("gt", "ge"):
            op, a, b, x, y = {"gt": "lt", "ge": "le"}[op], b, a, y, x
        if not truth:
            if x.nan or y.nan:
                return  # of NaN it is false too
            op, a, b, x, y = {"lt": "le", "le": "lt"}[op], b, a, y, x
        high, low = y.hi, x.lo
        if op == "lt":
            high = next_below(high, a.dtype) if x.hi >= high else high
            low = next_above(low, b.dtype) if y.lo <= low else low
        self._note(a, Interval(x.lo, min(x.hi, high)))
        self._note(b, Interval(max(y.lo, low), y.hi))

    def _note(self, term: Term, fact: Interval) -> None:
        """Notes where a term is, and what follows for its operands."""
        known = self._facts.get(term)
        fact = fact if known is None else fact.meet(known)
        self._facts[term] = fact
        self._known.clear()
        if fact.is_empty and not fact.nan:
            self.is_dead = True
        if fact.nan:
            return
        if term.op == "neg":
            self._note(term.args[0], Interval(-fact.hi, -fact.lo))
        elif term.op == "abs":
            self._note(term.args[0], Interval(-fact.hi, fact.hi))
        elif term.op == "max":
            for x in term.args:
                self._note(x, Interval(-math.inf, fact.hi))
        elif term.op == "min":
            for x in term.args:
                self._note(x, Interval(fact.lo, math.inf))
        elif term.op == "reduce" and term.attr[0] in ("max", "min"):
            self._extrema.append(term)

    # --- reductions -----------------------------------------------------------------------------

    def _reduction(self, term: Term, depth: int) -> Interval:
        row, bound, count = term.attr
        (body,) = term.args
        x = self.interval(body, depth + 1)
        if row in ("max", "min"):
            if x.is_empty or count.least == 0:
                end = -math.inf if row == "max" else math.inf
                return x.join(point(end)) if term.dtype.is_float else x
            if row == "max":
                peak = self.peak(body, frozenset(bound), depth)
                return Interval(min(max(x.lo, peak), x.hi), x.hi, x.nan)
            return x
        if row == "add":
            found = sum_of(x, count.least, count.most, term.dtype)
            if x.lo >= 0 and not x.is_empty and count.least > 0 and term.dtype.is_float:
                peak = self.peak(body, frozenset(bound), depth)
                if peak > found.lo:
                    found = Interval(min(peak, found.hi), found.hi, found.nan)
            return found
        if row == "mul":
            return _product_of(x, count.least, count.most, term.dtype)
        if row in ("and", "or") and term.dtype.is_bool:
            return x if count.least else x.join(point(int(row == "and")))
        return full_range(term.dtype)

    def peak(self, term: Term, bound: frozenset[int], depth: int = 0) -> float:
        """A number that some element is not below, among those that differ in bound labels only.

        There is such an element for every choice of the other labels.
        """
        known = self.interval(term, depth + 1)
        low = float(known.lo)
        if depth > 2 * MAX_DEPTH or known.nan or known.is_empty:
            return low
        found = low
        op, args = term.op, term.args
        if op == "sub" and self._is_top(args[1], args[0], bound):
            top = self.interval(args[1], depth + 1)
            if top.is_finite:
                found = 0.0
        elif op in ("eq", "ge") and self._is_top(args[1], args[0], bound):
            if not any(self.interval(x, depth + 1).nan for x in args):
                found = 1.0
        elif op in _RISING or (op == "cast" and term.dtype.is_float):
            found = self._risen(term, self.peak(args[0], bound, depth + 1), low)
        elif op == "select" and not args[0].free & bound:
            truth = self.interval(args[0], depth + 1)
            chosen = args[1:] if truth.lo != truth.hi else [args[1] if truth.lo else args[2]]
            found = min([self.peak(x, bound, depth + 1) for x in chosen])
        elif op == "max":
            found = max([self.peak(x, bound, depth + 1) for x in args])
        elif op in ("mul", "div", "add", "sub") and not args[1].free & bound:
            other = self.interval(args[1], depth + 1)
            if op in ("add", "sub") or other.lo > 0:
                inner = self.peak(args[0], bound, depth + 1)
                image = apply(op, [point(inner), other], term.dtype)
                found = low if image.nan else float(image.lo)
        return max(found, low)

    def _risen(self, term: Term, peak: float, low: float) -> float:
        """What a function that rises makes of a peak; `low` outside of its domain."""
        if peak == 0 and term.op in ("exp", "exp2"):
            return 1.0  # which is exact
        if term.op == "cast":
            image = cast(point(peak), term.attr, term.dtype)
        else:
            image = apply(term.op, [point(peak)], term.dtype)
        return low if image.nan else float(image.lo)

    def _is_top(self, top: Term, x: Term, bound: frozenset[int]) -> bool:
        """Whether `top` is the maximum of `x` over labels that are all bound, for any others."""
        if top.op == "select":
            truth = self.interval(top.args[0])
            if truth.lo == truth.hi:
                return self._is_top(top.args[1] if truth.lo else top.args[2], x, bound)
        if top.op != "reduce" or top.attr[0] != "max" or top.free & bound:
            return False
        # The labels that the maximum goes over are those that the element has in their place.
        own = frozenset(top.attr[1])
        if not matches(top.args[0], x, own):
            return False
        varying = x.free - top.free
        return varying <= bound and len(varying) == len(top.args[0].free & own)

    # --- relations ------------------------------------------------------------------------------

    def _related(self, term: Term, given: list[Interval], found: Interval) -> Interval | None:
        op, args, dtype = term.op, term.args, term.dtype
        if op == "sub":
            return self._difference(term, args[0], args[1], found)
        if op == "add":
            for a, b in (args, args[::-1]):
                if b.op == "neg":
                    return self._difference(term, a, b.args[0], found)
            return linear(self, term, found)
        if op == "mul":
            if args[0] is args[1]:
                return found.meet(square(given[:1], dtype).or_nan(found.nan))
            if found.lo < 0 and is_even_product(term):
                found = Interval(0.0, max(found.hi, 0.0), found.nan)
            most = min(product(self, args[0], args[1]), product(self, args[1], args[0]))
            return _within(found, most, dtype)
        if op == "div":
            if args[0] is args[1] and given[0].is_finite and not given[0].has_zero:
                return point(1.0)
            if given[1].lo > 0:
                return _within(found, ratio(self, args[0], args[1]), dtype)
            return None
        return None

    def _difference(self, term: Term, a: Term, b: Term, found: Interval) -> Interval:
        if a is b and self.interval(a).is_finite:
            return point(0.0)
        low, high = found.lo, found.hi
        if self.is_below(a, b):
            high = min(high, 0.0)
        if self.is_below(b, a):
            low = max(low, 0.0)
        found = Interval(low, high, found.nan) if low <= high else found
        return linear(self, term, found)

    def is_below(self, a: Term, b: Term, depth: int = 0) -> bool:
        """Whether `a <= b` wherever neither is NaN."""
        if a is b:
            return True
        if depth > 6:
            return False
        if self.interval(a).hi <= self.interval(b).lo:
            return True
        return (
            self._is_part(a, b)
            or self._is_below_by_parts(a, b, depth + 1)
            or any(
                t.op == "select" and self._is_below_in_cases(a, b, t, is_left, depth)
                for t, is_left in ((b, False), (a, True))
            )
        )

    def _is_part(self, a: Term, b: Term) -> bool:
        """Whether an extremum, or a sum of what is not negative, goes over the other."""
        if b.op == "reduce":
            row, bound, _ = b.attr
            is_above = row == "max" or (row == "add" and self.interval(b.args[0]).lo >= 0)
            if is_above and matches(b.args[0], a, frozenset(bound)):
                return True
        if a.op == "reduce" and a.attr[0] == "min":
            return matches(a.args[0], b, frozenset(a.attr[1]))
        return False

    def _is_below_by_parts(self, a: Term, b: Term, depth: int) -> bool:
        if b.op == "max" and any(self.is_below(a, t, depth) for t in b.args):
            return True
        if a.op == "min" and any(self.is_below(t, b, depth) for t in a.args):
            return True
        if a.op == "max" and all(self.is_below(t, b, depth) for t in a.args):
            return True
        if b.op == "min" and all(self.is_below(a, t, depth) for t in b.args):
            return True
        if b.op == "abs" and self.is_below(a, b.args[0], depth):
            return True
        if b.op == "add":
            for p, q in (b.args, b.args[::-1]):
                if self.interval(q).lo >= 0 and self.is_below(a, p, depth):
                    return True
        if a.op == b.op == "cast" and a.dtype is b.dtype and a.attr is b.attr:
            return self.is_below(a.args[0], b.args[0], depth)
        return False

    def _is_below_in_cases(self, a: Term, b: Term, t: Term, is_left: bool, depth: int) -> bool:
        cases = self.cases(t)
        return cases is not None and all(
            within.is_below(x, b, depth + 1) if is_left else within.is_below(a, x, depth + 1)
            for within, x in cases
        )

    def cases(self, choice: Term) -> list[tuple[Context, Term]] | None:
        """The cases of a `select`: contexts, and what is chosen there; None if there were too many.
        """
        condition, *chosen = choice.args
        truth = self.interval(condition)
        if truth.lo == truth.hi:
            return [(self, chosen[0 if truth.lo else 1])]
        if self.level >= MAX_CASES or self.budget.is_spent:
            return None
        both = [self.assume(condition, True), self.assume(condition, False)]
        return [(c, x) for c, x in zip(both, chosen, strict=True) if not c.is_dead]


_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def _product_of(x: Interval, least: int, most: float, dtype: DType) -> Interval:
    """The product of numbers that are all in an interval."""
    if not dtype.is_float or x.is_empty or x.has_infinity or most == math.inf:
        return full_range(dtype)
    unit = finfo(dtype).eps
    grown = max(1.0, float(x.magnitude))
    try:
        top = grown**most * math.exp(min(unit * most, 700.0))
    except OverflowError:
        top = math.inf
    found = rounded(Interval(0.0 if x.lo >= 0 else -top, top), dtype)
    # Infinity times zero: where some products may overflow and others vanish.
    return found.or_nan(x.nan or (found.has_infinity and x.least < 1))


def _power_below(x: float) -> float:
    """The power of two not above a positive number."""
    if x <= 0 or math.isinf(x):
        return x
    return math.ldexp(1.0, math.frexp(x)[1] - 1)


def _within(found: Interval, most: float, dtype: DType) -> Interval:
    """A result whose magnitude has a bound, before it is rounded."""
    if not most < math.inf:
        return found
    limit = rounded(Interval(-most, most), dtype)
    return found.meet(limit.or_nan())


def _excluding(x: Interval, value: float, dtype: DType) -> Interval:
    """An interval without one number, where that is an end."""
    low = next_above(x.lo, dtype) if x.lo == value else x.lo
    high = next_below(x.hi, dtype) if x.hi == value else x.hi
    return Interval(low, high, x.nan)
