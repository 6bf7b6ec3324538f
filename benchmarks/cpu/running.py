"""Runs cases: a worker process for each contender and number of threads, which take turns."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpu import compare, libraries, roof, worker
from cpu.suite import Case

SEED = 0

# Samples of a contender that are enough, also after the budget where a call takes less than so many
# seconds: the first may wait for memory that the machine has not touched before.
ENOUGH, PATIENCE = 3, 1.0

# A smaller working set stays in the caches of the cores.
BEYOND = 1 << 22


class WorkerError(Exception):
    """A worker could not do what it was asked."""


@dataclass
class Measured:
    """One contender in one case.

    Attributes:
        median, low, high: seconds a call; the quartiles.
        least: the fastest sample.
        samples: how many there were.
        first: seconds of the first call, which compiles.
        error: relative to float64.
        problem: why there are no times, if there are none.
    """

    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    least: float = 0.0
    samples: int = 0
    first: float = 0.0
    error: float = 0.0
    problem: str = ""


@dataclass
class Row:
    """One case with one number of threads.

    Attributes:
        floor: seconds of the least work at this machine's ceilings, as `bound` says.
        triad: where memory bounds it: moving as many bytes in as much memory, measured beside the
            contenders.
        stream: the same in arrays that are larger than all caches, as STREAM does.
        handover: nanoseconds in which a word goes from one core to another and back, the median of
            what was measured between the turns; 0 for one thread.
    """

    case: str
    program: str
    family: str
    threads: int
    bytes: float
    operations: float
    floor: float = 0.0
    bound: str = ""
    contenders: dict[str, Measured] = field(default_factory=dict)
    triad: Measured | None = None
    stream: Measured | None = None
    handover: float = 0.0


class Worker:
    """The parent's end of a worker process.

    Between requests the process is stopped: threads of runtimes spin for as long as a fifth of a
    second after their work is done, on the cores that the next contender needs.
    """

    def __init__(self, contender: str, threads: int, busy: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(
            target=worker.serve, args=(other, contender, threads, busy), daemon=True
        )
        before = dict(os.environ)
        os.environ.update(libraries.thread_settings(threads))
        try:
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        other.close()

    def answer(self, limit: float) -> Any:
        """The next answer.

        Raises:
            ImportError: the library is missing.
            WorkerError: it failed, died, or took longer than `limit` seconds.
        """
        try:
            if not self.connection.poll(limit):
                self.process.kill()
                self.stop()
                raise WorkerError(f"took longer than {limit:.0f} s")
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError) as problem:
            self.process.join(5)
            code = self.process.exitcode
            self.stop()
            raise WorkerError(f"the process ended with status {code}") from problem
        if kind == "missing":
            raise ImportError(value)
        if kind == "failed":
            raise WorkerError(value)
        return value

    def ask(self, limit: float, request: str, *arguments: Any) -> Any:
        """One request and its answer."""
        self._signal(signal.SIGCONT)
        try:
            self.connection.send((request, *arguments))
        except OSError as problem:
            raise WorkerError("the process is gone") from problem
        try:
            return self.answer(limit)
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Ends the process, which leaves by itself if it is idle."""
        self._signal(signal.SIGCONT)
        self.connection.close()
        self.process.join(1)
        self.process.kill()
        self.process.join()


