"""Starting a program by one native call, for the usual case.

A *starter* is a builtin function that takes the inputs and does what `RemoteExecutable.start` does,
without any Python on the way: it checks the inputs, takes memory for the outputs out of the pool's
lists, makes the objects, and runs the native entry. What it does not know it declines: it gives
`NotImplemented`, having done nothing, and the caller takes the way through Python.

It declines inputs of other classes, dtypes, shapes or devices; numbers whose dtype yields; memory
that another stream uses too; a stream or settings chosen by a `with` block; a pool that has no
memory of the right size waiting, or something to be sorted in; and a child of fork.

All that does not change from call to call is in a *plan*, an array of words that
`starter_text` describes. The objects that it points to are kept by the function.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.config import config
from tessera.graph.array import Array
from tessera.graph.remote import Remote
from tessera.ir.types import TensorType
from tessera.runtime.cache import default_cache
from tessera.runtime.call import make_builtin
from tessera.runtime.codegen import Source
from tessera.runtime.cuda import driver
from tessera.runtime.cuda import launch as launching
from tessera.runtime.cuda.launch import raise_failure
from tessera.runtime.cuda.memory import PLACED_BYTES, Block, DeviceBuffer
from tessera.runtime.cuda.record import LaunchRecord
from tessera.runtime.cuda.starter_text import (
    EMPTY_TUPLE,
    MOST_WORDS,
    PLAN,
    SLOW_FINALIZER,
    starter_text,
)
from tessera.runtime.engine import Loaded, load
from tessera.runtime.layout import method_word, sequences_are_known, slot_offsets
from tessera.runtime.remote import Job
from tessera.target.machine import machine

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import CudaDevice

_SYMBOL = "tessera_cuda_start"
_LIST_SYMBOL = "tessera_cuda_start_list"


@functools.cache
def _offsets() -> Mapping[str, Mapping[str, int]] | None:
    """Where the slots of the classes are, or None if that is not known here."""
    classes = (Array, TensorType, Remote, DeviceBuffer, Block)
    found = {cls.__name__: slot_offsets(cls) for cls in classes}
    if not sequences_are_known():
        return None
    known = {name: offsets for name, offsets in found.items() if offsets is not None}
    return known if len(known) == len(found) else None


@functools.cache
def _loaded(run: int) -> Loaded | None:
    """The native code, on top of a launcher whose function to run programs is there."""
    offsets = _offsets()
    if offsets is None:
        return None
    finalizer = method_word(DeviceBuffer, "__del__")
    imports = {
        launching.RUN_SYMBOL: run,
        EMPTY_TUPLE: id(()),
        SLOW_FINALIZER: finalizer.value if finalizer is not None else id(()),
    }
    source = Source(starter_text(offsets), machine("host"), "tessera.cuda.start", unroll=False)
    loaded = load(source, default_cache(), imports)
    if finalizer is not None:
        _replace(finalizer, loaded)
    return loaded


_FINALIZE = "tessera_cuda_finalize"


def _replace(finalizer: ctypes.c_uint64, loaded: Loaded) -> None:
    """Lets native code give memory back to the pool, until the process ends."""
    slow = finalizer.value
    # Buffers may die after everything else: the code is never unloaded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    finalizer.value = loaded.addresses[_FINALIZE]

    def restore() -> None:
        finalizer.value = slow

    atexit.register(restore)


def make_starter(
    main: int, job: Job, table: np.ndarray, device: CudaDevice, backend: object, owner: object
) -> Callable[..., Any] | None:
    """A starter, or None where there cannot be one.

    Args:
        main: the address of the native entry.
        job: what is run.
        table: the kernels.
        device: where.
        backend: what the outputs refer to.
        owner: what keeps the code alive.
    """
    settings = config.outermost()
    words = 4 + len(job.inputs) + len(job.outputs) + len(job.dims)
    if settings.cuda_debug or settings.nvtx or settings.cuda_graphs or words > MOST_WORDS:
        return None
    # Large buffers say where they were made, which the way through Python finds out.
    fresh = [size for k, (_, _, size) in enumerate(job.outputs) if job.overwritten(k) is None]
    if max(fresh, default=0) >= PLACED_BYTES:
        return None
    launcher = launching.launcher()
    loaded = _loaded(launcher.addresses[launching.RUN_SYMBOL])
    if loaded is None:
        return None
    plan, objects = _plan(main, job, table, device, backend)
    code = loaded.addresses[_SYMBOL if job.slow is None else _LIST_SYMBOL]
    keep = (loaded, launcher, plan, objects, table, owner)
    return make_builtin(code, receiver=plan.ctypes.data, owner=keep, name="start")


def _plan(
    main: int, job: Job, table: np.ndarray, device: CudaDevice, backend: object
) -> tuple[np.ndarray, list[object]]:
    """The words, and the objects whose addresses are among them."""
    objects: list[object] = []

    def at(thing: object) -> int:
        objects.append(thing)
        return id(thing)

    stream, pool = device.stream, device.pool
    scratch = at(pool.home(job.scratch, stream)) if job.scratch else 0
    head = {
        "main": main,
        "stream_handle": stream.handle,
        "context": device.context,
        "inputs": len(job.inputs),
        "outputs": len(job.outputs),
        "tail": len(job.dims) + 1,
        "scratch": scratch,
        "is_single": int(job.is_single),
        "forked": ctypes.addressof(driver.FORKED),
        "chosen": at(device.chosen),
        "settings": at(config.override),
        "returned": at(pool.returned),
        "kept": at(pool.kept),
        "empty": at(()),
        "failed": at(_fail_on(device)),
        "stream": at(stream),
        "cuda_device": at(device),
        "backend": at(backend),
        "device": at(job.device),
        "array_class": at(Array),
        "remote_class": at(Remote),
        "buffer_class": at(DeviceBuffer),
        "slow": 0 if job.slow is None else at(job.slow),
    }
    words = [head[name] for name in PLAN]
    for spec in job.inputs:
        words += (0, 0) if spec is None else (at(spec[1]), at(spec[0]))
    for k, (shape, dtype, size) in enumerate(job.outputs):
        on = job.overwritten(k)
        if on is not None:
            words += (0, on, 0, 0, 0)
            continue
        kind = 0 if job.types is None else at(job.types[k])
        words += (at(pool.home(size, stream)), at(size), at(shape), at(dtype), kind)
    words += [*job.dims, table.ctypes.data]
    return np.array([word & (1 << 64) - 1 for word in words], np.uint64), objects


def _fail_on(device: CudaDevice) -> Callable[[int], None]:
    """Raises the error that a record of a device tells of."""

    def fail(address: int) -> None:
        record = LaunchRecord.from_address(address)
        record.owner = device.stream
        raise_failure(record)

    return fail
