"""What functions of the host have returned, for a program that needs it twice.

A derivative that stores residuals runs a loop, a branch or a call once more. What the host is told
there is left out (`graph/transforms/silence.py`); what it gives must be what it gave the first
time, and it must not be asked again. So the first run records, and the second one reads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tessera.ir.hostcall import Data, HostFunction, failures


class _Tape(threading.local):
    """The results of one function in one thread, in order. Writing after reading begins anew, as
    does writing after a program of the thread was ended by an exception."""

    def __init__(self) -> None:
        self.entries: list[Sequence[Data]] = []
        self.cursor = 0
        self.is_read = False
        self.failures = failures()

    def write(self, results: Sequence[Data]) -> None:
        if self.is_read or self.failures != failures():
            self.entries.clear()
            self.cursor, self.is_read, self.failures = 0, False, failures()
        self.entries.append(results)

    def read(self) -> Sequence[Data]:
        # The part that reads may be run several times.
        self.is_read = True
        found = self.entries[self.cursor % len(self.entries)]
        self.cursor += 1
        return found


class TapedFunction(HostFunction):
    """A function that records what it returns.

    Args:
        function: what computes the results.
    """

    __slots__ = ("tape",)

    def __init__(self, function: HostFunction) -> None:
        tape = self.tape = _Tape()

        def run(*inputs: Data) -> Sequence[Data]:
            found = function(inputs)
            tape.write(found)
            return found

        super().__init__(function.name, run, function.loc, function.traced, function.labels)



class ReplayedFunction(HostFunction):
    """Returns what another function has returned, in its order, as often as it is asked.

    Args:
        function: the other one.
    """

    __slots__ = ()

    def __init__(self, function: TapedFunction) -> None:
        tape = function.tape
        name = f"results of {function.name}"
        super().__init__(name, lambda *_: tape.read(), function.loc, function.traced)
