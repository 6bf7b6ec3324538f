"""Variants of several precisions, one of which is chosen for each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import pytree
from tessera.api.compiling import jit
from tessera.api.control import switch
from tessera.api.shapes import eval_shape
from tessera.dtypes import float32, int32
from tessera.errors import OptionError, PytreeError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import as_array
from tessera.graph.namespace.conversion import asarray
from tessera.graph.namespace.elementwise import maximum
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.reshape import full, reshape
from tessera.graph.trace import Tracer, is_traced_here
from tessera.ir import loc
from tessera.precision.apart import apart
from tessera.precision.schemes import amax


@apart
def largest_magnitude(*args: Any, **kwargs: Any) -> Any:
    """The largest magnitude in all floating-point arrays among arguments; 0 without any."""
    found: Any = asarray(0.0)
    for leaf in pytree.leaves((args, kwargs)):
        x = as_array("AdaptivePrecision", leaf)
        if x.dtype.is_float:
            found = maximum(found, reshape(e.cast(amax(x, [0] * x.ndim), float32), ()))
    return found


@dataclass(frozen=True)
class Switch:
    """A change of the variant.

    Attributes:
        call: in which call, counted from 0.
        measured: what was measured there.
        before: the variant before.
        after: the variant from then on.
    """

    call: int
    measured: float
    before: str
    after: str

    def __str__(self) -> str:
        return f"call {self.call}: {self.before} -> {self.after} (measured {self.measured:.6g})"


class AdaptivePrecision:
    """A function that has variants of several precisions, and takes for each call the narrowest one
    that its numbers allow.

    Each variant is compiled once for a signature of arguments, so there are as many executables as
    variants; changing between them traces and compiles nothing. A measure above a variant's limit
    (or NaN) changes to a wider one before anything is computed. Back to a narrower one it goes only
    after `patience` calls in a row whose measures are at most `hysteresis` times its limit.

    Called while a function is traced, it is a branch of that function's program (`ts.switch`): each
    run takes the narrowest variant whose limit holds. It keeps nothing then, so hysteresis and
    patience do not count, and neither do its runs.

    Args:
        variants: functions of the same arguments, by name, from the narrowest to the widest.
        limits: the largest measure that each variant takes, in increasing order; the last one has
            no limit.
        measure: gives a number, from the arguments; None is the largest magnitude in them. Give
            a loss scale or the scale of the gradients among the arguments to switch by it.
        hysteresis: what part of a limit counts for going back.
        patience: how many calls in a row.

    Attributes:
        chosen: the name of the variant that the last call took, or the first one will.
        counts: how many calls each variant has had.
        switches: all changes so far.

    Raises:
        OptionError: limits and variants do not fit.

    Example:
        >>> import tessera as ts
        >>> narrow = lambda x: ts.sum(x.astype(ts.float16) * 2).astype(ts.float32)
        >>> f = ts.AdaptivePrecision({"f16": narrow, "f32": lambda x: ts.sum(x * 2)}, [1e4])
        >>> f(ts.ones(3)), f.chosen
        (Array(6., dtype=float32), 'f16')
        >>> f(ts.full(3, 1e6)), f.chosen
        (Array(6.e+06, dtype=float32), 'f32')
        >>> print(f.switches[0])
        call 1: f16 -> f32 (measured 1e+06)
    """

    @api_boundary
    def __init__(
        self,
        variants: Mapping[str, Callable[..., Any]],
        limits: Sequence[float],
        *,
        measure: Callable[..., Any] | None = None,
        hysteresis: float = 0.5,
        patience: int = 8,
    ) -> None:
        self.names = tuple(variants)
        self.limits = tuple([float(x) for x in limits])
        self.hysteresis = hysteresis
        self.patience = patience
        _check(self)
        self._functions = dict(variants)
        self._compiled = {name: jit(fn) for name, fn in variants.items()}
        self._measured_by = largest_magnitude if measure is None else measure
        self._measure = jit(self._measured_by)
        self._lock = threading.Lock()
        self._current = 0
        self._calls = 0
        # The widest of the variants that calm calls in a row would take, and how many these are.
        self._calm = (0, 0)
        self.counts = dict.fromkeys(self.names, 0)
        self.switches: list[Switch] = []

    @property
    def chosen(self) -> str:
        """The variant that the last call took, or the first one will."""
        return self.names[self._current]

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced_here():
            return self._branch(self._measured_by(*args, **kwargs), args, kwargs)
        measured = _number(self._measure(*args, **kwargs))
        if isinstance(measured, Tracer):
            return self._branch(measured, args, kwargs)
        return self._compiled[self._choose(float(measured))](*args, **kwargs)

    def _branch(self, measured: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The narrowest variant that the numbers of this call allow, as a branch of the program."""
        number = _number(measured)
        index: Any = full((), 0, int32)
        for limit in self.limits:
            # Written so that NaN is above all limits.
            index = e.add(index, e.cast(e.not_(e.le(number, limit)), int32))

        def run(fn: Callable[..., Any]) -> Callable[..., Any]:
            def with_operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return fn(*args, **kwargs)

            return with_operands

        return switch(index, [run(self._functions[name]) for name in self.names], args, kwargs)

    @api_boundary
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles all variants for arguments like these, by running each of them once.

        Raises:
            PytreeError: their results differ in structure, shape or dtype.
        """
        first: Any = None
        for name in self.names:
            found = eval_shape(self._functions[name], *args, **kwargs)
            types, structure = pytree.flatten(found)
            text = [f"{x.dtype}[{', '.join(map(str, x.shape))}]" for x in types]
            first = first or (name, text, structure)
            if (text, structure) != first[1:]:
                raise PytreeError(
                    f"AdaptivePrecision: {first[0]} gives {', '.join(first[1])}, {name} gives"
                    f" {', '.join(text)}",
                    loc=loc.current(),
                    rule="all variants give results of the same structure, shapes and dtypes",
                )
        self._measure(*args, **kwargs)
        for name in self.names:
            self._compiled[name](*args, **kwargs)

    def _choose(self, measured: float) -> str:
        with self._lock:
            before = self._current
            self._current = self._next(measured)
            if self._current != before:
                names = self.names[before], self.names[self._current]
                self.switches.append(Switch(self._calls, measured, *names))
            self._calls += 1
            name = self.names[self._current]
            self.counts[name] += 1
            return name

    def _next(self, measured: float) -> int:
        current = self._current
        # Written so that NaN is above all limits.
        needed = self._first(measured, 1.0)
        if needed > current:
            self._calm = (0, 0)
            return needed
        calm = self._first(measured, self.hysteresis)
        if calm >= current:
            self._calm = (0, 0)
            return current
        widest, count = self._calm
        self._calm = (max(widest, calm), count + 1)
        if self._calm[1] < self.patience:
            return current
        found = self._calm[0]
        self._calm = (0, 0)
        return found

    def _first(self, measured: float, part: float) -> int:
        """The narrowest variant of which so large a part of the limit is enough."""
        for k, limit in enumerate(self.limits):
            if measured <= part * limit:
                return k
        return len(self.limits)

    def __repr__(self) -> str:
        counts = ", ".join([f"{name}: {n} calls" for name, n in self.counts.items()])
        return f"AdaptivePrecision({counts}; now {self.chosen}, {len(self.switches)} switches)"


def _number(measured: Any) -> Any:
    if not isinstance(measured, ArrayBase) or measured.shape:
        raise OptionError(
            "AdaptivePrecision: the measure is no number",
            loc=loc.current(),
            rule="a measure gives an array without dims",
        )
    return measured


def _check(f: AdaptivePrecision) -> None:
    if not f.names or len(f.limits) != len(f.names) - 1:
        raise OptionError(
            f"AdaptivePrecision: {len(f.names)} variants and {len(f.limits)} limits",
            loc=loc.current(),
            rule="each variant but the last one has a limit",
        )
    if any(not a < b for a, b in zip((0.0, *f.limits), f.limits, strict=False)):
        raise OptionError(
            f"AdaptivePrecision: the limits are {list(f.limits)}",
            loc=loc.current(),
            rule="they are above 0, and increase",
        )
    if not 0 < f.hysteresis <= 1 or f.patience < 1:
        raise OptionError(
            f"AdaptivePrecision: hysteresis={f.hysteresis}, patience={f.patience}",
            loc=loc.current(),
            rule="hysteresis is above 0 and at most 1, patience 1 or more",
        )
