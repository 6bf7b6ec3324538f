"""What can be asked of a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any

from tessera.api.annotations import CONDITIONS
from tessera.api.classes import Specializations
from tessera.api.effects import Declared
from tessera.api.generic import ShapeGeneric
from tessera.api.leaves import name_of
from tessera.api.matching import annotations_of
from tessera.api.precision import Policy
from tessera.api.retrace import Traces
from tessera.api.signature import CacheInfo
from tessera.api.static import StaticArguments
from tessera.compile import Stages
from tessera.errors import TesseraError, api_boundary
from tessera.ir.effects import Effects, text
from tessera.ir.lazy import cached_property
from tessera.runtime.dispatch.native import Called, Table


class Inspected(Called):
    """The part of a compiled function that says what there is.

    Attributes:
        effects: those that are declared; None for any.
        policy: the policy that its operations have, if it has one of its own.
    """

    _table: Table
    _fn: Callable[..., Any]
    _traces: Traces
    _calls: Iterator[int]
    _misses: int
    _compiled: list[Stages]
    _dump: Sequence[str]
    _limit: int | None
    _donated: StaticArguments | None
    _near: dict[str, Any]
    _lock: Lock
    _found: Effects
    effects: Declared | None
    policy: Policy | None

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function."""
        return self._fn

    @cached_property
    def generic(self) -> ShapeGeneric | None:
        """The programs for all sizes of a function with annotated shapes."""
        stated = getattr(self, CONDITIONS, ())
        annotations = annotations_of(self._fn, stated, self._near)
        if annotations is None:
            return None
        compiled = self._add_compiled
        return ShapeGeneric(self._fn, annotations, stated, self._limit, compiled, self._donated)

    def _print(self, lowered: Stages) -> None:
        """Prints the stages that were asked for."""
        for stage in self._dump:
            print(f"// {stage} of {name_of(self._fn)}\n{lowered.stage(stage)}\n")

    def _add_compiled(self, lowered: Stages) -> None:
        """Notes a program for a class of sizes."""
        self._print(lowered)
        with self._lock:
            self._misses += 1
            self._compiled.append(lowered)

    @api_boundary
    def why_retraced(self) -> str:
        """Why the function was traced as often as it was.

        Returns:
            A line for each trace: where it was called, and which argument's shape, dtype, weak type
            or static value was new, against the nearest signature that was there.

        Example:
            >>> import tessera as ts
            >>> f = ts.jit(lambda x: x + 1)
            >>> _ = f(ts.ones(3)), f(ts.ones(4))
            >>> print(f.why_retraced().splitlines()[-1].partition(": ")[2])
            argument `x` has shape [4], not [3]
        """
        return self._traces.explain()

    def cache_size(self) -> int:
        """How many programs are compiled."""
        return len(self._compiled)

    def cache_info(self) -> CacheInfo:
        """How often it was called, and how often that took compiling.

        Example:
            >>> import tessera as ts
            >>> f = ts.jit(lambda x: x + 1)
            >>> _ = f(ts.ones(3)), f(ts.zeros(3)), f(ts.ones(4))
            >>> f.cache_info()
            CacheInfo(hits=1, misses=2, maxsize=None, currsize=2)
        """
        slow = int(repr(self._calls)[len("count(") : -1])
        calls = slow + self._table.calls
        return CacheInfo(calls - self._misses, self._misses, None, len(self._compiled))

    @api_boundary
    def specializations(self) -> Specializations:
        """The classes of sizes that have an executable of their own, for a function with annotated
        shapes: that many are compiled at most, for each set of dtypes, structures and static values
        that it is called with.

        Example:
            >>> import tessera as ts
            >>> S = ts.dim("S", 1, 4096, anchors=[128], tile=16)
            >>> @ts.jit
            ... def f(x: ts.Tensor[S, "D"]):
            ...     return x * 2
            >>> _ = f(ts.ones((3, 4))), f(ts.ones((48, 5)))
            >>> f.specializations()
            S == 128: not compiled yet
            S % 16 == 0: compiled
            all other sizes: compiled
        """
        if self.generic is None:
            return Specializations(())
        return self.generic.specializations()

    @property
    def title(self) -> str:
        """The name of the function, with its annotated shapes if it has some."""
        try:
            generic = self.generic
        except TesseraError:  # a mistake in the annotations, for calls to tell
            generic = None
        return name_of(self._fn) if generic is None else generic.annotations.show()

    def compiled(self) -> list[Stages]:
        """The lowered programs that are compiled, in order."""
        return list(self._compiled)

    def why(self) -> str:
        """What fusion decided for each compiled program, and why; and for annotated shapes, what of
        the sizes was proved, and what calls are asked for."""
        found = [lowered.why() for lowered in self.compiled()]
        return "\n\n".join([*([] if self.generic is None else self.generic.why()), *found])

    def __repr__(self) -> str:
        return f"jit({self.title}){self._shown()}, {len(self._compiled)} compiled"

    def _shown(self) -> str:
        """The effects that are declared, else those found so far, and the policy, behind a name."""
        found = self._found if self.effects is None else self.effects.effects
        shown = f", effects=[{text(found)}]" if found or self.effects is not None else ""
        return shown if self.policy is None else f"{shown}, policy={self.policy}"
