"""Memory of a simulated kernel: bytes, and who touched them last.

Accesses are remembered for each `grain` of bytes, the smallest access of the kernel. A write keeps
thread, time and op; a read likewise, but of all threads that no barrier has parted. Times are those
of `order.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.dtypes import DType, bool_
from tessera.ir.core import Op
from tessera.target.simulate.order import NOBODY, Order
from tessera.target.simulate.state import Array, Launch, Threads, described
from tessera.tile.types import POISON

UNWRITTEN = -1
IN_FLIGHT = -2
"""Times of bytes that nobody has written, or that a copy under way will write."""


class Memory:
    """Bytes.

    Attributes:
        data: the bytes.
        name: what messages call them.
        writable: whether the kernel may write them.
        strict: whether reading what nobody wrote is an error: shared and scratch memory.
        watched: whether accesses are checked against each other.
        grain: bytes that are remembered together, a power of two.
        bits: its logarithm.
        span: bytes of the part that one thread sees; 0: all.
        locked: ranges that copies under way still read, with their ops.
    """

    def __init__(
        self, data: Array, name: str, grain: int, *, strict: bool, watched: bool, writable: bool
    ) -> None:
        self.data = data
        self.name = name
        self.writable = writable
        self.strict = strict
        self.watched = watched
        self.grain = grain
        self.bits = grain.bit_length() - 1
        self.span = 0
        self.locked: list[tuple[int, int, Op]] = []
        self.views: dict[DType, Array] = {}
        count = -(-data.size // grain) if strict or watched else 0
        self.when_written = np.full(count, UNWRITTEN, np.int32)
        count = count if watched else 0
        self.writer = np.full(count, NOBODY, np.int32)
        self.written_by = np.zeros(count, np.int32)
        self.when_read = np.full(count, UNWRITTEN, np.int32)
        self.reader = np.full(count, NOBODY, np.int32)
        self.read_by = np.zeros(count, np.int32)

    def view(self, dtype: DType) -> Array:
        """The bytes as elements; a bool is a byte."""
        found = self.views.get(dtype)
        if found is None:
            raw = np.dtype(np.uint8) if dtype is bool_ else dtype.np
            whole = self.data.size // raw.itemsize * raw.itemsize
            found = self.views[dtype] = self.data[:whole].view(raw)
        return found

    def grains(self, at: Array, size: int) -> Array:
        """The grains of accesses, one row for each."""
        start = at >> self.bits
        if size <= self.grain:
            return start[:, None]
        return start[:, None] + np.arange(-(-size // self.grain))

    # --- reads ------------------------------------------------------------------------------------

    def note_read(self, s: Threads, op: Op, at: Array, size: int, idents: Array) -> None:
        """Threads read `size` bytes each; `at` holds their addresses, or one for all."""
        if not self.strict and not self.watched:
            return
        grains = self.grains(at, size)
        when = self.when_written[grains]
        if self.strict and when.size and when.min() < 0:
            self._unwritten(s, op, at, when, idents)
        if not self.watched:
            return
        self.check_known(s, op, grains, idents)
        self.remember_readers(s, op, grains, idents)

    def check_known(self, s: Threads, op: Op, grains: Array, idents: Array) -> None:
        """Raises where threads read what somebody else has written without order."""
        order = s.launch.order
        when = self.when_written[grains]
        if when.size and when.max() >= self._recent(order):
            code, thread = np.broadcast_arrays(self.writer[grains], idents[:, None])
            late = (when >= 0) & order.unordered(code, when, thread)
            if late.any():
                self.race(s, op, late, grains, thread, ("reads", "wrote"))

    def _recent(self, order: Order) -> int:
        """The time from which on accesses need a look."""
        return order.floor if self.strict else 0

    def remember_readers(self, s: Threads, op: Op, grains: Array, idents: Array) -> None:
        """Keeps who read."""
        order = s.launch.order
        grains, code = np.broadcast_arrays(grains, idents[:, None])
        when = self.when_read[grains]
        recent = bool(when.size) and int(when.max()) >= self._recent(order)
        old = self.reader[grains] if recent else code
        self.reader[grains] = code
        won = self.reader[grains]
        beaten = won != code
        if beaten.any():
            self._join(order, grains[beaten], won[beaten], code[beaten])
        if recent:
            late = (when >= 0) & order.unordered(old, when, code)
            if late.any():
                now = grains[late]
                self._join(order, now, self.reader[now], old[late])
        self.when_read[grains] = order.now
        self.read_by[grains] = s.launch.number[op]

    def _join(self, order: Order, grains: Array, a: Array, b: Array) -> None:
        code, width = order.joined(a, b)
        for level in (1, 2, 3):  # where threads meet at a grain, the widest counts
            at_level = width == level
            if at_level.any():
                self.reader[grains[at_level]] = code[at_level]

    # --- writes -----------------------------------------------------------------------------------

    def note_write(
        self, s: Threads, op: Op, at: Array, size: int, idents: Array,
        value: Array | None = None, atomic: bool = False,
    ) -> None:  # fmt: skip
        """Threads are about to write `size` bytes each.

        Args:
            s: the threads.
            op: the op.
            at: the address of each.
            size: bytes.
            idents: their numbers in the grid.
            value: what they write, if the same op may write the same again.
            atomic: whether they change memory in one step, and read it first.
        """
        if self.locked:
            self._check_locked(s, op, at, size, idents)
        if not self.strict and not self.watched:
            return
        grains = self.grains(at, size)
        when = self.when_written[grains]
        if self.strict and when.size and when.min() == IN_FLIGHT:
            k = int(np.flatnonzero((when == IN_FLIGHT).any(axis=1))[0])
            place = s.launch.place(self, int(at[k]), size)
            message = f"writes {place}, which a copy under way will write"
            raise self._failure(s, op, message, idents, k)
        if atomic and self.strict and when.size and when.min() < 0:
            self._unwritten(s, op, at, when, idents)
        if self.watched:
            self._check_write(s, op, at, when, grains, idents, value, atomic)
            self.writer[grains] = idents[:, None]
            self.written_by[grains] = s.launch.number[op]
        self.when_written[grains] = s.launch.order.now

    def _check_write(
        self, s: Threads, op: Op, at: Array, when: Array, grains: Array, idents: Array,
        value: Array | None, atomic: bool,
    ) -> None:  # fmt: skip
        order = s.launch.order
        recent = self._recent(order)
        thread = np.broadcast_to(idents[:, None], grains.shape)
        if when.size and when.max() >= recent:
            late = (when >= 0) & order.unordered(self.writer[grains], when, thread)
            if late.any() and atomic:
                late &= ~s.launch.atomic[self.written_by[grains]]
            if late.any() and value is not None:
                again = self.written_by[grains] == s.launch.number[op]
                late &= ~(again & self._holds(at, value)[:, None])
            if late.any():
                self.race(s, op, late, grains, thread, ("writes", "wrote"))
        self.check_readers(s, op, at, grains, thread)

    def check_readers(self, s: Threads, op: Op, at: Array, grains: Array, thread: Array) -> None:
        """Raises where somebody may still read what is written."""
        order = s.launch.order
        when = self.when_read[grains]
        if when.size and when.max() >= self._recent(order):
            late = (when >= 0) & order.unordered(self.reader[grains], when, thread)
            if late.any():
                self.race(s, op, late, grains, thread, ("writes", "read"))

    def _holds(self, at: Array, value: Array) -> Array:
        """Whether memory holds the values already, bit for bit; one row for each."""
        raw = np.ascontiguousarray(value).view(f"u{value.itemsize}").reshape(at.size, -1)
        whole = self.data.size // value.itemsize * value.itemsize
        bits = self.data[:whole].view(raw.dtype)
        first = at >> (value.itemsize.bit_length() - 1)
        if raw.shape[1] == 1:
            return bits[first] == raw[:, 0]
        return (bits[first[:, None] + np.arange(raw.shape[1])] == raw).all(axis=1)

    def check_stored(self, s: Threads, op: Op, at: Array, value: Array, idents: Array) -> None:
        """Raises if threads have just written different values to one place."""
        if self.watched:
            lost = ~self._holds(at, value)
            if lost.any():
                k = int(np.flatnonzero(lost)[0])
                size = value.nbytes // at.size
                message = (
                    f"threads write different values to {s.launch.place(self, int(at[k]), size)}"
                )
                raise self._failure(s, op, message, idents, k)

    # --- copies -----------------------------------------------------------------------------------

    def empty(self, at: Array, size: int) -> None:
        """A copy will write here: until it lands, there is nothing."""
        self.data[at[:, None] + np.arange(size)] = POISON
        self.when_written[self.grains(at, size)] = IN_FLIGHT

    def fill(self, launch: Launch, op: Op, at: Array, size: int, code: Array) -> None:
        """What a copy has written: it counts as a write of now by threads of a code."""
        grains = self.grains(at, size)
        self.when_written[grains] = launch.order.now
        if self.watched:
            self.writer[grains] = code[:, None]
            self.written_by[grains] = launch.number[op]

    # --- mistakes ---------------------------------------------------------------------------------

    def _failure(
        self, s: Threads, op: Op, message: str, idents: Array, k: int, *notes: str
    ) -> Exception:
        return s.fail(op, message, int(idents[k]) - int(s.ident[0]), *notes)

    def _unwritten(self, s: Threads, op: Op, at: Array, when: Array, idents: Array) -> None:
        row, column = (int(x[0]) for x in np.nonzero(when < 0))
        place = int(at[row]) + column * self.grain
        what = "nobody has written"
        if when[row, column] == IN_FLIGHT:
            what = "a copy under way will write"
        message = f"reads {s.launch.place(self, place, 1)}, which {what}"
        raise self._failure(s, op, message, idents, row)

    def race(
        self, s: Threads, op: Op, late: Array, grains: Array, thread: Array,
        verbs: tuple[str, str], warp: int | None = None,
    ) -> None:  # fmt: skip
        """Raises the error of two accesses that nothing orders.

        Args:
            s: the threads that access memory now.
            op: how they do.
            late: where it was accessed before, one row for each thread.
            grains: what is accessed.
            thread: by which threads.
            verbs: what they do now and what was done before.
            warp: where reads are remembered for each warp, whose.
        """
        row, column = (int(x[0]) for x in np.nonzero(late))
        grain = int(np.broadcast_to(grains, late.shape)[row, column])
        place: Any = grain if warp is None else (grain, warp)
        if verbs[1] == "wrote":
            code, when, number = (
                self.writer[grain],
                self.when_written[grain],
                self.written_by[grain],
            )
        else:
            code, when, number = self.reader[place], self.when_read[place], self.read_by[place]
        other = s.launch.order.said(int(code), int(when))
        text = s.launch.place(self, grain * self.grain, self.grain)
        message = f"{verbs[0]} {text}, which {other} {verbs[1]} without a barrier between them"
        note = f"{other} {verbs[1]} in {described(s.launch.ops[int(number)])}"
        raise self._failure(s, op, message, thread[:, 0], row, note)

    def _check_locked(self, s: Threads, op: Op, at: Array, size: int, idents: Array) -> None:
        for lo, hi, copy in self.locked:
            inside = (at < hi) & (at + size > lo)
            if inside.any():
                k = int(np.flatnonzero(inside)[0])
                place = s.launch.place(self, int(at[k]), size)
                message = f"writes {place}, which a copy under way still reads"
                raise self._failure(s, op, message, idents, k, described(copy))
