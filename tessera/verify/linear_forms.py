"""Affine arithmetic: sums in which the same number takes part more than once.

`(x + y) - x` is `y` and what was rounded, wherever `x` is; intervals alone would add the widths. A
form is a sum of multiples of terms, a constant, and a bound of all roundings (Stolfi and de
Figueiredo, "Affine arithmetic", 1997).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tessera.dtypes import finfo
from tessera.ir.interval import Interval, rounded
from tessera.verify.terms import Term

if TYPE_CHECKING:
    from tessera.verify.context import Context

MAX_DEPTH = 6


class _Form:
    """A sum of multiples of terms, a constant, and at most so much for roundings."""

    def __init__(self) -> None:
        self.coefficients: dict[Term, float] = {}
        self.constant = 0.0
        self.error = 0.0
        self.magnitude = 0.0
        self.uses = 0


def linear(context: Context, term: Term, found: Interval) -> Interval:
    """The interval of a sum, made smaller where the same number takes part in it twice.

    Args:
        context: where its parts are.
        term: the sum.
        found: where it is by the rule of its op.
    """
    form = _Form()
    is_form = not found.nan and _collect(context, term, 1.0, form, 0)
    if not is_form or form.uses == len(form.coefficients):
        return found
    low = high = form.constant
    for t, c in form.coefficients.items():
        x = context.interval(t)
        low += c * float(x.lo if c >= 0 else x.hi)
        high += c * float(x.hi if c >= 0 else x.lo)
    # The second part is for the arithmetic here, in float64.
    slack = form.error + 1e-15 * (abs(low) + abs(high) + form.magnitude)
    return found.meet(rounded(Interval(low - slack, high + slack), term.dtype))


def _collect(context: Context, t: Term, factor: float, form: _Form, depth: int) -> bool:
    """Adds factor * t to a form; False where a part is not finite."""
    if depth and not context.interval(t).is_finite:
        return False
    if t.op == "const":
        form.constant += factor * float(t.attr[1])
        form.magnitude += abs(factor * float(t.attr[1]))
        return True
    if depth < MAX_DEPTH and t.dtype.is_float:
        parts = _parts(t)
        if parts:
            if depth and t.op != "neg":
                limits = finfo(t.dtype)
                size = float(context.interval(t).magnitude)
                form.error += abs(factor) * (size * limits.eps + limits.smallest_subnormal)
            return all(_collect(context, x, factor * c, form, depth + 1) for x, c in parts)
    form.uses += 1
    form.coefficients[t] = form.coefficients.get(t, 0.0) + factor
    form.magnitude += abs(factor) * float(context.interval(t).magnitude)
    return True


def _parts(t: Term) -> list[tuple[Term, float]]:
    """Terms and factors that a term is the sum of; none if it is no sum."""
    args = t.args
    if t.op == "neg":
        return [(args[0], -1.0)]
    if t.op in ("add", "sub"):
        return [(args[0], 1.0), (args[1], -1.0 if t.op == "sub" else 1.0)]
    if t.op == "mul":
        for a, b in (args, args[::-1]):
            if a.op == "const" and math.isfinite(a.attr[1]):
                return [(b, float(a.attr[1]))]
    return []
