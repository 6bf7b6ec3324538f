"""What Python asks of a number and a symbolic dim does not have: an order, a value, a quotient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from tessera.errors import ConcretizationError
from tessera.ir import loc

DECIDE: list[Callable[[Any, str, Any], bool | None]] = []
"""What says whether a comparison holds; `assumptions` puts it here."""


class SizeUnknown:
    """Base of symbolic integers: comparisons are decided by what is known, or refused."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return self._compare("<", other)

    def __le__(self, other: object) -> bool:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> bool:
        return self._compare(">", other)

    def __ge__(self, other: object) -> bool:
        return self._compare(">=", other)

    def __truediv__(self, other: object) -> Any:
        if isinstance(other, (int, float, SizeUnknown)):
            raise self._no_number(f"`/` of the dim {self} and {other}")
        return NotImplemented

    def __rtruediv__(self, other: object) -> Any:
        if isinstance(other, (int, float)):
            raise self._no_number(f"`/` of {other} and the dim {self}")
        return NotImplemented

    def __float__(self) -> NoReturn:
        raise self._no_number(f"`float()` of the dim {self}")

    def __index__(self) -> NoReturn:
        raise self._no_number(f"use of the dim {self} as a Python integer")

    def root(self, exponent: object) -> NoReturn:
        """Refuses a power that is no product."""
        raise self._no_number(f"`**` of the dim {self} and {exponent}")

    def _no_number(self, what: str) -> ConcretizationError:
        return ConcretizationError(
            what,
            loc=loc.current(),
            rule="it is any size, and has no number while the function is traced",
            fix="use an array, `ts.asarray(x.shape[0])`, which has the size of each call; loop "
            "with `ts.fori_loop`; or write a number into the annotation",
        )

    def _compare(self, relation: str, other: object) -> bool:
        if not isinstance(other, (int, np.integer, SizeUnknown)):
            return NotImplemented
        found = DECIDE[0](self, relation, other) if DECIDE else None
        if found is None:
            condition = f"{self} {relation} {other}"
            raise ConcretizationError(
                f"whether {condition} is not known",
                loc=loc.current(),
                rule="a dim with a name is any size, for which a program is traced once",
                fix=f'if it holds for all sizes, state it: `@ts.constrain("{condition}")`; or '
                "write what does for both",
            )
        return found
