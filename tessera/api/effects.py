"""`ts.effects`: what functions do besides computing their results.

    >>> import tessera as ts
    >>> @ts.function(effects=["io"])
    ... def f(x):
    ...     ts.debug.print("x is {}", x)
    ...     return x + 1
    >>> f
    function(f), effects=[io], 0 compiled
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tessera.api.collectives import named_axes
from tessera.api.leaves import check_callable, name_of
from tessera.api.shapes import traced_for
from tessera.api.traced import Traced
from tessera.errors import EffectError, EffectWarning, OptionError, api_boundary
from tessera.graph.effects import Occurrence, suspended, watched
from tessera.graph.state import next_number
from tessera.ir import loc
from tessera.ir.effects import Effects, covers, join, parse, show, user_name

__all__ = ["EffectTable", "of", "suspend"]


def parse_effects(what: str, names: object) -> Effects:
    """Effects as users write them: a list of names.

    Args:
        what: what messages call the option.
        names: what the user gave.

    Raises:
        OptionError: one is no effect.
    """
    given: list[Any] = list(names) if isinstance(names, (list, tuple, set, frozenset)) else [names]  # pyright: ignore[reportUnknownArgumentType]
    found: list[Effects] = []
    for name in given:
        try:
            found.append(parse(name))
        except (ValueError, TypeError):
            raise OptionError(
                f"{what} has {name!r}, which is no effect",
                loc=loc.current(),
                rule='effects are "random", "io", "memory(NAME)" and "collective(AXIS)"; "memory" '
                'and "collective" are those of any name',
            ) from None
    return join(found)


class Declared:
    """The effects that a function says it has.

    Args:
        what: the name of the function, with that of the decorator before it.
        names: what the user wrote.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.what = what
        self.effects = parse_effects(f"{what}: effects", names)
        self._is_new = True

    def check(self, traced: Traced) -> None:
        """Checks what was traced against what is declared.

        Raises:
            EffectError: the function has another effect.
        """
        found = traced.effects
        for first in found.values():
            self._check(first)
        if self._is_new:
            self._is_new = False
            self._lint(frozenset(found))

    def _check(self, first: Occurrence) -> None:
        effect = first.effect
        if covers(self.effects, effect):
            return
        name = user_name(effect)
        wanted = ", ".join([f'"{n}"' for n in show(self.effects | frozenset([effect]))])
        known = ", ".join([f"`{n}`" for n in show(self.effects)]) or "none"
        raise EffectError(
            f"{self.what} has the effect `{name}`, which it does not declare: that of {first.what}",
            loc=first.loc,
            rule=f"a function that declares effects has no others; this one declares {known}",
            fix=f"declare it, `effects=[{wanted}]`, or put the line under "
            f'`with ts.effects.suspend("{name}"):`',
        )

    def watching(self) -> AbstractContextManager[None]:
        """In this block the function runs as Python: its effects are checked before they happen."""
        return watched(self._check, [name for name, _ in named_axes()], next_number())

    def _lint(self, found: Effects) -> None:
        """Warns of what is declared and does not happen."""
        used = {user_name(e) for e in self.effects if any(covers(frozenset([e]), f) for f in found)}
        idle = [name for name in show(self.effects) if name not in used]
        place = loc.current().frames
        if idle and place:
            listed = " and ".join([f"`{name}`" for name in idle])
            effect = "effect" if len(idle) == 1 else "effects"
            warnings.warn_explicit(
                f"{self.what} declares the {effect} {listed}, and does not have "
                f"{'it' if len(idle) == 1 else 'them'}",
                EffectWarning,
                place[0].filename,
                place[0].line,
            )


@api_boundary
def suspend(*names: str) -> AbstractContextManager[None]:
    """Permits effects within a block, without their being effects of the function around it.

    What has the effect still happens, in its order. It is not in the signature of the function that
    is traced, which need not declare it, and a scope that forbids the effect lets it pass. That is
    for what is beside the point of a function, such as lines of a log. The mark is on the
    operations that are recorded within the block, also by functions that are called there, and
    transforms keep it.

    Args:
        *names: `"random"`, `"io"`, `"memory"`, `"collective"`, or a single object or axis:
            `"memory(cache)"`, `"collective(i)"`.

    Raises:
        OptionError: a name is no effect.

    Example:
        >>> import tessera as ts
        >>> @ts.function(effects=[])
        ... def f(x):
        ...     with ts.effects.suspend("io"):
        ...         ts.debug.print("x is {}", x)
        ...     return x + 1
        >>> float(f(2.0))
        x is 2.0
        3.0
    """
    return suspended(parse_effects("effects.suspend", names))


@dataclass(frozen=True)
class EffectTable:
    """What `ts.effects.of` returns: the effects of a function and where each comes in, printable.

    Attributes:
        name: the function.
        rows: for each effect its name, what has it, and the user's line, `file:line`.
    """

    name: str
    rows: tuple[tuple[str, str, str], ...]

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of the effects, as `effects=` takes them."""
        return tuple([row[0] for row in self.rows])

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.name} has no effects"
        wide = [max([len(row[k]) for row in self.rows]) for k in range(2)]
        lines = [f"{e:{wide[0]}}  {what:{wide[1]}}  {line}" for e, what, line in self.rows]
        return "\n".join([f"effects of {self.name}", *lines])

    __repr__ = __str__


@api_boundary
def of(fn: Callable[..., Any]) -> Callable[..., EffectTable]:
    """A function that returns the effects of `fn` for given arguments, and where each comes in.

    Args:
        fn: a function of arrays. It is traced, and not run.

    Example:
        >>> import tessera as ts
        >>> def f(key, x):
        ...     return x + ts.random.normal(key, x.shape)
        >>> ts.effects.of(f)(ts.random.key(0), ts.ones(3)).effects
        ('random',)
    """
    check_callable("effects.of", fn, "pass arguments to what it returns: `ts.effects.of(f)(x)`")

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> EffectTable:
        traced = traced_for("effects.of", fn, args, kwargs)
        rows: dict[str, tuple[str, str, str]] = {}
        for effect, first in traced.effects.items():
            name = user_name(effect)
            rows.setdefault(name, (name, first.what, str(first.loc)))
        return EffectTable(name_of(fn), tuple(rows.values()))

    return run
