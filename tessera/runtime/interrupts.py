"""What Ctrl-C must not stop halfway.

Python calls the handlers of signals in the main thread, between any two of its instructions, and
what they raise goes through whatever runs there.
"""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def start(thread: threading.Thread) -> None:
    """Starts a thread, whole or not at all.

    `Thread.start` takes locks in Python code. Stopped there, it leaves them held, and the new
    thread waits for them for ever, as does the end of the process for that thread. So the main
    thread has another one call it, which is started by C code.

    Raises:
        RuntimeError: There are no more threads, or the interpreter is about to end.
    """
    if threading.current_thread() is not threading.main_thread():
        thread.start()
        return
    errors: list[RuntimeError] = []
    started = _held_lock()

    def begin() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            errors.append(error)
        finally:
            started.release()

    _thread.start_new_thread(begin, ())
    started.acquire()
    if errors:
        raise errors.pop()


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """Has a function run to its end, in a thread of its own where Ctrl-C could stop it halfway.

    llvmlite takes a lock around each call, and frees what its objects own, in Python code; stopped
    there, it would leave the lock held or free twice. The main thread may stop waiting; then the
    result is dropped.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        results: list[T] = []
        errors: list[BaseException] = []
        ended = _held_lock()

        def work() -> None:
            try:
                results.append(function(*args, **kwargs))
            except BaseException as error:
                errors.append(error)
            finally:
                ended.release()

        thread = threading.Thread(target=work, name="tessera.llvm")
        try:
            start(thread)
        except RuntimeError:
            return function(*args, **kwargs)
        # A `join` that is stopped takes the thread for ended, which the end of the process would
        # then not wait for.
        ended.acquire()
        thread.join()
        if errors:
            raise errors.pop()
        return results.pop()

    return run


def _held_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock
