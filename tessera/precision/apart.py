"""Functions that say themselves in what they compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tessera.graph.precision import current, in_force
from tessera.ir.numerics import Policy

P = ParamSpec("P")
R = TypeVar("R")


def apart(fn: Callable[P, R]) -> Callable[P, R]:
    """A function that no policy in force touches: scales and the numbers that they come from are
    as their definition says, whatever the functions around them are computed in.
    """

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if current() is None:
            return fn(*args, **kwargs)
        with in_force(Policy()):
            return fn(*args, **kwargs)

    return run
