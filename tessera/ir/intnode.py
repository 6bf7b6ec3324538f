"""Nodes of symbolic integer expressions, and the constructors that keep them canonical.

Invariants:
1. A node is interned: equal expressions are one object, and ``==`` and ``hash`` go by identity.
2. A constant is never a node: what folds to a constant is a plain ``int``.
3. An expression is a sum of ``coefficient * product of atoms``; an atom is its own polynomial.
4. Only facts that hold for every value of the symbols are used here, with one assumption: a
   symbolic divisor is at least 1. What needs ranges stands in ``intrules``.

Nodes live as long as the process: the table of interned nodes is a plain ``dict``, whose
``setdefault`` is atomic, so threads agree on the node without a lock.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import NoReturn, SupportsIndex, TypeAlias, cast

import numpy as np

from tessera.ir.unknown import SizeUnknown

Mono: TypeAlias = "tuple[Atom, ...]"
Term: TypeAlias = "tuple[Mono, int]"

_interned: dict[object, IntExpr] = {}
_NAME = re.compile(r"\$\w+|[^\W\d]\w*")


class IntExpr(SizeUnknown):
    """A symbolic integer. Build one with :func:`sym` and the operators ``+ - * // %``.

    Attributes:
        coeffs: coefficient of each product of atoms, in no set order; not to be changed.
    """

    __slots__ = ("_symbols", "_terms", "_text", "coeffs")
    __array_ufunc__ = None  # NumPy scalars then leave mixed arithmetic to the operators below

    coeffs: dict[Mono, int]
    _symbols: frozenset[str] | None
    _terms: tuple[Term, ...] | None
    _text: str | None

    def __init__(self, coeffs: dict[Mono, int]) -> None:
        self.coeffs = coeffs
        self._symbols = None
        self._terms = None
        self._text = None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The polynomial as (atoms, coefficient) pairs: highest degree first, the constant last."""
        if self._terms is None:
            self._terms = tuple(sorted(self.coeffs.items(), key=_term_order))
        return self._terms

    @property
    def symbols(self) -> frozenset[str]:
        """Names of all symbols in the expression."""
        if self._symbols is None:
            parts = (symbols(child) for child in children(self))
            self._symbols = frozenset[str]().union(*parts)
        return self._symbols

    def __str__(self) -> str:
        if self._text is None:
            self._text = _sum_text(self.terms)
        return self._text

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return _from_terms, (self.terms,)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the truth of the symbolic value `{self}` is not known; compare with `is` or `==` for"
            " structural identity, or prove a fact with is_nonneg, is_positive or bounds"
        )

    def __add__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else add(self, b)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else add(self, b, -1)

    def __rsub__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else add(b, self, -1)

    def __mul__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else mul(self, b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else floordiv(self, b)

    def __rfloordiv__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else floordiv(b, self)

    def __mod__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else mod(self, b)

    def __rmod__(self, other: Dim) -> Dim:
        b = _operand(other)
        return NotImplemented if b is None else mod(b, self)

    def __neg__(self) -> Dim:
        return mul(self, -1)

    def __pow__(self, other: int) -> Dim:
        return prod([self] * other) if type(other) is int and other >= 0 else self.root(other)


class Poly(IntExpr):
    """A sum of products that is not a single atom."""

    __slots__ = ()


class Atom(IntExpr):
    """A factor that the polynomial does not look into.

    Attributes:
        order: structural sort key, the same in every process.
    """

    __slots__ = ("order",)

    order: tuple[int, str]

    def __init__(self, text: str, rank: int) -> None:
        super().__init__({})
        self.coeffs[(self,)] = 1
        self._text = text
        self.order = (rank, text)


Dim: TypeAlias = int | IntExpr
"""A dim: an integer, or an expression over symbols."""


class Sym(Atom):
    """A named symbol; the name is its identity.

    Its default range is >= 0; a name that starts with ``$`` is a dynamic index, without bounds.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)
        self.name = name
        self._symbols = frozenset((name,))

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return sym, (self.name,)


class _Division(Atom):
    __slots__ = ("den", "num")

    def __init__(self, num: Dim, den: Dim, sign: str) -> None:
        super().__init__(f"{_left_text(num)} {sign} {_right_text(den)}", 1)
        self.num = num
        self.den = den


class FloorDiv(_Division):
    """``num // den``, rounded down; ``den`` is at least 1."""

    __slots__ = ()

    def __init__(self, num: Dim, den: Dim) -> None:
        super().__init__(num, den, "//")

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return floordiv, (self.num, self.den)


class Mod(_Division):
    """``num % den``, in ``[0, den)``; ``den`` is at least 1."""

    __slots__ = ()

    def __init__(self, num: Dim, den: Dim) -> None:
        super().__init__(num, den, "%")

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return mod, (self.num, self.den)


class _Extremum(Atom):
    __slots__ = ("args",)

    def __init__(self, args: tuple[Dim, ...], function: str) -> None:
        super().__init__(f"{function}({', '.join(map(str, args))})", 1)
        self.args = args


class Min(_Extremum):
    """The least of ``args``: at least two, flat, distinct, in structural order."""

    __slots__ = ()

    def __init__(self, args: tuple[Dim, ...]) -> None:
        super().__init__(args, "min")

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return minimum, self.args


class Max(_Extremum):
    """The greatest of ``args``: at least two, flat, distinct, in structural order."""

    __slots__ = ()

    def __init__(self, args: tuple[Dim, ...]) -> None:
        super().__init__(args, "max")

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        return maximum, self.args


def sym(name: str) -> Sym:
    """The symbol called ``name``: an identifier, or ``$`` and letters, digits or underscores."""
    node = _interned.get(name)
    if node is None:
        if not _NAME.fullmatch(name) or name in ("min", "max"):
            raise ValueError(
                f"{name!r} cannot name a symbol: it must be an identifier other than min and max,"
                " or `$` and letters, digits or underscores"
            )
        node = _interned.setdefault(name, Sym(name))
    assert isinstance(node, Sym)
    return node


def symbols(e: Dim) -> frozenset[str]:
    """Names of all symbols in ``e``."""
    return frozenset() if isinstance(e, int) else e.symbols


def children(e: IntExpr) -> tuple[Dim, ...]:
    """The expressions directly inside ``e``: the atoms of a sum, the operands of an atom."""
    if isinstance(e, _Division):
        return (e.num, e.den)
    if isinstance(e, _Extremum):
        return e.args
    if isinstance(e, Sym):
        return ()
    return tuple(dict.fromkeys(atom for mono, _ in e.terms for atom in mono))


def map_children(e: IntExpr, fn: Callable[[Dim], Dim]) -> Dim:
    """``e`` with ``fn`` applied to each of its children; ``e`` itself where nothing changed."""
    new = {child: fn(child) for child in children(e)}
    if all(old is changed or old == changed for old, changed in new.items()):
        return e
    if isinstance(e, FloorDiv):
        return floordiv(new[e.num], new[e.den])
    if isinstance(e, Mod):
        return mod(new[e.num], new[e.den])
    if isinstance(e, _Extremum):
        args = (new[arg] for arg in e.args)
        return minimum(*args) if isinstance(e, Min) else maximum(*args)
    total: dict[Mono, int] = {}
    for mono, c in e.terms:
        _add_to(total, prod((c, *[new[atom] for atom in mono])), 1)
    return from_coeffs(total)


# Sums and products


def coeffs_of(e: Dim) -> Mapping[Mono, int]:
    """The polynomial of ``e``: coefficient of each product of atoms, in no set order."""
    if isinstance(e, IntExpr):
        return e.coeffs
    return {(): e} if e else {}


def from_coeffs(coeffs: dict[Mono, int]) -> Dim:
    """The expression of a polynomial without zero coefficients; takes over ``coeffs``."""
    if len(coeffs) <= 1:
        for mono, c in coeffs.items():
            if not mono:
                return c
            if c == 1 and len(mono) == 1:
                return mono[0]
        if not coeffs:
            return 0
    key = frozenset(coeffs.items())
    node = _interned.get(key)
    return _interned.setdefault(key, Poly(coeffs)) if node is None else node


def _from_terms(terms: Iterable[Term]) -> Dim:
    return from_coeffs(dict(terms))


def add(a: Dim, b: Dim, k: int = 1) -> Dim:
    """``a + k * b``, where ``k`` is not 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a + k * b
    out = dict(coeffs_of(a))
    _add_to(out, b, k)
    return from_coeffs(out)


def _add_to(out: dict[Mono, int], b: Dim, k: int) -> None:
    for mono, c in coeffs_of(b).items():
        out[mono] = out.get(mono, 0) + k * c
        if not out[mono]:
            del out[mono]


def mul(a: Dim, b: Dim) -> Dim:
    """``a * b``, distributed over sums."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, int):
        return a * int(b) if isinstance(b, int) else mul(b, a)
    if isinstance(b, int):
        if b == 1:
            return a
        return from_coeffs({mono: c * b for mono, c in a.coeffs.items()}) if b else 0
    out: dict[Mono, int] = {}
    for x, cx in a.coeffs.items():
        for y, cy in b.coeffs.items():
            mono = tuple(sorted(x + y, key=_atom_order)) if x and y else x or y
            out[mono] = out.get(mono, 0) + cx * cy
    return from_coeffs({mono: c for mono, c in out.items() if c})


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``; 1 where there are none."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


# Division


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b``, rounded down. A symbolic ``b`` is taken to be at least 1.

    Raises:
        ZeroDivisionError: ``b`` is the constant 0.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"division by zero: `{_left_text(a)} // 0`")
        if isinstance(a, int):
            return a // b
        if b < 0:
            a, b = -a, -b
    whole, rest = split(a, b)
    if b == 1 or (isinstance(rest, int) and rest in (0, -1)):
        return whole + rest
    g, _, num, den = _cancel(rest, b)
    if g != 1:
        return whole + floordiv(num, den)
    key = (FloorDiv, num, den)
    node = _interned.get(key)
    if node is None:
        node = _interned.setdefault(key, FloorDiv(num, den))
    return whole + node if whole != 0 else node


