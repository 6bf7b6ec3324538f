"""Why a compiled function was traced again: what is new in a call, by its arguments' names."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import pytree
from tessera.api.leaves import argument_name, name_of, positional_name
from tessera.api.static import Found
from tessera.errors import OptionError, PytreeError, RetraceError
from tessera.graph.device import Device
from tessera.ir import loc
from tessera.ir.types import TensorType

MAX_CHANGES = 4
"""How many changes of one call are spelled out."""


@dataclass(frozen=True, eq=False)
class Signature:
    """What a trace was made for.

    Attributes:
        types: of the leaves.
        treedef: structure of the arguments that are not static.
        statics: the static arguments.
        settings: the settings that compiled code depends on.
        device: where it was to run.
        loc: the call.
        refs: what the refs among the arguments hold, by their names.
    """

    types: tuple[TensorType, ...]
    treedef: pytree.TreeDef
    statics: Found
    settings: Hashable
    device: Device
    loc: loc.Loc
    refs: tuple[tuple[str, str], ...] = ()


class Traces:
    """The signatures that a function was traced for.

    Args:
        fn: the function.
        limit: how many there may be; None for any number.
    """

    def __init__(self, fn: Callable[..., Any], limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise OptionError(
                f"jit: max_traces is {limit}",
                loc=loc.current(),
                rule="it is a number of traces, at least 1, or None",
            )
        self.fn = fn
        self.limit = limit
        self._found: dict[Hashable, Signature] = {}
        self._lock = threading.Lock()

    def note(
        self,
        leaves: Sequence[Any],
        treedef: pytree.TreeDef,
        statics: Found,
        settings: Hashable,
        device: Device,
        refs: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Remembers what the function is about to be traced for.

        Raises:
            RetraceError: That is one signature more than the limit.
        """
        types = tuple([x.type for x in leaves])
        key = (types, treedef, statics, settings, device, refs)
        with self._lock:
            if key in self._found:
                return
            new = Signature(types, treedef, statics, settings, device, loc.current(), refs)
            if self.limit is not None and len(self._found) >= self.limit:
                raise self._error(new)
            self._found[key] = new

    def _error(self, new: Signature) -> RetraceError:
        count = len(self._found)
        known = list(self._found.values())
        why = "; ".join(self._changes(new, known)) if known else "this is its first call"
        return RetraceError(
            f"jit: {name_of(self.fn)} would be traced for the {_ordinal(count + 1)} time",
            loc=new.loc,
            rule=f"it was compiled with max_traces={self.limit}",
            notes=(f"what is new: {why}", *self._history("traced before:")),
            fix="call it with the same shapes, dtypes and static values, or raise `max_traces`",
        )

    def explain(self) -> str:
        """One line for each trace: where, and what was new."""
        known = list(self._found.values())
        name = name_of(self.fn)
        if not known:
            return f"{name} was not traced yet"
        return "\n".join(self._history(f"{name} was traced {_times(len(known))}"))

    def _history(self, head: str) -> list[str]:
        """A line for each trace below a head."""
        known = list(self._found.values())
        lines = [head]
        for k, signature in enumerate(known):
            why = "; ".join(self._changes(signature, known[:k])) if k else "the first call"
            lines.append(f"  {k + 1}. at {signature.loc}: {why}")
        return lines

    def _changes(self, new: Signature, known: Sequence[Signature]) -> list[str]:
        """What tells a signature from the nearest of those before it."""
        found = [self._differences(new, old) for old in known]
        # Of equally near ones, the latest: a loop whose shapes grow is told step by step.
        nearest = min(range(len(found)), key=lambda k: (len(found[k]), -k))
        changes = found[nearest]
        if len(changes) > MAX_CHANGES:
            more = len(changes) - MAX_CHANGES
            changes = [*changes[:MAX_CHANGES], f"and {more} more"]
        if len(known) > 1:
            changes[-1] += f" (against trace {nearest + 1})"
        return changes

    def _differences(self, new: Signature, old: Signature) -> list[str]:
        found: list[str] = []
        now, before = self._leaves(new), self._leaves(old)
        for name, type in now.items():
            if name not in before:
                found.append(f"{name} is new, {_shown(type)}")
            elif type != before[name]:
                found.append(f"{name} {_change(type, before[name])}")
        found += [f"{name} is missing" for name in before if name not in now]
        found += self._static_differences(new, old)
        held = dict(old.refs)
        for name, type in new.refs:
            if held.pop(name, type) != type:
                found.append(f"ref `{name}` holds {type}, not {dict(old.refs)[name]}")
            elif name not in dict(old.refs):
                found.append(f"argument `{name}` is a ref")
        found += [f"argument `{name}` is no ref" for name in held]
        if new.treedef != old.treedef and not found:
            found.append(_structure_change(self.fn, new.treedef, old.treedef))
        if new.settings != old.settings:
            found.append("the settings that compiled code depends on have changed")
        if new.device != old.device:
            found.append(f"it is called on {new.device}, not on {old.device}")
        return found or ["nothing that has a name"]

    def _leaves(self, signature: Signature) -> dict[str, TensorType]:
        name = argument_name("jit", self.fn)
        end = f" of {name_of(self.fn)}"
        return {
            name(signature.treedef, k).removeprefix("jit: ").removesuffix(end): type
            for k, type in enumerate(signature.types)
        }

    def _static_differences(self, new: Signature, old: Signature) -> list[str]:
        found: list[str] = []
        before = {place: (exact, value) for place, exact, value in old.statics}
        for place, exact, value in new.statics:
            name = positional_name(self.fn, place) if isinstance(place, int) else place
            known = before.pop(place, None)
            if known is None:
                found.append(f"static argument `{name}` is new, {_text(value)}")
            elif known != (exact, value):
                found.append(f"static argument `{name}` {_value_change(value, known[1])}")
        for place in before:
            name = positional_name(self.fn, place) if isinstance(place, int) else place
            found.append(f"static argument `{name}` is missing")
        return found


