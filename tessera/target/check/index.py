"""Integers as the threads of a block compute them: linear forms with a constant in each thread.

A `Form` is `base + sum(coefficient * product of symbols)`, where base and coefficients are ints or
one int per thread. So `16 * (thread ^ 3) + 4096 * stage + n * block` is known exactly, whatever
the symbols are worth. What has no such form (a quotient that does not divide, a loaded value)
becomes a symbol of its own; equal operations on equal forms become the same symbol.

Arithmetic is that of integers: it is assumed that offsets do not overflow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from math import gcd
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.int64]"
Coef: TypeAlias = "int | NDArray[np.int64]"
Bound: TypeAlias = "int | NDArray[np.int64] | None"

MAX_TERMS = 12
MAX_DEPTH = 8
"""How deep operations are followed; beyond, a value is just unknown."""

_numbers = itertools.count(1)


def fresh_number() -> int:
    """A number that nothing else has."""
    return next(_numbers)


class Scope(IntEnum):
    """Who agrees on a symbol's value: all blocks, all threads of a block, nobody."""

    GRID = 0
    BLOCK = 1
    PRIVATE = 2


class Sym:
    """An unknown. `fn` and `args` say how it is computed from forms, if it is.

    Attributes:
        name: for messages.
        scope: who agrees on it.
        lo: inclusive bound or None.
        hi: inclusive bound or None.
        fn: the operation; empty for what is just unknown.
        args: its operands.
        depth: how many operations it is nested in.
        free: whether each value within the bounds occurs in some run.
    """

    __slots__ = ("args", "depth", "fn", "free", "hi", "lo", "name", "number", "scope")

    def __init__(
        self,
        name: str,
        scope: Scope,
        lo: int | None = None,
        hi: int | None = None,
        fn: str = "",
        args: tuple[Form, ...] = (),
        free: bool = False,
    ) -> None:
        self.name, self.scope, self.lo, self.hi = name, scope, lo, hi
        self.fn, self.args, self.free = fn, args, free
        self.number = fresh_number()
        self.depth = 0

    def __repr__(self) -> str:
        return self.name if len(self.name) <= 160 else f"{self.name[:157]}..."


Mono: TypeAlias = "tuple[Sym, ...]"


def collapse(value: Coef) -> Coef:
    """An int where all threads have the same."""
    if isinstance(value, int):
        return value
    first = value[0]
    return int(first) if (value == first).all() else value


def _coef_key(value: Coef) -> int | bytes:
    return value if isinstance(value, int) else value.tobytes()


def content(value: Coef) -> int:
    """The greatest common divisor of all entries."""
    return abs(value) if isinstance(value, int) else int(np.gcd.reduce(value))


def _all_zero(value: Coef) -> bool:
    return value == 0 if isinstance(value, int) else not value.any()


class Form:
    """`base + sum(coef * monomial)`."""

    __slots__ = ("_key", "base", "terms")

    def __init__(self, base: Coef, terms: Mapping[Mono, Coef] | None = None) -> None:
        self.base = base
        self.terms: Mapping[Mono, Coef] = terms or {}
        self._key: tuple[object, ...] | None = None

    @property
    def is_const(self) -> bool:
        """Whether the value is known in each thread."""
        return not self.terms

    @property
    def is_uniform(self) -> bool:
        """Whether all threads of a block have the same value."""
        return (
            isinstance(self.base, int)
            and all(isinstance(c, int) for c in self.terms.values())
            and all(s.scope is not Scope.PRIVATE for s in self.symbols())
        )

    def symbols(self) -> set[Sym]:
        """The symbols that it mentions itself."""
        return {s for mono in self.terms for s in mono}

    @property
    def terms_key(self) -> tuple[object, ...]:
        """Identifies what is added to the base."""
        names = {tuple(s.number for s in m): _coef_key(c) for m, c in self.terms.items()}
        return tuple((name, names[name]) for name in sorted(names))

    @property
    def key(self) -> tuple[object, ...]:
        """Identifies the value."""
        if self._key is None:
            self._key = (_coef_key(self.base), self.terms_key)
        return self._key

    @property
    def scope(self) -> Scope:
        """Who agrees on the value."""
        if not self.is_uniform:
            return Scope.PRIVATE
        return max((s.scope for s in self.symbols()), default=Scope.GRID)

    def __repr__(self) -> str:
        parts = [
            "*".join(
                [*([] if isinstance(c, int) and c == 1 else [_show(c)]), *(repr(s) for s in m)]
            )
            for m, c in self.terms.items()
        ]
        if not (isinstance(self.base, int) and self.base == 0 and parts):
            parts.append(_show(self.base))
        return " + ".join(parts)


