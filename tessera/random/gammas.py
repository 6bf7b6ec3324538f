"""The gamma distribution, and what is made of it: beta and Dirichlet.

Gamma samples are those of Marsaglia and Tsang, "A simple method for generating gamma variables"
(2000), computed in float32, or in float64 for that dtype. The method rejects some of its proposals;
each round takes further sequences of the key, so a sample depends on nothing but its place.

Derivatives in the parameters are implicit (Figurnov, Mohamed, Mnih, "Implicit reparameterization
gradients", 2018): a sample z moves with a such that its distribution function F(z; a) stays.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tessera.api import custom_jvp, while_loop
from tessera.dtypes import DType, DTypeLike, default_float, float64, int32
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    operands,
    spread,
)
from tessera.graph.namespace.statistics import max as reduce_max
from tessera.graph.namespace.statistics import stop_gradient
from tessera.graph.namespace.statistics import sum as reduce_sum
from tessera.graph.namespace.utility import all as reduce_all
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.rearrange import iota
from tessera.graph.ops.reshape import broadcast, full
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.random import portable
from tessera.random.continuous import halves, standard_normal
from tessera.random.keys import (
    compiled,
    parse_float,
    parse_key,
    refuse,
    sample_shape,
    sequence,
    split,
    working,
)

__all__ = ["beta", "dirichlet", "gamma", "loggamma"]

# A proposal is rejected with probability 0.05 at most. With this many nobody waits in vain, and
# parameters that are NaN come to an end.
_ROUNDS: Final = 64


def _parameter(name: str, what: str, x: Any, dtype: DType) -> Any:
    refuse(name, what, x, lambda v: ~(v > 0), f"{what} > 0")
    found = as_array(name, x)
    if found.dtype.is_complex:
        raise DTypeError(
            f"{name}: {what} is {found.type.strong()}", loc=loc.current(), rule=f"{what} is real"
        )
    return ops.cast(found, dtype)


# --- gamma ------------------------------------------------------------------------------------


@api_boundary
def gamma(
    key: ArrayLike, a: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Gamma distributed numbers with scale 1: of density x**(a - 1) * exp(-x) / Gamma(a).

    Divide by a rate for another one. Differentiable in `a`.

    Args:
        key: a key.
        a: the shape parameter of the distribution, above 0.
        shape: the shape of the result, which `a` is broadcast to; by default that of `a`.
        dtype: a floating-point dtype.

    Raises:
        OptionError: a parameter is known not to be positive.
    """
    return _gamma_of("random.gamma", key, a, shape, dtype, is_log=False)


