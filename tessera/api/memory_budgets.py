"""Budgets of memory, as users write them."""

from __future__ import annotations

import re

from tessera.errors import OptionError
from tessera.ir import loc

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{end}": base ** (k + 1)
    for end, base in (("B", 1000), ("iB", 1024))
    for k, prefix in enumerate(("K", "M", "G", "T"))
}
"""Bytes of a unit."""


def budget_of(what: str, budget: int | str | None) -> int:
    """The bytes of a budget; 0 for none.

    Args:
        what: the function that has the option, for messages.
        budget: bytes, or a number with a unit.

    Raises:
        OptionError: it is none.

    Example:
        >>> budget_of("jit", "2GB"), budget_of("jit", "1.5 KiB")
        (2000000000, 1536)
    """
    if budget is None:
        return 0
    found = 0
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", budget)
        if match is not None and match[2] in UNITS:
            found = int(float(match[1]) * UNITS[match[2]])
    elif not isinstance(budget, bool):
        found = int(budget)
    if found < 1:
        raise OptionError(
            f"{what}: memory_budget is {budget!r}",
            loc=loc.current(),
            rule="it is a number of bytes, at least 1, or a number and one of "
            f"{', '.join([unit for unit in UNITS if unit])}",
            fix='write for example `memory_budget="2GB"`',
        )
    return found
