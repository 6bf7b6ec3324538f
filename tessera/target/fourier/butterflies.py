"""Short transforms in registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tessera.ir.core import Value
from tessera.target.fourier.code import Code, Complex, Number
from tessera.target.roots_ops import roots

Read = Callable[[int], Number]
Write = Callable[[int, Complex], None]


def transform(c: Code, n: int, read: Read, write: Write) -> None:
    """The transform of a few vectors, lane by lane: of up to 5, 7, 11, 13, or a product of 2 to 5.

    A product is computed as by Cooley and Tukey ("An algorithm for the machine calculation of
    complex Fourier series", 1965): n = a * b, with x[i + b k] for i < b, k < a, is b transforms
    over k, a multiplication by w**(i j), and a transforms over i.

    Args:
        c: what builds the code.
        n: how many vectors.
        read: gives one of them, and is asked for it where it is used: registers are few.
        write: is given each result as soon as it is there.
    """
    base = _BASE.get(n)
    if base is not None:
        for k, y in enumerate(base(c, [read(k) for k in range(n)])):
            write(k, y)
        return
    a = next(a for a in _FACTORS if n % a == 0 and n > a)
    b = n // a
    rows: list[dict[int, Complex]] = [{} for _ in range(b)]
    for i, row in enumerate(rows):
        transform(c, a, lambda k, i=i: read(i + b * k), row.__setitem__)
    for j in range(a):
        transform(
            c,
            b,
            lambda i, j=j: c.mul_root(rows[i][j], i * j, n),
            lambda k, y, j=j: write(j + a * k, y),
        )


_FACTORS = (4, 2, 3, 5)


def _one(c: Code, x: Sequence[Number]) -> list[Complex]:
    return [c.value(x[0])]


def _two(c: Code, x: Sequence[Number]) -> list[Complex]:
    return list(c.sum_and_difference(x[0], x[1]))


def _three(c: Code, x: Sequence[Number]) -> list[Complex]:
    first = c.value(x[0])
    both, apart = c.sum_and_difference(x[1], x[2])
    half, height = c.number(-0.5), c.number(math.sqrt(0.75))
    middle = Complex(c.fma(both.re, half, first.re), c.fma(both.im, half, first.im))
    apart = c.scaled(apart, height)
    return [c.add(first, both), c.add_turned(middle, apart), c.sub_turned(middle, apart)]


def _four(c: Code, x: Sequence[Number]) -> list[Complex]:
    even, even_apart = c.sum_and_difference(x[0], x[2])
    odd, odd_apart = c.sum_and_difference(x[1], x[3])
    return [
        c.add(even, odd),
        c.add_turned(even_apart, odd_apart),
        c.sub(even, odd),
        c.sub_turned(even_apart, odd_apart),
    ]


def _prime(p: int, c: Code, x: Sequence[Number]) -> list[Complex]:
    """Of an odd prime number of vectors: elements as far from the first one as from its end have
    the same cosines, and opposite sines."""
    begin = c.value(x[0])
    pairs = [c.sum_and_difference(x[j], x[p - j]) for j in range(1, p // 2 + 1)]
    real, imag = roots(np.arange(1, p), p)
    cos, sin = [c.number(float(x)) for x in real], [c.number(-float(x)) for x in imag]
    total = begin
    for both, _ in pairs:
        total = c.add(total, both)
    found = [total] * p
    for k in range(1, p // 2 + 1):
        along, turned = begin, c.scaled(pairs[0][1], sin[k - 1])
        for j, (both, apart) in enumerate(pairs, 1):
            at = j * k % p - 1
            along = _more(c, along, both, cos[at])
            turned = turned if j == 1 else _more(c, turned, apart, sin[at])
        found[k], found[p - k] = c.add_turned(along, turned), c.sub_turned(along, turned)
    return found


def _more(c: Code, x: Complex, y: Complex, by: Value) -> Complex:
    return Complex(c.fma(y.re, by, x.re), c.fma(y.im, by, x.im))


PRIMES = (5, 7, 11, 13)
"""Odd primes, besides 3, of vectors that registers hold, more or less."""

_BASE: dict[int, Callable[[Code, Sequence[Number]], list[Complex]]] = {
    **{1: _one, 2: _two, 3: _three, 4: _four},
    **{p: functools.partial(_prime, p) for p in PRIMES},
}
