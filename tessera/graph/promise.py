"""What functions promise of the ops in them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

from tessera.ir.core import Op


class Promise(Hashable):
    """What a function promises of the ops in it; see `ir/loc.py`."""

    __slots__ = ()

    def attributes(
        self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
    ) -> dict[str, Any]:
        """The attributes of an op that keeps the promise.

        Raises:
            TesseraError: the op cannot keep it.
        """
        return attrs


P = TypeVar("P", bound=Promise)


def promised(promises: Sequence[Hashable], kind: type[P]) -> P | None:
    """The innermost promise of a kind."""
    return next((p for p in reversed(promises) if isinstance(p, kind)), None)


def with_promise(promises: Sequence[Hashable], new: Promise) -> tuple[Hashable, ...]:
    """Promises with one in the place of an outer one of its kind."""
    return (*[p for p in promises if type(p) is not type(new)], new)