def _change(new: TensorType, old: TensorType) -> str:
    if new.shape != old.shape and new.dtype is old.dtype:
        return f"has shape {list(new.shape)}, not {list(old.shape)}"
    if new.shape == old.shape and new.dtype is not old.dtype:
        text = f"has dtype {new.dtype.full_name}, not {old.dtype.full_name}"
        return text if new.weak == old.weak else f"{text}, and is {_weakness(new)}"
    if new.shape == old.shape:
        return f"is {_weakness(new)}, not {_weakness(old)}"
    return f"is {_shown(new)}, not {_shown(old)}"


def _shown(type: TensorType) -> str:
    return f"{type.strong()}, {_weakness(type)}" if type.weak else str(type)


def _weakness(type: TensorType) -> str:
    return "a Python number (weakly typed)" if type.weak else "an array"


def _value_change(new: object, old: object) -> str:
    if _text(new) == _text(old) or (type(new) is type(old) and _is_by_identity(new)):
        kind = type(new).__name__
        return f"is another {kind}, and equals none before: pass the same {kind} each time"
    return f"is {_text(new)}, not {_text(old)}"


def _is_by_identity(value: object) -> bool:
    return type(value).__eq__ is object.__eq__


def _text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _structure_change(fn: Callable[..., Any], new: pytree.TreeDef, old: pytree.TreeDef) -> str:
    try:
        pytree.same_structure(new, old, names=("this call", "the one before"), root="")
    except PytreeError as error:
        where, _, what = error.what.partition("; at ")[2].partition(": ")
        found = re.fullmatch(r"\[0\]\[(\d+)\](.*)|\[1\]\['(\w+)'\](.*)", where)
        if found is not None:
            position, rest, keyword, more = found.groups()
            root = keyword or positional_name(fn, int(position))
            return f"argument `{root}{more or rest or ''}`: {what}"
    return "the structure of its arguments has changed"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def compiled_once_more(
    fn: Callable[..., Any], types: Sequence[TensorType], limit: int
) -> RetraceError:
    """The error for a function whose limit of programs is reached."""
    given = ", ".join([str(t.strong()) for t in types])
    return RetraceError(
        f"jit: {name_of(fn)} would be compiled once more, by a call with {given}",
        loc=loc.current(),
        rule=f"it was made with max_specializations={limit}",
        fix="annotate its parameters with `ts.Tensor`, so that sizes share programs, or raise "
        "`max_specializations`",
    )
