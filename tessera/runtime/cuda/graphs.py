"""CUDA graphs: runs of a native program, recorded once and replayed as one launch.

A graph holds the addresses that its kernels got, so there is one for each set of words that a
program is run with. It pays where many small kernels run on the same memory again and again;
``config.cuda_graphs`` says from how many launches on, and 0, the default, is never.

Invariants:

1. A run is recorded only after an ordinary one with the same words: by then all code is loaded, and
   how many launches and reads there are is known. A program that reads is never recorded.
2. Recording happens in a stream that nobody else uses, so that no work of other threads gets into
   the graph.
3. A graph is used by one thread at a time, and stays until its last run has ended.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from tessera.config import config
from tessera.runtime.call import Word
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.errors import CudaError
from tessera.runtime.cuda.launch import (
    NativeProgram,
    nvtx_range,
    raise_failure,
    record_of,
    run_record,
)
from tessera.runtime.cuda.record import new_record
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.memory import pointer

_MOST_GRAPHS = 8
_MOST_SEEN = 64


class GraphProgram:
    """A native program that becomes graphs where that pays.

    Args:
        main: the address of its ``void main(ptr words)``; see `tessera.runtime.cuda.launch`.
        name: for messages and profilers.
        owner: what keeps the code, its kernels and what they refer to alive.
    """

    def __init__(self, main: int, *, name: str = "program", owner: object = None) -> None:
        self.program = NativeProgram(main, name=name, owner=owner)
        self._lock = threading.Lock()
        self._graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._possible = True

    @property
    def graphs(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def run(self, stream: Stream, words: Sequence[Word]) -> None:
        """Run it in a stream; see `NativeProgram.run`. Arrays among the words are known by their
        addresses: their content must not change between runs.
        """
        settings = config.current()
        least = settings.cuda_graphs
        if not least or settings.cuda_debug or not self._possible:
            self.program.run(stream, words, settings)
            return
        key = (stream.device.index, *map(_number, words))
        with self._lock:
            graph = self._graphs.get(key)
            if graph is None and self._seen.get(key, 0) >= least:
                graph = self._record(key, stream, words)
            if graph is not None:
                self._graphs.move_to_end(key)
                with nvtx_range(self.program.name) if settings.nvtx else nullcontext():
                    graph.launch(stream)
                return
        self._run_and_count(key, stream, words)

    def _run_and_count(self, key: tuple[int, ...], stream: Stream, words: Sequence[Word]) -> None:
        record = record_of(stream)
        launches, reads = record.launches, record.reads
        self.program.run(stream, words)
        if record.reads != reads:
            self._possible = False
            return
        with self._lock:
            self._seen[key] = record.launches - launches
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)

    def _record(self, key: tuple[int, ...], stream: Stream, words: Sequence[Word]) -> _Graph | None:
        """Record a run; None, and never again, if the driver cannot. Under the lock."""
        try:
            graph = capture(stream.device, self.program.main, words)
        except CudaError:
            self._possible = False
            return None
        self._graphs[key] = graph
        self._seen.pop(key, None)
        if len(self._graphs) > _MOST_GRAPHS:
            _, oldest = self._graphs.popitem(last=False)
            oldest.device.pool.keep(oldest, oldest.last or stream)
        return graph

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            for graph in self._graphs.values():
                if graph.last is not None:
                    graph.device.pool.keep(graph, graph.last)
            self._graphs.clear()
            self._seen.clear()


class _Graph:
    """A recorded run."""

    def __init__(self, device: CudaDevice, executable: Any) -> None:
        self.device = device
        self.executable = executable
        self.last: Stream | None = None

    def launch(self, stream: Stream) -> None:
        """Run it in a stream."""
        with self.device:
            driver.call("cuGraphLaunch", self.executable, stream.raw_handle)
        self.last = stream

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():
            driver.retire(self.device.context, "cuGraphExecDestroy", self.executable)


def capture(device: CudaDevice, main: int, words: Sequence[Word]) -> _Graph:
    """Record a run of a native program, which starts nothing.

    Raises:
        CudaError: The program does what a graph cannot hold.
    """
    api = driver.api()
    mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    stream = Stream(device)
    record = new_record(stream)
    with device:
        driver.call("cuStreamBeginCapture", stream.raw_handle, mode)
        failure: CudaError | None = None
        try:
            run_record(main, record, words)
        except CudaError as error:
            failure = error
        finally:
            # Whatever happened, the stream must leave the capture.
            status, *found = api.cuStreamEndCapture(stream.raw_handle)
        if failure is not None:
            if not int(status):
                driver.status_of("cuGraphDestroy", found[0])
            raise failure
        if int(status):
            record.status = int(status)
            raise_failure(record)
        try:
            executable = driver.call("cuGraphInstantiate", found[0], 0)
        finally:
            driver.status_of("cuGraphDestroy", found[0])
    return _Graph(device, executable)


def _number(word: Word) -> int:
    return pointer(word) if isinstance(word, np.ndarray) else int(word)
