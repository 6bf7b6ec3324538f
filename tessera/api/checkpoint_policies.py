"""Policies of `ts.checkpoint`: which values are kept for reverse mode, the others being computed
again. The names are those of `jax.checkpoint_policies`.

A policy may also be a function of yours: it is asked of each operation (an `Op` of the Graph)
whether its results may be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tessera.errors import OptionError, api_boundary
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.checkpoint import Name
from tessera.graph.ops.policies import (
    DOTS,
    DOTS_WITHOUT_BATCH,
    EVERYTHING,
    NOTHING,
    Budget,
    Policy,
)
from tessera.ir import loc as _loc

__all__ = [
    "AnyPolicy",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "memory_budget",
    "nothing_saveable",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]

AnyPolicy: TypeAlias = "Policy | Callable[[GraphOp], bool]"

everything_saveable = EVERYTHING
"""Save all residuals, as without a checkpoint."""

nothing_saveable = NOTHING
"""Save no results: compute all again from the arguments. What `policy=None` means."""

dots_saveable = checkpoint_dots = DOTS
"""Save results of matrix products."""

dots_with_no_batch_dims_saveable = checkpoint_dots_with_no_batch_dims = DOTS_WITHOUT_BATCH
"""Save results of matrix products that are not batched: as a rule those with weights."""


@api_boundary
def save_only_these_names(*names: str) -> Policy:
    """Save what `ts.checkpoint_name` has given one of these names."""
    return Policy("names", lambda op: isinstance(op, Name) and op.label in names)


@api_boundary
def save_any_names_but_these(*names: str) -> Policy:
    """Save what `ts.checkpoint_name` has given any other name."""
    return Policy("other_names", lambda op: isinstance(op, Name) and op.label not in names)


@api_boundary
def save_anything_except_these_names(*names: str) -> Policy:
    """Save everything but what `ts.checkpoint_name` has given one of these names."""
    return Policy("unless_names", lambda op: not (isinstance(op, Name) and op.label in names))


@api_boundary
def save_from_both_policies(first: AnyPolicy, second: AnyPolicy) -> Policy:
    """Save what either policy saves."""
    one, other = policy_of(first), policy_of(second)
    for policy in (one, other):
        if isinstance(policy, Budget):
            raise OptionError(
                "save_from_both_policies: got a memory budget",
                loc=_loc.current(),
                rule="a budget chooses among all values together, and is no part of another policy",
            )
    return Policy("both", lambda op: one.saves(op) or other.saves(op))


@api_boundary
def memory_budget(bytes: int) -> Policy:
    """Save what spares most work, within a number of bytes for each call of the function.

    Arguments of the function, which are there anyway, do not count.

    Args:
        bytes: the most that may be saved.

    Raises:
        OptionError: it is negative.
    """
    if bytes < 0:
        raise OptionError(
            f"memory_budget: got {bytes} bytes", loc=_loc.current(), rule="it is at least 0"
        )
    return Budget(bytes)


def policy_of(policy: AnyPolicy | None) -> Policy:
    """A policy, also of a function or of None.

    Raises:
        OptionError: it is anything else.
    """
    if isinstance(policy, Policy):
        return policy
    if policy is not None and not callable(policy):
        raise OptionError(
            f"checkpoint: the policy is of type {type(policy).__name__}",
            loc=_loc.current(),
            rule="a policy is one of `ts.checkpoint_policies`, or a function of an operation",
        )
    return NOTHING if policy is None else Policy("function", policy)
