"""Distributions that are functions of normal, exponential and gamma distributed numbers.

All are differentiable in their parameters, but for `geometric`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tessera.api import custom_jvp
from tessera.dtypes import DType, DTypeLike, default_float, default_int, float64, iinfo
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    is_number,
    operands,
    parse_shape,
    spread,
)
from tessera.graph.ops import elementwise as ops
from tessera.ir import loc as location
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.continuous import halves, standard_exponential, standard_normal
from tessera.random.gammas import gamma_sample, log_gamma_sample
from tessera.random.keys import (
    compiled,
    parse_float,
    parse_integer,
    parse_key,
    refuse,
    sample_shape,
    sequence,
    split,
    words,
    working,
)

__all__ = [
    "cauchy",
    "chisquare",
    "double_sided_maxwell",
    "f",
    "generalized_normal",
    "geometric",
    "lognormal",
    "maxwell",
    "pareto",
    "rayleigh",
    "t",
    "triangular",
    "wald",
    "weibull_min",
]


@custom_jvp
def _exp(x: Any) -> Any:
    return portable.exp(x)


@_exp.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    out = _exp(primals[0])
    return out, ops.mul(out, tangents[0])


def _draw(
    kind: str,
    key: Any,
    parameters: Mapping[str, Any],
    shape: Shape | None,
    dtype: DTypeLike,
    positive: str = "",
) -> Any:
    """Checks arguments, and draws.

    Args:
        kind: the public name, and that of the rule.
        key: a key.
        parameters: what samples depend on, by name.
        shape: as the user gave it.
        dtype: as the user gave it.
        positive: the names of parameters that are above 0.
    """
    name = f"random.{kind}"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    for what in positive.split():
        refuse(name, what, parameters[what], lambda v: ~(v > 0), f"{what} > 0")
    if not parameters:
        return _sampled(found, (), parse_shape(name, () if shape is None else shape), wanted, kind)
    given = [ops.cast(as_array(name, x), wanted) for x in parameters.values()]
    arrays = operands(name, *given) if len(given) > 1 else given
    what = next(iter(parameters)) if len(given) == 1 else "the array of parameters"
    dims = sample_shape(name, shape, arrays[0].shape, what)
    return _sampled(found, tuple(arrays), dims, wanted, kind)


@compiled("shape", "dtype", "kind")
def _sampled(
    key: Any, parameters: tuple[Any, ...], shape: tuple[Dim, ...], dtype: DType, kind: str
) -> Any:
    wide = [spread(ops.cast(x, working(dtype)), shape) for x in parameters]
    return ops.cast(_RULES[kind](key, shape, working(dtype), *wide), dtype)


# The sequence for signs, which no other part of a sampler takes.
_SIGNS: Final = 2**31


def _sign(key: Any, shape: tuple[Dim, ...], x: Any) -> Any:
    """A number or its negative, with equal probabilities."""
    drawn = words(sequence(key, _SIGNS), shape)
    return ops.select(ops.ne(ops.and_(drawn, 1), 0), ops.neg(x), x)


# --- rules ------------------------------------------------------------------------------------


def _cauchy(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    over, under = [standard_normal(sequence(key, k), shape, dtype) for k in (0, 1)]
    return ops.div(over, under)


def _lognormal(key: Any, shape: tuple[Dim, ...], dtype: DType, sigma: Any) -> Any:
    return _exp(ops.mul(sigma, standard_normal(key, shape, dtype)))


def _maxwell(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    x, y, z = [standard_normal(sequence(key, k), shape, dtype) for k in range(3)]
    return ops.sqrt(ops.add(ops.add(ops.mul(x, x), ops.mul(y, y)), ops.mul(z, z)))


def _two_sided(key: Any, shape: tuple[Dim, ...], dtype: DType, centre: Any, scale: Any) -> Any:
    return ops.add(centre, ops.mul(scale, _sign(key, shape, _maxwell(key, shape, dtype))))


def _rayleigh(key: Any, shape: tuple[Dim, ...], dtype: DType, scale: Any) -> Any:
    length = ops.sqrt(ops.mul(standard_exponential(key, shape, dtype), 2.0))
    return ops.mul(scale, length)


def _pareto(key: Any, shape: tuple[Dim, ...], dtype: DType, b: Any) -> Any:
    return _exp(ops.div(standard_exponential(key, shape, dtype), b))


def _weibull(key: Any, shape: tuple[Dim, ...], dtype: DType, scale: Any, concentration: Any) -> Any:
    log = portable.log(standard_exponential(key, shape, dtype))
    return ops.mul(scale, _exp(ops.div(log, concentration)))


def _triangular(
    key: Any, shape: tuple[Dim, ...], dtype: DType, left: Any, mode: Any, right: Any
) -> Any:
    below, above = halves(key, shape, dtype)
    width = ops.sub(right, left)
    is_left = ops.lt(ops.mul(below, width), ops.sub(mode, left))
    rising = ops.mul(ops.mul(below, width), ops.sub(mode, left))
    falling = ops.mul(ops.mul(above, width), ops.sub(right, mode))
    # Only one of the two is far from a root of 0, which has no derivative.
    step = ops.sqrt(ops.select(is_left, rising, falling))
    return ops.select(is_left, ops.add(left, step), ops.sub(right, step))


def _wald(key: Any, shape: tuple[Dim, ...], dtype: DType, mean: Any) -> Any:
    # Michael, Schucany and Haas, "Generating random variates using transformations with multiple
    # roots" (1976), with the smaller root as a quotient, which does not cancel.
    x = standard_normal(sequence(key, 0), shape, dtype)
    share, _ = halves(sequence(key, 1), shape, dtype)
    half = ops.mul(ops.mul(mean, ops.mul(x, x)), 0.5)
    root = ops.sqrt(ops.mul(half, ops.add(half, 2.0)))
    small = ops.div(mean, ops.add(ops.add(half, 1.0), root))
    is_small = ops.le(ops.mul(share, ops.add(mean, small)), mean)
    return ops.select(is_small, small, ops.div(ops.mul(mean, mean), small))


def _chisquare(key: Any, shape: tuple[Dim, ...], dtype: DType, df: Any) -> Any:
    return ops.mul(gamma_sample(key, ops.mul(df, 0.5), shape), 2.0)


def _t(key: Any, shape: tuple[Dim, ...], dtype: DType, df: Any) -> Any:
    keys: Any = split(key)
    half = ops.mul(df, 0.5)
    ratio = ops.div(half, gamma_sample(keys[1], half, shape))
    return ops.mul(standard_normal(keys[0], shape, dtype), ops.sqrt(ratio))


def _f(key: Any, shape: tuple[Dim, ...], dtype: DType, dfnum: Any, dfden: Any) -> Any:
    keys: Any = split(key)
    logs = [
        log_gamma_sample(keys[k], ops.mul(df, 0.5), shape) for k, df in enumerate((dfnum, dfden))
    ]
    return ops.mul(_exp(ops.sub(logs[0], logs[1])), ops.div(dfden, dfnum))


def _generalized_normal(key: Any, shape: tuple[Dim, ...], dtype: DType, p: Any) -> Any:
    inverse = ops.div(1.0, p)
    size = _exp(ops.mul(log_gamma_sample(key, inverse, shape), inverse))
    return _sign(key, shape, size)


_RULES: Final[dict[str, Callable[..., Any]]] = {
    "cauchy": _cauchy,
    "chisquare": _chisquare,
    "double_sided_maxwell": _two_sided,
    "f": _f,
    "generalized_normal": _generalized_normal,
    "lognormal": _lognormal,
    "maxwell": _maxwell,
    "pareto": _pareto,
    "rayleigh": _rayleigh,
    "t": _t,
    "triangular": _triangular,
    "wald": _wald,
    "weibull_min": _weibull,
}


# --- what users call --------------------------------------------------------------------------


@api_boundary
def cauchy(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Numbers with the standard Cauchy distribution.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _draw("cauchy", key, {}, shape, dtype)


@api_boundary
def lognormal(
    key: ArrayLike,
    sigma: ArrayLike = 1.0,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Numbers whose logarithm is normally distributed, with mean 0 and deviation `sigma`.

    Args:
        key: a key.
        sigma: deviations of the logarithms.
        shape: the shape of the result, which `sigma` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("lognormal", key, {"sigma": sigma}, shape, dtype)


@api_boundary
def maxwell(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = default_float) -> ArrayBase:
    """Lengths of vectors of three standard normal numbers.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: a floating-point dtype.
    """
    return _draw("maxwell", key, {}, shape, dtype)


@api_boundary
def double_sided_maxwell(
    key: ArrayLike,
    loc: ArrayLike,
    scale: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """loc + scale * x, with x of the Maxwell distribution or its mirror image.

    Args:
        key: a key.
        loc: the centres.
        scale: factors.
        shape: the shape of the result, which the parameters are broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("double_sided_maxwell", key, {"loc": loc, "scale": scale}, shape, dtype)