@api_boundary
def loggamma(
    key: ArrayLike, a: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Logarithms of gamma distributed numbers, which may be too small to be told from 0 themselves.

    Args:
        key: a key.
        a: the shape parameter of the distribution, above 0.
        shape: the shape of the result, which `a` is broadcast to; by default that of `a`.
        dtype: a floating-point dtype.
    """
    return _gamma_of("random.loggamma", key, a, shape, dtype, is_log=True)


def _gamma_of(
    name: str, key: Any, a: Any, shape: Shape | None, dtype: DTypeLike, is_log: bool
) -> Any:
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    parameter = _parameter(name, "a", a, wanted)
    dims = sample_shape(name, shape, parameter.shape, "a")
    return _gamma(found, parameter, dims, is_log)


@compiled("shape", "is_log")
def _gamma(key: Any, a: Any, shape: tuple[Dim, ...], is_log: bool) -> Any:
    wide = spread(ops.cast(a, working(a.dtype)), shape)
    draw = log_gamma_sample if is_log else gamma_sample
    return ops.cast(draw(key, wide, shape), a.dtype)


def _standard_gamma(key: Any, a: Any, shape: tuple[Dim, ...]) -> tuple[Any, Any]:
    """The logarithms of gamma distributed numbers, and these, of dtype float32 or float64."""
    dtype = a.dtype
    # Below 1, a sample for a + 1 is multiplied by u**(1 / a).
    is_small = ops.lt(a, 1.0)
    d = ops.sub(ops.select(is_small, ops.add(a, 1.0), a), 1 / 3)
    c = ops.div(1.0, ops.sqrt(ops.mul(d, 9.0)))

    def is_open(state: tuple[Any, Any, Any]) -> Any:
        step, is_done, _ = state
        return ops.and_(ops.lt(step, _ROUNDS), ops.not_(reduce_all(is_done)))

    def propose(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        step, is_done, v = state
        x = standard_normal(sequence(key, ops.mul(step, 2)), shape, dtype)
        below, above = halves(sequence(key, ops.add(ops.mul(step, 2), 1)), shape, dtype)
        root = ops.add(ops.mul(c, x), 1.0)
        is_positive = ops.gt(root, 0.0)
        root = ops.select(is_positive, root, full(shape, 1.0, dtype))
        new = ops.mul(ops.mul(root, root), root)
        half = ops.mul(ops.mul(x, x), 0.5)
        gain = ops.add(ops.sub(1.0, new), portable.log(new))
        is_fine = ops.lt(portable.log(below, below_one=above), ops.add(half, ops.mul(d, gain)))
        v = ops.select(ops.or_(is_done, ops.not_(is_fine)), v, new)
        return ops.add(step, 1), ops.or_(is_done, ops.and_(is_fine, is_positive)), v

    start = (full((), 0, int32), ops.ne(full(shape, 0, int32), 0), full(shape, 1.0, dtype))
    _, _, v = while_loop(is_open, propose, start)
    size = ops.mul(d, v)
    below, above = halves(key, shape, dtype)
    boost = ops.div(portable.log(below, below_one=above), a)
    log = portable.log(size)
    log = ops.select(is_small, ops.add(log, boost), log)
    size = ops.select(is_small, ops.mul(size, portable.exp(boost)), size)
    wrong = full(shape, math.nan, dtype)
    is_right = ops.gt(a, 0.0)
    return ops.select(is_right, log, wrong), ops.select(is_right, size, wrong)


def gamma_sample(key: Any, a: Any, shape: tuple[Dim, ...]) -> Any:
    """Gamma distributed numbers that move with `a`, of dtype float32 or float64."""
    log, size = _standard_gamma(key, stop_gradient(a), shape)
    return _moving(size, log, a)


def log_gamma_sample(key: Any, a: Any, shape: tuple[Dim, ...]) -> Any:
    """The logarithms of such numbers."""
    return _moving_log(_standard_gamma(key, stop_gradient(a), shape)[0], a)


@custom_jvp
def _moving_log(log: Any, a: Any) -> Any:
    """The logarithm of a sample, with its derivative in the parameter."""
    return log


@_moving_log.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # The result, not the argument, so that the derivative moves too.
    found = _moving_log(*primals)
    return found, ops.mul(slope(found, primals[1]), tangents[1])


@custom_jvp
def _moving(size: Any, log: Any, a: Any) -> Any:
    """A sample, with its derivative in the parameter."""
    return size


@_moving.defjvp
def _(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    _, log, a = primals
    found = _moving(*primals)
    return found, ops.mul(ops.mul(found, slope(_moving_log(log, a), a)), tangents[2])


# The trapezoidal rule in tau, with u = exp(tau - exp(-tau)): errors below 1e-7.
_NODES: Final = 64
_FIRST: Final = -3.0
_STEP: Final = 7.5 / (_NODES - 1)


def slope(log: Any, a: Any) -> Any:
    """The derivative in a of the logarithm of a gamma distributed number, with F(z; a) held.

    It is -(dF/da) / (z dF/dz). With dF/da = E[log t - digamma(a); t < z], which is minus the same
    of t > z, and t = z exp(-u), or z exp(u), it is an integral over u from 0: of a function without
    sign changes of its weight, from the mode of the distribution outwards.

    Args:
        log: the logarithms of the numbers.
        a: the parameters.

    Returns:
        The derivatives, in the dtype of `a`.
    """
    L, b = [ops.cast(x, float64) for x in (log, a)]
    z = ops.exp(L)
    is_left = ops.lt(z, b)
    apart = ops.abs_(ops.sub(z, b))
    width = ops.select(
        is_left,
        ops.div(1.0, ops.add(apart, ops.minimum(b, ops.sqrt(b)))),
        ops.log1p(ops.div(1.0, ops.add(apart, ops.sqrt(z)))),
    )
    sign = ops.select(is_left, full(L.shape, -1.0, float64), full(L.shape, 1.0, float64))
    centred = ops.mul(sign, ops.sub(L, ops.digamma(b)))
    shape = (*L.shape, _NODES)

    def lined(x: Any) -> Any:
        return broadcast(x, shape, range(len(shape) - 1))

    tau = ops.add(ops.mul(iota(shape, len(shape) - 1, float64), _STEP), _FIRST)
    decay = ops.exp(ops.neg(tau))
    node = ops.exp(ops.sub(tau, decay))
    u = ops.mul(lined(width), node)
    side = lined(sign)
    # Far out the weight is 0 long before the exponential overflows.
    moved = ops.minimum(ops.mul(side, u), 700.0)
    exponent = ops.sub(ops.mul(lined(b), moved), ops.mul(lined(z), ops.expm1(moved)))
    weight = ops.mul(ops.exp(exponent), ops.mul(node, ops.add(decay, 1.0)))
    total = reduce_sum(ops.mul(weight, ops.add(lined(centred), u)), axis=-1)
    return ops.cast(ops.mul(ops.mul(total, width), _STEP), a.dtype)


# --- beta and Dirichlet -----------------------------------------------------------------------


@api_boundary
def beta(
    key: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike = default_float,
) -> ArrayBase:
    """Beta distributed numbers: of density x**(a - 1) * (1 - x)**(b - 1) / B(a, b).

    Differentiable in `a` and `b`.

    Args:
        key: a key.
        a: the first parameter, above 0.
        b: the second, above 0.
        shape: the shape of the result, which the parameters are broadcast to; by default their
            common shape.
        dtype: a floating-point dtype.

    Raises:
        OptionError: a parameter is known not to be positive.
    """
    name = "random.beta"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    left, right = operands(name, _parameter(name, "a", a, wanted), _parameter(name, "b", b, wanted))
    dims = sample_shape(name, shape, left.shape, "the array of parameters")
    return _beta(found, left, right, dims)


@compiled("shape")
def _beta(key: Any, a: Any, b: Any, shape: tuple[Dim, ...]) -> Any:
    logs = _logs(key, [a, b], shape)
    return ops.cast(_logistic(ops.sub(logs[0], logs[1])), a.dtype)


def _logs(key: Any, parameters: list[Any], shape: tuple[Dim, ...]) -> list[Any]:
    """Logarithms of independent gamma distributed numbers."""
    found: list[Any] = []
    for k, a in enumerate(parameters):
        wide = spread(ops.cast(a, working(a.dtype)), shape)
        own: Any = split(key, len(parameters))[k]
        found.append(log_gamma_sample(own, wide, shape))
    return found


@custom_jvp
def _logistic(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return ops.div(1.0, ops.add(portable.exp(ops.neg(x)), 1.0))


@_logistic.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    out = _logistic(primals[0])
    return out, ops.mul(ops.mul(out, _logistic(ops.neg(primals[0]))), tangents[0])


@api_boundary
def dirichlet(
    key: ArrayLike, alpha: ArrayLike, shape: Shape | None = None, dtype: DTypeLike = default_float
) -> ArrayBase:
    """Dirichlet distributed vectors: positive, with sum 1.

    Differentiable in `alpha`. Their sum is rounded as a device does it, so the last bits may differ
    between devices.

    Args:
        key: a key.
        alpha: concentrations, above 0, of type `[..., n]`.
        shape: the shape of the result without the last dim, which the leading dims of `alpha` are
            broadcast to; by default these.
        dtype: a floating-point dtype.

    Returns:
        An array of shape `[*shape, n]`.

    Raises:
        OptionError: a concentration is known not to be positive.
        ShapeError: `alpha` has no dims, or does not fit `shape`.
    """
    name = "random.dirichlet"
    found, wanted = parse_key(name, key), parse_float(name, dtype)
    parameter = _parameter(name, "alpha", alpha, wanted)
    if not parameter.ndim:
        raise ShapeError(
            f"{name}: alpha is {parameter.type.strong()}",
            loc=loc.current(),
            rule="alpha has one dim or more",
        )
    lead = sample_shape(name, shape, parameter.shape[:-1], "alpha without its last dim")
    return _dirichlet(found, parameter, (*lead, parameter.shape[-1]))


@compiled("shape")
def _dirichlet(key: Any, alpha: Any, shape: tuple[Dim, ...]) -> Any:
    wide = spread(ops.cast(alpha, working(alpha.dtype)), shape)
    return ops.cast(_shares(log_gamma_sample(key, wide, shape)), alpha.dtype)


@custom_jvp
def _shares(x: Any) -> Any:
    """The softmax along the last axis."""
    found = portable.exp(ops.sub(x, _along(reduce_max(x, axis=-1), x.shape)))
    return ops.div(found, _along(reduce_sum(found, axis=-1), x.shape))


@_shares.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    out = _shares(primals[0])
    mean = _along(reduce_sum(ops.mul(out, tangents[0]), axis=-1), out.shape)
    return out, ops.mul(out, ops.sub(tangents[0], mean))


def _along(x: Any, shape: tuple[Dim, ...]) -> Any:
    return broadcast(x, shape, range(len(shape) - 1))
