"""Calling a program by native code alone, for the usual case.

What is called, a compiled function or an operation, has a *table*. In it stand *structures*: what
containers the arguments are, written as ops that native code follows to find the leaves. The
leaves' dtypes and shapes, and the settings in force, make a *key*; behind a hash table of the
structure there is a *plan* for each key that was met: the program, its outputs and what else one
call takes. The plan for a call is run without any Python: results are made natively too. Where any
of it does not fit, and while anything is traced, nothing is done: the call goes to Python, which
does what is right and may note a plan for the next time.

Programs of devices start by a function of their own (`Starter`), which the structure names.

There are two ways in. A class that is `Called` gets native code into the slot that calls its
instances, so that no Python frame is run; `Signatures.start` is a builtin function of positional
arguments.

Invariants:

1. Native code looks at a table with the interpreter's lock held, and holds a reference to whatever
   it uses when Python may run or the lock is released. Tables only grow; one that is to be emptied
   is replaced.
2. A key has the addresses of dtypes, classes and settings that its plan keeps alive, so equal
   addresses are equal objects.
3. Where the layout of objects is not known, there is no native code, and everything works.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from tessera.config import config
from tessera.graph.array import Array
from tessera.graph.state import Cell
from tessera.ir.types import TensorType
from tessera.runtime.call import make_builtin
from tessera.runtime.dispatch import exchange
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.leaf_text import SMALL_COPY
from tessera.runtime.dispatch.native import MOST_STRUCTURES, START, Plan, Table, native
from tessera.runtime.dispatch.run import View
from tessera.runtime.dispatch.structure import Structure, class_of
from tessera.runtime.forks import hold
from tessera.runtime.memory import POOLED_BYTES, Output

NEVER = 1 << 62
"""As `Work.release`: the interpreter's lock is kept."""

ANY_SIZE = (1 << 63) - 1
"""As `Signatures.most_copied`: there is no limit."""

NOTHING = type(None)
"""As `Work.tree`: the result is None."""

_FIRST_PLACES = 8


class DictOf:
    """The result is a dict of arrays.

    Args:
        keys: in the order of the arrays.
        template: a dict with these keys in its own order.
    """

    __slots__ = ("keys", "template")

    def __init__(self, keys: tuple[object, ...], template: dict[Any, None]) -> None:
        self.keys = keys
        self.template = template


class HeldRef:
    """A ref of a call.

    Args:
        cell: the ref, if it is one that the function finds outside; or its position among those in
            the arguments.
        count: how many arrays it holds.
        is_written: whether the last results of the program are its new ones.
        user: the name of the function, for messages about others that use it meanwhile.
    """

    __slots__ = ("cell", "count", "is_written", "user")

    def __init__(
        self, cell: weakref.ref[Cell] | int, count: int, is_written: bool, user: str
    ) -> None:
        self.cell = cell
        self.count = count
        self.is_written = is_written
        self.user = user


class Work:
    """What one native run does.

    Args:
        main: the address of the program.
        captured: arrays that come before the leaves.
        outputs: shape, dtype and bytes of each; those of lines have the shape of the first leaf.
        types: of the arrays that are wanted; None where it follows from the elements.
        tree: makes the result of a tuple of arrays; `tuple` for that itself, None for the only one,
            `NOTHING` for None, or what dict of them it is.
        scratch: bytes of scratch memory.
        converted: per leaf, what is done with a number.
        release: the elements of a line from which on the interpreter's lock is released; for other
            work 1 or `NEVER`.
        keep: what must stay alive with it.
        tail: the words behind the scratch memory: values of run-time dims.
        refs: whose arrays come behind the leaves.
        results: how many of the outputs are results; the others are for refs.
        on: for each output None, or whose memory it takes, by position among the leaves and then
            the arrays of refs.
        donated: which leaves are.
        mark: takes these leaves, and marks them; None where there are none.
        returned: the refs that stand behind the arrays of the result, by position in `refs`.
        views: for each output None, or the leaf that it is a view of.
    """

    __slots__ = (
        "captured",
        "converted",
        "donated",
        "keep",
        "main",
        "mark",
        "on",
        "outputs",
        "refs",
        "release",
        "results",
        "returned",
        "scratch",
        "tail",
        "tree",
        "types",
        "views",
    )

    def __init__(
        self,
        main: int,
        captured: Sequence[np.ndarray],
        outputs: Sequence[Output],
        types: Sequence[TensorType | None],
        tree: Callable[..., Any] | DictOf | None,
        scratch: int,
        converted: Sequence[int],
        release: int,
        keep: object,
        tail: Sequence[int] = (),
        refs: Sequence[HeldRef] = (),
        on: Sequence[int | None] = (),
        donated: Sequence[int] = (),
        mark: Callable[..., None] | None = None,
        returned: Sequence[int] = (),
        views: Sequence[View | None] = (),
    ) -> None:
        self.main = main
        self.captured = captured
        self.outputs = outputs
        self.types = types
        self.tree = tree
        self.scratch = scratch
        self.converted = converted
        self.release = release
        self.keep = keep
        self.tail = tail
        self.refs = refs
        self.results = len(outputs) - sum([r.count for r in refs if r.is_written])
        self.on = on or [None] * len(outputs)
        self.donated = donated
        self.mark = mark
        self.returned = returned
        self.views = views or [None] * len(outputs)

    def fits(self) -> bool:
        """Whether native code has room for it."""
        held = sum([ref.count for ref in self.refs])
        counts = len(self.captured), len(self.converted), len(self.outputs), len(self.tail), held
        if len(self.refs) > w.MOST_REFS or held > w.MOST_CONTENTS:
            return False
        most = max(len(self.outputs), self.results + len(self.returned))
        return sum(counts) + 2 <= w.MOST_WORDS and most <= w.MOST_OUTPUTS


