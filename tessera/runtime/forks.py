"""What a process does for the children that it forks, which have one thread and the memory of all.

A lock that another thread held at that moment stays held in the child, by nobody. Either a fork
waits for it (`hold`, `Gate`), so that what it guards is whole in the child, or the child makes a
new one (`tell`), where what it guards may be made anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any, Protocol


class Forked(Protocol):
    """What makes its locks anew."""

    def after_fork(self) -> None:
        """In a child."""
        ...


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def tell(owner: Forked) -> None:
    """Has an object make its locks anew in children, for as long as it is there."""
    _owners.add(owner)


def _after_fork() -> None:
    for owner in list(_owners):
        owner.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Lock(Protocol):
    """One of `threading`'s."""

    def acquire(self) -> bool:
        """Waits for it."""
        ...

    def release(self) -> None:
        """Gives it back."""
        ...


def hold(lock: Lock) -> None:
    """Lets no process fork while another thread has a lock. Of locks that are taken one inside the
    other, the inner one is held first: forks take them in the other order.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


class Gate(contextlib.ContextDecorator):
    """Forks wait while other threads are inside, where they may import modules: Python has a lock
    for each that is being imported, which a child would find held. Nothing of the user's is done
    inside, which a fork could keep waiting.
    """

    def __init__(self) -> None:
        # Held by forks. No `Condition`: that is Python code, and Ctrl-C would leave its lock held.
        self._closed = threading.RLock()
        # How deep each thread is inside; a thread changes its own number only.
        self._inside: dict[int, int] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._open
            )

    def __enter__(self) -> None:
        here = threading.get_ident()
        depth = self._inside.get(here, 0)
        try:
            if depth:
                self._inside[here] = depth + 1
            else:
                with self._closed:
                    self._inside[here] = 1
        except BaseException:
            self._leave(here, depth)
            raise

    def __exit__(self, *_: object) -> None:
        here = threading.get_ident()
        self._leave(here, self._inside[here] - 1)

    def _leave(self, here: int, depth: int) -> None:
        if depth:
            self._inside[here] = depth
        else:
            self._inside.pop(here, None)

    def _close(self) -> None:
        self._closed.acquire()
        here = threading.get_ident()
        # Forks are rare, and those inside do not know of any.
        while any(thread != here for thread in list(self._inside)):
            time.sleep(0.0005)

    def _open(self) -> None:
        self._closed.release()
