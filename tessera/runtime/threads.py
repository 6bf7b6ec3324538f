"""The threads that share the work of compiled code: a pool of our own, native, one per process.

``tessera_parallel(function, context, count, grain, threads)`` calls ``function(context, lo, hi)``
for pieces of ``grain`` points that cover 0 to ``count``, on the caller's thread and on workers, and
returns when all are done. Compiled programs import it; see `target.parallel`.

Invariants:

1. Which points form a piece does not matter for results, so neither does the number of threads.
2. Nobody waits for a thread that is not running a piece: a caller alone does all the work if no
   worker wakes up. Calls from inside a piece, and calls while another job is under way, run on
   their caller's thread; workers leave a job when more threads are at work than it may have. So
   nothing deadlocks, and nothing multiplies.
3. Workers start with the first job that wants them and sleep when there is none. The child of a
   fork has a pool without workers, which starts its own; at exit they end before the code does.
4. Workers know nothing of Python and take no signals: Ctrl-C reaches the thread it is meant for.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Mapping

from tessera.ir.core import Module
from tessera.ir.walk import walk
from tessera.runtime.cache import default_cache
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loaded, load
from tessera.runtime.forks import hold
from tessera.runtime.threads_text import has_threads, pool_text, serial_text
from tessera.target import ops as t
from tessera.target.llvm.parallel import PARALLEL, THREADS
from tessera.target.machine import host, machine

_lock = threading.Lock()
_cells: dict[int, ctypes.c_int64] = {}


def shares_work(module: Module) -> bool:
    """Whether the entry of a program has work for threads to share; it then imports `symbols`."""
    return any(isinstance(op, (t.Parallel, t.Together)) for op in walk(module.entry.body))


def symbols(threads: int) -> Mapping[str, int]:
    """The addresses of the pool's entry, and of the number of threads that a job may have, the
    caller's included."""
    with _lock:
        cell = _cells.setdefault(threads, ctypes.c_int64(threads))
        return {PARALLEL: _pool().addresses[PARALLEL], THREADS: ctypes.addressof(cell)}


# Called under the lock only, so that there is one.
@functools.cache
def _pool() -> Loaded:
    text = pool_text(host().arch) if has_threads(host().arch, sys.platform) else serial_text()
    # Loads, stores and waiting: LLVM's other passes gain nothing, and take 40 ms of a first call.
    source = Source(text, machine("host"), "tessera.threads", unroll=False, passes="few")
    loaded = load(source, default_cache())
    # Workers run this code until the process ends: it is never unloaded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    call = ctypes.CFUNCTYPE(None)
    stop = call(loaded.addresses["tessera_threads_stop"])
    reset = call(loaded.addresses["tessera_threads_reset"])
    atexit.register(stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
    return loaded


hold(_lock)
