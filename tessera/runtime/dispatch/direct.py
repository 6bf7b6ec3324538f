"""Calls of eager functions whose programs native code runs from then on.

While a function that is marked (`graph/shortcut.py`) runs for the second time with arguments of the
same kinds, the engine says which programs it runs. If that is one, of the arrays that the user gave
in their order, or several that hang together (`sequences.py`), and the result is what the last one
gave, perhaps in another shape, then so is every call with arrays of the same types and the same
other arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tessera.config import config
from tessera.dtypes import DType
from tessera.graph.array import Array
from tessera.graph.shortcut import Shortcut
from tessera.graph.trace import in_python, is_recording
from tessera.runtime.dispatch.native import START_CALL, native
from tessera.runtime.dispatch.run import Run
from tessera.runtime.dispatch.sequences import steps_of
from tessera.runtime.dispatch.signatures import NEVER, Signatures, Work, conversions, key_of
from tessera.runtime.dispatch.structure import class_of, structure_of
from tessera.runtime.executable import Executable
from tessera.runtime.memory import Output, pointer

_MOST_NOTED = 4096
"""Signatures of one function that it is tried for."""

LONG = 4096
"""From so many elements on, other threads may run meanwhile."""


class _State(threading.local):
    runs: list[Run | None] | None = None


STATE = _State()
"""Of a thread: what ran since a function is watched, None for what is no run of a program; None
where no function is."""


class _Notes:
    """What is known of one function: its signatures, and those that were seen."""

    def __init__(self) -> None:
        self.signatures = Signatures()
        self.seen: dict[Hashable, bool] = {}


def watch(shortcut: Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the function of a shortcut; lets native code run calls like it where it can."""
    function = shortcut.function
    settings = config.current()
    if is_recording() or settings.debug_nans or settings.debug_infs or STATE.runs is not None:
        return function(*args, **kwargs)
    which = _kinds(args, kwargs, shortcut.told_by_numbers)
    notes = shortcut.notes
    if notes is None:
        notes = shortcut.notes = _Notes()
    seen = None if which is None else notes.seen.get(which)
    if which is None or seen or len(notes.seen) >= _MOST_NOTED:
        return function(*args, **kwargs)
    # What is called once is not looked at.
    notes.seen[which] = seen is False
    if seen is None:
        return function(*args, **kwargs)
    with in_python():
        STATE.runs = runs = list[Run | None]()
        try:
            result = function(*args, **kwargs)
        finally:
            STATE.runs = None
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs):
        return result
    told = (*_TEXTS, *_NUMBERS) if shortcut.told_by_numbers else _TEXTS
    fixed = [k for k, x in enumerate(args) if type(x) in told]
    _note(shortcut, notes.signatures, args, kwargs, fixed, result, known)
    return result


_NUMBERS = (int, float, bool)
_TEXTS = (str, DType)


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any], told_by_numbers: bool) -> Hashable:
    """What tells calls apart; None for those that native code does not run."""
    # Of settings that are gone another object may have the number: then it is not tried for them.
    found: list[Hashable] = [id(config.override.get())]
    for x in args:
        if type(x) is Array:
            if (kind := _kind(x)) is None:
                return None
            found.append(kind)
        elif type(x) in _NUMBERS:
            found.append((class_of(x), x) if told_by_numbers else class_of(x))
        elif type(x) in _TEXTS:
            found.append(x)
        elif type(x) in _CONTAINERS and 0 < len(x) <= _MOST_ITEMS:
            kinds = [_kind(item) if type(item) is Array else None for item in x]
            if None in kinds:
                return None
            found.append((class_of(x), *kinds))
        else:
            return None
    for name, x in kwargs.items():
        found.append((name, class_of(x), x))
    try:
        hash(key := tuple(found))
    except TypeError:
        return None
    return key


_CONTAINERS = (list, tuple)
_MOST_ITEMS = 16


def _kind(x: Array) -> Hashable:
    """What tells arrays apart; None for those that are not on the host."""
    data = x.storage
    if type(data) is not np.ndarray:
        return None
    # One number repeated is not run natively, and says nothing of others.
    return data.dtype, data.shape, x.weak, not any(data.strides)