def tree_word(work: Work, at: Callable[[Any], int]) -> int:
    """How a plan says what its results are.

    Args:
        work: what is run.
        at: keeps an object, and gives its address.
    """
    if work.tree is None:
        return w.A_LEAF
    if work.tree is NOTHING:
        return w.NOTHING
    return w.A_TUPLE if isinstance(work.tree, DictOf) or work.tree is tuple else at(work.tree)


def _plan(key: Sequence[int], work: Work, cells: Sequence[Cell | int]) -> Plan:
    keep: list[object] = [work]

    def at(thing: Any) -> int:
        keep.append(thing)
        return id(thing)

    def part(words: Sequence[int]) -> int:
        found = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
        keep.append(found)
        return found.ctypes.data

    held = held_words(work, cells, at, part)
    outputs: list[int] = []
    each = zip(work.outputs, work.types, work.on, work.views, strict=True)
    for (shape, dtype, size), type, on, view in each:
        found = {
            "dtype": at(dtype),
            "rank": len(shape),
            "dims": part(shape),
            "nbytes": size,
            "type": at(type),
            "large": at((shape, dtype, size)) if size >= POOLED_BYTES else 0,
            "itemsize": dtype.itemsize,
            "on": 0 if on is None else 1 + on,
        }
        if view is not None:
            its = {"view": 1 + view.leaf, "offset": view.offset, "strides": part(view.strides)}
            found.update(its)
        outputs += [found.get(name, 0) for name in w.OUTPUT]
    pooled = at(((work.scratch,), np.dtype(np.uint8), work.scratch))
    made = work.tree if isinstance(work.tree, DictOf) else None
    head = {
        "length": len(key),
        "key": part([*key, 0, 0, 0]),
        "main": work.main,
        "captured": len(work.captured),
        "captured_at": part([x.ctypes.data for x in work.captured]),
        "outputs": len(work.outputs),
        "outputs_at": part(outputs),
        "scratch": pooled if work.scratch >= POOLED_BYTES else 0,
        "scratch_size": work.scratch,
        "tail": len(work.tail),
        "tail_at": part(work.tail),
        "release": work.release,
        "tree": tree_word(work, at),
        "converted_at": part(work.converted) if any(work.converted) else 0,
        "template": at(made.template) if made else 0,
        "keys": at(made.keys) if made else 0,
        **held,
    }
    words = np.array([head[name] for name in w.PLAN], np.uint64)
    ends_with(cells, words, w.PLAN.index("length"))
    return Plan(words, keep)


def held_words(
    work: Work,
    cells: Sequence[Cell | int],
    at: Callable[[Any], int],
    part: Callable[[Sequence[int]], int],
) -> dict[str, int]:
    """The words of a plan about refs and donated arguments.

    Args:
        work: what is run.
        cells: its refs.
        at: keeps an object, and gives its address.
        part: keeps words, and gives their address.
    """
    refs: list[int] = []
    for ref, cell in zip(work.refs, cells, strict=True):
        refs += (0, cell) if isinstance(cell, int) else (id(cell), 0)
        # No thread has this number: whoever meets the call is told of another one.
        refs += (ref.count, ref.is_written, at((ref.user, 0)))
    return {
        "holds": int(bool(refs or work.donated)),
        "results": work.results,
        "refs": len(work.refs),
        "refs_at": part(refs),
        "donated": len(work.donated),
        "donated_at": part(work.donated),
        "mark": 0 if work.mark is None else at(work.mark),
        "returned": len(work.returned),
        "returned_at": part(work.returned),
    }


