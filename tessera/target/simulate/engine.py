"""The simulated copy engine: bulk and tensor copies, and the barriers in shared memory that count
their bytes.

Eager copies are done when they start. Lazy ones are done when nothing else can happen: loads when
all threads wait, and stores when their thread waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.ir.core import Op, Value
from tessera.target import gpu_ops as g
from tessera.target.simulate.access import locate
from tessera.target.simulate.clocks import ENGINE, Clocks
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.state import Array, Launch, Threads, failure
from tessera.target.simulate.tensors import boxes

MAX_BYTES = (1 << 20) - 1
"""What a barrier can count at most."""


@dataclass(slots=True, eq=False)
class Mbarrier:
    """A barrier in shared memory.

    Attributes:
        op: what made it.
        maker: the thread that did.
        count: arrivals that complete a phase.
        pending: arrivals that are missing.
        bytes: of copies that are missing.
        phase: completed phases.
        fenced: whether the copy engine may know of it.
        clock: what those who have arrived know.
        published: the same at the end of the last phase.
    """

    op: Op
    maker: int
    count: int
    pending: int
    clock: Array
    published: Array
    bytes: int = 0
    phase: int = 0
    fenced: bool = False

    def settle(self) -> None:
        """Ends the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            self.published = self.clock.copy()

    def said(self) -> str:
        """Its state, for messages."""
        return f"{self.pending} of {self.count} arrivals and {self.bytes} bytes are missing"


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy that is not done: bytes from places in one memory to places in another.

    `source_at` is -1 for bytes that become zero. Stores belong to a group of their thread once it
    has been committed, and keep `found` what they have read.
    """

    op: Op
    thread: int
    ident: int
    source: Memory
    source_at: Array
    target: Memory
    target_at: Array
    barrier: Mbarrier | None = None
    group: int = -1
    found: Array | None = None
    lock: tuple[int, int, Op] | None = None

    def read(self) -> None:
        """Takes what the source holds."""
        if self.found is None:
            taken = self.source.data[np.maximum(self.source_at, 0)]
            self.found = np.where(self.source_at < 0, 0, taken).astype(np.uint8)

    def write(self) -> None:
        """Puts it into the target."""
        self.read()
        self.target.data[self.target_at] = self.found


@dataclass(slots=True)
class Engine:
    """Copies and barriers of a launch.

    Attributes:
        groups: how many groups of stores each thread has committed.
        barriers: barriers by their address.
        loads: loads under way.
        stores: stores that nobody has waited for.
    """

    groups: Array
    barriers: dict[int, Mbarrier] = field(default_factory=dict[int, Mbarrier])
    loads: list[Transfer] = field(default_factory=list[Transfer])
    stores: list[Transfer] = field(default_factory=list[Transfer])

    def demand(self, launch: Launch, wanted: Iterable[Mbarrier]) -> bool:
        """Does the loads that some awaited barrier counts; whether there were any."""
        for barrier in wanted:
            mine = [x for x in self.loads if x.barrier is barrier]
            if mine:
                self.loads = [x for x in self.loads if x.barrier is not barrier]
                for transfer in mine:
                    arrive(launch, transfer)
                return True
        return False

    def finish(self) -> None:
        """The end of a launch.

        Raises:
            SimulationError: copies still need the shared memory of blocks that have ended.
        """
        if self.loads:
            raise failure(self.loads[0].op, "the block ends while the copy is under way")
        for transfer in self.stores:
            if transfer.lock is not None:
                message = "the block ends while the copy still reads its shared memory"
                raise failure(transfer.op, message)
            transfer.write()


def arrive(launch: Launch, transfer: Transfer) -> None:
    """A load is done."""
    barrier = transfer.barrier
    assert barrier is not None
    assert isinstance(launch.order, Clocks)
    transfer.write()
    size = transfer.target_at.size
    code = np.full(size, ENGINE)
    transfer.target.fill(launch, transfer.op, transfer.target_at, 1, code)
    launch.order.landed(barrier.clock)
    barrier.bytes -= size
    barrier.settle()


# --- barriers -------------------------------------------------------------------------------------


def barrier_places(s: Threads, op: Op, ptr: Value, offset: Value) -> Array:
    """The address of a barrier for each active thread."""
    at = s.values[offset].astype(np.int64)
    return locate(s, op, s.values[ptr], s.full(at), s.positions(), 8, 8)


def barrier_at(s: Threads, op: Op, place: int, position: int) -> Mbarrier:
    """The barrier at an address."""
    found = s.launch.engine.barriers.get(place)
    if found is None:
        at = s.launch.offset(place)
        raise s.fail(op, f"there is no barrier at byte {at} of shared memory", position)
    return found


def _init(s: Threads, op: g.MbarrierInit) -> None:
    launch = s.launch
    assert isinstance(launch.order, Clocks)
    if not 0 < op.count <= MAX_BYTES:
        raise s.fail(op, f"a barrier of {op.count} arrivals", int(s.positions()[0]))
    places = barrier_places(s, op, op.ptr, op.offset)
    memory = launch.shared
    for k, place in zip(s.positions(), places.tolist(), strict=True):
        at, who = np.array([place]), s.ident[k : k + 1]
        memory.note_write(s, op, at, 8, who)
        memory.data[place : place + 8] = 0
        clock = np.zeros(launch.order.count + 1, np.int32)
        launch.engine.barriers[place] = Mbarrier(
            op, int(s.number[k]), op.count, op.count, clock, clock
        )


def _arrive(s: Threads, op: g.MbarrierArrive) -> None:
    launch = s.launch
    assert isinstance(launch.order, Clocks)
    places = barrier_places(s, op, op.ptr, op.offset)
    expect = s.full(s.values[op.expect[0]]) if op.expect else None
    for k, place in zip(s.positions().tolist(), places.tolist(), strict=True):
        barrier = touched(s, op, place, k)
        if expect is not None:
            barrier.bytes += int(expect[k])
            if not 0 <= expect[k] <= MAX_BYTES or abs(barrier.bytes) > MAX_BYTES:
                raise s.fail(op, f"{int(expect[k])} bytes are expected", k)
        if barrier.pending == 0:
            raise s.fail(op, f"more than {barrier.count} arrivals in one phase", k)
        clock = launch.order.publish(s.number[k : k + 1])
        barrier.clock = np.maximum(barrier.clock, clock)
        barrier.pending -= 1
        barrier.settle()


def touched(s: Threads, op: Op, place: int, position: int) -> Mbarrier:
    """The barrier at an address, which a thread uses: it must know that it was made."""
    barrier = barrier_at(s, op, place, position)
    memory = s.launch.shared
    if memory.watched and barrier.maker != int(s.number[position]):
        at = np.array([place])
        memory.check_known(s, op, memory.grains(at, 8), s.ident[position : position + 1])
    return barrier


def _fence(s: Threads, op: g.Fence) -> None:
    threads = s.number[s.positions()]
    if op.scope == "async_shared":
        s.launch.order.fence(threads)
    if op.scope in ("mbarrier_init", "async_shared"):
        mine = set(threads.tolist())
        for barrier in s.launch.engine.barriers.values():
            if barrier.maker in mine:
                barrier.fenced = True


# --- copies ---------------------------------------------------------------------------------------


def _load(s: Threads, op: g.BulkLoad | g.TensorLoad) -> None:
    launch = s.launch
    assert isinstance(launch.order, Clocks)
    places = barrier_places(s, op, op.barrier, op.barrier_offset)
    for k, place, box in zip(s.positions().tolist(), places.tolist(), boxes(s, op), strict=True):
        barrier = touched(s, op, place, k)
        if not barrier.fenced:
            message = "the copy engine does not know the barrier: no fence after its mbarrier_init"
            raise s.fail(op, message, k)
        who = s.ident[k : k + 1]
        inside = box.outer[box.outer >= 0]
        box.memory.note_read(s, op, inside, 1, np.repeat(who, inside.size))
        launch.shared.note_write(s, op, box.shared, 1, np.repeat(who, box.shared.size))
        transfer = Transfer(
            op, int(s.number[k]), int(who[0]), box.memory, box.outer, launch.shared, box.shared,
            barrier,
        )  # fmt: skip
        if launch.lazy:
            launch.shared.empty(box.shared, 1)
            launch.engine.loads.append(transfer)
        else:
            arrive(launch, transfer)


def _store(s: Threads, op: g.BulkStore | g.TensorStore) -> None:
    launch = s.launch
    for k, box in zip(s.positions().tolist(), boxes(s, op), strict=True):
        who = s.ident[k : k + 1]
        _check_published(s, op, box.shared, k)
        launch.shared.note_read(s, op, box.shared, 1, np.repeat(who, box.shared.size))
        inside = box.outer >= 0
        target = box.outer[inside]
        if not box.memory.writable:
            raise s.fail(op, f"writes to {box.memory.name}, which may only be read", k)
        box.memory.note_write(s, op, target, 1, np.repeat(who, target.size))
        lock = (int(box.shared.min()), int(box.shared.max()) + 1, op)
        transfer = Transfer(
            op, int(s.number[k]), int(who[0]), launch.shared, box.shared[inside], box.memory,
            target, lock=lock,
        )  # fmt: skip
        launch.shared.locked.append(lock)
        launch.engine.stores.append(transfer)
        if not launch.lazy:
            transfer.write()


def _check_published(s: Threads, op: Op, at: Array, position: int) -> None:
    """Raises if the copy engine need not see what threads have written to shared memory."""
    memory = s.launch.shared
    if not memory.watched:
        return
    grains = memory.grains(at, 1)
    who = int(s.ident[position])
    when = memory.when_written[grains]
    bad = (when >= 0) & s.launch.order.unfenced(memory.writer[grains], when, who)
    if bad.any():
        k = int(np.flatnonzero(bad.any(axis=1))[0])
        text = s.launch.place(memory, int(at[k]), 1)
        message = f"no fence (async_shared) lies between the write of {text} and this copy"
        raise s.fail(op, message, position)


def _commit(s: Threads, op: g.BulkCommit) -> None:
    del op
    engine = s.launch.engine
    threads = s.number[s.positions()]
    mine = set(threads.tolist())
    for transfer in engine.stores:
        if transfer.group < 0 and transfer.thread in mine:
            transfer.group = int(engine.groups[transfer.thread])
    engine.groups[threads] += 1


def _wait(s: Threads, op: g.BulkWait) -> None:
    launch = s.launch
    engine = launch.engine
    mine = set(s.number[s.positions()].tolist())
    kept: list[Transfer] = []
    for transfer in engine.stores:
        groups = int(engine.groups[transfer.thread])
        if transfer.thread not in mine or not 0 <= transfer.group < groups - op.pending:
            kept.append(transfer)
            continue
        transfer.read()
        if transfer.lock is not None:
            launch.shared.locked.remove(transfer.lock)
            transfer.lock = None
            who = np.full(transfer.source_at.size, transfer.ident, np.int32)
            launch.shared.note_read(s, transfer.op, transfer.source_at, 1, who)
        if op.read:
            kept.append(transfer)
        else:
            transfer.write()
    engine.stores = kept


RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    g.MbarrierInit: _init,
    g.MbarrierArrive: _arrive,
    g.Fence: _fence,
    g.BulkLoad: _load,
    g.TensorLoad: _load,
    g.BulkStore: _store,
    g.TensorStore: _store,
    g.BulkCommit: _commit,
    g.BulkWait: _wait,
}
