"""Several programs run one after the other as one.

A function like `ts.mean` is a sum and a division. What its runs read and wrote says how they hang
together: a run reads an argument, what an earlier one made, or a number that no argument has to do
with. The results between lie in the scratch memory of the call.

Invariants:

1. All that is made of arguments is seen: a call is watched `in_python`, what is no run of a program
   is None, and elements that something else looks at are noted as read. What is left was made from
   the types of arguments, and is always so.
2. Memory of runs stays alive while they are looked at: an address is one array.
3. Which argument it is that is read is sure: arguments share no memory, and beside an argument that
   is a number nothing else is said to be the same each time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.copies import Copier
from tessera.runtime.dispatch.native import native
from tessera.runtime.dispatch.run import READ, Run
from tessera.runtime.dispatch.sequence_text import SEQUENCE
from tessera.runtime.executable import Executable
from tessera.runtime.memory import pointer

MOST_STEPS = 4096
"""Runs of a sequence. What takes more is not looked at."""

MOST_BETWEEN = 1 << 26
"""Bytes between. Where they are more, a call has so much to do that the rest does not matter."""

MOST_KEPT = 1 << 16
"""Bytes of an array that follows from the types of arguments, and is kept."""

FOLDED = 4096
"""Bytes of a result that is kept rather than made anew, where no argument has to do with it."""

_ALIGNMENT = 64

# The index of a word that is known beforehand.
_KNOWN = -1


@dataclass(frozen=True, slots=True)
class Steps:
    """What a plan needs of a sequence.

    Attributes:
        main: the address of what runs it.
        captured: what comes before the leaves.
        scratch: the bytes of memory that it needs.
        read: per leaf the dtype that it is read as.
        keep: what must stay alive with it.
    """

    main: int
    captured: np.ndarray
    scratch: int
    read: list[np.dtype[Any]]
    keep: object


@dataclass(frozen=True, slots=True)
class _Place:
    """Where bytes lie in a call: an offset from one of its words."""

    start: int
    size: int
    word: int
    offset: int = 0

    def holds(self, start: int, size: int) -> bool:
        return self.start <= start and start + size <= self.start + self.size


_start = attrgetter("start")


def steps_of(
    args: Sequence[Any],
    numbers: Sequence[type | None],
    results: Sequence[np.ndarray | None],
    runs: Sequence[Run],
) -> Steps | None:
    """How to do again what runs did, for arguments like these; None where that is not known.

    Args:
        args: arrays and numbers.
        numbers: per argument the class of a number, or None.
        results: what the whole gives, each a result of one of the runs; None for views.
        runs: what ran, in this order.
    """
    loaded = native()
    if loaded is None or len(runs) > MOST_STEPS:
        return None
    writer = _Writer(args, numbers, results)
    if not writer.is_plain or not all(map(writer.add, runs)) or not writer.is_whole:
        return None
    found = writer.steps(loaded.addresses[SEQUENCE])
    return found if found.scratch <= MOST_BETWEEN else None


def span(x: np.ndarray) -> tuple[int, int]:
    """The lowest address of an array's elements, and how many bytes from there on have them all."""
    steps = [(size - 1) * step for size, step in zip(x.shape, x.strides, strict=True)]
    lowest = pointer(x) + sum([step for step in steps if step < 0])
    return lowest, x.itemsize + sum(map(abs, steps))


