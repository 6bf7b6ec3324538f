"""Bounds of quotients and products that know what a number was divided by.

Normalisation divides by something that is made of the same numbers: their maximum, their sum, the
root of the mean of their squares. The quotient then has a bound, however large they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tessera.dtypes import DType, finfo
from tessera.ir.interval import Interval
from tessera.verify.terms import Term, matches

if TYPE_CHECKING:
    from tessera.verify.context import Context

MAX_DEPTH = 8


def product(context: Context, a: Term, b: Term, depth: int = 0) -> float:
    """A bound of |a * b|, where `b` may be a quotient."""
    x, y = context.interval(a), context.interval(b)
    plain = times(float(x.magnitude), float(y.magnitude))
    if depth > MAX_DEPTH or not (x.is_finite and y.is_finite):
        return plain
    if b.op == "max" and y.lo >= 0:
        return min(plain, max([product(context, a, t, depth + 1) for t in b.args]))
    if b.op == "div" and context.interval(b.args[1]).lo > 0:
        top = float(context.interval(b.args[0]).magnitude)
        bound = times(top, ratio(context, a, b.args[1])) * (1 + 4 * finfo(b.dtype).eps)
        return min(plain, bound + _least(b.dtype, x))
    if b.op == "rsqrt" and context.interval(b.args[0]).lo > 0:
        bound = math.sqrt(_square_ratio(context, a, b.args[0]))
        return min(plain, bound * (1 + 8 * finfo(b.dtype).eps))
    return plain


def ratio(context: Context, a: Term, b: Term, depth: int = 0) -> float:
    """A number r so that |a| <= r * b, where `b` is not negative."""
    x, y = context.interval(a), context.interval(b)
    if x.is_empty or y.is_empty:
        return 0.0
    plain = math.inf if y.lo <= 0 else times(float(x.magnitude), 1 / float(y.lo)) * (1 + 1e-15)
    if depth > MAX_DEPTH or x.nan or y.nan:
        return plain
    if a.op in ("abs", "neg"):
        return min(plain, ratio(context, a.args[0], b, depth + 1))
    if x.lo >= 0 and context.is_below(a, b):
        plain = min(plain, 1.0)
    return min(plain, _ratio_by_form(context, a, b, depth + 1))


def _ratio_by_form(context: Context, a: Term, b: Term, depth: int) -> float:
    """The same from what the divisor is made of."""
    if b.op == "reduce" and b.attr[0] in ("max", "add") and b.args[0].op == "abs":
        return 1.0 if matches(b.args[0].args[0], a, frozenset(b.attr[1])) else math.inf
    if b.op == "abs":
        return 1.0 if b.args[0] is a else math.inf
    if b.op == "max":
        return min([ratio(context, a, t, depth) for t in b.args])
    if b.op == "pow2":
        return 2 * ratio(context, a, b.args[0], depth)
    if b.op == "sqrt" and context.interval(b.args[0]).lo > 0:
        bound = math.sqrt(_square_ratio(context, a, b.args[0], depth))
        return bound * (1 + 2 * finfo(b.dtype).eps)
    if b.op == "add":
        return min([ratio(context, a, t, depth) for t in _summands(context, b)], default=math.inf)
    if b.op == "select":
        cases = context.cases(b)
        if cases is not None:
            return max([ratio(c, a, t, depth) for c, t in cases], default=0.0)
    return math.inf


def _summands(context: Context, total: Term) -> list[Term]:
    """What a sum is not less than: its operands, if none of them is negative."""
    if any(not context.interval(t).lo >= 0 for t in total.args):
        return []
    return list(total.args)


def _square_ratio(context: Context, a: Term, s: Term, depth: int = 0) -> float:
    """A bound of a * a / s for positive `s`, such as a mean of squares.

    A square that is no normal number may be rounded to half of what it is; one that is rounded to 0
    is less than half of the least number that `s` can be, if all is computed in one dtype. Factors
    of 2 are for that.
    """
    x, y = context.interval(a), context.interval(s)
    if x.is_empty or y.is_empty:
        return 0.0
    plain = math.inf
    if y.lo > 0:
        plain = times(float(x.magnitude), float(x.magnitude)) / float(y.lo) * (1 + 1e-15)
    if depth > MAX_DEPTH or x.nan or y.nan:
        return plain
    return min(plain, _square_ratio_by_form(context, a, s, depth + 1))


def _square_ratio_by_form(context: Context, a: Term, s: Term, depth: int) -> float:
    if any(t.dtype is not s.dtype for t in s.args if t.op != "const") and s.op != "select":
        return math.inf
    if s.op == "reduce" and s.attr[0] == "add":
        body = s.args[0]
        is_square = body.op == "square" or (body.op == "mul" and body.args[0] is body.args[1])
        found = is_square and matches(body.args[0], a, frozenset(s.attr[1]))
        return 2.0 if found else math.inf
    if s.op in ("div", "mul") and s.args[1].op == "const":
        c = float(s.args[1].attr[1])
        n = c if s.op == "div" else (1 / c if c else math.inf)
        return 2 * n * _square_ratio(context, a, s.args[0], depth) if n >= 1 else math.inf
    if s.op == "add":
        found = [_square_ratio(context, a, t, depth) for t in _summands(context, s)]
        return min(found, default=math.inf)
    if s.op == "max":
        return min([_square_ratio(context, a, t, depth) for t in s.args])
    if s.op == "select":
        cases = context.cases(s)
        if cases is not None:
            return max([_square_ratio(c, a, t, depth) for c, t in cases], default=0.0)
    return math.inf


def is_even_product(term: Term) -> bool:
    """Whether a product is one of a positive number and of even powers, such as `0.1 * x * x`."""
    powers: dict[Term, int] = {}
    sign = _factors(term, powers, 0)
    return sign > 0 and all(n % 2 == 0 for n in powers.values())


def _factors(t: Term, powers: dict[Term, int], depth: int) -> int:
    """Counts how often each factor takes part in a product; gives the sign of its constants."""
    if t.op == "const":
        x = t.attr[1]
        return (x > 0) - (x < 0)
    if t.op == "neg":
        return -_factors(t.args[0], powers, depth + 1)
    if t.op == "square":
        return 1
    # Of a quotient only a constant divisor counts: others may be 0.
    is_product = t.op == "mul" or (t.op == "div" and t.args[1].op == "const")
    if is_product and depth < MAX_DEPTH:
        return math.prod([_factors(x, powers, depth + 1) for x in t.args])
    powers[t] = powers.get(t, 0) + 1
    return 1


def times(a: float, b: float) -> float:
    """A product of bounds: nothing times anything is nothing."""
    return 0.0 if a == 0 or b == 0 else a * b


def _least(dtype: DType, x: Interval) -> float:
    """What a product is off by where the quotient in it is no normal number."""
    return float(x.magnitude) * finfo(dtype).smallest_subnormal
