"""The options of `jit` and `function`, checked."""

from __future__ import annotations

from typing import Any

from tessera.api.memory_budgets import budget_of
from tessera.api.precision import as_policy
from tessera.api.sentinels import checks_of
from tessera.api.static import as_tuple_of
from tessera.errors import OptionError
from tessera.ir import loc


def options_of(what: str, given: dict[str, Any]) -> dict[str, Any]:
    """What `JitFunction` is made with, of what users give.

    Args:
        what: the function that has the options, for messages.
        given: the options by name, as they stand in the signature of `jit`.

    Raises:
        OptionError: one is nothing of its kind.
    """
    found = dict(given)
    for name, kind in (
        ("static_argnums", int),
        ("static_argnames", str),
        ("donate_argnums", int),
        ("donate_argnames", str),
    ):
        found[name] = as_tuple_of(kind, given[name], f"{what}: {name}")
    if given["effects"] is not None:
        found["effects"] = as_tuple_of(str, given["effects"], f"{what}: effects")
    found["check"] = checks_of(what, given["check"])
    found["memory_budget"] = budget_of(what, given["memory_budget"])
    if given["policy"] is not None:
        found["policy"] = as_policy(what, given["policy"])
    limit = given["max_specializations"]
    if limit is not None and limit < 1:
        raise OptionError(
            f"{what}: max_specializations is {limit}",
            loc=loc.current(),
            rule="it is a number of programs, at least 1, or None",
        )
    return found
