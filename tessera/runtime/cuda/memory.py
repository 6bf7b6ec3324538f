"""Memory of a device: a pool of blocks, and the buffers made of them.

Blocks come from a memory pool of the driver's and wait by size for their next use, in the stream
that used them last: what is started there later cannot overtake what was started before, so a block
can be given out again while the device still works on it. Whatever else used the block is waited
for on the device, not on the host.

Invariants:

1. A block waits only when no buffer refers to it, and is given out in its own stream only.
   Waiting blocks lie in lists that are only popped and appended to, which needs no lock.
2. Memory of another library stays alive until the device has passed all work that was started on it
   while a buffer referred to it.
3. Finalizers run at any point of any thread: they append to a queue, and call nothing else.
4. Running out of memory is reported only after everything that waits was given back and asked for
   again. That survives fragmentation too: the driver's pool maps pages anew.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera.errors import Location
from tessera.ir import loc
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.driver import Handle
from tessera.runtime.cuda.errors import CudaError, DeviceMemoryError, error_for
from tessera.runtime.cuda.stream import Event, Stream

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import CudaDevice

ALIGNMENT = 256
"""Every buffer that a pool makes starts at a multiple of so many bytes."""

PLACED_BYTES = 16 << 20
"""Buffers of so many bytes say where they were made, even if whoever makes them does not."""

_OUT_OF_MEMORY = 2
_SMALLEST = 512
_LARGE = 16 << 20
_LARGE_STEP = 2 << 20
_SHOWN_BUFFERS = 8
_MOST_SIZES = 4096
_UNLIMITED = (1 << 64) - 1


def size_class(size: int) -> int:
    """The bytes that a block for so many has: at most an eighth more, so that sizes share blocks.

    >>> size_class(1), size_class(5000), size_class(100 << 20)
    (512, 5120, 104857600)
    """
    if size <= _SMALLEST:
        return _SMALLEST
    step = _LARGE_STEP if size > _LARGE else 1 << max(size.bit_length() - 4, 9)
    return (size + step - 1) // step * step


class Block:
    """Memory from the driver, in use by one buffer, or waiting in its home.

    Attributes:
        pointer: its address.
        capacity: its bytes.
        stream: the stream in which it is used.
        home: where blocks of this size and stream wait.
        nbytes: of the buffer that uses it; negative while it waits.
        place: where the user asked for that.
    """

    __slots__ = ("capacity", "home", "nbytes", "place", "pointer", "stream")

    def __init__(self, pointer: int, capacity: int, stream: Stream, home: list[Block]) -> None:
        self.pointer = pointer
        self.capacity = capacity
        self.stream = stream
        self.home = home
        self.nbytes = -1
        self.place: Location | str | None = None

    def go_home(self) -> None:
        """Wait for the next use."""
        self.nbytes = -1
        self.place = None
        self.home.append(self)


class DeviceBuffer:
    """Memory on a device, for as long as this object lives.

    Made by `DevicePool.allocate`, or by `DevicePool.adopt` of another library's memory.

    Attributes:
        pointer: its address on the device.
        nbytes: its size.
        device: where it is.
        stream: the stream in which it is made and used.
        owner: what keeps it alive, if it is another library's.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_exported",
        "_others",
        "device",
        "nbytes",
        "owner",
        "pointer",
        "stream",
    )

    def __init__(
        self,
        device: CudaDevice,
        pointer: int,
        nbytes: int,
        stream: Stream,
        block: Block | None = None,
        owner: object = None,
    ) -> None:
        self._block = block
        self._others: tuple[Stream, ...] = ()
        self._exported = False
        self.device = device
        self.pointer = pointer
        self.nbytes = nbytes
        self.stream = stream
        self.owner = owner

    def use_on(self, stream: Stream) -> None:
        """Order a stream after all work so far that uses the buffer, and the buffer's end after
        what is started in the stream; nothing to do in the buffer's own stream alone.
        """
        others = self._others
        if stream is self.stream and not others:
            return
        self.order(stream)
        if stream is not self.stream and stream not in others:
            self.device.pool.hold(stream)
            self._others = (*others, stream)

    def order(self, stream: Stream) -> None:
        """Order a stream after all work so far that uses the buffer."""
        for other in (self.stream, *self._others):
            if other is not stream:
                stream.wait(other)

    def export(self) -> None:
        """Note that code unknown here uses the buffer, in streams unknown here: it is given back
        after whatever runs on the device by then.
        """
        self._exported = True

    @property
    def is_private(self) -> bool:
        """Whether no other library has seen the memory, nor made it."""
        return self._block is not None and not self._exported

    @property
    def is_foreign(self) -> bool:
        """Whether the memory is another library's."""
        return self._block is None

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        block = self._block
        if block is not None and not (self._others or self._exported):
            # The same as `go_home`, which would cost as much again.
            block.nbytes = -1
            block.place = None
            block.home.append(block)
        elif not _ending():
            self.device.pool.give_back(
                _Returned(block, self.stream, self._others, self._exported, self.owner)
            )

    def __repr__(self) -> str:
        return f"DeviceBuffer({self.device}, {self.nbytes} bytes at {self.pointer:#x})"


