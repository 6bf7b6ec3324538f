"""Calls of eager functions whose programs native code runs from then on.

While a function that is marked (`graph/shortcut.py`) runs for the second time with arguments of the
same kinds, the engine says which programs it runs. If that is one, of the arrays that the user gave
in their order, or several that hang together (`sequences.py`), and its results are what they gave,
perhaps in another shape, or views of the arguments, then so is every call with arrays of the same
types and the same other arguments.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from tessera import pytree
from tessera.config import config
from tessera.dtypes import DType
from tessera.graph.array import READERS, Array
from tessera.graph.host_copy import host_copy
from tessera.graph.shortcut import Shortcut
from tessera.graph.steps import followed
from tessera.graph.trace import in_python, is_recording
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.conversions import conversions
from tessera.runtime.dispatch.copies import copy_run
from tessera.runtime.dispatch.native import call_natively, native
from tessera.runtime.dispatch.run import READ, Run, View
from tessera.runtime.dispatch.run_text import VIEWS_ALONE
from tessera.runtime.dispatch.sequences import MOST_KEPT, span, steps_of
from tessera.runtime.dispatch.signatures import NEVER, Signatures, Work, key_of
from tessera.runtime.dispatch.structure import class_of, structure_of
from tessera.runtime.executable import Executable
from tessera.runtime.memory import Output, aligned_empty, pointer

_MOST_NOTED = 4096
"""Signatures of one function that it is tried for."""

LONG = 4096
"""From so many elements on, other threads may run meanwhile."""


MOST_COPIED = 1 << 16
"""Elements up to which it is quicker to copy an array in another order natively than to let Python
look for a way to read it as it is."""


class _State(threading.local):
    runs: list[Run | None] | None = None


STATE = _State()
"""Of a thread: what ran since a function is watched, None for what is no run of a program; None
where no function is."""


class _Notes:
    """What is known of one function: its signatures, and those that were seen."""

    def __init__(self) -> None:
        self.signatures = Signatures(most_copied=MOST_COPIED)
        self.seen: dict[Hashable, bool] = {}


def watch(shortcut: Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the function of a shortcut; lets native code run calls like it where it can."""
    if is_recording():
        function = shortcut.for_sizes or shortcut.function
        return followed(function, shortcut, args, kwargs)
    settings = config.current()
    if settings.debug_nans or settings.debug_infs:
        return shortcut.function(*args, **kwargs)
    if STATE.runs is not None:
        return _called(shortcut, args, kwargs)
    which = _kinds(args, kwargs, shortcut.told_by_numbers)
    notes = shortcut.notes
    if notes is None:
        notes = shortcut.notes = _Notes()
    seen = None if which is None else notes.seen.get(which)
    if which is None or seen or len(notes.seen) >= _MOST_NOTED:
        return _called(shortcut, args, kwargs)
    # What is called once is not looked at.
    notes.seen[which] = seen is False
    if seen is None:
        return _called(shortcut, args, kwargs)
    # Native calls read strided arrays as copies.
    args = _apart([_in_order(x) for x in args])
    with in_python():
        STATE.runs = runs = list[Run | None]()
        READERS.append(_was_read)
        try:
            result = _called(shortcut, args, kwargs)
        finally:
            READERS.remove(_was_read)
            STATE.runs = None
    made = _arrays_of(result)
    known = [run for run in runs if run is not None]
    if made is None or len(known) < len(runs) or any([x is y for x in args for y in made[0]]):
        return result
    told = (*_TEXTS, *_NUMBERS) if shortcut.told_by_numbers else _TEXTS
    fixed = [k for k, x in enumerate(args) if type(x) in told or _is_numbers(x)]
    unread = shortcut.unread
    is_constant = unread is not None and not any([type(x) is Array for x in args[unread:]])
    work = functools.partial(_work, made=made, runs=known, is_constant=is_constant)
    _note(shortcut, notes.signatures, args, kwargs, fixed, work)
    return result


WHOLE: list[Callable[[Shortcut, tuple[Any, ...], dict[str, Any]], Any]] = []
"""Runs a function of several ops as one program, or gives `NotImplemented`, if anything does."""


