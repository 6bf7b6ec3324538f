"""Arrays that were given away: their memory belongs to a call, and using them again is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tessera.errors import DonatedError
from tessera.graph.array import Array, give_away
from tessera.ir import loc

_MEANINGS = (
    *("__array__", "__bool__", "__complex__", "__float__", "__getitem__", "__index__"),
    *("__int__", "__iter__", "__len__"),
)


class Donated:
    """What an array holds in place of its elements once it was donated.

    Its shape and dtype are still there; whatever else is asked of it is a use of the array.
    """

    __slots__ = ("dtype", "function", "loc", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], function: str, where: loc.Loc
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.function = function
        self.loc = where

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"donated to {self.function}"

    def _error(self) -> DonatedError:
        dims = ", ".join(map(str, self.shape))
        return DonatedError(
            f"use of an array of shape [{dims}] and dtype {self.dtype} after it was donated to "
            f"{self.function}",
            loc=loc.current(),
            rule="the memory of a donated argument belongs to the call that it was passed to",
            fix="use what the call returned, or leave the argument out of `donate_argnums`",
            notes=tuple([f"it was donated {place}" for place in [self.loc.render()] if place]),
        )


def _refuse(self: Donated, *args: Any, **kwargs: Any) -> NoReturn:
    raise self._error()  # pyright: ignore[reportPrivateUsage]


for _name in _MEANINGS:
    # Python and NumPy look for these on the class.
    setattr(Donated, _name, _refuse)


def donate(leaves: Iterable[Any], function: str) -> None:
    """Takes the elements of arrays away.

    Args:
        leaves: the arrays, and others, which are left alone.
        function: whom they were given to.
    """
    where: loc.Loc | None = None
    for x in leaves:
        if type(x) is not Array:
            continue
        data: Any = x.storage
        if type(data) is not Donated:
            where = loc.current() if where is None else where
            give_away(x, Donated(data.shape, data.dtype, function, where))
