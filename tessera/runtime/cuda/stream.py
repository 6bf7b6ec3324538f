"""Streams and events: the order of work on a device, and waiting for it.

Work of one stream happens in the order in which it was started. There is one stream per device by
default; others are for users who want work to overlap.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from tessera.runtime.cuda import driver
from tessera.runtime.cuda.driver import Handle
from tessera.runtime.cuda.errors import CudaError

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import CudaDevice
    from tessera.runtime.cuda.record import LaunchRecord

_NOT_READY = 600
_NON_BLOCKING = 1
_NO_TIMING = 2

LEGACY_STREAM = 1
"""The driver's number of the legacy default stream, which waits for all blocking streams."""

PER_THREAD_STREAM = 2
"""The driver's number of the default stream that each thread has of its own."""

# How long a wait asks again and again before it sleeps between questions. Sleeps are a small part
# of the time waited so far, so that they lengthen it little, and shorter than people notice.
_SPIN_SECONDS = 1e-3
_SLEEP_PART = 0.03
_LONGEST_SLEEP = 5e-3


def wait_for(is_done: Callable[[], bool], block: Callable[[], None]) -> None:
    """Wait until something is done, so that Ctrl-C is answered.

    Python handles signals between bytecodes of the main thread: a wait inside the driver would keep
    them waiting too. There, the wait asks and sleeps; other threads wait inside the driver.

    Args:
        is_done: asks.
        block: waits inside the driver.
    """
    if threading.current_thread() is not threading.main_thread():
        block()
        return
    started = time.perf_counter()
    while not is_done():
        waited = time.perf_counter() - started
        if waited > _SPIN_SECONDS:
            time.sleep(min(waited * _SLEEP_PART, _LONGEST_SLEEP))


class Stream:
    """A stream of a device, which no other stream waits for unless told to.

    As a context manager, it is where work of this thread goes meanwhile.

    Args:
        device: where.
        priority: lower numbers go first, where the device has priorities.

    Attributes:
        device: where.
        handle: the driver's.
        homes: where the pool's blocks of this stream wait, by the bytes that are asked for.
        records: what native programs of each thread start kernels with.
    """

    __slots__ = (
        "__weakref__",
        "_owned",
        "_owner",
        "device",
        "handle",
        "homes",
        "raw_handle",
        "records",
    )

    def __init__(self, device: CudaDevice, *, priority: int = 0) -> None:
        with device:
            found = driver.call("cuStreamCreateWithPriority", _NON_BLOCKING, priority)
        self._set(device, found, True, None)

    @classmethod
    def external(cls, device: CudaDevice, handle: Handle, owner: object = None) -> Stream:
        """A stream that another library made: an address, `LEGACY_STREAM` or `PER_THREAD_STREAM`.

        Args:
            device: where.
            handle: its address.
            owner: what keeps it alive.
        """
        stream = cls.__new__(cls)
        stream._set(device, driver.api().CUstream(handle), False, owner)
        return stream

    def _set(self, device: CudaDevice, found: Any, owned: bool, owner: object) -> None:
        self.device = device
        self.handle: Handle = int(found)
        # The bindings' own object: they make one of a number at each call.
        self.raw_handle: Any = found
        self.homes: dict[int, list[Any]] = {}
        self.records: dict[int, LaunchRecord] = {}
        self._owned = owned
        self._owner = owner

    def is_done(self) -> bool:
        """Whether all work so far has ended."""
        with self.device:
            return self._is_done()

    def _is_done(self) -> bool:
        status = driver.status_of("cuStreamQuery", self.raw_handle)
        if status and status != _NOT_READY:
            raise_late(status, f"work on {self.device}")
        return not status

    def synchronize(self) -> None:
        """Wait until all work so far has ended; Ctrl-C ends the wait, not the work.

        Raises:
            CudaError: Work failed, here or in an earlier launch.
        """
        with self.device:
            wait_for(self._is_done, self._block)
        driver.drain()

    def _block(self) -> None:
        status = driver.status_of("cuStreamSynchronize", self.raw_handle)
        if status:
            raise_late(status, f"work on {self.device}")

    def wait(self, other: Event | Stream) -> None:
        """Let work that is started here from now on wait for an event, or for another stream."""
        event = other.record() if isinstance(other, Stream) else other
        with self.device:
            driver.call("cuStreamWaitEvent", self.raw_handle, event.handle, 0)

    def record(self, event: Event | None = None) -> Event:
        """An event that is done when all work so far is."""
        event = event or Event(self.device)
        with self.device:
            driver.call("cuEventRecord", event.handle, self.raw_handle)
        return event

    def __enter__(self) -> Stream:
        chosen = self.device.chosen
        chosen.set((*chosen.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        chosen = self.device.chosen
        chosen.set(chosen.get()[:-1])

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # The attributes are missing where the constructor failed.
        if not _ending() and getattr(self, "_owned", False):
            driver.retire(self.device.context, "cuStreamDestroy", self.handle)

    def __repr__(self) -> str:
        return f"Stream({self.device}, {self.handle:#x})"


class Event:
    """A point in a stream.

    Args:
        device: of the streams that record it.
        timing: whether `seconds_since` works on it; that makes recording slower.
    """

    __slots__ = ("__weakref__", "device", "handle", "number", "timing")

    def __init__(self, device: CudaDevice, *, timing: bool = False) -> None:
        self.device = device
        self.timing = timing
        with device:
            self.handle: Any = driver.call("cuEventCreate", 0 if timing else _NO_TIMING)
        self.number = int(self.handle)

    def is_done(self) -> bool:
        """Whether the work before it has ended; also if it was never recorded."""
        with self.device:
            return self._is_done()

    def _is_done(self) -> bool:
        status = driver.status_of("cuEventQuery", self.handle)
        if status and status != _NOT_READY:
            raise_late(status, f"work on {self.device}")
        return not status

    def synchronize(self) -> None:
        """Wait until the work before it has ended; Ctrl-C ends the wait, not the work."""
        with self.device:
            wait_for(self._is_done, self._block)

    def _block(self) -> None:
        status = driver.status_of("cuEventSynchronize", self.handle)
        if status:
            raise_late(status, f"work on {self.device}")

    def seconds_since(self, start: Event) -> float:
        """The time from another event to this one; waits for both."""
        if not (self.timing and start.timing):
            raise CudaError(
                "seconds_since: an event was made without timing",
                fix="make both with Event(device, timing=True)",
            )
        start.synchronize()
        self.synchronize()
        with self.device:
            return float(driver.call("cuEventElapsedTime", start.handle, self.handle)) / 1e3

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending() and hasattr(self, "number"):
            driver.retire(self.device.context, "cuEventDestroy", self.number)

    def __repr__(self) -> str:
        return f"Event({self.device}, {self.number:#x})"


def raise_late(status: int, what: str) -> NoReturn:
    """Raise the error that a wait found; the work that caused it was started earlier."""
    driver.raise_status(
        status,
        what,
        notes=["this is reported by a later call: what failed was started before"],
    )
