"""Transforms of real numbers: a line of 2 n is one of n complex numbers, the even elements being
the real parts and the odd ones the imaginary parts, whose transform Z says that of the line,

    X[k] = E[k] + w**k O[k]         E[k] = (Z[k] + conj Z[n - k]) / 2
    w = exp(-pi i / n)              O[k] = (Z[k] - conj Z[n - k]) / 2i        Z[n] = Z[0]

for k up to n (Cooley, Lewis and Welch, "The fast Fourier transform algorithm: programming
considerations in the calculation of sine, cosine and Laplace transforms", 1970).
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.core import Func, Value
from tessera.target.fourier.code import Code, Complex, Product
from tessera.target.fourier.line import Plan
from tessera.target.roots_ops import Roots


def unfold(plan: Plan) -> Func:
    """Makes X of Z in another place. Both have n + 1 elements; the last one of Z is set here."""
    c = plan.code(plan.lanes, ("source", "target"))
    (source, target), n = c.args, plan.n
    for k in (0, 1):
        c.store(source, c.index(2 * n + k), c.load_one(source, c.index(k)))

    def pair(c: Code, k: Value, mirror: Value, root: Complex) -> None:
        z, other = c.load_pairs(source, k), c.conj(c.backwards(c.load_pairs(source, mirror)))
        half = c.number(0.5)
        even = c.scaled(c.add(z, other), half)
        odd = Product(c.scaled(c.sub(z, other), half), c.turned(root))
        found, opposite = c.sum_and_difference(even, odd)
        c.store_pairs(target, k, found)
        c.store_pairs(target, mirror, c.backwards(c.conj(opposite)))

    _pairs(c, plan, pair)
    if n % 2 == 0:
        c.store(target, c.index(n), c.load_one(source, c.index(n)))
        c.store(target, c.index(n + 1), c.map("neg", c.load_one(source, c.index(n + 1))))
    return c.func(plan.name("rfft_unfold"))


def fold(plan: Plan) -> Func:
    """Makes 2 conj(Z) of X in another place, which has n + 1 elements; the last one is no number
    that anybody reads.
    """
    c = plan.code(plan.lanes, ("source", "target"))
    (source, target), n = c.args, plan.n

    def pair(c: Code, k: Value, mirror: Value, root: Complex) -> None:
        x, other = c.load_pairs(source, k), c.conj(c.backwards(c.load_pairs(source, mirror)))
        even = c.add(x, other)
        odd = Product(c.sub(x, other), c.turned(c.conj(root)))
        opposite, found = c.sum_and_difference(even, odd)
        c.store_pairs(target, k, c.conj(found))
        c.store_pairs(target, mirror, c.backwards(opposite))

    _pairs(c, plan, pair)
    # The imaginary parts of the ends are not read.
    first, last = c.load_one(source, c.index(0)), c.load_one(source, c.index(2 * n))
    c.store(target, c.index(0), c.map("add", first, last))
    c.store(target, c.index(1), c.map("sub", last, first))
    if n % 2 == 0:
        for k in (n, n + 1):
            value = c.load_one(source, c.index(k))
            c.store(target, c.index(k), c.map("add", value, value))
    return c.func(plan.name("irfft_fold"))


def _pairs(c: Code, plan: Plan, pair: Callable[[Code, Value, Value, Complex], None]) -> None:
    """Runs `pair` for elements of the first half with those that mirror them, and the roots."""
    n, lanes = plan.n, plan.lanes
    blocks, pairs = n // 2 // lanes, (n + 1) // 2
    table = c.emit(Roots(2 * n, 2, -(-pairs // lanes) * lanes, lanes, plan.dtype, loc=c.loc))

    def whole(number: Value) -> None:
        k = c.times(number, 2 * lanes)
        root = Complex(c.load(table, k), c.load(table, c.plus(k, lanes)))
        pair(c, k, c.map("sub", c.index(2 * (n - lanes + 1)), k), root)

    c.loop(blocks, whole)
    rest = c.single()

    def one(number: Value) -> None:
        at = rest.plus(number, 2 * lanes * blocks)
        root = Complex(rest.load(table, at), rest.load(table, rest.plus(at, lanes)))
        k = rest.times(rest.plus(number, lanes * blocks), 2)
        pair(rest, k, rest.map("sub", rest.index(2 * n), k), root)

    rest.loop(pairs - blocks * lanes, one)
    c.ops += rest.ops
