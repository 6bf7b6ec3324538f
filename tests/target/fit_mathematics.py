"""Fits the polynomials of the expansions of transcendental functions.

Run ``python tests/target/fit_mathematics.py`` to write
``tessera/target/passes/mathematics_tables.py`` anew; with ``--check`` it only prints the errors.

Each row of ``ROWS`` states a function, an interval and a weight. The polynomial that minimizes the
largest weighted error is found by the exchange algorithm of Remez in 45 digits, for the lowest
degree whose error is below the bound of the format. Those of ``TABLES`` have one of 16 intervals
each, and one degree. The weight turns an error of the polynomial
into a relative error of the function that is computed with it.
"""

from __future__ import annotations

import argparse
import struct
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mpmath as mp

mp.mp.dps = 45

Real = Callable[[mp.mpf], mp.mpf]

BOUNDS = {"single": mp.mpf(2) ** -27, "short": mp.mpf(2) ** -36, "double": mp.mpf(2) ** -57}
"""The largest relative error by grade: float32; float64 for results in float32; float64."""


@dataclass(frozen=True)
class Row:
    """One polynomial in each grade.

    Attributes:
        name: Its name in the table.
        text: What it approximates.
        f: The function.
        low, high: The interval.
        weight: What an error is multiplied with.
        grades: Those that are needed.
        slack: A factor for the bound, where the error counts for less.
        intervals: The interval of a grade, where it is another one.
    """

    name: str
    text: str
    f: Real
    low: mp.mpf
    high: mp.mpf
    weight: Real = lambda x: mp.mpf(1)
    grades: tuple[str, ...] = ("single", "short", "double")
    slack: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[mp.mpf, mp.mpf]] = field(default_factory=dict)


def solve(row: Row, degree: int, points: list[mp.mpf]) -> tuple[list[mp.mpf], mp.mpf]:
    """The polynomial whose weighted errors at the points alternate, and their size."""
    center, half = (row.high + row.low) / 2, (row.high - row.low) / 2
    size = degree + 2
    matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
    for i, x in enumerate(points):
        y = (x - center) / half
        for j in range(degree + 1):
            matrix[i, j] = y**j
        matrix[i, degree + 1] = (-1) ** i / row.weight(x)
        right[i] = row.f(x)
    solution = mp.lu_solve(matrix, right)
    return [solution[j] for j in range(degree + 1)], abs(solution[degree + 1])


def extremes(grid: list[mp.mpf], errors: list[mp.mpf], count: int) -> list[mp.mpf] | None:
    """The largest error of each run of one sign: the points of the next exchange."""
    runs: list[tuple[mp.mpf, mp.mpf]] = []
    for x, e in zip(grid, errors, strict=True):
        if runs and (runs[-1][1] > 0) == (e > 0):
            if abs(e) > abs(runs[-1][1]):
                runs[-1] = (x, e)
        else:
            runs.append((x, e))
    while len(runs) > count:
        runs.pop(0 if abs(runs[0][1]) < abs(runs[-1][1]) else -1)
    return [x for x, _ in runs] if len(runs) == count else None


def remez(row: Row, degree: int, bound: mp.mpf) -> tuple[list[mp.mpf], mp.mpf] | None:
    """Coefficients in powers of the variable, lowest first, and the largest weighted error; None
    if no polynomial of the degree reaches the bound.
    """
    center, half = (row.high + row.low) / 2, (row.high - row.low) / 2
    points = [
        center - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / (degree + 2))
        for k in range(degree + 2)
    ]
    scaled, level = solve(row, degree, points)
    if level > bound:  # no polynomial has a smaller error at these points
        return None
    dense = 24 * (degree + 2)
    # Chebyshev points; the ends are left out by a hair, where some weights are 0 over 0.
    grid = [center - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / dense) for k in range(dense)]
    values = [(row.f(x), row.weight(x)) for x in grid]
    best: tuple[list[mp.mpf], mp.mpf] | None = None
    for _ in range(8):
        errors = [
            (mp.polyval(scaled[::-1], (x - center) / half) - f) * w
            for x, (f, w) in zip(grid, values, strict=True)
        ]
        largest = max(abs(e) for e in errors)
        if best is None or largest < best[1]:
            best = scaled, largest
        if largest < level * mp.mpf("1.02"):
            break
        following = extremes(grid, errors, degree + 2)
        if following is None:
            break
        scaled, level = solve(row, degree, following)
    assert best is not None
    return shifted(best[0], center, half), best[1]