def mod(a: Dim, b: Dim) -> Dim:
    """``a % b``, with the sign of ``b``. A symbolic ``b`` is taken to be at least 1.

    Raises:
        ZeroDivisionError: ``b`` is the constant 0.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"division by zero: `{_left_text(a)} % 0`")
        if isinstance(a, int):
            return a % b
        if b < 0:
            return -mod(-a, -b)
        rest = from_coeffs(_reduced(a, b))
    else:
        _, rest = split(a, b)
    if isinstance(rest, int) and rest in (0, -1):
        return b - 1 if rest else 0
    g, low, num, den = _cancel(rest, b)
    if g != 1:
        return mul(mod(num, den), g) + low
    key = (Mod, num, den)
    node = _interned.get(key)
    return _interned.setdefault(key, Mod(num, den)) if node is None else node


def _reduced(a: IntExpr, k: int) -> dict[Mono, int]:
    """Coefficients of ``a`` modulo ``k``, nearest to 0: `7 - i` says more than `7*i + 7`."""
    out: dict[Mono, int] = {}
    for mono, c in a.coeffs.items():
        left = c % k
        if left:
            out[mono] = left - k if mono and 2 * left > k else left
    return out


def split(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q*b + r``: the terms of ``a`` that ``b`` divides, and the others.

    Of a constant term the part that a constant ``b`` divides is split off, so it leaves 0 <= r < b.
    A sum ``b`` divides only where the remainder has fewer terms than ``a``.
    """
    if isinstance(a, int) and isinstance(b, int):
        return divmod(a, b)
    divisor = coeffs_of(b)
    if len(divisor) > 1:
        return _long_division(a, b)
    ((factor, k),) = divisor.items()
    high: dict[Mono, int] = {}
    low: dict[Mono, int] = {}
    for mono, c in coeffs_of(a).items():
        left = _quotient(mono, factor)
        if left is None:
            low[mono] = c
        elif c % k == 0:
            high[left] = c // k
        elif left or factor:
            low[mono] = c
        else:
            low[mono] = c % k
            if c // k:
                high[left] = c // k
    return from_coeffs(high), from_coeffs(low)


