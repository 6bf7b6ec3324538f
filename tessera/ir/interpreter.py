"""Settings of Python's interpreter that are others while programs are compiled.

Lowering makes hundreds of thousands of objects that live until the program is done. Each time their
number has grown by a quarter Python looks through all objects of the process, in vain, which takes
a third of the time of lowering a large program.

A thread that compiles needs the interpreter's lock for a moment now and then. Where another one
lowers meanwhile, it waits for five milliseconds each time, which are as long as what it does in
between.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class _Setting:
    """A number of the interpreter. Blocks with the other one may nest, and run on several threads:
    what was set before the first of them is set again after the last, unless somebody else has set
    another number meanwhile."""

    def __init__(
        self, get: Callable[[], float], put: Callable[[float], None], meanwhile: float
    ) -> None:
        self._get, self._put = get, put
        self._meanwhile = meanwhile
        self._usual = meanwhile
        self._lock = threading.Lock()
        self._inside = 0

    @contextmanager
    def __call__(self) -> Generator[None, None, None]:
        with self._lock:
            if not self._inside:
                self._usual = self._get()
                self._put(self._meanwhile)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside and self._get() == self._meanwhile:
                    self._put(self._usual)


def _put_old(threshold: float) -> None:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, int(threshold))


young_garbage_only = _Setting(lambda: gc.get_threshold()[2], _put_old, 1 << 30)
"""Within the block, young objects are collected as always, and old ones are not looked at."""

_SHORT = 0.0005
"""Seconds; Python keeps whole microseconds."""

short_turns = _Setting(sys.getswitchinterval, sys.setswitchinterval, _SHORT)
"""Within the block, a thread waits half a millisecond for the interpreter's lock, not five."""