def ends_with(cells: Sequence[Cell | int], words: np.ndarray, length: int) -> None:
    """A plan has the addresses of refs that are found outside, and ends with them: no key has no
    words. That must be so in whatever order things die.

    Args:
        cells: the refs of the plan.
        words: the plan.
        length: which of them is the length of its key.
    """
    for cell in cells:
        if isinstance(cell, Cell):
            at_end = weakref.finalize(cell, words.__setitem__, length, 0)
            at_end.atexit = False


def cells_of(work: Work) -> list[Cell | int] | None:
    """The refs of a plan; None if one is gone."""
    cells = [ref.cell if isinstance(ref.cell, int) else ref.cell() for ref in work.refs]
    alive = [cell for cell in cells if cell is not None]
    return alive if len(alive) == len(cells) else None


class Known:
    """A structure of a table, and the plans behind it."""

    __slots__ = (
        "_count",
        "_entries",
        "_keep",
        "_keys",
        "_sized",
        "_sized_keys",
        "_starters",
        "words",
    )

    def __init__(self, structure: Structure, lines: bool, most_copied: int) -> None:
        self._keep: list[Any] = [structure]
        self._keys: dict[tuple[int, ...], Plan] = {}
        self._count = 0
        self._sized: np.ndarray | None = None
        self._sized_keys: set[object] = set()
        self._starters: dict[int, object] = {}
        self._entries = np.zeros((_FIRST_PLACES, len(w.ENTRY)), np.uint64)
        head = {
            "positional": structure.positional,
            "named": structure.named,
            "lines": int(lines),
            "entries": self._entries.ctypes.data,
            "mask": _FIRST_PLACES - 1,
            "starter": 0,
            "tree": 0,
            "flatten": 0 if structure.flatten is None else id(structure.flatten),
            "sized": 0,
            "most_copied": most_copied,
        }
        words = [*[head[name] for name in w.STRUCTURE], *structure.ops]
        self.words = np.array(words, np.uint64)

    def _set(self, name: str, value: int) -> None:
        self.words[w.STRUCTURE.index(name)] = value

    def start_by(self, starter: Callable[..., Any], tree: Callable[..., Any] | None) -> None:
        """Lets arrays of a device go to a function of theirs."""
        # Those of several shapes take turns, and native code may be in the middle of any.
        self._starters[id(starter)] = (starter, tree)
        self._set("starter", 0)
        self._set("tree", 0 if tree is None else id(tree))
        self._set("starter", id(starter))

    def give_views(self) -> None:
        """Says that results are views of arguments: of a copy of one they would be none."""
        self._set("most_copied", SMALL_COPY)

    def has(self, key: tuple[int, ...]) -> bool:
        """Whether there is a plan for a key, and a ref that it uses is not gone."""
        plan = self._keys.get(key)
        return plan is not None and bool(plan.words[w.PLAN.index("length")])

    def add_sized(self, key: Hashable, words: np.ndarray, keep: object) -> bool:
        """Notes a plan for many sizes, if it is new and there is room; see `sizes.py`."""
        if key in self._sized_keys:
            return False
        if self._sized is None:
            self._sized = np.zeros(1 + w.MOST_SIZED, np.uint64)
            self._set("sized", self._sized.ctypes.data)
        count = int(self._sized[0])
        if count == w.MOST_SIZED:
            return False
        self._sized_keys.add(key)
        self._keep += (words, keep)
        self._sized[1 + count] = words.ctypes.data
        self._sized[0] = count + 1
        return True

    def add(self, key: tuple[int, ...], plan: Plan) -> None:
        """Notes a plan."""
        self._keep.append(self._keys.get(key))  # the table has it
        self._keys[key] = plan
        self._count += 1
        if 2 * self._count > len(self._entries):
            grown = np.zeros((2 * len(self._entries), len(w.ENTRY)), np.uint64)
            for other, its in self._keys.items():
                _insert(grown, other, its)
            # Native code may look between these two: with the old mask it finds less, that is all.
            self._keep.append(self._entries)
            self._entries = grown
            self._set("entries", grown.ctypes.data)
            self._set("mask", len(grown) - 1)
        else:
            _insert(self._entries, key, plan)


def _insert(entries: np.ndarray, key: Sequence[int], plan: Plan) -> None:
    hash = key_hash(key)
    place = hash % len(entries)
    while entries[place, 1]:
        place = (place + 1) % len(entries)
    # What says that the place is taken is written last.
    entries[place, 0] = hash
    entries[place, 2] = plan.words.ctypes.data
    entries[place, 1] = id(plan)


def key_hash(key: Sequence[int]) -> int:
    """The hash of a key, as native code computes it."""
    lanes = [0] * 4
    for k, word in enumerate([*key, *[0] * (-len(key) % 4)]):
        lanes[k % 4] = ((lanes[k % 4] ^ word) * w.MULTIPLIER) & (1 << 64) - 1
    found = lanes[0]
    for lane in lanes[1:]:
        found = (found * w.MULTIPLIER & (1 << 64) - 1) ^ lane
    return found ^ found >> 32


