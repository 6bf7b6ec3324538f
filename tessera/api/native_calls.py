"""What native code is told of a compiled function, so that it runs calls like earlier ones.

That is done at the second call of a signature: functions that are called once need none of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tessera import pytree
from tessera.api.native_sizes import NativeSizes
from tessera.api.owned import donated_leaves, marker
from tessera.api.signature import Arguments, Entry
from tessera.api.static import StaticArguments
from tessera.config import config
from tessera.graph.state import Cell
from tessera.runtime.dispatch.native import Table
from tessera.runtime.dispatch.signatures import Key, Known, Signatures, Work, key_of
from tessera.runtime.dispatch.structure import (
    Structure,
    by_flattening,
    keeps_leaves,
    leaves_alone,
    structure_of,
)
from tessera.runtime.executable import Executable

_MOST_NOTED = 16
"""For so many kinds of calls of a signature (containers, numbers, settings of a `with` block) it is
tried."""


class NativeCalls:
    """The native calls of one function.

    Args:
        statics: its static arguments.
        donated: its donated ones.
        name: what messages call it.

    Attributes:
        table: what native code looks at.
    """

    def __init__(
        self, statics: StaticArguments | None, donated: StaticArguments | None, name: str
    ) -> None:
        self._statics = statics
        self._donated = donated
        self._mark = None if donated is None else marker(name)
        self._signatures = Signatures()
        self.table: Table = self._signatures.table

    def note(
        self,
        entry: Entry,
        call: Arguments | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        inputs: Sequence[Any],
    ) -> None:
        """Lets native code run calls like this one.

        Args:
            entry: what ran.
            call: the arguments, if they were taken apart.
            args: what the user gave.
            kwargs: what the user gave.
            leaves: the arrays.
            inputs: their elements.
        """
        if not isinstance(entry.executable, Executable):
            if entry.state is None and self._donated is None:
                self._note_starter(entry, call, args, kwargs, leaves, inputs)
        elif entry.noted < _MOST_NOTED:
            entry.noted += 1
            self._note_program(entry, call, args, kwargs)

    def _note_program(
        self, entry: Entry, call: Arguments | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        tree: Any = (args, kwargs)
        if self._statics is not None:
            tree = self._statics.split(args, kwargs)[0]
        given = key_of(found := pytree.leaves(tree))
        donated = [] if call is None else donated_leaves(self._donated, call)
        work = None if given is None else entry.work(given[2], donated, self._mark)
        known = None if work is None else self._find(call, args, kwargs)
        if given is None or work is None or known is None or known.has(tuple(given[0])):
            return
        refs = [isinstance(x, Cell) for x in found]
        sizes = entry.sizes
        if sizes is None or not self._note_sizes(entry, sizes, known, given, work, refs):
            self._signatures.add(known, given[0], given[1], work)

    def _note_sizes(
        self,
        entry: Entry,
        sizes: NativeSizes,
        known: Known,
        given: Key,
        work: Work,
        refs: Sequence[bool],
    ) -> bool:
        """Lets native code run calls of other sizes like this one. Says whether that is new."""
        if sizes.tried >= _MOST_NOTED:
            return False
        sizes.tried += 1
        plan = sizes.plan(given[0], given[2], work, entry.executable, refs)
        if plan is None or plan.words is None:
            return False
        return self._signatures.add_sized(known, (sizes, plan.like), plan.words, (plan, given[1]))

    def _note_starter(
        self,
        entry: Entry,
        call: Arguments | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        inputs: Sequence[Any],
    ) -> None:
        """Programs of a device start by a function of their own."""
        if config.override.get() is not None or self._statics is not None:
            return
        if not entry.is_settled:
            entry.settle(leaves, inputs)
        known = None if entry.start is None else self._find(call, args, kwargs)
        if known is not None and entry.start is not None:
            tree = functools.partial(pytree.unflatten, entry.treedef)
            known.start_by(entry.start, None if entry.is_leaf else tree)

    def _find(
        self, call: Arguments | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Known | None:
        """The structure of a call, as native code knows it."""
        which = (call.whole, call.statics) if call and call.structure else len(args)
        if self._signatures.is_refused(which):
            return None
        known = self._signatures.find(which)
        return known or self._signatures.note(which, self._structure(call, args, kwargs))

    def _structure(
        self, call: Arguments | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Structure | None:
        if call is None or not call.structure:
            return leaves_alone(len(args))
        if self._statics is not None or self._donated is not None:
            positions = () if self._statics is None else self._statics.positions
            names = () if self._statics is None else self._statics.names
            found = structure_of(args, kwargs, positions, names)
            fits = found is not None and (self._donated is None or keeps_leaves(found))
            return found if fits else None
        return structure_of(args, kwargs, (), ()) or by_flattening(args, kwargs)
