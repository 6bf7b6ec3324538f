"""What a simulated kernel runs on: the launch, groups of threads with their registers, pointers.

A register holds an array of shape [1], where all threads hold the same, or of [threads of the
group]; a vector has one more dim. A pointer is a memory, and byte addresses in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.errors import SimulationError
from tessera.ir.core import Func, Op, Value
from tessera.ir.printer import Printer
from tessera.target.gpu_ops import WARP, Shared

if TYPE_CHECKING:
    from tessera.target.gpu import Gpu
    from tessera.target.simulate.async_copies import Copies
    from tessera.target.simulate.engine import Engine
    from tessera.target.simulate.memory import Memory
    from tessera.target.simulate.order import Order
    from tessera.target.simulate.waiting import Meeting

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Addresses.

    Attributes:
        memory: what they lie in.
        at: bytes from the start of the window, one for each thread or one for all.
        lo: where the object starts, from the start of the window.
        hi: where it ends.
        window: where each thread's window on the memory starts: its block's shared memory, its own
            scratch memory; None where all threads see the same.
        name: what messages call the object.
    """

    memory: Memory
    at: Array
    lo: int
    hi: int
    window: Array | None
    name: str

    def moved(self, by: Array) -> Pointer:
        """The addresses so many bytes on."""
        return Pointer(self.memory, self.at + by, self.lo, self.hi, self.window, self.name)


@dataclass(slots=True)
class Launch:
    """One chunk of blocks that run at a time.

    Attributes:
        func: the kernel.
        machine: the GPU.
        threads: of a block.
        cluster: blocks of a cluster.
        lazy: whether asynchronous copies land as late as they may.
        check: whether races are looked for.
        ops: all ops of the kernel.
        number: the position of each op in it.
        placed: where each shared object lies.
        window: bytes of shared memory of a block.
        plans: how each op computes, decided once.
        first: the first block.
        blocks: how many blocks.
        shared: their shared memory.
        order: which accesses are known to come before which.
        mapped: memories by the identity of the arrays that they view.
        atomic: for each op, whether it changes memory in one step.
        spinning: loops that may wait for memory.
        copies: asynchronous copies of threads under way.
        engine: copies of the copy engine, and barriers in shared memory.
        meetings: barriers of blocks and clusters where threads have come.
        in_step: whether all threads of the launch are one group.
        ticks: how often the clock was read.
        told: the sentinels that have told of something so far; None if the first one is an error.
    """

    func: Func
    machine: Gpu
    threads: int
    cluster: int
    lazy: bool
    check: bool
    ops: list[Op]
    number: dict[Op, int]
    placed: dict[Op, int]
    window: int
    plans: dict[Op, Any]
    first: int
    blocks: int
    shared: Memory
    order: Order
    mapped: dict[int, Memory]
    atomic: Array
    spinning: frozenset[Op]
    in_step: bool
    copies: Copies
    engine: Engine
    meetings: dict[tuple[int, int], Meeting] = field(
        default_factory=dict[tuple[int, int], "Meeting"]
    )
    ticks: int = 0
    told: list[Op] | None = None

    def offset(self, at: int) -> int:
        """A place in shared memory as the threads of its block see it."""
        return at % self.window

    def place(self, memory: Memory, at: int, size: int) -> str:
        """Bytes, as messages call them: of a shared object, if it is clear of which."""
        count = "1 byte" if size == 1 else f"{size} bytes"
        at = at % memory.span if memory.span else at
        if memory is not self.shared:
            return f"{count} at byte {at} of {memory.name}"
        objects = [op for op in self.placed if isinstance(op, Shared)]
        there = [op for op in objects if 0 <= at - self.placed[op] < op.bytes]
        if len(there) != 1 or not there[0].label:
            return f"{count} at byte {at} of shared memory"
        return f"{count} at byte {at - self.placed[there[0]]} of shared object {there[0].label!r}"

    def who(self, thread: int) -> str:
        """A thread of the grid, as messages call it."""
        return f"thread {thread % self.threads} of block {thread // self.threads}"


@dataclass(slots=True)
class Threads:
    """Threads that run together, and their registers.

    Attributes:
        launch: what they are part of.
        block: each thread's block, counted from the first of the launch.
        thread: its number in the block.
        number: its number in the launch.
        ident: its number in the grid.
        values: registers.
        mask: which threads are active; None: all.
        active: their positions; None: all.
        early: whether the grid in front of this one may still run.
    """

    launch: Launch
    block: Array
    thread: Array
    number: Array
    ident: Array
    values: dict[Value, Any] = field(default_factory=dict[Value, Any])
    mask: Array | None = None
    active: Array | None = None
    early: bool = False

    @classmethod
    def make(cls, launch: Launch, first: int, count: int) -> Threads:
        """So many threads of a launch from one of them on."""
        number = np.arange(first, first + count)
        block, thread = np.divmod(number, launch.threads)
        ident = (number + launch.first * launch.threads).astype(np.int32)
        return cls(launch, block, thread.astype(np.int32), number, ident)

    @property
    def count(self) -> int:
        """How many threads."""
        return self.number.size

    def narrow(self, mask: Array | None) -> None:
        """Sets which threads are active."""
        if mask is None or mask.all():
            self.mask = self.active = None
        else:
            self.mask, self.active = mask, np.flatnonzero(mask)

    def positions(self) -> Array:
        """The positions of the active threads."""
        return np.arange(self.count) if self.active is None else self.active

    def full(self, value: Array) -> Array:
        """A register with one element for each thread."""
        if value.shape[0] == self.count:
            return value
        return np.broadcast_to(value, (self.count, *value.shape[1:]))

    def of_active(self, value: Array) -> Array:
        """The elements of the active threads."""
        value = self.full(value)
        return value if self.active is None else value[self.active]

    def warps(self, op: Op) -> Array | None:
        """Which warps are active, None for all; all lanes of a warp or none must be."""
        if self.mask is None:
            return None
        lanes = self.mask.reshape(-1, WARP)
        some: Array = np.any(lanes, axis=1)
        every: Array = np.all(lanes, axis=1)
        if (some != every).any():
            warp = int(np.flatnonzero(some != every)[0])
            missing = int(np.flatnonzero(~lanes[warp])[0])
            message = f"the warp's lane {missing} does not take part: control flow diverges"
            raise self.fail(op, message, warp * WARP + int(np.flatnonzero(lanes[warp])[0]))
        return some

    def fail(self, op: Op, message: str, position: int | None = None, *notes: str) -> Exception:
        """The error of an op in the thread at a position."""
        who = "" if position is None else f" ({self.launch.who(int(self.ident[position]))})"
        return failure(op, message + who, *notes)


def failure(op: Op, message: str, *notes: str) -> SimulationError:
    """The error of an op, which shows it."""
    return SimulationError(
        f"{op.name}: {message}", loc=op.loc, notes=[Printer().op_head(op), *notes]
    )


def described(op: Op) -> str:
    """An op and where it comes from, for a note."""
    place = f", at {op.loc}" if op.loc else ""
    return f"{Printer().op_head(op)}{place}"