@dataclass(frozen=True, slots=True)
class _Returned:
    """What is left of a buffer that not only its own stream uses, or whose memory is foreign."""

    block: Block | None
    stream: Stream
    others: tuple[Stream, ...]
    exported: bool
    owner: object


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The bytes of a pool.

    Attributes:
        live: of blocks that buffers use.
        peak: about the most of them at once since the last `reset_peak`.
        waiting: of blocks that wait for their next use.
        reserved: that the driver's pool holds of the device.
    """

    live: int
    peak: int
    waiting: int
    reserved: int


class DevicePool:
    """The memory of one device.

    Args:
        device: which.
        limit: how many bytes may wait for their next use; by default half the device's memory. What
            exceeds it goes back to the driver's pool, which also keeps it.

    Attributes:
        returned: what finalizers gave back, and nobody sorted in yet.
        kept: what is kept alive for work that an event stands for.
    """

    def __init__(self, device: CudaDevice, limit: int | None = None) -> None:
        self.device = device
        self.limit: int = device.memory // 2 if limit is None else limit
        self._lock = threading.RLock()
        self._held: Counter[Stream] = Counter()
        self.returned: deque[_Returned] = deque()
        self.kept: deque[tuple[Event, object]] = deque()
        self._blocks: dict[int, Block] = {}
        self._homes: dict[tuple[Handle, int], list[Block]] = {}
        self._total = 0
        self._peak = 0
        self._backend = _backend(device)

    def allocate(
        self, nbytes: int, stream: Stream | None = None, place: Location | str | None = None
    ) -> DeviceBuffer:
        """A new buffer, whose content is not initialised.

        Args:
            nbytes: its size.
            stream: where it is used; by default the device's current stream.
            place: where the user asked for it, for messages; a name will do.

        Raises:
            DeviceMemoryError: The device has no memory left.
        """
        if self.returned or self.kept:
            self._sort_in()
        stream = stream or self.device.current_stream
        if place is None and nbytes >= PLACED_BYTES:
            place = loc.current()
        try:
            block = stream.homes[nbytes].pop()
        except (KeyError, IndexError):
            block = self._new_block(nbytes, stream, place)
        block.nbytes = nbytes
        block.place = place
        return DeviceBuffer(self.device, block.pointer, nbytes, stream, block)

    def home(self, nbytes: int, stream: Stream) -> list[Block]:
        """Where blocks for so many bytes wait in a stream; the same list for the pool's life."""
        with self._lock:
            return self._homes.setdefault((stream.handle, size_class(nbytes)), [])

    def adopt(
        self, pointer: int, nbytes: int, owner: object, stream: Stream | None = None
    ) -> DeviceBuffer:
        """A buffer over another library's memory, which keeps it alive.

        Args:
            pointer: its address on the device.
            nbytes: its size.
            owner: what keeps it alive.
            stream: where it is used from now on. The caller has ordered it after what the other
                library does to the memory.
        """
        stream = stream or self.device.current_stream
        self.hold(stream)
        return DeviceBuffer(self.device, pointer, nbytes, stream, None, owner)

    def hold(self, stream: Stream) -> None:
        """Keep a stream for a buffer that uses it, until the buffer was sorted in. A buffer and its
        stream can become garbage together, and the stream's finalizer may then run first."""
        with self._lock:
            self._held[stream] += 1

    def _let(self, stream: Stream) -> None:
        with self._lock:
            self._held[stream] -= 1
            if not self._held[stream]:
                del self._held[stream]

    def keep(self, thing: object, stream: Stream) -> None:
        """Keep something alive until the work that a stream has by now is done."""
        self.kept.append((stream.record(), thing))

    def give_back(self, returned: _Returned) -> None:
        """Take back what is left of a buffer; called by finalizers."""
        self.returned.append(returned)

    def collect(self) -> None:
        """Sort in what finalizers gave back, and let go of foreign memory that is done with."""
        driver.drain()
        self._sort_in()

    def release(self) -> None:
        """Give everything that waits back to the device, for other libraries; waits for it."""
        self._sort_in()
        self._free_waiting(0)
        self.device.synchronize()
        self._sort_in()
        self._free_waiting(0)
        self._backend.trim()

    def reset_peak(self) -> None:
        """Let the peak start from what is in use now."""
        self._sort_in()
        with self._lock:
            self._peak = self._total - self._waiting_bytes()

    def statistics(self) -> PoolStatistics:
        """How much is in use, and how much waits."""
        self._sort_in()
        with self._lock:
            waiting = self._waiting_bytes()
            live = self._total - waiting
            self._peak = max(self._peak, live)
            return PoolStatistics(live, self._peak, waiting, self._backend.reserved())

    def live(self) -> list[tuple[int, Location | str | None]]:
        """Size and place of each live buffer, largest first."""
        with self._lock:
            blocks = list(self._blocks.values())
        found: list[tuple[int, Location | str | None]] = []
        for block in blocks:
            size, place = block.nbytes, block.place
            if size >= 0:
                found.append((size, place))
        return sorted(found, key=lambda entry: -entry[0])

    def _new_block(self, nbytes: int, stream: Stream, place: Location | str | None) -> Block:
        """A block of the right size that waits, or one from the driver."""
        driver.api()  # refuses a child of fork, in which the lock may be held for ever
        capacity = size_class(nbytes)
        with self._lock:
            home = self.home(nbytes, stream)
            if len(stream.homes) >= _MOST_SIZES:
                stream.homes.clear()
            stream.homes[nbytes] = home
            if home:
                return home.pop()
            waiting = self._waiting_bytes()
            if waiting > self.limit:
                self._free_waiting(self.limit)
            pointer, status = self._backend.allocate(capacity, stream)
        if status == _OUT_OF_MEMORY and capacity <= self.device.memory:
            # Arrays may be held by cycles, and all that waits may be of other sizes.
            gc.collect()
            self.release()
            pointer, status = self._backend.allocate(capacity, stream)
        if status == _OUT_OF_MEMORY:
            raise self._exhausted(nbytes, place)
        if status:
            driver.raise_status(status, f"allocation of {show_bytes(nbytes)} on {self.device}")
        block = Block(pointer, capacity, stream, home)
        with self._lock:
            self._blocks[pointer] = block
            self._total += capacity
            self._peak = max(self._peak, self._total - self._waiting_bytes())
        return block

    def _waiting_bytes(self) -> int:
        return sum(len(home) * capacity for (_, capacity), home in self._homes.items())

    def _free_waiting(self, limit: int) -> None:
        """Give blocks that wait back to the driver, until so many bytes wait."""
        with self._lock:
            excess = self._waiting_bytes() - limit
            for home in self._homes.values():
                while home and excess > 0:
                    try:
                        block = home.pop()
                    except IndexError:  # another thread took it
                        break
                    excess -= block.capacity
                    self._total -= block.capacity
                    del self._blocks[block.pointer]
                    self._backend.free(block.pointer, block.stream)

    def _exhausted(self, nbytes: int, place: Location | str | None) -> CudaError:
        entries = self.live()
        notes = [f"live buffers: {show_bytes(sum(e[0] for e in entries))} in {len(entries)}"]
        notes += [f"  {show_bytes(size):>10}  {_show(at)}" for size, at in entries[:_SHOWN_BUFFERS]]
        if len(entries) > _SHOWN_BUFFERS:
            rest = [size for size, _ in entries[_SHOWN_BUFFERS:]]
            notes.append(f"  {show_bytes(sum(rest)):>10}  in {len(rest)} smaller ones")
        try:
            free, total = self.device.memory_info()
            notes.append(
                f"{self.device} has {show_bytes(total)}, of which {show_bytes(free)} are free"
            )
        except CudaError:
            pass
        where = f" for {place}" if isinstance(place, str) else ""
        return error_for(
            _OUT_OF_MEMORY,
            f"allocation of {show_bytes(nbytes)} on {self.device}{where}",
            describe=lambda _: ("CUDA_ERROR_OUT_OF_MEMORY", ""),
            loc=None if isinstance(place, str) else place or loc.current(),
            notes=notes,
        )

    def _sort_in(self) -> None:
        """Let blocks wait that were given back, and owners go whose memory is not used any more."""
        while self.returned:
            try:
                returned = self.returned.popleft()
            except IndexError:
                break
            self._order(returned)
            if returned.owner is not None:
                self.keep(returned.owner, returned.stream)
            if returned.block is None:
                self._let(returned.stream)
            else:
                returned.block.go_home()
            for stream in returned.others:
                self._let(stream)
        self._let_go()

    def _order(self, returned: _Returned) -> None:
        """Let the buffer's own stream wait for whatever else uses its memory."""
        for other in returned.others:
            returned.stream.wait(other)
        if returned.exported:
            event = self.device.record_all()
            if event is not None:
                returned.stream.wait(event)
            else:
                with self.device:
                    driver.call("cuCtxSynchronize", what=f"work on {self.device}")

    def _let_go(self) -> None:
        """Let go of what was kept for work that is done by now."""
        with self._lock:
            while self.kept and self.kept[0][0].is_done():
                self.kept.popleft()

    def __repr__(self) -> str:
        return f"DevicePool({self.device}, {show_bytes(self._total)})"