def _show(value: Coef) -> str:
    if isinstance(value, int):
        return str(value)
    return f"[{value[0]}, {value[1]}, .., {value[-1]}]"


ZERO = Form(0)


def const(value: Coef) -> Form:
    """A known value."""
    return Form(collapse(value))


def symbol(sym: Sym) -> Form:
    """An unknown."""
    return Form(0, {(sym,): 1})


def add(a: Form, b: Form) -> Form:
    """a + b."""
    base = collapse(a.base + b.base)
    if not b.terms:
        return Form(base, a.terms)
    terms = dict(a.terms)
    for mono, coef in b.terms.items():
        total = collapse(terms[mono] + coef) if mono in terms else coef
        if _all_zero(total):
            del terms[mono]
        else:
            terms[mono] = total
    return Form(base, terms)


def scale(a: Form, factor: Coef) -> Form:
    """a * factor."""
    if _all_zero(factor):
        return ZERO
    return Form(
        collapse(a.base * factor),
        {m: c for m, c in ((m, collapse(c * factor)) for m, c in a.terms.items())
         if not _all_zero(c)},
    )  # fmt: skip


def sub(a: Form, b: Form) -> Form:
    """a - b."""
    return add(a, scale(b, -1))


def mul(a: Form, b: Form) -> Form | None:
    """a * b; None where it gets long."""
    if not b.terms:
        return scale(a, b.base)
    if not a.terms:
        return scale(b, a.base)
    total = scale(b, a.base)
    for mono, coef in a.terms.items():
        total = add(total, scale(_times(b, mono), coef))
        if len(total.terms) > MAX_TERMS:
            return None
    return total


def _times(a: Form, mono: Mono) -> Form:
    terms: dict[Mono, Coef] = {}
    if not _all_zero(a.base):
        terms[mono] = a.base
    for other, coef in a.terms.items():
        terms[tuple(sorted((*other, *mono), key=lambda s: s.number))] = coef
    return Form(0, terms)


def _bound_times(coef: Coef, mono: Mono) -> tuple[Bound, Bound]:
    """Bounds of a product: the symbols' own, where they are not negative or there is one."""
    lo: int | None
    hi: int | None
    if len(mono) == 1:
        lo, hi = mono[0].lo, mono[0].hi
    elif all(s.lo is not None and s.lo >= 0 for s in mono):
        lo, hi = 1, 1
        for s in mono:
            lo *= s.lo or 0
            hi = None if hi is None or s.hi is None else hi * s.hi
    else:
        return None, None
    if isinstance(coef, int):
        low, high = (lo, hi) if coef >= 0 else (hi, lo)
        return (None if low is None else coef * low), (None if high is None else coef * high)
    positive, negative = np.maximum(coef, 0), np.minimum(coef, 0)
    low_ok = not (positive.any() and lo is None) and not (negative.any() and hi is None)
    high_ok = not (positive.any() and hi is None) and not (negative.any() and lo is None)
    least = positive * (lo or 0) + negative * (hi or 0)
    most = positive * (hi or 0) + negative * (lo or 0)
    return (least if low_ok else None), (most if high_ok else None)


def bounds(a: Form) -> tuple[Bound, Bound]:
    """The least and the greatest value in each thread; None where there is no bound."""
    low: Bound = a.base
    high: Bound = a.base
    for mono, coef in a.terms.items():
        lo, hi = _bound_times(coef, mono)
        low = None if low is None or lo is None else low + lo
        high = None if high is None or hi is None else high + hi
    for sym in sorted(a.symbols(), key=lambda s: s.number):
        if sym.fn == "floordiv":
            lo, hi = _remainder_bounds(a, sym)
            low = lo if low is None else low if lo is None else np.maximum(low, lo)
            high = hi if high is None else high if hi is None else np.minimum(high, hi)
    return low, high


def _remainder_bounds(a: Form, sym: Sym) -> tuple[Bound, Bound]:
    """Bounds by `0 <= x - (x // n) * n < n`, where the form holds such a difference."""
    x, n = sym.args
    by = n.base
    if not n.is_const:
        return _symbolic_remainder(a, sym), None
    if not isinstance(by, int) or by <= 0:
        return None, None
    coef = a.terms.get((sym,), 0)
    if not isinstance(coef, int) or coef % by:
        return None, None
    times = -coef // by
    rest = sub(a, scale(sub(x, scale(symbol(sym), by)), times))
    if len(rest.terms) >= len(a.terms) or times == 0:
        return None, None
    low, high = bounds(rest)
    least, most = (0, times * (by - 1)) if times > 0 else (times * (by - 1), 0)
    return (None if low is None else low + least), (None if high is None else high + most)