# Held by who notes something. Finalizers may call functions, and so note in the middle of this too.
_lock = threading.RLock()
hold(_lock)


class Signatures:
    """What one function can be called with natively.

    Args:
        most_copied: elements of an array in another order than row-major, of which native code
            makes a copy; calls of larger ones are left to Python.
    """

    __slots__ = ("_known", "_most_copied", "table")

    def __init__(self, most_copied: int = ANY_SIZE) -> None:
        self.table = Table()
        self._most_copied = most_copied
        self._known: dict[Any, Known | None] = {}

    def find(self, which: object) -> Known | None:
        """A structure that was noted; None if there is none, or none can be."""
        return self._known.get(which)

    def is_refused(self, which: object) -> bool:
        """Whether a structure cannot be noted."""
        return which in self._known and self._known[which] is None

    def note(self, which: object, structure: Structure | None, lines: bool = False) -> Known | None:
        """Notes a structure.

        Args:
            which: what it is found by.
            structure: the structure; None where it cannot be followed natively.
            lines: whether all leaves are lines of one length to the program, whatever their shape,
                which is the same.
        """
        with _lock:
            return self._known.get(which) or self._note(which, structure, lines)

    def _note(self, which: object, structure: Structure | None, lines: bool) -> Known | None:
        table = self.table
        count = len(table.keep)
        if structure is None or count >= MOST_STRUCTURES:
            if len(self._known) < 2 * MOST_STRUCTURES:
                self._known[which] = None
            return None
        known = self._known[which] = Known(structure, lines, self._most_copied)
        table.keep.append(known)
        table.words[w.TABLE.index("first") + count] = known.words.ctypes.data
        table.words[w.TABLE.index("structures")] = count + 1
        return known

    def add(self, known: Known, key: Sequence[int], keep: object, work: Work) -> None:
        """Notes how to run a key.

        Args:
            known: its structure.
            key: from `key_of`.
            keep: what the key's addresses are of.
            work: what is run.
        """
        if not work.fits() or len(key) > w.MOST_KEY_WORDS - 80:
            return
        cells = cells_of(work)
        if cells is None:
            return
        plan = _plan(key, work, cells)
        with _lock:
            if not known.has(tuple(key)):
                if any([view is not None for view in work.views]):
                    known.give_views()
                known.add(tuple(key), Plan(plan.words, (plan.keep, keep)))

    def add_sized(self, known: Known, key: Hashable, words: np.ndarray, keep: object) -> bool:
        """Notes a plan for many sizes; whether it is new.

        Args:
            known: the structure of the arguments.
            key: what it is told from others by.
            words: as `sizes.SizedPlan` has them.
            keep: what they point to.
        """
        with _lock:
            return known.add_sized(key, words, keep)

    def start(self) -> Callable[..., Any] | None:
        """A function of positional arguments that gives `NotImplemented` for what it does not
        know; None where there is no native code."""
        loaded = native()
        if loaded is None:
            return None
        code = loaded.addresses[START]
        return make_builtin(code, receiver=self.table, owner=loaded, name="start")


Key = tuple[list[int], list[object], list[type | None]]


def key_of(leaves: Sequence[Any], lines: bool = False) -> Key | None:
    """The key of a call under the settings in force, what its addresses are of, and per leaf that
    is no ref the class of a number; None for leaves that native code does not know.

    Args:
        leaves: what the user gave.
        lines: see `Signatures.note`.
    """
    override = config.override.get()
    key: list[int] = [id(override)]
    keep: list[object] = [override]
    numbers: list[type | None] = []
    for x in leaves:
        kind = class_of(x)
        if kind in (float, int, bool):
            key += (id(kind), (1 << 64) - 1)
            numbers.append(kind)
            continue
        if isinstance(x, Cell):
            if lines:
                return None
            key.append(id(x.kind))
            keep.append(x.kind)
            continue
        if exchange.is_offered(kind):
            found = None if lines or not exchange.note(kind) else exchange.words_of(x)
            if found is None:
                return None
            key += found
            numbers.append(None)
            continue
        data = x
        if kind is Array:
            data = x.storage if x.prepared is None else x.prepared
        if type(data) is not np.ndarray:
            return None
        flags = data.flags
        if not (flags.c_contiguous and flags.aligned and data.dtype.isnative):
            return None
        weak = int(kind is Array and x.weak) << 32
        # The dtype that is the array's own: equal ones may be other objects.
        dtype: Any = data.dtype
        keep.append(dtype)
        numbers.append(None)
        key += (id(dtype), weak) if lines else (id(dtype), weak | data.ndim, *data.shape)
    return key, keep, numbers