class _OrderedBackend:
    """The driver's stream-ordered allocator, with a pool of our own."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        api = driver.api()
        properties = api.CUmemPoolProps()
        properties.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device.index
        with device:
            self.pool: Any = driver.call("cuMemPoolCreate", properties)
            # Memory stays with the pool across synchronisations; it is trimmed when it runs out.
            driver.call(
                "cuMemPoolSetAttribute",
                self.pool,
                api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                api.cuuint64_t(_UNLIMITED),
            )

    def allocate(self, capacity: int, stream: Stream) -> tuple[int, int]:
        """An address and the driver's status."""
        with self.device:
            status, *found = driver.api().cuMemAllocFromPoolAsync(
                capacity, self.pool, stream.raw_handle
            )
        return (0, int(status)) if int(status) else (int(found[0]), 0)

    def free(self, pointer: int, stream: Stream) -> None:
        """Give an address back, after what its stream does by now."""
        with self.device:
            driver.call("cuMemFreeAsync", pointer, stream.raw_handle)

    def trim(self) -> None:
        """Give the device back what is not in use."""
        with self.device:
            # The driver's pool counts memory as free from a wait of this kind on, not from events.
            driver.call("cuCtxSynchronize", what=f"work on {self.device}")
            driver.call("cuMemPoolTrimTo", self.pool, 0)

    def reserved(self) -> int:
        """Bytes taken from the device."""
        attribute = driver.api().CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        with self.device:
            return int(driver.call("cuMemPoolGetAttribute", self.pool, attribute))


