"""`ts.policy`: a numerics policy for a block of code, or for a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.precision import in_force
from tessera.ir import loc
from tessera.ir.numerics import Policy
from tessera.ir.types import TensorType

P = ParamSpec("P")
R = TypeVar("R")


@api_boundary
def policy(
    p: Policy | str, /, *, key: ArrayBase | None = None
) -> AbstractContextManager[None]:
    """Puts a numerics policy in force: for a `with` block, or as a decorator, for calls of a
    function.

    An operation `f(x, y)` then converts its floating-point operands to `p.compute`, is computed in
    `p.accumulate`, and its results are rounded to `p.storage`. A jitted function is traced once for
    each policy that it is called under.

    Args:
        p: The policy, or its text. `ts.Policy()` ends that of an outer block.
        key: For stochastic rounding; result n is rounded by an own sequence of words.

    Raises:
        OptionError: `p` is no policy. Stochastic rounding fails where there is no key.

    Example:
        >>> import tessera as ts
        >>> x = ts.ones((2, 3))
        >>> with ts.policy(ts.policies.Training()):
        ...     y = x @ x.T
        >>> y.dtype
        tessera.bfloat16
    """
    return in_force(as_policy("policy", p), key)


def as_policy(name: str, p: Any) -> Policy:
    """A policy that a public function was given."""
    if isinstance(p, str):
        return Policy.parse(p)
    if not isinstance(p, Policy):
        raise OptionError(
            f"{name}: got a value of type {type(p).__name__}, which is no policy",
            loc=loc.current(),
            rule="it is a `ts.Policy`, or its text",
            fix="as in `ts.policies.Training()`",
        )
    return p


def under(
    p: Policy | None, fn: Callable[P, R], types: Sequence[TensorType] = ()
) -> Callable[P, R]:
    """A function under a policy of its own, if it has one, or under those of its arguments."""
    if p is None and all([t.policy is None for t in types]):
        return fn
    return functools.wraps(fn)(in_force(p)(fn))
