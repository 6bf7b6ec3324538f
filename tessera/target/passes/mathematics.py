"""Transcendental functions of float32 and float64, written with arithmetic.

LLVM has vector intrinsics for some of these functions and makes a call of the C library per lane of
them. The expansions here work on whole vectors; they are used for scalars too, so that a result
does not depend on how many lanes it was computed with. They use addition, multiplication, division,
square root, comparison, selection and operations on bits, and the values they give are within two
units of the last place of the exact ones. Between negative integers digamma and lgamma have zeros,
where terms cancel: digamma is within two units of the larger of its value, log(1 - x) and 1, and
lgamma of float64 of the larger of its value and 1 / 8. Polynomials are our own fits; see
``tests/target/fit_mathematics.py``.

An expansion that has its own function as an op means the C library's: sine, cosine and tangent of
large angles.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.core import Value
from tessera.target.build import Build
from tessera.target.passes import mathematics_exponential as exponential
from tessera.target.passes import mathematics_gamma as gamma
from tessera.target.passes import mathematics_logarithm as logarithm
from tessera.target.passes import mathematics_powers as powers
from tessera.target.passes import mathematics_remainder as remainder
from tessera.target.passes import mathematics_special as special
from tessera.target.passes import mathematics_trigonometry as trigonometry
from tessera.target.passes.expression import Num


def _expansion(fn: Callable[..., Num]) -> Callable[..., Value]:
    def expand(b: Build, *args: Value) -> Value:
        return fn(*[Num(b, x) for x in args]).value

    expand.__name__, expand.__doc__ = fn.__name__, fn.__doc__
    return expand


MATHEMATICS: dict[str, Callable[..., Value]] = {
    fn.__name__: _expansion(fn)
    for fn in (
        exponential.exp,
        exponential.exp2,
        exponential.expm1,
        exponential.sigmoid,
        exponential.sinh,
        exponential.cosh,
        exponential.tanh,
        logarithm.log,
        logarithm.log2,
        logarithm.log10,
        logarithm.log1p,
        logarithm.asinh,
        logarithm.acosh,
        logarithm.atanh,
        logarithm.cbrt,
        logarithm.hypot,
        powers.pow,
        trigonometry.sin,
        trigonometry.cos,
        trigonometry.tan,
        trigonometry.asin,
        trigonometry.acos,
        trigonometry.atan,
        trigonometry.atan2,
        special.erf,
        special.erfc,
        special.erfinv,
        gamma.digamma,
        gamma.lgamma,
    )
}
"""Functions by the name of their row: they take a ``Build`` and operands of float32 or float64."""

ON_CPUS: dict[str, Callable[..., Value]] = {**MATHEMATICS, "rem": remainder.rem}
"""Those, and what GPUs have other code for (`library`)."""