class Runner:
    """Measures cases one after the other.

    Args:
        contenders: who may take part.
        budget: seconds of measuring for a case and number of threads.
        limit: seconds that a contender may take for preparing a case.
        busy: whether the processor's time is measured.
    """

    def __init__(
        self, contenders: list[str], budget: float, limit: float, busy: bool = False
    ) -> None:
        self.contenders, self.budget, self.limit, self.busy = contenders, budget, limit, busy
        self.workers: dict[tuple[str, int], Worker] = {}
        self.roofs: dict[int, roof.Roof] = {}
        self.missing: dict[str, str] = {}
        self.measured: list[tuple[Row, Case]] = []

    @functools.cached_property
    def handover(self) -> roof.Handover:
        """How far apart two cores are at a time."""
        return roof.Handover()

    def close(self) -> None:
        """Ends all workers."""
        for found in self.workers.values():
            found.stop()
        self.workers.clear()

    def measure(self, case: Case, threads: int) -> Row:
        """Checks and measures a case."""
        if threads not in self.roofs:
            self.roofs[threads] = roof.measure(threads)
        program, size = case.program, case.size
        cost = program.cost(**size)
        row = Row(case.label, program.name, program.family, threads, cost.bytes, cost.operations)
        self.measured.append((row, case))
        self._put_floor(row, case)
        arguments = program.make(np.random.default_rng(SEED), **size)
        expected = compare.reference(program, size, arguments)
        del arguments
        ready: dict[str, Worker] = {}
        for name in self.contenders:
            if name in program.contenders() and name not in self.missing:
                entry = row.contenders[name] = Measured()
                try:
                    ready[name] = self._prepare(case, name, threads, expected, entry)
                except ImportError as problem:
                    self.missing[name] = str(problem)
                    del row.contenders[name]
                except WorkerError as problem:
                    entry.problem = str(problem)
        entries = dict(row.contenders)
        if row.bound == "bytes" and cost.bytes >= BEYOND and ready and not self.busy:
            row.triad = entries[worker.TRIAD] = Measured()
            ready[worker.TRIAD] = self._prepare(case, worker.TRIAD, threads, [], row.triad)
        hands_over = threads > 1 and len(roof.cores()) > 1 and not self.busy
        between = self._turns(entries, ready, self.budget, hands_over)
        row.handover = statistics.median(between) if between else 0.0
        if row.triad is not None:
            # Not in the same turns: it leaves the caches to nobody, and contenders whose arrays are
            # as large as a third cache took up to twice as long behind it.
            row.stream = Measured()
            found = self._prepare(case, worker.STREAM, threads, [], row.stream)
            self._turns({worker.STREAM: row.stream}, {worker.STREAM: found}, self.budget / 5)
        return row

    def settle(self) -> None:
        """Measures the ceilings once more, as others may have used the machine the first time:
        floors are those of the higher ones."""
        for threads, known in self.roofs.items():
            self.roofs[threads] = known.best(roof.measure(threads))
        for row, case in self.measured:
            self._put_floor(row, case)

    def _put_floor(self, row: Row, case: Case) -> None:
        row.floor, what = self.roofs[row.threads].floor(case.program.cost(**case.size))
        row.bound = case.program.bound or what

    def _prepare(
        self, case: Case, name: str, threads: int, expected: list[np.ndarray], entry: Measured
    ) -> Worker:
        found = self.workers.get((name, threads))
        if found is None or found.connection.closed:
            found = self.workers[name, threads] = Worker(name, threads, self.busy)
            found.answer(120)
        told = found.ask(self.limit, "prepare", case.program.name, dict(case.size), SEED)
        entry.first = told["first"]
        entry.error = compare.error(told["found"], expected)
        if not entry.error <= case.program.tolerance:
            found.ask(60, "drop")
            raise WorkerError(f"wrong: the error is {entry.error:.1e}")
        return found

    def _turns(
        self,
        entries: dict[str, Measured],
        ready: dict[str, Worker],
        budget: float,
        hands_over: bool = False,
    ) -> list[float]:
        """Has all take turns; gives the nanoseconds of handovers in between, if they are wanted."""
        between: list[float] = []
        samples: dict[str, list[float]] = {name: [] for name in ready}
        turn = min(0.02, budget / 5 / max(len(ready), 1))
        until = time.perf_counter() + budget
        asked = dict(ready)
        while asked:
            for name, found in list(asked.items()):
                try:
                    samples[name] += found.ask(max(60.0, self.limit), "turn", turn)
                except WorkerError as problem:
                    entries[name].problem = str(problem)
                    del ready[name], asked[name]
            if hands_over:
                between.append(self.handover.nanoseconds())
            few = [name for name in asked if len(samples[name]) < ENOUGH]
            late = time.perf_counter() - until
            if late > 3 * budget:
                asked = {name: ready[name] for name in few if max(samples[name]) < PATIENCE}
            elif late > 0 and not few:
                break
        for name, found in ready.items():
            found.ask(60, "drop")
            _summarise(entries[name], samples[name])
        return between


def _summarise(entry: Measured, samples: list[float]) -> None:
    entry.samples, entry.least = len(samples), min(samples)
    entry.median = statistics.median(samples)
    entry.low, entry.high = entry.median, entry.median
    if len(samples) > 1:
        entry.low, _, entry.high = statistics.quantiles(samples, n=4, method="inclusive")
