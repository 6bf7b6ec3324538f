"""Short transforms in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tessera.ir.core import Value
from tessera.target.fourier.code import Code, Complex, Number

Read = Callable[[int], Number]
Write = Callable[[int, Complex], None]


def transform(c: Code, n: int, read: Read, write: Write) -> None:
    """The transform of a few vectors, lane by lane: of 1 to 5, or of a product of such numbers.

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


def _five(c: Code, x: Sequence[Number]) -> list[Complex]:
    begin = c.value(x[0])
    near, near_apart = c.sum_and_difference(x[1], x[4])
    far, far_apart = c.sum_and_difference(x[2], x[3])
    one, two = [2 * math.pi * k / 5 for k in (1, 2)]
    cos = [c.number(math.cos(a)) for a in (one, two)]
    sin = [c.number(math.sin(a)) for a in (one, two)]

    def along(a: int, b: int) -> Complex:
        parts = [
            c.fma(f, cos[b], c.fma(n, cos[a], start))
            for f, n, start in (
                (far.re, near.re, begin.re),
                (far.im, near.im, begin.im),
            )
        ]
        return Complex(*parts)

    def across(x: Complex, by: Value, y: Complex, other: Value) -> Complex:
        return Complex(
            *[c.fma(a, by, c.map("mul", b, other)) for a, b in ((x.re, y.re), (x.im, y.im))]
        )

    first, second = along(0, 1), along(1, 0)
    turned = [
        across(near_apart, sin[0], far_apart, sin[1]),
        across(near_apart, sin[1], c.negative(far_apart), sin[0]),
    ]
    return [
        c.add(begin, c.add(near, far)),
        c.add_turned(first, turned[0]),
        c.add_turned(second, turned[1]),
        c.sub_turned(second, turned[1]),
        c.sub_turned(first, turned[0]),
    ]


_BASE = {1: _one, 2: _two, 3: _three, 4: _four, 5: _five}
