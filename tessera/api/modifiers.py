"""What stands behind a dtype, `bf16 @ accum(f32) @ stochastic_round`, and decorates functions.

Behind the dtype of an annotation a modifier is about the operations on that array, and on what is
computed from it. As a decorator it is about all operations of a function. Either way it changes
fields of the policy in force, and leaves the others as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tessera import pytree
from tessera.api.annotations import PolicedDType
from tessera.api.derivatives import custom_vjp
from tessera.dtypes import DTypeLike, dtype_of, float32
from tessera.errors import NotYetError, OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.ops.precision import holds
from tessera.graph.ops.reduce import default_accumulator
from tessera.graph.precision import current, in_force
from tessera.ir import loc
from tessera.ir.numerics import Policy, Rounding

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Modifier:
    """One of them. Made by `accum`, `loss_scale` and so on.

    Attributes:
        policy: the fields that it says.
    """

    policy: Policy

    @api_boundary
    def __rmatmul__(self, stored: object) -> PolicedDType:
        if isinstance(stored, PolicedDType):
            return PolicedDType(stored.dtype, self.policy.over(stored.policy))
        try:
            dtype = dtype_of(stored)  # pyright: ignore[reportArgumentType]
        except TypeError:
            return NotImplemented
        if not dtype.is_float:
            raise OptionError(
                f"{self}: behind {dtype.full_name}",
                loc=loc.current(),
                rule="modifiers are about floating-point dtypes",
                fix=f"as in `ts.bfloat16 @ ts.{self}`",
            )
        least, wide = default_accumulator(dtype), self.policy.accumulate
        if wide is not None and not holds(wide, least):
            raise NotYetError(
                f"accum: {dtype.full_name} @ accum({wide.full_name})",
                loc=loc.current(),
                rule=f"sums and products of {dtype.full_name} are formed in {least.full_name}, or "
                "in what holds its numbers",
                fix=f"write `@ ts.accum(ts.{least.full_name})`, or leave it out",
            )
        return PolicedDType(dtype, self.policy)

    @api_boundary
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """The function, with this said of all of its operations."""
        if not callable(fn):
            raise OptionError(
                f"{self}: it decorates a value of type {type(fn).__name__}",
                loc=loc.current(),
                rule="it stands behind a dtype, or decorates a function",
            )

        @functools.wraps(fn)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            scale = self.policy.loss_scale
            with in_force(self.policy.over(current() or Policy())):
                if scale is None:
                    return fn(*args, **kwargs)
                given: Any = _scaled((args, kwargs), 1 / scale)
                inner: Any = fn
                return _scaled(inner(*given[0], **given[1]), scale)

        return run

    def __str__(self) -> str:
        return self.policy.modifiers()

    __repr__ = __str__


def _scaled(tree: Any, factor: float) -> Any:
    """The same arrays, whose cotangents are multiplied by a factor."""

    def one(x: Any) -> Any:
        is_float = isinstance(x, ArrayBase) and x.dtype.is_float
        return _with_cotangent(factor)(x) if is_float else x

    return pytree.map_(one, tree)


def _with_cotangent(factor: float) -> Callable[[Any], Any]:
    @custom_vjp
    def same(x: Any) -> Any:
        return x

    def forward(x: Any) -> Any:
        return x, None

    def backward(_: Any, ct: Any) -> Any:
        return (ct * factor,)

    same.defvjp(forward, backward)
    return same


@api_boundary
def accum(dtype: DTypeLike) -> Modifier:
    """Sums and products are formed in a dtype: `bf16 @ ts.accum(f32)`, or `@ts.accum(f32)`.

    Args:
        dtype: the dtype, of at least the width of what is added.

    Example:
        >>> import tessera as ts
        >>> ts.Tensor["B", "D", ts.bfloat16 @ ts.accum(ts.float32)]
        Tensor["B", "D", bf16 @ accum(f32)]
        >>> @ts.accum(ts.float64)
        ... def total(x):
        ...     return ts.sum(x)
        >>> float(total(ts.asarray([1e8, 1.0, -1e8])))
        1.0
    """
    return Modifier(Policy(accumulate=dtype_of(dtype)))


@api_boundary
def loss_scale(factor: float) -> Modifier:
    """Cotangents inside of a function are multiplied by a factor, and divided by it where they
    leave, so that small ones do not vanish in narrow dtypes; in reverse mode.

    Args:
        factor: with a power of two nothing is rounded. `ts.LossScale` finds one by itself.

    Example:
        >>> import tessera as ts
        >>> @ts.loss_scale(1024)
        ... def loss(w):
        ...     return ts.sum(w * w)
        >>> ts.grad(loss)(ts.asarray([3.0]))
        Array([6.], dtype=float32)
    """
    return Modifier(Policy(loss_scale=float(factor)))


stochastic_round = Modifier(Policy(rounding=Rounding.STOCHASTIC))
"""Results are rounded to one of their neighbours at random; the key is that of `ts.policy`."""

saturate = Modifier(Policy(saturate=True))
"""What exceeds the largest finite number becomes that number."""

fp32_master = Modifier(Policy(master=float32))
"""An optimizer keeps the parameters in float32."""
