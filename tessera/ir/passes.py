"""Passes and pipelines.

A pass is a frozen dataclass: its fields are its options. Contract: valid IR in, valid IR out, the
input is not changed. A pipeline is a tuple of passes; running it can verify, dump and time each
one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tessera.errors import VerifyError
from tessera.ir.core import Func, Module
from tessera.ir.verify import Spec, verify, verify_module


@dataclass
class PassContext:
    """What a pipeline run carries along.

    Attributes:
        verify: check the IR after every pass.
        dump: folder that receives `NN-pass.ir` files, or None.
        wanted: which steps are dumped.
        timings: seconds by pass name, filled while running.
    """

    verify: bool = False
    dump: Path | None = None
    wanted: Callable[[str], bool] = lambda name: True
    timings: dict[str, float] = field(default_factory=dict[str, float])
    count: int = 0

    def record(self, name: str, seconds: float) -> None:
        """Adds to a pass's time."""
        self.timings[name] = self.timings.get(name, 0.0) + seconds

    def write(self, name: str, text: Callable[[], str], suffix: str = ".ir") -> None:
        """Writes one dump file, numbered in order of the run, if this step is dumped."""
        if self.dump is not None and self.wanted(name):
            self.dump.mkdir(parents=True, exist_ok=True)
            (self.dump / f"{self.count:02d}-{name}{suffix}").write_text(text() + "\n")
        self.count += 1


@dataclass(frozen=True)
class Pass:
    """Base of passes. `ensures` is the spec that holds afterwards."""

    name: ClassVar[str] = ""
    ensures: ClassVar[Spec | None] = None

    def run(self, func: Func) -> Func:
        """The transformed function."""
        raise NotImplementedError


def run_pipeline(func: Func, passes: Sequence[Pass], context: PassContext) -> Func:
    """Runs passes in order.

    Raises:
        VerifyError: a pass broke an invariant; the message names the pass.
    """
    for item in passes:
        func = run_step(item.name, lambda f, item=item: item.run(f), func, context, item.ensures)
    return func


def run_step(
    name: str,
    step: Callable[[Func], Func],
    func: Func,
    context: PassContext,
    spec: Spec | None = None,
) -> Func:
    """Runs one function-to-function step with timing, dump and check."""
    start = time.perf_counter()
    result = step(func)
    context.record(name, time.perf_counter() - start)
    context.write(name, lambda: str(result))
    if context.verify:
        check(name, result, spec)
    return result


def check(name: str, item: Func | Module, spec: Spec | None) -> None:
    """Verifies after a step; the error names the step."""
    try:
        if isinstance(item, Module):
            verify_module(item, spec)
        else:
            verify(item, spec)
    except VerifyError as err:
        raise VerifyError(f"after {name}: {err.what}", loc=err.loc) from None