class _PlainBackend:
    """The driver's allocator that waits for the device, where there is no other."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.sizes: dict[int, int] = {}

    def allocate(self, capacity: int, stream: Stream) -> tuple[int, int]:
        """An address and the driver's status."""
        with self.device:
            status, *found = driver.api().cuMemAlloc(capacity)
        if int(status):
            return 0, int(status)
        self.sizes[int(found[0])] = capacity
        return int(found[0]), 0

    def free(self, pointer: int, stream: Stream) -> None:
        """Give an address back; this waits for the device."""
        del self.sizes[pointer]
        with self.device:
            driver.call("cuMemFree", pointer)

    def trim(self) -> None:
        """Nothing is held."""

    def reserved(self) -> int:
        """Bytes taken from the device."""
        return sum(self.sizes.values())


def _backend(device: CudaDevice) -> _OrderedBackend | _PlainBackend:
    if device.attribute("MEMORY_POOLS_SUPPORTED"):
        return _OrderedBackend(device)
    return _PlainBackend(device)


def show_bytes(size: int) -> str:
    """A number of bytes for people.

    >>> show_bytes(1536), show_bytes(3 << 30)
    ('1.50 KiB', '3.00 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.2f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def _show(place: Location | str | None) -> str:
    if place is None:
        return "(made in compiled code or by Tessera)"
    if isinstance(place, str):
        return place
    return place.render().split("\n")[0] or "(made by Tessera)"


__all__ = [
    "ALIGNMENT",
    "PLACED_BYTES",
    "Block",
    "DeviceBuffer",
    "DeviceMemoryError",
    "DevicePool",
    "PoolStatistics",
    "show_bytes",
    "size_class",
]
