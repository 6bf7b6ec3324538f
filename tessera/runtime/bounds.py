"""What compiled code says about its accesses to memory, in the mode that checks them, and about
its values where it has sentinels.

A program that was compiled with checks reports the first access outside of a buffer into four words
(`target/llvm/bad_access.py`), and goes on without it. Whoever called the program looks there, and
raises the error. Sentinels report there too: the first of all reports counts. They tell that there
is a NaN or an infinity; whoever called looks for the operation (`api/sentinels.py`).

Memory that such a program is given to write begins as in the interpreters, every byte `POISON`, so
that what reads before anything was written sees NaN, or -1, and not what luck left there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.dtypes import dtype_of
from tessera.errors import MemoryAccessError
from tessera.runtime.forks import tell
from tessera.runtime.memory import pointer
from tessera.target.llvm.bad_access import BAD_VALUE, RECORD

if TYPE_CHECKING:
    from tessera.target.passes.check_bounds import Site


class BoundsRecord:
    """The record of one program, valid as long as this object lives.

    Args:
        program: its name, for messages.
        sites: its accesses, in the order of their numbers.
        looked_for: what its results are looked at for after each call: some of `nan` and `inf`.

    Attributes:
        symbols: the record's address, by the name under which the program imports it.
    """

    def __init__(
        self, program: str, sites: Sequence[Site], looked_for: Collection[str] = ()
    ) -> None:
        self._program = program
        self._sites = tuple(sites)
        self._looked_for = frozenset(looked_for)
        self._words: Any = (ctypes.c_int64 * 4)()
        # Calls of one program take turns, for there is one record. A function of the host that the
        # program calls may call it again.
        self._lock = threading.RLock()
        self._found = threading.local()
        self.symbols: Mapping[str, int] = {RECORD: ctypes.addressof(self._words)}
        tell(self)

    def after_fork(self) -> None:
        """In a child: no other thread runs the program."""
        self._lock = threading.RLock()

    def checked(self, run: Callable[..., Any], fresh: Sequence[int]) -> Callable[..., Any]:
        """A program's way in that poisons what it is to write, and raises what its record says.

        Args:
            run: calls the program.
            fresh: which of its arguments are memory that nobody has written.
        """
        from tessera.tile.types import POISON  # what no other program needs at run time

        def call(*args: Any) -> Any:
            for place in fresh:
                memory = args[place]
                if not isinstance(memory, int):  # there may be no scratch memory
                    ctypes.memset(pointer(memory), POISON, memory.nbytes)
            with self._lock:
                found = run(*args)
                number, at, low, high = [int(word) for word in self._words]
                self._words[:] = (0, 0, 0, 0)
            if number == BAD_VALUE:
                self._found.is_bad = True
            elif number:
                raise self._error(self._sites[number - 1], at - low, high - low)
            return found

        return call

    def told(self, outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
        """Whether sentinels have found something in the last call on this thread, or results have
        it that no sentinel looks at; asked again, only the latter.

        Args:
            outputs: the results of the call.
        """
        found: bool = getattr(self._found, "is_bad", False)
        self._found.is_bad = False
        return found or any([_is_bad(x, self._looked_for) for x in outputs])

    def _error(self, site: Site, at: int, size: int) -> MemoryAccessError:
        unit = "byte" if site.size == 1 else "bytes"
        return MemoryAccessError(
            f"{self._program}: compiled code {site.what} {site.size} {unit} at byte {at} of a "
            f"buffer of {size} bytes",
            loc=site.loc or None,
            rule="compiled code stays inside of its buffers",
            notes=[f"in the kernel {site.function}"],
            fix="if the line says mode='promise_in_bounds', its indices are not; else this is a "
            "mistake of Tessera's: please report it",
        )


def _is_bad(x: np.ndarray[Any, Any], looked_for: Collection[str]) -> bool:
    """Whether an array has NaN or infinities that are looked for."""
    if not looked_for or not dtype_of(x.dtype).is_inexact:
        return False
    has_nan = "nan" in looked_for and bool(np.isnan(x).any())
    return has_nan or (bool({*looked_for} - {"nan"}) and bool(np.isinf(x).any()))
