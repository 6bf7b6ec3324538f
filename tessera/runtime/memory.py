"""Host memory for arrays: aligned to cache lines, and large blocks used again.

Vector loads that cross cache lines cost nearly twice as much, so every buffer that Tessera
allocates starts on one. All but small ones start on a page: a core first tells a load from the
stores before it by the place in a page, and where a result lies a few lines behind an operand,
loads wait for stores that they have nothing to do with. A chain of ten operations on 40,000
elements took 5.0 us where all start on pages, and up to 6.2 with 64 to 256 bytes between.

Small buffers come from NumPy's allocator, which recycles them itself. Large ones would be fresh
mappings each time, and there the kernel's work of filling in pages exceeds the work of the code
that writes them; they return to a pool instead when the last array over them dies. Results of
native calls that are not large have lists of their own (`dispatch/blocks_text.py`).

Invariants:

1. Memory is in the pool only while no array, and no view of one, can reach it.
2. The pool holds at most ``limit`` bytes, and gives the oldest blocks back first; all of them
   before memory is new where the machine is short of it.
3. Finalizers run at any point of any thread, also inside the pool's own code: they never wait.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.config import config
from tessera.graph.host_copy import LARGE, RECYCLED
from tessera.runtime.forks import hold

Array = npt.NDArray[Any]

ALIGNMENT = 64

PAGE = 4096

# From here on buffers start on pages.
PAGED_BYTES = 1 << 14

# Below this the allocator recycles well itself, and the pool's two microseconds would show.
POOLED_BYTES = LARGE

# Results of native calls between small and large wait in lists, of so many lines of 64 bytes
# together: an eighth of what the pool may hold.
LISTED_LINES: ctypes.c_int64 = ctypes.c_int64((config.memory_cache << 17) // 64)

Output: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], int]"
"""Shape, dtype and bytes of an array that is to be made."""

# From here on a new block asks first what the machine has left.
_WATCHED_BYTES = 1 << 23

_BYTE = np.dtype(np.uint8)
_ndarray: Any = np.ndarray
_word: Any = ctypes.c_uint64.from_address

# The type is the last field of every object's head. NumPy's array, whose layout compiled extensions
# rely on, has the address of its data next.
DATA_OFFSET = object.__basicsize__
TYPE_OFFSET = DATA_OFFSET - 8


def _layout_is_known() -> bool:
    """Whether the address of an array's data lies where it is expected to."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    samples = (np.empty((2, 3)), np.empty(5, np.int8)[2:], np.empty(()))
    return all(
        _word(id(array) + DATA_OFFSET).value == array.__array_interface__["data"][0]
        and _word(id(array) + TYPE_OFFSET).value == id(np.ndarray)
        for array in samples
    )


KNOWN_LAYOUT: bool = _layout_is_known()
"""Whether arrays of this NumPy and Python may be read by address, a check made once."""


def _pointer_by_layout(array: Array) -> int:
    if not isinstance(array, _ndarray):  # NumPy's scalars have something else there
        raise TypeError(f"memory of an array is asked for, not of {type(array).__name__}")
    return _word(id(array) + DATA_OFFSET).value


