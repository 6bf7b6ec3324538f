"""A process for one contender: stays warm, prepares cases, and takes turns at running them."""

from __future__ import annotations

import functools
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cpu import compare, libraries, roof
from cpu.program import Program, Size

# A sample is of so many calls that it takes about this long, in seconds.
SAMPLE = 1e-3

# A call of so many seconds is made once to see what it takes, a shorter one three times.
LONG = 0.1

# Who are no contenders: they move bytes, and compute nothing; as many as the case does, in as much
# memory, and in three arrays that are four times as large as a third cache, as STREAM (McCalpin,
# 1995) asks.
TRIAD, STREAM = "triad", "stream"
STREAM_BYTES = 3 * 4 * (1 << 25)


def serve(connection: Connection, contender: str, threads: int, busy: bool) -> None:
    """Answers requests until the other end closes. The first message is of loading the library.

    Args:
        connection: to the parent.
        contender: the library.
        threads: how many it may use.
        busy: whether the processor's time is measured, which other programs do not disturb as much.
    """
    # Whoever stops the suite means the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libraries.use_cores(threads)
    try:
        clock = time.process_time if busy else time.perf_counter
        worker: _Triad | _Worker
        if contender in (TRIAD, STREAM):
            worker = _Triad(threads, is_large=contender == STREAM)
        else:
            worker = _Worker(libraries.load(contender), clock)
        connection.send(("ok", None))
    except ImportError as problem:
        connection.send(("missing", str(problem)))
        return
    while True:
        try:
            request, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("ok", getattr(worker, request)(*arguments)))
        except Exception as problem:
            text = "".join(traceback.format_exception_only(problem)).strip()
            connection.send(("failed", f"{text}"[:2000]))


def _fill_caches(run: Callable[[], Any], seconds: float) -> None:
    """Spends a quarter of a turn: the others' have emptied the caches, which take several calls to
    fill where the arrays are as large as they are."""
    until = time.perf_counter() + seconds / 4
    while time.perf_counter() < until:
        run()


class _Worker:
    def __init__(self, library: libraries.Library, clock: Callable[[], float]) -> None:
        self.library = library
        self.clock = clock
        self.run: Callable[[], Any] | None = None
        self.once = 0.0
        self.batch = 1

    def prepare(self, name: str, size: Size, seed: int) -> dict[str, Any]:
        """Makes the arguments, compiles, runs for the first time, and gives what is compared."""
        from cpu.suite import find

        self.run = None
        program: Program = find(name)
        library = self.library
        if library.name == "jax":
            library.module.config.update("jax_enable_x64", program.wide)
        arguments = program.make(np.random.default_rng(seed), **size)
        given = arguments if program.is_raw else library.arrays(arguments)
        contender = library.name.split(".")[0].split()[0]
        own = library.name if library.name in program.build else contender
        fn = program.build[own](library, **size)
        wait = library.wait
        start = time.perf_counter()
        result = wait(fn(*given))
        first = time.perf_counter() - start
        found = compare.viewed(program, arguments, result)
        del result
        # Where nothing is waited for, only the call is between two readings of the clock.
        call = functools.partial(fn, *given)
        self.run = call if wait is libraries.same else lambda: wait(call())
        self.once = self._seconds()
        self.batch = max(1, int(SAMPLE / max(self.once, 1e-7)))
        return {"first": first, "once": self.once, "found": found}

    def _seconds(self) -> float:
        """What a call takes, the least of a few unless it is long. The second call of all may still
        compile what calls faster."""
        assert self.run is not None
        found: list[float] = []
        while len(found) < 3 and (not found or min(found) < LONG):
            start = time.perf_counter()
            self.run()
            found.append(time.perf_counter() - start)
        return min(found)

    def turn(self, seconds: float) -> list[float]:
        """Seconds a call, of samples that together take about `seconds`, at least one."""
        run, batch, clock = self.run, self.batch, self.clock
        assert run is not None, "prepare first"
        samples: list[float] = []
        until = time.perf_counter() + seconds
        if self.once < seconds / 4:
            _fill_caches(run, seconds)
        while True:
            start = clock()
            for _ in range(batch):
                run()
            end = clock()
            samples.append((end - start) / batch)
            if time.perf_counter() > until:
                return samples

    def drop(self) -> None:
        """Forgets the case and its arrays."""
        self.run = None


class _Triad:
    """Moves as many bytes as a case does at least, in the same turns: drift meets it too.

    Args:
        threads: how many share the work.
        is_large: whether the arrays are larger than all caches; samples are what the case's bytes
            take at that pace.
    """

    def __init__(self, threads: int, is_large: bool) -> None:
        self.threads = threads
        self.is_large = is_large
        self.stream: roof.Stream | None = None

    def prepare(self, name: str, size: Size, seed: int) -> dict[str, Any]:
        """Makes the arrays, and finds which stores are faster."""
        from cpu.suite import find

        moved = find(name).cost(**size).bytes
        if self.stream is None or not self.is_large:
            self.stream = roof.Stream(STREAM_BYTES if self.is_large else moved, self.threads)
        stream = self.stream
        times = [min(stream.run(triad, 3) for _ in range(5)) for triad in stream.triads]
        self.triad = stream.triads[times.index(min(times))]
        self.turns = max(1, int(SAMPLE / min(times)))
        self.share = moved / stream.bytes if self.is_large else 1.0
        return {"first": 0.0, "once": min(times) * self.share, "found": []}

    def turn(self, seconds: float) -> list[float]:
        """Seconds for the bytes, of samples that together take about `seconds`."""
        assert self.stream is not None, "prepare first"
        until = time.perf_counter() + seconds
        if not self.is_large:
            _fill_caches(functools.partial(self.stream.run, self.triad, 1), seconds)
        samples = [self.stream.run(self.triad, self.turns)]
        while time.perf_counter() < until:
            samples.append(self.stream.run(self.triad, self.turns))
        return [sample * self.share for sample in samples]

    def drop(self) -> None:
        """Forgets the arrays, but for those that serve all cases."""
        if not self.is_large:
            self.stream = None