def _symbolic_remainder(a: Form, sym: Sym) -> Bound:
    """A lower bound by `0 <= x - (x // n) * n`, n being a size."""
    x, n = sym.args
    product = mul(n, symbol(sym))
    least = extent(n)[0]
    if product is None or not product.terms or least is None or least < 0:
        return None
    mono, factor = next(iter(product.terms.items()))
    coef = a.terms.get(mono, 0)
    if not isinstance(coef, int) or not isinstance(factor, int) or coef % factor:
        return None
    times = -coef // factor
    if times <= 0:
        return None
    rest = sub(a, scale(sub(x, product), times))
    return bounds(rest)[0] if len(rest.terms) < len(a.terms) else None


def extent(a: Form) -> tuple[int | None, int | None]:
    """The least and the greatest value over all threads."""
    low, high = bounds(a)
    return (
        None if low is None else int(np.min(low)),
        None if high is None else int(np.max(high)),
    )


def inside(a: Form, lo: int, hi: int) -> bool:
    """Whether all values are known to lie in lo..hi, both included."""
    low, high = extent(a)
    return low is not None and high is not None and low >= lo and high <= hi


class Symbols:
    """Makes the symbols of operations, one per operation and operands."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Sym] = {}

    def computed(
        self, fn: str, args: tuple[Form, ...], lo: int | None = None, hi: int | None = None
    ) -> Form:
        """The value of an operation that has no linear form."""
        key = (fn, *(a.key for a in args))
        sym = self._known.get(key)
        if sym is None:
            scope = max(a.scope for a in args)
            depth = 1 + max((s.depth for a in args for s in a.symbols()), default=0)
            if depth <= MAX_DEPTH:
                name = f"{fn}({', '.join(map(repr, args))})"
                sym = Sym(name, scope, lo, hi, fn, args)
                sym.depth = depth
            else:
                sym = Sym(f"{fn}(...)", scope, lo, hi)
            self._known[key] = sym
        return symbol(sym)

    def divide(self, a: Form, by: int) -> tuple[Form, Form]:
        """`(a // by, a % by)`, by > 0."""
        whole: dict[Mono, Coef] = {}
        rest: dict[Mono, Coef] = {}
        for mono, coef in a.terms.items():
            quotient, remainder = coef // by, coef % by
            if not _all_zero(quotient):
                whole[mono] = collapse(quotient)
            if not _all_zero(remainder):
                rest[mono] = collapse(remainder)
        quotient = Form(collapse(a.base // by), whole)
        remainder = Form(collapse(a.base % by), rest)
        if inside(remainder, 0, by - 1):
            return quotient, remainder
        # What does not divide keeps its own coefficients, so that x // 3 is about x.
        low, high = extent(remainder)
        more = self.computed(
            "floordiv", (remainder, Form(by)), _floor(low, by), _floor(high, by)
        )  # fmt: skip
        return add(quotient, more), sub(remainder, scale(more, by))

    def divide_by_form(self, a: Form, by: Form) -> tuple[Form, Form]:
        """`(a // by, a % by)` for an unknown divisor."""
        low, high = extent(a)
        small, _ = extent(by)
        nonneg = low is not None and low >= 0 and small is not None and small >= 0
        quotient = self.computed(
            "floordiv", (a, by), 0 if nonneg else None, high if nonneg else None
        )
        product = mul(quotient, by)
        if product is None:
            return quotient, self.computed("mod", (a, by), 0 if nonneg else None)
        return quotient, sub(a, product)

    def low_bits(self, a: Form, bits: int) -> Form:
        """a mod 2**bits."""
        return self.divide(a, 1 << bits)[1]

    def bitwise(self, fn: str, a: Form, b: Form) -> Form:
        """a & b, a | b, a ^ b."""
        if a.is_const and b.is_const:
            return _bits_of(fn, a.base, b.base)
        if fn == "and":
            return self._and(a, b)
        bits = min(_zeros(a), _zeros(b))
        (high_a, low_a), (high_b, low_b) = self.divide(a, 1 << bits), self.divide(b, 1 << bits)
        if low_a.is_const and low_b.is_const:
            low = _bits_of(fn, low_a.base, low_b.base)
            for high, other in ((high_a, high_b), (high_b, high_a)):
                if other.is_const and _all_zero(other.base):
                    return add(scale(high, 1 << bits), low)
        for x, y in ((a, b), (b, a)):  # bits side by side
            free = _zeros(x, base=True)
            if free < 62 and inside(y, 0, (1 << free) - 1):
                return add(x, y)
        return self.computed(fn, (a, b), *_bits_range(fn, a, b))

    def _and(self, a: Form, b: Form) -> Form:
        if a.is_const:
            a, b = b, a
        mask = b.base
        if not b.is_const or not isinstance(mask, int):
            return self.computed("and", (a, b), *_bits_range("and", a, b))
        if mask == 0:
            return ZERO
        low = (mask & -mask).bit_length() - 1
        if mask < 0:  # all bits from one on
            if mask == -(1 << low):
                return sub(a, self.low_bits(a, low))
        elif (mask >> low) & ((mask >> low) + 1) == 0:
            upper = self.low_bits(a, mask.bit_length())
            return sub(upper, self.low_bits(upper, low))
        return self.computed("and", (a, b), *_bits_range("and", a, b))

    def pick(self, a: Form, b: Form, larger: bool) -> Form:
        """min or max."""
        low, high = bounds(sub(a, b))
        if low is not None and np.min(low) >= 0:
            return a if larger else b
        if high is not None and np.max(high) <= 0:
            return b if larger else a
        (la, ha), (lb, hb) = extent(a), extent(b)
        if larger:
            known = [v for v in (la, lb) if v is not None]
            lo, hi = max(known, default=None), None if ha is None or hb is None else max(ha, hb)
        else:
            known = [v for v in (ha, hb) if v is not None]
            lo, hi = None if la is None or lb is None else min(la, lb), min(known, default=None)
        return self.computed("max" if larger else "min", (a, b), lo, hi)


def _bits_of(fn: str, a: Coef, b: Coef) -> Form:
    value = _compute(fn, (a, b))
    assert value is not None
    return Form(value)


def _floor(value: int | None, by: int) -> int | None:
    return None if value is None else value // by


def _bits_range(fn: str, a: Form, b: Form) -> tuple[int | None, int | None]:
    (la, ha), (lb, hb) = extent(a), extent(b)
    if la is None or lb is None or la < 0 or lb < 0:
        return None, None
    if fn == "and":
        known = [v for v in (ha, hb) if v is not None]
        return 0, min(known, default=None)
    if ha is None or hb is None:
        return 0, None
    return 0, (1 << max(ha, hb).bit_length()) - 1


def _zeros(a: Form, base: bool = False) -> int:
    """Low bits that are zero in all terms (and in the base)."""
    total = 0
    for coef in a.terms.values():
        total = gcd(total, content(coef))
    if base:
        total = gcd(total, content(a.base))
    return (total & -total).bit_length() - 1 if total else 62


def choose(condition: bool | NDArray[np.bool_], a: Form, b: Form) -> Form:
    """`a` where the condition holds, else `b`."""
    if isinstance(condition, (bool, np.bool_)):
        return a if condition else b
    terms: dict[Mono, Coef] = {}
    for mono in {**a.terms, **b.terms}:
        value = np.where(condition, a.terms.get(mono, 0), b.terms.get(mono, 0))
        terms[mono] = collapse(value)
    return Form(collapse(np.where(condition, a.base, b.base)), terms)


Assignment: TypeAlias = "Mapping[Sym, int]"


def evaluate(a: Form, values: Assignment) -> Coef | None:
    """The value under an assignment; None where a symbol has none."""
    total: Coef = a.base
    for mono, coef in a.terms.items():
        product: Coef = coef
        for sym in mono:
            value = value_of(sym, values)
            if value is None:
                return None
            product = product * value
        try:
            total = total + product
        except OverflowError:  # beyond 64 bits
            return None
    return total


def value_of(sym: Sym, values: Assignment) -> Coef | None:
    """The value of a symbol under an assignment."""
    if sym in values:
        return values[sym]
    if not sym.fn:
        return None
    args = [evaluate(a, values) for a in sym.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    return _compute(sym.fn, known)


def _safe_divide(a: Array, b: Array) -> Array:
    return np.floor_divide(a, np.where(b == 0, 1, b))


def _modulo(a: Array, b: Array) -> Array:
    return a - b * _safe_divide(a, b)


def _compute(fn: str, args: Sequence[Coef]) -> Coef | None:
    compute = _COMPUTE.get(fn)
    if compute is None:
        return None
    return collapse(np.atleast_1d(compute(*(np.asarray(a, np.int64) for a in args))))


_BITS: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPUTE: dict[str, Callable[[Array, Array], Array]] = {
    "floordiv": _safe_divide,
    "mod": _modulo,
    "min": np.minimum,
    "max": np.maximum,
    **_BITS,
}
