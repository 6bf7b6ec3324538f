"""Programs for many sizes: how native code finds what a call of new sizes needs.

Besides the keys that it knows, a structure has plans for keys of which some words may be anything:
the dims that are names to the program. Behind each stands *code*, a list of instructions about
words of the key: it says whether the program is for these sizes, and works out the dims of the
results and what else a plan has. `sizes_text.py` is what follows it.

An instruction is three words: the op and its operands. Each gives a value, which later ones name by
its place in the list. The *frame* is what a plan is made in: a copy of a template, with words that
depend on sizes filled in. Where a sum, product or quotient does not fit into a word, the call is
left to Python, as where a condition does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tessera.graph.state import Cell
from tessera.ir.intexpr import Dim, fold
from tessera.runtime.dispatch import words as w
from tessera.runtime.dispatch.signatures import (
    DictOf,
    Work,
    cells_of,
    ends_with,
    held_words,
    tree_word,
)

_OP: Final = {name: k for k, name in enumerate(w.SIZE_OPS)}


class Code:
    """Instructions about the key of a call, and the frame that they fill in.

    Args:
        free: the words of the key that may be anything.
    """

    def __init__(self, free: Sequence[int]) -> None:
        self.free = tuple(free)
        self.words: list[int] = []
        self._values: dict[tuple[str, int, int], int] = {}

    def _add(self, op: str, a: int, b: int = 0) -> int:
        self.words += (_OP[op], a, b)
        return len(self.words) // 3 - 1

    def value(self, op: str, a: int, b: int = 0) -> int:
        """The value of an instruction that only computes; the same for the same operands."""
        found = self._values.get((op, a, b))
        if found is None:
            found = self._values[op, a, b] = self._add(op, a, b)
        return found

    def constant(self, value: int) -> int:
        """An integer."""
        return self.value("const", value)

    def dim(self, e: Dim, env: Mapping[str, int]) -> int:
        """An expression, for values of its names."""
        return fold(e, env.__getitem__, self.constant, self.value)

    def difference(self, a: int, b: int) -> int:
        """One value less another."""
        return self.value("add", a, self.value("mul", b, self.constant(-1)))

    def is_zero(self, a: int) -> None:
        """The program is for sizes where this is 0."""
        self.value("zero", a)

    def is_least(self, a: int) -> None:
        """The program is for sizes where this is 0 or more."""
        self.value("least", a)

    def is_other(self, a: int) -> None:
        """The program is for sizes where this is not 0."""
        self.value("other", a)

    def is_equal(self, a: int, b: int) -> None:
        """The program is for sizes where these are equal."""
        if a != b:
            self.is_zero(self.difference(a, b))

    def put(self, value: int, word: int) -> None:
        """A word of the frame is a value."""
        self._add("put", value, word)

    def relocate(self, word: int, to: int) -> None:
        """A word of the frame is the address of another."""
        self._add("relocate", word, to)

    def sized(self, word: int, record: int) -> None:
        """A word of the frame is what the pool is asked with for a large piece of memory, as the
        record of a result tells; 0 for a small one."""
        self._add("sized", word, record)

    def copy(self, word: int, source: int) -> None:
        """A word of the frame is that of another place."""
        self._add("copy", word, source)


def sized_plan(
    key: Sequence[int],
    code: Code,
    work: Work,
    outputs: Sequence[Sequence[Dim]],
    scratch: Dim,
    tail: Sequence[int],
    env: Mapping[str, int],
) -> SizedPlan | None:
    """A `SizedPlan`; None if a ref that it uses is gone."""
    cells = cells_of(work)
    return None if cells is None else SizedPlan(key, code, work, outputs, scratch, tail, env, cells)


class SizedPlan:
    """A program that is called with keys that differ in some words.

    Args:
        key: one of them.
        code: says which, with all that is asked of them; the frame is added here.
        work: how the program is run with that key.
        outputs: the dims of the results.
        scratch: bytes of scratch memory.
        tail: the words behind it, as values of the code.
        env: values of the names in `outputs` and `scratch`.
        cells: the refs, whose arrays have sizes that are known.

    Attributes:
        words: as `words.SIZED` tells.
        like: a key without what may be anything.
    """

    __slots__ = ("keep", "like", "words")

    def __init__(
        self,
        key: Sequence[int],
        code: Code,
        work: Work,
        outputs: Sequence[Sequence[Dim]],
        scratch: Dim,
        tail: Sequence[int],
        env: Mapping[str, int],
        cells: Sequence[Cell | int] = (),
    ) -> None:
        keep: list[object] = [work]
        self.keep = keep
        frame = _frame(code, work, outputs, scratch, tail, env, keep, cells)
        free = frozenset(code.free)
        self.like = tuple([0 if k in free else word for k, word in enumerate(key)])
        mask = [0 if k in free else -1 for k in range(len(key))]
        head = {
            "length": len(key),
            "like": _part(self.like, keep),
            "mask": _part(mask, keep),
            "code": _part(code.words, keep),
            "steps": len(code.words) // 3,
            "frame": _part(frame, keep),
            "frame_size": len(frame),
        }
        fits = len(frame) <= w.MOST_FRAME and len(code.words) // 3 <= w.MOST_STEPS
        self.words = np.array([head[n] for n in w.SIZED], np.uint64) if fits else None
        if self.words is not None:
            ends_with(cells, self.words, w.SIZED.index("length"))


def _part(words: Sequence[int], keep: list[object]) -> int:
    found = np.array([word & (1 << 64) - 1 for word in words], np.uint64)
    keep.append(found)
    return found.ctypes.data


def _frame(
    code: Code,
    work: Work,
    outputs: Sequence[Sequence[Dim]],
    scratch: Dim,
    tail: Sequence[int],
    env: Mapping[str, int],
    keep: list[object],
    cells: Sequence[Cell | int],
) -> list[int]:
    """The template of a frame: a plan, the records of its results and of the scratch memory, their
    dims and the tail. Code for what depends on sizes is added."""

    def at(thing: Any) -> int:
        keep.append(thing)
        return id(thing)

    made = work.tree if isinstance(work.tree, DictOf) else None
    head = {
        "main": work.main,
        "captured": len(work.captured),
        "captured_at": _part([x.ctypes.data for x in work.captured], keep),
        "outputs": len(outputs),
        "tail": len(tail),
        "release": work.release,
        "tree": tree_word(work, at),
        "converted_at": _part(work.converted, keep) if any(work.converted) else 0,
        "template": at(made.template) if made else 0,
        "keys": at(made.keys) if made else 0,
        **held_words(work, cells, at, lambda words: _part(words, keep)),
    }
    frame = [head.get(name, 0) for name in w.PLAN]
    first = len(frame)
    shapes = [*outputs, (scratch,)]
    dtypes = [*[dtype for _, dtype, _ in work.outputs], np.dtype(np.uint8)]
    types = [*work.types, None]
    places = [*work.on, None]
    for shape, dtype, type, on in zip(shapes, dtypes, types, places, strict=True):
        is_known = type is not None and all([isinstance(d, int) for d in shape])
        words = {
            "dtype": at(dtype),
            "rank": len(shape),
            "type": at(type if is_known else None),
            "itemsize": dtype.itemsize,
            "on": 0 if on is None else 1 + on,
        }
        frame += [words.get(name, 0) for name in w.OUTPUT]
    in_plan, in_record = w.PLAN.index, w.OUTPUT.index
    code.relocate(in_plan("outputs_at"), first)
    for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        record = first + k * len(w.OUTPUT)
        code.relocate(record + in_record("dims"), len(frame))
        size = code.constant(dtype.itemsize)
        for d in shape:
            value = code.dim(d, env)
            code.put(value, len(frame))
            size = code.value("mul", size, value)
            frame.append(0)
        code.put(size, record + in_record("nbytes"))
    room = first + len(outputs) * len(w.OUTPUT)
    code.copy(in_plan("scratch_size"), room + in_record("nbytes"))
    code.relocate(in_plan("tail_at"), len(frame))
    for value in tail:
        code.put(value, len(frame))
        frame.append(0)
    # From here on nothing is left to Python, so that what is made is given back.
    code.sized(room + in_record("large"), room)
    code.copy(in_plan("scratch"), room + in_record("large"))
    return frame
