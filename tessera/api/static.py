"""Static arguments: Python values that belong to the signature of a compiled function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from tessera.api.leaves import name_of, parameter_names, positional_name
from tessera.errors import OptionError, StaticArgumentError
from tessera.graph.array import ArrayBase
from tessera.ir import loc

T = TypeVar("T")

Place: TypeAlias = "int | str"
"""Where a static argument stands in a call: a position or a keyword."""

Found: TypeAlias = "tuple[tuple[Place, Hashable, Any], ...]"
"""The static arguments of one call: the place, what tells apart values that are equal (`1 == True`,
`0.0 == -0.0`), and the value.
"""


class StaticArguments:
    """Which arguments of a function are static.

    Args:
        fn: the function.
        numbers: positions, counted from the back where negative.
        names: parameter names.
        option: what the options begin with that name them.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        numbers: Sequence[int],
        names: Sequence[str],
        option: str = "static",
    ) -> None:
        self.fn = fn
        self.option = option
        known = parameter_names(fn)
        keywords, takes_any = _keywords(fn)
        for name in names:
            if name not in known and name not in keywords and not takes_any:
                raise StaticArgumentError(
                    f"jit: {option}_argnames has {name!r}, which is no parameter of {name_of(fn)}",
                    loc=loc.current(),
                    rule=f"its parameters are {', '.join([*known, *keywords]) or '(none)'}",
                )
        positions = {self._position(n, len(known)) for n in numbers}
        positions |= {known.index(name) for name in names if name in known}
        self.positions = frozenset(positions)
        self.names = frozenset(names) | {known[n] for n in positions if n < len(known)}

    def _position(self, number: int, count: int) -> int:
        takes_more = _takes_more(self.fn)
        if number < -count or (number >= count and not takes_more):
            raise StaticArgumentError(
                f"jit: {self.option}_argnums has {number}, but {name_of(self.fn)} has {count} "
                f"positional parameters",
                loc=loc.current(),
                rule=f"{self.option}_argnums are positions of parameters",
            )
        return number + count if number < 0 else number

    def check_apart(self, other: StaticArguments | None) -> None:
        """No argument is in both."""
        if other is None:
            return
        shared, names = self.positions & other.positions, self.names & other.names
        if shared or names:
            found = sorted(names) or [positional_name(self.fn, k) for k in sorted(shared)]
            raise StaticArgumentError(
                f"jit: `{found[0]}` of {name_of(self.fn)} is both static and donated",
                loc=loc.current(),
                rule="arrays are donated, and static arguments are no arrays",
            )

    def pick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments themselves."""
        found = [args[k] for k in sorted(self.positions) if k < len(args)]
        return [*found, *[kwargs[k] for k in sorted(kwargs) if k in self.names]]

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], Found]:
        """The other arguments, and the static ones, which must hash."""
        found: list[tuple[Place, Hashable, Any]] = []
        rest: list[Any] = list(args)
        for k in sorted(self.positions):
            if k < len(args):
                found.append(self._checked(k, args[k]))
                # None is an empty subtree: nothing of a static argument is left in the tree.
                rest[k] = None
        for k in sorted(kwargs):
            if k in self.names:
                found.append(self._checked(k, kwargs[k]))
        return (tuple(rest), {k: v for k, v in kwargs.items() if k not in self.names}), tuple(found)

    def _checked(self, place: Place, value: Hashable) -> tuple[Place, Hashable, Any]:
        try:
            hash(value)
        except TypeError:
            name = positional_name(self.fn, place) if isinstance(place, int) else place
            is_array = isinstance(value, (ArrayBase, np.ndarray))
            raise StaticArgumentError(
                f"jit: static argument `{name}` of {name_of(self.fn)} is "
                + ("an array" if is_array else f"of type {type(value).__name__}")
                + ", which cannot be hashed",
                loc=loc.current(),
                rule="static arguments are part of the cache key: they hash, and compare by value",
                fix="make it a normal argument"
                if is_array
                else "pass a hashable value, such as a tuple for a list, or make it a normal "
                "argument",
            ) from None
        return place, _exact(value), value


def _exact(value: object) -> Hashable:
    """What tells a value from others that are equal to it, at every depth of tuples and sets."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (tuple, frozenset)):
        items = [_exact(item) for item in cast("Iterable[object]", value)]
        return (name, frozenset(items) if isinstance(value, frozenset) else tuple(items))
    return (name, str(value) if isinstance(value, (float, complex)) else None)


def as_tuple_of(cls: type[T], given: T | Sequence[T] | None, option: str) -> tuple[T, ...]:
    """An option that names arguments: one number or name, several, or None for none.

    Args:
        cls: int or str.
        given: what the user gave.
        option: what messages call the option.

    Raises:
        OptionError: it is anything else.
    """
    if given is None:
        return ()
    found: Any = (given,) if isinstance(given, (int, str)) else given
    is_several = isinstance(found, Iterable)
    items: tuple[Any, ...] = tuple(cast("Iterable[Any]", found)) if is_several else (found,)
    if not all([isinstance(item, cls) for item in items]):
        what = "positions, ints" if cls is int else "names, strings"
        raise OptionError(
            f"{option} is {given!r}",
            loc=loc.current(),
            rule=f"it has {what}: one, or several in a tuple",
        )
    return items


def put_back(found: Found, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Puts static arguments back to where they were in the call."""
    for place, _, value in found:
        if isinstance(place, int):
            args[place] = value
        else:
            kwargs[place] = value


def _keywords(fn: Callable[..., Any]) -> tuple[list[str], bool]:
    """Names of the keyword-only parameters, and whether any other keyword is taken."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return [], True
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return names, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _takes_more(fn: Callable[..., Any]) -> bool:
    """Whether the function takes positional arguments without a name."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
