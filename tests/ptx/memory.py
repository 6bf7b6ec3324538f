"""The memories of a grid: every access is checked, and what nobody wrote is poison.

Addresses of global memory are invented: each buffer has its own, far from its neighbours'.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tests.ptx.parser import PtxError

Array = npt.NDArray[Any]

GLOBAL = 1 << 40
SHARED = 1 << 48
"""Where shared memory lies among the generic addresses."""
LOCAL = 1 << 49
PARAM = 1 << 50
SHARED_BASE = 1024
"""The first address of shared memory: zero is none."""
_GAP = 4096
_ONES = {
    n: np.frombuffer(b"\1" * n, f"u{n}")[0] for n in (1, 2, 4, 8)
}  # a byte that was written is marked 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of global memory."""

    name: str
    start: int
    size: int


class Fault(Exception):
    """An access that must not be; the machine adds the line and the thread."""

    def __init__(self, text: str, lane: int) -> None:
        super().__init__(text)
        self.lane = lane


class GlobalMemory:
    """All buffers side by side in one array, with gaps that nobody may touch."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.size = _GAP
        self.contents: list[bytes] = []

    def add(self, name: str, content: bytes) -> Buffer:
        """A buffer with a content; its address is a multiple of 256."""
        buffer = Buffer(name, GLOBAL + self.size, len(content))
        self.buffers.append(buffer)
        self.contents.append(content)
        self.size = -(-(self.size + len(content) + _GAP) // 256) * 256
        return buffer

    def finish(self) -> None:
        """The array itself, once all buffers are known."""
        self.bytes = np.zeros(self.size, "u1")
        for buffer, content in zip(self.buffers, self.contents, strict=True):
            self.bytes[buffer.start - GLOBAL :][: buffer.size] = np.frombuffer(content, "u1")
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.starts = [buffer.start for buffer in self.buffers]
        self.ends = [buffer.start + buffer.size for buffer in self.buffers]

    def read(self, buffer: Buffer) -> Array:
        """The bytes of a buffer."""
        return self.bytes[buffer.start - GLOBAL :][: buffer.size]

    def check(self, addresses: Array, size: int, lanes: Array) -> None:
        """Refuse accesses outside of buffers, and misaligned ones."""
        if (addresses & (size - 1)).any():
            at = int(np.flatnonzero(addresses & (size - 1))[0])
            raise Fault(f"address {int(addresses[at]):#x} is no multiple of {size}", int(lanes[at]))
        low, high = int(addresses.min()), int(addresses.max())
        i = bisect.bisect_right(self.starts, low) - 1
        if i >= 0 and high + size <= self.ends[i]:
            return
        where = np.searchsorted(np.array(self.starts), addresses, "right") - 1
        ends = np.array(self.ends or [0])
        bad = (where < 0) | (addresses + size > ends[where])
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise Fault(self._outside(int(addresses[at]), size), int(lanes[at]))

    def _outside(self, address: int, size: int) -> str:
        text = f"{size} bytes at {address:#x} are in no buffer"
        if self.buffers:
            near = min(
                self.buffers,
                key=lambda b: max(b.start - address, address + size - b.start - b.size),
            )
            offset = address - near.start
            if abs(offset) < 1 << 30:
                text += f"; it is byte {offset} of {near.name}, which has {near.size}"
        return text

    def load(self, addresses: Array, width: int) -> Array:
        """One element for each address, which was checked."""
        return self.views[width][(addresses - GLOBAL) // width]

    def store(self, addresses: Array, values: Array, width: int) -> None:
        """The reverse."""
        self.views[width][(addresses - GLOBAL) // width] = values


class Watch(Protocol):
    """Somebody who is told of every access to shared memory."""

    def read(self, places: Array, width: int, lanes: Array) -> None:
        """Lanes read elements."""
        ...

    def write(self, places: Array, width: int, lanes: Array) -> None:
        """Lanes write elements."""
        ...


class SharedMemory:
    """The shared memory of all resident blocks, with a mark for each byte that was written."""

    def __init__(self, blocks: int, threads: int, size: int) -> None:
        self.size = size
        # Rows are as far apart as any element's alignment needs.
        self.stride = -(-max(size, 16) // 1024) * 1024
        self.bytes = np.zeros(blocks * self.stride, "u1")
        self.known = np.zeros(blocks * self.stride, "u1")
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.marks = {n: self.known.view(f"u{n}") for n in (1, 2, 4, 8)}
        lanes = np.arange(blocks * threads) // threads
        self.row = lanes * self.stride - SHARED_BASE
        self.races: Watch | None = None

    def reset(self) -> None:
        """New blocks begin: nothing is known."""
        self.bytes.fill(0xCB)
        self.known.fill(0)

    def place(self, addresses: Array, lanes: Array, size: int) -> Array:
        """Byte positions of addresses, checked."""
        if (addresses & (size - 1)).any():
            at = int(np.flatnonzero(addresses & (size - 1))[0])
            raise Fault(
                f"shared address {int(addresses[at]) - SHARED_BASE} is no multiple of {size}",
                int(lanes[at]),
            )
        if int(addresses.min()) < SHARED_BASE or int(addresses.max()) + size > (
            SHARED_BASE + self.size
        ):
            bad = (addresses < SHARED_BASE) | (addresses + size > SHARED_BASE + self.size)
            at = int(np.flatnonzero(bad)[0])
            raise Fault(
                f"{size} bytes at byte {int(addresses[at]) - SHARED_BASE} of shared memory, "
                f"which has {self.size}",
                int(lanes[at]),
            )
        return addresses + self.row[lanes]

    def load(self, places: Array, width: int, lanes: Array) -> Array:
        """One element for each place."""
        if self.races is not None:
            self.races.read(places, width, lanes)
        at = places // width
        known = self.marks[width][at] == _ONES[width]
        if not known.all():
            i = int(np.flatnonzero(~known)[0])
            lane = int(lanes[i])
            raise Fault(
                f"byte {int(places[i] - self.row[lane]) - SHARED_BASE} of shared memory is read "
                "before anything was written there",
                lane,
            )
        return self.views[width][at]

    def store(self, places: Array, values: Array, width: int, lanes: Array) -> None:
        """The reverse."""
        if self.races is not None:
            self.races.write(places, width, lanes)
        at = places // width
        self.views[width][at] = values
        self.marks[width][at] = _ONES[width]


class LocalMemory:
    """Every thread's own bytes."""

    def __init__(self, lanes: int, size: int) -> None:
        self.size = size
        self.stride = -(-max(size, 16) // 16) * 16
        self.bytes = np.zeros(lanes * self.stride, "u1")
        self.views = {n: self.bytes.view(f"u{n}") for n in (1, 2, 4, 8)}

    def place(self, addresses: Array, lanes: Array, size: int) -> Array:
        """Byte positions of addresses, checked."""
        bad = (addresses < 0) | (addresses + size > self.size) | (addresses % size != 0)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise Fault(f"{size} bytes at byte {int(addresses[at])} of local memory", lanes[at])
        return addresses + lanes * self.stride


class Memories:
    """The spaces by name, and generic addresses."""

    def __init__(
        self, memory: GlobalMemory, shared: SharedMemory, local: LocalMemory, params: bytes
    ) -> None:
        self.globals = memory
        self.shared = shared
        self.local = local
        self.params = np.frombuffer(params.ljust(16, b"\0"), "u1")

    def load(
        self, space: str, addresses: Array, width: int, count: int, lanes: Array
    ) -> list[Array]:
        """`count` elements of `width` bytes at each lane's address."""
        size = width * count
        if space == "generic":
            return self._split(
                addresses, lanes, lambda s, a, x: self.load(s, a, width, count, x), width, count
            )
        if space in ("global", "const"):
            self.globals.check(addresses, size, lanes)
            return [self.globals.load(addresses + i * width, width) for i in range(count)]
        if space.startswith("shared"):
            places = self.shared.place(addresses, lanes, size)
            return [self.shared.load(places + i * width, width, lanes) for i in range(count)]
        if space == "local":
            places = self.local.place(addresses, lanes, size)
            return [self.local.views[width][(places + i * width) // width] for i in range(count)]
        if space == "param":
            index = addresses[:, None] + np.arange(size)
            raw = np.ascontiguousarray(self.params[index]).view(f"u{width}")
            return [raw[:, i] for i in range(count)]
        raise PtxError(f"loads from .{space} are not supported")

    def store(
        self, space: str, addresses: Array, values: list[Array], width: int, lanes: Array
    ) -> None:
        """The reverse."""
        size = width * len(values)
        if space == "generic":
            for own, name, picked in self._spaces(addresses, lanes):
                parts = [value[picked] for value in values]
                self.store(name, own, parts, width, lanes[picked])
            return
        if space == "global":
            self.globals.check(addresses, size, lanes)
            for i, value in enumerate(values):
                self.globals.store(addresses + i * width, value, width)
        elif space.startswith("shared"):
            places = self.shared.place(addresses, lanes, size)
            for i, value in enumerate(values):
                self.shared.store(places + i * width, value, width, lanes)
        elif space == "local":
            places = self.local.place(addresses, lanes, size)
            for i, value in enumerate(values):
                self.local.views[width][(places + i * width) // width] = value
        else:
            raise PtxError(f"stores to .{space} are not supported")

    def _spaces(self, addresses: Array, lanes: Array) -> list[tuple[Array, str, Array]]:
        found: list[tuple[Array, str, Array]] = []
        rest = np.ones(len(addresses), bool)
        for name, base in (("param", PARAM), ("local", LOCAL), ("shared", SHARED)):
            here = rest & (addresses >= base)
            if here.any():
                picked = np.flatnonzero(here)
                found.append((addresses[picked] - base, name, picked))
                rest &= ~here
        if rest.any():
            picked = np.flatnonzero(rest)
            found.append((addresses[picked], "global", picked))
        return found

    def _split(
        self,
        addresses: Array,
        lanes: Array,
        load: Callable[[str, Array, Array], list[Array]],
        width: int,
        count: int,
    ) -> list[Array]:
        result = [np.zeros(len(addresses), f"u{width}") for _ in range(count)]
        for own, name, picked in self._spaces(addresses, lanes):
            for whole, part in zip(result, load(name, own, lanes[picked]), strict=True):
                whole[picked] = part
        return result
