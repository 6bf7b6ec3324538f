"""Threads that compile the modules of one program together.

LLVM needs most of the time that compiling takes, and none of the interpreter's lock meanwhile. A
`Crew` takes modules as they are written, starts threads for them up to a number, and the thread
that wants the objects compiles too.

Invariants:

1. What each module is compiled to, and which error is raised, depend neither on the number of
   threads nor on their order.
2. Helpers wait for nothing: one ends when there is no module left, and the next module starts
   another. So nobody has to tell them to end, at exit or after an exception, and none is left over.
3. All crews of a process together have no more helpers than one of them may have.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Self
from weakref import WeakSet

from tessera.config import usable_cpus
from tessera.ir.interpreter import short_turns
from tessera.runtime.cache import ObjectCache
from tessera.runtime.codegen import Source, emit
from tessera.runtime.interrupts import start

_lock = threading.Lock()
# Weak, so that one that an exception kept from starting takes nobody's place.
_helping: WeakSet[threading.Thread] = WeakSet()


def _forget() -> None:
    # Threads do not survive a fork.
    global _lock
    _lock = threading.Lock()
    _helping.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Crew:
    """Compiles modules. Leaving it drops what was not begun.

    Args:
        cache: Where objects are kept.
        threads: How many threads may compile, the caller's included.
        takes_kept: Whether what is there is taken; if not, it is replaced.

    Attributes:
        found: whether the cache had one of them.

    >>> with Crew(ObjectCache(None), threads=2) as crew:
    ...     crew.images()
    []
    """

    def __init__(self, cache: ObjectCache, threads: int, takes_kept: bool = True) -> None:
        self.found = 0
        self._cache = cache
        self._takes_kept = takes_kept
        self._helpers = min(threads, usable_cpus()) - 1
        self._started: list[threading.Thread] = []
        self._waiting: deque[tuple[int, Source]] = deque()
        self._images: dict[int, bytes] = {}
        self._errors: dict[int, BaseException] = {}
        self._count = 0

    def add(self, source: Source, is_last: bool = False) -> None:
        """Takes a module; unless it is the last, which the caller can compile, a helper begins at
        once where one is free."""
        self._waiting.append((self._count, source))
        self._count += 1
        if not is_last:
            self._start_helper()

    def images(self) -> list[bytes]:
        """The objects of all modules, in the order in which they came.

        Raises:
            CompileError: LLVM rejects a module; the first one counts.
        """
        self._work()
        for thread in self._started:
            thread.join()
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._images[k] for k in range(self._count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops what was not begun."""
        self._waiting.clear()

    def _start_helper(self) -> None:
        with _lock:
            if len(_helping) >= self._helpers:
                return
            thread = threading.Thread(target=self._help, name="tessera.compile")
            _helping.add(thread)
        try:
            start(thread)
        except RuntimeError:
            return
        self._started.append(thread)

    def _help(self) -> None:
        try:
            with short_turns():
                self._work()
        finally:
            with _lock:
                _helping.discard(threading.current_thread())

    def _work(self) -> None:
        while True:
            try:
                k, source = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._images[k] = self._image(source)
            except Exception as error:
                # Those before it may fail too, and theirs is the error that counts.
                self._errors[k] = error
                self._waiting.clear()

    def _image(self, source: Source) -> bytes:
        key = source.key()
        found = self._cache.get(key) if self._takes_kept else None
        if found is None:
            found = emit(source)
            self._cache.put(key, found)
        else:
            self.found += 1
        return found
