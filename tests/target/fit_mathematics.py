"""Fits the polynomials of the expansions of transcendental functions.

Run ``python tests/target/fit_mathematics.py`` to write
``tessera/target/passes/mathematics_tables.py`` anew; with ``--check`` it only prints the errors.

Each row of ``ROWS`` states a function, an interval and a weight. The polynomial that minimizes the
largest weighted error is found by the exchange algorithm of Remez in 60 digits, for the lowest
degree whose error is below the bound of the format. The weight turns an error of the polynomial
into a relative error of the function that is computed with it.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import mpmath as mp

mp.mp.dps = 60

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
        slack: A factor for the bound, where the error counts for less (or more).
    """

    name: str
    text: str
    f: Real
    low: mp.mpf
    high: mp.mpf
    weight: Real = lambda x: mp.mpf(1)
    grades: tuple[str, ...] = ("single", "short", "double")
    slack: dict[str, float] = field(default_factory=dict)


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


def remez(row: Row, degree: int) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients in powers of the variable, lowest first, and the largest weighted error."""
    center, half = (row.high + row.low) / 2, (row.high - row.low) / 2
    dense = 24 * (degree + 2)
    # Chebyshev points; the ends are left out by a hair, where some weights are 0 over 0.
    grid = [center - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / dense) for k in range(dense)]
    values = [(row.f(x), row.weight(x)) for x in grid]
    points = [
        center - half * mp.cos(mp.pi * (k + mp.mpf("0.5")) / (degree + 2))
        for k in range(degree + 2)
    ]
    best: tuple[list[mp.mpf], mp.mpf] | None = None
    for _ in range(8):
        scaled, level = solve(row, degree, points)
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
        points = following
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
    for degree in range(1, 40):
        coefficients, error = remez(row, degree)
        if error <= bound:
            return coefficients, error
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


ROWS = [
    Row(
        "EXPM1",
        "(exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2",
        over(mp.expm1, lambda r: r, 2),
        -LN2 / 2 * mp.mpf("1.002"),
        LN2 / 2 * mp.mpf("1.002"),
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
    odd("SINH", "(sinh(x) - x) / x**3 in x**2 for |x| <= 1", mp.sinh, mp.mpf("1.001")),
]


def literal(value: mp.mpf, grade: str) -> str:
    """The nearest number of the format."""
    number = float(value)
    if grade == "single":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return repr(number)


HEADER = '''"""Coefficients of the polynomials that the expansions evaluate.

Written by ``tests/target/fit_mathematics.py``, which states how they are fitted; do not edit. The
comments give the largest relative error of the function that is computed with a polynomial.
"""

from __future__ import annotations

from tessera.target.passes.expression import Polynomial

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
            text += [f"        {literal(c, grade)},\n" for c in coefficients]
            text.append("    ),\n")
        text.append(f')\n"""{row.text}."""\n\n')
    if not options.check and options.only is None:
        package = Path(__file__).resolve().parents[2] / "tessera"
        table = package / "target" / "passes" / "mathematics_tables.py"
        table.write_text("".join(text).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