def shifted(scaled: list[mp.mpf], center: mp.mpf, half: mp.mpf) -> list[mp.mpf]:
    """The coefficients in x of a polynomial in (x - center) / half."""
    result = [mp.mpf(0)]
    for c in reversed(scaled):
        raised = [mp.mpf(0), *[r / half for r in result]]
        for k, r in enumerate(result):
            raised[k] -= r * center / half
        raised[0] += c
        result = raised
    return result[: len(scaled)]


def fit(row: Row, grade: str) -> tuple[list[mp.mpf], mp.mpf]:
    """The polynomial of lowest degree that is good enough."""
    bound = BOUNDS[grade] * row.slack.get(grade, 1)
    low, high = row.intervals.get(grade, (row.low, row.high))
    row = replace(row, low=low, high=high)
    for degree in range(1, 40):
        found = remez(row, degree, bound)
        if found is not None and found[1] <= bound:
            return found
    raise ValueError(f"{row.name}: no polynomial reaches the bound of {grade}")


LN2 = mp.log(2)
QUARTER = mp.pi / 4 * mp.mpf("1.001")


def over(f: Real, terms: Real, power: int) -> Real:
    """(f - terms) / x**power as a function of x."""
    return lambda x: (f(x) - terms(x)) / x**power


def in_square(f: Real) -> Real:
    """A function of x as one of z = x * x."""
    return lambda z: f(mp.sqrt(z))


def relative(f: Real, power: int) -> Real:
    """The weight of a polynomial that is multiplied by x**power and belongs to f."""
    return lambda x: x**power / f(x)


def odd(name: str, text: str, f: Real, limit: mp.mpf, **more: object) -> Row:
    """(f(x) - x) / x**3 in z = x * x for an odd function that starts with x."""
    return Row(
        name,
        text,
        in_square(over(f, lambda x: x, 3)),
        mp.mpf(0),
        limit**2,
        in_square(relative(f, 3)),
        **more,
    )


def erfc_scaled(u: mp.mpf) -> mp.mpf:
    """exp(x**2) * erfc(x) * x in u = (x - 3) / (x + 3)."""
    x = 3 * (1 + u) / (1 - u)
    return mp.erfc(x) * mp.exp(x * x) * x


def erfcx_bulge(u: mp.mpf) -> mp.mpf:
    """(1 + 2 x) * exp(x**2) * erfc(x) - 1 in u = (x - 2) / (x + 2)."""
    x = 2 * (1 + u) / (1 - u)
    return (1 + 2 * x) * mp.erfc(x) * mp.exp(x * x) - 1


def erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x in w = -log(1 - x**2)."""
    x = mp.sqrt(-mp.expm1(-w))
    if w < 0.5:
        return mp.erfinv(x) / x if w > mp.mpf(10) ** -40 else mp.sqrt(mp.pi) / 2
    complement = mp.exp(-w) / (1 + x)
    return mp.findroot(lambda y: mp.log(mp.erfc(y) / complement), mp.sqrt(w) * 0.9) / x


def lgamma_ratio(t: mp.mpf) -> mp.mpf:
    """lgamma(2 + t) / (t * (1 + t))."""
    if abs(t) < mp.mpf(10) ** -30:
        return 1 - mp.euler
    return mp.loggamma(2 + t) / (t * (1 + t))


def lgamma_tail(u: mp.mpf) -> mp.mpf:
    """y * (lgamma(y + 1 / 2) - y * (log(y) - 1) - log(2 * pi) / 2) in u = y**-2."""
    y = 1 / mp.sqrt(u)
    stirling = y * (mp.log(y) - 1) + mp.log(2 * mp.pi) / 2
    return y * (mp.loggamma(y + mp.mpf("0.5")) - stirling)


DIGAMMA_ROOT = mp.findroot(mp.digamma, mp.mpf("1.4616"))


def digamma_ratio(v: mp.mpf) -> mp.mpf:
    """digamma(x) / (x - root) in v = x - 1.5."""
    return mp.digamma(v + mp.mpf("1.5")) / (v + mp.mpf("1.5") - DIGAMMA_ROOT)


def digamma_tail(u: mp.mpf) -> mp.mpf:
    """(digamma(x) - log(x - 1 / 2)) / u in u = (x - 1 / 2)**-2."""
    root = 1 / mp.sqrt(u)
    return (mp.digamma(root + mp.mpf("0.5")) - mp.log(root)) / u


ROWS = [
    Row(
        "EXP",
        "(exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2, as a part of exp(r)",
        over(mp.expm1, lambda r: r, 2),
        -LN2 / 2 * mp.mpf("1.002"),
        LN2 / 2 * mp.mpf("1.003"),
        relative(mp.exp, 2),
    ),
    Row(
        "EXP_NEAR",
        "(exp(r) - 1) / r for |r| <= log(2) / 64, as a part of exp(r)",
        lambda r: mp.expm1(r) / r if r else mp.mpf(1),
        -LN2 / 64 * mp.mpf("1.002"),
        LN2 / 64 * mp.mpf("1.003"),
        lambda r: abs(r) / mp.exp(r),
        ("single",),
        {"single": 8},
    ),
    Row(
        "EXPM1",
        "(exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2, as a part of exp(r) - 1",
        over(mp.expm1, lambda r: r, 2),
        # Not quite symmetric: at 0 the weight is 0.
        -LN2 / 2 * mp.mpf("1.002"),
        LN2 / 2 * mp.mpf("1.003"),
        relative(mp.expm1, 2),
    ),
    Row(
        "LOG1P",
        "(log(1 + f) - f + f**2 / 2) / f**3 for 1 + f between sqrt(1/2) and sqrt(2)",
        over(mp.log1p, lambda f: f - f * f / 2, 3),
        mp.sqrt(0.5) - 1,
        mp.sqrt(2) - 1,
        relative(mp.log1p, 3),
        ("single",),
    ),
    Row(
        "LOG_RATIO",
        "(log((1 + s) / (1 - s)) - 2 * s) / s**3 in s**2 for s between -0.1716 and 0.1716",
        in_square(lambda s: 2 * (mp.atanh(s) - s) / s**3),
        mp.mpf(0),
        (3 - 2 * mp.sqrt(2)) ** 2,
        in_square(lambda s: s**3 / (2 * mp.atanh(s))),
    ),
    Row(
        "LOG2_TAIL",
        "log2(e) / s**5 * (log((1 + s) / (1 - s)) - 2 * s - s**3 * 2 / 3) in s**2, for pow",
        in_square(lambda s: 2 * (mp.atanh(s) - s - s**3 / 3) / s**5 / LN2),
        mp.mpf(0),
        (3 - 2 * mp.sqrt(2)) ** 2,
        in_square(lambda s: s**5 / (2 * mp.atanh(s)) * LN2),
        ("double",),
        {"double": 2**-11},
    ),
    Row(
        "INVERSE_CBRT",
        "(1 + f)**(-1/3) for 1 + f between sqrt(1/2) and sqrt(2), to start Newton's method with",
        lambda f: (1 + f) ** (-mp.mpf(1) / 3),
        mp.sqrt(0.5) - 1,
        mp.sqrt(2) - 1,
        lambda f: (1 + f) ** (mp.mpf(1) / 3),
        ("short", "double"),
        {"short": 2**18, "double": 2**39},
    ),
    odd("TANH", "(tanh(x) - x) / x**3 in x**2 for |x| <= 0.55", mp.tanh, mp.mpf("0.551")),
    odd("SIN", "(sin(r) - r) / r**3 in r**2 for |r| <= pi / 4", mp.sin, QUARTER),
    Row(
        "COS",
        "(cos(r) - 1 + r**2 / 2) / r**4 in r**2 for |r| <= pi / 4",
        in_square(over(mp.cos, lambda r: 1 - r * r / 2, 4)),
        mp.mpf(0),
        QUARTER**2,
        in_square(relative(mp.cos, 4)),
    ),
    odd("ATAN", "(atan(x) - x) / x**3 in x**2 for |x| <= 1 / 2", mp.atan, mp.mpf("0.501")),
    odd("ASIN", "(asin(x) - x) / x**3 in x**2 for |x| <= 1 / 2", mp.asin, mp.mpf("0.501")),
    Row(
        "ERF",
        "erf(x) / x - 1 in x**2 for |x| <= 1 / 2, in float32 for |x| <= 0.9",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        mp.mpf(0),
        mp.mpf("0.251"),
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        intervals={"single": (mp.mpf(0), mp.mpf("0.811"))},
    ),
    Row(
        "ERF_WIDE",
        "erf(x) / x - 1 in x**2 for |x| <= 1.2",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        mp.mpf(0),
        mp.mpf("1.442"),
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
        ("single",),
    ),
    Row(
        "ERFC_LOG",
        "-log(erfc(x)) for x between 0.9 and 4, to compute erf(x) with",
        lambda x: -mp.log(mp.erfc(x)),
        mp.mpf("0.899"),
        mp.mpf("4.001"),
        lambda x: mp.erfc(x) / mp.erf(x),
        ("single",),
    ),
    Row(
        "ERFC_NEAR",
        "exp(x**2) * erfc(x) in x - 1 for x between 1 / 2 and 1.5",
        lambda v: mp.erfc(1 + v) * mp.exp((1 + v) ** 2),
        mp.mpf("-0.501"),
        mp.mpf("0.501"),
        lambda v: mp.exp(-((1 + v) ** 2)) / mp.erfc(1 + v),
        ("double",),
    ),
    Row(
        "ERFC",
        "exp(x**2) * erfc(x) * x in (x - 3) / (x + 3) for x from 1.5 to 28, short: 0.5 to 11",
        erfc_scaled,
        (mp.mpf("1.499") - 3) / mp.mpf("4.499"),
        mp.mpf("25.01") / mp.mpf("31.01"),
        lambda u: 1 / erfc_scaled(u),
        ("short", "double"),
        intervals={"short": (mp.mpf("-2.501") / mp.mpf("3.499"), mp.mpf("8.01") / mp.mpf("14.01"))},
    ),
    Row(
        "ERFC_BULGE",
        "(1 + 2 x) * exp(x**2) * erfc(x) - 1 in (x - 2) / (x + 2) for x from 0 to 10.1",
        erfcx_bulge,
        mp.mpf(-1),
        mp.mpf("8.1") / mp.mpf("12.1"),
        lambda u: 1 / (1 + erfcx_bulge(u)),
        ("single",),
        {"single": 1.8},
    ),
    Row(
        "ERFINV_CENTRE",
        "erfinv(x) / x in w - 3.125 for w = -log(1 - x**2) below 6.25",
        lambda v: erfinv_ratio(v + mp.mpf("3.125")),
        mp.mpf("-3.125"),
        mp.mpf("3.126"),
        lambda v: 1 / erfinv_ratio(v + mp.mpf("3.125")),
        ("short", "double"),
        {"short": 64},
    ),
    Row(
        "ERFINV_MIDDLE",
        "the same in sqrt(w) - 3.25 for sqrt(w) between 2.5 and 4, in float32 to 4.1",
        lambda v: erfinv_ratio((v + mp.mpf("3.25")) ** 2),
        mp.mpf("-0.751"),
        mp.mpf("0.751"),
        lambda v: 1 / erfinv_ratio((v + mp.mpf("3.25")) ** 2),
        ("short", "double"),
        {"short": 64},
        {"short": (mp.mpf("-0.751"), mp.mpf("0.85"))},
    ),
    Row(
        "ERFINV_TAIL",
        "the same in sqrt(w) - 5 for sqrt(w) between 4 and 6.01",
        lambda v: erfinv_ratio((v + 5) ** 2),
        mp.mpf("-1.001"),
        mp.mpf("1.01"),
        lambda v: 1 / erfinv_ratio((v + 5) ** 2),
        ("double",),
    ),
    Row(
        "DIGAMMA_NEAR",
        "digamma(x) / (x - root) in x - 1.5 for x between 1 and 2, with the positive root",
        digamma_ratio,
        mp.mpf("-0.5001"),
        mp.mpf("0.5001"),
        lambda v: 1 / digamma_ratio(v),
        ("double",),
    ),
    Row(
        "DIGAMMA_TAIL",
        "(digamma(x) - log(x - 1/2)) / u in u = (x - 1/2)**-2 for x from 2",
        digamma_tail,
        mp.mpf(0),
        mp.mpf("0.4446"),
        lambda u: u / mp.digamma(1 / mp.sqrt(u) + mp.mpf("0.5")),
        ("double",),
    ),
    Row(
        "LGAMMA_NEAR",
        "lgamma(2 + t) / (t * (1 + t)) for |t| <= 1 / 2",
        lgamma_ratio,
        mp.mpf("-0.5001"),
        mp.mpf("0.5001"),
        lambda t: 1 / lgamma_ratio(t),
        ("double",),
    ),
    Row(
        "LGAMMA_TAIL",
        "y * (lgamma(x) - y * (log(y) - 1) - log(2 pi) / 2) in y**-2, y = x - 1/2, for x from 2.5",
        lgamma_tail,
        mp.mpf(0),
        mp.mpf("0.2502"),
        lambda u: mp.sqrt(u) / mp.loggamma(1 / mp.sqrt(u) + mp.mpf("0.5")),
        ("double",),
    ),
    odd("SINH", "(sinh(x) - x) / x**3 in x**2 for |x| <= 1", mp.sinh, mp.mpf("1.001")),
]


@dataclass(frozen=True)
class Table:
    """Polynomials of 16 intervals of a float32 function, each in its distance to a centre.

    Attributes:
        name, text: As of a row.
        degree: Of all of them.
        piece: The function of an interval, its ends, and the weight of an error.
    """

    name: str
    text: str
    degree: int
    piece: Callable[[int], tuple[Real, mp.mpf, mp.mpf, Real]]


def erf_piece(k: int) -> tuple[Real, mp.mpf, mp.mpf, Real]:
    """(erf(c + t) - erf(c)) / t for the multiple c of 1 / 4; at 0, erf(t) / t - 1."""
    c, half = mp.mpf(k) / 4, mp.mpf("0.125")
    if not k:
        return (lambda t: mp.erf(t) / t - 1), mp.mpf(0), half, lambda t: t / mp.erf(t)
    # The last one leans so that it is 1 at its end.
    lean = mp.mpf("2e-7") if k == 15 else mp.mpf(0)
    start = mp.erf(c)
    return (
        lambda t: (mp.erf(c + t) - start) / t + lean,
        -half,
        half,
        lambda t: abs(t) / mp.erf(c + t),
    )


def erfcx(x: mp.mpf) -> mp.mpf:
    """exp(x**2) * erfc(x)."""
    return mp.exp(x * x) * mp.erfc(x)


def erfcx_bounds(k: int) -> tuple[mp.mpf, mp.mpf]:
    """The interval of x whose x + 3 / 4 has k for its exponent and first two bits, mod 16."""
    place = (k - 10) % 16 - 2  # quarters of octaves from 1 on; 1 has 12
    low, high = ((1 + mp.mpf(q % 4) / 4) * mp.mpf(2) ** (q // 4) for q in (place, place + 1))
    return low - mp.mpf("0.75"), high - mp.mpf("0.75")


def erfcx_centre(k: int) -> mp.mpf:
    """The middle, a float32."""
    return sum(erfcx_bounds(k)) / 2


def erfcx_start(k: int) -> mp.mpf:
    """The nearest float32 to the value there."""
    return mp.mpf(float(literal(erfcx(erfcx_centre(k)), "single")))


def erfcx_piece(k: int) -> tuple[Real, mp.mpf, mp.mpf, Real]:
    """The values but for the nearest float32 at the centre."""
    (low, high), c, start = erfcx_bounds(k), erfcx_centre(k), erfcx_start(k)
    return (lambda t: erfcx(c + t) - start), low - c, high - c, lambda t: 1 / erfcx(c + t)


TABLES = [
    Table("ERF_PIECES", "(erf(k / 4 + t) - erf(k / 4)) / t; erf(t) / t - 1", 4, erf_piece),
    Table(
        "ERFCX_PIECES",
        "exp(x**2) * erfc(x) less its start, in the distance of x to the centre",
        6,
        erfcx_piece,
    ),
]

@dataclass(frozen=True)
class Ratio:
    """A quotient of two polynomials, the second of which begins with 1, for float32.

    Attributes:
        name: Of the polynomials in the table, with ``_ABOVE`` and ``_BELOW`` behind it.
        text, f, low, high, weight: As of a row.
        above, below: The degrees.
    """

    name: str
    text: str
    f: Real
    low: mp.mpf
    high: mp.mpf
    weight: Real
    above: int
    below: int


def solve_ratio(ratio: Ratio, points: list[mp.mpf]) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """The polynomials whose weighted errors at the points alternate, in (x - center) / half; their
    size, which multiplies coefficients, is found by iteration."""
    center, half = (ratio.high + ratio.low) / 2, (ratio.high - ratio.low) / 2
    size = ratio.above + ratio.below + 2
    values = [(ratio.f(x), ratio.weight(x), (x - center) / half) for x in points]
    level = mp.mpf(0)
    for _ in range(20):
        matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
        for i, (f, weight, y) in enumerate(values):
            sign = (-1) ** i
            for j in range(ratio.above + 1):
                matrix[i, j] = y**j
            for j in range(1, ratio.below + 1):
                matrix[i, ratio.above + j] = -(f + sign * level / weight) * y**j
            matrix[i, size - 1] = -sign / weight
            right[i] = f
        found = list(mp.lu_solve(matrix, right))
        close = abs(found[-1] - level) <= abs(level) * mp.mpf(10) ** -12
        level = found[-1]
        if close:
            break
    return found[: ratio.above + 1], [mp.mpf(1), *found[ratio.above + 1 : -1]]


def fit_ratio(ratio: Ratio) -> tuple[list[mp.mpf], list[mp.mpf], mp.mpf]:
    """Coefficients above and below, and the largest weighted error, by the exchange algorithm."""
    center, half = (ratio.high + ratio.low) / 2, (ratio.high - ratio.low) / 2
    count = ratio.above + ratio.below + 2

    def chebyshev(n: int) -> list[mp.mpf]:
        return [center - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / n) for k in range(n)]

    points, grid = chebyshev(count), chebyshev(24 * count)
    values = [(ratio.f(x), ratio.weight(x)) for x in grid]
    best: tuple[list[mp.mpf], list[mp.mpf], mp.mpf] | None = None
    for _ in range(8):
        above, below = solve_ratio(ratio, points)
        errors: list[mp.mpf] = []
        for x, (f, weight) in zip(grid, values, strict=True):
            y = (x - center) / half
            errors.append((mp.polyval(above[::-1], y) / mp.polyval(below[::-1], y) - f) * weight)
        largest = max(abs(e) for e in errors)
        if best is None or largest < best[2]:
            best = above, below, largest
        following = extremes(grid, errors, count)
        if following is None:
            break
        points = following
    assert best is not None
    above, below = (shifted(part, center, half) for part in best[:2])
    return [c / below[0] for c in above], [c / below[0] for c in below], best[2]


RATIOS = [
    Ratio(
        "ERFC_ROOT",
        "erfc(x)**(1 / 4) for x between 1.2 and 3.92, to compute erf(x) with",
        lambda x: mp.root(mp.erfc(x), 4),
        mp.mpf("1.199"),
        mp.mpf("3.921"),
        lambda x: 4 * mp.erfc(x) ** mp.mpf("0.75") / mp.erf(x),
        3,
        4,
    ),
]

COLUMNS: list[tuple[str, str, int, Callable[[int], mp.mpf]]] = [
    ("POWERS", "2**(k / 32)", 32, lambda k: mp.mpf(2) ** (mp.mpf(k) / 32)),
    ("ERF_STARTS", "erf(k / 4)", 16, lambda k: mp.erf(mp.mpf(k) / 4)),
    (
        "ERFCX_CENTRES",
        "the middles of where x + 3 / 4 has k for the end of its exponent and two bits more",
        16,
        erfcx_centre,
    ),
    ("ERFCX_STARTS", "exp(x**2) * erfc(x) there", 16, erfcx_start),
]


def column(values: Sequence[mp.mpf], depth: int, note: str = "") -> str:
    """Numbers of float32 as a tuple, perhaps with a note."""
    margin = " " * 4 * (depth + 1)
    numbers = ", ".join(literal(c, "single") for c in values)
    lines = textwrap.fill(numbers, 99, initial_indent=margin, subsequent_indent=margin)
    note = f"  # {note}" if note else ""
    return f"({note}\n{lines},\n{' ' * 4 * depth})"


def tables() -> Iterator[str]:
    """The text of all tables."""
    for ratio in RATIOS:
        above, below, error = fit_ratio(ratio)
        note = f"2**{float(mp.log(error, 2)):.1f}"
        print(f"{ratio.name:12} single  degrees {len(above) - 1}, {len(below) - 1} error {note}")
        for part, values in (("ABOVE", above), ("BELOW", below)):
            yield f"{ratio.name}_{part} = Polynomial(\n    single={column(values, 1, note)},\n)\n"
            yield f'"""{ratio.text}: what is {part.lower()} the line."""\n\n'
    for name, text, count, f in COLUMNS:
        yield f'{name} = {column([f(k) for k in range(count)], 0)}\n"""{text}."""\n\n'
    for table in TABLES:
        pieces: list[list[mp.mpf]] = []
        worst = mp.mpf(0)
        for k in range(16):
            f, low, high, weight = table.piece(k)
            found = remez(Row(table.name, "", f, low, high, weight), table.degree, mp.inf)
            assert found is not None
            pieces.append(found[0])
            worst = max(worst, found[1])
        note = f"2**{float(mp.log(worst, 2)):.1f}"
        print(f"{table.name:12} single  degree {table.degree:2} error {note}")
        yield f"{table.name} = Pieces(\n    columns=(  # {note}\n"
        for values in zip(*pieces, strict=True):
            yield f"        {column(values, 2)},\n"
        yield f'    ),\n)\n"""{table.text}."""\n\n'


def literal(value: mp.mpf, grade: str) -> str:
    """The nearest number of the format."""
    number = float(value)
    if grade == "single":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return repr(number)


TAB = " " * 8

HEADER = '''"""Coefficients of the polynomials that the expansions evaluate.