def _long_division(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    assert isinstance(b, IntExpr)
    lead, k = b.terms[0]
    quotient: Dim = 0
    rest = a
    for _ in range(2 * len(coeffs_of(a))):
        for mono, c in coeffs_of(rest).items():
            left = _quotient(mono, lead)
            if left is not None and c % k == 0:
                step = from_coeffs({left: c // k})
                quotient = quotient + step
                rest = rest - step * b
                break
        else:
            break
    fewer = len(coeffs_of(rest)) < len(coeffs_of(a))
    return (quotient, rest) if fewer else (0, a)


def _cancel(num: Dim, den: Dim) -> tuple[Dim, int, Dim, Dim]:
    """``(g, low, n, d)`` with ``num == g*n + low``, ``den == g*d``, and 0 <= low < the int in g."""
    top = coeffs_of(num)
    bottom = coeffs_of(den)
    k = gcd(*(c for mono, c in top.items() if mono), *bottom.values())
    factor: Mono = ()
    if () not in top and () not in bottom:
        first, *others = map(Counter, (*top, *bottom))
        for other in others:
            first &= other
        factor = tuple(sorted(first.elements(), key=_atom_order))
    if k == 1 and not factor:
        return 1, 0, num, den
    low = top.get((), 0) % k
    g = from_coeffs({factor: k})
    high, rest = split(num - low, g)
    divisor, left = split(den, g)
    assert rest == 0
    assert left == 0
    return g, low, high, divisor


def _quotient(mono: Mono, factor: Mono) -> Mono | None:
    """``mono / factor``, or None where ``factor`` does not divide it."""
    left = list(mono)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def without(mono: Mono, atom: Atom) -> Mono:
    """``mono`` with one occurrence of ``atom`` taken out."""
    at = mono.index(atom)
    return mono[:at] + mono[at + 1 :]


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up; ``b`` is at least 1."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return floordiv(a + b - 1, b)


# Minimum and maximum


def minimum(*dims: Dim) -> Dim:
    """The least of ``dims``."""
    return _extremum(Min, dims, 1)


def maximum(*dims: Dim) -> Dim:
    """The greatest of ``dims``."""
    return _extremum(Max, dims, -1)


def _extremum(kind: type[Min] | type[Max], dims: tuple[Dim, ...], sign: int) -> Dim:
    if not dims:
        raise TypeError(f"{kind.__name__.lower()}imum needs at least one value")
    flat = [x for dim in dims for x in (dim.args if isinstance(dim, kind) else (dim,))]
    kept: list[Dim] = []
    for x in dict.fromkeys(flat):
        # values a constant apart are comparable, so only the better one stays
        rivals = [(y, add(x, y, -1)) for y in kept]
        if any(isinstance(gap, int) and gap * sign >= 0 for _, gap in rivals):
            continue
        kept = [y for y, gap in rivals if not isinstance(gap, int)]
        kept.append(x)
    if len(kept) == 1:
        return kept[0]
    args = tuple(sorted(kept, key=_dim_order))
    key = (kind, args)
    node = _interned.get(key)
    return _interned.setdefault(key, kind(args)) if node is None else node


# Order and text


def _operand(x: object) -> Dim | None:
    if type(x) is int or isinstance(x, IntExpr):
        return x
    if isinstance(x, int):
        return int(x)
    return operator.index(cast("SupportsIndex", x)) if isinstance(x, np.integer) else None


def _atom_order(atom: Atom) -> tuple[int, str]:
    return atom.order


def _term_order(term: Term) -> tuple[int, tuple[tuple[int, str], ...]]:
    return -len(term[0]), tuple(atom.order for atom in term[0])


def _dim_order(e: Dim) -> tuple[int, str]:
    return (2, str(e)) if isinstance(e, int) else (e.order if isinstance(e, Sym) else (1, str(e)))


def _sum_text(terms: tuple[Term, ...]) -> str:
    mono, c = terms[0]
    # `-j // 2` would read as (-j) // 2
    bare = c == -1 and len(mono) == 1 and isinstance(mono[0], _Division)
    first = f"({mono[0]})" if bare else _term_text(mono, abs(c))
    parts = ["-" + first if c < 0 else first]
    for mono, c in terms[1:]:
        parts.append(f" {'-' if c < 0 else '+'} {_term_text(mono, abs(c))}")
    return "".join(parts)


def _term_text(mono: Mono, c: int) -> str:
    if c == 1 and len(mono) == 1:
        return str(mono[0])
    factors = [f"({atom})" if isinstance(atom, _Division) else str(atom) for atom in mono]
    return "*".join(factors if c == 1 and factors else [str(c), *factors])


def _left_text(e: Dim) -> str:
    text = str(e)
    sums = isinstance(e, IntExpr) and len(e.coeffs) > 1
    return f"({text})" if sums or text.startswith("-") else text


def _right_text(e: Dim) -> str:
    text = str(e)
    bare = e >= 0 if isinstance(e, int) else isinstance(e, (Sym, Min, Max))
    return text if bare else f"({text})"