def _note(
    shortcut: Shortcut,
    signatures: Signatures,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: Sequence[int],
    result: Any,
    runs: Sequence[Run],
) -> None:
    """Notes what was run.

    Args:
        shortcut: the function's.
        signatures: likewise.
        args: the positional arguments.
        kwargs: those by name.
        fixed: which of the positional ones say what is computed, and are not read.
        result: what the function gave.
        runs: what ran.
    """
    leaves: list[Any] = []
    parts: list[Hashable] = []
    for k, x in enumerate(args):
        inner = x if type(x) in _CONTAINERS else (x,)
        parts.append((str(class_of(x)), len(inner), repr(x) if k in fixed else None))
        leaves += () if k in fixed else inner
    given = key_of(leaves)
    work = None if given is None else _work(leaves, given[2], result, runs)
    if given is None or work is None:
        return
    which = (*parts, *sorted([(n, str(class_of(x)), repr(x)) for n, x in kwargs.items()]))
    if signatures.is_refused(which):
        return
    known = signatures.find(which)
    known = known or signatures.note(which, structure_of(args, kwargs, fixed, tuple(kwargs)))
    if known is None or known.has(tuple(given[0])):
        return
    signatures.add(known, given[0], given[1], work)
    if shortcut.start is None:
        shortcut.start = signatures.start(START_CALL) if native() is not None else None


def _work(
    leaves: Sequence[Any], numbers: Sequence[type | None], result: Any, runs: Sequence[Run]
) -> Work | None:
    """What one native call does; None if it is not known."""
    outputs = [_output(result, run) for run in runs]
    output = next((found for found in reversed(outputs) if found is not None), None)
    if output is None:
        return None
    size = sum([x.size for run in runs for x in (*run.inputs, *run.outputs)])
    release, types = 1 if size >= LONG else NEVER, [result.type if result.weak else None]
    run = runs[0]
    is_one = len(runs) == 1 and len(run.outputs) == 1
    converted = _converted(leaves, numbers, run) if is_one else None
    if converted is not None:
        if not isinstance(run.executable, Executable) or run.executable.main is None:
            return None
        return Work(
            main=run.executable.main,
            captured=(),
            outputs=[output],
            types=types,
            tree=None,
            scratch=run.executable.scratch(run.dims),
            converted=converted,
            release=release,
            keep=run.executable,
            tail=run.dims,
        )
    steps = steps_of(leaves, numbers, result.storage, runs)
    converted = None if steps is None else conversions(numbers, steps.read)
    if steps is None or converted is None:
        return None
    return Work(
        main=steps.main,
        captured=[steps.captured],
        outputs=[output],
        types=types,
        tree=None,
        scratch=steps.scratch,
        converted=converted,
        release=release,
        keep=steps.keep,
    )


def _output(result: Any, run: Run) -> Output | None:
    """The result as native code makes it; None if the run gave something else."""
    if type(result) is not Array:
        return None
    found = result.storage
    if type(found) is not np.ndarray or not found.flags.c_contiguous or not found.size:
        return None
    made = [x for x in run.outputs if pointer(x) == pointer(found)]
    same = [x for x in made if x.dtype == found.dtype and x.size == found.size]
    return (found.shape, found.dtype, found.nbytes) if same else None


def _converted(
    args: Sequence[Any], numbers: Sequence[type | None], run: Run
) -> list[int] | None:
    """What is done with the arguments that are numbers; None if the run did not read all arguments
    in their order."""
    if len(args) != len(run.inputs) or sum([kind is not None for kind in numbers]) > 1:
        return None
    for x, kind, read in zip(args, numbers, run.inputs, strict=True):
        if kind is not None:
            # One element, or one that is repeated.
            if not read.size or any(read.strides) or read.flat[0] != read.dtype.type(x):
                return None
        elif pointer(read) != pointer(x.contiguous) or read.nbytes > x.contiguous.nbytes:
            return None
    return conversions(numbers, [read.dtype for read in run.inputs])


def noted(run: Run | None) -> None:
    """Says what ran, where a function is watched."""
    runs = STATE.runs
    if runs is not None:
        runs.append(run)
