"""Memory of the host for programs that move buffers there for a while, and what copies them.

A native program calls three functions more:

    i32 tessera_cuda_offload(ptr device, i64 at, i64 bytes, i64 number, ptr record)
    i32 tessera_cuda_fetch(ptr device, i64 at, i64 bytes, i64 number, ptr record)
    i32 tessera_cuda_wait(i64 number, ptr record)

The first copies to the host, to byte `at` of the run's room there, the second from it. Copies go
through a stream of the room's: each begins when what was started before in the run's stream has
ended, and runs beside what is started there afterwards. With the third, what follows in the run's
stream begins when the copy of that number has ended.

Invariants:

1. A room serves one run at a time. It waits for the next one in the stream that it was used in, as
   the blocks of the device's memory do: what is started there later comes later.
2. A program waits for all of its copies, so when a run's stream is done, so are its copies. A run
   that failed on the way has its stream wait for them.
3. The room's memory is pinned. It goes back to the pool of pinned memory when the program and its
   copies are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from tessera.runtime.call import Word
from tessera.runtime.cuda.errors import CudaError
from tessera.runtime.cuda.launch import NativeProgram
from tessera.runtime.cuda.stream import Event, Stream
from tessera.runtime.cuda.transfer import pinned
from tessera.runtime.memory import pointer

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import CudaDevice


class HostRoom:
    """What a run has for its copies.

    Args:
        device: where it runs.
        nbytes: of the host's memory.
        copies: how many there are in a run.

    Attributes:
        stream: in which copies run.
        words: what native code reads; see `copier_text.ROOM`.
    """

    def __init__(self, device: CudaDevice, nbytes: int, copies: int) -> None:
        memory = pinned.empty((nbytes,), np.dtype(np.uint8), device)
        self.stream = Stream(device)
        # Kept after the room is gone, until what its stream has by then is done.
        self._memory = device.pool.adopt(pointer(memory), nbytes, memory, self.stream)
        self._events = [Event(device) for _ in range(copies + 1)]
        numbers = [event.number for event in self._events]
        self.words = np.array([self._memory.pointer, self.stream.handle, *numbers], np.uint64)


class HostRooms:
    """The rooms of a program: one for each run that is under way at a time.

    Args:
        device: where it runs.
        nbytes: of the host's memory that a run needs.
        copies: how many there are in a run.
    """

    def __init__(self, device: CudaDevice, nbytes: int, copies: int) -> None:
        self._device = device
        self._nbytes = nbytes
        self._copies = copies
        self._waiting: WeakKeyDictionary[Stream, list[HostRoom]] = WeakKeyDictionary()

    @property
    def waiting(self) -> int:
        """How many rooms wait for their next run."""
        return sum([len(rooms) for rooms in self._waiting.values()])

    def run(self, program: NativeProgram, stream: Stream, words: Sequence[Word]) -> None:
        """Run a program; see `NativeProgram.run`. It never becomes a CUDA graph."""
        waiting = self._waiting.setdefault(stream, [])
        try:
            room = waiting.pop()
        except IndexError:
            room = HostRoom(self._device, self._nbytes, self._copies)
        try:
            program.run(stream, words, room=pointer(room.words))
        except BaseException:
            with suppress(CudaError):  # after some failures nothing answers
                stream.wait(room.stream)
            raise
        finally:
            waiting.append(room)
