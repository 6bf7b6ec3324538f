"""What a function with annotated shapes has been traced and compiled to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.api.annotations import Stated
from tessera.api.classes import Case
from tessera.api.native_sizes import NativeSizes
from tessera.api.stateful import State
from tessera.api.traced import Traced
from tessera.compile import Stages
from tessera.graph.device import CPU, Device
from tessera.ir.assumptions import Assumptions
from tessera.ir.intexpr import evaluate, symbols
from tessera.ir.intfunction import as_function
from tessera.ir.lazy import cached_property
from tessera.ir.ranges import guards_of
from tessera.ir.types import TensorType


@dataclass(frozen=True)
class Specialized:
    """A program for a class of sizes.

    Attributes:
        lowered: its forms, for a CPU or a GPU.
        values: for each run-time dim the name that it comes from, and the divisor.
        loaded: its machine code, once it was called for.
        native: what native code is told of it.
    """

    lowered: Stages
    values: tuple[tuple[str, int], ...]
    native: NativeSizes
    loaded: list[Any] = field(default_factory=list[Any])

    def fits(self, env: Mapping[str, int]) -> bool:
        """Whether what is checked at a launch holds for sizes by name."""
        names = self.lowered.traced.dims
        sizes = [env[name] // divisor for name, divisor in self.values]
        return fits(self.lowered, dict(zip(names, sizes, strict=True)))


@dataclass(frozen=True)
class Program:
    """A traced function with symbolic dims.

    Attributes:
        traced: the trace.
        facts: what is known of its dims, and what a call is asked for.
        device: where it runs.
        state: the refs that it uses, if it does.
        given_away: which leaves of a call are donated.
        classes: its programs by class of sizes, and whether they are for large memories.
    """

    traced: Traced
    facts: Assumptions
    device: Device = CPU
    state: State | None = None
    given_away: tuple[int, ...] = ()
    classes: dict[tuple[tuple[Case, ...], bool], Specialized] = field(
        default_factory=dict[tuple[tuple[Case, ...], bool], Specialized]
    )

    @property
    def donated(self) -> list[int]:
        """The inputs whose memory it may write to: donated ones, and what written refs hold."""
        found = [len(self.traced.captured) + k for k in self.given_away]
        return found if self.state is None else found + self.state.inputs_of(self.traced.graph)

    @property
    def guards(self) -> list[Stated]:
        """What a call is asked for besides the annotations."""
        return [Stated(g.condition, g.loc) for g in self.facts.guards.values()]

    def outputs(self, env: Mapping[str, int]) -> list[TensorType]:
        """The types of the results for sizes by name."""
        names, function = self.sizes_of_outputs
        sizes = iter(function(*[env[n] for n in names]))
        types = self.traced.types
        return [TensorType(tuple([next(sizes) for _ in t.shape]), t.dtype, t.weak) for t in types]

    @cached_property
    def sizes_of_outputs(self) -> tuple[list[str], Callable[..., tuple[int, ...]]]:
        """The names in the shapes of the results, and a function of them that gives all dims."""
        dims = [d for t in self.traced.types for d in t.shape]
        names = sorted(frozenset[str]().union(*[symbols(d) for d in dims]))
        return names, as_function(dims, names)

    def loaded(self) -> list[tuple[Case, ...]]:
        """The classes that have machine code."""
        return [case for (case, _), found in list(self.classes.items()) if found.loaded]


def fits(lowered: Stages, dims: Mapping[str, int]) -> bool:
    """Whether what is checked at a launch of a program holds for values of its dims."""
    guards = guards_of(lowered.tile.entry)
    return all([int(evaluate(e, dims)) < most for e, most in guards])
