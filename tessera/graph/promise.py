"""What functions promise of the ops in them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

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
        raise NotImplementedError