def _called(shortcut: Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if WHOLE and shortcut.is_fused:
        found = WHOLE[0](shortcut, args, kwargs)
        if found is not NotImplemented:
            return found
    return shortcut.function(*args, **kwargs)


def _in_order(x: Any) -> Any:
    """An argument with its elements in row-major order."""
    if type(x) is Array:
        data = x.storage
        is_known = isinstance(data, np.ndarray) and all(data.strides)
        return Array(x.contiguous, x.type) if is_known and x.contiguous is not data else x
    return type(x)([_in_order(item) for item in x]) if type(x) in _CONTAINERS else x


def _apart(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of which no two share memory, by copies: what is read tells which one it is."""
    known: list[tuple[int, int]] = []

    def apart(x: Any) -> Any:
        if type(x) in _CONTAINERS:
            return type(x)([apart(item) for item in x])
        data = x.storage if type(x) is Array else None
        if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
            return x
        start, end = pointer(data), pointer(data) + data.nbytes
        if any([start < b and a < end for a, b in known]):
            return Array(data.copy(), x.type)
        known.append((start, end))
        return x

    return tuple([apart(x) for x in args])


Made: TypeAlias = "tuple[list[Array], Callable[..., Any] | None]"
"""Arrays, and what makes a result of a tuple of them; None for the only one itself."""


def _arrays_of(result: Any) -> Made | None:
    """The arrays of a result; None for another result."""
    cls = class_of(result)
    if cls is Array:
        return [result], None
    if not isinstance(result, (tuple, list)):
        return None
    found: list[Any] = [*cast("Sequence[Any]", result)]
    if not 0 < len(found) <= w.MOST_OUTPUTS or not all([type(x) is Array for x in found]):
        return None
    make = cls if cls in _CONTAINERS else pytree.maker_of(cls)
    return None if make is None else (found, make)


def _is_made(data: np.ndarray, given: Mapping[int, np.ndarray]) -> bool:
    """Whether an array is one of those that runs gave, by their addresses, perhaps in another
    shape."""
    if not data.flags.c_contiguous or not data.size:
        return False
    found = given.get(pointer(data))
    return found is not None and found.dtype == data.dtype and found.size == data.size


def _view_of(data: np.ndarray, leaves: Sequence[Any]) -> View | None:
    """How an array is a view of one of the arguments; None if it is not."""
    lowest, size = span(data)
    for k, x in enumerate(leaves):
        if type(x) is not Array:
            continue
        base = x.storage if x.prepared is None else x.prepared
        if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
            continue
        start = pointer(base)
        if start <= lowest and lowest + size <= start + base.nbytes:
            return View(k, pointer(data) - start, data.strides)
    return None


def _copied(data: np.ndarray, runs: list[Run]) -> np.ndarray | None:
    """A small view in memory of its own, as one more run gives it; None if there is none."""
    return _copy(data, runs) if data.nbytes <= SMALL and any(data.strides) else None


def _filled(data: np.ndarray, runs: list[Run]) -> np.ndarray | None:
    """What does not depend on any elements, likewise."""
    if data.nbytes > MOST_FILLED:
        return None
    first = data.reshape(-1)[:1].copy()
    if (data.reshape(-1).view(np.uint8).reshape(data.size, -1) == first.view(np.uint8)).all():
        return _copy(np.broadcast_to(first.reshape(()), data.shape), runs)
    return _copy(data, runs) if data.nbytes <= MOST_KEPT else None


def _copy(data: np.ndarray, runs: list[Run]) -> np.ndarray | None:
    found = aligned_empty(data.shape, data.dtype)
    run = copy_run(data, found)
    if run is None:
        return None
    runs.append(run)
    return found


SMALL = 4096
"""Bytes of a view of which a native call gives a copy, which takes less time than to make a view
in Python."""

MOST_FILLED = 1 << 24
"""Bytes of one that holds one value everywhere; of more, it is writing them that takes time."""

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
        elif type(x) in _TEXTS or _is_numbers(x):
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


def _is_numbers(x: object) -> bool:
    """Whether an argument is a tuple of numbers, which says what is computed: a shape, axes."""
    if type(x) is not tuple:
        return False
    items = cast("tuple[object, ...]", x)
    return all([item.__class__ in _NUMBERS or _is_numbers(item) for item in items])


_CONTAINERS = (list, tuple)
_MOST_ITEMS = 16


def _kind(x: Array) -> Hashable:
    """What tells arrays apart; None for those that are not on the host, or are left to Python."""
    data = x.storage
    if type(data) is not np.ndarray:
        return None
    if data.size > MOST_COPIED and not data.flags.c_contiguous:
        return None
    # What is repeated is not run natively, and says nothing of others.
    return data.dtype, data.shape, x.weak, 0 in data.strides


def _note(
    shortcut: Shortcut,
    signatures: Signatures,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fixed: Sequence[int],
    work_of: Callable[[Sequence[Any], Sequence[type | None]], Work | None],
) -> None:
    """Notes what was run.

    Args:
        shortcut: the function's.
        signatures: likewise.
        args: the positional arguments.
        kwargs: those by name.
        fixed: which of the positional ones say what is computed, and are not read.
        work_of: says what it did, for leaves and what is a number among them.
    """
    leaves: list[Any] = []
    parts: list[Hashable] = []
    for k, x in enumerate(args):
        inner = x if type(x) in _CONTAINERS else (x,)
        parts.append((str(class_of(x)), len(inner), repr(x) if k in fixed else None))
        leaves += () if k in fixed else inner
    given = key_of(leaves)
    work = None if given is None else work_of(leaves, given[2])
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
    if call_natively(Shortcut):
        shortcut.known_by(signatures.table)


def _work(
    leaves: Sequence[Any],
    numbers: Sequence[type | None],
    *,
    made: Made,
    runs: Sequence[Run],
    is_constant: bool,
) -> Work | None:
    """What one native call does; None if it is not known.

    Args:
        leaves: the arguments that are read.
        numbers: per leaf the class of a number, or None.
        made: what the function gave.
        runs: what ran.
        is_constant: whether no argument has to do with the result.
    """
    arrays, tree = made
    runs = [] if is_constant else [*runs]
    given = {pointer(x): x for run in runs for x in run.outputs if x.size}
    outputs: list[Output] = []
    results: list[np.ndarray | None] = []
    views: list[View | None] = []
    for x in arrays:
        data, view = x.storage, None
        if type(data) is not np.ndarray or not data.size:
            return None
        outputs.append((data.shape, data.dtype, data.nbytes))
        if is_constant:
            data = _filled(data, runs)
        elif (view := _view_of(data, leaves)) is not None:
            data = None
        elif not _is_made(data, given):
            data = _copied(data, runs)
        if data is None and view is None:
            return None
        results.append(data)
        views.append(view)
    addresses = [pointer(data) for data in results if data is not None]
    program = _program(leaves, numbers, results, runs)
    if program is None or len(set(addresses)) < len(addresses):
        return None
    size = sum([x.size for run in runs for x in (*run.inputs, *run.outputs)])
    return Work(
        outputs=outputs,
        types=[x.type if x.weak else None for x in arrays],
        tree=tree,
        release=1 if size >= LONG else NEVER,
        views=views,
        **program,
    )


def _program(
    leaves: Sequence[Any],
    numbers: Sequence[type | None],
    results: Sequence[np.ndarray | None],
    runs: Sequence[Run],
) -> dict[str, Any] | None:
    """What of some work says what is run; None if that is not known."""
    loaded = native()
    if loaded is None:
        return None
    if not runs:
        nothing = {"captured": (), "scratch": 0, "converted": [0] * len(leaves), "keep": None}
        return None if any(numbers) else {"main": loaded.addresses[VIEWS_ALONE], **nothing}
    run = runs[0]
    found = run.executable
    is_one = len(runs) == 1 and len(run.outputs) == len(results) == 1
    if is_one and isinstance(found, Executable):
        converted = _converted(leaves, numbers, run)
        if converted is not None:
            return None if found.main is None else {
                "main": found.main,
                "captured": (),
                "scratch": found.scratch(run.dims),
                "converted": converted,
                "keep": found,
                "tail": run.dims,
            }
    steps = steps_of(leaves, numbers, results, runs)
    converted = None if steps is None else conversions(numbers, steps.read)
    if steps is None or converted is None:
        return None
    return {
        "main": steps.main,
        "captured": [steps.captured],
        "scratch": steps.scratch,
        "converted": converted,
        "keep": steps.keep,
    }


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


def contiguous(x: Array) -> Any:
    """The elements of an array in row-major order. A copy that it takes is a run, where a function
    is watched."""
    data: Any = x.storage
    return _copying(data, lambda: x.contiguous)


def whole(data: np.ndarray) -> np.ndarray:
    """A copy in row-major order, which is a run where a function is watched."""
    return _copying(data, lambda: host_copy(data))


def _copying(data: object, copy: Callable[[], Any]) -> Any:
    runs = STATE.runs
    count = 0 if runs is None else len(runs)
    found = copy()
    # A compiled copy has said so itself.
    is_noted = runs is None or len(runs) > count
    if found is not data and type(data) is np.ndarray and not is_noted:
        noted(copy_run(data, found))
    return found


def _was_read(data: Any) -> None:
    if STATE.runs is not None:
        noted(Run(READ, (data,), (), ()) if type(data) is np.ndarray else None)


def noted(run: Run | None) -> None:
    """Says what ran, where a function is watched."""
    runs = STATE.runs
    if runs is not None:
        runs.append(run)
