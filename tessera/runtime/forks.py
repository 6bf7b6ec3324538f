"""What a process does for the children that it forks, which have one thread and the memory of all.

A lock that another thread held at that moment stays held in the child, by nobody. Either a fork
waits for it (`hold`, `Gate`), so that what it guards is whole in the child, or the child makes a
new one (`tell`), where what it guards may be made anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
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
        self._changed = threading.Condition(threading.RLock())
        self._inside: dict[int, int] = {}
        self._forks = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._open
            )

    def __enter__(self) -> None:
        here = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or here in self._inside)
            self._inside[here] = self._inside.get(here, 0) + 1

    def __exit__(self, *_: object) -> None:
        here = threading.get_ident()
        with self._changed:
            self._inside[here] -= 1
            if not self._inside[here]:
                del self._inside[here]
                self._changed.notify_all()

    def _close(self) -> None:
        # Left held, so that a child does not find it so.
        self._changed.acquire()
        self._forks += 1
        here = threading.get_ident()
        self._changed.wait_for(lambda: not self._inside.keys() - {here})

    def _open(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()