class _Writer:
    """Writes down runs, one by one."""

    def __init__(
        self,
        args: Sequence[Any],
        numbers: Sequence[type | None],
        results: Sequence[np.ndarray | None],
    ) -> None:
        # The words of a call: what is captured, the leaves, the results, scratch memory.
        self._scratch = 1 + len(args) + len(results)
        self._missing: dict[int, int] = {}
        for k, x in enumerate(results):
            if x is not None:
                self._missing[pointer(x)] = 1 + len(args) + k
        # In the order of their addresses.
        self._places: list[_Place] = []
        # Where elements of arguments are that a call reads as copies: what is there is no constant.
        self._elsewhere: list[tuple[int, int]] = []
        self._numbers: dict[int, Any] = {}
        self._read: list[np.dtype[Any] | None] = []
        for k, (x, kind) in enumerate(zip(args, numbers, strict=True)):
            if kind is not None:
                self._numbers[k] = x
                self._read.append(None)
                continue
            data = x.contiguous
            if data is not x.storage:
                self._elsewhere.append(span(x.storage))
            insort(self._places, _Place(pointer(data), data.nbytes, 1 + k), key=_start)
            self._read.append(data.dtype)
        self._steps: list[tuple[int, list[tuple[int, int]]]] = []
        # What lies between, as if each array had a place of its own: where these begin, and end.
        self._starts: list[int] = []
        self._between = 0
        self._most = 0
        self._keep: list[object] = []

    @property
    def is_plain(self) -> bool:
        """Whether what is read tells which argument it is."""
        places = self._places
        apart = [a.start + a.size <= b.start for a, b in pairwise(places)]
        values = list(self._numbers.values())
        return all(apart) and all([p.size for p in places]) and len(set(values)) == len(values)

    @property
    def is_whole(self) -> bool:
        """Whether the results were made, and all numbers were read."""
        all_read = all([dtype is not None for dtype in self._read])  # a dtype may equal None
        return not self._missing and all_read

    def add(self, run: Run) -> bool:
        """Adds a run; False if it is not known what it reads."""
        executable = run.executable
        if executable is READ:
            place = self._placed(run.inputs[0])
            return place[0] == _KNOWN if place is not None else not self._differs(run.inputs[0])
        if not isinstance(executable, (Executable, Copier)) or executable.main is None:
            return False
        if isinstance(executable, Copier) and self._placed(run.outputs[0]) is not None:
            return True  # an argument's own, which a call makes before anything else
        inputs = [self._found(x) for x in run.inputs]
        known = [word for word in inputs if word is not None]
        if len(known) < len(inputs):
            return False
        is_known = all([word == _KNOWN for word, _ in known]) and not self._numbers
        outputs = [self._made(x, is_known) for x in run.outputs]
        self._keep.append(run.executable)
        if all([word == _KNOWN for word, _ in outputs]):
            self._keep.append(run.outputs)
            return True
        scratch = executable.scratch(run.dims)
        self._most = max(self._most, scratch)
        # Behind what lies between, of which it is not known yet how much that is.
        memory = (self._scratch, -1) if scratch else (_KNOWN, 0)
        words = [*known, *outputs, memory, *[(_KNOWN, size) for size in run.dims]]
        self._steps.append((executable.main, words))
        return len(words) <= w.MOST_STEP_WORDS

    def _found(self, x: np.ndarray) -> tuple[int, int] | None:
        found = self._placed(x)
        if found is not None or self._differs(x):
            return found
        if self._numbers and x.size:
            return self._number(x) if x.size == 1 or not any(x.strides) else None
        if x.nbytes > MOST_KEPT and any(x.strides):
            return None
        self._keep.append(x)
        return _KNOWN, pointer(x)

    def _differs(self, x: np.ndarray) -> bool:
        """Whether an array is part of an argument as it is, and not of the copy of it."""
        lowest, size = span(x)
        return any([lowest < at + room and at < lowest + size for at, room in self._elsewhere])

    def _placed(self, x: np.ndarray) -> tuple[int, int] | None:
        """Which of what is known so far holds all elements of an array."""
        if not x.size:
            return None
        lowest, size = span(x)
        at = bisect_right(self._places, lowest, key=_start) - 1
        if at < 0 or not self._places[at].holds(lowest, size):
            return None
        place = self._places[at]
        return place.word, place.offset + pointer(x) - place.start

    def _number(self, x: np.ndarray) -> tuple[int, int] | None:
        """Which of the numbers an element is. Each is used once, and beside numbers nothing is said
        to be the same each time."""
        for k, value in self._numbers.items():
            if self._read[k] is None and x.flat[0] == x.dtype.type(value):
                self._read[k] = x.dtype
                return 1 + k, 0
        return None

    def _made(self, x: np.ndarray, is_known: bool) -> tuple[int, int]:
        start = pointer(x)
        if start in self._missing:
            found = self._missing.pop(start), 0
        elif is_known and x.nbytes <= FOLDED:
            found = _KNOWN, start
        else:
            found = self._scratch, self._between
            self._starts.append(self._between)
            self._between += -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
        if x.nbytes:
            insort(self._places, _Place(start, x.nbytes, *found), key=_start)
        return found

    def steps(self, main: int) -> Steps:
        """What was written."""
        moved, between = self._packed()
        words = [len(self._steps)]
        for program, its in self._steps:
            words += (program, len(its))
            for word, offset in its:
                if word == self._scratch:
                    offset = between if offset < 0 else offset + moved[self._array_at(offset)]
                words += (word, offset)
        captured = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
        read = [dtype for dtype in self._read if dtype is not None]
        return Steps(main, captured, between + self._most, read, self._keep)

    def _array_at(self, offset: int) -> int:
        """Which of the arrays between has a place."""
        return bisect_right(self._starts, offset) - 1

    def _packed(self) -> tuple[list[int], int]:
        """How far each array between is moved so that they share memory, and how much they need.

        An array has its memory from the step that makes it to the last one that reads it. Then the
        next array of that size takes it.
        """
        used = [
            {self._array_at(at) for word, at in its if word == self._scratch and at >= 0}
            for _, its in self._steps
        ]
        last = {k: step for step, arrays in enumerate(used) for k in arrays}
        sizes = [b - a for a, b in pairwise([*self._starts, self._between])]
        free: dict[int, list[int]] = {}
        places: dict[int, int] = {}
        moved = [0] * len(self._starts)
        most = 0
        for step, arrays in enumerate(used):
            for k in sorted(arrays - places.keys()):
                size, known = sizes[k], free.get(sizes[k])
                places[k] = known.pop() if known else most
                moved[k] = places[k] - self._starts[k]
                most = max(most, places[k] + size)
            for k in arrays:
                if last[k] == step:
                    free.setdefault(sizes[k], []).append(places[k])
        return moved, most