@api_boundary
def rayleigh(
    key: ArrayLike, scale: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Rayleigh distributed numbers: lengths of vectors of two normal numbers.

    Args:
        key: a key.
        scale: the deviations of these numbers, above 0.
        shape: the shape of the result, which `scale` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("rayleigh", key, {"scale": scale}, shape, dtype, "scale")


@api_boundary
def pareto(
    key: ArrayLike, b: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Pareto distributed numbers: above 1, with density b * x**(-b - 1).

    Args:
        key: a key.
        b: exponents, above 0.
        shape: the shape of the result, which `b` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("pareto", key, {"b": b}, shape, dtype, "b")


@api_boundary
def weibull_min(
    key: ArrayLike,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Weibull distributed numbers: scale * E**(1 / concentration), with E exponential.

    Args:
        key: a key.
        scale: factors.
        concentration: shape parameters of the distribution, above 0.
        shape: the shape of the result, which the parameters are broadcast to.
        dtype: a floating-point dtype.
    """
    parameters = {"scale": scale, "concentration": concentration}
    return _draw("weibull_min", key, parameters, shape, dtype, "concentration")


@api_boundary
def triangular(
    key: ArrayLike,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Numbers whose density rises from `left` to `mode` and falls to `right`, in lines.

    Args:
        key: a key.
        left: the least number.
        mode: where the density is largest.
        right: the largest number.
        shape: the shape of the result, which the parameters are broadcast to.
        dtype: a floating-point dtype.

    Raises:
        OptionError: the three are known not to be in order.
    """
    if all(is_number(x) for x in (left, mode, right)):
        numbers: Any = (left, mode, right)
        if not numbers[0] <= numbers[1] <= numbers[2]:
            raise OptionError(
                f"random.triangular: left is {left}, mode {mode}, right {right}",
                loc=location.current(),
                rule="left <= mode <= right",
            )
    return _draw("triangular", key, {"left": left, "mode": mode, "right": right}, shape, dtype)


@api_boundary
def wald(
    key: ArrayLike, mean: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Wald (inverse Gaussian) distributed numbers with scale 1.

    Args:
        key: a key.
        mean: the means, above 0.
        shape: the shape of the result, which `mean` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("wald", key, {"mean": mean}, shape, dtype, "mean")


@api_boundary
def chisquare(
    key: ArrayLike, df: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Chi-square distributed numbers.

    Args:
        key: a key.
        df: degrees of freedom, above 0.
        shape: the shape of the result, which `df` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("chisquare", key, {"df": df}, shape, dtype, "df")


@api_boundary
def t(
    key: ArrayLike, df: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Numbers with Student's t distribution.

    Args:
        key: a key.
        df: degrees of freedom, above 0.
        shape: the shape of the result, which `df` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("t", key, {"df": df}, shape, dtype, "df")


@api_boundary
def f(
    key: ArrayLike,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Numbers with Fisher's F distribution: ratios of chi-square numbers over their degrees.

    Args:
        key: a key.
        dfnum: degrees of freedom of the numerator, above 0.
        dfden: those of the denominator, above 0.
        shape: the shape of the result, which the parameters are broadcast to.
        dtype: a floating-point dtype.
    """
    parameters = {"dfnum": dfnum, "dfden": dfden}
    return _draw("f", key, parameters, shape, dtype, "dfnum dfden")


@api_boundary
def generalized_normal(
    key: ArrayLike, p: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Numbers with a density proportional to exp(-abs(x)**p).

    Args:
        key: a key.
        p: exponents, above 0.
        shape: the shape of the result, which `p` is broadcast to.
        dtype: a floating-point dtype.
    """
    return _draw("generalized_normal", key, {"p": p}, shape, dtype, "p")


@api_boundary
def geometric(
    key: ArrayLike, p: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_int
) -> ArrayBase:
    """How many trials it takes until one succeeds: k with probability (1 - p)**(k - 1) * p.

    Args:
        key: a key.
        p: probabilities of success, above 0.
        shape: the shape of the result, which `p` is broadcast to.
        dtype: an integer dtype; samples that are too large for it are its largest number.

    Raises:
        OptionError: a probability is known not to be in (0, 1].
    """
    name = "random.geometric"
    found, wanted = parse_key(name, key), parse_integer(name, dtype)
    refuse(name, "p", p, lambda v: ~((v > 0) & (v <= 1)), "0 < p <= 1")
    chance = ops.cast(as_array(name, p), float64)
    return _geometric(found, chance, sample_shape(name, shape, chance.shape, "p"), wanted)


@compiled("shape", "dtype")
def _geometric(key: Any, p: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    p = spread(p, shape)
    rate = ops.neg(portable.log(ops.sub(1.0, p), below_one=p))
    # Where p is 1, nothing is left for a second trial.
    trials = ops.floor(ops.div(standard_exponential(key, shape, float64), rate))
    trials = ops.select(ops.ge(p, 1.0), 0.0, trials)
    most = float(min(iinfo(dtype).max, 2**53))
    return ops.cast(ops.minimum(ops.add(trials, 1.0), most), dtype)