def _pointer_by_interface(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


# References to an array at one place, as code like that of `is_all_its_own` sees them; the number
# differs among versions of Python. Without the interpreter's lock they cannot be counted.
COUNTED: bool = sys.implementation.name == "cpython" and getattr(
    sys, "_is_gil_enabled", lambda: True
)()


def _references() -> int:
    owner: Any = np.empty(2)[:1]
    base = owner.base
    return sys.getrefcount(base)


_REFERENCES = _references()


pointer = _pointer_by_layout if KNOWN_LAYOUT else _pointer_by_interface
"""The address of an array's first element. The caller keeps the array alive."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array in C order whose memory is aligned to 64 bytes and not initialised.

    >>> pointer(aligned_empty((2, 3), np.dtype("f4"))) % 64
    0
    """
    return aligned_sized(shape, dtype, math.prod(shape) * dtype.itemsize)


def aligned_sized(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> Array:
    """`aligned_empty` for a caller who knows how many bytes it takes."""
    if size >= POOLED_BYTES:
        pool.limit = config.current().memory_cache << 20
        LISTED_LINES.value = pool.limit // 512
        return pool.empty(shape, dtype, size)
    to = PAGE if size >= PAGED_BYTES else ALIGNMENT
    raw = np.empty(size + to - 1, _BYTE)
    return _ndarray(shape, dtype, raw, -pointer(raw) & to - 1)


RECYCLED.append(aligned_sized)


def is_all_its_own(array: Array) -> bool:
    """Whether nobody else can see the memory of an array that nobody else has.

    It is aligned as our arrays are, and was got for arrays: no other library's, and no file's.
    """
    if pointer(array) % ALIGNMENT or not COUNTED:
        return False
    owner: Any = array
    while type(owner) is _ndarray:
        base = owner.base
        if base is None:
            return owner.flags.owndata
        if sys.getrefcount(base) != _REFERENCES:
            return False
        owner = base
    return isinstance(owner, PooledMemory)


def aligned_together(
    parts: Sequence[tuple[tuple[int, ...], np.dtype[Any], int]], size: int
) -> list[Array]:
    """New small arrays in one piece of memory, which lives as long as any of them.

    Args:
        parts: shape, dtype and offset of each; the offsets are multiples of the alignment.
        size: how many bytes they take together.
    """
    raw = np.empty(size + ALIGNMENT - 1, _BYTE)
    start = -pointer(raw) & ALIGNMENT - 1
    return [_ndarray(shape, dtype, raw, start + offset) for shape, dtype, offset in parts]


def empty(size: int) -> Array:
    """Aligned memory of so many bytes, as the array of bytes that owns it."""
    return aligned_empty((size,), _BYTE)


class PooledMemory:
    """What the memory under an array of a pool is an instance of."""

    __slots__ = ()


class Pool:
    """Blocks of memory in waiting, by size.

    Args:
        limit: How many bytes may wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        # What finalizers gave back and nobody has sorted in yet; appending needs no lock.
        self._returned: deque[Array] = deque()
        self._lock = threading.Lock()
        # By arrival, oldest first, and for each size the arrivals, newest last.
        self._waiting: dict[int, Array] = {}
        self._by_size: dict[int, list[int]] = {}
        self._bytes = 0
        self._live = 0
        self._peak = 0
        self._arrivals = 0
        self._types: dict[int, Any] = {}
        # Frees what waits elsewhere.
        self.beside: list[Callable[[], object]] = []

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be used again."""
        return self._bytes + sum(memory.nbytes for memory in list(self._returned))

    @property
    def live_bytes(self) -> int:
        """How many bytes are in use."""
        with self._lock:
            self._sort_in()
            return self._live

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once since the last `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Let the peak start from what is in use now."""
        self._peak = self.live_bytes

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> Array:
        """An aligned array of so many bytes, in memory that waited if there is any."""
        capacity = _size_class(size) + PAGE
        memory = self._take(capacity)
        if memory is None:
            memory = self._new(capacity)
        start = pointer(memory) + PAGE - 1 & -PAGE
        block_type = self._types.get(capacity)
        if block_type is None:
            block_type = self._types[capacity] = self._block_type(capacity - PAGE)
        block = block_type.from_address(start)
        block.memory = memory
        return _ndarray(shape, dtype, block)

    def give_back(self, memory: Array) -> None:
        """Let memory wait for its next use; called by finalizers."""
        self._returned.append(memory)
        # Whoever holds the lock may have sorted already: look again after each release. Ctrl-C is
        # raised after calls, also that of `acquire`; what `map` gives is noted before.
        taken = True
        while taken and self._returned:
            for taken in map(self._lock.acquire, (False,)):
                if taken:
                    try:
                        self._sort_in()
                    finally:
                        self._lock.release()

    def keep_across_forks(self) -> None:
        """Let no process fork while another thread changes the pool: its child would wait for that
        thread, which it has not."""
        hold(self._lock)

    def release(self) -> None:
        """Free everything that waits."""
        with self._lock:
            self._sort_in()
            self._waiting.clear()
            self._by_size.clear()
            self._bytes = 0
        for free in self.beside:
            free()

    def _block_type(self, size: int) -> Any:
        """The type of the memory under an array: the base of the array and of all its views.

        NumPy shortens chains of bases to the last array that owns its memory. Over an object that
        is no array it cannot, so the end of that object is the end of all views.
        """
        base: Any = ctypes.c_char * size

        def finalize(block: Any) -> None:
            self.give_back(block.memory)

        return type("Block", (base, PooledMemory), {"__slots__": ("memory",), "__del__": finalize})

    def _new(self, capacity: int) -> Array:
        """Memory from the system: NumPy asks for large pages where they help."""
        try:
            waits = self._bytes or self.beside
            if capacity >= _WATCHED_BYTES and waits and available_bytes() < 2 * capacity:
                self.release()
            return np.empty(capacity, _BYTE)
        except MemoryError:
            self.release()
        try:
            return np.empty(capacity, _BYTE)
        except MemoryError:
            with self._lock:
                self._live -= capacity
            raise

    def _take(self, capacity: int) -> Array | None:
        with self._lock:
            self._sort_in()
            self._live += capacity
            self._peak = max(self._peak, self._live)
            arrivals = self._by_size.get(capacity)
            if not arrivals:
                return None
            memory = self._waiting.pop(arrivals.pop())
            self._bytes -= capacity
            return memory

    def _sort_in(self) -> None:
        """Sort in what was given back, within the limit. Under the lock."""
        while self._returned:
            try:
                memory = self._returned.popleft()
            except IndexError:
                return
            self._live -= memory.nbytes
            self._arrivals += 1
            self._waiting[self._arrivals] = memory
            self._by_size.setdefault(memory.nbytes, []).append(self._arrivals)
            self._bytes += memory.nbytes
        while self._bytes > self.limit:
            oldest = next(iter(self._waiting))
            dropped = self._waiting.pop(oldest)
            self._by_size[dropped.nbytes].remove(oldest)
            self._bytes -= dropped.nbytes


def _size_class(size: int) -> int:
    """The capacity for a size: at most a 32nd more, so that similar sizes share blocks."""
    step = 1 << max(size.bit_length() - 6, 6)
    return (size + step - 1) // step * step


def available_bytes() -> int:
    """Memory that the machine, or this process's control group, has left; a guess at worst."""
    found = [_field("/proc/meminfo", "MemAvailable:") * 1024]
    limit, used = (_field(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if 0 <= used <= limit:
        found.append(limit - used)
    return min([n for n in found if n >= 0], default=1 << 62)


def _field(path: str, name: str = "") -> int:
    """A number in a file of the system, behind a name; negative if there is none."""
    try:
        with open(path, encoding="ascii") as file:
            words = file.read().split()
        return int(words[words.index(name) + 1 if name else 0])
    except (OSError, ValueError, IndexError):
        return -1


pool = Pool(config.memory_cache << 20)
"""The pool that ``aligned_empty`` uses."""
pool.keep_across_forks()