Written by ``tests/target/fit_mathematics.py``, which states how they are fitted; do not edit. The
comments give the largest relative error of the function that is computed with a polynomial.
"""

from __future__ import annotations

from tessera.target.passes.expression import Pieces, Polynomial

'''


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="print the errors, write nothing")
    parser.add_argument("--only", nargs="*", help="names of rows; implies --check")
    options = parser.parse_args()
    text = [HEADER]
    for row in ROWS:
        if options.only is not None and row.name not in options.only:
            continue
        text.append(f"{row.name} = Polynomial(\n")
        for grade in row.grades:
            coefficients, error = fit(row, grade)
            note = f"2**{float(mp.log(error, 2)):.1f}"
            print(f"{row.name:12} {grade:7} degree {len(coefficients) - 1:2} error {note}")
            text.append(f"    {grade}=(  # {note}\n")
            numbers = ", ".join(literal(c, grade) for c in coefficients)
            text.append(textwrap.fill(numbers, 99, initial_indent=TAB, subsequent_indent=TAB))
            text.append(",\n")
            text.append("    ),\n")
        text.append(f')\n"""{row.text}."""\n\n')
    if options.only is None:
        text += tables()
    if not options.check and options.only is None:
        package = Path(__file__).resolve().parents[2] / "tessera"
        table = package / "target" / "passes" / "mathematics_tables.py"
        table.write_text("".join(text).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
